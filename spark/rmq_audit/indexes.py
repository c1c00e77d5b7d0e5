"""
Index files against the log: every entry at a record with such a key, every chain whole. This is what a worker runs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmq.store import layout
from rmq.wire.record import index_key_hash, split_keys
from rmq_audit import properties
from rmq_audit.files import ReadError, read_at
from rmq_audit.kernel import Bools, Ints
from rmq_audit.places import Places, windows
from rmq_audit.records import Record
from rmq_audit.tasks import IndexCheck, IndexFault, IndexState

ENTRY = np.dtype([("key_hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
SLOT = np.dtype(">i4")

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
        if following < 0:
            raise _Unknown(f"is no index file: its header counts {following} entries")
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
            for part in windows(phy, inside):
                places = Places(segment, phy[part], task.log_end)
                nowhere[part] = ~places.there
                foreign[part] = places.there & ~_have(places, entries["key_hash"][part].astype(np.int64))
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


def _have(places: Places, hashes: Ints) -> Bools:
    """Return which of the places hold a record with a key of that hash; anything where no record is."""
    found = np.zeros(len(hashes), dtype=np.bool_)
    columns = places.columns
    if len(columns) == 0:
        return found
    for name in (b"UNIQ_KEY", b"KEYS"):
        values = properties.values_of(places.data, columns, name)
        kept = np.full(len(columns), -1, dtype=np.int64)
        kept[values.rows] = properties.topic_key_hashes(places.data, columns, values)
        found |= kept[places.row] == hashes
    for index in np.flatnonzero(places.there & ~found).tolist():
        record = places.record(index)
        found[index] = record is not None and int(hashes[index]) in key_hashes(record)
    return found


def key_hashes(record: Record) -> set[int]:
    """Return the hashes that index files hold of a record's keys."""
    keys = [record.value_of("UNIQ_KEY"), *split_keys(record.value_of("KEYS"))]
    return {index_key_hash(record.topic, key) for key in keys if key}
