"""Pairs that are written to while they are read: what is only further on is no fault; damage is found all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rmq_audit.driver.audit import Options, Result, check
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker.queues import UNITS
from rmq_audit.worker.records import record_at
from rmq_audit.worker.scan import SCAN
from rmq_audit.worker.work import Work

from rmq.store import layout
from tests.spark.cases import FolderCase
from tests.spark.support import audit
from tests.spark.synthetic import MadeStore, Pair, Stored, make_store


class MovingEngine(LocalEngine):
    """An engine in whose time the brokers go on: ``before`` and ``after`` run around the first scan, or other work."""

    def __init__(
        self,
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        around: Work[Any, Any] = SCAN,
    ) -> None:
        super().__init__(1)
        self._before, self._after, self._around = before, after, around
        self._seen = False

    def run(self, work: Work[Any, Any], tasks: Sequence[Any]) -> list[Any]:
        first = work is self._around and not self._seen
        if first:
            self._seen = True
            self._before()
        answers = super().run(work, tasks)
        if first:
            self._after()
        return answers


class MotionTests(FolderCase):
    def setUp(self) -> None:
        made = make_store(4, 300)
        self.pair = Pair(self.folder, made)
        self.whole: list[tuple[Path, bytes]] = []
        self.late = made.stored[-6]
        self.middle = next(one for one in made.stored[100:] if one.body_size > 200)

    def shorten(self, root: Path, one: Stored) -> None:
        """Make a log end at a message for now; ``catch_up`` brings back what was there, as a writer would."""
        self.whole += [(path, path.read_bytes()) for path in sorted(root.glob("commitlog/*"))]
        self.whole += [(path, path.read_bytes()) for path in sorted(root.glob("consumequeue/*/*/*"))]
        self.pair.cut(root, one.phy)

    def catch_up(self) -> None:
        for path, data in self.whole:
            state = os.stat(path) if path.exists() else None
            path.write_bytes(data)
            if state is not None:  # a memory map leaves the time alone
                os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    def kinds(self, result: Result) -> list[tuple[str, str]]:
        return [(one.invariant, one.severity.name) for one in result.findings]

    def test_a_slave_that_is_read_later_is_not_ahead(self) -> None:
        """The master's end was seen early; by now its files hold what the slave has more. Exit status 0."""
        self.shorten(self.pair.master, self.late)
        result = audit(self.pair.master, self.pair.slave, engine=MovingEngine(after=self.catch_up))
        self.assertEqual((result.verdict.value, result.exit_status), ("CONSISTENT", 0))
        self.assertEqual(self.kinds(result), [("RP-AHEAD", "INFO")])
        self.assertIn("now has the same bytes", result.findings[0].detail)

    def test_a_slave_that_is_ahead_stays_ahead(self) -> None:
        """Whether the master does not grow, or grows by other messages."""
        self.shorten(self.pair.master, self.late)
        self.assertEqual(audit(self.pair.master, self.pair.slave).verdict.value, "AHEAD")

        def other() -> None:
            self.catch_up()
            self.pair.flip(self.pair.master, self.pair.made.stored[-2].body_at)

        moved = audit(self.pair.master, self.pair.slave, engine=MovingEngine(after=other))
        self.assertEqual((moved.verdict.value, moved.exit_status), ("AHEAD", 2))

    def test_dumps_are_taken_one_after_the_other(self) -> None:
        """A slave's dump that was begun after the master's may hold more; one that was begun before may not."""
        self.pair.cut(self.pair.master, self.late.phy)
        for side, at, end in ((self.pair.master, 5000, self.late.phy), (self.pair.slave, 6000, self.pair.made.end)):
            manifest = {"formatVersion": 1, "maxPhyOffset": end, "takenAtStart": at}
            (side / "manifest.json").write_text(json.dumps(manifest))
        result = audit(self.pair.master, self.pair.slave)
        self.assertEqual((result.exit_status, self.kinds(result)), (0, [("RP-AHEAD", "INFO")]))
        text = (self.pair.slave / "manifest.json").read_text().replace("6000", "4000")
        (self.pair.slave / "manifest.json").write_text(text)
        self.assertEqual(audit(self.pair.master, self.pair.slave).verdict.value, "AHEAD")

    def test_a_live_slave_is_read_after_the_dump_of_its_master(self) -> None:
        """Records that the slave has more are right where they were stored after the dump was begun, else lost."""
        self.pair.cut(self.pair.master, self.late.phy)
        raw = self.pair.read(self.pair.slave, self.late.phy, self.late.size)
        following = record_at(raw, 0, self.late.phy)
        assert following is not None
        stored = following.number("storeTimestamp")
        for at, expected in ((stored, (0, [("RP-AHEAD", "INFO")])), (stored + 1, (2, [("RP-AHEAD", "ERROR")]))):
            manifest = {"formatVersion": 1, "maxPhyOffset": self.late.phy, "takenAtStart": at}
            (self.pair.master / "manifest.json").write_text(json.dumps(manifest))
            result = audit(self.pair.master, self.pair.slave)
            self.assertEqual((result.exit_status, self.kinds(result)), expected)

    def test_a_record_that_was_read_while_it_was_written(self) -> None:
        """What looked damaged in the middle of a moving log, and is whole at a second look, is not reported."""
        broken = self.middle.body_at + 50

        def flip() -> None:
            self.pair.flip(self.pair.slave, broken)

        result = audit(self.pair.master, self.pair.slave, engine=MovingEngine(before=flip, after=flip))
        self.assertEqual((result.verdict.value, result.exit_status), ("CONSISTENT", 0))
        self.assertEqual(self.kinds(result), [])

    def test_a_unit_that_was_read_before_it_was_written(self) -> None:
        """A queue that lacked a unit while the store was written, and has it at a second look, is not reported."""
        path, at = self.pair.unit_of(self.pair.master, self.middle)
        whole = path.read_bytes()

        def write() -> None:
            path.write_bytes(whole)

        path.write_bytes(whole[:at] + bytes(layout.CQ_UNIT_BYTES) + whole[at + layout.CQ_UNIT_BYTES :])
        self.assertEqual(check(str(self.pair.master), LocalEngine(1), Options()).exit_status, 2)
        result = check(str(self.pair.master), MovingEngine(around=UNITS, after=write), Options())
        self.assertEqual((result.exit_status, self.kinds(result)), (0, []))

    def test_damage_in_a_store_that_is_checked_while_it_is_written(self) -> None:
        """A second look sees it again."""
        self.pair.flip(self.pair.master, self.middle.body_at)
        segment = self.pair.segment(self.pair.master, 0)
        engine = MovingEngine(after=lambda: os.utime(segment, ns=(1, 1)))
        result = check(str(self.pair.master), engine, Options())
        self.assertEqual((result.exit_status, self.kinds(result)), (2, [("CL-CRC", "ERROR")]))

    def test_damage_in_a_moving_log_is_found(self) -> None:
        """A second look sees it again, with the lag that the first look saw."""
        self.shorten(self.pair.slave, self.late)
        self.pair.flip(self.pair.slave, self.middle.body_at)
        self.whole = [(path, data) for path, data in self.whole if "commitlog" not in str(path)]
        segment = self.pair.segment(self.pair.slave, 0)
        result = audit(
            self.pair.master, self.pair.slave, engine=MovingEngine(after=lambda: os.utime(segment, ns=(1, 1)))
        )
        self.assertEqual((result.verdict.value, result.exit_status), ("DIFFERENT", 2))
        self.assertIn(("RP-DIFF", "ERROR"), self.kinds(result))
        self.assertIn(("RP-LAG", "WARN"), self.kinds(result))

    def test_a_growing_log_is_noticed_by_its_bytes(self) -> None:
        """A map leaves modification times alone; a record after the end that was seen gives the writer away."""
        made: MadeStore = self.pair.made
        last = made.stored[-1]
        half = self.pair.read(self.pair.slave, last.phy, last.size)[:40]
        self.shorten(self.pair.slave, last)
        self.pair.write(self.pair.slave, last.phy, half)
        result = audit(self.pair.master, self.pair.slave, engine=MovingEngine(after=self.catch_up), lag=1 << 20)
        self.assertEqual(result.exit_status, 0)
        self.assertTrue(result.changed_files)
