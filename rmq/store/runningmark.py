"""
The file `abort`: there while a broker uses the store, so at a start the sign that the last one did not end in order.

Its content (Apache reads none) is the boot of the machine in which it was written. While that is still the same one,
the last process was killed and everything it wrote is there; else the machine has lost its memory, and what was not
synced may be damaged.

Java: DefaultMessageStore#createTempFile, #isTempFileExist
"""

from __future__ import annotations

import contextlib

from rmq.runtime.disk import Disk, DiskError, DiskFull
from rmq.store import layout

#: in place of the boot: a sync has failed, and the kernel may have dropped what it could not write
SYNC_FAILED = b"a sync failed"


class RunningMark:
    """The mark of one store; :meth:`begin` sets it, :meth:`end` takes it away."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = layout.abort_path(root)
        self._root = root

    def exists(self) -> bool:
        """Tell whether the last process did not end in order."""
        return self._disk.exists(self._path)

    def lost_power(self) -> bool | None:
        """
        Tell whether the machine was started since the mark was set, or a sync had failed; None when nobody knows.

        Nobody does when an Apache broker set the mark, or where the system has no boot id.
        """
        written = self._disk.read_whole(self._path)
        boot = self._boot()
        if written == SYNC_FAILED:
            return True
        if not written.startswith(b"boot ") or not boot:
            return None
        return written != boot

    def begin(self) -> None:
        """Set the mark, durably."""
        boot = self._boot()
        if self.exists() and self._disk.read_whole(self._path) == boot:
            return
        try:
            self._disk.write_atomic(self._path, boot)
        except DiskFull:
            # A start must not need room; the content only makes recovery less cautious.
            self.begin_cautiously()

    def begin_cautiously(self) -> None:
        """
        Set the mark that an Apache broker sets, durably, unless there is one: of power failures it knows nothing.

        After a clean stop of Apache's there may be remains of records behind the log's end, which are none of ours
        until recovery has cleared them.
        """
        if not self.exists():
            self._disk.create_sparse(self._path, 0).close()
            self._disk.sync_dir(self._root)

    def doubt(self) -> None:
        """Let the next start treat what is not surely synced as after a power failure, if the disk still takes that."""
        with contextlib.suppress(DiskError):
            self._disk.write_atomic(self._path, SYNC_FAILED)

    def end(self) -> None:
        """Take the mark away, durably: everything is written and synced."""
        self._disk.delete(self._path)
        self._disk.sync_dir(self._root)

    def _boot(self) -> bytes:
        boot = self._disk.boot_id()
        return f"boot {boot}".encode() if boot else b""
