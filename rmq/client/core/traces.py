"""
Message traces as Java's consoles and ``mqadmin queryMsgTraceById`` read them: lines of fields, written and read.

A line is its fields joined by the byte 1, with the byte 2 at its end:

    Pub             time region group topic id tags keys broker size cost type offset-id success
    SubBefore       time region group request id retries keys
    SubAfter        request id cost success keys code time group    (before 4.5: without the last two)
    EndTransaction  time region group topic id tags keys broker type transaction state from-check

Java: TraceDataEncoder, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from rmq.client.types import Later, ReceivedMessage, Reject, SendResult
from rmq.wire.record import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    split_keys,
)

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: fields of an answer to a send, and properties of a stored message
REGION, TRACE_ON = "MSG_REGION", "TRACE_ON"
# Java: the ordinals of MessageType
NORMAL, HALF, COMMIT, DELAYED = 0, 1, 2, 3
# Java: the ordinals of ConsumeReturnType
SUCCESS, TIME_OUT, EXCEPTION, FAILED = 0, 1, 2, 4
_STATES = {TRANSACTION_COMMIT: "COMMIT_MESSAGE", TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE"}


_FIELDS = {
    "Pub": ("time_ms", "region", "group", "topic", "message_id", "tags", "keys", "broker", "bytes", "cost_ms", "type",
            "offset_message_id", "success"),
    "SubBefore": ("time_ms", "region", "group", "request_id", "message_id", "retries", "keys"),
    "SubAfter": ("request_id", "message_id", "cost_ms", "success", "keys", "code", "time_ms", "group"),
    "EndTransaction": ("time_ms", "region", "group", "topic", "message_id", "tags", "keys", "broker", "type",
                       "transaction_id", "state", "from_check"),
}  # fmt: skip
#: kinds of lines that `read` knows
KINDS = tuple(_FIELDS)
#: how a handler ended, by the ``code`` of SubAfter.  Java: ConsumeReturnType
RETURNS = {SUCCESS: "SUCCESS", TIME_OUT: "TIME_OUT", EXCEPTION: "EXCEPTION", 3: "RETURNNULL", FAILED: "FAILED"}
_NUMBERS = ("time_ms", "bytes", "cost_ms", "type", "retries", "code")


def read(text: str) -> list[dict[str, str | int]]:
    """
    Return the fields of each line by the names above, and its ``kind``; without those that it lacks or has as null.

    Kinds that are not known here are left out. ValueError for a number that is none.  Java: TraceDataEncoder
    """
    found: list[dict[str, str | int]] = []
    for line in text.split(PROPERTY_SEPARATOR):
        kind, *fields = line.split(NAME_VALUE_SEPARATOR)
        names = _FIELDS.get(kind, ())
        if kind == "Pub" and len(fields) == len(names) - 1:  # before 4.2 no id of the broker
            fields.insert(-1, "null")
        given = {name: value for name, value in zip(names, fields, strict=False) if value not in ("", "null")}
        if names:
            numbers = {name: int(value) for name, value in given.items() if name in _NUMBERS}
            found.append({"kind": kind, **given, **numbers})
    return found


@attrs.frozen
class Line:
    """One line, and the keys under which it is found."""

    text: str
    keys: frozenset[str]


def published(
    group: str,
    topic: str,
    result: SendResult,
    properties: Mapping[str, str],
    answer: Mapping[str, str],
    *,
    broker_addr: str,
    body_bytes: int,
    began_ms: int,
    ended_ms: int,
) -> Line | None:
    """Return the line of a stored message; None where the broker wants no traces."""
    if answer.get(TRACE_ON) == "false" or REGION not in answer:
        return None
    kind = DELAYED if PROPERTY_DELAY in properties else NORMAL
    if PROPERTY_TRANSACTION_PREPARED in properties:
        kind = HALF
    keys = properties.get(PROPERTY_KEYS)
    head = ("Pub", began_ms, answer[REGION], group, topic, result.message_id, properties.get(PROPERTY_TAGS), keys)
    more = (broker_addr, body_bytes, ended_ms - began_ms, kind, result.offset_message_id, result.status.value == 0)
    return _line(result.message_id, keys, *head, *more)


def before(group: str, messages: Sequence[ReceivedMessage], *, request_id: str, now_ms: int) -> list[Line]:
    """Return the lines of messages that a handler gets."""
    return [
        _line(
            message.message_id,
            _keys(message),
            *("SubBefore", now_ms, message.properties.get(REGION), group, request_id),
            *(message.message_id, message.reconsume_times, _keys(message)),
        )
        for message in messages
        if _is_traced(message)
    ]


def after(
    group: str,
    messages: Sequence[ReceivedMessage],
    error: Exception | None,
    *,
    request_id: str,
    began_ms: int,
    ended_ms: int,
) -> list[Line]:
    """Return the lines of messages whose handler has ended; ``began_ms`` is the time of their first lines."""
    code = SUCCESS
    if error is not None:
        code = FAILED if isinstance(error, Later | Reject) else EXCEPTION
        code = TIME_OUT if isinstance(error, TimeoutError) else code
    cost = (ended_ms - began_ms) // len(messages)
    return [
        _line(
            message.message_id,
            _keys(message),
            *("SubAfter", request_id, message.message_id, cost, error is None, _keys(message), code, began_ms, group),
        )
        for message in messages
        if _is_traced(message)
    ]


def ended(
    group: str,
    topic: str,
    message_id: str,
    transaction_id: str | None,
    state: int,
    *,
    tags: str | None,
    keys: str | None,
    broker_addr: str,
    from_check: bool,
    now_ms: int,
) -> Line:
    """Return the line of the end of a transaction."""
    head = ("EndTransaction", now_ms, "", group, topic, message_id, tags, keys, broker_addr)
    return _line(message_id, keys, *head, COMMIT, transaction_id, _STATES.get(state, "UNKNOW"), from_check)


def _is_traced(message: ReceivedMessage) -> bool:
    return message.properties.get(TRACE_ON) != "false"


def _keys(message: ReceivedMessage) -> str | None:
    return message.properties.get(PROPERTY_KEYS)


def _line(message_id: str, keys: str | None, *fields: object) -> Line:
    text = NAME_VALUE_SEPARATOR.join(map(_text, fields)) + PROPERTY_SEPARATOR
    return Line(text, frozenset([message_id, *split_keys(keys)]))


def _text(value: object) -> str:
    """Return a field as Java's StringBuilder writes it."""
    if value is None:
        return "null"
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
