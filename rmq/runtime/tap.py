"""
The command line that NameServer and Broker share: Apache's options, and every configuration key as a long option.

Later beats earlier: the defaults of the config classes, the role's own defaults, the file given with ``-c``, the
command line.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.application.service import IService, MultiService
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.components import Componentized

from rmq.runtime import logs, manhole
from rmq.runtime.config import (
    ConfigError,
    ConfigField,
    config_fields,
    decode_properties,
    did_you_mean,
    format_value,
    load,
    to_properties,
)
from rmq.runtime.properties import format_properties

COMMAND_LINE = "command line"
NAMESRV_KEY = "namesrvAddr"

#: where the text of an option begins in --help
INDENT = 30


class RmqOptions(usage.Options):
    """
    Options of a role; a role's ``Options`` calls ``super().__init__(config_classes, defaults)``.

    ``defaults`` are values (as text) of the role that differ from those of the classes: ``{"listenPort": "9876"}``.
    After parsing, ``configs`` holds one instance per class in order, ``unknown`` the keys of the file that no class has
    (they were reported), ``config_file`` the path given with ``-c`` or None. Whatever is wrong becomes a UsageError,
    which `twistd` prints before it exits with 1; ``-p``, ``-m`` and ``-h`` exit with 0.

    Java: NamesrvStartup#createNamesrvController, BrokerStartup#createBrokerController, ServerUtil
    """

    _log = Logger()

    optFlags: list[Any] = [
        ["printConfigItem", "p", "Print every configuration key with its value and exit."],
        ["printImportantConfig", "m", "Print the important configuration keys with their values and exit."],
        ["logJson", None, "Write log events as JSON lines."],
    ]
    optParameters: list[Any] = [
        ["configFile", "c", None, "Properties file to read."],
        [NAMESRV_KEY, "n", None, "NameServer addresses, host:port;host:port."],
        ["logFile", None, None, "Write the log to this file ('-': standard output) instead of where twistd does."],
        ["logLevel", None, None, "Level to log: info, or info,rmq.store=debug."],
        ["manhole", None, None, "Python prompt into the process on 127.0.0.1: PORT, or ssh:PORT:AUTHORIZED_KEYS."],
    ]

    def __init__(self, config_classes: Sequence[type], defaults: Mapping[str, str] | None = None) -> None:
        self.config_classes = tuple(config_classes)
        self.config_defaults = dict(defaults or {})
        self._fields: dict[str, ConfigField] = {}
        for cls in self.config_classes:
            for field in config_fields(cls):
                self._fields.setdefault(field.key, field)
        strangers = self.config_defaults.keys() - self._fields.keys()
        assert not strangers, f"defaults for keys that no config class has: {sorted(strangers)}"
        self._ordinary = {long for long, *_ in [*self.optFlags, *self.optParameters]} | {"help", "version"}
        super().__init__()
        self.configs: tuple[Any, ...] = ()
        self.unknown: dict[str, str] = {}
        self.config_file: str | None = None
        self.log_observer: ILogObserver | None = None
        self._failed = False

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"rmq {_version('rmq')}, Twisted {_version('twisted')}")
        raise SystemExit(0)

    def opt_h(self) -> None:
        """Print this help and exit."""
        self.opt_help()

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            self._failed = True
            raise usage.UsageError(self._explained(str(error))) from None

    def parseArgs(self, *arguments: str) -> None:
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}; configuration keys are given as --KEY VALUE")

    def postOptions(self) -> None:
        try:
            self._load()
            if self["manhole"] is not None:
                manhole.parse_manhole(self["manhole"])
            self._print_and_exit()
            if self["logFile"] is not None or self["logJson"] or self["logLevel"] is not None:
                self.log_observer = logs.make_observer(
                    path=self["logFile"], json=bool(self["logJson"]), level=self["logLevel"] or "info"
                )
        except ConfigError as error:
            raise usage.UsageError(str(error)) from error

    def top_service(self, role: IService, namespace: Mapping[str, Any]) -> MultiService:
        """
        Return what ``makeService`` hands to `twistd`: ``role`` with the log and the manhole of the command line.

        ``namespace`` is what the manhole's prompt offers. Ends the process when the manhole cannot be made.
        """
        top = TopService(self.log_observer)
        role.setServiceParent(top)
        if self["manhole"] is not None:
            try:
                manhole.make_manhole_service(self["manhole"], dict(namespace)).setServiceParent(top)
            except ConfigError as error:
                raise SystemExit(str(error)) from error
        return top

    def getUsage(self, width: int | None = None) -> str:
        """Return the help: ordinary options, then the keys of each config class sorted, with default and meaning."""
        width = width or max(60, int(os.environ.get("COLUMNS", "100")))
        lines = ["Options:", *self._ordinary_help(width)]
        if self._failed:
            return "\n".join([*lines, "", "--help lists the configuration keys too.", ""])
        shown: set[str] = set()
        for cls in self.config_classes:
            fields = [field for field in config_fields(cls) if field.key not in shown | self._ordinary]
            shown.update(field.key for field in fields)
            lines += ["", f"Keys of {cls.__name__} (for the file of -c, and as options):"]
            for field in sorted(fields, key=lambda field: field.key.lower()):
                lines += _help_lines(f"--{field.key}", self._key_help(field), width)
        return "\n".join([*lines, ""])

    def _gather_parameters(self) -> Any:
        # usage.Options takes its options from class attributes; ours are known per instance, and this is where it asks.
        longs, shorts, docs, settings, synonyms, dispatch = super()._gather_parameters()
        for key in self._fields:
            if key not in self._ordinary:
                longs.append(f"{key}=")
                docs[key] = self._key_help(self._fields[key])
                settings[key] = None
                synonyms[key] = key
                dispatch[key] = usage.CoerceParameter(self, str)
        return longs, shorts, docs, settings, synonyms, dispatch

    def _load(self) -> None:
        values, sources = dict(self.config_defaults), dict.fromkeys(self.config_defaults, "built-in default")
        from_file = self._read_file()
        values.update(from_file)
        sources.update(dict.fromkeys(from_file, str(self.config_file)))
        given = {key: self[key] for key in self._fields if self[key] is not None}
        if self[NAMESRV_KEY] is not None:
            check_addresses(self[NAMESRV_KEY])
        for key, value in given.items():
            for alias in self._fields[key].aliases:
                values.pop(alias, None)
            values[key] = value
            sources[key] = f"{COMMAND_LINE} --{key}"
        loaded = load(self.config_classes, values, "configuration", sources=sources)
        self.configs, self.unknown = loaded.configs, loaded.unknown
        for alias, key in loaded.legacy.items():
            self._warn("{source}: {alias} is an old spelling of {key}", source=sources[alias], alias=alias, key=key)
        for key in self.unknown:
            close = did_you_mean(key, self.config_classes)
            hint = f"; did you mean {close}?" if close else ""
            self._warn("{source}: unknown key {key}{hint}", source=sources[key], key=key, hint=hint)

    def _read_file(self) -> dict[str, str]:
        if self["configFile"] is None:
            return {}
        self.config_file = os.path.abspath(self["configFile"])
        try:
            with open(self.config_file, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ConfigError(f"--configFile {self.config_file}: {error.strerror}") from error
        values = decode_properties(data, self.config_file)
        if not self._prints:
            print(f"load config properties file OK, {self.config_file}", flush=True)
        return values

    @property
    def _prints(self) -> bool:
        return bool(self["printConfigItem"] or self["printImportantConfig"])

    def _warn(self, text: str, **fields: str) -> None:
        if self._prints:  # no log will ever be written
            print(text.format(**fields), file=sys.stderr)
        else:
            self._log.warn(text, **fields)

    def _print_and_exit(self) -> None:
        if self["printImportantConfig"]:
            print(self._important(), end="", flush=True)
        elif self["printConfigItem"]:
            print(to_properties(*self.configs), end="", flush=True)
        else:
            return
        raise SystemExit(0)

    def _important(self) -> str:
        entries: dict[str, str] = {}
        for config in self.configs:
            for field in config_fields(config.__class__):
                if field.important:
                    entries.setdefault(field.key, format_value(getattr(config, field.name)))
        return format_properties(entries)

    def _explained(self, text: str) -> str:
        """Add the option that was probably meant to getopt's complaint."""
        prefix, suffix = "option --", " not recognized"
        if text.startswith(prefix) and text.endswith(suffix):
            close = did_you_mean(text.removeprefix(prefix).removesuffix(suffix), self.config_classes)
            if close:
                return f"{text}; did you mean --{close}?"
        return text

    def _key_help(self, field: ConfigField) -> str:
        default = self.config_defaults.get(field.key, format_value(field.default))
        return f"{field.doc} (default: {default or 'none'})".lstrip()

    def _ordinary_help(self, width: int) -> list[str]:
        lines = []
        for long, short, *_, text in self.optFlags:
            lines += _help_lines(f"-{short}, --{long}" if short else f"--{long}", str(text), width)
        for long, short, _, text in self.optParameters:
            lines += _help_lines(f"-{short}, --{long} VALUE" if short else f"--{long} VALUE", str(text), width)
        lines += _help_lines("-h, --help", "Print this help and exit.", width)
        return lines + _help_lines("--version", "Print the version and exit.", width)


class TopService(MultiService):
    """The outermost service of a process; gives `twistd`'s application the log observer of the command line."""

    def __init__(self, log_observer: ILogObserver | None) -> None:
        super().__init__()
        self._log_observer = log_observer

    def setServiceParent(self, parent: Any) -> None:
        # makeService has no other way to the application, and an observer added later would double twistd's own.
        if self._log_observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log_observer)
        super().setServiceParent(parent)


def check_addresses(text: str) -> None:
    """Raise ConfigError unless ``text`` is ``host:port`` or several of them joined by semicolons."""
    # As in Java, which drops empty parts at the end, one semicolon too many at the end is no mistake.
    for address in text.rstrip("; ").split(";"):
        host, _, port = address.strip().rpartition(":")
        is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
        if not host or not is_port or any(char in ", /" for char in host):
            raise ConfigError(f"--{NAMESRV_KEY} {text!r}: {address!r} is no host:port (join several by ';')")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version (not installed)"


def _help_lines(option: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, width - INDENT, break_long_words=False) or [""]
    lines = [" " * INDENT + line for line in wrapped]
    head = f"  {option}"
    if len(head) < INDENT:
        return [(head.ljust(INDENT) + wrapped[0]).rstrip(), *lines[1:]]
    return [head, *lines]
