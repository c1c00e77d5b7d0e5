"""
What a client tells about its work: for metrics, or a log of your own.

`rmq.client.prometheus` and `rmq.client.otel` are observers that are ready. Topics and groups are those of the brokers:
with the namespace, and ``%RETRY%<group>`` for what comes again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from rmq.client.types import Message, ReceivedMessage
from rmq.wire.api.common import MessageQueue


@attrs.frozen(kw_only=True)
class Sent:
    """
    A send has ended: ``seconds`` are those of the whole call, with all tries; ``error`` is None for stored messages, a
    TimeoutError if the wait was cancelled.

    ``messages`` is above 1 for a batch; ``body_bytes`` are compressed ones. A send that was refused before it began
    (ClosedClient, ConfigurationError) took 0 seconds.
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


@attrs.frozen(kw_only=True)
class Rebalanced:
    """
    A member has other queues of a topic than before: ``queues`` now, which are ``gained`` more and ``lost`` fewer.

    A closed member has none.
    """

    topic: str
    group: str
    queues: frozenset[MessageQueue]
    gained: frozenset[MessageQueue]
    lost: frozenset[MessageQueue]


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

    def rebalanced(self, event: Rebalanced) -> None:
        """A consumer has other queues."""


@attrs.frozen(kw_only=True)
class Sending:
    """
    A send begins; ``name`` is ``send``, ``request`` or ``reply``.

    ``topic`` has the namespace, those of ``messages`` have not. ``conversation_id`` joins a request and its reply;
    ``is_half``: the message of a transaction.
    """

    name: str
    topic: str
    namespace: str | None
    client_id: str
    messages: Sequence[Message]
    message_ids: Sequence[str]
    is_batch: bool = False
    is_half: bool = False
    sharding_key: str | None = None
    conversation_id: str | None = None


@attrs.frozen(kw_only=True)
class Handling:
    """
    A handler gets messages of one queue, or the ``check`` of a transaction its message (``group`` is None then).

    ``is_batch``: the handler takes lists.
    """

    namespace: str | None
    client_id: str
    group: str | None
    messages: Sequence[ReceivedMessage]
    is_batch: bool = False
    is_broadcast: bool = False


@attrs.frozen(kw_only=True)
class Pulled:
    """A pull consumer gives messages, one or more, to the program that asked for them; times are epoch milliseconds."""

    namespace: str | None
    client_id: str
    group: str
    messages: Sequence[ReceivedMessage]
    began_ms: int
    ended_ms: int


@attrs.frozen(kw_only=True)
class Ending:
    """The end of a transaction is sent to its broker; ``name`` is ``commit``, ``rollback`` or ``unknown``."""

    name: str
    topic: str
    namespace: str | None
    client_id: str
    message_id: str


class Span:
    """What a tracing observer began; :meth:`end` is called once. This one does nothing."""

    #: properties to add to each message of a send, in the order of the messages
    properties: Sequence[Mapping[str, str]] = ()

    def attach(self) -> None:
        """Make it the current span of this coroutine or thread."""

    def detach(self) -> None:
        """Make the former span the current one again, in the coroutine or thread of :meth:`attach`."""

    def end(
        self, *, error: BaseException | None = None, queue: MessageQueue | None = None, addr: str | None = None
    ) -> None:
        """What was begun has ended, with ``error`` or without; ``addr`` is the last broker that was asked, if any."""


class TracingObserver(Observer):
    """An observer that is called when something begins, too, and adds its context to messages; one for a client."""

    def sending(self, event: Sending) -> Span:
        """A send begins."""
        return Span()

    def handling(self, event: Handling) -> Span:
        """A handler begins; the span is current while it runs."""
        return Span()

    def ending(self, event: Ending) -> Span:
        """The end of a transaction is sent."""
        return Span()

    def pulled(self, event: Pulled) -> None:
        """A program got messages that it asked for."""
