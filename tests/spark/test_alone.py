"""One store checked alone: index files, tags, consumer offsets; on what Apache's brokers wrote, and on damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from rmq_audit.driver.audit import Options, Result, check
from rmq_audit.driver.findings import INVARIANTS
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker import kernel
from rmq_audit.worker.indexes import MAX_SEARCH_BYTES, IndexCheck, check_index
from rmq_audit.worker.properties import failed_property_crcs, tags_codes, values_of
from rmq_audit.worker.work import Severity
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import layout
from rmq.wire import record
from tests.spark.cases import FolderCase, GoldenCase
from tests.spark.corruptor.specimen import flip, index_slots, overwrite
from tests.spark.support import as_json, audit, causes, result_of, rmq_audit
from tests.spark.synthetic import HOST, INDEX_SLOTS, SEGMENT_BYTES, MadeStore, Pair, make_store


def alone(path: Path, index_slots: int | None = None) -> Result:
    return check(str(path), LocalEngine(1), Options(index_slots=index_slots))


class GoldenTests(GoldenCase):
    def test_stores_of_apache_keep_their_own_rules(self) -> None:
        """Tags, keys, delays, transactions, extension files, a log without its begin: checked, and nothing to say."""
        expected = {
            "mixed-4.9.7": (290, 610, 2, 7),
            "mixed-5.3.3": (287, 610, 2, 7),
            "cqext-4.9.7": (141, 302, 1, 5),
            "cleaned-4.9.7": (108, 232, 2, 0),
        }
        for name, figures in expected.items():
            result = alone(self.golden(name) / "store")
            self.assertEqual((name, result.verdict.value, as_json(result)), (name, "CONSISTENT", []))
            seen = result.coverage.master
            self.assertEqual(
                (seen.units_checked, seen.index_entries_checked, seen.index_files, seen.consumer_offsets_checked),
                figures,
            )

    def test_a_consumer_that_retention_has_overtaken(self) -> None:
        """Legal and only mentioned: what it had not consumed was deleted with the first segments."""
        store = self.golden_copy("cleaned-4.9.7") / "store"
        queue = sorted((store / layout.CONSUME_QUEUE_DIR).glob("*/*"))[0]
        config = store / layout.CONFIG_DIR
        (config / "consumerOffset.json").write_text(f'{{"offsetTable":{{"{queue.parent.name}@g":{{{queue.name}:0}}}}}}')
        result = alone(store)
        (found,) = result.findings
        self.assertEqual((found.invariant, found.topic, result.exit_status), ("CO-BEHIND", queue.parent.name, 0))
        self.assertIn("messages are gone unconsumed", found.detail)


class EveryByteTests(GoldenCase):
    """One byte is changed at a time, in a store of Apache's broker that is checked alone."""

    def assert_each_byte_counts(self, store: Path, path: Path, places: Iterable[int], invariants: set[str]) -> None:
        self.assertEqual(alone(store).exit_status, 0)
        for at in places:
            flip(path, at, 1 << at % 8)
            result = alone(store)
            found = {one.invariant for one in result.findings}
            self.assertEqual((at, result.exit_status), (at, 2), f"{path}: {found}")
            self.assertTrue(found & invariants, (at, found))
            flip(path, at, 1 << at % 8)

    def test_units_of_queues(self) -> None:
        """Of a unit with tags, of a delayed message, and of the last unit of a queue, all 20 bytes count."""
        store = self.golden_copy("mixed-4.9.7") / "store"
        queues = store / layout.CONSUME_QUEUE_DIR
        tagged = next(p for p in sorted(queues.glob("Mixed/*/*")) if layout.CQ_UNIT.unpack_from(p.read_bytes())[2])
        (delayed, *_) = sorted(queues.glob("SCHEDULE_TOPIC_XXXX/*/*"))
        last = (len(tagged.read_bytes().rstrip(b"\0")) - 1) // layout.CQ_UNIT_BYTES * layout.CQ_UNIT_BYTES
        for path, at in ((tagged, 0), (delayed, 0), (tagged, last)):
            places = range(at, at + layout.CQ_UNIT_BYTES)
            self.assert_each_byte_counts(store, path, places, {"CQ-MISMATCH", "CQ-TAG", "CQ-DANGLING"})

    def test_units_of_the_extension(self) -> None:
        """
        Where units name an address, size, tagsCode and store time of the extension's unit count, and that it is there.
        """
        store = self.golden_copy("cqext-4.9.7") / "store"
        (path, *_) = sorted((store / layout.CONSUME_QUEUE_EXT_DIR).glob("*/*/*"))
        self.assert_each_byte_counts(store, path, range(layout.CQ_EXT_UNIT.size), {"CQ-TAG"})
        path.unlink()
        self.assertEqual({one.invariant for one in alone(store).findings}, {"CQ-TAG"})

    def test_index_files(self) -> None:
        """All bytes of the header, of a hash slot and of the entry that it names count."""
        store = self.golden_copy("mixed-4.9.7") / "store"
        path = min((store / layout.INDEX_DIR).iterdir())
        data = path.read_bytes()
        slots = index_slots(data)
        key_hash = layout.INDEX_ENTRY.unpack_from(data, layout.index_entry_at(slots, 40))[0]
        slot = layout.index_slot_at(key_hash % slots)
        entry = layout.index_entry_at(slots, 40)
        places = [*range(layout.INDEX_HEADER_BYTES), *range(slot, slot + 4), *range(entry, entry + 20)]
        self.assert_each_byte_counts(store, path, places, {name for name in INVARIANTS if name.startswith("IX-")})


class AloneTests(FolderCase):
    def pair(self, made: MadeStore) -> Pair:
        return Pair(self.folder, made)

    def test_damage_is_found_without_a_replica(self) -> None:
        """A body that fails its CRC is found, and the command says so with exit status 2."""
        pair = self.pair(make_store(2))
        one = next(one for one in pair.made.stored if one.body_size > 20)
        pair.flip(pair.master, one.body_at)
        (found,) = alone(pair.master).findings
        self.assertEqual((found.invariant, found.replica, found.phy_from), ("CL-CRC", "store", one.phy))
        answer = rmq_audit("check", pair.master, "--engine", "local", "--json", self.folder / "out.json")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("DAMAGED", answer.stdout)
        written = result_of(self.folder / "out.json")
        self.assertEqual((written["command"], written["slave"], written["verdict"]), ("check", None, "DAMAGED"))

    def test_index_of_unknown_shape_is_not_passed_over(self) -> None:
        """
        How many hash slots a file has is told by the operator, by itself, or by another file of the store.

        Where nothing tells it, a small file is damaged, and for a large one the audit asks.
        """
        pair = self.pair(make_store(2))
        path, other = sorted((pair.master / layout.INDEX_DIR).iterdir())[:2]
        overwrite(path, 36 - 4, (3).to_bytes(4, "big"))  # hashSlotCount, which the search relies on
        for slots in (None, INDEX_SLOTS):
            (one,) = alone(pair.master, index_slots=slots).findings
            self.assertEqual((one.invariant, one.severity.name), ("IX-HEADER", "ERROR"))
            self.assertIn("3 hash slots in use, it is 99", one.detail)
        overwrite(other, 36 - 4, (3).to_bytes(4, "big"))
        told = {one.detail for one in alone(pair.master).findings if one.invariant == "IX-HEADER"}
        self.assertEqual(sum("nothing in it is where an index file has it" in text for text in told), 2)
        for file in (path, other):
            os.truncate(file, MAX_SEARCH_BYTES + 1)
        result = alone(pair.master)
        self.assertEqual((result.verdict.value, result.exit_status), ("INCOMPLETE", 3))
        self.assertIn("--index-slots", result.findings[0].detail)

    def test_an_entry_that_left_the_log(self) -> None:
        """Entries before the log or after its end are legal; one of them among entries of the log is damage."""
        pair = self.pair(make_store(2))
        pair.write_entry(pair.master, 40, 4, (1 << 40).to_bytes(8, "big"))
        (one,) = causes(alone(pair.master))
        self.assertEqual((one.invariant, one.count, one.severity.name), ("IX-DANGLING", 1, "ERROR"))
        self.assertIn("entry 40", one.detail)

    def test_a_clock_that_steps_back_where_a_segment_begins(self) -> None:
        """The last record of one segment and the first of the next are read by different workers, and compared."""
        made = make_store(2, 30)
        while SEGMENT_BYTES - made.end % SEGMENT_BYTES > 900:
            made.put("topic-0", 0, bytes(600))
        made.now_ms -= 90_000
        one = made.put("topic-0", 0, bytes(900))
        self.assertEqual(one.phy % SEGMENT_BYTES, 0)
        found = causes(alone(self.pair(made).master))
        self.assertEqual([(each.invariant, each.phy_to) for each in found], [("CL-TIME", one.phy + 1)])

    def test_cut_index_files_are_named(self) -> None:
        """A header that counts more entries than the file has room for, and a file without a header."""
        pair = self.pair(make_store(2))
        path = sorted((pair.master / layout.INDEX_DIR).iterdir())[0]
        whole = path.read_bytes()
        path.write_bytes(whole[: layout.index_entry_at(INDEX_SLOTS, 500)])
        found = causes(alone(pair.master, index_slots=INDEX_SLOTS))
        self.assertEqual({"IX-CHAIN", "IX-HEADER"}, {one.invariant for one in found})
        path.write_bytes(whole[:20])
        result = alone(pair.master)
        self.assertEqual(result.exit_status, 2)
        self.assertIn("not even a header", " ".join(one.detail for one in result.findings))

    def test_an_index_without_entries_is_right(self) -> None:
        """RocketMQ makes files ahead; their header says 0 entries."""
        path = self.folder / "index"
        path.write_bytes(bytes(layout.index_file_bytes(10, 20)))
        task = IndexCheck(
            side="store",
            path=str(path),
            size_bytes=path.stat().st_size,
            slots=None,
            segments=(),
            log_start=0,
            log_end=0,
        )
        self.assertEqual(list(check_index(task).faults), [])

    def test_offset_files_that_cannot_be_used(self) -> None:
        """A broken consumerOffset.json is named with its place: a broker would start without it."""
        pair = self.pair(make_store(2))
        path = pair.master / layout.CONFIG_DIR / "consumerOffset.json"
        for text, part in (
            ("{", "consumerOffset.json"),
            ('{"offsetTable":[]}', "an object with offsetTable"),
            ('{"offsetTable":{"t":{0:1}}}', "is not topic@group"),
            ('{"offsetTable":{"t@g":{0:"x"}}}', "has offset"),
        ):
            path.write_text(text)
            result = alone(pair.master)
            self.assertEqual((text, result.exit_status), (text, 2))
            self.assertIn(part, result.findings[0].detail)

    def test_offsets_of_unknown_topics(self) -> None:
        """Legal and only mentioned: an offset of a topic that was deleted."""
        made = make_store(2)
        pair = self.pair(made)
        (topic, queue_id), end = next(iter(made.next_offset.items()))
        path = pair.master / layout.CONFIG_DIR / "consumerOffset.json"
        path.write_text(f'{{"offsetTable":{{"gone@g":{{0:7}},"{topic}@g":{{{queue_id}:{end}}}}}}}')
        result = alone(pair.master)
        self.assertEqual([(one.invariant, one.topic) for one in result.findings], [("CO-ORPHAN", "gone")])
        self.assertEqual(result.exit_status, 0)


class CreatedAgainTests(FolderCase):
    """A queue whose messages are in the log, but which has no folder any more."""

    def pair(self, *, restarts: bool = True, after: int | None = None) -> Pair:
        """
        Return a store with two queues of a topic, of which queue 1 has no folder, and a later message elsewhere.

        ``restarts``: queue 0 begins again at 0 behind them, ``after``: queue 1 has a message behind that.
        """
        made = MadeStore()
        for _ in range(60):
            made.put("bb", 0, b"other")
        for queue_id in (0, 1, 0, 1):
            made.put("aa", queue_id, b"old")
        if restarts:
            made.units.pop(("aa", 0))
            made.next_offset.pop(("aa", 0))
            made.put("aa", 0, b"new")
        if after is not None:
            made.put("aa", 1, b"after", queue_offset=after)
        made.put("bb", 0, b"later")
        made.units.pop(("aa", 1))
        made.next_offset.pop(("aa", 1))
        return Pair(self.folder, made)

    def table(self, root: Path, read: object, write: object) -> None:
        """Write a topics.json of a broker that is at rest."""
        settings = {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
        topics = {
            name: {"topicName": name, "readQueueNums": numbers[0], "writeQueueNums": numbers[1], **settings}
            for name, numbers in (("aa", (read, write)), ("bb", (1, 1)))
        }
        (root / layout.CONFIG_DIR / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))

    def test_fewer_queues_than_before(self) -> None:
        """A topic that was deleted and created again with fewer queues leaves no damage, whether its broker runs."""
        for folder, abort in (("rest", False), ("use", True)):
            self.folder = self.folder / folder
            pair = self.pair()
            for root in (pair.master, pair.slave):
                self.table(root, 1, 1)
                if abort:
                    (root / "abort").touch()
            for result in (alone(pair.master), audit(pair.master, pair.slave)):
                self.assertEqual(result.verdict.value, "CONSISTENT")
                found = {one.invariant: one for one in result.findings if one.queue_id == 1}
                self.assertEqual(list(found), ["CQ-BEHIND"])
                self.assertEqual((found["CQ-BEHIND"].severity, found["CQ-BEHIND"].count), (Severity.INFO, 2))
                self.assertIn("created again with fewer queues, topics.json has 1;", found["CQ-BEHIND"].detail)
                self.assertNotIn("recovery", found["CQ-BEHIND"].detail)

    def test_a_deletion_that_nothing_proves(self) -> None:
        """
        Without a queue that begins again behind the last record it may be the loss of a folder: a warning, or, as
        long as the store has the file abort, no more than a remark.
        """
        for restarts, after in ((False, None), (True, 2)):
            self.folder = self.folder / "next"
            pair = self.pair(restarts=restarts, after=after)
            self.table(pair.master, 1, 1)
            result = alone(pair.master)
            (one,) = (one for one in result.findings if one.queue_id == 1)
            self.assertEqual((result.verdict.value, result.exit_status), ("CONSISTENT", 1))
            self.assertEqual((one.invariant, one.severity), ("CQ-BEHIND", Severity.WARN))
            self.assertIn("the number of queues was reduced, and the folder was lost", one.detail)
            (pair.master / "abort").touch()
            (one,) = (one for one in alone(pair.master).findings if one.queue_id == 1)
            self.assertEqual((one.invariant, one.severity), ("CQ-BEHIND", Severity.INFO))
            self.assertIn("created again with fewer queues, or the store is in use", one.detail)

    def test_as_many_queues_as_before(self) -> None:
        """Where another queue begins again behind its last record, a queue without a folder is a warning, no damage."""
        for folder, abort, severity in (("rest", False, Severity.WARN), ("use", True, Severity.INFO)):
            self.folder = self.folder / folder
            pair = self.pair()
            self.table(pair.master, 2, 2)
            if abort:
                (pair.master / "abort").touch()
            result = alone(pair.master)
            (one,) = (one for one in result.findings if one.queue_id == 1)
            self.assertEqual((result.verdict.value, one.invariant, one.severity), ("CONSISTENT", "CQ-BEHIND", severity))
            self.assertEqual("has got no message since" in one.detail, not abort)

    def test_a_queue_that_was_lost(self) -> None:
        """What topics.json gives the topic, or may give it, is lost when its units are gone."""
        numbers = ((2, 1), (1, 2), (True, 1), ("1", 1), (-1, 1), (None, 1))
        for at, (read, write) in enumerate(numbers):
            self.folder = self.folder / str(at)
            pair = self.pair(restarts=False)
            self.table(pair.master, read, write)
            found = [(one.invariant, one.severity) for one in alone(pair.master).findings if one.queue_id == 1]
            self.assertEqual(found, [("CQ-LOST", Severity.ERROR)], (read, write))
        (pair.master / layout.CONFIG_DIR / "topics.json").unlink()
        self.assertIn("CQ-LOST", [one.invariant for one in alone(pair.master).findings])

    def test_delayed_messages_are_not_a_topic_of_users(self) -> None:
        """Nobody deletes the topic of delayed messages, whatever its numbers of queues: its queue is lost."""
        made = MadeStore()
        made.put("SCHEDULE_TOPIC_XXXX", 3, b"later")
        made.units.clear()
        made.put("aa", 0, b"last")
        pair = Pair(self.folder, made)
        self.table(pair.master, 1, 1)
        path = pair.master / layout.CONFIG_DIR / "topics.json"
        path.write_text(path.read_text().replace('"bb"', '"SCHEDULE_TOPIC_XXXX"'))
        found = [one.invariant for one in alone(pair.master).findings if one.queue_id == 3]
        self.assertEqual(found, ["CQ-LOST"])


class PropertyTests(SynchronousTestCase):
    def columns(self, *properties: bytes) -> tuple[bytes, kernel.Columns]:
        data = b""
        starts = []
        for number, text in enumerate(properties):
            starts.append(len(data))
            data += record.encode_record(
                topic=b"topic",
                queue_id=0,
                body=b"TAGS\x01body\x02KEYS\x01body",
                properties=text,
                born_timestamp=1,
                store_timestamp=2,
                born_host=HOST,
                store_host=HOST,
                queue_offset=number,
                phy_offset=len(data),
            )
        return data, kernel.gather(data, starts)

    def test_values_are_where_rocketmq_finds_them(self) -> None:
        """
        The later of two wins, names that only end alike do not count, empty values are none, bodies are not looked
        at.
        """
        texts = [
            b"TAGS\x01a\x02",
            b"XTAGS\x01b\x02",
            b"TAGS\x01a\x02TAGS\x01bb",
            b"TAGS\x01\x02",
            b"K\x01v\x02TAGS\x01c",
            b"",
        ]
        data, columns = self.columns(*texts)
        found = values_of(data, columns, b"TAGS")
        values = [data[at : at + size] for at, size in zip(found.pos.tolist(), found.length.tolist(), strict=True)]
        self.assertEqual(list(zip(found.rows.tolist(), values, strict=True)), [(0, b"a"), (2, b"bb"), (4, b"c")])

    def test_tags_codes_are_javas(self) -> None:
        """Hashes agree with String.hashCode, for text beyond ASCII and beyond 16 bits too."""
        tags = ["TagA", "TAG_IMPORTANT", "größe", "\U0001f600x", "", "y" * 200]
        data, columns = self.columns(*(f"TAGS\x01{tag}\x02".encode() for tag in tags))
        self.assertEqual(tags_codes(data, columns).tolist(), [record.tags_code(tag) for tag in tags])
        self.assertEqual(tags_codes(data, columns).tolist()[:2], [2598919, -1015945859])

    def test_crc_properties(self) -> None:
        """The CRC of 5.x stands last, in reversed digits, over everything before it."""
        text = b"A\x01b\x02"
        data, _ = self.columns(text + bytes(20))
        crc = record.body_crc(data[:-20])
        right = b"__CRC32#\x01" + f"{crc:010d}"[::-1].encode() + b"\x02"
        for tail, failed in ((right, []), (right[:9] + b"0000000000\x02", [0]), (right[:9] + b"xxxxxxxxxx\x02", [0])):
            data, columns = self.columns(text + tail)
            self.assertEqual(failed_property_crcs(data, columns).tolist(), failed)
