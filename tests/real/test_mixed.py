"""Our NameServer with Apache's broker, and Apache's NameServer with our broker (acceptance 3)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.real.conftest import Clients
from tests.real.javaclient import JavaClient, content
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, mqadmin, until

#: (NameServer, broker, client)
MIXES = [(OURS, APACHE_4, APACHE_4), (OURS, APACHE_5, APACHE_5), (APACHE_4, OURS, APACHE_4), (APACHE_4, OURS, APACHE_5)]


@pytest.mark.real
@pytest.mark.parametrize(("namesrv_kind", "broker_kind", "version"), MIXES, ids=["-".join(mix) for mix in MIXES])
def test_a_mixed_cluster_works(namesrv_kind: str, broker_kind: str, version: str, site: Site, client: Clients) -> None:
    """A client that knows only the NameServer sends, receives and finds; the route follows the broker's life."""
    namesrv = site.namesrv(namesrv_kind)
    broker = site.broker(broker_kind, namesrv.addr)
    assert broker.addr in mqadmin(site.root, "clusterList", "-n", namesrv.addr)

    mqadmin(site.root, "updateTopic", "-n", namesrv.addr, "-b", broker.addr, "-t", "Made", "-r", "3", "-w", "3")
    until("the made topic is routed", lambda: route_queues(namesrv, "Made") == 3)

    java = client(version, namesrv.addr)
    # "Found" is created by its first message: the broker registers it, the NameServer routes it.
    for topic in ("Made", "Found"):
        java.send(topic, "sync", 1, prefix="first" + topic)
        java.consume("mixed-" + topic, topic, topic)
        sent: dict[str, tuple[str, str, int, str]] = {}
        for way in ("sync", "async", "oneway", "batch"):
            sent |= {e["key"]: content(e) for e in java.send(topic, way, 50, prefix=f"{topic}-{way}")}
        java.wait_for_count("all received", partial(received, java, topic, set(sent)), len(sent))
        got = {e["key"]: content(e) for e in java.got(topic)}
        assert {key: got[key] for key in sent} == sent
    java.close()

    assert_route_follows(namesrv, broker)


def received(java: JavaClient, member: str, keys: set[str]) -> int:
    return len(keys & {e["key"] for e in java.got(member)})


def assert_route_follows(namesrv: Process, broker: Broker) -> None:
    """A broker that dies leaves the route when its connection closes; it is back when it starts; a stop unregisters."""
    broker.kill()
    until("the dead broker has left the route", lambda: route_queues(namesrv, "Made") is None, seconds=30)
    broker.start()
    until("the topic is back", lambda: route_queues(namesrv, "Made") == 3, seconds=60)
    broker.stop()
    until("the stopped broker has left the route", lambda: route_queues(namesrv, "Made") is None, seconds=30)


def route_queues(namesrv: Process, topic: str) -> int | None:
    """Return how many queues of ``topic`` can be written to, None without a route."""
    with namesrv.probe() as probe:
        route = probe.route(topic)
    if route is None or not route["brokerDatas"]:
        return None
    return int(route["queueDatas"][0]["writeQueueNums"])


@pytest.mark.real
def test_a_frozen_broker_leaves_the_route_after_two_minutes(site: Site) -> None:
    """A broker that is suspended keeps its connection and says nothing: the route drops it after 120 to 131 s."""
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr)
    with namesrv.probe() as probe:
        assert probe.route("BenchmarkTest") is not None
    broker.suspend()
    gone = until("the frozen broker has left the route", lambda: no_route(namesrv), seconds=160)
    assert gone
    broker.resume()
    until("the broker is back", lambda: not no_route(namesrv), seconds=90)


def no_route(namesrv: Process) -> bool:
    with namesrv.probe() as probe:
        return probe.route("BenchmarkTest") is None
