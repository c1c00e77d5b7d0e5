"""The reactor ``rmq-lean`` under real load: NameServer, master and slave run on it, Java clients notice nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.conftest import Clients
from tests.real.javaclient import content
from tests.real.pairs import wait_caught_up
from tests.real.peers import APACHE_4, OURS, Process, Site
from tests.real.storefiles import first_difference

LEAN = ("--reactor", "rmq-lean")
TOPIC = "Lean"
#: how they are sent -> messages, sizes
WAYS = {"sync": (100, (30, 4000)), "async": (600, (30, 60_000)), "batch": (300, (30, 400))}


def runs_lean(process: Process) -> bool:
    """Tell whether the process was started with the reactor (twistd refuses one that it does not know)."""
    return LEAN[1] in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")


@pytest.mark.real
def test_cluster_on_the_lean_reactor(site: Site, client: Clients) -> None:
    """Sends of every kind, large ones among them, are all there once, replicated, consumed and read back."""
    namesrv = site.namesrv(OURS, twistd=LEAN)
    master = site.broker(OURS, namesrv.addr, "master", twistd=LEAN, brokerRole="SYNC_MASTER")
    slave = site.slave(OURS, master, namesrv.addr, twistd=LEAN)
    assert all(runs_lean(process) for process in (namesrv, master, slave))
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
