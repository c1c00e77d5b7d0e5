"""Milliseconds and the loop of periodic jobs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from rmq.runtime.clock import DeadlineTimer, Periodic, now_ms
from rmq.runtime.disk.error import DiskError


class NowTests(SynchronousTestCase):
    def test_milliseconds_of_the_clock(self) -> None:
        """The time is the clock's, in whole milliseconds."""
        clock = Clock()
        clock.advance(1_700_000_000.1239)
        self.assertEqual(now_ms(clock), 1_700_000_000_123)


class DeadlineTimerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.due: list[float] = []
        self.fired: list[tuple[float, list[float]]] = []
        self.timer = DeadlineTimer(self.clock, lambda: min(self.due, default=None), self.fire)

    def fire(self, now_s: float) -> None:
        self.fired.append((now_s, [due for due in self.due if due <= now_s]))
        self.due = [due for due in self.due if due > now_s]

    def add(self, due_s: float) -> None:
        self.due.append(due_s)
        self.timer.arm()

    def test_each_deadline_at_its_time(self) -> None:
        """Deadlines come at their times, whatever the order in which they were added, with one delayed call."""
        for due_s in (3.0, 1.0, 2.0, 2.0):
            self.add(due_s)
            self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.clock.pump([0.5] * 8)
        self.assertEqual(self.fired, [(1.0, [1.0]), (2.0, [2.0, 2.0]), (3.0, [3.0])])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_deadline_that_was_taken_out(self) -> None:
        """The call stays for it, finds nothing due and is made for the next one."""
        self.add(1.0)
        call = self.clock.getDelayedCalls()[0]
        self.due.clear()
        self.add(5.0)
        self.assertEqual(self.clock.getDelayedCalls(), [call])
        self.clock.pump([1.0] * 5)
        self.assertEqual(self.fired, [(1.0, []), (5.0, [5.0])])

    def test_never_before_the_deadline(self) -> None:
        """The time that ``fire`` gets is the deadline at least, also where a sum of floats falls short of it."""
        for number in range(1, 2000):
            self.clock.rightNow = number * 0.1
            due_s = self.clock.rightNow + number / 1000
            self.add(due_s)
            self.clock.advance(due_s - self.clock.rightNow)
            self.clock.advance(1e-9)
        self.assertEqual(len(self.fired), 1999)
        self.assertTrue(all(len(due) == 1 for _, due in self.fired))

    def test_cancel(self) -> None:
        """After cancel nothing fires until the next arm; the past is due at once."""
        self.timer.cancel()
        self.add(1.0)
        self.timer.cancel()
        self.clock.advance(5)
        self.assertEqual(self.fired, [])
        self.timer.arm()
        self.clock.advance(0)
        self.assertEqual(self.fired, [(5.0, [1.0])])


class PeriodicTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.runs: list[float] = []

    def record(self) -> None:
        self.runs.append(self.clock.seconds())

    def advance(self, seconds: int) -> None:
        """Second by second: one big step of this clock would run a loop once."""
        self.clock.pump([1.0] * seconds)

    def test_first_run_after_one_interval(self) -> None:
        """Without a first delay the first run comes one interval after the start."""
        loop = Periodic(self.clock, 10, self.record, name="scan")
        loop.start()
        self.advance(30)
        self.assertEqual(self.runs, [10, 20, 30])

    def test_first_run_after_its_own_delay(self) -> None:
        """The first delay counts from the start, the interval from the first run."""
        Periodic(self.clock, 10, self.record, name="scan", first_s=5).start()
        self.advance(30)
        self.assertEqual(self.runs, [5, 15, 25])

    def test_first_run_at_once(self) -> None:
        """A first delay of zero runs as soon as the clock moves, not inside start()."""
        Periodic(self.clock, 10, self.record, name="scan", first_s=0).start()
        self.assertEqual(self.runs, [])
        self.advance(11)
        self.assertEqual(self.runs, [1, 11])

    def test_an_exception_does_not_end_the_loop(self) -> None:
        """A run that raises is logged with the loop's name and the next one comes."""

        def fail() -> None:
            self.record()
            raise RuntimeError(f"broken scan {len(self.runs)}")

        Periodic(self.clock, 10, fail, name="scan").start()
        self.advance(20)
        self.assertEqual(self.runs, [10, 20])
        errors = [str(failure.value) for failure in self.flushLoggedErrors(RuntimeError)]
        self.assertEqual(errors, ["broken scan 1", "broken scan 2"])

    def test_the_same_failure_again_and_again(self) -> None:
        """A disk that is full for hours gives one failure in the log, and one line when the job works again."""
        lines: list[str] = []

        def observe(event: LogEvent) -> None:
            if event.get("log_namespace") == "rmq.runtime.clock.Periodic":
                lines.append(formatEvent(event))

        def call() -> None:
            self.record()
            if self.runs[-1] not in (40, 60):
                raise RuntimeError("no room")

        observer = provider(ILogObserver)(observe)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        Periodic(self.clock, 10, call, name="persistence").start()
        self.advance(60)
        failed = "persistence failed; retry in 10 s"
        again = "persistence recovered after {} failures in a row"
        self.assertEqual(lines, [failed, again.format(3), failed, again.format(1)])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)

    def test_a_full_disk_is_one_line_without_a_traceback(self) -> None:
        """The error names the file and the reason; there is nothing in our code to look for."""
        events: list[LogEvent] = []

        def call() -> None:
            raise DiskError("/store/config/consumerOffset.json", "no space left on device")

        observer = provider(ILogObserver)(lambda event: events.append(event))
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        Periodic(self.clock, 10, call, name="persistence").start()
        self.advance(30)
        (event,) = [event for event in events if event["log_namespace"] == "rmq.runtime.clock.Periodic"]
        self.assertEqual(
            (formatEvent(event), event["log_level"], "log_failure" in event),
            (
                "persistence failed; retry in 10 s: /store/config/consumerOffset.json: no space left on device",
                LogLevel.error,
                False,
            ),
        )

    def test_a_failed_deferred_does_not_end_the_loop(self) -> None:
        """Neither does one whose Deferred fails."""
        waiting: list[Deferred[None]] = []

        def call() -> Deferred[None]:
            waiting.append(Deferred())
            return waiting[-1]

        Periodic(self.clock, 10, call, name="heartbeat").start()
        self.advance(10)
        waiting[0].errback(RuntimeError("refused"))
        self.advance(10)
        self.assertEqual(len(waiting), 2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_failed_coroutine_does_not_end_the_loop(self) -> None:
        """Coroutines are run, awaited and survived."""

        async def call() -> None:
            self.record()
            await succeed(None)
            raise RuntimeError(f"refused {len(self.runs)}")

        Periodic(self.clock, 10, call, name="heartbeat").start()
        self.advance(20)
        self.assertEqual(self.runs, [10, 20])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)

    def test_never_overlaps_itself(self) -> None:
        """While a run waits no other starts; afterwards the old beat goes on."""
        waiting: list[Deferred[None]] = []

        def call() -> Deferred[None]:
            self.record()
            waiting.append(Deferred())
            return waiting[-1]

        Periodic(self.clock, 10, call, name="slow").start()
        self.advance(35)
        self.assertEqual(self.runs, [10])
        waiting[0].callback(None)
        self.advance(5)
        self.assertEqual(self.runs, [10, 40])

    def test_stop_before_the_first_run(self) -> None:
        """Stopped early, it never runs and leaves no timer."""
        loop = Periodic(self.clock, 10, self.record, name="scan")
        loop.start()
        self.successResultOf(loop.stop())
        self.assertEqual((self.clock.getDelayedCalls(), loop.running), ([], False))

    def test_stop_between_runs(self) -> None:
        """Stopped between two runs, it is done at once and leaves no timer."""
        loop = Periodic(self.clock, 10, self.record, name="scan")
        loop.start()
        self.advance(10)
        self.successResultOf(loop.stop())
        self.assertEqual((self.clock.getDelayedCalls(), loop.running), ([], False))

    def test_stop_waits_for_the_run(self) -> None:
        """Everyone who stops it during a run is told when that run has ended, even if it failed."""
        waiting: Deferred[None] = Deferred()
        loop = Periodic(self.clock, 10, lambda: waiting, name="slow")
        loop.start()
        self.advance(10)
        first, second = loop.stop(), loop.stop()
        self.assertNoResult(first)
        self.assertNoResult(second)
        self.assertTrue(loop.running)
        waiting.errback(RuntimeError("too late"))
        self.successResultOf(first)
        self.successResultOf(second)
        self.assertEqual((self.clock.getDelayedCalls(), loop.running), ([], False))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_stop_from_inside(self) -> None:
        """A run may stop its own loop, the first one too."""
        stopped: list[Deferred[None]] = []
        loop = Periodic(self.clock, 10, lambda: stopped.append(loop.stop()), name="once")
        loop.start()
        self.advance(30)
        self.assertEqual(len(stopped), 1)
        self.successResultOf(stopped[0])
        self.assertEqual((self.clock.getDelayedCalls(), loop.running), ([], False))

    def test_stop_when_not_running(self) -> None:
        """Stopping what does not run is harmless."""
        self.successResultOf(Periodic(self.clock, 10, self.record, name="scan").stop())

    def test_start_again(self) -> None:
        """A stopped loop may be started anew; a running one may not."""
        loop = Periodic(self.clock, 10, self.record, name="scan")
        loop.start()
        self.assertRaises(ValueError, loop.start)
        self.advance(10)
        self.assertRaises(ValueError, loop.start)
        self.successResultOf(loop.stop())
        loop.start()
        self.advance(10)
        self.assertEqual(self.runs, [10, 20])

    def test_nonsense_interval(self) -> None:
        """A loop without pause is refused, by name."""
        self.assertIn("scan", str(self.assertRaises(ValueError, Periodic, self.clock, 0, self.record, name="scan")))

    def test_a_coroutine_is_never_left_unawaited(self) -> None:
        """What the call returns is finished before the next run, also when it waits several times."""
        gates: list[Deferred[None]] = []
        ends: list[float] = []

        async def call() -> None:
            for _ in range(2):
                gates.append(Deferred())
                await gates[-1]
            ends.append(self.clock.seconds())

        def start() -> Coroutine[Any, Any, None]:
            return call()

        Periodic(self.clock, 10, start, name="flow").start()
        self.advance(10)
        gates[0].callback(None)
        self.advance(10)
        gates[1].callback(None)
        self.advance(10)
        self.assertEqual((ends, len(gates)), ([20], 3))
