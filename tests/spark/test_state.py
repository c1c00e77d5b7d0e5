"""Answers that are remembered between runs: never another finding than without, and only what changed is read."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from rmq_audit.driver.audit import Options, Result, compare
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.engine.state import ANSWERS_FILE, RememberingEngine, State, header
from rmq_audit.worker.location import InputError
from rmq_audit.worker.work import Work
from twisted.trial.unittest import SynchronousTestCase

from tests.spark.support import as_json, no_room_beyond
from tests.spark.synthetic import Pair, make_store

#: nothing in these tests is ever older
BEGIN_NS = 1_700_000_000 * 10**9


def disturb(pair: Pair, chance: random.Random) -> None:
    """Change something of one side: a bit, a page, the length of a file, a whole file, a unit, a consumer offset."""
    root = chance.choice((pair.master, pair.slave))
    one = chance.choice(pair.made.stored)
    logs = sorted((root / "commitlog").iterdir())
    kind = chance.randrange(7)
    if not pair.segment(root, one.phy).exists() or pair.segment(root, one.phy).stat().st_size < 65536:
        kind = 6
    if kind == 0:
        pair.flip(root, one.phy + chance.randrange(one.size))
    elif kind == 1:
        pair.write(root, one.phy - one.phy % 4096, bytes(4096))
    elif kind == 2:
        os.truncate(chance.choice(logs), 30_000)
    elif kind == 3 and len(logs) > 2:
        chance.choice(logs[1:]).unlink()
    elif kind == 4:
        path, at, _ = chance.choice(list(pair.units(root)))
        with open(path, "r+b") as file:
            file.seek(at + chance.randrange(20))
            file.write(b"\x05")
    elif kind == 5:
        pair.write_entry(root, chance.randrange(1, 200), chance.randrange(20), b"\x07")
    else:
        path = root / "config" / "consumerOffset.json"
        path.write_text(path.read_text().replace(":1", ":9", 1))


class CountingEngine(LocalEngine):
    """A local engine that keeps what it was asked to do, and gives up after so many tasks."""

    def __init__(self, give_up_after: int | None = None) -> None:
        super().__init__(1)
        self.asked: list[tuple[str, Any]] = []
        self._left = give_up_after

    def run(self, work: Work[Any, Any], tasks: Sequence[Any]) -> list[Any]:
        for task in tasks:
            if self._left is not None and len(self.asked) >= self._left:
                raise KeyboardInterrupt
            self.asked.append((work.name, task))
        return super().run(work, tasks)


class StateCase(SynchronousTestCase):
    folder: Path

    @pytest.fixture(autouse=True)
    def _take_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.second = 0

    def settle(self, *roots: Path) -> None:
        """Give every file that was written since the last time an old date of its own."""
        self.second += 1
        for root in roots:
            for path in root.rglob("*"):
                if path.is_file() and path.stat().st_mtime_ns > BEGIN_NS + 10**15:
                    os.utime(path, ns=(0, BEGIN_NS + self.second * 10**9))

    def run_with(self, pair: Pair, state: State | None, engine: CountingEngine | None = None) -> Result:
        inner = engine or CountingEngine()
        options = Options(split_bytes=16384, chunk_bytes=2048)
        if state is None:
            return compare(str(pair.master), str(pair.slave), inner, options)
        finished = False
        try:
            result = compare(str(pair.master), str(pair.slave), RememberingEngine(inner, state.open()), options)
            finished = True
        finally:
            state.close(finished=finished)
        return result

    def assert_same(self, one: Result, other: Result, why: str) -> None:
        self.assertEqual((why, as_json(one)), (why, as_json(other)))
        self.assertEqual((one.verdict, one.coverage), (other.verdict, other.coverage), why)


class EqualityTests(StateCase):
    def test_the_same_findings_as_without(self) -> None:
        """Random defects planted one after the other between runs: state and no state never differ."""
        for seed in range(2):
            chance = random.Random(seed)
            pair = Pair(self.folder / str(seed), make_store(seed, 250))
            state = str(self.folder / f"state-{seed}")
            for step in range(6):
                self.settle(pair.master, pair.slave)
                for _ in range(2):
                    remembered = self.run_with(pair, State(state))
                    self.assert_same(remembered, self.run_with(pair, None), f"seed {seed}, step {step}")
                disturb(pair, chance)

    def test_only_what_changed_is_read(self) -> None:
        """Nothing at all is read of a pair at rest; of a changed one the file with the change, and what follows."""
        pair = Pair(self.folder, make_store(5))
        self.settle(pair.master, pair.slave)
        first, second, third = CountingEngine(), CountingEngine(), CountingEngine()
        self.run_with(pair, State(str(self.folder / "state")), first)
        state = State(str(self.folder / "state"))
        self.run_with(pair, state, second)
        self.assertGreater(len(first.asked), 10)
        self.assertEqual(second.asked, [])
        self.assertEqual((state.use.tasks_done, state.use.tasks_reused), (0, len(first.asked)))
        one = next(one for one in pair.made.stored if one.body_size > 50 and one.phy > 70_000)
        pair.flip(pair.slave, one.body_at)
        self.settle(pair.slave)
        result = self.run_with(pair, State(str(self.folder / "state")), third)
        self.assertEqual(result.verdict.value, "DIFFERENT")
        changed = str(pair.segment(pair.slave, one.phy))
        self.assertEqual({task.file.path for name, task in third.asked if name == "scan"}, {changed})

    def test_files_that_may_still_move_are_not_remembered(self) -> None:
        """What was written in the last two minutes is read again."""
        pair = Pair(self.folder, make_store(5, 100))
        self.run_with(pair, State(str(self.folder / "state")))
        again = CountingEngine()
        self.run_with(pair, State(str(self.folder / "state")), again)
        self.assertIn("scan", {name for name, _ in again.asked})

    def test_an_interrupted_run_goes_on(self) -> None:
        """What was answered before the interruption is not asked again."""
        pair = Pair(self.folder, make_store(5))
        self.settle(pair.master, pair.slave)
        whole = CountingEngine()
        expected = self.run_with(pair, None, whole)
        scans = sum(name == "scan" for name, _ in whole.asked)
        broken = CountingEngine(give_up_after=scans)
        self.assertRaises(KeyboardInterrupt, self.run_with, pair, State(str(self.folder / "state")), broken)
        rest = CountingEngine()
        result = self.run_with(pair, State(str(self.folder / "state")), rest)
        self.assertEqual(len(rest.asked), len(whole.asked) - scans)
        self.assert_same(result, expected, "interrupted")


class DistrustTests(StateCase):
    def damaged(self, data: bytes) -> tuple[State, CountingEngine]:
        """Run a pair, replace its state, run it again; the result must not care."""
        pair = Pair(self.folder, make_store(6, 120))
        self.settle(pair.master, pair.slave)
        expected = self.run_with(pair, State(str(self.folder / "state")))
        path = self.folder / "state" / ANSWERS_FILE
        path.write_bytes(data or self.change(path.read_bytes()))
        state, engine = State(str(self.folder / "state")), CountingEngine()
        self.assert_same(self.run_with(pair, state, engine), expected, "damaged")
        self.assertGreater(len(engine.asked), 0)
        self.assertEqual(len(state.use.ignored), 1, state.use.ignored)
        self.assertIn(str(path), state.use.ignored[0])
        intact = CountingEngine()
        self.run_with(pair, State(str(self.folder / "state")), intact)
        self.assertEqual(intact.asked, [])
        return state, engine

    def change(self, data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes((data[middle] ^ 1,)) + data[middle + 1 :]

    def test_one_bit(self) -> None:
        """A damaged entry and all behind it are dropped and named; the next run has them again."""
        state, _ = self.damaged(b"")
        self.assertIn("are damaged", state.use.ignored[0])

    def test_what_is_none_of_ours(self) -> None:
        """A file of something else is refused and left as it is; a header that was not written to its end is ours."""
        path = self.folder / ANSWERS_FILE
        for text in (b"#!/bin/sh\nexit 0\n", b"rmq\n"):
            path.write_bytes(text)
            error = self.assertRaises(InputError, State(str(self.folder)).open)
            self.assertIn(f"{path} is not a state", str(error))
            self.assertEqual(path.read_bytes(), text)
        for part in (b"", header()[:5], header()[:-1]):
            path.write_bytes(part)
            State(str(self.folder)).open().close(finished=False)
            self.assertEqual(path.read_bytes(), header())

    def test_no_room(self) -> None:
        """A state that cannot be written costs a line and what it would have remembered, never the verdict."""
        pair = Pair(self.folder, make_store(6, 120))
        self.settle(pair.master, pair.slave)
        expected = self.run_with(pair, None)
        folder, err = str(self.folder / "state"), io.StringIO()
        with redirect_stderr(err), no_room_beyond(200):
            self.assert_same(self.run_with(pair, State(folder)), expected, "no room for answers")
        self.assertEqual(err.getvalue().count("state not saved"), 1, err.getvalue())
        (self.folder / "state" / f"{ANSWERS_FILE}.tmp").mkdir()
        with redirect_stderr(err):
            self.assert_same(self.run_with(pair, State(folder)), expected, "no new file")
        self.assertEqual(err.getvalue().count("state not saved"), 2, err.getvalue())
        last = CountingEngine()
        with redirect_stderr(err):
            self.run_with(pair, State(folder), last)
        self.assertEqual(last.asked, [])

    def test_another_version(self) -> None:
        """Answers of other code than this are not its own."""
        state, _ = self.damaged(header().replace(header()[-10:-1], b"0" * 9))
        self.assertIn("another version", state.use.ignored[0])

    def test_one_audit_at_a_time(self) -> None:
        """A folder in use is refused in one line; a path that cannot be a folder too."""
        state = State(str(self.folder / "state")).open()
        error = self.assertRaises(InputError, State(str(self.folder / "state")).open)
        self.assertIn("another audit", str(error))
        state.close(finished=False)
        State(str(self.folder / "state")).open().close(finished=True)
        (self.folder / "file").write_text("x")
        self.assertIn("file", str(self.assertRaises(InputError, State(str(self.folder / "file")).open)))
