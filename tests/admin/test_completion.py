"""``rmq-admin completion``: what shells complete, names of the cluster among it; an error never reaches the person."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.command import COMMANDS
from rmq.admin.main import whole_parser
from tests.admin.test_command_line import rmq_admin
from tests.admin.test_on_a_cluster import ClusterCase
from tests.needs import need_extra

#: takes the place of rmq-admin where a shell asks for names: remembers the question, answers, complains
STAND_IN = """#!/bin/sh
printf '%s|' "$@" >> "$ASKED"; echo >> "$ASKED"
echo 'it complains' >&2
case "$3" in topics) echo orders; echo other;; contexts) echo prod;; esac
"""


class NamesTests(ClusterCase):
    def names(self, *arguments: str) -> list[str]:
        result = self.admin("completion", "names", *arguments)
        self.assertEqual((result.status, result.err), (0, ""), arguments)
        return result.out.split()

    def test_kinds(self) -> None:
        """Each kind of name, those only that begin as the word does."""
        for topic in ("orders", "other", "%RETRY%billing", "%DLQ%stock"):
            self.text("topic", "create", topic, "--queues", "1")
        self.world.run_for(1)
        self.assertEqual(self.names("topics", "o"), ["orders", "other"])
        self.assertEqual(self.names("topics", "%"), [])
        self.assertEqual(self.names("groups"), ["billing", "stock"])
        self.assertEqual(self.names("brokers", "b"), ["broker-a"])
        self.assertIn(self.broker, self.names("addresses"))
        self.assertEqual(len(self.names("clusters")), 1)
        self.assertEqual(self.names("clusters", "nowhere"), [])

    def test_no_server(self) -> None:
        """A NameServer that never answers: no name and no error after a second, whatever its own time-out."""
        before = self.world.now_s
        silent = self.admin("completion", "names", "topics", "", "rmq-admin topic show -n 10.9.9.9:9876 --timeout 60 o")
        self.assertEqual((silent.status, silent.out, silent.err), (0, "", ""))
        self.assertLess(self.world.now_s - before, 2)

    def test_line(self) -> None:
        """The options of the line that is typed say which servers are asked, also while a quotation is open."""
        for line in ("rmq-admin topic show -n 10.9.9.9:9876 ", "rmq-admin topic show -n 10.9.9.9:9876 'o"):
            self.assertEqual(self.names("brokers", "", line), [], line)
        self.assertEqual(self.names("brokers", "", "rmq-admin topic show -o json "), ["broker-a"])

    def test_hostile_name(self) -> None:
        """What a shell could take for more than a name is not given to it."""
        self.text("topic", "create", "good", "--queues", "1")
        self.assertIn("good", self.names("topics"))
        from rmq.admin.commands import completion

        for name in ("$(touch x)", "a b", "a;b", "`x`", "a\nb", ""):
            self.assertIsNone(completion.NAME.fullmatch(name), name)


class ShellTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_extra("completion")
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        (self.folder / "rmq-admin").write_text(STAND_IN)
        (self.folder / "rmq-admin").chmod(0o755)

    def script(self, shell: str) -> str:
        done = rmq_admin("completion", shell)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def run_shell(self, *command: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "ASKED": str(self.folder / "asked"),
            "HOME": str(self.folder),
            "TERM": "xterm",
        }
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=True)

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def test_bash(self) -> None:
        """Nouns, verbs, options and choices without a question; names with one, that has the word and the line."""
        words = (
            'words() { COMP_LINE="$*" COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _shtab_rmq_admin "$@"; '
            'echo "${COMPREPLY[@]}"; }'
        )
        (self.folder / "script").write_text(
            f"{self.script('bash')}\n{words}\n"
            "words rmq-admin clus\nwords rmq-admin topic cr\nwords rmq-admin config check --outp\n"
            "words rmq-admin topic show -o c\n"
            "words rmq-admin topic show o\nwords rmq-admin topic show -n h:1 orders --context ''\n"
            "words rmq-admin group show nob\n"
        )
        done = self.run_shell("bash", str(self.folder / "script"))
        shown = ["cluster", "create", "--output", "csv", "orders other", "prod", ""]
        self.assertEqual((done.stdout.splitlines(), done.stderr), (shown, ""))
        self.assertEqual(
            self.asked(),
            [
                "completion|names|topics|--|o|rmq-admin topic show o|",
                "completion|names|contexts|--||rmq-admin topic show -n h:1 orders --context |",
                "completion|names|groups|--|nob|rmq-admin group show nob|",
            ],
        )

    def test_fish(self) -> None:
        """The script has the questions; where there is a fish, it completes with them."""
        script = self.script("fish")
        self.assertIn("complete -c rmq-admin", script)
        self.assertIn("rmq-admin completion names topics", script)
        if shutil.which("fish"):
            (self.folder / "script").write_text(f"{script}\ncomplete -C 'rmq-admin topic show -o json o'\n")
            done = self.run_shell("fish", "--no-config", str(self.folder / "script"))
            self.assertEqual([line.split("\t")[0] for line in done.stdout.splitlines()], ["orders", "other"])
            self.assertEqual(done.stderr, "")
            self.assertEqual(self.asked(), ["completion|names|topics|--||rmq-admin topic show -o json o|"])

    def test_zsh(self) -> None:
        """The script has the questions; where there is a zsh, it completes with them in a terminal."""
        script = self.script("zsh")
        self.assertIn("#compdef rmq-admin", script)
        self.assertIn("rmq-admin completion names topics", script)
        if shutil.which("zsh"):
            (self.folder / "rc").write_text(script)
            (self.folder / "script").write_text(
                "zmodload zsh/zpty; zpty z zsh -f -i\n"
                "zpty -w z 'PS1=; autoload -Uz compinit; compinit -u -D'\n"
                f"zpty -w z 'eval \"$(<{self.folder}/rc)\"; echo REA''DY'\n"
                "zpty -r z text '*READY*'; zpty -w -n z $'rmq-admin topic show -o json ot\\t\\n'\n"
                "zpty -w z 'echo DO\"\"NE'; zpty -r z text '*DONE*'; print -r -- $text\n"
            )
            done = self.run_shell("zsh", "-f", str(self.folder / "script"))
            question, ran = self.asked()
            self.assertEqual(question.split("|")[:4], ["completion", "names", "topics", "--"])
            self.assertIn("-o json ot", question)
            self.assertEqual(ran, "topic|show|-o|json|other|", done.stdout)

    def test_unknown_shell(self) -> None:
        """Wrong use, as for any other word that is no verb."""
        self.assertEqual(rmq_admin("completion", "ksh").returncode, 64)

    def test_every_kind_is_completed(self) -> None:
        """The script asks for each kind of name; nothing else in the commands needs to know of completion."""
        script = self.script("bash")
        for kind in ("topics", "groups", "brokers", "addresses", "clusters", "contexts"):
            self.assertIn(f"_COMPGEN=_rmq_admin_names_{kind}", script)
        whole_parser()  # imports all commands
        self.assertIn("completion names", COMMANDS)
