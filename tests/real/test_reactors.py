"""Plain `twistd` runs on ``rmq-lean``, another reactor can be chosen, and Java clients notice no difference."""

from __future__ import annotations

import pytest

from tests.real.conftest import Clients
from tests.real.javaclient import content
from tests.real.pairs import wait_caught_up
from tests.real.peers import APACHE_4, OURS, Process, Site
from tests.real.storefiles import first_difference

#: options of twistd -> the class of the reactor
REACTORS = {(): "LeanReactor", ("--reactor", "asyncio"): "AsyncioSelectorReactor"}
TOPIC = "Lean"
#: how they are sent -> messages, sizes
WAYS = {"sync": (100, (30, 4000)), "async": (600, (30, 60_000)), "batch": (300, (30, 400))}


def runs_on(process: Process, reactor: str) -> bool:
    """Return whether `twistd` logged the start on a reactor of this class."""
    return f".{reactor}.\n" in process.console.read_text()


@pytest.mark.real
@pytest.mark.parametrize("twistd", REACTORS)
def test_cluster(site: Site, client: Clients, twistd: tuple[str, ...]) -> None:
    """Sends of every kind, large ones among them, are all there once, replicated, consumed and read back."""
    namesrv = site.namesrv(OURS, twistd=twistd)
    master = site.broker(OURS, namesrv.addr, "master", twistd=twistd, brokerRole="SYNC_MASTER")
    slave = site.slave(OURS, master, namesrv.addr, twistd=twistd)
    assert all(runs_on(process, REACTORS[twistd]) for process in (namesrv, master, slave))
    java = client(APACHE_4, namesrv.addr)
    java.send(TOPIC, "sync", 1, prefix="first")
    java.consume("lean-group", TOPIC, "reader")
    expected: dict[str, object] = {}
    for way, (count, sizes) in WAYS.items():
        expected |= {event["key"]: content(event) for event in java.send(TOPIC, way, count, prefix=way, sizes=sizes)}
    java.wait_for_count("all consumed", lambda: len({e["key"] for e in java.got()}), len(expected) + 1, seconds=180)
    read = {event["key"]: content(event) for event in java.read(TOPIC)}
    assert {key: value for key, value in read.items() if not key.startswith("first")} == expected
    end = wait_caught_up(master, slave)
    assert first_difference(master.commitlog, slave.commitlog, end) is None
