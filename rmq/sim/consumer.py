"""The readers of a simulated cluster: members of a consumer group, and an observer that reads everything."""

from __future__ import annotations

from rmq.remoting.client import Refused, RequestFailed
from rmq.runtime.platform import Platform
from rmq.sim.cluster import Options
from rmq.sim.history import Copy, History, Seen, key_of
from rmq.sim.workload import ASK_TIMEOUT_MS, HEARTBEAT_EVERY_S, Client, addrs_of
from rmq.wire.api.clients import (
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    ConsumerData,
    ConsumerGroupHeader,
    HeartbeatData,
)
from rmq.wire.api.common import MessageQueue, SubscriptionData
from rmq.wire.api.offsets import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.routes import TopicRouteData
from rmq.wire.codes import ResponseCode
from rmq.wire.record import Record

CONSUMER_GROUP = "sim-consumers"

#: Apache's rebalance every 20 s, persistConsumerOffsetInterval, brokerSuspendMaxTimeMillis and so on
REBALANCE_EVERY_S = 5.0
COMMIT_EVERY_S = 5.0
SUSPEND_MS = 15_000
PULL_AGAIN_S = 1.0


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
            response = await self.remoting.invoke(addr, QUERY_CONSUMER_OFFSET, header, None, timeout_ms=ASK_TIMEOUT_MS)
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
        reply, records = await self.pull(addr, CONSUMER_GROUP, queue, offset, commit=offset > 0, suspend_ms=SUSPEND_MS)
        for record in records:
            self._note(queue, record)
        return reply.next_begin_offset

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


class Observer(Client):
    """An observer that pulls everything and changes nothing."""

    async def read_queue(self, addr: str, topic: str, queue_id: int) -> Copy:
        """Pull a queue from its beginning to its end; RequestFailed when the broker does not answer."""
        records: list[Record] = []
        offset = 0
        queue = MessageQueue(topic=topic, broker_name="", queue_id=queue_id)
        while True:
            reply, found = await self.pull(addr, "sim-observer", queue, offset)
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
