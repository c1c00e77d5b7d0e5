"""Tables of the folder config, the checkpoint: what a broker could not load, and what contradicts store or replica."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rmq_audit.driver.findings import INVARIANTS

from rmq.store import layout
from tests.spark.cases import GoldenCase
from tests.spark.corruptor.classes import REMARKS
from tests.spark.support import audit

#: (what is done, file, text, what replaces it, finding); on the slave of an equal pair of 4.9.7
ONE_SIDE = [
    ("half a file", "topics.json", '"dataVersion"', '"dataVersion', "CF-BROKEN"),
    ("a setting of another kind", "topics.json", '"perm":6', '"perm":"6"', "CF-BROKEN"),
    ("a setting without its name", "topics.json", '"perm":', '"pern":', "CF-BROKEN"),
    ("a topic under another name", "topics.json", '"topicName":"Mixed"', '"topicName":"Mixec"', "CF-BROKEN"),
    ("a filter type that is none", "topics.json", "SINGLE_TAG", "SINGLE_TAC", "CF-BROKEN"),
    ("the table under another name", "subscriptionGroup.json", "GroupTable", "GroupTablf", "CF-BROKEN"),
    ("a group under another name", "subscriptionGroup.json", '"groupName":"CG_dead"', '"groupName":"CG"', "CF-BROKEN"),
    ("a switch that is no switch", "subscriptionGroup.json", "true", "1", "CF-BROKEN"),
    ("no group in a key", "consumerOffset.json", "Mixed@CG_dead", "Mixed.CG_dead", "CF-BROKEN"),
    ("an offset that is no number", "consumerOffset.json", "{0:5}", '{0:"5"}', "CF-BROKEN"),
    ("an offset below 0", "delayOffset.json", "1:2", "1:-2", "CF-BROKEN"),
    ("bytes that are no text", "consumerFilter.json", "ByTopic", "\xff", "CF-BROKEN"),
    ("a permission that the master does not have", "topics.json", '"perm":6', '"perm":4', "CF-DIFF"),
    (
        "fewer retries than on the master",
        "subscriptionGroup.json",
        '"retryMaxTimes":16',
        '"retryMaxTimes":6',
        "CF-DIFF",
    ),
    ("a topic that the master does not have", "topics.json", '"topicConfigTable":{', None, "CF-DIFF"),
]
_TOPIC = '"Other":{{"order":false,"perm":6,"readQueueNums":1,"topicFilterType":"SINGLE_TAG",'
_TOPIC += '"topicName":"Other","topicSysFlag":0,"writeQueueNums":1}},'


class ConfigCase(GoldenCase):
    def pair(self, name: str = "pair-equal-4.9.7") -> Path:
        """Return a fresh copy of a golden archive's folder."""
        return Path(shutil.copytree(self.golden(name), tempfile.mkdtemp(dir=self.folder), dirs_exist_ok=True))

    def edit(self, pair: Path, side: str, name: str, old: str, new: str) -> None:
        path = pair / side / "config" / name
        text = "".join(path.read_text().split())
        self.assertIn(old, text)
        path.write_bytes(text.replace(old, new, 1).encode("latin-1"))

    def found(self, pair: Path) -> set[tuple[str, str]]:
        result = audit(pair / "master", pair / "slave")
        kinds = {(one.invariant, one.replica) for one in result.findings}
        self.assertEqual(result.exit_status, 2 if {name for name, _ in kinds} - REMARKS else 0)
        return kinds


class TableTests(ConfigCase):
    def test_every_damage_is_found(self) -> None:
        """A restart or a failover would load something else than was written: named with the side, exit status 2."""
        for what, name, old, new, invariant in ONE_SIDE:
            with self.subTest(what):
                pair = self.pair()
                self.edit(pair, "slave", name, old, old + _TOPIC.format() if new is None else new)
                found = self.found(pair)
                # what is broken differs from the master's, too
                self.assertEqual(found - {("CF-DIFF", "slave")}, {(invariant, "slave")} - {("CF-DIFF", "slave")})
                self.assertIn((invariant, "slave"), found)

    def test_equal_damage_is_found_on_both(self) -> None:
        """What no broker writes is seen on two sides that agree; an equal setting may be meant."""
        pair = self.pair()
        for side in ("master", "slave"):
            self.edit(pair, side, "topics.json", '"topicName":"Mixed"', '"topicName":"Mixec"')
        self.assertEqual(self.found(pair), {("CF-BROKEN", "both")})
        pair = self.pair()
        for side in ("master", "slave"):
            self.edit(pair, side, "topics.json", '"perm":6', '"perm":4')
        self.assertEqual(self.found(pair), set())

    def test_a_file_that_is_gone(self) -> None:
        """A table without its file: the next start loads the older backup, or knows no topic at all."""
        for name, backup in (("consumerOffset.json", True), ("topics.json", False)):
            pair = self.pair()
            (pair / "master" / "config" / name).unlink()
            if not backup:
                (pair / "master" / "config" / f"{name}.bak").unlink()
            self.assertEqual(self.found(pair), {("CF-BROKEN", "master")})

    def test_a_table_that_is_gone_with_its_backup(self) -> None:
        """The slave's copy shows that the master had it. A slave may copy later; so may a master write, that runs."""
        for name in ("delayOffset.json", "subscriptionGroup.json", "consumerOffset.json"):
            for side, running, expected in (
                ("master", False, {("CF-DIFF", "slave")}),
                ("master", True, set()),
                ("slave", False, set()),
            ):
                with self.subTest(name, side=side, running=running):
                    pair = self.pair()
                    for path in (pair / side / "config").glob(f"{name}*"):
                        path.unlink()
                    if running:
                        (pair / "master" / "abort").touch()
                    found = self.found(pair)
                    self.assertEqual(found, expected)

    def test_a_group_that_brokers_make_is_in_no_table_of_the_master(self) -> None:
        """A slave writes its master's groups also where there are only those that every broker has: no finding."""
        pair = self.pair("pair-late-4.9.7")
        self.assertFalse((pair / "master/config/subscriptionGroup.json").exists())
        self.assertTrue((pair / "slave/config/subscriptionGroup.json").exists())
        self.assertNotIn("CF-DIFF", {invariant for invariant, _ in self.found(pair)})

    def test_the_whole_folder_is_gone(self) -> None:
        """A store with messages has tables; a slave that was started a moment ago may not, nor does an empty store."""
        for side, running, status, expected in (
            ("master", False, 2, {("CF-BROKEN", "WARN"), ("CF-DIFF", "ERROR")}),
            ("slave", False, 1, {("CF-BROKEN", "WARN")}),
            ("slave", True, 0, set()),
        ):
            with self.subTest(side, running=running):
                pair = self.pair()
                shutil.rmtree(pair / side / "config")
                if running:
                    (pair / side / "abort").touch()
                result = audit(pair / "master", pair / "slave")
                self.assertEqual(result.exit_status, status)
                self.assertEqual({(one.invariant, one.severity.name) for one in result.findings}, expected)

    def test_a_young_slave_has_no_topics_yet(self) -> None:
        """A slave copies topics some seconds after its start: no finding, unless what it copies later is there."""
        for kept, expected in (
            ((), set()),
            (("delayOffset.json",), {("CF-BROKEN", "slave")}),
            (("topics.json.bak",), {("CF-BROKEN", "slave")}),
        ):
            pair = self.pair("pair-equal-5.3.3")
            for path in (pair / "slave" / "config").iterdir():
                if path.name not in ("transactionMetrics", "consumerFilter.json", "consumerOffset.json", *kept):
                    path.unlink()
            self.assertEqual(self.found(pair), expected)

    def test_a_topic_that_lost_its_configuration(self) -> None:
        """Messages of a topic that is not configured are reached by nobody; a slave gets topics a little later."""
        for side, expected in (("master", {("CF-TOPIC", "master"), ("CF-DIFF", "slave")}), ("slave", set())):
            pair = self.pair()
            path = pair / side / "config" / "topics.json"
            text = "".join(path.read_text().split())
            begin = text.index(',"Mixed":{')
            path.write_text(text[:begin] + text[text.index("}", begin) + 1 :])
            self.assertEqual(self.found(pair), expected)
            if side == "master":
                (pair / side / "config" / "topics.json.journal").touch()  # of a broker that runs, with many topics
                self.assertEqual(self.found(pair), {("CF-DIFF", "slave")})

    def test_a_delay_level_beyond_its_queue(self) -> None:
        """Delayed messages would never be delivered."""
        pair = self.pair()
        for side in ("master", "slave"):
            self.edit(pair, side, "delayOffset.json", "1:2", "1:9")
        self.assertEqual(self.found(pair), {("CF-DELAY", "both")})

    def test_a_delay_level_that_went_back(self) -> None:
        """A master behind the slave's copy of its table delivers again; a slave that is behind copies later."""
        for side, expected in (("master", {("CF-DIFF", "slave")}), ("slave", set())):
            pair = self.pair()
            self.edit(pair, side, "delayOffset.json", "1:2", "1:1")
            self.assertEqual(self.found(pair), expected)

    def test_a_slave_that_lags_has_older_tables(self) -> None:
        """Settings of a slave that is behind are not compared with its master's."""
        pair = self.pair("pair-lag-4.9.7")
        self.edit(pair, "slave", "topics.json", '"perm":6', '"perm":4')
        result = audit(pair / "master", pair / "slave")
        self.assertEqual((result.verdict.value, result.exit_status), ("LAGGING", 1))

    def test_a_system_group_of_another_version(self) -> None:
        """A 5.x slave has a group of its own that a 4.x master does not know: no finding."""
        pair = self.pair()
        group = "".join(part for part in (pair / "slave/config/subscriptionGroup.json").read_text().split())
        one = group.partition('"CG_dead":{')[2].partition("}")[0].replace("CG_dead", "CID_RMQ_SYS_TRANS")
        self.edit(
            pair, "slave", "subscriptionGroup.json", 'GroupTable":{', f'GroupTable":{{"CID_RMQ_SYS_TRANS":{{{one}}},'
        )
        self.assertEqual(self.found(pair), set())


class CheckpointTests(ConfigCase):
    def test_a_time_behind_the_last_message(self) -> None:
        """After a kill the recovery would begin too late; after a clean stop nobody reads the times."""
        for name, expected in (("killed-4.9.7", {"CF-TIME"}), ("mixed-4.9.7", set())):
            folder = self.pair(name)
            path = folder / "store" / "checkpoint"
            path.write_bytes(layout.CHECKPOINT.pack(0, 1 << 50, 0) + path.read_bytes()[layout.CHECKPOINT.size :])
            shutil.copytree(folder / "store", folder / "copy")
            result = audit(folder / "store", folder / "copy")
            self.assertEqual({one.invariant for one in result.findings if one.severity > 0}, expected)


def test_every_rule_of_tables_is_held_here() -> None:
    """A new rule needs a damage in this file."""
    told = {row[-1] for row in ONE_SIDE} | {"CF-TOPIC", "CF-DELAY", "CF-TIME"}
    assert told == {name for name in INVARIANTS if name.startswith("CF-")}
