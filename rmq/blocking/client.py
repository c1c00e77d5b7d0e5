"""The blocking client: `rmq.aio` on a loop in a thread."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, TypeVar
from weakref import WeakSet

from rmq import aio
from rmq.client.flows.admin import DEFAULT_QUEUES, Progress
from rmq.client.flows.admin import Admin as AdminFlow
from rmq.client.flows.instance import not_pickled
from rmq.client.flows.member import QueueHealth
from rmq.client.flows.push import Delivery, Handler
from rmq.client.flows.spans import Traced
from rmq.client.flows.usercode import is_in_handler
from rmq.client.observers import Observer
from rmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings, check_timeout
from rmq.client.types import CloseReport, Credentials, Message, MessageQueue, ReceivedMessage, SendResult, Sql
from rmq.errors import ClosedClient, ForkedClient
from rmq.wire.api.clients import ConsumerConnection
from rmq.wire.api.topics import TopicOffset

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]

#: for the coroutines that are cancelled at the end
LEAVE_S = 5.0

_log = logging.getLogger("rmq.client")

_CLIENT, _PRODUCER, _PUSH, _PULL = ClientSettings(), ProducerSettings(), PushSettings(), PullSettings()


class Client:
    """
    Producers and consumers with one set of connections; use it with ``with``.

    The arguments are those of :class:`rmq.aio.Client`.
    """

    #: those whose thread has started; a handler keeps its client alive, if it uses it, so that it is never dropped
    _begun: ClassVar[WeakSet[Client]] = WeakSet()

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Any = None,
        settings: ClientSettings = _CLIENT,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._client = aio.Client(namesrv, credentials=credentials, tls=tls, settings=settings, observers=observers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: the process whose thread runs the loop
        self._pid = 0
        #: held while a call is given to the loop, and while the loop is taken away
        self._giving = threading.RLock()
        self._report = CloseReport()

    def __reduce__(self) -> NoReturn:
        raise not_pickled()

    def __enter__(self) -> Client:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            self._pid = os.getpid()
            self._thread = threading.Thread(target=_serve, args=(loop,), name="rmq client", daemon=True)
            self._thread.start()
            self._begun.add(self)
        started = False
        try:
            self._run(self._client.start())
            started = True
        finally:
            if not started:
                self.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> CloseReport:
        """
        Close producers and consumers, leave the groups, close the connections; may be called again.

        In a process that was forked from the client's it does nothing: the client and its connections are the parent's.
        RuntimeError in the client's own thread, as for all calls: a coroutine handler cannot wait for its own loop.
        """
        if self._loop is not None and self._thread is not None and not self._is_forked:
            self._check_thread()
            if is_in_handler(self._client._instance):  # the close needs the loop, and waits for the handler
                return self._run(self._client.close())
            try:
                self._report = self._run(self._client.close())
            except ClosedClient:  # with the loop gone it was closed by another thread
                if self._loop is not None:
                    raise
            finally:
                self._stop(self._thread)
        return self._report

    def _stop(self, thread: threading.Thread) -> None:
        """End the loop; calls that other threads wait for raise ClosedClient."""
        with self._giving:
            loop, self._loop = self._loop, None
        if loop is not None:  # else another thread closes the client, too
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    @classmethod
    def _program_ends(cls) -> None:
        for client in list(cls._begun):
            client._client._warn_if_open("was not closed before the end of the program")

    @property
    def client_id(self) -> str:
        """The name of this client in its groups."""
        return self._client.client_id

    def producer(self, group: str = "DEFAULT_PRODUCER", settings: ProducerSettings = _PRODUCER) -> Producer:
        """Return a producer; one is enough for all topics and threads."""
        return Producer(self._run, self._run(self._made(self._client.producer, group, settings)))

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        *,
        handler: Handler | None = None,
        settings: PushSettings = _PUSH,
    ) -> PushConsumer:
        """Return a consumer of topic -> tags or ``Sql``; a plain ``handler`` runs in threads of the client."""

        def make() -> aio.PushConsumer:
            return self._client.push_consumer(group, subscriptions, handler=handler, settings=settings)

        return PushConsumer(self._run, self._run(self._made(make)))

    def admin(self) -> Admin:
        """Return the administration of topics, groups, offsets and messages."""
        return Admin(self._run, self._client.admin())

    def transaction_producer(
        self,
        group: str,
        check: Callable[[ReceivedMessage], Any],
        settings: ProducerSettings = _PRODUCER,
        *,
        topics: Iterable[str] = (),
    ) -> TransactionProducer:
        """
        Return a producer for transactions; ``check`` tells brokers the Outcome of one whose end they missed.

        Brokers ask after a restart, too, before it sends anything, if they create topics by themselves or have one of
        ``topics``.
        """

        def make() -> aio.TransactionProducer:
            return self._client.transaction_producer(group, check, settings, topics=topics)

        return TransactionProducer(self._run, self._run(self._made(make)))

    def pull_consumer(
        self, group: str, subscriptions: Mapping[str, str | Sql] | None = None, settings: PullSettings = _PULL
    ) -> PullConsumer:
        """Return a consumer that is asked for messages."""
        return PullConsumer(self._run, self._run(self._client.pull_consumer(group, subscriptions, settings)))

    @property
    def _is_forked(self) -> bool:
        """Whether this process has the loop but not its thread."""
        return self._loop is not None and self._pid != os.getpid()

    async def _made(self, make: Callable[..., T], *arguments: object) -> T:
        return make(*arguments)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its end; an interrupted wait cancels it."""
        if self._is_forked:
            coroutine.close()
            raise ForkedClient(f"the client was made in process {self._pid}, before a fork")
        try:
            self._check_thread()
        except RuntimeError:
            coroutine.close()
            raise
        with self._giving:
            if self._loop is None:
                coroutine.close()
                raise ClosedClient("the client is not started, or closed: use it with `with`")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._loop is None:
                raise ClosedClient("the client was closed before the end of the call") from None
            raise
        finally:
            future.cancel()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "the blocking client was called in its own thread, by a coroutine handler or an observer: it would wait"
                " for itself. Make the handler a plain function, which runs in another thread"
            )


# now, so that it runs after what programs register, which may close a client
atexit.register(Client._program_ends)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, also when a coroutine of the user raises what is meant to end the program."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            _log.exception("the thread of the client goes on after an exception that does not end the program")
        else:
            return


async def _cancel_all() -> None:
    """Cancel all other coroutines of the loop, and wait for their end, LEAVE_S at most."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=LEAVE_S)


def _closed(run: Run, member: aio.Producer | aio.PullConsumer | aio.PushConsumer) -> CloseReport:
    try:
        report: CloseReport = run(member.close())
    except ForkedClient:
        return CloseReport()
    return report


class Producer:
    """Sends messages; see :class:`rmq.client.flows.producer.Producer`."""

    def __init__(self, run: Run, producer: aio.Producer) -> None:
        self._run = run
        self._producer = producer

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it; raises NotDelivered or NoRoute."""
        sending = self._producer.send(message, queue=queue, sharding_key=sharding_key, timeout_s=timeout_s)
        result: SendResult = self._run(sending)
        return result

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Send messages of one topic as one."""
        result: SendResult = self._run(self._producer.send_batch(messages, queue=queue, timeout_s=timeout_s))
        return result

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message and wait for nothing but the connection: it may be lost."""
        self._run(self._producer.send_oneway(message, queue=queue))

    def request(self, message: Message, *, timeout_s: float = 3.0) -> ReceivedMessage:
        """Send a message and wait for the reply of its consumer; RequestTimeout when none comes in time."""
        reply: ReceivedMessage = self._run(self._producer.request(message, timeout_s=timeout_s))
        return reply

    def reply(self, request: ReceivedMessage, body: bytes) -> None:
        """Answer a message that was sent with :meth:`request`."""
        self._run(self._producer.reply(request, body))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that take messages."""
        found: list[MessageQueue] = self._run(self._producer.queues(topic))
        return found

    def close(self) -> CloseReport:
        """Take no more messages, wait for those in flight, leave the group; in a forked process nothing."""
        return _closed(self._run, self._producer)


class TransactionProducer(Producer):
    """Messages that are seen when their transaction is committed."""

    def __init__(self, run: Run, producer: aio.TransactionProducer) -> None:
        super().__init__(run, producer)
        self._transactions = producer

    @contextmanager
    def transaction(self, message: Message) -> Iterator[aio.Transaction]:
        """Send a message that nobody sees before the end of the block; an exception rolls it back."""
        transaction = self._transactions.transaction(message)
        self._run(transaction.__aenter__())
        how = aio.Outcome.ROLLBACK
        try:
            yield transaction
            how = transaction.how
        finally:
            self._run(self._transactions.end(transaction.result, how))


class PullConsumer:
    """A consumer that is asked; see :class:`rmq.client.flows.litepull.PullConsumer`."""

    def __init__(self, run: Run, consumer: aio.PullConsumer) -> None:
        self._run = run
        self._consumer = consumer
        self.assignment: Callable[[], frozenset[MessageQueue]] = consumer.assignment
        self.position: Callable[[MessageQueue], int] = consumer.position

    def getmany(self, *, max_messages: int = 32, timeout_s: float = 5.0) -> list[ReceivedMessage]:
        """Return up to ``max_messages`` messages, none after ``timeout_s``."""
        found: list[ReceivedMessage] = self._run(self._consumer.getmany(max_messages=max_messages, timeout_s=timeout_s))
        return found

    def assign(self, queues: Collection[MessageQueue], expression: str | Sql = "*") -> None:
        """Read these queues, and no others."""
        self._run(self._consumer.assign(queues, expression))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset."""
        self._run(self._consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go back to the first message that the broker has."""
        self._run(self._consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip what is there."""
        self._run(self._consumer.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, at_ms: int) -> None:
        """Go to the first message stored at a time (epoch milliseconds) or later."""
        self._run(self._consumer.seek_to_time(queue, at_ms))

    def commit(self) -> CloseReport:
        """Acknowledge all that getmany returned, and write the offsets."""
        report: CloseReport = self._run(self._consumer.commit())
        return report

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker has of the group."""
        offset: int | None = self._run(self._consumer.committed(queue))
        return offset

    def close(self) -> CloseReport:
        """Pull no more, with ``auto_commit`` write the offsets, leave the group; in a forked process nothing."""
        return _closed(self._run, self._consumer)


class PushConsumer:
    """A member of a consumer group; see :class:`rmq.client.flows.push.PushConsumer`."""

    def __init__(self, run: Run, consumer: aio.PushConsumer) -> None:
        self._run = run
        self._consumer = consumer
        self.assignment: Callable[[], frozenset[MessageQueue]] = consumer.assignment
        self.pause: Callable[..., None] = consumer.pause
        self.resume: Callable[..., None] = consumer.resume
        self.health: Callable[[], list[QueueHealth]] = consumer.health

    def start(self) -> None:
        """Join the group and begin to call the handler."""
        self._run(self._consumer.start())

    def run(self) -> None:
        """Start, and wait until the consumer is closed."""
        self._run(self._consumer.run())

    def close(self) -> CloseReport:
        """Pull no more, wait for the handlers, write the offsets; in a forked process nothing, as `Client.close`."""
        return _closed(self._run, self._consumer)

    def receive(self, timeout_s: float | None = None) -> Received:
        """
        Return a context manager that waits for the next message.

        The end of the block acknowledges it, an exception asks for it again. TimeoutError when none comes in time.
        """
        check_timeout(timeout_s, may_be_zero=True)
        return Received(self._run, self._consumer, timeout_s)


class Received:
    """One message, for ``with``."""

    def __init__(self, run: Run, consumer: aio.PushConsumer, timeout_s: float | None) -> None:
        self._run = run
        self._consumer = consumer
        self._timeout_s = timeout_s

    def __enter__(self) -> ReceivedMessage:
        self._delivery: Delivery
        self._span: Traced
        self._delivery, self._span = self._run(self._receive())
        self._span.attach()
        return self._delivery.message

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._span.detach()
        return bool(self._run(self._delivery.end(error)))

    async def _receive(self) -> tuple[Delivery, Traced]:
        try:
            async with asyncio.timeout(self._timeout_s):
                delivery = await self._consumer.receive()
        except TimeoutError:
            raise TimeoutError(f"no message came within {self._timeout_s} s") from None
        return delivery, delivery.begin()


class Admin:
    """Topics, groups, offsets and messages; see :class:`rmq.client.flows.admin.Admin`."""

    def __init__(self, run: Run, flow: AdminFlow) -> None:
        self._run = run
        self._flow = flow

    def topics(self) -> list[str]:
        """Return all topics that NameServers know, those of the system and of groups too."""
        found: list[str] = self._run(self._flow.topics())
        return found

    def create_topic(
        self, topic: str, *, queues: int = DEFAULT_QUEUES, perm: int = 6, cluster: str | None = None
    ) -> None:
        """Create a topic, or alter it, on all masters."""
        self._run(self._flow.create_topic(topic, queues=queues, perm=perm, cluster=cluster))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages."""
        self._run(self._flow.delete_topic(topic, cluster=cluster))

    def topic_offsets(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the offsets of each queue."""
        found: dict[MessageQueue, TopicOffset] = self._run(self._flow.topic_offsets(topic))
        return found

    def groups(self) -> list[str]:
        """Return the groups that have consumed."""
        found: list[str] = self._run(self._flow.groups())
        return found

    def members(self, group: str) -> ConsumerConnection | None:
        """Return members and subscriptions of a group; None when it has none."""
        found: ConsumerConnection | None = self._run(self._flow.members(group))
        return found

    def progress(self, group: str, topic: str | None = None) -> Progress:
        """Return the offsets of a group and its lag."""
        found: Progress = self._run(self._flow.progress(group, topic))
        return found

    def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return a message by its id; with ``topic`` by the one that its producer made."""
        found: ReceivedMessage = self._run(self._flow.message(message_id, topic))
        return found

    def find_messages(self, topic: str, key: str, *, most: int = 64) -> list[ReceivedMessage]:
        """Return the messages with a key, the newest first."""
        found: list[ReceivedMessage] = self._run(self._flow.find_messages(topic, key, most=most))
        return found
