"""The face for programs without a loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from traceback import walk_stack

from rmq.blocking import Client
from rmq.client.settings import ClientSettings
from rmq.client.types import Credentials, ReceivedMessage
from rmq.testing.external import Elsewhere
from rmq.testing.handle import POLL_S, QUICK, Fault, Handle, Isolated, OneProcess, ServerFailed, arguments_of

__all__ = ["Cluster", "Fault", "IsolatedCluster", "ServerFailed", "cluster", "isolated_cluster"]


class Cluster(Handle):
    """A NameServer and brokers that run."""

    def __init__(self, processes: OneProcess | Isolated | Elsewhere) -> None:
        super().__init__(processes.links, processes.namesrv)
        #: their folder, and the paths of their logs
        self.dir = processes.dir
        self.logs: Callable[[], list[str]] = processes.logs

    def client(
        self,
        settings: ClientSettings = QUICK,
        *,
        credentials: Credentials | None = None,
        tls: str | PathLike[str] | None = None,
    ) -> Client:
        """Return a client for ``with``."""
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

    def wait_consumed(self, group: str, topic: str, *, timeout_s: float = 30.0) -> None:
        """
        Wait until a group has acknowledged all messages of a topic, retries included; TimeoutError.

        A topic that does not exist is waited for, and is a TimeoutError at the end. A retry whose delay lasts does not
        count. RuntimeError in a coroutine of asyncio or Twisted: handlers on its loop or reactor could not run
        meanwhile. ServerFailed for a group that is broadcast.
        """
        _check_that_it_may_block("wait_consumed", "group, topic")
        deadline = time.monotonic() + timeout_s
        while not self._is_consumed(group, topic):
            if time.monotonic() > deadline:
                raise self._not_consumed(group, topic, timeout_s)
            time.sleep(POLL_S)

    def wait_messages(self, topic: str, count: int = 1, *, timeout_s: float = 30.0) -> list[ReceivedMessage]:
        """
        Wait until a topic has so many messages, and return all that it has; TimeoutError.

        RuntimeError in a coroutine, as with `wait_consumed`.
        """
        _check_that_it_may_block("wait_messages", "topic")
        deadline = time.monotonic() + timeout_s
        while len(found := self.messages(topic)) < count:
            if time.monotonic() > deadline:
                raise self._not_sent(topic, count, timeout_s)
            time.sleep(POLL_S)
        return found


def _check_that_it_may_block(method: str, arguments: str) -> None:
    """Raise RuntimeError in a coroutine."""
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(f"{method} would stop the loop: await asyncio.to_thread(rmq.{method}, {arguments})")
    if _is_in_a_coroutine_of_twisted():
        raise RuntimeError(
            f"{method} would stop the reactor: await deferToThread(rmq.{method}, {arguments}), or use rmq.testing.tx"
        )


def _is_in_a_coroutine_of_twisted() -> bool:
    """
    Tell whether the caller is a coroutine beside Twisted's reactor; that asyncio has no loop here is known.

    That the reactor runs in this thread would not be enough: with pytest-twisted it runs ordinary tests, too.
    """
    return "twisted.internet.reactor" in sys.modules and any(
        frame.f_code.co_flags & inspect.CO_COROUTINE for frame, _ in walk_stack(None)
    )


class IsolatedCluster(Cluster):
    """One process for each server: ``namesrv``, ``broker-a``, its slave ``broker-a-1`` and so on."""

    def __init__(self, processes: Isolated) -> None:
        super().__init__(processes)
        self.nodes = processes.nodes
        self.pid: Callable[[str], int] = processes.pid
        self.start: Callable[[str], None] = processes.start
        self.stop: Callable[[str], None] = processes.stop
        self.restart: Callable[[str], None] = processes.restart
        self.kill: Callable[[str], None] = processes.kill
        self.pause: Callable[[str], AbstractContextManager[None]] = processes.pause


@contextmanager
def cluster(
    *,
    masters: int = 1,
    slaves: int = 0,
    role: str = "ASYNC_MASTER",
    config: Mapping[str, object] | None = None,
    keep: bool = False,
    log_level: str = "info",
    port: int | None = None,
) -> Iterator[Cluster]:
    """
    Run a NameServer and brokers in a process of their own.

    Each master (``broker-a``, ``broker-b``, …) has so many slaves. ``config`` are keys of all brokers. ``keep`` leaves
    stores and logs where they are. ``port`` is the NameServer's, None: a free one. Raises ServerFailed.
    """
    arguments = arguments_of(masters, slaves, role, config, port, keep=keep, log_level=log_level)
    processes = OneProcess(arguments, port)
    try:
        yield Cluster(processes)
    finally:
        processes.close()


@contextmanager
def isolated_cluster(
    *,
    masters: int = 1,
    slaves: int = 0,
    role: str = "ASYNC_MASTER",
    config: Mapping[str, object] | None = None,
    keep: bool = False,
    log_level: str = "info",
    port: int | None = None,
) -> Iterator[IsolatedCluster]:
    """Run each server in a process of its own, so that it can be paused, killed and started again."""
    arguments = arguments_of(masters, slaves, role, config, port, log_level=log_level)
    processes = Isolated(arguments, masters=masters, slaves=slaves, keep=keep, port=port)
    try:
        yield IsolatedCluster(processes)
    finally:
        processes.close()
