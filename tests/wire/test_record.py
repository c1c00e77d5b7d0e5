"""The stored message, byte by byte."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, seed, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire import compiled, record
from rmq.wire.record import BatchEntry, Flaw, Frame, Record, RecordError
from tests.seeds import EXAMPLES_SEED

#: TopicTest, `Hello`, queue 1, number 5, at 1000, with tag and key; computed by Apache's rules
VECTOR = bytes.fromhex(
    "0000007adaa320a777d189820000000100000000000000000000000500000000000003e800000000"
    "00000174876e80007f0000010000303900000174876e80010a00000100002a9f000000000000000000000000"
    "0000000548656c6c6f09546f706963546573740011544147530154616741024b455953016b31"
)
V4 = (bytes((127, 0, 0, 1)), 12345)
V6 = (bytes(range(16)), 12345)
STORE_V4 = (bytes((10, 0, 0, 1)), 10911)
STORE_V6 = (bytes(range(16, 32)), 10911)


def encode(
    *,
    body: bytes = b"Hello",
    topic: bytes = b"TopicTest",
    properties: bytes = b"TAGS\x01TagA\x02KEYS\x01k1",
    born_host: tuple[bytes, int] = V4,
    store_host: tuple[bytes, int] = STORE_V4,
    sys_flag: int = 0,
) -> bytes:
    return record.encode_record(
        topic=topic,
        queue_id=1,
        body=body,
        properties=properties,
        born_timestamp=1600000000000,
        store_timestamp=1600000000001,
        born_host=born_host,
        store_host=store_host,
        queue_offset=5,
        phy_offset=1000,
        sys_flag=sys_flag,
    )


def read(data: bytes, phy_offset: int | None = 1000) -> Frame | Flaw:
    return record.read_frame(data, 0, len(data), phy_offset=phy_offset, check_crc=True)


def slow_hash(text: str) -> int:
    """Java's String.hashCode by its definition."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class LayoutTests(SynchronousTestCase):
    """The table of fields and what follows from it."""

    def test_apaches_layout(self) -> None:
        """Where Apache has the fields: each is found in a record that was computed by Apache's rules."""
        found = {name: VECTOR[at : at + record.HEAD_WIDTHS[name]].hex() for name, at in record.FIELD_AT.items()}
        self.assertEqual(
            found,
            {
                "totalSize": "0000007a",
                "magicCode": "daa320a7",
                "bodyCRC": "77d18982",
                "queueId": "00000001",
                "flag": "00000000",
                "queueOffset": "0000000000000005",
                "physicalOffset": "00000000000003e8",
                "sysFlag": "00000000",
                "bornTimestamp": "00000174876e8000",
                "bornHost": "7f00000100003039",
                "storeTimestamp": "00000174876e8001",
                "storeHost": "0a00000100002a9f",
                "reconsumeTimes": "00000000",
                "preparedTransactionOffset": "0000000000000000",
                "bodyLength": "00000005",
            },
        )
        self.assertEqual([head.size for head in record.HEADS], [88, 100, 100, 112])

    def test_compiled_modules_include_it(self) -> None:
        """The include of the compiled modules is that of the table; another width in the table would be noticed."""
        path = Path(compiled.LAYOUT)
        self.assertEqual(path.read_text("ascii"), record.layout_include(), "run python -m rmq.wire.record")
        self.patch(record, "FIELD_AT", {**record.FIELD_AT, "sysFlag": 40})
        self.assertNotEqual(path.read_text("ascii"), record.layout_include())


class EncodingTests(SynchronousTestCase):
    def test_vector(self) -> None:
        """A record has exactly the bytes that Apache writes."""
        self.assertEqual(encode().hex(), VECTOR.hex())

    def test_vector_decoded(self) -> None:
        """All fields of a record come back."""
        self.assertEqual(
            record.decode_record(VECTOR),
            Record(
                size=122,
                magic=record.MAGIC_V1,
                body_crc=0x77D18982,
                queue_id=1,
                flag=0,
                queue_offset=5,
                phy_offset=1000,
                sys_flag=0,
                born_timestamp=1600000000000,
                born_host=V4,
                store_timestamp=1600000000001,
                store_host=STORE_V4,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=b"Hello",
                topic="TopicTest",
                properties=b"TAGS\x01TagA\x02KEYS\x01k1",
            ),
        )
        self.assertEqual(record.decode_record(VECTOR).offset_msg_id, "0A00000100002A9F00000000000003E8")

    def test_every_mix_of_addresses(self) -> None:
        """IPv6 hosts lengthen the record by 12 bytes each; the flags follow the hosts, not the caller."""
        for born in (V4, V6):
            for store in (STORE_V4, STORE_V6):
                data = encode(born_host=born, store_host=store, sys_flag=0x31)
                decoded = record.decode_record(data)
                self.assertEqual((decoded.born_host, decoded.store_host), (born, store))
                longer = (len(born[0]) == 16) + (len(store[0]) == 16)
                self.assertEqual(len(data), 122 + 12 * longer)
                self.assertEqual(decoded.sys_flag & ~record.HOST_MASK, 1)

    def test_empty_body_and_properties(self) -> None:
        """A record without body has CRC 0."""
        decoded = record.decode_record(encode(body=b"", properties=b""))
        self.assertEqual((decoded.body_crc, decoded.body, decoded.properties), (0, b"", b""))

    def test_blank(self) -> None:
        """A BLANK says how many bytes of the file it closes."""
        self.assertEqual(record.blank(4096).hex(), "00001000cbd43194")
        self.assertIs(read(record.blank(4096)), Flaw.BLANK)

    def test_second_version_is_read(self) -> None:
        """Records of 5.x with a two-byte topic length are understood."""
        topic = b"t" * 200
        at = VECTOR.index(b"\x09TopicTest")
        data = VECTOR[:at] + len(topic).to_bytes(2, "big") + topic + VECTOR[at + 10 :]
        data = (len(data)).to_bytes(4, "big") + bytes.fromhex("daa320ab") + data[8:]
        self.assertEqual(record.decode_record(data).topic, topic.decode())

    def test_records_of_a_pull(self) -> None:
        """A pull's body is records one after the other."""
        data = encode() + encode(body=b"x" * 1000, born_host=V6)
        self.assertEqual([one.body for one in record.decode_records(data)], [b"Hello", b"x" * 1000])


class ReadingTests(SynchronousTestCase):
    def test_byte_by_byte(self) -> None:
        """However few bytes have come, a cut record is incomplete and never broken."""
        for cut in range(len(VECTOR)):
            self.assertIs(read(VECTOR[:cut]), Flaw.INCOMPLETE, cut)
        self.assertIsInstance(read(VECTOR), Frame)

    def test_bytes_left_over_do_not_count(self) -> None:
        """What follows a record does not change it."""
        frame = record.read_frame(b"abc" + VECTOR + VECTOR, 3, 300, phy_offset=1000, check_crc=True)
        assert isinstance(frame, Frame)
        self.assertEqual((frame.size, frame.topic, frame.queue_offset), (122, "TopicTest", 5))

    def test_zeros_are_empty(self) -> None:
        """Bytes never written are told from damaged ones."""
        self.assertIs(read(bytes(200)), Flaw.EMPTY)

    def test_each_flaw_has_its_name(self) -> None:
        """A reader learns what is wrong."""
        for at, value, flaw in (
            (4, 0, Flaw.MAGIC),
            (0, 0xFF, Flaw.SIZE),
            (3, 50, Flaw.SIZE),
            (35, 0, Flaw.PHY_OFFSET),
            (90, 0, Flaw.BODY_CRC),
            (87, 4, Flaw.LENGTHS),
            (93, 200, Flaw.LENGTHS),
            (95, 0xFF, Flaw.TOPIC),
            (104, 0x10, Flaw.LENGTHS),
        ):
            data = bytearray(VECTOR)
            data[at] = value
            self.assertIs(read(bytes(data)), flaw, at)

    def test_crc_is_optional(self) -> None:
        """Dispatch reads records without looking at bodies."""
        data = VECTOR.replace(b"Hello", b"Hallo")
        self.assertIs(read(data), Flaw.BODY_CRC)
        self.assertIsInstance(record.read_frame(data, 0, len(data), phy_offset=None, check_crc=False), Frame)
        with self.assertRaises(RecordError) as caught:
            record.decode_record(b"12" + data, 2)
        self.assertIn("byte 2", str(caught.exception))

    def test_garbage_never_raises(self) -> None:
        """Whatever the bytes, the answer is a record or a flaw."""
        seed = 20261121
        rng = random.Random(seed)
        for _ in range(5000):
            data = bytearray(VECTOR)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            data = data[: rng.randint(0, len(data))] + rng.randbytes(rng.randint(0, 20))
            result = record.read_frame(bytes(data), 0, len(data), phy_offset=None, check_crc=rng.random() < 0.5)
            self.assertIsInstance(result, (Frame, Flaw), f"seed {seed}")

    def test_torn_record(self) -> None:
        """A record whose last bytes never came parses, and is known as torn; a whole one is not."""
        frame = read(VECTOR)
        assert isinstance(frame, Frame)
        self.assertFalse(record.is_torn(frame, 122))
        whole = len(VECTOR)
        for missing in range(1, 17):
            frame = read(VECTOR[: whole - missing] + bytes(missing))
            assert isinstance(frame, Frame), missing
            self.assertTrue(record.is_torn(frame, 122), missing)

    def test_torn_record_without_properties(self) -> None:
        """Zeros in the topic show a torn record too; missing zeros are no loss at all."""
        data = encode(properties=b"")
        frame = read(data[:-4] + bytes(4))
        assert isinstance(frame, Frame)
        self.assertTrue(record.is_torn(frame, 122))
        self.assertEqual(data[:-2] + bytes(2), data)

    def test_lost_sector(self) -> None:
        """A sector of properties that a power failure took is seen; a NUL in a value is not mistaken for one."""
        properties = b"a\x01" + b"x" * 2000 + b"\x02b\x01\0\0y"
        data = encode(properties=properties)
        frame = read(data)
        assert isinstance(frame, Frame)
        self.assertFalse(record.is_torn(frame, 4096))
        for sector in (512, 1024):
            frame = read(data[:sector] + bytes(512) + data[sector + 512 :])
            assert isinstance(frame, Frame)
            self.assertTrue(record.is_torn(frame, len(data)), sector)


class PropertiesTests(SynchronousTestCase):
    def test_both_endings(self) -> None:
        """Strings with and without a last separator mean the same; nonsense is skipped, the last of equals counts."""
        for text in (
            "a\x01b\x02c\x01d",
            "a\x01b\x02c\x01d\x02",
            "c\x01x\x02a\x01b\x02\x02q\x02\x01v\x02e\x01\x02c\x01d",
        ):
            self.assertEqual(record.decode_properties(text), {"a": "b", "c": "d"})
        self.assertEqual(record.encode_properties({"a": "b", "c": "d"}), "a\x01b\x02c\x01d")

    def test_value_may_hold_the_inner_separator(self) -> None:
        """A piece is split at its first separator."""
        self.assertEqual(record.decode_properties("a\x01b\x01c"), {"a": "b\x01c"})

    def test_joining(self) -> None:
        """Two strings are joined with exactly one separator."""
        self.assertEqual(record.append_properties("a\x01b", "c\x01d"), "a\x01b\x02c\x01d")
        self.assertEqual(record.append_properties("a\x01b\x02", "c\x01d"), "a\x01b\x02c\x01d")
        self.assertEqual(record.append_properties("", "c\x01d"), "c\x01d")
        self.assertEqual(record.append_properties("a\x01b", ""), "a\x01b")

    @seed(EXAMPLES_SEED)
    @settings(max_examples=300, deadline=None)
    @given(st.text(alphabet="AKEYS\x01\x02 x", max_size=40), st.sampled_from(["KEYS", "A", "x"]))
    def test_finding_one_is_decoding_all(self, text: str, name: str) -> None:
        """The quick way to one property finds what the complete way finds."""
        self.assertEqual(record.find_property(text, name), record.decode_properties(text).get(name))


class HashTests(SynchronousTestCase):
    def test_known_hashes(self) -> None:
        """Tags and keys hash as in Java."""
        self.assertEqual(record.tags_code("TagA"), 2598919)
        self.assertEqual(record.tags_code("TAG_IMPORTANT"), -1015945859)
        self.assertEqual(record.tags_code(""), 0)
        self.assertEqual(record.tags_code(None), 0)
        self.assertEqual(record.index_key_hash("TopicTest", "k1"), 2746024)
        self.assertEqual(record.index_hash(-(1 << 31)), 0)

    @seed(EXAMPLES_SEED)
    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=60))
    def test_java_hash(self, text: str) -> None:
        """Every text, beyond the basic plane too, hashes as String.hashCode defines it."""
        self.assertEqual(record.java_hash(text), slow_hash(text))

    def test_long_text(self) -> None:
        """The length of a text does not matter."""
        for size in (511, 512, 513, 5000):
            self.assertEqual(record.java_hash("ab" * size), slow_hash("ab" * size))


class MessageIdTests(SynchronousTestCase):
    def test_round_trip(self) -> None:
        """An id names address, port and offset, for both kinds of address."""
        for host in (STORE_V4, STORE_V6):
            self.assertEqual(record.decode_offset_msg_id(record.offset_msg_id(host, 1 << 40)), (host, 1 << 40))

    def test_nonsense(self) -> None:
        """What is no id is refused with the text in the error."""
        for text in ("", "0A", "x" * 32, " " * 2 + "0" * 30):
            with self.assertRaises(ValueError) as caught:
                record.decode_offset_msg_id(text)
            self.assertIn(repr(text), str(caught.exception))


class BatchTests(SynchronousTestCase):
    ENTRIES = [BatchEntry(b"one", "KEYS\x01a", 7), BatchEntry(b"", "", 0), BatchEntry(b"x" * 300, "TAGS\x01é")]

    def test_round_trip(self) -> None:
        """A batch comes apart into what was put in."""
        self.assertEqual(record.decode_batch(record.encode_batch(self.ENTRIES)), self.ENTRIES)
        self.assertEqual(record.decode_batch(b""), [])

    def test_wrong_total_size(self) -> None:
        """An entry's totalSize is not looked at, as 4.9.7 does not; the lengths of its parts tell where it ends."""
        for size in (-1, 0, 1, 30, 32, 0x7FFFFFFF):
            data = size.to_bytes(4, "big", signed=True) + record.encode_batch(self.ENTRIES)[4:]
            self.assertEqual(record.decode_batch(data), self.ENTRIES)

    def test_lengths_beyond_the_batch(self) -> None:
        """A body or properties that would be longer than what is there, or less than nothing, are refused."""
        data = record.encode_batch(self.ENTRIES[:1])
        for at, width, lengths in ((16, 4, (-1, 13, 0x7FFFFFFF)), (23, 2, (-1, 7, 0x7FFF))):
            for length in lengths:
                broken = data[:at] + length.to_bytes(width, "big", signed=True) + data[at + width :]
                self.assertRaises(ValueError, record.decode_batch, broken)

    def test_cut_anywhere(self) -> None:
        """A batch that was cut inside an entry is refused, with the byte at which that entry begins."""
        data = record.encode_batch(self.ENTRIES)
        borders = {0, 31, 53}
        for cut in range(len(data)):
            if cut in borders:
                continue
            with self.assertRaises(ValueError) as caught:
                record.decode_batch(data[:cut])
            self.assertIn("batch entry at byte", str(caught.exception))

    def test_garbage(self) -> None:
        """Random bytes are a ValueError or a batch, never anything else."""
        seed = 7
        rng = random.Random(seed)
        data = record.encode_batch(self.ENTRIES)
        for _ in range(2000):
            broken = bytearray(data)
            broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                record.decode_batch(bytes(broken))
            except ValueError:
                continue
