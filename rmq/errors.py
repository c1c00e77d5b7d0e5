"""Failures of a request that we send."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class RocketMqError(Exception):
    """The root of them all."""


class RequestFailed(RocketMqError):
    """A request has no usable answer; ``addr`` is the peer, as ``ip:port``."""

    def __init__(self, addr: str, text: str) -> None:
        super().__init__(text)
        self.addr = addr


class Refused(RequestFailed):
    """The peer answered with a response code that the request's contract does not have."""

    def __init__(
        self, code: int, remark: str, addr: str, ext: Mapping[str, str] = MappingProxyType({}), request_code: int = -1
    ) -> None:
        super().__init__(addr, f"{addr} refused request {request_code} with code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.ext = ext
        self.request_code = request_code


class RequestTimeout(RequestFailed, TimeoutError):
    """No answer within the caller's timeout; the request may have been executed."""


class Unreachable(RequestFailed, ConnectionError):
    """No connection could be made, or it was lost before the answer came."""


class BadAnswer(RequestFailed):
    """The peer answered with a header or body that cannot be read."""
