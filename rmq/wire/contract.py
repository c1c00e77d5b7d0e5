"""
One declaration per request code: the classes of its header, body and answer.

A :class:`Contract` is what a caller sends and what a responder registers for; mypy checks both ends against it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Generic

import attrs
import msgspec

from rmq.wire.extfields import header_codec

if TYPE_CHECKING:
    # A class that a contract does not name is None; `typing` knows defaults from Python 3.13 on.
    from typing_extensions import TypeVar

    H = TypeVar("H", default=None)
    B = TypeVar("B", default=None)
    RH = TypeVar("RH", default=None)
    RB = TypeVar("RB", default=None)
else:
    from typing import TypeVar

    H, B, RH, RB = map(TypeVar, ("H", "B", "RH", "RB"))


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


def contract(
    code: int,
    header: type[H] | None = None,
    *,
    body: type[B] | None = None,
    reply: type[RH] | None = None,
    reply_body: type[RB] | None = None,
    answers: Collection[int] = (),
) -> Contract[H, B, RH, RB]:
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
    declared_contract = Contract(
        code=code,
        header=header,
        body=body,
        reply=reply,
        reply_body=reply_body,
        answers=frozenset({0, *answers}),
    )
    _DECLARED[code] = declared_contract
    return declared_contract
