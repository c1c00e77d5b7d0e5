"""The HTTP port, in memory: what it answers, whom it refuses, and what it costs at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.config import ConfigError
from rmq.runtime.http import metrics, site
from rmq.runtime.http.face import Face
from rmq.runtime.http.html import Section, page, table
from rmq.runtime.http.metrics import COUNTER, GAUGE, Collector, Row, family
from rmq.runtime.http.service import HttpAddress, HttpService, make_http_service, parse_http


class Numbers(Collector):
    """Two metrics, and a note of how often they were read."""

    def __init__(self) -> None:
        super().__init__({"node": "a"})
        self.series = 1
        self.reads = 0

    @family("rmq_test_reads_total", COUNTER, "How often this was read.")
    def read(self) -> Iterable[Row]:
        self.reads += 1
        yield (), self.reads

    @family("rmq_test_many", GAUGE, "Many series.", labels=["number"])
    def many(self) -> Iterable[Row]:
        for number in range(self.series):
            yield (str(number),), number


class Transport(StringTransport):
    """A connection that notes how it was ended."""

    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.disconnecting = True

    def getTcpNoDelay(self) -> bool:
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing to set."""


class HttpCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.reactor.advance(1_800_000_000)
        self.numbers = Numbers()
        self.why_not: str | None = None
        self.service = make_http_service("8080", self.face, reactor=self.reactor)
        self.service.startService()
        self.factory = self.reactor.tcpServers[0][1]

    def face(self) -> Face:
        return Face(
            collectors=(self.numbers,),
            pages={"/": self.show, "/broken": self.fail_to_show},
            health=lambda: self.why_not,
        )

    def show(self, query: Mapping[str, str]) -> str:
        section = Section("Given", table(["Name", "Value"], sorted(query.items())))
        return page("A role", {"/": "Status"}, [section], at_ms=1_000)

    def fail_to_show(self, query: Mapping[str, str]) -> str:
        raise RuntimeError("secret")

    def connect(self) -> tuple[Any, Transport]:
        protocol: Any = self.factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1))
        transport = Transport()
        protocol.makeConnection(transport)
        return protocol, transport

    def send(self, text: str) -> Transport:
        protocol, transport = self.connect()
        protocol.dataReceived(text.replace("\n", "\r\n").encode())
        self.reactor.pump([0] * 200)
        return transport

    def ask(self, path: str, *, method: str = "GET", headers: str = "") -> tuple[int, str, str]:
        """Return status, head and body of the answer."""
        answer = self.send(f"{method} {path} HTTP/1.1\nHost: x\n{headers}\n").value().decode()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split()[1]), head, body


class PageTests(HttpCase):
    def test_status_page(self) -> None:
        """The root is an HTML page of one file that no browser may take for anything else, or store."""
        status, head, body = self.ask("/?name=a&other=b+c")
        self.assertEqual(status, 200)
        for line in (
            "text/html; charset=utf-8",
            "Server: rmq",
            "Cache-Control: no-store",
            "nosniff",
            "default-src 'none'",
        ):
            self.assertIn(line.lower(), head.lower())
        self.assertIn("<td>name</td><td>a</td>", body)
        self.assertIn("<td>other</td><td>b c</td>", body)
        self.assertNotIn("http", body.split("<style>")[0])

    def test_what_peers_send_is_text(self) -> None:
        """Markup in a query, as in everything that peers send, is shown and not obeyed."""
        _, _, body = self.ask("/?name=%3Cscript%3Ealert(1)%3C/script%3E&q=%FF%22%27")
        self.assertIn("&lt;script&gt;alert(1)", body)
        self.assertNotIn("<script", body)

    def test_unknown_page(self) -> None:
        """Other paths are 404 and name those that are there."""
        for path in ("/x", "//", "/metrics/", "/%2e%2e/etc/passwd", "/Metrics"):
            status, _, body = self.ask(path)
            self.assertEqual((status, body), (404, "no such page; there are / /broken /healthz /metrics\n"), path)

    def test_only_reading(self) -> None:
        """Nothing but GET and HEAD is answered, and HEAD has no body."""
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            status, head, _ = self.ask("/", method=method)
            self.assertEqual(status, 405, method)
            self.assertIn("allow: get, head", head.lower())
        for path in ("/", "/metrics", "/healthz"):
            status, _, body = self.ask(path, method="HEAD")
            self.assertEqual((status, body), (200, ""), path)

    def test_health(self) -> None:
        """/healthz is 200 while the role serves and 503 with the reason when it does not."""
        self.assertEqual(self.ask("/healthz")[::2], (200, "ok\n"))
        self.why_not = "the store has failed"
        self.assertEqual(self.ask("/healthz")[::2], (503, "not serving: the store has failed\n"))

    def test_broken_page(self) -> None:
        """A bug in a page is logged and answered with 500, without telling what it was."""
        status, _, body = self.ask("/broken")
        self.assertEqual(status, 500)
        self.assertNotIn("secret", body)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class MetricsPageTests(HttpCase):
    def test_prometheus_text(self) -> None:
        """Without an Accept header, and for old Prometheus, it is the text format 0.0.4."""
        status, head, body = self.ask("/metrics")
        self.assertEqual(status, 200)
        self.assertIn("text/plain; version=0.0.4", head)
        self.assertIn(f"content-length: {len(body)}", head.lower())
        self.assertEqual(
            body,
            "# HELP rmq_test_reads_total How often this was read.\n"
            "# TYPE rmq_test_reads_total counter\n"
            'rmq_test_reads_total{node="a"} 1.0\n'
            "# HELP rmq_test_many Many series.\n"
            "# TYPE rmq_test_many gauge\n"
            'rmq_test_many{node="a",number="0"} 0.0\n'
            "# HELP rocketmq_scrape_series_dropped Series that this scrape left out because their metric has more than "
            "20000.\n"
            "# TYPE rocketmq_scrape_series_dropped gauge\n"
            "rocketmq_scrape_series_dropped 0.0\n",
        )

    def test_openmetrics(self) -> None:
        """A scraper that prefers OpenMetrics gets it, ended as it must be."""
        accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\n"
        _, head, body = self.ask("/metrics", headers=accept)
        self.assertIn("application/openmetrics-text; version=1.0.0", head)
        self.assertIn("# TYPE rmq_test_reads counter\n", body)
        self.assertTrue(body.endswith("rocketmq_scrape_series_dropped 0.0\n# EOF\n"))
        self.assertEqual(body.count("# EOF"), 1)

    def test_many_series(self) -> None:
        """A metric of many series is whole, has one head, and is written in slices with pauses between them."""
        self.numbers.series = 2 * metrics.SLICE_SERIES + 1
        for headers in ("", "Accept: application/openmetrics-text\n"):
            _, _, body = self.ask("/metrics", headers=headers)
            self.assertEqual(body.count("# TYPE rmq_test_many"), 1)
            self.assertEqual(body.count("\nrmq_test_many{"), self.numbers.series)
            self.assertIn(f'number="{self.numbers.series - 1}"', body)
        pauses: list[float] = []
        call_later = self.reactor.callLater

        def noted(delay: float, *call: Any) -> Any:
            pauses.append(delay)
            return call_later(delay, *call)

        self.patch(self.reactor, "callLater", noted)
        self.reactor.advance(metrics.FRESH_S)
        self.ask("/metrics")
        self.assertGreaterEqual(pauses.count(0), 4)

    def test_too_many_series(self) -> None:
        """What is beyond the limit is left out and counted."""
        self.patch(metrics, "MAX_SERIES", 50)
        self.numbers.series = 60
        body = self.ask("/metrics")[2]
        self.assertEqual(body.count("\nrmq_test_many{"), 50)
        self.assertIn("rocketmq_scrape_series_dropped 10.0\n", body)

    def test_names_that_peers_choose(self) -> None:
        """Names that are very long, or that have no UTF-8 form, do not spoil the scrape."""

        def rows() -> Iterable[Row]:
            return [(("\ud800" + "x" * 1000,), 1), (('a"\\\n',), 2), (("größe",), 3)]

        described = Numbers.families()[1]
        self.patch(
            Numbers, "many", family(described.name, GAUGE, described.help, labels=["number"])(lambda self: rows())
        )
        body = self.ask("/metrics")[2]
        self.assertIn('number="?' + "x" * 254 + '"} 1.0\n', body)
        self.assertIn('number="a\\"\\\\\\n"} 2.0\n', body)
        self.assertIn("größe", body)

    def test_floods_cost_one_scrape(self) -> None:
        """Requests that come together or within a second share one scrape."""
        for _ in range(5):
            self.assertIn("reads_total", self.ask("/metrics")[2])
        self.assertEqual(self.numbers.reads, 1)
        waiting = []
        self.reactor.advance(metrics.FRESH_S)
        for _ in range(3):
            protocol, transport = self.connect()
            protocol.dataReceived(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            waiting.append(transport)
        self.reactor.pump([0] * 50)
        self.assertEqual(self.numbers.reads, 2)
        self.assertEqual([b'reads_total{node="a"} 2.0' in transport.value() for transport in waiting], [True] * 3)

    def test_peer_that_leaves_in_the_middle(self) -> None:
        """A scraper that hangs up before its answer harms nobody."""
        protocol, transport = self.connect()
        protocol.dataReceived(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        protocol.connectionLost(Failure(ConnectionDone()))
        self.reactor.pump([0] * 50)
        self.assertEqual(transport.value(), b"")
        self.assertEqual(self.ask("/metrics")[0], 200)

    def test_broken_metric(self) -> None:
        """A bug in a collector is logged and answered with 500; the next scrape tries again."""

        def broken() -> Iterable[Row]:
            raise RuntimeError("secret")

        self.patch(self.numbers, "many", broken)
        for _ in range(2):
            status, _, body = self.ask("/metrics")
            self.assertEqual(status, 500)
            self.assertNotIn("secret", body)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)


class LimitTests(HttpCase):
    def test_connections(self) -> None:
        """32 connections are open at a time; one more pushes the oldest out, so that idle ones lock nobody out."""
        transports = [self.connect()[1] for _ in range(32)]
        self.assertFalse(any(transport.aborted for transport in transports))
        transports += [self.connect()[1] for _ in range(2)]
        self.assertEqual([transport.aborted for transport in transports[:3]], [True, True, False])
        self.assertEqual(self.ask("/healthz")[0], 200)

    def test_idle(self) -> None:
        """A connection on which nothing comes is closed after 30 s."""
        _, transport = self.connect()
        self.reactor.advance(29)
        self.assertFalse(transport.disconnecting)
        self.reactor.advance(1)
        self.assertTrue(transport.disconnecting)

    def test_large_request(self) -> None:
        """A body is thrown away, and a large one ends the connection; headers have a limit too."""
        protocol, transport = self.connect()
        protocol.dataReceived(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n")
        for _ in range(site.MAX_BODY_BYTES // 1024):
            protocol.dataReceived(bytes(1024))
        self.assertFalse(transport.disconnecting)
        protocol.dataReceived(b"x")
        self.assertTrue(transport.disconnecting)
        self.assertTrue(self.send("GET / HTTP/1.1\nX: " + "x" * 100_000).disconnecting)

    def test_garbage(self) -> None:
        """What is no HTTP is refused."""
        transport = self.send("\x00\x00\x00\x10garbage\n\n\n")
        self.assertTrue(transport.disconnecting)

    def test_stop(self) -> None:
        """The stop drops every connection and leaves no timer."""
        _, transport = self.connect()
        self.successResultOf(self.service.stopService())
        self.assertTrue(transport.aborted)

    def test_nothing_runs_while_nobody_asks(self) -> None:
        """A port that nobody uses costs nothing: there is no timer."""
        self.assertEqual(self.reactor.getDelayedCalls(), [])


class AddressTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        """A port alone is one on 127.0.0.1."""
        self.assertEqual(parse_http("8080"), HttpAddress(host="127.0.0.1", port=8080))
        self.assertEqual(parse_http("0.0.0.0:80"), HttpAddress(host="0.0.0.0", port=80))
        self.assertEqual(parse_http("[::1]:80"), HttpAddress(host="::1", port=80))
        self.assertEqual([str(parse_http(text)) for text in ("1", "[::1]:1")], ["127.0.0.1:1", "[::1]:1"])

    def test_wrong_addresses(self) -> None:
        """What is no address is told with an example."""
        for text in ("", "x", "1.5", ":1", "a:", "a:70000", "a b:1", "a/b:1", "-1", "a,b:1"):
            self.assertIn("0.0.0.0:8080", str(self.assertRaises(ConfigError, parse_http, text)), text)

    def test_port_in_use(self) -> None:
        """A port that is taken is an error with the address, and nothing is left."""

        class Reactor(MemoryReactorClock):
            def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
                raise CannotListenError(interface, port, OSError("taken"))

        service = HttpService(Reactor(), parse_http("80"), None)
        error = self.assertRaises(CannotListenError, service.startService)
        self.assertIn("127.0.0.1:80", str(error))
        self.assertFalse(service.running)


class AcceptTests(HttpCase):
    def test_odd_headers(self) -> None:
        """An Accept header that nobody understands gets the plain text."""
        for accept in (
            "text/plain;version=x.y",
            "application/openmetrics-text;version=x",
            "application/openmetrics-text;version=\u0661.0.0",
            "\x80\u20ac",
        ):
            status, head, body = self.ask("/metrics", headers=f"Accept: {accept}\n")
            self.assertEqual(status, 200, accept)
            # an old prometheus-client does not look at the version of OpenMetrics that is asked for
            either = "|application/openmetrics-text" if accept.startswith("application/openmetrics") else ""
            self.assertRegex(head, rf"Content-Type: (text/plain; version=0\.0\.4{either})")
            self.assertIn("rocketmq_scrape_series_dropped", body)
        self.assertEqual(self.flushLoggedErrors(), [])
