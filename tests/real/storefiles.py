"""
A store directory, read from outside: segments, records, differences between two replicas, and planted damage.

Independent of the product's own readers. Offsets are physical offsets of the commit log.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.real.probe import BLANK_MAGIC, RECORD_MAGIC, Record, decode_record

_HEAD = struct.Struct(">II")
_PIECE = 1 << 20


def segments(commitlog: Path) -> dict[int, Path]:
    """Return the segment files by their start offset, in order."""
    names = sorted(path for path in commitlog.iterdir() if path.name.isdigit() and len(path.name) == 20)
    return {int(path.name): path for path in names}


def records(commitlog: Path) -> Iterator[Record]:
    """Yield every record from the first segment on, until zeros or the end; ValueError where the chain breaks."""
    return _records_below(commitlog, sys.maxsize)


def whole_records(commitlog: Path) -> Iterator[Record]:
    """
    Yield the records of a log whose writer was killed, but for a last one of which only the beginning was written.

    ValueError where a record breaks off in front of other bytes. Records must end with a property, as otherwise nobody
    can tell whether the last one is whole.
    """
    return _records_below(commitlog, _written_end(commitlog))


def _written_end(commitlog: Path) -> int:
    """Return the offset behind the last byte that is not zero."""
    for start, path in reversed(segments(commitlog).items()):
        used = len(path.read_bytes().rstrip(b"\0"))
        if used:
            return start + used
    return 0


def _records_below(commitlog: Path, end: int) -> Iterator[Record]:
    """Yield the records up to the first one that reaches beyond ``end``."""
    for start, path in segments(commitlog).items():
        data = path.read_bytes()
        at = 0
        while at + _HEAD.size <= len(data):
            size, magic = _HEAD.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                break
            if (size == 0 and magic == 0) or start + at + size > end:
                return
            if magic != RECORD_MAGIC:
                raise ValueError(f"{path}: neither record nor filler at {start + at}: size {size}, magic {magic:#x}")
            record = decode_record(data, at)
            if record.phy_offset != start + at:
                raise ValueError(f"{path}: the record at {start + at} says it lies at {record.phy_offset}")
            yield record
            at += size


def first_difference(left: Path, right: Path, end: int) -> str | None:
    """
    Compare two commit logs byte for byte from 0 to ``end``; None when equal, else one line about the first difference.

    Both must have all segments from 0 on, in the same sizes.
    """
    ours, theirs = segments(left), segments(right)
    for start, path in ours.items():
        if start >= end:
            break
        other = theirs.get(start)
        if other is None:
            return f"{right} has no segment {start:020d}; it has {[f'{s:020d}' for s in theirs]}"
        a, b = path.read_bytes(), other.read_bytes()
        if len(a) != len(b):
            return f"segment {start:020d} has {len(a)} bytes in {left} and {len(b)} in {right}"
        stop = min(len(a), end - start)
        for piece in range(0, stop, _PIECE):
            x, y = a[piece : min(piece + _PIECE, stop)], b[piece : min(piece + _PIECE, stop)]
            if x != y:
                at = next(i for i, (p, q) in enumerate(zip(x, y, strict=True)) if p != q)
                return f"byte {start + piece + at} is {x[at]:#04x} in {left} and {y[at]:#04x} in {right}"
    if 0 not in ours:
        return f"{left} does not begin at 0 but has {[f'{s:020d}' for s in ours]}"
    return None


def flip_body_byte(commitlog: Path, record: Record) -> int:
    """Flip one bit in the middle of the record's body, in the file; return the physical offset of the damaged byte."""
    offset = record.phy_offset + record.body_at + len(record.body) // 2
    start = max(s for s in segments(commitlog) if s <= offset)
    with segments(commitlog)[start].open("r+b") as file:
        file.seek(offset - start)
        byte = file.read(1)[0]
        file.seek(offset - start)
        file.write(bytes([byte ^ 0x01]))
    return offset
