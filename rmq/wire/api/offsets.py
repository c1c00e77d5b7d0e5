"""Offsets: of consumer groups (14, 15), of queues (29 to 32), and what a group has left to do (208, 317)."""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import MessageQueue
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class QueryConsumerOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The offset of a group in a queue.

    With ``set_zero_if_not_found`` false (5.x) the answer for a group without an offset is QUERY_NOT_FOUND.
    Java: QueryConsumerOffsetRequestHeader
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Commit the next offset to consume.

    Java: UpdateConsumerOffsetRequestHeader
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    bname: str | None = None


class CloneGroupOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Give a group the committed offsets of another, for one topic or for all.

    Topics that an online source group does not subscribe to are left out unless ``offline``.
    Java: CloneGroupOffsetRequestHeader
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueueHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One queue of one topic.

    Java: GetMaxOffsetRequestHeader, GetMinOffsetRequestHeader, GetEarliestMsgStoretimeRequestHeader
    """

    topic: str
    queue_id: Int32
    bname: str | None = None


class SearchOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The offset stored nearest to an epoch millisecond.

    Clients of 5.x say ``LOWER``, for the first message that is not older, or ``UPPER``, for the last that is not newer.
    Java: SearchOffsetRequestHeader
    """

    topic: str
    queue_id: Int32
    timestamp: Int64
    bname: str | None = None
    boundary_type: str | None = None


class OffsetReply(msgspec.Struct, rename="camel", kw_only=True):
    """An offset in messages of a queue."""

    offset: Int64


class TimestampReply(msgspec.Struct, rename="camel", kw_only=True):
    """Epoch milliseconds, -1 for none."""

    timestamp: Int64


class ConsumeStatsHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A group, and one topic of it or (empty or absent) all.

    Java: GetConsumeStatsRequestHeader
    """

    consumer_group: str
    topic: str | None = None


class OffsetWrapper(msgspec.Struct, rename="camel", kw_only=True):
    """
    The end of a queue, a group's position in it, and when the last consumed message was stored (0: none).

    ``pull_offset`` is 5.x's: up to where the group has pulled; mqadmin prints what lies between as in flight.
    Java: OffsetWrapper
    """

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int = 0


class ConsumeStats(msgspec.Struct, rename="camel", kw_only=True):
    """Positions of a group by queue.  Java: ConsumeStats"""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}


class ConsumeTimeSpanHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: QueryConsumeTimeSpanRequestHeader"""

    topic: str
    group: str


class QueueTimeSpan(msgspec.Struct, rename="camel", kw_only=True):
    """
    When the first, the last and the last consumed message of a queue were stored (epoch ms, -1: there is none), and for
    how long (ms) the next one has been waiting; the texts are the times in UTC.

    Java: QueueTimeSpan
    """

    consume_time_stamp: int
    consume_time_stamp_str: str
    delay_time: int
    max_time_stamp: int
    max_time_stamp_str: str
    message_queue: MessageQueue
    min_time_stamp: int
    min_time_stamp_str: str


class ConsumeTimeSpans(msgspec.Struct, rename="camel", kw_only=True):
    """Java: QueryConsumeTimeSpanBody"""

    consume_time_span_set: list[QueueTimeSpan] = []


class CorrectionOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """``filter_groups`` are separated by commas.  Java: QueryCorrectionOffsetHeader"""

    filter_groups: str | None = None
    compare_group: str
    topic: str


class CorrectionOffsets(msgspec.Struct, rename="camel", kw_only=True):
    """Java: QueryCorrectionOffsetBody"""

    correction_offsets: dict[int, int] = {}


class BrokerConsumeStatsHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Every group, restricted to ordered topics or not.

    Java: GetConsumeStatsInBrokerHeader
    """

    is_order: bool


class BrokerConsumeStats(msgspec.Struct, rename="camel", kw_only=True):
    """
    Positions of every group: one single-entry object per group.

    Java: ConsumeStatsList
    """

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: int = 0


QUERY_CONSUMER_OFFSET = contract(RequestCode.QUERY_CONSUMER_OFFSET, header=QueryConsumerOffsetHeader, reply=OffsetReply)
UPDATE_CONSUMER_OFFSET = contract(RequestCode.UPDATE_CONSUMER_OFFSET, header=UpdateConsumerOffsetHeader)
SEARCH_OFFSET_BY_TIMESTAMP = contract(
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header=SearchOffsetHeader, reply=OffsetReply
)
GET_MAX_OFFSET = contract(RequestCode.GET_MAX_OFFSET, header=QueueHeader, reply=OffsetReply)
GET_MIN_OFFSET = contract(RequestCode.GET_MIN_OFFSET, header=QueueHeader, reply=OffsetReply)
GET_EARLIEST_MSG_STORETIME = contract(RequestCode.GET_EARLIEST_MSG_STORETIME, header=QueueHeader, reply=TimestampReply)
CLONE_GROUP_OFFSET = contract(RequestCode.CLONE_GROUP_OFFSET, header=CloneGroupOffsetHeader)
GET_CONSUME_STATS = contract(RequestCode.GET_CONSUME_STATS, header=ConsumeStatsHeader, reply_body=ConsumeStats)
GET_BROKER_CONSUME_STATS = contract(
    RequestCode.GET_BROKER_CONSUME_STATS, header=BrokerConsumeStatsHeader, reply_body=BrokerConsumeStats
)
QUERY_CONSUME_TIME_SPAN = contract(
    RequestCode.QUERY_CONSUME_TIME_SPAN, header=ConsumeTimeSpanHeader, reply_body=ConsumeTimeSpans
)
QUERY_CORRECTION_OFFSET = contract(
    RequestCode.QUERY_CORRECTION_OFFSET, header=CorrectionOffsetHeader, reply_body=CorrectionOffsets
)
