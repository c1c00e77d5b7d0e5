"""A master that sends only what is on its own disk (``haTransferFlushedOnly``)."""

from __future__ import annotations

from typing import Protocol

from rmq.ha.master import ReadableLog
from rmq.ha.session import Piece


class FlushableLog(ReadableLog, Protocol):
    """A log that knows how far it is on disk."""

    @property
    def flushed_offset(self) -> int:
        """Everything before is on disk."""


class FlushedLog:
    """
    The part of a log that is on disk, which is all that slaves may hold.

    A slave can then never be ahead of a master that lost its power: what the master lost, nobody has.
    """

    def __init__(self, log: FlushableLog) -> None:
        self._log = log

    @property
    def min_phy_offset(self) -> int:
        return self._log.min_phy_offset

    @property
    def end_offset(self) -> int:
        return self._log.flushed_offset

    def read(self, phy_offset: int, limit: int) -> Piece:
        """Return bytes that are on disk, as `ReadableLog.read`."""
        return self._log.read(phy_offset, max(0, min(limit, self._log.flushed_offset - phy_offset)))
