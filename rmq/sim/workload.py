"""
What clients do in a simulated cluster: what all of them have in common, and producers. Consumers: `rmq.sim.consumer`.

They speak the contracts that Apache's clients speak and behave like them where it matters: routes from any NameServer,
sends to masters, consumers that share queues by what the broker says of their group, and offsets kept by the broker.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from rmq.remoting.client import Refused, RemotingClient, RequestFailed, Response
from rmq.runtime.clock import now_ms
from rmq.runtime.platform import Platform
from rmq.sim.cluster import Options
from rmq.sim.history import Ack, History, Sent, properties_of
from rmq.wire.api.clients import (
    HEART_BEAT,
    HeartbeatData,
    ProducerData,
)
from rmq.wire.api.common import MASTER_ID, MessageQueue
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
from rmq.wire.record import BatchEntry, Record, decode_offset_msg_id, decode_records, encode_batch

AUTO_TOPIC = "TBW102"
PRODUCER_GROUP = "sim-producers"
TAGS = ("A", "B")

#: Apache's sendMsgTimeout, pollNameServerInterval, heartbeatBrokerInterval and so on, some of them quicker
SEND_TIMEOUT_MS = 3000
ASK_TIMEOUT_MS = 3000
PULL_TIMEOUT_MS = 30_000
ROUTE_EVERY_S = 30.0
#: how soon a client that lacks a route asks again
ROUTE_AGAIN_S = 1.0
HEARTBEAT_EVERY_S = 10.0


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

    async def pull(
        self, addr: str, group: str, queue: MessageQueue, offset: int, *, commit: bool = False, suspend_ms: int = 0
    ) -> tuple[PullMessageReply, list[Record]]:
        """Pull from a queue once; a consumer waits for messages and may commit its offset on the way."""
        header = PullMessageHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0) | (PULL_COMMIT_OFFSET if commit else 0),
            commit_offset=offset if commit else 0,
            suspend_timeout_millis=suspend_ms,
            subscription="*",
            sub_version=1 if suspend_ms else 0,
            expression_type="TAG",
        )
        response = await self.remoting.invoke(addr, PULL_MESSAGE, header, None, timeout_ms=PULL_TIMEOUT_MS)
        return response.header, decode_records(response.body) if response.code == ResponseCode.SUCCESS else []

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
            self.spawn(self._send(addr, messages, batch=True))
        else:
            waits = self.rng.random() < 0.95
            self.spawn(self._send(addr, [self._message(group, topic, queue_id, waits=waits)], batch=False))

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

    async def _send(self, addr: str, messages: list[Sent], *, batch: bool) -> None:
        header = self._header(messages[0], "" if batch else properties_of(messages[0]))
        header.batch = batch
        body = messages[0].body
        if batch:
            body = encode_batch(BatchEntry(sent.body, properties_of(sent)) for sent in messages)
        contract = SEND_BATCH_MESSAGE if batch else SEND_MESSAGE_V2
        try:
            response = await self.remoting.invoke(addr, contract, header, body, timeout_ms=SEND_TIMEOUT_MS * 4)
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


def describe(error: RequestFailed) -> str:
    """Return the kind of a failure."""
    return f"code {error.code}" if isinstance(error, Refused) else type(error).__name__


def addrs_of(route: TopicRouteData) -> list[str]:
    """Return all brokers of a route."""
    return [data.broker_addrs[broker_id] for data in route.broker_datas for broker_id in sorted(data.broker_addrs)]
