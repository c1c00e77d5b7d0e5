"""
The extension of one consume queue: for each unit its tagsCode, store time and (with Apache) a filter bitmap.

    i16 size | i64 tagsCode | i64 msgStoreTime | i16 bitMapSize | bitmap

A unit of the queue then holds an address (offset in here - 2^63) instead of its tagsCode. No unit crosses the end of a
file: where one does not fit, an i16 of -1 stands, and the next file goes on. As in the queue, new units stay in memory
until :meth:`QueueExt.write`.

Java: ConsumeQueueExt
"""

from __future__ import annotations

from rmq.runtime.disk.files import File
from rmq.store import layout
from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_EXT_BASE, CQ_EXT_END, CQ_EXT_END_BYTES, CQ_EXT_UNIT
from rmq.store.messages import StoreError
from rmq.store.openfiles import OpenFiles, zero_from


def is_address(tags_code: int) -> bool:
    """Tell whether what a unit has in place of its tagsCode is an address in here."""
    return tags_code <= CQ_EXT_ADDRESS_MAX


class QueueExt:
    """The units from the first file on up to :attr:`end`, byte offsets."""

    def __init__(self, files: OpenFiles, folder: str, file_bytes: int) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self._files = files
        #: start offsets of the files, without holes
        self.starts: list[int] = []
        self.end = 0
        self._written = 0
        self._buffer = bytearray()
        #: starts of files with bytes that are not synced
        self.unsynced: set[int] = set()

    def path(self, start: int) -> str:
        return layout.join(self.folder, layout.file_name(start))

    # ---- appending ----

    def append(self, tags_code: int, store_timestamp: int) -> int:
        """Add a unit without a bitmap; return its address."""
        room = self.file_bytes - self.end % self.file_bytes
        if room < CQ_EXT_UNIT.size + CQ_EXT_END_BYTES:
            self._buffer += CQ_EXT_END.pack(-1).ljust(room, b"\0")
            self.end += room
        address = self.end + CQ_EXT_BASE
        self._buffer += CQ_EXT_UNIT.pack(CQ_EXT_UNIT.size, tags_code, store_timestamp, 0)
        self.end += CQ_EXT_UNIT.size
        return address

    def write(self) -> None:
        """Write what is buffered; DiskError leaves in the buffer what could not be written."""
        while self._buffer:
            start = self._written - self._written % self.file_bytes
            piece = bytes(self._buffer[: start + self.file_bytes - self._written])
            self._file_for(start).write_at(self._written - start, piece)
            self.unsynced.add(start)
            self._written += len(piece)
            del self._buffer[: len(piece)]

    def _file_for(self, start: int) -> File:
        if self.starts and start <= self.starts[-1]:
            return self._files.get(self.path(start))
        file = self._files.create(self.path(start), self.file_bytes)
        self.starts.append(start)
        return file

    # ---- reading ----

    def tags_code(self, address: int) -> int | None:
        """Return the tagsCode behind an address; None when there is no such unit (any more)."""
        at = address - CQ_EXT_BASE
        if not 0 <= at <= self.end - CQ_EXT_UNIT.size:
            return None
        if at >= self._written:
            data = bytes(self._buffer[at - self._written :][: CQ_EXT_UNIT.size])
        elif self.starts and at >= self.starts[0] and at % self.file_bytes + CQ_EXT_UNIT.size <= self.file_bytes:
            start = at - at % self.file_bytes
            data = self._files.get(self.path(start)).read_at(at - start, CQ_EXT_UNIT.size)
        else:
            return None
        size, tags_code, _, bit_map_bytes = CQ_EXT_UNIT.unpack(data)
        return int(tags_code) if size == CQ_EXT_UNIT.size + bit_map_bytes else None

    def _end_of(self, address: int) -> int:
        """Return where the unit at an address ends; where it begins when there is none."""
        at = address - CQ_EXT_BASE
        start = at - at % self.file_bytes
        if start not in self.starts or at - start + CQ_EXT_UNIT.size > self.file_bytes:
            return at
        size: int = CQ_EXT_UNIT.unpack(self._files.get(self.path(start)).read_at(at - start, CQ_EXT_UNIT.size))[0]
        return at + size if size >= CQ_EXT_UNIT.size else at

    # ---- loading, cutting, cleaning ----

    def load(self, starts: list[int]) -> None:
        """Take over the files; :meth:`cut` says where the units end. StoreError names a file of another length."""
        for start in starts:
            file = self._files.get(self.path(start))
            if start % self.file_bytes or file.size > self.file_bytes:
                raise StoreError(
                    f"{self.path(start)} has {file.size} bytes, but mappedFileSizeConsumeQueueExt={self.file_bytes}: "
                    "a store can only be opened with the file size that it was written with"
                )
            if file.size < self.file_bytes:
                file.truncate(self.file_bytes)
        self.starts = starts
        self._written = self.end = starts[-1] + self.file_bytes if starts else 0

    def cut(self, last_address: int | None) -> None:
        """Let the unit at an address be the last one; without an address there is none."""
        self.write()
        end = 0 if last_address is None else self._end_of(last_address)
        while self.starts and self.starts[-1] >= end:
            start = self.starts.pop()
            self.unsynced.discard(start)
            self._files.delete(self.path(start))
        if not self.starts:
            # Files that are lost: go on behind them, in a file of its own, so that old addresses lead nowhere.
            end = -(-end // self.file_bytes) * self.file_bytes
        elif end % self.file_bytes:
            zero_from(self._files.get(self.path(self.starts[-1])), end % self.file_bytes, self.file_bytes)
            self.unsynced.add(self.starts[-1])
        self._written = self.end = end

    def delete_before(self, address: int) -> None:
        """Delete the files that end before an address; never the last one."""
        at = address - CQ_EXT_BASE
        while len(self.starts) > 1 and self.starts[1] <= at:
            self.unsynced.discard(self.starts[0])
            self._files.delete(self.path(self.starts[0]))
            del self.starts[0]
