"""
What a tool asks of consumers through their broker: reset offsets (222, 220), positions (223, 221), running info (307),
consume one message (309).
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class ResetOffsetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The offset of each queue becomes that of a time (epoch milliseconds, -1: the end), an earlier one unless
    ``is_force``; of 5.x one queue only (-1: all), or ``offset`` itself.

    Java: ResetOffsetRequestHeader
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class OffsetsByQueue(msgspec.Struct, rename="camel", kw_only=True):
    """Java: ResetOffsetBody"""

    offset_table: dict[MessageQueue, int] = {}


class OffsetOfQueue(msgspec.Struct, rename="camel", kw_only=True):
    """Java: MessageQueueForC"""

    broker_name: str
    offset: int
    queue_id: int
    topic: str


class OffsetList(msgspec.Struct, rename="camel", kw_only=True):
    """The form of :class:`OffsetsByQueue` for C++ clients.  Java: ResetOffsetBodyForC"""

    offset_table: list[OffsetOfQueue]


class ConsumerStatusHeader(msgspec.Struct, rename="camel", kw_only=True):
    """``client_addr`` is the id of one member, empty or absent for all.  Java: GetConsumerStatusRequestHeader"""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerStatus(msgspec.Struct, rename="camel", kw_only=True):
    """
    Positions by client, or those of the client that answers.

    Java: GetConsumerStatusBody
    """

    consumer_table: dict[str, dict[MessageQueue, int]] = {}
    message_queue_table: dict[MessageQueue, int] = {}


class RunningInfoHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: GetConsumerRunningInfoRequestHeader"""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class QueueInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    One queue of a member: offsets of messages in hand, their number and size; ``droped`` is Java's spelling.

    Java: ProcessQueueInfo
    """

    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_msg_size_in_mi_b: int = msgspec.field(name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int
    last_consume_timestamp: int = 0


class ConsumeStatus(msgspec.Struct, kw_only=True):
    """
    One topic of a member: times (``rt``) in milliseconds, messages a second, failed ones of an hour.

    Java: ConsumeStatus
    """

    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = msgspec.field(name="consumeFailedMsgs", default=0)


class RunningInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    What a consumer is doing, for `mqadmin consumerStatus`.

    Java: ConsumerRunningInfo
    """

    properties: dict[str, str]
    subscription_set: list[SubscriptionData]
    mq_table: dict[MessageQueue, QueueInfo]
    status_table: dict[str, ConsumeStatus] = {}
    jstack: str | None = None


class ConsumeResult(msgspec.Struct, rename="camel", kw_only=True):
    """How a handler did with one message.  Java: ConsumeMessageDirectlyResult"""

    order: bool = False
    auto_commit: bool = True
    consume_result: str
    remark: str | None = None
    spent_time_mills: int


class ConsumeDirectlyHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    ``msg_id`` is the offset message id.

    Java: ConsumeMessageDirectlyResultRequestHeader
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


INVOKE_BROKER_TO_RESET_OFFSET = contract(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header=ResetOffsetHeader, reply_body=OffsetsByQueue
)
RESET_CONSUMER_CLIENT_OFFSET = contract(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header=ResetOffsetHeader, body=bytes)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = contract(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header=ConsumerStatusHeader, reply_body=ConsumerStatus
)
GET_CONSUMER_STATUS_FROM_CLIENT = contract(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header=ConsumerStatusHeader, reply_body=ConsumerStatus
)
#: The body of the answer is what the client says, a Java ConsumerRunningInfo.
GET_CONSUMER_RUNNING_INFO = contract(RequestCode.GET_CONSUMER_RUNNING_INFO, header=RunningInfoHeader, reply_body=bytes)
#: The body of the answer is what the client says, a Java ConsumeMessageDirectlyResult.
CONSUME_MESSAGE_DIRECTLY = contract(
    RequestCode.CONSUME_MESSAGE_DIRECTLY, header=ConsumeDirectlyHeader, reply_body=bytes
)
