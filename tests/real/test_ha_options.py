"""Replication's stricter options and its figures, on real processes; with them off, Apache's brokers notice nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.real.conftest import Clients
from tests.real.pairs import TOPIC, start_pair, wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, HOST, OURS, STAND_IN, Broker, Site, mqadmin, until
from tests.real.storefiles import first_difference

pytestmark = [pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: options of ours")]

SUCCESS, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 11, 12


def send_some(master: Broker, count: int = 50) -> set[int]:
    """Send messages; return the codes of the answers."""
    with master.probe() as probe:
        return {probe.send_message(TOPIC, n % 6, b"%d " % n * 100, KEYS=f"k{n}").code for n in range(count)}


@pytest.mark.real
def test_all_strict_options_at_once(site: Site) -> None:
    """
    Flushed bytes only, acknowledged when flushed, over TLS, from an allowed address: a SYNC_MASTER's sends are still
    answered 0 and the logs are equal, also after both were killed; a plain slave gets nothing.
    """
    strict: dict[str, Any] = {"haTlsEnable": True, "haAllowedPeers": f"{HOST}/32; 10.0.0.0/8"}
    namesrv = site.namesrv(OURS)
    master = site.broker(OURS, namesrv.addr, "master", brokerRole="SYNC_MASTER", haTransferFlushedOnly=True, **strict)
    slave = site.slave(OURS, master, namesrv.addr, haAckAfterFlush=True, **strict)
    with master.probe() as probe:
        probe.create_topic(TOPIC, 6)
    until("the slave acknowledges", lambda: send_some(master, 1) == {SUCCESS})
    assert send_some(master) == {SUCCESS}
    for broker in (slave, master):
        broker.kill()
    master.start()
    slave.start()
    until("the slave acknowledges again", lambda: send_some(master, 1) == {SUCCESS}, seconds=90)
    end = wait_caught_up(master, slave)
    assert first_difference(master.commitlog, slave.commitlog, end) is None

    plain = site.slave(OURS, master, namesrv.addr, "plain", brokerId=2)
    until("the plain slave has tried", lambda: "only one of the two has haTlsEnable" in plain.text(), seconds=60)
    assert plain.end_offset() == 0
    assert send_some(master) == {SUCCESS}


@pytest.mark.smoke
def test_others_stay_outside(site: Site) -> None:
    """A slave whose address is not in haAllowedPeers is turned away, and the log says by which key."""
    namesrv = site.namesrv(OURS)
    master = site.broker(OURS, namesrv.addr, "master", brokerRole="SYNC_MASTER", haAllowedPeers="10.99.0.0/16")
    with master.probe() as probe:
        probe.create_topic(TOPIC, 6)
    slave = site.slave(OURS, master, namesrv.addr)
    until("the master says why", lambda: re.search(rf"{HOST} dropped.*haAllowedPeers", master.text()))
    assert send_some(master, 3) == {SLAVE_NOT_AVAILABLE}
    assert slave.end_offset() == 0


@pytest.mark.real
def test_two_slaves_for_a_quorum(site: Site) -> None:
    """With inSyncReplicas=3 a send is answered 0 when two slaves have it, 12 while one of them hangs, 11 without it."""
    namesrv = site.namesrv(OURS)
    master = site.broker(OURS, namesrv.addr, "master", brokerRole="SYNC_MASTER", inSyncReplicas=3, slaveTimeout=1000)
    with master.probe() as probe:
        probe.create_topic(TOPIC, 6)
    first = site.slave(OURS, master, namesrv.addr, "first")
    until("the first slave follows", lambda: "joined, acked" in master.text())
    assert send_some(master, 2) == {SLAVE_NOT_AVAILABLE}, "one slave is no quorum of two"
    second = site.slave(OURS, master, namesrv.addr, "second", brokerId=2)
    until("two slaves acknowledge", lambda: send_some(master, 1) == {SUCCESS})
    second.suspend()
    assert send_some(master, 2) == {FLUSH_SLAVE_TIMEOUT}
    second.resume()
    until("two slaves acknowledge again", lambda: send_some(master, 1) == {SUCCESS})
    second.kill()
    until("the master noticed", lambda: send_some(master, 1) == {SLAVE_NOT_AVAILABLE})
    end = wait_caught_up(master, first)
    assert first_difference(master.commitlog, first.commitlog, end) is None


@pytest.mark.real
def test_an_apache_slave_of_a_strict_master(site: Site, client: Clients) -> None:
    """
    An Apache 4.9.7 slave works with haTransferFlushedOnly as without it, and mqadmin 5.3.3 prints both ends.

    4.9.7 does not know haStatus, so the slave that it prints is ours.
    """
    namesrv, master, slave = start_pair(
        site, (OURS, APACHE_4), brokerRole="SYNC_MASTER", haTransferFlushedOnly=True, haAllowedPeers=HOST
    )
    until("the slave acknowledges", lambda: send_some(master, 1) == {SUCCESS})
    assert send_some(master) == {SUCCESS}
    end = wait_caught_up(master, slave)
    assert first_difference(master.commitlog, slave.commitlog, end) is None
    ours = site.slave(OURS, master, namesrv.addr, "ours", brokerId=2)
    until("our slave is connected", lambda: master.text().count("joined, acked") >= 2, seconds=90)

    printed = mqadmin(site.root, "haStatus", "-n", namesrv.addr, "-b", master.addr, version=APACHE_5)
    assert re.search(rf"#MasterAddr\s+{master.addr}", printed), printed
    assert re.search(rf"#MasterCommitLogMaxOffset\s+{master.end_offset()}", printed), printed
    assert re.search(r"#SlaveNum\s+2\s+#InSyncSlaveNum\s+2", printed), printed
    assert len(re.findall(rf"^{HOST}:\d+\s+{master.end_offset()}\s+0\s+\d+\.\d\d\s+OK", printed, re.MULTILINE)) >= 1

    printed = mqadmin(site.root, "haStatus", "-n", namesrv.addr, "-b", ours.addr, version=APACHE_5)
    assert re.search(rf"#MasterAddr\s+{HOST}:{master.ha_port}", printed), printed
    assert re.search(rf"#CommitLogMaxOffset\s+{ours.end_offset()}", printed), printed
    assert re.search(r"#LastReadTime\s+20\d\d", printed), printed
