"""
What clients do in a simulated cluster, and the record of it: producers, consumers, and an observer that looks at all.

They speak the contracts that Apache's clients speak and behave like them where it matters: routes from any NameServer,
sends to masters, consumers that share queues by what the broker says of their group, and offsets kept by the broker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from rmq.remoting.client import Refused, RemotingClient, RequestFailed, Response
from rmq.runtime.clock import now_ms
from rmq.runtime.platform import Platform
from rmq.sim.cluster import MASTER_ID, Options
from rmq.wire.api.clients import (
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    ConsumerData,
    ConsumerGroupHeader,
    HeartbeatData,
    ProducerData,
)
from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.api.offsets import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.pulling import (
    PULL_COMMIT_OFFSET,
    PULL_MESSAGE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageHeader,
    PullMessageReply,
)
from rmq.wire.api.routes import GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader, TopicRouteData
from rmq.wire.api.sending import SEND_BATCH_MESSAGE, SEND_MESSAGE_V2, SendMessageReply, SendMessageV2Header
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    BatchEntry,
    Record,
    decode_offset_msg_id,
    decode_records,
    encode_batch,
    encode_properties,
    find_property,
)

AUTO_TOPIC = "TBW102"
PRODUCER_GROUP = "sim-producers"
CONSUMER_GROUP = "sim-consumers"
TAGS = ("A", "B")

#: Apache's sendMsgTimeout, pollNameServerInterval, heartbeatBrokerInterval, persistConsumerOffsetInterval and so on
SEND_TIMEOUT_MS = 3000
ASK_TIMEOUT_MS = 3000
ROUTE_EVERY_S = 30.0
#: how soon a client that lacks a route asks again
ROUTE_AGAIN_S = 1.0
HEARTBEAT_EVERY_S = 10.0
REBALANCE_EVERY_S = 5.0
COMMIT_EVERY_S = 5.0
SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
PULL_AGAIN_S = 1.0

PROPERTY_WAIT = "WAIT"


@attrs.frozen(kw_only=True)
class Ack:
    """What a broker answered to a stored message."""

    at_s: float
    code: int
    queue_id: int
    queue_offset: int
    phy_offset: int


@attrs.define(eq=False, kw_only=True)
class Sent:
    """One message that a producer sent once; ``ack`` stays None when nobody knows what became of it."""

    key: str
    group: str
    topic: str
    queue_id: int
    tag: str
    body: bytes
    at_s: float
    #: the producer waits for disk and slave
    waits: bool
    ack: Ack | None = None

    @property
    def place(self) -> str:
        """Where the broker says that it is."""
        assert self.ack is not None
        return f"{self.group} {self.topic}:{self.ack.queue_id}@{self.ack.queue_offset} (log {self.ack.phy_offset})"


@attrs.frozen(kw_only=True)
class Seen:
    """One message as a consumer got it."""

    key: str
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    at_s: float
    consumer: str


class History:
    """Everything that clients did, on all machines and through all their deaths."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.sent: dict[str, Sent] = {}
        self.seen: list[Seen] = []
        #: how often what kind of failure met a send
        self.refusals: dict[str, int] = {}
        self.on_ack: list[Callable[[Sent], object]] = []
        self.producing = True

    @property
    def acked(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if sent.ack is not None]

    def acknowledge(self, sent: Sent, ack: Ack) -> None:
        sent.ack = ack
        for callback in self.on_ack:
            callback(sent)

    def refused(self, why: str) -> None:
        self.refusals[why] = self.refusals.get(why, 0) + 1


class Client(Service):
    """What producers and consumers have in common: a remoting client, routes, and coroutines that end with the stop."""

    _log = Logger()

    def __init__(self, platform: Platform, namesrv_addrs: list[str], name: str) -> None:
        self.setName(name)
        self.clock = platform.reactor
        self.rng = platform.rng
        self.remoting = RemotingClient(platform, name=name)
        self.routes: dict[str, TopicRouteData] = {}
        self._namesrv_addrs = namesrv_addrs
        self._tasks: dict[Deferred[None], None] = {}
        self._naps: dict[Deferred[None], IDelayedCall] = {}

    def startService(self) -> None:
        super().startService()
        self.remoting.startService()

    def stopService(self) -> Deferred[None]:
        """End all coroutines and connections."""
        super().stopService()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self.remoting.stopService()
        for nap, call in list(self._naps.items()):
            call.cancel()
            nap.callback(None)
        for task in list(self._tasks):
            await task

    def spawn(self, coroutine: Coroutine[Deferred[Any], Any, None]) -> None:
        """Run a coroutine beside the others; a bug in it is logged."""
        done: Deferred[None] = Deferred()
        self._tasks[done] = None

        def ended(_: object) -> None:
            del self._tasks[done]
            done.callback(None)

        Deferred.fromCoroutine(coroutine).addErrback(self._broken).addBoth(ended)

    def _broken(self, failure: Any) -> None:
        self._log.failure("a coroutine of {name} failed", failure, name=self.name)

    async def sleep(self, seconds: float) -> None:
        """Wait, at the longest until the stop."""
        if not self.running:
            return
        nap: Deferred[None] = Deferred()
        self._naps[nap] = self.clock.callLater(seconds, nap.callback, None)
        try:
            await nap
        finally:
            del self._naps[nap]

    # routes

    async def watch_routes(self, topics: tuple[str, ...]) -> None:
        """Keep the routes of topics fresh."""
        while self.running:
            for topic in topics:
                await self.look_up(topic)
            complete = all(topic in self.routes for topic in topics)
            await self.sleep(ROUTE_EVERY_S if complete else ROUTE_AGAIN_S)

    async def look_up(self, topic: str) -> None:
        """Ask one NameServer after the other for a route; what is known stays when none answers."""
        addrs = list(self._namesrv_addrs)
        self.rng.shuffle(addrs)
        for addr in addrs:
            try:
                response = await self.remoting.invoke(
                    addr, GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), None, timeout_ms=ASK_TIMEOUT_MS
                )
            except Refused:
                continue
            except RequestFailed:
                continue
            self.routes[topic] = response.body
            return

    def masters(self, topic: str) -> dict[str, tuple[str, int]]:
        """Return broker name -> (address, write queues) of the masters that take messages of a topic."""
        route = self.routes.get(topic)
        if route is None:
            return {}
        addrs = {data.broker_name: data.broker_addrs.get(MASTER_ID) for data in route.broker_datas}
        return {
            queues.broker_name: (addr, queues.write_queue_nums)
            for queues in route.queue_datas
            if (addr := addrs.get(queues.broker_name)) is not None
        }


class Producer(Client):
    """Send messages with unique keys and bodies, at random moments, each once."""

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, options: Options, history: History
    ) -> None:
        super().__init__(platform, namesrv_addrs, name)
        self._options = options
        self._history = history
        self._count = 0

    def startService(self) -> None:
        super().startService()
        self.spawn(self.watch_routes((*self._options.topics, AUTO_TOPIC)))
        self.spawn(self._heartbeats())
        self.spawn(self._produce())

    async def _heartbeats(self) -> None:
        while self.running:
            data = HeartbeatData(client_id=str(self.name), producer_data_set=[ProducerData(group_name=PRODUCER_GROUP)])
            for addr, _ in list(self.masters(AUTO_TOPIC).values()):
                try:
                    await self.remoting.invoke(addr, HEART_BEAT, None, data, timeout_ms=ASK_TIMEOUT_MS)
                except RequestFailed as error:
                    self._log.debug("no heartbeat of {name}: {error}", name=self.name, error=error)
            await self.sleep(HEARTBEAT_EVERY_S)

    async def _produce(self) -> None:
        while self.running:
            await self.sleep(self.rng.expovariate(1 / self._options.send_every_s))
            if self.running and self._history.producing:
                self._send_one()

    def _send_one(self) -> None:
        topic = self.rng.choice(self._options.topics)
        targets = self.masters(topic) or self.masters(AUTO_TOPIC)
        if not targets:
            self._history.refused("no route")
            return
        group = self.rng.choice(sorted(targets))
        addr, queues = targets[group]
        queue_id = self.rng.randrange(max(1, min(queues, self._options.queues)))
        if self.rng.random() < self._options.batched:
            messages = [self._message(group, topic, queue_id, waits=True) for _ in range(self.rng.randint(1, 5))]
            self.spawn(self._send_batch(addr, messages))
        else:
            waits = self.rng.random() < 0.95
            self.spawn(self._send(addr, self._message(group, topic, queue_id, waits=waits)))

    def _message(self, group: str, topic: str, queue_id: int, *, waits: bool) -> Sent:
        self._count += 1
        key = f"{self.name}-{self._count}"
        # Sizes spread over orders of magnitude, the longest once in a while.
        size = int(math.exp(self.rng.uniform(0, math.log(self._options.body_bytes))))
        sent = Sent(
            key=key,
            group=group,
            topic=topic,
            queue_id=queue_id,
            tag=self.rng.choice(TAGS),
            body=key.encode() + b":" + self.rng.randbytes(size),
            at_s=self._history.now_s(),
            waits=waits,
        )
        self._history.sent[key] = sent
        return sent

    async def _send(self, addr: str, sent: Sent) -> None:
        header = self._header(sent, properties_of(sent))
        try:
            response = await self.remoting.invoke(
                addr, SEND_MESSAGE_V2, header, sent.body, timeout_ms=SEND_TIMEOUT_MS * 4
            )
        except RequestFailed as error:
            self._history.refused(describe(error))
            return
        self._acked([sent], response)

    async def _send_batch(self, addr: str, messages: list[Sent]) -> None:
        body = encode_batch(BatchEntry(sent.body, properties_of(sent)) for sent in messages)
        header = self._header(messages[0], "")
        header.batch = True
        try:
            response = await self.remoting.invoke(
                addr, SEND_BATCH_MESSAGE, header, body, timeout_ms=SEND_TIMEOUT_MS * 4
            )
        except RequestFailed as error:
            self._history.refused(describe(error))
            return
        self._acked(messages, response)

    def _header(self, sent: Sent, properties: str) -> SendMessageV2Header:
        return SendMessageV2Header(
            producer_group=PRODUCER_GROUP,
            topic=sent.topic,
            default_topic=AUTO_TOPIC,
            default_topic_queue_nums=self._options.queues,
            queue_id=sent.queue_id,
            sys_flag=0,
            born_timestamp=now_ms(self.clock),
            flag=0,
            properties=properties,
            reconsume_times=0,
        )

    def _acked(self, messages: list[Sent], response: Response[SendMessageReply, Any]) -> None:
        ids = response.header.msg_id.split(",")
        for number, (sent, msg_id) in enumerate(zip(messages, ids, strict=True)):
            _, phy_offset = decode_offset_msg_id(msg_id)
            ack = Ack(
                at_s=self._history.now_s(),
                code=response.code,
                queue_id=response.header.queue_id,
                queue_offset=response.header.queue_offset + number,
                phy_offset=phy_offset,
            )
            self._history.acknowledge(sent, ack)


def properties_of(sent: Sent) -> str:
    """Return the properties that a message is sent with."""
    pairs = {PROPERTY_UNIQ_KEY: sent.key, "KEYS": f"k{len(sent.body) % 7}", PROPERTY_TAGS: sent.tag}
    if not sent.waits:
        pairs[PROPERTY_WAIT] = "false"
    return encode_properties(pairs)


def describe(error: RequestFailed) -> str:
    """Return the kind of a failure."""
    return f"code {error.code}" if isinstance(error, Refused) else type(error).__name__


def key_of(record: Record) -> str:
    """Return the unique key of a stored message, empty without one."""
    return find_property(record.properties.decode("utf-8", "replace"), PROPERTY_UNIQ_KEY) or ""


class Consumer(Client):
    """
    A member of the consumer group: its share of the queues, pulled with long polling, offsets committed to the broker.
    """

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, options: Options, history: History
    ) -> None:
        super().__init__(platform, namesrv_addrs, name)
        self._options = options
        self._history = history
        #: next offset of each queue that is mine; None until the broker has said where to begin
        self._mine: dict[MessageQueue, int | None] = {}

    def startService(self) -> None:
        super().startService()
        self.spawn(self.watch_routes(self._options.topics))
        self.spawn(self._heartbeats())
        self.spawn(self._rebalance())
        self.spawn(self._commits())

    async def _heartbeats(self) -> None:
        """Tell all brokers, slaves too, what this client consumes."""
        while self.running:
            data = HeartbeatData(client_id=str(self.name), consumer_data_set=[self._consumer_data()])
            addrs = sorted({addr for route in self.routes.values() for addr in addrs_of(route)})
            for addr in addrs:
                try:
                    await self.remoting.invoke(addr, HEART_BEAT, None, data, timeout_ms=ASK_TIMEOUT_MS)
                except RequestFailed as error:
                    self._log.debug("no heartbeat of {name}: {error}", name=self.name, error=error)
            await self.sleep(HEARTBEAT_EVERY_S if addrs else 1.0)

    def _consumer_data(self) -> ConsumerData:
        subscriptions = [SubscriptionData(topic=topic, sub_version=1) for topic in self._options.topics]
        return ConsumerData(
            group_name=CONSUMER_GROUP,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=subscriptions,
        )

    # whose queue is whose.  Java: RebalanceImpl, AllocateMessageQueueAveragelyByCircle

    async def _rebalance(self) -> None:
        while self.running:
            for topic in self._options.topics:
                route = self.routes.get(topic)
                if route is not None:
                    members = await self._members(route)
                    if members and self.running:
                        self._take(topic, self._share(topic, route, members))
            await self.sleep(REBALANCE_EVERY_S)

    async def _members(self, route: TopicRouteData) -> list[str]:
        """Ask any broker who is in the group; nobody when it does not say."""
        addrs = addrs_of(route)
        if not addrs:
            return []
        try:
            response = await self.remoting.invoke(
                self.rng.choice(addrs),
                GET_CONSUMER_LIST_BY_GROUP,
                ConsumerGroupHeader(consumer_group=CONSUMER_GROUP),
                None,
                timeout_ms=ASK_TIMEOUT_MS,
            )
        except RequestFailed:
            return []
        return sorted(response.body.consumer_id_list)

    def _share(self, topic: str, route: TopicRouteData, members: list[str]) -> list[MessageQueue]:
        if self.name not in members:
            return []
        queues = sorted(
            MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)
            for data in route.queue_datas
            for queue_id in range(data.read_queue_nums)
        )
        return queues[members.index(str(self.name)) :: len(members)]

    def _take(self, topic: str, share: list[MessageQueue]) -> None:
        for queue in [queue for queue in self._mine if queue.topic == topic and queue not in share]:
            self._commit(queue)
            del self._mine[queue]
        for queue in share:
            if queue not in self._mine:
                self._mine[queue] = None
                self.spawn(self._consume(queue))

    # offsets

    async def _commits(self) -> None:
        while self.running:
            await self.sleep(COMMIT_EVERY_S)
            for queue in list(self._mine):
                self._commit(queue)

    def _commit(self, queue: MessageQueue) -> None:
        offset, addr = self._mine[queue], self._addr(queue)
        if offset is not None and addr is not None and self.running:
            header = UpdateConsumerOffsetHeader(
                consumer_group=CONSUMER_GROUP, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
            )
            self.remoting.oneway(addr, UPDATE_CONSUMER_OFFSET, header, None)

    async def _first_offset(self, queue: MessageQueue, addr: str) -> int:
        header = QueryConsumerOffsetHeader(consumer_group=CONSUMER_GROUP, topic=queue.topic, queue_id=queue.queue_id)
        try:
            response = await self.remoting.invoke(
                addr, QUERY_CONSUMER_OFFSET, header, None, timeout_ms=ASK_TIMEOUT_MS
            )
        except Refused as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return 0
        return response.header.offset

    # messages

    def _addr(self, queue: MessageQueue) -> str | None:
        """Return the master of a queue."""
        target = self.masters(queue.topic).get(queue.broker_name)
        return None if target is None else target[0]

    async def _consume(self, queue: MessageQueue) -> None:
        """Pull one queue for as long as it is mine."""
        while self.running and queue in self._mine:
            addr = self._addr(queue)
            if addr is None:
                await self.sleep(PULL_AGAIN_S)
                continue
            try:
                offset = self._mine[queue]
                if offset is None:
                    offset = await self._first_offset(queue, addr)
                else:
                    offset = await self._pull(queue, addr, offset)
            except RequestFailed as error:
                self._log.debug("no answer to {name}: {error}", name=self.name, error=error)
                await self.sleep(PULL_AGAIN_S)
                continue
            if queue in self._mine:
                self._mine[queue] = offset

    async def _pull(self, queue: MessageQueue, addr: str, offset: int) -> int:
        """Pull once, note what came, and return where to go on."""
        header = PullMessageHeader(
            consumer_group=CONSUMER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION | (PULL_COMMIT_OFFSET if offset else 0),
            commit_offset=offset,
            suspend_timeout_millis=SUSPEND_MS,
            subscription="*",
            sub_version=1,
            expression_type="TAG",
        )
        response = await self.remoting.invoke(addr, PULL_MESSAGE, header, None, timeout_ms=PULL_TIMEOUT_MS)
        if response.code == ResponseCode.SUCCESS:
            for record in decode_records(response.body):
                self._note(queue, record)
        return response.header.next_begin_offset

    def _note(self, queue: MessageQueue, record: Record) -> None:
        self._history.seen.append(
            Seen(
                key=key_of(record),
                group=queue.broker_name,
                topic=record.topic,
                queue_id=record.queue_id,
                queue_offset=record.queue_offset,
                body=record.body,
                at_s=self._history.now_s(),
                consumer=str(self.name),
            )
        )


def addrs_of(route: TopicRouteData) -> list[str]:
    """Return all brokers of a route."""
    return [data.broker_addrs[broker_id] for data in route.broker_datas for broker_id in sorted(data.broker_addrs)]


@attrs.frozen(kw_only=True)
class Copy:
    """All that one broker serves of one queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    records: list[Record]


class Observer(Client):
    """Somebody who reads everything by pulling, and changes nothing."""

    async def read_queue(self, addr: str, topic: str, queue_id: int) -> Copy:
        """Pull a queue from its beginning to its end; RequestFailed when the broker does not answer."""
        records: list[Record] = []
        offset = 0
        while True:
            reply, found = await self._pull(addr, topic, queue_id, offset)
            records += found
            if not found and offset < reply.min_offset:
                # A slave corrects no offsets, for it may lag.
                offset = reply.min_offset
                continue
            if not found and reply.next_begin_offset <= offset:
                return Copy(
                    topic=topic,
                    queue_id=queue_id,
                    min_offset=reply.min_offset,
                    max_offset=reply.max_offset,
                    records=records,
                )
            offset = reply.next_begin_offset

    async def _pull(self, addr: str, topic: str, queue_id: int, offset: int) -> tuple[PullMessageReply, list[Record]]:
        header = PullMessageHeader(
            consumer_group="sim-observer",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        response = await self.remoting.invoke(addr, PULL_MESSAGE, header, None, timeout_ms=PULL_TIMEOUT_MS)
        return response.header, decode_records(response.body) if response.code == ResponseCode.SUCCESS else []


def all_queues(options: Options) -> Iterator[tuple[str, int]]:
    """Yield every queue that a workload can use."""
    for topic in options.topics:
        for queue_id in range(options.queues):
            yield topic, queue_id

