"""How a store is: one value for metrics and status pages."""

from __future__ import annotations

import attrs

from rmq.runtime.disk.files import DiskUsage
from rmq.runtime.histogram import Histogram


@attrs.frozen(kw_only=True)
class LoadReport:
    """How the last load went: after a clean stop or not, how long it took, how much of the log was read again."""

    is_clean: bool
    seconds: float
    read_bytes: int


@attrs.frozen(kw_only=True)
class StoreHealth:
    """
    The state of a store that has been loaded.

    ``failure`` is the error after which nothing is promised any more. ``damaged_parts`` counts parts of the log that
    were passed over because they could not be read, ``dispatch_failures`` messages that a bug cost their unit, their
    keys or a listener. ``sync_seconds`` is live: how long each sync of the log took.
    """

    is_writable: bool
    failure: str | None
    is_disk_full: bool
    log_disk: DiskUsage
    queue_disk: DiskUsage
    segments: int
    queues: int
    damaged_parts: int
    dispatch_failures: int
    puts_waiting_for_disk: int
    sync_seconds: Histogram
    load: LoadReport | None
