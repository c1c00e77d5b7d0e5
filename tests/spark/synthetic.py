"""Small store directories made to order: clean ones with every legal trap inside, and ways to damage them."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from rmq.store import layout
from rmq.wire import record
from tests.spark.corruptor.traps import forgery

SEGMENT_BYTES = 64 * 1024
INDEX_SLOTS, INDEX_ENTRIES = 101, 700
QUEUE_FILE_BYTES = 100 * layout.CQ_UNIT_BYTES

HOST = (bytes((10, 0, 0, 1)), 10911)
HOST_V6 = (bytes(range(16)), 10911)


@attrs.frozen(kw_only=True)
class Stored:
    """Where a message of a made store lies."""

    phy: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    body_at: int
    body_size: int
    properties_at: int

    def acked_row(self) -> dict[str, Any]:
        """Return what its producer was told, as a side table of acknowledged sends has it."""
        return {
            "msgId": self.message_id,
            "topic": self.topic,
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "physicalOffset": self.phy,
        }


@attrs.define
class MadeStore:
    """
    A store in memory: log bytes from ``start``, consume queue units by queue, what was stored, and the keys of the
    index as (hash, physical offset, store time).
    """

    start: int = 0
    log: bytearray = attrs.field(factory=bytearray)
    units: dict[tuple[str, int], dict[int, bytes]] = attrs.field(factory=dict)
    next_offset: dict[tuple[str, int], int] = attrs.field(factory=dict)
    stored: list[Stored] = attrs.field(factory=list)
    keys: list[tuple[int, int, int]] = attrs.field(factory=list)
    now_ms: int = 1_790_000_000_000

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        *,
        properties: str = "",
        sys_flag: int = 0,
        host: tuple[bytes, int] = HOST,
        queue_offset: int | None = None,
        wide_topic: bool = False,
        further: Sequence[tuple[str, int]] = (),
    ) -> Stored:
        """
        Append one message, with a BLANK before it where the segment has no room, and with units in ``further`` queues
        as well.
        """
        self.now_ms += 1
        queue = topic, queue_id
        offset = self.next_offset.get(queue, 0) if queue_offset is None else queue_offset
        half = sys_flag & record.TRANSACTION_MASK in (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)
        number = len(self.stored)
        message_id = f"7F0000010000{number:020X}"
        keys = ["", f"k{number % 7}", f"k{number % 7} größe-{number % 3}"][number % 3]
        properties = f"KEYS\x01{keys}\x02{properties}" if keys else properties
        numbers = {queue: self.next_offset.get(queue, 0) for queue in further}
        if further:
            names = ",".join(name for name, _ in further)
            listed = ",".join(str(numbers[queue]) for queue in further)
            properties += f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{listed}\x02"
        raw_properties = f"UNIQ_KEY\x01{message_id}\x02TAGS\x01T{number % 5}\x02{properties}CLUSTER\x01made".encode()

        def encoded(phy: int) -> bytes:
            return record.encode_record(
                topic=topic.encode(),
                queue_id=queue_id,
                body=body,
                properties=raw_properties,
                born_timestamp=self.now_ms - 1,
                store_timestamp=self.now_ms,
                born_host=host,
                store_host=host,
                queue_offset=0 if half else offset,
                phy_offset=phy,
                sys_flag=sys_flag,
            )

        size = len(encoded(0)) + wide_topic
        left = SEGMENT_BYTES - self.end % SEGMENT_BYTES
        if size + record.BLANK_BYTES > left:
            self.log += record.blank(left) + bytes(left - record.BLANK_BYTES)
        phy = self.end
        raw = encoded(phy)
        if wide_topic:
            raw = as_v2(raw, len(topic.encode()), len(raw_properties))
        self.log += raw
        if not half:
            unit = layout.CQ_UNIT.pack(phy, size, record.tags_code(f"T{number % 5}"))
            for place, number in (numbers | {queue: offset}).items():
                self.next_offset[place] = max(self.next_offset.get(place, 0), number + 1)
                self.units.setdefault(place, {})[number] = unit
        if sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK:
            for key in (message_id, *keys.split()):
                self.keys.append((record.index_key_hash(topic, key), phy, self.now_ms))
        header = record.HEADS[sys_flag >> 4 & 3 if host is HOST else 3].size
        one = Stored(
            phy=phy,
            size=size,
            topic=topic,
            queue_id=queue_id,
            queue_offset=0 if half else offset,
            message_id=message_id,
            body_at=phy + header,
            body_size=len(body),
            properties_at=phy + size - len(raw_properties),
        )
        self.stored.append(one)
        return one

    def write(self, root: Path) -> None:
        """Write the store directory, with an empty segment made ahead, as a running broker has it."""
        log = root / layout.COMMIT_LOG_DIR
        log.mkdir(parents=True)
        full = -(-len(self.log) // SEGMENT_BYTES) * SEGMENT_BYTES
        data = bytes(self.log).ljust(full + SEGMENT_BYTES, b"\0")
        for at in range(0, len(data), SEGMENT_BYTES):
            (log / layout.file_name(self.start + at)).write_bytes(data[at : at + SEGMENT_BYTES])
        for (topic, queue_id), units in self.units.items():
            folder = root / layout.CONSUME_QUEUE_DIR / topic / str(queue_id)
            folder.mkdir(parents=True)
            for start in range(0, (max(units) + 1) * layout.CQ_UNIT_BYTES, QUEUE_FILE_BYTES):
                first = start // layout.CQ_UNIT_BYTES
                numbers = range(first, first + QUEUE_FILE_BYTES // layout.CQ_UNIT_BYTES)
                raw = b"".join(units.get(number, bytes(layout.CQ_UNIT_BYTES)) for number in numbers)
                (folder / layout.file_name(start)).write_bytes(raw)
        self._write_index(root / layout.INDEX_DIR)
        self.write_offsets(root / layout.CONFIG_DIR)

    def _write_index(self, folder: Path) -> None:
        """Write index files as RocketMQ fills them."""
        folder.mkdir()
        for number, first in enumerate(range(0, len(self.keys), INDEX_ENTRIES - 1)):
            keys = self.keys[first : first + INDEX_ENTRIES - 1]
            begin, end = (keys[0][2], keys[0][1]), (keys[-1][2], keys[-1][1])
            slots, entries = [0] * INDEX_SLOTS, bytearray(layout.INDEX_ENTRY_BYTES)
            for entry, (key_hash, phy, at_ms) in enumerate(keys, 1):
                slot = key_hash % INDEX_SLOTS
                entries += layout.INDEX_ENTRY.pack(key_hash, phy, max((at_ms - begin[0]) // 1000, 0), slots[slot])
                slots[slot] = entry
            used = sum(value > 0 for value in slots)
            head = layout.INDEX_HEADER.pack(begin[0], end[0], begin[1], end[1], used, len(keys) + 1)
            raw = head + b"".join(map(layout.INDEX_SLOT.pack, slots)) + entries
            size = layout.index_file_bytes(INDEX_SLOTS, INDEX_ENTRIES)
            (folder / f"2026112200000{number:04d}").write_bytes(raw.ljust(size, b"\0"))

    def write_offsets(self, folder: Path) -> None:
        """Write one group's offsets: at the end of every queue, in RocketMQ's JSON with bare numbers as keys."""
        folder.mkdir()
        topics: dict[str, dict[int, int]] = {}
        for (topic, queue_id), offset in sorted(self.next_offset.items()):
            topics.setdefault(topic, {})[queue_id] = offset
        lines = [
            f'"{topic}@group":{{{",".join(f"{q}:{o}" for q, o in queues.items())}}}' for topic, queues in topics.items()
        ]
        (folder / "consumerOffset.json").write_text(f'{{"offsetTable":{{{",".join(lines)}}}}}')


def as_v2(raw: bytes, topic_size: int, properties_size: int) -> bytes:
    """
    Return a V1 record in the format that 5.x uses for long topics: another magic, and the topic's length in two
    bytes.
    """
    at = len(raw) - properties_size - 2 - topic_size - 1
    head = struct.pack(">ii", len(raw) + 1, record.MAGIC_V2)
    return head + raw[8:at] + struct.pack(">h", topic_size) + raw[at + 1 :]


def make_store(seed: int, messages: int = 550) -> MadeStore:
    """
    Return a clean store with every legal trap: bodies that hold stale records, a forged record whose physicalOffset is
    right, bodies full of magics, empty bodies, IPv6 hosts, V2 records, halves of transactions.
    """
    chance = random.Random(seed)
    store = MadeStore()
    for number in range(messages):
        topic, queue_id = f"topic-{'x' * chance.choice((0, 5, 11))}{chance.randrange(2)}", chance.randrange(2)
        kind = number % 40
        if kind == 7:
            store.put(topic, queue_id, b"")
        elif kind == 11:
            store.put(topic, queue_id, record.MAGIC_V1.to_bytes(4, "big", signed=True) * chance.randrange(20, 200))
        elif kind == 17:
            stale = bytes(store.log[-2000:])
            store.put(topic, queue_id, stale)
        elif kind == 23:
            put_forged(store, topic, queue_id, chance)
        elif kind == 29:
            store.put(topic, queue_id, chance.randbytes(90), host=HOST_V6)
        elif kind == 31:
            store.put(topic + "-long", queue_id, chance.randbytes(90), wide_topic=True)
        elif kind == 37:
            flag = chance.choice((record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK))
            store.put(topic, queue_id, chance.randbytes(50), sys_flag=flag)
        else:
            store.put(topic, queue_id, chance.randbytes(chance.randrange(1, 600)))
    return store


def make_further_store(*, lmq: bool = True) -> MadeStore:
    """
    Return a clean store of a broker with enableMultiDispatch: light and ordinary further queues, direct messages in an
    ordinary one, queues that a message names twice, and its own. ``lmq`` is `enableLmq`.
    """
    store = MadeStore()
    for number in range(120):
        queue_id = number % 2
        light = [(name, 0 if lmq else queue_id) for name in ("%LMQ%a", "%LMQ%größe")]
        own, other = ("Topic", queue_id), ("Other", queue_id)
        named = [[], light[:1], [*light, other], [light[1], light[1], own], [other]][number * 7 % 5]
        store.put("Other" if number % 7 == 6 else "Topic", queue_id, b"x" * (number % 300), further=named)
    return store


def put_forged(store: MadeStore, topic: str, queue_id: int, chance: random.Random) -> None:
    """Store a message whose body holds records that pass every check of a record, their own position included."""
    space = 4096
    if SEGMENT_BYTES - store.end % SEGMENT_BYTES < space + 1000:
        store.put(topic, queue_id, b"no room for the forgery")
        return
    body_at = store.end + record.HEADS[0].size
    stored = store.put(topic, queue_id, forgery(chance, body_at, space - 300))
    assert stored.body_at == body_at


class Pair:
    """A master and a slave on disk, made equal, with ways to make them unequal."""

    def __init__(self, folder: Path, store: MadeStore) -> None:
        self.made = store
        self.master, self.slave = folder / "master", folder / "slave"
        store.write(self.master)
        shutil.copytree(self.master, self.slave)

    def segment(self, root: Path, phy: int) -> Path:
        return root / layout.COMMIT_LOG_DIR / layout.file_name(phy - phy % SEGMENT_BYTES)

    def read(self, root: Path, phy: int, size: int) -> bytes:
        with open(self.segment(root, phy), "rb") as file:
            file.seek(phy % SEGMENT_BYTES)
            return file.read(size)

    def write(self, root: Path, phy: int, data: bytes) -> None:
        with open(self.segment(root, phy), "r+b") as file:
            file.seek(phy % SEGMENT_BYTES)
            file.write(data)

    def flip(self, root: Path, phy: int, bit: int = 1) -> None:
        """Flip one bit of one byte."""
        (value,) = self.read(root, phy, 1)
        self.write(root, phy, bytes((value ^ bit,)))

    def cut(self, root: Path, phy: int) -> None:
        """Make the log end at ``phy``: zeros behind it, later segments gone, consume queues to match."""
        end = phy - phy % SEGMENT_BYTES + SEGMENT_BYTES
        self.write(root, phy, bytes(end - phy))
        for name in sorted(os.listdir(root / layout.COMMIT_LOG_DIR)):
            if int(name) >= end:
                os.remove(root / layout.COMMIT_LOG_DIR / name)
        for path, at, (place, _, _) in self.units(root):
            if place >= phy:
                with open(path, "r+b") as file:
                    file.seek(at)
                    file.write(bytes(layout.CQ_UNIT_BYTES))

    def units(self, root: Path) -> Iterator[tuple[Path, int, tuple[int, int, int]]]:
        """Yield (file, position, unit) of all units that are not empty."""
        for path in sorted((root / layout.CONSUME_QUEUE_DIR).glob("*/*/*")):
            data = path.read_bytes()
            for at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack_from(data, at)
                if unit[1]:
                    yield path, at, unit

    def unit_of(self, root: Path, stored: Stored) -> tuple[Path, int]:
        """Return the file and position of a message's unit."""
        at = stored.queue_offset * layout.CQ_UNIT_BYTES
        start = at - at % QUEUE_FILE_BYTES
        folder = root / layout.CONSUME_QUEUE_DIR / stored.topic / str(stored.queue_id)
        return folder / layout.file_name(start), at - start

    def write_unit(self, root: Path, stored: Stored, unit: bytes) -> None:
        path, at = self.unit_of(root, stored)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(unit)

    def write_entry(self, root: Path, number: int, at: int, data: bytes) -> None:
        """Overwrite bytes of one entry of the first index file, ``at`` bytes behind its begin."""
        path = sorted((root / layout.INDEX_DIR).iterdir())[0]
        with open(path, "r+b") as file:
            file.seek(layout.index_entry_at(INDEX_SLOTS, number) + at)
            file.write(data)


def plant_junk_behind_blanks(pair: Pair, root: Path, chance: random.Random) -> None:
    """What follows the 8 bytes of a BLANK may be anything, and differ between the sides."""
    for full in range(SEGMENT_BYTES, pair.made.end, SEGMENT_BYTES):
        last = max((one for one in pair.made.stored if one.phy < full), key=lambda one: one.phy)
        begin = last.phy + last.size + record.BLANK_BYTES
        if begin < full:
            pair.write(root, begin, chance.randbytes(full - begin))


def plant_stale_records(pair: Pair, root: Path) -> None:
    """
    Old records after the end, as a truncation leaves them: valid in every way, and older than the log's last one.
    """
    at = pair.made.end + 700
    for number in range(5):
        raw = record.encode_record(
            topic=b"topic-0",
            queue_id=0,
            body=b"old" * 20,
            properties=b"UNIQ_KEY\x01OLD",
            born_timestamp=1,
            store_timestamp=1_780_000_000_000 + number,
            born_host=HOST,
            store_host=HOST,
            queue_offset=3 + number,
            phy_offset=at,
        )
        pair.write(root, at, raw)
        at += len(raw)
