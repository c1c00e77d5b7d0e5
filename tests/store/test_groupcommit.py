"""The queue of those who wait for an offset, and what a pending put costs the reactor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.groupcommit import GroupCommit, OffsetWaiters
from rmq.store.messages import PutResult, PutStatus
from tests.store.support import Box


class OffsetWaitersTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.waiters = OffsetWaiters(self.clock, timeout=PutStatus.FLUSH_DISK_TIMEOUT, limit=4)

    def add(self, next_offset: int, deadline_ms: int = 1000) -> Deferred[PutStatus]:
        done: Deferred[PutStatus] = Deferred()
        self.waiters.add(next_offset, deadline_ms, done)
        return done

    def test_one_offset_completes_all_before_it(self) -> None:
        """Requests for an offset up to the reached one are completed, oldest first; others stay."""
        order: list[int] = []
        for number, offset in enumerate((10, 20, 20, 30)):
            self.add(offset).addCallback(lambda _, number: order.append(number), number)
        self.waiters.reached(9)
        self.assertEqual(order, [])
        self.waiters.reached(20)
        self.assertEqual(order, [0, 1, 2])
        self.assertEqual((len(self.waiters), self.waiters.first_offset, self.waiters.last_offset), (1, 30, 30))

    def test_deadlines(self) -> None:
        """A request times out at its deadline, not before, and is counted; one timer serves all."""
        first, second = self.add(10, 1000), self.add(20, 2000)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.clock.advance(0.999)
        self.assertNoResult(first)
        self.clock.advance(0.001)
        self.assertIs(self.successResultOf(first), PutStatus.FLUSH_DISK_TIMEOUT)
        self.assertNoResult(second)
        self.clock.advance(1)
        self.assertIs(self.successResultOf(second), PutStatus.FLUSH_DISK_TIMEOUT)
        self.assertEqual((self.waiters.timeouts, self.clock.getDelayedCalls()), (2, []))

    def test_not_held(self) -> None:
        """A request that was reached but is not held times out; those behind it that are held do not."""
        puts = [self.add(10), self.add(20)]
        self.waiters.reached(20, lambda next_offset: next_offset > 10)
        self.assertEqual([self.successResultOf(put) for put in puts], [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.PUT_OK])
        self.assertEqual(self.waiters.timeouts, 1)

    def test_stop(self) -> None:
        """A stop leaves no request and no timer."""
        one = self.add(10)
        self.waiters.stop(PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertIs(self.successResultOf(one), PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual((len(self.waiters), self.waiters.last_offset), (0, -1))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_answers_may_add(self) -> None:
        """A callback that waits again finds the queue in order."""
        again: list[Deferred[PutStatus]] = []
        self.add(10).addCallback(lambda _: again.append(self.add(20)))
        self.waiters.reached(10)
        self.assertNoResult(again[0])
        self.waiters.reached(20)
        self.assertIs(self.successResultOf(again[0]), PutStatus.PUT_OK)

    def test_limit(self) -> None:
        """The queue says when it is full."""
        for offset in range(3):
            self.add(offset)
        self.assertFalse(self.waiters.is_full)
        self.add(3)
        self.assertTrue(self.waiters.is_full)

    def test_order_of_the_log(self) -> None:
        """A request in front of one that waits already is a bug of the caller."""
        self.add(10)
        with self.assertRaises(AssertionError):
            self.add(9)


class BothTests(SynchronousTestCase):
    """SYNC_FLUSH and SYNC_MASTER at once."""

    def setUp(self) -> None:
        self.clock = Clock()
        sync: Any = SimpleNamespace(request=lambda: None)
        config = StoreConfig(
            broker_role=BrokerRole.SYNC_MASTER,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            sync_flush_timeout=5000,
            slave_timeout=3000,
        )
        self.commit = GroupCommit(self.clock, config, sync)
        self.asked: list[tuple[int, Deferred[PutStatus]]] = []
        self.commit.replication = SimpleNamespace(wait_for_slaves=self.ask)
        self.statuses: list[tuple[str, PutStatus]] = []

    def ask(self, next_offset: int, deadline_ms: int) -> Deferred[PutStatus]:
        self.asked.append((next_offset, Deferred()))
        return self.asked[-1][1]

    def put(self, end: int) -> None:
        """Wait for the same bytes in both ways."""
        many: Deferred[PutStatus] = Deferred()
        many.addCallback(self.answered, "many")
        self.commit.wait(end, many)
        one = self.commit.complete(PutResult(PutStatus.PUT_OK, next_offset=end), True)
        assert isinstance(one, Deferred)
        one.addCallback(lambda result: self.answered(result.status, "one"))

    def answered(self, status: PutStatus, way: str) -> None:
        self.statuses.append((way, status))

    def test_either_first(self) -> None:
        """A put is answered when both have it, whichever is first, and as the other way answers it."""
        ok, late = PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT
        for disk_first in (True, False):
            for replica in (ok, late, PutStatus.SLAVE_NOT_AVAILABLE):
                self.setUp()
                self.put(10)
                for at_disk in (disk_first, not disk_first):
                    self.assertEqual(self.statuses, [])
                    if at_disk:
                        self.commit.synced(10)
                    else:
                        for _, waiting in self.asked:
                            waiting.callback(replica)
                self.assertEqual(sorted(self.statuses), [("many", replica), ("one", replica)])

    def test_a_disk_that_is_late(self) -> None:
        """The status of the slaves comes first; without trouble there the disk's counts."""
        for replica in (PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT):
            self.setUp()
            self.put(10)
            for _, waiting in self.asked:
                waiting.callback(replica)
            self.clock.advance(5)
            expected = PutStatus.FLUSH_DISK_TIMEOUT if replica is PutStatus.PUT_OK else replica
            self.assertEqual(sorted(self.statuses), [("many", expected), ("one", expected)])
            self.commit.synced(10)
            self.assertEqual(len(self.statuses), 2)

    def test_stop(self) -> None:
        """Everything is answered once when the store stops."""
        self.put(10)
        self.put(20)
        self.commit.fail_all()
        for _, waiting in self.asked:
            waiting.callback(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual(len(self.statuses), 4)
        self.assertNotIn(PutStatus.PUT_OK, [status for _, status in self.statuses])
        self.assertEqual(self.clock.getDelayedCalls(), [])


class ReachTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box(flush_interval_commit_log=100, flush_commit_log_least_pages=0)
        self.store = self.box.open()
        self.box.disk.sync_s = (1.0, 1.0)

    def test_syncs_that_never_rest(self) -> None:
        """Who waits for an offset has it after two syncs at most, though others follow without a pause."""
        for _ in range(30):
            self.box.put_many(1)
            self.box.run(0.1)
        wanted = self.store.end_offset
        reached = self.store.sync_until(wanted)
        for _ in range(21):
            self.box.put_many(1)
            self.box.run(0.1)
        self.assertTrue(self.successResultOf(reached))
        self.assertGreaterEqual(self.store.flushed_offset, wanted)
        self.assertTrue(self.successResultOf(self.store.sync_until(wanted)))

    def test_a_sync_that_fails(self) -> None:
        """It ends the wait, and all later ones."""
        self.box.put_many(1)
        reached = self.store.sync_until(self.store.end_offset)
        self.box.disk.sync_fails = lambda path: "commitlog" in path
        self.box.run(2)
        self.assertFalse(self.successResultOf(reached))
        self.assertFalse(self.successResultOf(self.store.sync_until(self.store.end_offset)))
