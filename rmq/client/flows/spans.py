"""
Spans round sends and handlers, where an observer traces them: its failures are logged and never stop a message.

Without such an observer there is one shared object, and nothing is done for a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rmq.client.core.routes import wrap
from rmq.client.flows.instance import Instance
from rmq.client.flows.usercode import guarded
from rmq.client.observers import Ending, Handling, Observer, Pulled, Sending, Span
from rmq.client.types import Message, NotDurable, ReceivedMessage
from rmq.errors import NotDelivered
from rmq.wire.api.common import MASTER_ID, MessageQueue

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Traced:
    """A send or handler with its span, for ``with``; an exception is the error of the span, and goes on."""

    def __init__(self, instance: Instance, observer: Observer, span: Span) -> None:
        self._instance = instance
        self._observer = observer
        self._span = span
        self._queue: MessageQueue | None = None
        self._error: BaseException | None = None

    def properties(self, index: int = 0) -> Mapping[str, str]:
        """Return what is to be added to a message of a send."""
        return self._span.properties[index] if self._span.properties else _NOTHING

    def sent(self, queue: MessageQueue) -> None:
        """The messages are in this queue, or were sent to it."""
        self._queue = queue

    def failed(self, error: BaseException | None) -> None:
        """There was an error, if it is not None, that is not raised in the block."""
        self._error = error

    def attach(self) -> None:
        """Make the span current here."""
        guarded(self._observer, self._span.attach)

    def detach(self) -> None:
        """Make the former span current again."""
        guarded(self._observer, self._span.detach)

    def end(self) -> None:
        """End the span."""
        error = self._error
        if self._queue is None and isinstance(error, NotDurable):
            self._queue = error.result.queue
        broker_name = None if self._queue is None else self._queue.broker_name
        if isinstance(error, NotDelivered) and error.attempts:
            broker_name = error.attempts[-1][0]
        addr = self._instance.brokers.get(broker_name or "", {}).get(MASTER_ID)
        guarded(self._observer, lambda: self._span.end(error=error, queue=self._queue, addr=addr))

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._error is None:
            self._error = error
        self.end()


class _Untraced(Traced):
    """For all messages of all clients that do not trace."""

    def __init__(self) -> None:
        pass

    def properties(self, index: int = 0) -> Mapping[str, str]:
        return _NOTHING

    def sent(self, queue: MessageQueue) -> None:
        pass

    def failed(self, error: BaseException | None) -> None:
        pass

    def attach(self) -> None:
        pass

    def detach(self) -> None:
        pass

    def end(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass


_UNTRACED = _Untraced()


def sending(
    instance: Instance,
    name: str,
    messages: Sequence[Message],
    message_ids: Sequence[str],
    *,
    topic: str | None = None,
    is_batch: bool = False,
    is_half: bool = False,
    sharding_key: str | None = None,
    conversation_id: str | None = None,
) -> Traced:
    """Begin the span of a send; ``topic`` is that of the first message, with the namespace, unless given."""
    observer = instance.tracing
    if observer is None:
        return _UNTRACED
    event = Sending(
        name=name,
        topic=topic or wrap(instance.settings.namespace, messages[0].topic),
        namespace=instance.settings.namespace,
        client_id=instance.client_id,
        messages=messages,
        message_ids=message_ids,
        is_batch=is_batch,
        is_half=is_half,
        sharding_key=sharding_key,
        conversation_id=conversation_id,
    )
    return _traced(instance, observer, guarded(observer, lambda: observer.sending(event)))


def handling(
    instance: Instance,
    group: str | None,
    messages: Sequence[ReceivedMessage],
    *,
    is_batch: bool = False,
    is_broadcast: bool = False,
) -> Traced:
    """Begin the span of a handler; it is not attached yet."""
    observer = instance.tracing
    if observer is None:
        return _UNTRACED
    event = Handling(
        namespace=instance.settings.namespace,
        client_id=instance.client_id,
        group=group,
        messages=messages,
        is_batch=is_batch,
        is_broadcast=is_broadcast,
    )
    return _traced(instance, observer, guarded(observer, lambda: observer.handling(event)))


def ending(instance: Instance, name: str, topic: str, message_id: str) -> Traced:
    """Begin the span of the end of a transaction."""
    observer = instance.tracing
    if observer is None:
        return _UNTRACED
    event = Ending(
        name=name,
        topic=topic,
        namespace=instance.settings.namespace,
        client_id=instance.client_id,
        message_id=message_id,
    )
    return _traced(instance, observer, guarded(observer, lambda: observer.ending(event)))


def pulled(instance: Instance, group: str, messages: Sequence[ReceivedMessage], began_ms: int) -> None:
    """A program got messages that it asked for."""
    observer = instance.tracing
    if observer is not None and messages:
        event = Pulled(
            namespace=instance.settings.namespace,
            client_id=instance.client_id,
            group=group,
            messages=messages,
            began_ms=began_ms,
            ended_ms=instance.host.wall_ms(),
        )
        guarded(observer, lambda: observer.pulled(event))


def _traced(instance: Instance, observer: Observer, span: Span | None) -> Traced:
    return _UNTRACED if span is None else Traced(instance, observer, span)
