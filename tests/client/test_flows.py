"""Producers and consumers against our own broker in simulated time: what is sent is consumed, whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from msgspec import structs
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq import tx
from rmq.blocking import Producer as BlockingProducer
from rmq.client.flows.admin import admin
from rmq.client.flows.instance import AGAIN_S, Instance
from rmq.client.flows.litepull import PullConsumer, pull_consumer
from rmq.client.flows.member import Member
from rmq.client.flows.orderly import push_consumer
from rmq.client.flows.producer import Producer
from rmq.client.flows.producer import producer as new_producer
from rmq.client.flows.push import Delivery, PushConsumer
from rmq.client.flows.transactions import transaction_producer
from rmq.client.settings import ClientSettings, From, ProducerSettings, PullSettings, PushSettings
from rmq.client.types import CloseReport, Later, Message, ReceivedMessage, Reject, SendStatus
from rmq.errors import (
    AlreadySettled,
    ClosedClient,
    ConfigurationError,
    ForkedClient,
    LostQueue,
    NoRoute,
    NotDelivered,
)
from rmq.namesrv.service import NamesrvService
from rmq.wire.api.common import MessageQueue, TopicConfig
from rmq.wire.api.forwarding import (
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumerStatusHeader,
    ResetOffsetHeader,
)
from tests.client.cluster import Inbox, Simulated, consumer, producer, send_all


class FlowCase(SynchronousTestCase):
    brokers: tuple[str, ...] = ("broker-a",)
    #: keys of the brokers
    values: Mapping[str, str] = MappingProxyType({})

    def setUp(self) -> None:
        self.sim = Simulated(*self.brokers, values=self.values)

    def tearDown(self) -> None:
        self.sim.end()
        self.flushLoggedErrors()

    def make_topic(self, name: str = "T", queues: int = 4) -> None:
        for broker in self.sim.brokers:
            config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            self.sim.broker(broker).topics.put(config)
            self.sim.broker(broker).registration.topics_changed()
        self.sim.pass_s(1)

    def until(self, condition: object, limit_s: float = 60.0, what: str = "the messages") -> None:
        self.sim.world.run_until(condition, limit_s, what)  # type: ignore[arg-type]

    def committed(self, topic: str = "T", group: str = "CG", broker: str = "broker-a") -> dict[int, int]:
        offsets = self.sim.broker(broker).offsets
        return dict(offsets.positions(group, topic))

    def reset(self, *, to_ms: int) -> None:
        """Reset the offsets of group CG in topic T, as an operator does: -1 is the end, 0 the begin."""
        client = self.sim.client()
        self.sim.run(client.route("T"))
        header = ResetOffsetHeader(topic="T", group="CG", timestamp=to_ms, is_force=True)
        self.sim.run(client.ask(client.master("broker-a"), INVOKE_BROKER_TO_RESET_OFFSET, header, None))


def owned(member: Member) -> int:
    return len([queue for queue in member.assignment() if queue.topic == "T"])


class SendTests(FlowCase):
    def test_timeouts(self) -> None:
        """A timeout that is no number of seconds, or leaves no time, is refused before anything is sent."""
        self.make_topic(queues=1)
        client = self.sim.client()
        sender = producer(client)
        puller = self.sim.run(pull_consumer(client, "CG", {"T": "*"}, PullSettings()))
        wrong: tuple[Any, ...] = ("3", -1, float("nan"), [3])
        for timeout_s in (*wrong, 0):
            for sending in (
                sender.send(Message("T", b"x"), timeout_s=timeout_s),
                sender.send_batch([Message("T", b"x")], timeout_s=timeout_s),
                sender.request(Message("T", b"x"), timeout_s=timeout_s),
            ):
                with self.assertRaisesRegex(ConfigurationError, "timeout_s is a number of seconds above 0, not"):
                    self.sim.run(sending)
        for timeout_s in (None, float("inf")):
            with self.assertRaisesRegex(ConfigurationError, "timeout_s of a request is a number of seconds"):
                self.sim.run(sender.request(Message("T", b"x"), timeout_s=cast(Any, timeout_s)))
        for timeout_s in wrong:
            with self.assertRaisesRegex(ConfigurationError, "timeout_s is a number of seconds of at least 0, not"):
                self.sim.run(puller.getmany(timeout_s=timeout_s))
        self.assertEqual(self.sim.run(puller.getmany(timeout_s=0)), [])
        self.assertEqual(self.sim.run(sender.send(Message("T", b"x"), timeout_s=None)).queue_offset, 0)
        self.assertEqual(str(self.sim.run(sender.send(Message("T", b"x"))).queue), "T broker-a:0")

    def test_result(self) -> None:
        """A result says where the message lies; the topic is made by the first send."""
        sender = producer(self.sim.client())
        first = self.sim.run(sender.send(Message("T", b"hello", tags="A", keys=("k",))))
        self.assertEqual((first.status, first.queue.broker_name, first.queue_offset), (SendStatus.OK, "broker-a", 0))
        self.assertEqual((len(first.message_id), len(first.offset_message_id)), (32, 32))

    def test_a_topic_that_a_message_made(self) -> None:
        """Its route is known when the send is answered: services are tested by a send, then the start of a consumer."""
        sender, names = producer(self.sim.client()), self.sim.namesrv.service
        assert isinstance(names, NamesrvService)
        for topic in ("T", "U", "V"):
            self.sim.run(sender.send(Message(topic, b"x")))
            self.assertIn(topic, names.routes.topology.topics())

    def test_queues_take_turns(self) -> None:
        """Sends without a queue go to all queues in turn, those with a key to the queue of that key."""
        self.make_topic()
        sender = producer(self.sim.client())
        results = [self.sim.run(sender.send(Message("T", b"x"))) for _ in range(8)]
        self.assertEqual(sorted(result.queue.queue_id for result in results), [0, 0, 1, 1, 2, 2, 3, 3])
        keyed = {self.sim.run(sender.send(Message("T", b"x"), sharding_key="order-7")).queue.queue_id for _ in range(5)}
        self.assertEqual(len(keyed), 1)
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=2)
        self.assertEqual(self.sim.run(sender.send(Message("T", b"x"), queue=queue)).queue, queue)

    def test_first_send_to_a_queue(self) -> None:
        """The first send of a client finds the broker of the queue that it names, without a retry and one-way too."""
        self.make_topic(queues=2)
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
        sender = producer(self.sim.client(), retries=0)
        self.assertEqual(self.sim.run(sender.send(Message("T", b"x"), queue=queue)).queue, queue)
        self.sim.run(producer(self.sim.client()).send_oneway(Message("T", b"y"), queue=queue))

    def test_batch_and_oneway(self) -> None:
        """A batch lies in one queue in its order; a one-way message arrives too."""
        self.make_topic(queues=1)
        client = self.sim.client()
        sender = producer(client)
        result = self.sim.run(sender.send_batch([Message("T", b"%d" % n, tags="A") for n in range(3)]))
        self.assertEqual((result.queue_offset, len(result.offset_message_id.split(","))), (0, 3))
        self.sim.run(sender.send_oneway(Message("T", b"3")))
        inbox = Inbox()
        self.sim.run(consumer(client, inbox).start())
        self.until(lambda: len(inbox.got) == 4)
        self.assertEqual(sorted(inbox.bodies), [b"0", b"1", b"2", b"3"])

    def test_language(self) -> None:
        """Brokers see a client in Python."""
        client = self.sim.client()
        self.sim.run(producer(client).send(Message("T", b"x")))
        self.sim.run(consumer(client, Inbox()).start())
        group = self.sim.broker().consumers.find("CG")
        assert group is not None
        self.assertEqual([member.language for member in group.members.values()], ["PYTHON"])

    def test_key_of_a_wrong_type(self) -> None:
        """A sharding_key is a text."""
        sender = producer(self.sim.client())
        sending = sender.send(Message("T", b"x"), sharding_key=42)  # type: ignore[arg-type]
        self.sim.run(self.refused(sending, "42"))

    def test_what_a_batch_is_made_of(self) -> None:
        """Any iterable of messages will do; what is none, or has none, is refused by its name."""
        sender = producer(self.sim.client())
        sent = self.sim.run(sender.send_batch(Message("T", b"%d" % n) for n in range(3)))
        self.assertEqual(len(sent.message_id.split(",")), 3)
        wrongs: tuple[tuple[Any, str], ...] = (
            ((), "a batch without messages"),
            (Message("T", b"x"), "not Message"),
            (b"bytes", "not of int"),
            (3, "not int"),
        )
        for wrong, text in wrongs:
            self.sim.run(self.refused(sender.send_batch(wrong), text))

    def test_what_a_consumer_is_made_of(self) -> None:
        """
        Handlers that could not be called, or would do nothing, are refused, and so are subscriptions of a wrong shape.

        The body of a generator function would never run, and each message would count as consumed. A function without
        arguments, or with two, would fail for each.
        """

        def generator(message: ReceivedMessage) -> Iterator[int]:
            yield 1

        async def asynchronous(message: ReceivedMessage) -> AsyncIterator[int]:
            yield 1

        class Yielding:
            def __call__(self, message: ReceivedMessage) -> Iterator[int]:
                yield 1

        client = self.sim.client()
        wrongs: list[Any] = [7, "handle", generator, asynchronous, partial(generator), Yielding()]
        wrongs += [lambda: None, lambda message, more: None]
        for wrong in wrongs:
            self.assertRaises(ConfigurationError, consumer, client, wrong)
            self.assertRaises(ConfigurationError, transaction_producer, client, "PG", wrong, ProducerSettings())
        subscriptions: list[Any] = ["T", ["T"], {"T": None}, {"T": ["A", "B"]}, {}]
        for wrong in subscriptions:
            self.assertRaises(ConfigurationError, consumer, client, None, wrong)
        groups: list[Any] = [None, 7, "", "a b"]
        for wrong in groups:
            self.assertRaises(ConfigurationError, consumer, client, None, group=wrong)
        consumer(client, partial(lambda more, message: None, 1))
        consumer(client, partial(print, end=""), group="G2")

    def test_a_consumer_with_a_handler_has_no_messages_for_others(self) -> None:
        """`receive` and `async for` say so; they would wait for ever."""

        async def iterate(found: PushConsumer) -> None:
            async for _ in found:
                pass

        found = consumer(self.sim.client(), print)
        self.sim.run(found.start())
        self.sim.run(self.refused(found.receive(), "go to its handler"))
        self.sim.run(self.refused(iterate(found), "go to its handler"))

    def test_what_a_handler_takes(self) -> None:
        """A handler whose annotation contradicts batch_size is refused; any other one, and one without, is taken."""

        def one(message: ReceivedMessage) -> None: ...

        async def some(messages: Sequence[ReceivedMessage]) -> None: ...

        class Lists:
            def take(self, messages: list[ReceivedMessage]) -> None: ...

        def whatever(message: Any) -> None: ...

        def anything(message: object) -> None: ...

        def both(message: ReceivedMessage | list[ReceivedMessage]) -> None: ...

        client = self.sim.client()
        wrongs: list[tuple[Any, int]] = [(one, 2), (some, 1), (Lists().take, 1), (partial(some), 1)]
        for handler, size in wrongs:
            with self.assertRaisesRegex(ConfigurationError, f"with batch_size={size} a handler gets"):
                consumer(client, handler, batch_size=size)
        taken: list[tuple[Any, int]] = [(one, 1), (some, 2), (Lists().take, 2), (print, 1), (print, 2)]
        taken += [(handler, size) for handler in (whatever, anything, both, lambda it: None) for size in (1, 2)]
        for number, (handler, size) in enumerate(taken):
            consumer(client, handler, group=f"G{number}", batch_size=size)

    def test_a_handler_raises_what_is_no_exception(self) -> None:
        """pytest.fail in a handler is a failure like others: the message comes again, and the handler is called on."""

        class Outcome(BaseException):
            pass

        def fail(message: ReceivedMessage) -> None:
            if message.reconsume_times == 0:
                raise Outcome("no")

        client = self.sim.client()
        self.sim.run(send_all(producer(client), [b"0", b"1", b"2"]))
        for group, orderly in (("G1", False), ("G2", True)):
            inbox = Inbox(fail)
            self.sim.run(consumer(client, inbox, group=group, concurrency=1, orderly=orderly).start())
            with self.assertLogs("rmq.client.consumer", logging.WARNING) as logged:
                self.until(lambda inbox=inbox: sum(message.reconsume_times == 1 for message in inbox.got) == 3, 120)
            self.assertIn("the handler raised Outcome('no')", logged.output[0])

    def test_settings_of_something_else(self) -> None:
        """They are refused with the kind that is wanted, where they would fail at a field that they do not have."""
        client = self.sim.client()
        wrong: Any = PullSettings()
        with self.assertRaisesRegex(ConfigurationError, r"PushSettings\(...\) is wanted here, not PullSettings\("):
            push_consumer(client, "CG", {"T": "*"}, Inbox(), wrong)
        wrong = PushSettings()
        with self.assertRaisesRegex(ConfigurationError, r"ProducerSettings\(...\) is wanted here, not PushSettings"):
            new_producer(client, "PG", wrong)
        with self.assertRaisesRegex(ConfigurationError, r"ProducerSettings\(...\) is wanted here"):
            transaction_producer(client, "PG", print, wrong)
        with self.assertRaisesRegex(ConfigurationError, r"PullSettings\(...\) is wanted here"):
            self.sim.run(pull_consumer(client, "CG", {"T": "*"}, wrong))
        for credentials, settings in ((("key", "secret"), ClientSettings()), (None, wrong)):
            with self.assertRaisesRegex(ConfigurationError, r"(Credentials|ClientSettings)\(...\) is wanted here"):
                Instance(client.host, "a:1", credentials, settings)  # type: ignore[arg-type]

    def test_a_topic_without_a_route(self) -> None:
        """One line says which topic, which group, where it is unknown, and what happens; later looks say nothing."""
        client = self.sim.client()
        with self.assertLogs("rmq.client", logging.INFO) as logged:
            self.sim.run(consumer(client, Inbox(), {"nothing": "*"}).start())
            self.sim.pass_s(60)
        (line,) = logged.output
        self.assertIn("WARNING:rmq.client.consumer:topic nothing has no route yet, so group CG gets no messages", line)
        self.assertTrue(line.endswith(f"every {AGAIN_S:g} s: unknown at {self.sim.namesrv_addr}"), line)
        self.assertNotIn("\n", line)
        with self.assertRaises(NoRoute) as raised:
            self.sim.run(client.fetch_route("nothing"))
        self.assertNotIn("\n", str(raised.exception))

    def test_queues_in_the_log(self) -> None:
        """The log says which queues a member gets and gives up; a new group alone is no trouble to report."""
        self.make_topic()
        client = self.sim.client()
        one = consumer(client, Inbox(), {"T": "*"})
        with self.assertLogs("rmq.client", logging.INFO) as logged:
            self.sim.run(one.start())
            self.sim.pass_s(25)
            self.sim.run(one.close())
        topic = [line.partition("topic T here; ")[2] for line in logged.output if "topic T here;" in line]
        every = "T broker-a:0, T broker-a:1, T broker-a:2, T broker-a:3"
        self.assertEqual(topic, [f"gained: {every}; lost: none", f"gained: none; lost: {every}"])
        self.assertEqual([line for line in logged.output if "does not say" in line], [])

    def test_refused_pulls_in_the_log(self) -> None:
        """What a broker refuses for all queues of a topic is one line."""
        self.make_topic()
        made = consumer(self.sim.client(), Inbox(), {"T": "*"})
        self.sim.run(made.start())
        self.until(lambda: owned(made) == 4)
        self.sim.broker("broker-a").topics.put(TopicConfig(topic_name="T", perm=2))
        with self.assertLogs("rmq.client", logging.WARNING) as logged:
            self.sim.pass_s(25)
        (line,) = [line for line in logged.output if "cannot be pulled" in line]
        self.assertRegex(line, "queue T broker-a:[0-3] cannot be pulled: .* refuses it with code 16: ")

    def test_queue_of_another_topic(self) -> None:
        """A queue of another topic is refused; a topic with and without its namespace is the same one."""
        for namespace in (None, "NS"):
            sender = producer(self.sim.client(namespace=namespace))
            for topic in ("T", "U"):
                self.sim.run(sender.send(Message(topic, b"creates the topic")))
            self.sim.pass_s(1)
            no_queue: Any = "0"
            self.sim.run(self.refused(sender.send(Message("T", b"x"), queue=no_queue), "queue"))
            message, (mine, other) = Message("T", b"x"), [self.sim.run(sender.queues(topic))[0] for topic in "TU"]
            for sending in (
                sender.send(message, queue=other),
                sender.send_batch([message], queue=other),
                sender.send_oneway(message, queue=other),
            ):
                self.sim.run(self.refused(sending, "topic"))
            plain = MessageQueue(topic="T", broker_name=mine.broker_name, queue_id=mine.queue_id)
            for queue in (mine, plain):
                self.assertEqual(self.sim.run(sender.send(message, queue=queue)).queue, mine)
                self.assertEqual(self.sim.run(sender.send_batch([message], queue=queue)).queue, mine)
                self.sim.run(sender.send_oneway(message, queue=queue))

    async def refused(self, sending: Awaitable[object], text: str) -> None:
        try:
            await sending
        except ConfigurationError as error:
            self.assertIn(text, str(error))
        else:
            self.fail("it was sent")

    def test_unknown_topic(self) -> None:
        """Without automatic creation an unknown topic is NoRoute, with what the NameServer said."""
        sender = producer(self.sim.client(), default_topic="nothing")
        error = self.failureOf(sender.send(Message("T", b"x")), NoRoute)
        self.assertIn("No topic route info", str(error))

    def failureOf(self, coroutine: object, kind: type[Exception]) -> Exception:
        try:
            self.sim.run(coroutine)  # type: ignore[arg-type]
        except kind as error:
            return error
        raise AssertionError(f"no {kind.__name__}")

    def test_master_is_back(self) -> None:
        """After a route without a master, which a slave keeps alive, a send asks again instead of the next poll."""
        self.make_topic()
        client = self.sim.client()
        sender = producer(client)
        self.sim.run(sender.send(Message("T", b"x")))
        route = client.routes["T"]
        slave_only = [structs.replace(data, broker_addrs={1: "10.9.9.9:10911"}) for data in route.broker_datas]
        client.routes["T"] = structs.replace(route, broker_datas=slave_only)
        sender.routes_changed()
        began = self.sim.world.now_s
        self.sim.run(sender.send(Message("T", b"x")))
        self.assertLess(self.sim.world.now_s - began, 1)
        self.assertEqual(client.routes["T"], route)

    def test_a_master_that_comes_soon(self) -> None:
        """A send whose topic has no master for a moment waits for one, and fails only with its time."""
        self.make_topic()
        sender, node = producer(self.sim.client()), self.sim.brokers["broker-a"]
        self.sim.run(sender.send(Message("T", b"x")))
        node.kill()
        self.sim.pass_s(1)
        for kind, text in ((NotDelivered, "cannot connect"), (NoRoute, "No topic route info")):
            began = self.sim.world.now_s
            self.assertIn(text, str(self.failureOf(sender.send(Message("T", b"x")), kind)))
            self.assertTrue(2.8 <= self.sim.world.now_s - began <= 3.0, self.sim.world.now_s - began)
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
        sends = [
            sender.send(Message("T", b"y"), timeout_s=20.0),
            sender.send(Message("T", b"y"), sharding_key="k", timeout_s=20.0),
            sender.send(Message("T", b"y"), queue=queue, timeout_s=20.0),
            sender.send_batch([Message("T", b"y")], timeout_s=20.0),
        ]
        asked, ask = [], sender._instance.ask

        async def noted(*arguments: Any) -> Any:
            asked.append(self.sim.world.now_s)
            return await ask(*arguments)

        sender._instance.ask = noted  # type: ignore[assignment]
        sends += [sender.send(Message("T", b"y"), timeout_s=20.0) for _ in range(500)]
        sending = [Deferred.fromCoroutine(send) for send in sends]
        self.sim.pass_s(5)
        self.assertFalse(any(one.called for one in sending))
        self.assertLess(len(asked), 250)  # the route of the topic, and of the one for topics that are new
        node.start()
        results = [self.sim.world.settle(one) for one in sending]
        self.assertEqual(results[2].queue, queue)

    def test_a_broker_restarts_without_a_nameserver(self) -> None:
        """What is known of a route counts for as long as no NameServer can be asked."""
        self.make_topic()
        sender, node = producer(self.sim.client()), self.sim.brokers["broker-a"]
        self.sim.run(sender.send(Message("T", b"x")))
        self.sim.namesrv.kill()
        node.kill()
        self.failureOf(sender.send(Message("T", b"x")), NotDelivered)
        node.start()
        self.sim.pass_s(2)
        self.sim.run(sender.send(Message("T", b"x")))
        self.sim.namesrv.start()

    def test_the_newest_route_of_a_broker(self) -> None:
        """Where a broker is says the route that came last, not one of another topic that is asked for later."""
        client = self.sim.client()
        sender = producer(client)
        for topic in ("T", "U"):
            self.sim.run(sender.send(Message(topic, b"creates the topic")))
        self.sim.pass_s(1)
        for topic in ("T", "U"):
            self.sim.run(client.fetch_route(topic))
        before = client.brokers["broker-a"]
        for topic in ("T", "U"):
            route = client.routes[topic]
            moved = [structs.replace(data, broker_addrs={0: "10.9.9.9:10911"}) for data in route.broker_datas]
            client._keep_route(topic, structs.replace(route, broker_datas=moved))
            self.assertEqual(client.brokers["broker-a"], {0: "10.9.9.9:10911"})
            self.sim.run(client.fetch_route(topic))
            self.assertEqual(client.brokers["broker-a"], before)

    def test_routes_are_asked_for_when_a_broker_cannot_be_reached(self) -> None:
        """At once, each half second for 5 s, each 2 s for ten minutes; each 30 s again when it is back."""
        self.make_topic()
        client, node = self.sim.client(), self.sim.brokers["broker-a"]
        inbox, asked = Inbox(), list[float]()
        self.sim.run(consumer(client, inbox).start())
        self.sim.run(producer(self.sim.client()).send(Message("T", b"x")))
        self.until(lambda: len(inbox.got) == 1)
        fetch_route = client.fetch_route

        async def noted(topic: str, timeout_s: float | None = None) -> Any:
            if topic == "T":
                asked.append(self.sim.world.now_s - began)
            return await fetch_route(topic, timeout_s)

        client.fetch_route = noted  # type: ignore[method-assign]
        began = self.sim.world.now_s
        node.kill()
        self.sim.pass_s(15)
        soon = [at for at in asked if at < 5]
        self.assertLess(soon[0], 0.1)
        self.assertTrue(8 <= len(soon) <= 11, asked)
        self.assertTrue(4 <= len(asked) - len(soon) <= 6, asked)
        node.start()
        self.sim.pass_s(30)
        asked.clear()
        self.sim.pass_s(60)
        self.assertEqual(len(asked), 2)

    def test_dead_broker(self) -> None:
        """With the only broker gone the deadline ends the send, and the error says what was tried."""
        self.make_topic()
        sender = producer(self.sim.client())
        self.sim.run(sender.send(Message("T", b"x")))
        self.sim.brokers["broker-a"].crash()
        began = self.sim.world.now_s
        error = self.failureOf(sender.send(Message("T", b"x"), timeout_s=2.0), NotDelivered)
        self.assertLess(self.sim.world.now_s - began, 2.5)
        assert isinstance(error, NotDelivered)
        self.assertTrue(error.attempts and error.may_be_stored)

    def test_unknown_broker(self) -> None:
        """A queue of a broker that no route has is NotDelivered after all tries, with the reason once."""
        sender = producer(self.sim.client())
        queue = MessageQueue(topic="T", broker_name="gone", queue_id=0)
        error = self.failureOf(sender.send(Message("T", b"x"), queue=queue), NotDelivered)
        assert isinstance(error, NotDelivered)
        self.assertEqual((len(error.attempts), str(error).count("no address of broker gone")), (3, 1))

    def test_room(self) -> None:
        """A send beyond max_in_flight waits for one of the others."""
        self.make_topic()
        sender = producer(self.sim.client(), max_in_flight=2)
        ends = [Deferred.fromCoroutine(sender.send(Message("T", b"x"))) for _ in range(5)]
        for end in ends:
            self.sim.world.settle(end)

    def test_closed(self) -> None:
        """After the close nothing is sent, and the error says so."""
        client = self.sim.client()
        sender = producer(client)
        self.sim.run(client.close())
        self.sim.run(client.close())
        self.failureOf(sender.send(Message("T", b"x")), ClosedClient)

    def test_in_a_forked_process(self) -> None:
        """Every call of a client and of its consumers says that they are another process's, a second start, too."""
        self.make_topic()
        client = self.sim.client()
        push, taking, sender = consumer(client, Inbox()), consumer(client, None, group="TG"), producer(client)
        pull = self.sim.run(pull_consumer(client, "PG", {"T": "*"}, PullSettings()))
        reader = self.sim.run(pull_consumer(client, "RG", None, PullSettings()))
        for part in (push, taking, pull):
            self.sim.run(part.start())
        self.until(lambda: owned(pull) == 4)
        (queue, *_) = pull.assignment()
        host, pid = client.host, client.host.pid()
        host.pid = lambda: pid + 1  # type: ignore[method-assign]
        calls: list[Callable[[], Any]] = [client.start, push.start, push.run, taking.receive, pull.start, pull.getmany]
        calls += [pull.commit, lambda: pull.seek(queue, 0), lambda: pull.committed(queue)]
        calls += [lambda: reader.assign([queue]), lambda: sender.send(Message("T", b"x")), admin(client).topics]
        for call in calls:
            self.failureResultOf(Deferred.fromCoroutine(call()), ForkedClient)
        for say in (push.health, push.pause, push.resume, pull.assignment, lambda: pull.position(queue)):
            self.assertRaises(ForkedClient, say)
        for close in (push.close, pull.close, client.close):
            self.assertEqual(self.successResultOf(Deferred.fromCoroutine(close())), CloseReport())
        host.pid = lambda: pid  # type: ignore[method-assign]
        self.assertEqual(owned(pull), 4)

    def test_a_start_after_the_close(self) -> None:
        """A consumer that is closed, or closed while it starts, does not start: ClosedClient; its run returns."""
        self.make_topic()
        for is_started in (True, False):
            closed = consumer(self.sim.client(), Inbox())
            if is_started:
                self.sim.run(closed.start())
            self.sim.run(closed.close())
            self.failureOf(closed.start(), ClosedClient)
            self.sim.run(closed.run())
        early = consumer(self.sim.client(), Inbox())
        starting = Deferred.fromCoroutine(early.start())
        self.sim.run(early.close())
        self.sim.pass_s(5)
        self.failureResultOf(starting, ClosedClient)

    def test_a_producer_leaves(self) -> None:
        """A producer that is closed is no member at the broker; with another one of its group the client stays one."""
        self.make_topic()
        client = self.sim.client()
        first, second = producer(client), producer(client)
        self.sim.run(first.send(Message("T", b"x")))
        self.sim.run(client.heartbeat())

        def members() -> int:
            return len(self.sim.broker().producers.members("PG"))

        self.assertEqual(members(), 1)
        self.sim.run(first.close())
        self.assertEqual(members(), 1)
        self.failureOf(first.send(Message("T", b"x")), ClosedClient)
        self.sim.run(second.send(Message("T", b"x")))
        self.sim.run(second.close())
        self.assertEqual(members(), 0)
        self.sim.pass_s(65)
        self.assertEqual(members(), 0)

    def test_a_producer_of_each_face_leaves(self) -> None:
        self.make_topic()
        for close in (
            lambda flow: self.sim.world.settle(tx.Producer(flow).close()),
            lambda flow: BlockingProducer(self.sim.run, flow).close(),
        ):
            made = producer(self.sim.client())
            self.sim.run(made.send(Message("T", b"x")))
            close(made)
            self.failureOf(made.send(Message("T", b"x")), ClosedClient)


class TwoBrokerTests(FlowCase):
    brokers = ("broker-a", "broker-b")

    def test_other_broker_takes_over(self) -> None:
        """While one of two brokers is down every send succeeds at the other, and counts as one message."""
        self.make_topic()
        sender = producer(self.sim.client())
        self.sim.pass_s(1)
        self.sim.run(sender.send(Message("T", b"x")))
        self.sim.brokers["broker-a"].kill()
        results = [self.sim.run(sender.send(Message("T", b"x"))) for _ in range(8)]
        self.assertEqual({result.queue.broker_name for result in results}, {"broker-b"})

    def test_a_broker_comes_back(self) -> None:
        """The queues of a broker that left the routes are read within 5 s of its return."""
        self.make_topic()
        inbox, sender = Inbox(), producer(self.sim.client())
        self.sim.run(consumer(self.sim.client(), inbox).start())
        for away_s in (10, 50, 300):
            node = self.sim.brokers["broker-a"]
            node.kill()
            self.sim.pass_s(away_s)
            node.start()
            back_s = self.sim.world.now_s
            self.until(lambda: self.sim.broker().registration.first_round.called)
            body = b"after %d s" % away_s
            queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=3)
            self.sim.run(sender.send(Message("T", body), queue=queue, timeout_s=20))
            self.until(lambda b=body: b in inbox.bodies)
            self.assertLess(self.sim.world.now_s - back_s, 5, away_s)

    def test_members_come_and_go(self) -> None:
        """
        A consumer that is made and not started gets no queues; one that is closed gives them to the others at once,
        also when its client stays, and its group may have another consumer in this client then.
        """
        self.make_topic()
        first, other = self.sim.client(), self.sim.client()
        self.sim.run(send_all(producer(other), [b"x"]))
        member = consumer(first, Inbox())
        self.sim.run(member.start())
        made: PushConsumer | PullConsumer
        for kind in ("concurrent", "orderly", "pull"):
            if kind == "pull":
                values = PullSettings(consume_from=From.FIRST)
                made = self.sim.run(pull_consumer(other, "CG", {"T": "*"}, values))
            else:
                made = consumer(other, Inbox(), orderly=kind == "orderly")
            self.sim.pass_s(70)
            self.until(lambda: owned(member) == 8, 1, "all queues, for the other one is not started")
            self.sim.run(made.start())
            self.until(lambda m=made: [owned(member), owned(m)] == [4, 4], 25, "4 and 4 queues")
            self.sim.run(made.close())
            self.until(lambda: owned(member) == 8, 2, "all queues, for the other one has left")
            self.sim.pass_s(70)
            self.assertEqual(owned(member), 8)

    def test_offsets_of_lost_queues(self) -> None:
        """
        The offsets of all queues that go to a new member are on their way at once: it reads them when it has joined.
        """
        self.make_topic(queues=8)
        client, inbox = self.sim.client(), Inbox()
        member = consumer(client, inbox)
        self.sim.run(member.start())
        sender = producer(self.sim.client())
        self.sim.run(send_all(sender, [b"%d" % n for n in range(32)]))
        self.until(lambda: len(inbox.got) == 32, 3)
        self.sim.pass_s(6)  # offsets are written every five seconds
        self.sim.run(send_all(sender, [b"%d" % n for n in range(32)]))
        self.until(lambda: len(inbox.got) == 64, 3)
        for broker in self.sim.brokers.values():
            self.sim.net.clog(self.sim.clients[0], broker, 0.1)
            self.sim.net.clog(broker, self.sim.clients[0], 0.1)
        self.sim.run(consumer(self.sim.client(), Inbox()).start())
        self.until(lambda: owned(member) < 16, 3, "the first lost queue")
        self.sim.pass_s(0.15)
        self.assertEqual(owned(member), 8)
        kept = {(queue.broker_name, queue.queue_id) for queue in member.assignment()}
        offsets = {(name, n): at for name in self.sim.brokers for n, at in self.committed(broker=name).items()}
        self.assertEqual({at for place, at in offsets.items() if place not in kept}, {4})

    def goes_on_where_others_are(self, *, orderly: bool) -> None:
        self.make_topic()
        sender = producer(self.sim.client())
        inboxes = [Inbox(), Inbox()]
        members = [consumer(self.sim.client(), inbox, orderly=orderly) for inbox in inboxes]
        for member in members:
            self.sim.run(member.start())

        def got(word: bytes, of: list[Inbox]) -> int:
            return sum(body.startswith(word) for inbox in of for body in inbox.bodies)

        self.until(lambda: [owned(member) for member in members] == [4, 4])
        self.sim.run(send_all(sender, [b"first %d" % n for n in range(40)]))
        self.until(lambda: got(b"first", inboxes) == 40)
        self.sim.pass_s(6)  # offsets are written every five seconds
        for far in (self.sim.namesrv, *self.sim.brokers.values()):
            self.sim.net.partition(self.sim.clients[1], far)
        self.sim.pass_s(150)
        self.assertEqual(owned(members[1]), 8)
        self.sim.run(send_all(sender, [b"second %d" % n for n in range(400)]))
        self.until(lambda: got(b"second", inboxes[1:]) == 400)
        self.sim.pass_s(6)
        self.sim.net.heal()
        self.until(lambda: [owned(member) for member in members] == [4, 4], 90)
        self.sim.run(send_all(sender, [b"third %d" % n for n in range(40)]))
        self.until(lambda: got(b"third", inboxes) >= 40)
        self.sim.pass_s(6)
        self.assertEqual(got(b"second", inboxes[:1]), 0)
        self.assertEqual(got(b"", inboxes), 480)

    def test_goes_on_where_others_are(self) -> None:
        """A member that no broker heard of for so long that others got its queues begins where those are."""
        self.goes_on_where_others_are(orderly=False)

    def test_goes_on_in_order_where_others_are(self) -> None:
        """So does one that consumes in order."""
        self.goes_on_where_others_are(orderly=True)

    def test_after_a_sleep_nothing_old_is_written_or_handled(self) -> None:
        """Neither the timer, nor a queue that goes, nor an old poll counts before the offsets are known."""
        self.make_topic(queues=1)
        offsets, sender, inbox = self.sim.broker().offsets, producer(self.sim.client()), Inbox()
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)

        def send(count: int) -> None:
            for _ in range(count):
                self.sim.run(sender.send(Message("T", b"x"), queue=queue))

        member = consumer(self.sim.client(), inbox)
        self.sim.run(member.start())
        node = self.sim.clients[-1]
        send(3)
        self.until(lambda: len(inbox.got) == 3)
        self.sim.pass_s(6)
        node.step_clock(200)  # while its poll is held
        offsets.commit("CG", "T", 0, 4)
        send(1)
        self.sim.pass_s(5)
        self.assertEqual(len(inbox.got), 3)
        send(1)
        self.until(lambda: len(inbox.got) == 4)
        member.pause(queue)
        send(2)
        self.sim.pass_s(0.1)
        node.step_clock(200)
        offsets.commit("CG", "T", 0, 99)
        self.sim.pass_s(8)
        self.assertEqual(self.committed(), {0: 99})
        self.sim.broker().topics.put(TopicConfig(topic_name="T", read_queue_nums=0, write_queue_nums=0))
        self.sim.broker().registration.topics_changed()
        self.until(lambda: queue not in member.assignment(), 90, "the queue that went")
        self.sim.pass_s(1)
        self.assertEqual(self.committed(), {0: 99})

    def test_members_share_the_queues(self) -> None:
        """Each queue of both brokers has one owner; a member that leaves gives its queues to the other one."""
        self.make_topic()
        self.sim.pass_s(1)
        sender = producer(self.sim.client())
        clients, inboxes = [self.sim.client(), self.sim.client()], [Inbox(), Inbox()]
        members = [consumer(client, inbox) for client, inbox in zip(clients, inboxes, strict=True)]
        for member in members:
            self.sim.run(member.start())

        self.until(lambda: [owned(member) for member in members] == [4, 4], 60, "4 and 4 queues")
        self.sim.run(send_all(sender, [b"%d" % n for n in range(40)]))
        self.until(lambda: sum(len(inbox.got) for inbox in inboxes) == 40)
        self.assertTrue(all(inbox.got for inbox in inboxes))
        report = self.sim.run(clients[0].close())
        self.assertEqual((report.offsets_not_written, report.handlers_cancelled), (0, 0))
        self.until(lambda: owned(members[1]) == 8, 60, "all queues")
        self.sim.run(send_all(sender, [b"%d" % n for n in range(40, 80)]))
        self.until(lambda: len({b for inbox in inboxes for b in inbox.bodies}) == 80)
        self.sim.pass_s(30)
        self.assertEqual(sum(len(inbox.got) for inbox in inboxes), 80)


class ConsumeTests(FlowCase):
    def setUp(self) -> None:
        super().setUp()
        self.make_topic()
        self.client = self.sim.client()
        self.sender = producer(self.client)

    def test_tags(self) -> None:
        """A consumer gets the tags that it wants, also where hashes collide."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, {"T": "Aa || C"}).start())
        for tag in ("Aa", "BB", "C", "D"):
            self.sim.run(send_all(self.sender, [tag.encode()], tags=tag))
        self.until(lambda: len(inbox.got) == 2)
        self.sim.pass_s(10)
        self.assertEqual(sorted(inbox.bodies), [b"Aa", b"C"])
        self.assertEqual(sum(self.committed().values()), 4)

    def test_content(self) -> None:
        """Body (compressed on the way), keys, tags and properties arrive as they were sent."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        body = b"long " * 2000
        sent = self.sim.run(self.sender.send(Message("T", body, "A", ("k1", "k2"), properties={"p": "v"})))
        self.until(lambda: inbox.got)
        got = inbox.got[0]
        self.assertEqual((got.body, got.tags, got.keys, got.properties["p"]), (body, "A", ("k1", "k2"), "v"))
        self.assertLess(len(got.record.body), 1000)
        self.assertEqual((got.message_id, got.queue), (sent.message_id, sent.queue))
        self.assertEqual((got.topic, got.reconsume_times), ("T", 0))
        self.assertTrue(got.store_host.endswith(":10911"))

    def test_first_offset(self) -> None:
        """
        A new group of a queue that still has its first message begins there, whatever it asks for: brokers decide so.
        """
        self.sim.run(send_all(self.sender, [b"old"] * 4))
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, consume_from=From.LAST).start())
        self.until(lambda: len(inbox.got) == 4)

    def test_failures_come_again(self) -> None:
        """A handler that raises gets the message again after the broker's delay, with its original topic."""

        def fail_once(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                raise ValueError("not now")

        inbox = Inbox(fail_once)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"x"]))
        self.until(lambda: len(inbox.got) == 2, 120)
        first, second = inbox.got
        self.assertEqual([m.reconsume_times for m in inbox.got], [0, 1])
        self.assertEqual((second.topic, second.body, second.queue.topic), ("T", b"x", "%RETRY%CG"))
        self.assertGreaterEqual(second.stored_ms - first.stored_ms, 10_000)

    def test_cancelled_wait(self) -> None:
        """A handler whose wait was cancelled by others has failed: its message comes again, in order or not."""
        for group, orderly in (("G1", False), ("G2", True)):
            wait: Deferred[None] = Deferred()
            bad, good = group.encode() + b" bad", group.encode() + b" good"
            inbox = Inbox(lambda message, wait=wait, bad=bad: wait if message.body == bad else None)  # type: ignore[misc]
            made = consumer(self.client, inbox, group=group, orderly=orderly, concurrency=1)
            self.sim.run(made.start())
            self.sim.run(send_all(self.sender, [bad]))
            self.until(lambda inbox=inbox, bad=bad: bad in inbox.bodies)
            wait.cancel()
            self.sim.run(send_all(self.sender, [good]))
            self.until(lambda inbox=inbox, bad=bad: inbox.bodies.count(bad) == 2, 120)
            self.until(lambda inbox=inbox, good=good: good in inbox.bodies)
            self.assertEqual(self.sim.run(made.close()).handlers_cancelled, 0)

    def test_later_and_reject(self) -> None:
        """Later chooses the delay, Reject sends to the dead letter queue at once."""

        def judge(message: ReceivedMessage) -> None:
            if message.body == b"later" and not message.reconsume_times:
                raise Later(delay_level=1)
            if message.body == b"never":
                raise Reject

        inbox = Inbox(judge)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"later", b"never"]))
        self.until(lambda: inbox.bodies.count(b"later") == 2, 120)
        self.sim.pass_s(60)
        self.assertEqual(inbox.bodies.count(b"never"), 1)
        self.assertEqual(self.sim.broker().store.max_offset("%DLQ%CG", 0), 1)

    def test_poison_ends_in_the_dead_letter_queue(self) -> None:
        """After max_reconsume_times tries a message is in %DLQ%, and comes no more."""

        def fail(message: ReceivedMessage) -> None:
            raise Later(delay_level=1)

        inbox = Inbox(fail)
        self.sim.run(consumer(self.client, inbox, max_reconsume_times=3).start())
        self.sim.run(send_all(self.sender, [b"poison"]))
        self.until(lambda: self.sim.broker().store.max_offset("%DLQ%CG", 0) == 1, 300, "the dead letter")
        self.sim.pass_s(60)
        self.assertEqual([m.reconsume_times for m in inbox.got], [0, 1, 2, 3])

    def test_batches(self) -> None:
        """With batch_size a handler gets lists; Later(from_index) gives back the rest of one."""
        sizes: list[int] = []
        again: list[bytes] = []

        def handle(messages: list[ReceivedMessage]) -> None:
            sizes.append(len(messages))
            if messages[0].reconsume_times:
                again.extend(message.body for message in messages)
            elif len(messages) > 1:
                raise Later(delay_level=1, from_index=1)

        self.sim.run(self.sender.send_batch([Message("T", b"%d" % n) for n in range(3)]))
        self.sim.run(consumer(self.client, handle, batch_size=10).start())
        self.until(lambda: sorted(again) == [b"1", b"2"], 120)
        self.assertEqual(sizes[0], 3)

    def test_offsets_are_written(self) -> None:
        """Offsets go to the broker every five seconds, and never beyond a handler that still runs."""
        waits: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None] | None:
            if message.body == b"slow":
                waits.append(Deferred())
                return waits[-1]
            return None

        inbox = Inbox(wait)
        self.sim.run(consumer(self.client, inbox).start())
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        for body in (b"1", b"slow", b"3"):
            self.sim.run(self.sender.send(Message("T", body), queue=queue))
        self.until(lambda: len(inbox.got) == 3)
        self.sim.pass_s(20)
        self.assertEqual(self.committed()[0], 1)
        waits[0].callback(None)
        self.sim.pass_s(6)
        self.assertEqual(self.committed()[0], 3)

    def test_handler_timeout(self) -> None:
        """A handler that does not end is cancelled, its message comes again, and others are served meanwhile."""
        cancelled: list[object] = []

        def hang(message: ReceivedMessage) -> Deferred[None] | None:
            return None if message.reconsume_times else Deferred(cancelled.append)

        inbox = Inbox(hang)
        self.sim.run(consumer(self.client, inbox, concurrency=1, consume_timeout_s=30).start())
        self.sim.run(send_all(self.sender, [b"a"]))
        self.until(lambda: len(inbox.got) == 2, 120)
        self.assertEqual(len(cancelled), 1)

    def test_handlers_that_end_together(self) -> None:
        """
        Of two handlers that are too long at work one may end when the other is cancelled: what its worker does next is
        left alone, and handlers are checked as before.
        """
        for number, has_next in enumerate((False, True)):
            waits: dict[bytes, Deferred[None]] = {}
            cancelled: list[bytes] = []

            def handle(
                message: ReceivedMessage,
                waits: dict[bytes, Deferred[None]] = waits,
                cancelled: list[bytes] = cancelled,
            ) -> Deferred[None] | None:
                def cancel(_: object) -> None:
                    cancelled.append(message.body)
                    if message.body == b"a":
                        waits[b"b"].callback(None)
                        raise LookupError("planted")  # which Deferred.cancel lets out

                if message.reconsume_times or message.body in waits:
                    return None
                waits[message.body] = Deferred(cancel)
                return waits[message.body]

            bodies = [b"a", b"b", b"next"] if has_next else [b"a", b"b"]
            settings = {"concurrency": 2, "consume_timeout_s": 30, "drain_timeout_s": 1}
            made = consumer(self.client, handle, {f"T{number}": "*"}, f"G{number}", **settings)
            self.make_topic(f"T{number}", 1)
            queue = MessageQueue(topic=f"T{number}", broker_name="broker-a", queue_id=0)
            self.sim.run(made.start())
            for body in bodies:
                self.sim.run(self.sender.send(Message(f"T{number}", body), queue=queue))
            self.until(lambda c=cancelled: c, 60)
            self.sim.pass_s(10)
            self.assertEqual(cancelled, [b"a"])
            if has_next:
                waits[b"next"].callback(None)
            self.sim.run(self.sender.send(Message(f"T{number}", b"hung"), queue=queue))
            self.until(lambda c=cancelled: c == [b"a", b"hung"], 60)
            self.sim.run(made.close())

    def test_close_waits_for_handlers(self) -> None:
        """A close lets running handlers end and writes their offsets; what waits longer is cancelled and reported."""
        waits: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None]:
            waits.append(Deferred())
            return waits[-1]

        self.sim.run(consumer(self.client, Inbox(wait), drain_timeout_s=10).start())
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        for body in (b"1", b"2"):
            self.sim.run(self.sender.send(Message("T", body), queue=queue))
        self.until(lambda: len(waits) == 2)
        closing = Deferred.fromCoroutine(self.client.close())
        self.sim.pass_s(1)
        waits[0].callback(None)
        report = self.sim.world.settle(closing)
        self.assertEqual((report.handlers_cancelled, report.offsets_not_written), (1, 0))
        self.assertEqual(self.committed()[0], 1)

    def test_a_handler_sends_during_the_close(self) -> None:
        """While the close of a client waits for a handler, that may send; producers refuse after it."""
        waits: list[Deferred[None]] = []

        async def handle(message: ReceivedMessage) -> None:
            waits.append(Deferred())
            await waits[-1]
            await self.sender.send(Message("T", b"follow-up"))

        self.sim.run(consumer(self.client, handle).start())
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.until(lambda: waits)
        closing = Deferred.fromCoroutine(self.client.close())
        self.sim.pass_s(1)
        waits[0].callback(None)
        self.sim.world.settle(closing, 10)
        self.assertEqual(sum(self.committed().values()), 1)
        store = self.sim.broker().store
        self.assertEqual(sum(store.max_offset("T", queue_id) for queue_id in range(4)), 2)
        with self.assertRaises(ClosedClient):
            self.sim.run(self.sender.send(Message("T", b"x")))

    def test_another_master_after_a_silent_one(self) -> None:
        """
        A broker that does not answer makes a producer look at the routes, at most every two seconds.

        So a send after the first one that failed goes to the broker that has taken its place, not only after half a
        minute.
        """
        self.make_topic()
        client = self.sim.client()
        sender = producer(client)
        self.sim.run(sender.send(Message("T", b"to the first")))
        self.sim.net.partition(self.sim.clients[-1], self.sim.brokers["broker-a"])
        second = self.sim.replace("broker-a")
        self.make_topic()
        with self.assertRaises(NotDelivered):
            self.sim.run(sender.send(Message("T", b"to nobody")))
        self.sim.pass_s(0.5)
        sent = self.sim.run(sender.send(Message("T", b"to the second")))
        self.assertIs(sent.status, SendStatus.OK)
        self.assertEqual(client.brokers, {"broker-a": {0: f"{second.address}:10911"}})

    def test_close_while_a_broker_hangs(self) -> None:
        """It waits once for a silent server, and not once for each queue; one that is back counts again."""
        self.make_topic(queues=16)
        for is_ordered in (False, True):
            client = self.sim.client(client_ip=f"10.1.0.{is_ordered:d}")
            first = consumer(client, Inbox(), group="G1", orderly=is_ordered)
            second = consumer(client, Inbox(), group="G2", orderly=is_ordered)
            for made in (first, second):
                self.sim.run(made.start())
                self.until(lambda made=made: owned(made) == 16 and not any(queue.lag for queue in made.health()))
            self.sim.net.partition(self.sim.clients[-1], self.sim.brokers["broker-a"])
            began_s = client.host.seconds()
            report = self.sim.run(first.close())
            self.assertEqual((report.offsets_written, report.offsets_not_written), (0, 17))
            self.assertLess(client.host.seconds() - began_s, 4)
            self.sim.net.heal()
            self.sim.pass_s(20)
            self.assertEqual(self.sim.run(client.close()).offsets_written, 17)

    def test_a_close_goes_on(self) -> None:
        """A close whose caller is cancelled goes on; the next call waits for its end and has its report."""
        waits: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None]:
            waits.append(Deferred())
            return waits[-1]

        made = consumer(self.client, wait)
        self.sim.run(made.start())
        running = Deferred.fromCoroutine(made.run())
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.until(lambda: waits)
        for close in (made.close, self.client.close):
            closing = Deferred.fromCoroutine(close())
            closing.addErrback(lambda _: None)
            self.sim.pass_s(1)
            closing.cancel()
        again = [Deferred.fromCoroutine(close()) for close in (made.close, self.client.close)]
        self.sim.pass_s(1)
        self.assertFalse(running.called)
        waits[0].callback(None)
        reports = [self.sim.world.settle(each, 10) for each in again]
        self.assertEqual({(one.handlers_cancelled, one.offsets_written > 0) for one in reports}, {(0, True)})
        self.sim.world.settle(running, 10)
        self.assertEqual(sum(self.committed().values()), 1)

    def test_a_close_of_a_pull_consumer_goes_on(self) -> None:
        """The same for a pull consumer, whose client ends with it."""
        puller = self.sim.run(pull_consumer(self.client, "PG", {"T": "*"}, PullSettings(consume_from=From.FIRST)))
        self.sim.run(self.sender.send(Message("T", b"x")))
        self.assertEqual(len(self.sim.run(puller.getmany(timeout_s=30))), 1)
        self.sim.brokers["broker-a"].kill()
        closing = Deferred.fromCoroutine(puller.close())
        closing.addErrback(lambda _: None)
        closing.cancel()
        self.sim.brokers["broker-a"].start()
        self.sim.run(puller.close())
        self.sim.run(self.client.close())

    def test_close_in_a_handler(self) -> None:
        """A handler may close its consumer, or its client: it does not wait, and its message is consumed."""
        for number, of_client in enumerate((False, True)):
            client = self.sim.client()
            reports: list[int] = []

            async def handle(message: ReceivedMessage, client: Instance = client, of_client: bool = of_client) -> None:
                report = await (client if of_client else made).close()  # noqa: B023
                reports.append(report.offsets_written)  # noqa: B023

            made = consumer(client, handle, group=f"G{number}")
            running = Deferred.fromCoroutine(made.run())
            self.sim.pass_s(1)
            self.sim.run(self.sender.send(Message("T", b"x")))
            began = self.sim.world.now_s
            self.sim.world.settle(running, 10)
            report = self.sim.run(client.close())
            self.assertLess(self.sim.world.now_s - began, 5)
            self.assertEqual((reports, report.handlers_cancelled), ([0], 0))
            self.assertEqual(sum(self.committed(group=f"G{number}").values()), 1)

    def test_broker_restarts(self) -> None:
        """A consumer goes on after each of many restarts of the broker, soon after it is back."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        node = self.sim.brokers["broker-a"]
        for number in range(20):
            node.kill()
            self.sim.pass_s(number % 7)
            node.start()
            self.sim.pass_s(3)
            self.sim.run(self.sender.send(Message("T", b"%d" % number), timeout_s=20))
            self.until(lambda n=number: b"%d" % n in inbox.bodies, 40, f"message {number}")

    def test_goes_on_soon_after_a_long_outage(self) -> None:
        """However long a broker was away, its queues are read within 5 s of its return, in order or not."""
        inboxes = [Inbox(), Inbox()]
        self.sim.run(consumer(self.client, inboxes[0]).start())
        self.sim.run(consumer(self.client, inboxes[1], group="OG", orderly=True).start())
        pulled: list[bytes] = []
        puller = self.sim.run(pull_consumer(self.client, "PG", {"T": "*"}, PullSettings(consume_from=From.FIRST)))

        async def pull() -> None:
            while True:
                pulled.extend(message.body for message in await puller.getmany())

        pulling = self.client.host.spawn(pull(), name="pull")
        self.addCleanup(pulling.cancel)
        self.sim.run(send_all(self.sender, [b"first"]))
        self.until(lambda: inboxes[0].bodies == inboxes[1].bodies == pulled == [b"first"])
        for away_s in (2, 37, 61, 300):
            node = self.sim.brokers["broker-a"]
            node.kill()
            self.sim.pass_s(away_s)
            node.start()
            back_s = self.sim.world.now_s
            bodies = [b"%d-%d" % (away_s, queue) for queue in range(4)]
            for queue, body in enumerate(bodies):
                message = Message("T", body)
                self.sim.run(
                    self.sender.send(message, queue=MessageQueue(topic="T", broker_name="broker-a", queue_id=queue))
                )
            wanted = set(bodies)
            self.until(lambda w=wanted: w <= set(inboxes[0].bodies) & set(inboxes[1].bodies) & set(pulled))
            self.assertLess(self.sim.world.now_s - back_s, 5, away_s)

    def test_locks_that_could_not_be_renewed(self) -> None:
        """A broker that was away when its locks were due gets the request again soon, before they end."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox, group="OG", orderly=True).start())
        self.sim.run(self.sender.send(Message("T", b"first")))
        self.until(lambda: inbox.bodies == [b"first"])
        # locks are renewed after 20 s and end after 30 s
        node = self.sim.brokers["broker-a"]
        self.sim.pass_s(17)
        node.kill()
        self.sim.pass_s(5)
        node.start()
        self.sim.pass_s(10)
        for queue_id in range(4):
            queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=queue_id)
            self.sim.run(self.sender.send(Message("T", b"%d" % queue_id), queue=queue))
        sent_s = self.sim.world.now_s
        self.until(lambda: len(inbox.bodies) == 5)
        self.assertLess(self.sim.world.now_s - sent_s, 1)

    def test_name_server_restarts(self) -> None:
        """Without a NameServer everything goes on with the routes that are known."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"1"]))
        self.sim.namesrv.kill()
        self.sim.pass_s(100)
        self.sim.run(send_all(self.sender, [b"2"]))
        self.until(lambda: sorted(inbox.bodies) == [b"1", b"2"])
        self.sim.namesrv.start()
        self.sim.pass_s(60)

    def test_deliveries(self) -> None:
        """An async for gets messages: the end of the block acknowledges, an exception asks for it again."""
        made = consumer(self.client, None)
        seen: list[tuple[bytes, int]] = []

        async def loop() -> None:
            async for delivery in made:
                message = delivery.message
                try:
                    async with delivery:
                        seen.append((message.body, message.reconsume_times))
                        if message.body == b"again" and not message.reconsume_times:
                            raise ValueError("once more")
                except ValueError:
                    pass
                if len(seen) == 3:
                    return

        running = Deferred.fromCoroutine(loop())
        self.sim.pass_s(1)
        self.sim.run(send_all(self.sender, [b"good", b"again"]))
        self.sim.world.settle(running, 120)
        self.assertEqual(sorted(seen), [(b"again", 0), (b"again", 1), (b"good", 0)])
        self.sim.pass_s(6)
        self.assertEqual(sum(self.committed().values()), 2)

    def test_cancelled_delivery(self) -> None:
        """A block that is cancelled, by asyncio's timeout for example, gets its message again."""
        made = consumer(self.client, None)
        seen: list[tuple[bytes, int]] = []

        async def loop() -> None:
            async for delivery in made:
                message = delivery.message
                try:
                    async with delivery:
                        seen.append((message.body, message.reconsume_times))
                        if not message.reconsume_times:
                            raise asyncio.CancelledError  # which is no Exception
                except asyncio.CancelledError:
                    pass
                else:
                    return

        running = Deferred.fromCoroutine(loop())
        self.sim.run(send_all(self.sender, [b"x"]))
        self.sim.world.settle(running, 120)
        self.assertEqual(seen, [(b"x", 0), (b"x", 1)])
        self.sim.pass_s(6)
        self.assertEqual((sum(self.committed().values()), [one.in_hand for one in made.health()]), (1, [0] * 5))

    def test_return_of_a_delivery_goes_on(self) -> None:
        """A message that is asked for again comes again, also when the wait for that is cancelled."""
        made = consumer(self.client, None)
        self.sim.run(send_all(self.sender, [b"x"]))
        delivery = self.sim.run(made.receive())
        asking = Deferred.fromCoroutine(delivery.later())
        asking.addErrback(lambda _: None)
        asking.cancel()
        again = self.sim.run(made.receive(), 120)
        self.assertEqual((again.message.body, again.message.reconsume_times), (b"x", 1))
        self.sim.run(again.ack())

    def test_settled_once(self) -> None:
        """A delivery is settled once; what comes later is an error that says what became of the message."""
        made = consumer(self.client, None)
        words = {"ack": "acknowledged", "later": "asked for again", "reject": "rejected"}
        for first, became in words.items():
            for in_block in (False, True):
                self.sim.run(self.sender.send(Message("T", first.encode())))
                delivery = self.sim.run(made.receive(), 60)

                async def settle(delivery: Delivery = delivery, how: str = first, within: bool = in_block) -> None:
                    if not within:
                        await getattr(delivery, how)()
                        return
                    async with delivery:  # whose end leaves it as it is
                        await getattr(delivery, how)()

                self.sim.run(settle())
                for again in words:
                    with self.assertRaisesRegex(AlreadySettled, f"^{again}: <message .*> is {became} already"):
                        self.sim.run(getattr(delivery, again)())
                if first == "later":
                    self.sim.run(self.sim.run(made.receive(), 120).ack())

    def test_settled_by_the_block(self) -> None:
        """After the end of its block a delivery is settled: acknowledged, asked for again, or rejected."""
        made = consumer(self.client, None)
        for error, became in ((None, "acknowledged"), (Later(), "asked for again"), (Reject(), "rejected")):
            self.sim.run(self.sender.send(Message("T", b"x")))
            delivery = self.sim.run(made.receive(), 60)

            async def block(delivery: Delivery = delivery, error: Exception | None = error) -> None:
                async with delivery:
                    if error is not None:
                        raise error

            self.sim.run(block())
            with self.assertRaisesRegex(AlreadySettled, became):
                self.sim.run(delivery.later())
            if isinstance(error, Later):
                again = self.sim.run(made.receive(), 120)
                self.assertEqual(again.message.reconsume_times, 1)
                self.sim.run(again.ack())

    def test_cancelled_delivery_of_a_closed_consumer(self) -> None:
        """A block that is cancelled while the consumer closes keeps its message for the next member."""
        made = consumer(self.client, None)
        self.sim.run(send_all(self.sender, [b"x"]))
        delivery = self.sim.run(made.receive())
        self.sim.run(delivery.__aenter__())
        closing = Deferred.fromCoroutine(made.close())
        self.sim.pass_s(1)
        error = asyncio.CancelledError()
        self.assertFalse(self.sim.run(delivery.__aexit__(type(error), error, None)))
        with self.assertRaisesRegex(AlreadySettled, "left to the next member"):
            self.sim.run(delivery.ack())
        self.sim.world.settle(closing, 10)
        inbox = Inbox()
        self.sim.run(consumer(self.sim.client(), inbox).start())
        self.until(lambda: inbox.bodies == [b"x"], 10)
        self.assertEqual(inbox.got[0].reconsume_times, 0)

    def test_lost_queue(self) -> None:
        """An ack after the queue went to another member says so: that member gets the message."""
        made = consumer(self.client, None)
        self.sim.run(send_all(self.sender, [b"x"] * 4))

        async def four() -> list[object]:
            found: list[object] = []
            async for delivery in made:
                found.append(delivery)
                if len(found) == 4:
                    break
            return found

        deliveries = self.sim.run(four())
        inbox = Inbox()
        other = self.sim.client()
        self.sim.run(consumer(other, inbox).start())
        self.until(lambda: len(inbox.got) == 2)
        self.until(lambda: len([queue for queue in made.assignment() if queue.topic == "T"]) == 2)

        async def ack_all() -> int:
            lost = 0
            for delivery in deliveries:
                try:
                    await delivery.ack()  # type: ignore[attr-defined]
                except LostQueue:
                    lost += 1
            return lost

        self.assertEqual(self.sim.run(ack_all()), 2)

    def test_one_producer_of_a_group(self) -> None:
        """A program may ask for its producer with each message: it is the same one, until it is closed."""
        client, settings = self.sim.client(), ProducerSettings()
        made = new_producer(client, "PG", settings)
        for _ in range(100):
            self.assertIs(new_producer(client, "PG", ProducerSettings()), made)
        others = [new_producer(client, "PG", ProducerSettings(retries=0)), new_producer(client, "PG2", settings)]
        self.assertEqual(len({made, *others}), 3)
        self.assertEqual(len(client.parts), 3)
        self.sim.run(made.close())
        again = new_producer(client, "PG", settings)
        self.assertIsNot(again, made)
        self.sim.run(again.send(Message("T", b"x")))

    def test_one_transaction_producer_of_a_group(self) -> None:
        """One that is asked for again is the same; another check would never be asked, and is refused."""

        def check(message: ReceivedMessage) -> None: ...

        client, settings = self.sim.client(), ProducerSettings()
        made = transaction_producer(client, "PG", check, settings, ["T"])
        self.assertIs(transaction_producer(client, "PG", check, settings, iter(["T"])), made)
        self.assertIsNot(new_producer(client, "PG", settings), made)
        for wrong in ((print, settings, ["T"]), (check, ProducerSettings(retries=0), ["T"]), (check, settings, [])):
            with self.assertRaisesRegex(ConfigurationError, "group PG has a transaction producer in this client, with"):
                transaction_producer(client, "PG", *wrong)
        self.sim.run(made.close())
        self.assertIsNot(transaction_producer(client, "PG", print, settings), made)

    def test_ack_after_the_close(self) -> None:
        """An ack after the close says that the message comes again, also at the end of a block that lasts longer."""
        made = consumer(self.client, None, drain_timeout_s=5)
        self.sim.run(send_all(self.sender, [b"x"] * 2))
        kept, in_block = self.sim.run(made.receive()), self.sim.run(made.receive())
        self.sim.run(in_block.__aenter__())
        report = self.sim.run(made.close())
        self.assertEqual(report.handlers_cancelled, 1)
        for end in (kept.ack(), in_block.__aexit__(None, None, None)):
            with self.assertRaisesRegex(LostQueue, "goes to the next member of the group, for its consumer is closed"):
                self.sim.run(end)
        inbox = Inbox()
        self.sim.run(consumer(self.sim.client(), inbox).start())
        self.until(lambda: len(inbox.got) == 2)

    def test_pause_within_a_namespace(self) -> None:
        """Queues are paused by either name of their topic; what is no queue is refused."""
        made = consumer(self.sim.client(namespace="NS"), Inbox())
        self.sim.run(producer(self.sim.client(namespace="NS")).send(Message("T", b"x")))
        self.sim.run(made.start())
        self.until(lambda: len(made.assignment()) >= 4)
        made.pause(*(structs.replace(queue, topic="T") for queue in made.assignment() if queue.topic == "NS%T"))
        self.sim.pass_s(20)
        self.assertEqual({queue.trouble for queue in made.health() if queue.queue.topic == "NS%T"}, {"paused"})
        wrong: Any = list(made.assignment())
        with self.assertRaisesRegex(ConfigurationError, "a queue is a MessageQueue, not"):
            made.pause(wrong)

    def test_pause(self) -> None:
        """A paused queue is not pulled; health says why."""
        inbox = Inbox()
        made = consumer(self.client, inbox)
        self.sim.run(made.start())
        self.until(lambda: len(made.assignment()) >= 4)
        made.pause(*made.assignment())
        self.sim.pass_s(20)
        self.sim.run(send_all(self.sender, [b"x"] * 4))
        self.sim.pass_s(20)
        self.assertEqual(inbox.got, [])
        self.assertEqual({queue.trouble for queue in made.health() if queue.queue.topic == "T"}, {"paused"})
        made.resume(*made.assignment())
        self.until(lambda: len(inbox.got) == 4)

    def test_back_pressure(self) -> None:
        """A queue is not pulled while its limit of messages is in hand."""
        waits: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None]:
            waits.append(Deferred())
            return waits[-1]

        made = consumer(self.client, Inbox(wait), queue_messages=10, pull_batch=5)
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        for _ in range(30):
            self.sim.run(self.sender.send(Message("T", b"x"), queue=queue))
        self.sim.run(made.start())
        self.sim.pass_s(10)
        health = next(one for one in made.health() if one.queue == queue)
        self.assertEqual((health.in_hand, health.lag), (10, 30))
        self.assertIn("limit", health.trouble)
        for number in range(30):
            self.until(lambda least=number: len(waits) > least)
            waits[number].callback(None)

    def test_broadcast(self) -> None:
        """With broadcast every member gets every message, and finds its offsets in its own file after a restart."""
        others = [self.sim.client(instance_name="DEFAULT") for _ in range(2)]
        inboxes = [Inbox(), Inbox()]
        for client, inbox in zip(others, inboxes, strict=True):
            self.sim.run(consumer(client, inbox, broadcast=True).start())
        self.sim.run(send_all(self.sender, [b"1", b"2"]))
        self.until(lambda: all(sorted(inbox.bodies) == [b"1", b"2"] for inbox in inboxes))
        node = self.sim.clients[1]
        self.sim.world.settle(node.stop())
        self.assertEqual(node.leaks, [])
        self.sim.run(send_all(self.sender, [b"3"]))
        process = node.start()
        again = Inbox()
        instance: Instance = process.instance  # type: ignore[union-attr]
        self.sim.run(instance.start())
        self.sim.run(consumer(instance, again, broadcast=True).start())
        self.until(lambda: again.got)
        self.sim.pass_s(10)
        self.assertEqual(again.bodies, [b"3"])

    def test_broadcast_without_a_file(self) -> None:
        """Offsets that cannot be written are one line in the log, and counted at the close; messages are consumed."""
        inbox = Inbox()
        with self.assertLogs("rmq.client.consumer", "ERROR") as logs:
            disk = self.sim.clients[0].disk
            disk.make_dirs("/home")
            disk.write_atomic("/home/.rocketmq_offsets", b"not a folder")
            self.sim.run(consumer(self.client, inbox, broadcast=True).start())
            self.sim.run(send_all(self.sender, [b"1", b"2"]))
            self.sim.pass_s(30)
            self.sim.run(send_all(self.sender, [b"3"]))
            self.until(lambda: sorted(inbox.bodies) == [b"1", b"2", b"3"])
            report = self.sim.run(self.client.close())
        (record,) = logs.records
        self.assertIn(f"~/.rocketmq_offsets/{self.client.client_id}/CG/offsets.json", record.getMessage())
        self.assertEqual(record.exc_info, None)
        self.assertEqual((report.offsets_written, report.offsets_not_written), (0, 4))

    def test_strategy_fails(self) -> None:
        """A strategy that raises is logged once, and asked again until it answers; other topics have their queues."""
        self.make_topic("U", queues=1)
        calls: list[str] = []

        def strategy(group: str, me: str, queues: list[MessageQueue], members: list[str]) -> list[MessageQueue]:
            calls.append(queues[0].topic)
            if queues[0].topic == "T" and calls.count("T") < 4:
                raise LookupError("the room is not known yet")
            return queues

        inbox = Inbox()
        member = consumer(self.client, inbox, {"T": "*", "U": "*"}, strategy=strategy)
        with self.assertLogs("rmq.client.consumer", "ERROR") as logs:
            self.sim.run(member.start())
            self.sim.run(send_all(self.sender, [b"1"]))
            self.until(lambda: inbox.got, 10)
        self.assertEqual(len(logs.records), 1)
        self.assertIn("the room is not known yet", logs.output[0])
        self.assertLess(calls.index("U"), 2)

    def test_close_of_a_part_fails(self) -> None:
        """The close of the client ends all other parts too, and raises the first error at its end."""

        class Broken(Producer):
            async def close(self) -> CloseReport:
                raise LookupError("planted")

        inbox = Inbox()
        self.client.parts.insert(0, Broken(self.client, "Broken", ProducerSettings()))
        member = consumer(self.client, inbox)
        self.sim.run(member.start())
        self.sim.run(send_all(self.sender, [b"1"]))
        self.until(lambda: inbox.got)
        with self.assertLogs("rmq.client", "ERROR"):
            self.assertRaises(LookupError, self.sim.run, self.client.close())
        self.assertEqual(member.assignment(), frozenset())
        self.assertEqual(sum(self.committed().values()), 1)
        self.sim.run(self.client.close())

    def test_namespace(self) -> None:
        """Within a namespace topics and groups have its prefix at the broker, and not for handlers."""
        client = self.sim.client(namespace="NS")
        inbox = Inbox()
        self.sim.run(producer(client).send(Message("T", b"x")))
        self.sim.run(consumer(client, inbox).start())
        self.until(lambda: inbox.got)
        self.assertEqual(inbox.got[0].topic, "T")
        self.assertIsNotNone(self.sim.broker().topics.get("NS%T"))

    def test_one_consumer_of_a_group(self) -> None:
        """A group may be in a client once."""
        consumer(self.client, Inbox())
        self.assertRaises(ConfigurationError, consumer, self.client, Inbox())

    def test_reset_and_status(self) -> None:
        """An operator's reset moves a running consumer; its positions can be asked for."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)]))
        self.until(lambda: len(inbox.got) == 4)
        self.sim.pass_s(6)
        addr = self.client.master("broker-a")
        status = self.sim.run(
            self.client.ask(
                addr, INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader(topic="T", group="CG"), None
            )
        )
        self.assertEqual(sum(sum(table.values()) for table in status.body.consumer_table.values()), 4)
        self.reset(to_ms=0)
        self.until(lambda: len(inbox.got) == 8)

    def test_other_subscription(self) -> None:
        """Where members subscribe to different things one of them warns, once."""
        self.sim.run(consumer(self.client, Inbox(), {"T": "A || B"}).start())
        with self.assertLogs("rmq.client.consumer", "WARNING") as logs:
            self.sim.run(consumer(self.sim.client(), Inbox(), {"T": "C"}).start())
            self.sim.pass_s(100)
        found = [line for line in logs.output if "different things" in line]
        self.assertTrue(found, logs.output)
        # the group has the newest of both; the other member warns
        self.assertRegex(found[0], r"topic T: we (A \|\| B, the group C|C, the group A \|\| B) ")
        self.assertLessEqual(len(found), 2)  # one of each broker

    def test_other_subscription_soon(self) -> None:
        """
        When a member with another subscription joins, one of the two warns within 30 s, and once: the group has the
        subscription of the client whose clock is ahead.
        """
        self.sim.run(consumer(self.client, Inbox(), {"T": "A || B"}).start())
        for ran_s, tags in ((5, "C"), (33, "D"), (200, "E")):
            self.sim.pass_s(ran_s)
            with self.assertLogs("rmq.client.consumer", "WARNING") as logs:
                other = self.sim.client()
                self.sim.run(consumer(other, Inbox(), {"T": tags}).start())
                self.sim.pass_s(30)
            self.assertEqual(len(logs.output), 1, logs.output)
            self.assertRegex(logs.output[0], rf"topic T: we (A \|\| B, the group {tags}|{tags}, the group A \|\| B) ")
            with self.assertNoLogs("rmq.client.consumer", "WARNING"):
                self.sim.pass_s(300)
                self.sim.run(other.close())
                self.sim.pass_s(30)

    def test_equal_subscriptions(self) -> None:
        """Members with equal subscriptions, however they are written, get no warning."""
        self.sim.run(consumer(self.client, Inbox(), {"T": "A || B"}).start())
        with self.assertNoLogs("rmq.client.consumer", "WARNING"):
            self.sim.run(consumer(self.sim.client(), Inbox(), {"T": "B||A"}).start())
            self.sim.pass_s(30)

    def test_failure_after_a_reset(self) -> None:
        """
        A handler that fails after the offset of its queue was reset changes nothing: its message comes once more if it
        is behind the new offset, and not when an operator has skipped it.
        """
        failures: list[Deferred[None]] = []

        def wait(message: ReceivedMessage) -> Deferred[None]:
            failures.append(Deferred())
            return failures[-1]

        inbox = Inbox(wait)
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"skipped"]))
        self.until(lambda: failures)
        self.sim.pass_s(6)
        self.reset(to_ms=-1)
        self.sim.pass_s(1)
        failures[0].errback(ValueError("it fails always"))
        self.sim.pass_s(60)
        self.assertEqual(inbox.bodies, [b"skipped"])

    def test_reset_does_not_wait_for_the_poll(self) -> None:
        """After a reset the messages come at once, also where a poll is held at the end of the queue."""
        inbox = Inbox()
        self.sim.run(consumer(self.client, inbox).start())
        self.sim.run(send_all(self.sender, [b"%d" % n for n in range(4)]))
        self.until(lambda: len(inbox.got) == 4)
        self.sim.pass_s(6)
        self.reset(to_ms=0)
        self.sim.pass_s(1)
        self.assertEqual(len(inbox.got), 8)
        self.sim.pass_s(20)  # the answer of the poll that was held changes nothing
        self.assertEqual(len(inbox.got), 8)
