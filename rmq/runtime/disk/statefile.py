"""
Small files that hold the state of a process, with the previous content beside them as ``.bak``.

Java: ConfigManager#load, #persist
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk, DiskError

T = TypeVar("T")

_log = Logger()


class StateFileError(Exception):
    """A state file exists but neither it nor its ``.bak`` can be read; the text has the files and the reasons."""


def read_state(disk: Disk, path: str, parse: Callable[[bytes], T]) -> T | None:
    """
    Return the parsed file, or its ``.bak`` when the file is missing, empty or broken; None without both. A ``.bak``
    that was used replaces the file, and the broken file is kept as ``.broken``.

    ``parse`` raises ValueError for what it cannot read. Raises StateFileError when there is something but nothing
    usable: starting without it would lose the state at the next write. Raises DiskError when it cannot be read at all.
    """
    problems: list[str] = []
    for candidate in (path, f"{path}.bak"):
        if not disk.exists(candidate):
            continue
        data = disk.read_whole(candidate)
        if not data.strip():
            problems.append(f"{candidate} is empty")
            continue
        try:
            state = parse(data)
        except ValueError as error:
            problems.append(f"{candidate}: {error}")
            continue
        if candidate != path:
            # Otherwise the next write would replace the readable backup by the broken file.
            if disk.exists(path):
                disk.rename(path, f"{path}.broken")
            with suppress(DiskError):  # on a full disk the backup alone must suffice
                disk.write_atomic(path, data)
            reason = "; ".join(problems) or f"{path} is missing"
            _log.warn("{reason}; the previous content was read from {candidate}", reason=reason, candidate=candidate)
        return state
    if problems:
        raise StateFileError(f"{'; '.join(problems)}: repair the file, or delete it and its .bak to start without it")
    return None


def write_state(disk: Disk, path: str, data: bytes) -> None:
    """Replace the file durably, its old content becomes ``.bak``; DiskError when that fails."""
    disk.make_dirs(os.path.dirname(path) or ".")
    disk.write_atomic(path, data, keep_backup=True)


def write_state_soon(disk: Disk, path: str, data: bytes) -> Deferred[None]:
    """As :func:`write_state`, without blocking; the caller writes a path by one such call at a time."""
    disk.make_dirs(os.path.dirname(path) or ".")
    return disk.write_atomic_soon(path, data, keep_backup=True)
