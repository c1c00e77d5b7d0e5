"""
Flow control: which requests are refused for a while, and with which text.

A reactor has no queue of requests in front of a pool of threads. What waits is in the sockets while the loop is late,
in the page cache while the disk is slow, and in the table of sends that wait for an fsync.

Apache's broker also refuses sends that are queued while its page cache is busy (PCBUSY_CLEAN_QUEUE). Here a send that
waits is in the log already, so its answer must be the truth about it.

Java: BrokerFastFailure, SendMessageProcessor#rejectRequest
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.config import BrokerConfig
from rmq.broker.settings import Settings
from rmq.remoting.responders import OVERLOAD_REMARK, ResponderTable, WaitingLine
from rmq.runtime.histogram import Histogram
from rmq.store.store import MessageStore
from rmq.wire.codes import RequestCode

#: how often the loop and the disk are looked at
SAMPLE_S = 0.1
#: classes of the histogram of how late the loop was, in ms
LAG_MS = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1000.0)
#: the loop is overloaded when it was late so often in a row: one long turn (a file to write) refuses nothing
LATE_SAMPLES = 3
#: the disk is too slow when one fsync takes too long while so much of the log waits for the next one
MAX_UNSYNCED_BYTES = 256 << 20
#: requests of tools that wait for the answer of a consumer (223, 307, 309).  Java: adminBrokerExecutor, without limit
MAX_FORWARDED = 10_000
#: pulls that wait until their messages are read from the disk, each for PRELOAD_BYTES of the log (1 MiB)
MAX_COLD_PULLS = 1000

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
LATE = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
    "period in queue: {lag_ms}ms, size of queue: {waiting}"
)


@attrs.define(eq=False)
class _Kind:
    """
    The requests that Apache's broker keeps in one queue.

    ``most_lag_ms`` is how late the loop may be, ``most_waiting`` how many may wait for their answers; None: no limit.
    """

    name: str
    codes: tuple[RequestCode, ...]
    most_lag_ms: Callable[[BrokerConfig], int] | None = None
    most_waiting: Callable[[BrokerConfig], int] | None = None
    line: WaitingLine = attrs.field(factory=lambda: WaitingLine(0), init=False)
    late: int = attrs.field(default=0, init=False)
    refusal: str | None = attrs.field(default=None, init=False)


def _kinds() -> list[_Kind]:
    """Java: BrokerController#registerProcessor"""
    code = RequestCode
    return [
        _Kind(
            "sends",
            (code.SEND_MESSAGE, code.SEND_MESSAGE_V2, code.SEND_BATCH_MESSAGE, code.CONSUMER_SEND_MSG_BACK),
            lambda config: config.wait_time_mills_in_send_queue,
            lambda config: config.send_thread_pool_queue_capacity,
        ),
        _Kind(
            "replies",
            (code.SEND_REPLY_MESSAGE, code.SEND_REPLY_MESSAGE_V2),
            most_waiting=lambda config: config.reply_thread_pool_queue_capacity,
        ),
        _Kind(
            "pulls",
            (code.PULL_MESSAGE, code.LITE_PULL_MESSAGE),
            lambda config: config.wait_time_mills_in_pull_queue,
        ),
        _Kind("heartbeats", (code.HEART_BEAT,), lambda config: config.wait_time_mills_in_heartbeat_queue),
        _Kind(
            "ends of transactions",
            (code.END_TRANSACTION,),
            lambda config: config.wait_time_mills_in_transaction_queue,
            lambda config: config.end_transaction_pool_queue_capacity,
        ),
        _Kind(
            "questions to consumers",
            (
                code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
                code.GET_CONSUMER_RUNNING_INFO,
                code.CONSUME_MESSAGE_DIRECTLY,
            ),
            most_waiting=lambda _: MAX_FORWARDED,
        ),
    ]


class FlowControl:
    """
    Decides every SAMPLE_S which requests are taken; the others are answered with SYSTEM_BUSY.

    `brokerFastFailureEnable` and the `waitTimeMillsIn…Queue` decide about a late loop, `osPageCacheBusyTimeOutMills`
    about the disk, the `…QueueCapacity` about requests that wait for their answers.
    """

    _log = Logger()

    def __init__(self, settings: Settings, clock: IReactorTime, store: MessageStore) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        #: by how much the last sample was late
        self.lag_ms = 0
        #: the same of all samples
        self.lags_ms = Histogram(LAG_MS)
        #: pulls that wait for the disk
        self.cold_pulls = WaitingLine(MAX_COLD_PULLS)
        self._due_s: float | None = None
        self._kinds = {kind.name: kind for kind in _kinds()}
        self._tables: tuple[ResponderTable, ...] = ()
        self._set_limits()

    def control(self, *tables: ResponderTable) -> None:
        """Refuse requests at these tables, which have the same waiting requests."""
        self._tables = tables
        for kind in self._kinds.values():
            if kind.most_waiting is not None:
                tables[0].limit_waiting(kind.line, kind.codes)

    @property
    def refusals(self) -> dict[int, str]:
        """The remarks of what is refused, by request code."""
        kinds = self._kinds.values()
        return {int(code): kind.refusal for kind in kinds if kind.refusal is not None for code in kind.codes}

    @property
    def waiting_sends(self) -> int:
        """How many sends wait for the disk; to the store those that a lane wrote together are one put."""
        return max(self._kinds["sends"].line.waiting, self._store.waiting_puts)

    @property
    def waiting_ends(self) -> int:
        """How many ends of transactions wait for their answers."""
        return self._kinds["ends of transactions"].line.waiting

    def sample(self) -> None:
        """Look at loop, disk and waiting requests; to be called every SAMPLE_S."""
        now_s = self._clock.seconds()
        if self._due_s is not None:
            late_ms = max(0.0, (now_s - self._due_s) * 1000)
            self.lag_ms = int(late_ms)
            self.lags_ms.observe(late_ms)
        self._due_s = now_s + SAMPLE_S
        self._set_limits()
        before = self.refusals
        for kind in self._kinds.values():
            self._look(kind)
        if (now := self.refusals) != before:
            for table in self._tables:
                table.refuse(now)

    def _set_limits(self) -> None:
        for kind in self._kinds.values():
            if kind.most_waiting is not None:
                kind.line.limit = kind.most_waiting(self._settings.setup.broker)

    def _look(self, kind: _Kind) -> None:
        config = self._settings.setup.broker
        if kind.most_lag_ms is not None:
            kind.late = kind.late + 1 if self.lag_ms > kind.most_lag_ms(config) else 0
        before, kind.refusal = kind.refusal, self._decide(kind)
        if before is None and kind.refusal is not None:
            self._log.warn("{kind} are refused for a while: {remark}", kind=kind.name, remark=kind.refusal)
        elif before is not None and kind.refusal is None:
            self._log.info("{kind} are taken again", kind=kind.name)

    def _decide(self, kind: _Kind) -> str | None:
        config, store = self._settings.setup, self._store
        waiting = kind.line.waiting
        if kind.name == "sends":
            waiting = self.waiting_sends
            if (
                store.unsynced_bytes > MAX_UNSYNCED_BYTES
                and store.sync_age_ms > config.store.os_page_cache_busy_time_out_mills
            ):
                return REJECTED
            if waiting >= kind.line.limit:
                return OVERLOAD_REMARK
        if kind.late >= LATE_SAMPLES and config.broker.broker_fast_failure_enable:
            return LATE.format(lag_ms=self.lag_ms, waiting=waiting)
        return None
