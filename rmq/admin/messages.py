"""A message as commands print it, and what of it is sent again."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from rmq.admin.times import time_text
from rmq.client.types import ReceivedMessage
from rmq.wire.record import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
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
    PROPERTY_TAGS,
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


def described(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message for JSON; ``body`` is text, ``body_base64`` what is no UTF-8."""
    data = {
        "topic": message.topic,
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
    try:
        return {**data, "body": message.body.decode()}
    except UnicodeDecodeError:
        return {**data, "body_base64": b64encode(message.body).decode()}
    except ValueError as error:  # compressed in a way that is not known here
        return {**data, "body_base64": b64encode(message.record.body).decode(), "body_error": str(error)}
