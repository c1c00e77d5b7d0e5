"""The C++ client library of RocketMQ 4.x with its Python wrapper, driven through a pipe (see cpp/client.py)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.needs import missing
from tests.real.peers import CACHE
from tests.real.piped import PipedClient

SOURCE = Path(__file__).parent / "cpp" / "client.py"
INSTALL_DEADLINE_S = 300.0
#: what has the library of Apache's project, built for x86-64 Linux, in a package of Python's index
VERSION = "2.1.0.3"
REQUIREMENT = (
    f"rocketmq-python-cvs=={VERSION} --hash=sha256:99e4ce8008554a74193a3ad94b60f939a4666c48ffabbf4c4417a109daf1419d"
)


def installer() -> list[str]:
    """Return the pip to call: of this environment, or any on PATH; an environment that uv made has none."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if shutil.which("uv"):
        return ["uv", "pip"]
    return [shutil.which("pip3") or shutil.which("pip") or missing("no pip and no uv to fetch the C++ client with")]


def installed() -> Path:
    """Return the folder of the package; installed once, in the cache. Without uv or pip the test is skipped."""
    folder = CACHE / f"cpp-client-{VERSION}"
    if folder.exists():
        return folder
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        missing("the C++ client library is there for Linux on x86-64 only")
    scratch = CACHE / f"{folder.name}.{os.getpid()}"
    scratch.mkdir(parents=True, exist_ok=True)
    requirement = scratch / "requirement.txt"
    requirement.write_text(REQUIREMENT)
    command = [*installer(), "install", "--no-deps", "--require-hashes", "--target", str(scratch)]
    done = subprocess.run(
        [*command, "-r", str(requirement)], capture_output=True, text=True, timeout=INSTALL_DEADLINE_S
    )
    if done.returncode != 0:
        shutil.rmtree(scratch)
        missing(f"the C++ client library could not be fetched: {(done.stdout + done.stderr)[-800:]}")
    try:
        scratch.rename(folder)
    except OSError:  # another run was faster
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


class CppSession(PipedClient):
    """A C++ client that sends and consumes as it is asked to; ``account`` are its access key and secret."""

    def __init__(self, namesrv: str, folder: Path, *account: str):
        home = f"PYTHONPATH={installed()}"
        command = ["env", "-u", "PYTHONSAFEPATH", home, f"HOME={folder}", sys.executable, str(SOURCE), namesrv]
        super().__init__("C++ client", [*command, *account], folder)
