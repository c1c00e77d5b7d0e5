"""What a run has around its engine: progress on standard error, and the state that it remembers and reuses."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import xxhash

from rmq_audit.engines import Engine
from rmq_audit.inventory import InputError, place_of
from rmq_audit.outfiles import write
from rmq_audit.previous import Previous, read_previous
from rmq_audit.progress import Printer
from rmq_audit.state import REPORT_FILE, RememberingEngine, State


def add_progress(one: argparse.ArgumentParser) -> None:
    """Add what every command has."""
    one.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="tell on standard error how far the run is (default: on a terminal)",
    )


def add_state(one: argparse.ArgumentParser) -> None:
    """Add what a command has that is run now and then."""
    one.add_argument("--state", metavar="DIR", help="remember answers there; read again only what has changed since")
    one.add_argument(
        "--resume", action="store_true", help="as --state, in a folder of the audit's own for these very stores"
    )
    one.add_argument("--no-state", action="store_true", help="read everything, whatever --state and --resume say")


def add_findings_table(one: argparse.ArgumentParser) -> None:
    """Add what every command has: its findings as a table."""
    one.add_argument("--parquet", metavar="DIR", help="add the findings to a table of Parquet files, a folder a run")


def add_tables(one: argparse.ArgumentParser) -> None:
    """Add the outputs of a single run that are tables."""
    add_findings_table(one)
    one.add_argument(
        "--record-index", metavar="DIR", help="write a row for each record as Parquet to an empty or new folder"
    )


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
            print(f"rmq-audit: state ignored: {path} is no report", file=sys.stderr)
            return None

    def keep(self, answer: Mapping[str, Any]) -> None:
        """Leave the report for the next run with this state."""
        if self._report is None:
            return
        try:
            write(self._report, json.dumps(answer))
        except InputError as error:
            print(f"rmq-audit: state not kept: {error}", file=sys.stderr)

    def use(self) -> dict[str, Any] | None:
        """Return what the state was good for, for the report; None without one."""
        if self._state is None:
            return None
        use = self._state.use
        return {
            "path": use.path,
            "tasks_reused": use.tasks_reused,
            "tasks_done": use.tasks_done,
            "bytes_reused": use.bytes_reused,
            "ignored": list(use.ignored),
        }

    @property
    def has_state(self) -> bool:
        """Whether answers are remembered for other runs."""
        return self._state is not None

    @property
    def _report(self) -> str | None:
        return None if self._state is None else os.path.join(self._state.folder, REPORT_FILE)


def of_same_stores(previous: Previous | None, subject: tuple[str, ...]) -> Previous | None:
    """Return the run before if it looked at these stores: a folder may have been used for others in between."""
    if previous is None or previous.subject == subject:
        return previous
    print(f"rmq-audit: state ignored: {previous.path} is about {', '.join(previous.subject)}", file=sys.stderr)
    return None


def printer_of(options: argparse.Namespace) -> Printer | None:
    """Return what shows progress, if somebody would see it."""
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
    what = "\n".join([options.command, *map(place_of, inputs)])
    name = xxhash.xxh3_64_hexdigest(what.encode("utf-8", "surrogateescape"))
    return State(os.path.join(home, "rmq-audit", name))
