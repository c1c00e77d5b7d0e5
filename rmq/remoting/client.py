"""
Requests to servers by address, over one connection each, which is made when needed.

Java: NettyRemotingClient
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList, TimeoutError, fail, maybeDeferred
from twisted.internet.error import ConnectingCancelledError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.errors import (
    CLOSED_PLAIN,
    CLOSED_TLS,
    BadAnswer,
    Refused,
    RequestFailed,
    RequestTimeout,
    Unreachable,
    with_advice,
)
from rmq.remoting.channel import Channel
from rmq.remoting.protocol import RemotingProtocol, why_lost
from rmq.remoting.responders import ResponderTable
from rmq.runtime.platform import Platform, split_addr
from rmq.runtime.tls.context import ClientTls, is_no_tls, loss_text
from rmq.wire.codes import named
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

__all__ = [
    "BadAnswer",
    "Refused",
    "RemotingClient",
    "RequestFailed",
    "RequestTimeout",
    "Response",
    "Unreachable",
]

#: timeout of a connection attempt.  Java: connectTimeoutMillis
CONNECT_TIMEOUT_MS = 3_000
#: requests that may wait for one connection attempt
MAX_WAITING_FOR_DIAL = 10_000
#: Java: clientChannelMaxIdleTimeSeconds
IDLE_SECONDS = 120.0

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


class RemotingClient(Service):
    """
    Send requests to servers; ``responders`` answers requests of the servers (without it: code 3). With ``tls`` every
    connection uses TLS; ``sign`` signs every request.

    When a connection is lost its pending requests fail at once; the next request connects again. Nothing is retried.
    """

    _log = Logger()

    def __init__(
        self,
        platform: Platform,
        *,
        responders: ResponderTable | None = None,
        name: str = "remoting client",
        tls: ClientTls | None = None,
        sign: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        self.setName(name)
        self._platform = platform
        self._responders = ResponderTable() if responders is None else responders
        self._tls = tls
        self._sign = sign
        self._channels: dict[str, Channel] = {}
        self._dials: dict[str, _Dial] = {}
        self._open: dict[int, Channel] = {}
        self._next_id = 0
        self._stopped = False
        self._on_lost: list[Callable[[str], None]] = []

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Have ``callback(addr)`` called when a connection to ``addr`` has ended, but not by the stop."""
        self._on_lost.append(callback)

    def startService(self) -> None:
        super().startService()
        self._stopped = False

    def stopService(self) -> Deferred[None]:
        """Fail pending requests, close all connections; fires when they are closed (CLOSE_GRACE_S at most)."""
        super().stopService()
        self._stopped = True
        for dial in list(self._dials.values()):
            dial.cancel()
        gone: list[Deferred[None]] = []
        for channel in list(self._open.values()):
            closed: Deferred[None] = Deferred()
            gone.append(closed)
            channel.when_closed(_firing(closed))
            channel.close(f"{self.name} stops")
        return DeferredList(gone).addCallback(lambda _: None)

    def invoke(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_ms: float
    ) -> Deferred[Response[RH, RB]]:
        """
        Send a request to ``addr`` (``host:port``) and wait for the answer; ``timeout_ms`` includes connecting.

        Fails with Refused, RequestTimeout, Unreachable or BadAnswer (all RequestFailed).
        """
        channel = self._channels.get(addr)
        if channel is not None and channel.is_open:
            return channel.invoke(contract, header, body, timeout_ms=timeout_ms)
        clock = self._platform.reactor
        deadline = clock.seconds() + timeout_ms / 1000

        def expired(_result: object, _timeout: float) -> Failure:
            text = (
                f"{addr} could not be asked for request {named(contract.code)} within {timeout_ms:g} ms: still dialling"
            )
            return Failure(RequestTimeout(addr, text))

        def ask(opened: Channel) -> Deferred[Response[RH, RB]]:
            rest_ms = max(0.0, (deadline - clock.seconds()) * 1000)
            return opened.invoke(contract, header, body, timeout_ms=rest_ms)

        opened = self._channel(addr)
        opened.addTimeout(timeout_ms / 1000, clock, onTimeoutCancel=expired)
        return opened.addCallback(ask)

    def oneway(self, addr: str, contract: Contract[H, B, Any, Any], header: H, body: B) -> None:
        """Send a one-way request to ``addr``; it is logged when it cannot be sent."""

        def report(failure: Failure) -> None:
            self._log.info(
                "one-way request {code} was not sent to {addr}: {error}",
                code=contract.code,
                addr=addr,
                error=failure.value,
            )

        self.tell(addr, contract, header, body).addErrback(report)

    def tell(self, addr: str, contract: Contract[H, B, Any, Any], header: H, body: B) -> Deferred[None]:
        """Send a one-way request to ``addr``; fires when it is written, fails with Unreachable."""

        def write(channel: Channel) -> None:
            if not channel.oneway(contract, header, body):
                raise Unreachable(addr, f"{addr} does not read what it is sent")

        return self._channel(addr).addCallback(write)

    @property
    def local_ip(self) -> str | None:
        """Our address on one of the connections, None without one."""
        return next((channel.local_ip for channel in self._channels.values()), None)

    def _channel(self, addr: str) -> Deferred[Channel]:
        """Return the open channel to ``addr``, connecting if necessary; fails with Unreachable."""
        channel = self._channels.get(addr)
        if channel is not None and channel.is_open:
            opened: Deferred[Channel] = Deferred()
            opened.callback(channel)
            return opened
        if self._stopped:
            return fail(Unreachable(addr, f"{addr} cannot be asked: {self.name} is stopped"))
        dial = self._dials.get(addr)
        if dial is None:
            try:
                host, port = split_addr(addr)
            except ValueError as error:
                return fail(Unreachable(addr, str(error)))
            dial = self._dials[addr] = _Dial(addr)
            waiting = dial.wait()
            self._start(dial, host, port)
            return waiting
        return dial.wait()

    def _start(self, dial: _Dial, host: str, port: int) -> None:
        # End the attempt after every error: otherwise later requests would wait for it for ever.
        connecting: Deferred[Any] = maybeDeferred(self._connect, host, port)
        dial.connecting = connecting
        # Endpoints end with errors of their own when they are cancelled.
        connecting.addTimeout(CONNECT_TIMEOUT_MS / 1000, self._platform.reactor, onTimeoutCancel=_timed_out)
        connecting.addCallbacks(self._dialled, self._not_dialled, callbackArgs=(dial,), errbackArgs=(dial,))

    def _connect(self, host: str, port: int) -> Deferred[Any]:
        endpoint = self._platform.endpoint_factory(self._platform.reactor, host, port)
        if self._tls is not None:
            endpoint = self._tls.wrap(endpoint, host)
        connecting: Deferred[Any] = endpoint.connect(_Outgoing(self))
        return connecting

    def _dialled(self, protocol: RemotingProtocol, dial: _Dial) -> None:
        self._dials.pop(dial.addr, None)
        channel = protocol.channel
        if self._stopped:
            channel.close(f"{self.name} is stopped")
            dial.failed(f"{self.name} is stopped")
            return
        self._channels[dial.addr] = channel
        channel.when_closed(lambda closed, _reason: self._forget(dial.addr, closed))
        dial.made(channel)

    def _not_dialled(self, failure: Failure, dial: _Dial) -> None:
        self._dials.pop(dial.addr, None)
        error = with_advice(loss_text(failure.value))
        if failure.check(TimeoutError):
            error = f"no connection within {CONNECT_TIMEOUT_MS} ms"
        elif self._tls is not None and is_no_tls(failure.value):
            error = CLOSED_TLS
        elif failure.check(CancelledError, ConnectingCancelledError):
            error = f"{self.name} is stopped"
        dial.failed(f"cannot connect to {dial.addr}: {error}")

    def _forget(self, addr: str, channel: Channel) -> None:
        if self._channels.get(addr) is channel:
            del self._channels[addr]
            if not self._stopped:
                for callback in self._on_lost:
                    callback(addr)

    def build_protocol(self) -> Protocol:
        """Return the protocol of a new connection."""
        self._next_id += 1
        return RemotingProtocol(
            self._responders,
            self._platform.reactor,
            id=self._next_id,
            idle_seconds=IDLE_SECONDS,
            opened=self._opened,
            closed=self._closed,
            why_lost=self._why_lost,
        )

    def _why_lost(self, reason: Failure, heard: bool) -> str:
        if self._tls is None and not heard and reason.check(ConnectionDone, ConnectionLost):
            return CLOSED_PLAIN
        return with_advice(why_lost(reason, heard))

    def _opened(self, channel: Channel) -> None:
        channel.sign = self._sign
        self._open[channel.id] = channel

    def _closed(self, channel: Channel, _reason: str) -> None:
        self._open.pop(channel.id, None)


def _timed_out(_result: object, timeout_s: float) -> Failure:
    return Failure(TimeoutError(timeout_s, "Deferred"))


def _firing(done: Deferred[None]) -> Callable[[Channel, str], None]:
    return lambda _channel, _reason: done.callback(None)


class _Dial:
    """A connection attempt and the requests that wait for it."""

    def __init__(self, addr: str) -> None:
        self.addr = addr
        self.connecting: Deferred[Any] | None = None
        # in order of arrival; a dict because any of them may be cancelled
        self._waiting: dict[Deferred[Channel], None] = {}

    def wait(self) -> Deferred[Channel]:
        """Return a Deferred of the channel; cancelling it does not cancel the attempt."""
        if len(self._waiting) >= MAX_WAITING_FOR_DIAL:
            text = f"{len(self._waiting)} requests wait for the connection to {self.addr} already"
            return fail(Unreachable(self.addr, text))
        others = self._waiting
        waiting: Deferred[Channel] = Deferred(lambda gone: others.pop(gone, None))
        others[waiting] = None
        return waiting

    def made(self, channel: Channel) -> None:
        for waiting in self._take():
            waiting.callback(channel)

    def failed(self, why: str) -> None:
        for waiting in self._take():
            waiting.errback(Unreachable(self.addr, why))

    def cancel(self) -> None:
        if self.connecting is not None:
            self.connecting.cancel()

    def _take(self) -> Iterator[Deferred[Channel]]:
        """Yield all that wait, each when its turn comes: a callback may cancel others."""
        taken, self._waiting = self._waiting, {}
        while taken:
            one = next(iter(taken))
            del taken[one]
            yield one


class _Outgoing(Factory):
    noisy = False

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._client.build_protocol()
