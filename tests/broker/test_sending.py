"""Sends as clients see them: what is accepted, where it lands, what is refused and how."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.broker.topics import topic
from rmq.wire.api.sending import SEND_V2_LETTERS
from rmq.wire.command import RemotingCommand
from rmq.wire.record import TIMER_PROPERTIES, BatchEntry, Record, decode_records, encode_batch
from tests.broker.harness import PORT, OneBrokerCase, RawClient, pull_ext, send_ext

LONG_NAMES = {
    letter: "".join([field.split("_")[0], *(part.capitalize() for part in field.split("_")[1:])])
    for field, letter in SEND_V2_LETTERS.items()
}
EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def long_named(ext: Mapping[str, str]) -> dict[str, str]:
    return {LONG_NAMES.get(key, key): value for key, value in ext.items()}


class SendCase(OneBrokerCase):
    def send(
        self, ext: Mapping[str, str], body: bytes = b"x", *, code: int = 310, version: int = 409
    ) -> RemotingCommand:
        return self.client.ask(code, ext, body, version=version)

    def stored(self, topic: str, queue_id: int = 0, client: RawClient | None = None) -> list[Record]:
        """Return what a consumer gets from a queue."""
        answer = (client or self.client).ask(11, pull_ext(topic, queue_id=queue_id))
        return decode_records(answer.body or b"")

    def refused(self, answer: RemotingCommand, code: int, text: str) -> None:
        """Refusals carry region and trace switch, too."""
        self.assertEqual((answer.code, dict(answer.ext_fields)), (code, EXT), answer.remark)
        self.assertIn(text, answer.remark or "")


class SingleTests(SendCase):
    def test_answer_and_record(self) -> None:
        """The answer says where the message is; a consumer finds it there with everything the producer gave."""
        answer = self.send(send_ext(queue_id=2, props="TAGS\x01a\x02KEYS\x01k1 k2\x02WAIT\x01true\x02", h="7"), b"body")
        self.assertEqual(
            answer.ext_fields,
            EXT | {"msgId": "0A000001" + "00002A9F" + "0" * 16, "queueId": "2", "queueOffset": "0"},
        )
        (record,) = self.stored("T", 2)
        self.assertEqual(record.offset_msg_id, answer.ext_fields["msgId"])
        self.assertEqual((record.topic, record.queue_id, record.flag, record.body), ("T", 2, 7, b"body"))
        self.assertEqual(record.born_timestamp, 1700000000000)
        self.assertEqual(record.born_host[0], bytes([10, 0, 0, 2]))
        self.assertEqual(record.store_host, (bytes([10, 0, 0, 1]), PORT))
        self.assertEqual(record.property_map, {"TAGS": "a", "KEYS": "k1 k2", "CLUSTER": "DefaultCluster"})

    def test_key_set_is_found_by_its_keys(self) -> None:
        """Long and short field names work with each code."""
        for code in (10, 310):
            for ext in (send_ext(), long_named(send_ext())):
                self.assertEqual(self.send(ext, code=code).code, 0)
        self.assertEqual(len(self.stored("T")), 4)

    def test_missing_and_wrong_fields(self) -> None:
        """The refusal names the field."""
        without_topic = send_ext()
        del without_topic["b"]
        self.assertEqual(self.send(without_topic).remark, "the custom field <b> is null")
        wrong = self.send(send_ext(e="zero"))
        self.assertEqual(wrong.code, 1)
        self.assertIn("<e>", wrong.remark or "")

    def test_the_broker_chooses_a_queue(self) -> None:
        """A negative queue id means any write queue; the answer says which."""
        seen = {self.send(send_ext(queue_id=-1)).ext_fields["queueId"] for _ in range(60)}
        self.assertEqual(seen, {"0", "1", "2", "3"})

    def test_topic_without_write_queues(self) -> None:
        """Where there is no queue to write to, none is made up."""
        self.send(send_ext("None", d="0"))
        answer = self.send(send_ext("None", queue_id=-1))
        self.refused(answer, 1, "topic[None] has no queue to write to")

    def test_offsets_count_per_queue(self) -> None:
        """Each queue has its own numbers without holes."""
        offsets = [self.send(send_ext(queue_id=number % 2)).ext_fields["queueOffset"] for number in range(6)]
        self.assertEqual(offsets, ["0", "0", "1", "1", "2", "2"])

    def test_queue_id_beyond_the_topic(self) -> None:
        """A queue that does not exist is refused, with the topic's configuration in the remark."""
        self.send(send_ext())
        self.refused(
            self.send(send_ext(e="4")), 1, "request queueId[4] is illegal, TopicConfig [topicName=T, readQueueN"
        )

    def test_names_that_no_topic_has(self) -> None:
        """Blank, illegal, long and reserved names are told apart."""
        self.refused(self.send(send_ext(" ")), 1, "The specified topic is blank.")
        self.refused(self.send(send_ext("a b")), 1, "illegal characters")
        self.refused(self.send(send_ext("t" * 128)), 1, "longer than topic max length")
        self.refused(self.send(send_ext("OFFSET_MOVED_EVENT")), 16, "Sending message to topic[OFFSET_MOVED_EVENT]")
        self.assertEqual(self.send(send_ext("t" * 127)).code, 0)

    def test_automatic_topic(self) -> None:
        """An unknown topic gets as many queues as the producer wishes, at most the template's, and no inherit bit."""
        self.send(send_ext("Few", d="2"))
        self.send(send_ext("Many", d="100"))
        few, many = self.one.service.topics.get("Few"), self.one.service.topics.get("Many")
        assert few is not None and many is not None
        self.assertEqual((few.write_queue_nums, few.read_queue_nums, few.perm), (2, 2, 6))
        self.assertEqual(many.write_queue_nums, 8)

    def test_no_template(self) -> None:
        """Without its template an unknown topic stays unknown."""
        self.refused(
            self.send(send_ext("Nowhere", c="NoDefault")), 17, "topic[Nowhere] not exist, apply first please!\nSee http"
        )

    def test_one_way(self) -> None:
        """A one-way send is stored and never answered."""
        opaque = self.client.tell(310, send_ext(), b"quiet")
        self.one.world.run_for(2)
        self.assertIsNone(self.client.answer(opaque))
        self.assertEqual([record.body for record in self.stored("T")], [b"quiet"])

    def test_too_long(self) -> None:
        """A body or properties beyond the limits are illegal; nothing of them is stored."""
        self.refused(self.send(send_ext(), b"x" * (4194304 + 1)), 13, "msg body length limit 4194304B")
        self.refused(self.send(send_ext(props="K\x01" + "v" * 32768)), 13, "msg properties length limit 32KB.")
        self.assertEqual(self.stored("T"), [])

    def test_empty_body(self) -> None:
        """A message may be nothing but its properties."""
        self.assertEqual(self.send(send_ext(), b"").code, 0)
        self.assertEqual([record.body for record in self.stored("T")], [b""])

    def test_multi_tag_topic(self) -> None:
        """Messages of a multi-tag topic are marked so."""
        self.client.ask(
            17,
            {
                "topic": "M",
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "6",
                "topicFilterType": "MULTI_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
        self.send(send_ext("M"))
        self.assertEqual([record.sys_flag & 2 for record in self.stored("M")], [2])

    def test_compressed_bodies_pass_untouched(self) -> None:
        """Whatever the compression says, the broker keeps the bytes and the flag."""
        self.send(send_ext(f=str(0x301)), b"\x78\x9c not really")
        (record,) = self.stored("T")
        self.assertEqual((record.body, record.sys_flag), (b"\x78\x9c not really", 0x301))

    def test_times_of_5_x(self) -> None:
        """What only 5.x's timer can keep is refused, not delivered at once; a delay level comes before it, as there."""
        for _ in range(2):  # from then on the fast path has the topic
            self.send(send_ext())
        for name in TIMER_PROPERTIES:
            answer = self.send(send_ext(props=f"{name}\x015000\x02"), b"late")
            self.assertEqual(answer.code, 1)
            self.assertIn(f"timerWheelEnable is false: {name}", answer.remark or "")
        self.assertEqual(len(self.stored("T")), 2)
        self.assertEqual(self.send(send_ext(props="TIMER_DELAY_MS\x015000\x02DELAY\x011"), b"late").code, 0)
        self.assertEqual(self.send(send_ext("%RETRY%g", props="TIMER_DELAY_MS\x015000\x02"), b"tried").code, 0)


class RetryTests(SendCase):
    def test_retry_topic_needs_a_group(self) -> None:
        """Groups that may not exist take no retries; others come into being."""
        answer = self.send(send_ext("%RETRY%new group"))
        self.assertEqual(answer.code, 1)
        self.assertEqual(self.send(send_ext("%RETRY%new_group", c="none")).code, 0)
        topic = self.one.service.topics.get("%RETRY%new_group")
        assert topic is not None
        self.assertEqual((topic.write_queue_nums, topic.perm), (1, 6))
        self.assertIsNotNone(self.one.service.groups.get("new_group"))

    def test_tried_often_enough(self) -> None:
        """The seventeenth try of a message goes to the dead-letter topic, at once and whatever its delay."""
        self.assertEqual(self.send(send_ext("%RETRY%g", j="15"), b"alive").code, 0)
        self.assertEqual(self.send(send_ext("%RETRY%g", j="16", props="DELAY\x013"), b"dead").code, 0)
        self.assertEqual([record.body for record in self.stored("%RETRY%g")], [b"alive"])
        (dead,) = self.stored("%DLQ%g")
        self.assertEqual((dead.body, dead.reconsume_times), (b"dead", 16))

    def test_the_client_s_own_limit(self) -> None:
        """Clients since 3.4.9 may say themselves how often is enough."""
        self.send(send_ext("%RETRY%g", j="2", l="2"), b"dead")
        self.assertEqual([record.body for record in self.stored("%DLQ%g")], [b"dead"])
        self.send(send_ext("%RETRY%g", j="2", l="2"), b"old client", version=120)
        self.assertEqual([record.body for record in self.stored("%RETRY%g")], [b"old client"])


class BatchTests(SendCase):
    def batch(self, *bodies: bytes) -> bytes:
        return encode_batch([BatchEntry(body, f"UNIQ_KEY\x01u{body.decode()}") for body in bodies])

    def test_batch(self) -> None:
        """A batch is stored in order in one queue; ids come joined, the offset is the first one's."""
        self.send(send_ext())
        for code, ext in ((320, send_ext(m="true")), (310, send_ext(m="true")), (320, send_ext())):
            answer = self.send(ext, self.batch(b"1", b"2", b"3"), code=code)
            self.assertEqual(answer.code, 0, answer.remark)
            ids = answer.ext_fields["msgId"].split(",")
            first = int(answer.ext_fields["queueOffset"])
            records = self.stored("T")[first:]
            self.assertEqual([record.offset_msg_id for record in records], ids)
            self.assertEqual([record.body for record in records], [b"1", b"2", b"3"])
            self.assertEqual(records[0].property_map, {"UNIQ_KEY": "u1", "CLUSTER": "DefaultCluster"})

    def test_batches_to_retry_and_ordered_topics(self) -> None:
        """Either form also goes to a retry topic, which it creates, and to an ordered topic, in the queue it names."""
        topics = self.one.service.topics
        topics.put(topic("Ordered", 4))
        topics.set_order_topics(["Ordered"])
        for name, queue_id in (("%RETRY%CG", 0), ("Ordered", 3)):
            header = send_ext(name, queue_id=queue_id, m="true")
            for code, ext in ((320, send_ext(name, queue_id=queue_id)), (310, header), (10, long_named(header))):
                answer = self.send(ext, self.batch(b"1", b"2"), code=code)
                self.assertEqual((answer.code, len(answer.ext_fields["msgId"].split(","))), (0, 2), answer.remark)
            self.assertEqual([record.body for record in self.stored(name, queue_id)], [b"1", b"2"] * 3)

    def test_code_10_with_a_one_is_no_batch(self) -> None:
        """librocketmq 1.x says batch=1, which Java reads as false: one message."""
        answer = self.send(long_named(send_ext(m="1")), self.batch(b"1", b"2"), code=10)
        self.assertNotIn(",", answer.ext_fields["msgId"])
        self.assertEqual(len(self.stored("T")), 1)

    def test_what_a_batch_must_not_be(self) -> None:
        """Delayed, transactional, broken and over-long batches are illegal and leave nothing behind."""
        good = self.batch(b"1", b"2")
        for ext, body in (
            (send_ext(m="true", props="DELAY\x011"), good),
            (send_ext(m="true", f="4"), good),
            (send_ext(m="true"), good[:-1]),
            (send_ext(m="true"), b"\x00" * 7),
            (send_ext(m="true"), b"x" * (4194304 + 1)),
        ):
            self.assertEqual(self.send(ext, body, code=320).code, 13)
        self.assertEqual(self.stored("T"), [])


class ClosedBrokerTests(SendCase):
    values = {"autoCreateTopicEnable": "false", "regionId": "here", "traceOn": "false"}

    def test_no_automatic_topics(self) -> None:
        """autoCreateTopicEnable=false refuses unknown topics; region and trace switch are the configured ones."""
        answer = self.send(send_ext("New"))
        self.assertEqual((answer.code, dict(answer.ext_fields)), (17, {"MSG_REGION": "here", "TRACE_ON": "false"}))


class LateBrokerTests(SendCase):
    values = {"startAcceptSendRequestTimeStamp": "1768225700000"}

    def test_not_yet(self) -> None:
        """Before its time a broker refuses sends and says until when; then it takes them."""
        self.refused(self.send(send_ext()), 1, "broker unable to service, until 2026-01-12 13:48:20,000")
        self.one.world.run_for(101)
        self.assertEqual(self.client.ask(310, send_ext()).code, 0)


class SlaveTests(SendCase):
    values = {"brokerRole": "SLAVE", "brokerId": "1"}

    def test_a_slave_takes_nothing(self) -> None:
        """Sends to a slave are refused with 14, and create no topics."""
        answer = self.send(send_ext("New"))
        self.refused(answer, 14, "messages are put to the slave")
        self.assertIsNone(self.one.service.topics.get("New"))
        self.refused(self.send(send_ext("BenchmarkTest")), 14, "messages are put to the slave")


class SyncMasterTests(SendCase):
    values = {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}

    def test_without_a_slave(self) -> None:
        """A SYNC_MASTER without slave stores the message and says 11 with the full header, at once."""
        before = self.one.world.now_s
        answer = self.send(send_ext())
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (11, "0"))
        self.assertLess(self.one.world.now_s - before, 1)

    def test_who_does_not_wait(self) -> None:
        """WAIT=false asks for no slave."""
        self.assertEqual(self.send(send_ext(props="WAIT\x01false")).code, 0)


class FullDiskTests(SendCase):
    def test_the_producer_is_told_what_is_full(self) -> None:
        """A refusal for want of room names the path, how full its disk is, the limit and the key that sets it."""
        self.assertEqual(self.send(send_ext()).code, 0)
        self.one.world.run_for(2)
        disk, store = self.one.node.disk, self.one.service.store
        before = disk.capacity_bytes
        disk.capacity_bytes = int((before - store.disk_usage.free_bytes) / 0.95)
        self.one.world.run_for(11)
        refusal = self.send(send_ext())
        self.assertEqual(refusal.code, 14)
        assert refusal.remark is not None
        self.assertIn("the broker's disk is full [CL:  0.9", refusal.remark)
        for text in ("/store/commitlog is on a disk that is 9", "more than diskSpaceWarningLevelRatio=90"):
            self.assertIn(text, refusal.remark)
        disk.capacity_bytes = before
        self.one.world.run_for(11)
        self.assertEqual(self.send(send_ext()).code, 0)


class SlowDiskTests(SendCase):
    """A disk that needs a second for each fsync."""

    def setUp(self) -> None:
        super().setUp()
        self.one.world.run_for(1)
        self.one.node.disk.sync_s = (1.0, 1.0)

    def test_a_message_that_makes_its_topic(self) -> None:
        """It is answered when its topic is durable, as are those of others that come meanwhile; they survive a kill."""
        others = self.one.connect()
        first = self.client.post(310, send_ext("New"), b"1")
        self.one.world.run_for(0.1)
        second = others.post(310, send_ext("New"), b"2")
        batch = others.post(320, send_ext("New"), encode_batch([BatchEntry(b"3", "")]))
        self.one.world.run_for(0.5)
        self.assertEqual([others.answer(each) for each in (first, second, batch)], [None] * 3)
        self.assertEqual([others.wait(each, 3).code for each in (second, batch)], [0, 0])
        self.assertEqual(self.client.wait(first, 0.1).code, 0)
        self.one.node.kill()
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual([record.body for record in self.stored("New")], [b"1", b"2", b"3"])

    def test_admins_and_others(self) -> None:
        """An admin's changes are answered when they are durable, however many at once; sends do not wait for them."""
        self.client.ask(310, send_ext())
        topic = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        topic |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
        changes = [self.client.post(17, topic | {"topic": f"T{number}"}) for number in range(100)]
        changes += [self.client.post(200, body=b'{"groupName":"g%d"}' % number) for number in range(100)]
        changes += [self.client.post(215, {"topic": "T99"}), self.client.post(207, {"groupName": "g99"})]
        self.one.world.run_for(0.5)
        self.assertEqual([self.client.answer(each) for each in changes], [None] * len(changes))
        self.assertEqual(self.client.wait(self.client.post(310, send_ext(), b"x"), 0.1).code, 0)
        self.one.world.run_for(2.5)
        answers = [self.client.answer(each) for each in changes]
        self.assertEqual({answer.code if answer else None for answer in answers}, {0})
        self.one.node.kill()
        self.one.start()
        for table, name in ((self.one.service.topics, "T"), (self.one.service.groups, "g")):
            self.assertEqual([number for number in range(100) if table.get(f"{name}{number}") is None], [99])

    def test_a_topic_that_an_admin_makes_or_changes(self) -> None:
        """Messages of others to it, also to its new queues, are answered when it is durable; they survive a kill."""
        others = self.one.connect()
        self.client.ask(310, send_ext())
        topic = {"defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        topic |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
        for name in "New", "T":
            change = self.client.post(17, topic | {"topic": name})
            self.one.world.run_for(0.1)
            sent = others.post(310, send_ext(name, queue_id=7), b"x")
            self.one.world.run_for(0.5)
            self.assertEqual((self.client.answer(change), others.answer(sent)), (None, None))
            self.assertEqual(others.wait(sent, 2).code, 0)
            self.assertEqual(self.client.wait(change, 0.1).code, 0)
            self.assertEqual(others.wait(others.post(310, send_ext(name)), 0.1).code, 0)
        self.one.node.kill()
        self.one.start()
        self.client = self.one.connect()
        for name in "New", "T":
            self.assertEqual(self.client.ask(11, pull_ext(name, queue_id=7)).code, 0)

    def test_a_dead_letter_that_makes_its_topic(self) -> None:
        """It is answered when the topic is durable, by either way of the client to send it back."""
        self.client.ask(310, send_ext())
        self.client.ask(310, send_ext("%RETRY%CG"))
        back = {"offset": "0", "group": "CG", "delayLevel": "-1", "originTopic": "T", "maxReconsumeTimes": "16"}
        for group, code, ext in (
            ("CG", 36, back),
            ("CH", 310, send_ext("%RETRY%CH", j="2", l="2")),
        ):
            opaque = self.client.post(code, ext, b"dead")
            self.one.world.run_for(0.5)
            self.assertIsNone(self.client.answer(opaque))
            self.assertEqual(self.client.wait(opaque, 3).code, 0)
            self.one.node.kill()
            self.one.start()
            self.assertIsNotNone(self.one.service.topics.get(f"%DLQ%{group}"))
            self.client = self.one.connect()

    def test_a_disk_that_refuses(self) -> None:
        """An admin hears that a change is in memory only; when the disk has room it is written without another."""
        topic = {"defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        topic |= {"topicFilterType": "SINGLE_TAG", "order": "false", "topic": "N"}
        self.one.node.disk.make_dirs("/store/config/topics.json.tmp")
        answer = self.client.ask(17, topic)
        self.assertEqual(answer.code, 1)
        self.assertIn("changed in memory only, /store/config/topics.json", answer.remark or "")
        self.assertIsNotNone(self.one.service.topics.get("N"))
        self.one.node.disk.delete_tree("/store/config/topics.json.tmp")
        self.one.world.run_for(10)
        self.one.node.kill()
        self.one.start()
        self.assertIsNotNone(self.one.service.topics.get("N"))
