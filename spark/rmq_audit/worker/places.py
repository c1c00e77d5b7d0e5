"""The records that stand at given places of the log, found without walking to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmq_audit.worker import kernel
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.kernel import Bools, Columns, Ints
from rmq_audit.worker.records import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, Record, record_at

#: so much of the log is looked at in one go
WINDOW_BYTES = 64 << 20


def windows(phy: Ints, rows: Ints) -> Iterator[Ints]:
    """Yield the rows (ascending by place) in groups whose records lie within one window."""
    begin = 0
    while begin < len(rows):
        end = int(np.searchsorted(phy[rows], phy[rows[begin]] + WINDOW_BYTES))
        yield rows[begin:end]
        begin = end


class Places:
    """
    The records at places of one segment: ascending physical offsets, one may come twice.

    ``there`` tells for each place whether a record stands there that knows its own offset, ``row`` which of the
    ``columns`` it is (anything where none is). ``data`` begins at the physical offset ``base``.
    """

    def __init__(self, file: LogFile, phy: Ints) -> None:
        first, last = int(phy[0]), int(phy[-1])
        window = Window(file, first, last + 1)
        window.near(last)
        unique, which = np.unique(phy, return_inverse=True)
        plausible = _plausible(window, unique)
        self.data, self.base = window.data, window.base
        self.columns = _gathered(window.data, unique[plausible] - window.base)
        right = self.columns.pos[self.columns.phy == self.columns.pos + window.base]
        self.there: Bools = np.isin(unique - window.base, right)[which]
        row = np.searchsorted(self.columns.pos, unique - window.base)[which]
        self.row: Ints = np.minimum(row, max(len(self.columns) - 1, 0))

    def record(self, index: int) -> Record | None:
        """Return the record at the place with that number in full."""
        if not self.there[index]:
            return None
        at = int(self.columns.pos[self.row[index]])
        return record_at(self.data, at, self.base + at)


def _plausible(window: Window, phy: Ints) -> Bools:
    """Return which places begin like a record that lies in the log; the window is made to hold the last of them."""
    at = phy - window.base
    whole: Bools = at + MIN_RECORD_BYTES <= len(window.data)
    if not whole.any():
        return whole
    heads = kernel.items(window.data, np.where(whole, at, 0), 8).view([("size", ">u4"), ("magic", ">u4")])
    size = heads["size"].astype(np.int64)
    plausible: Bools = whole & ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2))
    plausible &= (size >= MIN_RECORD_BYTES) & (phy + size <= window.file.limit)
    if plausible[-1]:
        plausible[-1] = window.reach(int(phy[-1] + size[-1]))
    plausible &= at + size <= len(window.data)
    return plausible


def _gathered(data: bytes, starts: Ints) -> Columns:
    """Return the columns of those starts whose parts add up."""
    pieces: list[Columns] = []
    rest = starts
    while len(rest):
        piece = kernel.gather(data, rest.tolist())
        pieces.append(piece)
        rest = rest[len(piece) + 1 :]
    return kernel.concatenate(pieces)
