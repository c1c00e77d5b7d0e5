"""Tests of the shell between transport and responders: chunks, back-pressure, bad input, idleness."""

from __future__ import annotations

import random

import msgspec
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.remoting import protocol as protocol_module
from rmq.remoting.protocol import MAX_WAITING_ANSWERS
from rmq.remoting.responders import MAX_COLLECTED_BYTES, OVERLOAD_REMARK, Reply, Request, ResponderTable, responds_to
from rmq.wire.command import RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32
from tests.remoting.peer import Peer


class SizeHeader(msgspec.Struct, rename="camel", kw_only=True):
    size: Int32 = 0


GIVE = contract(93_001, SizeHeader, reply_body=bytes)
HOLD = contract(93_002)
HANG_UP = contract(93_003)


class Owner:
    """Gives as many bytes as it is asked for, holds, or hangs up."""

    def __init__(self) -> None:
        self.held: list[Deferred[Reply]] = []
        self.given = 0

    @responds_to(GIVE)
    def give(self, request: Request[SizeHeader, None]) -> Reply:
        self.given += 1
        return Reply(body=bytes(request.header.size))

    @responds_to(HOLD)
    def hold(self, request: Request[None, None]) -> Deferred[Reply]:
        self.held.append(Deferred())
        return self.held[-1]

    @responds_to(HANG_UP)
    def hang_up(self, request: Request[None, None]) -> None:
        request.channel.close("hung up")


def give(size: int, opaque: int = 1) -> RemotingCommand:
    return RemotingCommand(93_001, opaque, ext_fields={"size": str(size)})


class ProtocolCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.owner = Owner()
        self.peer = Peer(ResponderTable(self.owner))
        self.transport = self.peer.transport


class ConnectionTests(ProtocolCase):
    def test_opened_and_closed(self) -> None:
        """The protocol tells of its channel when the connection is made and when it is lost."""
        self.assertEqual(self.peer.opened, [self.peer.channel])
        self.assertEqual(self.peer.closed, [])
        self.peer.lose()
        self.assertEqual(self.peer.closed, [(self.peer.channel, "closed by the peer")])

    def test_no_delay(self) -> None:
        """Small answers are not held back by the kernel."""
        self.assertTrue(self.transport.no_delay)

    def test_nothing_left(self) -> None:
        """After the end no timer is left."""
        self.peer.lose()
        self.assertEqual(self.peer.clock.getDelayedCalls(), [])

    def test_reason_of_our_own(self) -> None:
        """When we closed, our reason is told."""
        self.peer.channel.close("because")
        self.peer.lose()
        self.assertEqual(self.peer.closed, [(self.peer.channel, "because")])


class ChunkTests(ProtocolCase):
    def test_one_write_for_a_chunk(self) -> None:
        """All answers to one chunk of input go out in one write, in order."""
        self.peer.tell(*(give(10, opaque) for opaque in range(20)))
        self.assertEqual(len(self.transport.writes), 1)
        self.assertEqual([answer.opaque for answer in self.peer.received()], list(range(20)))

    def test_pieces(self) -> None:
        """A request byte by byte is answered with its last byte."""
        data = encode_command(give(3))
        for position in range(len(data)):
            self.assertEqual(self.transport.writes, [])
            self.peer.send(data[position : position + 1])
        self.assertEqual(self.peer.received()[0].body, bytes(3))

    def test_no_write_without_answers(self) -> None:
        """Nothing is written for half a request."""
        self.peer.send(encode_command(give(3))[:-1])
        self.assertEqual(self.transport.writes, [])

    def test_long_answers(self) -> None:
        """Answers are written before they are longer than MAX_COLLECTED_BYTES and one more answer."""
        self.transport.unread_limit = 1 << 40
        size = MAX_COLLECTED_BYTES // 2
        self.peer.tell(*(give(size, opaque) for opaque in range(5)))
        self.assertEqual([len(data) // size for data in self.transport.writes], [2, 2, 1])
        self.assertEqual([answer.opaque for answer in self.peer.received()], list(range(5)))

    def test_answer_and_hang_up(self) -> None:
        """A responder may close its channel: what was answered before is sent, what follows is not looked at."""
        self.peer.tell(give(3, 1), RemotingCommand(93_003, 2), give(3, 3))
        self.assertTrue(self.peer.is_cut)
        self.assertFalse(self.transport.aborted)


class BackPressureTests(ProtocolCase):
    def test_slow_reader(self) -> None:
        """While a peer does not read its answers, its requests are not read either."""
        self.peer.tell(give(100_000))
        self.assertEqual(self.transport.producerState, "paused")
        self.transport.read()
        self.assertEqual(self.transport.producerState, "producing")

    def test_fast_reader(self) -> None:
        """A peer that reads is never paused."""
        for _ in range(10):
            self.peer.tell(give(10_000))
            self.transport.read()
        self.assertEqual(self.transport.producerState, "producing")

    def test_greedy_chunk(self) -> None:
        """One chunk that asks for very much is answered piece by piece, as the peer reads."""
        size = MAX_COLLECTED_BYTES
        self.peer.tell(*(give(size, opaque) for opaque in range(10)))
        self.assertEqual(self.owner.given, 1)
        answers = []
        for number in range(1, 11):
            self.assertEqual(self.owner.given, number)
            answers += self.peer.received()
        self.assertEqual([answer.opaque for answer in answers], list(range(10)))
        self.assertEqual(self.transport.producerState, "producing")

    def test_chunk_while_frames_are_held(self) -> None:
        """Data that still arrives after the pause waits behind the held frames, in order."""
        size = MAX_COLLECTED_BYTES
        self.peer.tell(give(size, 1), give(size, 2))
        self.peer.tell(give(1, 3))
        self.peer.send(encode_command(give(1, 4))[:7])
        answers = []
        for _ in range(4):
            answers += self.peer.received()
        self.assertEqual([answer.opaque for answer in answers], [1, 2, 3])
        self.peer.send(encode_command(give(1, 4))[7:])
        self.assertEqual([answer.opaque for answer in self.peer.received()], [4])

    def test_bad_frame_behind_held_ones(self) -> None:
        """A broken stream is cut only after what came before it was answered."""
        size = MAX_COLLECTED_BYTES
        self.peer.send(encode_command(give(size, 1)) + encode_command(give(size, 2)) + b"\xff\xff\xff\xff")
        self.assertFalse(self.peer.is_cut)
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])
        self.assertTrue(self.peer.is_cut)
        self.assertEqual([answer.opaque for answer in self.peer.received()], [2])

    def test_transport_that_sends_at_once(self) -> None:
        """A transport that drains within a write resumes us in the midst of a chunk: nothing is lost or doubled."""
        sent: list[bytes] = []

        def send(data: bytes) -> None:
            sent.append(data)
            self.peer.protocol.pauseProducing()
            self.peer.protocol.resumeProducing()

        self.transport.write = send  # type: ignore[method-assign]
        self.peer.tell(*(give(MAX_COLLECTED_BYTES, opaque) for opaque in range(4)))
        self.assertEqual([answer.opaque for answer in decode_commands(b"".join(sent))], [0, 1, 2, 3])
        self.assertEqual(self.transport.producerState, "producing")

    def test_lost_while_held(self) -> None:
        """Held frames of a lost connection are forgotten."""
        self.peer.tell(give(MAX_COLLECTED_BYTES, 1), give(1, 2))
        self.peer.lose()
        self.peer.protocol.stopProducing()
        self.assertEqual(self.owner.given, 1)

    def test_too_many_waiting(self) -> None:
        """A connection with MAX_WAITING_ANSWERS held requests gets code 2 for more, until some are answered."""
        self.assertEqual(MAX_WAITING_ANSWERS, 65_535)
        self.patch(protocol_module, "MAX_WAITING_ANSWERS", 2)
        self.peer.tell(*(RemotingCommand(93_002, opaque) for opaque in range(3)))
        (busy,) = self.peer.received()
        self.assertEqual((busy.opaque, busy.code, busy.remark), (2, 2, OVERLOAD_REMARK))
        self.peer.tell_oneway(93_002)
        self.assertEqual(self.peer.received(), [])
        self.owner.held[0].callback(Reply())
        self.peer.received()
        self.peer.tell(RemotingCommand(93_002, 9))
        self.assertEqual(self.peer.received(), [])
        self.assertEqual(len(self.owner.held), 3)


class BadInputTests(ProtocolCase):
    def assertCut(self, part: str) -> None:
        """The connection is being closed for a reason that contains ``part``."""
        self.assertTrue(self.peer.is_cut)
        self.assertIn(part, self.peer.channel.close_reason or "")

    def test_bad_lengths(self) -> None:
        """Negative, tiny and over-long lengths cut the connection, and the reason names the length."""
        for prefix, number in ((b"\xff\xff\xff\xff", "-1"), (bytes(4), "0"), (b"GET / HTTP/1.1\r\n", "1195725856")):
            self.peer = Peer(ResponderTable(self.owner))
            self.peer.send(prefix)
            self.assertCut(number)

    def test_bad_header(self) -> None:
        """A header that is no JSON, and a serialize type that does not exist, cut the connection."""
        for data in (b"\0\0\0\x06\0\0\0\x02{x", b"\0\0\0\x06\x05\0\0\x02{}", b"\0\0\0\x06\x01\0\0\x02{}"):
            self.peer = Peer(ResponderTable(self.owner))
            self.peer.send(data)
            self.assertTrue(self.peer.is_cut)

    def test_good_before_bad(self) -> None:
        """What was asked before the bad frame is answered."""
        self.peer.send(encode_command(give(3, 1)) + b"\xff\xff\xff\xff" + encode_command(give(3, 2)))
        self.assertCut("-1")
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])

    def test_good_before_bad_header(self) -> None:
        """That holds for a bad header in the midst of a chunk too."""
        self.peer.send(encode_command(give(3, 1)) + b"\0\0\0\x06\0\0\0\x02{x" + encode_command(give(3, 2)))
        self.assertCut("header")
        self.assertEqual([answer.opaque for answer in self.peer.received()], [1])

    def test_nobody_else_is_harmed(self) -> None:
        """Another connection to the same responders goes on."""
        other = Peer(self.peer.responders)
        self.peer.send(b"\xff\xff\xff\xff")
        self.assertEqual(other.ask(93_001).code, 0)

    def test_tls(self) -> None:
        """A TLS handshake is recognised by its first byte and refused by name."""
        self.peer.send(bytes.fromhex("1603010200"))
        self.assertCut("TLS")

    def test_tls_byte_later(self) -> None:
        """Only the first byte of a connection can begin a handshake."""
        data = encode_command(give(0x16))
        self.peer.send(data[:3])
        self.peer.send(data[3:])
        self.assertFalse(self.peer.is_cut)

    def test_garbage(self) -> None:
        """Garbage is cut off or waits for more; it is never answered and never raises."""
        for seed in range(300):
            rng = random.Random(seed)
            peer = Peer(ResponderTable(self.owner))
            good = encode_command(give(1))
            data = bytearray(good * 2 if seed % 2 else rng.randbytes(60))
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            while data:
                size = rng.randrange(1, 40)
                peer.send(bytes(data[:size]))
                del data[:size]
            self.assertEqual(self.flushLoggedErrors(), [], f"seed {seed}")
            for answer in peer.received():
                self.assertIn(answer.code, (0, 1, 3), f"seed {seed}")


class IdleTests(ProtocolCase):
    def test_silence(self) -> None:
        """A connection on which nothing moves is closed after idle_seconds, not before."""
        self.peer.clock.advance(119.9)
        self.assertFalse(self.peer.is_cut)
        self.peer.clock.advance(0.1)
        self.assertTrue(self.peer.is_cut)
        self.assertIn("idle", self.peer.channel.close_reason or "")

    def test_reading(self) -> None:
        """Each byte from the peer starts the time anew, half frames included."""
        self.peer.clock.advance(100)
        self.peer.send(b"\0")
        self.peer.clock.advance(119.9)
        self.assertFalse(self.peer.is_cut)
        self.peer.clock.advance(0.1)
        self.assertTrue(self.peer.is_cut)

    def test_writing(self) -> None:
        """So does each write to it, such as a late answer."""
        self.peer.tell(RemotingCommand(93_002, 1))
        self.peer.clock.advance(100)
        self.owner.held[0].callback(Reply())
        self.peer.clock.advance(119.9)
        self.assertFalse(self.peer.is_cut)
        self.peer.clock.advance(0.1)
        self.assertTrue(self.peer.is_cut)

    def test_one_timer(self) -> None:
        """A busy connection keeps one timer, however much moves."""
        for _ in range(200):
            self.peer.clock.advance(1)
            self.peer.ask(93_001)
        self.assertEqual(len(self.peer.clock.getDelayedCalls()), 1)

    def test_peer_that_never_reads(self) -> None:
        """A peer that neither reads nor sends is closed like an idle one."""
        self.peer.tell(give(100_000))
        self.peer.clock.advance(120)
        self.assertTrue(self.peer.is_cut)

    def test_closed_already(self) -> None:
        """A connection that is being closed is not closed again for idleness."""
        self.peer.clock.advance(119)
        self.peer.channel.close("because")
        self.peer.clock.advance(1)
        self.assertEqual(self.peer.channel.close_reason, "because")
        self.assertFalse(self.transport.aborted)

    def test_own_time(self) -> None:
        """The time can be set."""
        peer = Peer(idle_seconds=5)
        peer.clock.advance(5)
        self.assertTrue(peer.is_cut)

    def test_process_that_stood_still(self) -> None:
        """After a stop of minutes a connection has a second to show that it lives: what it sent waits in its socket."""
        for late_s, cut in ((1.0, True), (1.1, False), (300, False)):
            peer = Peer()
            peer.clock.advance(120 + late_s)
            with self.subTest(late_s=late_s):
                self.assertEqual(peer.is_cut, cut)
        peer.send(b"\0")
        peer.clock.advance(119.9)
        self.assertFalse(peer.is_cut)
        silent = Peer()
        silent.clock.advance(420)
        silent.clock.advance(1)
        self.assertTrue(silent.is_cut)
