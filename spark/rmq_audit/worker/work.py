"""What all work of the workers has in common: how it is declared, and how the sides of a pair are called."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

MASTER, SLAVE, BOTH = "master", "slave", "both"
#: the side of a store that is checked alone
STORE = "store"
UNDECIDED = "undecided"

MAX_SAMPLES = 10


class Severity(enum.IntEnum):
    """How bad a finding is; WARN makes exit status 1, ERROR and CRITICAL make 2."""

    INFO = 0
    WARN = 1
    ERROR = 2
    CRITICAL = 3


@attrs.define(kw_only=True)
class Fault:
    """
    Something wrong, as a worker saw it: what a finding says of it.

    Ranges are half open for physical offsets and closed for queue offsets. ``severity`` is another one than the
    invariant has. ``expected`` is what the master (or the rule) says, ``actual`` what the slave (or the damaged side)
    holds. ``blame`` names the replica that fails its own checks: ``master``, ``slave``, ``both``, or ``undecided`` when
    neither does. ``field`` is the first in which a record differs, ``differing_fields`` are all of them with the values
    of both sides. A store that is checked alone has its evidence in ``evidence_master``.
    """

    invariant: str
    severity: Severity | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset_from: int | None = None
    queue_offset_to: int | None = None
    phy_from: int | None = None
    phy_to: int | None = None
    count: int = 1
    expected: str | None = None
    actual: str | None = None
    blame: str | None = None
    evidence_phy: int | None = None
    evidence_master: str | None = None
    evidence_slave: str | None = None
    field: str | None = None
    differing_fields: list[dict[str, str | None]] = attrs.field(factory=list)
    sample_msg_ids: list[str] = attrs.field(factory=list)
    detail: str = ""

    @property
    def phy(self) -> int:
        """Where a fault of the log begins."""
        assert self.phy_from is not None, f"{self.invariant} has no place in the log"
        return self.phy_from


@attrs.frozen(kw_only=True)
class IndexFile:
    """
    A file of the record index: rows up to the record at ``last_phy``; no ``path`` where there was nothing to write.
    """

    path: str | None
    rows: int
    last_phy: int
    error: str | None = None


Task = TypeVar("Task")
Answer = TypeVar("Answer")


@attrs.frozen
class Work(Generic[Task, Answer]):
    """
    A pure function from a task to an answer, and about how many bytes a task reads.

    Tasks and answers are small values, never bodies. ``remembered`` is the class of answers that a state may keep for
    the next run; None when they are not kept.
    """

    name: str
    do: Callable[[Task], Answer]
    cost: Callable[[Task], int]
    remembered: type[Answer] | None = None
