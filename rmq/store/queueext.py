"""
The extension of one consume queue: for each unit its tagsCode, store time and (with Apache) a filter bitmap.

    i16 size | i64 tagsCode | i64 msgStoreTime | i16 bitMapSize | bitmap

A unit of the queue then holds an address (offset in here - 2^63) instead of its tagsCode. No unit crosses the end of a
file: where one does not fit, an i16 of -1 stands, and the next file goes on. As in the queue, new units stay in memory
until :meth:`QueueExt.write`.

Java: ConsumeQueueExt
"""

from __future__ import annotations

from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_EXT_BASE, CQ_EXT_END, CQ_EXT_END_BYTES, CQ_EXT_UNIT
from rmq.store.openfiles import OpenFiles, zero_from
from rmq.store.queuefiles import QueueFiles


def is_address(tags_code: int) -> bool:
    """Tell whether what a unit has in place of its tagsCode is an address in here."""
    return tags_code <= CQ_EXT_ADDRESS_MAX


class QueueExt(QueueFiles):
    """The units from the first file on up to :attr:`end`, byte offsets."""

    size_key = "mappedFileSizeConsumeQueueExt"

    def __init__(self, files: OpenFiles, folder: str, file_bytes: int) -> None:
        super().__init__(files, folder, file_bytes)
        self.end = 0

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
        self.check_files(starts)
        self._take_over(starts)
        self._written = self.end = starts[-1] + self.file_bytes if starts else 0

    def cut(self, last_address: int | None) -> None:
        """Let the unit at an address be the last one; without an address there is none."""
        self.write()
        end = 0 if last_address is None else self._end_of(last_address)
        while self.starts and self.starts[-1] >= end:
            self.drop_last()
        if not self.starts:
            # Files that are lost: go on behind them, in a file of its own, so that old addresses lead nowhere.
            end = -(-end // self.file_bytes) * self.file_bytes
        elif end % self.file_bytes:
            zero_from(self._files.get(self.path(self.starts[-1])), end % self.file_bytes, self.file_bytes)
            self._files.unsynced.add(self.path(self.starts[-1]))
        self._written = self.end = end

    def delete_before(self, address: int) -> None:
        """Delete the files that end before an address; never the last one."""
        at = address - CQ_EXT_BASE
        while len(self.starts) > 1 and self.starts[1] <= at:
            self._drop(0)
