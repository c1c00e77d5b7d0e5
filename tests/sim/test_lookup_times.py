"""`rmq.sim.lookups` asks for times on both sides of what a queue holds."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmq.sim import lookups
from tests.sim.test_lookups import ADDR, Broker, result_of


class TimeTests(SynchronousTestCase):
    def test_times_before_and_after(self) -> None:
        """A broker that finds nothing for a time before its first message or after its last one is found out."""
        broker = Broker()
        for seed in range(300):
            judged = lookups.wrong_lookups(broker.observer, "broker-a-0", ADDR, broker.copies, Random(seed))
            self.assertEqual(result_of(judged), [])
        asked = [each.timestamp for each in broker.asked if hasattr(each, "timestamp") and each.queue_id == 0]
        first, last = broker.records[0].store_timestamp, broker.records[-2].store_timestamp
        self.assertTrue(first - 1000 <= min(asked) < first)
        self.assertTrue(last < max(asked) <= last + 1000)
