"""The route table in random histories, beside a slow and simple model."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.routes import RouteTable
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import BrokerIdentityHeader, RegisterBrokerHeader, RegisterBrokerReply
from tests.namesrv.model import RouteModel

HISTORIES = 2500
EVENTS = 14
EXPIRY_MS = 1000

NAMES = ("a", "b", "c")
CLUSTERS = ("K", "L")
#: the last one is claimed by processes of every group, as after a misconfiguration
ADDRS = ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "127.0.0.1:1")
TOPICS = ("T0", "T1", "T2", "T3")


class Mismatch(Exception):
    """Table and model disagree."""


class History:
    """One table and one model that live through the same events."""

    def __init__(self, seed: object, table: RouteTable) -> None:
        self.random = random.Random(str(seed))
        self.table = table
        self.model = RouteModel(EXPIRY_MS)
        self.now_ms = 0
        self.channels = [object() for _ in range(3)]
        self.trace: list[str] = []
        self.last_routes: object = None
        self.last_version = table.version

    def run(self, events: int) -> None:
        steps: list[Callable[[], None]] = [
            *[self.register] * 6,
            self.unregister,
            self.query,
            self.close,
            self.wipe_or_add,
            self.delete_topic,
            self.wait,
            self.wait,
        ]
        for _ in range(events):
            self.random.choice(steps)()
            self.compare()

    def note(self, *what: object) -> None:
        self.trace.append(" ".join(map(str, what)))

    def same(self, what: str, ours: object, model: object) -> None:
        if ours != model:
            raise Mismatch("\n".join([*self.trace, f"{what}: table {ours!r}, model {model!r}"]))

    # events

    def register(self) -> None:
        pick = self.random.choice
        cluster, name, addr, channel = pick(CLUSTERS), pick(NAMES), pick(ADDRS), pick(self.channels)
        broker_id, version = pick((0, 0, 1, 2)), pick((1, 1, 2))
        timeout = pick((None, None, 300, 0))
        chosen = self.random.sample(TOPICS, self.random.randrange(len(TOPICS)))
        topics = {topic: (pick((1, 4)), pick((1, 4)), pick((6, 7, 4)), pick((0, 1, 2, 3))) for topic in chosen}
        self.note("register", cluster, name, broker_id, addr, "version", version, topics, "timeout", timeout)
        header = RegisterBrokerHeader(
            broker_name=name,
            broker_addr=addr,
            cluster_name=cluster,
            ha_server_addr=f"ha-{addr}",
            broker_id=broker_id,
            heartbeat_timeout_millis=timeout,
        )
        configs = {
            topic: TopicConfig(
                topic_name=topic, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=flag
            )
            for topic, (read, write, perm, flag) in topics.items()
        }
        wrapper = TopicConfigWrapper(data_version=DataVersion(counter=version, timestamp=7), topic_config_table=configs)
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        reply = self.table.register_broker(header, body, channel=channel, now_ms=self.now_ms)
        master = self.model.register(
            cluster=cluster,
            name=name,
            broker_id=broker_id,
            addr=addr,
            ha=f"ha-{addr}",
            version=(version, 7),
            topics=topics,
            channel=channel,
            timeout_ms=timeout,
            now_ms=self.now_ms,
        )
        self.same("reply", (reply.master_addr, reply.ha_server_addr), master)

    def unregister(self) -> None:
        name, addr, broker_id = self.random.choice(NAMES), self.random.choice(ADDRS), self.random.choice((0, 1))
        self.note("unregister", name, addr)
        self.table.unregister_broker(
            BrokerIdentityHeader(broker_name=name, broker_addr=addr, cluster_name="K", broker_id=broker_id)
        )
        self.model.unregister(name=name, addr=addr)

    def query(self) -> None:
        addr, version = self.random.choice(ADDRS), self.random.choice((1, 2))
        channel = self.random.choice(self.channels)
        self.note("query data version", addr, version)
        changed, _ = self.table.query_data_version(
            addr, DataVersion(counter=version, timestamp=7), channel=channel, now_ms=self.now_ms
        )
        self.same("changed", changed, self.model.query(addr, (version, 7), channel, self.now_ms))

    def close(self) -> None:
        index = self.random.randrange(len(self.channels))
        self.note("close channel", index)
        self.table.channel_closed(self.channels[index])
        self.model.close(self.channels[index])
        self.channels[index] = object()

    def wipe_or_add(self) -> None:
        name, wipe = self.random.choice(NAMES), self.random.random() < 0.5
        self.note("wipe" if wipe else "add", name)
        count = self.table.wipe_write_perm(name) if wipe else self.table.add_write_perm(name)
        self.same("topics changed", count, self.model.change_perms(name, wipe=wipe))

    def delete_topic(self) -> None:
        topic, cluster = self.random.choice(TOPICS), self.random.choice((None, *CLUSTERS))
        self.note("delete", topic, cluster)
        self.table.delete_topic(topic, cluster)
        self.model.delete_topic(topic, cluster)

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 300, 301, 1000, 1001))
        self.note("scan at", self.now_ms)
        self.table.expire(self.now_ms)
        self.model.expire(self.now_ms)

    # what must hold after each

    def compare(self) -> None:
        table, model = self.table, self.model
        routes = {topic: self.route(topic) for topic in TOPICS}
        self.same("routes", routes, {topic: model.route(topic) for topic in TOPICS})
        self.same("topics", table.topics(), model.topics())
        live = {broker.broker_addr for broker in table.live_brokers()}
        self.same("live", live, set(model.live))
        for cluster in CLUSTERS:
            self.same(f"topics of {cluster}", table.topics_of_cluster(cluster), model.topics_of_cluster(cluster))
        info = table.cluster_info()
        members = {(cluster, name) for cluster, names in info.cluster_addr_table.items() for name in names}
        self.same("clusters", members, model.members)
        places = {(n, i, a) for n, group in info.broker_addr_table.items() for i, a in group.broker_addrs.items()}
        self.same("places", places, model.places)
        self.same("addresses without a live broker", {addr for _, _, addr in places} - live, set())
        if routes != self.last_routes and self.last_routes is not None and table.version == self.last_version:
            raise Mismatch("\n".join([*self.trace, "the routes changed, the version did not"]))
        self.last_routes, self.last_version = routes, table.version

    def route(self, topic: str) -> object:
        found = self.table.pick_route(topic)
        if found is None:
            return None
        groups = [(b.broker_name, b.cluster, sorted(b.broker_addrs.items())) for b in found.broker_datas]
        queues = [
            (q.broker_name, (q.read_queue_nums, q.write_queue_nums, q.perm, q.topic_sys_flag))
            for q in found.queue_datas
        ]
        return groups, queues


class HistoryTests(SynchronousTestCase):
    def test_table_equals_model(self) -> None:
        """
        After any order of registrations, good-byes, closes, expiries and admin changes, every answer is the model's; no
        route holds an address whose broker is gone; and no route changes without the version.
        """
        base = random.SystemRandom().randrange(2**32)
        print(f"\nHISTORIES seed {base}")
        for number in range(HISTORIES):
            seed = f"{base}-{number}"
            try:
                History(seed, RouteTable(expiry_ms=EXPIRY_MS)).run(EVENTS)
            except Mismatch as mismatch:
                self.fail(f"seed {seed}\n{mismatch}")

    def test_planted_faults_are_found(self) -> None:
        """Faults that Apache once had are found within a few hundred histories."""
        for faulty in (UnregisterAnybody, FullOnlyIfChanged, CloseByAddress, ForgottenVersion):
            self.assertRaises(Mismatch, self.many, faulty)

    def many(self, faulty: type[RouteTable]) -> None:
        for number in range(500):
            History(number, faulty(expiry_ms=EXPIRY_MS)).run(EVENTS)


class UnregisterAnybody(RouteTable):
    """4.9: the id goes whatever address it has."""

    def unregister_broker(self, broker: BrokerIdentityHeader) -> None:
        super().unregister_broker(broker)
        group = self._groups.get(broker.broker_name)
        if group is not None and broker.broker_id in group.addrs:
            self._remove_address(broker.broker_name, broker.broker_id)


class FullOnlyIfChanged(RouteTable):
    """4.9: a full registration behind a partial one of the same version adds nothing."""

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, channel: object, now_ms: int
    ) -> RegisterBrokerReply:
        known = self._live.get(header.broker_addr)
        group = self._groups.get(header.broker_name)
        wrapper = body.topic_config_serialize_wrapper
        vacant = group is None or header.broker_id not in group.addrs
        if known is not None and not vacant and known.data_version == wrapper.data_version:
            body = RegisterBrokerBody(
                topic_config_serialize_wrapper=TopicConfigWrapper(data_version=wrapper.data_version)
            )
        return super().register_broker(header, body, channel=channel, now_ms=now_ms)


class CloseByAddress(RouteTable):
    """A broker goes with any connection that it ever used."""

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, channel: object, now_ms: int
    ) -> RegisterBrokerReply:
        known = self._live.get(header.broker_addr)
        kept = channel if known is None else known.channel
        return super().register_broker(header, body, channel=kept, now_ms=now_ms)


class ForgottenVersion(RouteTable):
    """A change that no memo would hear of."""

    def wipe_write_perm(self, broker_name: str) -> int:
        version = self.version
        count = super().wipe_write_perm(broker_name)
        self.version = version
        return count
