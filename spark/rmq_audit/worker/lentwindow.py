"""
Windows that take over each other's memory.

New memory for every split costs more than reading a cached file into it: the system clears 16,000 pages, and has to
find each again while the kernel walks. A buffer that stays, in large pages, made a scan of small records 1.6 times as
fast (590 to 930 MB/s).
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.location import Location, ReadError

#: more than this is given back to the system
MAX_SPARE_BYTES = 256 << 20

#: the buffer of this process that no window uses now; state of the module, since tasks share nothing else
_spare: list[mmap.mmap] = []


class LentWindow(Window):
    """
    A window into a local file whose bytes are valid until :meth:`release`.

    ``data`` is an anonymous mapping, which does all that is asked of bytes here: slices, searches, buffers.
    """

    def reach(self, phy: int) -> bool:
        if phy > self.file.stop:
            return False
        held, missing = len(self.data), phy - self.end
        if missing > 0:
            buffer = self._grown(held + missing)
            more = self._read_into(buffer, held)
            self.read_bytes += more
            if more < missing:
                end = self.base + held + more - self.file.start
                raise ReadError(self.file.path, f"shrank while it was read: ends at byte {end}")
        return True

    def release(self) -> None:
        """Leave the buffer to the next window; the bytes are gone then."""
        buffer = self.data
        self.data = b""
        if isinstance(buffer, mmap.mmap) and len(buffer) <= MAX_SPARE_BYTES and not _spare:
            _spare.append(buffer)

    def _grown(self, size: int) -> mmap.mmap:
        """Make ``data`` a mapping of that size, which begins with the bytes held."""
        held = self.data
        buffer = held if isinstance(held, mmap.mmap) else _spare.pop() if _spare else None
        try:
            if buffer is not None and len(buffer) != size:
                buffer.resize(size)
        except BufferError:
            # a view is alive somewhere: it keeps the old bytes
            buffer = None
        if buffer is None:
            # private: a shared one has no memory behind what it grows by
            buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer.madvise(mmap.MADV_HUGEPAGE)
            buffer[: len(held)] = held[:]
        self.data = cast(bytes, buffer)
        return buffer

    def _read_into(self, buffer: mmap.mmap, begin: int) -> int:
        """Fill the buffer from ``begin`` on; return how many bytes there were."""
        at = begin
        offset = self.base - self.file.start
        try:
            descriptor = os.open(self.file.path, os.O_RDONLY)
            try:
                with memoryview(buffer) as view:
                    while at < len(view):
                        with view[at:] as rest:
                            piece = os.preadv(descriptor, [rest], offset + at)
                        if piece == 0:
                            break
                        at += piece
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ReadError(self.file.path, f"cannot be read at byte {offset + at}: {error.strerror}") from error
        return at - begin


@contextmanager
def split_window(file: LogFile, begin: int, end: int) -> Iterator[Window]:
    """Give the window of a split, for as long as that is worked on: lent where the system can and the file is local."""
    if sys.platform != "linux" or isinstance(file.path, Location):
        yield Window(file, begin, end)
        return
    window = LentWindow(file, begin, end)
    try:
        yield window
    finally:
        window.release()
