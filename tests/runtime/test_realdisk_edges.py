"""The real disk: shared files, room, descriptors, and maps of files that grow."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

from rmq.runtime.disk import syscalls
from rmq.runtime.disk.error import naming
from rmq.runtime.disk.files import DiskError, DiskLocked, DiskUsage
from rmq.runtime.disk.realfile import MAP_MIN_BYTES
from tests.runtime.test_realdisk import RealDiskCase


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class UnreadableTests(RealDiskCase):
    def test_what_cannot_be_looked_at_is_not_missing(self) -> None:
        """A file behind an unreadable folder (here: behind a loop of links) is an error, not an absent file."""
        os.symlink("loop", f"{self.root}/loop")
        for look in (self.disk.exists, self.disk.is_dir):
            error = self.assertRaises(DiskError, look, f"{self.root}/loop/kvConfig.json")
            self.assertIn(f"{self.root}/loop/kvConfig.json: Too many levels", str(error))

    def test_below_a_file_is_nothing(self) -> None:
        """A path that leads through a file is missing."""
        self.disk.write_atomic(f"{self.root}/a", b"")
        self.assertFalse(self.disk.exists(f"{self.root}/a/b"))

    def test_a_locale_without_the_letters_of_a_path(self) -> None:
        """The error of a path that the locale's encoding cannot write has the path and says what to do."""
        with self.assertRaises(DiskError) as caught, naming("/büro"):
            "/büro".encode("ascii")
        self.assertEqual(str(caught.exception), "/büro: cannot be written in this locale (ascii): try LANG=C.UTF-8")


class UnshareTests(RealDiskCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = f"{self.root}/a"
        self.disk.write_atomic(self.path, b"old")
        self.synced: list[str] = []
        self.patch(syscalls, "sync_folder", self.synced.append)

    def test_a_dump_keeps_its_bytes(self) -> None:
        """A file that a dump shares by a hard link is written by the store without a change of the dump."""
        self.disk.link(self.path, f"{self.root}/dump")
        self.disk.write_atomic(f"{self.path}.tmp", b"left over from a crash")
        self.synced.clear()
        self.disk.unshare(self.path)
        self.assertEqual(self.synced, [self.root])
        file = self.disk.open(self.path)
        self.addCleanup(file.close)
        file.write_at(0, b"NEW")
        self.assertEqual(self.disk.read_whole(f"{self.root}/dump"), b"old")
        self.assertEqual(self.disk.read_whole(self.path), b"NEW")
        self.assertEqual(self.disk.list_dir(self.root), ["a", "dump"])

    def test_a_file_of_one_name_is_not_copied(self) -> None:
        """The gigabyte of a segment that nobody shares is not written again."""
        before = os.stat(self.path).st_ino
        self.disk.unshare(self.path)
        self.assertEqual(os.stat(self.path).st_ino, before)


class CopyTests(RealDiskCase):
    def test_a_file_of_several_pieces(self) -> None:
        """A backup or dump of a file that is read in pieces has each of them in its place."""
        data = b"a" * syscalls.CHUNK_BYTES + b"b" * syscalls.CHUNK_BYTES + b"end"
        self.disk.write_atomic(f"{self.root}/a", data)
        self.disk.copy(f"{self.root}/a", f"{self.root}/b")
        self.assertTrue(self.disk.read_whole(f"{self.root}/b") == data)


class RoomTests(RealDiskCase):
    def test_usage_counts_as_df_does(self) -> None:
        """What only root may use is neither free nor part of the total: the ratio is the one that df shows."""
        status = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=300, f_bavail=250)
        self.patch(os, "statvfs", lambda _path: status)
        usage = self.disk.usage(self.root)
        self.assertEqual(usage, DiskUsage(950 * 4096, 250 * 4096))
        self.assertEqual(usage.used_ratio, 0.74)


class DescriptorTests(RealDiskCase):
    def test_failed_calls_give_their_descriptors_back(self) -> None:
        """A full disk fails every attempt for hours: no attempt may keep a descriptor, or the broker cannot accept."""

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        path = f"{self.root}/a"
        self.disk.write_atomic(path, b"x")
        self.patch(syscalls, "write_fully", full)
        self.patch(syscalls, "reserve", full)
        self.patch(os, "ftruncate", full)
        before = descriptors()
        self.assertRaises(DiskError, self.disk.copy, path, f"{self.root}/b")
        self.assertRaises(DiskError, self.disk.create, f"{self.root}/b", 10)
        self.assertRaises(DiskError, self.disk.create_sparse, f"{self.root}/b", 10)
        self.assertRaises(DiskError, self.disk.write_atomic, path, b"y")
        self.assertRaises(DiskError, self.disk.lock, f"{self.root}/lock")
        self.assertEqual(descriptors(), before)

    def test_a_closed_file_keeps_no_room(self) -> None:
        """The map goes with its file: it would keep the room of a deleted segment, and a descriptor."""
        before = descriptors()
        file = self.disk.create(f"{self.root}/a", MAP_MIN_BYTES)
        file.read_at(0, 1)
        file.close()
        self.assertEqual(descriptors(), before)

    def test_a_refused_lock(self) -> None:
        """A broker that is started again and again while another one uses its store keeps no descriptor of the lock."""
        lock = self.disk.lock(f"{self.root}/lock")
        self.addCleanup(lock.release)
        before = descriptors()
        self.assertRaises(DiskLocked, self.disk.lock, f"{self.root}/lock")
        self.assertEqual(descriptors(), before)


class GrowingFileTests(RealDiskCase):
    def test_a_file_that_grew_is_mapped(self) -> None:
        """Pulls from a log file that was small when it was opened cost no system call either once it is large."""
        file = self.disk.create(f"{self.root}/a", 0)
        self.addCleanup(file.close)
        self.assertIsInstance(file.view_at(0, 0), bytes)
        file.write_at(0, b"x" * MAP_MIN_BYTES)
        self.assertIsInstance(file.view_at(0, 10), memoryview)
        file.truncate(100)
        self.assertIsInstance(file.view_at(0, 10), bytes)


class ZeroTests(RealDiskCase):
    def test_zeros_take_little_memory(self) -> None:
        """Where nothing can be reserved, a segment of a gigabyte is zeroed from a buffer of a mebibyte."""
        sizes: list[tuple[int, int, int]] = []
        self.patch(
            syscalls, "write_fully", lambda _fd, data, offset: sizes.append((len(data.obj), len(data), offset))
        )  # fmt: skip
        syscalls.fill_with_zeros(-1, 2 * syscalls.CHUNK_BYTES + 5)
        chunk = syscalls.CHUNK_BYTES
        self.assertEqual(sizes, [(chunk, chunk, 0), (chunk, chunk, chunk), (chunk, 5, 2 * chunk)])
        self.assertEqual(chunk, 1 << 20)

    def test_a_file_that_ends_early(self) -> None:
        """A copy of a file that is cut meanwhile ends where the file does, instead of never."""
        path = f"{self.root}/a"
        self.disk.write_atomic(path, b"x" * 10)
        fd = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        pieces = syscalls.chunks(fd, 20)
        self.assertEqual([next(pieces, None), next(pieces, None)], [b"x" * 10, None])
