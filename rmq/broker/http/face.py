"""The contents of a broker's HTTP port; imported lazily, because it needs prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from rmq.broker.http.metrics import BrokerCollector
from rmq.broker.http.pages import BrokerPages
from rmq.broker.service import BrokerService
from rmq.runtime.http.face import Face
from rmq.runtime.http.metrics import Collector, Family, ProcessMetrics

if TYPE_CHECKING:
    from rmq.broker.elected.service import ElectedBroker


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


class _Elected(Collector):
    """The broker of the present role, as a collector of metrics."""

    def __init__(self, elected: ElectedBroker) -> None:
        super().__init__()
        self._elected = elected

    def collect(self) -> Iterator[Metric]:
        broker = self._elected.broker
        return iter(()) if broker is None else BrokerCollector(broker).collect()

    def in_slices(self) -> Iterator[tuple[Family, Iterator[Metric]]]:
        broker = self._elected.broker
        return iter(()) if broker is None else BrokerCollector(broker).in_slices()


def elected_face(elected: ElectedBroker) -> Face:
    """Return metrics, pages and health of the broker in its present role; it is not well while it has none."""
    without_role = "this broker has no role: the controller has not given it one"

    def page_at(path: str) -> Callable[[Mapping[str, str]], str]:
        def page(query: Mapping[str, str]) -> str:
            broker = elected.broker
            return f"<p>{without_role}</p>" if broker is None else BrokerPages(broker).by_path()[path](query)

        return page

    def health() -> str | None:
        broker = elected.broker
        return without_role if broker is None else broker_face(broker).health()

    return Face(
        collectors=(_Elected(elected), ProcessMetrics()),
        pages={path: page_at(path) for path in BrokerPages.PATHS},
        health=health,
    )
