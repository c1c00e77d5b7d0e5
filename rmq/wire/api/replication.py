"""
Requests of a slave for its master's tables.

A slave asks 21 at the master's ``listenPort - 2`` and the other three at ``listenPort``; none of the requests has a
header or a body.  Java: SlaveSynchronize#syncAll
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import DataVersion, TopicConfigWrapper
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract


class MappingDataVersion(msgspec.Struct, rename="camel", kw_only=True):
    """The version of 5.x's static topics, which we do not have: always zero, so that a 5.x slave sees no change."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class AllTopicConfig(TopicConfigWrapper, rename="camel", kw_only=True):
    """
    Every topic of a broker with the version of the table.

    A 5.x slave replaces its table at every round unless ``mapping_data_version`` is there and constant.
    Java: TopicConfigSerializeWrapper, TopicConfigAndMappingSerializeWrapper
    """

    mapping_data_version: MappingDataVersion | None = None


class AllConsumerOffset(msgspec.Struct, rename="camel", kw_only=True):
    """
    Offsets by ``topic@group`` and queue id, as in consumerOffset.json.

    4.9 ignores ``data_version``; a 5.x slave cannot do without it.  Java: ConsumerOffsetSerializeWrapper
    """

    data_version: DataVersion | None = None
    offset_table: dict[str, dict[int, int]] = {}


class AllDelayOffset(msgspec.Struct, rename="camel", kw_only=True):
    """
    The next queue offset of each delay level, as in delayOffset.json.

    Java: DelayOffsetSerializeWrapper
    """

    data_version: DataVersion | None = None
    offset_table: dict[int, int] = {}


class HAConnectionInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    One slave of a master; the last three fields are rmq's own.

    Java: HARuntimeInfo.HAConnectionRuntimeInfo
    """

    addr: str
    slave_ack_offset: int
    #: bytes between the master's end and the acknowledgement
    diff: int
    in_sync: bool
    transferred_byte_in_second: int
    transfer_from_where: int
    state: str = ""
    lag_seconds: float = 0.0
    #: from the push of new bytes to their acknowledgement, -1 before the first
    ack_latency_millis: float = -1.0


class HAClientInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    A slave's connection to its master; times are milliseconds since 1970. The last two fields are rmq's own.

    Java: HARuntimeInfo.HAClientRuntimeInfo
    """

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False
    last_error: str = ""
    refused: int = 0


class HARuntimeInfo(msgspec.Struct, rename="camel", kw_only=True):
    """
    The replication status; the last four fields are rmq's own.

    Java: HARuntimeInfo of 5.x
    """

    master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionInfo] = []
    ha_client_runtime_info: HAClientInfo = msgspec.field(default_factory=HAClientInfo)
    #: connections refused since the start
    refused: int = 0
    last_refusal: str = ""
    pending_puts: int = 0
    timeouts: int = 0


GET_BROKER_HA_STATUS = contract(RequestCode.GET_BROKER_HA_STATUS, reply_body=HARuntimeInfo)
#: The body is AllTopicConfig in JSON; these are typed as bytes because a slave keeps more of them than we know.
GET_ALL_TOPIC_CONFIG = contract(RequestCode.GET_ALL_TOPIC_CONFIG, reply_body=bytes)
GET_ALL_CONSUMER_OFFSET = contract(RequestCode.GET_ALL_CONSUMER_OFFSET, reply_body=AllConsumerOffset)
#: The body is AllDelayOffset in JSON.
GET_ALL_DELAY_OFFSET = contract(RequestCode.GET_ALL_DELAY_OFFSET, reply_body=bytes)
#: The body is SubscriptionGroupWrapper in JSON.
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = contract(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, reply_body=bytes)
