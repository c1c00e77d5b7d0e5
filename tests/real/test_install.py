"""
The wheel in an environment where nothing else is, and no Java on PATH.

README's test, a first session with rmq-admin, and README's three scripts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.peers import until
from tests.testing.test_examples import blocks_of, examples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it with pytest into a new environment; return its folder of programs."""
    folder = tmp_path_factory.mktemp("install")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip: list[str | Path] = [folder / "venv" / "bin" / "python", "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "wheels", ROOT], check=True, cwd=folder)
    (wheel,) = (folder / "wheels").glob("*.whl")
    subprocess.run([*pip, "install", wheel, "pytest"], check=True, cwd=folder)
    return folder / "venv" / "bin"


def clean_environ(home: Path) -> dict[str, str]:
    """Return an environment in which nothing points to this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "ROCKETMQ"))}
    kept.pop("NAMESRV_ADDR", None)
    return kept | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}


def without_java(scripts: Path, folder: Path) -> dict[str, str]:
    """Return an environment whose PATH has the installed programs, sh and false, and nothing else."""
    folder.mkdir()
    for name in ("sh", "false"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    environ = clean_environ(folder.parent) | {"PATH": f"{scripts}{os.pathsep}{folder}"}
    environ.pop("JAVA_HOME", None)
    assert shutil.which("java", path=environ["PATH"]) is None
    return environ


@pytest.mark.real
def test_readme(scripts: Path, tmp_path: Path) -> None:
    """The test that README shows passes with pytest alone: the plugin is found by its entry point."""
    (example,) = examples("README.md")
    (tmp_path / "test_readme.py").write_text(example)
    done = subprocess.run(
        [scripts / "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env=clean_environ(tmp_path), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.real
def test_first_session(scripts: Path, tmp_path: Path) -> None:
    """
    rmq-local, and with rmq-admin alone: a topic, ten messages, lag, reset, a look by key, a dead letter again.

    Then README's scripts for asyncio, Twisted and neither, as they are printed there. Nothing needs Java.
    """
    namesrv, broker = free_port(), free_port()
    environ = without_java(scripts, tmp_path / "path") | {"NAMESRV_ADDR": f"127.0.0.1:{namesrv}"}

    def run(*command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, input=text, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
        )

    def admin(words: str, text: str = "") -> str:
        done = run(scripts / "rmq-admin", *words.split(), text=text)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    ports = ["--namesrv-port", str(namesrv), "--broker-port", str(broker), "--http-port", "0"]
    ports += ["--slave-port", str(free_port())]
    with (tmp_path / "local.log").open("w") as log:
        local = subprocess.Popen([scripts / "rmq-local", *ports], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        until("the brokers", lambda: "broker-a" in run(scripts / "rmq-admin", "cluster", "list").stdout)
        admin("topic create bills --queues 2")
        admin("produce bills -k demo", "".join(f"bill {n}\n" for n in range(10)))
        admin("group create billing --retryMaxTimes 0")
        admin("consume bills -g billing --from begin --count 4")
        assert re.search(r"billing .* 6$", admin("group list"), re.MULTILINE)
        admin("group reset billing bills --to begin --yes")
        assert re.search(r"billing .* 10$", admin("group list"), re.MULTILINE)
        assert admin("message find bills demo").count("\n") == 11
        admin("consume bills -g billing --count 1 --retries 0 --exec false")
        until("the dead letter", lambda: "billing" in admin("dlq list"))
        assert "OK" in admin("dlq resend billing --all --yes")
        assert len(admin("consume bills -g billing --count 10").splitlines()) == 10  # nine, and that one again
        blocks = [text for text in blocks_of("README.md") if "def test_" not in text]
        for text in blocks:
            assert sum(bool(line.strip()) for line in text.splitlines()) <= 15
            done = run(scripts / "python", "-W", "error", "-c", text)
            assert done.returncode == 0 and "b'hello'" in done.stdout, f"{text}\n{done.stdout}{done.stderr}"
            assert "Warning" not in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert [face for face in ("aio", "tx", "blocking") for text in blocks if f"rmq.{face} import" in text] == [
            "aio", "tx", "blocking",
        ]  # fmt: skip
    finally:
        local.terminate()
        assert local.wait(60) == 0
