"""
From bytes to columns: walk a stretch of commit log, check its frames, take its fields out, group its queues.

Everything here works on one buffer and on positions inside it; nothing opens a file or knows a replica. Each function
does its work in the compiled `_kernel` where that was built, and otherwise here: then the walk from record to record is
plain Python, because each step needs the one before (282 ns a record, where every search for magics costs 450 and
more), and all that follows is numpy over whole columns. The answers are the same.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import tempfile
import zipimport
import zlib
from collections.abc import Sequence
from types import ModuleType

import attrs
import numpy as np
import numpy.typing as npt
import xxhash

from rmq.wire.compiled import PURE_PYTHON, load
from rmq.wire.record import (
    BORN_HOST_V6,
    FIELD_AT,
    INNER_BATCH,
    IPV6_EXTRA_BYTES,
    STORE_HOST_V6,
    STORE_TIMESTAMP_AT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmq_audit.worker.records import (
    HEADER,
    HEADER_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
)

#: files of this package's folder with this end are libraries for this Python on this kind of machine
LIBRARY_SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]

#: what imported this module: for a folder it is something else
_ZIP = __spec__.loader if isinstance(__spec__.loader, zipimport.zipimporter) else None


def archive() -> str | None:
    """Return the zip that this package was imported from, None where it lies in a folder."""
    return None if _ZIP is None else _ZIP.archive


def load_compiled(name: str) -> ModuleType | None:
    """
    Return the compiled module ``name``; None where there is none for this Python, or where it is switched off.

    The system loads libraries from files only: one in a zip is written to a file first, which is deleted once loaded.
    """
    found = load(name)
    if found is not None or _ZIP is None or os.environ.get(PURE_PYTHON):
        return found
    try:
        data = _ZIP.get_data(name.replace(".", "/") + LIBRARY_SUFFIX)
        with tempfile.NamedTemporaryFile(suffix=LIBRARY_SUFFIX) as file:
            file.write(data)
            file.flush()
            spec = importlib.util.spec_from_file_location(name, file.name)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    except (OSError, ImportError):
        # made for another machine, or /tmp may hold no programs
        return None
    return module


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

compiled = load_compiled("rmq_audit.worker._kernel")

#: named in the summary
NAME = "numpy" if compiled is None else "compiled"

#: phyOffset and size of a consume queue unit; tagsCodes have a digest of their own, since not every record decides its
UNIT_HEAD = np.dtype([("phy", ">i8"), ("size", ">i4")])
TAGS_CODE = np.dtype(">i8")

_MIX = np.uint64(0x9FB21C651E98DF25)
#: what tells the hashes of two queues of one topic apart
_QUEUE_STEP = 0x1E3779B97F4A7C15


@attrs.define(slots=True)
class Columns:
    """Fields of consecutive records, one array a field; positions are relative to the buffer they came from."""

    pos: Ints
    size: Ints
    crc: Ints
    queue_id: Ints
    queue_offset: Ints
    phy: Ints
    sys_flag: Ints
    store_timestamp: Ints
    body_pos: Ints
    body_length: Ints
    topic_pos: Ints
    topic_length: Ints
    properties_pos: Ints
    properties_length: Ints

    def __len__(self) -> int:
        return len(self.pos)

    def topic(self, data: bytes, row: int) -> str:
        """Return the topic of one record of ``data``."""
        at = int(self.topic_pos[row])
        return data[at : at + int(self.topic_length[row])].decode("utf-8", "backslashreplace")

    def rows(self, begin: int, end: int) -> Columns:
        """Return the records from number ``begin`` to before ``end``."""
        return Columns(*(getattr(self, field.name)[begin:end] for field in attrs.fields(Columns)))

    def chosen(self, rows: Ints) -> Columns:
        """Return the records with those numbers."""
        return Columns(*(getattr(self, field.name)[rows] for field in attrs.fields(Columns)))


@attrs.frozen(kw_only=True)
class Run:
    """
    Consecutive queue offsets of one queue, and digests over what its units must hold: the (phyOffset, size) pairs, and
    the tagsCodes (None where the record alone does not decide them).

    ``further``: records of other topics may be among them, whose further queue it is. ``copied``: their numbers may be
    those of the records that they are copies of.
    """

    topic: str
    queue_id: int
    first: int
    last: int
    phy_first: int
    phy_last: int
    digest: int | None
    tags_digest: int | None = None
    further: bool = False
    copied: bool = False


def walk(data: bytes, at: int, stop: int, end: int) -> list[int]:
    """Return the starts that totalSize leads to from ``at``, while magic and totalSize may be those of a record."""
    unpack = SIZE_MAGIC.unpack_from
    starts: list[int] = []
    add = starts.append
    end = min(end, len(data))
    stop = min(stop, end - MIN_RECORD_BYTES + 1)
    while at < stop:
        size, magic = unpack(data, at)
        if not MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES or (magic != MAGIC_V1 and magic != MAGIC_V2):
            break
        add(at)
        at += size
    # only the last one may reach beyond the end
    return starts[:-1] if starts and at > end else starts


def gather(data: bytes, starts: Sequence[int] | Ints) -> Columns:
    """
    Return the columns of the records at ``starts``, up to the first one whose parts do not add up to its totalSize.

    Every record must lie in ``data`` completely. physicalOffset is taken as it stands.
    """
    pos = np.asarray(starts, dtype=np.int64)
    if compiled is not None:
        return Columns(*compiled.gather(data, pos))
    if len(pos) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return Columns(*([empty] * len(attrs.fields(Columns))))
    head = items(data, pos, HEADER_BYTES).view(HEADER)
    size, sys_flag = head["totalSize"].astype(np.int64), head["sysFlag"].astype(np.int64)
    born = np.where(sys_flag & BORN_HOST_V6, IPV6_EXTRA_BYTES, 0)
    shift = born + np.where(sys_flag & STORE_HOST_V6, IPV6_EXTRA_BYTES, 0)
    if shift.any():
        limit = len(data) - 8
        store_timestamp = _numbers(data, np.minimum(pos + STORE_TIMESTAMP_AT + born, limit), ">i8")
        body_length = _numbers(data, np.minimum(pos + FIELD_AT["bodyLength"] + shift, limit), ">i4")
    else:
        store_timestamp, body_length = head["storeTimestamp"].astype(np.int64), head["bodyLength"].astype(np.int64)
    body_pos = pos + HEADER_BYTES + shift
    end = pos + size
    topic_at = body_pos + body_length
    good = (body_length >= 0) & (topic_at + 3 <= end)
    topic_at = np.where(good, topic_at, pos)
    wide = head["magicCode"].view(">u4") == MAGIC_V2
    topic_length = _numbers(data, topic_at, ">i1")
    if wide.any():
        topic_length = np.where(wide, _numbers(data, topic_at, ">i2"), topic_length)
    topic_pos = topic_at + 1 + wide
    properties_at = topic_pos + topic_length
    good &= (topic_length >= 1) & (properties_at + 2 <= end)
    properties_length = _numbers(data, np.where(good, properties_at, pos), ">i2")
    good &= (properties_length >= 0) & (properties_at + 2 + properties_length == end)
    columns = Columns(
        pos=pos,
        size=size,
        crc=head["bodyCRC"].astype(np.int64) & 0xFFFFFFFF,
        queue_id=head["queueId"].astype(np.int64),
        queue_offset=head["queueOffset"].astype(np.int64),
        phy=head["physicalOffset"].astype(np.int64),
        sys_flag=sys_flag,
        store_timestamp=store_timestamp,
        body_pos=body_pos,
        body_length=body_length,
        topic_pos=topic_pos,
        topic_length=topic_length,
        properties_pos=properties_at + 2,
        properties_length=properties_length,
    )
    return columns if good.all() else columns.rows(0, int(np.argmin(good)))


def concatenate(pieces: Sequence[Columns]) -> Columns:
    """Return the records of all pieces, in order."""
    if not pieces:
        return gather(b"", ())
    return Columns(*(np.concatenate([getattr(one, field.name) for one in pieces]) for field in attrs.fields(Columns)))


def failed_crcs(data: bytes, columns: Columns) -> Ints:
    """Return the indices of the records whose body does not have the CRC they state; empty bodies state none."""
    view, crc32 = memoryview(data), zlib.crc32
    ends = columns.body_pos + columns.body_length
    seen = np.fromiter(
        (crc32(view[a:b]) for a, b in zip(columns.body_pos.tolist(), ends.tolist(), strict=True)),
        dtype=np.int64,
        count=len(columns),
    )
    return np.flatnonzero(((seen & 0x7FFFFFFF) != columns.crc) & (columns.body_length > 0))


def with_holes(data: bytes, columns: Columns) -> Ints:
    """Return the indices of the records with a zero byte in topic or properties, which no client can have sent."""
    zeros = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 0)

    def held(pos: Ints, length: Ints) -> Bools:
        found: Bools = np.searchsorted(zeros, pos) != np.searchsorted(zeros, pos + length)
        return found

    topics = held(columns.topic_pos, columns.topic_length)
    return np.flatnonzero(topics | held(columns.properties_pos, columns.properties_length))


def queue_keys(data: bytes, columns: Columns) -> Ints:
    """
    Return for each record the number of its queue, in the order of nothing in particular: equal numbers, equal queues.

    Topics are compared by a 64-bit hash first and then byte by byte with the record that stands for their group.
    """
    if compiled is not None:
        found: Ints = compiled.queue_keys(data, columns.topic_pos, columns.topic_length, columns.queue_id)
        return found
    pos, lengths, queue_id = columns.topic_pos, columns.topic_length, columns.queue_id
    hashes = text_hashes(data, pos, lengths) + queue_id * _QUEUE_STEP
    _, heads, keys = np.unique(hashes, return_index=True, return_inverse=True)
    head = heads[keys]
    same = (queue_id == queue_id[head]) & (lengths == lengths[head])
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(same & (lengths == length))
        one, other = (items(data, pos[chosen], length).view(f"S{length}") for chosen in (rows, head[rows]))
        same[rows] = one == other
    return keys.astype(np.int64) if same.all() else _keys_one_by_one(data, columns)


def text_hashes(data: bytes, pos: Ints, length: Ints) -> Ints:
    """
    Return a 64-bit hash of each text; there must be eight bytes before the first one.

    Texts of a length are hashed together, word by word, the first word reaching back before the text and masked.
    """
    found = np.zeros(len(pos), dtype=np.uint64)
    for size in np.unique(length[length > 0]).tolist():
        rows = np.flatnonzero(length == size)
        spare = -size % 8
        words = items(data, pos[rows] - spare, size + spare).view("<u8").reshape(len(rows), -1).astype(np.uint64)
        words[:, :1] &= np.uint64(0xFFFFFFFFFFFFFFFF << 8 * spare & 0xFFFFFFFFFFFFFFFF)
        mixed = np.full(len(rows), size, dtype=np.uint64)
        for column in range(words.shape[1]):
            mixed = (mixed ^ words[:, column]) * _MIX
            mixed ^= mixed >> np.uint64(29)
        found[rows] = mixed
    return found.view(np.int64)


def owns_unit(columns: Columns) -> Bools:
    """
    Return which records own exactly one unit of their queue.

    Prepared and rolled back halves own none (their queueOffset is 0), inner batches own several.
    """
    kind = columns.sys_flag & TRANSACTION_MASK
    halves = (kind == TRANSACTION_PREPARED) | (kind == TRANSACTION_ROLLBACK)
    owning: Bools = ~halves & ((columns.sys_flag & INNER_BATCH) == 0)
    return owning


def runs(data: bytes, columns: Columns, keys: Ints, base: int, tags: Ints | None = None) -> list[Run]:
    """
    Return the longest runs of consecutive queue offsets, in the order of their first record; ``base`` is the physical
    offset of the buffer's first byte.

    Records that do not own exactly one unit are left out. ``tags`` are the tagsCodes of all records, if their digest is
    wanted.
    """
    rows, heads, tails, units, packed = _sorted_units(columns, keys, base, tags)
    order = np.argsort(rows[heads])
    heads, tails = heads[order], tails[order]
    first, last = rows[heads], rows[tails]
    numbers = (
        *(heads, tails, first, columns.queue_id[first], columns.queue_offset[first], columns.queue_offset[last]),
        *(columns.pos[first] + base, columns.pos[last] + base),
    )
    return [
        Run(
            topic=columns.topic(data, row),
            queue_id=queue_id,
            first=begin,
            last=end,
            phy_first=phy_first,
            phy_last=phy_last,
            digest=_digest(units, UNIT_HEAD.itemsize, head, tail),
            tags_digest=None if packed is None else _digest(packed, TAGS_CODE.itemsize, head, tail),
        )
        for head, tail, row, queue_id, begin, end, phy_first, phy_last in zip(
            *(one.tolist() for one in numbers), strict=True
        )
    ]


def _sorted_units(
    columns: Columns, keys: Ints, base: int, tags: Ints | None
) -> tuple[Ints, Ints, Ints, memoryview, memoryview | None]:
    """
    Return the rows that own a unit, queue by queue; where in them runs begin and end; and their (phyOffset, size) pairs
    and tagsCodes as they stand in consume queues.
    """
    if compiled is not None:
        parts = columns.sys_flag, columns.queue_offset, columns.pos, columns.size
        rows, heads, tails, units, packed = compiled.sorted_units(keys, *parts, base, tags)
        return rows, heads, tails, memoryview(units), None if packed is None else memoryview(packed)
    rows = np.flatnonzero(owns_unit(columns))
    # numbers of queues that fit 16 bits are sorted by radix: 2 ns a record instead of 40
    narrow = keys[rows].astype(np.uint16) if len(rows) and int(keys.max()) < 1 << 16 else keys[rows]
    rows = rows[np.argsort(narrow, kind="stable")]
    key, offset = keys[rows], columns.queue_offset[rows]
    breaks = np.flatnonzero((key[1:] != key[:-1]) | (offset[1:] != offset[:-1] + 1))
    heads = np.concatenate(([0], breaks + 1))[: len(rows)]
    tails = np.concatenate((breaks, [len(rows) - 1]))[: len(rows)]
    pairs = np.empty(len(rows), dtype=UNIT_HEAD)
    pairs["phy"], pairs["size"] = columns.pos[rows] + base, columns.size[rows]
    codes = None if tags is None else memoryview(tags[rows].astype(TAGS_CODE).tobytes())
    return rows, heads, tails, memoryview(pairs.tobytes()), codes


def _digest(packed: memoryview, width: int, head: int, tail: int) -> int:
    return unit_digest(packed[head * width : (tail + 1) * width])


def unit_digest(units: bytes | memoryview) -> int:
    """
    Return what a run says about the units that must lie in its consume queue: 63 bits over (phyOffset, size) pairs, or
    over tagsCodes.
    """
    return xxhash.xxh3_64_intdigest(units) >> 1


def items(data: bytes, pos: Ints, width: int) -> npt.NDArray[np.void]:
    """
    Copy ``width`` bytes at each position; gathering opaque items is four times faster than gathering structured
    ones.
    """
    return np.ndarray((len(data) - width + 1,), dtype=f"V{width}", buffer=data, strides=(1,))[pos]


def _numbers(data: bytes, pos: Ints, kind: str) -> Ints:
    return items(data, pos, np.dtype(kind).itemsize).view(kind).astype(np.int64)


def _keys_one_by_one(data: bytes, columns: Columns) -> Ints:
    """The same answer without a hash, for the one time in 2**64 that two topics share one."""
    seen: dict[tuple[bytes, int], int] = {}
    keys = np.zeros(len(columns), dtype=np.int64)
    for index in range(len(columns)):
        at = int(columns.topic_pos[index])
        name = data[at : at + int(columns.topic_length[index])], int(columns.queue_id[index])
        keys[index] = seen.setdefault(name, len(seen))
    return keys
