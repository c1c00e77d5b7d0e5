"""docs/namesrv.md says what is so."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.tap import Options

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGES = ("namesrv.md", "manhole.md", "operating.md")
ROLE = "rmq-namesrv"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_namesrv", DOCS / "make_namesrv.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options_shown(page: str) -> list[list[str]]:
    """Return the options behind the role's name in every command of a page, and options named by themselves."""
    commands = re.findall(rf"twistd [^\n`]*?{ROLE}([^\n`#]*)", page)
    alone = re.findall(r"`(--[a-z][A-Za-z]* [^`]+)`", page) if "mqnamesrv" in page else []
    return [shlex.split(text) for text in [*commands, *alone]]


class PageTests(SynchronousTestCase):
    def test_tables_are_made_from_the_code(self) -> None:
        """Keys, events and limits are up to date; `python docs/make_namesrv.py` makes them so."""
        made = maker()
        page = made.PATH.read_text("utf-8")
        self.assertEqual(page, made.updated(page))

    def test_an_outdated_table_is_seen(self) -> None:
        """Another default on the page is a difference, and a page without its marks an error."""
        made = maker()
        page = made.PATH.read_text("utf-8").replace("| `listenPort` | `9876` |", "| `listenPort` | `1` |")
        self.assertNotEqual(page, made.updated(page))
        self.assertRaises(ValueError, made.updated, page.replace("<!-- end of keys -->", ""))

    def test_commands_are_understood(self) -> None:
        """Every option that the pages give to the NameServer is one that it has, with a value that it takes."""
        seen = 0
        for name in PAGES:
            for arguments in options_shown((DOCS / name).read_text("utf-8")):
                given = [word.replace("PORT", "9880").replace("FOLDER", self.mktemp()) for word in arguments]
                for flag in ("-p", "-c"):  # the one prints and exits, the other names a file that is not here
                    while flag in given:
                        at = given.index(flag)
                        del given[at : at + (2 if flag == "-c" else 1)]
                Options().parseOptions(given)
                seen += 1
        self.assertGreaterEqual(seen, 4)
