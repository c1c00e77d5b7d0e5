"""
The broker's configuration and statistics.

Java: AdminBrokerProcessor
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import gatherResults
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

import rmq
from rmq.broker.config import CONFIG_CLASSES
from rmq.broker.delays import Delays
from rmq.broker.flowcontrol import FlowControl
from rmq.broker.longpoll import LongPolls
from rmq.broker.registration import Registration
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats, PutTimes
from rmq.broker.topics import UNLISTED_TOPICS, TopicTable
from rmq.remoting.access import refusal_remark
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.clock import map_in_turns, now_ms, slices_of, steady_ms, turn, wall_ms
from rmq.runtime.config import ConfigError, config_fields, decode_properties
from rmq.store.multidispatch import is_lmq
from rmq.store.store import MessageStore
from rmq.wire import fastjson
from rmq.wire.api.admin import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    UPDATE_BROKER_CONFIG,
    VIEW_BROKER_STATS_DATA,
    BrokerConfigReply,
    BrokerStatsHeader,
)
from rmq.wire.api.common import DataVersion, KVTable
from rmq.wire.codes import MQ_VERSION, ResponseCode, version_desc

#: queues that are looked at in one turn of the reactor
QUEUES_AT_ONCE = 10_000

_KNOWN = {field.key for cls in CONFIG_CLASSES for field in config_fields(cls)}
_S, _MINUTE_S, _HOUR_S, _DAY_S = 1, 60, 3600, 86_400


@attrs.define(eq=False)
class AdminResponder:
    """Requests of operators."""

    _log = Logger()

    _settings: Settings
    _clock: IReactorTime
    _boot_ms: int
    _store: MessageStore
    _topics: TopicTable
    _polls: LongPolls
    _delays: Delays
    _stats: BrokerStats
    _put_times: PutTimes
    _registration: Registration
    _flow: FlowControl
    _version: DataVersion = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._version = DataVersion(counter=0, timestamp=now_ms(self._clock))

    @responds_to(GET_BROKER_CONFIG)
    def config(self, request: Request[None, None]) -> Reply:
        version = fastjson.encode(self._version).decode()
        return Reply(BrokerConfigReply(version=version), body=self._settings.text().encode())

    @responds_to(DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, request: Request[None, None]) -> None:
        """
        Delete commit log files whose fileReservedTime is exceeded, whatever the hour, within the next rounds.

        Java: AdminBrokerProcessor#deleteExpiredCommitLog, MessageStore#executeDeleteFilesManually
        """
        self._store.delete_expired_soon()
        self._log.info("{peer} asks for the deletion of expired files", peer=request.channel.peer)

    @responds_to(CLEAN_EXPIRED_CONSUMEQUEUE)
    def clean_queues(self, request: Request[None, None]) -> None:
        """
        Nothing is left to do: files of queues are deleted as soon as the commit log begins behind their last message.

        Apache's broker deletes a queue without messages as a whole and numbers its next message 0; a group that has
        consumed the old ones then misses new ones. Ours goes on counting.
        Java: AdminBrokerProcessor#cleanExpiredConsumeQueue
        """

    @responds_to(CLEAN_UNUSED_TOPIC)
    async def clean_topics(self, request: Request[None, None]) -> None:
        """
        Delete the queues of topics that do not exist (any more).

        That of op messages never has a configuration, that of half messages has none before the first check.
        Java: DefaultMessageStore#cleanUnusedTopic
        """
        queues = slices_of(self._store.queues(), QUEUES_AT_ONCE)
        queued = await map_in_turns(self._clock, lambda keys: {topic for topic, _ in keys}, queues)
        deleted = []
        for topic in sorted({topic for topics in queued for topic in topics} - UNLISTED_TOPICS):
            if topic in self._topics or is_lmq(topic):
                continue
            await turn(self._clock)
            if topic in self._topics:
                continue  # made meanwhile
            deleted.append(self._store.delete_topic(topic))
            self._polls.topic_deleted(topic)
            self._log.info(
                "queues of topic {topic}, which does not exist, were deleted at the request of {peer}",
                topic=topic,
                peer=request.channel.peer,
            )
        await gatherResults(deleted, consumeErrors=True)

    @responds_to(UPDATE_BROKER_CONFIG)
    def update_config(self, request: Request[None, bytes]) -> None:
        """
        Change keys of the running configuration and of its file; unknown ones are skipped, as Apache does.

        Java: AdminBrokerProcessor#updateBrokerConfig
        """
        if not request.body:
            return
        try:
            wanted = decode_properties(request.body, "the request")
        except ConfigError as error:
            self._log.warn("{peer} sent a bad configuration: {error}", peer=request.channel.peer, error=error)
            raise Refuse(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        refused = self._settings.black_listed(wanted)
        if refused:
            raise Refuse(ResponseCode.NO_PERMISSION, refusal_remark(refused))
        try:
            changes = self._settings.update(wanted)
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._version = DataVersion(counter=self._version.counter + 1, timestamp=now_ms(self._clock))
        self._log.info("{peer} changed the configuration: {changes}", peer=request.channel.peer, changes=changes)
        if "brokerPermission" in changes:
            self._announce_permission()

    def _announce_permission(self) -> None:
        """Register with a changed brokerPermission; the new version makes NameServers update every topic."""
        setup = self._settings.setup
        self._registration.set_broker_permission(setup.broker.broker_permission)
        own = self._topics.get(setup.name)
        if own is not None:
            self._topics.put(own)
        self._registration.topics_changed()

    @responds_to(GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, request: Request[None, None]) -> Reply:
        """
        The figures for clusterList and brokerStatus of mqadmin 4.9 and 5.x; there are no thread pools, so no queues.

        Java: AdminBrokerProcessor#prepareRuntimeInfo
        """
        broker = self._settings.setup.broker
        info = {
            "bootTimestamp": str(wall_ms(self._clock, self._boot_ms)),
            "runtime": run_time_text((steady_ms(self._clock) - self._boot_ms) // 1000),
            "brokerVersionDesc": version_desc(MQ_VERSION),
            "brokerVersion": str(MQ_VERSION),
            "rmqVersion": rmq.__version__,
            "brokerActive": "true",
            "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_request_time_stamp),
            "EndTransactionQueueSize": str(self._flow.waiting_ends),
            "EndTransactionThreadPoolQueueCapacity": str(broker.end_transaction_pool_queue_capacity),
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": str(2**31 - 1),
            "ackThreadPoolQueueSize": "0",
        }
        for pool, waiting, capacity in (
            ("send", self._flow.waiting_sends, broker.send_thread_pool_queue_capacity),
            ("pull", self._flow.cold_pulls.waiting, broker.pull_thread_pool_queue_capacity),
            ("query", 0, broker.query_thread_pool_queue_capacity),
        ):
            info[f"{pool}ThreadPoolQueueSize"] = str(waiting)
            info[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        for level, (offset, end) in self._delays.progress().items():
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        info.update(self._store.runtime_info())
        info.update(self._stats.runtime_info())
        info.update(self._put_times.runtime_info())
        return Reply(body=KVTable(table=dict(sorted(info.items()))))

    @responds_to(VIEW_BROKER_STATS_DATA)
    def stats(self, request: Request[BrokerStatsHeader, None]) -> Reply:
        header = request.header
        counter = self._stats.find(header.stats_name, header.stats_key)
        if counter is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return Reply(body=counter.data())


def run_time_text(seconds: int) -> str:
    """Return ``[ 0 days, 0 hours, 3 minutes, 2 seconds ]``.  Java: StoreStatsService#getFormatRuntime"""
    days, rest = divmod(max(seconds, 0), _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest} seconds ]"
