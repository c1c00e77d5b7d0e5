"""The result for a browser: one file without scripts, styles or pictures from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import attrs

from rmq_audit.findings import INVARIANTS

#: cells of a chunk map; beyond that several chunks share one, which shows the worst of them
MAX_CELLS = 960
_COLUMNS, _CELL = 96, 9

#: findings with all their details; the rest are counted
MAX_DETAILED = 200

EQUAL, MISSING, EXTRA, UNREAD, DIFFERENT = range(5)
_STATES = ("equal", "slave lacks it", "master lacks it", "not read", "different")
_COLOURS = ("#3a9d5d", "#d9b13b", "#7a6fd0", "#8a8a8a", "#d13f3f")

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--dim:#777}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.2rem;max-width:76rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}
.v{display:inline-block;padding:.15rem .7rem;border-radius:.4rem;color:#fff}
.v0{background:#2d7d4a}.v1{background:#a8801a}.v2{background:#b62f2f}.v3{background:#666}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
th{font-weight:600}.n{text-align:right}.dim{color:var(--dim)}
details,.f{border:1px solid var(--line);border-left:.35rem solid var(--line);border-radius:.3rem}
details,.f{padding:.4rem .8rem;margin:.5rem 0}
.ERROR,.CRITICAL{border-left-color:#d13f3f}.WARN{border-left-color:#d9b13b}.INFO{border-left-color:#4f8ed6}
pre{overflow-x:auto;margin:.4rem 0;font-size:13px}mark{background:#d13f3f55;color:inherit}
code{font-size:13px;overflow-wrap:anywhere}
.tag{font-size:12px;border:1px solid var(--line);border-radius:.6rem;padding:0 .5rem;margin-left:.4rem}
"""


@attrs.frozen
class Cell:
    """A part of the log in the chunk map: [``begin``, ``end``) and an index into the states."""

    begin: int
    end: int
    state: int


def to_html(report: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """Return the page of a JSON report; ``cells`` are the chunks that were compared, in order."""
    return "\n".join(_page(report, cells)) + "\n"


def _page(report: Mapping[str, Any], cells: Sequence[Cell]) -> Iterator[str]:
    status = report["exit_status"]
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>rmq-audit: {escape(report['verdict'])}</title><style>{_STYLE}</style></head><body>"
    yield f'<h1>rmq-audit {escape(report["command"])} <span class="v v{status}">{escape(report["verdict"])}</span></h1>'
    causes = [one for one in report["findings"] if one["derived_from"] is None]
    yield (
        f"<p>Exit status {status}. {len(causes)} findings, {report['findings_derived']} that follow from them. "
        f"Begun {escape(report['started_at'])}, took {report['seconds']:.1f} s "
        f"(engine {escape(report['engine'])}, kernel {escape(report['kernel'])}, run {escape(report['run_id'])}).</p>"
    )
    yield from _coverage(report)
    if report["slave"] is not None:
        yield from _chunk_map(report, cells)
    yield from _history(report)
    yield "<h2>Findings</h2>"
    if not causes:
        yield "<p>None.</p>"
    for one in causes[:MAX_DETAILED]:
        follow = [other for other in report["findings"] if other["derived_from"] == one["finding_id"]]
        yield from _finding(one, follow, report)
    left_out = len(causes) - min(len(causes), MAX_DETAILED) + report["findings_left_out"]
    if left_out:
        total = report["findings_total"]
        yield f"<p>{left_out} more are not shown; the JSON report holds up to 1000 of all {total}.</p>"
    yield "</body></html>"


def _coverage(report: Mapping[str, Any]) -> Iterator[str]:
    coverage = report["coverage"]
    sides = [side for side in ("master", "slave") if coverage[side] is not None]
    names = sides if len(sides) > 1 else ["store"]
    yield "<h2>What was looked at</h2>"
    if not coverage["complete"]:
        yield "<p><b>Not everything could be read or compared:</b> see AU-COVER below.</p>"
    yield "<table><tr><th></th>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    rows = [("directory", [f"<code>{escape(report[side]['path'])}</code>" for side in sides])]
    rows.append(
        ("log", [f"{_number(report[side]['phy_from'])} to {_number(report[side]['phy_to'])}" for side in sides])
    )
    rows.append(
        ("its end", ["inferred from the bytes" if report[side]["end_inferred"] else "by manifest" for side in sides])
    )
    for text, member in (
        ("bytes read", "bytes_read"),
        ("bytes not read", "bytes_unread"),
        ("records", "records"),
        ("bodies checked by CRC", "crcs_checked"),
        ("bodies vouched for by equal digests", "crcs_carried_over"),
        ("queues", "queues"),
        ("consume queue units checked", "units_checked"),
        ("index entries checked", "index_entries_checked"),
        ("consumer offsets checked", "consumer_offsets_checked"),
        ("acknowledged sends checked", "acked_sends_checked"),
    ):
        rows.append((text, [_number(coverage[side][member]) for side in sides]))
    for text, values in rows:
        yield f"<tr><td class=dim>{text}</td>" + "".join(f"<td>{value}</td>" for value in values) + "</tr>"
    yield "</table>"
    if report["changed_files"]:
        yield f"<p>{len(report['changed_files'])} files were written to meanwhile; moving ends are not judged.</p>"


def _chunk_map(report: Mapping[str, Any], cells: Sequence[Cell]) -> Iterator[str]:
    compared, coverage = report["compared"], report["coverage"]
    yield "<h2>Master against slave</h2>"
    yield (
        f"<p>{_number(coverage['bytes_compared'])} bytes from {_number(compared['phy_from'])} to "
        f"{_number(compared['phy_to'])} in {_number(coverage['chunks_compared'])} chunks: "
        f"{_number(coverage['chunks_equal'])} with equal digests, {_number(coverage['chunks_drilled'])} looked into, "
        f"{_number(coverage['chunks_different'])} different.</p>"
    )
    if not cells:
        return
    shown = _merged(cells)
    height = -(-len(shown) // _COLUMNS) * _CELL
    width = min(len(shown), _COLUMNS) * _CELL
    yield f'<svg width="{width}" height="{height}" role="img" aria-label="chunk map">'
    for index, cell in enumerate(shown):
        x, y = index % _COLUMNS * _CELL, index // _COLUMNS * _CELL
        yield (
            f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{_COLOURS[cell.state]}">'
            f"<title>{_number(cell.begin)} to {_number(cell.end)}: {_STATES[cell.state]}</title></rect>"
        )
    yield "</svg><p>"
    for state in sorted({cell.state for cell in shown}):
        square = f'<svg width="10" height="10"><rect width="10" height="10" fill="{_COLOURS[state]}"/></svg>'
        yield f"{square} {_STATES[state]} &ensp;"
    each = (
        ""
        if len(shown) == len(cells)
        else f" A square stands for up to {-(-len(cells) // len(shown))} chunks and shows the worst."
    )
    yield f"<span class=dim>From the begin of the common range, line by line.{each}</span></p>"


def _merged(cells: Sequence[Cell]) -> list[Cell]:
    step = -(-len(cells) // MAX_CELLS)
    groups = [cells[at : at + step] for at in range(0, len(cells), step)]
    return [Cell(group[0].begin, group[-1].end, max(one.state for one in group)) for group in groups]


def _history(report: Mapping[str, Any]) -> Iterator[str]:
    previous = report["previous"]
    if previous is None:
        return
    states = [one["state"] for one in report["findings"]]
    yield "<h2>Since the run before</h2>"
    yield (
        f"<p>Run {escape(previous['run_id'])} of {escape(previous['started_at'])}: {states.count('new')} new, "
        f"{states.count('persisting')} persisting, {len(report['resolved'])} resolved.</p>"
    )
    if report["resolved"]:
        yield "<ul>"
        for one in report["resolved"][:MAX_DETAILED]:
            yield f"<li class=dim>{escape(one['invariant'])} on {escape(one['replica'])}: {escape(_place(one))}</li>"
        yield "</ul>"


def _finding(one: Mapping[str, Any], follow: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> Iterator[str]:
    state = f"<span class=tag>{escape(one['state'])}</span>" if report["previous"] is not None else ""
    blame = f", blame {escape(one['blame'])}" if one["blame"] else ""
    yield f'<div class="f {escape(one["severity"])}">'
    yield f"<b>{escape(one['severity'])} {escape(one['invariant'])}</b> on {escape(one['replica'])}{blame}{state}"
    yield f"<div class=dim>Rule: {escape(INVARIANTS[one['invariant']][0])}.</div>"
    yield f"<div>{escape(_place(one))}</div><div>{escape(one['detail'])}</div>"
    if one["expected"] is not None or one["actual"] is not None:
        field = f" ({escape(one['field'])})" if one["field"] else ""
        yield f"<table><tr><td class=dim>expected{field}</td><td><code>{escape(str(one['expected']))}</code></td></tr>"
        yield f"<tr><td class=dim>actual</td><td><code>{escape(str(one['actual']))}</code></td></tr></table>"
    yield from _hex(one)
    if one["sample_msg_ids"]:
        names = " ".join(f"<code>{escape(name)}</code>" for name in one["sample_msg_ids"])
        yield f"<div class=dim>Messages: {names}</div>"
    if one["phy_from"] is not None and not one["invariant"].startswith(("CQ-", "CO-", "AU-")):
        path = report["slave" if one["replica"] == "slave" else "master"]["path"]
        query = f'spark.read.format("rocketmq-log").load("{path}").where("phy_offset = {one["phy_from"]}").show()'
        yield f"<div class=dim>Look at it: <code>{escape(query)}</code></div>"
    if follow:
        yield f"<details><summary>{len(follow)} more follow from it</summary><ul>"
        for other in follow[:MAX_DETAILED]:
            text = f"{other['invariant']} on {other['replica']}: {_place(other)}: {other['detail']}"
            yield f"<li>{escape(text)}</li>"
        yield "</ul></details>"
    yield "</div>"


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


def _number(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")
