"""What a NameServer answers where the recordings of Apache say nothing."""

from __future__ import annotations

import os

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.properties import decode_properties, format_properties
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.kv import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KVLIST_BY_NAMESPACE,
    ORDER_TOPIC_CONFIG,
    PUT_KV_CONFIG,
    KVConfigHeader,
    NamespaceHeader,
    PutKVConfigHeader,
)
from rmq.wire.api.register_body import RegisterBrokerBody, body_crc32, encode_register_body
from rmq.wire.api.routes import (
    BROKER_HEARTBEAT,
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_MEMBER_GROUP,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_NAMESRV_CONFIG,
    GET_ROUTEINFO_BY_TOPIC,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    REGISTER_TOPIC_IN_NAMESRV,
    UNREGISTER_BROKER,
    UPDATE_NAMESRV_CONFIG,
    BrokerHeartbeatHeader,
    GetBrokerMemberGroupHeader,
    GetRouteInfoHeader,
    GetTopicsByClusterHeader,
    RegisterBrokerHeader,
    RegisterTopicHeader,
)
from rmq.wire.codes import SerializeType
from rmq.wire.command import RemotingCommand
from tests.namesrv.talk import NOW_S, Talk

HEADER = RegisterBrokerHeader(
    broker_name="a",
    broker_addr="10.0.0.1:10911",
    cluster_name="C",
    ha_server_addr="10.0.0.1:10912",
    broker_id=0,
)


def body(*names: str, version: int = 1) -> bytes:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4) for name in names}
    wrapper = TopicConfigWrapper(data_version=DataVersion(counter=version), topic_config_table=table)
    return encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


class TalkCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk(self.mktemp())

    def register(self, *names: str) -> RemotingCommand:
        return self.talk.ask(REGISTER_BROKER, HEADER, body(*names))

    def route(self, topic: str, *, version: int = 409) -> RemotingCommand:
        return self.talk.ask(GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), version=version)


class RegistrationTests(TalkCase):
    def test_checksum(self) -> None:
        """A body with the right checksum is taken, one with a wrong one is refused and changes nothing."""
        data = body("T")
        wrong = msgspec.structs.replace(HEADER, body_crc32=body_crc32(data) ^ 1)
        answer = self.talk.ask(REGISTER_BROKER, wrong, data)
        self.assertEqual((answer.code, answer.remark), (1, "crc32 not match"))
        self.assertEqual(self.route("T").code, 17)
        right = msgspec.structs.replace(HEADER, body_crc32=body_crc32(data))
        self.assertEqual(self.talk.ask(REGISTER_BROKER, right, data).code, 0)
        self.assertEqual(self.route("T").code, 0)

    def test_one_way(self) -> None:
        """A one-way registration counts and is not answered, not even when it is refused."""
        for data, known in ((b"garbage", 17), (body("T"), 0)):
            ext = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "haServerAddr": "x:2", "brokerId": "0"}
            command = RemotingCommand(REGISTER_BROKER.code, 1, 2, ext_fields=ext, body=data)
            self.assertIsNone(self.talk.send(command))
            self.assertEqual(self.route("T").code, known)

    def test_missing_field(self) -> None:
        """The refusal names the field that is missing, and the one that is no number."""
        answer = self.talk.ask(REGISTER_BROKER, {"brokerName": "a"}, body("T"))
        self.assertEqual(answer.code, 1)
        self.assertIn("brokerAddr", answer.remark or "")
        ext = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "haServerAddr": "x:2", "brokerId": "zero"}
        self.assertIn("brokerId", self.talk.ask(REGISTER_BROKER, ext, body("T")).remark or "")

    def test_order_topics_in_the_answer(self) -> None:
        """A broker hears which topics are ordered, unless that is switched off; an emptied table is sent as empty."""
        self.assertIsNone(self.register("T").body)
        self.talk.service.kv.put(ORDER_TOPIC_CONFIG, "T", "a:4")
        self.assertEqual(self.register("T").body, b'{"table":{"T":"a:4"}}')
        self.talk.service.kv.delete(ORDER_TOPIC_CONFIG, "T")
        self.assertEqual(self.register("T").body, b'{"table":{}}')
        silent = Talk(self.mktemp(), return_order_topic_config_to_broker=False)
        silent.service.kv.put(ORDER_TOPIC_CONFIG, "T", "a:4")
        self.assertIsNone(silent.ask(REGISTER_BROKER, HEADER, body("T")).body)

    def test_query_without_body(self) -> None:
        """A data version query without its body is an error, not a sign of change."""
        ext = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "brokerId": "0"}
        self.assertEqual(self.talk.ask(QUERY_DATA_VERSION, ext).code, 1)

    def test_heartbeat(self) -> None:
        """A 5.x heartbeat keeps its broker alive, and is answered for unknown ones too."""
        self.register("T")
        self.talk.reactor.advance(100)
        header = BrokerHeartbeatHeader(cluster_name="C", broker_addr=HEADER.broker_addr, broker_name="a")
        self.assertEqual(self.talk.ask(BROKER_HEARTBEAT, header).code, 0)
        (live,) = self.talk.service.routes.live_brokers()
        self.assertEqual(live.last_update_ms, (NOW_S + 100) * 1000)
        stranger = BrokerHeartbeatHeader(cluster_name="C", broker_addr="9.9.9.9:9", broker_name="z")
        self.assertEqual(self.talk.ask(BROKER_HEARTBEAT, stranger).code, 0)

    def test_fields_of_5x(self) -> None:
        """Fields that only 5.x knows do no harm in any request."""
        ext = {"ns": "x", "nsd": "true", "bname": "b", "oway": "false", "lo": "false"}
        identity = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "brokerId": "0"}
        self.assertEqual(self.talk.ask(UNREGISTER_BROKER, identity | ext, version=479).code, 0)
        self.assertEqual(self.talk.ask(GET_ROUTEINFO_BY_TOPIC, {"topic": "T"} | ext, version=479).code, 17)


class RouteTests(TalkCase):
    def test_unknown_code(self) -> None:
        """An unknown code is answered with 3; the connection is not left waiting."""
        answer = self.talk.send(RemotingCommand(4711, 5))
        assert answer is not None
        self.assertEqual((answer.code, answer.remark), (3, " request type 4711 not supported"))

    def test_order_conf(self) -> None:
        """With orderMessageEnable a route carries the order configuration of its topic, if there is one."""
        talk = Talk(self.mktemp(), order_message_enable=True)
        talk.ask(REGISTER_BROKER, HEADER, body("T", "U"))
        talk.service.kv.put(ORDER_TOPIC_CONFIG, "T", "a:4")
        ordered = talk.ask(GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic="T"))
        self.assertIn(b'"orderTopicConf":"a:4"', ordered.body or b"")
        plain = talk.ask(GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic="U"))
        self.assertNotIn(b"orderTopicConf", plain.body or b"")

    def test_strict_json(self) -> None:
        """To versions from 401 on everything is plain ASCII JSON; older ones get bare keys and raw characters."""
        header = msgspec.structs.replace(HEADER, broker_name="брокер")
        self.talk.ask(REGISTER_BROKER, header, body("T"))
        old, new = self.route("T", version=399).body or b"", self.route("T", version=401).body or b""
        self.assertIn('{0:"10.0.0.1:10911"},"brokerName":"брокер"'.encode(), old)
        self.assertTrue(new.isascii())
        self.assertEqual(msgspec.json.decode(new)["brokerDatas"][0]["brokerName"], "брокер")

    def test_binary_header(self) -> None:
        """A request with a binary header gets its answer in kind, with the same body."""
        self.register("T")
        command = RemotingCommand(
            GET_ROUTEINFO_BY_TOPIC.code, 7, ext_fields={"topic": "T"}, serialize_type=SerializeType.ROCKETMQ
        )
        answer = self.talk.send(command)
        assert answer is not None
        self.assertEqual((answer.serialize_type, answer.opaque), (SerializeType.ROCKETMQ, 7))
        self.assertEqual(answer.body, self.route("T").body)

    def test_waiting_for_brokers(self) -> None:
        """With needWaitForService look-ups are refused until brokers have had the time to register."""
        talk = Talk(self.mktemp(), need_wait_for_service=True, wait_seconds_for_service=45)
        talk.ask(REGISTER_BROKER, HEADER, body("T"))
        header = GetRouteInfoHeader(topic="T")
        talk.reactor.advance(44)
        self.assertEqual(talk.ask(GET_ROUTEINFO_BY_TOPIC, header).remark, "name server not ready")
        talk.reactor.advance(1)
        self.assertEqual(talk.ask(GET_ROUTEINFO_BY_TOPIC, header).code, 0)

    def test_disabled_lists(self) -> None:
        """Lists that the configuration switches off are refused with `disable`."""
        talk = Talk(self.mktemp(), enable_all_topic_list=False, enable_topic_list=False)
        for contract in (
            GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            GET_UNIT_TOPIC_LIST,
            GET_HAS_UNIT_SUB_TOPIC_LIST,
            GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ):
            self.assertEqual(talk.ask(contract).remark, "disable")
        self.assertEqual(talk.ask(GET_TOPICS_BY_CLUSTER, GetTopicsByClusterHeader(cluster="C")).remark, "disable")

    def test_member_group(self) -> None:
        """A group's addresses by id; an unknown group has none."""
        self.register("T")
        header = GetBrokerMemberGroupHeader(cluster_name="C", broker_name="a")
        self.assertEqual(
            self.talk.ask(GET_BROKER_MEMBER_GROUP, header).body,
            b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"C"}}',
        )
        header.broker_name = "z"
        self.assertEqual(
            self.talk.ask(GET_BROKER_MEMBER_GROUP, header).body,
            b'{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"z","cluster":"C"}}',
        )

    def test_register_topic(self) -> None:
        """Code 217 puts a topic on a known group; a body that is no route is refused."""
        self.register("T")
        route = b'{"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
        header = RegisterTopicHeader(topic="U")
        self.assertEqual(self.talk.ask(REGISTER_TOPIC_IN_NAMESRV, header, route).code, 0)
        self.assertEqual(self.route("U").code, 0)
        self.assertEqual(self.talk.ask(REGISTER_TOPIC_IN_NAMESRV, header, b"?").code, 1)


class KVTests(TalkCase):
    def put(self, namespace: str, key: str, value: str) -> RemotingCommand:
        return self.talk.ask(PUT_KV_CONFIG, PutKVConfigHeader(namespace=namespace, key=key, value=value))

    def test_survives_a_restart(self) -> None:
        """What was answered with success is there after a restart; the file is Apache's."""
        self.assertEqual(self.put("N", "k", "значение").code, 0)
        with open(self.talk.path("kvConfig.json"), "rb") as file:
            self.assertEqual(file.read(), '{"configTable":{"N":{"k":"значение"}}}'.encode())
        self.talk.restart()
        answer = self.talk.ask(GET_KV_CONFIG, KVConfigHeader(namespace="N", key="k"))
        self.assertEqual(answer.ext_fields["value"], "значение")
        self.talk.ask(DELETE_KV_CONFIG, KVConfigHeader(namespace="N", key="k"))
        self.talk.restart()
        self.assertEqual(self.talk.ask(GET_KV_CONFIG, KVConfigHeader(namespace="N", key="k")).code, 22)
        self.assertEqual(self.talk.ask(GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace="N")).body, b'{"table":{}}')

    def test_unwritable(self) -> None:
        """When the file cannot be written the answer says so and names it, and the old value stays."""
        self.put("N", "k", "old")
        os.mkdir(self.talk.path("kvConfig.json.tmp"))
        answer = self.put("N", "k", "new")
        self.assertEqual(answer.code, 1)
        self.assertIn("kvConfig.json.tmp", answer.remark or "")
        self.assertEqual(self.talk.service.kv.get("N", "k"), "old")


class ConfigTests(TalkCase):
    def update(self, text: bytes) -> RemotingCommand:
        return self.talk.ask(UPDATE_NAMESRV_CONFIG, None, text)

    def shown(self) -> dict[str, str]:
        text = (self.talk.ask(GET_NAMESRV_CONFIG).body or b"").decode()
        return dict(line.split("=", 1) for line in text.splitlines())

    def test_change_is_shown_obeyed_and_kept(self) -> None:
        """A changed key is in the answer to 319, acts at once, and is in the file."""
        self.assertEqual(self.update(b"enableAllTopicList=false\nunknownKey=1\n").code, 0)
        self.assertEqual(self.shown()["enableAllTopicList"], "false")
        self.assertEqual(self.talk.ask(GET_ALL_TOPIC_LIST_FROM_NAMESERVER).remark, "disable")
        with open(self.talk.path("namesrv.properties"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("enableAllTopicList=false\n", text)
        self.assertNotIn("unknownKey", text)

    def test_every_key(self) -> None:
        """Every key that is shown and not black can be set to what it is; the file then holds all of them."""
        shown = self.shown()
        paths = {"configStorePath", "kvConfigPath", "rocketmqHome"}
        ports = {"listenPort", "bindAddress", "serverChannelMaxIdleTimeSeconds"}
        quorum = {"controllerDLegerPeers", "jRaftInitConf"}
        black = {"configBlackList", "configWhiteList", "enableControllerInNamesrv", *quorum, *paths, *ports}
        for key, value in shown.items():
            answer = self.update(format_properties({key: value}).encode())
            self.assertEqual((key, answer.code), (key, 16 if key in black else 0))
        self.assertEqual(self.shown(), shown)
        with open(self.talk.path("namesrv.properties"), "rb") as file:
            kept = decode_properties(file.read(), "the file")
        self.assertEqual(kept.keys(), shown.keys())

    def test_black_list(self) -> None:
        """A key of the black list refuses the whole request."""
        for key in ("kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome"):
            answer = self.update(f"productEnvName=x\n{key}=/tmp/x\n".encode())
            text = f"Can not update config in black list. Only the configuration file changes {key}"
            if key in ("kvConfigPath", "configStorePath"):
                text = "Can not update config path"
            self.assertEqual((answer.code, answer.remark), (16, text))
        self.assertEqual(self.shown()["productEnvName"], "center")

    def test_bad_values(self) -> None:
        """A bad value is refused with key and text, broken properties with Apache's words; nothing changes."""
        answer = self.update(b"productEnvName=x\nwaitSecondsForService=many\n")
        self.assertEqual(answer.code, 1)
        self.assertIn("waitSecondsForService='many'", answer.remark or "")
        self.assertIn("string2Properties error", self.update(b"a=\\u12").remark or "")
        self.assertEqual(self.shown()["productEnvName"], "center")
        self.assertFalse(os.path.exists(self.talk.path("namesrv.properties")))


class ContractTests(TalkCase):
    def test_codes(self) -> None:
        """These codes are answered, and no others."""
        codes = "100 101 102 103 104 105 106 205 206 216 217 219 224 304 311 312 313 318 319 322 327 901 904 9701"
        self.assertEqual(sorted(self.talk.service.responders.codes()), [int(code) for code in codes.split()])

    def test_broken_bodies(self) -> None:
        """A body that is no JSON is answered with code 1 and what is wrong."""
        ext = {"brokerName": "a", "brokerAddr": "x:1", "clusterName": "C", "brokerId": "0"}
        answer = self.talk.ask(QUERY_DATA_VERSION, ext, b"{")
        self.assertEqual(answer.code, 1)
        self.assertIn("body of request 322", answer.remark or "")
        self.assertEqual(fastjson.decode(b"{}", DataVersion), DataVersion())
