"""Counters of the broker: rates, windows, days."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import stats as stats_module
from rmq.broker.stats import SNDBCK_PUT_NUMS, TOPIC_PUT_NUMS, BrokerStats, PutTimes, Rate
from rmq.remoting.stats import RequestStats
from rmq.runtime.clock import in_turns


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


def sample(stats: BrokerStats, steady_ms: int) -> None:
    for _ in stats.sample_counters(steady_ms):
        pass


class BrokerStatsTests(SynchronousTestCase):
    def test_counter_of_a_topic(self) -> None:
        """mqadmin statsAll sees the messages of the last minute."""
        stats = BrokerStats("C")
        stats.put("T", 1, 100)
        sample(stats, 0)
        stats.put("T", 5, 500)
        stats.put("T", 1, 100)
        sample(stats, 10_000)
        counter = stats.find(TOPIC_PUT_NUMS, "T")
        assert counter is not None
        minute = counter.data().stats_minute
        self.assertEqual((minute.sum, minute.tps, minute.avgpt), (7, 0.35, 7 / 3))
        self.assertIsNone(stats.find(TOPIC_PUT_NUMS, "U"))

    def test_nothing_is_lost_before_the_first_sample(self) -> None:
        """What was stored before a counter's first sample is in the minute at once, in hour and day when they end."""
        stats = BrokerStats("C")
        sample(stats, 0)
        stats.put("T", 4, 1)
        seen = []
        for step in range(1, 361):
            sample(stats, step * 10_000)
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
            sample(stats, step * 10_000)
        counter = stats.find(TOPIC_PUT_NUMS, "T")
        assert counter is not None
        self.assertEqual(counter.data().stats_minute.sum, 0)

    def test_counters_are_bounded(self) -> None:
        """However many names clients invent, the counters stay within their limit; the newest ones are kept."""
        self.patch(stats_module, "MAX_COUNTERS", 40)
        stats = BrokerStats("C")
        for number in range(100):
            stats.sent_back("G", f"T{number}")
            stats.put(f"T{number}", 1, 1)
            self.assertLessEqual(len(stats.totals(SNDBCK_PUT_NUMS)) + len(stats.totals(TOPIC_PUT_NUMS)), 40)
        self.assertIsNotNone(stats.find(TOPIC_PUT_NUMS, "T99"))

    def test_samples_are_taken_in_slices(self) -> None:
        """Of thousands of counters each gets its sample, a few in each turn of the reactor."""
        self.patch(stats_module, "SAMPLE_AT_ONCE", 8)
        stats = BrokerStats("C")
        for number in range(10):
            stats.sent_back("G", f"T{number}")
        clock = Clock()
        done = Deferred.fromCoroutine(in_turns(clock, stats.sample_counters(0)))

        def sums() -> list[int]:
            found = [stats.find(SNDBCK_PUT_NUMS, f"T{n}@G") for n in range(10)]
            return [counter.data().stats_minute.sum for counter in found if counter is not None]

        self.assertEqual(sums(), [1] * 8 + [0] * 2)
        clock.advance(0)
        self.successResultOf(done)
        self.assertEqual(sums(), [1] * 10)

    def test_midnight(self) -> None:
        """At midnight today's morning figure becomes what was counted so far."""
        at = [0]
        stats = BrokerStats("C", lambda: (at[0], 0))
        day = 86_400_000
        stats.sample_second(day - 1000, 0)
        at[0] = 4
        stats.sample_second(day, 1000)
        at[0] = 6
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
