"""The kinds of work that leave the driver, as one table for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import attrs

from rmq_audit.drill import drill
from rmq_audit.indexes import check_index
from rmq_audit.names import find_names
from rmq_audit.scan import scan
from rmq_audit.sends import check_sends
from rmq_audit.tasks import AckCheck, Drill, IndexCheck, IndexFile, NameSearch, QueueCheck, Split, TrimIndex, UnitCheck
from rmq_audit.units import check_queue, check_units

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@attrs.frozen
class Work(Generic[Task, Answer]):
    """A pure function from a task to an answer, and about how many bytes a task reads."""

    name: str
    do: Callable[[Task], Answer]
    cost: Callable[[Task], int]


def _split_bytes(task: Split) -> int:
    return task.end - task.begin


def _drill_bytes(task: Drill) -> int:
    return 2 * (task.end - task.begin)


def _queue_bytes(task: QueueCheck) -> int:
    return sum(file.size_bytes for file in task.files)


def _units_bytes(task: UnitCheck) -> int:
    return task.run.phy_last - task.run.phy_first


def _index_bytes(task: IndexCheck) -> int:
    return 4 * task.size_bytes  # each entry is held against a record


def _sends_bytes(task: AckCheck) -> int:
    return task.sends[-1].phy - task.sends[0].phy


def _search_bytes(task: NameSearch) -> int:
    return task.end - task.start


def _trim(task: TrimIndex) -> IndexFile:
    from rmq_audit.recordindex import trim  # needs pyarrow, which only an index does

    return trim(task)


def _trim_bytes(task: TrimIndex) -> int:
    return 1 << 20


SCAN = Work("scan", scan, _split_bytes)
DRILL = Work("drill", drill, _drill_bytes)
QUEUES = Work("queues", check_queue, _queue_bytes)
UNITS = Work("units", check_units, _units_bytes)
INDEXES = Work("indexes", check_index, _index_bytes)
ACKED = Work("acked", check_sends, _sends_bytes)
NAMES = Work("names", find_names, _search_bytes)
TRIM = Work("trim", _trim, _trim_bytes)

#: name -> work, for the workers
WORKS: dict[str, Work[Any, Any]] = {
    work.name: work for work in (SCAN, DRILL, QUEUES, UNITS, INDEXES, ACKED, NAMES, TRIM)
}


def answer_partition(name: str, tasks: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Do one partition's numbered tasks and yield their answers. This is what Spark's workers run."""
    work = WORKS[name]
    for index, task in tasks:
        yield index, work.do(task)
