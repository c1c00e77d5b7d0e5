"""
Index files against the log: every entry at a record with such a key, every chain whole. This is what a worker runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from rmq.store import layout
from rmq.wire.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK, index_key_hash, split_keys
from rmq_audit.worker import properties
from rmq_audit.worker.files import LogFile, Window, read_at
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.kernel import Bools, Columns, Ints
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.places import WINDOW_BYTES, Places, windows
from rmq_audit.worker.records import Record, record_at
from rmq_audit.worker.work import Fault, Severity, Work

ENTRY = np.dtype([("key_hash", ">i4"), ("phy", ">i8"), ("seconds", ">i4"), ("before", ">i4")])
SLOT = np.dtype(">i4")

#: RocketMQ's maxHashSlotNum and maxIndexNum unless a configuration says otherwise
DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000

MAX_INT32 = (1 << 31) - 1

#: files up to this size are searched for where their entries begin, when nobody says how many slots they have
MAX_SEARCH_BYTES = 64 << 20


@attrs.frozen(kw_only=True)
class IndexCheck:
    """
    Compare one index file with the log; ``path`` "" stands for a store that has none: do records have keys?

    ``slots`` is None when nobody says how many hash slots the file has: then one of the ``others`` may tell, of the
    same store and of the other side.

    ``before`` is the file before it. ``complete_to``: every record with keys behind the file before must have its
    entries, up to the last entry, and up to that place; None where that cannot be said.
    """

    side: str
    path: str
    size_bytes: int
    slots: int | None
    segments: Sequence[LogFile]
    log_start: int
    log_end: int
    before: str | None = None
    others: Sequence[str] = ()
    usual_bytes: int = 0
    complete_to: int | None = None


@attrs.frozen(kw_only=True)
class IndexState:
    """How many entries were compared with their records, and what is wrong."""

    error: str | None = None
    entries: int = 0
    faults: Sequence[Fault] = ()


def check_index(task: IndexCheck) -> IndexState:
    """Check one index file; what cannot be read, or needs an option to be understood, is reported in ``error``."""
    try:
        return _Check(task).run() if task.path else _check_none(task)
    except ReadError as error:
        return IndexState(error=str(error))
    except _Unknown as error:
        return IndexState(error=f"{task.path}: {error}")
    except _Ruined as error:
        return IndexState(faults=[_fault(task, "IX-HEADER", 0, str(error))])


def _check_none(task: IndexCheck) -> IndexState:
    """A store without index files is right as long as no record has keys."""
    assert task.complete_to is not None
    keyed = _keyed(task.segments, task.log_start, task.complete_to)
    first = next(keyed, None)
    if first is None:
        return IndexState()
    fault = Fault(
        invariant="IX-MISSING",
        blame=task.side,
        phy_from=first,
        phy_to=first + 1,
        count=1 + sum(1 for _ in keyed),
        detail="the store has no index files, the other side has: look-ups by key find nothing",
    )
    return IndexState(faults=[fault])


def _fault(task: IndexCheck, invariant: str, entry: int, text: str, phy: int | None = None, **members: Any) -> Fault:
    """Return a fault of an entry that points at ``phy``; without a place in the log the file tells faults apart."""
    if phy is not None and phy >= task.log_start:
        members |= {"phy_from": phy, "phy_to": phy + 1, "field": f"entry {entry}"}
    else:
        members["field"] = f"entry {entry} of {task.path.rpartition('/')[2]}"
    return Fault(invariant=invariant, blame=task.side, detail=f"{task.path}: {text}", **members)


class _Unknown(Exception):
    """The file cannot be understood before the operator says more; the text says what."""


class _Ruined(Exception):
    """The file is not an index file, or is none any more; the text says why."""


class _Check:
    """One pass over one file; ``run`` is called once."""

    def __init__(self, task: IndexCheck) -> None:
        self._task = task
        head = read_at(task.path, 0, layout.INDEX_HEADER_BYTES)
        if len(head) < layout.INDEX_HEADER_BYTES:
            raise _Ruined(f"has {len(head)} bytes, not even a header")
        (
            self._begin_ms,
            self._end_ms,
            self._begin_phy,
            self._end_phy,
            self._used_slots,
            following,
        ) = layout.INDEX_HEADER.unpack(head)
        if following < 0:
            raise _Ruined(f"is not an index file: its header counts {following} entries")
        self._next = max(following, 1)
        self._faults: list[Fault] = []
        self._before_ms, self._before_phy = self._end_before()

    def run(self) -> IndexState:
        task = self._task
        if task.usual_bytes and task.size_bytes != task.usual_bytes:
            self._say("IX-HEADER", 0, f"the file has {task.size_bytes} bytes, others {task.usual_bytes}")
        slots = self._slots() if self._next > 1 else 0
        room = (task.size_bytes - layout.index_entry_at(slots, 0)) // layout.INDEX_ENTRY_BYTES
        count = max(min(self._next, room), 1)
        if self._next > max(room, 1):
            text = f"the header counts {self._next - 1} entries, the file has room for {room - 1}"
            self._say("IX-HEADER", room, text, count=self._next - room)
        raw = read_at(task.path, layout.index_entry_at(slots, 1), (count - 1) * layout.INDEX_ENTRY_BYTES)
        entries = np.frombuffer(raw[: len(raw) - len(raw) % layout.INDEX_ENTRY_BYTES], dtype=ENTRY)
        if len(entries):
            self._check_chains(entries, slots)
        checked = self._check_places(entries)
        return IndexState(entries=checked, faults=self._faults)

    def _end_before(self) -> tuple[int, int]:
        """Return endTimestamp and endPhyOffset of the file before this one; 0 and -1 without one."""
        head = b"" if self._task.before is None else read_at(self._task.before, 0, layout.INDEX_HEADER_BYTES)
        if len(head) < layout.INDEX_HEADER_BYTES:
            return 0, -1
        _, end_ms, _, end_phy, _, _ = layout.INDEX_HEADER.unpack(head)
        return end_ms, end_phy

    def _say(self, invariant: str, entry: int, text: str, **members: Any) -> None:
        self._faults.append(_fault(self._task, invariant, entry, text, **members))

    def _say_of(self, invariant: str, wrong: Bools, entries: npt.NDArray[np.void], text: str) -> None:
        """Count the entries that are wrong, and show the first one, if there are any."""
        rows = np.flatnonzero(wrong)
        if len(rows):
            entry, phy = int(rows[0]) + 1, int(entries["phy"][rows[0]])
            self._say(invariant, entry, f"entry {entry} {text}", phy=phy, count=len(rows))

    # how the file is laid out

    def _slots(self) -> int:
        task = self._task
        if task.slots is not None:
            return task.slots
        if task.size_bytes == layout.index_file_bytes(DEFAULT_SLOTS, DEFAULT_ENTRIES):
            return DEFAULT_SLOTS
        if task.size_bytes > MAX_SEARCH_BYTES:
            raise _Unknown("how many hash slots it has is not known; give --index-slots (maxHashSlotNum of the broker)")
        found = self._search_slots()
        for other in task.others if found is None else ():
            size = task.usual_bytes or task.size_bytes
            try:
                found = _Check(attrs.evolve(task, path=other, size_bytes=size, others=()))._search_slots()
            except (_Ruined, ReadError):
                continue
            if found is not None:
                break
        if found is None:
            raise _Ruined("nothing in it is where an index file has it; look-ups by key miss all of its messages")
        return found

    def _search_slots(self) -> int | None:
        """
        Find where entries begin: the first one holds the header's beginPhyOffset.

        Right is the place that makes the newest entry its slot's, and as many slots used as the header counts.
        """
        data = read_at(self._task.path, 0, self._task.size_bytes)
        mark = layout.INDEX_ENTRY.pack(0, self._begin_phy, 0, 0)[4:12]
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
        """Every entry names the one before it of its slot, or none; every slot names its newest entry, or none."""
        number = np.arange(1, len(entries) + 1, dtype=np.int64)
        slot = entries["key_hash"].astype(np.int64) % slots
        before = np.zeros(len(entries), dtype=np.int64)
        order = np.argsort(slot, kind="stable")
        same = np.flatnonzero(slot[order][1:] == slot[order][:-1])
        before[order[same + 1]] = number[order[same]]
        wrong = entries["before"] != before
        self._say_of("IX-CHAIN", wrong, entries, "names another entry than the one before it of its hash slot")
        raw = read_at(self._task.path, layout.INDEX_HEADER_BYTES, slots * layout.INDEX_SLOT_BYTES)
        newest = np.frombuffer(raw, dtype=SLOT).astype(np.int64)
        expected = np.zeros(slots, dtype=np.int64)
        expected[slot] = number  # the last one of a slot stays
        lost = expected[: len(newest)] != newest
        self._say_of("IX-CHAIN", lost[slot] & (expected[slot] == number), entries, "is not found by its slot")
        stray = np.flatnonzero(lost & (expected[: len(newest)] == 0))
        if len(stray):
            text = f"hash slot {stray[0]} names entry {newest[stray[0]]}, which is none of it"
            self._say("IX-CHAIN", int(newest[stray[0]]), text, count=len(stray))
        # brokers before 4.6 count every entry as a slot
        if self._used_slots not in (np.count_nonzero(expected), len(entries)):
            text = f"the header counts {self._used_slots} hash slots in use, it is {np.count_nonzero(expected)}"
            self._say("IX-HEADER", 0, text)

    # places

    def _check_places(self, entries: npt.NDArray[np.void]) -> int:
        """
        Hold every entry of the log that is there against the record it names; return how many were held.

        Entries after the end are legal: of a slave that lags less than its index, of a dump that was taken meanwhile,
        left by a truncation. That a log lost its end is found by the consume queues.
        """
        task = self._task
        phy = entries["phy"].astype(np.int64)
        rows = np.flatnonzero((phy >= task.log_start) & (phy < task.log_end))
        rows = rows[np.argsort(phy[rows], kind="stable")]
        checked = 0
        nowhere, foreign = np.zeros(len(phy), dtype=np.bool_), np.zeros(len(phy), dtype=np.bool_)
        stored = np.full(len(phy), -1, dtype=np.int64)
        covered = _Covered()
        held = phy[rows]
        for segment in task.segments:
            begin, end = np.searchsorted(held, (segment.start, segment.stop))
            for part in windows(phy, rows[begin:end]):
                places = Places(segment, phy[part])
                hashes = entries["key_hash"][part].astype(np.int64)
                nowhere[part] = ~places.there
                foreign[part] = places.there & ~_have(places, hashes)
                there = part[places.there]
                stored[there] = places.columns.store_timestamp[places.row[places.there]]
                covered.take(places, hashes, places.there & ~foreign[part])
                checked += len(part)
        nowhere |= self._stray(phy)
        text = "points at no record, or lies between entries of the log and names none of it"
        self._say_of("IX-DANGLING", nowhere, entries, text)
        self._say_of("IX-HASH", foreign, entries, "has a hash that no key of the record it points at has")
        known = (stored >= 0) & ~nowhere & ~foreign
        if len(phy):
            self._check_times(entries, np.where(known, stored, -1), nowhere | foreign)
        if task.complete_to is not None:
            self._check_complete(covered, int(nowhere.sum() + foreign.sum()))
        return checked

    def _stray(self, phy: Ints) -> Bools:
        """
        Return which entries lie outside of the log between entries that do not: they are in the log's order, so those
        of deleted records are in front, and those after the end at the end.
        """
        task = self._task
        number = np.arange(len(phy))
        living = np.flatnonzero((phy >= task.log_start) & (phy < task.log_end))
        if len(living) == 0:
            return np.zeros(len(phy), dtype=np.bool_)
        stray: Bools = (phy < task.log_start) & (number > living[0]) | (phy >= task.log_end) & (number < living[-1])
        return stray

    def _check_times(self, entries: npt.NDArray[np.void], stored: Ints, wrong: Bools) -> None:
        """
        Compare the header and the seconds of the entries with the store times of the records, -1 where unknown.

        Nothing follows from entries that are ``wrong`` themselves.
        """
        first, last = (-1 if wrong[at] else int(entries["phy"][at]) for at in (0, -1))
        for name, held, expected in (
            ("beginPhyOffset", self._begin_phy, first),
            ("endPhyOffset", self._end_phy, last),
            ("beginTimestamp", self._begin_ms, int(stored[0])),
            ("endTimestamp", self._end_ms, int(stored[-1])),
        ):
            if expected >= 0 and held != expected:
                self._say("IX-HEADER", 0, f"the header's {name} is {held}, by its entries it is {expected}")
        known = stored >= 0
        # what the header says of its begin counts only where the first record is gone
        begin = int(stored[0]) if known[0] else self._begin_ms
        seconds = np.clip((stored - begin) // 1000, 0, MAX_INT32)
        late = known & (entries["seconds"] != seconds)
        # the first entry counts from the end of the file before
        if known[0] and self._before_ms > 0:
            late[0] &= entries["seconds"][0] != max((int(stored[0]) - self._before_ms) // 1000, 0)
        self._say_of("IX-TIME", late, entries, "has another time than the record it points at")

    # records

    def _check_complete(self, covered: _Covered, misplaced: int) -> None:
        """
        Look for records with keys that have no entry, from the end of the file before on.

        ``misplaced`` entries that point elsewhere are missed where they belong, and have been reported.
        """
        task = self._task
        assert task.complete_to is not None
        at = max(self._before_phy, task.log_start)
        missing: list[tuple[int, int, int]] = []  # (place of the first, how many records, where the hole ends)
        shared = {self._before_phy, self._end_phy}
        partly = [phy for phy in covered.partly if phy not in shared]
        holes = []
        for begin, end in covered.spans():
            if begin >= at:
                holes.append((at, begin))
            at = max(at, end)
        if at < task.complete_to:
            holes.append((at, task.complete_to))
        for begin, end in holes:
            found = [phy for phy in _keyed(task.segments, begin, end) if phy != self._before_phy]
            if found:
                missing.append((found[0], len(found), end))
        missing += [(phy, 1, phy) for phy in partly]
        count = sum(records for _, records, _ in missing)
        if count <= misplaced:
            return
        crash = all(any(end == segment.start for segment in task.segments) for _, _, end in missing)
        text = (
            f"{count} records up to where this file ends have keys that no entry names: look-ups by key miss them"
            + ("; an Apache broker that was killed forgets the keys of the last file in this way" if crash else "")
        )
        severity = Severity.WARN if crash else None
        self._say("IX-MISSING", 0, text, phy=missing[0][0], count=count, severity=severity)


def _keyed(segments: Sequence[LogFile], begin: int, end: int) -> Iterator[int]:
    """Yield the places of the records in [``begin``, ``end``) that have keys; up to the first broken one."""
    for segment in segments:
        at, stop = max(begin, segment.start), min(end, segment.stop)
        while at < stop:
            window = Window(segment, at, min(stop, at + WINDOW_BYTES))
            columns, reached = Frames(window).stretch(at, min(stop, at + WINDOW_BYTES))
            keyed = _counts(window.data, columns) > 0
            yield from (columns.pos[keyed] + window.base).tolist()
            if reached == at:
                break
            at = reached


class _Covered:
    """Which records of the log the entries of a file name, and those that lack some; windows come in order."""

    def __init__(self) -> None:
        self._begins: list[Ints] = []
        self._ends: list[Ints] = []
        self.partly: list[int] = []

    def take(self, places: Places, hashes: Ints, right: Bools) -> None:
        """Note what the entries that are ``right`` name; ``hashes`` are those of all places."""
        columns = places.columns
        if not right.any():
            return
        named = np.unique(places.row[right])
        begins = columns.pos[named] + places.base
        self._begins.append(begins)
        self._ends.append(begins + columns.size[named])
        # each different hash counts once; keys that hash alike are one
        pairs = np.unique(np.stack((places.row[right], hashes[right])), axis=1)
        held = np.bincount(pairs[0], minlength=len(columns))
        fewer = named[(held < _counts(places.data, columns))[named]]
        for row in fewer.tolist():
            at = int(columns.pos[row])
            record = record_at(places.data, at, places.base + at)
            if record is not None and len(key_hashes(record)) > held[row]:
                self.partly.append(record.phy)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield [begin, end) of adjacent records."""
        if not self._begins:
            return
        begins, ends = np.concatenate(self._begins), np.concatenate(self._ends)
        cuts = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        heads, tails = np.append(0, cuts), np.append(cuts - 1, len(begins) - 1)
        yield from zip(begins[heads].tolist(), ends[tails].tolist(), strict=True)


def _counts(data: bytes, columns: Columns) -> Ints:
    """Return how many keys each record has at most: pieces of KEYS and UNIQ_KEY; rolled back halves have none."""
    counts = np.zeros(len(columns), dtype=np.int64)
    counts[properties.values_of(data, columns, b"UNIQ_KEY").rows] += 1
    counts += np.bincount(single_keys(data, columns).rows, minlength=len(columns))
    counts[columns.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK] = 0
    return counts


def single_keys(data: bytes, columns: Columns) -> properties.Values:
    """Return every key of the KEYS of these records, in the order of the buffer."""
    values = properties.values_of(data, columns, b"KEYS")
    if len(values) == 0:
        return values
    spaces = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord(" "))
    owner, stops = np.searchsorted(values.pos, spaces, side="right") - 1, values.pos + values.length
    inside = (owner >= 0) & (spaces < stops[owner])
    owner, spaces = owner[inside], spaces[inside]
    # places of one key do not overlap those of another, so that begins and ends go together once both are sorted
    begins, ends = np.sort(np.append(values.pos, spaces + 1)), np.sort(np.append(stops, spaces))
    rows = np.sort(np.append(values.rows, values.rows[owner]))
    kept = ends > begins
    return properties.Values(rows[kept], begins[kept], (ends - begins)[kept])


def _have(places: Places, hashes: Ints) -> Bools:
    """Return which of the places hold a record with a key of that hash; anything where no record is."""
    found = np.zeros(len(hashes), dtype=np.bool_)
    columns = places.columns
    if len(columns) == 0:
        return found
    for keys in (properties.values_of(places.data, columns, b"UNIQ_KEY"), single_keys(places.data, columns)):
        kept = (keys.rows << 32) + properties.topic_key_hashes(places.data, columns, keys)
        found |= np.isin((places.row << 32) + hashes, kept)
    for index in np.flatnonzero(places.there & ~found).tolist():
        record = places.record(index)
        found[index] = record is not None and int(hashes[index]) in key_hashes(record)
    return found


def key_hashes(record: Record) -> set[int]:
    """Return the hashes that index files hold of a record's keys."""
    keys = [record.value_of("UNIQ_KEY"), *split_keys(record.value_of("KEYS"))]
    return {index_key_hash(record.topic, key) for key in keys if key}


#: each entry is compared with a record
INDEXES = Work("indexes", check_index, lambda task: 4 * task.size_bytes, remembered=IndexState)
