"""The client for asyncio."""

from __future__ import annotations

import os
import ssl
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from rmq.aio.host import AsyncioHost
from rmq.aio.tls import TlsFiles
from rmq.client.flows.admin import Admin, admin
from rmq.client.flows.instance import Instance, not_pickled
from rmq.client.flows.litepull import PullConsumer, pull_consumer
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.producer import Producer, producer
from rmq.client.flows.push import Handler, PushConsumer
from rmq.client.flows.tracing import with_traces
from rmq.client.flows.transactions import TransactionProducer, transaction_producer
from rmq.client.observers import Observer
from rmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from rmq.client.types import CloseReport, Credentials, ReceivedMessage, Sql
from rmq.errors import ClosedClient

#: one value for all, so that it may be a default
_CLIENT, _PRODUCER, _PUSH, _PULL = ClientSettings(), ProducerSettings(), PushSettings(), PullSettings()


class Client:
    """
    Producers and consumers with one set of connections; use it with ``async with``.

    ``namesrv`` is ``host:port``, several of them joined by ``;`` or in a list; None: $NAMESRV_ADDR, or 127.0.0.1:9876.
    With ``tls`` every connection uses TLS, by a context or by the ``tls.client.*`` keys of a properties file, as Java's
    clients take them; ConfigurationError when the file is wrong. The start asks a NameServer, so a wrong address fails
    at once.
    """

    #: of the class, for an object whose __init__ did not run
    _instance: Instance | None = None
    _has_warned = False

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | str | os.PathLike[str] | None = None,
        settings: ClientSettings = _CLIENT,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._namesrv = namesrv
        self._credentials = credentials
        self._tls: Callable[[], ssl.SSLContext] | None = None
        if isinstance(tls, ssl.SSLContext):
            self._tls = lambda: tls
        elif tls is not None:
            self._tls = TlsFiles(tls).context
        self._settings = settings
        self._observers = observers
        self._host: AsyncioHost | None = None

    def __reduce__(self) -> NoReturn:
        raise not_pickled()

    async def __aenter__(self) -> Client:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        # of the blocking client, too, which holds one of these
        self._warn_if_open("was dropped without close: it stays in its groups")

    def _warn_if_open(self, what: str) -> None:
        if self._instance is not None and self._instance.is_open and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"client {self._instance.client_id} {what}", ResourceWarning, source=self, stacklevel=2)

    async def start(self) -> None:
        """
        Ask a NameServer; RequestFailed when none answers: then it may be called again.

        A client that has started stays as it is. ClosedClient after a close.
        """
        if self._instance is not None:
            self._instance.check_usable()
            self._check_loop()
            return
        host = self._host = AsyncioHost(self._tls)
        instance = self._instance = with_traces(
            Instance(host, self._namesrv, self._credentials, self._settings, observers=self._observers)
        )
        answered = False
        try:
            await instance.start()
            answered = True
        finally:
            if not answered:
                if not instance.closed:  # else it was closed while it started, and stays closed
                    self._instance = None
                await instance.close()

    async def close(self) -> CloseReport:
        """
        Close producers and consumers, leave the groups, close the connections.

        Consumers wait for their handlers first, as their settings say. May be called again.
        """
        if self._instance is None:
            return CloseReport()
        self._check_loop()
        return await self._instance.close()

    def _check_loop(self) -> None:
        """Raise RuntimeError in another loop than the client's; not where a close does nothing."""
        if self._host is not None and self._instance is not None and self._instance.is_open:
            self._host.check_loop()

    @property
    def client_id(self) -> str:
        """The name of this client in its groups."""
        return self._started.client_id

    def producer(self, group: str = "DEFAULT_PRODUCER", settings: ProducerSettings = _PRODUCER) -> Producer:
        """Return the producer of this group with these settings; one is enough for all topics and coroutines."""
        return producer(self._started, group, settings)

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str | Sql],
        *,
        handler: Handler | None = None,
        settings: PushSettings = _PUSH,
    ) -> PushConsumer:
        """
        Return a consumer of topic -> tags (``A || B``, ``*`` for all) or ``Sql``; a group may be in a client once.

        ``handler`` gets a message, or with ``batch_size`` above 1 a list. A coroutine function runs on the loop, a
        plain function in a thread.
        """
        return push_consumer(self._started, group, subscriptions, handler, settings)

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
        return transaction_producer(self._started, group, check, settings, topics)

    async def pull_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str | Sql] | None = None,
        settings: PullSettings = _PULL,
    ) -> PullConsumer:
        """Return a consumer that is asked for messages; without subscriptions, `assign` says which queues it reads."""
        return await pull_consumer(self._started, group, subscriptions, settings)

    def admin(self) -> Admin:
        """Return the administration of topics, groups, offsets and messages."""
        return admin(self._started)

    @property
    def _started(self) -> Instance:
        if self._instance is None:
            raise ClosedClient("the client is not started: use it with `async with`")
        self._instance.check_usable()
        return self._instance
