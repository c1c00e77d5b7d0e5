"""System calls on files, made complete (no short writes) and portable; they raise OSError and know no `Disk`."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
#: a file with more parts than this is read whole
MAX_EXTENTS = 64

#: struct flock of 64-bit Linux: type, whence, start, length, pid (must be 0)
FLOCK = struct.Struct("@hhqqi4x")

_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

sync_data = getattr(os, "fdatasync", os.fsync)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_fully(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``; near a full disk the kernel takes it in pieces."""
    written = os.pwrite(fd, data, offset)
    if written == len(data):
        return
    rest = memoryview(data)
    while written < len(rest):
        count = os.pwrite(fd, rest[written:], offset + written)
        if count == 0:
            raise OSError(errno.EIO, f"the system wrote {written} of {len(rest)} bytes and takes no more")
        written += count


def reserve(fd: int, size: int) -> None:
    """Make the empty file ``fd`` ``size`` zero bytes long with its blocks allocated."""
    if size == 0:
        return
    room = os.fstatvfs(fd)
    if size > room.f_bavail * room.f_frsize and room.f_blocks:
        # To try would take the rest of the disk from others for a moment.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # macOS has no such call, and some network and FUSE file systems cannot reserve; writing zeros does so as well.
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
    fill_with_zeros(fd, size)


def fill_with_zeros(fd: int, size: int) -> None:
    """Write ``size`` zero bytes from the start of ``fd``."""
    zeros = memoryview(bytes(min(size, CHUNK_BYTES)))
    for offset in range(0, size, CHUNK_BYTES):
        write_fully(fd, zeros[: min(CHUNK_BYTES, size - offset)], offset)


def chunks(fd: int, size: int) -> Iterator[bytes]:
    """Yield the first ``size`` bytes of ``fd`` in pieces; ends early where the file does."""
    offset = 0
    while offset < size:
        data = os.pread(fd, min(CHUNK_BYTES, size - offset), offset)
        if not data:
            return
        yield data
        offset += len(data)


def data_end(fd: int, size: int) -> int:
    """Return an offset behind which the file ``fd`` has only holes; ``size`` where the system does not say."""
    end = 0
    try:
        for _ in range(MAX_EXTENTS):
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
    return size


def lock_first_byte(fd: int) -> None:
    """
    Take the exclusive lock of byte 0 that a Java broker takes too, or raise OSError.

    Open-file-description locks, where Linux has them, conflict with Java's record locks like the plain ones, and also
    with a second store in this process; they stay held across the fork of a daemon.
    """
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is not None:
        try:
            fcntl.fcntl(fd, command, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            return
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
