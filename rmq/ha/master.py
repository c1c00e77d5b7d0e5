"""The master's side of one replication connection, as a machine without sockets, timers or files."""

from __future__ import annotations

import enum
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from rmq.ha.session import Acknowledge, Action, Close, CloseKind, Load, Piece, Send, SessionLimits, Term
from rmq.ha.stream import MAX_BATCH_BYTES, ReportDecoder, decode_hello, encode_heartbeat, encode_transfer_header
from rmq.wire.frames import MAX_FRAME_BYTES

#: The only low words with which a controller-mode (AutoSwitch) slave can begin: two flags of 16 bits behind state 1.
AUTO_SWITCH_FLAGS = frozenset({0x0000_0000, 0x0000_0001, 0x0001_0000, 0x0001_0001})
AUTO_SWITCH_HANDSHAKE_STATE = 1

#: JSON and RocketMQ's own, the byte in front of a remoting header's length
REMOTING_SERIALIZATIONS = (0, 1)
TLS_HANDSHAKE = 0x1603
HTTP_METHODS = frozenset({b"GET ", b"HEAD", b"POST"})


class ReadableLog(Protocol):
    """What a master must know of its commit log."""

    @property
    def min_phy_offset(self) -> int:
        """The first byte that is still there."""

    @property
    def end_offset(self) -> int:
        """One behind the last byte."""

    def read_loaded(self, phy_offset: int, limit: int) -> Piece | None:
        """
        Return 1 to ``limit`` bytes from ``phy_offset`` on, of one segment; nothing at the end of the log.

        None where they are not in memory: see :meth:`preload`.
        """

    def preload(self, phy_offset: int) -> Deferred[None]:
        """Read into memory what lies at ``phy_offset``; fires when that has ended or failed."""


class FlushableLog(ReadableLog, Protocol):
    """A log that knows how far it is on disk."""

    @property
    def flushed_offset(self) -> int:
        """Everything before is on disk."""


class FlushedLog:
    """
    The part of a log that is on disk, which is all that slaves may hold.

    A slave can then never be ahead of a master that lost its power: what the master lost, no slave has.
    """

    def __init__(self, log: FlushableLog) -> None:
        self._log = log

    @property
    def min_phy_offset(self) -> int:
        return self._log.min_phy_offset

    @property
    def end_offset(self) -> int:
        return self._log.flushed_offset

    def read_loaded(self, phy_offset: int, limit: int) -> Piece | None:
        """Return bytes that are on disk, as `ReadableLog.read_loaded`."""
        return self._log.read_loaded(phy_offset, max(0, min(limit, self._log.flushed_offset - phy_offset)))

    def preload(self, phy_offset: int) -> Deferred[None]:
        return self._log.preload(phy_offset)


@attrs.define
class SentWatermark:
    """
    High-water mark of the bytes that any slave can have: the log's end when this process began, or what was sent since.

    A slave that reports more, though less than the end, has bytes of its own there: the master lost them in a crash
    and has written others in their place.
    """

    offset: int


class MasterState(enum.Enum):
    """The state of a slave's connection."""

    #: connected, without a report yet: gets nothing and does not count
    WAIT_FIRST = "waiting for the first report"
    TRANSFER = "transferring"
    #: refused or broken; nothing more is sent, read or counted
    CLOSED = "closed"


def looks_like_auto_switch(report: int) -> bool:
    """Tell whether a first report is the head of a controller-mode handshake (state i32, two flags i16)."""
    return report >> 32 == AUTO_SWITCH_HANDSHAKE_STATE and report & 0xFFFF_FFFF in AUTO_SWITCH_FLAGS


def foreign_peer(report: int) -> str | None:
    """
    Return what kind of peer sent ``report`` as its first eight bytes; None when it may be a slave.

    A remoting frame begins with its length, a byte for the kind of its header, and 3 bytes for the header's length.
    Real logs have such offsets too, a few bytes behind each multiple of 4 GiB: ask only for offsets that cannot be.
    """
    first, second = report >> 32, report & 0xFFFF_FFFF
    if first >> 16 == TLS_HANDSHAKE:
        return "a TLS client on a port without TLS; a slave with haTlsEnable=true needs a master with haTlsEnable=true"
    if first.to_bytes(4, "big") in HTTP_METHODS:
        return "an HTTP client on the HA port"
    header_bytes = second & 0xFF_FFFF
    if first < MAX_FRAME_BYTES and second >> 24 in REMOTING_SERIALIZATIONS and 0 < header_bytes <= first - 4:
        return "a remoting client on the HA port; clients and tools use listenPort, which is one below it"
    return None


class MasterSession:
    """
    Serve one slave: wait for its first report, then send it the log from there on.

    Nothing that a peer says counts unless this log can have given it: reports are bounded by the log's end (the first
    one too), by what was sent on this connection, and by their predecessors. A session that returned a Close is CLOSED
    and answers every later call with no action.

    With a ``term`` the slave must say first who it is and that it follows the master of this epoch, and an empty one
    gets the whole log: it may become master.

    Java: HAConnection, DefaultHAConnection
    """

    def __init__(
        self,
        log: ReadableLog,
        limits: SessionLimits,
        *,
        now_ms: int,
        sent: SentWatermark | None = None,
        term: Term | None = None,
    ) -> None:
        self._log = log
        self._limits = limits
        #: shared by the sessions of a process; None on a slave, whose log grows by bytes of its master
        self._sent = sent
        self._term = term
        #: the slave's id, with a term and after its hello
        self.broker_id: int | None = None
        self._batch_bytes = max(1, min(limits.batch_bytes, MAX_BATCH_BYTES))
        self._reports = ReportDecoder()
        self._paused = False
        #: what comes next is not in memory yet
        self._loading = False
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        self.state = MasterState.WAIT_FIRST
        #: the first report, -1 before it
        self.request_offset = -1
        #: the newest report, -1 before the first
        self.ack_offset = -1
        #: where the first and the next frame begin, -1 before the first report
        self.start_offset = -1
        self.next_offset = -1

    @property
    def has_more(self) -> bool:
        """True when :meth:`pump` would send something now."""
        is_free = self.state is MasterState.TRANSFER and not self._paused and not self._loading
        return is_free and self.next_offset < self._log.end_offset

    @property
    def is_idle(self) -> bool:
        """True when the slave has acknowledged all that it was sent, or is sent nothing."""
        return self.state is not MasterState.TRANSFER or self.ack_offset >= self.next_offset

    def receive(self, data: bytes, now_ms: int) -> list[Action]:
        """Take bytes from the slave: one Acknowledge of the newest report, or a Close when any report is impossible."""
        if self.state is MasterState.CLOSED:
            return []
        reports = self._reports.receive(data)
        if not reports:
            # Not a sign of life: a byte now and then must not keep a connection open.
            return []
        self._last_read_ms = now_ms
        if self._term is not None and self.broker_id is None:
            refused = self._greeted(self._term, reports.pop(0))
            if refused is not None:
                return self._close(Close(CloseKind.OTHER_TERM, refused))
            if not reports:
                return []
        end = self._log.end_offset
        for report in reports:
            refusal = self._refusal(report, end)
            if refusal is not None:
                return self._close(refusal)
            if self.state is MasterState.WAIT_FIRST:
                self._begin(report, end)
            self.ack_offset = report
        return [Acknowledge(self.ack_offset)]

    def pump(self, now_ms: int, budget_bytes: int) -> list[Action]:
        """Send what the slave lacks, in frames of at most a batch, until ``budget_bytes`` are reached."""
        if not self.has_more:
            return []
        minimum = self._log.min_phy_offset
        if self.next_offset < minimum:
            return self._close(
                Close(
                    CloseKind.TOO_FAR_BEHIND,
                    f"the slave needs offset {self.next_offset}, but the log of this master begins at {minimum}",
                )
            )
        pieces: list[Piece] = []
        segment_bytes, batch_bytes = self._limits.segment_bytes, self._batch_bytes
        while budget_bytes > 0:
            position = self.next_offset
            # One read for many frames: their bodies are views of it.
            whole = max(batch_bytes, budget_bytes - budget_bytes % batch_bytes)
            data = self._log.read_loaded(position, min(whole, segment_bytes - position % segment_bytes))
            if not data:
                self._loading = data is None
                break
            if len(data) <= batch_bytes:
                pieces += (encode_transfer_header(position, len(data)), data)
            else:
                view = memoryview(data)
                for at in range(0, len(data), batch_bytes):
                    body = view[at : at + batch_bytes]
                    pieces += (encode_transfer_header(position + at, len(body)), body)
            self.next_offset = position + len(data)
            budget_bytes -= len(data)
        loads = [Load(self.next_offset)] if self._loading else []
        if not pieces:
            return [*loads]
        if self._sent is not None and self.next_offset > self._sent.offset:
            self._sent.offset = self.next_offset
        self._last_write_ms = now_ms
        return [Send(tuple(pieces)), *loads]

    def pause(self) -> None:
        """The way out is full: send nothing until :meth:`resume`."""
        self._paused = True

    def resume(self) -> None:
        """The way out is free again; pump next."""
        self._paused = False

    def loaded(self) -> None:
        """What a Load named is in memory, or cannot be read; pump next."""
        self._loading = False

    def tick(self, now_ms: int) -> list[Action]:
        """Heartbeat after a while without a write, Close after a longer while without a read."""
        if self.state is MasterState.CLOSED:
            return []
        if now_ms - self._last_read_ms > self._limits.silence_ms:
            return self._close(
                Close(CloseKind.SILENT, f"nothing was read from the slave for {now_ms - self._last_read_ms} ms")
            )
        idle_ms = now_ms - self._last_write_ms
        if self.state is MasterState.TRANSFER and not self._paused and idle_ms >= self._limits.heartbeat_ms:
            self._last_write_ms = now_ms
            return [Send((encode_heartbeat(self.next_offset),))]
        return []

    def _begin(self, report: int, end: int) -> None:
        # A slave without anything gets the last segment only, as Apache's masters do: older ones may be hundreds of
        # gigabytes that no consumer reads any more.
        first = end - end % self._limits.segment_bytes if self._term is None else self._log.min_phy_offset
        self.start_offset = self.next_offset = report or first
        self.request_offset = report
        self.state = MasterState.TRANSFER

    def _greeted(self, term: Term, report: int) -> str | None:
        """Take the hello; return why the slave is refused."""
        hello = decode_hello(report)
        if hello is None:
            return "it has no enableControllerMode=true, which this master has"
        epoch, broker_id = hello
        if epoch != term.epoch:
            return f"it follows the master of epoch {epoch}, this is the master of epoch {term.epoch}"
        if broker_id == term.broker_id:
            return f"it has the id {broker_id} of this master itself"
        self.broker_id = broker_id
        return None

    def _refusal(self, report: int, end: int) -> Close | None:
        if report < 0:
            what = "this is not a slave" if self._term is not None else "not a slave, or one with enableControllerMode"
            return Close(CloseKind.PROTOCOL_ERROR, f"report of the negative offset {report}; {what}")
        if report < self.ack_offset:
            dialect = (
                ": this is the handshake of a slave in controller mode (AutoSwitch), which this master does not speak"
                if looks_like_auto_switch(self.request_offset)
                else ""
            )
            return Close(CloseKind.PROTOCOL_ERROR, f"report of {report} after one of {self.ack_offset}{dialect}")
        if report > end:
            peer = foreign_peer(report) if self.state is MasterState.WAIT_FIRST else None
            if peer is not None:
                # Not AHEAD, which alarms about diverged logs: any client that finds the port could cause it.
                return Close(CloseKind.PROTOCOL_ERROR, f"this is {peer}")
            dialect = (
                " (or it speaks the AutoSwitch dialect of controller mode)" if looks_like_auto_switch(report) else ""
            )
            return Close(
                CloseKind.AHEAD,
                f"the slave reports {report}, the log of this master ends at {end}: the slave holds "
                f"{report - end} bytes that its master does not have{dialect}",
            )
        if self.state is MasterState.WAIT_FIRST:
            minimum = self._log.min_phy_offset
            if 0 < report < minimum:
                return Close(
                    CloseKind.TOO_FAR_BEHIND,
                    f"the slave asks for offset {report}, but the log of this master begins at {minimum}: "
                    "move the slave's store aside, it then starts empty",
                )
            if self._sent is not None and report > self._sent.offset:
                return Close(
                    CloseKind.DIVERGED,
                    f"the slave reports {report}, the log of this master ends at {end}, but since the start of this "
                    f"master no slave was sent more than {self._sent.offset}: the slave holds "
                    f"{report - self._sent.offset} bytes of another history. Compare and cut it (python -m "
                    "rmq.ha.rejoin), or, if its store is a copy made of this running master, restart this master",
                )
        elif report > self.next_offset:
            return Close(
                CloseKind.PROTOCOL_ERROR,
                f"report of {report}, but only bytes below {self.next_offset} were sent on this connection",
            )
        elif 0 < report < self.start_offset:
            return Close(
                CloseKind.PROTOCOL_ERROR,
                f"report of {report} by a slave that began empty and was sent bytes from {self.start_offset} on",
            )
        return None

    def _close(self, close: Close) -> list[Action]:
        self.state = MasterState.CLOSED
        return [close]
