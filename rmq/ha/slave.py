"""The slave's side of the replication connection, as a machine without sockets, timers or files."""

from __future__ import annotations

from rmq.ha.session import Action, Append, Close, CloseKind, Piece, Send, SessionLimits, Term
from rmq.ha.stream import StreamError, TransferDecoder, encode_hello, encode_report

#: A report goes out at least once for so many appended bytes.
REPORT_EVERY_BYTES = 1024 * 1024
#: A master that says so often "nothing new" has nothing more. Apache's may say it once before it begins to send.
AHEAD_AFTER_HEARTBEATS = 2


class SlaveSession:
    """
    Follow one master: report the own end, take frames that begin exactly there, report again.

    The session keeps the end of the log by its own Append actions, so the shell must perform them in order and drop the
    session when one fails. It returns no Append that the checks did not let through; after a Close it returns nothing.

    With ``flushed`` (how far the log is on disk) it reports no more than that, as reported by :meth:`synced`; the first
    report waits until all that is asked for behind is on disk, because a master sends from there on. With a ``term`` a
    hello goes before it.

    Java: HAClient, DefaultHAClient
    """

    def __init__(
        self,
        limits: SessionLimits,
        *,
        end_offset: int,
        now_ms: int,
        log_end: int,
        flushed: int | None = None,
        term: Term | None = None,
    ) -> None:
        self._limits = limits
        self._frames = TransferDecoder()
        self._paused = False
        self._closed = False
        self._unreported_bytes = 0
        self._taken: list[Piece] = []
        self._flushed = flushed
        self._hello = b"" if term is None else encode_hello(term.epoch, term.broker_id)
        self._reported = -1
        #: where the log itself ends; what the master sends below is only compared
        self._log_end = log_end
        self._idle_frames = 0
        #: steady time at which the master was heard last, or the connection began
        self.last_read_ms = now_ms
        #: steady time of the last report, or of the beginning of the connection
        self.last_write_ms = now_ms
        #: the next byte that is wanted of the master; also 0 for an empty log
        self.end_offset = end_offset
        #: frames that passed the checks, heartbeats included
        self.frames = 0
        #: bodies that were appended or compared
        self.received_bytes = 0

    def connected(self, now_ms: int) -> list[Action]:
        """Begin: a master sends nothing before the first report."""
        return self._report(now_ms)

    def receive(self, data: bytes, now_ms: int) -> list[Action]:
        """
        Take bytes from the master: Appends, then one report of where they lead.

        Within a frame there is none, as with Apache's slaves: the rest of it is under way, and each report wakes a
        master that may be sending gigabytes.
        """
        if self._closed:
            return []
        self.last_read_ms = now_ms
        actions: list[Action] = []
        frames = self._frames
        frames.feed(data)
        while True:
            while piece := frames.next_piece():
                self._take(piece)
                if self._unreported_bytes >= REPORT_EVERY_BYTES:
                    self._append(actions)
                    if self._owes_report:
                        actions += self._report(now_ms)
            try:
                header = frames.next_header()
            except StreamError as error:
                self._append(actions)
                return [*actions, *self._close(CloseKind.PROTOCOL_ERROR, str(error))]
            if header is None:
                break
            refusal = self._refusal(*header)
            if refusal is not None or not self._continues(header[0]):
                self._append(actions)
            if refusal is not None:
                return [*actions, *self._close(*refusal)]
            self._accept(*header)
        self._append(actions)
        if self._owes_report and not frames.is_within_body:
            actions += self._report(now_ms)
        return actions

    def synced(self, flushed: int, now_ms: int) -> list[Action]:
        """Everything below ``flushed`` is on disk; only for a session that was made with such an offset."""
        self._flushed = max(flushed, self._flushed or 0)
        return self._report(now_ms) if self._owes_report and not self._closed else []

    def pause(self) -> None:
        """The way out is full: keep the newest report until :meth:`resume`."""
        self._paused = True

    def resume(self, now_ms: int) -> list[Action]:
        """The way out is free again: send a report that is owed."""
        self._paused = False
        return self._report(now_ms) if self._owes_report and not self._closed else []

    def tick(self, now_ms: int) -> list[Action]:
        """Report after a while without a write, Close after a longer while without a read."""
        if self._closed:
            return []
        if now_ms - self.last_read_ms > self._limits.silence_ms:
            return self._close(
                CloseKind.SILENT, f"nothing was read from the master for {now_ms - self.last_read_ms} ms"
            )
        if now_ms - self.last_write_ms >= self._limits.heartbeat_ms:
            return self._report(now_ms)
        return []

    def _refusal(self, phy_offset: int, size: int) -> tuple[CloseKind, str] | None:
        segment_bytes = self._limits.segment_bytes
        if self.end_offset == 0:
            # An empty log joins anywhere, but only at the start of a segment: a hole before the first byte would read
            # as zeros and pass for data.
            if phy_offset % segment_bytes:
                return CloseKind.MISMATCH, (
                    f"the master sends offset {phy_offset} to an empty log, which is not the start of a segment of "
                    f"{segment_bytes} bytes (is mappedFileSizeCommitLog the same on both sides?)"
                )
        elif phy_offset != self.end_offset:
            return (
                CloseKind.MISMATCH,
                f"the master sends offset {phy_offset}, the log of this slave ends at {self.end_offset}",
            )
        self._idle_frames = 0 if size else self._idle_frames + 1
        if self._idle_frames >= AHEAD_AFTER_HEARTBEATS and phy_offset < self._log_end:
            return CloseKind.AHEAD, (
                f"the log of the master ends at {phy_offset}, that of this slave at {self._log_end}: this slave holds "
                f"{self._log_end - phy_offset} bytes that its master does not have"
            )
        if phy_offset % segment_bytes + size > segment_bytes:
            return CloseKind.PROTOCOL_ERROR, (
                f"the frame at offset {phy_offset} with {size} bytes crosses the end of a segment of "
                f"{segment_bytes} bytes (is mappedFileSizeCommitLog the same on both sides?)"
            )
        return None

    def _accept(self, phy_offset: int, size: int) -> None:
        self.frames += 1
        if size:
            self.end_offset = phy_offset

    def _continues(self, phy_offset: int) -> bool:
        """Tell whether the next body belongs to the same file as what was taken before it."""
        return phy_offset == self.end_offset and phy_offset % self._limits.segment_bytes != 0

    def _append(self, actions: list[Action]) -> None:
        """Append all bodies that were taken in one piece: one write for a read, however many frames it brought."""
        taken = self._taken
        if taken:
            data = taken[0] if len(taken) == 1 and isinstance(taken[0], bytes) else b"".join(taken)
            actions.append(Append(self.end_offset - len(data), data))
            taken.clear()

    def _take(self, piece: Piece) -> None:
        self._taken.append(piece)
        self.end_offset += len(piece)
        self._unreported_bytes += len(piece)
        self.received_bytes += len(piece)

    @property
    def _held(self) -> int:
        """What may be reported now."""
        return self.end_offset if self._flushed is None else min(self.end_offset, self._flushed)

    @property
    def _owes_report(self) -> bool:
        return self._unreported_bytes > 0 if self._flushed is None else self._held > self._reported

    def _report(self, now_ms: int) -> list[Action]:
        held = self._held
        if self._paused or (self._reported < 0 and held < self.end_offset):
            return []
        self._unreported_bytes = 0
        self._reported = held
        self.last_write_ms = now_ms
        hello, self._hello = self._hello, b""
        return [Send((hello + encode_report(held),))]

    def _close(self, kind: CloseKind, reason: str) -> list[Action]:
        self._closed = True
        return [Close(kind, reason)]
