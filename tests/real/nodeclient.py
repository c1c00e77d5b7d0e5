"""An unmodified Node.js client (ali-ons), driven through a pipe (see node/client.js)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.needs import missing
from tests.real.peers import CACHE
from tests.real.piped import PipedClient

SOURCE = Path(__file__).parent / "node"
INSTALL_DEADLINE_S = 300.0


def installed() -> Path:
    """Return the client's program; installed once per source text, in the cache. Without npm the test is skipped."""
    files = [SOURCE / name for name in ("client.js", "package.json")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    folder = CACHE / f"node-client-{digest}"
    if not folder.exists():
        if shutil.which("npm") is None:
            missing("no npm on PATH: the client for Node.js cannot be installed")
        scratch = CACHE / f"{folder.name}.{os.getpid()}"
        scratch.mkdir(parents=True)
        for file in files:
            shutil.copy(file, scratch)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S)
        if done.returncode != 0:
            missing(f"npm could not fetch ali-ons: {(done.stdout + done.stderr)[-800:]}")
        try:
            scratch.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(scratch, ignore_errors=True)
    return folder / "client.js"


class NodeSession(PipedClient):
    """A client for Node.js that sends and consumes as it is asked to; ``account`` are its access key and secret."""

    def __init__(self, namesrv: str, folder: Path, *account: str):
        super().__init__("Node.js client", ["node", str(installed()), namesrv, *account], folder)
