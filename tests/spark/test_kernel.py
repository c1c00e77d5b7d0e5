"""The kernel against a plain reading of the same bytes, and against bytes that are no log."""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from typing import cast

import numpy as np
from rmq_audit.worker import kernel
from rmq_audit.worker.frames import Asked, extract
from rmq_audit.worker.indexes import single_keys
from rmq_audit.worker.records import plausible_size, record_at
from rmq_audit.worker.scan import filled_to
from twisted.trial.unittest import SynchronousTestCase

from rmq.wire import record
from tests.spark.synthetic import HOST, HOST_V6, as_v2, make_store

ROUNDS = 60


def simple_walk(data: bytes) -> list[int]:
    """
    The starts of the sound records from the beginning of ``data``, one after the other, by the broker's own reader.
    """
    starts: list[int] = []
    at = 0
    while True:
        frame = record.read_frame(data, at, len(data), phy_offset=None, check_crc=False)
        if isinstance(frame, record.Flaw):
            return starts
        starts.append(at)
        at += frame.size


def log_bytes(seed: int, messages: int = 60) -> bytes:
    return bytes(make_store(seed, messages).log[:40_000])


def encoded(**changes: object) -> bytes:
    values: dict[str, object] = {
        "topic": b"t",
        "queue_id": 0,
        "body": b"b",
        "properties": b"",
        "born_timestamp": 1,
        "store_timestamp": 2,
        "born_host": HOST,
        "store_host": HOST,
    }
    return record.encode_record(**{**values, **changes})  # type: ignore[arg-type]


class GatherTests(SynchronousTestCase):
    def columns(self, data: bytes) -> kernel.Columns:
        return extract(data, 0, len(data), len(data), Asked()).columns

    def test_columns_are_what_the_broker_reads(self) -> None:
        """Every field of every record equals what rmq.wire.record decodes, IPv6 hosts and V2 records included."""
        for seed in range(4):
            data = log_bytes(seed)
            columns = self.columns(data)
            self.assertEqual(columns.pos.tolist(), simple_walk(data))
            for index, pos in enumerate(columns.pos.tolist()):
                read = record.decode_record(data, pos)
                topic = data[columns.topic_pos[index] :][: columns.topic_length[index]].decode()
                properties = data[columns.properties_pos[index] :][: columns.properties_length[index]]
                body = data[columns.body_pos[index] :][: columns.body_length[index]]
                self.assertEqual(
                    (read.size, read.body_crc, read.queue_id, read.queue_offset, read.phy_offset, read.sys_flag),
                    tuple(
                        int(getattr(columns, name)[index])
                        for name in ("size", "crc", "queue_id", "queue_offset", "phy", "sys_flag")
                    ),
                )
                self.assertEqual(read.store_timestamp, columns.store_timestamp[index])
                self.assertEqual((read.topic, read.properties, read.body), (topic, properties, body))

    def test_a_broken_byte_never_makes_a_record(self) -> None:
        """With random bytes changed, cut or inserted, the kernel stops where a careful reader does."""
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            data = bytearray(log_bytes(seed % 3, 25))
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(data))
                change = chance.randrange(3)
                if change == 0:
                    data[at] ^= 1 << chance.randrange(8)
                elif change == 1:
                    del data[at : at + chance.randrange(1, 9)]
                else:
                    data[at:at] = chance.randbytes(chance.randrange(1, 9))
            # a topic that is no longer text is still a frame: the audit must compare it, so it has to see it
            wanted = simple_walk(bytes(data))
            found = self.columns(bytes(data)).pos.tolist()
            self.assertEqual(found[: len(wanted)], wanted, f"seed {seed}")
            for extra in found[len(wanted) :]:
                self.assertIsNotNone(record_at(bytes(data), extra, extra), f"seed {seed}")

    def test_garbage_is_no_record(self) -> None:
        """Random bytes give no column and no error, at any length."""
        chance = random.Random(1)
        for size in [*range(130), 4096]:
            self.assertEqual(len(self.columns(chance.randbytes(size))), 0)

    def test_every_cut_of_a_record_is_no_record(self) -> None:
        """A record is seen with its last byte and not before, and its size is known as soon as its header is there."""
        data = encoded(body=b"x" * 50, born_host=HOST_V6, store_host=HOST_V6)
        for size in range(len(data)):
            self.assertIsNone(record_at(data[:size], 0, 0))
            self.assertEqual(plausible_size(data[:size], 0), len(data) if size >= 112 else None)
        self.assertEqual(len(self.columns(data)), 1)


class ZeroTests(SynchronousTestCase):
    def test_where_zeros_begin(self) -> None:
        """The last byte that is none is found wherever it lies, in a mapping as in bytes; what lies outside is not."""
        for seed in range(ROUNDS):
            chance = random.Random(seed)
            data = bytearray(chance.randrange(300_000))
            for _ in range(chance.randrange(3) if data else 0):
                data[chance.randrange(len(data))] = chance.randrange(256)
            begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
            left = len(bytes(data[begin:end]).rstrip(b"\0"))
            self.assertEqual(filled_to(bytes(data), begin, end), begin + left if left else None, f"seed {seed}")
            with mmap.mmap(-1, len(data) + 1) as mapped:
                mapped[:-1] = bytes(data)
                self.assertEqual(filled_to(cast(bytes, mapped), begin, end), begin + left if left else None)


class CrcTests(SynchronousTestCase):
    def test_only_wrong_bodies_fail(self) -> None:
        """Of many records exactly those with a changed body are named; an empty body is never checked."""
        data = bytearray(log_bytes(5))
        starts = simple_walk(bytes(data))
        columns = kernel.gather(bytes(data), starts)
        self.assertEqual(kernel.failed_crcs(bytes(data), columns).tolist(), [])
        chosen = [index for index in range(0, len(starts), 7) if columns.body_length[index] > 0]
        for index in chosen:
            data[columns.body_pos[index]] ^= 1
        self.assertEqual(kernel.failed_crcs(bytes(data), columns).tolist(), chosen)

    def test_crc_has_31_bits(self) -> None:
        """A body whose CRC has its highest bit set is right with that bit cleared, as RocketMQ stores it."""
        body = next(text for text in (b"%d" % number for number in range(99)) if zlib.crc32(text) >> 31)
        data = encoded(body=body)
        self.assertEqual(kernel.failed_crcs(data, kernel.gather(data, [0])).tolist(), [])


class QueueTests(SynchronousTestCase):
    def test_queues_are_kept_separate(self) -> None:
        """Records have equal keys exactly when topic and queue are equal, whatever the length of the topic."""
        chance = random.Random(3)
        names = [b"a" * n for n in (1, 2, 7, 8, 9, 15, 16, 17, 127)] + [b"b" * 8, b"aaaaaaab", b"baaaaaaa"]
        chosen = [(chance.choice(names), chance.randrange(3)) for _ in range(400)]
        data = b"".join(encoded(topic=topic, queue_id=queue_id) for topic, queue_id in chosen)
        columns = kernel.gather(data, simple_walk(data))
        keys = kernel.queue_keys(data, columns).tolist()
        self.assertEqual(len(keys), 400)
        self.assertEqual(len(set(zip(keys, chosen, strict=True))), len(set(chosen)))
        self.assertEqual(len(set(keys)), len(set(chosen)))
        self.assertEqual(kernel._keys_one_by_one(data, columns).tolist(), [keys_of(chosen)[one] for one in chosen])

    def test_runs_and_their_digests(self) -> None:
        """A run ends where a queue's offsets do not follow; its digest is that of the units the queue must hold."""
        offsets = [(0, 5), (1, 0), (0, 6), (0, 8), (1, 1), (0, 9), (0, 9)]
        data = b"".join(encoded(queue_id=queue, queue_offset=offset) for queue, offset in offsets)
        columns = kernel.gather(data, simple_walk(data))
        runs = kernel.runs(data, columns, kernel.queue_keys(data, columns), 1000)
        size = len(encoded())
        self.assertEqual(
            [(one.phy_first, one.queue_id, one.first, one.last) for one in runs],
            [(1000, 0, 5, 6), (1000 + size, 1, 0, 1), (1000 + 3 * size, 0, 8, 9), (1000 + 6 * size, 0, 9, 9)],
        )
        self.assertEqual([one.phy_last for one in runs], [1000 + number * size for number in (2, 4, 5, 6)])
        units = b"".join(struct.pack(">qi", 1000 + index * size, size) for index in (0, 2))
        self.assertEqual(runs[0].digest, kernel.unit_digest(units))

    def test_halves_and_batches_own_no_unit(self) -> None:
        """Prepared and rolled back halves and inner batches stand outside the count of their queue."""
        flags = (
            0,
            record.TRANSACTION_PREPARED,
            record.TRANSACTION_ROLLBACK,
            record.TRANSACTION_COMMIT,
            record.INNER_BATCH,
        )
        data = b"".join(encoded(sys_flag=flag) for flag in flags)
        columns = kernel.gather(data, simple_walk(data))
        self.assertEqual(kernel.owns_unit(columns).tolist(), [True, False, False, True, False])


class KeyTests(SynchronousTestCase):
    def test_several_keys_of_a_record(self) -> None:
        """All at once they are the keys that a broker takes from KEYS, whatever spaces are around them."""
        texts = ["one", "one two", "  one   two ", " ", None, "x" * 300 + " y", "UNIQ KEYS", "k\u00e9 k"]
        data = b""
        for text in texts:
            properties = "" if text is None else f"A\x01 a b \x02KEYS\x01{text}\x02"
            data += encoded(properties=properties.encode(), body=b"a b", phy_offset=len(data))
        keys = single_keys(data, kernel.gather(data, simple_walk(data)))
        found: dict[int, list[str]] = {}
        for row, pos, length in zip(keys.rows.tolist(), keys.pos.tolist(), keys.length.tolist(), strict=True):
            found.setdefault(row, []).append(data[pos : pos + length].decode())
        self.assertEqual([found.get(row, []) for row in range(len(texts))], [record.split_keys(one) for one in texts])


class V2Tests(SynchronousTestCase):
    def test_long_topics_of_5x(self) -> None:
        """A V2 record, whose topic length has two bytes, is read like any other."""
        topic, properties = b"l" * 200, b"TAGS\x01x"
        raw = encoded(topic=topic[:100], properties=properties)
        long = as_v2(raw, 100, len(properties))
        read = record_at(long, 0, 0)
        assert read is not None
        self.assertEqual((read.topic, read.value_of("TAGS")), ("l" * 100, "x"))
        self.assertEqual(np.asarray(kernel.gather(long, [0]).topic_length).tolist(), [100])


def keys_of(chosen: list[tuple[bytes, int]]) -> dict[tuple[bytes, int], int]:
    seen: dict[tuple[bytes, int], int] = {}
    for one in chosen:
        seen.setdefault(one, len(seen))
    return seen
