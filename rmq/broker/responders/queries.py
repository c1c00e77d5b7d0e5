"""
Messages by key and by physical offset, and units of a consume queue.

Java: QueryMessageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

import struct

import attrs
import msgspec

from rmq.broker.consumerfilters import ConsumerFilters
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.settings import Settings
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.store.messages import QueryResult
from rmq.store.store import MessageStore
from rmq.wire.api.pulling import (
    QUERY_MESSAGE,
    VIEW_MESSAGE_BY_ID,
    QueryMessageHeader,
    QueryMessageReply,
    ViewMessageHeader,
)
from rmq.wire.api.topics import (
    QUERY_CONSUME_QUEUE,
    ConsumeQueueContents,
    ConsumeQueueUnit,
    QueryConsumeQueueHeader,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.record import PHY_OFFSET_AT

_I64 = struct.Struct(">q")

#: units of one answer to code 321
MAX_UNITS = 1024


@attrs.define(eq=False)
class QueryResponder:
    """Queries for single messages."""

    _settings: Settings
    _store: MessageStore
    _consumers: ConsumerGroups
    _filters: ConsumerFilters

    @responds_to(QUERY_MESSAGE)
    def query(self, request: Request[QueryMessageHeader, None]) -> Reply:
        """
        Answer with the messages of a key, refuse with code 22 when there are none.

        Java: QueryMessageProcessor#queryMessage
        """
        header = request.header
        found = self.find(header, header.key, header.begin_timestamp)
        reply = QueryMessageReply(
            index_last_update_timestamp=found.last_update_timestamp,
            index_last_update_phyoffset=found.last_update_phy_offset,
        )
        if not found.messages:
            raise Refuse(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                header=QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0),
            )
        return Reply(reply, body=b"".join(found.messages))

    def find(self, header: QueryMessageHeader, key: str, begin_ms: int) -> QueryResult:
        """
        Return the newest messages with a key, stored since ``begin_ms``, at most ``maxMsgsNumBatch``.

        By unique key at most ``defaultQueryMaxNum``.
        """
        config = self._settings.setup.store
        count = config.default_query_max_num if header.unique_key_query == "true" else header.max_num
        count = min(max(count, 0), config.max_msgs_num_batch)
        return self._store.query(header.topic, key, count, begin_ms, header.end_timestamp)

    @responds_to(VIEW_MESSAGE_BY_ID)
    def view(self, request: Request[ViewMessageHeader, None]) -> Reply:
        """
        Java: QueryMessageProcessor#viewMessageById
        """
        offset = request.header.offset
        message = self._store.message_at(offset)
        if message is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Reply(body=message)

    @responds_to(QUERY_CONSUME_QUEUE)
    def contents(self, request: Request[QueryConsumeQueueHeader, None]) -> Reply:
        """
        The units of a consume queue from a queue offset on.

        A queue exists once a message was stored in it. In Apache one that a client only asked for also exists, until
        the next start; its answer, code 0 without a body, is one that mqadmin cannot read.

        Java: AdminBrokerProcessor#queryConsumeQueue
        """
        header = request.header
        where = f"{header.queue_id}@{header.topic}"
        if not self._store.has_queue(header.topic, header.queue_id):
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"{where} is not exist!")
        units = self._units(header.topic, header.queue_id, header.index, min(header.count, MAX_UNITS))
        if not units:
            return Reply(remark=f"Index {header.index} of {where} is not exist!")
        contents = ConsumeQueueContents(
            max_queue_index=self._store.max_offset(header.topic, header.queue_id),
            min_queue_index=self._store.min_offset(header.topic, header.queue_id),
            queue_data=units,
        )
        if header.consumer_group:
            group = self._consumers.find(header.consumer_group)
            contents.subscription_data = None if group is None else group.subscriptions.get(header.topic)
            # Only SQL92 filters are kept as filter data; Java prints the missing one so.
            kept = self._filters.get(header.topic, header.consumer_group)
            contents.filter_data = "null" if kept is None else msgspec.json.encode(kept).decode()
            if contents.subscription_data is None:
                contents.filter_data = f"{header.consumer_group}@{header.topic} is not online!"
        return Reply(body=contents)

    def _units(self, topic: str, queue_id: int, index: int, count: int) -> list[ConsumeQueueUnit]:
        """Return the units whose messages exist; the store reads them one pull at a time."""
        units: list[ConsumeQueueUnit] = []
        while len(units) < count:
            codes: list[int] = []

            def note(tags_code: int, codes: list[int] = codes) -> bool:
                codes.append(tags_code)
                return True

            messages = self._store.get(topic, queue_id, index + len(units), count - len(units), note).messages
            if not messages:
                break
            for message, code in zip(messages, codes, strict=False):
                (phy_offset,) = _I64.unpack_from(message, PHY_OFFSET_AT)
                units.append(ConsumeQueueUnit(physic_offset=phy_offset, physic_size=len(message), tags_code=code))
        return units
