"""
Programs of filters on properties, for the compiled loop of pulls.

A program is one node: its operation (a byte) and what belongs to it, numbers big-endian. Its value is NO, YES, UNKNOWN
(a property is absent), FAILED (a value is no number; then no message is selected) or UNSURE: only the filter itself,
which is asked next, can tell. `rmq.store._pick` runs programs; the filter is the reference.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

#: operations
AND, OR, NOT, CONSTANT, PRESENT, ABSENT, TEXT, IN, FIND, WHOLE, DOUBLE = range(11)
#: how a number is compared, and where a text is looked for
ABOVE, ABOVE_OR_EQUAL, BELOW, BELOW_OR_EQUAL, EQUAL = range(5)
ANYWHERE, AT_START, AT_END = range(3)
#: values of a node
NO, YES, UNKNOWN, FAILED, UNSURE = range(5)

_SIZE = struct.Struct(">I")
#: longest mark of a name, see `rmq.wire.record.property_mark`
MAX_MARK_BYTES = 255


class PropertyFilter(Protocol):
    """Called with a message's encoded properties: True when it is selected."""

    @property
    def program(self) -> bytes | None:
        """What answers the same for the most usual properties; None when only the call can tell."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""

    def __call__(self, properties: str, /) -> bool: ...


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def _named(operation: int, mark: str) -> bytes | None:
    name = mark.encode()
    return None if len(name) > MAX_MARK_BYTES else bytes((operation, len(name))) + name


def joined(operation: int, parts: Sequence[bytes | None]) -> bytes | None:
    """AND or OR of several nodes."""
    found = [part for part in parts if part is not None]
    return None if len(found) < len(parts) else bytes((operation,)) + _sized(b"".join(found))


def negated(part: bytes | None) -> bytes | None:
    return None if part is None else bytes((NOT,)) + part


def constant(value: int) -> bytes:
    return bytes((CONSTANT, value))


def present(mark: str) -> bytes | None:
    """NO where the property is, UNKNOWN where it is absent: a property alone is no condition."""
    return _named(PRESENT, mark)


def absent(mark: str) -> bytes | None:
    """YES where the property is absent."""
    return _named(ABSENT, mark)


def equal_text(mark: str, text: str) -> bytes | None:
    head = _named(TEXT, mark)
    return None if head is None else head + _sized(text.encode())


def one_of(mark: str, texts: Sequence[str], *, found: bool) -> bytes | None:
    """``found`` when the property is one of the texts, the other truth value when not."""
    head = _named(IN, mark)
    return None if head is None else head + bytes((found,)) + _sized(b"".join(_sized(text.encode()) for text in texts))


def find_text(mark: str, where: int, text: str, *, found: bool) -> bytes | None:
    head = _named(FIND, mark)
    return None if head is None else head + bytes((where, found)) + _sized(text.encode())


def whole_number(mark: str, test: int, value: int, bits: int) -> bytes | None:
    """A property, which must be a number of so many bits, beside ``value``."""
    head = _named(WHOLE, mark)
    return None if head is None else head + struct.pack(">BBq", test, bits, value)


def double(mark: str, test: int, value: float) -> bytes | None:
    """A property as a floating-point number beside ``value``, which is not 0."""
    head = _named(DOUBLE, mark)
    return None if head is None else head + struct.pack(">Bd", test, value)
