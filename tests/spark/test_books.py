"""What only counting shows: messages stored twice, transactions that are missing, offsets that went back, epochs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rmq_audit.driver.audit import Options, Result, check, compare
from rmq_audit.driver.findings import Finding
from rmq_audit.driver.previous import read_previous
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.report.pair import Run, to_json
from rmq_audit.worker.duplicates import name_hashes
from rmq_audit.worker.kernel import text_hashes
from rmq_audit.worker.work import Severity
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import layout
from rmq.wire import record
from tests.spark.cases import FolderCase
from tests.spark.support import as_json, causes
from tests.spark.synthetic import HOST, QUEUE_FILE_BYTES, Pair, Stored, make_store


class BooksCase(FolderCase):
    def pair(self, seed: int = 3, messages: int = 550) -> Pair:
        return Pair(self.folder / "pair", make_store(seed, messages))

    def check(self, store: Path, **members: Any) -> Result:
        return check(str(store), LocalEngine(1), Options(split_bytes=16384, chunk_bytes=4096, **members))

    def compare(self, pair: Pair, **members: Any) -> Result:
        options = Options(split_bytes=16384, chunk_bytes=4096, **members)
        return compare(str(pair.master), str(pair.slave), LocalEngine(1), options)

    def only(self, result: Result, invariant: str) -> Finding:
        (one,) = [one for one in result.findings if one.invariant == invariant]
        return one

    def table(self, rows: list[dict[str, Any]]) -> str:
        path = self.folder / "acked.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)


def row(one: Stored, **members: Any) -> dict[str, Any]:
    place = {"queueId": one.queue_id, "queueOffset": one.queue_offset, "physicalOffset": one.phy}
    return {"msgId": one.message_id, "topic": one.topic, **place, **members}


def placeless(one: Stored, **members: Any) -> dict[str, Any]:
    return {"msgId": one.message_id, "topic": one.topic, "queueId": 0, "queueOffset": 0, **members}


class NameHashTests(SynchronousTestCase):
    def test_hashes_see_the_name_and_nothing_else(self) -> None:
        """Names of any length hash alike wherever they stand, and other names otherwise."""
        names = ["", "a", "b", "aa", "12345678", "123456789", "x" * 31, "x" * 32, "x" * 33, "größe"]
        alone = name_hashes(names).tolist()
        self.assertEqual(len(set(alone)), len(names))
        for name, expected in zip(names, alone, strict=True):
            raw = b"\xff" * 13 + name.encode() + b"\xff" * 9
            found = text_hashes(raw, name_hashes([""]) * 0 + 13, name_hashes([""]) * 0 + len(name.encode()))
            self.assertEqual(found.tolist(), [expected], name)


class DuplicateTests(BooksCase):
    def test_clean(self) -> None:
        """Every acknowledged message once: nothing is said."""
        pair = self.pair()
        rows = [row(one) for one in pair.made.stored if not one.topic.endswith("-long")]
        self.assertEqual(as_json(self.check(pair.master, acked=self.table(rows))), [])

    def test_a_message_that_was_sent_again(self) -> None:
        """Stored a second time in its topic: told with both places, and no reason for another exit status."""
        made = make_store(3, 300)
        first = next(one for one in made.stored[50:] if one.body_size > 20)
        again = made.put("topic-x", 9, b"other topic, no duplicate")
        self.rename(made, again, first.message_id)
        second = made.put(first.topic, first.queue_id, b"the same message again")
        self.rename(made, second, first.message_id)
        pair = Pair(self.folder / "pair", made)
        result = self.check(pair.master, acked=self.table([row(one) for one in made.stored[:100]]))
        one = self.only(result, "AK-DUP")
        self.assertEqual((one.severity, one.count, one.topic), (Severity.INFO, 1, first.topic))
        self.assertEqual((one.phy_from, one.sample_msg_ids), (second.phy, [first.message_id]))
        self.assertIn(f"{first.phy}, {second.phy}", one.detail)
        told = [row(one) for one in made.stored[:100]] + [row(first, physicalOffset=second.phy, queueOffset=0)]
        self.assertEqual(
            [one for one in self.check(pair.master, acked=self.table(told)).findings if one.invariant == "AK-DUP"], []
        )

    def rename(self, made: Any, one: Stored, message_id: str) -> None:
        at = bytes(made.log).index(one.message_id.encode(), one.phy - made.start)
        made.log[at : at + len(message_id)] = message_id.encode()
        made.keys = [key for key in made.keys if key[1] != one.phy]


class CountTests(BooksCase):
    def test_transactions_are_counted(self) -> None:
        """Committed sends without a place are looked for by name; rolled back and undecided ones are not."""
        pair = self.pair()
        there = [one for one in pair.made.stored if one.queue_offset][:50]
        rows = [placeless(one, localTransactionState="COMMIT_MESSAGE", sentTs=1_790_000_000_000) for one in there]
        rows += [placeless(there[0], msgId="F" * 32, localTransactionState="ROLLBACK_MESSAGE")]
        rows += [placeless(there[0], msgId="E" * 32, localTransactionState="UNKNOW")]
        result = self.check(pair.master, acked=self.table(rows))
        self.assertEqual((as_json(result), result.coverage.master.acked_sends_counted), ([], 50))

    def test_a_transaction_that_is_not_there(self) -> None:
        """The topic, how many of how many, since when, and the names."""
        pair = self.pair()
        there = [one for one in pair.made.stored if one.queue_offset and one.topic == "topic-0"][:20]
        rows = [placeless(one, sentTs=1_790_000_000_000) for one in there]
        rows += [placeless(there[0], msgId=name * 32, sentTs=1_790_000_000_000 + 1) for name in "AB"]
        result = self.check(pair.master, acked=self.table(rows))
        one = self.only(result, "AK-COUNT")
        self.assertEqual((one.severity, one.topic, one.count), (Severity.WARN, "topic-0", 2))
        self.assertEqual((one.expected, one.actual, one.sample_msg_ids), ("22", "20", ["A" * 32, "B" * 32]))
        self.assertIn("2026-09-21 14:10 UTC", one.detail)
        self.assertEqual(result.exit_status, 1)

    def test_what_the_slave_has_of_the_lost(self) -> None:
        """A master that lost its tail: the finding says that the slave holds the messages."""
        pair = self.pair()
        rows = [row(one) for one in pair.made.stored if not one.topic.endswith("-long")]
        cut = pair.made.stored[-30]
        pair.cut(pair.master, cut.phy)
        one = self.only(self.compare(pair, acked=self.table(rows)), "AK-LOST")
        self.assertIn(f"the slave has {one.count} of them", one.detail)
        self.assertGreater(one.count, 10)


class BackwardTests(BooksCase):
    def look(self, pair: Pair) -> str:
        report = to_json(self.check(pair.master), Run(run_id="r", started_at="2026-11-22", seconds=1, engine="local"))
        (self.folder / "look.json").write_text(json.dumps(report))
        return str(self.folder / "look.json")

    def test_an_offset_that_went_back(self) -> None:
        """Group, queue, from where to where, and how many messages come again; forward and equal say nothing."""
        pair = self.pair()
        before = read_previous(self.look(pair))
        assert before.consumers is not None
        self.assertEqual(as_json(self.check(pair.master, earlier=before.consumers)), [])
        path = pair.master / layout.CONFIG_DIR / "consumerOffset.json"
        (topic, queue_id), end = next(iter(sorted(pair.made.next_offset.items())))
        path.write_text(
            path.read_text().replace(f'"{topic}@group":{{{queue_id}:{end}', f'"{topic}@group":{{0:{end - 7}')
        )
        result = self.check(pair.master, earlier=before.consumers)
        one = self.only(result, "CO-BACK")
        self.assertEqual((one.topic, one.queue_id, one.field, one.count), (topic, 0, "group", 7))
        self.assertEqual((one.queue_offset_from, one.queue_offset_to), (end - 7, end - 1))
        self.assertEqual((one.severity, result.exit_status), (Severity.WARN, 1))
        forward = read_previous(self.look(pair))
        path.write_text(path.read_text().replace(f":{end - 7}", f":{end}"))
        self.assertEqual(as_json(self.check(pair.master, earlier=forward.consumers)), [])

    def test_another_store_is_no_look_before(self) -> None:
        """Offsets of a report about another store are not compared."""
        pair = self.pair()
        before = read_previous(self.look(pair))
        path = pair.slave / layout.CONFIG_DIR / "consumerOffset.json"
        path.write_text(path.read_text().replace(":1", ":0"))
        found = self.check(pair.slave, earlier=before.consumers).findings
        self.assertNotIn("CO-BACK", {one.invariant for one in found})


class EpochTests(BooksCase):
    def epochs(self, root: Path, *lines: str, crc: bool = False) -> None:
        text = [str(len(lines)), *(["773307083"] if crc else []), *lines]
        (root / "epochFileCheckpoint").write_text("\n".join(text) + "\n")

    def test_the_same_epochs(self) -> None:
        """Equal tables, one with its oldest epoch cut off, and one that nobody else has: no finding."""
        pair = self.pair()
        self.epochs(pair.master, "1-0", "4-20000", "7-50000")
        self.assertEqual(as_json(self.compare(pair)), [])
        self.epochs(pair.slave, "4-30000", "7-50000", crc=True)
        self.assertEqual(as_json(self.compare(pair)), [])
        self.epochs(pair.slave, "1-0", "4-20000", "7-50000", f"9-{pair.made.end}")
        self.assertEqual(as_json(self.compare(pair)), [])

    def test_two_masters_at_a_time(self) -> None:
        """Where the tables part is told, with both epochs; the verdict is that of two histories."""
        pair = self.pair()
        self.epochs(pair.master, "1-0", "4-20000", "7-50000")
        self.epochs(pair.slave, "1-0", "4-20000", "6-50000")
        result = self.compare(pair)
        one = self.only(result, "RP-EPOCH")
        self.assertEqual((one.phy_from, one.expected, one.actual, one.blame), (50000, "7", "6", "undecided"))
        self.assertEqual((one.severity, result.verdict.value, result.exit_status), (Severity.CRITICAL, "DIVERGED", 2))
        self.epochs(pair.slave, "1-0", "4-20000")
        self.assertEqual(self.only(self.compare(pair), "RP-EPOCH").phy_from, 50000)

    def test_a_fork_is_the_cause(self) -> None:
        """Where the bytes part at the same place, that is the cause and the epochs follow from it."""
        pair = self.pair()
        at = next(one for one in pair.made.stored if one.phy > 40_000)
        other = make_store(77, 20)
        pair.cut(pair.slave, at.phy)
        raw, phy = b"", at.phy
        while phy + len(raw) < pair.made.end and len(raw) < 9000:
            raw += record.encode_record(
                topic=b"other",
                queue_id=0,
                body=b"of another history" * 4,
                properties=b"",
                born_timestamp=other.now_ms,
                store_timestamp=other.now_ms + 10**6,
                born_host=HOST,
                store_host=HOST,
                queue_offset=len(raw) // 90,
                phy_offset=phy + len(raw),
            )
        pair.write(pair.slave, phy, raw)
        self.epochs(pair.master, "1-0")
        self.epochs(pair.slave, "1-0", f"2-{phy}")
        result = self.compare(pair)
        one = self.only(result, "RP-EPOCH")
        self.assertEqual(one.derived_from, self.only(result, "RP-DIVERGE").finding_id)

    def test_epochs_of_manifests_and_bad_files(self) -> None:
        """A dump says its epochs itself; a table that is cut off is named and makes the run incomplete."""
        pair = self.pair()
        for root, epoch in ((pair.master, 3), (pair.slave, 2)):
            epochs = [{"epoch": 1, "startOffset": 0}, {"epoch": epoch, "startOffset": 9000}]
            (root / "manifest.json").write_text(json.dumps({"maxPhyOffset": pair.made.end, "epochs": epochs}))
        self.assertEqual(self.only(self.compare(pair), "RP-EPOCH").phy_from, 9000)
        (pair.slave / "epochFileCheckpoint").write_text("3\n1-0\n")
        result = self.compare(pair)
        self.assertEqual(result.exit_status, 3)
        self.assertIn("epochFileCheckpoint", causes(result)[0].detail)


class LeftoverTests(BooksCase):
    def test_queue_files_that_retention_left(self) -> None:
        """A file with only deleted messages is told; one that holds a single living message is right where it is."""
        pair = self.pair(3, 1500)
        store = pair.master
        gone = sorted(os.listdir(store / layout.COMMIT_LOG_DIR))
        start = int(gone[-3])
        for name in gone[:-3]:
            os.remove(store / layout.COMMIT_LOG_DIR / name)
        shutil.rmtree(store / layout.INDEX_DIR)
        found = [one for one in self.check(store).findings if one.invariant == "CQ-MIN"]
        self.assertGreater(len(found), 0)
        for one in found:
            folder = store / layout.CONSUME_QUEUE_DIR / str(one.topic) / str(one.queue_id)
            self.assertEqual((one.severity, one.queue_offset_from), (Severity.WARN, 0))
            for name in sorted(os.listdir(folder)):
                units = list(layout.CQ_UNIT.iter_unpack((folder / name).read_bytes()))
                if any(phy >= start for phy, size, _ in units if size):
                    break
                os.remove(folder / name)
        self.assertEqual([one for one in self.check(store).findings if one.invariant == "CQ-MIN"], [])

    def test_units_that_no_record_owns(self) -> None:
        """A unit behind a queue's last record that points at a record of another queue."""
        pair = self.pair()
        last = next(
            one
            for one in reversed(pair.made.stored)
            if pair.made.next_offset[one.topic, one.queue_id] == one.queue_offset + 1
            and (one.queue_offset + 2) % (QUEUE_FILE_BYTES // layout.CQ_UNIT_BYTES)
        )
        stranger = next(one for one in pair.made.stored if (one.topic, one.queue_id) != (last.topic, last.queue_id))
        path, at = pair.unit_of(pair.master, last)
        with open(path, "r+b") as file:
            file.seek(at + layout.CQ_UNIT_BYTES)
            file.write(layout.CQ_UNIT.pack(stranger.phy, stranger.size, 0))
        result = self.check(pair.master)
        one = self.only(result, "CQ-MISMATCH")
        self.assertEqual((one.topic, one.queue_id, one.count), (last.topic, last.queue_id, 1))
        self.assertEqual((one.queue_offset_from, one.phy_from), (last.queue_offset + 1, stranger.phy))
        self.assertEqual(result.exit_status, 2)
