"""Frames straight to the socket leave the same bytes as the ordinary way, whatever the socket takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.output import MAX_PIECES, OUTPUT_BOUND_BYTES, SLICE_BYTES, SocketOutput, TransportOutput
from rmq.ha.session import Piece


class FakeSocket:
    """Takes as much as there is room for; ``room`` None is a broken one."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.room: int | None = 1 << 30
        self.calls = 0

    def sendmsg(self, buffers: Sequence[Piece]) -> int:
        assert 0 < len(buffers) <= MAX_PIECES and all(len(piece) for piece in buffers)
        self.calls += 1
        if self.room is None:
            raise ConnectionResetError
        if self.room == 0:
            raise BlockingIOError
        data = b"".join(buffers)[: self.room]
        self.taken += data
        self.room -= len(data)
        return len(data)


class FakeTransport:
    """A transport over the same socket, as a reactor drives it: writes what it holds when the socket is writable."""

    def __init__(self, sock: FakeSocket) -> None:
        self.socket = sock
        self.held = b""
        self.producer: Any = None
        self.streaming = True
        self.is_paused = False
        self.peak = 0

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer, self.streaming = producer, streaming
        if not streaming:
            producer.resumeProducing()

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.held += data
        self.peak = max(self.peak, len(self.held))
        if self.streaming and len(self.held) > 65536 and not self.is_paused:
            self.is_paused = True
            self.producer.pauseProducing()

    def writable(self) -> None:
        """The reactor found the socket writable."""
        if self.held and self.socket.room:
            sent = self.socket.sendmsg([self.held])
            self.held = self.held[sent:]
            if not self.held and (not self.streaming or self.is_paused):
                self.is_paused = False
                self.producer.resumeProducing()


class OutputTests(SynchronousTestCase):
    def send_all(self, kind: Any, seed: int) -> tuple[bytes, bytes, FakeTransport]:
        """Send random frames over a socket with random room; return what was given and what arrived."""
        rng = random.Random(seed)
        sock = FakeSocket()
        transport = FakeTransport(sock)
        is_full = False

        def full() -> None:
            nonlocal is_full
            is_full = True

        def free() -> None:
            nonlocal is_full
            is_full = False

        output = (
            kind(transport, sock, full=full, free=free)
            if kind is SocketOutput
            else kind(transport, full=full, free=free)
        )
        given = b""
        for _ in range(200):
            sock.room = rng.choice((0, 1, 11, 12, 500, 40_000, 1 << 20))
            if not is_full and rng.random() < 0.7:
                body = rng.randbytes(rng.choice((1, 100, 5000, SLICE_BYTES // 8)))
                view = memoryview(body)
                pieces: list[Piece] = []
                for at in range(0, len(body), 1000):
                    pieces += [rng.randbytes(12), view[at : at + 1000]]
                given += b"".join(pieces)
                output.send(pieces)
            transport.writable()
        while len(sock.taken) < len(given):
            sock.room = 100_000
            transport.writable()
        self.assertFalse(is_full, "who was told that the way is full is told when it is free")
        return given, bytes(sock.taken), transport

    def test_same_bytes_in_the_same_order(self) -> None:
        """Both ways bring every byte, in order, however small the bites of the socket (the seed is in the message)."""
        for seed in range(20):
            for kind in (SocketOutput, TransportOutput):
                given, arrived, transport = self.send_all(kind, seed)
                self.assertEqual(arrived, given, f"seed {seed} {kind.__name__}")
                self.assertLessEqual(transport.peak, OUTPUT_BOUND_BYTES)

    def test_a_frame_that_fits_is_one_call(self) -> None:
        """Header and body of several frames leave in one system call, and the transport has nothing to do."""
        sock = FakeSocket()
        transport = FakeTransport(sock)
        output = SocketOutput(transport, sock, full=self.fail, free=self.fail)
        output.send([b"header", memoryview(b"body"), b"header", memoryview(b"more")])
        self.assertEqual((sock.calls, bytes(sock.taken), transport.held), (1, b"headerbodyheadermore", b""))

    def test_more_pieces_than_one_call_takes(self) -> None:
        """Frames of more pieces than the system takes at once leave in as few calls as it allows, none left behind."""
        sock = FakeSocket()
        transport = FakeTransport(sock)
        output = SocketOutput(transport, sock, full=self.fail, free=self.fail)
        output.send([b"%d " % number for number in range(MAX_PIECES + 1)])
        output.send([b"next"])
        expected = b"".join(b"%d " % number for number in range(MAX_PIECES + 1)) + b"next"
        self.assertEqual((sock.calls, bytes(sock.taken), transport.held), (3, expected, b""))

    def test_a_full_socket_costs_the_transport_one_piece(self) -> None:
        """What the socket does not take stays here as it is; only the piece that wakes us up is copied."""
        sock = FakeSocket()
        sock.room = 3
        transport = FakeTransport(sock)
        told: list[str] = []
        output = SocketOutput(transport, sock, full=lambda: told.append("full"), free=lambda: told.append("free"))
        output.send([b"header", memoryview(b"body"), b"HEADER", memoryview(b"more")])
        self.assertEqual((transport.held, told), (b"der", ["full"]))
        sock.room = 100
        transport.writable()
        self.assertEqual((bytes(sock.taken), told), (b"headerbodyHEADERmore", ["full", "free"]))

    def test_a_broken_socket_is_the_transports_business(self) -> None:
        """An error is not raised here: the transport meets it with its next write and loses the connection."""
        sock = FakeSocket()
        sock.room = None
        transport = FakeTransport(sock)
        told: list[str] = []
        output = SocketOutput(transport, sock, full=lambda: told.append("full"), free=self.fail)
        output.send([b"header", b"body"])
        self.assertEqual((transport.held, told), (b"header", ["full"]))
        output.stop()
        transport.writable()
        self.assertEqual(bytes(sock.taken), b"")

    def test_many_pieces(self) -> None:
        """More pieces than one system call takes go out in several."""
        sock = FakeSocket()
        output = SocketOutput(FakeTransport(sock), sock, full=self.fail, free=self.fail)
        output.send([b"x"] * (3 * MAX_PIECES + 1))
        self.assertEqual((len(sock.taken), sock.calls), (3 * MAX_PIECES + 1, 4))
