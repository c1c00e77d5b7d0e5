"""An observer for Prometheus; needs the extra ``metrics``."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from rmq.client.observers import Handled, Observer, Rebalanced, Received, Sent, Settled


class PrometheusObserver(Observer):
    """Counters and histograms in a registry; one object for all clients of it. docs/client.md lists the names."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        names = ("topic", "group")

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(f"rmq_client_{name}", text, (*names, *more), registry=registry)

        def histogram(name: str, text: str, *more: str) -> Histogram:
            return Histogram(f"rmq_client_{name}_seconds", text, (*names, *more), registry=registry)

        self._sent = counter("sent_messages", "Messages whose send has ended.", "result")
        self._sent_bytes = counter("sent_bytes", "Bytes of stored bodies, compressed.")
        self._send = histogram("send", "Duration of sends, with all tries.", "result")
        self._received = counter("received_messages", "Messages that pulls have brought.")
        self._received_bytes = counter("received_bytes", "Bytes of the bodies of received messages, compressed.")
        self._handler = histogram("handler", "Duration of handlers.", "result")
        self._settled = counter("settled_messages", "Messages acknowledged, retried, rejected or skipped.", "how")
        self._queues = Gauge("rmq_client_queues", "Queues that consumers have.", names, registry=registry)
        self._rebalances = counter("rebalances", "How often the queues of a consumer changed.")

    def sent(self, event: Sent) -> None:
        result = _result(event.error)
        self._sent.labels(event.topic, event.group, result).inc(event.messages)
        self._send.labels(event.topic, event.group, result).observe(event.seconds)
        if event.error is None:
            self._sent_bytes.labels(event.topic, event.group).inc(event.body_bytes)

    def received(self, event: Received) -> None:
        self._received.labels(event.topic, event.group).inc(event.messages)
        self._received_bytes.labels(event.topic, event.group).inc(event.body_bytes)

    def handled(self, event: Handled) -> None:
        self._handler.labels(event.topic, event.group, _result(event.error)).observe(event.seconds)

    def settled(self, event: Settled) -> None:
        self._settled.labels(event.topic, event.group, event.how.value).inc(event.messages)

    def rebalanced(self, event: Rebalanced) -> None:
        self._queues.labels(event.topic, event.group).inc(len(event.gained) - len(event.lost))
        self._rebalances.labels(event.topic, event.group).inc()


def _result(error: Exception | None) -> str:
    return "ok" if error is None else type(error).__name__
