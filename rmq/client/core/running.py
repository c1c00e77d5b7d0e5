"""
The settings of a consumer under the names that Java's tools and dashboards know.

Java: MixAll#object2Properties of a DefaultMQPushConsumer
"""

from __future__ import annotations

from datetime import datetime

from rmq.client.settings import PullingSettings, PushSettings


def running_properties(settings: PullingSettings) -> dict[str, str]:
    """Return them as texts: sizes in MiB, ``consumeTimeout`` in minutes, ``consumeTimestamp`` in local time."""
    found = {
        "consumeFromWhere": settings.consume_from.value,
        "allocateMessageQueueStrategy": getattr(settings.strategy, "__name__", repr(settings.strategy)),
        "pullBatchSize": str(settings.pull_batch),
        "pullThresholdForQueue": str(settings.queue_messages),
        "pullThresholdSizeForQueue": str(settings.queue_bytes >> 20),
        "consumeConcurrentlyMaxSpan": str(settings.queue_span),
    }
    if settings.consume_from_ms is not None:
        found["consumeTimestamp"] = datetime.fromtimestamp(settings.consume_from_ms / 1000).strftime("%Y%m%d%H%M%S")
    if isinstance(settings, PushSettings):
        found |= {
            "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
            "consumeThreadMin": str(settings.concurrency),
            "consumeThreadMax": str(settings.concurrency),
            "consumeMessageBatchMaxSize": str(settings.batch_size),
            "consumeTimeout": str(round(settings.consume_timeout_s / 60)),
            "maxReconsumeTimes": str(settings.max_reconsume_times),
            "suspendCurrentQueueTimeMillis": str(settings.suspend_queue_ms),
            "awaitTerminationMillisWhenShutdown": str(round(settings.drain_timeout_s * 1000)),
        }
    return found
