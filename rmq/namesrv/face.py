"""What a NameServer shows on its HTTP port; imported when there is one, for it needs prometheus_client."""

from __future__ import annotations

from rmq.namesrv.metrics import NamesrvCollector
from rmq.namesrv.pages import NamesrvPages
from rmq.namesrv.service import NamesrvService
from rmq.runtime.http import Face
from rmq.runtime.metrics import ProcessMetrics


def namesrv_face(namesrv: NamesrvService) -> Face:
    """Return metrics, pages and health of ``namesrv``."""

    def health() -> str | None:
        if not namesrv.running:
            return "the NameServer does not run"
        return None if namesrv.look_ups.ready else "look-ups are refused until brokers had time to register"

    return Face(
        collectors=(NamesrvCollector(namesrv), ProcessMetrics()), pages=NamesrvPages(namesrv).by_path(), health=health
    )
