"""A pair that fails over by itself, on simulated machines."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

import attrs

from rmq.namesrv.service import NamesrvService
from rmq.runtime.clock import moment
from rmq.sim.node import Node
from rmq.store import layout
from rmq.store.epochs import load_epochs
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import RegisterBrokerHeader
from rmq.wire.codes import ResponseCode
from tests.sim.failover import PORT, ROOT, FaultsOfSeeds, Pair, Sent


class FailoverTests(TestCase):
    def whole(self, **options: Any) -> Pair:
        pair = Pair(1, **options)
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        return pair

    def send(self, pair: Pair, count: int = 1, within_s: float = 3.0) -> list[Sent]:
        """Send messages and wait for their answers."""
        sent = [pair.send(pair.master()) for _ in range(count)]
        pair.world.run_for(within_s)
        return sent

    def codes(self, sent: list[Sent]) -> set[int | None]:
        return {one.code for one in sent}

    def test_one_becomes_master_and_the_other_joins(self) -> None:
        pair = self.whole()
        group = pair.group()
        assert group is not None
        self.assertEqual(sorted(group.members), [1, 2])
        self.assertEqual(self.codes(self.send(pair, 10)), {0})
        pair.check()

    def test_a_killed_master_is_replaced(self) -> None:
        pair = self.whole()
        sent = self.send(pair, 20)
        first = pair.sole_master()
        first.kill()
        began_s = pair.world.now_s
        pair.world.run_until(lambda: pair.master() not in (None, first), 20, "another master")
        self.assertLess(pair.world.now_s - began_s, 1.0)
        sent += self.send(pair, 20)
        self.assertEqual(self.codes(sent), {0})
        first.start()
        pair.rest()
        sent += self.send(pair, 20)
        self.assertEqual(self.codes(sent), {0})
        pair.check()

    def test_a_master_without_power_is_replaced_after_its_timeout(self) -> None:
        pair = self.whole()
        self.send(pair, 20)
        first = pair.sole_master()
        first.crash()
        began_s = pair.world.now_s
        pair.world.run_until(lambda: pair.master() not in (None, first), 30, "another master")
        self.assertLess(pair.world.now_s - began_s, 16.0)
        self.assertEqual(self.codes(self.send(pair, 20)), {0})
        pair.rest()
        pair.check()

    def test_what_only_the_old_master_has_is_cut_and_saved(self) -> None:
        pair = self.whole()
        self.send(pair, 5)
        first = pair.sole_master()
        other = self.other_than(pair, first)
        pair.net.partition(first, other)
        pair.net.partition(first, pair.controller)
        unsafe = [pair.send(first) for _ in range(3)]
        pair.world.run_until(lambda: pair.broker_of(first) is None, 40, "the end of its mastership")
        self.assertNotIn(0, self.codes(unsafe))
        pair.world.run_until(lambda: pair.master() is other, 30, "another master")
        self.assertEqual(self.codes(self.send(pair, 5)), {0})
        pair.rest()
        self.assertTrue(first.disk.list_dir(layout.join(ROOT, layout.CUT_DIR)))
        pair.check()

    def test_a_master_that_was_halted_does_not_take_the_route_back(self) -> None:
        """It registers again before it asks the controller: the NameServer knows that a newer one is master."""
        pair = self.whole()
        self.send(pair, 2)
        first = pair.sole_master()
        old = pair.broker_of(first)
        assert old is not None
        other = self.other_than(pair, first)
        pair.net.partition(first, pair.controller)
        pair.net.partition(first, other)
        pair.world.run_until(lambda: pair.master() is other, 30, "another master")
        pair.world.run_for(1)
        namesrv = pair.controller.service
        assert isinstance(namesrv, NamesrvService)
        terms = attrs.evolve(old.registration._terms, broker_addr=f"{first.address}:{PORT}")
        version = old._registered_topics().data_version
        self.assertEqual(version.state_version, 1)
        namesrv.routes.register_broker(
            RegisterBrokerHeader(
                broker_name=terms.broker_name,
                broker_addr=terms.broker_addr,
                cluster_name=terms.cluster_name,
                ha_server_addr=terms.ha_server_addr,
                broker_id=0,
            ),
            RegisterBrokerBody(topic_config_serialize_wrapper=old._registered_topics()),
            channel=object(),
            at=moment(namesrv.clock),
        )
        group = namesrv.routes.topology.group("pair")
        assert group is not None
        self.assertEqual(group.broker_addrs, {0: f"{other.address}:{PORT}"})
        pair.rest()
        pair.check()

    def test_a_lost_slave_leaves_the_set_and_sends_go_on(self) -> None:
        pair = self.whole()
        master = pair.master()
        other = self.other_than(pair, master)
        other.kill()
        pair.world.run_for(3)
        self.assertEqual(self.codes(self.send(pair, 5)), {0})
        other.start()
        pair.rest()
        pair.check()

    def test_alone_in_the_set_no_other_becomes_master(self) -> None:
        """The slave lacks what was acknowledged without it."""
        pair = self.whole()
        master = pair.sole_master()
        other = self.other_than(pair, master)
        other.kill()
        pair.world.run_for(3)
        self.send(pair, 5)
        master.crash()
        other.start()
        pair.world.run_for(60)
        self.assertIsNone(pair.master())
        pair.rest()
        pair.check()

    def test_without_the_controller_the_pair_works_on(self) -> None:
        pair = self.whole()
        pair.controller.kill()
        pair.world.run_for(60)
        self.assertEqual(self.codes(self.send(pair, 5)), {0})
        pair.controller.start()
        pair.rest()
        pair.check()

    def test_without_the_controller_no_slave_leaves(self) -> None:
        """The controller may have counted it: a send is not answered with SEND_OK before it is back."""
        pair = self.whole()
        master = pair.master()
        other = self.other_than(pair, master)
        pair.controller.kill()
        other.kill()
        sent = [pair.send(node) for node in pair.brokers if node.process is not None]
        pair.world.run_for(3)
        self.assertEqual(self.codes(sent), {ResponseCode.SLAVE_NOT_AVAILABLE})
        pair.rest()
        pair.check()

    def other_than(self, pair: Pair, node: Node | None) -> Node:
        return next(other for other in pair.brokers if other is not node)

    def test_a_slave_joins_when_it_has_what_was_acknowledged_without_it(self) -> None:
        """It lags by less than a step of the master, and the set must not have it before it has everything."""
        pair = self.whole()
        master = pair.sole_master()
        other = self.other_than(pair, master)
        other.kill()
        pair.world.run_for(3)
        pair.net.clog(master, other, 0.8)
        other.start()
        for _ in range(300):
            pair.send(master)
            pair.world.run_for(0.05)
            pair.look()
        self.assertEqual(pair.violations, [])
        self.assertTrue(pair.is_whole())
        pair.net.heal()
        pair.rest()
        pair.check()

    def perhaps_counted(self) -> tuple[Pair, Node, Node]:
        """Return a pair whose controller could not sync its folder when the slave came back, with master and slave."""
        pair = self.whole()
        self.send(pair, 2)
        master = pair.sole_master()
        other = self.other_than(pair, master)
        other.kill()
        pair.world.run_for(3)
        pair.controller.disk.sync_fails = lambda path: path == "/ns/controller"
        other.start()
        pair.world.run_for(5)
        return pair, master, other

    def test_a_master_waits_for_a_slave_that_the_controller_may_have_counted(self) -> None:
        """The controller could not sync its folder: after its next start its file may be the old or the new one."""
        pair, master, other = self.perhaps_counted()
        pair.net.partition(master, other)
        sent = self.send(pair, 5)
        master.crash()
        pair.controller.kill()
        pair.controller.disk.recover()
        pair.controller.start()
        pair.world.run_for(30)
        self.assertNotIn(0, self.codes(sent))
        pair.rest()
        pair.check()

    def test_a_slave_that_the_controller_may_have_counted_can_be_given_up(self) -> None:
        """It died meanwhile: a new epoch makes the request void, and sends go on."""
        pair, _, other = self.perhaps_counted()
        other.kill()
        pair.world.run_for(5)
        pair.controller.disk.recover()
        pair.world.run_for(10)
        self.assertEqual(self.codes(self.send(pair, 5)), {0})
        pair.rest()
        pair.check()

    def test_what_a_slave_acknowledged_before_it_lost_power_does_not_count(self) -> None:
        """The master does not know yet that the connection is dead: it must not let the slave join by it."""
        pair = self.whole()
        self.send(pair, 5)
        master = pair.sole_master()
        other = self.other_than(pair, master)
        other.crash()
        pair.net.partition(master, other)
        other.start()
        left = False
        for _ in range(40):
            pair.world.run_for(0.25)
            group = pair.group()
            assert group is not None
            self.assertFalse(left and len(group.sync_state_set) > 1, pair.world.now_s)
            left = left or len(group.sync_state_set) == 1
        self.assertTrue(left)
        pair.rest()
        pair.check()

    def test_a_dead_broker_is_not_elected(self) -> None:
        """All lose power at once: each of the set may become master when it is back, not one of them only."""
        for after_s, later_s in ((0.7, 0.5), (0.9, 0.25)):
            with self.subTest(after_s=after_s, later_s=later_s):
                pair = self.whole(flush="SYNC_FLUSH")
                self.send(pair, 2)
                first = pair.master()
                other = self.other_than(pair, first)
                other.kill()
                pair.world.run_for(3.5)
                other.start()
                pair.controller.kill()
                pair.world.run_for(after_s)
                pair.controller.start()  # it looks between the heartbeats of the two
                pair.rest()
                pair.world.run_for(15 + later_s)
                for node in pair.brokers:
                    node.crash()
                pair.world.run_for(20)
                group = pair.group()
                assert group is not None
                self.assertEqual((group.master_id, len(group.sync_state_set)), (None, 2))
                other.start()
                pair.world.run_for(20)
                self.assertIs(pair.master(), other)

    def test_a_slave_that_the_controller_does_not_hear_keeps_no_other_in_the_set(self) -> None:
        pair = Pair(2, brokers=3)
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        master = pair.master()
        silent, dead = (node for node in pair.brokers if node is not master)
        pair.net.partition(silent, pair.controller)
        pair.world.run_for(15)
        dead.kill()
        pair.world.run_for(3)
        self.assertEqual(self.codes(self.send(pair, 5)), {0})
        pair.rest()
        pair.check()

    def test_a_stop_during_a_change_of_roles_leaves_nothing(self) -> None:
        """SIGTERM at any moment of it; then the group comes back."""
        for after_ms in (0, 2, 4, 6, 9, 12, 20):
            with self.subTest(after_ms=after_ms):
                pair = self.whole(flush="SYNC_FLUSH")
                sent = self.send(pair, 5)
                first = pair.master()
                other = self.other_than(pair, first)
                pair.elect(2 if first is pair.brokers[0] else 1)
                pair.world.run_for(0.0005 + after_ms / 1000)
                stopped = [pair.world.settle(node.stop(), 30) for node in (other, first) if node is not None]
                self.assertEqual((len(stopped), other.leaks, first and first.leaks), (2, [], []))
                pair.rest()
                sent += self.send(pair, 5)
                self.assertEqual(self.codes(sent), {0})
                pair.check()

    def test_a_controller_that_has_just_started_waits_for_heartbeats(self) -> None:
        """A master that is silent at that moment stays master."""
        pair = self.whole()
        before, master = pair.group(), pair.master()
        assert before is not None and master is not None
        pair.controller.kill()
        pair.net.partition(master, pair.controller)
        pair.controller.start()
        pair.world.run_for(6)
        pair.net.heal()
        pair.world.run_for(10)
        after = pair.group()
        assert after is not None
        self.assertEqual((after.master_id, after.master_epoch), (before.master_id, before.master_epoch))

    def test_a_new_broker_whose_id_could_not_be_written_applies_for_it_again(self) -> None:
        """The controller's disk refused the write, and its file may have changed all the same: there is one id."""
        pair = Pair(4)
        pair.controller.disk.sync_fails = lambda path: path == "/ns/controller"
        pair.world.run_for(5)
        pair.controller.kill()
        pair.controller.disk.recover()
        pair.controller.start()
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        group = pair.group()
        assert group is not None
        self.assertEqual(sorted(group.members), [1, 2])

    def test_each_log_knows_each_of_its_masters(self) -> None:
        """Also after changes without a start of a process."""
        pair = self.whole()
        for wanted in (2, 1):
            self.send(pair, 3)
            pair.elect(wanted)
            pair.world.run_for(3)
            pair.rest()
        self.send(pair, 3)
        path = layout.join(ROOT, layout.EPOCH_FILE)
        tables = [load_epochs(node.disk, path) for node in pair.brokers]
        self.assertEqual([epoch.number for epoch in tables[0]], [1, 2, 3])
        self.assertEqual(tables[0], tables[1])

    def test_of_two_brokers_with_one_identity_one_ends(self) -> None:
        """A copy of a store has registered: the first one must not be master beside it."""
        pair = Pair(3, brokers=2)
        copy = Node(pair.world, pair.net, "copy")
        pair.world.run_until(pair.is_whole, 60, "a whole group")
        master = pair.sole_master()
        path = layout.join(ROOT, layout.IDENTITY_FILE)
        copy.disk.make_dirs(ROOT)
        copy.disk.write_atomic(path, master.disk.read_whole(path))
        pair.brokers.append(copy)
        copy.start(pair.build_broker)
        pair.world.run_for(20)
        group = pair.group()
        assert group is not None
        ids = [pair.elected(node) for node in pair.masters()]
        self.assertLessEqual(len(ids), 1)

    def test_of_two_slaves_with_one_identity_the_first_ends(self) -> None:
        """Nothing is lost: the copy, which lacks messages, is in the SyncStateSet only when it has them."""
        pair = self.whole()
        master = pair.sole_master()
        slave = self.other_than(pair, master)
        copy = Node(pair.world, pair.net, "copy")
        path = layout.join(ROOT, layout.IDENTITY_FILE)
        copy.disk.make_dirs(ROOT)
        copy.disk.write_atomic(path, slave.disk.read_whole(path))
        self.send(pair, 5)
        pair.brokers.append(copy)
        pair.net.partition(master, copy)
        copy.start(pair.build_broker)
        pair.world.run_for(20)
        self.assertIsNone(slave.process)
        master.crash()
        pair.world.run_for(30)
        self.assertEqual(pair.masters(), [])
        master.start(pair.build_broker)
        pair.net.heal()
        pair.brokers.remove(slave)
        pair.rest()
        pair.check()


class SeedTests(FaultsOfSeeds, TestCase):
    """Some seeds; tests/campaign has others."""

    seeds = range(2)
