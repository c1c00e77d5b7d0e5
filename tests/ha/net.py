"""Connections in memory, on one clock: cut where chance says, with the back-pressure of a real transport."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import (
    CannotListenError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
)
from twisted.internet.interfaces import IListeningPort, IStreamClientEndpoint, ITCPTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

#: unsent bytes at which Twisted's transports pause a producer
HIGH_WATER_BYTES = 65536


@implementer(ITCPTransport)
class End:
    """One end of a connection. What it wrote stays in ``unsent`` until the net carries it over."""

    def __init__(self, net: Net, host: IPv4Address, peer: IPv4Address) -> None:
        self._net = net
        self._host = host
        self._peer = peer
        self.protocol: Any = None
        self.other: End
        self.unsent = bytearray()
        #: the most bytes that were ever unsent
        self.peak = 0
        #: True: the other side reads nothing
        self.stuck = False
        self.connected = True
        self._reading = True
        self._closing = False
        self._producer: Any = None
        self._producer_paused = False

    def write(self, data: bytes) -> None:
        if self.connected and not self._closing:
            self.unsent += data
            self.peak = max(self.peak, len(self.unsent))
            if self._producer is not None and len(self.unsent) > HIGH_WATER_BYTES and not self._producer_paused:
                self._producer_paused = True
                self._producer.pauseProducing()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def carry(self, rng: random.Random) -> bool:
        """Bring some bytes to the other side; False when there is nothing to do."""
        if not self.connected or self.stuck or not self.other._reading:
            return False
        if not self.unsent:
            if self._closing:
                self.end(ConnectionDone())
                return True
            return False
        size = rng.choice((1, 7, 100, 5000, 65536))
        data = bytes(self.unsent[:size])
        del self.unsent[:size]
        self.other.protocol.dataReceived(data)
        if not self.unsent and self._producer_paused and self._producer is not None:
            self._producer_paused = False
            self._producer.resumeProducing()
        return True

    def end(self, reason: Exception) -> None:
        """Close both ends."""
        if self.connected:
            self.connected = self.other.connected = False
            self.unsent.clear()
            self.other.unsent.clear()
            self.protocol.connectionLost(Failure(reason))
            self.other.protocol.connectionLost(Failure(ConnectionLost()))

    def loseConnection(self) -> None:
        self._closing = True

    def abortConnection(self) -> None:
        self._closing = True
        self._net.callLater(0, self.end, ConnectionAborted())

    def loseWriteConnection(self) -> None:
        raise AssertionError("nobody half-closes")

    def registerProducer(self, producer: object, streaming: bool) -> None:
        assert streaming
        self._producer = producer

    def unregisterProducer(self) -> None:
        self._producer = None

    def pauseProducing(self) -> None:
        self._reading = False

    def resumeProducing(self) -> None:
        self._reading = True

    def getHost(self) -> IPv4Address:
        return self._host

    def getPeer(self) -> IPv4Address:
        return self._peer

    def getTcpNoDelay(self) -> bool:
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        assert enabled

    def getTcpKeepAlive(self) -> bool:
        return True

    def setTcpKeepAlive(self, enabled: bool) -> None:
        assert enabled


@implementer(IListeningPort)
class Port:
    """A listening port."""

    def __init__(self, net: Net, port: int) -> None:
        self._net = net
        self._port = port

    def startListening(self) -> None:
        """It listens from the beginning."""

    def stopListening(self) -> Deferred[None]:
        self._net.listening.pop(self._port, None)
        return succeed(None)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "127.0.0.1", self._port)


@implementer(IStreamClientEndpoint)
class Endpoint:
    """The way to a listening port."""

    def __init__(self, net: Net, host: str, port: int) -> None:
        self._net = net
        self._host = host
        self._port = port

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        self._net.dials.append((self._net.seconds(), self._port))
        if self._port in self._net.silent:
            return Deferred()
        if self._port not in self._net.listening:
            return fail(ConnectionRefusedError())
        return succeed(self._net.join(protocolFactory, self._host, self._port).protocol)


class Net(Clock):
    """A reactor whose connections lead to itself. ``seed`` decides where bytes are cut."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.advance(5_000)
        self.wall_ahead_s = 1_700_000_000.0
        self.rng = random.Random(seed)
        self.listening: dict[int, Any] = {}
        #: ports that never answer a dial
        self.silent: set[int] = set()
        #: (time, port) of every dial
        self.dials: list[tuple[float, int]] = []
        #: the connecting end of each connection, oldest first
        self.ends: list[End] = []

    def wall_seconds(self) -> float:
        """Far from the steady time, so that a test fails when the code takes one clock for the other."""
        return self.seconds() + self.wall_ahead_s

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:
        if port in self.listening:
            raise CannotListenError(interface, port, OSError("Address already in use"))
        self.listening[port] = factory
        return Port(self, port)

    def endpoint(self, reactor: Any, host: str, port: int) -> Endpoint:
        """An endpoint factory as `Platform` wants it."""
        assert reactor is self
        return Endpoint(self, host, port)

    def join(self, client_factory: Any, host: str, port: int, *, client_host: str = "10.0.0.1") -> End:
        """Connect; return the client's end."""
        client_addr = IPv4Address("TCP", client_host, 40_000 + len(self.ends))
        server_addr = IPv4Address("TCP", host, port)
        client = End(self, client_addr, server_addr)
        server = End(self, server_addr, client_addr)
        client.other, server.other = server, client
        server.protocol = self.listening[port].buildProtocol(client_addr)
        client.protocol = client_factory.buildProtocol(server_addr)
        self.ends.append(client)
        if client.protocol is None or server.protocol is None:
            raise AssertionError("a connection was not wanted")
        server.protocol.makeConnection(server)
        client.protocol.makeConnection(client)
        return client

    def deliver(self, most: int = 100_000) -> None:
        """Carry bytes and run what is due until nothing moves; an AssertionError if that takes too long."""
        for _ in range(most):
            moved = False
            for client in list(self.ends):
                for end in (client, client.other):
                    moved = end.carry(self.rng) or moved
            if any(call.getTime() <= self.seconds() for call in self.getDelayedCalls()):
                self.advance(0)
                moved = True
            if not moved:
                return
        raise AssertionError("the net does not come to rest")

    def run(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass, in small steps."""
        self.deliver()
        for _ in range(round(seconds / step)):
            self.advance(step)
            self.deliver()
