"""What observers hear, and what Prometheus and OpenTelemetry make of it, in simulated time."""

from __future__ import annotations

import logging
from typing import Any

from twisted.internet.defer import Deferred

from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.observers import Handled, How, Observer, Rebalanced, Received, Sent, Settled
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Later, Message, ReceivedMessage, Reject
from rmq.errors import ClosedClient, ConfigurationError, NotDelivered
from rmq.wire.api.common import MessageQueue
from tests.client.cluster import Inbox, consumer, producer, send_all
from tests.client.test_flows import FlowCase
from tests.needs import need_extra

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


class Notes(Observer):
    """All events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def sent(self, event: Sent) -> None:
        self.events.append(event)

    def received(self, event: Received) -> None:
        self.events.append(event)

    def handled(self, event: Handled) -> None:
        self.events.append(event)

    def settled(self, event: Settled) -> None:
        self.events.append(event)

    def rebalanced(self, event: Rebalanced) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def counts(self) -> dict[tuple[str, How], int]:
        """Messages by topic and what became of them."""
        found: dict[tuple[str, How], int] = {}
        for event in self.of(Settled):
            key = event.topic, event.how
            found[key] = found.get(key, 0) + event.messages
        return found


class Silent(Observer):
    """Leaves all methods out."""


class Broken(Observer):
    def sent(self, event: Sent) -> None:
        raise LookupError("planted")


def later_once(message: ReceivedMessage) -> None:
    """Fail the first time with ``again``; reject ``bad``."""
    if message.body == b"bad":
        raise Reject
    if message.body == b"again" and not message.reconsume_times:
        raise Later(delay_level=1)


class EventTests(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_topic()
        self.notes = Notes()
        self.client = self.sim.client(self.notes, Silent())
        self.sender = producer(self.client)

    def test_sends(self) -> None:
        """Every send is reported with its duration: single, batch and one-way ones, and those that fail."""
        self.sim.run(self.sender.send(Message("T", b"hello")))
        self.sim.run(self.sender.send_batch([Message("T", b"1"), Message("T", b"2")]))
        self.sim.run(self.sender.send_oneway(Message("T", b"3")))
        self.sim.brokers["broker-a"].kill()
        error = None
        try:
            self.sim.run(self.sender.send(Message("T", b"lost"), timeout_s=5))
        except NotDelivered as failure:
            error = failure
        events = self.notes.of(Sent)
        self.assertEqual(
            [(event.topic, event.group, event.messages) for event in events],
            [("T", "PG", 1), ("T", "PG", 2), ("T", "PG", 1), ("T", "PG", 1)],
        )
        self.assertEqual(events[0].body_bytes, 5)
        self.assertEqual([event.error for event in events], [None, None, None, error])
        self.assertIsNotNone(error)
        self.assertTrue(all(0 <= event.seconds < 1 for event in events[:3]))
        self.assertTrue(0 < events[3].seconds <= 5)

    def test_sends_that_are_refused(self) -> None:
        """Sends that the client refuses are reported once each: too large, to a wrong queue, and after the close."""
        large = Message("T", bytes(5 << 20))
        transactions = transaction_producer(self.client, "TG", lambda message: Outcome.COMMIT, ProducerSettings())
        for send in (self.sender.send, self.sender.send_oneway, self.sender.request, transactions.begin):
            with self.assertRaises(ConfigurationError):
                self.sim.run(send(large))
        with self.assertRaises(ConfigurationError):
            self.sim.run(self.sender.send_batch([large, large]))
        with self.assertRaises(ConfigurationError):
            self.sim.run(self.sender.send(Message("T2", b"1"), queue=QUEUE))
        with self.assertRaises(ConfigurationError):
            self.sim.run(self.sender.send(Message("T", b"1"), queue=QUEUE, sharding_key="k"))
        self.sim.run(self.sender.close())
        with self.assertRaises(ClosedClient):
            self.sim.run(self.sender.send(Message("T", b"1")))
        with self.assertRaises(ClosedClient):
            self.sim.run(self.sender.queues("T"))  # no send
        events = self.notes.of(Sent)
        self.assertEqual(
            [(event.topic, event.group, event.messages, type(event.error)) for event in events],
            [("T", "PG", 1, ConfigurationError)] * 3
            + [("T", "TG", 1, ConfigurationError), ("T", "PG", 2, ConfigurationError)]
            + [("T2", "PG", 1, ConfigurationError), ("T", "PG", 1, ConfigurationError), ("T", "PG", 1, ClosedClient)],
        )
        self.assertEqual({event.seconds for event in events}, {0})

    def test_send_that_is_cancelled(self) -> None:
        """A send whose program stops waiting, as with a timeout of its own, is reported as a TimeoutError."""
        self.sim.run(self.sender.send(Message("T", b"hello")))
        sending = Deferred.fromCoroutine(self.sender.send(Message("T", b"given up")))
        sending.cancel()
        self.failureResultOf(sending)
        self.assertEqual([type(event.error) for event in self.notes.of(Sent)], [type(None), TimeoutError])

    def test_handlers(self) -> None:
        """Receipts, handlers with their durations and errors, and what became of each message are reported."""

        def handle(message: ReceivedMessage) -> Deferred[None]:
            done: Deferred[None] = Deferred()
            self.sim.world.schedule(2.0, lambda: done.callback(None))
            return done.addCallback(lambda _: later_once(message))

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"good", b"again", b"bad"], queue=QUEUE))
        self.until(lambda: sum(self.notes.counts().values()) == 4)
        self.assertEqual(
            self.notes.counts(),
            {
                ("T", How.ACKNOWLEDGED): 1,
                ("T", How.RETRIED): 1,
                ("T", How.REJECTED): 1,
                ("%RETRY%CG", How.ACKNOWLEDGED): 1,
            },
        )
        received = self.notes.of(Received)
        self.assertEqual(sum(event.messages for event in received), 4)
        self.assertEqual(sum(event.body_bytes for event in received), len(b"goodagainbadagain"))
        self.assertEqual({(event.queue.topic, event.group) for event in received}, {("T", "CG"), ("%RETRY%CG", "CG")})
        handled = self.notes.of(Handled)
        self.assertEqual([round(event.seconds, 3) for event in handled], [2.0] * 4)
        self.assertEqual(
            sorted(type(event.error).__name__ for event in handled), ["Later", "NoneType", "NoneType", "Reject"]
        )

    def test_handler_that_is_cancelled(self) -> None:
        """A handler that runs too long is reported as a TimeoutError, with how long it ran."""

        def hang(message: ReceivedMessage) -> Deferred[None] | None:
            return None if message.reconsume_times else Deferred()

        inbox = Inbox(hang)
        self.sim.run(consumer(self.client, inbox, concurrency=1, consume_timeout_s=30).start())
        self.sim.run(send_all(self.sender, [b"a"]))
        self.until(lambda: len(inbox.got) == 2, 120)
        first = self.notes.of(Handled)[0]
        self.assertEqual(type(first.error), TimeoutError)
        self.assertTrue(30 <= first.seconds <= 32, first)

    def test_orderly(self) -> None:
        """With ordered handlers each try in place is a retry."""
        inbox = Inbox(later_once)
        self.sim.run(consumer(self.client, inbox, orderly=True).start())
        self.sim.run(send_all(self.sender, [b"again", b"bad", b"good"], queue=QUEUE))
        self.until(lambda: sum(self.notes.counts().values()) == 4)
        self.assertEqual(
            self.notes.counts(), {("T", How.ACKNOWLEDGED): 2, ("T", How.RETRIED): 1, ("T", How.REJECTED): 1}
        )

    def test_deliveries_and_broadcast(self) -> None:
        """An `async with` counts as a handler; what fails with broadcast is skipped."""
        made = consumer(self.client, None)

        async def two() -> None:
            async for delivery in made:
                async with delivery as message:
                    await self.client.host.sleep(3)
                    later_once(message)
                if len(self.notes.of(Handled)) == 2:
                    return

        running = Deferred.fromCoroutine(two())
        self.sim.pass_s(1)
        self.sim.run(send_all(self.sender, [b"good", b"bad"], queue=QUEUE))
        self.sim.world.settle(running, 60)
        self.assertEqual([round(event.seconds, 3) for event in self.notes.of(Handled)], [3.0, 3.0])
        self.assertEqual(self.notes.counts(), {("T", How.ACKNOWLEDGED): 1, ("T", How.REJECTED): 1})
        notes = Notes()
        other = self.sim.client(notes)
        inbox = Inbox(later_once)
        self.sim.run(consumer(other, inbox, group="BG", broadcast=True).start())
        self.until(lambda: sum(notes.counts().values()) == 2)
        self.assertEqual(notes.counts(), {("T", How.ACKNOWLEDGED): 1, ("T", How.SKIPPED): 1})

    def test_pulls(self) -> None:
        """Messages of a pull consumer are acknowledged by the commit; its own client has the same observers."""
        settings = PullSettings(consume_from=From.FIRST, auto_commit=False)
        puller = self.sim.run(pull_consumer(self.client, "PULL", {"T": "*"}, settings))
        self.sim.run(send_all(self.sender, [b"1", b"2"], queue=QUEUE))
        got: list[ReceivedMessage] = []
        while len(got) < 2:
            got += self.sim.run(puller.getmany(timeout_s=30))
        self.assertEqual(self.notes.counts(), {})
        self.sim.run(puller.commit())
        self.assertEqual(self.notes.counts(), {("T", How.ACKNOWLEDGED): 2})

    def test_rebalances(self) -> None:
        """A member hears which queues came and went: at its start, when another joins and leaves, at its close."""

        def changes(notes: Notes) -> list[tuple[int, int, int]]:
            events = [event for event in notes.of(Rebalanced) if (event.topic, event.group) == ("T", "CG")]
            return [(len(event.queues), len(event.gained), len(event.lost)) for event in events]

        others = Notes()
        for orderly in (False, True):
            with self.subTest(orderly=orderly):
                self.notes.events.clear()
                others.events.clear()
                one = consumer(self.client, Inbox(), orderly=orderly)
                self.sim.run(one.start())
                self.until(lambda: changes(self.notes))
                self.assertEqual(changes(self.notes), [(4, 4, 0)])
                other = consumer(self.sim.client(others), Inbox(), orderly=orderly)
                self.sim.run(other.start())
                self.until(lambda: [at[-1][0] for at in (changes(others), changes(self.notes)) if at] == [2, 2], 120)
                self.sim.run(other.close())
                self.until(lambda: changes(self.notes)[-1][0] == 4, 120)
                self.assertEqual(changes(others)[-1], (0, 0, 2))
                self.assertEqual({queue.topic for queue in others.of(Rebalanced)[-1].lost}, {"T"})
                self.sim.run(one.close())
                self.assertEqual(changes(self.notes)[-1], (0, 0, 4))
                self.assertEqual(sum(gained - lost for _, gained, lost in changes(self.notes)), 0)
                self.assertEqual(one.assignment(), frozenset())

    def test_broken_observer(self) -> None:
        """An observer that raises is a log line; the send succeeds and other observers are called."""
        notes = Notes()
        client = self.sim.client(Broken(), notes)
        with self.assertLogs("rmq.client", logging.ERROR) as logs:
            self.sim.run(producer(client).send(Message("T", b"x")))
        self.assertIn("planted", logs.output[0])
        self.assertEqual(len(notes.of(Sent)), 1)


class MetricsTests(FlowCase):
    """One run of a producer and a consumer, as metrics."""

    def work(self, observer: Observer) -> None:
        self.make_topic()
        client = self.sim.client(observer)
        sender = producer(client)

        def handle(message: ReceivedMessage) -> Deferred[None]:
            done: Deferred[None] = Deferred()
            self.sim.world.schedule(2.0, lambda: done.callback(None))
            return done.addCallback(lambda _: later_once(message))

        inbox = Inbox(handle)
        self.sim.run(consumer(client, inbox).start())
        self.sim.run(send_all(sender, [b"good", b"bad"], queue=QUEUE))
        self.until(lambda: len(inbox.got) == 2)
        self.sim.pass_s(5)
        self.sim.brokers["broker-a"].kill()
        self.assertRaises(NotDelivered, self.sim.run, sender.send(Message("T", b"lost"), timeout_s=2))

    def test_prometheus(self) -> None:
        """Counters and histograms have the figures of the run."""
        need_extra("metrics")
        from prometheus_client import CollectorRegistry

        from rmq.client.prometheus import PrometheusObserver

        registry = CollectorRegistry()
        self.work(PrometheusObserver(registry))

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"rmq_client_{name}", {"topic": "T", **labels})

        self.assertEqual(value("sent_messages_total", group="PG", result="ok"), 2)
        self.assertEqual(value("sent_messages_total", group="PG", result="NotDelivered"), 1)
        self.assertEqual(value("sent_bytes_total", group="PG"), 7)
        self.assertEqual(value("send_seconds_count", group="PG", result="ok"), 2)
        self.assertEqual(value("received_messages_total", group="CG"), 2)
        self.assertEqual(value("received_bytes_total", group="CG"), 7)
        self.assertEqual(value("handler_seconds_bucket", group="CG", result="ok", le="1.0"), 0)
        self.assertEqual(value("handler_seconds_bucket", group="CG", result="ok", le="2.5"), 1)
        self.assertEqual(value("handler_seconds_count", group="CG", result="Reject"), 1)
        self.assertEqual(value("settled_messages_total", group="CG", how="acknowledged"), 1)
        self.assertEqual(value("settled_messages_total", group="CG", how="rejected"), 1)
        self.assertEqual((value("queues", group="CG"), value("rebalances_total", group="CG")), (4, 1))

    def test_opentelemetry(self) -> None:
        """Names, units and attributes are those of the semantic conventions, with the figures of the run."""
        need_extra("otel")
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from rmq.client.otel import BUCKETS, OpenTelemetryObserver

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], shutdown_on_exit=False)
        self.work(OpenTelemetryObserver(provider.get_meter("test")))
        data = reader.get_metrics_data()
        assert data is not None
        metrics = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
        points: list[tuple[str, Any, Any]] = [
            (name, p.attributes, p) for name, m in metrics.items() for p in m.data.data_points
        ]

        def point(name: str, **wanted: str) -> Any:
            wanted = {"messaging.destination.name": "T", "messaging.system": "rocketmq"} | {
                key.replace("_", "."): value for key, value in wanted.items()
            }
            found = [p for n, attributes, p in points if n == name and wanted.items() <= attributes.items()]
            self.assertEqual(len(found), 1, (name, wanted, points))
            return found[0]

        sent = [p.value for n, attributes, p in points if n == "messaging.client.sent.messages"]
        self.assertEqual(sorted(sent), [1, 2])
        self.assertEqual(point("messaging.client.sent.messages", error_type="NotDelivered").value, 1)
        consumed = point("messaging.client.consumed.messages", messaging_operation_type="receive")
        self.assertEqual(
            (consumed.value, consumed.attributes["messaging.consumer.group.name"]), (2, "CG"), consumed.attributes
        )
        self.assertEqual(consumed.attributes["messaging.destination.partition.id"], "0")
        process = point("messaging.process.duration", error_type="Reject")
        self.assertEqual((process.count, round(process.sum, 3), tuple(process.explicit_bounds)), (1, 2.0, BUCKETS))
        self.assertEqual(metrics["messaging.client.operation.duration"].unit, "s")
        self.assertEqual(point("rmq.client.settled.messages", messaging_operation_name="rejected").value, 1)
        self.assertEqual(point("rmq.client.queues", messaging_consumer_group_name="CG").value, 4)
        provider.shutdown()
