"""
Files as the store sees them: the interfaces `Disk` and `File`, and their real implementation.

A power failure may lose, on every implementation: bytes written since the last completed ``sync`` of their file,
and names created, renamed or deleted since the last ``sync_dir`` of their folder (``make_dirs``, ``copy`` of a file's
bytes and ``write_atomic`` sync by themselves). A ``sync`` is an fsync. One that fails raises SyncFailed, and the
file then refuses writes and syncs: the kernel may have dropped the pages, and a second fsync would report success. A
write that fails may have written a part of its bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, fail

from rmq.runtime.disk import syscalls
from rmq.runtime.disk.error import DiskError as DiskError
from rmq.runtime.disk.error import DiskFull as DiskFull
from rmq.runtime.disk.error import DiskLocked as DiskLocked
from rmq.runtime.disk.error import SyncFailed as SyncFailed
from rmq.runtime.disk.error import disk_error, naming, sync_error
from rmq.runtime.disk.filesystem import RealFileSystem, open_file_system
from rmq.runtime.disk.flusher import Flusher, Job, file_syncs
from rmq.runtime.disk.realfile import Bytes, RealFile

#: Linux makes a new one at every start of the machine
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def _mode(path: str) -> int | None:
    """Return the mode of a file or folder, None when there is none; os.path.exists says so too of an unreadable one."""
    with naming(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.stat(path).st_mode
    return None


@attrs.frozen
class DiskUsage:
    """Space on a file system for unprivileged processes: total and free bytes."""

    total_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        """The used part from 0 to 1, rounded up to a whole percent; -1 when unknown.  Java: UtilAll."""
        if self.total_bytes <= 0:
            return -1.0
        return -(-(self.total_bytes - self.free_bytes) * 100 // self.total_bytes) / 100


class Lock(Protocol):
    def release(self) -> None:
        """Release the lock; harmless when repeated."""


class File(Protocol):
    """An open file. Every method but ``close`` and ``path`` raises DiskError once it is closed."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes; a DiskError with path and offset when the file does not hold them."""

    def view_at(self, offset: int, size: int) -> bytes | memoryview:
        """
        As :meth:`read_at`, where possible without a copy.

        While the returned view is in use, its bytes must not be written and the file not be truncated; the file may be
        closed and deleted.
        """

    def read_loaded(self, offset: int, size: int) -> bytes | memoryview | None:
        """
        Return 1 to ``size`` bytes without waiting for the disk; None when that is not possible.

        Where nobody knows what is in memory, read them all. Many are a view, as of :meth:`view_at`.
        """

    def in_memory(self, offset: int, size: int) -> bool:
        """Tell whether a read would not wait for the disk, perhaps of its beginning only; True where nobody knows."""

    def preload(self, offset: int, size: int) -> Deferred[None]:
        """Read into the page cache without blocking; fires when that has ended, fails with a DiskError."""

    def write_at(self, offset: int, data: Bytes) -> None:
        """Write all of ``data``; later reads see it at once. Writing past the end makes the file longer."""

    def sync(self) -> Deferred[None]:
        """Fire when all that was written before this call is durable; fail with SyncFailed. Does not block."""

    def sync_now(self) -> None:
        """The blocking form, for recovery, small files and the stop."""

    def data_end(self) -> int:
        """Return an offset behind which there are only zeros, found without reading; the size where it is unknown."""

    def truncate(self, size: int) -> None:
        """Truncate the file, or extend it with zeros, to ``size`` bytes; durable with the next sync."""

    def reserve(self, size: int) -> None:
        """Make an empty file ``size`` zero bytes long, with its blocks; harmless after :meth:`reserve_soon`."""

    def reserve_soon(self, size: int) -> Deferred[None]:
        """As :meth:`reserve` without blocking; until it fires, or :meth:`reserve` has waited, do not use the file."""

    def close(self) -> None:
        """Close the file; running syncs still complete. Harmless when repeated."""


class FileSystem(Protocol):
    """A whole file system, for when many files have changed."""

    #: so many syncs of files and folders cost more than :meth:`sync`
    worth_files: int

    def holds(self, path: str) -> bool:
        """Tell whether an existing file or folder is on it."""

    def sync(self) -> Deferred[None]:
        """
        Fire when all bytes and names on it, of whichever file, are durable that were written before this call.

        Fails with SyncFailed, also for a write since :meth:`Disk.file_system` that failed before. Does not block.
        """

    def close(self) -> None:
        """Close it; running syncs still complete. Harmless when repeated."""


class Disk(Protocol):
    """A file system. Every method raises DiskError (DiskFull when there is no room) with the path in it."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def create(self, path: str, size: int) -> File:
        """Make a new file of ``size`` zero bytes whose blocks are reserved: writing inside it finds room."""

    def create_sparse(self, path: str, size: int) -> File:
        """Make a new file of ``size`` zero bytes that takes room only where it is written."""

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder; what cannot be looked at is an error, and not missing."""

    def is_dir(self, path: str) -> bool:
        """Tell whether there is a folder; otherwise as `exists`."""

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty when there is no such folder."""

    def make_dirs(self, path: str) -> None:
        """Make a folder and those above it, durably; harmless when it exists."""

    def add_dirs(self, path: str) -> None:
        """As :meth:`make_dirs`, but what is new is durable only when the folder above it was synced."""

    def rename(self, src: str, dst: str) -> None:
        """Give ``src`` the name ``dst`` in one step, replacing what had it."""

    def delete(self, path: str) -> None:
        """Delete a file; harmless when there is none."""

    def delete_tree(self, path: str) -> None:
        """Delete a folder with all that is in it; harmless when there is none."""

    def link(self, src: str, dst: str) -> None:
        """Give the file ``src`` a second name; ``dst`` must not exist."""

    def unshare(self, path: str) -> None:
        """Give a file that has more names (:meth:`link`) a content of its own, durably; open handles keep the old."""

    def copy(self, src: str, dst: str) -> None:
        """Copy a file to the new file ``dst``, with its bytes synced. Blocks."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable; SyncFailed when that fails, DiskError when it cannot be opened."""

    def sync_dir_soon(self, path: str) -> Deferred[None]:
        """The form that does not block; harmless when the folder is gone by then."""

    def file_system(self, path: str) -> FileSystem | None:
        """Return what holds the folder ``path``; None where that cannot be synced as a whole, or hides errors."""

    def read_whole(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes, *, keep_backup: bool = False) -> None:
        """Replace the content of ``path`` durably: old or new after a crash, never a mix; the old one as ``.bak``."""

    def write_atomic_soon(self, path: str, data: bytes, *, keep_backup: bool = False) -> Deferred[None]:
        """The form that does not block; writes of one path must not overlap."""

    def usage(self, path: str) -> DiskUsage:
        """Room on the file system that holds ``path`` (or will: the nearest folder above that exists counts)."""

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in milliseconds since the epoch."""

    def lock(self, path: str) -> Lock:
        """Take the store's lock: byte 0 of ``path``, which then reads `lock`; DiskLocked when it is held."""

    def boot_id(self) -> str:
        """
        The id of this run of the operating system; empty if unknown.

        While it stays the same, everything that was written still exists, fsynced or not.
        """


class RealLock:
    """The lock of a store; held until released or until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk:
    """
    The file systems of this machine. ``reactor`` is asked for ``callFromThread`` and, where it has it, ``addReader``.

    Without ``map_files`` everything is read with system calls: slower, but an unreadable block is a DiskError then,
    where a read through a map ends the process (SIGBUS).
    """

    def __init__(self, reactor: Any, *, map_files: bool = True) -> None:
        self._flusher = Flusher(reactor)
        self._syncs = file_syncs(reactor, self._flusher)
        # A thread of its own: the commit log does not wait for whole file systems.
        self._system_flusher = Flusher(reactor, "rmq-syncfs")
        self._loader = Flusher(reactor, "rmq-loader")
        self._map_files = map_files

    def close(self) -> None:
        """Wait for running syncs and loads and end their threads; files stay usable except for ``sync``."""
        self._syncs.close()
        self._flusher.close()
        self._system_flusher.close()
        self._loader.close()

    def open(self, path: str) -> RealFile:
        # without `naming`, for thousands of queues are opened at the start
        try:
            return RealFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), self._syncs, self._loader, self._map_files)
        except OSError as error:
            raise disk_error(path, error) from error

    def create(self, path: str, size: int) -> RealFile:
        fd = self._new(path)
        try:
            syscalls.reserve(fd, size)
        except OSError as error:
            self._discard(path, fd)
            raise disk_error(path, error) from error
        return RealFile(path, fd, self._syncs, self._loader, self._map_files)

    def create_sparse(self, path: str, size: int) -> RealFile:
        fd = self._new(path)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            self._discard(path, fd)
            raise disk_error(path, error) from error
        return RealFile(path, fd, self._syncs, self._loader, self._map_files)

    def exists(self, path: str) -> bool:
        return _mode(path) is not None

    def is_dir(self, path: str) -> bool:
        return stat.S_ISDIR(_mode(path) or 0)

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk_error(path, error) from error

    def make_dirs(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_dirs(parent)
        self.add_dirs(path)
        self.sync_dir(parent)

    def add_dirs(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileExistsError):
            os.makedirs(path)
        if not os.path.isdir(path):
            raise DiskError(path, "is not a folder")

    def rename(self, src: str, dst: str) -> None:
        with naming(src, doing=f"rename to {dst}"):
            os.replace(src, dst)

    def delete(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def delete_tree(self, path: str) -> None:
        with naming(path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def link(self, src: str, dst: str) -> None:
        with naming(src, doing=f"link as {dst}"):
            os.link(src, dst)

    def unshare(self, path: str) -> None:
        with naming(path):
            if os.stat(path).st_nlink == 1:
                return
        self.delete(f"{path}.tmp")
        self.copy(path, f"{path}.tmp")
        self.rename(f"{path}.tmp", path)
        self.sync_dir(os.path.dirname(path) or ".")

    def copy(self, src: str, dst: str) -> None:
        with naming(src):
            source = os.open(src, os.O_RDONLY | os.O_CLOEXEC)
        try:
            target = self._new(dst)
            try:
                offset = 0
                for data in syscalls.chunks(source, os.fstat(source).st_size):
                    syscalls.write_fully(target, data, offset)
                    offset += len(data)
                os.fsync(target)
            except OSError as error:
                self._discard(dst, target)
                raise disk_error(src, error, doing=f"copy to {dst}") from error
            os.close(target)
        finally:
            os.close(source)

    def sync_dir(self, path: str) -> None:
        try:
            syscalls.sync_folder(path)
        except OSError as error:
            # Only open() sets a file name: no fsync was tried then (too many open files), and a later one covers it.
            raise (sync_error if error.filename is None else disk_error)(path, error) from error

    def sync_dir_soon(self, path: str) -> Deferred[None]:
        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                syscalls.sync_folder(path)

        return self._in_thread(path, path, work)

    def _in_thread(self, path: str, key: object, work: Callable[[], None]) -> Deferred[None]:
        """Run work on ``path`` in the flusher's thread; jobs of one key that wait share a run."""
        if self._flusher.closed:
            return fail(DiskError(path, "cannot fsync, the disk is closed"))
        done: Deferred[None] = Deferred()

        def ended(error: Exception | None) -> None:
            if error is None:
                done.callback(None)
            else:
                done.errback(sync_error(path, error) if isinstance(error, OSError) else error)

        self._flusher.add(Job(key, work, ended))
        return done

    def file_system(self, path: str) -> RealFileSystem | None:
        return open_file_system(path, self._system_flusher)

    def read_whole(self, path: str) -> bytes:
        with naming(path), open(path, "rb") as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes, *, keep_backup: bool = False) -> None:
        temporary = f"{path}.tmp"
        with naming(temporary):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                # It may hold passwords: keep the permissions of the old file.
                mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else None
                if mode is not None and mode != os.fstat(fd).st_mode & 0o7777:
                    os.fchmod(fd, mode)
                if data:
                    syscalls.write_fully(fd, data, 0)
                os.fsync(fd)
            except OSError:
                os.unlink(temporary)  # half of a file is useless, and its space is needed
                raise
            finally:
                os.close(fd)
        if keep_backup and self.exists(path):
            self._back_up(path)
        self.rename(temporary, path)
        self.sync_dir(os.path.dirname(path) or ".")

    def write_atomic_soon(self, path: str, data: bytes, *, keep_backup: bool = False) -> Deferred[None]:
        return self._in_thread(path, object(), lambda: self.write_atomic(path, data, keep_backup=keep_backup))

    def usage(self, path: str) -> DiskUsage:
        path = os.path.abspath(path)
        while not os.path.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        with naming(path):
            status = os.statvfs(path)
        used = status.f_blocks - status.f_bfree
        return DiskUsage((used + status.f_bavail) * status.f_frsize, status.f_bavail * status.f_frsize)

    def modified_ms(self, path: str) -> int:
        with naming(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> RealLock:
        with naming(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            syscalls.lock_first_byte(fd)
        except OSError as error:
            os.close(fd)
            raise DiskLocked(path, "another broker holds this lock and so uses this store") from error
        try:
            syscalls.write_fully(fd, b"lock", 0)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            raise disk_error(path, error) from error
        return RealLock(fd)

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def _new(self, path: str) -> int:
        with naming(path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def _discard(self, path: str, fd: int) -> None:
        """Delete a file that could not be completed."""
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _back_up(self, path: str) -> None:
        """Make ``path.bak`` the present content, through a second name so that it is never missing."""
        staged = f"{path}.bak.tmp"
        self.delete(staged)
        try:
            self.link(path, staged)
        except DiskError:
            self.copy(path, staged)  # a file system without hard links
        self.rename(staged, f"{path}.bak")
        # When .bak was the same file already, POSIX lets the rename do nothing.
        self.delete(staged)
