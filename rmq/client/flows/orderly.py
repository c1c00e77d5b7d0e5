"""
Ordered consumption: a queue is locked at its broker, and its messages go to the handler one after the other.

Java: ConsumeMessageOrderlyService, RebalancePushImpl#lock
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

from rmq.client.core import outgoing
from rmq.client.core.routes import RETRY_PREFIX
from rmq.client.flows.instance import Instance
from rmq.client.flows.member import Held
from rmq.client.flows.push import Handler, PushConsumer, Worker
from rmq.client.observers import How
from rmq.client.settings import PushSettings, check_kind
from rmq.client.types import Later, ReceivedMessage, Reject, Sql
from rmq.errors import ConfigurationError, NoRoute, NotDelivered, RequestFailed
from rmq.wire.api.clients import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ, LockBatchBody
from rmq.wire.api.common import MessageQueue

#: how often locks are renewed, and how long one counts without that.  Java: ProcessQueue#REBALANCE_LOCK_INTERVAL
RENEW_S = 20.0
LOCK_S = 30.0
#: pause of a queue that is not locked
UNLOCKED_PAUSE_S = 1.0
#: how long a queue that goes to another member waits for its handler, before the next round tries again
HANDLER_WAIT_S = 1.0

_log = logging.getLogger("rmq.client.consumer")


class OrderlyConsumer(PushConsumer):
    """A push consumer with ``orderly``: one handler for each queue at a time, in the order of offsets."""

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        handler: Handler | None,
        settings: PushSettings,
    ) -> None:
        if handler is None or settings.broadcast:
            raise ConfigurationError("ordered consumption needs a handler, and no broadcast")
        super().__init__(instance, group, subscriptions, handler, settings)
        #: messages by queue, and the queues whose turn it is
        self._waiting: dict[Held, deque[ReceivedMessage]] = {}
        self._turns: deque[Held] = deque()
        #: queues with a turn or a running handler
        self._active: set[Held] = set()
        self._freed = self._host.gate()
        self._locked_s: dict[MessageQueue, float] = {}
        self._most = settings.max_reconsume_times

    # locks

    async def _may_take(self, queue: MessageQueue) -> bool:
        return await self._lock([queue])

    async def _lock(self, queues: list[MessageQueue]) -> bool:
        """Lock queues of one broker; False when one of them belongs to another member."""
        body = LockBatchBody(client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues)
        try:
            addr = self._instance.broker_addr(queues[0].broker_name)
            locked = (await self._instance.ask(addr, LOCK_BATCH_MQ, None, body)).body.lock_ok_mq_set
        except RequestFailed as error:
            _log.info("queues of %s cannot be locked: %s", queues[0].broker_name, error)
            return False
        for queue in queues:
            if queue in locked:
                self._locked_s[queue] = self._host.seconds()
            else:
                self._locked_s.pop(queue, None)
        return all(queue in locked for queue in queues)

    async def _renew(self) -> None:
        """Lock all queues every 20 s, and soon again what was not locked: its broker may be back."""
        renewed = True
        while True:
            is_locked = renewed and all(map(self._is_locked, self._held.values()))
            await self._host.sleep(RENEW_S if is_locked else UNLOCKED_PAUSE_S)
            renewed = all([await self._lock(queues) for queues in self._by_broker()])

    def _is_locked(self, held: Held) -> bool:
        return self._host.seconds() - self._locked_s.get(held.queue, -LOCK_S) < LOCK_S

    def _locked_since_s(self, held: Held) -> float | None:
        return self._locked_s.get(held.queue)

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        body = LockBatchBody(client_id=self._instance.client_id, consumer_group=self._group, mq_set=queues)
        try:
            addr = self._instance.broker_addr(queues[0].broker_name)
            await self._instance.ask_last(addr, UNLOCK_BATCH_MQ, None, body)
        except RequestFailed as error:
            _log.info("queues of %s were not unlocked: %s", queues[0].broker_name, error)

    def _why_wait(self, held: Held) -> float:
        if not self._is_locked(held):
            held.trouble = "not locked"
            return UNLOCKED_PAUSE_S
        return super()._why_wait(held)

    def _span_matters(self) -> bool:
        return False

    async def _drop(self, held: Held) -> bool:
        """Let the handler end before another member may have the queue; False when it needs longer."""
        held.dropped = True
        if held.pulling is not None:
            held.pulling.cancel()
        try:
            await self._host.within(self._handler_ends(held), HANDLER_WAIT_S)
        except TimeoutError:
            return False
        await super()._drop(held)
        self._waiting.pop(held, None)
        self._locked_s.pop(held.queue, None)
        return True

    async def _hand_over(self, held: Held) -> None:
        """Unlock the queue when its offset is written: Apache's brokers do not do both in the order of requests."""
        if held.is_ready and not self._was_absent(held):
            await self._write(held)
        await self._unlock([held.queue])

    async def _handler_ends(self, held: Held) -> None:
        while held in self._active:
            self._freed.shut()
            await self._freed.wait()

    # turns

    def _start_watching(self) -> None:
        self._loops.append(self._host.spawn(self._renew(), name=f"rmq locks of {self._group}"))

    def _deliver(self, held: Held, messages: list[ReceivedMessage]) -> None:
        self._waiting.setdefault(held, deque()).extend(messages)
        if held not in self._active:
            self._active.add(held)
            self._turns.append(held)
            self._some.open()

    async def _work(self, worker: Worker) -> None:
        while not self._closed:
            if not self._turns:
                self._some.shut()
                await self._some.wait()
                continue
            held = self._turns.popleft()
            waiting = self._waiting.get(held, deque())
            size = min(len(waiting), self._settings.batch_size)
            batch = [waiting.popleft() for _ in range(size)]
            self._in_use += 1
            try:
                await self._in_order(held, batch)
            finally:
                self.settled()
                if waiting and not held.dropped and not self._closed:
                    self._turns.append(held)
                    self._some.open()
                else:
                    self._active.discard(held)
                    self._freed.open()

    async def _in_order(self, held: Held, messages: list[ReceivedMessage]) -> None:
        """Handle a batch until it is done, the queue is lost, or an operator has reset its offset."""
        while not held.dropped and not self._closed:
            messages = [message for message in messages if held.process.holds(message)]
            if not messages:
                return
            if not self._is_locked(held):
                await self._host.sleep(UNLOCKED_PAUSE_S)
                continue
            error = await self._call(held, messages)
            if isinstance(error, Later):
                self.done(held, messages[: error.from_index])
                messages = messages[error.from_index :]
            if error is None or (isinstance(error, Reject) and await self._all_sent_back(messages)):
                self._done(held, messages, How.ACKNOWLEDGED if error is None else How.REJECTED)
                return
            if not isinstance(error, Later | Reject):
                _log.warning("the handler of %s failed for %s: %r", self._group, messages, error, exc_info=error)
            messages = await self._without_exhausted(held, messages)
            if messages:
                await self._host.sleep(self._settings.suspend_queue_ms / 1000)

    async def _all_sent_back(self, messages: list[ReceivedMessage]) -> bool:
        return all([await self._sent_back(message, -1) for message in messages])

    async def _without_exhausted(self, held: Held, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Count a try; send those that have no more to the broker, and return the rest."""
        rest = []
        for message in messages:
            if 0 <= self._most <= message.reconsume_times and await self._given_up(message):
                self._done(held, [message], How.REJECTED)
            else:
                message.reconsume_times += 1
                rest.append(message)
        self._tell_settled(held, len(rest), How.RETRIED)
        return rest

    async def _given_up(self, message: ReceivedMessage) -> bool:
        """Send a message to the retry topic with all its tries used: the broker puts it into the dead letter queue."""
        try:
            await self._sender.deliver(outgoing.again(message, self._group, self._most))
            return True
        except (NotDelivered, NoRoute) as error:
            _log.warning("%s cannot be sent to %s%s: %s", message, RETRY_PREFIX, self._group, error)
            return False

    async def _let_go(self) -> None:
        for queues in self._by_broker():
            await self._unlock(queues)

    def _by_broker(self) -> list[list[MessageQueue]]:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self._held:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        return list(by_broker.values())


def push_consumer(
    instance: Instance,
    group: str,
    subscriptions: Mapping[str, str | Sql],
    handler: Handler | None,
    settings: PushSettings,
) -> PushConsumer:
    """Return the consumer that the settings want, as a part of the client."""
    check_kind(settings, PushSettings)
    kind = OrderlyConsumer if settings.orderly else PushConsumer
    consumer = kind(instance, group, subscriptions, handler, settings)
    instance.add_consumer(group, consumer)
    return consumer
