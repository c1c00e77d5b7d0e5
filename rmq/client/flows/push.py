"""
Push consumers: messages go to a handler, or to an `async for`; what fails comes again.

Java: DefaultMQPushConsumerImpl, ConsumeMessageConcurrentlyService
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import attrs

from rmq.client.core import outgoing
from rmq.client.flows import spans
from rmq.client.flows.closing import Closing
from rmq.client.flows.instance import INNER_PRODUCER, Instance
from rmq.client.flows.member import Held, Member
from rmq.client.flows.producer import Producer
from rmq.client.flows.spans import Traced
from rmq.client.flows.usercode import InHandler, check_argument, check_handler, failure, logged, outcome, tell
from rmq.client.host import Running
from rmq.client.observers import Handled, How
from rmq.client.settings import ProducerSettings, PushSettings
from rmq.client.types import CloseReport, Later, ReceivedMessage, Reject, Sql, check_later
from rmq.errors import AlreadySettled, ClosedClient, ConfigurationError, LostQueue, NoRoute, NotDelivered, RequestFailed
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import CONSUME_MESSAGE_DIRECTLY, ConsumeResult
from rmq.wire.api.sending import CONSUMER_SEND_MSG_BACK, SendBackHeader
from rmq.wire.command import RemotingCommand, encode_reply
from rmq.wire.record import PROPERTY_RETRY_TOPIC, decode_record

#: gets a message, or with ``batch_size`` above 1 a list; what it returns is not looked at, but awaited if it can be
Handler = Callable[[ReceivedMessage], object] | Callable[[list[ReceivedMessage]], object]

SEND_BACK_TIMEOUT_S = 5.0
#: pause before a message that could not be sent back is delivered here again
LOCAL_RETRY_S = 5.0
#: how often handlers are checked for their timeout
CHECK_HANDLERS_S = 1.0
#: delay levels: to the dead letter queue; after a timeout of the handler
REJECT_LEVEL = -1
TIMEOUT_LEVEL = 3
DEFAULT_MAX_RECONSUME_TIMES = 16

_log = logging.getLogger("rmq.client.consumer")


@attrs.define(eq=False)
class Worker:
    """A coroutine that calls the handler, for one batch after the other."""

    held: Held | None = None
    messages: Sequence[ReceivedMessage] = ()
    since_s: float = 0.0
    running: Running | None = None
    #: another one has its place, because its handler took too long
    is_replaced: bool = False


class PushConsumer(Member):
    """
    A member of a consumer group whose messages go to ``handler``; without one, take them with ``async for``.

    A handler that returns has consumed its message. One that raises gets it again: ``Later`` and ``Reject`` say when,
    any other exception means "later, as the broker decides". Made by the client.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        handler: Handler | None,
        settings: PushSettings,
    ) -> None:
        super().__init__(instance, group, subscriptions, settings, broadcast=settings.broadcast)
        if not subscriptions:
            raise ConfigurationError("a consumer without subscriptions gets nothing: {'orders': '*'}, for example")
        if handler is not None:
            check_handler(handler, "a handler")
            check_argument(handler, settings.batch_size)
        self._settings = settings
        self._handler = handler
        self._ready: deque[tuple[Held, ReceivedMessage]] = deque()
        self._some = self._host.gate()
        self._workers: list[Worker] = []
        self._again: dict[ReceivedMessage, Running] = {}
        self._in_use = 0
        #: the offsets are written for the last time: what is acknowledged now has no effect
        self.has_ended = False
        self._idle = self._host.gate()
        self._sender = Producer(instance, INNER_PRODUCER, ProducerSettings())
        self._closing = Closing(self._host, self, self._close, name=f"rmq close of {self._group}")
        most = settings.max_reconsume_times
        self._max_reconsume_times = DEFAULT_MAX_RECONSUME_TIMES if most < 0 else most

    # for users

    async def start(self) -> None:
        """
        Join the group and begin to consume; returns once the brokers know the subscription.

        Refused when a broker cannot parse an expression of SQL92, or does not filter by such.
        """
        if not await self._start_once():
            return
        if self._handler is not None:
            for _ in range(self._settings.concurrency):
                self._add_worker()
            self._start_watching()

    def _start_watching(self) -> None:
        self._loops.append(self._host.spawn(self._check_handlers(), name="rmq handler timeouts"))

    async def run(self) -> None:
        """Start, and return when the consumer is closed."""
        if self._handler is None:
            raise ConfigurationError("run needs a handler")
        self._instance.check_process()
        if not self._closed:
            await self.start()
        await self._ended.wait()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._closed:
            try:
                yield await self.receive()
            except ClosedClient:
                return

    async def receive(self) -> Delivery:
        """Wait for the next message; ClosedClient when the consumer is closed meanwhile."""
        if self._handler is not None:
            raise ConfigurationError("the messages of this consumer go to its handler")
        await self.start()
        while not self._closed:
            if self._ready:
                held, message = self._ready.popleft()
                if not held.dropped and held.process.holds(message):
                    return Delivery(self, held, message)
            else:
                self._some.shut()
                await self._some.wait()
        raise ClosedClient("the consumer is closed")

    async def close(self) -> CloseReport:
        """
        Pull no more, wait for the handlers (``drain_timeout_s``, then they are cancelled), write the offsets, and leave
        the group.

        A message whose handler has ended is not delivered again, if its offset was written. A caller that is cancelled
        does not end the close. In a handler of this consumer it returns at once, with an empty report: the close waits
        for that handler.
        """
        self._closed = True
        return await self._closing.report()

    async def _close(self) -> CloseReport:
        try:
            return await self._end()
        finally:
            self._ended.open()

    async def _end(self) -> CloseReport:
        await self._stop_pulling()
        for again in self._again.values():
            again.cancel()
        self._ready.clear()
        self._some.open()
        try:
            await self._host.within(self._wait_idle(), self._settings.drain_timeout_s)
        except TimeoutError:
            pass
        cancelled = self._in_use
        for worker in self._workers:
            if worker.running is not None:
                worker.running.cancel()
        for worker in self._workers:
            if worker.running is not None:
                await worker.running.wait()
        await self._sender.close()
        self.has_ended = True
        report = await self._write_all()
        await self._let_go()
        await self._instance.leave(self)
        self._give_up_all()
        return attrs.evolve(report, handlers_cancelled=cancelled)

    async def _let_go(self) -> None:
        """Do what else there is to do before other members get the queues."""

    async def _wait_idle(self) -> None:
        while self._in_use:
            self._idle.shut()
            await self._idle.wait()

    # handlers

    def _deliver(self, held: Held, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._ready.append((held, message))
        self._some.open()

    def _add_worker(self) -> None:
        worker = Worker()
        self._workers.append(worker)
        worker.running = self._host.spawn(self._work(worker), name=f"rmq handler of {self._group}")

    async def _work(self, worker: Worker) -> None:
        """Call the handler for one batch after the other; in ``worker`` is which."""
        while not self._closed and not worker.is_replaced:
            if not self._ready:
                self._some.shut()
                await self._some.wait()
                continue
            held, messages = self._next_batch()
            if not messages:
                continue
            worker.held, worker.messages, worker.since_s = held, messages, self._host.seconds()
            self._in_use += 1
            try:
                await self._handle(held, messages)
            finally:
                worker.held = None
                self.settled()

    def _next_batch(self) -> tuple[Held, list[ReceivedMessage]]:
        held, message = self._ready.popleft()
        messages = [message]
        while len(messages) < self._settings.batch_size and self._ready and self._ready[0][0] is held:
            messages.append(self._ready.popleft()[1])
        return held, [] if held.dropped else [each for each in messages if held.process.holds(each)]

    async def _handle(self, held: Held, messages: list[ReceivedMessage]) -> None:
        error = await self._call(held, messages)
        if error is None:
            self.done(held, messages)
            return
        level = 0
        if isinstance(error, Later):
            self.done(held, messages[: error.from_index])
            messages, level = messages[error.from_index :], error.delay_level
        elif isinstance(error, Reject):
            level = REJECT_LEVEL
        else:
            _log.warning("the handler of %s failed for %s: %r", self._group, messages, error, exc_info=error)
        for message in messages:
            await self.give_back(held, message, level)

    async def _call(self, held: Held, messages: list[ReceivedMessage]) -> Exception | None:
        """Give messages to the handler and return what it raised."""
        assert self._handler is not None
        began = self._host.seconds()
        argument: object = messages if self._settings.batch_size > 1 else messages[0]
        begun = self.traced(messages)
        with InHandler(self, self._instance):
            error = await self._current(messages, argument)
        self.trace_ended(messages, begun, error)
        self.handled(held, len(messages), began, error)
        return error

    async def _current(self, messages: Sequence[ReceivedMessage], argument: object) -> Exception | None:
        """Run the handler with its span as the current one."""
        assert self._handler is not None
        with self.span(messages) as span:
            span.attach()
            try:
                _, error = await outcome(self._host, self._handler, argument)
            except self._host.CANCELLED:
                span.failed(TimeoutError("the handler did not end in time; it was cancelled"))
                raise
            finally:
                span.detach()
            span.failed(error)
        return error

    def span(self, messages: Sequence[ReceivedMessage]) -> Traced:
        """Begin the span of a handler, or of a delivery's block."""
        is_batch = self._settings.batch_size > 1 and self._handler is not None
        return spans.handling(
            self._instance, self._group, messages, is_batch=is_batch, is_broadcast=self._settings.broadcast
        )

    def traced(self, messages: Sequence[ReceivedMessage]) -> tuple[str, int] | None:
        """Trace that messages are given to a handler; return what :meth:`trace_ended` needs."""
        tracer = self._instance.tracer
        return None if tracer is None else tracer.before(self._group, messages)

    def trace_ended(
        self, messages: Sequence[ReceivedMessage], begun: tuple[str, int] | None, error: Exception | None
    ) -> None:
        """Trace that a handler has ended."""
        if self._instance.tracer is not None and begun is not None:
            self._instance.tracer.after(self._group, messages, begun, error)

    def handled(self, held: Held, messages: int, began: float, error: Exception | None) -> None:
        """Count the end of a handler, and tell the observers."""
        seconds = self._host.seconds() - began
        consumed = messages if error is None else min(error.from_index, messages) if isinstance(error, Later) else 0
        self._tally(held).handled(self._host.seconds(), consumed, messages - consumed, seconds)
        if self._instance.observers:
            event = Handled(
                topic=held.queue.topic,
                group=self._group,
                messages=messages,
                seconds=seconds,
                error=error,
            )
            tell(self._instance.observers, lambda observer: observer.handled(event))

    def done(self, held: Held, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages."""
        self._done(held, messages, How.ACKNOWLEDGED)

    async def _check_handlers(self) -> None:
        """Cancel handlers that run too long, and send their messages back."""
        while True:
            await self._host.sleep(CHECK_HANDLERS_S)
            logged(self._cancel_late, f"the check of the handlers of {self._group}")

    def _cancel_late(self) -> None:
        """Look at all workers without a wait, in which one could end its handler and begin another one."""
        latest = self._host.seconds() - self._settings.consume_timeout_s
        for worker in list(self._workers):
            held, messages = worker.held, worker.messages
            # of each when its turn comes, because the end of one handler may end another one
            if held is None or worker.since_s >= latest:
                continue
            _log.error("the handler of %s did not end for %s; it is cancelled", self._group, messages)
            self._workers.remove(worker)
            worker.is_replaced = True
            self.handled(held, len(messages), worker.since_s, TimeoutError("consume_timeout_s"))
            for message in messages:
                self.give_back_beside(held, message, TIMEOUT_LEVEL)
            self._add_worker()
            assert worker.running is not None
            worker.running.cancel()

    # failures

    async def give_back(self, held: Held, message: ReceivedMessage, level: int) -> None:
        """
        Have a message delivered again, by the broker or, when nothing else works, here.

        Nothing is done for one that is no longer in hand: another member has its queue, or an operator has chosen from
        which offset on messages come.  Java: ConsumeMessageConcurrentlyService.ConsumeRequest#run
        """
        if self._broadcast:
            _log.warning("%s failed; with broadcast it is not delivered again", message)
            self._done(held, [message], How.SKIPPED)
        elif held.dropped:
            _log.info("%s failed; its queue is that of another member now", message)
        elif not held.process.holds(message):
            _log.info("%s failed; the offset of its queue was reset meanwhile", message)
        elif await self._sent_back(message, level):
            self._done(held, [message], How.REJECTED if level == REJECT_LEVEL else How.RETRIED)
        else:
            self._again[message] = self._host.spawn(
                self._again_here(held, message), name=f"rmq local retry of {message}"
            )

    def give_back_beside(self, held: Held, message: ReceivedMessage, level: int) -> Running:
        """Have a message delivered again, whatever becomes of the caller; the close waits for it as for a handler."""

        async def give() -> None:
            try:
                await self.give_back(held, message, level)
            finally:
                self.settled()

        self.entered()
        return self._host.spawn(give(), name=f"rmq return of {message}")

    async def _sent_back(self, message: ReceivedMessage, level: int) -> bool:
        header = SendBackHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=message.properties.get(PROPERTY_RETRY_TOPIC) or message.record.topic,
            max_reconsume_times=self._max_reconsume_times,
            bname=message.queue.broker_name,
        )
        try:
            addr = self._instance.master(message.queue.broker_name)
            await self._instance.ask(addr, CONSUMER_SEND_MSG_BACK, header, None, SEND_BACK_TIMEOUT_S)
            return True
        except RequestFailed as error:
            _log.warning("%s cannot be sent back: %s", message, error)
        try:
            await self._sender.deliver(outgoing.again(message, self._group, self._max_reconsume_times))
            return True
        except (NotDelivered, NoRoute) as error:
            _log.warning("%s cannot be sent to the retry topic: %s", message, error)
        return False

    async def _again_here(self, held: Held, message: ReceivedMessage) -> None:
        await self._host.sleep(LOCAL_RETRY_S)
        del self._again[message]
        message.reconsume_times += 1
        if not held.dropped and not self._closed:
            self._tell_settled(held, 1, How.RETRIED)
            self._deliver(held, [message])

    def topics(self) -> Iterable[str]:
        return [*super().topics(), *self._sender.topics()]

    def routes_changed(self) -> None:
        super().routes_changed()
        self._sender.routes_changed()

    # what tools ask

    def answers(self, addr: str, command: RemotingCommand) -> Coroutine[Any, Any, bytes | None] | None:
        if command.code == CONSUME_MESSAGE_DIRECTLY.code:
            return self._directly(command) if command.ext_fields.get("consumerGroup") == self._group else None
        return super().answers(addr, command)

    async def _directly(self, command: RemotingCommand) -> bytes | None:
        """Give one message to the handler, for an operator.  Java: ConsumeMessageService#consumeMessageDirectly"""
        record = decode_record(command.body or b"")
        broker_name = command.ext_fields.get("brokerName", "")
        queue = MessageQueue(topic=record.topic, broker_name=broker_name, queue_id=record.queue_id)
        message = ReceivedMessage(record, queue, self._namespace)
        began = self._host.seconds()
        if self._handler is None:
            error: Exception | None = ConfigurationError("the member has no handler")
        else:
            argument: object = [message] if self._settings.batch_size > 1 else message
            error = await self._current([message], argument)
        kind = "CR_THROW_EXCEPTION"
        if error is None or isinstance(error, Later | Reject):
            kind = "CR_SUCCESS" if error is None else "CR_LATER"
        result = ConsumeResult(
            order=self._settings.orderly,
            consume_result=kind,
            remark=None if error is None else repr(error),
            spent_time_mills=int((self._host.seconds() - began) * 1000),
        )
        return encode_reply(command, body=fastjson.encode(result))

    # deliveries

    @property
    def closed(self) -> bool:
        """Whether a close has begun."""
        return self._closed

    def entered(self) -> float:
        """A delivery is in use; a close waits for it. Return the time."""
        self._in_use += 1
        return self._host.seconds()

    def settled(self) -> None:
        """A handler has ended, or a delivery's block."""
        self._in_use -= 1
        if not self._in_use:
            self._idle.open()


class Delivery:
    """
    A message of an ``async for``: settle it with ack, later or reject; ``async with`` acknowledges it at its end, and
    after an exception asks for it again, unless its block has settled it.

    A message is settled once: ack, later and reject raise AlreadySettled afterwards, also after the end of the block.
    """

    def __init__(self, consumer: PushConsumer, held: Held, message: ReceivedMessage) -> None:
        self.message = message
        self._consumer = consumer
        self._held = held
        #: what became of the message; empty: nothing yet
        self._settled = ""

    async def ack(self) -> None:
        """The message is consumed; LostQueue when it will be delivered to another member, also after a close."""
        self._check_open("ack")
        if self._consumer.has_ended:
            raise LostQueue(f"{self.message} goes to the next member of the group, for its consumer is closed")
        if self._held.dropped:
            raise LostQueue(f"queue {self._held.queue} of {self.message} belongs to another member")
        self._settled = "acknowledged"
        self._consumer.done(self._held, [self.message])

    async def later(self, delay_level: int = 0) -> None:
        """Have the message delivered again; that goes on when the wait for it is cancelled."""
        check_later(delay_level)
        self._check_open("later")
        await self._again(delay_level).wait()

    def _check_open(self, call: str) -> None:
        if self._settled:
            raise AlreadySettled(f"{call}: {self.message} is {self._settled} already, and is settled once only")

    def _again(self, delay_level: int) -> Running:
        self._settled = "rejected" if delay_level == REJECT_LEVEL else "asked for again"
        return self._consumer.give_back_beside(self._held, self.message, delay_level)

    async def reject(self) -> None:
        """Send the message to the dead letter queue."""
        self._check_open("reject")
        await self._again(REJECT_LEVEL).wait()

    def begin(self) -> Traced:
        """The block begins; return its span, which is not attached yet."""
        self._began = self._consumer.entered()
        self._begun = self._consumer.traced([self.message])
        self._span = self._consumer.span([self.message])
        return self._span

    async def __aenter__(self) -> ReceivedMessage:
        self.begin().attach()
        return self.message

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._span.detach()
        return await self.end(error)

    async def end(self, error: BaseException | None) -> bool:
        """
        The block has ended; settle the message, and return whether the error goes no further.

        After a cancellation the message comes again, too, without a wait for it; but not from a consumer that is
        closed, whose next member gets it.
        """
        self._span.failed(error)
        self._span.end()
        failed = None if error is None else failure(error)
        self._consumer.trace_ended([self.message], self._begun, failed)
        self._consumer.handled(self._held, 1, self._began, failed)
        try:
            if self._settled:
                return False
            if error is None:
                await self.ack()
            elif isinstance(error, Reject):
                await self.reject()
            elif isinstance(error, Exception):
                await self.later(error.delay_level if isinstance(error, Later) else 0)
            elif not self._consumer.closed:
                self._again(0)
            return isinstance(error, Later | Reject)
        finally:
            self._settled = self._settled or "left to the next member of the group"
            self._consumer.settled()
