"""
Consume queue files against the log: cheap by digests of runs, one by one where a run differs. This is what a worker
runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from rmq.store.layout import CQ_EXT_ADDRESS_MAX, CQ_EXT_BASE, CQ_FILLER, CQ_UNIT_BYTES
from rmq.wire.record import SCHEDULE_TOPIC
from rmq_audit.worker import kernel, properties
from rmq_audit.worker.files import ReadError, Window, read_at
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.kernel import Bools, Ints
from rmq_audit.worker.scan import Run
from rmq_audit.worker.work import Work

UNIT = np.dtype([("phy", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
#: a unit of the extension, without its filter bitmap
EXTENDED = np.dtype([("size", ">i2"), ("tags_code", ">i8"), ("stored", ">i8"), ("bitmap_bytes", ">i2")])
Units = npt.NDArray[np.void]

_EMPTY, _FILLER = np.zeros((), dtype=UNIT), np.frombuffer(CQ_FILLER, dtype=UNIT)[0]

#: no table of delays makes a message wait longer
MAX_DELAY_MS = 10 * 365 * 86_400_000


@attrs.frozen(kw_only=True)
class UnitFile:
    """One consume queue file; ``start`` is the byte offset in its queue that names it."""

    path: str
    start: int
    size_bytes: int


@attrs.frozen(kw_only=True)
class QueueCheck:
    """
    Compare one queue's files with the runs that the scan of the log found, and with the log's ends.

    ``owned_from`` and ``owned_to`` are the queue offsets of the first record of the queue, and after the last one:
    units before and after them that point into the log belong to no record. None where that is not known.
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


@attrs.define(kw_only=True)
class QueueState:
    """
    What a queue's files hold; their units end, as RocketMQ has it, at the first one without a size. ``unequal`` are the
    indices of runs whose units are not what the log dictates.

    ``dangling_from`` is the first unit that points after the end of the log, with that place in ``dangling_phy``;
    ``end`` is the queue offset after the last unit. ``surplus`` units before the queue's first record, or behind
    its last one, belong to no record, the first of them points at ``surplus_phy``. All units of the first
    ``expired_files`` files, up to before the queue offset ``expired_to``, point before the begin of the log.
    ``broken_at`` is the queue offset before the first record at which a broker takes the queue to end.
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


def check_queue(task: QueueCheck) -> QueueState:
    """Compare every run with the units that should hold it; a file that cannot be read is reported in ``error``."""
    state = QueueState()
    unequal = []
    try:
        for index, run in enumerate(task.runs):
            held = read_units(task.files, run.first, run.last)
            state.units += len(held)
            if run.digest is None or len(held) <= run.last - run.first or not _is_as_digested(held, run):
                unequal.append(index)
        _read_used(task, state)
        owned = task.owned_from
        if owned is not None and state.end < owned and np.any(read_units(task.files, owned, owned) != _EMPTY):
            state.broken_at = state.end
    except ReadError as error:
        return QueueState(error=str(error))
    state.unequal = unequal
    return state


def check_units(task: UnitCheck) -> UnitState:
    """Read the run's stretch of log again and compare unit by unit."""
    run = task.run
    try:
        window = Window(task.path, task.segment, task.file_bytes, run.phy_first, run.phy_last + 1)
        columns, _ = Frames(window, task.limit).stretch(run.phy_first, run.phy_last + 1)
        keys = kernel.queue_keys(window.data, columns)
        rows = np.flatnonzero((keys == keys[0]) & kernel.owns_unit(columns))
        rows = rows[: run.last - run.first + 1]
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
    if run.topic == SCHEDULE_TOPIC:
        delayed = properties.delayed(window.data, columns)[rows]
        wrong_tags &= ~(delayed & _is_delay(codes - stored))
    wrong_tags = (wrong_tags | nowhere) & ~empty & ~wrong
    first_empty, first_wrong, first_tags = _first(empty), _first(wrong), _first(wrong_tags)
    right = np.flatnonzero(~empty & ~wrong)
    return UnitState(
        right_phy=int(phy[right[-1]]) if len(right) else None,
        empty=int(empty.sum()),
        empty_from=None if first_empty is None else run.first + first_empty,
        empty_phy=None if first_empty is None else int(phy[first_empty]),
        wrong=int(wrong.sum()),
        wrong_from=None if first_wrong is None else run.first + first_wrong,
        wrong_phy=None if first_wrong is None else int(phy[first_wrong]),
        expected=None if first_wrong is None else f"{phy[first_wrong]}+{size[first_wrong]}",
        actual=None if first_wrong is None else f"{actual['phy'][first_wrong]}+{actual['size'][first_wrong]}",
        wrong_tags=int(wrong_tags.sum()),
        wrong_tags_from=None if first_tags is None else run.first + first_tags,
        wrong_tags_phy=None if first_tags is None else int(phy[first_tags]),
        expected_tags=None if first_tags is None else str(tags[first_tags]),
        actual_tags=None if first_tags is None else _code_text(int(actual["tags_code"][first_tags]), codes[first_tags]),
    )


def _resolved(codes: Ints, stored: Ints, extension: Sequence[UnitFile]) -> tuple[Ints, Bools]:
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


def read_units(files: Sequence[UnitFile], first: int, last: int) -> Units:
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
    if kernel.unit_digest(_heads(units)) != run.digest:
        return False
    return run.tags_digest is None or kernel.unit_digest(_tags(units)) == run.tags_digest


def _heads(units: Units) -> bytes:
    """Return (phyOffset, size) of the units, packed as the scan packs them."""
    heads = np.empty(len(units), dtype=kernel.UNIT_HEAD)
    heads["phy"], heads["size"] = units["phy"], units["size"]
    return heads.tobytes()


def _tags(units: Units) -> bytes:
    """Return the tagsCodes of the units, packed as the scan packs them."""
    return units["tags_code"].astype(kernel.TAGS_CODE).tobytes()


def _read_used(task: QueueCheck, state: QueueState) -> None:
    """Fill where the units end, and what is wrong with those that a broker sees."""
    state.end = task.files[0].start // CQ_UNIT_BYTES if task.files else 0
    for number, file in enumerate(task.files):
        units = np.frombuffer(read_at(file.path, 0, file.size_bytes - file.size_bytes % CQ_UNIT_BYTES), dtype=UNIT)
        empty = np.flatnonzero((units["size"] <= 0) | (units["phy"] < 0))
        used = units[: empty[0]] if len(empty) else units
        beyond = np.flatnonzero((used["phy"] >= task.log_end) & (used != _FILLER))
        first = file.start // CQ_UNIT_BYTES
        state.end = first + len(used)
        state.dangling += len(beyond)
        if len(beyond) and state.dangling_from is None:
            state.dangling_from, state.dangling_phy = first + int(beyond[0]), int(used["phy"][beyond[0]])
        _take_surplus(task, state, used, first)
        # the broker never deletes the last file of a queue
        only_old = len(used) > 0 and bool((used["phy"] < task.log_start).all())
        if only_old and number == state.expired_files and number + 1 < len(task.files):
            state.expired_files, state.expired_to = number + 1, first + len(used)
        if len(empty):
            break


def _take_surplus(task: QueueCheck, state: QueueState, used: Units, first: int) -> None:
    """
    Count units outside of ``owned_from`` and ``owned_to``; ``first`` is the queue offset of ``used[0]``.

    Before them only units of messages that retention has deleted are right, filler, and copies of the first one; after
    them none, unless the queue has no message that is left.
    """
    number = first + np.arange(len(used))
    inside = (used["phy"] >= task.log_start) & (used["phy"] < task.log_end)
    surplus = np.zeros(len(used), dtype=np.bool_)
    if task.owned_from is not None:
        surplus |= inside & (number < task.owned_from) & (used["phy"] != task.runs[0].phy_first)
    if task.owned_to is not None:
        stale = inside | ((used["phy"] < task.log_start) & bool(task.runs))
        surplus |= stale & (number >= task.owned_to)
    found = np.flatnonzero(surplus & (used != _FILLER))
    if len(found) and state.surplus_from is None:
        state.surplus_from, state.surplus_phy = first + int(found[0]), int(used["phy"][found[0]])
    state.surplus += len(found)


def _first(flags: npt.NDArray[np.bool_]) -> int | None:
    return int(np.argmax(flags)) if flags.any() else None


QUEUES = Work("queues", check_queue, lambda task: sum(file.size_bytes for file in task.files), remembered=QueueState)
UNITS = Work("units", check_units, lambda task: task.run.phy_last - task.run.phy_first, remembered=UnitState)
