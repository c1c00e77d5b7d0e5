"""What 5.x brokers and clients may expect of a NameServer, over the wire."""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs
import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv import responders
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper, TopicQueueMappingInfo
from rmq.wire.api.register_body import RegisterBrokerBody, body_crc32, decode_register_body, encode_register_body
from rmq.wire.api.routes import (
    DELETE_TOPIC_IN_NAMESRV,
    GET_BROKER_CLUSTER_INFO,
    GET_BROKER_MEMBER_GROUP,
    GET_ROUTEINFO_BY_TOPIC,
    NOTIFY_MIN_BROKER_ID_CHANGE,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UPDATE_NAMESRV_CONFIG,
    GetBrokerMemberGroupHeader,
    NotifyMinBrokerIdChangeHeader,
    RegisterBrokerHeader,
)
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand, decode_command, decode_commands, encode_command
from rmq.wire.extfields import encode_ext
from rmq.wire.frames import FrameDecoder
from tests.namesrv.talk import NOW_S, Talk, closed
from tests.seeds import SEED


def header(broker_id: int = 0, *, acting: bool | None = True) -> RegisterBrokerHeader:
    return RegisterBrokerHeader(
        broker_name="a",
        broker_addr=f"10.0.0.1:{10911 + 100 * broker_id}",
        cluster_name="C",
        ha_server_addr=f"10.0.0.1:{10912 + 100 * broker_id}",
        broker_id=broker_id,
        enable_acting_master=acting,
    )


def body(*names: str, version: int = 1, state: int = 0) -> bytes:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names}
    data_version = DataVersion(counter=version, state_version=state, timestamp=7)
    wrapper = TopicConfigWrapper(data_version=data_version, topic_config_table=table)
    return encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


class FiveCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk(self.mktemp())

    def register(self, who: RegisterBrokerHeader, data: bytes, ext: Mapping[str, str] | None = None) -> RemotingCommand:
        return self.talk.ask(REGISTER_BROKER, encode_ext(who) | dict(ext or {}), data, version=479)

    def route(self, topic: str = "T", **ext: str) -> bytes:
        answer = self.talk.ask(GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext}, version=479)
        return answer.body or b""


class RegistrationTests(FiveCase):
    def test_state_version(self) -> None:
        """A broker's state version comes back with its data version; without one the answer has no such member."""
        ext = {"brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
        for state, member in ((3, b'"stateVersion":3,'), (0, b"")):
            self.register(header(), body("T", state=state))
            version = b'{"counter":1,%s"timestamp":7}' % (member or b'"stateVersion":0,')
            answer = self.talk.ask(QUERY_DATA_VERSION, ext, version)
            self.assertEqual((answer.ext_fields["changed"], answer.code), ("false", 0))
            self.assertEqual(answer.body, b'{"counter":1,%s"timestamp":7}' % member)

    def test_outranked(self) -> None:
        """A registration of an older state version is answered like any other, and has no effect."""
        self.register(header(), body("T", state=2))
        rival = msgspec.structs.replace(header(), broker_addr="10.0.0.2:10911")
        answer = self.register(rival, body("T", "U", state=1))
        self.assertEqual((answer.code, dict(answer.ext_fields)), (0, {}))
        self.assertEqual(self.talk.service.routes.topology.topics(), ["T"])

    def test_unchanged_body_is_not_read(self) -> None:
        """The same body again is a sign of life and costs no parsing; its answer is the same, order topics included."""
        self.register(header(), body("T"))
        parsed: list[int] = []

        def counted(data: bytes, *, compressed: bool, version: int) -> RegisterBrokerBody:
            parsed.append(len(data))
            return decode_register_body(data, compressed=compressed, version=version)

        self.patch(responders, "decode_register_body", counted)
        self.talk.service.kv.put("ORDER_TOPIC_CONFIG", "T", "a:4")
        self.talk.reactor.advance(100)
        answer = self.register(header(), body("T"))
        self.assertEqual((answer.code, answer.body), (0, b'{"table":{"T":"a:4"}}'))
        (live,) = self.talk.service.routes.live_brokers()
        self.assertEqual(live.last_update_ms, (NOW_S + 100) * 1000)
        self.assertEqual(parsed, [])
        self.register(header(), body("T", version=2))
        self.assertEqual(len(parsed), 1)

    def test_wrong_checksum_of_an_unchanged_body(self) -> None:
        """A wrong checksum is refused even if the broker sent the same body before."""
        self.register(header(), body("T"))
        wrong = msgspec.structs.replace(header(), body_crc32=body_crc32(body("T")) ^ 1)
        self.assertEqual(self.register(wrong, body("T")).code, 1)

    def test_member_group(self) -> None:
        """The members of a group, by 901, whatever routes show."""
        self.talk.ask(UPDATE_NAMESRV_CONFIG, None, b"supportActingMaster=true\n")
        self.register(header(1), body("T"))
        answer = self.talk.ask(GET_BROKER_MEMBER_GROUP, GetBrokerMemberGroupHeader(cluster_name="C", broker_name="a"))
        self.assertIn(b'{1:"10.0.0.1:11011"}', answer.body or b"")
        self.assertIn(b'{"0":"10.0.0.1:11011"}', self.route())

    def test_acting_master(self) -> None:
        """Routes and lists of brokers say whether slaves act as master, also of brokers that do not know of it."""
        for acting, shown in ((None, b"false"), (True, b"true"), (False, b"false")):
            self.register(header(acting=acting), body("T"))
            cluster = self.talk.ask(GET_BROKER_CLUSTER_INFO).body or b""
            for found in (self.route(), cluster):
                self.assertIn(b'"cluster":"C","enableActingMaster":%s}' % shown, found)

    def test_static_topic(self) -> None:
        """
        The route of a static topic says which queue of which group a client's queue is, in the bytes of 5.3.3.

        It follows each registration, and leaves with the topic.
        """

        def static(version: int, epoch: int, topic: str = "T") -> bytes:
            info = TopicQueueMappingInfo(
                bname="a", curr_id_map={0: 0, 1: 1}, epoch=epoch, scope="__global__", topic=topic, total_queues=2
            )
            found = decode_register_body(body("T", version=version), compressed=False, version=479)
            found.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {topic: info}
            return encode_register_body(found)

        def expected(epoch: int, strict: bool = True) -> bytes:
            ids = b'{"0":0,"1":1}' if strict else b"{0:0,1:1}"
            return (
                b'"topicQueueMappingByBroker":{"a":{"bname":"a","currIdMap":%b,"dirty":false,"epoch":%d,'
                b'"scope":"__global__","topic":"T","totalQueues":2}}}' % (ids, epoch)
            )

        self.register(header(), static(1, 5))
        self.assertTrue(self.route().endswith(expected(5)))
        answer = self.talk.ask(GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, version=300)
        self.assertTrue((answer.body or b"").endswith(expected(5, strict=False)))
        self.register(header(), static(2, 6))
        self.assertTrue(self.route().endswith(expected(6)))
        self.register(header(), static(3, 6, "not registered"))
        self.assertTrue(self.route().endswith(expected(6)))
        self.talk.ask(DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
        self.register(header(), body("T", version=4))
        self.assertNotIn(b"Mapping", self.route())

    def test_static_topics_keep_absent_ones(self) -> None:
        """With static topics deleteTopicWithBrokerRegistration deletes nothing, as in 5.3.3."""
        self.talk.ask(UPDATE_NAMESRV_CONFIG, None, b"deleteTopicWithBrokerRegistration=true\n")
        self.register(header(), body("T", "U"))
        found = decode_register_body(body("T", version=2), compressed=False, version=479)
        info = TopicQueueMappingInfo(bname="a", curr_id_map={0: 0}, topic="T", total_queues=1)
        found.topic_config_serialize_wrapper.topic_queue_mapping_info_map = {"T": info}
        self.register(header(), encode_register_body(found))
        self.assertEqual(self.talk.service.routes.topology.topics(), ["T", "U"])
        self.register(header(), body("T", version=3))
        self.assertEqual(self.talk.service.routes.topology.topics(), ["T"])

    def test_delete_topic_with_empty_cluster(self) -> None:
        """An empty clusterName means every cluster."""
        self.register(header(), body("T"))
        self.talk.ask(DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": ""})
        self.assertEqual(self.talk.service.routes.topology.topics(), [])


class ZoneTests(FiveCase):
    def setUp(self) -> None:
        super().setUp()
        for name, zone in (("a", "east"), ("b", "west")):
            who = msgspec.structs.replace(header(), broker_name=name, broker_addr=f"10.0.0.1:{name}")
            self.register(who, body("T"), {"__ZONE_NAME": zone})

    def test_own_zone(self) -> None:
        """With __ZONE_MODE only brokers of the client's zone are in the route, in the old form of JSON as Apache's."""
        found = self.route(__ZONE_MODE="true", __ZONE_NAME="EAST")
        self.assertEqual(
            found,
            b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:a"},"brokerName":"a","cluster":"C","enableActingMaster":true}],'
            b'"filterServerTable":{},'
            b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}',
        )

    def test_no_zone(self) -> None:
        """Without the mode, or without a name, all brokers are."""
        for ext in ({}, {"__ZONE_NAME": "east"}, {"__ZONE_MODE": "true"}, {"__ZONE_MODE": "true", "__ZONE_NAME": " "}):
            found = self.route(**ext)
            self.assertEqual((found.count(b'"brokerAddrs"'), found.count(b'"perm"')), (2, 2))


class SwitchTests(FiveCase):
    def test_switches_act_at_once(self) -> None:
        """Switches that updateNamesrvConfig changes count from then on."""
        self.register(header(), body("T", "U"))
        self.register(header(), body("T", version=2))
        self.assertEqual(self.talk.service.routes.topology.topics(), ["T", "U"])
        self.assertEqual(
            self.talk.ask(UPDATE_NAMESRV_CONFIG, None, b"deleteTopicWithBrokerRegistration=true\n").code, 0
        )
        self.register(header(), body("T", version=2))
        self.assertEqual(self.talk.service.routes.topology.topics(), ["T"])

    def test_min_broker_id(self) -> None:
        """
        With notifyMinBrokerIdChanged the brokers of a group are told (905, one-way, at their own addresses) when a
        master comes (the others) and when it goes (all that are left); otherwise nobody is.
        """
        for switched_on in (False, True):
            talk = self.talk = Talk(self.mktemp(), notify_min_broker_id_changed=switched_on)
            talk.service.startService()
            self.register(header(1), body("T"))
            self.register(header(2), body("T"))
            self.register(header(0), body("T"))
            came = told(talk)
            closed(talk.service.routes, talk.channel)  # they all spoke over one connection: 1, 2 and 0 go
            if not switched_on:
                self.assertEqual((came, told(talk)), ({}, {}))
                continue
            change = NotifyMinBrokerIdChangeHeader(
                min_broker_id=0, min_broker_addr="10.0.0.1:10911", ha_broker_addr="10.0.0.1:10912"
            )
            self.assertEqual(came, {11011: [encode_ext(change)], 11111: [encode_ext(change)]})

    def test_min_broker_id_of_one_alone(self) -> None:
        """A slave that is alone and comes back as the master at its address is told that it is the first one."""
        talk = self.talk = Talk(self.mktemp(), notify_min_broker_id_changed=True)
        talk.service.startService()
        self.register(header(1), body("T"))
        self.register(msgspec.structs.replace(header(1), broker_id=0), body("T"))
        change = NotifyMinBrokerIdChangeHeader(
            min_broker_id=0, min_broker_addr="10.0.0.1:11011", ha_broker_addr="10.0.0.1:11012"
        )
        self.assertEqual(told(talk), {11011: [encode_ext(change)]})

    def test_min_broker_id_of_those_left(self) -> None:
        """All that are left are told who went and who is the first one now."""
        talk = self.talk = Talk(self.mktemp(), notify_min_broker_id_changed=True)
        talk.service.startService()
        self.register(header(0), body("T"))
        own, talk.channel = talk.channel, talk.connect()
        self.register(header(1), body("T"))
        closed(talk.service.routes, own)
        change = NotifyMinBrokerIdChangeHeader(
            min_broker_id=1, min_broker_addr="10.0.0.1:11011", offline_broker_addr="10.0.0.1:10911"
        )
        self.assertEqual(told(talk), {11011: [encode_ext(change)]})


def told(talk: Talk) -> dict[int, list[dict[str, str]]]:
    """Let the brokers that were dialled answer; return what each was told, by port."""
    found: dict[int, list[dict[str, str]]] = {}
    dialled, talk.reactor.tcpClients[:] = list(talk.reactor.tcpClients), []
    for _, port, factory, *_ in dialled:
        protocol = factory.buildProtocol(None)
        assert protocol is not None
        transport = StringTransport()
        protocol.makeConnection(transport)
        for command in decode_commands(transport.value()):
            assert (command.code, command.is_oneway) == (NOTIFY_MIN_BROKER_ID_CHANGE.code, True)
            found.setdefault(port, []).append(dict(command.ext_fields))
    return found


class ClusterTestTests(FiveCase):
    """A NameServer of a test environment, with two of production that it may ask."""

    def setUp(self) -> None:
        self.talk = Talk(self.mktemp(), cluster_test=True)
        self.talk.setup = attrs.evolve(self.talk.setup, production_addrs=("10.0.0.8:9871", "10.0.0.8:9872"))
        self.talk.restart().startService()
        self.production = Talk(self.mktemp())
        self.production.ask(REGISTER_BROKER, encode_ext(header()) | {"brokerName": "prod"}, body("P"), version=479)

    def ask(self, topic: str) -> Deferred[RemotingCommand]:
        fields = {"topic": topic}
        command = RemotingCommand(GET_ROUTEINFO_BY_TOPIC.code, 5, version=479, ext_fields=fields)
        (frame,) = FrameDecoder().receive(encode_command(command))
        written = self.talk.service.responders.dispatch(decode_command(frame), self.talk.channel)
        answered = written if isinstance(written, Deferred) else succeed(written)
        return answered.addCallback(lambda data: decode_commands(data or b"")[0])

    def dialled(self) -> tuple[int, IProtocol, StringTransport]:
        """Return the connection that is being made: to which port, and what there is to make it with."""
        _, port, factory, *_ = self.talk.reactor.tcpClients.pop()
        protocol = factory.buildProtocol(None)
        assert protocol is not None
        transport = StringTransport()
        protocol.makeConnection(transport)
        return port, protocol, transport

    def let_answer(self) -> int:
        """Let the production NameServer that is asked answer; return its port."""
        port, protocol, transport = self.dialled()
        (question,) = decode_commands(transport.value())
        answer = self.production.send(question)
        assert answer is not None
        protocol.dataReceived(encode_command(answer))
        return port

    def test_unknown_topic(self) -> None:
        """A topic that is unknown here is looked for in production, and answered in the old form of JSON."""
        done = self.ask("P")
        self.assertNoResult(done)
        self.assertEqual(self.let_answer(), 9871)
        answer = self.successResultOf(done)
        self.assertEqual((answer.code, answer.opaque), (0, 5))
        self.assertIn(b'"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"prod"', answer.body or b"")

    def test_known_topic(self) -> None:
        """A topic that is known here is answered at once, with its order configuration."""
        self.register(header(), body("T"))
        self.talk.service.kv.put("ORDER_TOPIC_CONFIG", "T", "a:4")
        answer = self.successResultOf(self.ask("T"))
        self.assertIn(b'"orderTopicConf":"a:4"', answer.body or b"")
        self.assertIn(b'{0:"10.0.0.1:10911"}', answer.body or b"")
        self.assertEqual(self.talk.reactor.tcpClients, [])

    def test_known_to_nobody(self) -> None:
        """When one does not know it, or does not answer, the next is asked; then it has no route."""
        done = self.ask("nowhere")
        self.assertEqual(self.let_answer(), 9871)
        self.assertNoResult(done)
        _, protocol, _ = self.dialled()
        protocol.connectionLost(Failure(ConnectionDone()))
        answer = self.successResultOf(done)
        self.assertEqual(answer.code, 17)
        self.assertIn("nowhere", answer.remark or "")

    def test_silence(self) -> None:
        """Nobody waits longer than five seconds for each."""
        done = self.ask("P")
        self.dialled()
        self.talk.reactor.advance(5)
        self.dialled()
        self.assertNoResult(done)
        self.talk.reactor.advance(5)
        self.assertEqual(self.successResultOf(done).code, 17)


class UnknownFieldTests(FiveCase):
    def test_random_fields_do_no_harm(self) -> None:
        """Whatever extFields come with a known request, it is answered, and with unknown ones as without them."""
        seed = SEED
        print(f"\nFIELDS seed {seed}")
        chance = random.Random(seed)
        self.register(header(), body("T"))
        plain = self.route()
        names = ("ns", "nsd", "bname", "oway", "lo", "__ZONE_NAME", "maxMsgBytes", "x", "\u00e9", "")
        for _ in range(200):
            ext = {name: chance.choice(("", "true", "-1", "null", "{}")) for name in chance.sample(names, 4)}
            command = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, version=479, ext_fields={"topic": "T", **ext}
            )
            answer = self.talk.send(command)
            assert answer is not None
            self.assertEqual(answer.body, plain, ext)
