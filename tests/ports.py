"""Ports for tests whose servers run in a process of their own, or want more than one."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile

#: client sockets of the kernel begin above, so none of them takes the port of a server that is down for a moment
PORTS = range(12_000, 32_000)

_chance = random.SystemRandom()
_issued: set[int] = set()
#: its byte N is locked by the process of tests that was issued port N, as long as that lives
_locks = os.open(os.path.join(tempfile.gettempdir(), f"rmq-test-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT)


def free_port() -> int:
    """Return a port that is free together with the two below it and the one above: a broker's four."""
    for _ in range(2000):
        port = _chance.choice(PORTS)
        if all(map(_take, range(port - 2, port + 2))):
            return port
    raise AssertionError(f"no four free ports in a row between {PORTS.start} and {PORTS.stop}")


def _take(port: int) -> bool:
    """Take a port for this process, if no other has it."""
    if port in _issued:
        return False
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", port))
    except OSError:
        return False
    _issued.add(port)
    return True
