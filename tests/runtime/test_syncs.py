"""Syncs of files in a thread that never runs Python; the contract of a disk holds with them, too."""

from __future__ import annotations

import errno
import gc
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError, RealDisk, SyncFailed
from rmq.runtime.disk.flusher import CompiledFileSyncs, FlusherFileSyncs
from rmq.wire import compiled
from tests.needs import need_compiled
from tests.runtime.disk_contract import DiskContract
from tests.runtime.test_realdisk import HOP_TIMEOUT_S, HopReactor, RealDiskCase

NAME = "rmq.runtime.disk._syncs"
HAS_DESCRIPTORS = os.path.isdir("/proc/self/fd")


class WatchingReactor(HopReactor):
    """A reactor that watches descriptors, too."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self._calls_come, self._call_came = os.pipe()

    def callFromThread(self, call: Callable[..., object], *arguments: object) -> None:
        super().callFromThread(call, *arguments)
        os.write(self._call_came, b"x")

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.remove(reader)

    def run_one(self, timeout_s: float = HOP_TIMEOUT_S) -> None:
        ready, _, _ = select.select([self._calls_come, *self.readers], [], [], timeout_s)
        assert ready, "nothing happens"
        if ready[0] is self._calls_come:
            os.read(self._calls_come, 1)
            super().run_one()
        else:
            ready[0].doRead()

    def close(self) -> None:
        os.close(self._calls_come)
        os.close(self._call_came)


class CompiledDiskContractTests(RealDiskCase, DiskContract):
    disk: RealDisk

    def setUp(self) -> None:
        need_compiled(NAME)
        reactor = self.reactor = WatchingReactor()
        self.addCleanup(reactor.close)
        self.disk = RealDisk(reactor)
        self.addCleanup(self.disk.close)
        self.root = tempfile.mkdtemp(prefix="rmq-disk-")
        self.addCleanup(shutil.rmtree, self.root)

    def test_which(self) -> None:
        """A reactor that watches no descriptors has its syncs in a thread of Python's."""
        self.assertIsInstance(self.disk._syncs, CompiledFileSyncs)
        self.assertIsInstance(RealDisk(HopReactor())._syncs, FlusherFileSyncs)

    def test_failed(self) -> None:
        """A failed sync names the file and refuses all that follows, as with the other thread."""
        file = self.disk.create(f"{self.root}/a", 4096)
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        held, file._fd = file._fd, reading
        self.addCleanup(os.close, held)
        error = self.assertRaises(SyncFailed, self.settle, file.sync())
        self.assertIn(f"{self.root}/a", str(error))
        self.assertIn(os.strerror(errno.EINVAL), str(error))
        self.assertRaises(DiskError, self.settle, file.sync())
        file.close()

    def test_closed_while_it_runs(self) -> None:
        """The last sync of a file that is closed meanwhile closes its descriptor."""
        file = self.disk.create(f"{self.root}/a", 4096)
        fd = file._fd
        synced = [file.sync(), file.sync()]
        file.close()
        for each in synced:
            self.settle(each)
        self.assertRaises(OSError, os.fstat, fd)

    def test_close(self) -> None:
        """A disk that is closed has finished what was asked before; the answers come, and the thread is gone."""
        threads = len(os.listdir("/proc/self/task")) if HAS_DESCRIPTORS else 0
        file = self.disk.create(f"{self.root}/a", 4096)
        synced = file.sync()
        self.disk.close()
        self.settle(synced)
        self.assertEqual(self.reactor.readers, [])  # type: ignore[attr-defined]
        if HAS_DESCRIPTORS:
            self.assertLessEqual(len(os.listdir("/proc/self/task")), threads)
        self.assertRaises(DiskError, self.settle, file.sync())
        self.disk.close()


class SyncThreadTests(SynchronousTestCase):
    def setUp(self) -> None:
        need_compiled(NAME)
        self.reactor = WatchingReactor()
        self.addCleanup(self.reactor.close)
        self.syncs = CompiledFileSyncs(self.reactor)
        self.addCleanup(self.syncs.close)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - a cleanup closes it
        self.addCleanup(self.file.close)
        self.done: list[object] = []

    def run_until(self, count: int) -> None:
        while len(self.done) < count:
            self.reactor.run_one()

    def test_thread_begins_with_the_first_sync(self) -> None:
        """Making it starts no thread: twistd may fork after that."""
        self.assertEqual(self.reactor.readers, [])
        self.syncs.sync(self.file.fileno(), self.done.append)
        self.assertEqual(self.reactor.readers, [self.syncs])
        self.run_until(1)

    def test_each_has_its_own_result(self) -> None:
        """Many syncs of two descriptors, one of which has no disk: each is reported once, those of one in order."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)
        found: list[tuple[int, bool, OSError | None]] = []
        for number in range(300):
            bad = number % 3 == 0
            fd = reading if bad else self.file.fileno()

            def done(error: OSError | None, number: int = number, bad: bool = bad) -> None:
                found.append((number, bad, error))

            self.syncs.sync(fd, done)
        while len(found) < 300:
            self.reactor.run_one()
        self.assertEqual(sorted(number for number, _, _ in found), list(range(300)))
        for kind in (True, False):
            numbers = [number for number, bad, _ in found if bad is kind]
            self.assertEqual(numbers, sorted(numbers))
        for _, bad, error in found:
            self.assertEqual(error.errno if error else 0, errno.EINVAL if bad else 0)

    def test_one_that_raises(self) -> None:
        """A bug in what is called after a sync is logged, and the others are called."""

        def raises(error: OSError | None) -> None:
            raise ValueError("a bug")

        for call in (self.done.append, raises, self.done.append):
            self.syncs.sync(self.file.fileno(), call)
        self.run_until(2)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_nothing_is_kept(self) -> None:
        """What is called is released afterwards; also what nobody took, with the thread and its descriptor."""
        module: Any = compiled.load(NAME)
        call, unreported = (lambda error: self.done.append(error)), object()
        before, unreported_before = sys.getrefcount(call), sys.getrefcount(unreported)
        for _ in range(50):
            self.syncs.sync(self.file.fileno(), call)
        self.run_until(50)
        self.assertEqual(sys.getrefcount(call), before)
        thread = module.SyncThread()
        thread.add(self.file.fileno(), unreported)
        event_fd = thread.event_fd
        del thread
        gc.collect()
        self.assertEqual(sys.getrefcount(unreported), unreported_before)
        self.assertRaises(OSError, os.fstat, event_fd)

    def test_ended(self) -> None:
        """A thread that has ended takes nothing."""
        module: Any = compiled.load(NAME)
        thread = module.SyncThread()
        thread.add(self.file.fileno(), "last")
        thread.end()
        thread.end()
        self.assertEqual(thread.take(), [("last", 0)])
        self.assertRaises(ValueError, thread.add, self.file.fileno(), "late")
