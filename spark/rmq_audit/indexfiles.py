"""The index files of one side, held against its log: what the driver asks and makes of the answers."""

from __future__ import annotations

from rmq_audit.coverage import SideCoverage
from rmq_audit.engines import Engine
from rmq_audit.findings import Finding, finding
from rmq_audit.history import Log
from rmq_audit.tasks import IndexCheck, SegmentFile
from rmq_audit.work import INDEXES


def check_indexes(log: Log, engine: Engine, coverage: SideCoverage, *, slots: int | None, live: bool) -> list[Finding]:
    """
    Return where entries lead to no record or the wrong one, and where chains are broken.

    ``slots``: the broker's maxHashSlotNum, if the operator says it. Of a store that is being written (``live``) the
    newest file is left out: it changes under the reader.
    """
    manifest = log.store.manifest
    if slots is None and manifest is not None:
        slots = manifest.index_slots
    files = log.store.indexes[:-1] if live else log.store.indexes
    segments = tuple(
        SegmentFile(path=one.path, start=one.start, size_bytes=min(one.size_bytes, log.segment_bytes))
        for one in log.store.segments
    )
    checks = [
        IndexCheck(
            side=log.side,
            path=file.path,
            size_bytes=file.size_bytes,
            slots=slots,
            segments=segments,
            log_start=log.start,
            log_end=log.end,
        )
        for file in files
    ]
    found = []
    for check, state in zip(checks, engine.run(INDEXES, checks) if checks else [], strict=True):
        coverage.index_files += 1
        coverage.index_entries_checked += state.entries
        if state.error is not None:
            found.append(finding("AU-COVER", log.side, detail=state.error))
        for fault in state.faults:
            place = None if fault.phy is None or fault.phy < log.start else fault.phy
            found.append(
                finding(
                    fault.invariant,
                    log.side,
                    phy_from=place,
                    phy_to=None if place is None else place + 1,
                    count=fault.count,
                    blame=log.side,
                    field=f"entry {fault.entry}",
                    detail=f"{check.path}: {fault.detail}",
                )
            )
    return found
