"""
What was asked, how often, how long the answers took and what was refused: plain numbers for whoever reports them.

Java: BrokerStatsManager counts some of it for Brokers; a NameServer of Apache counts nothing.
"""

from __future__ import annotations

from bisect import bisect_left

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


class RequestStats:
    """
    The requests of one responder table since the start.

    Readable: ``counts`` (requests by code), ``sums`` (seconds that their answers took, by code), ``buckets`` (by code,
    how many answers took as long as each class of BUCKETS_S says, not cumulative) and ``refusals`` (by request code and
    response code). Nothing of it ever shrinks; MAX_CODES bounds it.
    """

    __slots__ = ("buckets", "counts", "refusals", "sums")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.sums: dict[int, float] = {}
        self.buckets: dict[int, list[int]] = {}
        self.refusals: dict[tuple[int, int], int] = {}

    def observe(self, code: int, seconds: float, n: int = 1) -> None:
        """Count ``n`` answers to requests ``code`` that took ``seconds`` together; less than 0 s is taken for 0."""
        # a clock that was set back
        if seconds < 0.0:
            seconds = 0.0
        try:
            self.counts[code] += n
        except KeyError:
            code = self._new_code(code)
            self.counts[code] += n
        self.sums[code] += seconds
        self.buckets[code][bisect_left(BUCKETS_S, seconds if n == 1 else seconds / n)] += n

    def refused(self, code: int, response_code: int) -> None:
        """Count a request ``code`` that was answered with ``response_code``, another one than success."""
        key = (code, response_code)
        if key not in self.refusals and len(self.refusals) >= MAX_REFUSALS:
            key = (OTHER_CODES, response_code)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def _new_code(self, code: int) -> int:
        """Return what to count ``code`` as, after making room for it."""
        if len(self.counts) >= MAX_CODES:
            code = OTHER_CODES
        if code not in self.counts:
            self.counts[code] = 0
            self.sums[code] = 0.0
            self.buckets[code] = [0] * (len(BUCKETS_S) + 1)
        return code
