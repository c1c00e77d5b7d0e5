"""
A simulated disk: everything that `rmq.runtime.disk.files` promises, and no more than that.

At a power failure each write since the last sync of its file is kept, dropped, torn at sectors or turned to garbage,
and each name created, renamed or deleted since the last ``sync_dir`` of its folder is there or not. Sectors have 512
bytes, or fewer where ``sector_bytes`` says so. Syncs of files and folders can be slow or fail, a write can fail with a
part of its bytes written, the disk can be full, bits can rot.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, fail

from rmq.runtime.disk.files import DiskError, DiskFull, DiskLocked, DiskUsage, SyncFailed
from rmq.runtime.disk.realfile import Bytes
from rmq.sim.inode import PAGE_BYTES, SECTOR_BYTES, CrashOdds, Inode, Resize, Write

if TYPE_CHECKING:
    from rmq.sim.node import Node

HEALTHY_CAPACITY_BYTES = 64 << 30
#: a healthy disk has room for so much at any time
SMALL_BYTES = 1 << 20
#: what a sync takes, from and to
HEALTHY_SYNC_S = (0.0005, 0.005)
#: what a load takes
HEALTHY_LOAD_S = 0.005


@lru_cache(maxsize=10_000)
def normal_path(path: str) -> str:
    """Return the one way to write a path."""
    return os.path.normpath(os.path.join("/", path))


class Folder:
    """A folder is only a name that others begin with."""


FOLDER = Folder()
Entry = Inode | Folder


@attrs.frozen(eq=False)
class NameChange:
    """Names that appear (or, with None, go) in one step."""

    entries: dict[str, Entry | None]

    @property
    def folders(self) -> set[str]:
        return {os.path.dirname(path) for path in self.entries}

    def apply(self, names: dict[str, Entry]) -> None:
        for path, entry in self.entries.items():
            if entry is None:
                names.pop(path, None)
            else:
                names[path] = entry


class SimDisk:
    """
    The disk of one machine. Knobs: ``capacity_bytes``, ``sync_s`` (range of what a sync takes), ``odds``,
    ``sector_bytes`` (what of a file is written whole or not at all), ``fail_syncs`` and ``fail_writes`` (how many of
    the next syncs and writes fail), ``sync_fails`` and ``write_fails`` (of which files and folders).
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._rng = node.world.rng_for(node.name, "disk")
        self.odds = CrashOdds()
        self.sector_bytes: Callable[[str], int] = lambda path: SECTOR_BYTES
        #: what a sync takes while nothing is wrong
        self.healthy_sync_s = HEALTHY_SYNC_S
        #: nothing is in the page cache until a load has ended
        self.is_cold = False
        self.load_s = HEALTHY_LOAD_S
        #: called with the seconds that it will take, when a sync begins that does not block
        self.on_sync: Callable[[float], object] = lambda seconds: None
        #: called with its path when a sync begins that blocks the reactor
        self.on_halt: Callable[[str], object] = lambda path: None
        self._in_thread = False
        #: called when an empty disk takes the place of this one
        self.on_replace: Callable[[], object] = lambda: None
        #: of files, in all processes
        self.failed_syncs = 0
        self.recover()
        self._names: dict[str, Entry] = {"/": FOLDER}
        self._durable_names: dict[str, Entry] = {"/": FOLDER}
        self._name_changes: list[NameChange] = []
        self._handles: dict[SimFile, None] = {}
        self._locks: dict[str, SimLock] = {}
        self._inodes = 0
        self._power_failures = 0

    def replace(self) -> None:
        """Put in a new, empty disk; the machine must be without a process."""
        assert self._node.process is None, "disks are replaced in machines that rest"
        self._note("replaced")
        self.on_replace()
        self._names = {"/": FOLDER}
        self._durable_names = {"/": FOLDER}
        self._name_changes.clear()

    def recover(self) -> None:
        """End every fault: room enough, writes and fast syncs that succeed."""
        self.capacity_bytes = HEALTHY_CAPACITY_BYTES
        self.sync_s = self.healthy_sync_s
        self.fail_syncs = 0
        self.fail_writes = 0
        self.sync_fails: Callable[[str], bool] = lambda path: False
        self.write_fails: Callable[[str], bool] = lambda path: False

    def fill(self) -> None:
        """Let there be no room but what is reserved already."""
        self.capacity_bytes = self._used_bytes()

    # -- the life of the machine

    def process_gone(self) -> None:
        """Handles and locks go with their process; what was written stays in the page cache."""
        for handle in self._handles:
            handle.abandon()
        self._handles.clear()
        self._locks.clear()

    def crash(self) -> None:
        """The power goes: decide what had reached the platter."""
        self.process_gone()
        self._power_failures += 1
        ordered = self._rng.random() < 0.5
        alive = True
        for change in self._name_changes:
            # A journal loses its end; a disk without one loses what it likes.
            luck = self._rng.random() < 0.5
            alive = (alive and luck) if ordered else luck
            if alive:
                change.apply(self._durable_names)
            else:
                self._note("lost names", *sorted(change.entries))
        self._name_changes.clear()
        self._drop_orphans()
        self._names = dict(self._durable_names)
        paths: dict[Inode, str] = {}
        for path, entry in self._names.items():
            if isinstance(entry, Inode):
                paths.setdefault(entry, path)  # a file of several names meets its fate once
        for inode, path in paths.items():
            inode.crash(self._rng, self.odds, self._note, self.sector_bytes(path))

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Rot one bit of a file."""
        self._note("bit flip", path, offset, bit)
        self._inode(path).flip_bit(offset, bit)

    def open_paths(self) -> list[str]:
        """The files that the process has open."""
        return [handle.path for handle in self._handles]

    # -- files

    def open(self, path: str) -> SimFile:
        return SimFile(self, self._path(path), self._inode(path))

    def create(self, path: str, size: int) -> SimFile:
        self._need_room(path, size)
        file = self.create_sparse(path, size)
        file.inode.reserved_bytes = size
        return file

    def reserve(self, path: str, inode: Inode, size: int) -> None:
        self._need_room(path, size)
        if size:
            self.write(path, inode, Resize(size))
        inode.reserved_bytes = size

    def create_sparse(self, path: str, size: int) -> SimFile:
        path = self._new_name(path)
        self._inodes += 1
        inode = Inode(self._inodes)
        inode.modified_s = self._node.seconds()
        if size:
            inode.change(Resize(size))
        self._change_names({path: inode})
        return SimFile(self, path, inode)

    def unshare(self, path: str) -> None:
        path = self._path(path)
        inode = self._inode(path)
        if sum(entry is inode for entry in self._names.values()) > 1:
            self.delete(f"{path}.tmp")
            self.copy(path, f"{path}.tmp")
            self.rename(f"{path}.tmp", path)
            self.sync_dir(os.path.dirname(path))

    def copy(self, src: str, dst: str) -> None:
        content = self._inode(src).live
        data = content.read(0, content.size)
        file = self.create(dst, content.size)
        try:
            file.write_at(0, data)
            file.sync_now()
        except DiskError:
            self.delete(dst)
            raise
        finally:
            file.close()

    def file_system(self, path: str) -> SimFileSystem | None:
        return SimFileSystem(self) if self.is_dir(path) else None

    def sync_all(self, changes: dict[Inode, Write | Resize], names: list[NameChange]) -> None:
        """Make everything durable up to the last of these changes of files and names; DiskError when that fails."""
        paths = {entry: path for path, entry in self._names.items() if isinstance(entry, Inode)}
        error: DiskError | None = None
        for inode, last in changes.items():
            # A file that is gone, or that another sync took care of, has nothing left to write.
            failure = self.sync_inode(paths.get(inode, "/"), inode, inode.count_to(last))
            if failure is not None:
                error = failure
                for handle in self._handles:
                    if handle.inode is inode:
                        handle.missed = failure
        for folder in sorted({folder for change in names for folder in change.folders}):
            synced = [change for change in names if folder in change.folders and change in self._name_changes]
            failure = self._names_synced(folder, synced)
            error = failure or error
        if error is not None:
            raise error

    def all_pending(self) -> tuple[dict[Inode, Write | Resize], list[NameChange]]:
        """Return the last change of each file, and those of names, that are not durable."""
        inodes = dict.fromkeys(entry for entry in self._names.values() if isinstance(entry, Inode))
        return {inode: inode.pending[-1] for inode in inodes if inode.pending}, list(self._name_changes)

    def read_whole(self, path: str) -> bytes:
        content = self._inode(path).live
        return content.read(0, content.size)

    def write_atomic(self, path: str, data: bytes, *, keep_backup: bool = False) -> None:
        path = self._path(path)
        self.delete(f"{path}.tmp")
        file = self.create(f"{path}.tmp", 0)
        try:
            file.write_at(0, data)
            file.sync_now()
        except DiskError:
            self.delete(f"{path}.tmp")
            raise
        finally:
            file.close()
        if keep_backup and self.exists(path):
            self.delete(f"{path}.bak.tmp")
            self.link(path, f"{path}.bak.tmp")
            self.rename(f"{path}.bak.tmp", f"{path}.bak")
            self.delete(f"{path}.bak.tmp")
        self.rename(f"{path}.tmp", path)
        self.sync_dir(os.path.dirname(path))

    def write_atomic_soon(self, path: str, data: bytes, *, keep_backup: bool = False) -> Deferred[None]:
        return self.later(lambda: self.write_atomic(path, data, keep_backup=keep_backup))

    def modified_ms(self, path: str) -> int:
        return int(self._inode(path).modified_s * 1000)

    def peek(self, path: str, offset: int, size: int) -> bytes:
        """Return bytes of a file without opening it, fewer at its end; for those who judge a run."""
        content = self._inode(path).live
        return content.read(offset, max(0, min(size, content.size - offset)))

    def at_risk(self, folder: str) -> dict[str, int]:
        """Return, for each file in ``folder`` that a power failure now may change, the first byte that it may take."""
        found = {}
        for name in self.list_dir(folder):
            path = self._path(os.path.join(folder, name))
            entry = self._names[path]
            if isinstance(entry, Inode) and self._durable_names.get(path) is not entry:
                found[path] = 0
            elif isinstance(entry, Inode) and entry.pending:
                found[path] = entry.unsynced_from
        return found

    # -- names

    def exists(self, path: str) -> bool:
        return self._path(path) in self._names

    def is_dir(self, path: str) -> bool:
        return self._names.get(self._path(path)) is FOLDER

    def list_dir(self, path: str) -> list[str]:
        path = self._path(path)
        if isinstance(self._names.get(path), Inode):
            raise DiskError(path, "Not a directory")
        prefix = path if path == "/" else f"{path}/"
        start = len(prefix)
        inside = (name[start:] for name in self._names if name.startswith(prefix) and len(name) > start)
        return sorted(name for name in inside if "/" not in name)

    def make_dirs(self, path: str) -> None:
        path = self._path(path)
        if self.is_dir(path):
            return
        if self.exists(path):
            raise DiskError(path, "is not a folder")
        parent = os.path.dirname(path)
        self.make_dirs(parent)
        self._change_names({path: FOLDER})
        self.sync_dir(parent)

    def add_dirs(self, path: str) -> None:
        path = self._path(path)
        if self.is_dir(path):
            return
        if self.exists(path):
            raise DiskError(path, "is not a folder")
        self.add_dirs(os.path.dirname(path))
        self._change_names({path: FOLDER})

    def rename(self, src: str, dst: str) -> None:
        src, dst = self._path(src), self._path(dst)
        entry = self._names.get(src)
        if entry is None or not self.is_dir(os.path.dirname(dst)):
            raise DiskError(src, f"cannot rename to {dst}: No such file or directory")
        if (entry is FOLDER or self.is_dir(dst)) and self.exists(dst):
            raise DiskError(src, f"cannot rename to {dst}: it is there")
        if self._names.get(dst) is entry:
            return  # two names of one file: POSIX does nothing
        moved: dict[str, Entry | None] = {src: None, dst: entry}
        for name, inside in self._names.items():
            if name.startswith(f"{src}/"):
                moved[name] = None
                moved[dst + name[len(src) :]] = inside
        self._change_names(moved)

    def delete(self, path: str) -> None:
        path = self._path(path)
        if self.is_dir(path):
            raise DiskError(path, "Is a directory")
        if path in self._names:
            self._change_names({path: None})

    def delete_tree(self, path: str) -> None:
        path = self._path(path)
        for name in [name for name in self._names if name == path or name.startswith(f"{path}/")]:
            self._change_names({name: None})

    def link(self, src: str, dst: str) -> None:
        if self.exists(dst):
            raise DiskError(src, f"cannot link as {dst}: File exists")
        inode = self._inode(src)
        self._change_names({self._new_name(dst): inode})

    def sync_dir(self, path: str) -> None:
        path = self._path(path)
        if not self.is_dir(path):
            raise DiskError(path, "No such directory")
        self.halts(path)
        failure = self._names_synced(path, [change for change in self._name_changes if path in change.folders])
        if failure is not None:
            raise failure

    def sync_dir_soon(self, path: str) -> Deferred[None]:
        return self.later(lambda: self.sync_dir(path) if self.is_dir(path) else None)

    def later(self, work: Callable[[], None]) -> Deferred[None]:
        """Do what a thread does; nothing of it is done when the process is gone by then."""
        done: Deferred[None] = Deferred()
        takes_s = self.sync_takes_s()

        def end() -> None:
            self._in_thread = True
            try:
                work()
            except DiskError as error:
                failed: DiskError | None = error
            else:
                failed = None
            finally:
                self._in_thread = False
            done.callback(None) if failed is None else done.errback(failed)

        self.after(takes_s, end)
        self.on_sync(takes_s)
        return done

    # -- the disk

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(self.capacity_bytes, max(0, self.capacity_bytes - self._used_bytes()))

    def lock(self, path: str) -> SimLock:
        path = self._path(path)
        if path in self._locks:
            raise DiskLocked(path, "another broker holds this lock and so uses this store")
        if not self.exists(path):
            self.create(path, 0).close()
        file = self.open(path)
        try:
            file.write_at(0, b"lock")
        finally:
            file.close()
        self._locks[path] = lock = SimLock(self, path)
        return lock

    def boot_id(self) -> str:
        return f"{self._node.name} boot {self._power_failures}"

    def unlock(self, path: str, lock: SimLock) -> None:
        if self._locks.get(path) is lock:
            del self._locks[path]

    # -- what files ask

    def opened(self, file: SimFile) -> None:
        self._handles[file] = None

    def closed(self, file: SimFile) -> None:
        self._handles.pop(file, None)

    def write(self, path: str, inode: Inode, change: Write | Resize) -> None:
        """Change a file, if there is room for it; a write that fails may have written a part."""
        error: DiskError | None = None
        if isinstance(change, Write):
            error = self._write_error(path, inode, change)
            if error is not None:
                is_full = isinstance(error, DiskFull)
                size = self._fitting(inode, change) if is_full else self._rng.randrange(len(change.data))
                change = Write(change.offset, change.data[:size])
                self._note("write failed", path, change.offset, len(change.data))
        else:
            inode.reserved_bytes = min(inode.reserved_bytes, change.size)
        if error is None or (isinstance(change, Write) and change.data):
            inode.change(change)
            inode.modified_s = self._node.seconds()
        if error is not None:
            raise error

    def halts(self, path: str) -> None:
        """A file or folder is synced while the caller waits."""
        if not self._in_thread:
            self.on_halt(path)

    def sync_takes_s(self) -> float:
        return self._rng.uniform(*self.sync_s)

    def after(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call later, unless the process is gone by then."""
        assert self._node.process is not None, "a sync without a process"
        self._node.process.callLater(delay_s, call)

    def sync_inode(self, path: str, inode: Inode, count: int) -> DiskError | None:
        """Make the oldest ``count`` changes durable; return the error where the disk fails."""
        if self._sync_fails(path):
            self._note("sync failed", path)
            self.failed_syncs += 1
            inode.lose_some(count, self._rng)
            return SyncFailed(path, "cannot fsync: Input/output error")
        inode.make_durable(count)
        self._note("sync", path, count)
        return None

    # -- inside

    def _names_synced(self, folder: str, changes: list[NameChange]) -> DiskError | None:
        """Make changes of names durable; return the error where the disk fails."""
        self._name_changes = [change for change in self._name_changes if change not in changes]
        failed = self._sync_fails(folder)
        for change in changes:
            # As for the bytes of a file: the kernel forgets what it could not write.
            if not failed or self._rng.random() < 0.5:
                change.apply(self._durable_names)
        self._note("sync_dir failed" if failed else "sync_dir", folder)
        return SyncFailed(folder, "cannot fsync: Input/output error") if failed else None

    def _path(self, path: str) -> str:
        return normal_path(path)

    def _inode(self, path: str) -> Inode:
        entry = self._names.get(self._path(path))
        if isinstance(entry, Inode):
            return entry
        raise DiskError(path, "No such file or directory" if entry is None else "Is a directory")

    def _new_name(self, path: str) -> str:
        path = self._path(path)
        if path in self._names:
            raise DiskError(path, "File exists")
        if not self.is_dir(os.path.dirname(path)):
            raise DiskError(path, "No such file or directory")
        return path

    def _change_names(self, entries: dict[str, Entry | None]) -> None:
        change = NameChange(entries)
        change.apply(self._names)
        self._name_changes.append(change)

    def _drop_orphans(self) -> None:
        """A name whose folder did not survive is gone as well."""
        for path in sorted(self._durable_names):
            if path != "/" and self._durable_names.get(os.path.dirname(path)) is not FOLDER:
                del self._durable_names[path]

    def _used_bytes(self) -> int:
        inodes = dict.fromkeys(entry for entry in self._names.values() if isinstance(entry, Inode))
        return sum(inode.allocated_bytes for inode in inodes)

    def _sync_fails(self, path: str) -> bool:
        """Tell whether a sync that ends now fails; that counts as one of those which shall."""
        if self.fail_syncs > 0 or self.sync_fails(path):
            self.fail_syncs = max(0, self.fail_syncs - 1)
            return True
        return False

    def _write_error(self, path: str, inode: Inode, write: Write) -> DiskError | None:
        if self.fail_writes > 0 or self.write_fails(path):
            self.fail_writes = max(0, self.fail_writes - 1)
            return DiskError(path, "Input/output error", write.offset)
        try:
            self._need_room(path, inode.needs_bytes(write), write.offset)
        except DiskFull as full:
            return full
        return None

    def _fitting(self, inode: Inode, write: Write) -> int:
        """Return how many of the bytes of a write find room, page by page."""
        free = self.capacity_bytes - self._used_bytes()
        size = fitting = 0
        while size < len(write.data) and inode.needs_bytes(Write(write.offset, write.data[: size + 1])) <= free:
            size += PAGE_BYTES - (write.offset + size) % PAGE_BYTES
            fitting = min(size, len(write.data))
        return fitting

    def _need_room(self, path: str, size: int, offset: int | None = None) -> None:
        if self.capacity_bytes >= HEALTHY_CAPACITY_BYTES and size <= SMALL_BYTES:
            return  # counting what is used takes a while, and a healthy disk is far from full
        if size and size > self.capacity_bytes - self._used_bytes():
            raise DiskFull(path, "No space left on device", offset)

    def _note(self, *parts: object) -> None:
        self._world.note(self._node.name, "disk", *parts)


class SimFile:
    """An open file of the present process."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        #: what a sync of the whole file system could not write: the next sync of this handle reports it, too
        self.missed: DiskError | None = None
        self._refusal: str | None = None
        self._closed: str | None = None
        disk.opened(self)

    @property
    def size(self) -> int:
        self._check_open(None)
        return self.inode.live.size

    def read_at(self, offset: int, size: int) -> bytes:
        if self._closed is not None:
            self._check_open(offset)
        content = self.inode.live
        if offset < 0 or size < 0 or offset + size > content.size:
            raise DiskError(self.path, f"cannot read {size} bytes, the file has {content.size}", offset)
        return content.read(offset, size)

    def view_at(self, offset: int, size: int) -> bytes:
        return self.read_at(offset, size)

    def read_loaded(self, offset: int, size: int) -> bytes | None:
        self._check_open(offset)
        return None if self._disk.is_cold else self.read_at(offset, size)

    def in_memory(self, offset: int, size: int) -> bool:
        self._check_open(offset)
        return not self._disk.is_cold

    def preload(self, offset: int, size: int) -> Deferred[None]:
        if self._closed is not None:
            return fail(DiskError(self.path, self._closed, offset))
        done: Deferred[None] = Deferred()

        def loaded() -> None:
            self._disk.is_cold = False
            done.callback(None)

        self._disk.after(self._disk.load_s, loaded)
        return done

    def write_at(self, offset: int, data: Bytes) -> None:
        self._check_writable(offset)
        if offset < 0:
            raise DiskError(self.path, "Invalid argument", offset)
        if len(data):
            self._disk.write(self.path, self.inode, Write(offset, bytes(data)))

    def sync(self) -> Deferred[None]:
        if self._closed or self._refusal:
            return fail(DiskError(self.path, self._closed or self._refusal or ""))
        done: Deferred[None] = Deferred()
        # What is pending now, counted from the end: a sync that is under way takes from the front.
        change = self.inode.pending[-1] if self.inode.pending else None
        takes_s = self._disk.sync_takes_s()
        self._disk.after(takes_s, lambda: self._synced(change, done))
        self._disk.on_sync(takes_s)
        return done

    def sync_now(self) -> None:
        self._check_writable(None)
        self._disk.halts(self.path)
        error = self.missed or self._disk.sync_inode(self.path, self.inode, len(self.inode.pending))
        if error is not None:
            raise self._failed(error)

    def data_end(self) -> int:
        return min(self.size, max((number + 1 for number in self.inode.live.pages), default=0) * PAGE_BYTES)

    def truncate(self, size: int) -> None:
        self._check_writable(size)
        self._disk.write(self.path, self.inode, Resize(size))

    def reserve(self, size: int) -> None:
        self._check_writable(size)
        if self.inode.reserved_bytes == 0:
            self._disk.reserve(self.path, self.inode, size)

    def reserve_soon(self, size: int) -> Deferred[None]:
        if self._closed or self._refusal:
            return fail(DiskError(self.path, self._closed or self._refusal or ""))
        return self._disk.later(lambda: None if self._closed else self.reserve(size))

    def close(self) -> None:
        self._closed = self._closed or "the file is closed"
        self._disk.closed(self)

    def abandon(self) -> None:
        """The process that had this open is gone; nothing it does may count any more."""
        self._closed = "its process is gone, the file is closed"

    def _synced(self, last: Write | Resize | None, done: Deferred[None]) -> None:
        error = self.missed or self._disk.sync_inode(self.path, self.inode, self.inode.count_to(last))
        if error is None:
            done.callback(None)
        else:
            done.errback(self._failed(error))

    def _failed(self, error: DiskError) -> DiskError:
        self._refusal = f"an earlier fsync failed ({error.text}); bytes written since the last good fsync may be lost"
        return error

    def _check_open(self, offset: int | None) -> None:
        if self._closed is not None:
            raise DiskError(self.path, self._closed, offset)

    def _check_writable(self, offset: int | None) -> None:
        self._check_open(offset)
        if self._refusal is not None:
            raise DiskError(self.path, self._refusal, offset)


class SimFileSystem:
    """All files and names of a simulated disk."""

    #: low, so that runs with few queues take this way too
    worth_files = 3

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._is_closed = False
        self._failed_syncs = disk.failed_syncs

    def holds(self, path: str) -> bool:
        return self._disk.exists(path)

    def sync(self) -> Deferred[None]:
        if self._is_closed:
            return fail(DiskError("/", "cannot fsync, the disk is closed"))
        done: Deferred[None] = Deferred()
        changes, names = self._disk.all_pending()
        takes_s = self._disk.sync_takes_s()

        def synced() -> None:
            try:
                self._disk.sync_all(changes, names)
                if self._disk.failed_syncs != self._failed_syncs:
                    raise SyncFailed("/", "cannot fsync: Input/output error")
            except DiskError as error:
                done.errback(error)
            else:
                done.callback(None)

        self._disk.after(takes_s, synced)
        self._disk.on_sync(takes_s)
        return done

    def close(self) -> None:
        self._is_closed = True


class SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.unlock(self._path, self)
