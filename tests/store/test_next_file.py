"""The next file of the log, which is made while the last one still has room."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.store.messages import PutStatus
from tests.store.support import ROOT, Box, message

LOG = f"{ROOT}/commitlog"
FIRST, SECOND = f"{0:020d}", f"{16384:020d}"


class NextFileTests(SynchronousTestCase):
    def begin(self, seed: int = 1, count: int = 92) -> None:
        """Open a store whose first file is nearly full after 92 messages."""
        self.box = Box(seed)
        self.store = self.box.open()
        self.box.put_many(40)
        self.box.run(2)
        self.box.put_many(count - 40)
        self.halts: list[str] = []
        self.box.disk.on_halt = self.halts.append

    def roll(self) -> None:
        (result,) = self.box.put(message(0, body=b"x" * 8000))
        self.assertIs(result.status, PutStatus.PUT_OK)
        self.assertGreater(self.store.end_offset, 16384)

    def test_made_ahead(self) -> None:
        """It is there, durable, before the message that needs it comes; that one waits for no disk."""
        self.begin(count=40)
        self.box.run(1)
        self.assertEqual(self.box.disk.list_dir(LOG), [FIRST])
        self.box.put_many(52)
        self.box.run(1)
        self.assertEqual(self.box.disk.list_dir(LOG), [FIRST, SECOND])
        self.roll()
        self.assertEqual(self.halts, [])

    def test_made_early_at_a_high_rate(self) -> None:
        """What will be full within two seconds gets its next file at once."""
        self.begin(count=40)
        self.box.put_many(20)
        self.box.run(1)
        self.assertEqual(self.box.disk.list_dir(LOG), [FIRST, SECOND])

    def test_no_room_ahead(self) -> None:
        """Without room nothing is left of it; it is made when it is needed and there is room."""
        self.begin()
        free = self.store.disk_usage.free_bytes
        self.box.disk.capacity_bytes -= free - 4096
        self.box.run(1)
        self.assertEqual(self.box.disk.list_dir(LOG), [FIRST])
        self.box.disk.recover()
        self.box.run(1)
        self.roll()
        self.assertEqual(self.box.disk.list_dir(LOG)[:2], [FIRST, SECOND])

    def test_needed_while_it_is_made(self) -> None:
        """A message that needs it before it is durable waits for the disk, as one without a file ahead."""
        self.begin()
        self.box.disk.sync_s = (5.0, 5.0)
        self.box.run(1)
        self.roll()
        self.assertEqual(self.halts, [f"{LOG}/{SECOND}", LOG])
        self.box.run(20)
        self.assertEqual(self.box.disk.list_dir(LOG)[:2], [FIRST, SECOND])

    def test_clean_stop(self) -> None:
        """It is deleted by a stop in order, whenever that comes."""
        for seconds in (0.6, 1.6, 10):
            self.begin()
            self.box.disk.sync_s = (1.0, 1.0)
            self.box.run(seconds)
            self.assertEqual(self.box.disk.list_dir(LOG), [FIRST, SECOND])
            self.box.stop()
            self.assertEqual(self.box.disk.list_dir(LOG), [FIRST])

    def test_kill_and_power_failure(self) -> None:
        """Whatever is left of it after a kill or a power failure, the log goes on where it ended."""
        for seed in range(10):
            for end in ("kill", "crash"):
                self.begin(seed)
                self.box.disk.sync_s = (0.2, 0.6)
                self.box.run(11 + 0.1 * seed)
                log_end = self.store.end_offset
                self.box.put_many(1)
                getattr(self.box, end)()
                self.store = self.box.open()
                self.assertGreaterEqual(self.store.end_offset, log_end, f"seed {seed}, {end}")
                self.roll()
                self.assertEqual(self.box.disk.list_dir(LOG), [FIRST, SECOND])
