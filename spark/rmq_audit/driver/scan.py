"""The splits of a log for the scan, and the check that the scanned splits meet without a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from rmq_audit.driver.further import queues_apart
from rmq_audit.driver.inventory import Store
from rmq_audit.driver.log import log_file
from rmq_audit.worker.files import StoreFile
from rmq_audit.worker.scan import Scan, Split

#: one task reads this much at a time; a worker holds one split and its columns
SPLIT_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20


def plan_splits(
    store: Store, segment: StoreFile, segment_bytes: int, *, split_bytes: int, chunk_bytes: int, crc: bool
) -> Iterator[Split]:
    """
    Yield the splits of one segment in order.

    They begin on the segment's chunk grid, so that a chunk belongs to one split. The first one starts at a trusted
    place; the others find their first record themselves. What lies after the end that a manifest states is left out.
    """
    step = -(-split_bytes // chunk_bytes) * chunk_bytes
    file = log_file(segment, segment_bytes, None if store.manifest is None else store.manifest.max_phy_offset)
    for begin in range(file.start, min(file.stop, file.limit), step):
        yield Split(
            side=store.side,
            file=file,
            segment_bytes=segment_bytes,
            begin=begin,
            end=min(begin + step, file.stop),
            start=file.start if begin == file.start else None,
            chunk_bytes=chunk_bytes,
            crc=crc,
            tags=bool(store.queues),
            apart=queues_apart(store),
        )


def join_scans(scans: Sequence[Scan], again: Callable[[Sequence[Split]], Sequence[Scan]]) -> tuple[list[Scan], int]:
    """
    Return the scans of one side with every seam checked, and how many of them had to be read again for it.

    A split that began inside a body may have taken a forged record for its first. So where a split stopped must be
    where the next one found its first record; if not, that one is read again from the trusted place. A split that
    lies inside one record, or behind a BLANK, counts for nothing.
    """
    current = {scan.split.begin: scan for scan in scans}
    read_again = 0
    while True:
        kept: list[Scan] = []
        wrong: list[Split] = []
        for members in _by_segment(current.values()):
            _follow(members, kept, wrong)
        if not wrong:
            return kept, read_again
        read_again += len(wrong)
        for scan in again(wrong):
            current[scan.split.begin] = scan


def _by_segment(scans: Iterable[Scan]) -> Iterator[list[Scan]]:
    segments: dict[int, list[Scan]] = {}
    for scan in sorted(scans, key=lambda scan: scan.split.begin):
        segments.setdefault(scan.split.full, []).append(scan)
    yield from segments.values()


def _follow(scans: Sequence[Scan], kept: list[Scan], wrong: list[Split]) -> None:
    """
    Go through the splits of one segment; keep what joins, and name the first one that does not with its trusted
    start.
    """
    expected: int | None = None
    for scan in scans:
        split = scan.split
        if expected is not None and expected >= split.end:
            continue
        if scan.error is not None:
            kept.append(scan)
            expected = None
            continue
        if expected is not None and split.start != expected and scan.first != expected:
            wrong.append(attrs.evolve(split, start=expected))
            return
        kept.append(scan)
        expected = scan.stop
