"""When a slave tells its master what consumers committed at it: never over messages or wishes that are the master's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import offset_push
from rmq.broker.offsets import OwnOffset
from rmq.broker.service import BrokerService, build_broker
from rmq.remoting.responders import NO_REPLY, NoReply, Refuse, Reply, Request, responds_to
from rmq.runtime.platform import Platform
from rmq.sim.node import Node
from rmq.wire.api.offsets import (
    GET_MAX_OFFSET,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    OffsetReply,
    QueryConsumerOffsetHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.pulling import VIEW_MESSAGE_BY_ID, ViewMessageHeader
from rmq.wire.api.replication import GET_ALL_CONSUMER_OFFSET
from rmq.wire.codes import RequestCode, ResponseCode
from tests.broker.harness import PORT as BROKER_PORT
from tests.broker.harness import WALL_AHEAD_S, OneBroker, RawClient, connect, send_ext, setup_of
from tests.broker.test_metadata_sync import MASTER, MemoryQueues, MetadataSyncCase
from tests.broker.test_returning_master import OffsetMaster
from tests.store.support import log_events

T = TypeVar("T", bound=Reply | NoReply)


class BusyMaster(OffsetMaster):
    """A master at which something happens after it has answered a request."""

    def __init__(self, table: dict[str, dict[int, int]]) -> None:
        super().__init__(table)
        self.asked: list[int] = []
        #: done once, behind the answer to this request
        self.afterwards: dict[int, Callable[[], object]] = {}
        self.refused_groups: set[str] = set()
        #: as 4.9 does for a group without an offset while a queue is young
        self.is_young = False
        #: 5.x does it too, unless it is asked not to
        self.is_5x = False
        self.is_broken = False
        self.hangs = False

    def _answered(self, code: int, reply: T) -> T:
        self.asked.append(code)
        self.afterwards.pop(code, lambda: None)()
        return reply

    @responds_to(GET_ALL_CONSUMER_OFFSET)
    def offsets(self, request: Request[None, None]) -> Reply:
        if self.is_broken:
            raise Refuse(ResponseCode.SYSTEM_ERROR, "not now")
        return self._answered(43, super().offsets(request))

    @responds_to(VIEW_MESSAGE_BY_ID)
    def message(self, request: Request[ViewMessageHeader, None]) -> Reply:
        return self._answered(33, super().message(request))

    @responds_to(GET_MAX_OFFSET)
    def newest(self, request: Request[QueueHeader, None]) -> Reply:
        return self._answered(30, super().newest(request))

    @responds_to(QUERY_CONSUMER_OFFSET)
    def position(self, request: Request[QueryConsumerOffsetHeader, None]) -> Reply | NoReply:
        if self.hangs:
            return NO_REPLY
        try:
            reply = super().position(request)
        except Refuse:
            if not self.is_young or (self.is_5x and request.header.set_zero_if_not_found is False):
                raise
            reply = Reply(OffsetReply(offset=0))
        return self._answered(14, reply)

    @responds_to(UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request[UpdateConsumerOffsetHeader, None]) -> Reply:
        if request.header.consumer_group in self.refused_groups:
            raise Refuse(ResponseCode.NO_PERMISSION, "no permission")
        return self._answered(15, super().update(request))


class OffsetPushCase(MetadataSyncCase):
    def returning(self, table: dict[str, dict[int, int]]) -> BusyMaster:
        self.return_master(master := BusyMaster(table))
        return master

    def waiting(self) -> list[OwnOffset]:
        """What the slave has not told; ends the test, for it takes all else of the table away."""
        return self.offsets.follow({})


class AtTheMasterTests(OffsetPushCase):
    """Somebody commits at the master itself, or sets a group back there."""

    def setUp(self) -> None:
        super().setUp()
        self.offsets.merge({"T@G": {0: 100}})
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.there = self.returning({"T@G": {0: 100}})

    def moves(self, offset: int) -> Callable[[], object]:
        return lambda: self.there.table["T@G"].update({0: offset})

    def test_a_commit_between_table_and_offset_stays(self) -> None:
        """A consumer that is back at the master commits while the slave works: its offset stays, here too."""
        self.there.afterwards[43] = self.moves(180)
        self.net.run(24)
        self.assertEqual((self.there.table, self.there.commits), ({"T@G": {0: 180}}, []))
        self.assertEqual(self.offsets.query("G", "T", 0), 180)

    def test_the_same_offset_is_not_told(self) -> None:
        """Who commits just the slave's offset at the master makes the slave's superfluous."""
        self.there.afterwards[33] = self.moves(150)
        self.net.run(14)
        self.assertEqual((self.there.commits, self.waiting()), ([], []))

    def test_a_reset_in_a_round_stays(self) -> None:
        """An operator sets a group back while the slave works: no round undoes it."""
        for code in (43, 33, 30):
            with self.subTest(code=code):
                self.stop_all()
                self.setUp()
                self.there.afterwards[code] = self.moves(20)
                self.net.run(34)
                self.assertEqual((self.there.table, self.there.commits), ({"T@G": {0: 20}}, []))
                self.assertEqual(self.offsets.query("G", "T", 0), 20)

    def test_a_reset_before_a_bad_moment_stays(self) -> None:
        """A reset that was seen is remembered, also when the master cannot be asked for its table next time."""
        self.there.afterwards[43] = self.moves(20)
        self.net.run(4)
        self.there.is_broken = True
        self.net.run(10)
        self.assertIn("consumer offsets", self.sync.failing)
        self.there.is_broken = False
        self.net.run(20)
        self.assertEqual((self.there.table, self.there.commits), ({"T@G": {0: 20}}, []))

    def test_a_reset_while_offsets_wait_stays(self) -> None:
        """An operator sets a group back after the master's return and before replication stands: so it stays."""
        self.agrees = False
        self.net.run(14)
        self.there.table["T@G"][0] = 20
        self.net.run(10)
        self.agrees = True
        self.net.run(30)
        self.assertEqual((self.there.table, self.there.commits), ({"T@G": {0: 20}}, []))
        self.assertEqual(self.offsets.query("G", "T", 0), 20)

    def test_older_offsets_of_another_return_are_no_reset(self) -> None:
        """A master that goes away again and comes back with still older offsets is told all the same."""
        self.agrees = False
        self.net.run(14)
        self.servers.pop().stopService()
        self.net.run(1)
        self.client.stopService()
        self.net.run(10)
        self.client.startService()
        self.there = self.returning({"T@G": {0: 90}})
        self.agrees = True
        self.net.run(20)
        self.assertEqual(self.there.commits, [("T", "G", 0, 150)])

    def test_older_offsets_of_a_master_that_dies_in_a_round(self) -> None:
        """It hangs while it is asked, and is there again, older, before the next round."""
        self.there.hangs = True
        self.net.run(7)
        self.assertIn("consumer offsets", self.sync.failing)
        self.there.hangs = False
        self.moves(90)()
        self.net.run(10)
        self.assertEqual(self.there.commits, [("T", "G", 0, 150)])

    def test_older_offsets_of_another_master(self) -> None:
        """Another master with older offsets has not set anybody back."""
        self.agrees = False
        self.net.run(4)
        self.sync.set_master(None)
        self.moves(90)()
        self.sync.set_master(MASTER)
        self.agrees = True
        self.net.run(10)
        self.assertEqual(self.there.commits, [("T", "G", 0, 150)])

    def test_a_consumer_on_its_way_is_let_go_first(self) -> None:
        """An offset that moves on below the slave's is not overwritten in this round, and is helped on in the next."""
        self.there.afterwards[43] = self.moves(120)
        self.net.run(4)
        self.assertEqual((self.there.table["T@G"][0], self.there.commits), (120, []))
        self.net.run(10)
        self.assertEqual(self.there.commits, [("T", "G", 0, 150)])


class YoungQueueTests(OffsetPushCase):
    def test_zero_of_a_young_queue(self) -> None:
        """4.9 answers 0 for a group that has no offset; that is no offset of somebody's, and the slave's is told."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.offsets.commit_at_slave("H", "T", 0, 0)
        self.offsets.commit_at_slave("H", "Empty", 0, 0)
        events = log_events(self)
        master = self.returning({})
        master.is_young = True
        self.net.run(4)
        self.assertEqual(sorted(master.commits), [("Empty", "H", 0, 0), ("T", "G", 0, 150), ("T", "H", 0, 0)])
        self.assertEqual([event["count"] for event in events if "pushed {count}" in event.get("log_format", "")], [3])

    def test_a_group_that_is_deleted_in_a_round(self) -> None:
        """A 5.x master says whether a group is at 0 or gone: one that an operator deletes there does not come back."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 0}})
        master.is_young = master.is_5x = True
        master.afterwards[43] = master.table.clear
        self.net.run(30)
        self.assertEqual((master.commits, master.table), ([], {}))


class SameMessagesTests(OffsetPushCase):
    """An offset is told only to a master that has the same messages before it."""

    def test_only_while_replication_agrees(self) -> None:
        """Without a replication connection that has got past the comparison the master is asked nothing more."""
        self.agrees = False
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 100}})
        self.net.run(24)
        self.assertEqual(set(master.asked), {43})
        self.assertEqual(self.offsets.query("G", "T", 0), 150)
        self.agrees = True
        self.net.run(10)
        self.assertEqual(master.commits, [("T", "G", 0, 150)])

    def test_replication_that_ends_in_a_round(self) -> None:
        """The connection is lost between two questions: the offset is not sent any more."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({"T@G": {0: 100}})
        master.afterwards[14] = lambda: setattr(self, "agrees", False)
        self.net.run(14)
        self.assertEqual((master.asked.count(14), master.commits), (1, []))
        self.assertEqual(self.waiting(), [OwnOffset("T", "G", 0, 150)])

    def test_another_master_in_a_round(self) -> None:
        """Whoever is not the master any more is told nothing more."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.offsets.commit_at_slave("G", "T", 1, 150)
        master = self.returning({})
        master.afterwards[15] = lambda: self.sync.set_master(None)
        self.net.run(14)
        self.assertEqual(len(master.commits), 1)

    def test_other_messages(self) -> None:
        """A master that lost the last messages, or has others in their place, is not told that they were consumed."""
        for text in ("", "written after the power failure"):
            with self.subTest(text=text):
                self.stop_all()
                self.setUp()
                self.offsets.commit_at_slave("G", "T", 1, 150)
                self.messages.write("T", 0, 10)
                self.offsets.commit_at_slave("G", "T", 0, 210)
                events = log_events(self)
                master = self.returning({})
                if text:
                    master.messages.write("T", 0, 20, text)
                self.net.run(24)
                self.assertEqual(master.commits, [("T", "G", 1, 150)], "what lies before the fork is the same")
                self.assertEqual(self.offsets.query("G", "T", 0), 210)
                why = [event["why"] for event in events if "not pushing" in event.get("log_format", "")]
                self.assertEqual(why, [offset_push.NOT_THE_SAME], "once, not in each of three rounds")

    def test_one_message_proves_all_before_it(self) -> None:
        """The logs are the same up to the last message that was compared; earlier ones are not asked for."""
        for number in range(20):
            self.offsets.commit_at_slave(f"G{number:02}", "T", 3, 150 - number)
        master = self.returning({})
        self.net.run(4)
        self.assertEqual((len(master.commits), master.asked.count(33)), (20, 1))

    def test_each_round_is_proved_anew(self) -> None:
        """What was the same in one round may be lost in the next."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({})
        self.net.run(4)
        self.assertEqual(len(master.commits), 1)
        master.messages.records.clear()
        self.offsets.commit_at_slave("H", "T", 0, 120)
        self.net.run(10)
        self.assertEqual((len(master.commits), master.asked.count(33)), (1, 1))
        self.assertEqual(self.waiting(), [OwnOffset("T", "H", 0, 120)])

    def test_deleted_messages(self) -> None:
        """What was deleted here since is proved by the first message that is left."""
        self.offsets.commit_at_slave("G", "T", 0, 150)
        self.messages.first["T", 0] = 180
        master = self.returning({})
        self.net.run(4)
        self.assertEqual(master.commits, [("T", "G", 0, 150)])

    def test_behind_the_end_of_the_masters_queue(self) -> None:
        """
        A queue that ends before the offset, in a log that has all of this one, is another: its topic was made anew.

        The offset is forgotten, not told once the queue has grown.
        """
        self.offsets.commit_at_slave("G", "T", 0, 150)
        master = self.returning({})
        anew = MemoryQueues()
        anew.records = master.messages.records
        master.messages = anew
        self.net.run(14)
        anew.write("T", 0, 200)
        self.net.run(20)
        self.assertEqual((master.commits, self.waiting()), ([], []))

    def test_behind_the_end_of_the_own_queue(self) -> None:
        """An offset of no message that this slave has is not told, also when it has others there later."""
        self.offsets.commit_at_slave("G", "T", 0, 205)
        master = self.returning({})
        self.net.run(4)
        for messages in (self.messages, master.messages):
            messages.write("T", 0, 20)
        self.net.run(20)
        self.assertEqual((master.commits, self.waiting()), ([], []))

    def test_messages_that_were_cut_from_the_log(self) -> None:
        """
        A slave whose log was cut (rmq.ha.rejoin) starts: what was committed behind the cut is forgotten at once.

        In the first round its queue has been filled up again with the master's messages.
        """
        self.messages.write("T", 0, 10)
        self.offsets.commit_at_slave("G", "T", 0, 210)
        self.offsets.commit_at_slave("G", "T", 1, 150)
        self.persist()
        self.stop_all()
        files = {name: self.disk.read_whole(f"{self.folder}/{name}") for name in self.disk.list_dir(self.folder)}
        self.setUp()
        self.successResultOf(self.sync.stopService())
        for name, data in files.items():
            self.disk.write_atomic(f"{self.folder}/{name}", data)
        self.offsets.load()
        self.offsets.load_own(is_slave=True)
        self.sync = self.new_sync()
        self.sync.startService()
        master = self.returning({"T@G": {0: 190}})
        for messages in (self.messages, master.messages):
            messages.write("T", 0, 20, "the master's")
        self.net.run(14)
        self.assertEqual(master.commits, [("T", "G", 1, 150)])
        self.assertEqual(self.offsets.query("G", "T", 0), 190)


class TurnTests(OffsetPushCase):
    def test_refused_offsets_keep_no_others_out(self) -> None:
        """More offsets than a round takes, the first of them refused for good: the others are told all the same."""
        self.patch(offset_push, "MAX_PUSHED", 3)
        for number in range(10):
            self.offsets.commit_at_slave(f"G{number}", "T", 0, 150)
        master = self.returning({})
        master.refused_groups = {f"G{number}" for number in range(5)}
        self.net.run(54)
        self.assertEqual(sorted(group for _, group, _, _ in master.commits), [f"G{number}" for number in range(5, 10)])
        self.assertIn("T@G", self.sync.failing["consumer offsets"])
        master.refused_groups = set()
        self.net.run(30)
        self.assertEqual(len(master.commits), 10)
        self.assertNotIn("consumer offsets", self.sync.failing)


class PowerFailureTests(SynchronousTestCase):
    """Two whole brokers; the master's power fails when the slave has five messages that may not be on its disk."""

    def setUp(self) -> None:
        # With this seed it loses the last one.
        self.one = OneBroker({"brokerRole": "ASYNC_MASTER", "flushDiskType": "ASYNC_FLUSH"}, seed=2)
        self.world = self.one.world
        self.slave = Node(self.world, self.one.net, "slave")
        self.slave.step_clock(-WALL_AHEAD_S)
        self.slave.start(self.build_slave)
        self.slave_broker.metadata_sync.set_master(f"{self.one.node.address}:{BROKER_PORT}")
        self.send(self.one.connect(), 5, "old")
        self.commit(self.one.connect(), 5)
        self.world.run_for(25)

    def build_slave(self, platform: Platform) -> BrokerService:
        values = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"{self.one.node.address}:10912"}
        return build_broker(platform, setup_of(values), host_address=self.slave.address, host_name="slave")

    @property
    def slave_broker(self) -> BrokerService:
        service = self.slave.service
        assert isinstance(service, BrokerService)
        return service

    def at_slave(self) -> RawClient:
        return connect(self.world, self.one.client_node, self.slave.address)

    def send(self, client: RawClient, count: int, text: str) -> None:
        for number in range(count):
            self.assertEqual(client.ask(310, send_ext(), f"{text} {number}".encode()).code, 0)

    def commit(self, client: RawClient, offset: int) -> None:
        where = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        self.assertEqual(client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, where).code, 0)

    def position(self) -> int | None:
        return self.one.service.offsets.query("CG", "T", 0)

    def power_failure(self) -> None:
        """Lose the tail that a consumer reads at the slave, and commits there, before the master is back."""
        self.send(self.one.connect(), 5, "tail")
        self.world.run_for(0.05)
        self.assertEqual(self.slave_broker.store.max_offset("T", 0), 10)
        self.one.node.crash()
        self.commit(self.at_slave(), 10)

    def end(self) -> None:
        self.world.settle(self.slave.stop())
        self.assertEqual(self.slave.leaks, [])
        self.one.end()
        self.flushLoggedErrors()

    def has_heard(self) -> bool:
        """Tell whether the slave is connected and the master has said something."""
        link = self.slave_broker.ha.status().link
        return link is not None and link.connected and link.frames > 0

    def test_a_silent_connection_proves_nothing(self) -> None:
        """A slave with nothing to compare agrees once its master has sent something that fits, not before."""
        self.world.settle(self.slave.stop())
        self.slave.disk.delete_tree("/store")
        self.slave.start(self.build_slave)
        link = self.slave_broker.ha.status
        self.world.run_until(lambda: (status := link().link) is not None and status.connected, 5, "the connection")
        self.assertFalse(self.has_heard())
        self.assertFalse(self.slave_broker.ha.agrees_with_master)
        self.world.run_until(self.has_heard, 30, "a frame")
        self.assertTrue(self.slave_broker.ha.agrees_with_master)
        self.end()

    def test_nothing_is_lost(self) -> None:
        """A master that was killed has all messages: replication stands again, and it is told."""
        self.send(self.one.connect(), 5, "tail")
        self.world.run_for(0.05)
        self.assertTrue(self.slave_broker.ha.agrees_with_master)
        self.one.node.kill()
        self.commit(self.at_slave(), 10)
        self.assertFalse(self.slave_broker.ha.agrees_with_master)
        self.one.start()
        self.world.run_for(30)
        self.assertTrue(self.slave_broker.ha.agrees_with_master)
        self.assertEqual(self.position(), 10)
        self.end()

    def test_new_messages_are_not_skipped(self) -> None:
        """
        The master writes new messages under the numbers that were consumed at the slave: a consumer gets all of them.

        The slave is connected, and even gets heartbeats, but it is ahead; later it is refused as of another history.
        """
        self.power_failure()
        self.one.start()
        lost_at = self.one.service.store.max_offset("T", 0)
        self.assertLess(lost_at, 10, "the seed loses something")
        self.world.run_until(lambda: not self.slave_broker.ha.agrees_with_master, 30, "the end of the old connection")
        self.world.run_until(self.has_heard, 30, "a heartbeat")
        self.assertFalse(self.slave_broker.ha.agrees_with_master)
        self.world.run_for(30)
        self.assertFalse(self.slave_broker.ha.agrees_with_master)
        self.assertEqual(self.position(), 5)
        self.send(self.one.connect(), 5, "new")
        self.world.run_for(100)
        self.assertFalse(self.slave_broker.ha.agrees_with_master)
        self.assertEqual(self.position(), 5)
        self.end()

    def test_the_connection_of_the_process_before(self) -> None:
        """
        The master is back, and has written on, before the slave notices that its replication connection is a dead one.

        By the connection all seems well and the queue is long enough: the messages themselves tell.
        """
        self.power_failure()
        self.one.start()
        self.send(self.one.connect(), 5, "new")
        self.assertGreater(self.one.service.store.max_offset("T", 0), 10)
        failing: list[bool] = []
        for _ in range(3):  # the first one finds the old connection of the requests dead, too
            self.world.settle(Deferred.fromCoroutine(self.slave_broker.metadata_sync.sync()))
            failing.append("consumer offsets" in self.slave_broker.metadata_sync.failing)
        self.assertFalse(failing[-1])
        self.assertTrue(self.slave_broker.ha.agrees_with_master, "the case that is meant")
        self.assertEqual(self.position(), 5)
        self.end()

    def test_a_commit_beyond_what_the_slave_has(self) -> None:
        """Who read a lost tail at the master and commits it at the slave speaks of messages that never were there."""
        self.commit(self.at_slave(), 8)
        self.send(self.one.connect(), 5, "new")
        self.world.run_for(30)
        self.assertEqual(self.slave_broker.store.max_offset("T", 0), 10)
        self.assertEqual(self.position(), 5)
        self.end()

    def test_the_slaves_log_is_cut(self) -> None:
        """An offset of messages that the slave has lost as well, or that were cut from its log, is not told later."""
        self.power_failure()
        self.world.settle(self.slave.stop())
        for name in ("commitlog", "consumequeue", "index"):
            self.slave.disk.delete_tree(f"/store/{name}")
        self.one.start()
        self.send(self.one.connect(), 5, "new")
        self.slave.start(self.build_slave)
        self.slave_broker.metadata_sync.set_master(f"{self.one.node.address}:{BROKER_PORT}")
        self.world.run_for(30)
        self.assertTrue(self.slave_broker.ha.agrees_with_master)
        self.assertEqual(self.slave_broker.store.max_offset("T", 0), self.one.service.store.max_offset("T", 0))
        self.assertEqual((self.position(), self.slave_broker.offsets.query("CG", "T", 0)), (5, 5))
        self.end()
