"""A message as commands print it, and what of it is sent again."""

from __future__ import annotations

import argparse
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from rmq.admin.times import time_text
from rmq.client.types import ReceivedMessage
from rmq.wire.record import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)

#: properties that a message has because of how it was sent, stored or read
_OF_ITS_WAY = {
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    "MAX_OFFSET",
    "MIN_OFFSET",
    "MSG_REGION",
    "TRACE_ON",
}


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a copy of the message has too."""
    return {name: value for name, value in properties.items() if name not in _OF_ITS_WAY}


#: what commands print of bodies: text where it is UTF-8, otherwise base64; or always so; or nothing
BODY_FORMS = ("text", "base64", "hex", "none")


def stored_topic(message: ReceivedMessage) -> str:
    """Return where a message is stored, as mqadmin has it: ``%DLQ%<group>`` for a dead letter."""
    return message.record.topic


def described(
    message: ReceivedMessage, body_form: str = "text", topic_of: Callable[[ReceivedMessage], str] = stored_topic
) -> dict[str, Any]:
    """Return a message for JSON; ``body`` is text, ``body_base64`` what is no UTF-8, unless ``body_form`` says so."""
    data = {
        "topic": topic_of(message),
        "origin_topic": message.origin_topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": list(message.keys),
        "properties": message.properties,
        "born": time_text(message.born_ms),
        "born_host": message.born_host,
        "stored": time_text(message.stored_ms),
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
    }
    return {**data, **_body(message, body_form)}


def _body(message: ReceivedMessage, form: str) -> dict[str, str]:
    error = None
    try:
        body = message.body
    except ValueError as unknown:  # compressed in a way that is not known here
        body, error = message.record.body, str(unknown)
        form = "base64" if form == "text" else form
    if form == "text":
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            form = "base64"
    shown = {"base64": {"body_base64": b64encode(body).decode()}, "hex": {"body_hex": body.hex()}, "none": {}}[form]
    return shown if error is None else {**shown, "body_error": error}


def body_text(data: Mapping[str, str]) -> str | None:
    """Return the body of what `described` returned, in one word where it is no text; None where it is left out."""
    if "body_base64" in data:
        return f"base64:{data['body_base64']}"
    return f"hex:{data['body_hex']}" if "body_hex" in data else data.get("body")


def formatted(form: str, message: ReceivedMessage, body_form: str) -> str:
    """
    Return a message as ``form`` has it: each % with a letter of `LETTERS` stands for a field, as kcat has it.

    ValueError for another letter.
    """
    data = described(message, body_form)
    fields = {
        "t": data["topic"],
        "q": f"{data['broker']}:{data['queue']}",
        "o": str(data["offset"]),
        "k": " ".join(data["keys"]),
        "g": data["tags"] or "",
        "i": data["message_id"],
        "b": body_text(data) or "",
        "B": str(len(message.record.body)),
        "d": data["stored"] or "",
        "p": " ".join(f"{name}={value}" for name, value in own_properties(data["properties"]).items()),
        "%": "%",
    }
    return re.sub("%(.)", lambda found: fields[found[1]], form)


#: the letters of `formatted`
LETTERS = "tqokgibBdp%"


def checked_format(text: str) -> str:
    r"""Return a format whose \t and \n are replaced; for ``argparse``, which refuses what has an unknown letter."""
    unknown = [found for found in re.findall("%(.?)", text) if not found or found not in LETTERS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"%{unknown[0]} in {text!r} is none of {' '.join(f'%{one}' for one in LETTERS)}"
        )
    return text.replace("\\t", "\t").replace("\\n", "\n")
