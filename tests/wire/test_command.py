"""Tests of commands: what is read of all those clients, and what is written for them."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.codes import LanguageCode, SerializeType
from rmq.wire.command import (
    MAX_TOLERANT_HEADER_BYTES,
    RemotingCommand,
    decode_command,
    decode_commands,
    encode_command,
    encode_reply,
)
from rmq.wire.extfields import BadField
from rmq.wire.frames import Frame, ProtocolError


class RouteHeader(msgspec.Struct, rename="camel", kw_only=True):
    topic: str
    accept_standard_json_only: bool = False


JSON_HEADER = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)
BINARY_FRAME = bytes.fromhex(
    "0000002d010000290069000199000000070000000000000000000000140005746f70696300000009546f70696354657374"
)


def read(header: bytes | str, body: bytes = b"") -> RemotingCommand:
    return decode_command(Frame(0, header.encode() if isinstance(header, str) else header, body))


def with_ext(ext: str) -> RemotingCommand:
    return read('{"code":1,"opaque":2,"extFields":' + ext + "}")


class JsonHeaderTests(SynchronousTestCase):
    def test_javas(self) -> None:
        """A Java header is read in all its parts and written back byte for byte."""
        command = read(JSON_HEADER)
        self.assertEqual((command.code, command.opaque, command.flag, command.version), (105, 7, 0, 409), repr(command))
        self.assertIs(command.language, LanguageCode.JAVA)
        self.assertIsNone(command.remark)
        self.assertIsNone(command.body)
        self.assertEqual(command.ext_fields, {"topic": "TopicTest"})
        self.assertEqual(command.decode_header(RouteHeader), RouteHeader(topic="TopicTest"))
        self.assertEqual(encode_command(command)[8:], JSON_HEADER)

    def test_first_bytes_of_the_frame(self) -> None:
        """The frame of the specification's example has the lengths that it gives."""
        header = JSON_HEADER
        self.assertEqual(len(header), 131)
        self.assertEqual(encode_command(read(header))[:8], bytes.fromhex("00000087 00000083"))

    def test_language(self) -> None:
        """A language may be a name, a number, unknown, null or missing."""
        for text, language in (
            ('"GO"', LanguageCode.GO),
            ("3", LanguageCode.PYTHON),
            ('"COBOL"', None),
            ("99", None),
            ("-1", None),
            ("null", None),
            ('""', None),
            ("true", None),
            ("[1]", None),
        ):
            self.assertIs(read('{"code":1,"opaque":2,"language":' + text + "}").language, language, text)
        self.assertIsNone(read('{"code":1,"opaque":2}').language)

    def test_defaults(self) -> None:
        """All but code and opaque may be missing or null."""
        for header in (
            '{"code":1,"opaque":2}',
            '{"code":1,"opaque":2,"remark":null,"extFields":null,"flag":0,"version":0}',
        ):
            command = read(header)
            self.assertEqual((command.flag, command.version, command.remark), (0, 0, None))
            self.assertEqual(command.ext_fields, {})
            self.assertFalse(command.has_ext_fields)

    def test_empty_ext_fields(self) -> None:
        """An empty map is told from none, and written as it came."""
        command = with_ext("{}")
        self.assertTrue(command.has_ext_fields)
        self.assertEqual(command.ext_fields, {})
        self.assertIn(b'"extFields":{}', encode_command(command))
        self.assertNotIn(b"extFields", encode_command(read('{"code":1,"opaque":2}')))

    def test_remark(self) -> None:
        """An empty remark stays empty, also when written."""
        self.assertEqual(read('{"code":1,"opaque":2,"remark":""}').remark, "")
        self.assertEqual(read('{"code":1,"opaque":2,"remark":"null"}').remark, "null")
        self.assertIsNone(read('{"code":1,"opaque":2,"remark":{"a":1}}').remark)

    def test_values_of_other_types(self) -> None:
        """Numbers, booleans and nulls among extFields become Java's strings; the answer has strings only."""
        command = with_ext('{"a":1,"b":true,"c":null,"d":2.0,"e":"x","f":{"g":[1]}}')
        self.assertEqual(command.ext_fields, {"a": "1", "b": "true", "d": "2", "e": "x", "f": '{"g":[1]}'})
        written = json.loads(encode_command(command)[8:])
        self.assertEqual(set(map(type, written["extFields"].values())), {str})

    def test_trailing_newline(self) -> None:
        """librocketmq ends its headers with a newline."""
        self.assertEqual(read(JSON_HEADER + b"\n").code, 105)

    def test_numbers_as_text(self) -> None:
        """Numbers in quotes are numbers."""
        command = read('{"code":"105","opaque":"7","flag":"0","version":"317"}')
        self.assertEqual((command.code, command.opaque, command.version), (105, 7, 317))

    def test_fastjsons_dialect(self) -> None:
        """Bare names, single quotes and stray commas are read, as fastjson does."""
        command = read("{code:105,'opaque':7,,extFields:{topic:'TopicTest',acceptStandardJsonOnly:true,},}")
        self.assertEqual((command.code, command.opaque), (105, 7))
        header = command.decode_header(RouteHeader)
        self.assertEqual(header, RouteHeader(topic="TopicTest", accept_standard_json_only=True))

    def test_not_utf8(self) -> None:
        """Bytes that are no UTF-8 (GBK texts of C++ clients) become U+FFFD; the request itself survives."""
        command = read(b'{"code":105,"opaque":7,"extFields":{"topic":"T","remark":"\xb1\xea"}}')
        self.assertEqual(command.ext_fields["topic"], "T")
        self.assertEqual(set(command.ext_fields["remark"]), {"\ufffd"})

    def test_lone_surrogate(self) -> None:
        """An escaped half of a character becomes U+FFFD and can be written again."""
        command = with_ext('{"a":"\\ud83d\\ude00","b":"x\\ud83dy"}')
        self.assertEqual(command.ext_fields, {"a": "\U0001f600", "b": "x\ufffdy"})
        encode_command(command)

    def test_numbers_that_fit_nowhere(self) -> None:
        """Endless digits in a header cost only the request that needs them as a number."""
        for number in ("1" * 5000, "1e999"):
            command = with_ext('{"topic":' + number + ',"acceptStandardJsonOnly":' + number + "}")
            header = command.decode_header(RouteHeader)
            self.assertEqual(header, RouteHeader(topic=number))

    def test_missing_code_or_opaque(self) -> None:
        """Without code or opaque nobody can be answered: a protocol error that names what lacks."""
        for header, name in (('{"opaque":1}', "code"), ('{"code":1}', "opaque"), ("{}", "code")):
            error = self.assertRaises(ProtocolError, read, header)
            self.assertIn(name, str(error))

    def test_no_header(self) -> None:
        """What is no JSON object of a command is a protocol error."""
        for header in (
            b"",
            b"\0\0\0",
            b"[]",
            b'"code"',
            b"{",
            b'{"code":105,"opaque":7',
            b'{"code":[],"opaque":7}',
            b'{"code":1.5,"opaque":7}',
            b'{"code":2147483648,"opaque":7}',
            b'{"code":1,"opaque":-2147483649}',
            b'{"code":1,"opaque":2,"extFields":[]}',
            b'{"code":1,"opaque":2,"extFields":"x"}',
            b'{"code":1,"opaque":2,"extFields":5}',
            b'{"code":1,"opaque":2} trailing',
            b"\xff\xfe",
        ):
            error = self.assertRaises(ProtocolError, read, header)
            self.assertLess(len(str(error)), 300)

    def test_deep_header(self) -> None:
        """Nesting without end is a protocol error, not a crash."""
        for opening in (b"[", b'{"a":'):
            self.assertRaises(ProtocolError, read, opening * 200_000)
            self.assertRaises(ProtocolError, read, b'{"code":1,"opaque":2,"extFields":' + opening * 20_000)
            self.assertRaises(ProtocolError, read, b'{"code":1,"opaque":2,"x":' + opening * 20_000)

    def test_huge_broken_header(self) -> None:
        """A long header that needs the slow reader is refused without being read."""
        header = b"{code:1,opaque:2," + b"," * MAX_TOLERANT_HEADER_BYTES + b"}"
        self.assertRaises(ProtocolError, read, header)

    def test_garbage(self) -> None:
        """Whatever a header holds, it gives a command or a protocol error; so does one bit flipped in a good one."""
        for seed in range(500):
            rng = random.Random(seed)
            header = bytearray(rng.choice((JSON_HEADER, rng.randbytes(40), b"{" + rng.randbytes(20) + b"}")))
            for _ in range(rng.randrange(4)):
                header[rng.randrange(len(header))] = rng.randrange(256)
            for kind in (0, 1):
                try:
                    command = decode_command(Frame(kind, bytes(header), b""))
                except ProtocolError:
                    continue
                except Exception as error:
                    raise AssertionError(f"seed {seed}: {bytes(header)!r}") from error
                try:
                    command.decode_header(RouteHeader)
                except BadField as error:
                    self.assertIn(error.field, ("topic", "acceptStandardJsonOnly"))
                self.assertEqual(set(map(type, command.ext_fields.values())) - {str}, set(), f"seed {seed}")


class StrictOutputTests(SynchronousTestCase):
    def test_order_and_presence(self) -> None:
        """Top-level keys are alphabetical, language always there, absent things left out."""
        data = encode_command(RemotingCommand(105, 7, language=None, ext_fields={"topic": "标签\x01"}))
        self.assertEqual(
            data[8:].decode(),
            '{"code":105,"extFields":{"topic":"标签\\u0001"},"flag":0,"language":"OTHER","opaque":7,'
            '"serializeTypeCurrentRPC":"JSON","version":409}',
        )

    def test_reply(self) -> None:
        """A response has the request's opaque, flag 1 exactly, and our language and version."""
        request = read('{"code":34,"opaque":-5,"flag":2,"language":"GO","version":317}')
        (reply,) = decode_commands(encode_reply(request, 17, "no\ntopic", {"a": "1"}, b"body"))
        self.assertEqual(
            (reply.code, reply.opaque, reply.flag, reply.version, reply.language),
            (17, -5, 1, 409, LanguageCode.JAVA),
        )
        self.assertEqual((reply.remark, reply.ext_fields, reply.body), ("no\ntopic", {"a": "1"}, b"body"))

    def test_plain_success(self) -> None:
        """A bare success says nothing more, as Apache's."""
        request = read('{"code":34,"opaque":9}')
        self.assertEqual(
            encode_reply(request)[8:],
            b'{"code":0,"flag":1,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":409}',
        )

    def test_flags(self) -> None:
        """Bit 0 is a response, bit 1 a one-way request."""
        self.assertTrue(RemotingCommand(0, flag=1).is_response)
        self.assertFalse(RemotingCommand(0, flag=1).is_oneway)
        self.assertTrue(RemotingCommand(0, flag=2).is_oneway)
        self.assertFalse(RemotingCommand(0).is_response)
        for flag, word in ((0, "request"), (1, "response"), (2, "one-way")):
            self.assertIn(word, repr(RemotingCommand(0, flag=flag, body=b"xyz")))


class BinaryHeaderTests(SynchronousTestCase):
    def test_vector(self) -> None:
        """The specification's frame is read and written back byte for byte."""
        (command,) = decode_commands(BINARY_FRAME)
        self.assertEqual((command.code, command.opaque, command.version), (105, 7, 409))
        self.assertEqual(command.serialize_type, SerializeType.ROCKETMQ)
        self.assertIs(command.language, LanguageCode.JAVA)
        self.assertEqual(command.decode_header(RouteHeader), RouteHeader(topic="TopicTest"))
        self.assertEqual(encode_command(command), BINARY_FRAME)

    def test_answered_in_kind(self) -> None:
        """A binary request gets a binary answer, a JSON request a JSON one."""
        (binary,) = decode_commands(BINARY_FRAME)
        self.assertEqual(encode_reply(binary, 17, "x", {"k": "v"}, b"b")[4], 1)
        self.assertEqual(encode_reply(read(JSON_HEADER))[4], 0)

    def test_round_trip(self) -> None:
        """Everything a header can hold survives, negative and non-ASCII included."""
        command = RemotingCommand(
            -1000,
            -7,
            3,
            612,
            LanguageCode.GO,
            "bemerkung é",
            {"%RETRY%标签": "\x01\x02", "b": "x" * 40_000},
            b"body",
            SerializeType.ROCKETMQ,
        )
        (read_back,) = decode_commands(encode_command(command))
        for name in ("code", "opaque", "flag", "version", "language", "remark", "ext_fields", "body"):
            self.assertEqual(getattr(read_back, name), getattr(command, name), name)

    def test_nothing_set(self) -> None:
        """Absent remark and extFields are zero lengths: 21 bytes in all."""
        data = encode_command(RemotingCommand(0, serialize_type=SerializeType.ROCKETMQ, language=None))
        self.assertEqual(len(data), 8 + 21)
        (command,) = decode_commands(data)
        self.assertIsNone(command.remark)
        self.assertFalse(command.has_ext_fields)

    def test_equal_keys(self) -> None:
        """Java's encoder writes keys twice after an ACL hook: the last one counts."""
        entry = bytes.fromhex("0001 61 00000001")
        header = self.header(entry + b"1" + entry + b"2")
        self.assertEqual(decode_command(Frame(1, header, b"")).ext_fields, {"a": "2"})

    def test_empty_strings_are_null(self) -> None:
        """An entry with an empty value is absent, so a required field made of it is missing."""
        header = self.header(bytes.fromhex("0005") + b"topic" + bytes(4))
        command = decode_command(Frame(1, header, b""))
        self.assertEqual(command.ext_fields, {})
        self.assertRaises(BadField, command.decode_header, RouteHeader)

    def test_unknown_language(self) -> None:
        """A language byte that nobody knows is no error."""
        header = bytearray(self.header(b""))
        header[2] = 99
        self.assertIsNone(decode_command(Frame(1, bytes(header), b"")).language)

    def test_pop_codes_wrap(self) -> None:
        """Codes beyond 16 bits wrap as Java's do, instead of breaking the answer."""
        (command,) = decode_commands(encode_command(RemotingCommand(200050, serialize_type=1)))
        self.assertEqual(command.code, 3442)

    def test_every_cut(self) -> None:
        """A header that ends anywhere too early is a protocol error."""
        header = self.header(bytes.fromhex("0001 61 00000001 31"), remark=b"r")
        decode_command(Frame(1, header, b""))
        for size in range(len(header)):
            self.assertRaises(ProtocolError, decode_command, Frame(1, header[:size], b""))

    def test_lengths_beyond_the_header(self) -> None:
        """Negative and over-long inner lengths are protocol errors that say which."""
        entries = bytes.fromhex("0001 61 00000001 31")
        for field, replaced in (
            ("remark", self.header(b"")[:-8] + b"\xff\xff\xff\xff" + bytes(4)),
            ("remark", self.header(b"")[:-8] + b"\x00\x00\x00\x05" + bytes(4)),
            ("extFields", self.header(b"")[:-4] + b"\x00\x00\x00\x09"),
            ("extFields", self.header(b"")[:-4] + b"\xff\xff\xff\xff"),
            ("key", self.header(b"\x7f\xff" + entries[2:])),
            ("key", self.header(b"\xff\xff" + entries[2:])),
            ("value", self.header(entries[:3] + b"\x00\x00\x00\x02" + b"1")),
            ("value", self.header(entries[:3] + b"\xff\xff\xff\xff" + b"1")),
        ):
            error = self.assertRaises(ProtocolError, decode_command, Frame(1, replaced, b""))
            self.assertIn(field, str(error))

    def test_other_serialize_types(self) -> None:
        """Only 0 and 1 exist."""
        for kind in (2, 7, 255):
            error = self.assertRaises(ProtocolError, decode_command, Frame(kind, JSON_HEADER, b""))
            self.assertIn(str(kind), str(error))

    @staticmethod
    def header(entries: bytes, remark: bytes = b"") -> bytes:
        head: Any = bytes.fromhex("0069 00 0199") + bytes(3) + b"\x07" + bytes(4)
        return bytes(head + len(remark).to_bytes(4, "big") + remark + len(entries).to_bytes(4, "big") + entries)


class DecodeCommandsTests(SynchronousTestCase):
    def test_rest(self) -> None:
        """A run of frames that ends inside one is an error that counts the bytes left over."""
        error = self.assertRaises(ProtocolError, decode_commands, BINARY_FRAME + BINARY_FRAME[:10])
        self.assertIn("10", str(error))

    def test_body(self) -> None:
        """An empty body is none."""
        self.assertIsNone(read(JSON_HEADER).body)
        self.assertEqual(read(JSON_HEADER, b"x").body, b"x")


class ObjectKeyTests(SynchronousTestCase):
    def test_where_text_belongs(self) -> None:
        """An object as a key in an extField is text as any other value, however deep it lies."""
        for value, text in (
            ("{{a:1}:2}", '{{"a":1}:2}'),
            ("[{{a:1}:2}]", '[{{"a":1}:2}]'),
            ("{{{a:1}:2,{b:1}:3,c:4}:5}", '{{{"a":1}:2,{"b":1}:3,"c":4}:5}'),
        ):
            command = read("{code:105,opaque:7,extFields:{topic:" + value + "}}")
            self.assertEqual(command.ext_fields, {"topic": text})
            self.assertEqual(command.decode_header(RouteHeader), RouteHeader(topic=text))
