"""The result of a pair or store: the summary for a terminal, and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from rmq_audit.driver.audit import Result
from rmq_audit.driver.coverage import SideCoverage
from rmq_audit.driver.findings import Finding
from rmq_audit.driver.log import Log
from rmq_audit.driver.previous import NEW, PERSISTING, Previous, mark, offsets_table, subject_of
from rmq_audit.report.pictures import lag_of
from rmq_audit.report.rules import ONE_LOOK, rules_of
from rmq_audit.worker import kernel
from rmq_audit.worker.work import Severity

#: version of the JSON's layout
FORMAT_VERSION = 1

#: findings that the JSON holds at most; it says how many there were
MAX_JSON_FINDINGS = 1000

#: foreign files that the summary names
MAX_FOREIGN_SHOWN = 3

#: findings that the summary shows, consequences not counted
MAX_SHOWN = 12

INCOMPLETE = "coverage  INCOMPLETE: not everything could be read or compared, see AU-COVER"

_WIDTH = 130
#: paths stay whole, so that they can be copied
_wrap = partial(textwrap.wrap, width=_WIDTH, break_long_words=False, break_on_hyphens=False)


@attrs.frozen(kw_only=True)
class Run:
    """
    What is said of a run beside its result: times in seconds, the engine's name, the previous run if there is one, and
    what ``--state`` was good for.

    ``ends_unknown``: why no log's end was compared with where it ended before; None if that was done.
    """

    run_id: str
    started_at: str
    seconds: float
    engine: str
    previous: Previous | None = None
    resolved: Sequence[Mapping[str, Any]] = ()
    ends_unknown: str | None = ONE_LOOK
    state: Mapping[str, Any] | None = None

    def since(self, previous: Previous | None, findings: Sequence[Finding], *, complete: bool) -> Run:
        """Return the run with what has changed since the previous one, and mark the findings as new or persisting."""
        resolved = [] if previous is None else mark(findings, previous, complete=complete)
        return attrs.evolve(self, previous=previous, resolved=resolved)


def to_json(result: Result, run: Run) -> dict[str, Any]:
    """Return the whole result as the JSON file holds it; numbers are bytes, offsets, counts or seconds."""
    lag = lag_of(result)
    return {
        **run_json(run),
        "kernel": kernels(result),
        "verdict": result.verdict.value,
        "exit_status": result.exit_status,
        "segment_bytes": result.segment_bytes,
        "command": "check" if result.slave is None else "compare",
        "master": _side(result.master),
        "slave": None if result.slave is None else _side(result.slave),
        "compared": {"phy_from": result.compared_from, "phy_to": result.compared_to},
        "lag": None if lag is None else {"bytes": lag.size_bytes, "seconds": lag.seconds},
        "changed_files": result.changed_files,
        "coverage": attrs.asdict(result.coverage),
        "empty": empty_text(result),
        **findings_json(result.findings, run),
        "invariants": rules_of(result),
        "state": run.state,
        "consumer_offsets": offsets_table(next(iter(result.consumers.values()))),
    }


def run_json(run: Run) -> dict[str, Any]:
    """Return what every JSON report says of its run."""
    previous = run.previous
    return {
        "format_version": FORMAT_VERSION,
        "run_id": run.run_id,
        "started_at": run.started_at,
        "seconds": round(run.seconds, 3),
        "engine": run.engine,
        "previous": None if previous is None else {"run_id": previous.run_id, "started_at": previous.started_at},
        "resolved": [dict(one) for one in run.resolved],
    }


def findings_json(findings: Sequence[Finding], run: Run) -> dict[str, Any]:
    """Return the findings that a JSON report holds, and how many there are in all."""
    return {
        "findings_total": len(findings),
        "findings_derived": sum(one.derived_from is not None for one in findings),
        "findings_left_out": max(0, len(findings) - MAX_JSON_FINDINGS),
        "findings": [attrs.evolve(one, run_id=run.run_id).to_json() for one in findings[:MAX_JSON_FINDINGS]],
    }


def to_text(result: Result, run: Run) -> str:
    """Return the summary for a terminal."""
    lines = list(_lines(result, run))
    if run.previous is not None:
        lines.insert(1, f"since     {since_text(result.findings, run)}")
    state = run.state
    if state is not None and state["tasks_reused"]:
        reused, done = state["tasks_reused"], state["tasks_done"]
        size = size_text(state["bytes_reused"])
        lines.insert(-1, f"state     {reused} answers of {reused + done} reused, {size} not read again")
    return "\n".join(lines)


def empty_text(result: Result) -> str | None:
    """Say which stores hold no message, so that nothing was compared; None when all hold some."""
    if result.slave is None:
        return "the store holds no message: there was nothing to check" if not result.master.records else None
    empty = [log.side for log in (result.master, result.slave) if log.records == 0]
    if len(empty) == 2:
        return "neither store holds a message: there was nothing to compare, and the verdict says nothing of messages"
    if not empty:
        return None
    full = result.slave if result.master.records == 0 else result.master
    return f"the {empty[0]} holds no message, the {full.side} {full.records}: there was nothing to compare"


def subject(result: Result) -> tuple[str, ...]:
    """Return whose stores a result is about."""
    return subject_of({"master": _side(result.master), "slave": result.slave and _side(result.slave)})


def _side(log: Log) -> dict[str, Any]:
    manifest = log.store.manifest
    return {
        "path": log.store.path,
        "phy_from": log.start,
        "phy_to": log.end,
        "end_inferred": log.end_inferred,
        "records": log.records,
        # of its files there may be thousands; what is missing among them is a finding
        "manifest": None if manifest is None else attrs.asdict(manifest, filter=attrs.filters.exclude("files")),
    }


def _lines(result: Result, run: Run) -> Iterator[str]:
    causes = causes_of(result.findings)
    yield f"{result.verdict.value}  (exit status {result.exit_status})  {counted(result.findings)}"
    all_of = result.coverage
    yield from _side_lines(result.master, all_of.master)
    if result.slave is not None and all_of.slave is not None:
        yield from _side_lines(result.slave, all_of.slave)
        yield (
            f"compared  {result.compared_from} to {result.compared_to}, {size_text(all_of.bytes_compared)} in "
            f"{all_of.chunks_compared} chunks: {all_of.chunks_equal} with equal digests, "
            f"{all_of.chunks_drilled} compared byte by byte, {all_of.chunks_different} of these different"
        )
    empty = empty_text(result)
    if empty is not None:
        yield f"empty     {empty}"
    files = ", ".join(dict.fromkeys(one["file"] for one in all_of.not_checked))
    text = f"parts of {files} that no record determines; --json and --html list them under coverage"
    yield from _wrap(text, initial_indent="unchecked ", subsequent_indent=" " * 10)
    if not all_of.complete:
        yield INCOMPLETE
    if result.changed_files:
        yield f"note      {len(result.changed_files)} files were written during the audit; growing ends are not judged"
    for one in causes[:MAX_SHOWN]:
        yield ""
        yield from finding_lines(one, result.findings)
    if len(causes) > MAX_SHOWN:
        yield ""
        yield f"... and {len(causes) - MAX_SHOWN} more findings; --json FILE writes them all"
    yield ""
    yield f"{speed_text(bytes_read(result), run)}, kernel {kernels(result)}"


def counted(findings: Sequence[Finding]) -> str:
    """Return how many findings there are: causes, and those that follow from them."""
    follow = sum(one.derived_from is not None for one in findings)
    causes = len(findings) - follow
    return f"{causes} finding{'s' * (causes != 1)}" + (f" and {follow} that follow" if follow else "")


def since_text(findings: Sequence[Finding], run: Run) -> str:
    """Return what changed since the previous run; "" when there is none."""
    if run.previous is None:
        return ""
    states = [one.state for one in findings]
    return (
        f"the run of {run.previous.started_at}: {states.count(NEW)} new, {states.count(PERSISTING)} persisting, "
        f"{len(run.resolved)} resolved"
    )


def bytes_read(result: Result) -> int:
    """Return how many bytes of the logs of both sides were read."""
    return sum(side.bytes_read for side in (result.coverage.master, result.coverage.slave) if side is not None)


def speed_text(total: int, run: Run) -> str:
    """Return the last line of a summary: what was read, how fast, and by which engine."""
    speed = total / 1e6 / max(run.seconds, 1e-9)
    return f"{size_text(total)} in {run.seconds:.1f} s ({speed:.0f} MB/s), engine {run.engine}"


def kernels(result: Result) -> str:
    """Return the kernels that read the logs; workers of Spark need not all have the same one."""
    logs = [log for log in (result.master, result.slave) if log is not None]
    used = {scan.kernel for log in logs for scan in log.scans if scan.kernel}
    return ", ".join(sorted(used)) or kernel.NAME


def _side_lines(log: Log, coverage: SideCoverage) -> Iterator[str]:
    end = "end inferred from the bytes" if log.end_inferred else "end by manifest"
    crcs = f"{coverage.crcs_checked} bodies checked"
    if coverage.crcs_carried_over:
        crcs += f", {coverage.crcs_carried_over} equal to the master's"
    units = f", {coverage.units_checked} units of {coverage.queues} queues" if coverage.queues else ""
    yield f"{log.side:<9} {log.store.path}: {log.start} to {log.end} ({end}), {log.records} records, {crcs}{units}"
    parts = []
    if coverage.index_files:
        parts.append(f"{coverage.index_entries_checked} entries of {coverage.index_files} index files")
    if coverage.consumer_offsets_checked:
        parts.append(f"{coverage.consumer_offsets_checked} consumer offsets")
    passed_over = [
        f"{count} {why}"
        for count, why in (
            (coverage.acked_sends_expired, "expired"),
            (coverage.acked_sends_without_place, "without a place"),
            (coverage.acked_sends_not_stored, "refused"),
            (coverage.acked_sends_of_others, "of other brokers"),
        )
        if count
    ]
    if coverage.acked_sends_checked or passed_over:
        rest = f" (not searched for: {', '.join(passed_over)})" if passed_over else ""
        parts.append(f"{coverage.acked_sends_checked} acknowledged sends{rest}")
    if parts:
        yield f"{'':<9} {', '.join(parts)}"
    if coverage.foreign_files:
        names = ", ".join(coverage.foreign_names[:MAX_FOREIGN_SHOWN])
        more = coverage.foreign_files - min(len(coverage.foreign_names), MAX_FOREIGN_SHOWN)
        yield f"{'':<9} not RocketMQ's and not read: {names}{f' and {more} more' if more else ''}"


def causes_of(findings: Sequence[Finding]) -> list[Finding]:
    """
    Return the findings that a summary shows: no consequences, and of remarks on queues that are behind one of a kind.

    Each queue of a busy broker has such a remark, and they would leave no room for what is wrong.
    """
    shown: dict[object, Finding] = {}
    for one in findings:
        if one.derived_from is None:
            shown.setdefault(_remark(one) or one.finding_id, one)
    return list(shown.values())


def _remark(one: Finding) -> object:
    """Return what remarks of one kind have in common; None for other findings."""
    reason = one.detail.partition(": ")[2]
    if one.severity is not Severity.INFO or one.invariant != "CQ-BEHIND" or not reason:
        return None
    return one.broker, one.replica, reason


def finding_lines(one: Finding, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield what the summary says of a finding; ``findings`` are all, for those that follow from it."""
    blame = "" if one.blame is None else f", blame {one.blame}"
    yield f"{one.severity.name} {one.invariant} on {one.replica}{blame}: {_place(one)}"
    yield from _wrap(one.detail, initial_indent="    ", subsequent_indent="    ")
    if one.sample_msg_ids:
        more = f" and {one.count - 1} more" if one.count > 1 else ""
        yield f"    message {one.sample_msg_ids[0]}{more}"
    if one.expected is not None and one.actual is not None:
        yield from _wrap(f"expected {one.expected}", initial_indent="    ", subsequent_indent="      ")
        yield from _wrap(f"actual   {one.actual}", initial_indent="    ", subsequent_indent="      ")
    for side, evidence in (("master", one.evidence_master), ("slave", one.evidence_slave)):
        if evidence:
            yield f"    {side:<6} {one.evidence_phy}: {evidence}"
    kind = _remark(one)
    alike = [] if kind is None else [other for other in findings if other is not one and _remark(other) == kind]
    if alike:
        yield f"    the same of {len(alike)} more queues, {sum(other.count for other in alike)} records"
    derived = [other for other in findings if other.derived_from == one.finding_id]
    if derived:
        kinds = sorted({f"{other.invariant} on {other.replica}" for other in derived})
        yield f"    {len(derived)} more follow from it: {', '.join(kinds)}"


def _place(one: Finding) -> str:
    parts = []
    if one.topic is not None:
        parts.append(f"topic {one.topic}" + ("" if one.queue_id is None else f" queue {one.queue_id}"))
        if one.queue_offset_from is not None:
            last = one.queue_offset_to
            many = last is not None and last != one.queue_offset_from
            parts.append(f"offset {one.queue_offset_from}" + (f" to {last}" if many else ""))
    if one.phy_from is not None:
        parts.append(f"physical offset {one.phy_from}" + ("" if one.phy_to is None else f" to {one.phy_to}"))
    return ", ".join(parts) if parts else "-"


def size_text(size: float) -> str:
    """Return bytes as people read them."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
