"""
Java-properties configuration as frozen attrs classes.

A config class is frozen attrs, with one field per key of the Apache class that it mirrors::

    @attrs.frozen(kw_only=True)
    class NamesrvConfig:
        kv_config_path: str | None = attrs.field(default=None, metadata={"doc": "where KV configuration is kept"})
        broker_ip1: str | None = attrs.field(default=None, metadata={"key": "brokerIP1"})

Field types: bool, int, float, str, an Enum (given by name), each with ``| None`` (then an empty text means None).
Metadata: ``key`` (when it is not the camel form of the name), ``aliases`` (legacy spellings), ``doc`` (one line),
``range`` (lowest and highest allowed number, either may be None), ``important`` (shown by ``-m``), ``local`` (only the
configuration file changes it, no request: see :mod:`rmq.remoting.access`).
"""

from __future__ import annotations

import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from rmq.runtime.properties import ConfigError as ConfigError
from rmq.runtime.properties import decode_properties as decode_properties
from rmq.runtime.properties import format_properties
from rmq.runtime.properties import parse_properties as parse_properties

_C = TypeVar("_C")

#: similarity from which a key is suggested, from 0 to 1
LIKENESS = 0.7


@attrs.frozen(kw_only=True)
class ConfigField:
    """One key of a config class."""

    key: str
    name: str
    kind: type
    optional: bool
    default: Any
    aliases: tuple[str, ...]
    doc: str
    lowest: float | None
    highest: float | None
    important: bool
    local: bool = False

    def parse(self, text: str, source: str) -> Any:
        """Return the value of ``text``; a ConfigError with source, key and text when it is invalid."""
        if self.optional and text.strip() == "":
            return None
        try:
            value = _PARSERS.get(self.kind, self._parse_enum)(text)
        except ValueError:
            raise ConfigError(f"{source}: {self.key}={text!r} is wrong, {self.expected()} is expected") from None
        if not self._in_range(value):
            raise ConfigError(f"{source}: {self.key}={text!r} is out of range, {self.expected()} is expected")
        return value

    def expected(self) -> str:
        """Return the form of a valid value, for people."""
        if issubclass(self.kind, enum.Enum):
            what = "one of " + ", ".join(member.name for member in self.kind)
        else:
            what = _EXPECTED[self.kind]
        if self.lowest is not None and self.highest is not None:
            what += f" from {self.lowest} to {self.highest}"
        elif self.lowest is not None:
            what += f" of at least {self.lowest}"
        elif self.highest is not None:
            what += f" of at most {self.highest}"
        return what + (" or nothing" if self.optional else "")

    def _parse_enum(self, text: str) -> enum.Enum:
        assert issubclass(self.kind, enum.Enum)
        for member in self.kind:
            if member.name == text.strip():
                return member
        raise ValueError(text)

    def _in_range(self, value: Any) -> bool:
        if self.kind not in (int, float):
            return True
        return (self.lowest is None or value >= self.lowest) and (self.highest is None or value <= self.highest)


@attrs.frozen(eq=False, repr=False)
class Loaded:
    """The result of :func:`load`: one instance per class in order, and the unknown keys."""

    configs: tuple[Any, ...]
    unknown: dict[str, str]
    #: legacy spelling found -> its key
    legacy: dict[str, str] = attrs.field(factory=dict)


def load(
    classes: Sequence[type], values: Mapping[str, str], source: str, *, sources: Mapping[str, str] | None = None
) -> Loaded:
    """
    Make an instance of each class from ``values``; missing keys keep their defaults.

    A key that several classes have goes to all of them. ``source`` (or, by key, ``sources``) names the origin of a
    value in errors. Raises ConfigError for a value that does not fit its key.
    """
    configs = tuple(_build(cls, values, source, sources or {}) for cls in classes)
    known = {name for cls in classes for field in config_fields(cls) for name in (field.key, *field.aliases)}
    legacy = {
        alias: field.key
        for cls in classes
        for field in config_fields(cls)
        for alias in field.aliases
        if alias in values
    }
    return Loaded(configs, {key: text for key, text in values.items() if key not in known}, legacy)


def update(config: _C, values: Mapping[str, str], source: str = "update") -> _C:
    """
    Return ``config`` with those of ``values`` that are its keys; other keys are ignored.

    Raises ConfigError like :func:`load`, and then nothing has changed.
    """
    changes = _values(type(config), values, source, {})
    if not changes:
        return config
    changed: _C = _checked(functools.partial(attrs.evolve, config, **changes), source)
    return changed


def did_you_mean(key: str, classes: Sequence[type], *, likeness: float = LIKENESS) -> str | None:
    """Return the key of ``classes`` that ``key`` was probably meant to be; ``likeness`` is from 0 to 1, in any case."""
    # Lazy import: needed after a mistake only.
    import difflib

    known = {field.key.lower(): field.key for cls in classes for field in config_fields(cls)}
    close = difflib.get_close_matches(key.lower(), known, n=1, cutoff=likeness)
    return known[close[0]] if close else None


def about_unknown(key: str, classes: Sequence[type]) -> str:
    """Return what a warning adds to a key that none of ``classes`` has; FOREIGN_KEYS are those they know of others."""
    if any(key in getattr(cls, "FOREIGN_KEYS", ()) for cls in classes):
        return ": of RocketMQ 5.x, no effect here"
    close = did_you_mean(key, classes)
    return f"; did you mean {close}?" if close else ""


def to_properties(*configs: Any, extra: Mapping[str, str] | None = None) -> str:
    """Return ``key=value`` lines of all configs in the order of declaration, each key once, then ``extra``."""
    entries: dict[str, str] = {}
    for config in configs:
        for field in config_fields(config.__class__):
            entries.setdefault(field.key, format_value(getattr(config, field.name)))
    for key, value in (extra or {}).items():
        entries.setdefault(key, value)
    return format_properties(entries)


def format_value(value: object) -> str:
    """Return the text of a config value as Java prints it: ``true``, an enum's name, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return value.name
    return str(value)


@functools.cache
def config_fields(cls: Any) -> tuple[ConfigField, ...]:
    """Return the keys of a config class in the order of declaration; a TypeError for a type that cannot be a key."""
    hints = typing.get_type_hints(cls)
    return tuple(_config_field(field, hints[field.name]) for field in attrs.fields(cls) if field.init)


def refuse_brackets(key: str, host: str) -> None:
    """Raise ConfigError for ``[::1]``: brackets separate a port from an address, and such a key has no port."""
    if host.startswith("["):
        raise ConfigError(f"{key}={host}: leave the brackets out: {key}={host[1:].partition(']')[0]}")


def camel(name: str) -> str:
    """``listen_port`` -> ``listenPort``."""
    first, *rest = name.strip("_").split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _config_field(field: attrs.Attribute[Any], hint: Any) -> ConfigField:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    optional = type(None) in kinds
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) != 1 or not (
        kinds[0] in _PARSERS or (isinstance(kinds[0], type) and issubclass(kinds[0], enum.Enum))
    ):
        raise TypeError(f"config field {field.name} has type {hint}; bool, int, float, str or an Enum is possible")
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = None if default.takes_self else default.factory()
    lowest, highest = field.metadata.get("range", (None, None))
    return ConfigField(
        key=field.metadata.get("key", camel(field.name)),
        name=field.name,
        kind=kinds[0],
        optional=optional,
        default=default,
        aliases=tuple(field.metadata.get("aliases", ())),
        doc=field.metadata.get("doc", ""),
        lowest=lowest,
        highest=highest,
        important=bool(field.metadata.get("important", False)),
        local=bool(field.metadata.get("local", False)),
    )


def _build(cls: type, values: Mapping[str, str], source: str, sources: Mapping[str, str]) -> Any:
    arguments = _values(cls, values, source, sources)
    for field in config_fields(cls):
        if field.default is attrs.NOTHING and field.name not in arguments:
            raise ConfigError(f"{source}: {field.key} must be given")
    return _checked(functools.partial(cls, **arguments), source)


def _checked(make: Callable[[], Any], source: str) -> Any:
    """Add the source to the error of an attrs validator."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _values(cls: type, values: Mapping[str, str], source: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return field name -> value of those ``values`` that are keys of ``cls``; a proper spelling beats a legacy one."""
    found = {}
    for field in config_fields(cls):
        for key in (field.key, *field.aliases):
            if key in values:
                found[field.name] = field.parse(values[key], sources.get(key, source))
                break
    return found


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


def _parse_int(text: str) -> int:
    word = text.strip()
    if not word.removeprefix("-").removeprefix("+").isdecimal() or not word.isascii():
        raise ValueError(text)
    return int(word)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_PARSERS: dict[Any, Callable[[str], Any]] = {bool: _parse_bool, int: _parse_int, float: _parse_float, str: str}
_EXPECTED: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
