"""What a real process stands on."""

from __future__ import annotations

import gc
import signal
import socket
import time
from random import Random
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.clock import now_ms, steady_ms
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import CONNECT_TIMEOUT_S, address_of, dial_by_name, keep_steady, real_platform, stop_once


class Bare(ReactorBase):
    """A reactor that goes by the wall clock, as Twisted's do, without sockets."""

    def installWaker(self) -> None:
        pass

    def removeAll(self) -> list[Any]:
        return []

    def seconds(self) -> float:
        return time.time()


class RealPlatformTests(SynchronousTestCase):
    def test_parts(self) -> None:
        """A real platform has this reactor, real files, real chance, and dials by name."""
        reactor = MemoryReactorClock()
        platform = real_platform(reactor)
        self.assertIs(platform.reactor, reactor)
        self.assertIsInstance(platform.disk, RealDisk)
        self.assertIsInstance(platform.rng, Random)
        self.assertNotEqual([platform.rng.random() for _ in range(3)], [platform.rng.random() for _ in range(3)])
        self.assertIsInstance(platform.endpoint_factory(reactor, "broker-a", 9876), HostnameEndpoint)

    def test_a_refused_address(self) -> None:
        """That an address refuses connections is known at once: HostnameEndpoint says so only later."""
        for addr, host in (("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1")):
            reactor = MemoryReactorClock()
            connecting = dial_by_name(reactor, addr, 9876).connect(Factory.forProtocol(Protocol))
            ((found, port, factory, timeout_s, _),) = reactor.tcpClients
            self.assertEqual((found, port, timeout_s), (host, 9876, CONNECT_TIMEOUT_S))
            no_connector: Any = None
            factory.clientConnectionFailed(no_connector, Failure(ConnectionRefusedError()))
            self.failureResultOf(connecting, ConnectionRefusedError)
            self.assertEqual(reactor.getDelayedCalls(), [])

    def test_disk_closes_after_shutdown(self) -> None:
        """The disk's thread ends after everything else has been shut down."""
        reactor = MemoryReactorClock()
        platform = real_platform(reactor)
        assert isinstance(platform.disk, RealDisk)
        for call, arguments, named in reactor.triggers["after"]["shutdown"]:
            call(*arguments, **named)
        self.assertTrue(platform.disk._flusher.closed)

    def test_collections_spare_what_was_imported(self) -> None:
        """Once the reactor runs, full collections leave out what is there for good."""
        reactor = MemoryReactorClock()
        real_platform(reactor)
        self.addCleanup(gc.unfreeze)
        for call, arguments, named in reactor.whenRunningHooks:
            call(*arguments, **named)
        self.assertGreater(gc.get_freeze_count(), 1000)


class AddressTests(SynchronousTestCase):
    def test_ipv4_comes_first(self) -> None:
        """A name with addresses of both kinds is its first IPv4 address, as in Java."""
        found = [(socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0))]
        self.patch(socket, "getaddrinfo", lambda *arguments, **named: found)
        self.assertEqual(address_of("broker-a.example"), "2001:db8::1")
        found += [(socket.AF_INET, 1, 6, "", (f"192.0.2.{n}", 0)) for n in (2, 1)]  # type: ignore[misc]
        self.assertEqual(address_of("broker-a.example"), "192.0.2.2")


class StopTests(SynchronousTestCase):
    def test_second_signal(self) -> None:
        """A second SIGTERM while the process stops is one line in the log, no traceback, and the stop goes on."""
        reactor = Bare()
        stops: list[str] = []
        stop_once(reactor)
        reactor.addSystemEventTrigger("during", "shutdown", stops.append, "shutdown")
        reactor.callWhenRunning(reactor.sigTerm, signal.SIGTERM)
        reactor.callWhenRunning(reactor.sigTerm, signal.SIGTERM)
        with capturedLogs() as logs:
            reactor.startRunning(installSignalHandlers=False)
            for _ in range(3):
                reactor.runUntilCurrent()
        self.assertEqual(stops, ["shutdown"])
        self.assertEqual(
            [event["log_format"][:19] for event in logs if "rmq" in event["log_namespace"]], ["asked to stop again"]
        )
        self.assertEqual(self.flushLoggedErrors(), [])


class SteadyTimeTests(SynchronousTestCase):
    def timers_after_a_step(self, reactor: Bare, step_s: float) -> tuple[list[str], float | None]:
        """Return what a timer of a minute did when the wall clock was set, and for how long the reactor may sleep."""
        ran: list[str] = []
        reactor.callLater(60, ran.append, "timer")
        reactor.runUntilCurrent()
        real = time.time
        self.patch(time, "time", lambda: real() + step_s)
        reactor.runUntilCurrent()
        return ran, reactor.timeout()

    def test_wall_clock_set_forward(self) -> None:
        """No timer goes off because the wall clock was set by ten minutes; with Twisted's own time all do."""
        self.assertEqual(self.timers_after_a_step(Bare(), 600)[0], ["timer"])
        steady = Bare()
        keep_steady(steady)
        self.assertEqual(self.timers_after_a_step(steady, 600)[0], [])

    def test_wall_clock_set_back(self) -> None:
        """No timer comes ten minutes late because the wall clock was set back."""
        self.assertGreater(self.timers_after_a_step(Bare(), -600)[1] or 0, 600)
        steady = Bare()
        keep_steady(steady)
        self.assertLess(self.timers_after_a_step(steady, -600)[1] or 0, 61)

    def test_what_is_shown(self) -> None:
        """What is stamped is the wall time; the steady time starts there and does not follow when it is set."""
        real, steps_s = time.time, [0.0]
        self.patch(time, "time", lambda: real() + sum(steps_s))
        reactor = Bare()
        keep_steady(reactor)
        self.assertLess(abs(now_ms(reactor) - steady_ms(reactor)), 60_000)
        steps_s.append(3600.0)
        keep_steady(reactor)
        self.assertLess(abs(now_ms(reactor) - steady_ms(reactor) - 3_600_000), 60_000)
