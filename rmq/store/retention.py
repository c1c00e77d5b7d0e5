"""
Deletion of what is old, and the disk's limits.

Java: DefaultMessageStore.CleanCommitLogService, .CleanConsumeQueueService
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import now_ms, turn
from rmq.runtime.disk.files import Disk, DiskUsage
from rmq.store import layout
from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.index import Index
from rmq.store.messages import StoreError
from rmq.store.queues import QueueTable

_HOUR_MS = 3_600_000
#: an administrator's wish to delete lasts so many rounds
MANUAL_ROUNDS = 20
#: queues whose beginnings are corrected in one turn of the reactor; a file is opened for each
CORRECT_AT_ONCE = 64


def hours_of(text: str) -> frozenset[int]:
    """Return the hours of `deleteWhen`, where 24 and more stand for never; a StoreError names a piece that is none."""
    hours = set()
    for piece in text.split(";"):
        if piece.strip():
            if not piece.strip().isdigit():
                raise StoreError(f"deleteWhen={text!r}: {piece!r} is no hour of the day")
            hours.add(int(piece))
    return frozenset(hours)


@attrs.define(eq=False)
class Retention:
    """
    Delete expired files, oldest first and never the last, and tell when the disk is too full to write.

    ``dispatched`` gives the offset up to which consumers can read: what they have not seen is not deleted.
    """

    _log = Logger()

    _disk: Disk
    _clock: IReactorTime
    _config: StoreConfig
    _commit_log: CommitLog
    _queues: QueueTable
    _index: Index | None
    _dispatched: Callable[[], int]
    _hours: frozenset[int] = attrs.field(init=False)
    _manual_rounds: int = attrs.field(init=False, default=0)
    _cleaned_below: int = attrs.field(init=False, default=-1)
    #: why nothing may be written: path, share, limit and key; None while it may
    full_because: str | None = attrs.field(init=False, default=None)
    #: files of the log that were deleted before their time since the start
    early_deletions: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.configure(self._config)

    def configure(self, config: StoreConfig) -> None:
        """Go on with other limits; a StoreError for a deleteWhen that is none leaves those of before."""
        self._hours = hours_of(config.delete_when)
        self._config = config

    @property
    def is_disk_full(self) -> bool:
        """True while nothing may be written."""
        return self.full_because is not None

    def delete_soon(self) -> None:
        """Delete expired files in the next rounds, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def usage(self) -> DiskUsage:
        """Room where the commit log lies."""
        return self._disk.usage(self._commit_log.folder)

    def queue_usage(self) -> DiskUsage:
        """Room where the consume queues lie."""
        return self._disk.usage(layout.consume_queue_dir(self._config.store_path_root_dir))

    async def tick(self) -> None:
        """
        One round: look at the disk, delete what is due.

        Queues follow the log in slices; until its turn a queue begins with messages that are gone, which readers skip.
        """
        forced, space = self.look()
        hour = time.localtime(now_ms(self._clock) // 1000).tm_hour
        manual = self._manual_rounds > 0
        if manual:
            self._manual_rounds -= 1
        if forced or space or manual or hour in self._hours:
            await self._delete_segments(forced=forced and self._config.clean_file_forcibly_enable)
        if self._commit_log.min_offset != self._cleaned_below:
            self._cleaned_below = self._commit_log.min_offset
            await self._delete_below(self._cleaned_below)

    def look(self) -> tuple[bool, bool]:
        """Compare the disk with its limits; return (delete unexpired files too, delete expired ones at any hour)."""
        config = self._config
        forced = space = False
        full: str | None = None
        for path, usage in (
            (self._commit_log.folder, self.usage()),
            (layout.consume_queue_dir(config.store_path_root_dir), self.queue_usage()),
        ):
            used = usage.used_ratio
            warning = min(max(config.disk_space_warning_level_ratio, 35), 90) / 100
            if used > warning:
                full = full or (
                    f"{path} is on a disk that is {round(used * 100)} % full, more than diskSpaceWarningLevelRatio="
                    f"{round(warning * 100)}"
                )
                if not self.is_disk_full:
                    self._log.error(
                        "{path} is on a disk that is {used_percent} % full, more than diskSpaceWarningLevelRatio="
                        "{limit_percent}: messages are refused until that changes",
                        path=path,
                        used_percent=round(used * 100),
                        limit_percent=round(warning * 100),
                    )
            forced = forced or used > min(max(config.disk_space_clean_forcibly_ratio, 30), 85) / 100
            space = space or used < 0 or used > min(max(config.disk_max_used_space_ratio, 10), 95) / 100
        if self.is_disk_full and full is None:
            self._log.info("{path} has room again: messages are taken", path=self._commit_log.folder)
        self.full_because = full
        return forced, space

    async def _delete_segments(self, *, forced: bool) -> None:
        log = self._commit_log
        deadline_ms = now_ms(self._clock) - self._config.file_reserved_time * _HOUR_MS
        readable = min(self._dispatched(), log.flushed)
        for _ in range(self._config.delete_file_batch_max):
            if len(log.starts) < 2 or log.starts[1] > readable:
                return
            start = log.starts[0]
            written_ms = log.modified_ms(start)
            if not forced and written_ms > deadline_ms:
                return
            deleted: Deferred[None] = log.delete_first()
            await deleted
            if written_ms <= deadline_ms:
                self._log.info("commit log file {path} deleted: its time is over", path=log.path(start))
                continue
            self.early_deletions += 1
            self._log.error(
                "commit log file {path} deleted before its time (fileReservedTime={hours} hours), consumed or not: its "
                "disk is fuller than diskSpaceCleanForciblyRatio; cleanFileForciblyEnable=false forbids that",
                path=log.path(start),
                hours=self._config.file_reserved_time,
            )

    async def _delete_below(self, min_phy: int) -> None:
        count = 0
        for number, queue in enumerate(list(self._queues), 1):
            count += queue.delete_expired(min_phy)
            if number % CORRECT_AT_ONCE == 0:
                await turn(self._clock)
        indexes = self._index.delete_expired(min_phy) if self._index is not None else 0
        if count or indexes:
            self._log.info(
                "{count} consume queue files and {indexes} index files deleted, the log begins at {min_offset}",
                count=count,
                indexes=indexes,
                min_offset=min_phy,
            )
