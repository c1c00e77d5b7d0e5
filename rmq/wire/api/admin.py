"""The broker itself: configuration (25, 26), runtime figures (28) and statistics (315)."""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import KVTable
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract


class BrokerConfigReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    ``version`` is a DataVersion in JSON; the body of the answer is ``key=value`` lines.

    Java: GetBrokerConfigResponseHeader
    """

    version: str


class BrokerStatsHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    One counter, for example TOPIC_PUT_NUMS of a topic.

    Java: ViewBrokerStatsDataRequestHeader
    """

    stats_name: str
    stats_key: str


class BrokerStatsItem(msgspec.Struct, rename="camel", kw_only=True):
    """Sum, rate a second and mean per call within a window.  Java: BrokerStatsItem"""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(msgspec.Struct, rename="camel", kw_only=True):
    """A counter over three windows.  Java: BrokerStatsData"""

    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem


#: The body is the text of a Java properties file.
UPDATE_BROKER_CONFIG = contract(RequestCode.UPDATE_BROKER_CONFIG, body=bytes)
GET_BROKER_CONFIG = contract(RequestCode.GET_BROKER_CONFIG, reply=BrokerConfigReply, reply_body=bytes)
DELETE_EXPIRED_COMMITLOG = contract(RequestCode.DELETE_EXPIRED_COMMITLOG)
CLEAN_EXPIRED_CONSUMEQUEUE = contract(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
CLEAN_UNUSED_TOPIC = contract(RequestCode.CLEAN_UNUSED_TOPIC)
GET_BROKER_RUNTIME_INFO = contract(RequestCode.GET_BROKER_RUNTIME_INFO, reply_body=KVTable)
VIEW_BROKER_STATS_DATA = contract(
    RequestCode.VIEW_BROKER_STATS_DATA, header=BrokerStatsHeader, reply_body=BrokerStatsData
)
