"""
What slaves ask for.

Java: AdminBrokerProcessor#getAllTopicConfig, #getAllConsumerOffset, #getAllDelayOffset, #getAllSubscriptionGroup
"""

from __future__ import annotations

from rmq.broker.state import BrokerState
from rmq.remoting.responders import Reply, Request, responds_to
from rmq.wire import fastjson
from rmq.wire.api.replication import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_ALL_TOPIC_CONFIG,
    AllConsumerOffset,
    AllTopicConfig,
    MappingDataVersion,
)


class ReplicationResponder:
    """The broker's tables as a whole."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    @responds_to(GET_ALL_TOPIC_CONFIG)
    def topics(self, request: Request[None, None]) -> Reply:
        """With the constant mapping version that keeps 5.x slaves from replacing their table at each round."""
        table = self._state.topics.snapshot()
        return Reply(
            body=AllTopicConfig(
                data_version=table.data_version,
                topic_config_table=table.topic_config_table,
                mapping_data_version=MappingDataVersion(),
            )
        )

    @responds_to(GET_ALL_CONSUMER_OFFSET)
    def consumer_offsets(self, request: Request[None, None]) -> Reply:
        """5.x slaves need the version; 4.9 does not know it."""
        offsets = self._state.offsets
        return Reply(body=AllConsumerOffset(data_version=offsets.data_version, offset_table=offsets.snapshot()))

    @responds_to(GET_ALL_DELAY_OFFSET)
    def delay_offsets(self, request: Request[None, None]) -> Reply:
        """On a slave: what it got from its master, which lies in its file only."""
        state = self._state
        if state.is_slave and state.disk.exists(state.delays.path):
            return Reply(body=state.disk.read_whole(state.delays.path))
        return Reply(body=fastjson.encode(state.delays.table(), quote_int_keys=True))

    @responds_to(GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def groups(self, request: Request[None, None]) -> Reply:
        return Reply(body=self._state.groups.snapshot())
