"""Reading messages: pull 11 and 361, by key 12, by log offset 33."""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import MessageQueue
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64

#: Bits of PullMessageHeader.sys_flag.  Java: PullSysFlag
PULL_COMMIT_OFFSET = 0x1
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_CLASS_FILTER = 0x8
PULL_LITE = 0x10

#: Extra field of a query: "true" looks for a producer's unique key instead of a key.
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class PullMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Ask for messages of one queue from ``queue_offset`` on.

    ``sys_flag`` says whether ``commit_offset`` and ``subscription`` count and whether the broker may hold the request
    for ``suspend_timeout_millis``.  Java: PullMessageRequestHeader
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    bname: str | None = None


class PullMessageReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    All four are there with every answer a pull can get from a queue: codes 0, 19, 20 and 21.

    Java: PullMessageResponseHeader
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class QueryMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Messages of a topic by key, stored between two epoch milliseconds.

    Java: QueryMessageRequestHeader, and MixAll#UNIQUE_MSG_QUERY_FLAG beside it
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    #: Java compares it with "true": "TRUE" is false
    unique_key_query: str | None = msgspec.field(default=None, name=UNIQUE_KEY_QUERY)


class QueryMessageReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    How far the index is; both 0 when nothing was found.

    Java: QueryMessageResponseHeader
    """

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class ViewMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One message by its offset in the commit log.

    Java: ViewMessageRequestHeader
    """

    offset: Int64


class OffsetMovedEvent(msgspec.Struct, rename="camel", kw_only=True):
    """
    The body of a message of OFFSET_MOVED_EVENT: a pull asked for one offset and was sent to another.

    Java: OffsetMovedEvent
    """

    consumer_group: str
    message_queue: MessageQueue
    offset_new: int
    offset_request: int


#: Beside 0: nothing there yet, nothing that matches, or another offset is asked for.
NOT_FOUND = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)

PULL_MESSAGE = contract(
    RequestCode.PULL_MESSAGE, header=PullMessageHeader, reply=PullMessageReply, reply_body=bytes, answers=NOT_FOUND
)
LITE_PULL_MESSAGE = contract(
    RequestCode.LITE_PULL_MESSAGE, header=PullMessageHeader, reply=PullMessageReply, reply_body=bytes, answers=NOT_FOUND
)
QUERY_MESSAGE = contract(
    RequestCode.QUERY_MESSAGE, header=QueryMessageHeader, reply=QueryMessageReply, reply_body=bytes
)
VIEW_MESSAGE_BY_ID = contract(RequestCode.VIEW_MESSAGE_BY_ID, header=ViewMessageHeader, reply_body=bytes)
