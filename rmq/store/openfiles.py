"""A bounded number of open files, however many queues and segments a store has."""

from __future__ import annotations

from collections import OrderedDict

from rmq.runtime.disk.files import Disk, File


class OpenFiles:
    """
    Open files by path; beyond ``limit`` the one used longest ago is closed.

    A file that was closed here loses nothing: a later sync of the same path covers earlier writes.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()

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


def zero_from(file: File, at: int, until: int, chunk: int = 1 << 20) -> None:
    """Write zeros over the parts of [at, until) that hold anything else."""
    while at < until:
        size = min(chunk, until - at)
        if file.read_at(at, size).count(0) != size:
            file.write_at(at, bytes(size))
        at += size
