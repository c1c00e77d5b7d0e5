"""Splits that begin anywhere: they find their first record, and where they are fooled they are read again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import attrs
from rmq_audit.driver.inventory import take_inventory
from rmq_audit.driver.scan import join_scans, plan_splits
from rmq_audit.engine.engines import packed
from rmq_audit.worker.scan import Scan, Split, scan
from twisted.trial.unittest import SynchronousTestCase

from tests.spark.cases import FolderCase
from tests.spark.synthetic import SEGMENT_BYTES, MadeStore, Pair, make_store, put_forged


class SeamTests(FolderCase):
    def splits(self, pair: Pair, size: int) -> list[Split]:
        store = take_inventory("master", str(pair.master))
        return [
            split
            for segment in store.segments
            for split in plan_splits(store, segment, SEGMENT_BYTES, split_bytes=size, chunk_bytes=size, crc=True)
        ]

    def scan_all(self, splits: Sequence[Split]) -> list[Scan]:
        return [scan(split) for split in splits]

    def test_splits_cover_each_segment_once(self) -> None:
        """Splits lie on the chunk grid of their segment, touch each other, and only the first has a trusted start."""
        pair = Pair(self.folder, make_store(1, 200))
        splits = self.splits(pair, 5000)
        for before, after in itertools.pairwise(splits):
            self.assertEqual(before.end, after.begin)
            self.assertEqual(after.start, after.begin if after.begin % SEGMENT_BYTES == 0 else None)
            self.assertEqual((after.begin - after.file.start) % 5000, 0)

    def test_a_split_in_a_forged_record_is_read_again(self) -> None:
        """
        A split that begins inside a body full of forged records takes one for its first; the seam shows it, and in
        the end exactly the true records are counted.
        """
        made = MadeStore()
        for _ in range(20):
            put_forged(made, "t", 0, random.Random(1))
        pair = Pair(self.folder, made)
        scans = self.scan_all(self.splits(pair, 1024))
        joined, again = join_scans(scans, self.scan_all)
        self.assertGreater(sum(stretch.records for one in scans for stretch in one.stretches), len(made.stored))
        self.assertEqual(sum(stretch.records for one in joined for stretch in one.stretches), len(made.stored))
        self.assertGreater(again, 0)

    def test_a_planted_mismatch_is_seen(self) -> None:
        """A split that claims another first record than its neighbour's end is read again from that end."""
        pair = Pair(self.folder, make_store(2, 200))
        scans = self.scan_all(self.splits(pair, 16384))
        good, number = join_scans(scans, self.scan_all)
        self.assertEqual(number, join_scans(scans, self.scan_all)[1])
        victim = next(index for index, one in enumerate(scans) if one.split.start is None and one.first is not None)
        asked: list[Split] = []

        def again(splits: Sequence[Split]) -> list[Scan]:
            asked.extend(splits)
            return self.scan_all(splits)

        lying = list(scans)
        lying[victim] = attrs.evolve(scans[victim], first=(scans[victim].first or 0) + 1)
        joined, _ = join_scans(lying, again)
        self.assertIn(scans[victim - 1].stop, [split.start for split in asked])
        records = [sum(stretch.records for one in each for stretch in one.stretches) for each in (joined, good)]
        self.assertEqual(records[0], records[1])

    def test_records_larger_than_a_split(self) -> None:
        """A record that covers several splits belongs to the one it starts in; the covered ones count for nothing."""
        made = MadeStore()
        for _ in range(9):
            made.put("t", 0, random.Random(2).randbytes(12_000))
        pair = Pair(self.folder, made)
        joined, _ = join_scans(self.scan_all(self.splits(pair, 1024)), self.scan_all)
        starts = [stretch.start for one in joined for stretch in one.stretches if stretch.records]
        self.assertEqual(starts, [one.phy for one in made.stored])

    def test_a_shrinking_file_is_told(self) -> None:
        """A file that becomes shorter after it was listed is an error of its splits, not the end of the process."""
        pair = Pair(self.folder, make_store(3, 200))
        splits = self.splits(pair, 16384)
        Path(splits[1].file.path).write_bytes(b"short")
        errors = [one.error for one in self.scan_all(splits[:4])]
        self.assertTrue(all(error is not None and splits[1].file.path in error for error in errors), errors)


class PackingTests(SynchronousTestCase):
    def test_small_tasks_share_a_partition(self) -> None:
        """Partitions keep the order, hold every task once, and are about as many as wanted."""
        sizes = [random.Random(7).randrange(1, 100) for _ in range(50)]
        groups = list(packed(sizes, lambda size: size, 4))
        self.assertEqual([index for group in groups for index in group], list(range(50)))
        self.assertIn(len(groups), (4, 5))
        self.assertEqual(list(packed([0, 0, 0], lambda size: size, 2)), [[0, 1, 2]])

    def test_much_work_makes_several_partitions_a_core(self) -> None:
        """Splits of 64 MiB on two cores: one at a time first, then as many together as keep all cores busy."""
        for gib, wanted in ((1 / 16, 1), (1, 16), (2, 16), (4, 16), (64, 256)):
            groups = list(packed([64 << 20] * int(gib * 16), lambda size: size, 2))
            self.assertEqual((gib, len(groups)), (gib, wanted))
