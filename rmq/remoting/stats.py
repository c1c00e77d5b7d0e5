"""
Request statistics: counts, durations and refusals by request code, as plain numbers.

Java: BrokerStatsManager counts some of it for brokers; Apache's NameServer counts nothing.
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
    0.2,
    0.5,
    1.0,
    2.0,
    3.0,
    4.0,
    5.0,
    10.0,
)

#: request codes that are counted separately; further ones are counted as OTHER_CODES
MAX_CODES = 512
#: pairs of request and response code that are counted separately; further ones as (OTHER_CODES, response code)
MAX_REFUSALS = 4096
OTHER_CODES = -1


#: request code, and of the answers since the last call: number, seconds altogether, number in each class
Source = Callable[[], tuple[int, int, float, Sequence[int]]]


class RequestStats:
    """
    The requests of one responder table since the start.

    Readable: ``counts`` (requests by code), ``sums`` (seconds that their answers took, by code), ``buckets`` (by code,
    how many answers were in each class of BUCKETS_S, not cumulative), ``refusals`` (by request code and
    response code) and ``bugs`` (by request code: refusals whose reason was a bug of ours). Counters never shrink;
    MAX_CODES limits their number.
    """

    __slots__ = ("_buckets", "_counts", "_sources", "_sums", "bugs", "refusals")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sums: dict[int, float] = {}
        self._buckets: dict[int, list[int]] = {}
        self._sources: list[Source] = []
        self.refusals: dict[tuple[int, int], int] = {}
        #: only codes that have a responder, so it needs no limit
        self.bugs: dict[int, int] = {}

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
        """Add ``source``: each read of the statistics takes what it counted meanwhile and resets it to 0."""
        self._sources.append(source)

    def observe(self, code: int, seconds: float, n: int = 1) -> None:
        """Count ``n`` answers to requests ``code`` that took ``seconds`` together; less than 0 s is taken for 0."""
        # the clock was set back
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
        """Count a request ``code`` that was answered with ``response_code``, which is not success."""
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
        """Return the code under which to count ``code``, with its counters created."""
        if len(self._counts) >= MAX_CODES:
            code = OTHER_CODES
        if code not in self._counts:
            self._counts[code] = 0
            self._sums[code] = 0.0
            self._buckets[code] = [0] * (len(BUCKETS_S) + 1)
        return code
