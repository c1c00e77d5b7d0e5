"""What a NameServer tells Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import msgspec
from prometheus_client import generate_latest
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.metrics import NamesrvCollector
from rmq.wire.api.routes import GET_ROUTEINFO_BY_TOPIC, REGISTER_BROKER, GetRouteInfoHeader
from rmq.wire.command import RemotingCommand
from rmq.wire.extfields import encode_ext
from tests.namesrv.talk import Talk
from tests.namesrv.test_responders import HEADER, body
from tests.namesrv.test_service import Peer

ROUTE = 'request_code="get_routeinfo_by_topic",request_type="route-read"'
REGISTER = 'request_code="register_broker",request_type="broker-control"'


class MetricsCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk.started(self.mktemp())
        self.peer = Peer(self.talk)

    def scraped(self) -> dict[str, str]:
        """Return every series of a scrape with its value."""
        text = generate_latest(NamesrvCollector(self.talk.service)).decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: value for name, _, value in (line.rpartition(" ") for line in lines)}

    def expect(self, expected: Mapping[str, str]) -> None:
        found = self.scraped()
        self.assertEqual({name: found.get(name) for name in expected}, dict(expected))

    def register(self, peer: Peer, name: str, addr: str, *topics: str, cluster: str = "C", broker_id: int = 0) -> int:
        header = msgspec.structs.replace(
            HEADER, broker_name=name, broker_addr=addr, cluster_name=cluster, broker_id=broker_id
        )
        command = RemotingCommand(REGISTER_BROKER.code, 1, ext_fields=encode_ext(header), body=body(*topics))
        return peer.ask(command).code

    def look_up(self, topic: str) -> int:
        ext = encode_ext(GetRouteInfoHeader(topic=topic))
        return self.peer.ask(RemotingCommand(GET_ROUTEINFO_BY_TOPIC.code, 7, ext_fields=ext)).code


class RouteMetricsTests(MetricsCase):
    def test_empty(self) -> None:
        """A NameServer of which nobody wants anything has its figures too, so that alerts have something to compare."""
        self.expect(
            {
                "rocketmq_namesrv_active_brokers": "0.0",
                "rocketmq_namesrv_topics": "0.0",
                "rocketmq_namesrv_active_connections": "1.0",
                "rocketmq_namesrv_route_request_total": "0.0",
                "rocketmq_namesrv_route_request_latency_count": "0.0",
                "rocketmq_namesrv_broker_registrations_total": "0.0",
                'rocketmq_namesrv_route_errors_total{result="not_found"}': "0.0",
                'rocketmq_namesrv_route_events_total{event="expired"}': "0.0",
                "rocketmq_namesrv_route_cache_bytes": "0.0",
            }
        )

    def test_brokers_and_topics(self) -> None:
        """Brokers by cluster, topics, and for how long a broker has been silent."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T", "U")
        self.register(Peer(self.talk), "b", "10.0.0.2:10911", "T", cluster="D")
        self.talk.reactor.advance(4)
        self.register(Peer(self.talk), "a", "10.0.0.3:10911", broker_id=1)
        self.expect(
            {
                "rocketmq_namesrv_active_brokers": "3.0",
                'rocketmq_namesrv_brokers{cluster="C"}': "2.0",
                'rocketmq_namesrv_brokers{cluster="D"}': "1.0",
                "rocketmq_namesrv_topics": "2.0",
                "rocketmq_namesrv_active_connections": "3.0",
                'rocketmq_namesrv_broker_silence_seconds{broker_addr="10.0.0.1:10911",broker_id="0",broker_name="a",'
                'cluster="C"}': "4.0",
                'rocketmq_namesrv_broker_silence_seconds{broker_addr="10.0.0.3:10911",broker_id="1",broker_name="a",'
                'cluster="C"}': "0.0",
            }
        )

    def test_registration_events(self) -> None:
        """A registration that changes something is an event; one that changes nothing is only counted."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        self.register(self.peer, "a", "10.0.0.1:10911", "T", "U")
        self.expect(
            {
                "rocketmq_namesrv_broker_registrations_total": "3.0",
                'rocketmq_namesrv_registration_events_total{result="registered"}': "1.0",
                'rocketmq_namesrv_registration_events_total{result="changed"}': "1.0",
                'rocketmq_namesrv_route_events_total{event="registered"}': "1.0",
            }
        )

    def test_departures(self) -> None:
        """Brokers that go, by the way they went; the scans that noticed are timed."""
        other = Peer(self.talk)
        self.register(other, "a", "10.0.0.1:10911", "T")
        self.register(self.peer, "b", "10.0.0.2:10911", "T")
        other.close()
        for _ in range(130):
            self.talk.reactor.advance(1)
        self.expect(
            {
                'rocketmq_namesrv_route_events_total{event="closed"}': "1.0",
                'rocketmq_namesrv_route_events_total{event="expired"}': "1.0",
                'rocketmq_namesrv_expiry_events_total{result="expired"}': "1.0",
                "rocketmq_namesrv_active_brokers": "0.0",
                "rocketmq_namesrv_expiry_scan_duration_count": "13.0",
                'rocketmq_namesrv_expiry_scan_duration_bucket{le="10.0"}': "13.0",
            }
        )

    def test_connections(self) -> None:
        """Connections that came, were refused, and went."""
        Peer(self.talk).close()
        self.expect(
            {
                'rocketmq_namesrv_connection_events_total{event="admitted"}': "2.0",
                'rocketmq_namesrv_connection_events_total{event="rejected"}': "0.0",
                'rocketmq_namesrv_connection_events_total{event="closed"}': "1.0",
                "rocketmq_namesrv_active_connections": "1.0",
            }
        )

    def test_replies_that_are_kept(self) -> None:
        """The memory that kept replies take shows, and goes with the next change of the routes."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        self.look_up("T")
        self.assertGreater(float(self.scraped()["rocketmq_namesrv_route_cache_bytes"]), 100)

    def test_key_values(self) -> None:
        """Entries of the key-value table by namespace."""
        self.talk.service.kv.put("N", "k", "v")
        self.talk.service.kv.put("N", "l", "v")
        self.expect({'rocketmq_namesrv_kv_entries{namespace="N"}': "2.0"})


class RequestMetricsTests(MetricsCase):
    def test_look_ups(self) -> None:
        """Look-ups are counted and timed, those that find nothing are told apart; however they were answered."""
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        self.assertEqual([self.look_up("T") for _ in range(5)], [0] * 5)
        self.assertEqual(self.look_up("X"), 17)
        self.expect(
            {
                "rocketmq_namesrv_route_request_total": "6.0",
                "rocketmq_namesrv_route_request_latency_count": "6.0",
                'rocketmq_namesrv_route_request_latency_bucket{le="0.05"}': "6.0",
                'rocketmq_namesrv_route_errors_total{result="not_found"}': "1.0",
                'rocketmq_namesrv_route_errors_total{result="internal"}': "0.0",
                f'rocketmq_namesrv_requests_total{{{ROUTE},result="success"}}': "5.0",
                f'rocketmq_namesrv_requests_total{{{ROUTE},result="rejected"}}': "1.0",
                f"rocketmq_namesrv_request_handler_latency_count{{{ROUTE}}}": "6.0",
                f'rocketmq_namesrv_request_handler_latency_bucket{{le="50.0",{ROUTE}}}': "6.0",
                'rocketmq_namesrv_refusals_total{request_code="get_routeinfo_by_topic",'
                'response_code="topic_not_exist"}': "1.0",
            }
        )

    def test_registrations(self) -> None:
        """A registration that cannot be read is rejected; a bug is an error, which has a zero before the first one."""
        self.expect({f'rocketmq_namesrv_requests_total{{{REGISTER},result="error"}}': "0.0"})
        self.register(self.peer, "a", "10.0.0.1:10911", "T")
        ext = encode_ext(HEADER)
        self.assertEqual(self.peer.ask(RemotingCommand(REGISTER_BROKER.code, 3, ext_fields=ext, body=b"?")).code, 1)
        self.expect(
            {
                f'rocketmq_namesrv_requests_total{{{REGISTER},result="success"}}': "1.0",
                f'rocketmq_namesrv_requests_total{{{REGISTER},result="rejected"}}': "1.0",
                f'rocketmq_namesrv_requests_total{{{REGISTER},result="error"}}': "0.0",
            }
        )

    def test_bugs(self) -> None:
        """A refusal with SYSTEM_ERROR is no bug: a NameServer that is not ready, a list that is switched off."""
        settings = self.talk.service.settings
        settings.namesrv = attrs.evolve(settings.namesrv, need_wait_for_service=True)
        self.assertEqual(self.look_up("T"), 1)
        settings.namesrv = attrs.evolve(settings.namesrv, need_wait_for_service=False)
        self.patch(self.talk.service.routes.topology, "pick_route", lambda *_, **__: 1 // 0)
        self.assertEqual(self.look_up("T"), 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.expect(
            {
                'rocketmq_namesrv_route_errors_total{result="rejected"}': "1.0",
                'rocketmq_namesrv_route_errors_total{result="internal"}': "1.0",
                f'rocketmq_namesrv_requests_total{{{ROUTE},result="rejected"}}': "1.0",
                f'rocketmq_namesrv_requests_total{{{ROUTE},result="error"}}': "1.0",
            }
        )

    def test_unknown_codes(self) -> None:
        """Whatever numbers peers send, they are one series."""
        for code in (9998, 9999, 77777):
            self.peer.ask(RemotingCommand(code, 1))
        kind = 'request_code="unknown",request_type="admin"'
        self.expect({f'rocketmq_namesrv_requests_total{{{kind},result="rejected"}}': "3.0"})
        self.assertEqual(self.scraped()[f'rocketmq_namesrv_requests_total{{{kind},result="success"}}'], "0.0")
