"""Tests of a listening port."""

from __future__ import annotations

import random
from typing import Any, cast

from OpenSSL.SSL import Error
from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogLevel, capturedLogs, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.channel import CLOSE_GRACE_S, Channel
from rmq.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from rmq.remoting.protocol import RemotingProtocol
from rmq.remoting.responders import Request, ResponderTable, responds_to
from rmq.remoting.server import RemotingServer
from rmq.runtime.disk.files import Disk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import contract
from tests.remoting.peer import RecordingTransport

PING = contract(94_001)


class Pings:
    def __init__(self) -> None:
        self.channels: list[Channel] = []

    @responds_to(PING)
    def ping(self, request: Request[None, None]) -> None:
        self.channels.append(request.channel)


def platform_of(reactor: Any) -> Platform:
    """A platform of which only the reactor is used."""
    return Platform(reactor=reactor, disk=cast(Disk, object()), rng=random.Random(1), endpoint_factory=dial_by_name)


class BusyReactor(MemoryReactorClock):
    """A reactor whose ports are all in use."""

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        raise CannotListenError(interface, port, OSError(98, "Address already in use"))


class ServerCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.pings = Pings()
        self.start(DEFAULT_LIMITS)

    def start(self, limits: RemotingLimits) -> None:
        """Have a server listen; it is the one that :meth:`connect` reaches."""
        self.server = RemotingServer(
            platform_of(self.reactor),
            host="127.0.0.1",
            port=10911,
            responders=ResponderTable(self.pings),
            name="broker",
            limits=limits,
        )
        self.server.startService()

    def connect(self, port: int = 50_000) -> tuple[RemotingProtocol, RecordingTransport]:
        """Have a client connect; its protocol and the server's end of the wire."""
        address = IPv4Address("TCP", "192.0.2.7", port)
        factory = self.reactor.tcpServers[-1][1]
        protocol = factory.buildProtocol(address)
        assert isinstance(protocol, RemotingProtocol)
        transport = RecordingTransport(port=port)
        protocol.makeConnection(transport)
        return protocol, transport


class ListenTests(ServerCase):
    def test_port(self) -> None:
        """The server listens where it is told, with a generous backlog."""
        port, _, backlog, interface = self.reactor.tcpServers[0]
        self.assertEqual((port, backlog, interface), (10911, 1024, "127.0.0.1"))
        self.assertTrue(self.server.running)

    def test_port_in_use(self) -> None:
        """A used port is a CannotListenError at once, and a critical log line that names the address."""
        events: list[Any] = []
        observer = cast(ILogObserver, events.append)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        server = RemotingServer(
            platform_of(BusyReactor()), host="127.0.0.1", port=10911, responders=ResponderTable(), name="broker"
        )
        error = self.assertRaises(CannotListenError, server.startService)
        self.assertIn("10911", str(error))
        (event,) = [event for event in events if event.get("log_level") is LogLevel.critical]
        self.assertEqual((event["name"], event["addr"]), ("broker", "127.0.0.1:10911"))
        self.assertFalse(server.running)
        self.assertIsNone(self.successResultOf(server.stopService()))


class ConnectionTests(ServerCase):
    def test_answers(self) -> None:
        """A client is answered on its own connection."""
        first, first_wire = self.connect(1)
        _, second_wire = self.connect(2)
        first.dataReceived(encode_command(RemotingCommand(94_001, 5)))
        self.assertEqual(decode_commands(first_wire.value())[0].opaque, 5)
        self.assertEqual(second_wire.value(), b"")
        self.assertIs(self.pings.channels[0], first.channel)

    def test_channels(self) -> None:
        """The server knows its connections, each with an id of its own."""
        first, _ = self.connect(1)
        second, _ = self.connect(2)
        self.assertEqual(list(self.server.channels), [first.channel, second.channel])
        self.assertNotEqual(first.channel.id, second.channel.id)
        first.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(list(self.server.channels), [second.channel])

    def test_closed_listeners(self) -> None:
        """Listeners hear of each lost connection with its reason; one that raises harms nobody."""
        heard: list[tuple[Channel, str]] = []

        def broken(channel: Channel, reason: str) -> None:
            raise ValueError("listener")

        self.server.on_channel_closed(broken)
        self.server.on_channel_closed(lambda channel, reason: heard.append((channel, reason)))
        protocol, _ = self.connect()
        protocol.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(heard, [(protocol.channel, "closed by the peer")])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(len(self.server.channels), 0)

    def test_idle(self) -> None:
        """A silent client is closed after 120 s."""
        _, wire = self.connect()
        self.reactor.advance(120)
        self.assertTrue(wire.disconnecting)

    def test_failed_handshake(self) -> None:
        """Why a TLS connection ended is in the log: nothing else tells what a client does not like."""
        protocol, _ = self.connect()
        with capturedLogs() as logs:
            protocol.connectionLost(Failure(Error([("SSL routines", "", "tlsv1 alert unknown ca")])))
            again, _ = self.connect()
            again.connectionLost(Failure(Error([("SSL routines", "", "tlsv1 alert unknown ca")])))
        self.assertEqual([event["reason"] for event in logs], ["TLS: tlsv1 alert unknown ca"])
        self.assertEqual(len(self.server.channels), 0)

    def test_peer_that_is_not_admitted(self) -> None:
        """A host that comes again and again with what this port does not take has a line a minute in the log."""
        with capturedLogs() as logs:
            for seconds in (0, 1, 58, 1):
                self.reactor.advance(seconds)
                protocol, wire = self.connect()
                protocol.dataReceived(b"\x16\x03\x01")
                self.assertTrue(wire.disconnecting)
        lines = [(event["peer"], event["suppressed"]) for event in logs if "why" in event]
        self.assertEqual(lines, [(protocol.channel.peer, 0), (protocol.channel.peer, 2)])

    def test_limit(self) -> None:
        """Connections beyond serverMaxConnections are refused, and taken again when there is room."""
        self.assertEqual(DEFAULT_LIMITS.server_max_connections, 100_000)
        self.start(RemotingLimits(server_max_connections=1))
        protocol, _ = self.connect()
        factory = self.reactor.tcpServers[-1][1]
        self.assertIsNone(factory.buildProtocol(IPv4Address("TCP", "192.0.2.8", 1)))
        protocol.connectionLost(Failure(ConnectionDone()))
        self.assertIsNotNone(factory.buildProtocol(IPv4Address("TCP", "192.0.2.8", 1)))


class StopTests(ServerCase):
    def test_without_connections(self) -> None:
        """Stopping is done at once."""
        self.assertIsNone(self.successResultOf(self.server.stopService()))

    def test_with_connections(self) -> None:
        """Stopping closes the connections and is done when they are gone."""
        first, first_wire = self.connect(1)
        second, second_wire = self.connect(2)
        stopped = self.server.stopService()
        self.assertTrue(first_wire.disconnecting and second_wire.disconnecting)
        first.connectionLost(Failure(ConnectionDone()))
        self.assertNoResult(stopped)
        second.connectionLost(Failure(ConnectionDone()))
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_client_that_does_not_let_go(self) -> None:
        """A connection that cannot be closed nicely is cut after CLOSE_GRACE_S."""
        _, wire = self.connect()
        self.server.stopService()
        self.reactor.advance(CLOSE_GRACE_S)
        self.assertTrue(wire.aborted)

    def test_again(self) -> None:
        """A stopped server can be started again."""
        self.server.stopService()
        self.server.startService()
        self.assertEqual(len(self.reactor.tcpServers), 2)
