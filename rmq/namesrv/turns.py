"""
Large pieces of work take turns, so that small ones are done between them.

Three hundred brokers that register ten thousand topics each at the same moment are nine seconds of work. Their requests
are complete in the same turn of the reactor, and whoever asks for a route meanwhile would wait for all of them, longer
than a client's timeout. So only the first is done at once; each other one waits for a reactor turn of its own, and in
the middle of a large one there is a turn for others.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

#: bytes of the requests that wait for their turn; what is beyond that is done at once
MAX_WAITING_BYTES = 1 << 30


class Turns:
    """Hands out reactor turns, one for each piece of work, in the order in which they were asked for."""

    def __init__(self, clock: IReactorTime, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._clock = clock
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[tuple[Deferred[None], int]] = deque()
        self._taken = False
        self.waiting_bytes = 0
        #: whether there was anything to do; to be reset by who asks
        self.worked = False

    @property
    def busy(self) -> bool:
        """Whether anybody waits; what is small then waits, too, if it must not overtake."""
        return bool(self._waiting)

    def wait(self, size_bytes: int, *, first: bool = False) -> Deferred[None] | None:
        """
        Return what fires in the turn of a piece of work of this size; None when it is to be done at once.

        ``first``: the turn is the next one, before all who wait already; for the second half of a piece of work.
        """
        self.worked = True
        if not self._taken:
            self._taken = True
            # Twice: what is scheduled while sockets are read runs before they are looked at again.
            self._clock.callLater(0, self._clock.callLater, 0, self._next)
            return None
        if self.waiting_bytes + size_bytes > self._max_waiting_bytes:
            return None
        turn: Deferred[None] = Deferred()
        if first:
            self._waiting.appendleft((turn, size_bytes))
        else:
            self._waiting.append((turn, size_bytes))
        self.waiting_bytes += size_bytes
        return turn

    def _next(self) -> None:
        if not self._waiting:
            self._taken = False
            return
        turn, size_bytes = self._waiting.popleft()
        self.waiting_bytes -= size_bytes
        self._clock.callLater(0, self._next)
        turn.callback(None)
