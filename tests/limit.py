"""
``python tests/limit.py SECONDS NAME COMMAND...``: run a step of CI that ends, whatever hangs in it.

A step that takes longer is ended with its children and named; its status is 124, as coreutils' ``timeout`` has it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType

#: what a step that must end has for its own cleaning up
GRACE_S = 30


def main(seconds: str, name: str, *command: str) -> int:
    process = subprocess.Popen(command, start_new_session=True)

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        return process.wait(float(seconds))
    except subprocess.TimeoutExpired:
        print(f"TIMEOUT: {name} took more than {seconds} s: {' '.join(command)}", file=sys.stderr, flush=True)
        return 124
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
