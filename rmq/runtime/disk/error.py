"""Errors of `Disk` and `File`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


class DiskError(Exception):
    """A file operation failed; has the path, the offset if there is one, and the reason."""

    def __init__(self, path: str, text: str, offset: int | None = None) -> None:
        at = "" if offset is None else f" at offset {offset}"
        super().__init__(f"{path}{at}: {text}")
        self.path = path
        self.offset = offset
        self.text = text


class DiskFull(DiskError):
    """There is no room left (or no quota)."""


class SyncFailed(DiskError):
    """
    An fsync of a file or folder failed; it is never retried.

    The kernel may have dropped the pages that it could not write, and a second fsync would report success.
    """


class DiskLocked(DiskError):
    """Another process holds the lock."""


@contextlib.contextmanager
def naming(path: str, *, doing: str = "", offset: int | None = None) -> Iterator[None]:
    """Turn an OSError into a DiskError with ``path`` and the operation."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error, doing=doing, offset=offset) from error
    except UnicodeEncodeError as error:
        # Where a process without UTF-8 mode runs in the locale C.
        raise DiskError(path, f"cannot be written in this locale ({error.encoding}): try LANG=C.UTF-8") from error


def sync_error(path: str, error: OSError) -> SyncFailed:
    """Return the error of a failed fsync, never a DiskFull: a write without room can be retried, an fsync cannot."""
    return SyncFailed(path, f"cannot fsync: {error.strerror or error}")


def disk_error(path: str, error: OSError, *, doing: str = "", offset: int | None = None) -> DiskError:
    """Return the DiskError (DiskFull where it is one) of a failed system call."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskError
    text = error.strerror or str(error)
    return kind(path, f"cannot {doing}: {text}" if doing else text, offset)
