"""What a NameServer of ours tells about an Apache broker that is there, and about one that was killed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.real.peers import APACHE_4, OURS, Process, Site, until

EXPLAIN_ROUTE = 9701
TOPIC = "Explained"


def explained(namesrv: Process, **about: str) -> dict[str, Any]:
    with namesrv.probe() as probe:
        found: dict[str, Any] = json.loads(probe.must(EXPLAIN_ROUTE, about).body)
    return found


@pytest.mark.real
def test_killed_broker_is_explained(site: Site) -> None:
    """A topic of an Apache broker is there with its process; after kill -9 the end of its connection is the reason."""
    namesrv = site.namesrv(OURS)
    assert explained(namesrv, topic=TOPIC)["state"] == "NEVER_SEEN"

    broker = site.broker(APACHE_4, namesrv.addr)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, 3)
    until("the topic is there", lambda: explained(namesrv, topic=TOPIC)["state"] == "PRESENT")
    there = explained(namesrv, topic=TOPIC)
    (process,) = there["brokers"][0]["processes"]
    assert (process["brokerAddr"], process["brokerId"]) == (broker.addr, 0)
    assert there["queues"][0]["writeQueueNums"] == 3
    assert process["dataVersion"]["counter"] > 0

    broker.kill()
    until("the topic is gone", lambda: explained(namesrv, topic=TOPIC)["state"] == "GONE")
    (removed,) = explained(namesrv, topic=TOPIC)["removed"]
    assert (removed["kind"], removed["brokerName"]) == ("CLOSED", broker.broker_name)
    assert removed["peer"] == process["peer"] and process["peer"] in removed["reason"]
    about_broker = explained(namesrv, brokerName=broker.broker_name)
    assert [event["kind"] for event in about_broker["brokers"][0]["events"]][-1] == "CLOSED"

    broker.start()
    until("the topic is back", lambda: explained(namesrv, topic=TOPIC)["state"] == "PRESENT")
    assert [event["kind"] for event in explained(namesrv)["events"]].count("REGISTERED") == 2
