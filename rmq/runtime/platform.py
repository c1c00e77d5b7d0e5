"""What one NameServer or Broker stands on: reactor, disk, chance and the way to dial."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from rmq.runtime.disk import Disk, RealDisk
from rmq.runtime.latetls import tls_later
from rmq.runtime.openlimit import raise_open_files_limit

#: how long a dial may take, as the connect timeout of Apache's clients
CONNECT_TIMEOUT_S = 3.0

#: an environment variable (any text): files are read without maps, for a disk with blocks that cannot be read
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
    #: open files and sockets that the process may have; None: no matter
    max_open_files: int | None = None
    #: to be called now and then by whoever frees memory in large amounts
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
    with tls_later():
        from twisted.internet import reactor
    return reactor


def keep_steady(reactor: Any) -> None:
    """
    Let the timers of a real reactor go by the monotonic clock.

    Twisted's own go by the wall clock: when that is set forward by ten minutes all timers go off at once, every idle
    connection is closed and every broker expires; when it is set back nothing happens for ten minutes.
    ``reactor.seconds()`` starts at the wall time, so that it reads like one; ``reactor.wall_seconds()`` is that time.
    Harmless when done already.
    """
    if hasattr(reactor, "wall_seconds"):
        return
    ahead_s = time.time() - time.monotonic()
    reactor.seconds = lambda: time.monotonic() + ahead_s
    reactor.wall_seconds = time.time


def dial_by_name(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
    """Return the endpoint of ``host`` (a name, an IPv4 or an IPv6 address) and ``port``."""
    # Brings pyOpenSSL where that is installed, and most NameServers never dial.
    from twisted.internet.endpoints import HostnameEndpoint

    return HostnameEndpoint(reactor, host.strip("[]"), port, timeout=CONNECT_TIMEOUT_S)


def real_platform(reactor: Any) -> Platform:
    """
    Return the platform of a real process; its disk closes itself after the reactor has shut down.

    From now on the timers of ``reactor`` are steady, and a signal that ends the process (SIGSEGV, SIGBUS) leaves the
    Python stack on standard error, or in the log file where there is one. What is there when the reactor begins to run
    is no longer looked at by the garbage collector.
    """
    keep_steady(reactor)
    if not faulthandler.is_enabled() and sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    disk = RealDisk(reactor, map_files=not os.environ.get(WITHOUT_MAPS))
    reactor.addSystemEventTrigger("after", "shutdown", disk.close)
    # What was imported stays: full collections, during which nobody is answered, need not look through it.
    reactor.callWhenRunning(gc.freeze)
    return Platform(
        reactor=reactor,
        disk=disk,
        rng=random.SystemRandom(),
        endpoint_factory=dial_by_name,
        max_open_files=raise_open_files_limit(),
        give_back_memory=getattr(reactor, "give_back_memory", lambda: None),
    )
