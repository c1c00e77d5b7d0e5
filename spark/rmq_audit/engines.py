"""How tasks reach the cores: one interface, and the engine that needs no Spark."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from rmq_audit.work import Work

#: a partition takes tasks until they make so many bytes
PARTITION_BYTES = 64 << 20

#: below this many bytes a pool costs more than it brings
POOL_FROM_BYTES = 96 << 20

Task = TypeVar("Task")
Answer = TypeVar("Answer")


class EngineError(Exception):
    """The engine cannot be used here, or broke down; the text is one line for the operator."""


class Engine(Protocol):
    """Does work somewhere and returns the answers in the order of the tasks."""

    @property
    def name(self) -> str:
        """What the summary calls it."""

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
        self.name = "local" if self._workers == 1 else f"local, {self._workers} processes"

    def run(self, work: Work[Task, Answer], tasks: Sequence[Task]) -> list[Answer]:
        if self._workers == 1 or len(tasks) < 2 or sum(map(work.cost, tasks)) < self._pool_from_bytes:
            return [work.do(task) for task in tasks]
        if self._pool is None:
            # spawned, not forked: this process may hold threads
            self._pool = ProcessPoolExecutor(self._workers, mp_context=multiprocessing.get_context("spawn"))
        try:
            return list(self._pool.map(work.do, tasks))
        except BrokenProcessPool as error:
            raise EngineError(f"a worker process died during {work.name}, perhaps for want of memory") from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def packed(tasks: Sequence[Task], cost: Callable[[Task], int], at_least: int) -> Iterator[list[int]]:
    """
    Yield the indices of the tasks of each partition, in order: up to PARTITION_BYTES, and about ``at_least``
    partitions.

    Small tasks share a partition, since a task of Spark costs 60 ms of Python however little it does.
    """
    size = min(PARTITION_BYTES, -(-sum(map(cost, tasks)) // at_least))
    group: list[int] = []
    held = 0
    for index, task in enumerate(tasks):
        if group and held + cost(task) > size:
            yield group
            group, held = [], 0
        group.append(index)
        held += cost(task)
    if group:
        yield group
