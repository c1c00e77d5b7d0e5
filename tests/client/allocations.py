"""Groups and routes to allocate, drawn, and the allocations of them in the form of tests/real/java/Allocations.java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs

from rmq.client.core.allocate import AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH, in_order, java_order
from rmq.wire.api.common import MessageQueue

#: what Apache 4.9.7's classes answered: lines of a case and its answer, written by tests/real/test_pyclient.py
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "allocations.tsv"
STRATEGIES = (AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH)
#: names that Java sorts differently from Python: by UTF-16 code units
_NAMES = ("broker-a", "broker-b", "broker", "Broker-C", "z", "10", "9", "\uffee", "\U0001f600")
_INSTANCES = ("7", "\uffee", "\U0001f600")


@attrs.frozen
class Case:
    topic: str
    me: str
    members: tuple[str, ...]
    brokers: tuple[tuple[str, int], ...]

    @property
    def line(self) -> str:
        brokers = ",".join(f"{name}:{count}" for name, count in self.brokers)
        return "\t".join((self.topic, self.me, ",".join(self.members), brokers))

    @classmethod
    def parse(cls, fields: list[str]) -> Case:
        topic, me, members, brokers = fields
        pairs = (pair.split(":") for pair in brokers.split(","))
        return cls(topic, me, tuple(members.split(",")), tuple((name, int(count)) for name, count in pairs))

    def queues(self) -> list[MessageQueue]:
        return [
            MessageQueue(topic=self.topic, broker_name=name, queue_id=number)
            for name, count in self.brokers
            for number in range(count)
        ]

    def shares(self, me: str) -> list[list[MessageQueue]]:
        """Return the share of a member, for each strategy."""
        queues, members = in_order(self.queues()), sorted(self.members, key=java_order)
        return [strategy("group", me, queues, members) for strategy in STRATEGIES]

    def answer(self) -> str:
        shares = self.shares(self.me)
        return "\t".join(",".join(f"{q.broker_name}:{q.queue_id}" for q in share) for share in shares)


def drawn_cases(rng: Random, count: int) -> Iterator[Case]:
    for _ in range(count):
        names = rng.sample(_NAMES, rng.randint(1, 4))
        brokers = tuple((name, rng.randint(1, 17)) for name in names)
        members = tuple(
            f"10.0.{rng.randrange(3)}.{number}@{rng.choice(_INSTANCES)}#{rng.random()}"
            for number in range(rng.randint(1, 12))
        )
        # now and then a member that the broker has not got yet
        me = rng.choice(members) if rng.random() < 0.95 else "10.9.9.9@1"
        yield Case(rng.choice(("orders", "%RETRY%group")), me, members, brokers)
