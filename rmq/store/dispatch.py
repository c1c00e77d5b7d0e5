"""
From the commit log into consume queues and index.

A master dispatches each message from memory, when it is appended or fsynced. What is not in memory (too many pending
messages, bytes that a slave received, the log at recovery) is read from the log.

Java: DefaultMessageStore.ReputMessageService, CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.runtime.disk.files import DiskError
from rmq.store.commitlog import CommitLog
from rmq.store.consumequeue import ConsumeQueue, QueueGap
from rmq.store.index import Index
from rmq.store.layout import CQ_UNIT, CQ_UNIT_BYTES
from rmq.store.messages import StoreError
from rmq.store.multidispatch import MultiDispatch
from rmq.store.queues import QueueTable, is_storable_topic
from rmq.store.scan import Damage, DispatchPolicy, LogScanner, Walk
from rmq.wire.compiled import load as load_compiled
from rmq.wire.record import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    Frame,
    find_marked,
    property_mark,
    tags_code,
)

#: pending messages (they wait for an fsync) that are kept in memory; more are read back from the log
MAX_PENDING = 65_536
MAX_TAGS = 4096

#: topic, queueId, new end of the queue, tagsCode
ArrivalListener = Callable[[str, int, int, int], None]
#: (topic, queueId)
Key = tuple[str, int]
#: what the store must know of; anything else that a message raises is a bug, and costs that message only
_RAISED = (DiskError, StoreError, QueueGap)


class Watch:
    """
    A listener for new messages: of all topics, of one topic, or of queues in a live table.

    ``together`` does for messages that were added in one go, of any queues, what ``callback`` does for each that it
    wants; None where nothing is gained by it.
    """

    __slots__ = ("callback", "queues", "together", "topic")

    def __init__(
        self,
        callback: ArrivalListener,
        topic: str | None,
        queues: Mapping[Key, object] | None,
        together: Callable[[Units], None] | None = None,
    ) -> None:
        self.callback = callback
        self.topic = topic
        self.queues = queues
        self.together = together

    def wants(self, queue: ConsumeQueue) -> bool:
        """Return whether the listener wants messages of this queue now."""
        if self.queues is not None:
            return queue.key in self.queues
        return self.topic is None or queue.topic == self.topic


class _Message(NamedTuple):
    """A message that is not dispatched yet."""

    phy_offset: int
    size: int
    queue: ConsumeQueue
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: str

    def has(self, topic: str) -> bool:
        return self.queue.topic == topic


#: phyOffset, size, storeTimestamp
LastRecord = tuple[int, int, int]

#: queues, the units of messages that continue each, and the physical end of the last of them
Units = Sequence[tuple[ConsumeQueue, bytes, int]]


def numbered(queue: ConsumeQueue, more: bytes) -> Iterator[tuple[int, int]]:
    """Yield the new end of the queue and the tagsCode of each message of the last units that it got."""
    before = queue.end - len(more) // CQ_UNIT_BYTES
    return ((number, code) for number, (_, _, code) in enumerate(CQ_UNIT.iter_unpack(more), before + 1))


class _Written(NamedTuple):
    """Ordinary messages that were written together and are not dispatched yet."""

    phy_offset: int
    #: of all
    size: int
    units: Units
    #: the number of the first message of each queue in ``units``
    numbers: Sequence[int]
    keys: bytes
    last: LastRecord

    def continues(self) -> bool:
        """Return whether each queue ends where its messages begin."""
        return all(queue.end == number for (queue, _, _), number in zip(self.units, self.numbers, strict=True))

    def has(self, topic: str) -> bool:
        return any(queue.topic == topic for queue, _, _ in self.units)


_compiled: Any = load_compiled("rmq.store._record")
_UNIQ_KEY = property_mark(PROPERTY_UNIQ_KEY)
_KEYS = property_mark(PROPERTY_KEYS)
_TAGS = property_mark(PROPERTY_TAGS)
_DELAY = property_mark(PROPERTY_DELAY)
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_levels(text: str) -> tuple[int, ...]:
    """Return the milliseconds of level 1, 2, … of `messageDelayLevel`; a StoreError names a piece that is none."""
    delays = []
    for piece in text.split():
        unit = _UNITS_MS.get(piece[-1])
        if unit is None or not piece[:-1].isdigit():
            raise StoreError(f"messageDelayLevel={text!r}: {piece!r} is no delay (a number and s, m, h or d)")
        delays.append(int(piece[:-1]) * unit)
    return tuple(delays)


class Dispatcher:
    """
    Everything before :attr:`dispatched` is in queues and index, in the order of the log.

    Numbers that are missing in a queue are filled with copies of the unit behind them and logged, unless ``fills_gaps``
    is False (recovery, which can still start earlier).

    The log may have messages of a topic that was deleted and created again; their numbers begin at 0 again. A queue
    that gets number 0 behind its last message is reset: it drops all units.

    A bug that raises for one message costs what it hit: its unit, its keys, or one listener. It is logged with the
    offset, counted in :attr:`failures`, and the dispatch goes on behind the message. Errors of the disk are raised.
    """

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        *,
        delays: tuple[int, ...] = (),
        further: MultiDispatch | None = None,
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._delays = delays
        #: finds the further queues of messages; None with one queue for each message
        self._further = further
        self._tags: dict[str, int] = {}
        self._pending: deque[_Message | _Written] = deque()
        #: topics that were deleted while messages waited: where the log ended then, and a queue that they had
        self._deleted: dict[str, tuple[int, ConsumeQueue]] = {}
        #: how often a queue was reset
        self.renewals = 0
        #: the record for which a queue was reset last, since :meth:`begin_at`; -1 for none
        self.renewed_at = -1
        #: messages that were dispatched, and bytes of their records
        self.messages = self.message_bytes = 0
        #: everything before is dispatched
        self.dispatched = 0
        #: store time of the last message that was
        self.store_timestamp = 0
        #: the last record: its offset (-1 for none) and size
        self.last_phy = -1
        self.last_size = 0
        self.fills_gaps = True
        #: where damaged bytes stall the dispatch of a slave; None when nothing does
        self.stalled_at: int | None = None
        self._scanner = LogScanner(log, DispatchPolicy())
        #: how often a bug cost a message its unit or its keys, or a listener a message
        self.failures = 0
        #: damaged places that were skipped: (offset, offset of the next intact record)
        self.damage: list[tuple[int, int]] = []
        self.watches: list[Watch] = []
        #: a listener is being called
        self._is_busy = False
        #: dispatches ordinary records of the log in a row; None where it is not compiled
        self.walk: Walk | None = None if _compiled is None or further is not None else self._walk

    def begin_at(self, phy_offset: int, last: LastRecord | None = None) -> None:
        """Go on from an offset that recovery found; ``last`` is the record in front of it, None when it is known."""
        if last is not None:
            self.last_phy, self.last_size, self.store_timestamp = last
        self.dispatched = phy_offset
        self.renewed_at = -1
        self._pending.clear()
        self._deleted.clear()
        self._stall(DispatchPolicy())

    # ---- messages in memory ----

    def remember(
        self,
        phy_offset: int,
        size: int,
        queue: ConsumeQueue,
        queue_offset: int,
        sys_flag: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Keep a pending message until :meth:`run` may dispatch it; beyond MAX_PENDING it is read from the log."""
        if len(self._pending) < MAX_PENDING:
            pending = _Message(phy_offset, size, queue, queue_offset, sys_flag, store_timestamp, properties)
            self._pending.append(pending)

    def remember_many(self, phy_offset: int, units: Units, keys: bytes, last: LastRecord) -> None:
        """Keep ordinary messages that were written together, and number them; as :meth:`remember` otherwise."""
        numbers = []
        for queue, more, _ in units:
            numbers.append(queue.next)
            queue.next += len(more) // CQ_UNIT_BYTES
        if len(self._pending) < MAX_PENDING:
            size = last[0] + last[1] - phy_offset
            self._pending.append(_Written(phy_offset, size, units, numbers, keys, last))

    def appended(
        self,
        phy_offset: int,
        size: int,
        queue: ConsumeQueue,
        queue_offset: int,
        sys_flag: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Dispatch a message that was just appended, behind all before it: a listener may put messages itself."""
        if self._is_busy:
            self.remember(phy_offset, size, queue, queue_offset, sys_flag, store_timestamp, properties)
        elif phy_offset >= self.dispatched:
            self._is_busy = True
            try:
                self.message(phy_offset, size, queue, queue_offset, sys_flag, store_timestamp, properties)
            finally:
                self._is_busy = False
            while self._pending and self.dispatched < self._commit_log.end:
                self.run(self._commit_log.end)

    def is_at(self, phy_offset: int) -> bool:
        """True when a message at ``phy_offset`` can be dispatched now, by :meth:`appended_many`."""
        return self.dispatched == phy_offset and not self._is_busy

    def appended_many(self, units: Units, keys: bytes, last: LastRecord) -> None:
        """Dispatch ordinary messages that were just appended at :attr:`dispatched`; see :meth:`extend`."""
        self.extend(units, keys, last)
        for watch in self.watches:
            wanted = watch.queues
            for queue, _, _ in units:
                # Watch.wants, without a call for each message
                if watch.topic in (None, queue.topic) if wanted is None else queue.key in wanted:
                    self._notify_busy(units)
                    return

    def _notify_busy(self, units: Units) -> None:
        """Call the listeners, and dispatch what they put meanwhile."""
        self._is_busy = True
        try:
            self._notify(units)
        finally:
            self._is_busy = False
        while self._pending and self.dispatched < self._commit_log.end:
            self.run(self._commit_log.end)

    def extend(self, units: Units, keys: bytes, last: LastRecord) -> None:
        """
        Add messages to queues that they continue, and their keys to the index.

        ``keys`` are the entries of all messages as :meth:`Index.extend` takes them, ``last`` is the record behind which
        :attr:`dispatched` is then.
        """
        for queue, more, max_phy in units:
            self.messages += len(more) // CQ_UNIT_BYTES
            try:
                queue.extend(more, max_phy)
                if not queue.dirty:
                    self._queues.touched(queue)
            except Exception:  # noqa: BLE001
                self._failed(f"messages for queue {queue.topic}-{queue.queue_id}", last[0])
        if self._index is not None and keys:
            try:
                self._index.extend(keys)
            except _RAISED:
                raise
            except Exception:  # noqa: BLE001
                self._failed("keys of messages", last[0])
        self.last_phy, self.last_size, self.store_timestamp = last
        end = self.last_phy + self.last_size
        self.message_bytes += end - self.dispatched
        self.dispatched = end

    def _notify(self, units: Units) -> None:
        """Call the listeners for messages that were added by :meth:`extend`."""
        for watch in self.watches:
            if watch.together is not None:
                try:
                    watch.together(units)
                except _RAISED:
                    raise
                except Exception:  # noqa: BLE001
                    self._failed("a listener for messages that were added together", self.last_phy)
                continue
            for queue, more, _ in units:
                if watch.wants(queue):
                    for number, code in numbered(queue, more):
                        self._call(watch, queue, number, code)

    def _walk(self, data: bytes, position: int, base: int, check_crc: bool) -> int:
        """
        Dispatch ordinary records from ``data[position]`` on, which lies at ``base`` of the log; return where it stops.

        It does what :meth:`frame` does, which takes the record at which it stops.
        """
        try:
            found = _compiled.walk_records(data, position, base, check_crc, self._index is not None, self.queue_for)
        except _RAISED:
            raise
        except Exception:  # noqa: BLE001
            self._failed("records from here on are taken one by one", base + position)
            return position
        if found is None:
            return position
        stop, units, keys, *last = found
        self.extend(units, keys, last)
        self._notify(units)
        return int(stop)

    def message(
        self,
        phy_offset: int,
        size: int,
        queue: ConsumeQueue,
        queue_offset: int,
        sys_flag: int,
        store_timestamp: int,
        properties: str,
    ) -> None:
        """Dispatch one message; its place must be :attr:`dispatched`, or behind a BLANK from there."""
        transaction = sys_flag & TRANSACTION_MASK
        code = 0
        is_new = False
        if transaction == 0 or transaction == TRANSACTION_COMMIT:
            try:
                code = self._tags_code(queue.topic, store_timestamp, properties)
                # The queue is spelled out for the usual case; this runs once a message.
                is_new = (
                    queue.append(queue_offset, phy_offset, size, code, store_timestamp)
                    if queue_offset == queue.end
                    else self._append(queue, queue_offset, phy_offset, size, code, store_timestamp)
                )
                if is_new and not queue.dirty:
                    self._queues.touched(queue)
            except _RAISED:
                raise
            except Exception:  # noqa: BLE001
                self._failed(f"message {queue_offset} of queue {queue.topic}-{queue.queue_id}", phy_offset)
        if self._index is not None and transaction != TRANSACTION_ROLLBACK:
            try:
                self._index.add(
                    queue,
                    find_marked(properties, _UNIQ_KEY),
                    find_marked(properties, _KEYS),
                    phy_offset,
                    store_timestamp,
                )
            except _RAISED:
                raise
            except Exception:  # noqa: BLE001
                self._failed(f"the keys of message {queue_offset} of {queue.topic}-{queue.queue_id}", phy_offset)
        self.last_phy = phy_offset
        self.last_size = size
        self.store_timestamp = store_timestamp
        self.dispatched = phy_offset + size
        self.messages += 1
        self.message_bytes += size
        if is_new:
            self._tell(queue, queue.end, code)
        if self._further is not None and transaction in (0, TRANSACTION_COMMIT):
            try:
                for other, number in self._further.of(properties, queue.queue_id):
                    if self._append(other, number, phy_offset, size, code, store_timestamp):
                        self._queues.touched(other)
                        self._tell(other, other.end, code)
            except _RAISED:
                raise
            except Exception:  # noqa: BLE001
                self._failed(f"further queues of message {queue_offset} of {queue.topic}-{queue.queue_id}", phy_offset)

    def _tell(self, queue: ConsumeQueue, end: int, code: int) -> None:
        for watch in self.watches:
            if watch.wants(queue):
                self._call(watch, queue, end, code)

    def _call(self, watch: Watch, queue: ConsumeQueue, end: int, code: int) -> None:
        try:
            watch.callback(queue.topic, queue.queue_id, end, code)
        except _RAISED:
            raise
        except Exception:  # noqa: BLE001
            self._failed(f"a listener for message {end - 1} of queue {queue.topic}-{queue.queue_id}", self.last_phy)

    def _failed(self, what: str, phy_offset: int) -> None:
        """Count the exception that is being handled, and log the 1st, 2nd, 4th, 8th … with its traceback."""
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:
            self._log.failure(
                "dispatch of the record at {phy_offset} failed: {what}; the dispatch goes on, failures so far: {count}",
                Failure(),
                phy_offset=phy_offset,
                what=what,
                count=self.failures,
            )

    def _tags_code(self, topic: str, store_timestamp: int, properties: str) -> int:
        tags = find_marked(properties, _TAGS)
        if topic == SCHEDULE_TOPIC:
            delivery = self._delivery_time(store_timestamp, properties)
            if delivery is not None:
                return delivery
        if tags is None:
            return 0
        code = self._tags.get(tags)
        if code is None:
            if len(self._tags) >= MAX_TAGS:
                self._tags.clear()
            code = self._tags[tags] = tags_code(tags)
        return code

    def _delivery_time(self, store_timestamp: int, properties: str) -> int | None:
        """Return when a parked message is due.  Java: ScheduleMessageService#computeDeliverTimestamp"""
        text = find_marked(properties, _DELAY)
        if text is None or not text.isdigit() or int(text) == 0:
            return None
        level = min(int(text), len(self._delays))
        return store_timestamp + (self._delays[level - 1] if level else 1000)

    def _append(
        self, queue: ConsumeQueue, queue_offset: int, phy_offset: int, size: int, code: int, store_timestamp: int
    ) -> bool:
        """Append a unit that may be there already, begin a new life of its queue, or leave a gap."""
        if queue_offset == 0 and queue.end and phy_offset >= queue.max_phy:
            # Only 0: no CRC covers the number, and a flipped bit in another must not roll the queue back.
            self._reset(queue, 0, phy_offset, "its topic was deleted and created again")
        elif queue_offset < queue.end and queue.max_phy <= self._commit_log.min_offset <= phy_offset:
            # None of its messages is left, but the log has one with such a number: a power failure tore its files.
            self._reset(queue, queue_offset, phy_offset, "its units are of messages that are gone")
        if not self.fills_gaps and queue_offset and not queue.end:
            # Either the log begins within the queue, or the queue's files are missing; only the whole log shows which.
            raise QueueGap(queue, queue_offset)
        try:
            return queue.append(queue_offset, phy_offset, size, code, store_timestamp)
        except QueueGap:
            if not self.fills_gaps:
                raise
        if queue.max_phy <= self._commit_log.min_offset:
            # What is missing has gone from the log too. Deleted files can come back with a power failure.
            self._reset(queue, queue_offset, phy_offset, "all its messages are gone from the commit log")
            return queue.append(queue_offset, phy_offset, size, code, store_timestamp)
        first = queue.end
        filled = queue.fill_gap(queue_offset, phy_offset, size, code)
        self._log.error(
            "queue {topic}-{queue_id}: the commit log has no messages with numbers {first} to {last}; {what}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            first=first,
            last=queue_offset - 1,
            phy_offset=phy_offset,
            what="consumers get the next message in their place" if filled else "too many to fill, the queue ends here",
        )
        return filled and queue.append(queue_offset, phy_offset, size, code, store_timestamp)

    def _reset(self, queue: ConsumeQueue, queue_offset: int, phy_offset: int, why: str) -> None:
        end = queue.end
        queue.begin_anew()
        self.renewals += 1
        self.renewed_at = phy_offset
        self._log.warn(
            "queue {topic}-{queue_id} reset from its end {end} to message {queue_offset} at {phy_offset}: {why}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            end=end,
            queue_offset=queue_offset,
            phy_offset=phy_offset,
            why=why,
        )

    def forget(self, topic: str) -> None:
        """
        Drop pending messages of a topic that is about to be deleted.

        They are in the log, and will be read there: only the index takes them then, as it has taken those before.
        """
        kept = [pending for pending in self._pending if not pending.has(topic)]
        self._pending.clear()
        self._pending.extend(kept)
        end = self._commit_log.end
        queue = next((queue for queue in self._queues if queue.topic == topic), None)
        if queue is not None and self.dispatched < end:
            self._deleted[topic] = end, queue

    @property
    def passes_deleted(self) -> bool:
        """True while messages of deleted topics may wait: a start from :attr:`dispatched` would bring them back."""
        return bool(self._deleted)

    def _deleted_queue(self, topic: str, phy_offset: int) -> ConsumeQueue | None:
        """Return a queue that the topic of a record had, if it was deleted after the record was appended, else None."""
        until, queue = self._deleted.get(topic, (0, None))
        return queue if phy_offset < until else None

    # ---- records of the log ----

    def frame(self, phy_offset: int, frame: Frame) -> None:
        """Dispatch a record that was read from the log."""
        try:
            self._dispatch_frame(phy_offset, frame)
        except _RAISED:
            raise
        except Exception:  # noqa: BLE001
            self._failed("it could not be taken from the log", phy_offset)
            self.dispatched = phy_offset + frame.size

    def _dispatch_frame(self, phy_offset: int, frame: Frame) -> None:
        properties = frame.properties.decode("utf-8", "replace")
        if is_storable_topic(frame.topic) and frame.queue_id >= 0 and frame.queue_offset >= 0:
            sys_flag = frame.sys_flag
            queue = self._deleted_queue(frame.topic, phy_offset) if self._deleted else None
            if queue is None:
                queue = self._queues.make(frame.topic, frame.queue_id)
            elif sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
                # As a prepared message: indexed, and in no queue.
                sys_flag = sys_flag & ~TRANSACTION_MASK | TRANSACTION_PREPARED
            self.message(
                phy_offset,
                frame.size,
                queue,
                frame.queue_offset,
                sys_flag,
                frame.store_timestamp,
                properties,
            )
            return
        self._log.error(
            "record at {phy_offset} not dispatched: topic {topic!r} and queue {queue_id} cannot be file names",
            phy_offset=phy_offset,
            topic=frame.topic,
            queue_id=frame.queue_id,
        )
        self.dispatched = phy_offset + frame.size

    def queue_for(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of an ordinary record; None for a topic that cannot be a folder or needs a closer look."""
        if topic == SCHEDULE_TOPIC or not is_storable_topic(topic) or self._deleted_queue(topic, self.dispatched):
            return None
        return self._queues.make(topic, queue_id)

    def run(self, until: int) -> None:
        """Dispatch everything that ends at or before ``until``."""
        if self._is_busy:
            return  # the outer call dispatches everything
        self._is_busy = True
        try:
            self._run(until)
        finally:
            self._is_busy = False
        if self._deleted:
            self._deleted = {topic: gone for topic, gone in self._deleted.items() if gone[0] > self.dispatched}

    def _run(self, until: int) -> None:
        pending = self._pending
        while pending:
            phy_offset, size = pending[0][:2]
            if phy_offset != self.dispatched:
                # A BLANK lies in front of it, or messages that were not kept.
                self._run_log(min(phy_offset, until))
            if phy_offset != self.dispatched or phy_offset + size > until:
                return
            first = pending.popleft()
            if isinstance(first, _Message):
                self.message(*first)
            elif first.continues():
                self.extend(first.units, first.keys, first.last)
                self._notify(first.units)
            # else they are read from the log
        self._run_log(until)

    def _run_log(self, until: int) -> None:
        for at, found in self._scanner.records(self.dispatched, until, self.walk):
            if isinstance(found, Frame):
                self.frame(at, found)
            elif not self._skip(found):
                return
        # Only a BLANK can be left.
        if self.dispatched < until and until % self._commit_log.segment_bytes == 0:
            self.dispatched = until

    def _skip(self, damage: Damage) -> bool:
        """Go on with the next intact record behind a damaged place; False when there is none (yet)."""
        at = damage.start
        if self.stalled_at != at:
            self._log.error(
                "commit log damaged at {phy_offset}: {flaw}; searching for the next intact record",
                phy_offset=at,
                flaw=damage.flaw.value,
            )
        if not damage.resumes:
            # A record that reaches beyond the end is found from its start next time.
            self._stall(DispatchPolicy(stalled_at=at, searched_to=max(at + 1, damage.end - (8 << 20))))
            return False
        self.note_damage(at, damage.end)
        self.dispatched = damage.end
        self._stall(DispatchPolicy())
        return True

    def _stall(self, policy: DispatchPolicy) -> None:
        """Note where damage stalls the dispatch (None: nowhere), and where the next search behind it begins."""
        self.stalled_at = policy.stalled_at
        self._scanner = LogScanner(self._commit_log, policy)

    def note_damage(self, at: int, found: int) -> None:
        """Report skipped bytes; the first hundred places are kept for the operator."""
        self._log.error(
            "skipped damaged bytes {first} to {last} of the commit log; the next intact record is at {next_phy_offset}",
            first=at,
            last=found - 1,
            next_phy_offset=found,
        )
        if len(self.damage) < 100:
            self.damage.append((at, found))
