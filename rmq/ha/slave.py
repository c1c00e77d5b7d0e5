"""The slave's side of the replication connection, as a machine without sockets, timers or files."""

from __future__ import annotations

from rmq.ha.session import Action, Append, Close, CloseKind, Send, SessionLimits
from rmq.ha.stream import StreamError, TransferDecoder, encode_report

#: A report goes out at least once for so many appended bytes, however many arrive in one read.
REPORT_EVERY_BYTES = 1024 * 1024


class SlaveSession:
    """
    Follow one master: report the own end, take frames that begin exactly there, report again.

    The session keeps the end of the log by its own Append actions, so the shell must perform them in order and drop the
    session when one fails. It returns no Append that the checks did not let through; after a Close it returns nothing.

    Java: HAClient, DefaultHAClient
    """

    def __init__(self, limits: SessionLimits, *, end_offset: int, now_ms: int) -> None:
        self._limits = limits
        self._frames = TransferDecoder()
        self._paused = False
        self._closed = False
        self._unreported_bytes = 0
        self._last_read_ms = now_ms
        self._last_write_ms = now_ms
        #: the next byte that the log wants; 0 stands for an empty log, too
        self.end_offset = end_offset
        #: frames that passed the checks, heartbeats included
        self.frames = 0

    def connected(self, now_ms: int) -> list[Action]:
        """Begin: a master sends nothing before the first report."""
        return self._report(now_ms)

    def receive(self, data: bytes, now_ms: int) -> list[Action]:
        """Take bytes from the master: Appends, then one report of where they lead."""
        if self._closed:
            return []
        self._last_read_ms = now_ms
        actions: list[Action] = []
        frames = self._frames
        frames.feed(data)
        while True:
            while piece := frames.next_piece():
                self._append(piece, actions)
                if self._unreported_bytes >= REPORT_EVERY_BYTES:
                    actions += self._report(now_ms)
            try:
                header = frames.next_header()
            except StreamError as error:
                return [*actions, *self._close(CloseKind.PROTOCOL_ERROR, str(error))]
            if header is None:
                break
            refusal = self._refusal(*header)
            if refusal is not None:
                return [*actions, *self._close(*refusal)]
            self._accept(*header)
        if self._unreported_bytes:
            actions += self._report(now_ms)
        return actions

    def pause(self) -> None:
        """The way out is full: keep the newest report until :meth:`resume`."""
        self._paused = True

    def resume(self, now_ms: int) -> list[Action]:
        """The way out is free again: send a report that is owed."""
        self._paused = False
        return self._report(now_ms) if self._unreported_bytes and not self._closed else []

    def tick(self, now_ms: int) -> list[Action]:
        """Report after a while without a write, Close after a longer while without a read."""
        if self._closed:
            return []
        if now_ms - self._last_read_ms > self._limits.silence_ms:
            return self._close(
                CloseKind.SILENT, f"nothing was read from the master for {now_ms - self._last_read_ms} ms"
            )
        if now_ms - self._last_write_ms >= self._limits.heartbeat_ms:
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

    def _append(self, piece: bytes, actions: list[Action]) -> None:
        actions.append(Append(self.end_offset, piece))
        self.end_offset += len(piece)
        self._unreported_bytes += len(piece)

    def _report(self, now_ms: int) -> list[Action]:
        if self._paused:
            return []
        self._unreported_bytes = 0
        self._last_write_ms = now_ms
        return [Send((encode_report(self.end_offset),))]

    def _close(self, kind: CloseKind, reason: str) -> list[Action]:
        self._closed = True
        return [Close(kind, reason)]
