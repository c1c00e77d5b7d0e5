"""The example of docs/testing-kit.md: a service in Java and in Go, tested by the kit with pytest, as printed there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import missing
from tests.real.goclient import SOURCE, has_go
from tests.real.peers import APACHE_4, APACHE_5, jars, require_apache
from tests.testing.test_examples import PLUGINS, blocks_of, examples, pytest_of, run

pytestmark = pytest.mark.real

DOCUMENT = "docs/testing-kit.md"
JAVA_SERVICE = 'SERVICE = ["java", "-cp", "target/classes:target/dependency/*", "Billing"]'

JUNIT = {
    "BeforeEach": "public @interface BeforeEach {}",
    "Test": "public @interface Test {}",
    "Assertions": """
public class Assertions {
    public static void assertEquals(Object wanted, Object got, String... why) {
        if (!wanted.equals(got)) throw new AssertionError(got + " " + String.join(" ", why));
    }
}""",
}
MAIN = """
public class Main {
    public static void main(String[] args) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        for (int i = 0; i < 2; i++) {
            OrdersTest test = new OrdersTest();
            test.begin();
            test.anOrderThatIsRefusedIsSentAgain();
        }
        System.out.println("passed");
        System.exit(0);
    }
}
"""


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
    (source,) = (text for text in blocks_of(DOCUMENT, "java") if "class Billing" in text)
    (tmp_path / "Billing.java").write_text(source)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "dependency").symlink_to(jars(version))
    command = ["javac", "-cp", "target/dependency/*", "-d", "target/classes", "Billing.java"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Xmx160m -XX:+UseSerialGC -Duser.home={tmp_path}")
    passes(tmp_path, JAVA_SERVICE)


def test_junit(tmp_path: Path) -> None:
    """The test for JUnit compiles and passes, twice, with JUnit played by a few lines: its jars are not Apache's."""
    require_apache(APACHE_4)
    (source,) = (text for text in blocks_of(DOCUMENT, "java") if "class OrdersTest" in text)
    (tmp_path / "OrdersTest.java").write_text(source)
    junit = tmp_path / "org" / "junit" / "jupiter" / "api"
    junit.mkdir(parents=True)
    for name, text in JUNIT.items():
        (junit / f"{name}.java").write_text(f"package org.junit.jupiter.api;\n{text}\n")
    (tmp_path / "Main.java").write_text(MAIN)
    classes = f"{tmp_path}:{jars(APACHE_4)}/*"
    command = ["javac", "-cp", classes, "-d", str(tmp_path), "Main.java"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    options = ["-Xmx160m", "-XX:+UseSerialGC", f"-Duser.home={tmp_path}"]
    servers = [sys.executable, "-m", "rmq.testing.server", "--topic", "orders", "--"]
    command = [*servers, "java", *options, "-cp", classes, "Main"]
    for _ in range(3):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        if "No route info" not in done.stderr:  # Apache's client waits 3 s for it, its own start included
            break
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "passed", done.stdout + done.stderr


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
