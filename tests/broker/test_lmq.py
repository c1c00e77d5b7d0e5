"""Light message queues (enableLmq): no topic and no group to create, and offsets in a file of their own."""

from __future__ import annotations

from typing import Any

from rmq.broker.refusals import LMQ_QUEUES_EXCEEDED
from rmq.wire import fastjson
from rmq.wire.record import decode_offset_msg_id, decode_records
from tests.broker.harness import OneBrokerCase, pull_ext, send_ext

ON = {"enableLmq": "true", "enableMultiDispatch": "true"}
#: sent with two light message queues
TWO = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b"
FILE = "/store/config/lmqConsumerOffset.json"


class LightQueueTests(OneBrokerCase):
    values = ON

    def send(self, body: bytes, props: str = TWO, topic: str = "T") -> None:
        self.assertEqual(self.client.ask(310, send_ext(topic, props=props), body).code, 0)

    def bodies(self, topic: str, **more: Any) -> list[bytes]:
        """Return what a consumer gets of queue 0."""
        bodies: list[bytes] = []
        while (answer := self.client.ask(11, pull_ext(topic, offset=len(bodies), **more))).code == 0:
            bodies += [record.body for record in decode_records(answer.body or b"")]
        return bodies

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
        self.assertEqual(self.client.ask(15, ext).code, 0)

    def committed(self, group: str, topic: str, queue_id: int) -> str:
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        answer = self.client.ask(14, ext)
        self.assertEqual(answer.code, 0)
        return answer.ext_fields["offset"]

    def restart(self) -> None:
        self.one.stop()
        self.one.start()
        self.client = self.one.connect()

    def test_pull(self) -> None:
        """A light queue is pulled, by a light group too, like any queue 0; neither becomes a topic or a group."""
        self.send(b"1")
        self.send(b"2")
        for group in ("CG", "%LMQ%g"):
            self.assertEqual(self.bodies("%LMQ%a", group=group), [b"1", b"2"])
        self.assertEqual(self.bodies("T"), [b"1", b"2"])
        self.assertEqual(self.max_offset("%LMQ%b"), 2)
        self.assertNotIn("%LMQ%a", self.one.service.topics)
        self.assertNotIn("%LMQ%g", self.one.service.groups)
        self.assertEqual(
            self.one.service.stats.totals("GROUP_GET_NUMS"), [("%LMQ%@CG", 2), ("%LMQ%@%LMQ%", 2), ("T@CG", 2)]
        )

    def test_held_pull(self) -> None:
        """A pull that waits at the end of a light queue gets the next message."""
        opaque = self.client.post(11, pull_ext("%LMQ%b", sys_flag=6))
        self.one.world.run_for(1)
        self.assertIsNone(self.client.answer(opaque))
        self.send(b"1")
        self.assertEqual([r.body for r in decode_records(self.client.wait(opaque, 1).body or b"")], [b"1"])

    def test_delayed_and_half_messages(self) -> None:
        """A light queue has a delayed message once it is due, and a half message once it is committed; each once."""
        self.send(b"delayed", props=f"{TWO}\x02DELAY\x011")
        pairs = f"{TWO}\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01K1"
        half = self.client.ask(310, send_ext(props=pairs, f="4"), b"half")
        self.assertEqual((half.code, self.max_offset("%LMQ%a")), (0, 0))
        self.one.world.run_for(2)
        self.assertEqual(self.bodies("%LMQ%a"), [b"delayed"])
        _, phy_offset = decode_offset_msg_id(half.ext_fields["msgId"])
        place = {"producerGroup": "PG", "tranStateTableOffset": half.ext_fields["queueOffset"], "msgId": "K1"}
        place |= {"commitLogOffset": str(phy_offset), "commitOrRollback": "8", "fromTransactionCheck": "false"}
        self.assertEqual(self.client.ask(37, place).code, 0)
        for topic in ("T", "%LMQ%a", "%LMQ%b"):
            self.assertEqual(self.bodies(topic), [b"delayed", b"half"], topic)

    def max_offset(self, topic: str) -> int:
        return int(self.client.ask(30, {"topic": topic, "queueId": "0"}).ext_fields["offset"])

    def test_sent_to_a_light_queue(self) -> None:
        """A message can also be sent to a light queue alone."""
        self.send(b"1", props="", topic="%LMQ%a")
        self.assertEqual(self.bodies("%LMQ%a"), [b"1"])
        self.assertNotIn("%LMQ%a", self.one.service.topics)

    def test_admins_create_none(self) -> None:
        """A light topic or group that an administrator creates changes nothing; a deleted topic loses its queue."""
        ext = {"topic": "%LMQ%a", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
        ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        self.assertEqual(self.client.ask(17, ext).code, 0)
        self.assertEqual(self.client.ask(200, body=b'{"groupName":"%LMQ%g","consumeEnable":false}').code, 0)
        self.send(b"1")
        self.assertEqual(self.bodies("%LMQ%a", group="%LMQ%g"), [b"1"])
        self.assertEqual(self.client.ask(316).code, 0)
        self.assertEqual(self.bodies("%LMQ%a"), [b"1"])
        self.assertEqual(self.client.ask(215, {"topic": "%LMQ%a"}).code, 0)
        self.assertEqual(self.max_offset("%LMQ%a"), 0)
        self.send(b"2")
        self.assertEqual(self.bodies("%LMQ%a"), [b"2"])

    def test_offsets(self) -> None:
        """A light group has one offset in a topic, whatever the queue's id; both kinds are in Apache's file."""
        self.commit("%LMQ%g", "%LMQ%a", 0, 7)
        self.commit("%LMQ%g", "%LMQ%a", 3, 8)
        self.commit("CG", "T", 3, 9)
        for _ in range(2):
            self.assertEqual(self.committed("%LMQ%g", "%LMQ%a", 0), "8")
            self.assertEqual(self.committed("%LMQ%g", "%LMQ%a", 5), "8")
            self.assertEqual(self.committed("CG", "T", 3), "9")
            self.restart()
        stored = fastjson.decode(self.one.node.disk.read_whole(FILE), dict[str, Any])
        self.assertEqual(stored["lmqOffsetTable"], {"%LMQ%a@%LMQ%g": 8})
        self.assertEqual(stored["offsetTable"], {"T@CG": {"3": 9}})

    def test_switched_on_later(self) -> None:
        """A broker that had ordinary offsets keeps them when enableLmq is switched on."""
        self.one.stop()
        self.one.values.clear()
        self.one.start()
        self.client = self.one.connect()
        self.commit("CG", "T", 0, 4)
        self.one.stop()
        self.assertNotIn(b"lmqOffsetTable", self.one.node.disk.read_whole("/store/config/consumerOffset.json"))
        self.one.values.update(ON)
        self.one.start()
        self.client = self.one.connect()
        self.assertEqual(self.committed("CG", "T", 0), "4")

    def test_too_many(self) -> None:
        """The refusal of one light queue too many has Apache's code and text."""
        self.one.stop()
        self.one.values["maxLmqConsumeQueueNum"] = "1"
        self.one.start()
        self.client = self.one.connect()
        answer = self.client.ask(310, send_ext(props=TWO), b"x")
        self.assertEqual((answer.code, answer.remark), (1, LMQ_QUEUES_EXCEEDED))
