"""Queues with holes, puts that wait together, and settings that are not honoured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskLocked
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.groupcommit import GroupCommit
from rmq.store.layout import CQ_UNIT
from rmq.store.messages import GetStatus, PutStatus, StoreError
from rmq.store.store import MessageStore
from tests.store.support import Box


class HoleTests(SynchronousTestCase):
    def test_a_missing_file_is_stepped_over(self) -> None:
        """A consumer whose offset is in a lost file of its queue is sent to the next file, it does not hang there."""
        box = Box()
        store = box.open()
        box.put_many(9)
        self.patch(ConsumeQueue, "read", lambda *_: b"")
        result = store.get("Topic", 0, 1, 32)
        self.assertEqual((result.status, result.messages), (GetStatus.OFFSET_FOUND_NULL, []))
        self.assertGreater(result.next_begin_offset, 1)
        self.assertEqual((result.min_offset, result.max_offset), (0, 3))
        box.stop()

    def test_a_unit_that_points_behind_the_log(self) -> None:
        """A unit whose record is not there, or would cross the log's end, is skipped; a pull never fails over it."""
        box = Box()
        store = box.open()
        box.put_many(9)
        end = store.end_offset
        for phy_offset, size in ((end - 50, 100), (end + 4096, 100), (16384 - 50, 100)):
            units = CQ_UNIT.pack(phy_offset, size, 0)
            self.patch(ConsumeQueue, "read", lambda *_, units=units: units)
            result = store.get("Topic", 0, 1, 1)
            self.assertEqual(result.messages, [], (phy_offset, result.status))
        box.stop()


class StopTests(SynchronousTestCase):
    def test_a_store_that_was_never_started(self) -> None:
        """A broker that fails between load and start has not stopped cleanly: what a crash left is recovered again."""
        box = Box()
        box.open()
        box.put_many(9)
        box.kill()
        box.open(start=False)
        before = {path: box.disk.read_whole(f"/store/{path}") for path in ("abort", "checkpoint")}
        box.stop()
        self.assertEqual({path: box.disk.read_whole(f"/store/{path}") for path in before}, before)


class RocksDBTests(SynchronousTestCase):
    def test_a_store_in_rocksdb_is_refused(self) -> None:
        """A store whose queues or tables are in RocksDB (5.x) is refused, untouched: here it would have none."""
        for folder in ("consumequeue", "config/topics", "config/consumerOffsets"):
            box = Box()
            box.disk.make_dirs(f"/store/{folder}")
            box.disk.write_atomic(f"/store/{folder}/CURRENT", b"MANIFEST-000005\n")
            error = self.assertRaises(StoreError, box.open)
            self.assertIn(f"/store/{folder} is in RocksDB", str(error))
            self.assertFalse(box.disk.exists("/store/abort"))


class ManyPutsTests(SynchronousTestCase):
    def test_puts_of_one_turn_share_a_timer(self) -> None:
        """While one waits for slaves, puts of one turn ask once: a timer for each would cost what they save."""
        clock = Clock()
        asked: list[int] = []
        first: Deferred[PutStatus] = Deferred()

        def slaves(offset: int, _deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
            asked.append(offset)
            return PutStatus.PUT_OK if len(asked) > 1 else first

        sync: Any = SimpleNamespace(flushed=0, request=lambda: None)
        completion = GroupCommit(clock, StoreConfig(broker_role=BrokerRole.SYNC_MASTER), sync)
        replication: Any = SimpleNamespace(wait_for_slaves=slaves)
        completion.replication = replication
        waiting: list[Deferred[PutStatus]] = [Deferred() for _ in range(5)]
        for number, done in enumerate(waiting, 1):
            completion.wait(100 * number, done)
        self.assertEqual((asked, len(clock.getDelayedCalls())), ([100], 1))
        clock.advance(0)
        first.callback(PutStatus.PUT_OK)
        self.assertEqual(
            (asked, [self.successResultOf(done) for done in waiting]), ([100, 500], [PutStatus.PUT_OK] * 5)
        )
        completion.wait(600, Deferred())
        self.assertEqual(asked[2:], [600], "nobody waits any more, and this one asked in its own turn")

    def test_an_fsync_answers_in_its_own_turn(self) -> None:
        """A put that waits for the disk is answered when the fsync is, in the same turn, and all share one timer."""
        clock = Clock()
        sync: Any = SimpleNamespace(request=lambda: None)
        completion = GroupCommit(clock, StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH), sync)
        timers: set[object] = set()
        for end in range(100, 1100, 100):
            done: Deferred[PutStatus] = Deferred()
            completion.wait(end, done)
            timers.update(clock.getDelayedCalls())
            completion.synced(end)
            self.assertIs(self.successResultOf(done), PutStatus.PUT_OK)
            clock.advance(0.001)
        self.assertEqual(len(timers), 1)


class ConfigTests(SynchronousTestCase):
    def test_several_folders(self) -> None:
        """Apache 5.x spreads a log over folders; whoever configures that is told at the start that it is not done."""
        for folder, keys in (("/a,/b", ["storePathCommitLog"]), ("/a", [])):
            found = StoreConfig(store_path_commit_log=folder).unsupported()
            self.assertEqual([key for key, _ in found], keys)


class RootTests(SynchronousTestCase):
    def test_no_use(self) -> None:
        """A folder that cannot be made is reported with the key; a store that is in use with its lock."""
        box = Box()
        box.disk.make_dirs("/data")
        box.disk.write_atomic("/data/file", b"")
        store = MessageStore(box.disk, Clock(), attrs.evolve(box.config, store_path_root_dir="/data/file/store"))
        error = self.assertRaises(StoreError, store.load)
        self.assertTrue(str(error).startswith("storePathRootDir=/data/file/store cannot be used: "), error)
        box.open()
        second = MessageStore(box.disk, Clock(), box.config)
        self.assertRaises(DiskLocked, second.load)
