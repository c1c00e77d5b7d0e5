"""The frame of a sub-command: a coroutine with a name, arguments and a result."""

from __future__ import annotations

import argparse
import csv
import io
import unicodedata
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import attrs
import msgspec
from twisted.internet.defer import Deferred, succeed

from rmq.errors import NotFound as NotFound
from rmq.errors import RequestFailed, RequestTimeout
from rmq.runtime.clock import now_ms
from rmq.runtime.platform import Platform, split_addr
from rmq.runtime.tls.context import ClientTls
from rmq.wire.codes import RequestCode
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response
from rmq.wire.signing import Credentials

OK, REFUSED, DIFFERENT, UNASKED, UNCONFIRMED = 0, 1, 2, 3, 4

#: printed in place of a secret
HIDDEN = "***"

DEFAULT_NAMESRV = "127.0.0.1:9876"


class WrongUse(Exception):
    """The options of a command contradict each other; the text has the details."""


class ReadOnly(Exception):
    """The context in use refuses changes; the text names it."""


class NotConfirmed(Exception):
    """A change was not confirmed, so nothing was sent; the text says what it would have been."""


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


@attrs.frozen
class Table:
    """Rows below names of columns; the names are the keys of ``-o json`` too."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]

    def text(self) -> str:
        """Return aligned columns, numbers to the right."""
        cells = [[column.upper().replace("_", " ") for column in self.columns]]
        cells += [[_cell(value) for value in row] for row in self.rows]
        widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
        right = [all(isinstance(value, int | float) for value in column) for column in zip(*self.rows, strict=True)]
        return "\n".join(
            "  ".join(
                " " * (width - _width(cell)) + cell if to_right else cell + " " * (width - _width(cell))
                for cell, width, to_right in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in cells
        )

    def csv(self) -> str:
        """Return lines of comma-separated values, the names first; what is missing is an empty one."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(["" if value is None else _cell(value) for value in row] for row in self.rows)
        return out.getvalue().rstrip("\n")

    def data(self) -> list[dict[str, object]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a command: exit status, text for people, and the same data for programs."""

    status: int = OK
    text: str
    data: Any
    #: what ``-o csv`` prints
    table: Table | None = None
    #: what the command prints under its name in mqadmin, when scripts cut its columns
    mqadmin_text: str | None = None
    #: why servers have no part in the result: printed on standard error, and they decide the exit status
    failures: Sequence[RequestFailed] = ()


def tabular(
    columns: tuple[str, ...],
    rows: Iterable[Sequence[object]],
    *,
    nothing: str,
    status: int = OK,
    mqadmin_text: str | None = None,
    failures: Sequence[RequestFailed] = (),
) -> Outcome:
    """Return a table as the result of a command; ``nothing`` is the text of an empty one when no server failed."""
    table = Table(columns, list(rows))
    text = table.text() if table.rows else "" if failures else nothing
    return Outcome(
        status=status, text=text, data=table.data(), table=table, mqadmin_text=mqadmin_text, failures=failures
    )


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the results of several changes as one: all rows, the worst status."""
    tables = [one.table for one in outcomes if one.table is not None]
    rows = [row for table in tables for row in table.rows]
    status = max((one.status for one in outcomes), default=OK)
    texts = [one.mqadmin_text for one in outcomes if one.mqadmin_text is not None]
    mqadmin_text = "\n".join(texts) if len(texts) == len(outcomes) > 0 else None
    columns = tables[0].columns if tables else ()
    return tabular(columns, rows, nothing="nothing to change", status=status, mqadmin_text=mqadmin_text)


@attrs.frozen(kw_only=True)
class Terminal:
    """The person or program in front of a command."""

    #: prints a line at once
    emit: Callable[[str], object] = print
    #: prints a line on standard error at once
    warn: Callable[[str], object] = lambda text: None
    #: has a person type a name to confirm what a text says; False without a person
    ask: Callable[[str, str], bool] = lambda text, name: False
    #: fires with the next line of standard input, empty at its end
    read_line: Callable[[], Deferred[bytes]] = lambda: succeed(b"")
    #: runs a command of the shell with this input and these variables; fires with its exit status
    execute: Callable[[str, bytes, Mapping[str, str]], Deferred[int]] = lambda line, data, variables: succeed(0)


@attrs.frozen(kw_only=True)
class Call:
    """One run of a command: servers, client and timeout."""

    asker: Asker
    options: argparse.Namespace
    timeout_ms: float
    platform: Platform
    terminal: Terminal
    tls: ClientTls | None = None
    credentials: Credentials | None = None
    #: the NameServers in the order in which questions go to them; one that did not answer is moved to the end
    namesrvs: list[str] = attrs.field(
        init=False, default=attrs.Factory(lambda self: [*getattr(self.options, "namesrvAddr", ())], takes_self=True)
    )

    @property
    def is_dry(self) -> bool:
        """Are changes listed in place of being sent?"""
        return bool(getattr(self.options, "dry_run", False))

    @property
    def now_ms(self) -> int:
        """The time in epoch milliseconds."""
        return now_ms(self.platform.reactor)

    def invoke(self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B) -> Deferred[Response[RH, RB]]:
        """Ask one server; fails with RequestFailed."""
        return self.asker.invoke(addr, contract, header, body, timeout_ms=self.timeout_ms)

    async def change(self, addr: str, contract: Contract[H, B, RH, RB], header: H, body: B) -> Response[RH, RB] | None:
        """Send a request that changes something; with ``--dry-run`` list it and return None. Raises RequestFailed."""
        declared = COMMANDS[self.options.command].is_change(self.options)
        assert declared, f"{self.options.command} is not declared as one that changes"
        if not self.is_dry:
            try:
                return await self.invoke(addr, contract, header, body)
            except RequestTimeout as error:
                error.args = (f"{error}; the change may have been made",)
                raise
        values = _values(header)
        if "secretKey" in values:
            values["secretKey"] = HIDDEN
        carried = body.decode(errors="replace").strip() if isinstance(body, bytes) else body
        values |= {"body": carried} if isinstance(carried, str) else _values(carried)
        self.plan(addr, RequestCode(contract.code).name, values)
        return None

    def plan(self, addr: str, request: str, values: Mapping[str, object]) -> None:
        """Print a request that ``--dry-run`` leaves out: one line, with ``-o json`` one object."""
        if self.options.output == "json":
            planned = {"server": addr, "request": request, "content": values}
            self.terminal.emit(msgspec.json.encode(planned).decode())
        else:
            content = " ".join(f"{key}={value}" for key, value in values.items())
            self.terminal.emit(f"would send {request} to {addr}: {content}")

    def confirm(self, text: str, name: str) -> None:
        """
        Return once a person, ``--yes`` or the mqadmin spelling has confirmed a change; raises NotConfirmed.

        With ``--dry-run`` there is nothing to confirm.
        """
        if self.is_dry:
            return
        if not self.options.yes and not self.terminal.ask(text, name):
            raise NotConfirmed(text)


def _values(struct: object) -> dict[str, object]:
    if struct is None:
        return {}
    return {key: value for key, value in msgspec.to_builtins(struct).items() if value is not None}


#: None: the command has printed everything itself
Run = Callable[[Call], Coroutine[Any, Any, Outcome | None]]

R = TypeVar("R", bound=Run)


@attrs.frozen
class Argument:
    """
    An argument of a command, in the terms of ``argparse``.

    ``flags``: how mqadmin spells it, where that is not ``names``; an option keeps its long names beside them. Without
    ``names`` it is there under the command's name in mqadmin only. ``takes_true``: a flag that has a value there.
    """

    names: tuple[str, ...]
    settings: dict[str, Any]
    flags: tuple[str, ...] = ()
    takes_true: bool = False

    def add(self, parser: argparse.ArgumentParser) -> None:
        if self.names:
            parser.add_argument(*self.names, **self.settings)

    def add_as_mqadmin(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument as mqadmin spells it."""
        if not self.flags:
            self.add(parser)
            return
        if not self.names or self.names[0].startswith("-"):
            names = dict.fromkeys((*(name for name in self.names if name.startswith("--")), *self.flags))
            settings = self.settings
            if self.takes_true:
                settings = {"type": is_true, "default": False, "metavar": "true|false", "help": settings["help"]}
            parser.add_argument(*names, **settings)
            return
        settings = {key: value for key, value in self.settings.items() if key != "nargs"}
        required = self.settings.get("nargs") != "?"
        parser.add_argument(*self.flags, dest=self.names[0], required=required, **settings)


@attrs.frozen
class Command:
    """A sub-command as the command line sees it; ``name`` is noun and verb."""

    name: str
    help: str
    run: Run
    arguments: tuple[Argument, ...]
    #: does it change something, or with which options: has ``--yes`` and ``--dry-run``, a read-only context refuses it
    changes: bool | Callable[[argparse.Namespace], bool] = False

    def is_change(self, options: argparse.Namespace) -> bool:
        """Would it change something with these options?"""
        return self.changes if isinstance(self.changes, bool) else self.changes(options)


#: by name; filled when the modules of ``rmq.admin.commands`` are imported
COMMANDS: dict[str, Command] = {}


def argument(*names: str, mqadmin: tuple[str, ...] = (), **settings: Any) -> Argument:
    """Return an argument of a command, in the terms of ``argparse``; ``mqadmin``: its letters there."""
    return Argument(names, settings, mqadmin)


def flag(name: str, *flags: str, help: str) -> Argument:
    """Return a flag whose spelling in mqadmin, ``flags``, is followed by true or false."""
    return Argument((name,), {"action": "store_true", "help": help}, flags, takes_true=True)


def subject(name: str, *flags: str, **settings: Any) -> Argument:
    """Return an argument that is positional, and one of ``flags`` under the command's name in mqadmin."""
    return Argument((name,), settings, flags)


def only_mqadmin(*flags: str, **settings: Any) -> Argument:
    """Return an option that a command has under its name in mqadmin only."""
    return Argument((), settings, flags)


def ignored(*flags: str, takes_value: bool = True) -> Argument:
    """Return an option of mqadmin that changes nothing here; scripts may go on giving it."""
    more: dict[str, Any] = {} if takes_value else {"action": "store_true", "default": False}
    return only_mqadmin(*flags, dest="_ignored", help="accepted; it changes nothing here", **more)


def command(
    name: str, help: str, *arguments: Argument, changes: bool | Callable[[argparse.Namespace], bool] = False
) -> Callable[[R], R]:
    """Make a coroutine the sub-command ``name``; ``changes``: it may change something on a server, or when it does."""

    def declare(run: R) -> R:
        assert name not in COMMANDS, f"command {name} is declared twice"
        COMMANDS[name] = Command(name, help, run, arguments, changes)
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


def positive(text: str) -> int:
    """Return a number above 0; for ``argparse``."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def seconds(text: str) -> float:
    """Return a number of seconds above 0 and below a day; for ``argparse``."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return found


def is_true(text: str) -> bool:
    """Return what Java makes of true or false; for ``argparse``."""
    return text.strip().lower() == "true"


NAMESRV = argument(
    "-n",
    "--namesrvAddr",
    type=addresses,
    metavar="HOST:PORT[;...]",
    help=f"NameServers to ask, ours or Apache's (default: NAMESRV_ADDR, the context, or {DEFAULT_NAMESRV})",
)
#: where a change is made
CLUSTER = argument(
    "-c",
    "--clusterName",
    metavar="CLUSTER",
    help="all masters of this cluster (default: the context's, or the only one)",
)
ONE_BROKER = argument(
    "-b", "--brokerAddr", type=addresses, metavar="HOST:PORT[;...]", help="these brokers instead of a cluster"
)
