"""What the client decides: offsets to commit, tags, properties, ids, bodies, names."""

from __future__ import annotations

import pickle
import re
import sys
import zlib
from base64 import b64decode
from copy import deepcopy
from datetime import datetime
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq import errors
from rmq.client.core import codec, outgoing
from rmq.client.core.codec import Compression
from rmq.client.core.msgid import UniqueIds, local_month
from rmq.client.core.processqueue import ProcessQueue
from rmq.client.core.routes import check_topic, publish_queues, subscribe_queues, wrap
from rmq.client.core.subscription import subscription, wanted
from rmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from rmq.client.types import Later, Message, NotDurable, ReceivedMessage, SendResult, SendStatus, Sql
from rmq.errors import BadAnswer, ConfigurationError, Refused, RequestTimeout, Unreachable
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.routes import BrokerData, QueueData, TopicRouteData
from rmq.wire.api.sending import SEND_MESSAGE_V2
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RESPONSE, RemotingCommand
from rmq.wire.exchange import read_response
from rmq.wire.record import decode_batch, decode_properties, decode_record, encode_properties, encode_record, java_hash
from tests.needs import need_extra

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
SETTINGS = ProducerSettings()
#: a body, and what CompressorFactory of Apache's 5.3.3 made of it with level 5
PLAIN = b"".join(b"message %d " % (number % 7) for number in range(300))
JAVA_BODIES = {
    Compression.LZ4: (
        "BCJNGGBwczoAAACkbWVzc2FnZSAwIAoAFTEKABUyCgAVMwoAFTQKABU1CgAVNgoAD0YA//////////////9dUGdlIDUgAAAAAA=="
    ),
    Compression.ZSTD: (
        "KLUv/QBYfAUA9pMlD8AlYybQFv0bZ2Ymh4KDAyEAHwAfALnLKXc55S6n3OWUu5xyl1PucspdTrnLKXc5hQQBCMYQgZxyl1PucspdTrnL"
        "KXc55S6n3OWUu5xyl1PucspdTgF3OeUup9zllLuccpdT7nLKXU65yyl3OeUup9zllLsBwUEAgjFEIJRT7nLKXU65yyl3OeUup9zllLuc"
        "cpdT7nJKgSqoEeDvG+GvARGc8AdJJhkhEgpUVQEAAA=="
    ),
    Compression.ZLIB: ("eF7tzKsNACAMRdFVOgL/fRANqqr7JxjyNsBdd9QJz9zHrVg8ValJXRrSlJbEwsLCwsLCwsLCwvJjuUYA60s="),
}
EXTRAS = {Compression.LZ4: "lz4", Compression.ZSTD: "zstandard"}


def received(
    offset: int = 0, body: bytes = b"x", *, sys_flag: int = 0, topic: str = "T", **props: str
) -> ReceivedMessage:
    record = encode_record(
        topic=topic.encode(),
        queue_id=0,
        body=body,
        properties=encode_properties(props).encode(),
        born_timestamp=1,
        store_timestamp=2,
        born_host=(b"\x0a\0\0\1", 5000),
        store_host=(b"\x0a\0\0\2", 10911),
        queue_offset=offset,
        phy_offset=offset * 100,
        sys_flag=sys_flag,
    )
    return ReceivedMessage(decode_record(record), QUEUE)


class TopicTests(SynchronousTestCase):
    def test_of_what_was_moved(self) -> None:
        """A retry has the topic that it was sent to, a dead letter its own, as in Java; origin_topic is the first."""
        cases: tuple[tuple[str, dict[str, Any], tuple[str, str]], ...] = (
            ("T", {}, ("T", "T")),
            ("%RETRY%G", {"RETRY_TOPIC": "T"}, ("T", "T")),
            ("%DLQ%G", {"RETRY_TOPIC": "T"}, ("%DLQ%G", "T")),
            ("%DLQ%G", {}, ("%DLQ%G", "%DLQ%G")),
            ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "T"}, ("SCHEDULE_TOPIC_XXXX", "T")),
            ("SCHEDULE_TOPIC_XXXX", {"REAL_TOPIC": "%RETRY%G", "RETRY_TOPIC": "T"}, ("SCHEDULE_TOPIC_XXXX", "T")),
            # a Java program that copies all properties of a retry into a new message
            ("audit", {"RETRY_TOPIC": "T"}, ("audit", "audit")),
        )
        for stored, properties, topics in cases:
            message = received(topic=stored, **properties)
            self.assertEqual((message.topic, message.origin_topic), topics, stored)

    def test_with_a_namespace(self) -> None:
        """Both are without the namespace, inside of %DLQ%, too."""
        letter = received(topic="%DLQ%NS%G", RETRY_TOPIC="NS%T")
        message = ReceivedMessage(letter.record, QUEUE, "NS")
        self.assertEqual((message.topic, message.origin_topic), ("%DLQ%G", "T"))


class HostTests(SynchronousTestCase):
    def test_as_addresses(self) -> None:
        """Hosts are what a socket or `rmq-admin` takes, with brackets around IPv6."""
        message = received()
        self.assertEqual((message.born_host, message.store_host), ("10.0.0.1:5000", "10.0.0.2:10911"))
        message.record.store_host = (b"\0" * 15 + b"\1", 10911)
        self.assertEqual(message.store_host, "[::1]:10911")


class ProcessQueueTests(SynchronousTestCase):
    def test_never_commits_beyond_an_unfinished_message(self) -> None:
        """Whatever the order in which handlers end, the offset to commit is the lowest that is not done."""
        rng = Random(11)
        for _ in range(200):
            process = ProcessQueue(100)
            offset = 100
            unfinished: dict[int, ReceivedMessage] = {}
            for _ in range(30):
                if rng.random() < 0.4:
                    messages = [received(offset + n) for n in range(rng.randint(0, 4))]
                    offset += len(messages) + rng.randint(0, 2)
                    process.put(messages, offset)
                    unfinished |= {message.queue_offset: message for message in messages}
                elif unfinished:
                    done = rng.choice(list(unfinished))
                    process.done([unfinished.pop(done)])
                self.assertEqual(process.commit_offset, min(unfinished, default=offset))
                self.assertEqual((len(process), process.held_bytes), (len(unfinished), len(unfinished)))

    def test_span_and_oldest(self) -> None:
        """The span goes from the lowest to the highest offset in hand, gaps included."""
        process = ProcessQueue(0)
        messages = [received(3), received(9)]
        self.assertEqual((process.span, process.oldest), (0, None))
        process.put(messages, 12)
        self.assertEqual((process.span, process.oldest, process.commit_offset), (7, messages[0], 3))
        process.done(messages)
        self.assertEqual((process.span, process.commit_offset), (0, 12))

    def test_reset(self) -> None:
        """After a reset the messages from before count no more, even when the same offset comes again."""
        process, old = ProcessQueue(0), received(5)
        process.put([old], 6)
        process.clear(5)
        self.assertEqual((process.commit_offset, len(process), process.holds(old)), (5, 0, False))
        process.put([received(5)], 6)
        process.done([old])
        self.assertEqual((process.commit_offset, len(process)), (5, 1))


class SubscriptionTests(SynchronousTestCase):
    def test_tags(self) -> None:
        """Tags are sent with their Java hashes; blanks and empty parts do not count."""
        data = subscription("T", " A ||B|| ", version=7)
        self.assertEqual((data.tags_set, data.code_set, data.sub_version), ({"A", "B"}, {65, 66}, 7))
        self.assertEqual(data.sub_string, " A ||B|| ")

    def test_everything(self) -> None:
        """No expression, a star and nothing but separators mean all tags."""
        for text in ("*", "", " * ", "||"):
            data = subscription("T", text, version=1)
            self.assertEqual((data.sub_string, data.tags_set, data.code_set), ("*", set(), set()), text)

    def test_sql(self) -> None:
        data = subscription("T", Sql("a > 1"), version=1)
        self.assertEqual((data.expression_type, data.sub_string, data.code_set), ("SQL92", "a > 1", set()))

    def test_equal_hashes_are_told_apart_by_the_tag(self) -> None:
        """``Aa`` and ``BB`` have one hash: the broker sends both, the client keeps the right one."""
        self.assertEqual(java_hash("Aa"), java_hash("BB"))
        data = subscription("T", "Aa", version=1)
        self.assertTrue(wanted(data, received(TAGS="Aa")))
        self.assertFalse(wanted(data, received(TAGS="BB")))
        self.assertTrue(wanted(subscription("T", "*", version=1), received()))


class OutgoingTests(SynchronousTestCase):
    def test_properties(self) -> None:
        """The properties are those that Java's producer sets."""
        message = Message("T", b"x", tags="A", keys=("k1", "k2"), delay_level=3, properties={"color": "red"})
        out = outgoing.single(message, "ID", SETTINGS, None)
        self.assertEqual(
            decode_properties(out.properties),
            {"color": "red", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "WAIT": "true", "DELAY": "3", "TAGS": "A"},
        )
        self.assertEqual((out.topic, out.body, out.sys_flag), ("T", b"x", 0))

    def test_compression(self) -> None:
        """Bodies from 4096 bytes on are compressed when that makes them shorter."""
        long = outgoing.single(Message("T", b"a" * 4096), "ID", SETTINGS, None)
        self.assertEqual((zlib.decompress(long.body), long.sys_flag), (b"a" * 4096, 0x301))
        self.assertEqual(outgoing.single(Message("T", b"a" * 4095), "ID", SETTINGS, None).sys_flag, 0)
        noise = Random(1).randbytes(5000)
        plain = outgoing.single(Message("T", noise), "ID", SETTINGS, None)
        self.assertEqual((plain.body, plain.sys_flag), (noise, 0))

    def test_batch(self) -> None:
        """Each entry has its own id; the request itself has only WAIT."""
        messages = [Message("T", b"1", tags="A"), Message("T", b"2")]
        out = outgoing.batch(messages, ["ID1", "ID2"], SETTINGS, "NS")
        entries = decode_batch(out.body)
        self.assertEqual([entry.body for entry in entries], [b"1", b"2"])
        self.assertEqual([decode_properties(entry.properties)["UNIQ_KEY"] for entry in entries], ["ID1", "ID2"])
        self.assertEqual((out.message_id, out.properties, out.topic), ("ID1,ID2", "WAIT\x01true", "NS%T"))

    def test_settings(self) -> None:
        """Numbers that would stop a producer or consumer, or end each wait at once, are refused when they are given."""
        wrongs: list[tuple[Any, dict[str, Any], str]] = [
            (PushSettings, {"concurrency": 0}, "concurrency is a whole number of at least 1, not 0"),
            (PushSettings, {"batch_size": 2.5}, "batch_size is a whole number"),
            (PushSettings, {"max_reconsume_times": -2}, "at least -1"),
            (PushSettings, {"drain_timeout_s": -1}, "drain_timeout_s is a number of seconds, not -1"),
            (PullSettings, {"pull_batch": 0}, "pull_batch is a whole number of at least 1"),
            (PullSettings, {"consume_from": "FIRST"}, "consume_from is one of From.LAST, From.FIRST, From.TIMESTAMP"),
            (ProducerSettings, {"send_timeout_s": 0}, "send_timeout_s is a number of seconds above 0, not 0"),
            (ProducerSettings, {"retries": -1}, "retries is a whole number of at least 0"),
            (ClientSettings, {"heartbeat_s": "30"}, "heartbeat_s is a number of seconds above 0, not '30'"),
        ]
        for kind, values, text in wrongs:
            with self.assertRaisesRegex(ConfigurationError, text):
                kind(**values)
        PushSettings(drain_timeout_s=0, max_reconsume_times=0, consume_timeout_s=0.5)

    def test_refused_before_sending(self) -> None:
        """What no broker would take, or what would change its meaning on the way, is a ConfigurationError."""
        small = ProducerSettings(max_message_bytes=10)
        bad = [
            Message("", b"x"),
            Message("a b", b"x"),
            Message("t" * 128, b"x"),
            Message("T", b"x" * 11),
            Message("T", b"x", keys=("a b",)),
            Message("T", b"x", keys="order-7"),  # type: ignore[arg-type]  # Java has one text; here each letter was a key
            Message("T", "x"),  # type: ignore[arg-type]
            Message("T", b"x", delay_level=-1),
            Message("T", b"x", properties={"TAGS": "A"}),
            Message("T", b"x", properties={"a": ""}),
            Message("T", b"x", properties={"a": "1\x022"}),
            Message("T", b"x", properties={"a\x01b": "1"}),
            Message("T", b"x", properties={"a": "x" * 33000}),
            Message("T", b"x", properties={"a": "\u00e9" * 16500}),
            Message("T", b"x", properties={"file": "\udcff.txt"}),
            Message("T", b"x", keys=("\ud800",)),
        ]
        wrong_types = [
            Message(None, b"x"),  # type: ignore[arg-type]
            Message("T", None),  # type: ignore[arg-type]
            Message("T", {"a": 1}),  # type: ignore[arg-type]
            Message("T", bytearray(b"x")),  # type: ignore[arg-type]
            Message("T", memoryview(b"x")),  # type: ignore[arg-type]
            Message("T", b"x", keys=(7,)),  # type: ignore[arg-type]
            Message("T", b"x", delay_level="3"),  # type: ignore[arg-type]
            Message("T", b"x", delay_level=2.5),  # type: ignore[arg-type]
            Message("T", b"x", tags=7),  # type: ignore[arg-type]
            Message("T", b"x", flag="1"),  # type: ignore[arg-type]
            Message("T", b"x", flag=2**31),
            Message("T", b"x", properties={"price": 7}),  # type: ignore[dict-item]
            Message("T", b"x", properties={"price": b"7"}),  # type: ignore[dict-item]
        ]
        for message in bad + wrong_types:
            self.assertRaises(ConfigurationError, outgoing.single, message, "ID", small, None)
        no_text: Any = (1,)
        wrong = Message("T", b"x", keys=no_text)
        self.assertRaisesRegex(ConfigurationError, "a key is a text, not 1", outgoing.single, wrong, "ID", small, None)
        pairs = [
            [Message("T", b"x"), Message("U", b"x")],
            [Message("T", b"x", delay_level=1)],
            [Message("T", b"x"), Message("T", b"x", wait_store_ok=False)],
            [Message("T", b"x"), Message("T", b"x", keys=("\ud800",))],
            *([message] for message in wrong_types),
        ]
        for messages in pairs:
            self.assertRaises(ConfigurationError, outgoing.batch, messages, ["I"] * len(messages), SETTINGS, None)
        self.assertRaisesRegex(ConfigurationError, "bytes, not text: encode it", outgoing.reply, None, "x", "ID")

    def test_a_received_message_is_passed_on(self) -> None:
        """
        What its sender set goes on with user_properties; with all properties the send is refused, and says so.

        A broker would acknowledge one with TRAN_MSG and show it to nobody.
        """
        stored: dict[str, Any] = {
            "price": "7",
            "UNIQ_KEY": "I",
            "TAGS": "A",
            "RETRY_TOPIC": "T",
            "CLUSTER": "C",
            "traceparent": "00-1",
        }
        got = received(topic="%RETRY%G", **stored)
        self.assertEqual(got.user_properties, {"price": "7", "traceparent": "00-1"})
        outgoing.single(Message("U", b"x", properties=got.user_properties), "ID", SETTINGS, None)
        for name in ("UNIQ_KEY", "RETRY_TOPIC", "TRAN_MSG", "REAL_TOPIC", "REAL_QID"):
            message = Message("U", b"x", properties={name: "true"})
            error = self.assertRaises(ConfigurationError, outgoing.single, message, "ID", SETTINGS, None)
            self.assertIn("user_properties", str(error))

    def test_pickles(self) -> None:
        """Messages, results and errors go to other processes, as a pool needs it, and messages can be copied."""
        message = Message("T", b"x", keys=("k",), properties={"a": "1"})
        result = SendResult(SendStatus.OK, "ID", "OFFSET", QUEUE, 7, half=Message("T", b"x"))
        for value in (message, Message("T", b"x"), result):
            self.assertEqual(pickle.loads(pickle.dumps(value)), value)
            self.assertEqual(deepcopy(value), value)
        got = pickle.loads(pickle.dumps(received(7, body=b"hello", TAGS="A")))
        self.assertEqual((got.body, got.queue_offset, got.tags, got.queue), (b"hello", 7, "A", QUEUE))
        refused = Refused(2, "busy", "127.0.0.1:1", {"a": "b"}, 310)
        for error in (
            refused,
            RequestTimeout("127.0.0.1:1", "late"),
            Unreachable("127.0.0.1:1", "away"),
            errors.NotDelivered("T", [("broker-a", refused)]),
            errors.NoRoute("T", {"127.0.0.1:1": "none"}),
            NotDurable(result),
            Later(3, from_index=1),
            ConfigurationError("no"),
        ):
            for again in (pickle.loads(pickle.dumps(error)), deepcopy(error)):
                self.assertEqual((type(again), str(again)), (type(error), str(error)))
                self.assertEqual(again.__dict__.keys(), error.__dict__.keys())

    def test_what_an_error_says(self) -> None:
        """A refusal names request and code; a message that is stored, but less safe, is not called refused."""
        answer = RemotingCommand(ResponseCode.SYSTEM_BUSY, 1, RESPONSE, remark="too many")
        error = self.assertRaises(Refused, read_response, SEND_MESSAGE_V2, answer, "127.0.0.1:1")
        self.assertEqual(
            str(error), "127.0.0.1:1 refused request 310 (SEND_MESSAGE_V2) with code 2 (SYSTEM_BUSY): too many"
        )
        less = outgoing.less_safe(SendStatus.SLAVE_NOT_AVAILABLE, "broker-a")
        self.assertEqual(str(less), "broker-a answered SLAVE_NOT_AVAILABLE: the message is stored, less safe")

    def test_errors_of_the_page(self) -> None:
        """Every error in the table of docs/client.md is in rmq.errors, or in the faces that the table names."""
        page = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
        table = page.partition("| error | when |\n|---|---|\n")[2].partition("\n\n")[0]
        for cell in (row.split("|")[1] for row in table.splitlines()):
            modules = [import_module(name) for name in re.findall(r"`(rmq\.\w+)`", cell)] or [errors]
            names = re.findall(r"`(\w+)`", cell)
            self.assertTrue(names, cell)
            for module, name in product(modules, names):
                self.assertTrue(issubclass(getattr(module, name), errors.RocketMqError), (module, name))

    def test_copy_for_the_retry_topic(self) -> None:
        """A consumer that cannot send back sends the message itself, as Java's does."""
        message = received(4, RETRY_TOPIC="first", TRAN_MSG="true", KEYS="k", DELAY="5", UNIQ_KEY="U")
        message.reconsume_times = 2
        out = outgoing.again(message, "G", 16)
        properties = decode_properties(out.properties)
        self.assertEqual((out.topic, out.reconsume_times, out.max_reconsume_times), ("%RETRY%G", 3, 16))
        self.assertEqual((properties["RETRY_TOPIC"], properties["DELAY"], properties["KEYS"]), ("first", "5", "k"))
        self.assertEqual(properties["ORIGIN_MESSAGE_ID"], message.offset_message_id)
        self.assertNotIn("TRAN_MSG", properties)

    def test_levels_of_later(self) -> None:
        """A level below 0 would make a dead letter, silently: it is refused, and so is what is no number."""
        for level in (-1, 2.5, "3", None):
            with self.assertRaisesRegex(ConfigurationError, "a delay_level is a whole number.*there is reject"):
                Later(level)  # type: ignore[arg-type]
        for index in (-1, "0"):
            with self.assertRaisesRegex(ConfigurationError, "from_index"):
                Later(from_index=index)  # type: ignore[arg-type]
        self.assertEqual((Later().delay_level, Later(99).delay_level), (0, 99))

    def test_which_failures_are_retried(self) -> None:
        """A lost connection, a timeout and what another broker may accept; not a busy broker or a bad message."""
        retried = [Unreachable("a", ""), RequestTimeout("a", ""), *(Refused(code, "", "a") for code in (1, 14, 16, 17))]
        final = [BadAnswer("a", ""), *(Refused(code, "", "a") for code in (2, 13))]
        self.assertEqual([outgoing.is_retried(error) for error in retried], [True] * 6)
        self.assertEqual([outgoing.is_retried(error) for error in final], [False] * 3)

    def test_sharding_key(self) -> None:
        """The queue of a key is Java's: remainder of the hash, then absolute."""
        for key in ("order-7", "x", "", "polygenelubricants"):  # the last one's hash is -2^31
            value = java_hash(key)
            self.assertEqual(outgoing.keyed_index(key, 7), abs(int(value - 7 * int(value / 7))))


class CodecTests(SynchronousTestCase):
    def test_bodies(self) -> None:
        """zlib with and without its own bits is read; what cannot be read is a ValueError."""
        packed = zlib.compress(b"hello")
        self.assertEqual([codec.decompress(packed, flag) for flag in (0x1, 0x301)], [b"hello"] * 2)
        self.assertEqual(received(body=packed, sys_flag=0x301).body, b"hello")
        for data, flag, word in (
            (b"no", 1, "zlib"),
            (packed[:-2], 1, "incomplete"),
        ):
            self.assertIn(word, str(self.assertRaises(ValueError, codec.decompress, data, flag)))

    def test_java(self) -> None:
        """What Apache's 5.3.3 compressors wrote is read."""
        need_extra("lz4")
        need_extra("zstandard")
        for kind, text in JAVA_BODIES.items():
            self.assertEqual(codec.decompress(b64decode(text), 1 | kind.value), PLAIN, kind)

    def test_kinds(self) -> None:
        """Each kind is written with its bits and read again; cut, foreign and oversized streams are refused."""
        for kind, word in ((Compression.LZ4, "LZ4"), (Compression.ZSTD, "zstd")):
            need_extra(EXTRAS[kind])
            out = outgoing.single(Message("T", PLAIN * 2), "ID", ProducerSettings(compression=kind), None)
            self.assertEqual((out.sys_flag, len(out.body) < 500), (1 | kind.value, True))
            self.assertEqual(received(body=out.body, sys_flag=out.sys_flag).body, PLAIN * 2)
            bomb, flag = codec.compress(bytes(codec.MAX_BODY_BYTES + 1), 5, kind)
            for data, said in ((b"no" * 20, word), (out.body[:-2], "incomplete"), (bomb, "longer")):
                self.assertIn(said, str(self.assertRaises(ValueError, codec.decompress, data, flag)))

    def test_blocks(self) -> None:
        """A longer LZ4 body has independent blocks: net.jpountz reads no others."""
        need_extra("lz4")
        packed, flag = codec.compress(PLAIN * 100, 5, Compression.LZ4)
        self.assertEqual((packed[4] & 0x20, codec.decompress(packed, flag)), (0x20, PLAIN * 100))

    def test_missing_extra(self) -> None:
        """Without the library of a kind the error of a read, of a compression and of a producer names the extra."""
        self.patch(sys, "modules", {**sys.modules, "lz4": None, "lz4.frame": None, "zstandard": None})
        for kind, extra in EXTRAS.items():
            for call in (
                lambda k=kind: codec.decompress(b"x", 1 | k.value),
                lambda k=kind: codec.compress(b"x", 5, k),
                lambda k=kind: codec.check_installed(k),
            ):
                self.assertIn(f"txrocketmq[{extra}]", str(self.assertRaises(ConfigurationError, call)))
        codec.check_installed(Compression.ZLIB)

    def test_bomb(self) -> None:
        """A body that grows beyond the limit is refused."""
        self.assertRaises(ValueError, codec.decompress, zlib.compress(bytes(codec.MAX_BODY_BYTES + 1)), 1)


class IdTests(SynchronousTestCase):
    def test_layout(self) -> None:
        """Address, process, number, time in the month and counter in upper-case hexadecimal; never twice the same."""
        ids = UniqueIds("10.0.0.1", 0x12345, 0xABCDEF01, lambda wall_ms: (1000, 1 << 40))
        first = ids.next(1000 + 0x1234)
        self.assertEqual(first, "0A000001" + "2345" + "ABCDEF01" + "00001234" + "0001")
        self.assertEqual(len({ids.next(1000 + 0x1234) for _ in range(0xFFFF)} | {first}), 0x10000)
        self.assertEqual(len(UniqueIds("::1", 1, 1, local_month).next(0)), 56)

    def test_month(self) -> None:
        """The time counts from the begin of the month, which is asked for once a month, also if the clock goes back."""
        asked = []

        def month_of(wall_ms: int) -> tuple[int, int]:
            asked.append(wall_ms)
            return wall_ms // 100 * 100, wall_ms // 100 * 100 + 100

        ids = UniqueIds("10.0.0.1", 1, 1, month_of)
        self.assertEqual([int(ids.next(now)[20:28], 16) for now in (110, 199, 200, 250, 199)], [10, 99, 0, 50, 99])
        self.assertEqual(asked, [110, 200, 199])

    def test_local_month(self) -> None:
        """A month begins at midnight of its first day, local time, and ends where the next one begins."""
        for month in range(1, 13):
            begin = datetime(2026, month, 1).timestamp()
            end = (datetime(2026, month + 1, 1) if month < 12 else datetime(2027, 1, 1)).timestamp()
            for seconds in (begin, (begin + end) / 2, end - 0.001):
                self.assertEqual(local_month(int(seconds * 1000)), (begin * 1000, end * 1000))


class RouteTests(SynchronousTestCase):
    def route(self, order_topic_conf: str | None = None) -> TopicRouteData:
        queues = [
            QueueData(broker_name=name, perm=perm, read_queue_nums=2, write_queue_nums=1)
            for name, perm in (("b", 6), ("a", 6), ("c", 4), ("d", 2), ("e", 6))
        ]
        brokers = [
            BrokerData(broker_name=name, cluster="C", broker_addrs={1 if name == "e" else 0: f"{name}:1"})
            for name in "abcde"
        ]
        return TopicRouteData(queue_datas=queues, broker_datas=brokers, order_topic_conf=order_topic_conf)

    def test_publish_queues(self) -> None:
        """Writable queues of brokers with a master, by broker name."""
        self.assertEqual(
            [(q.broker_name, q.queue_id) for q in publish_queues("T", self.route())], [("a", 0), ("b", 0), ("d", 0)]
        )

    def test_order_topic_conf(self) -> None:
        """An ordered topic's configuration decides alone."""
        queues = publish_queues("T", self.route(order_topic_conf="b:2;a:1"))
        self.assertEqual([(q.broker_name, q.queue_id) for q in queues], [("b", 0), ("b", 1), ("a", 0)])

    def test_subscribe_queues(self) -> None:
        """All readable queues, those of a broker without master too."""
        self.assertEqual({q.broker_name for q in subscribe_queues("T", self.route())}, {"a", "b", "c", "e"})

    def test_namespaces(self) -> None:
        """The namespace stands behind the prefix; system topics have none; nothing is wrapped twice."""
        self.assertEqual(wrap("NS", "%RETRY%G"), "%RETRY%NS%G")
        self.assertEqual(wrap("NS", wrap("NS", "T")), "NS%T")
        self.assertEqual((wrap(None, "T"), wrap("NS", "RMQ_SYS_TRACE_TOPIC")), ("T", "RMQ_SYS_TRACE_TOPIC"))
        check_topic("%RETRY%NS%G_-|")
