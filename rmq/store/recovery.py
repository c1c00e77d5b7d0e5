"""
Bring commit log, consume queues and index to one consistent state after any kind of stop.

Where the reading starts, in this order:

* `checkpoint.rmq` (ours) names an offset up to which everything was synced, and the record in front of it is still
  there: from that offset. After a clean stop nothing lies behind it.
* `abort` is missing and `checkpoint` is as young as the last record (Apache was stopped cleanly): from the end of what
  the consume queues know.
* else as Apache does it: from the youngest commit log file whose first record is older than `checkpoint`.

Queues and index are cut back to that offset and made again from the log; queues that turn out to lack numbers, or
folders that are gone, are made again from the beginning of the log.

Where the log ends: behind the last intact record. What is damaged with intact records behind it is one of two things:

* The power failed (`abort` names another boot of the machine), and the bytes are younger than the last sync that
  `checkpoint.rmq` knows of: the disk has kept some writes of the last moments and lost others. The log then ends in
  front of the damage, as if all of them were lost, which nothing that was promised forbids. To keep the later ones
  would leave holes that slaves may have filled, two histories with one set of offsets. A slave, whose master sends
  everything again, goes back to that last sync, also when only its very end is torn (but with haAckAfterFlush: what it
  has acknowledged it keeps, and compares).
* Otherwise the bytes have rotted, or somebody wrote over them: they are passed over, logged and kept, and so are the
  messages behind them.

Not everything that is intact behind damage was ever behind it: Apache's brokers leave what they cut in the file. Where
that can be, older records behind damage must continue the log to count (:meth:`Recovery._continues`).

Intact records that are cut off are saved in `cut/` before, and so is damage that is more than the end of a write.

Java: CommitLog#recoverNormally, #recoverAbnormally
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import attrs
from twisted.logger import Logger

from rmq.runtime.disk import Disk, DiskError
from rmq.store import layout
from rmq.store.checkpoint import Checkpoint, Progress
from rmq.store.commitlog import CommitLog
from rmq.store.consumequeue import QueueGap
from rmq.store.dispatch import Dispatcher, LastRecord
from rmq.store.index import Index
from rmq.store.messages import StoreError
from rmq.store.queues import Key, QueueTable
from rmq.store.scan import Search, behind_damage, heads_chain, scan
from rmq.wire.record import (
    BORN_HOST_AT,
    SECTOR_BYTES,
    SIZE_AND_MAGIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Flaw,
    Frame,
    is_torso,
    read_frame,
)

#: buffered units and index entries are written each time so much of the log has been read
WRITE_EVERY_BYTES = 16 << 20
#: at most so much of what a slave cuts is saved
MAX_SAVED_BYTES = 64 << 20
#: what is saved is copied in such pieces
COPY_BYTES = 1 << 20
#: a torn end without any whole record is saved only if it is longer: one record, or one batch, may be torn
MAX_TORN_BYTES = 8 << 20


class _Rebuild(Exception):
    """Queues do not fit the log; make them again from its beginning."""


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
    progress: Progress | None
    is_clean: bool
    is_slave: bool
    #: the machine has been without power since the store was written; None when that is not known
    lost_power: bool | None = None
    #: a slave that has acknowledged only what it had synced, and so must keep all that is in front of the damage
    acks_after_flush: bool = False
    check_crc: bool = True
    #: what was read, for the log line
    read_from: int = attrs.field(init=False, default=0)
    _written_to: int = attrs.field(init=False, default=0)
    #: from here to the end a slave should compare with its master, for its power failed; None when there is no doubt
    suspect_from: int | None = attrs.field(init=False, default=None)
    #: queues with units from before the last known sync
    _synced_queues: set[Key] = attrs.field(init=False, factory=set)
    #: where damage by a power failure ends the log
    _cut_at: int | None = attrs.field(init=False, default=None)
    #: what is cut must be saved before, because of this damage
    _to_save: tuple[int, Flaw] | None = attrs.field(init=False, default=None)
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
                raise _Rebuild("a file in the middle of one is missing")
            self._recover(full=False)
        except (_Rebuild, QueueGap) as reason:
            self._log.warn("consume queues are made again from the whole commit log: {reason}", reason=str(reason))
            self._synced_queues.clear()
            self._recover(full=True)
        self.queues.correct_min(log.min_offset)

    def _forget_everything(self) -> None:
        """Without a commit log, queues and index point nowhere."""
        if self.queues.max_phy > 0:
            folder = self.commit_log.folder
            if not os.path.normpath(folder).startswith(os.path.join(os.path.normpath(self.root), "")):
                raise StoreError(
                    f"there is no commit log in storePathCommitLog={folder}, yet the queues in {self.root} know "
                    f"messages up to {self.queues.max_phy}: is a disk not mounted? If the log is gone for good, delete "
                    f"{layout.consume_queue_dir(self.root)} and start again, to begin with an empty one"
                )
            self._log.error(
                "there is no commit log in {folder}, yet queues know messages up to {max_phy}: they are emptied",
                folder=self.commit_log.folder,
                max_phy=self.queues.max_phy,
            )
        self.queues.cut(0)
        if self.index is not None:
            self.index.drop_all()
        self.dispatcher.begin_at(0)

    # ---- where to start ----

    def _is_anchored(self) -> bool:
        """Tell whether the log still is the one that `checkpoint.rmq` speaks of."""
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
        head = self.commit_log.read_some(phy_offset, SIZE_AND_MAGIC.size)
        if len(head) < SIZE_AND_MAGIC.size:
            return None
        data = self.commit_log.read_some(phy_offset, max(0, SIZE_AND_MAGIC.unpack(head)[0]))
        frame = read_frame(data, 0, len(data), phy_offset=phy_offset, check_crc=True)
        return frame if isinstance(frame, Frame) else None

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
        self.read_from = self._written_to = start
        self.dispatcher.begin_at(start, self._record_before(start))
        self.dispatcher.damage.clear()
        self.dispatcher.fills_gaps = full or start == log.min_offset
        trusted = not full and self._ended_here(start)
        end = start if trusted else self._read(start)
        self.dispatcher.fills_gaps = True
        self._finish(end, zeros_behind=trusted)

    def _resume_index(self) -> None:
        if self.index is not None:
            # A killed process leaves its writes in their order; a power failure leaves some of them.
            self.index.resume(in_order=None if self.lost_power is None else not self.lost_power)

    def _record_before(self, start: int) -> LastRecord:
        """Return the record in front of ``start``, as far as anything there is knows it."""
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
        """Tell whether our own clean stop left the end of the log at ``start``, and with it only zeros behind."""
        progress = self.progress
        return (
            self.is_clean
            and progress is not None
            and progress.is_end
            and start == progress.offset
            and not any(self.commit_log.read_some(start, SIZE_AND_MAGIC.size))
        )

    def _start_from_progress(self, progress: Progress) -> int:
        if self._ended_here(progress.offset):
            if self.queues.total_units != progress.queue_units:
                raise _Rebuild(
                    f"they have {self.queues.total_units} units, {progress.queue_units} were left by the last stop"
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
                f"they have {self.queues.total_units} units for the log up to {progress.offset}, where "
                f"{progress.queue_units} were synced: files are gone"
            )
        return progress.offset

    def _rebuild_index_only(self) -> int:
        """Read the log from its beginning; units that are there are not added again."""
        assert self.index is not None
        self._log.warn("index files are missing or changed; the index is made again from the whole commit log")
        self.index.drop_all()
        return self.commit_log.min_offset

    def _start_from_checkpoint(self) -> int:
        log = self.commit_log
        max_phy = self.queues.max_phy
        if self.is_clean and log.min_offset <= max_phy <= log.end and self._stopped_cleanly(max_phy):
            # A unit names the end of a record, an index entry the start of one: both are places to start from.
            start = max_phy
            if self.index is not None:
                start = min(start, max(log.min_offset, self.index.end_phy_offset))
                self.index.cut(start)
            return start
        start = self._file_older_than(self.checkpoint.min_timestamp)
        if max_phy < start:
            start = log.min_offset  # the queues know nothing of what lies before: their files are gone
        if self.index is not None:
            self.index.drop_after(self.checkpoint.index_timestamp)
            start = min(start, max(log.min_offset, log.start_of(max(0, self.index.end_phy_offset))))
        self._cut(start)
        return start

    def _stopped_cleanly(self, max_phy: int) -> bool:
        """Tell whether the checkpoint is as young as the last record: only a clean stop leaves it so."""
        last = self._record_before(max_phy)[2]
        for _, frame in scan(self.commit_log, max_phy, self.commit_log.end, check_crc=False):
            if isinstance(frame, Frame):
                last = frame.store_timestamp
        return last <= self.checkpoint.physic_timestamp

    def _file_older_than(self, timestamp: int) -> int:
        """Return the start of the youngest file whose first record is no younger than ``timestamp``."""
        for start in reversed(self.commit_log.starts):
            frame = self._frame_at(start)
            if frame is not None and 0 < frame.store_timestamp <= timestamp:
                return start
        return self.commit_log.min_offset

    def _cut(self, phy_offset: int) -> None:
        """Take queues and index back to an offset; _Rebuild when a queue then ends with nonsense."""
        self.queues.cut(phy_offset)
        if self.index is not None:
            self.index.cut(phy_offset)
        for queue in self.queues:
            unit = queue.unit(queue.end - 1) if queue.end else None
            if unit is None or unit[0] + unit[1] <= self.commit_log.min_offset:
                continue
            frame = self._frame_at(unit[0]) if unit[0] >= self.commit_log.min_offset else None
            if frame is None or (frame.topic, frame.queue_id, frame.size) != (queue.topic, queue.queue_id, unit[1]):
                if phy_offset <= self.commit_log.min_offset:
                    queue.destroy()
                else:
                    raise _Rebuild(f"the last unit of {queue.topic}-{queue.queue_id} points at no message of it")

    # ---- reading ----

    def _read(self, start: int) -> int:
        """Dispatch every intact record from ``start`` on; return where the log ends."""
        log = self.commit_log
        self._cut_at = self._to_save = None
        at = start
        following: int | None = start
        walk = None if self.dispatcher.walk is None else self._walk
        while following is not None:
            flaw: Flaw | None = None
            for at, frame in scan(log, following, log.end, check_crc=self.check_crc, walk=walk):
                if isinstance(frame, Flaw):
                    flaw = frame
                elif is_torso(frame, (at + frame.size) % log.segment_bytes) or self._lost_number(at, frame):
                    flaw = Flaw.TORSO
                else:
                    self.dispatcher.frame(at, frame)
                    self._write_sometimes()
                    continue
                break
            if flaw is None:
                return log.end
            following = self._next_record(at, flaw)
            if self._cut_at is not None:
                return self._cut_at
        if self.is_slave and not self.acks_after_flush and self._is_cut_at(at) and self._is_garbage(at, flaw):
            # Garbage begins with a write, and a slave writes what it gets: the record before may share it.
            return max(start, self.dispatcher.last_phy)
        return at

    def _lost_number(self, at: int, frame: Frame) -> bool:
        """
        Tell whether a record of a master says 0 because a power failure took its number, which no CRC covers.

        To believe it would drop all that its queue has. A topic that was made again has no units from before, for its
        files went durably. Only disks that write less than 512 bytes whole lose a number alone; a slave compares.
        """
        return (
            frame.queue_offset == 0
            and not self.is_slave
            and (frame.topic, frame.queue_id) in self._synced_queues
            and frame.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
            and self._is_cut_at(at)
        )

    def _is_garbage(self, at: int, flaw: Flaw | None) -> bool:
        """Tell bytes that are no beginning of a record from one that was cut in its first fields."""
        return flaw in (Flaw.MAGIC, Flaw.SIZE, Flaw.PHY_OFFSET) and any(
            self.commit_log.read_some(at + BORN_HOST_AT, SECTOR_BYTES)
        )

    def _is_cut_at(self, phy_offset: int) -> bool:
        """Tell whether damage at an offset may be the work of a power failure, and ends the log."""
        lost_power = self.is_slave if self.lost_power is None else self.lost_power
        return lost_power and (self.progress is None or phy_offset >= self.progress.offset)

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

    def _write(self) -> None:
        self.queues.write()
        if self.index is not None:
            self.index.write()

    def _next_record(self, at: int, flaw: Flaw) -> int | None:
        """Return where to read on behind a damaged place; None when the log ends there."""
        log = self.commit_log
        goes_back = self.is_slave and not self.acks_after_flush
        if goes_back and self.lost_power and flaw is not Flaw.EMPTY and self._is_cut_at(at):
            # What looks intact in front of a torn place may be torn as well where no CRC covers it.
            self._cut_at = log.min_offset if self.progress is None else self.progress.offset
            self._to_save = at, flaw
            return None
        search = Search(log, behind_damage(log, at), log.end)
        remnants = 0
        found = None
        for offset, frame in search.records():
            if self._continues(offset, frame):
                found = offset
                break
            remnants += 1
        if found is None:
            if flaw is not Flaw.EMPTY:
                self._log.warn("the record at {phy_offset} is cut off: {flaw}", phy_offset=at, flaw=flaw.value)
            if remnants or search.written_to - at > MAX_TORN_BYTES:
                self._to_save = at, flaw
            return None
        if self._is_cut_at(at):
            self._cut_at = self.progress.offset if goes_back and self.progress is not None else at
            self._to_save = at, flaw
            return None
        self.dispatcher.note_damage(at, found)
        # Numbers that are missing from now on are those of the damaged records.
        self.dispatcher.fills_gaps = True
        return found

    def _continues(self, offset: int, frame: Frame) -> bool:
        """
        Tell whether an intact record behind damage is of this log, and no remnant behind an earlier end of it.

        Our recovery clears everything behind the end, Apache's clears nothing. So there are no remnants after a mere
        kill of ours, nor in front of what `checkpoint.rmq` has seen synced. Elsewhere age tells, but the clock may have
        been set back: older records count if the log goes on with them, and nothing else has got their numbers since,
        unless a clean stop says that the record in front of the damage was the last one.
        """
        last_ms = self.dispatcher.store_timestamp
        if self.lost_power is False or frame.store_timestamp >= last_ms:
            return True
        if self.progress is not None and offset < self.progress.offset:
            return True
        if self.is_clean and self.checkpoint.physic_timestamp == last_ms:
            return False
        return not self._is_replaced(offset, frame) and heads_chain(self.commit_log, offset, self.commit_log.end)

    def _is_replaced(self, offset: int, frame: Frame) -> bool:
        """Tell whether another message has this one's number in its queue."""
        if frame.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return False  # it has none
        queue = self.queues.get(frame.topic, frame.queue_id)
        if queue is None or not 0 <= frame.queue_offset < queue.end:
            return False
        unit = queue.unit(frame.queue_offset)
        return unit is not None and unit[0] != offset

    # ---- what is cut off ----

    def _save(self, damaged: int, flaw: Flaw, at: int) -> None:
        """
        Keep what is cut off although intact records may be in it.

        DiskError when there is no room for it: nothing has been cut then, and the next start tries again.
        """
        search = Search(self.commit_log, at, self.commit_log.end)
        records = sum(1 for _ in search.records())
        size = search.written_to - at
        # A slave's master still has all of it; what a master loses here is nowhere else.
        saved = min(size, MAX_SAVED_BYTES) if self.is_slave else size
        path = self._copy(at, saved)
        if self._cut_at is None:
            why = "the commit log ends at {phy_offset}, where it is damaged ({flaw}) and nothing surely continues it"
        else:
            why = (
                "a power failure has damaged the commit log at {damaged}, behind its last sync; it ends at "
                "{phy_offset} now{then}"
            )
        self._log.error(
            why + ". What followed, {size_bytes} bytes with {records} intact records, is in {path}{limit}",
            damaged=damaged,
            flaw=flaw.value,
            phy_offset=at,
            then=" and has the rest again from the master" if self.is_slave else "",
            size_bytes=size,
            records=records,
            path=path,
            limit=f", the first {saved} bytes of it" if saved < size else "",
        )

    def _copy(self, at: int, size: int) -> str:
        """Copy bytes of the log into a file below `cut`, durably, and return its path; earlier copies are kept."""
        disk = self.disk
        folder = layout.join(self.root, layout.CUT_DIR)
        disk.make_dirs(folder)
        path = layout.join(folder, layout.file_name(at))
        for number in itertools.count(1):
            if not disk.exists(path):
                break
            if self._is_copy(path, at, size):
                return path  # a recovery that was killed before it could cut
            path = layout.join(folder, f"{layout.file_name(at)}.{number}")
        disk.delete(f"{path}.tmp")
        file = disk.create_sparse(f"{path}.tmp", size)
        try:
            for offset, data in self._pieces(at, size):
                if any(data):
                    file.write_at(offset - at, data)
            file.sync_now()
        except DiskError:
            disk.delete(f"{path}.tmp")
            raise
        finally:
            file.close()
        disk.rename(f"{path}.tmp", path)
        disk.sync_dir(folder)
        return path

    def _is_copy(self, path: str, at: int, size: int) -> bool:
        """Tell whether a file holds just these bytes of the log."""
        file = self.disk.open(path)
        try:
            return file.size == size and all(
                file.read_at(offset - at, len(data)) == data for offset, data in self._pieces(at, size)
            )
        finally:
            file.close()

    def _pieces(self, at: int, size: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of a part of the log that may reach over the ends of files."""
        offset = at
        while data := self.commit_log.read_some(offset, COPY_BYTES, at + size):
            yield offset, data
            offset += len(data)

    def _finish(self, end: int, *, zeros_behind: bool) -> None:
        self._write()
        last: LastRecord | None = None
        if end < self.dispatcher.dispatched:
            self._cut(end)
            self._resume_index()
            last = self._record_before(end)
        synced = self.progress.offset if self.progress is not None else 0
        if self._to_save is not None:
            self._save(*self._to_save, end)
        removed = self.commit_log.cut(end, synced=synced, zeros_behind=zeros_behind)
        self.dispatcher.begin_at(end, last)
        self._write()
        # Units that were made again from the log have moved the ends of their queues.
        for queue in self.queues:
            queue.next = queue.end
        if self.is_slave and self.lost_power:
            self.suspect_from = (
                min(end, self.progress.offset) if self.progress is not None else self.commit_log.min_offset
            )
        self._log.info(
            "commit log {min_offset} to {end_offset} recovered after {how}, read from {read_from}; "
            "{removed} bytes behind its end were cleared",
            min_offset=self.commit_log.min_offset,
            end_offset=end,
            how="a clean stop" if self.is_clean else "a crash",
            read_from=self.read_from,
            removed=removed,
        )
