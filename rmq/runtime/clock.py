"""
Time in milliseconds, and the loop that every periodic job of a NameServer or Broker runs in.

There are two times. The *steady* one, ``clock.seconds()``, only ever moves forward and at its own pace: timers,
silence, deadlines and durations are measured with it. The *wall* time is what people and other machines call now; it
stamps and shows, and it may be set by ten minutes at any moment. A clock whose wall time can differ from the steady one
has a ``wall_seconds`` beside ``seconds``, as the reactor of a real process has (see :mod:`rmq.runtime.platform`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure


def now_ms(clock: IReactorTime) -> int:
    """Return the wall-clock time of ``clock`` in milliseconds since the epoch, as RocketMQ stamps it."""
    wall_seconds = getattr(clock, "wall_seconds", None)
    return int((clock.seconds() if wall_seconds is None else wall_seconds()) * 1000)


def steady_ms(clock: IReactorTime) -> int:
    """Return the steady time of ``clock`` in milliseconds, for durations; its origin means nothing."""
    return int(clock.seconds() * 1000)


def wall_ms(clock: IReactorTime, at_steady_ms: int) -> int:
    """Return what the wall clock, as it is set now, showed at a steady time, in milliseconds since the epoch."""
    return now_ms(clock) - (steady_ms(clock) - at_steady_ms)


class Periodic:
    """
    Call a function again and again until stopped.

    The first run comes ``first_s`` seconds after :meth:`start` (default: one interval), the next ones every
    ``interval_s`` seconds. A run whose Deferred or coroutine is still waiting is never overlapped: beats that fall into
    it are left out. A run that fails is logged with ``name`` (once while the next ones fail in the same way) and the
    loop goes on, where a bare LoopingCall stops for good.

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
        #: how the last run failed, None when it did not, and how many runs in a row have failed so
        self._failing: str | None = None
        self._failures = 0

    @property
    def running(self) -> bool:
        """True from :meth:`start` until the last run after :meth:`stop` has ended."""
        return self._first is not None or self._loop is not None

    def start(self) -> None:
        """Begin; a ValueError when it runs already. A stopped Periodic may be started again."""
        if self.running:
            raise ValueError(f"{self.name} runs already")
        self._first = self._clock.callLater(self._first_s, self._begin)

    def stop(self) -> Deferred[None]:
        """Start no further run; fires when none is going on any more. Harmless when not running."""
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
            self._log.info(
                "{name} works again; it had failed {count} times in a row", name=self.name, count=self._failures
            )
            self._failing, self._failures = None, 0

    def _report(self, failure: Failure) -> None:
        """Log a failure; not once more while each run fails in the same way, as with a full disk for hours."""
        text = f"{failure.type}: {failure.getErrorMessage()}"
        self._failures += 1
        if text != self._failing:
            self._failing = text
            self._log.failure(
                "{name} failed; it runs again in {interval_s} s", failure, name=self.name, interval_s=self._interval_s
            )
