"""
Reading of stores, by the driver and by the workers: folders, and whole ranges of files, one at a time, never a mapping.

A place may be a local path or one in an object store; nothing else of the audit asks which.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import BinaryIO, Protocol

import attrs

from rmq_audit.worker.location import Entry, Location, ReadError
from rmq_audit.worker.records import MAX_HEADER_BYTES

#: read behind a split at once, so that its last record is whole without a second read
SLACK_BYTES = 256 * 1024

#: of a FIFO or device in a store: to open one may wait for ever
_NO_FILE = "cannot be read: is no regular file"


@attrs.frozen(kw_only=True)
class StoreFile:
    """A file of a log, queue or index; ``start`` is the offset of its first byte there, which names it."""

    path: str
    start: int
    size_bytes: int
    modified_ns: int = 0


@attrs.frozen(kw_only=True)
class LogFile:
    """A segment of a log from the physical offset ``start`` on; no record at or across ``limit`` counts."""

    path: str
    start: int
    size_bytes: int
    limit: int

    @property
    def stop(self) -> int:
        """The physical offset after the last byte of the file."""
        return self.start + self.size_bytes


class Lister(Protocol):
    """Lists the folders below one place; made again for each listing."""

    def entries(self, folder: str) -> Sequence[Entry] | None:
        """Return what lies directly in a folder, by name; None when there is no such folder; ReadError."""


def lister(root: str) -> Lister:
    """Return what lists the folders below ``root``; InputError when its kind of place cannot be read here."""
    if isinstance(root, Location):
        from rmq_audit.worker import objectstore

        objectstore.check_access(root.access)
        return objectstore.Listing(root)
    return _LocalFolders()


class _LocalFolders:
    def entries(self, folder: str) -> Sequence[Entry] | None:
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ReadError(folder, f"cannot be listed: {error.strerror}") from error
        return [_local_entry(name, os.path.join(folder, name)) for name in names]


def _local_entry(name: str, path: str) -> Entry:
    shown = os.fsencode(name).decode("utf-8", "backslashreplace")
    if shown != name:
        # no topic and no file of RocketMQ has such a name, and text with it could not be printed or written
        return Entry(name=shown, path=os.path.join(os.path.dirname(path), shown))
    try:
        status = os.stat(path)
    except OSError as error:
        return Entry(name=name, path=path, error=f"cannot be read: {error.strerror}")
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return Entry(name=name, path=path, error=_NO_FILE)
    return Entry(
        name=name,
        path=path,
        is_folder=stat.S_ISDIR(status.st_mode),
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
    )


def read_whole(path: str) -> bytes:
    """Return all bytes of a small file or object; FileNotFoundError when there is none, else ReadError."""
    with open_binary(path) as file:
        try:
            return bytes(file.read())
        except OSError as error:
            raise ReadError(path, f"cannot be read: {error.strerror or error}") from error


def read_stored(path: str) -> bytes:
    """Return all bytes of a small file of a store, as :func:`read_whole` does; ReadError where it is no regular one."""
    if not isinstance(path, Location) and os.path.exists(path) and not os.path.isfile(path):
        raise ReadError(path, _NO_FILE)
    return read_whole(path)


def open_binary(path: str) -> BinaryIO:
    """Return a file or object to read and seek in; FileNotFoundError when there is none, else ReadError."""
    if isinstance(path, Location):
        from rmq_audit.worker import objectstore

        opened: BinaryIO = objectstore.open_input(path)
        return opened
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ReadError(path, f"cannot be read: {error.strerror}") from error


def read_at(path: str, offset: int, size: int) -> bytes:
    """
    Return up to ``size`` bytes from ``offset``; fewer only at the end of the file.

    Reads copy on purpose: a mapping of a file that shrinks meanwhile kills the whole worker by SIGBUS.
    """
    if isinstance(path, Location):
        from rmq_audit.worker import objectstore

        return objectstore.read(path, offset, size)
    pieces = []
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while size > 0:
                piece = os.pread(descriptor, size, offset)
                if not piece:
                    break
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ReadError(path, f"cannot be read at byte {offset}: {error.strerror}") from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def unreadable(path: str, error: Exception) -> str:
    """Return in one line, with the path, why something cannot be read."""
    if isinstance(error, ReadError):
        return str(error)
    return f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"


def identity(path: str) -> bytes | None:
    """
    Return bytes that change whenever the file or object does, as far as its length and times tell; None when nothing
    tells.
    """
    try:
        if isinstance(path, Location):
            from rmq_audit.worker import objectstore

            return objectstore.identity(path)
        status = os.stat(path)
    except (OSError, ReadError):
        return None
    return repr((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)).encode()


class Window:
    """
    The bytes of a segment from ``begin`` on, grown when a record turns out to reach further.

    All offsets are physical; ``data[0]`` is the byte at ``base``.
    """

    def __init__(self, file: LogFile, begin: int, end: int) -> None:
        self.file = file
        self.base = begin
        self.read_bytes = 0
        self.data = b""
        self.reach(min(end + SLACK_BYTES, file.stop))

    @property
    def end(self) -> int:
        """The physical offset after the last byte held."""
        return self.base + len(self.data)

    def reach(self, phy: int) -> bool:
        """Make sure that all bytes before ``phy`` are held; False when the file ends earlier."""
        if phy > self.file.stop:
            return False
        missing = phy - self.end
        if missing > 0:
            more = read_at(self.file.path, self.end - self.file.start, missing)
            self.read_bytes += len(more)
            self.data = self.data + more if self.data else more
            if len(more) < missing:
                raise ReadError(self.file.path, f"shrank while it was read: ends at byte {self.end - self.file.start}")
        return True

    def near(self, phy: int) -> None:
        """Hold what a record header at ``phy`` needs, as far as the file goes."""
        self.reach(min(phy + MAX_HEADER_BYTES, self.file.stop))
