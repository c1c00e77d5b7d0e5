"""Walk through the records of a commit log, and find out where it goes on behind a damaged place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from rmq.wire.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    Flaw,
    Frame,
    is_torso,
    read_frame,
)

CHUNK_BYTES = 1 << 20
#: a size field that claims more is damaged
MAX_RECORD_BYTES = 64 << 20
#: so many intact records in a row are more than a remnant
CHAIN_RECORDS = 3

_ZEROS = bytes(CHUNK_BYTES)
_MAGICS = tuple(SIZE_AND_MAGIC.pack(0, magic)[4:] for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


class Bytes(Protocol):
    """A commit log, as far as scanning goes."""

    segment_bytes: int

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes: ...


def file_end(log: Bytes, offset: int) -> int:
    """Return where the file ends that ``offset`` lies in."""
    return offset - offset % log.segment_bytes + log.segment_bytes


def scan(
    log: Bytes, start: int, until: int, *, check_crc: bool, walk: Callable[[bytes, int, int, bool], int] | None = None
) -> Iterator[tuple[int, Frame | Flaw]]:
    """
    Yield (physical offset, record) from ``start`` on; BLANKs are passed over.

    ``walk`` is given each piece of the log first, with a position in it, the piece's offset and ``check_crc``; it takes
    what it likes of the records from there on and returns the position behind them. Those are not yielded.

    Ends at ``until``, or behind the first flaw, which it yields last: Flaw.INCOMPLETE when the record reaches beyond
    ``until``, anything else when bytes are damaged (or, at the end of what was written, empty).
    """
    at = start
    chunk = CHUNK_BYTES
    while at < until:
        data = log.read_some(at, chunk, until)
        base = at
        end = file_end(log, base)
        # the file is cut short, or missing
        ends_early = len(data) < min(chunk, until - base, end - base)
        position = 0
        size = len(data)
        flaw: Flaw | None = None
        while position < size:
            if walk is not None and (position := walk(data, position, base, check_crc)) >= size:
                break
            frame = read_frame(data, position, size, phy_offset=base + position, check_crc=check_crc)
            if isinstance(frame, Flaw):
                flaw = frame
                break
            yield base + position, frame
            position += frame.size
        at = base + position
        if ends_early and flaw in (None, Flaw.INCOMPLETE):
            yield at, Flaw.INCOMPLETE
            return
        if flaw is None:
            chunk = CHUNK_BYTES
        elif flaw is Flaw.BLANK and _bytes_to_read(data, position) == end - at:
            at = end
            chunk = CHUNK_BYTES
        elif flaw is Flaw.INCOMPLETE and base + size < min(until, end):
            chunk = _bytes_to_read(data, position)
            if at + chunk + BLANK_BYTES > end or chunk > MAX_RECORD_BYTES:
                yield at, Flaw.SIZE
                return
            chunk = max(chunk, CHUNK_BYTES)
        else:
            # A BLANK of the wrong size, or a record that reaches beyond its file, was not cut by `until`.
            wrong_size = flaw is Flaw.BLANK or (flaw is Flaw.INCOMPLETE and base + size == end)
            yield at, Flaw.SIZE if wrong_size else flaw
            return


def _bytes_to_read(data: bytes, position: int) -> int:
    """Return how long the record at ``position`` says it is, as far as that can be read."""
    if position + SIZE_AND_MAGIC.size > len(data):
        return SIZE_AND_MAGIC.size
    size: int = SIZE_AND_MAGIC.unpack_from(data, position)[0]
    return size


@attrs.define
class Search:
    """
    Go from one whole, intact record to the next, through bytes that may be anything: damage, remains, nothing.

    A record must carry its own physical offset, match its body's CRC and lack no bytes. Behind a BLANK the next file
    follows: what lies there, where an Apache broker had once cut its log back, is no part of the log.
    """

    log: Bytes
    start: int
    until: int
    #: of what was looked at so far, the end of the last byte that is not zero (or is a record's, or follows a BLANK)
    written_to: int = attrs.field(init=False, default=0)

    def records(self) -> Iterator[tuple[int, Frame]]:
        """Yield (physical offset, record), from ``start`` to ``until``."""
        log, at = self.log, self.start
        while at < self.until:
            end = file_end(log, at)
            data = log.read_some(at, CHUNK_BYTES, self.until)
            if not data:
                at = end  # a file that is cut short, or missing
                continue
            following = at
            # Most of what is searched was never written; comparing takes a tenth of searching.
            if data != (_ZEROS if len(data) == CHUNK_BYTES else bytes(len(data))):
                self.written_to = max(self.written_to, at + len(data.rstrip(b"\0")))
                for position in _candidates(data):
                    offset = at + position
                    if offset < following:
                        continue
                    if SIZE_AND_MAGIC.unpack_from(data, position) == (end - offset, MAGIC_BLANK):
                        following = self.written_to = end
                        break
                    frame = _intact_at(log, offset, self.until, data, position)
                    if frame is not None:
                        following = offset + frame.size
                        self.written_to = max(self.written_to, following)
                        yield offset, frame
            # The magic may lie across the border of two chunks.
            border = end if at + len(data) == end else at + max(1, len(data) - SIZE_AND_MAGIC.size + 1)
            at = max(border, following)


def find_record(log: Bytes, start: int, until: int, *, not_before_ms: int = 0) -> int | None:
    """
    Return the first offset from ``start`` on where a whole, intact record lies; None when there is none.

    Records older than ``not_before_ms`` are passed by.
    """
    for offset, frame in Search(log, start, until).records():
        if frame.store_timestamp >= not_before_ms:
            return offset
    return None


def find_continuation(log: Bytes, start: int, until: int, *, last_ms: int) -> int | None:
    """
    Return the first offset from ``start`` on where the log goes on behind damage, as far as bytes can tell; or None.

    ``last_ms`` is the store time of the last record before. See :func:`heads_chain` for records that are older.
    """
    for offset, frame in Search(log, start, until).records():
        if frame.store_timestamp >= last_ms or heads_chain(log, offset, until):
            return offset
    return None


def heads_chain(log: Bytes, start: int, until: int) -> bool:
    """
    Tell whether the record at ``start`` is followed directly by two more intact ones, or a BLANK closes its file first.

    A record older than the one before the damage is either a remnant, which a cut of the log (Apache's clear nothing)
    left behind its end, or was stored after the clock had been set back. What was written later cuts through remnants
    and leaves pieces of them; where the log really goes on, it does so without a break.
    """
    following = start
    for count, (at, frame) in enumerate(scan(log, start, until, check_crc=True), 1):
        if at != following:
            return True
        if isinstance(frame, Flaw) or is_torso(frame, (at + frame.size) % log.segment_bytes):
            return False
        if count == CHAIN_RECORDS:
            return True
        following = at + frame.size
    return True


def behind_damage(log: Bytes, at: int) -> int:
    """
    Return from where on to search behind a damaged place: its next byte, or the next file when it was a BLANK.

    Either field tells a BLANK: no record is as long as the rest of its file.
    """
    end = file_end(log, at)
    head = log.read_some(at, SIZE_AND_MAGIC.size)
    if len(head) == SIZE_AND_MAGIC.size:
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if size == end - at or magic == MAGIC_BLANK:
            return end
    return at + 1


def _candidates(data: bytes) -> list[int]:
    """Return the positions in front of every magic number, in order."""
    found: list[int] = []
    for magic in _MAGICS:
        at = data.find(magic, 4)
        while at >= 0:
            found.append(at - 4)
            at = data.find(magic, at + 1)
    return sorted(found)


def _intact_at(log: Bytes, offset: int, until: int, data: bytes, position: int) -> Frame | None:
    """Return the record at ``offset``, which is ``position`` in ``data``, if it is one and lacks nothing."""
    frame = read_frame(data, position, len(data), phy_offset=offset, check_crc=True)
    if frame is Flaw.INCOMPLETE:
        frame = _read_alone(log, offset, until)
    if isinstance(frame, Flaw) or is_torso(frame, (offset + frame.size) % log.segment_bytes):
        return None
    return frame


def _read_alone(log: Bytes, offset: int, until: int) -> Frame | Flaw:
    """Look at a record that reaches over the end of a chunk."""
    head = log.read_some(offset, SIZE_AND_MAGIC.size, until)
    size = _bytes_to_read(head, 0)
    if len(head) < SIZE_AND_MAGIC.size or not 0 < size <= MAX_RECORD_BYTES:
        return Flaw.SIZE
    data = log.read_some(offset, size, until)
    return read_frame(data, 0, len(data), phy_offset=offset, check_crc=True)
