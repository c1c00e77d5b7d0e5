"""
Message traces: lines that wait for half a second, or until they fill a message, and are sent together.

Java: AsyncTraceDispatcher
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Sequence

from rmq.client.core import outgoing, traces
from rmq.client.core.outgoing import Outgoing
from rmq.client.core.traces import Line
from rmq.client.flows.instance import Instance, opened
from rmq.client.flows.producer import Producer
from rmq.client.settings import ProducerSettings
from rmq.client.types import Message, ReceivedMessage, SendResult
from rmq.errors import NoRoute, NotDelivered

TRACE_PRODUCER = "_INNER_TRACE_PRODUCER"
FLUSH_S = 0.5
SEND_TIMEOUT_S = 5.0
#: of one message of traces; its keys are a property, which has a limit of its own
MOST_LINES, MOST_CHARS, MOST_KEY_CHARS = 100, 128_000, 16_000
#: lines that wait; further ones are dropped, and counted
MOST_WAITING = 1024

_log = logging.getLogger("rmq.client.trace")


class TracingSender(Producer):
    """The producer of the traces themselves: observers do not hear of them."""

    def _tell_sent(self, out: Outgoing, began: float, error: Exception | None) -> None:
        pass


class Tracer:
    """Collects lines of all producers and consumers of a client, and sends them. Traces never fail what they trace."""

    def __init__(self, instance: Instance, topic: str) -> None:
        self.dropped = 0
        self._instance = instance
        self._topic = topic
        self._lines: deque[Line] = deque()
        #: is open while a whole message of lines waits
        self._full = instance.host.gate()
        self._sender = TracingSender(instance, TRACE_PRODUCER, ProducerSettings(send_timeout_s=SEND_TIMEOUT_S))
        instance.parts.append(self._sender)
        instance.run_beside(self._run(), name="rmq traces")

    # what is traced

    def published(
        self,
        group: str,
        result: SendResult,
        properties: dict[str, str],
        answer: dict[str, str],
        *,
        broker_addr: str,
        body_bytes: int,
        began_ms: int,
    ) -> None:
        """A message is stored."""
        topic = result.queue.topic
        if topic != self._topic:
            line = traces.published(
                self._plain(group),
                self._plain(topic),
                result,
                properties,
                answer,
                broker_addr=broker_addr,
                body_bytes=body_bytes,
                began_ms=began_ms,
                ended_ms=self._instance.host.wall_ms(),
            )
            self._add([] if line is None else [line])

    def before(self, group: str, messages: Sequence[ReceivedMessage]) -> tuple[str, int]:
        """A handler gets messages; return what :meth:`after` needs."""
        request_id, now_ms = self._instance.unique_id(), self._instance.host.wall_ms()
        self._add(traces.before(self._plain(group), self._others(messages), request_id=request_id, now_ms=now_ms))
        return request_id, now_ms

    def after(
        self, group: str, messages: Sequence[ReceivedMessage], begun: tuple[str, int], error: Exception | None
    ) -> None:
        """A handler has ended."""
        now_ms, others = self._instance.host.wall_ms(), self._others(messages)
        request_id, began_ms = begun
        if others:
            self._add(
                traces.after(
                    self._plain(group), others, error, request_id=request_id, began_ms=began_ms, ended_ms=now_ms
                )
            )

    def ended(
        self,
        group: str,
        topic: str,
        message_id: str,
        transaction_id: str | None,
        state: int,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        broker_addr: str,
        from_check: bool,
    ) -> None:
        """A transaction has ended."""
        line = traces.ended(
            self._plain(group),
            self._plain(topic),
            message_id,
            transaction_id,
            state,
            tags=tags,
            keys=" ".join(keys) or None,
            broker_addr=broker_addr,
            from_check=from_check,
            now_ms=self._instance.host.wall_ms(),
        )
        self._add([line])

    def _others(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Leave out traces: those of a program that reads traces would never end."""
        return [message for message in messages if message.record.topic != self._topic]

    def _plain(self, name: str) -> str:
        return name.removeprefix(f"{self._instance.settings.namespace}%")

    def _add(self, lines: Sequence[Line]) -> None:
        for line in lines:
            if len(self._lines) < MOST_WAITING:
                self._lines.append(line)
            else:
                self.dropped += 1
        if len(self._lines) >= MOST_LINES:
            self._full.open()

    # sends

    async def _run(self) -> None:
        reported = 0
        while True:
            with contextlib.suppress(TimeoutError):
                await self._instance.host.within(opened(self._full.wait), FLUSH_S)
            self._full.shut()
            await self.flush()
            if self.dropped > reported:
                _log.warning("traces dropped: %d; more than %d waited", self.dropped - reported, MOST_WAITING)
                reported = self.dropped

    async def flush(self) -> None:
        """Send the lines that wait; those that cannot be sent are lost."""
        left = len(self._lines)
        while self._lines and left > 0:
            lines = self._next()
            left -= len(lines)
            keys = tuple(dict.fromkeys(key for line in lines for key in sorted(line.keys)))
            message = Message(self._topic, "".join(line.text for line in lines).encode("utf-8", "replace"), keys=keys)
            settings = self._instance.settings
            out = outgoing.single(message, self._instance.unique_id(), ProducerSettings(), settings.namespace)
            try:
                await self._sender.deliver(out)
            except (NotDelivered, NoRoute) as error:
                _log.info("traces lost: %d: %s", len(lines), error)

    def _next(self) -> list[Line]:
        """Take the lines of one message."""
        lines: list[Line] = []
        chars = key_chars = 0
        while self._lines and len(lines) < MOST_LINES:
            line = self._lines[0]
            chars += len(line.text)
            key_chars += sum(len(key) + 1 for key in line.keys)
            if lines and (chars > MOST_CHARS or key_chars > MOST_KEY_CHARS):
                break
            lines.append(self._lines.popleft())
        return lines


def with_traces(instance: Instance) -> Instance:
    """Return the client, with traces where its settings ask for them."""
    topic = instance.settings.trace
    if topic:
        instance.tracer = Tracer(instance, traces.TRACE_TOPIC if topic is True else topic)
    return instance
