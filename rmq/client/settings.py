"""The settings of clients, producers and consumers; times in seconds unless a name says otherwise."""

from __future__ import annotations

import enum
from collections.abc import Callable

import attrs

from rmq.client.core.allocate import AVERAGE, Strategy
from rmq.client.core.codec import Compression
from rmq.errors import ConfigurationError


class From(enum.Enum):
    """Where a group without an offset begins.  Java: ConsumeFromWhere"""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def _whole(least: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    """Return what refuses all but whole numbers from ``least`` on."""

    def check(settings: object, attribute: attrs.Attribute[int], value: int) -> None:
        if not isinstance(value, int) or value < least:
            raise ConfigurationError(f"{attribute.name} is a whole number of at least {least}, not {value!r}")

    return check


def _seconds(settings: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{attribute.name} is a number of seconds above 0, not {value!r}")


def _seconds_or_none(settings: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not isinstance(value, int | float) or not value >= 0:
        raise ConfigurationError(f"{attribute.name} is a number of seconds, not {value!r}")


def check_timeout(timeout_s: float | None, *, may_be_zero: bool = False) -> None:
    """Refuse the ``timeout_s`` of a call that leaves no time, or is none; None is the default."""
    if timeout_s is None:
        return
    if not isinstance(timeout_s, int | float) or not (timeout_s > 0 or (may_be_zero and timeout_s == 0)):
        least = "of at least 0" if may_be_zero else "above 0"
        raise ConfigurationError(f"timeout_s is a number of seconds {least}, not {timeout_s!r}")


def _from(settings: object, attribute: attrs.Attribute[From], value: From) -> None:
    if not isinstance(value, From):
        raise ConfigurationError(f"{attribute.name} is one of {', '.join(map(str, From))}, not {value!r}")


def check_kind(settings: object, kind: type) -> None:
    """Refuse the settings of something else, and what is none."""
    if not isinstance(settings, kind):
        raise ConfigurationError(f"{kind.__name__}(...) is wanted here, not {settings!r:.60}")


@attrs.frozen(kw_only=True)
class ClientSettings:
    """
    ``client_ip`` None: the local address of the first connection; ``instance_name`` None: one that is unique.

    ``trace``: every message is traced from its send to its handler, with True in RMQ_SYS_TRACE_TOPIC, else in the topic
    of this name. The brokers must have the topic (``traceTopicEnable``).
    """

    poll_routes_s: float = attrs.field(default=30.0, validator=_seconds)
    heartbeat_s: float = attrs.field(default=30.0, validator=_seconds)
    persist_offsets_s: float = attrs.field(default=5.0, validator=_seconds)
    rebalance_s: float = attrs.field(default=20.0, validator=_seconds)
    ask_timeout_s: float = attrs.field(default=3.0, validator=_seconds)
    client_ip: str | None = None
    instance_name: str | None = None
    unit_name: str | None = None
    namespace: str | None = None
    trace: bool | str = False


@attrs.frozen(kw_only=True)
class ProducerSettings:
    """
    ``send_timeout_s`` is for the whole call: route, connection, retries and answer. ``retries`` follow the first try.

    Bodies from ``compress_over`` bytes on are compressed. LZ4 and ZSTD need the extras ``lz4`` and ``zstandard``, and
    consumers that can read them. With ``strict`` a send raises NotDurable where a message is stored, but less safe than
    the broker is configured for. ``default_queues`` counts for topics that the first send creates. ``send`` waits while
    ``max_in_flight`` messages wait for their answers. With ``fault_latency`` a broker that failed or was slow gets no
    message for half a minute to ten minutes, while another one can take them.
    """

    send_timeout_s: float = attrs.field(default=3.0, validator=_seconds)
    retries: int = attrs.field(default=2, validator=_whole(0))
    retry_other_broker_on_not_ok: bool = False
    strict: bool = False
    compress_over: int = attrs.field(default=4096, validator=_whole(0))
    compression: Compression = Compression.ZLIB
    compress_level: int = 5
    max_message_bytes: int = attrs.field(default=4 * 1024 * 1024, validator=_whole(1))
    default_topic: str = "TBW102"
    default_queues: int = attrs.field(default=4, validator=_whole(1))
    max_in_flight: int = attrs.field(default=10_000, validator=_whole(1))
    fault_latency: bool = False


@attrs.frozen(kw_only=True)
class PullingSettings:
    """
    How queues are read. A queue is not pulled while it has ``queue_messages``, ``queue_bytes`` or (concurrent handlers)
    offsets over ``queue_span`` in hand, nor while the consumer has ``max_cached_bytes`` in all queues.

    ``consume_from`` counts for a group without offsets; TIMESTAMP takes ``consume_from_ms`` (epoch milliseconds).
    """

    consume_from: From = attrs.field(default=From.LAST, validator=_from)
    consume_from_ms: int | None = None
    strategy: Strategy = AVERAGE
    pull_batch: int = attrs.field(default=32, validator=_whole(1))
    suspend_s: float = attrs.field(default=15.0, validator=_seconds_or_none)
    answer_s: float = attrs.field(default=30.0, validator=_seconds)
    queue_messages: int = attrs.field(default=1000, validator=_whole(1))
    queue_bytes: int = attrs.field(default=100 * 1024 * 1024, validator=_whole(1))
    queue_span: int = attrs.field(default=2000, validator=_whole(1))
    max_cached_bytes: int = attrs.field(default=256 * 1024 * 1024, validator=_whole(1))


@attrs.frozen(kw_only=True)
class PushSettings(PullingSettings):
    """
    ``concurrency`` handlers run at once, each with up to ``batch_size`` messages. A handler that runs longer than
    ``consume_timeout_s`` is cancelled. ``max_reconsume_times`` -1: 16. A close waits ``drain_timeout_s`` for handlers.

    ``orderly``: the messages of a queue are handled one after the other. One that fails is tried again after
    ``suspend_queue_ms``, ``max_reconsume_times`` times (-1: without end); handlers have no timeout.
    """

    broadcast: bool = False
    orderly: bool = False
    suspend_queue_ms: int = attrs.field(default=1000, validator=_whole(0))
    concurrency: int = attrs.field(default=20, validator=_whole(1))
    batch_size: int = attrs.field(default=1, validator=_whole(1))
    max_reconsume_times: int = attrs.field(default=-1, validator=_whole(-1))
    consume_timeout_s: float = attrs.field(default=900.0, validator=_seconds)
    drain_timeout_s: float = attrs.field(default=30.0, validator=_seconds_or_none)


@attrs.frozen(kw_only=True)
class PullSettings(PullingSettings):
    """With ``auto_commit`` the messages of one `getmany` are acknowledged by the next one, and by the close."""

    pull_batch: int = attrs.field(default=10, validator=_whole(1))
    suspend_s: float = attrs.field(default=20.0, validator=_seconds_or_none)
    auto_commit: bool = True
