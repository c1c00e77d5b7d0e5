"""The state of every invariant after one run: passed, warned, failed, unread, or skipped and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rmq_audit.driver.audit import Result
from rmq_audit.driver.findings import INVARIANTS, Finding
from rmq_audit.worker.work import Severity

PASSED, WARNED, FAILED, UNREAD, SKIPPED = "passed", "warned", "failed", "unread", "skipped"

#: invariants that no pair can show; a cluster's own
OF_CLUSTER = tuple(name for name in INVARIANTS if name.startswith("RT-") or name == "CL-BACK")

#: why a log's end is not compared with an earlier one
ONE_LOOK = "this run reads each log once; rmq-audit watch compares the ends of its rounds"

#: why routes are not checked
NO_ROUTES = "no routes were given; rmq-audit cluster takes them"


def rules_of(result: Result) -> list[dict[str, Any]]:
    """Return a row for every invariant, in the order of the table; a cluster's own are skipped."""
    why = dict(_not_checked(result))
    return rows(INVARIANTS, result.findings, why)


def rows(names: Iterable[str], findings: Iterable[Finding], why: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return invariant, state, number of findings and why it was skipped; a finding outranks a reason to skip."""
    by_invariant: dict[str, list[Finding]] = {}
    for one in findings:
        by_invariant.setdefault(one.invariant, []).append(one)
    made = []
    for name in names:
        found = by_invariant.get(name, [])
        state = _state(name, found, name in why)
        reason = why.get(name) if state == SKIPPED else None
        made.append({"invariant": name, "state": state, "findings": len(found), "why": reason})
    return made


def _state(name: str, found: list[Finding], skipped: bool) -> str:
    if not found:
        return SKIPPED if skipped else PASSED
    if name == "AU-COVER":
        return UNREAD
    return FAILED if max(one.severity for one in found) >= Severity.ERROR else WARNED


def _not_checked(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the invariants that nothing in this run could break, and why."""
    logs = [log for log in (result.master, result.slave) if log is not None]
    sides = [side for side in (result.coverage.master, result.coverage.slave) if side is not None]
    yield from _each(OF_CLUSTER, NO_ROUTES)
    yield "CL-BACK", ONE_LOOK
    if not any(log.store.segments for log in logs):
        yield from _each(_named("CL-", "QO-"), "no segment of a log is there")
    if result.slave is None:
        yield from _each(_named("RP-"), "one store alone: there is nothing to compare it with")
    elif result.compared_from >= result.compared_to:
        names = ("RP-DIFF", "RP-MISSING", "RP-EXTRA", "RP-DIVERGE", "RP-EPOCH")
        yield from _each(names, "the two logs have no range in common")
    elif not result.epochs_known:
        yield "RP-EPOCH", "not both sides keep a table of epochs (stores of 5.x with a controller do)"
    if not any(log.end_inferred for log in logs):
        yield "CL-STALE", "the end is stated by a manifest; what is after it was not read"
    if not any(log.store.queues for log in logs):
        yield from _each(_named("CQ-"), "no consume queue files are there")
    if not any(side.index_files for side in sides):
        yield from _each(_named("IX-"), "no index files are there")
    if not any(side.consumer_offsets_checked for side in sides):
        yield from _each(_named("CO-"), "no consumer offsets are there")
    elif not result.looked_before:
        yield "CO-BACK", "there is no run before of these stores to compare offsets with (--previous)"
    if result.slave is None:
        yield "CF-DIFF", "one store alone: there is nothing to compare it with"
    if not any(log.store.unfinished for log in logs):
        yield "CF-TIME", "no store awaits a recovery, which alone reads the checkpoint"
    if result.live:
        yield from _each(_named("CF-"), "the store was being written: its tables are, too")
        yield "CO-AHEAD", "the store was being written: where a queue ends is not known"
    if result.sends is None:
        yield from _each(_named("AK-"), "no table of acknowledged sends was given (--acked)")
    elif not sides[0].acked_sends_counted:
        yield "AK-COUNT", "no send without a place was there to count"


def _each(names: Iterable[str], why: str) -> Iterator[tuple[str, str]]:
    for name in names:
        yield name, why


def _named(*prefixes: str) -> list[str]:
    return [name for name in INVARIANTS if name.startswith(prefixes) and name not in OF_CLUSTER]
