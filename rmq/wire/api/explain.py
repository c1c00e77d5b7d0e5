"""
Why a route is there, or is not: 9701, a request code of our own that Apache's NameServers do not know.

All times are epoch milliseconds of the NameServer's clock.
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.common import DataVersion
from rmq.wire.api.routes import QueueData
from rmq.wire.codes import RequestCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32

#: what may be said of a topic or a broker
PRESENT = "PRESENT"
#: it was there, and what removed it is known
GONE = "GONE"
#: it was not there since the NameServer started
NEVER_SEEN = "NEVER_SEEN"
#: it is not there, and the journal does not reach back far enough to say more
FORGOTTEN = "FORGOTTEN"


class ExplainRouteHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    What is to be explained: a topic, a broker name, or (neither) the last ``recent`` events.
    """

    topic: str | None = None
    broker_name: str | None = None
    recent: Int32 = 20


class RouteEventData(msgspec.Struct, rename="camel", kw_only=True):
    """
    Something that changed the routes, or was kept from it.

    ``topics`` are the first few of ``topic_count``; ``broker_id`` is None where no single process is meant.
    """

    at_ms: int
    kind: str
    broker_name: str = ""
    broker_addr: str = ""
    broker_id: int | None = None
    cluster: str = ""
    peer: str = ""
    data_version: DataVersion | None = None
    topics: list[str] = []
    topic_count: int = 0
    reason: str = ""


class BrokerProcess(msgspec.Struct, rename="camel", kw_only=True):
    """
    A broker process that is there: where it is, over which connection it spoke last, and when.

    It counts as gone once ``silent_ms``, measured on a clock that nobody sets, is more than ``expiry_ms``. ``peer`` is
    empty when its connection is unknown.
    """

    broker_addr: str
    broker_id: int
    peer: str = ""
    ha_server_addr: str = ""
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    last_heartbeat_ms: int = 0
    silent_ms: int = 0
    expiry_ms: int = 0


class BrokerExplanation(msgspec.Struct, rename="camel", kw_only=True):
    """
    A broker name: its processes, how many topics it serves, and the last events of it, oldest first.

    ``removed`` is what made it go, when its state is GONE.
    """

    broker_name: str
    state: str
    cluster: str = ""
    processes: list[BrokerProcess] = []
    topic_count: int = 0
    removed: RouteEventData | None = None
    events: list[RouteEventData] = []


class RouteExplanation(msgspec.Struct, rename="camel", kw_only=True):
    """
    Why a route is as it is.

    ``text`` says all of it for people, in lines. ``removed`` are the events that took the topic from brokers which do
    not serve it now, oldest first. ``complete_since_ms``: nothing later than this has fallen out of the journal about
    what was asked; it equals ``started_ms`` when nothing has.
    """

    asked: str
    name: str
    state: str
    summary: str
    now_ms: int
    started_ms: int
    complete_since_ms: int
    hints: list[str] = []
    queues: list[QueueData] = []
    brokers: list[BrokerExplanation] = []
    removed: list[RouteEventData] = []
    events: list[RouteEventData] = []
    text: str = ""


EXPLAIN_ROUTE = contract(RequestCode.EXPLAIN_ROUTE, header=ExplainRouteHeader, reply_body=RouteExplanation)
