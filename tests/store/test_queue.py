"""One consume queue, on its own."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile

from twisted.internet.defer import ensureDeferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import RealDisk
from rmq.sim.inode import CrashOdds
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store import consumequeue
from rmq.store.consumequeue import MAX_GAP, ConsumeQueue, QueueGap
from rmq.store.layout import CQ_FILLER, CQ_UNIT, file_name, file_starts
from rmq.store.messages import StoreError
from rmq.store.openfiles import OpenFiles
from rmq.store.queues import QueueTable, is_storable_topic

FOLDER = "/queue"
FILE_BYTES = 100  # five units


class QueueCase(SynchronousTestCase):
    def setUp(self) -> None:
        world = World(1)
        self.node = Node(world, SimNet(world), "broker")
        self.node.start()
        self.disk = self.node.disk
        self.disk.make_dirs(FOLDER)
        self.queue = self.make()

    def make(self) -> ConsumeQueue:
        return ConsumeQueue(OpenFiles(self.disk, 2), FOLDER, "Topic", 0, FILE_BYTES)

    def fill(self, first: int, end: int) -> None:
        for number in range(first, end):
            self.assertTrue(self.queue.append(number, number * 100, 50, number))

    def reload(self) -> bool:
        self.queue.write()
        self.queue = self.make()
        return self.queue.load(file_starts(self.disk.list_dir(FOLDER)))

    def units(self) -> list[tuple[int, int, int] | None]:
        return [self.queue.unit(number) for number in range(self.queue.min, self.queue.end)]

    def content(self) -> bytes:
        return b"".join(self.disk.read_whole(f"{FOLDER}/{name}") for name in self.disk.list_dir(FOLDER))


class BeginAnewTests(SynchronousTestCase):
    def test_power_failure(self) -> None:
        """
        The queue of a topic that was deleted and made again never has old units behind new ones: consumers would get
        messages of the deleted topic as the newest, and the next ones would follow those.
        """
        seen = set()
        for seed in range(60):
            world = World(seed)
            node = Node(world, SimNet(world), "broker")
            node.start()
            node.disk.odds = CrashOdds(kept=1, torn=0, garbage=0)
            node.disk.make_dirs(FOLDER)
            queue = ConsumeQueue(OpenFiles(node.disk, 9), FOLDER, "Topic", 0, FILE_BYTES)
            for number in range(12):
                queue.append(number, number * 100, 50, 0)
            queue.write()
            for start in queue.starts:
                node.disk.open(queue.path(start)).sync_now()
            node.disk.sync_dir(FOLDER)
            queue.begin_anew()
            queue.append(0, 10_000, 50, 0)
            queue.write()
            node.crash()
            seen.add(tuple(node.disk.list_dir(FOLDER)))
        self.assertEqual(seen, {(), (file_name(0),)})


class AppendTests(QueueCase):
    def test_units_on_disk(self) -> None:
        """Units lie one behind the other in files named by their first byte, the rest is zeros."""
        self.fill(0, 7)
        self.queue.write()
        self.assertEqual(self.disk.list_dir(FOLDER), [file_name(0), file_name(100)])
        expected = b"".join(CQ_UNIT.pack(n * 100, 50, n) for n in range(7))
        self.assertEqual(self.content(), expected.ljust(200, b"\0"))

    def test_readers_see_units_at_once(self) -> None:
        """What is buffered and what is written reads the same, across files."""
        self.fill(0, 3)
        self.queue.write()
        self.fill(3, 12)
        self.assertEqual(self.units(), [(n * 100, 50, n) for n in range(12)])
        places = [(at, count) for at in range(3) for count in (1, 2, 3, 10)]
        before = [self.queue.read(*place) for place in places]
        self.assertEqual(len(self.queue.read(3, 100)), 9 * 20)
        self.queue.write()
        self.assertEqual([self.queue.read(*place) for place in places], before)
        self.assertEqual(len(self.queue.read(1, 10)), 4 * 20, "not over the end of a file")
        self.assertEqual(self.queue.read(12, 1), b"")
        self.assertEqual(self.queue.read(-1, 1), b"")

    def test_twice_is_once(self) -> None:
        """A message that is there already is not added again."""
        self.fill(0, 5)
        for number in (0, 4):
            self.assertFalse(self.queue.append(number, number * 100, 50, number))
        self.assertEqual(self.queue.end, 5)

    def test_a_gap_shifts_nothing(self) -> None:
        """A unit that would leave a gap is refused; filling the gap keeps every number right."""
        self.fill(0, 3)
        with self.assertRaises(QueueGap) as caught:
            self.queue.append(5, 500, 50, 5)
        self.assertIn("Topic-0 ends at 3 and cannot go on with number 5", str(caught.exception))
        self.assertEqual(self.queue.end, 3)
        self.assertTrue(self.queue.fill_gap(5, 500, 50, 5))
        self.assertTrue(self.queue.append(5, 500, 50, 5))
        self.assertEqual(self.units()[2:], [(200, 50, 2), (500, 50, 5), (500, 50, 5), (500, 50, 5)])

    def test_largest_gap(self) -> None:
        """A million numbers without a message can be filled; more are taken for a damaged number and stop the queue."""
        self.fill(0, 3)
        self.assertEqual(MAX_GAP, 1_000_000)
        self.patch(consumequeue, "MAX_GAP", 5)
        self.assertFalse(self.queue.fill_gap(3 + 6, 600, 50, 6))
        self.assertEqual(self.queue.end, 3)
        self.assertTrue(self.queue.fill_gap(3 + 5, 600, 50, 6))
        self.assertEqual(self.queue.end, 8)

    def test_first_number(self) -> None:
        """An empty queue may begin anywhere; fillers stand in front, and count neither before nor after a restart."""
        self.fill(7, 9)
        for _ in range(3):
            self.assertEqual((self.queue.min, self.queue.end), (7, 9))
            self.assertEqual(self.units(), [(700, 50, 7), (800, 50, 8)])
            self.assertTrue(self.reload())
            self.queue.correct_min(0)
        self.assertEqual(self.disk.list_dir(FOLDER), [file_name(100)])
        self.assertEqual(self.content()[:40], CQ_FILLER * 2)

    def test_only_fillers(self) -> None:
        """A queue that lost its first unit but kept the fillers may begin anew."""
        self.fill(7, 8)
        self.queue.write()
        self.disk.open(f"{FOLDER}/{file_name(100)}").write_at(40, bytes(20))
        self.reload()
        self.assertEqual((self.queue.min, self.queue.end, self.queue.max_phy), (0, 0, -1))
        self.fill(9, 10)
        self.assertEqual(self.queue.min, 9)


class LoadTests(QueueCase):
    def test_every_length(self) -> None:
        """However many units there are, a loaded queue goes on behind the last one."""
        for count in range(1, 12):
            self.fill(self.queue.end, count)
            self.assertTrue(self.reload())
            self.assertEqual((self.queue.end, self.queue.next), (count, count))
            self.assertEqual(self.queue.max_phy, (count - 1) * 100 + 50)

    def test_empty_last_file(self) -> None:
        """A last file without units is dropped."""
        self.fill(0, 5)
        self.queue.write()
        self.disk.create_sparse(f"{FOLDER}/{file_name(100)}", FILE_BYTES).close()
        self.assertTrue(self.reload())
        self.assertEqual(self.queue.end, 5)
        self.fill(5, 6)
        self.queue.write()

    def test_missing_file(self) -> None:
        """A queue with a hole is emptied and says so."""
        self.fill(0, 15)
        self.queue.write()
        self.disk.delete(f"{FOLDER}/{file_name(100)}")
        self.assertFalse(self.reload())
        self.assertEqual((self.queue.end, self.disk.list_dir(FOLDER)), (0, []))

    def test_other_lengths(self) -> None:
        """Files of another length are refused before anything is changed; short ones are lengthened."""
        self.fill(0, 7)
        self.queue.write()
        for size in (60, 200):
            queue = ConsumeQueue(OpenFiles(self.disk, 2), FOLDER, "Topic", 0, size)
            with self.assertRaises(StoreError) as caught:
                queue.check_files(file_starts(self.disk.list_dir(FOLDER)))
            self.assertIn(f"mappedFileSizeConsumeQueue={size}", str(caught.exception))
        self.disk.open(f"{FOLDER}/{file_name(100)}").truncate(40)
        self.assertTrue(self.reload())
        self.assertEqual(self.queue.end, 7)

    def test_kept_units_are_of_the_files(self) -> None:
        """Units of files are kept for the next reads, with those of a file that wait for their write; a cut forgets."""
        self.fill(0, 4)
        self.assertEqual(len(self.queue.read_block(1, 2, 9)), 2 * CQ_UNIT.size)
        self.assertEqual(self.queue.block, b"")
        self.queue.write()
        self.fill(4, 7)
        units = self.queue.read_block(1, 2, 9)
        self.assertEqual((units, self.queue.block, self.queue.block_offset), (self.queue.read(1, 4), units, 1))
        self.assertEqual(len(units), 4 * CQ_UNIT.size)
        self.queue.cut(200)
        self.assertEqual(self.queue.block, b"")

    def test_cut(self) -> None:
        """Cutting drops the units from an offset on, wherever it lies, and their place is empty afterwards."""
        for keep in range(13):
            self.queue.destroy()
            self.fill(0, 12)
            self.queue.write()
            self.queue.cut(keep * 100)
            kept = min(keep, 12)
            self.assertEqual((self.queue.end, self.queue.next), (kept, kept), keep)
            self.assertEqual(self.content().rstrip(b"\0")[: kept * 20], self.content()[: kept * 20].rstrip(b"\0"))
            self.assertFalse(any(self.content()[kept * 20 :]))
            self.assertTrue(self.reload())
            self.assertEqual(self.queue.end, kept)

    def test_cut_behind_a_torn_unit(self) -> None:
        """
        A unit whose first bytes a power failure lost looks like one from far in front, and goes with what is cut. So
        does the one before it, whose tags may be lost: consumers with a filter would never get its message.
        """
        lost_bytes = ((120, 128), (100, 128), (120, 124), (85, 108), (124, 128), (40, 164))
        for lost, before in itertools.product(lost_bytes, (0, 1)):
            self.queue.destroy()
            for number in range(12):
                self.queue.append(number, (1 << 32) + number * 100, 50, number)
            self.queue.write()
            for at in range(*lost):
                self.disk.open(f"{FOLDER}/{file_name(at - at % 100)}").write_at(at % 100, b"\0")
            first = lost[0] // 20 - before
            self.queue.cut((1 << 32) + first * 100)
            self.assertEqual((self.queue.end, len(self.units())), (first, first), lost)

    def test_cut_keeps_copies(self) -> None:
        """Units that stand for missing ones are the same as the one behind them, and are kept with it."""
        self.fill(0, 3)
        self.assertTrue(self.queue.fill_gap(5, 500, 50, 5))
        self.queue.append(5, 500, 50, 5)
        self.queue.cut(600)
        self.assertEqual(self.queue.end, 6)

    def test_minimum(self) -> None:
        """The minimum is the first message that the log still has; an old queue ends where it ends."""
        self.fill(0, 12)
        self.queue.correct_min(350)
        self.assertEqual(self.queue.min, 4)
        self.queue.write()
        self.assertEqual(self.queue.delete_expired(650), 1)
        self.assertEqual((self.queue.min, self.queue.starts), (7, [100, 200]))
        self.queue.correct_min(100_000)
        self.assertEqual((self.queue.min, self.queue.end), (12, 12))


class TopicTests(SynchronousTestCase):
    def test_names(self) -> None:
        """Only names that are one folder and fit a record can be stored."""
        for topic in ("a", "%RETRY%g", "t" * 127, "..."):
            self.assertTrue(is_storable_topic(topic), topic)
        for topic in ("", ".", "..", "a/b", "/", "a\0", "t" * 128, "é" * 64):
            self.assertFalse(is_storable_topic(topic), topic)


class TableTests(SynchronousTestCase):
    def test_strangers_are_left_alone(self) -> None:
        """Files and folders that are no queue, as file managers leave them, neither stop a start nor vanish."""
        root = tempfile.mkdtemp(prefix="rmq-queues-")
        self.addCleanup(shutil.rmtree, root)
        disk = RealDisk(None)
        self.addCleanup(disk.close)
        table = QueueTable(disk, root, FILE_BYTES, ext_file_bytes=FILE_BYTES)
        queue = table.make("Topic", 0)
        queue.append(0, 0, 50, 0)
        table.touched(queue)
        table.write()
        strangers = [
            f"{root}/{base}{name}"
            for base in ("consumequeue", "consumequeue_ext")
            for name in ("/.DS_Store", "/Topic/notes.txt", "/Topic/7")
        ]
        for path in strangers:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w"):
                pass
        table = QueueTable(disk, root, FILE_BYTES, ext_file_bytes=FILE_BYTES)
        table.load()
        self.assertEqual((table.keys(), table.total_units), ([("Topic", 0)], 1))
        self.assertEqual([path for path in strangers if not os.path.exists(path)], [])

    def test_a_synced_queue_outlives_a_power_failure(self) -> None:
        """The folders above the first queue of a store are durable with its units: consumers find what was synced."""
        for ext_file_bytes in (None, FILE_BYTES):
            world = World(1)
            node = Node(world, SimNet(world), "broker")
            node.start()
            node.disk.odds = CrashOdds(kept=0, torn=0, garbage=0)
            node.disk.make_dirs("/store")
            table = QueueTable(node.disk, "/store", FILE_BYTES, ext_file_bytes=ext_file_bytes)
            queue = table.make("Topic", 0)
            queue.append(0, 0, 50, 7)
            table.touched(queue)
            table.write()
            synced = ensureDeferred(table.sync())
            world.run_for(10)
            self.successResultOf(synced)
            node.crash()
            node.start()
            table = QueueTable(node.disk, "/store", FILE_BYTES, ext_file_bytes=ext_file_bytes)
            table.load()
            self.assertEqual((table.keys(), table.total_units), ([("Topic", 0)], 1))

    def test_cut_before_anything_was_written(self) -> None:
        """A rebuild that begins again cuts queues that have no folder yet."""
        world = World(1)
        node = Node(world, SimNet(world), "broker")
        node.start()
        for ext_file_bytes in (None, FILE_BYTES):
            table = QueueTable(node.disk, f"/{ext_file_bytes}", FILE_BYTES, ext_file_bytes=ext_file_bytes)
            for number in range(7):
                queue = table.make("Topic", number % 2)
                queue.append(number // 2, 100 * number, 50, 0)
                table.touched(queue)
            table.cut(300)
            self.assertEqual([queue.end for queue in table], [2, 1])
