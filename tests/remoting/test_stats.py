"""Tests of the counters of requests: exact numbers, bounded tables, and what the protocol counts."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.responders import Refuse, Reply, Request, ResponderTable, responds_to
from rmq.remoting.stats import BUCKETS_S, MAX_CODES, MAX_REFUSALS, OTHER_CODES, RequestStats
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import contract
from tests.remoting.peer import Peer

QUICK = contract(96_101)
LATER = contract(96_102)
REFUSED = contract(96_103)
TURNED_DOWN = contract(96_104)
BROKEN = contract(96_105)


class Owner:
    def __init__(self) -> None:
        self.waiting: Deferred[Reply] = Deferred()

    @responds_to(QUICK)
    def quick(self, request: Request[None, None]) -> None:
        pass

    @responds_to(LATER)
    def later(self, request: Request[None, None]) -> Deferred[Reply]:
        return self.waiting

    @responds_to(REFUSED)
    def refused(self, request: Request[None, None]) -> Reply:
        raise Refuse(ResponseCode.NO_PERMISSION, "no")

    @responds_to(TURNED_DOWN)
    def turned_down(self, request: Request[None, None]) -> Reply:
        return Reply(code=ResponseCode.TOPIC_NOT_EXIST, remark="none")

    @responds_to(BROKEN)
    def broken(self, request: Request[None, None]) -> Reply:
        raise KeyError("bug")


class RequestStatsTests(SynchronousTestCase):
    def test_one(self) -> None:
        """A request is counted once, in the class whose bounds its duration lies between, the upper one included."""
        stats = RequestStats()
        for seconds in (0.0, BUCKETS_S[0], BUCKETS_S[0] * 1.01, BUCKETS_S[-1], 1e6):
            stats.observe(105, seconds)
        self.assertEqual(stats.counts, {105: 5})
        self.assertAlmostEqual(stats.sums[105], 1e6 + BUCKETS_S[-1] + BUCKETS_S[0] * 2.01)
        self.assertEqual(stats.buckets[105], [2, 1, *[0] * (len(BUCKETS_S) - 3), 1, 1])

    def test_many(self) -> None:
        """Several answers together are counted each, with the average duration."""
        stats = RequestStats()
        stats.observe(105, 0.008, 16)
        self.assertEqual(stats.counts, {105: 16})
        self.assertEqual(stats.sums, {105: 0.008})
        self.assertEqual(stats.buckets[105][BUCKETS_S.index(0.000_5)], 16)

    def test_clock_set_back(self) -> None:
        """A negative duration is none."""
        stats = RequestStats()
        stats.observe(105, -3600.0)
        self.assertEqual(stats.sums, {105: 0.0})
        self.assertEqual(stats.buckets[105][0], 1)

    def test_invented_codes(self) -> None:
        """A peer that makes up codes fills no table; all is counted all the same."""
        stats = RequestStats()
        for code in range(MAX_CODES + 50):
            stats.observe(code, 0.001)
            stats.observe(code, 0.001)
        self.assertEqual(len(stats.counts), MAX_CODES + 1)
        self.assertEqual(stats.counts[OTHER_CODES], 100)
        self.assertEqual(sum(stats.counts.values()), 2 * (MAX_CODES + 50))
        self.assertEqual(sum(map(sum, stats.buckets.values())), 2 * (MAX_CODES + 50))

    def test_invented_refusals(self) -> None:
        """The same holds for refusals."""
        stats = RequestStats()
        for code in range(MAX_REFUSALS + 50):
            stats.refused(code, 3)
        self.assertEqual(len(stats.refusals), MAX_REFUSALS + 1)
        self.assertEqual(stats.refusals[(OTHER_CODES, 3)], 50)


class CountedTests(SynchronousTestCase):
    """What a connection counts in the statistics of its table."""

    def setUp(self) -> None:
        self.owner = Owner()
        self.table = ResponderTable(self.owner)
        self.peer = Peer(self.table)

    def test_answered(self) -> None:
        """Every request is counted, answered ones, one-way ones and unknown ones."""
        self.peer.ask(96_101)
        self.peer.ask(96_101)
        self.peer.tell_oneway(96_101)
        self.peer.ask(96_199)
        self.assertEqual(self.table.stats.counts, {96_101: 3, 96_199: 1})
        self.assertEqual(self.table.stats.refusals, {(96_199, 3): 1})

    def test_late_answer(self) -> None:
        """An answer that comes later is counted then, with the time that it took."""
        self.peer.tell(RemotingCommand(96_102, 1))
        self.assertEqual(self.table.stats.counts, {})
        self.peer.clock.advance(0.2)
        self.owner.waiting.callback(Reply(code=ResponseCode.SYSTEM_BUSY))
        self.assertEqual(self.table.stats.counts, {96_102: 1})
        self.assertAlmostEqual(self.table.stats.sums[96_102], 0.2)

    def test_refused(self) -> None:
        """Refusals are counted by what was asked and what was answered, faults of ours as code 1."""
        for code in (96_103, 96_104, 96_105):
            self.peer.ask(code)
        self.assertEqual(self.table.stats.refusals, {(96_103, 16): 1, (96_104, 17): 1, (96_105, 1): 1})
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_vip_port(self) -> None:
        """A table made from another one counts in the same place."""
        Peer(self.table.without(96_102)).ask(96_101)
        self.assertEqual(self.table.stats.counts, {96_101: 1})
