"""
Sending: codes 10 (long field names), 310 and 320 (one-letter names), a consumer's send-back 36, replies 324 to 326.

Clients mix codes and key sets, so a server picks the header class by the keys it finds, not by the code.
"""

from __future__ import annotations

import msgspec

from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class SendMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    What a producer says about one message, or about a batch in the body.

    ``queue_id`` below 0 lets the broker choose; times are epoch milliseconds; ``properties`` is encoded as stored.
    ``bname``, here and in other requests about a queue, is the broker's name, which brokers do not read.
    Java: SendMessageRequestHeader
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


#: Field of SendMessageV2Header -> its one letter on the wire.
SEND_V2_LETTERS = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "bname": "n",
}


class SendMessageV2Header(SendMessageHeader, rename=SEND_V2_LETTERS, kw_only=True):
    """
    The same fields under one-letter names; all are listed again because ``rename`` leaves inherited ones alone.

    Java: SendMessageRequestHeaderV2
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


class SendMessageReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    Where the message lies now; for a batch ``msg_id`` joins the ids with commas and ``queue_offset`` is the first.

    ``msg_id`` is the offset message id (upper-case hex of host, port and log offset), not the producer's UNIQ_KEY.
    Java: SendMessageResponseHeader
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None


class ReplyMessageHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A reply on its way to the client that sent the request; hosts are ``ip:port``, times epoch milliseconds.

    Java: ReplyMessageRequestHeader
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: Int64


class SendBackHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A message that a consumer could not handle, by its offset in the commit log.

    ``delay_level`` below 0 asks for the dead-letter queue, 0 lets the broker choose by the number of tries.
    Java: ConsumerSendMsgBackRequestHeader
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    bname: str | None = None


#: Beside 0: stored, but not flushed or not replicated in time.
STORED = (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

SEND_MESSAGE = contract(
    RequestCode.SEND_MESSAGE, header=SendMessageHeader, body=bytes, reply=SendMessageReply, answers=STORED
)
SEND_MESSAGE_V2 = contract(
    RequestCode.SEND_MESSAGE_V2, header=SendMessageV2Header, body=bytes, reply=SendMessageReply, answers=STORED
)
SEND_BATCH_MESSAGE = contract(
    RequestCode.SEND_BATCH_MESSAGE, header=SendMessageV2Header, body=bytes, reply=SendMessageReply, answers=STORED
)
CONSUMER_SEND_MSG_BACK = contract(RequestCode.CONSUMER_SEND_MSG_BACK, header=SendBackHeader)
SEND_REPLY_MESSAGE = contract(
    RequestCode.SEND_REPLY_MESSAGE, header=SendMessageHeader, body=bytes, reply=SendMessageReply
)
SEND_REPLY_MESSAGE_V2 = contract(
    RequestCode.SEND_REPLY_MESSAGE_V2, header=SendMessageV2Header, body=bytes, reply=SendMessageReply
)
PUSH_REPLY_MESSAGE_TO_CLIENT = contract(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header=ReplyMessageHeader, body=bytes)
