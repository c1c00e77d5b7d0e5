"""
Simulated time: one heap of events, one seed, one hash over everything that happened.

The same seed runs the same events in the same order and ends with the same :attr:`Trace.digest`. Events of the same
instant are ordered by the seed, so that many runs explore many orders.
"""

from __future__ import annotations

import hashlib
import heapq
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.base import DelayedCall
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from rmq.sim.node import Node

T = TypeVar("T")

#: what the clocks of nodes show at the beginning, seconds since 1970
EPOCH_S = 1_767_225_600.0
#: lines of the trace that are kept to be shown
TRACE_TAIL = 300
#: lines that are hashed in one go: a third of the time of hashing them one by one
TRACE_BATCH = 1000
#: events of one instant after which the run is called a livelock
MAX_EVENTS_AT_ONCE = 200_000
#: signals whose handlers raise to end a test: Ctrl-C, pytest-timeout
ENDING_SIGNALS = (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)


class SimError(AssertionError):
    """The simulation did not get where it should, or cannot go on; the text names the seed."""


class Trace:
    """A running SHA-256 over all that happened, with the last lines in clear."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._hashed = 0
        #: the last lines that are hashed already, and those that are not
        self._before: list[str] = []
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        lines = self._lines
        lines.append(line)
        if len(lines) >= TRACE_BATCH:
            self._hash_lines()

    @property
    def count(self) -> int:
        """How many lines there are."""
        return self._hashed + len(self._lines)

    @property
    def tail(self) -> list[str]:
        """The last lines, oldest first."""
        return (self._before + self._lines)[-TRACE_TAIL:]

    @property
    def digest(self) -> str:
        """The hash so far, in hex."""
        self._hash_lines()
        return self._hash.hexdigest()

    def _hash_lines(self) -> None:
        if self._lines:
            self._hash.update(("\n".join(self._lines) + "\n").encode())
            self._hashed += len(self._lines)
            self._before = self.tail
            self._lines.clear()


class Trap:
    """``with world.trap(what)``: an exception inside is logged and kept in ``world.failures``, as a reactor would.

    It may be entered again and again; ``what`` is put into words only when there is something to tell.
    """

    _log = Logger()

    def __init__(self, world: World, what: object) -> None:
        self._world = world
        self._what = what
        self.failure: Failure | None = None

    def __enter__(self) -> Trap:
        self.failure = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        what = str(self._what)
        self.failure = Failure(error, kind, traceback)
        self._world.failures.append(self.failure)
        self._world.note("failure", what, type(error).__name__)
        self._log.failure("{what} raised (seed {seed})", self.failure, what=what, seed=self._world.seed)
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
        self._draw_order = self.rng_for("order").random
        #: when in simulated time, order, number, when on its owner's clock, call
        self._heap: list[tuple[float, float, int, float, DelayedCall]] = []
        self._pushed = 0
        self._at_once = 0
        self._trap = Trap(self, "an event")
        #: what the handler of a signal raised; whatever ran then may have caught it
        self._interrupt: BaseException | None = None
        self._notes_signals = False

    def rng_for(self, *names: object) -> Random:
        """Return a generator that depends on the seed and ``names`` only."""
        return Random("/".join(str(name) for name in (self.seed, *names)))

    def note(self, *parts: object) -> None:
        """Put a line into the trace."""
        self.trace.add(f"{self.now_s:.9f} " + " ".join(map(str, parts)))

    def trap(self, what: object) -> Trap:
        return Trap(self, what)

    def schedule(
        self,
        delay_s: float,
        call: Callable[[], object],
        *,
        base_s: float = 0.0,
        forget: Callable[[DelayedCall], None] = lambda call: None,
    ) -> DelayedCall:
        """
        Run ``call`` after ``delay_s`` simulated seconds; ``forget`` hears that the event is no more.

        ``base_s`` is what its owner's clock shows when simulated time is 0.
        """
        assert delay_s >= 0, f"a delay of {delay_s} s"
        at_s = self.now_s + delay_s

        def push(event: DelayedCall) -> None:
            """Queue the event at its time; another place in the queue becomes void by its time."""
            self._pushed += 1
            heapq.heappush(self._heap, (event.time - base_s, self._draw_order(), self._pushed, event.time, event))

        event = DelayedCall(base_s + at_s, call, (), {}, forget, push, lambda: base_s + self.now_s)
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._draw_order(), self._pushed, event.time, event))
        return event

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        return self._step(float("inf"))

    def run_for(self, seconds: float) -> None:
        """Let ``seconds`` pass, with all the events in them."""
        end_s = self.now_s + seconds
        with self._noting_signals():
            while self._step(end_s):
                pass
        self._move_to(end_s)

    def run_until(self, condition: Callable[[], object], limit_s: float = 60.0, what: str = "the condition") -> None:
        """Run until ``condition`` holds; a SimError when it does not within ``limit_s`` seconds."""
        end_s = self.now_s + limit_s
        with self._noting_signals():
            while not condition():
                if not self._step(end_s):
                    self._move_to(end_s)
                    raise SimError(f"{what} is not true after {limit_s} s (seed {self.seed}, time {self.now_s:.3f} s)")

    def settle(self, deferred: Deferred[T], limit_s: float = 60.0) -> T:
        """Run until ``deferred`` has fired and return its result or raise its failure."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.run_until(lambda: results, limit_s, "the Deferred's result")
        if isinstance(results[0], Failure):
            results[0].raiseException()
        result: T = results[0]
        return result

    @contextmanager
    def _noting_signals(self) -> Iterator[None]:
        """Let what a handler of a signal raises in an event end the run, also if a Deferred or a retry caught it."""
        if self._notes_signals:
            yield
            return
        before = {signum: found for signum in ENDING_SIGNALS if callable(found := signal.getsignal(signum))}

        def keep(kind: object, error: BaseException | None, traceback: object) -> None:
            self._interrupt = error

        def note(signum: int, frame: FrameType | None) -> None:
            with ExitStack() as stack:
                stack.push(keep)
                before[signal.Signals(signum)](signum, frame)

        self._notes_signals = True
        try:
            # Only the main thread may, and only there handlers run.
            with suppress(ValueError):
                for signum in before:
                    signal.signal(signum, note)
            yield
        finally:
            for signum, handler in before.items():
                if signal.getsignal(signum) is note:
                    signal.signal(signum, handler)
            self._notes_signals, self._interrupt = False, None

    def _step(self, end_s: float) -> bool:
        """Run the next event unless it comes after ``end_s``; False when there is none until then."""
        heap = self._heap
        while heap:
            at_s, _, _, time_s, call = heap[0]
            if not call.active() or time_s != call.time or call.delayed_time:
                heapq.heappop(heap)
                if call.active() and time_s == call.time:
                    call.activate_delay()
                    call.resetter(call)
                continue
            if at_s > end_s:
                return False
            heapq.heappop(heap)
            self._move_to(at_s)
            with self._trap:
                call.called = 1
                call.canceller(call)
                call.func()
            if self._interrupt is not None:
                raise self._interrupt
            return True
        return False

    def _move_to(self, time_s: float) -> None:
        if time_s > self.now_s:
            self.now_s = time_s
            self._at_once = 0
        self._at_once += 1
        if self._at_once > MAX_EVENTS_AT_ONCE:
            raise SimError(f"{MAX_EVENTS_AT_ONCE} events at {self.now_s:.6f} s: a livelock (seed {self.seed})")
