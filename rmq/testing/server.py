"""
``python -m rmq.testing.server``: the servers of a test in one process.

When they are ready, standard output has one line of JSON: ``{"ready": true, "namesrv": "127.0.0.1:PORT", "brokers":
[{"node", "name", "id", "address"}], "dir": …, "log": …, "pid": …}``, or ``{"error": …}`` and exit status 1. The process
ends and removes its files when standard input closes. SIGTERM ends it, too; then a folder that ``--dir`` named stays.
Each line of standard input is a command,
``{"do": "refuse", "request": "SEND_MESSAGE", "times": 1}``, and has one line of answer, ``{"result": …}`` or
``{"error": …}``, with the ``id`` of the command if it has one; docs/testing-kit.md has the list.

With the command line of a program behind ``--`` it runs this program, with ``NAMESRV_ADDR`` in its environment, ends
with it and has its exit status; there are no lines then, but the one of an error. The program sends its commands by
HTTP to the URL in ``RMQ_CONTROL``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError, ReactorNotRunning
from twisted.logger import globalLogBeginner
from twisted.python.failure import Failure

from rmq.local import signal_when_parent_ends
from rmq.runtime.config import ConfigError
from rmq.runtime.logs import make_observer
from rmq.runtime.platform import keep_steady, the_reactor
from rmq.testing.servers import Layout, Servers, ServersError

LOG_NAME = "server.log"
#: of a topic, if the command line does not say how many
QUEUES = 4


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rmq.testing.server",
        description="A NameServer and brokers for tests, until standard input ends, or for the time of a program.",
    )
    parser.add_argument("--masters", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--slaves", type=int, default=0, help="of each master; default: %(default)s")
    parser.add_argument("--role", default="ASYNC_MASTER", help="of the masters: ASYNC_MASTER or SYNC_MASTER")
    parser.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="a key of the brokers")
    parser.add_argument("--dir", help="folder of the stores; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="do not remove the folder at the end")
    parser.add_argument("--log-level", default="info", help="default: %(default)s")
    parser.add_argument("--only", metavar="NODE", help="namesrv, broker-a, broker-a-1, …: run this one alone")
    parser.add_argument("--namesrv", metavar="HOST:PORT", help="with --only: the NameServer of a broker")
    parser.add_argument("--port", type=int, help="of the NameServer, or of --only; default: a free one")
    parser.add_argument(
        "--control-port", type=int, help="of commands by HTTP, 0: a free one; default: with a program 0, else none"
    )
    parser.add_argument("--topic", action="append", default=[], metavar="NAME[:QUEUES]", help="create it at the start")
    parser.add_argument(
        "program",
        nargs="*",
        metavar="-- PROGRAM",
        help="run it with NAMESRV_ADDR and RMQ_CONTROL, end with it and with its status",
    )
    return parser


def layout_of(options: argparse.Namespace) -> Layout:
    """Return the layout of the command line; ServersError for a --config without ``=``."""
    pairs = [item.partition("=") for item in options.config]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise ServersError(f"--config {wrong[0]}: KEY=VALUE is expected")
    return Layout(
        masters=options.masters,
        slaves=options.slaves,
        role=options.role,
        config={key: value for key, _, value in pairs},
        only=options.only,
        namesrv=options.namesrv,
        port=options.port,
    )


def topics_of(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return names and queues of the topics of the command line; ServersError for a number of queues that is none."""
    found = {item: re.fullmatch(r"([^:]+)(?::([1-9]\d*))?", item) for item in options.topic}
    if wrong := [item for item, match in found.items() if match is None]:
        raise ServersError(f"--topic {wrong[0]}: NAME or NAME:QUEUES is expected")
    return [(match[1], int(match[2] or QUEUES)) for match in found.values() if match is not None]


class Process:
    """The servers of this process, and the lines that it reads and writes."""

    def __init__(self, reactor: Any, options: argparse.Namespace, root: str) -> None:
        self._reactor = reactor
        self._keep = options.keep
        #: a folder that is not ours may have the stores of other servers, which run longer
        self._remove = options.dir is None
        self._root = root
        self._topics = topics_of(options)
        self._program: list[str] = options.program
        self._control_port: int | None = options.control_port
        if self._program and self._control_port is None:
            self._control_port = 0
        self._running: subprocess.Popen[bytes] | None = None
        os.makedirs(self._root, exist_ok=True)
        self._log_path = os.path.join(self._root, f"{options.only}.log" if options.only else LOG_NAME)
        self._servers = Servers(
            reactor, self._root, layout_of(options), rng=random.SystemRandom(), on_fatal=lambda text: reactor.stop()
        )
        self.status = 0
        globalLogBeginner.beginLoggingTo(
            [make_observer(path=self._log_path, json=False, level=options.log_level)], redirectStandardIO=False
        )

    def run(self) -> int:
        """Run until standard input ends; return the exit status."""
        self._reactor.addSystemEventTrigger("before", "shutdown", self._end_program)
        self._reactor.addSystemEventTrigger(
            "before", "shutdown", lambda: Deferred.fromCoroutine(self._servers.stop()).addErrback(self._failed)
        )
        self._reactor.callWhenRunning(self._start)
        self._reactor.run()
        if self._running is not None:
            status = self._running.wait()
            # as a shell has it
            self.status = status if status >= 0 else 128 - status
        if self._remove and not self._keep:
            shutil.rmtree(self._root, ignore_errors=True)
        return self.status

    def _start(self) -> None:
        Deferred.fromCoroutine(self._begin()).addErrback(self._failed)

    async def _begin(self) -> None:
        await self._servers.start()
        for name, queues in self._topics:
            await self._servers.topic(name, queues)
        control = None if self._control_port is None else self._listen(self._control_port)
        if self._program:
            self._run_program({"NAMESRV_ADDR": self._servers.namesrv_addr, "RMQ_CONTROL": str(control)})
        else:
            self._ready({} if control is None else {"control": control})

    def _listen(self, port: int) -> str:
        """Take commands by HTTP, and return the URL; the import takes as long as a tenth of the start."""
        from rmq.testing.control import HOST, make_control

        try:
            listening = self._reactor.listenTCP(port, make_control(self._reactor, self._answer), interface=HOST)
        except (CannotListenError, OverflowError) as error:
            raise ServersError(f"--control-port {port}: {error}") from None
        return f"http://{HOST}:{listening.getHost().port}"

    def _run_program(self, addresses: dict[str, str]) -> None:
        try:
            environment = {**os.environ, **addresses}
            self._running = subprocess.Popen(self._program, env=environment)
        except OSError as error:
            raise ServersError(f"{self._program[0]} cannot be run: {error.strerror}") from None
        threading.Thread(target=self._wait, args=(self._running,), name="program", daemon=True).start()

    def _wait(self, running: subprocess.Popen[bytes]) -> None:
        running.wait()
        self._reactor.callFromThread(self._stop)

    def _stop(self) -> None:
        with suppress(ReactorNotRunning):  # a signal has stopped it
            self._reactor.stop()

    def _end_program(self) -> None:
        """When a signal ends the servers, have the program end, too."""
        if self._running is not None:
            self._running.terminate()

    def _ready(self, control: dict[str, str]) -> None:
        self._write({"ready": True, **self._servers.describe(), **control, "log": self._log_path, "pid": os.getpid()})
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def _failed(self, failure: Failure) -> None:
        self.status = 1
        if not failure.check(ServersError, ConfigError):
            failure.printTraceback(sys.stderr)
        self._write({"error": _text(failure)})
        if self._reactor.running:
            self._reactor.callLater(0, self._reactor.stop)

    def _read(self) -> None:
        for line in sys.stdin:
            if line.strip():
                self._reactor.callFromThread(self._command, line)
        self._reactor.callFromThread(self._input_ended)

    def _input_ended(self) -> None:
        self._remove = True
        self._reactor.stop()

    def _command(self, line: str) -> None:
        self._answer(line).addCallback(self._write)

    def _answer(self, line: str) -> Deferred[dict[str, Any]]:
        """Do the command of a line; fires with its answer."""
        same: dict[str, Any] = {}

        def do() -> Any:
            arguments = json.loads(line)
            if "id" in arguments:
                same["id"] = arguments.pop("id")
            return self._servers.do(arguments.pop("do", None), arguments)

        def failed(failure: Failure) -> dict[str, Any]:
            return same | {"error": _text(failure)}

        return maybeDeferred(do).addCallbacks(lambda result: same | {"result": result}, failed)

    def _write(self, answer: dict[str, Any]) -> None:
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:  # nobody reads: standard input ends too
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends


def _text(failure: Failure) -> str:
    return f"{failure.type.__name__ if failure.type else ''}: {failure.getErrorMessage()}"


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    # Paused when the test is killed, it goes on and finds that its standard input has ended.
    signal_when_parent_ends(signal.SIGCONT)
    reactor = the_reactor()
    keep_steady(reactor)
    root = options.dir or tempfile.mkdtemp(prefix="rmq-testing-")
    try:
        process = Process(reactor, options, root)
    except (ServersError, ConfigError) as error:
        if options.dir is None:
            shutil.rmtree(root)
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    return process.run()


if __name__ == "__main__":
    raise SystemExit(main())
