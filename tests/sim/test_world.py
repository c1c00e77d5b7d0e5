"""Simulated time."""

from __future__ import annotations

import signal
import threading
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.trial.unittest import SynchronousTestCase

from rmq.sim.world import SimError, World


class EventTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.world = World(1)
        self.ran: list[object] = []

    def at(self, delay_s: float, name: object) -> None:
        self.world.schedule(delay_s, lambda: self.ran.append((name, self.world.now_s)))

    def test_each_event_sees_its_own_time(self) -> None:
        """Events run in the order of their times, and the clock shows the time of the one that runs."""
        for delay_s in (3.0, 1.0, 2.0):
            self.at(delay_s, delay_s)
        self.world.run_for(2.5)
        self.assertEqual(self.ran, [(1.0, 1.0), (2.0, 2.0)])
        self.assertEqual(self.world.now_s, 2.5)
        self.world.run_for(1)
        self.assertEqual(self.ran[2:], [(3.0, 3.0)])

    def test_loops_run_as_often_as_they_should(self) -> None:
        """A timer that renews itself runs ten times in ten of its intervals."""

        def again() -> None:
            self.ran.append(self.world.now_s)
            self.world.schedule(10, again)

        self.world.schedule(10, again)
        self.world.run_for(100)
        self.assertEqual(self.ran, [10.0 * number for number in range(1, 11)])

    def test_an_interrupt_that_was_caught(self) -> None:
        """Ctrl-C or a timeout ends the run also when it comes within a retry loop that catches everything."""

        class Timeout(BaseException):
            pass

        def interrupt(signum: int, frame: object) -> None:
            raise Timeout

        def insist() -> None:
            self.ran.append(self.world.now_s)
            self.world.schedule(1, insist)
            try:
                signal.raise_signal(signal.SIGALRM)
            except BaseException:  # noqa: BLE001 - as Deferreds do
                self.ran.append("caught")

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.world.schedule(1, insist)
        for run in (lambda: self.world.run_for(100), lambda: self.world.run_until(lambda: False, 100)):
            self.assertRaises(Timeout, run)
            self.assertIs(signal.getsignal(signal.SIGALRM), interrupt)
        self.assertEqual(self.ran, [1.0, "caught", 2.0, "caught"])

    def test_a_run_in_a_thread(self) -> None:
        """Only the main thread has signals; a run elsewhere goes without."""
        self.at(1, "event")
        thread = threading.Thread(target=self.world.run_for, args=(2,))
        thread.start()
        thread.join()
        self.assertEqual((self.ran, self.world.now_s), ([("event", 1.0)], 2.0))

    def test_same_instant_in_the_seed_s_order(self) -> None:
        """Events of one instant come in an order that the seed picks: all orders are explored, each repeatably."""
        orders = []
        for seed in [*range(40), *range(40)]:
            world = World(seed)
            order: list[str] = []
            for name in "abc":
                world.schedule(1, partial(order.append, name))
            world.run_for(1)
            orders.append("".join(order))
        self.assertEqual(orders[:40], orders[40:])
        self.assertEqual(len(set(orders)), 6)

    def test_cancel_delay_reset(self) -> None:
        """Events to come can be cancelled and moved, those that ran cannot."""
        first = self.world.schedule(1, lambda: self.ran.append("first"))
        second = self.world.schedule(2, lambda: self.ran.append("second"))
        third = self.world.schedule(3, lambda: self.ran.append("third"))
        first.cancel()
        self.assertRaises(AlreadyCancelled, first.cancel)
        self.world.run_for(1)
        second.delay(5)
        third.reset(1)
        self.assertEqual((second.getTime(), third.getTime()), (7.0, 2.0))
        self.world.run_for(3)
        self.assertEqual(self.ran, ["third"])
        self.assertEqual((second.active(), third.active()), (True, False))
        self.assertRaises(AlreadyCalled, third.reset, 1)
        self.world.run_for(10)
        self.assertEqual(self.ran, ["third", "second"])

    def test_run_until(self) -> None:
        """Running until something holds ends at once then, and fails with the seed when it never does."""
        self.at(5, "x")
        self.world.run_until(lambda: self.ran, 10)
        self.assertEqual(self.world.now_s, 5)
        error = self.assertRaises(SimError, self.world.run_until, lambda: False, 10, "rain")
        self.assertIn("rain is not true after 10 s (seed 1", str(error))
        self.assertEqual(self.world.now_s, 15)

    def test_settle(self) -> None:
        """A Deferred's result, or its failure, is what the run came for."""
        good: Deferred[int] = Deferred()
        bad: Deferred[int] = Deferred()
        self.world.schedule(1, lambda: good.callback(5))
        self.world.schedule(2, lambda: bad.errback(RuntimeError("no")))
        self.assertEqual(self.world.settle(good), 5)
        self.assertRaises(RuntimeError, self.world.settle, bad)

    def test_an_exception_ends_only_its_event(self) -> None:
        """An event that raises is logged and kept; time goes on."""

        def fail() -> None:
            raise RuntimeError("broken")

        self.world.schedule(1, fail)
        self.at(2, "next")
        self.world.run_for(3)
        self.assertEqual(self.ran, [("next", 2.0)])
        self.assertEqual([str(failure.value) for failure in self.world.failures], ["broken"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_livelock(self) -> None:
        """Events that never let time pass end the run instead of hanging it."""

        def again() -> None:
            self.world.schedule(0, again)

        again()
        self.assertIn("livelock", str(self.assertRaises(SimError, self.world.run_for, 1)))


class TraceTests(SynchronousTestCase):
    def test_digest(self) -> None:
        """Equal histories have equal digests, and any difference shows."""
        digests = []
        for word in ("a", "a", "b"):
            world = World(1)
            world.note("x", word)
            digests.append(world.trace.digest)
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_the_end_is_kept_in_clear(self) -> None:
        """The last lines can be read."""
        world = World(1)
        world.run_for(1.5)
        world.note("a", 1)
        self.assertEqual(list(world.trace.tail), ["1.500000000 a 1"])
        self.assertEqual(world.trace.count, 1)

    def test_generators_are_independent(self) -> None:
        """A generator depends on the seed and its name only."""
        one, other = World(3), World(3)
        other.rng.random()
        self.assertEqual(one.rng_for("disk").random(), other.rng_for("disk").random())
        self.assertNotEqual(one.rng_for("disk").random(), one.rng_for("net").random())
