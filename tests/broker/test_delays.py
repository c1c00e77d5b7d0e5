"""Delayed messages and retries: when they come, where, and what happens to those that fail too often."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs

from rmq.broker.delays import park
from rmq.broker.stats import BROKER_PUT_NUMS, TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
from rmq.store.messages import Message, PutResult
from rmq.wire.record import PROPERTY_DELAY, Record, decode_records
from tests.broker.harness import OneBroker, OneBrokerCase, heartbeat, pull_ext, send_ext

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class DelayCase(OneBrokerCase):
    def send(self, level: int, body: bytes = b"x", *, topic: str = "T", queue_id: int = 1) -> None:
        answer = self.client.ask(310, send_ext(topic, queue_id=queue_id, props=f"TAGS\x01a\x02DELAY\x01{level}"), body)
        self.assertEqual((answer.code, answer.ext_fields.get("queueId")), (0, str(queue_id)), answer.remark)

    def stored(self, topic: str = "T", queue_id: int = 1) -> list[Record]:
        answer = self.client.ask(11, pull_ext(topic, queue_id=queue_id))
        return decode_records(answer.body or b"")


class DeliveryTests(DelayCase):
    def test_comes_when_its_time_has_come(self) -> None:
        """A message of level 2 is with its consumers after five seconds, not before, with tags and queue kept."""
        self.send(2, b"later")
        (parked,) = self.stored(SCHEDULE, 1)
        self.assertEqual(parked.property_map["REAL_TOPIC"], "T")
        self.one.world.run_for(4.5)
        self.assertEqual(self.stored(), [])
        self.one.world.run_for(1)
        (record,) = self.stored()
        self.assertEqual((record.body, record.queue_id, record.property_map["TAGS"]), (b"later", 1, "a"))
        self.assertEqual(record.born_timestamp, parked.born_timestamp)

    def test_order_of_a_level(self) -> None:
        """Messages of one level come in the order in which they were sent."""
        for number in range(100):
            self.send(1, b"%d" % number)
        self.one.world.run_for(2)
        bodies: list[bytes] = []
        while len(bodies) < 100:
            answer = self.client.ask(11, pull_ext(queue_id=1, offset=len(bodies)))
            self.assertEqual(answer.code, 0)
            bodies += [record.body for record in decode_records(answer.body or b"")]
        self.assertEqual(bodies, [b"%d" % number for number in range(100)])

    def test_levels_do_not_wait_for_each_other(self) -> None:
        """A long delay in front does not hold up a short one behind it."""
        self.send(3, b"slow")
        self.send(1, b"quick")
        self.one.world.run_for(2)
        self.assertEqual([record.body for record in self.stored()], [b"quick"])
        self.one.world.run_for(10)
        self.assertEqual([record.body for record in self.stored()], [b"quick", b"slow"])

    def test_counts(self) -> None:
        """A delayed message counts in SCHEDULE_TOPIC_XXXX when it is sent, and in its topic when it is delivered."""
        stats = self.one.service.stats
        self.send(1)
        self.send(1)
        self.assertEqual((dict(stats.totals(TOPIC_PUT_NUMS)), stats.puts.total), ({SCHEDULE: 2}, 2))
        self.one.world.run_for(2)
        self.assertEqual((dict(stats.totals(TOPIC_PUT_NUMS)), stats.puts.total), ({SCHEDULE: 2, "T": 2}, 4))
        self.assertEqual(stats.totals(BROKER_PUT_NUMS), [("DefaultCluster", 4)])
        self.assertEqual(stats.put_bytes, self.one.service.store.end_offset)
        sizes = dict(stats.totals(TOPIC_PUT_SIZE))
        self.assertEqual(sum(sizes.values()), stats.put_bytes)

    def test_deliveries_that_do_not_count(self) -> None:
        """With enableScheduleMessageStats=false a delivered message counts where it was parked only."""
        self.one.end()
        self.one = OneBroker({"enableScheduleMessageStats": "false"})
        self.client = self.one.connect()
        self.send(1)
        self.one.world.run_for(2)
        stats = self.one.service.stats
        self.assertEqual((dict(stats.totals(TOPIC_PUT_NUMS)), stats.puts.total), ({SCHEDULE: 1}, 2))

    def test_level_beyond_the_last(self) -> None:
        """A level that does not exist means the last one, and its message says so."""
        self.send(99)
        (parked,) = self.stored(SCHEDULE, 17)
        self.assertEqual(parked.property_map["DELAY"], "18")

    def test_no_number(self) -> None:
        """A level that is no number is refused; a negative one means none."""
        answer = self.client.ask(310, send_ext(props="DELAY\x01soon"))
        self.assertEqual(answer.code, 1)
        self.assertIn("DELAY", answer.remark or "")
        self.assertEqual(self.client.ask(310, send_ext(props="DELAY\x01-1")).code, 0)
        self.assertEqual(len(self.stored(queue_id=0)), 1)

    def test_progress(self) -> None:
        """brokerStatus shows of each level how far its delivery is, and the end of its own queue."""
        self.send(3)
        self.send(3)
        self.send(1, b"first")
        self.one.world.run_for(2)
        self.send(1, b"second")
        self.assertEqual(self.one.service.delays.progress(), {1: (1, 2)})
        self.one.world.run_for(10)
        self.assertEqual(self.one.service.delays.progress(), {1: (2, 2), 3: (2, 2)})

    def test_a_store_that_answers_later(self) -> None:
        """A delivery counts when the store has answered: a stop before that repeats the message and loses none."""
        self.send(1)
        self.send(1)
        delays, store = self.one.service.delays, self.one.service.store
        delays._writes_many = False
        put, stored = store.put, list[tuple[Deferred[PutResult], PutResult]]()

        def later(message: Message) -> Deferred[PutResult]:
            result = put(message)
            assert isinstance(result, PutResult)
            stored.append((Deferred(), result))
            return stored[-1][0]

        self.patch(store, "put", later)
        for count in (1, 2):
            self.one.world.run_for(2)
            self.assertEqual(len(stored), count)
            self.assertEqual(delays.table().offset_table.get(1, 0), count - 1)
            answer, result = stored[-1]
            answer.callback(result)
        self.assertEqual(delays.table().offset_table, {1: 2})

    def test_waiting_consumer_is_woken(self) -> None:
        """A delivered message wakes who waits for it."""
        self.send(1)
        opaque = self.client.post(11, pull_ext(queue_id=1, sys_flag=6))
        before = self.one.world.now_s
        self.assertEqual(self.client.wait(opaque).code, 0)
        self.assertTrue(0.9 < self.one.world.now_s - before < 1.2)


class RestartTests(DelayCase):
    def test_restart(self) -> None:
        """What was parked before a stop is delivered after the start, and what was delivered is not again."""
        self.send(1, b"first")
        self.one.world.run_for(2)
        self.send(2, b"second")
        self.one.stop()
        self.one.world.run_for(60)
        self.one.start()
        self.client = self.one.connect()
        self.one.world.run_for(1)
        self.assertEqual([record.body for record in self.stored()], [b"first", b"second"])
        self.assertEqual(self.one.service.delays.table().offset_table, {1: 1, 2: 1})

    def test_stop_in_the_middle(self) -> None:
        """A broker that is stopped while it delivers puts nothing more into a store that is about to close."""
        for number in range(5):
            self.send(1, b"%d" % number)
        self.one.node.step_clock(10)  # all of them are due together
        delays, put = self.one.service.delays, self.one.service.store.put

        def last_put(message: Message) -> object:
            delays.stop()
            return put(message)

        self.patch(self.one.service.store, "put", last_put)
        self.one.world.run_for(3)
        self.assertEqual([record.body for record in self.stored()], [b"0"])
        self.assertEqual(delays.table().offset_table, {1: 1})

    def test_kill(self) -> None:
        """After a kill every parked message is delivered at least once."""
        for number in range(5):
            self.send(2, b"%d" % number)
        self.one.world.run_for(5.5)
        self.one.node.kill()
        self.one.start()
        self.client = self.one.connect()
        self.one.world.run_for(6)
        self.assertEqual({record.body for record in self.stored()}, {b"%d" % number for number in range(5)})


class UndeliverableTests(DelayCase):
    """Level 2, five seconds, has a message that cannot be delivered, and a good one behind it."""

    def check(self, number: int = 1) -> None:
        """The good one is delivered in time, once, and the error about the first says where that lies."""
        with self.errors() as lines:
            self.send(2, b"good", topic="Good")
            self.one.world.run_for(10)
        self.assertEqual([record.body for record in self.stored("Good")], [b"good"])
        delays = self.one.service.delays
        self.assertEqual((delays.skipped, delays.table().offset_table[2]), (number, number + 1))
        self.assertEqual(len(lines), number, lines)
        for offset, line in enumerate(lines):
            self.assertIn(f"delay level 2, queue offset {offset}: message ", line)
        self.lines = lines

    @contextmanager
    def errors(self) -> Iterator[list[str]]:
        """Collect what is logged at error or above."""
        lines: list[str] = []
        with capturedLogs() as events:
            yield lines
        for event in events:
            if event["log_level"] >= LogLevel.error:
                lines.append(event["log_format"].format(**event))

    def parked(self, topic: str) -> str:
        """Park a message as a broker would that does not look at the topic's name; return its id."""
        pairs = {PROPERTY_DELAY: "2"}
        message = Message(
            topic=topic,
            queue_id=0,
            body=b"lost",
            flag=0,
            properties="",
            sys_flag=0,
            born_timestamp=0,
            born_host=(b"\n\0\0\1", 1),
            store_host=(b"\n\0\0\1", 10911),
        )
        result = self.one.service.store.put(park(message, pairs, 2, 18))
        assert isinstance(result, PutResult) and result.ok, result
        return result.msg_ids

    def restart(self, **values: str) -> None:
        self.one.stop()
        self.one.values.update(values)
        self.one.start()
        self.client = self.one.connect()

    def test_long_topic(self) -> None:
        """A retry topic that no record holds, parked by an Apache broker or an older one of ours."""
        msg_id = self.parked("%RETRY%" + "G" * 121)
        self.check()
        for text in (msg_id, "%RETRY%GGG", "MESSAGE_ILLEGAL", "bytes of its topic: 128, body: 4"):
            self.assertIn(text, self.lines[0])

    def test_many(self) -> None:
        """A whole queue of them is passed over without a wait for each."""
        for _ in range(100):
            self.parked("%RETRY%" + "G" * 200)
        self.check(100)

    def test_parked_in_the_moment_of_a_look(self) -> None:
        """A message that is parked in the millisecond in which its level is looked at has its whole delay, too."""
        self.parked("Good")
        self.one.service.delays.start()
        self.one.world.run_for(4.5)
        self.assertEqual(self.one.service.store.max_offset("Good", 0), 0)
        self.one.world.run_for(1)
        self.assertEqual(self.one.service.store.max_offset("Good", 0), 1)

    def test_too_large_by_now(self) -> None:
        """A message that was acknowledged before maxMessageSize was lowered is delivered."""
        self.send(2, b"x" * 200_000, topic="Big")
        self.restart(maxMessageSize="100000")
        self.one.world.run_for(10)
        store = self.one.service.store
        self.assertEqual((store.max_offset("Big", 1), self.one.service.delays.skipped), (1, 0))

    def test_forbidden_topic(self) -> None:
        """One that would be parked again, for ever."""
        self.parked("SCHEDULE_TOPIC_XXXX")
        self.check()
        self.assertIn("REAL_TOPIC", self.lines[0])

    def test_damaged(self) -> None:
        """A record whose body is not what was stored."""
        self.send(2, b"damaged")
        path = "/store/commitlog/" + "0" * 20
        self.one.node.disk.flip_bit(path, self.one.node.disk.peek(path, 0, 1000).index(b"damaged"))
        self.check()
        self.assertIn("CRC", self.lines[0])

    def test_offset_beyond_the_queue(self) -> None:
        """A delayOffset.json that is ahead of the queue, as after a lost log, is corrected; the next message comes."""
        self.one.stop()
        self.one.node.disk.write_atomic("/store/config/delayOffset.json", b'{"offsetTable":{2:9}}')
        self.one.start()
        self.client = self.one.connect()
        self.send(2, b"good")
        self.one.world.run_for(20)
        self.assertEqual(self.one.service.delays.table().offset_table, {2: 1})
        self.send(2, b"next")
        self.one.world.run_for(6)
        self.assertEqual(self.stored()[-1].body, b"next")

    def test_expired(self) -> None:
        """A message whose log file was deleted before its delay ended holds up no other one of its level."""
        self.send(2, b"expired")
        store = self.one.service.store
        end = store.end_offset
        self.send(2, b"good")
        queue = store._queues.get(SCHEDULE, 1)
        assert queue is not None
        queue.correct_min(end)
        self.one.world.run_for(6)
        self.assertEqual([record.body for record in self.stored()], [b"good"])

    def test_refusals_that_pass(self) -> None:
        """What the store refuses for now, because its disk is full, is tried until it is taken."""
        self.send(2, b"waits")
        self.one.node.disk.fill()
        self.one.world.run_for(60)
        self.assertEqual((self.stored(), self.one.service.delays.skipped), ([], 0))
        self.one.node.disk.recover()
        self.one.world.run_for(60)
        self.assertEqual([record.body for record in self.stored()], [b"waits"])


class SlaveTests(DelayCase):
    values = {"brokerRole": "SLAVE", "brokerId": "1"}

    def test_a_slave_delivers_nothing(self) -> None:
        """Delivery is the master's; a slave has no timer for it and writes no delay offsets."""
        self.one.world.run_for(30)
        self.assertFalse(self.one.node.disk.exists("/store/config/delayOffset.json"))


class SendBackTests(DelayCase):
    def back(
        self, offset: int, *, level: int = 0, group: str = "CG", version: int = 409, **more: str
    ) -> tuple[int, str | None]:
        ext = {"offset": str(offset), "group": group, "delayLevel": str(level), "originMsgId": "x", "originTopic": "T"}
        answer = self.client.ask(36, ext | more, version=version)
        return answer.code, answer.remark

    def test_larger_than_allowed_by_now(self) -> None:
        """A message that was taken before maxMessageSize was lowered can still be given back, and comes again."""
        self.client.ask(310, send_ext(props="UNIQ_KEY\x01U"), b"x" * 200_000)
        self.one.stop()
        self.one.values["maxMessageSize"] = "100000"
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual(self.back(0), (0, None))
        self.one.world.run_for(11)
        self.assertEqual(len(self.stored("%RETRY%CG", 0)), 1)

    def test_retry(self) -> None:
        """A message given back comes again after ten seconds in the group's retry topic, one try older."""
        self.client.ask(310, send_ext(props="KEYS\x01k\x02UNIQ_KEY\x01U"), b"again")
        self.assertEqual(self.back(0), (0, None))
        self.one.world.run_for(9)
        self.assertEqual(self.stored("%RETRY%CG", 0), [])
        self.one.world.run_for(2)
        (record,) = self.stored("%RETRY%CG", 0)
        self.assertEqual((record.body, record.reconsume_times), (b"again", 1))
        properties = record.property_map
        self.assertEqual(properties["RETRY_TOPIC"], "T")
        self.assertEqual(properties["ORIGIN_MESSAGE_ID"], "0A00000100002A9F0000000000000000")
        self.assertEqual((properties["KEYS"], properties["UNIQ_KEY"]), ("k", "U"))

    def test_counts(self) -> None:
        """What is given back counts where it waits, and in the retry topic when it comes again."""
        self.client.ask(310, send_ext())
        self.assertEqual(self.back(0), (0, None))
        stats = self.one.service.stats
        waits = {"T": 1, SCHEDULE: 1}
        self.assertEqual(dict(stats.totals(TOPIC_PUT_NUMS)), waits)
        self.assertEqual(stats.totals(BROKER_PUT_NUMS), [("DefaultCluster", 1)])
        self.one.world.run_for(11)
        self.assertEqual(dict(stats.totals(TOPIC_PUT_NUMS)), waits | {"%RETRY%CG": 1})
        self.assertEqual((stats.puts.total, stats.put_bytes), (3, self.one.service.store.end_offset))

    def test_second_retry_keeps_its_origin(self) -> None:
        """Topic and id of the first try stay; the next delay is longer."""
        self.client.ask(310, send_ext())
        self.back(0)
        self.one.world.run_for(11)
        (first,) = self.stored("%RETRY%CG", 0)
        self.back(first.phy_offset)
        self.assertEqual(len(self.stored(SCHEDULE, 3)), 1)
        self.one.world.run_for(31)
        second = self.stored("%RETRY%CG", 0)[1]
        self.assertEqual(second.reconsume_times, 2)
        self.assertEqual(second.property_map["RETRY_TOPIC"], "T")
        self.assertEqual(second.property_map["ORIGIN_MESSAGE_ID"], first.property_map["ORIGIN_MESSAGE_ID"])

    def test_own_delay(self) -> None:
        """The consumer may choose the delay."""
        self.client.ask(310, send_ext())
        self.back(0, level=1)
        self.one.world.run_for(1.5)
        self.assertEqual(len(self.stored("%RETRY%CG", 0)), 1)

    def test_dead_letters(self) -> None:
        """A negative level, or too many tries, means the dead-letter topic, at once."""
        self.client.ask(310, send_ext(j="0"), b"one")
        self.assertEqual(self.back(0, level=-1), (0, None))
        self.assertEqual(self.back(0, maxReconsumeTimes="0"), (0, None))
        self.assertEqual([record.body for record in self.stored("%DLQ%CG", 0)], [b"one", b"one"])
        self.assertEqual(self.back(0, maxReconsumeTimes="0", version=120), (0, None))
        self.assertEqual(len(self.stored("%DLQ%CG", 0)), 2)

    def test_refusals(self) -> None:
        """A message that is not there is refused; so is everything on a broker that may not be written."""
        self.assertEqual(self.back(99999999), (1, "look message by offset failed, 99999999"))
        self.client.ask(310, send_ext())
        self.client.ask(200, {}, b'{"groupName":"None","retryQueueNums":0}')
        self.assertEqual(self.back(0, group="None"), (0, None))
        self.client.ask(25, {}, b"brokerPermission=4")
        self.assertEqual(self.back(0)[0], 16)

    def test_names_that_no_topic_can_have(self) -> None:
        """A group whose retry topic no record holds hears so, and nothing is parked: the consumer keeps the message."""
        self.client.ask(310, send_ext())
        self.client.ask(200, {}, b'{"groupName":"a/b"}')
        for group, remark in (
            ("G" * 121, "The specified topic is longer than topic max length."),
            ("G" * 255, "The specified topic is longer than topic max length."),
            ("a/b", "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ):
            # A heartbeat makes the topic, whatever its name.
            for _ in range(2):
                self.assertEqual(self.back(0, group=group), (1, remark))
                self.assertEqual(self.back(0, group=group, level=-1), (1, remark))
                self.client.ask(34, None, heartbeat("c", group, "T"))
        self.assertEqual(self.stored(SCHEDULE, 2), [])
        longest = "G" * 120
        self.assertEqual(self.back(0, group=longest), (0, None))
        self.one.world.run_for(11)
        self.assertEqual(len(self.stored("%RETRY%" + longest, 0)), 1)

    def many_back(self) -> dict[int, int]:
        """Give a message back 40 times; return how many copies each queue of the retry topic got."""
        self.client.ask(310, send_ext())
        for _ in range(40):
            self.assertEqual(self.back(0, level=1), (0, None))
        self.one.world.run_for(3)
        ends = {queue_id: self.one.service.store.max_offset("%RETRY%CG", queue_id) for queue_id in range(9)}
        return {queue_id: end for queue_id, end in ends.items() if end}

    def set_retry_topic(self, read: int, write: int) -> None:
        ext = {"topic": "%RETRY%CG", "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        ext |= {"readQueueNums": str(read), "writeQueueNums": str(write), "order": "false"}
        self.assertEqual(self.client.ask(17, ext).code, 0)

    def test_more_retry_queues_than_the_topic_has(self) -> None:
        """retryQueueNums raised after the retry topic was made: all retries go where they can be pulled."""
        self.client.ask(34, None, heartbeat("c", "CG", "T"))
        self.client.ask(200, {}, b'{"groupName":"CG","retryQueueNums":8}')
        self.assertEqual(self.many_back(), {0: 40})
        self.assertEqual(len(self.stored("%RETRY%CG", 0)), 32)

    def test_all_retry_queues_are_used(self) -> None:
        """Retries go to as many queues as the group wants, and as can be written and read."""
        self.client.ask(200, {}, b'{"groupName":"CG","retryQueueNums":4}')
        for read, write, queues in ((4, 4, 4), (8, 8, 4), (8, 3, 3), (2, 8, 2)):
            self.set_retry_topic(read, write)
            self.assertEqual(set(self.many_back()), set(range(queues)))
            self.client.ask(215, {"topic": "%RETRY%CG"})

    def test_no_retry_queue(self) -> None:
        """A retry topic without a queue that can be written and read refuses; the consumer keeps the message."""
        self.client.ask(310, send_ext())
        for read, write in ((0, 4), (4, 0)):
            self.set_retry_topic(read, write)
            self.assertEqual(self.back(0), (1, "topic[%RETRY%CG] has no queue to write to"))
        self.assertEqual(self.back(0, level=-1), (0, None))
