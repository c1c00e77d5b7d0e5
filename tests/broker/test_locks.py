"""Ordered consumption: one client at a time holds a queue."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import locks as locks_module
from rmq.broker.locks import QueueLocks
from rmq.wire.api.common import MessageQueue

Q0 = MessageQueue(topic="T", broker_name="b", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="b", queue_id=1)


class QueueLockTests(SynchronousTestCase):
    def test_first_come_first_served(self) -> None:
        """A queue that somebody holds is not given to another member of the group."""
        locks = QueueLocks()
        self.assertEqual(locks.lock("G", "a", [Q0], 0), [Q0])
        self.assertEqual(locks.lock("G", "b", [Q0, Q1], 1), [Q1])

    def test_groups_do_not_touch(self) -> None:
        """Each group has its own locks."""
        locks = QueueLocks()
        locks.lock("G", "a", [Q0], 0)
        self.assertEqual(locks.lock("H", "b", [Q0], 0), [Q0])

    def test_expiry_and_renewal(self) -> None:
        """A lock ends 60 s after its last renewal, not earlier."""
        locks = QueueLocks()
        locks.lock("G", "a", [Q0], 0)
        locks.lock("G", "a", [Q0], 20_000)
        self.assertEqual(locks.lock("G", "b", [Q0], 80_000), [])
        self.assertEqual(locks.lock("G", "b", [Q0], 80_001), [Q0])
        self.assertEqual(locks.lock("G", "a", [Q0], 80_002), [])

    def test_only_the_holder_unlocks(self) -> None:
        """Another client's unlock changes nothing."""
        locks = QueueLocks()
        locks.lock("G", "a", [Q0], 0)
        locks.unlock("G", "b", [Q0])
        self.assertEqual(locks.lock("G", "b", [Q0], 1), [])
        locks.unlock("G", "a", [Q0, Q1])
        self.assertEqual(locks.lock("G", "b", [Q0], 2), [Q0])

    def test_expired_locks_are_forgotten(self) -> None:
        """Groups that are gone leave nothing behind."""
        locks = QueueLocks()
        locks.lock("G", "a", [Q0], 0)
        locks.lock("H", "a", [], 0)
        locks.expire(60_000)
        self.assertEqual(locks.lock("G", "b", [Q0], 60_000), [])
        locks.expire(60_001)
        self.assertEqual(locks, QueueLocks())

    def test_limit(self) -> None:
        """At the limit no further queue is locked, those that are held stay so, and each released one makes room."""
        self.patch(locks_module, "MAX_LOCKS", 2)
        locks = QueueLocks()
        locks.lock("G", "a", [Q0], 0)
        self.assertEqual(locks.lock("H", "a", [Q0, Q1], 0), [Q0])
        self.assertEqual(locks.lock("H", "a", [Q0, Q1], 1), [Q0])
        locks.unlock("G", "a", [Q0])
        self.assertEqual(locks.lock("H", "a", [Q1], 1), [Q1])
        locks.expire(60_002)
        self.assertEqual(locks.lock("G", "a", [Q0, Q1], 60_002), [Q0, Q1])
