"""Clusters of the real code through simulated disasters; and the checkers, which must be able to fail."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

import pytest
from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.clock import Periodic
from rmq.runtime.disk.files import DiskError
from rmq.sim.__main__ import main
from rmq.sim.cluster import Cluster
from rmq.sim.scenario import Outcome, Run
from rmq.sim.world import World
from tests.needs import imports
from tests.sim.support import ASYNC_FLUSH, SYNC_MASTER, options


class ClusterCase(SynchronousTestCase):
    def simulate(self, seed: int, plan: str, *, chaos_s: float) -> Outcome:
        """Do a run; what the roles log of failing disks is not this test's."""
        outcome = Run(seed, plan=plan, chaos_s=chaos_s).go()
        self.flushLoggedErrors(DiskError)
        return outcome


class PlanTests(ClusterCase):
    """A short run of each plan; a hundred longer ones, and the bugs that seeds found, are in tests/campaign."""

    def hold(self, plan: str, seed: int) -> None:
        outcome = self.simulate(seed, plan, chaos_s=10)
        self.assertEqual(outcome.violations, [], "\n".join(outcome.lines()))

    @pytest.mark.campaign  # left to trial
    def test_quiet(self) -> None:
        """Nothing goes wrong where nothing happens."""
        self.hold("quiet", 1)

    def test_kills(self) -> None:
        """Killed and restarted processes lose nothing that they acknowledged."""
        self.hold("kills", 3)

    def test_power(self) -> None:
        """Power failures take what was not synced, and nothing else."""
        self.hold("power", 4)

    def test_network(self) -> None:
        """Partitions, slow ways and resets delay, and lose nothing."""
        self.hold("network", 2)

    @pytest.mark.campaign  # left to trial
    def test_all(self) -> None:
        """Everything at once, with disks that are full, slow or broken, and clocks that jump."""
        self.hold("all", 11)


class DeterminismTests(ClusterCase):
    def test_same_seed_same_trace(self) -> None:
        """The same seed gives the same run, event for event, in a new process with other hash values."""
        other = self.simulate(5, "all", chaos_s=5).digest
        digest = self.simulate(3, "all", chaos_s=5).digest
        self.assertNotEqual(digest, other)
        environment = {**os.environ, "PYTHONHASHSEED": "4711", **imports()}
        command = [sys.executable, "-m", "rmq.sim", "--seed", "3", "--seconds", "5"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.assertIn(digest, ended.stdout, ended.stderr)


class ClockTests(SynchronousTestCase):
    def test_no_two_machines_agree(self) -> None:
        """In every seed all wall clocks differ, by milliseconds or by an hour; in some they drift or are corrected."""
        spreads, drifts, jumps = [], 0, 0
        for seed in range(60):
            cluster = Cluster(World(seed), options(SYNC_MASTER, ASYNC_FLUSH, slaves=1))
            nodes = [*cluster.nodes, cluster.observer]
            shown = [node.seconds() for node in nodes]
            self.assertEqual(len(set(shown)), len(nodes))
            spreads.append(max(shown) - min(shown))
            cluster.world.run_for(100)
            moved = [node.seconds() - before for node, before in zip(nodes, shown, strict=True)]
            drifts += any(0.01 < abs(seconds - 100) <= 1 for seconds in moved)
            jumps += any(abs(seconds - 100) > 1.001 for seconds in moved)
        self.assertLess(min(spreads), 0.1)
        self.assertGreater(max(spreads), 1800)
        self.assertTrue(5 < drifts < 50 and 5 < jumps < 50, (drifts, jumps))


class CommandTests(ClusterCase):
    def test_run_from_the_command_line(self) -> None:
        """`python -m rmq.sim` prints what was drawn, what happened and the digest; its status is 0 when all is well."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["--seed", "3", "--seconds", "5", "--plan", "kills"])
        self.assertEqual(status, 0)
        for word in ("seed 3, plan kills", "broker-a", "kill -9 of", "acknowledged (0)", "good after", "trace "):
            self.assertIn(word, text.getvalue())

    def test_campaign(self) -> None:
        """`--seeds A-B` runs them all with one line for each bad one, says how to see it again, and counts."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["--seeds", "3-4", "--seconds", "1", "--plan", "quiet"])
        self.assertEqual(status, 0)
        self.assertRegex(text.getvalue(), r"end: 2 seeds, 0 with violations.* all traces [0-9a-f]{64}\n")
        self.patch(Periodic, "stop", lambda self: succeed(None))
        with contextlib.redirect_stdout(text):
            status = main(["--hours", "0.0001", "--seed", "3", "--seconds", "1", "--plan", "quiet"])
        self.assertEqual(status, 1)
        self.assertIn("BAD --seed 3 --plan quiet --seconds 1: ", text.getvalue())

    def test_nothing_to_do(self) -> None:
        """Without seed, seeds or hours, and with a range that is none, the command says what it needs."""
        for arguments in ([], ["--seeds", "5"], ["--seeds", "9-3"]):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
                main(arguments)
            self.assertIn("seed", said.getvalue())

    def test_a_bad_run(self) -> None:
        """Violations are printed, and the exit status is 1."""
        self.patch(Periodic, "stop", lambda self: succeed(None))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["--seed", "3", "--seconds", "1", "--plan", "quiet"])
        self.assertEqual(status, 1)
        self.assertIn("VIOLATION: ", text.getvalue())
