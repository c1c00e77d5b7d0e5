"""
What was asked, how often, how long the answers took and what was refused: plain numbers for whoever reports them.

Java: BrokerStatsManager counts some of it for Brokers; a NameServer of Apache counts nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

#: upper bounds of the classes of durations in seconds, each bound included; one more class holds the rest
BUCKETS_S = (
    0.000_05,
    0.000_1,
    0.000_25,
    0.000_5,
    0.001,
    0.002_5,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)

#: request codes that are counted apart; a peer that makes up more of them has those counted as OTHER_CODES
MAX_CODES = 512
#: pairs of request code and response code that are counted apart; more are counted as (OTHER_CODES, response code)
MAX_REFUSALS = 4096
OTHER_CODES = -1


#: the request code, and of the answers since the last call how many, the seconds they took, and how many in each class
Source = Callable[[], tuple[int, int, float, Sequence[int]]]


class RequestStats:
    """
    The requests of one responder table since the start.

    Readable: ``counts`` (requests by code), ``sums`` (seconds that their answers took, by code), ``buckets`` (by code,
    how many answers took as long as each class of BUCKETS_S says, not cumulative) and ``refusals`` (by request code and
    response code). Nothing of it ever shrinks; MAX_CODES bounds it.
    """

    __slots__ = ("_buckets", "_counts", "_sources", "_sums", "refusals")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sums: dict[int, float] = {}
        self._buckets: dict[int, list[int]] = {}
        self._sources: list[Source] = []
        self.refusals: dict[tuple[int, int], int] = {}

    @property
    def counts(self) -> dict[int, int]:
        self._collect()
        return self._counts

    @property
    def sums(self) -> dict[int, float]:
        self._collect()
        return self._sums

    @property
    def buckets(self) -> dict[int, list[int]]:
        self._collect()
        return self._buckets

    def add_source(self, source: Source) -> None:
        """Have ``source`` asked for what it counted by itself, whenever somebody reads; it begins at 0 again then."""
        self._sources.append(source)

    def observe(self, code: int, seconds: float, n: int = 1) -> None:
        """Count ``n`` answers to requests ``code`` that took ``seconds`` together; less than 0 s is taken for 0."""
        # a clock that was set back
        if seconds < 0.0:
            seconds = 0.0
        try:
            self._counts[code] += n
        except KeyError:
            code = self._new_code(code)
            self._counts[code] += n
        self._sums[code] += seconds
        self._buckets[code][bisect_left(BUCKETS_S, seconds if n == 1 else seconds / n)] += n

    def refused(self, code: int, response_code: int) -> None:
        """Count a request ``code`` that was answered with ``response_code``, another one than success."""
        key = (code, response_code)
        if key not in self.refusals and len(self.refusals) >= MAX_REFUSALS:
            key = (OTHER_CODES, response_code)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def _collect(self) -> None:
        for source in self._sources:
            code, n, seconds, buckets = source()
            if n:
                if code not in self._counts:
                    code = self._new_code(code)
                self._counts[code] += n
                self._sums[code] += seconds
                own = self._buckets[code]
                for index, count in enumerate(buckets):
                    own[index] += count

    def _new_code(self, code: int) -> int:
        """Return what to count ``code`` as, after making room for it."""
        if len(self._counts) >= MAX_CODES:
            code = OTHER_CODES
        if code not in self._counts:
            self._counts[code] = 0
            self._sums[code] = 0.0
            self._buckets[code] = [0] * (len(BUCKETS_S) + 1)
        return code
