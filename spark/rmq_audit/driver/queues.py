"""Queue offsets of one side: given once, without gaps, and the same in the consume queues."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from rmq.store import layout
from rmq_audit.driver.coverage import SideCoverage
from rmq_audit.driver.findings import Finding, finding, of_fault
from rmq_audit.driver.further import queues_apart
from rmq_audit.driver.log import Log
from rmq_audit.driver.routes import is_system_topic
from rmq_audit.engine.engines import Engine
from rmq_audit.worker.files import StoreFile
from rmq_audit.worker.kernel import Run
from rmq_audit.worker.queues import QUEUES, REMEDY, UNITS, QueueCheck, QueueState, UnitCheck, UnitState, without_units
from rmq_audit.worker.work import Fault, Severity

Queue = tuple[str, int]


@attrs.frozen
class Bounds:
    """Queue offsets [``begin``, ``end``) that a queue holds, or would hold once everything is dispatched."""

    begin: int
    end: int


@attrs.frozen
class Why:
    """Why a queue may lack units, and how serious that is."""

    text: str
    severity: Severity = Severity.INFO


#: of a queue that its topic still has: another one begins again at 0 behind its last record
CREATED_AGAIN = Why(
    "the topic was deleted and created again, and this queue has got no message since: the old ones go with their "
    "segments, and nothing is wrong; or all folders of the topic were lost. See Queues in docs/audit.md",
    Severity.WARN,
)


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
        self._files = {(one.topic, one.queue_id): one.files for one in log.store.queues}
        self._extensions = {(one.topic, one.queue_id): one.files for one in log.store.extensions}
        self._folders = {topic for topic, _ in self._files}

    def check(self, *, live: bool, configured: Mapping[str, int | None] | None = None) -> list[Finding]:
        """
        Return where units are not what the log dictates; nothing for a store that has its queues in RocksDB.

        Of a store that is being written (``live``) units after the end that was seen are no fault. ``configured``: how
        many queues its topics.json gives each topic, None where that is unknown. Queues beyond may have been deleted
        with their topic.
        """
        log = self._log
        all_runs = by_queue(log.runs)
        runs = {queue: current_runs(found) for queue, found in all_runs.items()}
        for queue, found_runs in runs.items():
            self.bounds[queue] = Bounds(min(run.first for run in found_runs), max(run.last for run in found_runs) + 1)
        if not self._files and log.store.in_rocksdb:
            return []
        end_known = not live and not any(one.end > log.end for one in log.unread)
        checks = [
            QueueCheck(
                side=log.side,
                topic=topic,
                queue_id=queue_id,
                files=self._files.get((topic, queue_id), ()),
                runs=runs.get((topic, queue_id), ()),
                log_start=log.start,
                log_end=log.end,
                end_known=end_known,
                unfinished=log.store.unfinished,
                **_owned(log, topic, queue_id, runs.get((topic, queue_id), ()), end_known=end_known),
            )
            for topic, queue_id in sorted(self._files.keys() | runs.keys())
            # topics of 5.x with batch queues have their units elsewhere, in another format
            if topic not in log.store.batch_topics
        ]
        states = self._engine.run(QUEUES, checks)
        unit_states = self._compare_units(checks, states)
        frontier = _frontier(checks, states, unit_states)
        absent = self._absent(runs.keys(), configured or {})
        restarts = _restarts(log, all_runs, {topic for topic, _ in absent})
        found = [*_odd_sizes(log, self._files), *_odd_sizes(log, self._extensions)]
        for check, state, units in zip(checks, states, unit_states, strict=True):
            self._coverage.queues += 1
            self._coverage.units_checked += state.units
            self._widen(check, state)
            place: dict[str, Any] = {"topic": check.topic, "queue_id": check.queue_id}
            for error in (state.error, *(one.error for one in units)):
                if error is not None:
                    found.append(finding("AU-COVER", log.side, detail=error, **place))
            found += [of_fault(log.side, one, **place) for one in state.faults]
            deleted = configured is not None and check.topic not in configured and not is_system_topic(check.topic)
            why = self._why_behind(deleted=deleted and check.topic not in self._folders, live=live)
            count = absent.get((check.topic, check.queue_id))
            if count is not None:  # then the log has records of it
                created_again = restarts.get(check.topic, -1) > check.runs[-1].phy_last
                if check.queue_id >= count:
                    why = self._why_absent(count, created_again=created_again, live=live)
                elif created_again and why is None:
                    why = CREATED_AGAIN
            # not when a folder or file was not listed, which is reported already: its units may be in it
            unlisted = log.store.is_unlisted(layout.CONSUME_QUEUE_DIR, check.topic, str(check.queue_id))
            for one in _summed(fault for answer in units for fault in answer.faults):
                if one.invariant != "CQ-BEHIND":
                    found.append(of_fault(log.side, one, **place))
                elif not unlisted:
                    found.append(of_fault(log.side, _meaning(log, check, one, frontier, why), **place))
        return found

    def _absent(self, queues: Iterable[Queue], configured: Mapping[str, int | None]) -> dict[Queue, int]:
        """
        Return the queues without a folder, and how many queues topics.json gives their topic.

        A topic that was deleted and created again leaves that behind, with fewer queues or not. Fewer queues alone
        (``updateTopic``) leave the folder where it is: it is deleted only with its topic, or with its last message.
        """
        return {
            (topic, queue_id): count
            for topic, queue_id in queues
            if (topic, queue_id) not in self._files
            and (count := configured.get(topic)) is not None
            and not is_system_topic(topic)
        }

    def _why_behind(self, *, deleted: bool, live: bool) -> Why | None:
        """Return why a queue may lack units although others hold later ones; None where it may not."""
        if deleted:
            return Why("the topic was deleted, its messages go with their segments")
        if self._log.store.unfinished:
            return Why("the store has the file abort: it is in use, or awaits a recovery, which adds them")
        return Why("the store is being written") if live else None

    def _why_absent(self, count: int, *, created_again: bool, live: bool) -> Why:
        """
        Return why a queue of :meth:`_absent` has no units.

        ``created_again``: another queue of the topic begins again at 0 behind the last record of this one, which proves
        that the topic was deleted. Else the folder may have been lost after the number of queues was reduced.
        """
        if created_again:
            return Why(
                f"the topic was deleted and created again with fewer queues, topics.json has {count}; the messages go "
                "with their segments"
            )
        text = (
            f"topics.json gives the topic {count} queues, and this one has no folder: the topic was deleted and "
            "created again with fewer queues"
        )
        if self._log.store.unfinished:
            return Why(f"{text}, or the store is in use, or awaits a recovery, which adds them")
        if live:
            return Why(f"{text}, or the store is being written")
        return Why(
            f"{text}, and nothing is wrong; or the number of queues was reduced, and the folder was lost. Consumers do "
            "not see the messages in either case. See Queues in docs/audit.md before you give the topic more queues",
            Severity.WARN,
        )

    def _widen(self, check: QueueCheck, state: QueueState) -> None:
        """
        Take the end from the files too: of a queue whose messages retention has deleted they alone tell it.

        The begin is the log's, since files also hold units of messages that are gone.
        """
        if check.files and state.error is None:
            queue = check.topic, check.queue_id
            known = self.bounds.get(queue, Bounds(state.end, state.end))
            self.bounds[queue] = Bounds(known.begin, max(known.end, state.end))

    def _compare_units(self, checks: Sequence[QueueCheck], states: Sequence[QueueState]) -> list[list[UnitState]]:
        """
        Return for each queue what its runs hold whose digests differ, in their order.

        The log is not read again for a queue without files: where all are gone, it would be once for each of them.
        """
        log, apart = self._log, queues_apart(self._log.store)
        tasks = []
        for check, state in zip(checks, states, strict=True):
            if not check.files:
                continue
            for index in state.unequal:
                run = check.runs[index]
                file = log.file_at(run.phy_first)
                assert file is not None, f"the scan found {run} in no file"
                extension = self._extensions.get((check.topic, check.queue_id), ())
                tasks.append(UnitCheck(log=file, run=run, files=check.files, extension=extension, apart=apart))
        answers = iter(self._engine.run(UNITS, tasks) if tasks else ())
        return [
            [next(answers) if check.files else without_units(check.runs[index]) for index in state.unequal]
            for check, state in zip(checks, states, strict=True)
        ]


def _odd_sizes(log: Log, queues: Mapping[Queue, Sequence[StoreFile]]) -> Iterator[Finding]:
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


def _restarts(log: Log, runs: Mapping[Queue, list[Run]], topics: Container[str]) -> dict[str, int]:
    """Return for those ``topics`` of which a queue begins again at 0 where in the log the last of them does so."""
    found: dict[str, int] = {}
    for queue, ones in runs.items():
        if queue[0] in topics:
            for one in _check_queue(log, queue, list(_merged(ones))):
                if one.invariant == "QO-RESTART" and one.phy_to is not None:
                    found[queue[0]] = max(found.get(queue[0], -1), one.phy_to - 1)
    return found


def _frontier(
    checks: Sequence[QueueCheck], states: Sequence[QueueState], unit_states: Sequence[Sequence[UnitState]]
) -> int:
    """
    Return the place of the last record that has its unit, -1 without any.

    Units are made in the order of the log, so every record before it has had its unit.
    """
    furthest = -1
    for check, state, units in zip(checks, states, unit_states, strict=True):
        if state.error is None:
            unequal = set(state.unequal)
            right = [run.phy_last for at, run in enumerate(check.runs) if at not in unequal]
            right += [one.right_phy for one in units if one.right_phy is not None]
            furthest = max(furthest, *right) if right else furthest
    return furthest


def _owned(log: Log, topic: str, queue_id: int, runs: Sequence[Run], *, end_known: bool) -> dict[str, int]:
    """
    Return the queue offsets of a queue's first record and after its last one, where units outside of them are wrong.

    Parts of the log that nobody could read may own some, and so may copies of records whose numbers do not tell.
    """
    if log.unread or (topic, queue_id) in log.stale:
        return {}
    begin = {"owned_from": runs[0].first} if runs else {}
    return begin | ({"owned_to": max((run.last for run in runs), default=-1) + 1} if end_known else {})


def _summed(faults: Iterable[Fault]) -> Iterator[Fault]:
    """Yield the faults of a queue's runs, those of a kind as one: the first of them, which counts all."""
    kinds: dict[str, list[Fault]] = {}
    for one in faults:
        kinds.setdefault(one.invariant, []).append(one)
    for ones in kinds.values():
        count = sum(one.count for one in ones)
        yield attrs.evolve(ones[0], count=count, detail=f"{count} {ones[0].detail}")


def _meaning(log: Log, check: QueueCheck, empty: Fault, frontier: int, why: Why | None) -> Fault:
    """
    Return what empty units mean: records not dispatched yet, if no queue holds a later one, and else lost units.

    ``why``: they may be empty all the same, because of that.
    """
    assert empty.queue_offset_from is not None
    last = max(run.last for run in check.runs)
    at_end = empty.count == last - empty.queue_offset_from + 1
    dispatched = None if log.store.manifest is None else log.store.manifest.dispatched_offset
    remedy = REMEDY.format(topic=check.topic, queue_id=check.queue_id)
    invariant = "CQ-BEHIND"
    severity: Severity | None = None
    if not at_end:
        invariant, text = "CQ-MISMATCH", f", although later ones have; {remedy}"
    elif why is not None:
        severity, text = why.severity, f": {why.text}"
    elif dispatched is not None and empty.phy >= dispatched:
        severity, text = Severity.INFO, f": the dump says that its queues end at {dispatched}"
    elif empty.phy > frontier:
        text = (
            ": all of them come after everything that any queue of the store has; the broker adds them when it starts"
        )
    else:
        invariant = "CQ-LOST"
        text = (
            f", although queues hold messages up to {frontier}: units are made in the order of the log, so these are "
            f"lost. Consumers never see the messages; Apache's broker does not add them after a clean stop: {remedy}"
        )
    last_one = last if at_end else None
    detail = empty.detail + text
    return attrs.evolve(empty, invariant=invariant, severity=severity, queue_offset_to=last_one, detail=detail)
