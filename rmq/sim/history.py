"""
The history of the clients in a run: sends, acknowledgements, received messages. It outlives every simulated process.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from rmq.client.types import Message
from rmq.wire.record import PROPERTY_KEYS, Record, find_property, split_keys


@attrs.frozen(kw_only=True)
class Ack:
    """What a broker answered to a stored message."""

    at_s: float
    code: int
    queue_id: int
    queue_offset: int
    phy_offset: int


@attrs.define(eq=False, kw_only=True)
class Sent:
    """One message that a producer sent once; ``ack`` stays None when nobody knows what became of it."""

    key: str
    group: str
    topic: str
    queue_id: int
    tag: str
    body: bytes
    at_s: float
    #: the producer waits for disk and slave
    waits: bool
    ack: Ack | None = None

    @property
    def place(self) -> str:
        """Where the broker says that it is."""
        assert self.ack is not None
        return f"{self.group} {self.topic}:{self.ack.queue_id}@{self.ack.queue_offset} (log {self.ack.phy_offset})"


@attrs.define(eq=False, kw_only=True)
class Transaction:
    """
    A half message that a producer sent, with the acknowledgement of that, and what its group decided.

    ``state`` is TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or 0 while it is open; then ``decided_s`` is None.
    """

    sent: Sent
    state: int = 0
    decided_s: float | None = None

    def decide(self, state: int, now_s: float) -> None:
        """Decide, once and for all."""
        if not self.state and state:
            self.state, self.decided_s = state, now_s


@attrs.define(eq=False, kw_only=True)
class Seen:
    """One message as a consumer got it; ``handled_s`` is when its handler ended, None when its process died before."""

    key: str
    group: str
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    at_s: float
    consumer: str
    handled_s: float | None = None


@attrs.frozen(kw_only=True)
class Committed:
    """An offset of a queue that a consumer wrote to the broker of ``group``."""

    group: str
    topic: str
    queue_id: int
    offset: int
    at_s: float
    consumer: str


class History:
    """Everything that clients did, on all machines and through all their deaths."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.sent: dict[str, Sent] = {}
        self.seen: list[Seen] = []
        self.committed: list[Committed] = []
        #: by key; their messages are not in :attr:`sent`
        self.transactions: dict[str, Transaction] = {}
        #: what brokers asked about half messages that they should not have asked
        self.wrong_checks: list[str] = []
        #: how often what kind of failure met a send
        self.refusals: dict[str, int] = {}
        self.on_ack: list[Callable[[Sent], object]] = []
        self.producing = True

    @property
    def acked(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if sent.ack is not None]

    def acknowledge(self, sent: Sent, ack: Ack) -> None:
        sent.ack = ack
        for callback in self.on_ack:
            callback(sent)

    def refused(self, why: str) -> None:
        self.refusals[why] = self.refusals.get(why, 0) + 1


@attrs.frozen(kw_only=True)
class Copy:
    """All that one broker serves of one queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    records: list[Record]


def shared_key(sent: Sent) -> str:
    """Return the key that a message has together with every seventh, or so."""
    return f"k{len(sent.body) % 7}"


def message_of(sent: Sent) -> Message:
    """Return a message as a program gives it to its client."""
    keys = (sent.key, shared_key(sent))
    return Message(sent.topic, sent.body, tags=sent.tag, keys=keys, wait_store_ok=sent.waits)


def keys_of(record: Record) -> list[str]:
    """Return the keys of a stored message: its own and a shared one."""
    return split_keys(find_property(record.properties.decode("utf-8", "replace"), PROPERTY_KEYS))


def key_of(record: Record) -> str:
    """Return the own key of a stored message, empty without one."""
    return next(iter(keys_of(record)), "")


def same(sent: Sent, record: Record) -> bool:
    """Tell whether a record is the message as it was sent."""
    return (key_of(record), record.topic, record.queue_id, record.body) == (
        sent.key,
        sent.topic,
        sent.queue_id,
        sent.body,
    )
