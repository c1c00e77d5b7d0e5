"""
What the store of a broker knows of its masters, and the cut before it follows another one.

The store is not open meanwhile; its lock is held.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.logger import Logger

from rmq.runtime.disk.files import Disk
from rmq.store import layout
from rmq.store.abortfile import AbortFile
from rmq.store.config import StoreConfig
from rmq.store.cut import save_and_cut, written_end
from rmq.store.epochs import Epoch, common_end, load_epochs, save_epochs, with_epoch
from rmq.store.health import StopBefore
from rmq.store.messages import StoreError
from rmq.store.scan import LogFiles


class History:
    """The epochs of one store."""

    _log = Logger()

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._root = root = config.store_path_root_dir
        self._folder = config.store_path_commit_log or layout.commit_log_dir(root)
        self._path = layout.join(root, layout.EPOCH_FILE)
        self._is_sync_flush = config.is_sync_flush
        self.epochs: list[Epoch] = []

    def load(self) -> None:
        """Read the table; StateFileError when it is damaged."""
        self.epochs = load_epochs(self._disk, self._path)

    @property
    def last_epoch(self) -> int:
        """The newest epoch of the log; 0 without any."""
        return self.epochs[-1].number if self.epochs else 0

    def may_lack_messages(self) -> bool:
        """
        Tell whether messages that this broker had acknowledged may be gone: by a power failure, or with the whole log.

        A new broker has acknowledged none, but it is in no SyncStateSet either.
        """
        if not self._disk.is_dir(self._folder) or not self._disk.list_dir(self._folder):
            return True
        if self._is_sync_flush:
            return False
        abort = AbortFile(self._disk, self._root)
        return abort.stop_before() is not StopBefore.CLEAN and abort.lost_power() is not False

    def begin(self, epoch: int, end_offset: int) -> None:
        """Become master in a new epoch with a log that ends at ``end_offset``; DiskError when that cannot be kept."""
        epochs = with_epoch(self.epochs, epoch, end_offset)
        save_epochs(self._disk, self._path, epochs)
        self.epochs = epochs

    def follow(self, theirs: Sequence[Epoch], master: str) -> None:
        """
        Cut what the master with these epochs does not have, and take over its table.

        What is cut is saved below ``cut`` first. Raises StoreError or DiskError; then the broker must not follow.
        """
        try:
            keep = common_end(self.epochs, theirs)
        except ValueError as error:
            raise StoreError(f"{self._path}: {error}") from error
        if keep is not None and self._disk.is_dir(self._folder):
            lock = self._disk.lock(layout.lock_path(self._root))
            try:
                self._cut(keep, master)
            finally:
                lock.release()
        self._disk.make_dirs(self._root)
        save_epochs(self._disk, self._path, theirs)
        self.epochs = list(theirs)

    def _cut(self, keep: int, master: str) -> None:
        log = LogFiles(self._disk, self._folder)
        try:
            if not log.starts:
                return
            end, first = written_end(log), log.starts[0]
        finally:
            log.close()
        if end <= keep:
            return
        if keep < first or (keep == first and not self.epochs):
            raise StoreError(
                f"the log in {self._folder} begins at {first}, and agrees with that of the new master {master} "
                f"only up to {keep}: move this store away, and start the broker empty"
            )
        path = save_and_cut(self._disk, self._root, self._folder, keep)
        self._log.warn(
            "{count} bytes behind offset {keep} are not in the log of the new master {master}: cut, saved in {path}",
            count=end - keep,
            keep=keep,
            master=master,
            path=path,
        )
