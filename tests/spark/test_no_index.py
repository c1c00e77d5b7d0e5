"""Pairs of which one side has no index files: a fault only where messages with keys should be in one."""

from __future__ import annotations

import shutil

from rmq_audit.driver.findings import Finding

from rmq.store import layout
from tests.spark.cases import FolderCase
from tests.spark.support import audit, causes
from tests.spark.synthetic import SEGMENT_BYTES, MadeStore, Pair, make_store


class NoIndexTests(FolderCase):
    def pair(self, made: MadeStore, *, runs: bool, keyed: bool = True) -> Pair:
        """Return a pair whose slave has no index files; ``runs``: its broker runs, or was killed."""
        pair = Pair(self.folder / "pair", made)
        if not keyed:
            for path in self.folder.glob("pair/*/commitlog/*"):
                path.write_bytes(path.read_bytes().replace(b"UNIQ_KEY", b"UNIQ_KEX").replace(b"KEYS\x01", b"KEYX\x01"))
        shutil.rmtree(pair.slave / layout.INDEX_DIR)
        if runs:
            for root in (pair.master, pair.slave):
                (root / layout.ABORT_FILE).touch()
        return pair

    def missing(self, pair: Pair) -> list[Finding]:
        return [one for one in causes(audit(pair.master, pair.slave)) if one.invariant == "IX-MISSING"]

    def test_a_stopped_broker(self) -> None:
        """Each record with keys is missing, from the first one on."""
        made = make_store(3)
        (found,) = self.missing(self.pair(made, runs=False))
        self.assertEqual((found.replica, found.phy_from), ("slave", made.stored[0].phy))
        self.assertGreater(found.count, 500)

    def test_a_running_broker(self) -> None:
        """It makes its first file some time after the first keys, so the last file of the log counts not."""
        made = make_store(3)
        (found,) = self.missing(self.pair(made, runs=True))
        last = made.end - made.end % SEGMENT_BYTES
        self.assertLessEqual(found.count, sum(one.phy < last for one in made.stored))

    def test_the_first_messages(self) -> None:
        """A cluster that has just got its first messages is not damaged."""
        self.assertEqual(self.missing(self.pair(make_store(3, messages=8), runs=True)), [])

    def test_without_keys(self) -> None:
        """Where no message has keys there is nothing to find: Apache's broker makes an empty file, ours none."""
        pair = self.pair(make_store(3), runs=False, keyed=False)
        (index, *_) = sorted((pair.master / layout.INDEX_DIR).iterdir())
        with open(index, "r+b") as file:
            file.write(bytes(layout.INDEX_HEADER_BYTES))
        self.assertEqual(self.missing(pair), [])
