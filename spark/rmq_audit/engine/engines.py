"""How tasks reach the cores: one interface, and the engine that needs no Spark."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from rmq_audit.worker.work import Work

#: a partition of much work takes tasks until they make so many bytes at most
PARTITION_BYTES = 256 << 20
#: or fewer, so that each core gets about so many of them, and all end at about the same time
PARTITIONS_PER_CORE = 8
#: work that makes less than that for each core is only cut to keep all of them busy
SMALL_PARTITION_BYTES = 64 << 20

#: below this many bytes a pool costs more than it brings
POOL_FROM_BYTES = 96 << 20

Task = TypeVar("Task")
Answer = TypeVar("Answer")


#: called with the name of the work, the bytes of the tasks that are done, and those of all tasks
Progress = Callable[[str, int, int], None]


class EngineError(Exception):
    """The engine cannot be used here, or broke down; the text is one line for the operator."""


class Engine(Protocol):
    """
    Does work somewhere and returns the answers in the order of the tasks.

    ``name`` is what the summary calls it. ``progress``, if it is set, is called in the thread that called :meth:`run`:
    with nothing done, whenever tasks are done (on Spark twice a second at most), and at last with everything done.
    """

    @property
    def name(self) -> str: ...

    progress: Progress | None

    def run(self, work: Work[Task, Answer], tasks: Sequence[Task]) -> list[Answer]:
        """Do ``work`` on every task; EngineError when the engine itself fails."""

    def close(self) -> None:
        """Let go of everything the engine holds."""


class LocalEngine:
    """The work in this process, or in a pool of processes when there is much of it."""

    def __init__(self, workers: int | None = None, pool_from_bytes: int = POOL_FROM_BYTES) -> None:
        self._workers = workers or len(os.sched_getaffinity(0))
        self._pool_from_bytes = pool_from_bytes
        self._pool: ProcessPoolExecutor | None = None
        self.progress: Progress | None = None
        self.name = "local" if self._workers == 1 else f"local, {self._workers} processes"

    def run(self, work: Work[Task, Answer], tasks: Sequence[Task]) -> list[Answer]:
        total = sum(map(work.cost, tasks))
        done = Done(work.name, total, self.progress)
        if self._workers == 1 or len(tasks) < 2 or total < self._pool_from_bytes:
            answers = []
            for task in tasks:
                answers.append(work.do(task))
                done.add(work.cost(task))
            done.finish()
            return answers
        if self._pool is None:
            # spawned, not forked: this process may hold threads
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=spawn, initializer=_leave_interrupts)
        futures = {self._pool.submit(work.do, task): work.cost(task) for task in tasks}
        try:
            for future in as_completed(futures):
                future.result()
                done.add(futures[future])
        except BrokenProcessPool as error:
            raise EngineError(f"a worker process died during {work.name}, perhaps out of memory") from error
        finally:
            for future in futures:
                future.cancel()
        done.finish()
        return [future.result() for future in futures]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Done:
    """What is done of one job, reported to ``progress`` if that is set."""

    def __init__(self, name: str, total: int, progress: Progress | None) -> None:
        self._name = name
        self._total = total
        self._progress = progress
        self._done = 0
        self._report()

    def add(self, amount: int) -> None:
        """Count ``amount`` more bytes as done."""
        self.reach(self._done + amount)

    def reach(self, done: int) -> None:
        """Count ``done`` bytes in all; a task that was done twice does not count twice."""
        if self._done < done < self._total:
            self._done = done
            self._report()

    def finish(self) -> None:
        """Count everything as done."""
        self._done = self._total
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._name, self._done, self._total)


def _leave_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to every process, to the one that was started; workers end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def packed(tasks: Sequence[Task], cost: Callable[[Task], int], cores: int) -> Iterator[list[int]]:
    """
    Return the indices of the tasks of each partition, in order: about one a core, or several where there is much to do.

    Small tasks share a partition, since a task of Spark costs 60 ms of Python however little it does.
    """
    total = sum(map(cost, tasks))
    of_many, of_few = total // (cores * PARTITIONS_PER_CORE), -(-total // cores)
    size = min(PARTITION_BYTES, max(of_many, min(SMALL_PARTITION_BYTES, of_few)))
    return grouped(map(cost, tasks), size)


def grouped(costs: Iterable[int], size: int) -> Iterator[list[int]]:
    """Yield indices in groups that cost ``size`` at most, or are one alone, in order."""
    group: list[int] = []
    held = 0
    for index, cost in enumerate(costs):
        if group and held + cost > size:
            yield group
            group, held = [], 0
        group.append(index)
        held += cost
    if group:
        yield group
