"""Bodies of registrations: JSON, compressed, broken, hostile."""

from __future__ import annotations

import random
import zlib

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper, TopicQueueMappingInfo
from rmq.wire.api.register_body import (
    MAX_INFLATED_BYTES,
    RegisterBodyError,
    RegisterBrokerBody,
    body_crc32,
    decode_register_body,
    encode_register_body,
)
from tests.namesrv.golden import exchanges
from tests.seeds import SEED


def body() -> RegisterBrokerBody:
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=4, perm=perm)
        for name, perm in (("TopicTest", 6), ("%RETRY%g", 4), ("主题", 7))
    }
    wrapper = TopicConfigWrapper(
        data_version=DataVersion(counter=3, timestamp=1_700_000_000_000), topic_config_table=table
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=["10.0.0.1:1"])


def part(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


class EncodingTests(SynchronousTestCase):
    def test_json(self) -> None:
        """The JSON is what Apache writes: compact, members in alphabetical order."""
        expected = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigWrapper(
                data_version=DataVersion(counter=3, timestamp=1_700_000_000_000),
                topic_config_table={
                    "TopicTest": TopicConfig(topic_name="TopicTest", read_queue_nums=8, write_queue_nums=8)
                },
            )
        )
        self.assertEqual(
            encode_register_body(expected),
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,"timestamp":1700000000000}'
            b',"topicConfigTable":{"TopicTest":{"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG"'
            b',"topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":8}}}}',
        )

    def test_there_and_back(self) -> None:
        """Both layouts are read back as they were written."""
        for compressed in (False, True):
            data = encode_register_body(body(), compressed=compressed)
            self.assertEqual(decode_register_body(data, compressed=compressed, version=409), body())

    def test_unannounced_compression(self) -> None:
        """A 5.3.3 broker compresses without saying so."""
        packed = zlib.decompress(encode_register_body(body(), compressed=True))
        no_static_topics = (0).to_bytes(4, "big")
        data = zlib.compress(packed + no_static_topics)
        self.assertEqual(decode_register_body(data, compressed=False, version=479), body())

    def test_checksum(self) -> None:
        """The checksum is CRC-32 without its top bit, as in the recording of an Apache broker."""
        self.assertEqual(body_crc32(b"Hello RocketMQ"), 1774740973)
        request = exchanges("broker-4.9.7_namesrv-4.9.7_compressedRegister")[0].request
        self.assertEqual(body_crc32(request.body or b""), int(request.ext_fields["bodyCrc32"]))


class DecodingTests(SynchronousTestCase):
    def decode(self, data: bytes, *, compressed: bool = True, version: int = 409) -> RegisterBrokerBody:
        return decode_register_body(data, compressed=compressed, version=version)

    def packed(self, *topics: bytes, tail: bytes = b"") -> bytes:
        texts = b"".join(map(part, topics))
        head = part(b'{"counter":1,"timestamp":2}') + len(topics).to_bytes(4, "big")
        return zlib.compress(head + texts + part(b"[]") + tail)

    def test_nothing(self) -> None:
        """No body: no topics, version 0."""
        wrapper = decode_register_body(None, compressed=False, version=409).topic_config_serialize_wrapper
        self.assertEqual((wrapper.data_version, wrapper.topic_config_table), (DataVersion(), {}))

    def test_very_old_sender(self) -> None:
        """Before version 37 the body is the topics alone, and filter servers are left as they are."""
        found = self.decode(b'{"topicConfigTable":{"T":{"topicName":"T"}}}', compressed=False, version=36)
        self.assertEqual(list(found.topic_config_serialize_wrapper.topic_config_table), ["T"])
        self.assertIsNone(found.filter_server_list)

    def test_packed_layouts(self) -> None:
        """Topics of five words (4.9) and six (5.x, attributes), with or without static topics behind."""
        for topic in (b"T 8 4 6 SINGLE_TAG", b'T 8 4 6 SINGLE_TAG {"+a":"b c"}'):
            for tail in (b"", (1).to_bytes(4, "big") + part(b"{}")):
                found = self.decode(self.packed(topic, tail=tail)).topic_config_serialize_wrapper
                self.assertEqual(
                    found.topic_config_table, {"T": TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4)}
                )

    def test_static_topics(self) -> None:
        """Static topics of a 5.x sender are read in both layouts; a sender before 5.0 has none in the packed one."""
        info = b'{"bname":"a","currIdMap":{0:2,"1":3},"epoch":5,"scope":"__global__","topic":"T","totalQueues":9}'
        expected = {
            "T": TopicQueueMappingInfo(
                bname="a", curr_id_map={0: 2, 1: 3}, epoch=5, scope="__global__", topic="T", total_queues=9
            )
        }
        packed = self.packed(b"T 8 4 6 SINGLE_TAG", tail=(1).to_bytes(4, "big") + part(info))
        plain = b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"T":%b}}}' % info
        for data, compressed in ((packed, True), (plain, False)):
            found = self.decode(data, compressed=compressed, version=413).topic_config_serialize_wrapper
            self.assertEqual(found.topic_queue_mapping_info_map, expected)
        self.assertIsNone(self.decode(packed, version=412).topic_config_serialize_wrapper.topic_queue_mapping_info_map)
        cut = zlib.compress(zlib.decompress(packed)[:-3])
        self.assertIn("static topic 1 of 1", str(self.assertRaises(RegisterBodyError, self.decode, cut, version=479)))

    def test_broken(self) -> None:
        """What is wrong is named: the part, and where."""
        whole = zlib.decompress(self.packed(b"T 8 4 6 SINGLE_TAG"))
        cases = {
            "no zlib stream": b"\x78garbage",
            "in the middle": self.packed(b"T 8 4 6 SINGLE_TAG")[:-6],
            "4 words": self.packed(b"T 8 4 6"),
            "no number": self.packed(b"T 8 x 6 SINGLE_TAG"),
            "topic 1 of 1": zlib.compress(whole[:-10]),
            "length of data version": zlib.compress(b"\xff\xff\xff\xff"),
            "before the topic count": zlib.compress(whole[:31]),
        }
        for expected, data in cases.items():
            error = self.assertRaises(RegisterBodyError, self.decode, data)
            self.assertIn(expected, str(error))
        for text in (b"garbage", b'{"topicConfigSerializeWrapper":5}', b"[]", b'{"filterServerList":{}}'):
            self.assertRaises(RegisterBodyError, self.decode, text, compressed=False)

    def test_bomb(self) -> None:
        """A body that would grow beyond the limit is refused before it has grown further."""
        bomb = zlib.compress(bytes(MAX_INFLATED_BYTES + 1), 9)
        self.assertLess(len(bomb), 100_000)
        error = self.assertRaises(RegisterBodyError, self.decode, bomb)
        self.assertIn("grows beyond", str(error))

    def test_garbage(self) -> None:
        """Whatever bytes come, compressed or not: a body or a RegisterBodyError."""
        seed = SEED
        print(f"\nGARBAGE seed {seed}")
        chance = random.Random(seed)
        plain, packed = encode_register_body(body()), zlib.decompress(encode_register_body(body(), compressed=True))
        for _ in range(300):
            for data, compressed in ((plain, False), (packed, True)):
                broken = bytearray(data[: chance.randrange(1, len(data) + 1)])
                for _ in range(chance.randrange(4)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
                sent = zlib.compress(bytes(broken)) if compressed else bytes(broken)
                try:
                    self.decode(sent, compressed=compressed)
                except RegisterBodyError:
                    pass
