"""
The records of a window: where they begin, where they break, and their fields, queues, tags and CRCs as columns.

With the compiled kernel one pass over the bytes extracts all columns while each record is in the processor's cache; the
numpy kernel takes one pass for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from rmq.wire.record import BLANK_BYTES, PROPERTY_MULTI_QUEUE_OFFSET
from rmq_audit.worker import kernel, properties
from rmq_audit.worker.files import Window
from rmq_audit.worker.kernel import Columns, Ints
from rmq_audit.worker.records import (
    MAGIC_BLANK,
    MAGIC_PREFIX,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    SIZE_MAGIC,
    Record,
    plausible_size,
    record_at,
    stated_offset,
)

_NUMBERS = PROPERTY_MULTI_QUEUE_OFFSET.encode()

#: how far behind the bytes at hand a damaged record's totalSize is believed
MAX_JUMP_BYTES = 8 * 1024 * 1024


class Frames:
    """
    Record boundaries in one window: the walk, the check of frames, and how to go on where they break.

    No record reaches beyond the limit of the window's file.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._limit = window.file.limit

    def stretch(self, start: int, stop: int) -> tuple[kernel.Columns, int]:
        """
        Return the sound records that follow each other from ``start``, those that start before ``stop``, and their
        end.
        """
        found, end = self.extract_from(start, stop, Asked())
        return found.columns, end

    def extract_from(self, start: int, stop: int, asked: Asked) -> tuple[Extract, int]:
        """Return the records of :meth:`stretch` with all that is asked of them, and their end."""
        window = self._window
        pieces: list[Extract] = []
        at = start
        while True:
            window.near(at)
            base, held = window.base, window.end
            found = extract(window.data, at - base, stop - base, self._limit - base, asked)
            pieces.append(found)
            if len(found.columns):
                at = base + int(found.columns.pos[-1] + found.columns.size[-1])
            # what stopped the kernel may be a record that the window did not hold yet
            if at >= stop or not self._holds(at) or window.end == held:
                return merge_extracts(window.data, pieces), at

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
        Return where records go on behind the broken place, at or after ``broken`` + 1, or None if not before ``stop``.

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


@attrs.frozen(kw_only=True)
class Asked:
    """
    What to find out beside the fields: whether bodies and properties match their CRCs; tagsCodes; numbers in further
    queues.
    """

    crc: bool = False
    tags: bool = False
    further: bool = False


@attrs.define(kw_only=True)
class Extract:
    """
    Records that follow each other; ``queues`` are the numbers of their queues, small ones from 0 on.

    ``tags`` are their tagsCodes, ``wrong_bodies`` and ``wrong_properties`` the indices of those whose body, or whose
    ``__CRC32#`` property, does not hold, ``further`` of those that have numbers in further queues; None and empty where
    nobody asked.
    """

    columns: Columns
    queues: Ints
    tags: Ints | None
    wrong_bodies: Ints
    wrong_properties: Ints
    further: Ints


def extract(data: bytes, at: int, stop: int, end: int, asked: Asked) -> Extract:
    """
    Return the sound records that follow each other from ``at``, those that start before ``stop`` and lie before
    ``end``, with all that is asked of them.
    """
    if kernel.compiled is not None:
        limits = MIN_RECORD_BYTES, MAX_RECORD_BYTES
        found = kernel.compiled.extract(data, at, stop, end, *limits, asked.crc, asked.tags, asked.further)
        table, queues, tags, wrong_bodies, wrong_properties, further, odd = found
        for row, place, length in odd:
            tags[row], _ = properties.text_hash(data, place, length)
        columns = Columns(*table)
        if tags is not None:
            properties.set_deliver_times(data, columns, tags)
        return Extract(
            columns=columns,
            queues=queues,
            tags=tags,
            wrong_bodies=wrong_bodies,
            wrong_properties=wrong_properties,
            further=further,
        )
    columns = kernel.gather(data, kernel.walk(data, at, stop, end))
    nothing = np.zeros(0, dtype=np.int64)
    return Extract(
        columns=columns,
        queues=kernel.queue_keys(data, columns),
        tags=properties.tags_codes(data, columns) if asked.tags else None,
        wrong_bodies=kernel.failed_crcs(data, columns) if asked.crc else nothing,
        wrong_properties=properties.failed_property_crcs(data, columns) if asked.crc else nothing,
        further=properties.rows_with(data, columns, _NUMBERS) if asked.further else nothing,
    )


def merge_extracts(data: bytes, pieces: Sequence[Extract]) -> Extract:
    """Return the extracts of consecutive records as one; ``data`` begins with the buffers of all pieces."""
    if len(pieces) == 1:
        return pieces[0]
    columns = kernel.concatenate([one.columns for one in pieces])
    before = np.cumsum([0, *(len(one.columns) for one in pieces)])[: len(pieces)]
    return Extract(
        columns=columns,
        queues=kernel.queue_keys(data, columns),
        tags=None if pieces[0].tags is None else np.concatenate([one.tags for one in pieces if one.tags is not None]),
        wrong_bodies=np.concatenate([one.wrong_bodies + b for one, b in zip(pieces, before, strict=True)]),
        wrong_properties=np.concatenate([one.wrong_properties + b for one, b in zip(pieces, before, strict=True)]),
        further=np.concatenate([one.further + b for one, b in zip(pieces, before, strict=True)]),
    )
