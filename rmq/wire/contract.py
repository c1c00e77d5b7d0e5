"""
One declaration per request code: the classes of its header, body and answer.

A :class:`Contract` is what a caller sends and what a responder registers for; mypy checks both ends against it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic, TypeVar, overload

import attrs
import msgspec

from rmq.wire.extfields import header_codec

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


@attrs.frozen(kw_only=True, eq=False)
class Contract(Generic[H, B, RH, RB]):
    """
    What the request ``code`` carries and what comes back.

    ``header`` and ``reply`` are header classes (``msgspec.Struct``), None for no custom header. ``body`` and
    ``reply_body`` are Structs in fastjson's JSON, ``bytes`` for a body that is left as it is (empty when absent), None
    for no body. ``answers`` are the response codes with which ``reply`` comes, beside 0; all others are refusals.
    """

    code: int
    header: type[H] | None
    body: type[B] | None
    reply: type[RH] | None
    reply_body: type[RB] | None
    answers: frozenset[int] = frozenset({0})


_DECLARED: dict[int, Contract[Any, Any, Any, Any]] = {}


def declared() -> dict[int, Contract[Any, Any, Any, Any]]:
    """Return every contract that has been declared so far, by request code."""
    return dict(_DECLARED)


# fmt: off
@overload
def contract(code: int, *, answers: Collection[int] = ()) -> Contract[None, None, None, None]: ...
@overload
def contract(code: int, *, reply_body: type[RB], answers: Collection[int] = ()) -> Contract[None, None, None, RB]: ...
@overload
def contract(code: int, *, reply: type[RH], answers: Collection[int] = ()) -> Contract[None, None, RH, None]: ...
@overload
def contract(
    code: int, *, reply: type[RH], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[None, None, RH, RB]: ...
@overload
def contract(code: int, *, body: type[B], answers: Collection[int] = ()) -> Contract[None, B, None, None]: ...
@overload
def contract(
    code: int, *, body: type[B], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[None, B, None, RB]: ...
@overload
def contract(
    code: int, *, body: type[B], reply: type[RH], answers: Collection[int] = ()
) -> Contract[None, B, RH, None]: ...
@overload
def contract(
    code: int, *, body: type[B], reply: type[RH], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[None, B, RH, RB]: ...
@overload
def contract(code: int, header: type[H], *, answers: Collection[int] = ()) -> Contract[H, None, None, None]: ...
@overload
def contract(
    code: int, header: type[H], *, reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[H, None, None, RB]: ...
@overload
def contract(
    code: int, header: type[H], *, reply: type[RH], answers: Collection[int] = ()
) -> Contract[H, None, RH, None]: ...
@overload
def contract(
    code: int, header: type[H], *, reply: type[RH], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[H, None, RH, RB]: ...
@overload
def contract(
    code: int, header: type[H], *, body: type[B], answers: Collection[int] = ()
) -> Contract[H, B, None, None]: ...
@overload
def contract(
    code: int, header: type[H], *, body: type[B], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[H, B, None, RB]: ...
@overload
def contract(
    code: int, header: type[H], *, body: type[B], reply: type[RH], answers: Collection[int] = ()
) -> Contract[H, B, RH, None]: ...
@overload
def contract(
    code: int, header: type[H], *, body: type[B], reply: type[RH], reply_body: type[RB], answers: Collection[int] = ()
) -> Contract[H, B, RH, RB]: ...
# fmt: on
def contract(
    code: int,
    header: type[Any] | None = None,
    *,
    body: type[Any] | None = None,
    reply: type[Any] | None = None,
    reply_body: type[Any] | None = None,
    answers: Collection[int] = (),
) -> Contract[Any, Any, Any, Any]:
    """
    Declare the request ``code``.

    A ValueError when the code is declared already; a TypeError when a header class cannot go into extFields.
    ``answers``: response codes other than 0 that are an answer with a header, not a refusal.
    """
    if code in _DECLARED:
        raise ValueError(f"request code {code!r} is declared twice")
    for kind in (header, reply):
        if kind is not None:
            if not issubclass(kind, msgspec.Struct):
                raise TypeError(f"{kind.__name__} is no header class: not a msgspec.Struct")
            header_codec(kind)
    declared_contract: Contract[Any, Any, Any, Any] = Contract(
        code=code,
        header=header,
        body=body,
        reply=reply,
        reply_body=reply_body,
        answers=frozenset({0, *answers}),
    )
    _DECLARED[code] = declared_contract
    return declared_contract
