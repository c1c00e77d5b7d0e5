"""What a person and what programs get to read of a whole cluster; each pair's part is made as for a pair alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any
from xml.etree import ElementTree

import attrs

from rmq_audit import report
from rmq_audit.cluster import ClusterResult, PairResult
from rmq_audit.findings import Finding
from rmq_audit.html import to_html as pair_page
from rmq_audit.outfiles import write
from rmq_audit.outputs import to_junit as pair_junit
from rmq_audit.outputs import to_prometheus as pair_metrics
from rmq_audit.previous import NEW, PERSISTING, Previous
from rmq_audit.report import FORMAT_VERSION, MAX_JSON_FINDINGS, MAX_SHOWN, finding_lines, size_text

#: pairs that the summary names; the worst ones first, the rest are counted
MAX_PAIRS_SHOWN = 30

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.2rem;max-width:76rem}
table{border-collapse:collapse}td,th{padding:.2rem 1rem .2rem 0;text-align:left;vertical-align:top}
.s0{color:#2d7d4a}.s1{color:#a8801a}.s2{color:#b62f2f}.s3{color:#777}
"""


@attrs.frozen(kw_only=True)
class Run:
    """What is said of a run beside its result: times in seconds, the engine's name, the run before if there is one."""

    run_id: str
    started_at: str
    seconds: float
    engine: str
    previous: Previous | None = None
    resolved: Sequence[Mapping[str, Any]] = ()


def to_json(result: ClusterResult, run: Run) -> dict[str, Any]:
    """Return everything: the cluster's verdict and findings, and of each pair what a pair's own JSON says of it."""
    findings = [attrs.evolve(one, run_id=run.run_id).to_json() for one in result.findings[:MAX_JSON_FINDINGS]]
    previous = run.previous
    return {
        "format_version": FORMAT_VERSION,
        "run_id": run.run_id,
        "started_at": run.started_at,
        "seconds": round(run.seconds, 3),
        "engine": run.engine,
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
        "findings_total": len(result.findings),
        "findings_derived": sum(one.derived_from is not None for one in result.findings),
        "findings_left_out": max(0, len(result.findings) - MAX_JSON_FINDINGS),
        "findings": findings,
        "previous": None if previous is None else {"run_id": previous.run_id, "started_at": previous.started_at},
        "resolved": [dict(one) for one in run.resolved],
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
    return report.to_json(
        one.result, run_id=run.run_id, started_at=run.started_at, seconds=one.seconds, engine=run.engine
    )


def to_text(result: ClusterResult, run: Run) -> str:
    """Return the summary for a terminal."""
    return "\n".join(_lines(result, run))


def since(findings: Sequence[Finding], run: Run) -> str | None:
    """Return what changed since the run before, None when there is none."""
    if run.previous is None:
        return None
    states = [one.state for one in findings]
    return (
        f"the run of {run.previous.started_at}: {states.count(NEW)} new, {states.count(PERSISTING)} persisting, "
        f"{len(run.resolved)} resolved"
    )


def _lines(result: ClusterResult, run: Run) -> Iterator[str]:
    causes = [one for one in result.findings if one.derived_from is None]
    follow = len(result.findings) - len(causes)
    counted = f"{len(causes)} finding{'s' * (len(causes) != 1)}" + (f" and {follow} that follow" if follow else "")
    yield f"{result.verdict}  (exit status {result.exit_status})  {counted}"
    changed = since(result.findings, run)
    if changed is not None:
        yield f"since     {changed}"
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
        yield "coverage  INCOMPLETE: not everything could be read or compared, see AU-COVER"
    for cause in causes[:MAX_SHOWN]:
        yield ""
        first, *rest = finding_lines(cause, result.findings)
        yield f"{cause.broker}: {first}" if cause.broker else first
        yield from rest
    if len(causes) > MAX_SHOWN:
        yield ""
        yield f"... and {len(causes) - MAX_SHOWN} more findings; --json FILE writes them all"
    total = sum(_bytes_read(one) for one in result.pairs)
    yield ""
    rate = total / 1e6 / max(run.seconds, 1e-9)
    yield f"{size_text(total)} in {run.seconds:.1f} s ({rate:.0f} MB/s), engine {run.engine}"


def _pair_text(one: PairResult) -> str:
    if one.result is None:
        return str(one.refused)
    result = one.result
    causes = sum(found.derived_from is None for found in result.findings)
    moving = f", {len(result.changed_files)} files written to meanwhile" if result.changed_files else ""
    if result.slave is None:
        return f"alone, {result.master.start} to {result.master.end}, {causes} findings{moving}"
    return (
        f"master to {result.master.end}, slave to {result.slave.end}, "
        f"{size_text(result.coverage.bytes_compared)} compared, {causes} findings{moving}"
    )


def _bytes_read(one: PairResult) -> int:
    if one.result is None:
        return 0
    coverage = one.result.coverage
    return coverage.master.bytes_read + (0 if coverage.slave is None else coverage.slave.bytes_read)


def to_junit(result: ClusterResult, run: Run) -> str:
    """Return JUnit XML: one suite a pair, and one for what belongs to the cluster as a whole."""
    suites = ElementTree.Element("testsuites", name="rmq-audit cluster", time=f"{run.seconds:.3f}")
    for one in result.pairs:
        if one.result is None:
            suites.append(_suite(one.pair.name, [("error", f"{one.pair.name} was not audited: {one.refused}")], run))
            continue
        suite = ElementTree.fromstring(pair_junit(_report_of(one, run)))
        suite.set("name", f"rmq-audit {one.pair.name}")
        suites.append(suite)
    of_all = [one for one in result.findings if one.invariant.startswith("RT-")]
    kinds = [
        ("failure" if one.severity.name in ("ERROR", "CRITICAL") else "system-out", f"{one.invariant} {one.detail}")
        for one in of_all
    ]
    if result.routes:
        suites.append(_suite("routes", kinds, run))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(name: str, kinds: Sequence[tuple[str, str]], run: Run) -> ElementTree.Element:
    """Return a suite with one test case for each (kind, text), or one that passed."""
    counts = {kind: sum(one == kind for one, _ in kinds) for kind in ("failure", "error")}
    suite = ElementTree.Element(
        "testsuite",
        name=f"rmq-audit {name}",
        tests=str(max(1, len(kinds))),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        time="0.000",
        timestamp=run.started_at,
    )
    for kind, text in kinds or [("", "agree")]:
        clean = "".join(char if char >= " " else "?" for char in text)
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=clean[:200])
        if kind in ("failure", "error"):
            ElementTree.SubElement(case, kind, message=clean).text = clean
        elif kind:
            ElementTree.SubElement(case, kind).text = clean
    return suite


def to_prometheus(result: ClusterResult, run: Run, finished_at: float) -> str:
    """Return the metrics of every pair under its name, and those of the cluster."""
    families: dict[str, list[str]] = {}
    for one in result.pairs:
        if one.result is None:
            continue
        family: list[str] = []
        for line in pair_metrics(_report_of(one, run), finished_at).splitlines():
            if line.startswith("# HELP"):
                family = families.setdefault(line.split()[2], [line])
                continue
            if line.startswith("#"):
                if line not in family:
                    family.append(line)
                continue
            family.append(re.sub(r'\{broker="(?:[^"\\]|\\.)*"', f'{{broker="{_label(one.pair.name)}"', line, count=1))
    name = _label(result.config.cluster or "-")
    own = [
        ("rmq_audit_cluster_exit_status", "Exit status of the last audit of the cluster.", result.exit_status),
        ("rmq_audit_cluster_complete", "1 when everything of the cluster was read.", int(result.complete)),
        ("rmq_audit_cluster_finished_timestamp_seconds", "When the last audit of the cluster ended.", finished_at),
        (
            "rmq_audit_cluster_pairs_refused",
            "Pairs that could not be audited at all.",
            sum(one.result is None for one in result.pairs),
        ),
    ]
    for metric, text, value in own:
        families[metric] = [
            f"# HELP {metric} {text}",
            f"# TYPE {metric} gauge",
            f'{metric}{{cluster="{name}"}} {value!r}',
        ]
    metric = "rmq_audit_cluster_findings"
    counts: dict[tuple[str, str, str], int] = {}
    for found in result.findings:
        key = found.invariant, found.severity.name, found.state
        counts[key] = counts.get(key, 0) + 1
    families[metric] = [f"# HELP {metric} Findings of the cluster, each once.", f"# TYPE {metric} gauge"] + [
        f'{metric}{{cluster="{name}",invariant="{invariant}",severity="{severity}",state="{state}"}} {count}'
        for (invariant, severity, state), count in sorted(counts.items())
    ]
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def write_cluster(result: ClusterResult, run: Run, outputs: Mapping[str, str], finished_at: float) -> None:
    """Write the files that are asked for, by option; ``finished_at`` are seconds of the epoch."""
    for option, path in outputs.items():
        if option == "--json":
            write(path, json.dumps(to_json(result, run), indent=2) + "\n")
        elif option == "--junit":
            write(path, to_junit(result, run))
        elif option == "--prometheus":
            write(path, to_prometheus(result, run, finished_at))
        elif option == "--html":
            for page, text in pages(result, run, path).items():
                write(page, text)


def pages(result: ClusterResult, run: Run, path: str) -> dict[str, str]:
    """Return the pages for a browser by path: the overview at ``path``, and beside it one for each pair."""
    stem = path.removesuffix(".html")
    made: dict[str, str] = {}
    links: dict[str, str] = {}
    for one in result.pairs:
        if one.result is None:
            continue
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", one.pair.name)
        target = f"{stem}.{name}.html"
        links[one.pair.name] = os.path.basename(target)
        made[target] = pair_page(_report_of(one, run), report.chunk_cells(one.result))
    made[path] = "\n".join(_overview(result, run, links)) + "\n"
    return made


def _overview(result: ClusterResult, run: Run, links: Mapping[str, str]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>rmq-audit cluster: {escape(result.verdict)}</title><style>{_STYLE}</style></head><body>"
    cluster = escape(result.config.cluster or "")
    yield f'<h1>rmq-audit cluster {cluster} <span class="s{result.exit_status}">{escape(result.verdict)}</span></h1>'
    changed = since(result.findings, run)
    yield f"<p>Exit status {result.exit_status}. Begun {escape(run.started_at)}, took {run.seconds:.1f} s."
    yield f"{'Since ' + escape(changed) + '.' if changed else ''}</p>"
    yield "<h2>Pairs</h2><table><tr><th>broker</th><th>verdict</th><th></th></tr>"
    for one in result.pairs:
        name = escape(one.pair.name)
        if one.pair.name in links:
            name = f'<a href="{escape(links[one.pair.name])}">{name}</a>'
        yield (
            f'<tr><td>{name}</td><td class="s{one.exit_status}">{escape(one.verdict)}</td>'
            f"<td>{escape(_pair_text(one))}</td></tr>"
        )
    yield "</table><h2>Findings</h2><table><tr><th>broker</th><th>finding</th><th>blame</th><th></th></tr>"
    causes = [one for one in result.findings if one.derived_from is None]
    for found in causes[:MAX_JSON_FINDINGS]:
        yield (
            f"<tr><td>{escape(found.broker or '')}</td><td>{found.severity.name} {escape(found.invariant)} on "
            f"{escape(found.replica)}</td><td>{escape(found.blame or '')}</td><td>{escape(found.detail)}</td></tr>"
        )
    if not causes:
        yield "<tr><td>None.</td></tr>"
    yield "</table></body></html>"
