"""
Which broker serves which topic: the NameServer's tables, without sockets, files or clocks.

Java: RouteInfoManager
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import msgspec

from rmq.wire.api.common import DataVersion, TopicConfig
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import (
    BrokerData,
    BrokerIdentityHeader,
    ClusterInfo,
    QueueData,
    RegisterBrokerHeader,
    RegisterBrokerReply,
    TopicRouteData,
)

MASTER_ID = 0
PERM_WRITE, PERM_READ = 2, 4
SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB = 1, 2

#: A broker unheard of for longer than this is gone, unless it said another time when it registered.
BROKER_EXPIRY_MS = 120_000


@attrs.define(kw_only=True)
class LiveBroker:
    """
    One broker process, by the address it registered with.

    ``channel`` is the connection over which it last spoke for itself; when that one ends the broker is gone.
    Java: BrokerLiveInfo
    """

    broker_addr: str
    broker_name: str
    cluster_name: str
    data_version: DataVersion
    ha_server_addr: str
    channel: object
    expiry_ms: int
    last_update_ms: int


@attrs.define(kw_only=True)
class _Group:
    cluster: str
    addrs: dict[int, str] = attrs.field(factory=dict)


class RouteTable:
    """
    Brokers that are there, their topics, and what leads to them.

    A group (a broker name) is there while it has at least one address; its topics go when the last one goes.
    ``version`` grows with everything that can change the answer to a route look-up, and with nothing else.
    Times are epoch milliseconds.
    """

    def __init__(self, *, expiry_ms: int = BROKER_EXPIRY_MS) -> None:
        self.version = 0
        self._expiry_ms = expiry_ms
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # what brokers say

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, channel: object, now_ms: int
    ) -> RegisterBrokerReply:
        """
        Take in a broker, or what it says of itself now; return where a slave finds its live master.

        Only a master's topics count. With a new data version they replace what was known of them; with an unchanged one
        just those come in that the group lacks, so that neither a partial first registration nor changed permissions
        are lost. Topics that the body lacks stay.
        Java: RouteInfoManager#registerBroker
        """
        joined = self._join(header)
        topics = body.topic_config_serialize_wrapper
        known = self._live.get(header.broker_addr)
        if header.broker_id == MASTER_ID:
            fresh = joined or known is None or known.data_version != topics.data_version
            self._take_topics(header.broker_name, topics.topic_config_table, replacing=fresh)
        timeout_ms = header.heartbeat_timeout_millis
        self._live[header.broker_addr] = LiveBroker(
            broker_addr=header.broker_addr,
            broker_name=header.broker_name,
            cluster_name=header.cluster_name,
            data_version=topics.data_version,
            ha_server_addr=header.ha_server_addr,
            channel=channel,
            expiry_ms=timeout_ms if timeout_ms is not None and timeout_ms > 0 else self._expiry_ms,
            last_update_ms=now_ms,
        )
        if body.filter_server_list is not None:
            self._take_filter_servers(header.broker_addr, body.filter_server_list)
        return self._master_of(header)

    def unregister_broker(self, broker: BrokerIdentityHeader) -> None:
        """
        Let a broker go that says good-bye; another one that has its name and id by now stays.

        Java: RouteInfoManager#unregisterBroker
        """
        live = self._live.get(broker.broker_addr)
        if live is not None and live.broker_name == broker.broker_name:
            self._drop([live])
            return
        for name, broker_id in self._places_of(broker.broker_addr):
            if name == broker.broker_name:
                self._remove_address(name, broker_id)

    def query_data_version(
        self, broker_addr: str, version: DataVersion, *, channel: object, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """
        Return whether ``version`` is news, and the version that is known (None: the broker is unknown).

        For brokers that register only after changes this is the sign of life.
        Java: RouteInfoManager#isBrokerTopicConfigChanged, #queryBrokerTopicConfig, #updateBrokerInfoUpdateTimestamp
        """
        self.heartbeat(broker_addr, channel=channel, now_ms=now_ms)
        known = self._live.get(broker_addr)
        return (True, None) if known is None else (known.data_version != version, known.data_version)

    def heartbeat(self, broker_addr: str, *, channel: object, now_ms: int) -> bool:
        """Note that a broker lives, and over which connection; False when it is unknown."""
        known = self._live.get(broker_addr)
        if known is None:
            return False
        known.last_update_ms = now_ms
        known.channel = channel
        return True

    # what becomes of them

    def channel_closed(self, channel: object) -> list[LiveBroker]:
        """
        Let the brokers go that last spoke over ``channel``; return them.

        One that has registered anew over another connection stays.
        Java: RouteInfoManager#onChannelDestroy
        """
        return self._drop(live for live in self._live.values() if live.channel is channel)

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """
        Let the brokers go that were silent for too long; return them, so that their connections can be closed.

        Java: RouteInfoManager#scanNotActiveBroker
        """
        return self._drop(live for live in self._live.values() if live.last_update_ms + live.expiry_ms < now_ms)

    # what admins want

    def wipe_write_perm(self, broker_name: str) -> int:
        """
        Take the write permission from all topics of a group, until it registers a change; return their number.

        Java: RouteInfoManager#wipeWritePermOfBrokerByLock
        """
        return self._change_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """
        Make all topics of a group readable and writable, nothing more; return their number.

        Java: RouteInfoManager#addWritePermOfBrokerByLock
        """
        return self._change_perms(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """
        Forget a topic, or its queues on the groups of one cluster.

        Java: RouteInfoManager#deleteTopic
        """
        queues = self._queues.get(topic)
        if queues is None:
            return
        gone = list(queues) if cluster is None else [name for name in queues if self._cluster_of(name) == cluster]
        self._remove_queues(topic, gone)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """
        Add queues to a topic by hand; False, and nothing happens, when one names an unknown group or there is none.

        Java: RouteInfoManager#registerTopic of 5.x
        """
        given = {queue.broker_name: queue for queue in queues}
        if not given or any(name not in self._groups for name in given):
            return False
        self._queues.setdefault(topic, {}).update(given)
        self.version += 1
        return True

    # questions

    def pick_route(self, topic: str) -> TopicRouteData | None:
        """
        Return where a topic lives, sorted by broker name; None unless one of its groups is there.

        Java: RouteInfoManager#pickupTopicRouteData
        """
        queues = self._queues.get(topic)
        if queues is None:
            return None
        names = sorted(queues)
        brokers = [self._broker_data(name) for name in names if name in self._groups]
        if not brokers:
            return None
        addrs = {addr for broker in brokers for addr in broker.broker_addrs.values()}
        return TopicRouteData(
            broker_datas=brokers,
            filter_server_table={
                addr: list(self._filter_servers[addr]) for addr in addrs & self._filter_servers.keys()
            },
            queue_datas=[queues[name] for name in names],
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all groups, and their names by cluster.  Java: RouteInfoManager#getAllClusterInfo"""
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._groups},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def group(self, broker_name: str) -> BrokerData | None:
        """Return the addresses of a group; None when it is unknown."""
        return self._broker_data(broker_name) if broker_name in self._groups else None

    def live_brokers(self) -> list[LiveBroker]:
        """Return all brokers that are there, by address."""
        return [self._live[addr] for addr in sorted(self._live)]

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that a cluster has queues of, sorted; none when it is unknown."""
        names = self._clusters.get(cluster, set())
        return sorted(topic for topic, queues in self._queues.items() if not names.isdisjoint(queues))

    def system_topics(self) -> tuple[list[str], str | None]:
        """
        Return the topics that are named after clusters and groups, and the address of some broker.

        Java: RouteInfoManager#getSystemTopicList
        """
        addrs = [addr for name in sorted(self._groups) for _, addr in sorted(self._groups[name].addrs.items())]
        return sorted(self._clusters.keys() | self._groups.keys()), addrs[0] if addrs else None

    def topics_by_flag(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """
        Return the topics whose flags have all bits of ``wanted`` and none of ``unwanted`` on their first group.

        Java: RouteInfoManager#getUnitTopics, #getHasUnitSubTopicList, #getHasUnitSubUnUnitTopicList
        """
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if (next(iter(queues.values())).topic_sys_flag & (wanted | unwanted)) == wanted
        )

    # inside

    def _join(self, header: RegisterBrokerHeader) -> bool:
        """Give the broker its place in cluster and group; True when nobody had that place before."""
        names = self._clusters.setdefault(header.cluster_name, set())
        names.add(header.broker_name)
        group = self._groups.get(header.broker_name)
        if group is None:
            group = self._groups[header.broker_name] = _Group(cluster=header.cluster_name)
        before = group.addrs.get(header.broker_id)
        # The same process under another id: a slave has become the master, or the other way round.
        former = [id_ for id_, addr in group.addrs.items() if addr == header.broker_addr and id_ != header.broker_id]
        for broker_id in former:
            del group.addrs[broker_id]
        group.addrs[header.broker_id] = header.broker_addr
        if former or before != header.broker_addr:
            self.version += 1
        return before is None

    def _take_topics(self, broker_name: str, topics: Mapping[str, TopicConfig], *, replacing: bool) -> None:
        for topic, config in topics.items():
            queues = self._queues.setdefault(topic, {})
            before = queues.get(broker_name)
            if before is not None and not replacing:
                continue
            queue = QueueData(
                broker_name=broker_name,
                perm=config.perm,
                read_queue_nums=config.read_queue_nums,
                topic_sys_flag=config.topic_sys_flag,
                write_queue_nums=config.write_queue_nums,
            )
            if before != queue:
                queues[broker_name] = queue
                self.version += 1

    def _take_filter_servers(self, broker_addr: str, servers: list[str]) -> None:
        if servers == self._filter_servers.get(broker_addr, []):
            return
        if servers:
            self._filter_servers[broker_addr] = servers
        else:
            del self._filter_servers[broker_addr]
        self.version += 1

    def _master_of(self, header: RegisterBrokerHeader) -> RegisterBrokerReply:
        if header.broker_id != MASTER_ID:
            addr = self._groups[header.broker_name].addrs.get(MASTER_ID)
            master = None if addr is None else self._live.get(addr)
            if master is not None:
                return RegisterBrokerReply(ha_server_addr=master.ha_server_addr, master_addr=master.broker_addr)
        return RegisterBrokerReply()

    def _drop(self, brokers: Iterable[LiveBroker]) -> list[LiveBroker]:
        gone = list(brokers)
        for live in gone:
            self._forget_live(live.broker_addr)
            for name, broker_id in self._places_of(live.broker_addr):
                self._remove_address(name, broker_id)
        return gone

    def _places_of(self, broker_addr: str) -> list[tuple[str, int]]:
        return [
            (name, broker_id)
            for name, group in self._groups.items()
            for broker_id, addr in group.addrs.items()
            if addr == broker_addr
        ]

    def _forget_live(self, broker_addr: str) -> None:
        self._live.pop(broker_addr, None)
        if self._filter_servers.pop(broker_addr, None) is not None:
            self.version += 1

    def _remove_address(self, broker_name: str, broker_id: int) -> None:
        """Remove one address of a group, and with the last one the group with all that names it."""
        group = self._groups[broker_name]
        del group.addrs[broker_id]
        self.version += 1
        if group.addrs:
            return
        del self._groups[broker_name]
        for cluster in [cluster for cluster, names in self._clusters.items() if broker_name in names]:
            self._clusters[cluster].discard(broker_name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in [topic for topic, queues in self._queues.items() if broker_name in queues]:
            self._remove_queues(topic, [broker_name])

    def _remove_queues(self, topic: str, broker_names: list[str]) -> None:
        queues = self._queues[topic]
        for name in broker_names:
            del queues[name]
        if not queues:
            del self._queues[topic]
        if broker_names:
            self.version += 1

    def _change_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._queues.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = msgspec.structs.replace(queue, perm=change(queue.perm))
                count += 1
        if count:
            self.version += 1
        return count

    def _cluster_of(self, broker_name: str) -> str | None:
        group = self._groups.get(broker_name)
        return None if group is None else group.cluster

    def _broker_data(self, broker_name: str) -> BrokerData:
        group = self._groups[broker_name]
        return BrokerData(
            broker_addrs=dict(sorted(group.addrs.items())), broker_name=broker_name, cluster=group.cluster
        )
