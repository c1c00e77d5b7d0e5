"""
An observer for OpenTelemetry: metrics, spans and W3C trace contexts; needs the extra ``otel``.

Names are those of the semantic conventions for messaging. The context of a send is in the properties of its messages,
as the propagators of the program write it: ``traceparent``, ``tracestate`` and ``baggage``, if no others are chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Token

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import Meter, get_meter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from rmq.client.observers import (
    Ending,
    Handled,
    Handling,
    Pulled,
    Rebalanced,
    Received,
    Sending,
    Sent,
    Settled,
    Span,
    TracingObserver,
)
from rmq.client.types import Later, Message, ReceivedMessage, Reject
from rmq.wire.api.common import MessageQueue
from rmq.wire.record import PROPERTY_RETRY_TOPIC, TRANSACTION_MASK

#: seconds; the conventions advise them
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

Attributes = dict[str, AttributeValue]


class OpenTelemetryObserver(TracingObserver):
    """
    Metrics of a meter and spans of a tracer, by default of the global providers. docs/client.md lists the names.

    The propagators are the global ones.
    """

    def __init__(self, meter: Meter | None = None, tracer: Tracer | None = None) -> None:
        meter = meter or get_meter("rmq.client")
        self._tracer = tracer or trace.get_tracer("rmq.client")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that the client attempted to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered to the client."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sends and pulls.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of handlers.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        # the conventions have no counter for this
        self._settled = meter.create_counter(
            "rmq.client.settled.messages", "{message}", "Messages acknowledged, retried, rejected or skipped."
        )
        self._queues = meter.create_up_down_counter("rmq.client.queues", "{queue}", "Queues that consumers have.")

    def sent(self, event: Sent) -> None:
        attributes = _attributes("send", "send", event.topic, None, event.error)
        self._sent.add(event.messages, attributes)
        self._operation.record(event.seconds, attributes)

    def received(self, event: Received) -> None:
        attributes = _attributes("receive", "receive", event.topic, event.group, None)
        attributes["messaging.destination.partition.id"] = str(event.queue.queue_id)
        self._consumed.add(event.messages, attributes)
        self._operation.record(event.seconds, attributes)

    def handled(self, event: Handled) -> None:
        attributes = _attributes("process", "process", event.topic, event.group, event.error)
        self._process.record(event.seconds, attributes)

    def settled(self, event: Settled) -> None:
        attributes = _attributes("settle", event.how.value, event.topic, event.group, None)
        self._settled.add(event.messages, attributes)

    def rebalanced(self, event: Rebalanced) -> None:
        attributes: Attributes = {
            "messaging.system": "rocketmq",
            "messaging.destination.name": event.topic,
            "messaging.consumer.group.name": event.group,
        }
        self._queues.add(len(event.gained) - len(event.lost), attributes)

    # spans

    def sending(self, event: Sending) -> Span:
        attributes = _attributes("send", event.name, event.topic, None, None) | _client(event)
        if event.is_batch:
            attributes["messaging.batch.message_count"] = len(event.messages)
        else:
            (message,), (message_id,) = event.messages, event.message_ids
            attributes |= _of_message(message, message_id) | _type(event, message)
        if event.conversation_id is not None:
            attributes["messaging.message.conversation_id"] = event.conversation_id
        contexts = [propagate.extract(message.properties, Context()) for message in event.messages]
        links = _links(contexts)
        # where every message has a context of its own, that of the span goes nowhere
        kind = SpanKind.CLIENT if len(links) == len(event.messages) else SpanKind.PRODUCER
        span = self._tracer.start_span(f"{event.name} {event.topic}", kind=kind, attributes=attributes, links=links)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        properties = [_added(carrier, *each) for each in zip(event.messages, contexts, strict=True)]
        return _Begun(span, Context(), properties)

    def handling(self, event: Handling) -> Span:
        name = "check" if event.group is None else "process"
        topic = event.messages[0].queue.topic
        attributes = _attributes("process", name, topic, event.group, None) | _client(event)
        attributes |= _of_queue(event.messages[0])
        if event.group is not None:
            attributes["messaging.rocketmq.consumption_model"] = "broadcasting" if event.is_broadcast else "clustering"
        contexts = [propagate.extract(message.properties, Context()) for message in event.messages]
        parent, links = Context(), _links(contexts, event.messages)
        if event.is_batch:
            attributes["messaging.batch.message_count"] = len(event.messages)
        if len(event.messages) == 1:
            parent, links = contexts[0], _links(contexts)
            attributes |= _of_received(event.messages[0])
        span = self._tracer.start_span(
            f"{name} {topic}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        return _Begun(span, trace.set_span_in_context(span, parent))

    def ending(self, event: Ending) -> Span:
        attributes = _attributes("settle", event.name, event.topic, None, None) | _client(event)
        attributes |= {"messaging.message.id": event.message_id, "messaging.rocketmq.message.type": "transaction"}
        span = self._tracer.start_span(f"{event.name} {event.topic}", kind=SpanKind.CLIENT, attributes=attributes)
        return _Begun(span, Context())

    def pulled(self, event: Pulled) -> None:
        topics = {message.queue.topic for message in event.messages}
        topic = topics.pop() if len(topics) == 1 else None
        attributes = _attributes("receive", "receive", topic, event.group, None) | _client(event)
        attributes["messaging.batch.message_count"] = len(event.messages)
        contexts = [propagate.extract(message.properties, Context()) for message in event.messages]
        span = self._tracer.start_span(
            "receive" if topic is None else f"receive {topic}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links(contexts, event.messages),
            start_time=event.began_ms * 1_000_000,
        )
        span.end(event.ended_ms * 1_000_000)


class _Begun(Span):
    """A span, and the context that is current while it is attached."""

    def __init__(self, span: trace.Span, context: Context, properties: Sequence[Mapping[str, str]] = ()) -> None:
        self.properties = properties
        self._span = span
        self._context = context
        self._token: Token[Context] | None = None

    def attach(self) -> None:
        self._token = attach(self._context)

    def detach(self) -> None:
        if self._token is not None:
            detach(self._token)

    def end(
        self, *, error: BaseException | None = None, queue: MessageQueue | None = None, addr: str | None = None
    ) -> None:
        if addr is not None:
            self._span.set_attributes(_server(addr))
        if queue is not None:
            self._span.set_attribute("messaging.destination.partition.id", str(queue.queue_id))
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
            if not isinstance(error, Later | Reject):
                self._span.record_exception(error)
        self._span.end()


def _added(carrier: Mapping[str, str], message: Message, context: Context) -> dict[str, str]:
    """Return what a message gets of a context: nothing when it has one of its own."""
    if trace.get_current_span(context).get_span_context().is_valid:
        return {}
    return {name: value for name, value in carrier.items() if value and name not in message.properties}


def _links(contexts: Sequence[Context], messages: Sequence[ReceivedMessage] = ()) -> list[Link]:
    """Return links to the contexts that are there; with ``messages`` they say which message is meant."""
    about: Iterable[Attributes | None] = map(_of_received, messages) if messages else [None] * len(contexts)
    found = (
        (trace.get_current_span(context).get_span_context(), what)
        for context, what in zip(contexts, about, strict=True)
    )
    return [Link(context, what) for context, what in found if context.is_valid]


def _client(event: Sending | Handling | Ending | Pulled) -> Attributes:
    found: Attributes = {"messaging.client.id": event.client_id}
    if event.namespace is not None:
        found["messaging.rocketmq.namespace"] = event.namespace
    return found


def _of_message(message: Message | ReceivedMessage, message_id: str) -> Attributes:
    found: Attributes = {"messaging.message.id": message_id}
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        found["messaging.rocketmq.message.keys"] = message.keys
    return found


def _type(event: Sending, message: Message) -> Attributes:
    if event.is_half:
        return {"messaging.rocketmq.message.type": "transaction"}
    if message.delay_level:
        level = message.delay_level
        return {"messaging.rocketmq.message.type": "delay", "messaging.rocketmq.message.delay_time_level": level}
    if event.sharding_key is not None:
        return {"messaging.rocketmq.message.type": "fifo", "messaging.rocketmq.message.group": event.sharding_key}
    return {"messaging.rocketmq.message.type": "normal"}


def _of_received(message: ReceivedMessage) -> Attributes:
    found = _of_message(message, message.message_id)
    if message.record.sys_flag & TRANSACTION_MASK:
        found["messaging.rocketmq.message.type"] = "transaction"
    if (conversation_id := message.properties.get("CORRELATION_ID")) is not None:
        found["messaging.message.conversation_id"] = conversation_id
    return found


def _of_queue(message: ReceivedMessage) -> Attributes:
    """Where a message comes from: its queue, its broker, and the topic that it was sent to if that is another one."""
    found = _server(message.store_host) | {"messaging.destination.partition.id": str(message.queue.queue_id)}
    if (sent_to := message.properties.get(PROPERTY_RETRY_TOPIC)) is not None:
        found["messaging.destination_publish.name"] = sent_to
    return found


def _server(addr: str) -> Attributes:
    host, _, port = addr.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)}


def _attributes(kind: str, name: str, topic: str | None, group: str | None, error: Exception | None) -> Attributes:
    found: Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
    }
    if topic is not None:
        found["messaging.destination.name"] = topic
    if group is not None:
        found["messaging.consumer.group.name"] = group
    if error is not None:
        found["error.type"] = type(error).__name__
    return found
