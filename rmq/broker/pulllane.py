"""
The fast path of pulls that find messages.

The reference is :meth:`rmq.broker.responders.pulling.PullResponder.pull`; the lane gives the same bytes, or declines
the request without side effects. It needs the compiled module `rmq.store._pick`.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.responders.pulling import PullResponder, most_messages
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import TopicTable
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES, ResponderTable
from rmq.store.filtercode import PropertyFilter
from rmq.store.store import MessageStore
from rmq.wire.api.common import SubscriptionData
from rmq.wire.api.pulling import PULL_SUBSCRIPTION, PullMessageHeader
from rmq.wire.codes import MQ_VERSION, RequestCode
from rmq.wire.compiled import load
from rmq.wire.extfields import Int32
from rmq.wire.frames import PREFIX

#: limit of known pulls; beyond it all are checked again
MAX_KNOWN_PULLS = 10_000

_compiled: Any = load("rmq.store._pick")
_TAIL = f',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'.encode()


#: a longer answer may exceed the frame limit; the responder refuses it
MAX_LANE_BYTES = 8 << 20
#: what differs between the pulls of a consumer, beside the opaque
_NUMBERS = b'"queueOffset":"', b'"commitOffset":"'


def add_pull_lane(
    table: ResponderTable,
    responder: PullResponder,
    settings: Settings,
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    consumers: ConsumerGroups,
    offsets: ConsumerOffsetTable,
    stats: BrokerStats,
) -> None:
    """Add the pull lane to a table."""
    if _compiled is not None:
        table.add_chunk_lane(PullLane(responder, settings, store, topics, groups, consumers, offsets, stats))


class _PullCommand(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A JSON header of a pull, read in one go."""

    code: Int32
    opaque: Int32
    ext_fields: PullMessageHeader
    flag: Int32 = 0


_decode = msgspec.json.Decoder(_PullCommand, strict=False).decode


@attrs.frozen
class _KnownPull:
    """What a consumer asks again and again, apart from its offsets, and what the check that it passed has found."""

    group: str
    topic: str
    queue_id: int
    most: int
    codes: frozenset[int] | None
    accepts: PropertyFilter | None
    commits: bool
    #: the brokers to pull from next, after recent messages and after old ones
    brokers: tuple[int, int]
    #: what the group's heartbeats said; None for a pull that says itself what it subscribes to
    subscription: SubscriptionData | None
    message_model: str | None


@attrs.define(eq=False)
class PullLane:
    """
    See :class:`rmq.remoting.responders.ChunkLane`.

    A pull is decoded and checked when it is first met. Another one whose header differs in nothing but its offsets and
    its opaque needs neither, until topics, groups, subscriptions or the configuration change.
    """

    code = int(RequestCode.PULL_MESSAGE)

    _responder: PullResponder
    _settings: Settings
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable
    _stats: BrokerStats
    _known: dict[bytes, _KnownPull] = attrs.field(init=False, factory=dict)
    #: of configuration, topics and groups, with which the known pulls were checked
    _setup: object = attrs.field(init=False, default=None)
    _topics_version: object = attrs.field(init=False, default=None)
    _groups_version: object = attrs.field(init=False, default=None)

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        known, pick = self._known, self._store.pick
        split, head_of = _compiled.split, _compiled.pull_head
        count = collected = 0
        while collected < MAX_COLLECTED_BYTES:
            parts = split(data, position, _NUMBERS)
            if parts is None:
                break
            key, stop, opaque, queue_offset, commit_offset = parts
            if (
                self._settings.setup is not self._setup
                or self._topics.data_version is not self._topics_version
                or self._groups.data_version is not self._groups_version
            ):
                known.clear()
                self._setup, self._topics_version = self._settings.setup, self._topics.data_version
                self._groups_version = self._groups.data_version
            pull = known.get(key)
            if pull is None or (pull.subscription is not None and not self._is_current(pull)):
                pull = self._learn(key, data, position, (opaque, queue_offset, commit_offset), channel.peer)
                if pull is None:
                    break
            picked = pick(pull.topic, pull.queue_id, queue_offset, pull.most, pull.codes, pull.accepts)
            if picked is None:
                break
            records, messages, following, low, high, is_old = picked
            size = len(records)
            if not messages or size > MAX_LANE_BYTES:
                break
            if pull.commits:
                self._offsets.commit(pull.group, pull.topic, pull.queue_id, commit_offset)
            self._stats.got(pull.group, pull.topic, messages, size)
            answers += head_of(pull.brokers[is_old], following, low, high, opaque, _TAIL, size), records
            collected += size
            count += 1
            position = stop
        return position, count

    def _is_current(self, pull: _KnownPull) -> bool:
        """True unless heartbeats changed what counts for a pull."""
        online = self._consumers.find(pull.group)
        return (
            online is not None
            and online.subscriptions.get(pull.topic) is pull.subscription
            and online.message_model == pull.message_model
        )

    def _learn(
        self, key: bytes, data: bytes, position: int, numbers: tuple[int, int, int], peer: str
    ) -> _KnownPull | None:
        """Decode and check the pull at ``position``, remember it under ``key``; None when it is refused or unusual."""
        _, header_bytes = PREFIX.unpack_from(data, position)
        start = position + PREFIX.size
        try:
            command = _decode(data[start : start + header_bytes])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if command.code != self.code or command.flag:
            return None
        header = command.ext_fields
        if numbers != (command.opaque, header.queue_offset, header.commit_offset):
            return None  # a name is there twice, and the other one counts
        admitted = self._responder.admitted(header, peer)
        if admitted is None or not isinstance(admitted.matches, frozenset | None):
            return None
        subscription = message_model = None
        if not header.sys_flag & PULL_SUBSCRIPTION:
            online = self._consumers.find(header.consumer_group)
            if online is None:
                return None
            subscription, message_model = online.subscriptions[header.topic], online.message_model
        if len(self._known) >= MAX_KNOWN_PULLS:
            self._known.clear()
        usual, old = (self._responder.suggested_broker(is_old, admitted.group) for is_old in (False, True))
        pull = self._known[key] = _KnownPull(
            header.consumer_group,
            header.topic,
            header.queue_id,
            most_messages(header),
            admitted.matches,
            admitted.accepts,
            self._responder.commits(header),
            (usual, old),
            subscription,
            message_model,
        )
        return pull
