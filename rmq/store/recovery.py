"""
Bring commit log, consume queues and index to one consistent state after any kind of stop.

Where reading starts, in this order:

* `checkpoint.rmq` (ours) has an offset up to which everything was fsynced, and the record before it is still there:
  from that offset. After a clean stop it is the end of the log.
* `abort` is missing and `checkpoint` is as young as the last record (Apache was stopped cleanly): from the end of what
  the consume queues.
* else as Apache does it: from the youngest commit log file whose first record is older than `checkpoint`.

Queues and index are truncated to that offset and rebuilt from the log; queues that lack numbers, or whose folders are
missing, are rebuilt from the beginning of the log.

The log ends behind the last intact record. Damage with intact records behind it has one of two causes:

* The power failed (`abort` names another boot of the machine), and the bytes are younger than the last fsync that
  `checkpoint.rmq` has recorded: the disk has kept some of the last writes and lost others. The log is then truncated
  before the damage, as if all of them were lost; none of them was acknowledged as durable. To keep the later ones would
  leave holes that slaves may have filled: a divergence. A slave, whose master sends everything again, goes back to that
  last fsync, even when only the last record is torn (but not with haAckAfterFlush: what it has acknowledged it keeps,
  and compares).
* Otherwise the bytes have rotted or were overwritten: they are skipped, logged and kept, and so are the messages behind
  them.

Not every intact record behind damage belongs to the log: Apache's brokers leave what they truncate in the file. Where
that can be, older records behind damage must continue the log to count (:meth:`RecoveryPolicy.continues`).

Intact records that are truncated are saved in `cut/` before, and so is damage longer than one write.

Java: CommitLog#recoverNormally, #recoverAbnormally
"""

from __future__ import annotations

import os

import attrs
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk
from rmq.store import layout
from rmq.store.checkpoint import Checkpoint, RecoveryPoint
from rmq.store.commitlog import CommitLog
from rmq.store.consumequeue import QueueGap
from rmq.store.cut import save
from rmq.store.dispatch import Dispatcher, LastRecord
from rmq.store.index import Index
from rmq.store.messages import StoreError
from rmq.store.queues import Key, QueueTable
from rmq.store.scan import Damage, LogScanner, Policy, RecoveryPolicy, Search, read_record
from rmq.wire.record import (
    BORN_HOST_AT,
    SECTOR_BYTES,
    SIZE_AND_MAGIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Flaw,
    Frame,
)

#: buffered units and index entries are written each time this much of the log has been read
WRITE_EVERY_BYTES = 16 << 20
#: a line in the log each time this much has been read: nothing else is heard of a broker whose recovery takes minutes
REPORT_EVERY_BYTES = 1 << 30
#: of what a slave truncates, at most this much is saved
MAX_SAVED_BYTES = 64 << 20
#: a torn end without any whole record is saved only if it is longer: one record, or one batch, may be torn
MAX_TORN_BYTES = 8 << 20


class _Rebuild(Exception):
    """Queues do not fit the log; rebuild them from its beginning."""


@attrs.define
class Recovery:
    """One recovery; :meth:`run` does it all, once."""

    disk: Disk
    root: str
    commit_log: CommitLog
    queues: QueueTable
    index: Index | None
    dispatcher: Dispatcher
    checkpoint: Checkpoint
    progress: RecoveryPoint | None
    is_clean: bool
    is_slave: bool
    #: the power has failed since the store was written; None when that is not known
    lost_power: bool | None = None
    #: a slave that acknowledges only what it has fsynced, and so must keep everything before the damage
    acks_after_flush: bool = False
    check_crc: bool = True
    #: what was read, for the log line
    read_from: int = attrs.field(init=False, default=0)
    _written_to: int = attrs.field(init=False, default=0)
    _reported_to: int = attrs.field(init=False, default=0)
    #: from here to the end a slave should compare with its master: its power failed, or records behind the last fsync
    #: are damaged, which a kill alone does not do; None: no need
    suspect_from: int | None = attrs.field(init=False, default=None)
    #: nothing was read, truncated or added: our own clean stop ended the log where it ends, or there is none
    is_untouched: bool = attrs.field(init=False, default=False)
    #: queues with units from before the last known fsync
    _synced_queues: set[Key] = attrs.field(init=False, factory=set)
    #: the truncated bytes must be saved first, because of this damage
    _to_save: Damage | None = attrs.field(init=False, default=None)
    #: it is from a power failure
    _is_power_cut: bool = attrs.field(init=False, default=False)
    _log = Logger()

    def run(self) -> None:
        """Recover; logs what was found and done."""
        log = self.commit_log
        if log.is_empty:
            self._forget_everything()
            return
        if not self._is_anchored():
            self.progress = None
        try:
            if self.queues.is_broken:
                raise _Rebuild("a file in the middle of a queue is missing")
            self._recover(full=False)
        except (_Rebuild, QueueGap) as reason:
            self._rebuild(str(reason))
        self.queues.correct_min(log.min_offset)

    def _rebuild(self, reason: str) -> None:
        self._log.warn("rebuilding consume queues from the whole commit log: {reason}", reason=reason)
        self._synced_queues.clear()
        self._recover(full=True)

    def _forget_everything(self) -> None:
        """Empty queues and index, since there is no commit log."""
        if self.queues.max_phy > 0:
            folder = self.commit_log.folder
            if not os.path.normpath(folder).startswith(os.path.join(os.path.normpath(self.root), "")):
                raise StoreError(
                    f"no commit log in storePathCommitLog={folder}, but the queues in {self.root} have messages up to "
                    f"offset {self.queues.max_phy}: is a disk not mounted? If the log is lost for good, delete "
                    f"{layout.consume_queue_dir(self.root)} and start again with an empty log"
                )
            self._log.error(
                "no commit log in {folder}, but queues have messages up to offset {max_phy}: emptying all queues",
                folder=self.commit_log.folder,
                max_phy=self.queues.max_phy,
            )
        self.is_untouched = self.is_clean and not list(self.queues)
        self.queues.cut(0)
        if self.index is not None:
            self.index.drop_all()
        self.dispatcher.begin_at(0)

    # ---- where to start ----

    def _is_anchored(self) -> bool:
        """Return whether the log still is the one of `checkpoint.rmq`."""
        progress, log = self.progress, self.commit_log
        if progress is None or not log.min_offset <= progress.offset <= log.end:
            return False
        if progress.anchor_phy < 0:
            return progress.offset == log.min_offset
        if progress.anchor_phy < log.min_offset:
            return False
        end = progress.anchor_phy + progress.anchor_size
        if end != progress.offset and log.start_of(end) + log.segment_bytes != progress.offset:
            return False
        frame = self._frame_at(progress.anchor_phy)
        return (
            frame is not None
            and frame.store_timestamp == progress.anchor_timestamp
            and (frame.size == progress.anchor_size)
        )

    def _frame_at(self, phy_offset: int) -> Frame | None:
        found = read_record(self.commit_log, phy_offset, self.commit_log.end)
        return found if isinstance(found, Frame) else None

    def _recover(self, *, full: bool) -> None:
        log = self.commit_log
        if full:
            start = log.min_offset
            if self.index is not None:
                self.index.drop_all()
            self._cut(start)
        elif self.progress is not None:
            start = self._start_from_progress(self.progress)
        else:
            start = self._start_from_checkpoint()
        if self.progress is not None and not full:
            self._synced_queues = {queue.key for queue in self.queues if queue.end}
        self._resume_index()
        self.read_from = self._written_to = self._reported_to = start
        self.dispatcher.begin_at(start, self._record_before(start))
        self.dispatcher.damage.clear()
        self.dispatcher.fills_gaps = full or start == log.min_offset
        trusted = not full and self._ended_here(start)
        self.is_untouched = trusted
        end = start if trusted else self._read(start)
        self.dispatcher.fills_gaps = True
        self._finish(end, zeros_behind=trusted)

    def _resume_index(self) -> None:
        if self.index is not None:
            # A killed process leaves its writes in their order; a power failure leaves some of them.
            self.index.resume(in_order=None if self.lost_power is None else not self.lost_power)

    def _record_before(self, start: int) -> LastRecord:
        """Return the record before ``start``, from the recovery point or a queue; (-1, 0, 0) when neither has it."""
        progress = self.progress
        if progress is not None and progress.offset == start:
            return progress.anchor_phy, progress.anchor_size, progress.anchor_timestamp
        for queue in self.queues:
            unit = queue.unit(queue.end - 1) if queue.max_phy == start else None
            frame = self._frame_at(unit[0]) if unit is not None else None
            if unit is not None and frame is not None:
                return unit[0], frame.size, frame.store_timestamp
        return -1, 0, 0

    def _ended_here(self, start: int) -> bool:
        """Return whether our own clean stop ended the log at ``start``, with only zeros behind it."""
        progress = self.progress
        return (
            self.is_clean
            and progress is not None
            and progress.is_end
            and start == progress.offset
            and not any(self.commit_log.read_some(start, SIZE_AND_MAGIC.size))
        )

    def _start_from_progress(self, progress: RecoveryPoint) -> int:
        if self._ended_here(progress.offset):
            if self.queues.total_units != progress.queue_units:
                raise _Rebuild(
                    f"{self.queues.total_units} units found, {progress.queue_units} expected from the last stop"
                )
            if self.index is not None and self.index.state() != progress.index:
                return self._rebuild_index_only()
            return progress.offset
        if self.index is not None:
            self.index.go_back(progress.index)
            if self.index.state().name != progress.index.name:
                self._cut(self.commit_log.min_offset)
                return self.commit_log.min_offset
        self._cut(progress.offset)
        if self.queues.total_units < progress.queue_units:
            raise _Rebuild(
                f"{self.queues.total_units} units found for the log up to {progress.offset}, "
                f"{progress.queue_units} were fsynced: files are missing"
            )
        return progress.offset

    def _rebuild_index_only(self) -> int:
        """Return the beginning of the log; units that are there are not added again."""
        assert self.index is not None
        self._log.warn("index files are missing or changed; rebuilding the index from the whole commit log")
        self.index.drop_all()
        return self.commit_log.min_offset

    def _start_from_checkpoint(self) -> int:
        log = self.commit_log
        max_phy = self.queues.max_phy
        if self.is_clean and log.min_offset <= max_phy <= log.end and self._stopped_cleanly(max_phy):
            # A unit has the end of a record, an index entry the start of one: both are offsets to start from.
            start = max_phy
            if self.index is not None:
                start = min(start, max(log.min_offset, self.index.end_phy_offset))
                self.index.cut(start)
            return start
        start = self._file_older_than(self.checkpoint.min_timestamp)
        if max_phy < start:
            start = log.min_offset  # queue files are missing
        if self.index is not None:
            self.index.drop_after(self.checkpoint.index_timestamp)
            start = min(start, max(log.min_offset, log.start_of(max(0, self.index.end_phy_offset))))
        self._cut(start)
        return start

    def _stopped_cleanly(self, max_phy: int) -> bool:
        """Return whether the checkpoint is as young as the last record, which only a clean stop leaves so."""
        last = self._record_before(max_phy)[2]
        scanner = LogScanner(self.commit_log, Policy(check_crc=False, check_torn=False, searches=False))
        for _, found in scanner.records(max_phy, self.commit_log.end):
            if isinstance(found, Frame):
                last = found.store_timestamp
        return last <= self.checkpoint.physic_timestamp

    def _file_older_than(self, timestamp: int) -> int:
        """Return the start of the youngest file whose first record is no younger than ``timestamp``."""
        for start in reversed(self.commit_log.starts):
            frame = self._frame_at(start)
            if frame is not None and 0 < frame.store_timestamp <= timestamp:
                return start
        return self.commit_log.min_offset

    def _cut(self, phy_offset: int) -> None:
        """Truncate queues and index to an offset; _Rebuild when the last unit of a queue is wrong then."""
        self.queues.cut(phy_offset)
        if self.index is not None:
            self.index.cut(phy_offset)
        # A killed process leaves what it wrote, and what was recorded it had written as a whole.
        trusted = self.progress is not None and self.lost_power is False and phy_offset == self.progress.offset
        for queue in self.queues:
            if trusted and queue.is_sound:
                continue
            unit = queue.unit(queue.end - 1) if queue.end else None
            if unit is None or unit[0] + unit[1] <= self.commit_log.min_offset:
                continue
            frame = self._frame_at(unit[0]) if unit[0] >= self.commit_log.min_offset else None
            if frame is None or (frame.topic, frame.queue_id, frame.size) != (queue.topic, queue.queue_id, unit[1]):
                if phy_offset <= self.commit_log.min_offset:
                    queue.destroy()
                else:
                    raise _Rebuild(f"the last unit of {queue.topic}-{queue.queue_id} is of no message of it")

    # ---- reading ----

    def _read(self, start: int) -> int:
        """Dispatch every intact record from ``start`` on; return where the log ends."""
        log = self.commit_log
        self._to_save, self._is_power_cut = None, False
        walk = None if self.dispatcher.walk is None else self._walk
        policy = RecoveryPolicy(
            check_crc=self.check_crc,
            is_slave=self.is_slave,
            acks_after_flush=self.acks_after_flush,
            lost_power=self.lost_power,
            synced_to=None if self.progress is None else self.progress.offset,
            clean_ms=self.checkpoint.physic_timestamp if self.is_clean else None,
            synced_queues=self._synced_queues,
            last_ms=lambda: self.dispatcher.store_timestamp,
            is_replaced=self._is_replaced,
            clear=log.clear,
        )
        for at, found in LogScanner(log, policy).records(start, log.end, walk):
            if isinstance(found, Frame):
                self.dispatcher.frame(at, found)
                self._write_sometimes()
                continue
            end = self._end_at(found, policy, start)
            if end is not None:
                return end
            self.dispatcher.note_damage(at, found.end)
            # Numbers that are missing from now on are those of the damaged records.
            self.dispatcher.fills_gaps = True
        return log.end

    def _end_at(self, damage: Damage, policy: RecoveryPolicy, start: int) -> int | None:
        """Return where the log ends because of damage; None when it goes on behind it."""
        log, at, flaw = self.commit_log, damage.start, damage.flaw
        goes_back_unseen = policy.goes_back_unseen(at, flaw)
        if goes_back_unseen or (damage.resumes and policy.ends_log(at)):
            self._to_save, self._is_power_cut = damage, True
            if policy.synced_to is not None and policy.goes_back:
                return policy.synced_to
            return log.min_offset if goes_back_unseen else at
        if damage.resumes:
            return None
        if flaw is not Flaw.EMPTY:
            self._log.warn("the record at {phy_offset} is truncated: {flaw}", phy_offset=at, flaw=flaw.value)
        if damage.remnants or damage.written_to - at > MAX_TORN_BYTES:
            self._to_save = damage
        if policy.goes_back and policy.ends_log(at) and self._is_garbage(at, flaw):
            # Garbage begins where a write began, and a slave's writes cut records: the one before may be torn too.
            return max(start, self.dispatcher.last_phy)
        return at

    def _is_garbage(self, at: int, flaw: Flaw) -> bool:
        """Return whether bytes are not the beginning of a record, even one torn in its first fields."""
        return flaw in (Flaw.MAGIC, Flaw.SIZE, Flaw.PHY_OFFSET) and any(
            self.commit_log.read_some(at + BORN_HOST_AT, SECTOR_BYTES)
        )

    def _walk(self, data: bytes, position: int, base: int, check_crc: bool) -> int:
        walk = self.dispatcher.walk
        assert walk is not None
        position = walk(data, position, base, check_crc)
        self._write_sometimes()
        return position

    def _write_sometimes(self) -> None:
        dispatched = self.dispatcher.dispatched
        if dispatched - self._written_to >= WRITE_EVERY_BYTES:
            self._written_to = dispatched
            self._write()
            if dispatched - self._reported_to >= REPORT_EVERY_BYTES:
                self._reported_to = dispatched
                self._log.info(
                    "recovery has read the commit log from {start} to {offset}; its files end at {end}",
                    start=self.read_from,
                    offset=dispatched,
                    end=self.commit_log.end,
                )

    def _write(self) -> None:
        self.queues.write()
        if self.index is not None:
            self.index.write()

    def _is_replaced(self, offset: int, frame: Frame) -> bool:
        """Return whether another message has this one's number in its queue."""
        if frame.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return False  # it has none
        queue = self.queues.get(frame.topic, frame.queue_id)
        if queue is None or not 0 <= frame.queue_offset < queue.end:
            return False
        unit = queue.unit(frame.queue_offset)
        return unit is not None and unit[0] != offset

    # ---- the end of the log ----

    def _save(self, damage: Damage, at: int) -> None:
        """
        Save the bytes from ``at`` on, which may have intact records and will be truncated.

        DiskError when there is no room for them: nothing was truncated then, and the next start tries again.
        """
        search = Search(self.commit_log, at, self.commit_log.end)
        records = sum(1 for _ in search.records())
        size = search.written_to - at
        # A slave's master has all of it; what a master truncates may be the only copy.
        saved = min(size, MAX_SAVED_BYTES) if self.is_slave else size
        path = save(self.disk, self.root, self.commit_log, at, at + saved)
        if self._is_power_cut:
            why = (
                "commit log truncated at {phy_offset}: a power failure has damaged it at {damaged}, after the last "
                "fsync{then}"
            )
        else:
            why = "commit log truncated at {phy_offset}: damaged ({flaw}), and no later record certainly continues it"
        self._log.error(
            why + "; truncated {size_bytes} bytes with {records} intact records, saved in {path}{limit}",
            damaged=damage.start,
            flaw=damage.flaw.value,
            phy_offset=at,
            then="; the master sends the rest again" if self.is_slave else "",
            size_bytes=size,
            records=records,
            path=path,
            limit=f" (only the first {saved} bytes)" if saved < size else "",
        )

    def _finish(self, end: int, *, zeros_behind: bool) -> None:
        self._write()
        # No CRC covers a record's number: one that the power failure made 0 may have reset its queue.
        renewed_at = self.dispatcher.renewed_at
        last: LastRecord | None = None
        if end < self.dispatcher.dispatched:
            self._cut(end)
            self._resume_index()
            last = self._record_before(end)
        synced = self.progress.offset if self.progress is not None else 0
        if self._to_save is not None:
            self._save(self._to_save, end)
        removed = self.commit_log.cut(end, synced=synced, zeros_behind=zeros_behind)
        if renewed_at >= end:
            self._rebuild(f"a queue was reset for the record at {renewed_at}, which is truncated")
            return
        self.dispatcher.begin_at(end, last)
        self._write()
        for queue in self.queues:
            queue.recovered()
        if self.is_slave and self.lost_power:
            self.suspect_from = (
                min(end, self.progress.offset) if self.progress is not None else self.commit_log.min_offset
            )
        elif self.is_slave and (holes := [start for start, _ in self.dispatcher.damage if synced <= start < end]):
            self.suspect_from = min(holes)
        self._log.info(
            "commit log {min_offset} to {end_offset} recovered after {how}, read from {read_from}; "
            "cleared {removed} bytes behind its end",
            min_offset=self.commit_log.min_offset,
            end_offset=end,
            how="a clean stop" if self.is_clean else "a crash",
            read_from=self.read_from,
            removed=removed,
        )
