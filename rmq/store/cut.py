"""Save the end of a commit log in `cut/` before it is truncated; without a complete, fsynced copy nothing is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

from rmq.runtime.disk.files import Disk, DiskError
from rmq.store import layout
from rmq.store.commitlog import CommitLog
from rmq.store.messages import StoreError
from rmq.store.scan import Bytes, LogFiles

COPY_BYTES = 1 << 20


def save(disk: Disk, root: str, log: Bytes, start: int, end: int) -> str:
    """
    Copy the bytes of ``log`` from ``start`` to ``end`` into a file below ``root``/cut; return its path.

    The copy is fsynced and compared with the log. Earlier copies are kept; one with these bytes, left by a run that did
    not get as far as the truncation, is used again. DiskError or StoreError when that fails; no part of a copy stays.
    """
    folder = layout.join(root, layout.CUT_DIR)
    disk.make_dirs(folder)
    name = path = layout.join(folder, layout.file_name(start))
    for number in itertools.count(1):
        if not disk.exists(path):
            break
        if _differs_at(disk, path, log, start, end) is None:
            return path
        path = f"{name}.{number}"
    part = f"{path}.tmp"
    disk.delete(part)
    try:
        _copy(disk, part, log, start, end)
        differs = _differs_at(disk, part, log, start, end)
        if differs is not None:
            raise StoreError(f"{part} differs from the log at offset {differs}; nothing was truncated")
    except (DiskError, StoreError):
        with suppress(DiskError):
            disk.delete(part)
        raise
    disk.rename(part, path)
    disk.sync_dir(folder)
    return path


def cut_closed(disk: Disk, root: str, folder: str, segment_bytes: int, end: int) -> None:
    """
    Truncate the commit log in ``folder`` at ``end``, in a store that is not open; the caller holds its lock.

    The next start finds the `abort` file, and truncates queues and index.
    """
    # Queues may have more than the log from here on: the next start must not assume a clean stop.
    if not disk.exists(layout.abort_path(root)):
        disk.create_sparse(layout.abort_path(root), 0).close()
    disk.delete(layout.progress_path(root))
    disk.sync_dir(root)
    log = CommitLog(disk, folder, segment_bytes)
    log.load()
    try:
        log.cut(end, synced=0)
    finally:
        log.close()


def save_and_cut(disk: Disk, root: str, folder: str, keep: int, least_end: int = 0) -> str:
    """
    Move the bytes from ``keep`` on of the commit log in ``folder`` into a file below ``root``/cut; return its path.

    The store is not open, and the caller holds its lock. All bytes that will be cleared, up to the last one that is not
    zero and to ``least_end``, are fsynced in the new file and read again from it before the first one is cleared.
    Raises DiskError or StoreError; the call may be repeated then.
    """
    log = LogFiles(disk, folder)
    try:
        segment_bytes = log.segment_bytes
        path = save(disk, root, log, keep, max(least_end, written_end(log)))
    finally:
        log.close()
    cut_closed(disk, root, folder, segment_bytes, keep)
    return path


def written_end(log: LogFiles) -> int:
    """Return the offset behind the last byte of all files that is not zero; where the log begins if all are zeros."""
    for start in reversed(log.starts):
        end = start + log.sizes[start]
        while end > start:
            at = max(start, end - COPY_BYTES)
            written = log.read_some(at, end - at).rstrip(b"\0")
            if written:
                return at + len(written)
            end = at
    return log.starts[0] if log.starts else 0


def _copy(disk: Disk, path: str, log: Bytes, start: int, end: int) -> None:
    file = disk.create_sparse(path, end - start)
    try:
        for offset, data in _pieces(log, start, end):
            if any(data):
                file.write_at(offset - start, data)
        file.sync_now()
    finally:
        file.close()


def _differs_at(disk: Disk, path: str, log: Bytes, start: int, end: int) -> int | None:
    """Return the first offset at which a file may not hold the bytes of the log; None when it holds just them."""
    file = disk.open(path)
    try:
        if file.size != end - start:
            return start + min(file.size, end - start)
        for offset, data in _pieces(log, start, end):
            if file.read_at(offset - start, len(data)) != data:
                return offset
    finally:
        file.close()
    return None


def _pieces(log: Bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of a part of the log; StoreError where a file of it is missing or too short."""
    offset = start
    while offset < end:
        data = log.read_some(offset, COPY_BYTES, end)
        if not data:
            raise StoreError(f"the bytes of the log at {offset} are missing, but later ones exist")
        yield offset, data
        offset += len(data)
