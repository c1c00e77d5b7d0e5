"""The example of docs/testing-kit.md: a service in Java and in Go, tested by the kit with pytest, as printed there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.needs import missing
from tests.real.goclient import SOURCE, has_go
from tests.real.peers import APACHE_4, APACHE_5, jars, require_apache
from tests.testing.test_examples import PLUGINS, blocks_of, examples, pytest_of, run

pytestmark = pytest.mark.real

DOCUMENT = "docs/testing-kit.md"
JAVA_SERVICE = 'SERVICE = ["java", "-cp", "target/classes:target/dependency/*", "Billing"]'


def passes(folder: Path, service: str) -> None:
    """Run the test of the document in a folder that has the service."""
    (text,) = (text for text in examples(DOCUMENT) if "SERVICE =" in text)
    assert text.count(JAVA_SERVICE) == 1
    (folder / "test_billing.py").write_text(text.replace(JAVA_SERVICE, service))
    assert "1 passed" in run(folder, *pytest_of(PLUGINS[0]))


@pytest.mark.parametrize("version", [APACHE_4, APACHE_5])
def test_java(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java service compiles with the client of 4.x and of 5.x, and passes the test."""
    require_apache(version)
    (source,) = blocks_of(DOCUMENT, "java")
    (tmp_path / "Billing.java").write_text(source)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "dependency").symlink_to(jars(version))
    command = ["javac", "-cp", "target/dependency/*", "-d", "target/classes", "Billing.java"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Xmx160m -XX:+UseSerialGC -Duser.home={tmp_path}")
    passes(tmp_path, JAVA_SERVICE)


def test_go(tmp_path: Path) -> None:
    """The same service in Go passes the same test."""
    if not has_go():
        missing("no go on PATH: the service cannot be built")
    (source,) = blocks_of(DOCUMENT, "go")
    (tmp_path / "main.go").write_text(source)
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCE / name, tmp_path / name)
    command = ["go", "build", "-o", "billing", "."]
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    passes(tmp_path, 'SERVICE = ["./billing"]')
