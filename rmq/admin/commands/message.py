"""``rmq-admin message``: show one by its id, find by key, its trace, decode an id."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from rmq.admin import columns
from rmq.admin.command import (
    NAMESRV,
    OK,
    REFUSED,
    Call,
    NotFound,
    Outcome,
    Table,
    WrongUse,
    addresses,
    argument,
    command,
    flag,
    ignored,
    positive,
    subject,
    tabular,
)
from rmq.admin.commands.group import connection_at
from rmq.admin.lookups import addresses_by_name, admin_of, route_of
from rmq.admin.messages import described, own_properties
from rmq.admin.reading import queues_of, read
from rmq.admin.sending import plan_send, producer
from rmq.admin.times import parse_time, time_text
from rmq.client.core import traces
from rmq.client.flows.admin import FAR_FUTURE_MS, place_of, received
from rmq.client.types import Message, ReceivedMessage
from rmq.errors import ConfigurationError
from rmq.wire import fastjson
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.forwarding import CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader, ConsumeResult
from rmq.wire.api.offsets import GET_CONSUME_STATS, ConsumeStatsHeader
from rmq.wire.api.topics import (
    QUERY_CONSUME_QUEUE,
    QUERY_TOPIC_CONSUME_BY_WHO,
    QueryConsumeQueueHeader,
    TopicHeader,
)

ID = subject("id", "-i", "--msgId", metavar="ID")
_BEGIN = argument(
    "-b", "--from", "--beginTimestamp", dest="begin", default="0", metavar="TIME", help="stored from here on"
)
_END = argument("-e", "--to", "--endTimestamp", dest="end", metavar="TIME", help="stored until here")


def _times(options: argparse.Namespace) -> tuple[int, int]:
    """Return the epoch milliseconds of --from and --to; raises WrongUse."""
    try:
        return parse_time(options.begin), FAR_FUTURE_MS if options.end is None else parse_time(options.end)
    except ValueError as error:
        raise WrongUse(f"a time such as 2026-01-31T12:00 is expected: {error}") from None


@command(
    "message show",
    "show a message by the id that a broker gave it, or with -t by the one that its producer made",
    NAMESRV,
    ID,
    argument("-t", "--topic", metavar="TOPIC", help="the topic, for an id made by a producer (UNIQ_KEY)"),
    argument("--track", action="store_true", help="with what each group that knows the topic did with it"),
    argument(
        "--consume-by",
        mqadmin=("-g", "--consumerGroup"),
        metavar="GROUP",
        help="have a member of this group consume it now, also if it was consumed before",
    ),
    argument("--client", mqadmin=("-d", "--clientId"), metavar="ID", help="this member (default: the first)"),
    flag("--resend", "-s", "--sendMessage", help="send a copy to its topic, for all groups"),
    ignored("-u", "--unitName"),
    ignored("-a", "--showAll", takes_value=False),
    ignored("-c", "--cluster"),
    ignored("-f", "--bodyFormat"),
    changes=lambda options: options.resend or options.consume_by is not None,
)
async def message_show(call: Call) -> Outcome:
    """Several ids are joined with commas. Status 2 when there is no such message, 4 when nobody confirms a change."""
    options = call.options
    if sum((options.track, options.resend, options.consume_by is not None)) > 1:
        raise WrongUse("either --track, --consume-by or --resend")
    if options.client is not None and options.consume_by is None:
        raise WrongUse("--client needs --consume-by GROUP")
    found = [message for one in options.id.split(",") if one.strip() for message in await _by_id(call, one.strip())]
    if options.consume_by is not None:
        return await _consume_by(call, found)
    if options.resend:
        return await _resend(call, found)
    tracks = [await _tracks(call, message) for message in found] if options.track else None
    return _messages(found, tracks)


async def _by_id(call: Call, message_id: str) -> list[ReceivedMessage]:
    topic = call.options.topic
    if topic is None:
        _place(message_id)
        return [await admin_of(call).message(message_id)]
    found = [one for one in await admin_of(call).find_messages(topic, message_id) if one.message_id == message_id]
    return found or [await _by_broker_id(call, message_id)]


async def _by_broker_id(call: Call, message_id: str) -> ReceivedMessage:
    """Return the message of an id that a broker of the topic made; mqadmin 5.x wants the topic also for those."""
    topic = call.options.topic
    brokers = (await route_of(call, topic)).broker_datas
    names = {addr: broker.broker_name for broker in brokers for addr in broker.broker_addrs.values()}
    with contextlib.suppress(ConfigurationError):  # an id that a producer made
        name = names.get(place_of(message_id)[0])
        if name is not None and (record := await admin_of(call).record(message_id)).topic == topic:
            return received(record, name)
    raise NotFound(f"topic {topic} has no message {message_id}")


#: one group's dealings with a message: {"group": …, "track": Java's TrackType, "consumer_offset": …}
Track = dict[str, object]


def _messages(found: list[ReceivedMessage], tracks: list[list[Track]] | None = None) -> Outcome:
    data = [described(message) for message in found]
    for one, track in zip(data, tracks or (), strict=False):
        one["tracks"] = track
    text = "\n\n".join("\n".join(f"{key + ':':19}{_shown(value)}" for key, value in one.items()) for one in data)
    bodies = [str(next((one[key] for key in one if key.startswith("body")), "")) for one in data]
    mqadmin_text = None if tracks else columns.messages(found, bodies)
    # one column for the body, whatever form it has
    rows = [
        (*(_field(one[key]) for key in _FIELDS), body, one["origin_topic"])
        for one, body in zip(data, bodies, strict=True)
    ]
    titles = (*_FIELDS, "body", "origin_topic")
    return Outcome(text=text, data=data, table=Table(titles, rows), mqadmin_text=mqadmin_text)


#: the columns of a message as csv, beside its body
_FIELDS = (
    "topic",
    "broker",
    "queue",
    "offset",
    "message_id",
    "offset_message_id",
    "tags",
    "keys",
    "properties",
    "born",
    "born_host",
    "stored",
    "store_host",
    "reconsume_times",
)


def _field(value: object) -> object:
    return None if value is None else _shown(value)


async def _tracks(call: Call, message: ReceivedMessage) -> list[Track]:
    """Return what each group that knows the topic did with a message.  Java: MQAdminImpl#messageTrackDetail"""
    addr, _ = _place(message.offset_message_id)
    topic = message.queue.topic
    groups = (await call.invoke(addr, QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic=topic), None)).body.group_list
    return [await _track(call, message, addr, group) for group in sorted(groups)]


async def _track(call: Call, message: ReceivedMessage, addr: str, group: str) -> Track:
    header = ConsumeStatsHeader(consumer_group=group, topic=message.queue.topic)
    table = (await call.invoke(addr, GET_CONSUME_STATS, header, None)).body.offset_table
    offsets = [at.consumer_offset for queue, at in table.items() if queue.queue_id == message.queue.queue_id]
    offset = offsets[0] if offsets else None
    online = await connection_at(call, addr, group)
    if online is None:
        track = "NOT_ONLINE"
    elif online.consume_type == "CONSUME_ACTIVELY":
        track = "PULL"
    elif online.message_model == "BROADCASTING":
        track = "CONSUME_BROADCASTING"
    elif offset is None or offset <= message.queue_offset:
        track = "NOT_CONSUME_YET"
    else:
        subscribed = online.subscription_table.get(message.queue.topic)
        tags = set() if subscribed is None else set(subscribed.tags_set)
        track = "CONSUMED_BUT_FILTERED" if tags and not {"*", message.tags} & tags else "CONSUMED"
    return {"group": group, "track": track, "consumer_offset": offset}


async def _consume_by(call: Call, found: list[ReceivedMessage]) -> Outcome:
    """Status 1 when a handler fails.  Java: MQAdminImpl#consumeMessageDirectly"""
    group = call.options.consume_by
    rows: list[tuple[object, ...]] = []
    for message in found:
        addr, _ = _place(message.offset_message_id)
        client_id = call.options.client
        if client_id is None:
            online = await connection_at(call, addr, group)
            if online is None or not online.connection_set:
                raise NotFound(f"group {group} has no member online at broker {addr}")
            client_id = min(one.client_id for one in online.connection_set)
        call.confirm(f"member {client_id} of group {group} consumes message {message.message_id} now", group)
        header = ConsumeDirectlyHeader(consumer_group=group, client_id=client_id, msg_id=message.offset_message_id)
        answer = await call.change(addr, CONSUME_MESSAGE_DIRECTLY, header, None)
        if answer is not None:
            result = fastjson.decode(answer.body, ConsumeResult)
            rows.append(
                (message.message_id, client_id, result.consume_result, result.spent_time_mills, result.remark or None)
            )
    status = OK if all(row[2] == "CR_SUCCESS" for row in rows) else REFUSED
    return tabular(("message_id", "client_id", "result", "spent_ms", "remark"), rows, nothing="", status=status)


async def _resend(call: Call, found: list[ReceivedMessage]) -> Outcome:
    for message in found:
        call.confirm(
            f"a copy of message {message.message_id} is sent to topic {message.origin_topic}", message.origin_topic
        )
    copies = [
        Message(
            message.origin_topic,
            message.body,
            tags=message.tags,
            keys=message.keys,
            properties=own_properties(message.properties),
            flag=message.record.flag,
        )
        for message in found
    ]
    rows: list[tuple[object, ...]] = []
    if call.is_dry:
        for copy in copies:
            plan_send(call, copy)
    else:
        async with producer(call) as sender:
            for message, copy in zip(found, copies, strict=True):
                result = await sender.send(copy)
                rows.append((message.message_id, copy.topic, result.message_id, result.status.name))
    return tabular(("message", "topic", "sent_as", "status"), rows, nothing="")


@command(
    "message trace",
    "show who sent a message and who consumed it, as clients with message trace wrote it",
    NAMESRV,
    ID,
    argument(
        "--trace-topic",
        mqadmin=("-t", "--traceTopic"),
        default=traces.TRACE_TOPIC,
        metavar="TOPIC",
        help=f"where clients write their traces ({traces.TRACE_TOPIC})",
    ),
    argument(
        "--max",
        mqadmin=("-c", "--maxNum"),
        dest="most",
        type=positive,
        default=64,
        metavar="N",
        help="messages with traces, of each broker (64)",
    ),
    _BEGIN,
    _END,
)
async def message_trace(call: Call) -> Outcome:
    """By the id that the producer made, or by a key. Status 2 when nobody traced it."""
    options = call.options
    try:
        begin_ms, end_ms = _times(options)
        found = await admin_of(call).find_messages(
            options.trace_topic, options.id, most=options.most, begin_ms=begin_ms, end_ms=end_ms
        )
    except NotFound as error:
        raise NotFound(f"{error}; brokers have it with traceTopicEnable=true") from None
    lines: list[tuple[ReceivedMessage, dict[str, Any]]] = []
    for message in found:
        try:
            read_lines = traces.read(message.body.decode(errors="replace"))
        except ValueError as error:
            read_lines = [{"kind": "unreadable", "message_id": options.id, "state": str(error)}]
        lines += [
            (message, one)
            for one in read_lines
            if options.id == one.get("message_id") or options.id in str(one.get("keys", "")).split(" ")
        ]
    if not lines:
        raise NotFound(f"topic {options.trace_topic} has no trace of {options.id}")
    rank = {kind: number for number, kind in enumerate(traces.KINDS)}
    lines.sort(key=lambda one: (one[1].get("time_ms", 0), rank.get(one[1]["kind"], -1)))
    rows = [
        (
            one["kind"],
            time_text(one.get("time_ms", 0)),
            one.get("group"),
            message.born_host,
            one.get("cost_ms"),
            _trace_status(one),
            one.get("topic"),
            one.get("broker"),
            one.get("retries"),
            one.get("message_id"),
        )
        for message, one in lines
    ]
    titles = (
        "type", "time", "group", "client", "cost_ms", "status", "topic", "broker", "retries", "message_id",
    )  # fmt: skip
    mqadmin_text = columns.message_trace(
        (
            one["kind"],
            one.get("group"),
            message.born_host.rpartition(":")[0],
            one.get("time_ms", 0),
            one.get("cost_ms", 0),
            one["success"],
        )
        for message, one in lines
        if "success" in one
    )
    return tabular(titles, rows, nothing="", mqadmin_text=mqadmin_text)


def _trace_status(one: dict[str, Any]) -> str | None:
    """Return success or failed, why a handler failed, or how a transaction ended."""
    if "state" in one:
        return str(one["state"])
    if "success" not in one:
        return None
    why = traces.RETURNS.get(one.get("code", 0)) if one["success"] != "true" else None
    return "success" if one["success"] == "true" else f"failed: {why}" if why else "failed"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) if value and isinstance(value[0], dict) else " ".join(value)
    return "-" if value is None else str(value)


def _place(message_id: str) -> tuple[str, int]:
    """Return broker and offset in its log; WrongUse when ``message_id`` has none."""
    try:
        return place_of(message_id)
    except ConfigurationError as error:
        raise WrongUse(f"{error} (-t TOPIC)") from None


@command(
    "message find",
    "find the messages of a topic that have a key",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    subject("key", "-k", "--msgKey", nargs="?", metavar="KEY"),
    argument("--key", dest="key_option", metavar="KEY", help="the same"),
    _BEGIN,
    _END,
    argument(
        "-m", "--max", "--maxNum", dest="most", type=positive, default=64, metavar="N", help="of each broker (64)"
    ),
    ignored("-c", "--cluster"),
)
async def message_find(call: Call) -> Outcome:
    """Status 2 when none has it."""
    options = call.options
    key = options.key if options.key_option is None else options.key_option
    if key is None:
        raise WrongUse("a key is needed: message find TOPIC KEY")
    begin_ms, end_ms = _times(options)
    found = await admin_of(call).find_messages(options.topic, key, most=options.most, begin_ms=begin_ms, end_ms=end_ms)
    if not found:
        raise NotFound(f"topic {options.topic} has no message with key {key}")
    titles = ("message_id", "broker", "queue", "offset", "stored", "tags", "keys", "bytes")
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
    return tabular(titles, rows, nothing="", mqadmin_text=columns.messages_of_key(found))


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
    ignored("-f", "--bodyFormat"),
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
    argument("-b", "--broker", type=addresses, metavar="HOST:PORT", help="the broker (default: the topic's first)"),
    argument("--count", mqadmin=("-c",), type=int, default=10, metavar="N", help="how many (10)"),
    argument("-g", "--consumer", metavar="GROUP", help="does the subscription of this group match it"),
)
async def message_index(call: Call) -> Outcome:
    """Ask one broker; RequestFailed when it refuses."""
    options = call.options
    if options.broker is None:
        brokers = addresses_by_name((await route_of(call, options.topic)).broker_datas)
        options.broker = list(brokers.values())
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
    titles = ("offset", "log_offset", "bytes", "tags_code", "matches")
    return tabular(titles, rows, nothing=nothing, mqadmin_text=columns.index_units(body, options.index))
