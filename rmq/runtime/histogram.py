"""Histograms of durations and sizes: plain numbers that a scrape of the metrics reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """
    Counts of values by class; ``bounds`` are the classes' upper ends (included), in rising order.

    Readable: ``counts`` (one more than bounds, for the rest; not cumulative), ``total`` (how many values) and ``sum``.
    The unit is that of the observed values.
    """

    __slots__ = ("bounds", "counts", "sum", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0
        self.sum = 0.0

    def observe(self, value: float, n: int = 1) -> None:
        """Count ``value`` ``n`` times; a value below 0 (a clock that was set back) counts as 0."""
        if value < 0:
            value = 0.0
        self.counts[bisect_left(self.bounds, value)] += n
        self.total += n
        self.sum += value * n
