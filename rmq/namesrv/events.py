"""
What happened to the routes and why: one value per event, for whoever keeps a journal.

The table calls its ``on_event`` with each while it changes; heartbeats and unchanged registrations make no event.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import attrs

from rmq.wire.api.common import DataVersion

#: so many topics are named in an event, however many it is about
MAX_EVENT_TOPICS = 5


class EventKind(Enum):
    """
    What happened, seen from one broker process or one broker group.

    A process is in a group's routes from REGISTERED (or CHANGED, when it takes its place again) until REPLACED,
    UNREGISTERED, CLOSED or EXPIRED.
    """

    #: a broker process came that was not there
    REGISTERED = "REGISTERED"
    #: a registration changed topics, the broker id, or who has the place; ``topics`` are those that changed
    CHANGED = "CHANGED"
    #: a broker speaks over another connection than before
    RECONNECTED = "RECONNECTED"
    #: ``broker_addr`` lost its place to another address that registered with the same name and id
    REPLACED = "REPLACED"
    #: a broker said good-bye
    UNREGISTERED = "UNREGISTERED"
    #: the connection of a broker ended
    CLOSED = "CLOSED"
    #: a broker was silent for too long
    EXPIRED = "EXPIRED"
    #: an admin took the write permission from all topics of a group, or a group lost its master
    WIPED = "WIPED"
    #: an admin made all topics of a group writable
    WRITE_ADDED = "WRITE_ADDED"
    #: a group lost topics: an admin deleted one, or deleteTopicWithBrokerRegistration those that were not registered
    TOPIC_DELETED = "TOPIC_DELETED"
    #: an admin put a topic on a group by hand
    TOPIC_REGISTERED = "TOPIC_REGISTERED"
    #: a good-bye, an end, an expiry or a registration was ignored because a newer registration stands
    FENCED = "FENCED"


@attrs.frozen(kw_only=True)
class RouteEvent:
    """
    One event.

    ``at_ms`` is epoch milliseconds. ``broker_addr`` is empty and ``broker_id`` None where a whole group is meant.
    ``cluster`` is that of the registration. ``peer`` is the ``ip:port`` of the connection that caused it, empty when
    none did. ``topics`` are the first MAX_EVENT_TOPICS of the ``topic_count`` topics that came, changed or went with
    the event. ``reason`` is a clause for an operator. ``concerns`` are all those topics, only while ``on_event`` is
    called: whoever keeps events copies what he needs of them and keeps the event without.
    """

    at_ms: int
    kind: EventKind
    broker_name: str
    broker_addr: str = ""
    broker_id: int | None = None
    cluster: str = ""
    peer: str = ""
    data_version: DataVersion | None = None
    topics: tuple[str, ...] = ()
    topic_count: int = 0
    reason: str = ""
    concerns: Collection[str] = attrs.field(default=(), eq=False, repr=False)
