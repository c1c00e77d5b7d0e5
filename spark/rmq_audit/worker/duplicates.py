"""
Messages found by their name (UNIQ_KEY) wherever they lie, by a hash of it first. Workers run :func:`find_names`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from rmq_audit.worker import kernel, properties
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.kernel import Ints
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.records import record_at
from rmq_audit.worker.work import Work

#: hits that one task tells of
MAX_HITS = 10_000


@attrs.frozen(kw_only=True)
class NameSearch:
    """
    Look for messages by name among the records from ``start`` on, those that start before ``end``.

    ``names`` are the sorted 64-bit hashes of the names, ``places`` sorted physical offsets of records not to tell of;
    both as native int64.
    """

    file: LogFile
    start: int
    end: int
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
    """What a search by name has met; ``left_out`` counts hits beyond the limit."""

    error: str | None = None
    hits: Sequence[NameHit] = ()
    left_out: int = 0


def name_hashes(names: Iterable[str]) -> Ints:
    """Return the hashes of these names, in their order."""
    raw = [name.encode("utf-8", "backslashreplace") for name in names]
    data = bytes(8) + b"".join(raw)
    length = np.array([len(name) for name in raw], dtype=np.int64)
    return kernel.text_hashes(data, 8 + np.cumsum(length) - length, length)


def find_names(task: NameSearch) -> NamesFound:
    """Return the records that have one of the names; a file that cannot be read is reported in ``error``."""
    names, places = np.frombuffer(task.names, dtype=np.int64), np.frombuffer(task.places, dtype=np.int64)
    hits: list[NameHit] = []
    left_out = 0
    try:
        window = Window(task.file, task.start, min(task.end, task.file.limit))
        frames, at = Frames(window), task.start
        while at < task.end:
            columns, behind = frames.stretch(at, task.end)
            values = properties.values_of(window.data, columns, b"UNIQ_KEY")
            if len(values):
                phy = columns.pos[values.rows] + window.base
                hashes = kernel.text_hashes(window.data, values.pos, values.length)
                wanted = _is_in(hashes, names) & ~_is_in(phy, places)
                for row in np.flatnonzero(wanted).tolist():
                    if len(hits) >= MAX_HITS:
                        left_out += 1
                        continue
                    record = record_at(window.data, int(columns.pos[values.rows[row]]), int(phy[row]))
                    assert record is not None, f"the kernel took {phy[row]} for a record"
                    hits.append(NameHit(message_id=record.message_id, topic=record.topic, phy=record.phy))
            if behind >= task.end or frames.is_blank(behind):
                break
            found = frames.resync(behind, task.end)
            if found is None:
                break
            at = found
    except ReadError as error:
        return NamesFound(error=str(error))
    return NamesFound(hits=hits, left_out=left_out)


def _is_in(values: Ints, table: Ints) -> kernel.Bools:
    """Return which values stand in a sorted table."""
    if len(table) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(table, values), len(table) - 1)
    found: kernel.Bools = table[at] == values
    return found


NAMES = Work("names", find_names, lambda task: task.end - task.start)
