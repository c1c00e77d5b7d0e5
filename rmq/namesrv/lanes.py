"""
The fast path for route look-ups, most of a NameServer's requests.

The reference is :meth:`rmq.namesrv.responders.RouteResponders.get_routeinfo_by_topic`; the lane gives the same bytes or
leaves the request to it. A look-up known by its bytes costs 0.8 us, the reference 10 us and more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from rmq.namesrv.responders import STRICT_JSON_SINCE, ZONE_MODE, encode_route
from rmq.namesrv.settings import Settings
from rmq.namesrv.topology import Topology
from rmq.remoting.channel import Channel
from rmq.remoting.responders import MAX_COLLECTED_BYTES
from rmq.wire.codes import RequestCode, SerializeType
from rmq.wire.command import RemotingCommand, decode_command, encode_reply
from rmq.wire.compiled import load
from rmq.wire.extfields import parse_boolean
from rmq.wire.frames import PREFIX, Frame, ProtocolError

#: Bytes of encoded replies that are kept; when full all are evicted.
MAX_MEMO_BYTES = 32 * 1024 * 1024
#: Bytes of requests that are known by their bytes; when full all are evicted.
MAX_QUESTION_BYTES = 16 * 1024 * 1024
#: Longer requests are always decoded.
MAX_QUESTION_LENGTH = 4096
#: Bytes that a known request costs beside its own.
_QUESTION_OVERHEAD = 400
#: Requests with a larger opaque are always decoded: Java reads 32 bits.
_MAX_OPAQUE = b"2147483647"

_compiled: Any = load("rmq.namesrv._lanes")
_OPAQUE = b'"opaque":'
_unpack_prefix = PREFIX.unpack_from
#: The topic of a usual look-up; only a hint, as the same bytes may be inside of something else.
_TOPIC = re.compile(rb'"topic"\s*:\s*"([^"\\]*)"')
#: A look-up with one of these is never learned: escapes, another zone mode, a flag.
_UNUSUAL = re.compile(rb'\\|%b|"flag"\s*:\s*[^0\s]' % ZONE_MODE.encode())


class _Reply(NamedTuple):
    """A reply frame without its lengths and its opaque, which belongs between ``head`` and ``rest``."""

    head: bytes
    rest: bytes
    header_bytes: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.rest)

    def before(self, digits: int) -> bytes:
        """Return the bytes before an opaque of that many digits."""
        return PREFIX.pack(4 + self.size + digits, self.header_bytes + digits) + self.head


class _Question:
    """A look-up that is known by its bytes; ``digits`` is the length of its opaque."""

    __slots__ = ("digits", "strict", "topic")

    def __init__(self, topic: str, strict: bool, digits: int) -> None:
        self.topic = topic
        self.strict = strict
        self.digits = digits


class RouteReplies:
    """
    Encoded replies to look-ups, by topic and dialect; made on the first look-up, kept until the routes change.

    A change of a few topics drops their replies, any other change drops all. ``on_dropped`` is called with each dropped
    topic before the next reply; ``generation`` is another number after all were dropped.
    """

    def __init__(self, routes: Topology) -> None:
        self.on_dropped: Callable[[str], object] | None = None
        self._routes = routes
        self._version = routes.version
        self._memo: dict[tuple[str, bool], _Reply] = {}
        self.memo_bytes = 0
        self.generation = 0

    def get(self, topic: str, strict: bool) -> _Reply | None:
        """Return the present reply; None for a topic without a route and a route too long for a frame."""
        self.refresh()
        return self._memo.get((topic, strict)) or self._make(topic, strict)

    def refresh(self) -> int:
        """Drop outdated replies; return :attr:`generation`."""
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
                self.memo_bytes -= reply.size
        if self.on_dropped is not None:
            self.on_dropped(topic)

    def _make(self, topic: str, strict: bool) -> _Reply | None:
        route = self._routes.pick_route(topic)
        if route is None:
            return None
        body = encode_route(route, strict=strict)
        try:
            frame = encode_reply(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque=0), body=body)
        except ProtocolError:  # too long; the reference says so
            return None
        gap = frame.index(_OPAQUE) + len(_OPAQUE)
        reply = _Reply(frame[PREFIX.size : gap], frame[gap + 1 :], len(frame) - PREFIX.size - len(body) - 1)
        if self.memo_bytes + reply.size > MAX_MEMO_BYTES:
            self._forget()
        self._memo[(topic, strict)] = reply
        self.memo_bytes += reply.size
        return reply

    def _forget(self) -> None:
        self._memo.clear()
        self.memo_bytes = 0
        self._version = self._routes.version
        self.generation += 1


class RouteLane:
    """
    Answers look-ups that it knows by their bytes, all but the digits of the opaque.

    A look-up of a topic with a route is learned when it is seen first: decoded once, with other digits. The word opaque
    may occur in it only once, so these digits are the opaque and nothing else, however its client writes the rest. What
    does not look like this in its bytes is not decoded here.
    """

    code = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)

    def __init__(self, routes: Topology, settings: Settings) -> None:
        self.replies = replies = RouteReplies(routes)
        self._routes = routes
        self._settings = settings
        #: by the bytes of the request without the digits of the opaque, which follow the first ``"opaque":``
        self._questions: dict[bytes, _Question] = {}
        self._question_bytes = 0
        #: the bytes before and after the opaque of the present reply
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
            _MAX_OPAQUE,
            MAX_COLLECTED_BYTES,
        )
        if self._known is not None:
            #: see :class:`rmq.remoting.responders.WholeLane`
            self.whole: Callable[[bytes], tuple[bytes, int] | None] = self._known.whole

    def __call__(self, data: bytes, position: int, answers: list[bytes], _: Channel) -> tuple[int, int]:
        """See :class:`rmq.remoting.responders.ChunkLane`."""
        count = collected = 0
        if not is_plain_config(self._settings):
            return position, count
        if self._generation != self.replies.refresh():
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
            if opaque < 0 or comma < 0 or comma - gap > len(_MAX_OPAQUE):
                break
            digits = data[gap:comma]
            if not digits.isdigit() or (digits[0] == 0x30 and comma - gap > 1):
                break
            if len(digits) == len(_MAX_OPAQUE) and digits > _MAX_OPAQUE:
                break
            before, after = data[position:gap], data[comma:stop]
            question = questions.get(before + after) or self._learn(before, len(digits), after)
            if question is None:
                break
            answer = known.get(question) or self._answer(question)
            if answer is None:
                break
            head, rest = answer
            answers += (head, digits, rest)
            count += 1
            position = stop
            collected += len(rest)
            if collected > MAX_COLLECTED_BYTES:
                break
        return position, count

    def _answer(self, question: _Question) -> tuple[bytes, bytes] | None:
        """Return, and keep, the present answer; None when the topic has no route now."""
        reply = self.replies.get(question.topic, question.strict)
        if self._generation != self.replies.generation:
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
        self._generation = self.replies.generation

    def _learn(self, before: bytes, digits: int, after: bytes) -> _Question | None:
        """Return, and keep, a plain look-up of a topic with a route by the bytes around its opaque; None for others."""
        key = before + after
        found = _TOPIC.search(key)
        if found is None or not self._routes.has_topic(found[1].decode("utf-8", "replace")):
            return None
        if key.count(b"opaque") != 1 or _UNUSUAL.search(key):
            return None
        # 1s, because a header without an opaque might be read as opaque 0
        opaque = b"1" * digits
        header_bytes = _unpack_prefix(before)[1]
        header = (before + opaque + after)[PREFIX.size :]
        if header_bytes != len(header):  # it has a body, or another serialize type
            return None
        try:
            command = decode_command(Frame(SerializeType.JSON, header, b""))
        except ProtocolError:
            return None
        plain = _plain(command)
        if plain is None or command.opaque != int(opaque) or command.code != self.code or command.flag:
            return None
        if not self._routes.has_topic(plain[0]):
            return None
        question = _Question(*plain, digits)
        size = len(key) + _QUESTION_OVERHEAD
        if self._question_bytes + size > MAX_QUESTION_BYTES:
            self._questions.clear()
            self._by_topic.clear()
            self._forget_answers()
            self._question_bytes = 0
        self._questions[key] = question
        self._by_topic.setdefault(question.topic, []).append(question)
        self._question_bytes += size
        return question


def is_plain_config(settings: Settings) -> bool:
    """Return whether the present configuration answers look-ups from the route table alone."""
    config = settings.namesrv
    return not (config.order_message_enable or config.need_wait_for_service or config.cluster_test)


def _plain(command: RemotingCommand) -> tuple[str, bool] | None:
    """Return topic and dialect of a look-up that asks for nothing else; None for others."""
    if command.serialize_type != SerializeType.JSON:
        return None
    fields = command.ext_fields
    topic = fields.get("topic")
    if topic is None or ZONE_MODE in fields:
        return None
    return topic, command.version >= STRICT_JSON_SINCE or parse_boolean(fields.get("acceptStandardJsonOnly", ""))
