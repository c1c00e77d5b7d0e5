"""Further queues of records: whether a store's broker makes units in them, and which runs of queues hold then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmq.wire.record import LMQ_PREFIX
from rmq_audit.driver.inventory import Store
from rmq_audit.worker.kernel import Run
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.queues import read_units
from rmq_audit.worker.scan import Scan


def queues_apart(store: Store) -> tuple[str, ...]:
    """Return the light queues that have other ids than 0: their broker ran without `enableLmq`."""
    return tuple(sorted({one.topic for one in store.queues if one.topic.startswith(LMQ_PREFIX) and one.queue_id}))


def makes_further_units(store: Store, scans: Iterable[Scan]) -> bool:
    """
    Return whether the store's broker has `enableMultiDispatch`: it has light queues, or one of the samples its unit.

    Without, records may have names and numbers all the same: from 5.x with `enableLmq` alone, or as a client sent them.
    Of a store without consume queues they are believed.
    """
    if not store.queues or any(one.topic.startswith(LMQ_PREFIX) for one in store.queues):
        return True
    files = {(one.topic, one.queue_id): one.files for one in store.queues}
    for one in (sample for scan in scans for sample in scan.samples):
        try:
            units = read_units(files.get((one.topic, one.queue_id), ()), one.queue_offset, one.queue_offset)
        except ReadError:
            continue  # who checks the queue reports it
        if len(units) and (int(units["phy"][0]), int(units["size"][0])) == (one.phy, one.size):
            return True
    return False


def all_runs(scan: Scan) -> Iterator[Run]:
    """Yield the runs of a split where the broker makes units in further queues."""
    replaced = {(run.topic, run.queue_id) for run in scan.further if not run.copied}
    yield from (run for run in scan.runs if (run.topic, run.queue_id) not in replaced)
    yield from scan.further


def stale_runs(runs: Sequence[Run]) -> Iterator[Run]:
    """
    Yield those runs of copies that do not continue their queue: they have the numbers of the records that they are
    copies of, and no units. ``runs`` are those of one queue, in the order of the log.
    """
    highest: int | None = None
    following = next((run.first for run in runs if not run.copied), None)
    for run in runs:
        if run.copied and (run.last + 1 != following if highest is None else run.first != highest + 1):
            yield run
        else:
            highest = run.last
