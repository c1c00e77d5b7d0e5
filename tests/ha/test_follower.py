"""Pauses between dials, and what a slave does with what came in."""

from __future__ import annotations

import itertools
import random
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from rmq.ha.follower import Backoff, Follower, SlaveConnection
from rmq.ha.session import SessionLimits
from rmq.ha.stream import encode_transfer_header
from rmq.store.messages import StoreError
from tests.ha.memory_log import MemoryLog


class BackoffTests(SynchronousTestCase):
    def test_doubles(self) -> None:
        """One second at first, then twice as long, up to the longest asked for, each a little longer by chance."""
        for longest_s, bases in ((60.0, (1, 2, 4, 8, 16, 32, 50, 50)), (6.0, (1, 2, 4, 5, 5, 5, 5, 5))):
            for seed in range(50):
                backoff = Backoff(random.Random(seed))
                pauses = [backoff.next_pause_s(longest_s) for _ in bases]
                for pause, base in zip(pauses, bases, strict=True):
                    self.assertTrue(base <= pause <= base * 1.2, f"seed {seed}: {pauses}")

    def test_long_absence_is_no_refusal(self) -> None:
        """The first connection that brings nothing is dialled again soon, however long the master was away."""
        backoff = Backoff(random.Random(1))
        for _ in range(1000):
            backoff.next_pause_s(6.0)
        self.assertLess(backoff.next_pause_s(60.0), 10)

    def test_health_begins_anew(self) -> None:
        """After a healthy connection the next pause is the first one."""
        backoff = Backoff(random.Random(1))
        for _ in range(5):
            backoff.next_pause_s(60.0)
        backoff.reset()
        self.assertLess(backoff.next_pause_s(60.0), 1.201)

    def test_slaves_do_not_march_in_step(self) -> None:
        """Two slaves of one master come back at different times."""
        first, second = Backoff(random.Random(1)), Backoff(random.Random(2))
        self.assertNotEqual(first.next_pause_s(60.0), second.next_pause_s(60.0))


class RetryTests(SynchronousTestCase):
    def test_the_line_of_a_retry(self) -> None:
        """Twisted's line about the next attempt names the address, and no object."""
        with capturedLogs() as events:
            clock = Clock()
            follower = Follower(
                clock,
                MemoryLog(65536, StoreError),
                SessionLimits(segment_bytes=65536),
                dial=lambda host, port: Unreachable(),
                backoff=Backoff(random.Random(1)),
                appended=lambda: None,
            )
            follower.set_master("192.0.2.1:10912")
            self.successResultOf(follower.stop())
        lines = [formatEvent(event) for event in events]
        self.assertTrue([line for line in lines if "retry 1 to connect 192.0.2.1:10912 in" in line], lines)

    def test_a_master_that_hangs_up_after_an_absence(self) -> None:
        """A master that is away is dialled every five seconds, one that accepts and hangs up less and less often."""
        clock = Clock()
        peer = HangingUp(clock)
        follower = Follower(
            clock,
            MemoryLog(65536, StoreError),
            SessionLimits(segment_bytes=65536),
            dial=lambda host, port: peer,
            backoff=Backoff(random.Random(1)),
            appended=lambda: None,
        )
        follower.set_master("192.0.2.1:10912")
        longest_s = []
        for peer.is_away, seconds in ((True, 60), (False, 300), (True, 120)):
            peer.dials.clear()
            clock.pump([0.25] * (4 * seconds))
            longest_s.append(max(later - earlier for earlier, later in itertools.pairwise(peer.dials[1:])))
        self.successResultOf(follower.stop())
        self.assertTrue(longest_s[0] <= 6.5 < 40 < longest_s[1] <= 60.5, longest_s)
        self.assertLessEqual(longest_s[2], 6.5)


@implementer(IStreamClientEndpoint)
class HangingUp:
    """A peer that refuses connections while it is away, and else ends them without a byte."""

    is_away = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.dials: list[float] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        self.dials.append(self._clock.seconds())
        if self.is_away:
            return fail(ConnectionRefusedError())
        protocol: Any = protocolFactory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 10912))
        protocol.makeConnection(StringTransport())
        self._clock.callLater(0.1, protocol.connectionLost, Failure(ConnectionDone()))
        return succeed(protocol)


@implementer(IStreamClientEndpoint)
class Unreachable:
    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        return fail(ConnectionRefusedError())


class OrderTests(SynchronousTestCase):
    """A producer waits for the report, and for nothing behind it."""

    def setUp(self) -> None:
        self.events: list[str] = []
        clock, self.log = Clock(), NotedLog(self.events)
        dial: Any = None
        follower = Follower(
            clock,
            self.log,
            SessionLimits(segment_bytes=65536),
            dial=dial,
            backoff=Backoff(random.Random(1)),
            appended=lambda: self.events.append("pushed"),
        )
        self.connection = SlaveConnection(follower, clock, follower.append)
        self.connection.makeConnection(NotedTransport(self.events))
        self.events.clear()

    def test_report_before_dispatch(self) -> None:
        """Bytes are appended and reported; queues and index come after that."""
        self.connection.dataReceived(encode_transfer_header(0, 100) + b"x" * 100)
        self.assertEqual(self.events, ["append", "pushed", "report", "dispatch"])

    def test_dispatch_of_what_came_before_a_fault(self) -> None:
        """Where the log takes no more, what it took before is dispatched all the same."""
        self.log.fail_next = True
        self.connection.dataReceived(encode_transfer_header(0, 100) + b"x" * 100)
        self.assertEqual(self.events, ["append", "dispatch"])


class NotedLog(MemoryLog):
    def __init__(self, events: list[str]) -> None:
        super().__init__(65536, StoreError)
        self._events = events

    def append_raw(self, phy_offset: int, data: bytes, *, dispatches: bool = True) -> None:
        self._events.append("append and dispatch" if dispatches else "append")
        super().append_raw(phy_offset, data, dispatches=dispatches)

    def dispatch_received(self) -> None:
        self._events.append("dispatch")


class NotedTransport(StringTransport):
    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def write(self, data: bytes) -> None:
        self._events.append("report")
