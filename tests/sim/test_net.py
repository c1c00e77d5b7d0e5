"""The simulated network, driven by Twisted's own endpoints and services."""

from __future__ import annotations

from typing import Any

from twisted.application.internet import ClientService
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.error import (
    CannotListenError,
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
    DNSLookupError,
    TCPTimedOutError,
    TimeoutError,
    UserError,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.sim.net import WINDOW_BYTES, NetConditions, SimNet
from rmq.sim.node import Node, Process
from rmq.sim.transport import PAUSE_BYTES
from rmq.sim.world import World

PORT = 9876


class Recorder(Protocol):
    """Keeps what it hears."""

    transport: Any

    def __init__(self) -> None:
        self.data = b""
        self.pieces: list[int] = []
        self.made = 0
        self.lost: list[type[BaseException] | None] = []

    def connectionMade(self) -> None:
        self.made += 1

    def dataReceived(self, data: bytes) -> None:
        self.data += data
        self.pieces.append(len(data))

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        self.lost.append(reason.type)


class Producer:
    """A streaming producer that writes as long as nobody stops it."""

    def __init__(self, transport: Any, chunk: bytes, total: int) -> None:
        self.transport = transport
        self.chunk = chunk
        self.left = total
        self.events: list[str] = []
        self.paused = False

    def resumeProducing(self) -> None:
        self.events.append("resume")
        self.paused = False
        self.produce()

    def produce(self) -> None:
        while self.left > 0 and not self.paused:
            self.left -= len(self.chunk)
            self.transport.write(self.chunk)
        if self.left <= 0:
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self.events.append("pause")
        self.paused = True

    def stopProducing(self) -> None:
        self.events.append("stop")
        self.paused = True


class NetCase(SynchronousTestCase):
    seed = 5

    def setUp(self) -> None:
        self.begin(self.seed)

    def begin(self, seed: int) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.server, self.client, self.third = (Node(self.world, self.net, name) for name in ("srv", "cli", "thr"))
        for node in (self.server, self.client, self.third):
            node.start()
        self.accepted: list[Recorder] = []

    def process(self, node: Node) -> Process:
        assert node.process is not None
        return node.process

    def listen(self, node: Node | None = None, interface: str = "", protocol: type[Recorder] = Recorder) -> Any:
        def build() -> Recorder:
            self.accepted.append(protocol())
            return self.accepted[-1]

        endpoint = TCP4ServerEndpoint(self.process(node or self.server), PORT, interface=interface)
        return self.successResultOf(endpoint.listen(Factory.forProtocol(build)))

    def dial(self, host: str | None = None, port: int = PORT, timeout: float = 3.0) -> Deferred[Any]:
        endpoint = TCP4ClientEndpoint(self.process(self.client), host or self.server.address, port, timeout=timeout)
        dialled: Deferred[Any] = endpoint.connect(Factory.forProtocol(Recorder))
        return dialled

    def pair(self) -> tuple[Recorder, Recorder]:
        """Connect and return (client's, server's) protocol."""
        if PORT not in self.process(self.server).ports:
            self.listen()
        client = self.world.settle(self.dial())
        self.world.run_for(0.1)
        return client, self.accepted[-1]


class ConnectingTests(NetCase):
    def test_connect(self) -> None:
        """A dial reaches the listening port; both ends know each other's addresses; nothing is instantaneous."""
        self.listen()
        before_s = self.world.now_s
        client = self.world.settle(self.dial())
        (server,) = self.accepted
        self.assertGreater(self.world.now_s, before_s)
        self.assertEqual((client.made, server.made), (1, 1))
        self.assertEqual(client.transport.getPeer(), IPv4Address("TCP", "10.0.0.1", PORT))
        self.assertEqual(client.transport.getHost(), server.transport.getPeer())

    def test_names_and_addresses(self) -> None:
        """Nodes can be dialled by address and by name, each on its own address and the same port."""
        self.listen()
        self.listen(self.third)
        for host, address in (("srv", "10.0.0.1"), ("10.0.0.3", "10.0.0.3"), ("thr", "10.0.0.3")):
            client = self.world.settle(self.dial(host))
            self.assertEqual(client.transport.getPeer().host, address)
        self.assertEqual(len(self.accepted), 3)

    def test_resolve(self) -> None:
        """Names of nodes resolve, others do not."""
        self.assertEqual(self.successResultOf(self.process(self.client).resolve("thr")), "10.0.0.3")
        self.failureResultOf(self.process(self.client).resolve("nobody"), DNSLookupError)

    def test_refused(self) -> None:
        """A machine that is up and does not listen refuses, soon."""
        self.assertRaises(ConnectionRefusedError, self.world.settle, self.dial())
        self.server.kill()
        self.assertRaises(ConnectionRefusedError, self.world.settle, self.dial())
        self.assertLess(self.world.now_s, 1)

    def test_nobody_answers(self) -> None:
        """A machine that is off, away or unknown lets the dial time out."""
        self.listen()
        self.net.partition(self.client, self.server)
        self.assertRaises(TimeoutError, self.world.settle, self.dial())
        self.net.heal()
        self.server.crash()
        self.assertRaises(TimeoutError, self.world.settle, self.dial())
        self.assertRaises(TimeoutError, self.world.settle, self.dial("10.9.9.9"))
        self.assertAlmostEqual(self.world.now_s, 9, places=3)

    def test_dial_gets_through_after_healing(self) -> None:
        """A dial tries again by itself, so a short partition only delays it."""
        self.listen()
        self.net.partition(self.client, self.server)
        dialled = self.dial(timeout=30)
        self.world.run_for(2)
        self.net.heal()
        self.assertEqual(self.world.settle(dialled).made, 1)

    def test_answer_does_not_get_back(self) -> None:
        """With only the way back blocked the server thinks it is connected, and the client times out."""
        self.listen()
        self.net.block(self.server, self.client)
        self.assertRaises(TimeoutError, self.world.settle, self.dial())
        self.assertEqual([server.made for server in self.accepted], [1])
        self.net.heal()
        self.world.run_for(1)
        self.assertEqual(self.accepted[0].lost, [ConnectionLost])

    def test_cancelled_dial(self) -> None:
        """A dial that is given up never connects."""
        self.listen()
        dialled = self.dial()
        dialled.cancel()
        self.failureResultOf(dialled, ConnectingCancelledError, UserError)
        self.world.run_for(10)
        self.assertEqual(self.accepted, [])
        self.assertEqual(self.process(self.client).leaks(), [])

    def test_loopback(self) -> None:
        """A port on the loopback interface is reached from its own machine only."""
        self.listen(interface="127.0.0.1")
        self.assertRaises(ConnectionRefusedError, self.world.settle, self.dial())
        endpoint = TCP4ClientEndpoint(self.process(self.server), "127.0.0.1", PORT)
        dialled: Deferred[Any] = endpoint.connect(Factory.forProtocol(Recorder))
        self.assertEqual(self.world.settle(dialled).made, 1)

    def test_port_taken(self) -> None:
        """A port can be taken once; after stopListening it is free, and nobody answers there."""
        port = self.listen()
        self.assertRaises(CannotListenError, self.process(self.server).listenTCP, PORT, Factory())
        self.assertRaises(CannotListenError, self.process(self.server).listenTCP, 1, Factory(), interface="10.0.0.77")
        self.world.settle(port.stopListening())
        self.assertRaises(ConnectionRefusedError, self.world.settle, self.dial())
        self.listen()

    def test_any_port(self) -> None:
        """Port 0 is some free port."""
        ports = [self.process(self.server).listenTCP(0, Factory()).getHost().port for _ in range(3)]
        self.assertEqual(len({*ports, 0}), 4)

    def test_no_protocol(self) -> None:
        """A factory that wants no connection closes it."""

        class Unwilling(Factory):
            def buildProtocol(self, addr: object) -> None:
                return None

        self.process(self.server).listenTCP(PORT, Unwilling())
        client = self.world.settle(self.dial())
        self.world.run_for(1)
        self.assertEqual(client.lost, [ConnectionDone])


class DataTests(NetCase):
    def test_in_order_in_pieces(self) -> None:
        """Whatever is written arrives in order; what is cut where is up to the seed."""
        data = bytes(range(256)) * 1000
        cuts = set()
        for seed in range(12):
            self.begin(seed)
            client, server = self.pair()
            for start in range(0, len(data), 7000):
                client.transport.write(data[start : start + 7000])
            server.transport.writeSequence([b"a", b"b"])
            self.world.run_for(5)
            self.assertEqual((server.data == data, client.data), (True, b"ab"), f"seed {seed}")
            cuts.add(tuple(server.pieces))
        self.assertGreater(len(cuts), 6)

    def test_shredded(self) -> None:
        """The network can be told to cut everything into crumbs."""
        self.net.conditions = NetConditions(shredded=1.0, tiny_bytes=3)
        client, server = self.pair()
        client.transport.write(b"0123456789")
        self.world.run_for(1)
        self.assertEqual(server.data, b"0123456789")
        self.assertLessEqual(min(server.pieces), 2)
        self.assertGreater(len(server.pieces), 1)

    def test_only_bytes(self) -> None:
        """Text cannot be written by mistake."""
        client, _ = self.pair()
        self.assertRaises(TypeError, client.transport.write, "text")

    def test_clog(self) -> None:
        """A slow direction delays only that direction."""
        client, server = self.pair()
        self.net.clog(self.client, self.server, 2.0)
        client.transport.write(b"slow")
        server.transport.write(b"fast")
        self.world.run_for(1)
        self.assertEqual((server.data, client.data), (b"", b"fast"))
        self.world.run_for(2)
        self.assertEqual(server.data, b"slow")

    def test_back_pressure(self) -> None:
        """A reader that pauses stops the writer's producer, after what the buffers take; resuming lets it go on."""
        client, server = self.pair()
        server.transport.pauseProducing()
        total = 4 * WINDOW_BYTES
        producer = Producer(client.transport, b"x" * 10_000, total)
        client.transport.registerProducer(producer, True)
        producer.produce()
        self.world.run_for(5)
        sent = total - producer.left
        self.assertEqual(producer.events[-1], "pause")
        self.assertLessEqual(sent, WINDOW_BYTES + PAUSE_BYTES + 20_000)
        self.assertEqual(server.data, b"")
        server.transport.resumeProducing()
        self.world.run_for(5)
        self.assertEqual((len(server.data), producer.left), (total - producer.left, producer.left))
        self.assertLessEqual(producer.left, 0)
        self.assertIn("resume", producer.events)

    def test_pull_producer(self) -> None:
        """A pull producer is asked again each time its data has gone."""
        client, server = self.pair()
        left = [b"c", b"b", b"a"]

        class Pull:
            def resumeProducing(self) -> None:
                if left:
                    client.transport.write(left.pop())
                else:
                    client.transport.unregisterProducer()

            def stopProducing(self) -> None:
                left.clear()

        client.transport.registerProducer(Pull(), False)
        self.world.run_for(1)
        self.assertEqual((server.data, left), (b"abc", []))

    def test_second_producer(self) -> None:
        """One producer at a time; one for a closed connection is stopped at once."""
        client, _ = self.pair()
        producer = Producer(client.transport, b"x", 0)
        client.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, client.transport.registerProducer, producer, True)
        client.transport.abortConnection()
        self.world.run_for(1)
        self.assertEqual(producer.events, ["stop"])
        late = Producer(client.transport, b"x", 0)
        client.transport.registerProducer(late, True)
        self.assertEqual(late.events, ["stop"])


class ClosingTests(NetCase):
    def test_lose_connection_flushes(self) -> None:
        """loseConnection sends what was written, then both ends see an orderly end."""
        client, server = self.pair()
        client.transport.write(b"x" * 3 * WINDOW_BYTES)
        client.transport.loseConnection()
        self.world.run_for(2)
        self.assertEqual(
            (len(server.data), client.lost, server.lost), (3 * WINDOW_BYTES, [ConnectionDone], [ConnectionDone])
        )

    def test_nothing_is_read_after_lose_connection(self) -> None:
        """An end that wants to close hears nothing more."""
        client, server = self.pair()
        client.transport.loseConnection()
        server.transport.write(b"too late")
        self.world.run_for(1)
        self.assertEqual(client.data, b"")

    def test_abort_connection(self) -> None:
        """abortConnection throws away what was not sent; the other end sees a broken connection."""
        client, server = self.pair()
        client.transport.write(b"x" * 3 * WINDOW_BYTES)
        client.transport.abortConnection()
        client.transport.write(b"ignored")
        self.assertEqual(client.lost, [])
        self.world.run_for(2)
        self.assertEqual((client.lost, server.lost), ([ConnectionAborted], [ConnectionLost]))
        self.assertEqual(server.data, b"")

    def test_abort_while_closing(self) -> None:
        """A close that waits for a reader who does not read can be cut short."""
        client, server = self.pair()
        server.transport.pauseProducing()
        client.transport.write(b"x" * 3 * WINDOW_BYTES)
        client.transport.loseConnection()
        self.world.run_for(5)
        self.assertEqual(client.lost, [])
        client.transport.abortConnection()
        self.world.run_for(1)
        self.assertEqual((client.lost, server.lost), ([ConnectionAborted], [ConnectionLost]))

    def test_half_close(self) -> None:
        """Closing the write side ends the connection for a peer that knows no half-closed ones."""
        client, server = self.pair()
        client.transport.write(b"last")
        client.transport.loseWriteConnection()
        self.world.run_for(1)
        self.assertEqual((server.data, server.lost, client.lost), (b"last", [ConnectionDone], [ConnectionDone]))

    def test_write_after_the_end(self) -> None:
        """Writing to a closed connection does nothing."""
        client, server = self.pair()
        server.transport.loseConnection()
        self.world.run_for(1)
        client.transport.write(b"x")
        client.transport.loseConnection()
        client.transport.abortConnection()
        self.world.run_for(1)
        self.assertEqual(client.lost, [ConnectionDone])

    def test_broken_protocol(self) -> None:
        """An exception in dataReceived is logged and ends that connection only."""

        class Broken(Recorder):
            def dataReceived(self, data: bytes) -> None:
                raise RuntimeError("broken protocol")

        self.listen(protocol=Broken)
        client, server = self.pair()
        other = self.world.settle(self.dial())
        client.transport.write(b"x")
        self.world.run_for(1)
        self.assertEqual((client.lost, server.lost, other.lost), ([ConnectionLost], [RuntimeError], []))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(len(self.world.failures), 1)


class FaultTests(NetCase):
    def test_partition_and_heal(self) -> None:
        """A partition holds everything back; healed in time, nothing is lost."""
        client, server = self.pair()
        self.net.partition(self.client, self.server)
        client.transport.write(b"to the server")
        server.transport.write(b"to the client")
        self.world.run_for(10)
        self.assertEqual((client.data, server.data), (b"", b""))
        self.net.heal()
        self.world.run_for(1)
        self.assertEqual((client.data, server.data), (b"to the client", b"to the server"))
        self.assertEqual(client.lost + server.lost, [])

    def test_half_partition(self) -> None:
        """One blocked direction leaves the other open."""
        client, server = self.pair()
        self.net.block(self.client, self.server)
        client.transport.write(b"held")
        server.transport.write(b"passes")
        self.world.run_for(10)
        self.assertEqual((client.data, server.data), (b"passes", b""))

    def test_long_partition(self) -> None:
        """A sender gives up in the end; a silent peer notices nothing until it speaks."""
        client, server = self.pair()
        self.net.partition(self.client, self.server)
        client.transport.write(b"x")
        self.world.run_for(200)
        self.assertEqual((client.lost, server.lost), ([TCPTimedOutError], []))
        self.net.heal()
        server.transport.write(b"anybody there?")
        self.world.run_for(1)
        self.assertEqual((server.data, server.lost), (b"", [ConnectionLost]))

    def test_acknowledgements_do_not_get_back(self) -> None:
        """With the way back blocked data arrives until the window is full; then the sender gives up."""
        client, server = self.pair()
        self.net.block(self.server, self.client)
        client.transport.write(b"x" * 3 * WINDOW_BYTES)
        self.world.run_for(10)
        self.assertEqual(len(server.data), WINDOW_BYTES)
        self.world.run_for(200)
        self.assertEqual(client.lost, [TCPTimedOutError])

    def test_blocks_are_counted(self) -> None:
        """A direction that is blocked twice opens when both blocks are taken back."""
        client, server = self.pair()
        self.net.block(self.client, self.server)
        self.net.partition(self.client, self.server)
        self.net.unblock(self.client, self.server)
        client.transport.write(b"x")
        self.world.run_for(1)
        self.assertEqual(server.data, b"")
        self.net.unblock(self.client, self.server)
        self.world.run_for(1)
        self.assertEqual(server.data, b"x")

    def test_reset(self) -> None:
        """A reset breaks both ends; a new connection works."""
        client, server = self.pair()
        self.net.reset_between(self.server, self.client)
        self.world.run_for(1)
        self.assertEqual((client.lost, server.lost), ([ConnectionLost], [ConnectionLost]))
        self.pair()

    def test_kill(self) -> None:
        """The peer of a killed process gets what was sent and sees the end; the dead side is told nothing."""
        client, server = self.pair()
        server.transport.write(b"last words")
        self.world.run_for(0)
        self.server.kill()
        self.world.run_for(1)
        self.assertEqual((client.data, client.lost), (b"last words", [ConnectionDone]))
        self.assertEqual(server.lost, [])

    def test_power_failure(self) -> None:
        """The peer of a machine without power hears nothing; once that is back a word from the peer is refused."""
        client, server = self.pair()
        self.server.crash()
        self.world.run_for(100)
        self.assertEqual(client.lost, [])
        client.transport.write(b"x")
        self.world.run_for(1)
        self.server.start()
        self.world.run_for(1)
        self.assertEqual((client.lost, server.lost), ([ConnectionLost], []))

    def test_power_failure_for_long(self) -> None:
        """A peer that speaks to a machine without power gives up in the end."""
        client, _ = self.pair()
        self.server.crash()
        client.transport.write(b"x")
        self.world.run_for(200)
        self.assertEqual(client.lost, [TCPTimedOutError])


class ClientServiceTests(NetCase):
    def test_reconnects(self) -> None:
        """Twisted's own ClientService finds its server again after kill, power failure and partition."""
        self.listen()
        connected: list[Recorder] = []

        def build() -> Recorder:
            connected.append(Recorder())
            return connected[-1]

        process = self.process(self.client)
        endpoint = TCP4ClientEndpoint(process, "srv", PORT, timeout=3)
        service = ClientService(endpoint, Factory.forProtocol(build), retryPolicy=lambda attempt: 1.0, clock=process)
        service.startService()
        self.world.run_until(lambda: connected, 10)
        for end in (self.server.kill, self.server.crash):
            count = len(connected)
            end()
            self.world.run_for(2)
            self.server.start()
            self.listen()
            connected[-1].transport.write(b"x")
            self.world.run_until(lambda count=count: len(connected) > count, 30)  # type: ignore[misc]
        self.world.settle(service.stopService())
        self.assertEqual(process.leaks(), [])


class DeterminismTests(NetCase):
    def history(self, seed: int) -> str:
        """A busy minute with faults, as its digest."""
        self.begin(seed)
        client, server = self.pair()
        for number in range(60):
            client.transport.write(b"%d" % number * 100)
            server.transport.write(b"%d" % number * 50)
            if number == 20:
                self.net.partition(self.client, self.server)
            if number == 30:
                self.net.heal()
            self.world.run_for(1)
        return self.world.trace.digest

    def test_same_seed_same_history(self) -> None:
        """The same seed gives the same trace, another seed another one."""
        self.assertEqual(self.history(1), self.history(1))
        self.assertNotEqual(self.history(1), self.history(2))
