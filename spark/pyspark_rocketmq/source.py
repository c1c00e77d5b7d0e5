"""
Messages of a store directory as rows: ``spark.read.format("rocketmq-log").load("/data/store")``.

A segment is a partition, read front to back in pieces, so that no partition ever has to guess where a record begins.
Rows are records whose parts add up; what is damaged is left out (``rmq-audit`` says what that is), bodies are given
as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rmq_audit.driver.inventory import take_inventory
from rmq_audit.worker.files import Window
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.kernel import Columns
from rmq_audit.worker.location import InputError

from pyspark_rocketmq.columns import COLUMNS, DDL

#: a partition reads so much at a time
WINDOW_BYTES = 16 << 20

#: rows of a batch
BATCH_ROWS = 10_000


@attrs.frozen
class SegmentPartition(InputPartition):
    """One segment; nothing at or after ``limit`` belongs to the log."""

    path: str
    start: int
    size_bytes: int
    limit: int


class CommitLogSource(DataSource):
    """
    The data source "rocketmq-log".

    Option ``path`` (or ``load(path)``) is a store directory. A schema given with ``.schema("topic string, body
    binary")`` picks columns: only these are made, so it is worth giving.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> CommitLogReader:
        return CommitLogReader(schema, dict(self.options))


class CommitLogReader(DataSourceReader):
    """Reads segments; unknown columns, wrong types and a path that is no store are refused before anything is read."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._path = options.get("path", "")
        if not self._path:
            raise InputError('rocketmq-log: give the store directory, as in load("/data/store")')
        self._schema: pa.Schema = to_arrow_schema(schema)
        for field in self._schema:
            if field.name not in COLUMNS:
                raise InputError(f"rocketmq-log: no column {field.name}; there are {', '.join(COLUMNS)}")
            known = COLUMNS[field.name].kind
            if field.type != known:
                raise InputError(f"rocketmq-log: column {field.name} is {known}, not {field.type}")

    def partitions(self) -> Sequence[SegmentPartition]:
        store = take_inventory("store", self._path)
        if store.problems:
            raise InputError(f"{store.problems[0].path} {store.problems[0].text}")
        size = store.segment_bytes or 0
        claimed = store.manifest.max_phy_offset if store.manifest is not None else None
        return [
            SegmentPartition(segment.path, segment.start, segment.size_bytes, limit)
            for segment in store.segments
            for limit in (segment.start + size if claimed is None else min(segment.start + size, claimed),)
            if segment.start < limit
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        makers = [COLUMNS[field.name].make for field in self._schema]
        for window, columns in stretches(partition):
            for begin in range(0, len(columns), BATCH_ROWS):
                rows = columns.rows(begin, begin + BATCH_ROWS)
                yield _batch(window, rows, makers, self._schema)


def stretches(partition: SegmentPartition) -> Iterator[tuple[Window, Columns]]:
    """
    Yield the sound records of a segment in order, window by window.

    Behind a break records only count as long as store time does not step back: old ones after the end of the log do.
    """
    at, newest, broken = partition.start, 0, False
    end = min(partition.start + partition.size_bytes, partition.limit)
    while at < end:
        stop = min(at + WINDOW_BYTES, end)
        window = Window(partition.path, partition.start, partition.size_bytes, at, stop)
        frames = Frames(window, end)
        place = frames.search(at, stop) if broken else at
        while place is not None and place < stop:
            columns, behind = frames.stretch(place, stop)
            if len(columns):
                if broken and int(columns.store_timestamp[0]) < newest:
                    return
                newest, broken = int(columns.store_timestamp[-1]), False
                yield window, columns
            if behind < stop and frames.is_blank(behind):
                return
            broken = behind < stop
            place = frames.resync(behind, stop) if broken else behind
        broken = broken or place is None
        at = stop if place is None else place


def _batch(
    window: Window, columns: Columns, makers: Sequence[Callable[[Window, Columns], Any]], schema: pa.Schema
) -> pa.RecordBatch:
    arrays = [pa.array(make(window, columns), type=field.type) for make, field in zip(makers, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
