"""Every field in which the two sides of one record differ, as text that people can read."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import attrs

from rmq.wire.record import body_crc
from rmq_audit.worker.records import Record

#: differing fields of one record that are reported: all of the header, and this many properties
MAX_PROPERTIES = 16

#: longest text of one value; the rest of a longer one is left out
MAX_TEXT = 200

_HOSTS = ("bornHost", "storeHost")


@attrs.frozen(kw_only=True)
class FieldValues:
    """One field of a record and what each side has in it; None where a side does not have it at all."""

    field: str
    master: str | None
    slave: str | None


def field_values(ours: Record | None, theirs: Record | None, left: bytes, right: bytes) -> list[FieldValues]:
    """
    Return every field that differs, in the order of the record.

    Each side is read by its own lengths. Where only one side still is a record, its layout is laid over the other's
    bytes too: the damaged side then shows what stands in the place of each field.
    """
    known = ours or theirs
    if known is None:
        return []
    mine, other = _texts(ours or known, left), _texts(theirs or known, right)
    found = []
    for name in [*mine, *(name for name in other if name not in mine)]:
        one, two = mine.get(name), other.get(name)
        if name != "properties" and (one is None or two is None or one[0] != two[0]):
            found.append(FieldValues(field=name, master=one and one[1], slave=two and two[1]))
    if mine["properties"][0] != other["properties"][0]:
        found += _properties(mine["properties"], other["properties"])
    return found


def _texts(layout: Record, data: bytes) -> dict[str, tuple[bytes, str]]:
    """Return bytes and text of every field, by RocketMQ's name; the fields lie where ``layout`` has them."""
    found = {}
    for name, at, size in layout.fields():
        raw = data[at : at + size]
        found[name] = raw, _text(name, raw)
    return found


def _text(name: str, raw: bytes) -> str:
    if name == "body":
        known = f"{len(raw)} bytes, crc {body_crc(raw)}"
        return f"{known}: {shortened(raw)}" if raw.isascii() and raw.decode().isprintable() else known
    if name == "magicCode":
        return f"0x{raw.hex()}"
    if name in _HOSTS and len(raw) in (8, 20):
        host = ipaddress.ip_address(raw[:-4])
        return f"{f'[{host}]' if host.version == 6 else host}:{int.from_bytes(raw[-4:], 'big', signed=True)}"
    if name in ("topic", "properties"):
        return shortened(raw)
    return str(int.from_bytes(raw, "big", signed=True))


def _properties(mine: tuple[bytes, str], other: tuple[bytes, str]) -> Iterator[FieldValues]:
    """Yield the properties that differ; all of them as one where their lists do not tell (order, a stray byte)."""
    one, two = _pairs(mine[0]), _pairs(other[0])
    names = [name for name in dict.fromkeys([*one, *two]) if one.get(name) != two.get(name)]
    if not names:
        yield FieldValues(field="properties", master=mine[1], slave=other[1])
        return
    for name in names[:MAX_PROPERTIES]:
        values = [None if name not in side else shortened(side[name]) for side in (one, two)]
        yield FieldValues(field=f"property {shortened(name)}", master=values[0], slave=values[1])
    if len(names) > MAX_PROPERTIES:
        left_out = len(names) - MAX_PROPERTIES
        yield FieldValues(field=f"and {left_out} more properties", master=None, slave=None)


def _pairs(raw: bytes) -> dict[bytes, bytes]:
    pieces = (piece.partition(b"\x01") for piece in raw.split(b"\x02"))
    return {key: value for key, _, value in pieces if key or value}


def shortened(raw: bytes) -> str:
    """Return bytes as one line of text, with what cannot be printed escaped."""
    text = raw.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
