"""What an operator reads when he asks why a route is missing, and how much the journal keeps."""

from __future__ import annotations

import random

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.journal.eventlog import EventLog, Limits, cost_of, event_data
from rmq.namesrv.journal.events import EventKind
from rmq.namesrv.lanes import RouteReplies
from rmq.namesrv.metrics import namesrv_face
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody, encode_register_body
from rmq.wire.api.routes import REGISTER_BROKER
from tests.namesrv.test_journal import HEADER, ExplainCase, event
from tests.namesrv.test_pages import text_of

KINDS = list(EventKind)


def size_of(log: EventLog, brokers: list[str], topics: list[str]) -> int:
    """The estimate for all that can be read from a log: 200 bytes for a name beside its text, 100 for a reference."""
    size = sum(cost_of(one) for one in log.recent(10**6))
    for name in brokers:
        if events := log.of_broker(name):
            removal = log.removal_of(name)
            size += 200 + len(name) + sum(map(cost_of, events)) + (cost_of(removal) if removal else 0)
    for name in topics:
        if references := log.of_topic(name):
            size += 200 + len(name) + 100 * len(references)
    return size


class SizeTests(SynchronousTestCase):
    def test_size_counts_what_is_kept(self) -> None:
        """The bytes that bound the journal are those of what it keeps: with a drift it would grow for ever."""
        chance = random.Random(5)
        brokers, topics = [f"b{number}" for number in range(7)], [f"t{number}" for number in range(9)]
        limits = Limits(max_events=20, max_brokers=5, max_topics=6, events_per_broker=3, brokers_per_topic=2)
        log = EventLog(limits)
        self.assertEqual(log.size_bytes, 0)
        for at_ms in range(500):
            concerns = tuple(chance.sample(topics, chance.randrange(4)))
            reason = "r" * chance.randrange(300)
            log.record(event(at_ms, chance.choice(brokers), chance.choice(KINDS), topics=concerns, reason=reason))
            self.assertEqual(log.size_bytes, size_of(log, brokers, topics))

    def test_long_texts_cost_more(self) -> None:
        """Each character that a peer sends as a name counts: with long names fewer events are kept."""
        plain = cost_of(event_data(event()))
        long = event(0, "x" * 101, broker_addr="x" * 100, cluster="x" * 100, peer="x" * 100, topics=("x" * 100,) * 5)
        self.assertEqual(cost_of(event_data(long)), plain + 900)


class HintTests(ExplainCase):
    def test_unknown_broker(self) -> None:
        """Whoever asks for a broker that never came reads names like it, and where to look next."""
        self.register("orders", broker_name="Broker-A")
        self.advance(100)
        found = self.asked(broker_name="broker-a")
        self.assertEqual(found.state, "NEVER_SEEN")
        self.assertTrue(any("there is a broker called Broker-A" in hint for hint in found.hints), found.hints)
        self.assertIn("does its namesrvAddr name this NameServer?", found.hints[-1])

    def test_nowhere_to_send(self) -> None:
        """A topic whose only writable broker has no write queues: the text names this as the reason why sends fail."""
        hint = "sends fail: the topic has no write queues"
        for number, (perm, queues) in enumerate(((6, 0), (4, 8))):
            header = msgspec.structs.replace(HEADER, broker_name=f"b{number}", broker_addr=f"10.0.0.{number}:10911")
            config = TopicConfig(topic_name="T", perm=perm, read_queue_nums=8, write_queue_nums=queues)
            wrapper = TopicConfigWrapper(data_version=DataVersion(counter=1), topic_config_table={"T": config})
            sent = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
            self.assertEqual(self.talk.ask(REGISTER_BROKER, header, sent).code, 0)
            self.assertEqual(self.asked(topic="T").hints, [hint])

    def test_events_without_topics(self) -> None:
        """The line of an event that concerns no topic says nothing of topics."""
        self.register("orders")
        self.advance(1)
        self.register("orders", broker_addr="10.0.0.9:10911", broker_id=1)
        text = self.asked(broker_name="broker-a").text
        self.assertIn("1 topic (orders)", text)
        self.assertNotIn("0 topics", text)


class ConfigurationPageTests(ExplainCase):
    def test_section(self) -> None:
        """The page of the configuration shows each key with its value below the heading."""
        page = namesrv_face(self.talk.service).pages["/config"]({})
        self.assertIn("<h2>Configuration</h2>", page)
        self.assertIn("listenPort=9876", text_of(page))


class KeptReplyTests(ExplainCase):
    def test_a_changed_topic_is_encoded_once(self) -> None:
        """After a change of its topics a route is encoded for the first look-up only, however many follow."""
        replies = RouteReplies(self.talk.service.routes.topology)
        self.register("T")
        first = replies.get("T", False)
        self.register("T", "U", version=2)
        self.assertIs(replies.get("T", False), first)
        second = replies.get("U", False)
        self.assertIsNotNone(second)
        self.assertIs(replies.get("U", False), second)
