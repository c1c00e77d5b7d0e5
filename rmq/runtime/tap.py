"""
The command line that NameServer and Broker share: Apache's options, and every configuration key as a long option.

Later beats earlier: the defaults of the config classes, the role's own defaults, the file given with ``-c``, the
command line.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService, MultiService
from twisted.internet.error import CannotListenError
from twisted.logger import ILogObserver, Logger
from twisted.python import usage
from twisted.python.components import Componentized

import rmq
import twisted
from rmq.runtime import logs
from rmq.runtime.config import (
    ConfigError,
    ConfigField,
    about_unknown,
    config_fields,
    decode_properties,
    did_you_mean,
    format_value,
    load,
    to_properties,
)
from rmq.runtime.properties import format_properties, without_secrets
from rmq.runtime.signals import handle_signals

if TYPE_CHECKING:
    from rmq.runtime.http.face import Face

COMMAND_LINE = "command line"
NAMESRV_KEY = "namesrvAddr"
#: key of the folder with conf/plain_acl.yml -> environment variable that has it when no file and no option does
HOME_VARIABLE = {"rocketmqHome": "ROCKETMQ_HOME"}

#: options of the log, in the order in which errors name them
LOG_OPTIONS = ("logFile", "logDir", "logFileSize", "logFileCount", "logJson", "logLevel")

#: likeness from which an unknown key is a misspelled one; in another case only it is 1
SURE_LIKENESS = 0.94

#: column of the text of an option in --help
INDENT = 30

#: name of the source of a value in errors that do not know it
CONFIGURATION = "configuration"

#: an error about a key: with or without the word above, then ``key=value`` or ``key:``
COMPLAINT = re.compile(rf"(?:{CONFIGURATION}: )?(?P<text>(?P<key>[\w.]+)(?:=|: ).*)", re.ASCII | re.DOTALL)


class RmqOptions(usage.Options):
    """
    Options of a role; a role's ``Options`` calls ``super().__init__(config_classes, defaults, environment)``.

    ``defaults`` are values (as text) of the role that differ from those of the classes: ``{"listenPort": "9876"}``.
    ``environment`` maps keys to environment variables. After parsing, ``configs`` holds one instance per
    class in order, ``unknown`` the keys of the file that no class has (they were reported), ``config_file`` the path
    given with ``-c`` or None. Every error becomes a SystemExit with one line, which Python prints on standard
    error before it exits with 1 (a UsageError would make `twistd` print the help first, and all of it on standard
    output); ``-p``, ``-m`` and ``-h`` exit with 0.

    Java: NamesrvStartup#createNamesrvController, BrokerStartup#createBrokerController, ServerUtil
    """

    _log = Logger()

    #: name of the role for operators
    role_name = "rmq"
    #: the name of the role's log file; a role without one logs where `twistd` does
    log_name: str | None = None

    optFlags: list[Any] = [
        ["printConfigItem", "p", "Print every configuration key with its value, without passwords, and exit."],
        ["printImportantConfig", "m", "Print the important configuration keys with their values and exit."],
        ["logJson", None, "Write log events as JSON lines."],
    ]
    optParameters: list[Any] = [
        ["configFile", "c", None, "Properties file to read."],
        [NAMESRV_KEY, "n", None, "NameServer addresses, host:port;host:port."],
        ["logFile", None, None, "Write the log to this file ('-': standard output)."],
        ["logDir", None, None, "Write the log to a file in this folder; in the background ~/logs/rocketmqlogs."],
        ["logFileSize", None, None, "Rotate the log file at this size in bytes, or with k, M, G (default: 100M)."],
        ["logFileCount", None, None, "Number of rotated log files to keep (default: 5)."],
        ["logLevel", None, None, "Level to log: info, or info,rmq.store=debug."],
        ["http", None, None, "Status page, metrics for Prometheus and health check at [HOST:]PORT; HOST is 127.0.0.1."],
        ["manhole", None, None, "Python prompt into the process on 127.0.0.1: PORT, or ssh:PORT:AUTHORIZED_KEYS."],
    ]

    def __init__(
        self,
        config_classes: Sequence[type],
        defaults: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.config_classes = tuple(config_classes)
        self.config_defaults = dict(defaults or {})
        self._environment = dict(environment or {})
        self._fields: dict[str, ConfigField] = {}
        for cls in self.config_classes:
            for field in config_fields(cls):
                self._fields.setdefault(field.key, field)
        strangers = (self.config_defaults.keys() | self._environment.keys()) - self._fields.keys()
        assert not strangers, f"defaults for keys that no config class has: {sorted(strangers)}"
        self._ordinary = {long for long, *_ in [*self.optFlags, *self.optParameters]} | {"help", "version"}
        super().__init__()
        self.configs: tuple[Any, ...] = ()
        self.unknown: dict[str, str] = {}
        self.config_file: str | None = None
        self.log_observer: ILogObserver | None = None
        #: key -> source of its value, for people
        self._sources: dict[str, str] = {}

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"rmq {rmq.__version__}, Twisted {twisted.__version__}")
        raise SystemExit(0)

    def opt_h(self) -> None:
        """Print this help and exit."""
        self.opt_help()

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        try:
            super().parseOptions(options)
        except usage.UsageError as error:
            raise SystemExit(f"{self.role_name} cannot start: {self._explained(str(error))}") from None

    def parseArgs(self, *arguments: str) -> None:
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}; configuration keys are given as --KEY VALUE")

    def postOptions(self) -> None:
        try:
            self._load()
            if self["manhole"] is not None:
                from rmq.runtime.manhole import parse_manhole

                parse_manhole(self["manhole"])
            if self["http"] is not None:
                from rmq.runtime.http.service import parse_http

                parse_http(self["http"])
            self._print_and_exit()
            self.log_observer = self._make_observer()
        except ConfigError as error:
            raise usage.UsageError(self.with_source(str(error))) from error

    def with_source(self, text: str) -> str:
        """
        Return an error about a key, preceded by the file, option or variable of its value.

        Checks across keys know keys and values, but not their source.
        """
        found = COMPLAINT.fullmatch(text)
        if found is None or found["key"] not in self._sources:
            return text
        return f"{self._sources[found['key']]}: {found['text']}"

    def top_service(
        self,
        role: IService,
        namespace: Callable[[], Mapping[str, Any]],
        *,
        face: Callable[[], Face] | None = None,
        start_errors: tuple[type[Exception], ...] = (),
        supervisor: IService | None = None,
    ) -> MultiService:
        """
        Return the service for `twistd`: ``role`` with log, HTTP port and manhole of the command line.

        ``namespace`` makes the names of the manhole's prompt and ``face`` the contents of the HTTP port, each only if
        it is configured; ``supervisor`` notifies systemd. A start that fails with one of ``start_errors`` ends the
        process with one line, and so does a manhole or HTTP port that cannot be made.
        """
        twistd = self._twistd_log
        path = self["logFile"] or twistd.path or self["logDir"] or twistd.elsewhere or logs.CONSOLE
        top = TopService(
            self.role_name,
            self.log_observer,
            start_errors,
            is_daemon=twistd.is_daemon,
            is_logged_apart=path != logs.CONSOLE,
        )
        try:
            if self["http"] is not None and face is not None:
                from rmq.runtime.http.service import make_http_service

                # First: a port in use is found before the role starts, and the port answers until the role ends.
                make_http_service(self["http"], face).setServiceParent(top)
            if self["manhole"] is not None:
                from rmq.runtime.manhole import make_manhole_service

                make_manhole_service(self["manhole"], dict(namespace())).setServiceParent(top)
            role.setServiceParent(top)
            if supervisor is not None:
                # Last: the first to stop.
                supervisor.setServiceParent(top)
        except ConfigError as error:
            raise SystemExit(f"{self.role_name} cannot start: {error}") from error
        return top

    def getUsage(self, width: int | None = None) -> str:
        """Return the help: ordinary options, then the keys of each config class sorted, with default and meaning."""
        width = width or max(60, int(os.environ.get("COLUMNS", "100")))
        lines = ["Options:", *self._ordinary_help(width)]
        shown: set[str] = set()
        for cls in self.config_classes:
            fields = [field for field in config_fields(cls) if field.key not in shown | self._ordinary]
            shown.update(field.key for field in fields)
            lines += ["", f"Keys of {cls.__name__} (for the file of -c, and as options):"]
            for field in sorted(fields, key=lambda field: field.key.lower()):
                lines += _help_lines(f"--{field.key}", self._key_help(field), width)
        return "\n".join([*lines, ""])

    def _gather_parameters(self) -> Any:
        # usage.Options reads class attributes; our options are known per instance, and it reads them here.
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
        values, sources = dict(self.config_defaults), self._sources
        sources.update(dict.fromkeys(self.config_defaults, "built-in default"))
        for key, variable in self._environment.items():
            if os.environ.get(variable):
                values[key], sources[key] = os.environ[variable], f"environment variable {variable}"
        from_file = self._read_file()
        values.update(from_file)
        sources.update(dict.fromkeys(from_file, str(self.config_file)))
        given = {key: self[key] for key in self._fields if self[key] is not None}
        for key, value in given.items():
            for alias in self._fields[key].aliases:
                values.pop(alias, None)
            values[key] = value
            sources[key] = f"{COMMAND_LINE} --{key}"
        self._check_name_servers(values.get(NAMESRV_KEY, ""), sources.get(NAMESRV_KEY, ""))
        loaded = load(self.config_classes, values, CONFIGURATION, sources=sources)
        self.configs, self.unknown = loaded.configs, loaded.unknown
        for alias, key in loaded.legacy.items():
            self._warn("{source}: {alias} is an old spelling of {key}", source=sources[alias], alias=alias, key=key)
        for key in self.unknown:
            meant = did_you_mean(key, self.config_classes, likeness=SURE_LIKENESS)
            if meant is not None and self._fields[meant].local:
                raise ConfigError(f"{sources[key]}: unknown key {key}: {meant} is its name")
            about = about_unknown(key, self.config_classes)
            self._warn("{source}: unknown key {key}{about}", source=sources[key], key=key, about=about)

    def _check_name_servers(self, text: str, source: str) -> None:
        if self[NAMESRV_KEY] is not None:
            # The NameServer takes the option and has no such key.
            check_addresses(self[NAMESRV_KEY], f"{COMMAND_LINE} --{NAMESRV_KEY}")
        elif text.strip() and NAMESRV_KEY in self._fields:
            check_addresses(text, source)

    @property
    def _twistd_log(self) -> logs.TwistdLog:
        """The log options of `twistd` before the name of the role."""
        twistd = getattr(self, "parent", None)
        if twistd is None:
            return logs.TwistdLog()
        elsewhere = "--syslog" if twistd.get("syslog") else "--logger" if twistd.get("logger") else None
        return logs.TwistdLog(
            is_daemon=not twistd.get("nodaemon", True), path=twistd.get("logfile") or None, elsewhere=elsewhere
        )

    def _make_observer(self) -> ILogObserver | None:
        """
        Return the destination of the log, None for that of an option of `twistd` alone.

        Options of `twistd` win. Without them a role in the background has its own file, at Apache's place; one in the
        foreground writes to the console.
        """
        twistd = self._twistd_log
        rotation = logs.parse_rotation(self["logFileSize"], self["logFileCount"])
        own = [name for name in LOG_OPTIONS if self[name] not in (None, 0)]
        places = [name for name in ("logFile", "logDir") if self[name] is not None]
        if twistd.elsewhere is not None and own:
            raise ConfigError(f"--{own[0]} has no effect with twistd's {twistd.elsewhere}: leave one of them away")
        if twistd.path is not None and places:
            raise ConfigError(f"--{places[0]} and twistd's --logfile both say where the log goes: leave one away")
        path: str | None = self["logFile"] or twistd.path
        is_in_background = twistd.is_daemon and twistd.path is None and twistd.elsewhere is None
        if path is None and self.log_name is not None and (self["logDir"] is not None or is_in_background):
            path = logs.default_path(self.log_name, self["logDir"])
            print(f"the log goes to {path}", flush=True)
        elif not own and (twistd.path or twistd.elsewhere):
            return None
        if path == logs.CONSOLE and twistd.is_daemon:
            raise ConfigError("the log cannot go to standard output in the background: use twistd --nodaemon")
        return logs.make_observer(
            path=path, json=bool(self["logJson"]), level=self["logLevel"] or "info", rotation=rotation
        )

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
        if self._prints:  # there is no log
            print(text.format(**fields), file=sys.stderr)
        else:
            self._log.warn(text, **fields)

    def _print_and_exit(self) -> None:
        if self["printImportantConfig"]:
            print(self._important(), end="", flush=True)
        elif self["printConfigItem"]:
            print(without_secrets(to_properties(*self.configs)), end="", flush=True)
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
        """Add the option that was probably meant to getopt's error."""
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


class StartError(Exception, SystemExit):
    """
    Ends the process with status 1 and without a traceback.

    `twistd` shows ordinary exceptions of a background process (their first 100 bytes) on the terminal that started it,
    and of a SystemExit nothing; this is both.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 1


class TopService(MultiService):
    """
    The outermost service of a process.

    It gives `twistd`'s application the log observer of the command line, turns ``start_errors`` and a port in use into
    one line, and sets what the signals do (:mod:`rmq.runtime.signals`).
    """

    _log = Logger()

    def __init__(
        self,
        role_name: str,
        log_observer: ILogObserver | None,
        start_errors: tuple[type[Exception], ...] = (),
        *,
        is_daemon: bool,
        is_logged_apart: bool = False,
    ) -> None:
        super().__init__()
        self._role_name = role_name
        self._log_observer = log_observer
        self._start_errors: tuple[type[Exception], ...] = (CannotListenError, *start_errors)
        self._is_daemon = is_daemon
        #: the log is no console, and read without what standard error had
        self._is_logged_apart = is_logged_apart

    def setServiceParent(self, parent: Any) -> None:
        # makeService cannot reach the application otherwise, and an observer added later would double twistd's own.
        if self._log_observer is not None and isinstance(parent, Componentized):
            parent.setComponent(ILogObserver, self._log_observer)
        super().setServiceParent(parent)

    def startService(self) -> None:
        handle_signals()
        self._log.info(
            "{role} is rmq {version} from {folder}, with Python {python} and Twisted {twisted}",
            role=self._role_name,
            version=rmq.__version__,
            folder=os.path.dirname(os.path.abspath(rmq.__file__)),
            python=platform.python_version(),
            twisted=twisted.__version__,
        )
        try:
            super().startService()
        except self._start_errors as error:
            text = f"{self._role_name} cannot start: {error}"
            if self._is_daemon or self._is_logged_apart:
                self._log.critical("{text}", text=text)
            if not self._is_daemon:
                # sys.stderr is twistd's log by now.
                print(text, file=sys.__stderr__, flush=True)
            raise StartError(text) from error


def check_addresses(text: str, source: str) -> None:
    """Raise ConfigError, which names ``source``, unless ``text`` is ``host:port`` or several joined by semicolons."""
    # As in Java, which drops empty parts at the end, one more semicolon at the end is allowed.
    for address in text.rstrip("; ").split(";"):
        host, _, port = address.strip().rpartition(":")
        is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
        if not host or not is_port or any(char in ", /" for char in host):
            raise ConfigError(f"{source}: {NAMESRV_KEY}={text!r}: {address!r} is no host:port (join several by ';')")


def _help_lines(option: str, text: str, width: int) -> list[str]:
    # Lazy import: needed for --help only.
    import textwrap

    wrapped = textwrap.wrap(text, width - INDENT, break_long_words=False) or [""]
    lines = [" " * INDENT + line for line in wrapped]
    head = f"  {option}"
    if len(head) < INDENT:
        return [(head.ljust(INDENT) + wrapped[0]).rstrip(), *lines[1:]]
    return [head, *lines]
