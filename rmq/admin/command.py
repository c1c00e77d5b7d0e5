"""The frame of a sub-command: a coroutine with a name, arguments and a result."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred

from rmq.runtime.platform import split_addr
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

OK, DIFFERENT, UNASKED = 0, 2, 3


class WrongUse(Exception):
    """The options of a command contradict each other; the text has the details."""


H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


class Asker(Protocol):
    """Sends requests to servers; RemotingClient does."""

    def invoke(
        self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B, *, timeout_ms: float
    ) -> Deferred[Response[RH, RB]]:
        """Ask one server; fails with RequestFailed."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a command: exit status, text for people, and the same data for programs."""

    status: int = OK
    text: str
    data: Any


@attrs.frozen(kw_only=True)
class Call:
    """One run of a command: servers, client and timeout."""

    asker: Asker
    options: argparse.Namespace
    timeout_ms: float

    def invoke(self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B) -> Deferred[Response[RH, RB]]:
        """Ask one server; fails with RequestFailed."""
        return self.asker.invoke(addr, contract, header, body, timeout_ms=self.timeout_ms)


Run = Callable[[Call], Coroutine[Any, Any, Outcome]]
Argument = Callable[[argparse.ArgumentParser], object]


@attrs.frozen
class Command:
    """A sub-command as the command line sees it."""

    name: str
    help: str
    run: Run
    arguments: tuple[Argument, ...]


#: by name; filled when the modules of ``rmq.admin.commands`` are imported
COMMANDS: dict[str, Command] = {}


def argument(*names: str, **settings: Any) -> Argument:
    """Return an argument of a command, in the terms of ``argparse``."""
    return lambda parser: parser.add_argument(*names, **settings)


def command(name: str, help: str, *arguments: Argument) -> Callable[[Run], Run]:
    """Make a coroutine the sub-command ``name``."""

    def declare(run: Run) -> Run:
        assert name not in COMMANDS, f"command {name} is declared twice"
        COMMANDS[name] = Command(name, help, run, arguments)
        return run

    return declare


def addresses(text: str) -> list[str]:
    """Return the addresses of ``host:port;host:port``; for ``argparse``."""
    found = [part.strip() for part in text.split(";") if part.strip()]
    try:
        for addr in found:
            split_addr(addr)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found:
        raise argparse.ArgumentTypeError("no address; host:port is expected, several joined by ;")
    return found


NAMESRV = argument(
    "-n",
    "--namesrvAddr",
    required=True,
    type=addresses,
    metavar="HOST:PORT[;...]",
    help="NameServers to ask, ours or Apache's",
)
BROKER = argument(
    "-b",
    "--brokerAddr",
    required=True,
    type=addresses,
    metavar="HOST:PORT[;...]",
    help="brokers to ask, ours or Apache's",
)
