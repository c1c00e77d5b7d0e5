"""
The short ways to take ordinary messages, most of what a broker is sent.

The ordinary way is :meth:`rmq.broker.responders.sending.SendResponder.send`; a lane stores and answers the same bytes
or leaves the request to it with nothing done. Sockets apart, a send of 100 bytes takes about 24 us in the ordinary way,
18 us in the lane for decoded requests and 12 us in the one for received bytes; the store has 8 us of each. The compiled
twin of the latter takes about 4 us.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rmq.broker import properties
from rmq.broker.outcomes import STORED_CODES, check_stored
from rmq.broker.responders.sending import MULTI_TAG, SendResponder
from rmq.broker.state import BrokerState
from rmq.broker.topics import PERM_WRITE, RETRY_PREFIX, sending_problem, topic_name_problem
from rmq.remoting.channel import Channel
from rmq.remoting.protocol import MAX_WAITING_ANSWERS
from rmq.remoting.responders import ChunkLane, Refuse, ResponderTable
from rmq.remoting.stats import RequestStats
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import Message, PutResult, PutStatus
from rmq.wire.api.common import TopicConfig
from rmq.wire.api.sending import SendMessageV2Header
from rmq.wire.codes import MQ_VERSION, RequestCode, ResponseCode, SerializeType
from rmq.wire.command import RESPONSE, RemotingCommand, decode_commands, encode_reply
from rmq.wire.compiled import load as load_compiled
from rmq.wire.extfields import BadField, Int32, header_codec, parse_boolean
from rmq.wire.frames import MAX_FRAME_BYTES, PREFIX
from rmq.wire.record import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQ_KEY,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    decode_properties,
    encode_properties,
    find_property,
)

#: properties around a unique key that are kept; when there are more, all are learned again
MAX_AROUND = 5_000
#: longer properties are taken apart each time
MAX_AROUND_CHARS = 1024
#: topics that were looked at and found ordinary; when there are more, all are looked at again
MAX_KNOWN_TOPICS = 10_000
#: more than a record has beside its body
BIG_ENOUGH_BYTES = 64 << 10
#: what an answer tells of a message that is stored
_REPLY_FIELDS = ("msgId", "queueId", "queueOffset", "transactionId")

_unpack_prefix = PREFIX.unpack_from
_UNIQ_KEY = PROPERTY_UNIQ_KEY + NAME_VALUE_SEPARATOR
#: two unique keys that stand in nobody's properties
_SAMPLES = ("\x03one sample\x03", "\x03another sample\x03")
_DELAY = properties.DELAY + "\x01"
_TRANSACTION = properties.TRANSACTION_PREPARED + "\x01"


def answers_at_once(config: StoreConfig) -> bool:
    """Tell whether a put never has to wait; only then there is a lane for decoded requests, which knows no later."""
    return config.broker_role is BrokerRole.ASYNC_MASTER and not config.is_sync_flush


def add_lanes(table: ResponderTable, state: BrokerState, responder: SendResponder) -> None:
    """Give a table the lanes that its broker can have; a slave has none, and none that waits for disk and slaves."""
    config = state.setup.store
    taker = Taker(state, responder)
    if answers_at_once(config):
        table.add_lane(RequestCode.SEND_MESSAGE_V2, SendLane(taker))
    elif config.is_slave or not state.store.can_wait_for:
        return
    later = None if answers_at_once(config) else AnswersLater(state, table.stats)
    lane: ChunkLane = SendChunkLane(taker, later)
    if (compiled := load_compiled("rmq.store._record")) is not None:
        faster: Any = compiled.SendLane(lane, taker, state, state.store.parts(), later, SendChunkLane.code)
        state.stats.sources.append(faster.settle)
        lane = faster
    table.add_chunk_lane(lane)


class SendLane:
    """
    Take a single message (310) of an existing, ordinary topic, without delay or transaction, once it is decoded.
    """

    def __init__(self, taker: Taker) -> None:
        self._codec = header_codec(SendMessageV2Header)
        self.taker = taker

    def __call__(self, command: RemotingCommand, channel: Channel) -> bytes | None:
        """Store a message and return the frame of the answer; None when this is not for the lane."""
        if command.serialize_type != SerializeType.JSON:
            return None
        try:
            header = command.read_header(self._codec)
        except BadField:
            return None
        taker = self.taker
        if not taker.accepts_now():
            return None
        result = taker.take(header, command.body or b"", channel)
        if result is None:
            return None
        taker.count(header.topic, 1, result.size)
        return taker.answer(command.opaque, header.queue_id, result)


class _SendCommand(msgspec.Struct, rename={"ext_fields": "extFields"}):
    """A JSON header of a send, read in one go."""

    code: Int32
    opaque: Int32
    ext_fields: SendMessageV2Header
    flag: Int32 = 0


class AnswersLater:
    """
    Makes what answers the messages of a chunk together, once they are safe.

    At most MAX_WAITING_ANSWERS wait so at a time; then the ordinary way takes over, which answers each by itself.
    """

    def __init__(self, state: BrokerState, stats: RequestStats) -> None:
        self.state = state
        self.stats = stats
        self.clock = state.clock
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        return self.waiting >= MAX_WAITING_ANSWERS

    def __call__(self, channel: Channel, answers: bytes, counts: list[tuple[str, int, int]]) -> WaitingAnswers:
        """``answers`` are those of success; ``counts`` has messages and bytes of each topic."""
        return WaitingAnswers(self, channel, answers, counts)


class WaitingAnswers:
    """The answers of one chunk."""

    __slots__ = ("_answers", "_channel", "_counts", "_makes", "_messages", "_started_s")

    def __init__(
        self, makes: AnswersLater, channel: Channel, answers: bytes, counts: list[tuple[str, int, int]]
    ) -> None:
        self._makes = makes
        self._channel = channel
        self._answers = answers
        self._counts = counts
        self._started_s = channel.last_active_s
        self._messages = sum(messages for _, messages, _ in counts) if len(counts) > 1 else counts[0][1]
        makes.waiting += self._messages

    def callback(self, status: PutStatus) -> None:
        """Write the answers that ``status`` asks for."""
        makes, messages = self._makes, self._messages
        makes.waiting -= messages
        answers = self._answers if status is PutStatus.PUT_OK else self._other(status)
        if status in STORED_CODES:
            for topic, count, size in self._counts:
                makes.state.stats.put(topic, count, size, count)
        self._channel.write(answers)
        seconds = makes.clock.seconds() - self._started_s
        makes.stats.observe(SendChunkLane.code, seconds * messages, messages)

    def _other(self, status: PutStatus) -> bytes:
        """Return the answers of messages that are not as safe as they should be, or lost."""
        answers = []
        for answer in decode_commands(self._answers):
            code, remark, ext = ResponseCode.SUCCESS, None, dict(answer.ext_fields)
            try:
                check_stored(self._makes.state, PutResult(status), ext={})
                code = STORED_CODES[status]
            except Refuse as refusal:
                code, remark = ResponseCode(refusal.code), refusal.remark
                ext = {key: value for key, value in ext.items() if key not in _REPLY_FIELDS}
            self._makes.stats.refused(SendChunkLane.code, int(code))
            answers.append(encode_reply(answer, int(code), remark, ext))
        return b"".join(answers)


class SendChunkLane:
    """
    Take such messages from the bytes as they were received, all of them in a row.

    Where a put waits for disk or slaves, they are answered together by ``later``.
    """

    code = int(RequestCode.SEND_MESSAGE_V2)

    def __init__(self, taker: Taker, later: AnswersLater | None) -> None:
        self.taker = taker
        self._later = later
        self._decode = msgspec.json.Decoder(_SendCommand, strict=False).decode

    def __call__(self, data: bytes, position: int, answers: list[bytes], channel: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        if not self.taker.accepts_now() or (self._later is not None and self._later.is_full):
            return position, 0
        taken: list[bytes] = []
        counts: list[tuple[str, int, int]] = []
        stop, end = self._take(data, position, taken, counts, channel)
        if self._later is not None:
            if taken:
                done = self._later(channel, b"".join(taken), counts)
                self.taker.store.wait_for(end, done)
            return stop, 0
        answers += taken
        for topic, count, size in counts:
            self.taker.count(topic, count, size, count)
        return stop, len(taken)

    def _take(
        self, data: bytes, position: int, answers: list[bytes], counts: list[tuple[str, int, int]], channel: Channel
    ) -> tuple[int, int]:
        """Store messages, all in one file where they wait; return where they stop, and where the log then ends."""
        taker, decode, waits = self.taker, self._decode, self._later is not None
        # counted by topic: messages and bytes since the topic changed
        topic, messages, size = "", 0, 0
        end, log_end = len(data), -1
        while end - position > PREFIX.size:
            length, word = _unpack_prefix(data, position)
            stop = position + 4 + length
            # The word is the length of a JSON header, whose serialize type is 0.
            if not 4 + word <= length <= MAX_FRAME_BYTES - 4 or stop > end:
                break
            start = position + PREFIX.size
            middle = start + word
            try:
                command = decode(data[start:middle])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                break
            header = command.ext_fields
            # Of booleans Java has another opinion than msgspec; the ordinary way asks it.
            if command.code != self.code or command.flag or header.batch or header.unit_mode:
                break
            if waits and taker.is_impatient(header.properties or ""):
                break
            result = taker.take(header, data[middle:stop], channel)
            if result is None:
                break
            if header.topic != topic:
                if messages:
                    counts.append((topic, messages, size))
                topic, messages, size = header.topic, 0, 0
            messages += 1
            size += result.size
            answers.append(taker.answer(command.opaque, header.queue_id, result))
            position = stop
            log_end = result.next_offset
            if waits and taker.is_near_the_end(log_end):
                break
        if messages:
            counts.append((topic, messages, size))
        return position, log_end


class Taker:
    """What both lanes do: look whether a message is ordinary, store it, and write the answer."""

    def __init__(self, state: BrokerState, responder: SendResponder) -> None:
        self._state = state
        self.store = state.store
        self.cluster = state.setup.broker.broker_cluster_name
        #: name -> the configuration that was found ordinary; another object is another configuration
        self._known: dict[str, TopicConfig] = {}
        #: properties around the unique key -> what is stored around it, () when that cannot be told; None: not ordinary
        self._around: dict[tuple[str, str], tuple[str, str] | tuple[()] | None] = {}
        self.count = state.stats.put
        ext = "".join(f',"{key}":{msgspec.json.encode(value).decode()}' for key, value in responder.ext.items())
        self._head = '{"code":0,"extFields":{"msgId":"'
        self._middle = '","queueId":"'
        self._offset = '","queueOffset":"'
        self._tail = f'"{ext}}},"flag":{RESPONSE},"language":"JAVA","opaque":'
        self._end = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
        #: what stands around offset message id, queue, number and opaque in the header of an answer
        self.template = (self._head, self._middle, self._offset, self._tail, self._end)

    def accepts_now(self) -> bool:
        """Tell whether the broker as it is configured now takes messages without further questions."""
        broker = self._state.setup.broker
        return broker.broker_permission & PERM_WRITE != 0 and not broker.start_accept_send_request_time_stamp

    def take(self, header: SendMessageV2Header, body: bytes, channel: Channel) -> PutResult | None:
        """Store a message; None, and nothing done, when it is not ordinary or the store refuses it."""
        name = header.topic
        topic = self.ordinary(name)
        if (
            topic is None
            or not 0 <= header.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)
            or header.batch
            or header.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT)
        ):
            return None
        stored = self._stored(header.properties or "")
        if stored is None:
            return None
        return self.store.append(
            Message(
                name,
                header.queue_id,
                body,
                header.flag,
                stored,
                header.sys_flag,
                header.born_timestamp,
                channel.peer_host,
                self._state.store_host,
                header.reconsume_times or 0,
            )
        )

    def ordinary(self, name: str) -> TopicConfig | None:
        """Return the configuration of a topic; None when there is none, or messages of it are not ordinary."""
        topic = self._state.topics.get(name)
        if topic is None or (self._known.get(name) is not topic and not self._learn(name, topic)):
            return None
        return topic

    def is_impatient(self, text: str) -> bool:
        """Tell whether the producer of these properties wants its answer before disk or slaves have the message."""
        wait = find_property(text, properties.WAIT)
        return wait is not None and not parse_boolean(wait)

    def is_near_the_end(self, log_end: int) -> bool:
        """Tell whether the next message might begin another file of the log; what waits together is in one."""
        left = -log_end % self.store.segment_bytes
        return left < 2 * self._state.setup.store.max_message_size + BIG_ENOUGH_BYTES

    def answer(self, opaque: int, queue_id: int, result: PutResult) -> bytes:
        """Return the frame of the answer to a message that was stored."""
        header = (
            f"{self._head}{result.msg_ids}{self._middle}{queue_id}{self._offset}{result.queue_offset}"
            f"{self._tail}{opaque}{self._end}"
        ).encode()
        return PREFIX.pack(4 + len(header), len(header)) + header

    def _learn(self, name: str, topic: TopicConfig) -> bool:
        if (
            topic_name_problem(name) is not None
            or sending_problem(name) is not None
            or name.startswith(RETRY_PREFIX)
            or topic.topic_filter_type == MULTI_TAG
        ):
            return False
        if len(self._known) >= MAX_KNOWN_TOPICS:
            self._known.clear()
        self._known[name] = topic
        return True

    def _stored(self, text: str) -> str | None:
        """Return the properties as they are stored; None for a delayed message or one of a transaction."""
        # A producer's messages differ in nothing but their unique key; the rest is looked up by what stands around it.
        start = text.find(_UNIQ_KEY)
        if start < 0:
            return self._stored_slowly(text)
        start += len(_UNIQ_KEY)
        end = text.find(PROPERTY_SEPARATOR, start)
        if end < 0:
            end = len(text)
        key = text[start:end]
        if not key or NAME_VALUE_SEPARATOR in key or len(text) > MAX_AROUND_CHARS:
            return self._stored_slowly(text)
        place = text[:start], text[end:]
        try:
            around = self._around[place]
        except KeyError:
            around = self._learn_around(place)
        if around is None:
            return None
        return around[0] + key + around[1] if around else self._stored_slowly(text)

    def _stored_slowly(self, text: str) -> str | None:
        if _DELAY in text or _TRANSACTION in text:
            return None
        pairs = decode_properties(text)
        pairs[properties.CLUSTER] = self.cluster
        pairs.pop(properties.WAIT, None)
        return encode_properties(pairs)

    def _learn_around(self, place: tuple[str, str]) -> tuple[str, str] | tuple[()] | None:
        """Return, and keep, what is stored around any unique key at this place."""
        before, after = place
        one, other = (self._stored_slowly(f"{before}{sample}{after}") for sample in _SAMPLES)
        around: tuple[str, str] | tuple[()] | None = None
        if one is not None and other is not None:
            first, sample, second = one.partition(_SAMPLES[0])
            # Otherwise it is part of another property, or there are several.
            around = (first, second) if sample and other == f"{first}{_SAMPLES[1]}{second}" else ()
        if len(self._around) >= MAX_AROUND:
            self._around.clear()
        self._around[place] = around
        return around
