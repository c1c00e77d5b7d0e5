"""
Random ruin: whatever happens to the files, the audit ends with a verdict, and never calls two different logs equal.
"""

from __future__ import annotations

import os
import random
import shutil

import pytest

from tests.spark.cases import FolderCase
from tests.spark.support import as_json, audit
from tests.spark.synthetic import SEGMENT_BYTES, Pair, make_store

SEEDS = range(40)


def ruin(pair: Pair, chance: random.Random) -> str:
    """Damage one side somewhere behind the first segment (whose loss is legal) and say how."""
    root = chance.choice((pair.master, pair.slave))
    at = chance.randrange(SEGMENT_BYTES, pair.made.end)
    size = min(SEGMENT_BYTES - at % SEGMENT_BYTES, chance.choice((1, 4, 9, 100, 1000, 5000)))
    kind = chance.choice(("flip", "zero", "random", "move", "truncate", "empty", "remove"))
    path = pair.segment(root, at)
    if not path.exists() or path.stat().st_size <= at % SEGMENT_BYTES:
        return "nothing"
    if kind == "flip":
        pair.flip(root, at, 1 << chance.randrange(8))
    elif kind == "zero":
        pair.write(root, at, bytes(size))
    elif kind == "random":
        pair.write(root, at, chance.randbytes(size))
    elif kind == "move":
        pair.write(root, at, pair.read(pair.slave, chance.randrange(SEGMENT_BYTES), size))
    elif kind == "truncate":
        os.truncate(path, at % SEGMENT_BYTES)
    elif kind == "empty":
        os.truncate(path, 0)
    else:
        path.unlink()
    return f"{kind} {root.name} {at} {size}"


class RuinTests(FolderCase):
    @pytest.mark.campaign
    def test_random_damage(self) -> None:
        """
        For every seed: no crash, the same findings for small and large splits, and no silence when a record
        differs.
        """
        made = make_store(13, 300)
        silent = 0
        for seed in SEEDS:
            chance = random.Random(seed)
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            pair = Pair(self.folder, made)
            done = [ruin(pair, chance) for _ in range(chance.choice((1, 1, 2, 5)))]
            small, large = (audit(pair.master, pair.slave, chunk=4096, split=size) for size in (4096, 1 << 20))
            self.assertEqual(as_json(small), as_json(large), f"seed {seed}: {done}")
            if self.records_differ(pair):
                self.assertEqual(large.exit_status, 2, f"seed {seed}: {done}")
            else:
                silent += 1
        self.assertLess(silent, len(SEEDS) / 2)

    def records_differ(self, pair: Pair) -> bool:
        """Whether any record of the made store has other bytes on the two sides, or is gone from one."""
        held = {}
        for root in (pair.master, pair.slave):
            files = [pair.segment(root, at) for at in range(0, pair.made.end, SEGMENT_BYTES)]
            held[root] = [path.read_bytes() if path.exists() else b"" for path in files]
        for one in pair.made.stored:
            number, at = divmod(one.phy, SEGMENT_BYTES)
            ours, theirs = (held[root][number][at : at + one.size] for root in (pair.master, pair.slave))
            if ours != theirs:
                return True
        return False
