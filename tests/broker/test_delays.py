"""Delayed messages and retries: when they come, where, and what happens to those that fail too often."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.record import Record, decode_records
from tests.broker.harness import OneBroker, pull_ext, send_ext

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class DelayCase(SynchronousTestCase):
    values: dict[str, str] = {}

    def setUp(self) -> None:
        self.one = OneBroker(self.values)
        self.client = self.one.connect()

    def tearDown(self) -> None:
        self.one.end()

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

    def test_level_beyond_the_last(self) -> None:
        """A level that does not exist means the last one."""
        self.send(99)
        self.assertEqual(len(self.stored(SCHEDULE, 17)), 1)

    def test_no_number(self) -> None:
        """A level that is no number is refused; a negative one means none."""
        answer = self.client.ask(310, send_ext(props="DELAY\x01soon"))
        self.assertEqual(answer.code, 1)
        self.assertIn("DELAY", answer.remark or "")
        self.assertEqual(self.client.ask(310, send_ext(props="DELAY\x01-1")).code, 0)
        self.assertEqual(len(self.stored(queue_id=0)), 1)

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
        self.assertEqual(self.one.state.delays.table().offset_table, {1: 1, 2: 1})

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
