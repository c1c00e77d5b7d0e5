"""The compiled kernel and its Python twin: the same columns, rows, numbers and findings, of any bytes whatever."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import numpy as np
import pytest
from rmq_audit.engine.engines import LocalEngine
from rmq_audit.worker import further, kernel, properties
from rmq_audit.worker.frames import Asked, Extract, extract, merge_extracts
from rmq_audit.worker.kernel import Columns

from rmq.wire import record
from tests.needs import need_compiled
from tests.spark.cases import FolderCase
from tests.spark.support import as_json, audit
from tests.spark.synthetic import HOST, Pair, make_further_store, make_store

ROUNDS = 400

Answer = TypeVar("Answer")


def plain(value: Any) -> Any:
    """Return columns, runs and the like as lists, which compare."""
    if attrs.has(type(value)):
        return [plain(getattr(value, field.name)) for field in attrs.fields(type(value))]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def log_with_property_crcs(chance: random.Random) -> bytes:
    """Return records as 5.x writes them with a CRC of the whole record, some of them wrong, some no number."""
    log = bytearray()
    for number in range(40):
        head = f"UNIQ_KEY\x01{number:X}\x02TAGS\x01T\x02KEYS\x01\x02".encode()
        raw = record.encode_record(
            topic=f"t{number % 3}".encode(),
            queue_id=number % 2,
            body=chance.randbytes(chance.randrange(100)),
            properties=head + b"__CRC32#\x01" + b"0" * 10 + b"\x02",
            born_timestamp=1,
            store_timestamp=2,
            born_host=HOST,
            store_host=HOST,
            queue_offset=number,
            phy_offset=len(log),
        )
        digits = f"{zlib.crc32(raw[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        if number % 7 == 3:
            digits = chance.choice(("12345x7890", "9999999999", digits[::-1]))
        log += raw[:-11] + digits.encode() + b"\x02"
    return bytes(log)


def columns_of(data: bytes, at: int) -> Columns:
    return extract(data, at, len(data), len(data), Asked()).columns


class TwinCase(FolderCase):
    def setUp(self) -> None:
        if kernel.compiled is None:
            need_compiled("rmq_audit.worker._kernel")

    def by_numpy(self, what: Callable[[], Answer]) -> Answer:
        """Do it with the Python twin."""
        patch = self.patch(kernel, "compiled", None)
        try:
            return what()
        finally:
            patch.restore()

    def same(self, what: Callable[[], Answer], hint: object) -> Answer:
        """Do it with both, and return the answer if it is the same."""
        found = what()
        self.assertEqual(plain(found), plain(self.by_numpy(what)), hint)
        return found


class KernelTests(TwinCase):
    def test_crc(self) -> None:
        """The CRC is that of zlib, at every length and by every way the processor may take."""
        chance = random.Random(1)
        for size in (*range(200), 255, 256, 257, 1000, 65_537):
            data = chance.randbytes(size)
            assert kernel.compiled is not None
            self.assertEqual(kernel.compiled.crc32(data), (zlib.crc32(data),) * 2, size)

    def buffers(self) -> Iterator[tuple[int, random.Random, bytes, int]]:
        """Yield (seed, chance, buffer, place) of logs cut anywhere with bytes changed, and of mere noise."""
        logs = (
            bytes(make_store(1, 300).log),
            log_with_property_crcs(random.Random(2)),
            bytes(make_further_store().log),
            b"",
        )
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            log = logs[seed % 4] or chance.randbytes(3000)
            begin = chance.randrange(max(len(log) - 15_000, 1)) if seed % 2 else 0
            data = bytearray(log[begin : begin + chance.randrange(15_000)])
            for _ in range(chance.randrange(5) if data else 0):
                data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            at = max(bytes(data).find(record.MAGIC_V1.to_bytes(4, "big", signed=True)) - 4, 0)
            yield seed, chance, bytes(data), at

    def test_surveys(self) -> None:
        """Fields, queues, tagsCodes, CRCs, runs and digests: all the same for hostile bytes too."""
        seen = records = wrong = spread = 0
        for seed, chance, data, at in self.buffers():
            end = chance.choice((len(data), chance.randrange(len(data) + 10)))
            stop = chance.choice((end, chance.randrange(len(data) + 10)))
            asked = Asked(crc=chance.random() < 0.8, tags=chance.random() < 0.8, further=chance.random() < 0.8)

            def everything(data: bytes, at: int, stop: int, end: int, asked: Asked) -> Any:
                found = extract(data, at, stop, end, asked)
                columns, tags = found.columns, None if found.tags is None else found.tags.tolist()
                wrong = found.wrong_bodies.tolist(), found.wrong_properties.tolist()
                runs = kernel.runs(data, columns, found.queues, 1 << 40, found.tags)
                units = further.spread(data, columns, found.further, ())
                more = found.further.tolist(), further.runs(data, units, 1 << 40, found.tags)
                return [plain(columns), self.canonical(found.queues), tags, wrong, plain(runs), plain(more)]

            columns, _, _, (bodies, properties_), _, (numbered, _) = self.same(
                partial(everything, data, at, stop, end, asked), f"seed {seed}"
            )
            seen += bool(columns[0])
            records += len(columns[0])
            wrong += len(bodies) + len(properties_)
            spread += len(numbered)
        for count, least in ((seen, ROUNDS // 3), (records, 1000), (wrong, 100), (spread, 1000)):
            self.assertGreater(count, least)

    def canonical(self, queues: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """Number queues as they come: their numbers say nothing more."""
        known: dict[int, int] = {}
        return [known.setdefault(one, len(known)) for one in queues.tolist()]

    def test_single_questions(self) -> None:
        """What is asked of records one by one (places, properties, hashes of any text) has the same answer too."""
        for seed, chance, data, at in self.buffers():
            columns = self.same(partial(columns_of, data, at), seed)
            some = columns.pos[np.array([chance.random() < 0.5 for _ in range(len(columns))], dtype=np.bool_)]
            chosen = self.same(partial(kernel.gather, data, some), seed)
            for name in (b"TAGS", b"KEYS", b"UNIQ_KEY", b"absent"):
                self.same(partial(properties.values_of, data, chosen, name), seed)
            self.same(partial(properties.tags_codes, data, chosen), seed)
            places = np.array([chance.randrange(len(data)) for _ in range(20 if data else 0)], dtype=np.int64)
            lengths = np.minimum(len(data) - places, chance.randrange(40))
            self.same(partial(properties.java_hashes, data, places, lengths), seed)

    def test_what_a_window_holds_later(self) -> None:
        """Extracts of parts that follow each other, merged, are the extract of the whole."""
        data = bytes(make_store(3, 100).log) + bytes(make_further_store().log)
        asked = Asked(crc=True, tags=True, further=True)
        whole = extract(data, 0, len(data), len(data), asked)
        pieces: list[Extract] = []
        at = 0
        for stop in (5000, 5001, 20_000, len(data) - 5000, len(data)):
            pieces.append(extract(data, at, stop, len(data), asked))
            if len(pieces[-1].columns):
                at = int(pieces[-1].columns.pos[-1] + pieces[-1].columns.size[-1])
        self.assertEqual(plain(merge_extracts(data, pieces)), plain(whole))
        self.assertGreater(len(pieces[-1].further), 10)

    def test_columns_that_lie(self) -> None:
        """Places outside the buffer are refused and never read, whatever columns say."""
        data = log_with_property_crcs(random.Random(4))
        columns = columns_of(data, 0)
        huge, one = np.array([1 << 62, -1, len(data) + 1]), np.array([1, 1, 1])
        for pos, length in ((huge, one), (one, huge), (huge, huge)):
            lying = Columns(*[pos, length] * 7)
            self.assertRaises(IndexError, kernel.queue_keys, data, lying)
            self.assertRaises(IndexError, properties.values_of, data, lying, b"TAGS")
            self.assertRaises(IndexError, properties.java_hashes, data, pos, length)
        for start in (-1, len(data), len(data) - 10, 1 << 62):
            self.assertRaises(IndexError, kernel.gather, data, [start])
        self.assertRaises(IndexError, extract, data, -1, len(data), len(data), Asked())
        self.assertRaises(IndexError, kernel.runs, data, columns, np.full(len(columns), 1 << 40), 0)

    def test_many_queues(self) -> None:
        """More queues than the table of the kernel has room for at first."""
        log = b"".join(
            record.encode_record(
                topic=f"topic-{number % 3000}".encode(),
                queue_id=number % 7,
                body=b"",
                properties=b"",
                born_timestamp=1,
                store_timestamp=2,
                born_host=HOST,
                store_host=HOST,
                queue_offset=number,
                phy_offset=0,
            )
            for number in range(6000)
        )
        found = extract(log, 0, len(log), len(log), Asked())
        self.assertEqual((len(found.columns), len(set(found.queues.tolist()))), (6000, 6000))
        numpy = self.by_numpy(lambda: extract(log, 0, len(log), len(log), Asked()))
        self.assertEqual(plain(numpy.columns), plain(found.columns))


class FindingTests(TwinCase):
    def damaged(self, seed: int) -> Pair:
        """Return a pair with damage of many kinds, in places of its log and of its consume queues."""
        chance = random.Random(seed)
        pair = Pair(self.folder / str(seed), make_store(seed))
        for root in (pair.master, pair.slave):
            for one in chance.sample(pair.made.stored, 12):
                pair.flip(root, one.phy + chance.randrange(one.size), 1 << chance.randrange(8))
            for path, at, _ in chance.sample(list(pair.units(root)), 3):
                with open(path, "r+b") as file:
                    file.seek(at + chance.randrange(20))
                    file.write(chance.randbytes(1))
        return pair

    def findings(self, pair: Pair, split: int, engine: LocalEngine | None = None) -> list[dict[str, Any]]:
        """Audit in splits of so many bytes; chunks stay the same, since findings name them."""
        return as_json(audit(pair.master, pair.slave, chunk=1024, split=split, engine=engine))

    @pytest.mark.campaign
    def test_splits_and_kernels(self) -> None:
        """
        Splits of 1, 8 and 64 KiB (a segment here, as 64 MiB are a part of one in life), both kernels, one process and
        a pool: every member of every finding is the same.
        """
        pool = LocalEngine(2, pool_from_bytes=0)
        self.addCleanup(pool.close)
        for seed in (21, 22, 23):
            pair = self.damaged(seed)
            wanted = self.findings(pair, 64 << 10)
            self.assertGreater(len(wanted), 20)
            engines: Sequence[LocalEngine | None] = (None, pool) if seed == 21 else (None,)
            for split in (1 << 10, 8 << 10, 64 << 10):
                for engine in engines:
                    self.assertEqual(self.findings(pair, split, engine), wanted, f"seed {seed}, splits of {split}")
                by_numpy = self.by_numpy(partial(self.findings, pair, split))
                self.assertEqual(by_numpy, wanted, f"seed {seed}, splits of {split}, numpy")
