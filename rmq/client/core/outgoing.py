"""
A message as it is sent: checked, with its properties, compressed; and what a failed try means.

Java: DefaultMQProducerImpl#sendKernelImpl, Validators#checkMessage
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import attrs

from rmq.client.core import codec
from rmq.client.core.routes import RETRY_PREFIX, check_topic, wrap
from rmq.client.settings import ProducerSettings
from rmq.client.types import Message, ReceivedMessage, SendStatus
from rmq.errors import BadAnswer, ConfigurationError, Refused, RequestFailed
from rmq.wire.codes import ResponseCode
from rmq.wire.record import (
    HOST_MASK,
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    TRANSACTION_MASK,
    BatchEntry,
    encode_batch,
    encode_properties,
    java_hash,
)

#: what a broker may refuse today and another may accept.  Java: DefaultMQProducer#retryResponseCodes
RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
# Java: MessageConst
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TTL = "TTL"
_OF_REQUESTS = (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, PROPERTY_TTL)
#: what the copy of a message in a retry topic does not have
_NOT_AGAIN = frozenset(
    {PROPERTY_TRANSACTION_PREPARED, PROPERTY_MAX_RECONSUME_TIMES, "RECONSUME_TIME", PROPERTY_DELAY, "REAL_QID"}
)
_NOTHING: Mapping[str, str] = MappingProxyType({})
_OWN_PROPERTIES = frozenset({PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_WAIT, PROPERTY_DELAY, PROPERTY_UNIQ_KEY})
#: with TRAN_MSG a broker acknowledges a message that nobody sees; the others are taken for the topic and its queue
_MISLEADING = frozenset(
    {PROPERTY_TRANSACTION_PREPARED, PROPERTY_RETRY_TOPIC, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID}
)


@attrs.frozen
class Outgoing:
    """What goes into a request: the topic with its namespace, body and properties as stored."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_reply: bool = False
    messages: int = 1


def single(
    message: Message,
    message_id: str,
    settings: ProducerSettings,
    namespace: str | None,
    more: Mapping[str, str] = _NOTHING,
) -> Outgoing:
    """Return one message; ``more`` are properties of ours. ConfigurationError for what no broker would take."""
    try:
        properties = {**_properties(message, message_id), **more}
        body, bits = message.body, 0
        _check_size(len(body), settings)
        if len(body) >= settings.compress_over:
            body, bits = codec.compress(body, settings.compress_level, settings.compression)
        topic = _topic(message, namespace)
        return Outgoing(topic, body, _encoded(properties), message_id, message.flag, bits)
    except (TypeError, AttributeError) as error:
        raise _wrong_type(error) from error


def batch(
    messages: Sequence[Message],
    message_ids: Sequence[str],
    settings: ProducerSettings,
    namespace: str | None,
    more: Callable[[int], Mapping[str, str]] = lambda index: _NOTHING,
) -> Outgoing:
    """Return messages of one topic, without delay, as one request; ``more`` are properties of ours, by index."""
    first = messages[0]
    entries = []
    for index, (message, message_id) in enumerate(zip(messages, message_ids, strict=True)):
        if (message.topic, message.wait_store_ok) != (first.topic, first.wait_store_ok):
            raise ConfigurationError("the messages of a batch have one topic and one wait_store_ok")
        if message.delay_level:
            raise ConfigurationError("the messages of a batch cannot be delayed")
        try:
            properties = {**_properties(message, message_id), **more(index)}
            entries.append(BatchEntry(message.body, _encoded(properties), message.flag))
        except (TypeError, AttributeError) as error:
            raise _wrong_type(error) from error
    try:
        body, topic = encode_batch(entries), _topic(first, namespace)
    except (TypeError, AttributeError) as error:
        raise _wrong_type(error) from error
    _check_size(len(body), settings)
    wait = encode_properties({PROPERTY_WAIT: _bool(first.wait_store_ok)})
    return Outgoing(topic, body, wait, ",".join(message_ids), is_batch=True, messages=len(messages))


def reply(request: ReceivedMessage, body: bytes, message_id: str, more: Mapping[str, str] = _NOTHING) -> Outgoing:
    """
    Return the answer to a message that was sent with `request`; ConfigurationError for another one.

    ``more`` are properties of ours.

    Java: MessageUtil#createReplyMessage
    """
    _check_body(body)
    properties = {name: request.properties.get(name, "") for name in _OF_REQUESTS}
    cluster = request.properties.get(PROPERTY_CLUSTER)
    if not cluster or not properties[PROPERTY_CORRELATION_ID] or not properties[PROPERTY_REPLY_TO_CLIENT]:
        raise ConfigurationError(f"{request} is no request: its sender waits for no reply")
    properties |= {PROPERTY_MESSAGE_TYPE: "reply", PROPERTY_UNIQ_KEY: message_id, **more}
    text = encode_properties({name: value for name, value in properties.items() if value})
    return Outgoing(reply_topic(request), body, text, message_id, is_reply=True)


def reply_topic(request: ReceivedMessage) -> str:
    """Return the topic of the answers to a request."""
    return f"{request.properties.get(PROPERTY_CLUSTER, '')}_REPLY_TOPIC"


def again(message: ReceivedMessage, group: str, max_reconsume_times: int) -> Outgoing:
    """
    Return a message for the retry topic of a group, for a consumer whose send-back was refused.

    Java: DefaultMQPushConsumerImpl#sendMessageBack
    """
    properties = {k: v for k, v in message.properties.items() if k not in _NOT_AGAIN}
    properties.setdefault(PROPERTY_RETRY_TOPIC, message.record.topic)
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[PROPERTY_DELAY] = str(3 + message.reconsume_times)
    return Outgoing(
        RETRY_PREFIX + group,
        message.record.body,
        encode_properties(properties),
        message.message_id,
        message.record.flag,
        message.record.sys_flag & ~(TRANSACTION_MASK | HOST_MASK),
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=max_reconsume_times,
    )


def is_retried(error: RequestFailed) -> bool:
    """Whether another try may succeed."""
    return error.code in RETRIED_CODES if isinstance(error, Refused) else not isinstance(error, BadAnswer)


def less_safe(status: SendStatus, broker_name: str) -> Refused:
    """Return the failure of a try whose message is stored, but less safe than the broker is configured for."""
    return Refused(status.value, "the message is stored, less safe", broker_name, said=f"answered {status.name}")


def keyed_index(sharding_key: str, queues: int) -> int:
    """Return the queue that Java takes for this text.  Java: SelectMessageQueueByHash"""
    value = java_hash(sharding_key)
    # Java's remainder has the sign of the dividend
    return abs(value) % queues


def _wrong_type(error: Exception) -> ConfigurationError:
    return ConfigurationError(f"a field of the message has a wrong type: {error}")


def _topic(message: Message, namespace: str | None) -> str:
    check_topic(message.topic)
    topic = wrap(namespace, message.topic)
    if topic is not message.topic:
        check_topic(topic)
    return topic


def _check_size(size: int, settings: ProducerSettings) -> None:
    if size > settings.max_message_bytes:
        raise ConfigurationError(f"{size} bytes are more than max_message_bytes, {settings.max_message_bytes}")


def _check_body(body: object) -> None:
    """Refuse what is no bytes: as an object it would become JSON on its way, a bytearray too."""
    if not isinstance(body, bytes):
        kind, hint = ("text", "encode it") if isinstance(body, str) else (repr(body)[:40], "make bytes of it")
        raise ConfigurationError(f"a body is bytes, not {kind}: {hint}")


def _properties(message: Message, message_id: str) -> dict[str, str]:
    _check_body(message.body)
    if isinstance(message.keys, str):
        raise ConfigurationError(f"keys are several texts, not one: ({message.keys!r},)")
    if not isinstance(message.flag, int) or not -(2**31) <= message.flag < 2**31:
        raise ConfigurationError(f"a flag is a whole number of 32 bits, not {message.flag!r}")
    if not isinstance(message.delay_level, int):
        raise ConfigurationError(f"a delay_level is a whole number, not {message.delay_level!r}")
    if message.delay_level < 0:
        raise ConfigurationError(f"delay_level {message.delay_level} is below 0")
    properties = dict(message.properties)
    for name, value in properties.items():
        if name in _OWN_PROPERTIES:
            text = "is set by a field of the message, or by the producer; to pass on a received message, take its"
            raise ConfigurationError(f"property {name} {text} user_properties")
        if name in _MISLEADING and not (name == PROPERTY_RETRY_TOPIC and message.topic.startswith(RETRY_PREFIX)):
            text = "is for clients and brokers only; to pass on a received message, take its user_properties"
            raise ConfigurationError(f"property {name} {text}")
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"property {name!r} is no text, but {value!r}")
        if not name or not value:
            raise ConfigurationError(f"property {name!r} has an empty name or value")
    for key in message.keys:
        if not isinstance(key, str):
            raise ConfigurationError(f"a key is a text, not {key!r}")
        if not key or " " in key:
            raise ConfigurationError(f"{key!r} is no key: blanks separate keys")
    if message.keys:
        properties[PROPERTY_KEYS] = " ".join(message.keys)
    properties[PROPERTY_UNIQ_KEY] = message_id
    properties[PROPERTY_WAIT] = _bool(message.wait_store_ok)
    if message.delay_level:
        properties[PROPERTY_DELAY] = str(int(message.delay_level))
    if message.tags:
        if not isinstance(message.tags, str):
            raise ConfigurationError(f"tags are a text, not {message.tags!r}")
        properties[PROPERTY_TAGS] = message.tags
    return properties


def _encoded(properties: dict[str, str]) -> str:
    text = encode_properties(properties)
    if text.count(NAME_VALUE_SEPARATOR) + text.count(PROPERTY_SEPARATOR) != 2 * len(properties) - 1:
        for name, value in properties.items():
            if any(sign in text for text in (name, value) for sign in (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)):
                raise ConfigurationError(f"property {name!r} holds one of the bytes 1 and 2, which separate properties")
    size = len(text)
    if not text.isascii():  # which Python knows of a text without a look at it
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"keys, tags or properties cannot be sent as UTF-8: {error}") from None
    if size > MAX_PROPERTIES_BYTES:
        raise ConfigurationError(f"the properties have more than {MAX_PROPERTIES_BYTES} bytes")
    return text


def _bool(value: bool) -> str:
    return "true" if value else "false"
