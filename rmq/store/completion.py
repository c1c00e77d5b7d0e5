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
from rmq.store.groupcommit import CommitWaits, GroupCommitRequest, answer
from rmq.store.messages import PutResult, PutStatus, Replication


class Completion:
    """
    Answer puts whose record is in the log.

    Everybody who waits for the disk is in one queue in the order of the log; a sync answers all it reached, one timer
    watches the oldest. Disk and slaves are waited for at once, and what slaves say wins over what the disk says.
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
        self._waits = CommitWaits()
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
            replica = self._wait_for_slaves(result)
        if disk is not None:
            return disk.addCallback(_combine, result, replica)
        if isinstance(replica, Deferred):
            return succeed(PutStatus.PUT_OK).addCallback(_combine, result, replica)
        return _combined(replica, PutStatus.PUT_OK, result)

    def _wait_for_disk(self, result: PutResult) -> Deferred[PutStatus]:
        done: Deferred[PutStatus] = Deferred()
        deadline_ms = steady_ms(self._clock) + self._sync_flush_timeout
        self._waits.add(GroupCommitRequest(result.next_offset, deadline_ms, done))
        if self._timer is None:
            self._watch()
        return done

    def _wait_for_slaves(self, result: PutResult) -> PutStatus | Deferred[PutStatus]:
        if self.replication is None:
            return PutStatus.SLAVE_NOT_AVAILABLE
        return self.replication.wait_for_slaves(result.next_offset, steady_ms(self._clock) + self._slave_timeout)

    def synced(self, flushed: int) -> None:
        """Answer all whose record lies before ``flushed``."""
        done = self._waits.reached(flushed)
        if not self._waits:
            self._forget_timer()
        answer(done, PutStatus.PUT_OK)

    def fail_all(self) -> None:
        """Answer all that wait for the disk: nobody knows whether it has their records."""
        self._forget_timer()
        self._waits.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)

    def _watch(self) -> None:
        """Arm the timer for the oldest request; those behind it are looked at when it goes off."""
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
