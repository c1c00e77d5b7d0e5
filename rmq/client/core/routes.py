"""The queues of a topic's route, the addresses of brokers, and the names of topics."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rmq.errors import ConfigurationError
from rmq.wire.api.common import MASTER_ID, PERM_READ, PERM_WRITE, MessageQueue
from rmq.wire.api.routes import TopicRouteData
from rmq.wire.record import MAX_TOPIC_BYTES

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
#: Java: Validators#VALID_PATTERN_STR
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
MAX_GROUP_CHARS = 255


def publish_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """
    Return the queues that may be written, in Java's order.

    Java: MQClientInstance#topicRouteData2TopicPublishInfo
    """
    if route.order_topic_conf:
        pairs = (item.split(":") for item in route.order_topic_conf.split(";") if item)
        return [
            MessageQueue(topic=topic, broker_name=pair[0], queue_id=number)
            for pair in pairs
            for number in range(int(pair[1]))
        ]
    with_master = {data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs}
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & PERM_WRITE and data.broker_name in with_master
        for number in range(data.write_queue_nums)
    ]


def subscribe_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Return the queues that may be read.  Java: MQClientInstance#topicRouteData2TopicSubscribeInfo"""
    return [
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for number in range(data.read_queue_nums)
    ]


def broker_addrs(route: TopicRouteData) -> Iterator[tuple[str, int, str]]:
    """Yield (broker name, broker id, address) of all brokers of a route."""
    for data in route.broker_datas:
        for broker_id, addr in sorted(data.broker_addrs.items()):
            yield data.broker_name, broker_id, addr


def wrap(namespace: str | None, resource: str) -> str:
    """Return a topic or group within its namespace.  Java: NamespaceUtil#wrapNamespace"""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix + wrap(namespace, resource.removeprefix(prefix))
    if not namespace or resource.startswith((f"{namespace}%", "rmq_sys_", "CID_RMQ_SYS_", "RMQ_SYS_")):
        return resource
    return f"{namespace}%{resource}"


def unwrap(namespace: str | None, resource: str) -> str:
    """Return a topic or group as the program names it.  Java: NamespaceUtil#withoutNamespace"""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix + unwrap(namespace, resource.removeprefix(prefix))
    return resource.removeprefix(f"{namespace}%") if namespace else resource


def check_topic(topic: str) -> None:
    """Raise ConfigurationError for a name that no topic can have.  Java: Validators#checkTopic"""
    if not isinstance(topic, str) or not _NAME.fullmatch(topic) or len(topic) > MAX_TOPIC_BYTES:
        raise ConfigurationError(
            f"{topic!r} is no name of a topic: 1 to {MAX_TOPIC_BYTES} letters, digits, '-', '_', '%' or '|'"
        )


def check_group(group: str) -> None:
    """Raise ConfigurationError for a name that no group can have.  Java: Validators#checkGroup"""
    if not isinstance(group, str) or not _NAME.fullmatch(group) or len(group) > MAX_GROUP_CHARS:
        raise ConfigurationError(
            f"{group!r} is no name of a group: 1 to {MAX_GROUP_CHARS} letters, digits, '-', '_', '%' or '|'"
        )
