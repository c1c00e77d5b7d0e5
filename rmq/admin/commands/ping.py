"""``rmq-admin ping``: send small messages and show how long brokers take."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.admin.command import (
    NAMESRV,
    REFUSED,
    Call,
    Outcome,
    argument,
    command,
    ignored,
    only_mqadmin,
    positive,
    subject,
    tabular,
)
from rmq.admin.lookups import cluster_info, one_cluster
from rmq.admin.sending import plan_send, producer
from rmq.client.types import Message
from rmq.errors import NotDelivered

SIZE = argument(
    "--size", mqadmin=("-s", "--messageSize"), type=positive, default=128, metavar="BYTES", help="body (128)"
)


@command(
    "cluster ping",
    "send messages to each broker of a cluster, into the topic that has its name, and show how long it takes",
    NAMESRV,
    argument("-c", "--clusterName", "--cluster", metavar="CLUSTER", help="the cluster (default: the only one)"),
    SIZE,
    argument("--count", mqadmin=("-a", "--amount"), type=positive, default=10, metavar="N", help="messages each (10)"),
    only_mqadmin("-i", "--interval", dest="watch", type=float, metavar="SECONDS", help="as --watch"),
    ignored("-p", "--print-log"),
    ignored("-m", "--machine-room"),
    changes=True,
)
async def cluster_ping(call: Call) -> Outcome:
    """Status 1 when a message is not confirmed."""
    _, names = one_cluster(call, await cluster_info(call))
    return await _ping(call, names)


@command(
    "broker ping",
    "send messages to a broker, into the topic that has its name, and show how long it takes",
    NAMESRV,
    subject("brokerName", "-b", "--brokerName", metavar="BROKER_NAME"),
    SIZE,
    argument("--count", mqadmin=("-c",), type=positive, default=10, metavar="N", help="messages (10)"),
    changes=True,
)
async def broker_ping(call: Call) -> Outcome:
    """Status 1 when a message is not confirmed."""
    return await _ping(call, [call.options.brokerName])


@command(
    "topic ping",
    "send messages to a topic, where its consumers get them, and show how long it takes",
    NAMESRV,
    subject("topic", "-t", "--topic", metavar="TOPIC"),
    SIZE,
    argument("--count", mqadmin=("-a", "--amount"), type=positive, default=10, metavar="N", help="messages (10)"),
    changes=True,
)
async def topic_ping(call: Call) -> Outcome:
    """Status 1 when a message is not confirmed."""
    return await _ping(call, [call.options.topic])


async def _ping(call: Call, topics: Sequence[str]) -> Outcome:
    """Send one message after the other; the first one opens connections and does not count."""
    options = call.options
    rows = []
    clock = call.platform.reactor
    async with producer(call) as sender:
        for topic in topics:
            message = Message(topic, b"a" * options.size)
            if call.is_dry:
                plan_send(call, message)
                continue
            times_ms: list[float] = []
            failed, why = 0, None
            for number in range(options.count + 1):
                began = clock.seconds()
                try:
                    await sender.send(message)
                except NotDelivered as error:
                    failed, why = failed + 1, str(error)
                    continue
                if number:
                    times_ms.append((clock.seconds() - began) * 1000)
            mean = sum(times_ms) / len(times_ms) if times_ms else None
            rows.append((topic, len(times_ms), failed, mean, max(times_ms, default=None), why))
    status = REFUSED if any(row[2] for row in rows) else 0
    return tabular(("topic", "sent", "failed", "mean_ms", "max_ms", "last_error"), rows, nothing="", status=status)
