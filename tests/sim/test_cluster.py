"""Clusters of the real code through simulated disasters; and the checkers, which must be able to fail."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.offsets import ConsumerOffsetTable
from rmq.ha.master import MasterSession, MasterState
from rmq.ha.session import Action, Close, Send
from rmq.ha.slave import SlaveSession
from rmq.ha.stream import encode_report
from rmq.namesrv.routes import LiveBroker, RouteTable
from rmq.runtime.clock import Periodic
from rmq.runtime.disk import DiskError
from rmq.sim.__main__ import main
from rmq.sim.cluster import GroupOptions, Options
from rmq.sim.scenario import Outcome, Run
from rmq.store.completion import Completion
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.store.dispatch import Dispatcher
from rmq.store.messages import PutResult, PutStatus
from rmq.store.recovery import Recovery

ROOT = Path(__file__).resolve().parent.parent.parent
#: simulated seconds with faults
CHAOS_S = 30.0


def options(role: BrokerRole, flush: FlushDiskType, *, slaves: int, **changes: Any) -> Options:
    """Return a small cluster; ``changes`` are other options than its own."""
    group = GroupOptions(name="broker-a", role=role, flush=flush, slaves=slaves, slave_flush=FlushDiskType.ASYNC_FLUSH)
    plain = Options(
        name_servers=1,
        groups=(group,),
        sync_s=(0.0005, 0.005),
        store={
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "1000",
            "maxHashSlotNum": "16",
            "maxIndexNum": "100",
        },
        topics=("orders",),
        topics_made_first=True,
        queues=2,
        producers=1,
        consumers=1,
        send_every_s=0.2,
        body_bytes=100,
        batched=0.0,
    )
    return attrs.evolve(plain, **changes)


class ClusterCase(SynchronousTestCase):
    def simulate(self, seed: int, plan: str, *, chaos_s: float = CHAOS_S, options: Options | None = None) -> Outcome:
        """Do a run; what the roles log of failing disks is not this test's."""
        outcome = Run(seed, plan=plan, chaos_s=chaos_s, options=options).go()
        self.flushLoggedErrors(DiskError)
        return outcome


class SeedTests(ClusterCase):
    """
    Through what each plan does to brokers, NameServers and clients, every promise holds.

    Seeds that once found a bug stay here for good.
    """

    def hold(self, plan: str, seeds: Iterable[int]) -> None:
        for seed in seeds:
            outcome = self.simulate(seed, plan)
            self.assertEqual(outcome.violations, [], "\n".join(outcome.lines()))

    def test_quiet(self) -> None:
        """Nothing goes wrong where nothing happens."""
        self.hold("quiet", [1, 2])

    def test_kills(self) -> None:
        """Killed and restarted processes lose nothing that they acknowledged."""
        self.hold("kills", [3, 9, 13])

    def test_power(self) -> None:
        """Power failures take what was not synced, and nothing else."""
        self.hold("power", [4, 29, 33, 1014])

    def test_network(self) -> None:
        """Partitions, slow ways and resets delay, and lose nothing."""
        self.hold("network", [2, 5])

    def test_all(self) -> None:
        """Everything at once, with disks that are full, slow or broken, and clocks that jump."""
        self.hold("all", [11, 18, 21])


class DeterminismTests(ClusterCase):
    def test_same_seed_same_trace(self) -> None:
        """The same seed gives the same run, event for event, also in another process with other hash values."""
        digest = self.simulate(7, "all", chaos_s=10).digest
        self.assertEqual(self.simulate(7, "all", chaos_s=10).digest, digest)
        self.assertNotEqual(self.simulate(8, "all", chaos_s=10).digest, digest)
        environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "rmq.sim", "--seed", "7", "--seconds", "10"]
        ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertIn(digest, ended.stdout, ended.stderr)


class PlantedBugTests(ClusterCase):
    """Variants of the product with one bug each: a checker that does not find it is worth nothing."""

    def find(self, plan: str, seeds: Iterable[int], words: str, options: Options, chaos_s: float = 60) -> None:
        """Some seed must show the bug as a violation that says ``words``, and the sound product must pass that seed."""
        found: list[str] = []
        for seed in seeds:
            outcome = self.simulate(seed, plan, options=options, chaos_s=chaos_s)
            self.flushLoggedErrors()
            found = outcome.violations
            if any(words in text for text in found):
                for patch in self.patches:
                    patch.restore()
                self.assertEqual(self.simulate(seed, plan, options=options, chaos_s=chaos_s).violations, [])
                return
        self.fail(f"no seed has shown the bug; the last one: {found}")

    def setUp(self) -> None:
        self.patches: list[Any] = []

    def plant(self, owner: type, name: str, variant: Callable[..., Any]) -> None:
        self.patches.append(self.patch(owner, name, variant))

    def test_acknowledged_before_the_sync(self) -> None:
        """A SYNC_FLUSH broker that does not wait for its disk loses acknowledged messages in a power failure."""

        def wait_for_disk(self: Completion, result: PutResult) -> Deferred[PutStatus]:
            return succeed(PutStatus.PUT_OK)

        self.plant(Completion, "_wait_for_disk", wait_for_disk)
        slow = options(BrokerRole.ASYNC_MASTER, FlushDiskType.SYNC_FLUSH, slaves=0, sync_s=(0.1, 0.4))
        self.find("power", range(10), "was acknowledged (0) at broker-a", slow)

    def test_shown_before_it_is_durable(self) -> None:
        """Consumers of a SYNC_FLUSH broker that see messages too early see numbers used twice, or miss messages."""
        self.plant(Dispatcher, "remember", Dispatcher.message)
        slow = options(BrokerRole.ASYNC_MASTER, FlushDiskType.SYNC_FLUSH, slaves=0, sync_s=(0.1, 0.4))
        self.find("power", range(10), "number ('broker-a', 'orders'", slow)

    def test_first_report_unbounded(self) -> None:
        """A master that believes a slave's first report, whatever it says, acknowledges what no slave has."""
        bounded = MasterSession._refusal

        def refusal(self: MasterSession, report: int, end: int) -> Close | None:
            return None if self.state is MasterState.WAIT_FIRST and report > end else bounded(self, report, end)

        self.plant(MasterSession, "_refusal", refusal)
        lazy = options(BrokerRole.SYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=1, send_every_s=0.5)
        self.find("power", [14, 23, 29, *range(60)], "as replicated", lazy)

    def test_slave_acknowledges_what_it_has_not(self) -> None:
        """A slave that reports the end of a frame when it has the head of it is found out at the first such message."""
        honest = SlaveSession._report

        def report(self: SlaveSession, now_ms: int) -> list[Action]:
            ahead = self.end_offset + self._frames.body_left
            return [Send((encode_report(ahead),)) for _ in honest(self, now_ms)]

        self.plant(SlaveSession, "_report", report)
        long = options(BrokerRole.SYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=1, body_bytes=4000, send_every_s=0.1)
        self.find("quiet", range(10), "as replicated", long)

    def test_offsets_unchecked(self) -> None:
        """A slave that takes bytes for wherever its log ends differs from a master that begins with a later file."""

        def accept(self: SlaveSession, phy_offset: int, size: int) -> None:
            self.frames += 1

        self.plant(SlaveSession, "_refusal", lambda self, phy_offset, size: None)
        self.plant(SlaveSession, "_accept", accept)
        long = options(BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=1, body_bytes=8000, send_every_s=0.1)
        self.find("quiet", range(10), "differs from its master", long, chaos_s=10)

    def test_numbers_given_twice(self) -> None:
        """A broker that goes back by one number after a start gives that number twice."""
        run = Recovery.run

        def one_less(self: Recovery) -> None:
            run(self)
            for queue in self.queues:
                queue.next = max(0, queue.next - 1)

        self.plant(Recovery, "run", one_less)
        self.find(
            "kills",
            range(10),
            "number ('broker-a'",
            options(BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=0),
        )

    def test_offsets_ahead_of_consumers(self) -> None:
        """A broker that stores an offset beyond the committed one loses a message for the next consumer."""
        commit = ConsumerOffsetTable.commit

        def ahead(self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int) -> None:
            commit(self, group, topic, queue_id, offset + 1)

        self.plant(ConsumerOffsetTable, "commit", ahead)
        self.find(
            "kills", range(10), "never consumed", options(BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=0)
        )

    def test_silent_brokers_stay_listed(self) -> None:
        """A NameServer that forgets nobody lists a broker that is gone."""

        def nobody(self: RouteTable, *_: object) -> list[LiveBroker]:
            return []

        self.plant(RouteTable, "expire", nobody)
        self.plant(RouteTable, "channel_closed", nobody)
        pair = options(BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=1)
        self.find("kills", range(10), "alive are", pair, chaos_s=10)

    def test_timers_left_behind(self) -> None:
        """A loop that goes on after the stop is a leak."""
        self.plant(Periodic, "stop", lambda self: succeed(None))
        alone = options(BrokerRole.ASYNC_MASTER, FlushDiskType.ASYNC_FLUSH, slaves=0)
        self.find("quiet", [1], "left a timer", alone, chaos_s=5)


class CommandTests(ClusterCase):
    def test_run_from_the_command_line(self) -> None:
        """`python -m rmq.sim` prints what was drawn, what happened and the digest; its status is 0 when all is well."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["--seed", "3", "--seconds", "5", "--plan", "kills"])
        self.assertEqual(status, 0)
        for word in ("seed 3, plan kills", "broker-a", "kill -9 of", "acknowledged (0)", "good after", "trace "):
            self.assertIn(word, text.getvalue())

    def test_a_bad_run(self) -> None:
        """Violations are printed, and the exit status is 1."""
        self.patch(Periodic, "stop", lambda self: succeed(None))
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["--seed", "3", "--seconds", "1", "--plan", "quiet"])
        self.assertEqual(status, 1)
        self.assertIn("VIOLATION: ", text.getvalue())
