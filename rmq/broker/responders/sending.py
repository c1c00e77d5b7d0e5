"""
Sends: codes 10, 310 and 320.

Java: SendMessageProcessor, AbstractSendMessageProcessor
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmq.broker.delays import park
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.refusals import (
    FAQ,
    STORED_CODES,
    describe_topic,
    human_time,
    illegal,
    put_refusal,
    service_not_available,
)
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TopicTable,
    auto_create,
    retry_topic,
    sending_problem,
    topic_name_problem,
)
from rmq.broker.transactions import half_message
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import now_ms
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.store.store import MessageStore
from rmq.wire.api.common import PERM_WRITE, TopicConfig
from rmq.wire.api.sending import (
    SEND_BATCH_MESSAGE,
    SEND_MESSAGE,
    SEND_MESSAGE_V2,
    SEND_REPLY_MESSAGE,
    SendMessageHeader,
    SendMessageReply,
    SendMessageV2Header,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.command import ONEWAY, RemotingCommand
from rmq.wire.extfields import BadField, parse_boolean
from rmq.wire.record import (
    MULTI_TAGS,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
    TIMER_PROPERTIES,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    decode_batch,
    decode_properties,
    encode_properties,
)

#: from this version on the producer's own limit of retries counts.  Java: MQVersion.Version.V3_4_9
MAX_RECONSUME_VERSION = 121

MULTI_TAG = "MULTI_TAG"


def any_send(contract: Any) -> Any:
    """The contract of a send whose header class is found by :func:`read_header`, not by the code."""
    return attrs.evolve(contract, header=None)


def read_header(command: RemotingCommand) -> SendMessageHeader:
    """
    Return the header of a send in either key set; a BadField names a missing field.

    The key set that goes with the code is tried first, then the other one.
    """
    short_first = command.code not in (SEND_MESSAGE.code, SEND_REPLY_MESSAGE.code)
    first: type[SendMessageHeader] = SendMessageV2Header if short_first else SendMessageHeader
    try:
        return command.decode_header(first)
    except BadField:
        fields = command.ext_fields
        if ("topic" if short_first else "b") not in fields:
            raise
    return command.decode_header(SendMessageHeader if short_first else SendMessageV2Header)


@attrs.define(eq=False)
class SendResponder:
    """Check, route and store messages of producers."""

    _settings: Settings
    _clock: IReactorTime
    _rng: Random
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _stats: BrokerStats
    _max_delay_level: int
    #: extFields of every answer, refusals included
    ext: dict[str, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        broker = self._settings.setup.broker
        self.ext = {"MSG_REGION": broker.region_id, "TRACE_ON": "true" if broker.trace_on else "false"}

    @responds_to(any_send(SEND_MESSAGE))
    @responds_to(any_send(SEND_MESSAGE_V2))
    @responds_to(any_send(SEND_BATCH_MESSAGE))
    def send(self, request: Request[Any, bytes]) -> Reply | Deferred[Reply]:
        header = read_header(request.command)
        try:
            return self._send(header, request)
        except Refuse as refusal:
            raise Refuse(refusal.code, refusal.remark, ext=self.ext) from None

    def _send(self, header: SendMessageHeader, request: Request[Any, bytes]) -> Reply | Deferred[Reply]:
        topic, queue_id = self.admit(header, request.channel.peer)
        if header.batch or request.command.code == SEND_BATCH_MESSAGE.code:
            stored_in, result = topic.topic_name, self._put_batch(header, request, topic, queue_id)
        else:
            stored_in, result = self._put_single(header, request, topic, queue_id)
        if isinstance(result, Deferred):
            return result.addCallback(self._reply, stored_in, queue_id)
        return self._reply(result, stored_in, queue_id)

    def admit(self, header: SendMessageHeader, peer: str) -> tuple[TopicConfig, int]:
        """
        Return the topic of a message, created if necessary and allowed, and the id of its queue.

        Raises Refuse for a message that must not be sent.
        """
        self._check_open(header)
        topic = self._topic(header, peer)
        queue_id = header.queue_id
        if queue_id < 0:
            if topic.write_queue_nums < 1:
                raise Refuse(ResponseCode.SYSTEM_ERROR, f"topic[{header.topic}] has no queue to write to")
            queue_id = self._rng.randrange(topic.write_queue_nums)
        return topic, queue_id

    def _check_open(self, header: SendMessageHeader) -> None:
        broker = self._settings.setup.broker
        start_ms = broker.start_accept_send_request_time_stamp
        if start_ms and now_ms(self._clock) < start_ms:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {human_time(start_ms)}")
        topic = self._topics.get(header.topic)
        if not broker.broker_permission & PERM_WRITE and topic is not None and topic.order:
            raise Refuse(ResponseCode.NO_PERMISSION, f"the broker[{broker.broker_ip1}] sending message is forbidden")

    def _topic(self, header: SendMessageHeader, peer: str) -> TopicConfig:
        """
        Return the topic, created if necessary and allowed.

        Java: AbstractSendMessageProcessor#msgCheck
        """
        problem = topic_name_problem(header.topic)
        if problem is not None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, problem)
        problem = sending_problem(header.topic)
        if problem is not None:
            raise Refuse(ResponseCode.NO_PERMISSION, problem)
        topic = self._topics.get(header.topic) or self._create_topic(header)
        if header.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise Refuse(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {describe_topic(topic)} Producer: {peer}",
            )
        return topic

    def _create_topic(self, header: SendMessageHeader) -> TopicConfig:
        if self._settings.setup.is_slave:
            # as the store of Apache's slave does
            raise Refuse(ResponseCode.SERVICE_NOT_AVAILABLE, service_not_available(self._store))
        topic = auto_create(
            header.topic,
            self._topics.get(header.default_topic),
            client_queue_nums=header.default_topic_queue_nums,
            unit_mode=header.unit_mode,
            auto_create_topic_enable=self._settings.setup.broker.auto_create_topic_enable,
            least_queues=self._topics.hidden.get(header.topic, 0),
        )
        if topic is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!{FAQ}")
        self._topics.create(topic)
        return topic

    # storing

    def _message(self, header: SendMessageHeader, request: Request[Any, bytes], topic: TopicConfig) -> Message:
        """Return the message of a header, still without properties."""
        sys_flag = header.sys_flag
        if topic.topic_filter_type == MULTI_TAG:
            sys_flag |= MULTI_TAGS
        return Message(
            topic=header.topic,
            queue_id=header.queue_id,
            body=request.body,
            flag=header.flag,
            properties="",
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=request.channel.peer_host,
            store_host=self._settings.setup.store_host,
            reconsume_times=header.reconsume_times or 0,
        )

    def _put_single(
        self, header: SendMessageHeader, request: Request[Any, bytes], topic: TopicConfig, queue_id: int
    ) -> tuple[str, PutResult | Deferred[PutResult]]:
        """Store a message; return the topic, which is another one until it is due or committed, and the result."""
        message = self._message(header, request, topic)
        message.queue_id = queue_id
        pairs = decode_properties(header.properties or "")
        self._check_transaction(message, pairs)
        if header.topic.startswith(RETRY_PREFIX):
            self._dead_letter(message, pairs, header, request.command.version)
        else:
            self._check_timer(pairs)
        name = message.topic
        pairs[PROPERTY_CLUSTER] = self._settings.setup.broker.broker_cluster_name
        level = delay_level(pairs)
        message.wait_store_msg_ok = _waits(request.command, pairs)
        # A retry that a client before 4.6.1 sends itself has TRAN_MSG, too, and is no transaction.
        is_retry = level > 0 and message.reconsume_times > 0
        if parse_boolean(pairs.get(PROPERTY_TRANSACTION_PREPARED, "")) and not is_retry:
            self._check_transactions_allowed()
            message = half_message(message, pairs)
        elif level > 0:
            message = park(message, pairs, level, self._max_delay_level)
        else:
            pairs.pop(PROPERTY_WAIT, None)
            message.properties = encode_properties(pairs)
        return message.topic, self._topics.when_announced(name, self._store.put(message))

    def _put_batch(
        self, header: SendMessageHeader, request: Request[Any, bytes], topic: TopicConfig, queue_id: int
    ) -> PutResult | Deferred[PutResult]:
        """
        Store the entries of the body one after the other.

        Java: SendMessageProcessor#asyncSendBatchMessage, CommitLog#asyncPutMessages
        """
        message = self._message(header, request, topic)
        message.queue_id = queue_id
        pairs = decode_properties(header.properties or "")
        most = self._max_message_bytes
        if message.sys_flag & TRANSACTION_MASK or delay_level(pairs) > 0 or len(request.body) > most:
            raise Refuse(ResponseCode.MESSAGE_ILLEGAL, illegal(most))
        message.wait_store_msg_ok = _waits(request.command, pairs)
        pairs[PROPERTY_CLUSTER] = self._settings.setup.broker.broker_cluster_name
        message.properties = encode_properties(pairs)
        try:
            entries = decode_batch(request.body)
        except ValueError as error:
            raise Refuse(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from None
        return self._topics.when_announced(message.topic, self._store.put_batch(message, entries))

    def _check_transaction(self, message: Message, pairs: dict[str, str]) -> None:
        """
        Refuse a message that is half of a transaction by its sysFlag only.

        Apache acknowledges it, and nobody ever gets it: it is in no queue, so it can be neither committed nor checked.
        """
        is_half = parse_boolean(pairs.get(PROPERTY_TRANSACTION_PREPARED, ""))
        if not is_half and message.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            raise Refuse(
                ResponseCode.MESSAGE_ILLEGAL, "sysFlag says that this is half of a transaction, TRAN_MSG does not"
            )

    def _check_timer(self, pairs: dict[str, str]) -> None:
        """
        Refuse a message that 5.x's timer would deliver later: without the timer it would be delivered at once.

        A delay level comes first, as there.  Java: HookUtils#handleScheduleMessage, with timerWheelEnable=false
        """
        named = [name for name in TIMER_PROPERTIES if name in pairs]
        if named and delay_level(pairs) <= 0:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR,
                f"accurate timer message is not enabled, timerWheelEnable is false: {named[0]} needs it; "
                "a delay level (setDelayTimeLevel) does not",
            )

    def _check_transactions_allowed(self) -> None:
        broker = self._settings.setup.broker
        if broker.reject_transaction_message:
            raise Refuse(
                ResponseCode.NO_PERMISSION,
                f"the broker[{broker.broker_ip1}] sending transaction message is forbidden",
            )

    def _dead_letter(self, message: Message, pairs: dict[str, str], header: SendMessageHeader, version: int) -> None:
        """
        Redirect a message without retries left to the group's dead-letter topic.

        Java: SendMessageProcessor#handleRetryAndDLQ
        """
        group_name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(group_name)
        if group is None:
            raise Refuse(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name} {FAQ}")
        most = group.retry_max_times
        if version >= MAX_RECONSUME_VERSION and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if message.reconsume_times < most:
            return
        message.topic = DLQ_PREFIX + group_name
        message.queue_id = 0
        pairs.pop(PROPERTY_DELAY, None)
        if self._topics.get(message.topic) is None:
            self._topics.create(retry_topic(message.topic, 1, 0))
        self._stats.dead_letter(group_name, pairs.get(PROPERTY_RETRY_TOPIC, header.topic))

    def _reply(self, result: PutResult, topic: str, queue_id: int) -> Reply:
        """Return the answer of a stored message; Refuse for one that is not."""
        self.check_stored(result, self.ext)
        self._stats.put(topic, result.count, result.size)
        reply = SendMessageReply(msg_id=result.msg_ids, queue_id=queue_id, queue_offset=result.queue_offset)
        return Reply(reply, code=STORED_CODES[result.status], ext=self.ext)

    def check_stored(self, result: PutResult, ext: Mapping[str, str]) -> None:
        """Raise Refuse, with ``ext`` as its fields, unless the message is stored."""
        if result.status not in STORED_CODES:
            self._stats.put_failures += 1
            code, remark = put_refusal(result.status, self._store, self._max_message_bytes)
            raise Refuse(code, remark, ext=ext)

    def outcome(self, status: PutStatus) -> tuple[int, str | None]:
        """Return code and remark of the answer to a put with that status."""
        try:
            self.check_stored(PutResult(status), ext={})
        except Refuse as refusal:
            return refusal.code, refusal.remark
        return STORED_CODES[status], None

    @property
    def _max_message_bytes(self) -> int:
        # what the store has, not the present configuration: maxMessageSize counts from the next start
        return self._store.config.max_message_size


def _waits(command: RemotingCommand, pairs: dict[str, str]) -> bool:
    """Return whether the answer waits for disk and slaves: nobody gets that of a one-way request."""
    wait = pairs.get(PROPERTY_WAIT)
    return not command.flag & ONEWAY and (wait is None or parse_boolean(wait))


def delay_level(pairs: dict[str, str]) -> int:
    """Return the delay level of a message, 0 for none; Refuse if it is not a number."""
    text = pairs.get(PROPERTY_DELAY)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        raise Refuse(ResponseCode.SYSTEM_ERROR, f"the property DELAY is no number: {text[:64]!r}") from None
