"""How a store is: one value for metrics and status pages."""

from __future__ import annotations

import enum

import attrs

from rmq.runtime.disk.files import DiskUsage
from rmq.runtime.histogram import Histogram


class StopBefore(enum.Enum):
    """How the process that used the store before has ended."""

    CLEAN = "clean"
    #: or its machine has lost its power
    KILLED = "killed"
    #: it stopped because an fsync had failed
    SYNC_FAILED = "sync_failed"


@attrs.frozen(kw_only=True)
class LoadReport:
    """How the last load went: after which stop, how long it took, how much of the log was read again."""

    stop_before: StopBefore
    seconds: float
    read_bytes: int


@attrs.frozen(kw_only=True)
class StoreHealth:
    """
    The state of a store that has been loaded.

    ``failure`` is the error after which nothing is promised any more. ``refuses_because`` is what is wrong with a disk
    while messages are refused for it: above its limit, full or broken. ``damaged_parts`` counts parts of the log that
    were passed over because they could not be read, ``dispatch_failures`` messages that a bug cost their unit, their
    keys or a listener. ``sync_seconds`` is live: how long each sync of the log took.
    """

    is_writable: bool
    failure: str | None
    refuses_because: str | None
    #: files of the log that were deleted before fileReservedTime had passed, since the start
    early_deletions: int
    log_disk: DiskUsage
    queue_disk: DiskUsage
    segments: int
    queues: int
    damaged_parts: int
    dispatch_failures: int
    puts_waiting_for_disk: int
    sync_seconds: Histogram
    load: LoadReport | None
