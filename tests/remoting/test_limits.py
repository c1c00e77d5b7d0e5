"""What slow, silent and hostile peers may cost a port: bytes, time, connections. Nobody else notices them."""

from __future__ import annotations

import msgspec
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting.channel import Channel
from rmq.remoting.limits import MIB, HeldBytes, RemotingLimits, Seats
from rmq.remoting.protocol import RemotingProtocol
from rmq.remoting.responders import Reply, Request, ResponderTable, responds_to
from rmq.remoting.server import RemotingServer
from rmq.runtime.disk.openlimit import RESERVED_FILES, raise_open_files_limit, sockets_of
from rmq.runtime.logs import QUIET_MS
from rmq.wire.command import RemotingCommand, encode_command
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32
from rmq.wire.frames import MAX_FRAME_BYTES, PREFIX
from tests.remoting.peer import Peer, RecordingTransport
from tests.remoting.test_server import platform_of

IDLE_S = 120.0


class SizeHeader(msgspec.Struct, rename="camel", kw_only=True):
    size: Int32 = 0


class Anything(msgspec.Struct, rename="camel", kw_only=True):
    value: msgspec.Raw = msgspec.Raw(b"null")


GIVE = contract(98_301, SizeHeader, reply_body=bytes)
READ = contract(98_302, body=Anything)
COUNT = contract(98_303, body=bytes, reply_body=bytes)


class Owner:
    @responds_to(GIVE)
    def give(self, request: Request[SizeHeader, None]) -> Reply:
        return Reply(body=bytes(request.header.size))

    @responds_to(READ)
    def read(self, request: Request[None, Anything]) -> None:
        """Success."""

    @responds_to(COUNT)
    def count(self, request: Request[None, bytes]) -> Reply:
        return Reply(body=str(len(request.body)).encode())


def give(size: int) -> bytes:
    return encode_command(RemotingCommand(GIVE.code, 1, ext_fields={"size": str(size)}))


class Port:
    """A port and the peers that connect to it."""

    def __init__(self, limits: RemotingLimits, seats: Seats | None = None) -> None:
        self.reactor = MemoryReactorClock()
        self.server = RemotingServer(
            platform_of(self.reactor),
            host="127.0.0.1",
            port=9876,
            responders=ResponderTable(Owner()),
            name="namesrv",
            limits=limits,
            seats=seats,
        )
        self.server.startService()
        self.peers = 0

    def connect(self) -> tuple[RemotingProtocol, RecordingTransport] | None:
        """Return the protocol and the wire of a new connection, None when it is refused."""
        self.peers += 1
        address = IPv4Address("TCP", f"192.0.2.{self.peers % 250}", 40_000 + self.peers)
        protocol = self.reactor.tcpServers[-1][1].buildProtocol(address)
        if protocol is None:
            return None
        assert isinstance(protocol, RemotingProtocol)
        wire = RecordingTransport(address.host, address.port)
        protocol.makeConnection(wire)
        return protocol, wire

    def join(self) -> tuple[RemotingProtocol, RecordingTransport]:
        connected = self.connect()
        assert connected is not None
        return connected


class UnreadTests(SynchronousTestCase):
    """Peers that ask and do not read."""

    def test_sum(self) -> None:
        """When the answers of all peers together are too many, who has most of them is cut off, and only they."""
        port = Port(RemotingLimits(server_max_held_bytes=20 * MIB))
        peers = [port.join() for _ in range(4)]
        with capturedLogs() as logs:
            for mib, (protocol, _) in zip((3, 9, 4, 2), peers, strict=True):
                protocol.dataReceived(give(mib * MIB))
            self.assertEqual([wire.aborted for _, wire in peers], [False] * 4)
            peers[0][0].channel.write(bytes(3 * MIB))
        self.assertEqual([wire.aborted for _, wire in peers], [False, True, False, False])
        (told,) = [event for event in logs if event["log_level"] is LogLevel.warn]
        self.assertEqual((told["peer"], told["limit_bytes"]), (peers[1][0].channel.peer, 20 * MIB))

    def test_who_reads_does_not_count(self) -> None:
        """Peers that read keep nothing, however much they ask for."""
        port = Port(RemotingLimits(server_max_held_bytes=4 * MIB))
        protocol, wire = port.join()
        for _ in range(20):
            protocol.dataReceived(give(MIB))
            wire.read()
        self.assertFalse(wire.aborted)
        self.assertEqual(protocol.channel.held_bytes, 0)

    def test_gone_peers_do_not_count(self) -> None:
        """What was kept for a connection that ended is forgotten."""
        port = Port(RemotingLimits(server_max_held_bytes=4 * MIB))
        for _ in range(20):
            protocol, wire = port.join()
            protocol.dataReceived(give(3 * MIB))
            self.assertFalse(wire.aborted)
            protocol.connectionLost(Failure(ConnectionDone()))

    def test_room_is_made(self) -> None:
        """Those with most are cut off until three quarters of the limit are in use, and nobody beyond that."""
        for sizes, cut in (((4, 2, 3, 2, 3, 3), (0, 2)), ((5, 2, 3, 2, 3, 2), (0,)), ((4, 4, 4, 4), ())):
            port = Port(RemotingLimits(server_max_held_bytes=16 * MIB))
            peers = [port.join() for _ in sizes]
            for mib, (protocol, _) in zip(sizes, peers, strict=True):
                protocol.channel.write(bytes(mib * MIB))
            self.assertEqual(tuple(at for at, (_, wire) in enumerate(peers) if wire.aborted), cut)

    def test_not_looked_at_for_every_byte(self) -> None:
        """Near the limit the peers are not counted again with every write."""
        looks = []

        def channels() -> list[Channel]:
            looks.append(1)
            return [peer.channel for peer in peers]

        held = HeldBytes(10 * MIB, channels)
        peers = [Peer(ResponderTable(Owner()), grew=held.grew) for _ in range(10)]
        for number in range(2000):
            peers[number % 10].channel.write(bytes(100_000))
        self.assertLess(len(looks), 25)
        self.assertLess(sum(peer.channel.held_bytes for peer in peers if peer.channel.is_open), 10 * MIB)


class UnfinishedTests(SynchronousTestCase):
    """Frames that are announced and do not come."""

    def test_memory(self) -> None:
        """An announced frame takes no more memory than what came of it."""
        peer = Peer(ResponderTable(Owner()))
        peer.send(PREFIX.pack(MAX_FRAME_BYTES - 4, 10))
        peer.send(bytes(1000))
        self.assertEqual(peer.channel.held_bytes, 1008)

    def test_sum(self) -> None:
        """Unfinished frames count towards the memory of all peers together."""
        port = Port(RemotingLimits(server_max_held_bytes=32 * MIB))
        peers = [port.join() for _ in range(5)]
        for protocol, _ in peers:
            protocol.dataReceived(PREFIX.pack(MAX_FRAME_BYTES - 4, 10))
        for _ in range(10 * 16):
            for protocol, _ in peers:
                protocol.dataReceived(bytes(64 * 1024))
        alive = [protocol.channel for protocol, _ in peers if protocol.channel.is_open]
        self.assertLess(len(alive), 5)
        self.assertGreater(len(alive), 0)
        self.assertLessEqual(sum(channel.held_bytes for channel in alive), 32 * MIB)

    def test_time(self) -> None:
        """A frame that comes byte by byte, so that the connection is never idle, is not waited for."""
        peer = Peer(ResponderTable(Owner()), idle_seconds=IDLE_S)
        frame = give(1)
        sent = 0
        with capturedLogs() as logs:
            while not peer.is_cut:
                peer.send(frame[sent : sent + 1])
                sent += 1
                peer.clock.advance(IDLE_S / 4)
        self.assertLessEqual(sent, 4 * 4)
        self.assertIn("has not completed it", logs[-1]["why"])

    def test_slow_but_alive(self) -> None:
        """A peer that completes frames is never cut, even if each look finds it in the middle of one."""
        peer = Peer(ResponderTable(Owner()), idle_seconds=IDLE_S)
        frame = give(1)
        peer.send(frame[:10])
        for _ in range(30):
            peer.clock.advance(IDLE_S / 3)
            peer.send(frame[10:] + frame[:10])
        self.assertFalse(peer.is_cut)
        self.assertEqual(len(peer.received()), 30)

    def test_longest_frame(self) -> None:
        """A frame of 16 MiB works, in chunks as they come from a socket."""
        peer = Peer(ResponderTable(Owner()))
        empty = len(encode_command(RemotingCommand(COUNT.code, 1, body=b"")))
        body = bytes(MAX_FRAME_BYTES - empty)
        frame = encode_command(RemotingCommand(COUNT.code, 1, body=body))
        self.assertEqual(len(frame), MAX_FRAME_BYTES)
        for start in range(0, len(frame), 65_536):
            peer.send(frame[start : start + 65_536])
        (answer,) = peer.received()
        self.assertEqual(answer.body, str(len(body)).encode())


class HostileTests(SynchronousTestCase):
    """Frames that lie."""

    def test_lengths(self) -> None:
        """A length or header length that cannot be costs the connection, and nobody a traceback."""
        for data in (
            PREFIX.pack(MAX_FRAME_BYTES - 3, 10),
            PREFIX.pack(0x7FFFFFFF, 10),
            PREFIX.pack(-1, 10),
            PREFIX.pack(3, 0),
            PREFIX.pack(20, 17),
            PREFIX.pack(20, 0xFFFFFF),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            b"\xff" * 100,
        ):
            peer = Peer(ResponderTable(Owner()))
            peer.send(data)
            self.assertTrue(peer.is_cut, data)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_depth(self) -> None:
        """JSON of any depth, in headers and bodies, costs an answer or the connection, never the process."""
        deep = b'{"value":' * 400_000 + b"1" + b"}" * 400_000
        peer = Peer(ResponderTable(Owner()))
        peer.tell(RemotingCommand(READ.code, 1, body=deep))
        self.assertEqual([answer.code for answer in peer.received()], [1])
        for header in (deep, b'{"code":105,"extFields":' + deep + b"}", b"[" * 200_000):
            peer = Peer(ResponderTable(Owner()))
            peer.send(PREFIX.pack(4 + len(header), len(header)) + header)
            self.assertTrue(peer.is_cut or len(peer.received()) == 1)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_large_numbers(self) -> None:
        """Numbers of a million digits are no way to keep the process busy."""
        header = b'{"code":' + b"9" * 1_000_000 + b"}"
        peer = Peer(ResponderTable(Owner()))
        peer.send(PREFIX.pack(4 + len(header), len(header)) + header)
        self.assertTrue(peer.is_cut)
        self.assertEqual(self.flushLoggedErrors(), [])


class LogTests(SynchronousTestCase):
    def test_every_end_that_we_make(self) -> None:
        """A connection that this process ends has one line in the log, with the address and the reason."""
        begun = PREFIX.pack(1000, 10) + b"x"
        for sent, passing_s, reason in (
            (b"", (IDLE_S,), "idle for 120"),
            (PREFIX.pack(-1, 10), (), "frame length -1"),
            (b"GET / HTTP/1.1\r\n\r\n", (), "frame length"),
            (b"\x16\x03\x01", (), "it begins a TLS handshake"),
            (begun, (IDLE_S / 2, IDLE_S / 2), "idle for 120"),
            (give(3 * MIB), (), "does not read its replies"),
        ):
            peer = Peer(
                ResponderTable(Owner()), idle_seconds=IDLE_S, limits=RemotingLimits(server_channel_max_unsent_bytes=MIB)
            )
            with capturedLogs() as logs:
                for _ in range(2 if sent else 0):
                    peer.send(sent)
                for seconds in passing_s:
                    peer.clock.advance(seconds)
            self.assertFalse(peer.channel.is_open, reason)
            (line,) = [formatEvent(event) for event in logs]
            self.assertIn(peer.channel.peer, line)
            self.assertIn(reason, line)


class ConnectionsTests(SynchronousTestCase):
    def test_half_open(self) -> None:
        """Peers that vanish without a word are forgotten after serverChannelMaxIdleTimeSeconds, all of them."""
        port = Port(RemotingLimits())
        wires = []
        for number in range(300):
            protocol, wire = port.join()
            wires.append(wire)
            protocol.dataReceived(give(10)[: number % 20] or b"\0")
        port.reactor.advance(IDLE_S)
        self.assertTrue(all(wire.disconnecting for wire in wires))
        port.reactor.advance(10)
        self.assertTrue(all(wire.aborted for wire in wires))

    def test_seats(self) -> None:
        """Ports that share seats refuse what neither has room for; who leaves makes room."""
        seats = Seats(2)
        first, second = Port(RemotingLimits(), seats), Port(RemotingLimits(), seats)
        protocol, _ = first.join()
        second.join()
        with capturedLogs() as logs:
            self.assertIsNone(first.connect())
            self.assertIsNone(first.connect())
            first.reactor.advance(QUIET_MS / 1000)
            self.assertIsNone(first.connect())
        self.assertEqual(len(logs), 2, "one line a minute")
        self.assertIn("ulimit -n", logs[0]["why"])
        protocol.connectionLost(Failure(ConnectionDone()))
        self.assertIsNotNone(second.connect())

    def test_room_for_files(self) -> None:
        """However low or high the limit of open files is, some are left for files and some for connections."""
        self.assertEqual([sockets_of(limit) for limit in (1, 10, 1024, 65_536)], [1, 5, 512, 65_536 - RESERVED_FILES])

    def test_limit_of_this_process(self) -> None:
        """The limit is as high as it may be, and asking again changes nothing."""
        self.assertGreaterEqual(raise_open_files_limit(), 256)
        self.assertEqual(raise_open_files_limit(), raise_open_files_limit())


class BehindWholeFramesTests(SynchronousTestCase):
    def test_sum(self) -> None:
        """An unfinished frame counts, too, when it began in one read behind a whole one."""
        port = Port(RemotingLimits(server_max_held_bytes=MIB))
        chunk = encode_command(RemotingCommand(4242, 1)) + PREFIX.pack(MAX_FRAME_BYTES - 4, 10) + bytes(60_000)
        peers = [port.join() for _ in range(100)]
        for protocol, _ in peers:
            protocol.dataReceived(chunk)
        alive = [protocol.channel for protocol, _ in peers if protocol.channel.is_open]
        self.assertGreater(len(alive), 0)
        self.assertLessEqual(sum(channel.held_bytes for channel in alive), MIB)

    def test_growth(self) -> None:
        """Each byte of an unfinished frame is reported once; whole frames are not."""
        grown: list[int] = []
        peer = Peer(ResponderTable(Owner()), grew=grown.append)
        whole = encode_command(RemotingCommand(4242, 1))
        for data in (whole, whole + whole[:10], whole[10:20], whole[20:] + whole[:7], whole[7:]):
            peer.send(data)
        self.assertEqual(grown, [10, 10, 7])
