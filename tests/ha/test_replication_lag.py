"""How far behind in time: lag of the log's end."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.status import MAX_MARKS, ReplicationLag


class ReplicationLagTests(SynchronousTestCase):
    def test_age_of_a_byte(self) -> None:
        """A byte is as old as the first mark behind it; what is not there yet has no age."""
        lag = ReplicationLag()
        for offset, now_s in ((100, 10.0), (200, 20.0), (300, 30.0)):
            lag.note(offset, now_s)
        self.assertEqual([lag.age_s(offset, 50.0) for offset in (0, 99, 100, 199, 250)], [40, 40, 30, 30, 20])
        self.assertEqual([lag.age_s(offset, 50.0) for offset in (300, 1000)], [0.0, 0.0])

    def test_a_log_that_rests(self) -> None:
        """Marks of the same end change nothing: what is not acknowledged gets older."""
        lag = ReplicationLag()
        for now_s in range(100):
            lag.note(500, float(now_s))
        self.assertEqual((len(lag), lag.age_s(499, 100.0)), (1, 100.0))

    def test_waiting_for_an_acknowledgement(self) -> None:
        """An acknowledgement took as long as the first byte that it covers has waited; catching up is no waiting."""
        lag = ReplicationLag()
        for offset, now_s in ((100, 1.0), (200, 2.0), (300, 3.0)):
            lag.note(offset, now_s)
        self.assertEqual(lag.waited_s(100, 300, 0.0, 3.5), 1.5)
        self.assertEqual(lag.waited_s(200, 300, 0.0, 3.5), 0.5)
        self.assertIsNone(lag.waited_s(200, 250, 0.0, 3.5), "the push is acknowledged in part only")
        self.assertIsNone(lag.waited_s(0, 300, 1.5, 3.5), "bytes from before the connection")
        self.assertIsNone(lag.waited_s(300, 300, 0.0, 3.5))

    def test_a_new_log(self) -> None:
        """When the log is replaced by a shorter one, nothing is taken for old that is not."""
        lag = ReplicationLag()
        lag.note(1000, 1.0)
        lag.note(50, 9.0)
        self.assertEqual(lag.age_s(10, 10.0), 1.0)

    def test_bounded(self) -> None:
        """However often the log grows, only so many lag are kept, and answers are off by a small part of the age."""
        lag = ReplicationLag()
        rng = random.Random(1)
        offset = 0
        times: list[tuple[int, float]] = []
        for number in range(50_000):
            offset += rng.randrange(1, 50)
            times.append((offset, number / 10))
            lag.note(offset, number / 10)
            self.assertLessEqual(len(lag), MAX_MARKS + 1)
        now_s = 5000.0
        for where, noted_s in times[:: len(times) // 50]:
            true_s = now_s - noted_s
            self.assertLessEqual(abs(lag.age_s(where - 1, now_s) - true_s), max(0.2, 0.1 * true_s), where)
        self.assertEqual(lag.age_s(offset - 1, now_s), now_s - times[-1][1])
