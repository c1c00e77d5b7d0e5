"""
The topics of a broker: ``config/topics.json``, system topics, and the creation of new ones.

Java: TopicConfigManager, TopicValidator
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IReactorTime

from rmq.broker.config import BrokerSetup
from rmq.broker.tables import Shape, VersionedTable
from rmq.runtime.disk.files import Disk
from rmq.store.multidispatch import is_lmq
from rmq.wire.api.common import (
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUB,
    TopicConfig,
    TopicConfigWrapper,
)
from rmq.wire.record import SCHEDULE_TOPIC

T = TypeVar("T")

AUTO_CREATE_TOPIC_KEY_TOPIC = "TBW102"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
REPLY_TOPIC_POSTFIX = "REPLY_TOPIC"
#: Where 5.x keeps messages until their time.  Java: TimerMessageStore#TIMER_TOPIC
TIMER_TOPIC = "rmq_sys_wheel_timer"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

#: One queue for each delay level.
SCHEDULE_QUEUES = 18
BENCHMARK_QUEUES = 1024
CLUSTER_QUEUES = 16
MAX_TOPIC_CHARS = 127

#: Topics that clients must not send to.  Java: TopicValidator#NOT_ALLOWED_SEND_TOPIC_SET
FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
#: Topics with queues and, at times, without a configuration
UNLISTED_TOPICS = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC})
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)


_SHAPE = Shape(
    file_name="topics.json",
    wrapper=TopicConfigWrapper,
    entry=TopicConfig,
    table="topic_config_table",
    member="topicConfigTable",
    name="topic_name",
    # of 5.x's static topics, which lie in a file of their own
    wire_only=frozenset({"mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap"}),
)


class TopicTable(VersionedTable[TopicConfig, TopicConfigWrapper]):
    """
    Topic configurations by name.

    With ``lmq`` every light message queue is a topic with one queue, and is not in the table.
    Java: TopicConfigManager, LmqTopicConfigManager
    """

    def __init__(self, disk: Disk, directory: str, clock: IReactorTime, *, lmq: bool = False) -> None:
        super().__init__(_SHAPE, disk, directory, clock)
        self._lmq = lmq
        self._created: Callable[[TopicConfig], Deferred[None]] = lambda topic: succeed(None)
        #: topics that the disk may not have yet, or after :meth:`create` the NameServers; fires when they do, or cannot
        self.announcing: dict[str, Deferred[None]] = {}
        #: :func:`hidden_topics` at the start of a master
        self.hidden: Mapping[str, int] = {}

    def get(self, name: str) -> TopicConfig | None:
        if self._lmq and is_lmq(name):
            return topic(name, 1)
        return super().get(name)

    def put(self, entry: TopicConfig) -> None:
        """Add a topic or change it; messages to it are answered when that is durable: they may be in a new queue."""
        if not (self._lmq and is_lmq(entry.topic_name)):
            super().put(entry)
            self._hold(entry.topic_name, self.saved())

    def on_created(self, register: Callable[[TopicConfig], Deferred[None]]) -> None:
        """Have ``register`` called with each topic after its :meth:`create`."""
        self._created = register

    def create(self, topic: TopicConfig) -> None:
        """Add a topic that a message or a consumer needs, also if the disk is full, and have it registered."""
        self.put(topic)
        self._hold(topic.topic_name, self.saved(), self._created(topic))

    def _hold(self, name: str, *until: Deferred[None]) -> None:
        """Answer messages to a topic when all of these have fired."""
        announced: Deferred[Any] = DeferredList(until, consumeErrors=True)

        def is_known(_: object) -> None:
            if self.announcing.get(name) is announced:  # else it was put again
                del self.announcing[name]

        if not announced.called:
            self.announcing[name] = announced.addCallback(is_known)

    def when_announced(self, name: str, result: T | Deferred[T]) -> T | Deferred[T]:
        """
        Return the result of a message to a topic, but not before the topic is durable and, if new, registered.

        Who has SEND_OK starts consumers next, and finds the message after a kill.
        """
        announced = self.announcing.get(name)
        if announced is None:
            return result

        async def both() -> T:
            stored = await result if isinstance(result, Deferred) else result
            await announced
            return stored

        return Deferred.fromCoroutine(both())

    def set_order_topics(self, order_topics: Collection[str]) -> list[str]:
        """
        Mark exactly these topics as ordered (ORDER_TOPIC_CONFIG of the NameServer); return those that changed.

        Java: TopicConfigManager#updateOrderTopicConfig
        """
        changed = [name for name, topic in self._entries.items() if topic.order != (name in order_topics)]
        for name in changed:
            self._entries[name] = msgspec.structs.replace(self._entries[name], order=name in order_topics)
        if changed:
            self._changed(changed)
        return changed


def topic(name: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    """Return a topic with as many read as write queues."""
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def default_topics(setup: BrokerSetup) -> list[TopicConfig]:
    """
    Return the topics that a broker has from its first start on.

    Java: TopicConfigManager#TopicConfigManager(BrokerController)
    """
    read_write = PERM_READ | PERM_WRITE
    inheritable = PERM_INHERIT | read_write
    switches, cluster = setup.broker, setup.broker.broker_cluster_name
    topics = [
        topic(SELF_TEST_TOPIC, 1),
        topic(BENCHMARK_TOPIC, BENCHMARK_QUEUES),
        topic(cluster, CLUSTER_QUEUES, inheritable if switches.cluster_topic_enable else PERM_INHERIT),
        topic(setup.name, 1, inheritable if switches.broker_topic_enable else PERM_INHERIT),
        topic(OFFSET_MOVED_EVENT, 1),
        topic(SCHEDULE_TOPIC, SCHEDULE_QUEUES),
        topic(reply_topic_name(cluster), 1),
    ]
    if switches.auto_create_topic_enable:
        topics.append(topic(AUTO_CREATE_TOPIC_KEY_TOPIC, switches.default_topic_queue_nums, inheritable))
    if switches.trace_topic_enable:
        topics.append(topic(switches.msg_trace_topic_name, 1))
    return topics


def reply_topic_name(cluster_name: str) -> str:
    """Return the topic that answers of request-reply go to."""
    return f"{cluster_name}_{REPLY_TOPIC_POSTFIX}"


def system_topic_names(setup: BrokerSetup) -> set[str]:
    """
    Return the names of system topics, whether they exist here or not.

    Java: TopicValidator#getSystemTopicSet
    """
    broker, cluster = setup.broker, setup.broker.broker_cluster_name
    names = {AUTO_CREATE_TOPIC_KEY_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC, cluster, setup.name, reply_topic_name(cluster)}
    if broker.trace_topic_enable:
        names.add(broker.msg_trace_topic_name)
    return names | FORBIDDEN_TOPICS


def is_system_topic(name: str, setup: BrokerSetup) -> bool:
    """
    Return whether admins may neither create nor delete the topic.

    Java: TopicValidator#isSystemTopic
    """
    return name.startswith(SYSTEM_TOPIC_PREFIX) or name in system_topic_names(setup)


def topic_name_problem(name: str) -> str | None:
    """
    Return Apache's remark about an invalid topic name; None when it is valid.

    Java: TopicValidator#validateTopic
    """
    if not name.strip():
        return "The specified topic is blank."
    if not _LEGAL.fullmatch(name):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(name) > MAX_TOPIC_CHARS:
        return "The specified topic is longer than topic max length."
    return None


def system_topic_problem(name: str, setup: BrokerSetup) -> str | None:
    """Return Apache's refusal of a system topic to admins; None for other topics."""
    return f"The topic[{name}] is conflict with system topic." if is_system_topic(name, setup) else None


def sending_problem(name: str) -> str | None:
    """Return Apache's refusal of messages to a topic that only the broker writes; None for other topics."""
    return f"Sending message to topic[{name}] is forbidden." if name in FORBIDDEN_TOPICS else None


def hidden_topics(queues: Iterable[tuple[str, int]], topics: TopicTable) -> dict[str, int]:
    """
    Return topics that have queues in the store and that ``topics`` lacks, with the number of queues that they need.

    A slave that is promoted may lack a topic that was made shortly before; a deleted topic may have queues that a
    recovery has written again. Topics that the broker alone uses, and light message queues, have no configuration.
    """
    found: dict[str, int] = {}
    for name, queue_id in queues:
        if name not in topics and name not in UNLISTED_TOPICS and not is_lmq(name):
            found[name] = max(found.get(name, 0), queue_id + 1)
    return found


def auto_create(
    name: str,
    default: TopicConfig | None,
    *,
    client_queue_nums: int,
    unit_mode: bool = False,
    auto_create_topic_enable: bool = True,
    least_queues: int = 0,
) -> TopicConfig | None:
    """
    Return the topic that a message to the unknown topic ``name`` creates; None when it must be refused.

    ``default`` is the topic that the producer names as template, if it exists; ``client_queue_nums`` its wish;
    ``least_queues`` those in which it has messages already.
    The caller puts the result into its table. Retry topics are created even without a template.
    Java: TopicConfigManager#createTopicInSendMessageMethod, AbstractSendMessageProcessor#msgCheck
    """
    retry = name.startswith(RETRY_PREFIX)
    unit_flag = 0 if not unit_mode else SYS_FLAG_UNIT_SUB if retry else SYS_FLAG_UNIT
    if default is not None and _inheritable_perm(default, auto_create_topic_enable) & PERM_INHERIT:
        queues = max(least_queues, min(client_queue_nums, default.write_queue_nums))
        return TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=_inheritable_perm(default, auto_create_topic_enable) & ~PERM_INHERIT,
            topic_sys_flag=unit_flag,
            topic_filter_type=default.topic_filter_type,
        )
    return retry_topic(name, 1, unit_flag) if retry else None


def retry_topic(name: str, queues: int, topic_sys_flag: int) -> TopicConfig:
    """
    Return a ``%RETRY%`` or ``%DLQ%`` topic.

    Java: TopicConfigManager#createTopicInSendMessageBackMethod
    """
    return msgspec.structs.replace(topic(name, queues), topic_sys_flag=topic_sys_flag)


def _inheritable_perm(default: TopicConfig, auto_create_topic_enable: bool) -> int:
    if default.topic_name == AUTO_CREATE_TOPIC_KEY_TOPIC and not auto_create_topic_enable:
        return PERM_READ | PERM_WRITE
    return default.perm
