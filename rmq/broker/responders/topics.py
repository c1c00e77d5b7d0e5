"""
Requests of administrators about topics and groups.

Java: AdminBrokerProcessor
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from rmq.broker.config import BrokerSetup
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.longpoll import LongPolls
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.refusals import SLAVE_REFUSES_CHANGES
from rmq.broker.registration import Registration
from rmq.broker.responders.sending import MULTI_TAG
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.topics import (
    TopicDefaults,
    TopicTable,
    system_topic_names,
    system_topic_problem,
    topic_name_problem,
)
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.store.store import MessageStore
from rmq.wire.api.common import MessageQueue, SubscriptionGroupConfig, TopicConfig
from rmq.wire.api.topics import (
    DELETE_SUBSCRIPTIONGROUP,
    DELETE_TOPIC_IN_BROKER,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupList,
    SystemTopicList,
    TopicHeader,
    TopicOffset,
    TopicStatsTable,
)
from rmq.wire.codes import ResponseCode

#: queues that one topic may have; Apache has no limit and runs out of files
MAX_QUEUES = 65_536

#: Java: TopicFilterType
FILTER_TYPES = frozenset(("SINGLE_TAG", MULTI_TAG))


@attrs.define(eq=False)
class TopicResponder:
    """Create, delete, describe."""

    _log = Logger()

    _setup: BrokerSetup
    _defaults: TopicDefaults
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable
    _polls: LongPolls
    _registration: Registration

    @responds_to(UPDATE_AND_CREATE_TOPIC)
    def create_topic(self, request: Request[CreateTopicHeader, None]) -> Deferred[Reply]:
        """
        Answered when the NameServers have confirmed the topic or timed out.

        Java: AdminBrokerProcessor#updateAndCreateTopic, CreateTopicRequestHeader#checkFields
        """
        header = request.header
        self._check_master()
        if header.topic_filter_type not in FILTER_TYPES:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid")
        self._check_name(header.topic)
        for field, queues in (
            ("readQueueNums", header.read_queue_nums),
            ("writeQueueNums", header.write_queue_nums),
        ):
            if not 0 <= queues <= MAX_QUEUES:
                raise Refuse(ResponseCode.SYSTEM_ERROR, f"{field}={queues} is not between 0 and {MAX_QUEUES}")
        former = self._topics.get(header.topic)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=former is not None and former.order,
        )
        self._topics.put(config)
        self._log.info(
            "{peer} set topic {topic}: {config}", peer=request.channel.peer, topic=header.topic, config=config
        )
        return self._registration.topic_updated(config).addCallback(lambda _: Reply())

    @responds_to(DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, request: Request[TopicHeader, None]) -> None:
        """
        Delete a topic, its queues and its offsets; an unknown one succeeds.

        Java: AdminBrokerProcessor#deleteTopic
        """
        topic = request.header.topic
        self._check_master()
        self._check_name(topic)
        self._topics.delete(topic)
        self._store.delete_topic(topic)
        self._offsets.remove_topic(topic)
        self._polls.topic_deleted(topic)
        self._log.info("{peer} deleted topic {topic}", peer=request.channel.peer, topic=topic)

    def _check_name(self, topic: str) -> None:
        problem = topic_name_problem(topic) or system_topic_problem(topic, self._defaults)
        if problem is not None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, problem)

    def _check_master(self) -> None:
        if self._setup.is_slave:
            raise Refuse(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES_CHANGES)

    @responds_to(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def create_group(self, request: Request[None, SubscriptionGroupConfig]) -> None:
        """
        Java: AdminBrokerProcessor#updateAndCreateSubscriptionGroup
        """
        self._check_master()
        self._groups.put(request.body)
        self._log.info("{peer} set group {config}", peer=request.channel.peer, config=request.body)

    @responds_to(DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, request: Request[DeleteGroupHeader, None]) -> None:
        """
        Java: AdminBrokerProcessor#deleteSubscriptionGroup
        """
        self._check_master()
        header = request.header
        self._groups.delete(header.group_name)
        if header.remove_offset or header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._log.info("{peer} deleted group {group}", peer=request.channel.peer, group=header.group_name)

    @responds_to(GET_TOPIC_STATS_INFO)
    def topic_stats(self, request: Request[TopicHeader, None]) -> Reply:
        """
        The range of each queue, also of one that never had a message.

        Java: AdminBrokerProcessor#getTopicStatsInfo
        """
        topic = request.header.topic
        config = self._topics.get(topic)
        if config is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        table = {}
        for queue_id in range(config.write_queue_nums):
            end = max(self._store.max_offset(topic, queue_id), 0)
            last_ms = self._store.store_time_of(topic, queue_id, end - 1) if end > 0 else None
            table[MessageQueue(topic=topic, broker_name=self._setup.name, queue_id=queue_id)] = TopicOffset(
                last_update_timestamp=last_ms or 0,
                max_offset=end,
                min_offset=max(self._store.min_offset(topic, queue_id), 0),
            )
        return Reply(body=TopicStatsTable(offset_table=table))

    @responds_to(QUERY_TOPIC_CONSUME_BY_WHO)
    def consumed_by(self, request: Request[TopicHeader, None]) -> Reply:
        topic = request.header.topic
        groups = {*self._consumers.subscribers(topic), *self._offsets.groups_of(topic)}
        return Reply(body=GroupList(group_list=sorted(groups)))

    @responds_to(GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, request: Request[None, None]) -> Reply:
        return Reply(body=SystemTopicList(topic_list=sorted(system_topic_names(self._defaults))))
