"""
The legal traps, sent to a broker as messages: what an audit must never take for damage. Works on any broker.

They lie in bodies: records that were stored earlier, records that state the very position at which they lie, and bare
magic numbers. An empty body, a delayed message, a half message, keys and tags beyond ASCII come along.
"""

from __future__ import annotations

import random
from typing import Protocol

from rmq.wire import record

TOPICS = {"traps": 4, "traps-other": 2}
HOST = (bytes((10, 0, 0, 1)), 10911)

#: so much of a segment must be left for a forgery, or the message could move to the next one
_ROOM_BYTES = 6000


class Target(Protocol):
    """A broker that has no other producer."""

    segment_bytes: int
    #: whether an empty body is taken; Apache 5.x refuses it
    takes_empty_bodies: bool
    #: whether a producer may begin a transaction
    takes_transactions: bool

    def send(self, topic: str, queue_id: int, body: bytes, properties: dict[str, str]) -> None:
        """Store one message; AssertionError when it is refused."""

    def end(self) -> int:
        """Return where the log ends."""

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes of the log, or none when the range crosses segments."""


def fill(target: Target, chance: random.Random, messages: int) -> int:
    """Send ``messages`` messages, most of them plain; return how many bodies hold forged records."""
    forged = 0
    for number in range(messages):
        topic = chance.choice(list(TOPICS))
        queue_id = chance.randrange(TOPICS[topic])
        properties = {"UNIQ_KEY": f"7F000001{chance.randbytes(3).hex().upper()}{number:018X}", "TAGS": f"T{number % 5}"}
        properties["COLOUR"] = chance.choice(("red", "green", "blue"))
        if number % 3:
            properties["KEYS"] = f"k{number % 7}" if number % 3 == 1 else f"k{number % 7} größe-{number % 4}"
        body = words(chance, chance.randrange(1, 500))
        match number % 40:
            case 3:
                properties["DELAY"] = "18"
            case 7 if target.takes_empty_bodies:
                body = b""
            case 11:
                body = record.MAGIC_V1.to_bytes(4, "big", signed=True) * chance.randrange(20, 200)
            case 17:
                end = target.end()
                body = target.read(max(0, end - 2000), end) or body
            case 23 if target.takes_transactions:
                properties["TRAN_MSG"], properties["PGROUP"] = "true", "traps-producer"
            case 29:
                end = target.end()
                if target.segment_bytes - end % target.segment_bytes > _ROOM_BYTES:
                    body = forgery(chance, end + record.HEADS[0].size)
                    forged += 1
        target.send(topic, queue_id, body, properties)
    return forged


def words(chance: random.Random, size: int) -> bytes:
    """Return text that compresses well."""
    return b" ".join(b"%x" % chance.randrange(1 << 20) for _ in range(size // 6 + 1))[:size]


def forgery(chance: random.Random, body_at: int, least_bytes: int = 3500) -> bytes:
    """Return records that pass every test of a record if they lie at ``body_at``."""
    body = bytearray()
    while len(body) < least_bytes:
        body += record.encode_record(
            topic=b"forged",
            queue_id=9,
            body=chance.randbytes(60),
            properties=b"UNIQ_KEY\x01FORGED",
            born_timestamp=1,
            store_timestamp=2,
            born_host=HOST,
            store_host=HOST,
            queue_offset=chance.randrange(1000),
            phy_offset=body_at + len(body),
        )
    return bytes(body)
