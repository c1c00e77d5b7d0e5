"""Acknowledged sends compared with the log: of Apache's brokers, and what is lost, moved or changed."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from rmq_audit.driver.acked import read_sends
from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.location import InputError

from rmq.store import layout
from rmq.wire import record
from tests.spark.cases import GoldenCase
from tests.spark.support import as_json, result_of, rmq_audit
from tests.spark.synthetic import HOST, Pair, Stored, make_store


class AckedCase(GoldenCase):
    def table(self, rows: list[dict[str, Any]], name: str = "acked.jsonl") -> str:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def rows(self, pair: Pair) -> list[dict[str, Any]]:
        return [self.row(pair, one) for one in pair.made.stored]

    def row(self, pair: Pair, one: Stored) -> dict[str, Any]:
        body = pair.read(pair.master, one.body_at, one.body_size)
        return {
            "msgId": one.message_id,
            "topic": one.topic,
            "queueId": one.queue_id,
            "queueOffset": one.queue_offset,
            "offsetMsgId": record.offset_msg_id(HOST, one.phy),
            "sendStatus": "SEND_OK",
            "bodyCrc": record.body_crc(body),
            "bodyLen": len(body),
        }

    def check(self, store: Path, table: str) -> Result:
        return check(str(store), LocalEngine(1), Options(acked=table))

    def kinds(self, result: Result) -> list[tuple[str, int]]:
        return [(one.invariant, one.count) for one in result.findings if one.invariant.startswith("AK-")]


class GoldenTests(AckedCase):
    def test_what_apache_acknowledged_is_there(self) -> None:
        """Delayed messages under their real topic, batches of 5.3.3 with one name, compressed bodies: all are found."""
        for name in ("mixed-4.9.7", "mixed-5.3.3"):
            folder = self.golden(name)
            messages = json.loads((folder / "MANIFEST.json").read_text())["messages"]
            rows = [one | {"bodyCrc": one["bodyCrc32"], "bodyLen": one["bodyLength"]} for one in messages]
            result = self.check(folder / "store", self.table(rows))
            self.assertEqual((name, result.verdict.value, as_json(result)), (name, "CONSISTENT", []))
            seen = result.coverage.master
            self.assertEqual((seen.acked_sends_checked, seen.acked_sends_without_place), (266, 5))


class LostTests(AckedCase):
    def test_clean(self) -> None:
        """All that was stored is found, by its place alone or with its body."""
        pair = Pair(self.folder, make_store(3))
        rows = [one for one in self.rows(pair) if not one["topic"].endswith("-long")]
        result = self.check(pair.master, self.table(rows))
        self.assertEqual((self.kinds(result), result.coverage.master.acked_sends_checked), ([], len(rows)))

    def test_lost_behind_the_end_and_overwritten(self) -> None:
        """A log cut short, and a place that another message has: both lost, with the first places and the ids."""
        pair = Pair(self.folder, make_store(3))
        rows = self.rows(pair)
        cut = pair.made.stored[-40]
        pair.cut(pair.master, cut.phy)
        result = self.check(pair.master, self.table(rows))
        self.assertEqual(self.kinds(result), [("AK-LOST", 40)])
        (found,) = [one for one in result.findings if one.invariant == "AK-LOST"]
        self.assertEqual(
            (found.phy_from, found.sample_msg_ids[0], len(found.sample_msg_ids)), (cut.phy, cut.message_id, 10)
        )
        self.assertEqual(result.exit_status, 2)
        other = dict(rows[10], msgId="0" * 32, bodyCrc=1)
        self.assertEqual(self.kinds(self.check(pair.slave, self.table([other]))), [("AK-LOST", 1)])
        nowhere = dict(rows[10], offsetMsgId=record.offset_msg_id(HOST, pair.made.stored[10].phy + 1))
        self.assertEqual(self.kinds(self.check(pair.slave, self.table([nowhere]))), [("AK-LOST", 1)])
        far = dict(rows[10], offsetMsgId=record.offset_msg_id(HOST, 1 << 40))
        self.assertEqual(self.kinds(self.check(pair.slave, self.table([far]))), [("AK-LOST", 1)])

    def test_moved_and_changed(self) -> None:
        """Another queue offset than acknowledged, another body."""
        pair = Pair(self.folder, make_store(3))
        rows = self.rows(pair)
        moved, changed = dict(rows[20], queueOffset=777), dict(rows[30], bodyCrc=rows[30]["bodyCrc"] ^ 1)
        result = self.check(pair.master, self.table([moved, changed]))
        self.assertEqual(sorted(self.kinds(result)), [("AK-BODY", 1), ("AK-PLACE", 1)])

    def test_refused_sends_and_other_brokers_do_not_count(self) -> None:
        """What no broker acknowledged, what another one has, and what retention has deleted is not searched for."""
        made = make_store(3)
        pair = Pair(self.folder, made)
        rows = self.rows(pair)[:3]
        rows[0]["sendStatus"] = "SEND_FAILED"
        rows[1]["brokerName"] = "broker-b"
        (pair.master / "manifest.json").write_text(
            json.dumps({"brokerName": "broker-a", "maxPhyOffset": made.end, "segmentBytes": 64 * 1024})
        )
        result = self.check(pair.master, self.table(rows))
        self.assertEqual((self.kinds(result), result.coverage.master.acked_sends_checked), ([], 1))
        (pair.slave / layout.COMMIT_LOG_DIR / layout.file_name(0)).unlink()
        expired = self.check(pair.slave, self.table(self.rows(pair)[:3]))
        self.assertEqual((self.kinds(expired), expired.coverage.master.acked_sends_expired), ([], 3))

    def test_pairs_are_held_against_the_master(self) -> None:
        """Of a pair the master's log counts."""
        pair = Pair(self.folder, make_store(3))
        table = self.table(self.rows(pair))
        pair.cut(pair.slave, pair.made.stored[-5].phy)
        result = compare(str(pair.master), str(pair.slave), LocalEngine(1), Options(acked=table))
        self.assertEqual((self.kinds(result), result.verdict.value), ([], "LAGGING"))


class TableTests(AckedCase):
    def test_parquet_and_batches(self) -> None:
        """Parquet rows read like JSON Lines; ids joined by commas are one message each, numbered upwards."""
        pair = Pair(self.folder, make_store(3))
        rows = self.rows(pair)[:5]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.folder / "acked.parquet")
        self.assertEqual(
            read_sends(str(self.folder / "acked.parquet"), None).sends, read_sends(self.table(rows), None).sends
        )
        batch = {"msgId": "a,b", "topic": "t", "queueId": 1, "queueOffset": 7}
        batch["offsetMsgId"] = ",".join(record.offset_msg_id(HOST, phy) for phy in (10, 20))
        sends = read_sends(self.table([batch]), None).sends
        self.assertEqual([(one.message_id, one.queue_offset, one.phy) for one in sends], [("a", 7, 10), ("b", 8, 20)])

    def test_null_is_what_a_missing_member_is(self) -> None:
        """Parquet has null where JSON leaves a member out: such sends are looked for like those without it."""
        pair = Pair(self.folder, make_store(3, 50))
        lost = {**self.rows(pair)[5], "msgId": "0" * 32, "bodyCrc": 1, "sendStatus": None}
        result = self.check(pair.master, self.table([lost]))
        self.assertEqual((self.kinds(result), result.exit_status), ([("AK-LOST", 1)], 2))
        nameless = {"msgId": "a", "topic": "t", "queueId": 1, "queueOffset": 7, "localTransactionState": None}
        self.assertEqual(len(read_sends(self.table([nameless]), None).placeless), 1)

    def test_numbers_as_writers_make_them(self) -> None:
        """Doubles (pandas has them in columns with holes), text and CRCs of 32 bits are the numbers they stand for."""
        pair = Pair(self.folder, make_store(3, 50))
        names = ("bodyCrc", "bodyLen", "queueId", "queueOffset")
        rows = [one for one in self.rows(pair) if not one["topic"].endswith("-long")]
        for kind in (float, str, Decimal):
            made = [row | {name: kind(row[name]) for name in names} for row in rows]
            made[0] |= {"bodyCrc": None, "bodyLen": None}
            path = self.folder / f"{kind.__name__}.parquet"
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), path)
            result = self.check(pair.master, str(path))
            seen = result.coverage.master.acked_sends_checked
            self.assertEqual((kind, self.kinds(result), seen), (kind, [], len(rows)))
        unsigned = [row | {"bodyCrc": row["bodyCrc"] | 1 << 31} for row in rows]
        self.assertEqual(self.kinds(self.check(pair.master, self.table(unsigned))), [])

    def test_what_is_not_looked_for_is_told(self) -> None:
        """The summary and the JSON count the rows that were passed over, each with its reason."""
        pair = Pair(self.folder, make_store(3, 50))
        (pair.master / "manifest.json").write_text(json.dumps({"brokerName": "broker-a"}))
        rows = self.rows(pair)[:3]
        rows[0]["sendStatus"] = "SEND_FAILED"
        rows[1]["brokerName"] = "broker-b"
        path = self.folder / "r.json"
        table = self.table(rows)
        answer = rmq_audit("check", pair.master, "--engine", "local", "--acked", table, "--json", path)
        self.assertIn("1 acknowledged sends (not searched for: 1 refused, 1 of other brokers)", answer.stdout)
        seen = result_of(path)["coverage"]["master"]
        self.assertEqual((seen["acked_sends_not_stored"], seen["acked_sends_of_others"]), (1, 1))

    def test_bad_tables_are_named(self) -> None:
        """File, row and what is wrong, in one line of the command with exit status 64."""
        good = {"msgId": "a", "topic": "t", "queueId": 1, "queueOffset": 7, "physicalOffset": 3}
        for row, part in (
            ({}, "msgId is missing"),
            (good | {"msgId": "a,b"}, "2 ids in msgId, 1 in offsetMsgId"),
            (good | {"queueId": "x"}, "queueId is 'x'"),
            (good | {"queueId": float("inf")}, "queueId is inf"),
            (good | {"queueOffset": 1.5}, "queueOffset is 1.5"),
            (good | {"physicalOffset": 1 << 63}, "physicalOffset is 9223372036854775808"),
            (good | {"physicalOffset": True}, "physicalOffset is True"),
            (good | {"bodyCrc": "ff"}, "bodyCrc is 'ff'"),
            (good | {"topic": None}, "topic is missing"),
            (good | {"sendStatus": "send_ok"}, "sendStatus is 'send_ok', known are FLUSH_DISK_TIMEOUT"),
            (good | {"sendStatus": ["SEND_OK"]}, "sendStatus is ['SEND_OK']"),
            ({**good, "physicalOffset": None, "offsetMsgId": "12"}, "32 or 56 digits"),
        ):
            row = row if row else {"physicalOffset": 1}
            error = self.assertRaises(InputError, read_sends, self.table([good, row]), None)
            self.assertIn("row 2", str(error))
            self.assertIn(part, str(error))
        bad = self.folder / "bad.jsonl"
        bad.write_text("{")
        pair = Pair(self.folder, make_store(3, 50))
        answer = rmq_audit("check", pair.master, "--engine", "local", "--acked", bad)
        self.assertEqual((answer.returncode, answer.stderr.count("\n")), (64, 1), answer.stderr)
        (self.folder / "x.parquet").write_text("no")
        self.assertIn("x.parquet", str(self.assertRaises(InputError, read_sends, str(self.folder / "x.parquet"), None)))
