"""``rmq-admin ping``: send small messages and show how long brokers take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import attrs

from rmq.admin import columns
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
    seconds,
    subject,
    tabular,
)
from rmq.admin.lookups import cluster_info, one_cluster
from rmq.admin.sending import plan_send, producer
from rmq.client.types import Message, SendResult
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
    only_mqadmin("-i", "--interval", dest="watch", type=seconds, metavar="SECONDS", help="as --watch"),
    ignored("-p", "--print-log"),
    ignored("-m", "--machine-room"),
    changes=True,
)
async def cluster_ping(call: Call) -> Outcome:
    """Status 1 when a message is not confirmed."""
    cluster, names = one_cluster(call, await cluster_info(call))
    outcome, sends = await _ping(call, names)
    return attrs.evolve(outcome, mqadmin_text=columns.cluster_times(cluster, sends) if sends else None)


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
    outcome, sends = await _ping(call, [call.options.brokerName])
    return attrs.evolve(outcome, mqadmin_text=columns.broker_times(chain(*sends.values())) if sends else None)


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
    outcome, sends = await _ping(call, [call.options.topic])
    return attrs.evolve(outcome, mqadmin_text=columns.topic_times(sends[call.options.topic]) if sends else None)


async def _ping(call: Call, topics: Sequence[str]) -> tuple[Outcome, dict[str, list[columns.Timed]]]:
    """
    Send one message after the other; the first one opens connections and does not count.

    Return the result and the sends of each topic, none of them with ``--dry-run``.
    """
    options = call.options
    rows = []
    sends: dict[str, list[columns.Timed]] = {}
    clock = call.platform.reactor
    async with producer(call) as sender:
        for topic in topics:
            message = Message(topic, b"a" * options.size)
            if call.is_dry:
                plan_send(call, message)
                continue
            sent: list[columns.Timed] = []
            failed, why = 0, None
            for _ in range(options.count + 1):
                began = clock.seconds()
                result: SendResult | None = None
                try:
                    result = await sender.send(message)
                except NotDelivered as error:
                    failed, why = failed + 1, str(error)
                sent.append((result, (clock.seconds() - began) * 1000))
            sends[topic] = sent[1:]
            times_ms = [ms for result, ms in sends[topic] if result is not None]
            mean = sum(times_ms) / len(times_ms) if times_ms else None
            rows.append((topic, len(times_ms), failed, mean, max(times_ms, default=None), why))
    status = REFUSED if any(row[2] for row in rows) else 0
    titles = ("topic", "sent", "failed", "mean_ms", "max_ms", "last_error")
    return tabular(titles, rows, nothing="", status=status), sends
