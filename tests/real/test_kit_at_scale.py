"""
The test kit under load: many tests in many workers; nothing is left over.

``RMQ_CAMPAIGN=1`` does so ten times, without it once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import IS_CAMPAIGN

TESTS = 200
WORKERS = 8
RUNS = 10 if IS_CAMPAIGN else 1
#: seconds for one run on a busy machine
LIMIT_S = 300

SOURCE = """
import pytest
from rmq.blocking import Message

@pytest.mark.parametrize("n", range({tests}))
def test_roundtrip(rmq, rmq_client, n):
    topic = rmq.topic(queues=1)
    rmq_client.producer().send(Message(topic, str(n).encode()))
    assert [message.body for message in rmq.messages(topic)] == [str(n).encode()]
"""


def processes_of(folder: Path) -> set[int]:
    """Return the processes whose temporary files are in a folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            pass  # it has just ended, or is another user's
    return found


@pytest.mark.real
def test_many_workers(tmp_path: Path) -> None:
    """No port clashes, no test fails, and no process and no folder is left, in each run."""
    pytest.importorskip("xdist")
    (tmp_path / "test_many.py").write_text(SOURCE.format(tests=TESTS))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    plugins = ("-p", "rmq.testing.plugin", "-p", "xdist.plugin", "-p", "no:cacheprovider")
    for number in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), *plugins, "test_many.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, (number, done.stdout[-4000:], done.stderr[-2000:])
        assert f"{TESTS} passed" in done.stdout
        print(done.stdout.splitlines()[-1])
        assert processes_of(temporary) == set(), number
        left = [path.name for path in temporary.iterdir() if not path.name.startswith("pytest-of-")]
        assert left == [], number
