"""
What clients do in a simulated cluster: what all of them have in common, and producers. Consumers: `rmq.sim.consumer`.

They speak the contracts that Apache's clients speak and behave like them where it matters: routes from any NameServer,
sends to masters, consumers that share queues by what the broker says of their group, and offsets kept by the broker.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from random import Random
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from rmq.remoting.client import Refused, RemotingClient, RequestFailed, Response
from rmq.remoting.responders import NO_REPLY, NoReply, Request, ResponderTable, responds_to
from rmq.runtime.clock import now_ms
from rmq.runtime.platform import Platform
from rmq.sim.cluster import Options
from rmq.sim.history import Ack, History, Sent, Transaction, properties_of, same
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
from rmq.wire.api.transactions import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    CheckTransactionStateHeader,
    EndTransactionHeader,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BatchEntry,
    Record,
    append_properties,
    decode_offset_msg_id,
    decode_record,
    decode_records,
    encode_batch,
    encode_properties,
)

AUTO_TOPIC = "TBW102"
PRODUCER_GROUP = "sim-producers"
TAGS = ("A", "B")
#: properties of a half message
HALF = encode_properties({PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: PRODUCER_GROUP})
#: what a local transaction takes, on average
LOCAL_TRANSACTION_S = 0.5
#: the parts of local transactions that decide at once, and of producers that report it
DECIDED, REPORTED = 0.7, 0.8
DECISIONS = (TRANSACTION_COMMIT, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)

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

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, responders: ResponderTable | None = None
    ) -> None:
        self.setName(name)
        self.clock = platform.reactor
        self.rng = platform.rng
        self.remoting = RemotingClient(platform, name=name, responders=responders)
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
    """
    Send messages with unique keys and bodies, at random moments, each once; some as transactions.

    What a transaction ends with is in the history, as in a database of the producers' group: each member can answer a
    broker's question about it, and a decision never changes.
    """

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, options: Options, history: History
    ) -> None:
        super().__init__(platform, namesrv_addrs, name, ResponderTable(Answers(platform.rng, history)))
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
        if self._options.transactional and self.rng.random() < self._options.transactional:
            self.spawn(self._transact(addr, self._message(group, topic, queue_id, waits=True)))
        elif self.rng.random() < self._options.batched:
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
        return Sent(
            key=key,
            group=group,
            topic=topic,
            queue_id=queue_id,
            tag=self.rng.choice(TAGS),
            body=key.encode() + b":" + self.rng.randbytes(size),
            at_s=self._history.now_s(),
            waits=waits,
        )

    async def _send(self, addr: str, messages: list[Sent], *, batch: bool) -> None:
        self._history.sent.update((sent.key, sent) for sent in messages)
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

    async def _transact(self, addr: str, sent: Sent) -> None:
        """
        Send a half message, decide, and tell the broker, or leave one or both to its question.

        Java: DefaultMQProducerImpl#sendMessageInTransaction
        """
        transaction = self._history.transactions[sent.key] = Transaction(sent=sent)
        header = self._header(sent, append_properties(properties_of(sent), HALF))
        header.sys_flag = TRANSACTION_PREPARED
        try:
            response = await self.remoting.invoke(
                addr, SEND_MESSAGE_V2, header, sent.body, timeout_ms=SEND_TIMEOUT_MS * 4
            )
        except RequestFailed as error:
            self._history.refused(describe(error))
            return
        sent.ack = self._ack(response, response.header.msg_id)
        await self.sleep(self.rng.expovariate(1 / LOCAL_TRANSACTION_S))
        if response.code != ResponseCode.SUCCESS:
            transaction.decide(TRANSACTION_ROLLBACK, self._history.now_s())
        elif self.rng.random() < DECIDED:
            transaction.decide(self.rng.choice(DECISIONS), self._history.now_s())
        if self.running and self.rng.random() < REPORTED:
            end = EndTransactionHeader(
                producer_group=PRODUCER_GROUP,
                tran_state_table_offset=sent.ack.queue_offset,
                commit_log_offset=sent.ack.phy_offset,
                commit_or_rollback=transaction.state,
                msg_id=sent.key,
            )
            self.remoting.oneway(addr, END_TRANSACTION, end, None)

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
            self._history.acknowledge(sent, self._ack(response, msg_id, number))

    def _ack(self, response: Response[SendMessageReply, Any], msg_id: str, number: int = 0) -> Ack:
        return Ack(
            at_s=self._history.now_s(),
            code=response.code,
            queue_id=response.header.queue_id,
            queue_offset=response.header.queue_offset + number,
            phy_offset=decode_offset_msg_id(msg_id)[1],
        )


class Answers:
    """
    Answers to the questions of brokers: how a transaction of any member of the group has ended.

    Java: ClientRemotingProcessor#checkTransactionState
    """

    def __init__(self, rng: Random, history: History) -> None:
        self._rng = rng
        self._history = history

    @responds_to(CHECK_TRANSACTION_STATE)
    def check(self, request: Request[CheckTransactionStateHeader, bytes]) -> NoReply:
        header, history = request.header, self._history
        key = header.msg_id or ""
        transaction, record = history.transactions.get(key), decode_record(request.body)
        if transaction is None or not same(transaction.sent, record):
            history.wrong_checks.append(f"a producer was asked about {key!r} of {record.topic}:{record.queue_id}")
            return NO_REPLY
        if not history.producing or self._rng.random() < DECIDED:
            known = transaction.sent.ack is not None
            transaction.decide(self._rng.choice(DECISIONS) if known else TRANSACTION_ROLLBACK, history.now_s())
        end = EndTransactionHeader(
            producer_group=PRODUCER_GROUP,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=transaction.state,
            from_transaction_check=True,
            msg_id=key,
            transaction_id=header.transaction_id,
        )
        request.channel.oneway(END_TRANSACTION, end, None)
        return NO_REPLY


def describe(error: RequestFailed) -> str:
    """Return the kind of a failure."""
    return f"code {error.code}" if isinstance(error, Refused) else type(error).__name__


def addrs_of(route: TopicRouteData) -> list[str]:
    """Return all brokers of a route."""
    return [data.broker_addrs[broker_id] for data in route.broker_datas for broker_id in sorted(data.broker_addrs)]
