"""Where sends wait for each broker of a set: consumers see a message when all of them have it."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.store import NO_LIMIT
from tests.store.support import SYNC, Box, all_records, message

ALL_ACK: dict[str, Any] = {"all_ack_in_sync_state_set": True}


class ConfirmedTests(SynchronousTestCase):
    def open(self, **config: Any) -> None:
        self.box = Box(**ALL_ACK, **config)
        self.store = self.box.open()

    def put(self, count: int = 4) -> list[int]:
        """Store messages; return where each record ends."""
        return [result.next_offset for result in self.box.put_many(count)]

    def seen(self) -> set[bytes]:
        """Return the bodies that consumers see."""
        return {record.body for records in all_records(self.store).values() for record in records}

    def test_which_stores_hide(self) -> None:
        """A store hides what is not on disk with SYNC_FLUSH, what is not on each broker of a set, or neither."""
        for sync in (FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH):
            for all_ack in (True, False):
                config = StoreConfig(flush_disk_type=sync, all_ack_in_sync_state_set=all_ack)
                self.assertIs(config.hides_unconfirmed, all_ack or sync is FlushDiskType.SYNC_FLUSH)

    def test_hidden_until_all_have_it(self) -> None:
        """Messages appear one by one, as the brokers of the set report them."""
        self.open()
        ends = self.put()
        self.box.run(2)
        self.assertEqual((self.seen(), self.store.confirm_offset), (set(), 0))
        for count, end in enumerate(ends, 1):
            self.store.replicated(end)
            self.assertEqual(self.store.confirm_offset, end)
            self.assertEqual(self.seen(), {b"body %d" % number for number in range(count)})

    def test_a_part_of_a_record(self) -> None:
        """A record of which a part is confirmed is hidden."""
        self.open()
        ends = self.put()
        self.store.replicated(ends[1] - 1)
        self.assertEqual(self.seen(), {b"body 0"})

    def test_nothing_is_hidden_again(self) -> None:
        """When a broker of the set is lost, what was seen stays, and nothing more appears."""
        self.open()
        ends = self.put()
        self.store.replicated(ends[1])
        self.store.replicated(-1)
        self.assertEqual(self.store.confirm_offset, ends[1])
        self.box.put(message(4))
        self.assertEqual(self.seen(), {b"body 0", b"body 1"})

    def test_nobody_counts(self) -> None:
        """With the master alone in the set all that is there is confirmed, and what comes when it is reported."""
        self.open()
        ends = self.put()
        self.store.replicated(NO_LIMIT)
        self.assertEqual((len(self.seen()), self.store.confirm_offset), (4, ends[-1]))

    def test_with_sync_flush(self) -> None:
        """Both must be: on disk, and on each broker of the set."""
        self.open(**SYNC)
        ends = self.put()
        self.assertEqual(self.seen(), set())
        self.box.disk.sync_s = (5.0, 5.0)
        self.store.put(message(4))
        self.store.replicated(NO_LIMIT)
        self.assertEqual((len(self.seen()), self.store.confirm_offset), (4, ends[-1]))
        self.box.run(11)
        self.assertEqual(len(self.seen()), 5)

    def test_a_slave(self) -> None:
        """A slave shows what it has."""
        self.open()
        ends = self.put()
        data = bytes(self.store.read(0, ends[-1]))
        self.box = Box(2, **ALL_ACK, broker_role=BrokerRole.SLAVE)
        self.store = self.box.open()
        self.store.append_raw(0, data)
        self.box.run(1)
        self.assertEqual((len(self.seen()), self.store.confirm_offset), (4, ends[-1]))

    def test_the_next_start(self) -> None:
        """What is there at a start is seen: a broker that becomes master is alone in its set at first."""
        for how in ("stop", "kill"):
            self.open()
            ends = self.put()
            self.store = self.box.reopen(how)
            self.assertEqual(len(self.seen()), 4, how)
            self.store.replicated(ends[0])
            (new,) = self.box.put(message(4))
            self.assertEqual(len(self.seen()), 4, how)
            self.store.replicated(new.next_offset)
            self.assertEqual(len(self.seen()), 5, how)
