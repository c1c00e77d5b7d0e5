"""The thread that waits for fsync, so that the reactor does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import attrs


@attrs.frozen(eq=False, repr=False)
class Job:
    """``work`` runs in the thread; ``done`` gets its exception or None in the reactor. Jobs of one key share a run."""

    key: object
    work: Callable[[], None]
    done: Callable[[OSError | None], None]


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
            error: OSError | None = None
            try:
                same[0].work()
            except OSError as caught:
                error = caught
            for job in same:
                self._reactor.callFromThread(job.done, error)
