"""A whole cluster in one run: every pair, several slaves of one master, side tables split by broker, one verdict."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pyarrow.dataset
import pytest
from rmq_audit.driver.audit import Options
from rmq_audit.driver.cluster import ClusterResult, audit_cluster, read_tables
from rmq_audit.driver.clusterconfig import read_config
from rmq_audit.driver.findings import INVARIANTS
from rmq_audit.engine.engines import Engine, LocalEngine
from rmq_audit.worker.location import InputError

from tests.needs import ROOT
from tests.spark.cases import EngineCase
from tests.spark.support import result_of
from tests.spark.synthetic import Pair, make_store
from tests.spark.test_command import CommandCase

EXAMPLE = ROOT / "etc" / "audit-cluster.toml"


class ClusterCase(CommandCase):
    @pytest.fixture(autouse=True)
    def _make_cluster(self, tmp_path: Path, _take_folder: None) -> None:
        """Three brokers as the example in etc/ has them: with two slaves, with one, with none."""
        self.config = tmp_path / "audit-cluster.toml"
        shutil.copy(EXAMPLE, self.config)
        self.pairs: dict[str, Pair] = {}
        (tmp_path / "tables").mkdir()
        for seed, name in enumerate(("broker-a", "broker-b", "broker-c"), 31):
            pair = self.pairs[name] = Pair(tmp_path / name, make_store(seed, 90))
            pair.slave.rename(tmp_path / name / "slave-1")
            pair.slave = tmp_path / name / "slave-1"
        shutil.copytree(self.pairs["broker-a"].slave, tmp_path / "broker-a" / "slave-2")
        shutil.copy(
            self.pairs["broker-b"].master / "config" / "consumerOffset.json",
            tmp_path / "tables" / "broker-b-consumerOffset.json",
        )
        self.write_rows([row for name in self.pairs for row in self.rows(name)])
        self.write_routes(self.routes("ns1:9876"), self.routes("ns2:9876"))

    def rows(self, broker: str) -> list[dict[str, Any]]:
        return [one.acked_row() | {"brokerName": broker} for one in self.pairs[broker].made.stored]

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / "tables" / "acked.jsonl").write_text(text)

    def routes(self, nameserver: str) -> dict[str, Any]:
        """What a NameServer knows that knows everything: all topics, with two queues on each broker that has them."""
        brokers = []
        for number, (name, slaves) in enumerate((("broker-a", 2), ("broker-b", 1), ("broker-c", 0))):
            for broker_id in range(slaves + 1):
                addr = f"10.0.{number}.{broker_id}:10911"
                brokers.append({"cluster": "made", "brokerName": name, "brokerId": broker_id, "addr": addr})
        queues = [
            {"topic": topic, "brokerName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
            for name, pair in self.pairs.items()
            for topic in sorted({one.topic for one in pair.made.stored})
        ]
        return {"nameserver": nameserver, "takenAt": 1_790_000_000_000, "brokers": brokers, "queues": queues}

    def write_routes(self, *routes: dict[str, Any]) -> None:
        (self.folder / "tables" / "routes.json").write_text(json.dumps(routes))

    def audit(self, engine: Engine | None = None) -> ClusterResult:
        config = read_config(str(self.config))
        return audit_cluster(config, read_tables(config), engine or LocalEngine(1), Options(chunk_bytes=4096))

    def run_cluster(self, *more: object) -> tuple[int, str, str]:
        return self.run_here("cluster", self.config, "--engine", "local", "--workers", "1", *more)

    def edit(self, old: str, new: str) -> None:
        text = self.config.read_text()
        self.assertIn(old, text)
        self.config.write_text(text.replace(old, new, 1))

    def found(self, result: ClusterResult) -> list[tuple[str | None, str, str]]:
        return [(one.broker, one.invariant, one.replica) for one in result.findings if one.derived_from is None]


class VerdictTests(ClusterCase):
    def test_the_example_is_a_configuration(self) -> None:
        """The example in etc/ is read as it stands, with every key of the documentation in it."""
        config = read_config(str(EXAMPLE))
        self.assertEqual(
            [(one.name, len(one.slaves)) for one in config.brokers], [("broker-a", 2), ("broker-b", 1), ("broker-c", 0)]
        )
        self.assertEqual([one.allowed_lag_bytes for one in config.brokers], [64 << 20, 1 << 30, 64 << 20])
        self.assertEqual((config.cluster, config.brokers[1].index_slots), ("DefaultCluster", 5_000_000))
        for one in attrs.fields(type(config.brokers[1])):
            if one.name != "acked":
                self.assertTrue(getattr(config.brokers[1], one.name), one.name)

    def test_all_well(self) -> None:
        """A sound cluster is CONSISTENT, exit status 0; everything was looked at: pairs, sends, offsets, routes."""
        self.edit("index_slots = 5000000\n", "")
        result = self.audit()
        self.assertEqual((result.verdict, result.exit_status, self.found(result)), ("CONSISTENT", 0, []))
        self.assertEqual(
            [one.pair.name for one in result.pairs], ["broker-a slave 1", "broker-a slave 2", "broker-b", "broker-c"]
        )
        for one in result.pairs:
            assert one.result is not None
            stored = len(self.pairs[one.pair.broker.name].made.stored)
            self.assertEqual(one.result.coverage.master.acked_sends_checked, stored)
            self.assertGreater(one.result.coverage.master.consumer_offsets_checked, 0)

    def test_each_finding_has_its_broker_and_slave(self) -> None:
        """Damage on one of two slaves, on a master that both have, and on another broker: each said once, by name."""
        self.edit("index_slots = 5000000\n", "")
        a, c = self.pairs["broker-a"], self.pairs["broker-c"]
        second = self.folder / "broker-a" / "slave-2"
        a.flip(second, a.made.stored[40].body_at)
        one = a.made.stored[10]
        a.write_unit(a.master, one, bytes(20))
        c.flip(c.master, c.made.stored[33].body_at)
        result = self.audit()
        self.assertEqual(
            sorted(map(str, self.found(result))),
            sorted(
                map(
                    str,
                    [
                        ("broker-a", "RP-DIFF", "slave 2"),
                        ("broker-a", "CQ-MISMATCH", "master"),
                        ("broker-c", "CL-CRC", "store"),
                    ],
                )
            ),
        )
        self.assertEqual((result.verdict, result.exit_status), ("DIFFERENT", 2))
        self.assertEqual({one.cluster for one in result.findings}, {"DefaultCluster"})
        self.assertEqual(len({one.finding_id for one in result.findings}), len(result.findings))
        named = {one.finding_id for one in result.findings}
        self.assertEqual({one.derived_from for one in result.findings} - named, {None})

    def test_a_store_that_is_not_there_leaves_the_others_alone(self) -> None:
        """One slave is gone and one master is a dump of another broker: these pairs are incomplete, status 3."""
        self.edit("index_slots = 5000000\n", "")
        shutil.rmtree(self.folder / "broker-a" / "slave-2")
        (self.pairs["broker-c"].master / "manifest.json").write_text('{"brokerName": "broker-x"}')
        status, out, err = self.run_cluster()
        self.assertEqual((status, err), (3, ""), out)
        self.assertIn("INCOMPLETE  (exit status 3)", out)
        self.assertIn(f"{self.folder}/broker-a/slave-2: no such directory", out)
        self.assertIn("is a dump of broker broker-x, not of broker-c", out)
        self.assertRegex(out, r"broker-b +CONSISTENT")

    def test_sends_of_each_broker(self) -> None:
        """A send that is in no log is named with its broker; rows of unknown brokers are counted and not forgotten."""
        self.edit("index_slots = 5000000\n", "")
        rows = [row for name in self.pairs for row in self.rows(name)]
        lost = dict(self.rows("broker-b")[7], msgId="7F0000010000AAAAAAAAAAAAAAAAAAAA")
        self.write_rows([*rows, lost, dict(rows[0], brokerName="broker-z"), dict(rows[1], brokerName="broker-z")])
        result = self.audit()
        self.assertEqual(self.found(result), [("broker-b", "AK-LOST", "master"), ("broker-z", "AU-COVER", "store")])
        self.assertEqual((result.exit_status, result.complete), (2, False))
        self.assertIn("2 acknowledged sends are of broker broker-z", result.findings[1].detail)

    def test_a_table_of_one_broker(self) -> None:
        """A table that stands under its broker needs no names in its rows, and adds to the common one."""
        self.edit("index_slots = 5000000\n", 'acked = ["tables/own.jsonl"]\n')
        own = [{key: value for key, value in row.items() if key != "brokerName"} for row in self.rows("broker-b")]
        (self.folder / "tables" / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
        result = self.audit()
        checked = [one.result.coverage.master.acked_sends_checked for one in result.pairs if one.result is not None]
        self.assertEqual((result.exit_status, checked[2]), (0, 2 * len(own)))

    def test_rows_of_others_in_a_table_of_one_broker(self) -> None:
        """Rows that name another broker leave the run incomplete, unless their broker has the same table."""
        self.edit("index_slots = 5000000\n", 'acked = ["tables/own.jsonl"]\n')
        rows = [*self.rows("broker-b"), *self.rows("broker-c")[:3], dict(self.rows("broker-b")[0], brokerName="z")]
        (self.folder / "tables" / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = self.audit()
        told = [(one.broker, one.count, one.detail.split(", ")[-1]) for one in result.findings]
        expected = [
            ("broker-c", 3, "but are in another broker's table: not searched for"),
            ("z", 1, "which the configuration does not name: not searched for"),
        ]
        self.assertEqual((result.exit_status, sorted(told)), (3, expected))
        self.edit('name = "broker-c"\n', 'name = "broker-c"\nacked = ["tables/own.jsonl"]\n')
        self.assertEqual(set(read_tables(read_config(str(self.config))).strangers), {"z"})

    def test_offsets_from_elsewhere(self) -> None:
        """Consumer offsets of a file of their own are compared with the master's queues."""
        self.edit("index_slots = 5000000\n", "")
        path = self.folder / "tables" / "broker-b-consumerOffset.json"
        path.write_text(re.sub(r":\d+\}", ":900000}", path.read_text()))
        self.assertEqual({one[1] for one in self.found(self.audit())}, {"CO-AHEAD"})
        path.unlink()
        result = self.audit()
        self.assertEqual((result.exit_status, result.findings[0].invariant), (3, "AU-COVER"))
        self.assertIn(f"{path}: no such file", result.findings[0].detail)


class OutputTests(ClusterCase):
    def test_files(self) -> None:
        """JSON, one page, JUnit and metrics of all pairs from one run; findings are flat and carry their names."""
        self.edit("index_slots = 5000000\n", "")
        a = self.pairs["broker-a"]
        a.flip(a.slave, a.made.stored[40].body_at)
        (self.folder / "out").mkdir()
        names = {kind: self.folder / "out" / f"all.{kind}" for kind in ("json", "html", "junit", "prometheus")}
        status, out, _ = self.run_cluster(*(part for kind, path in names.items() for part in (f"--{kind}", path)))
        self.assertEqual(status, 2)
        self.assertTrue(out.startswith("DIFFERENT  (exit status 2)  1 finding"), out)
        answer = result_of(names["json"])
        self.assertEqual((answer["command"], answer["cluster"], len(answer["pairs"])), ("cluster", "DefaultCluster", 4))
        self.assertEqual([one["verdict"] for one in answer["pairs"]], ["DIFFERENT", *["CONSISTENT"] * 3])
        self.assertEqual(answer["pairs"][0]["slave"]["path"], str(a.slave))
        (cause,) = (one for one in answer["findings"] if one["derived_from"] is None)
        self.assertEqual((cause["broker"], cause["replica"], cause["blame"]), ("broker-a", "slave 1", "slave 1"))
        page = names["html"].read_text()
        self.assertEqual(re.findall(r'(?:src|href)="(?!#)|url\(|@import|<script', page), [])
        links = re.findall(r'href="#([^"]+)"', page)
        self.assertEqual((len(links), set(links)), (4, set(re.findall(r'<details id="([^"]+)"', page))))
        self.assertEqual(page.count('aria-label="chunk map"'), 3)
        self.assertEqual(len(re.findall('<details id="[^"]+" open>', page)), 1)
        self.assertIn("broker-a slave 2</td>", page)  # a bar of its own among the lags
        self.assertIn(f"load(&quot;{a.slave}&quot;)", page)
        self.assertEqual(sorted(os.listdir(self.folder / "out")), sorted(path.name for path in names.values()))
        suites = ElementTree.parse(names["junit"]).getroot()
        failed = {one.get("name"): int(str(one.get("failures"))) for one in suites}
        self.assertEqual({name for name, count in failed.items() if count}, {"rmq-audit broker-a slave 1"})
        skipped = {
            (one.get("name"), str(case.get("name")).split()[0])
            for one in suites
            for case in one
            if case.find("skipped") is not None
        }
        told = {suite.get("name"): [str(case.get("name")).split()[0] for case in suite] for suite in suites}
        own = [name for name in INVARIANTS if name.startswith("RT-") or name == "CL-BACK"]
        self.assertEqual(sorted(told.pop("rmq-audit cluster")), sorted([*own, "AU-COVER"]))
        for name, cases in told.items():
            self.assertEqual((name, cases), (name, [one for one in INVARIANTS if one not in own]))
        self.assertEqual([one for name, one in skipped if name == "rmq-audit cluster"], ["CL-BACK"])
        self.assertIn(("rmq-audit broker-c", "RP-DIFF"), skipped)
        self.assertNotIn(("rmq-audit broker-b", "RP-DIFF"), skipped)
        self.assertNotIn(("rmq-audit broker-b", "AK-LOST"), skipped)
        self.assertEqual(suites.get("tests"), str(sum(len(one) for one in suites)))
        metrics = names["prometheus"].read_text()
        self.assertIn('rmq_audit_exit_status{broker="broker-a slave 1",command="compare"} 2', metrics)
        self.assertIn('rmq_audit_cluster_exit_status{cluster="DefaultCluster"} 2', metrics)
        helps = re.findall(r"# HELP (\S+)", metrics)
        self.assertEqual(len(helps), len(set(helps)))

    def test_tables(self) -> None:
        """Findings of all brokers go to one table; the record index has a folder a broker, each store's rows once."""
        self.edit("index_slots = 5000000\n", "")
        a = self.pairs["broker-a"]
        a.flip(a.slave, a.made.stored[40].body_at)
        table, index = self.folder / "table", self.folder / "index"
        status, _, _ = self.run_cluster("--parquet", table, "--record-index", index)
        self.assertEqual(status, 2)
        rows = pyarrow.dataset.dataset(table, partitioning="hive").to_table().to_pylist()
        self.assertEqual({(row["broker"], row["replica"]) for row in rows}, {("broker-a", "slave 1")})
        self.assertIn(["body"], [[one["field"] for one in row["differing_fields"]] for row in rows])
        counts: dict[tuple[str, str], int] = {}
        for row in pyarrow.dataset.dataset(index, partitioning="hive").to_table().to_pylist():
            key = row["broker"], row["replica"]
            counts[key] = counts.get(key, 0) + 1
        stored = {name: len(pair.made.stored) for name, pair in self.pairs.items()}
        there = {"broker-a": ("master", "slave-1", "slave-2"), "broker-b": ("master", "slave"), "broker-c": ("master",)}
        self.assertEqual(counts, {(name, one): stored[name] for name, replicas in there.items() for one in replicas})

    def test_tables_that_cannot_be_written(self) -> None:
        """A folder with something in it, and a path through a file, are refused before any store is read."""
        (self.folder / "full").mkdir()
        (self.folder / "full" / "x").write_text("x")
        self.assert_refused(self.run_cluster("--record-index", self.folder / "full"), "--record-index", "is not empty")
        self.assert_refused(self.run_cluster("--parquet", self.config / "x"), "--parquet", "cannot be written")

    def test_watch(self) -> None:
        """Each round of watch adds its findings to the table; a record index it refuses, and says why."""
        self.edit("index_slots = 5000000\n", "")
        b = self.pairs["broker-b"]
        b.flip(b.slave, b.made.stored[41].body_at)
        arguments = ("watch", self.config, "--engine", "local", "--workers", "1", "--state", self.folder / "state")
        refused = self.run_here(*arguments, "--record-index", self.folder / "index")
        self.assert_refused(refused, "--record-index", "watch writes none")
        table = self.folder / "table"
        status, _, _ = self.run_here(*arguments, "--rounds", "2", "--every", "1s", "--parquet", table)
        self.assertEqual((status, len(os.listdir(table))), (2, 2))
        rows = pyarrow.dataset.dataset(table, partitioning="hive").to_table().to_pylist()
        self.assertEqual({row["state"] for row in rows}, {"new", "persisting"})

    def test_since_the_run_before(self) -> None:
        """A second run tells persisting findings from new ones, and what is gone."""
        self.edit("index_slots = 5000000\n", "")
        a, b = self.pairs["broker-a"], self.pairs["broker-b"]
        last = self.folder / "last.json"
        a.flip(a.slave, a.made.stored[40].body_at)
        b.flip(b.slave, b.made.stored[41].body_at)
        self.run_cluster("--json", last)
        b.flip(b.slave, b.made.stored[41].body_at)
        b.flip(b.slave, b.made.stored[20].body_at)
        status, out, _ = self.run_cluster("--previous", last, "--json", last)
        self.assertEqual(status, 2)
        answer = result_of(last)
        states = {(one["broker"], one["state"]) for one in answer["findings"] if one["derived_from"] is None}
        self.assertEqual(states, {("broker-a", "persisting"), ("broker-b", "new")})
        self.assertEqual({one["broker"] for one in answer["resolved"]}, {"broker-b"})
        self.assertIn("resolved", out)


class MistakeTests(ClusterCase):
    def test_mistakes_in_the_file(self) -> None:
        """Each is one line with file, line and key, status 64, and no store is read."""
        good = self.config.read_text()
        lines = good.splitlines()
        for old, new, words in (
            ('cluster = "DefaultCluster"', "cluster = DefaultCluster", ("is not TOML", "line")),
            (
                'cluster = "DefaultCluster"',
                "cluster = 7",
                ("cluster: 7 is not text", f"line {self.line(lines, 'cluster')}"),
            ),
            (
                'allow_lag = "1G"',
                'allow_lag = "much"',
                ("broker 2: allow_lag", f"line {self.line(lines, 'allow_lag', 2)}"),
            ),
            (
                'slaves = ["broker-b/slave-1"]',
                'slaves = "broker-b/slave-1"',
                ("broker 2: slaves", "not a list of paths"),
            ),
            ('slaves = ["broker-b/slave-1"]', 'slaves = ["broker-b/master"]', ("broker 2: slaves", "twice")),
            ('name = "broker-c"', 'name = "broker-a"', ("broker 3: name", "given twice")),
            ('name = "broker-c"', "", ("broker 3: name is missing", f"line {self.line(lines, '[[broker]]', 3)}")),
            ('master = "broker-c/master"', 'mastre = "broker-c/master"', ("broker 3: master is missing",)),
            ("index_slots = 5000000", "index_slots = 0", ("broker 2: index_slots",)),
            ("index_slots = 5000000", "index_slot = 5", ("broker 2: index_slot: is not known", "index_slots")),
            ("[[broker]]", "[broker]", ("not TOML",)),
            ('"broker-b/slave-1"', '"s3://me:hidden@bucket/x#y"', ("broker 2: slaves", "s3://bucket/x")),
        ):
            self.config.write_text(good.replace(old, new, 1))
            outcome = self.run_cluster()
            self.assert_refused(outcome, str(self.config), *words)
            self.assertNotIn("hidden", outcome[2])
        self.config.write_text("")
        self.assert_refused(self.run_cluster(), "no [[broker]]")
        self.config.write_bytes(b"\xff")
        self.assert_refused(self.run_cluster(), "is not UTF-8")
        self.config.unlink()
        self.assert_refused(self.run_cluster(), f"{self.config}: no such file")

    def line(self, lines: list[str], begin: str, nth: int = 1) -> int:
        return [number for number, line in enumerate(lines, 1) if line.startswith(begin)][nth - 1]

    def test_mistakes_in_side_tables(self) -> None:
        """A table or a dump of routes that cannot be used is named with row or member before anything is read."""
        table, routes = self.folder / "tables" / "acked.jsonl", self.folder / "tables" / "routes.json"
        nameless = {key: value for key, value in self.rows("broker-a")[0].items() if key != "brokerName"}
        self.write_rows([nameless])
        self.assert_refused(self.run_cluster(), str(table), "row 1", "brokerName is missing")
        table.unlink()
        self.assert_refused(self.run_cluster(), str(table), "No such file")
        self.write_rows([])
        for text, words in (
            ("nothing", ("not JSON",)),
            ('[{"brokers": [], "queues": []}]', ("NameServer 1", "nameserver is None")),
            ('{"nameserver": "a", "brokers": {}, "queues": []}', ("brokers is not a list",)),
            ('{"nameserver": "a", "brokers": [{"brokerName": "x"}], "queues": []}', ("brokerId",)),
        ):
            routes.write_text(text)
            self.assert_refused(self.run_cluster(), str(routes), *words)
        routes.unlink()
        self.assert_refused(self.run_cluster(), str(routes), "no such file")

    def test_reading_a_table_without_names(self) -> None:
        """``split_sends`` counts what is of nobody and refuses rows without a broker."""
        from rmq_audit.driver.acked import split_sends

        self.write_rows([dict(self.rows("broker-a")[0], brokerName="other")])
        path = str(self.folder / "tables" / "acked.jsonl")
        sends, strangers = split_sends([path], ["broker-a"])
        self.assertEqual((sends["broker-a"].sends, strangers), ([], {"other": 1}))
        self.assertRaises(InputError, read_config, str(self.folder / "tables"))


@pytest.mark.spark
class SparkTests(EngineCase, ClusterCase):
    @pytest.mark.campaign
    def test_spark_finds_the_same(self) -> None:
        """On Spark the cluster's findings are those of the local engine."""
        self.edit("index_slots = 5000000\n", "")
        a = self.pairs["broker-a"]
        a.flip(a.slave, a.made.stored[40].body_at)
        on_spark, locally = self.audit(self.engine), self.audit()
        self.assertEqual([one.to_json() for one in on_spark.findings], [one.to_json() for one in locally.findings])
        self.assertEqual((on_spark.verdict, on_spark.exit_status), (locally.verdict, 2))
