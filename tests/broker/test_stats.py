"""Counters of the broker: rates, windows, days."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.stats import TOPIC_PUT_NUMS, BrokerStats, Rate


class RateTests(SynchronousTestCase):
    def test_windows(self) -> None:
        """Ten a second is 10.0 in each window that is full; a window that is not says 0.0."""
        rate = Rate()
        for second in range(70):
            rate.total = second * 10
            rate.sample(second * 1000)
        self.assertEqual(rate.text(), "10.0 10.0 0.0")

    def test_clock_that_stands_still(self) -> None:
        """A clock that does not move makes no division by zero."""
        rate = Rate()
        for _ in range(20):
            rate.sample(5)
        self.assertEqual(rate.per_second()[0], 0.0)


class BrokerStatsTests(SynchronousTestCase):
    def test_counter_of_a_topic(self) -> None:
        """mqadmin statsAll sees the messages of the last minute."""
        stats = BrokerStats("C")
        stats.put("T", 1, 100)
        stats.sample_counters(0)
        stats.put("T", 5, 500)
        stats.put("T", 1, 100)
        stats.sample_counters(10_000)
        counter = stats.find(TOPIC_PUT_NUMS, "T")
        assert counter is not None
        minute = counter.data().stats_minute
        self.assertEqual((minute.sum, minute.tps, minute.avgpt), (6, 0.6, 3.0))
        self.assertIsNone(stats.find(TOPIC_PUT_NUMS, "U"))

    def test_minute_forgets(self) -> None:
        """What is older than a minute is not in the minute's sum."""
        stats = BrokerStats("C")
        for step in range(20):
            if step == 0:
                stats.put("T", 9, 1)
            stats.sample_counters(step * 10_000)
        counter = stats.find(TOPIC_PUT_NUMS, "T")
        assert counter is not None
        self.assertEqual(counter.data().stats_minute.sum, 0)

    def test_midnight(self) -> None:
        """At midnight today's morning figure becomes what was counted so far."""
        stats = BrokerStats("C")
        day = 86_400_000
        stats.sample_second(day - 1000, 0)
        stats.put("T", 4, 1)
        stats.sample_second(day, 1000)
        stats.put("T", 2, 1)
        stats.sample_second(2 * day, 2000)
        info = stats.runtime_info()
        self.assertEqual(
            (
                info["msgPutTotalYesterdayMorning"],
                info["msgPutTotalTodayMorning"],
                info["msgPutTotalTodayNow"],
            ),
            ("4", "6", "6"),
        )

    def test_rates_parse_as_three_numbers(self) -> None:
        """clusterList splits each rate at blanks and parses it, from the first second on."""
        info = BrokerStats("C").runtime_info()
        for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps", "getTransferredTps"):
            self.assertEqual([float(part) for part in info[key].split(" ")], [0.0, 0.0, 0.0], key)
