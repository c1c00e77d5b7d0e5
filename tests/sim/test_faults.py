"""Faults and plans of them."""

from __future__ import annotations

from collections.abc import Callable

from twisted.application.service import Service
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError, DiskFull
from rmq.runtime.platform import Platform
from rmq.sim import faults
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import EPOCH_S, World


class FaultCase(SynchronousTestCase):
    def begin(self, seed: int) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.nodes = [Node(self.world, self.net, name) for name in "abc"]
        for node in self.nodes:
            node.start(self.build)

    def setUp(self) -> None:
        self.begin(1)

    def build(self, platform: Platform) -> Service:
        return Service()


class FaultTests(FaultCase):
    def test_network_faults(self) -> None:
        """Partitions block and clear what they name."""
        one, other, _ = self.nodes
        cases: list[tuple[faults.Fault, tuple[bool, bool]]] = [
            (faults.half_partition(one, other), (True, False)),
            (faults.partition(one, other), (True, True)),
        ]
        for fault, ways in cases:
            fault.apply()
            found = [self.net.blocked(a.address, b.address) for a, b in ((one, other), (other, one))]
            self.assertEqual(tuple(found), ways)
            fault.undo()
            self.assertFalse(self.net.blocked(one.address, other.address))
        clog = faults.clog(one, other, 5.0)
        clog.apply()
        self.assertGreater(self.net.latency_s(one.address, other.address), 5)
        clog.undo()
        self.assertLess(self.net.latency_s(one.address, other.address), 1)

    def test_ends_of_processes(self) -> None:
        """Kills and power failures end the process and start it again; one that finds it gone does no harm."""
        node = self.nodes[0]
        for fault in (faults.kill(node), faults.power_failure(node)):
            fault.apply()
            self.assertIsNone(node.process)
            fault.apply()
            fault.undo()
            fault.undo()
            self.assertIsNotNone(node.process)

    def test_disk_faults(self) -> None:
        """Disks get slow, full and broken, and whole again."""
        node = self.nodes[0]
        file = node.disk.create("/a", 5)
        cases: list[tuple[faults.Fault, Callable[[], object]]] = [
            (faults.slow_disk(node, 9.0), lambda: self.assertEqual(node.disk.sync_takes_s(), 9.0)),
            (faults.full_disk(node), lambda: self.assertRaises(DiskFull, node.disk.create, "/b", 1)),
            (faults.failed_sync(node), lambda: self.assertRaises(DiskError, file.sync_now)),
        ]
        for fault, check in cases:
            fault.apply()
            check()
            fault.undo()
        node.disk.create("/b", 1).sync_now()
        self.assertLess(node.disk.sync_takes_s(), 1)

    def test_new_disk(self) -> None:
        """A machine with a new disk comes back with nothing, and who watches is told."""
        node = self.nodes[0]
        node.disk.write_atomic("/a", b"something")
        told: list[str] = []
        node.disk.on_replace = lambda: told.append("replaced")
        fault = faults.new_disk(node)
        fault.apply()
        fault.undo()
        self.assertIsNotNone(node.process)
        self.assertEqual((node.disk.list_dir("/"), told), ([], ["replaced"]))

    def test_ends_in_a_sync(self) -> None:
        """The process ends before its sync does; a fault that is over ends nothing any more."""
        node = self.nodes[0]
        for fault in (faults.kill_in_sync(node), faults.power_failure_in_sync(node)):
            for over in (False, True):
                file = node.disk.create(f"/{fault.name} {over}", 5)
                node.disk.sync_s = (1.0, 1.0)
                fault.apply()
                synced: list[object] = []
                file.sync().addBoth(synced.append)
                if over:
                    fault.undo()
                self.world.run_for(2.0)
                self.assertEqual((node.process is None, len(synced)), (not over, int(over)), fault.name)
                fault.undo()
                self.assertIsNotNone(node.process)

    def test_clock_steps_of_minutes(self) -> None:
        """Half of the steps that a plan draws go beyond two minutes, the silence that costs a client its place."""
        steps = [faults.clock_step_s(drawn_s) for drawn_s in (-29.5, -2.5, 0.5, 7.5, 28.5)]
        self.assertEqual(steps, [-590.0, -2.5, 0.5, 150.0, 28.5])

    def test_clock_step(self) -> None:
        """A clock jumps and jumps back."""
        fault = faults.clock_step(self.nodes[0], 30.0)
        fault.apply()
        self.assertEqual(self.nodes[0].seconds(), EPOCH_S + 30)
        fault.undo()
        self.assertEqual(self.nodes[0].seconds(), EPOCH_S)

    def test_every_kind_can_be_drawn(self) -> None:
        """Each kind draws a fault with a name that says what and where, and can be applied and undone."""
        for draw in faults.KINDS.values():
            fault = draw(self.world, self.nodes)
            self.assertRegex(fault.name, r"\b[abc]\b")
            fault.apply()
            self.world.run_for(1)
            fault.undo()
        faults.undo_all(self.nodes)
        self.assertTrue(all(node.process for node in self.nodes))


class PlanTests(FaultCase):
    def test_plan(self) -> None:
        """A plan is drawn from the seed, printed in order, and over in time."""
        plan = faults.draw_plan(self.world, self.nodes, within_s=60, count=20)
        self.assertEqual(len(plan), 20)
        self.assertEqual(sorted(planned.at_s for planned in plan), [planned.at_s for planned in plan])
        self.assertTrue(all(planned.at_s + planned.for_s <= 60 for planned in plan))
        self.begin(1)
        again = faults.draw_plan(self.world, self.nodes, within_s=60, count=20)
        self.assertEqual([str(planned) for planned in again], [str(planned) for planned in plan])

    def test_chosen_kinds(self) -> None:
        """A plan can be limited to some kinds."""
        plan = faults.draw_plan(self.world, self.nodes, within_s=60, count=10, kinds=["kill"])
        self.assertTrue(all(planned.fault.name.startswith("kill") for planned in plan))

    def test_everything_is_whole_afterwards(self) -> None:
        """When a plan is over and undone, everybody runs and reaches everybody; the same seed gives the same trace."""
        digests = []
        for seed in (1, 1, 2):
            self.begin(seed)
            faults.follow(self.world, faults.draw_plan(self.world, self.nodes, within_s=60, count=30))
            self.world.run_for(61)
            faults.undo_all(self.nodes)
            self.assertTrue(all(node.process for node in self.nodes))
            ways = [(a, b) for a in self.nodes for b in self.nodes]
            self.assertFalse(any(self.net.blocked(a.address, b.address) for a, b in ways))
            self.assertEqual(self.world.failures, [])
            digests.append(self.world.trace.digest)
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])
