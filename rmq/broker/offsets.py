"""
Committed offsets of each group in each queue: ``config/consumerOffset.json``.

Java: ConsumerOffsetManager, LmqConsumerOffsetManager
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import attrs
import msgspec
from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.tables import next_version
from rmq.runtime.clock import map_in_turns, now_ms, slices_of, steady_ms
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import read_state, write_state_soon
from rmq.runtime.logs import LogThrottle
from rmq.store.multidispatch import is_lmq
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion
from rmq.wire.api.replication import AllConsumerOffset

FILE_NAME = "consumerOffset.json"
#: replaces it with enableLmq
LMQ_FILE_NAME = "lmqConsumerOffset.json"
#: rmq only: offsets that consumers committed at this slave and that its master may not have yet
OWN_FILE_NAME = "slaveConsumerOffset.json"
TOPIC_GROUP_SEPARATOR = "@"
#: pairs of a topic and a group, and queues of a pair: commits of others are dropped, whatever names clients invent
MAX_PAIRS = 1_000_000
MAX_QUEUES_OF_A_PAIR = 65_536
#: pairs that are written, copied or sent in one turn of the reactor
PAIRS_AT_ONCE = 1000
#: how a file without a version begins
_HEAD = b'{"offsetTable":{'

_NONE: Set[str] = frozenset()

OffsetMap = Mapping[str, Mapping[int, int]]


class _OffsetFile(msgspec.Struct, rename="camel", kw_only=True):
    """The members that we read and write; 5.x's groupTopicMap is derived from the rest and omitted."""

    data_version: DataVersion | msgspec.UnsetType | None = msgspec.UNSET
    #: those of groups that are named as light message queues, each for queue 0
    lmq_offset_table: dict[str, int] | msgspec.UnsetType | None = msgspec.UNSET
    offset_table: dict[str, dict[int, int]] = {}

    def encode(self) -> bytes:
        """Return what fastjson.encode does; for ten thousands of offsets in a fifth of its time."""
        table = {key: dict(sorted(queues.items())) for key, queues in sorted(self.offset_table.items())}
        text = msgspec.json.encode(msgspec.structs.replace(self, offset_table=table))
        return text if text.isascii() else fastjson.encode(self, quote_int_keys=True)


@attrs.frozen
class OwnOffset:
    """An offset that was committed at this slave and is newer than its master's."""

    topic: str
    group: str
    queue_id: int
    offset: int


class ConsumerOffsetTable:
    """
    The next queue offset to consume, by ``topic@group`` and queue id.

    With ``lmq`` a group that is named as a light message queue has one offset in each topic, that of queue 0.

    Changes are in memory until :meth:`persist`, which the broker calls every few seconds and at the end.

    A slave has its master's table. It remembers offsets that consumers commit at the slave while the master is away,
    until the master has them: the older offsets of the master must not replace them after its return.
    """

    _log = Logger()

    def __init__(self, disk: Disk, directory: str, clock: IReactorTime, *, lmq: bool = False) -> None:
        self.path = os.path.join(directory, LMQ_FILE_NAME if lmq else FILE_NAME)
        #: read while there is no other: Apache's broker forgets all offsets when enableLmq is switched on
        self._former_path = os.path.join(directory, FILE_NAME)
        self._lmq = lmq
        self._disk = disk
        self._clock = clock
        self._throttle = LogThrottle()
        self._version = DataVersion(counter=0, timestamp=now_ms(clock))
        self._offsets: dict[str, dict[int, int]] = {}
        #: the topics of each group and the groups of each topic; None when a pair came or went since the last question
        self._pairs: tuple[dict[str, set[str]], dict[str, set[str]]] | None = None
        #: how often something has changed, and the number of the last change that is in the file
        self._changes = self._saved_changes = 0
        self._has_dropped = False
        self._own_path = os.path.join(directory, OWN_FILE_NAME)
        self._own: dict[str, dict[int, int]] = {}
        self._own_unsaved = False
        #: held while files are being written
        self._writing = DeferredLock()

    @property
    def data_version(self) -> DataVersion:
        """The version of the table; each :meth:`persist` that writes makes a new one. 5.x slaves ask for it."""
        return self._version

    def load(self) -> None:
        """
        Read the file, or its ``.bak``; without either the table does not change.

        Raises StateFileError when neither can be read.
        """
        found = self._read(self.path) or self._read(self._former_path)
        if found is not None:
            self._offsets = found.offset_table
            for key, offset in (found.lmq_offset_table or {}).items():
                self._offsets[key] = {0: offset}
            self._version = found.data_version or self._version
            self._saved_changes = self._changes

    def _read(self, path: str) -> _OffsetFile | None:
        return read_state(self._disk, path, lambda data: fastjson.decode(data, _OffsetFile))

    def load_own(self, *, is_slave: bool) -> None:
        """
        Read the offsets committed at this slave before its last stop; a master deletes them, because its table counts.

        Raises StateFileError when neither can be read.
        """
        if is_slave:
            found = self._read(self._own_path)
            self._own = found.offset_table if found is not None else {}
        else:
            self._disk.delete(self._own_path)
            self._disk.delete(f"{self._own_path}.bak")

    async def persist(self) -> None:
        """
        Write the file if anything has changed since, while the reactor goes on.

        What changes meanwhile may be in the file, and is written again. DiskError when that fails, and the next call
        tries again.
        """
        await self._writing.acquire()
        try:
            if self._own_unsaved:
                self._own_unsaved = False
                await self._write_own()
            changes = self._changes
            if changes != self._saved_changes:
                pieces = await map_in_turns(self._clock, self._piece, self._slices())
                await self._write(pieces)
                self._saved_changes = changes
        finally:
            self._writing.release()

    async def _write_own(self) -> None:
        try:
            await write_state_soon(self._disk, self._own_path, _OffsetFile(offset_table=self._own).encode())
        except DiskError:
            self._own_unsaved = True
            raise

    def _slices(self) -> list[Sequence[str]]:
        return slices_of(sorted(self._offsets), PAIRS_AT_ONCE)

    def _piece(self, keys: Sequence[str]) -> tuple[bytes, dict[str, int]]:
        """Return the entries of some pairs as the file has them, and those of light message queues."""
        table = {key: queues for key in keys if (queues := self._offsets.get(key)) is not None}
        light: dict[str, int] = {}
        if self._lmq:
            light = {key: queues[0] for key, queues in table.items() if 0 in queues and is_lmq(_parts(key)[1])}
            table = {key: queues for key, queues in table.items() if key not in light}
        return _OffsetFile(offset_table=table).encode()[len(_HEAD) : -2], light

    async def _write(self, pieces: Sequence[tuple[bytes, dict[str, int]]]) -> None:
        version = next_version(self._version, now_ms(self._clock))
        file = _OffsetFile(data_version=version)
        if self._lmq:
            file.lmq_offset_table = {key: offset for _, light in pieces for key, offset in light.items()}
        table = b",".join(piece for piece, _ in pieces if piece)
        await write_state_soon(self._disk, self.path, b"".join((file.encode()[:-2], table, b"}}")))
        self._version = version

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """
        Set an offset, also to a smaller one.

        Java: ConsumerOffsetManager#commitOffset
        """
        key, queue_id = self.place(group, topic, queue_id)
        if not self.commit_higher(key, queue_id, offset):
            self._commit(group, topic, queue_id, offset)

    def key(self, group: str, topic: str) -> str | None:
        """Return the first half of each :meth:`place` of a group; None when its queues do not have one each."""
        return None if self._lmq and is_lmq(group) else _key(topic, group)

    def place(self, group: str, topic: str, queue_id: int) -> tuple[str, int]:
        """Return where the table has the offset of a queue, for :meth:`commit_higher` and :meth:`at`."""
        return _key(topic, group), self._queue_of(group, queue_id)

    def commit_higher(self, key: str, queue_id: int, offset: int) -> bool:
        """Set an offset that is there and not higher; False, and nothing done, for any other."""
        queues = self._offsets.get(key)
        before = None if queues is None else queues.get(queue_id)
        if queues is None or before is None or offset < before:
            return False
        if offset != before:
            queues[queue_id] = offset
            self._changes += 1
        return True

    def at(self, key: str, queue_id: int) -> int | None:
        """Return the offset at a :meth:`place`, as :meth:`query` does."""
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset that is new, or lower than before."""
        key = _key(topic, group)
        queues = self._offsets.get(key)
        if queues is None:
            self._pairs = None
            queues = self._offsets[key] = {}
        before = queues.get(queue_id)
        if before is None and (len(self._offsets) > MAX_PAIRS or len(queues) >= MAX_QUEUES_OF_A_PAIR):
            self._drop(group, topic, queue_id)
            return
        if before is not None and offset < before:
            suppressed = self._throttle.admit((group, topic, queue_id), steady_ms(self._clock))
            if suppressed is not None:
                self._log.debug(
                    "group {group} commits a lower offset in queue {queue_id} of {topic}: {offset}, before: {before} "
                    "({suppressed} such messages suppressed)",
                    group=group,
                    topic=topic,
                    queue_id=queue_id,
                    before=before,
                    offset=offset,
                    suppressed=suppressed,
                )
        queues[queue_id] = offset
        self._changes += 1

    def _drop(self, group: str, topic: str, queue_id: int) -> None:
        if not self._offsets[_key(topic, group)]:
            del self._offsets[_key(topic, group)]
        if not self._has_dropped:
            self._has_dropped = True
            self._log.error(
                "consumer offsets are at their limit of {pairs} pairs of topic and group with {queues} queues each: "
                "that of group {group} in queue {queue_id} of {topic} is not kept, nor are others",
                pairs=MAX_PAIRS,
                queues=MAX_QUEUES_OF_A_PAIR,
                group=group,
                topic=topic,
                queue_id=queue_id,
            )

    def commit_at_slave(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, and remember that the master does not have it."""
        self.commit(group, topic, queue_id, offset)
        if self.query(group, topic, queue_id) == offset:
            self._own.setdefault(_key(topic, group), {})[self._queue_of(group, queue_id)] = offset
            self._own_unsaved = True

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """
        Return a committed offset; None when the group never committed this queue.

        Java: ConsumerOffsetManager#queryOffset, which has -1 for None
        """
        return self.at(*self.place(group, topic, queue_id))

    def _queue_of(self, group: str, queue_id: int) -> int:
        """Java: LmqConsumerOffsetManager#commitOffset, which does without the id"""
        return 0 if self._lmq and is_lmq(group) else queue_id

    def positions(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group in a topic, by queue id; a live table."""
        return self._offsets.get(_key(topic, group), {})

    def of_queues(self, group: str, topic: str, count: int) -> list[int]:
        """Return the offsets of a group in the first ``count`` queues of a topic, 0 where it has none."""
        queues = self.positions(group, topic)
        return [max(queues.get(self._queue_of(group, queue_id), 0), 0) for queue_id in range(count)]

    async def encode_in_turns(self) -> bytes:
        """Return all offsets as a slave gets them, `AllConsumerOffset` as fastjson writes it; made in slices."""

        def piece(keys: Sequence[str]) -> bytes:
            return fastjson.encode({key: self._offsets[key] for key in keys if key in self._offsets})

        around = fastjson.encode(AllConsumerOffset(data_version=self.data_version))
        pieces = await map_in_turns(self._clock, piece, self._slices())
        return b"".join((around[:-2], b",".join(piece[1:-1] for piece in pieces if len(piece) > 2), b"}}"))

    def snapshot(self) -> dict[str, dict[int, int]]:
        """Return a copy of all offsets by ``topic@group`` and queue id."""
        return {key: dict(queues) for key, queues in self._offsets.items()}

    def merge(self, table: OffsetMap) -> None:
        """
        Replace the entries of ``table``, each ``topic@group`` as a whole; others stay.

        Java: SlaveSynchronize#syncConsumerOffset
        """
        for key, queues in table.items():
            if self._offsets.get(key) != queues:
                self._pairs = None
                self._offsets[key] = dict(queues)
                self._changes += 1

    def follow(self, table: OffsetMap) -> list[OwnOffset]:
        """
        Merge a master's table, but keep offsets committed here that are higher; return those.

        Once the master has an offset or a higher one, the master's counts again.
        """
        newer: list[OwnOffset] = []
        combined = dict(table)
        for key, own in list(self._own.items()):
            theirs = table.get(key, {})
            ahead = {queue: offset for queue, offset in own.items() if theirs.get(queue, -1) < offset}
            if ahead != own:
                self._own_unsaved = True
                self._own[key] = ahead
            if not ahead:
                del self._own[key]
                continue
            combined[key] = {**theirs, **ahead}
            topic, group = _parts(key)
            newer += [OwnOffset(topic, group, queue, offset) for queue, offset in ahead.items()]
        self.merge(combined)
        return newer

    def forget_own(self, own: OwnOffset) -> None:
        """Drop an offset committed here: from now on the master's counts, also when it is reset to a lower one."""
        queues = self._own.get(_key(own.topic, own.group), {})
        if queues.get(own.queue_id) == own.offset:
            del queues[own.queue_id]
            self._own_unsaved = True

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """
        Give ``target_group`` the offsets that ``source_group`` has committed for a topic.

        Java: ConsumerOffsetManager#cloneOffset
        """
        if queues := self._offsets.get(_key(topic, source_group)):
            self.merge({_key(topic, target_group): queues})

    def topics_of(self, group: str) -> Set[str]:
        """
        Return the topics that a group has committed offsets of.

        Java: ConsumerOffsetManager#whichTopicByConsumer
        """
        return self._all_pairs()[0].get(group, _NONE)

    def groups_of(self, topic: str) -> Set[str]:
        """
        Return the groups that have committed offsets of a topic.

        Java: ConsumerOffsetManager#whichGroupByTopic
        """
        return self._all_pairs()[1].get(topic, _NONE)

    def _all_pairs(self) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        pairs = self._pairs
        if pairs is None:
            pairs = self._pairs = defaultdict(set), defaultdict(set)
            for topic, group in map(_parts, self._offsets):
                pairs[0][group].add(topic)
                pairs[1][topic].add(group)
        return pairs

    def remove_group(self, group: str) -> None:
        """
        Forget all offsets of a group.

        Java: ConsumerOffsetManager#removeOffset
        """
        self._remove(_key(topic, group) for topic in self.topics_of(group))

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets of a topic."""
        self._remove(_key(topic, group) for group in self.groups_of(topic))

    def topics(self) -> set[str]:
        """Return the topics that any group has committed offsets of."""
        return set(self._all_pairs()[1])

    def remove_topics(self, topics: Collection[str]) -> list[str]:
        """
        Forget all offsets of topics; return those that had any.

        4.9.7 has a clean-up that nobody calls, which also forgets offsets of groups that are offline while all that
        they consumed expires: at their return they would miss what was sent meanwhile.
        Java: ConsumerOffsetManager#scanUnsubscribedTopic
        """
        keys = [key for key in self._offsets if _parts(key)[0] in topics] if topics else []
        self._remove(keys)
        return sorted({_parts(key)[0] for key in keys})

    def _remove(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._pairs = None
            del self._offsets[key]
            self._own.pop(key, None)
            self._changes += 1
            self._own_unsaved = True


def _key(topic: str, group: str) -> str:
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
    return topic, group
