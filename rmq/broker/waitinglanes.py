"""
The fast paths of messages that are made from stored ones: ends of transactions (37), and what consumers send back (36).

Each stores what its responder would store, in one write, and gives the same answer; or it declines the request without
side effects. The requests of one read, and those of one turn of the reactor, are stored in one write. The references
are `rmq.broker.responders.transactions.TransactionResponder` and `.sendback.SendBackResponder`. They need the compiled
module `rmq.store._record`. Half messages and delayed messages are sends, see `rmq.broker.lanes.SendLane`.

Under SYNC_FLUSH or SYNC_MASTER the answer to a message that is sent back does not wait, as in Apache; that to a commit
waits until both of its records are safe.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.interfaces import IReactorTime

from rmq.broker.consumerlanes import AROUND_DONE
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.lanes import AnswersLater, LongNamesLane, SendLane, answers_at_once
from rmq.broker.responders.sending import MAX_RECONSUME_VERSION
from rmq.broker.responders.transactions import TransactionResponder
from rmq.broker.settings import Settings
from rmq.broker.stats import TOPIC_COMMIT_NUMS, BrokerStats
from rmq.broker.topics import RETRY_PREFIX, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TopicTable
from rmq.broker.transactions import QUEUE_ID as HALF_QUEUE_ID
from rmq.broker.transactions import REMOVE_TAG
from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable
from rmq.runtime.disk.files import DiskError
from rmq.store.dispatch import delay_levels
from rmq.store.queues import is_storable_topic
from rmq.store.store import MessageStore
from rmq.wire.api.common import PERM_WRITE
from rmq.wire.codes import RequestCode
from rmq.wire.compiled import load as load_compiled
from rmq.wire.record import PROPERTY_TAGS, PROPERTY_WAIT, encode_properties

#: longer records are left to the responders
MAX_READ_BYTES = 64 * 1024
#: so many requests, of one connection or of several, are stored in one write
MAX_TOGETHER = 64

_compiled: Any = load_compiled("rmq.store._record")
_OP_TEXT = encode_properties({PROPERTY_WAIT: "true", PROPERTY_TAGS: REMOVE_TAG}).encode()


def add_waiting_lanes(
    table: ResponderTable,
    ends: TransactionResponder,
    settings: Settings,
    clock: IReactorTime,
    rng: Random,
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    stats: BrokerStats,
) -> None:
    """
    Have the lanes of sends, if the table has them, take messages that wait, and add those of what ends their wait.
    """
    config = settings.setup.store
    sends = table.added_lane(SendLane.code)
    others = table.added_lane(LongNamesLane.code)
    if sends is None or others is None:
        return
    delays_ms = delay_levels(config.message_delay_level)
    for lane in sends, others:
        lane.park(delays_ms)
    host, hides = settings.setup.store_host, config.hides_unconfirmed
    later = None
    if not answers_at_once(config):
        later = _EndsLater(ends.outcome, stats, table, EndLane.code, clock)
    moves = _compiled.MoveBatch(TRANS_HALF_TOPIC, _OP_TEXT, AROUND_DONE, host, rng.randrange, later is not None, hides)
    stored = StoredRecords(store)
    table.add_chunk_lane(EndLane(settings, store, stored, sends, moves, later))
    table.add_chunk_lane(SendBackLane(table, settings, store, stored, sends, moves, delays_ms, topics, groups, stats))


class StoredRecords:
    """Reads what lies at an offset of the log."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def __call__(self, phy_offset: int) -> bytes | memoryview | None:
        """Return bytes from an offset on; None outside of the log, or where it cannot be read."""
        store = self._store
        if not store.min_phy_offset <= phy_offset < store.end_offset:
            return None
        try:
            return store.read(phy_offset, MAX_READ_BYTES)
        except DiskError:
            return None


class _EndsLater(AnswersLater):
    """Counts commits, too."""

    def count(self, topic: str, messages: int, size_bytes: int, requests: int) -> None:
        super().count(topic, messages, size_bytes, requests)
        self.puts.counter(TOPIC_COMMIT_NUMS, topic).add(requests, requests)


class EndLane:
    """Commit half messages, or note that they were rolled back: message and op message in one write."""

    code = int(RequestCode.END_TRANSACTION)

    def __init__(
        self,
        settings: Settings,
        store: MessageStore,
        stored: StoredRecords,
        sends: SendLane,
        moves: Any,
        later: AnswersLater | None,
    ) -> None:
        self._store = store
        self._stored = stored
        self._sends = sends
        self._moves = moves
        self._later = later
        self._store_host = settings.setup.store_host

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        moves, later = self._moves, self._later
        moves.begin()
        stops: list[int] = []
        if later is None or later.has_room(1):
            stop = position
            while len(stops) < MAX_TOGETHER and (stop := self._add(data, stop)):
                stops.append(stop)
        if later is not None and not later.has_room(len(stops)):
            return position, 0
        count = self._store.append_many(moves, self._store_host) if stops else 0
        if not count:
            return position, 0
        made = [answer for answer in moves.answers(self._sends.counted) if answer]  # none to one-way requests
        if later is None:
            answers += made
            return stops[count - 1], count
        self._wait(later, channel.last_active_s, [(channel, b"".join(made))] if made else [], len(made))
        return stops[count - 1], count - len(made)

    def together(self, chunks: list[tuple[bytes, Channel]]) -> tuple[list[bytes | None], int]:
        """See :attr:`rmq.remoting.responders.TurnLane.together`; each chunk must be one request."""
        moves, later = self._moves, self._later
        began_s = 0.0 if later is None else later.clock.seconds()
        moves.begin()
        taken = []
        if later is None or later.has_room(1):
            for number, (data, _) in enumerate(chunks[:MAX_TOGETHER]):
                stop = self._add(data, 0)
                if stop == len(data):
                    taken.append(number)
                elif stop:
                    moves.drop()
        if later is not None and not later.has_room(len(taken)):
            taken = []
        answers, count = stored_together(self._store, self._store_host, moves, taken, len(chunks), self._sends.counted)
        if later is None or not count:
            return answers, count
        waiting = []
        for number, answer in enumerate(answers):
            if answer:
                waiting.append((chunks[number][1], answer))
                answers[number] = b""
        self._wait(later, began_s, waiting, len(waiting))
        return answers, count - len(waiting)

    def _wait(self, later: AnswersLater, began_s: float, answers: list[tuple[Channel, bytes]], requests: int) -> None:
        """Have the answers to so many requests written when disk and slaves have what was stored."""
        moves = self._moves
        waiting: int = moves.waiting  # also one-way commits
        if waiting:
            done = later(began_s, answers, requests, moves.counts(), waiting - requests)
            self._store.wait_for(moves.last_phy + moves.last_size, done)

    def _add(self, data: bytes, position: int) -> int:
        """Read the request at a position; return where it ends, 0 for one that is not ordinary."""
        moves, sends = self._moves, self._sends
        known = sends.known_topics()
        ops = self._store.ordinary_queue(TRANS_OP_HALF_TOPIC, HALF_QUEUE_ID)
        stop: int = moves.end(data, position, self._stored, known, ops)
        if not stop and moves.unknown and sends.learn(moves.unknown):
            stop = moves.end(data, position, self._stored, known, ops)
        return stop


class SendBackLane:
    """Delay the messages that consumers send back for a retry; dead letters are left to the responder."""

    code = int(RequestCode.CONSUMER_SEND_MSG_BACK)

    def __init__(
        self,
        table: ResponderTable,
        settings: Settings,
        store: MessageStore,
        stored: StoredRecords,
        sends: SendLane,
        moves: Any,
        delays_ms: tuple[int, ...],
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        stats: BrokerStats,
    ) -> None:
        self._table = table
        self._settings = settings
        self._store = store
        self._stored = stored
        self._sends = sends
        self._moves = moves
        self._delays_ms = delays_ms
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._store_host = settings.setup.store_host

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        moves = self._moves
        moves.begin()
        stops: list[int] = []
        backs: list[tuple[str, str]] = []
        while len(backs) < MAX_TOGETHER:
            found = _compiled.read_send_back(data, stops[-1] if stops else position)
            back = found and self._add(found)
            if not back:
                break
            stops.append(found[0])
            backs.append(back)
        begin = self._store.end_offset
        count = self._store.append_many(moves, self._store_host) if stops else 0
        if not count:
            return position, 0
        self._count(backs[:count], begin)
        answers += moves.answers(self._sends.counted)
        return stops[count - 1], count

    def together(self, chunks: list[tuple[bytes, Channel]]) -> tuple[list[bytes | None], int]:
        """See :attr:`rmq.remoting.responders.TurnLane.together`; each chunk must be one request."""
        moves = self._moves
        moves.begin()
        taken, backs = [], []
        for number, (data, _) in enumerate(chunks[:MAX_TOGETHER]):
            found = _compiled.read_send_back(data, 0)
            back = self._add(found) if found and found[0] == len(data) else None
            if back:
                taken.append(number)
                backs.append(back)
        begin = self._store.end_offset
        answers, count = stored_together(self._store, self._store_host, moves, taken, len(chunks), self._sends.counted)
        self._count(backs[:count], begin)
        return answers, count

    def _count(self, backs: list[tuple[str, str]], begin: int) -> None:
        """Count what was stored from ``begin`` on."""
        if backs:
            self._stats.parked(len(backs), self._moves.last_phy + self._moves.last_size - begin)
        for back in backs:
            self._stats.sent_back(*back)

    def _add(self, found: tuple[int, int, int, str, int | None, int, int]) -> tuple[str, str] | None:
        """Add what a request stores; return its group and the message's topic, None for one that is not ordinary."""
        line = self._table.line_of(self.code)
        if line is not None and line.waiting >= line.limit:  # of sends, which have the same queue in front of them
            return None
        _, opaque, version, group_name, most, level, phy_offset = found
        retry_name = RETRY_PREFIX + group_name
        group, topic = self._groups.get(group_name), self._topics.get(retry_name)
        if group is None or topic is None or not topic.perm & PERM_WRITE or not is_storable_topic(retry_name):
            return None
        queues = min(group.retry_queue_nums, topic.read_queue_nums, topic.write_queue_nums)
        if queues < 1 or not self._settings.setup.broker.broker_permission & PERM_WRITE:
            return None
        if version < MAX_RECONSUME_VERSION or most is None:
            most = group.retry_max_times
        moves, sends = self._moves, self._sends
        sends.known_topics()  # it learns queues again that were deleted
        data, delays_ms, name = self._stored(phy_offset), self._delays_ms, retry_name.encode()
        back_topic = moves.back(opaque, data, phy_offset, most, level, sends.delayed, delays_ms, name, queues)
        if back_topic is None and moves.unknown and sends.learn(moves.unknown):
            back_topic = moves.back(opaque, data, phy_offset, most, level, sends.delayed, delays_ms, name, queues)
        return None if back_topic is None else (group_name, back_topic)


def stored_together(
    store: MessageStore, store_host: tuple[bytes, int], moves: Any, taken: list[int], count: int, counted: list[Any]
) -> tuple[list[bytes | None], int]:
    """Store what requests made, of ``count`` chunks those with the numbers ``taken``; see `TurnLane.together`."""
    answers: list[bytes | None] = [None] * count
    stored = store.append_many(moves, store_host) if taken else 0
    if stored:
        for number, answer in zip(taken, moves.answers(counted), strict=False):
            answers[number] = answer
    return answers, stored
