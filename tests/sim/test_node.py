"""Simulated machines and their processes."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.clock import Periodic, now_ms
from rmq.runtime.disk.files import DiskLocked
from rmq.runtime.platform import Platform
from rmq.sim.net import SimNet
from rmq.sim.node import Node, Process, platform_for
from rmq.sim.world import EPOCH_S, SimError, World


class Counter(Service):
    """A small role: counts beats into a file."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.beats = 0
        self._loop = Periodic(platform.reactor, 1, self._beat, name="beat")

    def startService(self) -> None:
        super().startService()
        disk = self.platform.disk
        disk.make_dirs("/data")
        self._lock = disk.lock("/data/lock")
        self._port = self.platform.reactor.listenTCP(10911, Factory.forProtocol(Protocol))
        self._loop.start()

    async def _stop(self) -> None:
        await self._loop.stop()
        await self._port.stopListening()
        self._lock.release()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    def _beat(self) -> None:
        self.beats += 1
        self.platform.disk.write_atomic("/data/beats", b"%d" % self.beats)


class Leaky(Counter):
    """Forgets its timer, its port and its file."""

    def stopService(self) -> None:  # type: ignore[override]
        Service.stopService(self)
        self.platform.disk.create("/data/forgotten", 1)


class NodeCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.world = World(3)
        self.net = SimNet(self.world)
        self.node = Node(self.world, self.net, "a")

    def process(self) -> Process:
        assert self.node.process is not None
        return self.node.process


class TimeTests(NodeCase):
    def test_clock(self) -> None:
        """A node's clock begins at a date and goes with simulated time; it may be wrong and may jump."""
        self.node.start()
        clock = self.process()
        self.assertEqual(now_ms(clock), int(EPOCH_S * 1000))
        self.world.run_for(1.5)
        self.node.step_clock(-3600)
        self.assertEqual(now_ms(clock), int((EPOCH_S + 1.5 - 3600) * 1000))

    def test_two_clocks(self) -> None:
        """A steady clock is days away from the wall clock, on either side of it, and begins elsewhere at each start."""
        ahead = []
        for number in range(20):
            node = Node(self.world, self.net, f"n{number}")
            for _ in range(2):
                node.start()
                clock = node.process
                assert clock is not None
                ahead.append(clock.seconds() - clock.wall_seconds())
                call = clock.callLater(5, lambda: None)
                self.assertAlmostEqual(call.getTime() - clock.seconds(), 5)
                node.kill()
        self.assertGreater(min(map(abs, ahead)), 10 * 86400)
        self.assertEqual({value > 0 for value in ahead}, {True, False})
        self.assertEqual(len(set(ahead)), 40)

    def test_drift_and_corrections(self) -> None:
        """A wall clock may be too fast, and be corrected now and then; timers go by the steady one."""
        self.node.start()
        clock = self.process()
        self.node.wall.rate = 1.01
        begun_s = clock.seconds()
        self.world.run_for(100)
        self.assertAlmostEqual(clock.wall_seconds(), EPOCH_S + 101, places=3)
        self.assertAlmostEqual(clock.seconds() - begun_s, 100, places=3)
        self.node.wall.wander(Random(1))
        shown = []
        for _ in range(100):
            self.world.run_for(1)
            shown.append(clock.wall_seconds())
        steps = [later - earlier for earlier, later in pairwise(shown)]
        self.assertTrue(min(steps) < 0.5 and max(steps) > 1.5, steps)
        self.assertGreater(sum(abs(step - 1.01) < 0.001 for step in steps), 50)

    def test_a_jump_moves_no_timers(self) -> None:
        """Timers run when their time has passed, whatever the clock shows."""
        self.node.start()
        done = deferLater(self.process(), 10, lambda: "x")
        self.node.step_clock(3600)
        self.world.run_for(9)
        self.assertNoResult(done)
        self.world.run_for(1)
        self.assertEqual(self.successResultOf(done), "x")

    def test_timers(self) -> None:
        """callLater, getDelayedCalls and their friends behave as on a reactor."""
        self.node.start()
        process = self.process()
        ran: list[Any] = []
        call = process.callLater(5, ran.append, 1)
        self.assertEqual(process.getDelayedCalls(), [call])
        self.assertEqual(call.getTime(), process.seconds() + 5)
        call.reset(1)
        self.world.run_for(1)
        self.assertEqual((ran, process.getDelayedCalls(), call.active()), ([1], [], False))

    def test_calls_from_threads_keep_their_order(self) -> None:
        """callFromThread runs its calls in order, in a turn of their own."""
        self.node.start()
        ran: list[int] = []
        for number in range(20):
            self.process().callFromThread(ran.append, number)
        self.assertEqual(ran, [])
        self.world.run_for(0)
        self.assertEqual(ran, list(range(20)))


class LifeTests(NodeCase):
    def test_start_and_stop(self) -> None:
        """A role starts, runs, and stops without leaving anything."""
        self.node.start(Counter)
        self.world.run_for(5.5)
        self.world.settle(self.node.stop())
        self.assertEqual(self.node.leaks, [])
        self.assertIsNone(self.node.process)
        self.assertEqual(self.node.disk.read_whole("/data/beats"), b"5")
        self.world.run_for(5)
        self.assertEqual(self.node.disk.read_whole("/data/beats"), b"5")

    def test_leaks_are_found(self) -> None:
        """A role that forgets a timer, a port or a file when it stops is told so."""
        self.node.start(Leaky)
        self.world.settle(self.node.stop())
        self.assertEqual(
            [leak.split(" in ")[0] for leak in self.node.leaks], ["timer", "port 10911", "open file /data/forgotten"]
        )

    def test_start_again(self) -> None:
        """A node starts its role anew after each kind of end: same disk, free ports and locks, new incarnation."""
        for end in (self.node.kill, self.node.crash, lambda: self.world.settle(self.node.stop())):
            service = self.node.start(Counter)
            assert isinstance(service, Counter)
            self.world.run_for(3.5)
            end()
            self.world.run_for(10)
            self.assertEqual(service.beats, 3)
        self.assertEqual(self.node.incarnation, 3)

    def test_two_processes(self) -> None:
        """A node runs one process at a time."""
        self.node.start(Counter)
        self.assertRaises(SimError, self.node.start)

    def test_nothing_of_the_dead_runs(self) -> None:
        """Timers of a killed process never run, old ones and new ones."""
        self.node.start()
        ran: list[int] = []
        process = self.process()
        process.callLater(1, ran.append, 1)
        process.callFromThread(ran.append, 2)
        self.node.kill()
        process.callLater(1, ran.append, 3)
        self.world.run_for(5)
        self.assertEqual((ran, process.getDelayedCalls(), process.running), ([], [], False))

    def test_process_ends_itself(self) -> None:
        """reactor.stop() stops the role in order and ends the process."""
        self.node.start(Counter)
        self.process().stop()
        self.world.run_until(lambda: self.node.process is None, 10)
        self.assertEqual(self.node.leaks, [])

    def test_failed_start(self) -> None:
        """A role that cannot start leaves no process behind, and says why."""

        def build(platform: Platform) -> Service:
            service = MultiService()
            platform.reactor.listenTCP(1, Factory())
            Counter(platform).setServiceParent(service)
            platform.disk.make_dirs("/data")
            platform.disk.lock("/data/lock")
            return service

        self.assertIn("/data/lock", str(self.assertRaises(DiskLocked, self.node.start, build)))
        self.assertIsNone(self.node.process)
        self.node.start(Counter)

    def test_shutdown_triggers(self) -> None:
        """Triggers run phase by phase; those before shutdown are waited for, and may be taken back."""
        self.node.start()
        process = self.process()
        ran: list[str] = []
        gate: Deferred[None] = Deferred()
        process.addSystemEventTrigger("after", "shutdown", ran.append, "after")
        process.addSystemEventTrigger("during", "shutdown", ran.append, "during")
        process.addSystemEventTrigger("before", "shutdown", lambda: gate)
        process.addSystemEventTrigger("before", "startup", ran.append, "never")
        process.removeSystemEventTrigger(process.addSystemEventTrigger("before", "shutdown", ran.append, "removed"))
        first, second = self.node.stop(), self.node.stop()
        self.world.run_for(5)
        self.assertEqual(ran, [])
        gate.callback(None)
        self.world.settle(first)
        self.world.settle(second)
        self.assertEqual(ran, ["during", "after"])
        self.successResultOf(self.node.stop())

    def test_killed_while_stopping(self) -> None:
        """A stop that a kill overtakes is over, too."""
        self.node.start()
        never: Deferred[None] = Deferred()
        self.process().addSystemEventTrigger("before", "shutdown", lambda: never)
        stopped = self.node.stop()
        self.node.kill()
        self.successResultOf(stopped)
        never.callback(None)
        self.world.run_for(1)
        self.assertIsNone(self.node.process)

    def test_failing_trigger(self) -> None:
        """A trigger that fails is logged; the process ends all the same."""

        def fail() -> None:
            raise RuntimeError("cannot stop")

        self.node.start()
        self.process().addSystemEventTrigger("before", "shutdown", fail)
        self.world.settle(self.node.stop())
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_names_are_unique(self) -> None:
        """Two nodes cannot have one name; each has its own address."""
        self.assertRaises(ValueError, Node, self.world, self.net, "a")
        self.assertNotEqual(Node(self.world, self.net, "b").address, self.node.address)


class PlatformTests(NodeCase):
    def test_parts(self) -> None:
        """A role gets this process as reactor, the node's disk, and chance that depends on seed and incarnation."""
        self.node.start()
        platform = platform_for(self.node)
        self.assertIs(platform.reactor, self.node.process)
        self.assertIs(platform.disk, self.node.disk)
        first = platform.rng.random()
        self.assertEqual(platform_for(self.node).rng.random(), first)
        self.node.kill()
        self.node.start()
        self.assertNotEqual(platform_for(self.node).rng.random(), first)

    def test_dial(self) -> None:
        """Roles reach each other through the platform's endpoints, by address and by name."""
        other = Node(self.world, self.net, "b")
        other.start(Counter)
        self.node.start()
        platform = platform_for(self.node)
        for host in (other.address, "b"):
            endpoint = platform.endpoint_factory(platform.reactor, host, 10911)
            dialled: Deferred[Any] = endpoint.connect(Factory.forProtocol(Protocol))
            self.assertTrue(self.world.settle(dialled).connected)
