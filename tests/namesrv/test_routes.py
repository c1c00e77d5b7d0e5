"""The route table, statement by statement."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.routes import BROKER_EXPIRY_MS, RouteTable
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import BrokerIdentityHeader, QueueData, RegisterBrokerHeader, RegisterBrokerReply


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


class RouteCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.table = RouteTable()
        self.channel = object()

    def register(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, *, channel: object = None, now_ms: int = 0
    ) -> RegisterBrokerReply:
        return self.table.register_broker(header, body, channel=channel or self.channel, now_ms=now_ms)

    def perms(self, topic: str) -> dict[str, int]:
        route = self.table.pick_route(topic)
        return {} if route is None else {queue.broker_name: queue.perm for queue in route.queue_datas}

    def addrs(self, name: str = "broker-a") -> dict[int, str]:
        group = self.table.group(name)
        return {} if group is None else group.broker_addrs


class RegistrationTests(RouteCase):
    def test_route(self) -> None:
        """A registered topic has a route with the broker's queues and address; another topic has none."""
        self.register(broker(), topics("orders"))
        route = self.table.pick_route("orders")
        assert route is not None
        self.assertEqual(route.broker_datas[0].broker_addrs, {0: "10.0.0.1:10911"})
        self.assertEqual(route.queue_datas[0].write_queue_nums, 4)
        self.assertIsNone(self.table.pick_route("bills"))

    def test_partial_before_full(self) -> None:
        """A partial registration may come first after a restart; the full one of the same version counts."""
        self.register(broker(), topics("new", version=5))
        self.register(broker(), topics("new", "old", version=5))
        self.assertEqual(self.table.topics(), ["new", "old"])

    def test_unchanged_registration_keeps_wiped_permissions(self) -> None:
        """The 30 s heartbeat does not undo wipeWritePerm; a changed registration does."""
        self.register(broker(), topics("orders"))
        self.assertEqual(self.table.wipe_write_perm("broker-a"), 1)
        self.register(broker(), topics("orders"))
        self.assertEqual(self.perms("orders"), {"broker-a": 4})
        self.register(broker(), topics("orders", version=2))
        self.assertEqual(self.perms("orders"), {"broker-a": 6})

    def test_topics_absent_from_the_body_stay(self) -> None:
        """A registration never removes topics."""
        self.register(broker(), topics("a", "b"))
        self.register(broker(), topics("a", version=2))
        self.assertEqual(self.table.topics(), ["a", "b"])

    def test_slaves_topics_do_not_count(self) -> None:
        """Only a master's topics make routes; with a slave alone there is a group but no topic."""
        self.register(broker(broker_id=1), topics("orders"))
        self.assertIsNone(self.table.pick_route("orders"))
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
        self.table.channel_closed(old)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertIsNotNone(self.table.pick_route("orders"))

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
        self.table.channel_closed(master_channel)
        self.assertEqual(self.register(slave, topics()), nothing)

    def test_filter_servers(self) -> None:
        """Filter servers show in routes until an empty list comes; no list leaves them."""
        body = topics("orders")
        body.filter_server_list = ["10.0.0.9:1"]
        self.register(broker(), body)
        body.filter_server_list = None
        self.register(broker(), body)
        route = self.table.pick_route("orders")
        assert route is not None
        self.assertEqual(route.filter_server_table, {"10.0.0.1:10911": ["10.0.0.9:1"]})
        body.filter_server_list = []
        self.register(broker(), body)
        route = self.table.pick_route("orders")
        assert route is not None
        self.assertEqual(route.filter_server_table, {})

    def test_unchanged_registration_keeps_the_version(self) -> None:
        """Heartbeats do not throw away encoded routes."""
        self.register(broker(), topics("orders"))
        version = self.table.version
        self.register(broker(), topics("orders"), now_ms=30_000)
        self.assertEqual(self.table.version, version)

    def test_sorted_by_broker_name(self) -> None:
        """Brokers and queues of a route come in the order of their names."""
        for name, port in (("b", 2), ("a", 1), ("c", 3)):
            self.register(broker(name, port=port), topics("orders"))
        route = self.table.pick_route("orders")
        assert route is not None
        self.assertEqual([data.broker_name for data in route.broker_datas], ["a", "b", "c"])
        self.assertEqual([data.broker_name for data in route.queue_datas], ["a", "b", "c"])


class DepartureTests(RouteCase):
    def test_silent_broker_disappears(self) -> None:
        """A broker unheard of for two minutes is gone from the route of its topics."""
        self.register(broker(), topics("orders"))
        self.assertEqual(self.table.expire(BROKER_EXPIRY_MS), [])
        self.assertEqual([gone.broker_name for gone in self.table.expire(BROKER_EXPIRY_MS + 1)], ["broker-a"])
        self.assertIsNone(self.table.pick_route("orders"))
        self.assertEqual(self.table.topics(), [])

    def test_own_expiry(self) -> None:
        """A 5.x broker that gave heartbeatTimeoutMillis is gone after that time."""
        header = broker()
        header.heartbeat_timeout_millis = 10_000
        self.register(header, topics("orders"))
        self.assertEqual(self.table.expire(10_000), [])
        self.assertEqual(len(self.table.expire(10_001)), 1)

    def test_signs_of_life(self) -> None:
        """A registration, a data version query and a heartbeat each give another two minutes."""
        header, version = broker(), DataVersion(counter=1, timestamp=1)
        self.register(header, topics("orders"))
        self.register(header, topics("orders"), now_ms=100_000)
        self.assertEqual(self.table.expire(220_000), [])
        answer = self.table.query_data_version(
            "broker-a", header.broker_addr, version, channel=self.channel, now_ms=220_000
        )
        self.assertEqual(answer, (False, version))
        self.assertEqual(self.table.expire(340_000), [])
        self.assertTrue(self.table.heartbeat("broker-a", header.broker_addr, channel=self.channel, now_ms=340_000))
        self.assertEqual(self.table.expire(460_000), [])
        self.assertEqual(len(self.table.expire(460_001)), 1)
        self.assertFalse(self.table.heartbeat("broker-a", header.broker_addr, channel=self.channel, now_ms=460_001))

    def test_group_stays_while_a_slave_lives(self) -> None:
        """When the master goes its topics can still be read from the slave."""
        master, slave = object(), object()
        self.register(broker(), topics("orders"), channel=master)
        self.register(broker(broker_id=1, port=20911), topics("orders"), channel=slave)
        self.table.channel_closed(master)
        route = self.table.pick_route("orders")
        assert route is not None
        self.assertEqual(route.broker_datas[0].broker_addrs, {1: "10.0.0.1:20911"})
        self.table.channel_closed(slave)
        self.assertIsNone(self.table.pick_route("orders"))
        self.assertEqual(self.table.cluster_info().cluster_addr_table, {})

    def test_late_close_of_the_old_connection(self) -> None:
        """A broker that registered anew over another connection survives the end of the old one."""
        old, new = object(), object()
        self.register(broker(), topics("orders"), channel=old)
        self.register(broker(), topics("orders"), channel=new)
        self.assertEqual(self.table.channel_closed(old), [])
        self.assertIsNotNone(self.table.pick_route("orders"))

    def test_query_over_a_new_connection(self) -> None:
        """With forceRegister=false the data version query alone moves the broker to its new connection."""
        old, new = object(), object()
        self.register(broker(), topics("orders"), channel=old)
        self.table.query_data_version(
            "broker-a", "10.0.0.1:10911", DataVersion(counter=1, timestamp=1), channel=new, now_ms=0
        )
        self.assertEqual(self.table.channel_closed(old), [])

    def test_close_of_a_client(self) -> None:
        """The end of a connection that no broker registered over changes nothing."""
        self.register(broker(), topics("orders"))
        version = self.table.version
        self.assertEqual(self.table.channel_closed(object()), [])
        self.assertEqual(self.table.version, version)

    def test_unregister(self) -> None:
        """A broker that says good-bye is gone with its topics, its group and its cluster."""
        self.register(broker(), topics("orders"))
        self.table.unregister_broker(identity(broker()))
        self.assertEqual((self.table.topics(), self.table.live_brokers()), ([], []))
        self.assertEqual(self.table.cluster_info().broker_addr_table, {})

    def test_late_unregister_of_the_old_master(self) -> None:
        """The old master's good-bye does not remove the new master of the same name."""
        self.register(broker(port=1), topics("orders"), channel=object())
        self.register(broker(port=2), topics("orders"))
        self.table.unregister_broker(identity(broker(port=1)))
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertIsNotNone(self.table.pick_route("orders"))

    def test_unregister_of_somebody_else(self) -> None:
        """A good-bye with another group's name leaves the broker at that address alone."""
        self.register(broker(), topics("orders"))
        self.table.unregister_broker(identity(broker("broker-z")))
        self.assertEqual(len(self.table.live_brokers()), 1)
        self.assertIsNotNone(self.table.pick_route("orders"))


class AdminTests(RouteCase):
    def test_wipe_and_add(self) -> None:
        """Wipe takes WRITE alone, add gives READ and WRITE alone: INHERIT is lost, as in Apache."""
        self.register(broker(), topics("TBW102", perm=7))
        self.table.wipe_write_perm("broker-a")
        self.assertEqual(self.perms("TBW102"), {"broker-a": 5})
        self.assertEqual(self.table.add_write_perm("broker-a"), 1)
        self.assertEqual(self.perms("TBW102"), {"broker-a": 6})
        self.assertEqual(self.table.wipe_write_perm("nobody"), 0)

    def test_delete_topic(self) -> None:
        """A topic is forgotten everywhere, or in one cluster only."""
        self.register(broker("a", port=1, cluster="C1"), topics("orders"))
        self.register(broker("b", port=2, cluster="C2"), topics("orders"))
        self.table.delete_topic("orders", "C1")
        self.assertEqual(self.perms("orders"), {"b": 6})
        self.table.delete_topic("orders")
        self.assertEqual(self.table.topics(), [])
        self.table.delete_topic("orders")

    def test_register_topic(self) -> None:
        """A topic can be put on known groups by hand; an unknown group or none at all changes nothing."""
        self.register(broker(), topics())
        queue = QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)
        stranger = QueueData(broker_name="x", perm=6, read_queue_nums=1, write_queue_nums=1)
        self.assertFalse(self.table.register_topic("orders", [queue, stranger]))
        self.assertFalse(self.table.register_topic("orders", []))
        self.assertEqual(self.table.topics(), [])
        self.assertTrue(self.table.register_topic("orders", [queue]))
        self.assertEqual(self.perms("orders"), {"broker-a": 6})


class ListTests(RouteCase):
    def test_unit_topics(self) -> None:
        """Unit and unit-subscription topics are told apart by their flags."""
        for flag in range(4):
            self.register(broker(), topics(f"flag{flag}", version=flag, flag=flag))
        self.assertEqual(self.table.topics_by_flag(wanted=1), ["flag1", "flag3"])
        self.assertEqual(self.table.topics_by_flag(wanted=2), ["flag2", "flag3"])
        self.assertEqual(self.table.topics_by_flag(wanted=2, unwanted=1), ["flag2"])

    def test_system_topics(self) -> None:
        """Clusters and groups are topics too; with them comes some broker's address."""
        self.assertEqual(self.table.system_topics(), ([], None))
        self.register(broker(), topics())
        self.assertEqual(self.table.system_topics(), (["C", "broker-a"], "10.0.0.1:10911"))

    def test_topics_of_a_cluster(self) -> None:
        """A cluster has the topics of its groups; an unknown one has none."""
        self.register(broker("a", port=1, cluster="C1"), topics("x", "y"))
        self.register(broker("b", port=2, cluster="C2"), topics("y", "z"))
        self.assertEqual(self.table.topics_of_cluster("C1"), ["x", "y"])
        self.assertEqual(self.table.topics_of_cluster("?"), [])
