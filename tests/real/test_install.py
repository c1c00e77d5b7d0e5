"""The wheel in an environment where nothing else is: README's test and a first session with rmq-admin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.real.peers import until
from tests.testing.test_examples import examples

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
    """rmq-local, and with rmq-admin alone: a topic, messages, lag, reset, a look by key, a dead letter again."""
    namesrv, broker = free_port(), free_port()
    environ = clean_environ(tmp_path) | {"NAMESRV_ADDR": f"127.0.0.1:{namesrv}"}

    def admin(words: str, text: str = "", status: int = 0) -> str:
        done = subprocess.run(
            [scripts / "rmq-admin", *words.split()],
            input=text, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout

    ports = ["--namesrv-port", str(namesrv), "--broker-port", str(broker), "--http-port", "0"]
    ports += ["--slave-port", str(free_port())]
    with (tmp_path / "local.log").open("w") as log:
        local = subprocess.Popen([scripts / "rmq-local", *ports], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        admin_path = str(scripts / "rmq-admin")
        until(
            "the brokers",
            lambda: (
                b"broker-a" in subprocess.run([admin_path, "cluster", "list"], env=environ, capture_output=True).stdout
            ),
        )
        admin("topic create orders --queues 2")
        admin("produce orders -k demo", "".join(f"order {n}\n" for n in range(10)))
        admin("group create billing --retryMaxTimes 0")
        admin("consume orders -g billing --from begin --count 4")
        assert re.search(r"billing .* 6$", admin("group list"), re.MULTILINE)
        admin("group reset billing orders --to begin --yes")
        assert re.search(r"billing .* 10$", admin("group list"), re.MULTILINE)
        assert admin("message find orders demo").count("\n") == 11
        admin("consume orders -g billing --count 1 --retries 0 --exec false")
        until("the dead letter", lambda: "billing" in admin("dlq list"))
        assert "OK" in admin("dlq resend billing --all --yes")
    finally:
        local.terminate()
        local.wait(60)
