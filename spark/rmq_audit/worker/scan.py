"""One pass over one split: frames, CRCs, chunk digests and queue runs. This is what a worker runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import xxhash

from rmq.wire.record import BLANK_BYTES, body_crc
from rmq_audit.worker import further, kernel, properties
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.frames import Asked, Extract, Frames
from rmq_audit.worker.further import Sample
from rmq_audit.worker.kernel import Run
from rmq_audit.worker.lentwindow import split_window
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.records import Record, evidence, record_at
from rmq_audit.worker.tally import Tally, count_records, tallies
from rmq_audit.worker.work import UNDECIDED, Fault, IndexFile, Work

if TYPE_CHECKING:
    from rmq_audit.worker.recordindex import IndexWriter

#: faults of one kind that one chunk reports singly; the rest become one fault with a count
MAX_FAULTS_PER_CHUNK = 32

#: store times of records that follow each other may step back by so much: clocks are slewed
MAX_STEP_BACK_MS = 1000

#: small enough to stay in the processor's cache
_ZEROS_AT_ONCE = 64 * 1024


@attrs.frozen(kw_only=True)
class Split:
    """
    A part of one segment for one task: the records that *start* in [``begin``, ``end``), physical offsets.

    ``start`` is a trusted record start, or None: then the worker finds the first record itself. The limit of the file
    is the log's end by its manifest, else the segment's end. ``tags``: take digests of the tagsCodes.
    ``apart``: light queues whose ids are those of their records' queues.
    ``index``: the folder that the record index is written to, if there is to be one.
    """

    side: str
    file: LogFile
    segment_bytes: int
    begin: int
    end: int
    start: int | None
    chunk_bytes: int
    crc: bool
    tags: bool = False
    index: str | None = None
    apart: Sequence[str] = ()

    @property
    def full(self) -> int:
        """Where the next segment begins."""
        return self.file.start + self.segment_bytes


@attrs.frozen(kw_only=True)
class Stretch:
    """
    Records that follow each other without a gap: [``start``, ``stop``), with what tells old bytes from new at both
    ends.

    A stretch that ends in BLANK stops at the segment's end. ``torn_from`` is the first missing byte when the last
    record is one whose tail never arrived, as far as its own bytes tell.
    """

    start: int
    stop: int
    records: int
    blank: bool
    head_topic: str
    head_queue_id: int
    head_queue_offset: int
    head_timestamp: int
    last_phy: int
    last_timestamp: int
    torn_from: int | None


@attrs.frozen(kw_only=True)
class Chunk:
    """Digest of the contiguous bytes of the records that start in [``chunk``, ``chunk`` + chunk size)."""

    chunk: int
    first: int
    records: int
    size_bytes: int
    digest: bytes


@attrs.frozen(kw_only=True)
class Scan:
    """
    What one pass over a split found.

    ``kernel`` is the one that the worker used (empty when the split could not be read). ``first`` is where its first
    record starts, ``stop`` where the next split has to begin (None: the chain broke off
    and nothing was found behind). ``dirty_to`` is the end of the last byte that is not zero after the last stretch.
    ``further`` are the runs of queues in which records of other topics have numbers too: those that hold where the
    broker has `enableMultiDispatch`, which ``samples`` tell. Otherwise ``runs`` hold for these queues too.
    """

    split: Split
    kernel: str = ""
    error: str | None = None
    first: int | None = None
    stop: int | None = None
    read_bytes: int = 0
    crcs: int = 0
    dirty_to: int | None = None
    stretches: Sequence[Stretch] = ()
    chunks: Sequence[Chunk] = ()
    runs: Sequence[Run] = ()
    further: Sequence[Run] = ()
    samples: Sequence[Sample] = ()
    faults: Sequence[Fault] = ()
    tally: Sequence[Tally] = ()
    index: IndexFile | None = None


def scan(split: Split) -> Scan:
    """Read the split once and return what it holds; a file that cannot be read is reported in ``error``."""
    try:
        begin = split.begin if split.start is None else split.start
        with split_window(split.file, begin, min(split.end, split.file.stop)) as window:
            return _Pass(split, window).run()
    except ReadError as error:
        return Scan(split=split, error=str(error))


class _Pass:
    """The state of one pass; ``run`` is called once."""

    def __init__(self, split: Split, window: Window) -> None:
        self._split = split
        self._window = window
        self._end = min(split.end, split.file.limit)
        self._frames = Frames(window)
        self._stretches: list[Stretch] = []
        self._chunks: dict[int, _ChunkDigest] = {}
        self._runs: list[Run] = []
        self._further: list[Run] = []
        self._samples: list[Sample] = []
        self._faults: list[Fault] = []
        self._crcs = 0
        self._counts = Counter[tuple[str, int]]()
        self._index = _index_writer(split)

    def run(self) -> Scan:
        split, frames = self._split, self._frames
        begin = split.begin if split.start is None else split.start
        at = split.start if split.start is not None else frames.search(begin, self._end)
        behind = begin if at is None else at
        stop: int | None = None
        while at is not None and at < self._end:
            found, behind = frames.extract_from(at, self._end, Asked(crc=split.crc, tags=split.tags, further=True))
            columns = found.columns
            blank = behind < self._end and frames.is_blank(behind)
            if len(columns) or blank:
                self._take(found, at, behind, blank)
            if blank:
                behind = split.full
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
            further=self._further,
            samples=self._samples[: further.MAX_SAMPLES],
            faults=list(self._capped()),
            tally=tallies(self._counts),
            index=None if self._index is None else self._index.finish(),
        )

    def _take(self, found: Extract, start: int, stop: int, blank: bool) -> None:
        split, window, columns = self._split, self._window, found.columns
        data, base = window.data, window.base
        if len(columns):
            self._digest(columns, stop)
            self._group(found)
            self._check(found)
        if blank:
            self._digest_of(stop).add(0, memoryview(data)[stop - base : stop - base + BLANK_BYTES])
            self._check_blank(stop)
        head = record_at(data, start - base, start) if len(columns) else None
        self._stretches.append(
            Stretch(
                start=start,
                stop=split.full if blank else stop,
                records=len(columns),
                blank=blank,
                head_topic=head.topic if head else "",
                head_queue_id=head.number("queueId") if head else 0,
                head_queue_offset=head.number("queueOffset") if head else 0,
                head_timestamp=int(columns.store_timestamp[0]) if head else 0,
                last_phy=base + int(columns.pos[-1]) if head else start,
                last_timestamp=int(columns.store_timestamp[-1]) if head else 0,
                torn_from=None if blank or head is None else self._torn_from(base + int(columns.pos[-1])),
            )
        )

    def _digest(self, columns: kernel.Columns, stop: int) -> None:
        base, step = self._window.base, self._split.chunk_bytes
        segment, view = self._split.file.start, memoryview(self._window.data)
        first, last = ((int(columns.pos[row]) + base - segment) // step for row in (0, -1))
        begins = np.arange(first + 1, last + 1) * step + segment - base
        # a chunk may lie inside one record: then none starts there
        heads = np.unique(np.concatenate(([0], np.searchsorted(columns.pos, begins))))
        starts = columns.pos[heads].tolist()
        counts = np.diff(np.append(heads, len(columns))).tolist()
        for begin, end, count in zip(starts, [*starts[1:], stop - base], counts, strict=True):
            self._digest_of(base + begin).add(count, view[begin:end])

    def _digest_of(self, phy: int) -> _ChunkDigest:
        chunk = phy - (phy - self._split.file.start) % self._split.chunk_bytes
        return self._chunks.setdefault(chunk, _ChunkDigest(chunk, phy))

    def _group(self, found: Extract) -> None:
        data, base, columns = self._window.data, self._window.base, found.columns
        count_records(self._counts, data, columns, found.queues)
        if self._index is not None:
            self._index.add(data, base, columns)
        self._runs += kernel.runs(data, columns, found.queues, base, found.tags)
        if len(found.further):
            units = further.spread(data, columns, found.further, self._split.apart)
            runs, samples = further.runs(data, units, base, found.tags)
            self._further += runs
            self._samples += samples

    def _check(self, found: Extract) -> None:
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
        times = int(columns.store_timestamp[index]), int(columns.store_timestamp[index + 1])
        place = record.topic, record.number("queueId"), record.number("queueOffset")
        self._faults.append(step_back(self._window.base + int(columns.pos[index]), record.phy, times, place))

    def _check_blank(self, phy: int) -> None:
        side, remaining, stated = self._split.side, self._split.full - phy, self._frames.blank_size(phy)
        if stated != remaining:
            self._faults.append(
                Fault(
                    invariant="CL-BLANK",
                    phy_from=phy,
                    phy_to=phy + BLANK_BYTES,
                    field="totalSize",
                    expected=str(remaining),
                    actual=str(stated),
                    blame=side,
                    detail="the BLANK record does not state the number of bytes that its segment has left",
                    **evidence(side, self._window.data, phy - self._window.base, self._window.base),
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
        self._faults.append(record_fault(invariant, self._split.side, record, field, at, str(expected), str(actual)))

    def _capped(self) -> Iterator[Fault]:
        """Yield the faults, with those beyond the cap of a chunk and kind folded into one that counts them."""
        groups: dict[tuple[int, str], list[Fault]] = {}
        for fault in self._faults:
            chunk = (fault.phy - self._split.file.start) // self._split.chunk_bytes
            groups.setdefault((chunk, fault.invariant), []).append(fault)
        for faults in groups.values():
            yield from faults[:MAX_FAULTS_PER_CHUNK]
            rest = faults[MAX_FAULTS_PER_CHUNK:]
            if rest:
                text = "more of the same in this chunk; the first of them is shown"
                yield attrs.evolve(rest[0], count=len(rest), phy_to=rest[-1].phy_to, detail=text)

    def _dirty_to(self, behind: int) -> int | None:
        """Return where the bytes after the last record end, zeros at the end not counted; None when all are zero."""
        base, data = self._window.base, self._window.data
        filled = filled_to(data, behind - base, min(self._end - base, len(data)))
        return None if filled is None else base + filled

    def _torn_from(self, phy: int) -> int | None:
        record = self._frames.record(phy)
        if record is None or record.data[-1]:
            return None
        filled = len(record.data.rstrip(b"\0"))
        return phy + filled if record.has_hole() or not record.crc_holds() else None


def record_fault(invariant: str, side: str, record: Record, field: str, at: int, expected: str, actual: str) -> Fault:
    """Return the fault of a record that fails a check of its own; the evidence is around its byte ``at``."""
    return Fault(
        invariant=invariant,
        phy_from=record.phy,
        phy_to=record.phy + record.size,
        field=field,
        expected=expected,
        actual=actual,
        blame=side,
        **record.names(),
        **evidence(side, record.data, at, record.phy),
    )


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


def step_back(begin: int, phy: int, times: tuple[int, int], place: tuple[str, int, int]) -> Fault:
    """
    Return the fault that says: the record at ``phy`` was stored earlier than the one before it, at ``begin``.

    Its place in the log is both of them, since either of the ``times`` may be the wrong one; ``place`` is that of the
    later one in its queue.
    """
    (before, after), (topic, queue_id, queue_offset) = times, place
    return Fault(
        invariant="CL-TIME",
        phy_from=begin,
        phy_to=phy + 1,
        topic=topic,
        queue_id=queue_id,
        queue_offset_from=queue_offset,
        queue_offset_to=queue_offset,
        blame=UNDECIDED,
        field="storeTimestamp",
        expected=f"{before} or later",
        actual=str(after),
        detail=f"the store time goes back by {before - after} ms from one record to the next",
    )


def _index_writer(split: Split) -> IndexWriter | None:
    """Return where the rows of the record index go, if one is wanted; only then pyarrow is needed."""
    if split.index is None:
        return None
    from rmq_audit.worker.recordindex import IndexWriter

    return IndexWriter(split.index, split.begin)


@attrs.define(eq=False)
class _ChunkDigest:
    """The running digest of one chunk; a broken range between two stretches is left out of it."""

    chunk: int
    first: int
    records: int = 0
    size_bytes: int = 0
    hash: xxhash.xxh3_128 = attrs.field(factory=xxhash.xxh3_128)

    def add(self, records: int, data: memoryview) -> None:
        self.hash.update(data)
        self.records += records
        self.size_bytes += len(data)

    def finish(self) -> Chunk:
        counts = {"records": self.records, "size_bytes": self.size_bytes}
        return Chunk(chunk=self.chunk, first=self.first, digest=self.hash.digest(), **counts)


SCAN = Work("scan", scan, lambda split: split.end - split.begin, remembered=Scan)
