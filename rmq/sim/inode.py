"""
The content of a simulated file: what programs see (`live`), what the platter holds (`durable`), and the writes between.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

#: granularity of the sparse content
PAGE_BYTES = 4096
#: what an ordinary disk writes whole or not at all
SECTOR_BYTES = 512


class SparseBytes:
    """Bytes of which only written pages take memory."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytearray] = {}

    def read(self, offset: int, size: int) -> bytes:
        start = offset % PAGE_BYTES
        if start + size <= PAGE_BYTES:
            page = self.pages.get(offset // PAGE_BYTES)
            return bytes(size) if page is None else bytes(page[start : start + size])
        pieces = []
        end = offset + size
        while offset < end:
            number, start = divmod(offset, PAGE_BYTES)
            count = min(PAGE_BYTES - start, end - offset)
            page = self.pages.get(number)
            pieces.append(bytes(count) if page is None else bytes(page[start : start + count]))
            offset += count
        return b"".join(pieces)

    def write(self, offset: int, data: bytes) -> None:
        if offset + len(data) > self.size:
            self.size = offset + len(data)
        start = offset % PAGE_BYTES
        if 0 < len(data) <= PAGE_BYTES - start:
            page = self.pages.get(offset // PAGE_BYTES)
            if page is None:
                page = self.pages[offset // PAGE_BYTES] = bytearray(PAGE_BYTES)
            page[start : start + len(data)] = data
            return
        position = 0
        while position < len(data):
            number, start = divmod(offset + position, PAGE_BYTES)
            count = min(PAGE_BYTES - start, len(data) - position)
            page = self.pages.setdefault(number, bytearray(PAGE_BYTES))
            page[start : start + count] = data[position : position + count]
            position += count

    def resize(self, size: int) -> None:
        if size < self.size:
            last, start = divmod(size, PAGE_BYTES)
            for number in [number for number in self.pages if number > last or (number == last and start == 0)]:
                del self.pages[number]
            if last in self.pages:
                self.pages[last][start:] = bytes(PAGE_BYTES - start)
        self.size = size

    def copy(self) -> SparseBytes:
        other = SparseBytes()
        other.size = self.size
        other.pages = {number: bytearray(page) for number, page in self.pages.items()}
        return other


@attrs.define
class Write:
    offset: int
    data: bytes

    def apply(self, content: SparseBytes) -> None:
        content.write(self.offset, self.data)


@attrs.frozen
class Resize:
    size: int

    def apply(self, content: SparseBytes) -> None:
        content.resize(self.size)


@attrs.define(kw_only=True)
class CrashOdds:
    """How likely each fate of an unsynced write is at a power failure; the rest is dropped."""

    kept: float = 0.4
    torn: float = 0.2
    garbage: float = 0.02


class Inode:
    """One file, whatever its names are."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.live = SparseBytes()
        self.durable = SparseBytes()
        self.pending: list[Write | Resize] = []
        #: room that is set aside beyond the pages that are written
        self.reserved_bytes = 0
        self.modified_s = 0.0

    @property
    def allocated_bytes(self) -> int:
        return max(self.reserved_bytes, len(self.live.pages) * PAGE_BYTES)

    @property
    def unsynced_from(self) -> int:
        """The first byte that the platter may hold otherwise; the size when there is none."""
        starts = [
            change.offset if isinstance(change, Write) else min(change.size, self.durable.size)
            for change in self.pending
        ]
        return min(starts, default=self.live.size)

    def needs_bytes(self, write: Write) -> int:
        """How much room ``write`` takes that the file does not have yet."""
        end = write.offset + len(write.data)
        if end <= self.reserved_bytes:
            return 0
        numbers = range(write.offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)
        new = sum(number not in self.live.pages for number in numbers) * PAGE_BYTES
        return max(0, new - max(0, self.reserved_bytes - len(self.live.pages) * PAGE_BYTES))

    def change(self, change: Write | Resize) -> None:
        change.apply(self.live)
        self.pending.append(change)

    def count_to(self, last: Write | Resize | None) -> int:
        """Return how many of the pending changes there are up to ``last``; 0 when it is durable already."""
        for number, change in enumerate(self.pending, 1):
            if change is last:
                return number
        return 0

    def make_durable(self, count: int) -> None:
        """The oldest ``count`` changes reached the platter."""
        for change in self.pending[:count]:
            change.apply(self.durable)
        del self.pending[:count]

    def lose_some(self, count: int, rng: Random) -> None:
        """A sync of the oldest ``count`` changes failed: some are durable, and the kernel forgets about the others."""
        for change in self.pending[:count]:
            if rng.random() < 0.5:
                change.apply(self.durable)
        del self.pending[:count]

    def crash(self, rng: Random, odds: CrashOdds, note: Callable[..., None], sector_bytes: int = SECTOR_BYTES) -> None:
        """
        The power went: every change that was not synced meets its fate.

        A sector is written whole, with all that was changed in it until then: where a write survives, so do earlier
        ones of the same sector. ``sector_bytes`` 1 lets any byte of a torn write survive or not.
        """
        #: by number of their sector
        lost: dict[int, list[Write]] = {}
        for change in self.pending:
            fate = rng.random()
            if isinstance(change, Resize):
                if fate < odds.kept:
                    change.apply(self.durable)
                else:
                    note("dropped", self.number, "size")
            elif fate < odds.kept:
                self._keep(sectors(change, sector_bytes), lost, sector_bytes)
            elif fate < odds.kept + odds.torn:
                note("torn", self.number, change.offset, len(change.data))
                kept = [(piece, rng.random() < 0.5) for piece in sectors(change, sector_bytes)]
                self._keep([piece for piece, is_kept in kept if is_kept], lost, sector_bytes)
                _lose([piece for piece, is_kept in kept if not is_kept], lost, sector_bytes)
            elif fate < odds.kept + odds.torn + odds.garbage:
                # Noise instead of what was written; never in a sector that holds something else, too.
                pieces = sectors(change, sector_bytes)
                whole = [each for each in pieces if len(each.data) == sector_bytes]
                noise = [Write(each.offset, rng.randbytes(sector_bytes)) for each in whole]
                note("garbage", self.number, change.offset, len(noise))
                self._keep(noise, lost, sector_bytes)
                _lose([each for each in pieces if len(each.data) < sector_bytes], lost, sector_bytes)
            else:
                note("dropped", self.number, change.offset)
                _lose(sectors(change, sector_bytes), lost, sector_bytes)
        self.pending.clear()
        self.live = self.durable.copy()

    def _keep(self, pieces: list[Write], lost: dict[int, list[Write]], sector_bytes: int) -> None:
        for piece in pieces:
            for earlier in lost.pop(piece.offset // sector_bytes, ()):
                earlier.apply(self.durable)
            piece.apply(self.durable)

    def flip_bit(self, offset: int, bit: int) -> None:
        """Rot one bit, on the platter and in memory."""
        for content in (self.live, self.durable):
            if offset < content.size:
                content.write(offset, bytes([content.read(offset, 1)[0] ^ (1 << bit)]))


def sectors(write: Write, sector_bytes: int) -> list[Write]:
    """Cut a write at the borders of sectors."""
    pieces = []
    start = 0
    while start < len(write.data):
        end = min(len(write.data), start + sector_bytes - (write.offset + start) % sector_bytes)
        pieces.append(Write(write.offset + start, write.data[start:end]))
        start = end
    return pieces


def _lose(pieces: list[Write], lost: dict[int, list[Write]], sector_bytes: int) -> None:
    for piece in pieces:
        lost.setdefault(piece.offset // sector_bytes, []).append(piece)
