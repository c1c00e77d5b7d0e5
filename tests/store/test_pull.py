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

        An answer may end early where the next record lies in another file of the log, and nowhere else.
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
            if len(data) == len(records) and (accepts is None or mine.next_begin_offset == theirs.next_begin_offset):
                self.assertEqual((mine.count, mine.suggest_slave), (theirs.count, theirs.suggest_slave), where)
            if mine.next_begin_offset != theirs.next_begin_offset:
                self.assertLess(mine.next_begin_offset, theirs.next_begin_offset, where)
                self.assertEqual(records[: len(data)], data, where)
                queue = store._queues.get("Topic", queue_id)
                assert queue is not None
                first, behind = queue.unit(offset), queue.unit(mine.next_begin_offset)
                assert first is not None and behind is not None
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

    def test_a_block_behind_that_cannot_be_read(self) -> None:
        """Messages in front of a bad disk block are found, although more of the log is looked at in one piece."""
        box, store = self.filled()

        def view_some(offset: int, limit: int) -> bytes:
            raise DiskError("/store/commitlog", "Input/output error", offset)

        self.patch(store._commit_log, "view_some", view_some)
        self.compare(store, 50)
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
        for size, found in ((40, (record, 1, 1, 0)), (39, None), (41, None)):
            unit = layout.CQ_UNIT.pack(0, size, 0)
            limits = (32, 1000)
            self.assertEqual(reader._compiled.pick(unit, record + b"?", 0, 41, 50, limits, limits, 32, None), found)

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
            found = reader._compiled.pick(
                bytes(units), bytes(window), 100, 100 + len(window), 50, (32, 1000), (2, 30), rng.choice((1, 9)), codes
            )
            kinds[found is not None] += 1
            if found is not None:
                records, count, scanned, _ = found
                self.assertLessEqual(count, scanned, f"seed {seed}, case {number}")
                self.assertLessEqual(scanned * layout.CQ_UNIT_BYTES, len(units), f"seed {seed}, case {number}")
                self.assertLessEqual(8 * count, len(records), f"seed {seed}, case {number}")
        self.assertGreater(min(kinds.values()), 100)
