"""Request-reply: codes 324 and 325, pushed with 326, as a Java client and Apache's broker spoke them."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.sessions import ProducerGroups
from rmq.wire.codes import ResponseCode
from rmq.wire.command import RESPONSE, RemotingCommand, decode_commands, encode_command
from rmq.wire.record import decode_properties, decode_records
from tests.broker.harness import OneBroker, RawClient, heartbeat, send_ext
from tests.broker.test_golden_clients import FRAMES
from tests.broker.test_sessions import Link, member

REQUESTER = "requester@1"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
#: what differs from run to run
OWN = {"bornHost", "storeHost", "storeTimestamp", "properties"}


def golden(code: int, direction: str) -> list[RemotingCommand]:
    """Return the recorded frames of a request code, or the answers to it for a negative one."""
    rows = map(json.loads, (FRAMES / "client-4.9.7_request-reply.jsonl").read_text("utf-8").splitlines())

    def is_wanted(row: dict[str, Any]) -> bool:
        return row["dir"] == direction and (row.get("answers") == -code if code < 0 else row["code"] == code)

    return [decode_commands(bytes.fromhex(row["hex"]))[0] for row in rows if is_wanted(row)]


class ReplyTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.start()

    def start(self, **values: str) -> None:
        self.one = OneBroker({"brokerClusterName": "DefaultCluster", "brokerIP1": "10.0.0.1", **values})
        self.requester, self.replier = self.one.connect(), self.one.connect()
        self.requester.ask(34, body=heartbeat(REQUESTER, "CG", producer="PG"))

    def tearDown(self) -> None:
        self.one.end()

    def reply(self, *, answer: int | None = 0, body: bytes = b"the reply", **more: str) -> RemotingCommand:
        """Send a reply, answer what is pushed with ``answer`` (None: not at all), and return the broker's answer."""
        properties = f"MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01{REQUESTER}\x02TTL\x0120000\x02WAIT\x01true"
        ext = send_ext(REPLY_TOPIC, props=properties) | more
        opaque = self.replier.post(325, ext, body)
        self.acknowledge(self.requester, answer)
        return self.replier.wait(opaque)

    def acknowledge(self, client: RawClient, code: int | None) -> None:
        self.one.world.run_for(1)
        for pushed in client.requests(326) if code is not None else ():
            assert client.transport is not None
            client.transport.write(encode_command(RemotingCommand(code or 0, pushed.opaque, RESPONSE)))

    def stored(self) -> list[Any]:
        found = self.one.service.store.get(REPLY_TOPIC, 0, 0, 32, None)
        return [record for data in found.messages for record in decode_records(data)]

    def test_apaches_conversation(self) -> None:
        """A Java client's frames: what is pushed and answered is what Apache pushed and answered."""
        (sent, *_), (pushed, *_), (answered, *_) = golden(325, "c2s"), golden(326, "s2c"), golden(-325, "s2c")
        theirs = decode_properties(pushed.ext_fields["properties"])
        self.requester.ask(34, body=heartbeat(theirs["REPLY_TO_CLIENT"], "CG", producer="PG"))
        opaque = self.replier.send(sent)
        self.acknowledge(self.requester, 0)
        answer = self.replier.wait(opaque)
        (ours,) = self.requester.requests(326)
        self.assertEqual(ours.body, pushed.body)
        self.assertEqual(
            {name: value for name, value in ours.ext_fields.items() if name not in OWN},
            {name: value for name, value in pushed.ext_fields.items() if name not in OWN},
        )
        self.assertEqual(ours.ext_fields.keys(), pushed.ext_fields.keys())
        mine = decode_properties(ours.ext_fields["properties"])
        self.assertEqual(mine | {"PUSH_REPLY_TIME": theirs["PUSH_REPLY_TIME"]}, theirs)
        self.assertEqual(int(mine["PUSH_REPLY_TIME"]), int(ours.ext_fields["storeTimestamp"]))
        self.assertEqual(ours.ext_fields["storeHost"], "10.0.0.1:10911")
        self.assertRegex(ours.ext_fields["bornHost"], r"^[\d.]+:\d+$")
        self.assertEqual(answer.ext_fields.keys(), answered.ext_fields.keys())
        self.assertEqual((answer.code, answer.remark), (0, None))
        self.assertEqual((answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]), ("0", "0"))
        (record,) = self.stored()
        self.assertEqual(record.properties.decode(), sent.ext_fields["i"])
        self.assertEqual((record.body, record.offset_msg_id), (sent.body, answer.ext_fields["msgId"]))

    def test_long_names(self) -> None:
        """Go's client sends 324 with the long names of fields."""
        ext = {
            "producerGroup": "PG", "topic": REPLY_TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "5", "flag": "0", "reconsumeTimes": "0",
            "unitMode": "false", "properties": f"REPLY_TO_CLIENT\x01{REQUESTER}",
        }  # fmt: skip
        opaque = self.replier.post(324, ext, b"x")
        self.acknowledge(self.requester, 0)
        self.assertEqual(self.replier.wait(opaque).code, 0)
        self.assertEqual(self.requester.requests(326)[0].ext_fields["topic"], REPLY_TOPIC)

    def test_not_stored(self) -> None:
        """With storeReplyMessageEnable=false a reply is pushed only, and its answer has Apache's numbers."""
        self.one.end()
        self.start(storeReplyMessageEnable="false")
        answer = self.reply()
        self.assertEqual((answer.code, self.stored()), (0, []))
        places = {name: answer.ext_fields[name] for name in ("msgId", "queueId", "queueOffset")}
        self.assertEqual(places, {"msgId": "0", "queueId": "0", "queueOffset": "0"})
        refused = self.reply(answer=1)
        self.assertEqual((refused.code, "msgId" in refused.ext_fields), (1, False))

    def test_a_reply_that_is_not_taken(self) -> None:
        """The replier learns why, in Apache's words; the reply is stored all the same."""
        refused = f"push reply message to {REQUESTER}fail."
        cases: tuple[tuple[int | None, dict[str, Any], str], ...] = (
            (1, {}, refused),
            (None, {}, refused),  # after 10 s
            (0, {"i": "REPLY_TO_CLIENT\x01absent"}, "push reply message fail, channel of <absent> not found."),
            (0, {"i": "a\x01b"}, "reply message properties[REPLY_TO_CLIENT] is null"),
        )
        for count, (answer, more, remark) in enumerate(cases):
            found = self.reply(answer=answer, **more)
            self.assertEqual((found.code, found.remark), (ResponseCode.SYSTEM_ERROR, remark))
            self.assertEqual(found.ext_fields["TRACE_ON"], "true")
            self.assertEqual(found.ext_fields["queueOffset"], str(count))
            self.assertEqual(self.one.service.store.max_offset(REPLY_TOPIC, 0), count + 1)
            self.requester.received.clear()

    def test_what_may_not_be_sent(self) -> None:
        """The checks of ordinary sends come first: nothing is pushed then."""
        cases: tuple[tuple[dict[str, Any], int], ...] = (
            ({"b": "SCHEDULE_TOPIC_XXXX"}, 16),
            ({"b": "none", "c": "none"}, 17),
            ({"e": "9"}, 1),
        )
        for more, code in cases:
            answer = self.reply(**more)
            self.assertEqual((answer.code, answer.ext_fields["MSG_REGION"]), (code, "DefaultRegion"))
        self.assertEqual((self.requester.requests(326), self.stored()), ([], []))

    def test_a_message_that_is_too_long(self) -> None:
        """A reply that cannot be stored is pushed, and answered as if storing were off."""
        self.one.end()
        self.start(maxMessageSize="10")
        answer = self.reply(body=b"a long reply")
        self.assertEqual((answer.code, answer.ext_fields["msgId"], self.stored()), (0, "0", []))
        self.assertEqual(self.requester.requests(326)[0].body, b"a long reply")
        self.assertEqual(self.one.service.stats.put_failures, 1)


class ClientTableTests(SynchronousTestCase):
    def test_a_client_is_found_by_its_id(self) -> None:
        """The connection that registered last counts; another one of the client takes its place when it is gone."""
        table = ProducerGroups()
        old, new, other = Link("old"), Link("new"), Link("other")
        self.assertIsNone(table.find_client("c"))
        for group, link in (("P", old), ("Q", old), ("P", new), ("P", other)):
            joined = member(link)
            joined.client_id = "d" if link is other else "c"
            table.register(group, joined)
        self.assertIs(table.find_client("c").channel, new)  # type: ignore[union-attr]
        table.unregister("Q", new)
        self.assertIs(table.find_client("c").channel, new)  # type: ignore[union-attr]
        table.channel_closed(new)
        self.assertIs(table.find_client("c").channel, old)  # type: ignore[union-attr]
        table.unregister("P", old)
        self.assertIs(table.find_client("c").channel, old)  # type: ignore[union-attr]
        table.unregister("Q", old)
        self.assertIsNone(table.find_client("c"))
        self.assertIs(table.find_client("d").channel, other)  # type: ignore[union-attr]
