"""Reading: every status of a pull, by time, by place, by key."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from rmq.store import reader
from rmq.store.config import BrokerRole
from rmq.store.messages import GetResult, GetStatus
from rmq.wire.record import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, decode_record, encode_record, java_hash, tags_code
from tests.needs import need_compiled
from tests.seeds import SEED
from tests.store.support import BORN, HOST, Box, log_events, message, queue_records, unique_key

KEYS = ("k", "", "ü k", "K" * 300)


def any_record(chance: random.Random, topic: bytes) -> bytes:
    """Return a record of version 1 or 2 with keys or none, one in four of them damaged."""
    names = chance.choices(("UNIQ_KEY", "KEYS", "TAGS", "xKEYS", ""), k=chance.choice((0, 1, 2, 5, 40)))
    values = (*KEYS, "k k", " x k", "ü  ü")
    properties = "\x02".join(name + chance.choice("\x01\x01\x01=") + chance.choice(values) for name in names).encode()
    if chance.random() < 0.1:
        properties = properties.replace(b"k", b"\xff")
    body = bytes(chance.choice((0, 1, 200)))
    record = encode_record(
        topic=topic,
        queue_id=0,
        body=body,
        properties=properties,
        born_timestamp=1,
        store_timestamp=1,
        born_host=chance.choice((BORN, (bytes(16), 1))),
        store_host=chance.choice((HOST, (bytes(16), 1))),
    )
    if chance.random() < 0.3:
        at = len(record) - len(properties) - 2 - len(topic) - 1
        record = SIZE_AND_MAGIC.pack(len(record) + 1, MAGIC_V2) + record[8:at] + b"\0" + record[at:]
    if chance.random() < 0.25:
        changed = bytearray(record)
        at = chance.choice((chance.randrange(8), 39, 84 + chance.randrange(4), chance.randrange(len(record))))
        changed[at] = chance.choice((0, 1, 2, 127, 128, 255, len(record) & 255))
        record = bytes(changed[: chance.choice((len(changed), len(changed), at))])
    return record


class GetTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()

    def get(self, queue_offset: int, max_count: int = 32, topic: str = "Topic") -> GetResult:
        return self.store.get(topic, 0, queue_offset, max_count)

    def assert_status(self, result: GetResult, status: GetStatus, next_begin_offset: int) -> None:
        self.assertEqual((result.status, result.next_begin_offset, result.messages), (status, next_begin_offset, []))

    def test_no_such_queue(self) -> None:
        """An unknown queue sends the consumer to 0."""
        self.assert_status(self.get(5, topic="Other"), GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)

    def test_beyond_the_end(self) -> None:
        """At the end there is nothing yet; beyond it the consumer is sent back to the end."""
        self.box.put_many(9)
        self.assert_status(self.get(3), GetStatus.OFFSET_OVERFLOW_ONE, 3)
        self.assert_status(self.get(4), GetStatus.OFFSET_OVERFLOW_BADLY, 3)

    def test_in_front_of_the_beginning(self) -> None:
        """A number whose message was deleted sends the consumer to the first one that is there."""
        self.box.stop()
        self.store = self.box.open(
            file_reserved_time=0, delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23"
        )
        self.box.put_many(330)
        self.box.run(30)
        first = self.store.min_offset("Topic", 0)
        self.assertGreater(first, 0)
        self.assert_status(self.get(first - 1), GetStatus.OFFSET_TOO_SMALL, first)
        self.assertEqual(decode_record(self.get(first).messages[0]).queue_offset, first)

    def test_queue_without_message(self) -> None:
        """A queue that only ever took part in a transaction is empty."""
        self.box.put(message(0, sys_flag=4))
        self.assert_status(self.get(0), GetStatus.NO_MESSAGE_IN_QUEUE, 0)

    def test_slave_does_not_correct(self) -> None:
        """A slave may lag, so it leaves a consumer's offset alone, unless offsetCheckInSlave."""
        self.box.put_many(9)
        self.box.stop()
        self.store = self.box.open(broker_role=BrokerRole.SLAVE)
        self.assert_status(self.get(4), GetStatus.OFFSET_OVERFLOW_BADLY, 4)
        self.assert_status(self.get(7, topic="Other"), GetStatus.NO_MATCHED_LOGIC_QUEUE, 7)
        self.store = self.box.reopen("stop", offset_check_in_slave=True)
        self.assert_status(self.get(4), GetStatus.OFFSET_OVERFLOW_BADLY, 3)

    def test_limits_of_a_pull(self) -> None:
        """A pull holds at most what was asked for, 32 messages and 256 KiB; the first message always comes."""
        self.box.put(*(message(n, queue_id=0) for n in range(50)))
        self.assertEqual(len(self.get(0, 10).messages), 10)
        result = self.get(0, 100)
        self.assertEqual((len(result.messages), result.next_begin_offset), (32, 32))
        self.assertEqual(result.size_bytes, sum(map(len, result.messages)))
        self.store = self.box.reopen("stop", max_transfer_bytes_on_message_in_memory=400)
        self.assertEqual(len(self.get(0, 100).messages), 2)
        self.store = self.box.reopen("stop", max_transfer_bytes_on_message_in_memory=1)
        self.assertEqual(len(self.get(0, 100).messages), 1)

    def test_old_messages(self) -> None:
        """Messages far behind the end come in smaller pieces, and the slave is suggested."""
        self.box.put(*(message(n, queue_id=0) for n in range(50)))
        self.assertFalse(self.get(0).suggest_slave)
        self.assertTrue(self.store.in_memory_by_queue_offset("Topic", 0, 0))
        self.store = self.box.reopen("stop", access_message_in_memory_max_ratio=0)
        result = self.get(0, 100)
        self.assertEqual((len(result.messages), result.suggest_slave), (8, True))
        self.assertFalse(self.store.in_memory_by_queue_offset("Topic", 0, 0))
        self.assertTrue(self.store.in_memory_by_queue_offset("Topic", 0, 99))
        self.assertTrue(self.store.in_memory_by_queue_offset("Nothing", 0, 0))

    def test_filter(self) -> None:
        """A filter sees each tagsCode; what it hides is passed over, and the consumer goes on behind it."""
        self.box.put(*(message(n, queue_id=0, properties=f"TAGS\x01{'ab'[n % 2]}") for n in range(20)))
        result = self.store.get("Topic", 0, 0, 5, tags_code("b").__eq__)
        self.assertEqual([decode_record(data).queue_offset for data in result.messages], [1, 3, 5, 7, 9])
        self.assertEqual(result.next_begin_offset, 10)
        result = self.store.get("Topic", 0, 0, 5, tags_code("c").__eq__)
        self.assert_status(result, GetStatus.NO_MATCHED_MESSAGE, 20)

    def test_a_scan_has_an_end(self) -> None:
        """One pull looks at so many units and no more, however few match."""
        self.store = self.box.reopen("stop", max_filter_message_size=200)
        self.box.put(*(message(n, queue_id=0) for n in range(50)))
        self.assert_status(self.store.get("Topic", 0, 0, 5, lambda code: False), GetStatus.NO_MATCHED_MESSAGE, 10)

    def test_written_and_buffered_units(self) -> None:
        """It makes no difference whether units are in files or still in memory."""
        for start in range(0, 60, 7):
            self.box.put(*(message(n, queue_id=0) for n in range(start, start + 7)))
            if start % 2:
                self.box.run(1.5)
            for first in (0, min(start, 19), min(start, 20), start):
                result = self.get(first, 3)
                self.assertEqual(decode_record(result.messages[0]).body, f"body {first}".encode())
        self.assertEqual([one.queue_offset for one in queue_records(self.store, "Topic", 0)], list(range(63)))

    def test_unit_without_record(self) -> None:
        """A unit that points nowhere is passed over and told, once, not served as garbage."""
        self.box.put_many(9)
        self.box.run(2)
        path = "/store/consumequeue/Topic/0/" + "0" * 20
        self.box.disk.open(path).write_at(20, (77).to_bytes(8, "big"))
        events = log_events(self)
        self.assertEqual([decode_record(data).queue_offset for data in self.get(0).messages], [0, 2])
        self.assertEqual(len([event for event in events if "no such record" in event["log_format"]]), 1)


class ByTimeTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()
        self.times = []
        for number in range(40):
            self.times.append(self.box.put(message(number, queue_id=0))[0].store_timestamp)
            self.box.run(10)

    def by_time(self, timestamp: int, topic: str = "Topic") -> int:
        return self.store.offset_by_time(topic, 0, timestamp)

    def test_exact(self) -> None:
        """The time of a message finds that message, over all files of the queue."""
        self.assertEqual([self.by_time(time) for time in self.times], list(range(40)))
        self.assertEqual([self.store.store_time_of("Topic", 0, n) for n in range(40)], self.times)

    def test_between(self) -> None:
        """A time in between finds the nearer message, the earlier one of two equally near."""
        middle = (self.times[7] + self.times[8]) // 2
        self.assertEqual([self.by_time(middle + delta) for delta in (-1, 0, 1)], [7, 7, 8])

    def test_outside(self) -> None:
        """Before all: the first; after all: the last; no queue: 0."""
        self.assertEqual(self.by_time(0), 0)
        self.assertEqual(self.by_time(1 << 60), 39)
        self.assertEqual(self.by_time(self.times[0], "Other"), 0)
        self.assertIsNone(self.store.store_time_of("Topic", 0, 40))
        self.assertIsNone(self.store.store_time_of("Other", 0, 0))
        self.assertEqual(self.store.earliest_store_time(), self.times[0])

    def test_boundaries_of_5_x(self) -> None:
        """LOWER: the first that is not older; UPPER: the last that is not newer."""
        between = (self.times[7] + self.times[8]) // 2
        for timestamp, lower, upper in (
            (0, 0, 0),
            (self.times[0], 0, 0),
            (self.times[7], 7, 7),
            (between - 1, 8, 7),
            (between + 1, 8, 7),
            (self.times[39], 39, 39),
            (1 << 60, 40, 39),
        ):
            found = [self.store.offset_by_time("Topic", 0, timestamp, name) for name in ("LOWER", "UPPER", "upper", "")]
            self.assertEqual(found, [lower, upper, upper, lower], timestamp)
        self.assertEqual(self.store.offset_by_time("Other", 0, 5, "LOWER"), 0)

    def test_any_time(self) -> None:
        """The first message of a time or later, compiled and not, whatever lies in files and what in memory."""
        chance = random.Random(SEED)
        times: list[int] = []
        for _ in range(chance.randrange(1, 12)):
            for _ in range(chance.randrange(1, 40)):
                host = (bytes(16), 1) if chance.random() < 0.2 else (bytes(4), 1)
                text = message(len(times), queue_id=2, born_host=host, body=bytes(chance.choice((0, 40, 200))))
                times.append(self.box.put(text)[0].store_timestamp)
            self.box.run(chance.choice((0.003, 0.5, 2.0)))
        asked = {time + delta for time in times for delta in (-1, 0, 1)}
        wanted = {time: bisect_left(times, time) for time in asked}
        for compiled, units in itertools.product((reader._first_since, None), (16, reader.SEARCH_UNITS)):
            self.patch(reader, "_first_since", compiled)
            self.patch(reader, "SEARCH_UNITS", units)
            found = {time: self.store.offset_by_time("Topic", 2, time, "LOWER") for time in asked}
            self.assertEqual(found, wanted, f"seed {SEED}, compiled: {compiled}, {units} units")

    def test_ipv6_producers(self) -> None:
        """The store time is found behind a long bornHost too."""
        stored = self.box.put(message(0, queue_id=1, born_host=(bytes(16), 1)))[0].store_timestamp
        self.assertEqual(self.store.store_time_of("Topic", 1, 0), stored)


class ByPlaceTests(SynchronousTestCase):
    def test_only_the_start_of_a_record(self) -> None:
        """A record is found at its own offset and at no other."""
        box = Box()
        store = box.open()
        results = box.put_many(150)
        places = {result.phy_offset for result in results}
        for offset in range(-5, 16384 + 600):
            found = store.message_at(offset)
            self.assertEqual(found is not None, offset in places, offset)
        self.assertIsNone(store.message_at(1 << 62))
        self.assertEqual(store.earliest_store_time(), results[0].store_timestamp)
        self.assertEqual(Box().open().earliest_store_time(), -1)


class ByKeyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()
        self.results = self.box.put_many(200)

    def query(
        self, key: str, begin_ms: int = 0, end_ms: int = 1 << 60, count: int = 64, topic: str = "Topic"
    ) -> list[int]:
        return [
            decode_record(data).phy_offset for data in self.store.query(topic, key, count, begin_ms, end_ms).messages
        ]

    def test_every_key(self) -> None:
        """Every message is found by key and unique key, in whichever index file it is, written or not."""
        for how in ("", "kill", "stop"):
            if how:
                self.store = self.box.reopen(how)
            for number, result in enumerate(self.results):
                self.assertEqual(self.query(f"k{number}"), [result.phy_offset], number)
                self.assertEqual(self.query(unique_key(number)), [result.phy_offset], number)

    def test_several_messages(self) -> None:
        """Of messages with the same key the newest come, in the order of the log, as many as asked for."""
        places = [
            result.phy_offset
            for result in self.box.put(*(message(n, properties="KEYS\x01x shared y") for n in range(90)))
        ]
        self.assertEqual(self.query("shared"), places[-64:])
        self.assertEqual(self.query("shared", count=5), places[-5:])
        self.assertEqual(self.query("x", count=1), places[-1:])

    def test_the_same_hash(self) -> None:
        """A query shows no message of another topic or key, though its hash in the index is the same."""
        assert java_hash("Aa#key") == java_hash("BB#key") and java_hash("Aa#Aa") == java_hash("Aa#BB")
        _, other_key, found = (
            result.phy_offset
            for result in self.box.put(
                message(0, topic="BB", properties="KEYS\x01key"),
                message(0, topic="Aa", properties="KEYS\x01BB"),
                message(0, topic="Aa", properties="KEYS\x01key Aa"),
            )
        )
        self.assertEqual(self.query("key", topic="Aa"), [found])
        self.assertEqual(self.query("Aa", topic="Aa"), [found])
        self.assertEqual(self.query("BB", topic="Aa"), [other_key])

    def test_time(self) -> None:
        """Only messages of the given time are found."""
        self.box.run(100)
        old = self.box.put(message(0, properties="KEYS\x01t"))[0]
        self.box.run(100)
        new = self.box.put(message(0, properties="KEYS\x01t"))[0]
        self.assertEqual(self.query("t"), [old.phy_offset, new.phy_offset])
        self.assertEqual(self.query("t", end_ms=new.store_timestamp - 2000), [old.phy_offset])
        self.assertEqual(self.query("t", begin_ms=old.store_timestamp + 2000), [new.phy_offset])
        self.assertEqual(self.query("t", begin_ms=new.store_timestamp + 5000), [])

    def test_strangers(self) -> None:
        """A key with the same hash, or of another topic, is not found."""
        self.box.put(message(0, properties="KEYS\x01AaBB"))
        self.assertEqual(self.query("BBAa"), [])
        self.assertEqual(self.query("k1", topic="Other"), [])
        self.assertEqual(self.query("nothing"), [])

    def test_where_the_index_is(self) -> None:
        """An answer tells up to where the index has got."""
        result = self.store.query("Topic", "k0", 1, 0, 1 << 60)
        self.assertEqual(result.last_update_phy_offset, self.results[-1].phy_offset)
        self.assertEqual(result.last_update_timestamp, self.results[-1].store_timestamp)

    def test_compiled(self) -> None:
        """Whatever a record has, and is damaged by, the compiled look says what the reference says, or nothing."""
        need_compiled("rmq.store._pick")
        verdicts = Counter[bool | None]()
        for number in range(10_000):
            chance = random.Random(f"{SEED}/{number}")
            topic = chance.choice(("T", "T", "T", "ü", "t" * 127, "t" * 128, ""))
            key = chance.choice((*KEYS, "\ufffd", "\ud800"))
            record = any_record(chance, chance.choice((topic, topic, topic, "U")).encode())
            found = reader._compiled.is_of(chance.choice((bytes, memoryview))(record), topic, key)
            verdicts[found] += 1
            if found is not None:
                self.assertIs(found, reader._is_of_slowly(record, topic, key), f"seed {SEED}, number {number}")
        self.assertGreater(min(verdicts[True], verdicts[False], verdicts[None]), 200, f"seed {SEED}")

    def test_properties_that_are_too_long(self) -> None:
        """A record whose properties are longer than Java can read is not found, by the compiled look neither."""
        need_compiled("rmq.store._pick")
        for size, is_found in ((32_767, True), (32_768, False), (40_000, False)):
            properties = b"KEYS\x01k\x02own\x01".ljust(size, b"x")
            head = encode_record(
                topic=b"T",
                queue_id=0,
                body=b"x",
                properties=b"",
                born_timestamp=1,
                store_timestamp=1,
                born_host=BORN,
                store_host=HOST,
            )[8:-2]
            record = SIZE_AND_MAGIC.pack(10 + len(head) + size, MAGIC_V1) + head + size.to_bytes(2, "big") + properties
            found = reader._compiled.is_of(record, "T", "k"), reader._is_of_slowly(record, "T", "k")
            self.assertEqual(found, (is_found, is_found), size)

    def test_without_index(self) -> None:
        """messageIndexEnable=false keeps no index and finds nothing."""
        box = Box(message_index_enable=False)
        store = box.open()
        box.put_many(10)
        self.assertEqual(store.query("Topic", "k0", 1, 0, 1 << 60).messages, [])
        box.stop()
        self.assertFalse(box.disk.exists("/store/index"))
