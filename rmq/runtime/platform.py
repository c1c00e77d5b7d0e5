"""The environment of one NameServer or broker: reactor, disk, random numbers and connections."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.error import ReactorNotRunning
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk, RealDisk
from rmq.runtime.disk.openlimit import raise_open_files_limit
from rmq.runtime.tls.late import tls_later, without_openssl

#: timeout of a connection attempt, as in Apache's clients
CONNECT_TIMEOUT_S = 3.0
#: when a name has several addresses, the next one is tried after so much time without an answer
NEXT_ADDRESS_S = 0.1

#: environment variable (any text): read files without mmap, for a disk with unreadable blocks
WITHOUT_MAPS = "RMQ_READ_WITHOUT_MAPS"

_log = Logger()

EndpointFactory = Callable[[Any, str, int], IStreamClientEndpoint]


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Platform:
    """
    Everything from outside, as one argument.

    ``reactor`` offers IReactorTime (the steady time, see :mod:`rmq.runtime.clock`), IReactorTCP, IReactorCore's event
    triggers and ``callFromThread``. It is typed Any because zope's interfaces cannot be intersected.
    """

    reactor: Any
    disk: Disk
    rng: random.Random
    endpoint_factory: EndpointFactory
    #: limit of open files and sockets; None: unlimited
    max_open_files: int | None = None
    #: returns freed memory to the system; to be called now and then after large frees
    give_back_memory: Callable[[], object] = lambda: None


def the_reactor() -> Any:
    """
    Return the reactor of this process: the one that `twistd --reactor` chose, otherwise `rmq-lean`.

    Where `rmq-lean` cannot run, one log line says why and Twisted's default is used.
    """
    if "twisted.internet.reactor" not in sys.modules:
        try:
            from rmq.runtime import leanreactor
        except ImportError as error:
            _log.info("the reactor rmq-lean is not used: {error}; Twisted's default is used instead", error=error)
        else:
            leanreactor.install()
    return import_reactor()


def import_reactor() -> Any:
    """Return Twisted's reactor, imported without pyOpenSSL if it is not imported already."""
    with tls_later():
        from twisted.internet import reactor
    return reactor


def keep_steady(reactor: Any) -> None:
    """
    Make the timers of a real reactor use the monotonic clock.

    Twisted's own use the wall clock: when that is set forward by ten minutes all timers fire at once, every idle
    connection is closed and every broker expires; when it is set back no timer fires for ten minutes.
    ``reactor.seconds()`` starts at the wall time, so it looks like one; ``reactor.wall_seconds()`` is that time.
    A second call is harmless.
    """
    if hasattr(reactor, "wall_seconds"):
        return
    monotonic = time.monotonic
    ahead_s = time.time() - monotonic()
    reactor.seconds = lambda: monotonic() + ahead_s
    reactor.wall_seconds = time.time


def stop_once(reactor: Any) -> None:
    """Make a second SIGTERM or Ctrl-C, while the process stops, a line in the log; Twisted logs a traceback."""
    stop = reactor.stop

    def stop_first() -> None:
        try:
            stop()
        except ReactorNotRunning:
            _log.warn("asked to stop again: this process is stopping already, kill -9 ends it at once")

    reactor.stop = stop_first


def dial_by_name(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
    """Return the endpoint of ``host`` (a name, an IPv4 or an IPv6 address) and ``port``."""
    # Imports pyOpenSSL where that is installed, and most NameServers make no connections.
    from twisted.internet.endpoints import HostnameEndpoint, TCP4ClientEndpoint, TCP6ClientEndpoint

    host = host.strip("[]")
    if isIPAddress(host):
        return TCP4ClientEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT_S)
    if isIPv6Address(host):
        return TCP6ClientEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT_S)
    # this one says only after a further delay that the last address refused
    return HostnameEndpoint(reactor, host, port, timeout=CONNECT_TIMEOUT_S, attemptDelay=NEXT_ADDRESS_S)


def _dial(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
    with without_openssl():
        return dial_by_name(reactor, host, port)


def real_platform(reactor: Any) -> Platform:
    """
    Return the platform of a real process; its disk closes itself after the reactor has shut down.

    From now on the timers of ``reactor`` are steady, and a second signal to stop is a line in the log. One that ends
    the process (SIGSEGV, SIGBUS) leaves the Python stack on standard error, or in the log file where there is one.
    Objects that exist when the reactor starts are no longer checked by the garbage collector.
    """
    keep_steady(reactor)
    stop_once(reactor)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    disk = RealDisk(reactor, map_files=not os.environ.get(WITHOUT_MAPS))
    reactor.addSystemEventTrigger("after", "shutdown", disk.close)
    # Imported modules stay: full collections, which block the reactor, need not check them.
    reactor.callWhenRunning(gc.freeze)
    return Platform(
        reactor=reactor,
        disk=disk,
        rng=random.SystemRandom(),
        endpoint_factory=_dial,
        max_open_files=raise_open_files_limit(),
        give_back_memory=getattr(reactor, "give_back_memory", lambda: None),
    )


def first_address() -> str:
    """
    Return the address by which other hosts reach this one: 127.0.0.1 when there is no network.

    Java: RemotingUtil#getLocalAddress
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: this only asks the routing table which address would be used.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def address_of(host: str) -> str:
    """
    Return the first IPv4 address of a host name, or else its first IPv6 address; an OSError when it is not known.

    This waits for the name servers of the system: only for the start of a process.  Java: InetAddress#getByName
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])


def split_addr(addr: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, without brackets around IPv6; a ValueError for anything else."""
    host, colon, port = addr.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"{addr!r} is no address of the form host:port")
    return host, int(port)


def join_addr(host: str, port: int) -> str:
    """Return ``host:port``, ``[host]:port`` with IPv6: without brackets Go's and C++ clients cannot dial it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
