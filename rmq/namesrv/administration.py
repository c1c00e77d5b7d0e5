"""
What admins do to groups and topics: write permissions, topics taken away and put in by hand.

Java: RouteInfoManager#wipeWritePermOfBrokerByLock, #addWritePermOfBrokerByLock, #deleteTopic, #registerTopic
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq.namesrv.brokertable import BrokerTable
from rmq.namesrv.events import EventKind
from rmq.namesrv.groups import PERM_READ, PERM_WRITE
from rmq.wire.api.routes import QueueData


class AdministeredTable(BrokerTable):
    """A table that takes orders; ``peer`` is who gives one, for the event that it makes."""

    def wipe_write_perm(self, broker_name: str, *, peer: str = "", now_ms: int = 0) -> int:
        """
        Take the write permission from all topics of a group, until it registers a change; return their number.

        Java: RouteInfoManager#wipeWritePermOfBrokerByLock
        """
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        count = self._change_perms(group, lambda perm: perm & ~PERM_WRITE)
        self._emit_group(EventKind.WIPED, group, now_ms, f"wipeWritePerm by {peer or 'an admin'}", group.queues, peer)
        return count

    def add_write_perm(self, broker_name: str, *, peer: str = "", now_ms: int = 0) -> int:
        """
        Make all topics of a group readable and writable, nothing more; return their number.

        Java: RouteInfoManager#addWritePermOfBrokerByLock
        """
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        count = self._change_perms(group, lambda _: PERM_READ | PERM_WRITE)
        why = f"addWritePerm by {peer or 'an admin'}"
        self._emit_group(EventKind.WRITE_ADDED, group, now_ms, why, group.queues, peer)
        return count

    def delete_topic(self, topic: str, cluster: str | None = None, *, peer: str = "", now_ms: int = 0) -> None:
        """
        Forget a topic, or its queues on the groups of one cluster. It comes back with a registration that has it.

        Java: RouteInfoManager#deleteTopic
        """
        entry = self._topics.get(topic)
        if entry is None:
            return
        members = self._clusters.get(cluster, set()) if cluster else self._groups.keys()
        why = f"deleted by {peer or 'an admin'}" + (f" in cluster {cluster}" if cluster else "")
        for group in [self._groups[name] for name in entry.groups if name in members]:
            self._remove_topic(group, entry)
            self._forget_digests(group)
            self._emit_group(EventKind.TOPIC_DELETED, group, now_ms, why, [topic], peer)

    def register_topic(self, topic: str, queues: Iterable[QueueData], *, peer: str = "", now_ms: int = 0) -> bool:
        """
        Add queues to a topic by hand; False, and nothing happens, when one names an unknown group or there is none.

        Java: RouteInfoManager#registerTopic of 5.x
        """
        given = {queue.broker_name: queue for queue in queues}
        if not given or any(name not in self._groups for name in given):
            return False
        for name, queue in given.items():
            group = self._groups[name]
            self._set_queue(group, topic, queue)
            self._forget_digests(group)
            why = f"registered by {peer or 'an admin'}"
            self._emit_group(EventKind.TOPIC_REGISTERED, group, now_ms, why, [topic], peer)
        self._touch((topic,))
        return True
