"""Pauses between dials, and alarms that do not fill the log."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.alarms import MAX_REMEMBERED, Alarms
from rmq.ha.backoff import Backoff


class BackoffTests(SynchronousTestCase):
    def test_doubles_to_a_minute(self) -> None:
        """Five seconds at first, then twice as long, at most a minute, each a little longer by chance."""
        for seed in range(50):
            backoff = Backoff(random.Random(seed))
            pauses = [backoff.next_pause_s() for _ in range(8)]
            for pause, base in zip(pauses, (5, 10, 20, 40, 50, 50, 50, 50), strict=True):
                self.assertTrue(base <= pause <= min(base * 1.2, 60), f"seed {seed}: {pauses}")

    def test_health_begins_anew(self) -> None:
        """After a healthy connection the next pause is the first one."""
        backoff = Backoff(random.Random(1))
        for _ in range(5):
            backoff.next_pause_s()
        backoff.healthy()
        self.assertLess(backoff.next_pause_s(), 6.001)

    def test_slaves_do_not_march_in_step(self) -> None:
        """Two slaves of one master come back at different times."""
        first, second = Backoff(random.Random(1)), Backoff(random.Random(2))
        self.assertNotEqual(first.next_pause_s(), second.next_pause_s())


class AlarmsTests(SynchronousTestCase):
    def test_once_a_minute(self) -> None:
        """Repetitions within 60 s are counted, not written; the next line says how many there were."""
        alarms = Alarms()
        self.assertEqual(alarms.admit("x", 0), 0)
        self.assertIsNone(alarms.admit("x", 1))
        self.assertIsNone(alarms.admit("x", 59_999))
        self.assertEqual(alarms.admit("y", 5), 0)
        self.assertEqual(alarms.admit("x", 60_000), 2)

    def test_bounded(self) -> None:
        """However many peers go wrong, the memory for them is bounded."""
        alarms = Alarms()
        for number in range(10 * MAX_REMEMBERED):
            alarms.admit(number, number)
        self.assertEqual(alarms.admit(10 * MAX_REMEMBERED - 1, 10 * MAX_REMEMBERED), None)
        self.assertEqual(alarms.admit(0, 10 * MAX_REMEMBERED), 0)
        self.assertLessEqual(len(alarms), MAX_REMEMBERED)
