"""What all work of the workers has in common: how it is declared, and how the sides of a pair are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs

MASTER, SLAVE, BOTH = "master", "slave", "both"
#: the side of a store that is checked alone
STORE = "store"
UNDECIDED = "undecided"

MAX_SAMPLES = 10


@attrs.frozen(kw_only=True)
class Fault:
    """
    Something wrong, as a worker saw it. The members are those of a finding and mean the same there.

    ``severity`` is the name of another one than the invariant has.
    """

    invariant: str
    severity: str | None = None
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
    differing_fields: Sequence[dict[str, str | None]] = ()
    sample_msg_ids: Sequence[str] = ()
    detail: str = ""

    @property
    def phy(self) -> int:
        """Where a fault of the log begins."""
        assert self.phy_from is not None, f"{self.invariant} has no place in the log"
        return self.phy_from


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
