"""
Which parts of a log were written by which elected master: the table of epochs, and where two logs must agree.

Two logs that have an epoch in common, with the same start, have the same bytes up to where the first of them leaves
that epoch: one master wrote them, and the other took them from it. What either has behind that place may differ.

Java: EpochFileCache
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs

from rmq.runtime.disk.files import Disk
from rmq.runtime.disk.statefile import StateFileError

_LINE = re.compile(r"([0-9]{1,10})-([0-9]{1,19})", re.ASCII)


@attrs.frozen(order=True)
class Epoch:
    """From ``start`` on, the master of ``number`` wrote the log."""

    number: int
    start: int


#: what was written before a controller elected anybody
BEFORE = Epoch(0, 0)


def load_epochs(disk: Disk, path: str) -> list[Epoch]:
    """Read the table; empty without a file. A broken file is a StateFileError: without it nobody knows what to cut."""
    if not disk.exists(path):
        return []
    count, *lines = disk.read_whole(path).decode("ascii", "replace").split() or [""]
    found = [match for match in map(_LINE.fullmatch, lines) if match is not None]
    epochs = [Epoch(int(match[1]), int(match[2])) for match in found]
    grows = all(one.number < other.number and one.start < other.start for one, other in pairwise(epochs))
    if count != str(len(lines)) or len(epochs) != len(lines) or not grows:
        raise StateFileError(f"{path} is no table of epochs (a line with their number, then epoch-startOffset)")
    return epochs


def save_epochs(disk: Disk, path: str, epochs: Sequence[Epoch]) -> None:
    """Write the table durably; DiskError when that fails."""
    lines = [str(len(epochs)), *(f"{epoch.number}-{epoch.start}" for epoch in epochs)]
    disk.write_atomic(path, ("\n".join(lines) + "\n").encode())


def with_epoch(epochs: Iterable[Epoch], number: int, end_offset: int) -> list[Epoch]:
    """Return the table of a broker that becomes master in epoch ``number`` with a log that ends at ``end_offset``."""
    return [*(epoch for epoch in epochs if epoch.start < end_offset), Epoch(number, end_offset)]


def common_end(mine: Sequence[Epoch], theirs: Sequence[Epoch]) -> int | None:
    """
    Return the offset up to which two logs agree, as far as they have it; None when that is all that mine has.

    ``theirs`` is the master's. ValueError when mine has a later epoch than the master: it was elected by a controller
    that has lost its state.
    """
    mine, theirs = [BEFORE, *mine], [BEFORE, *theirs]
    if mine[-1].number > theirs[-1].number:
        raise ValueError(
            f"this store has epoch {mine[-1].number}, its master only epoch {theirs[-1].number}: has the controller "
            "lost its state?"
        )
    shared = max(set(mine) & set(theirs))
    ends = [_end_of(shared, table) for table in (mine, theirs)]
    return min((end for end in ends if end is not None), default=None)


def _end_of(epoch: Epoch, table: Sequence[Epoch]) -> int | None:
    """Return where an epoch of a table ends; None for the last one."""
    after = table.index(epoch) + 1
    return table[after].start if after < len(table) else None
