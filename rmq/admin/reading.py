"""Reads queues for commands, without joining a group and without committing anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from rmq.admin.command import Call
from rmq.admin.lookups import addresses_by_name, ask_each, route_of
from rmq.client.core.subscription import subscription, wanted
from rmq.client.flows.admin import received
from rmq.client.types import ReceivedMessage
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.pulling import PULL_MESSAGE, PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessageHeader
from rmq.wire.api.topics import GET_TOPIC_STATS_INFO, TopicHeader, TopicOffset
from rmq.wire.record import decode_records

#: the group of Apache's tools; brokers know it
GROUP = "TOOLS_CONSUMER"
BATCH = 32
#: a broker holds a pull for so long when there is nothing new
HOLD_MS = 1000


async def queues_of(call: Call, topic: str) -> dict[MessageQueue, tuple[str, TopicOffset]]:
    """Return the queues of a topic with the broker to ask and their offsets now; raises NotFound."""
    brokers = addresses_by_name((await route_of(call, topic)).broker_datas)
    answers = await ask_each(call, brokers.values(), GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
    return {queue: (addr, at) for addr, answer in answers for queue, at in sorted(answer.body.offset_table.items())}


async def read(
    call: Call,
    queue: MessageQueue,
    addr: str,
    begin: int,
    end: int | None,
    *,
    tags: str = "*",
    until: Callable[[], bool] = lambda: False,
) -> AsyncIterator[ReceivedMessage]:
    """Yield the messages from ``begin`` up to ``end``; without an end, until ``until`` says so after a pull."""
    subscribed = subscription(queue.topic, tags, version=0)
    offset = begin
    while not until() and (end is None or offset < end):
        header = PullMessageHeader(
            consumer_group=GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=BATCH,
            sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=HOLD_MS,
            subscription=subscribed.sub_string,
            sub_version=0,
            expression_type=subscribed.expression_type,
        )
        answer = await call.invoke(addr, PULL_MESSAGE, header, None)
        for record in decode_records(answer.body):
            message = received(record, queue.broker_name)
            if (end is None or record.queue_offset < end) and wanted(subscribed, message):
                yield message
        offset = answer.header.next_begin_offset
