"""The settings of clients, producers and consumers; times in seconds unless a name says otherwise."""

from __future__ import annotations

import enum

import attrs

from rmq.client.core.allocate import AVERAGE, Strategy
from rmq.client.core.codec import Compression


class From(enum.Enum):
    """Where a group without an offset begins.  Java: ConsumeFromWhere"""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@attrs.frozen(kw_only=True)
class ClientSettings:
    """
    ``client_ip`` None: the local address of the first connection; ``instance_name`` None: one that is unique.

    ``trace``: every message is traced from its send to its handler, with True in RMQ_SYS_TRACE_TOPIC, else in the topic
    of this name. The brokers must have the topic (``traceTopicEnable``).
    """

    poll_routes_s: float = 30.0
    heartbeat_s: float = 30.0
    persist_offsets_s: float = 5.0
    rebalance_s: float = 20.0
    ask_timeout_s: float = 3.0
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

    send_timeout_s: float = 3.0
    retries: int = 2
    retry_other_broker_on_not_ok: bool = False
    strict: bool = False
    compress_over: int = 4096
    compression: Compression = Compression.ZLIB
    compress_level: int = 5
    max_message_bytes: int = 4 * 1024 * 1024
    default_topic: str = "TBW102"
    default_queues: int = 4
    max_in_flight: int = 10_000
    fault_latency: bool = False


@attrs.frozen(kw_only=True)
class PullingSettings:
    """
    How queues are read. A queue is not pulled while it has ``queue_messages``, ``queue_bytes`` or (concurrent handlers)
    offsets over ``queue_span`` in hand, nor while the consumer has ``max_cached_bytes`` in all queues.

    ``consume_from`` counts for a group without offsets; TIMESTAMP takes ``consume_from_ms`` (epoch milliseconds).
    """

    consume_from: From = From.LAST
    consume_from_ms: int | None = None
    strategy: Strategy = AVERAGE
    pull_batch: int = 32
    suspend_s: float = 15.0
    answer_s: float = 30.0
    queue_messages: int = 1000
    queue_bytes: int = 100 * 1024 * 1024
    queue_span: int = 2000
    max_cached_bytes: int = 256 * 1024 * 1024


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
    suspend_queue_ms: int = 1000
    concurrency: int = 20
    batch_size: int = 1
    max_reconsume_times: int = -1
    consume_timeout_s: float = 900.0
    drain_timeout_s: float = 30.0


@attrs.frozen(kw_only=True)
class PullSettings(PullingSettings):
    """With ``auto_commit`` the messages of one `getmany` are acknowledged by the next one, and by the close."""

    pull_batch: int = 10
    suspend_s: float = 20.0
    auto_commit: bool = True
