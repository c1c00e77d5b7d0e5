"""Queue offsets of one side: given once, without gaps, and the same in the consume queues."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from rmq.store import layout
from rmq.store.layout import CQ_UNIT_BYTES
from rmq_audit.driver.coverage import SideCoverage
from rmq_audit.driver.findings import Finding, Severity, finding
from rmq_audit.driver.inventory import Queue as QueueFolder
from rmq_audit.driver.log import Log
from rmq_audit.driver.routes import is_system_topic
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.queues import QUEUES, UNITS, QueueCheck, QueueState, UnitCheck, UnitFile, UnitState
from rmq_audit.worker.scan import Run

Queue = tuple[str, int]

#: queues that hold units of other topics' records
_LIGHT = "%LMQ%"

#: what makes a broker put missing units into their queues: it reads the whole log as after a kill; Apache's does so
#: only then, ours by itself when it finds fewer units than it had
REMEDY = (
    "stop the broker, move consumequeue/{topic}/{queue_id} and the file checkpoint out of the store, make an empty "
    "file abort in it, start the broker: it makes the queue again from the whole log"
)


@attrs.frozen
class Bounds:
    """Queue offsets [``begin``, ``end``) that a queue holds, or would hold once everything is dispatched."""

    begin: int
    end: int


def by_queue(runs: Iterable[Run]) -> dict[Queue, list[Run]]:
    """Return the runs of every queue in the order of the log."""
    queues: dict[Queue, list[Run]] = {}
    for run in runs:
        queues.setdefault((run.topic, run.queue_id), []).append(run)
    return queues


def check_continuity(log: Log) -> list[Finding]:
    """
    Return where queue offsets are given twice or left out.

    Each run is compared with the highest offset so far, not with the run before it: one run that is out of place is
    then one finding. What lies around a range that could not be read is not judged.
    """
    found: list[Finding] = []
    for queue, runs in by_queue(log.runs).items():
        found += _check_queue(log, queue, list(_merged(runs)))
    return found


def _check_queue(log: Log, queue: Queue, runs: list[Run]) -> Iterator[Finding]:
    highest: int | None = None if log.start > 0 else -1
    behind = log.start
    for index, run in enumerate(runs):
        if highest is None or log.unknown(behind, run.phy_first) or run.first == highest + 1:
            highest = run.last
        else:
            restarts = run.first == 0 and (index + 1 == len(runs) or runs[index + 1].first != highest + 1)
            yield _finding(log, queue, run, highest, behind, restarts)
            highest = run.last if restarts else max(highest, run.last)
        behind = run.phy_last


def current_runs(runs: list[Run]) -> list[Run]:
    """Return the runs since the queue was last reset, if it was: those that its consume queue still holds."""
    begin = max((index for index, run in enumerate(runs) if run.first == 0), default=0)
    return runs[begin:]


def _finding(log: Log, queue: Queue, run: Run, highest: int, behind: int, restarts: bool) -> Finding:
    topic, queue_id = queue
    if run.first > highest:
        invariant, begin, end = "QO-GAP", highest + 1, run.first - 1
        text = f"queue offsets {begin} to {end} are nowhere in the log"
    elif restarts:
        invariant, begin, end = "QO-RESTART", 0, run.last
        text = f"the queue starts again at 0 after {highest}: topic deleted and created again, or consume queue lost"
    else:
        invariant, begin, end = "QO-DUP", run.first, min(run.last, highest)
        text = f"queue offsets {begin} to {end} are given a second time; {highest} was reached before"
    return finding(
        invariant,
        log.side,
        topic=topic,
        queue_id=queue_id,
        queue_offset_from=begin,
        queue_offset_to=end,
        count=end - begin + 1,
        phy_from=behind,
        phy_to=run.phy_first + 1,
        expected=str(highest + 1),
        actual=str(run.first),
        detail=text,
    )


def _merged(runs: Iterable[Run]) -> Iterator[Run]:
    """
    Yield runs with those joined that splits and broken places cut: the findings must not depend on where a split
    ends.
    """
    last: Run | None = None
    for run in runs:
        if last is not None and run.first == last.last + 1:
            last = attrs.evolve(last, last=run.last, phy_last=run.phy_last)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


class QueueFiles:
    """
    The consume queue files of one side, compared with its log.

    ``bounds`` says after :meth:`check` which queue offsets each queue holds, by its files and by the log.
    """

    def __init__(self, log: Log, engine: Engine, coverage: SideCoverage) -> None:
        self._log = log
        self._engine = engine
        self._coverage = coverage
        self.bounds: dict[Queue, Bounds] = {}
        self._files = _unit_files(log.store.queues)
        self._extensions = _unit_files(log.store.extensions)
        self._folders = {topic for topic, _ in self._files}

    def check(self, *, live: bool, configured: Container[str] | None = None) -> list[Finding]:
        """
        Return where units are not what the log dictates; nothing for a store without consume queues.

        Of a store that is being written (``live``) units after the end that was seen are no fault. ``configured`` are
        the topics of its topics.json: of others the queues may have been deleted.
        """
        log = self._log
        runs = {queue: current_runs(found) for queue, found in by_queue(log.runs).items()}
        for queue, found_runs in runs.items():
            self.bounds[queue] = Bounds(min(run.first for run in found_runs), max(run.last for run in found_runs) + 1)
        if not self._files:
            return []
        end_known = not live and not any(one.end > log.end for one in log.unread)
        checks = [
            QueueCheck(
                side=log.side,
                topic=topic,
                queue_id=queue_id,
                files=self._files.get((topic, queue_id), ()),
                runs=runs.get((topic, queue_id), ()),
                log_end=log.end if end_known else 1 << 62,
                log_start=log.start,
                owned_from=_owned_from(log, (topic, queue_id), runs),
                owned_to=_owned_to(log, (topic, queue_id), runs) if end_known else None,
            )
            for topic, queue_id in sorted(self._files.keys() | runs.keys())
            if not self._has_batch_queue(topic)
        ]
        states = self._engine.run(QUEUES, checks)
        unit_states = self._compare_units(checks, states)
        frontier = _frontier(checks, states, unit_states)
        found = [*_odd_sizes(log, self._files), *_odd_sizes(log, self._extensions)]
        for check, state, units in zip(checks, states, unit_states, strict=True):
            self._coverage.queues += 1
            self._coverage.units_checked += state.units
            self._widen(check, state)
            if state.error is not None:
                found.append(_of_queue("AU-COVER", log, check, detail=state.error))
            if state.dangling:
                found.append(_dangling(log, check, state))
            if state.surplus:
                found.append(_surplus(log, check, state))
            if state.broken_at is not None:
                found.append(_broken(log, check, state.broken_at))
            if state.expired_files:
                found.append(_expired(log, check, state))
            for unreadable in (one.error for one in units if one.error is not None):
                found.append(_of_queue("AU-COVER", log, check, detail=unreadable))
            found += _wrong_units(log, check, [one for one in units if one.wrong])
            found += _wrong_tags(log, check, [one for one in units if one.wrong_tags])
            deleted = configured is not None and check.topic not in configured and not is_system_topic(check.topic)
            why = self._why_behind(deleted=deleted and check.topic not in self._folders, live=live)
            # not when a folder or file was not listed, which is reported already: its units may be in it
            if not log.store.is_unlisted(layout.CONSUME_QUEUE_DIR, check.topic, str(check.queue_id)):
                found += _empty_units(log, check, [one for one in units if one.empty], frontier, why)
        return found

    def _why_behind(self, *, deleted: bool, live: bool) -> str | None:
        """Return why a queue may lack units although others hold later ones; None where it may not."""
        if deleted:
            return "the topic was deleted, its messages go with their segments"
        if self._log.store.unfinished:
            return "the store has the file abort: it is in use, or awaits a recovery, which adds them"
        return "the store is being written" if live else None

    def _widen(self, check: QueueCheck, state: QueueState) -> None:
        """
        Take the end from the files too: of a queue whose messages retention has deleted they alone tell it.

        The begin is the log's, since files also hold units of messages that are gone.
        """
        if check.files and state.error is None:
            queue = check.topic, check.queue_id
            known = self.bounds.get(queue, Bounds(state.end, state.end))
            self.bounds[queue] = Bounds(known.begin, max(known.end, state.end))

    def _has_batch_queue(self, topic: str) -> bool:
        """Topics of 5.x with batch queues have their units elsewhere, in another format."""
        return topic in self._log.store.batch_topics

    def _compare_units(self, checks: Sequence[QueueCheck], states: Sequence[QueueState]) -> list[list[UnitState]]:
        """Return for each queue what its runs hold whose digests differ, in their order."""
        log = self._log
        tasks = []
        for check, state in zip(checks, states, strict=True):
            for index in state.unequal:
                run = check.runs[index]
                segment = log.segment_at(run.phy_first)
                assert segment is not None, f"the scan found {run} in no file"
                tasks.append(
                    UnitCheck(
                        path=segment.path,
                        segment=segment.start,
                        file_bytes=min(segment.size_bytes, log.segment_bytes),
                        limit=min(log.end, segment.start + log.segment_bytes),
                        run=run,
                        files=check.files,
                        extension=self._extensions.get((check.topic, check.queue_id), ()),
                    )
                )
        answers = iter(self._engine.run(UNITS, tasks) if tasks else ())
        return [[next(answers) for _ in state.unequal] for state in states]


def _unit_files(queues: Iterable[QueueFolder]) -> dict[Queue, list[UnitFile]]:
    return {
        (queue.topic, queue.queue_id): [
            UnitFile(path=file.path, start=file.start, size_bytes=file.size_bytes) for file in queue.files
        ]
        for queue in queues
    }


def _odd_sizes(log: Log, queues: Mapping[Queue, Sequence[UnitFile]]) -> Iterator[Finding]:
    """Yield files that are not as long as the others of their queue, or of the store where a queue has one file."""
    sizes = Counter(files[0].size_bytes for files in queues.values() if len(files) == 1)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    for (topic, queue_id), files in queues.items():
        steps = [after.start - before.start for before, after in itertools.pairwise(files)]
        size = min(steps, default=usual)
        odd = [file for file in files if file.size_bytes != size]
        if odd:
            yield finding(
                "CQ-SIZE",
                log.side,
                topic=topic,
                queue_id=queue_id,
                count=len(odd),
                expected=str(size),
                actual=str(odd[0].size_bytes),
                detail=f"{odd[0].path} has {odd[0].size_bytes} bytes, others {size}: Apache's broker does not start; "
                f"{REMEDY.format(topic=topic, queue_id=queue_id)}",
            )


def _frontier(
    checks: Sequence[QueueCheck], states: Sequence[QueueState], unit_states: Sequence[Sequence[UnitState]]
) -> int:
    """
    Return the place of the last record that has its unit, -1 without any.

    Units are made in the order of the log, so every record before it has had its unit.
    """
    furthest = -1
    for check, state, units in zip(checks, states, unit_states, strict=True):
        if state.error is None and not check.topic.startswith(_LIGHT):
            unequal = set(state.unequal)
            right = [run.phy_last for at, run in enumerate(check.runs) if at not in unequal]
            right += [one.right_phy for one in units if one.right_phy is not None]
            furthest = max(furthest, *right) if right else furthest
    return furthest


def _of_queue(invariant: str, log: Log, check: QueueCheck, **members: Any) -> Finding:
    return finding(invariant, log.side, topic=check.topic, queue_id=check.queue_id, **members)


def _dangling(log: Log, check: QueueCheck, state: QueueState) -> Finding:
    return _of_queue(
        "CQ-DANGLING",
        log,
        check,
        queue_offset_from=state.dangling_from,
        phy_from=state.dangling_phy,
        count=state.dangling,
        expected=f"below {log.end}",
        actual=str(state.dangling_phy),
        detail=f"{state.dangling} units point after the end of the log: records that consumers could see are gone",
    )


def _owned_from(log: Log, queue: Queue, runs: Mapping[Queue, list[Run]]) -> int | None:
    """Return the queue offset of a queue's first record; None where that is not known."""
    if queue[0].startswith(_LIGHT) or log.unread or queue not in runs:
        return None
    return runs[queue][0].first


def _owned_to(log: Log, queue: Queue, runs: Mapping[Queue, list[Run]]) -> int | None:
    """
    Return the queue offset after the last record of a queue; None where units may rightly lie behind it.

    Units of ``%LMQ%`` queues belong to records of other topics, and parts of the log that nobody could read may own
    some.
    """
    if queue[0].startswith(_LIGHT) or log.unread:
        return None
    return max((run.last for run in runs.get(queue, ())), default=-1) + 1


def _surplus(log: Log, check: QueueCheck, state: QueueState) -> Finding:
    assert state.surplus_phy is not None
    return _of_queue(
        "CQ-MISMATCH",
        log,
        check,
        queue_offset_from=state.surplus_from,
        phy_from=state.surplus_phy,
        phy_to=state.surplus_phy + 1,
        count=state.surplus,
        expected="no unit",
        actual=str(state.surplus_phy),
        detail=f"{state.surplus} units lie before the first record of the queue, or after its last one: "
        "consumers receive messages of other queues there, or nothing",
    )


def _broken(log: Log, check: QueueCheck, at: int) -> Finding:
    return _of_queue(
        "CQ-MISMATCH",
        log,
        check,
        queue_offset_from=at,
        expected="a unit of a deleted message, or filler",
        actual="none",
        detail="a unit before the first record of the queue is missing: at its next start a "
        f"broker takes the queue to end there; {REMEDY.format(topic=check.topic, queue_id=check.queue_id)}",
    )


def _expired(log: Log, check: QueueCheck, state: QueueState) -> Finding:
    return _of_queue(
        "CQ-MIN",
        log,
        check,
        severity=Severity.INFO if log.store.unfinished else None,
        queue_offset_from=0 if not check.files else check.files[0].start // CQ_UNIT_BYTES,
        queue_offset_to=None if state.expired_to is None else state.expired_to - 1,
        count=state.expired_files,
        expected=f"units that point at {log.start} or after it",
        detail=f"{state.expired_files} files of the queue hold only units of messages that retention has deleted",
    )


def _wrong_units(log: Log, check: QueueCheck, states: Sequence[UnitState]) -> Iterator[Finding]:
    if not states:
        return
    first, count = states[0], sum(one.wrong for one in states)
    assert first.wrong_phy is not None
    yield _of_queue(
        "CQ-MISMATCH",
        log,
        check,
        queue_offset_from=first.wrong_from,
        phy_from=first.wrong_phy,
        phy_to=first.wrong_phy + 1,
        count=count,
        expected=first.expected,
        actual=first.actual,
        detail=f"{count} units have another offset or size than their record (offset+size is shown)",
    )


def _wrong_tags(log: Log, check: QueueCheck, states: Sequence[UnitState]) -> Iterator[Finding]:
    if not states:
        return
    first, count = states[0], sum(one.wrong_tags for one in states)
    assert first.wrong_tags_phy is not None
    yield _of_queue(
        "CQ-TAG",
        log,
        check,
        queue_offset_from=first.wrong_tags_from,
        phy_from=first.wrong_tags_phy,
        phy_to=first.wrong_tags_phy + 1,
        count=count,
        expected=str(first.expected_tags),
        actual=str(first.actual_tags),
        field="tagsCode",
        detail=f"{count} units have a tagsCode that does not belong to the tags of their record: "
        "consumers with a tag filter miss these messages or receive unwanted ones",
    )


def _empty_units(
    log: Log, check: QueueCheck, states: Sequence[UnitState], frontier: int, why: str | None
) -> Iterator[Finding]:
    """
    Say what empty units mean: records not dispatched yet, if no queue holds a later one, and else lost units.

    ``why``: they may be empty all the same, because of that.
    """
    if not states:
        return
    first, count = states[0], sum(one.empty for one in states)
    assert first.empty_from is not None and first.empty_phy is not None
    last = max(run.last for run in check.runs)
    at_end = count == last - first.empty_from + 1
    manifest = log.store.manifest
    dispatched = manifest.dispatched_offset if manifest is not None else None
    remedy = REMEDY.format(topic=check.topic, queue_id=check.queue_id)
    severity: Severity | None = Severity.INFO
    if not at_end:
        invariant, severity, text = "CQ-MISMATCH", None, f", although later ones have; {remedy}"
    elif why is not None:
        invariant, text = "CQ-BEHIND", f": {why}"
    elif dispatched is not None and first.empty_phy >= dispatched:
        invariant, text = "CQ-BEHIND", f": the dump says that its queues end at {dispatched}"
    elif first.empty_phy > frontier:
        invariant, severity = "CQ-BEHIND", None
        text = (
            ": all of them come after everything that any queue of the store has; the broker adds them when it starts"
        )
    else:
        invariant, severity = "CQ-LOST", None
        text = (
            f", although queues hold messages up to {frontier}: units are made in the order of the log, so these are "
            f"lost. Consumers never see the messages; Apache's broker does not add them after a clean stop. {remedy}"
        )
    yield _of_queue(
        invariant,
        log,
        check,
        severity=severity,
        queue_offset_from=first.empty_from,
        queue_offset_to=last if at_end else None,
        phy_from=first.empty_phy,
        phy_to=first.empty_phy + 1,
        count=count,
        actual="empty",
        detail=f"{count} records have no unit in their consume queue{text}",
    )
