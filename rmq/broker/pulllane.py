"""
The fast path of pulls that find messages, and of those that wait for one.

The reference is :meth:`rmq.broker.responders.pulling.PullResponder.pull`; the lane gives the same bytes, or declines
the request without side effects. It needs the compiled module `rmq.store._pick`.
"""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from rmq.broker.filters import TagCodes, filter_bytes
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.longpoll import HeldPull, LongPolls
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.responders.pulling import PullResponder, most_messages
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import BrokerStats
from rmq.broker.topics import TopicTable
from rmq.remoting.channel import Channel
from rmq.remoting.protocol import MAX_WAITING_ANSWERS
from rmq.remoting.responders import MAX_COLLECTED_BYTES, Request, ResponderTable, Written
from rmq.runtime.disk.files import DiskError
from rmq.store.filtercode import PropertyFilter
from rmq.store.messages import GetStatus
from rmq.store.reader import Picked
from rmq.store.store import MessageStore
from rmq.wire.api.common import SubscriptionData, SubscriptionGroupConfig, TopicConfig
from rmq.wire.api.pulling import PULL_SUBSCRIPTION, PullMessageHeader
from rmq.wire.codes import MQ_VERSION, RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from rmq.wire.compiled import load
from rmq.wire.extfields import Int32
from rmq.wire.frames import PREFIX

#: limits of known pulls and of the memory for their keys and filters; beyond them all are checked again
MAX_KNOWN_PULLS, MAX_KNOWN_BYTES = 10_000, 64 << 20

_compiled: Any = load("rmq.store._pick")


def _tail(status: GetStatus) -> bytes:
    """Return what ends the header of an answer."""
    return f',"remark":"{status.name}","serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'.encode()


_FOUND = _tail(GetStatus.FOUND)
_AT_END = _tail(GetStatus.OFFSET_OVERFLOW_ONE)
_EMPTY = _tail(GetStatus.NO_MESSAGE_IN_QUEUE)

#: a longer answer may exceed the frame limit; the responder refuses it
MAX_LANE_BYTES = 8 << 20
#: what differs between the pulls of a consumer, beside the opaque
_NUMBERS = b"queueId", b"queueOffset", b"commitOffset"


def add_pull_lane(
    table: ResponderTable,
    responder: PullResponder,
    settings: Settings,
    clock: IReactorTime,
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    consumers: ConsumerGroups,
    offsets: ConsumerOffsetTable,
    polls: LongPolls,
    stats: BrokerStats,
) -> None:
    """Add the lanes of pulls to a table: PULL_MESSAGE, and LITE_PULL_MESSAGE of consumers that poll themselves."""
    if _compiled is not None:
        parts = table, responder, settings, clock, store, topics, groups, consumers, offsets, polls, stats
        table.add_chunk_lane(PullLane(int(RequestCode.PULL_MESSAGE), *parts))
        table.add_chunk_lane(PullLane(int(RequestCode.LITE_PULL_MESSAGE), *parts))


class _PullCommand(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A JSON header of a pull, read in one go; all that `rmq.wire.command` reads, so that it refuses no less."""

    code: Int32
    opaque: Int32
    ext_fields: PullMessageHeader
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None
    remark: str | None = None


_decode = msgspec.json.Decoder(_PullCommand, strict=False).decode


@attrs.define(eq=False)
class _KnownPull:
    """What a consumer asks again and again, apart from its numbers, and what the check that it passed has found."""

    #: of the pull that was checked; its numbers do not count
    header: PullMessageHeader
    group: str
    topic: str
    #: how many queues may be read
    queues: int
    most: int
    codes: TagCodes | None
    accepts: PropertyFilter | None
    commits: bool
    #: see `ConsumerOffsetTable.key`
    offset_key: str | None
    #: how long it may wait for a message; None when it may not
    wait_ms: int | None
    #: the broker to pull from next, after recent messages and after old ones
    usual_broker: int
    old_broker: int
    #: what the group's heartbeats said; None for a pull that says itself what it subscribes to
    subscription: SubscriptionData | None
    message_model: str | None
    #: with which configuration, topic and group it was checked
    setup: object
    topic_config: TopicConfig
    group_config: SubscriptionGroupConfig | None
    #: of the lane, when these and the heartbeats were looked at
    terms: object
    #: memory for its subscription and tags
    filter_bytes: int
    #: what the statistics do not have yet: how many pulls found messages, how many, their bytes
    found: int = attrs.field(init=False, default=0)
    messages: int = attrs.field(init=False, default=0)
    size_bytes: int = attrs.field(init=False, default=0)


@attrs.define(eq=False, kw_only=True)
class _Held(HeldPull):
    """A held pull that the lane answers."""

    known: _KnownPull
    opaque: int
    started_s: float


@attrs.define(eq=False)
class PullLane:
    """
    See :class:`rmq.remoting.responders.ChunkLane`.

    A pull is decoded and checked when it is first met. Another one whose header differs in nothing but its queue, its
    offsets and its opaque needs neither, until its topic, group or subscription, or the configuration, change.

    A pull at the end of its queue waits here; it is not counted as answered before it is.
    """

    code: int
    _table: ResponderTable
    _responder: PullResponder
    _settings: Settings
    _clock: IReactorTime
    _store: MessageStore
    _topics: TopicTable
    _groups: SubscriptionGroupTable
    _consumers: ConsumerGroups
    _offsets: ConsumerOffsetTable
    _polls: LongPolls
    _stats: BrokerStats
    _known: dict[bytes, _KnownPull] = attrs.field(init=False, factory=dict)
    _known_bytes: int = attrs.field(init=False, default=0)
    #: SQL92 filters of known pulls, by id: many pulls share one
    _filters: dict[int, PropertyFilter] = attrs.field(init=False, factory=dict)
    #: of configuration, topics, groups and heartbeats, when they were last looked at
    _setup: object = attrs.field(init=False, default=None)
    _topics_version: object = attrs.field(init=False, default=None)
    _groups_version: object = attrs.field(init=False, default=None)
    _consumers_revision: int = attrs.field(init=False, default=-1)
    #: another object whenever one of the four is another one
    _terms: object = attrs.field(init=False, default=None)
    #: the last read for a held pull, and what it depended on: many groups often wait for the same message
    _read: Picked | None = attrs.field(init=False, default=None)
    _read_at: object = attrs.field(init=False, default=None)
    #: those of which the statistics lack something
    _counted: list[_KnownPull] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self._stats.sources.append(self._count)

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        known, pick, commit_higher = self._known, self._store.pick, self._offsets.commit_higher
        split = _compiled.split
        count = collected = 0
        if self._has_other_terms():
            self._renew_terms()
        terms = self._terms
        while collected < MAX_COLLECTED_BYTES:
            parts = split(data, position, _NUMBERS)
            if parts is None:
                break
            key, stop, opaque, queue_id, queue_offset, commit_offset = parts
            pull = known.get(key)
            if pull is None or (pull.terms is not terms and not self._still_holds(pull)):
                pull = self._learn(key, data, position, channel.peer)
                if pull is None:
                    break
            if not 0 <= queue_id < pull.queues:
                break
            picked = pick(
                pull.topic,
                queue_id,
                queue_offset,
                pull.most,
                pull.codes,
                pull.accepts,
                (pull.usual_broker, pull.old_broker, opaque, _FOUND),
            )
            if picked is None:
                # the responder knows when a filtered pull must wait once more; too many waiting requests are refused
                if (
                    queue_offset != self._store.max_offset(pull.topic, queue_id)
                    or (pull.accepts is not None and pull.wait_ms is not None)
                    or channel.waiting_answers >= MAX_WAITING_ANSWERS
                ):
                    break
                self._stats.missed()
                if pull.commits:
                    self._offsets.commit(pull.group, pull.topic, queue_id, commit_offset)
                if pull.wait_ms is None or not self._hold(pull, pull.wait_ms, queue_id, queue_offset, opaque, channel):
                    answer = self._not_found(pull, queue_id, queue_offset, opaque)
                    answers.append(answer)
                    collected += len(answer)
                    count += 1
                position = stop
                continue
            answer, size, messages, _, _, _, _ = picked
            if not messages or size > MAX_LANE_BYTES:
                break
            offset_key = pull.offset_key
            if pull.commits and (offset_key is None or not commit_higher(offset_key, queue_id, commit_offset)):
                self._offsets.commit(pull.group, pull.topic, queue_id, commit_offset)
            self._got(pull, messages, size)
            answers.append(answer)
            collected += size
            count += 1
            position = stop
        return position, count

    def _got(self, pull: _KnownPull, messages: int, size: int) -> None:
        """Note what a pull found, for :meth:`_count`."""
        if not pull.found:
            self._counted.append(pull)
        pull.found += 1
        pull.messages += messages
        pull.size_bytes += size

    def _count(self) -> None:
        """Tell the statistics what was found since they asked."""
        counted, self._counted = self._counted, []
        for pull in counted:
            self._stats.got(pull.group, pull.topic, pull.messages, pull.size_bytes, pull.found)
            pull.found = pull.messages = pull.size_bytes = 0

    def _has_other_terms(self) -> bool:
        """True when configuration, topics, groups or what heartbeats say of them have changed."""
        return (
            self._settings.setup is not self._setup
            or self._topics.data_version is not self._topics_version
            or self._groups.data_version is not self._groups_version
            or self._consumers.revision != self._consumers_revision
        )

    def _renew_terms(self) -> None:
        """Have each known pull looked at again."""
        self._terms = object()
        self._setup, self._topics_version = self._settings.setup, self._topics.data_version
        self._groups_version, self._consumers_revision = self._groups.data_version, self._consumers.revision

    def _still_holds(self, pull: _KnownPull) -> bool:
        """True when none of the changes since a pull was checked are of its topic, its group or the configuration."""
        if (
            pull.setup is not self._setup
            or self._topics.get(pull.topic) != pull.topic_config
            or self._groups.get(pull.group) != pull.group_config
            or (pull.subscription is not None and not self._is_current(pull))
        ):
            return False
        pull.terms = self._terms
        return True

    def _is_current(self, pull: _KnownPull) -> bool:
        """True unless heartbeats changed what counts for a pull."""
        online = self._consumers.find(pull.group)
        return (
            online is not None
            and online.subscriptions.get(pull.topic) is pull.subscription
            and online.message_model == pull.message_model
        )

    def _learn(self, key: bytes, data: bytes, position: int, peer: str) -> _KnownPull | None:
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
        admitted = self._responder.admitted(header, peer)
        if admitted is None or not isinstance(admitted.matches, TagCodes | None):
            return None
        topic = self._topics.get(header.topic)
        if topic is None:
            return None
        subscription = message_model = None
        if not header.sys_flag & PULL_SUBSCRIPTION:
            online = self._consumers.find(header.consumer_group)
            if online is None:
                return None
            subscription, message_model = online.subscriptions[header.topic], online.message_model
        # the key is there as bytes, and its texts once more in the header
        size_bytes = 2 * len(key) + filter_bytes(admitted.matches)
        if admitted.accepts is not None and id(admitted.accepts) not in self._filters:
            size_bytes += admitted.accepts.size_bytes
        if len(self._known) >= MAX_KNOWN_PULLS or self._known_bytes + size_bytes > MAX_KNOWN_BYTES:
            self._count()
            self._known.clear()
            self._filters.clear()
            self._known_bytes = 0
        if admitted.accepts is not None:
            self._filters[id(admitted.accepts)] = admitted.accepts
        self._known_bytes += size_bytes
        usual, old = (self._responder.suggested_broker(is_old, admitted.group) for is_old in (False, True))
        pull = self._known[key] = _KnownPull(
            header,
            header.consumer_group,
            header.topic,
            topic.read_queue_nums,
            most_messages(header),
            admitted.matches,
            admitted.accepts,
            self._responder.commits(header),
            self._offsets.key(header.consumer_group, header.topic),
            self._responder.wait_ms(header),
            usual,
            old,
            subscription,
            message_model,
            self._setup,
            topic,
            self._groups.get(header.consumer_group),
            self._terms,
            len(header.subscription or "") + filter_bytes(admitted.matches),
        )
        return pull

    # waiting

    def _hold(
        self, pull: _KnownPull, wait_ms: int, queue_id: int, queue_offset: int, opaque: int, channel: Channel
    ) -> bool:
        """Hold a pull; False when the table is full."""
        is_held = self._polls.hold(
            _Held(
                topic=pull.topic,
                queue_id=queue_id,
                from_offset=queue_offset,
                deadline_ms=int(channel.last_active_s * 1000) + wait_ms,
                channel=channel,
                matches=pull.codes,
                wake=self._again,
                size_bytes=pull.filter_bytes,
                known=pull,
                opaque=opaque,
                started_s=channel.last_active_s,
            )
        )
        channel.waiting_answers += is_held
        return is_held

    def _again(self, held: _Held) -> bytes | None:
        """Answer a held pull; one that waits a second time is counted and written when that ends."""
        written = self._answer(held)
        if isinstance(written, Deferred):
            written.addCallback(self._answer_late, held)
            return None
        self._observe(held)
        return written

    def _answer_late(self, answer: bytes | None, held: _Held) -> None:
        self._observe(held)
        if answer is not None:
            held.channel.write(answer)

    def _observe(self, held: _Held) -> None:
        held.channel.waiting_answers -= 1
        self._table.stats.observe(self.code, self._clock.seconds() - held.started_s)

    def _answer(self, held: _Held) -> Written:
        """Do as :meth:`rmq.broker.responders.pulling.PullResponder.again`."""
        pull = held.known
        if not held.channel.is_open:
            return None
        if self._has_other_terms():
            self._renew_terms()
        if pull.terms is not self._terms and not self._still_holds(pull):
            return self._ordinary(held)
        topic, queue_id, offset = held.topic, held.queue_id, held.from_offset
        store = self._store
        end = store.max_offset(topic, queue_id)
        if offset == end:
            self._stats.missed()
            return self._not_found(pull, queue_id, offset, held.opaque)
        read_at = (
            topic,
            queue_id,
            offset,
            pull.most,
            pull.codes,
            store.min_offset(topic, queue_id),
            end,
            store.end_offset,
        )
        if read_at != self._read_at:
            try:
                self._read = store.pick(topic, queue_id, offset, pull.most, pull.codes, None)
            except DiskError:
                return self._ordinary(held)
            self._read_at = read_at
        if self._read is None:
            return self._ordinary(held)
        records, size, messages, following, low, high, is_old = self._read
        if not messages or size > MAX_LANE_BYTES:
            return self._ordinary(held)
        self._got(pull, messages, size)
        broker = pull.old_broker if is_old else pull.usual_broker
        head: bytes = _compiled.pull_head(0, broker, following, low, high, held.opaque, _FOUND, size)
        return head + records

    def _not_found(self, pull: _KnownPull, queue_id: int, offset: int, opaque: int) -> bytes:
        """Return the answer to a pull at the end of its queue."""
        code = ResponseCode.PULL_NOT_FOUND
        self._table.stats.refused(self.code, code)
        low = self._store.min_offset(pull.topic, queue_id)
        answer: bytes = _compiled.pull_head(
            code, pull.usual_broker, offset, low, offset, opaque, _AT_END if offset else _EMPTY, 0
        )
        return answer

    def _ordinary(self, held: _Held) -> Written:
        """Have the responder answer a held pull, which has committed and waited."""
        header = msgspec.structs.replace(held.known.header, queue_id=held.queue_id, queue_offset=held.from_offset)
        command = RemotingCommand(self.code, opaque=held.opaque)
        request: Request[PullMessageHeader, None] = Request(header, None, command, held.channel)
        return self._table.finish(command, lambda: self._responder.again(request, held.deadline_ms))
