"""Clients: heartbeats (34, 35, 46), who is in a group (38, 40), ordered locks (41, 42), connections (203, 204, 328)."""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract

#: Enum members by ordinal: the C++ client sends numbers.
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ConsumerData(msgspec.Struct, rename="camel", kw_only=True):
    """
    One consumer group of a client; the three kinds come as names or, from C++, as ordinals.

    Java: ConsumerData
    """

    group_name: str
    consume_type: str | int | None = None
    message_model: str | int | None = None
    consume_from_where: str | int | None = None
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel", kw_only=True):
    """One producer group of a client.  Java: ProducerData"""

    group_name: str


class HeartbeatData(
    msgspec.Struct,
    rename={"client_id": "clientID"}
    | {  # not camel: the D of clientID
        "consumer_data_set": "consumerDataSet",
        "producer_data_set": "producerDataSet",
        "without_sub": "withoutSub",
    },
    kw_only=True,
):
    """
    A client and the groups that it belongs to; ``without_sub`` (5.x) leaves the subscriptions out.

    Java: HeartbeatData
    """

    client_id: str
    consumer_data_set: list[ConsumerData] | None = None
    producer_data_set: list[ProducerData] | None = None
    without_sub: bool = False


class UnregisterClientHeader(
    msgspec.Struct,
    rename={
        "client_id": "clientID",
        "producer_group": "producerGroup",
        "consumer_group": "consumerGroup",
    },
    kw_only=True,
):
    """
    A client leaves its groups; C++ sends empty texts for none.

    Java: UnregisterClientRequestHeader
    """

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class CheckClientBody(msgspec.Struct, rename="camel", kw_only=True):
    """A subscription to be judged before it is used.  Java: CheckClientRequestBody"""

    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None


class ConsumerGroupHeader(msgspec.Struct, rename="camel", kw_only=True):
    """One consumer group."""

    consumer_group: str


class ProducerGroupHeader(msgspec.Struct, rename="camel", kw_only=True):
    """One producer group."""

    producer_group: str


class ConsumerIdList(msgspec.Struct, rename="camel", kw_only=True):
    """Client ids of the online members of a group.  Java: GetConsumerListByGroupResponseBody"""

    consumer_id_list: list[str]


class LockBatchBody(msgspec.Struct, rename="camel", kw_only=True):
    """
    Queues that a client wants to hold, or gives back.

    Java: LockBatchRequestBody, UnlockBatchRequestBody
    """

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockedQueues(msgspec.Struct, rename={"lock_ok_mq_set": "lockOKMQSet"}, kw_only=True):
    """Queues that the client holds now.  Java: LockBatchResponseBody"""

    lock_ok_mq_set: list[MessageQueue]


class Connection(msgspec.Struct, rename="camel", kw_only=True):
    """One client of a group; ``client_addr`` is ``ip:port``.  Java: Connection"""

    client_addr: str
    client_id: str
    language: str
    version: int


class ConsumerConnection(msgspec.Struct, rename="camel", kw_only=True):
    """The members of a consumer group and what they subscribe to.  Java: ConsumerConnection"""

    connection_set: list[Connection]
    consume_from_where: str
    consume_type: str
    message_model: str
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(msgspec.Struct, rename="camel", kw_only=True):
    """The members of a producer group.  Java: ProducerConnection"""

    connection_set: list[Connection]


class ProducerInfo(
    msgspec.Struct,
    rename={
        "client_id": "clientId",
        "last_update_timestamp": "lastUpdateTimestamp",
        "remote_ip": "remoteIP",
    },
    kw_only=True,
):
    """One producer; ``remote_ip`` is ``/ip:port``.  Java: ProducerInfo"""

    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str
    version: int


class ProducerTable(msgspec.Struct, rename="camel", kw_only=True):
    """Every producer by group.  Java: ProducerTableInfo"""

    data: dict[str, list[ProducerInfo]]


HEART_BEAT = contract(RequestCode.HEART_BEAT, body=HeartbeatData)
UNREGISTER_CLIENT = contract(RequestCode.UNREGISTER_CLIENT, header=UnregisterClientHeader)
#: The body is a CheckClientBody in JSON, or nothing.
CHECK_CLIENT_CONFIG = contract(RequestCode.CHECK_CLIENT_CONFIG, body=bytes)
GET_CONSUMER_LIST_BY_GROUP = contract(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP, header=ConsumerGroupHeader, reply_body=ConsumerIdList
)
#: Broker to client, one-way.
NOTIFY_CONSUMER_IDS_CHANGED = contract(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header=ConsumerGroupHeader)
LOCK_BATCH_MQ = contract(RequestCode.LOCK_BATCH_MQ, body=LockBatchBody, reply_body=LockedQueues)
UNLOCK_BATCH_MQ = contract(RequestCode.UNLOCK_BATCH_MQ, body=LockBatchBody)
GET_CONSUMER_CONNECTION_LIST = contract(
    RequestCode.GET_CONSUMER_CONNECTION_LIST, header=ConsumerGroupHeader, reply_body=ConsumerConnection
)
GET_PRODUCER_CONNECTION_LIST = contract(
    RequestCode.GET_PRODUCER_CONNECTION_LIST, header=ProducerGroupHeader, reply_body=ProducerConnection
)
GET_ALL_PRODUCER_INFO = contract(RequestCode.GET_ALL_PRODUCER_INFO, reply_body=ProducerTable)
