"""The twisted.web side of the HTTP port; `rmq.runtime.http.service` imports it when a port is configured."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from rmq.runtime.http.face import HEALTH, METRICS, Face
from rmq.runtime.http.metrics import Scrapes
from rmq.runtime.http.quiet import QuietSite

#: limit of connections, each with the memory of one answer at most; a further one evicts the oldest
MAX_CONNECTIONS = 32
#: a connection on which nothing arrives for so long is closed
IDLE_S = 30.0
#: bytes of a request's body, which nothing here reads; beyond that the connection is closed
MAX_BODY_BYTES = 65_536

_HEADERS = {
    b"server": b"rmq",
    b"cache-control": b"no-store",
    b"x-content-type-options": b"nosniff",
    b"content-security-policy": b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
}


def make_site(reactor: Any, face: Face) -> BoundedSite:
    """Return the factory of HTTP connections that show ``face``."""
    console = _Console(face, Scrapes(reactor, face.collectors))
    return BoundedSite(QuietSite(console, requestFactory=_BodilessRequest, timeout=IDLE_S, reactor=reactor))


class _Console(Resource):
    """All pages of a role, by whole path: there is no tree."""

    isLeaf = True
    _log = Logger()

    def __init__(self, face: Face, scrapes: Scrapes) -> None:
        super().__init__()
        self._face = face
        self._scrapes = scrapes

    def render(self, request: Request) -> bytes | int:
        for name, value in _HEADERS.items():
            request.setHeader(name, value)
        if request.method not in (b"GET", b"HEAD"):
            request.setHeader(b"allow", b"GET, HEAD")
            return _plain(request, "only GET and HEAD are answered\n", status=405)
        path = request.path.decode("utf-8", "replace")
        if path == METRICS:
            return self._metrics(request)
        if path == HEALTH:
            return self._health(request)
        make_page = self._face.pages.get(path)
        if make_page is None:
            known = " ".join(sorted([*self._face.pages, METRICS, HEALTH]))
            return _plain(request, f"no such page; there are {known}\n", status=404)
        request.setHeader(b"content-type", b"text/html; charset=utf-8")
        return make_page(_query(request)).encode("utf-8", "replace")

    def _health(self, request: Request) -> bytes:
        why = self._face.health()
        return _plain(request, "ok\n") if why is None else _plain(request, f"not serving: {why}\n", status=503)

    def _metrics(self, request: Request) -> int:
        content_type, text = self._scrapes.text((request.getHeader(b"accept") or b"").decode("ascii", "replace"))
        request.setHeader(b"content-type", content_type.encode())
        gone = False

        def lost(_: object) -> None:
            nonlocal gone
            gone = True

        def send(data: bytes) -> None:
            if not gone:
                request.setHeader(b"content-length", b"%d" % len(data))
                request.write(data)
                request.finish()

        def failed(failure: Failure) -> None:
            self._log.failure("the metrics could not be written", failure)
            request.setResponseCode(500)
            request.setHeader(b"content-type", b"text/plain; charset=utf-8")
            send(b"the metrics could not be written: the log says why\n")

        ended: Deferred[None] = request.notifyFinish()
        ended.addErrback(lost)
        text.addCallbacks(send, failed)
        return NOT_DONE_YET


class _BodilessRequest(Request):
    """A request whose body is discarded: twisted.web would keep a large one in a file."""

    _thrown_away = 0

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        self._thrown_away += len(data)
        if self._thrown_away > MAX_BODY_BYTES:
            self.loseConnection()


class _Connection(ProtocolWrapper):
    disconnecting = False


class BoundedSite(WrappingFactory):
    """At most MAX_CONNECTIONS connections: the oldest is evicted, so that idle ones do not block others."""

    noisy = False
    protocol = _Connection

    def buildProtocol(self, addr: IAddress | None) -> ProtocolWrapper:
        while len(self.protocols) >= MAX_CONNECTIONS:
            self._drop(next(iter(self.protocols)))
        return super().buildProtocol(addr)

    def drop_all(self) -> None:
        """End all connections, answered or not."""
        for connection in list(self.protocols):
            self._drop(connection)

    def _drop(self, connection: Any) -> None:
        self.protocols.pop(connection, None)
        connection.transport.abortConnection()

    def unregisterProtocol(self, p: ProtocolWrapper) -> None:
        self.protocols.pop(p, None)


def _plain(request: Request, text: str, *, status: int = 200) -> bytes:
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"text/plain; charset=utf-8")
    return text.encode()


def _query(request: Request) -> Mapping[str, str]:
    args: Mapping[bytes, list[bytes]] = request.args or {}
    return {name.decode("utf-8", "replace"): values[-1].decode("utf-8", "replace") for name, values in args.items()}
