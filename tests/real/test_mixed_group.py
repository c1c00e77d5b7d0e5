"""
One group with members in Java, Go and Python, which come, leave and are killed.

It takes ten minutes with each broker, so only ``RMQ_CAMPAIGN=1`` runs it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import attrs
import pytest

from rmq.blocking import Client
from rmq.client.types import Message
from rmq.wire.api.common import MessageQueue
from tests.real.goclient import GoSession
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, APACHE_5, OURS, Broker, Site, require_apache, until
from tests.real.piped import PipedClient

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not os.environ.get("RMQ_CAMPAIGN"), reason="RMQ_CAMPAIGN: it takes ten minutes"),
]

TOPIC, GROUP, QUEUES = "Mixed", "mixed", 8
#: two of Java, two of Python, one of Go
LANGUAGES = ("java", "java", "python", "python", "go")
CAMPAIGN_S = 600.0
#: from a change until each queue has one owner, and how long is looked whose messages come from where
SETTLED_S, LOOK_S = 25.0, 4.0
SEED = 20_261
MEMBER = """
import asyncio, json, sys
from rmq.aio import Client, From, PushSettings

async def main(namesrv, topic, group):
    async def got(message):
        print(json.dumps({"event": "got", "key": message.keys[0]}), flush=True)

    async with Client(namesrv) as client:
        settings = PushSettings(consume_from=From.FIRST)
        await client.push_consumer(group, {topic: "*"}, handler=got, settings=settings).start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


@attrs.define(eq=False)
class Member:
    """A process that is a member of the group; it ends when ``client`` is closed or killed."""

    name: str
    client: PipedClient

    def received(self) -> list[str]:
        return [event["key"] for event in self.client.happened("got")]


class Group:
    """The members that run, and those that have ended."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self._namesrv = namesrv
        self._folder = folder
        self.running: list[Member] = []
        self.ended: list[Member] = []

    def join(self, language: str) -> Member:
        name = f"{language}-{len(self.running) + len(self.ended)}"
        folder = self._folder / name
        client: PipedClient
        if language == "java":
            client = java = JavaClient(APACHE_4, self._namesrv, folder)
            java.consume(GROUP, TOPIC, name)
        elif language == "go":
            client = GoSession(self._namesrv, folder)
            client.call("consume", group=GROUP, topic=TOPIC, member=name)
        else:
            client = PipedClient(name, [sys.executable, "-c", MEMBER, self._namesrv, TOPIC, GROUP], folder)
        self.running.append(Member(name, client))
        return self.running[-1]

    def end(self, member: Member, how: Callable[[PipedClient], None]) -> None:
        how(member.client)
        self.running.remove(member)
        self.ended.append(member)

    def received(self) -> Counter[str]:
        return Counter(key for member in (*self.running, *self.ended) for key in member.received())

    def owners(self) -> dict[str, set[str]]:
        """Look for a while who gets messages of which queue."""
        before = {member: len(member.received()) for member in self.running}
        time.sleep(LOOK_S)
        found: dict[str, set[str]] = defaultdict(set)
        for member, count in before.items():
            for key in member.received()[count:]:
                found[key.rpartition("-")[0]].add(member.name)
        return found

    def is_settled(self) -> bool:
        """Each queue has one owner, and the members share them evenly."""
        owners = self.owners()
        if len(owners) < 2 * QUEUES or any(len(names) > 1 for names in owners.values()):
            return False
        shares = Counter(name for names in owners.values() for name in names)
        least = 2 * QUEUES // len(self.running)
        return all(shares[member.name] in (least, least + 1) for member in self.running)

    def close(self) -> None:
        for member in self.running:
            member.client.close()


@contextmanager
def sending(namesrv: str, brokers: list[Broker]) -> Iterator[list[str]]:
    """Send to all queues in turn, 50 messages a second; the list has the keys of what was acknowledged."""
    sent: list[str] = []
    stopped = threading.Event()

    def send() -> None:
        with Client(namesrv) as client:
            producer = client.producer()
            while not stopped.wait(0.02):
                number = len(sent)
                broker, queue_id = brokers[number % 2].broker_name, number // 2 % QUEUES
                key = f"{broker}/{queue_id}-{number}"
                queue = MessageQueue(topic=TOPIC, broker_name=broker, queue_id=queue_id)
                producer.send(Message(TOPIC, b"x", keys=(key,)), queue=queue)
                sent.append(key)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize("kind", [OURS, APACHE_4, APACHE_5])
def test_members_of_three_languages(kind: str, site: Site) -> None:
    """
    25 s after each change every queue has one owner, all members nearly as many; each message comes to one of them.

    Which is the same as: all clients see the same members and divide the queues between them in the same way.
    """
    if kind != OURS:
        require_apache(kind)
    namesrv = site.namesrv(kind)
    brokers = [site.broker(kind, namesrv.addr, name, brokerName=name) for name in ("broker-a", "broker-b")]
    for broker in brokers:
        with broker.probe() as probe:
            probe.create_topic(TOPIC, QUEUES)
    group, chance = Group(namesrv.addr, site.root / "members"), Random(SEED)
    try:
        with sending(namesrv.addr, brokers) as sent:
            for language in LANGUAGES:
                group.join(language)
            until("each queue has one owner at first", group.is_settled, seconds=120)
            began, changes = time.monotonic(), 0
            while time.monotonic() < began + CAMPAIGN_S:
                member = chance.choice(group.running)
                how = chance.choice((PipedClient.kill, PipedClient.close))
                group.end(member, how)
                what = f"{member.name} was ended by {how.__name__}"
                until(f"each queue has one owner after {what}", group.is_settled, seconds=SETTLED_S)
                group.join(member.name.partition("-")[0])
                until(f"each queue has one owner after a return, {what}", group.is_settled, seconds=SETTLED_S)
                changes += 1
        until("every message has come", lambda: not set(sent) - group.received().keys(), seconds=60)
        again = sum(count > 1 for count in group.received().values())
        print(f"\n{kind}: {2 * changes} changes, {len(sent)} messages, {again} of them came again")
    finally:
        group.close()
