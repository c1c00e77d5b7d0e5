"""Every kind of planted defect is found and blamed, nothing else is said, and where splits end makes no difference."""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.audit import Result
from rmq_audit.engines import LocalEngine
from rmq_audit.findings import Finding
from rmq_audit.replicas import MAX_DRILLS
from rmq_audit.work import Work
from twisted.trial.unittest import SynchronousTestCase

from tests.spark.defects import DEFECTS, Defect, Expected, owned_first, plant_junk_behind_blanks, plant_stale_records
from tests.spark.support import as_json, audit, causes
from tests.spark.synthetic import MadeStore, Pair, make_store

SEEDS = (0, 23)


class StoreCase(SynchronousTestCase):
    folder: Path

    @pytest.fixture(autouse=True)
    def _take_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def pair(self, made: MadeStore) -> Pair:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        return Pair(self.folder, made)


class CleanTests(StoreCase):
    def test_legal_traps_are_silent(self) -> None:
        """
        Stale and forged records in bodies, bodies full of magics, empty bodies, IPv6, V2, halves, junk behind BLANKs:
        nothing is said, with any size of split.
        """
        for seed in range(4):
            chance = random.Random(seed)
            pair = self.pair(make_store(seed))
            plant_junk_behind_blanks(pair, pair.slave, chance)
            for size in (1024, 4096, 64 << 20):
                result = audit(pair.master, pair.slave, chunk=min(size, 4096), split=size)
                self.assertEqual((seed, size, result.verdict.value, as_json(result)), (seed, size, "CONSISTENT", []))
                self.assertEqual(result.coverage.master.records, len(pair.made.stored))

    def test_small_splits_meet_forged_records(self) -> None:
        """The clean stores are no easy ones: with small splits some begin in a forgery and have to be read again."""
        pair = self.pair(make_store(1))
        self.assertGreater(audit(pair.master, pair.slave, chunk=1024, split=1024).coverage.splits_read_again, 10)
        self.assertEqual(audit(pair.master, pair.slave).coverage.splits_read_again, 0)

    def test_old_records_behind_the_end_are_not_part_of_the_log(self) -> None:
        """What a truncation left behind the end is mentioned, on whichever side, and compared with nothing."""
        for side in ("master", "slave"):
            pair = self.pair(make_store(3))
            plant_stale_records(pair, getattr(pair, side))
            for size in (2048, 64 << 20):
                result = audit(pair.master, pair.slave, chunk=2048, split=size)
                self.assertEqual(
                    (result.verdict.value, result.exit_status, result.compared_to), ("CONSISTENT", 0, pair.made.end)
                )
                self.assertEqual(
                    [(one.invariant, one.replica, one.count) for one in result.findings], [("CL-STALE", side, 5)]
                )

    def test_queues_behind_a_log_that_is_in_use(self) -> None:
        """
        With the file abort in the store its queues may be behind: they are filled when the broker starts, or runs
        on.
        """
        pair = self.pair(make_store(5, 200))
        one = next(one for one in reversed(pair.made.stored) if owned_first(pair, one))
        pair.write_unit(pair.slave, one, bytes(20))
        self.assertEqual(audit(pair.master, pair.slave).exit_status, 1)
        (pair.slave / "abort").touch()
        result = audit(pair.master, pair.slave)
        self.assertEqual((result.exit_status, [found.invariant for found in result.findings]), (0, ["CQ-BEHIND"]))

    def test_empty_stores(self) -> None:
        """A slave that has nothing yet lags; two stores without a message agree, and say that they hold none."""
        pair = self.pair(make_store(2, 30))
        for log in (pair.slave / "commitlog").iterdir():
            log.unlink()
        shutil.rmtree(pair.slave / "consumequeue")
        self.assertEqual(audit(pair.master, pair.slave).verdict.value, "LAGGING")
        for log in (pair.master / "commitlog").iterdir():
            log.unlink()
        shutil.rmtree(pair.master / "consumequeue")
        result = audit(pair.master, pair.slave)
        self.assertEqual((result.verdict.value, result.coverage.master.records), ("CONSISTENT", 0))


class WritingEngine(LocalEngine):
    """An engine in whose time the broker goes on writing: files look changed when it is done."""

    def __init__(self, path: Path) -> None:
        super().__init__(1)
        self._path = path

    def run(self, work: Work[Any, Any], tasks: Sequence[Any]) -> list[Any]:
        answers = super().run(work, tasks)
        os.utime(self._path, ns=(1, 1))
        return answers


class EngineTests(StoreCase):
    def test_a_pool_finds_the_same(self) -> None:
        """Processes share the work, and answer in order."""
        pair = self.pair(make_store(9))
        pair.flip(pair.slave, pair.made.stored[50].body_at)
        pool = LocalEngine(2, pool_from_bytes=0)
        try:
            shared = audit(pair.master, pair.slave, chunk=8192, split=8192, engine=pool)
        finally:
            pool.close()
        self.assertEqual(as_json(shared), as_json(audit(pair.master, pair.slave, chunk=8192, split=8192)))

    def test_a_running_slave_is_judged_by_what_stands(self) -> None:
        """Half a record at the end of a file that is being written is no fault, and the summary says what moved."""
        pair = self.pair(make_store(8, 200))
        one = pair.made.stored[150]
        pair.cut(pair.slave, one.phy)
        pair.write(pair.slave, one.phy, pair.read(pair.master, one.phy, one.size)[:60])
        still = {found.invariant: found.severity.name for found in audit(pair.master, pair.slave).findings}
        self.assertEqual(still, {"CL-TAIL": "WARN", "RP-LAG": "WARN"})
        segment = pair.segment(pair.slave, one.phy)
        moving = audit(pair.master, pair.slave, engine=WritingEngine(segment))
        self.assertEqual(moving.changed_files, [str(segment)])
        self.assertEqual({found.invariant: found.severity.name for found in moving.findings}["CL-TAIL"], "INFO")


class DefectTests(StoreCase):
    def test_every_defect_is_found_and_nothing_else(self) -> None:
        """
        Of each kind and seed: the right verdict, every expected finding, no finding that is neither expected nor
        derived.
        """
        wrong = []
        for seed in SEEDS:
            made = make_store(seed)
            for defect in DEFECTS:
                pair = self.pair(copy.deepcopy(made))
                expected = defect.plant(pair, random.Random(seed))
                wrong += [f"{defect.name}, seed {seed}: {text}" for text in self.audit_all(pair, defect, expected)]
        self.assertEqual(wrong, [], "\n".join(wrong))

    def audit_all(self, pair: Pair, defect: Defect, expected: list[Expected]) -> list[str]:
        large, small = (audit(pair.master, pair.slave, chunk=16384, split=size) for size in (64 << 20, 16384))
        wrong = judge(large, defect, expected)
        if as_json(large) != as_json(small):
            wrong.append("small splits give other findings")
        return wrong

    def test_several_defects_at_once(self) -> None:
        """Defects in different records do not hide each other."""
        names = ("body_bit_of_the_slave", "magic_of_the_slave", "queue_offset_of_the_slave", "body_bit_of_the_master")
        chosen = [defect for defect in DEFECTS if defect.name in names]
        for seed in range(6):
            pair = self.pair(make_store(seed))
            chance = random.Random(seed)
            expected = [one for defect in chosen for one in defect.plant(pair, chance)]
            found = causes(audit(pair.master, pair.slave))
            places = {one.phy_from for one in found if one.invariant == "RP-DIFF"}
            self.assertEqual({one.phy for one in expected} - places, set(), f"seed {seed}")

    def test_many_differing_chunks_are_not_all_looked_into(self) -> None:
        """A bound keeps the cost of a ruined slave small, and the findings say what was not looked into."""
        pair = self.pair(make_store(6, 700))
        for one in pair.made.stored:
            if one.body_size:
                pair.flip(pair.slave, one.body_at)
        result = audit(pair.master, pair.slave, chunk=1024)
        self.assertEqual((result.verdict.value, result.exit_status), ("DIFFERENT", 2))
        self.assertLessEqual(result.coverage.chunks_drilled, MAX_DRILLS + 2)
        self.assertIn("were looked into", " ".join(found.detail for found in result.findings))

    def test_the_judgement_can_fail(self) -> None:
        """A difference that the suite does not expect, or expects elsewhere, fails it."""
        pair = self.pair(make_store(5))
        defect = next(defect for defect in DEFECTS if defect.name == "body_bit_of_the_slave")
        (expected,) = defect.plant(pair, random.Random(1))
        result = audit(pair.master, pair.slave)
        self.assertEqual(judge(result, defect, [expected]), [])
        self.assertEqual(len(judge(result, defect, [])), 1)
        elsewhere = Expected(invariant="RP-DIFF", phy=1)
        self.assertEqual(len(judge(result, defect, [expected, elsewhere])), 1)


def judge(result: Result, defect: Defect, expected: list[Expected]) -> list[str]:
    """Return what is wrong with a result: another verdict, something missed, something unexplained."""
    wrong = []
    if (result.verdict.value, result.exit_status) != (defect.verdict, defect.exit_status):
        wrong.append(f"verdict {result.verdict.value}, exit status {result.exit_status}")
    left = causes(result)
    for one in expected:
        matching = [found for found in left if matches(one, found)]
        if matching:
            left.remove(matching[0])
        else:
            wrong.append(f"missed {one}")
    return wrong + [f"unexplained {found}" for found in left]


def matches(expected: Expected, found: Finding) -> bool:
    if expected.invariant != found.invariant:
        return False
    pairs = [
        (expected.phy, found.phy_from),
        (expected.blame, found.blame),
        (expected.replica, found.replica),
        (expected.field, found.field),
        (expected.count, found.count),
        (expected.topic, found.topic),
        (expected.queue_offset, found.queue_offset_from),
    ]
    message = expected.message
    if message is not None:
        pairs += [(message.topic, found.topic), (message.queue_id, found.queue_id)]
        pairs += [(message.queue_offset, found.queue_offset_from), (message.message_id, found.sample_msg_ids[0])]
        if expected.field in ("topic", "queueOffset"):
            del pairs[5:]
    return all(wanted is None or wanted == got for wanted, got in pairs)
