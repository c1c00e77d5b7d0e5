"""The text of Java properties files, as ``java.util.Properties`` reads them, but with errors where Java guesses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_BLANKS = " \t\f"
#: lines of a formatted text with a secret value
_SECRET = re.compile(r"^([^=\n]*(?:password|passwd|secret|token)[^=\n]*)=[^\n]+$", re.IGNORECASE | re.MULTILINE)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class ConfigError(Exception):
    """Configuration that cannot be used; the text names the source and the line or key."""


def decode_properties(data: bytes, source: str) -> dict[str, str]:
    """
    Return the entries of a properties file: UTF-8, or ISO-8859-1 (Java's own choice) when it is not UTF-8.

    Raises ConfigError naming ``source`` and the line.
    """
    return parse_properties(decode_text(data), source)


def decode_text(data: bytes) -> str:
    """Return the text of a properties file: UTF-8, or ISO-8859-1."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse_properties(text: str, source: str) -> dict[str, str]:
    r"""
    Return the entries of a properties text; of equal keys the last counts, as in Java.

    Comments (``#``, ``!``), continuation lines, ``=``, ``:`` or blanks between key and value, and the escapes ``\t \n
    \r \f \uXXXX`` are understood. Raises ConfigError naming ``source`` and the line for a value without key, a broken
    ``\u`` and NUL characters (not a text file).
    """
    return {key: value for _, key, value in numbered_entries(text, source)}


def numbered_entries(text: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and value of each entry, also of equal keys; raises as :func:`parse_properties`."""
    for number, line in _logical_lines(text):
        if "\0" in line:
            raise ConfigError(f"{source}, line {number}: a NUL character; this is no properties file")
        end = _key_end(line)
        try:
            key = _unescape(line[:end])
            value = _unescape(_value_part(line[end:]))
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
        if not key:
            raise ConfigError(f"{source}, line {number}: a value without a key: {line!r}")
        yield number, key, value


def format_properties(entries: Mapping[str, str]) -> str:
    """Return ``key=value`` lines that both Java and :func:`parse_properties` read back."""
    return "".join(f"{_escape_key(key)}={_escape_value(value)}\n" for key, value in entries.items())


def without_secrets(text: str) -> str:
    """Return what :func:`format_properties` returned, with ``(not shown)`` for passwords and secret keys."""
    return _SECRET.sub(r"\1=(not shown)", text)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each entry, with continuation lines joined."""
    pending: str | None = None
    first = 0
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = line.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            first, pending = number, ""
        pending += line
        if _ends_with_continuation(line):
            pending = pending[:-1]
            continue
        yield first, pending
        pending = None
    if pending:
        yield first, pending


def _ends_with_continuation(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _key_end(line: str) -> int:
    """Return where the key ends: at the first separator that no backslash escapes."""
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 1
        elif line[position] in "=:" or line[position] in _BLANKS:
            return position
        position += 1
    return len(line)


def _value_part(rest: str) -> str:
    """Take blanks, at most one ``=`` or ``:``, and blanks off the front."""
    rest = rest.lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    pieces = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            pieces.append(char)
            continue
        char = text[position : position + 1]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ValueError(f"\\u needs four hexadecimal digits, not {digits!r}")
            pieces.append(chr(int(digits, 16)))
            position += 4
        else:
            pieces.append(_ESCAPES.get(char, char))
    # Java writes characters beyond the basic plane as two \u escapes; join such pairs.
    return "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escape_controls(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    for letter, char in _ESCAPES.items():
        escaped = escaped.replace(char, f"\\{letter}")
    return escaped


def _escape_value(value: str) -> str:
    escaped = _escape_controls(value)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape_key(key: str) -> str:
    escaped = _escape_controls(key)
    for char in "=: ":
        escaped = escaped.replace(char, f"\\{char}")
    return f"\\{escaped}" if escaped.startswith(("#", "!")) else escaped
