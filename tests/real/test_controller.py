"""A controller elects the master: ours for Apache's 5.3.3 brokers and for our own, Apache's for our own."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from rmq import blocking
from rmq.client.types import Message
from tests.real.elected import NAME, QUEUES, TOPIC, Elected
from tests.real.javaclient import JavaAdmin, JavaClient
from tests.real.peers import APACHE_5, OURS, Broker, Site, until
from tests.real.storefiles import first_difference

pytestmark = [pytest.mark.real]

#: (controller, brokers)
KINDS = [(OURS, APACHE_5), (OURS, OURS), (APACHE_5, OURS)]


@pytest.mark.parametrize(("controller", "brokers"), KINDS, ids=[f"{one}-for-{other}" for one, other in KINDS])
def test_kill_and_come_back(site: Site, controller: str, brokers: str) -> None:
    """The master is killed, the other broker becomes master with every acknowledged message, the old one follows it."""
    group = Elected(site, controller, brokers)
    with group.master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    group.wait_whole()
    group.send(group.master, 0, 100)
    old, new = group.master, group.slave
    until("the slave knows the topic", partial(_knows_topic, new))
    old.kill()
    group.wait_for(new)
    until("the new master has all", lambda: group.read(new) >= set(range(100)))
    until("the new master takes messages", lambda: _sends(new), seconds=60)
    group.send(new, 100, 100)
    old.start()
    until("the old master follows", lambda: old.addr in group.addrs().values(), seconds=90)
    group.wait_whole()
    group.send(new, 200, 100)
    end = new.end_offset()
    until("the old master has all", lambda: old.end_offset() == end == new.end_offset(), seconds=60)
    assert first_difference(new.commitlog, old.commitlog, end) is None
    assert group.read(new) >= set(range(300))


def test_python_through_two_failovers(site: Site) -> None:
    """No send of a Python producer fails while masters are killed, and a consumer of its own gets each message."""
    group = _with_topic(site)
    old, new = group.master, group.slave
    sent, got = Counter[bytes](), Counter[bytes]()

    def send(producer: blocking.Producer, turn: int, killed: threading.Event) -> None:
        for number in range(1000):
            body = b"%d-%d" % (turn, number)
            producer.send(Message(TOPIC, body), timeout_s=60.0)
            sent[body] += 1
            if number == 100:
                killed.wait(60)

    with blocking.Client(group.namesrv.addr) as client, blocking.Client(group.namesrv.addr) as other:
        producer = client.producer()
        reader = other.push_consumer("readers", {TOPIC: "*"}, handler=lambda message: got.update([message.body]))
        reader.start()
        for turn in range(2):
            killed = threading.Event()
            with ThreadPoolExecutor() as pool:
                sending = pool.submit(send, producer, turn, killed)
                until("some are sent", lambda: len(sent) > 100 + 1000 * turn)  # noqa: B023
                old.kill()
                killed.set()
                sending.result(timeout=120)
            group.wait_for(new)
            old.start()
            group.wait_whole()
            old, new = new, old
        until("all are read", lambda: got.keys() >= sent.keys(), seconds=60)
    assert len(sent) == 2000


def test_java_through_two_failovers(site: Site, tmp_path: Path) -> None:
    """A Java producer and consumer go on while masters are killed; what was answered SEND_OK is read, each message."""
    group = _with_topic(site)
    old, new = group.master, group.slave
    with JavaClient(APACHE_5, group.namesrv.addr, tmp_path / "client") as java:
        java.consume("elected-readers", TOPIC, "reader")
        for turn in range(2):
            prefix = f"turn{turn}"
            sending = java.begin_send(TOPIC, "sync", 300, prefix=prefix, attempts=200)
            until("some are sent", lambda: len(java.sent(prefix)) > 50, seconds=60)  # noqa: B023
            old.kill()
            group.wait_for(new)
            done = java.finish(sending, seconds=180)
            assert done["ok"] == 300 and not done["lost"], done
            old.start()
            group.wait_whole()
            old, new = new, old
        keys = {f"turn{turn}-{number}" for turn in range(2) for number in range(300)}
        until("all are consumed", lambda: {e["key"] for e in java.got("reader")} >= keys, seconds=120)
        java.leave("reader")
    end = old.end_offset()
    until("the slave has all", lambda: new.end_offset() == end == old.end_offset(), seconds=60)
    assert first_difference(old.commitlog, new.commitlog, end) is None


def _with_topic(site: Site) -> Elected:
    """Return a pair of ours in which both brokers know the topic."""
    group = Elected(site, OURS, OURS)
    with group.master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    group.wait_whole()
    until("the slave knows the topic", partial(_knows_topic, group.slave))
    return group


def _knows_topic(broker: Broker) -> bool:
    with broker.probe() as probe:
        return TOPIC in probe.topics()


def _sends(broker: Broker) -> bool:
    with broker.probe() as probe:
        return probe.send_message(TOPIC, 0, b"1000000 first", KEYS="first").code == 0


def test_tools(site: Site, tmp_path: Path) -> None:
    """mqadmin's commands about controllers, against ours."""
    group = Elected(site, OURS, OURS)
    group.wait_whole()
    admin = JavaAdmin(APACHE_5, tmp_path / "mqadmin")
    try:
        shown = admin.run("getSyncStateSet", "-a", group.controller, "-b", NAME)
        assert all(broker.addr in shown for broker in group.brokers), shown
        assert group.controller in admin.run("getControllerMetaData", "-a", group.controller)
        shown = admin.run("getBrokerEpoch", "-n", group.namesrv.addr, "-b", NAME)
        assert "Epoch" in shown and NAME in shown, shown
        shown = admin.run("getControllerConfig", "-a", group.controller)
        assert "enableElectUncleanMaster" in shown, shown
        key = ("-k", "notifyBrokerRoleChanged", "-v", "true")
        assert "success" in admin.run("updateControllerConfig", "-a", group.controller, *key)
        name = ("-bn", NAME, "-c", "DefaultCluster")
        elected = admin.run("electMaster", "-a", group.controller, "-b", "2", *name)
        assert "#MasterEpoch\t2" in elected, elected
        group.wait_for(group.slave)
        group.wait_whole()
    finally:
        admin.close()
