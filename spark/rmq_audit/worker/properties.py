"""
Properties of many records at once: where a value lies, and the hashes that consume queues and index files keep of it.

Works on one buffer and its columns, like the kernel; a record's own view of its properties is `records.Record`.
"""

from __future__ import annotations

import zlib

import attrs
import numpy as np
import numpy.typing as npt

from rmq.wire.record import SCHEDULE_TOPIC, java_hash
from rmq_audit.worker import kernel
from rmq_audit.worker.kernel import Bools, Columns, Ints
from rmq_audit.worker.records import DELAY_LEVELS_MS

_KEY_END, _VALUE_END = 1, 2

#: what 5.x writes at the very end of a record's properties: ``__CRC32#`` 0x01, ten digits, 0x02
CRC_MARK = b"__CRC32#\x01"
CRC_BYTES = 20


@attrs.define(slots=True)
class Values:
    """One property of many records: the ``rows`` that have it (ascending), and where its bytes lie in the buffer."""

    rows: Ints
    pos: Ints
    length: Ints

    def __len__(self) -> int:
        return len(self.rows)


def values_of(data: bytes, columns: Columns, name: bytes) -> Values:
    """Return a property of all records that have it with a value; the later of two wins, as in RocketMQ."""
    mark = name + bytes((_KEY_END,))
    if kernel.compiled is not None:
        found = kernel.compiled.values_of(data, columns.properties_pos, columns.properties_length, mark)
        return Values(*found)
    if len(columns) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Values(nothing, nothing, nothing)
    text = np.frombuffer(data, dtype=np.uint8)
    begins = columns.properties_pos
    ends = begins + columns.properties_length
    stops = np.flatnonzero(text == _VALUE_END)
    # a property begins where a record's properties do, or after the end of another one
    at = np.concatenate((begins, stops + 1))
    at = at[at <= len(data) - len(mark)]
    at = at[text[at] == mark[0]]
    at = np.sort(at[kernel.items(data, at, len(mark)).view(f"S{len(mark)}") == mark])
    row = np.searchsorted(begins, at, side="right") - 1
    kept = (row >= 0) & (at + len(mark) < ends[row])
    pos, row = at[kept] + len(mark), row[kept]
    stop = np.append(stops, len(data))[np.searchsorted(stops, pos)]
    length = np.minimum(stop, ends[row]) - pos
    kept = length > 0
    pos, row, length = pos[kept], row[kept], length[kept]
    last = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, dtype=np.bool_)
    return Values(row[last], pos[last], length[last])


def rows_with(data: bytes, columns: Columns, name: bytes) -> Ints:
    """Return the records that have a property which few logs have: most need no more than a search for its name."""
    if len(columns) == 0:
        return np.zeros(0, dtype=np.int64)
    # not to the last byte: until 3.11.4 CPython's mmap.find looked at the byte behind
    begin, end = int(columns.pos[0]), int(columns.pos[-1] + columns.size[-1]) - 1
    if data.find(name + bytes((_KEY_END,)), begin, end) < 0:
        return np.zeros(0, dtype=np.int64)
    return values_of(data, columns, name).rows


def tags_codes(data: bytes, columns: Columns) -> Ints:
    """Return what the units of these records hold as tagsCode: the Java hash of TAGS, 0 without one, or a time."""
    codes = np.zeros(len(columns), dtype=np.int64)
    tags = values_of(data, columns, b"TAGS")
    codes[tags.rows], _ = java_hashes(data, tags.pos, tags.length)
    set_deliver_times(data, columns, codes)
    return codes


def set_deliver_times(data: bytes, columns: Columns, codes: Ints) -> Ints:
    """
    Put the time of delivery in place of the tagsCodes of delayed messages, by RocketMQ's default delays; return their
    rows.

    Java: CommitLog#checkMessageAndReturnSize
    """
    topic = SCHEDULE_TOPIC.encode()
    rows = np.flatnonzero(columns.topic_length == len(topic))
    if len(rows):
        rows = rows[kernel.items(data, columns.topic_pos[rows], len(topic)).view(f"S{len(topic)}") == topic]
    waiting = columns.chosen(rows)
    levels = values_of(data, waiting, b"DELAY") if len(rows) else Values(rows, rows, rows)
    having = []
    for row, pos, length in zip(levels.rows.tolist(), levels.pos.tolist(), levels.length.tolist(), strict=True):
        text = data[pos : pos + length]
        level = min(int(text), len(DELAY_LEVELS_MS)) if text.isdigit() else 0
        if level:
            codes[rows[row]] = waiting.store_timestamp[row] + DELAY_LEVELS_MS[level - 1]
            having.append(rows[row])
    return np.array(having, dtype=np.int64)


def delayed(data: bytes, columns: Columns) -> Bools:
    """Return which records are delayed messages that wait for their time."""
    found = np.zeros(len(columns), dtype=np.bool_)
    found[set_deliver_times(data, columns, np.zeros(len(columns), dtype=np.int64))] = True
    return found


def java_hashes(data: bytes, pos: Ints, length: Ints) -> tuple[Ints, Ints]:
    """Return ``String.hashCode`` and ``length`` of the UTF-8 text at each place; hashes are signed 32-bit numbers."""
    if kernel.compiled is not None:
        hashes, odd = kernel.compiled.java_hashes(data, pos, length)
    else:
        hashes, odd = _byte_hashes(data, pos, length)
    java_length = length.copy()
    for index in odd:
        hashes[index], java_length[index] = text_hash(data, int(pos[index]), int(length[index]))
    return hashes, java_length


def text_hash(data: bytes, at: int, length: int) -> tuple[int, int]:
    """Return ``String.hashCode`` and ``length`` of any UTF-8 text."""
    text = data[at : at + length].decode("utf-8", "replace")
    return java_hash(text), len(text.encode("utf-16-le")) // 2


def _byte_hashes(data: bytes, pos: Ints, length: Ints) -> tuple[Ints, list[int]]:
    """Return the hashes of ASCII text, and the indices of what is not ASCII."""
    hashes = np.zeros(len(pos), dtype=np.int64)
    odd: list[int] = []
    for size in np.unique(length).tolist():
        chosen = np.flatnonzero(length == size)
        text = kernel.items(data, pos[chosen], size).view(np.uint8).reshape(len(chosen), size)
        sums = (text.astype(np.uint32) * _powers(size)).sum(axis=1, dtype=np.uint32)
        hashes[chosen] = sums.view(np.int32)
        odd += chosen[(text >= 0x80).any(axis=1)].tolist()
    return hashes, odd


def topic_key_hashes(data: bytes, columns: Columns, values: Values) -> Ints:
    """Return the hashes that index files keep of ``topic#key`` for one key of each of these records."""
    topic, _ = java_hashes(data, columns.topic_pos[values.rows], columns.topic_length[values.rows])
    key, key_length = java_hashes(data, values.pos, values.length)
    with np.errstate(over="ignore"):
        head = topic.astype(np.uint32) * np.uint32(31) + np.uint32(ord("#"))
        mixed = head * _power_of(key_length) + key.astype(np.uint32)
    hashes = np.abs(mixed.view(np.int32).astype(np.int64))
    hashes[hashes >= 1 << 31] = 0
    return hashes


def failed_property_crcs(data: bytes, columns: Columns) -> Ints:
    """Return the records whose ``__CRC32#`` property (5.x, if configured) does not hold."""
    at = columns.pos + columns.size - CRC_BYTES
    long_enough = np.flatnonzero(columns.properties_length >= CRC_BYTES)
    marks = kernel.items(data, at[long_enough], len(CRC_MARK)).view(f"S{len(CRC_MARK)}")
    having = long_enough[marks == CRC_MARK]
    view = memoryview(data)
    failed = [
        row
        for row, begin, end in zip(having.tolist(), columns.pos[having].tolist(), at[having].tolist(), strict=True)
        if zlib.crc32(view[begin:end]) & 0x7FFFFFFF != stated_property_crc(data, end)
    ]
    return np.asarray(failed, dtype=np.int64)


def stated_property_crc(data: bytes, at: int) -> int | None:
    """Return the number in a ``__CRC32#`` property at ``data[at]``: its digits stand in reverse. None if it is none."""
    digits = data[at + len(CRC_MARK) : at + CRC_BYTES - 1]
    return int(digits[::-1]) if digits.isdigit() else None


def _powers(size: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, size - 1 - index, 1 << 32) for index in range(size)], dtype=np.uint32)


def _power_of(lengths: Ints) -> npt.NDArray[np.uint32]:
    table = {size: pow(31, size, 1 << 32) for size in np.unique(lengths).tolist()}
    return np.fromiter((table[size] for size in lengths.tolist()), dtype=np.uint32, count=len(lengths))
