"""``rmq-admin`` as a process: its terminal, its reactor, its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.internet.threads import deferToThread

from rmq.admin.command import Terminal
from rmq.admin.main import Result, parse, run
from rmq.runtime.platform import real_platform

#: as shells have it for a command that Ctrl-C ended
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its exit status."""
    options = parse(sys.argv[1:])
    results: list[Result] = []

    def ask(reactor: Any) -> Deferred[None]:
        asked = run(real_platform(reactor), options, TERMINAL)
        return Deferred.fromCoroutine(asked).addCallback(results.append)

    try:
        react(ask)
    except SystemExit as ended:
        if ended.code:
            raise
    if not results:
        sys.exit(EXIT_INTERRUPTED)
    result = results[0]
    if result.err:
        print(result.err, file=sys.stderr)
    try:
        if result.out:
            print(result.out, flush=True)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stderr.close()
    sys.exit(result.status)


def emit(text: str) -> None:
    """Print a line at once; ends the process when nobody reads any more."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os._exit(EXIT_INTERRUPTED)


def confirmed(text: str, name: str) -> bool:
    """Show what is about to happen and have the name typed; False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print(text, file=sys.stderr)
    print(f"Type {name} to do it: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == name


def execute(line: str, data: bytes, variables: Mapping[str, str]) -> Deferred[int]:
    """Run a command of the shell; what it prints goes where our output goes."""

    def run_it() -> int:
        environ = {**os.environ, **variables}
        return subprocess.run(["/bin/sh", "-c", line], input=data, env=environ, check=False).returncode

    return deferToThread(run_it)


TERMINAL = Terminal(
    emit=emit, ask=confirmed, read_line=lambda: deferToThread(sys.stdin.buffer.readline), execute=execute
)
