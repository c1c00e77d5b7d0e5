"""``rmq-admin`` as a process: with a terminal and without one, and every exit status that the document lists."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest import skipUnless

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.terminal import show
from rmq.testing import Cluster, cluster
from tests.admin.test_names import ended
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]

DEADLINE_S = 60.0


class InTerminal:
    """A process whose standard input and outputs are a terminal."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        self._end, other = pty.openpty()

        def own_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        command = [sys.executable, "-m", "rmq.admin", *arguments]
        self._process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environ, cwd=ROOT, preexec_fn=own_terminal
        )
        os.close(other)
        self.shown = ""

    def until(self, text: str) -> None:
        """Wait until it has shown ``text``."""
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            if not self._read(deadline_s):
                raise AssertionError(f"{text!r} is not in {self.shown!r}")

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def ended(self) -> int:
        """Return its exit status."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._read(deadline_s):
            pass
        return self._process.wait(DEADLINE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)

    def _read(self, deadline_s: float) -> bool:
        """Read what it has shown since; False when it has closed its terminal. AssertionError at the deadline."""
        ready, _, _ = select.select([self._end], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise AssertionError(f"it waits, after {self.shown!r}")
        try:
            data = os.read(self._end, 4096)
        except OSError:  # Linux: nobody has the other end
            return False
        self.shown += data.decode().replace("\r\n", "\n")
        return bool(data)


@functools.cache
def the_cluster() -> Cluster:
    """Return the one cluster of this module's tests; each has a topic of its own. It ends with the run."""
    running = cluster()
    atexit.register(running.__exit__, None, None, None)
    return running.__enter__()


class ProcessCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.mq = the_cluster()
        self.topic = self.mq.topic(self._testMethodName)
        self.environ = {
            "PATH": os.environ["PATH"],
            "NAMESRV_ADDR": self.mq.namesrv,
            "XDG_CONFIG_HOME": str(Path(self.mktemp()).absolute()),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rmq.admin", *arguments]

    def run_it(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.environ, input=text, capture_output=True, text=True, cwd=ROOT,
            timeout=DEADLINE_S, check=False, start_new_session=True,
        )  # fmt: skip

    def in_terminal(self, *arguments: str) -> InTerminal:
        started = InTerminal(self.environ, *arguments)
        self.addCleanup(started.close)
        return started

    def is_there(self) -> bool:
        return self.run_it("topic", "route", self.topic).returncode == 0


class ControlTests(ProcessCase):
    def test_hostile_messages(self) -> None:
        """A terminal shows control characters of bodies and keys as escapes; a pipe gets them as they were sent."""
        body = "\x1b]0;title\x07a\r\x1b[2Jb"
        sent = self.run_it("produce", self.topic, "-m", body, "-k", "k\x1b[31m")
        self.assertEqual(sent.returncode, 0, sent.stderr)
        read = ("tail", self.topic, "--from", "begin", "--exit")
        self.assertIn(body.encode(), subprocess.run(self.command(*read), env=self.environ, capture_output=True).stdout)
        for arguments in (read, ("message", "find", self.topic, "k\x1b[31m")):
            started = self.in_terminal(*arguments)
            self.assertEqual(started.ended(), 0, started.shown)
            self.assertIn("k\\x1b[31m", started.shown)
            self.assertNotRegex(started.shown, "[\x07\x1b\r]")


class EncodingTests(SynchronousTestCase):
    def test_another_encoding(self) -> None:
        """Where the output has not all letters they are \\uXXXX, which JSON reads again."""
        text = json.dumps({"body": "Grüße 🎉"}, ensure_ascii=False)
        for encoding, shown in (
            ("utf-8", '{"body": "Grüße 🎉"}'),
            ("latin-1", '{"body": "Grüße \\ud83c\\udf89"}'),
            ("ascii", '{"body": "Gr\\u00fc\\u00dfe \\ud83c\\udf89"}'),
        ):
            data = BytesIO()
            stream = TextIOWrapper(data, encoding=encoding)
            show(text, stream)
            self.assertEqual(data.getvalue().decode(encoding), f"{shown}\n")
            self.assertEqual(json.loads(data.getvalue().decode(encoding)), {"body": "Grüße 🎉"})


class ConfirmationTests(ProcessCase):
    def test_confirmed(self) -> None:
        """What is about to happen is shown, and happens once its name is typed; not before."""
        started = self.in_terminal("topic", "delete", self.topic)
        started.until(f"Type {self.topic} to do it: ")
        self.assertIn(f"topic {self.topic} and its messages are deleted from", started.shown)
        self.assertTrue(self.is_there())
        started.type(f"{self.topic}\n")
        self.assertEqual(started.ended(), 0, started.shown)
        self.assertFalse(self.is_there())

    def test_not_confirmed(self) -> None:
        """Another word, an empty line or the end of input: status 4; Ctrl-C ends it. Nothing was sent."""
        for typed, status in (("yes\n", 4), ("\n", 4), ("\x04", 4), ("\x03", -signal.SIGINT)):
            started = self.in_terminal("topic", "delete", self.topic)
            started.until("to do it: ")
            started.type(typed)
            self.assertEqual(started.ended(), status, (typed, started.shown))
            self.assertNotIn("Traceback", started.shown)
        self.assertTrue(self.is_there())

    def test_yes(self) -> None:
        """With --yes a terminal asks nothing."""
        started = self.in_terminal("topic", "delete", self.topic, "--yes")
        self.assertEqual(started.ended(), 0)
        self.assertNotIn("Type ", started.shown)
        self.assertFalse(self.is_there())

    def test_no_terminal(self) -> None:
        """Without a terminal there is no prompt, whatever standard input would answer."""
        done = self.run_it("topic", "delete", self.topic, text=f"{self.topic}\n" * 3)
        self.assertEqual((done.returncode, done.stdout), (4, ""))
        self.assertNotIn("Type ", done.stderr)
        self.assertTrue(self.is_there())


class InterruptTests(ProcessCase):
    def test_standard_input(self) -> None:
        """Ctrl-C ends a producer that waits for a line; the lines before are sent."""
        started = self.in_terminal("produce", self.topic)
        started.type("first\n")
        started.until("broker-a:")
        started.type("\x03")
        self.assertEqual(started.ended(), 130, started.shown)
        self.assertEqual([one.body for one in self.mq.messages(self.topic)], [b"first"])

    def test_watch(self) -> None:
        """--watch shows the table again, until Ctrl-C."""
        started = self.in_terminal("cluster", "list", "--watch", "0.1")
        for _ in range(3):
            started.until("DefaultCluster")
            started.shown = started.shown.partition("DefaultCluster")[2]
        started.type("\x03")
        self.assertEqual(started.ended(), 130)
        self.assertNotIn("Traceback", started.shown)


#: exit status -> command lines that end with it; {topic} is there, {port} is closed
ENDS: dict[int, list[tuple[str, ...]]] = {
    0: [("topic", "show", "{topic}"), ("topic", "delete", "{topic}", "--dry-run")],
    1: [("acl", "show"), ("kv", "set", "NS", "k", "v", "--context", "careful")],
    2: [("topic", "route", "nowhere"), ("kv", "get", "NS", "nothing"), ("group", "show", "nobody")],
    3: [("topic", "list", "-n", "127.0.0.1:{port}"), ("broker", "config", "-b", "127.0.0.1:{port}")],
    4: [("topic", "delete", "{topic}"), ("broker", "drain", "broker-a"),
        ("group", "skip", "TOOLS_CONSUMER", "{topic}")],
    64: [("topic", "nonsense"), ("topic", "show"), ("group", "reset", "G", "{topic}", "--to", "sometime", "--yes")],
}  # fmt: skip

#: exit status -> command lines that end with it when standard output is a full disk
FULL = {74: [("topic", "list", "--all"), ("tail", "{topic}", "--from", "begin", "--exit", "-o", "json")]}

#: exit status -> what ends a command that would go on
SIGNALS = {130: signal.SIGINT, 143: signal.SIGTERM}


def documented() -> dict[int, str]:
    """Return the statuses of docs/admin.md with their meanings."""
    _, _, section = (ROOT / "docs" / "admin.md").read_text("utf-8").partition("## Exit status\n")
    return {int(status): meaning for status, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE)}


class ExitStatusTests(ProcessCase):
    def test_every_status_is_tested(self) -> None:
        """The table of the document, the help of a command and the tests below have the same statuses."""
        self.assertEqual(set(documented()), {*ENDS, *FULL, *SIGNALS})
        status, text = ended("topic", "list", "--help")
        self.assertEqual(status, 0)
        _, _, listed = text.partition("exit status:\n")
        self.assertEqual({int(line.split()[0]) for line in listed.splitlines() if line}, set(documented()))

    @pytest.mark.campaign  # tox -e trial runs it
    def test_they_occur(self) -> None:
        """Each status is really that of a process; what went wrong is on standard error, without a traceback."""
        for name, more in (("usual", ()), ("careful", ("--read-only",))):  # the first one is in use
            self.assertEqual(self.run_it("context", "add", name, "-n", self.mq.namesrv, *more).returncode, 0)
        for status, lines in ENDS.items():
            for line in lines:
                with self.subTest(line=line):
                    arguments = [word.format(topic=self.topic, port=free_port()) for word in line]
                    done = self.run_it(*arguments)
                    self.assertEqual(done.returncode, status, done)
                    self.assertNotIn("Traceback", done.stderr)
                    self.assertEqual(status == 0, done.stderr == "", done)

    @skipUnless(Path("/dev/full").exists(), "there is no /dev/full")
    def test_full_disk(self) -> None:
        """Output that cannot be written: one line that says why, no traceback."""
        self.assertEqual(self.run_it("produce", self.topic, "-m", "x").returncode, 0)
        for status, lines in FULL.items():
            for line in lines:
                arguments = [word.format(topic=self.topic) for word in line]
                with self.subTest(line=line), Path("/dev/full").open("w") as full:
                    done = subprocess.run(
                        self.command(*arguments), env=self.environ, stdout=full, stderr=subprocess.PIPE, text=True,
                        cwd=ROOT, timeout=DEADLINE_S, check=False,
                    )  # fmt: skip
                    said = "rmq-admin: standard output: No space left on device\n"
                    self.assertEqual((done.returncode, done.stderr), (status, said))

    def test_signals(self) -> None:
        """A consumer that is ended has acknowledged what it printed, and has left its group."""
        for status, number in SIGNALS.items():
            group = f"group-{status}"
            self.assertEqual(self.run_it("produce", self.topic, "-m", "once").returncode, 0)
            started = subprocess.Popen(
                self.command("consume", self.topic, "-g", group, "--from", "begin"),
                env=self.environ, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert started.stdout is not None
            for _ in self.mq.messages(self.topic):
                self.assertIn("once", started.stdout.readline())
            started.send_signal(number)
            _, err = started.communicate(timeout=DEADLINE_S)
            self.assertEqual((started.returncode, err), (status, ""))
            self.assertEqual(self.run_it("group", "members", group).returncode, 2)
            self.assertEqual(self.mq.unconsumed(group, self.topic), 0)
