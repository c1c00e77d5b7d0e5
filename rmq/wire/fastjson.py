"""
JSON bodies as fastjson writes and reads them.

Out: compact, members in alphabetical order, null members left out, integer map keys bare (``{0:"a"}``) and object map
keys as objects (``{{"brokerName":"b","queueId":0,"topic":"T"}:1}``), which is no standard JSON; the strict form that
newer clients ask for quotes integer keys and escapes everything beyond ASCII.

In: standard JSON goes straight through msgspec. What msgspec refuses is read again by a tolerant parser: bare and
single-quoted names, integer and object keys, stray commas, numbers as text and text as numbers. Unknown members are
ignored. ``{"$ref": ...}`` is left as it stands and so reads as an object of defaults.

Java: com.alibaba.fastjson.JSON#toJSONString, #parseObject; RemotingSerializable
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import reduce
from operator import or_
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from rmq.wire.loosejson import JsonError, ObjectKey, parse

__all__ = ["MAX_TOLERANT_BYTES", "JsonError", "decode", "encode", "enum_member", "java_string", "parse"]

#: input beyond this size gets no second, tolerant reading (half a second for a megabyte of one-digit numbers)
MAX_TOLERANT_BYTES = 1024 * 1024

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def enum_member(kind: type[E], value: str | int | None) -> E | None:
    """
    Return the member that fastjson would take: by name in any case, or by ordinal (also as digits); None for others.

    C++ clients send ordinals where Java sends names.
    """
    if isinstance(value, str) and not value.isdecimal():
        return kind.__members__.get(value) or next((m for m in kind if m.name.lower() == value.lower()), None)
    members = list(kind)
    if value is None or not 0 <= int(value) < len(members):
        return None
    return members[int(value)]


def java_string(value: object) -> str | None:
    """
    Return a JSON value as the string that Java would have sent, None for null.

    Booleans in lower case, whole numbers without ``.0``; objects and arrays as compact JSON.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:  # an object as a key, which only fastjson's dialect has
        return encode(value).decode()


# reading

_DECODERS: dict[Any, msgspec.json.Decoder[Any] | None] = {}
_BARE_INT_KEY = re.compile(rb"([{,]\s*)(-?[0-9]+)(\s*:)")


def decode(data: bytes, type_: type[T]) -> T:
    """
    Return ``data`` as ``type_`` (a Struct, dict, list ... of msgspec's types).

    A JsonError says what is wrong and where; nothing else is raised, however deep, long or broken ``data`` is.
    """
    decoder = _decoder(type_)
    if decoder is not None:
        try:
            return decoder.decode(data)  # type: ignore[no-any-return]
        except msgspec.MsgspecError as error:
            first = str(error)
        except UnicodeDecodeError as error:
            first = f"no UTF-8: {error.reason} at byte {error.start}"
        except RecursionError:
            raise JsonError("objects or arrays are nested too deep") from None
        if _BARE_INT_KEY.search(data):
            # A replacement inside a string always leaves broken JSON (a digit behind a closing quote), so that
            # nothing is misread; it falls through to the tolerant parser.
            try:
                return decoder.decode(_BARE_INT_KEY.sub(rb'\1"\2"\3', data))  # type: ignore[no-any-return]
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
    else:
        first = f"{type_} has object keys"
    if len(data) > MAX_TOLERANT_BYTES:
        raise JsonError(f"{first}; {len(data)} bytes are too many for the tolerant parser")
    try:
        return msgspec.convert(_fit(parse(data.decode("utf-8", "replace")), type_), type_, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise JsonError(str(error)) from None


def _decoder(type_: Any) -> msgspec.json.Decoder[Any] | None:
    """Return the decoder of a type, None when it has maps with object keys, which only the tolerant parser reads."""
    try:
        return _DECODERS[type_]
    except KeyError:
        decoder = None if _keys(type_) & _OBJECT_KEYS else msgspec.json.Decoder(type_, strict=False)
        _DECODERS[type_] = decoder
        return decoder


# fitting what was read to a type: what fastjson forgives and msgspec does not


def _fit(value: Any, type_: Any) -> Any:
    """Return ``value`` with texts for numbers, enums by ordinal and the like replaced by what ``type_`` asks for."""
    kind, args = _unwrap(type_)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _fit_struct(value, kind) if isinstance(value, dict) else value
    if kind is dict and isinstance(value, dict) and args:
        return {_fit(key, args[0]): _fit(member, args[1]) for key, member in value.items()}
    if kind in (list, set, frozenset, tuple):
        if isinstance(value, dict) and "$ref" in value:
            return []
        item = args[0] if args else Any
        return [_fit(member, item) for member in value] if isinstance(value, list) else value
    if kind is str and value is not None:
        return java_string(value)
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, (str, int)):
        member = enum_member(kind, value)
        return value if member is None else member.value
    return value


def _fit_struct(value: dict[Any, Any], kind: type[msgspec.Struct]) -> dict[Any, Any]:
    """Fit the members that ``kind`` knows; nulls are left out, so that defaults count."""
    types_ = {info.encode_name: info.type for info in msgspec.structs.fields(kind)}
    fitted = {
        name: _fit(member, types_[name]) for name, member in value.items() if name in types_ and member is not None
    }
    return ObjectKey(fitted) if isinstance(value, ObjectKey) else fitted


def _unwrap(type_: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the bare type and the type arguments below ``| None`` and ``Annotated``."""
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _unwrap(args[0])
    if origin is Union or origin is types.UnionType:
        inner = [arg for arg in args if arg is not type(None)]
        return _unwrap(inner[0]) if len(inner) == 1 else (Any, ())
    return (type_, ()) if origin is None else (origin, args)


# writing

_ENCODER = msgspec.json.Encoder(order="sorted")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")


def encode(value: Any, *, quote_int_keys: bool = False) -> bytes:
    """
    Return a Struct, dict, list or scalar as fastjson writes it (see the module's text).

    ``quote_int_keys`` gives the strict form: integer keys quoted, characters beyond ASCII as ``\\uXXXX``. Maps are
    sorted by key in both forms, where Java leaves the order of the legacy form open. Enums are written by value.
    """
    out: list[bytes] = []
    _append(out, value, b'"' if quote_int_keys else b"")
    text = b"".join(out)
    if quote_int_keys and not text.isascii():
        return _NON_ASCII.sub(_escape, text.decode()).encode()
    return text


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


_INTEGER_MAP: tuple[Any, tuple[Any, ...]] = (dict, (int, str))
_SCALARS: tuple[Any, ...] = ((str, ()), (int, ()), (bool, ()))
_FLAT = (_INTEGER_MAP, *_SCALARS)
_AS_DECLARED = msgspec.json.Encoder()


class _Members:
    """How a Struct class is written: its members by wire name, and whether msgspec alone can do it."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        infos = sorted(msgspec.structs.fields(kind), key=lambda info: info.encode_name)
        self.members = [(info.name, f'"{info.encode_name}":'.encode()) for info in infos]
        self.plain = _keys(kind) == _STR_KEYS
        declared = [info.encode_name for info in msgspec.structs.fields(kind)]
        #: names of maps by integers, where all else is scalar and in order, so that msgspec can do all but their keys
        self.integer_maps: list[str] | None = None
        shapes = {info.name: _unwrap(info.type) for info in infos}
        #: what begins such an object whose members are all scalar
        self.flat = b"{" + self.members[0][1] if all(shape in _SCALARS for shape in shapes.values()) else None
        if declared == sorted(declared) and all(shape in _FLAT for shape in shapes.values()):
            self.integer_maps = [name for name, shape in shapes.items() if shape == _INTEGER_MAP]


_MEMBERS: dict[type[msgspec.Struct], _Members] = {}


def _plan(kind: type[msgspec.Struct]) -> _Members:
    plan = _MEMBERS.get(kind)
    if plan is None:
        plan = _MEMBERS[kind] = _Members(kind)
    return plan


def _append(out: list[bytes], value: Any, quote: bytes) -> None:
    # The frequent ones first: half the cost of a route are the questions for abstract classes below.
    kind = value.__class__
    if kind is str or kind is int:
        out.append(_ENCODER.encode(value))
    elif kind is dict:
        _append_map(out, value, quote)
    elif isinstance(value, msgspec.Struct):
        _append_struct(out, value, quote)
    elif kind is list and value and _append_list(out, value, quote):
        pass
    elif isinstance(value, Mapping):
        _append_map(out, value, quote)
    elif isinstance(value, (list, tuple, set, frozenset)):
        separator = b"["
        for item in _in_order(value) if isinstance(value, (set, frozenset)) else value:
            out.append(separator)
            _append(out, item, quote)
            separator = b","
        out.append(b"]" if value else b"[]")
    else:
        out.append(_ENCODER.encode(value))


def _append_list(out: list[bytes], values: list[Any], quote: bytes) -> bool:
    """Write a list of Structs of one class at once, if msgspec can do it; else write nothing and return False."""
    kind = values[0].__class__
    plan = _MEMBERS.get(kind)
    if plan is None or [value.__class__ for value in values].count(kind) != len(values):
        return False
    if plan.plain:
        text = _ENCODER.encode(values)
    elif plan.integer_maps is None:
        return False
    else:
        distinct: set[int] = set()
        for name in plan.integer_maps:
            for value in values:
                keys = list(getattr(value, name))
                if len(keys) > 1 and keys != sorted(keys):
                    return False
                distinct.update(keys)
        if len(distinct) > 10:
            return False
        text = _AS_DECLARED.encode(values)
        if not quote:
            # Nothing but a key looks like this, for quotes inside of a text are escaped. A regex costs twice as much.
            for key in distinct:
                text = text.replace(b'"%d":' % key, b"%d:" % key)
    if b"null" in text:
        return False
    out.append(text)
    return True


def _append_struct(out: list[bytes], value: msgspec.Struct, quote: bytes) -> None:
    plan = _plan(value.__class__)
    if plan.plain:
        text = _ENCODER.encode(value)
        if b"null" not in text:
            out.append(text)
            return
    separator = b"{"
    for name, prefix in plan.members:
        member = getattr(value, name)
        if member is None or member is msgspec.UNSET:
            continue
        out.append(separator + prefix)
        _append(out, member, quote)
        separator = b","
    out.append(b"}" if separator == b"," else b"{}")


def _append_pairs(out: list[bytes], value: Mapping[Any, Any]) -> bool:
    """Write a map from Structs of one class to Structs of one class as :func:`_append_list` does; else return False."""
    plans = []
    for structs in (value.keys(), value.values()):
        (kind, *others) = {struct.__class__ for struct in structs}
        plan = _plan(kind) if not others and issubclass(kind, msgspec.Struct) else None
        if plan is None or plan.flat is None:
            return False
        plans.append(plan.flat)
    text = _ENCODER.encode([(key, value[key]) for key in _in_order(value)])
    if b"null" in text:
        return False
    # Nothing else looks like these two, for behind the end of a text comes no letter.
    text = text[1:-2].replace(b"}," + plans[1], b"}:" + plans[1])
    out.append(b"{%s}" % text.replace(b"}],[" + plans[0], b"}," + plans[0])[1:])
    return True


def _append_map(out: list[bytes], value: Mapping[Any, Any], quote: bytes) -> None:
    if isinstance(next(iter(value), None), msgspec.Struct) and _append_pairs(out, value):
        return
    separator = b"{"
    for key in _in_order(value):
        member = value[key]
        if member is None:
            continue
        out.append(separator)
        separator = b","
        if key.__class__ is int:
            out.append(b"%s%d%s" % (quote, key, quote))
        elif isinstance(key, str):
            out.append(_ENCODER.encode(key))
        elif isinstance(key, int):
            out.append(b"%s%d%s" % (quote, key, quote))
        else:
            _append(out, key, quote)
        out.append(b":")
        _append(out, member, quote)
    out.append(b"}" if separator == b"," else b"{}")


def _in_order(values: Any) -> list[Any]:
    """Return ``values`` sorted; as they come when they are not comparable (object keys)."""
    try:
        return sorted(values)
    except TypeError:
        return list(values)


# what kinds of map keys a type holds, at any depth

_STR_KEYS, _INT_KEYS, _OBJECT_KEYS, _UNKNOWN = 0, 1, 2, 4


def _keys(type_: Any, seen: frozenset[Any] = frozenset()) -> int:
    """Return the kinds of map keys in ``type_``, added up: text, integers, objects; and unknown for Any."""
    if type_ in (str, int, float, bool, bytes, type(None), msgspec.UnsetType) or type_ in seen:
        return _STR_KEYS
    origin, args = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and origin is None:
        if issubclass(type_, msgspec.Struct):
            inner = seen | {type_}
            return _any(_keys(info.type, inner) for info in msgspec.structs.fields(type_))
        return _STR_KEYS if issubclass(type_, Enum) else _UNKNOWN
    if origin is Annotated:
        return _keys(args[0], seen)
    if origin is dict:
        kind, _ = _unwrap(args[0])
        own = _STR_KEYS if kind is str else _INT_KEYS if kind is int else _OBJECT_KEYS
        return own | _keys(args[1], seen)
    if origin in (list, set, frozenset, tuple, Union, types.UnionType):
        return _any(_keys(arg, seen) for arg in args if arg is not ...)
    return _UNKNOWN


def _any(kinds: Iterable[int]) -> int:
    return reduce(or_, kinds, _STR_KEYS)
