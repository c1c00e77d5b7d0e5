"""
Topics and groups: create, delete (17, 18, 215, 200, 225, 207), show (351, 352), contents (202, 321), consumers (300,
343, 345), system topics (305).
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import MessageQueue, SubscriptionData, SubscriptionGroupConfig, TopicConfig
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64


class CreateTopicHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A topic as it shall be.

    Java: CreateTopicRequestHeader
    """

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    #: of 5.x: ``+message.type=FIFO``
    attributes: str | None = None


class TopicHeader(msgspec.Struct, rename="camel", kw_only=True):
    """One topic."""

    topic: str


class TopicOffset(msgspec.Struct, rename="camel", kw_only=True):
    """
    The range of a queue and the store time of its last message (0: none).

    Java: TopicOffset
    """

    last_update_timestamp: int
    max_offset: int
    min_offset: int


class TopicStatsTable(msgspec.Struct, rename="camel", kw_only=True):
    """Ranges by queue.  Java: TopicStatsTable"""

    offset_table: dict[MessageQueue, TopicOffset]


class DeleteGroupHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A group to forget, with its offsets or not; 5.x calls the flag ``clean_offset``.

    Java: DeleteSubscriptionGroupRequestHeader
    """

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class GroupList(msgspec.Struct, rename="camel", kw_only=True):
    """Names of groups.  Java: GroupList"""

    group_list: list[str]


class SystemTopicList(msgspec.Struct, rename="camel", kw_only=True):
    """Names of topics.  Java: TopicList"""

    topic_list: list[str]


class TopicList(msgspec.Struct, rename="camel", kw_only=True):
    """Names of topics on one broker, as 5.x answers.  Java: TopicList"""

    broker_addr: str
    topic_list: list[str]


class TopicConfigList(msgspec.Struct, rename="camel", kw_only=True):
    """Topics to create or change together.  Java: CreateTopicListRequestBody of 5.x"""

    topic_config_list: list[TopicConfig]


class GroupConfigList(msgspec.Struct, rename="camel", kw_only=True):
    """Groups to create or change together.  Java: SubscriptionGroupList of 5.x"""

    group_config_list: list[SubscriptionGroupConfig]


class GroupHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: QueryTopicsByConsumerRequestHeader, GetSubscriptionGroupConfigRequestHeader of 5.x"""

    group: str


class GroupTopicHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: QuerySubscriptionByConsumerRequestHeader of 5.x"""

    group: str
    topic: str | None = None


class GroupSubscription(msgspec.Struct, rename="camel", kw_only=True):
    """What a group wants of a topic; None if nobody of it is connected.  Java: QuerySubscriptionResponseBody of 5.x"""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


class QueryConsumeQueueHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    ``count`` index units of a queue from ``index`` on, with a group's subscription if one is given.

    Java: QueryConsumeQueueRequestHeader
    """

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class ConsumeQueueUnit(msgspec.Struct, rename="camel", kw_only=True):
    """
    One index unit; ``eval``: does the subscription match it. The texts are of filters with an extended index.

    Java: ConsumeQueueData
    """

    eval: bool = False
    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class ConsumeQueueContents(msgspec.Struct, rename="camel", kw_only=True):
    """Index units and the range of the queue.  Java: QueryConsumeQueueResponseBody"""

    filter_data: str | None = None
    max_queue_index: int
    min_queue_index: int
    queue_data: list[ConsumeQueueUnit]
    subscription_data: SubscriptionData | None = None


UPDATE_AND_CREATE_TOPIC = contract(RequestCode.UPDATE_AND_CREATE_TOPIC, header=CreateTopicHeader)
DELETE_TOPIC_IN_BROKER = contract(RequestCode.DELETE_TOPIC_IN_BROKER, header=TopicHeader)
GET_TOPIC_STATS_INFO = contract(RequestCode.GET_TOPIC_STATS_INFO, header=TopicHeader, reply_body=TopicStatsTable)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = contract(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig
)
DELETE_SUBSCRIPTIONGROUP = contract(RequestCode.DELETE_SUBSCRIPTIONGROUP, header=DeleteGroupHeader)
QUERY_TOPIC_CONSUME_BY_WHO = contract(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header=TopicHeader, reply_body=GroupList)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = contract(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, reply_body=SystemTopicList)
QUERY_CONSUME_QUEUE = contract(
    RequestCode.QUERY_CONSUME_QUEUE, header=QueryConsumeQueueHeader, reply_body=ConsumeQueueContents
)
#: from here on codes of 5.x
UPDATE_AND_CREATE_TOPIC_LIST = contract(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=TopicConfigList)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = contract(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=GroupConfigList
)
QUERY_TOPICS_BY_CONSUMER = contract(RequestCode.QUERY_TOPICS_BY_CONSUMER, header=GroupHeader, reply_body=TopicList)
QUERY_SUBSCRIPTION_BY_CONSUMER = contract(
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header=GroupTopicHeader, reply_body=GroupSubscription
)
GET_TOPIC_CONFIG = contract(RequestCode.GET_TOPIC_CONFIG, header=TopicHeader, reply_body=TopicConfig)
GET_SUBSCRIPTIONGROUP_CONFIG = contract(
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header=GroupHeader, reply_body=SubscriptionGroupConfig
)
