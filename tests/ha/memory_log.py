"""A commit log that is a bytearray: just enough for replication, with the store's rules about what may be appended."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred


class MemoryLog:
    """
    Bytes from ``start`` to the end, cut into segments only in thought.

    ``refuse`` is the error class that append_raw raises; ``fail_next`` makes the next append_raw raise it,
    ``fail_read`` every read, and ``is_cold`` lets none find its bytes in memory. Nothing is on disk before
    :meth:`sync`, and who wanted that counts in ``flushes_wanted``.
    """

    def __init__(self, segment_bytes: int, refuse: type[Exception] = ValueError, *, start: int = 0) -> None:
        self.segment_bytes = segment_bytes
        self._refuse = refuse
        self._start = start
        self._min = start
        self._data = bytearray()
        #: where a slave that compares wants to go on; None: at the end
        self.resume_at: int | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.fail_next = False
        self.fail_read = False
        self.is_cold = False
        #: what :meth:`preload` was asked for, and what it returned
        self.loads: list[tuple[int, Deferred[None]]] = []
        self._flushed_callbacks: list[Callable[[], None]] = []
        self.flushed_offset = 0
        self.flushes_wanted = 0
        #: bytes of each append_raw
        self.appends: list[int] = []

    @property
    def min_phy_offset(self) -> int:
        return self._min

    @property
    def end_offset(self) -> int:
        return self._start + len(self._data) if self._data else 0

    @property
    def resume_offset(self) -> int:
        return self.end_offset if self.resume_at is None else self.resume_at

    def on_appended(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def on_flushed(self, callback: Callable[[], None]) -> None:
        self._flushed_callbacks.append(callback)

    def flush_soon(self) -> None:
        self.flushes_wanted += 1

    def sync(self, until: int | None = None) -> None:
        """Let everything, or everything below ``until``, be on disk."""
        self.flushed_offset = self.end_offset if until is None else until
        for callback in self._flushed_callbacks:
            callback()

    def read_loaded(self, phy_offset: int, limit: int) -> bytes | None:
        if self.is_cold:
            return None
        if phy_offset < self._min or self.fail_read:
            raise self._refuse(f"{phy_offset} is below {self._min}")
        end = min(phy_offset + limit, phy_offset - phy_offset % self.segment_bytes + self.segment_bytes)
        return bytes(self._data[phy_offset - self._start : end - self._start])

    def preload(self, phy_offset: int) -> Deferred[None]:
        self.loads.append((phy_offset, Deferred()))
        return self.loads[-1][1]

    def append_raw(self, phy_offset: int, data: bytes, *, dispatches: bool = True) -> None:
        if self.fail_next:
            self.fail_next = False
            raise self._refuse(f"no room for {len(data)} bytes at {phy_offset}")
        if not self._data:
            if phy_offset % self.segment_bytes:
                raise self._refuse(f"{phy_offset} is not the start of a segment")
            self._start = self._min = phy_offset
        elif self.resume_at is not None and self.resume_at <= phy_offset < self.end_offset:
            same = min(len(data), self.end_offset - phy_offset)
            if self.bytes_from(phy_offset)[:same] != data[:same]:
                raise self._refuse(f"{phy_offset} differs")
            phy_offset, data = phy_offset + same, data[same:]
        elif phy_offset != self.end_offset:
            raise self._refuse(f"{phy_offset} is not the end {self.end_offset}")
        if phy_offset % self.segment_bytes + len(data) > self.segment_bytes:
            raise self._refuse(f"{len(data)} bytes at {phy_offset} cross the end of a segment")
        self.appends.append(len(data))
        self._data += data

    def dispatch_received(self) -> None:
        """There are no queues here."""

    def grow(self, data: bytes) -> int:
        """Append as a master does; return the new end."""
        self._data += data
        for callback in self._callbacks:
            callback()
        return self.end_offset

    def delete_before(self, phy_offset: int) -> None:
        """Let retention delete segments."""
        self._min = phy_offset

    def bytes_from(self, phy_offset: int) -> bytes:
        return bytes(self._data[phy_offset - self._start :])
