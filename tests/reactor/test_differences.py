"""Tests of the comparison of reactors: it must see a difference when there is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.reactor import __main__
from tests.reactor.differences import FAILED, MAY_DIFFER, PASSED, SKIPPED, differences, permitted
from tests.reactor.suites import LEAN, STOCK

MODULE = "twisted.internet.test.test_fdset"

#: the lean reactor's first draft, which did not ask for the descriptor again before it read
PLANTED = """
from twisted.internet import epollreactor, posixbase

class EPollReactor(epollreactor.EPollReactor):
    def _doReadOrWrite(self, selectable, fd, event):
        selectable.doRead()
"""


class DifferencesTests(SynchronousTestCase):
    def test_equal(self) -> None:
        """The same outcomes are no difference, failures included."""
        outcomes = {"a": PASSED, "b": FAILED, "c": SKIPPED}
        self.assertEqual(differences(outcomes, dict(outcomes)), [])

    def test_different(self) -> None:
        """Every other outcome is one, in both directions, and so is a test that one reactor did not run."""
        stock = {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": PASSED}
        lean = {"a": FAILED, "b": PASSED, "c": PASSED, "e": PASSED}
        self.assertEqual([line.partition(":")[0] for line in differences(stock, lean)], ["a", "b", "c", "d", "e"])

    def test_permitted(self) -> None:
        """A permitted difference is reported with its reason, as long as both reactors ran the test."""
        name = f"some.module.{next(iter(MAY_DIFFER))}"
        self.assertEqual(differences({name: PASSED}, {name: FAILED}), [])
        (line,) = permitted({name: PASSED}, {name: FAILED})
        self.assertIn("callWithLogger", line)
        self.assertEqual(len(differences({name: PASSED}, {})), 1)


class LastingTests(SynchronousTestCase):
    def test_run_again(self) -> None:
        """A test that differs once in three runs depends on the machine; one that differs each time on the reactor."""
        runs: list[tuple[str, ...]] = []

        def run(reactor: str, modules: tuple[str, ...], folder: Path) -> dict[str, str]:
            runs.append(modules)
            slow = reactor == LEAN and len(runs) < 3
            return {"m.flaky": FAILED if slow else PASSED, "m.broken": FAILED if reactor == LEAN else PASSED}

        self.patch(__main__, "run", run)
        folder = Path(self.mktemp())
        folder.mkdir()
        first = differences({"m.flaky": PASSED, "m.broken": PASSED}, {"m.flaky": FAILED, "m.broken": FAILED})
        self.assertEqual(len(first), 2)
        (line,) = __main__.lasting(first, ("l", "m"), folder)
        self.assertIn("m.broken: passed with the stock reactor, failed with rmq-lean", line)
        self.assertEqual(runs, [("m",)] * 4)


class PlantedTests(SynchronousTestCase):
    def outcomes(self, reactor: str) -> dict[str, str]:
        folder = Path(self.mktemp())
        folder.mkdir()
        (folder / "planted.py").write_text(PLANTED)
        results = folder.absolute() / "results.json"
        program = (
            f"import sys; sys.path[:0] = [{str(folder.absolute())!r}, {str(Path(__file__).parents[2])!r}]\n"
            f"from tests.reactor import suites; suites.main({reactor!r}, {str(results)!r}, {MODULE!r}, timeout_s=2)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
        self.assertTrue(results.exists(), done.stdout + done.stderr)
        outcomes: dict[str, str] = json.loads(results.read_text())
        return outcomes

    def test_planted(self) -> None:
        """A reactor with a fault of the kind that a lean one could have is told from the stock one."""
        stock = self.outcomes(STOCK)
        self.assertIn(PASSED, stock.values())
        planted = differences(stock, self.outcomes("planted.EPollReactor"))
        self.assertTrue(any("test_negativeOneFileDescriptor" in line for line in planted), planted)
