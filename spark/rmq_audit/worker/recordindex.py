"""
The record index: one row a record as Parquet, written by the workers while they scan; no row passes the driver.

A split writes one file under a name of its own attempt and hands that name back. The driver then
deletes the files that no accepted scan names, so that a task that ran twice does no harm.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from rmq_audit.worker import kernel, properties
from rmq_audit.worker.kernel import Columns
from rmq_audit.worker.records import record_at
from rmq_audit.worker.work import IndexFile, Work

#: a column of msg_id is built at once from names of this length, what Java's and our clients give
_NAME_BYTES = 32

SCHEMA = pa.schema(
    [
        ("phy_offset", pa.int64()),
        ("size", pa.int32()),
        ("topic", pa.dictionary(pa.int32(), pa.string())),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("msg_id", pa.string()),
        ("store_timestamp", pa.int64()),
        ("sys_flag", pa.int32()),
        ("body_size", pa.int32()),
        ("body_crc", pa.int64()),
    ]
)


@attrs.frozen(kw_only=True)
class TrimIndex:
    """Take the rows at and after ``limit`` out of a file of the record index."""

    file: str
    limit: int


class IndexWriter:
    """
    Writes the rows of one split; an error of the disk ends it and is reported by :meth:`finish`.

    ``folder`` must exist on the worker; the file appears under its name when it is complete.
    """

    def __init__(self, folder: str, begin: int) -> None:
        self._path = os.path.join(folder, f"part-{begin:020d}-{secrets.token_hex(6)}.parquet")
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._last_phy = begin
        self._error: str | None = None

    def add(self, data: bytes, base: int, columns: Columns) -> None:
        """Add records; ``base`` is the physical offset of the buffer's first byte."""
        if len(columns) == 0 or self._error is not None:
            return
        try:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path + ".tmp", SCHEMA, compression="zstd")
            self._writer.write_table(_table(data, base, columns))
            self._rows += len(columns)
            self._last_phy = base + int(columns.pos[-1])
        except (OSError, pa.ArrowException) as error:
            self._error = f"{self._path}: cannot be written: {error}"

    def finish(self) -> IndexFile:
        """Close the file and give it its name; a split without records has none."""
        try:
            if self._writer is not None:
                self._writer.close()
                if self._error is None:
                    os.replace(self._path + ".tmp", self._path)
        except (OSError, pa.ArrowException) as error:
            self._error = self._error or f"{self._path}: cannot be written: {error}"
        path = None if self._writer is None else self._path
        return IndexFile(path=path, rows=self._rows, last_phy=self._last_phy, error=self._error)


def trim(task: TrimIndex) -> IndexFile:
    """Write a file again without the records at and after ``limit``: they turned out not to belong to the log."""
    temporary = task.file + ".tmp"
    try:
        table = pq.read_table(task.file, schema=SCHEMA)
        table = table.filter(pa.compute.less(table["phy_offset"], task.limit))
        pq.write_table(table, temporary, compression="zstd")
        os.replace(temporary, task.file)
    except (OSError, pa.ArrowException) as error:
        return IndexFile(path=task.file, rows=0, last_phy=task.limit, error=f"{task.file}: cannot be written: {error}")
    last = table["phy_offset"][-1].as_py() if len(table) else task.limit
    return IndexFile(path=task.file, rows=len(table), last_phy=last)


def _table(data: bytes, base: int, columns: Columns) -> pa.Table:
    return pa.table(
        [
            columns.pos + base,
            columns.size.astype(np.int32),
            _topics(data, columns),
            columns.queue_id.astype(np.int32),
            columns.queue_offset,
            _message_ids(data, base, columns),
            columns.store_timestamp,
            columns.sys_flag.astype(np.int32),
            columns.body_length.astype(np.int32),
            columns.crc,
        ],
        schema=SCHEMA,
    )


def _topics(data: bytes, columns: Columns) -> pa.DictionaryArray:
    keys = kernel.queue_keys(data, columns)
    heads = np.zeros(int(keys.max()) + 1, dtype=np.int64)
    heads[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    numbers: dict[str, int] = {}
    of_queue = np.array([numbers.setdefault(columns.topic(data, row), len(numbers)) for row in heads.tolist()])
    return pa.DictionaryArray.from_arrays(pa.array(of_queue[keys].astype(np.int32)), pa.array(list(numbers)))


def _message_ids(data: bytes, base: int, columns: Columns) -> pa.Array:
    """Return what consumers show as msgId: UNIQ_KEY where it is printable, else the offset id."""
    values = properties.values_of(data, columns, b"UNIQ_KEY")
    if len(values.rows) == len(columns) and bool((values.length == _NAME_BYTES).all()):
        raw = kernel.items(data, values.pos, _NAME_BYTES).tobytes()
        text = np.frombuffer(raw, dtype=np.uint8)
        if bool(((text > 32) & (text < 127)).all()):
            ends = np.arange(0, len(raw) + 1, _NAME_BYTES, dtype=np.int32)
            return pa.StringArray.from_buffers(len(columns), pa.py_buffer(ends), pa.py_buffer(raw))
    return pa.array(list(_one_by_one(data, base, columns.pos.tolist())), type=pa.string())


def _one_by_one(data: bytes, base: int, positions: Sequence[int]) -> Iterator[str]:
    for at in positions:
        record = record_at(data, at, base + at)
        assert record is not None, f"the kernel took {base + at} for a record"
        yield record.message_id


TRIM = Work("trim", trim, lambda _: 1 << 20)
