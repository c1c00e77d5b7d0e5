"""
Sends: to a queue, again to another broker after a failure, within one deadline.

Java: DefaultMQProducerImpl
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rmq.client.core import outgoing
from rmq.client.core.codec import check_installed
from rmq.client.core.faults import Faults
from rmq.client.core.outgoing import Outgoing, less_safe
from rmq.client.core.routes import check_group, publish_queues, wrap
from rmq.client.flows import spans
from rmq.client.flows.instance import AGAIN_S, Awaited, Instance
from rmq.client.flows.usercode import tell
from rmq.client.observers import Sent
from rmq.client.settings import ProducerSettings, check_kind, check_timeout
from rmq.client.types import CloseReport, Message, NotDurable, ReceivedMessage, SendResult, SendStatus
from rmq.errors import (
    ClosedClient,
    ConfigurationError,
    NoRoute,
    NotDelivered,
    RequestFailed,
    RequestTimeout,
    RocketMqError,
)
from rmq.wire.api.clients import ConsumerData, ProducerData
from rmq.wire.api.common import MASTER_ID, MessageQueue
from rmq.wire.api.sending import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2, SEND_REPLY_MESSAGE_V2, SendMessageV2Header
from rmq.wire.command import RemotingCommand
from rmq.wire.record import PROPERTY_REPLY_TO_CLIENT, decode_properties

T = TypeVar("T")

#: pause between two tries at the same broker, from and to
SAME_BROKER_PAUSE_S = (0.05, 0.2)
#: between two looks at the route of a topic without a master
MASTER_AWAY_PAUSE_S = 0.1


class Producer:
    """Sends messages; one for many coroutines. Made by the client."""

    def __init__(self, instance: Instance, group: str, settings: ProducerSettings) -> None:
        check_group(group)
        check_installed(settings.compression)
        self._instance = instance
        self._namespace = instance.settings.namespace
        self._named = group
        self._group = wrap(self._namespace, group)
        self._settings = settings
        self._turn = instance.host.rng.randrange(1 << 30)
        self._faults = Faults() if settings.fault_latency else None
        self._in_flight = 0
        self._less = instance.host.gate()
        #: in the order of their use
        self._topics: dict[str, None] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        #: topics for which the NameServers had no route when a send failed: what is known of them is old
        self._unrouted: set[str] = set()
        #: why sends wait, by topic and, of those to a queue that the caller chose, broker
        self._away: dict[tuple[str, str | None], NoRoute] = {}
        #: when a send asked for the route of a topic because another one had failed
        self._asked_s: dict[str, float] = {}
        self._closed = False

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """
        Send a message and wait until a broker has stored it.

        ``queue`` or ``sharding_key`` (equal keys: the same queue, the one that Java's SelectMessageQueueByHash takes)
        choose the queue; otherwise queues take turns and a failed broker is avoided. Raises NotDelivered, NoRoute, and
        with ``strict`` NotDurable. Who cancels the wait does not take the message back.
        """
        self._check([message], queue, sharding_key, timeout_s)
        message_id = self._instance.unique_id()
        with spans.sending(self._instance, "send", [message], [message_id], sharding_key=sharding_key) as span:
            out = self.made(message, message_id, span.properties(), queue)
            result = await self.deliver(out, queue, sharding_key, timeout_s)
            span.sent(result.queue)
        return result

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send messages of one topic, without delay, as one: all are stored or none."""
        messages = _batch(messages)
        self._check(messages, timeout_s=timeout_s)
        ids = [self._instance.unique_id() for _ in messages]
        with spans.sending(self._instance, "send", messages, ids, is_batch=True) as span:
            try:
                out = outgoing.batch(messages, ids, self._settings, self._namespace, span.properties)
                self._check_topic(out, queue)
            except ConfigurationError as error:
                self._tell_refused(messages, error)
                raise
            result = await self.deliver(out, queue, None, timeout_s)
            span.sent(result.queue)
        return result

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and wait for nothing but the connection: it may be lost."""
        self._check([message])
        message_id = self._instance.unique_id()
        with spans.sending(self._instance, "send", [message], [message_id]) as span:
            out = self.made(message, message_id, span.properties(), queue)
            span.sent(await self._observed(out, self._oneway(out, queue)))

    async def _oneway(self, out: Outgoing, queue: MessageQueue | None) -> MessageQueue:
        timeout_s = self._settings.send_timeout_s
        if queue is None:
            chosen = self._choose(await self._writable(out.topic, timeout_s), ())
        else:
            chosen = await self._reachable(out.topic, queue, timeout_s)
        addr = self._instance.broker_addr(chosen.broker_name)
        await self._instance.connections.tell(addr, SEND_MESSAGE_V2, self._header(out, chosen), out.body)
        return chosen

    async def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        """
        Send a message and wait for the reply of its consumer; RequestTimeout when none comes in time.

        ClosedClient when the client is closed meanwhile.  Java: DefaultMQProducerImpl#request
        """
        self._check([message], timeout_s=timeout_s)
        if timeout_s is None or timeout_s == math.inf:
            error = ConfigurationError(f"the timeout_s of a request is a number of seconds, not {timeout_s!r}")
            self._tell_refused([message], error)
            raise error
        host, instance = self._instance.host, self._instance
        deadline = host.seconds() + timeout_s
        correlation_id, message_id = f"{host.rng.getrandbits(128):032x}", instance.unique_id()
        with spans.sending(instance, "request", [message], [message_id], conversation_id=correlation_id) as span:
            if wrap(self._namespace, message.topic) not in self._queues:
                # the broker pushes the reply over the connection that it knows by our heartbeat
                await self._writable(wrap(self._namespace, message.topic), timeout_s)
                await instance.heartbeat()
            more = {
                outgoing.PROPERTY_CORRELATION_ID: correlation_id,
                PROPERTY_REPLY_TO_CLIENT: instance.client_id,
                outgoing.PROPERTY_TTL: str(int(timeout_s * 1000)),
                **span.properties(),
            }
            out = self.made(message, message_id, more)
            waiting = instance.requests[correlation_id] = Awaited(host.gate())
            try:
                span.sent((await self.deliver(out, timeout_s=deadline - host.seconds())).queue)
                await host.within(waiting.arrival(), max(0.0, deadline - host.seconds()))
            except TimeoutError:
                raise RequestTimeout(message.topic, f"no reply to {message_id} within {timeout_s:g} s") from None
            finally:
                del instance.requests[correlation_id]
        if waiting.reply is None:
            raise ClosedClient(f"the client was closed before the reply to {message_id} came")
        return waiting.reply

    async def reply(self, request: ReceivedMessage, body: bytes) -> None:
        """Answer a message that was sent with :meth:`request`; NotDelivered when its sender cannot be reached."""
        topic = outgoing.reply_topic(request)
        messages = [Message(topic, body)]
        self._check(messages)
        message_id = self._instance.unique_id()
        conversation_id = request.properties.get(outgoing.PROPERTY_CORRELATION_ID)
        with spans.sending(
            self._instance, "reply", messages, [message_id], topic=topic, conversation_id=conversation_id
        ) as span:
            result = await self.deliver(outgoing.reply(request, body, message_id, span.properties()))
            span.sent(result.queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that take messages, their topic with the namespace; raises NoRoute."""
        self._check([])
        return list(await self._writable(wrap(self._namespace, topic), self._instance.settings.ask_timeout_s))

    def _check(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Raise what forbids this send."""
        try:
            check_timeout(timeout_s)
            self._instance.check_usable()
            if self._closed:
                raise ClosedClient("the producer is closed")
            if sharding_key is not None:
                if queue is not None:
                    raise ConfigurationError("either a queue or a sharding_key")
                if not isinstance(sharding_key, str):
                    raise ConfigurationError(f"a sharding_key is a text, not {sharding_key!r}")
        except RocketMqError as error:
            self._tell_refused(messages, error)
            raise

    def made(
        self, message: Message, message_id: str, more: Mapping[str, str], queue: MessageQueue | None = None
    ) -> Outgoing:
        """Return what is sent for a message; ConfigurationError when it, or the queue for it, is not allowed."""
        try:
            out = outgoing.single(message, message_id, self._settings, self._namespace, more)
            self._check_topic(out, queue)
        except ConfigurationError as error:
            self._tell_refused([message], error)
            raise
        return out

    def _check_topic(self, out: Outgoing, queue: MessageQueue | None) -> None:
        """Refuse a queue of another topic, with or without the namespace.  Java: DefaultMQProducerImpl#send"""
        if queue is not None and not isinstance(queue, MessageQueue):
            raise ConfigurationError(f"a queue is a MessageQueue, one of `queues(topic)`, not {queue!r}")
        if queue is not None and queue.topic != out.topic and wrap(self._namespace, queue.topic) != out.topic:
            raise ConfigurationError(f"a message for topic {out.topic} cannot go to a queue of topic {queue.topic}")

    # one message

    async def deliver(
        self,
        out: Outgoing,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send what is made already, as :meth:`send` does."""
        return await self._observed(out, self._deliver(out, queue, sharding_key, timeout_s))

    async def _observed(self, out: Outgoing, sending: Coroutine[Any, Any, T]) -> T:
        """Wait for a send and tell the observers of its end."""
        began = self._instance.host.seconds()
        try:
            result = await sending
        except RocketMqError as error:
            self._tell_sent(out, began, error)
            raise
        except self._instance.host.CANCELLED:
            self._tell_sent(out, began, TimeoutError("the wait for the send was cancelled"))
            raise
        self._tell_sent(out, began, None)
        return result

    def _tell_sent(self, out: Outgoing, began: float, error: Exception | None) -> None:
        if self._instance.observers:
            seconds = self._instance.host.seconds() - began
            self._tell(out.topic, out.messages, len(out.body), seconds, error)

    def _tell_refused(self, messages: Sequence[Message], error: Exception) -> None:
        """Tell the observers of a send that does not begin."""
        if messages and self._instance.observers:
            size = sum(len(message.body) for message in messages)
            self._tell(wrap(self._namespace, messages[0].topic), len(messages), size, 0.0, error)

    def _tell(self, topic: str, messages: int, body_bytes: int, seconds: float, error: Exception | None) -> None:
        event = Sent(
            topic=topic, group=self._group, messages=messages, body_bytes=body_bytes, seconds=seconds, error=error
        )
        tell(self._instance.observers, lambda observer: observer.sent(event))

    async def _deliver(
        self, out: Outgoing, queue: MessageQueue | None, sharding_key: str | None, timeout_s: float | None
    ) -> SendResult:
        host = self._instance.host
        deadline = host.seconds() + (self._settings.send_timeout_s if timeout_s is None else timeout_s)
        await self._wait_for_room(out, deadline)
        self._in_flight += 1
        try:
            result = await self._try(out, queue, sharding_key, deadline)
        finally:
            self._in_flight -= 1
            self._less.open()
        if self._settings.strict and result.status is not SendStatus.OK:
            raise NotDurable(result)
        return result

    async def _wait_for_room(self, out: Outgoing, deadline: float) -> None:
        while self._in_flight >= self._settings.max_in_flight:
            self._less.shut()
            left = deadline - self._instance.host.seconds()
            try:
                await self._instance.host.within(self._room(), max(0.0, left))
            except TimeoutError:
                raise NotDelivered(out.topic, ()) from None

    async def _room(self) -> None:
        await self._less.wait()

    async def _try(
        self, out: Outgoing, queue: MessageQueue | None, sharding_key: str | None, deadline: float
    ) -> SendResult:
        host, settings = self._instance.host, self._settings
        attempts: list[tuple[str, RequestFailed]] = []
        result: SendResult | None = None
        for number in range(1 + settings.retries):
            left = deadline - host.seconds()
            if left <= 0:
                break
            try:
                chosen = await self._chosen(out.topic, queue, sharding_key, attempts, deadline)
            except NoRoute:
                if not attempts:
                    raise
                break  # what was tried says more, also whether the message may be stored
            if attempts and attempts[-1][0] == chosen.broker_name:
                await host.sleep(min(host.rng.uniform(*SAME_BROKER_PAUSE_S), max(0.0, deadline - host.seconds())))
            began = host.seconds()
            try:
                result = await self._send_once(out, chosen, max(0.0, deadline - began))
                self._note(chosen, began, failed=False)
            except RequestFailed as error:
                self._note(chosen, began, failed=True)
                attempts.append((chosen.broker_name, error))
                if not outgoing.is_retried(error):
                    break
                if number < settings.retries:
                    await self._renew_route(out.topic, deadline)
                continue
            if result.status is SendStatus.OK or not settings.retry_other_broker_on_not_ok:
                break
            attempts.append((chosen.broker_name, less_safe(result.status, chosen.broker_name)))
        if result is None:
            raise NotDelivered(out.topic, attempts)
        return result

    async def _chosen(
        self,
        topic: str,
        queue: MessageQueue | None,
        sharding_key: str | None,
        attempts: Sequence[tuple[str, RequestFailed]],
        deadline: float,
    ) -> MessageQueue:
        """
        Return the queue of the next try; NoRoute without one.

        A topic whose masters are away may have another one in a moment: this waits for it until the deadline. Of all
        sends that wait, one asks for the route.
        """
        host, place = self._instance.host, (topic, None if queue is None else queue.broker_name)
        while True:
            trouble = self._away.get(place)
            if trouble is None or self._may_ask(topic):
                left = deadline - host.seconds()
                try:
                    if queue is not None:
                        chosen = await self._reachable(topic, queue, left)
                    else:
                        chosen = self._keyed(sharding_key, await self._writable(topic, left), attempts)
                    self._away.pop(place, None)
                    return chosen
                except NoRoute as error:
                    if topic not in self._instance.routes:
                        raise
                    trouble = self._away[place] = error
            if host.seconds() + MASTER_AWAY_PAUSE_S >= deadline:
                raise trouble
            await host.sleep(MASTER_AWAY_PAUSE_S)

    def _may_ask(self, topic: str) -> bool:
        """Tell whether no send has asked for the route a moment ago; the caller asks then."""
        now = self._instance.host.seconds()
        if now < self._asked_s.get(topic, 0.0) + MASTER_AWAY_PAUSE_S:
            return False
        self._asked_s[topic] = now
        return True

    async def _send_once(self, out: Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult:
        addr = self._instance.broker_addr(queue.broker_name)
        tracer = self._instance.tracer
        began_ms = self._instance.host.wall_ms() if tracer is not None else 0
        contract = SEND_MESSAGE_V2
        if out.is_batch or out.is_reply:
            contract = SEND_BATCH_MESSAGE if out.is_batch else SEND_REPLY_MESSAGE_V2
        response = await self._instance.ask(addr, contract, self._header(out, queue), out.body, timeout_s)
        reply = response.header
        result = SendResult(
            status=SendStatus(response.code),
            message_id=out.message_id,
            offset_message_id=reply.msg_id,
            queue=MessageQueue(topic=out.topic, broker_name=queue.broker_name, queue_id=reply.queue_id),
            queue_offset=reply.queue_offset,
            transaction_id=reply.transaction_id,
        )
        if tracer is not None:
            tracer.published(
                self._group,
                result,
                decode_properties(out.properties),
                dict(response.ext),
                broker_addr=addr,
                body_bytes=len(out.body),
                began_ms=began_ms,
            )
        return result

    def _header(self, out: Outgoing, queue: MessageQueue) -> SendMessageV2Header:
        return SendMessageV2Header(
            producer_group=self._group,
            topic=out.topic,
            default_topic=self._settings.default_topic,
            default_topic_queue_nums=self._settings.default_queues,
            queue_id=queue.queue_id,
            sys_flag=out.sys_flag,
            born_timestamp=self._instance.host.wall_ms(),
            flag=out.flag,
            properties=out.properties,
            reconsume_times=out.reconsume_times,
            max_reconsume_times=out.max_reconsume_times,
            batch=out.is_batch,
            bname=queue.broker_name,
        )

    # queues

    async def _writable(self, topic: str, timeout_s: float) -> list[MessageQueue]:
        """Return the queues of a topic; those of the default topic for one that the first send creates."""
        queues = self._queues.get(topic)
        if queues:
            return queues
        self._topics[topic] = None
        host = self._instance.host
        deadline = host.seconds() + timeout_s
        known = None if topic in self._unrouted else self._instance.routes.get(topic)
        try:
            queues = publish_queues(topic, known) if known is not None else []
            if not queues:  # also while its masters are away: they may be back
                queues = publish_queues(topic, await self._instance.fetch_route(topic, timeout_s))
        except NoRoute as error:
            default = self._settings.default_topic
            self._topics[default] = None
            left = deadline - host.seconds()
            try:
                route = await self._instance.fetch_route(default, left)
            except NoRoute:
                raise error from None
            count = self._settings.default_queues
            queues = [queue for queue in publish_queues(topic, route) if queue.queue_id < count]
            # not kept: the next send finds the topic
            self._instance.beat()
            return queues or self._none(topic)
        if not queues:
            return self._none(topic)
        self._queues[topic] = queues
        self._unrouted.discard(topic)
        self._instance.beat()
        return queues

    async def _reachable(self, topic: str, queue: MessageQueue, timeout_s: float) -> MessageQueue:
        """Return a queue that the caller chose; looks for its broker.  Java: DefaultMQProducerImpl#sendKernelImpl"""
        brokers, name = self._instance.brokers, queue.broker_name
        if name not in brokers:
            await self._writable(topic, timeout_s)
        elif MASTER_ID not in brokers[name] or topic in self._unrouted:
            await self._instance.fetch_route(topic, timeout_s)
            self._unrouted.discard(topic)
            if MASTER_ID not in self._instance.brokers.get(name, {}):
                self._none(topic)
        return queue

    def _none(self, topic: str) -> list[MessageQueue]:
        raise NoRoute(topic, {"route": "no broker of the topic has a master and may be written"})

    def _note(self, queue: MessageQueue, began: float, *, failed: bool) -> None:
        if self._faults is not None:
            now = self._instance.host.seconds()
            self._faults.note(queue.broker_name, now - began, now, failed=failed)

    def _choose(self, queues: list[MessageQueue], attempts: Sequence[tuple[str, RequestFailed]]) -> MessageQueue:
        self._turn += 1
        if self._faults is not None:
            queues = self._faults.usable(queues, self._instance.host.seconds())
        if attempts:
            last = attempts[-1][0]
            others = [queue for queue in queues if queue.broker_name != last]
            queues = others or queues
        return queues[self._turn % len(queues)]

    def _keyed(
        self, sharding_key: str | None, queues: list[MessageQueue], attempts: Sequence[tuple[str, RequestFailed]]
    ) -> MessageQueue:
        if sharding_key is None:
            return self._choose(queues, attempts)
        return queues[outgoing.keyed_index(sharding_key, len(queues))]

    async def _renew_route(self, topic: str, deadline: float) -> None:
        left = deadline - self._instance.host.seconds()
        if left > 0 and self._may_ask(topic):
            try:
                await self._instance.fetch_route(topic, min(left, AGAIN_S))
            except NoRoute as error:
                self._queues.pop(topic, None)
                if error.is_unknown:
                    self._unrouted.add(topic)

    # for the client

    def producer_data(self) -> ProducerData | None:
        return ProducerData(group_name=self._group)

    def consumer_data(self) -> ConsumerData | None:
        return None

    def topics(self) -> Iterable[str]:
        return list(self._topics)

    def answers(self, addr: str, command: RemotingCommand) -> Coroutine[Any, Any, bytes | None] | None:
        return None

    def routes_changed(self) -> None:
        self._queues.clear()

    def is_of(self, group: str, settings: ProducerSettings) -> bool:
        """Return whether this is the producer of a group, with these settings, and not closed."""
        return not self._closed and (group, settings) == (self._named, self._settings)

    async def close(self) -> CloseReport:
        """Take no more messages, wait for those in flight, which have their own deadlines, and leave the group."""
        self._closed = True
        while self._in_flight:
            self._less.shut()
            await self._less.wait()
        await self._instance.leave(self)
        return CloseReport()


def _batch(messages: Iterable[Message]) -> list[Message]:
    """Return the messages of a batch; ConfigurationError when there are none, or when something else is among them."""
    try:
        batch = list(messages)
    except TypeError:
        raise ConfigurationError(f"a batch is a list of messages, not {type(messages).__name__}") from None
    if not batch:
        raise ConfigurationError("a batch without messages")
    for message in batch:
        if not isinstance(message, Message):
            raise ConfigurationError(f"a batch is a list of messages, not of {type(message).__name__}")
    return batch


def producer(instance: Instance, group: str, settings: ProducerSettings) -> Producer:
    """Return the producer of the client with this group and these settings; a new one after its close."""
    check_kind(settings, ProducerSettings)
    for part in instance.parts:  # programs ask for one with each message, and heartbeats name all
        if type(part) is Producer and part.is_of(group, settings):
            return part
    made = Producer(instance, group, settings)
    instance.parts.append(made)
    return made
