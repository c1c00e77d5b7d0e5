"""The first page of ``rmq-admin --help``; imports neither Twisted nor a command, so that it is there at once."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from rmq.admin.names import NOUNS

EXIT_USAGE = 64

DESCRIPTION = "Administer NameServers and brokers, ours and Apache's; send and read messages."


class UsageParser(argparse.ArgumentParser):
    """Ends the process with EXIT_USAGE and one line for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def overview() -> argparse.ArgumentParser:
    """Return a parser that knows the nouns; it cannot do more than help, and refuse what is no noun."""
    parser = UsageParser(
        prog="rmq-admin",
        description=DESCRIPTION,
        epilog="Every command of mqadmin that is here has its name there too: rmq-admin help updateTopic",
    )
    nouns = parser.add_subparsers(required=True, metavar="COMMAND")
    for noun, (_, text) in NOUNS.items():
        nouns.add_parser(noun, help=text)
    nouns.add_parser("help", help="NAME: the command for a name of mqadmin")
    return parser
