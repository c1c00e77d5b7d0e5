"""
A listening port that speaks RocketMQ.

Java: NettyRemotingServer, ClientHousekeepingService
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from rmq.remoting.channel import Channel, describe_peer
from rmq.remoting.limits import DEFAULT_LIMITS, HeldBytes, RemotingLimits, Seats
from rmq.remoting.protocol import RemotingProtocol, plain_only
from rmq.remoting.responders import ResponderTable
from rmq.remoting.tls import admission
from rmq.runtime.clock import steady_ms
from rmq.runtime.logs import LogThrottle, repeats
from rmq.runtime.platform import Platform, join_addr
from rmq.runtime.tls.context import TLS_TROUBLE, ServerTls

#: connections that wait to be accepted
BACKLOG = 1024
#: Java: serverChannelMaxIdleTimeSeconds
IDLE_SECONDS = 120.0


class RemotingServer(Service):
    """
    Listen on ``host``:``port`` and answer requests by ``responders`` while the service runs.

    Port 0 takes a free one; :attr:`port` has its number. ``name`` is for the log. Without ``tls`` the port is plain.
    Several ports may share ``tls`` and ``seats``.
    """

    _log = Logger()

    def __init__(
        self,
        platform: Platform,
        *,
        host: str,
        port: int,
        responders: ResponderTable,
        idle_seconds: float = IDLE_SECONDS,
        name: str,
        tls: ServerTls | None = None,
        limits: RemotingLimits = DEFAULT_LIMITS,
        seats: Seats | None = None,
    ) -> None:
        self.setName(name)
        self.host = host
        self.port = port
        self.responders = responders
        self.idle_seconds = idle_seconds
        self._platform = platform
        self._listening: Any = None
        self._channels: dict[int, Channel] = {}
        self._closed_listeners: list[Callable[[Channel, str], object]] = []
        self._next_id = 0
        self._emptied: Deferred[None] | None = None
        self._admit = plain_only if tls is None else admission(tls)
        self._limits = limits
        self._held = HeldBytes(limits.server_max_held_bytes, self._channels.values)
        self._seats = Seats() if seats is None else seats
        self._throttle = LogThrottle()
        #: refused connections since the start
        self.refused = 0

    @property
    def accepted(self) -> int:
        """Connections that were accepted since the start."""
        return self._next_id

    @property
    def channels(self) -> Collection[Channel]:
        """The open connections."""
        return self._channels.values()

    def on_channel_closed(self, listener: Callable[[Channel, str], object]) -> None:
        """Call ``listener(channel, reason)`` whenever a connection is lost. One that raises is logged."""
        self._closed_listeners.append(listener)

    def startService(self) -> None:
        """Listen; a CannotListenError names the address when that is not possible, for one because it is in use."""
        factory = _Connections(self)
        try:
            self._listening = self._platform.reactor.listenTCP(self.port, factory, backlog=BACKLOG, interface=self.host)
        except CannotListenError as error:
            self._log.critical(
                "{name} cannot listen on {addr}: {error}",
                name=self.name,
                addr=join_addr(self.host, self.port),
                error=error.socketError,
            )
            raise
        self.port = getattr(self._listening.getHost(), "port", self.port)
        super().startService()
        self._log.info("{name} listens on {addr}", name=self.name, addr=join_addr(self.host, self.port))

    def stopService(self) -> Deferred[None]:
        """Stop listening and close all connections; fires when they are closed (CLOSE_GRACE_S at most)."""
        super().stopService()
        listening, self._listening = self._listening, None
        stopped = maybeDeferred(listening.stopListening) if listening is not None else maybeDeferred(lambda: None)
        for channel in list(self._channels.values()):
            channel.close(f"{self.name} stops")
        return stopped.addCallback(lambda _: self._when_empty())

    def build_protocol(self, address: IAddress | None) -> Protocol | None:
        """Return the protocol of a new connection, None to refuse it."""
        if self._seats.full:
            self._refuse(address, f"the limit of open files leaves room for {self._seats.most} connections (ulimit -n)")
            return None
        if len(self._channels) >= self._limits.server_max_connections:
            self._refuse(address, f"serverMaxConnections={self._limits.server_max_connections} are open")
            return None
        self._next_id += 1
        return RemotingProtocol(
            self.responders,
            self._platform.reactor,
            id=self._next_id,
            idle_seconds=self.idle_seconds,
            opened=self._opened,
            closed=self._closed,
            admit=self._admit,
            limits=self._limits,
            grew=self._held.grew,
            throttle=self._throttle,
        )

    def _refuse(self, address: IAddress | None, why: str) -> None:
        self.refused += 1
        suppressed = self._throttle.admit(why, steady_ms(self._platform.reactor))
        if suppressed is not None:
            peer, _ = describe_peer(address)
            self._log.warn(
                "{name} rejects {peer}: {why}{repeats}",
                name=self.name,
                peer=peer,
                why=why,
                suppressed=suppressed,
                repeats=repeats(suppressed),
            )

    def _opened(self, channel: Channel) -> None:
        self._seats.taken += 1
        self._channels[channel.id] = channel
        for listener in self._closed_listeners:
            channel.when_closed(listener)

    def _closed(self, channel: Channel, reason: str) -> None:
        if reason.startswith(TLS_TROUBLE):
            host, _ = channel.peer_host
            suppressed = self._throttle.admit((host, reason), steady_ms(self._platform.reactor))
            if suppressed is not None:
                self._log.warn(
                    "{peer} disconnected: {reason} ({suppressed} identical messages of this host suppressed)",
                    peer=channel.peer,
                    reason=reason,
                    suppressed=suppressed,
                )
        self._seats.taken -= 1
        self._channels.pop(channel.id, None)
        if not self._channels and self._emptied is not None:
            emptied, self._emptied = self._emptied, None
            emptied.callback(None)

    def _when_empty(self) -> Deferred[None] | None:
        if not self._channels:
            return None
        if self._emptied is None:
            self._emptied = Deferred()
        return self._emptied


class _Connections(Factory):
    noisy = False

    def __init__(self, server: RemotingServer) -> None:
        self._server = server

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        return self._server.build_protocol(addr)
