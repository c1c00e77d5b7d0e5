"""The table of epochs: its file, and up to where two logs agree."""

from __future__ import annotations

import itertools
import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.disk.files import DiskError, RealDisk
from rmq.runtime.disk.statefile import StateFileError
from rmq.sim.net import SimNet
from rmq.sim.node import Node
from rmq.sim.world import World
from rmq.store.epochs import Epoch, common_end, load_epochs, save_epochs, with_epoch
from tests.seeds import SEED
from tests.store.support import ThreadClock


class FileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.disk = RealDisk(ThreadClock())
        self.path = self.mktemp()

    def load(self, text: str | bytes) -> list[Epoch]:
        with open(self.path, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        return load_epochs(self.disk, self.path)

    def test_no_file(self) -> None:
        """A store that never had an elected master has no file and no epoch."""
        self.assertEqual(load_epochs(self.disk, self.path), [])

    def test_round_trip(self) -> None:
        """What was saved is loaded: no epoch, one, several, and the largest numbers."""
        for epochs in ([], [Epoch(1, 0)], [Epoch(1, 0), Epoch(3, 500)], [Epoch(2**31 - 1, 2**63 - 1)]):
            save_epochs(self.disk, self.path, epochs)
            self.assertEqual(load_epochs(self.disk, self.path), epochs)

    def test_content(self) -> None:
        """A line with the number of epochs, then one line for each: the epoch, and where it begins."""
        save_epochs(self.disk, self.path, [Epoch(7, 7000), Epoch(8, 8000)])
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), b"2\n7-7000\n8-8000\n")

    def test_damage(self) -> None:
        """A file that is no table stops the start with its path: without it nobody knows what to cut."""
        damaged = (
            ("empty", ""),
            ("blank", "\n"),
            ("no number", "7-7000\n"),
            ("a line too few", "2\n7-7000\n"),
            ("a line too many", "1\n7-7000\n8-8000\n"),
            ("a line that is none", "2\n7-7000\n8-x\n"),
            ("one more line that is none", "1\n7-7000\n8-80x\n"),
            ("a negative offset", "1\n7--1\n"),
            ("epochs that go back", "2\n8-7000\n7-8000\n"),
            ("offsets that go back", "2\n7-8000\n8-7000\n"),
            ("an epoch twice", "2\n7-7000\n7-8000\n"),
            ("zeros", bytes(20)),
            ("no ASCII", b"1\n7-7000\xff\n"),
            ("other digits", "1\n\u0667-7000\n"),
        )
        for name, text in damaged:
            with self.subTest(name):
                self.assertIn(self.path, str(self.assertRaises(StateFileError, self.load, text)))

    def test_a_torn_file(self) -> None:
        """No beginning of a file passes for a shorter table, but for the end of its last line."""
        whole = b"3\n7-7000\n8-8000\n9-9000\n"
        for end in range(len(whole) - len("9000\n") + 1):
            self.assertRaises(StateFileError, self.load, whole[:end])

    def test_power_failures(self) -> None:
        """After a power failure the file is the old table or the new one."""
        old, new = [Epoch(1, 0)], [Epoch(1, 0), Epoch(2, 4000)]
        for seed in range(10):
            node = Node(World(seed), SimNet(World(seed)), "broker")
            node.start()
            save_epochs(node.disk, "/epochs", old)
            save_epochs(node.disk, "/epochs", new)
            node.crash()
            node.start()
            self.assertEqual(load_epochs(node.disk, "/epochs"), new)

    def test_a_failed_write(self) -> None:
        """A write that fails is a DiskError, and the old table is still there."""
        node = Node(World(1), SimNet(World(1)), "broker")
        node.start()
        save_epochs(node.disk, "/epochs", [Epoch(1, 0)])
        node.disk.fail_writes = 1
        self.assertRaises(DiskError, save_epochs, node.disk, "/epochs", [Epoch(2, 0)])
        self.assertEqual(load_epochs(node.disk, "/epochs"), [Epoch(1, 0)])


class WithEpochTests(SynchronousTestCase):
    def test_a_new_epoch(self) -> None:
        """A new master's epoch begins with the end of its log."""
        self.assertEqual(with_epoch([], 1, 0), [Epoch(1, 0)])
        self.assertEqual(with_epoch([Epoch(1, 0)], 3, 500), [Epoch(1, 0), Epoch(3, 500)])

    def test_an_epoch_without_bytes(self) -> None:
        """An epoch in which nothing was written, or nothing that is there still, is left out."""
        self.assertEqual(with_epoch([Epoch(1, 0), Epoch(2, 500)], 3, 500), [Epoch(1, 0), Epoch(3, 500)])
        self.assertEqual(with_epoch([Epoch(1, 0), Epoch(2, 500)], 3, 400), [Epoch(1, 0), Epoch(3, 400)])
        self.assertEqual(with_epoch([Epoch(1, 0)], 2, 0), [Epoch(2, 0)])


class CommonEndTests(SynchronousTestCase):
    def test_the_same_table(self) -> None:
        """All that this log has came from that master."""
        for table in ([Epoch(1, 0)], [Epoch(1, 0), Epoch(2, 500)]):
            self.assertIsNone(common_end(table, table))

    def test_this_one_was_not_there(self) -> None:
        """A log that ends in an older epoch agrees up to where the master's next one begins."""
        self.assertEqual(common_end([Epoch(1, 0)], [Epoch(1, 0), Epoch(2, 500)]), 500)
        self.assertEqual(common_end([Epoch(1, 0)], [Epoch(1, 0), Epoch(2, 500), Epoch(3, 700)]), 500)

    def test_this_one_had_its_own_epoch(self) -> None:
        """Both went on after their last common epoch: the first that left it decides."""
        self.assertEqual(common_end([Epoch(1, 0), Epoch(2, 500)], [Epoch(1, 0), Epoch(3, 400)]), 400)
        self.assertEqual(common_end([Epoch(1, 0), Epoch(2, 400)], [Epoch(1, 0), Epoch(3, 500)]), 400)

    def test_the_same_epoch_at_another_place(self) -> None:
        """An epoch with another start is another master's: it is not common."""
        self.assertEqual(common_end([Epoch(1, 0), Epoch(2, 500)], [Epoch(1, 0), Epoch(2, 400)]), 400)
        self.assertEqual(common_end([Epoch(1, 100)], [Epoch(1, 200)]), 100)

    def test_from_before_any_election(self) -> None:
        """What was written before the first election is common up to the master's first epoch."""
        self.assertEqual(common_end([], [Epoch(1, 900)]), 900)
        self.assertEqual(common_end([Epoch(1, 900)], [Epoch(2, 700)]), 700)
        self.assertEqual(common_end([], [Epoch(1, 0)]), 0)
        self.assertIsNone(common_end([], []))

    def test_the_master_has_older_epochs_only(self) -> None:
        """A master that is behind this store was elected by a controller that has lost its state."""
        error = self.assertRaises(ValueError, common_end, [Epoch(1, 0), Epoch(5, 500)], [Epoch(1, 0), Epoch(4, 500)])
        self.assertIn("this store has epoch 5, its master only epoch 4", str(error))
        self.assertRaises(ValueError, common_end, [Epoch(1, 0)], [])

    def test_histories(self) -> None:
        """In random histories of masters the offset is never beyond the common bytes, and never below what is safe."""
        rng = random.Random(SEED)
        for _ in range(300):
            logs: list[list[int]] = [[], [], []]  # of each broker: which epoch wrote each byte
            tables: list[list[Epoch]] = [[], [], []]
            for number in itertools.count(1):
                master = rng.randrange(3)
                tables[master] = with_epoch(tables[master], number, len(logs[master]))
                logs[master] += [number] * rng.randrange(4)
                for slave in {0, 1, 2} - {master}:
                    if rng.random() < 0.5:
                        continue
                    if tables[slave] and tables[slave][-1].number > tables[master][-1].number:
                        self.assertRaises(ValueError, common_end, tables[slave], tables[master])
                        continue
                    keep = common_end(tables[slave], tables[master])
                    mine = logs[slave] if keep is None else logs[slave][:keep]
                    self.assertEqual(mine[: len(logs[master])], logs[master][: len(mine)], f"seed {SEED}")
                    self.assertLessEqual(len(mine), len(logs[master]), f"seed {SEED}")
                    taken = rng.randrange(len(mine), len(logs[master]) + 1)
                    logs[slave] = logs[master][:taken]
                    tables[slave] = list(tables[master])
                if number == 8:
                    break
