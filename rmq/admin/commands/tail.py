"""``rmq-admin tail``: the messages of a topic."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Callable

import msgspec
from twisted.internet.defer import Deferred

from rmq.admin.command import NAMESRV, Call, WrongUse, argument, command, positive, subject
from rmq.admin.lookups import together
from rmq.admin.messages import BODY_FORMS, body_text, checked_format, described, formatted, stored_topic
from rmq.admin.reading import Source, follow, queues_of, read
from rmq.admin.times import EARLIEST_MS, parse_time, time_text
from rmq.client.types import ReceivedMessage
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.offsets import SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader
from rmq.wire.api.topics import TopicOffset


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


@command(
    "tail",
    "print the messages of a topic as they arrive, or with --exit those that are there",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    argument(
        "--from",
        dest="begin",
        default="end",
        metavar="WHERE",
        help="begin, end, last -N, an offset or a time (end)",
    ),
    argument("--to", dest="end", metavar="WHERE", help="end before it; written like --from, and there at the begin"),
    argument("-q", "--queue", action="append", metavar="BROKER:ID", help="only this queue; may be given several times"),
    argument("--tags", default="*", metavar="EXPRESSION", help="only these tags: 'A || B' (all)"),
    argument("--grep", type=_pattern, metavar="REGEX", help="only bodies in which this regular expression is found"),
    argument("-c", "--count", type=positive, metavar="N", help="end after N messages"),
    argument("--exit", action="store_true", help="end where the queues ended when the command began"),
    argument(
        "-F",
        "--format",
        type=checked_format,
        metavar="FORMAT",
        help="of a line: %%t topic, %%q queue, %%o offset, %%k keys, %%g tags, %%i id, %%b body, %%B its bytes, "
        "%%d stored, %%p properties; \\t \\n",
    ),
    argument("--show", choices=BODY_FORMS, default="text", help="form of bodies (text, where that is UTF-8)"),
)
async def tail(call: Call) -> None:
    """
    Read all queues at once; with ``-o json`` one object a line. Status 2 when the topic has no route.

    Without an end it goes on when a broker that has answered once is away for a while, or is replaced by another one.
    """
    options = call.options
    if options.format is not None and options.output != "table":
        raise WrongUse(f"either --format or -o {options.output}")
    ranges = await queues_of(call, options.topic)
    chosen = {queue: at for queue, at in ranges.items() if options.queue is None or name_of(queue) in options.queue}
    if not chosen:
        known = ", ".join(map(name_of, ranges)) or "none"
        raise WrongUse(f"topic {options.topic} has no queue {options.queue}; queues: {known}")
    printer = Printer(call, options.count)
    sources: dict[str, Source] = {}

    def is_done() -> bool:
        return printer.is_done

    sought: list[AsyncIterator[ReceivedMessage]] = []
    for queue, (addr, at) in chosen.items():
        begin = await _offset(call, "--from", options.begin, queue, addr, at)
        end = at.max_offset if options.exit else None
        if options.end is not None:
            end = await _offset(call, "--to", options.end, queue, addr, at)
        if end is None:
            source = sources.setdefault(queue.broker_name, Source(call, options.topic, queue.broker_name, addr))
            sought.append(follow(call, queue, source, begin, tags=options.tags, until=is_done))
        else:
            sought.append(read(call, queue, addr, begin, end, tags=options.tags, until=is_done))
    readers = [Deferred.fromCoroutine(_print(printer, messages)) for messages in sought]
    try:
        await together(readers)
    finally:
        for reader in readers:  # after a failure of one of them
            reader.cancel()


def name_of(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


async def _offset(call: Call, option: str, where: str, queue: MessageQueue, addr: str, at: TopicOffset) -> int:
    """Return the offset of a place in a queue, within what is there now."""
    if where in ("begin", "end"):
        return at.min_offset if where == "begin" else at.max_offset
    if where.startswith("-") and where[1:].isdecimal():
        return max(at.min_offset, at.max_offset - int(where[1:]))
    if where.isdecimal() and int(where) < EARLIEST_MS:
        return max(at.min_offset, min(at.max_offset, int(where)))
    try:
        at_ms = parse_time(where)
    except ValueError:
        raise WrongUse(
            f"{option} {where}: begin, end, -N, an offset or a time such as 2026-01-31T12:00 is expected"
        ) from None
    header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
    return (await call.invoke(addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None)).header.offset


async def _print(printer: Printer, messages: AsyncIterator[ReceivedMessage]) -> None:
    async for message in messages:
        printer.show(message)


class Printer:
    """
    Prints messages, one line each, as the options of a command say; at most ``count`` where one is given.

    With ``with_ids`` a line of text has the id, which another command asks for, and the topic that the message was sent
    to. ``topic_of`` is the topic in JSON.
    """

    def __init__(
        self,
        call: Call,
        count: int | None = None,
        *,
        with_ids: bool = False,
        topic_of: Callable[[ReceivedMessage], str] = stored_topic,
    ) -> None:
        self._call = call
        self._with_ids = with_ids
        self._topic_of = topic_of
        self._left = count
        # Those of `tail`; other commands that print messages have not all of them.
        self._pattern: re.Pattern[str] | None = getattr(call.options, "grep", None)
        self._format: str | None = getattr(call.options, "format", None)
        self._body_form: str = getattr(call.options, "show", "text")

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def show(self, message: ReceivedMessage) -> None:
        if self._left == 0 or not self._matches(message):
            return
        if self._left is not None:
            self._left -= 1
        self._call.terminal.emit(self._line(message))

    def _matches(self, message: ReceivedMessage) -> bool:
        if self._pattern is None:
            return True
        try:
            return self._pattern.search(message.body.decode(errors="replace")) is not None
        except ValueError:  # compressed in a way that is not known here
            return False

    def _line(self, message: ReceivedMessage) -> str:
        if self._format is not None:
            return formatted(self._format, message, self._body_form)
        data = described(message, self._body_form, self._topic_of)
        if self._call.options.output == "json":
            return msgspec.json.encode(data).decode()
        body = body_text(data)
        marks = [f"id={message.message_id}", f"origin_topic={message.origin_topic}"] if self._with_ids else []
        marks += [f"tags={message.tags}"] if message.tags else []
        marks += [f"keys={' '.join(message.keys)}"] if message.keys else []
        place = f"{name_of(message.queue)} {message.queue_offset} {time_text(message.stored_ms)}"
        return " ".join([place, *marks, *([] if body is None else [body])])
