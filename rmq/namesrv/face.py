"""What a NameServer shows on its HTTP port; imported when there is one, for it needs prometheus_client."""

from __future__ import annotations

from rmq.namesrv.metrics import NamesrvCollector
from rmq.namesrv.pages import NamesrvPages
from rmq.namesrv.service import NamesrvService
from rmq.runtime.http import Face
from rmq.runtime.metrics import ProcessMetrics


def namesrv_face(namesrv: NamesrvService) -> Face:
    """Return metrics, pages and health of ``namesrv``."""
    return Face(
        collectors=(NamesrvCollector(namesrv), ProcessMetrics()),
        pages=NamesrvPages(namesrv).by_path(),
        health=lambda: None if namesrv.running else "the NameServer does not run",
    )
