"""The face for asyncio: the servers in a process of their own, clients on the running loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from os import PathLike

from rmq.aio import Client
from rmq.client.settings import ClientSettings
from rmq.client.types import Credentials, ReceivedMessage
from rmq.testing.handle import POLL_S, QUICK, Handle, OneProcess, arguments_of


class Cluster(Handle):
    """A NameServer and brokers that run. What is not a coroutine here takes a millisecond."""

    def client(
        self,
        settings: ClientSettings = QUICK,
        *,
        credentials: Credentials | None = None,
        tls: str | PathLike[str] | None = None,
    ) -> Client:
        """Return a client for ``async with``."""
        return Client(self.namesrv, credentials=credentials, tls=tls, settings=settings)

    def topic(self, name: str = "topic", *, queues: int = 4) -> str:
        """Create a topic and return its name, which no other test has. Clients can send to it at once."""
        return self._topic(name, queues)

    def empty(self, topic: str | None = None) -> None:
        """Let nobody see the messages that a topic has now; None: those of all topics, nor those that are delayed."""
        self._each("empty", topic=topic)

    def deliver_delayed_now(self) -> None:
        """Deliver the delayed messages, retries included, that wait now and whose time has not come."""
        self._each("deliver_delayed_now")

    async def wait_consumed(self, group: str, topic: str, *, timeout_s: float = 30.0) -> None:
        """Wait until a group has acknowledged all messages of a topic, retries included; TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self._is_consumed(group, topic):
            if loop.time() > deadline:
                raise self._not_consumed(group, topic, timeout_s)
            await asyncio.sleep(POLL_S)

    async def wait_messages(self, topic: str, count: int = 1, *, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """Wait until a topic has so many messages, and return all that it has; TimeoutError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while len(found := self.messages(topic)) < count:
            if loop.time() > deadline:
                raise self._not_sent(topic, count, timeout_s)
            await asyncio.sleep(POLL_S)
        return found


def client_of(servers: Handle) -> Client:
    """Return a client of servers that another face runs."""
    return Client(servers.namesrv, settings=QUICK)


@asynccontextmanager
async def cluster(
    *,
    masters: int = 1,
    slaves: int = 0,
    role: str = "ASYNC_MASTER",
    config: Mapping[str, object] | None = None,
    keep: bool = False,
    log_level: str = "info",
    port: int | None = None,
) -> AsyncIterator[Cluster]:
    """Run a NameServer and brokers in a process of their own; see :func:`rmq.testing.cluster`."""
    arguments = arguments_of(masters, slaves, role, config, port, keep=keep, log_level=log_level)
    processes = await asyncio.to_thread(OneProcess, arguments, port)
    try:
        yield Cluster(processes.links, processes.namesrv)
    finally:
        await asyncio.to_thread(processes.close)
