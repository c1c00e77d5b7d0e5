"""
Simulated time: one heap of events, one seed, one hash over everything that happened.

The same seed runs the same events in the same order and ends with the same :attr:`Trace.digest`. Events of the same
instant are ordered by the seed, so that many runs explore many orders.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

if TYPE_CHECKING:
    from rmq.sim.node import Node

T = TypeVar("T")

#: what the clocks of nodes show at the beginning, seconds since 1970
EPOCH_S = 1_767_225_600.0
#: lines of the trace that are kept to be shown
TRACE_TAIL = 300
#: events of one instant after which the run is called a livelock
MAX_EVENTS_AT_ONCE = 200_000


class SimError(AssertionError):
    """The simulation did not get where it should, or cannot go on; the text names the seed."""


class Trace:
    """A running SHA-256 over all that happened, with the last lines in clear."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.tail: deque[str] = deque(maxlen=TRACE_TAIL)
        self.count = 0

    def add(self, line: str) -> None:
        self._hash.update(line.encode() + b"\n")
        self.tail.append(line)
        self.count += 1

    @property
    def digest(self) -> str:
        """The hash so far, in hex."""
        return self._hash.hexdigest()


@implementer(IDelayedCall)
class SimCall:
    """One event to come. ``base_s`` is what its owner's clock shows when simulated time is 0."""

    def __init__(
        self, world: World, at_s: float, call: Callable[[], object], base_s: float, forget: Callable[[SimCall], None]
    ) -> None:
        self._world = world
        self.at_s = at_s
        self.version = 0
        self._call: Callable[[], object] | None = call
        self._base_s = base_s
        self._forget = forget
        self._cancelled = False

    def getTime(self) -> float:
        return self._base_s + self.at_s

    def active(self) -> bool:
        return self._call is not None

    def cancel(self) -> None:
        self._check()
        self._cancelled = True
        self._call = None
        self._forget(self)

    def delay(self, secondsLater: float) -> None:
        self._check()
        self._move(self.at_s + secondsLater)

    def reset(self, secondsFromNow: float) -> None:
        self._check()
        self._move(self._world.now_s + secondsFromNow)

    def run(self) -> None:
        """Make the call, once."""
        assert self._call is not None
        call, self._call = self._call, None
        self._forget(self)
        call()

    def _move(self, at_s: float) -> None:
        self.at_s = at_s
        self.version += 1
        self._world.push(self)

    def _check(self) -> None:
        if self._cancelled:
            raise AlreadyCancelled
        if self._call is None:
            raise AlreadyCalled


class Trap:
    """``with world.trap(what)``: an exception inside is logged and kept in ``world.failures``, as a reactor would."""

    _log = Logger()

    def __init__(self, world: World, what: str) -> None:
        self._world = world
        self._what = what
        self.failure: Failure | None = None

    def __enter__(self) -> Trap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        self.failure = Failure(error, kind, traceback)
        self._world.failures.append(self.failure)
        self._world.note("failure", self._what, type(error).__name__)
        self._log.failure("{what} raised (seed {seed})", self.failure, what=self._what, seed=self._world.seed)
        return True


class World:
    """
    Everything that one simulated run consists of.

    ``rng`` is for the simulation itself; nodes get generators of their own from :meth:`rng_for`, so that one more draw
    in one place does not change all the others.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.trace = Trace()
        self.rng = self.rng_for("world")
        self.nodes: dict[str, Node] = {}
        #: exceptions that reached the reactor of a node
        self.failures: list[Failure] = []
        self._order = self.rng_for("order")
        self._heap: list[tuple[float, float, int, int, SimCall]] = []
        self._pushed = 0
        self._at_once = 0

    def rng_for(self, *names: object) -> Random:
        """Return a generator that depends on the seed and ``names`` only."""
        return Random("/".join(str(name) for name in (self.seed, *names)))

    def note(self, *parts: object) -> None:
        """Put a line into the trace."""
        self.trace.add(f"{self.now_s:.9f} " + " ".join(map(str, parts)))

    def trap(self, what: str) -> Trap:
        return Trap(self, what)

    def schedule(
        self,
        delay_s: float,
        call: Callable[[], object],
        *,
        base_s: float = 0.0,
        forget: Callable[[SimCall], None] = lambda call: None,
    ) -> SimCall:
        """Run ``call`` after ``delay_s`` simulated seconds."""
        assert delay_s >= 0, f"a delay of {delay_s} s"
        event = SimCall(self, self.now_s + delay_s, call, base_s, forget)
        self.push(event)
        return event

    def push(self, call: SimCall) -> None:
        """Queue ``call`` at its time; an earlier place in the queue becomes void by its version."""
        self._pushed += 1
        heapq.heappush(self._heap, (call.at_s, self._order.random(), self._pushed, call.version, call))

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        while self._heap:
            at_s, _, _, version, call = heapq.heappop(self._heap)
            if not call.active() or version != call.version:
                continue
            self._move_to(max(at_s, self.now_s))
            with self.trap("an event"):
                call.run()
            return True
        return False

    def run_for(self, seconds: float) -> None:
        """Let ``seconds`` pass, with all the events in them."""
        end_s = self.now_s + seconds
        while (next_s := self._next_s()) is not None and next_s <= end_s:
            self.step()
        self._move_to(end_s)

    def run_until(self, condition: Callable[[], object], limit_s: float = 60.0, what: str = "the condition") -> None:
        """Run until ``condition`` holds; a SimError when it does not within ``limit_s`` seconds."""
        end_s = self.now_s + limit_s
        while not condition():
            next_s = self._next_s()
            if next_s is None or next_s > end_s:
                self._move_to(end_s)
                raise SimError(f"{what} is not true after {limit_s} s (seed {self.seed}, time {self.now_s:.3f} s)")
            self.step()

    def settle(self, deferred: Deferred[T], limit_s: float = 60.0) -> T:
        """Run until ``deferred`` has fired and return its result or raise its failure."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.run_until(lambda: results, limit_s, "the Deferred's result")
        if isinstance(results[0], Failure):
            results[0].raiseException()
        result: T = results[0]
        return result

    def _next_s(self) -> float | None:
        while self._heap and (not self._heap[0][4].active() or self._heap[0][3] != self._heap[0][4].version):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _move_to(self, time_s: float) -> None:
        if time_s > self.now_s:
            self.now_s = time_s
            self._at_once = 0
        self._at_once += 1
        if self._at_once > MAX_EVENTS_AT_ONCE:
            raise SimError(f"{MAX_EVENTS_AT_ONCE} events at {self.now_s:.6f} s: a livelock (seed {self.seed})")
