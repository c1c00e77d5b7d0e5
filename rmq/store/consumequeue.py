"""
One consume queue: for each message its place in the commit log, 20 bytes a unit.

    i64 phyOffset | i32 size | i64 tagsCode

Unit n lies at byte 20 n of the queue, whose files are named by their first byte. New units stay in memory until
:meth:`ConsumeQueue.write` (every second); readers see them at once, and after a crash recovery makes them again from
the log.

Java: ConsumeQueue
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from rmq.store.layout import CQ_FILLER, CQ_FILLER_SIZE, CQ_UNIT, CQ_UNIT_BYTES
from rmq.store.openfiles import OpenFiles, zero_from
from rmq.store.queueext import QueueExt, is_address
from rmq.store.queuefiles import QueueFiles

#: a gap in the numbers larger than this is taken for nonsense rather than filled
MAX_GAP = 1_000_000
#: so much of the end of a file is read when it is loaded: with holes behind it the last unit is in there
LOOK_BYTES = 4096
#: so many of its last units are kept until recovery has ended; few of thousands of queues get more between checkpoints
TAIL_UNITS = 16

Unit = tuple[int, int, int]


class QueueGap(Exception):
    """A unit does not continue its queue: numbers are missing in front of it."""

    def __init__(self, queue: ConsumeQueue, queue_offset: int) -> None:
        super().__init__(
            f"queue {queue.topic}-{queue.queue_id} ends at {queue.end} and cannot go on with number {queue_offset}"
        )
        self.queue = queue
        self.queue_offset = queue_offset


def is_filler(unit: Unit) -> bool:
    """Tell whether a unit only stands in front of a queue that does not begin at 0."""
    return unit[0] == 0 and unit[1] == CQ_FILLER_SIZE


def _is_unit(unit: Unit) -> bool:
    return unit[1] > 0 and unit[0] >= 0


def _continues(unit: Unit, before: Unit | None) -> bool:
    """
    Tell whether a unit points behind the one before it, or is a copy of it (:meth:`ConsumeQueue.fill_gap`).

    A unit that lies in two sectors of the disk, the first of which a power failure lost, has its size and a part of its
    offset, 0 perhaps: it looks like one of a message far in front.
    """
    if before is None or is_filler(before):
        return True
    return before[1] > 0 and (unit[0] >= before[0] + before[1] or unit[:2] == before[:2])


class _Seen(NamedTuple):
    """The end of a file."""

    start: int
    #: number of units; None when it must be searched
    units_in_file: int | None
    #: the last TAIL_UNITS, or fewer
    tail: bytes
    #: only zeros follow
    is_clean: bool
    #: offset of the message of the first unit; -1 for a filler, or without one
    first_phy: int

    @property
    def units(self) -> list[Unit]:
        """Return the last two, or fewer."""
        return list(CQ_UNIT.iter_unpack(self.tail[-2 * CQ_UNIT_BYTES :]))


class ConsumeQueue(QueueFiles):
    """
    The units of one queue from :attr:`min` up to, not including, :attr:`end`.

    ``next`` is the number that the next message of this queue gets on a master; it runs ahead of ``end`` while messages
    wait for their sync, and is never behind it.
    """

    __slots__ = (
        "_first_phy",
        "_seen",
        "_stale",
        "_tail",
        "block",
        "block_offset",
        "dirty",
        "end",
        "ext",
        "is_sound",
        "key",
        "key_prefixes",
        "max_phy",
        "min",
        "next",
        "queue_id",
        "topic",
        "topic_field",
    )

    size_key = "mappedFileSizeConsumeQueue"

    def __init__(
        self,
        files: OpenFiles,
        folder: str,
        topic: str,
        queue_id: int,
        file_bytes: int,
        *,
        ext: QueueExt | None = None,
    ) -> None:
        super().__init__(files, folder, file_bytes)
        self.topic = topic
        self.queue_id = queue_id
        self.key = topic, queue_id
        #: where tagsCodes go with enableConsumeQueueExt; else units hold them themselves
        self.ext = ext
        self.min = 0
        self.end = 0
        self.next = 0
        #: physical end of the last unit's message
        self.max_phy = -1
        #: offset of the message of the unit at :attr:`min`; -1 while it is not known
        self._first_phy = -1
        #: what :meth:`check_files` has seen of the last file
        self._seen: _Seen | None = None
        #: until recovery has ended, the last units of a queue that :attr:`is_sound`
        self._tail = b""
        #: until then too, units behind :attr:`_written` that are still in the file
        self._stale = b""
        #: when the files were loaded, the last unit followed the one before it, and zeros followed it
        self.is_sound = False
        #: units that :meth:`read_block` has read from a file, and the number of the first
        self.block = b""
        self.block_offset = 0
        #: in the table's list of queues to write
        self.dirty = False
        encoded = topic.encode()
        #: length and topic as they stand in a record
        self.topic_field = bytes((len(encoded),)) + encoded if len(encoded) < 128 else b""
        #: hashes of the constant beginnings of this queue's unique keys
        self.key_prefixes: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}-{self.queue_id} {self.min}..{self.end}>"

    # ---- appending ----

    def append(self, queue_offset: int, phy_offset: int, size: int, tags_code: int, store_timestamp: int = 0) -> bool:
        """
        Add the unit of a message; False when the queue has it already.

        It has every message that ends at or before :attr:`max_phy`, whatever its number: numbers come again once the
        topic was deleted and made again, places in the log do not. The first unit of an empty queue may have any
        number. QueueGap when numbers are missing in front of it: the queue is unchanged then, for a unit at a wrong
        place would shift all that follow.
        """
        if phy_offset + size <= self.max_phy:
            return False
        if queue_offset != self.end:
            if queue_offset < self.end:
                return False
            if self.end:
                raise QueueGap(self, queue_offset)
            self._begin_at(queue_offset)
        if self.ext is not None:
            tags_code = self.ext.append(tags_code, store_timestamp)
        self._buffer += CQ_UNIT.pack(phy_offset, size, tags_code)
        self.end = queue_offset + 1
        if self.next < self.end:
            # It was read from the log: its number must not be given to another.
            self.next = self.end
        self.max_phy = phy_offset + size
        return True

    def extend(self, units: bytes, max_phy: int) -> None:
        """Add units of messages that continue the queue, which has no extension (the fast way of :meth:`append`)."""
        self._buffer += units
        self.end += len(units) // CQ_UNIT_BYTES
        if self.next < self.end:
            self.next = self.end
        self.max_phy = max_phy

    def fill_gap(self, queue_offset: int, phy_offset: int, size: int, tags_code: int) -> bool:
        """
        Let copies of a unit stand for the missing ones in front of it; False when too many are missing.

        Consumers then see that message more than once, and nothing else changes its number.
        """
        missing = queue_offset - self.end
        if missing > MAX_GAP:
            return False
        self._buffer += CQ_UNIT.pack(phy_offset, size, tags_code) * missing
        self.end = queue_offset
        return True

    def _begin_at(self, queue_offset: int) -> None:
        """Let an empty queue begin at a number: fillers from the start of its file, as Apache has them."""
        if self.starts:
            self._clear()
        at = queue_offset * CQ_UNIT_BYTES
        start = at - at % self.file_bytes
        self._written = start
        self._buffer += CQ_FILLER * ((at - start) // CQ_UNIT_BYTES)
        self.min = self.end = queue_offset

    # ---- reading ----

    def read(self, queue_offset: int, count: int) -> bytes:
        """
        Return the bytes of up to ``count`` units from a number on; fewer at the end, none where there are no units.

        Never reaches over the end of a file, as a file in front of a hole may be the last that is left.
        """
        count = min(count, self.end - queue_offset)
        at = queue_offset * CQ_UNIT_BYTES
        if count <= 0 or at < 0:
            return b""
        if at >= self._written:
            at -= self._written
            return bytes(self._buffer[at : at + count * CQ_UNIT_BYTES])
        if not self.starts or at < self.starts[0]:
            return b""
        start = at - at % self.file_bytes
        stop = min(at + count * CQ_UNIT_BYTES, start + self.file_bytes)
        data = self._files.get(self.path(start)).read_at(at - start, min(stop, self._written) - at)
        return data + self._buffer[: stop - self._written] if stop > self._written else data

    def read_block(self, queue_offset: int, count: int, most: int) -> bytes:
        """
        Return what :meth:`read` does, up to ``most`` units where they are in a file: those are kept in :attr:`block`.

        The reader bounds what all queues keep with :meth:`drop_block`.
        """
        if queue_offset * CQ_UNIT_BYTES >= self._written:
            return self.read(queue_offset, count)
        self.block = self.read(queue_offset, most)
        self.block_offset = queue_offset
        return self.block

    def drop_block(self) -> None:
        self.block = b""

    def unit(self, queue_offset: int) -> Unit | None:
        """Return (phyOffset, size, tagsCode) of a number; None when there is no such unit."""
        if not 0 <= queue_offset < self.end:
            return None
        at = queue_offset * CQ_UNIT_BYTES
        if at >= self._written:
            return CQ_UNIT.unpack_from(self._buffer, at - self._written)
        if not self.starts or at < self.starts[0]:
            return None
        place = at % self.file_bytes
        return CQ_UNIT.unpack_from(self._files.get(self.path(at - place)).view_at(place, CQ_UNIT_BYTES))

    def next_file(self, queue_offset: int) -> int:
        """Return the first number of the file behind that of ``queue_offset``."""
        units = self.file_bytes // CQ_UNIT_BYTES
        return (queue_offset // units + 1) * units

    def lower_bound(self, low: int, high: int, reached: Callable[[Unit], bool]) -> int:
        """Return the first number in [low, high) whose unit is ``reached``, or high; units are taken for sorted."""
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and reached(unit):
                high = middle
            else:
                low = middle + 1
        return low

    # ---- writing ----

    def write(self) -> None:
        """Write what is buffered; recovery does not write again what is in the file already."""
        if self._buffer:
            self._tail = b""
        if self._stale and self._buffer:
            size = min(len(self._stale), len(self._buffer))
            if self._buffer.startswith(self._stale[:size]):
                self._written += size
                self._stale = self._stale[size:]
                del self._buffer[:size]
            else:
                self._wipe()
        super().write()

    def _wipe(self) -> None:
        """Let only zeros follow in the file."""
        self._stale = b""
        start = self.starts[-1]
        if self._written == self.starts[0]:
            self._first_phy = -1
        zero_from(self._files.get(self.path(start)), self._written - start, self.file_bytes)

    # ---- loading, cutting, cleaning ----

    def check_files(self, starts: list[int]) -> None:
        super().check_files(starts)
        self._seen = self._look_at(starts[-1]) if starts else None

    def _look_at(self, start: int) -> _Seen:
        """Find the units of a file in its last pages: of thousands of queues nobody may read everything."""
        file = self._files.get(self.path(start))
        size = min(file.data_end(), self.file_bytes)
        low = max(0, (size - LOOK_BYTES) // CQ_UNIT_BYTES)
        data = file.read_at(low * CQ_UNIT_BYTES, size - low * CQ_UNIT_BYTES)
        written = (int.from_bytes(data, "little").bit_length() + 7) // 8  # a third of the time of rstrip
        places = range(0, min(written, len(data) - CQ_UNIT_BYTES + 1), CQ_UNIT_BYTES)
        count = bisect_left(places, True, key=lambda place: not _is_unit(CQ_UNIT.unpack_from(data, place)))
        if low and not _is_unit(CQ_UNIT.unpack_from(data)):
            count = 0  # they end before
        first = CQ_UNIT.unpack_from(file.read_at(0, CQ_UNIT_BYTES) if low else data) if places else None
        end = count * CQ_UNIT_BYTES
        return _Seen(
            start,
            None if low and not count else low + count,
            data[max(0, end - TAIL_UNITS * CQ_UNIT_BYTES) : end],
            written <= end,
            -1 if first is None or is_filler(first) else first[0],
        )

    def load(self, starts: list[int]) -> bool:
        """Take over the files of a queue; False when one is missing between others: the queue is empty then."""
        self._take_over(starts)
        if starts and starts[-1] - starts[0] != (len(starts) - 1) * self.file_bytes:
            self._clear()
            return False
        self._find_end()
        return True

    def _find_end(self) -> None:
        """Find the last valid unit of the last file that has any; what lies behind it is not looked at."""
        seen, self._seen = self._seen, None
        while self.starts:
            start = self.starts[-1]
            self._written = start + self.file_bytes
            first = start // CQ_UNIT_BYTES
            self.end = self._written // CQ_UNIT_BYTES
            if seen is not None and seen.start == start and seen.units_in_file is not None:
                self.end = first + seen.units_in_file
            else:
                self.end = self.lower_bound(first, self.end, lambda unit: not _is_unit(unit))
            self._written = self.end * CQ_UNIT_BYTES
            if self.end > first or len(self.starts) == 1:
                break
            self.drop_last()
        units = [] if seen is None else seen.units
        if seen is None or not units or self.starts[-1:] != [seen.start]:
            self._settle(self._last())
            return
        is_first_file = len(self.starts) == 1
        if len(units) == 2 or (is_first_file and seen.units_in_file == 1):
            self.is_sound = seen.is_clean and _continues(units[-1], units[-2] if units[1:] else None)
            self._tail = seen.tail if self.is_sound else b""
        if is_first_file and seen.first_phy >= 0:
            self.min, self._first_phy = seen.start // CQ_UNIT_BYTES, seen.first_phy
        self._settle(units[-1])

    def _last(self) -> Unit | None:
        return self.unit(self.end - 1) if self.end else None

    def _settle(self, unit: Unit | None) -> None:
        """Derive what follows from the last unit."""
        self.max_phy = unit[0] + unit[1] if unit is not None and not is_filler(unit) else -1
        if self.max_phy < 0:
            # Only fillers, or nothing: the queue may begin again at any queue offset.
            self._clear()
        elif self.ext is not None:
            self.ext.cut(self._last_address(self.ext))
        self.next = self.end

    def _last_address(self, ext: QueueExt) -> int | None:
        """Return the address in the newest unit that has one; those behind were made without extension."""
        first = self.starts[0] // CQ_UNIT_BYTES if ext.starts else self.end
        for number in range(self.end - 1, first - 1, -1):
            unit = self.unit(number)
            if unit is not None and is_address(unit[2]):
                return unit[2]
        return None

    def _clear(self) -> None:
        while self.starts:
            self.drop_last()
        del self._buffer[:]
        self._written = self.min = self.end = 0
        self.max_phy = self._first_phy = -1
        self.is_sound = False
        self._tail = self._stale = self.block = b""
        if self.ext is not None:
            self._clear_ext(self.ext)

    def _clear_ext(self, ext: QueueExt) -> None:
        """Begin a new extension; of the old one nothing is written any more, perhaps it has no folder yet."""
        for start in reversed(ext.starts):
            self._files.delete(ext.path(start))
        ext.starts.clear()
        self.ext = QueueExt(self._files, ext.folder, ext.file_bytes)

    def begin_anew(self) -> None:
        """
        Drop all units, for the topic was deleted and made again: the queue begins at 0 once more.

        The files are gone for good before others get their names, the last one first: a power failure can leave some of
        the old units then, but never old ones behind new ones. DiskError leaves the queue as it was, for another try.
        """
        for part in (self, self.ext):
            if part is not None and part.starts:
                for start in reversed(part.starts):
                    self._files.delete(part.path(start))
                self._files.sync_dir(part.folder)
        self._clear()

    def cut(self, phy_offset: int) -> None:
        """
        Drop all units of messages at ``phy_offset`` and behind; after :meth:`recovered` their place reads as zeros.

        Units that a crash lost in front of others count as behind.
        """
        self.drop_block()
        self.write()
        if self._stale:
            self._wipe()
        if self.starts:
            self._files.unsynced.add(self.path(self.starts[-1]))
        if self.is_sound and self.max_phy <= phy_offset and self.ext is None:
            self.next = self.end
            return
        first = self.starts[0] // CQ_UNIT_BYTES if self.starts else 0
        if self._tail and self.ext is None and self._cut_tail(first, phy_offset):
            return
        keep = self.lower_bound(first, self.end, lambda unit: unit[1] <= 0 or not 0 <= unit[0] < phy_offset)
        while keep > first and not self._follows(keep - 1, first, phy_offset):
            keep -= 1
        while self.starts and self.starts[-1] > keep * CQ_UNIT_BYTES:
            self.drop_last()
        if self.starts:
            start = self.starts[-1]
            at = keep * CQ_UNIT_BYTES - start
            zero_from(self._files.get(self.path(start)), at, self.file_bytes)
            self._files.unsynced.add(self.path(start))
        self._written = keep * CQ_UNIT_BYTES
        self.end = keep
        self._first_phy = -1
        self._settle(self._last())

    def _cut_tail(self, first: int, phy_offset: int) -> bool:
        """
        Do the same without the file, which thousands of queues would have to open; False when that does not do.

        After a kill the log makes the same units again: they are not cleared before it is known that they differ.
        """
        units = list(CQ_UNIT.iter_unpack(self._tail))
        begin = self.end - len(units)
        count = bisect_left(units, True, key=lambda unit: unit[1] <= 0 or not 0 <= unit[0] < phy_offset)
        last, before = (None, *units)[count], (None, None, *units)[count]
        if (begin > first and before is None) or (not count and self.starts != [0]):
            return False
        if last is not None and (is_filler(last) or not _continues(last, before)):
            return False
        self._stale = self._tail[count * CQ_UNIT_BYTES :]
        self._tail = b""
        self.end = self.next = begin + count
        self._written = self.end * CQ_UNIT_BYTES
        self.max_phy = -1 if last is None else last[0] + last[1]
        return True

    def recovered(self) -> None:
        """Recovery has ended: clear what :meth:`cut` has left in the file, and give the next message this number."""
        if self._stale:
            self.write()
        if self.starts and not self.end:
            self._clear()
        elif self._stale:
            self._wipe()
        self._tail = b""
        self.next = self.end

    def _follows(self, queue_offset: int, first: int, phy_offset: int) -> bool:
        """Tell whether a unit points in front of ``phy_offset`` and continues the one before it."""
        unit = self.unit(queue_offset)
        if unit is None or unit[1] <= 0 or unit[0] >= phy_offset:
            return False
        return _continues(unit, self.unit(queue_offset - 1) if queue_offset > first else None)

    def correct_min(self, min_phy: int) -> None:
        """Let the queue begin with the first message that the log still has; at its end when there is none."""
        if self._first_phy >= max(0, min_phy) and self.ext is None:
            return
        first = max(self.min, self.starts[0] // CQ_UNIT_BYTES if self.starts else 0)
        self.min = self.lower_bound(first, self.end, lambda unit: unit[0] >= min_phy and not is_filler(unit))
        unit = self.unit(self.min)
        self._first_phy = -1 if unit is None else unit[0]
        if self.ext is not None and unit is not None and is_address(unit[2]):
            self.ext.delete_before(unit[2])

    def delete_expired(self, min_phy: int) -> int:
        """Delete leading files that only point below ``min_phy``; return how many."""
        count = 0
        while len(self.starts) > 1:
            last = self.unit(self.starts[1] // CQ_UNIT_BYTES - 1)
            if last is None or last[0] >= min_phy:
                break
            self._drop(0)
            count += 1
        self.correct_min(min_phy)
        return count

    def destroy(self) -> None:
        """Delete all files of the queue."""
        self._clear()
        self.next = 0
