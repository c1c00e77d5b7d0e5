"""What every `Disk` promises; the same tests run against the real and the simulated one."""

from __future__ import annotations

from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import Disk, DiskError, DiskFull, DiskLocked, File
from rmq.runtime.disk.realfile import MAP_MIN_BYTES

T = TypeVar("T")

#: large enough that a real file is read through a map
MAPPED_BYTES = 4 * MAP_MIN_BYTES


class DiskContract:
    """Mixed into a test case that sets ``disk`` and ``root`` and knows how to wait."""

    disk: Disk
    root: str

    def settle(self, deferred: Deferred[T]) -> T:
        """Wait for ``deferred`` and return its result or raise its failure."""
        raise AssertionError("the test case says how to wait")

    # The mixin is no TestCase itself, or its tests would run without a disk.
    @property
    def case(self) -> SynchronousTestCase:
        assert isinstance(self, SynchronousTestCase)
        return self

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make(self, name: str, data: bytes) -> File:
        file = self.disk.create(self.path(name), len(data))
        file.write_at(0, data)
        return file

    def refused(self, call: Any, *arguments: Any, **named: Any) -> DiskError:
        """Call and return the DiskError that must come."""
        error = self.case.assertRaises(DiskError, call, *arguments, **named)
        assert isinstance(error, DiskError)
        return error

    # -- creating and opening

    def test_new_file_is_zeros(self) -> None:
        """A created file has the asked size and reads as zeros."""
        file = self.disk.create(self.path("a"), 10_000)
        self.case.assertEqual(file.size, 10_000)
        self.case.assertEqual(file.path, self.path("a"))
        self.case.assertEqual(file.read_at(0, 10_000), bytes(10_000))

    def test_sparse_file_is_zeros(self) -> None:
        """A sparse file reads as zeros although it takes no room."""
        file = self.disk.create_sparse(self.path("a"), MAPPED_BYTES)
        self.case.assertEqual(file.size, MAPPED_BYTES)
        self.case.assertEqual(file.read_at(MAPPED_BYTES - 5, 5), bytes(5))

    def test_empty_file(self) -> None:
        """A file of no bytes can be created and read."""
        file = self.disk.create(self.path("a"), 0)
        self.case.assertEqual((file.size, file.read_at(0, 0)), (0, b""))

    def test_reserve(self) -> None:
        """An empty file gets its length, of zeros, now or soon, once."""
        for reserve in (lambda file: file.reserve(10_000), self.reserve_soon, self.reserve_both):
            file = self.disk.create_sparse(self.path("a"), 0)
            reserve(file)
            self.case.assertEqual((file.size, file.read_at(0, 10_000)), (10_000, bytes(10_000)))
            file.write_at(5_000, b"kept")
            file.reserve(10_000)
            self.case.assertEqual(file.read_at(5_000, 4), b"kept")
            file.close()
            self.case.assertIn("closed", str(self.refused(file.reserve, 10_000)))
            self.case.assertIn("closed", str(self.case.failureResultOf(file.reserve_soon(10_000), DiskError).value))
            self.disk.delete(self.path("a"))

    def reserve_soon(self, file: File) -> None:
        self.settle(file.reserve_soon(10_000))

    def reserve_both(self, file: File) -> None:
        """Without waiting for the first: what is written behind the second stays."""
        soon = file.reserve_soon(10_000)
        file.reserve(10_000)
        file.write_at(5_000, b"kept")
        self.settle(soon)
        self.case.assertEqual(file.read_at(5_000, 4), b"kept")
        file.write_at(5_000, bytes(4))

    def test_closed_while_it_is_reserved(self) -> None:
        """A file may be closed, and deleted, meanwhile."""
        file = self.disk.create_sparse(self.path("a"), 0)
        soon = file.reserve_soon(10_000)
        file.close()
        self.disk.delete(self.path("a"))
        self.settle(soon)

    def test_create_never_overwrites(self) -> None:
        """Creating what exists is an error with the path, and the bytes stay."""
        self.make("a", b"first").close()
        for create in (self.disk.create, self.disk.create_sparse):
            error = self.refused(create, self.path("a"), 5)
            self.case.assertEqual(error.path, self.path("a"))
        self.case.assertEqual(self.disk.read_whole(self.path("a")), b"first")

    def test_create_needs_its_folder(self) -> None:
        """A file in a folder that is not there is an error with the path."""
        self.case.assertIn("nowhere/a", str(self.refused(self.disk.create, self.path("nowhere/a"), 5)))

    def test_open_needs_the_file(self) -> None:
        """Opening or reading what is not there is an error with the path."""
        self.case.assertIn(self.path("a"), str(self.refused(self.disk.open, self.path("a"))))
        self.case.assertIn(self.path("a"), str(self.refused(self.disk.read_whole, self.path("a"))))

    def test_folder_is_no_file(self) -> None:
        """A folder can be neither opened nor read nor deleted as a file."""
        self.disk.make_dirs(self.path("d"))
        self.refused(self.disk.open, self.path("d"))
        self.refused(self.disk.read_whole, self.path("d"))
        self.refused(self.disk.delete, self.path("d"))

    def test_reopen(self) -> None:
        """Another handle, now or after closing, sees what was written."""
        file = self.make("a", b"hello")
        self.case.assertEqual(self.disk.open(self.path("a")).read_at(0, 5), b"hello")
        file.close()
        self.case.assertEqual(self.disk.open(self.path("a")).read_at(0, 5), b"hello")

    # -- reading and writing

    def test_reads_see_writes(self) -> None:
        """A read returns what was written before it, synced or not, whatever the sizes."""
        for size in (100, MAPPED_BYTES):
            file = self.disk.create(self.path(f"a{size}"), size)
            before = file.read_at(0, 4)
            file.write_at(10, b"abcdef")
            file.write_at(13, b"XY")
            self.case.assertEqual(file.read_at(9, 8), b"\0abcXYf\0")
            self.case.assertEqual(before, bytes(4))

    def test_read_is_a_copy(self) -> None:
        """Bytes once read do not change under later writes."""
        file = self.disk.create(self.path("a"), MAPPED_BYTES)
        file.write_at(0, b"old")
        data = file.read_at(0, 3)
        file.write_at(0, b"new")
        self.case.assertEqual((data, file.read_at(0, 3)), (b"old", b"new"))

    def test_a_view_is_as_good_as_a_copy(self) -> None:
        """What was lent stays readable when the file grows, is closed and deleted; the same errors as reading."""
        for size in (100, MAPPED_BYTES):
            file = self.make(f"a{size}", b"abcdef" + bytes(size - 6))
            view = file.view_at(2, 4)
            self.case.assertEqual((bytes(view), len(view)), (b"cdef", 4))
            error = self.refused(file.view_at, size - 1, 2)
            self.case.assertEqual((error.path, error.offset), (file.path, size - 1))
            file.write_at(size, b"more")
            self.case.assertEqual(bytes(file.view_at(size - 1, 5)), b"\0more")
            self.case.assertEqual(bytes(view), b"cdef")
            file.close()
            self.disk.delete(file.path)
            self.case.assertEqual(bytes(view), b"cdef")
            self.refused(file.view_at, 0, 1)

    def test_write_takes_any_buffer(self) -> None:
        """bytes, bytearray and memoryview can be written, and may be reused at once."""
        file = self.disk.create(self.path("a"), 9)
        buffer = bytearray(b"def")
        for offset, data in ((0, b"abc"), (3, buffer), (6, memoryview(b"xghix")[1:4])):
            file.write_at(offset, data)
        buffer[:] = b"???"
        self.case.assertEqual(file.read_at(0, 9), b"abcdefghi")

    def test_write_of_nothing(self) -> None:
        """An empty write changes nothing."""
        file = self.make("a", b"abc")
        file.write_at(3, b"")
        self.case.assertEqual(file.size, 3)

    def test_read_past_the_end(self) -> None:
        """Reading what the file does not hold is an error that names path and offset, never a short answer."""
        for size in (100, MAPPED_BYTES):
            file = self.disk.create(self.path(f"a{size}"), size)
            for offset, length in ((size - 1, 2), (size, 1), (size + 5, 0), (-1, 1), (0, -1)):
                error = self.refused(file.read_at, offset, length)
                self.case.assertEqual((error.path, error.offset), (file.path, offset))
                self.case.assertIn(file.path, str(error))
            self.case.assertEqual(file.read_at(size, 0), b"")

    def test_write_before_the_start(self) -> None:
        """A negative offset is refused."""
        self.case.assertEqual(self.refused(self.make("a", b"abc").write_at, -1, b"x").offset, -1)

    def test_write_past_the_end_grows(self) -> None:
        """Writing behind the end lengthens the file; the gap reads as zeros."""
        for size in (4, MAPPED_BYTES):
            file = self.disk.create(self.path(f"a{size}"), size)
            self.case.assertEqual(file.read_at(size - 1, 1), b"\0")
            file.write_at(size + 3, b"end")
            self.case.assertEqual((file.size, file.read_at(size, 6)), (size + 6, b"\0\0\0end"))

    def test_truncate(self) -> None:
        """Cut bytes are gone for reads, and zeros when the file grows again."""
        for size in (100, MAPPED_BYTES):
            file = self.make(f"a{size}", b"x" * size)
            self.case.assertEqual(file.read_at(size - 1, 1), b"x")
            file.truncate(10)
            self.case.assertEqual(file.size, 10)
            self.refused(file.read_at, 10, 1)
            file.truncate(size)
            self.case.assertEqual(file.read_at(0, size), b"x" * 10 + bytes(size - 10))

    def test_truncate_to_nothing(self) -> None:
        """A file can be emptied."""
        file = self.make("a", b"x" * MAPPED_BYTES)
        file.truncate(0)
        self.case.assertEqual((file.size, self.disk.read_whole(file.path)), (0, b""))

    # -- syncing and closing

    def test_data_end(self) -> None:
        """Behind the last written page a sparse file has nothing; what was written lies before it."""
        size = 1 << 20
        file = self.disk.create_sparse(self.path("a"), size)
        self.case.assertEqual(file.data_end(), 0)
        for offset, data in ((5000, b"x"), (100, b"y"), (300_000, b"z" * 5000)):
            file.write_at(offset, data)
        self.case.assertTrue(305_000 <= file.data_end() <= 305_000 + 65_536, file.data_end())
        file.write_at(size - 1, b"x")
        self.case.assertEqual(file.data_end(), size)
        self.case.assertEqual(self.disk.create(self.path("b"), 0).data_end(), 0)

    def test_file_system(self) -> None:
        """Where a file system can be synced as a whole, that ends well; once it is closed it is refused."""
        system = self.disk.file_system(self.root)
        if system is None:
            return  # an overlay, or an old kernel
        self.disk.add_dirs(self.path("folder"))
        self.make("folder/a", b"x")
        self.case.assertTrue(system.holds(self.path("folder")))
        self.case.assertFalse(system.holds(self.path("nothing")))
        running = system.sync()
        system.close()
        system.close()
        self.settle(running)
        self.case.assertIsInstance(self.case.failureResultOf(system.sync()).value, DiskError)
        self.case.assertIsNone(self.disk.file_system(self.path("nothing")))

    def test_sync(self) -> None:
        """A sync fires with None, as often as it is asked for."""
        file = self.make("a", b"abc")
        waiting = [file.sync(), file.sync()]
        self.case.assertEqual([self.settle(done) for done in waiting], [None, None])
        file.sync_now()

    def test_sync_is_not_reentrant(self) -> None:
        """A sync never fires inside the call that asks for it: callers may rely on their next line running first."""
        done = self.make("a", b"abc").sync()
        self.case.assertNoResult(done)
        self.settle(done)

    def test_preload(self) -> None:
        """What was loaded is in memory; so is nothing at the end of a file. A load may go beyond the end."""
        file = self.make("a", b"x" * 10)
        self.settle(file.preload(0, 1000))
        self.case.assertTrue(file.in_memory(0, 10))
        self.case.assertTrue(file.in_memory(10, 1))
        self.settle(file.preload(0, 10))

    def test_read_loaded(self) -> None:
        """What is in memory is read without waiting, and stays what it was when the file changes."""
        for size in (10, MAPPED_BYTES):
            file = self.make(f"a{size}", b"x" * size)
            self.settle(file.preload(0, size))
            data = file.read_loaded(2, 5)
            file.write_at(2, b"yy")
            self.case.assertEqual(bytes(data or b""), b"xxxxx")
            self.case.assertEqual(bytes(file.read_loaded(0, 5) or b""), b"xxyyx")
            self.case.assertEqual(bytes(file.read_loaded(size, 0) or b""), b"")
            error = self.refused(file.read_loaded, size - 1, 2)
            self.case.assertEqual((error.path, error.offset), (file.path, size - 1))

    def test_close_is_final(self) -> None:
        """Closing twice is harmless; every use afterwards is an error that names the file."""
        for size in (10, MAPPED_BYTES):
            file = self.disk.create(self.path(f"a{size}"), size)
            file.read_at(0, 1)
            file.close()
            file.close()
            calls = [(file.read_at, 0, 1), (file.read_at, 0, 0), (file.write_at, 0, b"x"), (file.truncate, 1)]
            for call, *arguments in calls:
                self.case.assertIn("closed", str(self.refused(call, *arguments)))
            self.case.assertIn("closed", str(self.refused(file.sync_now)))
            self.case.assertIn("closed", str(self.refused(file.in_memory, 0, 1)))
            self.case.assertIn("closed", str(self.refused(file.read_loaded, 0, 1)))
            closed = self.case.failureResultOf(file.preload(0, 1), DiskError).value
            self.case.assertEqual((closed.path, closed.offset), (file.path, 0))
            self.case.assertIn("closed", str(self.refused(getattr, file, "size")))
            failure = self.case.failureResultOf(file.sync(), DiskError)
            self.case.assertIn(file.path, str(failure.value))

    def test_close_lets_syncs_finish(self) -> None:
        """A sync on its way when the file is closed still completes."""
        file = self.make("a", b"abc")
        done = file.sync()
        file.close()
        self.case.assertIsNone(self.settle(done))

    # -- names

    def test_list_dir(self) -> None:
        """Names come sorted; a missing folder is empty."""
        for name in ("b", "a", "c"):
            self.make(name, b"x")
        self.disk.make_dirs(self.path("d/e"))
        self.case.assertEqual(self.disk.list_dir(self.root), ["a", "b", "c", "d"])
        self.case.assertEqual(self.disk.list_dir(self.path("d")), ["e"])
        self.case.assertEqual(self.disk.list_dir(self.path("nowhere")), [])
        self.refused(self.disk.list_dir, self.path("a"))

    def test_exists(self) -> None:
        """Files and folders exist; only folders are folders."""
        self.make("a", b"x")
        self.disk.make_dirs(self.path("d"))
        self.case.assertEqual([self.disk.exists(self.path(name)) for name in "adx"], [True, True, False])
        self.case.assertEqual([self.disk.is_dir(self.path(name)) for name in "adx"], [False, True, False])

    def test_make_dirs(self) -> None:
        """Folders are made all the way down, as often as one likes; a file in the way is an error."""
        self.disk.make_dirs(self.path("x/y/z"))
        self.disk.make_dirs(self.path("x/y/z"))
        self.case.assertTrue(self.disk.is_dir(self.path("x/y/z")))
        self.make("a", b"x")
        self.refused(self.disk.make_dirs, self.path("a"))
        self.refused(self.disk.make_dirs, self.path("a/b"))

    def test_add_dirs(self) -> None:
        """The form without syncs makes the same; the sync of a folder fires later, of one that is gone as well."""
        self.disk.add_dirs(self.path("x/y/z"))
        self.disk.add_dirs(self.path("x/y/z"))
        self.case.assertTrue(self.disk.is_dir(self.path("x/y/z")))
        self.make("a", b"x")
        self.refused(self.disk.add_dirs, self.path("a"))
        self.refused(self.disk.add_dirs, self.path("a/b"))
        waiting = [self.disk.sync_dir_soon(self.path(name)) for name in ("x", "x/y", "x/y", "nowhere")]
        for done in waiting:
            self.case.assertNoResult(done)
        self.case.assertEqual([self.settle(done) for done in waiting], [None] * 4)

    def test_rename(self) -> None:
        """A rename moves the file and replaces what had the name; an open handle goes on."""
        file = self.make("a", b"new")
        self.make("b", b"old")
        self.disk.rename(self.path("a"), self.path("b"))
        self.case.assertEqual(self.disk.list_dir(self.root), ["b"])
        self.case.assertEqual(self.disk.read_whole(self.path("b")), b"new")
        file.write_at(0, b"N")
        self.case.assertEqual(self.disk.read_whole(self.path("b")), b"New")

    def test_rename_of_nothing(self) -> None:
        """Renaming a missing file is an error that names both."""
        text = str(self.refused(self.disk.rename, self.path("a"), self.path("b")))
        self.case.assertIn(self.path("a"), text)
        self.case.assertIn(self.path("b"), text)

    def test_rename_folder(self) -> None:
        """A folder takes its files along."""
        self.disk.make_dirs(self.path("d/e"))
        self.make("d/e/a", b"x")
        self.disk.rename(self.path("d"), self.path("f"))
        self.case.assertEqual(self.disk.read_whole(self.path("f/e/a")), b"x")
        self.case.assertFalse(self.disk.exists(self.path("d")))

    def test_delete(self) -> None:
        """A deleted file is gone by name; an open handle still reads; deleting again is harmless."""
        file = self.make("a", b"abc")
        self.disk.delete(self.path("a"))
        self.disk.delete(self.path("a"))
        self.case.assertFalse(self.disk.exists(self.path("a")))
        self.case.assertEqual(file.read_at(0, 3), b"abc")

    def test_delete_tree(self) -> None:
        """A folder goes with everything in it; a missing one is harmless; neighbours stay."""
        self.disk.make_dirs(self.path("d/e"))
        self.disk.make_dirs(self.path("dd"))
        self.make("d/a", b"x")
        self.make("d/e/b", b"x")
        self.disk.delete_tree(self.path("d"))
        self.disk.delete_tree(self.path("d"))
        self.case.assertEqual(self.disk.list_dir(self.root), ["dd"])

    def test_link(self) -> None:
        """Two names, one file; the second must be free."""
        self.make("a", b"abc")
        self.disk.link(self.path("a"), self.path("b"))
        self.disk.open(self.path("b")).write_at(0, b"A")
        self.disk.delete(self.path("b"))
        self.case.assertEqual(self.disk.read_whole(self.path("a")), b"Abc")
        self.make("c", b"")
        self.refused(self.disk.link, self.path("a"), self.path("c"))
        self.refused(self.disk.link, self.path("missing"), self.path("d"))

    def test_copy(self) -> None:
        """A copy lives its own life, and replaces nothing."""
        file = self.make("a", b"abcdef")
        self.disk.copy(self.path("a"), self.path("b"))
        file.write_at(0, b"??????")
        self.case.assertEqual(self.disk.read_whole(self.path("b")), b"abcdef")
        self.refused(self.disk.copy, self.path("a"), self.path("b"))
        self.refused(self.disk.copy, self.path("missing"), self.path("d"))
        self.case.assertFalse(self.disk.exists(self.path("d")))

    def test_sync_dir(self) -> None:
        """A folder can be synced; a missing one is an error."""
        self.disk.sync_dir(self.root)
        self.refused(self.disk.sync_dir, self.path("nowhere"))

    # -- whole files

    def test_write_atomic(self) -> None:
        """The content is replaced, however long, and nothing is left beside it."""
        for data in (b"first content", b"second", b""):
            self.disk.write_atomic(self.path("a"), data)
            self.case.assertEqual(self.disk.read_whole(self.path("a")), data)
        self.case.assertEqual(self.disk.list_dir(self.root), ["a"])

    def test_write_atomic_keeps_a_backup(self) -> None:
        """The content before the last is kept as .bak; the first write has none to keep."""
        for data in (b"1", b"2", b"3"):
            self.disk.write_atomic(self.path("a"), data, keep_backup=True)
        self.case.assertEqual(self.disk.read_whole(self.path("a")), b"3")
        self.case.assertEqual(self.disk.read_whole(self.path("a.bak")), b"2")
        self.case.assertEqual(self.disk.list_dir(self.root), ["a", "a.bak"])

    def test_write_atomic_after_a_crash_in_between(self) -> None:
        """Leftovers of an attempt that did not end are no obstacle, even a backup that is the same file."""
        self.make("a", b"1").close()
        self.make("a.tmp", b"half written and long").close()
        self.disk.link(self.path("a"), self.path("a.bak"))
        self.disk.link(self.path("a"), self.path("a.bak.tmp"))
        self.disk.write_atomic(self.path("a"), b"2", keep_backup=True)
        self.case.assertEqual(self.disk.list_dir(self.root), ["a", "a.bak"])
        self.case.assertEqual(self.disk.read_whole(self.path("a")), b"2")
        self.case.assertEqual(self.disk.read_whole(self.path("a.bak")), b"1")

    def test_write_atomic_soon(self) -> None:
        """The form that does not block does the same, and reports the same errors."""
        for data in (b"1", b"2", b"3"):
            done = self.disk.write_atomic_soon(self.path("a"), data, keep_backup=True)
            self.case.assertFalse(done.called)
            self.settle(done)
            self.case.assertEqual(self.disk.read_whole(self.path("a")), data)
        self.case.assertEqual(self.disk.read_whole(self.path("a.bak")), b"2")
        failing = self.disk.write_atomic_soon(self.path("nowhere/a"), b"x")
        self.case.assertIn("nowhere/a", str(self.refused(self.settle, failing)))

    def test_write_atomic_needs_its_folder(self) -> None:
        """Without the folder there is an error with the path."""
        self.case.assertIn("nowhere/a", str(self.refused(self.disk.write_atomic, self.path("nowhere/a"), b"x")))

    # -- the disk

    def test_usage(self) -> None:
        """Room is known for every path, also for one whose folders do not exist yet."""
        for path in (self.root, self.path("not/there/yet")):
            usage = self.disk.usage(path)
            self.case.assertGreater(usage.total_bytes, 0)
            self.case.assertTrue(0 <= usage.free_bytes <= usage.total_bytes)
            self.case.assertTrue(0 <= usage.used_ratio <= 1)

    def test_create_reserves(self) -> None:
        """A file larger than the room is refused as DiskFull and leaves nothing."""
        size = self.disk.usage(self.root).total_bytes * 2
        error = self.refused(self.disk.create, self.path("a"), size)
        self.case.assertIsInstance(error, DiskFull)
        self.case.assertFalse(self.disk.exists(self.path("a")))

    def test_modified_ms(self) -> None:
        """Files have a time of writing in milliseconds since 1970; missing ones are an error."""
        self.make("a", b"x")
        self.case.assertGreater(self.disk.modified_ms(self.path("a")), 1_600_000_000_000)
        self.refused(self.disk.modified_ms, self.path("b"))

    def test_lock(self) -> None:
        """One holder at a time, in one process too; after release the next one gets it."""
        lock = self.disk.lock(self.path("lock"))
        error = self.case.assertRaises(DiskLocked, self.disk.lock, self.path("lock"))
        self.case.assertIn(self.path("lock"), str(error))
        self.case.assertEqual(self.disk.read_whole(self.path("lock")), b"lock")
        self.case.assertRaises(DiskLocked, self.disk.lock, self.path("lock"))
        lock.release()
        lock.release()
        self.disk.lock(self.path("lock")).release()

    def test_lock_needs_its_folder(self) -> None:
        """A lock in a missing folder is an error, but not that somebody holds it."""
        error = self.refused(self.disk.lock, self.path("nowhere/lock"))
        self.case.assertNotIsInstance(error, DiskLocked)

    def test_boot_id_stays(self) -> None:
        """As long as the machine runs it has one boot id."""
        self.case.assertTrue(self.disk.boot_id())
        self.case.assertEqual(self.disk.boot_id(), self.disk.boot_id())


def raise_failure(result: object) -> object:
    """Return ``result``, or raise it when it is a Failure."""
    if isinstance(result, Failure):
        result.raiseException()
    return result
