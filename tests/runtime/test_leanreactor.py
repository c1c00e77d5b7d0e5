"""
Tests of the reactor ``rmq-lean``: when bytes are sent at once, when not, and what an event costs and may do.

Twisted's own reactor tests run against it in tests/reactor. The sockets here are the two ends of a socketpair, and the
reactor is turned by hand.
"""

from __future__ import annotations

import errno
import gc
import os
import platform
import random
import select
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import attrs
from twisted.internet import tcp
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.python import log
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.needs import missing, need_compiled
from tests.seeds import SEED

try:
    from rmq.runtime import leanreactor
    from rmq.runtime.leanreactor import EagerWrites, LeanClient, LeanPort, LeanReactor, LeanServer
except ImportError as error:
    missing(f"the reactor rmq-lean: {error}")

PEER = ("192.0.2.7", 40_001)


class Recorder(Protocol):
    """Keeps what it is told; ``answer`` makes an answer of what is received."""

    def __init__(self) -> None:
        self.received = b""
        self.lost: list[Failure] = []
        self.calls: list[str] = []
        self.fault: Exception | None = None

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if self.fault is not None:
            raise self.fault

    def connectionLost(self, reason: Failure = Failure(ConnectionDone())) -> None:  # noqa: B008
        self.lost.append(reason)

    # as a producer

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class CountingSocket:
    """A socket that notes what is sent through it, and may take less or nothing."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.sent: list[bytes] = []
        #: how many bytes the next send takes, an error instead, or None for all
        self.takes: int | OSError | None = None

    def send(self, data: bytes | memoryview) -> int:
        if isinstance(self.takes, OSError):
            raise self.takes
        part = bytes(data)[: self.takes]
        self.sent.append(part)
        return self._real.send(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class LeanCase(SynchronousTestCase):
    #: the compiled twin speaks to the descriptor, which no CountingSocket sees
    compiled = False

    def setUp(self) -> None:
        if not self.compiled:
            self.patch(leanreactor, "_LEAN", None)
            self.patch(leanreactor, "_send_now", leanreactor.send_now)
        self.reactor = LeanReactor()
        ours, self.peer = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(self.peer.close)
        self.peer.settimeout(10)
        self.socket = CountingSocket(ours)
        self.protocol = Recorder()
        self.transport: Any = LeanServer(
            self.socket,  # type: ignore[arg-type]
            self.protocol,
            PEER,
            None,  # type: ignore[arg-type]
            1,
            self.reactor,
        )
        self.transport.repstr = "lean"
        self.protocol.makeConnection(self.transport)
        self.addCleanup(self._close)

    def _close(self) -> None:
        self.reactor.removeAll()
        for reader in list(self.reactor._internalReaders):
            self.reactor.removeReader(reader)
            reader.connectionLost(None)
        self.reactor._poller.close()

    def turn(self) -> None:
        """Let the reactor work on what there is to do now."""
        self.reactor.runUntilCurrent()
        self.reactor.doIteration(0)

    @property
    def waits_for_writing(self) -> bool:
        return self.transport in self.reactor.getWriters()


class EagerWriteTests(LeanCase):
    def test_at_once(self) -> None:
        """Bytes that the socket takes are with the peer when write returns, and the reactor is not asked to write."""
        self.transport.write(b"answer")
        self.assertEqual(self.peer.recv(100), b"answer")
        self.assertFalse(self.waits_for_writing)

    def test_in_order(self) -> None:
        """What the socket does not take waits, and everything after it waits behind it."""
        self.socket.takes = 2
        self.transport.write(b"abcd")
        self.socket.takes = None
        self.transport.write(b"ef")
        self.assertEqual(self.socket.sent, [b"ab"])
        self.assertTrue(self.waits_for_writing)
        self.turn()
        self.assertEqual(self.peer.recv(100), b"abcdef")
        self.assertFalse(self.waits_for_writing)
        self.transport.write(b"gh")
        self.assertEqual(self.peer.recv(100), b"gh")

    def test_full(self) -> None:
        """A full socket costs nothing but the wait."""
        self.socket.takes = BlockingIOError(errno.EAGAIN, "full")
        self.transport.write(b"abcd")
        self.assertTrue(self.waits_for_writing)
        self.socket.takes = None
        self.turn()
        self.assertEqual(self.peer.recv(100), b"abcd")

    def test_broken(self) -> None:
        """An error ends the connection, but never inside write."""
        self.socket.takes = ConnectionResetError(errno.ECONNRESET, "reset")
        self.transport.write(b"abcd")
        self.assertEqual(self.protocol.lost, [])
        self.turn()
        self.assertEqual(len(self.protocol.lost), 1)
        self.assertTrue(self.protocol.lost[0].check(ConnectionLost))
        self.transport.write(b"nobody reads this")

    def test_reset(self) -> None:
        """A reset that write meets first ends the connection as one that was lost, after what had still arrived."""
        self.peer.send(b"last words")
        self.peer.close()
        self.socket.takes = ConnectionResetError(errno.ECONNRESET, "reset")
        self.transport.write(b"abcd")
        self.turn()
        self.turn()
        self.assertEqual(self.protocol.received, b"last words")
        (reason,) = self.protocol.lost
        self.assertTrue(reason.check(ConnectionLost))

    def test_not_bytes(self) -> None:
        """Only bytes are written, as in Twisted."""
        for wrong in ("text", bytearray(b"x"), memoryview(b"x")):
            self.assertRaises(TypeError, self.transport.write, wrong)
        self.assertEqual(self.socket.sent, [])

    def test_nothing(self) -> None:
        """Writing nothing does nothing."""
        self.transport.write(b"")
        self.assertEqual(self.socket.sent, [])
        self.assertFalse(self.waits_for_writing)

    def test_long(self) -> None:
        """More than SEND_LIMIT goes out in turns with the other connections."""
        data = bytes(self.transport.SEND_LIMIT + 1)
        self.transport.write(data)
        self.assertEqual(self.socket.sent, [])
        self.assertTrue(self.waits_for_writing)

    def test_closing(self) -> None:
        """After loseConnection everything takes the reactor's way, and what was written before arrives."""
        self.transport.write(b"first")
        self.transport.loseConnection()
        self.transport.write(b" last")
        self.assertEqual(self.socket.sent, [b"first"])
        self.turn()
        self.turn()
        self.assertEqual(self.peer.recv(100), b"first last")
        self.assertEqual(self.peer.recv(100), b"")
        self.assertEqual(len(self.protocol.lost), 1)

    def test_aborted(self) -> None:
        """After abortConnection nothing is sent any more."""
        self.transport.write(b"first")
        self.transport.abortConnection()
        self.transport.write(b"last")
        self.assertEqual(self.socket.sent, [b"first"])
        self.turn()
        self.assertEqual(len(self.protocol.lost), 1)

    def test_half_closing(self) -> None:
        """The same after loseWriteConnection."""
        self.transport.loseWriteConnection()
        self.transport.write(b"last")
        self.assertEqual(self.socket.sent, [])
        self.turn()
        self.assertEqual(self.peer.recv(100), b"last")
        self.assertEqual(self.peer.recv(100), b"")

    def test_lost(self) -> None:
        """A lost connection swallows writes."""
        self.peer.close()
        self.turn()
        self.assertEqual(len(self.protocol.lost), 1)
        self.transport.write(b"x")
        self.assertEqual(self.socket.sent, [])

    def test_push_producer(self) -> None:
        """A push producer is paused when too much waits and resumed when it is sent; not for what is sent at once."""
        self.transport.registerProducer(self.protocol, True)
        self.transport.write(bytes(100_000))
        self.assertEqual(self.protocol.calls, [])
        self.assertEqual(len(self.socket.sent), 1)
        self.socket.takes = 10
        self.transport.write(bytes(100_000))
        self.assertEqual(self.protocol.calls, ["pause"])
        self.transport.write(b"behind")
        self.assertEqual(len(self.socket.sent), 2)
        self.socket.takes = None
        received = 0
        while received < 200_006:
            received += len(self.peer.recv(300_000))
            self.turn()
        self.assertEqual(self.protocol.calls[-1], "resume")

    def test_pull_producer(self) -> None:
        """A pull producer is asked for more by the reactor, so its bytes take the reactor's way."""
        self.transport.registerProducer(self.protocol, False)
        self.assertEqual(self.protocol.calls, ["resume"])
        self.transport.write(b"a")
        self.assertEqual(self.socket.sent, [])
        self.turn()
        self.assertEqual(self.peer.recv(100), b"a")
        self.assertEqual(self.protocol.calls, ["resume", "resume"])

    def test_tls(self) -> None:
        """Once TLS is on, plain bytes never reach the socket: they go to the TLS layer."""
        written: list[bytes] = []
        self.protocol.write = written.append  # type: ignore[attr-defined]
        self.transport.TLS = True
        self.transport.write(b"secret")
        self.assertEqual((written, self.socket.sent), ([b"secret"], []))

    def test_sequence(self) -> None:
        """A sequence is sent in order with the writes around it."""
        self.transport.write(b"a")
        self.transport.writeSequence([b"b", b"c"])
        self.transport.write(b"d")
        self.turn()
        self.assertEqual(self.peer.recv(100), b"abcd")


class LeanPollTests(LeanCase):
    def test_reads(self) -> None:
        """What arrives is given to the protocol."""
        self.peer.send(b"request")
        self.turn()
        self.assertEqual(self.protocol.received, b"request")

    def test_size_of_a_read(self) -> None:
        """A read takes 64 KiB, more where a longer frame begins, or what the transport asks for, as a slave's does."""
        short, long = bytes(80_000), (79_996).to_bytes(4, "big") + bytes(79_996)
        for data, buffer_size, read in (
            (short, None, 65_536),
            (long, None, 80_000 if self.compiled else 65_536),
            (short, 70_000, 70_000),
        ):
            if buffer_size:
                self.transport.bufferSize = buffer_size
            self.peer.send(data)
            self.protocol.received = b""
            self.turn()
            self.assertEqual(len(self.protocol.received), read)
            self.turn()
            self.assertEqual(len(self.protocol.received), 80_000)

    def test_no_context(self) -> None:
        """Reading costs no log context, writing for a stranger's selectable keeps it."""
        entered: list[Any] = []
        real = log.callWithLogger

        def counted(selectable: Any, *call: Any) -> Any:
            entered.append(selectable)
            return real(selectable, *call)

        self.patch(log, "callWithLogger", counted)
        self.peer.send(b"request")
        self.turn()
        self.assertEqual(entered, [])
        self.socket.takes = 1
        self.transport.write(b"answer")
        self.turn()
        self.assertEqual(entered, [self.transport])

    def test_fault(self) -> None:
        """A protocol that raises is logged and loses its connection; the reactor goes on."""
        self.protocol.fault = ValueError("bug")
        self.peer.send(b"request")
        self.turn()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        (reason,) = self.protocol.lost
        self.assertIs(reason.value, self.protocol.fault)
        self.assertNotIn(self.transport, self.reactor.getReaders())

    def test_peer_gone(self) -> None:
        """The end of the peer is a clean end."""
        self.peer.close()
        self.turn()
        (reason,) = self.protocol.lost
        self.assertTrue(reason.check(ConnectionDone))

    def test_wrong_descriptor(self) -> None:
        """A selectable that lost its descriptor is disconnected, not read."""
        self.peer.send(b"request")
        self.transport.fileno = lambda: -1
        self.turn()
        self.assertEqual(self.protocol.received, b"")
        self.assertEqual(len(self.protocol.lost), 1)

    def test_removed_meanwhile(self) -> None:
        """A connection that another one's event closed is left alone in the same round."""
        ours, far = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(far.close)
        other = Recorder()
        transport: Any = LeanServer(ours, other, PEER, None, 2, self.reactor)  # type: ignore[arg-type]
        both = {self.protocol: transport, other: self.transport}
        for protocol, victim in both.items():
            protocol.makeConnection(victim)  # each closes the other one's transport
            protocol.dataReceived = lambda data, victim=victim: victim.stopReading()  # type: ignore[method-assign,misc]
        self.peer.send(b"1")
        far.send(b"2")
        self.turn()
        self.assertEqual(len(self.reactor.getReaders()), 1 + len(self.reactor._internalReaders))

    def test_who_is_lean(self) -> None:
        """TCP connections opt in; nothing else that the reactor reads does."""
        self.assertTrue(LeanServer.lean)
        self.assertTrue(LeanClient.lean)
        self.assertFalse(hasattr(LeanPort, "lean"))
        self.assertFalse(hasattr(tcp.Server, "lean"))
        self.assertTrue(issubclass(LeanClient, EagerWrites))


class CompiledPollTests(LeanPollTests):
    """The compiled twin does the same."""

    compiled = True

    def setUp(self) -> None:
        need_compiled("rmq.runtime._lean")
        super().setUp()

    def test_no_context(self) -> None:
        entered: list[Any] = []
        self.patch(log, "callWithLogger", lambda selectable, *call: entered.append(selectable))
        self.peer.send(b"request")
        self.turn()
        self.assertEqual((self.protocol.received, entered), (b"request", []))

    def test_reset_by_peer(self) -> None:
        """A peer that resets the connection is a lost one, not a clean end."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        far = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        protocol = Recorder()
        transport: Any = LeanServer(ours, protocol, PEER, None, 2, self.reactor)  # type: ignore[arg-type]
        protocol.makeConnection(transport)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        for _ in range(1000):
            if protocol.lost:
                break
            self.reactor.doIteration(0.01)
        (reason,) = protocol.lost
        self.assertTrue(reason.check(ConnectionLost), reason)

    def test_direct(self) -> None:
        """Whoever stands before the protocol is asked first, and the protocol when that returns None."""
        self.transport.fast_path = Direct(lambda data: data.upper() if data != b"no" else None)
        for data, answer, received in ((b"ask", b"ASK", b""), (b"no", b"", b"no"), (b"", b"", b"no")):
            if data:
                self.peer.send(data)
            self.turn()
            self.assertEqual(self.protocol.received, received)
            if answer:
                self.assertEqual(self.peer.recv(100), answer)

    def test_direct_that_is_given_up(self) -> None:
        """Its transport may forget it while it is asked: its answer is sent all the same."""
        for others in (), (self.connection(),):  # alone in a turn, and not
            kept: list[bytes] = []

            def answer(data: bytes, kept: list[bytes] = kept) -> bytes:
                self.transport.dataBuffer = b"unsent"  # the rest waits behind it
                del self.transport.fast_path
                gc.collect()
                return b"answer"

            self.transport.fast_path = Direct(answer, kept.append)
            gone = weakref.ref(self.transport.fast_path)
            for _, _, far in others:
                far.send(b"more")
            self.peer.send(b"ask")
            self.turn()
            self.transport.dataBuffer = b""
            self.assertEqual(kept, [b"answer"])
            self.assertIsNone(gone())

    def test_direct_answers_nothing(self) -> None:
        """An empty answer sends nothing and is no end."""
        self.transport.fast_path = Direct(lambda data: b"")
        self.peer.send(b"ask")
        self.turn()
        self.assertEqual((self.protocol.received, self.protocol.lost), (b"", []))

    def test_direct_to_a_full_socket(self) -> None:
        """What the socket does not take is written in the ordinary way, all of it and in order."""
        answers = iter([b"a" * 100_000, b"b" * 131_073, *(bytes([99 + n]) * 90_000 for n in range(20))])
        expected = [b"a" * 100_000, b"b" * 131_073]
        direct = self.transport.fast_path = Direct(lambda data: next(answers), self.transport.write)
        for _ in range(2):
            self.peer.send(b"ask")
            self.turn()
        got = b""
        while len(got) < 231_073:
            got += self.peer.recv(1 << 20)
            self.turn()
        self.assertEqual(got, b"".join(expected))
        self.assertTrue(direct.written)

    def test_direct_waits_for_what_was_written(self) -> None:
        """While something is unsent, a producer is paused or the connection closes only the protocol is asked."""
        self.transport.fast_path = Direct(lambda data: b"direct")
        for name, value in (("dataBuffer", b"x"), ("disconnecting", True), ("producerPaused", True), ("TLS", True)):
            before = getattr(self.transport, name)
            setattr(self.transport, name, value)
            self.peer.send(b"ask")
            self.turn()
            setattr(self.transport, name, before)
        self.assertEqual(self.protocol.received, b"ask" * 4)

    def test_direct_behind_what_it_has_written(self) -> None:
        """An answer does not overtake the rest of what was written while it was made, whatever the peer reads."""
        expected = got = b""

        def answer(data: bytes) -> bytes:
            nonlocal expected, got
            while not self.waits_for_writing:
                self.transport.write(b"w" * 100_000)
                expected += b"w" * 100_000
            got += self.peer.recv(50_000)
            return b"answer"

        self.transport.fast_path = Direct(answer, self.transport.write)
        self.peer.send(b"ask")
        self.turn()
        expected += b"answer"
        while len(got) < len(expected):
            got += self.peer.recv(1 << 20)
            self.turn()
        self.assertEqual(got.find(b"answer"), len(expected) - 6)
        self.assertEqual(got, expected)

    def test_fault_of_direct(self) -> None:
        """One that raises is logged and costs its connection."""

        def fail(data: bytes) -> bytes:
            raise ValueError("bug")

        self.transport.fast_path = Direct(fail)
        self.peer.send(b"request")
        self.turn()
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.assertEqual(len(self.protocol.lost), 1)

    def test_answers_of_a_turn(self) -> None:
        """Those of several connections are sent when all were asked, or when they are 256 KiB together."""
        far_ends: list[socket.socket] = []
        for size, sent_before in ((10, [0, 0, 0, 0]), (90_000, [0, 0, 0, 3])):
            connections = [self.connection() for _ in range(4)]
            far_ends[:] = [far for _, _, far in connections]
            found: list[int] = []

            def answer(data: bytes, size: int = size, found: list[int] = found) -> bytes:
                found.append(sum(bool(select.select([far], [], [], 0)[0]) for far in far_ends))
                return b"a" * size

            for transport, _, far in connections:
                transport.fast_path = Direct(answer, transport.write)
                far.send(b"ask")
            self.turn()
            self.assertEqual(found, sent_before)
            for far in far_ends:
                far.settimeout(10)
                got = 0
                while got < size:
                    got += len(far.recv(1 << 20))
                    self.turn()

    def test_finished_together(self) -> None:
        """What waits for the end of the turn is answered then, goes to the protocol, or costs its own connection."""
        connections = [self.connection() for _ in range(3)]
        for outcome, received, lost in ((b"ANSWER", b"", 0), (None, b"ask", 0), (7, b"ask", 1)):
            turn = Turn(outcome)
            for transport, _, far in connections:
                transport.fast_path = turn.path(transport)
                far.send(b"ask")
            self.turn()
            self.assertEqual(turn.finished, [3])
            self.assertEqual([path.more for path in turn.paths], [True] * 3)
            for _, protocol, far in connections:
                if isinstance(outcome, bytes):
                    self.assertEqual(far.recv(100), outcome)
                self.assertEqual((protocol.received, len(protocol.lost)), (received, lost))
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 3)

    def test_lost_before_the_end_of_the_turn(self) -> None:
        """A connection that another event of the turn ended gets nothing any more, and no error is logged."""
        turn = Turn(None)
        connections = [self.connection() for _ in range(2)]
        for transport, _, far in connections:
            transport.fast_path = turn.path(transport)
            far.send(b"ask")
        lost = connections[0][0]

        def end() -> None:
            # what tcp.Connection.connectionLost leaves behind
            lost.connected = False
            del lost.protocol

        turn.before = end
        self.turn()
        self.assertEqual([protocol.received for _, protocol, _ in connections], [b"", b"ask"])
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_alone_in_its_turn(self) -> None:
        """A fast path knows when no other connection has sent anything."""
        turn = Turn(b"ANSWER")
        self.transport.fast_path = turn.path(self.transport)
        self.peer.send(b"ask")
        self.turn()
        self.assertEqual([path.more for path in turn.paths], [False])

    def connection(self) -> tuple[Any, Recorder, socket.socket]:
        """Return a lean transport, its protocol and the far end of its socket."""
        ours, far = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(far.close)
        ours.setblocking(False)
        protocol = Recorder()
        transport: Any = LeanServer(ours, protocol, PEER, None, 2, self.reactor)  # type: ignore[arg-type]
        protocol.makeConnection(transport)
        transport.startReading()
        self.addCleanup(transport.stopReading)
        return transport, protocol, far

    def test_same_decisions(self) -> None:
        """In whatever state a transport is, the twin sends at once what Python would, and nothing else."""
        seed = SEED
        print(f"\nSEND NOW seed {seed}")
        chance = random.Random(seed)
        sent = 0
        for number in range(2000):
            transport = StatedTransport(chance, self.socket._real)
            data: Any = chance.choice((b"x", b"x" * 10, b"", b"y" * 70, bytearray(b"z")))
            plain = leanreactor.send_now(transport, data)
            compiled = leanreactor._LEAN.send_now(transport, data)
            self.assertEqual(compiled, plain, f"seed {seed}, {number}: {vars(transport)} {data!r}")
            if plain:
                self.assertEqual(self.peer.recv(1000), data * 2)
                sent += 1
        self.assertGreater(sent, 50)


@attrs.define
class TurnPath:
    """A fast path that leaves every chunk to the end of the turn."""

    turn: Turn
    transport: Any
    more: bool | None = None

    def __call__(self, data: bytes, more: bool) -> Turn:
        self.more = more
        self.turn.waiting.append((self, data))
        return self.turn

    @property
    def write(self) -> Any:
        raise AssertionError("the socket takes everything")


@attrs.define(eq=False)
class Turn:
    """What is finished at the end of a turn, all with the same ``outcome``."""

    outcome: object
    paths: list[TurnPath] = attrs.field(factory=list)
    waiting: list[tuple[TurnPath, bytes]] = attrs.field(factory=list)
    #: how many waited at each call of finish
    finished: list[int] = attrs.field(factory=list)
    before: Callable[[], object] = list

    def path(self, transport: Any) -> TurnPath:
        self.paths.append(TurnPath(self, transport))
        return self.paths[-1]

    def finish(self) -> list[tuple[TurnPath, bytes, Any]]:
        self.before()
        waiting, self.waiting = self.waiting, []
        self.finished.append(len(waiting))
        return [(path, data, self.outcome) for path, data in waiting]


class Direct:
    """What stands before a protocol: answers with ``answer``, keeps what the socket did not take."""

    def __init__(self, answer: Callable[[bytes], Any], write: Callable[[bytes], object] | None = None) -> None:
        self._answer = answer
        self._write = write
        self.written = b""

    def __call__(self, data: bytes, more: bool) -> Any:
        return self._answer(data)

    def write(self, data: bytes) -> None:
        self.written += data
        if self._write is not None:
            self._write(data)


class StatedTransport:
    """A transport in a random state, mostly a usual one; what is not set is as Twisted's classes have it."""

    SEND_LIMIT = tcp.Connection.SEND_LIMIT
    dataBuffer = b""
    connected = 0
    disconnecting = False
    _aborting = False
    producer: object = None
    streamingProducer = False
    producerPaused = False
    _writeDisconnecting = False
    _writeDisconnected = False
    TLS = False

    def __init__(self, chance: random.Random, sock: socket.socket) -> None:
        self.socket = sock
        self.fileno = sock.fileno
        self._tempDataLen = 0
        self.connected = 1
        usual: dict[str, tuple[Any, Any]] = {
            "_tempDataLen": (0, 7),
            "dataBuffer": (b"", b"rest"),
            "connected": (1, 0),
            "disconnecting": (False, True),
            "_aborting": (False, True),
            "producer": (None, object()),
            "streamingProducer": (0, 1),
            "producerPaused": (False, True),
            "_writeDisconnecting": (False, True),
            "_writeDisconnected": (False, True),
            "TLS": (False, True),
        }
        for name, values in usual.items():
            if chance.random() < 0.5:
                setattr(self, name, values[chance.random() < 0.2])


class SocketsTests(SynchronousTestCase):
    """The reactor's own ports and connections."""

    def test_both_ends(self) -> None:
        """listenTCP and connectTCP give lean transports on IPv4, and bytes arrive on both sides."""
        reactor = LeanReactor()
        accepted: list[Recorder] = []

        class Accept(Factory):
            noisy = False

            def buildProtocol(self, addr: Any) -> Recorder:
                accepted.append(Recorder())
                return accepted[-1]

        dialled = Recorder()
        port = reactor.listenTCP(0, Accept(), interface="127.0.0.1")
        factory = _Dial(dialled)
        connector = reactor.connectTCP("127.0.0.1", port.getHost().port, factory)
        for _ in range(1000):
            if dialled.transport is not None and accepted and accepted[0].transport is not None:
                break
            reactor.runUntilCurrent()
            reactor.doIteration(0.01)
        client: Any = dialled.transport
        server: Any = accepted[0].transport
        self.assertIs(client.__class__, LeanClient)
        self.assertIs(server.__class__, LeanServer)
        client.write(b"ask")
        server.write(b"answer")
        for _ in range(1000):
            if dialled.received and accepted[0].received:
                break
            reactor.runUntilCurrent()
            reactor.doIteration(0.01)
        self.assertEqual((accepted[0].received, dialled.received), (b"ask", b"answer"))
        port.stopListening()
        connector.disconnect()
        for _ in range(1000):
            if dialled.lost and accepted[0].lost and not port.connected:
                break
            reactor.runUntilCurrent()
            reactor.doIteration(0.01)
        self.assertEqual((len(dialled.lost), len(accepted[0].lost)), (1, 1))
        reactor._poller.close()


class _Dial(Factory):
    noisy = False

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol

    def buildProtocol(self, addr: Any) -> Protocol:
        return self._protocol

    def startedConnecting(self, connector: object) -> None:
        pass

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        reason.raiseException()

    def clientConnectionLost(self, connector: object, reason: Failure) -> None:
        pass


class InstallTests(SynchronousTestCase):
    def run_python(self, program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    def test_by_name(self) -> None:
        """The plugin's short name installs it as the reactor of the process."""
        done = self.run_python(
            "from twisted.application.reactors import installReactor; installReactor('rmq-lean')\n"
            "from twisted.internet import reactor; print(reactor.__class__.__name__)"
        )
        self.assertEqual(done.stdout, "LeanReactor\n", done.stderr)

    def test_without_a_choice(self) -> None:
        """A process for which nobody chose a reactor runs on this one."""
        done = self.run_python("from rmq.runtime.platform import the_reactor; print(the_reactor().__class__.__name__)")
        self.assertEqual(done.stdout, "LeanReactor\n", done.stderr)

    def test_another_choice(self) -> None:
        """A reactor that `twistd --reactor` has installed stays."""
        done = self.run_python(
            "from twisted.application.reactors import installReactor; installReactor('select')\n"
            "from rmq.runtime.platform import the_reactor; print(the_reactor().__class__.__name__)"
        )
        self.assertEqual(done.stdout, "SelectReactor\n", done.stderr)

    def test_options_import_no_reactor(self) -> None:
        """`--http` and `--manhole` are read before the choice and leave it open."""
        for role in ("namesrv", "broker"):
            done = self.run_python(
                f"import sys; from rmq.{role}.tap import Options\n"
                "Options().parseOptions(['--http', '1', '--manhole', 'ssh:1:keys'])\n"
                "print('twisted.internet.reactor' in sys.modules)"
            )
            self.assertEqual(done.stdout, "False\n", done.stderr)

    def test_steps_aside(self) -> None:
        """Where it cannot run, one log line says why, and the process runs on Twisted's default."""
        done = self.run_python(
            "import select, sys; del select.epoll\n"
            "from twisted.logger import globalLogBeginner, textFileLogObserver\n"
            "globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)], redirectStandardIO=False)\n"
            "from rmq.runtime.platform import the_reactor; print(the_reactor().__class__.__name__)"
        )
        log, reactor = done.stdout.splitlines()
        self.assertIn("rmq-lean is not used: it needs epoll(7), which only Linux has; Twisted's default", log)
        self.assertEqual(reactor, "PollReactor")

    def test_garbage_is_collected_once_it_runs(self) -> None:
        """The collector rests until the reactor runs, and no longer."""
        done = self.run_python(
            "import gc; from rmq.runtime import leanreactor; leanreactor.install()\n"
            "from twisted.internet import reactor; print(gc.isenabled())\n"
            "reactor.callWhenRunning(lambda: (print(gc.isenabled()), reactor.stop())); reactor.run()"
        )
        self.assertEqual(done.stdout.split(), ["False", "True"], done.stderr)

    def test_no_epoll(self) -> None:
        """Where there is no epoll the module says so in one sentence, and how to go on."""
        done = self.run_python(
            "import select; del select.epoll\n"
            "try:\n    import rmq.runtime.leanreactor\n"
            "except ImportError as error: print(error)"
        )
        self.assertIn("needs epoll(7)", done.stdout, done.stderr)

    def test_other_twisted(self) -> None:
        """A Twisted without the private names that are used is refused, naming them."""
        done = self.run_python(
            "from twisted.internet import tcp; del tcp.Server._fromConnectedSocket\n"
            "try:\n    import rmq.runtime.leanreactor\n"
            "except ImportError as error: print(error)"
        )
        self.assertIn("Server has no _fromConnectedSocket", done.stdout, done.stderr)

    def test_stock_stays_default(self) -> None:
        """The plugins import neither a reactor nor anything heavy."""
        done = self.run_python(
            "import sys; import twisted.plugins.rmq_plugins\n"
            "heavy = ('twisted.internet.reactor', 'twisted.internet.tcp', 'rmq.', 'msgspec', 'twisted.conch')\n"
            "print([name for name in sys.modules if name.startswith(heavy)])"
        )
        self.assertEqual(done.stdout, "[]\n", done.stderr)


#: Prints for how many of a hundred blocks of 0.9 MB, one after the other, the kernel hands out pages.
FAULTS = """
import mmap, resource
from rmq.runtime import leanreactor
leanreactor.install()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
zeros = bytes(900_000)
# the kernel decides how many pages one fault brings
before = faults()
new = [mmap.mmap(-1, 900_000, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(20)]
for one in new:
    one[:] = zeros
new_block = (faults() - before) / len(new)
before = faults()
for _ in range(100):
    bytearray(b"x") * 900_000
print((faults() - before) / new_block)
"""


class SpinningTests(LeanCase):
    """When a wait for events does not sleep."""

    compiled = True

    def setUp(self) -> None:
        need_compiled("rmq.runtime._lean")
        super().setUp()
        self.spinning = leanreactor._compiled.Spinning(1000)

    def note(self, *waits: int, fds: Sequence[int] = (7,)) -> bool:
        for wait, fd in zip(waits, cycle(fds), strict=False):
            self.spinning.note(wait, fd)
        return bool(self.spinning.on)

    def test_begins_and_ends(self) -> None:
        """Sixteen short waits in a row begin it, the first long one ends it, and what follows takes twice as many."""
        self.note(0)
        self.assertFalse(self.note(*[1000] * 15))
        self.assertFalse(self.note(1001, *[1000] * 15))
        self.assertTrue(self.note(0))
        self.assertFalse(self.note(1001))
        self.assertFalse(self.note(*[10] * 31))
        self.assertTrue(self.note(10))

    def test_bounds(self) -> None:
        """What never succeeds costs one wait in 256; success makes it as eager as at first."""
        for _ in range(20):
            self.note(*[1] * self.spinning.needed, 5000)
        self.assertEqual(self.spinning.needed, 256)
        self.note(*[1] * (256 + 4 * 16))
        self.assertEqual((self.spinning.on, self.spinning.needed), (True, 16))

    def test_few_connections(self) -> None:
        """Events of more than four connections in turn do not begin it, and end it at no cost for the next."""
        self.assertFalse(self.note(*[0] * 100, fds=range(5)))
        self.assertTrue(self.note(*[0] * 20, fds=range(4)))
        self.assertFalse(self.note(0, fds=[9]))
        self.assertEqual(self.spinning.needed, 16)
        self.assertTrue(self.note(*[0] * 17, fds=[9]))

    def test_never(self) -> None:
        """With a limit of nothing, as on a lone core, waits sleep at once."""
        lean = self.lean(0)
        for _ in range(100):
            self.turn()
            self.reactor.doIteration(0.0001)
        self.assertFalse(lean.spinning.on)

    def lean(self, spin_ns: int) -> Any:
        lean = leanreactor._compiled.Lean(leanreactor._broken, ConnectionLost(), ConnectionDone(), 1 << 17, spin_ns)
        lean.set_kinds(LeanServer, LeanClient)
        self.patch(leanreactor, "_LEAN", lean)
        return lean

    def test_wait(self) -> None:
        """While it spins, events are found, a wait that finds none takes its whole time, and then it sleeps again."""
        lean = self.lean(1_000_000_000)
        for _ in range(20):
            self.peer.send(b"x")
            self.reactor.doIteration(5)
        self.assertTrue(lean.spinning.on)
        self.assertEqual(self.protocol.received, b"x" * 20)
        lean = self.lean(1000)
        for _ in range(17):
            lean.spinning.note(0, 7)
        before = time.monotonic()
        self.reactor.doIteration(0.05)
        self.assertGreaterEqual(time.monotonic() - before, 0.05)
        self.assertFalse(lean.spinning.on)


class FreedMemoryTests(SynchronousTestCase):
    """What large frames were kept in is used for the next ones."""

    def setUp(self) -> None:
        need_compiled("rmq.runtime._lean")
        if platform.libc_ver()[0] != "glibc":
            missing("glibc: the C library is another one")

    def faults(self, **settings: str) -> float:
        """Return for how many of 100 blocks a process needed new memory: its page faults by those of a new block."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
        command = [sys.executable, "-c", FAULTS]
        return float(subprocess.check_output(command, text=True, timeout=60, env=environ | settings))

    def test_large_blocks_are_used_again(self) -> None:
        """Blocks below 1 MiB cost pages once."""
        self.assertLess(self.faults(), 10)

    def test_given_back(self) -> None:
        """What was freed between blocks that stay is given back when that is asked for."""
        program = (
            "from rmq.runtime import leanreactor; leanreactor.install()\n"
            "from twisted.internet import reactor\n"
            "def pages(): return int(open('/proc/self/statm').read().split()[1])\n"
            "large, small = [], []\n"
            "for _ in range(100): large.append(bytearray(b'x') * 900_000), small.append(bytearray(b'x') * 50_000)\n"
            "large.clear(); before = pages(); reactor.give_back_memory(); print(before - pages())"
        )
        given_back = int(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60))
        self.assertGreater(given_back * os.sysconf("SC_PAGE_SIZE"), 45_000_000, "of 90,000,000 bytes")

    def test_what_the_operator_sets_counts(self) -> None:
        """Who told glibc where large blocks come from is not overruled."""
        self.assertGreater(self.faults(MALLOC_MMAP_THRESHOLD_="131072"), 70)
