"""Pulls in one piece (`MessageStore.pull`, compiled) find what `MessageStore.get`, the reference, finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.filters import TagCodes
from rmq.broker.sql92 import compile_sql92
from rmq.runtime.disk.files import DiskError
from rmq.store import layout, reader
from rmq.store.messages import GetResult, GetStatus
from rmq.store.store import MessageStore
from rmq.wire.frames import PREFIX
from rmq.wire.record import tags_code
from tests.needs import need_compiled
from tests.seeds import SEED
from tests.store.support import ROOT, Box, message

QUEUES = 3
FILTERS = [None, *map(compile_sql92, ("KEYS STARTSWITH 'k3'", "FALSE", "NOT (KEYS = 5) OR TAGS = 'tag1'"))]


class PullTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.seed = SEED
        self.rng = random.Random(self.seed)
        self.picked = 0
        pick: Callable[..., object] | None = reader._pick
        if pick is not None:

            def counted(*arguments: object) -> object:
                found = pick(*arguments)
                self.picked += found is not None
                return found

            self.patch(reader, "_pick", counted)

    def filled(self, count: int = 300, **config: Any) -> tuple[Box, MessageStore]:
        """Return a store with messages of many lengths in three queues of several files."""
        box = Box(**config)
        store = box.open()
        box.put(*(message(number, body=b"x" * self.rng.choice((0, 5, 100, 900))) for number in range(count)))
        return box, store

    def compare(self, store: MessageStore, rounds: int = 300) -> None:
        """
        Pull at random and compare with the reference.

        An answer may end early where the next record lies in another file of the log, or is none, and nowhere else.
        """
        codes = [tags_code(f"tag{number}") for number in range(2)]
        for number in range(rounds):
            queue_id = self.rng.randrange(QUEUES + 1)
            offset = self.rng.randrange(-2, store.max_offset("Topic", queue_id) + 3)
            count = self.rng.choice((1, 2, 5, 32, 200))
            wanted = self.rng.choice((None, TagCodes(codes[:1]), TagCodes(codes), TagCodes((7,)), TagCodes((1 << 70,))))
            accepts = self.rng.choice(FILTERS)
            mine = store.pull("Topic", queue_id, offset, count, wanted, accepts)
            theirs = store.get("Topic", queue_id, offset, count, wanted, accepts)
            where = f"seed {self.seed}, pull {number} of {queue_id} at {offset}"
            records = b"".join(theirs.messages)
            self.assertEqual((mine.status, mine.min_offset, mine.max_offset), self.facts(theirs), where)
            self.assertEqual(len(mine.messages), int(mine.status is GetStatus.FOUND), where)
            data = b"".join(mine.messages)
            self.assertEqual((len(data), records[: len(data)]), (mine.size_bytes, data), where)
            if len(data) == len(records) and mine.next_begin_offset == theirs.next_begin_offset:
                self.assertEqual((mine.count, mine.suggest_slave), (theirs.count, theirs.suggest_slave), where)
            if mine.next_begin_offset != theirs.next_begin_offset:
                self.assertLess(mine.next_begin_offset, theirs.next_begin_offset, where)
                self.assertEqual(records[: len(data)], data, where)
                queue = store._queues.get("Topic", queue_id)
                assert queue is not None
                first, behind = queue.unit(offset), queue.unit(mine.next_begin_offset)
                assert first is not None and behind is not None
                if store._reader._record(queue, *behind[:2]) is not None:
                    self.assertNotEqual(first[0] // 16384, behind[0] // 16384, where)

    def facts(self, result: GetResult) -> tuple[object, ...]:
        return result.status, result.min_offset, result.max_offset

    def test_same_as_the_reference(self) -> None:
        """Offsets in, before and behind the queue, counts, tags: the same records, and the same place to go on."""
        box, store = self.filled()
        self.compare(store)
        if reader._compiled is not None:
            self.assertGreater(self.picked, 50, "the compiled loop was hardly used")
        box.stop()

    def test_limits_of_one_answer(self) -> None:
        """Bytes and numbers of one answer are bounded, for old messages more tightly."""
        limits = {"max_transfer_bytes_on_message_in_memory": 3000, "max_transfer_count_on_message_in_disk": 3}
        for ratio in (0, 40):
            box, store = self.filled(**limits, access_message_in_memory_max_ratio=ratio)
            self.compare(store, 150)
            box.stop()

    def test_few_units_at_a_time(self) -> None:
        """A filter looks at no more of the queue than maxFilterMessageSize says."""
        box, store = self.filled(max_filter_message_size=200)
        self.compare(store)
        self.assertEqual(store.pull("Topic", 0, 0, 5, TagCodes((7,))).next_begin_offset, 10)
        box.stop()

    def test_queue_extensions(self) -> None:
        """Units that hold addresses of an extension file are left to the reference."""
        box, store = self.filled(enable_consume_queue_ext=True)
        self.compare(store)
        box.stop()

    def test_deleted_and_damaged_records(self) -> None:
        """A record that is gone, or that its unit does not describe, is passed over as the reference does it."""
        box, store = self.filled()
        starts = store._commit_log.starts
        file = box.disk.open(layout.join(layout.commit_log_dir(ROOT), layout.file_name(starts[1])))
        file.write_at(self.rng.randrange(8000), bytes(4000))
        self.compare(store)
        store._commit_log.delete_first()
        self.compare(store)
        box.stop()
        self.flushLoggedErrors()

    def test_damaged_units(self) -> None:
        """Units of any places, sizes and codes: the same records, the units that lead nowhere are passed over."""
        limits = (0, 1, -1, 7, 8, 91, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63))
        box, store = self.filled()
        self.assertTrue(store.write_buffers())
        folder = layout.consume_queue_dir(ROOT, "Topic", 0)
        file_bytes = layout.consume_queue_file_bytes(store.config.mapped_file_size_consume_queue)
        queue = store._queues.get("Topic", 0)
        assert queue is not None
        for _ in range(60):
            start, place = divmod(self.rng.randrange(queue.end) * layout.CQ_UNIT_BYTES, file_bytes)
            file = box.disk.open(layout.join(folder, layout.file_name(start * file_bytes)))
            unit = list(layout.CQ_UNIT.unpack(file.read_at(place, layout.CQ_UNIT_BYTES)))
            for index in self.rng.sample(range(3), k=self.rng.choice((1, 1, 2))):
                most = 1 << (31 if index == 1 else 63)
                near = (
                    unit[index] + self.rng.choice((-1, 1)),
                    2 * unit[index],
                    -unit[index],
                    16383,
                    store.end_offset - 1,
                )
                unit[index] = max(-most, min(self.rng.choice((*limits, *near)), most - 1))
            file.write_at(place, layout.CQ_UNIT.pack(*unit))
            queue.drop_block()
            store._reader._recent_bytes = self.rng.choice((0, 1 << 40, self.rng.randrange(store.end_offset)))
            self.compare(store, 20)
        box.stop()
        self.flushLoggedErrors()

    def test_units_for_less_than_nothing(self) -> None:
        """A unit with a size below 0 is passed over as any other that leads to no record, with and without tags."""
        box, store = self.filled()
        self.assertTrue(store.write_buffers())
        file = box.disk.open(layout.join(layout.consume_queue_dir(ROOT, "Topic", 0), layout.file_name(0)))
        expected = b"".join(store.get("Topic", 0, 3, 2).messages)
        for unit in ((100, -7, 0), (16383, 0, -1), (store.end_offset - 1, 1, -5), (16380, 40, -(1 << 63))):
            file.write_at(2 * layout.CQ_UNIT_BYTES, layout.CQ_UNIT.pack(*unit))
            for wanted in (None, TagCodes((unit[2], *map(tags_code, ("tag0", "tag1"))))):
                found = store.get("Topic", 0, 2, 2, wanted)
                self.assertEqual((found.status, b"".join(found.messages)), (GetStatus.FOUND, expected), unit)
        box.stop()
        self.flushLoggedErrors()

    def test_a_block_behind_that_cannot_be_read(self) -> None:
        """Messages in front of a bad disk block are found, although more of the log is looked at in one piece."""
        box, store = self.filled()

        def view_some(offset: int, limit: int) -> bytes:
            raise DiskError("/store/commitlog", "Input/output error", offset)

        self.patch(store._commit_log, "view_some", view_some)
        self.compare(store, 50)
        box.stop()

    def test_units_that_are_kept(self) -> None:
        """Units that were read from files are found again, whatever was stored, deleted or expired since."""
        box, store = self.filled()
        for first in (300, 400):
            self.assertTrue(store.write_buffers())
            self.compare(store, 100)
            box.put(*(message(first + number) for number in range(100)))
            self.compare(store, 100)
        store.delete_topic("Topic")
        self.compare(store, 20)
        box.put(*(message(number, body=b"again") for number in range(200)))
        self.assertTrue(store.write_buffers())
        self.compare(store, 100)
        store._commit_log.delete_first()
        for queue in store._queues:
            queue.correct_min(store.min_phy_offset)
        self.compare(store, 100)
        box.stop()
        self.flushLoggedErrors()

    def test_kept_units_are_bounded(self) -> None:
        """Queues keep no more bytes of units together than the limit says."""
        need_compiled("rmq.store._pick")
        box, store = self.filled()
        self.assertTrue(store.write_buffers())
        queues = list(store._queues)
        for limit in (3000, 1 << 20, 0):
            self.patch(reader, "MAX_KEPT_BYTES", limit)
            self.compare(store, 100)
            kept = sum(len(queue.block) for queue in queues)
            self.assertLessEqual(kept, limit, f"seed {self.seed}")
            self.assertEqual(kept > 0, limit > 0, f"seed {self.seed}")
        box.stop()

    def test_whole_answers(self) -> None:
        """With the head of an answer the records follow its header, which names where to go on and whom to ask."""
        need_compiled("rmq.store._pick")
        box, store = self.filled()
        for number in range(200):
            store._reader._recent_bytes = self.rng.randrange(store.end_offset)
            place = "Topic", self.rng.randrange(QUEUES), self.rng.randrange(100)
            asked = self.rng.choice((1, 5, 200)), self.rng.choice((None, TagCodes((7,)))), self.rng.choice(FILTERS)
            opaque, brokers = self.rng.randrange(-(1 << 31), 1 << 31), (self.rng.randrange(3), 1 << 40)
            records = store.pick(*place, *asked)
            answer = store.pick(*place, *asked, (*brokers, opaque, b',"tail":1}'))
            where = f"seed {self.seed}, pull {number}"
            if records is None or answer is None:
                self.assertEqual(answer, records, where)
                continue
            self.assertEqual(answer[1:], records[1:], where)
            data, size, count, following, low, high, is_old = records
            self.assertEqual(len(data), size, where)
            places = f'"nextBeginOffset":"{following}","minOffset":"{low}","maxOffset":"{high}"'
            ext = f'{{"suggestWhichBrokerId":"{brokers[is_old]}",{places}}}'
            head = f'{{"code":0,"extFields":{ext},"flag":1,"language":"JAVA","opaque":{opaque},"tail":1}}'.encode()
            frame = PREFIX.pack(4 + len(head) + size, len(head)) + head + data
            self.assertEqual(answer[0], frame if count else b"", where)
        box.stop()

    def test_what_the_following_message_decides(self) -> None:
        """The message behind an answer decides whether a slave is suggested for the next pull."""
        box, store = self.filled()
        for _ in range(30):
            store._reader._recent_bytes = self.rng.randrange(store.end_offset)
            self.compare(store, 20)
        box.stop()


class PickTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled("rmq.store._pick")

    def test_another_length(self) -> None:
        """A record that is not as long as its unit says is left to the reference."""
        record = (40).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(32)
        for size, found in ((40, (record, 40, 1, 6, 2, 9, False)), (39, None), (41, None)):
            units = b"before" + layout.CQ_UNIT.pack(0, size, 0)
            limits = (32, 1000, 32, 1000)
            self.assertEqual(
                reader._compiled.pick(units, 6, 1, record + b"?", 5, 2, 9, 41, 50, limits, 32, None), found
            )

    def test_places_far_apart(self) -> None:
        """No difference of two places is computed that a number of 64 bits cannot hold."""
        limits = (32, 1000, 32, 1000)
        for first in (-(1 << 63), -1, (1 << 63) - 1):
            units = b"".join(layout.CQ_UNIT.pack(place, 40, 0) for place in (first, (1 << 63) - 1, first))
            self.assertIsNone(reader._compiled.pick(units, 0, 3, bytes(100), 5, 2, 9, 41, 50, limits, 32, None))

    def test_places_before_the_log(self) -> None:
        """One below 0 is left to the reference, wanted or not: it decides whether old messages are read."""
        record = (40).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(32)
        limits = (32, 1000, 32, 1000)
        for codes in (None, frozenset((1,))):
            units = layout.CQ_UNIT.pack(0, 40, 1) + layout.CQ_UNIT.pack(-(1 << 63), 40, 2)
            for count in (1, 32):
                self.assertIsNone(reader._compiled.pick(units, 0, 2, record, 5, 2, 9, 41, 50, limits, count, codes))

    def test_garbage(self) -> None:
        """Units and log bytes of any kind are read within their bounds: an answer that fits, or none."""
        seed = SEED
        rng = random.Random(seed)
        kinds: dict[bool, int] = {True: 0, False: 0}
        for number in range(5000):
            window = bytearray(rng.randbytes(rng.choice((0, 1, 8, 300))))
            units = bytearray()
            for _ in range(rng.randrange(6)):
                at, size = rng.randrange(-4, len(window) + 4), rng.choice((0, 7, 8, 20, -1, 1 << 30))
                if 0 <= at <= len(window) - 8:
                    window[at : at + 8] = size.to_bytes(4, "big", signed=True) + bytes.fromhex("daa320a7")
                units += layout.CQ_UNIT.pack(100 + at, size, rng.choice((0, 65, -1, -(1 << 63))))
            codes = rng.choice((None, frozenset((65,)), frozenset(range(70))))
            limits = (32, 1000, 2, 30)
            found = reader._compiled.pick(
                bytes(units), 0, 9, bytes(window), 7, 0, 99, 100 + len(window), 50, limits, rng.choice((1, 9)), codes
            )
            kinds[found is not None] += 1
            if found is not None:
                records, size, count, following, *_ = found
                scanned = following - 7
                self.assertEqual(len(records), size, f"seed {seed}, case {number}")
                self.assertLessEqual(count, scanned, f"seed {seed}, case {number}")
                self.assertLessEqual(scanned * layout.CQ_UNIT_BYTES, len(units), f"seed {seed}, case {number}")
                self.assertLessEqual(8 * count, len(records), f"seed {seed}, case {number}")
        self.assertGreater(min(kinds.values()), 100)
