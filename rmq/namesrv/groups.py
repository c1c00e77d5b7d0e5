"""
Groups of brokers, their topics and clusters: what a route look-up and the lists are answered from.

Java: the tables of RouteInfoManager but brokerLiveTable
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection

import attrs
import msgspec

from rmq.wire.api.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData

MASTER_ID = 0
PERM_WRITE, PERM_READ = 2, 4

#: Through the routes of these topics brokers find the members of their own group: they are told the truth.
SYNC_BROKER_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@attrs.define(kw_only=True, eq=False, repr=False)
class Group:
    """
    The brokers of one name: addresses by id, and the queues of their topics.

    ``clusters`` are all that it was registered in, ``cluster`` the first one. ``acting_master`` (5.x): its slaves may
    stand in for a master that is gone. QueueData are shared between topics and never changed.
    Java: BrokerData
    """

    name: str
    cluster: str
    addrs: dict[int, str] = attrs.field(factory=dict)
    queues: dict[str, QueueData] = attrs.field(factory=dict)
    filter_servers: dict[str, list[str]] = attrs.field(factory=dict)
    clusters: set[str] = attrs.field(factory=set)
    acting_master: bool = False
    zone_name: str | None = None

    @property
    def min_id(self) -> int | None:
        """The smallest broker id that is there."""
        return min(self.addrs) if self.addrs else None

    def data(self) -> BrokerData:
        """Return it as routes and lists show it."""
        return BrokerData(broker_addrs=dict(sorted(self.addrs.items())), broker_name=self.name, cluster=self.cluster)


class Topic:
    """
    A topic and the names of the groups that have queues of it, in the order in which they came.

    Ten thousand topics of three hundred brokers are three million pairs. ``name`` is the one string that all groups
    use as their key, where each broker would bring its own; and as neither the names here nor the QueueData of groups
    are objects that the garbage collector looks into, a full collection of these takes 15 ms, not 55.
    """

    __slots__ = ("groups", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: dict[str, None] = {}


#: changes that are remembered for who keeps routes, and topics of one that are told apart; more are as good as all
MAX_CHANGES, MAX_CHANGED = 128, 512


class GroupTable:
    """
    Groups, topics and clusters, each of which is there as long as something is in it.

    ``version`` grows with everything that can change the answer to a route look-up, and with nothing else.
    """

    def __init__(self) -> None:
        self.version = 0
        self._changes: deque[tuple[str, ...] | None] = deque(maxlen=MAX_CHANGES)
        self.support_acting_master = False
        self._topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._clusters: dict[str, set[str]] = {}

    def changed_since(self, version: int) -> set[str] | None:
        """Return the topics whose routes may have changed since the table had that version, None when it may be any."""
        behind = self.version - version
        if behind > len(self._changes):
            return None
        changed: set[str] = set()
        for topics in itertools.islice(reversed(self._changes), behind):
            if topics is None:
                return None
            changed.update(topics)
        return changed

    def _touch(self, topics: Collection[str] | None = None) -> None:
        """Count a change of the routes of these topics, or of any."""
        self.version += 1
        self._changes.append(None if topics is None or len(topics) > MAX_CHANGED else tuple(topics))

    # questions

    def pick_route(self, topic: str, *, zone_name: str | None = None) -> TopicRouteData | None:
        """
        Return where a topic lives, sorted by broker name; None when nobody serves it.

        With ``zone_name`` groups of other zones are left out, unless they have no master.
        Java: RouteInfoManager#pickupTopicRouteData; ZoneRouteRPCHook#filterByZoneName
        """
        entry = self._topics.get(topic)
        if entry is None:
            return None
        groups = [self._groups[name] for name in sorted(entry.groups)]
        if zone_name is not None:
            groups = [group for group in groups if _in_zone(group, zone_name)]
        brokers = [group.data() for group in groups]
        if self.support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX):
            for group, broker in zip(groups, brokers, strict=True):
                if group.acting_master and group.min_id and not group.queues[topic].perm & PERM_WRITE:
                    broker.broker_addrs = {MASTER_ID: broker.broker_addrs.pop(group.min_id), **broker.broker_addrs}
        return TopicRouteData(
            broker_datas=brokers,
            filter_server_table={
                addr: list(servers) for group in groups for addr, servers in group.filter_servers.items()
            },
            queue_datas=[group.queues[topic] for group in groups],
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all groups, and their names by cluster.  Java: RouteInfoManager#getAllClusterInfo"""
        return ClusterInfo(
            broker_addr_table={name: group.data() for name, group in self._groups.items()},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def group(self, broker_name: str) -> BrokerData | None:
        """Return the addresses of a group; None when it is unknown."""
        group = self._groups.get(broker_name)
        return None if group is None else group.data()

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._topics)

    def topic_count(self, broker_name: str) -> int:
        """Return how many topics a group serves; 0 when it is unknown."""
        group = self._groups.get(broker_name)
        return 0 if group is None else len(group.queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that a cluster has queues of, sorted; none when it is unknown."""
        found: set[str] = set()
        for name in self._clusters.get(cluster, ()):
            found.update(self._groups[name].queues)
        return sorted(found)

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
            name
            for name, entry in self._topics.items()
            if (self._groups[next(iter(entry.groups))].queues[name].topic_sys_flag & (wanted | unwanted)) == wanted
        )

    # changes

    def _group_of(self, name: str, cluster: str) -> Group:
        """Return a group, made if need be, as a member of ``cluster``."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name=name, cluster=cluster)
        if cluster not in group.clusters:
            self._clusters.setdefault(cluster, set()).add(name)
            group.clusters.add(cluster)
        return group

    def _set_queue(self, group: Group, topic: str, queue: QueueData) -> None:
        if topic in group.queues:
            group.queues[topic] = queue
            return
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = Topic(topic)
        entry.groups[group.name] = None
        group.queues[entry.name] = queue

    def _remove_group(self, group: Group) -> None:
        del self._groups[group.name]
        self._touch()
        for cluster in group.clusters:
            self._clusters[cluster].discard(group.name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in group.queues:
            self._leave_topic(group, self._topics[topic])

    def _remove_addr(self, group: Group, broker_id: int) -> None:
        group.filter_servers.pop(group.addrs.pop(broker_id), None)
        self._touch()

    def _set_filter_servers(self, group: Group, addr: str, servers: list[str]) -> bool:
        """Let a broker have these filter servers; False when it has them already."""
        if servers == group.filter_servers.get(addr, []):
            return False
        if servers:
            group.filter_servers[addr] = servers
        else:
            del group.filter_servers[addr]
        self._touch()
        return True

    def _remove_topic(self, group: Group, entry: Topic) -> None:
        del group.queues[entry.name]
        self._leave_topic(group, entry)
        self._touch((entry.name,))

    def _leave_topic(self, group: Group, entry: Topic) -> None:
        del entry.groups[group.name]
        if not entry.groups:
            del self._topics[entry.name]

    def _change_perms(self, group: Group, change: Callable[[int], int]) -> int:
        changed: dict[int, QueueData] = {}
        queues = group.queues
        for topic, queue in queues.items():
            other = changed.get(id(queue))
            if other is None:
                other = changed[id(queue)] = msgspec.structs.replace(queue, perm=change(queue.perm))
            queues[topic] = other
        if queues:
            self._touch()
        return len(queues)


def _in_zone(group: Group, zone_name: str) -> bool:
    own = group.zone_name
    return MASTER_ID not in group.addrs or (own is not None and own.lower() == zone_name.lower())
