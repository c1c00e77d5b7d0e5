"""The check of a whole store finds what is planted, and nothing else."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shutil
import tempfile
from collections import Counter

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.store import check
from rmq.store.config import StoreConfig
from rmq.store.layout import CQ_UNIT
from rmq.store.store import MessageStore
from tests.store.support import ROOT, SMALL, Box, RoomyDisk, ThreadClock, message

ZERO = "0" * 20


class StoreCase(SynchronousTestCase):
    """A store that was stopped cleanly."""

    def setUp(self) -> None:
        self.box = Box()
        self.box.open()
        self.results = self.box.put_many(150)
        self.box.stop()
        self.box.node.start()


class CheckTests(StoreCase):
    def kinds(self) -> set[str]:
        return {one.kind for one in check.check_store(self.box.disk, ROOT, self.box.config)}

    def plant(self, path: str, offset: int, data: bytes) -> None:
        self.box.disk.open(f"{ROOT}/{path}").write_at(offset, data)

    def test_sound(self) -> None:
        """Nothing is wrong with a store that was stopped cleanly."""
        self.assertEqual(self.kinds(), set())

    def test_damage_in_the_log(self) -> None:
        """A flipped body bit is found at its offset, with all that hangs on it."""
        self.plant(f"commitlog/{ZERO}", self.results[7].phy_offset + 90, b"?")
        findings = check.check_store(self.box.disk, ROOT, self.box.config)
        self.assertEqual([one.offset for one in findings if one.kind == "damaged-record"], [self.results[7].phy_offset])
        self.assertTrue({"unit-without-record", "queue-number", "wrong-index-entry"} <= self.kinds())

    def test_missing_log_file(self) -> None:
        """A hole in the log is found."""
        self.box.disk.create(f"{ROOT}/commitlog/{16384 * 3:020d}", 16384).close()
        self.assertIn("missing-file", self.kinds())

    def test_short_last_file(self) -> None:
        """A last file that was cut short, between two records or in one, is a torn tail; the check comes to an end."""
        last = self.results[-1].phy_offset
        for end in (last + 10, last):
            self.box.disk.open(f"{ROOT}/commitlog/{16384:020d}").truncate(end - 16384)
            findings = check.check_store(self.box.disk, ROOT, self.box.config)
            self.assertIn(("torn-tail", last), [(one.kind, one.offset) for one in findings])

    def test_a_topic_that_was_made_again(self) -> None:
        """Messages of a topic that was deleted and made again need no units; that its numbers begin anew is noted."""
        box = Box()
        store = box.open()
        box.put_many(30)
        store.delete_topic("Topic")
        results = box.put_many(9, 100)
        box.stop()
        box.node.start()
        findings = check.check_store(box.disk, ROOT, box.config)
        self.assertEqual(
            [(one.kind, one.severity, one.offset) for one in findings],
            [("queue-reset", "note", one.phy_offset) for one in results[:3]],
        )

    def test_a_topic_that_was_deleted(self) -> None:
        """Its messages need no units as long as `topics.json` does not know it; otherwise a folder has been lost."""
        box = Box()
        store = box.open()
        box.put_many(30)
        box.put(message(30, topic="Other"))
        store.delete_topic("Topic")
        box.stop()
        box.node.start()
        box.disk.make_dirs(f"{ROOT}/config")
        topics = f"{ROOT}/config/topics.json"
        for content, kinds in (
            (b'{"topicConfigTable":{"Other":{}}}', {("deleted-topic", "note")}),
            (b'{"topicConfigTable":{"Other":{},"Topic":{}}}', {("missing-unit", "error"), ("missing-unit", "note")}),
            (b"{", {("missing-unit", "error"), ("missing-unit", "note")}),
        ):
            box.disk.write_atomic(topics, content)
            findings = check.check_store(box.disk, ROOT, box.config)
            self.assertEqual({(one.kind, one.severity) for one in findings}, kinds)
        box.disk.write_atomic(topics, b'{"topicConfigTable":{"Other":{}}}')
        (finding,) = check.check_store(box.disk, ROOT, box.config)
        self.assertEqual((finding.where, finding.offset), ("Topic", 0))
        self.assertIn("30 messages", finding.text)

    def test_strangers_among_the_queues(self) -> None:
        """What the broker leaves alone is no matter; nonsense in the header of an index file is a finding."""
        for name in ("Topic/00", "Topic/²", "Topic/notes"):
            self.box.disk.make_dirs(f"{ROOT}/consumequeue/{name}")
        for name in ("stray", "Topic/7"):
            self.box.disk.create_sparse(f"{ROOT}/consumequeue/{name}", 20).close()
        self.box.disk.make_dirs(f"{ROOT}/config")
        self.box.disk.write_atomic(f"{ROOT}/config/topics.json", b"[" * 100_000)
        self.assertEqual(self.kinds(), set())
        (name, *_) = self.box.disk.list_dir(f"{ROOT}/index")
        self.plant(f"index/{name}", 36, (5000).to_bytes(4, "big"))
        self.assertIn("index-header", self.kinds())

    def test_bytes_behind_the_end(self) -> None:
        """Bytes behind the end are noted."""
        self.plant(f"commitlog/{16384:020d}", 16000, b"x")
        self.assertEqual(self.kinds(), {"stale-bytes"})

    def test_unit_of_another_message(self) -> None:
        """A unit that points at a wrong message, size, tag or nowhere is found."""
        first = self.results[0]
        path = f"consumequeue/Topic/0/{ZERO}"
        original = self.box.disk.open(f"{ROOT}/{path}").read_at(0, 40)
        for at, unit, kind in (
            (20, CQ_UNIT.pack(first.phy_offset, first.size, 0), "shifted-unit"),
            (0, CQ_UNIT.pack(first.phy_offset, first.size + 1, 0), "wrong-unit"),
            (0, CQ_UNIT.pack(first.phy_offset, first.size, 1), "tags-code"),
            (0, CQ_UNIT.pack(first.phy_offset + 1, first.size, 1), "unit-without-record"),
            (0, bytes(20), "stale-unit"),
        ):
            self.plant(path, at, unit)
            self.assertIn(kind, self.kinds())
            self.plant(path, 0, original)
        self.assertEqual(self.kinds(), set())

    def test_missing_unit(self) -> None:
        """A message without unit is an error after a clean stop, and a note after a kill."""
        end = 50 % 20 * 20
        self.plant(f"consumequeue/Topic/0/{800:020d}", end - 20, bytes(20))
        found = [one for one in check.check_store(self.box.disk, ROOT, self.box.config) if one.kind == "missing-unit"]
        self.assertEqual([(one.severity, one.offset) for one in found], [("error", self.results[147].phy_offset)])
        self.box.disk.create_sparse(f"{ROOT}/abort", 0).close()
        found = [one for one in check.check_store(self.box.disk, ROOT, self.box.config) if one.kind == "missing-unit"]
        self.assertEqual([one.severity for one in found], ["note"])

    def test_index(self) -> None:
        """Wrong entries, chains and slots are found, and keys that are not indexed."""
        name = self.box.disk.list_dir(f"{ROOT}/index")[0]
        at = 40 + 64 * 4 + 20
        original = self.box.disk.open(f"{ROOT}/index/{name}").read_at(at, 20)
        self.plant(f"index/{name}", at, b"\x01\x02\x03\x04")
        self.assertTrue({"wrong-index-entry", "missing-index-entry"} <= self.kinds())
        self.plant(f"index/{name}", at, original)
        self.plant(f"index/{name}", at + 16, b"\0\0\0\x50")
        self.assertIn("index-chain", self.kinds())
        self.plant(f"index/{name}", at, original)
        self.plant(f"index/{name}", 40, bytes(64 * 4))
        self.assertEqual(self.kinds(), {"index-slot"})

    def test_many_of_a_kind(self) -> None:
        """A flood of one kind is cut short, and counted."""
        self.box.disk.delete_tree(f"{ROOT}/consumequeue")
        findings = check.check_store(self.box.disk, ROOT, self.box.config)
        missing = [one for one in findings if one.kind == "missing-unit"]
        self.assertEqual(len(missing), check.MAX_OF_A_KIND + 1)
        self.assertEqual(missing[-1].text, "130 more of this kind")


@attrs.frozen
class Planted:
    """What is overwritten, cut or removed in a sound store of 150 messages, and the finding that must come of it."""

    kind: str
    path: str
    #: place and bytes; without bytes the file ends there, without a place it is gone, or, where none was, it is added
    at: int | None = None
    data: bytes | None = None
    #: what the place of the finding begins with, where one kind is found in two ways
    where: str = ""


LOG, LAST_LOG = f"commitlog/{ZERO}", f"commitlog/{16384:020d}"
QUEUE, LAST_OF_QUEUE = f"consumequeue/Topic/0/{ZERO}", f"consumequeue/Topic/0/{800:020d}"
INDEX = "index/*"
INDEX_AT = 40 + 64 * 4


class KindTests(StoreCase):
    """Each kind of finding comes of damage of its own: with any of them left out of the check a test fails."""

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second, self.last = self.results[0], self.results[3], self.results[-1]

    def planted(self) -> list[Planted]:
        first, second, last = self.first, self.second, self.last
        end = last.phy_offset + last.size - 16384
        unit, next_unit = CQ_UNIT.pack(first.phy_offset, first.size, 0), CQ_UNIT.pack(second.phy_offset, second.size, 0)
        return [
            Planted("file-size", LOG, 16000),
            Planted("missing-file", f"commitlog/{3 * 16384:020d}", where=f"{ROOT}/commitlog"),
            Planted("missing-file", f"consumequeue/Topic/0/{400:020d}", where=f"{ROOT}/consumequeue"),
            Planted("torn-record", LAST_LOG, end - 9, bytes(9)),
            Planted("damaged-record", LOG, self.results[7].phy_offset + 90, b"?"),
            Planted("torn-tail", LAST_LOG, end - last.size + 10),
            Planted("stale-bytes", LAST_LOG, 16000, b"x"),
            Planted("queue-reset", LOG, second.phy_offset + 20, bytes(8)),
            Planted("queue-number", LOG, second.phy_offset + 20, (17).to_bytes(8, "big")),
            Planted("missing-unit", LAST_OF_QUEUE, 180, bytes(20)),
            Planted("stale-unit", QUEUE, 0, bytes(20)),
            Planted("unit-without-record", QUEUE, 0, CQ_UNIT.pack(first.phy_offset + 1, first.size, 0)),
            Planted("wrong-unit", QUEUE, 8, (first.size + 1).to_bytes(4, "big")),
            Planted("filled-unit", QUEUE, 0, next_unit),
            Planted("shifted-unit", QUEUE, 20, unit),
            Planted("tags-code", QUEUE, 12, (1).to_bytes(8, "big")),
            Planted("index-size", INDEX, 500),
            Planted("index-header", INDEX, 36, (5000).to_bytes(4, "big")),
            Planted("wrong-index-entry", INDEX, INDEX_AT + 20, b"\x01\x02\x03\x04"),
            Planted("index-chain", INDEX, INDEX_AT + 20 + 16, b"\0\0\0\x50"),
            Planted("index-slot", INDEX, 40, bytes(64 * 4)),
            Planted("missing-index-entry", INDEX, INDEX_AT + 20, b"\x01\x02\x03\x04"),
        ]

    def test_each_kind(self) -> None:
        """What is planted is found under its name and at its place; the store is sound without it."""
        disk = self.box.disk
        for one in self.planted():
            folder, _, name = one.path.rpartition("/")
            names = disk.list_dir(f"{ROOT}/{folder}")
            path = f"{ROOT}/{folder}/{names[0] if name == '*' else name}"
            kept = disk.read_whole(path) if disk.exists(path) else None
            if kept is None:
                disk.create_sparse(path, 16384).close()
            elif one.at is None:
                disk.delete(path)
            elif one.data is None:
                disk.open(path).truncate(one.at)
            else:
                disk.open(path).write_at(one.at, one.data)
            found = check.check_store(disk, ROOT, self.box.config)
            kinds = [each.kind for each in found if each.where.startswith(one.where)]
            self.assertIn(one.kind, kinds, one)
            disk.delete(path) if kept is None else disk.write_atomic(path, kept)
            self.assertEqual(check.check_store(disk, ROOT, self.box.config), [], one)

    def test_no_kind_is_left_out(self) -> None:
        """Every finding that the check can make is planted above; a topic that was deleted has a test of its own."""
        calls = re.findall(r'_find\(\s*(?:self\._lag\(\)|"[a-z]+"),\s*"([a-z-]+)"', inspect.getsource(check))
        self.assertEqual(Counter(one.kind for one in self.planted()) + Counter(["deleted-topic"]), Counter(calls))


class CommandTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = tempfile.mkdtemp(prefix="rmq-check-")
        self.addCleanup(shutil.rmtree, self.root)
        clock = ThreadClock()
        disk = RoomyDisk(clock)
        self.addCleanup(disk.close)
        store = MessageStore(disk, clock, StoreConfig(**(SMALL | {"store_path_root_dir": self.root})))
        store.load()
        store.start()
        for number in range(150):
            store.put(message(number))
        clock.settle(store.stop())

    def run_check(self, *arguments: str) -> tuple[int, str]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            status = check.main([*arguments, "--maxHashSlotNum", "64", "--maxIndexNum", "100"])
        return status, output.getvalue()

    def test_sound(self) -> None:
        """A sound store gives status 0 and a summary."""
        status, output = self.run_check(self.root)
        self.assertEqual(status, 0)
        self.assertIn("records 150, 0 errors", output)

    def test_errors(self) -> None:
        """Errors give status 1, each with kind and offset, also as JSON."""
        with open(f"{self.root}/commitlog/{ZERO}", "r+b") as file:
            file.seek(90)
            file.write(b"?")
        status, output = self.run_check(self.root)
        self.assertEqual(status, 1)
        self.assertIn("error damaged-record", output)
        status, output = self.run_check(self.root, "--json")
        report = json.loads(output)
        self.assertEqual((status, report["records"]), (1, 149))
        self.assertGreater(report["errors"], 0)
        self.assertEqual(report["findings"][0]["offset"], 0)

    def test_no_store(self) -> None:
        """A folder that is no store gives status 2 and says so."""
        status, output = self.run_check(f"{self.root}/index")
        self.assertEqual(status, 2)
        self.assertIn("is not there", output)
