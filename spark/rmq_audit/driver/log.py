"""One side's log as a whole: where it begins and ends, what is broken in it, what lies after its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from rmq.store import layout
from rmq_audit.driver.findings import Finding, finding, of_fault
from rmq_audit.driver.further import all_runs, makes_further_units, stale_runs
from rmq_audit.driver.inventory import Store
from rmq_audit.worker.files import LogFile, StoreFile, read_at
from rmq_audit.worker.kernel import Run
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.records import EVIDENCE_BYTES, MAX_HEADER_BYTES, evidence, record_at, size_of_own
from rmq_audit.worker.scan import MAX_STEP_BACK_MS, Chunk, Scan, Stretch, step_back
from rmq_audit.worker.work import Severity

#: behind every log: the end of what is not known of one that could not be listed
UNKNOWN_END = 1 << 62


@attrs.frozen
class Range:
    """Physical offsets [``begin``, ``end``)."""

    begin: int
    end: int

    def overlaps(self, begin: int, end: int) -> bool:
        return self.begin < end and begin < self.end


@attrs.define(kw_only=True)
class Log:
    """
    What one side holds between ``start`` and ``end``, built from all its scans.

    ``damage`` are ranges below the end that no record covers, ``gaps`` ranges that no file has, ``unread`` those that
    could not be read. Chunks, runs and records after the end are dropped. ``dirty_to`` is set when bytes that are
    not zero lie after the end and nobody has judged them yet. ``topics`` are those of the records themselves: ``runs``
    are of further queues too. ``stale`` are further queues of which some numbers are none, as far as can be seen.
    """

    side: str
    store: Store
    segment_bytes: int
    start: int = 0
    end: int = 0
    end_inferred: bool = True
    records: int = 0
    dirty_to: int | None = None
    damage: list[Range] = attrs.field(factory=list)
    gaps: list[Range] = attrs.field(factory=list)
    unread: list[Range] = attrs.field(factory=list)
    chunks: dict[int, Chunk] = attrs.field(factory=dict)
    runs: list[Run] = attrs.field(factory=list)
    topics: set[str] = attrs.field(factory=set)
    stale: set[tuple[str, int]] = attrs.field(factory=set)
    scans: Sequence[Scan] = ()
    findings: list[Finding] = attrs.field(factory=list)

    def report(self, invariant: str, begin: int | None, end: int | None, text: str, **members: Any) -> None:
        """Add a finding about a range of the log."""
        self.findings.append(finding(invariant, self.side, phy_from=begin, phy_to=end, detail=text, **members))

    def unknown(self, begin: int, end: int) -> bool:
        """Whether a part of the range could not be read."""
        return any(one.overlaps(begin, end) for one in self.unread)

    def segment_at(self, phy: int) -> StoreFile | None:
        """Return the file that should hold ``phy``, if there is one."""
        for segment in self.store.segments:
            if segment.start <= phy < segment.start + self.segment_bytes:
                return segment
        return None

    def file_at(self, phy: int) -> LogFile | None:
        """Return the same file as far as it belongs to the log."""
        segment = self.segment_at(phy)
        return None if segment is None else self._part_of_log(segment)

    @property
    def files(self) -> list[LogFile]:
        """All segments as far as they belong to the log."""
        return [self._part_of_log(segment) for segment in self.store.segments]

    def _part_of_log(self, segment: StoreFile) -> LogFile:
        return log_file(segment, self.segment_bytes, self.end)

    def read(self, phy: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``phy``; fewer at a file's end, none where no file is or it cannot be read."""
        segment = self.segment_at(phy)
        if segment is None:
            return b""
        try:
            return read_at(segment.path, phy - segment.start, min(size, segment.start + segment.size_bytes - phy))
        except ReadError:
            return b""


def log_file(segment: StoreFile, segment_bytes: int, end: int | None) -> LogFile:
    """Return what a file holds of a log with segments of that size, which ends at ``end`` (None: not known where)."""
    full = segment.start + segment_bytes
    size = min(segment.size_bytes, segment_bytes)
    limit = full if end is None else min(end, full)
    return LogFile(path=segment.path, start=segment.start, size_bytes=size, limit=limit)


def build_log(store: Store, segment_bytes: int, scans: Sequence[Scan]) -> Log:
    """Build the log of one side from its scans, which are in order and meet without a gap."""
    log = Log(side=store.side, store=store, segment_bytes=segment_bytes, scans=scans)
    claimed = store.manifest.max_phy_offset if store.manifest is not None else None
    _take_unread(log)
    _take_gaps(log, claimed)
    stretches = [stretch for scan in scans for stretch in scan.stretches]
    if claimed is None:
        stretches = _drop_stale(log, stretches)
    _find_end(log, stretches)
    log.records = sum(stretch.records for stretch in stretches)
    if claimed is not None:
        _end_as_claimed(log, claimed)
    else:
        _cut_torn(log, stretches)
    _report_gaps(log)
    _report_damage(log)
    _report_steps_back(log, stretches)
    _take_tables(log)
    return log


def _take_unread(log: Log) -> None:
    size = log.segment_bytes
    for problem in log.store.problems:
        if problem.phy is not None:
            log.unread.append(Range(problem.phy, problem.phy + size))
        elif problem.whole_log:
            log.unread.append(Range(0, UNKNOWN_END))
        log.report(problem.invariant, problem.phy, None, f"{problem.path} {problem.text}")
    for scan in log.scans:
        if scan.error is not None:
            log.unread.append(Range(scan.split.begin, scan.split.end))
            log.report("AU-COVER", scan.split.begin, scan.split.end, scan.error)
    for segment in log.store.segments:
        if segment.size_bytes > size:
            text = f"{segment.path} has {segment.size_bytes} bytes, its log's segments {size}: no broker starts with it"
            log.report("ST-FILE", segment.start + size, None, text)
    log.unread.sort(key=lambda one: one.begin)


def _take_gaps(log: Log, claimed: int | None) -> None:
    """Fill the start and the ranges that no file has: missing segments, and the missing ends of short ones."""
    size, segments = log.segment_bytes, log.store.segments
    starts = [segment.start for segment in segments] + [one.begin for one in log.unread]
    log.start = expected = min(starts, default=0)
    promised = _promised_start(log)
    if segments and promised is not None and promised < log.start:
        log.gaps.append(Range(promised, log.start))
    for segment in segments:
        if segment.start > expected and not log.unknown(expected, segment.start):
            log.gaps.append(Range(expected, segment.start))
        expected = segment.start + size
        file_end = segment.start + min(segment.size_bytes, size)
        complete_by_dump = claimed is not None and claimed <= file_end
        empty_last = segment is segments[-1] and segment.size_bytes == 0
        if empty_last and not (log.store.ours or log.store.unfinished or complete_by_dump):
            text = f"{segment.path} is empty: Apache's 4.9 does not start with it; delete it, nothing was in it"
            log.report("ST-FILE", segment.start, None, text)
        if file_end < expected and not complete_by_dump and not empty_last:
            log.gaps.append(Range(file_end, expected))
    if claimed is not None and claimed > expected and not log.unknown(expected, claimed):
        log.gaps.append(Range(expected, claimed))


def _promised_start(log: Log) -> int | None:
    """Return where the first segment begins by the manifest; None when that says nothing of it."""
    manifest = log.store.manifest
    if manifest is None:
        return None
    folders = [path.rpartition("/") for path in manifest.files]
    starts = [layout.file_start(name) for folder, _, name in folders if folder == layout.COMMIT_LOG_DIR]
    known = [manifest.min_phy_offset, *starts]
    return min((start - start % log.segment_bytes for start in known if start is not None), default=None)


def _drop_stale(log: Log, stretches: list[Stretch]) -> list[Stretch]:
    """
    Return the stretches up to the true end, for a log whose end nobody states.

    Truncation leaves old records after the end, and new ones overwrite them from the front. What follows a break in
    the last segment is such a rest when it is older than what stands before, by store time or by the offset in its
    queue.
    """
    for index in range(1, len(stretches)):
        before, after = stretches[index - 1], stretches[index]
        if after.start == before.stop or before.blank or log.unknown(before.stop - 1, after.start + 1):
            continue
        last = stretches[-1]
        same_segment = last.start // log.segment_bytes == before.start // log.segment_bytes
        if same_segment and _is_older(log, before, after, last):
            stale = sum(stretch.records for stretch in stretches[index:])
            text = f"{stale} old records lie after the end, left by a truncation; they are not part of the log"
            log.report("CL-STALE", after.start, last.stop, text, count=stale)
            return stretches[:index]
    return stretches


def _is_older(log: Log, before: Stretch, after: Stretch, last: Stretch) -> bool:
    """
    Whether the stretch begins with something older than what stands before it, and nothing newer follows up to
    ``last``.

    The second half keeps damage in the middle of the log from being taken for its end, when the search for the next
    record has met an old or forged one in a body.
    """
    if after.records == 0 or last.last_timestamp > before.last_timestamp:
        return False
    if after.head_timestamp < before.last_timestamp:
        return True
    queue = after.head_topic, after.head_queue_id
    runs = (run for scan in log.scans for run in scan.runs if run.phy_last < after.start)
    newest = max((run.last for run in runs if (run.topic, run.queue_id) == queue), default=-1)
    return after.head_queue_offset <= newest


def _find_end(log: Log, stretches: Sequence[Stretch]) -> None:
    """Fill the end and the damage: what no stretch covers below the last one."""
    at = log.start
    for stretch in stretches:
        if stretch.start > at and not log.unknown(at - 1, stretch.start + 1):
            log.damage.append(Range(at, stretch.start))
        at = max(at, stretch.stop)
    log.end = at
    stale = any(one.invariant == "CL-STALE" for one in log.findings)
    dirty = max((scan.dirty_to or 0 for scan in log.scans), default=0)
    log.dirty_to = dirty if dirty > at and not stale else None


def _end_as_claimed(log: Log, claimed: int) -> None:
    """Compare the end that was found with the manifest's: a record across it is torn, anything else is damage."""
    log.end_inferred = False
    log.dirty_to = None
    if log.end >= claimed:
        log.end = claimed
        return
    size = size_of_own(log.read(log.end, MAX_HEADER_BYTES), log.end)
    if size is not None and log.end + size > claimed:
        log.findings.append(torn_record(log, log.end, claimed))
    elif not log.unknown(log.end, claimed):
        log.damage.append(Range(log.end, claimed))
        log.end = claimed


def _cut_torn(log: Log, stretches: Sequence[Stretch]) -> None:
    """Take back the last record when its own bytes show that its tail never arrived."""
    last = stretches[-1] if stretches else None
    if last is not None and last.torn_from is not None and log.end == last.stop and log.dirty_to is None:
        log.end = last.last_phy
        log.records -= 1
        log.findings.append(torn_record(log, last.last_phy, last.torn_from))


def torn_record(log: Log, begin: int, end: int) -> Finding:
    """Return the finding about the record at the end of which only [``begin``, ``end``) is present."""
    text = f"torn record at the end: {end - begin} bytes of it are present; the log is taken to end at {begin}"
    return finding("CL-TAIL", log.side, phy_from=begin, phy_to=end, detail=text)


def _report_gaps(log: Log) -> None:
    """Report what no file has, and take it out of the damage, together with a record that a short file cuts."""
    for gap in log.gaps:
        segment = log.segment_at(gap.begin)
        torn = [one.begin for one in log.damage if segment is not None and one.overlaps(gap.begin - 1, gap.end)]
        begin = min([gap.begin, *torn])
        log.damage = [part for one in log.damage for part in _without(one, Range(begin, gap.end))]
        severity = Severity.ERROR
        if segment is None:
            text = f"segments {gap.begin:020d} to before {gap.end:020d} are missing"
        else:
            text = f"{segment.path} has {segment.size_bytes} of {log.segment_bytes} bytes"
            if gap.begin > log.end and log.dirty_to is None:
                text += "; the log ends before that"
                if log.store.ours:
                    severity = Severity.WARN
                else:
                    text += ", but Apache's broker does not start with it"
            elif gap.begin >= log.end:
                begin = min(begin, log.end)
                text += f", the log is cut off at {log.end}"
                log.dirty_to = None
        if segment is None and gap.begin >= log.end and log.end_inferred:
            continue
        log.report("CL-GAP", begin, gap.end, text, severity=severity)


def _without(one: Range, gap: Range) -> Iterator[Range]:
    if not one.overlaps(gap.begin, gap.end):
        yield one
        return
    if one.begin < gap.begin:
        yield Range(one.begin, gap.begin)
    if gap.end < one.end:
        yield Range(gap.end, one.end)


def _report_damage(log: Log) -> None:
    for one in log.damage:
        data = log.read(one.begin, EVIDENCE_BYTES)
        zeros = "; it begins with zeros" if data and not data.strip(b"\0") else ""
        text = f"{one.end - one.begin} bytes are not a record{zeros}"
        log.report("CL-FRAME", one.begin, one.end, text, **evidence(log.side, data, 0, one.begin))
    for scan in log.scans:
        for stretch in scan.stretches:
            full = scan.split.full
            if stretch.stop == full and not stretch.blank and full <= log.end:
                text = "the segment ends with a record; RocketMQ always leaves 8 bytes for a BLANK"
                log.report("CL-BLANK", stretch.last_phy, full, text)


def _report_steps_back(log: Log, stretches: Sequence[Stretch]) -> None:
    """Compare store times where two splits or segments meet; inside a split its worker has done so."""
    for before, after in itertools.pairwise(one for one in stretches if one.records):
        back = before.last_timestamp - after.head_timestamp
        if after.start == before.stop and back > MAX_STEP_BACK_MS and after.start < log.end:
            times = before.last_timestamp, after.head_timestamp
            place = after.head_topic, after.head_queue_id, after.head_queue_offset
            log.findings.append(of_fault(log.side, step_back(before.last_phy, after.start, times, place)))


def _take_tables(log: Log) -> None:
    """Take over chunks, runs and faults that begin before the end."""
    spread = any(scan.further for scan in log.scans) and makes_further_units(log.store, log.scans)
    for scan in log.scans:
        for chunk in scan.chunks:
            if chunk.first < log.end:
                log.chunks[chunk.chunk] = chunk
        log.topics.update(run.topic for run in scan.runs if run.phy_first < log.end)
        for run in all_runs(scan) if spread else scan.runs:
            if run.phy_last < log.end:
                log.runs.append(run)
            elif run.phy_first < run.phy_last == log.end:
                log.runs.append(
                    # without a digest its units are looked into one by one
                    attrs.evolve(run, last=run.last - 1, phy_last=log.end - 1, digest=None)
                )
        log.findings += [of_fault(log.side, fault) for fault in scan.faults if fault.phy < log.end]
    log.runs.sort(key=lambda run: run.phy_first)
    if spread:
        _drop_copies(log)


def _drop_copies(log: Log) -> None:
    """Leave out the runs whose numbers are those of other records."""
    queues: dict[tuple[str, int], list[Run]] = {}
    for run in log.runs:
        queues.setdefault((run.topic, run.queue_id), []).append(run)
    stale = {id(run) for runs in queues.values() for run in stale_runs(runs)}
    log.stale = {(run.topic, run.queue_id) for run in log.runs if id(run) in stale}
    log.runs = [run for run in log.runs if id(run) not in stale]


def has_grown(log: Log) -> bool:
    """
    Whether a whole record stands by now where the log ended when it was read.

    Modification times do not tell: who writes through a memory map changes them now and then.
    """
    if log.store.manifest is not None:
        return False
    size = size_of_own(log.read(log.end, MAX_HEADER_BYTES), log.end)
    if size is None:
        return False
    record = record_at(log.read(log.end, size), 0, log.end)
    return record is not None and record.crc_holds() and not record.has_hole()
