"""
Messages that a consumer sends back for a retry: code 36.

Java: AbstractSendMessageProcessor#consumerSendMsgBack

Two differences are deliberate. Apache draws the queue from ``retryQueueNums`` alone. If that was raised after
the retry topic was created, retries go to queues that cannot be pulled. And Apache delays messages that it can never
deliver: the retry topic of a group with a long name does not fit the record.
"""

from __future__ import annotations

from random import Random

import attrs
from twisted.internet.defer import Deferred

from rmq.broker.delays import park, stored_again
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.refusals import FAQ
from rmq.broker.responders.sending import MAX_RECONSUME_VERSION
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TopicTable,
    retry_topic,
    topic_name_problem,
)
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.store.queues import is_storable_topic
from rmq.store.store import MessageStore
from rmq.wire.api.common import PERM_WRITE, SYS_FLAG_UNIT_SUB, SubscriptionGroupConfig, TopicConfig
from rmq.wire.api.sending import CONSUMER_SEND_MSG_BACK, SendBackHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
    Record,
    decode_record,
    encode_properties,
)

#: delay level of the first retry; each further retry has the next level.  Java: MessageConst
FIRST_RETRY_LEVEL = 3


@attrs.define(eq=False)
class SendBackResponder:
    """Put a message into its group's retry topic after a delay, or into the dead-letter topic."""

    _settings: Settings
    _rng: Random
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _stats: BrokerStats
    _max_delay_level: int

    @responds_to(CONSUMER_SEND_MSG_BACK)
    def send_back(self, request: Request[SendBackHeader, None]) -> Reply | Deferred[Reply]:
        header = request.header
        group = self._admit(header)
        if group.retry_queue_nums <= 0:
            return Reply()
        topic = self._topic(
            RETRY_PREFIX + header.group, group.retry_queue_nums, SYS_FLAG_UNIT_SUB if header.unit_mode else 0
        )
        record = self._look_up(header.offset)
        message = self._message(record, header, group, topic, request.command.version)
        back_topic = record.property_map.get(PROPERTY_RETRY_TOPIC, record.topic)
        dead = message.topic == DLQ_PREFIX + header.group
        result = self._topics.when_announced(message.topic, self._store.put(message))
        if isinstance(result, Deferred):
            return result.addCallback(self._reply, header.group, back_topic, dead)
        return self._reply(result, header.group, back_topic, dead)

    def _admit(self, header: SendBackHeader) -> SubscriptionGroupConfig:
        group = self._groups.find(header.group)
        if group is None:
            raise Refuse(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group} {FAQ}"
            )
        broker = self._settings.setup.broker
        if not broker.broker_permission & PERM_WRITE:
            raise Refuse(ResponseCode.NO_PERMISSION, f"the broker[{broker.broker_ip1}] sending message is forbidden")
        if self._settings.setup.is_slave:
            raise Refuse(ResponseCode.SYSTEM_ERROR, PutStatus.SERVICE_NOT_AVAILABLE.name)
        return group

    def _topic(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """
        Return a retry or dead-letter topic, created if necessary; Refuse when it is not writable or cannot be stored.

        A heartbeat may have created a topic whose name is too long for a record, so the name is always checked.
        """
        if not is_storable_topic(name):
            raise Refuse(ResponseCode.SYSTEM_ERROR, topic_name_problem(name) or f"topic[{name}] cannot be stored")
        topic = self._topics.get(name)
        if topic is None:
            topic = retry_topic(name, queues, sys_flag)
            self._topics.create(topic)
        if not topic.perm & PERM_WRITE:
            raise Refuse(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic

    def _look_up(self, offset: int) -> Record:
        data = self._store.message_at(offset)
        if data is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return decode_record(data)

    def _message(
        self, record: Record, header: SendBackHeader, group: SubscriptionGroupConfig, topic: TopicConfig, version: int
    ) -> Message:
        """Return the message to store: with one more retry, delayed unless it goes to the dead-letter topic."""
        pairs = record.property_map
        pairs.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
        pairs.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, record.offset_msg_id)
        pairs[PROPERTY_WAIT] = "false"
        most = group.retry_max_times
        if version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        dead = record.reconsume_times >= most or header.delay_level < 0
        level = 0 if dead else header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        if dead:
            topic = self._topic(DLQ_PREFIX + header.group, 1)
        pairs[PROPERTY_DELAY] = str(level)
        queue_id = 0 if dead else self._retry_queue(group, topic)
        message = stored_again(record, topic.topic_name, queue_id, encode_properties(pairs))
        message.reconsume_times += 1
        return park(message, pairs, level, self._max_delay_level) if level else message

    def _retry_queue(self, group: SubscriptionGroupConfig, topic: TopicConfig) -> int:
        """Draw a queue of the group that the topic has and consumers can pull."""
        queues = min(group.retry_queue_nums, topic.read_queue_nums, topic.write_queue_nums)
        if queues < 1:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"topic[{topic.topic_name}] has no queue to write to")
        return self._rng.randrange(queues)

    def _reply(self, result: PutResult, group: str, topic: str, dead: bool) -> Reply:
        if not result.ok:
            raise Refuse(ResponseCode.SYSTEM_ERROR, result.status.name)
        self._stats.sent_back(group, topic)
        if dead:
            self._stats.dead_letter(group, topic)
        else:
            self._stats.parked(1, result.size)
        return Reply()
