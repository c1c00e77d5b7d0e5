"""``python packaging/manpages.py FOLDER`` writes a manual page (section 1) for each script; needs argparse-manpage."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argparse_manpage.manpage import Manpage
from rmq_audit.cli import commands

import rmq
from rmq import local
from rmq.admin import main as admin
from rmq.container import HELP, USAGE
from rmq.runtime import launch
from twisted.plugins import rmq_plugins

#: behind the name of a script, for apropos(1) and whatis(1)
IN_SHORT = {
    "rmq-local": "a NameServer, a master and a slave on this machine",
    "rmq-admin": "administer NameServers and brokers; send and read messages",
    "rmq-namesrv": "the NameServer",
    "rmq-broker": "the broker, a master or a slave",
    "rmq-audit": "compare the stores of replicas",
    "rmq-container": "the entry of the container image",
}


def server_parser(maker: Any) -> argparse.ArgumentParser:
    """Return a parser with the options of a server, which `twistd` reads: they are no argparse."""
    options = maker.options()
    usage = f"{maker.tapname} [options]"
    parser = argparse.ArgumentParser(prog=maker.tapname, usage=usage, description=options.longdesc)
    twistd = parser.add_argument_group("options of twistd", "see twistd(1)")
    for name in launch.twistd_options():
        _add(twistd, f"--{name.rstrip('=')}", value=name.endswith("="))
    for name in sorted(options.longOpt, key=str.lower):
        long = name.rstrip("=")
        if long not in ("help", "version"):
            short = [f"-{letter}" for letter, full in options.synonyms.items() if full == long and len(letter) == 1]
            _add(parser, *short, f"--{long}", value=name.endswith("="), text=options.docs.get(long, ""))
    return parser


def _add(parser: Any, *names: str, value: bool, text: str = "") -> None:
    shape = {"metavar": "VALUE"} if value else {"action": "store_true"}
    parser.add_argument(*names, help=text.replace("%", "%%"), **shape)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each script."""
    return {
        "rmq-local": local.parser(),
        "rmq-admin": admin.whole_parser(),
        "rmq-namesrv": server_parser(rmq_plugins.namesrv),
        "rmq-broker": server_parser(rmq_plugins.broker),
        "rmq-audit": commands.parser(),
        "rmq-container": argparse.ArgumentParser(prog="rmq-container", usage=USAGE, description=HELP, add_help=False),
    }


def page(parser: argparse.ArgumentParser) -> str:
    data = {"project_name": rmq.DISTRIBUTION, "version": rmq.__version__, "manual_title": "rmq"}
    title, rest = str(Manpage(parser, _data={**data, "description": IN_SHORT[parser.prog]})).split("\n", 1)
    # a date has plain hyphens, and a long {one,of,these} may end at each comma
    return title.replace("\\-", "-") + "\n" + re.sub(r"\{\S+,\S+\}", lambda found: found[0].replace(",", ",\\:"), rest)


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what --help prints, of a script and of each of its commands."""
    makers = {maker.tapname: maker for maker in (rmq_plugins.namesrv, rmq_plugins.broker)}
    yield launch.help_text(makers[parser.prog]) if parser.prog in makers else parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from helps(command)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, parser in parsers().items():
        text = page(parser)
        found = options_in(re.sub(r"\\f.|\\[,/:]", "", text).replace("\\-", "-"))
        for shown in helps(parser):
            if missing := options_in(shown) - found - {"-h", "--help", "--version"}:
                raise SystemExit(f"{name}.1 has no {sorted(missing)}, which --help has")
        (folder / f"{name}.1").write_text(text, encoding="utf-8")
        print(folder / f"{name}.1")


if __name__ == "__main__":
    main()
