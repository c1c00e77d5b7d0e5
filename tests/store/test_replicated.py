"""A slave's store: bytes in any pieces, records as they become complete."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.disk import SimFile
from rmq.store import layout, store
from rmq.store.config import BrokerRole
from rmq.store.messages import StoreError
from rmq.store.store import MessageStore
from tests.store.support import SYNC, Box, all_records, log_events, message


class SlaveTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.master_box = Box()
        self.master = self.master_box.open()
        self.results = self.master_box.put_many(300)
        self.box = Box(2, broker_role=BrokerRole.SLAVE)
        self.slave = self.box.open()

    def bytes_of(self, start: int, end: int) -> bytes:
        return bytes(self.master.read(start, end - start))

    def feed(self, slave: MessageStore, until: int, rng: Random | None = None) -> None:
        """Append in pieces, which never reach over the end of a file."""
        while slave.end_offset < until:
            start = slave.end_offset
            size = rng.randint(1, 3000) if rng else 4096
            slave.append_raw(start, self.bytes_of(start, min(start + size, start + 16384 - start % 16384, until)))

    def test_damage_behind_a_step_of_the_masters_clock(self) -> None:
        """What comes behind a damaged record is dispatched although its times lie before those of what came before."""
        self.master_box.node.step_clock(-3600)
        damaged = self.master_box.put_many(60, 300)[0]
        log = bytearray()
        while piece := self.master.read(len(log), 4096):
            log += piece
        log[damaged.phy_offset + 4] ^= 1
        for at in range(0, len(log), 1024):
            self.slave.append_raw(at, bytes(log[at : at + 1024]))
        self.box.run(1)
        bodies = {record.body for records in all_records(self.slave).values() for record in records}
        self.assertEqual(len(bodies), 359)
        self.assertEqual(self.slave.damage, [(damaged.phy_offset, damaged.next_offset)])

    def fail_to_append(self, begin: int, end: int) -> None:
        def fails(file: SimFile, offset: int, data: bytes) -> None:
            raise DiskError(file.path, "Input/output error", offset)

        broken = self.patch(SimFile, "write_at", fails)
        with self.assertRaises(StoreError):
            self.slave.append_raw(begin, self.bytes_of(begin, end))
        broken.restore()

    def test_an_empty_log_whose_first_write_failed(self) -> None:
        """It is still empty, and begins with whatever file its master has come to meanwhile."""
        self.fail_to_append(0, 1000)
        self.assertEqual(self.slave.resume_offset, 0)
        start = self.master.end_offset - self.master.end_offset % 16384
        self.assertGreater(start, 0)
        self.slave.append_raw(start, self.bytes_of(start, self.master.end_offset))
        self.assertEqual((self.slave.min_phy_offset, self.slave.end_offset), (start, self.master.end_offset))
        self.assertEqual(self.box.disk.list_dir("/store/commitlog"), [f"{start:020d}"])

    def test_a_late_slave_whose_first_write_failed(self) -> None:
        """It stops cleanly, and a start goes on with the file that it had begun."""
        self.fail_to_append(16384, 17000)
        self.slave = self.box.reopen()
        self.assertEqual((self.slave.min_phy_offset, self.slave.end_offset), (16384, 16384))
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(self.slave.dispatched_offset, self.master.end_offset)

    def test_received_messages_count(self) -> None:
        """A slave counts its master's messages (putTps in brokerStatus); after a restart only those that come then."""
        self.feed(self.slave, self.master.end_offset)
        stored = 300, sum(result.size for result in self.results)
        self.assertEqual((self.slave.stored, self.master.stored), (stored, stored))
        self.box.stop()
        self.assertEqual(self.box.open().stored, (0, 0))

    def test_pieces_of_any_size(self) -> None:
        """However the bytes are cut, every message appears once its last byte is there, and not before."""
        seed = 11
        self.feed(self.slave, self.master.end_offset, Random(seed))
        self.assertEqual(all_records(self.slave), all_records(self.master), f"seed {seed}")

    def test_byte_by_byte(self) -> None:
        """A record that comes byte by byte is dispatched with its last one."""
        arrivals: list[tuple[str, int, int]] = []
        self.slave.on_arrival(lambda topic, queue_id, end, code: arrivals.append((topic, queue_id, end)))
        end = self.results[3].next_offset
        for at in range(end):
            before = len(arrivals)
            self.slave.append_raw(at, self.bytes_of(at, at + 1))
            whole = sum(result.next_offset <= at + 1 for result in self.results[:4])
            self.assertEqual(len(arrivals), whole)
            self.assertLessEqual(len(arrivals) - before, 1)
        self.assertEqual(arrivals, [("Topic", 0, 1), ("Topic", 1, 1), ("Topic", 2, 1), ("Topic", 0, 2)])
        self.assertEqual(self.slave.dispatched_offset, self.slave.end_offset)

    def test_log_begins_where_the_master_says(self) -> None:
        """A late slave begins with any file, and its queues begin at the numbers found there."""
        with self.assertRaises(StoreError) as caught:
            self.slave.append_raw(16383, b"x")
        self.assertIn("cannot begin at 16383", str(caught.exception))
        self.slave.append_raw(16384, self.bytes_of(16384, 20000))
        self.feed(self.slave, self.master.end_offset)
        for _ in range(2):
            self.assertEqual(self.slave.min_phy_offset, 16384)
            expected = {
                key: [one for one in records if one.phy_offset >= 16384]
                for key, records in all_records(self.master).items()
            }
            self.assertEqual(all_records(self.slave), expected)
            for key, records in expected.items():
                self.assertEqual(self.slave.min_offset(*key), records[0].queue_offset)
            self.slave = self.box.reopen("kill")

    def test_wrong_places_are_refused(self) -> None:
        """Bytes that do not continue the log, or reach over the end of a file, change nothing."""
        self.feed(self.slave, 1000)
        for offset, size in ((999, 10), (1001, 10), (0, 10), (1000, 16384), (-5, 3)):
            with self.assertRaises(StoreError) as caught:
                self.slave.append_raw(offset, b"\xff" * size)
            self.assertIn(str(offset), str(caught.exception))
        self.assertEqual(self.slave.end_offset, 1000)
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(all_records(self.slave), all_records(self.master))

    def test_the_last_record_again(self) -> None:
        """From its last whole record on a slave compares: the same bytes again are fine, others part the logs."""
        end = self.results[50].phy_offset + 60
        self.feed(self.slave, end)
        again = self.slave.resume_offset
        self.assertEqual(again, self.results[49].phy_offset)
        data = bytes(self.master.read(again, end - again + 20))
        self.slave.append_raw(again, data[:30])
        self.assertEqual(self.slave.end_offset, end)
        with self.assertRaises(StoreError) as caught:
            self.slave.append_raw(again + 30, data[30:40] + b"\xff" + data[41:])
        self.assertIn(
            f"diverged: this slave's, which ends at {end}, differs from its master's at {again + 40}",
            str(caught.exception),
        )
        self.slave.append_raw(again + 30, data[30:])
        self.assertEqual(self.slave.end_offset, end + 20)
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(all_records(self.slave), all_records(self.master))

    def test_no_record_is_known(self) -> None:
        """A slave that has dispatched nothing yet, or nothing near its end, compares too before it goes on."""
        for limit, first in ((8 << 20, 1), (1000, 2000)):
            self.patch(store, "MAX_COMPARED_BYTES", limit)
            box = Box(4, broker_role=BrokerRole.SLAVE, **SYNC)
            slave = box.open()
            self.assertEqual(slave.resume_offset, 0)
            self.feed(slave, 3000)
            self.assertEqual((slave.dispatched_offset, slave.resume_offset), (0, first))
            data = self.bytes_of(first, 3010)
            with self.assertRaises(StoreError) as caught:
                slave.append_raw(first, b"\xff" + data[1:])
            self.assertIn(f"differs from its master's at {first}", str(caught.exception))
            slave.append_raw(first, data)
            self.assertEqual(slave.end_offset, 3010)

    def test_dispatch_goes_on_while_the_master_is_asked(self) -> None:
        """What was asked for is compared, although the last record is another one when it comes."""
        box = Box(4, broker_role=BrokerRole.SLAVE, **SYNC)
        slave = box.open()
        self.feed(slave, 3000)
        asked = slave.resume_offset
        box.run(0.1)
        self.assertGreater(slave.resume_offset, asked)
        slave.append_raw(asked, self.bytes_of(asked, 3010))
        self.assertEqual(slave.end_offset, 3010)

    def test_stop_in_the_middle_of_a_record(self) -> None:
        """After a clean stop the slave goes on in front of the record that it had in part, and no marker is left."""
        middle = self.results[50].phy_offset + 60
        self.feed(self.slave, middle)
        self.assertEqual((self.slave.end_offset, self.slave.dispatched_offset), (middle, self.results[50].phy_offset))
        self.box.stop()
        self.assertFalse(self.box.disk.exists("/store/abort"))
        self.slave = self.box.open()
        self.assertEqual(self.slave.end_offset, self.results[50].phy_offset)
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(all_records(self.slave), all_records(self.master))

    def test_killed_in_the_middle_of_a_record(self) -> None:
        """Wherever a kill cuts a record, even in its last bytes, the slave asks for that record again."""
        victim = self.results[10]
        for cut in range(victim.phy_offset + 1, victim.next_offset, 5):
            box = Box(3, broker_role=BrokerRole.SLAVE)
            slave = box.open()
            self.feed(slave, cut)
            slave = box.reopen("kill")
            self.assertEqual(slave.end_offset, victim.phy_offset, cut)

    def test_sync_flush(self) -> None:
        """With SYNC_FLUSH a slave too shows only what is on its disk."""
        box = Box(4, broker_role=BrokerRole.SLAVE, **SYNC)
        slave = box.open()
        self.feed(slave, 3000)
        self.assertEqual(slave.max_offset("Topic", 0), 0)
        box.run(0.1)
        self.assertGreater(slave.max_offset("Topic", 0), 0)
        self.assertEqual(slave.flushed_offset, 3000)

    def test_damaged_bytes(self) -> None:
        """Bytes that are no record are logged once, and skipped when an intact record follows."""
        victim = self.results[5]
        self.feed(self.slave, victim.phy_offset)
        events = log_events(self)
        for start in range(0, victim.size, 10):
            self.slave.append_raw(victim.phy_offset + start, b"\xff" * min(10, victim.size - start))
        self.assertEqual(self.slave.dispatched_offset, victim.phy_offset)
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(self.slave.dispatched_offset, self.slave.end_offset)
        self.assertEqual(self.slave.damage, [(victim.phy_offset, victim.next_offset)])
        logged = [event["log_format"].split("{")[0] for event in events if "damaged" in event["log_format"]]
        self.assertEqual(logged, ["commit log damaged at ", "skipped damaged bytes "])
        self.assertEqual(self.slave.max_offset("Topic", 2), self.master.max_offset("Topic", 2))

    def test_a_hole_is_compared(self) -> None:
        """
        A write that failed left zeros before intact records, and the process was killed: the master has more.

        Without that all but the last record would be taken for equal, and the slave would lack messages unnoticed.
        """
        self.feed(self.slave, self.results[299].next_offset)
        hole = self.results[280]
        start = hole.phy_offset - hole.phy_offset % 16384
        path = layout.join(layout.commit_log_dir(self.box.config.store_path_root_dir), layout.file_name(start))
        file = self.box.disk.open(path)
        file.write_at(hole.phy_offset - start, bytes(hole.next_offset - hole.phy_offset))
        file.close()
        self.slave = self.box.reopen("kill")
        self.assertEqual(self.slave.damage, [(hole.phy_offset, hole.next_offset)])
        self.assertEqual(self.slave.resume_offset, hole.phy_offset)
        error = self.assertRaises(
            StoreError, self.slave.append_raw, hole.phy_offset, self.bytes_of(hole.phy_offset, hole.next_offset)
        )
        self.assertIn("the logs have diverged", str(error))

    def test_full_disk(self) -> None:
        """Without room the bytes are refused and can be sent again later."""
        self.feed(self.slave, 16384)
        self.box.disk.capacity_bytes -= self.slave.disk_usage.free_bytes
        with self.assertRaises(StoreError):
            self.slave.append_raw(16384, self.bytes_of(16384, 17000))
        self.assertEqual(self.slave.end_offset, 16384)
        self.box.disk.recover()
        self.feed(self.slave, self.master.end_offset)
        self.assertEqual(all_records(self.slave), all_records(self.master))

    def test_nothing_before_the_start(self) -> None:
        """A store that is not running takes no bytes."""
        box = Box(5, broker_role=BrokerRole.SLAVE)
        slave = box.open(start=False)
        with self.assertRaises(StoreError):
            slave.append_raw(0, b"x")


class ReadTests(SynchronousTestCase):
    def test_reading_the_log(self) -> None:
        """A master's log can be read from its beginning to its end, file by file, and not in front of it."""
        box = Box()
        store = box.open()
        box.put_many(300)
        offset, pieces = 0, []
        while piece := store.read(offset, 1000):
            self.assertTrue(offset // 16384 == (offset + len(piece) - 1) // 16384)
            pieces.append(piece)
            offset += len(piece)
        self.assertEqual(offset, store.end_offset)
        self.assertEqual(store.read(store.end_offset + 5, 10), b"")
        with self.assertRaises(StoreError):
            store.read(-1, 10)

    def test_promoted_slave_goes_on_counting(self) -> None:
        """A slave that is opened as a master gives out the next numbers."""
        box = Box()
        store = box.open()
        box.put_many(10)
        log = bytes(store.read(0, 10000))
        other = Box(2, broker_role=BrokerRole.SLAVE)
        other.open().append_raw(0, log)
        other.reopen("stop", broker_role=BrokerRole.ASYNC_MASTER)
        self.assertEqual(other.put(message(0))[0].queue_offset, 4)
