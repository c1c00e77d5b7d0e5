"""SYNC_MASTER tells the producer what became of the copy: 0, 11 or 12 (acceptance 5)."""

from __future__ import annotations

import time

import pytest

from tests.real.conftest import Clients
from tests.real.pairs import TOPIC, start_pair, wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Site, until
from tests.real.probe import properties_text, send_fields
from tests.real.storefiles import first_difference

SUCCESS, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 11, 12
SLAVE_TIMEOUT_S = 3.0
#: how late an answer may be on a busy machine; sixteen sends that wait one after the other take longer
LATE_S = 30.0


def timed_send(master: Broker, **properties: str) -> tuple[int, float]:
    """Send one message; return the answer's code and how long it took in seconds."""
    with master.probe() as probe:
        start = time.monotonic()
        answer = probe.send_message(TOPIC, 1, b"is there a copy?", TAGS="TagA", **properties)
        return answer.code, time.monotonic() - start


@pytest.mark.real
@pytest.mark.parametrize("slave_kind", [OURS, APACHE_4, APACHE_5])
def test_answers_tell_about_the_slave(slave_kind: str, site: Site) -> None:
    """In step 0; slave suspended 12 after 3 s; resumed 0; slave gone 11; slave back 0."""
    _, master, slave = start_pair(site, (OURS, slave_kind), brokerRole="SYNC_MASTER")
    code, _ = timed_send(master)
    assert code == SUCCESS

    slave.suspend()
    for _ in range(2):
        code, seconds = timed_send(master)
        assert code == FLUSH_SLAVE_TIMEOUT
        assert SLAVE_TIMEOUT_S - 0.1 <= seconds <= SLAVE_TIMEOUT_S + LATE_S
    code, _ = timed_send(master, WAIT="false")
    assert code == SUCCESS, "a message that asks for no waiting waits for no slave"

    slave.resume()
    until("a send is acknowledged by the resumed slave", lambda: timed_send(master)[0] == SUCCESS)

    # Apache's broker does not start again when it was killed between the making of a queue file and its lengthening
    files = slave.store / "consumequeue"
    until("the slave's queue files have their length", lambda: all(one.stat().st_size for one in files.glob("*/*/*")))
    slave.kill()
    until("the master noticed", lambda: timed_send(master)[0] == SLAVE_NOT_AVAILABLE)

    slave.start()
    until("a send is acknowledged by the restarted slave", lambda: timed_send(master)[0] == SUCCESS, seconds=90)
    end = wait_caught_up(master, slave)
    assert first_difference(master.commitlog, slave.commitlog, end) is None


@pytest.mark.real
def test_suspended_slave_delays_nobody_else(site: Site) -> None:
    """Sixteen sends that wait for the suspended slave at the same time each get their 12 after about 3 s."""
    _, master, slave = start_pair(site, (OURS, OURS), brokerRole="SYNC_MASTER")
    slave.suspend()
    probes = [master.probe() for _ in range(16)]
    start = time.monotonic()
    for number, probe in enumerate(probes):
        probe.send(310, fields(number), b"waiting")
    took = []
    for probe in probes:
        assert probe.read().code == FLUSH_SLAVE_TIMEOUT
        took.append(time.monotonic() - start)
    assert min(took) >= SLAVE_TIMEOUT_S - 0.1 and max(took) <= SLAVE_TIMEOUT_S + LATE_S
    for probe in probes:
        probe.close()


def fields(number: int) -> dict[str, object]:
    return send_fields(TOPIC, number % 6, properties_text(KEYS=f"wait-{number}"))


@pytest.mark.real
def test_java_sees_the_statuses(site: Site, client: Clients) -> None:
    """An unmodified client reports SEND_OK, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE as its SendStatus."""
    namesrv, master, slave = start_pair(site, (OURS, OURS), brokerRole="SYNC_MASTER")
    java = client(APACHE_4, namesrv.addr)

    def statuses(prefix: str) -> set[str]:
        return {e["status"] for e in java.send(TOPIC, "sync", 2, prefix=prefix, timeout_ms=10_000)}

    assert statuses("ok") == {"SEND_OK"}
    slave.suspend()
    assert statuses("late") == {"FLUSH_SLAVE_TIMEOUT"}
    slave.kill()
    until("the master noticed", lambda: timed_send(master)[0] == SLAVE_NOT_AVAILABLE)
    assert statuses("alone") == {"SLAVE_NOT_AVAILABLE"}
