"""The result of a cluster: summary, JSON, JUnit XML, metrics and page; each pair's part is made as for a pair alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any
from xml.etree import ElementTree

import attrs

from rmq_audit.driver.cluster import STATUSES, ClusterResult, PairResult
from rmq_audit.driver.findings import INVARIANTS, finding
from rmq_audit.report import charts, html
from rmq_audit.report import pair as report
from rmq_audit.report.files import write_results
from rmq_audit.report.outputs import cluster_metrics, document, metrics, suite_of
from rmq_audit.report.pair import MAX_SHOWN, Run, empty_text, finding_lines, size_text
from rmq_audit.report.pictures import lag_of, pictures_of
from rmq_audit.report.rules import NO_ROUTES, OF_CLUSTER, rows, rules_of
from rmq_audit.worker.work import SLAVE, STORE

#: pairs that the summary names; the worst ones first, the rest are counted
MAX_PAIRS_SHOWN = 30

#: pairs whose pictures are drawn, rows of the table of pairs; the worst ones first, the rest are counted
MAX_PAIRS_DRAWN, MAX_PAIR_ROWS = 24, 1000


def to_json(result: ClusterResult, run: Run) -> dict[str, Any]:
    """Return everything: the cluster's verdict and findings, and of each pair what a pair's own JSON says of it."""
    return {
        **report.run_json(run),
        "kernel": ", ".join(sorted({report.kernels(one.result) for one in result.pairs if one.result is not None})),
        "command": "cluster",
        "config": result.config.path,
        "cluster": result.config.cluster,
        "verdict": result.verdict,
        "exit_status": result.exit_status,
        "complete": result.complete,
        "pairs": [_pair_json(one, run) for one in result.pairs],
        "nameservers": [
            {"nameserver": one.nameserver, "taken_at": one.taken_at, "path": one.path} for one in result.routes
        ],
        **report.findings_json(result.findings, run),
        "invariants": _cluster_rules(result, run),
    }


def _pair_json(one: PairResult, run: Run) -> dict[str, Any]:
    about = {
        "name": one.pair.name,
        "broker": one.pair.broker.name,
        "slave_number": one.pair.number,
        "verdict": one.verdict,
        "exit_status": one.exit_status,
        "refused": one.refused,
    }
    if one.result is None:
        return about
    whole = _report_of(one, run)
    # the findings stand once, in the cluster's list
    return whole | {"findings": []} | about


def _report_of(one: PairResult, run: Run) -> dict[str, Any]:
    """Return the JSON of a pair that was audited."""
    assert one.result is not None
    return report.to_json(one.result, attrs.evolve(run, seconds=one.seconds, previous=None, resolved=()))


def to_text(result: ClusterResult, run: Run) -> str:
    """Return the summary for a terminal."""
    return "\n".join(_lines(result, run))


def _lines(result: ClusterResult, run: Run) -> Iterator[str]:
    causes = report.causes_of(result.findings)
    yield f"{result.verdict}  (exit status {result.exit_status})  {report.counted(result.findings)}"
    if run.previous is not None:
        yield f"since     {report.since_text(result.findings, run)}"
    yield f"cluster   {result.config.cluster or '-'}: {len(result.config.brokers)} brokers, {len(result.pairs)} pairs"
    if result.routes:
        names = ", ".join(one.nameserver for one in result.routes)
        yield f"routes    {len(result.routes)} NameServers: {names}"
    shown = sorted(result.pairs, key=lambda one: (one.exit_status == 0, one.pair.name))[:MAX_PAIRS_SHOWN]
    width = max(len(one.pair.name) for one in shown)
    for one in shown:
        yield f"  {one.pair.name:<{width}}  {one.verdict:<10}  {_pair_text(one)}"
    if len(result.pairs) > len(shown):
        yield f"  ... and {len(result.pairs) - len(shown)} more pairs; --json FILE names them all"
    if not result.complete:
        yield report.INCOMPLETE
    for cause in causes[:MAX_SHOWN]:
        yield ""
        first, *rest = finding_lines(cause, result.findings)
        yield f"{cause.broker}: {first}" if cause.broker else first
        yield from rest
    if len(causes) > MAX_SHOWN:
        yield ""
        yield f"... and {len(causes) - MAX_SHOWN} more findings; --json FILE writes them all"
    yield ""
    total = sum(0 if one.result is None else report.bytes_read(one.result) for one in result.pairs)
    yield report.speed_text(total, run)


def _pair_text(one: PairResult) -> str:
    if one.result is None:
        return str(one.refused)
    result = one.result
    causes = sum(found.derived_from is None for found in result.findings)
    moving = f", {len(result.changed_files)} files written during the audit" if result.changed_files else ""
    empty = empty_text(result)
    if empty is not None:
        return f"{empty}, {causes} findings{moving}"
    if result.slave is None:
        return f"alone, {result.master.start} to {result.master.end}, {causes} findings{moving}"
    return (
        f"master to {result.master.end}, slave to {result.slave.end}, "
        f"{size_text(result.coverage.bytes_compared)} compared, {causes} findings{moving}"
    )


def to_junit(result: ClusterResult, run: Run) -> str:
    """Return JUnit XML: one suite a pair with all that a pair can show, one for what belongs to the cluster."""
    root = ElementTree.Element("testsuites", name="rmq-audit cluster", time=f"{run.seconds:.3f}")
    answer = to_json(result, run)
    for one in result.pairs:
        whole = {"findings": _refusal(one), "seconds": one.seconds, "started_at": run.started_at}
        if one.result is not None:
            whole = _report_of(one, run)
        stores = " ".join(path for path in (one.pair.broker.master, one.pair.slave) if path is not None)
        root.append(suite_of(f"rmq-audit {one.pair.name}", stores, _rules_of(one), whole))
    own = {**answer, "findings": [attrs.evolve(one, run_id=run.run_id).to_json() for one in result.of_cluster]}
    name = result.config.cluster or result.config.path
    root.append(suite_of("rmq-audit cluster", name, answer["invariants"], own))
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(suite.get(kind, "0")) for suite in root)))
    return document(root)


def _rules_of(one: PairResult) -> list[dict[str, Any]]:
    """Return what became of the invariants that a pair can show; of a pair that was refused of none."""
    names = [name for name in INVARIANTS if name not in OF_CLUSTER]
    if one.result is not None:
        return [row for row in rules_of(one.result) if row["invariant"] in names]
    why = f"{one.pair.name} was not audited: {one.refused}"
    return rows(names, [finding("AU-COVER", STORE, detail=why)], dict.fromkeys(names, why))


def _refusal(one: PairResult) -> list[dict[str, Any]]:
    text = f"{one.pair.name} was not audited: {one.refused}"
    return [finding("AU-COVER", STORE, detail=text).to_json()] if one.result is None else []


def _cluster_rules(result: ClusterResult, run: Run) -> list[dict[str, Any]]:
    """Return what became of the invariants that only the cluster as a whole can show."""
    why = {name: NO_ROUTES for name in OF_CLUSTER if not result.routes}
    if len(result.routes) == 1:
        one = "one NameServer alone: there is nothing to compare it with"
        why |= {"RT-DIFF": one, "RT-TWOMASTERS": one}
    why.pop("CL-BACK", None)
    if run.ends_unknown is not None:
        why["CL-BACK"] = run.ends_unknown
    return rows((*OF_CLUSTER, "AU-COVER"), result.of_cluster, why)


def to_prometheus(result: ClusterResult, run: Run, finished_at: float) -> str:
    """Return the metrics of every pair under its name, and those of the cluster."""
    pairs = [(one.pair.name, _report_of(one, run)) for one in result.pairs if one.result is not None]
    lines = [*metrics(pairs, finished_at), *cluster_metrics(to_json(result, run), finished_at, result.findings)]
    return "\n".join(lines) + "\n"


def write_cluster(
    result: ClusterResult, run: Run, outputs: Mapping[str, str], finished_at: float, *, parquet: str | None = None
) -> None:
    """
    Write the files that are asked for, by option; ``finished_at`` are seconds of the epoch, ``parquet`` is the folder
    of the table of findings.
    """
    texts = {
        "--json": lambda: json.dumps(to_json(result, run), indent=2) + "\n",
        "--html": lambda: to_html(result, run),
        "--junit": lambda: to_junit(result, run),
        "--prometheus": lambda: to_prometheus(result, run, finished_at),
    }
    rows = [*(one.to_json() for one in result.findings), *run.resolved]
    write_results(outputs, texts, parquet, run.run_id, rows)


def to_html(result: ClusterResult, run: Run) -> str:
    """Return one page for a browser: all pairs in a table, the worst of them drawn, all findings by cause."""
    return "\n".join(_page(result, run)) + "\n"


def _page(result: ClusterResult, run: Run) -> Iterator[str]:
    answer = to_json(result, run)
    yield from html.head(f"rmq-audit cluster: {result.verdict}")
    cluster, status = escape(result.config.cluster or ""), result.exit_status
    yield f'<h1>rmq-audit cluster {cluster} <span class="v v{status}">{escape(result.verdict)}</span></h1>'
    causes = sum(one.derived_from is None for one in result.findings)
    yield (
        f"<p>Exit status {status}. {causes} findings, {len(result.findings) - causes} that follow from them. "
        f"Begun {escape(run.started_at)}, took {run.seconds:.1f} s (engine {escape(run.engine)}, "
        f"kernel {escape(answer['kernel'])}, run {escape(run.run_id)}).</p>"
    )
    if not result.complete:
        yield "<p><b>Not everything could be read or compared:</b> see AU-COVER below.</p>"
    ordered = sorted(result.pairs, key=lambda one: -STATUSES.index(one.exit_status))
    numbers = {one.pair.name: number for number, one in enumerate(ordered)}
    drawn = [one for one in ordered if one.result is not None][:MAX_PAIRS_DRAWN]
    yield from _pairs_table(result, ordered, {one.pair.name: f"pair-{numbers[one.pair.name]}" for one in drawn})
    pictures = [(one, pictures_of(one.result)) for one in drawn if one.result is not None]
    compared = [(one.pair.name, one.result) for one in ordered if one.pair.slave is not None and one.result is not None]
    if compared:
        yield "<h2>Lag of the slaves</h2>"
        yield from charts.lags([(name, lag_of(found)) for name, found in compared])
    yield from html.since_the_run_before(answer)
    yield from html.findings_section(answer, lambda one: _path_of(one, result))
    yield "<h2>Pair by pair</h2>"
    for one, seen in pictures:
        opened = " open" if one.exit_status or len(pictures) == 1 else ""
        yield f'<details id="pair-{numbers[one.pair.name]}"{opened}><summary><b>{escape(one.pair.name)}</b> '
        yield f'<span class="v v{one.exit_status}">{escape(one.verdict)}</span></summary>'
        yield from html.store_sections(_report_of(one, run), seen, level=3)
        yield "</details>"
    more = sum(one.result is not None for one in ordered) - len(drawn)
    if more:
        yield f"<p>… and {more} more pairs, none of them worse; <code>rmq-audit compare</code> draws one.</p>"
    yield "</body></html>"


def _pairs_table(result: ClusterResult, ordered: Sequence[PairResult], anchors: Mapping[str, str]) -> Iterator[str]:
    yield "<h2>Pairs</h2><table><tr><th>broker</th><th>verdict</th><th></th></tr>"
    for one in ordered[:MAX_PAIR_ROWS]:
        name = escape(one.pair.name)
        if one.pair.name in anchors:
            name = f'<a href="#{anchors[one.pair.name]}">{name}</a>'
        word = f'<span class="v v{one.exit_status}">{escape(one.verdict)}</span>'
        yield f'<tr><td class="name">{name}</td><td>{word}</td>'
        yield f"<td>{escape(_pair_text(one))}</td></tr>"
    yield "</table>"
    if len(ordered) > MAX_PAIR_ROWS:
        yield f"<p>… and {len(ordered) - MAX_PAIR_ROWS} more pairs.</p>"
    if result.routes:
        names = ", ".join(one.nameserver for one in result.routes[:MAX_PAIR_ROWS])
        yield f"<p>Routes of {len(result.routes)} NameServers: {escape(names)}</p>"


def _path_of(one: Mapping[str, Any], result: ClusterResult) -> str | None:
    """Return where the store of a finding lies; None for what is of no one store."""
    broker = next((broker for broker in result.config.brokers if broker.name == one["broker"]), None)
    if broker is None:
        return None
    which = one["replica"].removeprefix(SLAVE).strip()
    if not html.is_on_slave(one) or not broker.slaves:
        return broker.master
    return broker.slaves[int(which) - 1 if which.isdecimal() else 0]
