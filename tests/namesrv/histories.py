"""
Random histories of a route table beside the slow model: drawn from a seed, run, and cut down when they fail.

A step is data (a method of :class:`Pair` and its arguments), so that a failing history can be run again without some
of its steps until none can be left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from rmq.namesrv.journal.eventlog import event_data
from rmq.namesrv.journal.events import REMOVALS, EventKind, RouteEvent
from rmq.namesrv.routes import RoutePolicy, RouteTable
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody, body_digest, encode_register_body
from rmq.wire.api.routes import BrokerIdentityHeader, QueueData, RegisterBrokerHeader
from tests.namesrv.model import Queues, RouteModel
from tests.namesrv.talk import at, by_admin

Step = tuple[str, tuple[Any, ...]]
MakeTable = Callable[..., RouteTable]

EVENTS = 16
EXPIRY_MS = 1000
NAMES = ("a", "b", "c")
CLUSTERS = ("K", "L")
#: the last one is claimed by processes of every group, as after a misconfiguration
ADDRS = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "127.0.0.1:1")
TOPICS = ("T0", "T1", "T2", "T3")
CHANNELS = 4


class Mismatch(Exception):
    """Table and model, or table and journal, disagree."""


class Peer:
    """A connection; a new one each time that one has been closed."""

    def __init__(self, number: int) -> None:
        self.peer = f"10.9.9.9:{number}"


class Pair:
    """One table and one model that live through the same steps, and a journal of the table's events."""

    def __init__(self, make: MakeTable, policy: tuple[bool, bool]) -> None:
        acting, absent = policy
        self.table = make(expiry_ms=EXPIRY_MS, on_event=self.happened)
        self.table.policy = RoutePolicy(support_acting_master=acting, delete_absent_topics=absent)
        self.model = RouteModel(EXPIRY_MS, acting, absent)
        self.now_ms = 0
        self.opened = CHANNELS
        self.channels = [Peer(number) for number in range(CHANNELS)]
        self.numbers = list(range(CHANNELS))
        #: what the events alone say: (group, id) -> address, and (topic, group)
        self.places: dict[tuple[str, int], str] = {}
        self.served: set[tuple[str, str]] = set()
        self.last_routes: object = None
        self.last_version = self.table.topology.version

    @property
    def wall_ms(self) -> int:
        return at(self.now_ms)["at"].now_ms

    def same(self, what: str, ours: object, model: object) -> None:
        if ours != model:
            raise Mismatch(f"{what}: table {ours!r}, model {model!r}")

    # steps

    def register(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        addr: str,
        channel: int,
        version: tuple[int, int],
        topics: dict[str, Queues],
        timeout_ms: int | None,
        acting: bool | None,
    ) -> None:
        header = RegisterBrokerHeader(
            broker_name=name,
            broker_addr=addr,
            cluster_name=cluster,
            ha_server_addr=f"ha-{addr}",
            broker_id=broker_id,
            heartbeat_timeout_millis=timeout_ms,
            enable_acting_master=acting,
        )
        configs = {
            topic: TopicConfig(
                topic_name=topic, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=flag
            )
            for topic, (read, write, perm, flag) in topics.items()
        }
        counter, state = version
        data_version = DataVersion(counter=counter, state_version=state, timestamp=7)
        body = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigWrapper(data_version=data_version, topic_config_table=configs)
        )
        digest = body_digest(encode_register_body(body), version=409)
        peer = self.channels[channel]
        reply = self.table.renew(header, digest, channel=peer, **at(self.now_ms))
        if reply is None:
            reply = self.table.register_broker(header, body, channel=peer, **at(self.now_ms), digest=digest)
        master = self.model.register(
            cluster=cluster,
            name=name,
            broker_id=broker_id,
            addr=addr,
            ha=f"ha-{addr}",
            version=version,
            topics=topics,
            channel=self.numbers[channel],
            timeout_ms=timeout_ms,
            acting=acting,
            now_ms=self.now_ms,
        )
        self.same("reply", (reply.master_addr, reply.ha_server_addr), master)

    def unregister(self, name: str, addr: str, broker_id: int, channel: int) -> None:
        header = BrokerIdentityHeader(broker_name=name, broker_addr=addr, cluster_name="K", broker_id=broker_id)
        went = self.table.unregister_broker(header, channel=self.channels[channel], **at(self.now_ms))
        number = self.numbers[channel]
        self.same("went", went, self.model.unregister(name=name, addr=addr, broker_id=broker_id, channel=number))

    def query(self, name: str, addr: str, version: tuple[int, int], channel: int) -> None:
        counter, state = version
        changed, _ = self.table.query_data_version(
            name,
            addr,
            DataVersion(counter=counter, state_version=state, timestamp=7),
            channel=self.channels[channel],
            **at(self.now_ms),
        )
        self.same("changed", changed, self.model.query(name, addr, version, self.numbers[channel], self.now_ms))

    def close(self, channel: int) -> None:
        self.table.channel_closed(self.channels[channel], **at(self.now_ms), reason="closed by the peer")
        self.model.close(self.numbers[channel])
        self.channels[channel], self.numbers[channel] = Peer(self.opened), self.opened
        self.opened += 1

    def change_perms(self, name: str, wipe: bool) -> None:
        change = self.table.wipe_write_perm if wipe else self.table.add_write_perm
        count = change(name, **by_admin(self.now_ms))
        self.same("topics changed", count, self.model.change_perms(name, wipe=wipe))

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster, **by_admin(self.now_ms))
        self.model.delete_topic(topic, cluster)

    def register_topic(self, topic: str, name: str, queues: Queues) -> None:
        read, write, perm, flag = queues
        queue = QueueData(
            broker_name=name, perm=perm, read_queue_nums=read, topic_sys_flag=flag, write_queue_nums=write
        )
        done = self.table.register_topic(topic, [queue], **by_admin(self.now_ms))
        self.same("registered", done, self.model.register_topic(topic, name, queues))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.table.expire(**at(self.now_ms))
        self.model.expire(self.now_ms)

    # the journal

    def happened(self, event: RouteEvent) -> None:
        kind, name = event.kind, event.broker_name
        kept = event_data(event)
        if kept.topic_count != len(event.topics) or kept.topics != list(event.topics)[: len(kept.topics)]:
            raise Mismatch(f"{event!r} does not say what it concerns")
        if not kept.reason or event.at_ms != self.wall_ms:
            raise Mismatch(f"{event!r} lacks its reason or time")
        if kind in (EventKind.REGISTERED, EventKind.CHANGED):
            assert event.broker_id is not None
            self.forget(name, event.broker_addr)
            self.places[name, event.broker_id] = event.broker_addr
        elif kind in REMOVALS:
            self.forget(name, event.broker_addr)
        changed = {(topic, name) for topic in event.topics}
        if kind in REMOVALS or kind is EventKind.TOPIC_DELETED:
            self.served -= changed
        else:
            self.served |= changed

    def forget(self, name: str, addr: str) -> None:
        self.places = {key: other for key, other in self.places.items() if (key[0], other) != (name, addr)}

    # what must hold after each step

    def compare(self) -> None:
        table, model = self.table, self.model
        routes = {topic: self.route(topic) for topic in TOPICS}
        self.same("routes", routes, {topic: model.route(topic) for topic in TOPICS})
        self.same("topics", table.topology.topics(), model.topics())
        live = {(broker.broker_name, broker.broker_addr): broker for broker in table.live_brokers()}
        self.same("live", live.keys(), model.processes.keys())
        held = {key: broker.channel for key, broker in live.items()}
        peers = dict(zip(self.numbers, self.channels, strict=True))
        self.same("connections", held, {key: peers[each.channel] for key, each in model.processes.items()})
        for cluster in CLUSTERS:
            topics = table.topology.topics_of_cluster(cluster)
            self.same(f"topics of {cluster}", topics, model.topics_of_cluster(cluster))
        info = table.topology.cluster_info()
        members = {(cluster, name) for cluster, names in info.cluster_addr_table.items() for name in names}
        self.same("clusters", members, model.members)
        places = {(n, i, a) for n, group in info.broker_addr_table.items() for i, a in group.broker_addrs.items()}
        self.same("places", places, model.places)
        self.same("addresses without a live broker", {(n, a) for n, _, a in places} - live.keys(), set())
        self.same("places by the events", places, {(n, i, a) for (n, i), a in self.places.items()})
        self.same("topics by the events", self.served, model.queues.keys())
        if routes != self.last_routes and self.last_routes is not None and table.topology.version == self.last_version:
            raise Mismatch("the routes changed, the version did not")
        self.last_routes, self.last_version = routes, table.topology.version

    def route(self, topic: str) -> object:
        found = self.table.topology.pick_route(topic)
        if found is None:
            return None
        groups = [(b.broker_name, b.cluster, sorted(b.broker_addrs.items())) for b in found.broker_datas]
        queues = [
            (q.broker_name, (q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag))
            for q in found.queue_datas
        ]
        return groups, queues


def draw(seed: object, events: int = EVENTS) -> tuple[tuple[bool, bool], list[Step]]:
    """Return the policy and the steps of one history."""
    chance = random.Random(str(seed))
    pick = chance.choice

    def version() -> tuple[int, int]:
        return pick((1, 1, 2)), pick((0, 0, 0, 1))

    def queues() -> Queues:
        return pick((1, 4)), pick((1, 4)), pick((6, 7, 4)), pick((0, 1, 2, 3))

    def register() -> tuple[Any, ...]:
        # Each topic looks the same in most of its registrations, so that unchanged ones come often.
        chosen = chance.sample(TOPICS, pick((0, 1, 2, 2, 3)))
        topics = {topic: queues() if chance.random() < 0.3 else (4, 4, 6, 0) for topic in sorted(chosen)}
        timeout = pick((None, None, 300, 0))
        place = (pick(CLUSTERS), pick(NAMES), pick((0, 0, 1, 2)), pick(ADDRS), chance.randrange(CHANNELS))
        return (*place, version(), topics, timeout, pick((None, None, True, False)))

    steps: list[Step] = []
    for _ in range(events):
        registered = [args for name, args in steps if name == "register"]
        drawn = chance.random()
        if drawn < 0.33 or not registered:
            steps.append(("register", register()))
        elif drawn < 0.45:
            before = list(pick(registered))
            before[4] = pick((before[4], chance.randrange(CHANNELS)))
            steps.append(("register", tuple(before)))
        elif drawn < 0.57:
            _, name, broker_id, addr, channel, *_ = pick(registered)
            broker_id = pick((broker_id, broker_id, 0, 1))
            steps.append(("unregister", (name, addr, broker_id, pick((channel, chance.randrange(CHANNELS))))))
        elif drawn < 0.67:
            _, name, _, addr, *_ = pick(registered)
            steps.append(("query", (name, addr, version(), chance.randrange(CHANNELS))))
        elif drawn < 0.79:
            steps.append(("close", (chance.randrange(CHANNELS),)))
        elif drawn < 0.85:
            steps.append(("change_perms", (pick(NAMES), chance.random() < 0.5)))
        elif drawn < 0.9:
            steps.append(("delete_topic", (pick(TOPICS), pick((None, "", *CLUSTERS)))))
        elif drawn < 0.92:
            steps.append(("register_topic", (pick(TOPICS), pick(NAMES), queues())))
        else:
            steps.append(("wait", (pick((1, 300, 301, 700, 1000, 1001)),)))
    return (chance.random() < 0.5, chance.random() < 0.25), steps


def run(make: MakeTable, policy: tuple[bool, bool], steps: Sequence[Step]) -> str | None:
    """Return what differs after the first step that makes a difference; None when nothing ever does."""
    pair = Pair(make, policy)
    for number, (name, args) in enumerate(steps, 1):
        try:
            getattr(pair, name)(*args)
            pair.compare()
        except Mismatch as mismatch:
            return f"after step {number}: {mismatch}"
    return None


def shortest(make: MakeTable, policy: tuple[bool, bool], steps: Sequence[Step]) -> list[Step]:
    """Return a failing history of which no step can be left out."""
    left = list(steps)
    again = True
    while again:
        again = False
        for index in reversed(range(len(left))):
            fewer = left[:index] + left[index + 1 :]
            if run(make, policy, fewer) is not None:
                left, again = fewer, True
    return left


def failure(make: MakeTable, seed: object, events: int = EVENTS) -> str | None:
    """Return None when the history of ``seed`` is right, else what is wrong and the shortest way there."""
    policy, steps = draw(seed, events)
    if run(make, policy, steps) is None:
        return None
    few = shortest(make, policy, steps)
    lines = [f"{name}{args}" for name, args in few]
    return "\n".join([f"seed {seed}, policy {policy}", *lines, run(make, policy, few) or "?"])
