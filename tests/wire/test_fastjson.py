"""Tests of JSON bodies in fastjson's dialect."""

from __future__ import annotations

import json
import random
from enum import Enum
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.api.common import (
    DataVersion,
    KVTable,
    MessageQueue,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigWrapper,
)
from rmq.wire.api.routes import BrokerData
from rmq.wire.api.topics import TopicOffset
from rmq.wire.fastjson import MAX_TOLERANT_BYTES, JsonError, decode, encode, enum_member
from rmq.wire.loosejson import MAX_DEPTH, parse


class Model(Enum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class Broker(msgspec.Struct, rename="camel", kw_only=True):
    cluster: str = ""
    broker_addrs: dict[int, str] = {}
    broker_name: str | None = None


class Route(msgspec.Struct, rename="camel", kw_only=True):
    queue_datas: list[str] = []
    broker_datas: list[Broker] = []
    order_topic_conf: str | None = None


class Stats(msgspec.Struct, rename="camel", kw_only=True):
    offset_table: dict[MessageQueue, int] = {}
    tps: float = 0.0


class Mixed(msgspec.Struct, rename="camel", kw_only=True):
    stats: list[Stats] = []
    anything: Any = None


class Consumer(msgspec.Struct, rename="camel", kw_only=True):
    group_name: str
    message_model: Model = Model.CLUSTERING
    unit_mode: bool = False
    sub_version: int = 0
    tags: set[str] = set()
    nested: list[SubscriptionData] | None = None


QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


class EncodeTests(SynchronousTestCase):
    def test_members(self) -> None:
        """Members are alphabetical by wire name, without blanks, None left out at every level."""
        route = Route(queue_datas=["q"], broker_datas=[Broker(cluster="c", broker_addrs={0: "1.2.3.4:10911"})])
        self.assertEqual(
            encode(route), b'{"brokerDatas":[{"brokerAddrs":{0:"1.2.3.4:10911"},"cluster":"c"}],"queueDatas":["q"]}'
        )

    def test_integer_keys(self) -> None:
        """Integer keys are bare, in numerical order; text keys that look like integers keep their quotes."""
        self.assertEqual(encode({10: "a", 9: "b", -1: "c"}), b'{-1:"c",9:"b",10:"a"}')
        self.assertEqual(encode(KVTable(table={"1": "x"})), b'{"table":{"1":"x"}}')
        self.assertEqual(encode({"T@G": {0: 12, 1: 7}}), b'{"T@G":{0:12,1:7}}')

    def test_lists_of_objects_with_integer_keys(self) -> None:
        """Several of a class at once are written as each of them alone, whatever stands in their texts."""
        texts = ("", "a", '{"1":', ',"0":', "null", '"', "\\", "集", "0")
        tables: tuple[dict[int, str], ...] = ({}, {0: "a"}, {0: "a", 1: ',"2":'}, {1: "b", 0: "a"}, {10: "x", 9: "{"})
        brokers = [BrokerData(cluster=text, broker_addrs=table, broker_name=text) for text in texts for table in tables]
        brokers.append(BrokerData(cluster="c", broker_addrs={0: "a", 2: None}, broker_name="b"))  # type: ignore[dict-item]
        for strict in (False, True):
            for start in range(len(brokers)):
                for some in (brokers[start:], brokers[start : start + 2]):
                    expected = b"[" + b",".join(encode(broker, quote_int_keys=strict) for broker in some) + b"]"
                    self.assertEqual(encode(some, quote_int_keys=strict), expected)
        self.assertEqual(encode([{0: "a"}, brokers[1]]), b'[{0:"a"},' + encode(brokers[1]) + b"]")
        self.assertEqual(encode([brokers[1], QUEUE]), b"[" + encode(brokers[1]) + b"," + encode(QUEUE) + b"]")

    def test_object_keys(self) -> None:
        """Objects as keys stand as objects, in their own order when they have one."""
        stats = Stats(offset_table={MessageQueue(topic="T", broker_name="b", queue_id=1): 5, QUEUE: 3})
        self.assertEqual(
            encode(stats),
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:3,'
            b'{"brokerName":"b","queueId":1,"topic":"T"}:5},"tps":0.0}',
        )

    def test_maps_from_objects_to_objects(self) -> None:
        """A map whose keys and values are objects is written at once as each by itself, whatever its texts are."""
        keys = [
            MessageQueue(topic=topic, broker_name=name, queue_id=number)
            for number, topic in enumerate(("T", "},", "}],[{", '"},{"maxOffset":', '}],[{"brokerName":', "null", "集"))
            for name in ("b", "},{", '}:{"', "\\")
        ]
        offsets = [TopicOffset(min_offset=0, max_offset=each, last_update_timestamp=-each) for each in range(len(keys))]
        tables: list[dict[Any, Any]] = [dict(zip(reversed(keys), offsets, strict=True)), {QUEUE: QUEUE}]
        tables += [{keys[0]: offsets[0], keys[1]: QUEUE}, {QUEUE: 1, keys[1]: offsets[0]}, {QUEUE: Stats()}]
        tables += [{key: offsets[0], QUEUE: offsets[1]} for key in keys]
        for table in tables:
            for strict in (False, True):
                pairs = [
                    encode(key, quote_int_keys=strict) + b":" + encode(table[key], quote_int_keys=strict)
                    for key in sorted(table)
                ]
                self.assertEqual(encode(table, quote_int_keys=strict), b"{" + b",".join(pairs) + b"}")

    def test_strict_form(self) -> None:
        """The strict form quotes integer keys and escapes beyond ASCII, pairs for astral characters."""
        broker = Broker(cluster="集群\U0001f680é", broker_addrs={0: "a"}, broker_name="b")
        text = encode(broker, quote_int_keys=True)
        self.assertEqual(
            text,
            b'{"brokerAddrs":{"0":"a"},"brokerName":"b","cluster":"\\u96C6\\u7FA4\\uD83D\\uDE80\\u00E9"}',
        )
        self.assertEqual(json.loads(text)["cluster"], broker.cluster)
        self.assertIn("集群".encode(), encode(broker))

    def test_maps_are_sorted(self) -> None:
        """Maps are sorted in both forms, so that equal content has equal bytes."""
        table = KVTable(table={"b": "2", "a": "1"})
        self.assertEqual(encode(table), b'{"table":{"a":"1","b":"2"}}')
        self.assertEqual(encode(table, quote_int_keys=True), encode(table))

    def test_empty(self) -> None:
        """Empty containers are written as such."""
        self.assertEqual(encode({}), b"{}")
        self.assertEqual(encode([]), b"[]")
        self.assertEqual(encode(set()), b"[]")
        self.assertEqual(encode(Route()), b'{"brokerDatas":[],"queueDatas":[]}')
        self.assertEqual(encode({"a": None}), b"{}")
        self.assertEqual(encode({0: {}, 1: None}), b"{0:{}}")

    def test_sets_are_sorted(self) -> None:
        """Sets come out as sorted arrays."""
        data = SubscriptionData(topic="T", tags_set={"b", "a"}, code_set={2, -1}, sub_version=5)
        self.assertEqual(
            encode(data),
            b'{"classFilterMode":false,"codeSet":[-1,2],"expressionType":"TAG","subString":"*","subVersion":5,'
            b'"tagsSet":["a","b"],"topic":"T"}',
        )

    def test_the_word_null_in_a_text(self) -> None:
        """A text with null in it is written like any other."""
        self.assertEqual(encode(KVTable(table={"null": ":null"})), b'{"table":{"null":":null"}}')

    def test_any_value(self) -> None:
        """Untyped trees are written by the same rules."""
        self.assertEqual(encode([{1: [{QUEUE: None}]}, "x", True, 1.5, None]), b'[{1:[{}]},"x",true,1.5,null]')

    def test_keys_without_order(self) -> None:
        """Keys that cannot be compared come in their own order."""
        self.assertEqual(encode({"b": 1, 2: 3, "a": 4}), b'{"b":1,2:3,"a":4}')

    def test_control_characters(self) -> None:
        """Quotes, backslashes and control characters are escaped."""
        self.assertEqual(encode('a"\\\x01\n'), b'"a\\"\\\\\\u0001\\n"')

    def test_enums(self) -> None:
        """Enums are written by value."""
        self.assertIn(b'"messageModel":"CLUSTERING"', encode(Consumer(group_name="G")))


class CatalogueTests(SynchronousTestCase):
    def test_common_bodies(self) -> None:
        """The shared classes are written as Apache writes them."""
        config = TopicConfig(topic_name="TopicTest", read_queue_nums=8, write_queue_nums=8)
        topic = (
            '{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest",'
            '"topicSysFlag":0,"writeQueueNums":8}'
        )
        version = '{"counter":3,"timestamp":1700000000000}'
        self.assertEqual(encode(config).decode(), topic)
        self.assertEqual(
            encode(
                TopicConfigWrapper(
                    data_version=DataVersion(counter=3, timestamp=1700000000000),
                    topic_config_table={"TopicTest": config},
                )
            ).decode(),
            f'{{"dataVersion":{version},"topicConfigTable":{{"TopicTest":{topic}}}}}',
        )
        self.assertEqual(
            encode(SubscriptionGroupConfig(group_name="G")).decode(),
            '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
            '"groupName":"G","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
            '"whichBrokerWhenConsumeSlowly":1}',
        )
        self.assertEqual(
            encode(SubscriptionGroupWrapper()),
            b'{"dataVersion":{"counter":0,"timestamp":0},"subscriptionGroupTable":{}}',
        )

    def test_five_x_members_are_ignored(self) -> None:
        """Members that 5.x adds at any level are skipped."""
        body = (
            b'{"dataVersion":{"counter":1,"stateVersion":4,"timestamp":2},"mappingDataVersion":{"counter":0},'
            b'"topicConfigTable":{"T":{"attributes":{"+a":"b"},"order":true,"perm":7,"readQueueNums":1,'
            b'"topicFilterType":"MULTI_TAG","topicName":"T","topicSysFlag":1,"writeQueueNums":2}}}'
        )
        wrapper = decode(body, TopicConfigWrapper)
        self.assertEqual(wrapper.data_version, DataVersion(counter=1, state_version=4, timestamp=2))
        self.assertEqual(
            wrapper.topic_config_table["T"],
            TopicConfig(
                topic_name="T",
                order=True,
                perm=7,
                read_queue_nums=1,
                write_queue_nums=2,
                topic_filter_type="MULTI_TAG",
                topic_sys_flag=1,
            ),
        )


class DecodeTests(SynchronousTestCase):
    def test_standard(self) -> None:
        """Standard JSON with blanks and another order is read."""
        text = b' { "brokerDatas" : [ ] , "queueDatas" : [ "x" ] } \n'
        self.assertEqual(decode(text, Route), Route(queue_datas=["x"]))

    def test_integer_keys(self) -> None:
        """Bare and quoted integer keys mean the same."""
        expected = Broker(broker_addrs={0: "a", 1: "b"})
        for text in (
            b'{"brokerAddrs":{0:"a",1:"b"}}',
            b'{"brokerAddrs":{"0":"a","1":"b"}}',
            b'{"brokerAddrs":{ 0 : "a" , 1 : "b" } }',
        ):
            self.assertEqual(decode(text, Broker), expected)
        self.assertEqual(decode(b"{-1:2}", dict[int, int]), {-1: 2})

    def test_integer_keys_beside_texts_like_them(self) -> None:
        """A text that looks like bare keys is left alone."""
        text = b'{"brokerAddrs":{0:"{1:x,2:y"},"brokerName":",3: {4:"}'
        self.assertEqual(decode(text, Broker), Broker(broker_addrs={0: "{1:x,2:y"}, broker_name=",3: {4:"))

    def test_bare_keys_of_text_maps(self) -> None:
        """A bare number as a key of a text map is that text."""
        self.assertEqual(decode(b'{"table":{1:"x"}}', KVTable), KVTable(table={"1": "x"}))

    def test_object_keys(self) -> None:
        """Maps with objects as keys are read, numbers in their keys as text too."""
        text = (
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:3,'
            b'{"topic":"U","queueId":"1","brokerName":"b","x":[{"y":1}]}:"5"},"tps":1.0}'
        )
        stats = decode(text, Stats)
        self.assertEqual(stats.offset_table, {QUEUE: 3, MessageQueue(topic="U", broker_name="b", queue_id=1): 5})
        self.assertEqual(decode(encode(stats), Stats), stats)

    def test_object_keys_beside_anything(self) -> None:
        """A class with object keys somewhere and untyped members elsewhere is read and written too."""
        mixed = Mixed(stats=[Stats(offset_table={QUEUE: 3})], anything={"a": [1]})
        self.assertEqual(decode(encode(mixed), Mixed), mixed)

    def test_dialect(self) -> None:
        """Bare names, single quotes, stray commas, numbers and booleans as text and the reverse."""
        text = b"{groupName:'it\\'s',,'messageModel':\"clustering\",unitMode:'true',subVersion:'17',tags:['a','b',],}"
        self.assertEqual(
            decode(text, Consumer), Consumer(group_name="it's", unit_mode=True, sub_version=17, tags={"a", "b"})
        )
        self.assertEqual(decode(b'{"groupName":7,"subVersion":"3"}', Consumer), Consumer(group_name="7", sub_version=3))
        for text in (b'{"groupName":"G","unitMode":"1"}', b'{groupName:"G","unitMode":"1"}'):
            self.assertIs(decode(text, Consumer).unit_mode, True)

    def test_enums(self) -> None:
        """Enums come by name, in any case, or by ordinal, as C++ clients send them."""
        for text in (b'"BROADCASTING"', b'"broadcasting"', b"0", b'"0"'):
            body = b'{"groupName":"G","messageModel":' + text + b"}"
            self.assertIs(decode(body, Consumer).message_model, Model.BROADCASTING, text)
        for text in (b'"OTHER"', b"2", b"-1"):
            body = b'{"groupName":"G","messageModel":' + text + b"}"
            self.assertIn("messageModel", str(self.assertRaises(JsonError, decode, body, Consumer)))

    def test_null_members(self) -> None:
        """Null leaves a member at its default."""
        body = b'{"groupName":"G","messageModel":null,"unitMode":null,"tags":null,"nested":null}'
        self.assertEqual(decode(body, Consumer), Consumer(group_name="G"))

    def test_references(self) -> None:
        """fastjson's references to other parts read as empty."""
        body = b'{"groupName":"G","tags":{"$ref":"$.x"},"nested":{"$ref":"$"}}'
        self.assertEqual(decode(body, Consumer), Consumer(group_name="G", nested=[]))

    def test_cpp_subscription(self) -> None:
        """A C++ heartbeat's subscription: version as text, no sets."""
        body = b'{"topic":"T","subString":"*","subVersion":"1700000000000","classFilterMode":false}\n'
        self.assertEqual(decode(body, SubscriptionData), SubscriptionData(topic="T", sub_version=1700000000000))

    def test_not_utf8(self) -> None:
        """Bytes that are no UTF-8 become U+FFFD."""
        self.assertEqual(decode(b'{"table":{"k":"\xb1"}}', KVTable).table, {"k": "\ufffd"})

    def test_errors_say_where(self) -> None:
        """What cannot be read names member or position."""
        for text, part in (
            (b"", "empty|0 values"),
            (b"{", "1 open"),
            (b"[1", "1 open"),
            (b"{}{}", "2 values"),
            (b"{}}", "character 2"),
            (b"]", "character 0"),
            (b'{"a"}', "character 4"),
            (b'{"a":}', "character 5"),
            (b'{"a" 1}', "character"),
            (b'{"a":b}', "character 5"),
            (b"{[]:1}", "character"),
            (b'{"table":[1]}', "table"),
            (b'{"table":"x"}', "table"),
            (b'"unfinished', "character 0"),
            (b"12x", "character 0"),
            (b"7", "object"),
            (b"\xff\xff", "character 0"),
        ):
            error = self.assertRaises(JsonError, decode, text, KVTable)
            self.assertRegex(str(error), part, text)
            self.assertLess(len(str(error)), 300)

    def test_missing_member(self) -> None:
        """A member without default must be there."""
        error = self.assertRaises(JsonError, decode, b'{"perm":6}', TopicConfig)
        self.assertIn("topicName", str(error))

    def test_deep(self) -> None:
        """Endless nesting is an error, not a crash; the tolerant parser names its limit."""
        for opening in ("[", '{"a":', "{a:", "{{"):
            self.assertRaises(JsonError, decode, opening.encode() * 100_000, dict[str, Any])
            error = self.assertRaises(JsonError, parse, opening * (MAX_DEPTH + 1))
            self.assertIn(str(MAX_DEPTH), str(error))
        self.assertEqual(parse("[" * MAX_DEPTH + "]" * MAX_DEPTH), json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH))

    def test_huge(self) -> None:
        """Broken input beyond the tolerant parser's limit is refused unread, sound input is not limited."""
        sound = b'{"table":{"k":"' + b"x" * MAX_TOLERANT_BYTES + b'"}}'
        self.assertEqual(len(decode(sound, KVTable).table["k"]), MAX_TOLERANT_BYTES)
        error = self.assertRaises(JsonError, decode, sound[:-1] + b",,", KVTable)
        self.assertIn(str(len(sound) + 1), str(error))

    def test_long_numbers(self) -> None:
        """A number with thousands of digits is an error, and so is one that no double holds where it is needed."""
        for text in (b"{a:" + b"1" * 10_000 + b"}", b'{"a":' + b"1" * 10_000 + b"}"):
            self.assertRaises(JsonError, decode, text, dict[str, int])
        self.assertRaises(JsonError, decode, b"{a:1e999}", dict[str, int])

    def test_long_separators(self) -> None:
        """Runs of commas and blanks take linear time."""
        self.assertEqual(parse("[1" + " ,\n" * 300_000 + "2]"), [1, 2])

    def test_garbage(self) -> None:
        """Whatever comes in, a value or a JsonError comes out; so for every cut of a good text."""
        good = encode({"offsetTable": {QUEUE: 1}, "a": [1, True, "x"], "t": {0: "b"}}).decode()
        for size in range(len(good)):
            self.assertRaises(JsonError, parse, good[:size])
        alphabet = "{}[]:,'\"\\ \nu0019.eE-+truefalsn$é"
        for seed in range(2000):
            rng = random.Random(seed)
            text = list(good) if seed % 2 else [rng.choice(alphabet) for _ in range(rng.randrange(30))]
            for _ in range(rng.randrange(5)):
                text.insert(rng.randrange(len(text) + 1), rng.choice(alphabet))
            for type_ in (dict[str, Any], Stats, Consumer):
                try:
                    decode("".join(text).encode(), type_)
                except JsonError:
                    pass
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {''.join(text)!r}") from error

    trees = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    )

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(trees)
    def test_parser_reads_standard_json(self, tree: Any) -> None:
        """On standard JSON the tolerant parser agrees with the standard library, escaped or not."""
        self.assertEqual(parse(json.dumps(tree)), tree)
        self.assertEqual(parse(json.dumps(tree, ensure_ascii=False, indent=1)), tree)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.dictionaries(st.integers(-(2**31), 2**31), st.text(max_size=6)), st.booleans())
    def test_round_trip_of_integer_keys(self, table: dict[int, str], strict: bool) -> None:
        """Both forms are read back equal, whatever the texts look like."""
        broker = Broker(broker_addrs=table)
        self.assertEqual(decode(encode(broker, quote_int_keys=strict), Broker), broker)


class EscapeTests(SynchronousTestCase):
    def test_escapes(self) -> None:
        """Every escape of JSON, and single quotes, are understood; lone surrogates become U+FFFD."""
        self.assertEqual(parse(r'"\"\\\/\b\f\n\r\t\u0041\u4e2d"'), '"\\/\b\f\n\r\tA中')
        self.assertEqual(parse(r"'\'\u00e9'"), "'é")
        self.assertEqual(parse(r'"\ud83d\ude00 \ud83d \ude00"'), "\U0001f600 \ufffd \ufffd")


class EnumMemberTests(SynchronousTestCase):
    def test_members(self) -> None:
        """By name in any case, by ordinal as number or text; None for anything else."""
        self.assertIs(enum_member(Model, "CLUSTERING"), Model.CLUSTERING)
        self.assertIs(enum_member(Model, "clustering"), Model.CLUSTERING)
        self.assertIs(enum_member(Model, 1), Model.CLUSTERING)
        self.assertIs(enum_member(Model, "1"), Model.CLUSTERING)
        for wrong in ("x", "", 2, -1, "2", None):
            self.assertIsNone(enum_member(Model, wrong))
