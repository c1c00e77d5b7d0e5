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
from rmq.broker.responders.pulling import Admitted, PullResponder
from rmq.broker.sessions import ConsumerGroups
from rmq.broker.settings import Settings
from rmq.broker.topics import TopicTable
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES, ResponderTable
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


def add_pull_lane(
    table: ResponderTable,
    responder: PullResponder,
    settings: Settings,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    consumers: ConsumerGroups,
) -> None:
    """Add the pull lane to a table."""
    if _compiled is not None:
        table.add_chunk_lane(PullLane(responder, settings, topics, groups, consumers))


class _PullCommand(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A JSON header of a pull, read in one go."""

    code: Int32
    opaque: Int32
    ext_fields: PullMessageHeader
    flag: Int32 = 0


@attrs.frozen
class _KnownPull:
    """What a consumer asks again and again, apart from its offsets, and the check that it passed."""

    header: PullMessageHeader
    admitted: Admitted
    #: what the group's heartbeats said; None for a pull that says itself what it subscribes to
    subscription: SubscriptionData | None
    message_model: str | None


class PullLane:
    """
    See :class:`rmq.remoting.responders.ChunkLane`.

    A pull is decoded and checked when it is first met. Another one whose header differs in nothing but its offsets and
    its opaque needs neither, until topics, groups, subscriptions or the configuration change.
    """

    code = int(RequestCode.PULL_MESSAGE)

    def __init__(
        self,
        responder: PullResponder,
        settings: Settings,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        consumers: ConsumerGroups,
    ) -> None:
        self._responder = responder
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._decode = msgspec.json.Decoder(_PullCommand, strict=False).decode
        self._known: dict[bytes, _KnownPull] = {}
        #: of configuration, topics and groups, with which the known pulls were checked
        self._versions: tuple[object, object, object] = (None, None, None)

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        split, known = _compiled.split_pull, self._known
        count = collected = 0
        while collected < MAX_COLLECTED_BYTES:
            parts = split(data, position)
            if parts is None:
                break
            key, opaque, queue_offset, commit_offset, stop = parts
            setup, topics, groups = self._versions
            if (
                self._settings.setup is not setup
                or self._topics.data_version is not topics
                or self._groups.data_version is not groups
            ):
                known.clear()
                self._versions = self._settings.setup, self._topics.data_version, self._groups.data_version
            pull = known.get(key)
            if pull is None or not self._is_current(pull):
                pull = self._learn(key, data, position, channel.peer)
                if pull is None:
                    break
            header = pull.header
            header.queue_offset, header.commit_offset = queue_offset, commit_offset
            found = self._responder.found(header, pull.admitted)
            if found is None:
                break
            reply, body = found
            size = len(body)
            head = _compiled.pull_head(
                reply.suggest_which_broker_id,
                reply.next_begin_offset,
                reply.min_offset,
                reply.max_offset,
                opaque,
                _TAIL,
                size,
            )
            answers += (head, body)
            collected += size
            count += 1
            position = stop
        return position, count

    def _is_current(self, pull: _KnownPull) -> bool:
        """True unless heartbeats changed what counts for a pull."""
        if pull.subscription is None:
            return True
        online = self._consumers.find(pull.header.consumer_group)
        return (
            online is not None
            and online.subscriptions.get(pull.header.topic) is pull.subscription
            and online.message_model == pull.message_model
        )

    def _learn(self, key: bytes, data: bytes, position: int, peer: str) -> _KnownPull | None:
        """Decode and check the pull at ``position``, remember it under ``key``; None when it is refused or unusual."""
        _, header_bytes = PREFIX.unpack_from(data, position)
        start = position + PREFIX.size
        try:
            command = self._decode(data[start : start + header_bytes])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        if command.code != self.code or command.flag:
            return None
        header = command.ext_fields
        admitted = self._responder.admitted(header, peer)
        if admitted is None:
            return None
        subscription = message_model = None
        if not header.sys_flag & PULL_SUBSCRIPTION:
            online = self._consumers.find(header.consumer_group)
            if online is None:
                return None
            subscription, message_model = online.subscriptions[header.topic], online.message_model
        if len(self._known) >= MAX_KNOWN_PULLS:
            self._known.clear()
        pull = self._known[key] = _KnownPull(header, admitted, subscription, message_model)
        return pull
