"""
The message store: what a broker sees of it.

Java: DefaultMessageStore
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import Periodic, steady_ms
from rmq.runtime.disk.files import Disk, DiskError, DiskLocked, DiskUsage, Lock, SyncFailed
from rmq.store import layout
from rmq.store.abortfile import AbortFile
from rmq.store.appender import Appender, Host, SendBatch
from rmq.store.checkpoint import CheckpointFile, RecoveryPointFile
from rmq.store.checkpointer import Checkpointer
from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.dispatch import ArrivalListener, Dispatcher, Units, Watch, delay_levels
from rmq.store.groupcommit import GroupCommit, LogSync, Waiter
from rmq.store.health import LoadReport, StopBefore, StoreHealth
from rmq.store.index import Index
from rmq.store.messages import (
    BatchEntry,
    Message,
    PutResult,
    PutStatus,
    Replication,
    StoreError,
)
from rmq.store.multidispatch import MultiDispatch
from rmq.store.queues import QueueTable
from rmq.store.reader import PRELOAD_BYTES, Reader
from rmq.store.recovery import Recovery
from rmq.store.retention import Retention

#: bytes of dirty log that are one "page" of flushCommitLogLeastPages
PAGE_BYTES = 4096
#: so much of what a slave received is dispatched at once; more in slices, between which the next bytes are taken
DISPATCH_AT_ONCE_BYTES = 128 << 10
DISPATCH_SLICE_BYTES = 16 << 10
#: compiled, this takes no longer
DISPATCH_COMPILED_SLICE_BYTES = 128 << 10
#: a slave has at most so much of its log sent again to compare it, unless a power failure makes more of it suspect
MAX_COMPARED_BYTES = 8 << 20
#: seconds between two looks at whether the next file of the log should be made
NEXT_FILE_LOOK_S = 0.5
#: beyond the end of any log
NO_LIMIT = 2**63 - 1


def physical_memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class MessageStore:
    """
    Commit log, consume queues and index of one broker.

    :meth:`load` before anything else, :meth:`start` before the first put, :meth:`stop` at the end. All in the reactor's
    thread; a message that was put is in its file before :meth:`put` returns, so a killed process loses nothing.

    SYNC_FLUSH: consumers see a message, and its producer is answered, when it is on disk. A sync that fails, of a file
    or of a folder's names, stops the store for good: puts are refused, ``on_failure`` callbacks are called, the process
    should end, and the next start does not trust what the machine's memory says was written.
    """

    _log = Logger()

    def __init__(
        self, disk: Disk, clock: IReactorTime, config: StoreConfig, *, memory_bytes: int | None = None
    ) -> None:
        self.config = config
        self._disk = disk
        self._clock = clock
        self._root = config.store_path_root_dir
        self._commit_log = CommitLog(disk, config.commit_log_dir, config.mapped_file_size_commit_log)
        self._queues = QueueTable(
            disk,
            self._root,
            config.consume_queue_file_bytes,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext if config.enable_consume_queue_ext else None,
        )
        self._index = (
            Index(disk, clock, self._root, slots=config.max_hash_slot_num, entries=config.max_index_num)
            if config.message_index_enable
            else None
        )
        further = (
            MultiDispatch(self._queues, lmq=config.enable_lmq, max_lmq_queues=config.max_lmq_consume_queue_num)
            if config.enable_multi_dispatch
            else None
        )
        self._dispatcher = Dispatcher(
            self._commit_log,
            self._queues,
            self._index,
            delays=delay_levels(config.message_delay_level),
            further=further,
        )
        self._appender = Appender(
            self._commit_log, self._queues, self._dispatcher, clock, config, further=further, on_failure=self._fail
        )
        self._reader = Reader(
            self._commit_log,
            self._queues,
            self._index,
            config,
            physical_memory_bytes() if memory_bytes is None else memory_bytes,
        )
        reader = self._reader
        self.get, self.pull, self.pick = reader.get, reader.pull, reader.pick
        self.preloading, self.is_cold = reader.preloading, reader.is_cold
        self.message_at, self.offset_by_time, self.query = reader.message_at, reader.offset_by_time, reader.query
        self._sync = LogSync(self._commit_log, clock, on_synced=self._synced, on_failure=self._fail)
        self._abort_file = AbortFile(disk, self._root)
        self._checkpoint_file = CheckpointFile(disk, self._root)
        self._point_file = RecoveryPointFile(disk, self._root)
        self._checkpointer = Checkpointer(
            clock,
            config,
            self._commit_log,
            self._queues,
            self._index,
            self._dispatcher,
            self._sync,
            self._checkpoint_file,
            self._point_file,
            on_failure=self._fail,
        )
        self._retention = Retention(
            disk,
            clock,
            config,
            self._commit_log,
            self._queues,
            self._index,
            lambda: self._dispatcher.dispatched,
        )
        self._completion = GroupCommit(clock, config, self._sync)
        self._lock: Lock | None = None
        self._periodic: list[Periodic] = []
        self._loaded = False
        self._started = False
        #: changes when queues are deleted: what :meth:`ordinary_queue` returned before is then void
        self.queue_deletions = 0
        self._appended: list[Callable[[], None]] = []
        self._flushed: list[Callable[[], None]] = []
        self._failed: list[Callable[[], None]] = []
        self._dispatch_later: IDelayedCall | None = None
        self._failure: DiskError | None = None
        #: bytes that a power failure may have changed unnoticed, until they were compared with the master's
        self._suspect = (0, 0)
        self._sync_flush = config.is_sync_flush
        #: everything before is on the slaves that count; beyond any end where none counts
        self._replicated = 0 if config.all_ack_in_sync_state_set and not config.is_slave else NO_LIMIT
        self._load_report: LoadReport | None = None
        #: end of the log and number of units, when load found all as a clean stop had left it, and changed nothing
        self._untouched: tuple[int, int] | None = None

    @property
    def replication(self) -> Replication | None:
        """What a SYNC_MASTER asks before it answers; None counts as no slave at all."""
        return self._completion.replication

    @replication.setter
    def replication(self, replication: Replication | None) -> None:
        self._completion.replication = replication

    # ---- life ----

    def load(self) -> None:
        """
        Take the lock, find all files and recover; StoreError names file and offset, DiskLocked the lock.

        After an error nothing is held.
        """
        for key, instead in self.config.unsupported():
            self._log.warn("{key} is not supported: {instead}", key=key, instead=instead)
        try:
            self._disk.make_dirs(self._root)
            self._lock = self._disk.lock(layout.lock_path(self._root))
        except DiskLocked:
            raise
        except DiskError as error:
            raise StoreError(f"storePathRootDir={self._root} cannot be used: {error}") from error
        try:
            self._refuse_rocksdb()
            self._leave_dump()
            self._recover()
            self._dispatcher.messages = self._dispatcher.message_bytes = 0
            self._loaded = True
        except DiskError as error:
            if isinstance(error, SyncFailed):
                self._abort_file.mark_sync_failed()
            raise StoreError(f"the store in {self._root} cannot be loaded: {error}") from error
        finally:
            if not self._loaded:
                self._close()

    def _refuse_rocksdb(self) -> None:
        """Raise StoreError for a store of 5.x whose queues or tables are in RocksDB: here it would have none."""
        for folder in layout.ROCKSDB_DIRS:
            path = layout.join(self._root, folder)
            if self._disk.exists(layout.join(path, layout.ROCKSDB_FILE)):
                raise StoreError(
                    f"{path} is in RocksDB (storeType=defaultRocksDB of 5.x), which cannot be read here: the broker "
                    "would have no queues, topics, groups or offsets of this store"
                )

    def _leave_dump(self) -> None:
        """
        Rename the manifest of a dump from which the store was restored: the store goes on behind the end it states.

        Before anything is written, or the audit would never read what comes then.
        """
        path = layout.join(self._root, layout.MANIFEST_FILE)
        if self._disk.exists(path):
            restored = layout.join(self._root, layout.RESTORED_MANIFEST_FILE)
            self._disk.rename(path, restored)
            self._disk.sync_dir(self._root)
            self._log.info(
                "the store was restored from a dump: {path} renamed to {restored}", path=path, restored=restored
            )

    def _recover(self) -> None:
        began_s = self._clock.seconds()
        stop_before = self._abort_file.stop_before()
        is_clean = stop_before is StopBefore.CLEAN
        progress = self._point_file.load()
        if progress is not None and self._disk.list_dir(self._commit_log.folder):
            progress.check(self.config.mapped_file_size_commit_log, self.config.consume_queue_file_bytes)
        self._commit_log.load()
        self._queues.load()
        if self._index is not None:
            self._index.load()
        recovery = Recovery(
            disk=self._disk,
            root=self._root,
            commit_log=self._commit_log,
            queues=self._queues,
            index=self._index,
            dispatcher=self._dispatcher,
            checkpoint=self._checkpoint_file.load(),
            progress=progress,
            is_clean=is_clean,
            is_slave=self.config.is_slave,
            lost_power=None if is_clean else self._abort_file.lost_power(),
            acks_after_flush=self.config.ha_ack_after_flush,
            check_crc=self.config.check_crc_on_recover,
        )
        if is_clean:
            # From here on files change; a crash must not look like a clean stop.
            self._abort_file.create_empty()
        recovery.run()
        if recovery.is_untouched:
            self._untouched = self._commit_log.end, self._queues.total_units
        # Not before: should the process be killed until then, the next one must know of the power failure.
        if recovery.suspect_from is not None:
            self._suspect = recovery.suspect_from, self._commit_log.end
        if self._suspect[0] == self._suspect[1]:
            self._abort_file.create()
        self._load_report = LoadReport(
            stop_before=stop_before,
            seconds=self._clock.seconds() - began_s,
            read_bytes=max(0, self._commit_log.end - recovery.read_from),
        )

    def start(self) -> None:
        """Take messages, and begin the work in the background."""
        assert self._loaded, "load comes first"
        config = self.config
        self._started = True
        self._checkpointer.begin()
        self._look_at_disk()
        self._periodic = [
            Periodic(
                self._clock, config.flush_interval_commit_log / 1000, self._flush_log, name="flush of the commit log"
            ),
            Periodic(
                self._clock,
                config.flush_interval_consume_queue / 1000,
                self._checkpointer_tick,
                name="flush of consume queues and index",
            ),
            Periodic(self._clock, NEXT_FILE_LOOK_S, self._make_next_file, name="the next commit log file"),
            Periodic(self._clock, config.clean_resource_interval / 1000, self._clean, name="deletion of expired files"),
        ]
        for periodic in self._periodic:
            periodic.start()
        self._decide()

    def abandon(self) -> Deferred[None]:
        """
        Stop because the start of the broker has failed; the process may end before the Deferred fires.

        A store that was stopped cleanly before, and took nothing since, is left so at once: the next start need not
        recover as after a crash.
        """
        end = self._commit_log.end
        is_untouched = self._untouched == (end, self._queues.total_units) and self._dispatcher.dispatched == end
        if self._started and self._failure is None and is_untouched:
            self._started = False
            with contextlib.suppress(DiskError):
                self._commit_log.drop_unused_file()
                self._abort_file.delete()
        return self.stop()

    def stop(self) -> Deferred[None]:
        """Write and sync everything and give the lock back; fires when that is done. Harmless when not loaded."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        was_started, self._started = self._started, False
        if self._dispatch_later is not None:
            self._dispatch_later.cancel()
            self._dispatch_later = None
        self._decide()
        periodic, self._periodic = self._periodic, []
        for loop in periodic:
            await loop.stop()
        await self._sync.idle()
        self._replicated = NO_LIMIT  # nobody reads any more, and the next start need not look for the rest
        if was_started and self._loaded and self._failure is None:
            try:
                await self._write_everything()
            except DiskError as error:
                if isinstance(error, SyncFailed):
                    self._abort_file.mark_sync_failed()
                self._log.error("the store could not be stopped cleanly: {error}", error=str(error))
        self._completion.fail_all()
        self._close()

    async def _write_everything(self) -> None:
        await self._sync.reach(self._commit_log.end)
        self._dispatcher.run(self.confirm_offset)
        if self._failure is not None or not self._checkpointer.write():
            return
        if self.config.is_slave and self._dispatcher.stalled_at is None:
            cut = self._commit_log.end - self._dispatcher.dispatched
            if cut:
                self._log.info("{cut} bytes of a record that was received in part are cut off", cut=cut)
                self._commit_log.cut(self._dispatcher.dispatched, synced=self._commit_log.flushed)
        self._commit_log.drop_unused_file()
        await self._checkpointer.record(is_end=True)
        if self._failure is None and self._dispatcher.dispatched == self._commit_log.end:
            self._abort_file.delete()

    def _close(self) -> None:
        self._loaded = False
        self._commit_log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._checkpoint_file.close()
        self._point_file.close()
        if self._lock is not None:
            self._lock.release()

    # ---- writing ----

    def put(self, message: Message) -> PutResult | Deferred[PutResult]:
        """
        Store a message; a plain result when nothing must be waited for, else a Deferred that always fires.

        The longest wait is `syncFlushTimeout` for the disk and `slaveTimeout` for slaves.
        """
        if self._completion.is_needed and self._completion.is_full:
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY)
        return self._complete(self._appender.put(message), message.wait_store_msg_ok)

    def put_batch(self, message: Message, entries: Sequence[BatchEntry]) -> PutResult | Deferred[PutResult]:
        """Store the messages of a batch, all or none; ``message`` says what they have in common."""
        if self._completion.is_needed and self._completion.is_full:
            return PutResult(PutStatus.OS_PAGE_CACHE_BUSY)
        return self._complete(self._appender.put_batch(message, entries), message.wait_store_msg_ok)

    def append_many(self, sends: SendBatch, store_host: Host) -> int:
        """
        Store the ordinary messages at the front of ``sends`` without waiting for disk or slaves; return how many.

        0, and nothing done, for what :meth:`put` must take. Where a put waits, their producer must not be answered
        before :meth:`wait_for` reports what ends at the last one.
        """
        if self._completion.is_needed and self._completion.is_full:
            return 0
        count = self._appender.put_many(sends, store_host)
        if count:
            if self._sync_flush:
                # The sync begins while answers and waiters are made.
                self._sync.request()
            for callback in self._appended:
                callback()
        return count

    def ordinary_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue for :meth:`append_many`; None when it does not exist yet or has an extension."""
        queue = self._queues.get(topic, queue_id)
        return queue if queue is not None and queue.ext is None else None

    def wait_for(self, next_offset: int, done: Waiter) -> None:
        """Have ``done`` called when what ends at ``next_offset`` is as safe as it must be; see `GroupCommit.wait`."""
        self._completion.wait(next_offset, done)

    def wait_for_all(self) -> PutResult | Deferred[PutResult]:
        """Wait as a put at the present end of the log would, for the disk and for slaves; in order with other puts."""
        result = PutResult(PutStatus.PUT_OK, next_offset=self.end_offset)
        return self._completion.complete(result, True) if self._completion.is_needed else result

    def _complete(self, result: PutResult, waits: bool) -> PutResult | Deferred[PutResult]:
        if result.status is not PutStatus.PUT_OK:
            return result
        for callback in self._appended:
            callback()
        return self._completion.complete(result, waits) if self._completion.is_needed else result

    def _flush_log(self) -> None:
        """Sync the log when enough is dirty, or something has been for long enough."""
        config = self.config
        dirty = self._commit_log.end - self._commit_log.flushed
        if dirty >= config.flush_commit_log_least_pages * PAGE_BYTES or (
            dirty > 0
            and (
                self._sync_flush
                or steady_ms(self._clock) - self._sync.last_ms >= config.flush_commit_log_thorough_interval
            )
        ):
            self._sync.request()

    async def _make_next_file(self) -> None:
        """Make the next file of the log before it is needed; without room the first message that needs it says so."""
        if self._failure is None:
            with contextlib.suppress(DiskError), self._failing():
                if await self._commit_log.make_next():
                    self._appender.next_file_made()

    def _synced(self, flushed: int) -> None:
        if self._sync_flush:
            if not self.config.is_slave:
                self._dispatch(self.confirm_offset)
            elif self._dispatch_later is None:
                self._dispatch_received()
        self._completion.synced(flushed)
        for callback in self._flushed:
            callback()

    def _dispatch(self, until: int) -> None:
        try:
            self._dispatcher.run(until)
        except DiskError as error:
            self._fail(error, "a queue could not be reset")

    def _fail(self, error: DiskError, what: str = "") -> None:
        """What a sync should have made durable may be lost, and nothing after it can be promised."""
        if self._failure is not None:
            return
        self._failure = error
        self._abort_file.mark_sync_failed()
        self._log.critical(
            "{what}, the store takes no more messages and the broker must be restarted: {error}",
            what=what or _failure_text(error),
            error=str(error),
        )
        self._decide()
        self._completion.fail_all()
        for callback in self._failed:
            callback()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """A sync that fails inside fails the store, and is passed on."""
        try:
            yield
        except SyncFailed as error:
            self._fail(error)
            raise

    def _decide(self) -> None:
        """Take messages, or not."""
        refuses = (
            not self._started
            or self.config.is_slave
            or self._failure is not None
            or self._retention.is_disk_full
            or self._checkpointer.is_full
        )
        self._appender.refusal = PutStatus.SERVICE_NOT_AVAILABLE if refuses else None

    async def _checkpointer_tick(self) -> None:
        if self._failure is None:
            await self._checkpointer.tick()
            self._decide()

    def _look_at_disk(self) -> None:
        self._retention.look()
        self._decide()

    async def _clean(self) -> None:
        if self._failure is None:
            with contextlib.suppress(SyncFailed), self._failing():
                await self._retention.tick()
            self._decide()
            if self._appender.trouble is not None:
                self._commit_log.retry_next()  # maybe no message comes that would find the room

    # ---- replication ----

    def read(self, phy_offset: int, limit: int) -> bytes | memoryview:
        """
        Return up to ``limit`` bytes of the log from an offset on, never over the end of a file; b"" at the end.

        They may be views of the file, which cannot be truncated while they are kept. StoreError below
        :attr:`min_phy_offset`.
        """
        return self._commit_log.view_some(phy_offset, limit)

    def read_loaded(self, phy_offset: int, limit: int) -> bytes | memoryview | None:
        """Return up to ``limit`` bytes as :meth:`read`, but None where the reactor would have to wait for the disk."""
        return self._commit_log.read_loaded(phy_offset, limit)

    def preload(self, phy_offset: int) -> Deferred[None]:
        """Fire when PRELOAD_BYTES of the log from an offset on are in memory; fail with a DiskError."""
        return self._commit_log.preload(phy_offset, PRELOAD_BYTES)

    def append_raw(self, phy_offset: int, data: bytes, *, dispatches: bool = True) -> None:
        """
        Append bytes of a master's log at :attr:`end_offset`; cut them as you like, but not over the end of a file.

        Bytes that the log holds may come again, from wherever :attr:`resume_offset` was when the connection began: they
        are compared, and a StoreError tells where this log and the master's part. An empty log may begin at the start
        of any file. StoreError, and nothing changed, when the bytes do not continue the log or cannot be written;
        SyncFailed when a sync failed. Records are dispatched once they are complete; with ``dispatches`` False at the
        next :meth:`dispatch_received`.
        """
        if not self._started or self._failure is not None:
            raise StoreError("the store takes no replicated bytes: it has failed or is not running")
        known = self._commit_log.compare(phy_offset, data) if phy_offset >= self._commit_log.min_offset else 0
        if self._suspect[1] and self._suspect[0] <= phy_offset and phy_offset + len(data) >= self._suspect[1]:
            self._suspect = (0, 0)
            with self._failing():
                self._abort_file.create()
        if known and known == len(data):
            return
        try:
            with self._failing():
                self._commit_log.append_raw(phy_offset + known, data[known:] if known else data)
        finally:
            # also when the write failed: the empty log begins with the file that was made for it
            if self._dispatcher.dispatched < self._commit_log.min_offset:
                self._dispatcher.begin_at(self._commit_log.min_offset)
        if self._sync_flush:
            self._sync.request()
        if dispatches:
            self.dispatch_received()

    def dispatch_received(self) -> None:
        """Dispatch what :meth:`append_raw` left; harmless at any time."""
        if self._dispatch_later is None and self._started and self._failure is None:
            self._dispatch_received()

    def _dispatch_received(self) -> None:
        """
        Dispatch what a slave received; when much came, a slice now and the rest in later turns of the reactor.

        Queues and index, not the network, hold up a slave that catches up: acknowledging does not wait for them.
        Java: DefaultMessageStore.ReputMessageService
        """
        self._dispatch_later = None
        dispatcher, until = self._dispatcher, self.confirm_offset
        before = dispatcher.dispatched
        if until - before <= DISPATCH_AT_ONCE_BYTES:
            self._dispatch(until)
            return
        step = DISPATCH_SLICE_BYTES if dispatcher.walk is None else DISPATCH_COMPILED_SLICE_BYTES
        while dispatcher.dispatched == before and before + step < until and self._failure is None:
            # A large record or the end of a file may need more than a slice.
            self._dispatch(before + step)
            step *= 2
        if dispatcher.dispatched == before:
            self._dispatch(until)
        if dispatcher.dispatched > before and dispatcher.stalled_at is None and self._started and self._failure is None:
            self._dispatch_later = self._clock.callLater(0, self._dispatch_received)

    def replicated(self, offset: int) -> None:
        """Show consumers what lies before ``offset``: it is on the slaves that count. Harmless when repeated."""
        self._replicated = max(offset, self._dispatcher.dispatched)
        if self._started and self._failure is None and self._dispatcher.dispatched < self.confirm_offset:
            self._dispatch(self.confirm_offset)

    def on_appended(self, callback: Callable[[], None]) -> None:
        """Have a function called after each append of a message: replication pushes then."""
        self._appended.append(callback)

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Have a function called after each sync of the log, when `flushed_offset` has moved."""
        self._flushed.append(callback)

    def sync_until(self, phy_offset: int) -> Deferred[bool]:
        """Sync what lies before an offset, of the end at most; fires with False when an fsync failed."""
        return self._sync.reach(min(phy_offset, self._commit_log.end))

    def flush_soon(self) -> None:
        """Sync the log without waiting for the flush interval: after the sync that is on its way, or at once."""
        self._sync.request()

    def on_arrival(
        self,
        callback: ArrivalListener,
        *,
        topic: str | None = None,
        queues: Mapping[tuple[str, int], object] | None = None,
        together: Callable[[Units], None] | None = None,
    ) -> None:
        """
        Have a function called with (topic, queueId, new end, tagsCode) for each message that can be read now.

        Only for those of ``topic``, or of queues that are in ``queues`` at that moment, if there is one of them.
        ``together``: see :class:`rmq.store.dispatch.Watch`.
        """
        self._dispatcher.watches.append(Watch(callback, topic, queues, together))

    def on_queue_made(self, callback: Callable[[str, int], None]) -> None:
        """Have a function called with (topic, queueId) when a queue is new, and for all at the start."""
        self._queues.on_made = callback

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Have a function called when the store has failed for good."""
        self._failed.append(callback)

    # ---- reading ----

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queueId) of all queues."""
        return self._queues.keys()

    def queue_ranges(self) -> list[tuple[str, int, int, int]]:
        """Return (topic, queueId, :meth:`min_offset`, :meth:`max_offset`) of all queues."""
        return [(queue.topic, queue.queue_id, queue.min, queue.end) for queue in self._queues]

    def extension_ends(self) -> dict[tuple[str, int], int]:
        """Return the bytes of each queue's extension, by topic and queueId; queues without one are left out."""
        return {(queue.topic, queue.queue_id): queue.ext.end for queue in self._queues if queue.ext is not None}

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a message was ever stored in a queue."""
        return self._queues.get(topic, queue_id) is not None

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the number that the next message to be read would have; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.end if queue is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the number of the first message that is still there; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return queue.min if queue is not None else 0

    def ranges(self, topic: str, queues: int) -> list[tuple[int, int]]:
        """Return :meth:`min_offset` and :meth:`max_offset` of the first ``queues`` queues of a topic."""
        found = [self._queues.get(topic, queue_id) for queue_id in range(queues)]
        return [(0, 0) if queue is None else (queue.min, queue.end) for queue in found]

    @property
    def losses(self) -> tuple[int, int]:
        """
        Return what changes when numbers of a queue lose their messages.

        A slave's log can also be cut; then this does not change.
        """
        return self.queue_deletions, self._commit_log.min_offset

    def store_time_of(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return when a message was stored; None when there is none of that number."""
        queue = self._queues.get(topic, queue_id)
        return None if queue is None else self._reader.store_time(queue, queue_offset)

    def in_memory_by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Tell whether a message lies near the end of the log (40 % of the memory); True when there is none."""
        return self._reader.is_recent(topic, queue_id, queue_offset)

    def earliest_store_time(self) -> int:
        """Return when the first record of the log was stored; -1 without any."""
        stored_ms = self._reader.store_time_at(self._commit_log.min_offset)
        return -1 if stored_ms is None else stored_ms

    # ---- administration ----

    def delete_topic(self, topic: str) -> Deferred[None]:
        """
        Delete the queues of a topic; its records stay in the log until their file expires.

        Fires when that is durable. SyncFailed when it may not be: numbers may come twice, and the store stops.
        """
        self._dispatcher.forget(topic)
        queue_ids = self._queues.delete_topic(topic)
        self.queue_deletions += 1
        self._checkpointer.record_soon()
        self._log.info("queues {queue_ids} of topic {topic} deleted", topic=topic, queue_ids=queue_ids)
        return Deferred.fromCoroutine(self._sync_queue_names()) if queue_ids else succeed(None)

    async def _sync_queue_names(self) -> None:
        with self._failing():
            for folder in (layout.consume_queue_dir(self._root), layout.consume_queue_ext_dir(self._root)):
                await self._disk.sync_dir_soon(folder)

    def configure_retention(self, config: StoreConfig) -> None:
        """Go on with other limits of age and space; other keys of ``config`` count from the next start."""
        self._retention.configure(config)

    def delete_expired_soon(self) -> None:
        """Delete expired files within the next rounds, whatever the hour."""
        self._retention.delete_soon()

    async def write_most(self) -> None:
        """Write most of what :meth:`write_buffers` would write, in slices; DiskError when a write failed."""
        with self._failing():
            await self._checkpointer.write_most()

    def write_buffers(self) -> bool:
        """
        Write what consume queues and index hold in memory; then files have everything up to `dispatched_offset`.

        False when there was no room; DiskError when a write failed.
        """
        with self._failing():
            return self._checkpointer.write()

    @property
    def min_phy_offset(self) -> int:
        """Where the log begins."""
        return self._commit_log.min_offset

    @property
    def end_offset(self) -> int:
        """One behind the last byte of the log; 0 when it is empty."""
        return self._commit_log.end

    @property
    def resume_offset(self) -> int:
        """
        Where a slave asks its master to begin: with the last whole record, so that it sees whether the master has it.

        After a power failure with all that was not surely synced; with the last MAX_COMPARED_BYTES when no whole record
        is known that begins in them. 0 when the log is empty.
        """
        begin, end = self._dispatcher.last_phy, self._commit_log.end
        suspect_from, suspect_to = self._suspect
        if suspect_from < suspect_to:
            begin = suspect_from
        elif end - begin > MAX_COMPARED_BYTES:
            begin = end - MAX_COMPARED_BYTES
        # A report of 0 would mean that this log is empty; the stream may begin at any byte.
        return max(begin, self._commit_log.min_offset, 1) if end else 0

    @property
    def flushed_offset(self) -> int:
        """Everything before is on disk."""
        return self._commit_log.flushed

    @property
    def unsynced_bytes(self) -> int:
        """The bytes of the log that are not on disk."""
        return self._commit_log.end - self._commit_log.flushed

    @property
    def sync_age_ms(self) -> int:
        """How long the fsync of the log has been running; 0 without one."""
        return self._sync.age_ms

    @property
    def waiting_puts(self) -> int:
        """How many puts wait for the disk."""
        return len(self._completion)

    @property
    def dispatched_offset(self) -> int:
        """Everything before can be read by consumers."""
        return self._dispatcher.dispatched

    @property
    def stored(self) -> tuple[int, int]:
        """Messages that became readable since the start, on a slave those of its master, and bytes of their records."""
        return self._dispatcher.messages, self._dispatcher.message_bytes

    @property
    def confirm_offset(self) -> int:
        """How far consumers may see: what is on disk with SYNC_FLUSH, and on the slaves that count."""
        return min(self._commit_log.flushed if self._sync_flush else self._commit_log.end, self._replicated)

    @property
    def segment_bytes(self) -> int:
        """The length of a commit log file."""
        return self._commit_log.segment_bytes

    @property
    def damage(self) -> list[tuple[int, int]]:
        """Damaged parts of the log that were passed over since the start: (from, to)."""
        return self._dispatcher.damage

    @property
    def is_compiled(self) -> bool:
        """True when `rmq.store._record` is there: ordinary messages then take a faster way to the same bytes."""
        return self._dispatcher.walk is not None

    @property
    def is_writable(self) -> bool:
        """True when messages are taken."""
        return self._appender.refusal is None and self._appender.trouble is None

    @property
    def refuses_because(self) -> str | None:
        """What is wrong with the disk while messages are refused for it: path, limit and key, or the error."""
        if self._failure is not None:
            return f"{_failure_text(self._failure)}: {self._failure}"
        return self._retention.full_because or self._checkpointer.full_because or self._appender.trouble

    @property
    def disk_usage(self) -> DiskUsage:
        """Room on the disk of the commit log."""
        return self._retention.usage()

    def health(self) -> StoreHealth:
        """Return what metrics and the status page show beside the offsets."""
        return StoreHealth(
            is_writable=self.is_writable,
            failure=None if self._failure is None else str(self._failure),
            refuses_because=self.refuses_because,
            early_deletions=self._retention.early_deletions,
            log_disk=self._retention.usage(),
            queue_disk=self._retention.queue_usage(),
            segments=len(self._commit_log.starts),
            queues=len(self._queues.keys()),
            damaged_parts=len(self._dispatcher.damage),
            dispatch_failures=self._dispatcher.failures,
            puts_waiting_for_disk=len(self._completion),
            sync_seconds=self._sync.seconds,
            load=self._load_report,
        )

    def runtime_info(self) -> dict[str, str]:
        """Return the store's part of a broker's runtime information (code 28)."""
        usage = self._retention.usage()
        log = self._commit_log
        return {
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.end),
            "dispatchBehindBytes": str(log.end - self._dispatcher.dispatched),
            "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
            "remainHowManyDataToCommit": "0 B",
            "dispatchMaxBuffer": "0",
            "compiledStore": "true" if self.is_compiled else "false",
            "earliestMessageTimeStamp": str(self.earliest_store_time()),
            "commitLogDiskRatio": str(usage.used_ratio),
            f"commitLogDiskRatio_{log.folder}": str(usage.used_ratio),
            "consumeQueueDiskRatio": str(self._retention.queue_usage().used_ratio),
            "commitLogDirCapacity": f"Total : {_gib(usage.total_bytes)}, Free : {_gib(usage.free_bytes)}.",
        }


def _failure_text(error: DiskError) -> str:
    return "a sync failed" if isinstance(error, SyncFailed) else "the disk failed"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
