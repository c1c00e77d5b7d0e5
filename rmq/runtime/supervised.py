"""
What systemd is notified of: ready after the boot line, alive while the reactor turns, stopping.

The protocol is one datagram for each message, see sd_notify(3); a package for it would be longer than this file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import Periodic


class Supervisor(Service):
    """Sends READY, WATCHDOG and STOPPING; ``watchdog_s`` is the silence after which systemd ends the process."""

    def __init__(self, clock: IReactorTime, send: Callable[[bytes], object], watchdog_s: float | None = None) -> None:
        self._send = send
        self._alive: Periodic | None = None
        if watchdog_s is not None:
            # systemd's advice: twice in that time.
            self._alive = Periodic(clock, watchdog_s / 2, lambda: send(b"WATCHDOG=1"), name="systemd's watchdog")

    def announcing(self, say: Callable[[str], object]) -> Callable[[str], None]:
        """Return a function that says a boot line, and then that the process is ready."""

        def announce(line: str) -> None:
            say(line)
            self._send(b"READY=1")

        return announce

    def startService(self) -> None:
        super().startService()
        if self._alive is not None:
            self._alive.start()

    def stopService(self) -> None:
        super().stopService()
        if self._alive is not None:
            self._alive.stop()
        self._send(b"STOPPING=1")


def supervisor_of(clock: IReactorTime, environment: Mapping[str, str]) -> Supervisor:
    """Return the supervisor that NOTIFY_SOCKET and WATCHDOG_USEC describe; without them nothing is sent."""
    path = environment.get("NOTIFY_SOCKET")
    if not path:
        return Supervisor(clock, lambda message: None)
    micros = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return Supervisor(clock, _sender(path), int(micros) / 1e6 if micros and is_ours else None)


def _sender(path: str) -> Callable[[bytes], None]:
    # "@" is written for the NUL with which abstract addresses begin.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    log = Logger(__name__)

    def send(message: bytes) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as to:
                to.sendto(message, address)
        except OSError as error:
            log.error("systemd did not get {what}: {error}", what=message.decode(), error=error)

    return send
