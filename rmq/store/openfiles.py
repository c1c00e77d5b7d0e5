"""A bounded number of open files, however many queues and segments a store has."""

from __future__ import annotations

from collections import OrderedDict

from rmq.runtime.disk.files import Disk, File

CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
_ZEROS = bytes(CHUNK_BYTES)


class OpenFiles:
    """
    Open files by path; beyond ``limit`` the one used longest ago is closed.

    A file that was closed here loses nothing: a later sync of the same path covers earlier writes.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()
        #: files with bytes that are not synced, as those say who write them
        self.unsynced: set[str] = set()

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str) -> File:
        """Return the file, opened if need be; DiskError when there is none. Do not keep it over another call."""
        file = self._files.get(path)
        if file is None:
            return self._keep(path, self._disk.open(path))
        self._files.move_to_end(path)
        return file

    def create(self, path: str, size: int) -> File:
        """Make a new sparse file; DiskError when it exists already."""
        return self._keep(path, self._disk.create_sparse(path, size))

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        self._disk.sync_dir(path)

    def forget(self, path: str) -> None:
        """Close a file that is about to go; harmless when it is not open."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def delete(self, path: str) -> None:
        """Close and delete a file; harmless when there is none."""
        self.forget(path)
        self.unsynced.discard(path)
        self._disk.delete(path)

    def close(self) -> None:
        """Close all."""
        while self._files:
            self._files.popitem()[1].close()

    def _keep(self, path: str, file: File) -> File:
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()
        return file


def zero_from(file: File, at: int, until: int) -> int:
    """Write zeros over the pages of [at, until) that hold anything else; return how many bytes those were."""
    changed = 0
    until = min(until, file.data_end())
    while at < until:
        size = min(CHUNK_BYTES - at % CHUNK_BYTES, until - at)
        data = file.read_at(at, size)
        if data != (_ZEROS if size == CHUNK_BYTES else _ZEROS[:size]):
            for page in range(0, size, _PAGE_BYTES):
                length = min(_PAGE_BYTES, size - page)
                zeros = data.count(0, page, page + length)
                if zeros != length:
                    file.write_at(at + page, _ZEROS[:length])
                    changed += length - zeros
        at += size
    return changed
