"""`rmq.sim.lookups` asks for times on both sides of what a queue holds."""

from __future__ import annotations

from itertools import cycle
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmq.sim import lookups
from tests.sim.test_lookups import ADDR, Broker, result_of


class Extremes(Random):
    """Draws both ends of each range, in turn."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ends = cycle((0, 1))

    def randint(self, a: int, b: int) -> int:
        return (a, b)[next(self._ends)]


class TimeTests(SynchronousTestCase):
    def test_times_before_and_after(self) -> None:
        """A broker that finds nothing for a time before its first message or after its last one is found out."""
        broker = Broker()
        judged = lookups.wrong_lookups(broker.observer, "broker-a-0", ADDR, broker.copies, Extremes())
        self.assertEqual(result_of(judged), [])
        asked = {each.timestamp for each in broker.asked if hasattr(each, "timestamp") and each.queue_id == 0}
        first, last = broker.records[0].store_timestamp, broker.records[-2].store_timestamp
        self.assertEqual(asked, {first - 1000, last + 1000})
