"""The index files of one side, compared with its log: what the driver asks and makes of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rmq.store import layout
from rmq_audit.driver.coverage import SideCoverage
from rmq_audit.driver.findings import Finding, finding, of_fault
from rmq_audit.driver.inventory import Store
from rmq_audit.driver.log import Log
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.indexes import INDEXES, IndexCheck

#: so many other files are asked how many hash slots a file has
MAX_OTHERS = 4


def check_indexes(
    log: Log, engine: Engine, coverage: SideCoverage, *, slots: int | None, live: bool, others: Sequence[Store] = ()
) -> list[Finding]:
    """
    Return where entries lead to no record or the wrong one, where chains are broken, and what has no entry.

    ``slots``: the broker's maxHashSlotNum, if the operator says it. Of a store that is being written (``live``) the
    newest file is left out: it changes under the reader. ``others`` are stores of the same broker.
    """
    manifest = log.store.manifest
    if slots is None and manifest is not None:
        slots = manifest.index_slots
    listed = log.store.indexes
    files = listed[:-1] if live else listed
    every = [*listed, *(file for store in others for file in store.indexes)]
    sizes = Counter(one.size_bytes for one in every)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    checks = [
        IndexCheck(
            side=log.side,
            path=file.path,
            size_bytes=file.size_bytes,
            slots=slots,
            segments=log.files,
            log_start=log.start,
            log_end=log.end,
            before=listed[number - 1].path if number else None,
            others=[one.path for one in every if one.path != file.path][:MAX_OTHERS],
            usual_bytes=usual if slots is None else 0,
            complete_to=_complete_to(log, last=number + 1 == len(listed)),
        )
        for number, file in enumerate(files)
    ]
    if not listed and any(store.indexes for store in others):
        checks += _without_files(log)
    found = []
    for state in engine.run(INDEXES, checks) if checks else []:
        coverage.index_files += len(listed) > 0
        coverage.index_entries_checked += state.entries
        if state.error is not None:
            found.append(finding("AU-COVER", log.side, detail=state.error))
        found += [of_fault(log.side, fault) for fault in state.faults]
    return found


def _without_files(log: Log) -> list[IndexCheck]:
    """
    Return the check of a store without index files, whose other side has some: it may be right, if no record has keys.

    A broker that runs makes its first file some time after the first message with keys, so of its store, and of one
    that was killed, the last file of the log is not judged.
    """
    complete_to = _complete_to(log, last=True)
    if complete_to == 0:
        complete_to = log.end - log.end % log.segment_bytes
    if complete_to is None or complete_to <= log.start:
        return []
    check = IndexCheck(
        side=log.side,
        path="",
        size_bytes=0,
        slots=None,
        segments=log.files,
        log_start=log.start,
        log_end=log.end,
        complete_to=complete_to,
    )
    return [check]


def _complete_to(log: Log, *, last: bool) -> int | None:
    """
    Return up to where all keys must be in the index by the end of a file; 0 for where the file ends, None for nowhere.

    The last file of a store that was stopped cleanly knows the whole log.
    """
    manifest = log.store.manifest
    if log.unread or log.store.is_unlisted(layout.INDEX_DIR):
        return None
    if not last or log.store.unfinished or (manifest is not None and manifest.max_phy_offset is not None):
        return 0
    return log.end
