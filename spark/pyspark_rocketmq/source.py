"""
Messages of a store directory as rows: ``spark.read.format("rocketmq-log").load("/data/store")``.

A segment is a partition, read front to back in pieces, so that no partition ever has to guess where a record begins.
Rows are records whose parts add up and whose CRCs hold; what is damaged is left out (``rmq-audit`` says what that
is), bodies are given as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rmq_audit.driver.inventory import Store, take_inventory
from rmq_audit.driver.log import log_file
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.frames import Asked, Extract, Frames
from rmq_audit.worker.kernel import Columns, with_holes
from rmq_audit.worker.location import InputError

from pyspark_rocketmq.columns import COLUMNS, DDL

#: a partition reads so much at a time
WINDOW_BYTES = 16 << 20

#: rows of a batch
BATCH_ROWS = 10_000


@attrs.frozen
class SegmentPartition(InputPartition):
    """One segment."""

    file: LogFile


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
        self._path = path_of("rocketmq-log", options)
        self._schema = checked_schema("rocketmq-log", schema, {name: one.kind for name, one in COLUMNS.items()})

    def partitions(self) -> Sequence[SegmentPartition]:
        store = sound_store(self._path)
        size = store.segment_bytes or 0
        claimed = store.manifest.max_phy_offset if store.manifest is not None else None
        files = [log_file(segment, size, claimed) for segment in store.segments]
        return [SegmentPartition(file) for file in files if file.start < file.limit]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentPartition):  # what Spark makes of an empty list of partitions
            return
        makers = [COLUMNS[field.name].make for field in self._schema]
        for window, columns in stretches(partition.file):
            for begin in range(0, len(columns), BATCH_ROWS):
                rows = columns.rows(begin, begin + BATCH_ROWS)
                yield _batch(window, rows, makers, self._schema)


def path_of(source: str, options: Mapping[str, str]) -> str:
    """Return the store directory that a data source is given; InputError without one."""
    if not options.get("path"):
        raise InputError(f'{source}: give the store directory, as in load("/data/store")')
    return options["path"]


def checked_schema(source: str, schema: StructType, kinds: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return the schema as Arrow has it; InputError when a data source has no such column, or one of another type."""
    wanted: pa.Schema = to_arrow_schema(schema)
    for field in wanted:
        if field.name not in kinds:
            raise InputError(f"{source}: no column {field.name}; there are {', '.join(kinds)}")
        if field.type != kinds[field.name]:
            raise InputError(f"{source}: column {field.name} is {kinds[field.name]}, not {field.type}")
    return wanted


def sound_store(path: str) -> Store:
    """Return the inventory of a store; InputError when it is none, or when something of it cannot be read."""
    store = take_inventory("store", path)
    if store.problems:
        raise InputError(f"{store.problems[0].path} {store.problems[0].text}")
    return store


def stretches(file: LogFile) -> Iterator[tuple[Window, Columns]]:
    """
    Yield the sound records of a segment in order, window by window.

    Behind a break records only count as long as store time does not step back: old ones after the end of the log do.
    """
    at, newest, broken = file.start, 0, False
    end = min(file.stop, file.limit)
    while at < end:
        stop = min(at + WINDOW_BYTES, end)
        window = Window(file, at, stop)
        frames = Frames(window)
        place = frames.search(at, stop) if broken else at
        while place is not None and place < stop:
            found, behind = frames.extract_from(place, stop, Asked(crc=True))
            columns = found.columns
            if len(columns):
                if broken and int(columns.store_timestamp[0]) < newest:
                    return
                newest, broken = int(columns.store_timestamp[-1]), False
                yield window, _undamaged(window, found)
            if behind < stop and frames.is_blank(behind):
                return
            broken = behind < stop
            place = frames.resync(behind, stop) if broken else behind
        broken = broken or place is None
        at = stop if place is None else place


def _undamaged(window: Window, found: Extract) -> Columns:
    """Return the records whose body and properties match their CRCs, without zero bytes where text belongs."""
    damaged = found.wrong_bodies, found.wrong_properties, with_holes(window.data, found.columns)
    return found.columns.chosen(np.delete(np.arange(len(found.columns)), np.concatenate(damaged)))


def _batch(
    window: Window, columns: Columns, makers: Sequence[Callable[[Window, Columns], Any]], schema: pa.Schema
) -> pa.RecordBatch:
    arrays = [pa.array(make(window, columns), type=field.type) for make, field in zip(makers, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
