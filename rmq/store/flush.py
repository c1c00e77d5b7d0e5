"""
Syncs of the commit log: one in flight, what comes meanwhile waits for the next.

Java: CommitLog.GroupCommitService, CommitLog.FlushRealTimeService
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.runtime.clock import steady_ms
from rmq.runtime.disk import DiskError
from rmq.runtime.histogram import Histogram
from rmq.store.commitlog import CommitLog

#: upper ends of the classes of sync times, in seconds
SYNC_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class LogSync:
    """
    Make the commit log durable without blocking.

    ``on_synced`` is called with the new ``log.flushed`` after each sync; ``on_failure`` once, with the error, when a
    sync failed: then nothing is synced any more, for the kernel may have dropped what it could not write.
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
        self._failed = False
        self._waiting: list[Deferred[None]] = []
        #: when the last sync began
        self.last_ms = 0
        self._began_s = 0.0
        #: how long syncs took
        self.seconds = Histogram(SYNC_BOUNDS_S)

    @property
    def in_flight(self) -> bool:
        """True while a sync is on its way."""
        return self._in_flight

    @property
    def failed(self) -> bool:
        """True once a sync failed."""
        return self._failed

    def request(self) -> None:
        """See to it that everything written so far gets synced."""
        if self._in_flight:
            self._again = True
        elif not self._failed and self._commit_log.flushed < self._commit_log.end:
            self._start()

    def idle(self) -> Deferred[None]:
        """Return a Deferred that fires when no sync is on its way and none follows."""
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
        # All are asked for at once: a file may be closed by the time that another one's sync has ended.
        syncs = [file.sync() for file in self._commit_log.unsynced(target)]
        left = len(syncs)

        def synced(_: None) -> None:
            nonlocal left
            left -= 1
            if left == 0 and not self._failed:
                self._done(target)

        for sync in syncs:
            sync.addCallbacks(synced, self._sync_failed).addErrback(self._report)

    def _done(self, target: int) -> None:
        self._commit_log.flushed = target
        self._in_flight = False
        self.seconds.observe(self._clock.seconds() - self._began_s)
        # The next one may start before those who waited hear of this one: it takes along what they do meanwhile.
        if self._again:
            self.request()
        self._on_synced(target)
        self._rest()

    def _sync_failed(self, failure: Failure) -> None:
        failure.trap(DiskError)
        error = failure.value
        assert isinstance(error, DiskError)
        self._in_flight = False
        if not self._failed:
            self._failed = True
            self._on_failure(error)
        self._rest()

    def _rest(self) -> None:
        if not self._in_flight:
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done.callback(None)

    def _report(self, failure: Failure) -> None:
        self._log.failure("a bug after a sync of the commit log", failure)
