"""The route table, statement by statement."""

from __future__ import annotations

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.routes import BROKER_EXPIRY_MS, MinBrokerIdChange, RoutePolicy, RouteTable
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import BodyDigest, RegisterBrokerBody, body_digest
from rmq.wire.api.routes import BrokerIdentityHeader, QueueData, RegisterBrokerHeader, RegisterBrokerReply
from tests.namesrv.talk import at, by_admin, closed


def broker(
    name: str = "broker-a", *, broker_id: int = 0, port: int = 10911, cluster: str = "C"
) -> RegisterBrokerHeader:
    return RegisterBrokerHeader(
        broker_name=name,
        broker_addr=f"10.0.0.1:{port}",
        cluster_name=cluster,
        ha_server_addr=f"10.0.0.1:{port + 1}",
        broker_id=broker_id,
    )


def identity(header: RegisterBrokerHeader) -> BrokerIdentityHeader:
    return BrokerIdentityHeader(
        broker_name=header.broker_name,
        broker_addr=header.broker_addr,
        cluster_name=header.cluster_name,
        broker_id=header.broker_id,
    )


def topics(*names: str, version: int = 1, perm: int = 6, flag: int = 0, queues: int = 4) -> RegisterBrokerBody:
    table = {
        name: TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, topic_sys_flag=flag
        )
        for name in names
    }
    wrapper = TopicConfigWrapper(data_version=DataVersion(counter=version, timestamp=1), topic_config_table=table)
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)


def digest_of(data: bytes) -> BodyDigest:
    return body_digest(data, version=409)


ONE = digest_of(b"1")


class RouteCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.table = RouteTable()
        self.channel = object()

    def register(
        self,
        header: RegisterBrokerHeader,
        body: RegisterBrokerBody,
        *,
        channel: object = None,
        now_ms: int = 0,
        zone: str | None = None,
        digest: BodyDigest | None = None,
    ) -> RegisterBrokerReply:
        return self.table.register_broker(
            header, body, channel=channel or self.channel, **at(now_ms), zone_name=zone, digest=digest
        )

    def perms(self, topic: str) -> dict[str, int]:
        route = self.table.topology.pick_route(topic)
        return {} if route is None else {queue.broker_name: queue.perm for queue in route.queue_datas}

    def addrs(self, name: str = "broker-a") -> dict[int, str]:
        group = self.table.topology.group(name)
        return {} if group is None else group.broker_addrs


class RegistrationTests(RouteCase):
    def test_route(self) -> None:
        """A registered topic has a route with the broker's queues and address; another topic has none."""
        self.register(broker(), topics("orders"))
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual(route.broker_datas[0].broker_addrs, {0: "10.0.0.1:10911"})
        self.assertEqual(route.queue_datas[0].write_queue_nums, 4)
        self.assertIsNone(self.table.topology.pick_route("bills"))

    def test_partial_before_full(self) -> None:
        """A partial registration may come first after a restart; the full one of the same version counts."""
        self.register(broker(), topics("new", version=5))
        self.register(broker(), topics("new", "old", version=5))
        self.assertEqual(self.table.topology.topics(), ["new", "old"])

    def test_unchanged_registration_keeps_wiped_permissions(self) -> None:
        """The 30 s heartbeat does not undo wipeWritePerm; a changed registration does."""
        self.register(broker(), topics("orders"))
        self.assertEqual(self.table.wipe_write_perm("broker-a", **by_admin()), 1)
        self.register(broker(), topics("orders"))
        self.assertEqual(self.perms("orders"), {"broker-a": 4})
        self.register(broker(), topics("orders", version=2))
        self.assertEqual(self.perms("orders"), {"broker-a": 6})

    def test_topics_absent_from_the_body_stay(self) -> None:
        """A registration never removes topics."""
        self.register(broker(), topics("a", "b"))
        self.register(broker(), topics("a", version=2))
        self.assertEqual(self.table.topology.topics(), ["a", "b"])

    def test_slaves_topics_do_not_count(self) -> None:
        """Only a master's topics make routes; with a slave alone there is a group but no topic."""
        self.register(broker(broker_id=1), topics("orders"))
        self.assertIsNone(self.table.topology.pick_route("orders"))
        self.assertEqual(self.addrs(), {1: "10.0.0.1:10911"})

    def test_promotion_at_the_same_address(self) -> None:
        """A slave that comes back as master at its address is in the group once."""
        self.register(broker(broker_id=1), topics("orders"))
        self.register(broker(broker_id=0), topics("orders"))
        self.assertEqual(self.addrs(), {0: "10.0.0.1:10911"})

    def test_replacement(self) -> None:
        """Another process with the same name and id takes the place; when the old one's connection ends, it stays."""
        old, new = object(), object()
        self.register(broker(port=1), topics("orders"), channel=old)
        self.register(broker(port=2), topics("orders"), channel=new)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        closed(self.table, old)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertIsNotNone(self.table.topology.pick_route("orders"))

    def test_slave_learns_its_master(self) -> None:
        """A slave hears where its live master is; before the master came, and after it went, nothing."""
        nothing = RegisterBrokerReply()
        slave = broker(broker_id=1, port=20911)
        self.assertEqual(self.register(slave, topics()), nothing)
        master_channel = object()
        self.assertEqual(self.register(broker(), topics(), channel=master_channel), nothing)
        self.assertEqual(
            self.register(slave, topics()),
            RegisterBrokerReply(master_addr="10.0.0.1:10911", ha_server_addr="10.0.0.1:10912"),
        )
        closed(self.table, master_channel)
        self.assertEqual(self.register(slave, topics()), nothing)

    def test_filter_servers(self) -> None:
        """Filter servers show in routes until an empty list comes; no list leaves them."""
        body = topics("orders")
        body.filter_server_list = ["10.0.0.9:1"]
        self.register(broker(), body)
        body.filter_server_list = None
        self.register(broker(), body)
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual(route.filter_server_table, {"10.0.0.1:10911": ["10.0.0.9:1"]})
        body.filter_server_list = []
        self.register(broker(), body)
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual(route.filter_server_table, {})

    def test_filter_servers_of_a_replaced_broker(self) -> None:
        """Clients are not sent to the filter servers of a broker whose place another process has taken."""
        body = topics("orders")
        body.filter_server_list = ["10.0.0.9:1"]
        self.register(broker(port=1), body)
        self.register(broker(port=2), topics("orders"))
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual((self.addrs(), route.filter_server_table), ({0: "10.0.0.1:2"}, {}))

    def test_unchanged_registration_keeps_the_version(self) -> None:
        """Heartbeats do not throw away encoded routes."""
        self.register(broker(), topics("orders"))
        version = self.table.topology.version
        self.register(broker(), topics("orders"), now_ms=30_000)
        self.assertEqual(self.table.topology.version, version)

    def test_sorted_by_broker_name(self) -> None:
        """Brokers and queues of a route come in the order of their names."""
        for name, port in (("b", 2), ("a", 1), ("c", 3)):
            self.register(broker(name, port=port), topics("orders"))
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual([data.broker_name for data in route.broker_datas], ["a", "b", "c"])
        self.assertEqual([data.broker_name for data in route.queue_datas], ["a", "b", "c"])


class DepartureTests(RouteCase):
    def test_silent_broker_disappears(self) -> None:
        """A broker unheard of for two minutes is gone from the route of its topics."""
        self.register(broker(), topics("orders"))
        self.assertEqual(self.table.expire(**at(BROKER_EXPIRY_MS)), [])
        self.assertEqual([gone.broker_name for gone in self.table.expire(**at(BROKER_EXPIRY_MS + 1))], ["broker-a"])
        self.assertIsNone(self.table.topology.pick_route("orders"))
        self.assertEqual(self.table.topology.topics(), [])

    def test_own_expiry(self) -> None:
        """A 5.x broker that gave heartbeatTimeoutMillis is gone after that time."""
        header = broker()
        header.heartbeat_timeout_millis = 10_000
        self.register(header, topics("orders"))
        self.assertEqual(self.table.expire(**at(10_000)), [])
        self.assertEqual(len(self.table.expire(**at(10_001))), 1)

    def test_signs_of_life(self) -> None:
        """A registration, a data version query and a heartbeat each give another two minutes."""
        header, version = broker(), DataVersion(counter=1, timestamp=1)
        self.register(header, topics("orders"))
        self.register(header, topics("orders"), now_ms=100_000)
        self.assertEqual(self.table.expire(**at(220_000)), [])
        answer = self.table.query_data_version(
            "broker-a", header.broker_addr, version, channel=self.channel, **at(220_000)
        )
        self.assertEqual(answer, (False, version))
        self.assertEqual(self.table.expire(**at(340_000)), [])
        self.assertTrue(self.table.heartbeat("broker-a", header.broker_addr, channel=self.channel, **at(340_000)))
        self.assertEqual(self.table.expire(**at(460_000)), [])
        self.assertEqual(len(self.table.expire(**at(460_001))), 1)
        self.assertFalse(self.table.heartbeat("broker-a", header.broker_addr, channel=self.channel, **at(460_001)))

    def test_group_stays_while_a_slave_lives(self) -> None:
        """When the master goes its topics can still be read from the slave."""
        master, slave = object(), object()
        self.register(broker(), topics("orders"), channel=master)
        self.register(broker(broker_id=1, port=20911), topics("orders"), channel=slave)
        closed(self.table, master)
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual(route.broker_datas[0].broker_addrs, {1: "10.0.0.1:20911"})
        closed(self.table, slave)
        self.assertIsNone(self.table.topology.pick_route("orders"))
        self.assertEqual(self.table.topology.cluster_info().cluster_addr_table, {})

    def test_late_close_of_the_old_connection(self) -> None:
        """A broker that registered anew over another connection survives the end of the old one."""
        old, new = object(), object()
        self.register(broker(), topics("orders"), channel=old)
        self.register(broker(), topics("orders"), channel=new)
        self.assertEqual(closed(self.table, old), [])
        self.assertIsNotNone(self.table.topology.pick_route("orders"))

    def test_a_broker_that_comes_back_to_a_connection(self) -> None:
        """The end of a broker's present connection is not explained by a newer one that it used before."""
        old, new = object(), object()
        for channel in (old, new):
            self.register(broker(), topics("orders"), channel=channel)
        self.table.unregister_broker(identity(broker()), channel=new, **at(0))
        self.register(broker(), topics("orders"), channel=old)
        held, lost = self.table._connections.closed(old)
        self.assertEqual(([live.broker_name for live in held], lost), (["broker-a"], []))

    def test_query_over_a_new_connection(self) -> None:
        """With forceRegister=false the data version query alone moves the broker to its new connection."""
        old, new = object(), object()
        self.register(broker(), topics("orders"), channel=old)
        self.table.query_data_version(
            "broker-a", "10.0.0.1:10911", DataVersion(counter=1, timestamp=1), channel=new, **at(0)
        )
        self.assertEqual(closed(self.table, old), [])

    def test_close_of_a_client(self) -> None:
        """The end of a connection that no broker registered over changes nothing."""
        self.register(broker(), topics("orders"))
        version = self.table.topology.version
        self.assertEqual(closed(self.table, object()), [])
        self.assertEqual(self.table.topology.version, version)

    def test_unregister(self) -> None:
        """A broker that says good-bye is gone with its topics, its group and its cluster."""
        self.register(broker(), topics("orders"))
        self.table.unregister_broker(identity(broker()), channel=self.channel, **at(0))
        self.assertEqual((self.table.topology.topics(), self.table.live_brokers()), ([], []))
        self.assertEqual(self.table.topology.cluster_info().broker_addr_table, {})

    def test_late_unregister_of_the_old_master(self) -> None:
        """The old master's good-bye does not remove the new master of the same name."""
        self.register(broker(port=1), topics("orders"), channel=object())
        self.register(broker(port=2), topics("orders"))
        self.table.unregister_broker(identity(broker(port=1)), channel=self.channel, **at(0))
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertIsNotNone(self.table.topology.pick_route("orders"))

    def test_unregister_of_somebody_else(self) -> None:
        """A good-bye with another group's name leaves the broker at that address alone."""
        self.register(broker(), topics("orders"))
        self.table.unregister_broker(identity(broker("broker-z")), channel=self.channel, **at(0))
        self.assertEqual(len(self.table.live_brokers()), 1)
        self.assertIsNotNone(self.table.topology.pick_route("orders"))


class AdminTests(RouteCase):
    def test_wipe_and_add(self) -> None:
        """Wipe takes WRITE alone, add gives READ and WRITE alone: INHERIT is lost, as in Apache."""
        self.register(broker(), topics("TBW102", perm=7))
        self.table.wipe_write_perm("broker-a", **by_admin())
        self.assertEqual(self.perms("TBW102"), {"broker-a": 5})
        self.assertEqual(self.table.add_write_perm("broker-a", **by_admin()), 1)
        self.assertEqual(self.perms("TBW102"), {"broker-a": 6})
        self.assertEqual(self.table.wipe_write_perm("nobody", **by_admin()), 0)

    def test_delete_topic(self) -> None:
        """A topic is forgotten everywhere, or in one cluster only."""
        self.register(broker("a", port=1, cluster="C1"), topics("orders"))
        self.register(broker("b", port=2, cluster="C2"), topics("orders"))
        self.table.delete_topic("orders", "C1", **by_admin())
        self.assertEqual(self.perms("orders"), {"b": 6})
        self.table.delete_topic("orders", **by_admin())
        self.assertEqual(self.table.topology.topics(), [])
        self.table.delete_topic("orders", **by_admin())

    def test_register_topic(self) -> None:
        """A topic can be put on known groups by hand; an unknown group or none at all changes nothing."""
        self.register(broker(), topics())
        queue = QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)
        stranger = QueueData(broker_name="x", perm=6, read_queue_nums=1, write_queue_nums=1)
        self.assertFalse(self.table.register_topic("orders", [queue, stranger], **by_admin()))
        self.assertFalse(self.table.register_topic("orders", [], **by_admin()))
        self.assertEqual(self.table.topology.topics(), [])
        self.assertTrue(self.table.register_topic("orders", [queue], **by_admin()))
        self.assertEqual(self.perms("orders"), {"broker-a": 6})


class UnchangedTests(RouteCase):
    """Registrations that are known again by the digest of their body."""

    def setUp(self) -> None:
        super().setUp()
        self.register(broker(), topics("orders"), digest=digest_of(b"1"))

    def renew(self, header: RegisterBrokerHeader | None = None, digest: BodyDigest = ONE, **context: object) -> bool:
        channel = context.get("channel", self.channel)
        zone = str(context["zone"]) if "zone" in context else None
        reply = self.table.renew(header or broker(), digest, channel=channel, **at(60_000), zone_name=zone)
        return reply is not None

    def test_sign_of_life(self) -> None:
        """The same header and body again: nothing but a sign of life."""
        version = self.table.topology.version
        self.assertTrue(self.renew())
        self.assertEqual(self.table.topology.version, version)
        self.assertEqual(self.table.expire(**at(180_000)), [])
        self.assertEqual(len(self.table.expire(**at(180_001))), 1)

    def test_news(self) -> None:
        """Another body, header or zone, and an unknown broker, have to be read."""
        self.assertFalse(self.renew(digest=digest_of(b"2")))
        self.assertFalse(self.renew(broker("broker-z")))
        self.assertFalse(self.renew(broker(port=2)))
        self.assertFalse(self.renew(broker(broker_id=1)))
        self.assertFalse(self.renew(broker(cluster="D")))
        other = broker()
        other.ha_server_addr = "10.0.0.1:9"
        self.assertFalse(self.renew(other))
        self.assertFalse(self.renew(zone="z"))
        self.register(broker(), topics("orders"))
        self.assertFalse(self.renew())

    def test_table_changed_meanwhile(self) -> None:
        """After a deleted topic, a lost place, or a changed policy the same body has something to say again."""
        self.table.delete_topic("orders", **by_admin())
        self.assertFalse(self.renew())
        self.register(broker(), topics("orders"), digest=digest_of(b"1"))
        self.assertTrue(self.renew())
        self.register(broker(port=2), topics(), digest=digest_of(b"2"))
        self.assertFalse(self.renew())
        self.register(broker(), topics("orders"), digest=digest_of(b"1"))
        self.assertTrue(self.renew())
        self.table.policy = RoutePolicy(delete_absent_topics=True)
        self.assertFalse(self.renew())

    def test_wiped_permissions_stay(self) -> None:
        """A sign of life does not undo wipeWritePerm."""
        self.table.wipe_write_perm("broker-a", **by_admin())
        self.assertTrue(self.renew())
        self.assertEqual(self.perms("orders"), {"broker-a": 4})

    def test_over_another_connection(self) -> None:
        """The broker goes over to a newer connection; what comes over the older one is no sign of life."""
        new = object()
        self.assertTrue(self.renew(channel=new))
        self.assertEqual(self.table.live_brokers()[0].generation, 2)
        self.assertFalse(self.renew())
        self.assertEqual(closed(self.table, self.channel), [])
        self.assertEqual(len(closed(self.table, new)), 1)

    def test_slave_hears_of_its_master(self) -> None:
        """Who registers the same as before hears of its master all the same."""
        slave = broker(broker_id=1, port=20911)
        self.register(slave, topics(), digest=digest_of(b"s"))
        reply = self.table.renew(slave, digest_of(b"s"), channel=self.channel, **at(0))
        assert reply is not None
        self.assertEqual(reply.master_addr, "10.0.0.1:10911")


class ActingMasterTests(RouteCase):
    """Slaves of 5.x that stand in for a master that is gone."""

    def member(self, broker_id: int, *, acting: bool | None = True) -> RegisterBrokerHeader:
        header = broker(broker_id=broker_id, port=10911 + broker_id)
        header.enable_acting_master = acting
        return header

    def setUp(self) -> None:
        super().setUp()
        self.table.policy = RoutePolicy(support_acting_master=True)
        self.master, self.slaves = object(), object()
        self.register(self.member(0), topics("orders", "rmq_sys_SYNC_BROKER_MEMBER_broker-a"), channel=self.master)
        for broker_id in (2, 1):
            self.register(self.member(broker_id), topics("orders"), channel=self.slaves)

    def shown(self, topic: str = "orders") -> dict[int, str]:
        route = self.table.topology.pick_route(topic)
        return {} if route is None else route.broker_datas[0].broker_addrs

    def test_first_slave_is_shown_as_master(self) -> None:
        """When the master goes the first slave has id 0 in routes, for reading only; then the master is back."""
        self.assertEqual(self.shown(), {0: "10.0.0.1:10911", 1: "10.0.0.1:10912", 2: "10.0.0.1:10913"})
        version = self.table.topology.version
        closed(self.table, self.master)
        self.assertGreater(self.table.topology.version, version)
        self.assertEqual(self.shown(), {0: "10.0.0.1:10912", 2: "10.0.0.1:10913"})
        self.assertEqual(self.perms("orders"), {"broker-a": 4})
        self.assertEqual(self.addrs(), {1: "10.0.0.1:10912", 2: "10.0.0.1:10913"})
        self.register(self.member(0), topics("orders"), channel=self.master)
        self.assertEqual(self.shown(), {0: "10.0.0.1:10911", 1: "10.0.0.1:10912", 2: "10.0.0.1:10913"})
        self.assertEqual(self.perms("orders"), {"broker-a": 6})

    def test_members_are_told_the_truth(self) -> None:
        """Brokers that look for their own group find it as it is."""
        closed(self.table, self.master)
        self.assertEqual(self.shown("rmq_sys_SYNC_BROKER_MEMBER_broker-a"), {1: "10.0.0.1:10912", 2: "10.0.0.1:10913"})

    def test_switched_off(self) -> None:
        """Without supportActingMaster routes show ids as they are, and the change of policy is seen at once."""
        closed(self.table, self.master)
        version = self.table.topology.version
        self.table.policy = RoutePolicy()
        self.assertGreater(self.table.topology.version, version)
        self.assertEqual(self.shown(), {1: "10.0.0.1:10912", 2: "10.0.0.1:10913"})

    def test_slaves_topics_after_a_restart(self) -> None:
        """A NameServer that starts while the master is away learns the topics from the first slave alone."""
        self.table = RouteTable()
        self.register(self.member(2, acting=False), topics("first"))
        self.register(self.member(1), topics("orders"))
        self.register(self.member(2), topics("second", version=2))
        self.assertEqual(self.perms("orders"), {"broker-a": 4})
        self.assertEqual(self.perms("first"), {"broker-a": 6})
        self.assertEqual(self.table.topology.topics(), ["first", "orders"])

    def test_master_that_steps_back(self) -> None:
        """When the master comes back as the last slave, the first slave's topics count, though it says nothing new."""
        own = topics("orders", "own")
        self.register(self.member(1), own, channel=self.slaves, digest=ONE)
        self.assertIsNone(self.table.topology.pick_route("own"))
        self.register(msgspec.structs.replace(self.member(0), broker_id=3), topics(), channel=self.master)
        reply = self.table.renew(self.member(1), ONE, channel=self.slaves, **at(0))
        self.assertIsNone(reply)
        self.register(self.member(1), own, channel=self.slaves, digest=ONE)
        self.assertEqual(self.perms("own"), {"broker-a": 4})

    def test_brokers_that_do_not_act(self) -> None:
        """A 4.9 group that loses its master keeps its permissions and its ids."""
        table = RouteTable()
        table.policy = RoutePolicy(support_acting_master=True)
        self.table = table
        self.register(broker(), topics("orders"), channel=self.master)
        self.register(broker(broker_id=1, port=2), topics("orders"), channel=self.slaves)
        closed(table, self.master)
        self.assertEqual((self.shown(), self.perms("orders")), ({1: "10.0.0.1:2"}, {"broker-a": 6}))

    def test_smallest_id(self) -> None:
        """Whoever is told hears when another broker has the smallest id: one that came, or one that is left."""
        changes: list[MinBrokerIdChange] = []
        self.table.on_min_broker_id = changes.append
        closed(self.table, self.master)
        self.register(self.member(0), topics("orders"), channel=self.master)
        self.register(self.member(0), topics("orders"), channel=self.master)
        slaves = {1: "10.0.0.1:10912", 2: "10.0.0.1:10913"}
        self.assertEqual(
            changes,
            [
                MinBrokerIdChange(broker_name="broker-a", addrs=slaves, offline_addr="10.0.0.1:10911"),
                MinBrokerIdChange(
                    broker_name="broker-a", addrs={0: "10.0.0.1:10911", **slaves}, ha_addr="10.0.0.1:10912"
                ),
            ],
        )


class ZoneTests(RouteCase):
    def test_brokers_of_a_zone(self) -> None:
        """A client that asks for a zone gets its brokers, in any case of letters, and those that lost their master."""
        for name, port, zone in (("a", 1, "East"), ("b", 2, "west"), ("c", 3, None)):
            self.register(broker(name, port=port), topics("orders"), zone=zone, channel=object())
        self.register(broker("d", port=4, broker_id=1), topics(), zone="west")
        queue = QueueData(broker_name="d", perm=6, read_queue_nums=1, write_queue_nums=1)
        self.table.register_topic("orders", [queue], **by_admin())

        def found(zone: str | None) -> list[str]:
            route = self.table.topology.pick_route("orders", zone_name=zone)
            assert route is not None
            names = [each.broker_name for each in route.broker_datas]
            self.assertEqual([each.broker_name for each in route.queue_datas], names)
            return names

        self.assertEqual(found(None), ["a", "b", "c", "d"])
        self.assertEqual(found("EAST"), ["a", "d"])
        self.assertEqual(found("nowhere"), ["d"])


class AbsentTopicTests(RouteCase):
    def test_topics_that_a_registration_lacks(self) -> None:
        """With deleteTopicWithBrokerRegistration a topic goes with the registration that lacks it, on that broker."""
        self.table.policy = RoutePolicy(delete_absent_topics=True)
        self.register(broker("a", port=1), topics("orders", "bills"))
        self.register(broker("b", port=2), topics("orders"))
        self.register(broker("a", port=1), topics("bills"))
        self.assertEqual((self.perms("orders"), self.perms("bills")), ({"b": 6}, {"a": 6}))
        self.register(broker("b", port=2), topics("new", version=2))
        self.assertEqual(self.table.topology.topics(), ["bills", "new"])

    def test_slaves_take_nothing_away(self) -> None:
        """A slave's topics do not count, so neither do those that it lacks."""
        self.table.policy = RoutePolicy(delete_absent_topics=True)
        self.register(broker(), topics("orders"))
        self.register(broker(broker_id=1, port=2), topics())
        self.assertEqual(self.table.topology.topics(), ["orders"])


class BoundsTests(RouteCase):
    def test_connections_are_forgotten(self) -> None:
        """Brokers that come, reconnect and go leave nothing behind."""
        for number in range(100):
            channels = [object() for _ in range(3)]
            for channel in channels:
                self.register(broker(port=1 + number % 3), topics("orders"), channel=channel)
            self.table.heartbeat("broker-a", f"10.0.0.1:{1 + number % 3}", channel=object(), **at(0))
            self.table.expire(**at(10**9))
            for channel in channels:
                closed(self.table, channel)
        self.assertEqual((self.table.live_brokers(), self.table.topology.topics()), ([], []))
        # The connections of the heartbeats have not ended.
        self.assertEqual(len(self.table._connections), 100)

    def test_one_copy_of_each_name(self) -> None:
        """However many brokers have a topic, its name and the like queues of one broker are kept once."""
        for port in (1, 2):
            names = [f"topic-{number}" for number in range(3)]
            self.register(broker(f"b{port}", port=port), topics(*names))
        groups = [self.table.topology.groups[name] for name in ("b1", "b2")]
        for one, other in zip(*(group.queues for group in groups), strict=True):
            self.assertIs(one, other)
        self.assertEqual([len({id(queue) for queue in group.queues.values()}) for group in groups], [1, 1])


class ListTests(RouteCase):
    def test_unit_topics(self) -> None:
        """Unit and unit-subscription topics are told apart by their flags."""
        for flag in range(4):
            self.register(broker(), topics(f"flag{flag}", version=flag, flag=flag))
        self.assertEqual(self.table.topology.topics_by_flag(wanted=1), ["flag1", "flag3"])
        self.assertEqual(self.table.topology.topics_by_flag(wanted=2), ["flag2", "flag3"])
        self.assertEqual(self.table.topology.topics_by_flag(wanted=2, unwanted=1), ["flag2"])

    def test_system_topics(self) -> None:
        """Clusters and groups are topics too; with them comes some broker's address."""
        self.assertEqual(self.table.topology.system_topics(), ([], None))
        self.register(broker(), topics())
        self.assertEqual(self.table.topology.system_topics(), (["C", "broker-a"], "10.0.0.1:10911"))

    def test_topics_of_a_cluster(self) -> None:
        """A cluster has the topics of its groups; an unknown one has none."""
        self.register(broker("a", port=1, cluster="C1"), topics("x", "y"))
        self.register(broker("b", port=2, cluster="C2"), topics("y", "z"))
        self.assertEqual(self.table.topology.topics_of_cluster("C1"), ["x", "y"])
        self.assertEqual(self.table.topology.topics_of_cluster("?"), [])
