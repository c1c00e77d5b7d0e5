"""
Consume queues of a store directory as rows: ``spark.read.format("rocketmq-queue").load("/data/store")``.

A row is a unit: where the message with this queue offset lies in the log. Topic and queue id are folders, so the
options ``topic`` and ``queueId`` leave out files without opening them. With the option ``pushFilters`` filters of SQL
do the same; Spark 4.1 and newer name them to Python sources when ``spark.sql.python.filterPushdown.enabled`` is on, and
refuse a source that asks for them when it is off, so both have to be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from rmq_audit.engine.engines import grouped
from rmq_audit.worker.files import StoreFile, read_at
from rmq_audit.worker.location import InputError
from rmq_audit.worker.queues import UNIT

from pyspark_rocketmq.source import checked_schema, path_of, sound_store
from rmq.store.layout import CQ_FILLER_SIZE, CQ_UNIT_BYTES

#: a partition takes files until they make so many bytes
PARTITION_BYTES = 64 << 20

#: units of a batch
BATCH_UNITS = 50_000

DDL = "topic string, queue_id int, queue_offset bigint, phy_offset bigint, size int, tags_code bigint"

_KINDS = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "phy_offset": pa.int64(),
    "size": pa.int32(),
    "tags_code": pa.int64(),
}


@attrs.frozen
class QueueFile:
    """One file of a queue."""

    topic: str
    queue_id: int
    file: StoreFile


@attrs.frozen
class QueuePartition(InputPartition):
    """Files that one task reads."""

    files: tuple[QueueFile, ...]


class ConsumeQueueSource(DataSource):
    """
    The data source "rocketmq-queue".

    Option ``path`` (or ``load(path)``) is a store directory, ``topic`` and ``queueId`` pick queues, ``pushFilters``
    lets filters do so. A schema given with ``.schema("topic string, queue_offset bigint")`` picks columns.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-queue"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> ConsumeQueueReader:
        options = dict(self.options)
        pushed = options.get("pushFilters", options.get("pushfilters", "")).lower() == "true"
        return (FilteringReader if pushed else ConsumeQueueReader)(schema, options)


class ConsumeQueueReader(DataSourceReader):
    """Reads units; an unknown column, a wrong type or a path that is no store are refused before anything is read."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._path = path_of("rocketmq-queue", options)
        self._topics = {options["topic"]} if "topic" in options else None
        self._queue_ids: set[int] | None = None
        queue_id = options.get("queueId", options.get("queueid"))
        if queue_id is not None:
            if not queue_id.isdecimal():
                raise InputError(f"rocketmq-queue: queueId {queue_id!r} is no number")
            self._queue_ids = {int(queue_id)}
        self._schema = checked_schema("rocketmq-queue", schema, _KINDS)

    def partitions(self) -> Sequence[QueuePartition]:
        store = sound_store(self._path)
        files = [
            QueueFile(queue.topic, queue.queue_id, file)
            for queue in store.queues
            if (self._topics is None or queue.topic in self._topics)
            and (self._queue_ids is None or queue.queue_id in self._queue_ids)
            for file in queue.files
        ]
        # thousands of small queues share a task
        groups = grouped([one.file.size_bytes for one in files], PARTITION_BYTES)
        return [QueuePartition(tuple(files[index] for index in group)) for group in groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # of an empty list of partitions Spark makes None, or a partition without anything
        for one in partition.files if isinstance(partition, QueuePartition) else ():
            yield from self._read_file(one)

    def _read_file(self, one: QueueFile) -> Iterator[pa.RecordBatch]:
        file = one.file
        whole = file.size_bytes // CQ_UNIT_BYTES
        for first in range(0, whole, BATCH_UNITS):
            count = min(BATCH_UNITS, whole - first)
            raw = read_at(file.path, first * CQ_UNIT_BYTES, count * CQ_UNIT_BYTES)
            units = np.frombuffer(raw[: len(raw) - len(raw) % CQ_UNIT_BYTES], dtype=UNIT)
            empty = np.flatnonzero(units["size"] <= 0)
            used = units[: empty[0]] if len(empty) else units
            rows = np.flatnonzero(used["size"] != CQ_FILLER_SIZE)
            if len(rows):
                yield self._batch(one, used[rows], file.start // CQ_UNIT_BYTES + first + rows)
            if len(empty):
                return

    def _batch(self, one: QueueFile, units: Any, offsets: Any) -> pa.RecordBatch:
        values = {
            "topic": lambda: pa.array([one.topic] * len(units)),
            "queue_id": lambda: np.full(len(units), one.queue_id, dtype=np.int32),
            "queue_offset": lambda: offsets,
            "phy_offset": lambda: units["phy"].astype(np.int64),
            "size": lambda: units["size"].astype(np.int32),
            "tags_code": lambda: units["tags_code"].astype(np.int64),
        }
        arrays = [pa.array(values[field.name](), type=field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class FilteringReader(ConsumeQueueReader):
    """A reader that Spark tells its filters: those on topic and queue id choose folders."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take over equality and IN of topic and queue id; give everything else back to Spark."""
        for one in filters:
            wanted = _wanted(one)
            if wanted is None:
                yield one
            elif wanted[0] == "topic":
                self._topics = wanted[1] if self._topics is None else self._topics & wanted[1]
            else:
                self._queue_ids = wanted[1] if self._queue_ids is None else self._queue_ids & wanted[1]


def _wanted(one: Any) -> tuple[str, set[Any]] | None:
    """Return column and values of a filter that picks folders, or None."""
    kind, attribute = type(one).__name__, one.attribute if hasattr(one, "attribute") else ()
    if kind not in ("EqualTo", "In") or attribute not in (("topic",), ("queue_id",)):
        return None
    return attribute[0], {one.value} if kind == "EqualTo" else set(one.value)
