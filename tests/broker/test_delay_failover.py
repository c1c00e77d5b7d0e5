"""What a slave that takes over shows: delayed messages that its log lacks, and topics made a moment before."""

from __future__ import annotations

from functools import partial

from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from rmq.runtime.disk.statefile import read_state
from rmq.sim.cluster import Cluster, Member
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.wire import fastjson
from rmq.wire.api.replication import AllDelayOffset
from rmq.wire.record import decode_records, encode_properties
from tests.broker.harness import RawClient, connect, pull_ext, send_ext
from tests.sim.support import ASYNC_FLUSH, SYNC_MASTER, options

#: 1 s
LEVEL = 1
SLAVE_NOT_AVAILABLE = 11
#: time for what was delivered to be saved, and for a round of the slave
SAVED_S = 30


class FailoverCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.world = World(1)
        self.cluster = Cluster(self.world, options(SYNC_MASTER, ASYNC_FLUSH, slaves=1))
        self.cluster.start_servers()
        self.world.run_for(5)
        self.master, self.slave = self.cluster.members
        self.world.run_until(
            lambda: any(slave.in_sync for slave in self.master.broker.ha.status().slaves), 120, "the slave"
        )
        self.clients = Node(self.world, self.cluster.net, "client")
        self.clients.start()

    def connect(self, member: Member) -> RawClient:
        return connect(self.world, self.clients, member.node.address)

    def promoted(self) -> RawClient:
        """Lose the master and let the slave take its place; return a client of it."""
        self.master.node.crash()
        self.slave.node.kill()
        promoted = Member(self.slave.group, 0, self.slave.node)
        self.slave.node.start(partial(self.cluster._build_broker, promoted))
        self.world.run_for(5)
        return self.connect(promoted)


class DelayFailoverTests(FailoverCase):
    def send(self, client: RawClient, body: bytes) -> None:
        props = encode_properties({"DELAY": str(LEVEL)})
        self.assertEqual(client.ask(310, send_ext(props=props), body).code, 0)

    def saved(self, member: Member) -> int:
        """Return the offset of the level in a broker's file."""
        disk, path = member.broker.delays._disk, member.broker.delays.path
        table = read_state(disk, path, lambda data: fastjson.decode(data, AllDelayOffset))
        return 0 if table is None else table.offset_table.get(LEVEL, 0)

    def bodies(self, client: RawClient) -> list[bytes]:
        return [record.body for record in decode_records(client.ask(11, pull_ext()).body or b"")]

    def test_a_log_that_lacks_deliveries(self) -> None:
        """The promoted slave delivers what its log does not have, whatever its master's table said last."""
        client = self.connect(self.master)
        self.send(client, b"one")
        self.world.run_until(lambda: self.saved(self.slave) == 1, 60, "the offset of the first delivery")
        self.send(client, b"two")
        # From here on the slave has both parked messages, and no bytes come any more.
        self.world.settle(self.slave.broker.ha.stopService())
        self.world.run_until(lambda: self.saved(self.master) == 2, 60, "the second delivery")
        self.world.run_for(SAVED_S)
        self.assertEqual(self.saved(self.slave), 1)
        client = self.promoted()
        self.assertEqual(self.bodies(client), [b"one", b"two"])
        self.world.settle(self.slave.node.stop())

    def test_a_log_that_has_them(self) -> None:
        """A slave that has all its master's bytes delivers nothing twice."""
        client = self.connect(self.master)
        for body in (b"one", b"two"):
            self.send(client, body)
        self.world.run_until(lambda: self.saved(self.slave) == 2, 60, "the offset of the deliveries")
        client = self.promoted()
        self.assertEqual(self.bodies(client), [b"one", b"two"])
        self.world.settle(self.slave.node.stop())


class NewTopicFailoverTests(FailoverCase):
    """Eight queues, where a topic that is made automatically has four."""

    def fill(self) -> None:
        """Make the topic and send a message to each queue."""
        client = self.connect(self.master)
        topic = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        self.assertEqual(client.ask(17, topic | more).code, 0)
        for queue_id in range(8):
            self.assertEqual(client.ask(310, send_ext("New", queue_id=queue_id), b"x").code, 0)

    def readable(self, client: RawClient) -> list[int]:
        """Return the codes of a pull from each of the queues: 0 for a message."""
        return [client.ask(11, pull_ext("New", queue_id=queue_id)).code for queue_id in range(8)]

    def test_all_messages_that_were_acknowledged(self) -> None:
        """The slave asks for a topic when the log brings its first message, not with its next round."""
        self.fill()
        self.world.run_for(0.5)
        self.assertEqual(self.readable(self.promoted()), [0] * 8)
        self.world.settle(self.slave.node.stop())

    def test_a_topic_that_is_lost(self) -> None:
        """It is named at the start; a producer that makes it again gets the queues that have messages."""
        self.world.settle(self.slave.broker.metadata_sync.stopService())
        self.fill()
        lines: list[str] = []
        observer = provider(ILogObserver)(lambda event: lines.append(formatEvent(event)))
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        client = self.promoted()
        self.assertIn("`rmq-admin topic create New --queues 8` shows them", "".join(lines))
        self.assertEqual(client.ask(310, send_ext("New", queue_id=0), b"y").code, SLAVE_NOT_AVAILABLE)
        self.assertEqual(self.readable(client), [0] * 8)
        self.world.settle(self.slave.node.stop())
