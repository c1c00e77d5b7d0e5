"""Brokers that failed or were slow: how long sends avoid them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.client.core.faults import Faults
from rmq.client.types import Message, MessageQueue
from tests.client.cluster import producer
from tests.client.test_flows import FlowCase

A, B = (MessageQueue(topic="T", broker_name=name, queue_id=0) for name in ("broker-a", "broker-b"))


class FaultsTests(SynchronousTestCase):
    def test_durations(self) -> None:
        """A slow send keeps others away for as long as in Java's table, a failed one for ten minutes."""
        table = ((0.5, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (14, 180), (15, 600))
        for latency_s, avoided_s in table:
            faults = Faults()
            faults.note("broker-a", latency_s, 100.0, failed=False)
            self.assertEqual(faults.usable([A, B], 100.0 + avoided_s), [A, B], latency_s)
            if avoided_s:
                self.assertEqual(faults.usable([A, B], 99.9 + avoided_s), [B], latency_s)
        faults = Faults()
        faults.note("broker-a", 0.0, 100.0, failed=True)
        self.assertEqual((faults.usable([A, B], 699.9), faults.usable([A, B], 700.0)), ([B], [A, B]))

    def test_all_are_avoided(self) -> None:
        """Where every broker is avoided the quicker ones get the messages."""
        faults = Faults()
        faults.note("broker-a", 3.0, 0.0, failed=True)
        faults.note("broker-b", 0.1, 0.0, failed=True)
        self.assertEqual(faults.usable([A, B], 1.0), [B])


class FaultLatencyTests(FlowCase):
    brokers = ("broker-a", "broker-b")

    def test_dead_broker_is_asked_once(self) -> None:
        """With ``fault_latency`` a dead broker costs one send a try, and the next ones none."""
        self.make_topic()
        client = self.sim.client()
        sender = producer(client, fault_latency=True, send_timeout_s=10.0)
        self.sim.run(sender.queues("T"))
        self.sim.brokers["broker-a"].kill()
        for _ in range(4):
            self.sim.run(sender.send(Message("T", b"x")))
        began = client.host.seconds()
        for _ in range(8):
            result = self.sim.run(sender.send(Message("T", b"x")))
            self.assertEqual(result.queue.broker_name, "broker-b")
        self.assertLess(client.host.seconds() - began, 1.0)
