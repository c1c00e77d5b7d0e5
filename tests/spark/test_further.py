"""Further queues of records (enableMultiDispatch): clean ones are silent, a wrong, missing or extra unit is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from rmq_audit.driver.audit import Options, Result, check
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker import further, kernel
from rmq_audit.worker.frames import Asked, extract

from rmq.store import layout
from rmq.store.multidispatch import further_queues
from rmq.store.queues import is_storable_topic
from rmq.wire import record
from tests.spark.cases import FolderCase
from tests.spark.support import as_json, audit, causes
from tests.spark.synthetic import HOST, MadeStore, Pair, Stored, make_further_store

LIGHT, OTHER, OWN = "%LMQ%a", "Other", "Topic"


def places_of(store: MadeStore, queue: tuple[str, int]) -> list[Stored]:
    """Return the messages of a queue as if they had been sent to it, by their numbers in it."""
    by_phy = {one.phy: one for one in store.stored}
    units = sorted(store.units[queue].items())
    return [
        attrs.evolve(by_phy[layout.CQ_UNIT.unpack(unit)[0]], topic=queue[0], queue_id=queue[1], queue_offset=number)
        for number, unit in units
    ]


def alone(path: Path, split: int = 64 << 20, engine: LocalEngine | None = None) -> Result:
    options = Options(split_bytes=split, chunk_bytes=min(split, 4096))
    return check(str(path), engine or LocalEngine(1), options)


class FurtherCase(FolderCase):
    def pair(self, store: MadeStore, name: str = "pair") -> Pair:
        return Pair(self.folder / name, store)

    def by_numpy(self, what: Callable[[], Any]) -> Any:
        patch = self.patch(kernel, "compiled", None)
        try:
            return what()
        finally:
            patch.restore()

    def silent(self, store: MadeStore, name: str, units: int | None = None) -> None:
        """Check and compare with several sizes of splits and both kernels: nothing is said, every unit is checked."""
        pair = self.pair(store, name)
        wanted = sum(map(len, store.units.values())) if units is None else units
        for split in (1024, 8192, 64 << 20):
            for run in (lambda what: what(), self.by_numpy):
                result = run(partial(alone, pair.master, split))
                self.assertEqual(as_json(result), [], f"{name}, splits of {split}")
                self.assertEqual(result.coverage.master.units_checked, wanted, f"{name}, splits of {split}")
        self.assertEqual(as_json(audit(pair.master, pair.slave, chunk=4096, split=8192)), [], name)


class CleanTests(FurtherCase):
    def test_right_queues_are_silent(self) -> None:
        """Light and ordinary names, direct messages beside them, a queue named twice, the record's own queue."""
        self.silent(make_further_store(), "both")
        ordinary = MadeStore()
        for n in range(60):
            ordinary.put(OTHER if n % 3 else OWN, 1, b"x" * n, further=[] if n % 3 else [(OTHER, 1)])
        self.silent(ordinary, "ordinary")

    def test_without_enable_lmq(self) -> None:
        """Light names have the ids of their records' queues then, which the folders tell."""
        self.silent(make_further_store(lmq=False), "apart")

    def test_after_retention(self) -> None:
        """Units of deleted messages are left in front of each queue."""
        shifted = MadeStore(start=1 << 20)
        for queue in ((OWN, 0), (OWN, 1), (LIGHT, 0), (OTHER, 0), (OTHER, 1)):
            shifted.units[queue] = {n: layout.CQ_UNIT.pack(100 * n, 100, 0) for n in range(7)}
            shifted.next_offset[queue] = 7
        for n in range(40):
            shifted.put(OWN, n % 2, b"x", further=[(LIGHT, 0), (OTHER, n % 2)])
        self.silent(shifted, "retention", units=40 * 3)

    def test_nobody_makes_further_units(self) -> None:
        """
        Properties that a broker without enableMultiDispatch stored as they came, or 5.x with enableLmq alone, count for
        nothing, whatever queues they name.
        """
        store = MadeStore()
        for n in range(40):
            forged = f"INNER_MULTI_DISPATCH\x01{OTHER},{LIGHT}\x02INNER_MULTI_QUEUE_OFFSET\x01{n},{n + 70}\x02"
            store.put(OTHER if n % 2 else OWN, 0, b"x", properties=forged)
        self.silent(store, "forged")

    def test_copies(self) -> None:
        """
        Retried messages have the numbers of the message that they are copies of (5.x), or numbers and units of their
        own (4.9, rmq), also when the first message of a log is one.
        """
        for name, renumbered in (("5.x", False), ("4.9", True)):
            for first in (False, True):
                store = MadeStore(start=1 << 16 if first else 0)
                if first:
                    store.units = {(LIGHT, 0): {n: layout.CQ_UNIT.pack(100 * n, 100, 0) for n in range(9)}}
                    store.next_offset[LIGHT, 0] = 9
                for n in range(30):
                    if n % 3 or (n == 0 and not first):
                        store.put(OWN, 0, b"x", further=[(LIGHT, 0)])
                    elif renumbered:
                        store.put("%RETRY%group", 0, b"x", further=[(LIGHT, 0)])
                    else:
                        old = max(store.next_offset[LIGHT, 0] - 3, 0)
                        stale = f"INNER_MULTI_DISPATCH\x01{LIGHT}\x02INNER_MULTI_QUEUE_OFFSET\x01{old}\x02"
                        store.put("%RETRY%group", 0, b"x", properties=stale)
                pair = self.pair(store, f"{name}-{first}")
                for split in (1024, 64 << 20):
                    self.assertEqual(as_json(alone(pair.master, split)), [], f"{name}, {first}, splits of {split}")

    def test_copies_that_cannot_be_told(self) -> None:
        """Of copies that a log begins with, in splits of their own, it is not known whether they have units."""
        store = MadeStore(start=1 << 16)
        store.units = {(LIGHT, 0): {n: layout.CQ_UNIT.pack(100 * n, 100, 0) for n in range(9)}}
        store.next_offset[LIGHT, 0] = 9
        for topic in ("%RETRY%group", "%RETRY%group", OWN):
            store.put(topic, 0, b"x" * 2000, further=[(LIGHT, 0)])
        pair = self.pair(store)
        for split in (1024, 64 << 20):
            self.assertEqual(as_json(alone(pair.master, split)), [], split)

    def test_a_topic_without_configuration(self) -> None:
        """An ordinary further queue needs no configured topic; one with messages of its own does."""
        store = MadeStore()
        store.put(OWN, 0, b"x", further=[("Free", 0)])
        store.put(OTHER, 0, b"x", further=[("Free", 0)])
        pair = self.pair(store)
        (pair.master / "config" / "topics.json").write_text('{"topicConfigTable":{"Topic":{"topicName":"Topic"}}}')
        found = [one.topic for one in alone(pair.master).findings if one.invariant == "CF-TOPIC"]
        self.assertEqual(found, [OTHER])


class DamageTests(FurtherCase):
    def found(self, plant: Callable[[Pair, list[Stored]], None], queue: tuple[str, int]) -> list[tuple[Any, ...]]:
        """Plant in the slave's queue; return what all ways to audit agree on, which names this queue and the slave."""
        store = make_further_store()
        pair = self.pair(store, f"{queue[0]}-{plant.__name__}")
        plant(pair, places_of(store, queue))
        results = [audit(pair.master, pair.slave, chunk=4096, split=split) for split in (2048, 64 << 20)]
        results.append(self.by_numpy(lambda: audit(pair.master, pair.slave, chunk=4096, split=2048)))
        pool = LocalEngine(2, pool_from_bytes=0)
        self.addCleanup(pool.close)
        results.append(audit(pair.master, pair.slave, chunk=4096, split=2048, engine=pool))
        for one in results[1:]:
            self.assertEqual(as_json(one), as_json(results[0]))
        self.assertEqual({(one.topic, one.queue_id, one.replica) for one in results[0].findings}, {(*queue, "slave")})
        self.assertEqual(as_json(alone(pair.master)), [])
        self.assertEqual(
            {one.invariant for one in alone(pair.slave).findings}, {one.invariant for one in causes(results[0])}
        )
        return [(one.invariant, one.queue_offset_from, one.count) for one in results[0].findings]

    @pytest.mark.campaign
    def test_every_kind_of_damage(self) -> None:
        """A wrong place, size or tagsCode, a missing unit, one too many: found with the queue and its queue offset."""
        for queue in ((LIGHT, 0), ("%LMQ%größe", 0), (OTHER, 1)):
            last = len(places_of(make_further_store(), queue)) - 1

            def place(pair: Pair, held: list[Stored]) -> None:
                unit = layout.CQ_UNIT.pack(held[4].phy, held[4].size, 0)
                pair.write_unit(pair.slave, held[3], unit)

            def size(pair: Pair, held: list[Stored]) -> None:
                pair.write_unit(pair.slave, held[0], layout.CQ_UNIT.pack(held[0].phy, held[0].size + 1, 0))

            def tags(pair: Pair, held: list[Stored]) -> None:
                pair.write_unit(pair.slave, held[2], layout.CQ_UNIT.pack(held[2].phy, held[2].size, 77))

            def empty(pair: Pair, held: list[Stored]) -> None:
                pair.write_unit(pair.slave, held[5], bytes(layout.CQ_UNIT_BYTES))

            def lost(pair: Pair, held: list[Stored]) -> None:
                for one in held[-3:]:
                    pair.write_unit(pair.slave, one, bytes(layout.CQ_UNIT_BYTES))

            def extra(pair: Pair, held: list[Stored]) -> None:
                after = attrs.evolve(held[-1], queue_offset=held[-1].queue_offset + 1)
                pair.write_unit(pair.slave, after, layout.CQ_UNIT.pack(held[1].phy, held[1].size, 0))

            for plant, wanted in (
                (place, ("CQ-MISMATCH", 3, 1)),
                (size, ("CQ-MISMATCH", 0, 1)),
                (tags, ("CQ-TAG", 2, 1)),
                (empty, ("CQ-MISMATCH", 5, 1)),
                (lost, ("CQ-LOST", last - 2, 3)),
                (extra, ("CQ-MISMATCH", last + 1, 1)),
            ):
                self.assertEqual(self.found(plant, queue), [wanted], f"{plant.__name__} in {queue}")

    def test_a_folder_that_is_gone(self) -> None:
        """Of several light queues one lost its folder: all of its units are lost."""
        pair = self.pair(make_further_store())
        (pair.master / layout.CONSUME_QUEUE_DIR / LIGHT).rename(self.folder / "gone")
        (one,) = alone(pair.master).findings
        self.assertEqual((one.invariant, one.topic, one.queue_offset_from), ("CQ-LOST", LIGHT, 0))

    def test_a_queue_of_no_record(self) -> None:
        """A light queue that no record names holds units that belong to none."""
        pair = self.pair(make_further_store())
        queues = pair.master / layout.CONSUME_QUEUE_DIR
        (queues / "%LMQ%stray" / "0").mkdir(parents=True)
        name = layout.file_name(0)
        (queues / "%LMQ%stray" / "0" / name).write_bytes((queues / LIGHT / "0" / name).read_bytes())
        (one,) = alone(pair.master).findings
        self.assertEqual((one.invariant, one.topic, one.queue_offset_from), ("CQ-MISMATCH", "%LMQ%stray", 0))

    def test_numbers_that_are_left_out(self) -> None:
        """A number that no record has in a further queue is a gap of that queue."""
        store = MadeStore()
        for n in range(20):
            if n == 11:
                store.next_offset[LIGHT, 0] += 2
            store.put(OWN, 0, b"x", further=[(LIGHT, 0)])
        found = {(one.invariant, one.topic, one.queue_offset_from) for one in causes(alone(self.pair(store).master))}
        self.assertEqual(found, {("QO-GAP", LIGHT, 11)})


class ClaimTests(FurtherCase):
    NAMES = ("%LMQ%a", "%LMQ%b", "Other", "t", "größe", "", " ", ".", "..", "a/b", "%LMQ%")
    NUMBERS = ("0", "1", "2", "77", "-1", "+1", "", "x", "\u0661", "007", "999999999999999999")

    def log(
        self, chance: random.Random
    ) -> tuple[bytes, list[list[tuple[str, int, int]]], list[list[tuple[str, int, int]]]]:
        """Return records with lists of any kind, and what the broker's own reader says with and without enableLmq."""
        log = bytearray()
        light: list[list[tuple[str, int, int]]] = []
        plain: list[list[tuple[str, int, int]]] = []
        for number in range(40):
            pieces = []
            for _ in range(chance.randrange(3)):
                count = chance.randrange(4)
                pieces.append("INNER_MULTI_DISPATCH\x01" + ",".join(chance.choices(self.NAMES, k=count)))
                count = count if chance.random() < 0.8 else chance.randrange(4)
                weights = [6, 6, 6, 6, *[0.2] * 5, 1, 1]
                listed = ",".join(chance.choices(self.NUMBERS, weights, k=count))
                pieces.append("INNER_MULTI_QUEUE_OFFSET\x01" + listed)
            pieces += ["TAGS\x01T", "K\x01INNER_MULTI_QUEUE_OFFSET"][: chance.randrange(3)]
            chance.shuffle(pieces)
            properties = "\x02".join(pieces) + "\x02" * chance.randrange(2)
            queue_id = number % 3
            log += record.encode_record(
                topic=b"t",
                queue_id=queue_id,
                body=b"INNER_MULTI_QUEUE_OFFSET\x011" * chance.randrange(2),
                properties=properties.encode(),
                born_timestamp=1,
                store_timestamp=2,
                born_host=HOST,
                store_host=HOST,
                queue_offset=number,
                phy_offset=len(log),
            )
            for found, lmq in ((light, True), (plain, False)):
                claims = [one for one in further_queues(properties, queue_id, lmq=lmq) if is_storable_topic(one[0])]
                found.append([one for one in dict.fromkeys(claims) if one != ("t", queue_id, number)])
        return bytes(log), light, plain

    def claims(self, data: bytes, apart: Sequence[str]) -> list[list[tuple[str, int, int]]]:
        found = extract(data, 0, len(data), len(data), Asked(further=True))
        units = further.spread(data, found.columns, found.further, apart)
        self.assertEqual(units.source.tolist(), sorted(units.source.tolist()))
        claimed: list[list[tuple[str, int, int]]] = [[] for _ in range(len(found.columns))]
        for row in np.flatnonzero(units.further).tolist():
            columns = units.columns
            claim = columns.topic(data, row), int(columns.queue_id[row]), int(columns.queue_offset[row])
            claimed[units.source[row]].append(claim)
        return claimed

    def test_what_the_broker_reads(self) -> None:
        """Lists of any kind are read as the broker reads them, by the compiled kernel and without."""
        seen = 0
        for seed in range(150):
            data, light, plain = self.log(random.Random(seed))
            for run in (lambda what: what(), self.by_numpy):
                self.assertEqual(run(partial(self.claims, data, ())), light, f"seed {seed}")
                self.assertEqual(run(partial(self.claims, data, self.NAMES)), plain, f"seed {seed}")
            seen += sum(map(len, light))
        self.assertGreater(seen, 1000)
