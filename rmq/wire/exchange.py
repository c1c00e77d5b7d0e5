"""
A request of a contract as a command, and the answer read by its contract.

Java: RemotingCommand#createRequestCommand, #decodeCommandCustomHeader
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from rmq.errors import BadAnswer, Refused
from rmq.wire import fastjson
from rmq.wire.codes import named, named_response
from rmq.wire.command import RemotingCommand
from rmq.wire.contract import Contract
from rmq.wire.extfields import BadField, encode_ext

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


class Response(Generic[RH, RB]):
    """
    The reply to a request, decoded by its contract.

    ``header`` and ``body`` are None where the contract has none. An absent JSON body reads as an object of defaults.
    ``code`` is one of the contract's ``answers``; anything else is raised as Refused.
    """

    __slots__ = ("body", "code", "ext", "header", "remark")

    def __init__(self, header: RH, body: RB, code: int, remark: str | None, ext: Mapping[str, str]) -> None:
        self.header = header
        self.body = body
        self.code = code
        self.remark = remark
        self.ext = ext


def request_command(
    contract: Contract[H, B, Any, Any], header: H, body: B, *, opaque: int, flag: int = 0
) -> RemotingCommand:
    """Return the command of a request, in JSON, which every peer understands."""
    raw: bytes | None = None
    if isinstance(body, bytes):
        raw = body
    elif body is not None:
        raw = fastjson.encode(body)
    ext = encode_ext(header) if isinstance(header, msgspec.Struct) else None
    return RemotingCommand(contract.code, opaque, flag, ext_fields=ext, body=raw)


def read_response(contract: Contract[Any, Any, RH, RB], answer: RemotingCommand, addr: str) -> Response[RH, RB]:
    """Return an answer read by its contract; raises Refused or BadAnswer."""
    try:
        if answer.code not in contract.answers:
            said = f"refused request {named(contract.code)} with code {named_response(answer.code)}"
            raise Refused(answer.code, answer.remark or "", addr, answer.ext_fields, contract.code, said=said)
        header: Any = None
        if contract.reply is not None:
            kind: Any = contract.reply
            header = answer.decode_header(kind)
        body: Any = None
        if contract.reply_body is bytes:
            body = answer.body or b""
        elif contract.reply_body is not None:
            body = fastjson.decode(answer.body or b"{}", contract.reply_body)
    except BadField as error:
        raise BadAnswer(addr, f"{addr} answered request {named(contract.code)} badly: {error.text}") from error
    except fastjson.JsonError as error:
        raise BadAnswer(addr, f"{addr} answered request {named(contract.code)} with a bad body: {error}") from error
    return Response(header, body, answer.code, answer.remark, answer.ext_fields)
