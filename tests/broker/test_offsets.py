"""Consumer offsets of a broker."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from rmq.broker import offsets as offsets_module
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.runtime.disk.files import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.wire import fastjson
from rmq.wire.api.replication import AllConsumerOffset
from tests.broker.test_tables import TableCase
from tests.seeds import SEED
from tests.store.support import log_events

FILE = "consumerOffset.json"


class OffsetCase(TableCase):
    def setUp(self) -> None:
        super().setUp()
        self.offsets = self.load()

    def persist(self) -> None:
        self.done(Deferred.fromCoroutine(self.offsets.persist()))

    def load(self) -> ConsumerOffsetTable:
        table = ConsumerOffsetTable(self.disk, self.directory, self.clock)
        table.load()
        return table


class CommitTests(OffsetCase):
    def test_query(self) -> None:
        """A committed offset is found, also a smaller one than before; of what was never committed there is None."""
        self.offsets.commit("g", "T", 0, 5)
        self.offsets.commit("g", "T", 0, 3)
        self.assertEqual(self.offsets.query("g", "T", 0), 3)
        for group, topic, queue_id in (("g", "T", 1), ("g", "U", 0), ("h", "T", 0)):
            self.assertIsNone(self.offsets.query(group, topic, queue_id))

    def test_lower_offsets_are_logged_once_a_minute(self) -> None:
        """Two members that commit the same queue do not fill the log; each queue has a line of its own."""
        with capturedLogs() as events:
            for offset in (5, 3, 5, 4, 5, 2):
                self.offsets.commit("g", "T", 0, offset)
            self.offsets.commit("g", "T", 1, 5)
            self.offsets.commit("g", "T", 1, 1)
            self.clock.advance(60)
            self.offsets.commit("g", "T", 0, 1)
        found = [(e["queue_id"], e["before"], e["offset"], e["suppressed"]) for e in events if "suppressed" in e]
        self.assertEqual(found, [(0, 5, 3, 0), (1, 5, 1, 0), (0, 2, 1, 2)])

    def test_zero_is_not_none(self) -> None:
        """Offset 0 is an offset."""
        self.offsets.commit("g", "T", 0, 0)
        self.assertEqual(self.offsets.query("g", "T", 0), 0)

    def test_who_consumes_what(self) -> None:
        """Topics by group and groups by topic, retry topics included."""
        for group, topic in (("g", "T"), ("g", "%RETRY%g"), ("h", "T")):
            self.offsets.commit(group, topic, 0, 1)
        self.assertEqual(self.offsets.topics_of("g"), {"T", "%RETRY%g"})
        self.assertEqual(self.offsets.groups_of("T"), {"g", "h"})
        self.assertEqual(self.offsets.topics_of("?"), set())

    def test_pairs_that_come_and_go(self) -> None:
        """Whatever makes or forgets offsets, topics by group and groups by topic are those of the table."""
        chance = random.Random(SEED)
        groups, topics = "ghi", "TUV"
        changes: tuple[Callable[[str, str], object], ...] = (
            lambda group, topic: self.offsets.commit(group, topic, 0, 1),
            lambda group, topic: self.offsets.commit_at_slave(group, topic, 1, 2),
            lambda group, topic: self.offsets.merge({f"{topic}@{group}": {0: 3}}),
            lambda group, topic: self.offsets.clone(group, chance.choice(groups), topic),
            lambda group, topic: self.offsets.remove_group(group),
            lambda group, topic: self.offsets.remove_topic(topic),
            lambda group, topic: self.offsets.remove_topics({topic}),
        )
        for _ in range(200):
            chance.choice(changes)(chance.choice(groups), chance.choice(topics))
            pairs = [key.split("@") for key in self.offsets.snapshot()]
            for group in groups:
                self.assertEqual(self.offsets.topics_of(group), {topic for topic, owner in pairs if owner == group})
            for topic in topics:
                self.assertEqual(self.offsets.groups_of(topic), {group for name, group in pairs if name == topic})
            self.assertEqual(self.offsets.topics(), {topic for topic, _ in pairs})

    def test_remove(self) -> None:
        """A group's or a topic's offsets can be forgotten; others stay."""
        for group, topic in (("g", "T"), ("g", "U"), ("h", "T")):
            self.offsets.commit(group, topic, 0, 1)
        self.offsets.remove_group("g")
        self.assertEqual(self.offsets.snapshot(), {"T@h": {0: 1}})
        self.offsets.remove_topic("T")
        self.assertEqual(self.offsets.snapshot(), {})
        self.offsets.remove_group("g")

    def test_unknown_topics(self) -> None:
        """Offsets of topics that are not known can be forgotten, for all groups; the topics are returned."""
        for group, topic in (("g", "T"), ("g", "U"), ("h", "U"), ("h", "V")):
            self.offsets.commit(group, topic, 0, 1)
        self.assertEqual(self.offsets.remove_topics(self.offsets.topics() - {"T"}), ["U", "V"])
        self.assertEqual(self.offsets.snapshot(), {"T@g": {0: 1}})
        self.assertEqual(self.offsets.remove_topics(self.offsets.topics() - {"T"}), [])

    def test_clone(self) -> None:
        """A group gets another's offsets of a topic, as a copy."""
        self.offsets.commit("g", "T", 0, 1)
        self.offsets.commit("g", "U", 0, 2)
        self.offsets.clone("g", "h", "T")
        self.offsets.clone("g", "h", "unknown")
        self.assertEqual(self.offsets.topics_of("h"), {"T"})
        self.offsets.commit("g", "T", 0, 9)
        self.assertEqual(self.offsets.query("h", "T", 0), 1)

    def test_merge(self) -> None:
        """A slave takes over what its master has of each group and topic, and keeps the rest."""
        self.offsets.commit("g", "T", 0, 1)
        self.offsets.commit("g", "T", 1, 1)
        self.offsets.commit("own", "T", 0, 1)
        master = {"T@g": {0: 7}, "U@g": {3: 4}}
        self.offsets.merge(master)
        self.assertEqual(self.offsets.snapshot(), {"T@g": {0: 7}, "T@own": {0: 1}, "U@g": {3: 4}})
        self.offsets.commit("g", "T", 0, 8)
        self.assertEqual(master["T@g"], {0: 7})

    def test_snapshot_stands_still(self) -> None:
        """A snapshot is not changed by later commits."""
        self.offsets.commit("g", "T", 0, 1)
        snapshot = self.offsets.snapshot()
        self.offsets.commit("g", "T", 0, 2)
        self.assertEqual(snapshot, {"T@g": {0: 1}})


class LimitTests(OffsetCase):
    def test_pairs_and_queues(self) -> None:
        """Beyond the limits new offsets are dropped, with one error in the log; known ones still move."""
        self.patch(offsets_module, "MAX_PAIRS", 3)
        self.patch(offsets_module, "MAX_QUEUES_OF_A_PAIR", 2)
        events = log_events(self)
        for number in range(5):
            self.offsets.commit("G", f"T{number}", 0, 7)
            self.offsets.commit_at_slave("G", "T0", number, 8)
        kept = {"T0@G": {0: 8, 1: 8}, "T1@G": {0: 7}, "T2@G": {0: 7}}
        self.assertEqual(self.offsets.snapshot(), kept)
        self.assertEqual([own.queue_id for own in self.offsets.follow({})], [0, 1])
        self.offsets.commit("G", "T2", 0, 9)
        self.assertEqual(self.offsets.query("G", "T2", 0), 9)
        self.assertEqual(len([event for event in events if event["log_level"].name == "error"]), 1)


class PersistTests(OffsetCase):
    def test_restart(self) -> None:
        """What was committed before persist is there afterwards; the file is standard JSON."""
        self.offsets.commit("g", "T", 0, 1)
        self.offsets.commit("g", "%RETRY%g", 12, 2)
        self.persist()
        self.assertEqual(self.load().snapshot(), self.offsets.snapshot())
        self.assertEqual(self.members(FILE)["offsetTable"], {"T@g": {"0": 1}, "%RETRY%g@g": {"12": 2}})
        self.assertEqual(self.members(FILE)["dataVersion"], {"counter": 1, "timestamp": 1_800_000_000_000})

    def test_only_when_something_changed(self) -> None:
        """Without a change nothing is written and the version stays."""
        self.persist()
        self.assertFalse(os.path.exists(self.directory))
        self.offsets.commit("g", "T", 0, 1)
        self.persist()
        version = self.offsets.data_version
        self.offsets.commit("g", "T", 0, 1)
        self.persist()
        self.assertEqual(self.offsets.data_version, version)
        self.offsets.remove_group("g")
        self.persist()
        self.assertNotEqual(self.offsets.data_version, version)
        self.assertEqual(self.load().snapshot(), {})

    def test_in_turns(self) -> None:
        """Written in slices it is the same file; a change meanwhile is saved the next time, never undone."""
        for number in range(10):
            self.offsets.commit("g", f"T{number}", 0, 1)
        self.offsets.commit("gü", "T", 0, 1)
        self.persist()
        whole = self.members(FILE)
        self.patch(offsets_module, "PAIRS_AT_ONCE", 3)
        self.offsets.commit("g", "T0", 0, 2)
        self.persist()
        whole["offsetTable"]["T0@g"]["0"] = 2
        self.assertEqual(self.members(FILE)["offsetTable"], whole["offsetTable"])
        self.assertEqual(self.members(FILE)["dataVersion"]["counter"], whole["dataVersion"]["counter"] + 1)
        self.offsets.commit("g", "T1", 0, 5)
        saving = Deferred.fromCoroutine(self.offsets.persist())
        self.offsets.commit("g", "T0", 0, 7)
        self.done(saving)
        self.assertEqual((self.load().query("g", "T0", 0), self.load().query("g", "T1", 0)), (2, 5))
        self.persist()
        self.assertEqual(self.load().query("g", "T0", 0), 7)

    def test_one_after_the_other(self) -> None:
        """Who asks while the file is being written gets a file that has everything up to then."""
        self.offsets.commit("g", "T", 0, 1)
        first = Deferred.fromCoroutine(self.offsets.persist())
        self.offsets.commit("g", "T", 0, 2)
        self.persist()
        self.successResultOf(first)
        self.assertEqual(self.load().query("g", "T", 0), 2)

    def test_answer_to_slaves(self) -> None:
        """The answer that is made in slices is what fastjson writes of the table."""
        self.patch(offsets_module, "PAIRS_AT_ONCE", 3)
        for pairs in (0, 1, 3, 10):
            for number in range(pairs):
                self.offsets.commit("gü", f"T{number}", number, number)
            answers: list[bytes] = []
            ended = Deferred.fromCoroutine(self.offsets.encode_in_turns()).addCallback(answers.append)
            while not ended.called:
                self.clock.advance(0)
            table = AllConsumerOffset(data_version=self.offsets.data_version, offset_table=self.offsets.snapshot())
            self.assertEqual(answers, [fastjson.encode(table)])

    def test_failed_write_is_tried_again(self) -> None:
        """A disk that refuses costs nothing but time."""
        self.offsets.commit("g", "T", 0, 1)
        self.break_disk(FILE)
        self.assertRaises(DiskError, self.persist)
        os.rmdir(self.path(f"{FILE}.tmp"))
        self.persist()
        self.assertEqual(self.load().query("g", "T", 0), 1)

    def test_apaches_files(self) -> None:
        """Files of 4.9.7 (bare integer keys) and 5.3.3 (with version and groupTopicMap) are read."""
        for version, expected in (("4.9.7", {0: 83, 1: 52, 2: 82, 3: 51}), ("5.3.3", {0: 54, 1: 81, 2: 52, 3: 81})):
            self.directory = os.path.abspath(self.mktemp())
            self.copy_golden(version)
            table = self.load()
            self.assertEqual(table.snapshot()["Mixed@CG_dead"], expected)
            self.assertEqual(len(table.snapshot()), 4)

    def test_broken(self) -> None:
        """A broken file without .bak is an error that names it."""
        self.write(b'{"offsetTable":{"T@g":{0:', FILE)
        error = self.assertRaises(StateFileError, self.load)
        self.assertIn(self.path(FILE), str(error))


class SlaveTests(OffsetCase):
    """What consumers commit at a slave while its master is away."""

    def test_a_commit_while_the_master_is_being_told(self) -> None:
        """An offset that is committed while an older one goes back to the master is not lost: it goes there next."""
        self.offsets.commit_at_slave("g", "T", 0, 5)
        (told,) = self.offsets.follow({"T@g": {0: 1}})
        self.offsets.commit_at_slave("g", "T", 0, 8)
        self.offsets.forget_own(told)
        (again,) = self.offsets.follow({"T@g": {0: 5}})
        self.assertEqual((again.offset, self.offsets.query("g", "T", 0)), (8, 8))
        self.offsets.forget_own(again)
        self.assertEqual(self.offsets.follow({"T@g": {0: 5}}), [])
        self.assertEqual(self.offsets.query("g", "T", 0), 5)

    def test_own_commits_of_a_group_that_is_removed(self) -> None:
        """Offsets of a deleted group do not go back to the master when it returns."""
        for group in ("g", "h"):
            self.offsets.commit_at_slave(group, "T", 0, 5)
        self.offsets.remove_group("g")
        self.assertEqual([own.group for own in self.offsets.follow({})], ["h"])

    def test_own_commits_are_written_once(self) -> None:
        """A slave whose consumers rest writes nothing every five seconds."""
        self.offsets.commit_at_slave("g", "T", 0, 5)
        self.persist()
        before = {name: os.stat(self.path(name)).st_ino for name in os.listdir(self.directory)}
        self.persist()
        self.assertEqual({name: os.stat(self.path(name)).st_ino for name in os.listdir(self.directory)}, before)

    def test_own_commits_that_cannot_be_written(self) -> None:
        """The next attempt writes them, although nothing has changed since."""
        self.offsets.commit_at_slave("g", "T", 0, 5)
        self.break_disk(offsets_module.OWN_FILE_NAME)
        self.assertRaises(DiskError, self.persist)
        os.rmdir(self.path(f"{offsets_module.OWN_FILE_NAME}.tmp"))
        self.persist()
        self.assertEqual(self.members(offsets_module.OWN_FILE_NAME)["offsetTable"], {"T@g": {"0": 5}})

    def test_own_commits_survive_a_restart(self) -> None:
        """What only the slave knows is on its disk; what the master has by now is not, and a master forgets it all."""
        for queue_id, offset in ((0, 5), (1, 7)):
            self.offsets.commit_at_slave("g", "T", queue_id, offset)
        self.persist()
        self.offsets.follow({"T@g": {0: 6, 1: 1}})
        self.persist()
        for is_slave, expected in ((True, [("g", "T", 1, 7)]), (False, []), (True, [])):
            table = self.load()
            table.load_own(is_slave=is_slave)
            newer = [(own.group, own.topic, own.queue_id, own.offset) for own in table.follow({})]
            self.assertEqual(newer, expected)
