"""Pauses between dials."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.follower import Backoff


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
        backoff.reset()
        self.assertLess(backoff.next_pause_s(), 6.001)

    def test_slaves_do_not_march_in_step(self) -> None:
        """Two slaves of one master come back at different times."""
        first, second = Backoff(random.Random(1)), Backoff(random.Random(2))
        self.assertNotEqual(first.next_pause_s(), second.next_pause_s())
