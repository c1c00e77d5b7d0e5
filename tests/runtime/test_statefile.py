"""State files that are read from their backup: what the log says."""

from __future__ import annotations

import os

from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import RealDisk
from rmq.runtime.disk.statefile import read_state


def parse(data: bytes) -> bytes:
    if data.startswith(b"?"):
        raise ValueError("not JSON")
    return data


class BackupTests(SynchronousTestCase):
    def test_the_log_says_why_the_backup_was_read(self) -> None:
        """After an accident the operator reads which file was unusable and why, and where its content is from."""
        disk = RealDisk(Clock())
        for content, reason in ((None, "is missing"), (b" \n", "is empty"), (b"?", ": not JSON")):
            path = os.path.abspath(f"{self.mktemp()}")
            if content is not None:
                disk.write_atomic(path, content)
            disk.write_atomic(f"{path}.bak", b"{}")
            with capturedLogs() as events:
                self.assertEqual(read_state(disk, path, parse), b"{}")
            (line,) = (formatEvent(event) for event in events)
            self.assertRegex(line, rf"^{path} ?{reason}; the previous content was read from {path}\.bak$")
            self.assertEqual(disk.read_whole(path), b"{}")
            self.assertEqual(disk.exists(f"{path}.broken"), content is not None)
