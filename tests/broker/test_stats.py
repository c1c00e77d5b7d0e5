"""Counters of the broker: rates, windows, days."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.stats import TOPIC_PUT_NUMS, BrokerStats, PutTimes, Rate
from rmq.remoting.stats import RequestStats


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
        self.assertEqual((minute.sum, minute.tps, minute.avgpt), (7, 0.35, 7 / 3))
        self.assertIsNone(stats.find(TOPIC_PUT_NUMS, "U"))

    def test_nothing_is_lost_before_the_first_sample(self) -> None:
        """What was stored before a counter's first sample is in the minute at once, in hour and day when they end."""
        stats = BrokerStats("C")
        stats.sample_counters(0)
        stats.put("T", 4, 1)
        seen = []
        for step in range(1, 361):
            stats.sample_counters(step * 10_000)
            counter = stats.find(TOPIC_PUT_NUMS, "T")
            assert counter is not None
            if step in (1, 59, 60, 359, 360):
                data = counter.data()
                seen.append((data.stats_minute.sum, data.stats_hour.sum, data.stats_day.sum))
        self.assertEqual(seen, [(4, 0, 0), (0, 0, 0), (0, 4, 0), (0, 4, 0), (0, 4, 4)])

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


class PutTimesTests(SynchronousTestCase):
    """putMessageDistributeTime, putLatency99, putLatency999 and putMessageEntireTimeMax of brokerStatus."""

    def test_a_minute(self) -> None:
        """The last whole minute counts: each send in one of Java's classes, the quantiles between their bounds."""
        requests = RequestStats()
        times = PutTimes(requests)
        requests.observe(310, 98 * 0.0004, n=98)
        requests.observe(320, 0.15)
        requests.observe(10, 30.0)
        requests.observe(11, 15.0)
        self.assertEqual(times.runtime_info()["putLatency99"], "0.00", "the minute has not ended")
        times.sample()
        info = times.runtime_info()
        self.assertEqual(
            info["putMessageDistributeTime"],
            "[<=0ms]:98 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:1 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 "
            "[2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:1 ",
        )
        self.assertEqual(
            (info["putLatency99"], info["putLatency999"], info["putMessageEntireTimeMax"]),
            ("200.00", "200.00", "10000"),
        )
        times.sample()
        info = times.runtime_info()
        self.assertNotIn(":1 ", info["putMessageDistributeTime"])
        self.assertEqual((info["putLatency99"], info["putMessageEntireTimeMax"]), ("0.00", "10000"))

    def test_median_like_positions(self) -> None:
        """Inside a class the times count as evenly spread."""
        requests = RequestStats()
        times = PutTimes(requests)
        requests.observe(310, 1000 * 0.04, n=1000)
        times.sample()
        self.assertEqual(times.runtime_info()["putLatency99"], "49.75")
