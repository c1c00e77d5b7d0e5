"""Pictures as inline SVG and HTML tables; every number stands as text too, in a tooltip or beside the bar."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from html import escape

from rmq_audit.driver.consumers import Committed
from rmq_audit.driver.queues import Bounds
from rmq_audit.report.pictures import Cell, Lag, QueueBar, Strip, Timeline

#: cells of a chunk map; beyond that several chunks share one, which shows the worst of them
MAX_CELLS = 960
_COLUMNS, _CELL = 96, 9

STATES = ("equal", "slave lacks it", "master lacks it", "not read", "different")
_COLOURS = ("#3a9d5d", "#d9b13b", "#7a6fd0", "#8a8a8a", "#d13f3f")

#: pairs whose lag is drawn
MAX_LAGS = 60

#: groups of consumers that stand beside a queue's bar as text
_GROUPS_AS_TEXT = 3

#: longest name of a topic or group that is printed in full
_MAX_NAME = 80

STYLE = """
svg{display:block;max-width:100%}svg text{fill:currentColor;font:11px system-ui,sans-serif}
.cm{fill:#4f8ed6}.cs{fill:#3a9d5d}.cd{fill:#d9901b}.cl{fill:#d13f3f}.cb{fill:#8883}
.ca{fill:none;stroke:currentColor;stroke-width:1.2}.cg{stroke:currentColor;stroke-width:2}
.strip{margin:.7rem 0}.strip svg,.wide{width:100%}.ends{display:flex;justify-content:space-between;gap:1rem}
.key{white-space:nowrap;margin-right:1rem}.key i{display:inline-block;width:.7rem;height:.7rem;margin-right:.3rem}
.km{background:#4f8ed6}.ks{background:#3a9d5d}.kd{background:#d9901b}.kl{background:#d13f3f}
.ka{border-top:2px solid;height:.3rem!important}.kg{background:currentColor;width:.2rem!important}
.bars{width:100%}.bars td{vertical-align:middle}.bars td.pic{min-width:12rem;width:38%}.name{overflow-wrap:anywhere}
"""


def chunk_map(cells: Sequence[Cell]) -> Iterator[str]:
    """A square for each chunk, or for several."""
    if not cells:
        return
    shown = _merged(cells)
    height = -(-len(shown) // _COLUMNS) * _CELL
    width = min(len(shown), _COLUMNS) * _CELL
    yield f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="chunk map">'
    for index, cell in enumerate(shown):
        x, y = index % _COLUMNS * _CELL, index // _COLUMNS * _CELL
        yield (
            f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{_COLOURS[cell.state]}">'
            f"<title>{number(cell.begin)} to {number(cell.end)}: {STATES[cell.state]}</title></rect>"
        )
    yield "</svg><p>"
    for state in sorted({cell.state for cell in shown}):
        yield f'<span class="key"><i style="background:{_COLOURS[state]}"></i>{STATES[state]}</span>'
    each = (
        ""
        if len(shown) == len(cells)
        else f" A square is up to {-(-len(cells) // len(shown))} chunks, the worst shows."
    )
    yield f"<br><span class=dim>From the begin of the common range, line by line.{each}</span></p>"


def _merged(cells: Sequence[Cell]) -> list[Cell]:
    step = -(-len(cells) // MAX_CELLS)
    groups = [cells[at : at + step] for at in range(0, len(cells), step)]
    return [Cell(group[0].begin, group[-1].end, max(one.state for one in group)) for group in groups]


def timeline(drawn: Timeline) -> Iterator[str]:
    """A strip for all topics together and one for each of the greatest, windows of store time from left to right."""
    whole = drawn.strips[0]
    yield f"<p>Records by store time (UTC), {_span(drawn.span_ms)} a bar. "
    if whole.slave is None:
        yield _key("stored", "km")
    else:
        yield _key("stored on the master (up)", "km")
        yield _key("stored on the slave (down)", "ks")
        yield _key("on the slave, not as many as on the master", "kd")
    if whole.acked is not None:
        yield _key("acknowledged", "ka")
        yield _key("acknowledged and lost", "kl")
    yield "</p>"
    if whole.acked is None:
        yield '<p class="dim">No table of acknowledged sends was given (--acked): only what is stored is shown.</p>'
    for strip in drawn.strips:
        yield from _strip(strip, drawn)
    if drawn.topics_left_out:
        yield f"<p class=dim>… and {number(drawn.topics_left_out)} more topics, smaller ones.</p>"
    if drawn.outside:
        text = f"{number(drawn.outside)} records have store times far off all others and are not drawn."
        yield f"<p class=dim>{text}</p>"


_WIDTH, _HALF = 960, 44


def _strip(strip: Strip, drawn: Timeline) -> Iterator[str]:
    tops = [one + two for one, two in zip(strip.master, strip.lost or [0] * len(strip.master), strict=True)]
    most = max([*tops, *(strip.slave or ()), *(_acknowledged(strip) or ()), 1])
    step = min(_WIDTH / len(strip.master), _WIDTH / 4)
    height = _HALF * (1 if strip.slave is None else 2) + 1
    name = f"topic {_short(strip.topic)}" if strip.topic else "all topics"
    sums = f"{number(sum(strip.master))} stored"
    if strip.slave is not None:
        sums = f"{number(sum(strip.master))} on the master, {number(sum(strip.slave))} on the slave"
    if strip.acked is not None and strip.lost is not None:
        sums += f", {number(sum(strip.acked) + sum(strip.lost))} acknowledged"
        sums += f", <b>{number(sum(strip.lost))} of these lost</b>" if any(strip.lost) else ", none of these lost"
    yield f'<div class="strip"><div class="ends"><span class="name">{escape(name)}</span><span>{sums}</span></div>'
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" height="{height}" role="img"'
    yield f' aria-label="timeline of {escape(name)}">'
    for index, count in enumerate(strip.master):
        x, lost = index * step, strip.lost[index] if strip.lost is not None else 0
        theirs = strip.slave[index] if strip.slave is not None else 0
        if not count and not lost and not theirs and not (strip.acked is not None and strip.acked[index]):
            continue
        begin = drawn.begin_ms + index * drawn.span_ms
        text = (
            f"from {_utc(begin)}: {number(count)} on the master"
            if strip.slave is not None
            else f"from {_utc(begin)}: {number(count)} stored"
        )
        parts = [_bar(x, _HALF - _tall(count, most), step, _tall(count, most), "cm")]
        if lost:
            both = _tall(count + lost, most)
            parts.append(_bar(x, _HALF - both, step, max(both - _tall(count, most), 2), "cl"))
        if strip.slave is not None:
            parts.append(_bar(x, _HALF + 1, step, _tall(theirs, most), "cs" if theirs == count else "cd"))
            text += f", {number(theirs)} on the slave"
        if strip.acked is not None:
            text += f", {number(strip.acked[index] + lost)} acknowledged, {number(lost)} of these lost"
        yield f"<g><title>{text}</title>{''.join(parts)}</g>"
    acknowledged = _acknowledged(strip)
    if acknowledged is not None:
        points = []
        for index, count in enumerate(acknowledged):
            y = _HALF - _tall(count, most)
            points += [f"{index * step:.1f},{y:.1f}", f"{(index + 1) * step:.1f},{y:.1f}"]
        yield f'<polyline class="ca" vector-effect="non-scaling-stroke" points="{" ".join(points)}"/>'
    yield f'<rect class="cb" x="0" y="{_HALF}" width="{_WIDTH}" height="1"/></svg>'
    end = drawn.begin_ms + len(strip.master) * drawn.span_ms
    yield f'<div class="ends dim"><span>{_utc(drawn.begin_ms)}</span><span>highest bar {number(most)}</span>'
    yield f"<span>{_utc(end)}</span></div></div>"


def _acknowledged(strip: Strip) -> list[int] | None:
    if strip.acked is None or strip.lost is None:
        return None
    return [found + lost for found, lost in zip(strip.acked, strip.lost, strict=True)]


def _tall(count: int, most: int) -> float:
    """Return a bar's height; what is not nothing is seen."""
    return max(count * _HALF / most, 1.5) if count else 0.0


def _bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.7, 0.5):.1f}" height="{height:.1f}"/>'


def _span(span_ms: int) -> str:
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if span_ms >= size:
            many = span_ms / size
            return f"{many:.4g} {unit}{'s' * (many != 1)}"
    return f"{span_ms} ms"


def _utc(at_ms: int) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def lag_text(lag: Lag) -> str:
    """Return how far a slave is behind, in words."""
    if lag.size_bytes == 0:
        return "no lag"
    seconds = "" if lag.seconds is None else f", {abs(lag.seconds):.1f} s by store time"
    return f"{number(abs(lag.size_bytes))} bytes {'behind' if lag.size_bytes > 0 else 'AHEAD'}{seconds}"


def ends(master: Bounds, slave: Bounds, lag: Lag | None) -> Iterator[str]:
    """A bar for each side's log, from the lowest begin to the furthest end, and what one has beyond the other."""
    low, high = min(master.begin, slave.begin), max(master.end, slave.end)
    yield '<table class="bars">'
    for name, one, other in (("master", master, slave), ("slave", slave, master)):
        shared = min(one.end, max(other.end, one.begin))
        parts = [_on_scale(one.begin, shared, low, high, "cm" if name == "master" else "cs", 3)]
        if one.end > shared:
            parts.append(_on_scale(shared, one.end, low, high, "cd", 3))
        yield f'<tr><td>{name}</td><td class="pic">{_scale("".join(parts), 16)}</td>'
        yield f"<td>{number(one.begin)} to {number(one.end)}</td></tr>"
    yield "</table>"
    yield (
        f"<p>The slave's end: {lag_text(lag)}.</p>" if lag is not None else "<p>An end was not read: lag not known.</p>"
    )


def lags(pairs: Sequence[tuple[str, Lag | None]]) -> Iterator[str]:
    """A bar for the lag of each pair, all on one scale, the greatest first; those that are not known before all."""
    shown = sorted(pairs, key=lambda pair: float("-inf") if pair[1] is None else -abs(pair[1].size_bytes))[:MAX_LAGS]
    most = max((abs(lag.size_bytes) for _, lag in pairs if lag is not None), default=0) or 1
    yield '<table class="bars">'
    for name, lag in shown:
        size = 0 if lag is None else abs(lag.size_bytes)
        kind = "cl" if lag is not None and lag.size_bytes < 0 else "cd"
        bar = _scale(_on_scale(0, size, 0, most, kind, 3) if size else "", 16)
        text = "not known" if lag is None else lag_text(lag)
        yield f'<tr><td class="name">{escape(_short(name))}</td><td class="pic">{bar}</td><td>{text}</td></tr>'
    yield "</table>"
    if len(pairs) > len(shown):
        yield f"<p class=dim>… and {number(len(pairs) - len(shown))} more pairs, with less lag.</p>"


def queues(bars: Sequence[QueueBar], left_out: int) -> Iterator[str]:
    """A row for each queue: what the sides hold, and where consumers stand."""
    if not bars:
        yield "<p>No queues.</p>"
        return
    alone = all(len(bar.sides) == 1 and "store" in bar.sides for bar in bars)
    yield "<p>Offsets that each queue holds, each queue on its own scale. "
    if not alone:
        yield _key("master (above)", "km")
        yield _key("slave (below)", "ks")
        yield _key("held by one side only", "kd")
    yield _key("next offset of a consumer group", "kg") + "</p>"
    heads = "".join(f"<th>{name}</th>" for name in ("topic", "queue", "", "offsets", "consumers"))
    yield f'<div class="scroll"><table class="bars"><tr>{heads}</tr>'
    for bar in bars:
        yield from _queue(bar)
    yield "</table></div>"
    if left_out:
        yield f"<p class=dim>… and {number(left_out)} more queues; those shown differ most or are furthest behind.</p>"


def _queue(bar: QueueBar) -> Iterator[str]:
    places = [at for one in bar.sides.values() for at in (one.begin, one.end)] + [one.offset for one in bar.consumers]
    low, high = min(places), max(places)
    same = len(set(bar.sides.values())) == 1
    begin, end = max(one.begin for one in bar.sides.values()), min(one.end for one in bar.sides.values())
    parts = []
    for at, (side, one) in enumerate(bar.sides.items()):
        kind = "cs" if side == "slave" else "cm"
        middle = max(one.begin, min(begin, one.end)), max(one.begin, min(end, one.end))
        for first, last, colour in ((one.begin, middle[0], "cd"), (*middle, kind), (middle[1], one.end, "cd")):
            if first < last:
                parts.append(_on_scale(first, last, low, high, colour, 2 + 9 * at, 8))
    for group in bar.consumers:
        x = _at(group.offset, low, high)
        title = f"<title>{escape(_short(group.group))}: {number(group.offset)}</title>"
        parts.append(f'<line class="cg" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="21">{title}</line>')
    held = [f"{number(one.begin)} to {number(one.end)}" for one in bar.sides.values()]
    text = (
        held[0]
        if same and len(bar.sides) != 1
        else "<br>".join(
            f"{'' if side == 'store' else f'{side} '}{one}" for side, one in zip(bar.sides, held, strict=True)
        )
    )
    yield f'<tr><td class="name">{escape(_short(bar.topic))}</td><td>{bar.queue_id}</td>'
    yield f'<td class="pic">{_scale("".join(parts), 21)}</td><td>{text}</td>'
    furthest = max(one.end for one in bar.sides.values())
    names = [_consumer(group, furthest) for group in bar.consumers[:_GROUPS_AS_TEXT]]
    more = bar.groups - len(names)
    yield f'<td class="name">{"<br>".join(names)}{f"<br>… and {number(more)} more groups" if more else ""}</td></tr>'


def _consumer(group: Committed, end: int) -> str:
    behind = end - group.offset
    state = (
        "at the end"
        if not behind
        else f"{number(behind)} behind"
        if behind > 0
        else f"{number(-behind)} beyond the end"
    )
    return f"{escape(_short(group.group))} at {number(group.offset)}, {state}"


_SCALE = 400


def _scale(inside: str, height: int) -> str:
    back = f'<rect class="cb" x="0" y="0" width="{_SCALE}" height="{height}"/>'
    shape = f'viewBox="0 0 {_SCALE} {height}" preserveAspectRatio="none" height="{height}"'
    return f'<svg class="wide" {shape} role="img">{back}{inside}</svg>'


def _at(place: int, low: int, high: int) -> float:
    return 1 + (place - low) * (_SCALE - 2) / max(high - low, 1)


def _on_scale(begin: int, end: int, low: int, high: int, kind: str, y: int, height: int = 10) -> str:
    left = _at(begin, low, high)
    width = max(_at(end, low, high) - left, 1.5)
    left = min(left, _SCALE - width)
    title = f"<title>{number(begin)} to {number(end)}</title>"
    return f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{height}">{title}</rect>'


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…"


def _key(text: str, kind: str) -> str:
    """One entry of a legend: a coloured square (or a line) and its text, which stay together."""
    return f'<span class="key"><i class="{kind}"></i>{text}</span>'


def number(value: int) -> str:
    """Return a number as people read it, with narrow spaces between thousands."""
    return f"{value:,}".replace(",", "\u202f")
