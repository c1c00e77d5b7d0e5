"""The search for records behind damage, where a file of the log is missing."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.scan import Search
from tests.sim.support import frame, message

SEGMENT = 4096


class Log:
    """Three files, of which the first two are not there."""

    segment_bytes = SEGMENT

    def __init__(self, record: bytes) -> None:
        self._last = record.ljust(SEGMENT, b"\0")

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes:
        return b"" if offset < 2 * SEGMENT else self._last[offset - 2 * SEGMENT :][:limit]


class MissingFileTests(SynchronousTestCase):
    def test_records_behind_missing_files_are_found(self) -> None:
        """What lies behind a lost file of the log is found: it must not be overwritten as if it were nothing."""
        record = frame(message("m", queue_id=0, offset=0, phy=2 * SEGMENT, body=b"x"))
        found = list(Search(Log(record), 0, 3 * SEGMENT).records())
        self.assertEqual([(offset, kept.size) for offset, kept in found], [(2 * SEGMENT, len(record))])
