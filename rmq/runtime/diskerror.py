"""What `Disk` and `File` raise."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator


class DiskError(Exception):
    """A file operation failed; names the path, the offset where there is one, and what was wrong."""

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
    A sync of a file or folder failed, whatever the reason; never tried again.

    The kernel may have dropped what it could not write, and would call a second sync a success.
    """


class DiskLocked(DiskError):
    """Somebody else holds the lock."""


@contextlib.contextmanager
def naming(path: str, *, doing: str = "", offset: int | None = None) -> Iterator[None]:
    """Turn an OSError into the DiskError that names ``path`` and what was being done."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error, doing=doing, offset=offset) from error


def sync_error(path: str, error: OSError) -> SyncFailed:
    """Return the error of a failed sync, never a DiskFull: a write without room can be tried again, a sync cannot."""
    return SyncFailed(path, f"cannot sync: {error.strerror or error}")


def disk_error(path: str, error: OSError, *, doing: str = "", offset: int | None = None) -> DiskError:
    """Return the DiskError (DiskFull where it is one) of a failed system call."""
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskError
    text = error.strerror or str(error)
    return kind(path, f"cannot {doing}: {text}" if doing else text, offset)
