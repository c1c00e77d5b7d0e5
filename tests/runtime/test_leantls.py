"""
Tests of TLS in the compiled loop of ``rmq-lean``: it does what Twisted's layer does, which is the reference.

A server speaks TLS as RemotingProtocol does, on a real socket, with a reactor that is turned by hand; the other side is
Python's ``ssl``. Most tests do the same twice, in the compiled way and in the ordinary one, and compare.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import random
import socket
import ssl
import struct
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import attrs
from twisted.internet.interfaces import IHandshakeListener, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.needs import missing, need_compiled, need_extra
from tests.seeds import SEED

try:
    need_extra("tls")
    import OpenSSL._util
    from OpenSSL import crypto
    from twisted.internet.ssl import CertificateOptions
    from twisted.protocols import tls as twisted_tls

    from rmq.remoting import channel
    from rmq.remoting.protocol import RemotingProtocol
    from rmq.remoting.responders import ResponderTable
    from rmq.runtime import leanreactor
    from rmq.runtime.leanreactor import LeanReactor, LeanServer, records_of
    from rmq.runtime.tls.context import loss_text
    from rmq.wire.command import decode_commands
    from tests.remoting.certificates import Authority
    from tests.remoting.test_chunklane import MarkedLane, Owner, echo
except ImportError as error:
    missing(f"the reactor rmq-lean, or TLS: {error}")

PEM = Authority().issue()
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
#: all answers together are this, again and again
STREAM = random.Random(7).randbytes(1_000_003)

#: what a request asks for: that many bytes of STREAM, or something special
GIVE, LOSE, ABORT, RAISE, SEQUENCE, NOTHING = range(6)


def ask(size: int, code: int = GIVE) -> bytes:
    """Return a request of four bytes."""
    return struct.pack(">I", code << 24 | size)


@attrs.frozen
class Always:
    """A function that returns ``data``, whatever it is called with."""

    data: bytes

    def __call__(self, _other: bytes) -> bytes:
        return self.data


class Bug(Exception):
    """What the server raises when it is asked to."""


@implementer(IHandshakeListener, IPushProducer)
class Server(Protocol):
    """Answers requests; with ``fast``, whole ones before the protocol gets them, and with a ``turn`` at its end."""

    def __init__(self, options: Any, *, here: bool, fast: bool, turn: Turn | None = None) -> None:
        self._options = options
        self._here = here
        self._fast = fast
        self._turn = turn
        self._sniffed = False
        self._unfinished = b""
        self._position = 0
        self.received = b""
        self.answered_fast = 0
        self.paused = 0
        self.lost: list[str] = []
        self.transport: Any

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)
        if self._fast:
            self.transport.fast_path = Fast(self, self._turn)

    def handshakeCompleted(self) -> None:
        if self._here:
            self.transport.decrypt_here()

    def dataReceived(self, data: bytes) -> None:
        if not self._sniffed:
            self._sniffed = True
            self.transport.startTLS(self._options)
            self.transport.protocol.dataReceived(data)
            return
        self.received += data
        data = self._unfinished + data
        whole = len(data) - len(data) % 4
        self._unfinished = data[whole:]
        for (request,) in struct.iter_unpack(">I", data[:whole]):
            self.perform(request >> 24, request & 0xFFFFFF)

    def perform(self, code: int, size: int) -> None:
        if code == GIVE:
            self.transport.write(self.next(size))
        elif code == SEQUENCE:
            self.transport.writeSequence([self.next(size), self.next(1)])
        elif code == LOSE:
            self.transport.write(self.next(size))
            self.transport.unregisterProducer()
            self.transport.loseConnection()
        elif code == ABORT:
            self.transport.abortConnection()
        elif code == RAISE:
            raise Bug("asked for")

    def next(self, size: int) -> bytes:
        data = stream(self._position, size)
        self._position += size
        return data

    @property
    def at_request_start(self) -> bool:
        return not self._unfinished

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.append(f"{type(reason.value).__name__}: {loss_text(reason.value)}")

    def pauseProducing(self) -> None:
        self.paused += 1
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """The connection ends."""


class Fast:
    """What is asked before a Server."""

    def __init__(self, server: Server, turn: Turn | None) -> None:
        self._server = server
        self._turn = turn
        self.transport = server.transport

    def __call__(self, data: bytes, more: bool) -> Any:
        assert data, "nothing was decrypted"
        server = self._server
        if not server.at_request_start or len(data) % 4:
            return None
        codes = {data[at] for at in range(0, len(data), 4)}
        if SEQUENCE in codes or (not codes <= {GIVE, NOTHING} and len(data) > 4):
            return None
        if more and self._turn is not None:
            self._turn.waiting.append((self, data))
            return self._turn
        return self.answer(data)

    def answer(self, data: bytes) -> bytes:
        server = self._server
        server.answered_fast += 1
        server.received += data
        answer = b""
        for (request,) in struct.iter_unpack(">I", data):
            code, size = request >> 24, request & 0xFFFFFF
            if code == GIVE:
                answer += server.next(size)
            else:
                server.perform(code, 0)
                answer += server.next(size)
        return answer

    def write(self, data: bytes) -> None:
        self.transport.write(data)


@attrs.define(eq=False)
class Turn:
    """Answers at the end of a turn, or leaves that to the protocol; ``before`` is called first."""

    declines: bool = False
    before: Callable[[], object] = list
    waiting: list[tuple[Fast, bytes]] = attrs.field(factory=list)

    def finish(self) -> list[tuple[Fast, bytes, bytes | None]]:
        self.before()
        waiting, self.waiting = self.waiting, []
        return [(path, data, None if self.declines else path.answer(data)) for path, data in waiting]


class Far:
    """The client, by Python's ssl, over a socket that does not block."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.socket = sock
        sock.setblocking(False)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.into, self.out)
        self.unsent = b""
        self.received = b""
        #: the handshake is done
        self.ready = False
        #: how this side's reading ended
        self.end = ""
        #: most bytes of a read; 0 for a peer that does not read
        self.reads = 1 << 20
        #: what becomes of bytes from the server
        self.spoil: Callable[[bytes], bytes] = lambda data: data

    def records(self, *pieces: bytes) -> bytes:
        """Return the records of ``pieces``, and whatever else is to be sent."""
        for piece in pieces:
            self.ssl.write(piece)
        return self.out.read()

    def move(self) -> bool:
        """Send and receive what can be; whether there was anything."""
        self.unsent += self.out.read()
        moved = False
        if self.unsent and self.socket.fileno() >= 0:
            try:
                sent = self.socket.send(self.unsent)
                self.unsent = self.unsent[sent:]
                moved = True
            except BlockingIOError:
                pass
            except OSError:
                self.unsent = b""
        if self.reads and not self.end and self.socket.fileno() >= 0:
            moved = self._read() or moved
        return moved

    def _read(self) -> bool:
        try:
            data = self.socket.recv(self.reads)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            self.end = "reset"
            return True
        if data:
            self.into.write(self.spoil(data))
        else:
            self.into.write_eof()
        try:
            if not self.ready:
                self.ssl.do_handshake()
                self.ready = True
            while got := self.ssl.read(1 << 20):
                self.received += got
            self.end = "close_notify"
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.end = "close_notify"
        except ssl.SSLEOFError:
            self.end = "EOF"
        except ssl.SSLError as error:
            self.end = error.reason
        return True

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@attrs.define(eq=False)
class Link:
    """A connection and both of its ends."""

    server: Server
    transport: Any
    far: Far

    @property
    def layer(self) -> Any:
        return self.transport.protocol

    @property
    def is_here(self) -> bool:
        return "records" in self.transport.__dict__


def stream(position: int, size: int) -> bytes:
    """Return ``size`` bytes of the endless STREAM."""
    position %= len(STREAM)
    copies = (position + size) // len(STREAM) + 1
    return (STREAM * copies)[position : position + size]


def whole_frames(data: bytes) -> list[int]:
    """Return where the frames in ``data`` begin that have arrived as a whole."""
    starts, position = [], 0
    while len(data) >= position + 4 and len(data) >= (
        end := position + 4 + int.from_bytes(data[position : position + 4])
    ):
        starts.append(position)
        position = end
    return starts


def trusting_all(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return context


def queued_error() -> int:
    """Return the first error in OpenSSL's queue, 0 for none."""
    from cryptography.hazmat.bindings._rust import _openssl

    return int(_openssl.lib.ERR_peek_error())


def put_error() -> None:
    """Leave an error in OpenSSL's queue, as some other connection may."""
    from cryptography.hazmat.bindings._rust import _openssl

    _openssl.lib.ERR_put_error(20, 0, 148, b"", 0)


class TlsCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = LeanReactor()
        self.addCleanup(self._close)
        # Twisted's startTLS asks the reactor of the process for the time
        self.patch(twisted_tls, "_get_default_clock", lambda: self.reactor)
        key = crypto.load_privatekey(crypto.FILETYPE_PEM, PEM.key)
        certificate = crypto.load_certificate(crypto.FILETYPE_PEM, PEM.certificate)
        self.options = CertificateOptions(privateKey=key, certificate=certificate)
        self.links: list[Link] = []
        self.sockets: list[socket.socket] = []

    def _close(self) -> None:
        """Close sockets after the reactor has forgotten them."""
        self.reactor.removeAll()
        for sock in self.sockets:
            sock.close()
        for reader in list(self.reactor._internalReaders):
            self.reactor.removeReader(reader)
            reader.connectionLost(None)
        self.reactor._poller.close()

    def pair(self, *, tcp: bool = False) -> tuple[socket.socket, socket.socket]:
        """Return the two ends of a connection; what is sent in one that is not ``tcp`` arrives at once."""
        if tcp:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                far = socket.create_connection(listener.getsockname())
                ours, _ = listener.accept()
        else:
            ours, far = socket.socketpair()
        self.sockets += ours, far
        return ours, far

    def connect(
        self,
        here: bool = True,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        *,
        fast: bool = True,
        turn: Turn | None = None,
        buffers: int = 0,
        gets: bool | None = None,
        tcp: bool = False,
    ) -> Link:
        """
        Return a connection after its handshake, with small ``buffers`` of the kernel if given.

        ``here``: it asks to be decrypted by the compiled loop; ``gets``: whether it gets that, if not as it asks.
        """
        ours, far = self.pair(tcp=tcp)
        if buffers:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffers)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffers)
        server = Server(self.options, here=here, fast=fast, turn=turn)
        transport = self.served(ours, server)
        transport.repstr = "lean"
        server.makeConnection(transport)
        link = Link(server, transport, Far(far, trusting_all(version)))
        self.begin(link)
        self.assertEqual(link.far.ssl.version(), version.name.replace("_", "."))
        self.assertEqual(link.is_here, here if gets is None else gets)
        return link

    def served(self, ours: socket.socket, protocol: Any) -> Any:
        """Return a transport of the reactor for a socket."""
        return LeanServer(ours, protocol, ("127.0.0.1", 1), None, 1, self.reactor)  # type: ignore[arg-type]

    def begin(self, link: Link) -> None:
        """Shake hands, from the client's side."""
        self.links.append(link)
        try:
            link.far.ssl.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.settle()

    def turn(self) -> None:
        self.reactor.runUntilCurrent()
        self.reactor.doIteration(0)

    def settle(self) -> None:
        """Turn the reactor, and let the clients send and receive, until nothing moves."""
        quiet = 0
        while quiet < 3:
            moved = sum(link.far.move() for link in self.links)
            calls = bool(self.reactor.getDelayedCalls())
            self.turn()
            quiet = 0 if moved or calls else quiet + 1

    def both(self, scenario: Callable[[Link], object], **terms: Any) -> list[dict[str, Any]]:
        """Have a scenario in both ways and with both versions; the outcomes of a version must be the same."""
        outcomes = []
        for version in VERSIONS:
            found = {}
            for here in (False, True):
                link = self.connect(here, version, **terms)
                scenario(link)
                self.settle()
                found[here] = self.outcome(link)
                self.assertEqual(queued_error(), 0)
                if not link.server.lost:
                    self.assertEqual(link.is_here, here)
                self.links.remove(link)
            self.assertEqual(found[True], found[False], f"{version.name}: compiled, ordinary")
            outcomes.append(found[True])
        return outcomes

    def outcome(self, link: Link) -> dict[str, Any]:
        far = link.far
        self.assertEqual(far.received, stream(0, len(far.received)), "order of the answers")
        return {
            "requests": link.server.received,
            "answer bytes": len(far.received),
            "end": far.end,
            "lost": link.server.lost,
            "logged": [(error.type.__name__, str(error.value)) for error in self.flushLoggedErrors()],
        }


class CompiledTlsTests(TlsCase):
    def setUp(self) -> None:
        need_compiled("rmq.runtime._lean")
        super().setUp()

    # requests and answers

    def test_cut_records(self) -> None:
        """Records may be cut anywhere between two reads."""
        size = len(self.connect().far.records(ask(3), ask(40), ask(5)))

        def scenario(link: Link) -> None:
            for cut in range(size + 1):
                data = link.far.records(ask(3), ask(40), ask(5))
                for piece in (data[:cut], data[cut:]):
                    link.far.unsent += piece
                    self.settle()

        for outcome in self.both(scenario):
            self.assertGreaterEqual(outcome["answer bytes"], size * 48)

    def test_cut_requests(self) -> None:
        """Requests may be cut anywhere between two records, of one read or of two."""
        requests = ask(3) + ask(40) + ask(5)

        def scenario(link: Link) -> None:
            for cut in range(1, len(requests)):
                link.far.unsent += link.far.records(requests[:cut], requests[cut:])
                self.settle()
                for piece in (requests[:cut], requests[cut:]):
                    link.far.unsent += link.far.records(piece)
                    self.settle()

        for outcome in self.both(scenario):
            self.assertEqual(outcome["answer bytes"], 48 * 2 * (len(requests) - 1))

    def test_part_before_more(self) -> None:
        """A record that has begun is completed by the next read, which brings more and a part of another one."""

        def scenario(link: Link) -> None:
            first, second, third = (link.far.records(ask(size)) for size in (10, 20, 30))
            for piece in (first[:9], first[9:] + second + third[:-1], third[-1:]):
                link.far.unsent += piece
                self.settle()

        for outcome in self.both(scenario):
            self.assertEqual(outcome["answer bytes"], 60)

    def test_full_reads(self) -> None:
        """A client may send more than a read takes, in records of any size."""

        def scenario(link: Link) -> None:
            for size in (1, 5, 4_000, 16_384, 100_000):
                requests = ask(0, NOTHING) * 50_000 + ask(7)
                if size < 100:
                    requests = requests[-8_000:]
                pieces = [requests[at : at + size] for at in range(0, len(requests), size)]
                link.far.unsent += link.far.records(*pieces)
                self.settle()

        for outcome in self.both(scenario):
            self.assertEqual(outcome["answer bytes"], 5 * 7)

    def test_long_answers(self) -> None:
        """Answers of any length arrive whole: below and above a record, the layer's buffer and what is sent at once."""
        sizes = [1, 16_383, 16_384, 16_385, 63_999, 64_000, 64_001, 65_536, 131_071, 131_072, 131_073, 1_500_000]

        def scenario(link: Link) -> None:
            for size in [*sizes, *reversed(sizes)]:
                self.request(link, ask(size))

        for fast in (True, False):
            for outcome in self.both(scenario, fast=fast):
                self.assertEqual(outcome["answer bytes"], 2 * sum(sizes))

    def request(self, link: Link, data: bytes) -> None:
        link.far.unsent += link.far.records(data)
        self.settle()

    def test_at_once(self) -> None:
        """An answer, on the fast path or not, is with the client in the turn that reads the request."""
        for fast in (True, False):
            for size in (5, 100_000):
                link = self.connect(fast=fast)
                link.far.unsent += link.far.records(ask(size))
                link.far.move()
                self.reactor.doIteration(0)
                while link.far.move():
                    pass
                self.assertEqual(link.far.received, stream(0, size))
                self.assertEqual(link.server.answered_fast, int(fast))

    def test_slow_reader(self) -> None:
        """For a client that does not read the server pauses; later everything arrives in order."""

        def scenario(link: Link) -> None:
            link.far.reads = 0
            for _ in range(40):
                for size in (60_000, 10, 200_000):
                    self.request(link, ask(size))
                if link.server.paused:
                    break
            self.assertGreater(link.server.paused, 0)
            self.request(link, ask(20))
            self.assertEqual(self.reactor.getReaders().count(link.transport), 0)
            link.far.reads = 4_000
            self.settle()
            self.request(link, ask(30))
            self.assertEqual(self.reactor.getReaders().count(link.transport), 1)
            asked = sum(size & 0xFFFFFF for (size,) in struct.iter_unpack(">I", link.server.received))
            self.assertEqual(len(link.far.received), asked)

        for fast in (True, False):
            for here in (True, False):
                link = self.connect(here, fast=fast, buffers=20_000)
                scenario(link)
                self.outcome(link)
                self.links.remove(link)

    def test_full_socket(self) -> None:
        """What the socket did not take goes out before whatever is written later, at once or not."""
        for fast in (True, False):
            link = self.connect(fast=fast, buffers=5_000)
            link.far.reads = 0
            for size in (130_000, 1, 5, 70_000, 2):
                self.request(link, ask(size))
                self.request(link, ask(3, SEQUENCE))
            self.assertIn(link.transport, self.reactor.getWriters())
            link.far.reads = 10_000
            self.settle()
            self.request(link, ask(8))
            self.assertEqual(self.outcome(link)["answer bytes"], 200_008 + 5 * 4 + 8)

    def test_behind_the_buffer(self) -> None:
        """What waits in Twisted's layer to be encrypted goes out before what is written later."""
        for fast in (True, False):
            link = self.connect(fast=fast)
            link.transport.writeSequence([link.server.next(10)])
            link.transport.write(link.server.next(10))
            link.far.unsent += link.far.records(ask(10))
            link.far.move()
            self.reactor.doIteration(0)
            link.transport.write(link.server.next(10))
            self.settle()
            self.request(link, ask(10))
            self.assertEqual(self.outcome(link)["answer bytes"], 50)

    def test_any_order(self) -> None:
        """Whatever a client does: all requests arrive, all answers in order."""
        seed = SEED
        print(f"\nLEAN TLS seed {seed}")
        chance = random.Random(seed)
        turn = Turn()
        for number in range(12):
            links = [
                self.connect(
                    chance.random() < 0.8,
                    chance.choice(VERSIONS),
                    fast=chance.random() < 0.8,
                    turn=chance.choice((None, turn)),
                    buffers=chance.choice((0, 5_000)),
                )
                for _ in range(3)
            ]
            asked = [b""] * 3
            for _ in range(150):
                turn.declines = chance.random() < 0.2
                which = chance.randrange(3)
                link = links[which]
                action = chance.random()
                if action < 0.5:
                    requests = b"".join(
                        ask(
                            chance.choice((0, 1, 50, 500, 20_000, 140_000)),
                            chance.choice((GIVE, GIVE, GIVE, SEQUENCE, NOTHING)),
                        )
                        for _ in range(chance.randint(1, 5))
                    )
                    asked[which] += requests
                    cut = chance.randint(1, len(requests)) if chance.random() < 0.3 else len(requests)
                    link.far.unsent += link.far.records(*filter(None, (requests[:cut], requests[cut:])))
                elif action < 0.7:
                    held, link.far.unsent = link.far.unsent, b""
                    part = chance.randint(0, len(held))
                    link.far.unsent = held[:part]
                    link.far.move()
                    link.far.unsent += held[part:]
                elif action < 0.8:
                    link.far.reads = chance.choice((0, 100, 1 << 20))
                elif action < 0.9:
                    for each in links:
                        each.far.move()
                else:
                    self.turn()
            for link in links:
                link.far.reads = 1 << 20
            self.settle()
            for which, link in enumerate(links):
                text = f"seed {seed}, {number}"
                self.assertEqual(link.server.received, asked[which], text)
                self.assertEqual(link.far.received, stream(0, link.server._position), text)
                self.assertEqual(link.server.lost, [], text)
                self.links.remove(link)
            self.assertEqual(self.flushLoggedErrors(), [])

    # ends

    def say_goodbye(self, link: Link) -> None:
        """Have the client send close_notify, behind whatever else."""
        try:
            link.far.ssl.unwrap()
        except ssl.SSLWantReadError:
            pass

    def test_close_notify(self) -> None:
        """A client that says goodbye gets a goodbye, and it is an orderly end."""

        def scenario(link: Link) -> None:
            self.request(link, ask(10))
            self.say_goodbye(link)

        for outcome in self.both(scenario):
            self.assertEqual(outcome["answer bytes"], 10)
            self.assertEqual(outcome["lost"], ["ConnectionDone: Connection was closed cleanly."])

    def test_close_notify_behind_a_request(self) -> None:
        """
        A request that has the client's goodbye behind it is processed, and the end is an orderly one.

        It is answered, as one on a plain connection is that has the end behind it. Twisted's layer drops the answer.
        """
        for version in VERSIONS:
            for fast in (True, False):
                for here in (True, False):
                    link = self.connect(here, version, fast=fast)
                    data = link.far.records(ask(10))
                    self.say_goodbye(link)
                    link.far.unsent += data
                    self.settle()
                    self.assertEqual(link.server.received, ask(10))
                    self.assertEqual(link.server.lost, ["ConnectionDone: Connection was closed cleanly."])
                    self.assertEqual((len(link.far.received), link.far.end), (10 if here else 0, "close_notify"))
                    self.links.remove(link)

    def test_abrupt_end(self) -> None:
        """A connection that ends without a goodbye was lost."""

        def scenario(link: Link) -> None:
            self.request(link, ask(10))
            link.far.unsent += link.far.records(ask(20), ask(30))[:-5]
            self.settle()
            link.far.socket.shutdown(socket.SHUT_WR)

        for fast in (True, False):
            for outcome in self.both(scenario, fast=fast):
                self.assertEqual(outcome["requests"], ask(10) + ask(20))
                self.assertEqual(len(outcome["lost"]), 1)
                self.assertIn("ConnectionLost", outcome["lost"][0])

    def test_reset(self) -> None:
        """A TCP reset ends the connection, with and without bytes that wait to be sent."""

        def quiet(link: Link) -> None:
            self.request(link, ask(10))
            link.far.reset()

        def busy(link: Link) -> None:
            link.far.reads = 0
            self.request(link, ask(3_000_000))
            self.request(link, ask(3_000_000))
            link.far.reset()

        for scenario in (quiet, busy):
            for outcome in self.both(scenario, tcp=True):
                self.assertEqual(len(outcome["lost"]), 1)
                self.assertIn("ConnectionLost", outcome["lost"][0])

    def test_reset_meets_an_answer(self) -> None:
        """A reset that is noticed when an answer is sent costs that connection only."""

        def scenario(link: Link) -> None:
            link.far.reset()
            for _ in range(3):
                link.transport.write(b"x")
                link.transport.write(b"y" * 100_000)

        for outcome in self.both(scenario):
            self.assertEqual(len(outcome["lost"]), 1)

    def broken(self, spoil: Callable[[bytes], bytes], **terms: Any) -> list[dict[str, Any]]:
        """Have a client send a good request and, in the same read, one that ``spoil`` damages."""

        def scenario(link: Link) -> None:
            self.request(link, ask(10))
            data = link.far.records(ask(20))
            link.far.unsent += data + spoil(link.far.records(ask(30)))

        return self.both(scenario, **terms)

    def test_damaged_record(self) -> None:
        """A record with a wrong MAC ends the connection with OpenSSL's reason; requests before it are processed."""
        for fast in (True, False):
            for outcome in self.broken(lambda data: data[:-1] + bytes([data[-1] ^ 1]), fast=fast):
                self.assertEqual(outcome["requests"], ask(10) + ask(20))
                self.assertEqual(outcome["answer bytes"], 10)
                (reason,) = outcome["lost"]
                self.assertIn("Error: TLS: ", reason)
                self.assertIn("bad record mac", reason)

    def test_plain_bytes(self) -> None:
        """Plain bytes in the middle of TLS end the connection; requests before them are processed."""
        for plain in (b"\0\0\0\x10plain bytes here", b"\x17\x03\x03\xff\xffx", b"\x16\x03\x01\0\x05hello"):
            for outcome in self.broken(Always(plain)):
                self.assertEqual(outcome["requests"], ask(10) + ask(20))
                (reason,) = outcome["lost"]
                self.assertIn("TLS: ", reason)

    def test_reason_survives_other_connections(self) -> None:
        """What a good request makes others send does not change the reason for which its connection ends."""
        other = self.connect()
        for version in VERSIONS:
            for fast in (True, False):
                link = self.connect(version=version, fast=fast)
                perform = link.server.perform

                def performed(code: int, size: int, perform: Any = perform) -> None:
                    other.transport.write(other.server.next(9))
                    perform(code, size)

                link.server.perform = performed  # type: ignore[method-assign]
                data = link.far.records(ask(20))
                bad = bytearray(link.far.records(ask(30)))
                bad[-1] ^= 1
                link.far.unsent += data + bytes(bad)
                self.settle()
                self.assertIn("bad record mac", link.server.lost[0])
                self.assertEqual(link.server.received, ask(20))
                self.links.remove(link)
        self.assertEqual(self.outcome(other)["answer bytes"], 4 * 9)

    def test_alert(self) -> None:
        """An alert of the client ends the connection with its reason."""

        def scenario(link: Link) -> None:
            self.request(link, ask(10))
            link.far.spoil = lambda data: data[:-1] + bytes([data[-1] ^ 1])
            self.request(link, ask(20))
            self.settle()

        for outcome in self.both(scenario):
            (reason,) = outcome["lost"]
            self.assertIn("bad record mac", reason)
            self.assertIn("alert", reason)

    # our own ends

    def test_lose(self) -> None:
        """After loseConnection the client gets what was written before, and a goodbye."""
        for fast in (True, False):
            for outcome in self.both(lambda link: self.request(link, ask(10) + ask(0, LOSE)), fast=fast):
                self.assertEqual((outcome["answer bytes"], outcome["end"]), (10, "close_notify"))

    def test_lose_on_the_fast_path(self) -> None:
        """A fast path that ends its connection may return an answer: it is dropped, and leaves no error."""
        for version in VERSIONS:
            link = self.connect(version=version)
            self.request(link, ask(5, LOSE))
            self.assertEqual(queued_error(), 0)
            self.assertEqual((link.far.received, link.far.end), (b"", "close_notify"))

    def test_lose_behind_much(self) -> None:
        """The goodbye comes behind answers that the socket has not taken yet."""

        def scenario(link: Link) -> None:
            link.far.reads = 0
            self.request(link, ask(120_000))
            self.request(link, ask(900_000) + ask(0, LOSE))
            link.far.reads = 50_000

        for fast in (True, False):
            for outcome in self.both(scenario, fast=fast, buffers=5_000):
                self.assertEqual((outcome["answer bytes"], outcome["end"]), (1_020_000, "close_notify"))

    def test_abort(self) -> None:
        """abortConnection resets the connection, within a fast path and within dataReceived; nothing is sent later."""
        for fast in (True, False):
            for outcome in self.both(lambda link: self.request(link, ask(0, ABORT)), fast=fast):
                self.assertEqual(outcome["answer bytes"], 0)
                self.assertEqual(len(outcome["lost"]), 1)
                self.assertIn("ConnectionLost", outcome["lost"][0])

    def test_bug(self) -> None:
        """A protocol or fast path that raises is logged and costs its connection."""
        for fast in (True, False):
            for outcome in self.both(lambda link: self.request(link, ask(0, RAISE)), fast=fast):
                self.assertEqual(outcome["logged"], [("Bug", "asked for")])
                (reason,) = outcome["lost"]
                self.assertIn("ConnectionLost", reason)

    def test_bug_before_an_error(self) -> None:
        """One that raises with a damaged record behind it leaves no error to others."""

        def scenario(link: Link) -> None:
            data = link.far.records(ask(0, RAISE))
            bad = bytearray(link.far.records(ask(30)))
            bad[-1] ^= 1
            link.far.unsent += data + bytes(bad)

        for version in VERSIONS:
            link = self.connect(version=version, fast=False)
            scenario(link)
            self.settle()
            self.assertEqual(len(link.server.lost), 1)
            self.assertEqual([str(error.value) for error in self.flushLoggedErrors(Bug)], ["asked for"])
            self.assertEqual(queued_error(), 0)
            self.links.remove(link)

    # several connections in one turn

    def three(self, turn: Turn | None) -> list[Link]:
        return [self.connect(version=VERSIONS[number % 2], turn=turn) for number in range(3)]

    def one_turn(self, links: list[Link], *requests: bytes) -> None:
        for link, data in zip(links, requests, strict=True):
            link.far.unsent += link.far.records(data)
            link.far.move()
        self.reactor.doIteration(0)

    def test_answers_of_a_turn(self) -> None:
        """What several connections ask in one turn is answered at its end: by the fast path or the protocol."""
        for turn in (None, Turn(), Turn(declines=True)):
            links = self.three(turn)
            self.one_turn(links, ask(10), ask(100_000), ask(200_000))
            self.settle()
            for link, size in zip(links, (10, 100_000, 200_000), strict=True):
                self.assertEqual(link.far.received, stream(0, size))
                self.assertEqual(link.server.answered_fast, 0 if turn and turn.declines else 1)

    def test_ends_in_a_turn(self) -> None:
        """A connection that is closed or aborted while its answer waits for the end of the turn costs no other one."""
        for end in ("loseConnection", "abortConnection"):
            for declines in (True, False):
                turn = Turn(declines=declines)
                links = self.three(turn)
                first = links[0]

                def before(first: Any = first.transport, end: str = end) -> None:
                    first.unregisterProducer()
                    getattr(first, end)()

                turn.before = before
                self.one_turn(links, ask(10), ask(20), ask(30))
                turn.before = list
                self.assertEqual(queued_error(), 0)
                self.settle()
                self.assertEqual(first.far.received, b"")
                self.assertEqual([link.far.received for link in links[1:]], [stream(0, 20), stream(0, 30)])
                self.assertEqual(self.flushLoggedErrors(), [])

    def test_lost_in_a_turn(self) -> None:
        """The same for one that is lost meanwhile."""
        for declines in (True, False):
            turn = Turn(declines=declines)
            links = self.three(turn)
            first = links[0]
            turn.before = partial(first.transport.connectionLost, Failure(ConnectionResetError()))
            self.one_turn(links, ask(10), ask(20), ask(30))
            turn.before = list
            self.settle()
            self.assertEqual(len(first.server.lost), 1)
            self.assertEqual([link.far.received for link in links[1:]], [stream(0, 20), stream(0, 30)])
            self.assertEqual(self.flushLoggedErrors(), [])

    def test_lost_by_another(self) -> None:
        """What is still to be read when another event of the turn has ended TLS is not delivered."""
        for here in (True, False):
            first, second = self.connect(here, fast=False), self.connect(here, fast=False)

            def end(code: int, size: int, layer: Any = second.layer) -> None:
                layer._tlsShutdownFinished(None)

            first.server.perform = end  # type: ignore[method-assign]
            self.one_turn([first, second], ask(1), ask(2))
            self.settle()
            self.assertEqual((second.server.received, len(second.server.lost)), (b"", 1))

    # the state of OpenSSL

    def test_errors_of_others(self) -> None:
        """Errors that others left in OpenSSL's queue change nothing."""
        link = self.connect()
        for fast in (True, False):
            link.server.transport.fast_path = Fast(link.server, None) if fast else None
            put_error()
            data = link.far.records(ask(10))
            for piece in (data[:9], data[9:]):
                put_error()
                link.far.unsent += piece
                self.settle()
        self.assertEqual((len(link.far.received), link.server.lost), (20, []))

    def test_error_before_an_answer(self) -> None:
        """The same for writes."""
        link = self.connect(fast=False)
        perform = link.server.perform

        def performed(code: int, size: int) -> None:
            put_error()
            perform(code, size)

        link.server.perform = performed  # type: ignore[method-assign]
        self.request(link, ask(100_000))
        self.assertEqual((len(link.far.received), link.server.lost), (100_000, []))

    def test_pending_write(self) -> None:
        """What OpenSSL did not take during a renegotiation (TLS 1.2) goes out, in order, when it is over."""
        for here in (True, False):
            link = self.connect(here, ssl.TLSVersion.TLSv1_2)
            # it pauses for this wait, too, and then nothing of the renegotiation would be read
            link.transport.unregisterProducer()
            connection = link.layer._tlsConnection
            connection.renegotiate()
            connection.do_handshake()
            link.layer._flushSendBIO()
            while connection.get_state_string() != b"SSLv3/TLS write server done":
                self.turn()
                link.far.move()
            link.transport.write(link.server.next(50))
            link.transport.write(link.server.next(100_000))
            self.turn()
            self.assertTrue(link.layer._appSendBuffer)
            self.settle()
            self.assertEqual(self.outcome(link)["answer bytes"], 100_050)
            self.request(link, ask(20))
            self.assertEqual(self.outcome(link)["answer bytes"], 100_070)
            self.assertEqual(link.layer._tlsConnection.total_renegotiations(), 1)
            self.links.remove(link)

    def test_a_layer_that_does_more(self) -> None:
        """While Twisted's layer waits, or ends TLS, nothing passes it by; what an aborted one decrypts is dropped."""
        link = self.connect(True, ssl.TLSVersion.TLSv1_3)
        for name, value in (
            ("_appSendBuffer", [b"waits"]),
            ("_lostTLSConnection", True),
            ("_aborted", True),
            ("disconnecting", True),
        ):
            with patch.object(link.layer, name, value):
                self.assertEqual(leanreactor._LEAN.send_now(link.transport, b"x"), 0, name)
        with patch.object(link.layer, "_aborted", True):
            self.request(link, ask(5))
        self.assertEqual(link.server.received, b"")
        self.request(link, ask(5))
        self.assertEqual(self.outcome(link)["answer bytes"], 5)

    # what is left of a connection

    def test_nothing_is_left(self) -> None:
        """OpenSSL's part of a connection that ends in an orderly way is freed at once, all else can be collected."""
        at_once: list[weakref.ref[Any]] = []
        kept: list[weakref.ref[Any]] = []
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        for number in range(30):
            link = self.connect(version=VERSIONS[number % 2])
            self.request(link, ask(100))
            is_orderly = number % 3 > 0
            (at_once if is_orderly else kept).append(weakref.ref(link.layer._tlsConnection))
            kept += [weakref.ref(link.transport), weakref.ref(link.layer), weakref.ref(link.server)]
            if is_orderly:
                self.say_goodbye(link)
            else:
                link.far.socket.close()
            self.settle()
            self.assertEqual(len(link.server.lost), 1)
            self.links.remove(link)
        self.assertEqual([ref for ref in at_once if ref() is not None], [])
        del link
        gc.collect()
        self.assertEqual([ref for ref in kept if ref() is not None], [])

    def test_late_use(self) -> None:
        """A lost connection swallows what is written to it, and what its protocol does with it later."""
        link = self.connect()
        link.far.reset()
        self.settle()
        self.assertEqual(len(link.server.lost), 1)
        link.transport.write(b"x")
        link.transport.writeSequence([b"x"])
        link.transport.loseConnection()
        link.transport.abortConnection()
        self.assertFalse(link.is_here)

    def test_lost_on_the_fast_path(self) -> None:
        """A fast path whose connection ends inside of it costs that connection only."""
        link, other = self.connect(), self.connect()

        def end(code: int, size: int) -> None:
            link.transport.connectionLost(Failure(ConnectionResetError()))
            gc.collect()

        link.server.perform = end  # type: ignore[method-assign]
        self.request(link, ask(50, SEQUENCE + 1))
        self.assertEqual(len(link.server.lost), 1)
        self.request(other, ask(50))
        self.assertEqual(other.far.received, stream(0, 50))

    # with parts missing

    def ordinary(self) -> None:
        """Have a connection work, in the ordinary way though it asks for the other one."""
        for version in VERSIONS:
            link = self.connect(True, version, gets=False)
            self.request(link, ask(100) + ask(100_000))
            self.assertEqual(self.outcome(link)["answer bytes"], 100_100)
            self.links.remove(link)

    def test_without_cryptography(self) -> None:
        """Without the private module of cryptography, or a function in it, TLS goes on in Twisted's way."""
        self.addCleanup(leanreactor._openssl_ffi.cache_clear)
        for change in (
            patch.object(leanreactor, "_OPENSSL_FUNCTIONS", ("SSL_read", "no_such_function")),
            patch.dict(sys.modules, {"cryptography.hazmat.bindings._rust": None}),
            patch.object(OpenSSL._util, "ffi", object()),
        ):
            leanreactor._openssl_ffi.cache_clear()
            with change:
                self.ordinary()

    def test_without_names_of_pyopenssl(self) -> None:
        """The same when pyOpenSSL's or Twisted's objects have other names inside."""
        for name in ("_ssl", "_into_ssl", "_from_ssl"):
            link = self.connect(False)
            held = link.layer._tlsConnection.__dict__.pop(name)
            self.assertIsNone(records_of(link.layer), name)
            setattr(link.layer._tlsConnection, name, held)
            self.assertIsNotNone(records_of(link.layer))
            self.links.remove(link)

    def test_without_names_of_twisted(self) -> None:
        """The same when pyOpenSSL's or Twisted's objects have other names inside."""
        link = self.connect(False)
        for name in leanreactor._LAYER_NAMES:
            layer = Lacking(link.layer, name)
            self.assertIsNone(records_of(layer), name)
        self.assertIsNotNone(records_of(Lacking(link.layer, "something else")))

    def test_without_buffering(self) -> None:
        """The same with a layer that does not buffer, as Twisted's was once."""
        self.patch(twisted_tls.TLSMemoryBIOFactory, "protocol", twisted_tls.TLSMemoryBIOProtocol)
        self.ordinary()

    def test_wrapped(self) -> None:
        """Where TLS is no state of the transport but a wrapper around its protocol, nothing is encrypted twice."""
        server = Server(self.options, here=True, fast=False)
        server._sniffed = True
        factory = Factory()
        factory.buildProtocol = lambda addr: server  # type: ignore[method-assign]
        around = twisted_tls.TLSMemoryBIOFactory(self.options, False, factory, self.reactor)
        ours, far = self.pair()
        protocol = around.buildProtocol(None)
        transport = self.served(ours, protocol)
        protocol.makeConnection(transport)
        link = Link(server, transport, Far(far, trusting_all(ssl.TLSVersion.TLSv1_3)))
        self.begin(link)
        self.request(link, ask(10))
        self.request(link, ask(100_000))
        self.assertEqual(self.outcome(link)["answer bytes"], 100_010)

    # what Python's ssl cannot do

    def test_key_update(self) -> None:
        """A client may change its keys, and ask us to change ours, between any two requests (TLS 1.3)."""

        def scenario(link: Link) -> None:
            far: Any = link.far
            for wants_ours in (0, 1):
                for size in (10, 100_000):
                    self.request(link, ask(size))
                    far.update_keys(wants_ours)
                    self.settle()
                    self.request(link, ask(size))
                    far.update_keys(wants_ours)
                    self.request(link, ask(size))

        found = [self.with_system_client(here, True, scenario) for here in (False, True)]
        self.assertEqual(found[0], found[1])
        self.assertEqual((found[0]["answer bytes"], found[0]["lost"]), (6 * 100_010, []))

    def test_key_update_behind_unsent_answers(self) -> None:
        """Our new keys come behind answers that such a client has not read, wherever the transport has their rest."""
        for reads in (False, True):

            def scenario(link: Link, reads: bool = reads) -> None:
                far: Any = link.far
                self.request(link, ask(10))
                link.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
                far.records(ask(60_000))
                for _ in range(5):
                    self.turn()
                for _ in range(2 * reads):  # so that the reactor has written once, and not all
                    far.read_some(20_000)
                    self.turn()
                if link.is_here:
                    unsent = bool(link.transport._tempDataLen), bool(link.transport.dataBuffer)
                    self.assertEqual(unsent, (not reads, reads))
                self.assertFalse(link.transport.producerPaused)
                far.read_some(20_000)  # there is room for a record again, and the reactor reads before it writes
                far.read_some(20_000)
                far.update_keys(1)
                self.settle()
                self.request(link, ask(10))

            found = [self.with_system_client(here, True, scenario) for here in (False, True)]
            self.assertEqual(found[0], found[1])
            self.assertEqual((found[0]["answer bytes"], found[0]["end"]), (60_020, ""))

    def test_renegotiation(self) -> None:
        """A client that asks for a renegotiation (TLS 1.2) is refused, and what it does then is the same."""

        def scenario(link: Link) -> None:
            far: Any = link.far
            self.request(link, ask(10))
            far.renegotiate()
            self.settle()
            self.request(link, ask(20))

        found = [self.with_system_client(here, False, scenario) for here in (False, True)]
        self.assertEqual(found[0], found[1])
        self.assertEqual((found[0]["answer bytes"], found[0]["end"]), (10, "1"))

    def with_system_client(self, here: bool, tls13: bool, scenario: Callable[[Link], object]) -> dict[str, Any]:
        ours, far = self.pair()
        server = Server(self.options, here=here, fast=True)
        transport = self.served(ours, server)
        transport.repstr = "lean"
        server.makeConnection(transport)
        client = SystemFar(far, tls13=tls13)
        link = Link(server, transport, client)
        self.links.append(link)
        while not client.is_ready:
            self.settle()
        self.assertEqual(link.is_here, here)
        scenario(link)
        self.settle()
        found = self.outcome(link)
        self.links.remove(link)
        return found


class PureTests(TlsCase):
    def test_without_compiled_modules(self) -> None:
        """Without compiled modules all is as in Twisted's way."""
        self.patch(leanreactor, "_LEAN", None)
        self.patch(leanreactor, "_send_now", leanreactor.send_now)
        for version in VERSIONS:
            link = self.connect(True, version, gets=False)
            link.far.unsent += link.far.records(ask(100), ask(100_000))
            self.settle()
            self.assertEqual(self.outcome(link)["answer bytes"], 100_100)
            self.links.remove(link)


class RemotingTests(TlsCase):
    """The same for the connections of our servers."""

    def setUp(self) -> None:
        need_compiled("rmq.runtime._lean", "rmq.remoting._fastpath")
        super().setUp()
        self.table = ResponderTable(Owner())
        self.lane = MarkedLane()
        self.table.add_chunk_lane(self.lane)
        self.closed: list[str] = []

    def admit(self, transport: Any, first: bytes) -> bool:
        transport.startTLS(self.options)
        transport.protocol.dataReceived(first)
        return False

    def remote(self) -> tuple[Any, Far]:
        """Return the server's transport and the client of a connection after its handshake."""
        ours, far = self.pair(tcp=True)
        protocol = RemotingProtocol(
            self.table,
            self.reactor,
            id=1,
            idle_seconds=60.0,
            opened=lambda channel: None,
            closed=lambda channel, reason: self.closed.append(reason),
            admit=self.admit,
        )
        transport = self.served(ours, protocol)
        transport.repstr = "lean"
        protocol.makeConnection(transport)
        client = Far(far, trusting_all(ssl.TLSVersion.TLSv1_3))
        try:
            client.ssl.do_handshake()
        except ssl.SSLWantReadError:
            pass
        self.until(client, lambda: client.ready and transport.protocol._handshakeDone)
        return transport, client

    def until(self, client: Far, condition: Callable[[], object]) -> None:
        for _ in range(1000):
            if condition():
                return
            client.move()
            self.reactor.runUntilCurrent()
            self.reactor.doIteration(0.01)
        self.fail("it does not come")

    def test_is_used(self) -> None:
        """After the handshake lanes are asked with decrypted bytes, and declined requests go to the protocol."""
        transport, client = self.remote()
        self.assertIn("records", transport.__dict__)
        for _ in range(4):
            client.received = b""
            asked = self.lane.asked
            client.unsent += client.records(echo(b"a!", 1) + echo(b"b", 2), echo(b"c!", 3))
            self.until(client, lambda: len(whole_frames(client.received)) == 3)
            self.assertGreater(self.lane.asked, asked)
            self.assertEqual([command.opaque for command in decode_commands(client.received)], [1, 2, 3])
        self.assertEqual(self.lane.taken, 4)
        transport.protocol.wrappedProtocol.channel.close("test")
        self.until(client, lambda: client.end)
        client.socket.close()
        self.until(client, lambda: self.closed)
        self.assertEqual(client.end, "close_notify")

    def test_closed_before_all_is_read(self) -> None:
        """A connection that we close while its client reads slowly ends as soon as the client has read all and left."""
        self.patch(channel, "CLOSE_GRACE_S", 3600.0)
        for here in (True, False):
            if not here:
                self.patch(LeanServer, "decrypt_here", lambda transport: None)
            transport, client = self.remote()
            self.closed.clear()
            client.reads = 0
            served = transport.protocol.wrappedProtocol.channel
            for number in range(1, 100):
                served.write(echo(b"x" * 100_000, number))
                if transport.producerPaused:
                    break
            self.assertNotIn(transport, self.reactor.getReaders())
            served.close("test")
            client.reads = 1 << 20
            self.until(client, lambda client=client: client.end)  # type: ignore[misc]
            self.assertEqual((client.end, len(whole_frames(client.received))), ("close_notify", number))
            client.socket.close()
            self.until(client, lambda: self.closed)
            self.assertEqual(self.closed, ["test"])

    def test_closed_and_sent_on_to(self) -> None:
        """A client that reads nothing and sends on after our close is cut off at MAX_READ_ON_BYTES."""
        self.patch(channel, "CLOSE_GRACE_S", 3600.0)
        self.patch(channel, "MAX_READ_ON_BYTES", 100_000)
        transport, client = self.remote()
        client.reads = 0
        served = transport.protocol.wrappedProtocol.channel
        while not transport.producerPaused:
            served.write(echo(b"x" * 100_000, 1))
        served.close("test")
        client.unsent += client.records(b"y" * 100_000)
        self.until(client, lambda: not client.unsent)
        for _ in range(5):
            self.reactor.doIteration(0)
        self.assertEqual(self.closed, [])
        client.unsent += client.records(b"y")
        self.until(client, lambda: self.closed)
        self.assertEqual(self.closed, ["test"])

    def test_any_cut(self) -> None:
        """Wherever frames are cut into records, and those into reads, it is the same with Twisted's layer alone."""
        seed = SEED
        print(f"\nLEAN TLS frames seed {seed}")
        compiled = self.answers_to_cuts(random.Random(seed))
        self.patch(LeanServer, "decrypt_here", lambda transport: None)
        self.assertEqual(compiled, self.answers_to_cuts(random.Random(seed)), f"seed {seed}")

    def answers_to_cuts(self, chance: random.Random) -> list[tuple[int, bytes | None]]:
        _, client = self.remote()
        asked = 0

        def is_answered() -> bool:
            return len(whole_frames(client.received)) == asked

        for _ in range(40):
            sizes = [chance.choice((0, 5, 20_000)) for _ in range(chance.randint(1, 6))]
            frames = b"".join(echo(b"x" * size + chance.choice((b"", b"!")), asked + n) for n, size in enumerate(sizes))
            asked += len(sizes)
            cuts = sorted(chance.randrange(len(frames)) for _ in range(chance.choice((0, 0, 1, 3))))
            pieces = [frames[a:b] for a, b in zip([0, *cuts], [*cuts, len(frames)], strict=True)]
            data = client.records(*filter(None, pieces))
            cut = chance.randrange(len(data))
            client.unsent += data[:cut]
            self.until(client, lambda: not client.unsent)
            client.unsent += data[cut:]
            if chance.random() < 0.5:
                self.until(client, is_answered)
        self.until(client, is_answered)
        return [(command.opaque, command.body or None) for command in decode_commands(client.received)]


class Lacking:
    """An object without one of its names."""

    def __init__(self, real: Any, name: str) -> None:
        self._real = real
        self._name = name

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return self._real.__dict__  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            raise AttributeError(name)
        return getattr(self._real, name)


class SystemFar(Far):
    """A client by the system's OpenSSL, for what Python's ssl cannot do."""

    def __init__(self, sock: socket.socket, *, tls13: bool) -> None:
        name = ctypes.util.find_library("ssl")
        if name is None:
            missing("the shared library of OpenSSL")
        lib = self._lib = ctypes.CDLL(name)
        for function in (lib.TLS_client_method, lib.SSL_CTX_new, lib.SSL_new):
            function.restype = ctypes.c_void_p
        version = 0x304 if tls13 else 0x303
        self._context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        for what in (123, 124):  # SSL_CTRL_SET_MIN_PROTO_VERSION and ..MAX..
            lib.SSL_CTX_ctrl(self._context, what, ctypes.c_long(version), None)
        self._ssl = ctypes.c_void_p(lib.SSL_new(self._context))
        sock.setblocking(False)
        self.socket = sock
        lib.SSL_set_fd(self._ssl, sock.fileno())
        lib.SSL_set_connect_state(self._ssl)
        self.unsent = self.received = b""
        self.end = ""
        self._buffer = ctypes.create_string_buffer(1 << 20)

    def records(self, *pieces: bytes) -> bytes:
        """Send ``pieces``; nothing is left to be sent."""
        for piece in pieces:
            self._lib.SSL_write(self._ssl, piece, len(piece))
        return b""

    @property
    def is_ready(self) -> bool:
        return bool(self._lib.SSL_is_init_finished(self._ssl))

    def update_keys(self, wants_ours: int) -> None:
        done = self._lib.SSL_key_update(self._ssl, wants_ours), self._lib.SSL_do_handshake(self._ssl)
        assert done == (1, 1), done

    def renegotiate(self) -> None:
        done = self._lib.SSL_renegotiate(self._ssl)
        assert done == 1, done
        self._lib.SSL_do_handshake(self._ssl)

    def read_some(self, most: int) -> None:
        """Read once."""
        size = self._lib.SSL_read(self._ssl, self._buffer, most)
        self.received += self._buffer.raw[: max(size, 0)]

    def move(self) -> bool:
        moved = False
        while not self.end:
            size = self._lib.SSL_read(self._ssl, self._buffer, len(self._buffer))
            if size <= 0:
                error = self._lib.SSL_get_error(self._ssl, size)
                self._lib.ERR_clear_error()
                if error != 2:
                    self.end = str(error)
                return moved
            self.received += self._buffer.raw[:size]
            moved = True
        return moved
