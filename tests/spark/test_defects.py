"""Every kind of planted defect is found and blamed, nothing else is said, and where splits end makes no difference."""

from __future__ import annotations

import html
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from rmq_audit.driver.audit import Options, Result, check
from rmq_audit.driver.replicas import MAX_DRILLS
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.report.html import _coverage
from rmq_audit.report.pair import Run, to_json, to_text
from rmq_audit.worker.work import Work

from tests.needs import IS_CAMPAIGN
from tests.spark import campaign
from tests.spark.cases import FolderCase
from tests.spark.corruptor.classes import CLASSES, Expected, Plan, judge, outcome_of
from tests.spark.corruptor.kinds import KINDS
from tests.spark.corruptor.specimen import Specimen
from tests.spark.support import as_json, audit
from tests.spark.synthetic import MadeStore, Pair, make_store, plant_junk_behind_blanks, plant_stale_records


def text_of(result: Result) -> str:
    return to_text(result, Run(run_id="", started_at="", seconds=1, engine="local"))


class StoreCase(FolderCase):
    def pair(self, made: MadeStore) -> Pair:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        return Pair(self.folder, made)


class CleanTests(StoreCase):
    def test_legal_traps_are_silent(self) -> None:
        """
        Stale and forged records in bodies, bodies full of magics, empty bodies, IPv6, V2, halves, junk after BLANKs:
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
        """What a truncation left after the end is mentioned, on whichever side, and compared with nothing."""
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
        held = {unit[0] for _, _, unit in pair.units(pair.slave)}
        one = next(one for one in reversed(pair.made.stored) if one.phy in held)
        pair.write_unit(pair.slave, one, bytes(20))
        self.assertEqual(audit(pair.master, pair.slave).exit_status, 1)
        (pair.slave / "abort").touch()
        result = audit(pair.master, pair.slave)
        self.assertEqual((result.exit_status, [found.invariant for found in result.findings]), (0, ["CQ-BEHIND"]))

    def test_all_queues_are_gone(self) -> None:
        """
        Whether the folder is lost or empty: queues behind the log, each with all its records. Not so where 5.x keeps
        them in RocksDB.
        """
        pair = self.pair(make_store(5, 200))
        counts = {queue: len(units) for queue, units in pair.made.units.items()}
        for make_empty in (False, True):
            shutil.rmtree(pair.slave / "consumequeue", ignore_errors=True)
            if make_empty:
                (pair.slave / "consumequeue").mkdir()
            result = audit(pair.master, pair.slave)
            self.assertEqual((result.exit_status, {one.invariant for one in result.findings}), (1, {"CQ-BEHIND"}))
            found = {(one.topic, one.queue_id): one.count for one in result.findings}
            self.assertEqual(found, counts)
        for path in (pair.slave / "consumequeue" / "CURRENT", pair.slave / "consumequeue_rocksdb" / "CURRENT"):
            path.parent.mkdir(exist_ok=True)
            path.touch()
            self.assertEqual(audit(pair.master, pair.slave).exit_status, 0)
            path.unlink()

    def test_empty_stores(self) -> None:
        """A slave that has nothing yet lags; two stores without a message agree, and say that they hold none."""
        pair = self.pair(make_store(2, 30))
        for log in (pair.slave / "commitlog").iterdir():
            log.unlink()
        shutil.rmtree(pair.slave / "consumequeue")
        result = audit(pair.master, pair.slave)
        self.assertEqual(result.verdict.value, "LAGGING")
        self.assertIn("the slave holds no message, the master 30: there was nothing to compare", text_of(result))
        self.assertIn("the store holds no message", text_of(check(str(pair.slave), LocalEngine(1), Options())))
        for log in (pair.master / "commitlog").iterdir():
            log.unlink()
        shutil.rmtree(pair.master / "consumequeue")
        result = audit(pair.master, pair.slave)
        self.assertEqual((result.verdict.value, result.coverage.master.records), ("CONSISTENT", 0))
        told = "neither store holds a message: there was nothing to compare"
        self.assertIn(told, text_of(result))
        report = to_json(result, Run(run_id="", started_at="", seconds=1, engine="local"))
        self.assertIn(told, report["empty"])
        self.assertIn(told, "".join(_coverage(report)))

    def test_the_report_names_what_no_run_checks(self) -> None:
        """Who reads "consistent" finds what that does not cover, by file and field, in text, JSON and on the page."""
        pair = self.pair(make_store(2, 30))
        result = audit(pair.master, pair.slave)
        report = to_json(result, Run(run_id="", started_at="", seconds=1, engine="local"))
        page = "".join(_coverage(report))
        for one in report["coverage"]["not_checked"]:
            self.assertIn(one["file"], " ".join(text_of(result).split()))
            self.assertIn(html.escape(one["what"]), page)
        self.assertIsNone(report["empty"])


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
    def cases(self, kinds: Sequence[str], seeds: Sequence[int], names: Sequence[str]) -> list[campaign.Case]:
        folder = self.folder / "campaign"
        return [case for kind in kinds for seed in seeds for case in campaign.run(kind, seed, names, folder)]

    @pytest.mark.campaign
    def test_every_class_is_found_and_blamed(self) -> None:
        """
        Of each class of damage, on Apache's stores, ours and made ones in turn: the right verdict, every expected
        finding with the right blame, and no cause besides. The whole campaign is `python -m tests.spark.campaign`.
        """
        kinds, names = list(KINDS), list(CLASSES)
        self.assertGreaterEqual(len(names), 90)
        cases = []
        for index, kind in enumerate(kinds):
            cases += self.cases([kind], [index], names[index :: len(kinds)])
        self.assertEqual([text for case in cases for text in case.wrong], [])
        self.assertLess(sum(case.skipped is not None for case in cases), 6)

    @pytest.mark.campaign
    def test_clean_stores_of_all_kinds_are_silent(self) -> None:
        """
        Apache's, ours and made ones, a slave that joined late, retention, junk after BLANKs: no finding at all.

        The seeds left out are those of the test above, which audits its pairs before it damages them.
        """
        cases = []
        for index, kind in enumerate(KINDS):
            cases += self.cases([kind], [seed for seed in (1, 2, 3) if seed != index], [])
        self.assertEqual([text for case in cases for text in case.wrong], [])
        self.assertEqual({case.kind for case in cases}, set(KINDS))

    @pytest.mark.campaign
    def test_every_class_on_every_kind(self) -> None:
        """The same of each class on each kind of store, with RMQ_CAMPAIGN twice."""
        cases = self.cases(list(KINDS), [4, 9] if IS_CAMPAIGN else [4], list(CLASSES))
        self.assertEqual([text for case in cases for text in case.wrong], [])

    def test_where_splits_end_makes_no_difference(self) -> None:
        """Several defects at once, read in splits of any size: the same findings in every member."""
        for name in ("several_at_once", "stale_page_of_the_slave", "split_brain", "unit_of_another_queue"):
            pair = self.pair(make_store(3))
            CLASSES[name].plant(Specimen(pair.master, pair.slave), random.Random(3))
            whole = as_json(audit(pair.master, pair.slave, chunk=4096))
            for size in (4096, 8192, 65536):
                found = as_json(audit(pair.master, pair.slave, chunk=4096, split=size))
                self.assertEqual((name, size, found), (name, size, whole))

    def test_many_differing_chunks_are_not_all_looked_into(self) -> None:
        """A bound keeps the cost of a ruined slave small, and the findings say what was not looked into."""
        pair = self.pair(make_store(6, 700))
        for one in pair.made.stored:
            if one.body_size:
                pair.flip(pair.slave, one.body_at)
        result = audit(pair.master, pair.slave, chunk=1024)
        self.assertEqual((result.verdict.value, result.exit_status), ("DIFFERENT", 2))
        self.assertLessEqual(result.coverage.chunks_drilled, MAX_DRILLS + 2)
        self.assertIn("were compared byte by byte", " ".join(found.detail for found in result.findings))

    def test_the_judgement_can_fail(self) -> None:
        """A finding that was not expected, was expected elsewhere, or blames another side, is a failure."""
        pair = self.pair(make_store(5))
        one = CLASSES["body_bit_of_the_slave"]
        plan = one.plant(Specimen(pair.master, pair.slave), random.Random(1))
        (expected,) = plan.expected
        result = outcome_of(audit(pair.master, pair.slave))
        self.assertEqual(judge(result, one, plan).wrong, [])
        self.assertEqual(len(judge(result, one, Plan([])).wrong), 1)
        elsewhere = judge(result, one, Plan([expected, Expected(invariant="RP-DIFF", phy=1)]))
        self.assertEqual((elsewhere.found, len(elsewhere.wrong)), (False, 1))
        blamed = judge(result, one, Plan([attrs.evolve(expected, blame="master")]))
        self.assertEqual((blamed.found, blamed.blamed, len(blamed.wrong)), (True, False, 1))
