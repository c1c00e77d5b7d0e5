"""
Which broker serves which topic: the NameServer's tables, without sockets, files or clocks.

Java: RouteInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from rmq.namesrv.journal.events import EventKind, RouteEvent
from rmq.namesrv.journal.reasons import Cause, Why, because
from rmq.namesrv.live import Connections, Key, LiveBroker, peer_of
from rmq.namesrv.topology import Group, Topology
from rmq.runtime.clock import Moment
from rmq.wire.api.common import MASTER_ID, PERM_READ, PERM_WRITE, DataVersion, TopicConfigWrapper
from rmq.wire.api.register_body import BodyDigest, RegisterBrokerBody
from rmq.wire.api.routes import BrokerIdentityHeader, QueueData, RegisterBrokerHeader, RegisterBrokerReply

#: A broker that is silent for longer expires, unless it registered with another time.
BROKER_EXPIRY_MS = 120_000


@attrs.frozen(kw_only=True)
class RoutePolicy:
    """
    What configuration decides about routes.

    Java: NamesrvConfig#isSupportActingMaster, #isDeleteTopicWithBrokerRegistration
    """

    support_acting_master: bool = False
    delete_absent_topics: bool = False


@attrs.frozen(kw_only=True)
class MinBrokerIdChange:
    """
    A group has another smallest broker id, because a broker registered or ``offline_addr`` left.

    Java: NotifyMinBrokerIdChangeRequestHeader
    """

    broker_name: str
    addrs: Mapping[int, str]
    offline_addr: str | None = None
    ha_addr: str | None = None


class RouteTable:
    """
    Changes the routes as brokers, admins and time demand; ``topology`` answers look-ups.

    A group (a broker name) exists while it has an address, and its topics with it. An address stays in its group while
    the broker that registered it lives: once the broker has registered over a newer connection, requests over an older
    one and the end of an older one are ignored.

    Each change takes ``at``, its moment on both clocks. ``on_event`` is called with each event while the change is
    made, ``on_min_broker_id`` when a group has another smallest broker id.
    """

    def __init__(
        self,
        *,
        expiry_ms: int = BROKER_EXPIRY_MS,
        on_event: Callable[[RouteEvent], object] | None = None,
        on_min_broker_id: Callable[[MinBrokerIdChange], object] | None = None,
    ) -> None:
        self.topology = Topology()
        self.on_event = on_event
        self.on_min_broker_id = on_min_broker_id
        self._live: dict[Key, LiveBroker] = {}
        self._connections = Connections()
        self._generation = 0
        self._policy = RoutePolicy()
        self._expiry_ms = expiry_ms

    @property
    def policy(self) -> RoutePolicy:
        """What configuration decides; may be set at any time."""
        return self._policy

    @policy.setter
    def policy(self, policy: RoutePolicy) -> None:
        if policy != self._policy:
            self._policy = policy
            self.topology.support_acting_master = policy.support_acting_master
            self.topology.touch()
            for live in self._live.values():
                live.digest = None

    def live_brokers(self) -> list[LiveBroker]:
        """Return all registered brokers, by address."""
        return sorted(self._live.values(), key=lambda live: (live.broker_addr, live.broker_name))

    # requests of brokers

    def register_broker(
        self,
        header: RegisterBrokerHeader,
        body: RegisterBrokerBody,
        *,
        channel: object,
        at: Moment,
        zone_name: str | None = None,
        digest: BodyDigest | None = None,
    ) -> RegisterBrokerReply:
        """
        Add a broker or its changes; return where a slave finds its live master.

        Only topics of a master count, or of a 5.x group's first slave while there is no master. With a new data version
        they replace those of the group; with an unchanged one only the missing ones are added, so that neither a
        partial first registration nor changed permissions are lost. Topics that the body lacks stay, unless the policy
        says otherwise. Of two addresses with the same name and id the later registration wins; with 5.x's state
        versions the higher one.

        ``digest`` is that of the raw body, for :meth:`renew`.
        Java: RouteInfoManager#registerBroker
        """
        version = body.topic_config_serialize_wrapper.data_version
        known = self._live.get((header.broker_name, header.broker_addr))
        if known is not None and self._connections.is_older(channel, known.channel):
            cause = because(Why.STALE_REGISTRATION, current=known.peer)
            self._emit(EventKind.FENCED, known, at, cause, peer=peer_of(channel))
            return self._master_of(known)
        rival = self._holder(header.broker_name, header.broker_id)
        if rival is known:
            rival = None
        if rival is not None and (rival.data_version.state_version or 0) > (version.state_version or 0):
            self._outrank(header, version, rival, known, channel, at)
            return RegisterBrokerReply()

        live = known
        if live is None:
            live = self._new(header, version, channel, at)
            self._live[live.key] = live
            self._connections.hold(live)
        self._hear(live, channel, at)
        group = self.topology.join(header.broker_name, header.cluster_name)
        causes = _changes(live, header)
        has_place = group.addrs.get(header.broker_id) == live.broker_addr
        if rival is not None:
            causes.append(because(Why.TOOK_PLACE, addr=rival.broker_addr))
        elif known is not None and not has_place and live.broker_id == header.broker_id:
            causes.append(because(Why.PLACE_AGAIN))
        replacing = not has_place or live.data_version != version
        self._describe(live, header, version)
        if not has_place:
            self._take_place(group, live, rival, at)
        live.zone_name = zone_name
        self.topology.set_zone(group, zone_name, acting_master=header.enable_acting_master is True)
        topics: Collection[str] = ()
        if _counts(group, live):
            topics = self._take_topics(group, live, body.topic_config_serialize_wrapper, at, replacing=replacing)
        servers = body.filter_server_list
        if servers is not None and self.topology.set_filter_servers(group, live.broker_addr, servers):
            causes.append(because(Why.FILTER_SERVERS_CHANGED))
        live.digest = digest
        if known is None:
            self._emit(EventKind.REGISTERED, live, at, *(causes or [because(Why.NEW)]), topics=topics)
        elif topics or causes:
            if topics:
                causes.append(because(Why.TOPICS_CHANGED, count=len(topics)))
            self._emit(EventKind.CHANGED, live, at, *causes, topics=topics)
        return self._master_of(live)

    def renew(
        self,
        header: RegisterBrokerHeader,
        digest: BodyDigest,
        *,
        channel: object,
        at: Moment,
        zone_name: str | None = None,
    ) -> RegisterBrokerReply | None:
        """
        Take a registration that equals the broker's last one as a sign of life; None when it may change something.

        ``digest`` is that of the raw body, which need not be decoded. The reply is that of :meth:`register_broker`.
        """
        live = self._live.get((header.broker_name, header.broker_addr))
        if live is None or live.digest != digest or live.header != header or live.zone_name != zone_name:
            return None
        if self._connections.is_older(channel, live.channel):
            return None
        self._hear(live, channel, at)
        group = self.topology.groups[live.broker_name]
        self.topology.set_zone(group, zone_name, acting_master=header.enable_acting_master is True)
        return self._master_of(live)

    def unregister_broker(self, broker: BrokerIdentityHeader, *, channel: object, at: Moment) -> bool:
        """
        Remove a broker that unregisters over ``channel``; return whether it was removed.

        It stays when it has registered since, over a newer connection or with another id; so does another broker that
        has its name and id now.
        Java: RouteInfoManager#unregisterBroker, which does not check this
        """
        live = self._live.get((broker.broker_name, broker.broker_addr))
        if live is None:
            return False
        if self._connections.is_older(channel, live.channel):
            cause = because(Why.STALE_UNREGISTER, current=live.peer)
        elif broker.broker_id != live.broker_id:
            cause = because(Why.OTHER_ID, id=broker.broker_id, current=live.broker_id)
        else:
            self._leave(live, EventKind.UNREGISTERED, because(Why.UNREGISTERED), at, peer_of(channel))
            return True
        self._emit(EventKind.FENCED, live, at, cause, peer=peer_of(channel))
        return False

    def query_data_version(
        self, broker_name: str, broker_addr: str, version: DataVersion, *, channel: object, at: Moment
    ) -> tuple[bool, DataVersion | None]:
        """
        Return whether the broker must register, and its known version (None: the broker is unknown).

        For brokers that register only after changes this is the sign of life.
        Java: RouteInfoManager#isBrokerTopicConfigChanged, #queryBrokerTopicConfig, #updateBrokerInfoUpdateTimestamp
        """
        self.heartbeat(broker_name, broker_addr, channel=channel, at=at)
        known = self._live.get((broker_name, broker_addr))
        if known is None:
            return True, None
        # A broker that was replaced by one that has left since must register again to get its place back.
        vacant = self._holder(broker_name, known.broker_id) is None
        return vacant or known.data_version != version, known.data_version

    def heartbeat(self, broker_name: str, broker_addr: str, *, channel: object, at: Moment) -> bool:
        """
        Note a sign of life of a broker; False when the broker is unknown.

        Over a newer connection than that of its registration: the broker moves there when its own connection closes.
        Over an older one it does not count.
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
        live.last_update_ms, live.heard_ms = at
        return True

    # departures

    def channel_closed(self, channel: object, at: Moment, reason: str) -> list[LiveBroker]:
        """
        Remove the brokers that are bound to ``channel``; return those that were in routes.

        Brokers that have registered over a newer connection stay, and those that have sent a heartbeat over one.
        Java: RouteInfoManager#onChannelDestroy
        """
        held, lost = self._connections.closed(channel)
        peer = peer_of(channel)
        cause = because(Why.CONNECTION_CLOSED, closed=peer, reason=reason)
        gone = []
        for live in held:
            if live.heir is not None:
                self._reconnect(live, live.heir, at, cause)
            elif self._leave(live, EventKind.CLOSED, cause, at, peer):
                gone.append(live)
        for key in lost:
            other = self._live.get(key)
            if other is not None:
                newer = because(Why.NEWER_CONNECTION, current=other.peer)
                self._emit(EventKind.FENCED, other, at, cause, newer, peer=peer)
        return gone

    def expire(self, at: Moment, at_most: int | None = None) -> list[LiveBroker]:
        """
        Remove silent brokers, ``at_most`` so many; return them, so that their connections can be closed.

        Java: RouteInfoManager#scanNotActiveBroker
        """
        silent = [live for live in self._live.values() if live.heard_ms + live.expiry_ms < at.steady_ms][:at_most]
        for live in silent:
            cause = because(Why.SILENT, silent_ms=at.steady_ms - live.heard_ms)
            self._leave(live, EventKind.EXPIRED, cause, at, live.peer)
        return silent

    def is_bound(self, channel: object) -> bool:
        """Return whether a broker is bound to ``channel``."""
        return self._connections.is_bound(channel)

    # requests of admins, whose ``peer`` goes into the event

    def wipe_write_perm(self, broker_name: str, *, peer: str, at: Moment) -> int:
        """
        Remove the write permission of all topics of a group, until it registers a change; return their number.

        Java: RouteInfoManager#wipeWritePermOfBrokerByLock
        """
        group = self.topology.groups.get(broker_name)
        return 0 if group is None else self._wipe(group, Why.WIPE_WRITE_PERM, peer, at)

    def add_write_perm(self, broker_name: str, *, peer: str, at: Moment) -> int:
        """
        Make all topics of a group readable and writable, nothing more; return their number.

        Java: RouteInfoManager#addWritePermOfBrokerByLock
        """
        group = self.topology.groups.get(broker_name)
        if group is None:
            return 0
        count = self.topology.change_perms(group, lambda _: PERM_READ | PERM_WRITE)
        self._emit_group(EventKind.WRITE_ADDED, group, at, because(Why.ADD_WRITE_PERM), group.queues, peer)
        return count

    def delete_topic(self, topic: str, cluster: str | None = None, *, peer: str, at: Moment) -> None:
        """
        Remove a topic, or its queues on the groups of one cluster. The next changed registration brings it back.

        Java: RouteInfoManager#deleteTopic
        """
        cause = because(Why.DELETE_TOPIC_IN_CLUSTER, cluster=cluster) if cluster else because(Why.DELETE_TOPIC)
        for group in self.topology.groups_of(topic, cluster):
            self._remove_topics(group, [topic], cause, peer, at)

    def register_topic(self, topic: str, queues: Iterable[QueueData], *, peer: str, at: Moment) -> bool:
        """
        Add queues to a topic; False, and no change, when one names an unknown group or there are none.

        Java: RouteInfoManager#registerTopic of 5.x
        """
        given = {queue.broker_name: queue for queue in queues}
        groups = self.topology.groups
        if not given or any(name not in groups for name in given):
            return False
        for name, queue in given.items():
            self.topology.set_queue(groups[name], topic, queue)
            self._forget_digests(groups[name])
            cause = because(Why.REGISTER_TOPIC)
            self._emit_group(EventKind.TOPIC_REGISTERED, groups[name], at, cause, [topic], peer)
        self.topology.touch((topic,))
        return True

    # parts of a registration

    def _holder(self, broker_name: str, broker_id: int) -> LiveBroker | None:
        """Return the broker that has an id in a group."""
        group = self.topology.groups.get(broker_name)
        addr = None if group is None else group.addrs.get(broker_id)
        return None if addr is None else self._live[broker_name, addr]

    def _new(self, header: RegisterBrokerHeader, version: DataVersion, channel: object, at: Moment) -> LiveBroker:
        self._generation += 1
        return LiveBroker(
            broker_addr=header.broker_addr,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            cluster_name=header.cluster_name,
            data_version=version,
            ha_server_addr=header.ha_server_addr,
            channel=channel,
            generation=self._generation,
            expiry_ms=self._expiry_ms,
            header=header,
            last_update_ms=at.now_ms,
            heard_ms=at.steady_ms,
        )

    def _hear(self, live: LiveBroker, channel: object, at: Moment) -> None:
        if channel is not live.channel:
            self._reconnect(live, channel, at)
        live.last_update_ms, live.heard_ms = at

    def _reconnect(self, live: LiveBroker, channel: object, at: Moment, *causes: Cause) -> None:
        changed = because(Why.CONNECTION_CHANGED, before=live.peer, now=peer_of(channel))
        self._connections.move(live, channel)
        self._generation += 1
        live.generation = self._generation
        self._emit(EventKind.RECONNECTED, live, at, *causes, changed)

    def _describe(self, live: LiveBroker, header: RegisterBrokerHeader, version: DataVersion) -> None:
        """Keep what a registration says about the process."""
        live.broker_id = header.broker_id
        live.cluster_name = header.cluster_name
        live.ha_server_addr = header.ha_server_addr
        live.data_version = version
        timeout_ms = header.heartbeat_timeout_millis
        live.expiry_ms = timeout_ms if timeout_ms is not None and timeout_ms > 0 else self._expiry_ms
        live.header = header

    def _take_place(self, group: Group, live: LiveBroker, rival: LiveBroker | None, at: Moment) -> None:
        """Give the broker its id in the group, in place of ``rival``."""
        min_id = group.min_id
        self.topology.set_addr(group, live.broker_id, live.broker_addr)
        self._forget_digests(group)
        if rival is not None:
            rival.digest = None
            self._emit(EventKind.REPLACED, rival, at, because(Why.LOST_PLACE, addr=live.broker_addr), peer=live.peer)
        if min_id is not None and live.broker_id < min_id:
            self._notify_min_broker_id(group, ha_addr=live.ha_server_addr)

    def _take_topics(
        self, group: Group, live: LiveBroker, wrapper: TopicConfigWrapper, at: Moment, *, replacing: bool
    ) -> Collection[str]:
        """Return the topics whose queues changed."""
        table, mappings = wrapper.topic_config_table, wrapper.topic_queue_mapping_info_map
        if self._policy.delete_absent_topics and not mappings:  # as Apache: not with static topics
            absent = sorted(group.queues.keys() - table.keys())
            if absent:
                cause = because(Why.TOPICS_ABSENT, addr=live.broker_addr)
                self._remove_topics(group, absent, cause, live.peer, at)
        mask = ~PERM_WRITE if live.broker_id != MASTER_ID and group.acting_master else -1
        changed = self.topology.add_topics(group, table, mask=mask, replacing=replacing)
        return {*changed, *self.topology.set_mappings(group, mappings)} if mappings else changed

    def _remove_topics(self, group: Group, topics: list[str], cause: Cause, peer: str, at: Moment) -> None:
        for topic in topics:
            self.topology.remove_topic(group, topic)
        self._forget_digests(group)
        self._emit_group(EventKind.TOPIC_DELETED, group, at, cause, topics, peer)

    def _forget_digests(self, group: Group) -> None:
        """Have the next registrations decoded, because an unchanged one would change something now."""
        for addr in group.addrs.values():
            self._live[group.name, addr].digest = None

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
        at: Moment,
    ) -> None:
        """Refuse a broker the place of a ``rival`` with a higher state version; it loses any other place, too."""
        lower, higher = version.state_version or 0, rival.data_version.state_version
        cause = because(Why.LOWER_STATE_VERSION, version=lower, addr=rival.broker_addr, higher=higher)
        if known is not None:
            self._leave(known, EventKind.REPLACED, cause, at, peer_of(channel))
        self._emit(EventKind.FENCED, self._new(header, version, channel, at), at, cause)

    # the end of a broker

    def _leave(self, live: LiveBroker, kind: EventKind, cause: Cause, at: Moment, peer: str) -> bool:
        """Remove a broker, and with the last one its group; False when it was in no route."""
        del self._live[live.key]
        self._connections.release(live)
        topology = self.topology
        group = topology.groups.get(live.broker_name)
        holder = None if group is None else group.addrs.get(live.broker_id)
        if group is None or holder != live.broker_addr:
            lost = because(Why.HAD_LOST_PLACE, holder=holder or "another broker")
            self._emit(EventKind.FENCED, live, at, cause, lost, peer=peer)
            return False
        was_min = group.min_id == live.broker_id
        topology.remove_addr(group, live.broker_id)
        self._forget_digests(group)
        if not group.addrs:
            topology.remove_group(group)
            self._emit(kind, live, at, cause, peer=peer, topics=group.queues)
            return True
        self._emit(kind, live, at, cause, peer=peer)
        if group.acting_master:
            if group.min_id != MASTER_ID:
                self._wipe(group, Why.MASTER_GONE, peer, at)
            if was_min:
                self._notify_min_broker_id(group, offline_addr=live.broker_addr)
        return True

    def _wipe(self, group: Group, why: Why, peer: str, at: Moment) -> int:
        count = self.topology.change_perms(group, lambda perm: perm & ~PERM_WRITE)
        self._emit_group(EventKind.WIPED, group, at, because(why), group.queues, peer)
        return count

    # notifications

    def _notify_min_broker_id(
        self, group: Group, *, offline_addr: str | None = None, ha_addr: str | None = None
    ) -> None:
        if self.on_min_broker_id is not None:
            self.on_min_broker_id(
                MinBrokerIdChange(
                    broker_name=group.name, addrs=dict(group.addrs), offline_addr=offline_addr, ha_addr=ha_addr
                )
            )

    def _emit(
        self,
        kind: EventKind,
        live: LiveBroker,
        at: Moment,
        *causes: Cause,
        peer: str | None = None,
        topics: Collection[str] = (),
    ) -> None:
        """Emit an event of one broker process."""
        if self.on_event is not None:
            self.on_event(
                RouteEvent(
                    at_ms=at.now_ms,
                    kind=kind,
                    broker_name=live.broker_name,
                    broker_addr=live.broker_addr,
                    broker_id=live.broker_id,
                    cluster=live.cluster_name,
                    peer=live.peer if peer is None else peer,
                    data_version=live.data_version,
                    topics=topics,
                    causes=causes,
                )
            )

    def _emit_group(
        self, kind: EventKind, group: Group, at: Moment, cause: Cause, topics: Collection[str], peer: str
    ) -> None:
        """Emit an event of a whole group."""
        if self.on_event is not None:
            self.on_event(
                RouteEvent(
                    at_ms=at.now_ms,
                    kind=kind,
                    broker_name=group.name,
                    cluster=group.cluster,
                    peer=peer,
                    topics=topics,
                    causes=(cause,),
                )
            )


def _changes(live: LiveBroker, header: RegisterBrokerHeader) -> list[Cause]:
    """Return what a registration changes about the process."""
    causes = []
    if live.broker_id != header.broker_id:
        causes.append(because(Why.ID_CHANGED, before=live.broker_id, now=header.broker_id))
    if live.ha_server_addr != header.ha_server_addr:
        causes.append(because(Why.HA_ADDR_CHANGED, before=live.ha_server_addr, now=header.ha_server_addr))
    if live.cluster_name != header.cluster_name:
        causes.append(because(Why.CLUSTER_CHANGED, before=live.cluster_name, now=header.cluster_name))
    return causes


def _counts(group: Group, live: LiveBroker) -> bool:
    """Return whether topics of this broker count: a master's, or those of a 5.x group's first slave without master."""
    is_five_x = live.header.enable_acting_master is not None
    return live.broker_id == MASTER_ID or (is_five_x and group.min_id == live.broker_id)
