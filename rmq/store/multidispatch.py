"""
Further queues of a message: its producer names them in INNER_MULTI_DISPATCH, and each gets a unit of the one record.

A master gives the message a number in each, and stores the numbers as INNER_MULTI_QUEUE_OFFSET. Queues whose names
begin with ``%LMQ%`` (light message queues, of MQTT for example) need no topic, and have the id 0.

Java: MultiDispatch, ConsumeQueue#multiDispatchLmqQueue
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq.store.consumequeue import ConsumeQueue
from rmq.store.messages import Message, PutStatus
from rmq.store.queues import QueueTable, is_storable_topic
from rmq.wire.record import (
    LMQ_PREFIX,
    PROPERTY_MULTI_DISPATCH,
    PROPERTY_MULTI_QUEUE_OFFSET,
    SCHEDULE_TOPIC,
    decode_properties,
    encode_properties,
    find_marked,
    property_mark,
)

SEPARATOR = ","
_DISPATCH = property_mark(PROPERTY_MULTI_DISPATCH)
_OFFSETS = property_mark(PROPERTY_MULTI_QUEUE_OFFSET)

#: A number of a producer's, which a broker without enableMultiDispatch stores as it is, may be anything; a consume
#: queue with one of more digits would be larger than any file system.
MAX_DIGITS = 17

#: Messages of these topics are stored once more, in their own topic, when they are due or committed.
#: Apache 4.9.7 dispatches them both times, so that consumers see them too early and twice.
_NOT_YET = frozenset((SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC"))


def is_lmq(name: str) -> bool:
    """Tell whether a topic, a queue or a group belongs to light message queues.  Java: MixAll#isLmq"""
    return name.startswith(LMQ_PREFIX)


def further_queues(properties: str, queue_id: int, *, lmq: bool) -> Iterator[tuple[str, int, int]]:
    """
    Yield name, queueId and number of each further queue of a stored record; nothing when its lists do not fit.

    ``lmq`` is `enableLmq`.
    """
    names = (find_marked(properties, _DISPATCH) or "").rstrip(SEPARATOR).split(SEPARATOR)
    numbers = (find_marked(properties, _OFFSETS) or "").split(SEPARATOR)
    if len(names) == len(numbers) and all(map(_is_number, numbers)):
        for name, number in zip(names, numbers, strict=True):
            yield name, 0 if lmq and is_lmq(name) else queue_id, int(number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


class MultiDispatch:
    """Find the further queues of messages; ``enableMultiDispatch``."""

    def __init__(self, queues: QueueTable, *, lmq: bool, max_lmq_queues: int) -> None:
        self._queues = queues
        self._lmq = lmq
        self._max_lmq_queues = max_lmq_queues

    def number(self, message: Message) -> tuple[str, list[tuple[ConsumeQueue, int]]] | PutStatus:
        """
        Return the properties of a message with its numbers, and the further queues with them; or why it is refused.

        The caller advances ``next`` of the queues when the message is in the log.
        """
        text = message.properties
        if find_marked(text, _DISPATCH) is None and find_marked(text, _OFFSETS) is None:
            return text, []
        pairs = decode_properties(text)
        pairs.pop(PROPERTY_MULTI_QUEUE_OFFSET, None)
        names = pairs.get(PROPERTY_MULTI_DISPATCH, "").rstrip(SEPARATOR)
        if not names.strip() or message.topic in _NOT_YET:
            return encode_properties(pairs), []
        keys = [(name, 0 if self._lmq and is_lmq(name) else message.queue_id) for name in names.split(SEPARATOR)]
        if not all(is_storable_topic(name) for name, _ in keys):
            return PutStatus.MESSAGE_ILLEGAL
        new = {key for key in keys if is_lmq(key[0]) and self._queues.get(*key) is None}
        if new and self._lmq and self._queues.lmq_queues + len(new) > self._max_lmq_queues:
            return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        numbered = [(queue, queue.next) for queue in (self._queues.make(*key) for key in keys)]
        pairs[PROPERTY_MULTI_QUEUE_OFFSET] = SEPARATOR.join(str(number) for _, number in numbered)
        return encode_properties(pairs), numbered

    def of(self, properties: str, queue_id: int) -> list[tuple[ConsumeQueue, int]]:
        """Return the further queues of a record, and its number in each."""
        if find_marked(properties, _OFFSETS) is None:
            return []
        return [
            (self._queues.make(name, number_of), number)
            for name, number_of, number in further_queues(properties, queue_id, lmq=self._lmq)
            if is_storable_topic(name)
        ]
