"""An unmodified Go client (rocketmq-client-go 2), driven through a pipe (see go/client.go and go/commands.go)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.needs import missing
from tests.real.peers import CACHE
from tests.real.piped import PipedClient

SOURCE = Path(__file__).parent / "go"
BUILD_DEADLINE_S = 600.0


def has_go() -> bool:
    return shutil.which("go") is not None


def built() -> Path:
    """Return the client's program; built once per source text, in the cache. Without Go the test is skipped."""
    files = [SOURCE / name for name in ("client.go", "commands.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    program = CACHE / f"go-client-{digest}"
    if program.exists():
        return program
    if not has_go():
        missing("no go on PATH: the client for Go cannot be built")
    CACHE.mkdir(parents=True, exist_ok=True)
    scratch = CACHE / f"{program.name}.{os.getpid()}"
    command = ["go", "build", "-o", str(scratch), "."]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_DEADLINE_S)
    assert done.returncode == 0, f"go build:\n{done.stdout}{done.stderr}"
    scratch.rename(program)
    return program


class GoClient(PipedClient):
    """A producer that sends one message every ``interval_ms`` and a push consumer of the same topic, until closed."""

    def __init__(self, namesrv: str, topic: str, group: str, folder: Path, *, interval_ms: int = 20):
        super().__init__("Go client", [str(built()), namesrv, topic, group, str(interval_ms)], folder)
        self.group = group


class GoSession(PipedClient):
    """A Go client that does what it is asked to; ``account`` are its access key and secret (see go/commands.go)."""

    def __init__(self, namesrv: str, folder: Path, *account: str):
        super().__init__("Go client", [str(built()), namesrv, *account], folder)
