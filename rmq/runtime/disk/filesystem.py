"""One system call that makes a whole file system durable, for when thousands of files have changed."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable

from twisted.internet.defer import Deferred, fail

from rmq.runtime.disk.error import DiskError, sync_error
from rmq.runtime.disk.flusher import Flusher, Job

MOUNTS_FILE = "/proc/self/mountinfo"
#: since then syncfs reports what could not be written
FIRST_KERNEL = (5, 8)
#: of a stacked file system, such as overlay, the errors are those of another one, and syncfs does not report them
KINDS = frozenset(("ext4", "xfs", "tmpfs"))
#: so many syncs of single files take longer than one of the file system
WORTH_FILES = 64


class RealFileSystem:
    """
    The file system that holds a folder, as :class:`rmq.runtime.disk.files.FileSystem`.

    Its descriptor is open from before the writes on: the kernel reports an error once to each descriptor that was open
    when it happened.
    """

    worth_files = WORTH_FILES

    def __init__(self, path: str, flusher: Flusher, sync: Callable[[int], int]) -> None:
        self._path = path
        self._flusher = flusher
        self._sync = sync
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._fd).st_dev
        self._syncing = 0
        self._closed = False

    def holds(self, path: str) -> bool:
        try:
            return os.stat(path).st_dev == self._device
        except OSError:
            return False

    def sync(self) -> Deferred[None]:
        if self._closed or self._flusher.closed:
            return fail(DiskError(self._path, "cannot fsync, the disk is closed"))
        done: Deferred[None] = Deferred()
        self._syncing += 1

        def work() -> None:
            if self._sync(self._fd) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

        def synced(error: OSError | None) -> None:
            self._syncing -= 1
            self._close_if_idle()
            if error is None:
                done.callback(None)
            else:
                done.errback(sync_error(self._path, error))

        self._flusher.add(Job(self, work, synced))
        return done

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closed and self._syncing == 0:
            os.close(self._fd)


def find_syncfs() -> Callable[[int], int] | None:
    """Return the system call; None where it is missing or hides errors."""
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or release is None or (int(release[1]), int(release[2])) < FIRST_KERNEL:
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def kind_of(path: str, mounts: str) -> str | None:
    """Return what kind of file system holds ``path`` by the text of MOUNTS_FILE; None when it is not there."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == number and "-" in fields:
            return fields[fields.index("-") + 1]
    return None


def open_file_system(path: str, flusher: Flusher) -> RealFileSystem | None:
    """Return the file system that holds a folder; None where single files must be synced."""
    sync = find_syncfs()
    if sync is None:
        return None
    try:
        with open(MOUNTS_FILE, encoding="utf-8", errors="replace") as file:
            if kind_of(path, file.read()) in KINDS:
                return RealFileSystem(path, flusher, sync)
    except OSError:
        pass  # then file by file
    return None
