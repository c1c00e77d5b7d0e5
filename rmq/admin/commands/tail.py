"""``rmq-admin tail``: the messages of a topic."""

from __future__ import annotations

import msgspec
from twisted.internet.defer import Deferred

from rmq.admin.command import NAMESRV, Call, WrongUse, argument, command, positive, subject
from rmq.admin.lookups import together
from rmq.admin.messages import described
from rmq.admin.reading import queues_of, read
from rmq.admin.times import EARLIEST_MS, parse_time, time_text
from rmq.client.types import ReceivedMessage
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.offsets import SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader
from rmq.wire.api.topics import TopicOffset


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
    argument("-q", "--queue", action="append", metavar="BROKER:ID", help="only this queue; may be given several times"),
    argument("--tags", default="*", metavar="EXPRESSION", help="only these tags: 'A || B' (all)"),
    argument("-c", "--count", type=positive, metavar="N", help="end after N messages"),
    argument("--exit", action="store_true", help="end where the queues ended when the command began"),
)
async def tail(call: Call) -> None:
    """Read all queues at once; with ``-o json`` one object a line. Status 2 when the topic has no route."""
    options = call.options
    ranges = await queues_of(call, options.topic)
    chosen = {queue: at for queue, at in ranges.items() if options.queue is None or name_of(queue) in options.queue}
    if not chosen:
        known = ", ".join(map(name_of, ranges)) or "none"
        raise WrongUse(f"topic {options.topic} has no queue {options.queue}; queues: {known}")
    printer = Printer(call, options.count)
    readers = [
        _follow(call, printer, queue, addr, await _begin(call, queue, addr, at), at.max_offset)
        for queue, (addr, at) in chosen.items()
    ]
    await together(map(Deferred.fromCoroutine, readers))


def name_of(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


async def _begin(call: Call, queue: MessageQueue, addr: str, at: TopicOffset) -> int:
    where = call.options.begin
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
            f"--from {where}: begin, end, -N, an offset or a time such as 2026-01-31T12:00 is expected"
        ) from None
    header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
    return (await call.invoke(addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None)).header.offset


async def _follow(call: Call, printer: Printer, queue: MessageQueue, addr: str, begin: int, end: int) -> None:
    last = end if call.options.exit else None
    async for message in read(call, queue, addr, begin, last, tags=call.options.tags, until=lambda: printer.is_done):
        printer.show(message)


class Printer:
    """Prints messages, one line each; at most ``count`` where one is given."""

    def __init__(self, call: Call, count: int | None = None) -> None:
        self._call = call
        self._left = count

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def show(self, message: ReceivedMessage) -> None:
        if self._left is not None:
            if self._left == 0:
                return
            self._left -= 1
        data = described(message)
        if self._call.options.output == "json":
            self._call.terminal.emit(msgspec.json.encode(data).decode())
            return
        body = data["body"] if "body" in data else f"base64:{data['body_base64']}"
        marks = [f"tags={message.tags}"] if message.tags else []
        marks += [f"keys={' '.join(message.keys)}"] if message.keys else []
        place = f"{name_of(message.queue)} {message.queue_offset} {time_text(message.stored_ms)}"
        self._call.terminal.emit(" ".join([place, *marks, body]))
