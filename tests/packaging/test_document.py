"""Every example of docs/deployment.md is read by the program that it is for."""

from __future__ import annotations

import configparser
import io
import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq import container
from rmq.admin.main import parse
from rmq.local import parser as local_parser
from rmq.runtime import launch
from tests.packaging.test_units import MAKERS
from twisted.plugins import rmq_plugins

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "deployment.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def blocks(kind: str) -> Iterator[str]:
    """Yield the text of each fenced block of this kind."""
    yield from re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def server(program: str, arguments: list[str]) -> None:
    """Read the command of a server as its script does; paths are those of the checkout."""
    with redirect_stdout(io.StringIO()):
        launch.parse(MAKERS[program], [str(ROOT / each) if each.startswith("etc/") else each for each in arguments])


def in_container(program: str, arguments: list[str]) -> None:
    """Read a command of podman: the image is built from a file that exists, and the entry takes what it runs."""
    if arguments[0] == "build":
        assert (ROOT / arguments[arguments.index("-f") + 1]).is_file(), arguments
        return
    image = arguments.index("rmq")
    environment = dict(value.split("=", 1) for name, value in pairwise(arguments[:image]) if name == "-e")
    words = container.command(arguments[image + 1 :], environment, first="10.0.0.7", resolve=str)
    run(words[0], words[1:])


def admin(program: str, arguments: list[str]) -> None:
    parse(arguments)


def local(program: str, arguments: list[str]) -> None:
    local_parser().parse_args(arguments)


def pip(program: str, arguments: list[str]) -> None:
    """The distribution and its extras exist."""
    for word in arguments:
        if found := re.fullmatch(r"(\w+)\[(.*)\]", word):
            assert found[1] == PROJECT["name"], word
            assert set(found[2].split(",")) <= PROJECT["optional-dependencies"].keys(), word


def install(program: str, arguments: list[str]) -> None:
    """What is copied is there."""
    sources = [word for word in arguments if "/" in word and not word.startswith("/")]
    assert sources, arguments
    for word in sources:
        assert (ROOT / word).is_file(), word


def systemctl(program: str, arguments: list[str]) -> None:
    """The units exist."""
    for word in arguments:
        if word.startswith("rmq"):
            name = re.sub("@.*", "@", word)
            assert (ROOT / "packaging" / "systemd" / f"{name}.service").is_file(), word


def tox(program: str, arguments: list[str]) -> None:
    """The environment is in tox.ini."""
    assert f"[testenv:{arguments[-1]}]" in (ROOT / "tox.ini").read_text("utf-8"), arguments


def nothing_to_read(program: str, arguments: list[str]) -> None:
    pass


READERS: dict[str, Callable[[str, list[str]], None]] = {
    "rmq-namesrv": server,
    "rmq-broker": server,
    "rmq-admin": admin,
    "rmq-local": local,
    "podman": in_container,
    "pip": pip,
    "tox": tox,
    "install": install,
    "systemctl": systemctl,
    "python": nothing_to_read,
    "python3": nothing_to_read,
    "systemd-sysusers": nothing_to_read,
    "systemd-tmpfiles": nothing_to_read,
}


def run(program: str, arguments: list[str]) -> None:
    READERS[Path(program).name](Path(program).name, arguments)


class ExampleTests(SynchronousTestCase):
    def setUp(self) -> None:
        # There can be only one.
        self.patch(rmq_plugins.lean_reactor.__class__, "install", lambda reactor: None)
        self.lines = [line for block in blocks("sh") for line in block.splitlines()]

    def test_commands(self) -> None:
        """Each line of a shell block is understood by the program that it names."""
        for line in self.lines:
            program, *arguments = shlex.split(line, comments=True)
            run(program, arguments)
        self.assertGreater(len(self.lines), 15)

    def test_testcontainers(self) -> None:
        """In both languages the entry takes the commands and variables, and ports are those of the roles."""
        for language, published in (("python", "with_bind_ports"), ("java", "withFixedExposedPort")):
            (text,) = blocks(language)
            given = dict(re.findall(r"with_?[eE]nv\(\"(\w+)\", \"([^\"]+)\"\)", text))
            self.assertEqual(given.keys(), {"RMQ_BROKER_IP1", "RMQ_KEY_namesrvAddr"})
            roles = re.findall(r"(?:command=|withCommand\()\"(\w+)\"", text)
            self.assertEqual(roles, ["namesrv", "broker"])
            for role, environment in zip(roles, ({}, given), strict=True):
                (program, *arguments) = container.command([role], environment, first="10.0.0.7", resolve=str)
                server(program, [word for word in arguments if word != "0.0.0.0:9880" and word != "--http"])
            self.assertIn(f"{published}(10911, 10911)", text)
            self.assertRegex(text, r"xposed_?[pP]orts\(9876\)")

    def test_a_wrong_example_is_found(self) -> None:
        """An option, a unit, a file, an extra or a key that does not exist fails."""
        for line in (
            "rmq-broker --nodaemon --listenPrt 1",
            "systemctl start rmq-nameserver",
            "install packaging/systemd/rmq.conf /etc/",
            "pip install txrocketmq[tsl]",
            "podman run rmq broker",
            "podman run -e RMQ_BROKER_IP1=auto -e RMQ_KEY_brokerNmae=a rmq broker",
            "rmq-admin topics",
            "podman run rmq local --bnd 0.0.0.0",
            "tox run -e pakage",
            "rm -rf /",
        ):
            program, *arguments = shlex.split(line)
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                try:
                    run(program, arguments)
                except (AssertionError, SystemExit, KeyError, container.NotUsable):
                    continue
                self.fail(f"not found: {line}")

    def test_drop_in(self) -> None:
        """The drop-in's command is the unit's with one more option."""
        (text,) = blocks("ini")
        parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
        parser.read_string(text)
        (program, *arguments) = parser["Service"]["ExecStart"].split()
        with tempfile.TemporaryDirectory(prefix="rmq-drop-in-") as folder:
            Path(folder, "a.properties").write_text("brokerIP1=192.0.2.1\n")
            places = {"/etc/rmq/%i": f"{folder}/a", "${STATE_DIRECTORY}": folder}
            for old, new in places.items():
                arguments = [word.replace(old, new) for word in arguments]
            server(Path(program).name, arguments)
