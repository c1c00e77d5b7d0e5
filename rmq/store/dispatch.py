"""
From the commit log into consume queues and index.

A master dispatches each message as it is appended, from what it has at hand. What must wait (for a sync), what a slave
received and what recovery finds is read back from the log.

Java: DefaultMessageStore.ReputMessageService, CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from twisted.logger import Logger

from rmq.store.commitlog import CommitLog
from rmq.store.consumequeue import ConsumeQueue, QueueGap
from rmq.store.index import Index
from rmq.store.messages import StoreError
from rmq.store.queues import QueueTable, is_storable_topic
from rmq.store.scan import behind_damage, find_record, scan
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
    Flaw,
    Frame,
    find_marked,
    property_mark,
    tags_code,
)

#: messages that wait for their sync and are kept at hand; beyond, they are read back from the log
MAX_PENDING = 65_536
MAX_TAGS = 4096

#: topic, queueId, new end of the queue, tagsCode
ArrivalListener = Callable[[str, int, int, int], None]
#: (topic, queueId)
Key = tuple[str, int]


class Watch:
    """Who is told of messages that can be read: of all, of those of one topic, or of queues in a live table."""

    __slots__ = ("callback", "queues", "topic")

    def __init__(self, callback: ArrivalListener, topic: str | None, queues: Mapping[Key, object] | None) -> None:
        self.callback = callback
        self.topic = topic
        self.queues = queues

    def wants(self, queue: ConsumeQueue) -> bool:
        """Tell whether a message of this queue is of interest now."""
        if self.queues is not None:
            return queue.key in self.queues
        return self.topic is None or queue.topic == self.topic


#: phyOffset, size, queue, queueOffset, sysFlag, storeTimestamp, properties
_Pending = tuple[int, int, ConsumeQueue, int, int, int, str]

#: phyOffset, size, storeTimestamp
LastRecord = tuple[int, int, int]

#: Dispatches records of a piece of the log from a position on: (piece, position, offset of the piece, check CRCs)
Walk = Callable[[bytes, int, int, bool], int]

_compiled = load_compiled("rmq.store._record")
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

    Numbers of a topic that was deleted and made again begin at 0 again, and the log has both lives of it. A queue that
    meets number 0 behind its last message drops the old life.
    """

    _log = Logger()

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: Index | None, *, delays: tuple[int, ...] = ()
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._delays = delays
        self._tags: dict[str, int] = {}
        self._pending: deque[_Pending] = deque()
        #: topics that were deleted while messages waited: where the log ended then, and a queue that they had
        self._deleted: dict[str, tuple[int, ConsumeQueue]] = {}
        #: how often a queue dropped what it had and began anew
        self.renewals = 0
        #: everything before is dispatched
        self.dispatched = 0
        #: store time of the last message that was
        self.store_timestamp = 0
        #: the last record: its offset (-1 for none) and size
        self.last_phy = -1
        self.last_size = 0
        self.fills_gaps = True
        #: where damaged bytes stop the way of a slave; None when nothing does
        self.stalled_at: int | None = None
        self._searched_to = 0
        #: damaged places that were passed over: (offset, offset of the next intact record)
        self.damage: list[tuple[int, int]] = []
        self.watches: list[Watch] = []
        #: a listener is being called
        self._is_busy = False
        #: dispatches ordinary records of the log in a row; None where it is not compiled
        self.walk: Walk | None = None if _compiled is None else _compiled.Walker(self, queues, index)

    def begin_at(self, phy_offset: int, last: LastRecord | None = None) -> None:
        """Go on from an offset that recovery found; ``last`` is the record in front of it, None when it is known."""
        if last is not None:
            self.last_phy, self.last_size, self.store_timestamp = last
        self.dispatched = phy_offset
        self._pending.clear()
        self._deleted.clear()
        self.stalled_at = None

    # ---- what the master has at hand ----

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
        """Keep a message at hand until :meth:`run` may dispatch it; too many are read from the log again."""
        if len(self._pending) < MAX_PENDING:
            self._pending.append((phy_offset, size, queue, queue_offset, sys_flag, store_timestamp, properties))

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

    def tell(self, queues: Sequence[ConsumeQueue], arrived: Sequence[tuple[int, int]]) -> None:
        """Tell of messages that were dispatched by others: their queues, new ends and tagsCodes."""
        self._is_busy = True
        try:
            for queue, (end, code) in zip(queues, arrived, strict=True):
                self._tell(queue, end, code)
        finally:
            self._is_busy = False
        while self._pending and self.dispatched < self._commit_log.end:
            self.run(self._commit_log.end)

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
            code = self._tags_code(queue.topic, store_timestamp, properties)
            # The queue is spelled out for the usual case; this runs once a message.
            is_new = (
                queue.append(queue_offset, phy_offset, size, code, store_timestamp)
                if queue_offset == queue.end
                else self._append(queue, queue_offset, phy_offset, size, code, store_timestamp)
            )
            if is_new and not queue.dirty:
                self._queues.touched(queue)
        if self._index is not None and transaction != TRANSACTION_ROLLBACK:
            self._index.add(
                queue,
                find_marked(properties, _UNIQ_KEY),
                find_marked(properties, _KEYS),
                phy_offset,
                store_timestamp,
            )
        self.last_phy = phy_offset
        self.last_size = size
        self.store_timestamp = store_timestamp
        self.dispatched = phy_offset + size
        if is_new:
            self._tell(queue, queue.end, code)

    def _tell(self, queue: ConsumeQueue, end: int, code: int) -> None:
        for watch in self.watches:
            if watch.wants(queue):
                watch.callback(queue.topic, queue.queue_id, end, code)

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
            self._begin_anew(queue, 0, phy_offset, "its topic was deleted and made again")
        elif queue_offset < queue.end and queue.max_phy <= self._commit_log.min_offset <= phy_offset:
            # None of its messages is left, yet one of the log has the number of one: a power failure tore its files.
            self._begin_anew(queue, queue_offset, phy_offset, "it gives the number of a message to one that is gone")
        if not self.fills_gaps and queue_offset and not queue.end:
            # Either the queue is as young as the log that is here, or its files are gone; only the whole log knows.
            raise QueueGap(queue, queue_offset)
        try:
            return queue.append(queue_offset, phy_offset, size, code, store_timestamp)
        except QueueGap:
            if not self.fills_gaps:
                raise
        if queue.max_phy <= self._commit_log.min_offset:
            # What is missing has gone from the log too. Deleted files can come back with a power failure.
            self._begin_anew(queue, queue_offset, phy_offset, "all that it knew has gone from the commit log")
            return queue.append(queue_offset, phy_offset, size, code, store_timestamp)
        first = queue.end
        filled = queue.fill_gap(queue_offset, phy_offset, size, code)
        self._log.error(
            "queue {topic}-{queue_id}: numbers {first} to {last} have no message in the commit log; {what}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            first=first,
            last=queue_offset - 1,
            phy_offset=phy_offset,
            what="the one behind them is shown in their place" if filled else "too many to fill, the queue stops here",
        )
        return filled and queue.append(queue_offset, phy_offset, size, code, store_timestamp)

    def _begin_anew(self, queue: ConsumeQueue, queue_offset: int, phy_offset: int, why: str) -> None:
        end = queue.end
        queue.begin_anew()
        self.renewals += 1
        self._log.warn(
            "queue {topic}-{queue_id} ended at {end} and begins anew with the message {queue_offset} at {phy_offset}: "
            "{why}",
            topic=queue.topic,
            queue_id=queue.queue_id,
            end=end,
            queue_offset=queue_offset,
            phy_offset=phy_offset,
            why=why,
        )

    def forget(self, topic: str) -> None:
        """
        Drop what waits for the queues of a topic that is about to be deleted.

        It is in the log, and will be passed there: only the index takes it then, as it has taken what was before.
        """
        kept = [pending for pending in self._pending if pending[2].topic != topic]
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
        """Return what stands for the queues of a topic that was deleted after a record was appended, else None."""
        until, queue = self._deleted.get(topic, (0, None))
        return queue if phy_offset < until else None

    # ---- what is in the log ----

    def frame(self, phy_offset: int, frame: Frame) -> None:
        """Dispatch a record that was read from the log."""
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
            "record at {phy_offset} has topic {topic!r} and queue {queue_id}, which cannot be files: not dispatched",
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
            return  # whoever is at it goes on to the end
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
            self.message(*pending.popleft())
        self._run_log(until)

    def _run_log(self, until: int) -> None:
        while self.dispatched < until:
            flaw: Flaw | None = None
            at = self.dispatched
            for at, frame in scan(self._commit_log, self.dispatched, until, check_crc=False, walk=self.walk):
                if isinstance(frame, Flaw):
                    flaw = frame
                else:
                    self.frame(at, frame)
            if flaw is None:
                self._pass_blank(until)
                return
            if flaw is Flaw.INCOMPLETE:
                return
            if not self._pass_over(at, flaw, until):
                return

    def _pass_blank(self, until: int) -> None:
        """Count a BLANK as dispatched when all before it is."""
        if self.dispatched < until and until % self._commit_log.segment_bytes == 0:
            self.dispatched = until

    def _pass_over(self, at: int, flaw: Flaw, until: int) -> bool:
        """Look for the next intact record behind a damaged place; False when there is none (yet)."""
        if self.stalled_at != at:
            self._log.error(
                "commit log damaged at {phy_offset}: {flaw}; what follows is searched for the next intact record",
                phy_offset=at,
                flaw=flaw.value,
            )
            self.stalled_at = at
            self._searched_to = behind_damage(self._commit_log, at)
        # Whatever is intact counts, also from before a step of the clock: all below the log's end is of this life.
        found = find_record(self._commit_log, self._searched_to, until)
        if found is None:
            # A record that reaches beyond `until` is met again from its start.
            self._searched_to = max(at + 1, until - (8 << 20))
            return False
        self.note_damage(at, found)
        self.dispatched = found
        self.stalled_at = None
        return True

    def note_damage(self, at: int, found: int) -> None:
        """Report bytes that are no records; the first places are kept for the operator."""
        self._log.error(
            "commit log bytes {first} to {last} are no intact records and are passed over; "
            "the record at {next_phy_offset} is intact again",
            first=at,
            last=found - 1,
            next_phy_offset=found,
        )
        if len(self.damage) < 100:
            self.damage.append((at, found))
