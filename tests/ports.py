"""Ports for tests whose servers run in a process of their own, or want more than one."""

from __future__ import annotations

import socket


def free_broker_port() -> int:
    """Return a port that is free now, as are those that a broker opens beside it: VIP two below, replication above."""
    while True:
        with socket.socket() as found, socket.socket() as lower, socket.socket() as upper:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
            try:
                lower.bind(("127.0.0.1", port - 2))
                upper.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
