"""Programs in simulated time: long waits are short, and a seed repeats a run."""

from __future__ import annotations

from itertools import pairwise

import pytest
from twisted.internet.defer import Deferred

from rmq.broker.service import BrokerService
from rmq.client.settings import From
from rmq.errors import ConfigurationError, NotDelivered
from rmq.sim.world import SimError
from rmq.testing.simulation import Simulation
from rmq.tx import Message, PushSettings, ReceivedMessage, SendStatus

FIRST = PushSettings(consume_from=From.FIRST)


async def a_poisoned_message(sim: Simulation) -> list[float]:
    """Return when a handler that always fails was called."""
    client = await sim.client()
    topic, group = await sim.topic(), sim.group()
    times: list[float] = []
    settings = PushSettings(consume_from=From.FIRST, max_reconsume_times=6)

    def handle(message: ReceivedMessage) -> None:
        times.append(round(sim.seconds(), 3))
        raise ValueError("always")

    await client.producer().send(Message(topic, b"poison"))
    await client.push_consumer(group, {topic: "*"}, handle, settings).start()
    while not sim.messages(f"%DLQ%{group}"):
        await sim.sleep(60)
    return times


def test_minutes_of_retries(rmq_simulation: Simulation) -> None:
    """All deliveries of a poisoned message come with Apache's delays between them, in no time."""
    times = rmq_simulation.run(a_poisoned_message)
    delays = [later - earlier for earlier, later in pairwise(times)]
    assert len(delays) == 6
    for delay, wanted in zip(delays, (10, 30, 60, 120, 180, 240), strict=True):
        assert wanted - 0.002 <= delay < wanted + 5, delays  # brokers count milliseconds


async def a_kill_after_a_topic(sim: Simulation) -> list[bool]:
    """Return whether topics survive that the broker is killed as soon as they are made, on a slow disk."""
    node, names = sim.world.nodes["broker-a"], []
    node.disk.sync_s = (1.0, 1.0)
    for _ in range(3):
        names.append(await sim.topic())
        sim.kill("broker-a")
        sim.start("broker-a")
    assert isinstance(node.service, BrokerService)
    return [name in node.service.topics for name in names]


def test_topics_survive_a_kill(rmq_simulation: Simulation) -> None:
    """A topic of a test is on disk when the test goes on."""
    assert rmq_simulation.run(a_kill_after_a_topic) == [True] * 3


def test_a_seed_repeats_a_run() -> None:
    """The same seed is the same run, another seed another."""
    digests = []
    for seed in (1, 1, 2):
        with Simulation(seed) as sim:
            sim.run(a_payment)
            digests.append(sim.digest)
    assert digests[0] == digests[1] != digests[2]


async def a_payment(sim: Simulation) -> None:
    """A program that survives an answer that is lost, a dead master, a partition and a clock that jumps."""
    client = await sim.client()
    topic, group = await sim.topic(queues=1), sim.group()
    booked: set[str] = set()

    def book(message: ReceivedMessage) -> None:
        booked.add(message.keys[0])

    async def insist(key: str) -> None:
        while True:
            try:
                await client.producer().send(Message(topic, b"100", keys=(key,)))
                return
            except NotDelivered:
                await sim.sleep(1)

    with sim.faults.drop_answers("SEND_MESSAGE", times=1) as fault:
        await insist("lost-answer")
        assert fault.count == 1
    sim.kill("broker-a")
    failed = False
    try:
        await client.producer().send(Message(topic, b"careless"))
    except NotDelivered:
        failed = True
    assert failed
    sim.start("broker-a")
    await insist("dead-master")
    with sim.partition("client-0", "broker-a"), pytest.raises(NotDelivered):
        await client.producer().send(Message(topic, b"careless"))
    sim.clock_step("broker-a", 3600)
    await insist("clock")
    await client.push_consumer(group, {topic: "*"}, book, FIRST).start()
    await sim.wait_consumed(group, topic)
    assert booked == {"lost-answer", "dead-master", "clock"}


def test_topics_that_do_not_exist() -> None:
    """A wait for a topic that does not exist ends with an error that says so."""

    async def wait(sim: Simulation) -> None:
        with pytest.raises(TimeoutError, match="topic typo does not exist after 60 s"):
            await sim.wait_consumed(sim.group(), "typo", timeout_s=60)

    with Simulation(5) as sim:
        sim.run(wait)


def test_what_never_ends() -> None:
    """A run that does not end within its simulated time names the seed."""

    async def forever(sim: Simulation) -> None:
        while True:
            await sim.sleep(1)

    with pytest.raises(SimError, match="seed 5"), Simulation(5) as sim:
        sim.run(forever, limit_s=100)


def test_what_is_not_simulated() -> None:
    """A wait for a thread never ends; the error of the run says so."""

    async def wait_for_a_thread(sim: Simulation) -> None:
        await Deferred[None]()

    with pytest.raises(SimError) as failed, Simulation(5) as sim:
        sim.run(wait_for_a_thread, limit_s=100)
    assert any("thread" in note for note in failed.value.__notes__)


def test_names_that_are_not_there() -> None:
    """What the simulation does not have is refused with what it has."""
    with Simulation(1) as sim:
        there = "no machine 'broker-z', but namesrv, broker-a"
        for wrong in (sim.kill, sim.start, sim.power_failure):
            with pytest.raises(SimError, match=there):
                wrong("broker-z")
        with pytest.raises(SimError, match=there), sim.partition("broker-z", "broker-a"):
            pass
        with pytest.raises(SimError, match="broker-a is no slave"), sim.hold_slave("broker-a"):
            pass
        with pytest.raises(SimError, match=r"sim\.full_disk"):
            sim.faults.full_disk()
        with pytest.raises(ConfigurationError, match="'a b-1' is no name of a topic"):
            sim.run(lambda sim: sim.topic("a b"))
        with pytest.raises(ConfigurationError, match="'a b-2' is no name of a group"):
            sim.group("a b")
        with pytest.raises(SimError, match="needs a request"):
            sim.faults.cut()
        with pytest.raises(ValueError, match="no server 'broker-z', but namesrv, broker-a"):
            sim.faults.refuse("SEND_MESSAGE", node="broker-z")


def test_disks_and_slaves() -> None:
    """A full disk refuses, a slow one answers late, a held slave acknowledges nothing, each for its block."""

    async def main(sim: Simulation) -> None:
        client = await sim.client()
        topic = await sim.topic(queues=1)
        producer = client.producer()

        async def status() -> SendStatus:
            return (await producer.send(Message(topic, b"x"), timeout_s=60)).status

        assert await status() is SendStatus.OK
        with sim.slow_disk("broker-a", 2.0):
            began = sim.seconds()
            assert await status() is SendStatus.OK
            assert sim.seconds() - began >= 2.0
        with sim.hold_slave("broker-a-1"):
            assert await status() is SendStatus.FLUSH_SLAVE_TIMEOUT
        with sim.full_disk("broker-a"):
            await sim.sleep(30)
            with pytest.raises(NotDelivered):
                await status()
        await sim.sleep(30)
        assert await status() is SendStatus.OK

    for seed in range(5):
        config = {"flushDiskType": "SYNC_FLUSH"}
        with Simulation(seed, slaves=1, role="SYNC_MASTER", config=config) as sim:
            sim.run(main)
