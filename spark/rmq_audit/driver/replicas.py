"""Master against slave: which chunks differ, which of them to look into, and what the answers amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from rmq_audit.driver.findings import Finding, finding, of_fault
from rmq_audit.driver.inventory import take_inventory
from rmq_audit.driver.log import Log, torn_record
from rmq_audit.worker.records import MAX_HEADER_BYTES, record_at, size_of_own
from rmq_audit.worker.replicas import Drill, Drilled, DrillSide, folded, of_the_first
from rmq_audit.worker.scan import Chunk
from rmq_audit.worker.work import BOTH, MASTER, SLAVE, UNDECIDED, Fault, Severity

#: differing chunks that are looked into; more of them are reported as ranges
MAX_DRILLS = 256

_PIECE_BYTES = 1 << 20

RunDrills = Callable[[Sequence[Drill]], Sequence[Drilled]]


@attrs.define(kw_only=True)
class Comparison:
    """What comparing the two logs gave; the common range is [``begin``, ``end``), empty when begin is not below end."""

    begin: int
    end: int
    compared: int = 0
    compared_bytes: int = 0
    equal: set[int] = attrs.field(factory=set)
    differing: list[int] = attrs.field(factory=list)
    drilled: dict[int, Drilled] = attrs.field(factory=dict)
    diverged_at: int | None = None
    differences: list[Fault] = attrs.field(factory=list)
    findings: list[Finding] = attrs.field(factory=list)


class Replicas:
    """Compare two logs by their chunk digests, once; ``run_drills`` runs drills on the workers."""

    def __init__(self, master: Log, slave: Log, chunk_bytes: int, run_drills: RunDrills) -> None:
        self._logs = {MASTER: master, SLAVE: slave}
        self._chunk_bytes = chunk_bytes
        self._run_drills = run_drills
        self._result = Comparison(begin=max(master.start, slave.start), end=min(master.end, slave.end))

    def compare(self) -> Comparison:
        """Fill and return the comparison; its findings say what differs below the common end."""
        self._compare_digests()
        self._drill_differing()
        self._compare_damage()
        in_order = sorted(self._result.differences, key=lambda one: one.phy)
        self._result.findings += map(_finding_of, folded(in_order))
        return self._result

    def _compare_digests(self) -> None:
        result = self._result
        ours, theirs = self._logs[MASTER].chunks, self._logs[SLAVE].chunks
        for chunk in sorted(ours.keys() | theirs.keys()):
            held = [side[chunk] for side in (ours, theirs) if chunk in side]
            if chunk < result.begin or min(one.first for one in held) >= result.end or self._is_unknown(chunk):
                continue
            result.compared += 1
            result.compared_bytes += max(min(one.size_bytes, result.end - one.first) for one in held)
            if len(held) == 2 and held[0].digest == held[1].digest:
                result.equal.add(chunk)
            else:
                result.differing.append(chunk)

    def _is_unknown(self, chunk: int) -> bool:
        end = min(chunk + self._chunk_bytes, self._result.end)
        return any(log.unknown(chunk, end) for log in self._logs.values())

    def _drill_differing(self) -> None:
        """
        Drill what differs: all of it, unless the histories part for good; then the first and the last chunk tell
        enough.

        Adjacent chunks that only one side has are one range; the first of them is looked into for its names.
        """
        result = self._result
        last_equal = max(result.equal, default=-1)
        tail = [chunk for chunk in result.differing if chunk > last_equal]
        wanted = result.differing
        if len(tail) > 1:
            first, last = self._drill([tail[0], tail[-1]])
            if first.forked_at is not None and last.equal == 0:
                result.diverged_at = first.forked_at
                wanted = [chunk for chunk in wanted if chunk <= tail[0]]
        ranges = list(self._ranges(wanted))
        inside = {chunk for chunks in ranges for chunk in chunks[1:]}
        singles = [chunk for chunk in wanted if chunk not in inside and chunk not in result.drilled]
        self._drill(singles[:MAX_DRILLS])
        if result.diverged_at is None:
            result.diverged_at = self._fork_in(tail)
        self._take_differences(wanted, ranges)
        self._report_skipped(singles[MAX_DRILLS:])
        self._report_fork()

    def _drill(self, chunks: Sequence[int]) -> list[Drilled]:
        tasks = []
        for chunk in chunks:
            master, slave = self._drill_side(MASTER, chunk), self._drill_side(SLAVE, chunk)
            files = [log.file_at(chunk) for log in self._logs.values()]
            full = next(file.start for file in files if file is not None) + self._logs[MASTER].segment_bytes
            end = min(chunk + self._chunk_bytes, self._result.end, full)
            tasks.append(Drill(begin=chunk, end=end, master=master, slave=slave))
        answers = list(self._run_drills(tasks))
        for task, answer in zip(tasks, answers, strict=True):
            self._result.drilled[task.begin] = answer
            if answer.error is not None:
                one = finding("AU-COVER", BOTH, phy_from=task.begin, phy_to=task.end, detail=answer.error)
                self._result.findings.append(one)
        return answers

    def _drill_side(self, side: str, chunk: int) -> DrillSide | None:
        log = self._logs[side]
        file, held = log.file_at(chunk), log.chunks.get(chunk)
        if file is None or chunk >= file.stop:
            return None
        return DrillSide(file=file, first=held.first if held is not None else None)

    def _fork_in(self, tail: Sequence[int]) -> int | None:
        """Return where the histories part, if no record from there to the common end is shared."""
        found = None
        for chunk in reversed(tail):
            answer = self._result.drilled.get(chunk)
            if answer is None or answer.error is not None:
                return found
            if answer.differences:
                found = answer.forked_at
            if answer.equal:
                return found
        return found

    def _ranges(self, chunks: Sequence[int]) -> Iterator[list[int]]:
        """Yield runs of two and more adjacent chunks that one side has whole and the other not at all."""
        group: list[int] = []
        for chunk in chunks:
            side = self._only_side(chunk)
            if group and (
                side is None or side != self._only_side(group[-1]) or self._has_chunk_between(group[-1], chunk)
            ):
                if len(group) > 1:
                    yield group
                group = []
            if side is not None:
                group.append(chunk)
        if len(group) > 1:
            yield group

    def _only_side(self, chunk: int) -> str | None:
        sides = [side for side, log in self._logs.items() if chunk in log.chunks]
        whole = chunk + self._chunk_bytes <= self._result.end
        return sides[0] if len(sides) == 1 and whole else None

    def _has_chunk_between(self, begin: int, end: int) -> bool:
        return any(begin < chunk < end for chunk in self._result.equal)

    def _take_differences(self, wanted: Sequence[int], ranges: Sequence[Sequence[int]]) -> None:
        result = self._result
        heads = {chunks[0]: chunks for chunks in ranges}
        for chunk in wanted:
            answer = result.drilled.get(chunk)
            if answer is None:
                continue
            if chunk in heads and answer.differences:
                result.differences.append(self._range(heads[chunk], answer.differences[0]))
            else:
                result.differences += answer.differences

    def _range(self, chunks: Sequence[int], first: Fault) -> Fault:
        side = self._only_side(chunks[0])
        assert side is not None
        held: list[Chunk] = [self._logs[side].chunks[chunk] for chunk in chunks]
        count = sum(one.records for one in held)
        return attrs.evolve(
            first,
            phy_from=held[0].first,
            phy_to=held[-1].first + held[-1].size_bytes,
            count=count,
            topic=None,
            queue_id=None,
            queue_offset_from=None,
            queue_offset_to=None,
            detail=f"{count} records in {len(chunks)} chunks in a row; {of_the_first(first)}",
        )

    def _report_skipped(self, chunks: Sequence[int]) -> None:
        if not chunks:
            return
        text = f"{len(chunks)} more chunks differ; only {MAX_DRILLS} were compared byte by byte"
        end = chunks[-1] + self._chunk_bytes
        self._result.findings.append(
            finding("RP-DIFF", SLAVE, phy_from=chunks[0], phy_to=end, count=0, blame=UNDECIDED, detail=text)
        )

    def _report_fork(self) -> None:
        """Make one finding of everything from the fork to the common end."""
        result = self._result
        at = result.diverged_at
        if at is None:
            return
        forked = [one for one in result.differences if one.phy >= at]
        result.differences = [one for one in result.differences if one.phy < at]
        first = min(forked, key=lambda one: one.phy)
        text = f"master and slave hold different messages from {at} to their common end {result.end}; "
        result.differences.append(
            attrs.evolve(
                first,
                invariant="RP-DIVERGE",
                phy_to=result.end,
                count=sum(one.count for one in forked),
                detail=text + of_the_first(first),
            )
        )

    def _compare_damage(self) -> None:
        """Compare the bytes that are no record on either side; what only one side lacks shows in its chunks already."""
        for ours in self._logs[MASTER].damage:
            for theirs in self._logs[SLAVE].damage:
                begin, end = max(ours.begin, theirs.begin), min(ours.end, theirs.end, self._result.end)
                for at in range(begin, end, _PIECE_BYTES):
                    size = min(_PIECE_BYTES, end - at)
                    if self._logs[MASTER].read(at, size) != self._logs[SLAVE].read(at, size):
                        text = "both sides have bytes here that are not a record, and they differ"
                        self._result.findings.append(
                            finding("RP-DIFF", BOTH, phy_from=begin, phy_to=end, count=0, blame=BOTH, detail=text)
                        )
                        break


def compare_begins(master: Log, slave: Log) -> list[Finding]:
    """
    Return what one side alone still has, because the other one's log begins later.

    No error: each side deletes its old segments by its own clock, and an empty slave begins with the master's last one.
    """
    if slave.start < master.start:
        first, later = slave, master
        only, why = "slave", "The master's retention deleted them, or its first segments are lost"
    else:
        first, later = master, slave
        only, why = "master", "The slave joined with an empty store, or it deleted them: promoted, it lacks them"
    begin, end = first.start, min(later.start, first.end)
    if begin >= end or not later.store.segments or later.unknown(begin, end):
        return []
    text = f"the {later.side} begins at {later.start}, the {only} at {begin}: messages before are on the {only} only. "
    one = finding("RP-BEGIN", later.side, phy_from=begin, phy_to=end, detail=text + why)
    one.expected, one.actual = str(begin), str(later.start)
    return [one]


def compare_ends(master: Log, slave: Log, run_drills: RunDrills, allowed_lag: int) -> list[Finding]:
    """
    Return what the ends say: lag, a slave that is ahead, half records, and a last record that is damaged, not
    missing.
    """
    found = [*_judge_tail(slave, master, run_drills), *_judge_tail(master, slave, run_drills)]
    if master.end == slave.end:
        return found
    short = min(master, slave, key=lambda log: log.end)
    if any(one.end > short.end for one in short.unread):
        return found
    if max(master.start, slave.start) >= short.end and master.store.segments and slave.store.segments:
        text = f"nothing in common: master {master.start} to {master.end}, slave {slave.start} to {slave.end}"
        found.append(finding("AU-COVER", BOTH, detail=text))
    invariant = "RP-LAG" if short is slave else "RP-AHEAD"
    where = "behind" if short is slave else "ahead of"
    one = finding(
        invariant,
        SLAVE,
        phy_from=short.end,
        phy_to=max(master.end, slave.end),
        expected=str(master.end),
        actual=str(slave.end),
        detail=f"the slave is {abs(master.end - slave.end)} bytes {where} the master",
    )
    if short is slave and master.end - slave.end <= allowed_lag:
        one.severity = Severity.INFO
    found.append(one)
    _downgrade_ahead(found, master, slave)
    return found


def _downgrade_ahead(found: list[Finding], master: Log, slave: Log) -> None:
    """
    Make RP-AHEAD a remark where the slave was only looked at later: after the master's dump was begun, or the master's
    files hold the same bytes by now.

    A master sends what its files hold already, so that a slave that is really ahead is still ahead.
    """
    for one in found:
        if one.invariant != "RP-AHEAD":
            continue
        if (later := _read_later(master, slave)) is not None:
            one.severity = Severity.INFO
            one.detail += later
        elif _has_by_now(master, slave):
            one.severity = Severity.INFO
            one.detail += "; the master was written during the audit and now has the same bytes"


def _read_later(master: Log, slave: Log) -> str | None:
    """
    Return what shows that the slave was only read after the master's dump was begun; None without.

    A slave that is no dump shows it by its next record: the master stored that later, by the same clock.
    """
    ours, theirs = master.store.manifest, slave.store.manifest
    if ours is None or ours.taken_at_start is None:
        return None
    if theirs is not None and theirs.taken_at_start is not None:
        text = "; its dump was started after the master's"
        return text if theirs.taken_at_start >= ours.taken_at_start else None
    size = size_of_own(slave.read(master.end, MAX_HEADER_BYTES), master.end)
    following = None if size is None else record_at(slave.read(master.end, size), 0, master.end)
    if following is None or following.number("storeTimestamp") < ours.taken_at_start:
        return None
    return "; these records were stored after the master's dump was started"


def _has_by_now(master: Log, slave: Log) -> bool:
    if master.store.manifest is not None:
        return False  # a dump does not grow
    now = attrs.evolve(master, store=take_inventory(master.side, master.store.path))
    for segment in range(master.end - master.end % master.segment_bytes, slave.end, master.segment_bytes):
        full = segment + master.segment_bytes
        for at in range(max(segment, master.end), min(full, slave.end), _PIECE_BYTES):
            size = min(_PIECE_BYTES, full - at, slave.end - at)
            held = now.read(at, size)
            if len(held) < size or held != slave.read(at, size):
                return False
    return True


def _judge_tail(log: Log, other: Log, run_drills: RunDrills) -> list[Finding]:
    """
    Say what the bytes behind an inferred end are: half of the next record, that record with damage, or an old rest.

    The other side's next record decides when it has one; without, the bytes have to look like a record themselves.
    """
    if log.dirty_to is None:
        return []
    begin, end = log.end, log.dirty_to
    theirs = other.read(begin, _PIECE_BYTES) if other.end > begin else b""
    chunk = size_of_own(theirs, begin)
    if chunk is not None:
        ours, theirs = log.read(begin, chunk), theirs[:chunk]
        filled = ours.rstrip(b"\0")
        if theirs.startswith(filled):
            return [torn_record(log, begin, begin + len(filled))]
        drilled = _drill_tail(log, other, begin, chunk, run_drills)
        if any(one.invariant == "RP-DIFF" for one in drilled.differences):
            return [_finding_of(one) for one in drilled.differences]
    elif size_of_own(log.read(begin, MAX_HEADER_BYTES), begin) is not None:
        return [torn_record(log, begin, end)]
    text = f"{end - begin} bytes after the end are not a record"
    return [finding("CL-STALE", log.side, phy_from=begin, phy_to=end, count=0, detail=text)]


def _finding_of(one: Fault) -> Finding:
    return of_fault(SLAVE if one.blame is None or one.blame in (UNDECIDED, BOTH) else one.blame, one)


def _drill_tail(log: Log, other: Log, begin: int, size: int, run_drills: RunDrills) -> Drilled:
    """Compare the one record at ``begin`` although one side's log counts as ending there."""
    sides = {}
    for one in (log, other):
        file = one.file_at(begin)
        if file is not None:
            limit = min(begin + size, file.start + other.segment_bytes)
            sides[one.side] = DrillSide(file=attrs.evolve(file, limit=limit), first=begin)
    task = Drill(begin=begin, end=begin + 1, master=sides.get(MASTER), slave=sides.get(SLAVE))
    return run_drills([task])[0]
