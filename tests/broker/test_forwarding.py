"""What tools ask of consumers through the broker: 222, 223, 307, 309; and what the broker knows itself: 303, 308."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.clock import now_ms
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import ConsumerStatus, OffsetsByQueue
from rmq.wire.codes import LanguageCode, ResponseCode
from rmq.wire.command import RESPONSE, RemotingCommand, decode_commands, encode_command
from rmq.wire.record import offset_msg_id
from tests.broker.harness import OneBroker, RawClient, heartbeat, send_ext
from tests.broker.test_golden_clients import FRAMES

QUEUE_0 = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


class ForwardingCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = OneBroker({"brokerName": "broker-a", "brokerIP1": "10.0.0.1"})
        self.tool = self.one.connect()
        self.member = self.one.connect()
        self.create("T", 2)

    def tearDown(self) -> None:
        self.one.end()

    def create(self, topic: str, queues: int) -> None:
        ext = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
        ext |= {"readQueueNums": str(queues), "writeQueueNums": str(queues), "topicSysFlag": "0"}
        self.assertEqual(self.tool.ask(17, ext).code, 0)

    def join(self, client_id: str = "c1", *, version: int = 409, client: RawClient | None = None) -> RawClient:
        client = client or self.member
        client.ask(34, {}, heartbeat(client_id, "CG", "T"), version=version)
        return client

    def commit(self, *offsets: int, group: str = "CG", topic: str = "T") -> None:
        for queue_id, offset in enumerate(offsets):
            ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
            self.tool.ask(15, ext)

    def put(self, count: int, queue_id: int = 0) -> None:
        for number in range(count):
            self.assertEqual(self.tool.ask(310, send_ext("T", queue_id=queue_id), b"%d" % number).code, 0)

    def asked(self, client: RawClient, code: int) -> list[RemotingCommand]:
        self.one.world.run_for(0.5)
        return client.requests(code)

    def say(self, client: RawClient, request: RemotingCommand, code: int = 0, **more: Any) -> None:
        assert client.transport is not None
        client.transport.write(encode_command(RemotingCommand(code, request.opaque, RESPONSE, **more)))


class ResetTests(ForwardingCase):
    def reset(self, *, timestamp: int = 0, force: bool = True, **more: str) -> RemotingCommand:
        ext = {"topic": "T", "group": "CG", "timestamp": str(timestamp), "isForce": str(force).lower()}
        return self.tool.ask(222, ext | more)

    def test_apaches_conversation(self) -> None:
        """mqadmin's request as recorded: the same push to the member, the same answer to the tool."""
        rows = map(json.loads, (FRAMES / "mqadmin-4.9.7_resetOffset.jsonl").read_text("utf-8").splitlines())
        frames = [decode_commands(bytes.fromhex(row["hex"]))[0] for row in rows]
        asked = next(each for each in frames if each.code == 222)
        answered = next(each for each in frames if each.is_response)
        pushed = next(each for each in frames if each.code == 220)
        self.create("Orders", 4)
        self.member.ask(34, {}, heartbeat("c1", "CG_admin", "Orders"))
        self.commit(1, 1, 0, 1, group="CG_admin", topic="Orders")
        answer = self.tool.wait(self.tool.send(asked))
        (ours,) = self.asked(self.member, 220)
        self.assertEqual((ours.ext_fields, ours.flag), (pushed.ext_fields, pushed.flag))
        for mine, theirs in ((ours, pushed), (answer, answered)):
            self.assertEqual(self.table(mine), self.table(theirs))

    def table(self, command: RemotingCommand) -> dict[MessageQueue, int]:
        return fastjson.decode(command.body or b"", OffsetsByQueue).offset_table

    def test_where_a_group_goes_on(self) -> None:
        """By time, to the end, back only unless forced, of one queue, to a given offset."""
        self.put(5)
        self.join()
        self.commit(3, 0)
        for expected, answer in (
            ({0: 0, 1: 0}, self.reset(timestamp=0)),
            ({0: 5, 1: 0}, self.reset(timestamp=-1)),
            ({0: 3, 1: 0}, self.reset(timestamp=-1, force=False)),
            ({0: 0, 1: 0}, self.reset(timestamp=0, force=False)),
            ({0: 5}, self.reset(timestamp=-1, queueId="0")),
            ({0: 2}, self.reset(queueId="0", offset="2")),
            ({0: 5, 1: 0}, self.reset(timestamp=-1, queueId="-1")),
        ):
            self.assertEqual(self.offsets_of(answer), expected)
        self.assertEqual(len(self.asked(self.member, 220)), 7)

    def offsets_of(self, answer: RemotingCommand) -> dict[int, int]:
        self.assertEqual(answer.code, 0, answer.remark)
        return {queue.queue_id: offset for queue, offset in self.table(answer).items()}

    def test_refused(self) -> None:
        """No topic, a queue without an offset, nobody online, and a member that does not know the request."""
        unknown = self.reset(topic="Nope")
        self.assertEqual(unknown.code, 1)
        self.assertEqual(unknown.remark, "[reset-offset] reset offset failed, no topic in this broker. topic=Nope")
        self.assertEqual(self.reset().remark, "THe consumer group <CG> not exist")
        self.commit(0, 0)
        offline = self.reset()
        self.assertEqual(
            (offline.code, offline.remark),
            (206, "Consumer not online, so can not reset offset, Group: CG Topic: T Timestamp: 0"),
        )
        self.join(version=27)
        old = self.reset()
        self.assertEqual(old.code, 1)
        self.assertIn("the client does not support this feature. version=V3_0", old.remark or "")
        self.assertEqual(self.asked(self.member, 220), [])

    def test_members_of_cpp(self) -> None:
        """A C++ member gets the offsets as a list, the others as Java does."""
        self.commit(0, 0)
        self.join()
        cpp = self.one.connect()
        cpp.wait(cpp.post(34, {}, heartbeat("c2", "CG", "T"), language=LanguageCode.CPP))
        self.reset()
        (pushed,) = self.asked(cpp, 220)
        queue = {"brokerName": "broker-a", "offset": 0, "topic": "T"}
        self.assertEqual(
            json.loads(pushed.body or b""), {"offsetTable": [queue | {"queueId": 0}, queue | {"queueId": 1}]}
        )
        self.assertIn(b'{"offsetTable":{{"brokerName"', self.asked(self.member, 220)[0].body or b"")


class StatusTests(ForwardingCase):
    def test_members_are_asked(self) -> None:
        """The answers of all members in one table; who is silent for five seconds is left out."""
        self.join()
        other = self.join("c2", client=self.one.connect())
        silent = self.join("c3", client=self.one.connect())
        opaque = self.tool.post(223, {"topic": "T", "group": "CG"})
        for client, offset in ((self.member, 3), (other, 4)):
            (question,) = self.asked(client, 221)
            self.assertEqual(question.ext_fields, {"topic": "T", "group": "CG"})
            self.say(client, question, body=fastjson.encode(ConsumerStatus(message_queue_table={QUEUE_0: offset})))
        self.assertEqual(len(self.asked(silent, 221)), 1)
        answer = self.tool.wait(opaque)
        table = fastjson.decode(answer.body or b"", ConsumerStatus).consumer_table
        self.assertEqual(table, {"c1": {QUEUE_0: 3}, "c2": {QUEUE_0: 4}})

    def test_one_member(self) -> None:
        """A client id asks that member only; an unknown one gives an empty table."""
        self.join()
        other = self.join("c2", client=self.one.connect())
        opaque = self.tool.post(223, {"topic": "T", "group": "CG", "clientAddr": "c2"})
        (question,) = self.asked(other, 221)
        self.say(other, question, code=1, remark="no")
        self.assertEqual(self.tool.wait(opaque).body, b'{"consumerTable":{},"messageQueueTable":{}}')
        self.assertEqual(self.asked(self.member, 221), [])
        nobody = self.tool.ask(223, {"topic": "T", "group": "CG", "clientAddr": "x"})
        self.assertEqual(nobody.body, b'{"consumerTable":{},"messageQueueTable":{}}')
        offline = self.tool.ask(223, {"topic": "T", "group": "Other"})
        self.assertEqual((offline.code, offline.remark), (1, "No Any Consumer online in the consumer group: [Other]"))


class CallTests(ForwardingCase):
    def call(self, code: int = 307, client_id: str = "c1", **more: str) -> int:
        return self.tool.post(code, {"consumerGroup": "CG", "clientId": client_id, "jstackEnable": "true"} | more)

    def test_answer_of_the_member(self) -> None:
        """307: header fields go there as they came; code, remark, fields and body of the answer come back."""
        self.join()
        opaque = self.call(extra="kept")
        (question,) = self.asked(self.member, 307)
        self.assertEqual(
            question.ext_fields, {"consumerGroup": "CG", "clientId": "c1", "jstackEnable": "true", "extra": "kept"}
        )
        self.say(self.member, question, code=3, remark="why", ext_fields={"a": "b"}, body=b"{bare:1}")
        answer = self.tool.wait(opaque)
        self.assertEqual(
            (answer.code, answer.remark, answer.ext_fields, answer.body), (3, "why", {"a": "b"}, b"{bare:1}")
        )

    def test_no_answer(self) -> None:
        """Not online, too old, silent for ten seconds, gone: each with Apache's code and text."""
        offline = self.tool.wait(self.call())
        self.assertEqual((offline.code, offline.remark), (1, "The Consumer <CG> <c1> not online"))
        self.join(version=61)
        self.assertIn("too low to finish", self.tool.wait(self.call()).remark or "")
        self.join()
        silent = self.call()
        self.one.world.run_for(9.5)
        self.assertIsNone(self.tool.answer(silent))
        answer = self.tool.wait(silent)
        self.assertEqual(answer.code, ResponseCode.CONSUME_MSG_TIMEOUT)
        self.assertTrue((answer.remark or "").startswith("consumer <CG> <c1> Timeout: "), answer.remark)
        gone = self.call()
        self.asked(self.member, 307)
        transport: Any = self.member.transport
        transport.abortConnection()
        answer = self.tool.wait(gone)
        self.assertEqual(answer.code, 1)
        self.assertTrue((answer.remark or "").startswith("invoke consumer <CG> <c1> Exception: "), answer.remark)

    def test_consume_directly(self) -> None:
        """309: the member gets the stored message and this broker's name; an id of nothing is refused."""
        self.put(2)
        self.join()
        stored = self.one.service.store.get("T", 0, 1, 1).messages[0]
        msg_id = offset_msg_id((b"\x0a\x00\x00\x01", 10911), int.from_bytes(stored[28:36], "big"))
        opaque = self.call(309, msgId=msg_id)
        (question,) = self.asked(self.member, 309)
        self.assertEqual((question.body, question.ext_fields["brokerName"]), (stored, "broker-a"))
        self.say(self.member, question, body=b'{"consumeResult":"CR_SUCCESS"}')
        self.assertEqual(self.tool.wait(opaque).body, b'{"consumeResult":"CR_SUCCESS"}')
        nothing = self.tool.wait(self.call(309, msgId=msg_id[:-4] + "FFFF"))
        self.assertEqual(nothing.code, 1)
        self.assertIn("can not find message by the offset", nothing.remark or "")
        bad = self.tool.wait(self.call(309, msgId="xyz"))
        self.assertEqual(bad.code, 1)
        self.assertIn("msgId xyz", bad.remark or "")


class OwnFiguresTests(ForwardingCase):
    def test_time_spans(self) -> None:
        """303: when messages were stored, the consumed one too, and for how long the next one has been waiting."""
        for number in range(3):
            self.put(1)
            if number < 2:
                self.one.world.run_for(10)
        self.commit(2, 0)
        answer = self.tool.ask(303, {"topic": "T", "group": "CG"})
        first, second = json.loads(answer.body or b"")["consumeTimeSpanSet"]
        stored = [self.one.service.store.store_time_of("T", 0, number) for number in range(3)]
        self.assertEqual(first["messageQueue"], {"brokerName": "broker-a", "queueId": 0, "topic": "T"})
        self.assertEqual([first[f"{what}TimeStamp"] for what in ("min", "consume", "max")], stored)
        assert stored[2] is not None
        self.assertLess(abs(first["delayTime"] - (now_ms(self.one.service.clock) - stored[2])), 1000)
        self.assertRegex(first["minTimeStampStr"], r"^\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}$")
        self.assertEqual([second[f"{what}TimeStamp"] for what in ("min", "consume", "max")], [-1, -1, -1])
        self.assertEqual(second["delayTime"], 0)
        missing = self.tool.ask(303, {"topic": "Nope", "group": "CG"})
        self.assertEqual((missing.code, missing.remark), (17, "topic[Nope] not exist"))

    def test_correction(self) -> None:
        """308: the lowest offset of all groups, the largest number where the compared group is behind it."""
        self.commit(3, 5)
        self.commit(4, 2, group="Other")
        self.commit(0, 0, group="Left")
        ext = {"filterGroups": "Left", "compareGroup": "Absent", "topic": "T"}
        self.assertEqual(self.tool.ask(308, ext).body, b'{"correctionOffsets":{0:3,1:2}}')
        behind = self.tool.ask(308, ext | {"compareGroup": "Left"})
        self.assertEqual(behind.body, b'{"correctionOffsets":{0:%d,1:%d}}' % ((2**63 - 1,) * 2))
        self.assertEqual(self.one.service.offsets.query("Left", "T", 0), 0)

    def test_cleaning(self) -> None:
        """306 has nothing to do; 316 deletes the queues of topics that do not exist, and no others."""
        self.put(2)
        self.tool.ask(310, send_ext("Gone"), b"x")
        broker = self.one.service
        broker.topics.delete("Gone")
        self.assertEqual(self.tool.ask(306).code, 0)
        self.assertIn(("Gone", 0), broker.store.queues())
        self.assertEqual(self.tool.ask(316).code, 0)
        self.assertNotIn(("Gone", 0), broker.store.queues())
        self.assertEqual(broker.store.max_offset("T", 0), 2)
