"""
A slow NameServer in sets of tuples, to compare the route table with; no code is shared.

Everything is a relation, every question a comprehension over all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

#: readQueueNums, writeQueueNums, perm, topicSysFlag
Queues = tuple[int, int, int, int]
#: counter, state version
Version = tuple[int, int]
Key = tuple[str, str]


@attrs.define(kw_only=True)
class Process:
    """What a broker process said of itself last, and over which connections it speaks."""

    broker_id: int
    version: Version
    ha: str
    channel: int
    heir: int | None
    heard_ms: int
    expiry_ms: int
    acting: bool | None


@attrs.define
class RouteModel:
    """
    Facts: (cluster, group), group -> cluster of its first registration, (group, id, address), (topic, group) -> queues,
    (group, address) -> what its last registration said; connections in the order in which they first held a broker.
    """

    expiry_ms: int
    support_acting_master: bool = False
    delete_absent: bool = False
    members: set[tuple[str, str]] = attrs.field(factory=set)
    home: dict[str, str] = attrs.field(factory=dict)
    acting: dict[str, bool] = attrs.field(factory=dict)
    places: set[tuple[str, int, str]] = attrs.field(factory=set)
    queues: dict[tuple[str, str], Queues] = attrs.field(factory=dict)
    processes: dict[Key, Process] = attrs.field(factory=dict)
    order: list[int] = attrs.field(factory=list)

    def older(self, channel: int, than: int) -> bool:
        return channel in self.order and than in self.order and self.order.index(channel) < self.order.index(than)

    def spoke(self, channel: int) -> None:
        if channel not in self.order:
            self.order.append(channel)

    def holder(self, name: str, broker_id: int) -> str | None:
        return next((a for (n, i, a) in self.places if (n, i) == (name, broker_id)), None)

    def ids(self, name: str) -> list[int]:
        return sorted(i for (n, i, _) in self.places if n == name)

    def master(self, name: str, broker_id: int) -> tuple[str | None, str | None]:
        addr = None if broker_id == 0 else self.holder(name, 0)
        return (None, None) if addr is None else (addr, self.processes[name, addr].ha)

    def register(
        self,
        *,
        cluster: str,
        name: str,
        broker_id: int,
        addr: str,
        ha: str,
        version: Version,
        topics: Mapping[str, Queues],
        channel: int,
        timeout_ms: int | None,
        acting: bool | None,
        now_ms: int,
    ) -> tuple[str | None, str | None]:
        """Return (master address, its HA address)."""
        known = self.processes.get((name, addr))
        if known is not None and self.older(channel, known.channel):
            return self.master(name, known.broker_id)
        holder = self.holder(name, broker_id)
        if holder not in (None, addr) and self.processes[name, str(holder)].version[1] > version[1]:
            if known is not None:
                self.lose({(name, addr)})
            return None, None
        self.spoke(channel)
        self.members.add((cluster, name))
        self.home.setdefault(name, cluster)
        self.acting[name] = acting is True
        self.places = {p for p in self.places if p[:2] != (name, broker_id) and (p[0], p[2]) != (name, addr)}
        self.places.add((name, broker_id, addr))
        if broker_id == 0 or (acting is not None and broker_id == min(self.ids(name))):
            if self.delete_absent:
                self.queues = {key: q for key, q in self.queues.items() if key[1] != name or key[0] in topics}
            for topic, (read, write, perm, flag) in topics.items():
                if holder != addr or known is None or known.version != version or (topic, name) not in self.queues:
                    own = perm & ~2 if broker_id != 0 and acting else perm
                    self.queues[topic, name] = (read, write, own, flag)
        self.processes[name, addr] = Process(
            broker_id=broker_id,
            version=version,
            ha=ha,
            channel=channel,
            heir=known.heir if known is not None and known.channel == channel else None,
            heard_ms=now_ms,
            expiry_ms=timeout_ms if timeout_ms and timeout_ms > 0 else self.expiry_ms,
            acting=acting,
        )
        return self.master(name, broker_id)

    def unregister(self, *, name: str, addr: str, broker_id: int, channel: int) -> bool:
        known = self.processes.get((name, addr))
        if known is None or known.broker_id != broker_id or self.older(channel, known.channel):
            return False
        self.lose({(name, addr)})
        return True

    def query(self, name: str, addr: str, version: Version, channel: int, now_ms: int) -> bool:
        known = self.processes.get((name, addr))
        if known is None:
            return True
        if not self.older(channel, known.channel):
            if channel != known.channel and (known.heir is None or not self.older(channel, known.heir)):
                self.spoke(channel)
                known.heir = channel
            known.heard_ms = now_ms
        return known.version != version or self.holder(name, known.broker_id) is None

    def close(self, channel: int) -> None:
        self.order = [other for other in self.order if other != channel]
        gone = set()
        for key, process in self.processes.items():
            if process.heir == channel:
                process.heir = None
            if process.channel == channel and process.heir is not None:
                process.channel, process.heir = process.heir, None
            elif process.channel == channel:
                gone.add(key)
        self.lose(gone)

    def expire(self, now_ms: int) -> None:
        self.lose({key for key, each in self.processes.items() if each.heard_ms + each.expiry_ms < now_ms})

    def lose(self, keys: set[Key]) -> None:
        """Let processes go one by one, and with the last one of a group what hangs on it."""
        for name, addr in sorted(keys):
            del self.processes[name, addr]
            before = len(self.places)
            self.places = {place for place in self.places if (place[0], place[2]) != (name, addr)}
            if not self.ids(name):
                self.members = {(cluster, other) for cluster, other in self.members if other != name}
                self.home.pop(name, None)
                self.acting.pop(name, None)
                self.queues = {key: queues for key, queues in self.queues.items() if key[1] != name}
            elif len(self.places) < before and self.acting[name] and 0 not in self.ids(name):
                self.change_perms(name, wipe=True)

    def change_perms(self, name: str, *, wipe: bool) -> int:
        mine = [key for key in self.queues if key[1] == name]
        for key in mine:
            read, write, perm, flag = self.queues[key]
            self.queues[key] = (read, write, perm & ~2 if wipe else 6, flag)
        return len(mine)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        for key in list(self.queues):
            if key[0] == topic and (not cluster or (cluster, key[1]) in self.members):
                del self.queues[key]

    def register_topic(self, topic: str, name: str, queues: Queues) -> bool:
        if name not in self.home:
            return False
        self.queues[topic, name] = queues
        return True

    def route(self, topic: str) -> tuple[list[tuple[str, str, list[tuple[int, str]]]], list[tuple[str, Queues]]] | None:
        """Return ([(group, cluster, [(id, address)])], [(group, queues)]), all sorted; None without a route."""
        queues = sorted((name, queues) for (t, name), queues in self.queues.items() if t == topic)
        groups = []
        for name, (_, _, perm, _) in queues:
            addrs = sorted((i, a) for n, i, a in self.places if n == name)
            if self.support_acting_master and self.acting[name] and addrs[0][0] != 0 and not perm & 2:
                addrs[0] = (0, addrs[0][1])
            groups.append((name, self.home[name], addrs))
        return (groups, queues) if groups else None

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.queues})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return sorted({topic for topic, name in self.queues if (cluster, name) in self.members})
