"""Tests of custom headers: typed on our side, strings on the wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire import loosejson
from rmq.wire.extfields import (
    BadField,
    Int32,
    Int64,
    decode_strings,
    encode_ext,
    header_codec,
    parse_boolean,
)
from rmq.wire.fastjson import java_string


class Sample(msgspec.Struct, rename="camel", kw_only=True):
    topic_name: str
    queue_id: Int32
    queue_offset: Int64 = -1
    anything: int = 0
    batch: bool = False
    maybe: bool | None = None
    tps: float | None = None
    remark: str | None = None
    limit: Int32 | None = None


def read(text: str) -> Sample:
    return header_codec(Sample).decode_json(text.encode())


def full(**fields: object) -> str:
    return json.dumps({"topicName": "T", "queueId": "3", **fields})


class DecodeTests(SynchronousTestCase):
    def test_strings(self) -> None:
        """All values arrive as strings and become what the class says."""
        header = read(full(queueOffset="9007199254740993", batch="true", tps="1.5", remark="x", limit="-1"))
        self.assertEqual(
            header,
            Sample(
                topic_name="T", queue_id=3, queue_offset=9007199254740993, batch=True, tps=1.5, remark="x", limit=-1
            ),
        )

    def test_raw_numbers_and_booleans(self) -> None:
        """Node and C++ clients send numbers and booleans where strings belong, and the reverse is understood too."""
        header = read('{"topicName":7,"queueId":3,"batch":true,"maybe":false,"remark":false,"tps":2}')
        self.assertEqual(header.topic_name, "7")
        self.assertEqual(header.queue_id, 3)
        self.assertIs(header.batch, True)
        self.assertIs(header.maybe, False)
        self.assertEqual(header.remark, "false")
        self.assertEqual(header.tps, 2.0)

    def test_booleans_as_in_java(self) -> None:
        """Only "true", in any case, is true: librocketmq's "1" is false, and so is anything else."""
        for text, value in (("true", True), ("TRUE", True), ("True", True), ("false", False), ("1", False)):
            self.assertIs(read(full(batch=text)).batch, value, text)
        for other in ("0", "yes", "", " true", "truely"):
            self.assertIs(read(full(batch=other)).batch, False, other)
        self.assertIs(read(full(batch=1)).batch, False)

    def test_boolean_beside_a_true_one(self) -> None:
        """A "1" is not taken for true because another field is."""
        header = read(full(batch="1", maybe="true"))
        self.assertIs(header.batch, False)
        self.assertIs(header.maybe, True)

    def test_null_is_absent(self) -> None:
        """JSON null counts as not there."""
        header = read(full(remark=None, batch=None, limit=None, queueOffset=None))
        self.assertEqual(header, Sample(topic_name="T", queue_id=3))

    def test_text_null_is_text(self) -> None:
        """The text "null" is a topic like any other, but no number."""
        header = read(full(topicName="null", limit="null"))
        self.assertEqual(header.topic_name, "null")
        self.assertIsNone(header.limit)

    def test_empty_number_is_absent(self) -> None:
        """C++ clients send empty strings for what they do not set."""
        self.assertIsNone(read(full(limit="")).limit)

    def test_empty_text_stays(self) -> None:
        """An empty string is not null in JSON."""
        self.assertEqual(read(full(topicName="")).topic_name, "")

    def test_unknown_keys(self) -> None:
        """Keys of other versions and languages are ignored, whatever they hold."""
        header = read(full(bname="broker-a", nsd=True, AccessKey="", nested={"a": [1]}))
        self.assertEqual(header, Sample(topic_name="T", queue_id=3))

    def test_whole_floats(self) -> None:
        """A double without fraction is an integer to us, as some dynamic clients write."""
        self.assertEqual(read(full(queueId=3.0)).queue_id, 3)

    def test_missing_required(self) -> None:
        """A missing required field is named in Java's words."""
        for text in ('{"topicName":"T"}', '{"topicName":"T","queueId":null}', '{"topicName":"T","queueId":""}'):
            error = self.assertRaises(BadField, read, text)
            self.assertEqual(error.field, "queueId")
            self.assertEqual(error.text, "the custom field <queueId> is null")

    def test_unreadable_number(self) -> None:
        """A text that is no number names field and text."""
        for bad in ("zero", "1 2", "0x10", "--1", "1.5", "٣", "1" * 200):
            error = self.assertRaises(BadField, read, full(queueId=bad))
            self.assertEqual(error.field, "queueId")
            self.assertIn("<queueId>", error.text)
            self.assertIn(bad[:8], error.text)
            self.assertLess(len(error.text), 200)

    def test_numbers_out_of_range(self) -> None:
        """What Java could not keep in its type is refused, also as a JSON number and in a plain int."""
        for field, bad in (
            ("queueId", "2147483648"),
            ("queueId", "-2147483649"),
            ("queueOffset", "9223372036854775808"),
            ("anything", "9223372036854775808"),
            ("limit", "99999999999999999999999"),
        ):
            self.assertEqual(self.assertRaises(BadField, read, full(**{field: bad})).field, field)
            raw = full().replace("}", f',"{field}":{bad}}}')
            self.assertEqual(self.assertRaises(BadField, read, raw).field, field)

    def test_bounds_are_in_range(self) -> None:
        """The least and the greatest value of each type are read."""
        header = read(full(queueId="-2147483648", queueOffset="9223372036854775807", anything=str(-(2**63))))
        self.assertEqual(header.queue_id, -(2**31))
        self.assertEqual(header.queue_offset, 2**63 - 1)
        self.assertEqual(header.anything, -(2**63))

    def test_last_of_equal_keys(self) -> None:
        """ACL hooks write keys twice: the last one counts."""
        self.assertEqual(read('{"topicName":"A","queueId":"1","topicName":"B"}').topic_name, "B")

    def test_map(self) -> None:
        """A map of strings, from the binary header, reads the same way."""
        fields = {"topicName": "T", "queueId": "3", "batch": "1", "maybe": "True", "tps": "x"}
        error = self.assertRaises(BadField, header_codec(Sample).decode_map, fields)
        self.assertEqual(error.field, "tps")
        del fields["tps"]
        header = header_codec(Sample).decode_map(fields)
        self.assertIs(header.batch, False)
        self.assertIs(header.maybe, True)
        self.assertRaises(BadField, header_codec(Sample).decode_map, {"topicName": "T"})
        self.assertRaises(BadField, header_codec(Sample).decode_map, {**fields, "anything": str(2**63)})

    texts = st.one_of(
        st.sampled_from(["true", "false", "True", "1", "0", "", "null", "-1", "12", "2147483648", "x", "1.0"]),
        st.integers(-(2**70), 2**70).map(str),
        st.text(max_size=5).filter(lambda text: "e" not in text.lower()),
    )

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.dictionaries(st.sampled_from(["topicName", "queueId", "anything", "batch", "maybe", "limit"]), texts))
    def test_fast_and_tolerant_reading_agree(self, fields: dict[str, str]) -> None:
        """What the typed pass accepts, the field-by-field pass reads the same, from JSON and from a map."""
        codec = header_codec(Sample)

        def outcome(call: Any, argument: Any) -> object:
            try:
                return call(argument)
            except BadField as error:
                return error.field, error.text

        slow = outcome(codec.decode_tolerantly, fields)
        self.assertEqual(outcome(codec.decode_json, json.dumps(fields).encode()), slow)
        self.assertEqual(outcome(codec.decode_map, fields), slow)


class EncodeTests(SynchronousTestCase):
    def test_strings_only(self) -> None:
        """Every value is a string, booleans in lower case, None left out, in the order of the fields."""
        header = Sample(topic_name="T", queue_id=3, batch=True, maybe=False, tps=0.5)
        self.assertEqual(
            list(encode_ext(header).items()),
            [
                ("topicName", "T"),
                ("queueId", "3"),
                ("queueOffset", "-1"),
                ("anything", "0"),
                ("batch", "true"),
                ("maybe", "false"),
                ("tps", "0.5"),
            ],
        )

    def test_extra(self) -> None:
        """Free keys follow and win."""
        fields = encode_ext(Sample(topic_name="T", queue_id=3), {"TRACE_ON": "true", "queueId": "9"})
        self.assertEqual(fields["TRACE_ON"], "true")
        self.assertEqual(fields["queueId"], "9")

    def test_round_trip(self) -> None:
        """What is written is read back equal."""
        header = Sample(topic_name="%RETRY%标签", queue_id=-5, queue_offset=2**62, batch=True, limit=0, remark="")
        self.assertEqual(header_codec(Sample).decode_map(encode_ext(header)), header)
        self.assertEqual(read(json.dumps(encode_ext(header))), header)


class ClassTests(SynchronousTestCase):
    def test_impossible_field(self) -> None:
        """A header class with a field that cannot be one string is refused when it is first used."""

        class Wrong(msgspec.Struct):
            names: list[str]

        error = self.assertRaises(TypeError, header_codec, Wrong)
        self.assertIn("Wrong.names", str(error))

    def test_one_codec_per_class(self) -> None:
        """The work of a class is done once."""
        self.assertIs(header_codec(Sample), header_codec(Sample))


class JavaStringTests(SynchronousTestCase):
    def test_values(self) -> None:
        """JSON values as Java's toString would show them."""
        for value, text in (
            ("x", "x"),
            (True, "true"),
            (False, "false"),
            (3, "3"),
            (3.0, "3"),
            (2.5, "2.5"),
            ({"a": 1}, '{"a":1}'),
        ):
            self.assertEqual(java_string(value), text)
        self.assertIsNone(java_string(None))

    def test_decode_strings(self) -> None:
        """A JSON object becomes a map of strings, whatever its values."""
        raw = b'{"a":"x","b":1,"c":true,"d":null,"e":2.0,"a":"y"}'
        self.assertEqual(decode_strings(raw), {"a": "y", "b": "1", "c": "true", "e": "2"})

    def test_parse_boolean(self) -> None:
        """Java's Boolean.parseBoolean."""
        self.assertTrue(parse_boolean("tRuE"))
        self.assertFalse(parse_boolean("1"))

    def test_object_keys(self) -> None:
        """Objects as keys, which only fastjson's dialect has, are written as fastjson does."""
        value = loosejson.parse("{x:{{a:1}:[2,{{b:1}:3}]}}")
        self.assertEqual(java_string(value["x"]), '{{"a":1}:[2,{{"b":1}:3}]}')
