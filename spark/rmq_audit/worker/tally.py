"""How many records of each topic were stored when: the timeline of the report, counted while the log is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import numpy as np

from rmq_audit.worker.kernel import Columns, Ints

#: the finest window of store time that is counted
SPAN_MS = 60 * 1000

#: counts that one split reports at most; windows grow until they fit, as long as that helps
MAX_COUNTS = 4096

#: a window grows to so many of its kind
GROWTH = 6

#: how often the windows of a split may grow: to half a year
MAX_GROWTH = 7

#: cells of queue times window that are counted in an array rather than by sorting
_DENSE_CELLS = 1 << 18


@attrs.frozen(kw_only=True)
class Tally:
    """How many records of a topic were stored in [``begin_ms``, ``begin_ms`` + ``span_ms``) by their store times."""

    topic: str
    begin_ms: int
    span_ms: int
    records: int


def count_records(counts: Counter[tuple[str, int]], data: bytes, columns: Columns, keys: Ints) -> None:
    """Count records by topic and window of SPAN_MS; ``keys`` are the numbers of their queues, small ones from 0 on."""
    if len(columns) == 0:
        return
    queues = int(keys.max()) + 1
    head = np.zeros(queues, dtype=np.int64)
    head[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    window = columns.store_timestamp // SPAN_MS
    low, high = int(window.min()), int(window.max())
    if (high - low + 1) * queues <= _DENSE_CELLS:
        windows = np.arange(low, high + 1)
        counted = np.bincount(keys * (high - low + 1) + (window - low), minlength=queues * (high - low + 1))
        cells = np.flatnonzero(counted)
        numbers = counted[cells]
    else:
        windows, column = np.unique(window, return_inverse=True)
        cells, numbers = np.unique(keys * len(windows) + column, return_counts=True)
    topics: dict[int, str] = {}
    for cell, number in zip(cells.tolist(), numbers.tolist(), strict=True):
        queue, at = divmod(cell, len(windows))
        if queue not in topics:
            topics[queue] = columns.topic(data, int(head[queue]))
        counts[topics[queue], int(windows[at])] += number


def tallies(counts: Mapping[tuple[str, int], int]) -> list[Tally]:
    """Return counts by (topic, number of a window of SPAN_MS) in windows so wide that there are not too many."""
    span, wide = SPAN_MS, dict(counts)
    for _ in range(MAX_GROWTH):
        if len(wide) <= MAX_COUNTS:
            break
        span *= GROWTH
        wider: dict[tuple[str, int], int] = {}
        for (topic, window), count in wide.items():
            wider[topic, window // GROWTH] = wider.get((topic, window // GROWTH), 0) + count
        wide = wider
    return [
        Tally(topic=topic, begin_ms=window * span, span_ms=span, records=count)
        for (topic, window), count in sorted(wide.items())
    ]
