"""
The commit log: one endless sequence of bytes in files of equal length.

The log knows where files begin and end, and nothing of what a record means but that a BLANK closes a file.

Java: CommitLog, MappedFileQueue
"""

from __future__ import annotations

import contextlib
import itertools

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk, DiskError, DiskFull, File, SyncFailed
from rmq.store import layout
from rmq.store.messages import StoreError
from rmq.store.openfiles import CHUNK_BYTES, OpenFiles, zero_from
from rmq.wire.record import BLANK_BYTES, blank

#: the next file is made when this share of the last one is left, while others write into it
AHEAD_SHARE = 1 / 4
#: or when what is left will be full after so many more looks at the same rate
AHEAD_LOOKS = 4


class CommitLog:
    """
    The bytes from :attr:`min_offset` to :attr:`end`, of which those before :attr:`flushed` are on disk.

    Behind ``end`` there are only zeros, durably so after :meth:`cut`: recovery of a later crash can never meet records
    of an earlier life. Everything is written (not synced) before a method returns.
    """

    _log = Logger()

    def __init__(self, disk: Disk, folder: str, segment_bytes: int) -> None:
        self._disk = disk
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._files = OpenFiles(disk, 64)
        #: start offsets of all files, without holes
        self._starts: list[int] = []
        self.end = 0
        self.flushed = 0
        self._tail: File | None = None
        self._tail_start = 0
        #: end of the file that is written to
        self.tail_end = 0
        #: the next file, made but not begun: ahead of time, or because the BLANK before it could not be written
        self._spare: File | None = None
        self._spare_start = 0
        self._spare_is_durable = False
        #: the file that :meth:`make_next` has made, or found no room for
        self._made_ahead = -1
        #: the end of the log at the last look whether a next file is needed, -1 before the first
        self._looked_at = -1
        #: a failed write may have left so many bytes behind ``end``
        self._soiled = 0

    # ---- files ----

    @property
    def min_offset(self) -> int:
        """Where the log begins; 0 without files."""
        return self._starts[0] if self._starts else 0

    @property
    def starts(self) -> list[int]:
        """The start offsets of all files."""
        return self._starts

    @property
    def is_empty(self) -> bool:
        """True when there is no file at all."""
        return not self._starts

    def path(self, start: int) -> str:
        return layout.join(self.folder, layout.file_name(start))

    def start_of(self, offset: int) -> int:
        """Return the start offset of the file that ``offset`` lies in (or would)."""
        return offset - offset % self.segment_bytes

    def load(self) -> None:
        """Find the files; StoreError names one that does not fit. Until :meth:`cut`, ``end`` is that of the last."""
        self._disk.make_dirs(self.folder)
        starts = []
        for name in self._disk.list_dir(self.folder):
            start = layout.file_start(name)
            path = layout.join(self.folder, name)
            if start is None or self._disk.is_dir(path):
                self._log.warn("{path} is no commit log file and is left alone", path=path)
                continue
            starts.append(start)
        self._starts = self._check(sorted(starts))
        self.end = self.flushed = self._starts[-1] + self.segment_bytes if self._starts else 0

    def _check(self, starts: list[int]) -> list[int]:
        size = self.segment_bytes
        for start in starts[:]:
            path = self.path(start)
            found = self._files.get(path).size
            if start % size or (found != size and start != starts[-1]) or found > size:
                raise StoreError(
                    f"{path} has {found} bytes, but mappedFileSizeCommitLog={size}: "
                    "a store can only be opened with the file size that it was written with"
                )
            if found == 0:
                self._log.warn("{path} is empty and is deleted: its creation was interrupted", path=path)
                self._forget(start)
                starts.remove(start)
            elif found < size:
                self._lengthen(path, found)
        for before, after in itertools.pairwise(starts):
            if after - before != size:
                raise StoreError(
                    f"commit log file {self.path(before + size)} is missing, yet {self.path(after)} exists"
                )
        return starts

    def _lengthen(self, path: str, found: int) -> None:
        """Give a last file that was cut short its length back, unless it is a whole file of another size."""
        file = self._files.get(path)
        tail = file.read_at(max(0, found - CHUNK_BYTES), min(found, CHUNK_BYTES))
        for at in range(len(tail) - BLANK_BYTES, -1, -1):
            if tail[at : at + BLANK_BYTES] == blank(len(tail) - at):
                raise StoreError(
                    f"{path} is a complete file of {found} bytes, but mappedFileSizeCommitLog={self.segment_bytes}"
                )
        self._log.error(
            "{path} has only {found} of {size} bytes; the missing ones are taken for empty",
            path=path,
            found=found,
            size=self.segment_bytes,
        )
        file.truncate(self.segment_bytes)
        file.sync_now()

    def _create(self, start: int) -> None:
        """
        Make the file that begins at ``start``, with its blocks; DiskError (DiskFull) leaves everything as it was.

        SyncFailed, here and wherever files are made or deleted, says that nothing more can be promised.
        """
        if self._spare is None or self._spare_start != start:
            self.drop_unused_file()
            self._make(start)
        if not self._spare_is_durable:
            assert self._spare is not None
            try:
                self._spare.reserve(self.segment_bytes)
                # Length and name must be durable before anything in the file is: a start finds whole files only.
                self._spare.sync_now()
                self._disk.sync_dir(self.folder)
            except DiskError as error:
                raise self._unmade(error) from None
            self._spare_is_durable = True

    def _make(self, start: int) -> File:
        """Make the file that begins at ``start``, still without its length."""
        self._spare = self._disk.create_sparse(self.path(start), 0)
        self._spare_start, self._spare_is_durable = start, False
        return self._spare

    def _unmade(self, error: DiskError) -> DiskError:
        """Delete what could not be made, and return why."""
        assert self._spare is not None
        self._spare.close()
        self._spare = None
        path = self.path(self._spare_start)
        self._disk.delete(path)
        if isinstance(error, DiskFull):
            return DiskFull(path, f"{error.text}; {self.segment_bytes} bytes are needed (mappedFileSizeCommitLog)")
        return error

    async def make_next(self) -> bool:
        """
        Make the next file if the last one is nearly full, so that :meth:`roll` need not wait for the disk.

        To be called again and again; what was written since the last call says how soon the file may be full. True
        when it was made now. DiskError as in :meth:`roll`, which tries again, as this does after :meth:`retry_next`.
        """
        start, written = self.tail_end, 0 if self._looked_at < 0 else self.end - self._looked_at
        self._looked_at = self.end
        ahead = max(self.segment_bytes * AHEAD_SHARE, written * AHEAD_LOOKS)
        if self._made_ahead == start or self.end < start - ahead or self.is_empty:
            return False
        self._made_ahead = start
        if self._spare is not None:
            return False
        file = self._make(start)
        try:
            reserved: Deferred[None] = file.reserve_soon(self.segment_bytes)
            await reserved
        except DiskError as error:
            raise (self._unmade(error) if self._spare is file else error) from None
        synced: Deferred[None] = file.sync()
        await synced
        named: Deferred[None] = self._disk.sync_dir_soon(self.folder)
        await named
        if self._spare is file:  # else it was needed before
            self._spare_is_durable = True
        return True

    def retry_next(self) -> None:
        """Have :meth:`make_next` try once more."""
        self._made_ahead = -1

    def _begin(self) -> None:
        """Make what :meth:`_create` made the last file, to be written from its first byte on; this cannot fail."""
        start = self._spare_start
        self._starts.append(start)
        self.end = start
        if len(self._starts) == 1:
            self.flushed = start
        file, self._spare = self._spare, None
        self._take_tail(file)

    def _take_tail(self, file: File | None) -> None:
        """Write to ``file``, the last one, from now on; it is a handle of its own, for the cache may close its."""
        if self._tail is not None:
            self._tail.close()
        self._tail = file
        self._tail_start = self._starts[-1] if self._starts else 0
        self.tail_end = self._tail_start + self.segment_bytes if self._starts else 0

    def _forget(self, start: int) -> None:
        """Delete a file, durably: of two deletions the second must not survive a power failure alone."""
        self._files.delete(self.path(start))
        self._disk.sync_dir(self.folder)

    def delete_first(self) -> Deferred[None]:
        """Delete the oldest file, never the last one; fires when that is durable, and the next one may go."""
        assert len(self._starts) > 1, "the last file stays"
        self._files.delete(self.path(self._starts[0]))
        del self._starts[0]
        return self._disk.sync_dir_soon(self.folder)

    def modified_ms(self, start: int) -> int:
        """Return when a file was last written; 0 if the file no longer exists."""
        path = self.path(start)
        return self._disk.modified_ms(path) if self._disk.exists(path) else 0

    # ---- writing ----

    def fits(self, size: int) -> bool:
        """Tell whether a record of ``size`` bytes can be in this log at all."""
        return size + BLANK_BYTES <= self.segment_bytes

    def has_room(self, size: int) -> bool:
        """Tell whether a record of ``size`` bytes fits into the last file, with a BLANK behind it."""
        return size + BLANK_BYTES <= self.tail_end - self.end

    def append(self, data: bytes) -> None:
        """
        Write ``data`` at the end, where :meth:`has_room` says that there is room for it.

        DiskError means that it is not in the log: the next append starts at the same place.
        """
        if self._soiled:
            self._clean()
        assert self._tail is not None
        self._soiled = len(data)
        try:
            self._tail.write_at(self.end - self._tail_start, data)
        except DiskError:
            # At once, or a start would find the first messages of a batch that was refused; else before the next one.
            with contextlib.suppress(DiskError):
                self._clean()
            raise
        self._soiled = 0
        self.end += len(data)

    def roll(self) -> None:
        """Close the last file and begin the next. DiskError when that cannot be made; then nothing has changed."""
        if not self._starts:
            self._create(0)
            self._begin()
            return
        self._create(self.tail_end)
        if self.end < self.tail_end:
            # Not before the next file exists: a full disk must leave the log where it was.
            self.append(blank(self.tail_end - self.end))
        self._begin()

    def compare(self, phy_offset: int, data: bytes) -> int:
        """Return how many of ``data`` the log holds already; StoreError when it holds others there."""
        known = min(self.end - phy_offset, len(data))
        if known <= 0 or self.is_empty:
            return 0
        mine = self.read(phy_offset, known)
        if mine == data[:known]:
            return known
        differs = phy_offset + next(at for at in range(known) if mine[at] != data[at])
        raise StoreError(
            f"the logs have diverged: this slave's, which ends at {self.end}, differs from its master's at {differs}, "
            "in bytes that both hold. One of the two has lost its last moments and gone on. Compare and cut the slave "
            "(python -m rmq.ha.rejoin), or empty its store"
        )

    def append_raw(self, phy_offset: int, data: bytes) -> None:
        """
        Write replicated bytes at the end; an empty log may begin at the start of any file.

        StoreError when they do not fit there or cannot be written; nothing has changed then. SyncFailed when a new file
        could not be synced.
        """
        if self.end == 0:
            if phy_offset % self.segment_bytes:
                raise StoreError(
                    f"an empty commit log cannot begin at {phy_offset}: no multiple of mappedFileSizeCommitLog="
                    f"{self.segment_bytes}"
                )
        elif phy_offset != self.end:
            raise StoreError(
                f"replicated bytes for offset {phy_offset} do not continue the log, which ends at {self.end}"
            )
        start = self.start_of(phy_offset)
        if phy_offset + len(data) > start + self.segment_bytes:
            raise StoreError(f"{len(data)} replicated bytes at {phy_offset} reach beyond the end of their file")
        try:
            if phy_offset and self._starts == [0] and self.end == 0:
                # Its first write failed; the master, asked for an empty log's part, has gone on to another file.
                self._forget(0)
                self._starts.clear()
            if self.is_empty or phy_offset == self.tail_end:
                self._create(start)
                self._begin()
            self.append(data)
        except SyncFailed:
            raise
        except DiskError as error:
            raise StoreError(f"cannot write {len(data)} replicated bytes at {phy_offset}: {error}") from error

    def _clean(self) -> None:
        """Overwrite with zeros what a failed write may have left behind the end."""
        assert self._tail is not None
        at = self.end - self._tail_start
        zero_from(self._tail, at, min(at + self._soiled, self.segment_bytes))
        self._soiled = 0

    def cut(self, end: int, *, synced: int, zeros_behind: bool = False) -> int:
        """
        Let the log end at ``end``, synced, and make sure that only zeros follow; return how many bytes were not.

        Bytes before ``synced`` are on disk already; others may only be in the cache, left by a killed process.
        A file that begins at ``end`` stays, empty, for it keeps the place; further ones are deleted. ``zeros_behind``:
        the caller knows that there is nothing else (looking takes a while in a large file).
        """
        while self._starts and (self._starts[-1] > end or self._starts[-1] == end == 0):
            self._forget(self._starts.pop())
        self.end = end if self._starts else 0
        if self._starts and self.end < self._starts[-1] + self.segment_bytes:
            # A dump may have linked it while it was a full one; what follows must not be written into that.
            self._files.forget(self.path(self._starts[-1]))
            self._disk.unshare(self.path(self._starts[-1]))
        self._take_tail(self._disk.open(self.path(self._starts[-1])) if self._starts else None)
        changed = 0
        if self._tail is not None and self.end < self.tail_end and not zeros_behind:
            changed = zero_from(self._tail, self.end - self._tail_start, self.segment_bytes)
        self._soiled = 0
        for start in self._starts[:-1]:
            if start + self.segment_bytes > synced:
                self._files.get(self.path(start)).sync_now()
        if self._tail is not None:
            self._tail.sync_now()
        self.flushed = self.end
        return changed

    def clear(self, begin: int, end: int) -> None:
        """Let there be only zeros from an offset to ``end`` of the same file; :meth:`cut` syncs it."""
        file, start = self._file_with(begin, end - begin)
        zero_from(file, begin - start, end - start)

    def drop_unused_file(self) -> None:
        """Delete a last file that holds nothing, as a broker does at a clean stop."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None
            self._forget(self._spare_start)

    def unsynced(self, target: int) -> list[File]:
        """Return the files that hold bytes between ``flushed`` and ``target``, the last one being the tail's handle."""
        files = []
        first = self.start_of(max(self.flushed, self.min_offset))
        for start in self._starts:
            if start >= first and start < target:
                if start == self._tail_start and self._tail is not None:
                    files.append(self._tail)
                else:
                    files.append(self._files.get(self.path(start)))
        return files

    # ---- reading ----

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes, which must lie within the log and within one file; else a StoreError."""
        file, start = self._file_with(offset, size)
        return file.read_at(offset - start, size)

    def _file_with(self, offset: int, size: int) -> tuple[File, int]:
        """Return the file that holds these bytes, and where it begins."""
        if offset < self.min_offset or offset + size > self.end or size < 0:
            raise StoreError(
                f"bytes {offset} to {offset + size} are not in the commit log ({self.min_offset} to {self.end})"
            )
        if offset >= self._tail_start and self._tail is not None:
            return self._tail, self._tail_start
        start = self.start_of(offset)
        return self._files.get(self.path(start)), start

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes:
        """Return up to ``limit`` bytes from ``offset`` on, never beyond the end of a file; empty at the end."""
        end = self.end if until is None else min(until, self.end)
        size = min(limit, end - offset, self.start_of(offset) + self.segment_bytes - offset)
        return self.read(offset, size) if size > 0 else b""

    def data_end(self, offset: int) -> int:
        """Return an offset behind which the file of ``offset`` has only zeros, found without reading."""
        file, start = self._file_with(offset, 0)
        return start + file.data_end()

    def view_some(self, offset: int, limit: int) -> bytes | memoryview:
        """As :meth:`read_some`, where possible without a copy; see `File.view_at`."""
        place = offset % self.segment_bytes
        size = self.end - offset
        if size > limit:
            size = limit
        if size > self.segment_bytes - place:
            size = self.segment_bytes - place
        if size <= 0:
            return b""
        if offset >= self._tail_start and self._tail is not None:  # without a further call: each pull comes here
            return self._tail.view_at(place, size)
        return self._file_with(offset, size)[0].view_at(place, size)

    def read_loaded(self, offset: int, limit: int) -> bytes | memoryview | None:
        """As :meth:`read_some`, of what is in memory; see `File.read_loaded`."""
        size = min(limit, self.end - offset, self.start_of(offset) + self.segment_bytes - offset)
        if size <= 0:
            return b""
        file, start = self._file_with(offset, size)
        return file.read_loaded(offset - start, size)

    def in_memory(self, offset: int, size: int) -> bool:
        """Tell whether bytes from ``offset`` on, as many as `File.in_memory` looks at, are in memory."""
        place = offset % self.segment_bytes
        size = min(size, self.end - offset, self.segment_bytes - place)
        return size <= 0 or self._file_with(offset, size)[0].in_memory(place, size)

    def preload(self, offset: int, size: int) -> Deferred[None]:
        """See `File.preload`; nothing behind the end of a file."""
        place = offset % self.segment_bytes
        size = max(0, min(size, self.end - offset, self.segment_bytes - place))
        return self._file_with(offset, size)[0].preload(place, size)

    def close(self) -> None:
        """Give all files back; syncs on their way complete."""
        for file in (self._tail, self._spare):
            if file is not None:
                file.close()
        self._tail = self._spare = None
        self._files.close()
