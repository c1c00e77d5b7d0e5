"""
Requests of administrators about topics and groups.

Java: AdminBrokerProcessor
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.config import BrokerSetup
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.longpoll import LongPolls
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.refusals import SLAVE_REFUSES_CHANGES
from rmq.broker.registration import Registration
from rmq.broker.responders.sending import MULTI_TAG
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.tables import VersionedTable
from rmq.broker.topics import (
    TopicTable,
    system_topic_names,
    system_topic_problem,
    topic_name_problem,
)
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.disk.error import DiskError
from rmq.store.store import MessageStore
from rmq.wire.api.common import MessageQueue, SubscriptionGroupConfig, TopicConfig
from rmq.wire.api.topics import (
    DELETE_SUBSCRIPTIONGROUP,
    DELETE_TOPIC_IN_BROKER,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_CONFIG,
    GET_TOPIC_STATS_INFO,
    QUERY_SUBSCRIPTION_BY_CONSUMER,
    QUERY_TOPIC_CONSUME_BY_WHO,
    QUERY_TOPICS_BY_CONSUMER,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_AND_CREATE_TOPIC_LIST,
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupConfigList,
    GroupHeader,
    GroupList,
    GroupSubscription,
    GroupTopicHeader,
    SystemTopicList,
    TopicConfigList,
    TopicHeader,
    TopicList,
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
        self._check(config)
        return self._set([config], request.channel.peer)

    @responds_to(UPDATE_AND_CREATE_TOPIC_LIST)
    def create_topics(self, request: Request[None, TopicConfigList]) -> Deferred[Reply]:
        """
        Create or change all topics of the body, or none.

        Java: AdminBrokerProcessor#updateAndCreateTopicList of 5.x
        """
        self._check_master()
        configs = request.body.topic_config_list
        for config in configs:
            self._check(config)
        return self._set(configs, request.channel.peer)

    def _check(self, config: TopicConfig) -> None:
        """Refuse a topic that cannot be."""
        if config.topic_filter_type not in FILTER_TYPES:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{config.topic_filter_type}] value invalid")
        self._check_name(config.topic_name)
        for field, queues in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
            if not 0 <= queues <= MAX_QUEUES:
                raise Refuse(ResponseCode.SYSTEM_ERROR, f"{field}={queues} is not between 0 and {MAX_QUEUES}")

    def _set(self, configs: list[TopicConfig], peer: str) -> Deferred[Reply]:
        """Keep topics; fires when they are durable and the NameServers have confirmed them or timed out."""
        for config in configs:
            self._topics.put(config)
            self._log.info("{peer} set topic {topic}: {config}", peer=peer, topic=config.topic_name, config=config)
        registered = gatherResults([self._registration.topic_updated(config) for config in configs])
        return _durable(self._topics).addCallback(lambda reply: registered.addCallback(lambda _: reply))

    @responds_to(DELETE_TOPIC_IN_BROKER)
    def delete_topic(self, request: Request[TopicHeader, None]) -> Deferred[Reply]:
        """
        Delete a topic, its queues and its offsets; an unknown one succeeds.

        Java: AdminBrokerProcessor#deleteTopic
        """
        topic = request.header.topic
        self._check_master()
        self._check_name(topic)
        self._topics.delete(topic)
        deleted = self._store.delete_topic(topic)
        self._offsets.remove_topic(topic)
        self._polls.topic_deleted(topic)
        self._log.info("{peer} deleted topic {topic}", peer=request.channel.peer, topic=topic)
        durable = _durable(self._topics)
        return deleted.addCallback(lambda _: durable)

    def _check_name(self, topic: str) -> None:
        problem = topic_name_problem(topic) or system_topic_problem(topic, self._setup)
        if problem is not None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, problem)

    def _check_master(self) -> None:
        if self._setup.is_slave:
            raise Refuse(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES_CHANGES)

    @responds_to(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def create_group(self, request: Request[None, SubscriptionGroupConfig]) -> Deferred[Reply]:
        """
        Java: AdminBrokerProcessor#updateAndCreateSubscriptionGroup
        """
        self._check_master()
        self._groups.put(request.body)
        self._log.info("{peer} set group {config}", peer=request.channel.peer, config=request.body)
        return _durable(self._groups)

    @responds_to(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def create_groups(self, request: Request[None, GroupConfigList]) -> Deferred[Reply]:
        """
        Java: AdminBrokerProcessor#updateAndCreateSubscriptionGroupList of 5.x
        """
        self._check_master()
        for config in request.body.group_config_list:
            self._groups.put(config)
            self._log.info("{peer} set group {config}", peer=request.channel.peer, config=config)
        return _durable(self._groups)

    @responds_to(DELETE_SUBSCRIPTIONGROUP)
    def delete_group(self, request: Request[DeleteGroupHeader, None]) -> Deferred[Reply]:
        """
        Java: AdminBrokerProcessor#deleteSubscriptionGroup
        """
        self._check_master()
        header = request.header
        self._groups.delete(header.group_name)
        if header.remove_offset or header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._log.info("{peer} deleted group {group}", peer=request.channel.peer, group=header.group_name)
        return _durable(self._groups)

    @responds_to(GET_TOPIC_STATS_INFO)
    def topic_stats(self, request: Request[TopicHeader, None]) -> Reply:
        """
        The range of each queue, also of one that never had a message.

        Java: AdminBrokerProcessor#getTopicStatsInfo
        """
        topic = request.header.topic
        ranges = self.ranges(topic)
        if ranges is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return Reply(body=self.stats_of(topic, ranges))

    def ranges(self, topic: str) -> Sequence[tuple[int, int]] | None:
        """Return the range of each queue of a topic; None when there is no such topic."""
        config = self._topics.get(topic)
        return None if config is None else self._store.ranges(topic, config.write_queue_nums)

    def stats_of(self, topic: str, ranges: Sequence[tuple[int, int]]) -> TopicStatsTable:
        """Return the answer about queues with these ranges."""
        table = {}
        for queue_id, (first, end) in enumerate(ranges):
            last_ms = self._store.store_time_of(topic, queue_id, end - 1) if end > 0 else None
            table[MessageQueue(topic=topic, broker_name=self._setup.name, queue_id=queue_id)] = TopicOffset(
                last_update_timestamp=last_ms or 0, max_offset=end, min_offset=first
            )
        return TopicStatsTable(offset_table=table)

    @responds_to(QUERY_TOPIC_CONSUME_BY_WHO)
    def consumed_by(self, request: Request[TopicHeader, None]) -> Reply:
        topic = request.header.topic
        groups = {*self._consumers.subscribers(topic), *self._offsets.groups_of(topic)}
        return Reply(body=GroupList(group_list=sorted(groups)))

    @responds_to(QUERY_TOPICS_BY_CONSUMER)
    def topics_of(self, request: Request[GroupHeader, None]) -> Reply:
        """The topics of which a group has offsets."""
        topics = sorted(self._offsets.topics_of(request.header.group))
        return Reply(body=TopicList(broker_addr=self._setup.address, topic_list=topics))

    @responds_to(QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, request: Request[GroupTopicHeader, None]) -> Reply:
        header = request.header
        group = self._consumers.find(header.group)
        found = None if group is None else group.subscriptions.get(header.topic or "")
        return Reply(body=GroupSubscription(group=header.group, subscription_data=found, topic=header.topic))

    @responds_to(GET_TOPIC_CONFIG)
    def topic_config(self, request: Request[TopicHeader, None]) -> Reply:
        topic = request.header.topic
        config = self._topics.get(topic)
        if config is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return Reply(body=config)

    @responds_to(GET_SUBSCRIPTIONGROUP_CONFIG)
    def group_config(self, request: Request[GroupHeader, None]) -> Reply:
        """A group that is unknown is made, if it may be."""
        config = self._groups.find(request.header.group)
        if config is None:
            raise Refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return Reply(body=config)

    @responds_to(GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, request: Request[None, None]) -> Reply:
        return Reply(body=SystemTopicList(topic_list=sorted(system_topic_names(self._setup))))


def _durable(table: VersionedTable[Any, Any]) -> Deferred[Reply]:
    """Answer when a change is durable; Refuse when the disk does not take it."""

    def refused(failure: Failure) -> Reply:
        failure.trap(DiskError)
        raise Refuse(ResponseCode.SYSTEM_ERROR, f"changed in memory only, {failure.value}")

    return table.saved().addCallback(lambda _: Reply()).addErrback(refused)
