"""Splits of the sizes that they have in life: the same findings however a log is cut, by whatever engine and kernel."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from rmq_audit.engine.engines import Engine, LocalEngine
from rmq_audit.worker import kernel

from rmq.store import layout
from tests.needs import need_compiled
from tests.spark import synthetic
from tests.spark.cases import EngineCase, FolderCase
from tests.spark.support import as_json, audit, result_of, rmq_audit
from tests.spark.synthetic import MadeStore, Pair, Stored, put_forged

#: half a minute of one core and more
pytestmark = pytest.mark.campaign

MIB = 1 << 20
SPLITS = (1 * MIB, 8 * MIB, 64 * MIB)
#: one and a half splits of 64 MiB, so that such splits meet inside a segment too
SEGMENT_BYTES = 96 * MIB
LOG_BYTES = 168 * MIB
SEED = 31


def large_store(seed: int) -> MadeStore:
    """
    Return a clean store in whose log every eighth MiB begins inside a body full of forged records, and most of the
    others inside a record too; small records and large ones between.
    """
    chance = random.Random(seed)
    store = MadeStore()
    while store.end < LOG_BYTES:
        topic, queue_id = f"topic-{chance.randrange(3)}", chance.randrange(2)
        left = MIB - store.end % MIB
        if left > 70_000:
            large = chance.random() < 0.5
            store.put(topic, queue_id, chance.randbytes(chance.randrange(64_000 if large else 400)))
        elif left > 2500:
            store.put(topic, queue_id, chance.randbytes(left - 2000))
        elif (store.end + left) % (8 * MIB) == 0:
            put_forged(store, topic, queue_id, chance)
        else:
            store.put(topic, queue_id, chance.randbytes(chance.randrange(9000)))
    return store


def over_the_seams(made: MadeStore) -> Iterator[Stored]:
    """Yield the records that begin in one split of 8 MiB and end in the next one, and the first of every segment."""
    for one in made.stored:
        if one.phy // (8 * MIB) != (one.phy + one.size - 1) // (8 * MIB) or one.phy % SEGMENT_BYTES == 0:
            yield one


def damage(pair: Pair, seed: int) -> None:
    """Change bits of records at seams and far from them, on either side and on both, and of consume queues."""
    chance = random.Random(seed)
    at_seams = list(over_the_seams(pair.made))
    assert len(at_seams) > 12, at_seams
    for root in (pair.master, pair.slave):
        for one in (*chance.sample(at_seams, 8), *chance.sample(pair.made.stored, 12)):
            at = chance.choice((4, 28, chance.randrange(one.size), one.body_at - one.phy, one.size - 1))
            pair.flip(root, one.phy + at, 1 << chance.randrange(8))
        for one in chance.sample(pair.made.stored, 4):
            if one.body_size:
                pair.write_unit(root, one, layout.CQ_UNIT.pack(one.phy, one.size, chance.randrange(1 << 31)))


class SizeCase(FolderCase):
    def make(self) -> Pair:
        self.patch(synthetic, "SEGMENT_BYTES", SEGMENT_BYTES)
        return Pair(self.folder, large_store(SEED))

    def make_damaged(self) -> Pair:
        pair = self.make()
        damage(pair, SEED)
        return pair

    def look(self, pair: Pair, split: int, engine: Engine | None = None) -> list[dict[str, Any]]:
        """Audit in splits of so many bytes, and see that they met."""
        result = audit(pair.master, pair.slave, split=split, engine=engine)
        assert result.slave is not None
        again = result.coverage.splits_read_again
        # three files a side, the last one made ahead
        self.assertGreaterEqual(result.coverage.splits - again, 6 * -(-SEGMENT_BYTES // split))
        self.assertGreater(again, 0, "no split began in a forged record")
        return as_json(result)


class LocalTests(SizeCase):
    def test_a_clean_pair(self) -> None:
        """Splits of every size begin in forged records, and nothing is found."""
        pair = self.make()
        for split in SPLITS:
            self.assertEqual(self.look(pair, split), [], split)

    def test_a_damaged_pair(self) -> None:
        """
        Every member of every finding is the same for splits of 1, 8 and 64 MiB, by one process and by a pool, with the
        compiled kernel and with numpy.
        """
        pair = self.make_damaged()
        wanted = self.look(pair, 64 * MIB)
        self.assertGreater(len(wanted), 40)
        pool = LocalEngine(2, pool_from_bytes=0)
        self.addCleanup(pool.close)
        for split in SPLITS:
            self.assertEqual(self.look(pair, split, pool), wanted, split)
        if kernel.compiled is None:
            need_compiled("rmq_audit.worker._kernel")
        self.patch(kernel, "compiled", None)
        for split in SPLITS:
            self.assertEqual(self.look(pair, split), wanted, split)


@pytest.mark.spark
@pytest.mark.campaign
class SparkTests(EngineCase, SizeCase):
    def test_a_damaged_pair(self) -> None:
        """On Spark splits of 1, 8 and 64 MiB have the findings of one process."""
        pair = self.make_damaged()
        wanted = self.look(pair, 64 * MIB)
        for split in SPLITS:
            self.assertEqual(self.look(pair, split, self.engine), wanted, split)

    def test_without_the_compiled_kernel(self) -> None:
        """So they have where Spark's workers have numpy only."""
        pair = self.make_damaged()
        wanted = self.ask(pair, {}, "--engine", "local")
        self.assertEqual(wanted["kernel"], kernel.NAME)
        found = self.ask(pair, {"RMQ_PURE_PYTHON": "1"}, "--master-url", "local[2]", "--split-bytes", str(8 * MIB))
        self.assertEqual((found["kernel"], found["findings"]), ("numpy", wanted["findings"]))

    def ask(self, pair: Pair, environment: dict[str, str], *options: str) -> dict[str, Any]:
        """Return the result of a run in a process of its own."""
        path = self.folder / "result.json"
        command = "compare", pair.master, pair.slave, "--json", path, *options
        answer = rmq_audit(*command, environment=environment, timeout_s=600)
        self.assertEqual((answer.returncode, answer.stderr), (2, ""))
        found = result_of(path)
        for one in found["findings"]:
            del one["run_id"]
        return found
