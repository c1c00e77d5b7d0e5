"""Counters of requests that something else counted: the compiled lanes keep their own numbers until somebody reads."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.stats import BUCKETS_S, MAX_CODES, OTHER_CODES, RequestStats


class Once:
    """A source that has counted something before the first reader comes, and nothing after that."""

    def __init__(self, code: int, n: int, seconds: float, buckets: Sequence[int]) -> None:
        self._code, self._counted = code, [(code, n, seconds, buckets)]

    def __call__(self) -> tuple[int, int, float, Sequence[int]]:
        return self._counted.pop() if self._counted else (self._code, 0, 0.0, [])


class SourceTests(SynchronousTestCase):
    def test_every_reader_sees_them(self) -> None:
        """/metrics shows the requests that a lane answered, whichever of the numbers it reads first, and each once."""
        buckets = [number % 3 for number in range(len(BUCKETS_S) + 1)]
        for first in ("counts", "sums", "buckets"):
            stats = RequestStats()
            stats.observe(310, 0.5, n=2)
            own = list(stats.buckets[310])
            stats.add_source(Once(310, 7, 1.5, buckets))
            stats.add_source(Once(105, 0, 0.0, []))
            counted = [a + b for a, b in zip(own, buckets, strict=True)]
            expected = {"counts": {310: 9}, "sums": {310: 2.0}, "buckets": {310: counted}}
            self.assertEqual(getattr(stats, first), expected[first])
            self.assertEqual({name: getattr(stats, name) for name in expected}, expected)

    def test_invented_codes(self) -> None:
        """A source of one more code than the table holds is counted with the other such codes."""
        stats = RequestStats()
        for code in range(MAX_CODES):
            stats.observe(code, 0.0)
        stats.add_source(Once(MAX_CODES + 1, 3, 0.0, [3] + [0] * len(BUCKETS_S)))
        self.assertEqual(stats.counts[OTHER_CODES], 3)
        self.assertNotIn(MAX_CODES + 1, stats.counts)
