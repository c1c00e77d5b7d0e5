"""An open file of the operating system."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
from typing import Any

from twisted.internet.defer import Deferred, fail

from rmq.runtime.disk import syscalls
from rmq.runtime.disk.error import DiskError, disk_error, naming, sync_error
from rmq.runtime.disk.flusher import FileSyncs, Flusher, Job
from rmq.wire.compiled import load

_compiled: Any = load("rmq.runtime.disk._syncs")

Bytes = bytes | bytearray | memoryview

#: smaller files are faster to read without a map
MAP_MIN_BYTES = 64 * 1024

#: Up to so much is copied. A view of what was just written can stop the reactor: the kernel locks pages while it waits
#: for the disk to take them.
COPIED_BYTES = 64 * 1024
#: So much of a file is looked at to say whether it is in memory: 11 us; the records of a pull may lie in a whole GiB.
LOOK_BYTES = 1 << 20
#: the same without the compiled module
PROBE_BYTES = 256 * 1024
_probe = memoryview(bytearray(PROBE_BYTES))
#: so much is read ahead of a preload
AHEAD_BYTES = 4 << 20
_scratch = memoryview(bytearray(1 << 20))
#: preadv(2) with it gives only what is in the page cache; Linux
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)

#: in place of the descriptor of a closed file; 0 is a descriptor where standard input is closed
CLOSED = -1


class RealFile:
    """A `File` of the operating system: pwrite to write, a read-only map (or pread) to read."""

    def __init__(self, path: str, fd: int, syncs: FileSyncs, loader: Flusher, map_files: bool) -> None:
        self.path = path
        self._fd = fd
        self._syncs = syncs
        self._loader = loader
        self._size = os.fstat(fd).st_size
        #: smaller files are read with pread
        self._map_from_bytes = MAP_MIN_BYTES if map_files else sys.maxsize
        self._map: mmap.mmap | None = None
        #: earlier maps whose views are still in use
        self._lent: list[mmap.mmap] = []
        self._may_map = self._size >= self._map_from_bytes
        self._is_random = False
        #: held by who gives the file its blocks, where that is a thread
        self._reserving: threading.Lock | None = None
        self._is_reserved = False
        #: jobs of threads that use the descriptor
        self._jobs = 0
        #: why every operation is refused (closed), or every write (an fsync failed)
        self._refusal: str | None = None

    @property
    def size(self) -> int:
        if self._fd == CLOSED:
            raise DiskError(self.path, "the file is closed")
        return self._size

    def read_at(self, offset: int, size: int) -> bytes:
        mapped = self._map_for(offset, size)
        return self._pread(offset, size) if mapped is None else mapped[offset : offset + size]

    def view_at(self, offset: int, size: int) -> bytes | memoryview:
        mapped = self._map
        if mapped is None or not 0 <= offset <= offset + size <= self._size:
            mapped = self._map_for(offset, size)
        return self._pread(offset, size) if mapped is None else memoryview(mapped)[offset : offset + size]

    def read_loaded(self, offset: int, size: int) -> bytes | memoryview | None:
        if size > COPIED_BYTES:
            return self.view_at(offset, size) if self.in_memory(offset, size) else None
        if _NOWAIT is None or size <= 0 or not 0 <= offset <= offset + size <= self._size:
            return self.read_at(offset, size)
        self._read_only_what_is_asked()
        data = bytearray(size)
        try:
            found = os.preadv(self._fd, [data], offset, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return self._pread(offset, size)  # a file system that cannot say
        return memoryview(data)[:found]

    def in_memory(self, offset: int, size: int) -> bool:
        if self._fd == CLOSED:
            raise DiskError(self.path, "the file is closed", offset)
        size = min(size, LOOK_BYTES, self._size - offset)
        if _NOWAIT is None or size <= 0:
            return True
        if _compiled is not None and (mapped := self._map_for(offset, size)) is not None:
            return bool(_compiled.in_memory(memoryview(mapped)[offset : offset + size]))
        self._read_only_what_is_asked()
        size = min(size, PROBE_BYTES)
        try:
            return os.preadv(self._fd, [_probe[:size]], offset, _NOWAIT) == size
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system that cannot say

    def preload(self, offset: int, size: int) -> Deferred[None]:
        if self._fd == CLOSED:
            return fail(DiskError(self.path, "the file is closed", offset))
        done: Deferred[None] = Deferred()
        if self._loader.closed:
            done.callback(None)
            return done
        self._read_only_what_is_asked()
        self._jobs += 1
        fd = self._fd

        def loaded(error: OSError | None) -> None:
            self._job_done(fd)
            if error is None:
                done.callback(None)
            else:
                done.errback(disk_error(self.path, error, offset=offset))

        self._loader.add(Job((self.path, offset, size), lambda: _read_through(fd, offset, size), loaded))
        return done

    def _read_only_what_is_asked(self) -> None:
        """
        End the kernel's reading ahead through this descriptor; :func:`_read_through` does it in its thread.

        A read of a certain page starts the next part, 8 MiB on some disks, in the thread that reads: RWF_NOWAIT or not.
        """
        if not self._is_random:
            self._is_random = True
            _advise(self._fd, 0, 0, "POSIX_FADV_RANDOM")

    def write_at(self, offset: int, data: Bytes) -> None:
        if self._refusal is not None:
            raise DiskError(self.path, self._refusal, offset)
        try:
            if os.pwrite(self._fd, data, offset) != len(data):
                syscalls.write_fully(self._fd, data, offset)
        except OSError as error:
            self._resize(os.fstat(self._fd).st_size)  # a part may have been written after the old end
            raise disk_error(self.path, error, offset=offset) from error
        if offset + len(data) > self._size:
            self._resize(offset + len(data))

    def sync(self) -> Deferred[None]:
        if self._refusal is not None or self._syncs.closed:
            return fail(DiskError(self.path, self._refusal or "cannot fsync, the disk is closed"))
        done: Deferred[None] = Deferred()
        self._jobs += 1
        fd = self._fd

        def synced(error: OSError | None) -> None:
            self._job_done(fd)
            if error is None:
                done.callback(None)
            else:
                done.errback(self._sync_failed(error))

        self._syncs.sync(fd, synced)
        return done

    def _job_done(self, fd: int) -> None:
        self._jobs -= 1
        if self._jobs == 0 and self._fd == CLOSED:
            os.close(fd)  # close() left this to the last one

    def sync_now(self) -> None:
        if self._refusal is not None:
            raise DiskError(self.path, self._refusal)
        try:
            syscalls.sync_data(self._fd)
        except OSError as error:
            raise self._sync_failed(error) from error

    def data_end(self) -> int:
        size = self.size
        return min(size, syscalls.data_end(self._fd, size))

    def truncate(self, size: int) -> None:
        if self._refusal is not None:
            raise DiskError(self.path, self._refusal, size)
        # Unmap first: access to a mapped page after the new end would kill the process (SIGBUS).
        self._unmap()
        if self._lent:
            raise DiskError(self.path, "cannot be truncated while its bytes are being sent", size)
        with naming(self.path, offset=size):
            os.ftruncate(self._fd, size)
        self._resize(size)

    def reserve(self, size: int) -> None:
        if self._refusal is not None:
            raise DiskError(self.path, self._refusal, size)
        with naming(self.path), self._reserving or contextlib.nullcontext():
            self._reserve(self._fd, size)
        self._resize(size)

    def reserve_soon(self, size: int) -> Deferred[None]:
        if self._refusal is not None or self._loader.closed:
            return fail(DiskError(self.path, self._refusal or "no room can be reserved, the disk is closed"))
        done: Deferred[None] = Deferred()
        lock = self._reserving = threading.Lock()
        self._jobs += 1
        fd = self._fd

        def work() -> None:
            with lock:
                self._reserve(fd, size)

        def reserved(error: OSError | None) -> None:
            self._job_done(fd)
            if error is not None:
                done.errback(disk_error(self.path, error))
                return
            if self._fd != CLOSED:
                self._resize(size)
            done.callback(None)

        self._loader.add(Job(object(), work, reserved))
        return done

    def _reserve(self, fd: int, size: int) -> None:
        if not self._is_reserved:
            syscalls.reserve(fd, size)
            self._is_reserved = True

    def close(self) -> None:
        if self._fd == CLOSED:
            return
        fd, self._fd = self._fd, CLOSED
        self._refusal = "the file is closed"
        self._size = -1
        self._may_map = False
        self._unmap()
        if self._jobs == 0:
            os.close(fd)  # otherwise the last running job closes it: the descriptor must not be reused before

    def _pread(self, offset: int, size: int) -> bytes:
        # without `naming`, which would take longer than the read
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size:  # a signal or the kernel's 2 GiB limit cut it
                more = os.pread(self._fd, size - len(data), offset + len(data))
                if not more:
                    raise DiskError(self.path, f"only {len(data)} of {size} bytes are there", offset)
                data += more
        except OSError as error:
            raise disk_error(self.path, error, offset=offset) from error
        return data

    def _read_trouble(self, size: int) -> str:
        if self._fd == CLOSED:
            return "the file is closed"
        return f"cannot read {size} bytes, the file has {self._size}"

    def _map_for(self, offset: int, size: int) -> mmap.mmap | None:
        """Return a map of at least this size, None to use pread; a DiskError when the file is shorter."""
        if offset < 0 or size < 0 or offset + size > self._size:
            raise DiskError(self.path, self._read_trouble(size), offset)
        if self._map is not None or (self._may_map and self._mapped()):
            return self._map
        return None

    def _mapped(self) -> bool:
        """Try to map the file; False: use pread until its size changes."""
        self._may_map = False
        status = os.fstat(self._fd)
        # Map only what exists: a truncated file, or one with holes on a full tmpfs, would mean SIGBUS.
        if status.st_size < self._size or status.st_blocks * 512 < self._size:
            return False
        try:
            self._map = mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            return False
        return True

    def _unmap(self) -> None:
        """Release the map; it stays mapped as long as views of it are in use."""
        maps = self._lent if self._map is None else [*self._lent, self._map]
        self._map = None
        self._lent = [each for each in maps if not _closed(each)]

    def _resize(self, size: int) -> None:
        if size != self._size:
            self._unmap()
            self._size = size
            self._may_map = size >= self._map_from_bytes

    def _sync_failed(self, error: OSError) -> DiskError:
        if self._fd != CLOSED:
            self._refusal = (
                f"an earlier fsync failed ({error.strerror}); bytes written since the last good fsync may be lost"
            )
        return sync_error(self.path, error)


def _read_through(fd: int, offset: int, size: int) -> None:
    """Read into the page cache, and start to read what lies behind."""
    _advise(fd, offset, size + AHEAD_BYTES, "POSIX_FADV_WILLNEED")
    for at in range(offset, offset + size, len(_scratch)):
        if not os.preadv(fd, [_scratch[: offset + size - at]], at):
            return


def _advise(fd: int, offset: int, size: int, advice: str) -> None:
    # macOS does not have it, and a file system may refuse it
    with contextlib.suppress(OSError, AttributeError):
        os.posix_fadvise(fd, offset, size, getattr(os, advice))


def _closed(held: mmap.mmap) -> bool:
    """Close a map; False when views of it are in use."""
    try:
        held.close()
    except BufferError:
        return False
    return True
