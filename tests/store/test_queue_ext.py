"""Extension files of consume queues: written when configured, read when there, never relied on."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.layout import CQ_EXT_BASE, CQ_EXT_UNIT, CQ_UNIT, file_name
from rmq.store.messages import StoreError
from rmq.store.openfiles import OpenFiles
from rmq.store.queueext import QueueExt, is_address
from rmq.store.store import MessageStore
from rmq.wire.record import tags_code
from tests.store.support import ROOT, Box, all_records, message

FOLDER = "/ext"
#: five units, and 24 bytes of which 4 are never used
FILE_BYTES = 124


class QueueExtTests(SynchronousTestCase):
    def setUp(self) -> None:
        world = World(1)
        self.node = Node(world, SimNet(world), "broker")
        self.node.start()
        self.disk = self.node.disk
        self.disk.make_dirs(FOLDER)
        self.ext = self.make()

    def make(self) -> QueueExt:
        return QueueExt(OpenFiles(self.disk, 2), FOLDER, FILE_BYTES)

    def reload(self, last: int | None) -> None:
        self.ext.write()
        self.ext = self.make()
        self.ext.load([number * FILE_BYTES for number in range(len(self.disk.list_dir(FOLDER)))])
        self.ext.cut(last)

    def test_units_on_disk(self) -> None:
        """Units as Apache has them, with -1 where the next one does not fit; addresses are offsets from -2^63."""
        addresses = [self.ext.append(number, 1000 + number) for number in range(7)]
        self.ext.write()
        self.assertEqual([address - CQ_EXT_BASE for address in addresses], [0, 20, 40, 60, 80, 100, 124])
        self.assertTrue(all(map(is_address, addresses)))
        first = b"".join(CQ_EXT_UNIT.pack(20, number, 1000 + number, 0) for number in range(6))
        self.assertEqual(
            self.disk.read_whole(f"{FOLDER}/{file_name(0)}"), (first + b"\xff\xff").ljust(FILE_BYTES, b"\0")
        )
        self.assertEqual(
            self.disk.read_whole(f"{FOLDER}/{file_name(FILE_BYTES)}")[:20], CQ_EXT_UNIT.pack(20, 6, 1006, 0)
        )

    def test_written_and_buffered(self) -> None:
        """A unit is found at once, after the write, and after a start; what was never there is not."""
        addresses = [self.ext.append(number, 0) for number in range(20)]
        for _ in range(2):
            self.assertEqual([self.ext.tags_code(address) for address in addresses], list(range(20)))
            self.assertIsNone(self.ext.tags_code(addresses[-1] + 20))
            self.assertIsNone(self.ext.tags_code(-5))
            self.ext.write()
        self.reload(addresses[-1])
        self.assertEqual([self.ext.tags_code(address) for address in addresses], list(range(20)))
        self.assertEqual(self.ext.append(20, 0) - CQ_EXT_BASE, addresses[-1] - CQ_EXT_BASE + 20)

    def test_cut(self) -> None:
        """Behind the last unit that its queue names there is nothing."""
        addresses = [self.ext.append(number, 0) for number in range(20)]
        self.reload(addresses[8])
        self.assertEqual([self.ext.tags_code(address) for address in addresses[7:10]], [7, 8, None])
        self.assertEqual(len(self.disk.list_dir(FOLDER)), 2)
        self.assertEqual(self.ext.append(9, 0), addresses[9])
        self.reload(None)
        self.assertEqual((self.ext.end, self.disk.list_dir(FOLDER)), (0, []))

    def test_lost_files(self) -> None:
        """A unit whose file is gone is unknown, and new units never get an address that is taken."""
        addresses = [self.ext.append(number, 0) for number in range(20)]
        self.ext.write()
        self.ext = self.make()
        self.ext.cut(addresses[-1])
        self.assertIsNone(self.ext.tags_code(addresses[3]))
        self.assertGreater(self.ext.append(20, 0), addresses[-1])

    def test_another_file_size(self) -> None:
        """Files of another length are refused, with the key that says so."""
        self.ext.append(1, 0)
        self.ext.write()
        other = QueueExt(OpenFiles(self.disk, 2), FOLDER, 100)
        with self.assertRaises(StoreError) as caught:
            other.load([0])
        self.assertIn("mappedFileSizeConsumeQueueExt=100", str(caught.exception))

    def test_expired_files(self) -> None:
        """Files in front of the first unit that is still wanted go."""
        addresses = [self.ext.append(number, 0) for number in range(15)]
        self.ext.write()
        self.ext.delete_before(addresses[7])
        self.assertEqual(self.disk.list_dir(FOLDER), [file_name(FILE_BYTES), file_name(2 * FILE_BYTES)])
        self.assertEqual([self.ext.tags_code(addresses[number]) for number in (5, 6, 14)], [None, 6, 14])


class StoreTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=FILE_BYTES)
        self.store = self.box.open()
        self.box.put_many(60)

    def tagged(self, store: MessageStore, number: int) -> int:
        """Return how many messages a filter for one tag lets pass."""
        codes: list[int] = []

        def note(code: int) -> bool:
            codes.append(code)
            return False

        for queue_id in range(3):
            offset = 0
            while offset < store.max_offset("Topic", queue_id):
                result = store.get("Topic", queue_id, offset, 32, note)
                offset = result.next_begin_offset
        return codes.count(tags_code(f"tag{number}"))

    def assert_extended(self, count: int) -> None:
        """Every unit of the written queues has an address, and its own."""
        units = []
        for queue_id in range(3):
            folder = f"{ROOT}/consumequeue/Topic/{queue_id}"
            data = b"".join(self.box.disk.read_whole(f"{folder}/{name}") for name in self.box.disk.list_dir(folder))
            codes = [code for _, size, code in CQ_UNIT.iter_unpack(data) if size]
            self.assertEqual(len(set(codes)), len(codes))
            units += codes
        self.assertEqual(len(units), count)
        self.assertTrue(all(map(is_address, units)))

    def test_filters_see_tags(self) -> None:
        """Tags filter as with plain units, at once and after any kind of end."""
        self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (30, 30))
        number = 60
        for how in ("stop", "kill", "crash", "stop"):
            self.box.run(75)
            self.store = self.box.reopen(how)
            self.box.put_many(6, number)
            number += 6
            self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (number // 2, number // 2), how)
        self.box.stop()
        self.assert_extended(number)

    def test_turned_on_and_off(self) -> None:
        """Plain and extended units may follow each other in a queue, and lost extension files cost nothing."""
        for extended in (False, True, False, True):
            self.store = self.box.reopen("stop", enable_consume_queue_ext=extended)
            self.box.put_many(6, 60)
        self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (42, 42))
        self.box.stop()
        self.box.disk.delete_tree(f"{ROOT}/consumequeue_ext")
        self.store = self.box.open()
        self.box.put_many(6, 60)
        self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (45, 45))

    def test_queues_made_again(self) -> None:
        """With its queues gone, a store makes them again, and their extension with them."""
        before = all_records(self.store)
        self.box.run(75)
        self.box.kill()
        self.box.disk.delete_tree(f"{ROOT}/consumequeue")
        self.store = self.box.open()
        self.assertEqual(all_records(self.store), before)
        self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (30, 30))
        self.box.stop()
        self.assert_extended(60)

    def test_other_files(self) -> None:
        """A file that an editor or a backup left in an extension's folder keeps no broker from its start."""
        self.box.run(2)
        self.box.kill()
        self.box.disk.write_atomic(f"{ROOT}/consumequeue_ext/Topic/0/notes.txt", b"x")
        self.store = self.box.open()
        self.assertEqual((self.tagged(self.store, 0), self.tagged(self.store, 1)), (30, 30))

    def test_deleted_topic(self) -> None:
        """The extension goes with its topic."""
        self.box.run(2)
        self.assertTrue(self.box.disk.list_dir(f"{ROOT}/consumequeue_ext/Topic"))
        self.store.delete_topic("Topic")
        self.assertEqual(self.box.disk.list_dir(f"{ROOT}/consumequeue_ext"), [])
        self.box.put(message(1))
        self.box.run(2)
        self.assertEqual(self.tagged(self.store, 1), 1)
