"""Rates of the last minute, from what was counted."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.client.core.tally import Tally
from rmq.wire.api.forwarding import ConsumeStatus


class TallyTests(SynchronousTestCase):
    def test_nothing(self) -> None:
        """Without messages everything is 0, from the first moment."""
        self.assertEqual(Tally(5.0).status(5.0), ConsumeStatus())

    def test_a_minute(self) -> None:
        """A rate is for the time that was counted, at most the last minute; what is older does not count."""
        tally = Tally(1000.0)
        for at_s in range(1000, 1200):
            tally.pulled(at_s, 4, 0.002)
            tally.handled(at_s, 3, 1, 0.010)
        early = Tally(1000.0)
        early.pulled(1001.0, 4, 0.002)
        self.assertEqual(early.status(1004.0).pull_tps, 1.0)
        status = tally.status(1200.0)
        self.assertAlmostEqual(status.pull_tps, 4.0)
        self.assertAlmostEqual(status.consume_ok_tps, 3.0)
        self.assertAlmostEqual(status.consume_failed_tps, 1.0)
        self.assertAlmostEqual(status.pull_rt, 2.0)
        self.assertAlmostEqual(status.consume_rt, 10.0)
        self.assertEqual(status.consume_failed_msgs, 200)
        self.assertEqual(tally.status(1255.0).pull_tps, 0.0)

    def test_an_hour(self) -> None:
        """Failures count for an hour, and so does the time of handlers when there was none in the last minute."""
        tally = Tally(0.0)
        tally.handled(5.0, 0, 7, 0.5)
        tally.handled(2000.0, 2, 1, 0.1)
        self.assertEqual(tally.status(2001.0).consume_rt, 100.0)
        self.assertEqual(tally.status(3000.0).consume_rt, 300.0)
        self.assertEqual(tally.status(3000.0).consume_failed_msgs, 8)
        self.assertEqual(tally.status(3605.0).consume_failed_msgs, 1)
        self.assertEqual(tally.status(9000.0), ConsumeStatus())
