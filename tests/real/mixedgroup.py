"""A group whose members are clients of several languages: they join, leave and are killed."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from rmq.blocking import Client
from rmq.client.types import Message
from rmq.wire.api.common import MessageQueue
from tests.real.goclient import GoSession
from tests.real.javaclient import JavaClient
from tests.real.peers import APACHE_4, Broker
from tests.real.piped import Event, PipedClient

TOPIC, GROUP = "Mixed", "mixed"
#: how long is looked whose messages come from where
LOOK_S = 4.0
MEMBER = """
import asyncio, json, sys, time
from rmq.aio import Client, From, PushSettings

async def main(namesrv, topic, group, in_order):
    async def got(message):
        at = time.time() * 1000
        event = {"event": "got", "key": message.keys[0], "offset": message.queue_offset, "at": at}
        print(json.dumps(event), flush=True)

    async with Client(namesrv) as client:
        settings = PushSettings(consume_from=From.FIRST, orderly=in_order == "in-order")
        await client.push_consumer(group, {topic: "*"}, handler=got, settings=settings).start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main(*sys.argv[1:]))
"""


@attrs.define(eq=False)
class Member:
    """A process that is a member of the group; it ends when ``client`` is closed or killed."""

    name: str
    client: PipedClient

    def got(self) -> list[Event]:
        """Each event has the message's key, which begins with its queue."""
        return self.client.happened("got")

    def received(self) -> list[str]:
        return [event["key"] for event in self.got()]


class Group:
    """The members that run, and those that have ended, of a topic with ``queues`` on all brokers together."""

    def __init__(self, namesrv: str, folder: Path, queues: int, *, in_order: bool = False) -> None:
        self._namesrv = namesrv
        self._folder = folder
        self._queues = queues
        self._in_order = in_order
        self.running: list[Member] = []
        self.ended: list[Member] = []

    def join(self, language: str) -> Member:
        name = f"{language}-{len(self.running) + len(self.ended)}"
        folder = self._folder / name
        client: PipedClient
        if language == "java":
            client = java = JavaClient(APACHE_4, self._namesrv, folder)
            java.consume(GROUP, TOPIC, name, order=self._in_order)
        elif language == "go":
            client = GoSession(self._namesrv, folder)
            client.call("consume", group=GROUP, topic=TOPIC, member=name, order=self._in_order)
        else:
            order = "in-order" if self._in_order else "as-it-comes"
            client = PipedClient(name, [sys.executable, "-c", MEMBER, self._namesrv, TOPIC, GROUP, order], folder)
        self.running.append(Member(name, client))
        return self.running[-1]

    def end(self, member: Member, how: Callable[[PipedClient], None]) -> None:
        how(member.client)
        self.running.remove(member)
        self.ended.append(member)

    def received(self) -> Counter[str]:
        return Counter(key for member in self.all() for key in member.received())

    def all(self) -> list[Member]:
        return [*self.running, *self.ended]

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
        if len(owners) < self._queues or any(len(names) > 1 for names in owners.values()):
            return False
        shares = Counter(name for names in owners.values() for name in names)
        least = self._queues // len(self.running)
        return all(shares[member.name] in (least, least + 1) for member in self.running)

    def close(self) -> None:
        for member in self.running:
            member.client.close()


@contextmanager
def sending(namesrv: str, brokers: Sequence[Broker], queues: int) -> Iterator[list[str]]:
    """
    Send to each broker's ``queues`` in turn, 50 messages a second; the list has the keys of what was acknowledged.

    A key begins with the queue: ``broker-a/3-1048``.
    """
    sent: list[str] = []
    stopped = threading.Event()

    def send() -> None:
        with Client(namesrv) as client:
            producer = client.producer()
            while not stopped.wait(0.02):
                number = len(sent)
                place, queue_id = number % len(brokers), number // len(brokers) % queues
                broker = brokers[place].broker_name
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
