"""What happens between log and queues: tags, delays, arrivals, and messages that wait for their sync."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.store import dispatch
from rmq.store.messages import BatchEntry
from rmq.store.scan import STRICT, Damage, LogScanner, Search
from rmq.wire.record import SCHEDULE_TOPIC, Flaw, Frame, tags_code
from tests.store.support import SYNC, Box, all_records, message, queue_records


class ArrivalTests(SynchronousTestCase):
    def test_each_message_once(self) -> None:
        """Who waits for messages hears of each, with the new end of its queue and its tagsCode."""
        box = Box()
        store = box.open()
        arrivals: list[tuple[str, int, int, int]] = []
        store.on_arrival(lambda *arrival: arrivals.append(arrival))
        box.put(*(message(n, properties=f"TAGS\x01t{n}") for n in range(4)))
        self.assertEqual(arrivals, [("Topic", n % 3, n // 3 + 1, tags_code(f"t{n}")) for n in range(4)])

    def test_listener_that_puts(self) -> None:
        """A listener may put messages, even in the middle of a batch: all keep their order and their numbers."""
        for config in ({}, SYNC):
            box = Box(**config)
            store = box.open()
            left = [5]

            def put_another(
                topic: str, queue_id: int, end: int, code: int, left: list[int] = left, box: Box = box
            ) -> None:
                if left[0]:
                    left[0] -= 1
                    assert box.store is not None
                    box.store.put(message(0, body=b"from the listener"))

            store.on_arrival(put_another)
            store.put_batch(message(0), [BatchEntry(f"entry {n}".encode(), "") for n in range(4)])
            store.put(message(0))
            box.run(2)
            found = queue_records(store, "Topic", 0)
            self.assertEqual([one.queue_offset for one in found], list(range(10)))
            self.assertEqual([one.phy_offset for one in found], sorted(one.phy_offset for one in found))
            self.assertEqual(store.dispatched_offset, store.end_offset)

    def test_after_the_sync(self) -> None:
        """With SYNC_FLUSH nobody hears of a message before it is on disk."""
        box = Box(**SYNC)
        store = box.open()
        ends: list[int] = []
        store.on_arrival(lambda topic, queue_id, end, code: ends.append(store.flushed_offset))
        answers = [store.put(message(n)) for n in range(10)]
        self.assertEqual(ends, [])
        box.run(1)
        self.assertEqual((len(ends), len(answers)), (10, 10))
        self.assertTrue(all(flushed > 0 for flushed in ends))


class TagsTests(SynchronousTestCase):
    def code(self, topic: str, properties: str) -> int:
        box = Box()
        store = box.open()
        (result,) = box.put(message(0, topic=topic, properties=properties))
        codes: list[int] = []

        def matches(code: int) -> bool:
            codes.append(code)
            return False

        store.get(topic, 0, 0, 1, matches)
        return codes[0] - result.store_timestamp if codes[0] > 1 << 40 else codes[0]

    def test_tags(self) -> None:
        """A unit carries the hash of the tag, 0 without one."""
        self.assertEqual(self.code("Topic", "TAGS\x01TagA"), 2598919)
        self.assertEqual(self.code("Topic", "KEYS\x01x"), 0)
        self.assertEqual(self.code("Topic", "DELAY\x013"), 0)

    def test_more_tags_than_are_remembered(self) -> None:
        """Each of many tags has its own code, also when it comes again."""
        self.patch(dispatch, "MAX_TAGS", 10)
        box = Box()
        store = box.open()
        codes: list[int] = []
        store.on_arrival(lambda topic, queue_id, end, code: codes.append(code))
        tags = [f"tag{n % 25}" for n in range(100)]
        box.put(*(message(0, properties=f"TAGS\x01{tag}") for tag in tags))
        self.assertEqual(codes, [tags_code(tag) for tag in tags])

    def test_delays(self) -> None:
        """A parked message carries its time of delivery; a level beyond the last is the last."""
        for level, delay in ((1, 1000), (2, 5000), (18, 7_200_000), (99, 7_200_000)):
            self.assertEqual(self.code(SCHEDULE_TOPIC, f"TAGS\x01x\x02DELAY\x01{level}"), delay)
        self.assertEqual(self.code(SCHEDULE_TOPIC, "TAGS\x01TagA"), 2598919)


class PendingTests(SynchronousTestCase):
    def test_more_than_is_kept_at_hand(self) -> None:
        """Messages that are too many to be kept until their sync are read back from the log."""
        self.patch(dispatch, "MAX_PENDING", 7)
        box = Box(**SYNC)
        store = box.open()
        for round_ in range(3):
            for number in range(100):
                store.put(message(100 * round_ + number))
            box.run(0.001 * round_)
        box.run(1)
        self.assertEqual(sum(len(found) for found in all_records(store).values()), 300)
        self.assertEqual(store.dispatched_offset, store.end_offset)


class ScanTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()
        self.results = self.box.put_many(250)
        self.log = self.store._commit_log

    def test_whole_log(self) -> None:
        """A scan meets every record, over the ends of files."""
        records = LogScanner(self.log, STRICT).records(0, self.log.end)
        found = [at for at, frame in records if isinstance(frame, Frame)]
        self.assertEqual(found, [result.phy_offset for result in self.results])

    def test_until_anywhere(self) -> None:
        """A scan that ends in the middle of a record says so, and nothing else."""
        scanner = LogScanner(self.log, STRICT)
        for until in range(self.results[3].phy_offset, self.results[5].phy_offset):
            *whole, (at, last) = list(scanner.records(0, until))
            complete = sum(result.next_offset <= until for result in self.results)
            if until in (self.results[3].phy_offset, self.results[4].phy_offset):
                self.assertEqual(len(whole) + 1, complete)
            else:
                self.assertEqual(len(whole), complete)
                self.assertEqual(last, Damage(start=at, end=until, flaw=Flaw.INCOMPLETE))

    def test_next_record(self) -> None:
        """From any byte the next record is found, wherever chunks and files end."""
        places = [result.phy_offset for result in self.results]
        for start in range(0, self.log.end, 37):
            expected = next((place for place in places if place >= start), None)
            found = next(Search(self.log, start, self.log.end).records(), None)
            self.assertEqual(None if found is None else found[0], expected)
