"""
Consume queue files against the log: cheap by digests of runs, one by one where a run differs. This is what a worker
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_EXT_BASE, CQ_FILLER, CQ_UNIT_BYTES
from rmq.wire.record import SCHEDULE_TOPIC
from rmq_audit.worker import further, kernel, properties
from rmq_audit.worker.files import LogFile, StoreFile, Window, read_at
from rmq_audit.worker.frames import Asked, Frames
from rmq_audit.worker.kernel import Bools, Ints, Run
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.work import Fault, Severity, Work

UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
#: a unit of the extension, without its filter bitmap
EXTENDED = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("stored", ">i8"), ("bitmap_bytes", ">i2")])
Units = npt.NDArray[np.void]

_EMPTY, _FILLER = np.zeros((), dtype=UNIT), np.frombuffer(CQ_FILLER, dtype=UNIT)[0]

#: what makes a broker put missing units into their queues: it reads the whole log as after a kill; Apache's does so
#: only then, ours by itself when it finds fewer units than it had
REMEDY = (
    "stop the broker, move consumequeue/{topic}/{queue_id} and the file checkpoint out of the store, make an empty "
    "file abort in it, start the broker: it makes the queue again from the whole log"
)

NO_UNIT = "records have no unit in their consume queue"

#: no table of delays makes a message wait longer
MAX_DELAY_MS = 10 * 365 * 86_400_000


@attrs.frozen(kw_only=True)
class QueueCheck:
    """
    Compare one queue's files with the runs that the scan of the log found, and with the log's ends.

    ``owned_from`` and ``owned_to`` are the queue offsets of the first record of the queue, and after the last one:
    units before and after them that point into the log belong to no record. None where that is not known.
    ``end_known``: no unit may point after the end of the log. ``unfinished``: the broker did not delete old files yet.
    """

    side: str
    topic: str
    queue_id: int
    files: Sequence[StoreFile]
    runs: Sequence[Run]
    log_start: int
    log_end: int
    end_known: bool
    unfinished: bool
    owned_from: int | None = None
    owned_to: int | None = None


@attrs.define(kw_only=True)
class QueueState:
    """
    What a queue's files hold: how many units of its runs, the queue offset after the last unit (as RocketMQ has it, the
    first one without a size), the indices of runs whose units are not what the log dictates, and other faults.
    """

    error: str | None = None
    units: int = 0
    end: int = 0
    unequal: Sequence[int] = ()
    faults: Sequence[Fault] = ()


@attrs.frozen(kw_only=True)
class UnitCheck:
    """
    Compare the units of one run one by one with the records of that stretch of log.

    ``extension`` are the files that hold the tagsCodes of units which name an address instead, ``apart`` light queues
    whose ids are those of their records' queues.
    """

    log: LogFile
    run: Run
    files: Sequence[StoreFile]
    extension: Sequence[StoreFile]
    apart: Sequence[str] = ()


@attrs.frozen(kw_only=True)
class UnitState:
    """
    The faults of the units of a run: those that are empty (CQ-BEHIND), those that are wrong, and those that are right
    but for their tagsCode, each with the first of them. ``right_phy`` is the last record that has its unit.
    """

    error: str | None = None
    right_phy: int | None = None
    faults: Sequence[Fault] = ()


def check_queue(task: QueueCheck) -> QueueState:
    """Compare every run with the units that should hold it; a file that cannot be read is reported in ``error``."""
    state, unequal = QueueState(), []
    try:
        for index, run in enumerate(task.runs):
            held = read_units(task.files, run.first, run.last)
            state.units += len(held)
            if run.digest is None or len(held) <= run.last - run.first or not _is_as_digested(held, run):
                unequal.append(index)
        faults = list(_check_used(task, state))
        owned = task.owned_from
        if owned is not None and state.end < owned and np.any(read_units(task.files, owned, owned) != _EMPTY):
            text = (
                "a unit before the first record of the queue is missing: at its next start a broker takes the queue "
                f"to end there; {REMEDY.format(topic=task.topic, queue_id=task.queue_id)}"
            )
            faults.append(
                Fault(
                    invariant="CQ-MISMATCH",
                    queue_offset_from=state.end,
                    expected="a unit of a deleted message, or filler",
                    actual="none",
                    detail=text,
                )
            )
    except ReadError as error:
        return QueueState(error=str(error))
    state.unequal, state.faults = unequal, faults
    return state


def check_units(task: UnitCheck) -> UnitState:
    """Read the run's stretch of log again and compare unit by unit."""
    run = task.run
    try:
        window = Window(task.log, run.phy_first, run.phy_last + 1)
        found, _ = Frames(window).extract_from(run.phy_first, run.phy_last + 1, Asked(further=run.further))
        columns = found.columns
        if run.further:
            units_of_all = further.spread(window.data, columns, found.further, task.apart)
            rows = units_of_all.source[further.rows_of(window.data, units_of_all, run)]
        else:
            rows = np.flatnonzero(found.queues == found.queues[0])
        rows = rows[kernel.owns_unit(columns)[rows]][: run.last - run.first + 1]
        held = read_units(task.files, run.first, run.last)
        tags, stored = properties.tags_codes(window.data, columns)[rows], columns.store_timestamp[rows]
        phy, size = columns.pos[rows] + window.base, columns.size[rows]
        actual = np.zeros(len(rows), dtype=UNIT)
        actual[: len(held)] = held
        codes, nowhere = _resolved(actual["tags_code"].astype(np.int64), stored, task.extension)
    except ReadError as error:
        return UnitState(error=str(error))
    empty = actual == _EMPTY
    wrong = ~empty & ((actual["phy"] != phy) | (actual["size"] != size))
    wrong_tags = codes != tags
    if run.topic == SCHEDULE_TOPIC or run.copied:
        delayed = properties.delayed(window.data, columns)[rows]
        wrong_tags &= ~(delayed & _is_delay(codes - stored))
    wrong_tags = (wrong_tags | nowhere) & ~empty & ~wrong
    right = np.flatnonzero(~empty & ~wrong)

    def fault(invariant: str, rows: Bools, text: str, shown: Callable[[int], Mapping[str, Any]]) -> Iterator[Fault]:
        """Yield a fault that counts units and shows the first one, if there are any."""
        if rows.any():
            at = int(np.argmax(rows))
            yield Fault(
                invariant=invariant,
                queue_offset_from=run.first + at,
                phy_from=int(phy[at]),
                phy_to=int(phy[at]) + 1,
                count=int(rows.sum()),
                detail=text,
                **shown(at),
            )

    def units(at: int) -> dict[str, str]:
        return {"expected": f"{phy[at]}+{size[at]}", "actual": f"{actual['phy'][at]}+{actual['size'][at]}"}

    def tags_of(at: int) -> dict[str, str]:
        held = _code_text(int(actual["tags_code"][at]), codes[at])
        return {"field": "tagsCode", "expected": str(tags[at]), "actual": held}

    other = "units have another offset or size than their record (offset+size is shown)"
    strange = (
        "units have a tagsCode that does not belong to the tags of their record: "
        "consumers with a tag filter miss these messages or receive unwanted ones"
    )
    return UnitState(
        right_phy=int(phy[right[-1]]) if len(right) else None,
        faults=[
            *fault("CQ-BEHIND", empty, NO_UNIT, lambda at: {"actual": "empty"}),
            *fault("CQ-MISMATCH", wrong, other, units),
            *fault("CQ-TAG", wrong_tags, strange, tags_of),
        ],
    )


def without_units(run: Run) -> UnitState:
    """Return what :func:`check_units` does for a run of a queue that has no files."""
    fault = Fault(
        invariant="CQ-BEHIND",
        queue_offset_from=run.first,
        phy_from=run.phy_first,
        phy_to=run.phy_first + 1,
        count=run.last - run.first + 1,
        detail=NO_UNIT,
        actual="empty",
    )
    return UnitState(faults=[fault])


def _resolved(codes: Ints, stored: Ints, extension: Sequence[StoreFile]) -> tuple[Ints, Bools]:
    """
    Return the tagsCodes with those that are addresses replaced by what the extension holds, and which addresses lead
    to nothing there, or to another record's unit by its store time.
    """
    nowhere = np.zeros(len(codes), dtype=np.bool_)
    rows = np.flatnonzero(codes <= CQ_EXT_ADDRESS_MAX)
    if len(rows) == 0:
        return codes, nowhere
    places = codes[rows] - CQ_EXT_BASE
    nowhere[rows] = True
    for file in extension:
        inside = (places >= file.start) & (places + EXTENDED.itemsize <= file.start + file.size_bytes)
        if not inside.any():
            continue
        at = places[inside] - file.start
        begin = int(at.min())
        raw = read_at(file.path, begin, int(at.max()) + EXTENDED.itemsize - begin)
        # a file that has become shorter meanwhile holds none of them
        raw = raw.ljust(int(at.max()) + EXTENDED.itemsize - begin, b"\0")
        found = kernel.items(raw, at - begin, EXTENDED.itemsize).view(EXTENDED)
        here = rows[inside]
        codes[here] = found["tags_code"]
        sound = (found["bitmap_bytes"] >= 0) & (found["size"] == EXTENDED.itemsize + found["bitmap_bytes"])
        nowhere[here] = ~sound | (found["stored"] != stored[here])
    return codes, nowhere


def _is_delay(waits: Ints) -> Bools:
    """
    Return which of the times between storing and delivery the broker's own messageDelayLevel may have given: whole
    seconds, and not one between two others that agree, since a table is changed only now and then.
    """
    alone = np.zeros(len(waits), dtype=np.bool_)
    alone[1:-1] = (waits[:-2] == waits[2:]) & (waits[1:-1] != waits[:-2])
    fit: Bools = ~alone & (waits >= 0) & (waits <= MAX_DELAY_MS) & (waits % 1000 == 0)
    return fit


def _code_text(held: int, resolved: int) -> str:
    return str(held) if held == resolved else f"{resolved} in the extension at {held - CQ_EXT_BASE}"


def read_units(files: Sequence[StoreFile], first: int, last: int) -> Units:
    """
    Return the units ``first`` to ``last`` of a queue, fewer if its files end before.

    Where a file is missing the units are empty; one that is too long does not hide the next.
    """
    begin, end = first * CQ_UNIT_BYTES, (last + 1) * CQ_UNIT_BYTES
    raw = bytearray()
    for index, file in enumerate(files):
        following = files[index + 1].start if index + 1 < len(files) else end
        low, high = max(begin, file.start), min(end, file.start + file.size_bytes, following)
        if low < high:
            raw += bytes(low - begin - len(raw))
            raw += read_at(file.path, low - file.start, high - low)
    return np.frombuffer(bytes(raw[: len(raw) - len(raw) % CQ_UNIT_BYTES]), dtype=UNIT)


def _is_as_digested(units: Units, run: Run) -> bool:
    """Whether the units, packed as the scan packs them, have the digests of the run."""
    heads = np.empty(len(units), dtype=kernel.UNIT_HEAD)
    heads["phy"], heads["size"] = units["phy"], units["size"]
    if kernel.unit_digest(heads.tobytes()) != run.digest:
        return False
    tags = units["tags_code"].astype(kernel.TAGS_CODE).tobytes()
    return run.tags_digest is None or kernel.unit_digest(tags) == run.tags_digest


def _check_used(task: QueueCheck, state: QueueState) -> Iterator[Fault]:
    """Fill where the units end, and yield what is wrong with those that a broker sees."""
    log_end = task.log_end if task.end_known else 1 << 62
    dangling, surplus = _Units(), _Units()
    expired_files, expired_to = 0, 0
    state.end = task.files[0].start // CQ_UNIT_BYTES if task.files else 0
    for number, file in enumerate(task.files):
        units = np.frombuffer(read_at(file.path, 0, file.size_bytes - file.size_bytes % CQ_UNIT_BYTES), dtype=UNIT)
        empty = np.flatnonzero((units["size"] <= 0) | (units["phy"] < 0))
        used = units[: empty[0]] if len(empty) else units
        first = file.start // CQ_UNIT_BYTES
        state.end = first + len(used)
        dangling.take((used["phy"] >= log_end) & (used != _FILLER), used, first)
        surplus.take(_surplus(task, log_end, used, first) & (used != _FILLER), used, first)
        # the broker never deletes the last file of a queue
        only_old = len(used) > 0 and bool((used["phy"] < task.log_start).all())
        if only_old and number == expired_files and number + 1 < len(task.files):
            expired_files, expired_to = number + 1, first + len(used)
        if len(empty):
            break
    if dangling.count:
        text = f"{dangling.count} units point after the end of the log: records that consumers could see are gone"
        yield dangling.fault("CQ-DANGLING", expected=f"below {task.log_end}", detail=text)
    if surplus.count:
        text = (
            f"{surplus.count} units lie before the first record of the queue, or after its last one: "
            "consumers receive messages of other queues there, or nothing"
        )
        yield surplus.fault("CQ-MISMATCH", phy_to=surplus.phy + 1, expected="no unit", detail=text)
    if expired_files:
        yield Fault(
            invariant="CQ-MIN",
            severity=Severity.INFO if task.unfinished else None,
            queue_offset_from=task.files[0].start // CQ_UNIT_BYTES,
            queue_offset_to=expired_to - 1,
            count=expired_files,
            expected=f"units that point at {task.log_start} or after it",
            detail=f"{expired_files} files of the queue hold only units of messages that retention has deleted",
        )


class _Units:
    """Units that are wrong in one way: how many, and queue offset and place of the first one."""

    count, offset, phy = 0, 0, 0

    def take(self, wrong: Bools, used: Units, first: int) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows) and not self.count:
            self.offset, self.phy = first + int(rows[0]), int(used["phy"][rows[0]])
        self.count += len(rows)

    def fault(self, invariant: str, **members: Any) -> Fault:
        members |= {"queue_offset_from": self.offset, "phy_from": self.phy, "actual": str(self.phy)}
        return Fault(invariant=invariant, count=self.count, **members)


def _surplus(task: QueueCheck, log_end: int, used: Units, first: int) -> Bools:
    """
    Return which units lie outside of ``owned_from`` and ``owned_to``; ``first`` is the queue offset of ``used[0]``.

    Before them only units of messages that retention has deleted are right, filler, and copies of the first one; after
    them none, unless the queue has no message that is left.
    """
    number = first + np.arange(len(used))
    inside = (used["phy"] >= task.log_start) & (used["phy"] < log_end)
    surplus = np.zeros(len(used), dtype=np.bool_)
    if task.owned_from is not None:
        surplus |= inside & (number < task.owned_from) & (used["phy"] != task.runs[0].phy_first)
    if task.owned_to is not None:
        stale = inside | ((used["phy"] < task.log_start) & bool(task.runs))
        surplus |= stale & (number >= task.owned_to)
    return surplus


QUEUES = Work("queues", check_queue, lambda task: sum(file.size_bytes for file in task.files), remembered=QueueState)
UNITS = Work("units", check_units, lambda task: task.run.phy_last - task.run.phy_first, remembered=UnitState)
