"""Progress on standard error, and the state that a run keeps and uses again."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TextIO

import attrs
import xxhash

from rmq_audit.driver.previous import Previous, read_previous
from rmq_audit.engine.engines import Engine
from rmq_audit.engine.state import REPORT_FILE, RememberingEngine, State
from rmq_audit.report.files import write
from rmq_audit.worker.location import InputError, located

#: seconds between two looks on a terminal, and between two lines of a log
TERMINAL_S, LOG_S = 0.2, 10.0

_WIDTH = 78


class Running:
    """
    An engine with progress and state, as a context: both end with it.

    ``inputs`` are the stores (or the configuration) as the operator named them; they choose the folder of ``--resume``.
    """

    def __init__(self, make: Callable[[], Engine], options: argparse.Namespace, *inputs: str) -> None:
        self._make = make
        self._printer = printer_of(options)
        self._state = _state(options, inputs)

    def __enter__(self) -> Running:
        if self._state is not None:
            self._state.open()
            for text in self._state.use.ignored:
                print(f"rmq-audit: state ignored: {text}", file=sys.stderr)
        try:
            self.engine = self._make()
        except BaseException:
            self._close_state(finished=False)
            raise
        if self._state is not None:
            self.engine = RememberingEngine(self.engine, self._state)
        self.engine.progress = self._printer
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._printer is not None:
            self._printer.close()
        self._close_state(finished=error is None)
        self.engine.close()

    def _close_state(self, *, finished: bool) -> None:
        if self._state is not None:
            self._state.close(finished=finished)

    def previous(self) -> Previous | None:
        """Return the last run with this state, if there was one."""
        path = self._report
        if path is None or not os.path.exists(path):
            return None
        try:
            return read_previous(path)
        except InputError:
            print(f"rmq-audit: state ignored: {path} is not a report", file=sys.stderr)
            return None

    def keep(self, answer: Mapping[str, Any]) -> None:
        """Leave the report for the next run with this state."""
        if self._report is None:
            return
        try:
            write(self._report, json.dumps(answer))
        except InputError as error:
            print(f"rmq-audit: state not saved: {error}", file=sys.stderr)

    def use(self) -> dict[str, Any] | None:
        """Return what the state was good for, for the report; None without one."""
        return None if self._state is None else attrs.asdict(self._state.use)

    @property
    def has_state(self) -> bool:
        """Whether answers are remembered for other runs."""
        return self._state is not None

    @property
    def _report(self) -> str | None:
        return None if self._state is None else os.path.join(self._state.folder, REPORT_FILE)


def of_same_stores(previous: Previous | None, subject: tuple[str, ...]) -> Previous | None:
    """Return the previous run if it looked at these stores: a folder may have been used for others in between."""
    if previous is None or previous.subject == subject:
        return previous
    print(f"rmq-audit: state ignored: {previous.path} is about {', '.join(previous.subject)}", file=sys.stderr)
    return None


def printer_of(options: argparse.Namespace) -> Printer | None:
    """Return what shows progress, None when it would not be seen."""
    terminal = sys.stderr.isatty()
    if options.progress is False or (options.progress is None and not terminal):
        return None
    return Printer(sys.stderr, time.monotonic, terminal=terminal)


def _state(options: argparse.Namespace, inputs: tuple[str, ...]) -> State | None:
    if options.no_state or (options.state is None and not options.resume):
        return None
    if options.state is not None:
        return State(os.path.abspath(options.state))
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    what = "\n".join([options.command, *map(located, inputs)])
    name = xxhash.xxh3_64_hexdigest(what.encode("utf-8", "surrogateescape"))
    return State(os.path.join(home, "rmq-audit", name))


@attrs.define(eq=False)
class Printer:
    """
    An engine's progress as text; call it like :data:`rmq_audit.engine.engines.Progress`.

    On a terminal one line is written over and over, and wiped by :meth:`close`; elsewhere (under spark-submit, say) a
    line follows the other. ``clock`` counts seconds.
    """

    _out: TextIO
    _clock: Callable[[], float]
    _terminal: bool = attrs.field(kw_only=True)
    _job: tuple[str, int] | None = attrs.field(init=False, default=None)
    _began: float = attrs.field(init=False, default=0.0)
    _shown_at: float | None = attrs.field(init=False, default=None)
    _last: int = attrs.field(init=False, default=0)
    _shown: bool = attrs.field(init=False, default=False)

    def __call__(self, name: str, done: int, total: int) -> None:
        now = self._clock()
        if self._job != (name, total) or done < self._last:
            self._job, self._began, self._shown_at = (name, total), now, None
        self._last = done
        pause = TERMINAL_S if self._terminal else LOG_S
        if self._shown_at is None:
            # a short job is over before anybody could read of it
            self._shown_at = now if self._terminal else now - pause / 2
        elif now - self._shown_at < pause:
            return
        if now > self._began and done:
            self._shown_at = now
            self._write(line(name, done, total, now - self._began))

    def close(self) -> None:
        """Wipe the line of a terminal."""
        if self._shown and self._terminal:
            self._out.write("\r" + " " * _WIDTH + "\r")
            self._out.flush()

    def _write(self, text: str) -> None:
        self._shown = True
        self._out.write("\r" + text[:_WIDTH].ljust(_WIDTH) if self._terminal else f"rmq-audit: {text}\n")
        self._out.flush()


def line(name: str, done: int, total: int, seconds: float) -> str:
    """Return what is said of a job: bytes done of all, rate, and how long the rest will take at that rate."""
    rate = done / max(seconds, 1e-9)
    share = 100 * done // total if total else 100
    left = (total - done) / rate if rate else 0.0
    return f"{name}: {_size(done)} of {_size(total)} ({share} %), {_size(rate)}/s, {_duration(left)} left"


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in ("B", "KB", "MB") else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
