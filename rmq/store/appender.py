"""
The hot path: from a message to a record in the log, a unit in its queue and entries in the index.

Java: CommitLog#asyncPutMessage, #asyncPutMessages, DefaultAppendMessageCallback
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.runtime.clock import now_ms, steady_ms
from rmq.runtime.disk.files import DiskError, SyncFailed
from rmq.store.commitlog import CommitLog
from rmq.store.config import StoreConfig
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.dispatch import Dispatcher, Units
from rmq.store.messages import BatchEntry, Message, PutResult, PutStatus
from rmq.store.multidispatch import MultiDispatch
from rmq.store.queues import QueueTable, is_storable_topic
from rmq.wire.record import (
    BLANK_BYTES,
    HEADS,
    HOST_MASK,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    PROPERTIES_LENGTH,
    PROPERTY_DELAY,
    PROPERTY_MULTI_QUEUE_OFFSET,
    PROPERTY_SEPARATOR,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    append_properties,
    find_property,
    host_flags,
)

_HEAD_V4 = HEADS[0]
_pack_length = PROPERTIES_LENGTH.pack
_crc32 = zlib.crc32

#: a file for which there is no room is not asked for again sooner: trying to reserve it can take a while
GROW_AGAIN_MS = 1000


Host = tuple[bytes, int]


class SendBatch(Protocol):
    """Sends that were read from received bytes: `rmq.store._record.SendBatch`."""

    @property
    def count(self) -> int: ...
    @property
    def last_phy(self) -> int: ...
    @property
    def last_size(self) -> int: ...

    def encode(
        self, phy_offset: int, room: int, store_ms: int, store_host: Host, /
    ) -> tuple[bytes, Units, bytes] | None: ...


class Appender:
    """
    Append messages at the end of a master's log and dispatch them, or hand them to the dispatcher to remember.

    A put that is refused, for whatever reason, has changed nothing: no byte of the log, no queue number. ``refusal`` is
    the answer to every put while it is not None. ``on_failure`` is called when a new log file could not be synced.
    """

    _log = Logger()

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        clock: IReactorTime,
        config: StoreConfig,
        *,
        further: MultiDispatch | None,
        on_failure: Callable[[DiskError], None],
    ) -> None:
        self._commit_log = log
        self._queues = queues
        self._clock = clock
        self._max_body_bytes = config.max_message_size
        self._further = further
        self._on_failure = on_failure
        self.refusal: PutStatus | None = PutStatus.SERVICE_NOT_AVAILABLE
        #: messages are hidden from consumers until they are confirmed
        self.hides = config.hides_unconfirmed
        self._dispatcher = dispatcher
        self._dispatch = dispatcher.remember if self.hides else dispatcher.appended
        self._in_trouble = False
        #: before this steady time the log does not try to grow
        self._grow_again_ms = 0
        #: why the last put could not be written; None when it could
        self.trouble: str | None = None
        #: hexadecimal store hosts, as offset ids begin with them
        self._hosts: dict[tuple[bytes, int], str] = {}

    def put(self, message: Message) -> PutResult:
        """Append one message; the status is PUT_OK or says why it was refused."""
        if self.refusal is not None:
            return PutResult(self.refusal)
        queue = self._queues.get(message.topic, message.queue_id)
        if queue is None:
            queue = self._new_queue(message)
            if queue is None:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
        properties = message.properties
        further: Sequence[tuple[ConsumeQueue, int]] = ()
        if self._further is not None:
            found = self._further.number(message)
            if isinstance(found, PutStatus):
                return PutResult(found)
            properties, further = found
        stored = _encode(properties)
        body = message.body
        if len(stored) > MAX_PROPERTIES_BYTES:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
        if len(body) > self._max_body_bytes and not message.was_stored:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        born_host = message.born_host
        store_host = message.store_host
        sys_flag = message.sys_flag & ~HOST_MASK
        head = _HEAD_V4
        if len(born_host[0]) != 4 or len(store_host[0]) != 4:
            sys_flag |= host_flags(born_host, store_host)
            head = HEADS[sys_flag >> 4 & 3]
        size = head.size + len(body) + len(queue.topic_field) + 2 + len(stored)
        log = self._commit_log
        phy_offset = log.end
        if phy_offset + size + BLANK_BYTES > log.tail_end:
            if not log.fits(size):
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
            if not self._find_place(size):
                return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
            phy_offset = log.end
        transaction = sys_flag & TRANSACTION_MASK
        numbered = transaction == 0 or transaction == TRANSACTION_COMMIT
        store_timestamp = now_ms(self._clock)
        queue_offset = queue.next if numbered else 0
        try:
            record = b"".join(
                (
                    head.pack(
                        size,
                        MAGIC_V1,
                        _crc32(body) & 0x7FFFFFFF,
                        message.queue_id,
                        message.flag,
                        queue_offset,
                        phy_offset,
                        sys_flag,
                        message.born_timestamp,
                        born_host[0],
                        born_host[1],
                        store_timestamp,
                        store_host[0],
                        store_host[1],
                        message.reconsume_times,
                        message.prepared_transaction_offset,
                        len(body),
                    ),
                    body,
                    queue.topic_field,
                    _pack_length(len(stored)),
                    stored,
                )
            )
        except struct.error as error:
            return self._illegal(message, error)
        try:
            log.append(record)
        except DiskError as error:
            return self._cannot_write(error)
        if numbered:
            queue.next = queue_offset + 1
            for other, number in further:
                # A name can be twice in the list, or that of the message's own queue.
                other.next = max(other.next, number + 1)
        self._dispatch(phy_offset, size, queue, queue_offset, sys_flag, store_timestamp, properties)
        if self._in_trouble:
            self._recovered()
        prefix = self._hosts.get(store_host) or self._host(store_host)
        return PutResult(
            PutStatus.PUT_OK,
            phy_offset,
            phy_offset + size,
            size,
            queue_offset,
            f"{prefix}{phy_offset:016X}",
            store_timestamp,
            1,
        )

    def put_many(self, sends: SendBatch, store_host: Host) -> int:
        """
        Append the ordinary messages at the front of ``sends`` together, in one file; return how many.

        0, and nothing done, where :meth:`put` must say why, or when the dispatcher has not come as far as the log.
        """
        log = self._commit_log
        end = log.end
        if self.refusal is not None or self._in_trouble or not (self.hides or self._dispatcher.is_at(end)):
            return 0
        store_timestamp = now_ms(self._clock)
        encoded = sends.encode(end, log.tail_end - end - BLANK_BYTES, store_timestamp, store_host)
        if encoded is None:
            return 0
        records, units, keys = encoded
        try:
            log.append(records)
        except DiskError:
            return 0
        last = (sends.last_phy, sends.last_size, store_timestamp)
        if self.hides:
            self._dispatcher.remember_many(end, units, keys, last)
        else:
            self._dispatcher.appended_many(units, keys, last)
        return sends.count

    def put_batch(self, message: Message, entries: Sequence[BatchEntry]) -> PutResult:
        """
        Append all messages of a batch together, in one file, or none.

        ``message`` gives everything but body, flag and properties; its properties are added to those of each entry.
        """
        if self.refusal is not None:
            return PutResult(self.refusal)
        if not entries or message.sys_flag & TRANSACTION_MASK:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue = self._queues.get(message.topic, message.queue_id) or self._new_queue(message)
        if queue is None:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        sys_flag = message.sys_flag & ~HOST_MASK | host_flags(message.born_host, message.store_host)
        head = HEADS[sys_flag >> 4 & 3]
        fixed = head.size + len(queue.topic_field) + 2
        strings = [append_properties(entry.properties, message.properties) for entry in entries]
        stored = [_encode(text) for text in strings]
        sizes = [fixed + len(entry.body) + len(props) for entry, props in zip(entries, stored, strict=True)]
        if any(len(props) > MAX_PROPERTIES_BYTES for props in stored):
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
        total = sum(sizes)
        if (
            any(len(entry.body) > self._max_body_bytes for entry in entries)
            or total > self._max_body_bytes + (1 << 16)
            or not self._commit_log.fits(total)
            or any(_is_delayed(text) for text in strings)
            or (self._further is not None and any(find_property(text, PROPERTY_MULTI_QUEUE_OFFSET) for text in strings))
        ):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        if not self._find_place(total):
            return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
        phy_offset = self._commit_log.end
        store_timestamp = now_ms(self._clock)
        first = queue.next
        pieces: list[bytes] = []
        at = phy_offset
        try:
            for number, (entry, props, size) in enumerate(zip(entries, stored, sizes, strict=True), first):
                pieces += (
                    head.pack(
                        size,
                        MAGIC_V1,
                        _crc32(entry.body) & 0x7FFFFFFF,
                        message.queue_id,
                        entry.flag,
                        number,
                        at,
                        sys_flag,
                        message.born_timestamp,
                        *message.born_host,
                        store_timestamp,
                        *message.store_host,
                        message.reconsume_times,
                        message.prepared_transaction_offset,
                        len(entry.body),
                    ),
                    entry.body,
                    queue.topic_field,
                    _pack_length(len(props)),
                    props,
                )
                at += size
        except struct.error as error:
            return self._illegal(message, error)
        try:
            self._commit_log.append(b"".join(pieces))
        except DiskError as error:
            return self._cannot_write(error)
        queue.next = first + len(entries)
        prefix = self._host(message.store_host)
        ids = []
        at = phy_offset
        for number, (text, size) in enumerate(zip(strings, sizes, strict=True), first):
            self._dispatch(at, size, queue, number, sys_flag, store_timestamp, text)
            ids.append(f"{prefix}{at:016X}")
            at += size
        if self._in_trouble:
            self._recovered()
        return PutResult(PutStatus.PUT_OK, phy_offset, at, total, first, ",".join(ids), store_timestamp, len(entries))

    def _new_queue(self, message: Message) -> ConsumeQueue | None:
        if not is_storable_topic(message.topic) or not 0 <= message.queue_id < 1 << 31:
            return None
        return self._queues.make(message.topic, message.queue_id)

    def _host(self, host: tuple[bytes, int]) -> str:
        text = self._hosts.get(host)
        if text is None:
            if len(self._hosts) > 100:
                self._hosts.clear()
            text = self._hosts[host] = f"{host[0].hex().upper()}{host[1]:08X}"
        return text

    def _illegal(self, message: Message, error: struct.error) -> PutResult:
        self._log.warn(
            "a message of topic {topic} has a number that does not fit the record: {error}",
            topic=message.topic,
            error=str(error),
        )
        return PutResult(PutStatus.MESSAGE_ILLEGAL)

    def _find_place(self, size: int) -> bool:
        """Have the log end where ``size`` bytes find room; False when there can be no next file now."""
        log = self._commit_log
        if log.has_room(size):
            return True
        now = steady_ms(self._clock)
        if now < self._grow_again_ms:
            return False
        try:
            log.roll()
        except SyncFailed as error:
            self._on_failure(error)
            return False
        except DiskError as error:
            self._grow_again_ms = now + GROW_AGAIN_MS
            self._report("no room for the next commit log file, messages are refused: {error}", error)
            return False
        return True

    def _cannot_write(self, error: DiskError) -> PutResult:
        self._report("the commit log cannot be written, messages are refused: {error}", error)
        return PutResult(PutStatus.SERVICE_NOT_AVAILABLE)

    def next_file_made(self) -> None:
        """Messages find room again, if they were refused for want of a file."""
        if self._in_trouble:
            self._recovered()

    def _report(self, text: str, error: DiskError) -> None:
        """Log the first of a row of equal troubles."""
        self.trouble = str(error)
        if not self._in_trouble:
            self._in_trouble = True
            self._log.error(text, error=str(error))

    def _recovered(self) -> None:
        self._in_trouble = False
        self.trouble = None
        self._log.info("the commit log takes messages again")


def _encode(properties: str) -> bytes:
    """Return properties as they are stored."""
    try:
        stored = properties.encode()
    except UnicodeEncodeError:
        stored = properties.encode("utf-8", "replace")  # lone surrogates; Java writes `?` too
    # A record that ends with NUL would look like a torn one.
    return stored if not stored.endswith(b"\0") else stored + PROPERTY_SEPARATOR.encode()


def _is_delayed(properties: str) -> bool:
    level = find_property(properties, PROPERTY_DELAY)
    return level is not None and level.isdigit() and int(level) > 0
