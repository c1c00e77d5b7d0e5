"""The current ends of logs that are being written, found by reading only their last segment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from rmq_audit.driver import inventory
from rmq_audit.driver.audit import Options
from rmq_audit.driver.clusterconfig import ClusterConfig
from rmq_audit.driver.inventory import Store
from rmq_audit.driver.log import build_log
from rmq_audit.driver.scan import CHUNK_BYTES, join_scans, plan_splits
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.files import StoreFile, read_at
from rmq_audit.worker.location import InputError, ReadError
from rmq_audit.worker.records import HEADER_BYTES
from rmq_audit.worker.scan import SCAN
from rmq_audit.worker.work import MASTER, SLAVE, STORE


@attrs.frozen(kw_only=True)
class End:
    """The physical offset after the last whole record of a log, when it was seen (as text), and whose log it is."""

    phy: int
    at: str
    side: str
    broker: str | None = None


def observe_ends(config: ClusterConfig, engine: Engine, options: Options, at: str) -> Mapping[str, End]:
    """
    Return the ends of all logs that do not state theirs, by place; a store that cannot be listed has none.

    Slaves come before their masters: then no slave is seen ahead because its master was looked at too early.
    """
    found: dict[str, End] = {}
    for side, broker, path in _places(config):
        try:
            store = inventory.take_inventory(side, path)
        except InputError:
            continue  # the round says what is wrong with it
        if store.manifest is not None and store.manifest.max_phy_offset is not None:
            continue
        phy = _end_of(store, engine, options)
        if phy is not None:
            found[store.path] = End(phy=phy, at=at, side=side, broker=broker)
    return found


def _places(config: ClusterConfig) -> Iterator[tuple[str, str, str]]:
    for broker in config.brokers:
        several = len(broker.slaves) > 1
        for number, path in enumerate(broker.slaves, 1):
            yield f"{SLAVE} {number}" if several else SLAVE, broker.name, path
    for broker in config.brokers:
        yield MASTER if broker.slaves else STORE, broker.name, broker.master


def _end_of(store: Store, engine: Engine, options: Options) -> int | None:
    last = _last_used(store)
    if last is None:
        return None
    alone = attrs.evolve(store, segments=(last,), queues=(), indexes=(), problems=())
    size = store.segment_bytes or last.size_bytes
    splits = list(plan_splits(alone, last, size, split_bytes=options.split_bytes, chunk_bytes=CHUNK_BYTES, crc=False))
    scans, _ = join_scans(engine.run(SCAN, splits), lambda again: engine.run(SCAN, again))
    if any(scan.error is not None for scan in scans):
        return None
    return build_log(alone, size, scans).end


def _last_used(store: Store) -> StoreFile | None:
    """Return the last segment that begins with anything; brokers make the next one ahead, full of zeros."""
    for segment in reversed(store.segments):
        try:
            if read_at(segment.path, 0, HEADER_BYTES).strip(b"\0"):
                return segment
        except ReadError:
            return None
    return None
