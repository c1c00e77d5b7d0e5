"""Log lines for people and, on request, JSON lines for machines; both from `twisted.logger` events."""

from __future__ import annotations

import contextlib
import faulthandler
import json as json_text
import os
import re
import sys
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, TextIO

import attrs
from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    InvalidLogLevelError,
    LogLevel,
    LogLevelFilterPredicate,
    eventAsText,
)
from twisted.python import threadable
from twisted.python.logfile import LogFile

from rmq.runtime.properties import ConfigError

CONSOLE = "-"

#: below the home directory, as with Apache
DEFAULT_FOLDER = os.path.join("logs", "rocketmqlogs")

#: lower limit: a smaller file would be rotated after a few lines
MIN_ROTATE_BYTES = 10_000
#: each rotation renames all old files
MAX_OLD_FILES = 1000
_FACTORS = {"k": 1000, "m": 1000_000, "g": 1000_000_000}

#: a throttled line is written once in this time
QUIET_MS = 60_000
#: keys of throttled lines that are kept; the oldest are evicted
MAX_QUIET_KEYS = 256

#: control characters, line separators and surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

#: what twisted.logger itself puts into every event; the rest are the fields of the call
_OWN_FIELDS = frozenset({"log_logger", "log_level", "log_namespace", "log_source", "log_format", "log_time"})


@attrs.frozen(kw_only=True)
class Rotation:
    """The size at which a log file is rotated and the number of old files: 100 MB and 5."""

    size_bytes: int = 100_000_000
    old_files: int = 5


@attrs.frozen(kw_only=True)
class TwistdLog:
    """The log options of `twistd` itself; empty in a process without `twistd`."""

    is_daemon: bool = False
    #: ``--logfile``
    path: str | None = None
    #: ``--syslog`` or ``--logger``, None when neither is given
    elsewhere: str | None = None


def default_path(name: str, folder: str | None = None) -> str:
    """Return the log file of a role in the background: ``~/logs/rocketmqlogs/NAME``, or NAME in ``folder``."""
    return os.path.join(os.path.abspath(folder or os.path.join(os.path.expanduser("~"), DEFAULT_FOLDER)), name)


def make_observer(*, path: str | None, json: bool, level: str, rotation: Rotation | None = None) -> ILogObserver:
    """
    Return an observer that writes text or JSON lines to ``path`` (None or ``-``: standard output).

    ``level`` is a level, or several parts joined by commas of which ``namespace=level`` sets one name space:
    ``info,rmq.store=debug``. Raises ConfigError for a level that does not exist and for a file that cannot be opened.
    """
    predicate = _levels(level)
    out = sys.stdout if path in (None, CONSOLE) else _open_log(str(path), rotation or Rotation())
    observer = FileLogObserver(out, json_line if json else TextLines().format)
    return FilteringLogObserver(observer, [predicate])


class TextLines:
    """Format events as ``2026-11-21 10:00:00.123 INFO rmq.store.groupcommit message``, local time, one event a line."""

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def format(self, event: Mapping[str, Any]) -> str | None:
        """Return the line of ``event``; None for an empty one."""
        text = _event_text(event)
        if not text:
            return None
        when = event.get("log_time") or 0.0
        if int(when) != self._second:
            self._second = int(when)
            self._prefix = datetime.fromtimestamp(self._second).strftime("%Y-%m-%d %H:%M:%S")
        level = _level_name(event).upper()
        # Further lines are indented, so that a peer's text cannot look like a line of the log.
        text = visible(text).replace("\n", "\n\t")
        return f"{self._prefix}.{int(when % 1 * 1000):03} {level} {event.get('log_namespace') or '-'} {text}\n"


def json_line(event: Mapping[str, Any]) -> str | None:
    """Return one JSON object with time (epoch seconds), level, namespace, message and the fields of the event."""
    text = _event_text(event)
    if not text:
        return None
    line: dict[str, Any] = {
        "time": event.get("log_time"),
        "level": _level_name(event),
        "namespace": event.get("log_namespace"),
        "message": text,
    }
    for name, value in event.items():
        if name not in _OWN_FIELDS and not name.startswith("log_") and name not in line:
            line[name] = value if isinstance(value, str | int | float | bool | None) else str(value)
    return json_text.dumps(line, ensure_ascii=False) + "\n"


def visible(text: str) -> str:
    """Return ``text`` with escapes for control characters, but for line ends and tabs: it may be a peer's."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _event_text(event: Mapping[str, Any]) -> str:
    return eventAsText(dict(event), includeTraceback=True, includeTimestamp=False, includeSystem=False)


def _level_name(event: Mapping[str, Any]) -> str:
    level = event.get("log_level")
    return "info" if level is None else str(level.name)


def _levels(level: str) -> LogLevelFilterPredicate:
    default = LogLevel.info
    special = []
    for part in level.split(","):
        namespace, equals, name = part.strip().rpartition("=")
        try:
            found = LogLevel.levelWithName(name.strip().lower())
        except InvalidLogLevelError:
            known = ", ".join(known.name for known in LogLevel.iterconstants())
            raise ConfigError(f"log level {part.strip()!r}: there are {known}, and NAMESPACE=LEVEL") from None
        if equals:
            special.append((namespace.strip(), found))
        else:
            default = found
    predicate = LogLevelFilterPredicate(default)
    for namespace, found in special:
        predicate.setLogLevelForNamespace(namespace, found)
    return predicate


def parse_rotation(size: str | None, count: str | None) -> Rotation:
    """Return the rotation of the options --logFileSize (bytes, or with k, M, G) and --logFileCount."""
    rotation = Rotation()
    if size is not None:
        number, factor = size.strip(), 1
        if number[-1:].lower() in _FACTORS:
            number, factor = number[:-1], _FACTORS[number[-1].lower()]
        if not (number.isascii() and number.isdecimal()) or int(number) * factor < MIN_ROTATE_BYTES:
            raise ConfigError(f"--logFileSize {size!r}: a number of bytes from {MIN_ROTATE_BYTES} on, as in 100M")
        rotation = attrs.evolve(rotation, size_bytes=int(number) * factor)
    if count is not None:
        if not (count.isascii() and count.isdecimal()) or not 0 < int(count) <= MAX_OLD_FILES:
            raise ConfigError(f"--logFileCount {count!r}: a number of old files from 1 to {MAX_OLD_FILES}")
        rotation = attrs.evolve(rotation, old_files=int(count))
    return rotation


class LogThrottle:
    """Write a log line that repeats once in QUIET_MS; what counts as the same line is the caller's key."""

    def __init__(self) -> None:
        self._written: dict[Hashable, tuple[int, int]] = {}

    def admit(self, key: Hashable, now_ms: int) -> int | None:
        """Return how many lines of ``key`` were suppressed since the last one written; None: suppress this one too."""
        written_ms, suppressed = self._written.get(key, (None, 0))
        if written_ms is not None and 0 <= now_ms - written_ms < QUIET_MS:
            self._written[key] = (written_ms, suppressed + 1)
            return None
        self._written.pop(key, None)
        while len(self._written) >= MAX_QUIET_KEYS:
            del self._written[next(iter(self._written))]
        self._written[key] = (now_ms, 0)
        return suppressed


def repeats(suppressed: int) -> str:
    """Return what a throttled line says at its end of those that were suppressed before it: nothing where none were."""
    return f" ({suppressed} identical messages suppressed)" if suppressed else ""


class RoleLogFile(LogFile):
    """
    The log file of a role; it also gets the Python stack when a signal such as SIGSEGV or SIGBUS ends the process.

    What another program moved, deleted or truncated, as logrotate does, is opened again at the next line. Otherwise all
    lines would go to a file without a name, which never rotates.
    """

    synchronized = ["write"]

    def _openFile(self) -> None:
        super()._openFile()
        faulthandler.enable(self._file)

    def write(self, data: str | bytes) -> None:
        if self._was_replaced():
            old = self._file
            # A folder that is gone, or may not be written: the old file goes on.
            with contextlib.suppress(OSError):
                self._openFile()
                old.close()
        super().write(data)

    def _was_replaced(self) -> bool:
        try:
            named = os.stat(self.path)
        except OSError:
            return True
        return not os.path.samestat(named, os.fstat(self._file.fileno())) or named.st_size < self._file.tell()

    def close(self) -> None:
        faulthandler.disable()
        super().close()


threadable.synchronize(RoleLogFile)


def _open_log(path: str, rotation: Rotation) -> TextIO:
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file: Any = RoleLogFile.fromFullPath(path, rotateLength=rotation.size_bytes, maxRotatedFiles=rotation.old_files)
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}") from error
    if not os.access(os.path.dirname(path), os.W_OK):
        raise ConfigError(f"log file {path}: its directory is not writable, so the file could not be rotated")
    out: TextIO = file
    return out
