"""
Clients: heartbeats, group members, ordered locks, connections.

Java: ClientManageProcessor, ConsumerManageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.consumerfilters import ConsumerFilters, compile_filter
from rmq.broker.filters import SubscriptionError, completed, is_tag_type
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.locks import QueueLocks
from rmq.broker.refusals import check_filter_type
from rmq.broker.sessions import ChangeNotices, ConsumerGroups, Heartbeat, Heartbeats, Member, ProducerGroups
from rmq.broker.settings import Settings
from rmq.broker.topics import RETRY_PREFIX, TopicTable, retry_topic
from rmq.remoting.channel import Channel
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import steady_ms, wall_ms
from rmq.wire import fastjson
from rmq.wire.api.clients import (
    CHECK_CLIENT_CONFIG,
    CONSUME_FROM_WHERE,
    CONSUME_TYPES,
    GET_ALL_PRODUCER_INFO,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_LIST_BY_GROUP,
    GET_PRODUCER_CONNECTION_LIST,
    HEART_BEAT,
    LOCK_BATCH_MQ,
    MESSAGE_MODELS,
    UNLOCK_BATCH_MQ,
    UNREGISTER_CLIENT,
    CheckClientBody,
    Connection,
    ConsumerConnection,
    ConsumerData,
    ConsumerGroupHeader,
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    ProducerConnection,
    ProducerGroupHeader,
    ProducerInfo,
    ProducerTable,
    UnregisterClientHeader,
)
from rmq.wire.api.common import SYS_FLAG_UNIT_SUB, SubscriptionData
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand

#: groups that one client may belong to; each new consumer group costs a topic and two file writes
MAX_GROUPS_OF_A_CLIENT = 1024


def enum_name(value: str | int | None, names: tuple[str, ...], default: str) -> str:
    """Return the name of an enum member given by name or ordinal; ``default`` if it is absent or invalid."""
    if isinstance(value, str) and value and not value.isdecimal():
        return value
    if value is None or value == "":
        return default
    ordinal = int(value)
    return names[ordinal] if 0 <= ordinal < len(names) else default


@attrs.define(eq=False)
class ClientResponder:
    """Requests of clients about themselves and each other."""

    _log = Logger()

    _settings: Settings
    _clock: IReactorTime
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _producers: ProducerGroups
    _consumers: ConsumerGroups
    _filters: ConsumerFilters
    _notices: ChangeNotices
    _locks: QueueLocks
    _heartbeats: Heartbeats

    @responds_to(HEART_BEAT)
    def heartbeat(self, request: Request[None, HeartbeatData]) -> None:
        """
        Record the client's groups. The members of a group, the new one included, are notified before the answer.

        Java: ClientManageProcessor#heartBeat
        """
        data = request.body
        groups = len(data.consumer_data_set or ()) + len(data.producer_data_set or ())
        if groups > MAX_GROUPS_OF_A_CLIENT:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR, f"{groups} groups in one heartbeat, the limit is {MAX_GROUPS_OF_A_CLIENT}"
            )
        member = self._member(data.client_id, request.command, request.channel)
        troubles = [self._consumer(consumer, member, data.without_sub) for consumer in data.consumer_data_set or ()]
        for producer in data.producer_data_set or ():
            if producer.group_name:
                self._producers.register(producer.group_name, member)
        for trouble in filter(None, troubles):
            # Apache says nothing, and delivers nothing: the client's log would not know why
            raise Refuse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(trouble))
        self._keep(request.command.body or b"", data, member)

    def _keep(self, body: bytes, data: HeartbeatData, member: Member) -> None:
        """Keep a heartbeat that would change nothing if it came again, for :meth:`renew`."""
        names = [consumer.group_name for consumer in data.consumer_data_set or () if consumer.group_name]
        groups = list(filter(None, map(self._consumers.find, names)))
        if len(set(names)) == len(groups) == len(names) and not any(map(self._filters.is_used, names)):
            self._heartbeats.keep(
                Heartbeat(
                    body=body,
                    member=member,
                    groups=[(group, group.revision) for group in groups],
                    producer_groups=[each.group_name for each in data.producer_data_set or () if each.group_name],
                    tables=(self._topics.data_version, self._groups.data_version),
                )
            )

    def renew(self, channel: Channel, body: bytes, language: str, version: int) -> bool:
        """
        Take a heartbeat that changes nothing but when the client was heard last.

        False, with nothing done, for any other: one that differs from the connection's last one, or that would change
        what other clients or commands have changed since.
        """
        last = self._heartbeats.find(channel)
        if last is None or last.body != body:
            return False
        member, (topics, table) = last.member, last.tables
        if (
            self._topics.data_version is not topics
            or self._groups.data_version is not table
            or member.version != version
            or member.language != language
        ):
            return False
        for group, revision in last.groups:
            name = group.name
            if (
                group.revision != revision
                or group.members.get(channel) is not member
                or self._consumers.find(name) is not group
                or self._filters.is_used(name)
            ):
                return False
        for name in last.producer_groups:
            if not self._producers.has(name, member):
                return False
        member.last_heard_ms = steady_ms(self._clock)
        return True

    def _member(self, client_id: str, command: RemotingCommand, channel: Channel) -> Member:
        return Member(
            channel=channel,
            client_id=client_id,
            language="OTHER" if command.language is None else command.language.name,
            version=command.version,
            last_heard_ms=steady_ms(self._clock),
        )

    def _consumer(
        self, consumer: ConsumerData, member: Member, without_subscriptions: bool
    ) -> SubscriptionError | None:
        """Record a member; return what is wrong with a filter of its group."""
        if not consumer.group_name:
            return None
        config = self._groups.find(consumer.group_name)
        notify = True
        if config is not None:
            notify = config.notify_consumer_ids_changed_enable
            self._create_retry_topic(consumer, config.retry_queue_nums)
        subscriptions, trouble = None, None
        if not without_subscriptions:
            subscriptions = [completed(subscription) for subscription in consumer.subscription_data_set or ()]
            self._say_differences(consumer.group_name, member, subscriptions)
        changed = self._consumers.register(
            consumer.group_name,
            member,
            subscriptions,
            consume_type=enum_name(consumer.consume_type, CONSUME_TYPES, "CONSUME_PASSIVELY"),
            message_model=enum_name(consumer.message_model, MESSAGE_MODELS, "CLUSTERING"),
            consume_from_where=enum_name(consumer.consume_from_where, CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET"),
        )
        if changed is not None:
            self._log.info(
                "group {group} changed: {members} members online after a heartbeat of {client_id} from {peer}",
                group=changed.name,
                members=len(changed.members),
                client_id=member.client_id,
                peer=member.channel.peer,
            )
            if notify:
                self._notices.now(changed)
        if subscriptions is not None:
            trouble = self._filters.register(consumer.group_name, subscriptions)
        return trouble

    def _say_differences(self, name: str, member: Member, subscriptions: list[SubscriptionData]) -> None:
        """Warn, once each, of members with other subscriptions: the group has the newest, so messages are lost."""
        group = self._consumers.find(name)
        if group is not None and (differences := group.differences(member.client_id, subscriptions)):
            self._log.warn(
                "members of group {group} subscribe to different things, so messages are lost: {differences}"
                " (heartbeat of {client_id} from {peer})",
                group=name,
                differences="; ".join(differences),
                client_id=member.client_id,
                peer=member.channel.peer,
            )

    def _create_retry_topic(self, consumer: ConsumerData, queues: int) -> None:
        """Create a group's retry topic, for a route before the first retry; a slave gets it from its master."""
        name = RETRY_PREFIX + consumer.group_name
        if not self._settings.setup.is_slave and self._topics.get(name) is None:
            unit = SYS_FLAG_UNIT_SUB if consumer.unit_mode else 0
            self._topics.create(retry_topic(name, queues, unit))

    @responds_to(UNREGISTER_CLIENT)
    def unregister(self, request: Request[UnregisterClientHeader, None]) -> Reply:
        """
        Java: ClientManageProcessor#unregisterClient
        """
        header = request.header
        if header.producer_group:
            self._producers.unregister(header.producer_group, request.channel)
        if header.consumer_group:
            left = self._consumers.unregister(header.consumer_group, request.channel)
            config = self._groups.get(header.consumer_group)
            if left is not None and (config is None or config.notify_consumer_ids_changed_enable):
                self._notices.now(left)
        return Reply()

    @responds_to(CHECK_CLIENT_CONFIG)
    def check_client(self, request: Request[None, bytes]) -> None:
        """
        Answer whether a subscription can be served; an empty request succeeds.

        Java: ClientManageProcessor#checkClientConfig
        """
        if not request.body:
            return
        subscription = fastjson.decode(request.body, CheckClientBody).subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return
        check_filter_type(self._settings.setup.broker, subscription.expression_type)
        try:
            compile_filter(subscription.expression_type, subscription.sub_string)
        except SubscriptionError as error:
            raise Refuse(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None

    @responds_to(GET_CONSUMER_LIST_BY_GROUP)
    def consumer_ids(self, request: Request[ConsumerGroupHeader, None]) -> Reply:
        name = request.header.consumer_group
        group = self._consumers.find(name)
        if group is None or not group.client_ids:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return Reply(body=ConsumerIdList(consumer_id_list=group.client_ids))

    @responds_to(LOCK_BATCH_MQ)
    def lock(self, request: Request[None, LockBatchBody]) -> Reply:
        body = request.body
        held = self._locks.lock(body.consumer_group, body.client_id, body.mq_set, steady_ms(self._clock))
        return Reply(body=LockedQueues(lock_ok_mq_set=held))

    @responds_to(UNLOCK_BATCH_MQ)
    def unlock(self, request: Request[None, LockBatchBody]) -> None:
        body = request.body
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)

    @responds_to(GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, request: Request[ConsumerGroupHeader, None]) -> Reply:
        name = request.header.consumer_group
        group = self._consumers.find(name)
        if group is None:
            raise Refuse(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return Reply(
            body=ConsumerConnection(
                connection_set=[_connection(member) for member in group.members.values()],
                consume_from_where=group.consume_from_where,
                consume_type=group.consume_type,
                message_model=group.message_model,
                subscription_table=dict(group.subscriptions),
            )
        )

    @responds_to(GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, request: Request[ProducerGroupHeader, None]) -> Reply:
        name = request.header.producer_group
        members = self._producers.members(name)
        if not members:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return Reply(body=ProducerConnection(connection_set=[_connection(member) for member in members]))

    @responds_to(GET_ALL_PRODUCER_INFO)
    def producers(self, request: Request[None, None]) -> Reply:
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    language=member.language,
                    last_update_timestamp=wall_ms(self._clock, member.last_heard_ms),
                    remote_ip=f"/{member.channel.peer}",
                    version=member.version,
                )
                for member in members
            ]
            for group, members in self._producers.table().items()
        }
        return Reply(body=ProducerTable(data=table))


def _connection(member: Member) -> Connection:
    return Connection(
        client_addr=member.channel.peer,
        client_id=member.client_id,
        language=member.language,
        version=member.version,
    )
