"""One pass over one split: frames, CRCs, chunk digests and queue runs. This is what a worker runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import numpy as np
import xxhash

from rmq.wire.record import BLANK_BYTES, body_crc
from rmq_audit import kernel, properties
from rmq_audit.files import ReadError, Window
from rmq_audit.format import MAGIC_BLANK, MAGIC_PREFIX, MAX_RECORD_BYTES, MIN_RECORD_BYTES, SIZE_MAGIC
from rmq_audit.lentwindow import split_window
from rmq_audit.records import EVIDENCE_BEFORE, Record, evidence, plausible_size, record_at, stated_offset
from rmq_audit.survey import Asked, Survey, joined, survey
from rmq_audit.tally import Tallies
from rmq_audit.tasks import Chunk, Fault, Run, Scan, Split, Stretch

if TYPE_CHECKING:
    from rmq_audit.recordindex import IndexWriter

#: faults of one kind that one chunk reports singly; the rest become one fault with a count
MAX_FAULTS_PER_CHUNK = 32

#: store times of records that follow each other may step back by so much: clocks are slewed
MAX_STEP_BACK_MS = 1000

#: how far behind the bytes at hand a damaged record's totalSize is believed
MAX_JUMP_BYTES = 8 * 1024 * 1024

#: small enough to stay in the processor's cache
_ZEROS_AT_ONCE = 64 * 1024


def scan(split: Split) -> Scan:
    """Read the split once and return what it holds; a file that cannot be read is told by ``error``."""
    try:
        begin = split.begin if split.start is None else split.start
        end = min(split.end, split.segment + split.file_bytes)
        with split_window(split.path, split.segment, split.file_bytes, begin, end) as window:
            return _Pass(split, window).run()
    except ReadError as error:
        return Scan(split=split, error=str(error))


class Frames:
    """
    Record boundaries in one window: the walk, the check of frames, and how to go on where they break.

    ``limit`` is the physical offset behind which nothing counts; no record reaches beyond it.
    """

    def __init__(self, window: Window, limit: int) -> None:
        self._window = window
        self._limit = limit

    def stretch(self, start: int, stop: int) -> tuple[kernel.Columns, int]:
        """
        Return the sound records that follow each other from ``start``, those that start before ``stop``, and their
        end.
        """
        found, end = self.survey(start, stop, Asked())
        return found.columns, end

    def survey(self, start: int, stop: int, asked: Asked) -> tuple[Survey, int]:
        """Return the records of :meth:`stretch` with all that is asked of them, and their end."""
        window = self._window
        pieces: list[Survey] = []
        at = start
        while True:
            window.near(at)
            base, held = window.base, window.end
            found = survey(window.data, at - base, stop - base, self._limit - base, asked)
            pieces.append(found)
            if len(found.columns):
                at = base + int(found.columns.pos[-1] + found.columns.size[-1])
            # what stopped the kernel may be a record that the window did not hold yet
            if at >= stop or not self._holds(at) or window.end == held:
                return joined(window.data, pieces), at

    def is_blank(self, phy: int) -> bool:
        """Whether a BLANK record begins at ``phy``."""
        self._window.near(phy)
        at = phy - self._window.base
        return (
            phy + BLANK_BYTES <= min(self._limit, self._window.end)
            and SIZE_MAGIC.unpack_from(self._window.data, at)[1] == MAGIC_BLANK
        )

    def blank_size(self, phy: int) -> int:
        """Return what the BLANK at ``phy`` says about the bytes that remain in its segment."""
        return int(SIZE_MAGIC.unpack_from(self._window.data, phy - self._window.base)[0])

    def resync(self, broken: int, stop: int) -> int | None:
        """
        Return where records go on behind the broken place, at or behind ``broken`` + 1, or None if not before ``stop``.

        A start counts when its magic, its physicalOffset and the sum of its parts agree. Where the broken record
        would end by its own totalSize is tried first: a search would enter its body, which may hold a forged record.
        """
        size = self._stated_size(broken)
        if size is not None and (self._is_record(broken + size) or self._ends_segment(broken + size)):
            return broken + size
        return self.search(broken + 1, stop)

    def search(self, begin: int, stop: int) -> int | None:
        """Return the first record start in [``begin``, ``stop``), found by its magic, or None."""
        window = self._window
        at = begin - window.base + 4
        while True:
            # Not to the last byte, where no record begins: until 3.11.4 CPython's mmap.find looked at the byte behind.
            end = min(stop - window.base + 4 + len(MAGIC_PREFIX), len(window.data) - 1)
            at = window.data.find(MAGIC_PREFIX, at, end)
            if at < 0:
                return None
            phy = window.base + at - 4
            if phy >= stop:
                return None
            if self._is_record(phy):
                return phy
            at += 1

    def record(self, phy: int) -> Record | None:
        """Return the whole record at ``phy`` if its parts add up."""
        if not self._holds(phy):
            return None
        return record_at(self._window.data, phy - self._window.base, phy)

    def _is_record(self, phy: int) -> bool:
        window = self._window
        window.near(phy)
        at = phy - window.base
        if at < 0 or at + MIN_RECORD_BYTES > len(window.data) or stated_offset(window.data, at) != phy:
            return False
        return self.record(phy) is not None

    def _ends_segment(self, phy: int) -> bool:
        return phy <= self._limit and self.is_blank(phy)

    def _stated_size(self, phy: int) -> int | None:
        """Return the totalSize at ``phy`` if it may be one and leads to bytes worth reading."""
        window = self._window
        window.near(phy)
        at = phy - window.base
        if at + BLANK_BYTES > len(window.data):
            return None
        size = int(SIZE_MAGIC.unpack_from(window.data, at)[0])
        reachable = min(self._limit, window.end + MAX_JUMP_BYTES)
        return size if MIN_RECORD_BYTES <= size <= reachable - phy else None

    def _holds(self, phy: int) -> bool:
        """Make the window hold the whole record at ``phy``; False if that is no record or reaches beyond the limit."""
        window = self._window
        window.near(phy)
        size = plausible_size(window.data, phy - window.base)
        if size is None or size > MAX_RECORD_BYTES or phy + size > self._limit:
            return False
        return window.reach(phy + size)


class _Pass:
    """The state of one pass; ``run`` is called once."""

    def __init__(self, split: Split, window: Window) -> None:
        self._split = split
        self._window = window
        self._limit = min(split.limit, split.segment + split.segment_bytes)
        self._end = min(split.end, self._limit)
        self._frames = Frames(window, self._limit)
        self._stretches: list[Stretch] = []
        self._chunks: dict[int, _ChunkDigest] = {}
        self._runs: list[Run] = []
        self._faults: list[Fault] = []
        self._crcs = 0
        self._tallies = Tallies()
        self._index = _index_writer(split)

    def run(self) -> Scan:
        split, frames = self._split, self._frames
        begin = split.begin if split.start is None else split.start
        at = split.start if split.start is not None else frames.search(begin, self._end)
        behind = begin if at is None else at
        stop: int | None = None
        while at is not None and at < self._end:
            found, behind = frames.survey(at, self._end, Asked(crc=split.crc, tags=split.tags))
            columns = found.columns
            blank = behind < self._end and frames.is_blank(behind)
            if len(columns) or blank:
                self._take(found, at, behind, blank)
            if blank:
                behind = split.segment + split.segment_bytes
            if behind >= self._end:
                stop = behind
                break
            at = frames.resync(behind, self._end)
        if at is not None and at >= self._end:
            stop = max(at, stop or at)
        return Scan(
            split=split,
            kernel=kernel.NAME,
            first=self._stretches[0].start if self._stretches else None,
            stop=stop,
            read_bytes=self._window.read_bytes,
            crcs=self._crcs,
            dirty_to=self._dirty_to(behind) if stop is None else None,
            stretches=self._stretches,
            chunks=[digest.finish() for _, digest in sorted(self._chunks.items())],
            runs=self._runs,
            faults=list(self._capped()),
            tally=self._tallies.finish(),
            index=None if self._index is None else self._index.finish(),
        )

    def _take(self, found: Survey, start: int, stop: int, blank: bool) -> None:
        split, window, columns = self._split, self._window, found.columns
        data, base = window.data, window.base
        if len(columns):
            self._digest(columns, stop)
            self._group(found)
            self._check(found)
        if blank:
            self._digest_of(stop).add(stop, 0, memoryview(data)[stop - base : stop - base + BLANK_BYTES])
            self._check_blank(stop)
        head = record_at(data, start - base, start) if len(columns) else None
        self._stretches.append(
            Stretch(
                start=start,
                stop=split.segment + split.segment_bytes if blank else stop,
                records=len(columns),
                blank=blank,
                head_topic=head.topic if head else "",
                head_queue_id=head.number("queueId") if head else 0,
                head_queue_offset=head.number("queueOffset") if head else 0,
                head_timestamp=int(columns.store_timestamp[0]) if head else 0,
                last_phy=base + int(columns.pos[-1]) if head else start,
                last_timestamp=int(columns.store_timestamp[-1]) if head else 0,
                torso_from=None if blank or head is None else self._torso_from(base + int(columns.pos[-1])),
            )
        )

    def _digest(self, columns: kernel.Columns, stop: int) -> None:
        split, base = self._split, self._window.base
        view = memoryview(self._window.data)
        first, last = ((int(columns.pos[row]) + base - split.segment) // split.chunk_bytes for row in (0, -1))
        begins = np.arange(first + 1, last + 1) * split.chunk_bytes + split.segment - base
        # a chunk may lie inside one record: then none starts there
        heads = np.unique(np.concatenate(([0], np.searchsorted(columns.pos, begins))))
        starts = columns.pos[heads].tolist()
        counts = np.diff(np.append(heads, len(columns))).tolist()
        for begin, end, count in zip(starts, [*starts[1:], stop - base], counts, strict=True):
            self._digest_of(base + begin).add(base + begin, count, view[begin:end])

    def _digest_of(self, phy: int) -> _ChunkDigest:
        split = self._split
        chunk = phy - (phy - split.segment) % split.chunk_bytes
        return self._chunks.setdefault(chunk, _ChunkDigest(chunk, phy))

    def _group(self, found: Survey) -> None:
        data, base, columns = self._window.data, self._window.base, found.columns
        self._tallies.add(data, columns, found.queues)
        if self._index is not None:
            self._index.add(data, base, columns)
        runs = kernel.runs(columns, found.queues, base, found.tags)
        for index, head in enumerate(runs.head.tolist()):
            at = int(columns.topic_pos[head])
            topic = data[at : at + int(columns.topic_length[head])].decode("utf-8", "backslashreplace")
            self._runs.append(
                Run(
                    topic=topic,
                    queue_id=int(columns.queue_id[head]),
                    first=int(runs.first[index]),
                    last=int(runs.last[index]),
                    phy_first=int(runs.phy_first[index]),
                    phy_last=int(runs.phy_last[index]),
                    digest=runs.digest[index],
                    tags_digest=None if runs.tags_digest is None else runs.tags_digest[index],
                )
            )

    def _check(self, found: Survey) -> None:
        base, columns = self._window.base, found.columns
        for index in np.flatnonzero(columns.phy != columns.pos + base).tolist():
            phy = base + int(columns.pos[index])
            self._fault("CL-PHY", phy, 28, "physicalOffset")
        for index in np.flatnonzero(np.diff(columns.store_timestamp) < -MAX_STEP_BACK_MS).tolist():
            self._step_back(columns, index)
        if self._split.crc:
            self._crcs += len(columns)
            for index in found.wrong_bodies.tolist():
                phy = base + int(columns.pos[index])
                self._fault("CL-CRC", phy, int(columns.body_pos[index] - columns.pos[index]), "body")
            for index in found.wrong_properties.tolist():
                at = int(columns.size[index]) - properties.CRC_BYTES
                self._fault("CL-PROPCRC", base + int(columns.pos[index]), at, "properties")

    def _step_back(self, columns: kernel.Columns, index: int) -> None:
        """Report that the record behind number ``index`` is older than that."""
        record = self._frames.record(self._window.base + int(columns.pos[index + 1]))
        assert record is not None
        before, after = columns.store_timestamp[index : index + 2].tolist()
        place = record.topic, record.number("queueId"), record.number("queueOffset")
        self._faults.append(step_back(self._window.base + int(columns.pos[index]), record.phy, before, after, *place))

    def _check_blank(self, phy: int) -> None:
        split = self._split
        remaining = split.segment + split.segment_bytes - phy
        stated = self._frames.blank_size(phy)
        if stated != remaining:
            self._faults.append(
                Fault(
                    invariant="CL-BLANK",
                    phy=phy,
                    size_bytes=BLANK_BYTES,
                    field="totalSize",
                    expected=str(remaining),
                    actual=str(stated),
                    evidence=evidence(self._window.data, phy - self._window.base),
                    evidence_phy=max(phy - EVIDENCE_BEFORE, self._window.base),
                    detail="the BLANK record states another number of bytes than its segment has left",
                )
            )

    def _fault(self, invariant: str, phy: int, at: int, field: str) -> None:
        record = self._frames.record(phy)
        assert record is not None, f"the kernel took {phy} for a record"
        expected: int | None
        if invariant == "CL-CRC":
            expected, actual = record.number("bodyCRC"), body_crc(record.body)
        elif invariant == "CL-PROPCRC":
            expected, actual = properties.stated_property_crc(record.data, at), body_crc(record.data[:at])
        else:
            expected, actual = phy, record.number("physicalOffset")
        self._faults.append(
            Fault(
                invariant=invariant,
                phy=phy,
                size_bytes=record.size,
                topic=record.topic,
                queue_id=record.number("queueId"),
                queue_offset=record.number("queueOffset"),
                message_id=record.message_id,
                field=field,
                expected=str(expected),
                actual=str(actual),
                evidence=evidence(record.data, at),
                evidence_phy=phy + max(at - EVIDENCE_BEFORE, 0),
            )
        )

    def _capped(self) -> Iterator[Fault]:
        """Yield the faults, with those beyond the cap of a chunk and kind folded into one that counts them."""
        groups: dict[tuple[int, str], list[Fault]] = {}
        for fault in self._faults:
            chunk = (fault.phy - self._split.segment) // self._split.chunk_bytes
            groups.setdefault((chunk, fault.invariant), []).append(fault)
        for faults in groups.values():
            yield from faults[:MAX_FAULTS_PER_CHUNK]
            rest = faults[MAX_FAULTS_PER_CHUNK:]
            if rest:
                end = rest[-1].phy + rest[-1].size_bytes
                text = "more of the same in this chunk; the first of them is shown"
                yield attrs.evolve(rest[0], count=len(rest), size_bytes=end - rest[0].phy, detail=text)

    def _dirty_to(self, behind: int) -> int | None:
        """Return where the bytes behind the last record end, zeros at the end not counted; None when all are zero."""
        base, data = self._window.base, self._window.data
        filled = filled_to(data, behind - base, min(self._end - base, len(data)))
        return None if filled is None else base + filled

    def _torso_from(self, phy: int) -> int | None:
        record = self._frames.record(phy)
        if record is None or record.data[-1]:
            return None
        filled = len(record.data.rstrip(b"\0"))
        return phy + filled if record.has_hole() or not record.crc_holds() else None


def filled_to(data: bytes, begin: int, end: int) -> int | None:
    """
    Return where the zeros begin that ``data`` has before ``end``; None where there is nothing else from ``begin`` on.

    A segment made ahead is 1 GiB of them. ``rstrip`` looks at 290 MB/s and copies first; a maximum is taken at 9,700.
    """
    while begin < end:
        size = min(_ZEROS_AT_ONCE, end - begin)
        block = np.frombuffer(data, dtype=np.uint8, count=size, offset=end - size)
        if block.max():
            return end - size + int(np.flatnonzero(block)[-1]) + 1
        end -= size
    return None


def step_back(begin: int, phy: int, before: int, after: int, topic: str, queue_id: int, queue_offset: int) -> Fault:
    """
    Return the fault that says: the record at ``phy`` was stored earlier than the one before it, at ``begin``.

    The place is both of them, since either time may be the wrong one.
    """
    return Fault(
        invariant="CL-TIME",
        phy=begin,
        size_bytes=phy + 1 - begin,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        field="storeTimestamp",
        expected=f"{before} or later",
        actual=str(after),
        detail=f"the store time steps back by {before - after} ms from one record to the next",
    )


def _index_writer(split: Split) -> IndexWriter | None:
    """Return where the rows of the record index go, if one is wanted; only then pyarrow is needed."""
    if split.index is None:
        return None
    from rmq_audit.recordindex import IndexWriter

    return IndexWriter(split.index, split.begin)


class _ChunkDigest:
    """The running digest of one chunk; a broken range between two stretches is left out of it."""

    def __init__(self, chunk: int, first: int) -> None:
        self._chunk = chunk
        self._first = first
        self._hash = xxhash.xxh3_128()
        self._records = 0
        self._size = 0

    def add(self, phy: int, records: int, data: memoryview) -> None:
        self._hash.update(data)
        self._records += records
        self._size += len(data)

    def finish(self) -> Chunk:
        return Chunk(
            chunk=self._chunk,
            first=self._first,
            records=self._records,
            size_bytes=self._size,
            digest=self._hash.digest(),
        )
