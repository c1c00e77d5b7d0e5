"""
What the route table emits when it changes: one value per event, with its causes as values.

The table calls its ``on_event`` while it changes. Heartbeats and unchanged registrations make no event.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import attrs

from rmq.namesrv.journal.reasons import Cause
from rmq.wire.api.common import DataVersion


class EventKind(Enum):
    """
    What happened to one broker process or one broker group.

    A process is in a group's routes from REGISTERED (or CHANGED, when it gets its place back) until REPLACED,
    UNREGISTERED, CLOSED or EXPIRED.
    """

    #: a new broker process registered
    REGISTERED = "REGISTERED"
    #: a registration changed topics, the broker id, or which address has the id; ``topics`` are those that changed
    CHANGED = "CHANGED"
    #: a broker uses another connection than before
    RECONNECTED = "RECONNECTED"
    #: another address registered with the same name and id
    REPLACED = "REPLACED"
    #: a broker unregistered
    UNREGISTERED = "UNREGISTERED"
    #: the connection of a broker closed
    CLOSED = "CLOSED"
    #: a broker was silent for too long
    EXPIRED = "EXPIRED"
    #: an admin took the write permission from all topics of a group, or a group lost its master
    WIPED = "WIPED"
    #: an admin made all topics of a group writable
    WRITE_ADDED = "WRITE_ADDED"
    #: a group lost topics: an admin deleted one, or deleteTopicWithBrokerRegistration those that were not registered
    TOPIC_DELETED = "TOPIC_DELETED"
    #: an admin added a topic to a group
    TOPIC_REGISTERED = "TOPIC_REGISTERED"
    #: an unregister request, the end of a connection, an expiry or a registration was ignored as out of date
    FENCED = "FENCED"


#: after these events a broker process is no longer in the routes
REMOVALS = frozenset({EventKind.REPLACED, EventKind.UNREGISTERED, EventKind.CLOSED, EventKind.EXPIRED})


@attrs.frozen(kw_only=True)
class RouteEvent:
    """
    One event.

    ``at_ms`` is epoch milliseconds. ``broker_addr`` is empty and ``broker_id`` None where a whole group is meant.
    ``cluster`` is that of the registration. ``peer`` is the ``ip:port`` of the connection that caused the event, empty
    when none did. ``topics`` are all topics that were added, changed or removed; read them only in ``on_event``.
    """

    at_ms: int
    kind: EventKind
    broker_name: str
    broker_addr: str = ""
    broker_id: int | None = None
    cluster: str = ""
    peer: str = ""
    data_version: DataVersion | None = None
    topics: Collection[str] = ()
    causes: tuple[Cause, ...] = ()
