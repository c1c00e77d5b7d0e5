"""
The fast path of what members of a group repeat: commit an offset, query it, ask who the other members are, lock queues,
heartbeats.

The references are `rmq.broker.responders.offsets.OffsetResponder` and `rmq.broker.responders.clients.ClientResponder`;
a lane gives the same bytes, or declines the request without side effects. They need the compiled modules
`rmq.store._pick` and, for locks and heartbeats, `rmq.store._record`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from twisted.internet.interfaces import IReactorTime

from rmq.broker.locks import QueueLocks
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.responders.clients import ClientResponder
from rmq.broker.sessions import ConsumerGroups
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES, ResponderTable
from rmq.runtime.clock import steady_ms
from rmq.runtime.disk.error import DiskError
from rmq.wire import fastjson
from rmq.wire.api.clients import (
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    LOCK_BATCH_MQ,
    ConsumerIdList,
    LockBatchBody,
    LockedQueues,
)
from rmq.wire.api.offsets import QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET
from rmq.wire.codes import MQ_VERSION, LanguageCode
from rmq.wire.command import ONEWAY, RESPONSE, decode_commands
from rmq.wire.compiled import load
from rmq.wire.contract import Contract
from rmq.wire.extfields import BadField, header_codec
from rmq.wire.frames import ProtocolError

#: limit of known requests of a lane; beyond it all are decoded again
MAX_KNOWN = 10_000
#: limit of what a lane keeps of bodies; beyond it all are made again
MAX_KEPT_BYTES = 32 << 20

_compiled: Any = load("rmq.store._pick")
_records: Any = load("rmq.store._record")
_LANGUAGES = {language.name.encode(): language.name for language in LanguageCode}
_END = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'.encode()
#: what is around the opaque in the header of an answer without fields
AROUND_DONE = b'{"code":0,"flag":%d,"language":"JAVA","opaque":' % RESPONSE, _END
#: what is around the offset and the opaque
AROUND_OFFSET = (
    b'{"code":0,"extFields":{"offset":"',
    b'"},"flag":%d,"language":"JAVA","opaque":' % RESPONSE,
    _END,
)

K = TypeVar("K")


def add_consumer_lanes(
    table: ResponderTable,
    offsets: ConsumerOffsetTable,
    consumers: ConsumerGroups,
    clients: ClientResponder,
    locks: QueueLocks,
    clock: IReactorTime,
    *,
    is_slave: bool,
) -> None:
    """Add the lanes to a table; a slave has none for commits, because it keeps those that its master does not have."""
    if _compiled is None:
        return
    table.add_chunk_lane(QueryLane(offsets))
    table.add_chunk_lane(MembersLane(consumers))
    if _records is not None:
        table.add_chunk_lane(HeartbeatLane(clients))
        table.add_chunk_lane(LockLane(locks, clock))
    if not is_slave:
        table.add_chunk_lane(CommitLane(offsets))


class KnownLane(Generic[K]):
    """
    See :class:`rmq.remoting.responders.ChunkLane`.

    A request is decoded when it is first met; others whose headers differ in nothing but the number of ``name``, the
    string of ``text`` and the opaque say the same.
    """

    contract: Contract[Any, Any, Any, Any]
    #: of the field with the number
    name: bytes | None = None
    #: of the field with the string, of a lane that has ``name``
    text: bytes | None = None
    takes_one_way = False

    def __init__(self) -> None:
        assert self.contract.header is not None
        self.code = int(self.contract.code)
        self._codec = header_codec(self.contract.header)
        #: what a request says beside its number, and whether it is one-way
        self._known: dict[bytes, tuple[K, bool]] = {}

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        answered: tuple[int, int] = _compiled.answer_known(
            data,
            position,
            self.name,
            self.text,
            self._known,
            self._learn,
            self.answer,
            AROUND_DONE,
            answers,
            MAX_COLLECTED_BYTES,
        )
        return answered

    def _learn(self, key: bytes, frame: bytes) -> tuple[K, bool] | None:
        try:
            (command,) = decode_commands(frame)
            header = command.read_header(self._codec)
        except (ProtocolError, BadField):
            return None
        if command.code != self.code or command.serialize_type or command.flag & ~(ONEWAY if self.takes_one_way else 0):
            return None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        asked = self._known[key] = self.what(header), command.flag != 0
        return asked

    def what(self, header: Any) -> K:
        """Return what a header says beside its number and its string."""
        raise NotImplementedError

    def answer(self, what: K, opaque: int, number: int = 0) -> bytes | None:
        """Return the frame of the answer, b"" for one without fields; None, with nothing done, for the responder."""
        raise NotImplementedError


class KeptLane(KnownLane[list[Any]]):
    """
    Answer what was answered before while that was made of the same.

    What is known of a request is its header, of what its last answer was made, and the body of that.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept_bytes = 0

    def what(self, header: Any) -> list[Any]:
        return [header, None, b""]

    def answer(self, what: list[Any], opaque: int, number: int = 0) -> bytes | None:
        state = self.state(what[0])
        if state is None:
            return None
        if state != what[1]:
            try:
                body = fastjson.encode(self.body(what[0], state))
            except DiskError:
                return None
            self._kept_bytes += len(body) - len(what[2])
            if self._kept_bytes > MAX_KEPT_BYTES:
                self._known.clear()
                self._kept_bytes = 0
            what[1:] = state, body
        answer: bytes = _compiled.fill(AROUND_DONE, what[2], opaque)
        return answer

    def state(self, header: Any) -> object:
        """Return everything that the answer depends on; None declines."""
        raise NotImplementedError

    def body(self, header: Any, state: Any) -> msgspec.Struct:
        """Return the body of the answer."""
        raise NotImplementedError


#: a place of `ConsumerOffsetTable`
_Queue = tuple[str, int]


class QueryLane(KnownLane[_Queue]):
    """Answer queries of offsets that are there."""

    contract = QUERY_CONSUMER_OFFSET

    def __init__(self, offsets: ConsumerOffsetTable) -> None:
        super().__init__()
        self._offsets = offsets

    def what(self, header: Any) -> _Queue:
        return self._offsets.place(header.consumer_group, header.topic, header.queue_id)

    def answer(self, what: _Queue, opaque: int, number: int = 0) -> bytes | None:
        offset = self._offsets.at(*what)
        return None if offset is None or offset < 0 else _compiled.fill(AROUND_OFFSET, b"", offset, opaque)


class CommitLane(KnownLane[tuple[str, str, int, _Queue]]):
    """Take commits, also one-way ones."""

    contract = UPDATE_CONSUMER_OFFSET
    name = b"commitOffset"
    takes_one_way = True

    def __init__(self, offsets: ConsumerOffsetTable) -> None:
        super().__init__()
        self._offsets = offsets

    def what(self, header: Any) -> tuple[str, str, int, _Queue]:
        queue = header.consumer_group, header.topic, header.queue_id
        return *queue, self._offsets.place(*queue)

    def answer(self, what: tuple[str, str, int, _Queue], opaque: int, number: int = 0) -> bytes:
        group, topic, queue_id, (key, place) = what
        if not self._offsets.commit_higher(key, place, number):
            self._offsets.commit(group, topic, queue_id, number)
        return b""


class MembersLane(KeptLane):
    """Answer which clients are members of a group."""

    contract = GET_CONSUMER_LIST_BY_GROUP

    def __init__(self, consumers: ConsumerGroups) -> None:
        super().__init__()
        self._consumers = consumers

    def state(self, header: Any) -> object:
        group = self._consumers.find(header.consumer_group)
        return None if group is None else group.client_ids or None

    def body(self, header: Any, state: Any) -> msgspec.Struct:
        return ConsumerIdList(consumer_id_list=state)


class LockLane:
    """Answer requests for locks; their bodies are decoded when they are first met. See `QueueLocks.lock`."""

    code = int(LOCK_BATCH_MQ.code)

    def __init__(self, locks: QueueLocks, clock: IReactorTime) -> None:
        self._locks = locks
        self._clock = clock
        #: by the body of a request what it says, which queues were locked last, and the body of that answer
        self._known: dict[bytes, list[Any]] = {}
        self._kept_bytes = 0

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        found = _records.read_frame(data, position, self.code)
        if found is None:
            return position, 0
        begin, stop, opaque, _, _ = found
        text = data[begin:stop]
        known = self._known.get(text) or self._learn(text)
        if known is None:
            return position, 0
        asked = known[0]
        held = self._locks.lock(asked.consumer_group, asked.client_id, asked.mq_set, steady_ms(self._clock))
        if held != known[1]:
            known[1:] = held, fastjson.encode(LockedQueues(lock_ok_mq_set=held))
        answers.append(_compiled.fill(AROUND_DONE, known[2], opaque))
        return stop, 1

    def _learn(self, text: bytes) -> list[Any] | None:
        try:
            asked = fastjson.decode(text, LockBatchBody)
        except fastjson.JsonError:
            return None
        self._kept_bytes += 3 * len(text)
        if self._kept_bytes > MAX_KEPT_BYTES or len(self._known) >= MAX_KNOWN:
            self._known.clear()
            self._kept_bytes = 3 * len(text)
        known = self._known[text] = [asked, None, b""]
        return known


class HeartbeatLane:
    """Answer heartbeats that repeat what their connection said before; see `ClientResponder.renew`."""

    code = int(HEART_BEAT.code)

    def __init__(self, clients: ClientResponder) -> None:
        self._clients = clients

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        found = _records.read_frame(data, position, self.code)
        if found is None:
            return position, 0
        begin, stop, opaque, version, said = found
        language = _LANGUAGES.get(said)
        if language is None or not self._clients.renew(channel, data[begin:stop], language, version):
            return position, 0
        answers.append(_compiled.fill(AROUND_DONE, b"", opaque))
        return stop, 1
