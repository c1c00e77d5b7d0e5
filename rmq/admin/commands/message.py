"""``rmq-admin message``: show one by its id, find by key, decode an id."""

from __future__ import annotations

from ipaddress import ip_address

from rmq.admin.command import NAMESRV, Call, NotFound, Outcome, WrongUse, addresses, argument, command, subject, tabular
from rmq.admin.lookups import addresses_by_name, route_of
from rmq.admin.messages import described
from rmq.admin.reading import queues_of, read, received
from rmq.admin.times import parse_time, time_text
from rmq.client.types import ReceivedMessage
from rmq.errors import Refused
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.pulling import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageHeader, ViewMessageHeader
from rmq.wire.api.topics import QUERY_CONSUME_QUEUE, QueryConsumeQueueHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.record import Record, decode_offset_msg_id, decode_record, decode_records

ID = subject("id", "-i", "--msgId", metavar="ID")

#: a time that no message reaches
FAR_FUTURE_MS = 2**62


@command(
    "message show",
    "show a message by the id that a broker gave it, or with -t by the one that its producer made",
    NAMESRV,
    ID,
    argument("-t", "--topic", metavar="TOPIC", help="the topic, for an id made by a producer (UNIQ_KEY)"),
)
async def message_show(call: Call) -> Outcome:
    """Status 2 when there is no such message."""
    options = call.options
    if options.topic is None:
        found = [received(await _stored_at(call, options.id), "")]
    else:
        found = [message for message in await find(call, options.topic, options.id) if message.message_id == options.id]
    if not found:
        raise NotFound(f"topic {options.topic} has no message {options.id}")
    return _messages(found)


def _messages(found: list[ReceivedMessage]) -> Outcome:
    data = [described(message) for message in found]
    text = "\n\n".join("\n".join(f"{key + ':':19}{_shown(value)}" for key, value in one.items()) for one in data)
    return Outcome(text=text, data=data)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in value.items())
    return " ".join(value) if isinstance(value, list) else "-" if value is None else str(value)


async def _stored_at(call: Call, message_id: str) -> Record:
    addr, phy_offset = _place(message_id)
    try:
        answer = await call.invoke(addr, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=phy_offset), None)
    except Refused as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        raise NotFound(f"broker {addr} has no message at offset {phy_offset}: {error.remark}") from None
    return decode_record(answer.body)


def _place(message_id: str) -> tuple[str, int]:
    """Return broker and offset in its log; WrongUse when ``message_id`` has none."""
    try:
        (host, port), phy_offset = decode_offset_msg_id(message_id)
        if not 0 < port < 65536 or phy_offset < 0:
            raise ValueError("it names no port; the id of a producer needs its topic, -t TOPIC")
    except ValueError as error:
        raise WrongUse(f"{message_id} is no id that a broker made: {error}") from None
    address = ip_address(host)
    return (f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"), phy_offset


async def find(
    call: Call, topic: str, key: str, *, most: int = 64, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
) -> list[ReceivedMessage]:
    """Ask all brokers of a topic for the messages with a key, or with an id made by a producer; the newest first."""
    header = QueryMessageHeader(topic=topic, key=key, max_num=most, begin_timestamp=begin_ms, end_timestamp=end_ms)
    found = []
    for name, addr in addresses_by_name((await route_of(call, topic)).broker_datas).items():
        try:
            answer = await call.invoke(addr, QUERY_MESSAGE, header, None)
        except Refused as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            continue
        # the index knows hashes of keys only
        messages = [received(record, name) for record in decode_records(answer.body)]
        found += [message for message in messages if key in message.keys or key == message.message_id]
    return sorted(found, key=lambda message: -message.stored_ms)


@command(
    "message find",
    "find the messages of a topic that have a key",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    subject("key", "-k", "--msgKey", nargs="?", metavar="KEY"),
    argument("--key", dest="key_option", metavar="KEY", help="the same"),
    argument("-b", "--from", "--beginTimestamp", dest="begin", default="0", metavar="TIME", help="stored from here on"),
    argument("-e", "--to", "--endTimestamp", dest="end", metavar="TIME", help="stored until here"),
    argument("-m", "--max", "--maxNum", dest="most", type=int, default=64, metavar="N", help="of each broker (64)"),
)
async def message_find(call: Call) -> Outcome:
    """Status 2 when none has it."""
    options = call.options
    key = options.key if options.key_option is None else options.key_option
    if key is None:
        raise WrongUse("a key is needed: message find TOPIC KEY")
    try:
        begin_ms = parse_time(options.begin)
        end_ms = FAR_FUTURE_MS if options.end is None else parse_time(options.end)
    except ValueError as error:
        raise WrongUse(f"a time such as 2026-01-31T12:00 is expected: {error}") from None
    found = await find(call, options.topic, key, most=options.most, begin_ms=begin_ms, end_ms=end_ms)
    if not found:
        raise NotFound(f"topic {options.topic} has no message with key {key}")
    columns = ("message_id", "broker", "queue", "offset", "stored", "tags", "keys", "bytes")
    rows = [
        (
            message.message_id,
            message.queue.broker_name,
            message.queue.queue_id,
            message.queue_offset,
            time_text(message.stored_ms),
            message.tags,
            " ".join(message.keys),
            len(message.record.body),
        )
        for message in found
    ]
    return tabular(columns, rows, nothing="")


@command("message decode", "show the broker and the offset in its log that an id made by a broker names", ID)
async def message_decode(call: Call) -> Outcome:
    """Ask nobody."""
    addr, phy_offset = _place(call.options.id)
    return Outcome(text=f"{addr} offset {phy_offset}", data={"broker": addr, "offset": phy_offset})


@command(
    "message at",
    "show the message at an offset of a queue",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    subject("broker", "-b", "--brokerName", metavar="BROKER_NAME"),
    subject("queue", "-i", "--queueId", type=int, metavar="QUEUE"),
    subject("offset", "-o", "--offset", type=int, metavar="OFFSET"),
)
async def message_at(call: Call) -> Outcome:
    """Status 2 when there is none."""
    options = call.options
    wanted = MessageQueue(topic=options.topic, broker_name=options.broker, queue_id=options.queue)
    found = (await queues_of(call, options.topic)).get(wanted)
    if found is None:
        raise NotFound(f"topic {options.topic} has no queue {options.broker}:{options.queue}")
    addr, at = found
    if not at.min_offset <= options.offset < at.max_offset:
        raise NotFound(f"the queue has offsets from {at.min_offset} up to {at.max_offset}, excluded")
    async for message in read(call, wanted, addr, options.offset, options.offset + 1):
        return _messages([message])
    raise NotFound(f"broker {addr} has no message at offset {options.offset}")


@command(
    "message index",
    "show units of the index of a queue: where the log has each message",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    subject("queue", "-q", "--queue", type=int, metavar="QUEUE"),
    subject("index", "-i", "--index", type=int, metavar="OFFSET"),
    argument("-b", "--broker", required=True, type=addresses, metavar="HOST:PORT", help="the broker"),
    argument("--count", mqadmin=("-c",), type=int, default=10, metavar="N", help="how many (10)"),
    argument("-g", "--consumer", metavar="GROUP", help="does the subscription of this group match it"),
)
async def message_index(call: Call) -> Outcome:
    """Ask one broker; RequestFailed when it refuses."""
    options = call.options
    header = QueryConsumeQueueHeader(
        topic=options.topic,
        queue_id=options.queue,
        index=options.index,
        count=options.count,
        consumer_group=options.consumer,
    )
    body = (await call.invoke(options.broker[0], QUERY_CONSUME_QUEUE, header, None)).body
    rows = [
        (options.index + n, unit.physic_offset, unit.physic_size, unit.tags_code, unit.eval)
        for n, unit in enumerate(body.queue_data)
    ]
    nothing = f"no unit; the queue has offsets from {body.min_queue_index} up to {body.max_queue_index}, excluded"
    return tabular(("offset", "log_offset", "bytes", "tags_code", "matches"), rows, nothing=nothing)
