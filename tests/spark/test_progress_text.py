"""What is printed while an audit runs."""

from __future__ import annotations

import io

from rmq_audit.cli.running import Printer, line
from twisted.trial.unittest import SynchronousTestCase


class LineTests(SynchronousTestCase):
    def test_bytes_rate_and_time_left(self) -> None:
        """Done of all, share, rate and the rest at that rate, whatever the size."""
        self.assertEqual(
            line("scan", 512_000_000, 2_000_000_000, 2.0), "scan: 512 MB of 2.00 GB (25 %), 256 MB/s, 6 s left"
        )
        self.assertEqual(line("drill", 0, 0, 1.0), "drill: 0 B of 0 B (100 %), 0 B/s, 0 s left")
        self.assertIn("2 h 46 min left", line("scan", 10**9, 10**13 + 10**9, 1.0))
        self.assertIn("8 min 20 s left", line("scan", 10**9, 501 * 10**9, 1.0))


class PrinterTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 100.0
        self.out = io.StringIO()

    def run_job(self, *, terminal: bool, seconds: int) -> list[str]:
        """A job of a thousand bytes a second, told of ten times a second."""
        printer = Printer(self.out, lambda: self.now, terminal=terminal)
        for tenth in range(10 * seconds + 1):
            printer("scan", 100 * tenth, 1000 * seconds)
            self.now += 0.1
        printer.close()
        return [part for part in self.out.getvalue().replace("\r", "\n").split("\n") if part.strip()]

    def test_a_terminal_sees_one_line_that_moves(self) -> None:
        """The line is written over, about five times a second, and wiped at the end."""
        lines = self.run_job(terminal=True, seconds=4)
        self.assertTrue(10 <= len(lines) <= 21, len(lines))
        self.assertNotIn("\n", self.out.getvalue())
        self.assertTrue(self.out.getvalue().endswith(" \r"))
        self.assertTrue(lines[-1].startswith("scan: "))

    def test_a_log_gets_a_line_now_and_then(self) -> None:
        """Every ten seconds, none for a job that is over in three; no carriage return."""
        self.assertEqual(self.run_job(terminal=False, seconds=3), [])
        lines = self.run_job(terminal=False, seconds=30)
        self.assertEqual(len(lines), 3)
        self.assertTrue(all(one.startswith("rmq-audit: scan: ") and one.endswith(" left") for one in lines), lines)
        self.assertNotIn("\r", self.out.getvalue())

    def test_a_job_may_be_repeated(self) -> None:
        """When done goes back, the rate is that of the new job."""
        printer = Printer(self.out, lambda: self.now, terminal=True)
        for at in (0, 1000):
            printer("scan", at, 1000)
            self.now += 100
        printer("scan", 0, 1000)
        self.now += 1
        printer("scan", 500, 1000)
        self.assertIn("500 B/s", self.out.getvalue().split("\r")[-1])
