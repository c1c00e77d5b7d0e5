"""
The file `abort`: it exists while a broker uses the store, so at the start it says that the last stop was not clean.

Its content (Apache reads none) is the boot id of the machine at the time of writing. While the boot id is the same, the
last process was killed and everything it wrote is there; else the machine has lost its memory, and what was not synced
may be damaged.

Java: DefaultMessageStore#createTempFile, #isTempFileExist
"""

from __future__ import annotations

import contextlib

from rmq.runtime.disk.files import Disk, DiskError, DiskFull
from rmq.store import layout
from rmq.store.health import StopBefore

#: in place of the boot id: an fsync has failed, and the kernel may have dropped what it could not write
SYNC_FAILED = b"a sync failed"


class AbortFile:
    """The file `abort` of one store; :meth:`create` before the first write, :meth:`delete` at a clean stop."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = layout.abort_path(root)
        self._root = root

    def exists(self) -> bool:
        """Return True when the last process did not stop cleanly."""
        return self._disk.exists(self._path)

    def stop_before(self) -> StopBefore:
        """Return how the last process has ended."""
        if not self.exists():
            return StopBefore.CLEAN
        is_failed = self._read() == SYNC_FAILED
        return StopBefore.SYNC_FAILED if is_failed else StopBefore.KILLED

    def lost_power(self) -> bool | None:
        """
        Return True when the machine was restarted since the file was written, or an fsync had failed.

        None when that is unknown: an Apache broker wrote the file, or the system has no boot id.
        """
        written = self._read()
        boot = self._boot()
        if written == SYNC_FAILED:
            return True
        if not written.startswith(b"boot ") or not boot:
            return None
        return written != boot

    def create(self) -> None:
        """Write the file with this boot id, durably."""
        boot = self._boot()
        if self.exists() and self._disk.read_whole(self._path) == boot:
            return
        try:
            self._disk.write_atomic(self._path, boot)
        except DiskFull:
            # A start must not need room; the content only makes recovery less cautious.
            self.create_empty()

    def create_empty(self) -> None:
        """
        Create the file without content, as Apache does, durably; one that exists stays as it is.

        Used until recovery is done: after a clean stop of Apache's broker there may be remains of records behind the
        end of the log, which are not ours until recovery has cleared them.
        """
        if not self.exists():
            self._disk.create_sparse(self._path, 0).close()
            self._disk.sync_dir(self._root)

    def mark_sync_failed(self) -> None:
        """Make the next start treat what is not surely synced as after a power failure, if the disk takes the write."""
        try:
            self._disk.write_atomic(self._path, SYNC_FAILED)
        except DiskError:
            # A disk that syncs nothing: until the machine stops, the next process reads this from the page cache.
            with contextlib.suppress(DiskError):
                file = self._disk.open(self._path)
                try:
                    file.write_at(0, SYNC_FAILED.ljust(file.size))
                finally:
                    file.close()

    def delete(self) -> None:
        """Delete the file, durably: everything is written and synced."""
        self._disk.delete(self._path)
        self._disk.sync_dir(self._root)

    def _read(self) -> bytes:
        return self._disk.read_whole(self._path).rstrip()

    def _boot(self) -> bytes:
        boot = self._disk.boot_id()
        return f"boot {boot}".encode() if boot else b""
