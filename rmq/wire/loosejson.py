"""
A tolerant reader of JSON in fastjson's dialect: what Java peers accept and standard parsers do not.

Bare and single-quoted names, integers and whole objects as map keys, stray commas, odd escapes.

Java: com.alibaba.fastjson.parser.DefaultJSONParser
"""

from __future__ import annotations

import re
from typing import Any

#: objects and arrays inside one another
MAX_DEPTH = 64


class JsonError(ValueError):
    """A text is not the JSON that was expected; says what is wrong and where."""


_NO_KEY = object()


class ObjectKey(dict[str, Any]):
    """A JSON object that stands as a map key; msgspec converts it to the key's class."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(map(repr, self.items()))))


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
    Return fastjson's dialect as dicts, lists and scalars.

    Object keys become :class:`ObjectKey`, bare integer keys text; a type to convert to makes numbers of them again.
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
