"""Why the routes change: the causes of events, and the words that log, journal and status page have for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class Why(Enum):
    """
    One reason for an event; its value has the words, with the names of the facts in braces.

    ``peer`` is always known: the connection that caused the event.
    """

    # a registration
    NEW = "new broker"
    ID_CHANGED = "broker id changed from {before} to {now}"
    TOOK_PLACE = "it replaced {addr}"
    PLACE_AGAIN = "the broker that had replaced it is gone"
    HA_ADDR_CHANGED = "HA address changed from {before} to {now}"
    CLUSTER_CHANGED = "cluster changed from {before} to {now}"
    FILTER_SERVERS_CHANGED = "filter servers changed"
    TOPICS_CHANGED = "topics changed: {count}"
    TOPICS_ABSENT = "missing in the registration of {addr}"
    CONNECTION_CHANGED = "connection changed from {before} to {now}"
    # the end of a broker
    UNREGISTERED = "the broker unregistered"
    CONNECTION_CLOSED = "connection {closed} closed: {reason}"
    SILENT = "silent for {silent_ms:,} ms"
    LOST_PLACE = "{addr} registered with the same name and id"
    LOWER_STATE_VERSION = "state version {version} is lower than {higher} of {addr}"
    # requests and ends of connections that are ignored
    STALE_REGISTRATION = "registration over an older connection than {current}"
    STALE_UNREGISTER = "unregister request over an older connection than {current}"
    OTHER_ID = "unregister request for id {id}, the id is {current} now"
    NEWER_CONNECTION = "the broker has registered over {current} since"
    HAD_LOST_PLACE = "{holder} had replaced it before"
    # changes of groups
    MASTER_GONE = "the group has no master"
    WIPE_WRITE_PERM = "wipeWritePerm by {peer}"
    ADD_WRITE_PERM = "addWritePerm by {peer}"
    DELETE_TOPIC = "deleted by {peer}"
    DELETE_TOPIC_IN_CLUSTER = "deleted in cluster {cluster} by {peer}"
    REGISTER_TOPIC = "registered by {peer}"


class Cause(NamedTuple):
    """A reason with its facts."""

    why: Why
    facts: Mapping[str, object]


def because(why: Why, **facts: object) -> Cause:
    """Return a cause."""
    return Cause(why, facts)


def reason_of(causes: Iterable[Cause], peer: str) -> str:
    """Return the causes of an event in words: clauses, joined by semicolons."""
    return "; ".join(cause.why.value.format(peer=peer or "an unknown peer", **cause.facts) for cause in causes)
