"""
Pulls: codes 11 and 361, answered at once or when a message arrives.

Java: PullMessageProcessor
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.consumerfilters import compile_filter
from rmq.broker.filters import SubscriptionError, filter_bytes, is_tag_type, parse_subscription, tag_matcher
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.longpoll import SWEEP_MS, HeldPull, LongPolls
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.refusals import FAQ, check_filter_type
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import OFFSET_MOVED_EVENT, TopicTable
from rmq.remoting.responders import NO_REPLY, OVERLOAD_REMARK, Outcome, Refuse, Reply, Request, WaitingLine, responds_to
from rmq.runtime.clock import now_ms, steady_ms
from rmq.store.filtercode import PropertyFilter
from rmq.store.messages import GetResult, GetStatus, Message
from rmq.store.store import MessageStore
from rmq.wire import fastjson
from rmq.wire.api.common import (
    MASTER_ID,
    PERM_READ,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from rmq.wire.api.pulling import (
    LITE_PULL_MESSAGE,
    PULL_CLASS_FILTER,
    PULL_COMMIT_OFFSET,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    OffsetMovedEvent,
    PullMessageHeader,
    PullMessageReply,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.record import PROPERTY_DELAY, PROPERTY_KEYS, PROPERTY_TAGS, encode_properties

BROADCASTING = "BROADCASTING"

#: limit of the time for which a client may let the broker hold a pull
MAX_SUSPEND_MS = 600_000
#: messages of one pull; Apache has no limit, its store stops at 32 or 256 KiB anyway
MAX_MESSAGES = 1024


_MOVED_OR_EMPTY = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
_CODES = {
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}

PullAnswer = Reply | Deferred[Outcome]


@attrs.frozen
class Admitted:
    """A pull that passed the checks."""

    group: SubscriptionGroupConfig
    #: asked with each unit's tagsCode
    matches: Callable[[int], bool] | None
    #: asked with each record's properties
    accepts: PropertyFilter | None = None


def most_messages(header: PullMessageHeader) -> int:
    """Return how many messages the answer may have."""
    return min(max(header.max_msg_nums, 1), MAX_MESSAGES)


@attrs.define(eq=False)
class PullResponder:
    """Check, read, hold."""

    _log = Logger()

    _settings: Settings
    _clock: IReactorTime
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable
    _polls: LongPolls
    _stats: BrokerStats
    #: pulls that wait for the disk
    _cold: WaitingLine

    @responds_to(PULL_MESSAGE)
    @responds_to(LITE_PULL_MESSAGE)
    def pull(self, request: Request[PullMessageHeader, None]) -> PullAnswer:
        header = request.header
        admitted = self._admit(header, request.channel.peer)
        place = header.topic, header.queue_id, header.queue_offset, most_messages(header)
        if self._cold.waiting >= self._cold.limit and self._store.is_cold(*place):
            raise Refuse(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        loading = self._store.preloading(*place)
        if loading is None:
            return self._pull(request, admitted)
        # records that are not in memory must not stop the reactor; what counts may have changed when they are
        self._cold.waiting += 1
        return loading.addBoth(self._cold.leave).addCallback(
            lambda _: self._pull(request, self._admit(header, request.channel.peer))
        )

    def _pull(self, request: Request[PullMessageHeader, None], admitted: Admitted) -> PullAnswer:
        """Answer or hold a pull."""
        header = request.header
        reply = self._read(header, admitted)
        self._commit(header)
        wait_ms = self.wait_ms(header) if reply.code == ResponseCode.PULL_NOT_FOUND else None
        if wait_ms is None:
            return reply
        return self._hold(request, admitted, reply, steady_ms(self._clock) + wait_ms)

    def wait_ms(self, header: PullMessageHeader) -> int | None:
        """Return how long a pull may wait for a message; None when it may not."""
        if not header.sys_flag & PULL_SUSPEND:
            return None
        broker = self._settings.setup.broker
        if not broker.long_polling_enable:
            return broker.short_polling_time_mills
        return min(max(header.suspend_timeout_millis, 0), MAX_SUSPEND_MS)

    # checks

    def _admit(self, header: PullMessageHeader, peer: str) -> Admitted:
        """Raise Refuse for what must not be read, with the checks in Apache's order."""
        broker = self._settings.setup.broker
        if not broker.broker_permission & PERM_READ:
            raise Refuse(ResponseCode.NO_PERMISSION, f"the broker[{broker.broker_ip1}] pulling message is forbidden")
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise Refuse(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise Refuse(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")
        topic = self._topics.get(header.topic)
        if topic is None:
            raise Refuse(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please! {FAQ}")
        self._check_queue(header, topic, peer)
        return self._filter(header, group)

    def _check_queue(self, header: PullMessageHeader, topic: TopicConfig, peer: str) -> None:
        if not topic.perm & PERM_READ:
            raise Refuse(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise Refuse(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer}]",
            )

    def _filter(self, header: PullMessageHeader, group: SubscriptionGroupConfig) -> Admitted:
        if header.sys_flag & PULL_SUBSCRIPTION:
            try:
                subscription = parse_subscription(header.topic, header.subscription, header.expression_type)
            except SubscriptionError:
                raise Refuse(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from None
        else:
            subscription = self._stored_subscription(header, group)
        if not is_tag_type(subscription.expression_type):
            return Admitted(group, None, self._sql92(subscription))
        return Admitted(group, None if header.sys_flag & PULL_CLASS_FILTER else tag_matcher(subscription))

    def _sql92(self, subscription: SubscriptionData) -> PropertyFilter:
        """
        Return the filter of a pull that brings its expression, or that relies on the group's heartbeats.

        An expression that cannot be compiled is refused; for a pull that brings it Apache's broker filters nothing.
        """
        check_filter_type(self._settings.setup.broker, subscription.expression_type)
        try:
            return compile_filter(subscription.expression_type, subscription.sub_string)
        except SubscriptionError as error:
            raise Refuse(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None

    def _stored_subscription(self, header: PullMessageHeader, group: SubscriptionGroupConfig) -> SubscriptionData:
        """Return the subscription of the group's heartbeats to the topic."""
        online = self._consumers.find(header.consumer_group)
        if online is None:
            raise Refuse(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if not group.consume_broadcast_enable and online.message_model == BROADCASTING:
            raise Refuse(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = online.subscriptions.get(header.topic)
        if subscription is None:
            raise Refuse(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < header.sub_version:
            raise Refuse(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    # reading

    def admitted(self, header: PullMessageHeader, peer: str) -> Admitted | None:
        """Check a pull; None, without side effects, for one that is refused."""
        try:
            return self._admit(header, peer)
        except Refuse:
            return None

    def _get(self, header: PullMessageHeader, admitted: Admitted) -> GetResult:
        return self._store.pull(
            header.topic,
            header.queue_id,
            header.queue_offset,
            most_messages(header),
            admitted.matches,
            admitted.accepts,
        )

    def _found(
        self, header: PullMessageHeader, admitted: Admitted, result: GetResult
    ) -> tuple[PullMessageReply, bytes]:
        reply = PullMessageReply(
            suggest_which_broker_id=self.suggested_broker(result.suggest_slave, admitted.group),
            next_begin_offset=result.next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
        self._stats.got(header.consumer_group, header.topic, result.count, result.size_bytes)
        return reply, result.messages[0]

    def _read(self, header: PullMessageHeader, admitted: Admitted) -> Reply:
        """Return the answer without waiting."""
        result = self._get(header, admitted)
        if result.status is GetStatus.FOUND:
            found, body = self._found(header, admitted, result)
            return Reply(found, body=body, remark=result.status.name)
        code = self._code(header, result)
        suggested = self.suggested_broker(result.suggest_slave, admitted.group)
        next_begin_offset = result.next_begin_offset
        if self._settings.setup.is_slave and not self._settings.setup.store.offset_check_in_slave:
            # A slave with a replication lag must never make a consumer change its offset.
            if code == ResponseCode.PULL_OFFSET_MOVED:
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                suggested = admitted.group.broker_id
            if result.status not in (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING):
                next_begin_offset = header.queue_offset
        reply = PullMessageReply(
            suggest_which_broker_id=suggested,
            next_begin_offset=next_begin_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
        )
        self._stats.missed()
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._log.info(
                "group {group} pulls at {offset} of {topic}:{queue_id}, with {min_offset} to {max_offset}: {status}",
                group=header.consumer_group,
                offset=header.queue_offset,
                topic=header.topic,
                queue_id=header.queue_id,
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                status=result.status.name,
            )
            self._tell_moved(header, next_begin_offset)
        status = result.status
        if status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
            # Apache creates a queue when a client asks for it, so there it is empty rather than unknown.
            status = GetStatus.NO_MESSAGE_IN_QUEUE
        return Reply(reply, code=code, remark=status.name)

    def _tell_moved(self, header: PullMessageHeader, offset: int) -> None:
        """
        Store a message about a group whose offset changes; `mqadmin startMonitoring` consumes them.

        Java: PullMessageProcessor#generateOffsetMovedEvent
        """
        setup, group = self._settings.setup, header.consumer_group
        if setup.is_slave:
            return
        queue = MessageQueue(topic=header.topic, broker_name=setup.name, queue_id=header.queue_id)
        event = OffsetMovedEvent(
            consumer_group=group, message_queue=queue, offset_request=header.queue_offset, offset_new=offset
        )
        self._store.put(
            Message(
                topic=OFFSET_MOVED_EVENT,
                queue_id=0,
                body=fastjson.encode(event),
                flag=0,
                properties=encode_properties({PROPERTY_KEYS: group, PROPERTY_TAGS: group, PROPERTY_DELAY: "0"}),
                sys_flag=0,
                born_timestamp=now_ms(self._clock),
                born_host=setup.store_host,
                store_host=setup.store_host,
                wait_store_msg_ok=False,
            )
        )

    def _code(self, header: PullMessageHeader, result: GetResult) -> int:
        if result.status in _MOVED_OR_EMPTY:
            return ResponseCode.PULL_OFFSET_MOVED if header.queue_offset else ResponseCode.PULL_NOT_FOUND
        return _CODES[result.status]

    def suggested_broker(self, suggest_slave: bool, group: SubscriptionGroupConfig) -> int:
        """Return the id of the broker to pull from next.  Java: PullMessageProcessor#processRequest"""
        if not self._settings.setup.broker.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if suggest_slave else group.broker_id

    def commits(self, header: PullMessageHeader) -> bool:
        """Tell whether a pull commits an offset."""
        return header.sys_flag & PULL_COMMIT_OFFSET != 0 and not self._settings.setup.is_slave

    def _commit(self, header: PullMessageHeader) -> None:
        if self.commits(header):
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)

    # holding

    def _hold(
        self, request: Request[PullMessageHeader, None], admitted: Admitted, reply: Reply, deadline_ms: int
    ) -> PullAnswer:
        """Hold the pull until a message arrives or its deadline passes; answer at once if the table is full."""
        header = request.header
        woken: Deferred[None] = Deferred()
        held = HeldPull(
            topic=header.topic,
            queue_id=header.queue_id,
            from_offset=header.queue_offset,
            deadline_ms=deadline_ms,
            channel=request.channel,
            matches=admitted.matches,
            wake=lambda _: woken.callback(None),
            size_bytes=len(header.subscription or "") + filter_bytes(admitted.matches),
        )
        if not self._polls.hold(held):
            return reply
        return woken.addCallback(lambda _: self.again(request, deadline_ms))

    def again(self, request: Request[PullMessageHeader, None], deadline_ms: int) -> Outcome | Deferred[Outcome]:
        """
        Answer a held pull: it is checked and read again.

        It is held a second time only behind messages that its SQL92 filter does not accept, which nobody knew before;
        soon after them the client learns its new place in the queue.
        Java: PullMessageProcessor#executeRequestWhenWakeup
        """
        if not request.channel.is_open:
            return NO_REPLY
        header = request.header
        admitted = self._admit(header, request.channel.peer)
        reply = self._read(header, admitted)
        if admitted.accepts is None or reply.remark != GetStatus.NO_MATCHED_MESSAGE.name:
            return reply
        places = reply.header
        if (
            not isinstance(places, PullMessageReply)
            or places.next_begin_offset < places.max_offset
            or steady_ms(self._clock) >= deadline_ms
        ):
            return reply
        header.queue_offset = places.next_begin_offset
        return self._hold(request, admitted, reply, min(deadline_ms, steady_ms(self._clock) + SWEEP_MS))
