"""``rmq-admin produce``: messages from the command line, from a file or from standard input."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import attrs
import msgspec

from rmq.admin.command import NAMESRV, Call, WrongUse, argument, command, subject
from rmq.admin.messages import own_properties
from rmq.admin.sending import plan_send, producer
from rmq.client.types import Message, MessageQueue, SendResult, SendStatus
from rmq.runtime.disk.error import DiskError


@command(
    "produce",
    "send messages: -m TEXT, -f FILE, or one for each line of standard input",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    argument(
        "-m", "-p", "--body", dest="texts", action="append", metavar="TEXT", help="a body; several -m: several messages"
    ),
    argument("-f", "--file", metavar="FILE", help="a file whose bytes are the body"),
    argument("--ndjson", action="store_true", help="standard input is what `tail -o json` prints"),
    argument("-k", "--keys", action="append", default=[], metavar="KEY", help="a key; may be given several times"),
    argument("-c", "--tags", metavar="TAG", help="the tag"),
    argument("-P", "--property", action="append", default=[], metavar="NAME=VALUE", help="a property of the message"),
    argument("--delay", type=int, default=0, metavar="LEVEL", help="deliver later: level 1 to 18"),
    argument("--queue", metavar="BROKER:ID", help="this queue; otherwise queues take turns"),
    argument("--sharding-key", metavar="KEY", help="equal keys go to the same queue, the one that Java chooses"),
    changes=True,
)
async def produce(call: Call) -> None:
    """Print where each message lies, one line each; the first failure ends it. Raises RequestFailed."""
    options = call.options
    plain = Message(
        options.topic,
        b"",
        tags=options.tags,
        keys=tuple(options.keys),
        delay_level=options.delay,
        properties=dict(_pair(text) for text in options.property),
    )
    queue = None if options.queue is None else _queue(options.topic, options.queue)
    if call.is_dry:
        async for message in _messages(call, plain):
            plan_send(call, message)
        return
    async with producer(call) as sender:
        async for message in _messages(call, plain):
            _show(call, await sender.send(message, queue=queue, sharding_key=options.sharding_key))


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise WrongUse(f"-P {text}: NAME=VALUE is expected")
    return name, value


def _queue(topic: str, text: str) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    if not broker or not number.isdecimal():
        raise WrongUse(f"--queue {text}: BROKER:ID is expected")
    return MessageQueue(topic=topic, broker_name=broker, queue_id=int(number))


async def _messages(call: Call, plain: Message) -> AsyncIterator[Message]:
    options = call.options
    for text in options.texts or ():
        yield attrs.evolve(plain, body=text.encode())
    if options.file is not None:
        try:
            yield attrs.evolve(plain, body=call.platform.disk.read_whole(options.file))
        except (FileNotFoundError, DiskError) as error:
            raise WrongUse(f"-f {options.file}: {error}") from None
    if options.texts or options.file is not None:
        return
    number = 0
    while line := await call.terminal.read_line():
        number += 1
        body = line.removesuffix(b"\n")
        yield _of_json(plain, body, number) if options.ndjson else attrs.evolve(plain, body=body)


class _Line(msgspec.Struct):
    """What counts of a line of ``tail -o json``."""

    body: str | None = None
    body_base64: str | None = None
    tags: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}


def _of_json(plain: Message, line: bytes, number: int) -> Message:
    try:
        read = msgspec.json.decode(line, type=_Line)
        body = b64decode(read.body_base64) if read.body_base64 is not None else (read.body or "").encode()
    except (msgspec.MsgspecError, ValueError) as error:
        raise WrongUse(f"line {number} of standard input is no message in JSON: {error}") from None
    return attrs.evolve(
        plain,
        body=body,
        tags=plain.tags or read.tags,
        keys=plain.keys or tuple(read.keys),
        properties={**own_properties(read.properties), **plain.properties},
    )


def _show(call: Call, result: SendResult) -> None:
    data: dict[str, Any] = {
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "offset": result.queue_offset,
        "status": result.status.name,
    }
    if call.options.output == "json":
        call.terminal.emit(msgspec.json.encode(data).decode())
        return
    less = "" if result.status is SendStatus.OK else f" {result.status.name}"
    call.terminal.emit(f"{data['message_id']} {data['broker']}:{data['queue']} {data['offset']}{less}")
