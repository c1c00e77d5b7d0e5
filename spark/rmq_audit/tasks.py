"""What goes to a worker and what comes back: small values only, never a body."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class Split:
    """
    A part of one segment for one task: the records that *start* in [``begin``, ``end``), physical offsets.

    ``start`` is a trusted record start, or None: then the worker finds the first record itself. Nothing at or behind
    ``limit`` counts (the log's end by its manifest, else the segment's end). ``tags``: take digests of the tagsCodes.
    ``index``: the folder that the record index is written to, if there is to be one.
    """

    side: str
    path: str
    segment: int
    segment_bytes: int
    file_bytes: int
    begin: int
    end: int
    start: int | None
    limit: int
    chunk_bytes: int
    crc: bool
    tags: bool = False
    index: str | None = None


@attrs.frozen(kw_only=True)
class Stretch:
    """
    Records that follow each other without a gap: [``start``, ``stop``), with what tells old bytes from new at both
    ends.

    A stretch that ends in BLANK stops at the segment's end. ``torso_from`` is the first missing byte when the last
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
    torso_from: int | None


@attrs.frozen(kw_only=True)
class Chunk:
    """Digest of the contiguous bytes of the records that start in [``chunk``, ``chunk`` + chunk size)."""

    chunk: int
    first: int
    records: int
    size_bytes: int
    digest: bytes


@attrs.frozen(kw_only=True)
class Run:
    """
    Consecutive queue offsets of one queue, and digests over what its units must hold: the (phyOffset, size) pairs, and
    the tagsCodes (None where the record alone does not decide them).
    """

    topic: str
    queue_id: int
    first: int
    last: int
    phy_first: int
    phy_last: int
    digest: int | None
    tags_digest: int | None = None


@attrs.frozen(kw_only=True)
class Fault:
    """Something wrong with the bytes [``phy``, ``phy`` + ``size_bytes``) of one side, as a worker saw it."""

    invariant: str
    phy: int
    size_bytes: int
    count: int = 1
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None
    field: str | None = None
    expected: str | None = None
    actual: str | None = None
    evidence: str | None = None
    evidence_phy: int | None = None
    detail: str = ""


@attrs.frozen(kw_only=True)
class Tally:
    """How many records of a topic were stored in [``begin_ms``, ``begin_ms`` + ``span_ms``) by their store times."""

    topic: str
    begin_ms: int
    span_ms: int
    records: int


@attrs.frozen(kw_only=True)
class IndexFile:
    """
    A file of the record index: rows up to the record at ``last_phy``; no ``path`` where there was nothing to write.
    """

    path: str | None
    rows: int
    last_phy: int
    error: str | None = None


@attrs.frozen(kw_only=True)
class TrimIndex:
    """Take the rows at and behind ``limit`` out of a file of the record index."""

    file: str
    limit: int


@attrs.frozen(kw_only=True)
class Scan:
    """
    What one pass over a split found.

    ``kernel`` is the one that the worker used (empty when the split could not be read). ``first`` is where its first
    record starts, ``stop`` where the next split has to begin (None: the chain broke off
    and nothing was found behind). ``dirty_to`` is the end of the last byte that is not zero behind the last stretch.
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
    faults: Sequence[Fault] = ()
    tally: Sequence[Tally] = ()
    index: IndexFile | None = None


@attrs.frozen(kw_only=True)
class DrillSide:
    """
    One side of a chunk to look into: its file, where its first record in the chunk starts, and where the log ends.
    """

    path: str
    file_bytes: int
    first: int | None
    limit: int


@attrs.frozen(kw_only=True)
class Drill:
    """Compare the records that start in [``begin``, ``end``) of one segment, byte by byte, on both sides."""

    segment: int
    begin: int
    end: int
    master: DrillSide | None
    slave: DrillSide | None


@attrs.frozen(kw_only=True)
class FieldValues:
    """One field of a record and what each side has in it; None where a side does not have it at all."""

    field: str
    master: str | None
    slave: str | None


@attrs.frozen(kw_only=True)
class Difference:
    """
    Records that the sides do not share, adjacent ones as one when there are many of them.

    ``fields`` are all in which the (first) record differs; empty where there is no record to compare.
    """

    invariant: str
    phy_from: int
    phy_to: int
    count: int
    topic: str | None = None
    queue_id: int | None = None
    queue_offset_from: int | None = None
    queue_offset_to: int | None = None
    message_ids: Sequence[str] = ()
    field: str | None = None
    expected: str | None = None
    actual: str | None = None
    blame: str = "undecided"
    evidence_phy: int | None = None
    evidence_master: str | None = None
    evidence_slave: str | None = None
    detail: str = ""
    fields: Sequence[FieldValues] = ()


@attrs.frozen(kw_only=True)
class Drilled:
    """
    What a drill found.

    ``equal`` counts the records (and BLANKs) that both sides share, ``crcs`` the slave's other ones, whose bodies
    were checked. ``forked_at`` is the first difference behind the last shared record, if both sides hold a sound but
    different message there.
    """

    drill: Drill
    error: str | None = None
    equal: int = 0
    forked_at: int | None = None
    crcs: int = 0
    differences: Sequence[Difference] = ()
    faults_slave: Sequence[Fault] = ()


@attrs.frozen(kw_only=True)
class UnitFile:
    """One consume queue file; ``start`` is the byte offset in its queue that names it."""

    path: str
    start: int
    size_bytes: int


@attrs.frozen(kw_only=True)
class QueueCheck:
    """
    Hold one queue's files against the runs that the scan of the log found, and against the log's ends.

    ``owned_from`` and ``owned_to`` are the queue offsets of the first record of the queue, and behind the last one:
    units before and behind them that point into the log are nobody's. None where that is not known.
    """

    side: str
    topic: str
    queue_id: int
    files: Sequence[UnitFile]
    runs: Sequence[Run]
    log_end: int
    log_start: int = 0
    owned_from: int | None = None
    owned_to: int | None = None


@attrs.frozen(kw_only=True)
class QueueState:
    """
    What a queue's files hold: ``unequal`` are the indices of runs whose units are not what the log dictates.

    ``dangling_from`` is the first unit that points behind the end of the log, with that place in ``dangling_phy``;
    ``end`` is the queue offset behind the last unit. ``surplus`` units in front of the queue's first record, or behind
    its last one, belong to no record, the first of them points at ``surplus_phy``. All units of the first
    ``expired_files`` files, up to before the queue offset ``expired_to``, point before the begin of the log.
    ``broken_at`` is the queue offset in front of the first record at which a broker takes the queue to end.
    """

    error: str | None = None
    units: int = 0
    end: int = 0
    unequal: Sequence[int] = ()
    dangling: int = 0
    dangling_from: int | None = None
    dangling_phy: int | None = None
    surplus: int = 0
    surplus_from: int | None = None
    surplus_phy: int | None = None
    expired_files: int = 0
    expired_to: int | None = None
    broken_at: int | None = None


@attrs.frozen(kw_only=True)
class UnitCheck:
    """
    Compare the units of one run one by one with the records of that stretch of log.

    ``extension`` are the files that hold the tagsCodes of units which name an address instead.
    """

    path: str
    segment: int
    file_bytes: int
    limit: int
    run: Run
    files: Sequence[UnitFile]
    extension: Sequence[UnitFile] = ()


@attrs.frozen(kw_only=True)
class UnitState:
    """
    How many units are empty, how many wrong, and how many right but for their tagsCode, and the first of each by queue
    offset; texts are "phyOffset+size". ``right_phy`` is the last record that has its unit.
    """

    error: str | None = None
    empty: int = 0
    empty_from: int | None = None
    empty_phy: int | None = None
    right_phy: int | None = None
    wrong: int = 0
    wrong_from: int | None = None
    wrong_phy: int | None = None
    expected: str | None = None
    actual: str | None = None
    wrong_tags: int = 0
    wrong_tags_from: int | None = None
    wrong_tags_phy: int | None = None
    expected_tags: str | None = None
    actual_tags: str | None = None


@attrs.frozen(kw_only=True)
class SegmentFile:
    """One file of the log, as far as it counts."""

    path: str
    start: int
    size_bytes: int

    @property
    def stop(self) -> int:
        return self.start + self.size_bytes


@attrs.frozen(kw_only=True)
class IndexCheck:
    """
    Hold one index file against the log; ``slots`` is None when nobody says how many hash slots it has: then one of the
    ``others`` may tell, of the same store and of the other side.

    ``before`` is the file before it. ``complete_to``: every record with keys behind the file before must have its
    entries, up to the last entry, and up to that place; None where that cannot be said.
    """

    side: str
    path: str
    size_bytes: int
    slots: int | None
    segments: Sequence[SegmentFile]
    log_start: int
    log_end: int
    before: str | None = None
    others: Sequence[str] = ()
    usual_bytes: int = 0
    complete_to: int | None = None


@attrs.frozen(kw_only=True)
class IndexFault:
    """
    ``count`` wrong entries of an index file; ``entry`` and ``phy`` are the first one's number and place.

    ``by_crash``: an Apache broker that was killed leaves it so.
    """

    invariant: str
    entry: int
    phy: int | None = None
    count: int = 1
    detail: str = ""
    by_crash: bool = False


@attrs.frozen(kw_only=True)
class IndexState:
    """How many entries were held against their records, and what is wrong."""

    error: str | None = None
    entries: int = 0
    faults: Sequence[IndexFault] = ()


@attrs.frozen(kw_only=True)
class Send:
    """One message as its producer was told of it; what the side table does not say is None."""

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    phy: int
    body_crc: int | None
    body_size: int | None


@attrs.frozen(kw_only=True)
class AckCheck:
    """Look for acknowledged sends, ascending by place, in one segment."""

    segment: SegmentFile
    log_end: int
    sends: Sequence[Send]


@attrs.frozen(kw_only=True)
class AckFault:
    """A send that is not in the log as it was acknowledged."""

    invariant: str
    send: Send
    expected: str | None = None
    actual: str | None = None


@attrs.frozen(kw_only=True)
class AckState:
    """What became of the sends of one task, and when those that are there were stored, by the topic of the send."""

    error: str | None = None
    faults: Sequence[AckFault] = ()
    found: Sequence[Tally] = ()


@attrs.frozen(kw_only=True)
class NameSearch:
    """
    Look for messages by name among the records from ``start`` on, those that start before ``end``.

    ``names`` are the sorted 64-bit hashes of the names, ``places`` sorted physical offsets of records not to tell of;
    both as native int64.
    """

    path: str
    segment: int
    file_bytes: int
    start: int
    end: int
    limit: int
    names: bytes
    places: bytes


@attrs.frozen(kw_only=True)
class NameHit:
    """A record with the hash of a wanted name: what it is really called, and where it lies."""

    message_id: str
    topic: str
    phy: int


@attrs.frozen(kw_only=True)
class NamesFound:
    """What a search by name has met; ``left_out`` counts hits beyond those that are told."""

    error: str | None = None
    hits: Sequence[NameHit] = ()
    left_out: int = 0
