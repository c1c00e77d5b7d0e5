"""
Groups and the broker processes in them, and how whoever wants to know hears what happens to them.

Java: RouteInfoManager's brokerLiveTable beside its other tables
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import islice

import attrs

from rmq.namesrv.events import MAX_EVENT_TOPICS, EventKind, RouteEvent
from rmq.namesrv.groups import MASTER_ID, PERM_WRITE, Group, GroupTable
from rmq.namesrv.live import Key, LiveBroker
from rmq.wire.api.common import DataVersion, TopicConfig
from rmq.wire.api.routes import QueueData


@attrs.frozen(kw_only=True)
class MinBrokerIdChange:
    """
    Another broker has the smallest id of its group now, because one came or ``offline_addr`` went.

    Java: NotifyMinBrokerIdChangeRequestHeader
    """

    broker_name: str
    addrs: Mapping[int, str]
    offline_addr: str | None = None
    ha_addr: str | None = None


class BrokerTable(GroupTable):
    """Groups with their broker processes; ``on_event`` and ``on_min_broker_id`` as in :class:`RouteTable`."""

    def __init__(
        self,
        *,
        on_event: Callable[[RouteEvent], object] | None = None,
        on_min_broker_id: Callable[[MinBrokerIdChange], object] | None = None,
    ) -> None:
        super().__init__()
        self.on_event = on_event
        self.on_min_broker_id = on_min_broker_id
        self._live: dict[Key, LiveBroker] = {}

    def live_brokers(self) -> list[LiveBroker]:
        """Return all brokers that are there, by address."""
        return sorted(self._live.values(), key=lambda live: (live.broker_addr, live.broker_name))

    def _holder(self, broker_name: str, broker_id: int) -> LiveBroker | None:
        """Return who has the place of ``broker_id`` in a group."""
        group = self._groups.get(broker_name)
        addr = None if group is None else group.addrs.get(broker_id)
        return None if addr is None else self._live[broker_name, addr]

    def _members(self, group: Group) -> list[LiveBroker]:
        return [self._live[group.name, addr] for addr in group.addrs.values()]

    def _forget_digests(self, group: Group) -> None:
        """Have the next registrations read, because an unchanged one would change something now."""
        for live in self._members(group):
            live.digest = None

    def _tell_min_broker_id(self, group: Group, *, offline_addr: str | None = None, ha_addr: str | None = None) -> None:
        if self.on_min_broker_id is not None:
            self.on_min_broker_id(
                MinBrokerIdChange(
                    broker_name=group.name, addrs=dict(group.addrs), offline_addr=offline_addr, ha_addr=ha_addr
                )
            )

    # the topics that they bring

    def _drop_absent(self, group: Group, live: LiveBroker, table: Mapping[str, TopicConfig], now_ms: int) -> None:
        absent = sorted(group.queues.keys() - table.keys())
        for topic in absent:
            self._remove_topic(group, self._topics[topic])
        if absent:
            self._forget_digests(group)
            why = f"the registration of {live.broker_addr} lacks them"
            self._emit_group(EventKind.TOPIC_DELETED, group, now_ms, why, absent, live.peer)

    def _take_topics(
        self, group: Group, live: LiveBroker, table: Mapping[str, TopicConfig], *, replacing: bool
    ) -> Collection[str]:
        """Return the topics whose queues are others than before."""
        changed: list[str] = []
        queues, mask = group.queues, -1
        if not replacing and table.keys() <= queues.keys():
            return changed
        if live.broker_id != MASTER_ID and group.acting_master:
            mask = ~PERM_WRITE
        # Most topics of a broker look alike: one QueueData does for all of them.
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
            if before is queue:
                continue
            if before is None:
                self._set_queue(group, topic, queue)
                changed.append(topic)
                continue
            if before != queue:
                changed.append(topic)
            queues[topic] = queue
        if changed:
            self._touch(changed)
        return changed

    # what happens is told

    def _emit(
        self,
        kind: EventKind,
        live: LiveBroker,
        now_ms: int,
        reason: str,
        *,
        peer: str | None = None,
        topics: Collection[str] = (),
    ) -> None:
        """Tell what happened to a broker process."""
        if self.on_event is not None:
            self._tell(
                kind,
                now_ms,
                reason,
                broker_name=live.broker_name,
                broker_addr=live.broker_addr,
                broker_id=live.broker_id,
                cluster=live.cluster_name,
                peer=live.peer if peer is None else peer,
                data_version=live.data_version,
                topics=topics,
            )

    def _emit_group(
        self, kind: EventKind, group: Group, now_ms: int, reason: str, topics: Collection[str], peer: str
    ) -> None:
        """Tell what happened to a whole group."""
        self._tell(kind, now_ms, reason, broker_name=group.name, cluster=group.cluster, peer=peer, topics=topics)

    def _tell(
        self,
        kind: EventKind,
        now_ms: int,
        reason: str,
        *,
        broker_name: str,
        cluster: str,
        peer: str,
        broker_addr: str = "",
        broker_id: int | None = None,
        data_version: DataVersion | None = None,
        topics: Collection[str] = (),
    ) -> None:
        if self.on_event is not None:
            self.on_event(
                RouteEvent(
                    at_ms=now_ms,
                    kind=kind,
                    broker_name=broker_name,
                    broker_addr=broker_addr,
                    broker_id=broker_id,
                    cluster=cluster,
                    peer=peer,
                    data_version=data_version,
                    topics=tuple(islice(topics, MAX_EVENT_TOPICS)),
                    topic_count=len(topics),
                    reason=reason,
                    concerns=topics,
                )
            )
