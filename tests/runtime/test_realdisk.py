"""The real disk: the contract of every disk, and what only files of the operating system can show."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk import realfile, syscalls
from rmq.runtime.disk.files import DiskError, DiskFull, DiskLocked, DiskUsage, RealDisk, SyncFailed
from rmq.runtime.disk.filesystem import KINDS, MOUNTS_FILE, RealFileSystem, find_syncfs, kind_of, open_file_system
from rmq.runtime.disk.flusher import Flusher, FlusherFileSyncs, Job
from rmq.runtime.disk.realfile import COPIED_BYTES, MAP_MIN_BYTES, RealFile
from rmq.runtime.platform import WITHOUT_MAPS
from tests.needs import missing, need_compiled
from tests.runtime.disk_contract import DiskContract, raise_failure

T = TypeVar("T")

HOP_TIMEOUT_S = 30


class HopReactor:
    """The one thing that the flusher wants of a reactor: calls from its thread, run when the test says so."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = SimpleQueue()

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        self._calls.put((call, arguments))

    def run_one(self, timeout_s: float = HOP_TIMEOUT_S) -> None:
        """Wait for the next call from the thread and run it."""
        call, arguments = self._calls.get(timeout=timeout_s)
        call(*arguments)

    def settle(self, deferred: Deferred[T]) -> T:
        results: list[object] = []
        deferred.addBoth(results.append)
        while not results:
            self.run_one()
        return cast(T, raise_failure(results[0]))


class RealDiskCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = HopReactor()
        self.disk = RealDisk(self.reactor)
        self.addCleanup(self.disk.close)
        self.root = tempfile.mkdtemp(prefix="rmq-disk-")
        self.addCleanup(shutil.rmtree, self.root)

    def settle(self, deferred: Deferred[T]) -> T:
        return self.reactor.settle(deferred)


class RealDiskContractTests(RealDiskCase, DiskContract):
    disk: RealDisk


class ReserveTests(RealDiskCase):
    def test_one_reservation(self) -> None:
        """A file that a thread fills with zeros is not used before that has ended: they would be the last word."""
        began, may_end, filled = threading.Event(), threading.Event(), []

        def fill(fd: int, size: int) -> None:
            filled.append(size)
            began.set()
            may_end.wait(HOP_TIMEOUT_S)
            syscalls.fill_with_zeros(fd, size)

        self.patch(syscalls, "reserve", fill)
        file = self.disk.create_sparse(f"{self.root}/a", 0)
        soon = file.reserve_soon(10_000)
        began.wait(HOP_TIMEOUT_S)
        waiting = threading.Thread(target=file.reserve, args=(10_000,))
        waiting.start()
        waiting.join(0.05)
        self.assertTrue(waiting.is_alive())
        may_end.set()
        waiting.join(HOP_TIMEOUT_S)
        self.settle(soon)
        self.assertEqual((filled, file.size), ([10_000], 10_000))
        file.close()

    def test_a_path_made_again(self) -> None:
        """Two files of one path, one deleted, both get their blocks, also when both wait for the thread."""
        began, may_go_on = threading.Event(), threading.Event()
        reserve = syscalls.reserve

        def held_up(fd: int, size: int) -> None:
            began.set()
            may_go_on.wait(HOP_TIMEOUT_S)
            reserve(fd, size)

        self.patch(syscalls, "reserve", held_up)
        files = [self.disk.create_sparse(f"{self.root}/first", 0)]
        waiting = [files[0].reserve_soon(5)]
        began.wait(HOP_TIMEOUT_S)
        for _ in range(2):
            files.append(self.disk.create_sparse(f"{self.root}/a", 0))
            waiting.append(files[-1].reserve_soon(10_000))
            self.disk.delete(f"{self.root}/a")
        may_go_on.set()
        for done in waiting:
            self.settle(done)
        self.assertEqual([file.read_at(0, file.size) for file in files], [bytes(5), bytes(10_000), bytes(10_000)])
        for file in files:
            file.close()

    def test_no_room(self) -> None:
        """Without room both ways fail with the reason, and a later one tries again."""
        file = self.disk.create_sparse(f"{self.root}/a", 0)
        for call in (lambda: self.settle(file.reserve_soon(1 << 60)), lambda: file.reserve(1 << 60)):
            self.assertIn(f"{self.root}/a: ", str(self.assertRaises(DiskFull, call)))
        file.reserve(10)
        self.assertEqual(file.size, 10)
        file.close()


class RealFileSystemTests(RealDiskCase):
    def test_a_failed_sync(self) -> None:
        """An error of the system call is a SyncFailed with the folder's path; its descriptor is closed at the end."""
        flusher = Flusher(self.reactor)
        self.addCleanup(flusher.close)
        system = RealFileSystem(self.root, flusher, lambda fd: -1)
        error = self.assertRaises(SyncFailed, self.settle, system.sync())
        self.assertIn(self.root, str(error))
        before = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
        system.close()
        if before:
            self.assertEqual(len(os.listdir("/dev/fd")), before - 1)

    def test_which_file_systems(self) -> None:
        """Errors of a stacked file system stay hidden, so each file is synced there, and where none is known."""
        device = os.stat(self.root).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        line = "36 35 {} / /mnt rw,noatime master:1 - {} /dev/root rw\n"
        self.assertEqual(kind_of(self.root, line.format("9:99", "xfs") + line.format(number, "ext4")), "ext4")
        self.assertIsNone(kind_of(self.root, line.format("9:99", "ext4") + "garbage\n"))
        self.assertNotIn("overlay", KINDS)

    def test_a_disk_has_what_there_is(self) -> None:
        """A real disk offers the file system of a folder wherever it can be synced as a whole."""
        flusher = Flusher(self.reactor)
        self.addCleanup(flusher.close)
        found = [open_file_system(self.root, flusher), self.disk.file_system(self.root)]
        self.assertEqual(found[0] is None, found[1] is None)
        for system in found:
            if system is not None:
                system.close()

    def test_kernels_that_hide_errors(self) -> None:
        """Before Linux 5.8 syncfs reported nothing."""
        for release, known in (("5.7.19-generic", False), ("4.19", False), ("strange", False), ("6.1.0-9-amd64", True)):
            self.patch(platform, "release", lambda release=release: release)
            self.assertEqual(find_syncfs() is not None, known and sys.platform == "linux", release)


class RealFileTests(RealDiskCase):
    def open_at(self, fd: int) -> RealFile:
        """A file whose descriptor is one that the test can spoil."""
        flusher = Flusher(self.reactor)
        self.addCleanup(flusher.close)
        return RealFile(f"{self.root}/spoiled", fd, FlusherFileSyncs(flusher), flusher, True)

    def spoiled(self) -> RealFile:
        """An open file whose writes and syncs fail with EBADF: it was opened for reading."""
        path = f"{self.root}/spoiled"
        with open(path, "wb") as file:
            file.write(b"x" * 10)
        return self.open_at(os.open(path, os.O_RDONLY))

    def test_a_read_past_the_end_says_why(self) -> None:
        """The error of a file that is too short tells its length; a closed one is not taken for a short one."""
        file = self.spoiled()
        self.assertIn("cannot read 11 bytes, the file has 10", str(self.assertRaises(DiskError, file.read_at, 0, 11)))
        file.close()
        self.assertIn("the file is closed", str(self.assertRaises(DiskError, file.read_at, 0, 1)))

    def pipe_file(self) -> RealFile:
        """An open "file" that no system can sync: a pipe."""
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        return self.open_at(write_end)

    def test_blocks_are_reserved(self) -> None:
        """A created file owns its blocks at once, a sparse one does not."""
        reserved = self.disk.create(f"{self.root}/a", 1 << 20)
        sparse = self.disk.create_sparse(f"{self.root}/b", 1 << 20)
        self.assertGreaterEqual(os.stat(reserved.path).st_blocks * 512, 1 << 20)
        self.assertLess(os.stat(sparse.path).st_blocks * 512, 1 << 20)

    def test_what_does_not_fit_is_not_tried(self) -> None:
        """A file that is larger than the room does not take the room from others, not even for a moment."""
        tried: list[object] = []
        self.patch(os, "posix_fallocate", lambda *arguments: tried.append(arguments))
        self.assertRaises(DiskFull, self.disk.create, f"{self.root}/a", 2 * self.disk.usage(self.root).total_bytes)
        self.assertEqual(tried, [])
        self.disk.create(f"{self.root}/b", 1 << 20).close()
        self.assertEqual(len(tried), 1)

    def test_zeros_where_nothing_can_be_reserved(self) -> None:
        """A file system that cannot reserve gets the zeros written out, and so the same room."""
        fd = os.open(f"{self.root}/a", os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, fd)
        syscalls.fill_with_zeros(fd, 3 * syscalls.CHUNK_BYTES + 7)
        status = os.fstat(fd)
        self.assertEqual(status.st_size, 3 * syscalls.CHUNK_BYTES + 7)
        self.assertGreaterEqual(status.st_blocks * 512, status.st_size)

    def test_unsupported_reservation_falls_back(self) -> None:
        """Where posix_fallocate is not supported the file is made of written zeros; other errors are errors."""
        path = f"{self.root}/a"
        answers = [errno.EOPNOTSUPP, errno.EIO]

        def refuse(fd: int, offset: int, size: int) -> None:
            raise OSError(answers.pop(0), "refused")

        self.patch(os, "posix_fallocate", refuse)
        self.assertEqual(self.disk.create(path, 5000).read_at(0, 5000), bytes(5000))
        self.assertRaises(DiskError, self.disk.create, f"{self.root}/b", 5000)
        self.assertFalse(os.path.exists(f"{self.root}/b"))

    def test_system_without_reservation(self) -> None:
        """Where the system has no posix_fallocate (macOS), the file is made of written zeros."""
        self.addCleanup(setattr, os, "posix_fallocate", os.posix_fallocate)
        del os.posix_fallocate
        file = self.disk.create(f"{self.root}/a", 1 << 20)
        self.assertGreaterEqual(os.stat(file.path).st_blocks * 512, 1 << 20)

    def test_short_writes_are_completed(self) -> None:
        """The kernel may take a write in pieces; all of it arrives."""
        real = os.pwrite
        self.patch(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data)[:3], offset))
        file = self.disk.create(f"{self.root}/a", 20)
        file.write_at(2, b"abcdefghijk")
        self.assertEqual(file.read_at(0, 20), b"\0\0abcdefghijk" + bytes(7))

    def test_short_reads_are_completed(self) -> None:
        """The kernel may give a read in pieces; all of it comes."""
        file = self.disk.create(f"{self.root}/a", 0)
        self.addCleanup(file.close)
        file.write_at(0, b"abcdefghijk")
        real = os.pread
        self.patch(os, "pread", lambda fd, size, offset: real(fd, min(size, 3), offset))
        self.assertEqual(file.read_at(1, 9), b"bcdefghij")

    def test_short_write_into_a_full_disk(self) -> None:
        """No room in the middle of a write is DiskFull with path and offset, and the size stays true."""
        real = os.pwrite
        file = self.disk.create(f"{self.root}/a", 4)

        def fill(fd: int, data: Any, offset: int) -> int:
            if offset >= 8:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, bytes(data)[:4], offset)

        self.patch(os, "pwrite", fill)
        error = self.assertRaises(DiskFull, file.write_at, 0, b"x" * 20)
        self.assertEqual((error.path, error.offset), (file.path, 0))
        self.assertEqual((file.size, file.read_at(0, 8)), (8, b"x" * 8))

    def test_failed_write_names_the_file(self) -> None:
        """A write that the system refuses is a DiskError with path and offset."""
        error = self.assertRaises(DiskError, self.spoiled().write_at, 3, b"x")
        self.assertEqual((error.path, error.offset), (f"{self.root}/spoiled", 3))
        self.assertEqual(str(error), f"{self.root}/spoiled at offset 3: Bad file descriptor")

    def test_failed_sync_is_reported_and_final(self) -> None:
        """A sync that fails fails its Deferred, and from then on nothing can be written or synced."""
        file = self.pipe_file()
        error = self.assertRaises(DiskError, self.settle, file.sync())
        self.assertEqual(error.path, f"{self.root}/spoiled")
        self.assertIn("earlier fsync failed", str(self.assertRaises(DiskError, file.write_at, 0, b"x")))
        self.assertIn("earlier fsync failed", str(self.assertRaises(DiskError, file.sync_now)))
        self.assertIn("earlier fsync failed", str(self.failureResultOf(file.sync(), DiskError).value))
        self.assertIn("earlier fsync failed", str(self.assertRaises(DiskError, file.truncate, 0)))

    def test_failed_sync_is_no_full_disk(self) -> None:
        """Of a sync that fails for want of room nobody may think that it can be tried again."""
        file = self.disk.create_sparse(f"{self.root}/a", 10)

        def fail(path_or_fd: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(syscalls, "sync_data", fail)
        self.patch(syscalls, "sync_folder", fail)
        for error in (
            self.assertRaises(DiskError, self.settle, file.sync()),
            self.assertRaises(DiskError, self.disk.create_sparse(f"{self.root}/b", 10).sync_now),
            self.assertRaises(DiskError, self.settle, self.disk.sync_dir_soon(self.root)),
            self.assertRaises(DiskError, self.disk.sync_dir, self.root),
        ):
            self.assertNotIsInstance(error, DiskFull)
            self.assertIn("cannot fsync: No space left on device", str(error))
            self.assertTrue(error.path.startswith(self.root))

    def test_failed_sync_fails_all_that_shared_it(self) -> None:
        """Every Deferred that waited for the failed sync fails."""
        file = self.pipe_file()
        waiting = [file.sync() for _ in range(5)]
        for done in waiting:
            self.assertRaises(DiskError, self.settle, done)

    def test_failed_blocking_sync_is_final(self) -> None:
        """The same holds for the blocking form."""
        file = self.pipe_file()
        self.assertRaises(DiskError, file.sync_now)
        error = self.assertRaises(DiskError, file.sync_now)
        self.assertIn("earlier fsync failed", str(error))
        self.assertEqual(error.path, f"{self.root}/spoiled")

    def test_descriptor_outlives_close_while_threads_use_it(self) -> None:
        """close() during syncs and loads does not pull the descriptor away; the last one gives it back."""
        file = self.disk.create(f"{self.root}/a", 10)
        fd = file._fd
        waiting = [file.sync(), file.preload(0, 10), file.sync()]
        file.close()
        os.fstat(fd)
        for done in waiting:
            self.settle(done)
        self.assertRaises(OSError, os.fstat, fd)

    def test_close_gives_the_descriptor_back(self) -> None:
        """Without a sync or a load on its way the descriptor is free at once."""
        file = self.disk.create(f"{self.root}/a", MAP_MIN_BYTES)
        file.read_at(0, 1)
        fd = file._fd
        file.close()
        self.assertRaises(OSError, os.fstat, fd)

    def test_only_what_exists_is_mapped(self) -> None:
        """A file with holes is read without a map, where a full file system would kill the process."""
        file = self.disk.create_sparse(f"{self.root}/a", MAP_MIN_BYTES * 4)
        self.assertEqual(file.read_at(5, 3), bytes(3))
        self.assertIsNone(file._map)
        full = self.disk.create(f"{self.root}/b", MAP_MIN_BYTES * 4)
        full.read_at(5, 3)
        self.assertIsNotNone(full._map)

    def test_what_is_not_in_memory(self) -> None:
        """A read that would wait gives what is there, or nothing; a file system that cannot say is asked to wait."""
        file = self.disk.create(f"{self.root}/a", 100)
        answers: list[int | OSError] = [3, BlockingIOError(), OSError(errno.EOPNOTSUPP, "Operation not supported")]

        def preadv(_fd: int, buffers: list[bytearray], _offset: int, _flags: int) -> int:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            buffers[0][:answer] = b"x" * answer
            return answer

        self.patch(os, "preadv", preadv)
        read = [file.read_loaded(0, 10) for _ in range(3)]
        self.assertEqual([data and bytes(data) for data in read], [b"xxx", None, bytes(10)])

    def test_many_bytes(self) -> None:
        """What is more than a copy is worth is a view, if all of it is in memory."""
        file = self.disk.create(f"{self.root}/a", 4 * COPIED_BYTES)
        for answer in (False, True):
            self.patch(realfile, "_compiled", SimpleNamespace(in_memory=lambda _view, answer=answer: answer))
            data = file.read_loaded(1, COPIED_BYTES + 1)
            self.assertEqual(data and len(data), COPIED_BYTES + 1 if answer else None)
        assert isinstance(data, memoryview)
        self.assertIs(data.obj, file._map)
        data.release()

    def test_a_look_is_short(self) -> None:
        """Records of one pull may lie in a whole GiB: only the part that a load reads is looked at."""
        file = self.disk.create(f"{self.root}/a", 3 * realfile.LOOK_BYTES)
        seen: list[int] = []

        def looked(view: memoryview) -> bool:
            seen.append(len(view))
            return True

        self.patch(realfile, "_compiled", SimpleNamespace(in_memory=looked))
        self.assertTrue(file.in_memory(5, 2 * realfile.LOOK_BYTES))
        self.assertEqual(seen, [realfile.LOOK_BYTES])

    def test_no_advice(self) -> None:
        """Where the system or the file system takes no advice, a load reads all the same."""
        file = self.disk.create(f"{self.root}/a", 100)

        def refused(*_: object) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

        self.patch(os, "posix_fadvise", refused)
        self.settle(file.preload(0, 100))

    def test_mapped_pages(self) -> None:
        """A mapped file whose pages the kernel has dropped is not in memory, until it is loaded."""
        need_compiled("rmq.runtime.disk._syncs")
        size = 3 * realfile.PROBE_BYTES
        file = self.disk.create(f"{self.root}/a", size)
        file.write_at(0, b"x" * size)
        self.assertTrue(file.in_memory(0, size))
        file.sync_now()
        os.posix_fadvise(file._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if kind_of(self.root, Path(MOUNTS_FILE).read_text()) != "tmpfs":  # its only copy is in memory
            self.assertFalse(file.in_memory(0, size))
            self.assertIsNone(file.read_loaded(0, size))
        self.settle(file.preload(0, size))
        self.assertTrue(file.in_memory(0, size))
        self.assertTrue(file.in_memory(5, 4096))

    def test_a_load_that_fails(self) -> None:
        """A disk that cannot read says so, with path and offset, before a map is read, which would kill the process."""
        file = self.disk.create(f"{self.root}/a", 100)

        def broken(*_: object) -> int:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(os, "preadv", broken)
        error = self.assertRaises(DiskError, self.settle, file.preload(10, 20))
        self.assertEqual((error.path, error.offset, error.text), (file.path, 10, "Input/output error"))

    def test_views_are_no_copies(self) -> None:
        """Bytes of a large file are lent where they lie; the map of a file that has grown goes with its last view."""
        file = self.disk.create(f"{self.root}/a", MAP_MIN_BYTES)
        view = file.view_at(10, 3)
        assert isinstance(view, memoryview)
        first = file._map
        self.assertIs(view.obj, first)
        file.write_at(MAP_MIN_BYTES, b"grown")
        self.assertEqual(file._lent, [first])
        view.release()
        file.write_at(MAP_MIN_BYTES + 5, b"again")
        self.assertEqual(file._lent, [])

    def test_a_file_is_not_cut_under_a_view(self) -> None:
        """Bytes that may still be sent must not vanish, which would kill the process; the error names the file."""
        file = self.disk.create(f"{self.root}/a", MAP_MIN_BYTES)
        view = file.view_at(10, 3)
        error = self.assertRaises(DiskError, file.truncate, 5)
        self.assertEqual((error.path, error.offset), (file.path, 5))
        self.assertEqual((file.size, bytes(view)), (MAP_MIN_BYTES, bytes(3)))
        del view
        file.truncate(5)
        self.assertEqual((file.size, file.read_at(0, 5)), (5, bytes(5)))

    def test_file_cut_by_somebody_else(self) -> None:
        """A file that another program cut short before it was read is an error, not a crash."""
        self.disk.create(f"{self.root}/a", MAP_MIN_BYTES * 4).close()
        file = self.disk.open(f"{self.root}/a")
        os.truncate(file.path, 100)
        error = self.assertRaises(DiskError, file.read_at, 90, 20)
        self.assertIn("only 10 of 20 bytes", str(error))

    def test_map_follows_other_writers(self) -> None:
        """The map shows what another descriptor writes."""
        file = self.disk.create(f"{self.root}/a", MAP_MIN_BYTES * 4)
        self.assertEqual(file.read_at(1000, 3), bytes(3))
        with open(file.path, "r+b") as other:
            other.seek(1000)
            other.write(b"abc")
        self.assertEqual(file.read_at(1000, 3), b"abc")


class RealDiskTests(RealDiskCase):
    def test_sync_after_close_of_the_disk(self) -> None:
        """A closed disk refuses to sync instead of leaving the caller waiting."""
        file = self.disk.create(f"{self.root}/a", 10)
        self.disk.close()
        self.disk.close()
        self.failureResultOf(file.sync(), DiskError)
        self.failureResultOf(self.disk.sync_dir_soon(self.root), DiskError)

    def test_close_finishes_what_is_queued(self) -> None:
        """Syncs that were asked for before the disk closed have run when close returns."""
        file = self.disk.create(f"{self.root}/a", 10)
        done = file.sync()
        self.disk.close()
        self.assertIsNone(self.settle(done))

    def test_failed_atomic_write_leaves_the_old_content(self) -> None:
        """No room for the new content: DiskFull, and the old one is still there."""
        path = f"{self.root}/a"
        self.disk.write_atomic(path, b"old")

        def full(fd: int, data: Any, offset: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        self.patch(os, "pwrite", full)
        self.assertRaises(DiskFull, self.disk.write_atomic, path, b"new", keep_backup=True)
        self.assertEqual(self.disk.read_whole(path), b"old")

    def test_backup_without_hard_links(self) -> None:
        """A file system that has no hard links gets a copy as backup."""

        def refuse(src: str, dst: str) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        self.patch(os, "link", refuse)
        for data in (b"1", b"2"):
            self.disk.write_atomic(f"{self.root}/a", data, keep_backup=True)
        self.assertEqual(self.disk.read_whole(f"{self.root}/a.bak"), b"1")

    def test_lock_against_another_process(self) -> None:
        """The record lock that Java brokers take collides with ours, both ways."""
        path = f"{self.root}/lock"
        attempt = f"import fcntl; fcntl.lockf(open({path!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        lock = self.disk.lock(path)
        held = subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False)
        self.assertNotEqual(held.returncode, 0)
        lock.release()
        free = subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False)
        self.assertEqual(free.returncode, 0)
        holder = subprocess.Popen(
            [sys.executable, "-c", f"{attempt}\nprint('held', flush=True)\ninput()".replace("open(", "f := open(")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(holder.communicate)
        assert holder.stdout is not None
        self.assertEqual(holder.stdout.readline(), b"held\n")
        self.assertRaises(DiskLocked, self.disk.lock, path)

    def test_lock_of_a_second_disk_in_this_process(self) -> None:
        """Two brokers in one process cannot share a store either."""
        if not hasattr(fcntl, "F_OFD_SETLK"):
            missing("F_OFD_SETLK of fcntl: plain record locks belong to the process")
        lock = self.disk.lock(f"{self.root}/lock")
        self.assertRaises(DiskLocked, RealDisk(self.reactor).lock, f"{self.root}/lock")
        lock.release()

    def test_lock_of_a_tool_in_this_process(self) -> None:
        """
        A store is refused while a tool in this very process holds the lock that Java takes, too. The plain lock of a
        process does not collide with itself: a broker that fell back to it would share the store.
        """
        if not hasattr(fcntl, "F_OFD_SETLK"):
            missing("F_OFD_SETLK of fcntl: plain record locks belong to the process")
        with open(f"{self.root}/lock", "wb") as tool:
            fcntl.lockf(tool, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            self.assertRaises(DiskLocked, self.disk.lock, f"{self.root}/lock")

    def test_lock_where_only_processes_have_locks(self) -> None:
        """Without F_OFD_SETLK byte 0 is locked as Java locks it, and only that one: others may lock what they like."""
        if not hasattr(fcntl, "F_OFD_SETLK"):
            missing("F_OFD_SETLK of fcntl: plain record locks belong to the process")
        command = fcntl.F_OFD_SETLK
        self.patch(syscalls, "fcntl", SimpleNamespace(lockf=fcntl.lockf, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
        lock = self.disk.lock(f"{self.root}/lock")
        with open(f"{self.root}/lock", "r+b") as other:
            byte_1, byte_0 = (syscalls.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0) for byte in (1, 0))
            fcntl.fcntl(other, command, byte_1)
            self.assertRaises(OSError, fcntl.fcntl, other, command, byte_0)
            lock.release()
            fcntl.fcntl(other, command, byte_0)


class SyncCallTests(RealDiskCase):
    """
    What reaches the system, and in which order: a power failure tells a sync that was left out from one that was not,
    and a broker then starts with an empty topics.json, without the offsets of its consumers, or without a log file.
    """

    def record(self) -> list[str]:
        """Return a list that fills with the syncs and renames of this test."""
        calls: list[str] = []

        def name(path: str) -> str:
            return os.path.relpath(path, self.root)

        def recording(call: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: int) -> None:
                calls.append(f"{call.__name__} {name(os.readlink(f'/proc/self/fd/{fd}'))}")
                call(fd)

            return sync

        def replacing(src: str, dst: str) -> None:
            calls.append(f"rename {name(src)} {name(dst)}")
            replace(src, dst)

        replace = os.replace
        self.patch(os, "fsync", recording(os.fsync))
        self.patch(syscalls, "sync_data", recording(os.fdatasync))
        self.patch(os, "replace", replacing)
        return calls

    def test_every_call(self) -> None:
        """Bytes are synced before the name that makes them count, and names after that."""
        disk, root = self.disk, self.root
        os.mkdir(f"{root}/d")
        shared = disk.create(f"{root}/shared", 10)
        disk.link(shared.path, f"{root}/d/shared")
        file = disk.create(f"{root}/a", 10)
        replaced = ["fsync s.tmp", "rename s.tmp s", "fsync ."]
        cases: tuple[tuple[str, Callable[[], object], list[str]], ...] = (
            ("write_atomic", lambda: disk.write_atomic(f"{root}/s", b"1"), replaced),
            (
                "write_atomic with backup",
                lambda: disk.write_atomic(f"{root}/s", b"2", keep_backup=True),
                ["fsync s.tmp", "rename s.bak.tmp s.bak", *replaced[1:]],
            ),
            ("sync_dir", lambda: disk.sync_dir(f"{root}/d"), ["fsync d"]),
            ("sync_dir_soon", lambda: self.settle(disk.sync_dir_soon(f"{root}/d")), ["fsync d"]),
            ("make_dirs", lambda: disk.make_dirs(f"{root}/x/y"), ["fsync .", "fsync x"]),
            ("copy", lambda: disk.copy(f"{root}/a", f"{root}/copy"), ["fsync copy"]),
            ("unshare", lambda: disk.unshare(shared.path), ["fsync shared.tmp", "rename shared.tmp shared", "fsync ."]),
            ("sync", lambda: self.settle(file.sync()), ["fdatasync a"]),
            ("sync_now", file.sync_now, ["fdatasync a"]),
        )
        calls = self.record()
        for what, call, expected in cases:
            calls.clear()
            call()
            self.assertEqual(calls, expected, what)

    def test_failed_syncs(self) -> None:
        """A sync that the system fails is passed on, whoever asked; a file that could not be replaced is as before."""
        self.disk.write_atomic(f"{self.root}/a", b"old")

        def fail(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(os, "fsync", fail)
        self.assertRaises(SyncFailed, self.disk.sync_dir, self.root)
        self.assertRaises(SyncFailed, self.settle, self.disk.sync_dir_soon(self.root))
        self.assertRaises(SyncFailed, self.disk.make_dirs, f"{self.root}/d")
        self.assertRaises(DiskError, self.disk.copy, f"{self.root}/a", f"{self.root}/b")
        self.assertRaises(DiskError, self.disk.write_atomic, f"{self.root}/a", b"new")
        self.assertEqual((os.listdir(self.root).count("b"), self.disk.read_whole(f"{self.root}/a")), (0, b"old"))

    def test_a_folder_that_cannot_be_opened(self) -> None:
        """Without a free descriptor no sync was tried: that is no failed sync, and can be tried again."""
        opened = os.open

        def full(path: str, *arguments: Any) -> int:
            raise OSError(errno.EMFILE, "Too many open files", path)

        self.patch(os, "open", full)
        error = self.assertRaises(DiskError, self.disk.sync_dir, self.root)
        self.assertNotIsInstance(error, SyncFailed)
        self.assertIn("Too many open files", str(error))
        self.patch(os, "open", opened)
        self.disk.sync_dir(self.root)


class DiskUsageTests(SynchronousTestCase):
    def test_ratio_is_rounded_up(self) -> None:
        """The used part counts in whole percents, rounded up, as RocketMQ compares it with its limits."""
        self.assertEqual(DiskUsage(1000, 250).used_ratio, 0.75)
        self.assertEqual(DiskUsage(1000, 249).used_ratio, 0.76)
        self.assertEqual(DiskUsage(1000, 1000).used_ratio, 0.0)
        self.assertEqual(DiskUsage(1000, 999).used_ratio, 0.01)
        self.assertEqual(DiskUsage(1000, 0).used_ratio, 1.0)

    def test_unknown_ratio(self) -> None:
        """A file system that cannot be measured says -1."""
        self.assertEqual(DiskUsage(0, 0).used_ratio, -1.0)


class FlusherTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = HopReactor()
        self.flusher = Flusher(self.reactor)
        self.addCleanup(self.flusher.close)
        self.done: list[object] = []

    def test_jobs_run_in_order(self) -> None:
        """Different jobs run in the order in which they came."""
        ran: list[int] = []
        for number in range(20):
            self.flusher.add(Job(number, lambda number=number: ran.append(number), self.done.append))  # type: ignore[misc]
        for _ in range(20):
            self.reactor.run_one()
        self.assertEqual(ran, list(range(20)))
        self.assertEqual(self.done, [None] * 20)

    def test_jobs_of_one_key_share_a_run(self) -> None:
        """What queues up behind a running job is done by one run, and everyone is told."""
        gate: SimpleQueue[None] = SimpleQueue()
        ran: list[str] = []
        self.flusher.add(Job("first", lambda: gate.get(timeout=HOP_TIMEOUT_S), self.done.append))
        for _ in range(10):
            self.flusher.add(Job("same", lambda: ran.append("same"), self.done.append))
        gate.put(None)
        for _ in range(11):
            self.reactor.run_one()
        self.assertEqual(ran, ["same"])
        self.assertEqual(self.done, [None] * 11)

    def test_a_bug_in_a_job(self) -> None:
        """Who waits for it gets the error, and the thread goes on."""
        for number in 0, 1:
            self.flusher.add(Job(number, lambda number=number: 1 // number, self.done.append))  # type: ignore[misc]
            self.reactor.run_one()
        self.assertEqual([type(each) for each in self.done], [ZeroDivisionError, type(None)])

    def test_close_waits(self) -> None:
        """A sync that runs while the flusher closes has ended when close returns; only then the store says so."""
        self.flusher.add(Job("begin", lambda: None, self.done.append))
        self.reactor.run_one()
        thread = self.flusher._thread
        assert thread is not None
        closing, join = threading.Event(), thread.join
        ran: list[str] = []
        self.addCleanup(closing.set)

        def joining() -> None:
            closing.set()
            join(HOP_TIMEOUT_S)

        self.patch(thread, "join", joining)

        def work() -> None:
            closing.wait(HOP_TIMEOUT_S)
            ran.append("sync")

        self.flusher.add(Job("sync", work, self.done.append))
        self.flusher.close()
        self.assertEqual((ran, thread.is_alive()), (["sync"], False))

    def test_failures_do_not_end_the_thread(self) -> None:
        """A job that fails reports its OSError; the next one runs."""

        def fail() -> None:
            raise OSError(errno.EIO, "broken")

        self.flusher.add(Job("a", fail, self.done.append))
        self.flusher.add(Job("b", lambda: None, self.done.append))
        self.reactor.run_one()
        self.reactor.run_one()
        self.assertIsInstance(self.done[0], OSError)
        self.assertIsNone(self.done[1])

    def test_thread_begins_with_the_first_job(self) -> None:
        """Making a flusher starts no thread: twistd may fork after that."""
        self.assertIsNone(self.flusher._thread)
        self.flusher.add(Job("a", lambda: None, self.done.append))
        self.reactor.run_one()
        self.assertIsNotNone(self.flusher._thread)


#: a file is made shorter behind the back of its reader, which the kernel tells like a block that cannot be read
UNREADABLE = """
import os, sys
from twisted.internet import reactor
from rmq.runtime import logs
from rmq.runtime.disk.files import DiskError
from rmq.runtime.platform import real_platform
path = sys.argv[1]
log = logs.make_observer(path=sys.argv[2] if len(sys.argv) > 2 else None, json=False, level="info")
disk = real_platform(reactor).disk
file = disk.create(path, 1 << 20)
file.read_at(0, 1)
os.truncate(path, 0)
try:
    file.read_at(5000, 10)
except DiskError as error:
    print("refused:", error)
"""


class UnreadableTests(RealDiskCase):
    def run_it(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", UNREADABLE, f"{self.root}/store", *arguments]
        env = {name: value for name, value in os.environ.items() if name != WITHOUT_MAPS} | environment
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=HOP_TIMEOUT_S)

    def test_the_stack_is_told(self) -> None:
        """A read through a map that fails ends the process, and standard error or the log file says where."""
        ended = self.run_it()
        self.assertEqual(ended.returncode, -signal.SIGBUS)
        for part in ("Fatal Python error: Bus error", "realfile.py", "read_at"):
            self.assertIn(part, ended.stderr)
        os.unlink(f"{self.root}/store")
        ended = self.run_it(f"{self.root}/role.log")
        self.assertEqual((ended.returncode, ended.stderr), (-signal.SIGBUS, ""))
        with open(f"{self.root}/role.log") as log:
            self.assertIn("Fatal Python error: Bus error", log.read())

    def test_without_maps_it_is_an_error(self) -> None:
        """Files that are read without maps cost an error with path and offset, and nothing else."""
        ended = self.run_it(**{WITHOUT_MAPS: "1"})
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout, f"refused: {self.root}/store at offset 5000: only 0 of 10 bytes are there\n")


class ModeTests(RealDiskCase):
    def modes(self) -> dict[str, int]:
        return {name: os.stat(f"{self.root}/{name}").st_mode & 0o7777 for name in sorted(os.listdir(self.root))}

    def test_a_replaced_file_keeps_its_mode(self) -> None:
        """Who could not read the passwords in the old content does not read those in the new one, nor in the backup."""
        self.addCleanup(os.umask, os.umask(0o022))
        for mode in (0o600, 0o664):
            self.disk.write_atomic(f"{self.root}/a", b"1")
            os.chmod(f"{self.root}/a", mode)
            self.disk.write_atomic(f"{self.root}/a", b"2", keep_backup=True)
            self.assertEqual(self.modes(), {"a": mode, "a.bak": mode})

    def test_a_new_file_has_the_mode_of_all_files(self) -> None:
        """Where nothing is replaced the umask counts."""
        self.addCleanup(os.umask, os.umask(0o022))
        self.disk.write_atomic(f"{self.root}/a", b"1")
        self.assertEqual(self.modes(), {"a": 0o644})

    def test_a_store_starts_again(self) -> None:
        """The lock file can be opened by a broker that does not run as root, when it starts for the second time."""
        self.addCleanup(os.umask, os.umask(0o022))
        self.disk.lock(f"{self.root}/lock").release()
        self.assertEqual(self.modes(), {"lock": 0o644})
