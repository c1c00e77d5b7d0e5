"""The control port: the commands of a test in any language, one by HTTP POST."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from rmq.runtime.http.quiet import QuietSite

HOST = "127.0.0.1"

#: does the command of a line of JSON; fires with the answer, which has "result" or "error"
Ask = Callable[[str], Deferred[dict[str, Any]]]


def make_control(reactor: Any, ask: Ask) -> Site:
    """Return the factory of connections whose requests are commands; an "error" has status 400."""
    return QuietSite(_Control(ask), reactor=reactor)


class _Control(Resource):
    isLeaf = True

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask

    def render_POST(self, request: Request) -> int:
        gone: list[object] = []
        ended: Deferred[None] = request.notifyFinish()
        ended.addErrback(gone.append)

        def write(answer: dict[str, Any]) -> None:
            if not gone:
                request.setResponseCode(400 if "error" in answer else 200)
                data = json.dumps(answer).encode() + b"\n"
                request.setHeader(b"content-type", b"application/json")
                request.setHeader(b"content-length", b"%d" % len(data))
                request.write(data)
                request.finish()

        assert request.content is not None
        self._ask(request.content.read().decode("utf-8", "replace")).addCallback(write)
        return NOT_DONE_YET
