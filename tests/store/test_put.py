"""Putting messages: what is stored, what is refused, and how a producer is answered."""

from __future__ import annotations

from itertools import pairwise

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.clock import steady_ms
from rmq.runtime.disk.files import DiskError, DiskFull, File
from rmq.store.appender import Host
from rmq.store.config import BrokerRole
from rmq.store.messages import BatchEntry, PutResult, PutStatus
from rmq.wire import record
from tests.store.support import HOST, ROOT, SYNC, Box, all_records, append, log_events, message, queue_records


class Asked:
    """Sends that are not stored: where and in how many bytes they were asked to be."""

    count = 0
    last_phy = last_size = -1

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def encode(self, phy_offset: int, room: int, store_ms: int, store_host: Host, /) -> None:
        self.asked.append((phy_offset, room))


class PutTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()

    def put(self, **changes: object) -> PutResult:
        (result,) = self.box.put(message(0, **changes))
        return result

    def test_everything_is_stored(self) -> None:
        """All that a message has comes back to a consumer, with the place that the producer was told."""
        result = self.put(
            body=b"payload", flag=9, sys_flag=1, reconsume_times=3, prepared_transaction_offset=77, queue_id=2
        )
        self.assertEqual((result.status, result.phy_offset, result.queue_offset), (PutStatus.PUT_OK, 0, 0))
        (stored,) = queue_records(self.store, "Topic", 2)
        self.assertEqual(stored.body, b"payload")
        self.assertEqual((stored.flag, stored.sys_flag, stored.reconsume_times), (9, 1, 3))
        self.assertEqual(stored.prepared_transaction_offset, 77)
        self.assertEqual((stored.size, stored.store_timestamp), (result.size, result.store_timestamp))
        self.assertEqual(result.msg_ids, stored.offset_msg_id)
        self.assertEqual(result.next_offset, self.store.end_offset)
        self.assertEqual(self.store.message_at(0), self.store.get("Topic", 2, 0, 1).messages[0])

    def test_plain_answer(self) -> None:
        """With ASYNC_FLUSH a put answers at once, and the message can be read at once."""
        self.assertIsInstance(self.store.put(message(0)), PutResult)
        self.assertEqual(self.store.max_offset("Topic", 0), 1)

    def test_addresses_decide_the_flags(self) -> None:
        """An IPv6 host is stored as such, and a flag that the client made up does not count."""
        v6 = (bytes(range(16)), 5)
        self.put(born_host=v6)
        self.put(sys_flag=0x30)
        first, second = queue_records(self.store, "Topic", 0)
        self.assertEqual((first.born_host, first.sys_flag), (v6, 0x10))
        self.assertEqual(second.sys_flag, 0)

    def test_numbers_per_queue(self) -> None:
        """Each queue counts on its own, from 0."""
        results = self.box.put_many(9)
        self.assertEqual([result.queue_offset for result in results], [0, 0, 0, 1, 1, 1, 2, 2, 2])

    def test_sends_that_are_put_together(self) -> None:
        """They need room for a BLANK behind them, a dispatcher that is at the end, and a log in good order."""
        store = self.store
        self.put()
        tail_end, end = store._commit_log.tail_end, store.end_offset
        sends = Asked()
        self.assertEqual(store.append_many(sends, HOST), 0)
        self.assertEqual(sends.asked, [(end, tail_end - end - record.BLANK_BYTES)])
        self.box.disk.write_fails = lambda path: "commitlog" in path
        self.assertIs(self.put().status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.box.disk.write_fails = lambda path: False
        self.assertEqual(store.append_many(sends, HOST), 0)
        self.assertIs(self.put().status, PutStatus.PUT_OK)
        store._dispatcher._is_busy = True
        self.assertEqual(store.append_many(sends, HOST), 0)
        store._dispatcher._is_busy = False
        self.assertEqual(len(sends.asked), 1)
        self.assertEqual(store.append_many(sends, HOST), 0)
        self.assertEqual(len(sends.asked), 2)

    def test_no_sends_are_put_where_too_many_wait(self) -> None:
        """Where puts wait for the disk, the bound of those that wait holds for sends that are put together too."""
        box = Box(**SYNC)
        store = box.open()
        self.patch(type(store._completion), "is_full", property(lambda completion: True))
        sends = Asked()
        self.assertEqual((store.append_many(sends, HOST), sends.asked), (0, []))

    def test_transactions(self) -> None:
        """Prepared and rolled back messages take no number and are not shown; committed ones are."""
        statuses = [
            self.put(queue_id=0, sys_flag=flag).queue_offset
            for flag in (record.TRANSACTION_PREPARED, 0, record.TRANSACTION_ROLLBACK, record.TRANSACTION_COMMIT)
        ]
        self.assertEqual(statuses, [0, 0, 0, 1])
        self.assertEqual([r.sys_flag for r in queue_records(self.store, "Topic", 0)], [0, record.TRANSACTION_COMMIT])

    def test_limits_of_a_body(self) -> None:
        """A body of maxMessageSize is stored, one byte more is illegal."""
        self.box.stop()
        self.store = self.box.open(max_message_size=1000)
        self.assertIs(self.put(body=b"x" * 1000).status, PutStatus.PUT_OK)
        self.assertIs(self.put(body=b"x" * 1001).status, PutStatus.MESSAGE_ILLEGAL)

    def test_a_record_must_fit_a_file(self) -> None:
        """A record that no file can hold together with its BLANK is illegal, not an endless search for room."""
        fixed = self.put(body=b"").size
        most = 16384 - 8 - fixed
        self.assertIs(self.put(body=b"x" * most).status, PutStatus.PUT_OK)
        self.assertIs(self.put(body=b"x" * (most + 1)).status, PutStatus.MESSAGE_ILLEGAL)

    def test_limits_of_properties(self) -> None:
        """32767 bytes of properties are stored, 32768 are not; bytes count, not characters."""
        self.box.stop()
        self.store = self.box.open(mapped_file_size_commit_log=1 << 20, store_path_root_dir="/other")
        self.assertIs(self.put(properties="a\x01" + "x" * 32765).status, PutStatus.PUT_OK)
        self.assertIs(self.put(properties="a\x01" + "x" * 32766).status, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        self.assertIs(self.put(properties="a\x01" + "é" * 16383).status, PutStatus.PROPERTIES_SIZE_EXCEEDED)

    def test_limits_of_a_topic(self) -> None:
        """127 bytes of topic are stored, 128 are not."""
        self.assertIs(self.put(topic="t" * 127).status, PutStatus.PUT_OK)
        for topic in ("t" * 128, "é" * 64, ""):
            self.assertIs(self.put(topic=topic).status, PutStatus.MESSAGE_ILLEGAL, topic)

    def test_topics_stay_in_their_folder(self) -> None:
        """A topic or queue that could leave the folder of consume queues is illegal."""
        for topic in ("../x", "a/b", ".", "..", "a\0b"):
            self.assertIs(self.put(topic=topic).status, PutStatus.MESSAGE_ILLEGAL, topic)
        self.assertIs(self.put(queue_id=-1).status, PutStatus.MESSAGE_ILLEGAL)
        self.assertEqual(self.store.end_offset, 0)

    def test_numbers_too_large(self) -> None:
        """A number that its field cannot hold refuses the message and changes nothing."""
        before = self.store.end_offset
        self.assertIs(self.put(flag=1 << 40).status, PutStatus.MESSAGE_ILLEGAL)
        self.assertEqual(self.store.end_offset, before)
        self.assertEqual(self.put().queue_offset, 0)

    def test_lone_surrogates(self) -> None:
        """Properties that are no legal text are stored as Java stores them, with question marks."""
        self.put(properties="k\x01\ud800")
        self.assertEqual(queue_records(self.store, "Topic", 0)[0].properties, b"k\x01?")

    def test_properties_never_end_with_nul(self) -> None:
        """A record's last byte tells that it was written completely."""
        self.put(properties="k\x01\0")
        (stored,) = queue_records(self.store, "Topic", 0)
        self.assertEqual(stored.properties, b"k\x01\0\x02")

    def test_many_store_hosts(self) -> None:
        """Ids are right however many hosts there are."""
        for number in range(250):
            (result,) = self.box.put(message(number, store_host=(bytes((10, 0, number % 256, 7)), number)))
            data = self.store.message_at(result.phy_offset)
            assert data is not None
            self.assertEqual(result.msg_ids, record.decode_record(data).offset_msg_id)

    def test_files_roll(self) -> None:
        """A full file ends with a BLANK for all that is left of it, and the next record begins the next file."""
        results = self.box.put_many(200)
        starts = [one.phy_offset for one in results if one.phy_offset % 16384 == 0]
        self.assertEqual(starts, [0, 16384, 32768])
        end = next(one.next_offset for one, two in pairwise(results) if two.phy_offset == 16384)
        self.assertEqual(self.store.read(end, 8), record.blank(16384 - end))
        self.assertEqual(sum(len(found) for found in all_records(self.store).values()), 200)

    def test_slave_and_unstarted_store_refuse(self) -> None:
        """A slave takes no messages, nor does a store that is not running."""
        self.box.stop()
        self.box.open(start=False)
        self.assertIs(self.put().status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.box.reopen("kill", broker_role=BrokerRole.SLAVE)
        self.assertIs(self.put().status, PutStatus.SERVICE_NOT_AVAILABLE)


class BatchTests(SynchronousTestCase):
    ENTRIES = [BatchEntry(f"body {n}".encode(), f"KEYS\x01b{n}", n) for n in range(5)]

    def setUp(self) -> None:
        self.box = Box()
        self.store = self.box.open()

    def put(self, entries: list[BatchEntry], **changes: object) -> PutResult:
        result = self.store.put_batch(message(0, **({"properties": "CLUSTER\x01c"} | changes)), entries)
        return self.box.world.settle(result) if isinstance(result, Deferred) else result

    def test_one_record_each(self) -> None:
        """Every message of a batch is a record of its own, with consecutive numbers and the batch's properties."""
        result = self.put(self.ENTRIES)
        self.assertEqual((result.status, result.queue_offset, result.count), (PutStatus.PUT_OK, 0, 5))
        stored = queue_records(self.store, "Topic", 0)
        self.assertEqual([one.queue_offset for one in stored], [0, 1, 2, 3, 4])
        self.assertEqual([one.flag for one in stored], [0, 1, 2, 3, 4])
        self.assertEqual(stored[3].properties, b"KEYS\x01b3\x02CLUSTER\x01c")
        self.assertEqual(result.msg_ids.split(","), [one.offset_msg_id for one in stored])
        self.assertEqual((result.next_offset, result.size), (self.store.end_offset, self.store.end_offset))
        self.assertEqual(len(self.store.query("Topic", "b4", 10, 0, 1 << 60).messages), 1)
        self.assertEqual(self.put(self.ENTRIES).queue_offset, 5)

    def test_a_batch_stays_in_one_file(self) -> None:
        """A batch that does not fit behind what is there begins the next file, as a whole."""
        self.put([BatchEntry(b"x" * 10000, "")])
        result = self.put([BatchEntry(b"y" * 3000, "")] * 3)
        self.assertEqual(result.phy_offset, 16384)

    def test_refusals(self) -> None:
        """Empty, transactional, delayed and oversized batches are illegal and leave no trace."""
        self.assertIs(self.put([]).status, PutStatus.MESSAGE_ILLEGAL)
        self.assertIs(self.put(self.ENTRIES, sys_flag=record.TRANSACTION_PREPARED).status, PutStatus.MESSAGE_ILLEGAL)
        delayed = [BatchEntry(b"", "DELAY\x013")]
        self.assertIs(self.put(delayed).status, PutStatus.MESSAGE_ILLEGAL)
        self.assertIs(self.put([BatchEntry(b"x" * 9000, "")] * 2).status, PutStatus.MESSAGE_ILLEGAL)
        too_long = [BatchEntry(b"", "a\x01" + "x" * 32760)]
        self.assertIs(self.put(too_long).status, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        self.assertIs(self.put(self.ENTRIES, topic="a/b").status, PutStatus.MESSAGE_ILLEGAL)
        self.assertEqual(self.store.end_offset, 0)
        self.assertEqual(self.put(self.ENTRIES).queue_offset, 0)


class FullDiskTests(SynchronousTestCase):
    def test_no_room_for_the_next_file(self) -> None:
        """Without room for another file a put is refused with the log untouched; with room again the next one works."""
        box = Box()
        store = box.open()
        box.put_many(80)
        end, free = store.end_offset, store.disk_usage.free_bytes
        box.disk.capacity_bytes -= free - 4096
        big = message(0, body=b"x" * 8000)
        for _ in range(3):
            (result,) = box.put(big)
            self.assertIs(result.status, PutStatus.CREATE_MAPPED_FILE_FAILED)
        self.assertEqual(store.end_offset, end)
        small = box.put(message(81, queue_id=0))[0]
        self.assertEqual((small.status, small.phy_offset), (PutStatus.PUT_OK, end))
        box.disk.recover()
        box.run(1)
        result = box.put(big)[0]
        self.assertEqual((result.status, result.phy_offset), (PutStatus.PUT_OK, 16384))
        self.assertEqual(result.queue_offset, small.queue_offset + 1)
        store = box.reopen("kill")
        self.assertEqual(store.end_offset, result.next_offset)

    def test_a_file_without_room_is_asked_for_once_a_second(self) -> None:
        """Reserving a file on a full disk can take long: not every put tries, and what fits is taken meanwhile."""
        box = Box()
        store = box.open()
        box.put_many(80)
        tried: list[str] = []
        reasons = set()

        def refuse(disk: object, path: str, inode: object, size: int) -> None:
            tried.append(path)
            raise DiskFull(path, "No space left on device")

        self.patch(type(box.disk), "reserve", refuse)
        big = message(0, body=b"x" * 8000)
        batch = [BatchEntry(b"x" * 8000, "")]
        for seconds in range(1, 4):
            for _ in range(5):
                self.assertIs(box.put(big)[0].status, PutStatus.CREATE_MAPPED_FILE_FAILED)
                refused = store.put_batch(message(0, properties=""), batch)
                assert isinstance(refused, PutResult)
                self.assertIs(refused.status, PutStatus.CREATE_MAPPED_FILE_FAILED)
                reasons.add(store.refuses_because)
                self.assertIs(box.put(message(0))[0].status, PutStatus.PUT_OK)
            self.assertIn(len(tried), (seconds, seconds + 1), "one of them ahead of time")
            box.run(1)
        self.assertIn(f"{tried[0]}: No space left on device; 16384 bytes are needed (mappedFileSizeCommitLog)", reasons)

    def test_room_for_the_next_file_again(self) -> None:
        """Refusals for want of the next file end when there is room for it, also if no message comes that finds it."""
        box = Box()
        store = box.open()
        box.put_many(80)

        def refuse(disk: object, path: str, inode: object, size: int) -> None:
            raise DiskFull(path, "No space left on device")

        full = self.patch(type(box.disk), "reserve", refuse)
        self.assertIs(box.put(message(0, body=b"x" * 8000))[0].status, PutStatus.CREATE_MAPPED_FILE_FAILED)
        for _ in range(3):
            self.assertFalse(store.is_writable)
            self.assertIn("No space left on device", str(store.health().refuses_because))
            box.run(20)
        full.restore()
        box.run(20)
        self.assertTrue(store.is_writable)
        self.assertIsNone(store.health().refuses_because)
        self.assertIs(box.put(message(0, body=b"x" * 8000))[0].status, PutStatus.PUT_OK)

    def test_a_next_file_needs_no_second_open(self) -> None:
        """Out of file descriptors at the end of a file: that put is refused at most, and later ones go on."""
        box = Box()
        store = box.open()
        opened = self.patch(type(box.disk), "open", self.no_more_files)
        results = [store.put(message(number)) for number in range(200)]
        opened.restore()
        results += box.put_many(100, 200)
        self.assertEqual({one.status for one in results if isinstance(one, PutResult)}, {PutStatus.PUT_OK})
        self.assertEqual(sum(len(records) for records in all_records(store).values()), 300)

    @staticmethod
    def no_more_files(disk: object, path: str) -> File:
        """What `open` does when the process has no descriptor left."""
        raise DiskError(path, "Too many open files")

    def test_blocks_are_reserved(self) -> None:
        """Once a file is there, a full disk cannot stop a message that fits it."""
        box = Box()
        store = box.open()
        box.put_many(1)
        box.disk.capacity_bytes -= store.disk_usage.free_bytes
        for result in box.put_many(60, 1):
            self.assertIs(result.status, PutStatus.PUT_OK)

    def test_queues_without_room(self) -> None:
        """Messages are refused while consume queues cannot be written, and nothing is missing afterwards."""
        box = Box()
        store = box.open()
        box.put_many(60)
        box.disk.capacity_bytes -= store.disk_usage.free_bytes
        box.run(1.5)
        self.assertIs(box.put(message(60))[0].status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual(sum(len(found) for found in all_records(store).values()), 60)
        box.disk.recover()
        box.run(1.5)
        self.assertIs(box.put(message(60))[0].status, PutStatus.PUT_OK)
        store = box.reopen("stop")
        self.assertEqual(sum(len(found) for found in all_records(store).values()), 61)

    def test_limits_name_path_and_key(self) -> None:
        """Above diskSpaceWarningLevelRatio puts are refused until there is room, and the log says why."""
        box = Box()
        store = box.open()
        box.put_many(1)
        used = box.disk.capacity_bytes - store.disk_usage.free_bytes
        box.disk.capacity_bytes = used * 100 // 95
        events = log_events(self)
        box.run(11)
        self.assertIs(box.put(message(0))[0].status, PutStatus.SERVICE_NOT_AVAILABLE)
        found = [event for event in events if "diskSpaceWarningLevelRatio" in event["log_format"]]
        self.assertEqual([event["path"] for event in found], [f"{ROOT}/commitlog", f"{ROOT}/consumequeue"])
        self.assertEqual([event["limit_percent"] for event in found], [90, 90])
        box.disk.recover()
        box.run(11)
        self.assertIs(box.put(message(0))[0].status, PutStatus.PUT_OK)


class SyncFlushTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.box = Box(**SYNC)
        self.store = self.box.open()

    def test_answer_after_the_sync(self) -> None:
        """The producer is answered, and consumers see the message, when it is on disk, not before."""
        answer = self.store.put(message(0))
        assert isinstance(answer, Deferred)
        self.assertNoResult(answer)
        self.assertEqual((self.store.flushed_offset, self.store.max_offset("Topic", 0)), (0, 0))
        self.assertIs(self.box.world.settle(answer).status, PutStatus.PUT_OK)
        self.assertEqual(self.store.flushed_offset, self.store.end_offset)
        self.assertEqual(self.store.max_offset("Topic", 0), 1)

    def test_one_sync_for_many(self) -> None:
        """All that came during a sync are answered by the next one, in the order of the log."""
        answered: list[int] = []
        for number in range(50):
            answer = self.store.put(message(number))
            assert isinstance(answer, Deferred)
            answer.addCallback(lambda result: answered.append(result.phy_offset))
        before = self.box.world.trace.count
        self.box.world.run_until(lambda: len(answered) == 50)
        self.assertEqual(answered, sorted(answered))
        syncs = [line for line in list(self.box.world.trace.tail)[before:] if " disk sync /store/commitlog" in line]
        self.assertEqual(len(syncs), 2)

    def test_put_during_a_sync(self) -> None:
        """What comes during a sync is answered by the next one, which begins at once, not with the next interval."""
        self.box.disk.sync_s = (0.005, 0.005)
        first = self.store.put(message(0))
        self.box.run(0.002)
        second = self.store.put(message(1))
        assert isinstance(first, Deferred) and isinstance(second, Deferred)
        self.box.run(0.004)
        self.assertIs(self.successResultOf(first).status, PutStatus.PUT_OK)
        self.assertNoResult(second)
        self.box.run(0.005)
        self.assertIs(self.successResultOf(second).status, PutStatus.PUT_OK)

    def test_over_the_end_of_a_file(self) -> None:
        """A wait that spans two files is over when both are on disk."""
        results = self.box.put_many(150)
        self.assertTrue(all(result.status is PutStatus.PUT_OK for result in results))
        self.box.crash()
        self.store = self.box.open()
        self.assertEqual(sum(len(found) for found in all_records(self.store).values()), 150)

    def test_slow_disk(self) -> None:
        """A sync that takes too long is answered at syncFlushTimeout; the message is in the log all the same."""
        self.box.disk.sync_s = (20.0, 20.0)
        answer = self.store.put(message(0))
        assert isinstance(answer, Deferred)
        self.box.run(4.9)
        self.assertNoResult(answer)
        self.box.run(0.2)
        self.assertIs(self.successResultOf(answer).status, PutStatus.FLUSH_DISK_TIMEOUT)
        self.box.run(20)
        self.assertEqual(self.store.max_offset("Topic", 0), 1)

    def test_each_has_its_own_deadline(self) -> None:
        """A later put times out later."""
        self.box.disk.sync_s = (60.0, 60.0)
        first = self.store.put(message(0))
        self.box.run(2)
        second = self.store.put(message(1))
        assert isinstance(first, Deferred) and isinstance(second, Deferred)
        self.box.run(3.1)
        self.assertIs(self.successResultOf(first).status, PutStatus.FLUSH_DISK_TIMEOUT)
        self.assertNoResult(second)
        self.box.run(2)
        self.assertIs(self.successResultOf(second).status, PutStatus.FLUSH_DISK_TIMEOUT)

    def test_producer_that_does_not_wait(self) -> None:
        """WAIT=false is answered at once and synced all the same."""
        self.assertIsInstance(self.store.put(message(0, wait_store_msg_ok=False)), PutResult)
        self.box.run(1)
        self.assertEqual(self.store.flushed_offset, self.store.end_offset)
        self.assertEqual(self.store.max_offset("Topic", 0), 1)

    def test_failed_sync_ends_it(self) -> None:
        """After a failed sync nobody is told that a message is safe, puts are refused, and the broker hears of it."""
        heard: list[bool] = []
        self.store.on_failure(lambda: heard.append(True))
        self.box.put_many(2)
        self.box.disk.fail_syncs = 1
        (result,) = self.box.put(message(2))
        self.assertIs(result.status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual(heard, [True])
        self.assertIs(self.box.put(message(3))[0].status, PutStatus.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.store.max_offset("Topic", 2), 0)
        self.box.run(20)
        self.box.stop()
        self.assertTrue(self.box.disk.exists(f"{ROOT}/abort"))
        self.store = self.box.open()
        self.assertIs(self.box.put(message(3))[0].status, PutStatus.PUT_OK)

    def test_too_many_wait(self) -> None:
        """When as many wait as may wait, the next put is refused at once and leaves no trace."""
        self.store._completion._waiters._limit = 3
        self.box.disk.sync_s = (1.0, 1.0)
        waiting = [self.store.put(message(number)) for number in range(3)]
        end = self.store.end_offset
        for refused in (self.store.put(message(3)), self.store.put_batch(message(3), [BatchEntry(b"x", "")])):
            assert isinstance(refused, PutResult)
            self.assertIs(refused.status, PutStatus.OS_PAGE_CACHE_BUSY)
        self.assertEqual(self.store.end_offset, end)
        self.box.run(5)
        self.assertTrue(all(isinstance(one, Deferred) and one.called for one in waiting))
        self.assertIs(self.box.put(message(3))[0].status, PutStatus.PUT_OK)

    def test_stop_answers_everybody(self) -> None:
        """A clean stop syncs what waits, and answers it."""
        answers = [self.store.put(message(number)) for number in range(5)]
        self.box.stop()
        for answer in answers:
            assert isinstance(answer, Deferred)
            self.assertIs(self.successResultOf(answer).status, PutStatus.PUT_OK)


class Slaves:
    """Slaves that answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.answer: PutStatus | Deferred[PutStatus] = PutStatus.PUT_OK

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        self.asked.append((next_offset, deadline_ms))
        return self.answer


class Waiting:
    """Somebody who waits without a Deferred."""

    def __init__(self, answered: list[Waiting], end: int) -> None:
        self.answered = answered
        self.end = end
        self.status: PutStatus | None = None

    def callback(self, status: PutStatus) -> None:
        assert self.status is None, "answered twice"
        self.status = status
        self.answered.append(self)


class SyncMasterTests(SynchronousTestCase):
    def test_without_slaves(self) -> None:
        """A SYNC_MASTER without any replication answers SLAVE_NOT_AVAILABLE; the message is stored."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER)
        store = box.open()
        (result,) = box.put(message(0))
        self.assertIs(result.status, PutStatus.SLAVE_NOT_AVAILABLE)
        self.assertTrue(result.ok)
        self.assertEqual(store.max_offset("Topic", 0), 1)

    def test_slaves_are_asked_with_offset_and_deadline(self) -> None:
        """Slaves are asked for the end of the record, until slaveTimeout after the put; not when nobody waits."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER, slave_timeout=1234)
        store = box.open()
        store.replication = slaves = Slaves()
        (result,) = box.put(message(0))
        assert box.node.process is not None
        self.assertEqual(slaves.asked, [(result.next_offset, steady_ms(box.node.process) + 1234)])
        box.put(message(1, wait_store_msg_ok=False))
        self.assertEqual(len(slaves.asked), 1)

    def test_both_are_waited_for(self) -> None:
        """With SYNC_FLUSH the answer comes when disk and slave have it, whichever is last."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER, **SYNC)
        store = box.open()
        store.replication = slaves = Slaves()
        slaves.answer = Deferred()
        answer = store.put(message(0))
        assert isinstance(answer, Deferred)
        box.run(1)
        self.assertNoResult(answer)
        slaves.answer.callback(PutStatus.PUT_OK)
        self.assertIs(self.successResultOf(answer).status, PutStatus.PUT_OK)

    def test_slave_wins(self) -> None:
        """When both fail the answer is what the slaves say."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER, **SYNC)
        store = box.open()
        store.replication = slaves = Slaves()
        box.disk.sync_s = (20.0, 20.0)
        slaves.answer = PutStatus.FLUSH_SLAVE_TIMEOUT
        (result,) = box.put(message(0))
        self.assertIs(result.status, PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_those_who_wait_together(self) -> None:
        """
        One alone asks at once; while it waits, those of one turn ask once, for the last of them, in the order of the
        log, and apart where a file begins.
        """
        box = Box(broker_role=BrokerRole.SYNC_MASTER)
        store = box.open()
        store.replication = slaves = Slaves()
        answered: list[Waiting] = []

        def put() -> int:
            end = append(store, message(0))
            store.wait_for(end, Waiting(answered, end))
            return end

        waits: Deferred[PutStatus] = Deferred()
        slaves.answer = waits
        alone = put()
        slaves.answer = PutStatus.PUT_OK
        first, second = put(), put()
        self.assertEqual(([end for end, _ in slaves.asked], answered), ([alone], []))
        box.run(0.1)
        self.assertEqual([end for end, _ in slaves.asked], [alone, second])
        self.assertEqual(
            [(each.end, each.status) for each in answered], [(end, PutStatus.PUT_OK) for end in (first, second)]
        )
        third = put()
        (other,) = box.put(message(1))
        box.run(0.1)
        self.assertEqual([end for end, _ in slaves.asked], [alone, second, third, other.next_offset])
        while (last := put()) < 16384:
            before = last
        self.assertEqual(slaves.asked[-1][0], before)
        box.run(0.1)
        self.assertEqual(slaves.asked[-1][0], last)
        self.assertEqual([each.end for each in answered], sorted(each.end for each in answered))
        put()
        box.world.settle(store.stop())
        self.assertGreater(answered[-1].end, last, "one was not answered")
        waits.callback(PutStatus.PUT_OK)
        self.assertEqual((answered[-1].end, answered[-1].status), (alone, PutStatus.PUT_OK))

    def test_slaves_are_asked_in_the_order_of_the_log(self) -> None:
        """A send that slaves are asked for after a later one waits for that one too: no answer overtakes another."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER)
        store = box.open()
        store.replication = slaves = Slaves()
        first = append(store, message(0))
        (second,) = box.put(message(1))
        store.wait_for(first, Waiting([], first))
        box.run(0.1)
        self.assertEqual([end for end, _ in slaves.asked], [second.next_offset, second.next_offset])

    def test_wait_for_all(self) -> None:
        """The end of the log is waited for as a put that ends there, after the sends before it; else not at all."""
        box = Box(broker_role=BrokerRole.SYNC_MASTER)
        store = box.open()
        store.replication = slaves = Slaves()
        first = append(store, message(0))
        store.wait_for(first, Waiting([], first))
        slaves.answer = PutStatus.FLUSH_SLAVE_TIMEOUT
        result = store.wait_for_all()
        assert isinstance(result, PutResult)
        self.assertIs(result.status, PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual([end for end, _ in slaves.asked], [first, store.end_offset])
        plain = Box().open().wait_for_all()
        assert isinstance(plain, PutResult)
        self.assertIs(plain.status, PutStatus.PUT_OK)

    def test_pushed_at_append(self) -> None:
        """Replication hears of every append before the answer."""
        box = Box()
        store = box.open()
        ends: list[int] = []
        store.on_appended(lambda: ends.append(store.end_offset))
        results = box.put_many(3)
        self.assertEqual(ends, [result.next_offset for result in results])
