"""The ends of simulated connections, with the manners of Twisted's own TCP transports."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address
from twisted.internet.base import BaseConnector
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    CannotListenError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    TCPTimedOutError,
)
from twisted.internet.interfaces import IConnector, IListeningPort, IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.sim.net import DIAL_AGAIN_S, ESTABLISHED, FIN, RST, Mark, Pipe, connect

if TYPE_CHECKING:
    from rmq.sim.node import Process

#: a streaming producer is paused when more than this waits to be sent, as in Twisted
PAUSE_BYTES = 65536


class Reading:
    """What a transport does when bytes have arrived, in words."""

    def __init__(self, transport: SimTransport) -> None:
        self._transport = transport

    def __str__(self) -> str:
        return f"{self._transport}: dataReceived"


@implementer(ITCPTransport, IPushProducer)
class SimTransport:
    """
    One end of a connection.

    Bytes written wait here, then in the pipe (at most its window), then unread at the other end: so a reader that
    pauses stops the writer's producer in the end, as with real sockets.
    """

    def __init__(self, process: Process, local_port: int, remote_address: str, remote_port: int) -> None:
        self.process = process
        self.net = process.node.net
        self.local_address = process.node.address
        self.local_port = local_port
        self.remote_address = remote_address
        self.remote_port = remote_port
        self.remote: SimTransport | None = None
        self.out: Pipe | None = None
        self.connector: SimConnector | None = None
        self.protocol: Any = None
        self.connected = False
        self.disconnecting = False
        self.closed = False
        self.producer: Any = None
        self.streamingProducer = False
        self.producerPaused = False
        self._buffer: deque[bytes] = deque()
        self._buffered = 0
        self._pumping = False
        self._unread: deque[bytes] = deque()
        self._reading = True
        self._delivering = False
        self._end_seen = False
        self._aborting = False
        self._half_closed = False
        self._no_delay = False
        self._keep_alive = False
        self._trap = self.net.world.trap(Reading(self))

    def __str__(self) -> str:
        return f"connection {self.local_address}:{self.local_port} to {self.remote_address}:{self.remote_port}"

    # -- ITransport, IConsumer

    def write(self, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        if not self.connected or self._aborting or self._half_closed or not data:
            return
        self._buffer.append(bytes(data))
        self._buffered += len(data)
        if self.producer is not None and self.streamingProducer and self._buffered > PAUSE_BYTES:
            self.producerPaused = True
            self.producer.pauseProducing()
        self._pump_soon()

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self.disconnecting = True
            self._reading = False
            self._pump_soon()

    def loseWriteConnection(self) -> None:
        # Protocols that know half-closed connections are not simulated: the peer takes this for the end.
        if self.connected and not self._half_closed:
            self._half_closed = True
            self._pump_soon()

    def abortConnection(self) -> None:
        if not self.connected:
            return
        self.disconnecting = self._aborting = True
        self._reading = False
        self._discard()
        self.process.callLater(0, self._abort)

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", self.remote_address, self.remote_port)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", self.local_address, self.local_port)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        if self.producer is not None:
            raise RuntimeError(f"{producer} cannot be registered, {self.producer} was never unregistered")
        if self.closed:
            producer.stopProducing()
            return
        self.producer = producer
        self.streamingProducer = streaming
        self.producerPaused = False
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        self.producer = None
        if self.connected and self.disconnecting:
            self._pump_soon()

    def pauseProducing(self) -> None:
        self._reading = False

    def resumeProducing(self) -> None:
        if self.connected and not self.disconnecting and not self._reading:
            self._reading = True
            self.process.callLater(0, self._deliver)

    def stopProducing(self) -> None:
        self.loseConnection()

    # -- ITCPTransport

    def getTcpNoDelay(self) -> bool:
        return self._no_delay

    def setTcpNoDelay(self, enabled: bool) -> None:
        self._no_delay = bool(enabled)

    def getTcpKeepAlive(self) -> bool:
        return self._keep_alive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self._keep_alive = bool(enabled)

    # -- the dial

    def dial(self, host: str) -> None:
        """Try to reach ``host`` until it answers or the connector times out."""
        self._dial(host, 0)

    def _dial(self, host: str, attempt: int) -> None:
        if self.closed or not self.process.alive:
            return
        address = self.net.address_of(host, self.process.node)
        if address is not None:
            self.remote_address = address
            delay_s = self.net.latency_s(self.local_address, address)
            self.net.world.schedule(delay_s, lambda: self._dial_arrives(host, attempt))
        else:
            self._dial_again(host, attempt)

    def _dial_arrives(self, host: str, attempt: int) -> None:
        if self.closed or not self.process.alive:
            return
        target = self.net.node_at(self.remote_address)
        if self.net.blocked(self.local_address, self.remote_address) or not target.powered:
            self._dial_again(host, attempt)
            return
        port = target.process.ports.get(self.remote_port) if target.process is not None else None
        if port is None or not port.listens_for(host):
            if not self.net.blocked(self.remote_address, self.local_address):
                delay_s = self.net.latency_s(self.remote_address, self.local_address)
                self.net.world.schedule(delay_s, lambda: self.failIfNotConnected(ConnectionRefusedError()))
            return
        connect(self, port)

    def _dial_again(self, host: str, attempt: int) -> None:
        wait_s = DIAL_AGAIN_S[min(attempt, len(DIAL_AGAIN_S) - 1)]
        # The kernel's timer, not the process's: a dial that was given up leaves nothing behind.
        self.net.world.schedule(wait_s, lambda: self._dial(host, attempt + 1))

    def failIfNotConnected(self, error: Exception) -> None:
        """The connector's time is up, it was stopped, or nobody listens: the dial has failed."""
        if self.connected or self.closed or not self.process.alive:
            return
        self.closed = True
        if self.out is not None:
            self.out.mark(RST)
        assert self.connector is not None
        self.connector.connectionFailed(Failure(error))

    def established(self) -> None:
        """Both ends know of each other: begin."""
        self.connected = True
        self.net.connections[self] = None
        with self.net.world.trap(f"{self}: making the protocol") as trap:
            if self.connector is not None:
                self.protocol = self.connector.buildProtocol(self.getPeer())
            if self.protocol is None:
                self.protocol = Protocol()
                self.loseConnection()
            else:
                self.protocol.makeConnection(self)
        if trap.failure is not None:
            self.protocol = self.protocol or Protocol()
            self._lost(trap.failure, RST)

    # -- what the pipes do

    def pump(self) -> None:
        """Send as much as the window takes; then ask the producer for more, or close if that was all."""
        self._pumping = False
        if not self.connected or self._aborting or self.out is None:
            return
        while self._buffer and self.out.room > 0:
            data = self._buffer.popleft()
            piece = data[: self.out.room]
            if len(piece) < len(data):
                self._buffer.appendleft(data[len(piece) :])
            self._buffered -= len(piece)
            self.out.send(piece)
        if self._buffer:
            return
        if self.producer is not None and (not self.streamingProducer or self.producerPaused):
            self.producerPaused = False
            with self.net.world.trap(f"{self}: resumeProducing"):
                self.producer.resumeProducing()
        elif self._half_closed and not self.disconnecting:
            self.out.mark(FIN)
        elif self.disconnecting:
            self._lost(Failure(ConnectionDone()), FIN)

    def window_opened(self) -> None:
        """The other end has read something: go on sending what waits."""
        if self._buffer:
            self._pump_soon()

    def received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.closed or not self.process.alive:
            self._answer_with_reset()
            return
        self._unread.append(data)
        self._deliver()

    def marked(self, mark: Mark) -> None:
        """The other end's kernel says something."""
        if mark is ESTABLISHED:
            if not self.closed and self.process.alive:
                self.established()
            else:
                self._answer_with_reset()
        elif mark is FIN:
            self._end_seen = True
            self._deliver()
        elif not self.closed:
            self.reset()

    def reset(self) -> None:
        """The connection is broken: lost at once, whatever was unread."""
        if self.connected:
            self._lost(Failure(ConnectionLost()), None)
        elif not self.closed:
            self.failIfNotConnected(ConnectionRefusedError())

    def timed_out(self) -> None:
        """What was sent is not acknowledged for too long."""
        if self.connected:
            self._lost(Failure(TCPTimedOutError()), None)
        elif self.out is not None and self.closed:
            self.out.close()

    def vanish(self) -> None:
        """The process is gone; its kernel says so to the peer, unless the machine is off."""
        unread = bool(self._unread)
        self._discard()
        self.connected = False
        self.closed = True
        self.net.connections.pop(self, None)
        if self.out is None:
            return
        if self.process.node.powered:
            self.out.mark(RST if unread else FIN)
        else:
            self.out.close()

    # -- inside

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self.process.callLater(0, self.pump)

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        trap = self._trap
        while self._unread and self._reading and self.connected:
            data = self._unread.popleft()
            with trap:
                self.protocol.dataReceived(data)
            if trap.failure is not None:
                self._lost(trap.failure, RST)
            elif self.remote is not None and self.remote.out is not None:
                self.remote.out.credit(len(data))
        self._delivering = False
        if self._end_seen and not self._unread and self._reading and self.connected:
            self._lost(Failure(ConnectionDone()), FIN)

    def _abort(self) -> None:
        if self.connected:
            self._lost(Failure(ConnectionAborted()), RST)

    def _lost(self, reason: Failure, last_word: Mark | None) -> None:
        """This end is over; ``last_word`` goes to the peer, None when there is no way."""
        self.connected = False
        self.closed = True
        self.disconnecting = False
        unread = bool(self._unread)
        self._discard()
        self.net.connections.pop(self, None)
        if self.out is not None:
            if last_word is None:
                self.out.close()
            else:
                self.out.mark(RST if unread and last_word is FIN else last_word)
        with self.net.world.trap(f"{self}: connectionLost"):
            producer, self.producer = self.producer, None
            if producer is not None:
                producer.stopProducing()
            self.protocol.connectionLost(reason)
            if self.connector is not None:
                self.connector.connectionLost(reason)

    def _discard(self) -> None:
        self._buffer.clear()
        self._buffered = 0
        self._unread.clear()

    def _answer_with_reset(self) -> None:
        if self.out is not None:
            self.out.mark(RST)


@implementer(IConnector)
class SimConnector(BaseConnector):
    """A dial and the connection it leads to."""

    def __init__(self, process: Process, host: str, port: int, factory: Any, timeout: float) -> None:
        self._host = host
        self._port = port
        super().__init__(factory, timeout, process)  # type: ignore[arg-type]

    def _makeTransport(self) -> Any:
        process: Any = self.reactor
        net = process.node.net
        transport = SimTransport(process, net.ephemeral_port(process.node), self._host, self._port)
        transport.connector = self
        transport.dial(self._host)
        return transport

    def getDestination(self) -> IPv4Address:
        return IPv4Address("TCP", self._host, self._port)


@implementer(IListeningPort)
class SimPort:
    """A listening port of a process."""

    def __init__(self, process: Process, port: int, factory: Any, interface: str) -> None:
        self._process = process
        self._port = port
        self._factory = factory
        self._interface = interface

    def startListening(self) -> None:
        node, ports = self._process.node, self._process.ports
        if self._port == 0:
            self._port = node.net.ephemeral_port(node)
        if self._interface not in ("", "0.0.0.0", "127.0.0.1", "localhost", "::", node.address, node.name):
            raise CannotListenError(self._interface, self._port, OSError("Cannot assign requested address"))
        if self._port in ports:
            raise CannotListenError(self._interface or "any", self._port, OSError("Address already in use"))
        node.world.note(node.name, "listen", self._port)
        ports[self._port] = self
        self._factory.doStart()

    def stopListening(self) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        if self._process.ports.get(self._port) is self:
            del self._process.ports[self._port]
            self._process.callLater(0, self._stopped, done)
        else:
            done.callback(None)
        return done

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", self._interface or "0.0.0.0", self._port)

    def listens_for(self, host: str) -> bool:
        """True when a dial to ``host`` reaches this port."""
        only_here = self._interface in ("127.0.0.1", "localhost")
        return not only_here or host in ("127.0.0.1", "localhost")

    def accept(self, client: SimTransport) -> SimTransport:
        """Make this side of a new connection."""
        server = SimTransport(self._process, self._port, client.local_address, client.local_port)
        with self._process.node.world.trap(f"port {self._port}: buildProtocol"):
            server.protocol = self._factory.buildProtocol(server.getPeer())
        return server

    def vanish(self) -> None:
        self._process.ports.pop(self._port, None)

    def _stopped(self, done: Deferred[None]) -> None:
        self._factory.doStop()
        done.callback(None)
