"""
Broker processes, and the connections that they use.

Java: BrokerLiveInfo, RouteInfoManager's brokerLiveTable
"""

from __future__ import annotations

import attrs

from rmq.wire.api.common import DataVersion
from rmq.wire.api.register_body import BodyDigest
from rmq.wire.api.routes import RegisterBrokerHeader

#: a broker process: its group's name and its address
Key = tuple[str, str]


@attrs.define(kw_only=True, eq=False, repr=False)
class LiveBroker:
    """
    One broker process, by the name and the address that it registered with.

    ``channel`` is the connection of its last registration. When that connection closes the broker is removed, unless it
    has used a newer one (``heir``) since. ``generation`` is a new number for each new broker and each new connection.
    ``last_update_ms`` is epoch milliseconds, ``heard_ms`` the same moment on the steady clock. ``digest`` is that of
    the last registration's body, None when the same body would change something.
    Java: BrokerLiveInfo
    """

    broker_addr: str
    broker_name: str
    broker_id: int
    cluster_name: str
    data_version: DataVersion
    ha_server_addr: str
    channel: object
    generation: int
    expiry_ms: int
    header: RegisterBrokerHeader
    last_update_ms: int
    heard_ms: int
    heir: object | None = None
    zone_name: str | None = None
    digest: BodyDigest | None = None

    @property
    def key(self) -> Key:
        return self.broker_name, self.broker_addr

    @property
    def peer(self) -> str:
        """``ip:port`` of its connection, empty when that is unknown."""
        return peer_of(self.channel)


@attrs.define(eq=False, repr=False)
class _Connection:
    """A connection that a broker used; ``number`` is the order of first use."""

    number: int
    holds: dict[Key, LiveBroker] = attrs.field(factory=dict)
    inherits: dict[Key, LiveBroker] = attrs.field(factory=dict)
    #: brokers that registered here and have registered over a newer connection since
    lost: set[Key] = attrs.field(factory=set)


class Connections:
    """
    Which connection belongs to which broker, and which of two connections is older.

    The order is that of their first registration or sign of life. What arrives over an older connection than the
    broker's own is stale: sent before, or by a process that has been replaced.
    """

    def __init__(self) -> None:
        self._known: dict[object, _Connection] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._known)

    def is_older(self, channel: object, than: object) -> bool:
        """Return whether a broker used ``channel`` before ``than``; an unknown one is the newest."""
        known, other = self._known.get(channel), self._known.get(than)
        return known is not None and other is not None and known.number < other.number

    def hold(self, live: LiveBroker) -> None:
        """Bind the broker to its ``channel`` alone."""
        self.release(live)
        connection = self._seen(live.channel)
        connection.holds[live.key] = live
        connection.lost.discard(live.key)

    def inherit(self, live: LiveBroker, channel: object) -> None:
        """Let the broker move to ``channel`` when its own connection closes."""
        if live.heir is not None:
            self._seen(live.heir).inherits.pop(live.key, None)
        live.heir = channel
        self._seen(channel).inherits[live.key] = live

    def move(self, live: LiveBroker, channel: object) -> None:
        """Bind the broker to another connection; the old one remembers that it lost the broker."""
        before = self._known.get(live.channel)
        if before is not None:
            before.lost.add(live.key)
        self.release(live)
        live.channel = channel
        self.hold(live)

    def release(self, live: LiveBroker) -> None:
        """Unbind the broker from all connections."""
        for channel in (live.channel, live.heir):
            connection = self._known.get(channel)
            if connection is not None:
                connection.holds.pop(live.key, None)
                connection.inherits.pop(live.key, None)
        live.heir = None

    def is_bound(self, channel: object) -> bool:
        """Return whether a broker is bound to ``channel``."""
        connection = self._known.get(channel)
        return connection is not None and bool(connection.holds)

    def closed(self, channel: object) -> tuple[list[LiveBroker], list[Key]]:
        """
        Forget a connection that closed; return the brokers bound to it, and those that it had lost before.

        A broker that has an ``heir`` is to be moved to that connection.
        """
        connection = self._known.pop(channel, None)
        if connection is None:
            return [], []
        for live in connection.inherits.values():
            live.heir = None
        return list(connection.holds.values()), sorted(connection.lost)

    def _seen(self, channel: object) -> _Connection:
        connection = self._known.get(channel)
        if connection is None:
            self._count += 1
            connection = self._known[channel] = _Connection(self._count)
        return connection


def peer_of(channel: object) -> str:
    """Return ``ip:port`` of a channel; empty when it has none."""
    return str(getattr(channel, "peer", ""))
