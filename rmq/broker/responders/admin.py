"""
The broker's configuration and statistics.

Java: AdminBrokerProcessor
"""

from __future__ import annotations

import attrs
from twisted.logger import Logger

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup, resolve
from rmq.broker.state import BrokerState
from rmq.remoting.access import local_keys, refusal_remark, refused_keys
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.runtime.config import ConfigError, config_fields, decode_properties, to_properties, update
from rmq.runtime.disk.files import DiskError
from rmq.runtime.properties import format_properties
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
from rmq.wire.record import SCHEDULE_TOPIC

_KNOWN = {field.key for cls in CONFIG_CLASSES for field in config_fields(cls)}
_S, _MINUTE_S, _HOUR_S, _DAY_S = 1, 60, 3600, 86_400


class AdminResponder:
    """Requests of operators."""

    _log = Logger()

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._version = DataVersion(counter=0, timestamp=state.now_ms)

    @responds_to(GET_BROKER_CONFIG)
    def config(self, request: Request[None, None]) -> Reply:
        setup = self._state.setup
        text = to_properties(setup.broker, setup.server, setup.client, setup.store)
        return Reply(BrokerConfigReply(version=fastjson.encode(self._version).decode()), body=text.encode())

    @responds_to(DELETE_EXPIRED_COMMITLOG)
    def delete_expired(self, request: Request[None, None]) -> None:
        """
        Delete commit log files whose fileReservedTime is exceeded, whatever the hour, within the next rounds.

        Java: AdminBrokerProcessor#deleteExpiredCommitLog, MessageStore#executeDeleteFilesManually
        """
        self._state.store.delete_expired_soon()
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
    def clean_topics(self, request: Request[None, None]) -> None:
        """
        Delete the queues of topics that do not exist (any more).

        Java: DefaultMessageStore#cleanUnusedTopic
        """
        state = self._state
        unknown = {topic for topic, _ in state.store.queues() if topic not in state.topics}
        for topic in sorted(unknown - {SCHEDULE_TOPIC}):
            state.store.delete_topic(topic)
            state.polls.topic_deleted(topic)
            self._log.info(
                "queues of topic {topic}, which does not exist, were deleted at the request of {peer}",
                topic=topic,
                peer=request.channel.peer,
            )

    @responds_to(UPDATE_BROKER_CONFIG)
    def update_config(self, request: Request[None, bytes]) -> None:
        """
        Change keys of the running configuration and of its file; unknown ones are skipped, as Apache does.

        Keys that are read per request take effect at once, all others at the next start. A protected key that
        configWhiteList allows is changed in the file only: a running broker has one role, one name, one store.
        Java: AdminBrokerProcessor#updateBrokerConfig
        """
        if not request.body:
            return
        state = self._state
        try:
            changes = decode_properties(request.body, "the request")
        except ConfigError as error:
            self._log.warn("{peer} sent a bad configuration: {error}", peer=request.channel.peer, error=error)
            raise Refuse(ResponseCode.SYSTEM_ERROR, "string2Properties error") from None
        lists = state.setup.broker
        refused = refused_keys(
            changes, CONFIG_CLASSES, black_list=lists.config_black_list, white_list=lists.config_white_list
        )
        if refused:
            raise Refuse(ResponseCode.NO_PERMISSION, refusal_remark(refused))
        for key in sorted(changes.keys() - _KNOWN):
            self._log.warn("unknown key {key} was not changed", key=key)
            del changes[key]
        local = local_keys(CONFIG_CLASSES)
        if state.config_path is None and (lost := sorted(local & changes.keys())):
            text = f"not changed: {', '.join(lost)}. This broker has no configuration file (-c) to save it in"
            raise Refuse(ResponseCode.SYSTEM_ERROR, text)
        try:
            # Check it as the next start would: a change must not prevent the next start.
            resolve(_updated(state.setup, changes), host_address="127.0.0.1", host_name="localhost")
            setup = _updated(state.setup, {key: value for key, value in changes.items() if key not in local})
        except ConfigError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._persist(changes)
        state.setup = setup
        self._version = DataVersion(counter=self._version.counter + 1, timestamp=state.now_ms)
        self._log.info("{peer} changed the configuration: {changes}", peer=request.channel.peer, changes=changes)
        if "brokerPermission" in changes:
            state.announce_permission()

    def _persist(self, changes: dict[str, str]) -> None:
        """Rewrite the properties file, if there is one; its comments are lost, its previous content is kept as .bak."""
        state = self._state
        path, disk = state.config_path, state.disk
        if path is None:
            return
        try:
            values = decode_properties(disk.read_whole(path), path) if disk.exists(path) else {}
            disk.write_atomic(path, format_properties({**values, **changes}).encode(), keep_backup=True)
        except (ConfigError, DiskError) as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"the configuration cannot be written: {error}") from None

    @responds_to(GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, request: Request[None, None]) -> Reply:
        return Reply(body=KVTable(table=runtime_info(self._state)))

    @responds_to(VIEW_BROKER_STATS_DATA)
    def stats(self, request: Request[BrokerStatsHeader, None]) -> Reply:
        header = request.header
        counter = self._state.stats.find(header.stats_name, header.stats_key)
        if counter is None:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        return Reply(body=counter.data())


def _updated(setup: BrokerSetup, changes: dict[str, str]) -> BrokerSetup:
    return attrs.evolve(
        setup,
        broker=update(setup.broker, changes),
        server=update(setup.server, changes),
        client=update(setup.client, changes),
        store=update(setup.store, changes),
        extra=update(setup.extra, changes),
    )


def runtime_info(state: BrokerState) -> dict[str, str]:
    """
    Return the figures for clusterList and brokerStatus of mqadmin 4.9 and 5.x; there are no thread pools, so no queues.

    Java: AdminBrokerProcessor#prepareRuntimeInfo
    """
    broker = state.setup.broker
    info = {
        "bootTimestamp": str(state.wall_ms(state.boot_ms)),
        "runtime": run_time_text(state.up_ms // 1000),
        "brokerVersionDesc": version_desc(MQ_VERSION),
        "brokerVersion": str(MQ_VERSION),
        "brokerActive": "true",
        "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_request_time_stamp),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(broker.end_transaction_pool_queue_capacity),
        "pageCacheLockTimeMills": "0",
        "remainTransientStoreBufferNumbs": str(2**31 - 1),
        "ackThreadPoolQueueSize": "0",
    }
    for pool, capacity in (
        ("send", broker.send_thread_pool_queue_capacity),
        ("pull", broker.pull_thread_pool_queue_capacity),
        ("query", broker.query_thread_pool_queue_capacity),
    ):
        info[f"{pool}ThreadPoolQueueSize"] = "0"
        info[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, (offset, end) in state.delays.progress().items():
        info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    info.update(state.store.runtime_info())
    info.update(state.stats.runtime_info())
    return dict(sorted(info.items()))


def run_time_text(seconds: int) -> str:
    """Return ``[ 0 days, 0 hours, 3 minutes, 2 seconds ]``.  Java: StoreStatsService#getFormatRuntime"""
    days, rest = divmod(max(seconds, 0), _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest} seconds ]"
