"""The limit of open files and sockets of this process."""

from __future__ import annotations

import resource

#: reserved for files: segments, consume queues, index files, logs
RESERVED_FILES = 2048


def raise_open_files_limit() -> int:
    """Raise the limit of open files as far as an ordinary user may, as a JVM does at its start, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            # macOS calls its hard limit unlimited and refuses it.
            pass
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def sockets_of(limit: int) -> int:
    """Return how many of ``limit`` open files may be connections: the rest is needed for files such as new segments."""
    return max(1, limit - min(RESERVED_FILES, limit // 2))
