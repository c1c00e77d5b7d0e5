"""The simulated disk: the contract of every disk, and what power failures and faults do."""

from __future__ import annotations

import itertools
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import Disk, DiskError, DiskFull, DiskLocked, SyncFailed
from rmq.sim.disk import SimDisk, SimFile
from rmq.sim.inode import PAGE_BYTES, SECTOR_BYTES, CrashOdds, SparseBytes
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from tests.runtime.disk_contract import DiskContract

T = TypeVar("T")


class SimDiskCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.begin(7)

    def begin(self, seed: int) -> None:
        self.world = World(seed)
        self.node = Node(self.world, SimNet(self.world), "a")
        self.node.start()
        self.disk = self.node.disk
        self.root = "/data"
        self.disk.make_dirs(self.root)

    def settle(self, deferred: Deferred[T]) -> T:
        return self.world.settle(deferred)

    def restart(self) -> None:
        """Power failure and a new process."""
        self.node.crash()
        self.node.start()

    def durable(self, name: str, data: bytes) -> SimFile:
        """Make a file that survives, name and bytes."""
        file = self.disk.create(f"{self.root}/{name}", len(data))
        file.write_at(0, data)
        file.sync_now()
        self.disk.sync_dir(self.root)
        return file


class SimDiskContractTests(SimDiskCase, DiskContract):
    disk: SimDisk

    def test_is_a_disk(self) -> None:
        """The simulated disk has the type that the product asks for."""
        disk: Disk = self.disk
        self.assertIs(disk, self.disk)


class FileSystemTests(SimDiskCase):
    def change(self) -> None:
        """Two new files below a new folder, with bytes; one is gone again."""
        self.disk.add_dirs(f"{self.root}/folder")
        for name in ("a", "b", "gone"):
            self.disk.create_sparse(f"{self.root}/folder/{name}", 1000).write_at(0, name.encode())
        self.disk.delete(f"{self.root}/folder/gone")

    def test_everything_before_it_stays(self) -> None:
        """After its sync all bytes and names written before it survive a power failure, whatever the seed."""
        for seed in range(30):
            self.begin(seed)
            system = self.disk.file_system(self.root)
            assert system is not None
            self.change()
            self.settle(system.sync())
            self.restart()
            self.assertEqual(self.disk.list_dir(f"{self.root}/folder"), ["a", "b"])
            self.assertEqual(self.disk.read_whole(f"{self.root}/folder/b"), b"b".ljust(1000, b"\0"))

    def test_nothing_after_it(self) -> None:
        """What is written while it runs is not part of it."""
        lost = False
        for seed in range(30):
            self.begin(seed)
            file = self.durable("a", b"." * 10)
            system = self.disk.file_system(self.root)
            assert system is not None
            running = system.sync()
            file.write_at(0, b"late")
            self.settle(running)
            self.restart()
            lost = lost or self.disk.read_whole(f"{self.root}/a") == b"." * 10
        self.assertTrue(lost)

    def test_failures(self) -> None:
        """
        It fails when a file or a folder on it could not be written, also when the sync of a single file met that first,
        and then that file's own next sync fails as well, as on Linux.
        """
        for part in ("/folder", "/folder/a", ""):
            self.begin(3)
            system = self.disk.file_system(self.root)
            assert system is not None
            self.change()
            file = self.disk.open(f"{self.root}/folder/a")
            self.disk.sync_fails = lambda path, part=part: path == f"{self.root}{part}"  # type: ignore[misc]
            self.assertRaises(SyncFailed, self.settle, system.sync())
            self.disk.sync_fails = lambda path: False
            if part == "/folder/a":
                self.assertRaises(SyncFailed, self.settle, file.sync())
        self.begin(4)
        system = self.disk.file_system(self.root)
        assert system is not None
        file = self.durable("a", b"x")
        file.write_at(0, b"y")
        self.disk.fail_syncs = 1
        self.assertRaises(SyncFailed, file.sync_now)
        self.assertRaises(SyncFailed, self.settle, system.sync())


class PowerFailureTests(SimDiskCase):
    def test_synced_bytes_stay(self) -> None:
        """What was synced, bytes and name, is there after every power failure, whatever the seed."""
        for seed in range(50):
            self.begin(seed)
            file = self.durable("a", b"x" * 5000)
            file.write_at(100, b"unsynced")
            self.restart()
            data = self.disk.read_whole(f"{self.root}/a")
            self.assertEqual((data[:100], data[108:]), (b"x" * 100, b"x" * 4892), f"seed {seed}")

    def test_unsynced_bytes_may_go(self) -> None:
        """Over some seeds an unsynced write is kept, dropped, torn or garbage."""
        fates = set()
        old, new = b"x" * (4 * SECTOR_BYTES), b"y" * (4 * SECTOR_BYTES)
        for seed in range(120):
            self.begin(seed)
            self.disk.odds = CrashOdds(kept=0.3, torn=0.3, garbage=0.2)
            self.durable("a", old).write_at(0, new)
            self.restart()
            data = self.disk.read_whole(f"{self.root}/a")
            sectors = {data[start : start + SECTOR_BYTES] for start in range(0, len(data), SECTOR_BYTES)}
            if data in (old, new):
                fates.add("dropped" if data == old else "kept")
            else:
                fates.add("torn" if sectors <= {old[:SECTOR_BYTES], new[:SECTOR_BYTES]} else "garbage")
        self.assertEqual(fates, {"kept", "dropped", "torn", "garbage"})

    def test_writes_meet_their_fates_independently(self) -> None:
        """A later write may survive an earlier one: nothing is ordered but by syncs."""
        outcomes = set()
        for seed in range(60):
            self.begin(seed)
            self.disk.odds = CrashOdds(kept=0.5, torn=0, garbage=0)
            file = self.durable("a", b"." * (SECTOR_BYTES + 1))
            file.write_at(0, b"1")
            file.write_at(SECTOR_BYTES, b"2")
            self.restart()
            outcomes.add(self.disk.read_whole(f"{self.root}/a").replace(b".", b""))
        self.assertEqual(outcomes, {b"", b"1", b"2", b"12"})

    def test_a_sector_is_written_whole(self) -> None:
        """Where a write survives, so do the earlier ones of the same sector."""
        outcomes = set()
        for seed in range(60):
            self.begin(seed)
            self.disk.odds = CrashOdds(kept=0.5, torn=0.2, garbage=0)
            file = self.durable("a", b"..")
            file.write_at(0, b"1")
            file.write_at(1, b"2")
            self.restart()
            outcomes.add(self.disk.read_whole(f"{self.root}/a"))
        self.assertEqual(outcomes, {b"..", b"1.", b"12"})

    def test_sectors_may_be_smaller(self) -> None:
        """A write inside one sector is torn only where the disk writes less than 512 bytes whole, down to one."""
        for sector_bytes, expected in (
            (SECTOR_BYTES, {b"....", b"1234"}),
            (2, {b"....", b"12..", b"..34", b"1234"}),
            (1, {bytes(one) for one in itertools.product(*zip(b"....", b"1234", strict=True))}),
        ):
            outcomes = set()
            for seed in range(120):
                self.begin(seed)
                self.disk.odds = CrashOdds(kept=0, torn=1, garbage=0)
                self.disk.sector_bytes = {f"{self.root}/a": sector_bytes}.__getitem__
                self.durable("a", b"....").write_at(0, b"1234")
                self.restart()
                outcomes.add(self.disk.read_whole(f"{self.root}/a"))
            self.assertEqual(outcomes, expected)

    def test_sync_covers_what_was_written_before_it(self) -> None:
        """A completed sync holds for writes before its call, and promises nothing of those after it."""
        later_kept = set()
        for seed in range(40):
            self.begin(seed)
            self.disk.odds = CrashOdds(kept=0.5, torn=0, garbage=0)
            file = self.durable("a", b"..")
            file.write_at(0, b"1")
            done = file.sync()
            file.write_at(1, b"2")
            self.settle(done)
            self.restart()
            data = self.disk.read_whole(f"{self.root}/a")
            self.assertEqual(data[:1], b"1", f"seed {seed}")
            later_kept.add(data[1:])
        self.assertEqual(later_kept, {b".", b"2"})

    def test_power_failure_during_a_sync(self) -> None:
        """A sync that had not completed promises nothing, and its Deferred never fires."""
        seen = set()
        for seed in range(40):
            self.begin(seed)
            file = self.durable("a", b".")
            file.write_at(0, b"1")
            done = file.sync()
            self.restart()
            self.world.run_for(10)
            self.assertNoResult(done)
            seen.add(self.disk.read_whole(f"{self.root}/a"))
        self.assertTrue(seen >= {b".", b"1"})

    def test_names_need_a_folder_sync(self) -> None:
        """A new file whose folder was not synced may be missing afterwards, with all its synced bytes."""
        found = set()
        for seed in range(40):
            self.begin(seed)
            file = self.disk.create(f"{self.root}/a", 3)
            file.write_at(0, b"abc")
            file.sync_now()
            self.restart()
            found.add(self.disk.exists(f"{self.root}/a"))
        self.assertEqual(found, {True, False})

    def test_deleted_files_may_come_back(self) -> None:
        """So may a deleted one be back, and a renamed one have its old name."""
        found = set()
        for seed in range(60):
            self.begin(seed)
            self.durable("a", b"1")
            self.durable("b", b"2")
            self.disk.delete(f"{self.root}/a")
            self.disk.rename(f"{self.root}/b", f"{self.root}/c")
            self.restart()
            found.add(tuple(self.disk.list_dir(self.root)))
        self.assertEqual(found, {("a", "b"), ("b",), ("a", "c"), ("c",)})

    def test_synced_names_stay(self) -> None:
        """After sync_dir creations, deletions and renames are final."""
        for seed in range(30):
            self.begin(seed)
            self.durable("a", b"1")
            self.durable("b", b"2")
            self.disk.delete(f"{self.root}/a")
            self.disk.rename(f"{self.root}/b", f"{self.root}/c")
            self.disk.sync_dir(self.root)
            self.restart()
            self.assertEqual(self.disk.list_dir(self.root), ["c"], f"seed {seed}")

    def test_folders_and_copies_are_durable(self) -> None:
        """make_dirs needs no sync; a copy's bytes are synced, its name is not."""
        for seed in range(20):
            self.begin(seed)
            self.disk.make_dirs(f"{self.root}/d/e")
            self.durable("a", b"abc")
            self.disk.copy(f"{self.root}/a", f"{self.root}/d/e/b")
            self.disk.sync_dir(f"{self.root}/d/e")
            self.restart()
            self.assertEqual(self.disk.read_whole(f"{self.root}/d/e/b"), b"abc")

    def test_added_folders_are_not_durable(self) -> None:
        """add_dirs needs the sync of the folder above; what lies in a folder that is lost goes with it."""
        kept = set()
        for seed in range(40):
            self.begin(seed)
            self.disk.add_dirs(f"{self.root}/d/e")
            file = self.disk.create(f"{self.root}/d/e/a", 3)
            file.sync_now()
            self.disk.sync_dir(f"{self.root}/d/e")
            if seed % 2:
                for folder in (self.root, f"{self.root}/d"):
                    done = self.disk.sync_dir_soon(folder)
                    self.world.run_for(1)
                    self.successResultOf(done)
            self.restart()
            there = self.disk.exists(f"{self.root}/d/e/a")
            if seed % 2:
                self.assertTrue(there, f"seed {seed}")
            kept.add(there)
        self.assertEqual(kept, {True, False})

    def test_atomic_writes_are_atomic(self) -> None:
        """Whenever the power fails, the file has one of the contents that were written, the last one if it returned."""
        for seed in range(40):
            self.begin(seed)
            for number in range(5):
                self.disk.write_atomic(f"{self.root}/a", b"%d" % number * 600, keep_backup=True)
                if number == seed % 5:
                    self.restart()
                    self.assertEqual(self.disk.read_whole(f"{self.root}/a"), b"%d" % number * 600, f"seed {seed}")

    def test_half_done_replacement(self) -> None:
        """A rename over an older file, not synced, leaves the old or the new content and never a mix."""
        seen = set()
        for seed in range(40):
            self.begin(seed)
            self.durable("a", b"old")
            self.durable("a.tmp", b"new")
            self.disk.rename(f"{self.root}/a.tmp", f"{self.root}/a")
            self.restart()
            seen.add(self.disk.read_whole(f"{self.root}/a"))
        self.assertEqual(seen, {b"old", b"new"})

    def test_kill_keeps_everything(self) -> None:
        """kill -9 loses nothing that was written: the page cache belongs to the machine."""
        for seed in range(20):
            self.begin(seed)
            file = self.disk.create(f"{self.root}/a", 3)
            file.write_at(0, b"abc")
            self.node.kill()
            self.node.start()
            self.assertEqual(self.disk.read_whole(f"{self.root}/a"), b"abc")

    def test_dead_handles(self) -> None:
        """Files and locks of the dead process are of no use, and in nobody's way."""
        file = self.durable("a", b"abc")
        self.disk.lock(f"{self.root}/lock")
        self.assertRaises(DiskLocked, self.disk.lock, f"{self.root}/lock")
        self.node.kill()
        self.node.start()
        self.assertRaises(DiskError, file.write_at, 0, b"x")
        self.assertRaises(DiskError, file.read_at, 0, 1)
        self.disk.lock(f"{self.root}/lock")


class FaultTests(SimDiskCase):
    def test_failed_sync(self) -> None:
        """A failing sync fails its Deferred; the file takes no more; what was written may be lost for good."""
        lost = set()
        for seed in range(30):
            self.begin(seed)
            file = self.durable("a", b".")
            file.write_at(0, b"1")
            self.disk.fail_syncs = 1
            done = file.sync()
            self.world.run_for(1)
            self.failureResultOf(done, DiskError)
            self.assertEqual(file.read_at(0, 1), b"1")
            self.assertRaises(DiskError, file.write_at, 0, b"2")
            self.assertRaises(DiskError, file.sync_now)
            self.failureResultOf(file.sync(), DiskError)
            again = self.disk.open(file.path)
            again.sync_now()  # reports success, as the kernel would: the pages count as clean
            self.restart()
            lost.add(self.disk.read_whole(file.path))
        self.assertEqual(lost, {b".", b"1"})

    def test_failed_syncs_of_chosen_files(self) -> None:
        """Only the chosen files' syncs fail."""
        self.disk.sync_fails = lambda path: path.endswith("/a")
        self.disk.create(f"{self.root}/b", 1).sync_now()
        self.assertRaises(DiskError, self.disk.create(f"{self.root}/a", 1).sync_now)

    def test_failed_folder_sync(self) -> None:
        """A folder's sync that fails raises SyncFailed; each name may be lost for good, whatever is synced later."""
        kept = set()
        for seed in range(60):
            self.begin(seed)
            self.durable("old", b"1")
            self.disk.delete(f"{self.root}/old")
            self.disk.create(f"{self.root}/new", 1)
            self.disk.fail_syncs = 1
            if seed % 2:
                self.assertRaises(SyncFailed, self.disk.sync_dir, self.root)
            else:
                self.assertRaises(SyncFailed, self.settle, self.disk.sync_dir_soon(self.root))
            self.assertEqual(self.disk.list_dir(self.root), ["new"])
            self.disk.sync_dir(self.root)  # reports success, as the kernel would
            self.restart()
            kept.add(tuple(self.disk.list_dir(self.root)))
        self.assertEqual(kept, {(), ("old",), ("new",), ("new", "old")})

    def test_what_syncs_by_itself_fails_too(self) -> None:
        """New folders and replaced files pass on that the sync of their folder has failed; no half is left over."""
        self.disk.write_atomic(f"{self.root}/a", b"old")
        self.disk.sync_fails = lambda path: path == self.root
        self.assertRaises(SyncFailed, self.disk.make_dirs, f"{self.root}/d")
        self.assertRaises(SyncFailed, self.disk.write_atomic, f"{self.root}/a", b"new")
        self.assertEqual(self.disk.read_whole(f"{self.root}/a"), b"new")
        self.disk.sync_fails = lambda path: path.endswith((".tmp", "/b"))
        self.assertRaises(DiskError, self.disk.write_atomic, f"{self.root}/a", b"newer")
        self.assertRaises(DiskError, self.disk.copy, f"{self.root}/a", f"{self.root}/b")
        self.assertEqual((self.disk.list_dir(self.root), self.disk.read_whole(f"{self.root}/a")), (["a", "d"], b"new"))

    def test_failed_write(self) -> None:
        """A write that fails is a DiskError with the offset, and has written any part of its front; the next works."""
        parts = set()
        for seed in range(60):
            self.begin(seed)
            file = self.durable("a", b".....")
            self.disk.fail_writes = 1
            error = self.assertRaises(DiskError, file.write_at, 1, b"123")
            self.assertEqual((error.path, error.offset), (file.path, 1))
            parts.add(file.read_at(0, 5))
            file.write_at(1, b"abc")
            self.assertEqual(file.read_at(0, 5), b".abc.")
        self.assertEqual(parts, {b".....", b".1...", b".12.."})
        self.disk.write_fails = lambda path: path.endswith("/b")
        file.write_at(0, b"x")
        self.assertRaises(DiskError, self.disk.create(f"{self.root}/b", 1).write_at, 0, b"x")

    def test_full_disk_takes_what_fits(self) -> None:
        """A write that finds room for a part is a DiskFull, and the pages that found room hold it."""
        self.disk.capacity_bytes = 3 * PAGE_BYTES
        file = self.disk.create_sparse(f"{self.root}/a", 8 * PAGE_BYTES)
        data = b"x" * (4 * PAGE_BYTES)
        error = self.assertRaises(DiskFull, file.write_at, 10, data)
        self.assertEqual((error.path, error.offset), (file.path, 10))
        written = 3 * PAGE_BYTES - 10
        self.assertEqual(file.read_at(10, len(data)), data[:written] + bytes(len(data) - written))

    def test_slow_sync(self) -> None:
        """A sync takes the time that the disk takes."""
        self.disk.sync_s = (3.0, 3.0)
        done = self.disk.create(f"{self.root}/a", 1).sync()
        self.world.run_for(2.9)
        self.assertNoResult(done)
        self.world.run_for(0.2)
        self.successResultOf(done)

    def test_full_disk(self) -> None:
        """A reserved file can be filled on a full disk; anything else meets DiskFull, with path and offset."""
        self.disk.capacity_bytes = 100_000
        file = self.disk.create(f"{self.root}/a", 60_000)
        self.assertRaises(DiskFull, self.disk.create, f"{self.root}/b", 50_000)
        sparse = self.disk.create_sparse(f"{self.root}/c", 50_000)
        file.write_at(0, b"x" * 60_000)
        error = self.assertRaises(DiskFull, sparse.write_at, 5, b"x" * 45_000)
        self.assertEqual((error.path, error.offset), (f"{self.root}/c", 5))
        self.assertRaises(DiskFull, file.write_at, 60_000, b"x" * 45_000)
        self.disk.delete(f"{self.root}/a")
        sparse.write_at(5, b"x" * 45_000)

    def test_usage_follows(self) -> None:
        """The used part is what files have reserved or written."""
        self.disk.capacity_bytes = 1_000_000
        self.disk.create(f"{self.root}/a", 250_000)
        self.disk.create_sparse(f"{self.root}/b", 900_000)
        self.assertEqual(self.disk.usage(self.root).used_ratio, 0.25)

    def test_bit_flip(self) -> None:
        """A rotten bit is there for reads and after a restart."""
        self.durable("a", b"\x00\x00")
        self.disk.flip_bit(f"{self.root}/a", 1, 3)
        self.assertEqual(self.disk.read_whole(f"{self.root}/a"), b"\x00\x08")
        self.restart()
        self.assertEqual(self.disk.read_whole(f"{self.root}/a"), b"\x00\x08")


class SparseBytesTests(SynchronousTestCase):
    def test_like_a_bytearray(self) -> None:
        """Random writes, cuts and reads agree with a plain bytearray."""
        rng = World(11).rng
        sparse, plain = SparseBytes(), bytearray()
        for _ in range(3000):
            offset, size = rng.randrange(20_000), rng.randrange(6000)
            if rng.random() < 0.2:
                sparse.resize(offset)
                plain = plain[:offset] + bytes(max(0, offset - len(plain)))
            else:
                data = rng.randbytes(size)
                sparse.write(offset, data)
                plain += bytes(max(0, offset + size - len(plain)))
                plain[offset : offset + size] = data
            start = rng.randrange(len(plain) + 1)
            self.assertEqual(sparse.size, len(plain))
            self.assertEqual(sparse.read(start, len(plain) - start), bytes(plain[start:]))
