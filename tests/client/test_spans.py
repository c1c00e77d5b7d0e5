"""Spans of OpenTelemetry and the trace contexts in messages, in simulated time."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.trial.unittest import SynchronousTestCase

from rmq.client.core import outgoing
from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.push import Delivery
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.observers import Ending, Handling, Pulled, Sending, Span, TracingObserver
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Later, Message, NotDurable, ReceivedMessage, Reject
from rmq.errors import ConfigurationError, NotDelivered, RequestTimeout
from rmq.wire.api.common import MessageQueue
from tests.client.cluster import Inbox, Simulated, consumer, producer, send_all
from tests.client.test_flows import FlowCase
from tests.needs import need_extra, origin

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
#: a context that a program gives to its message itself
OWN = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"


class Recorder:
    """An observer whose spans are kept."""

    def __init__(self) -> None:
        need_extra("otel")
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        from rmq.client.otel import OpenTelemetryObserver

        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = provider.get_tracer("test")
        self.observer = OpenTelemetryObserver(tracer=self.tracer)

    @property
    def names(self) -> list[str]:
        """Return the names of all spans that have ended, in the order of their ends."""
        return [span.name for span in self._kept.get_finished_spans()]

    def all(self, name: str) -> list[Any]:
        """Return the spans of a name; none has an attribute that the conventions do not have."""
        from opentelemetry.semconv._incubating.attributes import messaging_attributes
        from opentelemetry.semconv.attributes import error_attributes, server_attributes

        modules = (messaging_attributes, error_attributes, server_attributes)
        known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
        found: list[Any] = [span for span in self._kept.get_finished_spans() if span.name == name]
        for span in found:
            assert span.attributes.keys() <= known, span.attributes.keys() - known
        return found

    def one(self, name: str) -> Any:
        found = self.all(name)
        assert len(found) == 1, (name, self.names)
        return found[0]


def ids(context: Any) -> str:
    """Return what is between version and flags of the ``traceparent`` of a span's context."""
    return f"{context.trace_id:032x}-{context.span_id:016x}"


def current() -> str:
    """Return the ids of the current span."""
    from opentelemetry import trace

    return ids(trace.get_current_span().get_span_context())


def linked(span: Any) -> list[str]:
    """Return the ids of the contexts that a span links to."""
    return [ids(link.context) for link in span.links]


def carried(message: ReceivedMessage) -> str:
    """Return the ids that are in a message."""
    return message.properties["traceparent"][3:-3]


class SpanCase(FlowCase):
    def setUp(self) -> None:
        self.recorder = Recorder()
        super().setUp()
        self.make_topic()
        self.make_topic("NEXT")
        self.client = self.sim.client(self.recorder.observer)
        self.sender = producer(self.client)

    @property
    def broker_host(self) -> str:
        return self.sim.brokers["broker-a"].address

    def assert_child(self, child: Any, parent: Any) -> None:
        self.assertEqual(child.context.trace_id, parent.context.trace_id)
        self.assertEqual(child.parent.span_id, parent.context.span_id)

    def assert_has(self, span: Any, **wanted: object) -> None:
        """Check attributes; ``_`` stands for a point, and ``__`` for ``_``."""
        names = {key.replace("__", "-").replace("_", ".").replace("-", "_"): value for key, value in wanted.items()}
        self.assertEqual(names, {name: span.attributes.get(name) for name in names})


class SendTests(SpanCase):
    def test_attributes(self) -> None:
        """A send is a PRODUCER span with what the conventions want, and its context is in the stored message."""
        message = Message("T", b"x", tags="A", keys=("k1", "k2"), properties={"colour": "red"})
        with self.recorder.tracer.start_as_current_span("work"):
            result = self.sim.run(self.sender.send(message, queue=QUEUE))
        span = self.recorder.one("send T")
        self.assert_child(span, self.recorder.one("work"))
        self.assertEqual((span.kind.name, span.status.status_code.name, span.events), ("PRODUCER", "UNSET", ()))
        self.assertEqual(
            dict(span.attributes),
            {
                "messaging.system": "rocketmq",
                "messaging.operation.type": "send",
                "messaging.operation.name": "send",
                "messaging.destination.name": "T",
                "messaging.destination.partition.id": "0",
                "messaging.client.id": self.client.client_id,
                "messaging.message.id": result.message_id,
                "messaging.rocketmq.message.tag": "A",
                "messaging.rocketmq.message.keys": ("k1", "k2"),
                "messaging.rocketmq.message.type": "normal",
                "server.address": self.broker_host,
                "server.port": 10911,
            },
        )
        stored = self.stored()
        self.assertEqual((carried(stored), stored.properties["colour"]), (ids(span.context), "red"))

    def stored(self) -> ReceivedMessage:
        """Return the first message of the queue."""
        settings = PullSettings(consume_from=From.FIRST)
        reader = self.sim.run(pull_consumer(self.sim.client(), "READ", {"T": "*"}, settings))
        (message,) = self.sim.run(reader.getmany(timeout_s=30, max_messages=1))
        return message

    def test_kinds(self) -> None:
        """Delayed messages, those with a key, one-way ones and those of a namespace say what they are."""
        self.sim.run(self.sender.send(Message("T", b"x", delay_level=3)))
        self.sim.run(self.sender.send(Message("T", b"x"), sharding_key="order-7"))
        self.sim.run(self.sender.send_oneway(Message("T", b"x"), queue=QUEUE))
        delayed, keyed, oneway = self.recorder.all("send T")
        self.assert_has(
            delayed, messaging_rocketmq_message_type="delay", messaging_rocketmq_message_delay__time__level=3
        )
        self.assert_has(keyed, messaging_rocketmq_message_type="fifo", messaging_rocketmq_message_group="order-7")
        self.assert_has(oneway, messaging_destination_partition_id="0", server_address=self.broker_host)
        self.make_topic("NS%T")
        other = producer(self.sim.client(self.recorder.observer, namespace="NS"))
        self.sim.run(other.send(Message("T", b"x")))
        self.assert_has(
            self.recorder.one("send NS%T"), messaging_destination_name="NS%T", messaging_rocketmq_namespace="NS"
        )

    def test_failures(self) -> None:
        """A send that fails ends its span with the error and the last broker; one refused here has no broker."""
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.sim.brokers["broker-a"].kill()
        error = self.assertRaises(NotDelivered, self.sim.run, self.sender.send(Message("T", b"lost"), timeout_s=5))
        span = self.recorder.all("send T")[1]
        self.assertEqual((span.status.status_code.name, span.status.description), ("ERROR", str(error)))
        self.assertEqual([event.name for event in span.events], ["exception"])
        self.assert_has(span, error_type="NotDelivered", server_address=self.broker_host, server_port=10911)
        self.assertRaises(ConfigurationError, self.sim.run, self.sender.send(Message("T", b"x", keys=("a b",))))
        span = self.recorder.all("send T")[2]
        self.assert_has(span, error_type="ConfigurationError", server_address=None)

    def test_stored_but_not_safely(self) -> None:
        """With strict such a send is an error whose span says where the message is."""
        sim = Simulated(values={"brokerRole": "SYNC_MASTER"})
        self.addCleanup(sim.end)
        sender = producer(sim.client(self.recorder.observer), strict=True)
        self.assertRaises(NotDurable, sim.run, sender.send(Message("T", b"x")))
        span = self.recorder.one("send T")
        self.assert_has(span, error_type="NotDurable", server_address=sim.brokers["broker-a"].address)
        self.assertIn("messaging.destination.partition.id", span.attributes)

    def test_batch(self) -> None:
        """All messages of a batch have the context of its one span, which counts them."""
        self.sim.run(self.sender.send_batch([Message("T", b"1", tags="A"), Message("T", b"2")], queue=QUEUE))
        span = self.recorder.one("send T")
        self.assert_has(span, messaging_batch_message__count=2, messaging_message_id=None)
        inbox = Inbox()
        self.sim.run(consumer(self.sim.client(), inbox).start())
        self.until(lambda: len(inbox.got) == 2)
        self.assertEqual([carried(message) for message in inbox.got], [ids(span.context)] * 2)

    def test_own_context(self) -> None:
        """A message that has a context keeps it, and the span links to it; what else the program set is kept too."""
        own = Message("T", b"own", properties={"traceparent": f"00-{OWN}-01", "tracestate": "a=b"})
        self.sim.run(self.sender.send_batch([own, Message("T", b"other", properties={"tracestate": "c=d"})]))
        self.sim.run(self.sender.send(own))
        mixed, single = self.recorder.all("send T")
        self.assertEqual((linked(mixed), mixed.kind.name), ([OWN], "PRODUCER"))
        # its context is in no message
        self.assertEqual((linked(single), single.kind.name), ([OWN], "CLIENT"))
        inbox = Inbox()
        self.sim.run(consumer(self.sim.client(), inbox).start())
        self.until(lambda: len(inbox.got) == 3)
        found = sorted((m.body, carried(m), m.properties["tracestate"]) for m in inbox.got)
        self.assertEqual(found, [(b"other", ids(mixed.context), "c=d"), (b"own", OWN, "a=b"), (b"own", OWN, "a=b")])


class HandlerTests(SpanCase):
    def test_one_trace(self) -> None:
        """The send in a handler, its message's handler and the first send are one trace."""
        second = producer(self.client)
        seen: list[str] = []

        async def forward(message: ReceivedMessage) -> None:
            await self.client.host.sleep(1)
            seen.append(current())
            await second.send(Message("NEXT", message.body))

        inbox = Inbox()
        self.sim.run(consumer(self.client, forward).start())
        self.sim.run(consumer(self.client, inbox, {"NEXT": "*"}, group="LAST").start())
        sent = self.sim.run(self.sender.send(Message("T", b"x", tags="A", keys=("k",)), queue=QUEUE))
        self.until(lambda: {"process T", "process NEXT"} <= set(self.recorder.names))
        first, process, then, last = [
            self.recorder.one(name) for name in ("send T", "process T", "send NEXT", "process NEXT")
        ]
        self.assert_child(process, first)
        self.assert_child(then, process)
        self.assert_child(last, then)
        self.assertEqual((linked(process), seen), ([ids(first.context)], [ids(process.context)]))
        self.assertEqual((process.kind.name, process.status.status_code.name), ("CONSUMER", "UNSET"))
        self.assertEqual(
            dict(process.attributes),
            {
                "messaging.system": "rocketmq",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": "T",
                "messaging.destination.partition.id": "0",
                "messaging.consumer.group.name": "CG",
                "messaging.client.id": self.client.client_id,
                "messaging.message.id": sent.message_id,
                "messaging.rocketmq.message.tag": "A",
                "messaging.rocketmq.message.keys": ("k",),
                "messaging.rocketmq.consumption_model": "clustering",
                "server.address": self.broker_host,
                "server.port": 10911,
            },
        )

    def a_second(self) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        self.sim.world.schedule(1.0, lambda: done.callback(None))
        return done

    def test_ways_of_handlers(self) -> None:
        """The span is current in functions, in generators of Twisted and where a Deferred is waited for; not after."""
        seen: dict[str, str] = {}

        def function(message: ReceivedMessage) -> Deferred[None]:
            seen["function"] = current()
            return self.a_second()

        @inlineCallbacks
        def generator(message: ReceivedMessage) -> Generator[Deferred[Any], Any, None]:
            yield self.a_second()
            seen["generator"] = current()

        for group, handler in (("A", function), ("B", generator)):
            # a span that is current at the start of a consumer has no part in its messages
            with self.recorder.tracer.start_as_current_span("start"):
                self.sim.run(consumer(self.client, handler, group=group).start())
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.until(lambda: self.recorder.names.count("process T") == 2)
        self.assertEqual(sorted(seen.values()), sorted(ids(span.context) for span in self.recorder.all("process T")))
        self.assertEqual(current(), f"{0:032x}-{0:016x}")
        for span in self.recorder.all("process T"):
            self.assert_child(span, self.recorder.one("send T"))

    def test_without_context(self) -> None:
        """A message without a context begins a trace of its own, whatever was current when the consumer started."""
        with self.recorder.tracer.start_as_current_span("start"):
            self.sim.run(consumer(self.client, Inbox()).start())
        self.sim.run(producer(self.sim.client()).send(Message("T", b"x")))
        self.until(lambda: "process T" in self.recorder.names)
        process = self.recorder.one("process T")
        self.assertEqual((process.parent, process.links), (None, ()))

    def test_failures(self) -> None:
        """What a handler raises is in its span; each delivery is a child of the one send, whose context is kept."""

        def handle(message: ReceivedMessage) -> None:
            if message.reconsume_times == 0:
                raise Later(delay_level=1)
            if message.reconsume_times == 1:
                raise LookupError("planted")
            raise Reject

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.until(lambda: self.sim.broker().store.max_offset("%DLQ%CG", 0) == 1, 120, "the dead letter")
        sent, (later,) = self.recorder.one("send T"), self.recorder.all("process T")
        failed, rejected = self.recorder.all("process %RETRY%CG")
        for span, error, events in ((later, "Later", 0), (failed, "LookupError", 1), (rejected, "Reject", 0)):
            self.assert_child(span, sent)
            self.assertEqual((span.status.status_code.name, len(span.events)), ("ERROR", events))
            self.assert_has(span, error_type=error)
        self.assert_has(later, messaging_destination__publish_name=None)
        self.assert_has(failed, messaging_destination__publish_name="T")
        self.assertEqual([carried(message) for message in inbox.got], [ids(sent.context)] * 3)
        # sent back by the member itself, where the broker refuses
        again = outgoing.again(inbox.got[0], "CG", 16).properties
        self.assertEqual(again.count("traceparent"), 1)
        self.assertIn(ids(sent.context), again)
        self.assertEqual(set(self.recorder.names), {"send T", "process T", "process %RETRY%CG"})

    def test_cancelled(self) -> None:
        """The span of a handler that runs too long is a TimeoutError."""

        def hang(message: ReceivedMessage) -> Deferred[None] | None:
            return None if message.reconsume_times else Deferred()

        self.sim.run(consumer(self.client, hang, concurrency=1, consume_timeout_s=30).start())
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.until(lambda: "process %RETRY%CG" in self.recorder.names, 120)
        self.assert_has(self.recorder.one("process T"), error_type="TimeoutError")
        self.assert_has(self.recorder.one("process %RETRY%CG"), error_type=None)

    def test_lists(self) -> None:
        """A handler of lists has one span, which links to the sends of all messages and says which message is meant."""
        for orderly in (False, True):
            group = f"LIST-{orderly}"
            taken: list[tuple[int, str]] = []

            def handle(messages: list[ReceivedMessage], taken: list[tuple[int, str]] = taken) -> None:
                taken.append((len(messages), current()))

            made = consumer(self.client, handle, group=group, batch_size=8, orderly=orderly, concurrency=1)
            self.sim.run(self.send_three())
            self.sim.run(made.start())
            self.until(lambda taken=taken, orderly=orderly: sum(n for n, _ in taken) == 3 * (1 + orderly))
            spans = [
                span
                for span in self.recorder.all("process T")
                if span.attributes["messaging.consumer.group.name"] == group
            ]
            self.assertEqual(
                taken, [(span.attributes["messaging.batch.message_count"], ids(span.context)) for span in spans]
            )
            lists = [span for span in spans if span.attributes["messaging.batch.message_count"] > 1]
            self.assertTrue(lists)
            sends = {span.attributes["messaging.message.id"]: ids(span.context) for span in self.recorder.all("send T")}
            for span in lists:
                self.assertEqual((span.parent, span.kind.name), (None, "CONSUMER"))
                self.assertNotIn("messaging.message.id", span.attributes)
                about = [link.attributes["messaging.message.id"] for link in span.links]
                self.assertEqual(linked(span), [sends[message_id] for message_id in about])
                self.assertEqual(len(about), span.attributes["messaging.batch.message_count"])
            self.sim.run(made.close())

    async def send_three(self) -> None:
        await send_all(self.sender, [b"1", b"2", b"3"], queue=QUEUE)

    def test_blocks(self) -> None:
        """The block of a delivery has the span as the current one, and leaves the former one behind it."""
        self.sim.run(self.sender.send(Message("T", b"x")))
        made = consumer(self.client, None)

        async def block(delivery: Delivery) -> tuple[str, str]:
            with self.recorder.tracer.start_as_current_span("around"):
                async with delivery:
                    await self.client.host.sleep(1)
                    inside = current()
                    await self.sender.send(Message("NEXT", b"y"))
                return inside, current()

        inside, after = self.sim.run(block(self.sim.run(made.receive())))
        process = self.recorder.one("process T")
        self.assert_child(process, self.recorder.one("send T"))
        self.assert_child(self.recorder.one("send NEXT"), process)
        self.assertEqual((inside, after), (ids(process.context), ids(self.recorder.one("around").context)))

    def test_pulls(self) -> None:
        """A getmany that gives messages is a CLIENT span over its wait, with links; one without messages is none."""
        settings = PullSettings(consume_from=From.FIRST)
        puller = self.sim.run(pull_consumer(self.client, "PULL", {"T": "*"}, settings))
        self.assertEqual(self.sim.run(puller.getmany(timeout_s=3)), [])
        self.assertEqual(self.recorder.names, [])
        waiting = Deferred.fromCoroutine(puller.getmany(timeout_s=30))
        self.sim.pass_s(4)
        result = self.sim.run(self.sender.send(Message("T", b"x")))
        (message,) = self.sim.world.settle(waiting)
        span, sent = self.recorder.one("receive T"), self.recorder.one("send T")
        self.assertEqual((linked(span), span.kind.name), ([ids(sent.context)], "CLIENT"))
        self.assertEqual(span.links[0].attributes["messaging.message.id"], result.message_id)
        self.assertTrue(4.0 <= (span.end_time - span.start_time) / 1e9 < 10, (span.start_time, span.end_time))
        self.assert_has(
            span,
            messaging_operation_type="receive",
            messaging_batch_message__count=1,
            messaging_consumer_group_name="PULL",
        )
        self.assertEqual(carried(message), ids(sent.context))


class ConversationTests(SpanCase):
    def test_transactions(self) -> None:
        """The half message carries the trace to its consumer; its end is a span, and so is the check of a broker."""
        asked: list[str] = []

        async def check(message: ReceivedMessage) -> Outcome:
            await self.client.host.sleep(1)
            asked.append(current())
            return Outcome.COMMIT

        made = transaction_producer(self.client, "TG", check, ProducerSettings())

        async def work(how: Callable[[Any], None]) -> None:
            with self.recorder.tracer.start_as_current_span("work"):
                async with made.transaction(Message("T", b"x")) as transaction:
                    how(transaction)

        self.sim.run(consumer(self.client, Inbox()).start())
        self.sim.run(work(lambda transaction: None))
        self.until(lambda: "process T" in self.recorder.names)
        sent, commit, process = [self.recorder.one(name) for name in ("send T", "commit T", "process T")]
        self.assert_child(sent, self.recorder.one("work"))
        self.assert_child(commit, self.recorder.one("work"))
        self.assert_child(process, sent)
        kinds = [span.attributes["messaging.rocketmq.message.type"] for span in (sent, commit, process)]
        self.assertEqual((kinds, commit.kind.name), (["transaction"] * 3, "CLIENT"))
        self.assert_has(commit, messaging_operation_type="settle", server_address=self.broker_host)
        self.sim.run(work(lambda transaction: transaction.unknown()))
        self.until(lambda: len(self.recorder.all("process T")) == 2, 200)
        asking, second = self.recorder.one("check T"), self.recorder.all("send T")[1]
        self.assert_child(asking, second)
        self.assertEqual(asked, [ids(asking.context)])
        self.assert_child(self.recorder.all("process T")[1], second)
        self.assertNotIn("messaging.consumer.group.name", asking.attributes)

        def fail(transaction: object) -> None:
            raise LookupError

        self.assertRaises(LookupError, self.sim.run, work(fail))
        self.assertEqual(len(self.recorder.all("rollback T")), 1)

    def test_request_and_reply(self) -> None:
        """A request, its handler and the reply are one trace and one conversation; the request ends with its reply."""
        replier = producer(self.client)

        async def handle(message: ReceivedMessage) -> None:
            await self.client.host.sleep(1)
            if message.body == b"hello":
                await replier.reply(message, b"HELLO")

        self.sim.run(consumer(self.client, handle).start())
        reply = self.sim.run(self.sender.request(Message("T", b"hello"), timeout_s=20))
        self.until(lambda: "process T" in self.recorder.names)
        request, process = self.recorder.one("request T"), self.recorder.one("process T")
        answer = self.recorder.one("reply DefaultCluster_REPLY_TOPIC")
        self.assert_child(process, request)
        self.assert_child(answer, process)
        self.assertEqual(carried(reply), ids(answer.context))
        conversations = {span.attributes["messaging.message.conversation_id"] for span in (request, process, answer)}
        self.assertEqual(conversations, {reply.properties["CORRELATION_ID"]})
        self.assertLess(answer.start_time, request.end_time)
        self.assertRaises(RequestTimeout, self.sim.run, self.sender.request(Message("T", b"silence"), timeout_s=3))
        self.assert_has(self.recorder.all("request T")[1], error_type="RequestTimeout", server_address=self.broker_host)


class Broken(TracingObserver):
    """Fails in all methods, or with ``late`` in those of its spans."""

    def __init__(self, late: bool) -> None:
        self._late = late

    def _begun(self, event: object) -> Span:
        if not self._late:
            raise LookupError("planted")
        return BrokenSpan()

    def sending(self, event: Sending) -> Span:
        return self._begun(event)

    def handling(self, event: Handling) -> Span:
        return self._begun(event)

    def ending(self, event: Ending) -> Span:
        return self._begun(event)

    def pulled(self, event: Pulled) -> None:
        raise LookupError("planted")


class BrokenSpan(Span):
    def attach(self) -> None:
        raise LookupError("planted")

    def detach(self) -> None:
        raise LookupError("planted")

    def end(
        self, *, error: BaseException | None = None, queue: MessageQueue | None = None, addr: str | None = None
    ) -> None:
        raise LookupError("planted")


class GuardTests(FlowCase):
    def test_broken(self) -> None:
        """An observer that fails stops no message; the log has its failures."""
        self.make_topic()
        for late in (False, True):
            client = self.sim.client(Broken(late))
            inbox = Inbox()
            with self.assertLogs("rmq.client", logging.ERROR) as logs:
                self.sim.run(consumer(client, inbox, group=f"CG-{late}").start())
                self.sim.run(producer(client).send(Message("T", b"x")))
                self.until(lambda inbox=inbox: inbox.got)
                made = transaction_producer(client, "TG", lambda message: Outcome.COMMIT, ProducerSettings())
                result = self.sim.run(made.begin(Message("T", b"y")))
                self.sim.run(made.end(result, Outcome.COMMIT))
                self.until(lambda inbox=inbox: len(inbox.got) >= 2)
                puller = self.sim.run(
                    pull_consumer(client, f"PULL-{late}", {"T": "*"}, PullSettings(consume_from=From.FIRST))
                )
                self.assertTrue(self.sim.run(puller.getmany(timeout_s=30)))
            self.assertTrue(all("planted" in text and "Broken" in text for text in logs.output), logs.output)
            self.assertGreaterEqual(len(logs.output), 6)

    def test_one_for_a_client(self) -> None:
        """A client with two observers that trace is refused: its messages have one context."""
        error = self.assertRaises(ConfigurationError, self.sim.client, Broken(True), Broken(False))
        self.assertIn("only one observer", str(error))


class ImportTests(SynchronousTestCase):
    def loaded(self, *modules: str) -> set[str]:
        """Return the top packages that a new process has after these imports."""
        text = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        place = origin("rmq")
        assert place is not None
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=place.parent
        )
        return set(done.stdout.split())

    def test_not_imported(self) -> None:
        """The client imports OpenTelemetry only with its observer, and that brings no Twisted to asyncio."""
        self.assertNotIn("opentelemetry", self.loaded("rmq.aio", "rmq.tx", "rmq.blocking"))
        need_extra("otel")
        found = self.loaded("rmq.aio", "rmq.client.otel")
        self.assertIn("opentelemetry", found)
        self.assertNotIn("twisted", found)
