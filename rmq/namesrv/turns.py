"""
Large pieces of work take turns, so that small ones are done between them.

Three hundred brokers that register ten thousand topics each at the same moment are nine seconds of work. Their requests
are complete in the same turn of the reactor, and a look-up would wait for all of them, longer than a client's timeout.
So only the first is done at once; each other one waits for a reactor turn of its own, and a large one takes two.
"""

from __future__ import annotations

from collections import deque

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

#: bytes of the requests that wait for their turn; beyond that requests are done at once
MAX_WAITING_BYTES = 1 << 30


class Turns:
    """Gives each piece of work a reactor turn, in the order of the calls."""

    def __init__(self, clock: IReactorTime, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._clock = clock
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[tuple[Deferred[None], int]] = deque()
        self._taken = False
        self.waiting_bytes = 0
        #: True after any work; the caller resets it
        self.worked = False

    @property
    def busy(self) -> bool:
        """Whether work waits; small work that must not overtake it then waits, too."""
        return bool(self._waiting)

    def wait(self, size_bytes: int, *, first: bool = False) -> Deferred[None] | None:
        """
        Return a Deferred that fires in the turn of a piece of work of this size; None when it is to be done at once.

        ``first``: the turn is the next one, before all others; for the second half of a piece of work.
        """
        self.worked = True
        if not self._taken:
            self._taken = True
            # Twice: a call that is scheduled while sockets are read runs before they are read again.
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
