"""Why a route is there or not: what is remembered, for how long, and what an operator is told."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.journal.eventlog import MAX_NOTED_ARRIVALS, MAX_TEXT_CHARS, EventLog, Limits
from rmq.namesrv.journal.events import EventKind, RouteEvent
from rmq.namesrv.journal.explain import MAX_BROKERS_IN_FULL, MAX_NAMES_IN_LINE, printable
from rmq.namesrv.journal.journal import MAX_RECENT
from rmq.namesrv.journal.reasons import Why, because
from rmq.namesrv.prompt import prompt_names
from rmq.runtime.clock import moment
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.explain import EXPLAIN_ROUTE, ExplainRouteHeader, RouteEventData, RouteExplanation
from rmq.wire.api.register_body import RegisterBrokerBody, encode_register_body
from rmq.wire.api.routes import (
    DELETE_TOPIC_IN_NAMESRV,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    WIPE_WRITE_PERM_OF_BROKER,
    BrokerIdentityHeader,
    BrokerNameHeader,
    DeleteTopicInNamesrvHeader,
    RegisterBrokerHeader,
)
from tests.namesrv.talk import NOW_S, Talk, at
from tests.namesrv.test_service import Peer

START_MS = NOW_S * 1000


def event(
    at_ms: int = 0, broker_name: str = "a", kind: EventKind = EventKind.CLOSED, *, reason: str = "", **more: Any
) -> RouteEvent:
    causes = (because(Why.CONNECTION_CLOSED, closed="p:1", reason=reason),)
    return RouteEvent(at_ms=at_ms, kind=kind, broker_name=broker_name, causes=causes, **more)


class EventLogTests(SynchronousTestCase):
    def test_storm_of_others(self) -> None:
        """What happened last to a broker and to its topics survives any number of events of a few others."""
        log = EventLog()
        log.record(event(1, "quiet", topics=("orders",), reason="the one that matters"))
        for at_ms in range(5000):
            log.record(event(at_ms, f"noisy-{at_ms % 50}", topics=(f"t{at_ms % 100}",)))
        self.assertNotIn("quiet", [one.broker_name for one in log.recent(10_000)])
        for found in (log.of_broker("quiet"), log.of_topic("orders"), [log.removal_of("quiet")]):
            self.assertEqual([one.reason for one in found if one], ["connection p:1 closed: the one that matters"])
        self.assertIsNone(log.brokers_forgotten_ms())
        self.assertIsNone(log.topics_forgotten_ms())

    def test_removal_survives_its_own_storm(self) -> None:
        """Why a broker went stays known however often its late good-byes are ignored afterwards."""
        log = EventLog()
        log.record(event(1, reason="silent"))
        for at_ms in range(2, 100):
            log.record(event(at_ms, kind=EventKind.FENCED))
        removal = log.removal_of("a")
        self.assertEqual(removal and removal.reason, "connection p:1 closed: silent")

    def test_bounds_in_number(self) -> None:
        """Each part forgets the oldest beyond its number, and knows until when it may have forgotten something."""
        limits = Limits(max_events=3, events_per_broker=2, max_brokers=2, max_topics=2)
        log = EventLog(limits)
        for at_ms, name in enumerate("aaabbbccc"):
            log.record(event(at_ms, name, topics=(f"topic-{name}",)))
        self.assertEqual([one.at_ms for one in log.recent(99)], [6, 7, 8])
        self.assertEqual([one.at_ms for one in log.recent(1)], [8])
        self.assertEqual(log.recent(0), [])
        self.assertEqual([one.at_ms for one in log.of_broker("c")], [7, 8])
        self.assertEqual((log.of_broker("a"), log.of_topic("topic-a"), log.removal_of("a")), ([], [], None))
        self.assertEqual((log.brokers_forgotten_ms(), log.topics_forgotten_ms()), (2, 2))
        self.assertEqual(log.counts[EventKind.CLOSED], 9)

    def test_bounds_in_bytes(self) -> None:
        """However long the names that peers send, what is kept stays below the bytes allowed."""
        limits = Limits(max_event_bytes=40_000, max_broker_bytes=60_000, max_topic_bytes=50_000)
        log = EventLog(limits)
        for at_ms in range(400):
            names = tuple(f"{at_ms}-{number}" + "t" * 100_000 for number in range(5))
            log.record(event(at_ms, f"{at_ms}" + "b" * 100_000, topics=names, reason="r" * 100_000))
        self.assertLessEqual(log.size_bytes, 150_000)
        self.assertGreater(len(log.recent(999)), 5)
        kept = log.recent(1)[0]
        self.assertEqual({len(text) for text in (kept.broker_name, kept.reason, *kept.topics)}, {MAX_TEXT_CHARS})
        self.assertEqual(log.of_broker("399" + "b" * 100_000), [kept])
        self.assertEqual(log.of_topic("399-0" + "t" * 100_000), [kept])

    def test_size_is_that_of_what_is_kept(self) -> None:
        """The count of bytes does not drift: a log that forgot everything but one is as large as one that saw one."""
        limits = Limits(max_events=1, max_brokers=1, max_topics=1, events_per_broker=1)
        worn, fresh = EventLog(limits), EventLog(limits)
        for at_ms in range(100):
            worn.record(event(at_ms, f"b{at_ms % 7}", topics=("t", f"u{at_ms % 5}")))
        last = event(100, "last", topics=("t",))
        for log in (worn, fresh):
            log.record(last)
            log.record(event(101, "z", topics=("z",)))
        self.assertEqual(worn.size_bytes, fresh.size_bytes)

    def test_topic_of_several_brokers(self) -> None:
        """Of a topic the last event with each broker is known, for a bounded number of brokers."""
        log = EventLog(Limits(brokers_per_topic=3))
        for at_ms, name in enumerate("abacde"):
            log.record(event(at_ms, name, topics=("orders",)))
        self.assertEqual(
            [(one.broker_name, one.at_ms) for one in log.of_topic("orders")], [("c", 3), ("d", 4), ("e", 5)]
        )

    def test_large_arrivals(self) -> None:
        """An arrival with thousands of topics pushes nothing out; its loss is noted for each of them."""
        log = EventLog()
        topics = tuple(f"t{number}" for number in range(MAX_NOTED_ARRIVALS + 1))
        log.record(event(1, kind=EventKind.REGISTERED, topics=topics))
        self.assertEqual(log.of_topic("t0"), [])
        log.record(event(2, topics=topics))
        self.assertEqual([one.at_ms for one in log.of_topic(f"t{MAX_NOTED_ARRIVALS}")], [2])


HEADER = RegisterBrokerHeader(
    broker_name="broker-a",
    broker_addr="10.0.0.7:10911",
    cluster_name="C",
    ha_server_addr="10.0.0.7:10912",
    broker_id=0,
)


def body(*names: str, perm: int = 6, version: int = 1) -> bytes:
    table = {name: TopicConfig(topic_name=name, perm=perm, read_queue_nums=4, write_queue_nums=4) for name in names}
    wrapper = TopicConfigWrapper(
        data_version=DataVersion(counter=version, timestamp=START_MS), topic_config_table=table
    )
    return encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


class ExplainCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk.started(self.mktemp())
        self.journal = self.talk.service.journal

    def register(self, *names: str, perm: int = 6, version: int = 1, **header: Any) -> None:
        changed = msgspec.structs.replace(HEADER, **header)
        answer = self.talk.ask(REGISTER_BROKER, changed, body(*names, perm=perm, version=version))
        self.assertEqual(answer.code, 0, answer.remark)

    def advance(self, seconds: int) -> None:
        self.talk.reactor.pump([1.0] * seconds)

    def expire(self, seconds: int) -> None:
        """Let this time pass in one step, and look for silent brokers."""
        reactor, routes = self.talk.reactor, self.talk.service.routes
        reactor.rightNow += seconds
        routes.expire(moment(reactor))

    def asked(self, **header: Any) -> RouteExplanation:
        answer = self.talk.ask(EXPLAIN_ROUTE, ExplainRouteHeader(**header))
        self.assertEqual(answer.code, 0, answer.remark)
        return fastjson.decode(answer.body or b"", RouteExplanation)


class TopicTests(ExplainCase):
    def test_present(self) -> None:
        """A topic that is there: on which broker, from which connection, at which version, last heard of when."""
        self.register("orders", "other")
        self.advance(12)
        found = self.asked(topic="orders")
        self.assertEqual((found.state, found.hints, found.removed), ("PRESENT", [], []))
        self.assertEqual([(queue.broker_name, queue.write_queue_nums) for queue in found.queues], [("broker-a", 4)])
        (broker,) = found.brokers
        (process,) = broker.processes
        self.assertEqual((broker.cluster, broker.topic_count), ("C", 2))
        self.assertEqual(
            (process.broker_addr, process.broker_id, process.peer), ("10.0.0.7:10911", 0, self.talk.channel.peer)
        )
        self.assertEqual(
            (process.data_version.counter, process.silent_ms, process.last_heartbeat_ms), (1, 12_000, START_MS)
        )
        self.assertEqual([one.kind for one in broker.events], ["REGISTERED"])
        for part in (
            "PRESENT served by 1 broker: broker-a",
            "4 read and 4 write queues, RW-",
            "last heartbeat 12.0 s ago",
        ):
            self.assertIn(part, found.text)

    def test_many_brokers(self) -> None:
        """Of a topic with many brokers some are named and some have all their details; the others are counted."""
        count = MAX_BROKERS_IN_FULL + 1
        for number in range(count):
            self.register("orders", broker_name=f"b{number:02}", broker_addr=f"10.0.1.{number}:10911")
        found = self.asked(topic="orders")
        named = ", ".join(f"b{number:02}" for number in range(MAX_NAMES_IN_LINE))
        self.assertIn(f"served by {count} brokers: {named} and {count - MAX_NAMES_IN_LINE} more\n", found.text)
        self.assertEqual(len(found.brokers), MAX_BROKERS_IN_FULL)

    def test_two_brokers_at_one_address(self) -> None:
        """Two names at one address, a mistake in two configurations: each is shown with its own process."""
        self.register("orders", version=3)
        self.register("orders", version=4, broker_name="broker-b")
        versions = {
            broker.broker_name: [process.data_version.counter for process in broker.processes]
            for broker in self.asked(topic="orders").brokers
        }
        self.assertEqual(versions, {"broker-a": [3], "broker-b": [4]})

    def test_a_change_without_topics(self) -> None:
        """An event says what changed, and nothing about topics that did not."""
        self.register("orders")
        self.register("orders", ha_server_addr="10.0.0.8:10912")
        (broker,) = self.asked(topic="orders").brokers
        self.assertEqual(broker.events[-1].kind, "CHANGED")
        self.assertNotIn("topics changed", broker.events[-1].reason)

    def test_expired(self) -> None:
        """A topic that went with a silent broker: the event, its time and its reason."""
        self.register("orders")
        self.expire(125)
        self.advance(5)
        found = self.asked(topic="orders")
        self.assertEqual(found.state, "GONE")
        (lost,) = found.removed
        self.assertEqual((lost.kind, lost.broker_name, lost.at_ms), ("EXPIRED", "broker-a", START_MS + 125_000))
        self.assertIn("silent for 125,000 ms", found.summary)
        self.assertIn("(5.0 s ago), broker-a at 10.0.0.7:10911: silent", found.text)

    def test_every_topic_of_a_large_broker(self) -> None:
        """Each topic of a broker that went is explained, not only the few that its event names."""
        self.register(*(f"t{number}" for number in range(3000)))
        self.talk.service.routes.channel_closed(self.talk.channel, **at(0), reason="reset by peer")
        for name in ("t0", "t1500", "t2999"):
            found = self.journal.explain_topic(name)
            self.assertEqual(found.state, "GONE", name)
            self.assertIn("reset by peer", found.summary)

    def test_one_of_two_brokers_is_missing(self) -> None:
        """A topic that lost some of its brokers is there, and the text names those that are missing and why."""
        self.register("orders")
        self.register("orders", broker_name="broker-b", broker_addr="10.0.0.8:10911")
        identity = BrokerIdentityHeader(
            broker_name="broker-a", broker_addr="10.0.0.7:10911", cluster_name="C", broker_id=0
        )
        self.talk.ask(UNREGISTER_BROKER, identity)
        found = self.asked(topic="orders")
        self.assertEqual((found.state, [one.kind for one in found.removed]), ("PRESENT", ["UNREGISTERED"]))
        self.assertIn("! its queues on broker-a are missing now", found.text)
        self.assertIn(
            "broker-a in cluster C, GONE: does not serve it; UNREGISTERED: the broker unregistered", found.text
        )
        self.register("orders", version=2)
        self.assertEqual(self.asked(topic="orders").removed, [])

    def test_deleted(self) -> None:
        """A deleted topic names who deleted it; the brokers are still there."""
        self.register("orders", "other")
        self.talk.ask(DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvHeader(topic="orders"))
        found = self.asked(topic="orders")
        self.assertEqual(
            (found.state, found.removed[0].kind, found.brokers[0].state), ("GONE", "TOPIC_DELETED", "PRESENT")
        )
        self.assertIn(f"deleted by {self.talk.channel.peer}", found.text)

    def test_deleted_by_registration(self) -> None:
        """With deleteTopicWithBrokerRegistration the registration that lacked the topic is named."""
        self.talk = Talk(self.mktemp(), delete_topic_with_broker_registration=True)
        self.register("orders", "other")
        self.register("other", version=2)
        found = self.asked(topic="orders")
        self.assertEqual((found.state, found.removed[-1].kind), ("GONE", "TOPIC_DELETED"))

    def test_never_seen(self) -> None:
        """A topic that nobody registered: since when nobody did, and names that differ in case only."""
        self.register("Orders")
        self.advance(100)
        found = self.asked(topic="orders")
        self.assertEqual((found.state, found.complete_since_ms), ("NEVER_SEEN", START_MS))
        self.assertIn(
            "never seen since this NameServer started, 2027-01-15 08:00:00.000 UTC (1 min 40 s ago)", found.text
        )
        self.assertTrue(any("there is a topic called Orders" in hint for hint in found.hints), found.hints)

    def test_early(self) -> None:
        """Soon after the start the text says that brokers may not have had the time."""
        self.advance(3)
        self.assertIn("ask again in a minute", self.asked(topic="orders").text)
        self.advance(100)
        self.assertNotIn("ask again in a minute", self.asked(topic="orders").text)

    def test_fallen_out(self) -> None:
        """When the journal had to forget topics, the text does not claim that one was never there."""
        self.register("orders")
        self.journal.log = EventLog(Limits(max_topics=1))
        for at_ms in (START_MS + 1000, START_MS + 2000):
            self.journal.log.record(event(at_ms, topics=(f"t{at_ms}",)))
        found = self.asked(topic="nowhere")
        self.assertEqual((found.state, found.complete_since_ms), ("FORGOTTEN", START_MS + 1000))
        self.assertIn("evicted from the journal", found.text)

    def test_not_writable(self) -> None:
        """A topic that nobody can send to says so, and the journal who wiped the permission."""
        self.register("orders")
        self.talk.ask(WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name="broker-a"))
        found = self.asked(topic="orders")
        self.assertTrue(any("sends fail" in hint for hint in found.hints), found.hints)
        self.assertIn("WIPED broker-a", self.asked(broker_name="broker-a").text)

    def test_no_master(self) -> None:
        """A group of slaves alone is told of."""
        self.register("orders")
        self.register("orders", broker_id=1, broker_addr="10.0.0.8:10911")
        self.assertEqual(self.asked(topic="orders").hints, [])
        identity = BrokerIdentityHeader(
            broker_name="broker-a", broker_addr="10.0.0.7:10911", cluster_name="C", broker_id=0
        )
        self.talk.ask(UNREGISTER_BROKER, identity)
        self.assertIn("broker-a has no master (id 0) here", self.asked(topic="orders").text)

    def test_waiting(self) -> None:
        """While needWaitForService has look-ups refused, the text says so."""
        self.talk = Talk(self.mktemp(), need_wait_for_service=True)
        self.register("orders")
        self.assertIn("needWaitForService=true", self.asked(topic="orders").text)


class BrokerTests(ExplainCase):
    def test_states(self) -> None:
        """A broker is never seen, then present, then gone, each with what is known."""
        self.assertEqual(self.asked(broker_name="broker-a").state, "NEVER_SEEN")
        self.register("orders")
        found = self.asked(broker_name="broker-a")
        self.assertEqual((found.state, found.summary), ("PRESENT", "1 process in cluster C, 1 topic"))
        self.expire(130)
        found = self.asked(broker_name="broker-a")
        self.assertEqual((found.state, found.removed[0].kind), ("GONE", "EXPIRED"))
        self.assertEqual([one.kind for one in found.brokers[0].events], ["REGISTERED", "EXPIRED"])
        self.assertIn("REGISTERED broker-a 10.0.0.7:10911 id 0", found.text)

    def test_overdue(self) -> None:
        """A broker that missed two registrations is told of before it is gone."""
        self.register("orders")
        self.advance(70)
        self.assertIn("overdue: silent for 1 min 10 s, expires in 50.0 s", self.asked(broker_name="broker-a").text)

    def test_flapping(self) -> None:
        """A broker that leaves again and again is called so."""
        identity = BrokerIdentityHeader(
            broker_name="broker-a", broker_addr="10.0.0.7:10911", cluster_name="C", broker_id=0
        )
        for _ in range(3):
            self.register("orders")
            self.talk.ask(UNREGISTER_BROKER, identity)
        self.register("orders")
        self.assertIn("flapping: it left 3 times within 10 min", self.asked(broker_name="broker-a").text)
        self.talk.reactor.rightNow += 600
        self.assertIn("flapping", self.asked(broker_name="broker-a").text)
        self.talk.reactor.rightNow += 1
        self.assertNotIn("flapping", self.asked(broker_name="broker-a").text)

    def test_two_masters(self) -> None:
        """Two processes that take each other's place are named; one that moves to other addresses is none of that."""
        addrs = ("10.0.0.7:10911", "10.0.0.8:10911")
        for number in range(3):
            self.register("orders", broker_addr=addrs[number % 2])
            self.assertNotIn("by turns", self.asked(broker_name="broker-a").text)
        self.register("orders", broker_addr=addrs[1])
        said = f"register as broker-a with id 0, by turns: {addrs[0]}, {addrs[1]}; stop all but one"
        self.assertIn(said, self.asked(broker_name="broker-a").text)

    def test_a_broker_that_moves(self) -> None:
        """A container gets another address with each start: nothing is to be stopped."""
        for number in range(5):
            self.register("orders", broker_addr=f"10.0.0.{number + 1}:10911")
        self.assertNotIn("by turns", self.asked(broker_name="broker-a").text)

    def test_loopback(self) -> None:
        """A broker that registers an address which only its host can reach is told of."""
        self.register("orders", broker_addr="127.0.0.1:10911")
        self.assertIn("set brokerIP1", self.asked(broker_name="broker-a").text)

    def test_terminal_is_safe(self) -> None:
        """Names that peers chose cannot move the cursor of who reads about them."""
        self.register("orders", broker_name="evil\x1b[2J\nPRESENT")
        text = self.asked(broker_name="evil\x1b[2J\nPRESENT").text
        self.assertNotIn("\x1b", text)
        self.assertIn("evil\\x1b[2J\\nPRESENT", text)
        self.assertEqual(printable("grün\t"), "grün\\t")


class RequestTests(ExplainCase):
    def test_recent(self) -> None:
        """Without a name the last events are told, as many as asked for within bounds."""
        self.assertEqual(self.asked().summary, "no events since the start")
        for number in range(30):
            self.register("orders", version=number, broker_name=f"b{number}", broker_addr=f"10.0.0.{number}:1")
        self.assertEqual([one.broker_name for one in self.asked(recent=2).events], ["b28", "b29"])
        self.assertEqual(len(self.asked().events), 20)
        self.assertEqual(self.asked(recent=-1).events, [])
        self.assertLessEqual(len(self.asked(recent=MAX_RECENT * 9).events), MAX_RECENT)

    def test_both(self) -> None:
        """Topic and broker at once are refused."""
        answer = self.talk.ask(EXPLAIN_ROUTE, ExplainRouteHeader(topic="t", broker_name="b"))
        self.assertEqual((answer.code, answer.remark), (1, "topic or brokerName, not both"))

    def test_connection_lost(self) -> None:
        """The end of a real connection is in the journal with its peer."""
        peer = Peer(self.talk)
        peer.register()
        peer.close()
        (last,) = self.journal.recent(1)
        self.assertEqual((last.kind, last.broker_name), (EventKind.CLOSED.value, "a"))
        self.assertIn(last.peer, self.journal.explain_topic("T").text)


class PromptTests(ExplainCase):
    def test_names(self) -> None:
        """At the prompt explain() finds out by itself whether a broker or a topic is meant."""
        self.register("orders")
        names = prompt_names(self.talk.service)
        explain = names["explain"]
        self.assertEqual(sorted(names), ["explain", "journal", "namesrv", "routes"])
        self.assertTrue(repr(explain("orders")).startswith("topic orders: PRESENT"))
        self.assertTrue(repr(explain("broker-a")).startswith("broker broker-a: PRESENT"))
        self.assertIn("REGISTERED broker-a", repr(explain.recent(1)))
        self.assertIn("explain.broker", repr(explain))


class CostTests(SynchronousTestCase):
    def test_fields_of_an_event_are_kept(self) -> None:
        """Nothing but the full list of topics is lost when an event is kept."""
        log = EventLog()
        version = DataVersion(counter=7)
        given = event(5, broker_addr="x:1", broker_id=3, cluster="C", peer="p:1", data_version=version, reason="r")
        log.record(attrs.evolve(given, topics=("t",) * 9))
        kept = RouteEventData(
            at_ms=5,
            kind="CLOSED",
            broker_name="a",
            broker_addr="x:1",
            broker_id=3,
            cluster="C",
            peer="p:1",
            data_version=version,
            topics=["t"] * 5,
            topic_count=9,
            reason="connection p:1 closed: r",
        )
        self.assertEqual(log.recent(1), [kept])
