"""
Flow control: when sends are refused for a while, and with which text.

A reactor has no queue of requests in front of a pool of threads. What waits is in the sockets while the loop is late,
in the page cache while the disk is slow, and in the table of sends that wait for an fsync.

Java: BrokerFastFailure, SendMessageProcessor#rejectRequest
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.settings import Settings
from rmq.store.store import MessageStore

#: how often the loop and the disk are looked at
SAMPLE_S = 0.1
#: the loop is overloaded when it was late so often in a row: one long turn (a file to write) refuses no send
LATE_SAMPLES = 3
#: the disk is too slow when one fsync takes too long while so much of the log waits for the next one
MAX_UNSYNCED_BYTES = 256 << 20

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
LATE = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
    "period in queue: {lag_ms}ms, size of queue: {waiting}"
)


class FlowControl:
    """
    Decides every SAMPLE_S whether sends are taken; :attr:`refusal` is the remark of SYSTEM_BUSY while they are not.

    `brokerFastFailureEnable` and `waitTimeMillsInSendQueue` decide about a late loop, `osPageCacheBusyTimeOutMills`
    about the disk, `sendThreadPoolQueueCapacity` about sends that wait.
    """

    _log = Logger()

    def __init__(self, settings: Settings, clock: IReactorTime, store: MessageStore) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self.refusal: str | None = None
        #: by how much the last sample was late
        self.lag_ms = 0
        self._late = 0
        self._due_s: float | None = None

    def sample(self) -> None:
        """Look at loop, disk and waiting sends; to be called every SAMPLE_S."""
        now_s = self._clock.seconds()
        if self._due_s is not None:
            self.lag_ms = max(0, int((now_s - self._due_s) * 1000))
        self._due_s = now_s + SAMPLE_S
        self._late = self._late + 1 if self.lag_ms > self._settings.setup.broker.wait_time_mills_in_send_queue else 0
        before, self.refusal = self.refusal, self._decide()
        if before is None and self.refusal is not None:
            self._log.warn("sends are refused for a while: {remark}", remark=self.refusal)
        elif before is not None and self.refusal is None:
            self._log.info("sends are taken again")

    def _decide(self) -> str | None:
        broker, store = self._settings.setup.broker, self._store
        if (
            store.unsynced_bytes > MAX_UNSYNCED_BYTES
            and store.sync_age_ms > self._settings.setup.store.os_page_cache_busy_time_out_mills
        ):
            return REJECTED
        if store.waiting_puts >= broker.send_thread_pool_queue_capacity:
            return OVERLOADED
        if self._late >= LATE_SAMPLES and broker.broker_fast_failure_enable:
            return LATE.format(lag_ms=self.lag_ms, waiting=store.waiting_puts)
        return None
