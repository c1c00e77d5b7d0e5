"""What all work of the workers has in common: how it is declared, and how the sides of a pair are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

MASTER, SLAVE, BOTH = "master", "slave", "both"
#: the side of a store that is checked alone
STORE = "store"
UNDECIDED = "undecided"

MAX_SAMPLES = 10

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
