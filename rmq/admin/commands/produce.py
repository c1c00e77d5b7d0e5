"""``rmq-admin produce``: messages from the command line, from a file or from standard input."""

from __future__ import annotations

import argparse
import os
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import attrs
import msgspec
from twisted.internet.task import deferLater

from rmq.admin import columns
from rmq.admin.command import NAMESRV, Call, WrongUse, argument, command, flag, only_mqadmin, positive, subject
from rmq.admin.messages import own_properties
from rmq.admin.sending import plan_send, producer
from rmq.client.types import Message, MessageQueue, SendResult, SendStatus
from rmq.runtime.disk.error import DiskError
from rmq.store.config import StoreConfig

#: what brokers have by default
_DELAYS = StoreConfig().message_delay_level
LEVELS = len(_DELAYS.split())


def _level(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is no delay level: 1 to {LEVELS} are by default {_DELAYS}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of messages a second, above 0")
    return rate


@command(
    "produce",
    "send messages: -m TEXT, -f FILE, or one for each line of standard input",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    argument(
        "-m",
        "--body",
        mqadmin=("-p",),
        dest="texts",
        action="append",
        metavar="TEXT",
        help="a body; several -m: several messages",
    ),
    flag("--trace", "-m", "--msgTraceEnable", help="write traces for `message trace` (brokers: traceTopicEnable=true)"),
    argument("-f", "--file", metavar="FILE", help="a file whose bytes are the body"),
    argument("--ndjson", action="store_true", help="standard input is what `tail -o json` prints"),
    argument("-k", "--keys", action="append", default=[], metavar="KEY", help="a key; may be given several times"),
    argument("-c", "--tags", metavar="TAG", help="the tag"),
    argument("-P", "--property", action="append", default=[], metavar="NAME=VALUE", help="a property of the message"),
    argument(
        "--delay", type=_level, default=0, metavar="LEVEL", help=f"deliver later: a level from 1, by default {_DELAYS}"
    ),
    argument("--rate", type=_rate, metavar="N", help="at most N messages a second"),
    argument("--batch", type=positive, default=1, metavar="N", help="N messages in one request; without --delay (1)"),
    argument("--queue", metavar="BROKER:ID", help="this queue; otherwise queues take turns"),
    only_mqadmin("-b", "--broker", metavar="BROKER_NAME", help="the broker of the queue"),
    only_mqadmin("-i", "--qid", type=int, metavar="ID", help="the number of the queue"),
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
        # mqadmin has all keys in one text
        keys=tuple(" ".join(options.keys).split() if options.as_mqadmin else options.keys),
        delay_level=options.delay,
        properties=dict(_pair(text) for text in options.property),
    )
    queue = _chosen_queue(call)
    if options.batch > 1 and (options.delay or options.sharding_key is not None):
        raise WrongUse("--batch goes neither with --delay nor with --sharding-key")
    if call.is_dry:
        async for message in _messages(call, plain):
            plan_send(call, message)
        return
    if options.as_mqadmin and options.output != "json":
        call.terminal.emit(columns.SENT_TITLES)
    clock = call.platform.reactor
    began_s, sent = clock.seconds(), 0
    async with producer(call, trace=options.trace) as sender:
        async for messages in _batches(_messages(call, plain), options.batch):
            if options.rate is not None and (early_s := began_s + sent / options.rate - clock.seconds()) > 0:
                await deferLater(clock, early_s)
            sent += len(messages)
            if options.batch > 1:
                result = await sender.send_batch(messages, queue=queue)
            else:
                result = await sender.send(messages[0], queue=queue, sharding_key=options.sharding_key)
            _show(call, result)


async def _batches(messages: AsyncIterator[Message], size: int) -> AsyncIterator[list[Message]]:
    waiting: list[Message] = []
    async for message in messages:
        waiting.append(message)
        if len(waiting) == size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _chosen_queue(call: Call) -> MessageQueue | None:
    options = call.options
    text = options.queue
    if options.as_mqadmin and options.broker is not None and options.qid is not None:
        text = f"{options.broker}:{options.qid}"
    return None if text is None else _queue(options.topic, text)


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
        yield attrs.evolve(plain, body=os.fsencode(text))  # the bytes of the command line, also if they are no UTF-8
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
    """Print a line for each message that was sent, those of a batch one after the other."""
    ids = zip(result.message_id.split(","), result.offset_message_id.split(","), strict=True)
    less = "" if result.status is SendStatus.OK else f" {result.status.name}"
    for number, (message_id, offset_message_id) in enumerate(ids):
        data: dict[str, Any] = {
            "message_id": message_id,
            "offset_message_id": offset_message_id,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset + number,
            "status": result.status.name,
        }
        if call.options.output == "json":
            call.terminal.emit(msgspec.json.encode(data).decode())
        elif call.options.as_mqadmin:
            state = "SEND_OK" if result.status is SendStatus.OK else result.status.name
            call.terminal.emit(columns.SENT % (data["broker"], data["queue"], state, message_id))
        else:
            call.terminal.emit(f"{message_id} {data['broker']}:{data['queue']} {data['offset']}{less}")
