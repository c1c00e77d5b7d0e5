"""The files of a consume queue, or of its extension: appended in memory, written from time to time."""

from __future__ import annotations

from rmq.runtime.disk.files import File
from rmq.store import layout
from rmq.store.messages import StoreError
from rmq.store.openfiles import OpenFiles


class QueueFiles:
    """Files of one length in a folder, named by their first byte; bytes behind those in files are in a buffer."""

    __slots__ = ("_buffer", "_files", "_short", "_written", "file_bytes", "folder", "starts")

    #: the key that configures the length of the files
    size_key: str

    def __init__(self, files: OpenFiles, folder: str, file_bytes: int) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self._files = files
        #: start offsets of the files, without holes
        self.starts: list[int] = []
        #: bytes that are in files; the rest is in the buffer
        self._written = 0
        self._buffer = bytearray()
        #: starts of files that :meth:`check_files` has found to be too short; None before
        self._short: tuple[int, ...] | None = None

    def path(self, start: int) -> str:
        return layout.join(self.folder, layout.file_name(start))

    def write(self) -> None:
        """Write what is buffered; DiskError leaves in the buffer what could not be written."""
        while self._buffer:
            start = self._written - self._written % self.file_bytes
            piece = bytes(self._buffer[: start + self.file_bytes - self._written])
            self._file_for(start).write_at(self._written - start, piece)
            self._files.unsynced.add(self.path(start))
            self._written += len(piece)
            del self._buffer[: len(piece)]

    def _file_for(self, start: int) -> File:
        if self.starts and start <= self.starts[-1]:
            return self._files.get(self.path(start))
        file = self._files.create(self.path(start), self.file_bytes)
        self.starts.append(start)
        return file

    def check_files(self, starts: list[int]) -> None:
        """Raise a StoreError when names or lengths show another file length than the configured one."""
        self._short = ()
        for start in starts:
            size = self._files.get(self.path(start)).size
            if start % self.file_bytes or size > self.file_bytes:
                raise StoreError(
                    f"{self.path(start)} has {size} bytes, but {self.size_key}={self.file_bytes}: "
                    "a store can only be opened with the file size that it was written with"
                )
            if size < self.file_bytes:
                self._short = (*self._short, start)

    def _take_over(self, starts: list[int]) -> None:
        """
        Take over existing files.

        One that is too short is lengthened, for a power failure can do that, and its rest is made again from the log.
        """
        if self._short is None:
            self.check_files(starts)
        for start in self._short or ():
            self._files.get(self.path(start)).truncate(self.file_bytes)
        self._short = None
        self.starts = starts

    def drop_last(self) -> None:
        """Delete the last file."""
        self._drop(-1)

    def _drop(self, position: int) -> None:
        start = self.starts.pop(position)
        self._files.delete(self.path(start))
