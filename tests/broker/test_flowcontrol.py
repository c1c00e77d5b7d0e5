"""Flow control: SYSTEM_BUSY with Apache's texts, and for no longer than it is needed."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import flowcontrol
from rmq.broker.flowcontrol import LATE_SAMPLES, SAMPLE_S, FlowControl
from rmq.broker.settings import Settings
from tests.broker.harness import OneBroker, send_ext, setup_of
from tests.store.support import Box

BUSY = 2


class LateLoopTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def make(self, **values: str) -> FlowControl:
        box = Box()
        flow = FlowControl(Settings(box.disk, setup_of(values)), self.clock, box.open())
        flow.sample()
        return flow

    def late(self, flow: FlowControl, late_s: float, times: int = 1) -> str | None:
        """Let the next samples be late; return the refusal then."""
        for _ in range(times):
            self.clock.advance(SAMPLE_S + late_s)
            flow.sample()
        return flow.refusal

    def test_one_long_turn(self) -> None:
        """A single turn of the loop, however long, refuses nothing."""
        flow = self.make()
        self.assertIsNone(self.late(flow, 30, LATE_SAMPLES - 1))
        self.assertIsNone(self.late(flow, 0))

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
        self.assertIsNone(self.late(self.make(brokerFastFailureEnable="false"), 9, 20))


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
