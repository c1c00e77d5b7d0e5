"""The audit of further queues (enableMultiDispatch) that Apache's brokers and ours have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rmq_audit.driver.audit import Options, check, compare
from rmq_audit.engine.engines import LocalEngine

from rmq.store.layout import CQ_UNIT, CQ_UNIT_BYTES, file_name
from tests.real.campaigns import campaign_only
from tests.real.pairs import name_of, wait_caught_up
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Site, until
from tests.real.probe import Probe

ONE, TWO, OTHER, TOPIC, GROUP, RETRIED = "%LMQ%one", "%LMQ%two", "Other", "Topic", "group", "%RETRY%group"
MESSAGES = 40


def fill(probe: Probe, kind: str) -> None:
    """Send messages with light and ordinary further queues, to these queues directly, delayed ones; send some back."""
    for topic in (TOPIC, OTHER):
        probe.create_topic(topic, 2)
    for number in range(MESSAGES):
        further = (ONE, f"{ONE},{TWO}", OTHER, TWO)[number % 4]
        # 5.3.3 leaves out numbers of light queues that are named twice or beside others
        if number % 20 == 3 and kind != APACHE_5:
            further = f"{TWO},{TWO},{OTHER},{TOPIC}"
        properties = {"INNER_MULTI_DISPATCH": further, "TAGS": f"T{number % 3}", "KEYS": f"k{number}"}
        if number % 10 == 9:
            properties["DELAY"] = "1"
        assert probe.send_message(TOPIC, number % 2, b"x" * (number + 1), **properties).code == 0
        if number % 3 == 0:
            assert probe.send_message(OTHER, number % 2, b"direct").code == 0
    probe.join_group(GROUP, TOPIC)
    for record in probe.read_queue(TOPIC, 0)[:5]:
        back = {"offset": record.phy_offset, "group": GROUP, "delayLevel": 1, "originTopic": TOPIC, "unitMode": False}
        assert probe.ask(36, back).code == 0


def delivered(broker: Broker) -> bool:
    with broker.probe() as probe:
        held = sum(probe.max_offset(TOPIC, queue_id) for queue_id in (0, 1))
        return held == MESSAGES and probe.max_offset(RETRIED, 0) == 5


def plant(store: Path, queue: str, number: int, unit: bytes) -> None:
    """Overwrite a unit of a light queue."""
    with open(store / "consumequeue" / queue / "0" / file_name(0), "r+b") as file:
        file.seek(number * CQ_UNIT_BYTES)
        file.write(unit)


@pytest.mark.real
@pytest.mark.parametrize(
    "kinds", [(OURS, APACHE_4), (APACHE_4, OURS), campaign_only((APACHE_5, APACHE_5))], ids=name_of
)
def test_further_queues(kinds: tuple[str, str], site: Site) -> None:
    """
    Light and ordinary further queues, with delayed and retried messages in them: nothing to say of either side.

    Then a unit of a light queue with another's place, and one that is gone, are found with the side, queue and offset.
    """
    on: dict[str, Any] = {"enableLmq": True, "enableMultiDispatch": True}
    namesrv = site.namesrv()
    master = site.broker(kinds[0], namesrv.addr, "master", **on)
    slave = site.slave(kinds[1], master, namesrv.addr, **on)
    with master.probe() as probe:
        fill(probe, kinds[0])
    until("delayed and retried messages are delivered", lambda: delivered(master))
    wait_caught_up(master, slave)
    slave.stop()
    master.stop()
    options = Options(split_bytes=4096, chunk_bytes=4096)
    alone = check(str(master.store), LocalEngine(1), options)
    both = compare(str(master.store), str(slave.store), LocalEngine(1), options)
    for found in (alone, both):
        assert (found.verdict.value, [one.to_json() for one in found.findings]) == ("CONSISTENT", [])

    plant(slave.store, ONE, 3, CQ_UNIT.pack(0, 100, 0))
    plant(slave.store, TWO, 5, bytes(CQ_UNIT_BYTES))
    damaged = compare(str(master.store), str(slave.store), LocalEngine(1), options)
    places = {(one.invariant, one.replica, one.topic, one.queue_id, one.queue_offset_from) for one in damaged.findings}
    assert places == {("CQ-MISMATCH", "slave", ONE, 0, 3), ("CQ-MISMATCH", "slave", TWO, 0, 5)}
