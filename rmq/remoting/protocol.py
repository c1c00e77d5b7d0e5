"""
The shell between a transport and the responder table: bytes in, one write of answers out.

Everything that a chunk of input asks for is collected and written at once. When the peer does not read its answers, the
transport asks us to pause, and we stop reading its requests until it has caught up; so neither its questions nor our
answers pile up. A peer that breaks the protocol loses its connection, and nobody else anything.

Java: NettyRemotingServer.NettyServerHandler, NettyConnectManageHandler, IdleStateHandler
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.remoting.channel import Channel
from rmq.remoting.limits import DEFAULT_LIMITS, RemotingLimits
from rmq.remoting.responders import MAX_COLLECTED_BYTES, ResponderTable
from rmq.runtime.tls import loss_text
from rmq.wire.codes import ResponseCode
from rmq.wire.command import ONEWAY, RemotingCommand, decode_command, encode_reply, likely_code
from rmq.wire.compiled import load
from rmq.wire.frames import Frame, FrameDecoder, ProtocolError

#: requests of one connection that may wait for their answers at a time; beyond that they are answered with code 2
MAX_WAITING_ANSWERS = 65_535

#: seconds; a timer that goes off so much later than it should was not served in time, by this process or this machine
LATE_CHECK_S = 1.0

_direct: Any = load("rmq.remoting._direct")
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"
TLS_HANDSHAKE = 0x16

#: Asked once with the transport and the first bytes of a connection. True: they are frames. False: they were taken, and
#: what they mean comes later (TLS). Raises ProtocolError for a peer that is not wanted.
Admit = Callable[[Any, bytes], bool]


def plain_only(transport: Any, first: bytes) -> bool:
    """Let no TLS in."""
    if first[0] == TLS_HANDSHAKE:
        raise ProtocolError("it begins a TLS handshake, which this port does not offer")
    return True


@implementer(IPushProducer)
class RemotingProtocol(Protocol):
    """
    One connection of a server or a client.

    ``opened`` and ``closed`` are called with its channel, once each. ``idle_seconds`` after the last byte in either
    direction the connection is closed, and also when a frame that has begun is not complete after twice that time.
    ``grew`` is told the bytes that are kept for this peer because it is slow.
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
        self._decoder = FrameDecoder()
        #: the unfinished frame that the last look for idleness found
        self._seen_unfinished = 0
        self._idle: IDelayedCall | None = None
        self._sniffed = False
        self._paused = False
        #: frames of a chunk whose answers have to wait until the peer has read others
        self._held: list[Frame] = []
        #: answers of the chunk at hand, None between chunks
        self._collected: list[bytes] | None = None
        self._collected_bytes = 0
        self._waiting_answers = 0
        self.channel: Channel

    # Twisted calls these

    def connectionMade(self) -> None:
        transport: Any = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self.channel = Channel(transport, self._clock, self._id, self._limits, self._decoder, self._grew)
        transport.registerProducer(self, True)
        self._idle = self._clock.callLater(self._idle_seconds, self._check_idle)
        lanes = self._responders.chunk_lanes
        if _direct is not None and lanes and getattr(transport, "lean", False):
            # the reactor asks it before us
            transport.direct = _direct.Direct(self, lanes)
        self._opened(self.channel)

    def dataReceived(self, data: bytes) -> None:
        channel = self.channel
        if not channel.is_open:
            return
        channel.last_active_s = self._clock.seconds()
        if not self._sniffed:
            self._sniffed = True
            try:
                if not self._admit(self.transport, data):
                    return
            except ProtocolError as error:
                self._drop(str(error))
                return
        if self._responders.chunk_lanes and not self._held and (whole := self._decoder.take_back(data)) is not None:
            self.run_lanes(whole)
        else:
            self.cut(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._idle is not None and self._idle.active():
            self._idle.cancel()
        self._held.clear()
        text = "closed by the peer" if reason.check(ConnectionDone) else loss_text(reason.value)
        self.channel.lost(text)
        self._closed(self.channel, self.channel.close_reason or text)

    def pauseProducing(self) -> None:
        """The peer reads too slowly: read nothing more of it."""
        self._paused = True
        self.channel.paused()
        transport: Any = self.transport
        transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Everything is sent: go on with what was held back, then with reading."""
        self._paused = False
        self.channel.resumed()
        held, self._held = self._held, []
        # A transport that sends at once may call us from within a write: then the chunk at hand just goes on.
        if held and self._collected is None:
            self._run(held)
        if not self._paused and self.channel.is_open:
            transport: Any = self.transport
            transport.resumeProducing()

    def stopProducing(self) -> None:
        """The transport is going; connectionLost follows."""

    # one chunk

    def run_lanes(self, data: bytes) -> None:
        """
        Have lanes answer what they can at the front of ``data``, a write for each, and go on with the rest.

        No frame is unfinished and none held back.
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
                channel.write(b"".join(answers))
                now_s = channel.last_active_s
                stats.observe(lane.code, now_s - started_s, count)
                started_s = now_s
            if stop == position:
                break
            position = stop
        if position < len(data) and channel.is_open:
            self.cut(data[position:] if position else data, hold=self._paused)

    def lane_failed(self, answers: list[bytes], error: Exception) -> None:
        """Send what was answered before a lane raised, and end the connection; while the exception is handled."""
        self._log.failure("{peer}: received bytes could not be worked on", peer=self.channel.peer)
        self.channel.write(b"".join(answers))
        self._drop(f"our own fault: {error}")

    def cut(self, data: bytes, *, hold: bool = False) -> None:
        """Cut ``data`` into frames and have them answered; only kept when ``hold`` says so or others are kept."""
        try:
            frames = self._decoder.receive(data)
        except ProtocolError as error:
            self._drop(str(error))
            return
        if self._held or hold:
            # The transport was told to pause and delivered what it had already read.
            self._held += frames
        elif frames:
            self._run(frames)
        # Behind whole frames, too, another one may have begun; what was kept before is counted already.
        if self._grew is not None and self._decoder.buffered_bytes and self.channel.is_open:
            self._grew(min(len(data), self._decoder.buffered_bytes))

    def _run(self, frames: list[Frame]) -> None:
        """Have ``frames`` answered and write the answers, one write for all unless they are long."""
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
            self._log.failure("{peer}: a frame could not be worked on", peer=self.channel.peer)
            error = f"our own fault: {ours}"
        self._flush()
        self._collected = None
        if error is not None:
            self._drop(error)

    def _take(self, frame: Frame) -> None:
        """Have one frame answered, or hand it to who waits for it."""
        channel = self.channel
        responders = self._responders
        command = decode_command(frame)
        if command.flag & 1:
            channel.received(command)
            return
        if self._waiting_answers >= MAX_WAITING_ANSWERS:
            self._refuse(command)
            return
        seconds = self._clock.seconds
        started_s = seconds()
        written = responders.dispatch(command, channel)
        if isinstance(written, Deferred):
            self._waiting_answers += 1
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
        self._waiting_answers -= 1
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
        self._log.warn("{peer} is disconnected: {why}", peer=self.channel.peer, why=why)
        self._held.clear()
        self.channel.close(why)

    def _check_idle(self, again: bool = False) -> None:
        """
        Close when nothing moved for idle_seconds, else look again when that could next be so.

        A check that comes late finds a process that stood still: it looks ``again`` after what waits has been read.
        """
        self._idle = None
        channel = self.channel
        if not channel.is_open:
            return
        rest = channel.last_active_s + self._idle_seconds - self._clock.seconds()
        if rest < -LATE_CHECK_S and not again:
            self._idle = self._clock.callLater(LATE_CHECK_S, self._check_idle, True)
        elif rest <= 0:
            self._log.info("{peer} is idle for {seconds} s and closed", peer=channel.peer, seconds=self._idle_seconds)
            channel.close(f"idle for {self._idle_seconds:g} s")
        elif self._decoder.buffered_bytes and self._decoder.unfinished == self._seen_unfinished:
            self._drop(
                f"it sent {self._decoder.buffered_bytes} bytes of a frame and has not completed it for "
                f"{self._idle_seconds:g} s and more"
            )
        else:
            self._seen_unfinished = self._decoder.unfinished
            self._idle = self._clock.callLater(rest, self._check_idle)
