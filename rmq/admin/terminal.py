"""``rmq-admin`` as a process: its terminal, its reactor, its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn, TextIO

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from rmq.admin.command import Terminal
from rmq.admin.main import EXIT_CANNOT_WRITE, Result, parse, run
from rmq.runtime.logs import visible
from rmq.runtime.platform import import_reactor, real_platform

#: what ends a command: Ctrl-C and what service managers send; the exit status is 128 and the number
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Run the command line and end the process with its exit status."""
    options = parse(sys.argv[1:])
    results: list[Result] = []

    def ask(reactor: Any) -> Deferred[None]:
        asked = Deferred.fromCoroutine(run(real_platform(reactor), options, TERMINAL))
        received: list[int] = []

        def interrupt(number: int, frame: object) -> None:
            """Cancel the command, so that a consumer leaves its group; at the second signal leave at once."""
            if received:
                _leave(number)
            received.append(number)
            reactor.callFromThread(asked.cancel)

        def ended(result: Result | Failure) -> Failure | None:
            if received:
                _leave(received[0])
            if isinstance(result, Failure):
                return result
            results.append(result)
            return None

        for number in SIGNALS:
            reactor.callWhenRunning(signal.signal, number, interrupt)
        return asked.addBoth(ended)

    import_reactor()  # before `react` does it
    try:
        react(ask)
    except SystemExit as ended:
        if ended.code:
            raise
    (result,) = results
    if result.err:
        show(result.err, sys.stderr)
    try:
        if result.out:
            show(result.out, sys.stdout)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stderr.close()
    except OSError as error:
        _cannot_write(error)
    sys.exit(result.status)


def _leave(number: int) -> NoReturn:
    """End the process at once: a thread that waits for a line of standard input would keep it."""
    os._exit(128 + number)


def _cannot_write(error: OSError) -> NoReturn:
    """End the process at once: what is left in the buffer of standard output would fail again."""
    print(f"rmq-admin: standard output: {error.strerror or error}", file=sys.stderr, flush=True)
    os._exit(EXIT_CANNOT_WRITE)


def show(text: str, stream: TextIO) -> None:
    """
    Print ``text`` at once.

    A terminal gets control characters as escapes: messages and names are of clients, which could move its cursor or
    change its title. Files and pipes get what was sent.
    """
    text = visible(text) if stream.isatty() else text
    try:
        print(text, file=stream, flush=True)
    except UnicodeEncodeError:  # of a locale other than UTF-8; nothing is written yet
        print(_escaped(text, stream.encoding), file=stream, flush=True)


def _escaped(text: str, encoding: str) -> str:
    r"""Return ``text`` with \uXXXX, as JSON has it, for each letter that the encoding does not have."""
    return "".join(letter if _has(encoding, letter) else json.dumps(letter)[1:-1] for letter in text)


def _has(encoding: str, letter: str) -> bool:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def emit(text: str) -> None:
    """Print a line at once; ends the process when nobody reads any more, or when the line cannot be written."""
    try:
        show(text, sys.stdout)
    except BrokenPipeError:
        _leave(signal.SIGINT)
    except OSError as error:
        _cannot_write(error)


def warn(text: str) -> None:
    """Print a line on standard error."""
    show(text, sys.stderr)


def confirmed(text: str, name: str) -> bool:
    """Show what is about to happen and have the name typed; False without a terminal. Ctrl-C ends the process."""
    if not sys.stdin.isatty():
        return False
    # Python's own handler would wait for the end of the line where the signal comes just before the read begins
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        show(text, sys.stderr)
        print(f"Type {name} to do it: ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip() == name
    finally:
        signal.signal(signal.SIGINT, before)


def execute(line: str, data: bytes, variables: Mapping[str, str]) -> Deferred[int]:
    """Run a command of the shell; what it prints goes where our output goes."""

    def run_it() -> int:
        environ = {**os.environ, **variables}
        return subprocess.run(["/bin/sh", "-c", line], input=data, env=environ, check=False).returncode

    return deferToThread(run_it)


TERMINAL = Terminal(
    emit=emit,
    warn=warn,
    ask=confirmed,
    read_line=lambda: deferToThread(sys.stdin.buffer.readline),
    execute=execute,
)
