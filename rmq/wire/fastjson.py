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
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from rmq.wire.extfields import java_string, parse_boolean

#: input beyond this size gets no second, tolerant reading (about a second at worst)
MAX_TOLERANT_BYTES = 4 * 1024 * 1024
#: objects and arrays inside one another, in the tolerant parser
MAX_DEPTH = 64

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class JsonError(ValueError):
    """A text is not the JSON that was expected; says what is wrong and where."""


_NO_KEY = object()


class ObjectKey(dict[str, Any]):
    """A JSON object that stands as a map key; msgspec converts it to the key's class."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items())))


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
        decoder = None if _keys(type_) == _OBJECT_KEYS else msgspec.json.Decoder(type_, strict=False)
        _DECODERS[type_] = decoder
        return decoder


_TOKEN = re.compile(
    r"""
    [\s,]*+                                   # commas are only noise between values
    (?: (?P<string> "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' )
      | (?P<number> -?[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w$.]) )
      | (?P<word> [A-Za-z_$][\w$.@-]*+ )
      | (?P<mark> [{}\[\]] )
      | (?P<end> \Z ) )
    """,
    re.VERBOSE | re.DOTALL,
)
_COLON = re.compile(r"\s*:")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_WORDS = {"true": True, "false": False, "null": None, "undefined": None}
_MAX_DIGITS = 400


def parse(text: str) -> Any:
    """
    Return fastjson's dialect as dicts, lists and scalars; object keys become :class:`ObjectKey`.

    A JsonError names the character position. Takes time linear in the text, and no recursion.
    """
    return _Parser(text).run()


class _Parser:
    """One text being read: the innermost open container with the key that waits for its value, and those around it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._root: list[Any] = []
        self._top: Any = self._root
        self._key: Any = _NO_KEY
        self._around: list[tuple[Any, Any]] = []

    def run(self) -> Any:
        while self._step():
            pass
        if self._around:
            raise JsonError(f"the text ends inside {len(self._around)} open objects or arrays")
        if len(self._root) != 1:
            raise JsonError(f"the text holds {len(self._root)} values instead of one")
        return self._root[0]

    def _step(self) -> bool:
        """Read one token; False at the end of the text."""
        match = _TOKEN.match(self._text, self._position)
        kind = match and match.lastgroup
        if match is None or kind is None:
            raise self._unexpected(self._position)
        start, self._position = match.span(kind)
        token = match[kind]
        if kind == "string":
            self._put(_unquote(token), start)
        elif kind == "mark" and token in "{[":
            self._enter({} if token == "{" else [], start)
        elif kind == "mark":
            self._leave(dict if token == "}" else list, start)
        elif kind == "end":
            return False
        elif self._wants_key():
            self._put(token, start)
        elif kind == "number":
            self._put(self._number(token, start), start)
        elif token in _WORDS:
            self._put(_WORDS[token], start)
        else:
            raise self._unexpected(start)
        return True

    def _wants_key(self) -> bool:
        return self._key is _NO_KEY and isinstance(self._top, dict)

    def _enter(self, container: dict[Any, Any] | list[Any], start: int) -> None:
        if len(self._around) >= MAX_DEPTH:
            raise JsonError(f"more than {MAX_DEPTH} objects or arrays inside one another at character {start}")
        self._around.append((self._top, self._key))
        self._top, self._key = container, _NO_KEY

    def _leave(self, kind: type, start: int) -> None:
        if not self._around or self._key is not _NO_KEY or not isinstance(self._top, kind):
            raise self._unexpected(start)
        value = self._top
        self._top, self._key = self._around.pop()
        self._put(value, start)

    def _put(self, value: Any, start: int) -> None:
        """Put a finished value where it belongs: item of a list, key of an object, value of that key."""
        if isinstance(self._top, list):
            self._top.append(value)
            return
        if self._key is not _NO_KEY:
            self._top[self._key] = value
            self._key = _NO_KEY
            return
        colon = _COLON.match(self._text, self._position)
        if colon is None:
            raise self._unexpected(self._position)
        if isinstance(value, list):
            raise JsonError(f"an array as a key at character {start}")
        self._position = colon.end()
        self._key = ObjectKey(value) if isinstance(value, dict) else value

    def _number(self, token: str, start: int) -> int | float:
        if token.lstrip("-").isdecimal():
            if len(token) > _MAX_DIGITS:
                raise JsonError(f"a number of {len(token)} digits at character {start}")
            return int(token)
        return float(token)

    def _unexpected(self, position: int) -> JsonError:
        return JsonError(f"unexpected {self._text[position : position + 16]!r} at character {position}")


def _unquote(token: str) -> str:
    inner = token[1:-1]
    if "\\" not in inner:
        return inner
    text = _ESCAPE.sub(_unescape, inner)
    # pairs of escaped surrogates become their character, lone ones U+FFFD
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _SURROGATES.search(text) else text


def _unescape(match: re.Match[str]) -> str:
    code, plain = match.groups()
    return chr(int(code, 16)) if code else _ESCAPES.get(plain, plain)


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
    if kind is bool and isinstance(value, str):
        return parse_boolean(value)
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


class _Members:
    """How a Struct class is written: its members by wire name, and whether msgspec alone can do it."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        infos = sorted(msgspec.structs.fields(kind), key=lambda info: info.encode_name)
        self.members = [(info.name, f'"{info.encode_name}":'.encode()) for info in infos]
        self.plain = _keys(kind) == _STR_KEYS


_MEMBERS: dict[type[msgspec.Struct], _Members] = {}


def _append(out: list[bytes], value: Any, quote: bytes) -> None:
    if isinstance(value, msgspec.Struct):
        _append_struct(out, value, quote)
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


def _append_struct(out: list[bytes], value: msgspec.Struct, quote: bytes) -> None:
    kind = value.__class__
    plan = _MEMBERS.get(kind)
    if plan is None:
        plan = _MEMBERS[kind] = _Members(kind)
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


def _append_map(out: list[bytes], value: Mapping[Any, Any], quote: bytes) -> None:
    separator = b"{"
    for key in _in_order(value):
        member = value[key]
        if member is None:
            continue
        out.append(separator)
        separator = b","
        if isinstance(key, str):
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

_STR_KEYS, _INT_KEYS, _OBJECT_KEYS, _UNKNOWN = range(4)


def _keys(type_: Any, seen: frozenset[Any] = frozenset()) -> int:
    """Return the oddest kind of map key in ``type_``: text, integers, objects; or unknown for Any."""
    if type_ in (str, int, float, bool, bytes, type(None)) or type_ in seen:
        return _STR_KEYS
    origin, args = get_origin(type_), get_args(type_)
    if isinstance(type_, type) and origin is None:
        if issubclass(type_, msgspec.Struct):
            inner = seen | {type_}
            return max((_keys(info.type, inner) for info in msgspec.structs.fields(type_)), default=_STR_KEYS)
        return _STR_KEYS if issubclass(type_, Enum) else _UNKNOWN
    if origin is Annotated:
        return _keys(args[0], seen)
    if origin is dict:
        kind, _ = _unwrap(args[0])
        own = _STR_KEYS if kind is str else _INT_KEYS if kind is int else _OBJECT_KEYS
        return max(own, _keys(args[1], seen))
    if origin in (list, set, frozenset, tuple, Union, types.UnionType):
        return max((_keys(arg, seen) for arg in args if arg is not ...), default=_STR_KEYS)
    return _UNKNOWN
