"""
Index files against the log: every entry at a record with such a key, every chain whole. This is what a worker runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import numpy.typing as npt

from rmq.store import layout
from rmq.wire.record import index_key_hash, split_keys
from rmq_audit import kernel, properties
from rmq_audit.files import ReadError, Window, read_at
from rmq_audit.format import MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES
from rmq_audit.kernel import Bools, Columns, Ints
from rmq_audit.records import Record, record_at
from rmq_audit.tasks import IndexCheck, IndexFault, IndexState, SegmentFile

ENTRY = np.dtype([("key_hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
SLOT = np.dtype(">i4")

#: so much of the log is looked at in one go
WINDOW_BYTES = 64 << 20

#: RocketMQ's maxHashSlotNum and maxIndexNum unless a configuration says otherwise
DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000

#: files up to this size are searched for where their entries begin, when nobody says how many slots they have
MAX_SEARCH_BYTES = 64 << 20


def check_index(task: IndexCheck) -> IndexState:
    """Check one index file; what cannot be read or understood is told by ``error``."""
    try:
        return _Check(task).run()
    except ReadError as error:
        return IndexState(error=str(error))
    except _Unknown as error:
        return IndexState(error=f"{task.path}: {error}")


class _Unknown(Exception):
    """The file cannot be understood; the text says why."""


class _Check:
    """One pass over one file; ``run`` is called once."""

    def __init__(self, task: IndexCheck) -> None:
        self._task = task
        head = read_at(task.path, 0, layout.INDEX_HEADER_BYTES)
        if len(head) < layout.INDEX_HEADER_BYTES:
            raise _Unknown(f"has {len(head)} bytes, not even a header")
        _, _, self._begin_phy, _, self._used_slots, following = layout.INDEX_HEADER.unpack(head)
        self._next = max(following, 1)
        self._faults: list[IndexFault] = []

    def run(self) -> IndexState:
        task = self._task
        if self._next <= 1:
            return IndexState()
        slots = self._slots()
        room = (task.size_bytes - layout.index_entry_at(slots, 0)) // layout.INDEX_ENTRY_BYTES
        count = min(self._next, room)
        if self._next > room:
            text = f"the header counts {self._next - 1} entries, the file has room for {room - 1}"
            self._faults.append(IndexFault(invariant="IX-CHAIN", entry=room, count=self._next - room, detail=text))
        raw = read_at(task.path, layout.index_entry_at(slots, 1), (count - 1) * layout.INDEX_ENTRY_BYTES)
        entries = np.frombuffer(raw[: len(raw) - len(raw) % layout.INDEX_ENTRY_BYTES], dtype=ENTRY)
        self._check_chains(entries, slots)
        checked = self._check_places(entries)
        return IndexState(entries=checked, faults=self._faults)

    # how the file is laid out

    def _slots(self) -> int:
        task = self._task
        if task.slots is not None:
            return task.slots
        if task.size_bytes == layout.index_file_bytes(DEFAULT_SLOTS, DEFAULT_ENTRIES):
            return DEFAULT_SLOTS
        if task.size_bytes <= MAX_SEARCH_BYTES:
            found = self._search_slots()
            if found is not None:
                return found
        raise _Unknown("how many hash slots it has is not known; give --index-slots (maxHashSlotNum of the broker)")

    def _search_slots(self) -> int | None:
        """
        Find where entries begin: the first one holds the header's beginPhyOffset, no seconds, nothing before it.

        Right is the place that makes the newest entry its slot's, and as many slots used as the header counts.
        """
        data = read_at(self._task.path, 0, self._task.size_bytes)
        mark = layout.INDEX_ENTRY.pack(0, self._begin_phy, 0, 0)[4:]
        at = data.find(mark, layout.index_entry_at(1, 1))
        while at >= 0:
            slots, rest = divmod(at - 4 - layout.index_entry_at(0, 1), layout.INDEX_SLOT_BYTES)
            if rest == 0 and slots > 0 and self._fits(data, slots):
                return slots
            at = data.find(mark, at + 1)
        return None

    def _fits(self, data: bytes, slots: int) -> bool:
        newest = layout.index_entry_at(slots, self._next - 1)
        if newest + layout.INDEX_ENTRY_BYTES > len(data):
            return False
        used = np.frombuffer(data, SLOT, slots, layout.INDEX_HEADER_BYTES)
        key_hash = layout.INDEX_ENTRY.unpack_from(data, newest)[0]
        return bool(np.count_nonzero(used) == self._used_slots and used[key_hash % slots] == self._next - 1)

    # chains

    def _check_chains(self, entries: npt.NDArray[np.void], slots: int) -> None:
        """Every entry names an earlier one of its slot, or none; every slot names its newest entry."""
        number = np.arange(1, len(entries) + 1, dtype=np.int64)
        slot = entries["key_hash"].astype(np.int64) % slots
        before = entries["before"].astype(np.int64)
        named = np.flatnonzero((before > 0) & (before < number))
        wrong = (before < 0) | (before >= number)
        wrong[named] |= slot[before[named] - 1] != slot[named]
        self._fault("IX-CHAIN", number, wrong, entries, "names an entry before it that is not of its hash slot")
        raw = read_at(self._task.path, layout.INDEX_HEADER_BYTES, slots * layout.INDEX_SLOT_BYTES)
        newest = np.frombuffer(raw, dtype=SLOT).astype(np.int64)
        expected = np.zeros(slots, dtype=np.int64)
        expected[slot] = number  # the last one of a slot stays
        lost = expected != newest[:slots]
        self._fault("IX-CHAIN", number, lost[slot] & (expected[slot] == number), entries, "is not found by its slot")

    def _fault(self, invariant: str, number: Ints, wrong: Bools, entries: npt.NDArray[np.void], text: str) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows) == 0:
            return
        first = int(rows[0])
        self._faults.append(
            IndexFault(
                invariant=invariant,
                entry=int(number[first]),
                phy=int(entries["phy"][first]),
                count=len(rows),
                detail=f"entry {number[first]} {text}",
            )
        )

    # places

    def _check_places(self, entries: npt.NDArray[np.void]) -> int:
        """
        Hold every entry of the log that is there against the record it names; return how many were held.

        Entries behind the end are legal: of a slave that lags less than its index, of a dump that was taken meanwhile,
        left by a truncation. That a log lost its end is told by the consume queues.
        """
        task = self._task
        phy = entries["phy"].astype(np.int64)
        rows = np.flatnonzero((phy >= task.log_start) & (phy < task.log_end))
        rows = rows[np.argsort(phy[rows], kind="stable")]
        checked = 0
        nowhere, foreign = np.zeros(len(phy), dtype=np.bool_), np.zeros(len(phy), dtype=np.bool_)
        for segment in task.segments:
            inside = rows[np.searchsorted(phy[rows], segment.start) : np.searchsorted(phy[rows], segment.stop)]
            for part in _windows(phy, inside):
                records = _Records(segment, phy[part], task.log_end)
                nowhere[part] = ~records.there
                foreign[part] = records.there & ~records.have(entries["key_hash"][part].astype(np.int64))
                checked += len(part)
        self._dangling(phy, nowhere, "points at no record")
        number = np.arange(1, len(phy) + 1, dtype=np.int64)
        self._fault("IX-HASH", number, foreign, entries, "has a hash that no key of the record it points at has")
        return checked

    def _dangling(self, phy: Ints, wrong: Bools, text: str) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            first = int(rows[0])
            self._faults.append(
                IndexFault(
                    invariant="IX-DANGLING",
                    entry=first + 1,
                    phy=int(phy[first]),
                    count=len(rows),
                    detail=f"entry {first + 1} {text}",
                )
            )


def _windows(phy: Ints, rows: Ints) -> Iterator[Ints]:
    """Yield the rows (ascending by place) in groups whose records lie within one window."""
    begin = 0
    while begin < len(rows):
        end = int(np.searchsorted(phy[rows], phy[rows[begin]] + WINDOW_BYTES))
        yield rows[begin:end]
        begin = end


class _Records:
    """The records at the given places of one segment, ascending, a place may come twice: which are there, what keys."""

    def __init__(self, segment: SegmentFile, phy: Ints, log_end: int) -> None:
        first, last = int(phy[0]), int(phy[-1])
        window = Window(segment.path, segment.start, segment.size_bytes, first, last + 1)
        window.near(last)
        unique, self._which = np.unique(phy, return_inverse=True)
        plausible = _plausible(window, unique, log_end)
        self._data, self._base = window.data, window.base
        columns = _gathered(window.data, unique[plausible] - window.base)
        here = np.isin(unique - window.base, columns.pos[columns.phy == columns.pos + window.base])
        self.there: Bools = here[self._which]
        self._columns = columns
        #: number of each unique place among the columns
        self._row = np.searchsorted(columns.pos, unique - window.base)

    def have(self, hashes: Ints) -> Bools:
        """Return which of the places hold a record with a key of that hash; anything where no record is."""
        if len(self._columns) == 0:
            return np.zeros(len(hashes), dtype=np.bool_)
        found = np.zeros(len(hashes), dtype=np.bool_)
        row = np.minimum(self._row[self._which], len(self._columns) - 1)
        for name in (b"UNIQ_KEY", b"KEYS"):
            values = properties.values_of(self._data, self._columns, name)
            kept = np.full(len(self._columns), -1, dtype=np.int64)
            kept[values.rows] = properties.topic_key_hashes(self._data, self._columns, values)
            found |= kept[row] == hashes
        for index in np.flatnonzero(self.there & ~found).tolist():
            found[index] = int(hashes[index]) in self._hashes_at(int(row[index]))
        return found

    def _hashes_at(self, row: int) -> set[int]:
        at = int(self._columns.pos[row])
        record = record_at(self._data, at, self._base + at)
        return set() if record is None else key_hashes(record)


def key_hashes(record: Record) -> set[int]:
    """Return the hashes that index files hold of a record's keys."""
    keys = [record.value_of("UNIQ_KEY"), *split_keys(record.value_of("KEYS"))]
    return {index_key_hash(record.topic, key) for key in keys if key}


def _plausible(window: Window, phy: Ints, log_end: int) -> Bools:
    """Return which places begin like a record that lies in the log; the window is made to hold the last of them."""
    at = phy - window.base
    whole = at + MIN_RECORD_BYTES <= len(window.data)
    heads = kernel.items(window.data, np.where(whole, at, 0), 8).view([("size", ">u4"), ("magic", ">u4")])
    size = heads["size"].astype(np.int64)
    plausible: Bools = whole & ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2))
    plausible &= (size >= MIN_RECORD_BYTES) & (phy + size <= log_end)
    if plausible[-1]:
        plausible[-1] = window.reach(int(phy[-1] + size[-1]))
    plausible &= at + size <= len(window.data)
    return plausible


def _gathered(data: bytes, starts: Ints) -> Columns:
    """Return the columns of those starts whose parts add up."""
    pieces: list[Columns] = []
    rest = starts
    while len(rest):
        piece = kernel.gather(data, rest.tolist())
        pieces.append(piece)
        rest = rest[len(piece) + 1 :]
    if not pieces:
        return kernel.gather(data, [])
    return Columns(*(np.concatenate([getattr(one, field.name) for one in pieces]) for field in attrs.fields(Columns)))
