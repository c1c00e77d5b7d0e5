"""What `checkpoint` and `checkpoint.rmq` promise to the next start."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.sim.inode import CrashOdds
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store import layout
from rmq.store.checkpoint import SAFETY_MS, Checkpoint, RecoveryPoint, RecoveryPointFile
from rmq.store.index import IndexState
from rmq.store.layout import CHECKPOINT
from rmq.store.store import MessageStore
from tests.store.support import ROOT, Box, all_records, log_events, message


def progress(offset: int) -> RecoveryPoint:
    return RecoveryPoint(
        segment_bytes=16384,
        queue_file_bytes=400,
        offset=offset,
        anchor_phy=offset - 100,
        anchor_size=100,
        anchor_timestamp=1_700_000_000_000 + offset,
        queue_units=offset // 100,
        is_end=False,
        index=IndexState(),
    )


class ProgressFileTests(SynchronousTestCase):
    def test_two_halves_in_turn(self) -> None:
        """
        A power failure while progress is recorded leaves this record or the one before, on disks that write as little
        as one byte at once too: else the next start would read the whole log, and a slave fetch all of it again.
        """
        for sector_bytes in (512, 64, 1):
            found = set()
            for seed in range(40):
                world = World(seed)
                node = Node(world, SimNet(world), "broker")
                node.start()
                disk = node.disk
                disk.odds = CrashOdds(kept=0.1, torn=0.8, garbage=0.05)
                disk.sector_bytes = lambda path, size=sector_bytes: size  # type: ignore[misc]
                disk.make_dirs(ROOT)
                file = RecoveryPointFile(disk, ROOT)
                self.assertIsNone(file.load())
                disk.sync_dir(ROOT)
                last = 3 + seed % 2
                for number in range(1, last):
                    file.write(progress(number * 1000)).sync_now()
                file.write(progress(last * 1000))
                node.crash()
                node.start()
                loaded = RecoveryPointFile(disk, ROOT).load()
                assert loaded is not None
                self.assertIn(loaded, (progress(last * 1000), progress((last - 1) * 1000)))
                found.add(last - loaded.offset // 1000)
            self.assertEqual(found, {0, 1}, f"sectors of {sector_bytes} bytes")


class CheckpointTests(SynchronousTestCase):
    def test_margin(self) -> None:
        """Apache's broker takes its checkpoint for three seconds younger than what is surely on disk, and so do we."""
        self.assertEqual(SAFETY_MS, 3000)
        self.assertEqual(Checkpoint(physic_timestamp=10_000, logics_timestamp=9_000).min_timestamp, 6_000)
        self.assertEqual(Checkpoint(physic_timestamp=10_000, logics_timestamp=2_000).min_timestamp, 0)

    def test_start_after_a_crash_of_apache(self) -> None:
        """A start reads from the file whose first record is more than three seconds older than the checkpoint."""
        for later_ms, read_from in ((2999, 0), (3000, 16384)):
            box = Box()
            box.open()
            box.put_many(60)
            box.run(100)
            second = box.put(message(60, body=b"x" * 12_000))[0]
            self.assertEqual(second.phy_offset, 16384)
            box.run(2)
            box.kill()
            box.node.start()
            box.disk.delete(f"{ROOT}/{layout.PROGRESS_FILE}")
            time_ms = second.store_timestamp + later_ms
            box.disk.open(layout.checkpoint_path(ROOT)).write_at(0, CHECKPOINT.pack(time_ms, time_ms, time_ms))
            box.kill()
            events = log_events(self)
            box.open()
            (event,) = [event for event in events if "recovered" in event["log_format"]]
            self.assertEqual(event["read_from"], read_from)


class AnchorTests(SynchronousTestCase):
    def tags(self, store: MessageStore) -> dict[int, int]:
        """Return the tags code that a consumer's filter sees, by place in the log."""
        return {
            one.phy_offset: unit[2]
            for key, records in all_records(store).items()
            for one in records
            if (queue := store._queues.get(*key)) is not None and (unit := queue.unit(one.queue_offset)) is not None
        }

    def test_log_of_another_time(self) -> None:
        """
        A commit log that was put in place of another, of the same shape but stored at other times, is read, though
        `checkpoint.rmq` knows its end: else consumers would filter its messages by the tags of others.
        """
        ours, other = Box(), Box()
        ours.open()
        ours.put_many(30, 100)
        ours.stop()
        other.open()
        other.run(100)
        store = other.store
        assert store is not None
        other.put(*(message(n, properties=message(n + 1).properties) for n in range(100, 130)))
        expected = self.tags(store)
        other.stop()
        path = f"{ROOT}/commitlog/{0:020d}"
        ours.node.start()
        ours.disk.open(path).write_at(0, other.disk.read_whole(path))
        ours.kill()
        ours.world.run_for(200)
        self.assertEqual(self.tags(ours.open()), expected)
