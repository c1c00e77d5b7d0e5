"""What thousands of queues cost at a stop and at a start: counted in system calls, not in seconds."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.disk import SimDisk, SimFileSystem
from rmq.store.consumequeue import LOOK_BYTES, ConsumeQueue
from rmq.store.layout import CQ_UNIT, CQ_UNIT_BYTES, file_name
from rmq.store.openfiles import OpenFiles
from tests.seeds import SEED
from tests.store.support import ROOT, SMALL, Box, message

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
        """However many queues there are, a clean stop syncs all of them at once."""
        self.fill()
        systems = Counted(self, SimFileSystem, "sync")
        folders = Counted(self, SimDisk, "sync_dir_soon")
        self.box.stop()
        self.assertEqual((len(systems.calls), len(folders.calls)), (1, 0))

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
