"""
Transactions: half messages, what END_TRANSACTION makes of them, and the walk that asks producers how they ended.

A half message is in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. For each one that was committed or rolled back there is an op
message in RMQ_SYS_TRANS_OP_HALF_TOPIC: tag ``d``, body the queue offset of the half message. The offsets of the group
CID_RMQ_SYS_TRANS in both topics are how far the walk is; all of it is as Apache stores it, so that either broker
continues the transactions of the other.

:class:`Round` decides and does nothing; :class:`TransactionChecks` reads, writes and asks.

Java: TransactionalMessageServiceImpl, TransactionalMessageBridge
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from itertools import count

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from rmq.broker.config import BrokerSetup
from rmq.broker.delays import park, stored_again
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.sessions import ProducerGroups
from rmq.broker.settings import Settings
from rmq.broker.topics import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TopicTable,
    topic,
)
from rmq.runtime.clock import now_ms, steady_ms
from rmq.store.messages import GetStatus, Message, PutResult
from rmq.store.store import MessageStore
from rmq.wire.api.transactions import CHECK_TRANSACTION_STATE, CheckTransactionStateHeader
from rmq.wire.extfields import parse_boolean
from rmq.wire.record import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_DELAY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Record,
    RecordError,
    decode_record,
    encode_properties,
    encode_record,
)

#: whose consumer offsets say how far the walk is.  Java: MixAll#CID_SYS_RMQ_TRANS
GROUP = "CID_RMQ_SYS_TRANS"
QUEUE_ID = 0
REMOVE_TAG = "d"
#: a round ends after so much time.  Java: TransactionalMessageServiceImpl#MAX_PROCESS_TIME_LIMIT
ROUND_MS = 60_000
#: op messages that are read together
OP_PAGE = 32
#: half messages looked at in one turn of the reactor, or one page of op messages; then others have as much time as that
#: took, at most MOST_REST_S
SLICE = 8
MOST_REST_S = 0.01
#: how long the end of a round waits for the disk
FLUSH_LOOKS, FLUSH_LOOK_S = 100, 0.1
#: op messages of a round whose settlement is followed; the offset of the op queue passes further ones in later rounds
MAX_FOLLOWED_OPS = 100_000

Host = tuple[bytes, int]


# ---- what is stored ----


def half_message(message: Message, pairs: dict[str, str]) -> Message:
    """
    Return ``message`` as it is stored until its transaction ends; ``pairs`` are its properties.

    Java: TransactionalMessageBridge#parseHalfMessageInner
    """
    pairs = {**pairs, PROPERTY_REAL_TOPIC: message.topic, PROPERTY_REAL_QUEUE_ID: str(message.queue_id)}
    return attrs.evolve(
        message,
        topic=TRANS_HALF_TOPIC,
        queue_id=QUEUE_ID,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        properties=encode_properties(pairs),
    )


def committed_message(half: Record, max_delay_level: int) -> Message | None:
    """
    Return the message that consumers get; None for a half message that does not say where it belongs.

    Its properties stay as they are stored. A delay counts from now on; then TRAN_MSG is gone, as in Apache.
    Java: EndTransactionProcessor#endMessageTransaction
    """
    pairs = half.property_map
    real_topic, queue_id = pairs.get(PROPERTY_REAL_TOPIC), pairs.get(PROPERTY_REAL_QUEUE_ID, "")
    if not real_topic or not queue_id.isdecimal():
        return None
    wait = pairs.get(PROPERTY_WAIT)
    message = attrs.evolve(
        stored_again(half, real_topic, int(queue_id), half.properties.decode("utf-8", "replace")),
        sys_flag=half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        prepared_transaction_offset=half.phy_offset,
        wait_store_msg_ok=wait is None or parse_boolean(wait),
    )
    level = _number(pairs.get(PROPERTY_DELAY))
    if level <= 0:
        return message
    pairs.pop(PROPERTY_TRANSACTION_PREPARED, None)
    return park(message, pairs, level, max_delay_level)


def op_message(half: Record, host: Host, now: int) -> Message:
    """
    Return the note that a half message is settled.

    Java: TransactionalMessageBridge#addRemoveTagInTransactionOp
    """
    return Message(
        topic=TRANS_OP_HALF_TOPIC,
        queue_id=half.queue_id,
        body=b"%d" % half.queue_offset,
        flag=0,
        properties=encode_properties({PROPERTY_WAIT: "true", PROPERTY_TAGS: REMOVE_TAG}),
        sys_flag=0,
        born_timestamp=now,
        born_host=host,
        store_host=host,
        wait_store_msg_ok=False,
        was_stored=True,
    )


def put_back(half: Record, pairs: dict[str, str], to_topic: str = TRANS_HALF_TOPIC) -> Message:
    """
    Return a half message to be stored again, with other properties or in another topic.

    Its flag and reconsumeTimes are kept, which Apache loses.
    Java: TransactionalMessageBridge#renewHalfMessageInner, DefaultTransactionalMessageCheckListener
    """
    return stored_again(half, to_topic, QUEUE_ID, encode_properties(pairs))


def _number(text: str | None) -> int:
    """Java: TransactionalMessageServiceImpl#getLong"""
    try:
        return int(text or "-1")
    except ValueError:
        return -1


# ---- what to do with a half message ----


@attrs.frozen(kw_only=True)
class Terms:
    """transactionTimeOut and fileReservedTime in ms, and transactionCheckMax."""

    time_out_ms: int
    check_max: int
    reserved_ms: int

    @classmethod
    def of(cls, setup: BrokerSetup) -> Terms:
        return cls(
            time_out_ms=setup.broker.transaction_time_out,
            check_max=setup.broker.transaction_check_max,
            reserved_ms=setup.store.file_reserved_time * 3_600_000,
        )


class Verdict(enum.Enum):
    """What to do with a half message."""

    SETTLED = "committed or rolled back: go on"
    DISCARD = "checked too often or too old: to TRANS_CHECK_MAX_TIME_TOPIC"
    LATER = "too young: end the round"
    IMMUNE = "within its own immunity time: store it again, ask nothing"
    CHECK = "store it again and ask its producers"
    READ_ON = "op messages are unread"


class Round:
    """
    One walk over the half queue, from ``half_offset`` to its present end; it decides and does nothing itself.

    Messages that are stored meanwhile are for the next walk. Apache tells them by their time, so that a clock that is
    set back stops its checks.
    Java: TransactionalMessageServiceImpl#check
    """

    def __init__(self, terms: Terms, half_offset: int, op_offset: int, half_end: int) -> None:
        self._terms = terms
        self._end = half_end
        self._first = half_offset
        #: the next half message
        self.half_offset = half_offset
        #: the next op message to read
        self.next_op = op_offset
        #: True when every op message was read
        self.ops_at_end = False
        self._op_offset = op_offset
        #: one byte for each half message from ``_first`` on: 1 for settled
        self._settled = bytearray()
        #: settled ones before ``_first``: originals of messages that were stored again
        self._before: set[int] = set()
        #: op messages that were read, in order, each with the highest half offset that it settles
        self._followed: deque[tuple[int, int]] = deque()

    @property
    def op_offset(self) -> int:
        """The first op message that is still needed: all before it settle half messages that are behind us."""
        while self._followed and self._followed[0][1] < self.half_offset:
            self._op_offset = self._followed.popleft()[0] + 1
        return self._op_offset

    def settle(self, ops: Iterable[Record], half_end: int) -> None:
        """
        Take op messages that were read, in order; ``half_end`` is the end of the half queue.

        5.x puts many half offsets into one op message, with commas. What is no op message settles nothing.
        """
        for op in ops:
            highest = -1
            if op.property_map.get(PROPERTY_TAGS) == REMOVE_TAG:
                for part in op.body.split(b","):
                    offset = int(part) if part.isdigit() else -1
                    if offset >= half_end or offset < 0:
                        continue
                    highest = max(highest, offset)
                    self._note(offset)
            if len(self._followed) < MAX_FOLLOWED_OPS:
                self._followed.append((op.queue_offset, highest))
            self.next_op = op.queue_offset + 1

    def _note(self, offset: int) -> None:
        at = offset - self._first
        if at < 0:
            if len(self._before) < MAX_FOLLOWED_OPS:
                self._before.add(offset)
            return
        if at >= len(self._settled):
            self._settled.extend(bytes(at + 1 - len(self._settled)))
        self._settled[at] = 1

    def skip_ops(self, offset: int) -> None:
        """Go on with the op messages at ``offset``: those before it do not exist any more."""
        self.next_op = self._op_offset = offset
        self._followed.clear()

    def is_settled(self, offset: int) -> bool:
        """Tell whether an op message for a half message was read."""
        at = offset - self._first
        return offset in self._before if at < 0 else at < len(self._settled) and self._settled[at] == 1

    def pass_settled(self) -> None:
        """Move :attr:`half_offset` to the first half message for which no op message was read."""
        at = self.half_offset - self._first
        unsettled = self._settled.find(0, at)
        self.half_offset = self._first + (max(at, len(self._settled)) if unsettled < 0 else unsettled)

    def judge(self, half: Record, now: int) -> tuple[Verdict, dict[str, str]]:
        """
        Return what to do with the message at :attr:`half_offset`, and the properties to store it again with.

        Only questions count as checks. Apache also counts what it stores again within its immunity time, so that a
        message with a long one is discarded before its producer was ever asked. Nothing is discarded before all op
        messages were read: Apache discards what is settled by one that it has not read yet.
        """
        terms, pairs = self._terms, half.property_map
        if self.is_settled(self.half_offset):
            return Verdict.SETTLED, pairs
        times = pairs.get(PROPERTY_TRANSACTION_CHECK_TIMES)
        if times is not None and _number(times) >= terms.check_max:
            return Verdict.DISCARD if self.ops_at_end else Verdict.READ_ON, pairs
        counted = {**pairs, PROPERTY_TRANSACTION_CHECK_TIMES: "1" if times is None else str(_number(times) + 1)}
        age_ms = now - half.born_timestamp
        if age_ms > terms.reserved_ms:
            return Verdict.DISCARD if self.ops_at_end else Verdict.READ_ON, counted
        if self.half_offset >= self._end:
            return Verdict.LATER, pairs
        own = pairs.get(PROPERTY_CHECK_IMMUNITY_TIME)
        immunity_ms = terms.time_out_ms
        if own is not None:
            seconds = _number(own)
            immunity_ms = terms.time_out_ms if seconds == -1 else seconds * 1000
            if age_ms < immunity_ms:
                return self._immune(half, pairs), pairs
        elif 0 <= age_ms < immunity_ms:
            return Verdict.LATER, pairs
        if not self.ops_at_end:
            return Verdict.READ_ON, pairs
        return Verdict.CHECK if age_ms > immunity_ms or age_ms < 0 else Verdict.LATER, counted

    def _immune(self, half: Record, pairs: dict[str, str]) -> Verdict:
        """Java: TransactionalMessageServiceImpl#checkPrepareQueueOffset"""
        original = pairs.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
        if original is not None and self.is_settled(_number(original)):
            return Verdict.SETTLED
        if not self.ops_at_end:
            return Verdict.READ_ON
        pairs.setdefault(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        return Verdict.IMMUNE


# ---- reading, writing, asking ----


@attrs.define
class Counts:
    """Counters since the start."""

    checked: int = 0
    #: asked nobody: no producer of the group is connected
    unasked: int = 0
    discarded: int = 0


class TransactionChecks:
    """
    Ask producers about half messages without an end, every transactionCheckInterval; :meth:`run` is one round.

    Each half message is stored again before its producers are asked, so that the walk never has to go back. The
    offsets are saved at the end of a round, when the log is on disk: a power failure must not take what was stored
    again, or what was committed, and leave an offset behind the original. A kill within a round repeats the questions
    of the round: a transaction may be committed twice, and none is lost.
    """

    _log = Logger()

    def __init__(
        self,
        settings: Settings,
        clock: IReactorTime,
        store: MessageStore,
        offsets: ConsumerOffsetTable,
        topics: TopicTable,
        producers: ProducerGroups,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._producers = producers
        self._turn = 0
        #: when the last rest ended
        self._rested_s = 0.0
        self._stopping = False
        self.counts = Counts()

    @property
    def open_half_messages(self) -> int:
        """Half messages from the offset of the walk on; those that ended since the last round are among them."""
        return max(0, self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID) - self._offset(TRANS_HALF_TOPIC))

    def start(self) -> None:
        """
        Begin; call it on a master only, after the store has started.

        Offsets beyond their queue, of which a power failure took the end, become its end: else messages that are
        stored there now would never be checked.
        """
        for name in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC):
            end = self._store.max_offset(name, QUEUE_ID)
            if self._offset(name) > end:
                self._offsets.commit(GROUP, name, QUEUE_ID, end)

    def stop(self) -> None:
        """End the round that runs, after its current message."""
        self._stopping = True

    async def run(self) -> None:
        """Walk over the half queue once; a store that takes nothing ends the walk, and the next one continues."""
        self._need_topic(TRANS_HALF_TOPIC)
        half_offset, op_offset = self._offset(TRANS_HALF_TOPIC), self._offset(TRANS_OP_HALF_TOPIC)
        until_ms, before = steady_ms(self._clock) + ROUND_MS, attrs.evolve(self.counts)
        half_end, self._rested_s = self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID), self._clock.seconds()
        round_ = Round(Terms.of(self._settings.setup), half_offset, op_offset, half_end)
        self._read_ops(round_)
        corrected = False
        for step in count():
            if self._stopping or steady_ms(self._clock) > until_ms:
                break
            if step % SLICE == SLICE - 1:
                await self._rest()
            round_.pass_settled()
            found = self._store.get(TRANS_HALF_TOPIC, QUEUE_ID, round_.half_offset, 1)
            if found.messages:
                if not await self._settle(round_, found.messages[0]):
                    break
            elif corrected or found.status in _NOTHING_NEW:
                break
            else:
                corrected = True
                round_.half_offset = found.next_begin_offset
        if (round_.half_offset, round_.op_offset) != (half_offset, op_offset) and await self._is_safe():
            self._offsets.commit(GROUP, TRANS_HALF_TOPIC, QUEUE_ID, round_.half_offset)
            self._offsets.commit(GROUP, TRANS_OP_HALF_TOPIC, QUEUE_ID, round_.op_offset)
            await self._offsets.persist()
        self._report(before)

    async def _settle(self, round_: Round, data: bytes) -> bool:
        """Do what is to be done with one half message; False to end the round."""
        try:
            half = decode_record(data)
        except RecordError as error:
            self._log.error(
                "the half message at queue offset {offset} cannot be read, skipped: {error}",
                offset=round_.half_offset,
                error=error,
            )
            round_.half_offset += 1
            return True
        verdict, pairs = round_.judge(half, now_ms(self._clock))
        if verdict is Verdict.LATER:
            return False
        if verdict is Verdict.READ_ON:
            self._read_ops(round_)
            await self._rest()
            return True
        if verdict is Verdict.DISCARD:
            self._need_topic(TRANS_CHECK_MAX_TIME_TOPIC)
            if await self._put(put_back(half, pairs, TRANS_CHECK_MAX_TIME_TOPIC)) is None:
                return False
            self.counts.discarded += 1
            self._log.error(
                "half message {msg_id} of group {group} for topic {topic} is discarded after {times} checks: "
                "moved to {to}",
                msg_id=half.offset_msg_id,
                group=pairs.get(PROPERTY_PRODUCER_GROUP),
                topic=pairs.get(PROPERTY_REAL_TOPIC),
                times=half.property_map.get(PROPERTY_TRANSACTION_CHECK_TIMES, "0"),
                to=TRANS_CHECK_MAX_TIME_TOPIC,
            )
        elif verdict in (Verdict.IMMUNE, Verdict.CHECK):
            stored = await self._put(put_back(half, pairs))
            if stored is None:
                return False
            if verdict is Verdict.CHECK:
                self._ask(half, pairs, stored)
        round_.half_offset += 1
        return True

    async def _put(self, message: Message) -> PutResult | None:
        result = self._store.put(message)
        if isinstance(result, Deferred):
            result = await result
        if result.ok:
            return result
        self._log.warn("a half message was not stored again: {status}; the next round retries", status=result.status)
        return None

    def _ask(self, half: Record, pairs: dict[str, str], stored: PutResult) -> None:
        """
        Ask one producer of the group, in turn, how the transaction ended.

        Java: AbstractTransactionalMessageCheckListener#sendCheckMessage, ProducerManager#getAvailableChannel
        """
        real_topic, queue_id = pairs.get(PROPERTY_REAL_TOPIC, ""), pairs.get(PROPERTY_REAL_QUEUE_ID, "")
        members = self._producers.members(pairs.get(PROPERTY_PRODUCER_GROUP, ""))
        self._turn += 1
        if real_topic and queue_id.isdecimal():
            key = pairs.get(PROPERTY_UNIQ_KEY)
            header = CheckTransactionStateHeader(
                tran_state_table_offset=stored.queue_offset,
                commit_log_offset=stored.phy_offset,
                msg_id=key,
                transaction_id=key,
                offset_msg_id=stored.msg_ids,
            )
            body = encode_record(
                topic=real_topic.encode(),
                queue_id=int(queue_id),
                body=half.body,
                properties=encode_properties({**pairs, PROPERTY_WAIT: "false"}).encode(),
                born_timestamp=half.born_timestamp,
                store_timestamp=half.store_timestamp,
                born_host=half.born_host,
                store_host=half.store_host,
                queue_offset=stored.queue_offset,
                phy_offset=stored.phy_offset,
                flag=half.flag,
                sys_flag=half.sys_flag,
                reconsume_times=half.reconsume_times,
            )
            for number in range(len(members)):
                channel = members[(self._turn + number) % len(members)].channel
                if channel.is_open and channel.oneway(CHECK_TRANSACTION_STATE, header, body):
                    self.counts.checked += 1
                    return
        self.counts.unasked += 1

    def _read_ops(self, round_: Round) -> None:
        """Read the next op messages."""
        found = self._store.get(TRANS_OP_HALF_TOPIC, QUEUE_ID, round_.next_op, OP_PAGE)
        if found.messages:
            half_end = self._store.max_offset(TRANS_HALF_TOPIC, QUEUE_ID)
            round_.settle(map(decode_record, found.messages), half_end)
            round_.next_op = found.next_begin_offset
        elif found.status not in _NOTHING_NEW and found.next_begin_offset != round_.next_op:
            round_.skip_ops(found.next_begin_offset)
        else:
            round_.ops_at_end = True

    def _offset(self, topic_name: str) -> int:
        committed = self._offsets.query(GROUP, topic_name, QUEUE_ID)
        return committed if committed is not None else max(0, self._store.min_offset(topic_name, QUEUE_ID))

    def _need_topic(self, name: str) -> None:
        if self._topics.get(name) is None:
            self._topics.put(topic(name, 1))

    def _report(self, before: Counts) -> None:
        now = self.counts
        if now != before:
            self._log.info(
                "transaction check: {checked} producers asked, {unasked} half messages without a producer that is "
                "connected, {discarded} discarded",
                checked=now.checked - before.checked,
                unasked=now.unasked - before.unasked,
                discarded=now.discarded - before.discarded,
            )

    async def _is_safe(self) -> bool:
        """
        Wait until what the round saw is on disk; False when that takes too long. A stop syncs the log by itself.

        With SYNC_MASTER slaves have it, too: one that is promoted then has no offset behind its log.
        """
        end_offset = self._store.end_offset
        for _ in range(FLUSH_LOOKS):
            if self._stopping:
                return True
            if self._store.flushed_offset >= end_offset:
                safe = self._store.wait_for_all()
                if isinstance(safe, Deferred):
                    await safe
                return True
            self._store.flush_soon()
            await self._pause(FLUSH_LOOK_S)
        return False

    async def _rest(self) -> None:
        """Leave others as much time as was worked since the last rest."""
        await self._pause(min(max(0.0, self._clock.seconds() - self._rested_s), MOST_REST_S))
        self._rested_s = self._clock.seconds()

    def _pause(self, seconds: float) -> Deferred[None]:
        paused: Deferred[None] = Deferred()
        self._clock.callLater(seconds, paused.callback, None)
        return paused


#: the queue ends here
_NOTHING_NEW = frozenset((GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.OFFSET_OVERFLOW_ONE))
