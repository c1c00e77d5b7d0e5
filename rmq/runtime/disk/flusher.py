"""The threads that wait for fsync, so that the reactor does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.runtime.disk import syscalls
from rmq.wire.compiled import load

_compiled: Any = load("rmq.runtime.disk._syncs")

#: gets the error of a sync, or None
Done = Callable[[OSError | None], None]


@attrs.frozen(eq=False, repr=False)
class Job:
    """
    ``work`` runs in the thread; ``done`` gets its exception, an OSError or DiskError, or None, in the reactor.

    Jobs of one key share a run.
    """

    key: object
    work: Callable[[], None]
    done: Callable[[Any], None]


class Flusher:
    """
    Run blocking disk work in order in one thread and report through ``reactor.callFromThread``.

    Queued jobs of the same key are done by one run of the first (group commit): an fsync that starts after all of
    them were queued serves all of them. The thread starts with the first job: `twistd` forks between makeService and
    startService, and threads do not survive a fork.
    """

    def __init__(self, reactor: Any, name: str = "rmq-flusher") -> None:
        self._reactor = reactor
        self._name = name
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.closed = False

    def add(self, job: Job) -> None:
        """Queue ``job``; not after :meth:`close`."""
        assert not self.closed, "the flusher is closed"
        if self._thread is None:
            # A daemon thread, so that a process that dies without close() does not hang in it.
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(job)

    def close(self) -> None:
        """Finish what is queued, then end the thread; blocks until that is done. Harmless when repeated."""
        if self.closed:
            return
        self.closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            jobs = [first]
            last = False
            try:
                while (job := self._queue.get_nowait()) is not None:
                    jobs.append(job)
                last = True
            except Empty:
                pass
            self._run(jobs)
            if last:
                return

    def _run(self, jobs: list[Job]) -> None:
        groups: dict[object, list[Job]] = {}
        for job in jobs:
            groups.setdefault(job.key, []).append(job)
        for same in groups.values():
            error: Exception | None = None
            try:
                same[0].work()
            except Exception as caught:  # noqa: BLE001 - a bug in one must not end the thread that others wait for
                error = caught
            for job in same:
                self._reactor.callFromThread(job.done, error)


class FileSyncs(Protocol):
    """Syncs files, one after the other; syncs of a file that wait at the same time share a run."""

    @property
    def closed(self) -> bool: ...

    def sync(self, fd: int, done: Done) -> None:
        """Sync the file ``fd``, which stays open until ``done`` is called in the reactor; not after :meth:`close`."""

    def close(self) -> None:
        """Finish what is queued, then end the thread; blocks until that is done. Harmless when repeated."""


def file_syncs(reactor: Any, flusher: Flusher) -> FileSyncs:
    """Return a compiled thread that syncs files; ``flusher`` without one, or if the reactor watches no descriptors."""
    if _compiled is not None and hasattr(reactor, "addReader"):
        return CompiledFileSyncs(reactor)
    return FlusherFileSyncs(flusher)


@attrs.frozen
class FlusherFileSyncs:
    """Sync files in a thread of Python's: the reference."""

    _flusher: Flusher

    @property
    def closed(self) -> bool:
        return self._flusher.closed

    def sync(self, fd: int, done: Done) -> None:
        self._flusher.add(Job(fd, lambda: syscalls.sync_data(fd), done))

    def close(self) -> None:
        self._flusher.close()


@implementer(IReadDescriptor)
class CompiledFileSyncs:
    """
    Sync files in a thread that never runs Python.

    A thread of Python's takes as long as the sync of a fast disk to be woken and to report: both threads want the
    interpreter's lock. This one starts with the first sync, too: `twistd` forks before.
    """

    _log = Logger()
    #: rmq-lean may call doRead directly
    lean = True

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._thread: Any = None
        self.closed = False

    def sync(self, fd: int, done: Done) -> None:
        assert not self.closed, "the disk is closed"
        if self._thread is None:
            self._thread = _compiled.SyncThread()
            self._reactor.addReader(self)
        self._thread.add(fd, done)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._thread is not None:
                self._thread.end()
                self._reactor.removeReader(self)
                self._reactor.callFromThread(self.doRead)

    # calls of the reactor

    def fileno(self) -> int:
        return int(self._thread.event_fd)

    def doRead(self) -> None:
        for done, error in self._thread.take():
            try:
                done(OSError(error, os.strerror(error)) if error else None)
            except Exception:  # noqa: BLE001 - one must not stop the others
                self._log.failure("a bug after a sync", Failure())

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has shut down; what is synced now is reported by :meth:`close`."""

    def logPrefix(self) -> str:
        return "fdatasync"
