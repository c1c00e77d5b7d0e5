"""Routes of NameServers: read from dumps, compared with each other and against what stores hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
from rmq_audit.driver.findings import Finding
from rmq_audit.driver.routes import (
    MAX_NAMED,
    BrokerRoute,
    Held,
    QueueRoute,
    Routes,
    check_routes,
    disambiguate,
    read_routes,
)
from rmq_audit.worker.location import InputError
from twisted.trial.unittest import SynchronousTestCase

from tests.spark.cases import FolderCase


def routes(name: str, brokers: Mapping[tuple[str, int], str], queues: Mapping[tuple[str, str], int]) -> Routes:
    return Routes(
        nameserver=name,
        path="made",
        brokers={key: BrokerRoute("c", addr) for key, addr in brokers.items()},
        queues={key: QueueRoute(count, count, 6) for key, count in queues.items()},
    )


def held(*topics: str, slaves: int = 0, messages: int = 5, queues: int = 4) -> Held:
    """A broker "a" with messages in the queues of topics."""
    return Held(
        broker="a",
        slaves=slaves,
        queues={(topic, queue_id): messages for topic in topics for queue_id in range(queues)},
        configured=frozenset((*topics, "TBW102")),
    )


def kinds(findings: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(one.invariant, one.severity.name, one.topic) for one in findings]


A, T = {("a", 0): "1:1"}, {("T", "a"): 4}


class NameTests(SynchronousTestCase):
    def test_servers_of_one_name(self) -> None:
        """Dumps that call their NameServers alike do not hide each other: they go by name and path."""
        moved = attrs.evolve(routes("n1", {("a", 0): "1:2"}, T), path="other")
        ones = disambiguate([routes("n1", A | {("b", 0): "1:3"}, T), moved, routes("n2", A, T), moved])
        self.assertEqual([one.nameserver for one in ones], ["n1 (made)", "n1 (other)", "n2", "n1 (other, number 2)"])
        found = [one.invariant for one in check_routes(ones[:2], [])]
        self.assertEqual(found, ["RT-TWOMASTERS", "RT-MISSING"])


class CompareTests(SynchronousTestCase):
    def test_agreement(self) -> None:
        """NameServers that know the same, and stores that hold what they lead to: nothing."""
        same = [routes(name, A, T) for name in ("n1", "n2", "n3")]
        self.assertEqual(check_routes(same, [held("T")]), [])
        self.assertEqual(check_routes([], [held("T")]), [])

    def test_what_one_lacks(self) -> None:
        """A broker or a topic that one of three does not know is an ERROR that blames it, without its queues."""
        whole = [routes(name, A, T) for name in ("n1", "n2")]
        (one,) = check_routes([*whole, routes("n3", {}, {})], [held("T")])
        self.assertEqual((one.invariant, one.severity.name, one.blame, one.broker), ("RT-MISSING", "ERROR", "n3", "a"))
        (one,) = check_routes([*whole, routes("n3", A, {})], [held("T")])
        self.assertEqual((one.invariant, one.topic, one.blame), ("RT-MISSING", "T", "n3"))
        (one,) = check_routes([whole[0], routes("n3", A, {})], [held("T")])
        self.assertEqual(one.blame, "undecided")

    def test_other_values(self) -> None:
        """Other queue counts, permissions or clusters are RT-DIFF, with both values and the odd one named."""
        odd = routes("n3", A, {("T", "a"): 8})
        (one,) = check_routes([routes("n1", A, T), routes("n2", A, T), odd], [held("T")])
        self.assertEqual((one.invariant, one.severity.name, one.blame), ("RT-DIFF", "ERROR", "n3"))
        self.assertEqual(one.expected, "4 read and 4 write queues, permission 6")
        self.assertEqual(one.actual, "n3: 8 read and 8 write queues, permission 6")
        moved = Routes(nameserver="n2", path="made", brokers={("a", 0): BrokerRoute("d", "1:1")}, queues={})
        moved.queues = routes("x", A, T).queues
        self.assertEqual(kinds(check_routes([routes("n1", A, T), moved], [held("T")])), [("RT-DIFF", "ERROR", None)])

    def test_two_masters(self) -> None:
        """Two addresses of one master are CRITICAL; two of a slave are RT-DIFF."""
        for broker_id, expected in ((0, ("RT-TWOMASTERS", "CRITICAL", None)), (1, ("RT-DIFF", "ERROR", None))):
            here = routes("n1", A | {("a", broker_id): "1:1"}, T)
            there = routes("n2", A | {("a", broker_id): "1:2"}, T)
            self.assertEqual(kinds(check_routes([here, there], [held("T")])), [expected])

    def test_many_topics_are_counted(self) -> None:
        """A NameServer that lacks a thousand topics does not make a thousand findings."""
        many = {(f"t{number}", "a"): 4 for number in range(1000)}
        found = check_routes([routes("n1", A, many), routes("n2", A, {})], [])
        self.assertEqual(len(found), MAX_NAMED)
        self.assertIn("980 more topics", found[-1].detail)


class StoreTests(SynchronousTestCase):
    def test_a_broker_that_nobody_knows(self) -> None:
        """A broker of the configuration without a route, without a master, with too few slaves."""
        (one,) = check_routes([routes("n1", {}, {})], [held("T")])
        self.assertEqual((one.invariant, one.severity.name), ("RT-MISSING", "ERROR"))
        self.assertIn("no NameServer knows broker a", one.detail)
        found = check_routes([routes("n1", {("a", 1): "1:2"}, T)], [held("T", slaves=2)])
        self.assertEqual(kinds(found), [("RT-MISSING", "ERROR", None), ("RT-MISSING", "WARN", None)])

    def test_messages_without_a_route(self) -> None:
        """Messages of a topic that no NameServer leads to, and in queues beyond the read queues, are warned of."""
        found = check_routes([routes("n1", A, T)], [held("T", "U")])
        self.assertEqual(kinds(found), [("RT-STORE", "WARN", "U")])
        self.assertIn("holds 20 messages of topic U in 4 queues", found[0].detail)
        found = check_routes([routes("n1", A, {("T", "a"): 3})], [held("T")])
        self.assertEqual((kinds(found), found[0].queue_id), ([("RT-STORE", "WARN", "T")], 3))

    def test_a_route_without_a_topic(self) -> None:
        """A route to a broker that does not have the topic is warned of, where its configuration is known."""
        wide = routes("n1", A, T | {("U", "a"): 4, ("c", "a"): 1, ("a", "a"): 1, ("RMQ_SYS_TRACE_TOPIC", "a"): 1})
        self.assertEqual(kinds(check_routes([wide], [held("T")])), [("RT-STORE", "WARN", "U")])
        unknown = Held(broker="a", slaves=0, queues={}, configured=None)
        self.assertEqual(check_routes([wide], [unknown]), [])

    def test_what_brokers_make_for_themselves(self) -> None:
        """Delayed messages, halves of transactions and light queues need no route."""
        own = held("T", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%LMQ%x", "rmq_sys_wheel_timer")
        self.assertEqual(check_routes([routes("n1", A, T)], [own]), [])
        empty = Held(broker="a", slaves=0, queues={("U", 0): 0}, configured=None)
        self.assertEqual(check_routes([routes("n1", A, T)], [empty]), [])


class ReadingTests(FolderCase):
    def test_a_dump(self) -> None:
        """One file holds one NameServer or several."""
        one: dict[str, Any] = {"nameserver": "n1", "takenAt": 5, "brokers": [], "queues": []}
        one["brokers"] = [{"cluster": "c", "brokerName": "a", "brokerId": 0, "addr": "1:1"}]
        one["queues"] = [{"topic": "T", "brokerName": "a", "readQueueNums": 3, "writeQueueNums": 4, "perm": 6}]
        path = self.folder / "routes.json"
        path.write_text(json.dumps(one))
        (found,) = read_routes(str(path))
        self.assertEqual((found.nameserver, found.taken_at, found.topics), ("n1", 5, {"T"}))
        self.assertEqual(found.queues["T", "a"], QueueRoute(3, 4, 6))
        path.write_text(json.dumps([one, one | {"nameserver": "n2"}]))
        self.assertEqual([each.nameserver for each in read_routes(str(path))], ["n1", "n2"])

    def test_a_folder_of_mqadmin(self) -> None:
        """Files that ``mqadmin topicRoute`` printed, in fastjson's dialect and with warnings in front."""
        folder = self.folder / "ns-1"
        folder.mkdir()
        text = (
            "RocketMQLog:WARN No appenders could be found\n"
            '{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}],'
            '"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
            '"writeQueueNums":8}]}\n'
        )
        (folder / "T.json").write_text(text)
        (folder / "notes.txt").write_text("not read")
        (found,) = read_routes(str(folder))
        self.assertEqual((found.nameserver, sorted(found.brokers)), ("ns-1", [("a", 0), ("a", 1)]))
        self.assertEqual(found.queues, {("T", "a"): QueueRoute(4, 8, 6)})

    def test_what_is_no_dump(self) -> None:
        """What is missing or of the wrong kind is named with file and member."""
        path = self.folder / "routes.json"
        for text, word in (("[7]", "NameServer 1"), ('{"nameserver": 3}', "nameserver is 3"), ("\xff", "not JSON")):
            path.write_bytes(text.encode("latin-1"))
            error = self.assertRaises(InputError, read_routes, str(path))
            self.assertIn(word, str(error))
            self.assertIn(str(path), str(error))
        self.assertRaises(InputError, read_routes, str(self.folder / "none"))
