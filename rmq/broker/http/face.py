"""The contents of a broker's HTTP port; imported lazily, because it needs prometheus_client."""

from __future__ import annotations

from rmq.broker.http.metrics import BrokerCollector
from rmq.broker.http.pages import BrokerPages
from rmq.broker.service import BrokerService
from rmq.runtime.http.face import Face
from rmq.runtime.http.metrics import ProcessMetrics


def broker_face(broker: BrokerService) -> Face:
    """Return metrics, pages and health of ``broker``."""

    def health() -> str | None:
        if not broker.running:
            return "the broker is not running"
        failure = broker.store.health().failure
        return None if failure is None else f"the store has failed: {failure}"

    return Face(
        collectors=(BrokerCollector(broker), ProcessMetrics()), pages=BrokerPages(broker).by_path(), health=health
    )
