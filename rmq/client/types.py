"""What users give and get: messages, results, subscriptions, and what a handler may raise."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address

import attrs

from rmq.client.core import codec
from rmq.client.core.routes import DLQ_PREFIX, RETRY_PREFIX, unwrap
from rmq.errors import ConfigurationError, RocketMqError
from rmq.wire.api.common import MessageQueue
from rmq.wire.record import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SCHEDULE_TOPIC,
    SYSTEM_PROPERTIES,
    Record,
    split_keys,
)
from rmq.wire.signing import Credentials

__all__ = [
    "CloseReport",
    "Credentials",
    "Later",
    "Message",
    "MessageQueue",
    "NotDurable",
    "ReceivedMessage",
    "Reject",
    "SendResult",
    "SendStatus",
    "Sql",
]


@attrs.frozen
class Message:
    """
    A message to send. ``keys`` find it later; ``delay_level`` 1 to 18 delivers it later, 0 at once.

    ``wait_store_ok`` False: the broker does not wait for its disk and its slaves.  Java: Message
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    delay_level: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict)
    flag: int = 0
    wait_store_ok: bool = True


class SendStatus(enum.Enum):
    """OK, or stored but less safe than the broker is configured for.  Java: SendStatus"""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@attrs.frozen
class SendResult:
    """
    Where a message lies. ``message_id`` was made by the producer, ``offset_message_id`` by the broker; for a batch both
    join the ids of all messages with commas, and ``queue_offset`` is that of the first. ``half`` is the message of a
    transaction that has begun.

    Java: SendResult
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    half: Message | None = attrs.field(default=None, repr=False)


class NotDurable(RocketMqError):
    """
    A message is stored, but less safe than the broker is configured for; ``result`` says where and why.

    Raised by sends of a producer with ``strict``. Who sends again may have the message twice.
    """

    def __init__(self, result: SendResult) -> None:
        queue = result.queue
        where = f"{queue.broker_name}, queue {queue.queue_id} of {queue.topic}, offset {result.queue_offset}"
        super().__init__(f"message {result.message_id} is stored at {where}, but not safely: {result.status.name}")
        self.result = result


@attrs.frozen
class Sql:
    """A subscription by an SQL92 expression over properties: ``Sql("price > 10 AND TAGS = 'A'")``."""

    expression: str


def check_later(delay_level: int) -> None:
    """Refuse a level that no delay has: one below 0 makes a dead letter of a message."""
    if not isinstance(delay_level, int) or delay_level < 0:
        text = f"a delay_level is a whole number of at least 0, not {delay_level!r}"
        raise ConfigurationError(f"{text}; for a dead letter there is reject, or Reject in a handler")


class Later(RocketMqError):
    """
    Raised by a handler: deliver the message again, after ``delay_level`` (0: the broker chooses by the tries so far).

    With a batch, the messages before ``from_index`` are acknowledged.
    """

    def __init__(self, delay_level: int = 0, from_index: int = 0) -> None:
        check_later(delay_level)
        if not isinstance(from_index, int) or from_index < 0:
            raise ConfigurationError(f"from_index is a whole number of at least 0, not {from_index!r}")
        super().__init__(f"later, with delay level {delay_level}")
        self.delay_level = delay_level
        self.from_index = from_index


class Reject(RocketMqError):
    """Raised by a handler: the message goes to the dead letter queue ``%DLQ%<group>`` at once."""


@attrs.frozen
class CloseReport:
    """What a close did: handlers that did not end in time, queues whose offset was written and those where not."""

    handlers_cancelled: int = 0
    offsets_written: int = 0
    offsets_not_written: int = 0

    def plus(self, other: CloseReport) -> CloseReport:
        """Return the sum of two reports."""
        return CloseReport(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))


class ReceivedMessage:
    """
    A message as a consumer gets it; times are epoch milliseconds, hosts ``ip:port``, ``[ip]:port`` with IPv6.

    ``topic`` is the one that its consumer subscribes to: of a retry the one it was sent to, of a dead letter
    ``%DLQ%<group>``. ``origin_topic`` is the one it was sent to, of dead letters and messages that are delayed too.
    ``queue`` is the queue it was pulled from (that of a retry topic after a failure), ``reconsume_times`` the
    deliveries before this one. Nothing is decoded before its first use.  Java: MessageExt
    """

    def __init__(self, record: Record, queue: MessageQueue, namespace: str | None = None) -> None:
        self.record = record
        self.queue = queue
        self._namespace = namespace
        self.queue_offset = record.queue_offset
        self.reconsume_times = record.reconsume_times
        self.commit_log_offset = record.phy_offset
        self.born_ms = record.born_timestamp
        self.stored_ms = record.store_timestamp

    @cached_property
    def properties(self) -> dict[str, str]:
        return self.record.property_map

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the program of the sender set, for a message that passes them on."""
        return {name: value for name, value in self.properties.items() if name not in SYSTEM_PROPERTIES}

    @cached_property
    def body(self) -> bytes:
        """The body, decompressed; a ValueError when it cannot be."""
        return codec.decompress(self.record.body, self.record.sys_flag)

    @property
    def topic(self) -> str:
        """Java: DefaultMQPushConsumerImpl#resetRetryAndNamespace"""
        topic = self.record.topic
        if topic.startswith(RETRY_PREFIX):
            topic = self.properties.get(PROPERTY_RETRY_TOPIC) or topic
        return unwrap(self._namespace, topic)

    @property
    def origin_topic(self) -> str:
        topic = self.record.topic
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            topic = self.properties.get(PROPERTY_RETRY_TOPIC) or topic
        elif topic == SCHEDULE_TOPIC:  # retries wait there, too
            topic = self.properties.get(PROPERTY_RETRY_TOPIC) or self.properties.get(PROPERTY_REAL_TOPIC) or topic
        return unwrap(self._namespace, topic)

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(split_keys(self.properties.get(PROPERTY_KEYS)))

    @property
    def message_id(self) -> str:
        """The id that the producer made; of messages without one the offset message id."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return self.record.offset_msg_id

    @property
    def transaction_id(self) -> str | None:
        return self.properties.get("__transactionId__")

    @property
    def born_host(self) -> str:
        return _host(self.record.born_host)

    @property
    def store_host(self) -> str:
        return _host(self.record.store_host)

    def __repr__(self) -> str:
        queue = self.queue
        return f"<message {self.message_id} {queue.topic} {queue.broker_name}:{queue.queue_id} {self.queue_offset}>"


def _host(host: tuple[bytes, int]) -> str:
    address = ip_address(host[0])
    return f"[{address}]:{host[1]}" if address.version == 6 else f"{address}:{host[1]}"
