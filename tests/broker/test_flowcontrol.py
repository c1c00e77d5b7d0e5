"""Flow control: SYSTEM_BUSY with Apache's texts, and for no longer than it is needed."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import flowcontrol
from rmq.broker.flowcontrol import LATE, LATE_SAMPLES, SAMPLE_S, FlowControl
from rmq.broker.settings import Settings
from rmq.wire.command import RemotingCommand
from rmq.wire.record import decode_offset_msg_id, encode_properties
from tests.broker.harness import PORT, OneBroker, heartbeat, pull_ext, send_ext, setup_of
from tests.store.support import Box

BUSY = 2
VIP = PORT - 2


class LateLoopTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def make(self, **values: str) -> FlowControl:
        box = Box()
        flow = FlowControl(Settings(box.disk, setup_of(values)), self.clock, box.open())
        flow.sample()
        return flow

    def late(self, flow: FlowControl, late_s: float, times: int = 1, code: int = 310) -> str | None:
        """Let the next samples be late; return how sends, or requests of ``code``, are refused then."""
        for _ in range(times):
            self.clock.advance(SAMPLE_S + late_s)
            flow.sample()
        return flow.refusals.get(code)

    def test_one_long_turn(self) -> None:
        """A single turn of the loop, however long, refuses nothing."""
        flow = self.make()
        self.assertIsNone(self.late(flow, 30, LATE_SAMPLES - 1))
        self.assertIsNone(self.late(flow, 0))

    def test_lags(self) -> None:
        """How late the loop was is counted, with every sample, those in time as 0."""
        flow = self.make()
        self.late(flow, 0.04, 3)
        self.late(flow, 0, 5)
        self.late(flow, 30)
        counts = dict(zip((*flow.lags_ms.bounds, None), flow.lags_ms.counts, strict=True))
        self.assertEqual((counts[0.5], counts[50.0], counts[None], flow.lags_ms.total), (5, 3, 1, 9))

    def test_an_overloaded_loop(self) -> None:
        """A loop that stays later than waitTimeMillsInSendQueue refuses sends with Apache's text."""
        flow = self.make(waitTimeMillsInSendQueue="500")
        self.assertIsNone(self.late(flow, 0.499, 10))
        self.assertEqual(
            self.late(flow, 0.75, LATE_SAMPLES),
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
            "period in queue: 750ms, size of queue: 0",
        )
        self.assertIsNone(self.late(flow, 0.1))

    def test_switched_off(self) -> None:
        """With brokerFastFailureEnable=false a late loop refuses nothing."""
        self.assertIsNone(self.late(self.make(brokerFastFailureEnable="false"), 99, 20))

    def test_which_requests_are_refused_when(self) -> None:
        """As in Apache's broker sends and send-backs go first, then ends of transactions, pulls and heartbeats."""
        sends, ends, pulls, beats = {10, 36, 310, 320}, {37}, {11, 361}, {34}
        for lag_s, refused in (
            (0.15, set()),
            (0.25, sends),
            (2.9, sends),
            (3.1, sends | ends),
            (4.9, sends | ends),
            (5.1, sends | ends | pulls),
            (30.9, sends | ends | pulls),
            (31.1, sends | ends | pulls | beats),
        ):
            flow = self.make()
            self.late(flow, lag_s, LATE_SAMPLES)
            self.assertEqual(set(flow.refusals), refused, f"{lag_s} s late")

    def test_keys(self) -> None:
        """Each of Apache's keys decides about its requests."""
        for key, code in (
            ("waitTimeMillsInSendQueue", 36),
            ("waitTimeMillsInTransactionQueue", 37),
            ("waitTimeMillsInPullQueue", 361),
            ("waitTimeMillsInHeartbeatQueue", 34),
        ):
            flow = self.make(**{key: "700"})
            self.assertIsNone(self.late(flow, 0.6, 5, code))
            self.assertIn("period in queue: 8", self.late(flow, 0.85, LATE_SAMPLES, code) or "")


class LateBrokerTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker()
        self.addCleanup(self.one.end)
        self.client = self.one.connect()
        self.sent = self.client.ask(310, send_ext("T"), b"x")
        self.client.ask(34, body=heartbeat("c", "CG", "T"))

    def be_late(self) -> None:
        """Let the broker find that its loop is late; the next sample is in time again."""
        flow = self.one.service.flow
        for kind in flow._kinds.values():
            kind.late = LATE_SAMPLES - 1
        flow._due_s = self.one.service.clock.seconds() - 40
        flow.sample()

    def requests(self) -> list[tuple[int, dict[str, str], bytes]]:
        half = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "K"}
        back = {"group": "CG", "offset": "0", "delayLevel": "0", "originTopic": "T", "unitMode": "false"}
        return [
            (310, send_ext("T"), b"x"),
            (310, send_ext("T", props=encode_properties({"DELAY": "3"})), b"x"),
            (310, send_ext("T", props=encode_properties(half), f="4"), b"x"),
            (36, back, b""),
            (37, {"producerGroup": "PG", "commitLogOffset": "0", "tranStateTableOffset": "0"}, b""),
            (11, pull_ext("T"), b""),
            (361, pull_ext("T"), b""),
            (34, {}, heartbeat("c", "CG", "T")),
        ]

    def test_lanes_and_responders(self) -> None:
        """A very late broker refuses each kind of request on both ports, then takes it again."""
        self.be_late()
        port = self.client, self.one.connect(VIP)
        for code, ext, body in self.requests():
            for client in port if code not in (11, 361) else port[:1]:
                answer = client.wait(client.post(code, ext, body), limit_s=0.05)
                self.assertEqual((answer.code, (answer.remark or "")[:44]), (BUSY, LATE[:44]), code)
        self.one.world.run_for(0.2)
        for code, ext, body in self.requests():
            self.assertNotEqual(self.client.ask(code, ext, body).code, BUSY, code)

    def test_other_requests(self) -> None:
        """However late the broker is, it answers tools, offsets and clients that leave."""
        self.be_late()
        for code, ext in ((28, {}), (30, {"topic": "T", "queueId": "0"}), (38, {"consumerGroup": "CG"})):
            self.assertEqual(self.client.wait(self.client.post(code, ext), limit_s=0.05).code, 0)

    def test_a_one_way_request(self) -> None:
        """A one-way heartbeat is dropped without an answer."""
        self.be_late()
        opaque = self.client.tell(34, {}, heartbeat("c2", "CG2", "T"))
        self.one.world.run_for(0.05)
        self.assertIsNone(self.client.answer(opaque))
        self.assertIsNone(self.one.service.consumers.find("CG2"))


class SlowDiskTests(SynchronousTestCase):
    def broker(self, **values: str) -> OneBroker:
        one = OneBroker(values)
        self.addCleanup(one.end)
        one.connect().ask(310, send_ext("T"), b"x" * 100)  # makes the topic
        return one

    def test_bytes_waiting_for_a_slow_fsync(self) -> None:
        """
        While one fsync hangs and much more waits for the next, sends are refused, by the fast path, too; then taken.
        """
        self.patch(flowcontrol, "MAX_UNSYNCED_BYTES", 10_000)
        one = self.broker(flushIntervalCommitLog="100", flushCommitLogThoroughInterval="200")
        client = one.connect()
        one.node.disk.sync_s = (5, 5)
        self.assertEqual(client.ask(310, send_ext("T"), b"x" * 30_000).code, 0)
        one.world.run_for(2)
        refused = client.ask(310, send_ext("T"), b"x")
        self.assertEqual(
            (refused.code, refused.remark), (BUSY, "[REJECTREQUEST]system busy, start flow control for a while")
        )
        one.node.disk.recover()
        one.world.run_for(6)
        self.assertEqual(client.ask(310, send_ext("T"), b"x").code, 0)

    def test_a_slow_fsync_alone(self) -> None:
        """An fsync that takes long is no reason to refuse anything while little waits for the next."""
        one = self.broker(flushIntervalCommitLog="100", flushCommitLogThoroughInterval="200")
        client = one.connect()
        one.node.disk.sync_s = (3, 3)
        for _ in range(8):
            self.assertEqual(client.ask(310, send_ext("T"), b"x" * 1000).code, 0)
            one.world.run_for(0.5)
        one.node.disk.recover()

    def test_too_many_waiting_sends(self) -> None:
        """With as many sends waiting for the disk as sendThreadPoolQueueCapacity allows, further ones are refused."""
        one = self.broker(flushDiskType="SYNC_FLUSH", sendThreadPoolQueueCapacity="4")
        clients = [one.connect() for _ in range(5)]
        one.node.disk.sync_s = (2, 2)
        waiting = [client.post(310, send_ext("T"), b"x") for client in clients[:4]]
        one.world.run_for(0.5)
        refused = clients[4].ask(310, send_ext("T"), b"x")
        self.assertEqual(
            (refused.code, refused.remark), (BUSY, "[OVERLOAD]system busy, start flow control for a while")
        )
        one.node.disk.recover()
        for client, opaque in zip(clients, waiting, strict=False):
            self.assertEqual(client.wait(opaque).code, 0)
        one.world.run_for(0.5)
        self.assertEqual(clients[4].ask(310, send_ext("T"), b"x").code, 0)

    def test_too_many_ends_of_transactions(self) -> None:
        """As many ends may wait for the disk as endTransactionPoolQueueCapacity says; brokerStatus counts them."""
        one = self.broker(flushDiskType="SYNC_FLUSH", endTransactionPoolQueueCapacity="3")
        client = one.connect()
        pairs = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "K"}
        halves = [client.ask(310, send_ext("T", props=encode_properties(pairs), f="4"), b"x") for _ in range(6)]

        def end(half: RemotingCommand) -> int:
            fields = {"commitLogOffset": str(decode_offset_msg_id(half.ext_fields["msgId"])[1])}
            more = {"producerGroup": "PG", "tranStateTableOffset": half.ext_fields["queueOffset"]}
            return client.post(
                37, fields | more | {"commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "K"}
            )

        # the first makes the queues, and later ones may take the lane
        self.assertEqual(client.wait(end(halves[5])).code, 0)
        one.node.disk.sync_s = (2, 2)
        waiting = [end(half) for half in halves[:3]]
        one.world.run_for(0.5)
        self.assertIn('"EndTransactionQueueSize":"3"', (client.ask(28).body or b"").decode())
        refused = client.wait(end(halves[3]), limit_s=0.1)
        self.assertEqual(
            (refused.code, refused.remark), (BUSY, "[OVERLOAD]system busy, start flow control for a while")
        )
        one.node.disk.recover()
        self.assertEqual([client.wait(opaque).code for opaque in waiting], [0, 0, 0])
        self.assertEqual(client.wait(end(halves[4])).code, 0)

    def test_send_backs(self) -> None:
        """While too many sends wait for the disk, send-backs are refused too, though they wait for nothing."""
        one = self.broker(flushDiskType="SYNC_FLUSH", sendThreadPoolQueueCapacity="2")
        client = one.connect()
        client.ask(34, body=heartbeat("c", "CG", "T"))
        back = {"group": "CG", "offset": "0", "delayLevel": "0", "originTopic": "T", "unitMode": "false"}
        one.node.disk.sync_s = (2, 2)
        self.assertEqual(client.wait(client.post(36, back), limit_s=0.05).code, 0)
        waiting = [client.post(310, send_ext("T"), b"x") for _ in range(2)]
        one.world.run_for(0.3)
        self.assertEqual(client.wait(client.post(36, back), limit_s=0.05).code, BUSY)
        self.assertEqual([client.wait(opaque).code for opaque in waiting], [0, 0])
        one.world.run_for(0.3)
        self.assertEqual(client.ask(36, back).code, 0)

    def test_too_many_questions_to_consumers(self) -> None:
        """Questions to a consumer that does not answer are limited, those of all tools together."""
        self.patch(flowcontrol, "MAX_FORWARDED", 2)
        one = self.broker()
        member = one.connect()
        member.ask(34, body=heartbeat("c", "CG", "T"))
        ext = {"consumerGroup": "CG", "clientId": "c", "jstackEnable": "false"}
        tools = [one.connect() for _ in range(3)]
        opaques = [tool.post(307, ext) for tool in tools[:2]]
        one.world.run_until(lambda: len(member.requests(307)) == 2, 5, "the questions")
        self.assertEqual(tools[2].ask(307, ext).code, BUSY)
        self.assertNotEqual(tools[0].wait(opaques[0]).code, BUSY)  # no answer in time
        self.assertNotEqual(tools[2].ask(307, ext).code, BUSY)
