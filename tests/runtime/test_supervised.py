"""What systemd is notified of, and when."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from twisted.internet.task import Clock
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.supervised import Supervisor, supervisor_of


class SupervisorTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.happened: list[object] = []

    def test_ready_comes_after_the_boot_line(self) -> None:
        """READY=1 is sent when the boot line has been said, STOPPING=1 when the stop begins."""
        supervisor = Supervisor(self.clock, self.happened.append)
        supervisor.startService()
        self.assertEqual(self.happened, [])
        supervisor.announcing(self.happened.append)("boot success")
        self.assertEqual(self.happened, ["boot success", b"READY=1"])
        supervisor.stopService()
        self.assertEqual(self.happened[2:], [b"STOPPING=1"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_watchdog(self) -> None:
        """A turning reactor says so twice in the watchdog's time, until the stop; a stalled one sends nothing."""
        supervisor = Supervisor(self.clock, self.happened.append, 10.0)
        supervisor.startService()
        self.clock.pump([2.5] * 8)
        self.assertEqual(self.happened, [b"WATCHDOG=1"] * 4)
        supervisor.stopService()
        self.clock.pump([5.0] * 4)
        self.assertEqual(self.happened[4:], [b"STOPPING=1"])


class EnvironmentTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def sent(self, name: str, **environment: str) -> list[bytes]:
        """Return what a supervisor in this environment sends in ten seconds to the socket of this name."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(f"\0{name[1:]}" if name.startswith("@") else name)
            systemd.setblocking(False)
            supervisor = supervisor_of(self.clock, {"NOTIFY_SOCKET": name, **environment})
            supervisor.startService()
            self.clock.pump([1.0] * 10)
            supervisor.stopService()
            got: list[bytes] = []
            while not got or got[-1] != b"STOPPING=1":
                got.append(systemd.recv(100))
            return got

    def test_both_kinds_of_address(self) -> None:
        """A path and an abstract address work; WATCHDOG_USEC counts for this process only."""
        with tempfile.TemporaryDirectory(prefix="rmq-notify-") as folder:
            self.assertEqual(self.sent(str(Path(folder, "a"))), [b"STOPPING=1"])
            beats = self.sent(str(Path(folder, "b")), WATCHDOG_USEC="8000000", WATCHDOG_PID=str(os.getpid()))
            self.assertEqual(beats, [b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"])
            self.assertEqual(self.sent(str(Path(folder, "c")), WATCHDOG_USEC="8000000", WATCHDOG_PID="1"), beats[2:])
        self.assertEqual(self.sent(f"@rmq-test-{os.getpid()}"), [b"STOPPING=1"])

    def test_without_systemd(self) -> None:
        """Without NOTIFY_SOCKET nothing is sent; one that is gone is one line in the log, and the process goes on."""
        observer = EventLoggingObserver()
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        supervisor_of(self.clock, {"WATCHDOG_USEC": "8000000"}).startService()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        supervisor_of(self.clock, {"NOTIFY_SOCKET": "/nowhere/notify"}).announcing(str)("boot success")
        (event,) = [event for event in observer if event.get("what") == "READY=1"]
        self.assertEqual(event["error"].filename, None)
