"""Reading of segment files by the workers: whole ranges, one at a time, never a mapping."""

from __future__ import annotations

import os

from rmq_audit.format import MAX_HEADER_BYTES

#: read behind a split at once, so that its last record is whole without a second read
SLACK_BYTES = 256 * 1024


class ReadError(Exception):
    """A file could not be read; ``path`` and the text are for the operator."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


def read_at(path: str, offset: int, size: int) -> bytes:
    """
    Return up to ``size`` bytes from ``offset``; fewer only at the end of the file.

    Reads copy on purpose: a mapping of a file that shrinks meanwhile kills the whole worker by SIGBUS.
    """
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


class Window:
    """
    The bytes of one segment from ``begin`` on, grown when a record turns out to reach further.

    All offsets are physical; ``data[0]`` is the byte at ``base``.
    """

    def __init__(self, path: str, segment: int, file_bytes: int, begin: int, end: int) -> None:
        self._path = path
        self._segment = segment
        self._file_end = segment + file_bytes
        self.base = begin
        self.read_bytes = 0
        self.data = b""
        self.reach(min(end + SLACK_BYTES, self._file_end))

    @property
    def end(self) -> int:
        """The physical offset behind the last byte held."""
        return self.base + len(self.data)

    def reach(self, phy: int) -> bool:
        """Make sure that all bytes before ``phy`` are held; False when the file ends earlier."""
        if phy > self._file_end:
            return False
        missing = phy - self.end
        if missing > 0:
            more = read_at(self._path, self.end - self._segment, missing)
            self.read_bytes += len(more)
            self.data = self.data + more if self.data else more
            if len(more) < missing:
                raise ReadError(self._path, f"shrank while it was read: ends at byte {self.end - self._segment}")
        return True

    def near(self, phy: int) -> None:
        """Hold what a record header at ``phy`` needs, as far as the file goes."""
        self.reach(min(phy + MAX_HEADER_BYTES, self._file_end))
