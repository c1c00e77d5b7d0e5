"""
Brokers, topics and routes at the NameServer: registration, look-up, permissions, lists, configuration.

The body of REGISTER_BROKER is typed as bytes because its header holds a checksum of the very bytes that are sent:
:mod:`rmq.wire.api.register_body` makes and reads them.
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import DataVersion, KVTable, TopicQueueMappingInfo
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class RegisterBrokerHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The registration of a broker, at the start, every 30 s and when its topics change.

    Addresses are ``ip:port``. ``body_crc32`` is CRC-32 & 0x7fffffff of the body as sent, 0: not checked.
    ``heartbeat_timeout_millis`` (5.x) replaces the NameServer's 120 s.
    Java: RegisterBrokerRequestHeader
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    For a slave whose master is live: the master's address and where it serves replication; else nothing.

    Java: RegisterBrokerResponseHeader
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentityHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One broker process: its address and its place in cluster and group.

    Java: UnRegisterBrokerRequestHeader, QueryDataVersionRequestHeader
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    Whether the NameServer knows another version of the broker's topics, or none.

    Java: QueryDataVersionResponseHeader
    """

    changed: bool


class BrokerHeartbeatHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A 5.x broker is alive; only its address counts here.

    Java: BrokerHeartbeatRequestHeader
    """

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int64 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int64 | None = None


class GetRouteInfoHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The topic looked for. A request without one is answered like an unknown topic called ``null``.

    Java: GetRouteInfoRequestHeader
    """

    topic: str | None = None
    accept_standard_json_only: bool = False


class QueueData(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """
    The queues of one topic on one broker group.

    Java: QueueData
    """

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int


class BrokerData(msgspec.Struct, rename="camel", kw_only=True):
    """
    One broker group: address by broker id, 0 is the master; whether a slave acts for an absent master.

    NameServers of 5.x write the latter, which clients in Rust require; those of 4.x do not.
    Java: BrokerData
    """

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str
    enable_acting_master: bool | None = None


class TopicRouteData(msgspec.Struct, rename="camel", kw_only=True):
    """
    Where a topic lives; of a static topic (5.x) also its queues by group.

    Java: TopicRouteData
    """

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    All broker groups, and their names by cluster.

    Java: ClusterInfo
    """

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, list[str]]


class BrokerNameHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One broker group.

    Java: WipeWritePermOfBrokerRequestHeader, AddWritePermOfBrokerRequestHeader
    """

    broker_name: str


class WipeWritePermReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    How many topics of the broker lost the write permission; 0 for an unknown broker.

    Java: WipeWritePermOfBrokerResponseHeader
    """

    wipe_topic_count: Int32


class AddWritePermReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    How many topics of the broker are writable again; 0 for an unknown broker.

    Java: AddWritePermOfBrokerResponseHeader
    """

    add_topic_count: Int32


class TopicList(msgspec.Struct, rename="camel", kw_only=True):
    """
    Names of topics; ``broker_addr`` only in the answer to 304.

    Java: TopicList
    """

    broker_addr: str | None = None
    topic_list: list[str]


class DeleteTopicInNamesrvHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A topic to forget, everywhere or only in one cluster.

    Java: DeleteTopicFromNamesrvRequestHeader
    """

    topic: str
    cluster_name: str | None = None


class RegisterTopicHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The topic of a route given in the body.

    Java: RegisterTopicRequestHeader
    """

    topic: str


class GetTopicsByClusterHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One cluster.

    Java: GetTopicsByClusterRequestHeader
    """

    cluster: str


class GetBrokerMemberGroupHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One broker group of a cluster.

    Java: GetBrokerMemberGroupRequestHeader
    """

    cluster_name: str
    broker_name: str


class BrokerMemberGroup(msgspec.Struct, rename="camel", kw_only=True):
    """
    Addresses of a group by broker id; none when the group is unknown.

    Java: BrokerMemberGroup
    """

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class GetBrokerMemberGroupBody(msgspec.Struct, rename="camel", kw_only=True):
    """
    Answer to 901.

    Java: GetBrokerMemberGroupResponseBody
    """

    broker_member_group: BrokerMemberGroup


class NotifyMinBrokerIdChangeHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The notice of a NameServer to the brokers of a group when the smallest id changes.

    ``offline_broker_addr``: who went; ``ha_broker_addr``: where the one that came serves replication.
    Java: NotifyMinBrokerIdChangeRequestHeader
    """

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


REGISTER_BROKER = contract(
    RequestCode.REGISTER_BROKER, header=RegisterBrokerHeader, body=bytes, reply=RegisterBrokerReply, reply_body=KVTable
)
UNREGISTER_BROKER = contract(RequestCode.UNREGISTER_BROKER, header=BrokerIdentityHeader)
QUERY_DATA_VERSION = contract(
    RequestCode.QUERY_DATA_VERSION,
    header=BrokerIdentityHeader,
    body=DataVersion,
    reply=QueryDataVersionReply,
    reply_body=DataVersion,
)
BROKER_HEARTBEAT = contract(RequestCode.BROKER_HEARTBEAT, header=BrokerHeartbeatHeader)
NOTIFY_MIN_BROKER_ID_CHANGE = contract(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header=NotifyMinBrokerIdChangeHeader)
GET_ROUTEINFO_BY_TOPIC = contract(
    RequestCode.GET_ROUTEINFO_BY_TOPIC, header=GetRouteInfoHeader, reply_body=TopicRouteData
)
GET_BROKER_CLUSTER_INFO = contract(RequestCode.GET_BROKER_CLUSTER_INFO, reply_body=ClusterInfo)
GET_BROKER_MEMBER_GROUP = contract(
    RequestCode.GET_BROKER_MEMBER_GROUP, header=GetBrokerMemberGroupHeader, reply_body=GetBrokerMemberGroupBody
)
WIPE_WRITE_PERM_OF_BROKER = contract(
    RequestCode.WIPE_WRITE_PERM_OF_BROKER, header=BrokerNameHeader, reply=WipeWritePermReply
)
ADD_WRITE_PERM_OF_BROKER = contract(
    RequestCode.ADD_WRITE_PERM_OF_BROKER, header=BrokerNameHeader, reply=AddWritePermReply
)
GET_ALL_TOPIC_LIST_FROM_NAMESERVER = contract(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, reply_body=TopicList)
DELETE_TOPIC_IN_NAMESRV = contract(RequestCode.DELETE_TOPIC_IN_NAMESRV, header=DeleteTopicInNamesrvHeader)
REGISTER_TOPIC_IN_NAMESRV = contract(
    RequestCode.REGISTER_TOPIC_IN_NAMESRV, header=RegisterTopicHeader, body=TopicRouteData
)
GET_TOPICS_BY_CLUSTER = contract(
    RequestCode.GET_TOPICS_BY_CLUSTER, header=GetTopicsByClusterHeader, reply_body=TopicList
)
GET_SYSTEM_TOPIC_LIST_FROM_NS = contract(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, reply_body=TopicList)
GET_UNIT_TOPIC_LIST = contract(RequestCode.GET_UNIT_TOPIC_LIST, reply_body=TopicList)
GET_HAS_UNIT_SUB_TOPIC_LIST = contract(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, reply_body=TopicList)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = contract(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, reply_body=TopicList)
#: Both bodies are properties text, UTF-8.
UPDATE_NAMESRV_CONFIG = contract(RequestCode.UPDATE_NAMESRV_CONFIG, body=bytes)
GET_NAMESRV_CONFIG = contract(RequestCode.GET_NAMESRV_CONFIG, reply_body=bytes)
