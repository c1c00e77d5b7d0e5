"""The search for records behind damage, where a file of the log is missing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import recovery, scan
from rmq.store.openfiles import zero_from
from rmq.store.scan import Search
from tests.sim.support import frame, message
from tests.store.support import ROOT, Box

SEGMENT = 4096


class Log:
    """Three files, of which the first two are not there."""

    segment_bytes = SEGMENT

    def __init__(self, record: bytes) -> None:
        self._last = record.ljust(SEGMENT, b"\0")

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes:
        return b"" if offset < 2 * SEGMENT else self._last[offset - 2 * SEGMENT :][:limit]

    def data_end(self, offset: int) -> int:
        return 2 * SEGMENT + len(self._last.rstrip(b"\0"))


class MissingFileTests(SynchronousTestCase):
    def test_records_behind_missing_files_are_found(self) -> None:
        """What lies behind a lost file of the log is found: it must not be overwritten as if it were nothing."""
        record = frame(message("m", queue_id=0, offset=0, phy=2 * SEGMENT, body=b"x"))
        found = list(Search(Log(record), 0, 3 * SEGMENT).records())
        self.assertEqual([(offset, kept.size) for offset, kept in found], [(2 * SEGMENT, len(record))])


class LostSectorTests(SynchronousTestCase):
    def test_a_record_without_one_sector_is_not_found(self) -> None:
        """
        A message of which a power failure took one disk sector, in the middle of its properties, is damage in every
        file of the log: the search behind other damage does not take it for the place where the log goes on.
        """
        sent = message("m", queue_id=0, offset=0, phy=2 * SEGMENT, body=b"x")
        record = frame(sent, properties=b"a\x01" + b"x" * 2000 + b"\x02")
        self.assertEqual(len(list(Search(Log(record), 0, 3 * SEGMENT).records())), 1)
        for sector in (512, 1024, 1536):
            lost = record[:sector] + bytes(512) + record[sector + 512 :]
            self.assertEqual(list(Search(Log(lost), 0, 3 * SEGMENT).records()), [], sector)


class ZeroTests(SynchronousTestCase):
    def test_the_log_says_how_many_bytes_were_cleared(self) -> None:
        """Recovery reports the bytes behind the end that were not zero, page by page, and only those are written."""
        box = Box()
        file = box.disk.create("/zeroed", 20_000)
        file.write_at(5000, b"torn")
        file.write_at(12_288, b"x" * 100)
        self.assertEqual(zero_from(file, 4096, 20_000), 104)
        self.assertEqual(file.read_at(0, 20_000), bytes(20_000))
        self.assertEqual(zero_from(file, 4096, 20_000), 0)


class MemoryTests(SynchronousTestCase):
    def test_recovery_writes_as_it_goes(self) -> None:
        """The units of a log that is read from its start after a crash are written in parts, not kept until the end."""
        self.patch(recovery, "WRITE_EVERY_BYTES", 1000)
        self.patch(scan, "CHUNK_BYTES", 2048)  # the compiled walk takes a chunk at once
        written: list[int] = []
        write = recovery.Recovery._write

        def counted(each: recovery.Recovery) -> None:
            written.append(each.dispatcher.dispatched)
            write(each)

        self.patch(recovery.Recovery, "_write", counted)
        box = Box()
        box.open()
        box.put_many(100)
        box.disk.delete_tree(f"{ROOT}/consumequeue")
        written.clear()
        store = box.reopen("kill")
        self.assertGreater(len(set(written)), 5)
        self.assertEqual(store.max_offset("Topic", 0), 34)

    def test_recovery_says_how_far_it_is(self) -> None:
        """A recovery that reads for minutes writes a line for each part of the log; a short one writes none."""
        self.patch(recovery, "WRITE_EVERY_BYTES", 1000)
        self.patch(scan, "CHUNK_BYTES", 2048)
        box = Box()
        box.open()
        box.put_many(100)
        self.assertEqual(self.reports(box), [])
        self.patch(recovery, "REPORT_EVERY_BYTES", 2500)
        reports = self.reports(box)
        self.assertGreater(len(reports), 2)
        self.assertEqual([each["start"] for each in reports], [0] * len(reports))
        offsets = [each["offset"] for each in reports]
        self.assertTrue(all(later - one >= 2500 for one, later in pairwise([0, *offsets])), offsets)

    def reports(self, box: Box) -> list[dict[str, Any]]:
        """Kill the store's process, delete its queues, and return the lines of the recovery about its progress."""
        box.disk.delete_tree(f"{ROOT}/consumequeue")
        with capturedLogs() as events:
            box.reopen("kill")
        return [event for event in events if event["log_format"].startswith("recovery has read")]
