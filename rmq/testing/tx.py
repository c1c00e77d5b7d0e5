"""The face for Twisted: the servers in the reactor of the test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from os import PathLike
from random import SystemRandom
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from rmq.client.settings import ClientSettings
from rmq.client.types import Credentials, ReceivedMessage
from rmq.testing.handle import POLL_S, QUICK, Handle, Link, texts_of
from rmq.testing.servers import Layout, Servers, check
from rmq.tx import Client


class Cluster(Handle):
    """A NameServer and brokers that run. What is not a Deferred here is done at once."""

    def __init__(self, links: Callable[[], list[Link]], namesrv: str, reactor: Any) -> None:
        super().__init__(links, namesrv)
        self._reactor = reactor

    def topic(self, name: str = "topic", *, queues: int = 4) -> Deferred[str]:
        """Create a topic; fires with its name, which no other test has."""
        full = self._topic_name(name)
        (created,) = self._each("topic", name=full, queues=queues)
        fired: Deferred[str] = created.addCallback(lambda _: full)
        return fired

    def empty(self, topic: str | None = None) -> Deferred[None]:
        """Fires when nobody sees the messages that a topic had; None: those of all topics, nor those delayed."""
        emptied: Deferred[None]
        (emptied,) = self._each("empty", topic=topic)
        return emptied

    def deliver_delayed_now(self) -> Deferred[None]:
        """Deliver the delayed messages, retries included, that wait now and whose time has not come."""
        delivered: Deferred[None]
        (delivered,) = self._each("deliver_delayed_now")
        return delivered

    def client(
        self,
        settings: ClientSettings = QUICK,
        *,
        credentials: Credentials | None = None,
        tls: str | PathLike[str] | None = None,
    ) -> Client:
        """Return a client, to be started and closed."""
        return Client(self._reactor, self.namesrv, credentials=credentials, tls=tls, settings=settings)

    def wait_consumed(self, group: str, topic: str, *, timeout_s: float = 30.0) -> Deferred[None]:
        """Fires when a group has acknowledged all messages of a topic, retries included; fails with TimeoutError."""
        return Deferred.fromCoroutine(self._wait_consumed(group, topic, timeout_s))

    async def _wait_consumed(self, group: str, topic: str, timeout_s: float) -> None:
        deadline = self._reactor.seconds() + timeout_s
        while not self._is_consumed(group, topic):
            if self._reactor.seconds() > deadline:
                raise self._not_consumed(group, topic, timeout_s)
            await deferLater(self._reactor, POLL_S)

    def wait_messages(self, topic: str, count: int = 1, *, timeout_s: float = 30.0) -> Deferred[list[ReceivedMessage]]:
        """Fires with all messages of a topic when it has so many; fails with TimeoutError."""
        return Deferred.fromCoroutine(self._wait_messages(topic, count, timeout_s))

    async def _wait_messages(self, topic: str, count: int, timeout_s: float) -> list[ReceivedMessage]:
        deadline = self._reactor.seconds() + timeout_s
        while len(found := self.messages(topic)) < count:
            if self._reactor.seconds() > deadline:
                raise self._not_sent(topic, count, timeout_s)
            await deferLater(self._reactor, POLL_S)
        return found


def client_of(servers: Handle, reactor: Any) -> Client:
    """Return a client of servers that another face runs."""
    return Client(reactor, servers.namesrv, settings=QUICK)


class InProcess:
    """
    A NameServer and brokers in a reactor, the one of the test: ready in a tenth of a second.

    Started and stopped once; nothing is left after the stop, no timer, no port, no file. The arguments are those of
    :func:`rmq.testing.cluster`.
    """

    def __init__(
        self,
        reactor: Any,
        *,
        masters: int = 1,
        slaves: int = 0,
        role: str = "ASYNC_MASTER",
        config: Mapping[str, object] | None = None,
        keep: bool = False,
        port: int | None = None,
    ) -> None:
        check(masters, slaves, role, config, port)
        layout = Layout(masters=masters, slaves=slaves, role=role, config=texts_of(config), port=port)
        self._keep = keep
        self.dir = tempfile.mkdtemp(prefix="rmq-testing-")
        self._reactor = reactor
        self._servers = Servers(reactor, self.dir, layout, rng=SystemRandom())

    def start(self) -> Deferred[Cluster]:
        """Fires with the running servers."""
        return self._driven(self._start())

    async def _start(self) -> Cluster:
        started = False
        try:
            await self._servers.start()
            started = True
        finally:
            if not started:
                await self._stop()
        links: list[Link] = [Direct(self._servers)]
        return Cluster(lambda: links, self._servers.namesrv_addr, self._reactor)

    def stop(self) -> Deferred[None]:
        """Fires when everything has ended."""
        return self._driven(self._stop())

    async def _stop(self) -> None:
        await self._servers.stop()
        if not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)

    @staticmethod
    def _driven(run: Coroutine[Any, Any, Any]) -> Deferred[Any]:
        return Deferred.fromCoroutine(run)


class Direct:
    """Servers in this process."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers

    def ask(self, command: str, **arguments: Any) -> Any:
        return self.servers.do(command, arguments)
