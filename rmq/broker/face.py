"""What a broker shows on its HTTP port; imported when there is one, for it needs prometheus_client."""

from __future__ import annotations

from rmq.broker.metrics import BrokerCollector
from rmq.broker.pages import BrokerPages
from rmq.broker.service import BrokerService
from rmq.runtime.http import Face
from rmq.runtime.metrics import ProcessMetrics


def broker_face(broker: BrokerService) -> Face:
    """Return metrics, pages and health of ``broker``."""

    def health() -> str | None:
        if not broker.running:
            return "the broker does not run"
        failure = broker.store.health().failure
        return None if failure is None else f"the store has failed: {failure}"

    return Face(
        collectors=(BrokerCollector(broker), ProcessMetrics()), pages=BrokerPages(broker).by_path(), health=health
    )
