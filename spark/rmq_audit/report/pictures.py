"""What the page of a result draws, in bounded numbers: chunk map, timeline, lag, queues with their consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from rmq_audit.driver.audit import Result
from rmq_audit.driver.consumers import Committed
from rmq_audit.driver.log import Log
from rmq_audit.driver.queues import Bounds, Queue
from rmq_audit.worker.tally import Tally
from rmq_audit.worker.work import SLAVE

EQUAL, MISSING, EXTRA, UNREAD, DIFFERENT = range(5)

#: windows of a timeline; they widen until all of the log's time fits
MAX_WINDOWS = 120

#: topics and queues that are drawn, groups of consumers that are drawn in one queue; the rest are counted
MAX_TOPICS, MAX_QUEUES, MAX_GROUPS = 12, 60, 8

#: store times so far off the others that the timeline would be one bar are left out: this many times its width
_FAR = 10


@attrs.frozen
class Cell:
    """A part of the log in the chunk map: [``begin``, ``end``) and one of the states."""

    begin: int
    end: int
    state: int


@attrs.frozen(kw_only=True)
class Strip:
    """
    Counts of one topic by window: records on each side, acknowledged sends that are there, and those that are not.
    """

    topic: str
    master: Sequence[int]
    slave: Sequence[int] | None
    acked: Sequence[int] | None
    lost: Sequence[int] | None


@attrs.frozen(kw_only=True)
class Timeline:
    """
    When records were stored: windows of ``span_ms`` from ``begin_ms`` on, the whole first, then its greatest topics.

    ``outside`` counts records whose store time lies far off all others; what follows a truncation's end in the last
    part that was read is counted with the log.
    """

    begin_ms: int
    span_ms: int
    strips: Sequence[Strip]
    topics_left_out: int
    outside: int


@attrs.frozen(kw_only=True)
class Lag:
    """How far the slave's end is behind the master's (negative: ahead), in bytes and between the last store times."""

    size_bytes: int
    seconds: float | None


@attrs.frozen(kw_only=True)
class QueueBar:
    """One queue: what each side holds of it, and where groups stand in it, the furthest behind first."""

    topic: str
    queue_id: int
    sides: Mapping[str, Bounds]
    consumers: Sequence[Committed]
    groups: int


@attrs.frozen(kw_only=True)
class Pictures:
    """All that a page draws of one result; ``queues_left_out`` are those beyond the ones that are drawn."""

    cells: Sequence[Cell] = ()
    timeline: Timeline | None = None
    lag: Lag | None = None
    queues: Sequence[QueueBar] = ()
    queues_left_out: int = 0


def pictures_of(result: Result) -> Pictures:
    """Return what there is to draw of a result."""
    bars = _queue_bars(result)
    return Pictures(
        cells=chunk_cells(result),
        timeline=timeline_of(result),
        lag=lag_of(result),
        queues=bars[:MAX_QUEUES],
        queues_left_out=max(0, len(bars) - MAX_QUEUES),
    )


def chunk_cells(result: Result) -> list[Cell]:
    """Return the chunks of the common range for the page's map."""
    comparison, slave = result.comparison, result.slave
    if comparison is None or slave is None:
        return []
    cells = []
    for chunk in sorted(result.master.chunks.keys() | slave.chunks.keys()):
        end = min(chunk + result.chunk_bytes, comparison.end)
        if chunk < comparison.begin or chunk >= comparison.end:
            continue
        if result.master.unknown(chunk, end) or slave.unknown(chunk, end):
            state = UNREAD
        elif chunk in comparison.equal or (chunk in comparison.drilled and not comparison.drilled[chunk].differences):
            state = EQUAL
        elif chunk not in slave.chunks:
            state = MISSING
        else:
            state = DIFFERENT if chunk in result.master.chunks else EXTRA
        cells.append(Cell(chunk, end, state))
    return cells


def lag_of(result: Result) -> Lag | None:
    """Return how far the slave is behind; None for a store alone, and where an end is not known."""
    master, slave = result.master, result.slave
    if slave is None or any(one.end > log.end for log in (master, slave) for one in log.unread):
        return None
    size, ours, theirs = master.end - slave.end, _last_stored_ms(master), _last_stored_ms(slave)
    seconds = 0.0 if size == 0 else None
    if size and ours is not None and theirs is not None:
        seconds = (ours - theirs) / 1000
    return Lag(size_bytes=size, seconds=seconds)


def _last_stored_ms(log: Log) -> int | None:
    ends = [
        (one.last_phy, one.last_timestamp)
        for scan in log.scans
        for one in scan.stretches
        if one.records and one.last_phy < log.end
    ]
    return max(ends)[1] if ends else None


def timeline_of(result: Result) -> Timeline | None:
    """Return the counts of both logs and of the acknowledged sends over store time; None when there is nothing."""
    rows: dict[str, list[Tally]] = {"master": _tally(result.master)}
    if result.slave is not None:
        rows[SLAVE] = _tally(result.slave)
    if result.sends is not None:
        rows |= {"acked": result.sends.found, "lost": result.sends.lost}
    every = [one for ones in rows.values() for one in ones]
    if not every:
        return None
    fine = max(one.span_ms for one in every)
    low, high = _range([(one.begin_ms // fine, one.records) for one in every])
    wide = -(-(high - low + 1) // MAX_WINDOWS)
    span = fine * wide
    first = low // wide
    number = high // wide - first + 1
    counts: dict[str, dict[str, list[int]]] = {kind: {} for kind in rows}
    outside = 0
    for kind, ones in rows.items():
        for one in ones:
            if not low <= one.begin_ms // fine <= high:
                outside += one.records * (kind == "master")
                continue
            for topic in ("", one.topic):
                counts[kind].setdefault(topic, [0] * number)[one.begin_ms // span - first] += one.records
    topics = {one.topic for one in every}
    size = {topic: sum(sum(held.get(topic, ())) for held in counts.values()) for topic in topics}
    lost = counts.get("lost", {})
    # those with losses come first, however small they are
    order = sorted(topics, key=lambda topic: (-sum(lost.get(topic, ())), -size[topic], topic))
    nothing = [0] * number
    strips = [
        Strip(
            topic=topic,
            master=counts["master"].get(topic, nothing),
            slave=counts[SLAVE].get(topic, nothing) if SLAVE in counts else None,
            acked=counts["acked"].get(topic, nothing) if "acked" in counts else None,
            lost=counts["lost"].get(topic, nothing) if "lost" in counts else None,
        )
        for topic in ["", *order[:MAX_TOPICS]]
    ]
    return Timeline(
        begin_ms=first * span,
        span_ms=span,
        strips=strips[:1] if len(topics) == 1 else strips,
        topics_left_out=max(0, len(topics) - MAX_TOPICS),
        outside=outside,
    )


def _tally(log: Log) -> list[Tally]:
    return [one for scan in log.scans if scan.first is not None and scan.first < log.end for one in scan.tally]


def _range(windows: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the first and last window to draw: all, unless a few records lie so far off that the rest would vanish."""
    ordered = sorted(windows)
    low, high = ordered[0][0], ordered[-1][0]
    few = sum(count for _, count in ordered) // 200
    core_low, core_high = _behind(ordered, few), _behind(ordered[::-1], few)
    core = max(core_high - core_low + 1, MAX_WINDOWS)
    return (low, high) if high - low + 1 <= _FAR * core else (core_low, core_high)


def _behind(ordered: Iterable[tuple[int, int]], few: int) -> int:
    """Return the window in which more than ``few`` records have come."""
    seen = 0
    for window, count in ordered:
        seen += count
        if seen > few:
            return window
    raise ValueError("no more than these few")


def _queue_bars(result: Result) -> list[QueueBar]:
    """Return all queues, those worth a look first: sides that differ, then consumers that are far behind."""
    groups: dict[Queue, list[Committed]] = {}
    for one in next(iter(result.consumers.values()), []):
        groups.setdefault((one.topic, one.queue_id), []).append(one)
    bars = []
    for topic, queue_id in sorted({queue for held in result.queues.values() for queue in held}):
        consumers = sorted(groups.get((topic, queue_id), ()), key=lambda one: (one.offset, one.group))
        sides = {side: held[topic, queue_id] for side, held in result.queues.items() if (topic, queue_id) in held}
        bars.append(
            QueueBar(
                topic=topic,
                queue_id=queue_id,
                sides=sides,
                consumers=consumers[:MAX_GROUPS],
                groups=len(consumers),
            )
        )
    number = len(result.queues)
    return sorted(bars, key=lambda bar: (len(bar.sides) == number and len(set(bar.sides.values())) < 2, -_backlog(bar)))


def _backlog(bar: QueueBar) -> int:
    end = max(one.end for one in bar.sides.values())
    return max((abs(end - one.offset) for one in bar.consumers), default=0)
