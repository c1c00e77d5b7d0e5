"""Consume queues as rows of Spark, joined with the messages that they point at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.engine.engines import Engine
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import layout
from rmq.wire import record
from tests.spark.synthetic import Pair, make_store

pytestmark = pytest.mark.spark


class QueueSourceTests(SynchronousTestCase):
    golden: Callable[[str], Path]
    folder: Path

    @pytest.fixture(autouse=True)
    def _take_fixtures(self, spark_engine: Engine, golden: Callable[[str], Path], tmp_path: Path) -> None:
        self.golden = golden
        self.folder = tmp_path

    @property
    def spark(self) -> Any:
        from pyspark.sql import SparkSession

        return SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()

    def frame(self, path: Path, schema: str | None = None, **options: str) -> Any:
        reader = self.spark.read.format("rocketmq-queue").options(**options)
        return (reader if schema is None else reader.schema(schema)).load(str(path))

    def test_units_are_rows(self) -> None:
        """Every unit of every queue with all its columns, without registration; fillers and empty units are none."""
        pair = Pair(self.folder, make_store(12, 300))
        expected = {
            (topic, queue_id, offset, *layout.CQ_UNIT.unpack(raw))
            for (topic, queue_id), units in pair.made.units.items()
            for offset, raw in units.items()
        }
        rows = [tuple(row) for row in self.frame(pair.master).collect()]
        self.assertEqual((set(rows), len(rows)), (expected, len(expected)))
        few = self.frame(pair.master, "queue_offset bigint, topic string", topic="topic-0", queueId="1").collect()
        self.assertEqual({row[1] for row in few}, {"topic-0"})
        self.assertEqual(len(few), len(pair.made.units["topic-0", 1]))

    def test_nothing_is_selected(self) -> None:
        """A topic or queue that is not there, and a store without queues or segments, have no rows."""
        pair = Pair(self.folder, make_store(12, 30))
        self.assertEqual(self.frame(pair.master, topic="nowhere").count(), 0)
        self.assertEqual(self.frame(pair.master, topic="nowhere").collect(), [])
        empty = self.folder / "empty"
        (empty / "commitlog").mkdir(parents=True)
        for name in ("rocketmq-queue", "rocketmq-log"):
            self.assertEqual(self.spark.read.format(name).load(str(empty)).collect(), [])

    @pytest.mark.campaign
    def test_filters_choose_folders(self) -> None:
        """With filters pushed, files of other queues are not even opened: one that cannot be read does no harm."""
        pair = Pair(self.folder, make_store(12, 300))
        other = pair.master / layout.CONSUME_QUEUE_DIR / "topic-1" / "0" / layout.file_name(0)
        other.chmod(0)
        other.unlink()
        other.symlink_to("/proc/self/mem")  # opens, but fails to read
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = self.frame(pair.master, pushFilters="true").where("topic = 'topic-0' and queue_id in (0, 1)")
            self.assertEqual(
                frame.where("queue_offset < 5").count(),
                sum(offset < 5 for queue in (0, 1) for offset in pair.made.units["topic-0", queue]),
            )
        finally:
            self.spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def test_queues_and_messages_of_apache_join(self) -> None:
        """In SQL: every unit of a store of 5.3.3 meets its record, with its queue offset and the hash of its tags."""
        store = self.golden("mixed-5.3.3") / "store"
        self.frame(store).createOrReplaceTempView("queues")
        self.spark.read.format("rocketmq-log").load(str(store)).createOrReplaceTempView("messages")
        rows = self.spark.sql(
            "select q.queue_offset, m.queue_offset, q.size, m.size, q.tags_code, m.tags, q.topic from queues q "
            "left join messages m on q.phy_offset = m.phy_offset and q.topic = m.topic and q.queue_id = m.queue_id"
        ).collect()
        self.assertGreater(len(rows), 200)
        for offset, stated, size, stored, code, tags, topic in rows:
            self.assertEqual((offset, size), (stated, stored))
            if topic != "SCHEDULE_TOPIC_XXXX":
                self.assertEqual(code, record.tags_code(tags or ""))

    @pytest.mark.campaign
    def test_mistakes_are_told(self) -> None:
        """A path that is no store, an unknown column, a queueId that is none: one sentence each."""
        from pyspark.errors import PySparkException

        store = self.golden("mixed-5.3.3") / "store"
        for path, schema, options, word in (
            (self.folder, None, {}, "not a store directory"),
            (store, "body binary", {}, "no column body"),
            (store, "topic int", {}, "is string, not int32"),
            (store, None, {"queueId": "x"}, "is no number"),
        ):
            error = self.assertRaises(PySparkException, self.frame(path, schema, **options).count)
            self.assertIn(word, str(error))
