"""The names of commands: each noun, verb and name of mqadmin leads to a command, and documents have them all."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import COMMANDS
from rmq.admin.main import parse, whole_parser
from rmq.admin.names import ALIASES, INSTEAD, NOT_HERE, NOUNS

ROOT = Path(__file__).resolve().parent.parent.parent


def ended(*arguments: str) -> tuple[int, str]:
    """Return exit status and output of a command line that ends while it is parsed."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            parse(arguments)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    raise AssertionError(f"{arguments} was parsed")


class NameTests(SynchronousTestCase):
    def setUp(self) -> None:
        whole_parser()  # imports all commands

    def test_every_command_has_its_noun(self) -> None:
        """A command is found below its noun, and a noun's help names its verbs."""
        self.assertEqual({name.partition(" ")[0] for name in COMMANDS}, set(NOUNS))
        for noun in NOUNS:
            verbs = {name.partition(" ")[2] for name in COMMANDS if name.partition(" ")[0] == noun}
            status, text = ended(noun, "--help")
            self.assertEqual(status, 0)
            for verb in verbs:
                self.assertIn(verb, text)
                self.assertIn(verb, NOUNS[noun][1], noun)

    def test_every_alias_leads_to_a_command(self) -> None:
        """A name of mqadmin has the help of its command; `help NAME` says which one it is."""
        for alias, name in ALIASES.items():
            self.assertIn(name, COMMANDS, alias)
            status, text = ended(alias, "--help")
            self.assertEqual((status, text.split()[:3]), (0, ["usage:", "rmq-admin", alias]))
            status, text = ended("help", alias)
            self.assertEqual((status, text.splitlines()[0]), (0, f"{alias} is rmq-admin {name}"))

    def test_any_case(self) -> None:
        """mqadmin takes its names in any case, and so do we."""
        self.assertEqual(parse(["updatetopic", "-t", "T"]).command, "topic create")
        self.assertEqual(parse(["QueryMsgTraceById", "-i", "X"]).command, "message trace")
        self.assertIn("topic list", ended("help", "TOPICLIST")[1])

    def test_help(self) -> None:
        """The word alone is the first page."""
        self.assertEqual(ended("help"), ended("--help"))

    def test_unknown_names(self) -> None:
        """Status 64, and nothing is done."""
        for arguments in (
            ["nonsense"],
            ["topic", "nonsense"],
            ["topic"],
            [],
            ["help", "nonsense"],
            ["help", "topic x"],
        ):
            status, text = ended(*arguments)
            self.assertEqual(status, 64, (arguments, text))

    def test_names_without_alias(self) -> None:
        """A name of mqadmin that is no alias says what does its work."""
        for name, instead in INSTEAD.items():
            for arguments in ((name, "-t", "T"), ("help", name)):
                status, text = ended(*arguments)
                self.assertEqual((status, text), (64, f"rmq-admin: {name} of mqadmin is here: rmq-admin {instead}\n"))

    def test_names_of_5x(self) -> None:
        """A command of 5.x that is not here says why; none is a name that is here."""
        self.assertEqual(set(NOT_HERE) & {*ALIASES, *INSTEAD, *NOUNS}, set())
        self.assertEqual(len(NOT_HERE), 36)  # 37 that 5.3.3 has beside those of 4.9.7, haStatus among them
        for name, why in NOT_HERE.items():
            for arguments in ((name, "-t", "T"), ("help", name)):
                self.assertEqual(ended(*arguments), (64, f"rmq-admin: {name} of mqadmin is not here: {why}\n"))

    def test_documented(self) -> None:
        """docs/admin.md has every command and every alias."""
        text = (ROOT / "docs" / "admin.md").read_text()
        self.assertEqual([name for name in COMMANDS if f"`{name}" not in text], [])
        self.assertEqual([name for name in ALIASES if f"`{name}`" not in text], [])

    def test_only_what_is_called_is_imported(self) -> None:
        """The commands of other nouns cost no time."""
        code = (
            "import sys; from rmq.admin.main import parse; parse(['kv', 'list', 'NS', '-n', 'h:1']);"
            "print(*sorted(name for name in sys.modules if name.startswith('rmq.admin.commands.')))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        self.assertEqual(done.stdout.split(), ["rmq.admin.commands.namesrv"])


class StartTests(SynchronousTestCase):
    def test_help_needs_no_twisted(self) -> None:
        """The first page of help is printed without Twisted, which takes longer than everything else."""
        code = "import sys; from rmq.admin.__main__ import main; sys.argv[1:] = ['--help']\n"
        code += "try: main()\nfinally: print([name for name in ('twisted', 'msgspec', 'attr') if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertIn("usage: rmq-admin", done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1], "[]")
