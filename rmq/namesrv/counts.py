"""What a NameServer counts for its metrics beside its requests."""

from __future__ import annotations

from rmq.namesrv.events import EventKind, RouteEvent
from rmq.runtime.histogram import Histogram

#: seconds; a scan looks at every broker and normally takes microseconds
SCAN_BOUNDS_S = (0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)


class NamesrvCounts:
    """Events of the route table by kind, and how long the scans for silent brokers took, in seconds."""

    def __init__(self) -> None:
        self.events: dict[EventKind, int] = dict.fromkeys(EventKind, 0)
        self.scans = Histogram(SCAN_BOUNDS_S)

    def happened(self, event: RouteEvent) -> None:
        """Count an event; for the table's ``on_event``."""
        self.events[event.kind] += 1
