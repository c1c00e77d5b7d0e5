"""What thousands of queues cost at a stop and at a start: counted in system calls, not in seconds."""

from __future__ import annotations

import random
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.disk import SimDisk, SimFile, SimFileSystem
from rmq.store import checkpointer
from rmq.store.checkpointer import WRITE_AT_ONCE
from rmq.store.consumequeue import LOOK_BYTES, TAIL_UNITS, ConsumeQueue
from rmq.store.indexfile import SLOTS_OF_PAGE
from rmq.store.layout import CQ_UNIT, CQ_UNIT_BYTES, file_name
from rmq.store.messages import GetStatus
from rmq.store.openfiles import OpenFiles
from rmq.store.retention import CORRECT_AT_ONCE
from tests.seeds import SEED
from tests.store.support import ROOT, SMALL, Box, append, message

QUEUES = 40


class Counted:
    """Counts the calls of a method of the simulated disk, and lets them through."""

    def __init__(self, case: SynchronousTestCase, kind: type, name: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        original = getattr(kind, name)

        def call(*args: Any) -> Any:
            self.calls.append(args[1:])
            return original(*args)

        case.patch(kind, name, call)


class ManyQueuesCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open(mapped_file_size_consume_queue=100_000)

    def fill(self, rounds: int = 1) -> None:
        for number in range(rounds * QUEUES):
            self.box.put(message(number, topic=f"Topic{number % QUEUES // 8}", queue_id=number % 8))

    def ends(self) -> dict[tuple[str, int], int]:
        assert self.box.store is not None
        return {queue: self.box.store.max_offset(*queue) for queue in self.box.store.queues()}


class OneSyncTests(ManyQueuesCase):
    def test_a_stop_syncs_the_file_system(self) -> None:
        """However many queues there are, a clean stop syncs all of them at once; and the folder of the index."""
        self.fill()
        systems = Counted(self, SimFileSystem, "sync")
        folders = Counted(self, SimDisk, "sync_dir_soon")
        self.box.stop()
        self.assertEqual((len(systems.calls), len(folders.calls)), (1, 1))

    def test_what_a_stop_has_synced_survives(self) -> None:
        """After the stop a power failure takes nothing, whatever the seed."""
        for seed in range(10):
            self.box = Box(seed)
            self.store = self.box.open()
            self.fill(2)
            before = self.ends()
            self.box.stop()
            self.box.node.crash()
            self.box.open()
            self.assertEqual(self.ends(), before, f"seed {seed}")

    def test_a_power_failure_after_a_checkpoint(self) -> None:
        """What `checkpoint.rmq` says to be synced is, though one call has synced it."""
        for seed in range(10):
            self.box = Box(seed)
            self.store = self.box.open()
            self.fill()
            self.box.run(61)
            synced = self.ends()
            self.fill()
            self.box.reopen("crash")
            for queue, end in self.ends().items():
                self.assertGreaterEqual(end, synced[queue], f"seed {seed}")

    def test_without_the_system_call(self) -> None:
        """Where a file system cannot be synced as a whole, each file and each folder is."""
        self.patch(SimDisk, "file_system", lambda disk, path: None)
        self.store = self.box.reopen("stop")
        self.fill()
        folders = Counted(self, SimDisk, "sync_dir_soon")
        before = self.ends()
        self.box.stop()
        self.assertGreaterEqual(len(folders.calls), QUEUES)
        self.box.node.crash()
        self.box.open()
        self.assertEqual(self.ends(), before)

    def test_another_file_system_below(self) -> None:
        """Where one topic lies on another disk, each file is synced."""
        self.fill()
        self.patch(SimFileSystem, "holds", lambda system, path: not path.endswith("/Topic3"))
        self.box.reopen("stop")
        self.fill()
        systems = Counted(self, SimFileSystem, "sync")
        self.box.stop()
        self.assertEqual(systems.calls, [])

    def test_a_failed_sync_stops_the_store(self) -> None:
        """It counts as the failed fsync of a file does: the store takes no more messages."""
        self.fill()
        self.box.disk.sync_fails = lambda path: path.endswith("/Topic2/3")
        self.box.run(61)
        self.assertFalse(self.store.is_writable)
        self.assertIn("Topic2/3: cannot fsync", str(self.store.refuses_because))


class StartTests(ManyQueuesCase):
    def test_a_start_opens_each_file_once(self) -> None:
        """After a clean stop, and after a kill, each queue's file is opened once, however many bytes it may hold."""
        for how in ("stop", "kill"):
            self.fill(2)
            self.box.run(70)
            getattr(self.box, how)()
            opened = Counted(self, SimDisk, "open")
            self.box.open()
            paths = [path for (path,) in opened.calls if "/consumequeue/" in path]
            self.assertEqual(len(paths), QUEUES, how)
            self.assertEqual(set(self.ends().values()), {2 if how == "stop" else 4})

    def test_units_behind_the_checkpoint_are_made_again(self) -> None:
        """After a kill queues have what the log has, also those that had grown since the last checkpoint."""
        self.fill()
        self.box.run(70)
        self.fill()
        self.store.write_buffers()
        before = self.ends()
        self.box.reopen("kill")
        self.assertEqual(self.ends(), before)


class LookTests(SynchronousTestCase):
    def test_the_end_is_where_a_search_finds_it(self) -> None:
        """The last page of a file tells where its units end, whatever lies behind, as a search in all of it does."""
        draw = random.Random(SEED)
        for number in range(120):
            box = Box(number, **SMALL)
            box.node.start()
            box.disk.make_dirs(f"{ROOT}/q")
            units = draw.choice((0, 1, 2, 5, 203, 204, 205, 206, 500))
            size = draw.choice((units * CQ_UNIT_BYTES or CQ_UNIT_BYTES, 20_000, 200_000))
            file = box.disk.create_sparse(f"{ROOT}/q/{file_name(0)}", size)
            data = b"".join(CQ_UNIT.pack(n * 100, 100, n) for n in range(units))[:size]
            file.write_at(0, data)
            if draw.random() < 0.4 and len(data) + 200 < size:
                place = draw.randrange(units, (size - 100) // CQ_UNIT_BYTES) * CQ_UNIT_BYTES
                file.write_at(place, draw.choice((bytes(50), b"\xff" * 50)))
            file.close()
            queue = ConsumeQueue(OpenFiles(box.disk, 9), f"{ROOT}/q", "Topic", 0, size)
            self.assertTrue(queue.load([0]))
            why = f"seed {SEED}, number {number}: {units} units in {size} bytes"
            self.assertEqual(queue.end, len(data) // CQ_UNIT_BYTES, why)
            self.assertEqual(queue.max_phy, len(data) // CQ_UNIT_BYTES * 100 if data else -1, why)
            queue.cut(queue.end * 100)
            self.assertEqual(queue.end, len(data) // CQ_UNIT_BYTES, why)
            if queue.starts:
                whole = box.disk.read_whole(queue.path(0))
                self.assertEqual(whole, data.ljust(size, b"\0"), f"{why}: only zeros are left behind the end")
                queue.correct_min(250)
                self.assertEqual(queue.min, min(3, queue.end), why)

    def test_a_unit_that_continues_nothing(self) -> None:
        """A last unit that points in front of the one before it is not trusted."""
        box = Box()
        box.node.start()
        box.disk.make_dirs(f"{ROOT}/q")
        file = box.disk.create_sparse(f"{ROOT}/q/{file_name(0)}", LOOK_BYTES)
        for number, phy_offset in enumerate((1000, 2000, 0)):
            file.write_at(number * CQ_UNIT_BYTES, CQ_UNIT.pack(phy_offset, 100, 0))
        file.close()
        queue = ConsumeQueue(OpenFiles(box.disk, 9), f"{ROOT}/q", "Topic", 0, LOOK_BYTES)
        queue.load([0])
        self.assertFalse(queue.is_sound)
        queue.cut(5000)
        self.assertEqual((queue.end, queue.max_phy), (2, 2100))
        self.assertRaises(DiskError, box.disk.open, f"{ROOT}/q/{file_name(LOOK_BYTES)}")


class KilledTests(ManyQueuesCase):
    def test_what_the_log_makes_again_is_not_written_again(self) -> None:
        """After a kill neither queues that had grown since the checkpoint nor new ones cost more than a look."""
        self.fill()
        self.box.run(70)
        self.fill()
        self.box.put(*(message(number, topic="New", queue_id=number) for number in range(QUEUES)))
        self.store.write_buffers()
        before = self.ends()
        self.box.kill()
        files = [Counted(self, SimDisk, name) for name in ("open", "create_sparse", "delete")]
        self.box.open()
        paths = [path for counted in files for (path, *_) in counted.calls if "/consumequeue/" in path]
        self.assertEqual(len(paths), 2 * QUEUES)
        self.assertEqual(self.ends(), before)

    def test_a_power_failure_after_a_checkpoint_of_what_was_found(self) -> None:
        """Files that a killed process had made are on disk, names included, once `checkpoint.rmq` counts them."""
        for seed in range(10):
            self.box = Box(seed)
            self.store = self.box.open()
            self.patch(SimDisk, "file_system", lambda disk, path: None)
            self.fill(3)
            self.store.write_buffers()
            before = self.ends()
            self.box.reopen("kill")
            self.box.put(message(0))
            self.box.run(70)
            self.box.reopen("crash")
            self.assertGreaterEqual(self.ends().items(), before.items(), f"seed {seed}")

    def test_cut_without_a_look_into_the_file(self) -> None:
        """What is cut off and made again, or not, or differs leaves the queue that clearing the file would leave."""
        draw = random.Random(SEED)
        for number in range(150):
            box = Box(number, **SMALL)
            box.node.start()
            units = [(n * 100, 100, n) for n in range(draw.choice((1, 2, 3, 9, TAIL_UNITS, 25, 40)))]
            keep = draw.randint(0, len(units))
            same = draw.randint(0, len(units) - keep)
            more = [*units[keep : keep + same], *((n * 100, 99, 7) for n in range(keep + same, draw.randint(0, 50)))]
            steps = sorted(draw.randint(0, len(more)) for _ in range(2))
            expected = b"".join(CQ_UNIT.pack(*unit) for unit in (*units[:keep], *more))
            why = f"seed {SEED}, number {number}: {len(units)} units, {keep} kept, {same} made again of {len(more)}"
            for folder, file_bytes in (("q", 400), ("p", 4000)):
                files = OpenFiles(box.disk, 9)
                box.disk.make_dirs(f"{ROOT}/{folder}")
                first = ConsumeQueue(files, f"{ROOT}/{folder}", "Topic", 0, file_bytes)
                first.extend(b"".join(CQ_UNIT.pack(*unit) for unit in units), units[-1][0] + 100)
                first.write()
                queue = ConsumeQueue(files, f"{ROOT}/{folder}", "Topic", 0, file_bytes)
                queue.load(first.starts)
                queue.cut(keep * 100)
                self.assertEqual((queue.end, queue.max_phy), (keep, keep * 100 or -1), why)
                for at, until in zip((0, *steps), (*steps, len(more)), strict=True):
                    for place, unit in enumerate(more[at:until], keep + at):
                        self.assertTrue(queue.append(place, *unit), why)
                    queue.write()
                queue.recovered()
                end = keep + len(more)
                self.assertEqual((queue.end, queue.next, queue.read(0, 50)), (end, end, expected[:file_bytes]), why)
                found = b"".join(box.disk.read_whole(queue.path(start)) for start in queue.starts)
                self.assertEqual(found, expected.ljust(len(found), b"\0"), why)
                # the file in which the cut was stays, also when nothing is left in it
                kept = min(-(-len(units) * CQ_UNIT_BYTES // file_bytes), keep * CQ_UNIT_BYTES // file_bytes + 1)
                files_left = max(kept, -(-len(expected) // file_bytes)) if expected else 0
                self.assertEqual(len(found), files_left * file_bytes, why)
                queue.correct_min(250)
                self.assertEqual(queue.min, min(3, end), why)

    def test_a_queue_that_begins_elsewhere(self) -> None:
        """A queue of which all was cut off may begin at another number."""
        box = Box()
        box.node.start()
        box.disk.make_dirs(f"{ROOT}/q")
        files = OpenFiles(box.disk, 9)
        first = ConsumeQueue(files, f"{ROOT}/q", "Topic", 0, 400)
        first.append(0, 1000, 100, 1)
        first.write()
        queue = ConsumeQueue(files, f"{ROOT}/q", "Topic", 0, 400)
        queue.load([0])
        queue.cut(1000)
        queue.append(41, 2000, 100, 2)
        queue.write()
        queue.recovered()
        self.assertEqual((queue.min, queue.end, queue.starts), (41, 42, [800]))
        self.assertEqual(box.disk.list_dir(f"{ROOT}/q"), [file_name(800)])


class TurnsTests(ManyQueuesCase):
    """Work on all queues is done in slices: a request waits for one of them at most."""

    def largest_step(self, kind: type, name: str, seconds: float) -> int:
        """Return how often a method was called in one turn at most, of all turns of some seconds."""
        counted = Counted(self, kind, name)
        largest, until = 0, self.box.world.now_s + seconds
        while self.box.world.now_s < until:
            before = len(counted.calls)
            self.box.world.step()
            largest = max(largest, len(counted.calls) - before)
        self.assertGreaterEqual(len(counted.calls), 5 * QUEUES)
        return largest

    def test_new_queues_are_written_in_slices(self) -> None:
        """The first write of many queues makes the files of a few in each turn."""
        self.box.put(*(message(number, topic=f"T{number}", queue_id=0) for number in range(5 * QUEUES)))
        self.assertLessEqual(self.largest_step(SimDisk, "create_sparse", 3), WRITE_AT_ONCE + 1)
        self.box.reopen("stop")
        self.assertEqual(len(self.ends()), 5 * QUEUES)

    def test_a_topic_is_deleted_between_them(self) -> None:
        """Queues that were deleted between two slices are not written, the others are."""
        self.box.put(*(message(number, topic=f"T{number}", queue_id=0) for number in range(5 * QUEUES)))
        created = Counted(self, SimDisk, "create_sparse")
        self.box.world.run_until(lambda: len(created.calls) > WRITE_AT_ONCE)
        self.store.delete_topic("T0")
        self.store.delete_topic(f"T{5 * QUEUES - 1}")
        self.box.run(3)
        self.box.reopen("kill")
        self.assertEqual(len(self.ends()), 5 * QUEUES - 2)

    def test_a_stop_between_them(self) -> None:
        """A stop writes what is left."""
        self.box.put(*(message(number, topic=f"T{number}", queue_id=0) for number in range(5 * QUEUES)))
        before = self.ends()
        created = Counted(self, SimDisk, "create_sparse")
        self.box.world.run_until(lambda: len(created.calls) > WRITE_AT_ONCE)
        self.box.reopen("stop")
        self.assertEqual(self.ends(), before)

    def test_the_index_is_written_in_slices(self) -> None:
        """A few pages of its slots in each turn, also while messages come; after a kill between them all is found."""
        self.patch(checkpointer, "PAGES_AT_ONCE", 4)

        def key(number: int) -> str:
            """One whose hash is anywhere."""
            return f"{number * 2_654_435_761 % (1 << 32):08x}"

        for end in ("kill", "stop"):
            with self.subTest(end):
                self.box = Box()
                store = self.box.open(max_hash_slot_num=64 * SLOTS_OF_PAGE, max_index_num=10_000)
                self.box.put(*(message(number, properties=f"KEYS\x01{key(number)}") for number in range(200)))
                written = Counted(self, SimFile, "write_at")
                largest, added, until = 0, 200, self.box.world.now_s + 3
                while self.box.world.now_s < until and (end == "stop" or len(written.calls) < 30):
                    before = len(written.calls)
                    self.box.world.step()
                    pages = [data for _, data in written.calls[before:] if len(data) == 4 * SLOTS_OF_PAGE]
                    largest = max(largest, len(pages))
                    if len(written.calls) > before and added < 220:
                        append(store, message(added, properties=f"KEYS\x01{key(added)}"))
                        added += 1
                self.assertGreaterEqual(len(written.calls), 30)
                self.assertGreater(added, 201 if end == "kill" else 210)
                self.assertEqual(largest, 4)
                store = self.box.reopen(end)
                for number in range(added):
                    found = store.query("Topic", key(number), 10, 0, 1 << 60)
                    self.assertEqual(len(found.messages), 1, number)

    def test_new_ones_come_faster(self) -> None:
        """The round ends, with everything written, though more queues get messages in each turn than it writes."""
        self.box.put(*(message(number, topic=f"T{number}", queue_id=0) for number in range(5 * QUEUES)))
        written = self.store._queues.write
        rounds: list[int] = []

        def write(most: int | None = None) -> None:
            written(most)
            if most is not None:
                first = 5 * QUEUES + len(rounds) * 2 * WRITE_AT_ONCE
                for number in range(first, first + 2 * WRITE_AT_ONCE):
                    append(self.store, message(number, topic=f"T{number}", queue_id=0))
                rounds.append(most)

        self.patch(self.store._queues, "write", write)
        self.box.run(1)
        self.assertEqual(len(rounds), 2 * 5 * QUEUES // WRITE_AT_ONCE)
        self.assertEqual(self.store._queues.unwritten, 0)

    def test_queues_follow_the_log_in_slices(self) -> None:
        """When the beginning of the log expires, the queues are corrected in slices, and consumers begin behind it."""
        for _ in range(30):
            self.box.put(*(message(n, topic=f"T{n}", queue_id=0) for n in range(5 * QUEUES)))
        self.box.run(1)
        self.patch(self.store._retention, "_config", attrs.evolve(self.box.config, file_reserved_time=0))
        self.store.delete_expired_soon()
        self.assertLessEqual(self.largest_step(ConsumeQueue, "delete_expired", 15), CORRECT_AT_ONCE)
        self.assertGreater(self.store.min_phy_offset, 0)
        for topic, queue_id in self.ends():
            low = self.store.min_offset(topic, queue_id)
            self.assertGreater(low, 0)
            self.assertIs(self.store.get(topic, queue_id, low, 1).status, GetStatus.FOUND)


class LargeLogTests(SynchronousTestCase):
    def test_what_was_never_written_is_not_read(self) -> None:
        """A start after a kill reads one chunk behind the end of the log, not the whole of its last file."""
        box = Box(mapped_file_size_commit_log=8 << 20)
        box.open()
        box.put_many(10)
        box.kill()
        read = Counted(self, SimFile, "read_at")
        store = box.open()
        self.assertLess(sum(size for _, size in read.calls), 4 << 20)
        self.assertEqual(store.max_offset("Topic", 0), 4)
