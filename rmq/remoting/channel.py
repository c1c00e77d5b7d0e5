"""
One connection for the rest of the program: replies, own requests, close.

Java: io.netty.channel.Channel, NettyRemotingAbstract#invokeSyncImpl
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IDelayedCall, INegotiated, IReactorTime, ISSLTransport
from twisted.logger import Logger

from rmq.errors import RequestFailed, RequestTimeout, Unreachable
from rmq.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from rmq.runtime.clock import DeadlineTimer
from rmq.wire.codes import named
from rmq.wire.command import ONEWAY, RemotingCommand, encode_command
from rmq.wire.contract import Contract
from rmq.wire.correlator import Correlator, TooManyWaiting
from rmq.wire.exchange import Response, read_response, request_command
from rmq.wire.frames import FrameDecoder, ProtocolError

#: unsent bytes of a peer that does not read; beyond that one-way requests to it are dropped
MAX_UNSENT_ONEWAY_BYTES = 1024 * 1024
#: seconds that a closing connection has to send the rest
CLOSE_GRACE_S = 5.0
#: bytes that are read from a closed TLS connection until the end of its peer; a peer that sends more is cut off
MAX_READ_ON_BYTES = 16 * 1024 * 1024

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")
Closed = Callable[["Channel", str], object]


class Done(Protocol):
    """Gets the answer to a request, or the error in its place; a Deferred is one."""

    def callback(self, result: RemotingCommand, /) -> object: ...

    def errback(self, fail: Exception, /) -> object: ...


class _Call:
    """A request that waits for its answer."""

    __slots__ = ("code", "done", "timeout_ms")

    def __init__(self, code: int, timeout_ms: float, done: Done) -> None:
        self.code = code
        self.timeout_ms = timeout_ms
        self.done = done


class Channel:
    """
    A connection, from its start until it is lost; created by the protocol only.

    ``local_ip`` is our address, ``peer`` the other side's ``ip:port``, ``peer_host`` its raw address (4 or 16 bytes; an
    IPv4 address inside an IPv6 one counts as IPv4) with the port, ``id`` a number that no other channel of its server
    or client has.

    When the connection is lost, each pending :meth:`invoke` fails with Unreachable, then the callbacks of
    :meth:`when_closed` run.
    """

    _log = Logger()

    def __init__(
        self,
        transport: Any,
        clock: IReactorTime,
        id: int,
        limits: RemotingLimits = DEFAULT_LIMITS,
        decoder: FrameDecoder | None = None,
        grew: Callable[[int], object] | None = None,
    ) -> None:
        self.id = id
        self.peer, self.peer_host = describe_peer(transport.getPeer())
        self.local_ip = describe_peer(transport.getHost())[0].rpartition(":")[0]
        #: requests of this peer whose answers come later, see `rmq.remoting.protocol.MAX_WAITING_ANSWERS`
        self.waiting_answers = 0
        #: time of the last read or write, in seconds of the clock
        self.last_active_s = clock.seconds()
        self._transport = transport
        self._clock = clock
        self._calls: Correlator[_Call] = Correlator()
        #: created with the first request: most channels of a server never send one
        self._timer: DeadlineTimer | None = None
        self._cut: IDelayedCall | None = None
        self._closed_callbacks: list[Closed] = []
        self._reason: str | None = None
        self._lost = False
        self._paused = False
        self._unsent_bytes = 0
        #: the rest of MAX_READ_ON_BYTES once a closed connection is read on
        self._read_on_bytes: int | None = None
        self._most_unsent_bytes = limits.server_channel_max_unsent_bytes
        self._decoder = decoder
        self._grew = grew
        #: signs our own requests to this peer, before they are sent
        self.sign: Callable[[RemotingCommand], None] | None = None

    def __repr__(self) -> str:
        return f"<Channel {self.id} {self.peer}>"

    @property
    def is_open(self) -> bool:
        """False once the connection is lost or :meth:`close` was called; then nothing is sent."""
        return self._reason is None

    @property
    def close_reason(self) -> str | None:
        """Why the channel is closed, None while it is open."""
        return self._reason

    @property
    def held_bytes(self) -> int:
        """The bytes held for a slow peer: unread replies and an incomplete frame."""
        return self._unsent_bytes + (0 if self._decoder is None else self._decoder.buffered_bytes)

    # out

    def write(self, frames: bytes) -> None:
        """
        Send whole frames, as far as the channel is open.

        A peer that does not read is disconnected at serverChannelMaxUnsentBytes.
        """
        if self._reason is not None:
            return
        self.last_active_s = self._clock.seconds()
        self._transport.write(frames)
        if self._paused:
            self._unsent_bytes += len(frames)
            if self._unsent_bytes > self._most_unsent_bytes:
                self._log.warn(
                    "closing {peer}: it does not read its replies, {unsent_bytes} bytes are unsent",
                    peer=self.peer,
                    unsent_bytes=self._unsent_bytes,
                )
                self.abort("does not read its replies")
            elif self._grew is not None:
                self._grew(len(frames))

    def send_command(self, command: RemotingCommand) -> None:
        """Send a command as it is; a ProtocolError when it is too long."""
        self.write(encode_command(command))

    def oneway(self, contract: Contract[H, B, Any, Any], header: H, body: B) -> bool:
        """
        Send a one-way request.

        False when it was dropped: the channel is closed, or MAX_UNSENT_ONEWAY_BYTES are unsent.
        """
        if self._reason is not None or self._unsent_bytes > MAX_UNSENT_ONEWAY_BYTES:
            return False
        command = request_command(contract, header, body, opaque=0, flag=ONEWAY)
        if self.sign is not None:
            self.sign(command)
        self.send_command(command)
        return True

    def invoke(
        self, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_ms: float
    ) -> Deferred[Response[RH, RB]]:
        """
        Send a request and wait for its answer, at most ``timeout_ms``.

        Fails with Refused, RequestTimeout, Unreachable or BadAnswer.
        """
        try:
            command = request_command(contract, header, body, opaque=0)
            done = self.request(command, timeout_ms=timeout_ms)
        except ProtocolError as error:
            return fail(RequestFailed(self.peer, f"request {named(contract.code)} cannot be sent: {error}"))
        return done.addCallback(lambda answer: read_response(contract, answer, self.peer))

    def request(self, command: RemotingCommand, *, timeout_ms: float) -> Deferred[RemotingCommand]:
        """
        Send ``command`` under an opaque of this connection and wait for the answer, whatever its code.

        Fails with RequestTimeout or Unreachable. A ProtocolError when the command is too long.
        """
        opaque = -1

        def signed(number: int) -> bytes:
            nonlocal opaque
            command.opaque = opaque = number
            if self.sign is not None:
                self.sign(command)
            return encode_command(command)

        def give_up(_: object) -> None:
            self._calls.forget(opaque)

        done: Deferred[RemotingCommand] = Deferred(give_up)
        self.call(command.code, signed, done, timeout_ms=timeout_ms)
        return done

    def call(self, code: int, frame_of: Callable[[int], bytes], done: Done, *, timeout_ms: float) -> None:
        """As :meth:`request`, for a request whose frame ``frame_of`` makes of the opaque; it is not signed."""
        if self._reason is not None:
            done.errback(Unreachable(self.peer, f"the connection to {self.peer} is closed: {self._reason}"))
            return
        deadline = self._clock.seconds() + timeout_ms / 1000
        try:
            opaque = self._calls.add(_Call(code, timeout_ms, done), deadline)
        except TooManyWaiting as error:
            done.errback(Unreachable(self.peer, f"{self.peer} does not answer: {error}"))
            return
        frame = b""
        try:
            frame = frame_of(opaque)
        finally:
            if not frame:
                self._calls.forget(opaque)
        if self._timer is None:
            self._timer = DeadlineTimer(self._clock, self._calls.next_deadline, self._expire)
        self._timer.arm()
        self.write(frame)

    def close(self, reason: str) -> None:
        """
        Close the connection once everything written is sent, CLOSE_GRACE_S at most.

        Pending requests fail at once.
        """
        if self._reason is not None:
            return
        self._end(reason)
        self._transport.unregisterProducer()
        if self._paused and _is_tls(self._transport):
            # It ends when the peer's end is read, and no producer resumes reading any more. A plain connection ends
            # when all is sent: of a peer that does not read, it is not read for nothing.
            self._read_on_bytes = MAX_READ_ON_BYTES
            self._transport.resumeProducing()
        self._cut = self._clock.callLater(CLOSE_GRACE_S, self._transport.abortConnection)
        self._transport.loseConnection()

    def abort(self, reason: str) -> None:
        """Close the connection without sending the rest."""
        if self._reason is None:
            self._end(reason)
        if not self._lost:
            self._transport.abortConnection()

    def when_closed(self, callback: Closed) -> None:
        """
        Call ``callback(channel, reason)`` once the connection is lost; at once when it is already.

        A callback that raises is logged; the others still run.
        """
        if self._lost:
            self._call_closed(callback)
        else:
            self._closed_callbacks.append(callback)

    # in: for the protocol

    def received(self, answer: RemotingCommand) -> None:
        """Complete the request of an answer; late and unknown answers are dropped."""
        call = self._calls.answered(answer.opaque)
        if call is None:
            self._log.debug(
                "{peer} answered {opaque}, which is not pending (late or unknown)", peer=self.peer, opaque=answer.opaque
            )
            return
        call.done.callback(answer)

    def discarded(self, size: int) -> None:
        """Bytes came after :meth:`close`: a peer that sends without end is not read until CLOSE_GRACE_S is over."""
        if self._read_on_bytes is not None:
            self._read_on_bytes -= size
            if self._read_on_bytes < 0:
                self.abort("sends on")

    def paused(self) -> None:
        """The transport is full: count unsent bytes from now on."""
        self._paused = True

    def resumed(self) -> None:
        """The transport has sent everything."""
        self._paused = False
        self._unsent_bytes = 0

    def lost(self, reason: str) -> None:
        """The connection is gone; ``reason`` counts unless :meth:`close` gave one."""
        if self._lost:
            return
        self._lost = True
        self._end(reason)
        if self._cut is not None and self._cut.active():
            self._cut.cancel()
        callbacks, self._closed_callbacks = self._closed_callbacks, []
        for callback in callbacks:
            self._call_closed(callback)

    def _end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in self._calls.close():
            call.done.errback(
                Unreachable(
                    self.peer,
                    f"the connection to {self.peer} closed before request {named(call.code)} was answered: {reason}",
                )
            )

    def _call_closed(self, callback: Closed) -> None:
        # maybeDeferred only to have exceptions caught and logged
        maybeDeferred(callback, self, self._reason or "").addErrback(
            lambda failure: self._log.failure("a callback of {peer}'s end failed", failure, peer=self.peer)
        )

    def _expire(self, now_s: float) -> None:
        for call in self._calls.expire(now_s):
            text = f"{self.peer} did not answer request {named(call.code)} within {call.timeout_ms:.0f} ms"
            call.done.errback(RequestTimeout(self.peer, text))


def _is_tls(transport: Any) -> bool:
    """Return whether a transport speaks TLS: one on which it was started, or a layer of its own."""
    return bool(ISSLTransport.providedBy(transport) or INegotiated.providedBy(transport))


def describe_peer(address: Any) -> tuple[str, tuple[bytes, int]]:
    """Return ``ip:port`` and the raw form of a Twisted address; 0.0.0.0:0 for one without ip."""
    host, port = getattr(address, "host", "0.0.0.0"), getattr(address, "port", 0)
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return f"{host}:{port}", (b"\0\0\0\0", port)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return f"{ip}:{port}", (ip.packed, port)
