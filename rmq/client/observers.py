"""
What a client tells about its work: for metrics, or a log of your own.

`rmq.client.prometheus` and `rmq.client.otel` are observers that are ready. Topics and groups are those of the brokers:
with the namespace, and ``%RETRY%<group>`` for what comes again.
"""

from __future__ import annotations

import enum

import attrs

from rmq.wire.api.common import MessageQueue


@attrs.frozen(kw_only=True)
class Sent:
    """
    A send has ended: ``seconds`` are those of the whole call, with all tries; ``error`` is None for stored messages.

    ``messages`` is above 1 for a batch; ``body_bytes`` are compressed ones.
    """

    topic: str
    group: str
    messages: int
    body_bytes: int
    seconds: float
    error: Exception | None


@attrs.frozen(kw_only=True)
class Received:
    """A pull has brought messages; ``seconds`` includes the time in which the queue was empty."""

    topic: str
    group: str
    queue: MessageQueue
    messages: int
    body_bytes: int
    seconds: float


@attrs.frozen(kw_only=True)
class Handled:
    """A handler or the block of a delivery has ended; ``error`` is what it raised, a TimeoutError if cancelled."""

    topic: str
    group: str
    messages: int
    seconds: float
    error: Exception | None


class How(enum.Enum):
    """What became of messages: SKIPPED ones failed in a group with ``broadcast``, and do not come again."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "retried"
    REJECTED = "rejected"
    SKIPPED = "skipped"


@attrs.frozen(kw_only=True)
class Settled:
    """Messages are acknowledged, or will be delivered again, or go to the dead letter queue."""

    topic: str
    group: str
    messages: int
    how: How


class Observer:
    """
    Called in the loop's or reactor's thread, so without waiting; what it raises is logged.

    A subclass may leave methods out.
    """

    def sent(self, event: Sent) -> None:
        """A send has ended."""

    def received(self, event: Received) -> None:
        """Messages have come."""

    def handled(self, event: Handled) -> None:
        """A handler has ended."""

    def settled(self, event: Settled) -> None:
        """Messages are done, here."""
