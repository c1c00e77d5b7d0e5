"""What a NameServer of ours tells about an Apache broker that is there, and about one that was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.peers import APACHE_4, OURS, Process, Site, until

ROOT = Path(__file__).resolve().parent.parent.parent

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


def rmq_admin(*arguments: str) -> tuple[int, Any]:
    """Return the exit status and the JSON of a command."""
    command = [sys.executable, "-m", "rmq.admin", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


@pytest.mark.real
def test_route_diff_of_apache_and_ours(site: Site) -> None:
    """A broker at both NameServers: they agree. One more at ours alone: its group and topic are what differs."""
    ours, apache = site.namesrv(OURS, "ours"), site.namesrv(APACHE_4, "apache")
    both = f"{ours.addr};{apache.addr}"
    site.broker(OURS, both)

    def agree() -> bool:
        status, found = rmq_admin("routeDiff", "-n", both)
        return status == 0 and all(counts["brokers"] == 1 for counts in found["nameServers"].values())

    until("both know the broker", agree, seconds=90)
    only = site.broker(OURS, ours.addr, name="only", brokerName="broker-only")
    with only.probe() as probe:
        probe.create_topic("OnlyHere", 2)
    until("ours knows the topic", lambda: explained(ours, topic="OnlyHere")["state"] == "PRESENT")
    status, found = rmq_admin("routeDiff", "-n", both)
    assert status == 2, found
    differing = {(one["kind"], one["name"]): one["values"] for one in found["differences"]}
    assert differing["topic", "OnlyHere"] == {ours.addr: "is known", apache.addr: "-"}
    assert ("broker", "broker-only id 0") in differing
    status, found = rmq_admin("explain", "-n", both, "-t", "OnlyHere", "--timeout", "2")
    assert status == 3 and found[ours.addr]["state"] == "PRESENT" and "error" in found[apache.addr]
