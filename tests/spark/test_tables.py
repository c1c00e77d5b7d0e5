"""Findings and record index as Parquet, read back by Arrow and by Spark; the options of state and progress."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import attrs
import pyarrow.dataset
import pyarrow.parquet
import pytest
from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.driver.findings import Finding
from rmq_audit.driver.recordindex import of_sides, prepare
from rmq_audit.engine.engines import Engine, EngineError, LocalEngine
from rmq_audit.report.parquet import SCHEMA, write_findings
from rmq_audit.worker.location import InputError
from rmq_audit.worker.work import MASTER, SLAVE, STORE

from tests.spark.cases import EngineCase, GoldenCase
from tests.spark.support import audit, result_of, rmq_audit
from tests.spark.synthetic import Pair, make_store


def read_index(folder: Path) -> list[dict[str, Any]]:
    """Return all rows of a record index, by replica and place."""
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(folder, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["replica"], row["phy_offset"]))


class TableCase(GoldenCase):
    def damaged(self, seed: int = 2) -> Pair:
        """A pair with one flipped body byte on the slave."""
        pair = Pair(self.folder / "pair", make_store(seed))
        one = next(one for one in pair.made.stored[50:] if one.body_size > 20)
        pair.flip(pair.slave, one.body_at)
        return pair


class FindingsTests(TableCase):
    def test_columns_are_those_of_the_json(self) -> None:
        """Every member of a finding is a column; run_id is the folder's."""
        members = {one.name for one in attrs.fields(Finding)} - {"run_id"}
        self.assertEqual(set(SCHEMA.names), members)

    def test_runs_lie_side_by_side(self) -> None:
        """Each run adds a folder; what was found comes back with its types, ids and hex, resolved ones too."""
        pair = self.damaged()
        rows = [one.to_json() for one in audit(pair.master, pair.slave).findings]
        path = write_findings(str(self.folder / "t"), "run-1", rows)
        self.assertEqual(pyarrow.parquet.read_metadata(path).row_group(0).column(0).compression, "ZSTD")
        write_findings(str(self.folder / "t"), "run-2", [rows[0] | {"state": "resolved", "detail": "bad \ud800 text"}])
        write_findings(str(self.folder / "t"), "run-3", [])
        table = pyarrow.dataset.dataset(self.folder / "t", partitioning="hive").to_table().to_pylist()
        self.assertEqual([one["run_id"] for one in table], ["run-1", "run-1", "run-2"])
        for row, read in zip(rows, table, strict=False):
            self.assertEqual({name: row[name] for name in SCHEMA.names}, {name: read[name] for name in SCHEMA.names})
        self.assertEqual((table[2]["state"], table[2]["detail"]), ("resolved", "bad \\ud800 text"))

    def test_a_folder_that_cannot_be_written(self) -> None:
        """One line that names it."""
        (self.folder / "file").write_text("x")
        error = self.assertRaises(InputError, write_findings, str(self.folder / "file"), "r", [])
        self.assertIn("--parquet", str(error))


class RecordIndexTests(TableCase):
    def index(self, pair: Pair, engine: Engine, name: str = "index") -> tuple[Result, list[dict[str, Any]]]:
        prepare(str(self.folder / name))
        folders = of_sides(str(self.folder / name), (MASTER, SLAVE))
        options = Options(split_bytes=8192, chunk_bytes=2048, record_index=folders)
        result = compare(str(pair.master), str(pair.slave), engine, options)
        return result, read_index(self.folder / name)

    def test_a_row_for_each_record(self) -> None:
        """Both replicas, every record once, with place, queue, name and CRC, although seams are read again."""
        pair = self.damaged()
        result, rows = self.index(pair, LocalEngine(2, pool_from_bytes=0))
        self.assertGreater(result.coverage.splits_read_again, 0)
        made = [(one.phy, one.size, one.topic, one.queue_id, one.message_id) for one in pair.made.stored]
        for replica in ("master", "slave"):
            read = [
                (row["phy_offset"], row["size"], row["topic"], row["queue_id"], row["msg_id"])
                for row in rows
                if row["replica"] == replica
            ]
            self.assertEqual(read, made)
        self.assertTrue(all(row["queue_offset"] >= 0 and row["body_size"] >= 0 for row in rows))

    def test_messages_of_apache(self) -> None:
        """Rows of a store of 5.3.3 are what its producers were told."""
        folder = self.golden("mixed-5.3.3")
        options = Options(record_index=of_sides(str(self.folder / "index"), (STORE,)))
        check(str(folder / "store"), LocalEngine(1), options)
        rows = {row["phy_offset"]: row for row in read_index(self.folder / "index")}
        told = [one for one in json.loads((folder / "MANIFEST.json").read_text())["messages"] if "offsetMsgId" in one]
        plain = [one for one in told if one["how"] == "sync" and "delayLevel" not in one]
        self.assertGreater(len(plain), 50)
        for one in plain:
            row = rows[int(one["offsetMsgId"][-16:], 16)]
            self.assertEqual(
                (row["topic"], row["queue_id"], row["queue_offset"], row["msg_id"]),
                (one["topic"], one["queueId"], one["queueOffset"], one["msgId"]),
            )

    def test_what_lies_behind_the_end_is_no_row(self) -> None:
        """Old records after a truncation, and a torso, are not in the index; nor is any file left over."""
        pair = Pair(self.folder / "pair", make_store(4))
        cut = pair.made.stored[-12]
        pair.write(pair.slave, cut.phy, bytes(cut.size))
        result, rows = self.index(pair, LocalEngine(1))
        assert result.slave is not None
        places = [row["phy_offset"] for row in rows if row["replica"] == "slave"]
        self.assertEqual(len(places), result.slave.records)
        self.assertLess(max(places), result.slave.end)
        names = os.listdir(self.folder / "index" / "replica=slave")
        self.assertTrue(all(name.endswith(".parquet") for name in names), names)

    def test_a_store_that_changes_meanwhile(self) -> None:
        """What moved is looked at a second time; the rows are those of the second look, once."""
        pair = self.damaged()

        class Busy(LocalEngine):
            def run(self, work: Any, tasks: Any) -> Any:
                answers = super().run(work, tasks)
                if work.name == "scan":
                    os.utime(pair.segment(pair.master, 0))
                return answers

        result, rows = self.index(pair, Busy(1))
        self.assertTrue(result.changed_files)
        places = [row["phy_offset"] for row in rows if row["replica"] == "master"]
        self.assertEqual((len(places), len(set(places))), (result.master.records, result.master.records))

    def test_folders_that_will_not_do(self) -> None:
        """One with something in it is refused before anything is read; one that goes away is told in one line."""
        pair = self.damaged()
        (self.folder / "full").mkdir()
        (self.folder / "full" / "x").write_text("x")
        self.assertIn("not empty", str(self.assertRaises(InputError, self.index, pair, LocalEngine(1), "full")))

        class Losing(LocalEngine):
            def run(self, work: Any, tasks: Any) -> Any:
                if work.name == "scan":
                    shutil.rmtree(tasks[0].index, ignore_errors=True)
                return super().run(work, tasks)

        error = self.assertRaises(EngineError, self.index, pair, Losing(1))
        self.assertIn("--record-index", str(error))


@pytest.mark.spark
@pytest.mark.campaign
class SparkTableTests(EngineCase, TableCase):
    def test_written_and_read_by_spark(self) -> None:
        """Tasks of Spark write the same rows as the local engine; SQL joins index and findings."""
        from pyspark.sql import SparkSession

        pair = self.damaged()
        rows = {}
        for name, engine in (("spark", self.engine), ("local", LocalEngine(1))):
            folders = of_sides(str(self.folder / name), (MASTER, SLAVE))
            options = Options(split_bytes=8192, chunk_bytes=2048, record_index=folders)
            result = compare(str(pair.master), str(pair.slave), engine, options)
            rows[name] = read_index(self.folder / name)
        self.assertEqual(rows["spark"], rows["local"])
        write_findings(str(self.folder / "findings"), "r1", [one.to_json() for one in result.findings])
        spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
        spark.read.parquet(str(self.folder / "spark")).createOrReplaceTempView("records")
        spark.read.parquet(str(self.folder / "findings")).createOrReplaceTempView("findings")
        found = spark.sql(
            "select r.msg_id, f.run_id from records r join findings f on r.phy_offset = f.phy_from "
            "where r.replica = 'slave' and f.invariant = 'RP-DIFF'"
        ).collect()
        self.assertEqual([tuple(row) for row in found], [(result.findings[0].sample_msg_ids[0], "r1")])


class OptionTests(TableCase):
    def run_it(self, pair: Pair, *options: object, **environment: str) -> tuple[dict[str, Any], str]:
        path = self.folder / "out.json"
        answer = rmq_audit(
            *("compare", pair.master, pair.slave, "--engine", "local", "--json", path, *options),
            environment=environment,
        )
        self.assertIn(answer.returncode, (0, 1, 2), answer.stderr)
        return result_of(path), answer.stderr

    def test_everything_at_once(self) -> None:
        """State, tables and progress by the command line: the second run reads nothing and says what is new."""
        pair = self.damaged()
        for path in pair.master.parent.rglob("*"):
            os.utime(path, ns=(0, 1_700_000_000 * 10**9))
        state, tables, index = self.folder / "state", self.folder / "tables", self.folder / "index"
        first, _ = self.run_it(pair, "--state", state, "--parquet", tables)
        self.assertEqual((first["state"]["tasks_reused"], first["previous"]), (0, None))
        second, _ = self.run_it(pair, "--state", state, "--parquet", tables, "--progress")
        self.assertEqual(second["state"]["tasks_done"], 0)
        self.assertEqual({one["state"] for one in second["findings"]}, {"persisting"})
        same = ("verdict", "coverage", "findings_total", "compared")
        self.assertEqual([first[name] for name in same], [second[name] for name in same])
        third, _ = self.run_it(pair, "--state", state, "--no-state", "--record-index", index)
        self.assertEqual((third["state"], third["previous"]), (None, None))
        self.assertEqual(len(pyarrow.dataset.dataset(tables, partitioning="hive").to_table()), 4)
        self.assertEqual(len(read_index(index)), 2 * len(pair.made.stored))

    def test_resume_has_a_folder_of_its_own(self) -> None:
        """``--resume`` remembers below XDG_STATE_HOME; another pair there has another folder."""
        pair = self.damaged()
        for path in pair.master.parent.rglob("*"):
            os.utime(path, ns=(0, 1_700_000_000 * 10**9))
        home = {"XDG_STATE_HOME": str(self.folder / "home")}
        self.run_it(pair, "--resume", **home)
        again, _ = self.run_it(pair, "--resume", **home)
        self.assertEqual(again["state"]["tasks_done"], 0)
        other, _ = self.run_it(Pair(self.folder / "other", make_store(9, 60)), "--resume", **home)
        self.assertEqual((other["state"]["tasks_reused"], other["previous"]), (0, None))

    def test_a_folder_of_another_pair(self) -> None:
        """The report of other stores in the same folder is named and not compared with."""
        pair, state = self.damaged(), self.folder / "state"
        self.run_it(pair, "--state", state)
        other, told = self.run_it(Pair(self.folder / "other", make_store(9, 60)), "--state", state)
        self.assertIsNone(other["previous"])
        self.assertIn("state ignored", told)
        (state / "report.json").write_text("{")
        _, told = self.run_it(pair, "--state", state)
        self.assertIn("report.json is not a report", told)
