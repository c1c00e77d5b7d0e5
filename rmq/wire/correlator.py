"""
Pending requests by opaque: one table per connection and direction.

Java: NettyRemotingAbstract#responseTable, #scanResponseTable
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

W = TypeVar("W")

#: limit of pending requests of one connection
MAX_WAITING_REQUESTS = 65_535
_MAX_OPAQUE = 2**31


class TooManyWaiting(Exception):
    """MAX_WAITING_REQUESTS requests are pending already."""


class Correlator(Generic[W]):
    """
    Requests that wait for an answer, by opaque; each has a deadline in seconds of the caller's clock.

    Every pending request is removed exactly once: by its answer, by :meth:`expire`, :meth:`forget` or :meth:`close`.
    ``late`` counts answers to removed requests, ``unknown`` those to opaques that were never used.
    """

    def __init__(self, limit: int = MAX_WAITING_REQUESTS) -> None:
        self._limit = limit
        self._waiting: dict[int, tuple[float, W]] = {}
        # Deadlines of answered requests stay until they are due or make up most of the heap.
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        self._wrapped = False
        self.late = 0
        self.unknown = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: W, deadline: float) -> int:
        """Add a request and return its opaque; TooManyWaiting when the table is full."""
        if len(self._waiting) >= self._limit:
            raise TooManyWaiting(f"{self._limit} requests wait for an answer")
        opaque = self._opaque()
        self._waiting[opaque] = (deadline, waiting)
        heappush(self._deadlines, (deadline, opaque))
        if len(self._deadlines) > 2 * len(self._waiting) + 64:
            self._deadlines = [(due, number) for number, (due, _) in self._waiting.items()]
            heapify(self._deadlines)
        return opaque

    def answered(self, opaque: int) -> W | None:
        """Remove and return the request of an answer; None, and counted, when there is none."""
        entry = self._waiting.pop(opaque, None)
        if entry is not None:
            return entry[1]
        if 0 <= opaque < (_MAX_OPAQUE if self._wrapped else self._next):
            self.late += 1
        else:
            self.unknown += 1
        return None

    def forget(self, opaque: int) -> W | None:
        """Remove a request that is no longer needed."""
        entry = self._waiting.pop(opaque, None)
        return None if entry is None else entry[1]

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, None when nothing is pending."""
        deadlines = self._deadlines
        while deadlines:
            deadline, opaque = deadlines[0]
            entry = self._waiting.get(opaque)
            if entry is not None and entry[0] == deadline:
                return deadline
            heappop(deadlines)
        return None

    def expire(self, now: float) -> list[W]:
        """Remove and return the requests whose deadline is ``now`` or earlier, the earliest first."""
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, opaque = heappop(self._deadlines)
            expired.append(self._waiting.pop(opaque)[1])
        return expired

    def close(self) -> list[W]:
        """Remove and return all requests, in the order in which they were added."""
        waiting = [request for _, request in self._waiting.values()]
        self._waiting.clear()
        self._deadlines.clear()
        return waiting

    def _opaque(self) -> int:
        opaque = self._next
        while opaque in self._waiting:
            opaque = (opaque + 1) % _MAX_OPAQUE
        self._next = (opaque + 1) % _MAX_OPAQUE
        self._wrapped = self._wrapped or self._next == 0
        return opaque
