"""Whether the process of a broker is gone although its machine answers: nothing listens at its port any more."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, ConnectionRefusedError, DNSLookupError
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Factory, Protocol

from rmq.runtime.platform import Platform, split_addr


class _Attempt(Factory):
    protocol = Protocol
    noisy = False


async def is_refused(platform: Platform, addr: str) -> bool:
    """
    Connect to ``addr`` ("host:port"); True when the connection is refused.

    False when it is accepted, when nothing answers in time, when ``addr`` cannot be used, and when this is cancelled.
    """
    try:
        host, port = split_addr(addr)
    except ValueError:
        return False
    endpoint = platform.endpoint_factory(platform.reactor, host, port)
    connecting: Deferred[IProtocol] = endpoint.connect(_Attempt())
    try:
        protocol = await connecting
    except ConnectionRefusedError:
        return True
    except (ConnectError, ConnectingCancelledError, DNSLookupError):
        return False
    assert isinstance(protocol, Protocol) and protocol.transport is not None
    protocol.transport.loseConnection()
    return False
