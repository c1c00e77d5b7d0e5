"""The broker's tables and their files: ours, Apache's, broken ones."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import tables
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.tables import next_version
from rmq.broker.topics import TopicTable, topic
from rmq.runtime.disk.files import DiskError, RealDisk
from rmq.runtime.disk.statefile import StateFileError, read_state
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from tests.runtime.test_realdisk import HopReactor

REFUSED = "{path} cannot be written, its last changes are in memory only until it can: {error}"
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "config"


class HopClock(Clock, HopReactor):
    """A clock that the thread of a disk can call back to."""

    def __init__(self) -> None:
        Clock.__init__(self)
        HopReactor.__init__(self)


class CountingTable(TopicTable):
    """A table that counts its writes."""

    def __init__(self, disk: RealDisk, directory: str, clock: HopClock) -> None:
        super().__init__(disk, directory, clock)
        self.writes = 0
        self.answered: list[object] = []

    async def _save_once(self) -> None:
        self.writes += 1
        await super()._save_once()


class TableCase(SynchronousTestCase):
    """Tables on a real disk; what looks at files waits first until they are written."""

    def setUp(self) -> None:
        self.clock = HopClock()
        self.clock.advance(1_800_000_000)
        self.disk = RealDisk(self.clock)
        self.addCleanup(self.disk.close)
        self.tables: list[TopicTable | SubscriptionGroupTable] = []
        self.directory = os.path.abspath(self.mktemp())

    def done(self, deferred: Deferred[None]) -> None:
        """Run the reactor and the disk's thread until it fires; raise its error."""
        ended: list[object] = []
        deferred.addBoth(ended.append)
        self.run_until(lambda: ended)
        if isinstance(ended[0], Failure):
            ended[0].raiseException()

    def run_until(self, condition: Callable[[], object]) -> None:
        """Run the reactor and the disk's thread until something holds."""
        for _ in range(3000):
            if condition():
                return
            self.clock.advance(0)
            with contextlib.suppress(Empty):
                self.clock.run_one(timeout_s=0.01)
        self.fail("nothing more happens")

    def written(self) -> None:
        """Wait until all tables are written, or refused."""
        for table in self.tables:
            with contextlib.suppress(DiskError):
                self.done(table.saved())

    def put(self, table: TopicTable, *topics: TopicConfig) -> None:
        """Put topics, one after the other."""
        for config in topics:
            table.put(config)
            self.done(table.saved())

    def path(self, name: str = "topics.json") -> str:
        return os.path.join(self.directory, name)

    def write(self, data: bytes, name: str = "topics.json") -> None:
        os.makedirs(self.directory, exist_ok=True)
        Path(self.path(name)).write_bytes(data)

    def members(self, name: str = "topics.json") -> Any:
        """Return the file as a strict JSON parser reads it."""
        self.written()
        return json.loads(Path(self.path(name)).read_bytes())

    def table(self) -> TopicTable:
        self.written()
        table = TopicTable(self.disk, self.directory, self.clock)
        self.tables.append(table)
        table.load()
        return table

    def copy_golden(self, version: str) -> None:
        os.makedirs(self.directory)
        for path in (GOLDEN / version).iterdir():
            Path(self.path(path.name)).write_bytes(path.read_bytes())

    def break_disk(self, name: str = "topics.json") -> None:
        """Make the next write of a table fail."""
        os.makedirs(self.path(f"{name}.tmp"))


class ChangeTests(TableCase):
    def test_put_is_on_disk(self) -> None:
        """What was put is there after a restart, with the version it had."""
        table = self.table()
        table.put(topic("T", 4))
        again = self.table()
        self.assertEqual(again.get("T"), topic("T", 4))
        self.assertEqual(again.data_version, table.data_version)

    def test_versions(self) -> None:
        """Each change makes a new version; its timestamp follows the clock but never goes back."""
        table = self.table()
        versions = [table.data_version]
        for step in (1, -5, 10):
            self.clock.rightNow += step
            table.put(topic("T", 4))
            versions.append(table.data_version)
        self.assertEqual([version.counter for version in versions], [0, 1, 2, 3])
        seconds = [version.timestamp // 1000 - 1_800_000_000 for version in versions]
        self.assertEqual(seconds, [0, 1, 1, 6])
        self.assertEqual(next_version(DataVersion(counter=4, timestamp=9), 3), DataVersion(counter=5, timestamp=9))

    def test_delete(self) -> None:
        """Deleting an entry is a change, deleting nothing is none."""
        table = self.table()
        table.put(topic("T", 4))
        self.assertTrue(table.delete("T"))
        self.assertFalse(table.delete("T"))
        self.assertEqual(table.data_version.counter, 2)
        self.assertEqual(self.table().names(), [])

    def test_add_missing(self) -> None:
        """Default entries come in one change; what is there stays as it is."""
        table = self.table()
        table.put(topic("T", 4))
        self.assertEqual(table.add_missing([topic("T", 1), topic("U", 1), topic("V", 1)]), ["U", "V"])
        self.assertEqual(table.add_missing([topic("U", 2)]), [])
        self.assertEqual(table.data_version.counter, 2)
        self.assertEqual(table.get("T"), topic("T", 4))

    def test_snapshot_stands_still(self) -> None:
        """A snapshot is not changed by what comes later."""
        table = self.table()
        table.put(topic("T", 4))
        snapshot = table.snapshot()
        table.put(topic("U", 4))
        self.assertEqual(list(snapshot.topic_config_table), ["T"])
        self.assertEqual(snapshot.data_version.counter, 1)

    def test_replace(self) -> None:
        """A slave takes over all of its master's table, the version included, and it is the same after a restart."""
        table = self.table()
        table.put(topic("own", 1))
        table.put(topic("same", 2))
        version = DataVersion(counter=99, timestamp=5)
        wrapper = TopicConfigWrapper(
            data_version=version, topic_config_table={"same": topic("same", 2), "new": topic("new", 3)}
        )
        table.replace(fastjson.encode(wrapper))
        self.assertEqual((table.names(), table.data_version), (["new", "same"], version))
        again = self.table()
        self.assertEqual((again.snapshot(), again.data_version), (table.snapshot(), version))

    def test_replace_keeps_what_the_master_has_more(self) -> None:
        """Members of another version of RocketMQ come from the master too, not those of static topics; ours go."""
        config = msgspec.to_builtins(topic("T", 4))
        own = config | {"attributes": {"message.type": "FIFO"}}
        self.write(json.dumps({"topicConfigTable": {"T": own}, "mine": 1}).encode())
        table = self.table()
        version = {"counter": 9, "timestamp": 5, "stateVersion": 0}
        answer = {"dataVersion": version, "mappingDataVersion": version, "topicQueueMappingDetailMap": {}, "more": 2}
        theirs = config | {"attributes": {"queue.type": "BatchCQ"}}
        body = json.dumps(answer | {"topicConfigTable": {"T": theirs}}).encode()
        table.put(topic("U", 4))
        self.assertEqual(self.members()["topicConfigTable"]["T"]["attributes"], {"message.type": "FIFO"})
        table.replace(body)
        found = self.members()
        self.assertEqual(found["topicConfigTable"]["T"]["attributes"], {"queue.type": "BatchCQ"})
        self.assertEqual(sorted(found), ["dataVersion", "more", "topicConfigTable"])

    def test_a_disk_that_refuses(self) -> None:
        """A change is in memory, who waits for the disk gets its error, and the next change writes both."""
        table = self.table()
        self.put(table, topic("T", 4))
        self.break_disk()
        with capturedLogs() as events:
            for change in (
                lambda: table.put(topic("U", 4)),
                lambda: table.delete("T"),
                lambda: table.put(topic("V", 4)),
            ):
                change()
                error = self.assertRaises(DiskError, self.done, table.saved())
                self.assertIn(self.path(), str(error))
        self.assertEqual([event["log_format"] for event in events if "path" in event], [REFUSED])
        self.assertEqual(table.names(), ["U", "V"])
        self.assertEqual(self.table().names(), ["T"])
        os.rmdir(self.path("topics.json.tmp"))
        self.put(table, topic("W", 4))
        self.assertEqual(self.table().snapshot(), table.snapshot())

    def test_again_without_a_change(self) -> None:
        """What the disk has refused is written by the next fold, and who waits for it then waits for that."""
        table = self.table()
        self.break_disk()
        table.put(topic("T", 4))
        self.assertRaises(DiskError, self.done, table.saved())
        self.assertRaises(DiskError, self.done, table.saved())
        os.rmdir(self.path("topics.json.tmp"))
        self.done(table.fold())
        self.assertEqual(self.table().names(), ["T"])
        self.successResultOf(table.saved())

    def test_together(self) -> None:
        """What changes during a write is in the next one, all of it, and is answered after that."""
        for least in (1000, 0):
            self.patch(tables, "JOURNAL_FROM_ENTRIES", least)
            self.directory = os.path.abspath(self.mktemp())
            self.put(self.table(), topic("First", 1))
            table = CountingTable(self.disk, self.directory, self.clock)
            table.load()
            for number in range(100):
                table.put(topic(f"T{number}", 1))
                table.saved().addCallback(table.answered.append)
            self.assertEqual(table.answered, [])
            self.done(table.saved())
            self.assertEqual((len(table.answered), table.writes), (100, 2))
            self.assertEqual(len(self.table()), 101)

    def test_many_wait(self) -> None:
        """Who waits costs the same however many wait with it."""
        compared: list[int] = []

        class Waiting(tables._Waiting):
            def __eq__(self, other: object) -> bool:
                compared.append(1)
                return self is other

            __hash__ = None  # type: ignore[assignment]

        self.patch(tables, "_Waiting", Waiting)
        table = self.table()
        for number in range(100):
            table.put(topic(f"T{number}", 1))
            table.saved()
        self.written()
        self.assertLess(len(compared), 100)

    def test_a_bug(self) -> None:
        """An entry that cannot be encoded is an error for all who wait, not silence, and the next change is written."""
        table = self.table()
        self.patch(table, "_around", lambda *_: 1 / 0)
        for wait in table.saved, table.fold:
            table.put(topic("T", 4))
            self.assertRaises(ZeroDivisionError, self.done, wait())
        self.assertEqual({type(each.value) for each in self.flushLoggedErrors()}, {ZeroDivisionError})
        del table._around
        table.put(topic("U", 4))
        self.assertEqual(self.table().names(), ["T", "U"])

    def test_the_next_change_comes_with_an_answer(self) -> None:
        """An error that makes its reader change something else does not keep that from being written."""
        table = self.table()
        self.break_disk()
        table.put(topic("T", 4))

        def changed(_: Failure) -> Deferred[None]:
            os.rmdir(self.path("topics.json.tmp"))
            table.put(topic("U", 4))
            return table.saved()

        self.done(table.saved().addErrback(changed))
        self.assertEqual(self.table().names(), ["T", "U"])


class FileTests(TableCase):
    def test_apache_reads_ours(self) -> None:
        """Our file is standard JSON with the members of Apache's, all of them."""
        self.table().put(topic("%RETRY%g", 1))
        self.assertEqual(
            self.members(),
            {
                "dataVersion": {"counter": 1, "timestamp": 1_800_000_000_000},
                "topicConfigTable": {
                    "%RETRY%g": {
                        "order": False,
                        "perm": 6,
                        "readQueueNums": 1,
                        "topicFilterType": "SINGLE_TAG",
                        "topicName": "%RETRY%g",
                        "topicSysFlag": 0,
                        "writeQueueNums": 1,
                    }
                },
            },
        )

    def test_we_read_apaches(self) -> None:
        """The files of Apache 4.9.7 and 5.3.3 are read with all topics, groups and versions."""
        for version, topics, group_count in (("4.9.7", 12, 8), ("5.3.3", 16, 9)):
            self.directory = os.path.abspath(self.mktemp())
            self.copy_golden(version)
            table = self.table()
            self.assertEqual((len(table), table.data_version.counter), (topics, 4))
            mixed = table.get("Mixed")
            assert mixed is not None
            self.assertEqual((mixed.read_queue_nums, mixed.perm), (4, 6))
            groups = SubscriptionGroupTable(self.disk, self.directory, self.clock)
            groups.load()
            self.assertEqual(len(groups), group_count)
            self.assertIn("CG_dead", groups)

    def test_nothing_of_5x_is_lost(self) -> None:
        """Members that we do not know are written back, unless their entry is gone; nothing else changes."""
        self.copy_golden("5.3.3")
        before = {
            name: fastjson.decode(Path(self.path(name)).read_bytes(), dict) for name in os.listdir(self.directory)
        }
        table = self.table()
        table.put(msgspec.structs.replace(topic("Mixed", 4), perm=4))
        table.delete("BenchmarkTest")
        groups = SubscriptionGroupTable(self.disk, self.directory, self.clock)
        groups.load()
        groups.delete("TOOLS_CONSUMER")
        self.done(table.fold())
        self.done(groups.fold())
        expected = before["topics.json"]
        expected["topicConfigTable"]["Mixed"]["perm"] = 4
        del expected["topicConfigTable"]["BenchmarkTest"]
        self.assertEqual(self.members()["topicConfigTable"], expected["topicConfigTable"])
        self.assertEqual(self.members()["topicConfigTable"]["Mixed"]["attributes"], {})
        expected = before["subscriptionGroup.json"]
        del expected["subscriptionGroupTable"]["TOOLS_CONSUMER"]
        found = self.members("subscriptionGroup.json")
        self.assertEqual(found["subscriptionGroupTable"], expected["subscriptionGroupTable"])
        self.assertEqual(found["forbiddenTable"], {})

    def test_in_turns(self) -> None:
        """A table that is written in slices is the same file; what changes meanwhile is in the journal after it."""
        self.patch(tables, "JOURNAL_FROM_ENTRIES", 0)
        table = self.table()
        self.put(table, *(topic(f"T{number}", 4) for number in range(10)))
        self.done(table.fold())
        whole = Path(self.path()).read_bytes()
        self.patch(tables, "ENTRIES_AT_ONCE", 3)
        self.put(table, topic("T0", 4))
        self.done(table.fold())
        self.assertEqual(
            json.loads(Path(self.path()).read_bytes())["topicConfigTable"], json.loads(whole)["topicConfigTable"]
        )
        self.assertEqual(len(Path(self.path()).read_bytes().split(b"\n")), len(whole.split(b"\n")))
        self.assertEqual(table.encode(), Path(self.path()).read_bytes())
        self.assertFalse(os.path.exists(self.path("topics.json.journal")))
        self.put(table, topic("T1", 5))
        folding = table.fold()
        table.put(topic("T2", 6))
        table.delete("T9")
        table.put(topic("New", 1))
        self.done(folding)
        self.assertFalse(table.is_in_file)
        self.done(table.saved())
        self.assertEqual(self.members()["topicConfigTable"]["T1"]["readQueueNums"], 5)
        self.assertIn("T9", self.members()["topicConfigTable"])
        self.assertEqual(sorted(json.loads(table.encode())["topicConfigTable"]), table.names())
        self.assertEqual(self.table().snapshot(), table.snapshot())

    def test_slices_that_cannot_be_written(self) -> None:
        """A disk that refuses the slices costs nothing: file and journal have all, and the next fold writes it."""
        self.patch(tables, "JOURNAL_FROM_ENTRIES", 0)
        self.patch(tables, "ENTRIES_AT_ONCE", 3)
        table = self.table()
        self.put(table, *(topic(f"T{number}", 4) for number in range(10)))
        self.break_disk()
        folding = table.fold()
        table.put(topic("T2", 6))
        self.assertRaises(DiskError, self.done, folding)
        os.rmdir(self.path("topics.json.tmp"))
        self.assertTrue(os.path.exists(self.path("topics.json.journal")))
        self.done(table.fold())
        self.assertEqual(self.members()["topicConfigTable"]["T2"]["readQueueNums"], 6)
        self.assertFalse(os.path.exists(self.path("topics.json.journal")))
        self.assertEqual(self.table().snapshot(), table.snapshot())

    def test_strange_members_go_with_their_entry(self) -> None:
        """A topic that is deleted and made anew does not inherit the old one's attributes."""
        config = msgspec.to_builtins(topic("T", 4)) | {"attributes": {"message.type": "FIFO"}}
        self.write(json.dumps({"topicConfigTable": {"T": config}}).encode())
        table = self.table()
        table.put(topic("T", 8))
        self.done(table.fold())
        self.assertEqual(self.members()["topicConfigTable"]["T"]["attributes"], {"message.type": "FIFO"})
        table.delete("T")
        table.put(topic("T", 4))
        self.table()  # with the journal, as after a kill
        self.assertNotIn("attributes", self.members()["topicConfigTable"]["T"])

    def test_backup(self) -> None:
        """The previous content is in .bak, and counts when the file is missing, empty or broken."""
        table = self.table()
        self.put(table, topic("T", 4), topic("U", 4))
        self.assertEqual(list(self.members("topics.json.bak")["topicConfigTable"]), ["T"])
        for data in (b"", b'{"topicConfigTable":{"T"', b"[]", b'{"topicConfigTable":{"T":{"perm":"x"}}}'):
            self.write(data)
            self.assertEqual(self.table().names(), ["T"], data)
            self.assertEqual(Path(self.path("topics.json.broken")).read_bytes(), data)
            self.assertEqual(list(self.members()["topicConfigTable"]), ["T"])
        os.remove(self.path())
        self.assertEqual(self.table().names(), ["T"])

    def test_broken(self) -> None:
        """When file and .bak are both unusable the start ends with an error that names them; nothing is overwritten."""
        self.write(b'{"topicConfigTable":')
        self.write(b"", "topics.json.bak")
        error = self.assertRaises(StateFileError, self.table)
        self.assertIn(self.path(), str(error))
        self.assertIn(self.path("topics.json.bak"), str(error))
        self.assertEqual(Path(self.path()).read_bytes(), b'{"topicConfigTable":')

    def test_nothing_there(self) -> None:
        """Without files a table is empty, and loading it writes nothing."""
        self.assertEqual(len(self.table()), 0)
        self.assertIsNone(read_state(self.disk, self.path(), bytes))
        self.assertFalse(os.path.exists(self.directory))

    def test_name_only_as_the_key(self) -> None:
        """The key names the topic, whatever the entry says."""
        self.write(b'{"topicConfigTable":{T:{topicName:"other",perm:4}}}')
        self.assertEqual(self.table().get("T"), TopicConfig(topic_name="T", perm=4))


class SmallTableTests(TableCase):
    def test_the_file_has_everything(self) -> None:
        """What was put or deleted is in the file at once, for Apache's broker after a kill and for the audit."""
        table = self.table()
        for name in ("A", "B", "C"):
            table.put(topic(name, 4))
        table.delete("B")
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["A", "C"])
        self.assertFalse(os.path.exists(self.path("topics.json.journal")))

    def test_a_table_that_grows(self) -> None:
        """From JOURNAL_FROM_ENTRIES on a change goes into the journal; the file has what was before."""
        self.patch(tables, "JOURNAL_FROM_ENTRIES", 3)
        table = self.table()
        self.put(table, *(topic(name, 4) for name in ("A", "B", "C", "D")))
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["A", "B"])
        self.assertTrue(os.path.exists(self.path("topics.json.journal")))
        self.assertEqual(self.table().names(), ["A", "B", "C", "D"])


class JournalTests(TableCase):
    def setUp(self) -> None:
        super().setUp()
        self.patch(tables, "JOURNAL_FROM_ENTRIES", 1)

    def journal(self) -> Path:
        return Path(self.path("topics.json.journal"))

    def filled(self) -> TopicTable:
        """A table whose file has the topic First."""
        table = self.table()
        self.put(table, topic("First", 4))
        return table

    def test_one_change_costs_one_line(self) -> None:
        """A topic more does not write the others again."""
        table = self.filled()
        table.add_missing([topic(f"T{number}", 4) for number in range(1000)])
        self.done(table.saved())
        whole = Path(self.path()).read_bytes()
        lines = []
        for number in range(3):
            self.put(table, topic(f"New{number}", 4))
            lines.append(len(self.journal().read_bytes()))
        self.assertEqual(Path(self.path()).read_bytes(), whole)
        self.assertLess(lines[2] - lines[1], 500)

    def test_a_kill(self) -> None:
        """What was put, changed or deleted is there after a kill, with its version, and the file has it then."""
        table = self.filled()
        table.put(topic("Second", 4))
        table.put(topic("First", 9))
        table.delete("Second")
        table.put(topic("Third", 4))
        again = self.table()
        self.assertEqual(again.names(), ["First", "Third"])
        self.assertEqual(again.get("First"), topic("First", 9))
        self.assertEqual(again.data_version, table.data_version)
        self.done(again.fold())
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["First", "Third"])
        self.assertEqual(self.members()["dataVersion"]["counter"], table.data_version.counter)
        self.assertFalse(self.journal().exists())

    def test_folded_at_the_start(self) -> None:
        """A journal that a start finds is folded without being asked for."""
        table = self.filled()
        self.put(table, topic("Second", 4))
        again = self.table()
        self.run_until(lambda: again.is_in_file)
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["First", "Second"])

    def test_a_master_s_attributes(self) -> None:
        """A master's table is written whole: what it has more than our entries is in no journal."""
        table = self.filled()
        wrapper = msgspec.to_builtins(table.snapshot(), str_keys=True)
        wrapper["dataVersion"]["counter"] += 1
        wrapper["topicConfigTable"]["First"] |= {"perm": 4, "attributes": {"message.type": "FIFO"}}
        table.replace(json.dumps(wrapper).encode())
        self.done(table.saved())
        self.assertFalse(self.journal().exists())
        self.assertEqual(self.members()["topicConfigTable"]["First"]["attributes"], {"message.type": "FIFO"})

    def test_folding_behind_a_line(self) -> None:
        """Who folds while a line is being written hears when the file is."""
        table = self.filled()
        table.put(topic("Second", 4))
        self.done(table.fold())
        self.assertTrue(table.is_in_file)

    def test_folding(self) -> None:
        """Folding writes the file and leaves no journal; without a change nothing is written."""
        table = self.filled()
        self.put(table, topic("Second", 4))
        self.done(table.fold())
        self.assertFalse(self.journal().exists())
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["First", "Second"])
        written = os.stat(self.path()).st_ino
        self.done(table.fold())
        self.assertEqual(os.stat(self.path()).st_ino, written)
        table.put(topic("Third", 4))
        self.assertEqual(self.table().names(), ["First", "Second", "Third"])

    def test_a_disk_that_refuses(self) -> None:
        """A fold that finds no room loses nothing and is done later; the log has one line about it."""
        table = self.filled()
        self.put(table, topic("Second", 4))
        self.break_disk()
        with capturedLogs() as events:
            for _ in range(3):
                self.assertRaises(DiskError, self.done, table.fold())
        self.assertEqual([event["log_format"] for event in events if "path" in event], [REFUSED])
        self.assertTrue(self.journal().exists())
        os.rmdir(self.path("topics.json.tmp"))
        self.done(table.fold())
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["First", "Second"])
        self.assertFalse(self.journal().exists())

    def test_a_torn_line(self) -> None:
        """Of a journal that a power failure has cut or spoiled at any byte, the whole lines count."""
        table = self.filled()
        file = Path(self.path()).read_bytes()
        ends = [0]
        for number in range(3):
            self.put(table, topic(f"New{number}", 4))
            ends.append(len(self.journal().read_bytes()))
        whole = self.journal().read_bytes()
        for at in range(len(whole)):
            for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
                # the line feed after the last line may be missing
                counts = {sum(end <= at for end in ends[1:]), sum(end - 1 <= at for end in ends[1:])}
                self.assertIn(len(list(tables.read_journal(data))), counts, at)
                if at % 50 == 0:
                    Path(self.path()).write_bytes(file)
                    self.journal().write_bytes(data)
                    again = self.table()
                    self.assertIn(len(again) - 1, counts, at)
                    self.done(again.fold())

    def test_saved_after_a_start(self) -> None:
        """A kill may have come during the fsync of a journal: who waits for what it has waits for the file."""
        self.put(self.filled(), topic("Second", 4))
        table = self.table()
        saved = table.saved()
        self.assertNoResult(saved)
        self.done(saved)
        self.assertFalse(self.journal().exists())

    def test_the_file_of_another_broker(self) -> None:
        """A journal that does not continue the file, which another broker has written, changes nothing."""
        table = self.filled()
        self.put(table, topic("Second", 4))
        journal = self.journal().read_bytes()
        self.done(table.fold())
        table.put(topic("Third", 4))
        table.delete("Second")
        self.done(table.fold())
        self.journal().write_bytes(journal)
        again = self.table()
        self.assertEqual((again.names(), again.data_version), (["First", "Third"], table.data_version))
        self.done(again.fold())
        self.assertFalse(self.journal().exists())

    def test_a_journal_that_comes_back(self) -> None:
        """A fold whose last step a crash has prevented is as good as done."""
        table = self.filled()
        self.put(table, topic("Second", 4))
        table.delete("First")
        self.done(table.saved())
        journal = self.journal().read_bytes()
        self.done(table.fold())
        self.journal().write_bytes(journal)
        again = self.table()
        self.assertEqual((again.names(), again.data_version), (["Second"], table.data_version))

    def test_a_line_that_cannot_be_written(self) -> None:
        """A change whose line the disk refuses is written with the whole file."""
        table = self.filled()
        os.makedirs(self.journal())
        table.put(topic("Second", 4))
        os.rmdir(self.journal())
        self.done(table.saved())
        self.assertEqual(sorted(self.members()["topicConfigTable"]), ["First", "Second"])
        self.put(table, topic("Third", 4))
        self.assertTrue(self.journal().exists())
        self.assertEqual(self.table().names(), ["First", "Second", "Third"])

    def test_its_length(self) -> None:
        """A journal never grows beyond its limit and one line."""
        self.patch(tables, "MAX_JOURNAL_BYTES", 2000)
        table = self.filled()
        longest = 0
        for number in range(50):
            self.put(table, topic(f"New{number}", 4))
            longest = max(longest, len(self.journal().read_bytes()) if self.journal().exists() else 0)
        self.assertTrue(1000 < longest < 2500, longest)
        self.assertEqual(len(self.table()), 51)


class JournalPowerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.patch(tables, "JOURNAL_FROM_ENTRIES", 0)

    def test_power_failures(self) -> None:
        """What was saved survives every power failure; of the rest each change is there or not, none half."""
        for seed in range(60):
            world = World(seed)
            node = Node(world, SimNet(world), "broker")
            draw = random.Random(seed)
            #: what is durable, and what it may be instead
            saved: dict[str, TopicConfig] = {}
            possible = [saved]
            for _ in range(4):
                node.start()
                reactor = node.process
                assert reactor is not None
                table = TopicTable(node.disk, "/store/config", reactor)
                table.load()
                found = table.snapshot().topic_config_table
                self.assertIn(found, possible, f"seed {seed}")
                possible = [found]
                for _ in range(draw.randrange(12)):
                    name = f"T{draw.randrange(5)}"
                    step = draw.random()
                    if step < 0.4:
                        table.delete(name)
                    else:
                        table.put(topic(name, draw.randrange(9)))
                    possible.append(table.snapshot().topic_config_table)
                    step = draw.random()
                    if step < 0.5:
                        world.settle(table.fold() if step < 0.2 else table.saved())
                        possible = possible[-1:]
                    elif step < 0.7:
                        world.run_for(draw.uniform(0, 0.01))
                node.crash()
