"""
From the bytes of a transport to the responder table and back, with one write for all replies of a read.

The replies to one chunk of input are collected and written at once. Back-pressure: while the peer does not read its
replies, the transport pauses us and we do not read its requests, so neither requests nor replies pile up. A peer that
violates the protocol loses its own connection only.

Java: NettyRemotingServer.NettyServerHandler, NettyConnectManageHandler, IdleStateHandler
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IHandshakeListener, IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.remoting.channel import Channel
from rmq.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from rmq.remoting.responders import MAX_COLLECTED_BYTES, OVERLOAD_REMARK, ResponderTable
from rmq.runtime.clock import steady_ms
from rmq.runtime.logs import LogThrottle
from rmq.runtime.tls.context import loss_text
from rmq.wire import command as wire
from rmq.wire.codes import ResponseCode
from rmq.wire.command import ONEWAY, RemotingCommand, decode_command, encode_reply
from rmq.wire.compiled import load
from rmq.wire.frames import Frame, FrameDecoder, ProtocolError

#: limit of requests of one connection without a reply; further ones are answered with code 2
MAX_WAITING_ANSWERS = 65_535

#: seconds; a timer that fires later than this shows that the process or the machine was stalled
LATE_CHECK_S = 1.0

#: reason of an end without an error
CLOSED = "closed by the peer"

_compiled: Any = load("rmq.remoting._fastpath")
likely_code: Callable[[bytes, int], int] = wire.likely_code if _compiled is None else _compiled.likely_code
TLS_HANDSHAKE = 0x16

#: Called once with the transport and the first bytes of a connection. True: they are frames. False: they were consumed,
#: and frames come later (TLS). Raises ProtocolError for a peer that is refused.
Admit = Callable[[Any, bytes], bool]


def plain_only(transport: Any, first: bytes) -> bool:
    """Refuse TLS."""
    if first[0] == TLS_HANDSHAKE:
        raise ProtocolError("it begins a TLS handshake, which this port does not offer")
    return True


def why_lost(reason: Failure, _heard: bool) -> str:
    """Return why a connection ended, for people."""
    return CLOSED if reason.check(ConnectionDone) else loss_text(reason.value)


@implementer(IHandshakeListener, IPushProducer)
class RemotingProtocol(Protocol):
    """
    One connection of a server or a client.

    ``opened`` and ``closed`` are called with its channel, once each. ``idle_seconds`` after the last byte in either
    direction the connection is closed, and also when a frame is incomplete for twice that time. ``grew`` is called with
    the growth of the bytes that are held for this slow peer. ``why_lost`` returns the reason of an end, as text, of the
    failure and whether the peer has sent anything; ``throttle`` limits the log lines of peers that ``admit`` refuses.
    """

    _log = Logger()

    def __init__(
        self,
        responders: ResponderTable,
        clock: IReactorTime,
        *,
        id: int,
        idle_seconds: float,
        opened: Callable[[Channel], object],
        closed: Callable[[Channel, str], object],
        admit: Admit = plain_only,
        limits: RemotingLimits = DEFAULT_LIMITS,
        grew: Callable[[int], object] | None = None,
        why_lost: Callable[[Failure, bool], str] = why_lost,
        throttle: LogThrottle | None = None,
    ) -> None:
        self._responders = responders
        self._clock = clock
        self._id = id
        self._idle_seconds = idle_seconds
        self._opened = opened
        self._closed = closed
        self._admit = admit
        self._limits = limits
        self._grew = grew
        self._why_lost = why_lost
        self._throttle = LogThrottle() if throttle is None else throttle
        self._decoder = FrameDecoder()
        #: the unfinished frame at the last idle check
        self._seen_unfinished = 0
        self._idle: IDelayedCall | None = None
        self._sniffed = False
        #: True while the next byte begins a frame that can be answered at once: admitted, none unfinished or held back
        self.at_frame_start = False
        self._paused = False
        #: frames that wait until the peer has read earlier replies
        self._held: list[Frame] = []
        #: replies of the current chunk, None between chunks
        self._collected: list[bytes] | None = None
        self._collected_bytes = 0
        self.channel: Channel

    # Twisted calls these

    def connectionMade(self) -> None:
        transport: Any = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self.channel = Channel(transport, self._clock, self._id, self._limits, self._decoder, self._grew)
        transport.registerProducer(self, True)
        self._idle = self._clock.callLater(self._idle_seconds, self._check_idle)
        if _compiled is not None and self._responders.chunk_lanes and getattr(transport, "lean", False):
            # the reactor asks it before this protocol
            lanes = self._responders.fast_lanes(_compiled.Lanes)
            transport.fast_path = _compiled.FastPath(self, lanes, self._clock.seconds)
        self._opened(self.channel)

    def handshakeCompleted(self) -> None:
        """TLS is ready: the reactor may decrypt itself, where it can."""
        decrypt_here = getattr(self.transport, "decrypt_here", None)
        if decrypt_here is not None:
            decrypt_here()

    def dataReceived(self, data: bytes) -> None:
        channel = self.channel
        if not channel.is_open:
            channel.discarded(len(data))
            return
        channel.last_active_s = self._clock.seconds()
        if not self._sniffed:
            self._sniffed = True
            try:
                if not self._admit(self.transport, data):
                    return
            except ProtocolError as error:
                self._refuse_peer(str(error))
                return
        self.receive(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._idle is not None and self._idle.active():
            self._idle.cancel()
        self._held.clear()
        text = self._why_lost(reason, self._sniffed)
        self.channel.lost(text)
        self._closed(self.channel, self.channel.close_reason or text)

    def pauseProducing(self) -> None:
        """The peer reads too slowly: stop reading from it."""
        self._paused = True
        self.at_frame_start = False
        self.channel.paused()
        transport: Any = self.transport
        transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Everything is sent: process held frames, then read again."""
        self._paused = False
        self.channel.resumed()
        held, self._held = self._held, []
        # A transport that sends at once may call this within a write: then the current chunk continues.
        if held and self._collected is None:
            self._run(held)
        self._settle()
        if not self._paused and self.channel.is_open:
            transport: Any = self.transport
            transport.resumeProducing()

    def stopProducing(self) -> None:
        """The transport is closing; connectionLost follows."""

    # one chunk

    def receive(self, data: bytes, with_lanes: bool = True) -> None:
        """Answer received bytes, without lanes if one has just declined the front of ``data``."""
        whole: bytes | None = None
        if with_lanes and self._responders.chunk_lanes and not self._held:
            whole = self._decoder.take_back(data)
        if whole is None:
            self._cut(data)
        else:
            self._run_lanes(whole)
        self._settle()

    def _settle(self) -> None:
        self.at_frame_start = not (self._paused or self._held or self._decoder.buffered_bytes)

    def _run_lanes(self, data: bytes) -> None:
        """
        Let lanes answer the front of ``data``, with a write for each, then continue with the rest.

        There is no unfinished and no held frame.
        """
        channel, stats, lanes = self.channel, self._responders.stats, self._responders.chunk_lanes
        position, started_s = 0, channel.last_active_s
        while position < len(data) and channel.is_open and not self._paused:
            lane = lanes.get(likely_code(data, position))
            if lane is None:
                break
            answers: list[bytes] = []
            try:
                stop, count = lane(data, position, answers, channel)
            except Exception as ours:  # noqa: BLE001 - costs this connection, not the reactor's other ones
                self.lane_failed(answers, ours)
                return
            if count:
                if answers:  # none to one-way requests
                    channel.write(b"".join(answers))
                now_s = channel.last_active_s
                stats.observe(lane.code, now_s - started_s, count)
                started_s = now_s
            if stop == position:
                break
            position = stop
        if position < len(data) and channel.is_open:
            self._cut(data[position:] if position else data, hold=self._paused)

    def lane_failed(self, answers: list[bytes], error: Exception) -> None:
        """Send the replies made before a lane raised, and close the connection; only in an except block."""
        self._log.failure("{peer}: received bytes could not be processed", peer=self.channel.peer)
        self.channel.write(b"".join(answers))
        self._drop(f"internal error: {error}")

    def _cut(self, data: bytes, *, hold: bool = False) -> None:
        """Cut ``data`` into frames and answer them; keep them if ``hold`` or if other frames are held."""
        try:
            frames = self._decoder.receive(data)
        except ProtocolError as error:
            self._drop(str(error))
            return
        if self._held or hold:
            # The transport was paused and delivered bytes that it had already read.
            self._held += frames
        elif frames:
            self._run(frames)
        # After whole frames another one may have begun; bytes held before are counted already.
        if self._grew is not None and self._decoder.buffered_bytes and self.channel.is_open:
            self._grew(min(len(data), self._decoder.buffered_bytes))

    def _run(self, frames: list[Frame]) -> None:
        """Answer ``frames``, with one write for all replies unless they are long."""
        self._collected = []
        self._collected_bytes = 0
        error: str | None = None
        try:
            for number, frame in enumerate(frames, 1):
                self._take(frame)
                if self._collected_bytes >= MAX_COLLECTED_BYTES:
                    self._flush()
                    if self._paused and number < len(frames):
                        self._held = frames[number:]
                        break
            else:
                self._decoder.check()
        except ProtocolError as broken:
            error = str(broken)
        except Exception as ours:  # noqa: BLE001 - costs this connection, not the reactor's other ones
            self._log.failure("{peer}: a frame could not be processed", peer=self.channel.peer)
            error = f"internal error: {ours}"
        self._flush()
        self._collected = None
        if error is not None:
            self._drop(error)

    def _take(self, frame: Frame) -> None:
        """Answer one request, or complete the pending request of a reply."""
        channel = self.channel
        responders = self._responders
        command = decode_command(frame)
        if command.flag & 1:
            channel.received(command)
            return
        if channel.waiting_answers >= MAX_WAITING_ANSWERS:
            self._refuse(command)
            return
        seconds = self._clock.seconds
        started_s = seconds()
        written = responders.dispatch(command, channel)
        if isinstance(written, Deferred):
            channel.waiting_answers += 1
            written.addCallback(self._write_late, command.code, started_s)
            return
        responders.stats.observe(command.code, seconds() - started_s)
        if written is not None:
            self._write(written)

    def _refuse(self, command: RemotingCommand) -> None:
        self._responders.stats.refused(command.code, ResponseCode.SYSTEM_BUSY)
        if not command.flag & ONEWAY:
            self._write(encode_reply(command, ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK))

    def _write_late(self, answer: bytes | None, code: int, started_s: float) -> None:
        self.channel.waiting_answers -= 1
        self._responders.stats.observe(code, self._clock.seconds() - started_s)
        if answer is not None:
            self._write(answer)

    def _write(self, answer: bytes) -> None:
        if self._collected is None:
            self.channel.write(answer)
        else:
            self._collected.append(answer)
            self._collected_bytes += len(answer)

    def _flush(self) -> None:
        if self._collected:
            data = b"".join(self._collected)
            self._collected.clear()
            self._collected_bytes = 0
            self.channel.write(data)

    # the end

    def _drop(self, why: str) -> None:
        self._log.warn("closing {peer}: {why}", peer=self.channel.peer, why=why)
        self._held.clear()
        self.channel.close(why)

    def _refuse_peer(self, why: str) -> None:
        """Close the connection; with a log line a minute for each host and reason, since such a peer tries again."""
        host, _ = self.channel.peer_host
        suppressed = self._throttle.admit((host, why), steady_ms(self._clock))
        if suppressed is not None:
            self._log.warn(
                "closing {peer}: {why} ({suppressed} identical messages of this host suppressed)",
                peer=self.channel.peer,
                why=why,
                suppressed=suppressed,
            )
        self.channel.close(why)

    def _check_idle(self, again: bool = False) -> None:
        """
        Close an idle connection; otherwise check again when it could be idle.

        A late check shows that the process was stalled: it checks ``again`` after pending bytes have been read.
        """
        self._idle = None
        channel = self.channel
        if not channel.is_open:
            return
        rest = channel.last_active_s + self._idle_seconds - self._clock.seconds()
        if rest < -LATE_CHECK_S and not again:
            self._idle = self._clock.callLater(LATE_CHECK_S, self._check_idle, True)
        elif rest <= 0:
            self._log.info("closing {peer}: idle for {seconds} s", peer=channel.peer, seconds=self._idle_seconds)
            channel.close(f"idle for {self._idle_seconds:g} s")
        elif self._decoder.buffered_bytes and self._decoder.unfinished == self._seen_unfinished:
            self._drop(
                f"it sent {self._decoder.buffered_bytes} bytes of a frame and has not completed it for "
                f"{self._idle_seconds:g} s and more"
            )
        else:
            self._seen_unfinished = self._decoder.unfinished
            self._idle = self._clock.callLater(rest, self._check_idle)
