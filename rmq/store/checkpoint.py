"""
How far log, queues and index are synced: Apache's `checkpoint`, and our recovery point `checkpoint.rmq` beside it.

Java: StoreCheckpoint
"""

from __future__ import annotations

import struct
import zlib

import attrs
from twisted.internet.defer import Deferred

from rmq.runtime.disk.files import Disk, File
from rmq.store import layout
from rmq.store.index import IndexState
from rmq.store.indexfile import IndexHeader
from rmq.store.messages import StoreError

#: Apache steps back so far from the times in its checkpoint
SAFETY_MS = 3000


@attrs.frozen(kw_only=True)
class Checkpoint:
    """Store times up to which commit log, queues and full index files are synced."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0

    @property
    def min_timestamp(self) -> int:
        """Messages stored up to this time are in log and queues for sure."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - SAFETY_MS)


class CheckpointFile:
    """The file `checkpoint`: three times at the start of 4096 bytes; the others (5.x uses some) stay as they are."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = layout.checkpoint_path(root)
        self._file: File | None = None

    def load(self) -> Checkpoint:
        """Read it; a file that is missing or too short counts as zeros and is created again."""
        if not self._disk.exists(self._path):
            self._file = self._disk.create(self._path, layout.CHECKPOINT_BYTES)
            return Checkpoint()
        self._file = self._disk.open(self._path)
        if self._file.size < layout.CHECKPOINT_BYTES:
            self._file.truncate(layout.CHECKPOINT_BYTES)
        physic, logics, index = layout.CHECKPOINT.unpack(self._file.read_at(0, layout.CHECKPOINT.size))
        return Checkpoint(physic_timestamp=physic, logics_timestamp=logics, index_timestamp=index)

    def write(self, checkpoint: Checkpoint) -> File:
        """Write the times; the caller syncs the file returned."""
        assert self._file is not None, "load comes first"
        self._file.write_at(
            0,
            layout.CHECKPOINT.pack(
                checkpoint.physic_timestamp, checkpoint.logics_timestamp, checkpoint.index_timestamp
            ),
        )
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@attrs.frozen(kw_only=True)
class RecoveryPoint:
    """
    Where recovery starts: the log up to ``offset`` is synced, and so are queues and index as far as built from it.

    The last record before ``offset`` is kept as an anchor: when it is no longer there, another broker has changed the
    store since, and nothing here counts. ``anchor_phy`` -1 stands for a log without any record. ``queue_units`` is the
    sum of all queue ends at ``offset``, and ``is_end`` means that a clean stop wrote it.
    """

    segment_bytes: int
    queue_file_bytes: int
    offset: int
    anchor_phy: int
    anchor_size: int
    anchor_timestamp: int
    queue_units: int
    is_end: bool
    index: IndexState

    def check(self, segment_bytes: int, queue_file_bytes: int) -> None:
        """Raise a StoreError when the store was written with other file lengths."""
        for key, written, configured in (
            ("mappedFileSizeCommitLog", self.segment_bytes, segment_bytes),
            ("mappedFileSizeConsumeQueue", self.queue_file_bytes, queue_file_bytes),
        ):
            if written != configured:
                raise StoreError(
                    f"the store was written with {key}={written}, not {configured} "
                    f"({layout.PROGRESS_FILE} says so; delete it if it belongs to another store)"
                )


#: Magic, sequence, commit log file size, queue file size, offset, anchor: offset, size, store time; queue units, of
#: which the complement stands while more may follow.
_POINT = struct.Struct(">8sqqqqqiqq")
_POINT_MAGIC = b"rmqckpt1"
#: name of the newest index file, padded with NULs; its header follows, and the CRC-32 of all that
_INDEX_NAME = struct.Struct(f">{layout.INDEX_NAME_DIGITS}s")
_HALF_BYTES = 512
_ENTRY_BYTES = _POINT.size + _INDEX_NAME.size + layout.INDEX_HEADER_BYTES


def encode_recovery_point(point: RecoveryPoint, sequence: int) -> bytes:
    """Return one half of `checkpoint.rmq`."""
    data = _POINT.pack(
        _POINT_MAGIC,
        sequence,
        point.segment_bytes,
        point.queue_file_bytes,
        point.offset,
        point.anchor_phy,
        point.anchor_size,
        point.anchor_timestamp,
        point.queue_units if point.is_end else ~point.queue_units,
    )
    data += _INDEX_NAME.pack(point.index.name.encode("ascii")) + point.index.header.pack()
    return data + zlib.crc32(data).to_bytes(4, "big")


def decode_recovery_point(data: bytes) -> tuple[int, RecoveryPoint] | None:
    """Return (sequence, point) of one half; None when it is empty or torn."""
    entry = data[:_ENTRY_BYTES]
    if zlib.crc32(entry) != int.from_bytes(data[_ENTRY_BYTES : _ENTRY_BYTES + 4], "big"):
        return None
    magic, sequence, segment_bytes, queue_file_bytes, offset, phy, size, timestamp, units = _POINT.unpack_from(entry)
    if magic != _POINT_MAGIC:
        return None
    (name,) = _INDEX_NAME.unpack_from(entry, _POINT.size)
    point = RecoveryPoint(
        segment_bytes=segment_bytes,
        queue_file_bytes=queue_file_bytes,
        offset=offset,
        anchor_phy=phy,
        anchor_size=size,
        anchor_timestamp=timestamp,
        queue_units=units if units >= 0 else ~units,
        is_end=units >= 0,
        index=IndexState(name.rstrip(b"\0").decode("ascii"), IndexHeader.unpack(entry[-layout.INDEX_HEADER_BYTES :])),
    )
    return sequence, point


class RecoveryPointFile:
    """The file `checkpoint.rmq`: two halves written in turn, so that one is whole whatever happens."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = layout.progress_path(root)
        self._file: File | None = None
        self._sequence = 0

    def load(self) -> RecoveryPoint | None:
        """Return the newest whole half; None when there is none."""
        if not self._disk.exists(self._path):
            self._file = self._disk.create(self._path, 2 * _HALF_BYTES)
            return None
        self._file = self._disk.open(self._path)
        if self._file.size < 2 * _HALF_BYTES:
            self._file.truncate(2 * _HALF_BYTES)
        halves = [decode_recovery_point(self._file.read_at(at, _HALF_BYTES)) for at in (0, _HALF_BYTES)]
        whole = [half for half in halves if half is not None]
        if not whole:
            return None
        self._sequence, point = max(whole, key=lambda half: half[0])
        return point

    def write(self, point: RecoveryPoint) -> File:
        """Write the older half; the caller syncs the file returned before the next write."""
        assert self._file is not None, "load comes first"
        self._sequence += 1
        self._file.write_at(self._sequence % 2 * _HALF_BYTES, encode_recovery_point(point, self._sequence))
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


async def sync_all(files: list[File]) -> None:
    """Sync files one after the other without blocking; DiskError from the first that fails."""
    for file in files:
        synced: Deferred[None] = file.sync()
        await synced
