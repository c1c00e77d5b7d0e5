"""
Reading messages: by queue number, by time, by place and by key.

Java: DefaultMessageStore#getMessage, #queryMessage, ConsumeQueue#getOffsetInQueueByTime
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from rmq.runtime.disk.files import DiskError
from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.filtercode import PropertyFilter
from rmq.store.index import Index
from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_UNIT, CQ_UNIT_BYTES
from rmq.store.messages import GetResult, GetStatus, QueryResult
from rmq.store.queues import QueueTable
from rmq.wire.compiled import load
from rmq.wire.record import (
    BORN_HOST_V6,
    IPV6_EXTRA_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    PHY_OFFSET_AT,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    Frame,
    find_property,
    read_frame,
    split_keys,
    tags_code,
)

_I64 = struct.Struct(">q")
_I64_AT = _I64.unpack_from
#: magic, sysFlag and, where the born host is one of IPv4, the store timestamp of a record
_MAGIC_FLAG_TIME = struct.Struct(f">4xi{SYS_FLAG_AT - 8}xi{STORE_TIMESTAMP_AT - SYS_FLAG_AT - 4}xq").unpack_from
#: records one behind the other, their bytes, how many, where to go on, least and next number of the queue, whether old
Picked = tuple[bytes, int, int, int, int, int, bool]
#: broker to pull from next, the same after old messages, opaque, end of the header: what a whole answer needs besides
AnswerHead = tuple[int, int, int, bytes]
#: A fast pull takes records of so many bytes of the log; without a map of the file they are all read.
WINDOW_BYTES = 4 << 20
#: so much of the log's end was written just now and is in memory
CACHED_BYTES = 64 << 20
#: what is loaded at a time for a pull that must wait for the disk
PRELOAD_BYTES = 1 << 20
#: so many units of a queue are read at once from its file; the next pulls find theirs among them
BLOCK_UNITS = 256
#: bytes of such units that are kept for all queues
MAX_KEPT_BYTES = 4 << 20

_compiled: Any = load("rmq.store._pick")
_pick: Any = _compiled and _compiled.pick
_first_since: Any = _compiled and _compiled.first_since
_is_of: Any = _compiled and _compiled.is_of
#: when only so many units are left, a search by time reads them together
SEARCH_UNITS = 1024
#: and their messages, when they lie this close to each other
SEARCH_BYTES = 4 << 20
#: A single record is looked for in so many bytes: most have no more, and less is not faster to read without a map.
USUAL_BYTES = 4096
#: a query looks at most so often at earlier times until it finds something
QUERY_ROUNDS = 3


class Reader:
    """Answer questions from queues, index and log; nothing here changes anything."""

    _log = Logger()

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: Index | None, config: StoreConfig, memory_bytes: int
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._config = config
        #: so much of the log's end is taken to be in memory
        self._recent_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        #: records and bytes that one answer may have of the recent part of the log, then of the rest
        self._limits = (
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
        )
        #: queues that keep units of their files, the one that read longest ago first, with their bytes
        self._kept: dict[ConsumeQueue, int] = {}
        self._kept_bytes = 0
        #: units that one answer may look at
        self._most_units = config.max_filter_message_size // CQ_UNIT_BYTES
        self._keeps_offsets = config.is_slave and not config.offset_check_in_slave
        self._bad_units = 0

    # ---- by queue number ----

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        matches: Callable[[int], bool] | None = None,
        accepts: PropertyFilter | None = None,
    ) -> GetResult:
        """
        Return messages of a queue from a number on, as many as one answer may hold.

        ``matches`` is asked with each message's tagsCode, ``accepts`` with the encoded properties of those that match.
        On a slave an offset is not corrected, for the slave may lag.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, self._corrected(queue_offset, 0), 0, 0)
        return self._outside(queue, queue_offset) or self._scan(queue, queue_offset, max_count, matches, accepts)

    def pull(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        matches: Callable[[int], bool] | None,
        accepts: PropertyFilter | None = None,
    ) -> GetResult:
        """As :meth:`get`, with the records in one piece; an answer may end earlier than that of ``get``."""
        if _pick is not None and (matches is None or isinstance(matches, frozenset)):
            picked = self.pick(topic, queue_id, queue_offset, max_count, matches, accepts)
            if picked is not None:
                records, size_bytes, count, following, low, high, is_old = picked
                status, messages = (GetStatus.FOUND, [records]) if count else (GetStatus.NO_MATCHED_MESSAGE, [])
                return GetResult(status, following, low, high, messages, size_bytes, is_old, count)
        result = self.get(topic, queue_id, queue_offset, max_count, matches, accepts)
        if result.messages:
            result.messages = [b"".join(result.messages)]
        return result

    def _outside(self, queue: ConsumeQueue, queue_offset: int) -> GetResult | None:
        """Return the answer to an offset at which the queue has no message; None when it has one."""
        low, high = queue.min, queue.end
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._corrected(queue_offset, 0), low, high)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._corrected(queue_offset, low), low, high)
        if queue_offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        if queue_offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._corrected(queue_offset, high), low, high)
        return None

    def _corrected(self, asked: int, offset: int) -> int:
        return asked if self._keeps_offsets else offset

    def pick(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        codes: frozenset[int] | None,
        accepts: PropertyFilter | None,
        head: AnswerHead | None = None,
    ) -> Picked | None:
        """
        Do as :meth:`_scan` in the compiled loop, which must be there; with ``head`` make the whole answer to a pull.

        None where the queue has no message of this number, and when anything is unusual.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return None
        low, high = queue.min, queue.end
        if not low <= queue_offset < high:
            return None
        if codes is None and accepts is None:
            count = max_count + 1  # one more than is taken: it decides whether a slave is suggested
        else:
            count = self._most_units if self._most_units > max_count else max_count
        if count > high - queue_offset:
            count = high - queue_offset
        units, at = queue.block, (queue_offset - queue.block_offset) * CQ_UNIT_BYTES
        if at < 0 or at + count * CQ_UNIT_BYTES > len(units):
            try:
                units, at = self._read_block(queue, queue_offset, count), 0
            except DiskError:
                return None  # the reference says what is wrong
            if not units:
                return None
        (first,) = _I64_AT(units, at)
        log = self._commit_log
        log_end = log.end
        if not log.min_offset <= first < log_end or (
            log_end - first > CACHED_BYTES and self._is_cold(units[at : at + count * CQ_UNIT_BYTES])
        ):
            return None
        try:
            window = log.view_some(first, WINDOW_BYTES)
        except DiskError:
            return None  # without a map, where a block behind these records cannot be read
        program = None if accepts is None else accepts.program
        picked: Picked | None = _pick(
            units, at, count, window, queue_offset, low, high, log_end, self._recent_bytes, self._limits, max_count,
            codes, accepts, program, head,
        )  # fmt: skip
        return picked

    def _read_block(self, queue: ConsumeQueue, queue_offset: int, count: int) -> bytes:
        """Return ``count`` or more units of a queue from a number on, or fewer at an end; keep those of files."""
        before = queue.block
        units = queue.read_block(queue_offset, count, max(2 * count, BLOCK_UNITS))
        if queue.block is not before:
            self._kept_bytes += len(units) - self._kept.pop(queue, 0)
            self._kept[queue] = len(units)
            while self._kept_bytes > MAX_KEPT_BYTES:
                oldest = next(iter(self._kept))
                self._kept_bytes -= self._kept.pop(oldest)
                oldest.drop_block()
        return units

    def preloading(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> Deferred[None] | None:
        """
        Return what fires when the records that a pull would take are in memory; None when nobody has to wait.

        It loads what lies behind them, too: a consumer that is far behind continues there.
        """
        first = self._cold_place(topic, queue_id, queue_offset, max_count)
        return None if first is None else self._commit_log.preload(first, PRELOAD_BYTES)

    def is_cold(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> bool:
        """Tell whether a pull would wait for :meth:`preloading`."""
        return self._cold_place(topic, queue_id, queue_offset, max_count) is not None

    def _cold_place(self, topic: str, queue_id: int, queue_offset: int, max_count: int) -> int | None:
        """Return where the records of a pull begin if they must be read from disk, else None."""
        queue, log = self._queues.get(topic, queue_id), self._commit_log
        if queue is None or not queue.min <= queue_offset < queue.end:
            return None
        units = queue.read(queue_offset, max_count)
        if not units:
            return None
        (first,) = _I64_AT(units)
        if not log.min_offset <= first < log.end - CACHED_BYTES or not self._is_cold(units):
            return None
        return int(first)

    def _is_cold(self, units: bytes) -> bool:
        """Tell whether the log between the first unit's record and the end of the last one's must be read from disk."""
        (first,) = _I64_AT(units)
        last, size, _ = CQ_UNIT.unpack_from(units, len(units) - CQ_UNIT_BYTES)
        try:
            return not self._commit_log.in_memory(first, max(last + size - first, 1))
        except DiskError:
            return False  # reading says what is wrong

    def _scan(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_count: int,
        matches: Callable[[int], bool] | None,
        accepts: PropertyFilter | None,
    ) -> GetResult:
        log_end = self._commit_log.end
        units = queue.read(queue_offset, max(self._most_units, max_count))
        if not units:
            following = self._corrected(queue_offset, queue.next_file(queue_offset))
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, queue.min, queue.end)
        messages: list[bytes] = []
        size_bytes = 0
        scanned = 0
        status = GetStatus.NO_MATCHED_MESSAGE
        phy_offset = log_end
        for phy_offset, size, code in CQ_UNIT.iter_unpack(units):
            if messages:
                is_old = log_end - phy_offset > self._recent_bytes
                most, most_bytes = self._limits[2:] if is_old else self._limits[:2]
                if len(messages) >= min(most, max_count) or size_bytes + size > most_bytes:
                    break
            scanned += 1
            if matches is not None and not matches(
                code if code > CQ_EXT_ADDRESS_MAX else self._real_tags_code(queue, phy_offset, size, code)
            ):
                continue
            record = self._record(queue, phy_offset, size)
            if record is None:
                if not messages:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if accepts is not None and not accepts(_properties_of(record)):
                if not messages:
                    status = GetStatus.NO_MATCHED_MESSAGE
                continue
            messages.append(record)
            size_bytes += size
        if messages:
            status = GetStatus.FOUND
        return GetResult(
            status,
            queue_offset + scanned,
            queue.min,
            queue.end,
            messages,
            size_bytes,
            log_end - phy_offset > self._recent_bytes,
            len(messages),
        )

    def _record(self, queue: ConsumeQueue, phy_offset: int, size: int) -> bytes | None:
        """Return the bytes of a unit's record; None when it was deleted, or when the unit points at no record."""
        log = self._commit_log
        if phy_offset < log.min_offset:
            return None
        if (
            size > 0
            and phy_offset + size <= log.end
            and log.start_of(phy_offset) == log.start_of(phy_offset + size - 1)
        ):
            data = log.read(phy_offset, size)
            if data[:8] == SIZE_AND_MAGIC.pack(size, MAGIC_V1) or data[:8] == SIZE_AND_MAGIC.pack(size, MAGIC_V2):
                return data
        self._bad_units += 1
        if self._bad_units & (self._bad_units - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            self._log.error(
                "queue {topic}-{queue_id} has a unit for {size} bytes at {phy_offset}, where there is no such record; "
                "{count} such units were met so far",
                topic=queue.topic,
                queue_id=queue.queue_id,
                size=size,
                phy_offset=phy_offset,
                count=self._bad_units,
            )
        return None

    def _real_tags_code(self, queue: ConsumeQueue, phy_offset: int, size: int, code: int) -> int:
        """Return the tagsCode of a unit that points to an extension file; where that is gone the record knows it."""
        found = queue.ext.tags_code(code) if queue.ext is not None else None
        if found is not None:
            return found
        if phy_offset < self._commit_log.min_offset or phy_offset + size > self._commit_log.end:
            return code
        data = self._commit_log.read_some(phy_offset, size)  # fewer where a damaged unit leads beyond a file
        frame = read_frame(data, 0, len(data), phy_offset=phy_offset, check_crc=False)
        if not isinstance(frame, Frame):
            return code
        return tags_code(find_property(frame.properties.decode("utf-8", "replace"), PROPERTY_TAGS))

    def is_recent(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Tell whether a message is near enough to the end of the log to be in memory; True when there is none."""
        queue = self._queues.get(topic, queue_id)
        unit = queue.unit(queue_offset) if queue is not None else None
        return unit is None or self._commit_log.end - unit[0] <= self._recent_bytes

    # ---- by time ----

    def store_time(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        """Return when the message of a number was stored; None when it is not there (any more)."""
        unit = queue.unit(queue_offset)
        return None if unit is None else self.store_time_at(unit[0])

    def store_time_at(self, phy_offset: int) -> int | None:
        """Return when the record at a place was stored; None when it is not there (any more)."""
        log = self._commit_log
        if phy_offset < log.min_offset or phy_offset + MIN_RECORD_BYTES > log.end:
            return None
        head = log.view_some(phy_offset, MIN_RECORD_BYTES)
        if len(head) < MIN_RECORD_BYTES:
            return None
        magic, sys_flag, stored_ms = _MAGIC_FLAG_TIME(head)
        if magic != MAGIC_V2 and magic != MAGIC_V1:
            return None
        if sys_flag & BORN_HOST_V6:
            (stored_ms,) = _I64_AT(head, STORE_TIMESTAMP_AT + IPV6_EXTRA_BYTES)
        return int(stored_ms)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: str | None = None) -> int:
        """
        Return the number of the message stored nearest to a time, the earlier one of two equally near.

        Later than all: the last message; earlier than all: the first; no such queue, or nothing in it: 0.
        With ``boundary`` as 5.x: ``UPPER``: the last message that is not newer, 0 for none; otherwise the first that is
        not older, and behind the last one the queue's end.
        Java: ConsumeQueue#getOffsetInQueueByTime
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.end <= queue.min:
            return 0
        if boundary is not None and boundary.upper() == "UPPER":
            newer = self._first_since(queue, timestamp + 1)
            return newer - 1 if newer > queue.min else 0
        low = self._first_since(queue, timestamp)
        if boundary is not None:
            return low
        if low >= queue.end:
            return queue.end - 1
        if low == queue.min:
            return low
        after, before = self.store_time(queue, low), self.store_time(queue, low - 1)
        if after is None or before is None:
            return low
        return low if after == timestamp or after - timestamp < timestamp - before else low - 1

    def _first_since(self, queue: ConsumeQueue, timestamp: int) -> int:
        """Return the number of the first message stored at a time or later; the end of the queue when there is none."""

        log = self._commit_log

        def reached(phy_offset: int) -> bool:
            stored_ms = self.store_time_at(phy_offset)
            return stored_ms is not None and stored_ms >= timestamp

        def reached_in(units: bytes) -> int:
            first = _I64_AT(units)[0]
            size = _I64_AT(units, len(units) - CQ_UNIT_BYTES)[0] + MIN_RECORD_BYTES - first
            if _first_since is not None and log.min_offset <= first and size <= SEARCH_BYTES:
                found: int | None = _first_since(units, log.view_some(first, size), first, timestamp)
                if found is not None:
                    return found
            places = range(0, len(units), CQ_UNIT_BYTES)
            return bisect_left(places, True, key=lambda place: reached(_I64_AT(units, place)[0]))

        low, high = queue.min, queue.end
        while low < high:
            if high - low <= SEARCH_UNITS and (units := queue.read(low, high - low)):
                found = reached_in(units)
                low += found
                if found < len(units) // CQ_UNIT_BYTES:
                    break
                continue
            middle = (low + high) // 2
            unit = queue.unit(middle)
            if unit is not None and reached(unit[0]):
                high = middle
            else:
                low = middle + 1
        return low

    # ---- by place ----

    def message_at(self, phy_offset: int) -> bytes | None:
        """Return the record that starts at a place; None when none does."""
        record = self._view_at(phy_offset)
        if record is None:
            return None
        frame = read_frame(record, 0, len(record), phy_offset=None, check_crc=False)
        return bytes(record) if isinstance(frame, Frame) else None

    def _view_at(self, phy_offset: int) -> bytes | memoryview | None:
        """Return what says of itself that it is the record at a place, whole or not; None when nothing does."""
        log = self._commit_log
        if phy_offset < log.min_offset or phy_offset + MIN_RECORD_BYTES > log.end:
            return None
        found = log.view_some(phy_offset, USUAL_BYTES)
        if len(found) < MIN_RECORD_BYTES or _I64_AT(found, PHY_OFFSET_AT)[0] != phy_offset:
            return None
        size, _ = SIZE_AND_MAGIC.unpack_from(found)
        return found[:size] if 0 <= size <= len(found) else log.view_some(phy_offset, size)

    # ---- by key ----

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Return the newest messages of a topic with a key, stored between two times, in the order of the log."""
        index = self._index
        if index is None:
            return QueryResult([], 0, 0)
        result = QueryResult([], index.end_timestamp, max(0, index.end_phy_offset))
        max_count = min(max_count, self._config.max_msgs_num_batch)
        last_ms = end_ms
        for _ in range(QUERY_ROUNDS):
            places = sorted(set(index.find(topic, key, max_count, begin_ms, last_ms)))
            if not places:
                break
            for phy_offset in places:
                record = self._view_at(phy_offset)
                if record is not None and _has_key(record, topic, key):
                    result.messages.append(bytes(record))
            if result.messages:
                break
            # Only strangers with the same hash so far: look at what is older than the oldest of them.
            stored_ms = self.store_time_at(places[0])
            if stored_ms is None or stored_ms < begin_ms:
                break
            last_ms = stored_ms - 1
        return result


def _properties_of(record: bytes) -> str:
    frame = read_frame(record, 0, len(record), phy_offset=None, check_crc=False)
    return frame.properties.decode("utf-8", "replace") if isinstance(frame, Frame) else ""


def _has_key(record: bytes | memoryview, topic: str, key: str) -> bool:
    """Return whether this is a record of a topic, with a key."""
    found: bool | None = None if _is_of is None else _is_of(record, topic, key)
    return _is_of_slowly(record, topic, key) if found is None else found


def _is_of_slowly(record: bytes | memoryview, topic: str, key: str) -> bool:
    frame = read_frame(record, 0, len(record), phy_offset=None, check_crc=False)
    if not isinstance(frame, Frame) or frame.topic != topic:
        return False
    properties = frame.properties.decode("utf-8", "replace")
    return find_property(properties, PROPERTY_UNIQ_KEY) == key or key in split_keys(
        find_property(properties, PROPERTY_KEYS)
    )
