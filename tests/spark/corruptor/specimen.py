"""
A master and a slave on disk, whoever wrote them, read with the product's plain record reader and damaged byte by byte.

Everything is located by what the directories hold, so that the same damage can be done to stores of Apache's brokers,
of ours, and to made ones. Nothing here uses the audit's own readers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from rmq.store import layout
from rmq.wire import record

INDEX_SEARCH_SLOTS = (101, 128, 1000)
_QUEUE_FILE_BYTES = 100 * layout.CQ_UNIT_BYTES


@attrs.frozen(kw_only=True)
class Stored:
    """Where a message lies; ``owned``: its queue has the unit that points at it (halves of transactions have none)."""

    phy: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    body_at: int
    body_size: int
    properties_at: int
    store_timestamp: int
    owned: bool

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


class Specimen:
    """
    A pair that is equal when it is taken up; ``stored`` are the messages that both sides have, in the log's order.

    ``begin`` and ``end`` are the common range. Master and slave may begin at different segments.
    """

    def __init__(self, master: Path, slave: Path) -> None:
        self.master, self.slave = master, slave
        logs = [sorted((root / layout.COMMIT_LOG_DIR).iterdir()) for root in self.roots]
        self.segment_bytes = max(path.stat().st_size for path in logs[0])
        self.begin = max(int(paths[0].name) for paths in logs)
        self.units = {phy for _, _, (phy, _, _) in self.all_units(master)}
        self.stored = list(self._stored())
        last = self.stored[-1]
        self.end = last.phy + last.size
        self.next_offset = {one.queue: one.queue_offset + 1 for one in self.stored if one.owned}

    @property
    def roots(self) -> tuple[Path, Path]:
        return self.master, self.slave

    def _stored(self) -> Iterator[Stored]:
        begin = self.begin
        while self.segment(self.master, begin).exists():
            data = self.segment(self.master, begin).read_bytes()
            at = 0
            while not isinstance(
                frame := record.read_frame(data, at, len(data), phy_offset=begin + at, check_crc=True), record.Flaw
            ):
                yield self._located(data, at, begin + at)
                at += frame.size
            if frame is not record.Flaw.BLANK:
                return
            begin += self.segment_bytes

    def _located(self, data: bytes, at: int, phy: int) -> Stored:
        one = record.decode_record(data, at)
        found = record.decode_properties(one.properties.decode())
        return Stored(
            phy=phy,
            size=one.size,
            topic=one.topic,
            queue_id=one.queue_id,
            queue_offset=one.queue_offset,
            message_id=found.get("UNIQ_KEY", ""),
            body_at=phy + record.HEADS[one.sys_flag >> 4 & 3].size,
            body_size=len(one.body),
            properties_at=phy + one.size - len(one.properties),
            store_timestamp=one.store_timestamp,
            owned=phy in self.units,
        )

    # -- the log

    def segment(self, root: Path, phy: int) -> Path:
        return root / layout.COMMIT_LOG_DIR / layout.file_name(phy - phy % self.segment_bytes)

    def segments(self) -> list[int]:
        """Return the starts of the segments that both sides have, without empty ones."""
        return list(range(self.begin, self.end, self.segment_bytes))

    def blank_behind(self, segment: int) -> int:
        """Return where the BLANK of a full segment begins."""
        last = max((one for one in self.stored if one.phy < segment + self.segment_bytes), key=lambda one: one.phy)
        return last.phy + last.size

    def read(self, root: Path, phy: int, size: int) -> bytes:
        with open(self.segment(root, phy), "rb") as file:
            file.seek(phy % self.segment_bytes)
            return file.read(size)

    def write(self, root: Path, phy: int, data: bytes) -> None:
        with open(self.segment(root, phy), "r+b") as file:
            file.seek(phy % self.segment_bytes)
            file.write(data)

    def flip(self, root: Path, phy: int, bit: int = 1) -> None:
        (value,) = self.read(root, phy, 1)
        self.write(root, phy, bytes((value ^ bit,)))

    def cut(self, root: Path, phy: int) -> None:
        """Make a log end at ``phy``: zeros behind it, later segments gone, consume queues to match."""
        full = phy - phy % self.segment_bytes + self.segment_bytes
        self.write(root, phy, bytes(full - phy))
        for name in os.listdir(root / layout.COMMIT_LOG_DIR):
            if int(name) >= full:
                os.remove(root / layout.COMMIT_LOG_DIR / name)
        for path, at, (place, _, _) in list(self.all_units(root)):
            if place >= phy:
                overwrite(path, at, bytes(layout.CQ_UNIT_BYTES))

    def encoded(self, phy: int, queue: tuple[str, int], body: bytes, *, queue_offset: int, extra: str = "") -> bytes:
        """Return a record for that place, a millisecond younger than the last one."""
        last = self.stored[-1]
        now = last.store_timestamp + 1
        properties = f"UNIQ_KEY\x01ADDED{phy:027X}\x02TAGS\x01T0\x02{extra}"
        return record.encode_record(
            topic=queue[0].encode(),
            queue_id=queue[1],
            body=body,
            properties=properties.encode(),
            born_timestamp=now,
            store_timestamp=now,
            born_host=(bytes((10, 0, 0, 1)), 10911),
            store_host=(bytes((10, 0, 0, 1)), 10911),
            queue_offset=queue_offset,
            phy_offset=phy,
        )

    def append(
        self, roots: Sequence[Path], queue: tuple[str, int], body: bytes, *, queue_offset: int, extra: str = ""
    ) -> Stored:
        """Store one more message after the end, as a broker would; the queue's unit goes where the offset says."""
        size = len(self.encoded(0, queue, body, queue_offset=0, extra=extra))
        left = self.segment_bytes - self.end % self.segment_bytes
        if size + record.BLANK_BYTES > left:
            for root in roots:
                self.write(root, self.end, record.blank(left))
            self.end += left
        raw = self.encoded(self.end, queue, body, queue_offset=queue_offset, extra=extra)
        for root in roots:
            if not self.segment(root, self.end).exists():
                self.segment(root, self.end).write_bytes(bytes(self.segment_bytes))
            self.write(root, self.end, raw)
            self.write_unit(root, queue, queue_offset, layout.CQ_UNIT.pack(self.end, size, record.tags_code("T0")))
        self.units.add(self.end)
        one = self._located(raw, 0, self.end)
        for root in roots:
            self._index(root, one)
        self.stored.append(one)
        self.end += size
        return one

    # -- consume queues

    def all_units(self, root: Path) -> Iterator[tuple[Path, int, tuple[int, int, int]]]:
        """Yield (file, position, unit) of all units that are not empty."""
        for path in sorted((root / layout.CONSUME_QUEUE_DIR).glob("*/*/*")):
            data = path.read_bytes()
            for at in range(0, len(data), layout.CQ_UNIT_BYTES):
                unit = layout.CQ_UNIT.unpack_from(data, at)
                if unit[1] and unit[1] != layout.CQ_FILLER_SIZE:
                    yield path, at, unit

    def unit_at(self, root: Path, queue: tuple[str, int], queue_offset: int) -> tuple[Path, int]:
        """Return the file and position of a queue's unit."""
        folder = root / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1])
        size = next((path.stat().st_size for path in sorted(folder.iterdir())), _QUEUE_FILE_BYTES)
        at = queue_offset * layout.CQ_UNIT_BYTES
        return folder / layout.file_name(at - at % size), at % size

    def write_unit(self, root: Path, queue: tuple[str, int], queue_offset: int, unit: bytes) -> None:
        path, at = self.unit_at(root, queue, queue_offset)
        if not path.exists():
            size = max(file.stat().st_size for file in path.parent.iterdir())
            path.write_bytes(bytes(size))
        overwrite(path, at, unit)

    # -- index files

    def _index(self, root: Path, one: Stored) -> None:
        """Add the unique key of the newest message to the newest index file, or to a new one, as a broker does."""
        path = max((root / layout.INDEX_DIR).iterdir())
        data = bytearray(path.read_bytes())
        slots = index_slots(bytes(data))
        begin_ms, end_ms, begin_phy, _, used, number = layout.INDEX_HEADER.unpack_from(data)
        since = begin_ms
        if layout.index_entry_at(slots, number + 1) > len(data):
            path = path.with_name(f"{int(path.name) + 1:0{layout.INDEX_NAME_DIGITS}d}")
            data, used, number, since = bytearray(len(data)), 0, 1, end_ms
            begin_ms, begin_phy = one.store_timestamp, one.phy
        key_hash = record.index_key_hash(one.topic, one.message_id)
        slot = layout.index_slot_at(key_hash % slots)
        (before,) = layout.INDEX_SLOT.unpack_from(data, slot)
        seconds = (one.store_timestamp - since) // 1000
        layout.INDEX_ENTRY.pack_into(data, layout.index_entry_at(slots, number), key_hash, one.phy, seconds, before)
        layout.INDEX_SLOT.pack_into(data, slot, number)
        head = begin_ms, one.store_timestamp, begin_phy, one.phy, used + (before == 0), number + 1
        layout.INDEX_HEADER.pack_into(data, 0, *head)
        path.write_bytes(data)

    def set_index_times(self, root: Path, times: dict[int, int]) -> None:
        """Make the index say of records what it would if they had been stored at those times."""
        for path in sorted((root / layout.INDEX_DIR).iterdir()):
            data = bytearray(path.read_bytes())
            slots = index_slots(bytes(data))
            begin_ms, end_ms, begin_phy, end_phy, used, count = layout.INDEX_HEADER.unpack_from(data)
            begin_ms, end_ms = times.get(begin_phy, begin_ms), times.get(end_phy, end_ms)
            layout.INDEX_HEADER.pack_into(data, 0, begin_ms, end_ms, begin_phy, end_phy, used, count)
            for number in range(1, count):
                at = layout.index_entry_at(slots, number)
                key_hash, phy, seconds, before = layout.INDEX_ENTRY.unpack_from(data, at)
                if phy in times:
                    seconds = max((times[phy] - begin_ms) // 1000, 0)
                layout.INDEX_ENTRY.pack_into(data, at, key_hash, phy, seconds, before)
            path.write_bytes(data)

    def index_entries(self, root: Path) -> Iterator[tuple[Path, int, int, tuple[int, int, int, int]]]:
        """Yield (file, number, position, entry) of the index entries of messages in the common range."""
        for path in sorted((root / layout.INDEX_DIR).iterdir()):
            data = path.read_bytes()
            count = layout.INDEX_HEADER.unpack_from(data)[-1]
            slots = index_slots(data)
            for number in range(1, count):
                at = layout.index_entry_at(slots, number)
                entry = layout.INDEX_ENTRY.unpack_from(data, at)
                if self.begin <= entry[1] < self.end:
                    yield path, number, at, entry


def index_slots(data: bytes) -> int:
    """Return how many slots an index file has: those of the stores here are known, and the right one fits."""
    _, _, begin_phy, _, _, count = layout.INDEX_HEADER.unpack_from(data)
    for slots in INDEX_SEARCH_SLOTS:
        oldest = layout.INDEX_ENTRY.unpack_from(data, layout.index_entry_at(slots, 1))
        newest = layout.INDEX_ENTRY.unpack_from(data, layout.index_entry_at(slots, count - 1))
        (named,) = layout.INDEX_SLOT.unpack_from(data, layout.index_slot_at(newest[0] % slots))
        if named == count - 1 and oldest[1] == begin_phy:
            return slots
    raise ValueError("an index file with another number of slots than the stores of these tests have")


def flip(path: Path, at: int, bits: int) -> None:
    overwrite(path, at, bytes((path.read_bytes()[at] ^ bits,)))


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
