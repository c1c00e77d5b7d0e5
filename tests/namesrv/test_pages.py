"""The status page of a NameServer."""

from __future__ import annotations

import re

from rmq.namesrv.metrics import namesrv_face
from tests.namesrv.talk import Talk
from tests.namesrv.test_metrics import MetricsCase
from tests.namesrv.test_service import Peer


def text_of(page: str) -> str:
    """Return what a reader sees: no tags, blanks and line ends as one blank."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("</style>")[2]))


class PageTests(MetricsCase):
    def page(self, path: str, **query: str) -> str:
        return namesrv_face(self.talk.service).pages[path](query)

    def test_empty(self) -> None:
        """A NameServer without brokers says so."""
        text = text_of(self.page("/"))
        for part in ("NameServer 127.0.0.1:9876", "no broker is registered", "no events yet", "Up for"):
            self.assertIn(part, text)

    def test_brokers(self) -> None:
        """Brokers with cluster, name, id, addresses, data version, when they were heard of and when they expire."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        self.talk.reactor.advance(4)
        text = text_of(self.page("/"))
        self.assertIn("C a 0 10.0.0.1:10911 10.0.0.1:10912 1 of 1970-01-01 00:00:00.000 UTC 4.0 s ago 1 min 56 s", text)
        self.talk.reactor.advance(70)
        self.assertIn('<span class="bad">1 min 14 s ago</span>', self.page("/"))

    def test_state(self) -> None:
        """Uptime, connections, requests and the key-value table."""
        self.talk.service.kv.put("N", "k", "v")
        self.talk.reactor.advance(90)
        self.look_up("T")
        text = text_of(self.page("/"))
        self.assertIn("Up for 1 min 30 s, since 2027-01-15 08:00:00.000 UTC", text)
        self.assertIn("Connections 1 Requests answered 1", text)
        self.assertIn("Key-value entries N: 1", text)

    def test_events(self) -> None:
        """The last events, newest first, with broker, peer, topics and reason."""
        other = Peer(self.talk)
        self.register(other, "a", "10.0.0.1:10911", *(f"T{number}" for number in range(9)))
        self.talk.reactor.advance(1)
        other.close()
        events = text_of(self.page("/")).partition("Last events")[2]
        self.assertLess(events.index("CLOSED"), events.index("REGISTERED"))
        self.assertIn("10.0.0.1:10911", events)
        self.assertRegex(events, r"(?<!\d)4 more")

    def test_topic_with_a_route(self) -> None:
        """A topic's page has its route, and in words why it is so."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        page = self.page("/topic", name="T")
        self.assertIn("C a 0: 10.0.0.1:10911 4 4 RW- (6)", text_of(page))
        self.assertIn(self.talk.service.journal.explain_topic("T").text.splitlines()[0], page)

    def test_topic_that_is_gone(self) -> None:
        """A topic that was lost is explained by what took it away."""
        other = Peer(self.talk)
        self.register(other, "a", "10.0.0.1:10911", "T")
        other.close()
        text = text_of(self.page("/topic", name="T"))
        self.assertIn("No route", text)
        self.assertIn("CLOSED", text)
        self.assertIn("CLOSED", text_of(self.page("/broker", name="a")))

    def test_pages_without_a_name(self) -> None:
        """Without a name there is a form to give one."""
        for path in ("/topic", "/broker"):
            self.assertIn("<form", self.page(path))
            self.assertNotIn("<pre>", self.page(path, name=" "))

    def test_topics(self) -> None:
        """All topics, or those whose names contain something, each with a link."""
        self.register(self.peer, "a", "10.0.0.1:10911", "orders", "payments")
        page = self.page("/topics", part="ord")
        self.assertIn('<a href="/topic?name=orders">orders</a>', page)
        self.assertNotIn("payments", page)
        self.assertIn("2 topics", text_of(self.page("/topics")))

    def test_names_of_peers_are_text(self) -> None:
        """Whatever a broker calls itself and its topics, it is shown and never obeyed."""
        evil = "<script>alert(1)</script>"
        self.register(self.peer, evil, f"{evil}:1", evil, cluster=evil)
        for path, query in (("/", {}), ("/topics", {}), ("/topic", {"name": evil}), ("/broker", {"name": evil})):
            page = self.page(path, **query)
            self.assertIn("&lt;script&gt;", page)
            self.assertNotIn("<script", page)

    def test_many_topics(self) -> None:
        """Pages stay short however many topics there are."""
        self.register(self.peer, "a", "10.0.0.1:10911", *(f"topic-{number:05}" for number in range(5000)))
        self.assertIn("and 4,940 more", self.page("/"))
        self.assertIn("the first 2,000 of them", self.page("/topics"))
        self.assertLess(len(self.page("/topics")), 300_000)

    def test_requests_and_configuration(self) -> None:
        """What was answered and refused, and every key with its value."""
        self.look_up("T")
        text = text_of(self.page("/requests"))
        self.assertIn("get_routeinfo_by_topic 1 0 µs 0.05 ms", text)
        self.assertIn("get_routeinfo_by_topic topic_not_exist 1", text)
        self.assertIn("listenPort=9876", self.page("/config"))

    def test_health(self) -> None:
        """A NameServer is healthy while it runs."""
        face = namesrv_face(self.talk.service)
        self.assertIsNone(face.health())
        self.talk.service.stopService()
        self.assertEqual(face.health(), "the NameServer is not running")

    def test_health_while_brokers_register(self) -> None:
        """With needWaitForService a NameServer is not healthy before it answers look-ups."""
        talk = Talk.started(self.mktemp(), need_wait_for_service=True, wait_seconds_for_service=45)
        face = namesrv_face(talk.service)
        self.assertIn("look-ups are refused", str(face.health()))
        talk.reactor.advance(45)
        self.assertIsNone(face.health())
