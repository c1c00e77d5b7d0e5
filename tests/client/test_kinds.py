"""Ordered consumption, pull consumers, transactions and request-reply in simulated time."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from twisted.internet.defer import Deferred

from rmq import tx
from rmq.blocking import PullConsumer as BlockingPullConsumer
from rmq.client.flows.litepull import PullConsumer, pull_consumer
from rmq.client.flows.transactions import Outcome, TransactionProducer, transaction_producer
from rmq.client.settings import From, ProducerSettings, PullSettings
from rmq.client.types import Later, Message, NotDurable, ReceivedMessage, Reject, SendStatus, Sql
from rmq.errors import ClosedClient, ConfigurationError, LostQueue, NotDelivered, Refused, RequestTimeout
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    ConsumeDirectlyHeader,
    ConsumeResult,
    RunningInfo,
    RunningInfoHeader,
)
from rmq.wire.codes import ResponseCode
from tests.client.cluster import Inbox, Simulated, consumer, producer, send_all
from tests.client.test_flows import FlowCase

FIRST = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


class KindCase(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_topic()
        self.client = self.sim.client()
        self.sender = producer(self.client)


class SqlCase(KindCase):
    def refused(self, code: int, sql: str) -> None:
        """A consumer with this expression does not start, in any way; another one of the same client consumes."""
        wrong = {"T": Sql(sql)}
        push = consumer(self.client, Inbox(), wrong, "WRONG")
        for _ in range(2):  # another attempt is no better
            with self.assertRaises(Refused) as raised:
                self.sim.run(push.start())
            self.assertEqual(raised.exception.code, code)
        pull = self.sim.run(pull_consumer(self.client, "WRONG2", wrong, PullSettings()))
        self.assertRaises(Refused, self.sim.run, pull.getmany())
        assigned = self.sim.run(pull_consumer(self.client, "WRONG3", None, PullSettings()))
        self.assertRaises(Refused, self.sim.run, assigned.assign([FIRST], Sql(sql)))
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"x"]))
        self.until(lambda: inbox.bodies == [b"x"])


class SqlTests(SqlCase):
    values = MappingProxyType({"enablePropertyFilter": "true"})

    def test_an_expression_that_is_none(self) -> None:
        """One that cannot be parsed is refused at the start: heartbeats with it would stop the client's others."""
        self.refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "a >")

    def test_a_right_one(self) -> None:
        """A consumer gets what its expression lets through."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, {"T": Sql("a > 1")}).start())
        self.sim.run(send_all(self.sender, [b"no"], properties={"a": "1"}))
        self.sim.run(send_all(self.sender, [b"yes"], properties={"a": "2"}))
        self.until(lambda: inbox.bodies == [b"yes"])

    def test_a_broker_that_is_away(self) -> None:
        """A consumer starts when nobody can judge its expression, and consumes when the broker is back."""
        self.sim.run(send_all(self.sender, [b"yes"], properties={"a": "2"}))
        node = self.sim.brokers["broker-a"]
        node.kill()
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, {"T": Sql("a > 1")}).start())
        node.start()
        self.until(lambda: inbox.bodies == [b"yes"], 120)


class SqlSwitchedOffTests(SqlCase):
    def test_any_expression(self) -> None:
        """A broker that does not filter by expressions says so at the start."""
        self.refused(ResponseCode.SYSTEM_ERROR, "a > 1")


class OrderlyTests(KindCase):
    def test_order_through_failures(self) -> None:
        """Messages of one queue come one after the other; a failed one is tried again before the next."""
        running = [0]

        def handle(message: ReceivedMessage) -> Deferred[None]:
            running[0] += 1
            self.assertEqual(running[0], 1)
            done: Deferred[None] = Deferred()

            def end() -> None:
                running[0] -= 1
                fails = message.body == b"1" and message.reconsume_times < 2
                done.errback(ValueError("later")) if fails else done.callback(None)

            self.sim.world.schedule(0.3, end)
            return done

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox, orderly=True).start())
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)], queue=FIRST))
        self.until(lambda: len(inbox.got) == 6)
        self.assertEqual(inbox.bodies, [b"0", b"1", b"1", b"1", b"2", b"3"])
        self.sim.pass_s(10)
        self.assertEqual(self.committed()[0], 4)

    def stuck(self) -> Inbox:
        """Start a consumer whose first queue has a message that fails again and again, and one behind it."""

        def handle(message: ReceivedMessage) -> None:
            if message.body == b"bad":
                raise Later

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox, orderly=True).start())
        self.sim.run(send_all(self.sender, [b"bad", b"behind"], queue=FIRST))
        return inbox

    def test_queues_are_independent(self) -> None:
        """A queue whose message fails again and again does not stop the others."""
        inbox = self.stuck()
        other = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
        self.sim.run(send_all(self.sender, [b"a", b"b"], queue=other))
        self.until(lambda: {b"a", b"b"} <= set(inbox.bodies))
        self.sim.pass_s(20)
        self.assertGreater(inbox.bodies.count(b"bad"), 10)
        self.assertNotIn(b"behind", inbox.bodies)

    def test_reset_past_a_bad_message(self) -> None:
        """An operator's reset frees a queue from a message that fails again and again; it is not tried any more."""
        inbox = self.stuck()
        self.until(lambda: b"bad" in inbox.bodies)
        self.sim.pass_s(6)
        self.reset(to_ms=-1)
        self.sim.pass_s(2)
        tries = inbox.bodies.count(b"bad")
        self.sim.run(send_all(self.sender, [b"next"], queue=FIRST))
        self.sim.pass_s(10)
        self.assertEqual(inbox.bodies[tries:], [b"next"])
        self.assertEqual(self.committed()[0], 3)

    def test_dead_letters(self) -> None:
        """After max_reconsume_times tries, or a Reject, the message is a dead letter and the queue goes on."""

        def handle(message: ReceivedMessage) -> None:
            if message.body == b"bad":
                raise Later
            if message.body == b"never":
                raise Reject

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox, orderly=True, max_reconsume_times=2).start())
        self.sim.run(send_all(self.sender, [b"bad", b"never", b"good"], queue=FIRST))
        self.until(lambda: b"good" in inbox.bodies)
        self.assertEqual((inbox.bodies.count(b"bad"), inbox.bodies.count(b"never")), (3, 1))
        self.until(lambda: self.sim.broker().store.max_offset("%DLQ%CG", 0) == 2, 60, "the dead letters")

    def test_one_owner(self) -> None:
        """A new member gets a queue only when its handler at the old member has ended; no message is handled twice."""
        waits: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None]:
            waits.append(Deferred())
            return waits[-1]

        first = consumer(self.client, Inbox(wait), orderly=True)
        self.sim.run(first.start())
        for number in range(4):
            queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=number)
            self.sim.run(send_all(self.sender, [b"%d" % number, b"next"], queue=queue))
        self.until(lambda: len(waits) == 4)
        inbox = Inbox()
        second = consumer(self.sim.client(), inbox, orderly=True)
        self.sim.run(second.start())
        self.sim.pass_s(30)
        self.assertEqual((inbox.got, second.assignment() & {FIRST}), ([], frozenset()))
        for one in list(waits):
            one.callback(None)
        self.until(lambda: len(inbox.got) == 2 and len(waits) == 6, 90)
        self.assertEqual(set(inbox.bodies), {b"next"})
        for one in waits[4:]:
            one.callback(None)

    def test_close_unlocks(self) -> None:
        """After a close another member has the queues at once."""
        self.sim.run(consumer(self.client, Inbox(), orderly=True).start())
        self.sim.run(send_all(self.sender, [b"x"]))
        self.sim.pass_s(3)
        other = self.sim.client()
        self.sim.run(self.client.close())
        inbox = Inbox()
        self.sim.run(consumer(other, inbox, orderly=True).start())
        self.sim.run(send_all(producer(other), [b"y"]))
        self.until(lambda: inbox.bodies == [b"y"], 20)

    def test_needs_a_handler(self) -> None:
        self.assertRaises(ConfigurationError, consumer, self.client, None, orderly=True)


class PullTests(KindCase):
    def pull(self, *, subscribes: bool = True, **settings: object) -> PullConsumer:
        values = PullSettings(**{"consume_from": From.FIRST, **settings})  # type: ignore[arg-type]
        return self.sim.run(pull_consumer(self.client, "PG2", {"T": "*"} if subscribes else None, values))

    def drain(self, made: PullConsumer, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [message.body for message in self.sim.run(made.getmany())]
        return found

    def test_auto_commit(self) -> None:
        """Each getmany acknowledges the one before; a close acknowledges the last; a new member goes on behind."""
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(8)]))
        made = self.pull()
        self.assertEqual(sorted(self.drain(made, 8)), [b"%d" % n for n in range(8)])
        self.assertEqual(self.sim.run(made.getmany(timeout_s=2)), [])
        self.sim.pass_s(6)
        self.assertEqual(sum(self.committed(group="PG2").values()), 8)
        self.sim.run(send_all(self.sender, [b"last"]))
        self.assertEqual(self.drain(made, 1), [b"last"])
        self.sim.run(made.close())
        self.assertEqual(sum(self.committed(group="PG2").values()), 9)

    def test_topic_comes_later(self) -> None:
        """A consumer of a topic that is unknown yet has its first message within seconds of the topic."""
        made = self.sim.run(pull_consumer(self.client, "PG3", {"Late": "*"}, PullSettings(consume_from=From.FIRST)))
        self.assertEqual(self.sim.run(made.getmany(timeout_s=2)), [])
        self.sim.run(self.sender.send(Message("Late", b"x")))
        self.assertEqual(len(self.sim.run(made.getmany(timeout_s=10))), 1)

    def test_own_commits(self) -> None:
        """Without auto_commit nothing is acknowledged but by commit."""
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)], queue=FIRST))
        made = self.pull(auto_commit=False)
        self.drain(made, 4)
        self.sim.pass_s(20)
        self.assertEqual(self.sim.run(made.committed(FIRST)), 0)  # what brokers say of a young queue
        self.assertEqual(made.position(FIRST), 0)
        self.sim.run(made.commit())
        self.assertEqual((self.sim.run(made.committed(FIRST)), made.position(FIRST)), (4, 4))

    def test_assign_and_seek(self) -> None:
        """A consumer of assigned queues reads those alone, and goes where it is sent."""
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)], queue=FIRST))
        self.sim.run(
            send_all(self.sender, [b"other"], queue=MessageQueue(topic="T", broker_name="broker-a", queue_id=1))
        )
        made = self.pull(subscribes=False)
        self.sim.run(made.assign([FIRST]))
        self.assertEqual(self.drain(made, 4), [b"0", b"1", b"2", b"3"])
        self.sim.run(made.seek(FIRST, 2))
        self.assertEqual(self.drain(made, 2), [b"2", b"3"])
        self.sim.run(made.seek_to_begin(FIRST))
        self.assertEqual(self.drain(made, 4)[0], b"0")
        self.sim.run(made.seek_to_end(FIRST))
        self.assertEqual(self.sim.run(made.getmany(timeout_s=1)), [])
        self.sim.run(made.seek_to_time(FIRST, 0))
        self.assertEqual(len(self.drain(made, 4)), 4)
        # the faces
        twisted = tx.PullConsumer(made)
        settle = self.sim.world.settle
        settle(twisted.seek_to_begin(FIRST))
        self.assertEqual(self.drain(made, 4)[0], b"0")
        settle(twisted.seek_to_end(FIRST))
        self.assertEqual(settle(twisted.getmany(timeout_s=1)), [])
        settle(twisted.seek_to_time(FIRST, 0))
        self.assertEqual(len(self.drain(made, 4)), 4)
        blocking = BlockingPullConsumer(self.sim.run, made)
        blocking.seek_to_begin(FIRST)
        self.assertEqual(self.drain(made, 4)[0], b"0")
        blocking.seek_to_end(FIRST)
        self.assertEqual(blocking.getmany(timeout_s=1), [])
        blocking.seek_to_time(FIRST, 0)
        self.assertEqual(len(self.drain(made, 4)), 4)
        self.assertEqual(made.assignment(), {FIRST})
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
        self.assertRaises(LostQueue, made.position, queue)

    def test_close(self) -> None:
        """Each face closes a pull consumer before its client, so that other members get the queues at once."""
        for is_twisted in (True, False):
            self.sim.run(send_all(self.sender, [b"x"], queue=FIRST))
            made = self.pull()
            self.drain(made, 1)
            if is_twisted:
                report = self.sim.world.settle(tx.PullConsumer(made).close())
            else:
                report = BlockingPullConsumer(self.sim.run, made).close()
            self.assertGreater(report.offsets_written, 0)
            self.failureResultOf(Deferred.fromCoroutine(made.getmany()), ClosedClient)

    def test_wrong_arguments(self) -> None:
        """What would do nothing, or something else, is refused: no messages at all, an offset below 0, no queue."""
        made = self.pull(subscribes=False)
        self.sim.run(send_all(self.sender, [b"0"], queue=FIRST))
        self.sim.run(made.assign([FIRST]))
        no_queue: Any = "broker-a:0"
        for wrong, text in (
            (made.getmany(max_messages=0), "max_messages is a whole number of at least 1, not 0"),
            (made.seek(FIRST, -1), "an offset is a whole number of at least 0, not -1"),
            (made.seek(no_queue, 0), "a queue is a MessageQueue, not 'broker-a:0'"),
            (made.assign([no_queue]), "a queue is a MessageQueue, not 'broker-a:0'"),
        ):
            with self.assertRaisesRegex(ConfigurationError, text):
                self.sim.run(wrong)

    def test_seek_at_once(self) -> None:
        """A queue may be sought right after it was assigned, before the broker has said where it begins."""
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)], queue=FIRST))
        made = self.pull(subscribes=False)
        self.sim.run(made.assign([FIRST]))
        with self.assertRaisesRegex(LostQueue, "not known yet"):
            made.position(FIRST)
        self.sim.run(made.seek(FIRST, 2))
        self.assertEqual(made.position(FIRST), 2)
        self.assertEqual(self.drain(made, 2), [b"2", b"3"])
        self.assertEqual(self.sim.run(made.getmany(timeout_s=1)), [])

    def test_members_share(self) -> None:
        """Two pull consumers share the queues, also within one client id's machine."""
        first, second = (
            self.pull(),
            self.sim.run(pull_consumer(self.sim.client(), "PG2", {"T": "*"}, PullSettings(consume_from=From.FIRST))),
        )
        self.sim.run(first.start())
        self.sim.run(second.start())
        self.until(lambda: [len(member.assignment()) for member in (first, second)] == [2, 2], 60, "2 and 2 queues")

    def test_client_id(self) -> None:
        """Brokers see a client id that ends in @STREAM, and an active consumer."""
        made = self.pull()
        self.sim.run(made.start())
        group = self.sim.broker().consumers.find("PG2")
        assert group is not None
        self.assertEqual(group.consume_type, "CONSUME_ACTIVELY")
        self.assertTrue(all(name.endswith("@STREAM") for name in group.client_ids))


class DurabilityTests(FlowCase):
    def setUp(self) -> None:
        # a master that waits for slaves, and has none
        self.sim = Simulated(values={"brokerRole": "SYNC_MASTER"})
        self.make_topic()
        self.client = self.sim.client()

    def test_strict(self) -> None:
        """With strict a message that no slave has raises, and the error says where it is; else the status says it."""
        result = self.sim.run(producer(self.client).send(Message("T", b"x"), queue=FIRST))
        self.assertEqual((result.status, result.queue_offset), (SendStatus.SLAVE_NOT_AVAILABLE, 0))
        strict = producer(self.client, strict=True)
        for sending in (
            strict.send(Message("T", b"x"), queue=FIRST),
            strict.send_batch([Message("T", b"x")], queue=FIRST),
        ):
            error = self.assertRaises(NotDurable, self.sim.run, sending)
            self.assertEqual((error.result.status, error.result.queue), (SendStatus.SLAVE_NOT_AVAILABLE, FIRST))
            self.assertIn("SLAVE_NOT_AVAILABLE", str(error))
        self.assertEqual(error.result.queue_offset, 2)
        # the broker does not wait, so this is as safe as asked for
        self.sim.run(strict.send(Message("T", b"x", wait_store_ok=False)))

    def test_transactions(self) -> None:
        """A half message that no slave has is rolled back and NotDelivered, with strict too."""
        for strict in (False, True):
            settings = ProducerSettings(strict=strict)
            made = transaction_producer(self.client, f"TP-{strict}", lambda message: Outcome.COMMIT, settings)
            error = self.assertRaises(NotDelivered, self.sim.run, made.begin(Message("T", b"x")))
            self.assertIn("SLAVE_NOT_AVAILABLE", str(error))


class TransactionTests(KindCase):
    def setUp(self) -> None:
        super().setUp()
        self.asked: list[ReceivedMessage] = []
        self.answer: object = Outcome.COMMIT
        self.inbox = Inbox()
        self.sim.run(consumer(self.client, self.inbox).start())

    def check(self, message: ReceivedMessage) -> object:
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def transactions(self) -> TransactionProducer:
        return transaction_producer(self.client, "TG", self.check, ProducerSettings())

    async def one(self, made: TransactionProducer, body: bytes, *, fails: bool = False, unknown: bool = False) -> None:
        begun = made.transaction(Message("T", body, keys=("k",)))
        self.assertEqual(repr(begun), "<Transaction of topic T, not begun, COMMIT>")
        async with begun as transaction:
            self.assertRegex(repr(begun), "^<Transaction of topic T, [0-9A-F]{32} in T broker-a:[0-9], COMMIT>$")
            await self.client.host.sleep(2)
            self.assertNotIn(body, self.inbox.bodies)
            if unknown:
                transaction.unknown()
            if fails:
                raise LookupError(body)

    def test_an_end_that_is_no_outcome(self) -> None:
        """It is refused, and says what an end is; the transaction may still end."""
        made = self.transactions()
        begun = self.sim.run(made.begin(Message("T", b"x")))
        wrongs: list[Any] = ["commit", True, None]
        for wrong in wrongs:
            with self.assertRaisesRegex(ConfigurationError, "ends with an Outcome, not"):
                self.sim.run(made.end(begun, wrong))
        self.sim.run(made.end(begun, Outcome.COMMIT))
        self.until(lambda: self.inbox.bodies == [b"x"])

    def test_commit_and_rollback(self) -> None:
        """A message is seen after the end of the block, and never after an exception in it."""
        made = self.transactions()
        self.sim.run(self.one(made, b"good"))
        self.assertRaises(LookupError, self.sim.run, self.one(made, b"bad", fails=True))
        self.until(lambda: self.inbox.got)
        self.sim.pass_s(120)
        self.assertEqual((self.inbox.bodies, self.asked), ([b"good"], []))
        self.assertEqual(self.inbox.got[0].keys, ("k",))

    def test_the_broker_asks(self) -> None:
        """A transaction whose end is unknown is asked for until the check knows; an exception is 'not yet'."""
        self.answer = ValueError("the database is away")
        made = self.transactions()
        self.sim.run(self.one(made, b"x", unknown=True))
        self.until(lambda: self.asked, 200, "the question")
        self.sim.pass_s(10)
        self.assertEqual(self.inbox.got, [])
        self.answer = Outcome.COMMIT
        self.until(lambda: self.inbox.got, 200)
        self.assertEqual((self.inbox.bodies, self.asked[0].body, self.asked[0].topic), ([b"x"], b"x", "T"))

    def restart(self, *topics: str) -> None:
        """Leave a transaction without end, and wait until the next process of the program is asked about it."""
        before = self.sim.client()
        made = transaction_producer(before, "TG", lambda message: Outcome.UNKNOWN, ProducerSettings())
        self.sim.run(self.one(made, b"x", unknown=True))
        self.sim.run(before.close())
        transaction_producer(self.sim.client(), "TG", self.check, ProducerSettings(), topics)
        self.until(lambda: self.inbox.got, 200)

    def test_a_program_that_has_restarted_is_asked(self) -> None:
        """Brokers that create topics by themselves ask a producer that has not sent anything yet."""
        self.restart()


class RestartTests(TransactionTests):
    values = MappingProxyType({"autoCreateTopicEnable": "false"})

    def test_a_program_that_has_restarted_is_asked(self) -> None:
        """So do other brokers, if they have one of its topics."""
        self.restart("T")
        self.assertRaises(
            ConfigurationError, transaction_producer, self.client, "TG", self.check, ProducerSettings(), ["a b"]
        )


class RequestTests(KindCase):
    def test_reply(self) -> None:
        """A request gets the reply of the consumer of its message."""
        other = self.sim.client()
        replier = producer(other)

        def handle(message: ReceivedMessage) -> Deferred[None]:
            return Deferred.fromCoroutine(replier.reply(message, message.body.upper() + bytes(5000)))

        self.sim.run(consumer(other, handle).start())
        reply = self.sim.run(self.sender.request(Message("T", b"hello"), timeout_s=20))
        self.assertEqual(reply.body, b"HELLO" + bytes(5000))
        self.assertEqual(self.client.requests, {})

    def test_no_reply(self) -> None:
        """Without a reply the wait ends in time."""
        self.assertRaises(RequestTimeout, self.sim.run, self.sender.request(Message("T", b"x"), timeout_s=2))
        self.assertEqual(self.client.requests, {})

    def test_close_while_a_request_waits(self) -> None:
        """A close ends the wait for a reply, which comes too late then, with ClosedClient."""
        self.sim.run(self.sender.send(Message("T", b"creates the topic")))
        waiting = Deferred.fromCoroutine(self.sender.request(Message("T", b"x"), timeout_s=1000))
        self.sim.pass_s(5)
        self.assertNoResult(waiting)
        self.sim.run(self.sender._instance.close())
        self.sim.pass_s(1)
        self.failureResultOf(waiting, ClosedClient)

    def test_not_a_request(self) -> None:
        """Only a request can be answered."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"x"]))
        self.until(lambda: inbox.got)
        self.assertRaises(ConfigurationError, self.sim.run, self.sender.reply(inbox.got[0], b"y"))


class CloseTests(KindCase):
    def test_a_handler_may_close(self) -> None:
        """What a handler sets off may close the client: the close ends when the handler has."""
        received: Deferred[ReceivedMessage] = Deferred()

        async def main() -> int:
            await consumer(self.client, received.callback).start()
            await send_all(self.sender, [b"x"])
            await received
            return (await self.client.close()).handlers_cancelled

        self.assertEqual(self.sim.run(main(), 20), 0)


class ToolTests(KindCase):
    def info(self, group: str = "CG", client_id: str = "", *, stacks: bool = False) -> RunningInfo:
        """What a member says to an operator, through its broker."""
        header = RunningInfoHeader(
            consumer_group=group, client_id=client_id or self.client.client_id, jstack_enable=stacks
        )
        ask = self.client.ask(self.client.master("broker-a"), GET_CONSUMER_RUNNING_INFO, header, None)
        return fastjson.decode(self.sim.run(ask).body, RunningInfo)

    def test_running_info(self) -> None:
        """An operator sees the properties, subscriptions and queues of a member, through its broker."""
        self.sim.run(consumer(self.client, Inbox()).start())
        self.sim.run(send_all(self.sender, [b"x"], queue=FIRST))
        self.sim.pass_s(5)
        info = self.info()
        self.assertEqual(info.properties["PROP_CONSUME_TYPE"], "CONSUME_PASSIVELY")
        self.assertEqual(info.properties["PROP_CONSUMEORDERLY"], "false")
        self.assertEqual(info.properties["pullThresholdForQueue"], "1000")
        self.assertEqual({data.topic for data in info.subscription_set}, {"T", "%RETRY%CG"})
        self.assertEqual((info.mq_table[FIRST].commit_offset, info.mq_table[FIRST].cached_msg_count), (1, 0))
        self.assertIsNone(info.jstack)
        self.assertIn("rmq handler of CG", self.info(stacks=True).jstack or "")

    def test_rates_of_a_member(self) -> None:
        """They are those of the last minute: messages handled and failed, and how long handlers take."""
        failing = [b"2", b"3"]

        async def handle(message: ReceivedMessage) -> None:
            await self.client.host.sleep(0.2)
            if message.body in failing:
                failing.remove(message.body)
                raise Later(1)

        self.sim.run(consumer(self.client, handle).start())
        self.sim.run(send_all(self.sender, [b"%d" % number for number in range(6)], queue=FIRST))
        self.sim.pass_s(29)
        table = self.info().status_table
        self.assertEqual(set(table), {"T", "%RETRY%CG"})
        status = table["T"]
        self.assertApproximates(status.consume_rt, 200, 1)
        self.assertApproximates(status.consume_ok_tps, 4 / 29, 0.02)
        self.assertApproximates(status.consume_failed_tps, 2 / 29, 0.02)
        self.assertApproximates(status.pull_tps, 6 / 29, 0.03)
        self.assertEqual((status.consume_failed_msgs, table["%RETRY%CG"].consume_failed_msgs), (2, 0))
        self.sim.pass_s(60)
        later = self.info().status_table["T"]
        self.assertEqual((later.consume_ok_tps, later.pull_tps, later.consume_failed_msgs), (0, 0, 2))
        self.assertApproximates(later.consume_rt, 200, 1)

    def test_when_a_queue_was_consumed(self) -> None:
        """Tools tell from these times that a member is stuck: what is in hand was not consumed, or is not locked."""
        start_ms = self.client.host.wall_ms()

        async def handle(message: ReceivedMessage) -> None:
            if message.body != b"first":
                await self.client.host.sleep(1000)

        self.sim.run(consumer(self.client, handle, orderly=True).start())
        self.sim.run(send_all(self.sender, [b"first", b"second"], queue=FIRST))
        self.sim.pass_s(50)
        info = self.info()
        queue, now_ms = info.mq_table[FIRST], self.client.host.wall_ms()
        self.assertEqual(info.properties["PROP_CONSUMEORDERLY"], "true")
        self.assertEqual((queue.cached_msg_count, queue.locked), (1, True))
        self.assertLess(start_ms, queue.last_consume_timestamp)
        self.assertLess(queue.last_consume_timestamp, now_ms - 40_000)
        self.assertLess(now_ms - 21_000, queue.last_lock_timestamp)

    def test_running_info_of_a_pull_consumer(self) -> None:
        """One that polls itself answers, too, with what it pulled."""
        pull = self.sim.run(pull_consumer(self.client, "PG", {"T": "*"}, PullSettings(consume_from=From.FIRST)))
        self.sim.run(send_all(self.sender, [b"x"], queue=FIRST))
        self.assertEqual(len(self.sim.run(pull.getmany(timeout_s=20))), 1)
        group = self.sim.broker("broker-a").consumers.find("PG")
        assert group is not None
        (member,) = group.client_ids
        info = self.info("PG", member)
        self.assertEqual(info.properties["PROP_CONSUME_TYPE"], "CONSUME_ACTIVELY")
        self.assertNotIn("PROP_CONSUMEORDERLY", info.properties)
        self.assertGreater(info.status_table["T"].pull_tps, 0)
        self.assertEqual(info.mq_table[FIRST].cached_msg_count, 1)

    def test_direct_consumption(self) -> None:
        """An operator may give a message to the handler again, and sees how that went."""
        verdicts: list[Exception | None] = [None, None, Later(), ValueError("planted")]

        def handle(message: ReceivedMessage) -> None:
            verdict = verdicts.pop(0)
            if verdict is not None:
                raise verdict

        inbox = Inbox(handle)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"x"], queue=FIRST))
        self.until(lambda: inbox.got)
        results = []
        for _ in range(3):
            header = ConsumeDirectlyHeader(
                consumer_group="CG",
                client_id=self.client.client_id,
                msg_id=inbox.got[0].offset_message_id,
                broker_name="broker-a",
            )
            ask = self.client.ask(self.client.master("broker-a"), CONSUME_MESSAGE_DIRECTLY, header, None)
            results.append(fastjson.decode(self.sim.run(ask).body, ConsumeResult))
        self.assertEqual([r.consume_result for r in results], ["CR_SUCCESS", "CR_LATER", "CR_THROW_EXCEPTION"])
        self.assertIn("planted", results[2].remark or "")
        self.assertEqual(inbox.bodies, [b"x"] * 4)
