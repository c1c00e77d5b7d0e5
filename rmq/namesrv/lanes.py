"""
The short ways to answer route look-ups, most of what a NameServer is asked.

The ordinary way is :meth:`rmq.namesrv.responders.RouteResponders.get_routeinfo_by_topic`; a lane gives the same bytes
or leaves the request to it.

A look-up that is known by its bytes costs 0.8 us, one that has to be decoded 4 us, the ordinary way 10 us and more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rmq.namesrv.responders import STRICT_JSON_SINCE, ZONE_MODE, encode_route
from rmq.namesrv.routes import RouteTable
from rmq.namesrv.settings import Settings
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES
from rmq.remoting.stats import RequestStats
from rmq.wire.codes import RequestCode, SerializeType
from rmq.wire.command import RemotingCommand, decode_command, encode_reply
from rmq.wire.compiled import load
from rmq.wire.extfields import parse_boolean
from rmq.wire.frames import PREFIX, FrameDecoder, ProtocolError

#: What is kept of encoded replies; when it is full all of them are dropped and made anew as they are asked for.
MAX_MEMO_BYTES = 32 * 1024 * 1024
#: What is kept of requests in the way their clients write them; dropped when full.
MAX_QUESTION_BYTES = 16 * 1024 * 1024
#: Requests beyond this length are always decoded.
MAX_QUESTION_LENGTH = 4096
#: What a kept question costs besides its bytes.
_QUESTION_OVERHEAD = 400
#: Opaques of more digits are always decoded; so nobody has to think of numbers beyond 32 bits.
_MAX_DIGITS = 9

_compiled: Any = load("rmq.namesrv._lanes")
_OPAQUE = b'"opaque":'
_unpack_prefix = PREFIX.unpack_from


class _Reply(NamedTuple):
    """A whole reply but for the opaque, which stands between ``head`` and ``rest``, and the lengths in front."""

    head: bytes
    rest: bytes
    header_bytes: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.rest)

    def before(self, digits: int) -> bytes:
        """Return what stands in front of an opaque of that many digits."""
        return PREFIX.pack(4 + self.size + digits, self.header_bytes + digits) + self.head


class _Question:
    """What a request asks for that is known by its bytes; ``digits`` is the length of its opaque."""

    __slots__ = ("digits", "strict", "topic")

    def __init__(self, topic: str, strict: bool, digits: int) -> None:
        self.topic = topic
        self.strict = strict
        self.digits = digits


class RouteReplies:
    """
    Encoded answers to look-ups, by topic and dialect; made when they are asked for, kept until the table changes.

    A change that concerns a few topics alone drops their answers, any other one drops all. ``on_dropped`` hears of the
    former before anything is answered.
    """

    def __init__(self, routes: RouteTable) -> None:
        self.on_dropped: Callable[[str], object] | None = None
        self._routes = routes
        self._version = routes.version
        self._memo: dict[tuple[str, bool], _Reply] = {}
        self._memo_bytes = 0
        #: another number whenever everything was dropped
        self.generation = 0

    @property
    def memo_bytes(self) -> int:
        """How many bytes of replies are kept."""
        return self._memo_bytes

    def get(self, topic: str, strict: bool) -> _Reply | None:
        """Return the answer as of now; None for a topic without a route and a route too long for a frame."""
        self.refresh()
        return self._memo.get((topic, strict)) or self._make(topic, strict)

    def refresh(self) -> int:
        """Drop what is older than the route table; return :attr:`generation`."""
        if self._version != self._routes.version:
            changed = self._routes.changed_since(self._version)
            if changed is None:
                self._forget()
            else:
                self._version = self._routes.version
                for topic in changed:
                    self._drop(topic)
        return self.generation

    def _drop(self, topic: str) -> None:
        for strict in (False, True):
            reply = self._memo.pop((topic, strict), None)
            if reply is not None:
                self._memo_bytes -= reply.size
        if self.on_dropped is not None:
            self.on_dropped(topic)

    def _make(self, topic: str, strict: bool) -> _Reply | None:
        route = self._routes.pick_route(topic)
        if route is None:
            return None
        body = encode_route(route, strict=strict)
        try:
            frame = encode_reply(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=0), body=body)
        except ProtocolError:  # too long; the ordinary way says so
            return None
        gap = frame.index(_OPAQUE) + len(_OPAQUE)
        reply = _Reply(frame[PREFIX.size : gap], frame[gap + 1 :], len(frame) - PREFIX.size - len(body) - 1)
        if self._memo_bytes + reply.size > MAX_MEMO_BYTES:
            self._forget()
        self._memo[(topic, strict)] = reply
        self._memo_bytes += reply.size
        return reply

    def _forget(self) -> None:
        self._memo.clear()
        self._memo_bytes = 0
        self._version = self._routes.version
        self.generation += 1


class RouteLane:
    """Answer 105 once the request is decoded: whatever its client writes, but no binary header."""

    def __init__(self, routes: RouteTable, settings: Settings) -> None:
        self.replies = RouteReplies(routes)
        self._settings = settings

    @property
    def memo_bytes(self) -> int:
        """How many bytes of replies are kept."""
        return self.replies.memo_bytes

    def __call__(self, command: RemotingCommand, _: Channel) -> bytes | None:
        """Return the frame of the answer; None for whatever is not a plain look-up of a topic that has a route."""
        if not is_short_way(self._settings):
            return None
        plain = _plain(command)
        reply = None if plain is None else self.replies.get(*plain)
        if reply is None:
            return None
        opaque = b"%d" % command.opaque
        return b"".join((reply.before(len(opaque)), opaque, reply.rest))


class RouteChunkLane:
    """
    Answer 105 from the bytes of the request: all of it but the digits of the opaque is looked up.

    A question enters the table only after it was decoded twice, with its own and with another opaque, and differed in
    nothing else; so it does not matter how its client writes it, nor whether the word "opaque" stands elsewhere in it.
    """

    code = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)

    def __init__(self, replies: RouteReplies, routes: RouteTable, settings: Settings, stats: RequestStats) -> None:
        self._replies = replies
        self._routes = routes
        self._settings = settings
        #: by all of their bytes but the digits of the opaque, whose place the first ``"opaque":`` tells
        self._questions: dict[bytes, _Question] = {}
        self._question_bytes = 0
        #: what stands before and behind the opaque of the answer, as long as it is good
        self._answers: dict[_Question, tuple[bytes, bytes]] = {}
        self._by_topic: dict[str, list[_Question]] = {}
        replies.on_dropped = self._drop
        self._generation = replies.generation
        self._known: Any = _compiled and _compiled.KnownQuestions(
            self._questions,
            self._answers,
            routes,
            settings,
            MAX_QUESTION_LENGTH,
            _MAX_DIGITS,
            MAX_COLLECTED_BYTES,
        )
        if self._known is not None:
            self._known.count_into(stats, self.code)
            #: see :class:`rmq.remoting.responders.WholeLane`
            self.whole: Callable[[bytes], bytes | None] = self._known.whole

    @property
    def question_bytes(self) -> int:
        """About how many bytes the known questions take."""
        return self._question_bytes

    def __call__(self, data: bytes, position: int, answers: list[bytes], _: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        count = collected = 0
        if not is_short_way(self._settings):
            return position, count
        if self._generation != self._replies.refresh():
            self._forget_answers()
        if self._known is not None:
            self._known.fresh(self._routes.version, self._settings.namesrv)
        questions, known = self._questions, self._answers
        end = len(data)
        while end - position > PREFIX.size:
            length, _word = _unpack_prefix(data, position)
            stop = position + 4 + length
            if stop > end or length > MAX_QUESTION_LENGTH:
                break
            opaque = data.find(_OPAQUE, position, stop)
            gap = opaque + len(_OPAQUE)
            comma = data.find(b",", gap, stop)
            if opaque < 0 or comma < 0 or comma - gap > _MAX_DIGITS:
                break
            digits = data[gap:comma]
            if not digits.isdigit() or (digits[0] == 0x30 and comma - gap > 1):
                break
            question = questions.get(data[position:gap] + data[comma:stop])
            if question is None:
                question = self._learn(data[position:gap], digits, data[comma:stop])
                if question is None:
                    break
            answer = known.get(question) or self._answer(question)
            if answer is None:
                break
            before, rest = answer
            answers += (before, digits, rest)
            count += 1
            position = stop
            collected += len(rest)
            if collected > MAX_COLLECTED_BYTES:
                break
        return position, count

    def _answer(self, question: _Question) -> tuple[bytes, bytes] | None:
        """Return, and keep, the answer as of now; None when the ordinary way must say what there is to say."""
        reply = self._replies.get(question.topic, question.strict)
        if self._generation != self._replies.generation:
            self._forget_answers()
        if reply is None:
            return None
        answer = self._answers[question] = reply.before(question.digits), reply.rest
        return answer

    def _drop(self, topic: str) -> None:
        for question in self._by_topic.get(topic, ()):
            self._answers.pop(question, None)

    def _forget_answers(self) -> None:
        self._answers.clear()
        self._generation = self._replies.generation

    def _learn(self, before: bytes, digits: bytes, after: bytes) -> _Question | None:
        """Return, and keep, what a request asks whose opaque stands between ``before`` and ``after``; None: no idea."""
        mine = _decode(before + digits + after)
        if mine is None or mine.opaque != int(digits) or mine.code != self.code or mine.flag or mine.body:
            return None
        plain = _plain(mine)
        if plain is None or self._routes.pick_route(plain[0]) is None:
            return None
        other = (b"2" if digits[0] == 0x31 else b"1") * len(digits)
        twin = _decode(before + other + after)
        if twin is None or twin.opaque != int(other) or _all_but_opaque(mine) != _all_but_opaque(twin):
            return None
        question = _Question(*plain, len(digits))
        size = len(before) + len(after) + _QUESTION_OVERHEAD
        if self._question_bytes + size > MAX_QUESTION_BYTES:
            self._questions.clear()
            self._by_topic.clear()
            self._forget_answers()
            self._question_bytes = 0
        self._questions[before + after] = question
        self._by_topic.setdefault(question.topic, []).append(question)
        self._question_bytes += size
        return question


def is_short_way(settings: Settings) -> bool:
    """Tell whether look-ups are answered from the route table alone, by the present configuration."""
    config = settings.namesrv
    return not (config.order_message_enable or config.need_wait_for_service or config.cluster_test)


def _plain(command: RemotingCommand) -> tuple[str, bool] | None:
    """Return topic and dialect of a look-up that asks for nothing else; None: let the ordinary way see."""
    if command.serialize_type != SerializeType.JSON:
        return None
    fields = command.ext_fields
    topic = fields.get("topic")
    if topic is None or ZONE_MODE in fields:
        return None
    return topic, command.version >= STRICT_JSON_SINCE or parse_boolean(fields.get("acceptStandardJsonOnly", ""))


def _decode(data: bytes) -> RemotingCommand | None:
    try:
        frames = FrameDecoder().receive(data)
        return decode_command(frames[0]) if len(frames) == 1 else None
    except ProtocolError:
        return None


def _all_but_opaque(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.flag,
        command.version,
        command.language,
        command.remark,
        command.ext_fields,
        command.body,
        command.serialize_type,
    )
