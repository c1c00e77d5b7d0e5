"""
One index file: from a message key to places in the commit log.

    40 bytes header | slots of 4 bytes | entries of 20 bytes

A key's hash selects a slot, the slot names the newest entry of a chain, every entry names the one before it. Entry
numbers begin at 1. What is added stays in memory (new entries, and a copy of all slots) until :meth:`IndexFile.write`.

Java: IndexFile
"""

from __future__ import annotations

import sys
from array import array

import attrs

from rmq.runtime.disk.files import File
from rmq.store.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    index_entry_at,
    index_slot_at,
)

#: Slots are written with the whole page of the file that they lie in: the kernel would first read the rest of it from
#: the disk, where it is not in memory, and a busy disk would stop the reactor.
SLOTS_OF_PAGE = 1024
_SLOTS_OF_HEADER = INDEX_HEADER_BYTES // INDEX_SLOT_BYTES
_SLOT_TYPE = next(code for code in "il" if array(code).itemsize == INDEX_SLOT_BYTES)
_MAX_SECONDS = (1 << 31) - 1


@attrs.define
class IndexHeader:
    """The first 40 bytes; times are milliseconds, ``index_count`` is the number of the next entry."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_phy_offset: int = 0
    end_phy_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1

    @classmethod
    def unpack(cls, data: bytes) -> IndexHeader:
        header = cls(*INDEX_HEADER.unpack_from(data))
        header.index_count = max(1, header.index_count)
        return header

    def pack(self) -> bytes:
        return INDEX_HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count,
        )


class IndexFile:
    """
    An index file; a new one is only in memory until it is written (``on_disk``).

    Only a file that is added to holds its slots in memory (4 bytes each); full ones are read where they lie.
    """

    __slots__ = (
        "_written",
        "buffered",
        "dirty_pages",
        "entries",
        "header",
        "on_disk",
        "path",
        "slots",
        "table",
        "unsynced",
    )

    def __init__(self, path: str, slots: int, entries: int, header: IndexHeader) -> None:
        self.path = path
        self.slots = slots
        self.entries = entries
        self.header = header
        self.table: array[int] | None = None
        #: entries from number ``_written`` on
        self.buffered = bytearray()
        self._written = header.index_count
        self.dirty_pages: set[int] = set()
        self.unsynced = False
        self.on_disk = True

    @property
    def is_full(self) -> bool:
        return self.header.index_count >= self.entries

    @property
    def is_dirty(self) -> bool:
        """True when there is something to write."""
        return bool(self.buffered or self.dirty_pages)

    # ---- adding ----

    def begin(self) -> None:
        """Prepare a new, empty file for adding."""
        self.table = array(_SLOT_TYPE, bytes(self.slots * INDEX_SLOT_BYTES))
        self.on_disk = False

    def resume(self, file: File, *, in_order: bool | None) -> None:
        """
        Prepare an existing file for adding: read its slots, and repair those that name entries behind the count.

        A process that was killed while it wrote (``in_order``) leaves entries, then slots, then no header; walking back
        from such an entry finds what the slot held before. After a power failure (False) the entry may be lost, zeros
        or one of an earlier life, a walk over it would end or bend the chain, and the slot itself may be half old and
        half new: all slots are made again. Without knowing (None) they are where one names an entry behind the count.
        """
        slots = array(_SLOT_TYPE, file.read_at(INDEX_HEADER_BYTES, self.slots * INDEX_SLOT_BYTES))
        if sys.byteorder == "little":
            slots.byteswap()
        self.table = slots
        count = self.header.index_count
        self.header.hash_slot_count = self.slots - slots.count(0)
        if in_order is not False and max(slots) < count and min(slots) >= 0:
            if file.read_at(0, INDEX_HEADER_BYTES) != self.header.pack():
                self.dirty_pages.add(0)  # entries were cut off that no slot names: the header must say so
            return
        for slot, number in enumerate(slots):
            if in_order is False or (
                not 0 <= number < count and not (in_order and self._walk_back(file, slot, number))
            ):
                self._rebuild_slots(file)
                break
        self.header.hash_slot_count = self.slots - slots.count(0)
        self.dirty_pages.update(range(_page_of(self.slots - 1) + 1))

    def _walk_back(self, file: File, slot: int, number: int) -> bool:
        assert self.table is not None
        while number >= self.header.index_count:
            if number >= self.entries:
                return False
            key_hash, _, _, before = self.entry(file, number)
            if key_hash % self.slots != slot or not 0 <= before < number:
                return False
            number = before
        self.table[slot] = number
        return number >= 0

    def _rebuild_slots(self, file: File) -> None:
        """Derive every slot from the entries; the slow way, for files that a power failure left half written."""
        assert self.table is not None
        self.table[:] = array(_SLOT_TYPE, bytes(self.slots * INDEX_SLOT_BYTES))
        data = file.read_at(index_entry_at(self.slots, 0), self.header.index_count * INDEX_ENTRY_BYTES)
        for number, (key_hash, _, _, _) in enumerate(INDEX_ENTRY.iter_unpack(data)):
            if number:
                self.table[key_hash % self.slots] = number

    def add(self, key_hash: int, phy_offset: int, store_timestamp: int) -> None:
        """Add an entry; the caller has looked at :attr:`is_full`."""
        header = self.header
        slots = self.table
        assert slots is not None
        number = header.index_count
        slot = key_hash % self.slots
        before = slots[slot]
        if number <= 1:
            header.begin_phy_offset = phy_offset
            header.begin_timestamp = store_timestamp
        seconds = (store_timestamp - header.begin_timestamp) // 1000 if header.begin_timestamp > 0 else 0
        if not 0 <= seconds <= _MAX_SECONDS:
            seconds = 0 if seconds < 0 else _MAX_SECONDS
        self.buffered += INDEX_ENTRY.pack(key_hash, phy_offset, seconds, before)
        slots[slot] = number
        self.dirty_pages.add(_page_of(slot))
        if before == 0:
            header.hash_slot_count += 1
        header.index_count = number + 1
        header.end_phy_offset = phy_offset
        header.end_timestamp = store_timestamp

    def write(self, file: File, most_pages: int | None = None) -> None:
        """
        Write entries, then slots, then the header; DiskError leaves the file to be written again.

        With ``most_pages`` at most so many pages of slots; the header waits for the last of them.
        """
        if not self.is_dirty:
            return
        assert self.table is not None
        if self.buffered:
            file.write_at(index_entry_at(self.slots, self._written), self.buffered)
            self._written = self.header.index_count
            self.buffered.clear()
            self.unsynced = True
        pages = sorted(self.dirty_pages)[:most_pages]
        for page in pages:
            first = max(0, page * SLOTS_OF_PAGE - _SLOTS_OF_HEADER)
            piece = self.table[first : (page + 1) * SLOTS_OF_PAGE - _SLOTS_OF_HEADER]
            if sys.byteorder == "little":
                piece.byteswap()
            file.write_at(index_slot_at(first), piece.tobytes())
        if len(pages) < len(self.dirty_pages):
            self.dirty_pages.difference_update(pages)
            return
        file.write_at(0, self.header.pack())
        self.dirty_pages.clear()
        self.unsynced = True

    def rest(self) -> None:
        """Give the memory of the slots back; the file is full and written."""
        self.table = None

    # ---- reading ----

    def covers(self, begin_ms: int, end_ms: int) -> bool:
        """Tell whether messages stored between the two times can be in here."""
        header = self.header
        return not (begin_ms > header.end_timestamp or end_ms < header.begin_timestamp)

    def find(self, file: File | None, key_hash: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """
        Return up to ``limit`` physical offsets, newest first, of entries with this hash in this time.

        ``file`` may be None as long as nothing was written (``on_disk`` is False).
        """
        found: list[int] = []
        number = self.newest(file, key_hash % self.slots)
        while 0 < number < self.header.index_count and len(found) < limit:
            entry_hash, phy_offset, seconds, before = self.entry(file, number)
            stored_ms = self.header.begin_timestamp + seconds * 1000
            # The time is kept in whole seconds: a message may be up to one second younger than its entry says.
            if stored_ms + 999 < begin_ms:
                break
            if entry_hash == key_hash and stored_ms <= end_ms:
                found.append(phy_offset)
            if before >= number:
                break
            number = before
        return found

    def last_entry_below(self, file: File, phy_offset: int) -> int:
        """Return the number behind the last entry of a message below ``phy_offset``."""
        low, high = 1, self.header.index_count
        while low < high:
            middle = (low + high) // 2
            if self.entry(file, middle)[1] < phy_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def newest(self, file: File | None, slot: int) -> int:
        """Return the number of the newest entry of a slot, 0 for none."""
        if self.table is not None:
            return self.table[slot]
        assert file is not None
        return int.from_bytes(file.read_at(index_slot_at(slot), INDEX_SLOT_BYTES), "big", signed=True)

    def entry(self, file: File | None, number: int) -> tuple[int, int, int, int]:
        """Return (keyHash, phyOffset, seconds, number before it) of an entry."""
        if number >= self._written and self.buffered:
            return INDEX_ENTRY.unpack_from(self.buffered, (number - self._written) * INDEX_ENTRY_BYTES)
        assert file is not None
        return INDEX_ENTRY.unpack(file.read_at(index_entry_at(self.slots, number), INDEX_ENTRY_BYTES))


def _page_of(slot: int) -> int:
    """Return which page of the file holds a slot."""
    return (slot + _SLOTS_OF_HEADER) // SLOTS_OF_PAGE
