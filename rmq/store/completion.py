"""
When a put is answered: at once, after the sync, after a slave has it, or at its deadline.

Java: CommitLog#handleDiskFlush, #handleHA, FlushDiskWatcher
"""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from rmq.runtime.clock import steady_ms
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.flush import LogSync
from rmq.store.groupcommit import CommitWaits, GroupCommitRequest, Waiter, answer
from rmq.store.messages import PutResult, PutStatus, Replication


class Completion:
    """
    Answer puts whose record is in the log.

    Everybody who waits for the disk is in one queue in the order of the log; a sync answers all it reached, one timer
    watches the oldest. Disk and slaves are waited for at once, and what slaves say wins over what the disk says.

    :meth:`complete` is for any put; :meth:`wait` for who has put many and can do without a Deferred for each.
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
        #: True where :meth:`wait` can be used: disk or slaves are waited for, not both
        self.is_single = self._sync_flush is not self._sync_master
        self._waits = CommitWaits()
        self._segment_bytes = config.mapped_file_size_commit_log
        #: who will wait for the slaves together, up to which offset, and the call that begins it
        self._group: list[Waiter] = []
        self._group_end = 0
        #: up to where slaves were asked for last
        self._asked_end = 0
        self._asking: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        #: what a SYNC_MASTER asks before it answers; None counts as no slave at all
        self.replication: Replication | None = None

    @property
    def is_full(self) -> bool:
        """True when too many wait; the next put should be refused."""
        return self._waits.full

    def __len__(self) -> int:
        """How many puts wait for the disk."""
        return len(self._waits)

    def complete(self, result: PutResult, waits: bool) -> PutResult | Deferred[PutResult]:
        """Return the final result, or a Deferred of it; ``waits`` is the producer's wish."""
        if self._sync_flush:
            disk: Deferred[PutStatus] | None = self._wait_for_disk(result) if waits else None
            self._sync.request()
        else:
            disk = None
        replica: PutStatus | Deferred[PutStatus] = PutStatus.PUT_OK
        if self._sync_master and waits:
            if self._group:
                self._ask_slaves()
            replica = self._wait_for_slaves(result.next_offset)
        if disk is not None:
            return disk.addCallback(_combine, result, replica)
        if isinstance(replica, Deferred):
            return succeed(PutStatus.PUT_OK).addCallback(_combine, result, replica)
        return _combined(replica, PutStatus.PUT_OK, result)

    def wait(self, next_offset: int, done: Waiter) -> None:
        """
        Have ``done`` called when everything before ``next_offset`` is safe, or at the deadline; maybe at once.

        The log between the last put of ``done`` and its first one is in one file. Whoever waits for slaves within one
        turn of the reactor waits together: their bytes leave together too.
        """
        if self._sync_flush:
            self._enter(next_offset, done)
            self._sync.request()
            return
        if self._group and self._segment(self._group_end) != self._segment(next_offset):
            # What a slave's report means can change where a file begins.
            self._ask_slaves()
        self._group.append(done)
        self._group_end = next_offset
        if self._asking is None:
            self._asking = self._clock.callLater(0, self._ask_slaves)

    def _segment(self, next_offset: int) -> int:
        return (next_offset - 1) // self._segment_bytes

    def _ask_slaves(self) -> None:
        self._forget_asking()
        group, self._group = self._group, []
        # Requests come in the order of the log; to wait for more than one's own part never tells too much.
        status = self._wait_for_slaves(max(self._group_end, self._asked_end))
        if isinstance(status, Deferred):
            status.addCallback(_tell, group)
        else:
            _tell(status, group)

    def _forget_asking(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and asking.active():
            asking.cancel()

    def _wait_for_disk(self, result: PutResult) -> Deferred[PutStatus]:
        done: Deferred[PutStatus] = Deferred()
        self._enter(result.next_offset, done)
        return done

    def _enter(self, next_offset: int, done: Waiter) -> None:
        """Have ``done`` wait for the disk."""
        deadline_ms = steady_ms(self._clock) + self._sync_flush_timeout
        self._waits.add(GroupCommitRequest(max(next_offset, self._waits.last_offset), deadline_ms, done))
        if self._timer is None:
            self._watch()

    def _wait_for_slaves(self, next_offset: int) -> PutStatus | Deferred[PutStatus]:
        self._asked_end = next_offset
        if self.replication is None:
            return PutStatus.SLAVE_NOT_AVAILABLE
        return self.replication.wait_for_slaves(next_offset, steady_ms(self._clock) + self._slave_timeout)

    def synced(self, flushed: int) -> None:
        """Answer all whose record lies before ``flushed``."""
        answer(self._waits.reached(flushed), PutStatus.PUT_OK)

    def fail_all(self) -> None:
        """Answer all that wait for the disk: nobody knows whether it has their records."""
        self._forget_timer()
        self._forget_asking()
        group, self._group = self._group, []
        _tell(PutStatus.SERVICE_NOT_AVAILABLE, group)
        self._waits.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)

    def _watch(self) -> None:
        """
        Arm the timer for the oldest request; those behind it are looked at when it goes off.

        It stays when all have their answers, and then goes off in vain: the next request comes long before that.
        """
        deadline_ms = self._waits.next_deadline_ms
        if deadline_ms is not None:
            delay_s = max(0.0, deadline_ms / 1000 - self._clock.seconds())
            self._timer = self._clock.callLater(delay_s, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = None
        # A millisecond more: the timer may go off a rounding error before the deadline.
        expired = self._waits.expired(steady_ms(self._clock) + 1)
        self._watch()
        answer(expired, PutStatus.FLUSH_DISK_TIMEOUT)

    def _forget_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()


def _tell(status: PutStatus, group: list[Waiter]) -> None:
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
    result.status = disk if replica is PutStatus.PUT_OK else replica
    return result
