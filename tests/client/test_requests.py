"""What the client sends, beside what Java's 4.9.7 client was seen to send in the same situations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from twisted.internet.defer import Deferred

from rmq.client.flows.instance import Instance
from rmq.client.flows.litepull import pull_consumer
from rmq.client.flows.producer import Producer
from rmq.client.flows.transactions import Outcome, transaction_producer
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Later, Message, MessageQueue, ReceivedMessage, Sql
from rmq.wire.codes import RequestCode
from rmq.wire.command import RemotingCommand, decode_command
from rmq.wire.frames import FrameDecoder
from rmq.wire.record import decode_batch, decode_properties
from tests.client.cluster import Inbox, consumer
from tests.client.test_flows import FlowCase
from tests.wire.golden import frames

TOPIC = "Golden4"
FIRST = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)
#: ids, times, and positions in queues and logs
VARYING = {
    "UNIQ_KEY", "CORRELATION_ID", "REPLY_TO_CLIENT", "e", "g", "clientID", "clientId", "commitLogOffset",
    "commitOffset", "msgId", "offset", "originMsgId", "queueId", "queueOffset", "subVersion", "timestamp",
    "tranStateTableOffset", "transactionId",
}  # fmt: skip
#: what 4.9.7 writes into some requests, always the same; and what is ours: NameServers answer in standard JSON
SOMETIMES = {"ReqT", "acceptStandardJsonOnly"}
COMMIT_WITH_PULL = 1
ONE_WAY = 2
#: what consumers of each kind ask
OF_CONSUMERS = (
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
)


def masked(value: Any) -> Any:
    """Return JSON without what differs from run to run; lists of Java's hash tables are sorted."""
    if isinstance(value, list):
        return sorted(map(masked, value), key=repr)
    if isinstance(value, dict):
        return {key: "*" if key in VARYING else masked(one) for key, one in value.items()}
    return value


def facts(command: RemotingCommand) -> Iterator[tuple[int, str]]:
    """Yield (code, what a request says): one for each group of a heartbeat, queue of a lock, message of a batch."""
    fields: dict[str, Any] = {key: value for key, value in command.ext_fields.items() if key not in SOMETIMES}
    flag = command.flag
    if "i" in fields:
        fields["i"] = decode_properties(fields["i"])
    if "sysFlag" in fields:
        fields["sysFlag"] = int(fields["sysFlag"]) & ~COMMIT_WITH_PULL  # as soon as there is an offset
    if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        flag &= ~ONE_WAY  # a close of ours waits for the answer
    body = command.body or b""
    about: list[Any] = [body.decode("latin-1")]
    if command.code == RequestCode.SEND_BATCH_MESSAGE:
        about = [[entry.flag, entry.body.decode(), decode_properties(entry.properties)] for entry in decode_batch(body)]
    elif command.code in (
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
    ):
        data = json.loads(body)
        if command.code == RequestCode.HEART_BEAT:
            about = [*data["consumerDataSet"], *data["producerDataSet"]]
        else:
            about = [{**data, "mqSet": queue} for queue in data["mqSet"]] if "mqSet" in data else [data]
    for one in about:
        fact = json.dumps([flag, masked(fields), masked(one)], sort_keys=True)
        # each client of Java's has a producer for messages that cannot be sent back; ours needs no name for it
        if "CLIENT_INNER_PRODUCER" not in fact:
            yield command.code, fact


def of_java(conversation: str) -> set[tuple[int, str]]:
    said: set[tuple[int, str]] = set()
    for frame in frames(f"client-4.9.7_{conversation}"):
        (whole,) = FrameDecoder().receive(frame.data)
        command = decode_command(whole)
        if frame.from_client and not command.is_response:
            said.update(facts(command))
    return said


class RequestTests(FlowCase):
    """Each test does what a program of Java did, whose requests are in tests/golden/frames."""

    values = MappingProxyType(
        {"enablePropertyFilter": "true", "transactionCheckInterval": "3000", "transactionTimeOut": "2000"}
    )

    def setUp(self) -> None:
        super().setUp()
        self.make_topic(TOPIC)
        self.said: set[tuple[int, str]] = set()
        prepare = Instance._prepare

        def noting(instance: Instance, command: RemotingCommand) -> None:
            prepare(instance, command)
            self.said.update(facts(command))

        self.other = self.sim.client()
        self.patch(Instance, "_prepare", noting)
        self.client = self.sim.client()

    def producer(self, group: str, instance: Instance | None = None) -> Producer:
        instance = instance or self.client
        made = Producer(instance, group, ProducerSettings())
        instance.parts.append(made)
        return made

    def close_and_compare(self, conversation: str, *codes: int, without: str = "nothing", java_says: str = "") -> None:
        """
        The requests of these codes are the same; ``without`` are those that only one conversation came to.

        ``java_says`` is ours=theirs: a piece of text in our requests, and what Java's have in its place.
        """
        self.sim.run(self.client.close())
        ours, _, theirs = java_says.partition("=")
        for code in codes:
            mine = {fact.replace(ours, theirs) if ours else fact for said, fact in self.said if said == code}
            javas = {fact for said, fact in of_java(conversation) if said == code}
            mine, javas = ({fact for fact in some if without not in fact} for some in (mine, javas))
            self.assertTrue(javas, f"{conversation} has no request {code}")
            self.assertEqual(sorted(mine), sorted(javas), f"{conversation}: requests {code}")

    def test_sends(self) -> None:
        """Plain, with all fields, one-way, batch, delayed, compressed, not waiting, to a queue, to a new topic."""
        sender = self.producer("PG_golden")
        send = sender.send
        run = self.sim.run
        run(send(Message(TOPIC, b"Hello RocketMQ")))
        text = "消息 \u2013 ünïcode \U0001f680".encode()
        run(
            send(
                Message(
                    TOPIC, text, tags="TagA", keys=("key1", "key2"), properties={"colour": "grün", "a": "7"}, flag=42
                )
            )
        )
        run(send(Message(TOPIC, b"async", tags="TagB", keys=("async1",))))
        run(sender.send_oneway(Message(TOPIC, b"one-way", tags="TagA", keys=("oneway1",))))
        run(
            sender.send_batch(
                [
                    Message(TOPIC, b"batch %d" % n, tags="TagA", keys=(f"batch{n}",), properties={"i": str(n)})
                    for n in range(3)
                ]
            )
        )
        run(send(Message(TOPIC, b"delayed", tags="TagA", keys=("delay1",), delay_level=1)))
        run(send(Message(TOPIC, b"z" * 6000, tags="TagA", keys=("big1",))))
        run(send(Message(TOPIC, b"WAIT=false", tags="TagA", keys=("nowait",), wait_store_ok=False)))
        run(send(Message(TOPIC, b"queue chosen", tags="TagC", keys=("chosen",)), queue=FIRST))
        run(send(Message(f"{TOPIC}_auto", b"creates its topic", tags="TagA", keys=("auto1",))))
        self.close_and_compare(
            "produce",
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
        )

    def test_push(self) -> None:
        """Tags, a message that fails until it is dead, offsets, the members of the group."""

        def fail_twice(message: ReceivedMessage) -> None:
            if message.tags == "FAIL" and message.reconsume_times < 2:
                raise Later

        sender, inbox = self.producer("PG_push"), Inbox(fail_twice)
        member = consumer(self.client, inbox, {TOPIC: "TagA || TagC || FAIL"}, "CG_push4", max_reconsume_times=2)
        self.sim.run(member.start())
        for body, tags, key in (
            (b"wakes a suspended pull", "TagA", "wakeup"),
            (b"does not match the tags", "TagZ", "nomatch"),
            (b"fails twice, then is dead", "FAIL", "fail1"),
        ):
            self.sim.run(sender.send(Message(TOPIC, body, tags=tags, keys=(key,))))
        self.until(lambda: len(inbox.got) == 4)
        self.sim.pass_s(12)
        codes = (
            *OF_CONSUMERS,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
        )
        self.close_and_compare("push", *codes)

    def test_orderly(self) -> None:
        """Locks of queues, and that they are let go."""
        sender, inbox = self.producer("PG_orderly"), Inbox()
        for n in range(3):
            message = Message(TOPIC, b"ordered %d" % n, tags="TagA", keys=(f"ord{n}",))
            self.sim.run(sender.send(message, queue=FIRST))
        self.sim.run(consumer(self.client, inbox, {TOPIC: "*"}, "CG_orderly", orderly=True).start())
        self.until(lambda: len(inbox.got) == 3)
        self.sim.pass_s(6)
        codes = (*OF_CONSUMERS, RequestCode.SEND_MESSAGE_V2, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
        # Java's consumer ended before it knew its retry topic
        self.close_and_compare("orderly", *codes, without='topic": "%RETRY%')

    def test_lite_pull(self) -> None:
        """Pulls, a commit, the members of the group."""
        self.sim.run(self.producer("PG", self.other).send(Message(TOPIC, b"x", tags="TagA")))
        made = self.sim.run(pull_consumer(self.client, "CG_lite", {TOPIC: "*"}, PullSettings(consume_from=From.FIRST)))
        self.assertEqual(len(self.sim.run(made.getmany())), 1)
        self.sim.run(made.getmany())
        self.sim.run(made.commit())
        self.close_and_compare("litepull", *OF_CONSUMERS, java_says="FROM_FIRST=FROM_LAST")  # whatever is set

    def test_positions(self) -> None:
        """Where a queue begins and ends, where it was at a time, and where a group is."""
        topic = "GoldenReq4"
        self.make_topic(topic)
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
        made = self.sim.run(pull_consumer(self.client, "CG_pull", None, PullSettings()))
        self.sim.run(made.assign([queue]))
        self.sim.run(made.seek_to_begin(queue))
        self.sim.run(made.seek_to_end(queue))
        self.sim.run(made.seek_to_time(queue, 0))
        codes = (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        self.close_and_compare("pull", *codes)
        self.close_and_compare("produce", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, java_says=f"{topic}={TOPIC}")

    def test_sql(self) -> None:
        """The expression in heartbeats and in the question whether it is one; pulls without it."""
        sender, inbox = self.producer("PG_sql"), Inbox()
        chosen = Sql("a > 3 AND colour IN ('red','grün')")
        self.sim.run(consumer(self.client, inbox, {TOPIC: chosen}, "CG_sql").start())
        for n in range(2, 5):
            values = {"a": str(n), "colour": "red"}
            message = Message(TOPIC, b"sql %d" % n, tags="TagA", keys=(f"sql{n}",), properties=values)
            self.sim.run(sender.send(message))
        self.until(lambda: inbox.got)
        self.close_and_compare(
            "sql",
            RequestCode.CHECK_CLIENT_CONFIG,
            RequestCode.PULL_MESSAGE,
            RequestCode.HEART_BEAT,
            RequestCode.SEND_MESSAGE_V2,
        )

    def test_transactions(self) -> None:
        """Committed, rolled back, and asked for by the broker."""

        def judge(message: ReceivedMessage) -> Outcome:
            asked.append(message)
            return Outcome.ROLLBACK if message.keys[0] in ("tx1", "tx3") else Outcome.COMMIT

        asked: list[ReceivedMessage] = []
        made = transaction_producer(self.client, "PG_tx", judge, ProducerSettings())
        for n, how in enumerate("cruuc"):
            message = Message(TOPIC, b"transaction %d" % n, tags="TagTx", keys=(f"tx{n}",))
            result = self.sim.run(made.begin(message))
            if how != "u":
                self.sim.run(made.end(result, Outcome.COMMIT if how == "c" else Outcome.ROLLBACK))
        self.until(lambda: len(asked) == 2)
        self.sim.pass_s(2)
        codes = (
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.END_TRANSACTION,
        )
        # Java says also that it knows nothing yet, which changes nothing at the broker
        self.close_and_compare("transactions", *codes, without='commitOrRollback": "0')

    def test_request_and_reply(self) -> None:
        """A request with its id and who waits, the reply with the same."""
        replier, asker = self.producer("PG_replier"), self.producer("PG_request")
        topic = "GoldenReq4"

        def handle(message: ReceivedMessage) -> object:
            if "REPLY_TO_CLIENT" in message.properties:
                return Deferred.fromCoroutine(replier.reply(message, b"the reply"))
            return None

        self.sim.run(asker.send(Message(topic, b"creates the topic", tags="Req")))
        self.sim.run(consumer(self.client, handle, {topic: "*"}, "CG_replier").start())
        for n in range(2):
            asked = asker.request(Message(topic, b"the request %d" % n, tags="Req"), timeout_s=20)
            self.assertEqual(self.sim.run(asked).body, b"the reply")
        self.close_and_compare(
            "request-reply", RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.HEART_BEAT
        )
