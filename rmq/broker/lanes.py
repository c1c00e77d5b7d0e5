"""
The fast path of ordinary sends and batches: an existing topic, IPv4.

The reference is :meth:`rmq.broker.responders.sending.SendResponder.send`; the lane stores and answers the same bytes,
or declines the request without side effects. It needs the compiled module `rmq.store._record`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime

from rmq.broker.refusals import STORED_CODES
from rmq.broker.responders.sending import MULTI_TAG, SendResponder
from rmq.broker.settings import Settings
from rmq.broker.stats import TOPIC_COMMIT_NUMS, TOPIC_ROLLBACK_NUMS, BrokerStats
from rmq.broker.topics import RETRY_PREFIX, TRANS_HALF_TOPIC, TopicTable, sending_problem, topic_name_problem
from rmq.broker.transactions import QUEUE_ID as HALF_QUEUE_ID
from rmq.remoting.channel import Channel
from rmq.remoting.protocol import MAX_WAITING_ANSWERS
from rmq.remoting.responders import ResponderTable
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutStatus
from rmq.store.store import MessageStore
from rmq.wire.api.common import PERM_WRITE
from rmq.wire.codes import MQ_VERSION, RequestCode, ResponseCode
from rmq.wire.command import RESPONSE, decode_commands, encode_reply
from rmq.wire.compiled import load as load_compiled
from rmq.wire.record import SCHEDULE_TOPIC

#: limit of known ordinary topics; beyond it all are checked again
MAX_KNOWN_TOPICS = 10_000
#: fields of a reply with the place of a stored message
_PLACE_FIELDS = ("msgId", "queueId", "queueOffset", "transactionId")

#: topic, messages, bytes, requests
_Count = tuple[str, int, int, int]

_compiled: Any = load_compiled("rmq.store._record")


def answers_at_once(config: StoreConfig) -> bool:
    """Return whether a put is answered without waiting for an fsync or for slaves."""
    return config.broker_role is BrokerRole.ASYNC_MASTER and not config.is_sync_flush


def add_send_lane(
    table: ResponderTable,
    responder: SendResponder,
    settings: Settings,
    clock: IReactorTime,
    store: MessageStore,
    topics: TopicTable,
    stats: BrokerStats,
) -> None:
    """Add the send lane to a table, unless messages go to further queues."""
    config = settings.setup.store
    if _compiled is None or config.is_slave or config.enable_multi_dispatch:
        return
    at_once = answers_at_once(config)
    for lane in SendLane, LongNamesLane, BatchLane:
        later = None if at_once else AnswersLater(responder.outcome, stats, table, lane.code, clock)
        table.add_chunk_lane(lane(responder, settings, store, topics, stats, later))


class SendLane:
    """
    Store the ordinary single messages (310) at the front of received bytes; after :meth:`park` those that wait, too.

    ``later`` makes the waiter that answers them after fsync or quorum; None where a put is answered at once.
    """

    code = int(RequestCode.SEND_MESSAGE_V2)

    def __init__(
        self,
        responder: SendResponder,
        settings: Settings,
        store: MessageStore,
        topics: TopicTable,
        stats: BrokerStats,
        later: AnswersLater | None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._stats = stats
        self._later = later
        setup = settings.setup
        self._store_host = setup.store_host
        self._batch = _compiled.SendBatch(
            self.code,
            setup.store.max_message_size,
            setup.broker.broker_cluster_name,
            around(responder.ext),
            later is not None,
            setup.store.hides_unconfirmed,
        )
        self._known: dict[bytes, Any] = {}
        #: versions from which the known topics and ``_accepts`` were learned
        self._setup: object = None
        self._version: object = None
        self._deletions = -1
        self._accepts = False
        #: ms of the levels of delay; None where half and delayed messages are left to the responder
        self._delays_ms: tuple[int, ...] | None = None
        #: the SendTopic of delayed messages, with :meth:`park`
        self.delayed: Any = None
        #: topics with stored messages that are not in the statistics yet
        self.counted: list[Any] = []
        stats.sources.append(self._count)
        #: see :class:`rmq.remoting.responders.TurnLane`
        self.together = self._together

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        store, later, batch, host = self._store, self._later, self._batch, channel.peer_host
        if not self._is_open():
            return position, 0
        if not batch.parse(data, position, self._known, host) and not (
            batch.unknown and self.learn(batch.unknown) and batch.parse(data, position, self._known, host)
        ):
            return position, 0
        if later is not None and not later.has_room(batch.requests - batch.one_way):
            return position, 0
        if not store.append_many(batch, self._store_host):
            return position, 0
        if later is not None:
            answer = batch.answers()
            return batch.stop, self._wait(later, channel.last_active_s, [(channel, answer)] if answer else [])
        answer = batch.answers(self.counted)
        if answer:  # none to one-way requests
            answers.append(answer)
        return batch.stop, batch.requests

    def _together(self, chunks: list[tuple[bytes, Channel]]) -> tuple[list[bytes | None], int]:
        """See :attr:`rmq.remoting.responders.TurnLane.together`."""
        answers: list[bytes | None] = [None] * len(chunks)
        if not self._is_open():
            return answers, 0
        store, later, batch, known = self._store, self._later, self._batch, self._known
        began_s = 0.0 if later is None else later.clock.seconds()
        batch.begin()
        taken = [number for number, (data, channel) in enumerate(chunks) if batch.add(data, known, channel.peer_host)]
        if not taken or (later is not None and not later.has_room(batch.requests - batch.one_way)):
            return answers, 0
        if not store.append_many(batch, self._store_host):
            return answers, 0
        stored = zip(taken, batch.answers_of_each(self.counted if later is None else None), strict=False)
        if later is None:
            for number, answer in stored:
                answers[number] = answer
            return answers, batch.requests
        waiting = []
        for number, answer in stored:
            answers[number] = b""
            if answer:
                waiting.append((chunks[number][1], answer))
        return answers, self._wait(later, began_s, waiting)

    def _wait(self, later: AnswersLater, began_s: float, waiting: list[tuple[Channel, bytes]]) -> int:
        """Have the answers to stored messages written when these are safe; return how many requests need none."""
        batch = self._batch
        requests, one_way = batch.requests, batch.one_way
        if one_way:  # they wait for nothing
            for count in batch.counts(True):
                self._stats.put(*count)
        if waiting:
            done = later(began_s, waiting, requests - one_way, batch.counts(False))
            self._store.wait_for(batch.last_phy + batch.last_size, done)
        return int(one_way)

    def _is_open(self) -> bool:
        """Return whether sends are accepted without further checks, now; learn topics again if any has changed."""
        if (
            self._topics.data_version is not self._version
            or self._settings.setup is not self._setup
            or self._store.queue_deletions != self._deletions
        ):
            self._forget()
        return self._accepts and (self._later is None or self._later.has_room(1))

    def park(self, delays_ms: tuple[int, ...]) -> None:
        """Store half messages and delayed messages, too, each in the queue in which it waits."""
        self._delays_ms = delays_ms
        self._learn_waiting()

    def _learn_waiting(self) -> None:
        """Learn the queues in which messages wait."""
        if self._delays_ms is None:
            return
        queue = self._store.ordinary_queue
        half = _compiled.SendTopic(TRANS_HALF_TOPIC, [queue(TRANS_HALF_TOPIC, HALF_QUEUE_ID)])
        levels = range(len(self._delays_ms))
        self.delayed = _compiled.SendTopic(SCHEDULE_TOPIC, [queue(SCHEDULE_TOPIC, level) for level in levels])
        rejects = self._settings.setup.broker.reject_transaction_message
        self._batch.park(None if rejects else half, self.delayed, self._delays_ms)

    def known_topics(self) -> dict[bytes, Any]:
        """Return the SendTopics of topics without further rules that were learned; :meth:`learn` adds others."""
        self._is_open()
        return self._known

    def _forget(self) -> None:
        """Learn topics and queues again, and whether the broker accepts messages without further checks."""
        self._known.clear()
        self._version, self._setup = self._topics.data_version, self._settings.setup
        self._deletions = self._store.queue_deletions
        broker = self._settings.setup.broker
        self._accepts = broker.broker_permission & PERM_WRITE != 0 and not broker.start_accept_send_request_time_stamp
        self._learn_waiting()

    def learn(self, key: bytes) -> bool:
        """Add a topic to the known ones; False when it does not exist or its messages are not ordinary."""
        name = key.decode("ascii")
        if self._delays_ms is not None and name in (TRANS_HALF_TOPIC, SCHEDULE_TOPIC):
            self._learn_waiting()
            return True
        topic = self._topics.get(name)
        if (
            topic is None
            or name in self._topics.announcing
            or topic_name_problem(name) is not None
            or sending_problem(name) is not None
            or name.startswith(RETRY_PREFIX)
            or topic.topic_filter_type == MULTI_TAG
        ):
            return False
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        queues = range(max(topic.read_queue_nums, topic.write_queue_nums))
        self._known[key] = _compiled.SendTopic(name, [self._store.ordinary_queue(name, number) for number in queues])
        return True

    def _count(self) -> None:
        """Add the messages stored since the last call to the statistics."""
        counted, self.counted = self.counted, []
        for topic in counted:
            messages, size, requests, commits, rollbacks = topic.take_counts()
            if requests:
                self._stats.put(topic.name, messages, size, requests)
            for name, ends in ((TOPIC_COMMIT_NUMS, commits), (TOPIC_ROLLBACK_NUMS, rollbacks)):
                if ends:
                    self._stats.counter(name, topic.name).add(ends, ends)


class LongNamesLane(SendLane):
    """Store single messages whose fields have long names (10): Go's client sends them so."""

    code = int(RequestCode.SEND_MESSAGE)


class BatchLane(SendLane):
    """Store the ordinary batches (320) at the front of received bytes."""

    code = int(RequestCode.SEND_BATCH_MESSAGE)


def around(ext: dict[str, str]) -> tuple[str, str, str, str, str]:
    """Return the texts around offset message id, queue id, queue offset and opaque in the header of a reply."""
    more = "".join(f',"{key}":{msgspec.json.encode(value).decode()}' for key, value in ext.items())
    return (
        '{"code":0,"extFields":{"msgId":"',
        '","queueId":"',
        '","queueOffset":"',
        f'"{more}}},"flag":{RESPONSE},"language":"JAVA","opaque":',
        f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}',
    )


class Waits:
    """How many requests of a code wait for the answers of a lane, beside those that wait for the responder's."""

    table: ResponderTable
    code: int
    waiting: int

    def has_room(self, more: int) -> bool:
        """Return whether so many further requests may wait: up to MAX_WAITING_ANSWERS, and to the limit of the line."""
        line = self.table.line_of(self.code)
        return self.waiting + more <= MAX_WAITING_ANSWERS and (line is None or line.waiting + more <= line.limit)

    def wait(self, more: int) -> None:
        """Count requests that wait, or, with a number below 0, wait no more."""
        self.waiting += more
        line = self.table.line_of(self.code)
        if line is not None:
            line.waiting += more


@attrs.define(eq=False)
class AnswersLater(Waits):
    """
    Makes the waiters that answer the messages of a write after fsync or quorum.

    When no more may wait the responder answers each separately. ``outcome`` returns code and remark of the answer to a
    put with another status than PUT_OK.
    """

    outcome: Callable[[PutStatus], tuple[int, str | None]]
    puts: BrokerStats
    table: ResponderTable
    code: int
    clock: IReactorTime
    waiting: int = attrs.field(init=False, default=0)

    def __call__(
        self,
        began_s: float,
        answers: list[tuple[Channel, bytes]],
        requests: int,
        counts: list[_Count],
        one_way: int = 0,
    ) -> WaitingAnswers:
        """
        ``began_s`` is when the requests came, in seconds of the clock; ``answers`` are those of success.

        ``counts`` go into the statistics when the messages are stored. ``one_way`` further requests wait, too, and get
        no answer.
        """
        return WaitingAnswers(self, began_s, answers, requests, counts, one_way)

    def count(self, topic: str, messages: int, size_bytes: int, requests: int) -> None:
        """Count messages that are stored."""
        self.puts.put(topic, messages, size_bytes, requests)


class WaitingAnswers:
    """The pending replies to messages that were written together, of one connection or of several."""

    __slots__ = ("_answers", "_began_s", "_counts", "_makes", "_requests", "_waiting")

    def __init__(
        self,
        makes: AnswersLater,
        began_s: float,
        answers: list[tuple[Channel, bytes]],
        requests: int,
        counts: list[_Count],
        one_way: int,
    ) -> None:
        self._makes = makes
        self._answers = answers
        self._counts = counts
        self._began_s = began_s
        self._requests = requests
        self._waiting = requests + one_way
        makes.wait(self._waiting)

    def callback(self, status: PutStatus) -> None:
        """Write the replies for ``status``."""
        makes, requests = self._makes, self._requests
        makes.wait(-self._waiting)
        if status in STORED_CODES:
            for count in self._counts:
                makes.count(*count)
        code, remark = int(ResponseCode.SUCCESS), None
        if status is not PutStatus.PUT_OK:
            for _ in range(self._waiting):
                code, remark = makes.outcome(status)
                if code != ResponseCode.SUCCESS:
                    makes.table.stats.refused(makes.code, code)
        for channel, answers in self._answers:
            channel.write(answers if status is PutStatus.PUT_OK else _others(answers, code, remark))
        if requests:
            seconds = makes.clock.seconds() - self._began_s
            makes.table.stats.observe(makes.code, seconds * requests, requests)


def _others(successes: bytes, code: int, remark: str | None) -> bytes:
    """Return replies with ``code`` in place of ``successes``; a message that is not stored has no place."""
    replies = []
    for answer in decode_commands(successes):
        ext: dict[str, str] | None = dict(answer.ext_fields) if answer.ext_fields else None
        if remark is not None and ext:
            ext = {key: value for key, value in ext.items() if key not in _PLACE_FIELDS}
        replies.append(encode_reply(answer, code, remark, ext))
    return b"".join(replies)
