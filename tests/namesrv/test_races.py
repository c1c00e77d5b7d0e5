"""
Races between the coming and the going of brokers, each replayed as it was reported against Apache RocketMQ.

An old connection's end, an old good-bye and a late expiry never take away a newer registration.
"""

from __future__ import annotations

import msgspec
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.journal.events import EventKind, RouteEvent
from rmq.namesrv.journal.reasons import reason_of
from rmq.namesrv.routes import RouteTable
from rmq.wire.api.common import DataVersion
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import (
    BROKER_HEARTBEAT,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerHeartbeatHeader,
    RegisterBrokerHeader,
    RegisterBrokerReply,
)
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RemotingCommand, decode_commands
from rmq.wire.extfields import encode_ext
from tests.namesrv.talk import Talk, at, by_admin, closed, one_turn
from tests.namesrv.test_responders import HEADER, body
from tests.namesrv.test_routes import broker, identity, topics
from tests.namesrv.test_service import Peer


class Connection:
    """A connection to the table, as far as the table looks at it."""

    def __init__(self, name: str) -> None:
        self.peer = name


class RaceCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.events: list[RouteEvent] = []
        self.table = RouteTable(on_event=self.events.append)
        self.old, self.new = Connection("10.0.0.1:40001"), Connection("10.0.0.1:40002")

    def register(
        self,
        header: RegisterBrokerHeader,
        channel: object,
        *,
        now_ms: int = 0,
        body: RegisterBrokerBody | None = None,
    ) -> RegisterBrokerReply:
        body = topics("orders") if body is None else body
        return self.table.register_broker(header, body, channel=channel, **at(now_ms))

    def addrs(self) -> dict[int, str]:
        group = self.table.topology.group("broker-a")
        return {} if group is None else group.broker_addrs

    def fenced(self) -> list[str]:
        return [reason_of(event.causes, event.peer) for event in self.events if event.kind is EventKind.FENCED]

    def has_route(self) -> bool:
        return self.table.topology.pick_route("orders") is not None


class ReasonTests(RaceCase):
    def test_what_a_registration_changed(self) -> None:
        """The reason of a change names each thing that changed, before and now; a new broker is called so."""
        self.register(broker(), self.old)
        header = msgspec.structs.replace(broker(broker_id=1, cluster="D"), ha_server_addr="h:1")
        changed = topics("orders", "bills", version=2)
        changed.filter_server_list = ["f:1"]
        self.register(msgspec.structs.replace(header, enable_acting_master=True), self.new, body=changed)
        self.assertEqual(
            [reason_of(event.causes, event.peer) for event in self.events],
            [
                "new broker",
                "connection changed from 10.0.0.1:40001 to 10.0.0.1:40002",
                "broker id changed from 0 to 1; HA address changed from 10.0.0.1:10912 to h:1;"
                " cluster changed from C to D; filter servers changed; topics changed: 2",
            ],
        )


class Issue11043Tests(RaceCase):
    """
    A stale expiry or channel-close unregister wipes a broker's fresh re-registration.

    Apache 5.x decides to unregister (in the scan, or when a channel closes) in one thread and does it in another, by
    address alone, without looking again: a broker that registers in between is deleted, for up to 30 s. Ours decides
    and acts in one step, looks at the connection and the id, and reads what waits in sockets before it calls a broker
    silent.
    """

    def test_close_of_the_old_connection_comes_last(self) -> None:
        """A broker that registered over a new connection stays when the end of the old one is told at last."""
        self.register(broker(), self.old)
        self.register(broker(), self.new, now_ms=1000)
        self.assertEqual(self.table.channel_closed(self.old, **at(2000), reason="closed by the peer"), [])
        self.assertTrue(self.has_route())
        self.assertEqual(
            self.fenced(),
            [
                "connection 10.0.0.1:40001 closed: closed by the peer;"
                " the broker has registered over 10.0.0.1:40002 since"
            ],
        )

    def test_expiry_decided_before_the_registration(self) -> None:
        """A scan sees a registration that came after the broker had been silent for too long."""
        self.register(broker(), self.old)
        self.register(broker(), self.new, now_ms=500_000)
        self.assertEqual(self.table.expire(**at(500_001)), [])
        self.assertTrue(self.has_route())

    def test_slave_s_good_bye_behind_its_promotion(self) -> None:
        """A good-bye as slave does not take away the master that the same process has become."""
        self.register(broker(broker_id=1), self.old)
        self.register(broker(broker_id=0), self.old)
        self.assertFalse(self.table.unregister_broker(identity(broker(broker_id=1)), channel=self.old, **at(0)))
        self.assertEqual(self.addrs(), {0: "10.0.0.1:10911"})
        self.assertEqual(self.fenced(), ["unregister request for id 1, the id is 0 now"])

    def test_good_bye_of_the_process_before(self) -> None:
        """A good-bye over the old connection does not take away the process that was started at the same address."""
        self.register(broker(), self.old)
        self.register(broker(), self.new)
        self.assertFalse(self.table.unregister_broker(identity(broker()), channel=self.old, **at(0)))
        self.assertTrue(self.has_route())
        self.assertIn("older connection than 10.0.0.1:40002", self.fenced()[0])

    def test_registration_of_the_process_before(self) -> None:
        """A registration that was on its way over the old connection neither counts nor takes the broker back to it."""
        self.register(broker(), self.old)
        self.register(broker(), self.new, body=topics("orders", version=2, queues=8))
        self.register(broker(), self.old, body=topics("orders", version=1, queues=4))
        closed(self.table, self.old)
        route = self.table.topology.pick_route("orders")
        assert route is not None
        self.assertEqual(route.queue_datas[0].write_queue_nums, 8)
        self.assertEqual(len(self.fenced()), 2)

    def test_a_process_that_stood_still(self) -> None:
        """
        A NameServer that did not run for minutes expires nobody before it has read what brokers sent meanwhile.

        Apache's scan runs first, closes all channels and loses every route (the pause of the report).
        """
        talk = Talk.started(self.mktemp())
        peer = Peer(talk)
        talk.reactor.pump([1.0] * 6)
        peer.register()
        with capturedLogs() as logs:
            talk.reactor.advance(400)  # stopped, and on again: timers go off before sockets are read
            self.assertFalse(peer.transport.disconnecting)
            peer.register()
            talk.reactor.pump([1.0] * 15)
        self.assertEqual(Peer(talk).route_code(), 0)
        warnings = [event["log_format"] for event in logs if event["log_level"] is LogLevel.warn]
        self.assertEqual(sum("process stalled" in text for text in warnings), 1)

    def test_silence_after_standing_still(self) -> None:
        """A broker that is really gone expires with the scan after that."""
        talk = Talk.started(self.mktemp())
        peer = Peer(talk)
        talk.reactor.pump([1.0] * 6)
        peer.register()
        talk.reactor.advance(400)
        talk.reactor.pump([1.0] * 15)
        self.assertEqual(Peer(talk).route_code(), 17)
        self.assertTrue(peer.transport.disconnecting)


class Issue5374Tests(RaceCase):
    """
    The unregistering of a broker removes the newly registered one.

    Apache before 5.0.1 (and 4.9 to this day) removes by broker id: the old master's late good-bye takes the new
    master's place away. Ours, as 5.x does, removes only the address that says good-bye.
    """

    def test_old_master_s_late_good_bye(self) -> None:
        """The new master of the same name stays, over whichever connection the old one says good-bye."""
        self.register(broker(port=1), self.old)
        self.register(broker(port=2), self.new)
        self.assertTrue(self.table.unregister_broker(identity(broker(port=1)), channel=self.old, **at(0)))
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertTrue(self.has_route())
        self.assertEqual(self.fenced(), ["the broker unregistered; 10.0.0.1:2 had replaced it before"])

    def test_old_master_s_connection_ends(self) -> None:
        """Neither does the end of its connection, nor its silence, take anything from the new one."""
        self.register(broker(port=1), self.old)
        self.register(broker(port=2), self.new)
        self.register(broker(port=2), self.new, now_ms=120_000)
        self.assertEqual(len(self.table.expire(**at(120_001))), 1)
        closed(self.table, self.old)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:2"})
        self.assertTrue(self.has_route())

    def test_masters_change_places(self) -> None:
        """Two brokers that swap their ids over the connections that they have both stay."""
        for first, second in ((0, 1), (1, 0)):
            self.register(broker(port=1, broker_id=first), self.old)
            self.register(broker(port=2, broker_id=second), self.new)
            self.assertEqual(self.addrs(), {first: "10.0.0.1:1", second: "10.0.0.1:2"})

    def test_state_version(self) -> None:
        """5.x: a broker of an older state version does not get the place of a newer one; a newer one does."""
        newer, older = topics("orders"), topics("bills")
        newer.topic_config_serialize_wrapper.data_version = DataVersion(counter=1, state_version=2)
        older.topic_config_serialize_wrapper.data_version = DataVersion(counter=9, state_version=1)
        self.register(broker(port=2), self.new, body=newer)
        self.assertEqual(self.register(broker(port=1), self.old, body=older), RegisterBrokerReply())
        self.assertEqual((self.addrs(), self.table.topology.topics()), ({0: "10.0.0.1:2"}, ["orders"]))
        self.assertIn("lower than 2 of 10.0.0.1:2", self.fenced()[0])
        older.topic_config_serialize_wrapper.data_version = DataVersion(counter=9, state_version=3)
        self.register(broker(port=1), self.old, body=older)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:1"})


class Issue4522Tests(RaceCase):
    """
    A broker's first registration may not take effect.

    With Apache 4.9 a topic that is created right after the NameServer's start is registered alone, with the version of
    the whole table; the full registration behind it has the same version, counts as unchanged, and all other topics
    stay without a route. 5.x refuses a first registration of exactly one topic. Ours takes both: what is missing comes
    in whatever the version says.
    """

    def test_one_topic_first(self) -> None:
        """All topics have a route as soon as the full registration is there."""
        self.register(broker(), self.old, body=topics("new", version=7))
        self.register(broker(), self.old, body=topics("new", "orders", "bills", version=7))
        self.assertEqual(sorted(self.table.topology.topics()), ["bills", "new", "orders"])

    def test_what_is_known_is_not_overwritten(self) -> None:
        """A wiped permission survives the full registration of the same version."""
        self.register(broker(), self.old, body=topics("new", version=7))
        self.table.wipe_write_perm("broker-a", **by_admin())
        self.register(broker(), self.old, body=topics("new", "orders", version=7))
        route = self.table.topology.pick_route("new")
        assert route is not None
        self.assertEqual(route.queue_datas[0].perm, 4)


class LegitimateTests(RaceCase):
    """What must still work with all that fencing."""

    def test_restart(self) -> None:
        """A broker that ends and comes back over a new connection, at the same address, is there again at once."""
        for channel in (self.old, self.new, Connection("c")):
            self.register(broker(), channel)
            self.assertTrue(self.has_route())
            closed(self.table, channel)
            self.assertFalse(self.has_route())

    def test_good_bye_over_a_new_connection(self) -> None:
        """A broker whose connection broke unnoticed says good-bye over another one, and goes."""
        self.register(broker(), self.old)
        self.assertTrue(self.table.unregister_broker(identity(broker()), channel=self.new, **at(0)))
        self.assertFalse(self.has_route())

    def test_registration_after_a_good_bye(self) -> None:
        """Over the same connection a broker may go and come."""
        self.register(broker(), self.old)
        self.table.unregister_broker(identity(broker()), channel=self.old, **at(0))
        self.register(broker(), self.old)
        self.assertTrue(self.has_route())

    def test_old_connection_after_the_new_one_ended(self) -> None:
        """When the newer connection is gone, the one that is left counts again."""
        self.register(broker(), self.old)
        self.register(broker(), self.new)
        closed(self.table, self.new)
        self.assertFalse(self.has_route())
        self.register(broker(), self.old)
        self.assertTrue(self.has_route())

    def test_asking_on_behalf_of_a_broker(self) -> None:
        """A tool that asks for a broker's data version does not take the broker with it when it leaves."""
        version = DataVersion(counter=1, timestamp=1)
        self.register(broker(), self.old)
        self.table.query_data_version("broker-a", "10.0.0.1:10911", version, channel=self.new, **at(0))
        self.assertEqual(closed(self.table, self.new), [])
        self.assertTrue(self.has_route())
        self.assertEqual(len(closed(self.table, self.old)), 1)
        self.assertFalse(self.has_route())

    def test_reconnected_without_registering(self) -> None:
        """With forceRegister=false only a query tells of the new connection: the broker goes over to it."""
        version = DataVersion(counter=1, timestamp=1)
        self.register(broker(), self.old)
        self.table.query_data_version("broker-a", "10.0.0.1:10911", version, channel=self.new, **at(0))
        self.assertEqual(closed(self.table, self.old), [])
        self.assertTrue(self.has_route())
        self.assertEqual(len(closed(self.table, self.new)), 1)
        self.assertFalse(self.has_route())

    def test_place_lost_to_a_broker_that_is_gone(self) -> None:
        """With forceRegister=false a broker that lost its place hears that it must register once the place is free."""
        version = DataVersion(counter=1, timestamp=1)
        self.register(broker(port=1), self.old)
        self.register(broker(port=2), self.new)
        ask = ("broker-a", "10.0.0.1:1", version)
        self.assertFalse(self.table.query_data_version(*ask, channel=self.old, **at(0))[0])
        closed(self.table, self.new)
        self.assertTrue(self.table.query_data_version(*ask, channel=self.old, **at(0))[0])
        self.register(broker(port=1), self.old)
        self.assertEqual(self.addrs(), {0: "10.0.0.1:1"})

    def test_two_machines_that_call_themselves_localhost(self) -> None:
        """Brokers of two names that register the same address come and go without touching each other."""
        self.register(broker("broker-a"), self.old)
        self.register(broker("broker-b"), self.new, body=topics("bills"))
        closed(self.table, self.new)
        self.assertEqual((self.table.topology.topics(), self.addrs()), (["orders"], {0: "10.0.0.1:10911"}))
        self.register(broker("broker-b"), Connection("c"), body=topics("bills"))
        closed(self.table, self.old)
        self.assertEqual(self.table.topology.topics(), ["bills"])

    def test_several_brokers_over_one_connection(self) -> None:
        """The silence of one broker of a container does not cut the connection that others speak over."""
        talk = Talk.started(self.mktemp())
        peer = Peer(talk)
        other = RegisterBrokerHeader(
            broker_name="b", broker_addr="10.0.0.1:20911", cluster_name="C", ha_server_addr="-", broker_id=0
        )
        peer.register()
        peer.ask(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(other), body=body("U")))
        alive = BrokerHeartbeatHeader(cluster_name="C", broker_addr="10.0.0.1:20911", broker_name="b")
        for _ in range(140):
            talk.reactor.advance(1)
            peer.ask(RemotingCommand(BROKER_HEARTBEAT.code, 1, ext_fields=encode_ext(alive)))
        self.assertEqual(talk.service.routes.topology.topics(), ["U"])
        self.assertFalse(peer.transport.disconnecting)

    def test_good_bye_behind_a_registration_that_waits(self) -> None:
        """What a broker says while its large registration waits for its turn is heard after that, in its order."""
        talk = Talk.started(self.mktemp())
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        one, other = Peer(talk), Peer(talk)
        table = talk.service.routes
        register = RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large)
        again = RemotingCommand(REGISTER_BROKER.code, 2, ext_fields=encode_ext(HEADER), body=body("new", version=2))
        good_bye = {name: encode_ext(HEADER)[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
        unregister = RemotingCommand(UNREGISTER_BROKER.code, 3, ext_fields=good_bye)
        one.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=self.another(), body=large))
        other.send(register)
        other.send(again)
        other.send(unregister)
        self.assertEqual(table.live_brokers(), [])
        talk.reactor.advance(0)
        self.assertEqual([answer.opaque for answer in decode_commands(other.transport.value())], [1, 2, 3])
        self.assertEqual([live.broker_name for live in table.live_brokers()], ["b"])

    def test_good_bye_whose_connection_ended_before_its_turn(self) -> None:
        """A broker that reconnects at once keeps its new registration when its old good-bye has its turn late."""
        talk = Talk.started(self.mktemp())
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        one, old, new = Peer(talk), Peer(talk), Peer(talk)
        old.register()
        good_bye = {name: encode_ext(HEADER)[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
        for header in (self.another(), {**self.another(), "brokerName": "c"}):
            one.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=header, body=large))
        new.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large))
        old.send(RemotingCommand(UNREGISTER_BROKER.code, 3, ext_fields=good_bye))
        old.close()
        talk.reactor.advance(0)
        self.assertEqual([live.broker_name for live in talk.service.routes.live_brokers()], ["a", "b", "c"])

    def test_look_ups_in_the_middle_of_a_large_registration(self) -> None:
        """A large registration leaves a turn to others, who see all of it or nothing; small ones wait for its end."""
        talk = Talk.started(self.mktemp())
        peer, client = Peer(talk), Peer(talk)
        table = talk.service.routes
        large = body("T", *(f"{'topic' * 20}-{number}" for number in range(800)))
        peer.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large))
        client.send(RemotingCommand(REGISTER_BROKER.code, 2, ext_fields=self.another(), body=body("U")))
        one_turn(talk.reactor)  # sockets are looked at again
        self.assertEqual((table.topology.topics(), client.route_code()), ([], ResponseCode.TOPIC_NOT_EXIST))
        one_turn(talk.reactor)
        self.assertEqual([answer.opaque for answer in decode_commands(peer.transport.value())], [1])
        self.assertEqual((len(table.topology.topics()), client.route_code()), (801, 0))
        one_turn(talk.reactor)
        self.assertEqual(len(table.topology.topics()), 802)

    def test_connection_that_ended_in_the_middle(self) -> None:
        """A broker whose connection ended before the second half of its registration is in no route."""
        talk = Talk.started(self.mktemp())
        peer = Peer(talk)
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        peer.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large))
        peer.close()
        talk.reactor.advance(0)
        self.assertEqual(talk.service.routes.live_brokers(), [])

    def test_connection_that_ended_before_its_turn(self) -> None:
        """A broker whose connection ended while its registration waited is not in any route."""
        talk = Talk.started(self.mktemp())
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        one, other = Peer(talk), Peer(talk)
        one.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=self.another(), body=large))
        other.send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(HEADER), body=large))
        other.close()
        talk.reactor.advance(0)
        self.assertEqual([live.broker_name for live in talk.service.routes.live_brokers()], ["b"])

    def another(self) -> dict[str, str]:
        return encode_ext(HEADER) | {"brokerName": "b", "brokerAddr": "10.0.0.1:20911"}

    def test_whole_way(self) -> None:
        """Over the wire: the old process's good-bye behind the new one's registration is answered, and void."""
        talk = Talk.started(self.mktemp())
        before, after = Peer(talk), Peer(talk)
        before.register()
        after.register()
        good_bye = {
            "brokerName": HEADER.broker_name,
            "brokerAddr": HEADER.broker_addr,
            "clusterName": HEADER.cluster_name,
            "brokerId": "0",
        }
        self.assertEqual(before.ask(RemotingCommand(UNREGISTER_BROKER.code, 3, ext_fields=good_bye)).code, 0)
        before.close()
        self.assertEqual(after.route_code(), 0)


class GoodByeTests(SynchronousTestCase):
    """Good-byes that wait for their turn behind somebody's large registration."""

    def setUp(self) -> None:
        self.talk = Talk.started(self.mktemp())
        self.peer = Peer(self.talk)
        self.peer.register()
        large = body(*(f"{'topic' * 20}-{number}" for number in range(800)))
        another = encode_ext(HEADER) | {"brokerName": "b", "brokerAddr": "10.0.0.1:20911"}
        Peer(self.talk).send(RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=another, body=large))
        good_bye = {name: encode_ext(HEADER)[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
        self.peer.send(RemotingCommand(UNREGISTER_BROKER.code, 2, ext_fields=good_bye))
        for _ in range(2):  # the second half of the large one
            one_turn(self.talk.reactor)
        self.assertTrue(self.talk.service._turns.busy)

    def names(self) -> list[str]:
        return sorted(live.broker_name for live in self.talk.service.routes.live_brokers())

    def test_not_overtaken(self) -> None:
        """A registration that follows a waiting good-bye is heard behind it."""
        again = RemotingCommand(REGISTER_BROKER.code, 3, ext_fields=encode_ext(HEADER), body=body("new"))
        self.peer.send(again)
        self.talk.reactor.advance(0)
        self.assertEqual([answer.opaque for answer in decode_commands(self.peer.transport.value())][-2:], [2, 3])
        self.assertEqual(self.names(), ["a", "b"])

    def test_of_a_connection_that_ended(self) -> None:
        """A good-bye whose connection has ended takes nothing from the process that came after it."""
        self.peer.close()
        after = Peer(self.talk)
        after.send(RemotingCommand(REGISTER_BROKER.code, 3, ext_fields=encode_ext(HEADER), body=body("new")))
        self.talk.reactor.advance(0)
        self.assertEqual(self.names(), ["a", "b"])
