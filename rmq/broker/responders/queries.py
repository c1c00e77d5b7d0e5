"""
Messages by key and by log offset, and what an index holds.

Java: QueryMessageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

from rmq.broker.state import BrokerState
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.wire.api.pulling import (
    QUERY_MESSAGE,
    UNIQUE_KEY_QUERY,
    VIEW_MESSAGE_BY_ID,
    QueryMessageHeader,
    QueryMessageReply,
    ViewMessageHeader,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.extfields import parse_boolean


class QueryResponder:
    """Messages that somebody looks for."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @responds_to(QUERY_MESSAGE)
    def query(self, request: Request[QueryMessageHeader, None]) -> Reply:
        """
        Newest first, at most ``maxMsgsNumBatch``; a query by unique key asks for ``defaultQueryMaxNum``.

        Java: QueryMessageProcessor#queryMessage
        """
        header, config = request.header, self._state.setup.store
        count = header.max_num
        if parse_boolean(request.command.ext_fields.get(UNIQUE_KEY_QUERY, "")):
            count = config.default_query_max_num
        count = min(count, config.max_msgs_num_batch)
        found = self._state.store.query(header.topic, header.key, count, header.begin_timestamp, header.end_timestamp)
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

    @responds_to(VIEW_MESSAGE_BY_ID)
    def view(self, request: Request[ViewMessageHeader, None]) -> Reply:
        """
        Java: QueryMessageProcessor#viewMessageById
        """
        offset = request.header.offset
        message = self._state.store.message_at(offset)
        if message is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return Reply(body=message)
