"""
The command line of ``rmq-admin``: arguments in, text or JSON and an exit status out.

A wrong argument or a server without an answer gives one line, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import attrs
import msgspec
from twisted.internet.task import deferLater

from rmq.admin.command import (
    COMMANDS,
    DEFAULT_NAMESRV,
    DIFFERENT,
    NAMESRV,
    OK,
    REFUSED,
    UNASKED,
    UNCONFIRMED,
    Call,
    Command,
    NotConfirmed,
    NotFound,
    Outcome,
    ReadOnly,
    Terminal,
    WrongUse,
    addresses,
    seconds,
)
from rmq.admin.contexts import BrokenContext, ContextError, Contexts
from rmq.admin.names import ALIASES, INSTEAD, NOT_HERE, NOUNS
from rmq.admin.overview import DESCRIPTION, EXIT_USAGE, UsageParser, overview
from rmq.errors import ConfigurationError, NoRoute, NotDelivered, Refused, RequestFailed
from rmq.remoting.acl import parse_credentials
from rmq.remoting.client import RemotingClient
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.platform import Platform
from rmq.runtime.tls.config import parse_tls, terms_of
from rmq.runtime.tls.context import ClientTls
from rmq.wire.signing import Credentials

DEFAULT_TIMEOUT_S = 5.0

#: EX_IOERR of sysexits.h
EXIT_CANNOT_WRITE = 74
#: as shells have it for a command that a signal ended: 128 and its number
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM

#: options of all commands, of one value each
BEFORE_COMMANDS = ("-n", "--namesrvAddr", "--context", "--tlsConfig", "--aclTools", "--timeout", "-o", "--output")

_EXITS = f"""\
exit status:
  {OK}   done: all servers answered, nothing is missing
  {REFUSED}   a server refused
  {DIFFERENT}   the answer is no: something is missing or differs; the text says what
  {UNASKED}   a server did not answer
  {UNCONFIRMED}   a change was not confirmed, nothing was sent
  {EXIT_USAGE}  wrong arguments
  {EXIT_CANNOT_WRITE}  standard output cannot be written
  {EXIT_INTERRUPTED} ended by Ctrl-C
  {EXIT_TERMINATED} ended by SIGTERM
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """
    Return the options of a command line; ends the process with a message when they are wrong.

    ``command`` is the name in COMMANDS, ``as_mqadmin`` says that the command was called by its name in mqadmin.
    """
    arguments = _options_last(arguments)
    if not arguments:
        overview().print_help(sys.stderr)
        sys.exit(EXIT_USAGE)
    word, *rest = arguments
    word = _IN_ANY_CASE.get(word.lower(), word)
    if word == "help":
        _help(*rest)
    if word in INSTEAD or word in NOT_HERE:
        _refer(word)
    parser = _parser_of(word, as_noun=rest[:1] in ([], ["-h"], ["--help"]) or not rest[0].startswith("-"))
    options = parser.parse_args(rest if word in ALIASES or word in NOUNS else arguments)
    if getattr(options, "typed", None) is not None and options.kind != "contexts":
        _take(options, options.typed)
    try:
        _complete(options, os.environ)
    except ContextError as error:
        print(f"rmq-admin: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    return options


#: mqadmin takes its names in any case
_IN_ANY_CASE = {name.lower(): name for name in (*ALIASES, *INSTEAD, *NOT_HERE)}


def _options_last(arguments: Sequence[str]) -> list[str]:
    """Return the command first; options that all commands have may stand before it as well."""
    words, moved = list(arguments), []
    while words and words[0].partition("=")[0] in BEFORE_COMMANDS:
        count = 1 if "=" in words[0] else 2
        moved += words[:count]
        del words[:count]
    return words + moved if words else []


def _take(options: argparse.Namespace, line: str) -> None:
    """Take from a command line that is being typed which servers it is for."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation that is still open
        words = line.split()
    parser = UsageParser(add_help=False, allow_abbrev=False)
    NAMESRV.add(parser)
    _add_access(parser)
    found, _ = parser.parse_known_args(words)
    for name, value in vars(found).items():
        if value is not None:
            setattr(options, name, value)


def _complete(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """
    Fill what the command line left open: from the environment, then from the context, then with the defaults.

    A context that the command line names is an option, and comes before the environment. Raises ContextError.
    """
    options.given = {name: getattr(options, name) for name in ("tlsConfig", "aclTools", "timeout")}
    named = options.context
    refusal: str | None = None
    if options.command.startswith("context "):
        name = context = None
    else:
        contexts = Contexts.of(environ)
        name = named or environ.get("RMQ_CONTEXT") or contexts.in_use()
        try:
            context = contexts.load(name) if name is not None else None
        except BrokenContext as error:
            has_addresses = getattr(options, "namesrvAddr", None) is not None or environ.get("NAMESRV_ADDR")
            if named is not None or not has_addresses:
                raise
            print(f"rmq-admin: warning: going on without the context in use: {error}", file=sys.stderr)
            context, refusal = None, f"context {name} cannot be read, so it may be read-only"
    if context is not None and context.read_only:
        refusal = f"context {name} is read-only"
    options.context = name
    #: why changes are refused; None: they are not
    options.read_only_context = refusal
    from_environ = None if named is not None else environ.get("NAMESRV_ADDR")
    if getattr(options, "namesrvAddr", ()) is None:
        options.namesrvAddr = addresses(from_environ or (context.namesrv if context else DEFAULT_NAMESRV))
    if context is not None and getattr(options, "clusterName", ()) is None:
        options.clusterName = context.cluster
    home = environ.get("ROCKETMQ_HOME")
    if home and named is None and options.aclTools is None:
        # mqadmin signs with this file if it is there.
        path = os.path.join(home, "conf", "tools.yml")
        options.aclTools = path if os.path.isfile(path) else None
    if context is not None:
        options.aclTools = options.aclTools or context.acl_tools
        options.tlsConfig = options.tlsConfig or context.tls_config
        options.timeout = options.timeout or context.timeout
    options.timeout = options.timeout or DEFAULT_TIMEOUT_S


def _parser_of(word: str, *, as_noun: bool) -> argparse.ArgumentParser:
    """Return the parser of what comes after ``word``; mqadmin's `producer` is also a noun, that of verbs and help."""
    if word in ALIASES and not (word in NOUNS and as_noun):
        name = ALIASES[word]
        return _parser(f"rmq-admin {word}", _commands_of(name.partition(" ")[0])[name], mqadmin=True)
    if word not in NOUNS:
        return overview()
    found = _commands_of(word)
    if word in found:
        return _parser(f"rmq-admin {word}", found[word])
    parser = UsageParser(prog=f"rmq-admin {word}", description=NOUNS[word][1])
    _add_verbs(parser, found)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser with all commands, for completion and manual pages; a command line needs one noun only."""
    parser = UsageParser(prog="rmq-admin", description=DESCRIPTION)
    nouns = parser.add_subparsers(metavar="COMMAND", parser_class=UsageParser)
    for noun, (_, text) in NOUNS.items():
        found = _commands_of(noun)
        if noun in found:
            _fill(nouns.add_parser(noun, help=text, **_described(found[noun])), found[noun])
        else:
            _add_verbs(nouns.add_parser(noun, help=text, description=text), found)
    return parser


def _add_verbs(parser: argparse.ArgumentParser, found: dict[str, Command]) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=UsageParser)
    for name, one in found.items():
        _fill(verbs.add_parser(name.partition(" ")[2], help=one.help, **_described(one)), one)


def _commands_of(noun: str) -> dict[str, Command]:
    for module in NOUNS[noun][0]:
        importlib.import_module(f"rmq.admin.commands.{module}")
    return {name: one for name, one in COMMANDS.items() if name.partition(" ")[0] == noun}


def _help(*words: str) -> NoReturn:
    """Print the help of a command by any of its names, without one the first page; end the process."""
    if not words:
        overview().print_help()
        sys.exit(OK)
    words = (_IN_ANY_CASE.get(words[0].lower(), words[0]), *words[1:])
    if words[0] in INSTEAD or words[0] in NOT_HERE:
        _refer(words[0])
    name = ALIASES.get(words[0], " ".join(words))
    one = _commands_of(name.partition(" ")[0]).get(name) if name.partition(" ")[0] in NOUNS else None
    if one is None:
        print(f"rmq-admin: no command {name!r}; mqadmin has it perhaps, rmq-admin has not", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    if words[0] in ALIASES:
        print(f"{words[0]} is rmq-admin {name}\n")
    _parser(f"rmq-admin {name}", one).print_help()
    sys.exit(OK)


def _refer(word: str) -> NoReturn:
    """Say what does the work of a name of mqadmin that is no alias, or why nothing does; end the process."""
    here = f"is here: rmq-admin {INSTEAD[word]}" if word in INSTEAD else f"is not here: {NOT_HERE[word]}"
    print(f"rmq-admin: {word} of mqadmin {here}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _described(one: Command) -> dict[str, Any]:
    text = f"{one.help[0].upper()}{one.help[1:]}."
    return {"description": text, "epilog": _EXITS, "formatter_class": argparse.RawDescriptionHelpFormatter}


def _parser(prog: str, one: Command, *, mqadmin: bool = False) -> argparse.ArgumentParser:
    parser = UsageParser(prog=prog, **_described(one))
    _fill(parser, one, mqadmin=mqadmin)
    return parser


def _fill(parser: argparse.ArgumentParser, one: Command, *, mqadmin: bool = False) -> None:
    for each in one.arguments:
        (each.add_as_mqadmin if mqadmin else each.add)(parser)
    short = () if mqadmin else ("-o",)  # mqadmin has other meanings for short options
    parser.add_argument(
        *short,
        "--output",
        choices=("table", "json", "csv"),
        default="table",
        help="form of the output (default: table)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="the same as --output json")
    parser.add_argument("--watch", type=seconds, metavar="SECONDS", help="run again and again, until Ctrl-C")
    if one.changes:
        parser.add_argument("--yes", action="store_true", help="change without asking")
        parser.add_argument("--dry-run", action="store_true", help="print the requests that would change something")
    _add_access(parser)
    parser.set_defaults(command=one.name, as_mqadmin=mqadmin)
    if mqadmin and one.changes:
        parser.set_defaults(yes=True)  # mqadmin never asks


def _add_access(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how servers are reached, besides their addresses."""
    parser.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", help=f"for each answer (default: {DEFAULT_TIMEOUT_S:g})"
    )
    parser.add_argument("--context", metavar="CONTEXT", help="take addresses and accounts from this context")
    parser.add_argument("--tlsConfig", metavar="FILE", help="dial with TLS, by the tls.client.* keys of this file")
    parser.add_argument(
        "--aclTools",
        metavar="FILE",
        help="sign requests with the account of this tools.yml (default: $ROCKETMQ_HOME/conf/tools.yml, if there)",
    )


@attrs.frozen
class Result:
    """The exit status of a run, its output, and what failed; with ``err`` and no ``out`` nothing could be done."""

    status: int
    out: str = ""
    err: str = ""


async def run(platform: Platform, options: argparse.Namespace, terminal: Terminal) -> Result:
    """Run the parsed ``options``; ends once all connections are closed."""
    try:
        tls, credentials = _access(platform, options)
    except ConfigError as error:
        return Result(EXIT_USAGE, err=f"rmq-admin: {error}")
    sign = None if credentials is None else credentials.sign
    client = RemotingClient(platform, name="rmq-admin", tls=tls, sign=sign)
    call = Call(
        asker=client,
        options=options,
        timeout_ms=options.timeout * 1000,
        platform=platform,
        terminal=terminal,
        tls=tls,
        credentials=credentials,
    )
    client.startService()
    try:
        has_shown = False
        while True:
            result = await _once(call)
            is_passing = has_shown and result.status in (REFUSED, DIFFERENT, UNASKED)  # a broker that restarts
            if options.watch is None or (result.err and not result.out and not is_passing):
                return result
            if result.err:
                terminal.warn(result.err)
            if result.out or not result.err:
                terminal.emit(result.out)
            has_shown = True
            await deferLater(platform.reactor, options.watch)
    finally:
        await client.stopService()


async def _once(call: Call) -> Result:
    options = call.options
    called = COMMANDS[options.command]
    try:
        changes = called.is_change(options)
        if changes and options.read_only_context and not options.dry_run:
            raise ReadOnly(f"{options.read_only_context}, {options.command} is refused")
        outcome = await called.run(call)
        if changes and options.dry_run:
            return Result(OK)  # each request is printed where it would have been sent
        return Result(OK) if outcome is None else _result(outcome, options)
    except (WrongUse, ConfigurationError) as error:
        return Result(EXIT_USAGE, err=f"rmq-admin {options.command}: {error}")
    except (NotFound, NoRoute) as error:
        return Result(DIFFERENT, err=f"rmq-admin: {error}")
    except (ReadOnly, ContextError) as error:
        return Result(REFUSED if isinstance(error, ReadOnly) else DIFFERENT, err=f"rmq-admin: {error}")
    except NotConfirmed as error:
        return Result(UNCONFIRMED, err=f"rmq-admin: not confirmed, nothing was sent: {error}")
    except NotDelivered as error:
        return Result(UNASKED if error.may_be_stored else REFUSED, err=f"rmq-admin: {error}")
    except Refused as error:
        return Result(REFUSED, err=f"rmq-admin: {error}")
    except RequestFailed as error:
        return Result(UNASKED, err=f"rmq-admin: {error}")


def _result(outcome: Outcome, options: argparse.Namespace) -> Result:
    """Return an outcome as it is printed; a server that failed counts for more than what the others answered."""
    status = outcome.status
    if outcome.failures:
        refused = all(isinstance(failure, Refused) for failure in outcome.failures)
        status = REFUSED if refused else UNASKED
    # one line for each server and kind of failure: texts of timeouts differ by parts of a millisecond
    lines = {(one.addr, getattr(one, "code", type(one))): f"rmq-admin: {one}" for one in reversed(outcome.failures)}
    return Result(status, out=_printed(outcome, options), err="\n".join(reversed(lines.values())))


def _printed(outcome: Outcome, options: argparse.Namespace) -> str:
    if options.output == "json":
        return _json(outcome.data)
    if options.output == "csv":
        if outcome.table is None:
            raise WrongUse("it has no table to print as csv; json has everything")
        return outcome.table.csv()
    if options.as_mqadmin and outcome.mqadmin_text is not None:
        return outcome.mqadmin_text
    return outcome.text


def _access(platform: Platform, options: argparse.Namespace) -> tuple[ClientTls | None, Credentials | None]:
    """Return how servers are dialled and requests are signed; raises ConfigError."""
    tls = credentials = None
    if options.tlsConfig is not None:
        config = parse_tls(_read(platform, "--tlsConfig", options.tlsConfig), options.tlsConfig)
        tls = ClientTls(platform.disk, platform.reactor, terms_of(config))
        tls.load()
    if options.aclTools is not None:
        credentials = parse_credentials(_read(platform, "--aclTools", options.aclTools), options.aclTools)
    return tls, credentials


def _read(platform: Platform, option: str, path: str) -> bytes:
    try:
        return platform.disk.read_whole(path)
    except (FileNotFoundError, DiskError) as error:
        raise ConfigError(f"{option} {path}: {error}") from error


def _json(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
