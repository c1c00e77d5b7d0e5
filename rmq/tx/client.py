"""The client for Twisted: what waits returns a Deferred."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from random import SystemRandom
from typing import Any, NoReturn, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from rmq.client.flows.admin import DEFAULT_QUEUES, Progress, admin
from rmq.client.flows.admin import Admin as AdminFlow
from rmq.client.flows.instance import Instance, not_pickled
from rmq.client.flows.litepull import PullConsumer as PullFlow
from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.member import QueueHealth
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.producer import Producer as ProducerFlow
from rmq.client.flows.producer import producer
from rmq.client.flows.push import Handler
from rmq.client.flows.push import PushConsumer as PushFlow
from rmq.client.flows.tracing import with_traces
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.flows.transactions import TransactionProducer as TransactionFlow
from rmq.client.observers import Observer
from rmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from rmq.client.types import CloseReport, Credentials, Message, MessageQueue, ReceivedMessage, SendResult, Sql
from rmq.errors import ConfigurationError
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.runtime.tls.config import parse_tls, terms_of
from rmq.runtime.tls.context import ClientTls
from rmq.tx.host import TwistedHost
from rmq.wire.api.clients import ConsumerConnection
from rmq.wire.api.topics import TopicOffset

T = TypeVar("T")

_CLIENT, _PRODUCER, _PUSH, _PULL = ClientSettings(), ProducerSettings(), PushSettings(), PullSettings()


class Client:
    """
    Producers and consumers with one set of connections, for a running or a simulated reactor.

    The arguments are those of :class:`rmq.aio.Client`; ``tls`` is a properties file with ``tls.client.*`` keys, whose
    certificates are read again for each connection, or a :class:`rmq.runtime.tls.context.ClientTls`.
    """

    def __init__(
        self,
        reactor: Any,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ClientTls | str | os.PathLike[str] | None = None,
        settings: ClientSettings = _CLIENT,
        observers: Sequence[Observer] = (),
    ) -> None:
        platform = Platform(reactor=reactor, disk=RealDisk(reactor), rng=SystemRandom(), endpoint_factory=dial_by_name)
        if tls is not None and not isinstance(tls, ClientTls):
            tls = _client_tls(platform, os.fspath(tls))
        host = TwistedHost(platform, home=os.path.expanduser("~"), tls=tls)
        self._instance = with_traces(Instance(host, namesrv, credentials, settings, observers=observers))

    def __reduce__(self) -> NoReturn:
        raise not_pickled()

    @property
    def client_id(self) -> str:
        """The name of this client in its groups."""
        return self._instance.client_id

    def start(self) -> Deferred[None]:
        """Ask a NameServer; fails with RequestFailed when none answers: then it may be called again."""
        return Deferred.fromCoroutine(self._instance.start())

    def close(self) -> Deferred[CloseReport]:
        """Close producers and consumers, leave the groups, close the connections."""
        return Deferred.fromCoroutine(self._instance.close())

    def producer(self, group: str = "DEFAULT_PRODUCER", settings: ProducerSettings = _PRODUCER) -> Producer:
        """Return a producer."""
        self._instance.check_usable()
        return Producer(producer(self._instance, group, settings))

    def admin(self) -> Admin:
        """Return the administration of topics, groups, offsets and messages."""
        return Admin(admin(self._instance))

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
        self._instance.check_usable()
        return TransactionProducer(transaction_producer(self._instance, group, check, settings, topics))

    def pull_consumer(
        self, group: str, subscriptions: Mapping[str, str | Sql] | None = None, settings: PullSettings = _PULL
    ) -> Deferred[PullConsumer]:
        """Fires with a consumer that is asked for messages."""
        self._instance.check_usable()
        made = Deferred.fromCoroutine(pull_consumer(self._instance, group, subscriptions, settings))
        return made.addCallback(PullConsumer)

    def push_consumer(
        self, group: str, subscriptions: Mapping[str, str | Sql], handler: Handler, settings: PushSettings = _PUSH
    ) -> PushConsumer:
        """
        Return a consumer of topic -> tags or ``Sql``.

        ``handler`` runs in the reactor's thread; it may return a Deferred or be a coroutine function. A plain function
        that blocks goes to threads with :func:`in_thread`.
        """
        self._instance.check_usable()
        return PushConsumer(push_consumer(self._instance, group, subscriptions, handler, settings))


class Producer:
    """Sends messages; see :class:`rmq.client.flows.producer.Producer`."""

    def __init__(self, flow: ProducerFlow) -> None:
        self._flow = flow

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Deferred[SendResult]:
        """Fires when a broker has stored the message; fails with NotDelivered or NoRoute."""
        return _started(self._flow.send(message, queue=queue, sharding_key=sharding_key, timeout_s=timeout_s))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> Deferred[SendResult]:
        """Send messages of one topic as one."""
        return _started(self._flow.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> Deferred[None]:
        """Fires when the message is written; it may be lost."""
        return _started(self._flow.send_oneway(message, queue=queue))

    def request(self, message: Message, *, timeout_s: float = 3.0) -> Deferred[ReceivedMessage]:
        """Send a message; fires with the reply of its consumer, fails with RequestTimeout."""
        return _started(self._flow.request(message, timeout_s=timeout_s))

    def reply(self, request: ReceivedMessage, body: bytes) -> Deferred[None]:
        """Answer a message that was sent with :meth:`request`."""
        return _started(self._flow.reply(request, body))

    def queues(self, topic: str) -> Deferred[list[MessageQueue]]:
        """Return the queues of a topic that take messages."""
        return _started(self._flow.queues(topic))

    def close(self) -> Deferred[CloseReport]:
        """Take no more messages, wait for those in flight, leave the group."""
        return _started(self._flow.close())


class TransactionProducer(Producer):
    """Messages that are seen when their transaction is committed."""

    def __init__(self, flow: TransactionFlow) -> None:
        super().__init__(flow)
        self._transactions = flow

    def begin(self, message: Message) -> Deferred[SendResult]:
        """Send a message that nobody sees yet; NotDelivered when it is not stored safely."""
        return _started(self._transactions.begin(message))

    def end(self, result: SendResult, how: Outcome) -> Deferred[None]:
        """Say how the transaction of :meth:`begin` ended; with UNKNOWN the broker asks ``check``."""
        return _started(self._transactions.end(result, how))


class PullConsumer:
    """A consumer that is asked; see :class:`rmq.client.flows.litepull.PullConsumer`."""

    def __init__(self, flow: PullFlow) -> None:
        self._flow = flow
        self.assignment: Callable[[], frozenset[MessageQueue]] = flow.assignment
        self.position: Callable[[MessageQueue], int] = flow.position

    def getmany(self, *, max_messages: int = 32, timeout_s: float = 5.0) -> Deferred[list[ReceivedMessage]]:
        """Fires with up to ``max_messages`` messages, with none after ``timeout_s``."""
        return _started(self._flow.getmany(max_messages=max_messages, timeout_s=timeout_s))

    def assign(self, queues: Collection[MessageQueue], expression: str | Sql = "*") -> Deferred[None]:
        """Read these queues, and no others."""
        return _started(self._flow.assign(queues, expression))

    def seek(self, queue: MessageQueue, offset: int) -> Deferred[None]:
        """Go on at another offset."""
        return _started(self._flow.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> Deferred[None]:
        """Go back to the first message that the broker has."""
        return _started(self._flow.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> Deferred[None]:
        """Skip what is there."""
        return _started(self._flow.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, at_ms: int) -> Deferred[None]:
        """Go to the first message stored at a time (epoch milliseconds) or later."""
        return _started(self._flow.seek_to_time(queue, at_ms))

    def commit(self) -> Deferred[CloseReport]:
        """Acknowledge all that getmany returned, and write the offsets."""
        return _started(self._flow.commit())

    def committed(self, queue: MessageQueue) -> Deferred[int | None]:
        """Fires with the offset that the broker has of the group."""
        return _started(self._flow.committed(queue))

    def close(self) -> Deferred[CloseReport]:
        """Pull no more, with ``auto_commit`` write the offsets, leave the group."""
        return _started(self._flow.close())


class PushConsumer:
    """A member of a consumer group; see :class:`rmq.client.flows.push.PushConsumer`."""

    def __init__(self, flow: PushFlow) -> None:
        self._flow = flow
        self.assignment: Callable[[], frozenset[MessageQueue]] = flow.assignment
        self.pause: Callable[..., None] = flow.pause
        self.resume: Callable[..., None] = flow.resume
        self.health: Callable[[], list[QueueHealth]] = flow.health

    def start(self) -> Deferred[None]:
        """Join the group; fires when the brokers know the subscription."""
        return _started(self._flow.start())

    def run(self) -> Deferred[None]:
        """Start; fires when the consumer is closed."""
        return _started(self._flow.run())

    def close(self) -> Deferred[CloseReport]:
        """Pull no more, wait for the handlers, write the offsets."""
        return _started(self._flow.close())


def in_thread(handler: Callable[[ReceivedMessage], object]) -> Callable[[ReceivedMessage], Deferred[object]]:
    """Return a handler that runs in the reactor's thread pool, with the context variables of the call."""
    return lambda message: deferToThread(copy_context().run, handler, message)


class Admin:
    """Topics, groups, offsets and messages; see :class:`rmq.client.flows.admin.Admin`."""

    def __init__(self, flow: AdminFlow) -> None:
        self._flow = flow

    def topics(self) -> Deferred[list[str]]:
        """Return all topics that NameServers know, those of the system and of groups too."""
        return _started(self._flow.topics())

    def create_topic(
        self, topic: str, *, queues: int = DEFAULT_QUEUES, perm: int = 6, cluster: str | None = None
    ) -> Deferred[None]:
        """Create a topic, or alter it, on all masters."""
        return _started(self._flow.create_topic(topic, queues=queues, perm=perm, cluster=cluster))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> Deferred[None]:
        """Delete a topic and its messages."""
        return _started(self._flow.delete_topic(topic, cluster=cluster))

    def topic_offsets(self, topic: str) -> Deferred[dict[MessageQueue, TopicOffset]]:
        """Return the offsets of each queue."""
        return _started(self._flow.topic_offsets(topic))

    def groups(self) -> Deferred[list[str]]:
        """Return the groups that have consumed."""
        return _started(self._flow.groups())

    def members(self, group: str) -> Deferred[ConsumerConnection | None]:
        """Return members and subscriptions of a group; None when it has none."""
        return _started(self._flow.members(group))

    def progress(self, group: str, topic: str | None = None) -> Deferred[Progress]:
        """Return the offsets of a group and its lag."""
        return _started(self._flow.progress(group, topic))

    def message(self, message_id: str, topic: str | None = None) -> Deferred[ReceivedMessage]:
        """Return a message by its id; with ``topic`` by the one that its producer made."""
        return _started(self._flow.message(message_id, topic))

    def find_messages(self, topic: str, key: str, *, most: int = 64) -> Deferred[list[ReceivedMessage]]:
        """Return the messages with a key, the newest first."""
        return _started(self._flow.find_messages(topic, key, most=most))


def _client_tls(platform: Platform, path: str) -> ClientTls:
    """Return what dials by a properties file; raises ConfigurationError."""
    try:
        tls = ClientTls(platform.disk, platform.reactor, terms_of(parse_tls(platform.disk.read_whole(path), path)))
        tls.load()
    except (ConfigError, DiskError) as error:
        raise ConfigurationError(f"tls: {error}") from error
    return tls


def _started(coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
    return Deferred.fromCoroutine(coroutine)
