"""A stop in the middle of work: what was answered is kept, what waits is answered or closed, and it takes seconds."""

from __future__ import annotations

import json
import struct
from typing import Any

from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.service import build_namesrv
from rmq.runtime.clock import now_ms
from rmq.sim.node import Node
from rmq.store import checkpointer, retention
from rmq.wire.codes import ResponseCode
from rmq.wire.record import decode_records, encode_properties
from tests.broker.harness import PORT, OneBroker, connect, heartbeat, pull_ext, send_ext

#: a stop may take so long: a NameServer that does not answer has three seconds
MOST_S = 4


class SilentSlave(Protocol):
    """A slave that reports what the test says, and stores nothing."""

    def report(self, offset: int) -> None:
        transport: Any = self.transport
        transport.write(struct.pack(">q", offset))


class GracefulStopTests(SynchronousTestCase):
    def begin(self, **values: str) -> None:
        """Start a NameServer and a broker, and create topic T."""
        self.one = OneBroker({"namesrvAddr": "10.0.0.3:9876", **values})
        self.namesrv = Node(self.one.world, self.one.net, "namesrv")
        self.assertEqual(self.namesrv.address, "10.0.0.3")
        self.namesrv.start(build_namesrv)
        self.one.world.run_for(45)
        self.assertEqual(self.route(), 0)
        self.client = self.one.connect()
        # a SYNC_MASTER without a slave has stored it, too
        self.assertIn(self.client.ask(310, send_ext("T"), b"first").code, (0, ResponseCode.SLAVE_NOT_AVAILABLE))

    def tearDown(self) -> None:
        self.one.end()
        self.one.world.settle(self.namesrv.stop())

    def route(self) -> int:
        """Return how a NameServer answers a question for a topic of each broker."""
        client = connect(self.one.world, self.one.client_node, self.namesrv.address, 9876)
        return client.ask(105, {"topic": "TBW102"}).code

    def stop(self) -> None:
        """Stop the broker and check how."""
        began_s = self.one.world.now_s
        self.one.stop()
        self.assertLess(self.one.world.now_s - began_s, MOST_S)
        self.assertEqual(self.one.node.leaks, [])
        self.assertEqual(self.route(), ResponseCode.TOPIC_NOT_EXIST)
        self.assertTrue(self.client.closed)

    def bodies(self, topic: str = "T") -> list[bytes]:
        """Start the broker again; return what a consumer gets."""
        self.one.start()
        client = self.one.connect()
        found: list[bytes] = []
        offset = 0
        while True:
            answer = client.ask(11, pull_ext(topic, offset=offset))
            if answer.code != 0:
                return found
            found += [record.body for record in decode_records(answer.body or b"")]
            offset = int(answer.ext_fields["nextBeginOffset"])

    def test_a_consumer_that_never_answers(self) -> None:
        """A tool whose question to a consumer (223, 307, 309) is still open loses its connection."""
        self.begin()
        member = self.one.connect()
        member.ask(34, {}, heartbeat("c1", "CG", "T"))
        sent = self.client.ask(310, send_ext("T"), b"x")
        asked = [
            self.client.post(223, {"topic": "T", "group": "CG", "clientAddr": "c1"}),
            self.client.post(307, {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "false"}),
            self.client.post(309, {"consumerGroup": "CG", "clientId": "c1", "msgId": sent.ext_fields["msgId"]}),
        ]
        self.one.world.run_for(1)
        self.assertEqual([len(member.requests(code)) for code in (221, 307, 309)], [1, 1, 1])
        self.stop()
        self.assertEqual([self.client.answer(opaque) for opaque in asked], [None] * 3)
        self.assertTrue(member.closed)

    def test_offsets_that_are_being_reset(self) -> None:
        """A reset (222) that was answered does not depend on the member: its offsets are those it commits later."""
        self.begin()
        member = self.one.connect()
        member.ask(34, {}, heartbeat("c1", "CG", "T"))
        for queue_id in range(4):
            ext = {"consumerGroup": "CG", "topic": "T", "queueId": str(queue_id), "commitOffset": "1"}
            self.assertEqual(self.client.ask(15, ext).code, 0)
        ext = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true"}
        self.assertEqual(self.client.ask(222, ext).code, 0)
        self.stop()
        self.one.start()
        ext = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}
        self.assertEqual(self.one.connect().ask(14, ext).ext_fields["offset"], "1")

    def test_a_check_of_transactions(self) -> None:
        """A round of checks ends; each open transaction is checked after the next start."""
        self.begin(transactionTimeOut="1000", transactionCheckInterval="5000", flushDiskType="SYNC_FLUSH")
        body = json.loads(heartbeat("p", "", producer="PG"))
        body["consumerDataSet"] = []
        self.client.ask(34, body=json.dumps(body).encode())
        born = str(now_ms(self.one.service.clock))
        keys = {f"K{number}" for number in range(100)}
        for key in sorted(keys):
            pairs = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": key}
            opaque = self.client.post(310, send_ext(props=encode_properties(pairs), f="4", g=born), b"x")
        self.assertEqual(self.client.wait(opaque).code, 0)
        self.one.world.run_until(lambda: self.client.requests(39), 15, "the first question")
        self.stop()
        self.one.start()
        client = self.one.connect()
        client.ask(34, body=json.dumps(body).encode())
        self.one.world.run_for(30)
        asked = {check.ext_fields["msgId"] for check in (*self.client.requests(39), *client.requests(39))}
        self.assertEqual(asked, keys)

    def test_a_delivery_of_delayed_messages(self) -> None:
        """Delayed messages that are being delivered, each after an fsync, are all there after the next start."""
        self.begin(flushDiskType="SYNC_FLUSH")
        for number in range(200):
            opaque = self.client.post(310, send_ext("D", props="DELAY\x011"), b"%d" % number)
        self.assertEqual(self.client.wait(opaque).code, 0)
        delays = self.one.service.delays
        self.one.world.run_until(lambda: delays.progress().get(1, (0, 0))[0], 15, "the first deliveries")
        self.assertLess(delays.progress()[1][0], 200)
        self.stop()
        self.one.start()
        self.one.world.run_for(10)
        self.one.stop()
        self.assertEqual(set(self.bodies("D")), {b"%d" % number for number in range(200)})

    def test_a_group_commit(self) -> None:
        """What was answered before the stop is there, in order; sends without an answer lose their connection."""
        self.begin(flushDiskType="SYNC_FLUSH")
        asked = {}
        for number in range(300):
            asked[self.client.post(310, send_ext("T"), b"%d" % number)] = b"%d" % number
            self.one.world.step()
        self.client.wait(min(asked))
        self.stop()
        answered = [body for opaque, body in asked.items() if self.client.answer(opaque) is not None]
        self.assertTrue(answered)
        found = self.bodies()
        self.assertEqual(found[: len(answered) + 1], [b"first", *answered])

    def test_a_wait_for_a_slave(self) -> None:
        """
        Of sends that wait for a slave (SYNC_MASTER) those that it has are acknowledged, no other, before and after the
        stop; all of them are in the log.
        """
        self.begin(brokerRole="SYNC_MASTER")
        slave = SilentSlave()
        assert self.one.client_node.process is not None
        endpoint = TCP4ClientEndpoint(self.one.client_node.process, self.one.node.address, PORT + 1)
        endpoint.connect(Factory.forProtocol(lambda: slave))
        self.one.world.run_until(lambda: slave.transport, 5, "the slave's connection")
        store = self.one.service.store
        for offset in (0, store.end_offset):  # it begins empty, then it has all that the master has sent
            slave.report(offset)
            self.one.world.run_for(1)
        opaques = []
        for number in range(20):
            opaques.append(self.client.post(310, send_ext("T"), b"%d" % number))
            self.one.world.run_for(0.01)
            if number == 7:
                acknowledged = store.end_offset
        ends = [self.client.post(310, send_ext("T", props=encode_properties({"WAIT": "false"})), b"last")]
        self.one.world.run_for(0.2)
        self.assertEqual([self.client.answer(opaque) for opaque in opaques], [None] * 20)
        slave.report(acknowledged)
        self.one.world.run_for(0.2)
        self.stop()
        answers = [self.client.answer(opaque) for opaque in opaques]
        self.assertEqual([None if answer is None else answer.code for answer in answers[:8]], [0] * 8)
        self.assertNotIn(0, [answer.code for answer in answers[8:] if answer is not None])
        last = self.client.answer(ends[0])
        self.assertTrue(last is not None and last.code == 0)
        self.assertEqual(self.bodies(), [b"first", *(b"%d" % number for number in range(20)), b"last"])

    def test_a_reset_and_questions_at_once(self) -> None:
        """Tools that wait for consumers never delay a stop, however many ask."""
        self.begin()
        member = self.one.connect()
        member.ask(34, {}, heartbeat("c1", "CG", "T"))
        for _ in range(200):
            self.client.post(307, {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "false"})
        self.one.world.run_until(lambda: len(member.requests(307)) == 200, 5, "the questions")
        self.stop()
        self.assertTrue(member.closed)

    def test_a_clean_up(self) -> None:
        """Expired files that are being deleted (329, 306, 316), queue after queue: the rest can be read."""
        self.patch(retention, "CORRECT_AT_ONCE", 1)
        self.begin(fileReservedTime="0")
        for number in range(120):
            self.assertEqual(self.client.ask(310, send_ext(f"T{number % 30}"), b"x" * 30_000).code, 0)
        self.one.world.run_for(3)
        for code in (306, 316, 329):
            self.assertEqual(self.client.ask(code).code, 0)
        store = self.one.service.store
        self.one.world.run_until(lambda: store.min_phy_offset, 30, "the deletion")
        self.stop()
        self.one.start()
        store, client = self.one.service.store, self.one.connect()
        low, high = store.min_offset("T29", 0), store.max_offset("T29", 0)
        self.assertTrue(0 < low < high, f"{low} {high}")
        for offset in range(low, high):
            self.assertEqual(client.ask(11, pull_ext("T29", offset=offset)).code, 0)

    def test_unused_topics_that_are_being_deleted(self) -> None:
        """A stop between the deletions of 316 lets the others be deleted; it is answered if durable in time."""
        self.begin()
        for number in range(40):
            self.assertEqual(self.client.ask(310, send_ext(f"T{number}"), b"x").code, 0)
        for number in range(30):
            self.one.service.topics.delete(f"T{number}")
        store = self.one.service.store
        queues = len(store.queues())
        opaque = self.client.post(316)
        self.one.world.run_until(lambda: len(store.queues()) < queues - 3, 5, "the first deletions")
        self.assertGreater(len(store.queues()), queues - 20)
        self.stop()
        answer = self.client.answer(opaque)
        self.assertTrue(answer is None or answer.code == 0)
        self.one.start()
        store = self.one.service.store
        self.assertEqual([store.max_offset(f"T{number}", 0) for number in range(40)], [0] * 30 + [1] * 10)
        self.assertEqual(len(store.queues()), queues - 30)

    def test_new_queues_that_are_being_written(self) -> None:
        """Queues of which a part is written when the stop begins are all there."""
        self.patch(checkpointer, "WRITE_AT_ONCE", 1)
        self.begin()
        for number in range(50):
            opaque = self.client.post(310, send_ext("T", queue_id=number % 4), b"%d" % number)
            self.client.wait(opaque)
        store = self.one.service.store
        self.one.world.run_until(lambda: 0 < store._queues.unwritten < 4, 5, "a part of the queues")
        ends = {queue: store.max_offset(*queue) for queue in store.queues()}
        self.stop()
        self.one.start()
        after = self.one.service.store
        self.assertEqual({queue: after.max_offset(*queue) for queue in after.queues()}, ends)
