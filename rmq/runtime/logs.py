"""Log lines for people and, on request, JSON lines for machines; both from `twisted.logger` events."""

from __future__ import annotations

import json as json_text
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TextIO

from twisted.logger import (
    FileLogObserver,
    FilteringLogObserver,
    ILogObserver,
    InvalidLogLevelError,
    LogLevel,
    LogLevelFilterPredicate,
    eventAsText,
    globalLogPublisher,
)
from twisted.python.logfile import LogFile

from rmq.runtime.properties import ConfigError

#: as Apache's: five files of 100 MB besides the current one
ROTATE_BYTES = 100_000_000
ROTATED_FILES = 5

CONSOLE = "-"

#: what twisted.logger itself puts into every event; the rest are the fields of the call
_OWN_FIELDS = frozenset({"log_logger", "log_level", "log_namespace", "log_source", "log_format", "log_time"})


def start_logging(*, path: str | None, json: bool, level: str) -> Callable[[], None]:
    """
    Write the events of this process to ``path`` (None or ``-``: standard output) and return what stops that.

    ``level`` as for :func:`make_observer`. `twistd` has its own way: see `rmq.runtime.tap`.
    """
    observer = make_observer(path=path, json=json, level=level)
    globalLogPublisher.addObserver(observer)
    return lambda: globalLogPublisher.removeObserver(observer)


def make_observer(*, path: str | None, json: bool, level: str) -> ILogObserver:
    """
    Return an observer that writes text or JSON lines to ``path`` (None or ``-``: standard output).

    A file rotates at 100 MB, five old ones are kept. ``level`` is a level, or several parts joined by commas of which
    ``namespace=level`` sets one name space: ``info,rmq.store=debug``. Raises ConfigError for a level that does not
    exist and for a file that cannot be opened.
    """
    predicate = _levels(level)
    out = sys.stdout if path in (None, CONSOLE) else _open_log(str(path))
    observer = FileLogObserver(out, json_line if json else TextLines().format)
    return FilteringLogObserver(observer, [predicate])


class TextLines:
    """Format events as ``2026-11-21 10:00:00.123 INFO rmq.store.flush message``, local time, one event a line."""

    def __init__(self) -> None:
        self._second = -1
        self._prefix = ""

    def format(self, event: Mapping[str, Any]) -> str | None:
        """Return the line of ``event``; None when there is nothing to say."""
        text = _event_text(event)
        if not text:
            return None
        when = event.get("log_time") or 0.0
        if int(when) != self._second:
            self._second = int(when)
            self._prefix = datetime.fromtimestamp(self._second).strftime("%Y-%m-%d %H:%M:%S")
        level = _level_name(event).upper()
        # Further lines are indented, so that no peer's text can pass for a line of the log.
        text = text.replace("\n", "\n\t")
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


def _open_log(path: str) -> TextIO:
    path = os.path.abspath(path)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file: Any = LogFile.fromFullPath(path, rotateLength=ROTATE_BYTES, maxRotatedFiles=ROTATED_FILES)
    except OSError as error:
        raise ConfigError(f"log file {path}: {error.strerror}") from error
    out: TextIO = file
    return out
