"""
One cluster of mixed brokers through everything that a replica meets in its life; bytes are compared after each step.

`test_replication.py` has the empty slave of every pair, `test_s13.py` the stop within a record. Here: idle for a
minute, several segments behind, master restarted, master at another address, for ours -> ours, ours -> 4.9.7 and
5.3.3 -> ours in one run, and tables and consumer offsets from a 5.3.3 master. 5.3.3 -> ours also shows haStatus of
an Apache master, which is what ours is modelled on.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import attrs
import pytest

from tests.real.pairs import wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Process, Site, until
from tests.real.storefiles import first_difference, segments

TOPIC, QUEUES, GROUP = "Matrix", 4, "matrix-readers"
SEGMENT_BYTES = 1 << 18
IDLE_S = 60.0


@attrs.define
class Group:
    """A master with its slaves."""

    master: Broker
    slaves: list[Broker]

    def send(self, count: int, what: str) -> None:
        """Send messages of mixed sizes; each must be stored."""
        with self.master.probe(timeout=30.0) as probe:
            for number in range(count):
                body = f"{what} {number} ".encode() * (1 + number % 500)
                answer = probe.send_message(TOPIC, number % QUEUES, body, KEYS=f"{what}-{number}", TAGS="TagA")
                assert answer.code == 0, answer

    def assert_copies(self, what: str) -> None:
        """Every slave catches up and holds the same bytes."""
        for slave in self.slaves:
            end = wait_caught_up(self.master, slave, seconds=120)
            difference = first_difference(self.master.commitlog, slave.commitlog, end)
            assert difference is None, f"{what}: {difference}"


def begin(site: Site, namesrv: Process, master_kind: str, name: str, slave_kinds: list[str]) -> Group:
    values: dict[str, Any] = {
        "brokerName": name,
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "mappedFileSizeConsumeQueue": 20 * 1000,
        "maxHashSlotNum": 1000,
        "maxIndexNum": 4000,
        "registerNameServerPeriod": 10_000,
    }
    if master_kind == APACHE_5:
        values["timerWheelEnable"] = False
    master = site.broker(master_kind, namesrv.addr, f"{name}-master", **values)
    period = {"registerNameServerPeriod": 10_000}
    slaves = [
        site.slave(kind, master, namesrv.addr, f"{name}-slave-{number}", brokerId=number, **period)
        for number, kind in enumerate(slave_kinds, 1)
    ]
    with master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    group = Group(master, slaves)
    group.send(1, "first")
    for slave in slaves:  # an empty slave begins with the segment that is last when it first reports
        until(f"{slave.name} follows", partial(has_begun, slave), seconds=90)
    return group


def has_begun(slave: Broker) -> bool:
    return slave.end_offset() > 0


def moved(site: Site, group: Group, namesrv: Process) -> Broker:
    """Stop the master and start it again, on its store, at another port."""
    old = group.master
    old.stop() if old.kind == OURS else old.kill()
    same: dict[str, Any] = {key: value for key, value in old.values.items() if key not in MOVING}
    return site.broker(old.kind, namesrv.addr, f"{old.broker_name}-moved", store=old.store, **same)


MOVING = ("listenPort", "haListenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog")


@pytest.mark.real
def test_a_replicas_life(site: Site) -> None:
    """Idle, behind, master restarted, master moved: after each the copies are equal, and nobody reconnected idly."""
    namesrv = site.namesrv(OURS)
    ours = begin(site, namesrv, OURS, "broker-a", [OURS, APACHE_4])
    apache = begin(site, namesrv, APACHE_5, "broker-b", [OURS])
    groups = (ours, apache)
    for group in groups:
        group.send(100, "together")
        group.assert_copies("together")
    with apache.master.probe() as probe:
        probe.join_group(GROUP, TOPIC)
        probe.commit_offset(GROUP, TOPIC, 1, 17)

    left = [said(broker) for broker in (ours.master, apache.slaves[0])]
    time.sleep(IDLE_S)  # doing nothing for a minute is what is tested
    assert [said(broker) for broker in (ours.master, apache.slaves[0])] == left, "a connection was lost while idle"
    for group in groups:
        group.send(3, "after the silence")
        group.assert_copies("after the silence")

    until("5.3.3's topics and offsets are at our slave", lambda: tables(apache.slaves[0]) == (QUEUES, 17), seconds=60)

    for group in groups:
        for slave in group.slaves:
            slave.stop() if slave.kind == OURS else slave.kill()
        before = len(segments(group.master.commitlog))
        group.send(400, "while the slaves were away")
        assert len(segments(group.master.commitlog)) >= before + 3
        for slave in group.slaves:
            slave.start()
    for group in groups:
        group.assert_copies("several segments behind")

    ours.master.kill()
    ours.master.start()
    ours.send(20, "after the master's restart")
    ours.assert_copies("after the master's restart")

    for group in groups:
        group.master = moved(site, group, namesrv)
        group.send(20, "from another address")
    for group in groups:
        group.assert_copies("from another address")


def said(broker: Broker) -> int:
    """Return how often the broker (ours) lost a replication connection."""
    text = broker.text()
    return text.count("has left at offset") + text.count("connection to master")


def tables(slave: Broker) -> tuple[int, int]:
    with slave.probe() as probe:
        queues: int = probe.topics()[TOPIC]["writeQueueNums"]
        return queues, probe.all_offsets()[f"{TOPIC}@{GROUP}"]["1"]
