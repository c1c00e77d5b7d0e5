"""The result for a browser: one file without scripts, styles or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rmq_audit.driver.findings import INVARIANTS
from rmq_audit.driver.queues import Bounds
from rmq_audit.report import charts
from rmq_audit.report.charts import number
from rmq_audit.report.pictures import Pictures

#: findings with all their details; the rest are counted
MAX_DETAILED = 200

#: what follows from one finding, line by line; the rest is counted
MAX_FOLLOWING = 50

STYLE = (
    """
:root{color-scheme:light dark;--line:#8884;--dim:color-mix(in srgb,currentColor 65%,transparent)}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.2rem;max-width:76rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}h3{font-size:1rem;margin:1.1rem 0 .3rem}
.v{display:inline-block;padding:.05rem .6rem;border-radius:.4rem;color:#fff}
.v0{background:#2d7d4a}.v1{background:#8a6914}.v2{background:#b62f2f}.v3{background:#666}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
th{font-weight:600}.dim{color:var(--dim)}
details,.f{border:1px solid var(--line);border-left:.35rem solid var(--line);border-radius:.3rem}
details,.f{padding:.4rem .8rem;margin:.5rem 0}summary{cursor:pointer}
.ERROR,.CRITICAL{border-left-color:#d13f3f}.WARN{border-left-color:#d9b13b}.INFO{border-left-color:#4f8ed6}
pre{overflow-x:auto;margin:.4rem 0;font-size:13px}mark{background:#d13f3f55;color:inherit}
code{font-size:13px;overflow-wrap:anywhere}.scroll{overflow-x:auto}
.tag{font-size:12px;border:1px solid var(--line);border-radius:.6rem;padding:0 .5rem;margin-left:.4rem}
"""
    + charts.STYLE
)


def to_html(report: Mapping[str, Any], pictures: Pictures) -> str:
    """Return the page of a JSON report, with what there is to draw of the same result."""
    return "\n".join(_page(report, pictures)) + "\n"


def head(title: str) -> Iterator[str]:
    """Yield the begin of a page up to its body."""
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"


def _page(report: Mapping[str, Any], pictures: Pictures) -> Iterator[str]:
    status = report["exit_status"]
    yield from head(f"rmq-audit: {report['verdict']}")
    yield f'<h1>rmq-audit {escape(report["command"])} <span class="v v{status}">{escape(report["verdict"])}</span></h1>'
    causes = sum(one["derived_from"] is None for one in report["findings"])
    yield (
        f"<p>Exit status {status}. {causes} findings, {report['findings_derived']} that follow from them. "
        f"Begun {escape(report['started_at'])}, took {report['seconds']:.1f} s "
        f"(engine {escape(report['engine'])}, kernel {escape(report['kernel'])}, run {escape(report['run_id'])}).</p>"
    )
    yield from store_sections(report, pictures, level=2)
    yield from since_the_run_before(report)
    yield from findings_section(report, lambda one: _path_of(one, report))
    yield "</body></html>"


def store_sections(report: Mapping[str, Any], pictures: Pictures, *, level: int) -> Iterator[str]:
    """Yield what was looked at, and the pictures, of one pair or store, under headings of that level."""

    def titled(text: str) -> str:
        return f"<h{level}>{text}</h{level}>"

    yield titled("What was read and compared")
    yield from _coverage(report)
    if report["slave"] is not None:
        yield titled("Master against slave")
        yield from _compared(report)
        yield from charts.chunk_map(pictures.cells)
        master, slave = (Bounds(report[side]["phy_from"], report[side]["phy_to"]) for side in ("master", "slave"))
        yield titled("Ends of the logs and lag")
        yield from charts.ends(master, slave, pictures.lag)
    if pictures.timeline is not None:
        yield titled("Timeline")
        yield from charts.timeline(pictures.timeline)
    yield titled("Queues and consumers")
    yield from charts.queues(pictures.queues, pictures.queues_left_out)


def findings_section(report: Mapping[str, Any], path_of: Callable[[Mapping[str, Any]], str | None]) -> Iterator[str]:
    """Yield the findings by cause; ``path_of`` is the store in which to look at one."""
    following: dict[str, list[Mapping[str, Any]]] = {}
    for one in report["findings"]:
        following.setdefault(one["derived_from"] or "", []).append(one)
    causes = following.pop("", [])
    yield "<h2>Findings</h2>"
    if not causes:
        yield "<p>None.</p>"
    for one in causes[:MAX_DETAILED]:
        follow = following.get(one["finding_id"], [])
        yield from _finding(one, follow, path_of(one), tagged=report["previous"] is not None)
    left_out = len(causes) - min(len(causes), MAX_DETAILED) + report["findings_left_out"]
    if left_out:
        total = report["findings_total"]
        yield f"<p>… and {number(left_out)} more; the JSON report holds up to 1000 of all {number(total)}.</p>"


def _coverage(report: Mapping[str, Any]) -> Iterator[str]:
    coverage = report["coverage"]
    sides = [side for side in ("master", "slave") if coverage[side] is not None]
    names = sides if len(sides) > 1 else ["store"]
    if not coverage["complete"]:
        yield "<p><b>Not everything could be read or compared:</b> see AU-COVER below.</p>"
    yield '<div class="scroll"><table><tr><th></th>' + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    rows = [("directory", [f"<code>{escape(report[side]['path'])}</code>" for side in sides])]
    rows.append(("log", [f"{number(report[side]['phy_from'])} to {number(report[side]['phy_to'])}" for side in sides]))
    rows.append(
        ("its end", ["inferred from the bytes" if report[side]["end_inferred"] else "by manifest" for side in sides])
    )
    for text, member in (
        ("bytes read", "bytes_read"),
        ("bytes not read", "bytes_unread"),
        ("records", "records"),
        ("bodies checked by CRC", "crcs_checked"),
        ("bodies covered by equal digests", "crcs_carried_over"),
        ("queues", "queues"),
        ("consume queue units checked", "units_checked"),
        ("index entries checked", "index_entries_checked"),
        ("consumer offsets checked", "consumer_offsets_checked"),
        ("acknowledged sends checked", "acked_sends_checked"),
        ("files not read that are not RocketMQ's", "foreign_files"),
    ):
        rows.append((text, [number(coverage[side][member]) for side in sides]))
    for text, values in rows:
        yield f"<tr><td class=dim>{text}</td>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>"
    yield "</table></div>"
    for side in sides:
        if coverage[side]["foreign_files"]:
            names = coverage[side]["foreign_names"]
            more = coverage[side]["foreign_files"] - len(names)
            text = ", ".join(names) + (f" and {number(more)} more" if more else "")
            yield f"<p class=dim>Not RocketMQ's, and not read: <code>{escape(text)}</code></p>"
    if report["empty"]:
        yield f"<p><b>Nothing to compare:</b> {escape(report['empty'])}.</p>"
    yield "<details><summary>What no run checks</summary><ul>"
    for one in coverage["not_checked"]:
        yield f"<li><code>{escape(one['file'])}</code> {escape(one['what'])}: {escape(one['why'])}</li>"
    yield "</ul></details>"
    if report["changed_files"]:
        yield f"<p>{len(report['changed_files'])} files were written during the audit; growing ends are not judged.</p>"


def _compared(report: Mapping[str, Any]) -> Iterator[str]:
    compared, coverage = report["compared"], report["coverage"]
    yield (
        f"<p>{number(coverage['bytes_compared'])} bytes from {number(compared['phy_from'])} to "
        f"{number(compared['phy_to'])} in {number(coverage['chunks_compared'])} chunks: "
        f"{number(coverage['chunks_equal'])} with equal digests, "
        f"{number(coverage['chunks_drilled'])} compared byte by byte, "
        f"{number(coverage['chunks_different'])} different.</p>"
    )


def since_the_run_before(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is new, what persists and what is resolved, if there was a run before."""
    previous = report["previous"]
    if previous is None:
        return
    states = [one["state"] for one in report["findings"]]
    yield "<h2>Since the previous run</h2>"
    yield (
        f"<p>Run {escape(previous['run_id'])} of {escape(previous['started_at'])}: {states.count('new')} new, "
        f"{states.count('persisting')} persisting, {len(report['resolved'])} resolved.</p>"
    )
    if report["resolved"]:
        yield "<ul>"
        for one in report["resolved"][:MAX_DETAILED]:
            yield f"<li class=dim>{escape(_who(one))}{escape(one['invariant'])} on {escape(one['replica'])}: "
            yield f"{escape(_place(one))}</li>"
        yield "</ul>"
        if len(report["resolved"]) > MAX_DETAILED:
            yield f"<p>… and {number(len(report['resolved']) - MAX_DETAILED)} more that are resolved.</p>"


def _finding(
    one: Mapping[str, Any], follow: Sequence[Mapping[str, Any]], path: str | None, *, tagged: bool
) -> Iterator[str]:
    state = f"<span class=tag>{escape(one['state'])}</span>" if tagged else ""
    blame = f", blame {escape(one['blame'])}" if one["blame"] else ""
    yield f'<div class="f {escape(one["severity"])}">{escape(_who(one))}'
    yield f"<b>{escape(one['severity'])} {escape(one['invariant'])}</b> on {escape(one['replica'])}{blame}{state}"
    yield f"<div class=dim>Rule: {escape(INVARIANTS[one['invariant']][0])}.</div>"
    place = "" if one["invariant"].startswith("RT-") else f"<div>{escape(_place(one))}</div>"
    yield f"{place}<div>{escape(one['detail'])}</div>"
    if one["differing_fields"]:
        yield from _fields(one)
    elif one["expected"] is not None or one["actual"] is not None:
        field = f" ({escape(one['field'])})" if one["field"] else ""
        yield f"<table><tr><td class=dim>expected{field}</td><td><code>{escape(str(one['expected']))}</code></td></tr>"
        yield f"<tr><td class=dim>actual</td><td><code>{escape(str(one['actual']))}</code></td></tr></table>"
    yield from _hex(one)
    if one["sample_msg_ids"]:
        names = " ".join(f"<code>{escape(name)}</code>" for name in one["sample_msg_ids"])
        yield f"<div class=dim>Messages: {names}</div>"
    if one["phy_from"] is not None and path is not None and not one["invariant"].startswith(("CQ-", "CO-", "AU-")):
        query = f'spark.read.format("rocketmq-log").load("{path}").where("phy_offset = {one["phy_from"]}").show()'
        yield f"<div class=dim>Read it with Spark: <code>{escape(query)}</code></div>"
    if follow:
        yield f"<details><summary>{len(follow)} more follow from it</summary><ul>"
        for other in follow[:MAX_FOLLOWING]:
            text = f"{other['invariant']} on {other['replica']}: {_place(other)}: {other['detail']}"
            yield f"<li>{escape(text)}</li>"
        if len(follow) > MAX_FOLLOWING:
            yield f"<li>… and {number(len(follow) - MAX_FOLLOWING)} more</li>"
        yield "</ul></details>"
    yield "</div>"


def _fields(one: Mapping[str, Any]) -> Iterator[str]:
    """Every field that differs, with both sides' values."""
    first = " of the first record" if one["count"] > 1 else ""
    yield f'<div class="scroll"><table><tr><th>field{first}</th><th>master</th><th>slave</th></tr>'
    for values in one["differing_fields"]:
        yield f"<tr><td>{escape(values['field'])}</td>"
        for side in ("master", "slave"):
            text = values[side]
            yield f"<td>{'<i class=dim>absent</i>' if text is None else f'<code>{escape(text)}</code>'}</td>"
        yield "</tr>"
    yield "</table></div>"


def is_on_slave(one: Mapping[str, Any]) -> bool:
    """Whether the slave's store is the one in which to look at a finding: not for what it lacks."""
    return one["replica"].startswith("slave") and one["invariant"] not in ("RP-LAG", "RP-MISSING")


def _path_of(one: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    path: str = report["slave" if is_on_slave(one) else "master"]["path"]
    return path


def _who(one: Mapping[str, Any]) -> str:
    return f"{one['broker']}: " if one.get("broker") else ""


def _hex(one: Mapping[str, Any]) -> Iterator[str]:
    """Both sides' bytes, sixteen a line, with those that differ marked."""
    sides = [(name, one[f"evidence_{name}"]) for name in ("master", "slave") if one[f"evidence_{name}"]]
    if not sides:
        return
    data = {name: bytes.fromhex(text) for name, text in sides}
    both = list(data.values()) if len(data) == 2 else None
    yield "<pre>"
    base = one["evidence_phy"] or 0
    for name, raw in data.items():
        if both is not None:
            yield f"<span class=dim>{name}</span>"
        for at in range(0, len(raw), 16):
            pieces = []
            for index in range(at, min(at + 16, len(raw))):
                differs = both is not None and any(index >= len(side) or side[index] != raw[index] for side in both)
                pieces.append(f"<mark>{raw[index]:02x}</mark>" if differs else f"{raw[index]:02x}")
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in raw[at : at + 16])
            yield f"{base + at:>16}  {' '.join(pieces)}  {escape(text)}"
    yield "</pre>"


def _place(one: Mapping[str, Any]) -> str:
    parts = []
    if one["topic"] is not None:
        parts.append(f"topic {one['topic']} queue {one['queue_id']}")
        if one["queue_offset_from"] is not None:
            last = one["queue_offset_to"]
            until = f" to {last}" if last not in (None, one["queue_offset_from"]) else ""
            parts.append(f"offset {one['queue_offset_from']}{until}")
    if one["phy_from"] is not None:
        until = "" if one["phy_to"] is None else f" to {one['phy_to']}"
        parts.append(f"physical offset {one['phy_from']}{until}")
    if one["count"] > 1:
        parts.append(f"{one['count']} of them")
    return ", ".join(parts) if parts else "the store as a whole"
