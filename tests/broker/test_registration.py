"""How a broker makes itself known, against NameServers that only note what they are told."""

from __future__ import annotations

import json
import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import registration as registrations
from rmq.broker.registration import FIRST_RETRY_S, Registration, RegistrationTerms
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import NO_REPLY, NoReply, Refuse, Reply, Request, ResponderTable, responds_to
from rmq.remoting.server import RemotingServer
from rmq.runtime.platform import Platform
from rmq.wire.api.common import DataVersion, KVTable, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody, body_crc32, decode_register_body
from rmq.wire.api.routes import (
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerIdentityHeader,
    QueryDataVersionReply,
    RegisterBrokerHeader,
    RegisterBrokerReply,
)
from tests.ha.golden import conversation
from tests.ha.net import Net

PORTS = (9876, 9877, 9878)
ADDRS = tuple(f"10.0.0.2:{port}" for port in PORTS)


class NameServer:
    """Answers registrations and remembers them as (what, topics, version counter, one-way)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[str, ...], int, bool]] = []
        self.headers: list[RegisterBrokerHeader] = []
        self.bodies: list[RegisterBrokerBody] = []
        self.fields: list[dict[str, str]] = []
        self.raw: list[bytes] = []
        self.reply = RegisterBrokerReply()
        self.order_topics: list[str] = []
        self.changed = False
        self.mute = False
        self.refuse = ""

    @responds_to(REGISTER_BROKER)
    def register(self, request: Request[RegisterBrokerHeader, bytes]) -> Reply | NoReply:
        header = request.header
        body = decode_register_body(request.body, compressed=header.compressed, version=409)
        wrapper = body.topic_config_serialize_wrapper
        topics = tuple(sorted(wrapper.topic_config_table))
        self.seen.append(("register", topics, wrapper.data_version.counter, request.command.is_oneway))
        self.headers.append(header)
        self.bodies.append(body)
        self.fields.append(dict(request.command.ext_fields))
        self.raw.append(request.body)
        if self.mute:
            return NO_REPLY
        if self.refuse:
            raise Refuse(1, self.refuse)
        table = KVTable(table=dict.fromkeys(self.order_topics, "broker-a:4"))
        return Reply(self.reply, table if self.order_topics else None)

    @responds_to(UNREGISTER_BROKER)
    def unregister(self, request: Request[BrokerIdentityHeader, None]) -> NoReply | None:
        self.seen.append(("unregister", (), request.header.broker_id, request.command.is_oneway))
        self.fields.append(dict(request.command.ext_fields))
        return NO_REPLY if self.mute else None

    @responds_to(QUERY_DATA_VERSION)
    def query(self, request: Request[BrokerIdentityHeader, DataVersion]) -> Reply:
        self.seen.append(("query", (), request.body.counter, request.command.is_oneway))
        if self.refuse:
            raise Refuse(1, self.refuse)
        return Reply(QueryDataVersionReply(changed=self.changed))

    @property
    def kinds(self) -> list[str]:
        return [what for what, *_ in self.seen]


class RegistrationCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.net = Net(3)
        self.platform = Platform(
            reactor=self.net,
            disk=None,  # type: ignore[arg-type]  # a registration touches no file
            rng=random.Random(1),
            endpoint_factory=self.net.endpoint,
        )
        self.client = RemotingClient(self.platform)
        self.client.startService()
        self.servers: dict[int, RemotingServer] = {}
        self.topics = TopicConfigWrapper(
            data_version=DataVersion(counter=3, timestamp=1_700_000_000_000),
            topic_config_table={name: TopicConfig(topic_name=name) for name in ("TBW102", "orders")},
        )
        self.registration: Registration | None = None
        self.addCleanup(self.stop_all)

    def stop_all(self) -> None:
        """Everything stops within its bounds and leaves no timer behind."""
        if self.registration is not None and self.registration.running:
            done = self.registration.stopService()
            self.net.run(3.5)
            self.successResultOf(done)
        stopping = [self.client.stopService(), *(server.stopService() for server in self.servers.values())]
        self.net.run(6)
        for each in stopping:
            self.successResultOf(each)
        self.assertEqual(self.net.getDelayedCalls(), [])

    def name_server(self, port: int = PORTS[0]) -> NameServer:
        server = NameServer()
        self.servers[port] = RemotingServer(
            self.platform, host="", port=port, responders=ResponderTable(server), name=f"namesrv {port}"
        )
        self.servers[port].startService()
        return server

    def close_server(self, port: int) -> None:
        done = self.servers.pop(port).stopService()
        self.net.run(6)
        self.successResultOf(done)

    def start(self, *addrs: str, **terms: Any) -> Registration:
        settings: dict[str, Any] = {
            "broker_name": "broker-a",
            "broker_addr": "127.0.0.1:18911",
            "cluster_name": "DefaultCluster",
            "ha_server_addr": "127.0.0.1:18912",
        }
        settings.update(terms)
        registration = Registration(
            self.client, RegistrationTerms(**settings), lambda: self.topics, self.net, addrs or ADDRS[:1]
        )
        self.registration = registration
        registration.startService()
        self.net.deliver()
        return registration

    def add_topic(self, name: str) -> TopicConfig:
        """Change the table as an admin's topic creation does."""
        config = TopicConfig(topic_name=name)
        version = self.topics.data_version
        self.topics = TopicConfigWrapper(
            data_version=DataVersion(counter=version.counter + 1, timestamp=version.timestamp + 1),
            topic_config_table={**self.topics.topic_config_table, name: config},
        )
        return config

    def finished(self, done: Deferred[None]) -> None:
        self.net.deliver()
        self.assertIsNone(self.successResultOf(done))


class RhythmTests(RegistrationCase):
    def test_at_start_then_after_ten_seconds_then_every_period(self) -> None:
        """Registrations come at 0, 10, 40 and 70 s, all topics each time."""
        server = self.name_server()
        self.start()
        counts = []
        for seconds in (9.5, 1, 29, 1.5, 28, 2):
            counts.append(len(server.seen))
            self.net.run(seconds)
        counts.append(len(server.seen))
        self.assertEqual(counts, [1, 1, 2, 2, 3, 3, 4])
        self.assertEqual(set(server.seen), {("register", ("TBW102", "orders"), 3, False)})

    def test_period_is_clamped(self) -> None:
        """registerNameServerPeriod counts from 10 to 60 seconds."""
        for period_ms, clamped in ((1, 10_000), (10_000, 10_000), (45_000, 45_000), (10**9, 60_000)):
            terms = RegistrationTerms(
                broker_name="b", broker_addr="a", cluster_name="c", ha_server_addr="h", period_ms=period_ms
            )
            self.assertEqual(terms.clamped_period_ms, clamped)

    def test_unregisters_at_the_end(self) -> None:
        """The stop says goodbye to every NameServer, and nothing is registered after it."""
        servers = [self.name_server(port) for port in PORTS[:2]]
        registration = self.start(*ADDRS[:2])
        done = registration.stopService()
        self.net.deliver()
        self.successResultOf(done)
        registration.topics_changed()
        self.finished(registration.topic_updated(TopicConfig(topic_name="late")))
        self.net.run(70)
        self.assertEqual([server.kinds for server in servers], [["register", "unregister"]] * 2)

    def test_an_announcement_that_waits_is_dropped_at_the_end(self) -> None:
        """A broker that has said goodbye does not come back into the routes with an automatic topic."""
        server = self.name_server()
        registration = self.start()
        for name in ("First", "Second"):
            self.add_topic(name)
            registration.topics_changed()
            self.net.deliver()
        done = registration.stopService()
        self.net.run(5)
        self.successResultOf(done)
        self.assertEqual(server.kinds, ["register", "register", "unregister"])

    def test_a_topic_that_a_message_made(self) -> None:
        """Who made it is answered when the NameServer has it; one that hangs holds nobody for more than 0.5 s."""
        server = self.name_server()
        registration = self.start()
        self.finished(registration.topic_created(self.add_topic("First")))
        self.assertEqual((server.kinds[-1], "First" in server.seen[-1][1]), ("register", True))
        server.mute = True
        made = registration.topic_created(self.add_topic("Second"))
        self.net.run(0.25)
        self.assertNoResult(made)
        self.net.run(0.25)
        self.successResultOf(made)

    def test_the_stop_is_bounded(self) -> None:
        """A NameServer that hangs delays the stop by three seconds, not longer."""
        server = self.name_server()
        registration = self.start()
        server.mute = True
        done = registration.stopService()
        self.net.run(2.75)
        self.assertNoResult(done)
        self.net.run(0.5)
        self.successResultOf(done)

    def test_without_name_servers(self) -> None:
        """A broker without namesrvAddr starts and stops; changes lead nowhere."""
        registration = Registration(
            self.client,
            RegistrationTerms(broker_name="b", broker_addr="a", cluster_name="c", ha_server_addr="h"),
            lambda: self.topics,
            self.net,
            [],
        )
        self.registration = registration
        registration.startService()
        registration.topics_changed()
        self.finished(registration.topic_updated(self.add_topic("x")))
        self.assertEqual(self.net.dials, [])


class SeveralNameServersTests(RegistrationCase):
    def test_all_are_told_at_once(self) -> None:
        """Every NameServer hears of the broker, each over its own connection, a doubled address once."""
        servers = [self.name_server(port) for port in PORTS]
        self.start(*ADDRS, ADDRS[0])
        self.assertEqual([server.kinds for server in servers], [["register"]] * 3)

    def test_a_dead_one_delays_nobody(self) -> None:
        """One refuses connections, one never answers a dial: the third has the registration at once, every time."""
        server = self.name_server(PORTS[2])
        self.net.silent.add(PORTS[1])
        self.start(*ADDRS)
        self.assertEqual(len(server.seen), 1)
        self.net.run(10.5)
        self.assertEqual(len(server.seen), 2)
        self.net.run(30)
        self.assertEqual(len(server.seen), 3)

    def test_a_hanging_one_delays_nobody(self) -> None:
        """However long registerBrokerTimeoutMills is, a NameServer that never answers leaves the rhythm as it is."""
        hanging, well = self.name_server(PORTS[0]), self.name_server(PORTS[1])
        hanging.mute = True
        self.start(*ADDRS[:2], timeout_ms=600_000)
        self.net.run(71)
        self.assertEqual(len(well.seen), 4)

    def test_a_hanging_one_is_given_up_before_the_next_round(self) -> None:
        """A NameServer that hangs has one registration of this broker to work off when it goes on, not many."""
        server = self.name_server()
        server.mute = True
        registration = self.start(timeout_ms=600_000, period_ms=10_000)
        self.net.run(8.75)
        self.assertEqual(registration.name_servers, {ADDRS[0]: None})
        self.net.run(0.5)
        self.assertEqual((registration.name_servers, len(server.seen)), ({ADDRS[0]: False}, 1))

    def test_back_again(self) -> None:
        """A NameServer that was away has everything 8 s after its return, and again with the rounds."""
        server = self.name_server()
        self.start()
        self.close_server(PORTS[0])
        self.net.run(35)
        server = self.name_server()
        self.net.run(8)
        registered = ("register", ("TBW102", "orders"), 3, False)
        self.assertEqual(server.seen, [("query", (), 3, False), registered])
        self.net.run(40)
        self.assertEqual(set(server.seen[2:]), {registered})
        self.assertLessEqual(len(server.seen), 4)

    def test_a_restart(self) -> None:
        """A NameServer that restarts, and knows nothing then, is told a second later."""
        server = self.name_server()
        self.start()
        for _ in range(3):
            self.close_server(PORTS[0])
            server = self.name_server()
            self.net.run(FIRST_RETRY_S)
            self.assertEqual(server.kinds, ["query", "register"])

    def test_no_attempts_between_rounds_where_it_answers(self) -> None:
        """A NameServer that refuses is asked again with the next round only."""
        server = self.name_server()
        server.refuse = "no"
        self.start()
        self.net.run(9.5)
        self.assertEqual(server.kinds, ["register"])

    def test_a_stop_between_two_attempts(self) -> None:
        """A stop ends the attempts; nothing is left to come."""
        self.name_server()
        registration = self.start()
        self.close_server(PORTS[0])
        done = registration.stopService()
        self.net.run(FIRST_RETRY_S / 2)
        self.successResultOf(done)
        server = self.name_server()
        self.net.run(20)
        self.assertEqual(server.seen, [])


class ChangeTests(RegistrationCase):
    def test_admin_change_is_incremental(self) -> None:
        """One new topic: a registration of just that, with the current version, and its answer is awaited."""
        server = self.name_server()
        registration = self.start()
        done = registration.topic_updated(self.add_topic("Made"))
        self.assertNoResult(done)
        self.finished(done)
        self.assertEqual(server.seen[1:], [("query", (), 3, False), ("register", ("Made",), 4, False)])
        self.finished(registration.topic_updated(self.add_topic("Second")))
        self.assertEqual(server.seen[3:], [("query", (), 4, False), ("register", ("Second",), 5, False)])

    def test_changes_that_come_together_go_together(self) -> None:
        """While a NameServer is busy with one change, the next ones wait; then one registration has just them."""
        server = self.name_server()
        registration = self.start()
        waits = [registration.topic_updated(self.add_topic(f"Made{number}")) for number in range(5)]
        self.net.deliver()
        for done in waits:
            self.finished(done)
        later = tuple(f"Made{number}" for number in range(1, 5))
        registered = [seen[:3] for seen in server.seen[1:] if seen[0] == "register"]
        self.assertEqual(registered, [("register", ("Made0",), 4), ("register", later, 8)])

    def test_changes_during_a_full_registration(self) -> None:
        """A registration of all topics has the changes that came before it was made; they are not sent twice."""
        server = self.name_server()
        registration = self.start()
        server.changed = True
        waits = [registration.topic_updated(self.add_topic(f"Made{number}")) for number in range(3)]
        for done in waits:
            self.finished(done)
        self.assertEqual([len(seen[1]) for seen in server.seen if seen[0] == "register"], [2, 5])

    def test_a_name_server_that_is_away(self) -> None:
        """Nobody waits for it longer than for its timeout, however many changes there are."""
        registration = self.start(timeout_ms=2000)
        waits = [registration.topic_updated(self.add_topic(f"Made{number}")) for number in range(5)]
        self.net.run(5)
        for done in waits:
            self.finished(done)

    def test_a_restarted_name_server_gets_all_topics(self) -> None:
        """A NameServer that lost what it knew is found out before it takes one topic for all."""
        server = self.name_server()
        registration = self.start()
        server.changed = True
        self.finished(registration.topic_updated(self.add_topic("Made")))
        self.assertEqual(server.seen[2:], [("register", ("Made", "TBW102", "orders"), 4, False)])

    def test_never_incremental_before_full(self) -> None:
        """A NameServer that is not sure to hold the other topics gets them all: it would never ask for them."""
        server = self.name_server()
        server.refuse = "not now"
        registration = self.start()
        server.refuse = ""
        self.finished(registration.topic_updated(self.add_topic("Made")))
        self.assertEqual(server.seen[1:], [("register", ("Made", "TBW102", "orders"), 4, False)])

    def test_unconfirmed_changes_make_it_full(self) -> None:
        """After a one-way registration, which may be lost, an admin change brings all topics."""
        server = self.name_server()
        registration = self.start()
        self.add_topic("Automatic")
        registration.topics_changed()
        self.net.deliver()
        self.finished(registration.topic_updated(self.add_topic("Made")))
        self.assertEqual(
            server.seen[1:],
            [
                ("register", ("Automatic", "TBW102", "orders"), 4, True),
                ("register", ("Automatic", "Made", "TBW102", "orders"), 5, False),
            ],
        )

    def test_a_change_that_was_not_announced_yet(self) -> None:
        """An admin's topic never hides an automatic one whose announcement waits for its turn: all topics are sent."""
        server = self.name_server()
        registration = self.start()
        for name in ("First", "Second"):
            self.add_topic(name)
            registration.topics_changed()
            if name == "First":
                self.finished(registration.register_all())
        self.finished(registration.topic_updated(self.add_topic("Made")))
        self.assertEqual(server.seen[-1], ("register", ("First", "Made", "Second", "TBW102", "orders"), 6, False))

    def test_automatic_topics_are_announced_one_way(self) -> None:
        """After an automatic creation all topics go out at once, without waiting for an answer."""
        server = self.name_server()
        registration = self.start()
        self.add_topic("Automatic")
        registration.topics_changed()
        self.net.deliver()
        self.assertEqual(server.seen[1:], [("register", ("Automatic", "TBW102", "orders"), 4, True)])

    def test_a_burst_of_automatic_topics(self) -> None:
        """A thousand topics in one burst are announced together, not in a thousand tables."""
        server = self.name_server()
        registration = self.start()
        for number in range(1000):
            self.add_topic(f"t{number}")
            registration.topics_changed()
            if number % 100 == 0:
                self.net.deliver()
        self.net.run(0.5)
        self.assertLess(len(server.seen), 5)
        self.assertEqual(len(server.seen[-1][1]), 1002)

    def test_a_burst_with_many_topics(self) -> None:
        """The more topics all of them are, the less often they are sent because of one."""
        self.patch(registrations, "ANNOUNCE_SPACING_PER_TOPIC_S", 0.25)
        server = self.name_server()
        registration = self.start()
        for _ in range(16):
            registration.topics_changed()
            self.net.run(0.25)
        self.assertTrue(6 <= len(server.seen) - 1 <= 9, len(server.seen))

    def test_a_hanging_name_server_ends_the_wait(self) -> None:
        """topic_updated fires after 3 s, before tools give up; the NameServer has registerBrokerTimeoutMills longer."""
        server = self.name_server()
        registration = self.start()
        server.mute = True
        done = registration.topic_updated(self.add_topic("Made"))
        self.net.run(2.75)
        self.assertNoResult(done)
        self.net.run(0.5)
        self.finished(done)
        self.assertEqual(server.kinds, ["register", "query", "register"])

    def test_broker_permission(self) -> None:
        """A broker that lacks read or write publishes that for every topic; its own table is untouched."""
        server = self.name_server()
        registration = self.start(broker_permission=4)
        self.finished(registration.topic_updated(self.add_topic("Made")))
        perms = [
            topic.perm
            for body in server.bodies
            for topic in body.topic_config_serialize_wrapper.topic_config_table.values()
        ]
        self.assertEqual(set(perms), {4})
        self.assertEqual({topic.perm for topic in self.topics.topic_config_table.values()}, {6})


class VersionQueryTests(RegistrationCase):
    def test_unchanged(self) -> None:
        """With forceRegister=false only the first registration is sent; afterwards versions are compared."""
        server = self.name_server()
        self.start(force=False)
        self.net.run(41)
        self.assertEqual(server.seen[1:], [("query", (), 3, False)] * 2)

    def test_changed(self) -> None:
        """A NameServer that holds another version gets all topics."""
        server = self.name_server()
        self.start(force=False)
        server.changed = True
        self.net.run(11)
        self.assertEqual(server.kinds, ["register", "query", "register"])

    def test_an_error_counts_as_changed(self) -> None:
        """A NameServer that cannot tell gets all topics, too."""
        server = self.name_server()
        self.start(force=False)
        server.refuse = "no idea"
        self.net.run(11)
        self.assertEqual(server.kinds, ["register", "query", "register"])


class AnswerTests(RegistrationCase):
    def test_a_slave_hears_of_its_master(self) -> None:
        """The first answer of a round that names the master counts, also behind one that does not know it yet."""
        ignorant, knowing = self.name_server(PORTS[0]), self.name_server(PORTS[1])
        knowing.reply = RegisterBrokerReply(master_addr="10.0.0.9:10911", ha_server_addr="10.0.0.9:10912")
        heard: list[tuple[str | None, str | None]] = []
        registration = self.start(*ADDRS[:2], broker_id=1)
        registration.on_master(lambda master, ha: heard.append((master, ha)))
        self.net.run(11)
        self.assertEqual(heard, [("10.0.0.9:10911", "10.0.0.9:10912")])
        ignorant.reply = knowing.reply
        self.net.run(30)
        self.assertEqual(heard, [("10.0.0.9:10911", "10.0.0.9:10912")] * 2)

    def test_silence_about_the_master(self) -> None:
        """A NameServer without a live master changes nothing."""
        self.name_server()
        heard: list[object] = []
        registration = self.start(broker_id=1)
        registration.on_master(lambda *addrs: heard.append(addrs))
        self.net.run(41)
        self.assertEqual(heard, [])

    def test_order_topics(self) -> None:
        """A master hears which topics are ordered, once a round; without a configuration it hears nothing."""
        servers = [self.name_server(port) for port in PORTS[:2]]
        heard: list[list[str]] = []
        registration = self.start(*ADDRS[:2])
        registration.on_order_topics(lambda topics: heard.append(sorted(topics)))
        self.net.run(11)
        self.assertEqual(heard, [])
        for server in servers:
            server.order_topics = ["orders", "bills"]
        self.net.run(30)
        self.assertEqual(heard, [["bills", "orders"]])


class WireTests(RegistrationCase):
    def test_same_requests_as_apache(self) -> None:
        """Header fields and body members are those that a 4.9.7 broker sends for registering and unregistering."""
        server = self.name_server()
        registration = self.start()
        done = registration.stopService()
        self.net.deliver()
        self.successResultOf(done)
        recorded = [event for event in conversation("broker-4.9.7_namesrv-4.9.7_register") if event.to_master]
        for event in recorded:
            if event.name == "REGISTER_BROKER" and event.ms < 200:
                theirs, body = self.parse(event.data)
                self.assertEqual(body_crc32(body), int(theirs.pop("bodyCrc32")))
                ours = dict(server.fields[0])
                self.assertEqual(body_crc32(server.raw[0]), int(ours.pop("bodyCrc32")))
                self.assertEqual(ours, theirs)
                self.assertEqual(self.members(json.loads(server.raw[0])), self.members(json.loads(body)))
            if event.name == "UNREGISTER_BROKER":
                self.assertEqual(server.fields[1], self.parse(event.data)[0])
        self.assertEqual(len(server.fields), 2)

    def test_compressed(self) -> None:
        """compressedRegister sends a zlib stream with its checksum, and the NameServer reads the same topics."""
        server = self.name_server()
        self.start(compressed=True)
        self.assertTrue(server.headers[0].compressed)
        self.assertEqual(server.raw[0][:1], b"x")
        self.assertEqual(server.headers[0].body_crc32, body_crc32(server.raw[0]))
        self.assertEqual(server.seen, [("register", ("TBW102", "orders"), 3, False)])

    @staticmethod
    def parse(frame: bytes) -> tuple[dict[str, str], bytes]:
        size = int.from_bytes(frame[5:8], "big")
        return json.loads(frame[8 : 8 + size])["extFields"], frame[8 + size :]

    @staticmethod
    def members(body: dict[str, Any]) -> list[set[str]]:
        wrapper = body["topicConfigSerializeWrapper"]
        topic = next(iter(wrapper["topicConfigTable"].values()))
        return [set(body), set(wrapper), set(wrapper["dataVersion"]), set(topic)]
