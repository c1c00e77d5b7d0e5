"""A hundred simulated disasters, five hundred with ``RMQ_CAMPAIGN=1``, and those in which a bug was found once."""

from __future__ import annotations

from collections.abc import Iterable

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.scenario import CAMPAIGN_S, Run, plan_of
from tests.needs import IS_CAMPAIGN

#: Seeds that found a bug: (seed, plan, seconds) and what it was. A change of the simulator may lead a seed elsewhere;
#: the bugs have tests of their own beside the code that they were in.
FOUND: dict[tuple[int, str, float], str] = {
    (100107, "power", 30): "a slave whose master had lost a record that it held went on in the middle of another one",
    (100171, "power", 30): "holes of a master reached its slave, which then cut away what it had promised",
    (100013, "power", 30): "a slave with another history went on as soon as its master's log had grown beyond it",
    (100223, "power", 30): "an empty slave acknowledged with its first report what lay before its copy",
    (100344, "power", 30): "a slave kept a record whose properties its power failure had changed",
    (20665, "power", 20): "a slave whose doubts began with the first byte of the log compared nothing",
    (26, "kills", 20): "sends that one turn of the reactor took were answered out of the order of the log",
    (400361, "power", 20): "one byte that no CRC covers was lost at the end of a slave's sector",
    (104995, "power", 20): "a unit that lost its offset, in the sector before, was taken for one of an older message",
    (1, "power", 20): "a queue whose torn first file named no messages that were left hid all that came",
    (205729, "power", 20): "files of a queue that came back with a power failure led to copies of a message",
    (400005, "network", 20): "a slave with forceRegister=false never learned its master",
    (400013, "network", 20): "a slave with forceRegister=false never learned its master",
    (400019, "power", 20): "a slave with forceRegister=false never learned its master",
    (400039, "quiet", 20): "a slave with forceRegister=false never learned its master",
    (33, "power", 20): "the end of a check of transactions asked slaves out of the order of the log",
    (406276, "all", 20): "a late slave whose first write failed did not stop cleanly",
}


class SeedTests(SynchronousTestCase):
    """Through what each plan does to brokers, NameServers, clients, network and disks, every promise holds."""

    def hold(self, runs: Iterable[tuple[int, str, float]]) -> None:
        for seed, plan, chaos_s in runs:
            outcome = Run(seed, plan=plan, chaos_s=chaos_s).go()
            self.flushLoggedErrors(DiskError)
            self.assertEqual(outcome.violations, [], "\n".join(outcome.lines()))

    def test_seeds(self) -> None:
        """All plans in turn, as a campaign runs them."""
        self.hold((seed, plan_of(seed), CAMPAIGN_S) for seed in range(1, 501 if IS_CAMPAIGN else 101))

    def test_seeds_that_found_bugs(self) -> None:
        """Each is sound now."""
        self.hold(FOUND)
