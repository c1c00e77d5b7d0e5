"""
What users' programs do in a simulated cluster: producers and consumers over the client that users get, `rmq.client`.

Each program is a client in a process of its own, killed and restarted as the plan wants. Readers that are no users:
`rmq.sim.readers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred

from rmq.client.flows.instance import Instance
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.host import Answer, Prepare
from rmq.client.settings import ClientSettings, From, ProducerSettings, PushSettings
from rmq.client.types import CloseReport, ReceivedMessage, SendResult
from rmq.errors import NotDelivered, Refused, RocketMqError
from rmq.runtime.platform import Platform
from rmq.sim.cluster import Options
from rmq.sim.history import Ack, Committed, History, Seen, Sent, Transaction, key_of, message_of
from rmq.sim.world import EPOCH_S
from rmq.tx.host import TwistedConnections, TwistedHost
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand
from rmq.wire.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, decode_offset_msg_id

PRODUCER_GROUP, CONSUMER_GROUP = "sim-producers", "sim-consumers"
TAGS = ("A", "B")
#: what a local transaction takes, on average
LOCAL_TRANSACTION_S = 0.5
#: the parts of local transactions that decide at once, and of producers that report it
DECIDED, REPORTED = 0.7, 0.8
DECISIONS = (TRANSACTION_COMMIT, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
#: the part of messages whose handler takes its time, and what it takes on average
SLOW, SLOW_S = 0.2, 0.5

#: some of the times are quicker than the defaults, for runs are short
CLIENT = ClientSettings(heartbeat_s=10, rebalance_s=5)
#: a message is sent once, so what is stored twice is a violation
SENDING = ProducerSettings(retries=0, send_timeout_s=12)
CONSUMING = PushSettings(consume_from=From.FIRST)


class SimulatedHost(TwistedHost):
    """A simulated machine, whose process ids and months depend on the seed only."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform, home="/home")
        self._pid = self.rng.randrange(1, 1 << 15)
        #: is called with each request before it is sent
        self.on_request: Callable[[RemotingCommand], object] = lambda command: None

    def connections(self, prepare: Prepare, answer: Answer) -> TwistedConnections:
        def noting(command: RemotingCommand) -> None:
            prepare(command)
            self.on_request(command)

        return super().connections(noting, answer)

    def pid(self) -> int:
        return self._pid

    def month_of(self, wall_ms: int) -> tuple[int, int]:
        return int(EPOCH_S * 1000), wall_ms + 1


class Program(Service):
    """A process with a client in it; its stop closes the client."""

    def __init__(self, platform: Platform, namesrv_addrs: list[str], name: str, history: History) -> None:
        self.setName(name)
        self.host = SimulatedHost(platform)
        self.rng = self.host.rng
        self.history = history
        self.instance = Instance(self.host, namesrv_addrs, None, attrs.evolve(CLIENT, instance_name=name))

    def stopService(self) -> Deferred[CloseReport]:
        """Close the client."""
        super().stopService()
        return Deferred.fromCoroutine(self.instance.close())


class Producer(Program):
    """
    Send messages with keys and bodies of their own, at random moments, each once; some as transactions.

    What a transaction ends with is in the history, as in a database of the producers' group: each member can answer a
    broker's question about it, and a decision never changes.
    """

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, options: Options, history: History
    ) -> None:
        super().__init__(platform, namesrv_addrs, name, history)
        self._options = options
        self._producer = transaction_producer(
            self.instance, PRODUCER_GROUP, self._check, attrs.evolve(SENDING, default_queues=options.queues)
        )
        self._count = 0

    def startService(self) -> None:
        super().startService()
        self.instance.run_beside(self._produce(), name="produce")

    async def _produce(self) -> None:
        while True:
            await self.host.sleep(self.rng.expovariate(1 / self._options.send_every_s))
            if self.history.producing:
                self.instance.run_beside(self._send_one(), name="send")

    async def _send_one(self) -> None:
        topic = self.rng.choice(self._options.topics)
        try:
            if self._options.transactional and self.rng.random() < self._options.transactional:
                await self._transact(self._sent(topic, waits=True))
            elif self.rng.random() < self._options.batched:
                await self._send([self._sent(topic, waits=True) for _ in range(self.rng.randint(1, 5))])
            else:
                await self._send([self._sent(topic, waits=self.rng.random() < 0.95)])
        except RocketMqError as error:
            self.history.refused(describe(error))

    def _sent(self, topic: str, *, waits: bool) -> Sent:
        """Return a message whose queue is still to be chosen."""
        self._count += 1
        key = f"{self.name}-{self._count}"
        # Sizes spread over orders of magnitude, the longest once in a while.
        size = int(math.exp(self.rng.uniform(0, math.log(self._options.body_bytes))))
        return Sent(
            key=key,
            group="",
            topic=topic,
            queue_id=-1,
            tag=self.rng.choice(TAGS),
            body=key.encode() + b":" + self.rng.randbytes(size),
            at_s=self.history.now_s(),
            waits=waits,
        )

    async def _send(self, messages: list[Sent]) -> None:
        """Send one message, or a batch, to a queue that the history has before the send."""
        queue = self.rng.choice(await self._producer.queues(messages[0].topic))
        for sent in messages:
            sent.group, sent.queue_id, sent.at_s = queue.broker_name, queue.queue_id, self.history.now_s()
        self.history.sent.update((sent.key, sent) for sent in messages)
        if len(messages) == 1:
            result = await self._producer.send(message_of(messages[0]), queue=queue)
        else:
            result = await self._producer.send_batch([message_of(sent) for sent in messages], queue=queue)
        ids = result.offset_message_id.split(",")
        for number, (sent, msg_id) in enumerate(zip(messages, ids, strict=True)):
            self.history.acknowledge(sent, self._ack(result, msg_id, number))

    async def _transact(self, sent: Sent) -> None:
        """Send a half message, decide, and tell the broker, or leave one or both to its question."""
        transaction = self.history.transactions[sent.key] = Transaction(sent=sent)
        try:
            result = await self._producer.begin(message_of(sent))
        except NotDelivered:
            transaction.decide(TRANSACTION_ROLLBACK, self.history.now_s())
            raise
        sent.group, sent.queue_id = result.queue.broker_name, result.queue.queue_id
        sent.ack = self._ack(result, result.offset_message_id)
        await self.host.sleep(self.rng.expovariate(1 / LOCAL_TRANSACTION_S))
        if self.rng.random() < DECIDED:
            transaction.decide(self.rng.choice(DECISIONS), self.history.now_s())
        if self.rng.random() < REPORTED:
            await self._producer.end(result, Outcome(transaction.state))

    def _check(self, message: ReceivedMessage) -> Outcome:
        """Tell a broker how a transaction of any member of the group has ended."""
        history, record = self.history, message.record
        transaction = history.transactions.get(key_of(record))
        if transaction is None or (record.topic, record.body) != (transaction.sent.topic, transaction.sent.body):
            history.wrong_checks.append(f"{self.name} was asked about {key_of(record)!r} of {record.topic}")
            return Outcome.UNKNOWN
        if not history.producing or self.rng.random() < DECIDED:
            known = transaction.sent.ack is not None
            transaction.decide(self.rng.choice(DECISIONS) if known else TRANSACTION_ROLLBACK, history.now_s())
        return Outcome(transaction.state)

    def _ack(self, result: SendResult, msg_id: str, number: int = 0) -> Ack:
        return Ack(
            at_s=self.history.now_s(),
            code=result.status.value,
            queue_id=result.queue.queue_id,
            queue_offset=result.queue_offset + number,
            phy_offset=decode_offset_msg_id(msg_id)[1],
        )


class Consumer(Program):
    """A member of the consumer group; some of its handlers take their time, and die with the process."""

    def __init__(
        self, platform: Platform, namesrv_addrs: list[str], name: str, options: Options, history: History
    ) -> None:
        super().__init__(platform, namesrv_addrs, name, history)
        subscriptions = dict.fromkeys(options.topics, "*")
        self._consumer = push_consumer(self.instance, CONSUMER_GROUP, subscriptions, self._handle, CONSUMING)
        self.host.on_request = self._note_offset

    def startService(self) -> None:
        super().startService()
        self.instance.run_beside(self._consumer.start(), name="start")

    async def _handle(self, message: ReceivedMessage) -> None:
        seen = Seen(
            key=key_of(message.record),
            group=message.queue.broker_name,
            topic=message.topic,
            queue_id=message.queue.queue_id,
            queue_offset=message.queue_offset,
            body=message.body,
            at_s=self.history.now_s(),
            consumer=str(self.name),
        )
        self.history.seen.append(seen)
        if self.rng.random() < SLOW:
            await self.host.sleep(self.rng.expovariate(1 / SLOW_S))
        seen.handled_s = self.history.now_s()

    def _note_offset(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            fields = command.ext_fields
            committed = Committed(
                group=fields["bname"],
                topic=fields["topic"],
                queue_id=int(fields["queueId"]),
                offset=int(fields["commitOffset"]),
                at_s=self.history.now_s(),
                consumer=str(self.name),
            )
            self.history.committed.append(committed)


def describe(error: RocketMqError) -> str:
    """Return the kind of a failure, of the last try."""
    cause = error.attempts[-1][1] if isinstance(error, NotDelivered) and error.attempts else error
    return f"code {cause.code}" if isinstance(cause, Refused) else type(cause).__name__
