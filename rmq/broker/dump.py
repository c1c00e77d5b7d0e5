"""
Consistency dumps: a copy of a running broker's store as it was at one log offset, for the audit.

A dump has the layout of a store, with ``manifest.json`` beside it. Full files are hard links, the ones that still grow
are copied up to the offset. **Linked files are the store's own files under a second name**: writing into a dump
writes into the store. Reading and deleting a dump is harmless.

Apache has no counterpart.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from rmq.broker.config import BrokerSetup
from rmq.broker.delays import Delays
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.tables import VersionedTable
from rmq.runtime.clock import now_ms, slices_of
from rmq.runtime.disk.files import Disk, DiskError, File, FileSystem
from rmq.store import layout
from rmq.store.store import MessageStore

FORMAT_VERSION = 1
#: bytes that are copied in one turn of the reactor
SLICE_BYTES = 1 << 20
#: consume queues that are looked at, or files whose names are checked, in one turn
QUEUES_AT_ONCE, NAMES_AT_ONCE = 20, 500
#: suffix of an unfinished dump; the next dump deletes one that failed
PARTIAL_SUFFIX = ".partial"


class DumpError(Exception):
    """A dump cannot be made; the store is as it was."""


class _Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    One file of the dump: the first ``size_bytes`` of ``source``, in a file of ``file_bytes``.

    ``gc=False`` keeps those of a dump, 80,000 perhaps, away from the garbage collector, which blocks the reactor.
    """

    source: str
    path: str
    size_bytes: int
    file_bytes: int

    @property
    def is_whole(self) -> bool:
        """Nothing is written to the source any more."""
        return self.size_bytes == self.file_bytes


@attrs.frozen(kw_only=True)
class _IndexTail:
    """The newest index file, with its header at the moment of the dump."""

    source: str
    path: str
    header: bytes


class DumpFile(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """A file of the dump and its length."""

    path: str
    size: int


class Manifest(msgspec.Struct, rename="camel", kw_only=True):
    """
    The contents of ``manifest.json``. Offsets are physical offsets, times epoch milliseconds.

    ``quiesced``: nothing was written while the dump was made. Epochs and digests are not kept; the members are there
    for readers that expect them.
    """

    format_version: int = FORMAT_VERSION
    cluster: str
    broker_name: str
    broker_id: int
    role: str
    epochs: list[int] = []
    taken_at_start: int
    taken_at_end: int
    quiesced: bool
    min_phy_offset: int
    max_phy_offset: int
    confirm_offset: int
    flushed_offset: int
    dispatched_offset: int
    segment_bytes: int
    cq_units_per_file: int
    index_slots: int
    index_max: int
    prop_crc: bool = False
    digest_algo: str | None = None
    files: list[DumpFile] = []


@attrs.define(eq=False)
class Dumps:
    """Make dumps of one broker, one at a time, in slices so that the reactor is not blocked."""

    _setup: BrokerSetup
    _clock: IReactorTime
    _disk: Disk
    _store: MessageStore
    _tables: Sequence[VersionedTable[Any, Any]]
    _offsets: ConsumerOffsetTable
    _delays: Delays
    _running: Deferred[str] | None = attrs.field(init=False, default=None)
    _gone: list[Deferred[None]] = attrs.field(init=False, factory=list)
    _stopping: bool = attrs.field(init=False, default=False)
    _copied_bytes: int = attrs.field(init=False, default=0)
    #: makes all files of the dump durable at its end; None: each when it is written
    _system: FileSystem | None = attrs.field(init=False, default=None)
    _log = Logger()

    @property
    def _root(self) -> str:
        return self._setup.store.store_path_root_dir

    def make(self) -> Deferred[str]:
        """
        Make a dump; fires with its folder.

        Fails with DumpError when another dump is running, when the disk is full or when the broker stops.
        """
        if self._running is not None:
            return fail(DumpError("a dump is already running"))
        self._stopping = False
        self._running = running = Deferred.fromCoroutine(self._make())
        result: Deferred[str] = Deferred()
        running.addBoth(self._ended, result)
        return result

    def stop(self) -> Deferred[None]:
        """Abort a running dump; fires when it has ended."""
        self._stopping = True
        if self._running is None:
            return succeed(None)
        gone: Deferred[None] = Deferred()
        self._gone.append(gone)
        return gone

    def _ended(self, outcome: Any, result: Deferred[str]) -> None:
        self._running = None
        result.callback(outcome)
        gone, self._gone = self._gone, []
        for waiting in gone:
            waiting.callback(None)

    async def _make(self) -> str:
        disk = self._disk
        name = f"{self._prefix}{_stamp(now_ms(self._clock))}"
        folder = os.path.join(self._setup.dump_dir, name)
        partial = folder + PARTIAL_SUFFIX
        if disk.exists(folder) or disk.is_dir(folder):
            raise DumpError(f"{folder} already exists")
        try:
            self._clear_partial()
            disk.make_dirs(partial)
            self._system = disk.file_system(partial)
            manifest = await self._fill(partial)
            text = msgspec.json.format(msgspec.json.encode(manifest))
            await self._write(os.path.join(partial, layout.MANIFEST_FILE), text)
            await self._verify(partial, manifest)
            if self._system is not None:
                await self._system.sync()
            disk.rename(partial, folder)
            disk.sync_dir(self._setup.dump_dir)
        except (DiskError, DumpError) as error:
            self._log.error("dump {folder} aborted: {error}", folder=folder, error=error)
            disk.delete_tree(partial)
            raise error if isinstance(error, DumpError) else DumpError(str(error)) from error
        finally:
            if self._system is not None:
                self._system.close()
                self._system = None
        self._log.info(
            "dump {folder} holds the log from {min_phy_offset} to {max_phy_offset}; {copied} bytes were copied",
            folder=folder,
            min_phy_offset=manifest.min_phy_offset,
            max_phy_offset=manifest.max_phy_offset,
            copied=self._copied_bytes,
        )
        return folder

    def _clear_partial(self) -> None:
        """Delete unfinished dumps of this broker's earlier processes, and no others."""
        disk, parent = self._disk, self._setup.dump_dir
        for name in disk.list_dir(parent):
            stamp = name.removeprefix(self._prefix).removesuffix(PARTIAL_SUFFIX)
            if name == f"{self._prefix}{stamp}{PARTIAL_SUFFIX}" and _STAMP.fullmatch(stamp):
                disk.delete_tree(os.path.join(parent, name))

    @property
    def _prefix(self) -> str:
        """How the names of this broker's dumps begin."""
        setup = self._setup
        return f"{setup.name}-{setup.broker.broker_id}-"

    async def _verify(self, folder: str, manifest: Manifest) -> None:
        """Raise DumpError if a file of the dump was deleted meanwhile."""
        for files in slices_of(manifest.files, NAMES_AT_ONCE):
            await self._pause()
            for file in files:
                if not self._disk.exists(os.path.join(folder, file.path)):
                    raise DumpError(f"{file.path} is missing in {folder}: it was deleted during the dump")

    # the state at one offset

    async def _fill(self, folder: str) -> Manifest:
        """
        Record the state in one reactor turn, then link and copy the files.

        In that turn the files of the log and of the index are linked, too, so that none of them expires meanwhile.
        """
        store, config = self._store, self._setup.store
        self._copied_bytes = 0
        for table in self._tables:
            await table.fold()
        await self._offsets.persist()
        if not self._setup.is_slave:
            await self._delays.persist()
        await store.write_most()
        if not store.write_buffers():
            raise DumpError(f"{self._root}: no room for consume queues and index")
        manifest = Manifest(
            cluster=self._setup.broker.broker_cluster_name,
            broker_name=self._setup.name,
            broker_id=self._setup.broker.broker_id,
            role=config.broker_role.name,
            taken_at_start=now_ms(self._clock),
            taken_at_end=0,
            quiesced=False,
            min_phy_offset=store.min_phy_offset,
            max_phy_offset=store.end_offset,
            confirm_offset=store.confirm_offset,
            flushed_offset=store.flushed_offset,
            dispatched_offset=store.dispatched_offset,
            segment_bytes=config.mapped_file_size_commit_log,
            cq_units_per_file=config.consume_queue_file_bytes // layout.CQ_UNIT_BYTES,
            index_slots=config.max_hash_slot_num,
            index_max=config.max_index_num,
        )
        small = self._small_files()
        tail = self._index_tail()
        queues, extensions = store.queue_ranges(), store.extension_ends()
        pieces = [*self._segments(manifest.max_phy_offset), *self._whole_index_files(tail)]
        self._link_whole(folder, pieces)
        for some in slices_of(queues, QUEUES_AT_ONCE):
            await self._pause()
            found = [piece for queue in some for piece in self._queue_files(*queue)]
            found += [piece for queue in some for piece in self._extension_files(queue, extensions.get(queue[:2], 0))]
            self._link_whole(folder, found)
            pieces += found
        if self._system is not None and len(pieces) <= self._system.worth_files:
            self._system.close()
            self._system = None
        for piece in pieces:
            if not piece.is_whole:
                await self._copy(folder, piece)
        if tail is not None:
            await self._copy_index_tail(folder, tail)
        for path, data in small.items():
            await self._write(os.path.join(folder, path), data)
        manifest.files = [DumpFile(path=path, size=len(data)) for path, data in small.items()]
        for parts in slices_of(pieces, NAMES_AT_ONCE):
            await self._pause()
            manifest.files += [DumpFile(path=piece.path, size=piece.file_bytes) for piece in parts]
        if tail is not None:
            size = layout.index_file_bytes(config.max_hash_slot_num, config.max_index_num)
            manifest.files.append(DumpFile(path=tail.path, size=size))
        manifest.files.sort(key=attrgetter("path"))
        manifest.taken_at_end = now_ms(self._clock)
        manifest.quiesced = store.end_offset == manifest.max_phy_offset
        return manifest

    def _small_files(self) -> dict[str, bytes]:
        """Copy configuration tables and checkpoints, and create ``abort``: the copy was not stopped cleanly."""
        disk = self._disk
        paths = [layout.join(layout.CONFIG_DIR, name) for name in disk.list_dir(layout.config_dir(self._root))]
        paths = [path for path in paths if path.endswith(".json")] + [layout.CHECKPOINT_FILE, layout.PROGRESS_FILE]
        found = {path: layout.join(self._root, path) for path in paths}
        small = {path: disk.read_whole(source) for path, source in found.items() if disk.exists(source)}
        # what has changed since they were written
        for table in self._tables:
            if not table.is_in_file:
                small[layout.join(layout.CONFIG_DIR, os.path.basename(table.path))] = table.encode()
        return {**small, layout.ABORT_FILE: b""}

    def _segments(self, end: int) -> Iterator[_Piece]:
        config = self._setup.store
        return self._pieces(config.commit_log_dir, layout.COMMIT_LOG_DIR, config.mapped_file_size_commit_log, end)

    def _queue_files(self, topic: str, queue_id: int, begin: int, end: int) -> list[_Piece]:
        """Return the files of a queue that had these offsets; DumpError when the first one is not there any more."""
        folder = layout.consume_queue_dir(self._root, topic, queue_id)
        path = layout.join(layout.CONSUME_QUEUE_DIR, topic, str(queue_id))
        unit = layout.CQ_UNIT_BYTES
        found = list(self._pieces(folder, path, self._setup.store.consume_queue_file_bytes, end * unit))
        if begin < end and (not found or int(os.path.basename(found[0].path)) > begin * unit):
            raise DumpError(f"queue {queue_id} of {topic} was deleted, or a part of it, during the dump")
        return found

    def _extension_files(self, queue: tuple[str, int, int, int], end: int) -> Iterator[_Piece]:
        topic, queue_id, *_ = queue
        folder = layout.consume_queue_ext_dir(self._root, topic, queue_id)
        path = layout.join(layout.CONSUME_QUEUE_EXT_DIR, topic, str(queue_id))
        return self._pieces(folder, path, self._setup.store.mapped_file_size_consume_queue_ext, end)

    def _pieces(self, folder: str, path: str, file_bytes: int, end: int) -> Iterator[_Piece]:
        """Yield the files of ``folder`` that begin before ``end``; ``path`` is the folder in the dump."""
        for start in layout.file_starts(self._disk.list_dir(folder)):
            if start < end:
                yield _Piece(
                    source=layout.join(folder, layout.file_name(start)),
                    path=layout.join(path, layout.file_name(start)),
                    size_bytes=min(file_bytes, end - start),
                    file_bytes=file_bytes,
                )

    def _index_files(self) -> list[str]:
        if not self._setup.store.message_index_enable:
            return []
        return [name for name in self._disk.list_dir(layout.index_dir(self._root)) if layout.is_index_name(name)]

    def _index_tail(self) -> _IndexTail | None:
        """Return the newest index file; None when there is none."""
        names = self._index_files()
        if not names:
            return None
        source = layout.join(layout.index_dir(self._root), names[-1])
        file = self._disk.open(source)
        try:
            header = file.read_at(0, layout.INDEX_HEADER_BYTES)
        finally:
            file.close()
        return _IndexTail(source=source, path=layout.join(layout.INDEX_DIR, names[-1]), header=header)

    def _whole_index_files(self, tail: _IndexTail | None) -> Iterator[_Piece]:
        config = self._setup.store
        size = layout.index_file_bytes(config.max_hash_slot_num, config.max_index_num)
        for name in self._index_files():
            path = layout.join(layout.INDEX_DIR, name)
            if tail is None or path != tail.path:
                yield _Piece(source=layout.join(self._root, path), path=path, size_bytes=size, file_bytes=size)

    # linking and copying

    def _link_whole(self, folder: str, pieces: list[_Piece]) -> None:
        """Make the folders of all files and link those that are full; a link costs some microseconds."""
        disk = self._disk
        for parent in sorted({os.path.dirname(piece.path) for piece in pieces}):
            disk.make_dirs(os.path.join(folder, parent))
        for piece in pieces:
            if piece.is_whole:
                disk.link(piece.source, os.path.join(folder, piece.path))

    async def _copy(self, folder: str, piece: _Piece) -> None:
        """Copy the part of a growing file that belongs to the dump; the rest is zeros, as in a new file."""
        source, target = self._open(piece.source, folder, piece.path, piece.file_bytes)
        try:
            await self._copy_range(source, target, 0, piece.size_bytes)
            await self._sync(target)
        finally:
            source.close()
            target.close()

    async def _copy_index_tail(self, folder: str, tail: _IndexTail) -> None:
        """
        Copy the newest index file.

        Slots change while they are copied, but entries do not: a slot that names an entry beyond the count is followed
        back along the chain to the entry that it named before.
        """
        config = self._setup.store
        slots, entries = config.max_hash_slot_num, config.max_index_num
        count = layout.INDEX_HEADER.unpack(tail.header)[-1]
        source, target = self._open(tail.source, folder, tail.path, layout.index_file_bytes(slots, entries))
        try:
            target.write_at(0, tail.header)
            for first in range(0, slots, SLICE_BYTES // layout.INDEX_SLOT_BYTES):
                await self._pause()
                number = min(SLICE_BYTES // layout.INDEX_SLOT_BYTES, slots - first)
                data = source.read_at(layout.index_slot_at(first), number * layout.INDEX_SLOT_BYTES)
                if data.count(0) != len(data):
                    target.write_at(layout.index_slot_at(first), _slots_before(source, slots, data, count))
            begin, end = layout.index_entry_at(slots, 0), layout.index_entry_at(slots, max(count, 1))
            await self._copy_range(source, target, begin, end)
            await self._sync(target)
        finally:
            source.close()
            target.close()

    async def _copy_range(self, source: File, target: File, begin: int, end: int) -> None:
        for at in range(begin, end, SLICE_BYTES):
            await self._pause()
            data = source.read_at(at, min(SLICE_BYTES, end - at))
            target.write_at(at, data)
            self._copied_bytes += len(data)

    def _open(self, source: str, folder: str, path: str, file_bytes: int) -> tuple[File, File]:
        disk = self._disk
        target_path = os.path.join(folder, path)
        disk.make_dirs(os.path.dirname(target_path))
        target = disk.create_sparse(target_path, file_bytes)
        try:
            return disk.open(source), target
        except DiskError:
            target.close()
            raise

    async def _write(self, path: str, data: bytes) -> None:
        disk = self._disk
        disk.make_dirs(os.path.dirname(path))
        file = disk.create_sparse(path, 0)
        try:
            file.write_at(0, data)
            await self._sync(file)
        finally:
            file.close()

    async def _sync(self, file: File) -> None:
        if self._system is None:
            await file.sync()

    async def _pause(self) -> None:
        """Return to the reactor for one turn; raises when the broker stops."""
        await deferLater(self._clock, 0.0, lambda: None)
        if self._stopping:
            raise DumpError("the broker stops")


def _slots_before(source: File, slots: int, data: bytes, count: int) -> bytes:
    """Return index slots as they were when the file had ``count`` entries."""
    numbers = list(struct.unpack(f">{len(data) // layout.INDEX_SLOT_BYTES}i", data))
    changed = False
    for position, number in enumerate(numbers):
        while number >= count > 0:
            entry = source.read_at(layout.index_entry_at(slots, number), layout.INDEX_ENTRY_BYTES)
            number = layout.INDEX_ENTRY.unpack(entry)[3]
        if number != numbers[position]:
            numbers[position] = number
            changed = True
    return struct.pack(f">{len(numbers)}i", *numbers) if changed else data


#: what :func:`_stamp` returns
_STAMP = re.compile(r"\d{8}T\d{9}")


def _stamp(epoch_ms: int) -> str:
    """Return ``20261121T080000123`` (UTC)."""
    return f"{datetime.fromtimestamp(epoch_ms // 1000, UTC):%Y%m%dT%H%M%S}{epoch_ms % 1000:03d}"
