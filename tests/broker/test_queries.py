"""Offsets, queries by key, by offset and by time, as clients and tools see them."""

from __future__ import annotations

import json

from rmq.wire import fastjson
from rmq.wire.record import decode_records
from tests.broker.harness import OneBrokerCase, heartbeat, pull_ext, send_ext


class QueryCase(OneBrokerCase):
    def send(self, body: bytes = b"x", *, props: str = "", queue_id: int = 0, topic: str = "T") -> str:
        answer = self.client.ask(310, send_ext(topic, queue_id=queue_id, props=props), body)
        self.assertEqual(answer.code, 0, answer.remark)
        return answer.ext_fields["msgId"]

    def number(self, code: int, ext: dict[str, str], field: str = "offset") -> int:
        answer = self.client.ask(code, ext)
        self.assertEqual(answer.code, 0, answer.remark)
        return int(answer.ext_fields[field])


class ConsumerOffsetTests(QueryCase):
    mine = {"consumerGroup": "CG", "topic": "T", "queueId": "0"}

    def test_commit_and_query(self) -> None:
        """What a group commits it finds again, also a smaller offset."""
        for offset in (5, 3):
            self.assertEqual(self.client.ask(15, self.mine | {"commitOffset": str(offset)}).code, 0)
            self.assertEqual(self.number(14, self.mine), offset)
        self.client.tell(15, self.mine | {"commitOffset": "9"})
        self.assertEqual(self.number(14, self.mine), 9)

    def test_new_group_on_a_young_topic(self) -> None:
        """A new group starts at 0 as long as the queue's first message is there, unless it says it wants to know."""
        self.send()
        self.assertEqual(self.number(14, self.mine), 0)
        answer = self.client.ask(14, self.mine | {"setZeroIfNotFound": "false"})
        self.assertEqual(
            (answer.code, answer.remark), (22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
        )

    def test_unset_offset(self) -> None:
        """ali-ons commits -1 first, which means nothing."""
        self.client.ask(15, self.mine | {"commitOffset": "-1"})
        self.assertEqual(self.number(14, self.mine), 0)

    def test_offsets_survive(self) -> None:
        """Offsets are on disk at an orderly stop, and within seconds without one."""
        self.client.ask(15, self.mine | {"commitOffset": "5"})
        self.one.stop()
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual(self.number(14, self.mine), 5)
        self.client.ask(15, self.mine | {"commitOffset": "6"})
        self.one.world.run_for(15)
        self.one.node.kill()
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual(self.number(14, self.mine), 6)


class QueueTests(QueryCase):
    def test_boundaries_of_5_x(self) -> None:
        """After all messages 4.9's clients get the last one, those of 5.x, which name a boundary, the end."""
        self.send()
        self.send()
        late = {"topic": "T", "queueId": "0", "timestamp": "9999999999999"}
        found = [self.number(29, late | more) for more in ({}, {"boundaryType": "LOWER"}, {"boundaryType": "UPPER"})]
        self.assertEqual(found, [1, 2, 1])

    def test_ends(self) -> None:
        """The newest offset is exclusive; an unknown queue has 0 and 0."""
        self.send()
        self.send()
        queue, unknown = {"topic": "T", "queueId": "0"}, {"topic": "U", "queueId": "9"}
        self.assertEqual((self.number(30, queue), self.number(31, queue)), (2, 0))
        self.assertEqual((self.number(30, unknown), self.number(31, unknown)), (0, 0))
        self.assertEqual(self.number(32, unknown, "timestamp"), -1)
        self.assertGreater(self.number(32, queue, "timestamp"), 1_700_000_000_000)

    def test_by_time(self) -> None:
        """The message nearest to a time; the last one for any later time."""
        times = []
        for _ in range(3):
            times.append(round(self.one.node.seconds() * 1000))
            self.send()
            self.one.world.run_for(10)
        ext = {"topic": "T", "queueId": "0"}
        self.assertEqual(self.number(29, ext | {"timestamp": "0"}), 0)
        self.assertEqual(self.number(29, ext | {"timestamp": str(times[1] + 1000)}), 1)
        self.assertEqual(self.number(29, ext | {"timestamp": str(times[1] + 9000)}), 2)
        self.assertEqual(self.number(29, ext | {"timestamp": "9999999999999"}), 2)
        self.assertEqual(self.number(29, {"topic": "U", "queueId": "0", "timestamp": "5"}), 0)


class MessageTests(QueryCase):
    def query(self, key: str, **ext: str) -> list[bytes]:
        fields = {"topic": "T", "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9999999999999"}
        answer = self.client.ask(12, fields | ext)
        self.assertIn("indexLastUpdatePhyoffset", answer.ext_fields)
        self.assertIn(answer.code, (0, 22))
        return [record.body for record in decode_records(answer.body or b"")]

    def test_by_key(self) -> None:
        """A message is found by each of its keys and by its unique key, at once."""
        self.send(b"one", props="KEYS\x01a b\x02UNIQ_KEY\x01U1")
        self.send(b"two", props="KEYS\x01b\x02UNIQ_KEY\x01U2")
        self.assertEqual(self.query("a"), [b"one"])
        self.assertEqual(sorted(self.query("b")), [b"one", b"two"])
        self.assertEqual(self.query("U2", _UNIQUE_KEY_QUERY="true"), [b"two"])
        self.assertEqual(self.query("nothing"), [])

    def test_at_most(self) -> None:
        """maxNum limits the answer, and maxMsgsNumBatch limits maxNum."""
        for _ in range(70):
            self.send(props="KEYS\x01k")
        self.assertEqual(len(self.query("k", maxNum="3")), 3)
        self.assertEqual(len(self.query("k", maxNum="1000")), 64)
        self.assertEqual(len(self.query("k", maxNum="3", _UNIQUE_KEY_QUERY="true")), 32)
        for other in ("TRUE", "True", "false", "1", ""):  # Java compares with "true"
            self.assertEqual(len(self.query("k", maxNum="3", _UNIQUE_KEY_QUERY=other)), 3)

    def test_by_log_offset(self) -> None:
        """The offset inside a message id leads to the message; one that leads nowhere is refused."""
        self.send(b"one")
        msg_id = self.send(b"two")
        answer = self.client.ask(33, {"offset": str(int(msg_id[-16:], 16))})
        self.assertEqual([record.body for record in decode_records(answer.body or b"")], [b"two"])
        for offset in (7, 99999999, -1):
            answer = self.client.ask(33, {"offset": str(offset)})
            self.assertEqual((answer.code, answer.remark), (1, f"can not find message by the offset, {offset}"))


class ConsumeStatsTests(QueryCase):
    def test_positions(self) -> None:
        """consumerProgress sees end, position and the time of the last consumed message of every queue."""
        self.send()
        self.send()
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        for ext in ({"consumerGroup": "CG"}, {"consumerGroup": "CG", "topic": "T"}):
            body = fastjson.parse((self.client.ask(208, ext).body or b"").decode())
            table = {key["queueId"]: value for key, value in body["offsetTable"].items()}
            self.assertEqual(sorted(table), [0, 1, 2, 3])
            self.assertEqual((table[0]["brokerOffset"], table[0]["consumerOffset"]), (2, 1))
            self.assertGreater(table[0]["lastTimestamp"], 0)
            self.assertEqual(table[0]["pullOffset"], table[0]["consumerOffset"])
            self.assertEqual(table[1], {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0})
        self.assertEqual(self.client.ask(208, {"consumerGroup": "x"}).body, b'{"consumeTps":0.0,"offsetTable":{}}')

    def test_unsubscribed_topics_are_left_out(self) -> None:
        """An online group is judged by what it subscribes to now."""
        self.send()
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        self.client.ask(34, None, heartbeat("c", "CG", "Other"))
        self.assertEqual(self.client.ask(208, {"consumerGroup": "CG"}).body, b'{"consumeTps":0.0,"offsetTable":{}}')

    def test_whole_broker(self) -> None:
        """brokerConsumeStats sums up what all groups have left to do."""
        for _ in range(3):
            self.send()
        self.client.ask(15, {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"})
        self.client.ask(11, pull_ext())
        body = fastjson.parse((self.client.ask(317, {"isOrder": "false"}).body or b"").decode())
        self.assertEqual((body["totalDiff"], body["brokerAddr"]), (2, "10.0.0.1:10911"))
        groups = {name: stats for entry in body["consumeStatsList"] for name, stats in entry.items()}
        self.assertEqual(len(groups["CG"]), 1)
        self.assertEqual(groups["TOOLS_CONSUMER"], [])
        ordered = fastjson.parse((self.client.ask(317, {"isOrder": "true"}).body or b"").decode())
        self.assertEqual(ordered["totalDiff"], 0)

    def whole_broker(self, is_order: str) -> tuple[dict[str, list[int]], int]:
        """Return the queues of each topic that group CG has in an answer to code 317, and how much is left to do."""
        answer = self.client.ask(317, {"isOrder": is_order})
        body = fastjson.parse((answer.body or b"").decode())
        groups = {name: stats for entry in body["consumeStatsList"] for name, stats in entry.items()}
        queues: dict[str, list[int]] = {}
        for stats in groups["CG"]:
            for key in stats["offsetTable"]:
                queues.setdefault(key["topic"], []).append(key["queueId"])
        return {topic: sorted(ids) for topic, ids in queues.items()}, body["totalDiff"]

    def test_whole_broker_with_ordered_topics(self) -> None:
        """Ordered topics are listed with all others; isOrder lists them alone."""
        for topic, count in (("Plain", 2), ("Ordered", 3)):
            for _ in range(count):
                self.send(topic=topic)
            self.client.ask(15, {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": "1"})
        self.client.ask(11, pull_ext("Plain"))
        self.one.service.topics.set_order_topics(["Ordered"])
        four = [0, 1, 2, 3]
        self.assertEqual(self.whole_broker("false"), ({"Plain": four, "Ordered": four}, 3))
        self.assertEqual(self.whole_broker("true"), ({"Ordered": four}, 2))

    def test_write_queues_and_read_queues(self) -> None:
        """The whole broker's answer counts what is written, a single group's what can be read."""
        for read, write, topic in ((2, 4, "Grows"), (4, 2, "Shrinks")):
            ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
            ext |= {"readQueueNums": str(read), "writeQueueNums": str(write), "order": "false"}
            self.assertEqual(self.client.ask(17, ext).code, 0)
            for queue_id in range(4):
                self.send(topic=topic, queue_id=queue_id)
            self.client.ask(15, {"consumerGroup": "CG", "topic": topic, "queueId": "0", "commitOffset": "1"})
            self.client.ask(11, pull_ext(topic))
            body = fastjson.parse((self.client.ask(208, {"consumerGroup": "CG", "topic": topic}).body or b"").decode())
            self.assertEqual(sorted(key["queueId"] for key in body["offsetTable"]), list(range(read)))
        self.assertEqual(self.whole_broker("false"), ({"Grows": [0, 1, 2, 3], "Shrinks": [0, 1]}, 3 + 1))

    def test_who_consumes(self) -> None:
        """topicList -c finds groups that are online and groups that once committed."""
        self.send()
        self.client.ask(15, {"consumerGroup": "Old", "topic": "T", "queueId": "0", "commitOffset": "1"})
        self.client.ask(34, None, heartbeat("c", "Now", "T"))
        body = json.loads(self.client.ask(300, {"topic": "T"}).body or b"")
        self.assertEqual(body, {"groupList": ["Now", "Old"]})


class QueueContentsTests(QueryCase):
    def ask(self, topic: str, queue_id: int, index: int) -> tuple[int, str | None, bytes | None]:
        ext = {"topic": topic, "queueId": str(queue_id), "index": str(index), "count": "3"}
        answer = self.client.ask(321, ext)
        return answer.code, answer.remark, answer.body

    def test_units(self) -> None:
        """queryCq sees where the messages of a queue lie, from a number on."""
        for _ in range(5):
            self.send(props="TAGS\x01a")
        code, remark, body = self.ask("T", 0, 1)
        self.assertEqual((code, remark), (0, None))
        contents = json.loads(body or b"")
        self.assertEqual((contents["minQueueIndex"], contents["maxQueueIndex"]), (0, 5))
        self.assertEqual([unit["tagsCode"] for unit in contents["queueData"]], [ord("a")] * 3)

    def test_index_beyond(self) -> None:
        """A queue that is there and a number that it does not have: code 0, and a remark that says so."""
        self.send()
        self.assertEqual(self.ask("T", 0, 1), (0, "Index 1 of 0@T is not exist!", None))

    def test_unknown_queue(self) -> None:
        """A queue in which nothing was ever stored is refused, whether it could be or not, pulled from or not."""
        self.send()
        self.client.ask(11, pull_ext(queue_id=3))
        for topic, queue_id in (("Nope", 0), ("T", 3), ("T", 77), ("T", -1)):
            self.assertEqual(self.ask(topic, queue_id, 0), (1, f"{queue_id}@{topic} is not exist!", None))
