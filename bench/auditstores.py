"""Large stores made in seconds: one block of sound records, repeated with its offsets moved on."""

from __future__ import annotations

import os
import random
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from rmq.store import layout
from rmq.wire import record

HOST = (bytes((10, 0, 0, 1)), 10911)
TOPICS, QUEUES = 4, 4
QUEUE_FILE_BYTES = 300_000 * layout.CQ_UNIT_BYTES
START_MS = 1_790_000_000_000


@attrs.frozen
class Made:
    """A store directory with ``records`` messages in ``log_bytes`` of log."""

    path: Path
    records: int
    log_bytes: int


def make_store(path: Path, log_bytes: int, *, body_bytes: int, segment_bytes: int, seed: int = 1) -> Made:
    """
    Write a clean store with about ``log_bytes`` of log and its consume queues.

    Bodies have ``body_bytes`` on average, give or take a quarter; they and the properties repeat after some MiB,
    offsets and places never.
    """
    block = _Block(random.Random(seed), body_bytes)
    log = path / layout.COMMIT_LOG_DIR
    log.mkdir(parents=True)
    units: list[npt.NDArray[np.void]] = []
    records = 0
    for start in range(0, log_bytes, segment_bytes):
        size = min(segment_bytes, log_bytes - start)
        with open(log / layout.file_name(start), "wb") as file:
            at = start
            while at + len(block.data) + record.BLANK_BYTES <= start + size:
                file.write(block.at(at, records))
                units.append(block.units(at))
                at += len(block.data)
                records += block.records
            if size == segment_bytes:
                file.write(record.blank(start + segment_bytes - at))
            file.truncate(segment_bytes)
    _write_queues(path, np.concatenate(units))
    return Made(path, records, log_bytes)


class _Block:
    """About 4 MiB of records whose queues take turns, so that each block moves all queue offsets on by the same."""

    def __init__(self, chance: random.Random, body_bytes: int) -> None:
        lanes = TOPICS * QUEUES
        self.records = (4 << 20) // (body_bytes + 174) // lanes * lanes
        raw = [self._record(number, chance, body_bytes) for number in range(self.records)]
        self.sizes = np.array([len(one) for one in raw], dtype=np.int64)
        self.starts = np.concatenate(([0], np.cumsum(self.sizes)[:-1]))
        self.tags = np.array([record.tags_code(f"T{number % 5}") for number in range(self.records)], dtype=np.int64)
        self.data = bytearray(b"".join(raw))
        self._rounds = np.arange(self.records, dtype=np.int64) // lanes
        self._number = np.arange(self.records, dtype=np.int64)

    def _record(self, number: int, chance: random.Random, body_bytes: int) -> bytes:
        lane = number % (TOPICS * QUEUES)
        unique = chance.randbytes(16).hex().upper()
        properties = f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02TAGS\x01T{number % 5}\x02CLUSTER\x01bench"
        return record.encode_record(
            topic=f"bench-topic-{lane // QUEUES}".encode(),
            queue_id=lane % QUEUES,
            body=chance.randbytes(chance.randrange(body_bytes * 3 // 4, body_bytes * 5 // 4)),
            properties=properties.encode(),
            born_timestamp=START_MS,
            store_timestamp=START_MS,
            born_host=HOST,
            store_host=HOST,
            queue_offset=0,
            phy_offset=0,
        )

    def at(self, phy: int, records: int) -> bytearray:
        """Return the block for the physical offset ``phy``, behind so many records."""
        self._put(20, self._rounds + records // (TOPICS * QUEUES))
        self._put(28, self.starts + phy)
        self._put(56, (self._number + records) // 100 + START_MS)
        return self.data

    def units(self, phy: int) -> npt.NDArray[np.void]:
        made = np.empty(self.records, dtype=[("phy", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
        made["phy"], made["size"], made["tags_code"] = self.starts + phy, self.sizes, self.tags
        return made

    def _put(self, field: int, values: npt.NDArray[np.int64]) -> None:
        view = np.frombuffer(self.data, dtype=np.uint8)
        view[(self.starts + field)[:, None] + np.arange(8)] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _write_queues(path: Path, units: npt.NDArray[np.void]) -> None:
    for lane in range(TOPICS * QUEUES):
        folder = path / layout.CONSUME_QUEUE_DIR / f"bench-topic-{lane // QUEUES}" / str(lane % QUEUES)
        folder.mkdir(parents=True)
        raw = units[lane :: TOPICS * QUEUES].tobytes()
        for start in range(0, len(raw), QUEUE_FILE_BYTES):
            (folder / layout.file_name(start)).write_bytes(
                raw[start : start + QUEUE_FILE_BYTES].ljust(QUEUE_FILE_BYTES, b"\0")
            )


def copy_store(made: Made, path: Path) -> Made:
    """Return a replica of a made store, byte for byte."""
    for folder, _, names in os.walk(made.path):
        target = path / os.path.relpath(folder, made.path)
        target.mkdir(parents=True)
        for name in names:
            (target / name).write_bytes((Path(folder) / name).read_bytes())
    return Made(path, made.records, made.log_bytes)


def shorter(made: Made, path: Path, log_bytes: int) -> Path:
    """Return a store of the first segments of another one, up to so many bytes; they share the files."""
    log = path / layout.COMMIT_LOG_DIR
    log.mkdir(parents=True)
    for file in (made.path / layout.COMMIT_LOG_DIR).iterdir():
        if int(file.name) < log_bytes:
            os.link(file, log / file.name)
    return path
