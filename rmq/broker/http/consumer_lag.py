"""Consumer lag of groups, from the offsets that they committed."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from rmq.broker.offsets import TOPIC_GROUP_SEPARATOR
from rmq.broker.service import BrokerService
from rmq.store.store import MessageStore


@attrs.frozen(kw_only=True)
class Lag:
    """
    One group on one topic of this broker.

    ``messages`` were stored after the committed offsets. ``behind`` has the queues with a lag: (queueId, offset of the
    first message that is not consumed). ``is_online``: a member is connected.
    Java: ConsumerLagCalculator.CalculateLagResult
    """

    group: str
    topic: str
    messages: int
    behind: tuple[tuple[int, int], ...]
    is_online: bool


def lags(broker: BrokerService) -> Iterator[Lag]:
    """
    Yield the lag of each group that ever committed an offset; offsets may change between two of them.

    A group that was deleted has none, although its offsets may be kept (cleanOffset=false): it would never end.
    Java: ConsumerLagCalculator#calculateLag
    """
    store, consumers = broker.store, broker.consumers
    for key, committed in broker.offsets.snapshot().items():
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        is_online = consumers.find(group) is not None
        if broker.topics.get(topic) is None or not (is_online or broker.groups.get(group)):
            continue
        behind = []
        messages = 0
        for queue_id, offset in sorted(committed.items()):
            # Deleted messages cannot be consumed any more.
            first = max(offset, store.min_offset(topic, queue_id))
            left = store.max_offset(topic, queue_id) - first
            if left > 0:
                messages += left
                behind.append((queue_id, first))
        yield Lag(group=group, topic=topic, messages=messages, behind=tuple(behind), is_online=is_online)


def lag_ms(store: MessageStore, now_ms: int, lag: Lag) -> int:
    """Return the age of the oldest message that is not consumed; reads from the disk."""
    stored = [store.store_time_of(lag.topic, queue_id, offset) for queue_id, offset in lag.behind]
    known = [stored_ms for stored_ms in stored if stored_ms is not None]
    return max(0, now_ms - min(known)) if known else 0
