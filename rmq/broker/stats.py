"""Counters and times: what codes 28 and 315 report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import attrs

from rmq.remoting.stats import BUCKETS_S, RequestStats
from rmq.wire.api.admin import BrokerStatsData, BrokerStatsItem
from rmq.wire.codes import RequestCode
from rmq.wire.record import LMQ_PREFIX, SCHEDULE_TOPIC

#: names of code 315.  Java: Stats
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
#: of ours: transactions that were committed and rolled back, by the topic of their messages
TOPIC_COMMIT_NUMS = "TOPIC_COMMIT_NUMS"
TOPIC_ROLLBACK_NUMS = "TOPIC_ROLLBACK_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
SNDBCK2DLQ_TIMES = "SNDBCK2DLQ_TIMES"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"

#: limit of counters; at it those idle for the last hour are evicted, and where these are few the oldest ones
MAX_COUNTERS = 100_000

#: a counter is sampled every MINUTE_STEP_MS for its minute, every 60th time for its hour, every 360th for its day
MINUTE_STEP_MS = 10_000
#: counters that are sampled in one turn of the reactor
SAMPLE_AT_ONCE = 4096
_HOUR_STEPS, _DAY_STEPS = 60, 360
_TPS_WINDOWS_S = (10, 60, 600)
_DAY_MS = 86_400_000


@attrs.frozen
class _Sample:
    at_ms: int
    value: int
    times: int


def _window(samples: Sequence[_Sample]) -> BrokerStatsItem:
    if not samples:
        return BrokerStatsItem()
    first, last = samples[0], samples[-1]
    total, times, elapsed = last.value - first.value, last.times - first.times, last.at_ms - first.at_ms
    return BrokerStatsItem(
        sum=total, tps=total * 1000.0 / elapsed if elapsed > 0 else 0.0, avgpt=total / times if times > 0 else 0.0
    )


@attrs.define(eq=False)
class Counter:
    """
    One counter over a minute, an hour and a day.

    Java: StatsItem
    """

    value: int = 0
    times: int = 0
    # lists: a deque takes 600 bytes when it is empty, and there are several counters for each group and topic
    _minute: list[_Sample] = attrs.field(factory=list, init=False)
    _hour: list[_Sample] = attrs.field(factory=list, init=False)
    _day: list[_Sample] = attrs.field(factory=list, init=False)

    def add(self, value: int, times: int = 1) -> None:
        """Add ``value``, the sum of ``times`` events."""
        self.value += value
        self.times += times

    def sample(self, at_ms: int, number: int) -> None:
        """
        Take the sample ``number``; each is MINUTE_STEP_MS after the one before.

        The first sample of a window follows one of nothing, so that what was counted before it is in the sum.
        Java: StatsItem#samplingInSeconds
        """
        windows = (self._minute, 1, 7), (self._hour, _HOUR_STEPS, 7), (self._day, _DAY_STEPS, 25)
        for samples, steps, kept in windows:
            if number % steps == 0:
                if not samples:
                    samples.append(_Sample(at_ms - steps * MINUTE_STEP_MS, 0, 0))
                samples.append(_Sample(at_ms, self.value, self.times))
                if len(samples) > kept:
                    del samples[0]

    @property
    def idle(self) -> bool:
        """Nothing was added within the last hour."""
        return bool(self._hour) and self._hour[0].value == self.value

    def data(self) -> BrokerStatsData:
        return BrokerStatsData(
            stats_minute=_window(self._minute), stats_hour=_window(self._hour), stats_day=_window(self._day)
        )


@attrs.define(eq=False)
class Rate:
    """
    Calls a second over the last 10, 60 and 600 s, as code 28 prints them.

    Java: StoreStatsService#getPutTps
    """

    total: int = 0
    _samples: deque[tuple[int, int]] = attrs.field(factory=lambda: deque(maxlen=_TPS_WINDOWS_S[-1] + 1), init=False)

    def sample(self, at_ms: int) -> None:
        self._samples.append((at_ms, self.total))

    def per_second(self) -> list[float | None]:
        """One figure per window, None where there are not enough samples yet."""
        figures: list[float | None] = []
        for seconds in _TPS_WINDOWS_S:
            if len(self._samples) <= seconds:
                figures.append(None)
                continue
            (before_ms, before), (at_ms, now) = self._samples[-1 - seconds], self._samples[-1]
            figures.append((now - before) * 1000.0 / max(at_ms - before_ms, 1))
        return figures

    def text(self) -> str:
        """Three figures separated by blanks; 0.0 until a window is full, because tools split and parse them."""
        return " ".join(str(figure or 0.0) for figure in self.per_second())


@attrs.define(eq=False)
class BrokerStats:
    """
    Everything that is counted per message.

    Java: BrokerStatsManager, BrokerStats, StoreStatsService
    """

    cluster: str
    #: messages that became readable since the start, deliveries included, and bytes of their records
    _stored: Callable[[], tuple[int, int]] = lambda: (0, 0)
    #: called before a figure is read: sources that count in batches add their counts with :meth:`put` and :meth:`got`
    sources: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    _put_rate: Rate = attrs.field(factory=Rate, init=False)
    _found_rate: Rate = attrs.field(factory=Rate, init=False)
    gets_missed: Rate = attrs.field(factory=Rate, init=False)
    _transferred_rate: Rate = attrs.field(factory=Rate, init=False)
    _put_bytes: int = attrs.field(default=0, init=False)
    put_failures: int = attrs.field(default=0, init=False)
    put_yesterday_morning: int = attrs.field(default=0, init=False)
    put_today_morning: int = attrs.field(default=0, init=False)
    get_yesterday_morning: int = attrs.field(default=0, init=False)
    get_today_morning: int = attrs.field(default=0, init=False)
    _day: int | None = attrs.field(default=None, init=False)
    #: the counters of a put by topic, so that one look-up finds all three
    _puts: dict[str, tuple[Counter, Counter, Counter]] = attrs.field(factory=dict, init=False)
    #: those of a pull by topic and group
    _gets: dict[tuple[str, str], tuple[Counter, Counter, Counter]] = attrs.field(factory=dict, init=False)
    _counters: dict[tuple[str, str], Counter] = attrs.field(factory=dict, init=False)
    _samples: int = attrs.field(default=0, init=False)

    def settle(self) -> None:
        """Make the sources add their pending counts."""
        for source in self.sources:
            source()
        self._put_rate.total, self._put_bytes = self._stored()

    @property
    def puts(self) -> Rate:
        """Messages stored, deliveries of delayed ones and what a slave received included."""
        self.settle()
        return self._put_rate

    @property
    def gets_found(self) -> Rate:
        """Pulls that found messages."""
        self.settle()
        return self._found_rate

    @property
    def transferred(self) -> Rate:
        """Messages that they found."""
        self.settle()
        return self._transferred_rate

    @property
    def put_bytes(self) -> int:
        """Bytes of their records."""
        self.settle()
        return self._put_bytes

    def counter(self, name: str, key: str) -> Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            if len(self._counters) >= MAX_COUNTERS:
                busy = [(key, kept) for key, kept in self._counters.items() if not kept.idle]
                self._counters = dict(busy[-MAX_COUNTERS * 3 // 4 :])
                self._puts.clear()
                self._gets.clear()
            counter = self._counters[name, key] = Counter()
        return counter

    def find(self, name: str, key: str) -> Counter | None:
        self.settle()
        return self._counters.get((name, key))

    def totals(self, name: str) -> list[tuple[str, int]]:
        """Return (key, value) of all counters of a name."""
        self.settle()
        return [(key, counter.value) for (kind, key), counter in self._counters.items() if kind == name]

    def put(self, topic: str, count: int, size_bytes: int, times: int = 1) -> None:
        """Count ``count`` messages stored in ``topic``, of ``size_bytes`` altogether, from ``times`` requests."""
        counters = self._puts.get(topic)
        if counters is None:
            counters = (
                self.counter(TOPIC_PUT_NUMS, topic),
                self.counter(TOPIC_PUT_SIZE, topic),
                self.counter(BROKER_PUT_NUMS, self.cluster),
            )
            self._puts[topic] = counters
        numbers, sizes, broker = counters
        numbers.add(count, times)
        sizes.add(size_bytes, times)
        broker.add(count, times)

    def got(self, group: str, topic: str, count: int, size_bytes: int, times: int = 1) -> None:
        """``times`` pulls of ``group`` found ``count`` messages altogether; light message queues are counted as one."""
        topic = LMQ_PREFIX if topic.startswith(LMQ_PREFIX) else topic
        group = LMQ_PREFIX if group.startswith(LMQ_PREFIX) else group
        self._found_rate.total += times
        self._transferred_rate.total += count
        counters = self._gets.get((topic, group))
        if counters is None:
            key = f"{topic}@{group}"
            counters = (
                self.counter(GROUP_GET_NUMS, key),
                self.counter(GROUP_GET_SIZE, key),
                self.counter(BROKER_GET_NUMS, self.cluster),
            )
            self._gets[topic, group] = counters
        numbers, sizes, broker = counters
        numbers.add(count, times)
        sizes.add(size_bytes, times)
        broker.add(count, times)

    def missed(self) -> None:
        """A pull found nothing."""
        self.gets_missed.total += 1

    def group_get_tps(self, group: str, topic: str) -> float:
        """Messages a second that a group got of a topic in the last minute."""
        counter = self.find(GROUP_GET_NUMS, f"{topic}@{group}")
        return 0.0 if counter is None else counter.data().stats_minute.tps

    def parked(self, count: int, size_bytes: int) -> None:
        """Count retries that wait in SCHEDULE_TOPIC_XXXX; as in Apache they are none of the broker's puts."""
        self.counter(TOPIC_PUT_NUMS, SCHEDULE_TOPIC).add(count, count)
        self.counter(TOPIC_PUT_SIZE, SCHEDULE_TOPIC).add(size_bytes, count)

    def sent_back(self, group: str, topic: str) -> None:
        self.counter(SNDBCK_PUT_NUMS, f"{topic}@{group}").add(1)

    def dead_letter(self, group: str, topic: str) -> None:
        """A message of ``topic`` went to the dead letter topic of ``group``."""
        self.counter(SNDBCK2DLQ_TIMES, f"{topic}@{group}").add(1)

    def sample_second(self, now_ms: int, steady_ms: int) -> None:
        """Called every second; also detects midnight (UTC, wall clock)."""
        for rate in (self.puts, self.gets_found, self.gets_missed, self.transferred):
            rate.sample(steady_ms)
        day = now_ms // _DAY_MS
        if self._day is not None and day != self._day:
            self.put_yesterday_morning, self.put_today_morning = self.put_today_morning, self.puts.total
            self.get_yesterday_morning, self.get_today_morning = self.get_today_morning, self.transferred.total
        self._day = day

    def sample_counters(self, steady_ms: int) -> Iterator[None]:
        """Take a sample of each counter, in slices of some milliseconds; called every MINUTE_STEP_MS."""
        self.settle()
        number, self._samples = self._samples, self._samples + 1
        for place, counter in enumerate(list(self._counters.values()), 1):
            counter.sample(steady_ms, number)
            if place % SAMPLE_AT_ONCE == 0:
                yield

    def runtime_info(self) -> dict[str, str]:
        """The counters of this object for code 28."""
        self.settle()
        totals = [
            (found or 0.0) + (missed or 0.0)
            for found, missed in zip(self.gets_found.per_second(), self.gets_missed.per_second(), strict=True)
        ]
        return {
            "putMessageTimesTotal": str(self.puts.total),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / self.puts.total if self.puts.total else 0.0),
            "putMessageFailedTimes": str(self.put_failures),
            # Apache measures the wait for memory, which there is not.
            "getMessageEntireTimeMax": "0",
            "msgPutTotalYesterdayMorning": str(self.put_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_today_morning),
            "msgPutTotalTodayNow": str(self.puts.total),
            "msgGetTotalYesterdayMorning": str(self.get_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_today_morning),
            "msgGetTotalTodayNow": str(self.transferred.total),
            "putTps": self.puts.text(),
            "getFoundTps": self.gets_found.text(),
            "getMissTps": self.gets_missed.text(),
            "getTotalTps": " ".join(str(total) for total in totals),
            "getTransferedTps": self.transferred.text(),
            "getTransferredTps": self.transferred.text(),
        }


#: the requests that store messages of clients
_PUT_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
#: upper bound in ms and name of each class of putMessageDistributeTime; what takes less than 1 ms is 0 ms in Java
_PUT_CLASSES = (
    (1, "[<=0ms]"),
    (10, "[0~10ms]"),
    (50, "[10~50ms]"),
    (100, "[50~100ms]"),
    (200, "[100~200ms]"),
    (500, "[200~500ms]"),
    (1000, "[500ms~1s]"),
    (2000, "[1~2s]"),
    (3000, "[2~3s]"),
    (4000, "[3~4s]"),
    (5000, "[4~5s]"),
    (10_000, "[5~10s]"),
    (float("inf"), "[10s~]"),
)
_BOUNDS_MS = tuple(bound * 1000 for bound in BUCKETS_S)


class PutTimes:
    """
    How long sends took within the last whole minute, from the request to its answer, by the classes of BUCKETS_S.

    Java: StoreStatsService#findPutMessageEntireTimePX, which measures from the store's lock to the answer
    """

    def __init__(self, requests: RequestStats) -> None:
        self._requests = requests
        self._before = self._now()
        self._minute = [0] * len(self._before)

    def sample(self) -> None:
        """Called every minute."""
        now = self._now()
        self._minute = [after - before for after, before in zip(now, self._before, strict=True)]
        self._before = now

    def runtime_info(self) -> dict[str, str]:
        """The times for code 28."""
        longest = max((number for number, count in enumerate(self._now()) if count), default=None)
        return {
            "putMessageDistributeTime": "".join(f"{name}:{count} " for name, count in self._classes()),
            "putLatency99": f"{self._quantile(0.99):.2f}",
            "putLatency999": f"{self._quantile(0.999):.2f}",
            "putMessageEntireTimeMax": "0" if longest is None else str(int(_upper_ms(longest))),
        }

    def _now(self) -> list[int]:
        buckets = self._requests.buckets
        counts = [buckets[code] for code in _PUT_CODES if code in buckets]
        return [sum(column) for column in zip([0] * (len(BUCKETS_S) + 1), *counts, strict=True)]

    def _classes(self) -> list[tuple[str, int]]:
        counts = dict.fromkeys((name for _, name in _PUT_CLASSES), 0)
        for bound_ms, count in zip((*_BOUNDS_MS, float("inf")), self._minute, strict=True):
            counts[next(name for most, name in _PUT_CLASSES if bound_ms <= most)] += count
        return list(counts.items())

    def _quantile(self, share: float) -> float:
        """Return the time in ms that ``share`` of the sends did not exceed, by straight lines inside the classes."""
        wanted = int(sum(self._minute) * share)
        passed = 0
        for number, count in enumerate(self._minute):
            if count and wanted <= passed + count:
                low = _BOUNDS_MS[number - 1] if number else 0.0
                return low + (_upper_ms(number) - low) * (wanted - passed) / count
            passed += count
        return 0.0


def _upper_ms(number: int) -> float:
    """Return the end of a class of BUCKETS_S; the last one, which has none, counts as its beginning."""
    return _BOUNDS_MS[min(number, len(_BOUNDS_MS) - 1)]
