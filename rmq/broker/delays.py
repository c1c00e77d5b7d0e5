"""
Delayed messages: parked in SCHEDULE_TOPIC_XXXX, one queue a level, and delivered from there when their time has come.

Java: ScheduleMessageService, CommitLog#asyncPutMessage
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker import properties
from rmq.broker.tables import next_version
from rmq.broker.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from rmq.runtime.clock import now_ms, steady_ms
from rmq.runtime.disk import Disk
from rmq.runtime.statefile import read_state, write_state
from rmq.store.messages import GetResult, GetStatus, Message, PutResult, PutStatus
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion
from rmq.wire.api.replication import AllDelayOffset
from rmq.wire.record import Record, RecordError, decode_record, encode_properties

FILE_NAME = "delayOffset.json"
#: a delivery that did not work, or a message that cannot be read yet, is tried again after this
RETRY_MS = 100
#: messages of one level that are delivered before other work gets its turn
SLICE = 32
#: so the store answers to a message that it will not take however often it is put again
IMPOSSIBLE = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


def park(message: Message, pairs: Mapping[str, str], level: int, max_level: int) -> Message:
    """
    Return ``message`` as it is stored until its time has come.

    ``pairs`` are its properties. A level beyond the last one means the last one.
    """
    pairs = {**pairs, properties.REAL_TOPIC: message.topic, properties.REAL_QUEUE_ID: str(message.queue_id)}
    return attrs.evolve(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=min(level, max_level) - 1,
        properties=encode_properties(pairs),
    )


def restored(record: Record) -> Message | None:
    """
    Return the message that a parked one becomes; None for one that must not be delivered.

    Its properties stay as they were stored, DELAY included, as Apache leaves them.
    Java: ScheduleMessageService#messageTimeup
    """
    pairs = record.property_map
    topic, queue_id = pairs.get(properties.REAL_TOPIC), pairs.get(properties.REAL_QUEUE_ID, "")
    if not topic or topic in (SCHEDULE_TOPIC, TRANS_HALF_TOPIC) or not queue_id.isdecimal():
        return None
    return Message(
        topic=topic,
        queue_id=int(queue_id),
        body=record.body,
        flag=record.flag,
        properties=record.properties.decode("utf-8", "replace"),
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        wait_store_msg_ok=False,
        was_stored=True,
    )


class DelayStore(Protocol):
    """What delivery needs of the store."""

    def get(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> GetResult: ...

    def put(self, message: Message) -> PutResult | Deferred[PutResult]: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


class Delays:
    """
    Deliver parked messages in the order of each level, at least once.

    One that can never be delivered is passed over, with an error that says where it lies: Apache tries it again for
    ever, and everything behind it in its level waits, whatever its topic.

    How far each level has got is written every ``flushDelayOffsetInterval``: what was delivered after the last writing
    is delivered again after a crash.
    """

    _log = Logger()

    def __init__(
        self, disk: Disk, directory: str, clock: IReactorTime, store: DelayStore, levels_ms: Sequence[int]
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._disk = disk
        self._clock = clock
        self._store = store
        self._levels_ms = levels_ms
        self._version = DataVersion(counter=0, timestamp=now_ms(clock))
        #: level -> the next queue offset to deliver
        self._offsets: dict[int, int] = {}
        self._unsaved = False
        #: level -> when to look at its next message, steady ms
        self._due_ms: dict[int, int] = {}
        self._delivering: set[int] = set()
        #: parked messages that could not be delivered, since the start
        self.passed_over = 0
        self._running = False
        self._call: IDelayedCall | None = None

    def load(self) -> None:
        """Read delayOffset.json, ours or Apache's; StateFileError when it is there and cannot be read."""
        found = read_state(self._disk, self.path, lambda data: fastjson.decode(data, AllDelayOffset))
        if found is not None:
            self._offsets = dict(found.offset_table)
            self._version = found.data_version or self._version

    def table(self) -> AllDelayOffset:
        """The offsets as of now; 4.9 ignores the version, 5.x slaves need it."""
        return AllDelayOffset(data_version=self._version, offset_table=dict(sorted(self._offsets.items())))

    def persist(self) -> None:
        """Write the file if anything was delivered since; DiskError when that fails, and the next call tries again."""
        if not self._unsaved:
            return
        self._version = next_version(self._version, now_ms(self._clock))
        write_state(self._disk, self.path, fastjson.encode(self.table(), quote_int_keys=True))
        self._unsaved = False

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return, by level that was ever used, the next offset to deliver and the end of its queue."""
        return {
            level: (offset, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in sorted(self._offsets.items())
        }

    def start(self) -> None:
        """Begin to deliver; on a master only, and once the store has started."""
        self._running = True
        now = steady_ms(self._clock)
        for level in range(1, len(self._levels_ms) + 1):
            self._due_ms[level] = now
        self._arm()

    def stop(self) -> None:
        """Deliver nothing more."""
        self._running = False
        self._due_ms.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def arrived(self, topic: str, queue_id: int, end: int = 0, tags_code: int = 0) -> None:
        """A message can be read; parked ones are looked at when the first of their level is due."""
        level = queue_id + 1
        if topic != SCHEDULE_TOPIC or not self._running or level in self._due_ms or level in self._delivering:
            return
        if level <= len(self._levels_ms):
            self._due_ms[level] = steady_ms(self._clock) + self._levels_ms[level - 1]
            self._arm()

    def _arm(self) -> None:
        """Have one timer stand at the earliest time."""
        if not self._due_ms or not self._running:
            return
        wait_s = max(0.0, (min(self._due_ms.values()) - steady_ms(self._clock)) / 1000)
        if self._call is not None and self._call.active():
            if self._call.getTime() <= self._clock.seconds() + wait_s:
                return
            self._call.cancel()
        self._call = self._clock.callLater(wait_s, self._run)

    def _run(self) -> None:
        self._call = None
        now = steady_ms(self._clock)
        for level in sorted(level for level, due_ms in self._due_ms.items() if due_ms <= now):
            del self._due_ms[level]
            self._delivering.add(level)
            Deferred.fromCoroutine(self._deliver(level)).addErrback(self._broken, level)
        self._arm()

    def _broken(self, failure: Failure, level: int) -> None:
        self._log.failure(
            "delivery of delay level {delay_level} failed; it goes on in 10 s", failure, delay_level=level
        )
        self._again(level, steady_ms(self._clock) + 10_000)

    def _again(self, level: int, at_ms: int | None) -> None:
        """Look at a level again at ``at_ms``; None: when a message arrives."""
        self._delivering.discard(level)
        if self._running and at_ms is not None:
            self._due_ms[level] = at_ms
            self._arm()

    async def _deliver(self, level: int) -> None:
        """Deliver what is due of one level, SLICE messages at most."""
        offset = self._offsets.get(level, 0)
        result = self._store.get(SCHEDULE_TOPIC, level - 1, offset, SLICE)
        if result.status is not GetStatus.FOUND:
            self._again(level, self._after_nothing(level, offset, result))
            return
        next_ms: int | None = steady_ms(self._clock)
        for position, data in enumerate(result.messages):
            next_ms = await self._deliver_one(level, offset + position, data)
            if next_ms is not None:
                break
        else:
            self._advance(level, result.next_begin_offset)
            next_ms = steady_ms(self._clock)
        self._again(level, next_ms)

    async def _deliver_one(self, level: int, offset: int, data: bytes) -> int | None:
        """Deliver a message if it is due; else, or if that failed, return when to try again."""
        try:
            record = decode_record(data)
        except RecordError as error:
            self._pass_over(level, offset, str(error))
            return None
        now = now_ms(self._clock)
        delay_ms = self._levels_ms[level - 1]
        deliver_at_ms = record.store_timestamp + delay_ms
        if now < deliver_at_ms <= now + delay_ms:
            return steady_ms(self._clock) + deliver_at_ms - now
        # A time beyond that means that the clock went back, or that the levels were changed.
        message, why = restored(record), ""
        if message is None:
            why = f"it has no valid {properties.REAL_TOPIC} and {properties.REAL_QUEUE_ID}"
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
                    "parked message {msg_id} was not delivered: {status}; again in {retry_ms} ms",
                    msg_id=record.offset_msg_id,
                    status=result.status.name,
                    retry_ms=RETRY_MS,
                )
                return steady_ms(self._clock) + RETRY_MS
        if why:
            topic = record.property_map.get(properties.REAL_TOPIC, "")
            self._pass_over(level, offset, why, msg_id=record.offset_msg_id, topic=topic)
        else:
            self._advance(level, offset + 1)
        return None if self._running else steady_ms(self._clock)

    def _pass_over(self, level: int, offset: int, why: str, *, msg_id: str = "", topic: str = "") -> None:
        """Go on behind a message that cannot be delivered; it stays where it is until its file expires."""
        self._log.error(
            "delay level {delay_level}, queue offset {offset}: message {msg_id} for topic {topic} cannot be delivered "
            "and is passed over: {why}",
            delay_level=level,
            offset=offset,
            msg_id=msg_id or "without id",
            topic=topic or "unknown",
            why=why,
        )
        self.passed_over += 1
        self._advance(level, offset + 1)

    def _after_nothing(self, level: int, offset: int, result: GetResult) -> int | None:
        """Correct an offset that the queue does not have; return when to look again, None for "when one arrives"."""
        status = result.status
        if status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.OFFSET_FOUND_NULL):
            if result.next_begin_offset > offset:
                self._advance(level, result.next_begin_offset)
                return steady_ms(self._clock)
            return steady_ms(self._clock) + RETRY_MS
        if status is GetStatus.OFFSET_OVERFLOW_BADLY:
            self._log.warn(
                "delay level {delay_level} was at {offset}, its queue ends at {end}",
                delay_level=level,
                offset=offset,
                end=result.max_offset,
            )
            self._advance(level, result.max_offset)
        return None

    def _advance(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._unsaved = True
