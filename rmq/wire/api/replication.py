"""
What a slave asks its master for beside the commit log: the broker's tables.

A slave asks 21 at the master's ``listenPort - 2`` and the other three at ``listenPort``; none of the requests has a
header or a body.  Java: SlaveSynchronize#syncAll
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import DataVersion, SubscriptionGroupWrapper, TopicConfigWrapper
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


GET_ALL_TOPIC_CONFIG = contract(RequestCode.GET_ALL_TOPIC_CONFIG, reply_body=AllTopicConfig)
GET_ALL_CONSUMER_OFFSET = contract(RequestCode.GET_ALL_CONSUMER_OFFSET, reply_body=AllConsumerOffset)
#: The body is AllDelayOffset in JSON; it is typed as bytes because a slave stores it word for word.
GET_ALL_DELAY_OFFSET = contract(RequestCode.GET_ALL_DELAY_OFFSET, reply_body=bytes)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = contract(
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, reply_body=SubscriptionGroupWrapper
)
