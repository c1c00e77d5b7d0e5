"""A slave that catches up acknowledges at once and makes queues and index in slices."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.config import BrokerRole, FlushDiskType
from rmq.store.store import DISPATCH_AT_ONCE_BYTES, DISPATCH_COMPILED_SLICE_BYTES, DISPATCH_SLICE_BYTES
from tests.needs import need_compiled
from tests.store.support import SYNC, Box, message

SEGMENT = 1 << 20


class SlicedDispatchTests(SynchronousTestCase):
    def log_of(self, count: int, body_bytes: int) -> bytes:
        """Return the log of a master with so many messages, a large one among them."""
        box = Box(mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=20_000)
        store = box.open()
        for number in range(count):
            size = DISPATCH_AT_ONCE_BYTES * 2 if number == count // 2 else body_bytes
            box.put(message(number, body=b"x" * size))
        end = store.end_offset
        data = b""
        while len(data) < end:
            data += store.read(len(data), end)
        box.stop()
        return data

    def slave(self, flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH) -> Box:
        box = Box(
            mapped_file_size_commit_log=SEGMENT,
            mapped_file_size_consume_queue=20_000,
            broker_role=BrokerRole.SLAVE,
            flush_disk_type=flush,
        )
        box.open()
        return box

    def feed(self, box: Box, data: bytes, *, start: int = 0) -> None:
        store = box.store
        assert store is not None
        offset = start
        while offset < len(data):
            size = min(200_000, SEGMENT - offset % SEGMENT)
            store.append_raw(offset, data[offset : offset + size])
            offset += size

    def test_much_is_dispatched_in_slices(self) -> None:
        """A megabyte and more is in the log at once, in the queues later, and nothing is missing or twice."""
        data = self.log_of(600, 3000)
        for flush in FlushDiskType:
            box = self.slave(flush)
            store = box.store
            assert store is not None
            self.feed(box, data)
            self.assertEqual(store.end_offset, len(data))
            self.assertLess(store.dispatched_offset, len(data) - DISPATCH_AT_ONCE_BYTES)
            box.run(3)
            self.assertEqual(store.dispatched_offset, len(data))
            self.assertEqual([store.max_offset("Topic", queue) for queue in range(3)], [200, 200, 200])
            box.stop()

    def test_others_have_their_turn(self) -> None:
        """One turn of the reactor dispatches a slice, not the backlog; a larger slice where that is compiled."""
        data = self.log_of(600, 3000)
        for is_compiled in (False, True):
            box = self.slave()
            store = box.store
            assert store is not None
            if not is_compiled:
                store._dispatcher.walk = None
            elif store._dispatcher.walk is None:
                need_compiled("rmq.store._record")
            self.feed(box, data)
            self.assert_slices(box, len(data), DISPATCH_COMPILED_SLICE_BYTES if is_compiled else DISPATCH_SLICE_BYTES)

    def assert_slices(self, box: Box, end: int, step: int) -> None:
        store = box.store
        assert store is not None
        slices = []
        while store.dispatched_offset < end:
            before = store.dispatched_offset
            self.assertTrue(box.world.step())
            if store.dispatched_offset > before:
                slices.append(store.dispatched_offset - before)
        large = [size for size in slices if size > DISPATCH_AT_ONCE_BYTES]
        self.assertEqual(len(large), 1, "the large message is one of them")
        self.assertLessEqual(max(large), 4 * DISPATCH_AT_ONCE_BYTES)
        self.assertGreater(len(slices), end // step * 3 // 4)
        self.assertLessEqual(sorted(slices)[len(slices) // 2], step)
        box.stop()

    def test_little_is_dispatched_at_once(self) -> None:
        """A consumer at a slave that keeps up sees a message as soon as the slave has it."""
        data = self.log_of(8, 100)
        box = self.slave()
        store = box.store
        assert store is not None
        self.feed(box, data[:DISPATCH_AT_ONCE_BYTES])
        self.assertEqual(store.max_offset("Topic", 0) + store.max_offset("Topic", 1), 3)
        box.stop()

    def test_stopped_or_killed_in_between(self) -> None:
        """Whatever was not dispatched yet is when the slave has stopped, or at its next start."""
        data = self.log_of(600, 3000)
        for how in ("stop", "kill"):
            box = self.slave()
            self.feed(box, data)
            store = box.reopen(how, **({} if how == "stop" else SYNC))
            self.assertEqual(store.dispatched_offset, store.end_offset)
            self.assertEqual(sum(store.max_offset("Topic", queue) for queue in range(3)), 600)
            box.stop()
            self.assertEqual(box.node.leaks, [])
