"""
The command line of ``rmq-admin``: arguments in, text or JSON and an exit status out.

A wrong argument or a server without an answer gives one line, never a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from rmq.admin.command import COMMANDS, DIFFERENT, OK, UNASKED, Call, WrongUse
from rmq.errors import RequestFailed
from rmq.remoting.acl import parse_credentials
from rmq.remoting.client import RemotingClient
from rmq.runtime.config import ConfigError, load
from rmq.runtime.disk.error import DiskError
from rmq.runtime.platform import Platform
from rmq.runtime.properties import decode_properties
from rmq.runtime.tls.config import TlsConfig, resolve_tls
from rmq.runtime.tls.context import ClientTls

#: each declares commands when it is imported
MODULES = ("explain", "hastatus", "routediff", "routedump")

EXIT_USAGE = 64

_EXITS = f"""\
exit status:
  {OK}   all servers answered, no problem found
  {DIFFERENT}   something is missing or differs; the text says what
  {UNASKED}   a server did not answer
  {EXIT_USAGE}  wrong arguments
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; ends the process with a message when they are wrong."""
    for module in MODULES:
        importlib.import_module(f"rmq.admin.commands.{module}")
    parser = _Parser(
        prog="rmq-admin", description="Ask NameServers and brokers, ours and Apache's, what they know and why."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in sorted(COMMANDS):
        one = COMMANDS[name]
        sub = commands.add_parser(
            name,
            help=one.help,
            description=f"{one.help[0].upper()}{one.help[1:]}.",
            epilog=_EXITS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for add in one.arguments:
            add(sub)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument(
            "--timeout", type=_seconds, default=5.0, metavar="SECONDS", help="for each answer (default: 5)"
        )
        sub.add_argument("--tlsConfig", metavar="FILE", help="dial with TLS, by the tls.client.* keys of this file")
        sub.add_argument("--aclTools", metavar="FILE", help="sign requests with the account of this tools.yml")
    return parser.parse_args(arguments)


@attrs.frozen
class Result:
    """The output of a run, and its exit status."""

    status: int
    out: str = ""
    err: str = ""


async def run(platform: Platform, options: argparse.Namespace) -> Result:
    """Run the parsed ``options``; ends once all connections are closed."""
    try:
        client = _client(platform, options)
    except ConfigError as error:
        return Result(EXIT_USAGE, err=f"rmq-admin: {error}")
    client.startService()
    try:
        call = Call(asker=client, options=options, timeout_ms=options.timeout * 1000)
        outcome = await COMMANDS[options.command].run(call)
        return Result(outcome.status, out=_json(outcome.data) if options.json else outcome.text)
    except WrongUse as error:
        return Result(EXIT_USAGE, err=f"rmq-admin {options.command}: {error}")
    except RequestFailed as error:
        return Result(UNASKED, err=f"rmq-admin: {error}")
    finally:
        await client.stopService()


def _client(platform: Platform, options: argparse.Namespace) -> RemotingClient:
    tls = sign = None
    if options.tlsConfig is not None:
        terms = resolve_tls(_tls_config(platform, options.tlsConfig), platform.disk)
        tls = ClientTls(platform.disk, platform.reactor, terms)
        tls.load()
    if options.aclTools is not None:
        sign = parse_credentials(_read(platform, "--aclTools", options.aclTools), options.aclTools).sign
    return RemotingClient(platform, name="rmq-admin", tls=tls, sign=sign)


def _tls_config(platform: Platform, path: str) -> TlsConfig:
    values = decode_properties(_read(platform, "--tlsConfig", path), path)
    loaded = load((TlsConfig,), values, path)
    if loaded.unknown:
        raise ConfigError(f"{path}: unknown key {sorted(loaded.unknown)[0]}")
    (config,) = loaded.configs
    return config  # type: ignore[no-any-return]


def _read(platform: Platform, option: str, path: str) -> bytes:
    try:
        return platform.disk.read_whole(path)
    except (FileNotFoundError, DiskError) as error:
        raise ConfigError(f"{option} {path}: {error}") from error


def _json(data: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds
