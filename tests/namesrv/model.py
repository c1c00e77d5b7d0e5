"""
A slow NameServer in sets of tuples, to compare the route table with; no code is shared.

Everything is a relation, every question a comprehension over all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: readQueueNums, writeQueueNums, perm, topicSysFlag
Queues = tuple[int, int, int, int]
Version = tuple[int, int]


class RouteModel:
    """
    Facts: (cluster, group), group -> cluster of its first registration, (group, id, address), (topic, group) -> queues,
    address -> what its last registration said.
    """

    def __init__(self, expiry_ms: int) -> None:
        self.expiry_ms = expiry_ms
        self.members: set[tuple[str, str]] = set()
        self.home: dict[str, str] = {}
        self.places: set[tuple[str, int, str]] = set()
        self.queues: dict[tuple[str, str], Queues] = {}
        self.live: dict[str, dict[str, object]] = {}

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
        channel: object,
        timeout_ms: int | None,
        now_ms: int,
    ) -> tuple[str | None, str | None]:
        """Return (master address, its HA address)."""
        vacant = not any(place[:2] == (name, broker_id) for place in self.places)
        self.members.add((cluster, name))
        self.home.setdefault(name, cluster)
        self.places = {p for p in self.places if p[:2] != (name, broker_id) and (p[0], p[2]) != (name, addr)}
        self.places.add((name, broker_id, addr))
        if broker_id == 0:
            renewed = vacant or addr not in self.live or self.live[addr]["version"] != version
            for topic, queues in topics.items():
                if renewed or (topic, name) not in self.queues:
                    self.queues[topic, name] = queues
        expiry = timeout_ms if timeout_ms and timeout_ms > 0 else self.expiry_ms
        self.live[addr] = {
            "name": name,
            "version": version,
            "channel": channel,
            "ha": ha,
            "deadline": now_ms + expiry,
            "expiry": expiry,
        }
        masters = [a for (n, i, a) in self.places if n == name and i == 0 and a in self.live]
        if broker_id == 0 or not masters:
            return None, None
        return masters[0], str(self.live[masters[0]]["ha"])

    def unregister(self, *, name: str, addr: str) -> None:
        if addr in self.live and self.live[addr]["name"] == name:
            self.lose({addr})
        else:
            self.places = {place for place in self.places if (place[0], place[2]) != (name, addr)}
            self.tidy()

    def query(self, addr: str, version: Version, channel: object, now_ms: int) -> bool:
        known = self.live.get(addr)
        if known is None:
            return True
        self.live[addr] = {**known, "channel": channel, "deadline": now_ms + int(str(known["expiry"]))}
        return known["version"] != version

    def close(self, channel: object) -> None:
        self.lose({addr for addr, live in self.live.items() if live["channel"] is channel})

    def expire(self, now_ms: int) -> None:
        self.lose({addr for addr, live in self.live.items() if int(str(live["deadline"])) < now_ms})

    def lose(self, addrs: set[str]) -> None:
        self.live = {addr: live for addr, live in self.live.items() if addr not in addrs}
        self.places = {place for place in self.places if place[2] not in addrs}
        self.tidy()

    def tidy(self) -> None:
        """Forget what hangs on groups that have no place left."""
        names = {name for name, _, _ in self.places}
        self.members = {(cluster, name) for cluster, name in self.members if name in names}
        self.home = {name: cluster for name, cluster in self.home.items() if name in names}
        self.queues = {key: queues for key, queues in self.queues.items() if key[1] in names}

    def change_perms(self, name: str, *, wipe: bool) -> int:
        mine = [key for key in self.queues if key[1] == name]
        for key in mine:
            read, write, perm, flag = self.queues[key]
            self.queues[key] = (read, write, perm & ~2 if wipe else 6, flag)
        return len(mine)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        for key in list(self.queues):
            if key[0] == topic and (cluster is None or self.home.get(key[1]) == cluster):
                del self.queues[key]

    def route(self, topic: str) -> tuple[list[tuple[str, str, list[tuple[int, str]]]], list[tuple[str, Queues]]] | None:
        """Return ([(group, cluster, [(id, address)])], [(group, queues)]), all sorted; None without a route."""
        queues = sorted((name, queues) for (t, name), queues in self.queues.items() if t == topic)
        groups = [
            (name, self.home[name], sorted((i, a) for n, i, a in self.places if n == name))
            for name, _ in queues
            if name in self.home
        ]
        return (groups, queues) if groups else None

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.queues})

    def topics_of_cluster(self, cluster: str) -> list[str]:
        return sorted({topic for topic, name in self.queues if (cluster, name) in self.members})
