"""
Delayed messages: stored in SCHEDULE_TOPIC_XXXX, one queue for each level, and delivered from there when they are due.

Java: ScheduleMessageService, CommitLog#asyncPutMessage
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.stats import BrokerStats
from rmq.broker.tables import next_version
from rmq.broker.topics import TRANS_HALF_TOPIC
from rmq.runtime.clock import DeadlineTimer, now_ms
from rmq.runtime.disk.files import Disk
from rmq.runtime.disk.statefile import read_state, write_state_soon
from rmq.store.appender import Host
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.dispatch import Units
from rmq.store.layout import CQ_UNIT
from rmq.store.messages import GetResult, GetStatus, Message, PutStatus
from rmq.store.store import MessageStore
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion
from rmq.wire.api.replication import AllDelayOffset
from rmq.wire.compiled import load as load_compiled
from rmq.wire.record import (
    PROPERTY_DELAY,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    SIZE_AND_MAGIC,
    Record,
    RecordError,
    decode_record,
    encode_properties,
)

FILE_NAME = "delayOffset.json"
#: delay of a retry after a failed delivery, or for a message that cannot be read yet
RETRY_MS = 100
#: a level that delivered something waits this long for what becomes due next, to deliver it together; Apache: 100 ms
GATHER_MS = 10
#: messages that are delivered in one turn of the reactor, of one level, where they are written together
SLICE = 128
#: results of the store for a message that it refuses at every retry
IMPOSSIBLE = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))
#: topics of which no delayed message is
_NO_TARGETS = (SCHEDULE_TOPIC, TRANS_HALF_TOPIC)
#: records keep their own
_NO_HOST: Host = (b"", 0)

_compiled: Any = load_compiled("rmq.store._record")


def park(message: Message, pairs: Mapping[str, str], level: int, max_level: int) -> Message:
    """
    Return ``message`` as it is stored until it is due.

    ``pairs`` are its properties. A level beyond the last one means the last one, and is stored as the last one.
    Java: CommitLog#asyncPutMessage
    """
    if level > max_level:
        level = max_level
        pairs = {**pairs, PROPERTY_DELAY: str(level)}
    pairs = {**pairs, PROPERTY_REAL_TOPIC: message.topic, PROPERTY_REAL_QUEUE_ID: str(message.queue_id)}
    return attrs.evolve(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=encode_properties(pairs),
    )


def restored(record: Record) -> Message | None:
    """
    Return the message to deliver for a stored delayed one; None for one that must not be delivered.

    Its properties stay as they were stored, DELAY included, as Apache leaves them.
    Java: ScheduleMessageService#messageTimeup
    """
    pairs = record.property_map
    topic, queue_id = pairs.get(PROPERTY_REAL_TOPIC), pairs.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or topic in _NO_TARGETS or not queue_id.isdecimal():
        return None
    return stored_again(record, topic, int(queue_id), record.properties.decode("utf-8", "replace"))


def stored_again(record: Record, topic: str, queue_id: int, properties: str) -> Message:
    """Return a stored message as it is stored in another place."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        flag=record.flag,
        properties=properties,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        wait_store_msg_ok=False,
        was_stored=True,
    )


class DueRecords:
    """
    The due records at the front of ``records``, from ``position`` on, as `MessageStore.append_many` takes them.

    It needs the compiled module. ``target(topic, queue id)`` returns the queue of a message; None for one that is not
    ordinary: the records end before that.
    """

    def __init__(
        self, records: bytes, position: int, delay_ms: int, target: Callable[[str, int], ConsumeQueue | None]
    ) -> None:
        self._records = records
        self._delay_ms = delay_ms
        self._target = target
        self.count = self.last_phy = self.last_size = 0
        self.units: Units = []
        #: where the next record begins
        self.stop = position

    def encode(
        self, phy_offset: int, room: int, store_ms: int, _store_host: Host, /
    ) -> tuple[bytes, Units, bytes] | None:
        """See `rmq.store._record.SendBatch.encode`; the records keep their store hosts."""
        found = _compiled.restore_records(
            self._records, self.stop, self._delay_ms, phy_offset, room, store_ms, self._target
        )
        if found is None:
            return None
        self.count, self.stop, self.last_phy, self.last_size, records, self.units, keys = found
        return records, self.units, keys


class Delays:
    """
    Deliver delayed messages in the order of each level, at least once.

    A turn of the reactor delivers a slice of one level, ordinary messages of one pull in one write; levels that are due
    take turns. So the other work of the broker goes on beside a large backlog, which still takes all the time that is
    left.
    :meth:`_deliver_one` is the reference of what is written together.

    One that can never be delivered is skipped and logged as an error with its position: Apache retries it for
    ever, and all later messages of its level wait, whatever their topic.

    The offset of each level is saved every ``flushDelayOffsetInterval``. After a crash, messages delivered since the
    last save are delivered again.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        directory: str,
        clock: IReactorTime,
        store: MessageStore,
        levels_ms: Sequence[int],
        stats: BrokerStats,
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._disk = disk
        self._clock = clock
        self._store = store
        self._levels_ms = levels_ms
        #: counts deliveries; None with enableScheduleMessageStats=false
        self._stats = stats if store.config.enable_schedule_message_stats else None
        self._version = DataVersion(counter=0, timestamp=now_ms(clock))
        #: level -> the next queue offset to deliver
        self._offsets: dict[int, int] = {}
        self._unsaved = False
        #: what the file holds; slaves get this: their logs may lack what was delivered just now
        self.written = AllDelayOffset(data_version=self._version)
        #: held while the file is being written, or waits for the log
        self._writing = DeferredLock()
        #: level -> when to look at its next message, in seconds of the clock
        self._due_s: dict[int, float] = {}
        self._timer = DeadlineTimer(clock, lambda: min(self._due_s.values(), default=None), self._run)
        self._syncs = store.config.is_sync_flush
        self._writes_many = _compiled is not None and not store.config.enable_multi_dispatch
        #: messages of one level that a turn of the reactor delivers; one by one they take ten times as long
        self.at_once = SLICE if self._writes_many else SLICE // 4
        self._delivering: set[int] = set()
        #: delayed messages that were skipped since the start
        self.skipped = 0
        self._running = False

    def load(self) -> None:
        """Read delayOffset.json, ours or Apache's; StateFileError when it is there and cannot be read."""
        found = read_state(self._disk, self.path, lambda data: fastjson.decode(data, AllDelayOffset))
        if found is not None:
            self._offsets = dict(found.offset_table)
            self._version = found.data_version or self._version
            self.written = self.table()

    def table(self) -> AllDelayOffset:
        """The offsets as of now; 4.9 ignores the version, 5.x slaves need it."""
        return AllDelayOffset(data_version=self._version, offset_table=dict(sorted(self._offsets.items())))

    async def persist(self) -> None:
        """
        Write the file if anything was delivered since, as soon as the log has been synced as far as it goes now.

        The reactor goes on meanwhile. A power failure that takes a delivered message must not find an offset behind it:
        it would be lost. DiskError when that fails, and the next call tries again.
        """
        await self._writing.acquire()
        try:
            if self._unsaved:
                table = self.table()
                if await self._store.sync_until(self._store.end_offset):
                    await self._write(table)
        finally:
            self._writing.release()

    async def _write(self, table: AllDelayOffset) -> None:
        table.data_version = self._version = next_version(self._version, now_ms(self._clock))
        await write_state_soon(self._disk, self.path, fastjson.encode(table, quote_int_keys=True))
        self.written = table
        self._unsaved = table.offset_table != self._offsets

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return, by level that was ever used, the next offset to deliver and the end of its queue."""
        return {
            level: (offset, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in sorted(self._offsets.items())
        }

    def start(self) -> None:
        """Start deliveries; call it on a master only, after the store has started."""
        self._running = True
        self._due_s = dict.fromkeys(range(1, len(self._levels_ms) + 1), self._clock.seconds())
        self._timer.arm()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._running = False
        self._due_s.clear()
        self._timer.cancel()

    def arrived(self, topic: str, queue_id: int, end: int = 0, tags_code: int = 0) -> None:
        """Note a readable message; a level is checked when its first message is due."""
        level = queue_id + 1
        if topic != SCHEDULE_TOPIC or not self._running or level in self._due_s or level in self._delivering:
            return
        if level <= len(self._levels_ms):
            self._due_s[level] = self._after_ms(self._levels_ms[level - 1])
            self._timer.arm()

    def _after_ms(self, delay_ms: int) -> float:
        return self._clock.seconds() + delay_ms / 1000

    def _run(self, now_s: float) -> None:
        """Deliver messages of the level that has been due for longest; the other levels follow in the next turns."""
        # Of levels that are due at the same time it is the one that has waited for longest: min returns the first.
        level = min(self._due_s, key=self._due_s.__getitem__, default=None)
        if level is not None and self._due_s[level] <= now_s:
            del self._due_s[level]
            self._delivering.add(level)
            Deferred.fromCoroutine(self._deliver(level)).addErrback(self._broken, level)

    def _broken(self, failure: Failure, level: int) -> None:
        self._log.failure("delivery of delay level {delay_level} failed; retry in 10 s", failure, delay_level=level)
        self._again(level, self._after_ms(10_000))

    def _again(self, level: int, at_s: float | None) -> None:
        """Check a level again at ``at_s``; None: when a message arrives."""
        self._delivering.discard(level)
        if self._running and at_s is not None:
            self._due_s[level] = at_s
            self._timer.arm()

    async def _deliver(self, level: int) -> None:
        """Deliver the due messages of one level, a slice at most."""
        offset = first = self._offsets.get(level, 0)
        next_s: float | None = None
        while self._running and next_s is None and offset < first + self.at_once:
            loading = self._store.preloading(SCHEDULE_TOPIC, level - 1, offset, self.at_once)
            if loading is not None:
                await loading
                if not self._running:
                    return
            # a pull ends at maxTransferCountOnMessageInMemory, 32
            result = self._store.pull(SCHEDULE_TOPIC, level - 1, offset, first + self.at_once - offset, None)
            if result.status is not GetStatus.FOUND:
                self._again(level, self._after_nothing(level, offset, result))
                return
            next_s = await self._deliver_records(level, offset, result.messages[0])
            if next_s is None:
                self._advance(level, result.next_begin_offset)
            offset = self._offsets.get(level, 0)
        if next_s is None:
            next_s = self._clock.seconds()
        elif offset > first:
            next_s = max(next_s, self._after_ms(GATHER_MS))
        self._again(level, next_s)

    async def _deliver_records(self, level: int, offset: int, records: bytes) -> float | None:
        """Deliver records that lie one behind the other; return when to retry if one is not due, or delivery failed."""
        position = 0
        while position < len(records):
            if self._writes_many:
                due = DueRecords(records, position, self._levels_ms[level - 1], self._target)
                if self._store.append_many(due, _NO_HOST):
                    for queue, units, _ in due.units:
                        sizes = [size for _, size, _ in CQ_UNIT.iter_unpack(units)]
                        self._count(queue.topic, len(sizes), sum(sizes))
                    offset, position = offset + due.count, due.stop
                    self._advance(level, offset)
                    continue
            size, _ = SIZE_AND_MAGIC.unpack_from(records, position)
            next_s = await self._deliver_one(level, offset, records[position : position + size])
            if next_s is not None:
                return next_s
            offset, position = offset + 1, position + size
        return None

    def _target(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of an ordinary target; None for any other."""
        queue = None if topic in _NO_TARGETS else self._store.ordinary_queue(topic, queue_id)
        return queue if queue is not None and (self._syncs or queue.end == queue.next) else None

    async def _deliver_one(self, level: int, offset: int, data: bytes) -> float | None:
        """Deliver a message if it is due; if it is not, or delivery failed, return when to retry."""
        try:
            record = decode_record(data)
        except RecordError as error:
            self._skip(level, offset, str(error))
            return None
        now = now_ms(self._clock)
        delay_ms = self._levels_ms[level - 1]
        deliver_at_ms = record.store_timestamp + delay_ms
        if now < deliver_at_ms <= now + delay_ms:
            return self._after_ms(deliver_at_ms - now)
        # A time beyond that means that the clock went back, or that the levels were changed.
        message, why = restored(record), ""
        if message is None:
            why = f"it has no valid {PROPERTY_REAL_TOPIC} and {PROPERTY_REAL_QUEUE_ID}"
        else:
            result = self._store.put(message)
            if isinstance(result, Deferred):
                result = await result
            if result.status in IMPOSSIBLE:
                why = (
                    f"{result.status.name}; bytes of its topic: {len(message.topic.encode())}, "
                    f"body: {len(message.body)}, properties: {len(record.properties)}"
                )
            elif not result.ok:
                self._log.warn(
                    "delayed message {msg_id} was not delivered: {status}; retry in {retry_ms} ms",
                    msg_id=record.offset_msg_id,
                    status=result.status.name,
                    retry_ms=RETRY_MS,
                )
                return self._after_ms(RETRY_MS)
            else:
                self._count(message.topic, 1, result.size)
        if why:
            topic = record.property_map.get(PROPERTY_REAL_TOPIC, "")
            self._skip(level, offset, why, msg_id=record.offset_msg_id, topic=topic)
        else:
            self._advance(level, offset + 1)
        return None if self._running else self._clock.seconds()

    def _count(self, topic: str, count: int, size_bytes: int) -> None:
        """Count delivered messages.  Java: ScheduleMessageService.PutResultProcess#onSuccess"""
        if self._stats is not None:
            self._stats.put(topic, count, size_bytes)

    def _skip(self, level: int, offset: int, why: str, *, msg_id: str = "", topic: str = "") -> None:
        """Skip a message that cannot be delivered; it stays in the log until its file expires."""
        self._log.error(
            "delay level {delay_level}, queue offset {offset}: message {msg_id} for topic {topic} cannot be delivered, "
            "skipped: {why}",
            delay_level=level,
            offset=offset,
            msg_id=msg_id or "without id",
            topic=topic or "unknown",
            why=why,
        )
        self.skipped += 1
        self._advance(level, offset + 1)

    def _after_nothing(self, level: int, offset: int, result: GetResult) -> float | None:
        """Correct an offset that the queue does not have; return when to check again, None: when a message arrives."""
        status = result.status
        if status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL):
            if result.next_begin_offset > offset:
                self._advance(level, result.next_begin_offset)
                return self._clock.seconds()
            return self._after_ms(RETRY_MS)
        if status is GetStatus.OFFSET_OVERFLOW_BADLY:
            self._log.warn(
                "delay level {delay_level}: offset {offset} is beyond the end of its queue, continuing at {end}",
                delay_level=level,
                offset=offset,
                end=result.max_offset,
            )
            self._advance(level, result.max_offset)
        return None

    def _advance(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._unsaved = True
