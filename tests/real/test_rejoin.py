"""The master is killed, its slave promoted, and the old master brought back as a slave with `rmq.ha.rejoin`."""

from __future__ import annotations

import json
import subprocess
import sys

import attrs
import pytest

from tests.real.pairs import TOPIC, start_pair, wait_caught_up
from tests.real.peers import OURS, STAND_IN, Broker, Site, until, write_properties
from tests.real.storefiles import first_difference

pytestmark = [pytest.mark.skipif(STAND_IN != OURS, reason="RMQ_REAL_OURS: a command of ours")]

ONLY_OLD = 25


@attrs.frozen
class Ran:
    status: int
    output: str


def run(*arguments: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "rmq.ha.rejoin", *arguments], capture_output=True, text=True, timeout=60
    )
    return Ran(done.returncode, done.stdout + done.stderr)


def send(broker: Broker, first: int, count: int) -> None:
    with broker.probe() as probe:
        for number in range(first, first + count):
            answer = probe.send_message(TOPIC, number % 6, b"%d " % number * 50, KEYS=f"k{number}")
            assert answer.code == 0, answer


def knows_topic(broker: Broker) -> bool:
    with broker.probe() as probe:
        return TOPIC in probe.topics()


def with_role(broker: Broker, role: str, broker_id: int) -> None:
    """Write another role into the properties file of a stopped broker."""
    broker.values |= {"brokerRole": role, "brokerId": broker_id}
    broker.broker_id = broker_id
    write_properties(broker.folder / "broker.conf", broker.values)


@pytest.mark.real
def test_kill_promote_rejoin(site: Site) -> None:
    """
    Messages that only the killed master has are told, cut only with --yes, kept in a file; then it follows, equal.

    The comparison is the same with the new master's directory and with the running broker. Without the command the old
    master is refused, by the new one's log and its own.
    """
    _, old, new = start_pair(site, (OURS, OURS))
    send(old, 0, 200)
    wait_caught_up(old, new)
    until("the slave knows the topic", lambda: knows_topic(new))
    new.stop()
    send(old, 1000, ONLY_OLD)
    old.kill()

    with_role(new, "ASYNC_MASTER", 0)
    new.start()
    send(new, 5000, 300)

    with_role(old, "SLAVE", 1)
    old.start()
    refused = ("is refused", "dropped", "cannot be appended")
    until(
        "the old master is refused as it is",
        lambda: any(word in line for line in (new.text() + old.text()).splitlines() for word in refused),
        seconds=60,
    )
    in_use = run(str(old.store), "--master", new.addr)
    assert in_use.status == 2, in_use.output
    old.stop()

    found = json.loads(run(str(old.store), "--master", new.addr, "--json", "--list", "100").output)
    assert [extra["keys"] for extra in found["extra"]] == [f"k{n}" for n in range(1000, 1000 + ONLY_OLD)]
    with_directory = json.loads(run(str(old.store), "--master", str(new.store), "--json", "--list", "100").output)
    assert {**with_directory, "masterEndOffset": 0} == {**found, "masterEndOffset": 0}
    told = run(str(old.store), "--master", new.addr)
    assert told.status == 1 and "nothing was changed" in told.output, told.output
    done = run(str(old.store), "--master", new.addr, "--yes")
    assert done.status == 0 and f"{ONLY_OLD} messages" in done.output, done.output
    kept = list((old.store / "cut").iterdir())
    assert len(kept) == 1 and kept[0].read_bytes().count(b"k1024") == 1

    old.start()
    end = wait_caught_up(new, old)
    assert first_difference(new.commitlog, old.commitlog, end) is None
    with new.probe() as master, old.probe() as slave:
        for queue in range(6):
            assert [r.raw for r in slave.read_queue(TOPIC, queue)] == [r.raw for r in master.read_queue(TOPIC, queue)]
    assert run(str(new.store), "--master", old.addr).status == 2, "the new master runs: its store is in use"
