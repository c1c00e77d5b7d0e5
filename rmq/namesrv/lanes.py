"""
The short way to answer route look-ups, most of what a NameServer is asked.

The ordinary way is :meth:`rmq.namesrv.responders.RouteResponders.get_routeinfo_by_topic`; the lane gives the same bytes
or leaves the request to it.
"""

from __future__ import annotations

from typing import NamedTuple

from rmq.namesrv.responders import STRICT_JSON_SINCE, encode_route
from rmq.namesrv.routes import RouteTable
from rmq.namesrv.settings import Settings
from rmq.remoting.channel import Channel
from rmq.wire.codes import RequestCode, SerializeType
from rmq.wire.command import RemotingCommand, encode_reply
from rmq.wire.extfields import parse_boolean
from rmq.wire.frames import PREFIX, ProtocolError

#: What is kept of encoded replies; when it is full all of them are dropped and made anew as they are asked for.
MAX_MEMO_BYTES = 32 * 1024 * 1024

_OPAQUE = b'"opaque":'


class _Reply(NamedTuple):
    """A whole reply but for the opaque, which stands between ``head`` and ``rest``, and the lengths in front."""

    head: bytes
    rest: bytes
    header_bytes: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.rest)


class RouteLane:
    """Answer 105 from replies that are kept, by topic and dialect, until the route table changes."""

    def __init__(self, routes: RouteTable, settings: Settings) -> None:
        self._routes = routes
        self._settings = settings
        self._version = routes.version
        self._memo: dict[tuple[str, bool], _Reply] = {}
        self._memo_bytes = 0

    @property
    def memo_bytes(self) -> int:
        """How many bytes of replies are kept."""
        return self._memo_bytes

    def __call__(self, command: RemotingCommand, _: Channel) -> bytes | None:
        """Return the frame of the answer; None for whatever is not a plain look-up of a topic that has a route."""
        config = self._settings.namesrv
        if command.serialize_type != SerializeType.JSON or config.order_message_enable or config.need_wait_for_service:
            return None
        fields = command.ext_fields
        topic = fields.get("topic")
        if topic is None:
            return None
        strict = command.version >= STRICT_JSON_SINCE or parse_boolean(fields.get("acceptStandardJsonOnly", ""))
        if self._version != self._routes.version:
            self._forget()
        reply = self._memo.get((topic, strict)) or self._keep(topic, strict)
        if reply is None:
            return None
        opaque = b"%d" % command.opaque
        header_bytes = reply.header_bytes + len(opaque)
        length = 4 + reply.size + len(opaque)
        return b"".join((PREFIX.pack(length, header_bytes), reply.head, opaque, reply.rest))

    def _keep(self, topic: str, strict: bool) -> _Reply | None:
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
