"""What is deleted, and when."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import LogLevel, capturedLogs, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError, DiskUsage
from rmq.store.check import check_store
from rmq.store.config import BrokerRole
from rmq.store.messages import StoreError
from rmq.store.retention import hours_of
from rmq.store.store import MessageStore
from tests.store.support import ROOT, SYNC, Box, all_records, message

ALL_DAY = ";".join(map(str, range(24)))
NEVER = "99"


class RetentionTests(SynchronousTestCase):
    def open(self, **config: Any) -> MessageStore:
        self.box = Box(**config)
        self.store = self.box.open()
        self.box.put_many(330)
        return self.store

    def names(self, *folder: str) -> list[str]:
        names: list[str] = self.box.disk.list_dir("/".join((ROOT, *folder)))
        return names

    def test_hours(self) -> None:
        """deleteWhen is a list of hours; 24 and more mean never, text is refused by key."""
        self.assertEqual(hours_of("04"), {4})
        self.assertEqual(hours_of("04;16;"), {4, 16})
        self.assertEqual(hours_of("99"), {99})
        with self.assertRaises(StoreError) as caught:
            hours_of("four")
        self.assertIn("deleteWhen='four'", str(caught.exception))

    def test_expired_files_go_at_their_hour(self) -> None:
        """Files older than fileReservedTime go, with queue and index files that only point there; the last stays."""
        store = self.open(file_reserved_time=1, delete_when=ALL_DAY)
        self.box.run(3500)
        self.assertEqual(store.min_phy_offset, 0)
        before = all_records(store)
        self.box.run(200)
        self.assertEqual(store.min_phy_offset, 49152)
        self.assertEqual(self.names("commitlog"), [f"{49152:020d}"])
        for queue_id in range(3):
            first = min(store.min_offset("Topic", queue_id) * 20 // 400, 5)
            expected = [f"{start * 400:020d}" for start in range(first, 6)]
            self.assertEqual(self.names("consumequeue", "Topic", str(queue_id)), expected)
        self.assertEqual(len(self.names("index")), 1)
        for key, records in all_records(store).items():
            self.assertEqual(records, [one for one in before[key] if one.phy_offset >= 49152])
            self.assertEqual(store.min_offset(*key), records[0].queue_offset)
        self.box.stop()
        self.assertEqual(check_store(self.box.disk, ROOT, self.box.config), [])
        store = self.box.open()
        self.assertEqual(store.min_offset("Topic", 0), all_records(store)["Topic", 0][0].queue_offset)

    def test_to_the_millisecond(self) -> None:
        """A file that is just as old as fileReservedTime goes."""
        store = self.open(file_reserved_time=1, delete_when=ALL_DAY)
        self.box.run(3599)
        self.assertEqual(store.min_phy_offset, 0)
        self.box.run(2)
        self.assertEqual(store.min_phy_offset, 49152)

    def test_to_the_percent(self) -> None:
        """Messages are taken while the disk is as full as diskSpaceWarningLevelRatio says, and refused beyond it."""
        store = self.open(delete_when=NEVER, disk_space_warning_level_ratio=80)
        for free, is_writable in ((20, True), (19, False), (20, True)):
            self.patch(type(self.box.disk), "usage", lambda disk, path, free=free: DiskUsage(100, free))
            self.box.run(11)
            self.assertIs(store.is_writable, is_writable, f"{free} % free")

    def test_nothing_that_is_not_synced(self) -> None:
        """A file that consumers have read is not deleted before it is on disk: `flushed` would speak of lost bytes."""
        self.box = Box(file_reserved_time=0, delete_when=ALL_DAY)
        store = self.box.open()
        self.box.disk.sync_s = (50.0, 50.0)
        self.box.put_many(330)
        self.box.run(40)
        self.assertEqual((store.min_phy_offset, store.dispatched_offset), (0, store.end_offset))

    def test_nothing_that_consumers_have_not_seen(self) -> None:
        """A file behind damage, where a slave's queues wait for the next intact record, is not deleted unseen."""
        self.box = Box(file_reserved_time=0, delete_when=ALL_DAY, broker_role=BrokerRole.SLAVE)
        store = self.box.open()
        store.append_raw(0, b"\x01" * 16384)
        store.append_raw(16384, b"\x01" * 100)
        self.box.run(40)
        self.assertEqual((store.flushed_offset, store.dispatched_offset, store.min_phy_offset), (16484, 0, 0))

    def test_not_at_other_hours(self) -> None:
        """Expired files stay until the hour comes, as long as there is room."""
        store = self.open(file_reserved_time=1, delete_when=NEVER)
        self.box.run(3 * 3600)
        self.assertEqual(store.min_phy_offset, 0)
        store.delete_expired_soon()
        self.box.run(11)
        self.assertEqual(store.min_phy_offset, 49152)

    def test_little_room(self) -> None:
        """Above diskMaxUsedSpaceRatio expired files go at any hour, unexpired ones stay."""
        store = self.open(file_reserved_time=1, delete_when=NEVER)
        self.use(0.80)
        self.box.run(600)
        self.assertEqual(store.min_phy_offset, 0)
        self.box.run(3600)
        self.assertEqual(store.min_phy_offset, 49152)

    def test_no_room(self) -> None:
        """Above diskSpaceCleanForciblyRatio unexpired files go too, unless that is forbidden."""
        store = self.open(delete_when=NEVER)
        self.use(0.88)
        events = EventLoggingObserver()
        globalLogPublisher.addObserver(events)
        self.addCleanup(globalLogPublisher.removeObserver, events)
        self.box.run(11)
        self.assertEqual(store.min_phy_offset, 49152)
        alarms = [event for event in events if "before its time" in str(event["log_format"])]
        self.assertEqual({event["log_level"] for event in alarms}, {LogLevel.error})
        self.assertEqual(store.health().early_deletions, len(alarms))
        store = self.open(delete_when=NEVER, clean_file_forcibly_enable=False)
        self.use(0.88)
        self.box.run(11)
        self.assertEqual(store.min_phy_offset, 0)

    def test_other_limits(self) -> None:
        """Limits of age and space may change while the store is open; wrong ones change nothing."""
        store = self.open(file_reserved_time=72, delete_when=NEVER)
        self.box.run(3700)
        config = attrs.evolve(self.box.config, file_reserved_time=1)
        store.configure_retention(config)
        self.box.run(20)
        self.assertEqual(store.min_phy_offset, 0)
        self.assertRaises(StoreError, store.configure_retention, attrs.evolve(config, delete_when="four"))
        store.configure_retention(attrs.evolve(config, delete_when=ALL_DAY))
        self.box.run(20)
        self.assertEqual(store.min_phy_offset, 49152)

    def test_a_batch_at_a_time(self) -> None:
        """At most deleteFileBatchMax files go in one round."""
        store = self.open(file_reserved_time=0, delete_when=ALL_DAY, delete_file_batch_max=1)
        self.box.run(11)
        self.assertEqual(store.min_phy_offset, 16384)
        self.box.run(10)
        self.assertEqual(store.min_phy_offset, 32768)

    def test_nothing_that_is_not_on_disk(self) -> None:
        """A file that is not synced and seen by consumers is not deleted, however old."""
        self.box = Box(file_reserved_time=0, delete_when=ALL_DAY, **SYNC)
        store = self.box.open()
        self.box.disk.sync_s = (50.0, 50.0)
        for number in range(330):
            store.put(message(number))
        self.box.run(40)
        self.assertEqual(store.min_phy_offset, 0)
        self.box.run(300)
        self.assertEqual(store.min_phy_offset, 49152)

    def test_a_file_that_is_gone_already(self) -> None:
        """When somebody short of room deleted the oldest file by hand, the others still go at their hour."""
        store = self.open(file_reserved_time=1, delete_when=ALL_DAY)
        self.box.run(5)
        self.box.disk.delete(f"{ROOT}/commitlog/{0:020d}")
        self.box.run(3700)
        self.assertEqual(store.min_phy_offset, 49152)
        self.assertEqual(self.names("commitlog"), [f"{49152:020d}"])

    def test_a_deletion_that_half_failed(self) -> None:
        """A folder that could not be synced after a deletion is synced by the next one, and nothing is stuck."""
        store = self.open(file_reserved_time=1, delete_when=ALL_DAY)
        disk = type(self.box.disk)
        synced = disk.sync_dir
        failed: list[str] = []

        def fails_once(disk: Any, path: str) -> None:
            if path.endswith("commitlog") and not failed:
                failed.append(path)
                raise DiskError(path, "Too many open files")
            synced(disk, path)

        self.patch(disk, "sync_dir", fails_once)
        with capturedLogs() as events:
            self.box.run(3720)
        self.assertEqual((failed, store.min_phy_offset), ([f"{ROOT}/commitlog"], 49152))
        self.assertEqual(len([event for event in events if isinstance(event.get("error"), DiskError)]), 1)

    def test_power_failure_while_deleting(self) -> None:
        """Files come back at most, and never with a hole between them."""
        for seed in range(20):
            self.box = Box(seed, file_reserved_time=0, delete_when=ALL_DAY)
            store = self.box.open()
            self.box.put_many(330)
            self.box.run(10.0 + seed / 100)
            self.box.crash()
            store = self.box.open()
            self.assertIn(store.min_phy_offset, (0, 16384, 32768, 49152))

    def use(self, ratio: float) -> None:
        """Let the disk be so small that this part of it is used."""
        self.box.run(2)
        used = self.box.disk.capacity_bytes - self.store.disk_usage.free_bytes
        self.box.disk.capacity_bytes = int(used / ratio)


class DeleteTopicTests(SynchronousTestCase):
    def test_queues_go_with_their_topic(self) -> None:
        """A deleted topic has no queues and no folder; the next message of that name begins at 0."""
        box = Box()
        store = box.open()
        box.put_many(9)
        box.run(2)
        store.delete_topic("Topic")
        self.assertEqual((store.queues(), store.max_offset("Topic", 0)), ([], 0))
        self.assertFalse(box.disk.exists(f"{ROOT}/consumequeue/Topic"))
        self.assertEqual(box.put_many(1)[0].queue_offset, 0)
        store = box.reopen("stop")
        self.assertEqual(store.max_offset("Topic", 0), 1)
