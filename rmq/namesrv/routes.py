"""
Which broker serves which topic: the NameServer's tables, without sockets, files or clocks.

Java: RouteInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from rmq.namesrv.administration import AdministeredTable
from rmq.namesrv.brokertable import MinBrokerIdChange
from rmq.namesrv.events import EventKind, RouteEvent
from rmq.namesrv.groups import MASTER_ID, PERM_READ, PERM_WRITE, Group
from rmq.namesrv.live import Connections, LiveBroker, peer_of
from rmq.wire.api.common import DataVersion
from rmq.wire.api.register_body import BodyDigest, RegisterBrokerBody
from rmq.wire.api.routes import (
    BrokerIdentityHeader,
    RegisterBrokerHeader,
    RegisterBrokerReply,
)

__all__ = [
    "BROKER_EXPIRY_MS",
    "MASTER_ID",
    "PERM_READ",
    "PERM_WRITE",
    "SYS_FLAG_UNIT",
    "SYS_FLAG_UNIT_SUB",
    "LiveBroker",
    "MinBrokerIdChange",
    "RoutePolicy",
    "RouteTable",
]

SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB = 1, 2

#: A broker unheard of for longer than this is gone, unless it said another time when it registered.
BROKER_EXPIRY_MS = 120_000


@attrs.frozen(kw_only=True)
class RoutePolicy:
    """
    What configuration decides about routes.

    Java: NamesrvConfig#isSupportActingMaster, #isDeleteTopicWithBrokerRegistration
    """

    support_acting_master: bool = False
    delete_absent_topics: bool = False


class RouteTable(AdministeredTable):
    """
    Brokers that are there, their topics, and what leads to them.

    A group (a broker name) is there while it has at least one address; its topics go when the last one goes. An
    address is in its group while the broker that registered it lives: what an older connection says or how it ends is
    of no matter any more once the broker has registered over a newer one.

    ``now_ms`` are epoch milliseconds; silence is measured with ``steady_ms``, milliseconds of a clock that nobody sets.
    ``on_event`` hears what changed, when the change is made; ``on_min_broker_id`` when another
    broker than before has the smallest id of a group.
    """

    def __init__(
        self,
        *,
        expiry_ms: int = BROKER_EXPIRY_MS,
        on_event: Callable[[RouteEvent], object] | None = None,
        on_min_broker_id: Callable[[MinBrokerIdChange], object] | None = None,
    ) -> None:
        super().__init__(on_event=on_event, on_min_broker_id=on_min_broker_id)
        self._policy = RoutePolicy()
        self._expiry_ms = expiry_ms
        self._generation = 0
        self._connections = Connections()

    @property
    def policy(self) -> RoutePolicy:
        """What configuration decides; may be set at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: RoutePolicy) -> None:
        if policy != self._policy:
            self._policy = policy
            self.support_acting_master = policy.support_acting_master
            self._touch()
            for live in self._live.values():
                live.digest = None

    # what brokers say

    def register_broker(
        self,
        header: RegisterBrokerHeader,
        body: RegisterBrokerBody,
        *,
        channel: object,
        now_ms: int,
        steady_ms: int,
        zone_name: str | None = None,
        digest: BodyDigest | None = None,
    ) -> RegisterBrokerReply:
        """
        Take in a broker, or what it says of itself now; return where a slave finds its live master.

        Only topics of a master count, or of a 5.x group's first slave while there is no master. With a new data version
        they replace what was known of them; with an unchanged one just those come in that the group lacks, so that
        neither a partial first registration nor changed permissions are lost. Topics that the body lacks stay, unless
        the policy says otherwise. Of two addresses with the same name and id the later registration wins; with 5.x's
        state versions the higher one.

        ``digest`` stands for the raw body; :meth:`renew` knows it again.
        Java: RouteInfoManager#registerBroker
        """
        topics = body.topic_config_serialize_wrapper
        known = self._live.get((header.broker_name, header.broker_addr))
        if known is not None and self._connections.is_older(channel, known.channel):
            why = f"it registers over an older connection than {known.peer}, over which it has registered since"
            self._emit(EventKind.FENCED, known, now_ms, why, peer=peer_of(channel))
            return self._master_of(known)
        rival = self._holder(header.broker_name, header.broker_id)
        if rival is known:
            rival = None
        if rival is not None and (rival.data_version.state_version or 0) > (topics.data_version.state_version or 0):
            self._outrank(header, topics.data_version, rival, known, channel, now_ms)
            return RegisterBrokerReply()

        news: list[str] = []
        live = known or self._arrive(header, topics.data_version, channel)
        self._heard(live, channel, now_ms, steady_ms, "it registered over another connection")
        group, taken = self._take_place(live, header, rival, now_ms, news)
        if taken and known is not None and not news:
            news.append("it has its place again, which another address had had")
        replacing = taken or live.data_version != topics.data_version
        live.data_version = topics.data_version
        self._describe(live, header, news)
        self._mark(group, live, zone_name)
        changed: Collection[str] = ()
        if _counts(group, live):
            if self._policy.delete_absent_topics:
                self._drop_absent(group, live, topics.topic_config_table, now_ms)
            changed = self._take_topics(group, live, topics.topic_config_table, replacing=replacing)
        if body.filter_server_list is not None and self._set_filter_servers(
            group, live.broker_addr, body.filter_server_list
        ):
            news.append("it has other filter servers")
        if taken:
            self._forget_digests(group)
        live.digest = digest
        if known is None:
            self._emit(EventKind.REGISTERED, live, now_ms, "; ".join(news) or "it was not there", topics=changed)
        elif changed or news:
            if changed:
                news.append(f"{len(changed)} of its topics changed")
            self._emit(EventKind.CHANGED, live, now_ms, "; ".join(news), topics=changed)
        return self._master_of(live)

    def renew(
        self,
        header: RegisterBrokerHeader,
        digest: BodyDigest,
        *,
        channel: object,
        now_ms: int,
        steady_ms: int,
        zone_name: str | None = None,
    ) -> RegisterBrokerReply | None:
        """
        Take a registration that says what the broker's last one said as a sign of life; None when it may be news.

        ``digest`` is that of the raw body, so that it need not be read. Answers what :meth:`register_broker` would.
        """
        live = self._live.get((header.broker_name, header.broker_addr))
        if live is None or live.digest != digest or live.header != header or live.zone_name != zone_name:
            return None
        if self._connections.is_older(channel, live.channel):
            return None
        self._heard(live, channel, now_ms, steady_ms, "it registered over another connection")
        self._mark(self._groups[live.broker_name], live, zone_name)
        return self._master_of(live)

    def unregister_broker(self, broker: BrokerIdentityHeader, *, channel: object = None, now_ms: int = 0) -> bool:
        """
        Let a broker go that says good-bye over ``channel``; return whether it went.

        It stays when it has registered since, over a newer connection or under another id, and so does whoever has its
        name and id by now.
        Java: RouteInfoManager#unregisterBroker, which knows no such thing
        """
        live = self._live.get((broker.broker_name, broker.broker_addr))
        if live is None:
            return False
        peer = peer_of(channel)
        if self._connections.is_older(channel, live.channel):
            why = f"its good-bye came over an older connection than {live.peer}, over which it has registered since"
        elif broker.broker_id != live.broker_id:
            why = f"its good-bye as {broker.broker_id} came late, it is {live.broker_id} by now"
        else:
            self._leave(live, EventKind.UNREGISTERED, "it said good-bye", now_ms, peer)
            return True
        self._emit(EventKind.FENCED, live, now_ms, why, peer=peer)
        return False

    def query_data_version(
        self,
        broker_name: str,
        broker_addr: str,
        version: DataVersion,
        *,
        channel: object,
        now_ms: int,
        steady_ms: int,
    ) -> tuple[bool, DataVersion | None]:
        """
        Return whether ``version`` is news, and the version that is known (None: the broker is unknown).

        For brokers that register only after changes this is the sign of life.
        Java: RouteInfoManager#isBrokerTopicConfigChanged, #queryBrokerTopicConfig, #updateBrokerInfoUpdateTimestamp
        """
        self.heartbeat(broker_name, broker_addr, channel=channel, now_ms=now_ms, steady_ms=steady_ms)
        known = self._live.get((broker_name, broker_addr))
        if known is None:
            return True, None
        # Who lost its place to a broker that has gone since must register again to have it.
        vacant = self._holder(broker_name, known.broker_id) is None
        return vacant or known.data_version != version, known.data_version

    def heartbeat(self, broker_name: str, broker_addr: str, *, channel: object, now_ms: int, steady_ms: int) -> bool:
        """
        Note that a broker lives; False when it is unknown.

        Over a newer connection than the one that it registered over, it will hang on that one when its own ends. Over
        an older one it is no sign of life.
        """
        live = self._live.get((broker_name, broker_addr))
        if live is None:
            return False
        if channel is not live.channel:
            newest = live.channel if live.heir is None else live.heir
            if self._connections.is_older(channel, live.channel):
                return True
            if not self._connections.is_older(channel, newest):
                self._connections.inherit(live, channel)
        live.last_update_ms = now_ms
        live.heard_ms = steady_ms
        return True

    # what becomes of them

    def channel_closed(self, channel: object, now_ms: int = 0, reason: str = "") -> list[LiveBroker]:
        """
        Let the brokers go that hang on ``channel``; return those that were in routes.

        Those that have registered anew over another connection stay, and those that were heard over a newer one since.
        Java: RouteInfoManager#onChannelDestroy
        """
        held, lost = self._connections.closed(channel)
        peer = peer_of(channel)
        ended = f"its connection {peer} ended" + (f": {reason}" if reason else "")
        gone = []
        for live in held:
            if live.heir is not None:
                self._reconnect(live, live.heir, now_ms, ended)
            elif self._leave(live, EventKind.CLOSED, ended, now_ms, peer):
                gone.append(live)
        for key in lost:
            stands = self._live.get(key)
            if stands is not None:
                why = f"{ended}, but it has registered over {stands.peer} since"
                self._emit(EventKind.FENCED, stands, now_ms, why, peer=peer)
        return gone

    def expire(self, now_ms: int, steady_ms: int, at_most: int | None = None) -> list[LiveBroker]:
        """
        Let the brokers go that were silent for too long; return them, so that their connections can be closed.

        With ``at_most`` there may be more of them when so many are returned.

        Java: RouteInfoManager#scanNotActiveBroker
        """
        silent = [live for live in self._live.values() if live.heard_ms + live.expiry_ms < steady_ms][:at_most]
        for live in silent:
            self._leave(live, EventKind.EXPIRED, f"silent for {steady_ms - live.heard_ms:,} ms", now_ms, live.peer)
        return silent

    def speaks(self, channel: object) -> bool:
        """Return whether a broker hangs on ``channel``."""
        return bool(self._connections.held_by(channel))

    # a registration

    def _arrive(self, header: RegisterBrokerHeader, version: DataVersion, channel: object) -> LiveBroker:
        self._generation += 1
        live = LiveBroker(
            broker_addr=header.broker_addr,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            cluster_name=header.cluster_name,
            data_version=version,
            ha_server_addr=header.ha_server_addr,
            channel=channel,
            generation=self._generation,
            expiry_ms=self._expiry_ms,
            last_update_ms=0,
            heard_ms=0,
        )
        self._live[live.key] = live
        self._connections.hold(live)
        return live

    def _heard(self, live: LiveBroker, channel: object, now_ms: int, steady_ms: int, why: str) -> None:
        if channel is not live.channel:
            self._reconnect(live, channel, now_ms, why)
        live.last_update_ms = now_ms
        live.heard_ms = steady_ms

    def _reconnect(self, live: LiveBroker, channel: object, now_ms: int, why: str) -> None:
        before = live.peer
        self._connections.move(live, channel)
        self._generation += 1
        live.generation = self._generation
        self._emit(EventKind.RECONNECTED, live, now_ms, f"{why} ({before} before)")

    def _take_place(
        self, live: LiveBroker, header: RegisterBrokerHeader, rival: LiveBroker | None, now_ms: int, news: list[str]
    ) -> tuple[Group, bool]:
        """Give the broker its place in cluster and group; True when it has not had that place before."""
        name, cluster, broker_id = header.broker_name, header.cluster_name, header.broker_id
        group = self._group_of(name, cluster)
        if group.addrs.get(broker_id) == live.broker_addr:
            return group, False
        min_id = group.min_id
        if live.broker_id != broker_id:
            news.append(f"its id is {broker_id}, {live.broker_id} before")
            # The same process under another id: a slave has become the master, or the other way round.
            if group.addrs.get(live.broker_id) == live.broker_addr:
                self._remove_addr(group, live.broker_id)
        live.broker_id = broker_id
        group.addrs[broker_id] = live.broker_addr
        self._touch()
        if rival is not None:
            rival.digest = None
            group.filter_servers.pop(rival.broker_addr, None)
            news.append(f"it took the place of {rival.broker_addr}")
            why = f"{live.broker_addr} registered with the same name and id"
            self._emit(EventKind.REPLACED, rival, now_ms, why, peer=live.peer)
        if min_id is not None and broker_id < min_id:
            self._tell_min_broker_id(group, ha_addr=header.ha_server_addr)
        return group, True

    def _describe(self, live: LiveBroker, header: RegisterBrokerHeader, news: list[str]) -> None:
        """Keep what the header says beside name, address and id."""
        if live.ha_server_addr != header.ha_server_addr:
            news.append(f"its HA address is {header.ha_server_addr}, {live.ha_server_addr} before")
        if live.cluster_name != header.cluster_name:
            news.append(f"its cluster is {header.cluster_name}, {live.cluster_name} before")
        live.ha_server_addr = header.ha_server_addr
        live.cluster_name = header.cluster_name
        timeout_ms = header.heartbeat_timeout_millis
        live.expiry_ms = timeout_ms if timeout_ms is not None and timeout_ms > 0 else self._expiry_ms
        live.header = header

    def _mark(self, group: Group, live: LiveBroker, zone_name: str | None) -> None:
        """Let the group be what its last registration says: its zone, and whether slaves act as masters."""
        live.zone_name = zone_name
        acting = live.header is not None and live.header.enable_acting_master is True
        if (group.zone_name, group.acting_master) != (zone_name, acting):
            group.zone_name, group.acting_master = zone_name, acting
            self._touch()

    def _master_of(self, live: LiveBroker) -> RegisterBrokerReply:
        if live.broker_id != MASTER_ID:
            master = self._holder(live.broker_name, MASTER_ID)
            if master is not None:
                return RegisterBrokerReply(ha_server_addr=master.ha_server_addr, master_addr=master.broker_addr)
        return RegisterBrokerReply()

    def _outrank(
        self,
        header: RegisterBrokerHeader,
        version: DataVersion,
        rival: LiveBroker,
        known: LiveBroker | None,
        channel: object,
        now_ms: int,
    ) -> None:
        """Do not let a broker have a place whose holder has a higher state version; nor any other place."""
        why = (
            f"it registers with state version {version.state_version or 0}, {rival.broker_addr} has that place"
            f" with {rival.data_version.state_version}"
        )
        if known is not None:
            self._leave(known, EventKind.REPLACED, why, now_ms, peer_of(channel))
        self._tell(
            EventKind.FENCED,
            now_ms,
            why,
            broker_name=header.broker_name,
            broker_addr=header.broker_addr,
            broker_id=header.broker_id,
            cluster=header.cluster_name,
            peer=peer_of(channel),
            data_version=version,
        )

    # a departure

    def _leave(self, live: LiveBroker, kind: EventKind, why: str, now_ms: int, peer: str) -> bool:
        """Let a broker go, and with the last one the group with its topics; False when it was in no route anyway."""
        del self._live[live.key]
        self._connections.release(live)
        group = self._groups.get(live.broker_name)
        holder = None if group is None else group.addrs.get(live.broker_id)
        if group is None or holder != live.broker_addr:
            self._emit(EventKind.FENCED, live, now_ms, f"{why}; {holder or 'another one'} took its place", peer=peer)
            return False
        was_min = group.min_id == live.broker_id
        self._remove_addr(group, live.broker_id)
        self._forget_digests(group)
        if not group.addrs:
            self._remove_group(group)
            self._emit(kind, live, now_ms, why, peer=peer, topics=group.queues)
            return True
        self._emit(kind, live, now_ms, why, peer=peer)
        if group.acting_master:
            if group.min_id != MASTER_ID:
                self._change_perms(group, lambda perm: perm & ~PERM_WRITE)
                self._emit_group(EventKind.WIPED, group, now_ms, "its master is gone", group.queues, peer)
            if was_min:
                self._tell_min_broker_id(group, offline_addr=live.broker_addr)
        return True


def _counts(group: Group, live: LiveBroker) -> bool:
    """Return whether topics of this broker count: a master's, or those of a 5.x group's first slave without master."""
    if live.broker_id == MASTER_ID:
        return True
    header = live.header
    return header is not None and header.enable_acting_master is not None and group.min_id == live.broker_id
