"""
The fast paths of messages that wait in a topic of the broker's before consumers get them.

Half messages and delayed messages (310), their ends (37), and what consumers send back (36). Each stores what its
responder would store, in one write, and gives the same answer; or it declines the request without side effects. The
references are `rmq.broker.responders.sending.SendResponder`, `.transactions.TransactionResponder` and
`.sendback.SendBackResponder`. They need the compiled module `rmq.store._record` and a broker that answers puts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import attrs
from twisted.internet.interfaces import IReactorTime

from rmq.broker.config import BrokerSetup
from rmq.broker.consumerlanes import done
from rmq.broker.groups import SubscriptionGroupTable
from rmq.broker.lanes import SendLane, answers_at_once, around
from rmq.broker.responders.sendback import FIRST_RETRY_LEVEL
from rmq.broker.responders.sending import MAX_RECONSUME_VERSION, SendResponder
from rmq.broker.settings import Settings
from rmq.broker.stats import TOPIC_COMMIT_NUMS, TOPIC_ROLLBACK_NUMS, BrokerStats
from rmq.broker.topics import RETRY_PREFIX, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TopicTable
from rmq.broker.transactions import QUEUE_ID as HALF_QUEUE_ID
from rmq.broker.transactions import REMOVE_TAG
from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable
from rmq.runtime.clock import now_ms
from rmq.runtime.disk.files import DiskError
from rmq.store.appender import Host
from rmq.store.consumequeue import ConsumeQueue
from rmq.store.dispatch import Units, delay_levels
from rmq.store.layout import CQ_UNIT
from rmq.store.queues import is_storable_topic
from rmq.store.store import MessageStore
from rmq.wire.api.common import PERM_WRITE
from rmq.wire.codes import RequestCode
from rmq.wire.compiled import load as load_compiled
from rmq.wire.frames import PREFIX
from rmq.wire.record import (
    HEADS,
    HOST_MASK,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
    SCHEDULE_TOPIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    offset_msg_id,
)

#: longer records are left to the responders
MAX_READ_BYTES = 64 * 1024
#: requests of so many connections are stored in one write
MAX_TOGETHER = 64
#: by so many bytes properties may become longer when a queue is drawn
MAX_DRAWN_BYTES = 16

_compiled: Any = load_compiled("rmq.store._record")
_HEAD = HEADS[0]
_BOOLEANS = (None, b"false", b"true")
_FALSE = (None, b"false")
_SEND_FIELDS = tuple(letter.encode() for letter in "acbikmjldefhg")
_END_NAMES = "producerGroup msgId fromTransactionCheck commitOrRollback tranStateTableOffset commitLogOffset"
_END_FIELDS = tuple(name.encode() for name in _END_NAMES.split())
_SEND_BACK_FIELDS = (b"group", b"unitMode", b"maxReconsumeTimes", b"delayLevel", b"offset")
_HALF_TOPIC = TRANS_HALF_TOPIC.encode()

_CLUSTER = PROPERTY_CLUSTER.encode()
_DELAY = PROPERTY_DELAY.encode()
_HALF = PROPERTY_TRANSACTION_PREPARED.encode()
_ORIGIN = PROPERTY_ORIGIN_MESSAGE_ID.encode()
_PRODUCER_GROUP = PROPERTY_PRODUCER_GROUP.encode()
_REAL_QUEUE_ID = PROPERTY_REAL_QUEUE_ID.encode()
_REAL_TOPIC = PROPERTY_REAL_TOPIC.encode()
_RETRY_TOPIC = PROPERTY_RETRY_TOPIC.encode()
_WAIT = PROPERTY_WAIT.encode()
_SEPARATOR = PROPERTY_SEPARATOR.encode()
_OP_PAIRS = {_WAIT: b"true", PROPERTY_TAGS.encode(): REMOVE_TAG.encode()}

Pairs = dict[bytes, bytes]


class Stored(NamedTuple):
    """A record of the log, as `rmq.store._record.read_record` returns it."""

    queue_id: int
    flag: int
    queue_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_host: Host
    reconsume_times: int
    body: bytes
    topic: bytes
    properties: bytes


@attrs.define
class Draft:
    """
    A message to be stored; ``pairs`` are its properties.

    ``delay_ms`` is that of a delayed message, else None. ``draw`` draws REAL_QID at the last moment.
    """

    queue: ConsumeQueue
    pairs: Pairs
    body: bytes
    born_timestamp: int
    born_host: Host
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    delay_ms: int | None = None
    draw: Callable[[], int] | None = None

    def make(self, number: int, phy_offset: int, store_ms: int) -> Any:
        """See `rmq.store._record.make_record`."""
        queue = self.queue
        return _compiled.make_record(
            queue.topic_field,
            queue.queue_id,
            number,
            phy_offset,
            store_ms,
            self.pairs,
            self.body,
            self.born_timestamp,
            self.born_host,
            self.store_host,
            self.flag,
            self.sys_flag,
            self.reconsume_times,
            self.prepared_transaction_offset,
        )


class Drafts:
    """
    What requests store, as `rmq.store.store.MessageStore.append_many` takes it: each is the messages of one request.

    Those requests at the front are stored that find room, of each all messages or none. Their queues must be those that
    :meth:`WaitingStore.queue` returns; the messages of one request go to different queues.
    """

    def __init__(self, *requests: tuple[Draft, ...]) -> None:
        self._requests = requests
        #: how many requests were stored
        self.count = 0
        self.last_phy = self.last_size = 0
        #: (physical offset, size, queue offset) of each message
        self.places: list[tuple[int, int, int]] = []

    def encode(
        self, phy_offset: int, room: int, store_ms: int, store_host: Host, /
    ) -> tuple[bytes, Units, bytes] | None:
        """See `rmq.store._record.SendBatch.encode`."""
        records: list[bytes] = []
        units: list[tuple[ConsumeQueue, bytes, int]] = []
        keys: list[bytes] = []
        # the next number of each queue
        numbers: dict[ConsumeQueue, int] = {}
        shares = False
        end, limit = phy_offset, phy_offset + room - MAX_DRAWN_BYTES
        for drafts in self._requests:
            for draft in drafts:
                queue = draft.queue
                number = numbers.get(queue, 0)
                if number:
                    shares = True
                else:
                    number = queue.next
                made = draft.make(number, end, store_ms)
                if made is None or end + len(made[0]) > limit:
                    break
                if draft.draw is not None:
                    # nothing but the disk can refuse the message now
                    drawn = b"%d" % draft.draw()
                    if drawn != draft.pairs[_REAL_QUEUE_ID]:
                        draft.pairs[_REAL_QUEUE_ID] = drawn
                        made = draft.make(number, end, store_ms)
                record, code, entries = made
                if draft.delay_ms is not None:
                    code = store_ms + draft.delay_ms
                size = len(record)
                self.places.append((end, size, number))
                units.append((queue, CQ_UNIT.pack(end, size, code), end + size))
                records.append(record)
                keys.append(entries)
                numbers[queue] = number + 1
                end += size
            else:
                self.count += 1
                stored = len(records)
                continue
            if not self.count:
                return None
            del records[stored:], units[stored:], keys[stored:], self.places[stored:]
            break
        self.last_phy, self.last_size, _ = self.places[-1]
        if shares:
            units = _joined(units)
        return b"".join(records), units, b"".join(keys)


def _joined(units: list[tuple[ConsumeQueue, bytes, int]]) -> list[tuple[ConsumeQueue, bytes, int]]:
    """Return units of messages by their queues."""
    found: dict[ConsumeQueue, tuple[bytes, int]] = {}
    for queue, unit, end in units:
        found[queue] = found.get(queue, (b"", 0))[0] + unit, end
    return [(queue, more, end) for queue, (more, end) in found.items()]


class WaitingStore:
    """What the lanes need of the store and of its delay levels."""

    def __init__(self, store: MessageStore, delays_ms: Sequence[int]) -> None:
        self._store = store
        self._delays_ms = delays_ms
        self.append_many = store.append_many

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue whose messages can be shown as it grows; None for any other."""
        queue = self._store.ordinary_queue(topic, queue_id)
        return queue if queue is not None and queue.end == queue.next else None

    def level(self, text: bytes | None) -> tuple[ConsumeQueue, int] | None:
        """Return the queue of a delay level, and its delay in ms; a level beyond the last one means the last one."""
        last = len(self._delays_ms)
        if not last or text is None or not text.isdigit() or len(text) > 9 or int(text) == 0:
            return None
        number = min(int(text), last) - 1
        queue = self.queue(SCHEDULE_TOPIC, number)
        return None if queue is None else (queue, self._delays_ms[number])

    def read(self, phy_offset: int) -> Stored | None:
        """Return the record at a place; None for one that is not ordinary."""
        store = self._store
        if not store.min_phy_offset <= phy_offset < store.end_offset:
            return None
        try:
            data = store.read(phy_offset, MAX_READ_BYTES)
        except DiskError:
            return None
        found = _compiled.read_record(data, phy_offset)
        return None if found is None else Stored(*found)


def add_waiting_lanes(
    table: ResponderTable,
    sends: SendResponder,
    settings: Settings,
    clock: IReactorTime,
    rng: Random,
    store: MessageStore,
    topics: TopicTable,
    groups: SubscriptionGroupTable,
    stats: BrokerStats,
) -> None:
    """Add the lanes to a table that has the lane of sends, where puts are answered at once."""
    setup = settings.setup
    lane: Any = table.chunk_lanes.get(SendLane.code)
    if lane is None or not answers_at_once(setup.store):
        return
    waiting = WaitingStore(store, delay_levels(setup.store.message_delay_level))
    lane.otherwise = WaitingSends(lane, sends, settings, waiting, stats)
    table.add_chunk_lane(EndLane(setup, clock, waiting, stats))
    table.add_chunk_lane(SendBackLane(settings, rng, waiting, topics, groups, stats))


class WaitingSends:
    """Store the half message or the delayed message at the front of what the lane of sends left."""

    code = SendLane.code

    def __init__(
        self, sends: SendLane, responder: SendResponder, settings: Settings, store: WaitingStore, stats: BrokerStats
    ) -> None:
        self._sends = sends
        self._settings = settings
        self._store = store
        self._stats = stats
        setup = settings.setup
        self._most = setup.store.max_message_size
        self._cluster = setup.broker.broker_cluster_name.encode()
        self._store_host = setup.store_host
        head, *others = (text.replace("%", "%%") for text in around(responder.ext))
        self._answer = f"{head}%s{'%d'.join(others)}".encode()

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        found = _compiled.read_fields(data, position, self.code, _SEND_FIELDS)
        if found is None:
            return position, 0
        begin, stop, opaque, _, _, group, default_topic, name, text, unit_mode, batch, again, most_again, *texts = found
        numbers = _compiled.read_numbers((most_again or b"0", again or b"0", *texts), 1)
        if numbers is None or None in (group, default_topic, name, text):
            return position, 0
        if unit_mode not in _FALSE or batch not in _FALSE:
            return position, 0
        topic = self._sends.known(name)
        pairs = _compiled.read_properties(text)
        _, reconsume_times, _, queue_id, sys_flag, flag, born_timestamp = numbers
        if topic is None or pairs is None or stop - begin > self._most or queue_id >= len(topic.queues):
            return position, 0
        delay_ms: int | None = None
        if _HALF in pairs:
            queue = self._store.queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID)
            if pairs[_HALF] != b"true" or _DELAY in pairs or self._settings.setup.broker.reject_transaction_message:
                return position, 0
        else:
            level = self._store.level(pairs.get(_DELAY))
            if level is None or sys_flag & TRANSACTION_MASK:
                return position, 0
            queue, delay_ms = level
        if queue is None or sys_flag & HOST_MASK:
            return position, 0
        pairs[_CLUSTER] = self._cluster
        pairs[_REAL_TOPIC] = name
        pairs[_REAL_QUEUE_ID] = b"%d" % queue_id
        draft = Draft(
            queue=queue,
            pairs=pairs,
            body=data[begin:stop],
            born_timestamp=born_timestamp,
            born_host=channel.peer_host,
            store_host=self._store_host,
            flag=flag,
            sys_flag=sys_flag & ~TRANSACTION_MASK,
            reconsume_times=reconsume_times,
            delay_ms=delay_ms,
        )
        drafts = Drafts((draft,))
        if not self._store.append_many(drafts, self._store_host):
            return position, 0
        ((phy_offset, size, number),) = drafts.places
        self._stats.put(topic.name, 1, size)
        msg_id = offset_msg_id(self._store_host, phy_offset).encode()
        header = self._answer % (msg_id, queue_id, number, opaque)
        answers.append(PREFIX.pack(4 + len(header), len(header)) + header)
        return stop, 1


class EndLane:
    """Commit half messages, or note that they were rolled back: message and op message in one write."""

    code = int(RequestCode.END_TRANSACTION)

    def __init__(self, setup: BrokerSetup, clock: IReactorTime, store: WaitingStore, stats: BrokerStats) -> None:
        self._clock = clock
        self._store = store
        self._stats = stats
        self._store_host = setup.store_host

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        found = _compiled.read_fields(data, position, self.code, _END_FIELDS)
        if found is None:
            return position, 0
        _, stop, opaque, _, _, group, msg_id, is_check, *texts = found
        numbers = _compiled.read_numbers(tuple(texts), 2)
        if group is None or msg_id is None or is_check not in _BOOLEANS or numbers is None:
            return position, 0
        end, table_offset, log_offset = numbers
        half = self._store.read(log_offset)
        if half is None or half.topic != _HALF_TOPIC or half.queue_offset != table_offset:
            return position, 0
        pairs = _compiled.read_properties(half.properties)
        op_queue = self._store.queue(TRANS_OP_HALF_TOPIC, half.queue_id)
        if pairs is None or pairs.get(_PRODUCER_GROUP) != group or op_queue is None:
            return position, 0
        topic = pairs.get(_REAL_TOPIC, b"").decode("ascii")
        op = Draft(
            queue=op_queue,
            pairs=_OP_PAIRS,
            body=b"%d" % half.queue_offset,
            born_timestamp=now_ms(self._clock),
            born_host=self._store_host,
            store_host=self._store_host,
        )
        if end == TRANSACTION_ROLLBACK:
            drafts = Drafts((op,))
        else:
            numbers = _compiled.read_numbers((pairs.get(_REAL_QUEUE_ID),), 0)
            if end != TRANSACTION_COMMIT or numbers is None or topic == SCHEDULE_TOPIC or _DELAY in pairs:
                return position, 0
            if half.properties.endswith(_SEPARATOR):
                return position, 0  # it would be lost
            queue = self._store.queue(topic, *numbers)
            if queue is None or queue is op_queue:
                return position, 0
            message = Draft(
                queue=queue,
                pairs=pairs,
                body=half.body,
                born_timestamp=half.born_timestamp,
                born_host=half.born_host,
                store_host=half.store_host,
                flag=half.flag,
                sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
                reconsume_times=half.reconsume_times,
                prepared_transaction_offset=log_offset,
            )
            drafts = Drafts((message, op))
        if not self._store.append_many(drafts, self._store_host):
            return position, 0
        if end == TRANSACTION_COMMIT:
            self._stats.put(topic, 1, drafts.places[0][1])
        self._stats.counter(TOPIC_COMMIT_NUMS if end == TRANSACTION_COMMIT else TOPIC_ROLLBACK_NUMS, topic).add(1)
        answers.append(done(opaque))
        return stop, 1


class SentBack(NamedTuple):
    """A request to send a message back: where it ends, opaque, group, topic of the message, what is to be stored."""

    stop: int
    opaque: int
    group: str
    topic: str
    draft: Draft


class SendBackLane:
    """Delay the messages that consumers send back for a retry; dead letters are left to the responder."""

    code = int(RequestCode.CONSUMER_SEND_MSG_BACK)

    def __init__(
        self,
        settings: Settings,
        rng: Random,
        store: WaitingStore,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        stats: BrokerStats,
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._store = store
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._store_host = settings.setup.store_host

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        back = self._read(data, position)
        if back is None or not self._store.append_many(Drafts((back.draft,)), self._store_host):
            return position, 0
        answers.append(self._stored(back))
        return back.stop, 1

    def together(self, chunks: list[tuple[bytes, Channel]]) -> tuple[list[bytes | None], int]:
        """See :attr:`rmq.remoting.responders.TurnLane.together`; each chunk must be one request."""
        answers: list[bytes | None] = [None] * len(chunks)
        found: list[tuple[int, SentBack]] = []
        for number, (data, _) in enumerate(chunks[:MAX_TOGETHER]):
            back = self._read(data, 0)
            if back is not None and back.stop == len(data):
                found.append((number, back))
        drafts = Drafts(*((back.draft,) for _, back in found))
        count = self._store.append_many(drafts, self._store_host) if found else 0
        for number, back in found[:count]:
            answers[number] = self._stored(back)
        return answers, count

    def _stored(self, back: SentBack) -> bytes:
        """Count a message that was sent back; return the answer."""
        self._stats.sent_back(back.group, back.topic)
        return done(back.opaque)

    def _read(self, data: bytes, position: int) -> SentBack | None:
        """Read the request at a position; None for one that is not ordinary."""
        found = _compiled.read_fields(data, position, self.code, _SEND_BACK_FIELDS)
        if found is None:
            return None
        _, stop, opaque, version, _, name, unit_mode, most_again, *texts = found
        numbers = _compiled.read_numbers((most_again or b"0", *texts), 1)
        if not name or unit_mode not in _BOOLEANS or numbers is None:
            return None
        most, delay_level, log_offset = numbers
        group_name = name.decode("ascii")
        retry_name = RETRY_PREFIX + group_name
        group, topic = self._groups.get(group_name), self._topics.get(retry_name)
        if group is None or topic is None or not topic.perm & PERM_WRITE or not is_storable_topic(retry_name):
            return None
        queues = min(group.retry_queue_nums, topic.read_queue_nums, topic.write_queue_nums)
        record = self._store.read(log_offset)
        if queues < 1 or record is None or not self._settings.setup.broker.broker_permission & PERM_WRITE:
            return None
        pairs = _compiled.read_properties(record.properties)
        if version < MAX_RECONSUME_VERSION or most_again is None:
            most = group.retry_max_times
        delay = b"%d" % (delay_level or FIRST_RETRY_LEVEL + record.reconsume_times)
        level = self._store.level(delay)
        if pairs is None or level is None or not 0 <= record.reconsume_times < most:
            return None
        if record.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return None
        queue, delay_ms = level
        back_topic = pairs.setdefault(_RETRY_TOPIC, record.topic)
        pairs.setdefault(_ORIGIN, offset_msg_id(record.store_host, log_offset).encode())
        pairs[_WAIT] = b"false"
        pairs[_DELAY] = delay
        pairs[_REAL_TOPIC] = retry_name.encode()
        pairs[_REAL_QUEUE_ID] = b"0"
        draft = Draft(
            queue=queue,
            pairs=pairs,
            draw=lambda: self._rng.randrange(queues),
            body=record.body,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times + 1,
            delay_ms=delay_ms,
        )
        return SentBack(stop, opaque, group_name, back_topic.decode("ascii"), draft)
