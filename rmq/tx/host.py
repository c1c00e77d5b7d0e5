"""Twisted below the client: one of the two places where it meets clocks, files and sockets."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from inspect import iscoroutine
from itertools import chain
from random import Random
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.client.core.msgid import local_month
from rmq.client.host import Answer, Prepare
from rmq.client.stacks import coroutine_stack, stacks_text, thread_stacks
from rmq.remoting.channel import Channel
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import ResponderTable
from rmq.runtime.clock import now_ms
from rmq.runtime.disk.error import DiskError
from rmq.runtime.platform import Platform
from rmq.runtime.tls.context import ClientTls
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

T = TypeVar("T")
H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


class TwistedHost:
    """A reactor, or a simulated machine. Files are below ``home``."""

    CANCELLED: type[BaseException] = CancelledError
    _log = Logger()

    def __init__(self, platform: Platform, *, home: str, tls: ClientTls | None = None) -> None:
        self.rng: Random = platform.rng
        self._platform = platform
        self._reactor = platform.reactor
        self._home = home
        self._tls = tls
        #: what was spawned and has not ended, with its name
        self._running: dict[Coroutine[Any, Any, None], str] = {}

    def seconds(self) -> float:
        return float(self._reactor.seconds())

    def wall_ms(self) -> int:
        return now_ms(self._reactor)

    def month_of(self, wall_ms: int) -> tuple[int, int]:
        return local_month(wall_ms)

    def pid(self) -> int:
        return os.getpid()

    def sleep(self, seconds: float) -> Deferred[None]:
        call: IDelayedCall
        done: Deferred[None] = Deferred(lambda _: call.cancel())
        call = self._reactor.callLater(seconds, done.callback, None)
        return done

    def gate(self) -> TwistedGate:
        return TwistedGate(self._reactor)

    def spawn(self, run: Coroutine[Any, Any, None], *, name: str) -> TwistedRunning:
        def ended(result: object) -> None:
            self._running.pop(run, None)
            if isinstance(result, Failure) and not result.check(CancelledError):
                self._log.failure("{name} failed", result, name=name)

        self._running[run] = name
        return TwistedRunning(run, self.gate(), ended)

    def cancellations(self) -> int:
        running = _RUNNING.get()
        return 0 if running is None else running.cancellations

    async def absorb(self, before: int) -> bool:
        """Code that a coroutine runs does not have the Deferred that drives it: only its owner cancels it."""
        return False

    def within(self, waiting: Coroutine[Any, Any, T], seconds: float) -> Deferred[T]:
        def expired(_: object, seconds: float) -> Any:
            raise TimeoutError(f"not within {seconds:g} s")

        return Deferred.fromCoroutine(waiting).addTimeout(seconds, self._reactor, onTimeoutCancel=expired)

    def call(self, handler: Callable[[Any], Any], argument: object) -> Deferred[object]:
        """Call the handler in the reactor's thread; it may return a Deferred, or be a coroutine function."""

        def go_on(result: object) -> object:
            return Deferred.fromCoroutine(result) if iscoroutine(result) else result

        return maybeDeferred(handler, argument).addCallback(go_on)

    def read_file(self, path: str) -> bytes | None:
        whole, disk = os.path.join(self._home, path), self._platform.disk
        try:
            return disk.read_whole(whole) if disk.exists(whole) else None
        except DiskError as error:
            raise OSError(str(error)) from error

    def write_file(self, path: str, data: bytes) -> None:
        whole, disk = os.path.join(self._home, path), self._platform.disk
        try:
            disk.make_dirs(os.path.dirname(whole))
            disk.write_atomic(whole, data)
        except DiskError as error:
            raise OSError(str(error)) from error

    def connections(self, prepare: Prepare, answer: Answer) -> TwistedConnections:
        client = RemotingClient(
            self._platform, responders=_Answers(answer), name="rmq client", tls=self._tls, sign=prepare
        )
        client.startService()
        return TwistedConnections(client)

    def stacks(self) -> str:
        running = (coroutine_stack(name, run) for run, name in self._running.items())
        return stacks_text(chain(thread_stacks(), running))

    def close(self) -> None:
        pass


class TwistedGate:
    """
    Deferreds that wait.

    They go on in the next turn of the reactor, as asyncio's do: one that went on within :meth:`open` would run on the
    stack of who opens, which a close could not cancel then.
    """

    def __init__(self, reactor: Any) -> None:
        self.is_open = False
        self._reactor = reactor
        self._waiting: dict[Deferred[object], None] = {}

    def open(self) -> None:
        self.is_open = True
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._reactor.callLater(0, self._wake, waiting)

    def _wake(self, waiting: dict[Deferred[object], None]) -> None:
        while waiting:
            one = next(iter(waiting))
            del waiting[one]
            one.callback(None)

    def shut(self) -> None:
        self.is_open = False

    def wait(self) -> Deferred[object]:
        if self.is_open:
            return succeed(None)
        waiting = self._waiting
        one: Deferred[object] = Deferred(lambda gone: waiting.pop(gone, None))
        waiting[one] = None
        return one


class TwistedRunning:
    """A coroutine that a Deferred drives."""

    def __init__(
        self, run: Coroutine[Any, Any, None], ended_gate: TwistedGate, ended: Callable[[object], object]
    ) -> None:
        self._ended = ended_gate
        self.cancellations = 0
        context = copy_context()
        context.run(_RUNNING.set, self)
        self._driver: Deferred[Any] = context.run(Deferred.fromCoroutine, run)
        self._driver.addBoth(ended).addBoth(lambda _: self._ended.open())

    def cancel(self) -> None:
        self.cancellations += 1
        self._driver.cancel()

    def wait(self) -> Deferred[object]:
        return self._ended.wait()


#: the one that runs now
_RUNNING: ContextVar[TwistedRunning | None] = ContextVar("_RUNNING", default=None)


class TwistedConnections:
    """A RemotingClient."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    @property
    def local_ip(self) -> str | None:
        return self._client.local_ip

    def ask(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_s: float
    ) -> Deferred[Response[RH, RB]]:
        return self._client.invoke(addr, contract, header, body, timeout_ms=timeout_s * 1000)

    def tell(self, addr: str, contract: Contract[H, B, Any, Any], header: H, body: B) -> Deferred[None]:
        return self._client.tell(addr, contract, header, body)

    def close(self) -> Deferred[None]:
        return self._client.stopService()


class _Answers(ResponderTable):
    """Answers by a coroutine in place of responders."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def dispatch(self, command: RemotingCommand, channel: Channel) -> Deferred[bytes | None]:
        def failed(failure: Failure) -> None:
            self._log.failure("request {code} of {peer} failed", failure, code=command.code, peer=channel.peer)

        def written(frame: bytes | None) -> bytes | None:
            return None if command.is_oneway else frame

        return Deferred.fromCoroutine(self._answer(channel.peer, command)).addCallback(written).addErrback(failed)
