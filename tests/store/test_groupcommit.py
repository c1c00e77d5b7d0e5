"""The queue of those who wait for an offset."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.store.groupcommit import CommitWaits, GroupCommitRequest, answer
from rmq.store.messages import PutStatus


def request(next_offset: int, deadline_ms: int = 1000) -> GroupCommitRequest:
    return GroupCommitRequest(next_offset, deadline_ms, Deferred())


def done(one: GroupCommitRequest) -> Deferred[PutStatus]:
    """Return what a request of this file waits with."""
    assert isinstance(one.done, Deferred)
    return one.done


class CommitWaitsTests(SynchronousTestCase):
    def test_one_offset_answers_all_before_it(self) -> None:
        """Whoever waits for an offset up to the reached one is taken out, oldest first; others stay."""
        waits = CommitWaits()
        requests = [request(offset) for offset in (10, 20, 20, 30)]
        for one in requests:
            waits.add(one)
        self.assertEqual(waits.reached(9), [])
        self.assertEqual(waits.reached(20), requests[:3])
        self.assertEqual((len(waits), waits.last_offset), (1, 30))

    def test_deadlines(self) -> None:
        """A request is expired from its deadline on, not before."""
        waits = CommitWaits()
        first, second = request(10, 1000), request(20, 2000)
        waits.add(first)
        waits.add(second)
        self.assertEqual(waits.next_deadline_ms, 1000)
        self.assertEqual(waits.expired(999), [])
        self.assertEqual(waits.expired(1000), [first])
        self.assertEqual(waits.next_deadline_ms, 2000)
        self.assertEqual(waits.expired(5000), [second])
        self.assertIsNone(waits.next_deadline_ms)

    def test_everybody_is_answered_at_the_end(self) -> None:
        """fail_all leaves nobody waiting."""
        waits = CommitWaits()
        one = request(10)
        waits.add(one)
        waits.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertIs(self.successResultOf(done(one)), PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual((len(waits), waits.last_offset), (0, -1))

    def test_answers_may_add(self) -> None:
        """A callback that waits again finds the queue in order."""
        waits = CommitWaits()
        one, two = request(10), request(20)
        waits.add(one)
        done(one).addCallback(lambda _: waits.add(two))
        answer(waits.reached(10), PutStatus.PUT_OK)
        self.assertEqual(waits.reached(20), [two])

    def test_limit(self) -> None:
        """The queue says when it is full."""
        waits = CommitWaits(limit=2)
        waits.add(request(1))
        self.assertFalse(waits.full)
        waits.add(request(2))
        self.assertTrue(waits.full)

    def test_order_of_the_log(self) -> None:
        """A request in front of one that waits already is a bug of the caller."""
        waits = CommitWaits()
        waits.add(request(10))
        with self.assertRaises(AssertionError):
            waits.add(request(9))
