"""Pauses between dials, and what a slave does with what came in."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.follower import Backoff, SlaveConnection
from rmq.ha.session import SessionLimits
from rmq.ha.slave import SlaveSession
from rmq.ha.stream import encode_transfer_header
from rmq.store.messages import StoreError


class BackoffTests(SynchronousTestCase):
    def test_doubles_to_a_minute(self) -> None:
        """Five seconds at first, then twice as long, at most a minute, each a little longer by chance."""
        for seed in range(50):
            backoff = Backoff(random.Random(seed))
            pauses = [backoff.next_pause_s() for _ in range(8)]
            for pause, base in zip(pauses, (5, 10, 20, 40, 50, 50, 50, 50), strict=True):
                self.assertTrue(base <= pause <= min(base * 1.2, 60), f"seed {seed}: {pauses}")

    def test_health_begins_anew(self) -> None:
        """After a healthy connection the next pause is the first one."""
        backoff = Backoff(random.Random(1))
        for _ in range(5):
            backoff.next_pause_s()
        backoff.reset()
        self.assertLess(backoff.next_pause_s(), 6.001)

    def test_slaves_do_not_march_in_step(self) -> None:
        """Two slaves of one master come back at different times."""
        first, second = Backoff(random.Random(1)), Backoff(random.Random(2))
        self.assertNotEqual(first.next_pause_s(), second.next_pause_s())


class OrderTests(SynchronousTestCase):
    """A producer waits for the report, and for nothing behind it."""

    def setUp(self) -> None:
        self.events: list[str] = []
        session = SlaveSession(SessionLimits(segment_bytes=65536), end_offset=0, log_end=0, now_ms=0)
        follower: Any = SimpleNamespace(
            opened=lambda _connection: session,
            received=lambda _connection: None,
            answered=lambda: self.events.append("dispatch"),
            append_failed=lambda _offset, _error: self.events.append("failed"),
        )
        self.refuses = False
        self.connection = SlaveConnection(follower, Clock(), self.append)
        self.connection.makeConnection(Transport(self.events))
        self.events.clear()

    def append(self, phy_offset: int, data: bytes) -> None:
        self.events.append("append")
        if self.refuses:
            raise StoreError("no")

    def test_report_before_dispatch(self) -> None:
        """Bytes are appended, then reported; queues and index come after that."""
        self.connection.dataReceived(encode_transfer_header(0, 100) + b"x" * 100)
        self.assertEqual(self.events, ["append", "report", "dispatch"])

    def test_dispatch_of_what_came_before_a_fault(self) -> None:
        """Where the log takes no more, what it took before is dispatched all the same."""
        self.refuses = True
        self.connection.dataReceived(encode_transfer_header(0, 100) + b"x" * 100)
        self.assertEqual(self.events, ["append", "failed", "dispatch"])


class Transport(StringTransport):
    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    def write(self, data: bytes) -> None:
        self._events.append("report")
