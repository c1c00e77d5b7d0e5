"""An observer for OpenTelemetry, with the names of its semantic conventions for messaging; needs the extra ``otel``."""

from __future__ import annotations

from opentelemetry.metrics import Meter, get_meter

from rmq.client.observers import Handled, Observer, Received, Sent, Settled

#: seconds; the conventions advise them
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

Attributes = dict[str, str]


class OpenTelemetryObserver(Observer):
    """Metrics of a meter, by default of the global provider. docs/client.md lists the names."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("rmq.client")
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


def _attributes(kind: str, name: str, topic: str, group: str | None, error: Exception | None) -> Attributes:
    found = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": topic,
    }
    if group is not None:
        found["messaging.consumer.group.name"] = group
    if error is not None:
        found["error.type"] = type(error).__name__
    return found
