"""
Transactional producers: a message that consumers see when the sender's own transaction is committed.

Java: TransactionMQProducer, DefaultMQProducerImpl#sendMessageInTransaction, #checkTransactionState
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import attrs

from rmq.client.core import outgoing
from rmq.client.core.outgoing import less_safe
from rmq.client.core.routes import check_topic, wrap
from rmq.client.flows import spans
from rmq.client.flows.instance import Instance
from rmq.client.flows.producer import Producer
from rmq.client.flows.usercode import check_handler, outcome
from rmq.client.settings import ProducerSettings, check_kind
from rmq.client.types import Message, NotDurable, ReceivedMessage, SendResult, SendStatus
from rmq.errors import ConfigurationError, NoRoute, NotDelivered, RequestFailed
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.transactions import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    CheckTransactionStateHeader,
    EndTransactionHeader,
)
from rmq.wire.command import RemotingCommand
from rmq.wire.record import (
    PROPERTY_TRANSACTION_PREPARED,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    decode_offset_msg_id,
    decode_record,
)

_log = logging.getLogger("rmq.client")


class Outcome(enum.Enum):
    """How a transaction ended; UNKNOWN: ask again later.  Java: LocalTransactionState"""

    UNKNOWN = 0
    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK


class TransactionProducer(Producer):
    """
    A producer whose messages are seen when their transaction is committed; ``check`` answers brokers that ask how one
    ended: it gets the message and returns an Outcome. An exception of ``check`` is UNKNOWN.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        check: Callable[[ReceivedMessage], Any],
        settings: ProducerSettings,
        topics: Iterable[str] = (),
    ) -> None:
        super().__init__(instance, group, settings)
        check_handler(check, "a check")
        self.check = check
        self.settings = settings
        self.named_topics = tuple(topics)
        #: those whose brokers know this producer before it sends anything
        self._asked_about = [settings.default_topic]
        for topic in self.named_topics:
            check_topic(topic)
            self._asked_about.append(wrap(self._namespace, topic))

    async def announce(self) -> None:
        """
        Let brokers know that there is a member of the group to ask about transactions of programs that have ended.

        Java: DefaultMQProducerImpl#initTopicRoute
        """
        for topic in self._asked_about:
            try:
                await self._instance.fetch_route(topic)
            except NoRoute as error:
                _log.debug("%s; it is looked for again", error)
        self._instance.beat()

    def topics(self) -> Iterable[str]:
        return [*super().topics(), *self._asked_about]

    def transaction(self, message: Message) -> Transaction:
        """
        Return a context manager: it sends the message, which nobody sees yet, at its begin; it commits at the end of
        the block and rolls back after an exception. NotDelivered when the message is not stored safely.
        """
        return Transaction(self, message)

    async def begin(self, message: Message) -> SendResult:
        """Send a half message; one that is stored, but less safe, is rolled back."""
        self._check([message])
        message_id = self._instance.unique_id()
        with spans.sending(self._instance, "send", [message], [message_id], is_half=True) as span:
            more = {PROPERTY_TRANSACTION_PREPARED: "true", outgoing.PROPERTY_PRODUCER_GROUP: self._group}
            more |= span.properties()
            out = self.made(message, message_id, more)
            try:
                result = await self.deliver(attrs.evolve(out, sys_flag=out.sys_flag | TRANSACTION_PREPARED))
            except NotDurable as error:
                result = error.result
            span.sent(result.queue)
            if result.status is not SendStatus.OK:
                await self.end(result, Outcome.ROLLBACK)
                broker = result.queue.broker_name
                raise NotDelivered(out.topic, [(broker, less_safe(result.status, broker))])
        return attrs.evolve(result, half=message)

    async def end(self, result: SendResult, how: Outcome) -> None:
        """Say how a transaction ended, one-way: a broker that does not hear it asks."""
        if not isinstance(how, Outcome):
            raise ConfigurationError(f"a transaction ends with an Outcome, not {how!r}")
        header = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=decode_offset_msg_id(result.offset_message_id)[1],
            commit_or_rollback=how.value,
            msg_id=result.message_id,
            transaction_id=result.transaction_id,
            bname=result.queue.broker_name,
        )
        with spans.ending(self._instance, how.name.lower(), result.queue.topic, result.message_id) as span:
            span.sent(result.queue)
            try:
                addr = self._instance.broker_addr(result.queue.broker_name)
                await self._instance.connections.tell(addr, END_TRANSACTION, header, None)
            except RequestFailed as error:
                span.failed(error)
                _log.info("the end of transaction %s was not sent: %s; the broker will ask", result.message_id, error)
            else:
                self._trace_end(result.queue.topic, header, addr, result.half)

    def _trace_end(
        self, topic: str, end: EndTransactionHeader, addr: str, message: Message | ReceivedMessage | None
    ) -> None:
        if self._instance.tracer is not None:
            self._instance.tracer.ended(
                self._group,
                topic,
                end.msg_id or "",
                end.transaction_id,
                end.commit_or_rollback,
                tags=None if message is None else message.tags,
                keys=() if message is None else message.keys,
                broker_addr=addr,
                from_check=end.from_transaction_check,
            )

    # questions of brokers

    def answers(self, addr: str, command: RemotingCommand) -> Coroutine[Any, Any, bytes | None] | None:
        if command.code != CHECK_TRANSACTION_STATE.code:
            return None
        record = decode_record(command.body or b"")
        queue = MessageQueue(topic=record.topic, broker_name="", queue_id=record.queue_id)
        message = ReceivedMessage(record, queue, self._namespace)
        if message.properties.get(outgoing.PROPERTY_PRODUCER_GROUP) != self._group:
            return None
        return self._tell_how(addr, command.decode_header(CheckTransactionStateHeader), message)

    async def _tell_how(self, addr: str, header: CheckTransactionStateHeader, message: ReceivedMessage) -> None:
        with spans.handling(self._instance, None, [message]) as span:
            span.attach()
            try:
                how, error = await outcome(self._instance.host, self.check, message)
            finally:
                span.detach()
            span.failed(error)
        if error is not None or not isinstance(how, Outcome):
            _log.warning("the check of %s gave no outcome: %r", message, error or how, exc_info=error)
            how = Outcome.UNKNOWN
        end = EndTransactionHeader(
            producer_group=self._group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=how.value,
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=header.transaction_id,
        )
        try:
            await self._instance.connections.tell(addr, END_TRANSACTION, end, None)
        except RequestFailed as failure:
            _log.info("the end of transaction %s was not sent: %s", message.message_id, failure)
        else:
            self._trace_end(message.topic, end, addr, message)


class Transaction:
    """One transaction; ``result`` says where its message is."""

    def __init__(self, producer: TransactionProducer, message: Message) -> None:
        self._producer = producer
        self._message = message
        #: what the end of the block says
        self.how = Outcome.COMMIT

    def __repr__(self) -> str:
        result = getattr(self, "result", None)
        where = "not begun" if result is None else f"{result.message_id} in {result.queue}"
        return f"<Transaction of topic {self._message.topic}, {where}, {self.how.name}>"

    def unknown(self) -> None:
        """Neither commit nor roll back at the end of the block: the broker will ask."""
        self.how = Outcome.UNKNOWN

    async def __aenter__(self) -> Transaction:
        self.result = await self._producer.begin(self._message)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._producer.end(self.result, self.how if error is None else Outcome.ROLLBACK)


def transaction_producer(
    instance: Instance,
    group: str,
    check: Callable[[ReceivedMessage], Any],
    settings: ProducerSettings,
    topics: Iterable[str] = (),
) -> TransactionProducer:
    """
    Return the producer of the client with these arguments; a new one after its close.

    ConfigurationError for a group that has one with others: brokers could be answered by the wrong ``check``.
    """
    check_kind(settings, ProducerSettings)
    topics = tuple(topics)
    for part in instance.parts:
        if isinstance(part, TransactionProducer) and part.is_of(group, part.settings):
            if part.is_of(group, settings) and (part.check, part.named_topics) == (check, topics):
                return part
            raise ConfigurationError(
                f"group {group} has a transaction producer in this client, with another check, settings or topics"
            )
    made = TransactionProducer(instance, group, check, settings, topics)
    instance.parts.append(made)
    instance.run_beside(made.announce(), name=f"rmq announcement of {group}")
    return made
