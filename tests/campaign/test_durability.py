"""
What docs/durability.md says, row by row: one accident after another in each flush mode and role, and what survives.

Every run is a whole simulated cluster; `rmq.sim.checkers` judges it with the same table as code (`Losses`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError
from rmq.sim.checkers import holds
from rmq.sim.cluster import ROOT as DATA
from rmq.sim.cluster import GroupOptions, LogImage, Member, Options
from rmq.sim.faults import start_again
from rmq.sim.history import Sent
from rmq.sim.scenario import Outcome, Run
from rmq.store import layout
from rmq.store.config import BrokerRole, FlushDiskType
from rmq.wire.record import decode_record

ROOT = Path(__file__).resolve().parent.parent.parent
ASYNC_MASTER, SYNC_MASTER = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER
ASYNC_FLUSH, SYNC_FLUSH = FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH
MODES = [(flush, role) for flush in (ASYNC_FLUSH, SYNC_FLUSH) for role in (ASYNC_MASTER, SYNC_MASTER)]
SEEDS = (1, 2)


def options(role: BrokerRole, flush: FlushDiskType, **keys: str) -> Options:
    """Return a master with one slave, on disks slow enough that much is not synced at any moment."""
    group = GroupOptions(name="broker-a", role=role, flush=flush, slaves=1, slave_flush=flush)
    store = {
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "1000",
        "maxHashSlotNum": "16",
        "maxIndexNum": "1000",
        "flushConsumeQueueThoroughInterval": "3000",
    }
    return Options(
        name_servers=1,
        groups=(group,),
        sync_s=(0.05, 0.2),
        store={**store, **keys},
        topics=("orders",),
        topics_made_first=True,
        queues=2,
        producers=1,
        consumers=1,
        send_every_s=0.05,
        body_bytes=400,
        batched=0.1,
    )


def promise(row: str, flush: FlushDiskType, role: BrokerRole) -> str:
    """Return what docs/durability.md says of an accident in one mode."""
    lines = (ROOT / "docs" / "durability.md").read_text("utf-8").splitlines()
    table = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| ")]
    (head,) = [cells for cells in table if cells[1] == "accident"]
    (found,) = [cells for cells in table if cells[1] == row]
    return found[head.index(f"{flush.name}, {role.name}")]


def ends(image: LogImage, sent: Sent) -> int:
    """Return where the record of a message that a log holds ends."""
    assert sent.ack is not None
    return sent.ack.phy_offset + decode_record(image.read(sent.ack.phy_offset, len(sent.body) + 4096)).size


class Accident(Run):
    """A run whose chaos is one accident in the middle of its sends."""

    def __init__(self, seed: int, options: Options, hurt: Callable[[Accident], None], kinds: list[str]) -> None:
        super().__init__(seed, plan="quiet", options=options)
        self._hurt = hurt
        #: what the brokers may complain about
        self.kinds = kinds

    @property
    def master(self) -> Member:
        return self.cluster.masters[0]

    @property
    def slave(self) -> Member:
        return self.cluster.slaves_of(self.master)[0]

    def chaos(self) -> None:
        self.world.run_for(8.0)
        self._hurt(self)
        self.world.run_for(3.0)
        for member in self.cluster.members:
            start_again(member.node)
        self.world.run_for(3.0)


class ModeTests(SynchronousTestCase):
    def suffer(
        self, hurt: Callable[[Accident], None], *kinds: str, row: str = "", **keys: str
    ) -> Iterator[tuple[Accident, Outcome]]:
        """Yield a run of each mode and seed in which nothing that was promised, in a ``row`` of the page, was lost."""
        for flush, role in MODES:
            for seed in SEEDS:
                run = Accident(seed, options(role, flush, **keys), hurt, list(kinds))
                outcome = self.sound(run)
                if row and "but" not in (cell := promise(row, flush, role)):
                    at_risk = [sent for sent in self.acknowledged(run) if run.losses.may_take(sent)]
                    self.assertEqual(at_risk, [], f"{row}: {cell}")
                yield run, outcome

    def sound(self, run: Accident) -> Outcome:
        outcome = run.go()
        self.flushLoggedErrors(DiskError)
        self.assertEqual(outcome.violations, [], "\n".join(outcome.lines()))
        self.assertGreater(outcome.counts["acknowledged (0)"], 50)
        return outcome

    def at_risk(self, outcome: Outcome) -> int:
        """Return how many acknowledged messages the accident was allowed to take."""
        return outcome.counts.get("acknowledged and at risk in a power failure", 0)

    def test_master_killed(self) -> None:
        """kill -9 of the master takes nothing, in no mode: what was answered was written."""
        for _, outcome in self.suffer(lambda run: run.master.node.kill(), row="master killed (-9)"):
            self.assertEqual(self.at_risk(outcome), 0)

    def test_master_loses_power(self) -> None:
        """SYNC_FLUSH loses nothing; ASYNC_FLUSH may lose its last moments, which SYNC_MASTER's slave has."""
        risks: dict[FlushDiskType, int] = {ASYNC_FLUSH: 0, SYNC_FLUSH: 0}
        for run, outcome in self.suffer(lambda run: run.master.node.crash(), row="master loses power"):
            durable = [sent for sent in run.history.acked if run.losses.is_durable(sent)]
            self.assertFalse([sent for sent in durable if run.losses.may_take(sent)])
            risks[run.options.groups[0].flush] += self.at_risk(outcome)
        self.assertGreater(risks[ASYNC_FLUSH], 0, "the accident endangered nothing")

    def test_slave_killed(self) -> None:
        """kill -9 of a slave takes nothing from its master, nor from what it has acknowledged itself."""
        for _, outcome in self.suffer(lambda run: run.slave.node.kill(), row="slave killed"):
            self.assertEqual(self.at_risk(outcome), 0)

    def test_slave_loses_power(self) -> None:
        """A slave gets again from its master what it lost."""
        for _, outcome in self.suffer(lambda run: run.slave.node.crash(), row="slave loses power"):
            self.assertEqual(self.at_risk(outcome), 0)

    def test_slaves_disk_lost(self) -> None:
        """A slave with an empty disk begins with its master's last file; the master has everything."""

        def hurt(run: Accident) -> None:
            run.slave.node.crash()
            run.slave.node.disk.replace()

        for _, outcome in self.suffer(hurt, row="slave's disk lost"):
            self.assertEqual(self.at_risk(outcome), 0)

    def test_both_lose_power(self) -> None:
        """SYNC_FLUSH of the master is enough."""

        def hurt(run: Accident) -> None:
            run.slave.node.crash()
            run.master.node.crash()

        for run, _ in self.suffer(hurt, row="both lose power"):
            durable = [sent for sent in run.history.acked if run.losses.is_durable(sent)]
            self.assertFalse([sent for sent in durable if run.losses.may_take(sent)])

    def test_masters_disk_lost(self) -> None:
        """What a SYNC_MASTER answered with OK is in its slave's log, in both flush modes; ASYNC_MASTER's may not be."""
        missing = {ASYNC_MASTER: 0, SYNC_MASTER: 0}
        for flush, role in MODES:
            for seed in SEEDS:
                run = Accident(seed, options(role, flush), lambda run: None, [])
                run.warm_up()
                run.world.run_for(5.0)
                # Slow ways: the master is gone while the slave still waits for what it was sent.
                run.cluster.net.clog(run.master.node, run.slave.node, 0.3)
                run.world.run_for(5.0)
                run.master.node.crash()
                missing[role] += self.missing_on_slave(run)
        self.assertEqual(missing[SYNC_MASTER], 0)
        self.assertGreater(missing[ASYNC_MASTER], 0, "the accident endangered nothing")

    def test_both_lose_power_and_masters_disk_is_lost(self) -> None:
        """What the slave had synced is in its log, or what lies behind its last checkpoint in `cut` beside it."""
        missing = 0
        for flush, role in MODES:
            for seed in SEEDS:
                run = Accident(seed, options(role, flush), lambda run: None, [])
                run.warm_up()
                run.world.run_for(10.0)
                before = LogImage(run.slave.node).keep()
                synced = run.slave.broker.store.flushed_offset
                run.master.node.crash()
                run.slave.node.crash()
                run.world.run_for(1.0)
                start_again(run.slave.node)
                after = LogImage(run.slave.node)
                had = [sent for sent in self.acknowledged(run) if holds(before, sent)]
                lost = [sent for sent in had if not holds(after, sent)]
                cut = self.saved(run.slave)
                gone = [sent for sent in lost if ends(before, sent) <= synced and sent.body not in cut]
                self.assertEqual(gone, [], f"{flush}, {role}, {seed}")
                missing += len(lost)
        self.assertGreater(missing, 0, "the accident endangered nothing")

    def saved(self, member: Member) -> bytes:
        """Return what a recovery has cut from the log of a machine and kept."""
        disk, folder = member.node.disk, layout.join(DATA, layout.CUT_DIR)
        names = disk.list_dir(folder) if disk.exists(folder) else []
        return b"".join(disk.read_whole(layout.join(folder, name)) for name in names)

    def missing_on_slave(self, run: Accident) -> int:
        image = LogImage(run.slave.node)
        return sum(not holds(image, sent) for sent in self.acknowledged(run))

    def acknowledged(self, run: Accident) -> list[Sent]:
        acked = [sent for sent in run.history.acked if sent.waits and sent.ack is not None and sent.ack.code == 0]
        self.assertGreater(len(acked), 50)
        return acked

    def test_acknowledged_after_the_slaves_sync(self) -> None:
        """With haAckAfterFlush both may lose power, and the slave alone has all that was answered with OK."""
        for flush in (ASYNC_FLUSH, SYNC_FLUSH):
            for seed in SEEDS:
                run = Accident(seed, options(SYNC_MASTER, flush, haAckAfterFlush="true"), lambda run: None, [])
                run.warm_up()
                run.world.run_for(10.0)
                run.master.node.crash()
                run.slave.node.crash()
                run.world.run_for(1.0)
                start_again(run.slave.node)
                self.assertEqual(self.missing_on_slave(run), 0)

    def test_flushed_only(self) -> None:
        """With haTransferFlushedOnly a slave never has what its master may lose, and never parts from it."""
        for run, outcome in self.suffer(lambda run: run.master.node.crash(), haTransferFlushedOnly="true"):
            self.assertEqual([text for text in outcome.remarks if "diverged" in text], [])
            self.assertEqual([each.ahead for each in run.losses.of_master("broker-a") if each.ahead], [])

    def test_parted(self) -> None:
        """A slave that holds what its master lost in a power failure is refused, until an operator decides."""
        parted = 0
        for _, outcome in self.suffer(lambda run: run.master.node.crash()):
            parted += any("has diverged from its master" in text for text in outcome.remarks)
        self.assertGreater(parted, 0)

    def test_failed_sync(self) -> None:
        """A master whose disk fails in a sync ends by itself, and keeps every promise that it had made."""

        def hurt(run: Accident) -> None:
            run.master.node.disk.fail_syncs = 1

        for run, _ in self.suffer(hurt, "failed sync", row="an fsync of the master fails (EIO)"):
            self.assertGreater(run.master.node.incarnation, 1)

    def test_full_disk(self) -> None:
        """A master without room refuses messages and loses none."""

        def hurt(run: Accident) -> None:
            run.master.node.disk.fill()
            run.world.run_for(15.0)
            run.master.node.disk.recover()

        refused = 0
        row = "master's disk full, with `cleanFileForciblyEnable=false` (by default see below)"
        for run, _ in self.suffer(hurt, "full disk", row=row):
            refused += sum(count for why, count in run.history.refusals.items() if why.startswith("code "))
        self.assertGreater(refused, 0)


class DocumentTests(SynchronousTestCase):
    def test_every_cell_promises_something(self) -> None:
        """Each accident of the page says of each mode what is kept: all, or all but what, or what a slave has."""
        lines = (
            (ROOT / "docs" / "durability.md")
            .read_text("utf-8")
            .split("| accident |")[1]
            .split("\n\n")[0]
            .splitlines()[2:]
        )
        self.assertEqual(len(lines), 10)
        for line in lines:
            for flush, role in MODES:
                cell = promise(line.split("|")[1].strip(), flush, role)
                self.assertRegex(cell, r"^(all($|[;:,]| but the last moments)|what the slave had (got|synced))", line)

    def test_every_row_names_tests_that_exist(self) -> None:
        """Each row of the tables in docs/durability.md names its tests, and they are there."""
        text = (ROOT / "docs" / "durability.md").read_text("utf-8")
        rows = [line for line in text.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]
        tables = [row for row in rows if "::" in row]
        self.assertGreaterEqual(len(tables), 13)
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
            self.assertIn(f"def {name}(", (ROOT / path).read_text("utf-8"), f"{path}::{name}")
        named = set(re.findall(r"test_durability\.py::(\w+)`", text))
        self.assertEqual(named, {name for name in vars(ModeTests) if name.startswith("test_")})
        for table in re.findall(r"\| shown by \|\n\|[-|]+\n((?:\|.*\n)+)", text):
            for row in table.splitlines():
                self.assertIn("::", row, "a row without a test")
