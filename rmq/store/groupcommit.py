"""
When a put is answered: at once, after the fsync, when enough slaves have it, or at its deadline.

`LogSync` runs the fsyncs of the commit log, `OffsetWaiters` keeps who waits for an offset (here for the disk, in
`rmq.ha.acks` for the quorum), `GroupCommit` joins both for each put.

Java: CommitLog.GroupCommitService, FlushRealTimeService, FlushDiskWatcher, CommitLog#handleDiskFlush, #handleHA
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.runtime.clock import DeadlineTimer, steady_ms
from rmq.runtime.disk.files import DiskError
from rmq.runtime.histogram import Histogram
from rmq.store.commitlog import CommitLog
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutResult, PutStatus, Replication

#: upper ends of the classes of fsync times, in seconds
SYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: requests that may wait for one kind of confirmation
MAX_WAITERS = 100_000


class Waiter(Protocol):
    """Completion callback of a pending put: a Deferred, or an object that costs less."""

    def callback(self, status: PutStatus, /) -> object:
        """Take the status; called once."""


@attrs.define(eq=False)
class GroupCommitRequest:
    """
    A pending put whose last byte is before ``next_offset``; ``deadline_ms`` is steady time.

    Java: CommitLog.GroupCommitRequest
    """

    next_offset: int
    deadline_ms: int
    done: Waiter


class OffsetWaiters:
    """
    Pending requests in the order of the log: one offset completes all that lie before it.

    Each request is completed exactly once, after it has left the queue: by :meth:`reached`, by :meth:`fail_all`, or at
    its deadline with the status ``timeout``. One timer watches the oldest request. Bounded by ``limit``: when
    :attr:`is_full`, refuse instead of adding.

    Java: GroupCommitService, GroupTransferService (without their loops)
    """

    def __init__(self, clock: IReactorTime, *, timeout: PutStatus, limit: int = MAX_WAITERS) -> None:
        self._waiting: deque[GroupCommitRequest] = deque()
        self._timer = DeadlineTimer(clock, self._next_deadline_s, self._expire)
        self._timeout = timeout
        self._limit = limit
        #: requests that were completed with the status ``timeout``
        self.timeouts = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """True when ``limit`` requests wait."""
        return len(self._waiting) >= self._limit

    @property
    def first_offset(self) -> int:
        """The lowest offset that a request waits for; -1 without requests."""
        return self._waiting[0].next_offset if self._waiting else -1

    @property
    def last_offset(self) -> int:
        """The highest offset that a request waits for; -1 without requests."""
        return self._waiting[-1].next_offset if self._waiting else -1

    def add(self, next_offset: int, deadline_ms: int, done: Waiter) -> None:
        """Queue a request; offsets never decrease, nor should deadlines."""
        assert next_offset >= self.last_offset, "requests come in the order of the log"
        self._waiting.append(GroupCommitRequest(next_offset, deadline_ms, done))
        self._timer.arm()

    def reached(self, offset: int, is_held: Callable[[int], bool] | None = None) -> None:
        """
        Complete, oldest first, all requests for ``offset`` or less with PUT_OK.

        ``is_held`` is asked with each request's offset, if given; where it says no, the status is ``timeout``.
        """
        waiting = self._waiting
        done = []
        while waiting and waiting[0].next_offset <= offset:
            done.append(waiting.popleft())
        if is_held is None:
            _complete(done, PutStatus.PUT_OK)
            return
        missed = [request for request in done if not is_held(request.next_offset)]
        self.timeouts += len(missed)
        _complete(missed, self._timeout)
        _complete([request for request in done if request not in missed], PutStatus.PUT_OK)

    def fail_all(self, status: PutStatus) -> None:
        """Complete all requests with ``status``."""
        waiting, self._waiting = self._waiting, deque()
        _complete(waiting, status)

    def stop(self, status: PutStatus) -> None:
        """Complete all requests with ``status`` and leave no timer behind."""
        self._timer.cancel()
        self.fail_all(status)

    def _next_deadline_s(self) -> float | None:
        return self._waiting[0].deadline_ms / 1000 if self._waiting else None

    def _expire(self, now_s: float) -> None:
        waiting = self._waiting
        late = []
        while waiting and waiting[0].deadline_ms / 1000 <= now_s:
            late.append(waiting.popleft())
        self.timeouts += len(late)
        _complete(late, self._timeout)


def _complete(requests: Iterable[GroupCommitRequest], status: PutStatus) -> None:
    for request in requests:
        request.done.callback(status)


class LogSync:
    """
    Make the commit log durable without blocking: one fsync in flight, what is written meanwhile joins the next.

    ``on_synced`` is called with the new ``log.flushed`` after each fsync; ``on_failure`` once, with the error, when one
    failed: then nothing is synced any more, for the kernel may have dropped what it could not write.
    """

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        clock: IReactorTime,
        *,
        on_synced: Callable[[int], None],
        on_failure: Callable[[DiskError], None],
    ) -> None:
        self._commit_log = log
        self._clock = clock
        self._on_synced = on_synced
        self._on_failure = on_failure
        self._in_flight = False
        self._again = False
        self._waiting: list[Deferred[None]] = []
        #: offsets that are waited for
        self._reached: list[tuple[int, Deferred[bool]]] = []
        self._began_s = 0.0
        #: True once an fsync failed
        self.failed = False
        #: when the last fsync began
        self.last_ms = 0
        #: how long fsyncs took
        self.seconds = Histogram(SYNC_BOUNDS_S)

    def request(self) -> None:
        """Sync everything written so far: now, or right after the fsync in flight."""
        if self._in_flight:
            self._again = True
        elif not self.failed and self._commit_log.flushed < self._commit_log.end:
            self._start()

    def reach(self, phy_offset: int) -> Deferred[bool]:
        """Sync what lies before an offset of the log; fires with False when an fsync failed."""
        done: Deferred[bool] = Deferred()
        self._reached.append((phy_offset, done))
        if self._commit_log.flushed < phy_offset:
            self.request()
        self._rest()
        return done

    @property
    def age_ms(self) -> int:
        """How long the fsync in flight has been running; 0 without one."""
        return int((self._clock.seconds() - self._began_s) * 1000) if self._in_flight else 0

    def idle(self) -> Deferred[None]:
        """Return a Deferred that fires when no fsync is in flight and none follows."""
        done: Deferred[None] = Deferred()
        if self._in_flight:
            self._waiting.append(done)
        else:
            done.callback(None)
        return done

    def _start(self) -> None:
        target = self._commit_log.end
        self._in_flight = True
        self._again = False
        self.last_ms = steady_ms(self._clock)
        self._began_s = self._clock.seconds()
        # All files at once: one of them may be closed by the time the fsync of another has ended.
        syncs = [file.sync() for file in self._commit_log.unsynced(target)]
        left = len(syncs)

        def synced(_: None) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not self.failed:
                self._done(target)

        for sync in syncs:
            sync.addCallbacks(synced, self._sync_failed).addErrback(self._report)

    def _done(self, target: int) -> None:
        self._commit_log.flushed = target
        self._in_flight = False
        self.seconds.observe(self._clock.seconds() - self._began_s)
        # Start the next fsync before the waiters are notified, so that it runs while their answers are written.
        if self._again:
            self.request()
        self._on_synced(target)
        self._rest()

    def _sync_failed(self, failure: Failure) -> None:
        failure.trap(DiskError)
        error = failure.value
        assert isinstance(error, DiskError)
        self._in_flight = False
        if not self.failed:
            self.failed = True
            self._on_failure(error)
        self._rest()

    def _rest(self) -> None:
        """Notify who waits for what is so now."""
        reached, self._reached = self._reached, []
        for phy_offset, reaching in reached:
            if self.failed or self._commit_log.flushed >= phy_offset:
                reaching.callback(not self.failed)
            else:
                self._reached.append((phy_offset, reaching))
        if not self._in_flight:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done.callback(None)

    def _report(self, failure: Failure) -> None:
        self._log.failure("a bug after an fsync of the commit log", failure)


class _Both:
    """
    Completes a waiter when disk and slaves have both answered; what the slaves say comes first.

    It is itself what waits for the slaves, and :class:`_Disk` is what waits for the disk.
    """

    __slots__ = ("_disk", "_done", "_replica")

    def __init__(self, done: Waiter) -> None:
        self._done = done
        self._disk: PutStatus | None = None
        self._replica: PutStatus | None = None

    def callback(self, status: PutStatus) -> None:
        self._replica = status
        self._complete()

    def disk(self, status: PutStatus) -> None:
        self._disk = status
        self._complete()

    def _complete(self) -> None:
        if self._disk is not None and self._replica is not None:
            self._done.callback(_worse(self._replica, self._disk))


class _Disk:
    """Waits for the disk, on behalf of both."""

    __slots__ = ("_both",)

    def __init__(self, both: _Both) -> None:
        self._both = both

    def callback(self, status: PutStatus) -> None:
        self._both.disk(status)


class GroupCommit:
    """
    Complete puts whose record is in the log.

    Disk and slaves are waited for at the same time; when both fail the status is that of the slaves. :meth:`complete`
    is for any put; :meth:`wait` is for a caller with many puts that can do without a Deferred for each.
    """

    def __init__(self, clock: IReactorTime, config: StoreConfig, sync: LogSync) -> None:
        self._clock = clock
        self._sync = sync
        self._sync_flush_timeout = config.sync_flush_timeout
        self._slave_timeout = config.slave_timeout
        self._sync_flush = config.is_sync_flush
        self._sync_master = config.broker_role is BrokerRole.SYNC_MASTER
        #: False when every put is answered at once
        self.is_needed = self._sync_flush or self._sync_master
        self._waiters = OffsetWaiters(clock, timeout=PutStatus.FLUSH_DISK_TIMEOUT)
        self._segment_bytes = config.mapped_file_size_commit_log
        #: callbacks that will wait for the slaves together, for which offset, and the call that begins the wait
        self._group: list[Waiter] = []
        self._group_end = 0
        self._asking: IDelayedCall | None = None
        #: the offset of the last request to the slaves, and how many requests wait for them
        self._asked_end = 0
        self._asked = 0
        #: what a SYNC_MASTER asks before it answers; None counts as no slave at all
        self.replication: Replication | None = None

    @property
    def is_full(self) -> bool:
        """True when too many puts wait; the next one should be refused."""
        return self._waiters.is_full

    def __len__(self) -> int:
        """How many puts wait for the disk."""
        return len(self._waiters)

    def complete(self, result: PutResult, waits: bool) -> PutResult | Deferred[PutResult]:
        """Return the final result, or a Deferred of it; ``waits`` is the producer's wish."""
        disk: Deferred[PutStatus] | None = None
        replica: PutStatus | Deferred[PutStatus] = PutStatus.PUT_OK
        if self._sync_flush:
            if waits:
                disk = Deferred()
                self._wait_for_disk(result.next_offset, disk)
            self._sync.request()
        if self._sync_master and waits:
            if self._group:
                self._ask_slaves()
            replica = self._wait_for_slaves(result.next_offset)
        if disk is None:
            if not isinstance(replica, Deferred):
                return _combined(replica, PutStatus.PUT_OK, result)
            disk = succeed(PutStatus.PUT_OK)
        return disk.addCallback(_combine, result, replica)

    def wait(self, next_offset: int, done: Waiter) -> None:
        """
        Have ``done`` called when everything before ``next_offset`` is safe, or at the deadline; maybe at once.

        All puts of ``done`` are in one file. While others wait for slaves, those of one turn of the reactor wait
        together: their bytes leave together too.
        """
        if self._sync_flush:
            both = _Both(done) if self._sync_master else None
            self._wait_for_disk(next_offset, done if both is None else _Disk(both))
            self._sync.request()
            if both is None:
                return
            done = both
        if self._group and self._segment(self._group_end) != self._segment(next_offset):
            # What a slave's report means can change where a file begins.
            self._ask_slaves()
        self._group.append(done)
        self._group_end = next_offset
        if not self._asked:
            self._ask_slaves()
        elif self._asking is None:
            self._asking = self._clock.callLater(0, self._ask_slaves)

    def synced(self, flushed: int) -> None:
        """Complete all puts whose record lies before ``flushed``."""
        self._waiters.reached(flushed)

    def fail_all(self) -> None:
        """Complete all puts that wait for the disk: whether it has their records is unknown."""
        self._notify_group(PutStatus.SERVICE_NOT_AVAILABLE, self._take_group())
        self._waiters.stop(PutStatus.SERVICE_NOT_AVAILABLE)

    def _segment(self, next_offset: int) -> int:
        return (next_offset - 1) // self._segment_bytes

    def _wait_for_disk(self, next_offset: int, done: Waiter) -> None:
        deadline_ms = steady_ms(self._clock) + self._sync_flush_timeout
        self._waiters.add(max(next_offset, self._waiters.last_offset), deadline_ms, done)

    def _wait_for_slaves(self, next_offset: int) -> PutStatus | Deferred[PutStatus]:
        self._asked_end = next_offset
        if self.replication is None:
            return PutStatus.SLAVE_NOT_AVAILABLE
        return self.replication.wait_for_slaves(next_offset, steady_ms(self._clock) + self._slave_timeout)

    def _ask_slaves(self) -> None:
        group = self._take_group()
        # Requests come in the order of the log; waiting for more than the own part is always safe.
        status = self._wait_for_slaves(max(self._group_end, self._asked_end))
        if isinstance(status, Deferred):
            self._asked += 1
            status.addCallback(self._answered, group)
        else:
            self._notify_group(status, group)

    def _answered(self, status: PutStatus, group: list[Waiter]) -> None:
        self._asked -= 1
        self._notify_group(status, group)

    def _take_group(self) -> list[Waiter]:
        asking, self._asking = self._asking, None
        if asking is not None and asking.active():
            asking.cancel()
        group, self._group = self._group, []
        return group

    @staticmethod
    def _notify_group(status: PutStatus, group: list[Waiter]) -> None:
        for done in group:
            done.callback(status)


def _combine(
    disk: PutStatus, result: PutResult, replica: PutStatus | Deferred[PutStatus]
) -> PutResult | Deferred[PutResult]:
    """Put both statuses together when both are known."""
    if isinstance(replica, Deferred):
        return replica.addCallback(_combined, disk, result)
    return _combined(replica, disk, result)


def _combined(replica: PutStatus, disk: PutStatus, result: PutResult) -> PutResult:
    result.status = _worse(replica, disk)
    return result


def _worse(replica: PutStatus, disk: PutStatus) -> PutStatus:
    return disk if replica is PutStatus.PUT_OK else replica
