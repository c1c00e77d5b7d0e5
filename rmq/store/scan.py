"""Walk through the records of a commit log, and find the next one behind a damaged place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from rmq.wire.record import BLANK_BYTES, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, Flaw, Frame, is_torso, read_frame

CHUNK_BYTES = 1 << 20
#: a size field that claims more is damaged
MAX_RECORD_BYTES = 64 << 20

_ZEROS = bytes(CHUNK_BYTES)
_MAGICS = tuple(SIZE_AND_MAGIC.pack(0, magic)[4:] for magic in (MAGIC_V1, MAGIC_V2))


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
        end = file_end(log, base)
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


def find_record(log: Bytes, start: int, until: int, *, not_before_ms: int) -> int | None:
    """
    Return the first offset from ``start`` on where a whole, intact record lies; None when there is none.

    It must carry its own physical offset, match its body's CRC, lack no bytes and be no older than ``not_before_ms``:
    what a former life of the log left behind its end would be older than the records before it.
    """
    at = start
    while at < until:
        end = file_end(log, at)
        data = log.read_some(at, CHUNK_BYTES, until)
        for position in _candidates(data):
            offset = at + position
            frame = read_frame(data, position, len(data), phy_offset=offset, check_crc=True)
            if frame is Flaw.INCOMPLETE:
                frame = _read_alone(log, offset, until)
            if (
                isinstance(frame, Frame)
                and frame.store_timestamp >= not_before_ms
                and not is_torso(frame, (offset + frame.size) % log.segment_bytes)
            ):
                return offset
        # The magic may lie across the border of two chunks.
        at = end if at + len(data) == end else at + max(1, len(data) - SIZE_AND_MAGIC.size + 1)
    return None


def _candidates(data: bytes) -> list[int]:
    """Return the positions in front of every magic number, in order."""
    found: list[int] = []
    # Most of what is searched was never written; comparing takes a tenth of searching.
    if data == (_ZEROS if len(data) == CHUNK_BYTES else bytes(len(data))):
        return found
    for magic in _MAGICS:
        at = data.find(magic, 4)
        while at >= 0:
            found.append(at - 4)
            at = data.find(magic, at + 1)
    return sorted(found)


def _read_alone(log: Bytes, offset: int, until: int) -> Frame | Flaw:
    """Look at a record that reaches over the end of a chunk."""
    head = log.read_some(offset, SIZE_AND_MAGIC.size, until)
    size = _bytes_to_read(head, 0)
    if len(head) < SIZE_AND_MAGIC.size or not 0 < size <= MAX_RECORD_BYTES:
        return Flaw.SIZE
    data = log.read_some(offset, size, until)
    return read_frame(data, 0, len(data), phy_offset=offset, check_crc=True)
