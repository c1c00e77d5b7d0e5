"""The audit on Spark: the same findings as without, quiet, with the right exit status, under spark-submit too."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import unittest.mock
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.engine.bundle import write_bundle
from rmq_audit.engine.engines import EngineError, LocalEngine
from rmq_audit.worker import kernel
from rmq_audit.worker.work import Work

from rmq.store import layout
from rmq.wire import record
from tests.needs import ROOT
from tests.spark.cases import EngineCase, GoldenCase
from tests.spark.corruptor import records
from tests.spark.corruptor.classes import CLASSES
from tests.spark.corruptor.specimen import Specimen
from tests.spark.support import as_json, audit, result_of, rmq_audit
from tests.spark.synthetic import Pair, make_further_store, make_store

pytestmark = pytest.mark.spark


def fail(task: object) -> None:
    raise RuntimeError(f"planted failure of {task}")


class SparkCase(EngineCase, GoldenCase):
    """What a Spark engine finds."""


class EngineTests(SparkCase):
    def test_spark_finds_what_the_local_engine_finds(self) -> None:
        """Of Apache's pairs, verdict, coverage and every member of every finding are the same."""
        for name in ("pair-equal-4.9.7", "pair-lag-4.9.7", "pair-lag-4.9.7-resumed", "pair-late-4.9.7"):
            folder = self.golden(name)
            self.compare_engines(folder / "master", folder / "slave", 8192)

    def test_the_same_of_a_pair_with_many_defects(self) -> None:
        """Damage of many kinds at once, in many small splits with seams to be read again: no difference either."""
        pair = Pair(self.folder, make_store(11))
        chance = random.Random(11)
        specimen = Specimen(pair.master, pair.slave)
        chosen = [one for one in CLASSES.values() if one.name.endswith(("_of_the_slave", "_of_the_master"))]
        for one in chosen:
            if one.plant.__module__ == records.__name__ and not re.search("crc|last|clock", one.name):
                one.plant(specimen, chance)
        self.assertGreater(self.compare_engines(pair.master, pair.slave, 2048), 20)

    def test_the_same_of_further_queues(self) -> None:
        """Further queues of records, right ones and a wrong unit, are judged alike."""
        pair = Pair(self.folder, make_further_store())
        self.assertEqual(self.compare_engines(pair.master, pair.slave, 2048), 0)
        light = pair.slave / "consumequeue" / "%LMQ%a" / "0" / f"{0:020d}"
        light.write_bytes(bytes(20) + light.read_bytes()[20:])
        self.assertEqual(self.compare_engines(pair.master, pair.slave, 2048), 1)

    def compare_engines(self, master: Path, slave: Path, size: int) -> int:
        on_spark = audit(master, slave, chunk=size, split=size, engine=self.engine)
        locally = audit(master, slave, chunk=size, split=size, engine=LocalEngine(2, pool_from_bytes=0))
        self.assertEqual(as_json(on_spark), as_json(locally))
        self.assertEqual((on_spark.verdict, on_spark.coverage), (locally.verdict, locally.coverage))
        return len(on_spark.findings)

    def test_progress(self) -> None:
        """Of a job of Spark the work done is told while it runs, ends with everything, and changes no finding."""
        pair = Pair(self.folder, make_store(13))
        quiet = audit(pair.master, pair.slave, chunk=8192, split=8192, engine=self.engine)
        told: list[tuple[str, int, int]] = []
        self.engine.progress = lambda *now: told.append(now)
        self.addCleanup(setattr, self.engine, "progress", None)
        watched = audit(pair.master, pair.slave, chunk=8192, split=8192, engine=self.engine)
        self.assertEqual(as_json(watched), as_json(quiet))
        (_, first, total), end = told[0], next(index for index, one in enumerate(told) if one[1])
        scans = [done for name, done, _ in told[: end + 1] if name == "scan"]
        self.assertGreaterEqual(total, 2 * len(pair.made.log))
        self.assertEqual((first, scans, scans[-1] <= total), (0, sorted(scans), True))
        self.assertEqual(told[-1][1], told[-1][2])
        error = self.assertRaises(EngineError, self.engine.run, Work("nothing", fail, lambda task: 1), [1])
        self.assertNotIn("\n", str(error))

    def test_java_compiles_in_haste(self) -> None:
        """The JVM that the audit starts makes quick code; options in the environment come behind, and so win."""
        from pyspark import SparkContext
        from rmq_audit.engine.spark import JVM_OPTIONS, _jvm_options

        java = SparkContext._jvm
        assert java is not None
        runtime = java.java.lang.management.ManagementFactory.getRuntimeMXBean()
        self.assertIn("-XX:TieredStopAtLevel=1", list(runtime.getInputArguments()))
        for before, wanted in ((None, "-Xours"), ("-Xtheirs", "-Xours -Xtheirs")):
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop(JVM_OPTIONS, None)
                if before is not None:
                    os.environ[JVM_OPTIONS] = before
                with _jvm_options("-Xours"):
                    self.assertEqual(os.environ[JVM_OPTIONS], wanted)
                self.assertEqual(os.environ.get(JVM_OPTIONS), before)

    def test_a_failing_worker_is_one_line(self) -> None:
        """When Spark gives up a job the operator gets one line with the error and where Spark's log is."""
        broken = Work("nothing", fail, lambda task: 1)
        error = self.assertRaises(EngineError, self.engine.run, broken, [1])
        self.assertNotIn("\n", str(error))
        self.assertIn("nothing", str(error))


class ProcessTests(SparkCase):
    @pytest.mark.campaign
    def test_spark_is_the_default_and_quiet(self) -> None:
        """Without any set-up ``rmq-audit compare`` runs on Spark and prints nothing but its summary."""
        folder = self.golden("pair-lag-4.9.7-resumed")
        path = self.folder / "result.json"
        answer = rmq_audit("compare", folder / "master", folder / "slave", "--json", path, timeout_s=600)
        self.assertEqual((answer.returncode, answer.stderr), (2, ""))
        self.assertTrue(answer.stdout.startswith("DIFFERENT"))
        written = result_of(path)
        self.assertIn("local[*]", written["engine"])
        self.assertEqual(written["findings"][0]["sample_msg_ids"], ["C000020266C84E0E2F2A688360430057"])

    def spark_submit(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run spark-submit in a folder, where relative paths begin."""
        tools = os.path.dirname(sys.executable)
        return subprocess.run(
            [os.path.join(tools, "spark-submit"), "--conf", "spark.ui.enabled=false", *arguments],
            cwd=folder,
            env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    @pytest.mark.campaign
    def test_spark_submit(self) -> None:
        """spark-submit runs the module's file; relative paths and the exit status come through."""
        job = str(ROOT / "spark" / "rmq_audit" / "__main__.py")
        answer = self.spark_submit(
            self.golden("pair-lag-4.9.7"), "--master", "local[1]", job, "compare", "master", "slave"
        )
        self.assertEqual(answer.returncode, 1, answer.stderr[-2000:])
        self.assertIn("LAGGING", answer.stdout)
        self.assertIn("local[1]", answer.stdout)

    @pytest.mark.campaign
    def test_spark_submit_with_a_zip(self) -> None:
        """
        Where the audit is not installed it comes as a zip (``--py-files``), and a main file of two lines is all else
        that spark-submit needs; the compiled kernel is taken out of the zip, by driver and workers.
        """
        bundle, job, result = (self.folder / name for name in ("rmq_audit.zip", "main.py", "result.json"))
        write_bundle(str(bundle), "")
        job.write_text("from rmq_audit.__main__ import main\nmain()\n")
        found = self.spark_submit(
            self.golden("pair-lag-4.9.7-resumed"),
            *("--master", "local[2]", "--py-files", str(bundle), str(job)),
            *("compare", "master", "slave", "--json", str(result)),
        )
        self.assertEqual(found.returncode, 2, found.stderr[-2000:])
        self.assertEqual((result_of(result)["verdict"], result_of(result)["kernel"]), ("DIFFERENT", kernel.NAME))

    @pytest.mark.campaign
    def test_a_cluster(self) -> None:
        """
        On executors in processes of their own, which share nothing with the driver but the files, findings, coverage
        and exit status are those of the local engine. The compiled kernel comes to them with the job.
        """
        found = self.compare_with_local("--master-url", "local-cluster[2,1,1024]")
        self.assertIn("local-cluster", found["engine"])
        self.assertEqual(found["kernel"], kernel.NAME)

    @pytest.mark.campaign
    def test_executors_without_the_compiled_kernel(self) -> None:
        """An executor that cannot use the compiled kernel finds the same with numpy."""
        settings = ("--conf", "spark.executorEnv.RMQ_PURE_PYTHON=1", "--master", "local-cluster[2,1,1024]")
        found = self.compare_with_local(settings=settings)
        self.assertIn("local-cluster", found["engine"])
        self.assertEqual(found["kernel"], "numpy")

    def compare_with_local(self, *options: str, settings: Sequence[str] = ()) -> dict[str, Any]:
        """
        Hold a run on Spark, by spark-submit if ``settings`` for it are given, against the local engine; return its
        result.
        """
        folder = self.golden("pair-lag-4.9.7-resumed")
        paths = [self.folder / name for name in ("spark.json", "local.json")]
        command = "compare", str(folder / "master"), str(folder / "slave"), "--json"
        if settings:
            job = str(ROOT / "spark" / "rmq_audit" / "__main__.py")
            one = self.spark_submit(folder, *settings, job, *command, str(paths[0]))
        else:
            one = rmq_audit(*command, paths[0], *options, timeout_s=600)
        other = rmq_audit(*command, paths[1], "--engine", "local")
        self.assertEqual((one.returncode, other.returncode), (2, 2), one.stderr[-2000:])
        on_spark, locally = map(result_of, paths)
        for answer in (on_spark, locally):
            for each in answer["findings"]:
                del each["run_id"]
        self.assertEqual((on_spark["findings"], on_spark["coverage"]), (locally["findings"], locally["coverage"]))
        return on_spark


class DataSourceTests(SparkCase):
    def rows(self, path: Path, schema: str | None = None, where: str = "true") -> list[tuple[object, ...]]:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        reader = spark.read.format("rocketmq-log")
        if schema is not None:
            reader = reader.schema(schema)
        return [tuple(row) for row in reader.load(str(path)).where(where).collect()]

    def test_messages_are_rows(self) -> None:
        """``spark.read.format("rocketmq-log")`` needs no registration and gives every message with all its parts."""
        pair = Pair(self.folder, make_store(12, 150))
        rows = self.rows(
            pair.master, "phy_offset bigint, topic string, queue_id int, queue_offset bigint, msg_id string"
        )
        made = [(one.phy, one.topic, one.queue_id, one.queue_offset, one.message_id) for one in pair.made.stored]
        self.assertEqual(sorted(rows), sorted(made))

    @pytest.mark.campaign
    def test_damaged_messages_are_left_out(self) -> None:
        """Those whose body does not match its CRC, and those with zero bytes in topic or properties."""
        pair = Pair(self.folder, make_store(12, 150))
        body, topic, text = [one for one in pair.made.stored if one.body_size][20:80:20]
        pair.flip(pair.master, body.body_at)
        pair.write(pair.master, topic.body_at + topic.body_size + 1, b"\0")
        pair.write(pair.master, text.phy + text.size - 3, b"\0")
        rows = self.rows(pair.master, "phy_offset bigint")
        left = {one.phy for one in pair.made.stored} - {body.phy, topic.phy, text.phy}
        self.assertEqual({phy for (phy,) in rows}, left)

    def test_messages_of_apache(self) -> None:
        """Properties, tags, hosts, times and bodies of a message of Apache 5.3.3, selected by SQL."""
        columns = (
            "phy_offset bigint, body binary, tags string, properties map<string,string>, store_host string, flag int"
        )
        ((phy, body, tags, properties, host, flag),) = self.rows(
            self.golden("mixed-5.3.3") / "store", columns, "phy_offset = 0"
        )
        assert isinstance(properties, dict)
        self.assertEqual((phy, tags, host, flag), (0, "TagA", "127.0.0.1:15911", 0))
        self.assertEqual(properties["CLUSTER"], "DefaultCluster")
        self.assertGreater(len(bytes(body)), 0)  # type: ignore[call-overload]

    def test_what_is_no_store_is_refused(self) -> None:
        """A wrong path or column is told when the query is planned."""
        from pyspark.errors import PySparkException

        for path, schema, word in (
            (self.folder, None, "not a store directory"),
            (self.folder, "x string", "no column x"),
        ):
            error = self.assertRaises(PySparkException, self.rows, path, schema)
            self.assertIn(word, str(error))


class QueueSourceTests(SparkCase):
    """Consume queues as rows, joined with the messages that they point at."""

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
    def test_mistakes_are_named(self) -> None:
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
