"""
The far end of one connection, without sockets: a protocol of ours on a recording transport.

:class:`Peer` sends commands into the protocol and reads what it wrote. Other packages' tests may use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.remoting.channel import Channel
from rmq.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from rmq.remoting.protocol import Admit, RemotingProtocol, plain_only
from rmq.remoting.responders import ResponderTable
from rmq.wire import fastjson
from rmq.wire.command import ONEWAY, RESPONSE, RemotingCommand, decode_commands, encode_command
from rmq.wire.contract import Contract
from rmq.wire.extfields import encode_ext


@implementer(ITCPTransport)
class RecordingTransport(StringTransport):
    """
    A transport that keeps each write apart and does as Twisted's when a lot is unsent.

    ``unread_limit``: bytes after which the producer is paused; :meth:`read` drains everything and resumes it.
    """

    unread_limit = 65_536
    no_delay = False
    aborted = False

    def __init__(self, host: str = "192.0.2.7", port: int = 40_001) -> None:
        super().__init__(peerAddress=IPv4Address("TCP", host, port))
        self.writes: list[bytes] = []
        self.unread_bytes = 0
        self.producer_paused = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes.append(data)
        self.unread_bytes += len(data)
        if self.producer is not None and self.unread_bytes > self.unread_limit and not self.producer_paused:
            self.producer_paused = True
            self.producer.pauseProducing()

    def read(self) -> bytes:
        """Take everything that was written, as a peer that reads."""
        data = self.value()
        self.clear()
        self.unread_bytes = 0
        if self.producer_paused and self.producer is not None:
            self.producer_paused = False
            self.producer.resumeProducing()
        return bytes(data)

    def abortConnection(self) -> None:
        self.aborted = True
        self.disconnecting = True

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.no_delay = bool(enabled)

    def getTcpNoDelay(self) -> bool:
        return self.no_delay

    def setTcpKeepAlive(self, enabled: bool) -> None:
        raise AssertionError("nobody asks for keep-alive")

    def getTcpKeepAlive(self) -> bool:
        return False

    def loseWriteConnection(self) -> None:
        raise AssertionError("nobody half-closes")


class LeanTransport(RecordingTransport):
    """A transport of the reactor ``rmq-lean``, whose ``fast_path`` is asked before its protocol."""

    lean = True
    fast_path: Any = None
    #: chunks that the protocol never saw
    answered_fast = 0


@attrs.define
class Peer:
    """A peer that has just connected to ``responders``; ``opened`` and ``closed`` record what the protocol told."""

    responders: ResponderTable = attrs.field(factory=ResponderTable)
    clock: Clock = attrs.field(factory=Clock)
    idle_seconds: float = 120.0
    admit: Admit = plain_only
    limits: RemotingLimits = DEFAULT_LIMITS
    grew: Callable[[int], object] | None = None
    transport: RecordingTransport = attrs.field(factory=RecordingTransport)
    opened: list[Channel] = attrs.field(factory=list)
    closed: list[tuple[Channel, str]] = attrs.field(factory=list)
    protocol: RemotingProtocol = attrs.field(init=False)
    _opaque: int = 1000

    def __attrs_post_init__(self) -> None:
        self.protocol = RemotingProtocol(
            self.responders,
            self.clock,
            id=1,
            idle_seconds=self.idle_seconds,
            opened=self.opened.append,
            closed=lambda channel, reason: self.closed.append((channel, reason)),
            admit=self.admit,
            limits=self.limits,
            grew=self.grew,
        )
        self.protocol.makeConnection(self.transport)

    @property
    def channel(self) -> Channel:
        return self.protocol.channel

    @property
    def is_cut(self) -> bool:
        """True when our side has closed the connection."""
        return bool(self.transport.disconnecting)

    def send(self, data: bytes) -> None:
        """Let our side read ``data``."""
        transport = self.transport
        if (
            isinstance(transport, LeanTransport)
            and transport.fast_path is not None
            and not (transport.producer_paused or transport.disconnecting)
        ):
            answers = transport.fast_path(data)
            if answers is not None:
                transport.answered_fast += 1
                if answers:
                    transport.write(answers)
                return
        self.protocol.dataReceived(data)

    def tell(self, *commands: RemotingCommand) -> None:
        """Let our side read commands, in one chunk."""
        self.send(b"".join(map(encode_command, commands)))

    def received(self) -> list[RemotingCommand]:
        """Read the commands that our side has written since the last call."""
        return decode_commands(self.transport.read())

    def ask(self, code: int, body: bytes | None = None, *, version: int = 409, **ext: str) -> RemotingCommand:
        """Send one request and return its answer; an AssertionError when there is not exactly one."""
        self._opaque += 1
        command = RemotingCommand(code, self._opaque, version=version, ext_fields=ext or None, body=body)
        self.tell(command)
        (answer,) = self.received()
        assert answer.opaque == self._opaque, answer
        assert answer.flag == RESPONSE, answer
        return answer

    def tell_oneway(self, code: int, body: bytes | None = None, **ext: str) -> None:
        """Send one one-way request."""
        self._opaque += 1
        self.tell(RemotingCommand(code, self._opaque, ONEWAY, ext_fields=ext or None, body=body))

    def answer(
        self,
        request: RemotingCommand,
        code: int = 0,
        header: msgspec.Struct | None = None,
        body: Any = None,
        **ext: str,
    ) -> None:
        """Answer a request that our side has sent."""
        fields = encode_ext(header, ext) if header is not None else ext or None
        raw = body if body is None or isinstance(body, bytes) else fastjson.encode(body)
        self.tell(RemotingCommand(code, request.opaque, RESPONSE, ext_fields=fields, body=raw))

    def lose(self, *, clean: bool = True) -> None:
        """Close the connection from the far side."""
        self.protocol.connectionLost(Failure(ConnectionDone() if clean else ConnectionLost("reset")))


def request(
    contract: Contract[Any, Any, Any, Any],
    header: msgspec.Struct | None = None,
    body: msgspec.Struct | bytes | None = None,
    *,
    opaque: int = 1,
    flag: int = 0,
) -> RemotingCommand:
    """Return the command that asks for ``contract``."""
    raw = body if body is None or isinstance(body, bytes) else fastjson.encode(body)
    return RemotingCommand(
        contract.code, opaque, flag, ext_fields=encode_ext(header) if header is not None else None, body=raw
    )


def one_turn(pieces: list[tuple[Peer, bytes]]) -> list[int]:
    """
    Let peers with lean transports send in the same turn of the reactor, each one piece.

    Returns the numbers of the pieces in the order in which they were processed.
    """
    numbers = {id(peer.transport): number for number, (peer, _) in enumerate(pieces)}
    order: list[int] = []
    unfinished: list[Any] = []

    def settle(peer: Peer, data: bytes, answer: bytes | None) -> None:
        order.append(numbers[id(peer.transport)])
        if answer is None:
            peer.protocol.dataReceived(data)
        elif answer:
            peer.transport.write(answer)

    for peer, data in pieces:
        assert isinstance(peer.transport, LeanTransport)
        is_usual = not (peer.transport.producer_paused or peer.transport.disconnecting)
        answer = peer.transport.fast_path(data, True) if is_usual else None
        if answer is None or isinstance(answer, bytes):
            settle(peer, data, answer)
        elif answer not in unfinished:
            unfinished.append(answer)
    by_transport = {id(peer.transport): peer for peer, _ in pieces}
    for each in unfinished:
        # finish() has processed what it has answers for, before we get to the rest
        for path, data, answer in sorted(each.finish(), key=lambda found: found[2] is None):
            settle(by_transport[id(path.transport)], data, answer)
    return order
