"""
Masters and slaves are killed with -9 under load, again and again: what was acknowledged is there.

``RMQ_CAMPAIGN=1`` runs at least a hundred rounds over every combination of victim, flush mode and way of sending
(``RMQ_KILL_ROUNDS`` of each, 9); without it some combinations run, two rounds each.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import attrs
import pytest

from tests.needs import IS_CAMPAIGN
from tests.real.pairs import start_pair, wait_caught_up
from tests.real.peers import OURS, Broker, Site, until
from tests.real.probe import SEND, SEND_BATCH, Answer, Closed, Probe, Record, batch_body, properties_text, send_fields
from tests.real.storefiles import first_difference, whole_records

TOPIC = "Killed"
QUEUES = 4
ROUNDS = 20
#: connections x requests outstanding on each
CONNECTIONS, WINDOW = 4, 16
SEED = 20_251


@attrs.frozen
class Acknowledged:
    """A message that the broker said it stored."""

    key: str
    body: bytes
    queue_id: int
    queue_offset: int
    #: the answer: 0, or that slave or disk were late or not there, and the message is stored all the same
    code: int = 0


class Load:
    """
    Senders that keep a window of requests in flight until the broker is gone or :meth:`finish` is called.

    ``acknowledged`` grows meanwhile. ``counts`` are the sizes of batches to choose from, 1 for a single message;
    ``stored`` the codes with which a message is stored; ``pause_s`` a rest of each sender after an answer.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        counts: Sequence[int] = (1, 1, 1, 5),
        stored: Sequence[int] = (0,),
        pause_s: float = 0.0,
    ):
        self.acknowledged: list[Acknowledged] = []
        self.refused: Counter[str] = Counter()
        self._counts, self._stored, self._pause_s = counts, stored, pause_s
        self._finishing = False
        self._senders = [
            threading.Thread(target=self._send, args=(broker.probe(), f"{name}-{number}"), daemon=True)
            for number in range(CONNECTIONS)
        ]
        for sender in self._senders:
            sender.start()

    def finish(self) -> None:
        """Send nothing more, and wait for the answers that are due."""
        self._finishing = True
        self.join()

    def join(self) -> None:
        for sender in self._senders:
            sender.join(60)
            assert not sender.is_alive(), "a sender hangs although its broker was killed"

    def _send(self, probe: Probe, name: str) -> None:
        waiting: dict[int, list[tuple[str, bytes]]] = {}
        chance = random.Random(name)
        number = 0
        writable = True
        try:
            while True:
                while writable and not self._finishing and len(waiting) < WINDOW:
                    count = chance.choice(self._counts)
                    messages = [self._message(f"{name}-{number + i}", chance) for i in range(count)]
                    number += count
                    try:
                        waiting[_post(probe, chance.randrange(QUEUES), messages)] = messages
                    except OSError:  # killed; what it acknowledged before still waits in our socket
                        writable = False
                if not waiting and self._finishing:
                    break
                answer = probe.read()
                self._note(answer, waiting.pop(answer.opaque))
                if self._pause_s:
                    time.sleep(self._pause_s)
        except (Closed, TimeoutError):
            pass
        probe.close()

    def _message(self, key: str, chance: random.Random) -> tuple[str, bytes]:
        return key, key.encode() + b" " + chance.randbytes(chance.randrange(10, 1500))

    def _note(self, answer: Answer, messages: Iterable[tuple[str, bytes]]) -> None:
        if answer.code not in self._stored:
            self.refused[f"{answer.code} {answer.remark}"] += 1
            return
        queue_id, first = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        for place, (key, body) in enumerate(messages):
            self.acknowledged.append(Acknowledged(key, body, queue_id, first + place, answer.code))


def _post(probe: Probe, queue_id: int, messages: list[tuple[str, bytes]]) -> int:
    if len(messages) == 1:
        key, body = messages[0]
        return probe.send(SEND, send_fields(TOPIC, queue_id, properties_text(KEYS=key)), body)
    body = batch_body((properties_text(KEYS=key), body) for key, body in messages)
    return probe.send(SEND_BATCH, send_fields(TOPIC, queue_id, "", batch=True), body)


def assert_nothing_lost(served: dict[int, list[Record]], acknowledged: list[Acknowledged]) -> None:
    """Queues are dense, every acknowledged message lies where it was said to, and nothing is stored twice."""
    for queue_id, found in served.items():
        assert [record.queue_offset for record in found] == list(range(len(found))), f"queue {queue_id} is not dense"
    for one in acknowledged:
        found = served[one.queue_id]
        assert one.queue_offset < len(found), f"lost: {one.key} at {one.queue_id}:{one.queue_offset} of {len(found)}"
        record = found[one.queue_offset]
        assert (record.key, record.body) == (one.key, one.body), f"{one.queue_id}:{one.queue_offset} holds {record.key}"
    places = Counter((one.queue_id, one.queue_offset) for one in acknowledged)
    assert max(places.values()) == 1, f"queue offsets given twice: {[p for p, n in places.items() if n > 1][:5]}"
    keys = Counter(record.key for found in served.values() for record in found)
    assert max(keys.values()) == 1, f"stored twice: {[key for key, n in keys.items() if n > 1][:5]}"


def loaded_and_killed(broker: Broker, name: str, seconds: float) -> list[Acknowledged]:
    """Put load on the broker, kill it ``seconds`` after its first answer, and return what it had acknowledged."""
    load = Load(broker, name)
    until("the first answer", lambda: load.acknowledged or load.refused)
    time.sleep(seconds)  # how far the load comes is the point of chance of these tests
    broker.kill()
    load.join()
    assert not load.refused, f"a broker without trouble refused sends: {load.refused}"
    return load.acknowledged


@pytest.mark.real
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_acknowledged_messages_survive_twenty_kills(flush: str, site: Site) -> None:
    """After each of 20 kills under load all that was ever acknowledged is served, at its offset, once."""
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, flushDiskType=flush, mappedFileSizeCommitLog=1 << 20, maxIndexNum=20_000)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    chance = random.Random(SEED)
    acknowledged: list[Acknowledged] = []
    for number in range(ROUNDS):
        acknowledged += loaded_and_killed(broker, f"{flush}-{number}", chance.uniform(0.05, 0.6))
        broker.start()
        with broker.probe() as probe:
            assert_nothing_lost(probe.read_topic(TOPIC, QUEUES), acknowledged)
    print(f"{flush}: {len(acknowledged)} messages acknowledged in {ROUNDS} rounds")


@pytest.mark.real
def test_slave_has_what_a_killed_sync_master_acknowledged(site: Site) -> None:
    """SYNC_MASTER: when the master is gone the slave's log holds every acknowledged message; later both agree."""
    _, master, slave = start_pair(site, (OURS, OURS), brokerRole="SYNC_MASTER")
    with master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    chance = random.Random(SEED)
    acknowledged: list[Acknowledged] = []
    for number in range(5):
        acknowledged += loaded_and_killed(master, f"sync-{number}", chance.uniform(0.3, 0.8))
        copied = {record.key for record in whole_records(slave.commitlog)}
        lost = [one for one in acknowledged if one.key not in copied]
        assert not lost, f"{len(lost)} acknowledged messages are not on the slave, such as {lost[0]}"
        master.start()
        end = wait_caught_up(master, slave)
        assert first_difference(master.commitlog, slave.commitlog, end) is None
        with master.probe() as probe:
            assert_nothing_lost(probe.read_topic(TOPIC, QUEUES), acknowledged)
        wait_replicating(master)


def wait_replicating(master: Broker) -> None:
    """Wait until sends are acknowledged by the slave again, so that the next round's load is not refused."""

    def replicating() -> bool:
        with master.probe() as probe:
            return probe.send_message("BenchmarkTest", 0, b"is the slave back?").code == 0

    until("the slave acknowledges again", replicating)


VICTIMS, FLUSHES, SENDS = ("master", "slave", "both"), ("SYNC_FLUSH", "ASYNC_FLUSH"), {"single": (1,), "batch": (2, 8)}
ALL = list(itertools.product(VICTIMS, FLUSHES, SENDS))
#: what always runs; `test_slave_has_what_a_killed_sync_master_acknowledged` has the master alone
FEW = [("slave", "SYNC_FLUSH", "batch"), ("both", "ASYNC_FLUSH", "single"), ("both", "SYNC_FLUSH", "batch")]
PAIR_ROUNDS = int(os.environ.get("RMQ_KILL_ROUNDS") or (9 if IS_CAMPAIGN else 2))
#: stored and replicated; stored, but no slave was there or in time
STORED = (0, 11, 12)


@pytest.mark.real
@pytest.mark.parametrize(("victim", "flush", "sends"), ALL if IS_CAMPAIGN else FEW)
def test_a_pair_is_killed_again_and_again(victim: str, flush: str, sends: str, site: Site) -> None:
    """
    SYNC_MASTER and its slave, one or both killed in each round: nothing acknowledged is lost, no offset used twice.

    After each round the slave's log equals its master's, and what was answered with 0 had reached the slave when the
    master died. In the end the slave serves what the master serves.
    """
    _, master, slave = start_pair(site, (OURS, OURS), brokerRole="SYNC_MASTER", flushDiskType=flush)
    with master.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    chance = random.Random(f"{SEED} {victim} {flush} {sends}")
    acknowledged: list[Acknowledged] = []
    for number in range(PAIR_ROUNDS):
        # A master that outlives the round would store tens of thousands of messages until its slave is back.
        pause_s = 0.03 if victim == "slave" else 0.0
        load = Load(master, f"{victim}-{number}", counts=SENDS[sends], stored=STORED, pause_s=pause_s)
        until("a message is acknowledged", partial(len, load.acknowledged))
        time.sleep(chance.uniform(0.1, 0.6))  # how far the load comes is the point of chance of these tests
        kill(victim, master, slave, load, chance)
        assert not load.refused, f"a broker without trouble refused sends: {load.refused}"
        acknowledged += load.acknowledged
        if victim != "slave":
            copied = {record.key for record in whole_records(slave.commitlog)}
            lost = [one for one in load.acknowledged if one.code == 0 and one.key not in copied]
            assert not lost, f"{len(lost)} messages that the slave acknowledged are not in its log, such as {lost[0]}"
        for broker in chance.sample((master, slave), 2):
            if not broker.alive:
                broker.start()
        end = wait_caught_up(master, slave)
        assert first_difference(master.commitlog, slave.commitlog, end) is None
        with master.probe() as probe:
            assert_nothing_lost(probe.read_topic(TOPIC, QUEUES), acknowledged)
        wait_replicating(master)
    wait_caught_up(master, slave)
    until("the slave serves what its master serves", lambda: served(master) == served(slave), seconds=60)
    codes = Counter(one.code for one in acknowledged)
    assert codes[0], f"no message of {len(acknowledged)} was ever replicated"
    print(f"{victim} {flush} {sends}: {PAIR_ROUNDS} rounds, messages stored by answer: {dict(codes)}")


def kill(victim: str, master: Broker, slave: Broker, load: Load, chance: random.Random) -> None:
    """Kill what is to be killed, and end the load; a slave alone comes back while messages still flow."""
    if victim == "slave":
        slave.kill()
        time.sleep(chance.uniform(0.0, 0.3))
        slave.start()
        time.sleep(chance.uniform(0.0, 0.5))
        load.finish()
        return
    victims = [master] if victim == "master" else chance.sample((master, slave), 2)
    for broker in victims:
        broker.kill()
        time.sleep(chance.choice((0.0, 0.0, 0.05)))
    load.join()


def served(broker: Broker) -> dict[int, list[bytes]]:
    with broker.probe() as probe:
        return {queue: [record.raw for record in found] for queue, found in probe.read_topic(TOPIC, QUEUES).items()}


@pytest.mark.smoke
def test_acknowledged_messages_survive_a_kill(site: Site) -> None:
    """The short form: three kills with SYNC_FLUSH."""
    namesrv = site.namesrv(OURS)
    broker = site.broker(OURS, namesrv.addr, flushDiskType="SYNC_FLUSH", mappedFileSizeCommitLog=1 << 20)
    with broker.probe() as probe:
        probe.create_topic(TOPIC, QUEUES)
    acknowledged: list[Acknowledged] = []
    for number in range(3):
        acknowledged += loaded_and_killed(broker, f"smoke-{number}", 0.3)
        broker.start()
        with broker.probe() as probe:
            assert_nothing_lost(probe.read_topic(TOPIC, QUEUES), acknowledged)
