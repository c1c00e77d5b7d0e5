"""What one NameServer or Broker stands on: reactor, disk, chance and the way to dial."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import IStreamClientEndpoint

from rmq.runtime.disk import Disk, RealDisk

#: how long a dial may take, as the connect timeout of Apache's clients
CONNECT_TIMEOUT_S = 3.0

EndpointFactory = Callable[[Any, str, int], IStreamClientEndpoint]


@attrs.frozen(kw_only=True)
class Platform:
    """
    Everything from outside, as one argument.

    ``reactor`` offers IReactorTime, IReactorTCP, IReactorCore's event triggers and ``callFromThread``. It is typed Any
    because zope's interfaces cannot be intersected.
    """

    reactor: Any
    disk: Disk
    rng: random.Random
    endpoint_factory: EndpointFactory


def dial_by_name(reactor: Any, host: str, port: int) -> IStreamClientEndpoint:
    """Return the endpoint of ``host`` (a name, an IPv4 or an IPv6 address) and ``port``."""
    return HostnameEndpoint(reactor, host.strip("[]"), port, timeout=CONNECT_TIMEOUT_S)


def real_platform(reactor: Any) -> Platform:
    """Return the platform of a real process; its disk closes itself after the reactor has shut down."""
    disk = RealDisk(reactor)
    reactor.addSystemEventTrigger("after", "shutdown", disk.close)
    return Platform(reactor=reactor, disk=disk, rng=random.SystemRandom(), endpoint_factory=dial_by_name)
