"""
Custom headers: typed Structs on our side, a map of strings (``extFields``) on the wire.

A header class is a ``msgspec.Struct`` with ``rename="camel"`` whose fields are ``str``, ``bool``, ``float``, ``int``
(better :data:`Int32` or :data:`Int64`, which cost nothing to check) or one of them with ``| None``. A field without a
default is required. Reading is tried first in one typed pass of msgspec; what that refuses is read again as Java and
its looser peers mean it: numbers and booleans where text belongs, booleans as ``Boolean.parseBoolean`` sees them, null
and empty numbers as absent, unknown keys ignored.

Java: RemotingCommand#decodeCommandCustomHeader, #makeCustomHeaderToNet
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from rmq.wire.fastjson import java_string

#: an int of a header that Java keeps in 32 bits
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
#: an int of a header that Java keeps in 64 bits
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}(\.0+)?", re.ASCII)

H = TypeVar("H", bound=msgspec.Struct)


class BadField(Exception):
    """A header field is missing or cannot be read; ``field`` is its name on the wire, ``text`` fit for a remark."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field
        self.text = text


def missing(field: str) -> BadField:
    """Return the error of a missing required field, with Java's text."""
    return BadField(field, f"the custom field <{field}> is null")


def parse_boolean(text: str) -> bool:
    """Return whether ``text`` is "true" in any case; "1" and "yes" are false. Java: Boolean#parseBoolean"""
    return text.lower() == "true"


class _Field(NamedTuple):
    name: str
    wire: str
    kind: type
    required: bool
    least: int
    most: int


class HeaderCodec(Generic[H]):
    """The two directions of one header class; made once per class by :func:`header_codec`."""

    def __init__(self, header: type[H]) -> None:
        self.header = header
        self._fields = [_field(header, info) for info in msgspec.structs.fields(header)]
        self._wires = [field.wire for field in self._fields]
        self._bools = [(f.name, f.wire, f'"{f.wire}":"true"'.encode()) for f in self._fields if f.kind is bool]
        self._loose = [f.name for f in self._fields if f.kind is int and f.least < -(2**63)]
        self._checked = bool(self._bools or self._loose)
        self._decoder = msgspec.json.Decoder(header, strict=False)

    def decode_json(self, raw: bytes) -> H:
        """Read the JSON object ``raw``; a BadField names what is missing or wrong."""
        try:
            header = self._decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self.decode_tolerantly(decode_strings(raw))
        if self._checked and not self._as_java(header, raw):
            return self.decode_tolerantly(decode_strings(raw))
        return header

    def decode_map(self, fields: Mapping[str, str]) -> H:
        """Read a map of strings, as the binary header carries; a BadField names what is missing or wrong."""
        try:
            header = msgspec.convert(fields, self.header, strict=False)
        except msgspec.ValidationError:
            return self.decode_tolerantly(fields)
        if self._checked and not self._as_java_map(header, fields):
            return self.decode_tolerantly(fields)
        return header

    def _as_java(self, header: H, raw: bytes) -> bool:
        """Return whether Java would read the booleans and numbers of ``raw`` as msgspec did."""
        for name, _, token in self._bools:
            if getattr(header, name) is True and token not in raw:
                return False
        return self._in_range(header)

    def _as_java_map(self, header: H, fields: Mapping[str, str]) -> bool:
        for name, wire, _ in self._bools:
            if getattr(header, name) is True and fields.get(wire) != "true":
                return False
        return self._in_range(header)

    def _in_range(self, header: H) -> bool:
        for name in self._loose:
            value = getattr(header, name)
            if value is not None and not -(2**63) <= value < 2**63:
                return False
        return True

    def decode_tolerantly(self, fields: Mapping[str, str]) -> H:
        """Read a map of strings field by field."""
        values: dict[str, Any] = {}
        for field in self._fields:
            value = _parse(field, fields.get(field.wire))
            if value is not None:
                values[field.name] = value
            elif field.required:
                raise missing(field.wire)
        return self.header(**values)

    def encode(self, header: H) -> dict[str, str]:
        """Return the strings of ``header`` by wire name, in the order of its fields; None is left out."""
        fields: dict[str, str] = {}
        for wire, value in zip(self._wires, msgspec.structs.astuple(header), strict=True):
            if value is None:
                continue
            if value.__class__ is str:
                fields[wire] = value
            elif value is True:
                fields[wire] = "true"
            elif value is False:
                fields[wire] = "false"
            else:
                fields[wire] = str(value)
        return fields


_CODECS: dict[type[msgspec.Struct], HeaderCodec[Any]] = {}


def header_codec(header: type[H]) -> HeaderCodec[H]:
    """Return the codec of a header class; a TypeError names a field whose type no header can have."""
    codec = _CODECS.get(header)
    if codec is None:
        codec = _CODECS[header] = HeaderCodec(header)
    return codec


def encode_ext(header: msgspec.Struct, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return ``header`` and then ``extra`` as the strings of extFields; ``extra`` wins where both have a key."""
    fields = header_codec(header.__class__).encode(header)
    if extra:
        fields.update(extra)
    return fields


_STRINGS = msgspec.json.Decoder(dict[str, str])
_VALUES = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_strings(raw: bytes) -> dict[str, str]:
    """
    Return the JSON object ``raw`` as strings, whatever its values are; nulls are left out, the last of equal keys wins.

    Bytes that are no UTF-8 become U+FFFD. A ``msgspec.DecodeError`` when it is no object.
    """
    try:
        return _STRINGS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Either may hide the other; what is no UTF-8 is the latter up to msgspec 0.22, then a DecodeError.
        if not raw.isascii():
            raw = raw.decode("utf-8", "replace").encode()
    texts = ((key, _text(value)) for key, value in _VALUES.decode(raw).items())
    return {key: text for key, text in texts if text is not None}


def _text(value: msgspec.Raw) -> str | None:
    try:
        return java_string(msgspec.json.decode(value))
    except (msgspec.ValidationError, RecursionError):
        # numbers out of range, endless nesting: the reader of the field refuses the text
        return bytes(value).decode()


def _parse(field: _Field, text: str | None) -> object:
    """Return the value of one field, None for absent."""
    if text is None or field.kind is str:
        return text
    if field.kind is bool:
        return parse_boolean(text)
    if not text or text == "null":
        return None
    if field.kind is int and _INTEGER.fullmatch(text):
        value = int(text.partition(".")[0])
        if max(field.least, -(2**63)) <= value <= min(field.most, 2**63 - 1):
            return value
    elif field.kind is float:
        try:
            return float(text)
        except ValueError:
            pass
    raise BadField(field.wire, f"the custom field <{field.wire}> is not {_EXPECTED[field.kind]}: {text[:64]!r}")


_EXPECTED = {int: "an integer in range", float: "a number"}


def _field(header: type[msgspec.Struct], info: msgspec.structs.FieldInfo) -> _Field:
    kind, least, most = _kind(info.type)
    if kind not in (str, bool, int, float):
        raise TypeError(f"{header.__name__}.{info.name}: a header field cannot be {info.type}")
    return _Field(info.name, info.encode_name, kind, info.required, least, most)


def _kind(annotation: Any) -> tuple[Any, int, int]:
    """Return the plain type of an annotation and the bounds of an int (beyond 64 bits when it names none)."""
    origin = get_origin(annotation)
    if origin is Union or origin is types.UnionType:
        inner = [arg for arg in get_args(annotation) if arg is not type(None)]
        return _kind(inner[0]) if len(inner) == 1 else (annotation, 0, 0)
    if origin is Annotated:
        kind, least, most = _kind(get_args(annotation)[0])
        for meta in get_args(annotation)[1:]:
            if isinstance(meta, msgspec.Meta):
                least = least if meta.ge is None else int(meta.ge)
                most = most if meta.le is None else int(meta.le)
        return kind, least, most
    return annotation, -(2**64), 2**64
