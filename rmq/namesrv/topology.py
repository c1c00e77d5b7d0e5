"""
Groups of brokers, their topics and clusters: route look-ups and lists are answered from these.

Java: the tables of RouteInfoManager but brokerLiveTable
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping

import attrs
import msgspec

from rmq.wire.api.common import MASTER_ID, PERM_WRITE, TopicConfig, TopicQueueMappingInfo
from rmq.wire.api.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData

#: In the routes of these topics brokers look up the members of their own group: no slave is shown as the master there.
SYNC_BROKER_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


@attrs.define(kw_only=True, eq=False, repr=False)
class Group:
    """
    The brokers of one name: addresses by id, and the queues of their topics.

    ``clusters`` are all that it was registered in, ``cluster`` the first one. ``acting_master`` (5.x): a slave may act
    as master when the master is gone. QueueData are shared between topics and never changed. ``mappings`` are its parts
    of static topics (5.x), which only 5.x clients understand.
    Java: BrokerData
    """

    name: str
    cluster: str
    addrs: dict[int, str] = attrs.field(factory=dict)
    queues: dict[str, QueueData] = attrs.field(factory=dict)
    mappings: dict[str, TopicQueueMappingInfo] = attrs.field(factory=dict)
    filter_servers: dict[str, list[str]] = attrs.field(factory=dict)
    clusters: set[str] = attrs.field(factory=set)
    acting_master: bool = False
    zone_name: str | None = None

    @property
    def min_id(self) -> int | None:
        """The smallest broker id; None in an empty group."""
        return min(self.addrs) if self.addrs else None

    def data(self) -> BrokerData:
        """Return the group as routes and lists show it."""
        return BrokerData(
            broker_addrs=dict(sorted(self.addrs.items())),
            broker_name=self.name,
            cluster=self.cluster,
            enable_acting_master=self.acting_master,
        )


class Topic:
    """
    A topic and the names of the groups that have queues of it, in the order in which they came.

    Ten thousand topics of three hundred brokers are three million pairs. All groups use the one string ``name`` as
    their key instead of the one that each broker sent. The garbage collector tracks neither the names here nor the
    QueueData of groups: a full collection of these takes 15 ms, not 55.
    """

    __slots__ = ("groups", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: dict[str, None] = {}


#: Invalidation history for route caches: changes, and topics of one change. Beyond it everything is invalidated.
MAX_CHANGES, MAX_CHANGED = 128, 512


class Topology:
    """
    Groups, topics and clusters; each exists as long as something is in it.

    ``version`` grows with each change that can change the answer to a route look-up, and with no other.
    """

    def __init__(self) -> None:
        self.version = 0
        self._changes: deque[tuple[str, ...] | None] = deque(maxlen=MAX_CHANGES)
        self.support_acting_master = False
        self._topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self._clusters: dict[str, set[str]] = {}

    def changed_since(self, version: int) -> set[str] | None:
        """Return the topics whose routes may have changed since ``version``; None when any may have."""
        behind = self.version - version
        if behind > len(self._changes):
            return None
        changed: set[str] = set()
        for topics in itertools.islice(reversed(self._changes), behind):
            if topics is None:
                return None
            changed.update(topics)
        return changed

    def touch(self, topics: Collection[str] | None = None) -> None:
        """Count a change of the routes of these topics, or of any (None)."""
        self.version += 1
        self._changes.append(None if topics is None or len(topics) > MAX_CHANGED else tuple(topics))

    # look-ups and lists

    def pick_route(self, topic: str, *, zone_name: str | None = None) -> TopicRouteData | None:
        """
        Return the route of a topic, sorted by broker name; None when no group has the topic.

        With ``zone_name`` groups of other zones are left out, unless they have no master.
        Java: RouteInfoManager#pickupTopicRouteData; ZoneRouteRPCHook#filterByZoneName
        """
        entry = self._topics.get(topic)
        if entry is None:
            return None
        groups = [self.groups[name] for name in sorted(entry.groups)]
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
            topic_queue_mapping_by_broker={
                group.name: group.mappings[topic] for group in groups if topic in group.mappings
            }
            or None,
        )

    def cluster_info(self) -> ClusterInfo:
        """Return all groups, and their names by cluster.  Java: RouteInfoManager#getAllClusterInfo"""
        return ClusterInfo(
            broker_addr_table={name: group.data() for name, group in self.groups.items()},
            cluster_addr_table={cluster: sorted(names) for cluster, names in self._clusters.items()},
        )

    def group(self, broker_name: str) -> BrokerData | None:
        """Return the addresses of a group; None when it is unknown."""
        group = self.groups.get(broker_name)
        return None if group is None else group.data()

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic has a route."""
        return topic in self._topics

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted(self._topics)

    def topic_count(self, broker_name: str) -> int:
        """Return how many topics a group serves; 0 when it is unknown."""
        group = self.groups.get(broker_name)
        return 0 if group is None else len(group.queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that a cluster has queues of, sorted; none when it is unknown."""
        found: set[str] = set()
        for name in self._clusters.get(cluster, ()):
            found.update(self.groups[name].queues)
        return sorted(found)

    def system_topics(self) -> tuple[list[str], str | None]:
        """
        Return the topics that are named after clusters and groups, and the address of one broker.

        Java: RouteInfoManager#getSystemTopicList
        """
        addrs = [addr for name in sorted(self.groups) for _, addr in sorted(self.groups[name].addrs.items())]
        return sorted(self._clusters.keys() | self.groups.keys()), addrs[0] if addrs else None

    def topics_by_flag(self, *, wanted: int, unwanted: int = 0) -> list[str]:
        """
        Return the topics whose flags have all bits of ``wanted`` and none of ``unwanted`` on their first group.

        Java: RouteInfoManager#getUnitTopics, #getHasUnitSubTopicList, #getHasUnitSubUnUnitTopicList
        """
        return sorted(
            name
            for name, entry in self._topics.items()
            if (self.groups[next(iter(entry.groups))].queues[name].topic_sys_flag & (wanted | unwanted)) == wanted
        )

    # changes: groups

    def join(self, name: str, cluster: str) -> Group:
        """Return the group of that name, made if it is new, as a member of ``cluster``."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(name=name, cluster=cluster)
        if cluster not in group.clusters:
            self._clusters.setdefault(cluster, set()).add(name)
            group.clusters.add(cluster)
        return group

    def set_addr(self, group: Group, broker_id: int, addr: str) -> None:
        """Give a broker id to ``addr``, which loses its other id, in place of the address that had it."""
        for other_id in [id_ for id_, other in group.addrs.items() if other == addr or id_ == broker_id]:
            self.remove_addr(group, other_id)
        group.addrs[broker_id] = addr
        self.touch()

    def remove_addr(self, group: Group, broker_id: int) -> None:
        """Remove a broker's address and filter servers from its group."""
        group.filter_servers.pop(group.addrs.pop(broker_id), None)
        self.touch()

    def remove_group(self, group: Group) -> None:
        """Remove a group from its clusters and topics."""
        del self.groups[group.name]
        self.touch()
        for cluster in group.clusters:
            self._clusters[cluster].discard(group.name)
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        for topic in group.queues:
            self._leave_topic(group, self._topics[topic])

    def set_filter_servers(self, group: Group, addr: str, servers: list[str]) -> bool:
        """Set the filter servers of a broker; False when nothing changes."""
        if servers == group.filter_servers.get(addr, []):
            return False
        if servers:
            group.filter_servers[addr] = servers
        else:
            del group.filter_servers[addr]
        self.touch()
        return True

    def set_zone(self, group: Group, zone_name: str | None, *, acting_master: bool) -> None:
        """Set the zone of a group, and whether its slaves act as master."""
        if (group.zone_name, group.acting_master) != (zone_name, acting_master):
            group.zone_name, group.acting_master = zone_name, acting_master
            self.touch()

    # changes: topics

    def add_topics(
        self, group: Group, table: Mapping[str, TopicConfig], *, mask: int, replacing: bool
    ) -> Collection[str]:
        """
        Set the queues of the topics that the group lacks, or of all when ``replacing``; return those that changed.

        ``mask`` is applied to their permissions.
        """
        changed: list[str] = []
        queues = group.queues
        if not replacing and table.keys() <= queues.keys():
            return changed
        # Most topics of a broker have equal settings: they share one QueueData.
        shapes: dict[tuple[int, int, int, int], QueueData] = {}
        known = queues.get
        for topic, config in table.items():
            before = known(topic)
            if before is not None and not replacing:
                continue
            perm = config.perm & mask
            shape = (perm, config.read_queue_nums, config.topic_sys_flag, config.write_queue_nums)
            queue = shapes.get(shape)
            if queue is None:
                queue = shapes[shape] = QueueData(
                    broker_name=group.name,
                    perm=perm,
                    read_queue_nums=config.read_queue_nums,
                    topic_sys_flag=config.topic_sys_flag,
                    write_queue_nums=config.write_queue_nums,
                )
            if before is None:
                self.set_queue(group, topic, queue)
                changed.append(topic)
            elif before is not queue:
                if before != queue:
                    changed.append(topic)
                queues[topic] = queue
        if changed:
            self.touch(changed)
        return changed

    def set_mappings(self, group: Group, mappings: Mapping[str, TopicQueueMappingInfo]) -> Collection[str]:
        """Set the group's parts of static topics that it has queues of; return the topics that changed."""
        changed = [
            topic for topic, info in mappings.items() if topic in group.queues and info != group.mappings.get(topic)
        ]
        if changed:
            group.mappings.update({topic: mappings[topic] for topic in changed})
            self.touch(changed)
        return changed

    def set_queue(self, group: Group, topic: str, queue: QueueData) -> None:
        """Set the queues of one topic; the caller calls :meth:`touch`."""
        if topic in group.queues:
            group.queues[topic] = queue
            return
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = Topic(topic)
        entry.groups[group.name] = None
        group.queues[entry.name] = queue

    def remove_topic(self, group: Group, topic: str) -> None:
        """Remove a topic that the group has."""
        del group.queues[topic]
        group.mappings.pop(topic, None)
        self._leave_topic(group, self._topics[topic])
        self.touch((topic,))

    def groups_of(self, topic: str, cluster: str | None) -> list[Group]:
        """Return the groups that have a topic, those of one cluster unless it is None or empty."""
        entry = self._topics.get(topic)
        members = self._clusters.get(cluster, set()) if cluster else self.groups.keys()
        return [] if entry is None else [self.groups[name] for name in entry.groups if name in members]

    def change_perms(self, group: Group, change: Callable[[int], int]) -> int:
        """Change the permissions of all topics of a group; return their number."""
        changed: dict[int, QueueData] = {}
        queues = group.queues
        for topic, queue in queues.items():
            other = changed.get(id(queue))
            if other is None:
                other = changed[id(queue)] = msgspec.structs.replace(queue, perm=change(queue.perm))
            queues[topic] = other
        if queues:
            self.touch()
        return len(queues)

    def _leave_topic(self, group: Group, entry: Topic) -> None:
        del entry.groups[group.name]
        if not entry.groups:
            del self._topics[entry.name]


def _in_zone(group: Group, zone_name: str) -> bool:
    own = group.zone_name
    return MASTER_ID not in group.addrs or (own is not None and own.lower() == zone_name.lower())
