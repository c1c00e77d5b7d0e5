"""
The background writer of consume queues and index, and of the recovery point and the checkpoint behind them.

Java: DefaultMessageStore.FlushConsumeQueueService, StoreCheckpoint
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import steady_ms, turn
from rmq.runtime.disk.files import DiskError, DiskFull
from rmq.store.checkpoint import Checkpoint, CheckpointFile, RecoveryPoint, RecoveryPointFile, sync_all
from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.dispatch import Dispatcher
from rmq.store.groupcommit import LogSync
from rmq.store.index import Index, IndexState
from rmq.store.queues import QueueTable

#: a recovery point is written after so much log at the latest: a start after a crash reads little more than that
RECORD_EVERY_BYTES = 64 << 20
#: and no more often than this, however much log is written
RECORD_EVERY_MS = 5000
#: queues that are written in one turn of the reactor; the files of so many new ones take some milliseconds
WRITE_AT_ONCE = 32
#: pages of the index's slots that are written in one turn of the reactor: less than a millisecond
PAGES_AT_ONCE = 64


@attrs.define(eq=False)
class Checkpointer:
    """
    Write (every `flushIntervalConsumeQueue`) and sync queues and index, then `checkpoint.rmq`, then `checkpoint`.

    In this order, so that neither file ever claims what a power failure can take. ``is_full`` is True while the disk is
    too full for queues or index; they stay in memory then. ``on_failure`` is called when an fsync failed.
    """

    _log = Logger()

    _clock: IReactorTime
    _config: StoreConfig
    _commit_log: CommitLog
    _queues: QueueTable
    _index: Index | None
    _dispatcher: Dispatcher
    _log_sync: LogSync
    _checkpoint_file: CheckpointFile
    _point_file: RecoveryPointFile
    _on_failure: Callable[[DiskError], None]
    _recorded_offset: int = attrs.field(init=False, default=-1)
    _recorded_ms: int = attrs.field(init=False, default=0)
    _is_due_soon: bool = attrs.field(init=False, default=False)
    #: how many queues had been reset when the last recovery point was written
    _recorded_renewals: int = attrs.field(init=False, default=0)
    #: the error of the write that found no room; None while there is room
    full_because: str | None = attrs.field(init=False, default=None)

    @property
    def is_full(self) -> bool:
        """True while there is no room for queues, index or checkpoint."""
        return self.full_because is not None

    def begin(self) -> None:
        """Count bytes and time from here on."""
        self._recorded_offset = self._dispatcher.dispatched
        self._recorded_ms = steady_ms(self._clock)

    def record_soon(self) -> None:
        """Write a recovery point in the next round: the last one references deleted queues."""
        self._is_due_soon = True

    def write(self) -> bool:
        """Write queues and index; False when there was no room for all."""
        try:
            self._queues.write()
            if self._index is not None:
                self._index.write()
        except DiskFull as error:
            self._no_room(error)
            return False
        if self.is_full:
            self._log.info("disk has room again, consume queues and index are written")
        self.full_because = None
        return True

    async def tick(self) -> None:
        """Run one round: write queues and index, and the recovery point when it is due."""
        try:
            await self.write_most()
            if self.write() and self._is_due():
                await self.record(is_end=False)
        except DiskFull as error:
            self._is_due_soon = True  # it may have been due, and nothing is recorded
            self._no_room(error)
        except DiskError as error:
            self._on_failure(error)

    async def write_most(self) -> None:
        """
        Write so much of queues and index that :meth:`write` takes one short turn; clients are served meanwhile.

        What they bring may come faster than it is written: after twice the number that is there now the rest is left.
        """
        queues, index = self._queues, self._index
        await self._in_slices(lambda: queues.unwritten, queues.write, WRITE_AT_ONCE)
        if index is not None:
            await self._in_slices(lambda: index.unwritten_pages, index.write, PAGES_AT_ONCE)

    async def _in_slices(self, left: Callable[[], int], write: Callable[[int], object], at_once: int) -> None:
        for _ in range(2 * left() // at_once):
            if left() <= at_once:
                return
            write(at_once)
            await turn(self._clock)

    def _no_room(self, error: DiskFull) -> None:
        if not self.is_full:
            self._log.error(
                "disk full: consume queues, index or checkpoint cannot be written, messages are refused: {error}",
                error=str(error),
            )
        self.full_because = str(error)

    def _is_due(self) -> bool:
        if self._is_due_soon or self._dispatcher.renewals != self._recorded_renewals:
            return True
        grown = self._dispatcher.dispatched - self._recorded_offset
        elapsed_ms = steady_ms(self._clock) - self._recorded_ms
        return grown > 0 and (
            elapsed_ms >= self._config.flush_consume_queue_thorough_interval
            or (grown >= RECORD_EVERY_BYTES and elapsed_ms >= RECORD_EVERY_MS)
        )

    async def record(self, *, is_end: bool) -> None:
        """
        Sync everything that is written, then write recovery point and checkpoint; call :meth:`write` first.

        ``is_end``: this is a clean stop, nothing follows. DiskError when an fsync failed.
        """
        dispatcher = self._dispatcher
        # A deletion from here on is not in this recovery point, and makes the next one due.
        self._is_due_soon = dispatcher.passes_deleted
        renewals = dispatcher.renewals
        point = RecoveryPoint(
            segment_bytes=self._commit_log.segment_bytes,
            queue_file_bytes=self._queues.file_bytes,
            offset=dispatcher.dispatched,
            anchor_phy=dispatcher.last_phy,
            anchor_size=dispatcher.last_size,
            anchor_timestamp=dispatcher.store_timestamp,
            queue_units=self._queues.total_units,
            is_end=is_end,
            index=self._index.state() if self._index is not None else IndexState(),
        )
        if not await self._log_sync.reach(point.offset):
            return
        await self._queues.sync()
        if self._index is not None:
            await self._index.sync()
        await sync_all([self._point_file.write(point)])
        checkpoint = Checkpoint(
            physic_timestamp=point.anchor_timestamp,
            logics_timestamp=point.anchor_timestamp,
            index_timestamp=self._index.synced_timestamp if self._index is not None else 0,
        )
        await sync_all([self._checkpoint_file.write(checkpoint)])
        self._recorded_renewals = renewals
        self._recorded_offset = point.offset
        self._recorded_ms = steady_ms(self._clock)
