"""
The fast path of what consumers that choose their offsets, tools and exporters ask: the range of a queue, an offset by
time, a message by its place, messages by key, the offsets of a topic and of a group.

The references are `rmq.broker.responders.offsets.OffsetResponder`, `rmq.broker.responders.topics.TopicResponder` and
`rmq.broker.responders.queries.QueryResponder`; a lane gives the same bytes, or declines the request without side
effects. They need the compiled module `rmq.store._pick`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from rmq.broker.consumerlanes import AROUND_DONE, AROUND_OFFSET, KeptLane, KnownLane
from rmq.broker.responders.offsets import OffsetResponder
from rmq.broker.responders.queries import QueryResponder
from rmq.broker.responders.topics import TopicResponder
from rmq.remoting.responders import ResponderTable
from rmq.runtime.disk.error import DiskError
from rmq.store.store import MessageStore
from rmq.wire.api.offsets import GET_CONSUME_STATS, GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP
from rmq.wire.api.pulling import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageHeader
from rmq.wire.api.topics import GET_TOPIC_STATS_INFO
from rmq.wire.command import RESPONSE
from rmq.wire.compiled import load
from rmq.wire.frames import MAX_FRAME_BYTES

_compiled: Any = load("rmq.store._pick")

#: what is around the times and places of the index, and the opaque, in the header of an answer
AROUND_INDEX = (
    b'{"code":0,"extFields":{"indexLastUpdateTimestamp":"',
    b'","indexLastUpdatePhyoffset":"',
    b'"},"flag":%d,"language":"JAVA","opaque":' % RESPONSE,
    AROUND_DONE[1],
)
#: longer answers are left to the responder, which refuses what is too long for a frame
MAX_FOUND_BYTES = MAX_FRAME_BYTES - 1024

K = TypeVar("K")


def add_question_lanes(
    table: ResponderTable,
    store: MessageStore,
    offsets: OffsetResponder,
    topics: TopicResponder,
    queries: QueryResponder,
    *,
    is_slave: bool,
) -> None:
    """Add the lanes to a table; a slave keeps no answers, because its log may be cut (`MessageStore.losses`)."""
    if _compiled is None:
        return
    for lane in MaxOffsetLane, MinOffsetLane, OffsetByTimeLane, MessageLane:
        table.add_chunk_lane(lane(store))
    table.add_chunk_lane(KeyLane(queries))
    if not is_slave:
        table.add_chunk_lane(TopicStatsLane(store, topics))
        table.add_chunk_lane(ConsumeStatsLane(store, offsets))


class _StoreLane(KnownLane[K]):
    """A lane that asks the store."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__()
        self._store = store


class MaxOffsetLane(_StoreLane[tuple[str, int]]):
    """Answer where queues end."""

    contract = GET_MAX_OFFSET

    def what(self, header: Any) -> tuple[str, int]:
        return header.topic, header.queue_id

    def answer(self, what: tuple[str, int], opaque: int, number: int = 0) -> bytes | None:
        answer: bytes = _compiled.fill(AROUND_OFFSET, b"", self._store.max_offset(*what), opaque)
        return answer


class MinOffsetLane(MaxOffsetLane):
    """Answer where queues begin."""

    contract = GET_MIN_OFFSET

    def answer(self, what: tuple[str, int], opaque: int, number: int = 0) -> bytes | None:
        answer: bytes = _compiled.fill(AROUND_OFFSET, b"", self._store.min_offset(*what), opaque)
        return answer


class OffsetByTimeLane(_StoreLane[tuple[str, int, str | None]]):
    """Answer which message of a queue was stored at a time."""

    contract = SEARCH_OFFSET_BY_TIMESTAMP
    name = b"timestamp"

    def what(self, header: Any) -> tuple[str, int, str | None]:
        return header.topic, header.queue_id, header.boundary_type

    def answer(self, what: tuple[str, int, str | None], opaque: int, number: int = 0) -> bytes | None:
        topic, queue_id, boundary = what
        try:
            offset = self._store.offset_by_time(topic, queue_id, number, boundary)
        except DiskError:
            return None
        answer: bytes = _compiled.fill(AROUND_OFFSET, b"", offset, opaque)
        return answer


class MessageLane(_StoreLane[None]):
    """Answer with the message that lies at a place of the log."""

    contract = VIEW_MESSAGE_BY_ID
    name = b"offset"

    def what(self, header: Any) -> None:
        return None

    def answer(self, what: None, opaque: int, number: int = 0) -> bytes | None:
        try:
            message = self._store.message_at(number)
        except DiskError:
            return None
        return None if message is None else _compiled.fill(AROUND_DONE, message, opaque)


class KeyLane(KnownLane[QueryMessageHeader]):
    """Answer with the messages of a key, where there are any."""

    contract = QUERY_MESSAGE
    name = b"beginTimestamp"
    text = b"key"

    def __init__(self, queries: QueryResponder) -> None:
        super().__init__()
        self._queries = queries

    def what(self, header: Any) -> QueryMessageHeader:
        asked: QueryMessageHeader = header
        return asked

    def answer(self, what: QueryMessageHeader, opaque: int, number: int = 0, text: str = "") -> bytes | None:
        try:
            found = self._queries.find(what, text, number)
        except DiskError:
            return None
        messages = b"".join(found.messages)
        if not 0 < len(messages) <= MAX_FOUND_BYTES:
            return None
        answer: bytes = _compiled.fill(
            AROUND_INDEX, messages, found.last_update_timestamp, found.last_update_phy_offset, opaque
        )
        return answer


class TopicStatsLane(KeptLane):
    """Answer the range of each queue of a topic."""

    contract = GET_TOPIC_STATS_INFO

    def __init__(self, store: MessageStore, topics: TopicResponder) -> None:
        super().__init__()
        self._store = store
        self._topics = topics

    def state(self, header: Any) -> object:
        ranges = self._topics.ranges(header.topic)
        return None if ranges is None else (ranges, self._store.losses)

    def body(self, header: Any, state: Any) -> msgspec.Struct:
        return self._topics.stats_of(header.topic, state[0])


class ConsumeStatsLane(KeptLane):
    """Answer where a group is in each queue of its topics."""

    contract = GET_CONSUME_STATS

    def __init__(self, store: MessageStore, offsets: OffsetResponder) -> None:
        super().__init__()
        self._store = store
        self._offsets = offsets

    def state(self, header: Any) -> object:
        return self._offsets.positions(header), self._store.losses

    def body(self, header: Any, state: Any) -> msgspec.Struct:
        return self._offsets.stats_of(state[0])
