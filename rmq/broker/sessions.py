"""
Connected clients: the members of producer and consumer groups, from their heartbeats.

The tables send nothing: changes are returned or passed to ``changed``, and :class:`ChangeNotices` notifies the members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from rmq.broker.topics import RETRY_PREFIX
from rmq.wire.api.clients import NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroupHeader
from rmq.wire.api.common import SubscriptionData
from rmq.wire.command import RemotingCommand

#: a member without a heartbeat for longer expires.  Java: ProducerManager, ConsumerManager CHANNEL_EXPIRED_TIMEOUT
MEMBER_EXPIRY_MS = 120_000
#: limit of the heartbeats that :class:`Heartbeats` keeps, in bytes of their bodies; a longer one is not kept
MAX_KEPT_BYTES, MAX_KEPT_BODY_BYTES = 32 << 20, 16 << 10
#: changes of a group within so many seconds after a notice cause one notice together
COALESCE_S = 0.05
#: how many differences of subscriptions are logged of a group while it has members
MAX_DIFFERENCES = 100


class ClientLink(Protocol):
    """The part of a remoting Channel that sessions use."""

    @property
    def peer(self) -> str: ...

    @property
    def is_open(self) -> bool: ...

    def oneway(self, contract: Any, header: Any, body: Any) -> object: ...

    def invoke(self, contract: Any, header: Any, body: Any, *, timeout_ms: float) -> Deferred[Any]: ...

    def request(self, command: RemotingCommand, *, timeout_ms: float) -> Deferred[RemotingCommand]: ...

    def close(self, reason: str) -> object: ...


@attrs.define(eq=False, kw_only=True)
class Member:
    """One client in one group.  Java: ClientChannelInfo"""

    channel: ClientLink
    client_id: str
    language: str
    version: int
    #: steady time of the last heartbeat; a change of the wall clock expires no member
    last_heard_ms: int


@attrs.define(kw_only=True)
class ProducerGroups:
    """
    Producers by group and connection.

    Java: ProducerManager
    """

    _groups: dict[str, dict[ClientLink, Member]] = attrs.field(factory=dict, init=False)
    #: client id -> its members by group and connection, the one that registered last at the end
    _clients: dict[str, dict[tuple[str, ClientLink], Member]] = attrs.field(factory=dict, init=False)
    #: the groups of each connection: many connections may close at once
    _of: dict[ClientLink, dict[str, None]] = attrs.field(factory=dict, init=False)

    def register(self, group: str, member: Member) -> None:
        channel = member.channel
        members = self._groups.setdefault(group, {})
        former = members.get(channel)
        if former is not None:
            _take_out(self._clients, former.client_id, (group, channel))
        members[channel] = member  # a former one keeps its place
        self._clients.setdefault(member.client_id, {})[group, channel] = member
        self._of.setdefault(channel, {})[group] = None

    def has(self, group: str, member: Member) -> bool:
        """Return whether :meth:`register` of ``member`` would change nothing."""
        members = self._groups.get(group)
        return (
            members is not None
            and members.get(member.channel) is member
            and self.find_client(member.client_id) is member
        )

    def unregister(self, group: str, channel: ClientLink) -> None:
        members = self._groups.get(group)
        gone = None if members is None else members.pop(channel, None)
        if gone is None:
            return
        _take_out(self._clients, gone.client_id, (group, channel))
        _take_out(self._of, channel, group)
        if not members:
            del self._groups[group]

    def find_client(self, client_id: str) -> Member | None:
        """Return a producer by its client id, whatever its groups.  Java: ProducerManager#findChannel"""
        members = self._clients.get(client_id)
        return None if members is None else members[next(reversed(members))]

    def channel_closed(self, channel: ClientLink) -> None:
        for group in list(self._of.get(channel, ())):
            self.unregister(group, channel)

    def expire(self, now_ms: int) -> list[Member]:
        """Remove and return the members without a heartbeat for MEMBER_EXPIRY_MS; ``now_ms`` is steady time."""
        gone = []
        for group, members in list(self._groups.items()):
            for member in _expired(members.values(), now_ms):
                gone.append(member)
                self.unregister(group, member.channel)
        return gone

    def members(self, group: str) -> list[Member]:
        return list(self._groups.get(group, {}).values())

    def table(self) -> dict[str, list[Member]]:
        """Every group with its members."""
        return {group: list(members.values()) for group, members in self._groups.items()}


@attrs.define(eq=False, kw_only=True)
class ConsumerGroup:
    """
    The online members of a group and what the group subscribes to.

    Java: ConsumerGroupInfo
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, SubscriptionData] = attrs.field(factory=dict)
    members: dict[ClientLink, Member] = attrs.field(factory=dict)
    #: grows with each change of what heartbeats say of the group itself
    revision: int = 0
    #: what :meth:`differences` has returned: topics, and two expressions each
    _said: set[tuple[str, frozenset[str]]] = attrs.field(factory=set)

    @property
    def client_ids(self) -> list[str]:
        """Client ids in order of joining, each once: a client that reconnects has two connections for a moment."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def member(self, client_id: str) -> Member | None:
        return next((member for member in self.members.values() if member.client_id == client_id), None)

    def settle(self, consume_type: str, message_model: str, consume_from_where: str) -> None:
        """Take what a heartbeat says of the group: the last one counts."""
        said = consume_type, message_model, consume_from_where
        if said != (self.consume_type, self.message_model, self.consume_from_where):
            self.consume_type, self.message_model, self.consume_from_where = said
            self.revision += 1

    def refresh(self, member: Member) -> bool:
        """Record a heartbeat; True when the member's connection is new to the group."""
        joined = member.channel not in self.members
        self.members[member.channel] = member
        return joined

    def differences(self, client_id: str, subscriptions: Iterable[SubscriptionData]) -> list[str]:
        """
        Return where a member's subscriptions are not those that the group has by others, in words for a log.

        Each difference is returned once, whichever member's heartbeat shows it.
        """
        if all(member.client_id == client_id for member in self.members.values()):
            return []
        theirs = {subscription.topic: subscription for subscription in subscriptions}
        found = []
        for name in sorted(theirs.keys() | self.subscriptions.keys()):
            member, group = (_expression(table.get(name)) for table in (theirs, self.subscriptions))
            difference = name, frozenset((member, group))
            if member == group or name == RETRY_PREFIX + self.name or difference in self._said:
                continue
            if len(self._said) < MAX_DIFFERENCES:
                self._said.add(difference)
                found.append(f"topic {name}: {client_id} subscribes to {member}, the group to {group}")
        return found

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """
        Merge a heartbeat's subscriptions; True when a topic was added or removed.

        A known topic's subscription is replaced by a newer ``sub_version`` only.
        """
        changed = False
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
                self.revision += 1
                changed = changed or known is None
        for topic in self.subscriptions.keys() - named:
            del self.subscriptions[topic]
            self.revision += 1
            changed = True
        return changed


def _expression(data: SubscriptionData | None) -> str:
    """Return a subscription in words, the same for all spellings of the same tags."""
    if data is None:
        return "nothing"
    if data.expression_type not in (None, "", "TAG"):
        return f"{data.expression_type} {data.sub_string}"
    return " || ".join(sorted({tag for part in data.sub_string.split("||") if (tag := part.strip())})) or "*"


@attrs.define(kw_only=True)
class ConsumerGroups:
    """
    Consumers by group and connection.

    ``changed(group)`` is called when members leave by themselves, ``offline(group name)`` with the last of them.

    Java: ConsumerManager
    """

    changed: Callable[[ConsumerGroup], object]
    offline: Callable[[str], object]
    #: grows with each group that comes or goes, and with the revision of each
    revision: int = attrs.field(default=0, init=False)
    _groups: dict[str, ConsumerGroup] = attrs.field(factory=dict, init=False)
    #: the groups of each connection
    _of: dict[ClientLink, dict[str, None]] = attrs.field(factory=dict, init=False)

    def find(self, group: str) -> ConsumerGroup | None:
        """Return the group if it has a member online."""
        return self._groups.get(group)

    def names(self) -> list[str]:
        return list(self._groups)

    def register(
        self,
        name: str,
        member: Member,
        subscriptions: Collection[SubscriptionData] | None,
        *,
        consume_type: str,
        message_model: str,
        consume_from_where: str,
    ) -> ConsumerGroup | None:
        """
        Record a heartbeat and return the group if its members or topics changed.

        ``subscriptions`` None leaves them as they are (a 5.x heartbeat without subscriptions).
        """
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name=name)
            self.revision += 1
        before = group.revision
        group.settle(consume_type, message_model, consume_from_where)
        joined = group.refresh(member)
        if joined:
            self._of.setdefault(member.channel, {})[name] = None
        resubscribed = subscriptions is not None and group.subscribe(subscriptions)
        self.revision += group.revision - before
        return group if joined or resubscribed else None

    def unregister(self, name: str, channel: ClientLink) -> ConsumerGroup | None:
        """Remove a connection; return the group if it was a member, even if the group is now empty."""
        group = self._groups.get(name)
        if group is None or group.members.pop(channel, None) is None:
            return None
        _take_out(self._of, channel, name)
        if not group.members:
            del self._groups[name]
            self.revision += 1
            self.offline(name)
        return group

    def channel_closed(self, channel: ClientLink) -> None:
        for name in list(self._of.get(channel, ())):
            group = self.unregister(name, channel)
            if group is not None:
                self.changed(group)

    def expire(self, now_ms: int) -> list[Member]:
        """Remove and return the members without a heartbeat for MEMBER_EXPIRY_MS; ``now_ms`` is steady time."""
        gone = []
        for name, group in list(self._groups.items()):
            late = _expired(group.members.values(), now_ms)
            for member in late:
                self.unregister(name, member.channel)
            if late:
                gone += late
                self.changed(group)
        return gone

    def subscribers(self, topic: str) -> list[str]:
        """Groups that are online and subscribe to ``topic``."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def subscribed_topics(self) -> set[str]:
        """The topics that groups which are online subscribe to."""
        return {topic for group in self._groups.values() for topic in group.subscriptions}


@attrs.frozen(kw_only=True)
class Heartbeat:
    """
    What a connection said last, and the state that it left; ``groups`` are consumer groups with their revision.

    ``tables`` are the versions of the tables of topics and of subscription groups.
    """

    body: bytes
    member: Member
    groups: Sequence[tuple[ConsumerGroup, int]]
    producer_groups: Sequence[str]
    tables: tuple[object, object]


@attrs.define
class Heartbeats:
    """The last heartbeat of each connection, as far as they fit into MAX_KEPT_BYTES: most clients repeat them."""

    _kept: dict[ClientLink, Heartbeat] = attrs.field(factory=dict, init=False)
    kept_bytes: int = attrs.field(default=0, init=False)

    def keep(self, heartbeat: Heartbeat) -> None:
        channel = heartbeat.member.channel
        self.channel_closed(channel)
        if len(heartbeat.body) > MAX_KEPT_BODY_BYTES or not channel.is_open:
            return
        if self.kept_bytes + len(heartbeat.body) > MAX_KEPT_BYTES:
            self._kept.clear()
            self.kept_bytes = 0
        self._kept[channel] = heartbeat
        self.kept_bytes += len(heartbeat.body)

    def find(self, channel: ClientLink) -> Heartbeat | None:
        return self._kept.get(channel)

    def channel_closed(self, channel: ClientLink) -> None:
        gone = self._kept.pop(channel, None)
        if gone is not None:
            self.kept_bytes -= len(gone.body)


def _take_out(table: dict[Any, dict[Any, Any]], key: Any, entry: Any) -> None:
    """Remove an entry of a table in a table, and the inner table when it is empty."""
    inner = table[key]
    del inner[entry]
    if not inner:
        del table[key]


def _expired(members: Iterable[Member], now_ms: int) -> list[Member]:
    return [member for member in members if now_ms - member.last_heard_ms > MEMBER_EXPIRY_MS]


class ChangeNotices:
    """
    Notify the members of a group that it changed (one-way code 40).

    ``now`` notifies at once, a new member before its own heartbeat is answered; further changes of the group within
    COALESCE_S cause one more notice, at the end. ``soon`` collects the changes of one reactor turn. So a thousand
    clients that come, or lost connections, cause a few notices for each member, not a thousand.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, *, enabled: bool) -> None:
        self._clock = clock
        self._enabled = enabled
        self._waiting: dict[str, ConsumerGroup] = {}
        #: groups that were notified since the last flush
        self._told: set[str] = set()
        self._call: IDelayedCall | None = None

    def now(self, group: ConsumerGroup) -> None:
        if not self._enabled:
            return
        if group.name in self._told:
            self._waiting[group.name] = group
            return
        self._told.add(group.name)
        self._flush_after(COALESCE_S)
        header = ConsumerGroupHeader(consumer_group=group.name)
        for channel in list(group.members):
            if channel.is_open:
                channel.oneway(NOTIFY_CONSUMER_IDS_CHANGED, header, None)
        self._log.debug(
            "notified {count} members that group {group} changed", count=len(group.members), group=group.name
        )

    def soon(self, group: ConsumerGroup) -> None:
        if not self._enabled or not group.members:
            return
        self._waiting[group.name] = group
        self._flush_after(0.0)

    def _flush_after(self, seconds: float) -> None:
        if self._call is None:
            self._call = self._clock.callLater(seconds, self._flush)

    def stop(self) -> None:
        """Drop pending notices; there are no others from now on."""
        self._enabled = False
        self._waiting.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _flush(self) -> None:
        self._call = None
        waiting, self._waiting = self._waiting, {}
        self._told.clear()
        for group in waiting.values():
            self.now(group)
