"""
Requests of slaves for tables, and the replication status.

Java: AdminBrokerProcessor#getAllTopicConfig, #getAllConsumerOffset, #getAllDelayOffset, #getAllSubscriptionGroup,
#getBrokerHaStatus
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from rmq.broker.config import BrokerSetup
from rmq.broker.delays import Delays
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.topics import TopicTable
from rmq.ha.status import HAStatus, LinkStatus, SlaveStatus
from rmq.remoting.responders import Reply, Request, responds_to
from rmq.runtime.disk.files import Disk
from rmq.wire import fastjson
from rmq.wire.api.replication import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_ALL_TOPIC_CONFIG,
    GET_BROKER_HA_STATUS,
    AllTopicConfig,
    HAClientInfo,
    HAConnectionInfo,
    HARuntimeInfo,
    MappingDataVersion,
)


@attrs.define(eq=False)
class ReplicationResponder:
    """The broker's tables as a whole."""

    _setup: BrokerSetup
    _disk: Disk
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _offsets: ConsumerOffsetTable
    _delays: Delays
    _replication: Callable[[], HAStatus]

    @responds_to(GET_ALL_TOPIC_CONFIG)
    def topics(self, request: Request[None, None]) -> Reply:
        """With the constant mapping version that keeps 5.x slaves from replacing their table at each round."""
        table = self._topics.snapshot()
        return Reply(
            body=fastjson.encode(
                AllTopicConfig(
                    data_version=table.data_version,
                    topic_config_table=table.topic_config_table,
                    mapping_data_version=MappingDataVersion(),
                )
            )
        )

    @responds_to(GET_ALL_CONSUMER_OFFSET)
    async def consumer_offsets(self, request: Request[None, None]) -> Reply:
        """5.x slaves need the version; 4.9 does not know it."""
        return Reply(body=await self._offsets.encode_in_turns())

    @responds_to(GET_ALL_DELAY_OFFSET)
    def delay_offsets(self, request: Request[None, None]) -> Reply:
        """On a slave: the table from its master, which is in its file only."""
        if self._setup.is_slave and self._disk.exists(self._delays.path):
            return Reply(body=self._disk.read_whole(self._delays.path))
        return Reply(body=fastjson.encode(self._delays.written, quote_int_keys=True))

    @responds_to(GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def groups(self, request: Request[None, None]) -> Reply:
        return Reply(body=fastjson.encode(self._groups.snapshot()))

    @responds_to(GET_BROKER_HA_STATUS)
    def replication(self, request: Request[None, None]) -> Reply:
        """
        Java: DefaultHAService#getRuntimeInfo
        """
        return Reply(body=runtime_info(self._replication()))


def runtime_info(status: HAStatus) -> HARuntimeInfo:
    """Return the answer of code 907: a master's slaves or a slave's master, and refused connections."""
    info = HARuntimeInfo(
        master=not status.is_slave,
        ha_connection_info=[_connection(slave) for slave in status.slaves],
        in_sync_slave_nums=status.in_sync_slaves,
        refused=status.refused,
        last_refusal=status.last_refusal,
        pending_puts=status.pending_puts,
        timeouts=status.timeouts,
    )
    if status.is_slave:
        info.ha_client_runtime_info = _client(status.link, status.end_offset)
    else:
        info.master_commit_log_max_offset = status.end_offset
    return info


def _connection(slave: SlaveStatus) -> HAConnectionInfo:
    return HAConnectionInfo(
        addr=slave.addr,
        slave_ack_offset=slave.ack_offset,
        diff=slave.lag_bytes,
        in_sync=slave.in_sync,
        transferred_byte_in_second=slave.bytes_per_second,
        transfer_from_where=slave.next_offset,
        state=slave.state.value,
        lag_seconds=round(slave.lag_seconds, 3),
        ack_latency_millis=round(slave.ack_latency_ms, 3),
    )


def _client(link: LinkStatus | None, end_offset: int) -> HAClientInfo:
    if link is None:
        return HAClientInfo(max_offset=end_offset)
    return HAClientInfo(
        master_addr=link.master_addr or "",
        transferred_byte_in_second=link.bytes_per_second,
        max_offset=end_offset,
        last_read_timestamp=link.last_read_ms,
        last_write_timestamp=link.last_write_ms,
        activated=link.connected,
        last_error=link.last_error,
        refused=link.refused,
    )
