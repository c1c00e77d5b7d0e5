"""
Broker processes, and the connections that speak for them.

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

    ``channel`` is the connection over which it registered last; when that one ends the broker is gone, unless it has
    shown itself over a newer one (``heir``) since. ``generation`` grows each time that somebody registers who was not
    there, or over another connection. ``last_update_ms`` is epoch milliseconds, to be shown; ``heard_ms`` is the same
    moment on the steady clock that silence is measured with. ``digest`` stands for the body that it registered with,
    as long as the same body would change nothing.
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
    last_update_ms: int
    heard_ms: int
    heir: object | None = None
    header: RegisterBrokerHeader | None = None
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
    """A connection that spoke for a broker; ``number`` says when it did so first."""

    number: int
    holds: dict[Key, LiveBroker] = attrs.field(factory=dict)
    inherits: dict[Key, LiveBroker] = attrs.field(factory=dict)
    #: brokers that it registered once, and that have registered over a newer connection since
    lost: set[Key] = attrs.field(factory=set)


class Connections:
    """
    Which connection speaks for which broker, and which of two is the older one.

    The order is that of their first registration or sign of life. What comes over an older connection than the one
    that a broker has registered over is stale: sent before, or by a process that has been replaced.
    """

    def __init__(self) -> None:
        self._known: dict[object, _Connection] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._known)

    def is_older(self, channel: object, than: object) -> bool:
        """Return whether ``channel`` spoke for a broker before ``than`` did; one never heard of is the newest."""
        known, other = self._known.get(channel), self._known.get(than)
        return known is not None and other is not None and known.number < other.number

    def hold(self, live: LiveBroker) -> None:
        """Let the broker hang on its ``channel`` alone."""
        self.release(live)
        connection = self._seen(live.channel)
        connection.holds[live.key] = live
        connection.lost.discard(live.key)

    def inherit(self, live: LiveBroker, channel: object) -> None:
        """Let ``channel`` hold the broker when its own connection ends."""
        if live.heir is not None:
            self._seen(live.heir).inherits.pop(live.key, None)
        live.heir = channel
        self._seen(channel).inherits[live.key] = live

    def move(self, live: LiveBroker, channel: object) -> None:
        """Let the broker hang on another connection from now on; the old one is remembered as having lost it."""
        before = self._known.get(live.channel)
        if before is not None:
            before.lost.add(live.key)
        self.release(live)
        live.channel = channel
        self.hold(live)

    def release(self, live: LiveBroker) -> None:
        """Let the broker hang on no connection."""
        for channel in (live.channel, live.heir):
            connection = self._known.get(channel)
            if connection is not None:
                connection.holds.pop(live.key, None)
                connection.inherits.pop(live.key, None)
        live.heir = None

    def held_by(self, channel: object) -> list[LiveBroker]:
        """Return the brokers that hang on ``channel``."""
        connection = self._known.get(channel)
        return [] if connection is None else list(connection.holds.values())

    def closed(self, channel: object) -> tuple[list[LiveBroker], list[Key]]:
        """
        Forget a connection that ended; return the brokers that hung on it and those that it had lost before.

        A broker with an heir is no longer among the first: it hangs on that one now.
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
    """Return ``ip:port`` of a channel; empty for what is none."""
    return str(getattr(channel, "peer", ""))
