"""
Time in milliseconds, the timer of many deadlines, and the loop of every periodic job.

There are two times. The *steady* time, ``clock.seconds()``, only moves forward: timers, expiry, deadlines and
durations use it. The *wall* time is for time stamps and for people; it may jump by minutes at any moment. A clock
whose wall time can differ from the steady one has a ``wall_seconds`` beside ``seconds``, as the reactor of a real
process has (see :mod:`rmq.runtime.platform`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.runtime.disk.error import DiskError

T = TypeVar("T")
R = TypeVar("R")


def now_ms(clock: IReactorTime) -> int:
    """Return the wall-clock time of ``clock`` in milliseconds since the epoch, as RocketMQ stamps it."""
    wall_seconds = getattr(clock, "wall_seconds", None)
    return int((clock.seconds() if wall_seconds is None else wall_seconds()) * 1000)


def steady_ms(clock: IReactorTime) -> int:
    """Return the steady time of ``clock`` in milliseconds, for durations; its origin is arbitrary."""
    return int(clock.seconds() * 1000)


def wall_ms(clock: IReactorTime, at_steady_ms: int) -> int:
    """Return the wall time, by the clock as set now, of a steady time, in milliseconds since the epoch."""
    return now_ms(clock) - (steady_ms(clock) - at_steady_ms)


def turn(clock: IReactorTime) -> Deferred[None]:
    """Return a Deferred that fires in the next turn of the reactor, after sockets were read: for work in slices."""
    done: Deferred[None] = Deferred()
    clock.callLater(0, done.callback, None)
    return done


async def in_turns(clock: IReactorTime, slices: Iterable[object]) -> None:
    """Do work that comes in slices, one in each turn of the reactor."""
    for _ in slices:
        await turn(clock)


async def map_in_turns(clock: IReactorTime, make: Callable[[T], R], slices: Sequence[T]) -> list[R]:
    """Return what ``make`` returns for each slice, one made in each turn of the reactor, the first one at once."""
    made: list[R] = []
    for one in slices:
        if made:
            await turn(clock)
        made.append(make(one))
    return made


def slices_of(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut a sequence into slices of ``most`` items; the last one may be shorter."""
    return [items[at : at + most] for at in range(0, len(items), most)]


class DeadlineTimer:
    """
    One delayed call for many deadlines: it runs at the earliest of them.

    ``next_deadline`` returns the earliest deadline in seconds of ``clock``, None when there is none; call :meth:`arm`
    when one was added. ``fire(now_s)`` must take out what is due at ``now_s``, which is never before the deadline,
    though a delayed call may be early by a rounding error. What it leaves, it gets in the next turn of the reactor.

    The call is not moved when a deadline is taken out: one that finds nothing due is cheaper than a new one each time.
    """

    def __init__(
        self, clock: IReactorTime, next_deadline: Callable[[], float | None], fire: Callable[[float], object]
    ) -> None:
        self._clock = clock
        self._next_deadline = next_deadline
        self._fire = fire
        self._call: IDelayedCall | None = None
        self._due_s = 0.0

    def arm(self) -> None:
        """Run no later than at the earliest deadline."""
        due_s = self._next_deadline()
        if due_s is None:
            return
        if self._call is not None:
            if self._due_s <= due_s:
                return
            self._call.cancel()
        self._due_s = due_s
        self._call = self._clock.callLater(max(0.0, due_s - self._clock.seconds()), self._run)

    def cancel(self) -> None:
        """Run no more until :meth:`arm`."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _run(self) -> None:
        self._call = None
        self._fire(max(self._due_s, self._clock.seconds()))
        self.arm()


class Moment(NamedTuple):
    """One moment on both clocks: epoch milliseconds, to be shown, and steady milliseconds, to measure with."""

    now_ms: int
    steady_ms: int


def moment(clock: IReactorTime) -> Moment:
    """Return the present moment of ``clock``."""
    return Moment(now_ms(clock), steady_ms(clock))


class Periodic:
    """
    Call a function again and again until stopped.

    The first run comes ``first_s`` seconds after :meth:`start` (default: one interval), the next ones every
    ``interval_s`` seconds. Runs never overlap: while a Deferred or coroutine of a run is pending, further runs
    are skipped. A run that fails is logged with ``name`` (once while the next ones fail in the same way) and the
    loop continues, where a bare LoopingCall stops.

    Java: ScheduledExecutorService#scheduleAtFixedRate
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        interval_s: float,
        call: Callable[[], object],
        *,
        name: str,
        first_s: float | None = None,
    ) -> None:
        if interval_s <= 0:
            raise ValueError(f"the interval of {name} must be more than 0 s, not {interval_s}")
        self._clock = clock
        self._interval_s = interval_s
        self._first_s = interval_s if first_s is None else first_s
        self._call = call
        self.name = name
        self._first: IDelayedCall | None = None
        self._loop: LoopingCall | None = None
        self._waiting: list[Deferred[None]] = []
        #: the failure of the last run, None for success, and the number of equal failures in a row
        self._failing: str | None = None
        self._failures = 0

    @property
    def running(self) -> bool:
        """True from :meth:`start` until the last run after :meth:`stop` has ended."""
        return self._first is not None or self._loop is not None

    def start(self) -> None:
        """Start; a ValueError when it already runs. A stopped Periodic may be started again."""
        if self.running:
            raise ValueError(f"{self.name} runs already")
        self._first = self._clock.callLater(self._first_s, self._begin)

    def stop(self) -> Deferred[None]:
        """Start no further run; fires when the current one has ended. Harmless when not running."""
        if self._first is not None:
            self._first.cancel()
            self._first = None
        if self._loop is None:
            return succeed(None)
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        if self._loop.running:
            self._loop.stop()
        return done

    def _begin(self) -> None:
        self._first = None
        self._loop = LoopingCall(self._run)
        self._loop.clock = self._clock
        self._loop.start(self._interval_s, now=True).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._loop = None
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.callback(None)

    def _run(self) -> Deferred[object] | None:
        try:
            result = self._call()
        except Exception:  # noqa: BLE001
            self._report(Failure())
            return None
        if isinstance(result, Coroutine):
            coroutine: Coroutine[Deferred[Any], Any, object] = result
            result = Deferred.fromCoroutine(coroutine)
        if isinstance(result, Deferred):
            return result.addCallbacks(self._worked, self._report)
        self._worked(result)
        return None

    def _worked(self, _: object) -> None:
        if self._failing is not None:
            self._log.info("{name} recovered after {count} failures in a row", name=self.name, count=self._failures)
            self._failing, self._failures = None, 0

    def _report(self, failure: Failure) -> None:
        """Log a failure, but only once while each run fails in the same way (a full disk for hours)."""
        text = f"{failure.type}: {failure.getErrorMessage()}"
        self._failures += 1
        if text != self._failing:
            self._failing = text
            if failure.check(DiskError) is not None:
                # It names the file and the reason; where in our code that was met helps nobody.
                self._log.error(
                    "{name} failed; retry in {interval_s} s: {error}",
                    name=self.name,
                    interval_s=self._interval_s,
                    error=failure.value,
                )
                return
            self._log.failure(
                "{name} failed; retry in {interval_s} s", failure, name=self.name, interval_s=self._interval_s
            )
