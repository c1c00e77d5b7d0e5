"""A message that no handler can process, in groups of our client and of Java's."""

from __future__ import annotations

import asyncio

import pytest

from rmq.aio import Client, From, Message, PushSettings, ReceivedMessage
from rmq.wire.record import Record, decode_record
from tests.real.campaigns import campaign_only
from tests.real.conftest import Clients
from tests.real.peers import APACHE_4, OURS, Broker, Site, require_apache

KINDS = [OURS, campaign_only(APACHE_4)]
TOPIC, PARKED = "Poisoned", "SCHEDULE_TOPIC_XXXX"
GROUPS = ("poison-java", "poison-python")
#: what both clients have when nothing else is set
TRIES = 16
LEVELS = 18
DEADLINE_S = 180.0


@pytest.mark.real
@pytest.mark.parametrize("kind", KINDS)
def test_a_poisoned_message(kind: str, site: Site, client: Clients) -> None:
    """
    After 16 more tries, each at the next delay level from 3 on, it is in the group's dead letter queue, once.

    Levels, number of deliveries and the dead letter's properties are the same for a member of ours and of Java's.
    """
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    broker = site.broker(kind, namesrv.addr, messageDelayLevel=" ".join(["1s"] * LEVELS))
    with broker.probe() as probe:
        probe.create_topic(TOPIC, 1)
    java = client(APACHE_4, namesrv.addr)
    java.consume(GROUPS[0], TOPIC, "java", fails=True)
    delivered: list[int] = []

    async def main() -> None:
        async def fail(message: ReceivedMessage) -> None:
            delivered.append(message.reconsume_times)
            raise ValueError("poisoned")

        async with Client(namesrv.addr) as ours:
            settings = PushSettings(consume_from=From.FIRST)
            await ours.push_consumer(GROUPS[1], {TOPIC: "*"}, handler=fail, settings=settings).start()
            await ours.producer().send(Message(TOPIC, b"poison", keys=("poison",)))
            async with asyncio.timeout(DEADLINE_S):
                while any(not dead_letters(broker, group) for group in GROUPS):
                    await asyncio.sleep(0.5)
            await asyncio.sleep(3)  # for what comes too often

    asyncio.run(main())
    by_java = [event["reconsumed"] for event in java.got("java")]
    assert sorted(by_java) == sorted(delivered) == list(range(TRIES + 1))
    levels = {group: retries(broker, group) for group in GROUPS}
    assert levels == {group: list(range(3, 3 + TRIES)) for group in GROUPS}
    (of_java,), (of_python,) = (dead_letters(broker, group) for group in GROUPS)
    assert (
        (of_java.reconsume_times, of_java.body) == (of_python.reconsume_times, of_python.body) == (TRIES + 1, b"poison")
    )
    assert properties(of_java) == properties(of_python)


def dead_letters(broker: Broker, group: str) -> list[Record]:
    with broker.probe() as probe:
        topic = f"%DLQ%{group}"
        found = probe.read_queue(topic, 0) if probe.max_offset(topic, 0) else []
    return [decode_record(record.raw) for record in found]


def retries(broker: Broker, group: str) -> list[int]:
    """Return the delay levels of all retries that the broker has parked for a group, in the order of their storage."""
    with broker.probe() as probe:
        parked = [
            (record.phy_offset, queue_id + 1)
            for queue_id in range(LEVELS)
            if probe.max_offset(PARKED, queue_id)
            for record in probe.read_queue(PARKED, queue_id)
            if record.properties.get("REAL_TOPIC") == f"%RETRY%{group}"
        ]
    return [level for _, level in sorted(parked)]


def properties(record: Record) -> dict[str, str]:
    """Return what does not name the group."""
    return {key: value for key, value in record.property_map.items() if "poison-" not in value}
