"""
Two commit logs that were one: up to where they are, and what the older master has beyond.

Records carry their own place and store time, so two logs that hold the same bytes at one place hold the same bytes
before it, and after the first different record nothing is common any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from rmq.store.check import LogFiles
from rmq.store.scan import scan
from rmq.wire.record import MAGIC_V1, MAGIC_V2, PROPERTY_KEYS, SIZE_AND_MAGIC, Flaw, Frame, find_property


class Records(Protocol):
    """A commit log of which single records can be had."""

    @property
    def min_offset(self) -> int:
        """The first byte that is there."""

    @property
    def end_offset(self) -> int:
        """One behind the last byte."""

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        """Return the record of ``size`` bytes that begins at an offset; None when there is no such record."""


class StoredRecords:
    """The records of a store directory; read only."""

    def __init__(self, log: LogFiles) -> None:
        self.log = log
        self.min_offset = log.starts[0] if log.starts else 0
        self.end_offset = self._find_end()

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        data = self.log.read_some(phy_offset, size, self.end_offset)
        if len(data) < max(size, SIZE_AND_MAGIC.size) or SIZE_AND_MAGIC.unpack_from(data) not in (
            (size, MAGIC_V1),
            (size, MAGIC_V2),
        ):
            return None
        return data

    def segment(self, start: int) -> list[tuple[int, Frame]]:
        """Return the records of the file that begins at ``start``, with their offsets."""
        end = min(start + self.log.segment_bytes, self.log.end)
        found = scan(self.log, start, end, check_crc=False)
        return [(offset, frame) for offset, frame in found if isinstance(frame, Frame)]

    def _find_end(self) -> int:
        """Return where the records end: behind the last whole one of the last file that has any."""
        for start in reversed(self.log.starts):
            end = start
            for offset, frame in scan(
                self.log, start, min(start + self.log.segment_bytes, self.log.end), check_crc=True
            ):
                end = offset if isinstance(frame, Flaw) else offset + frame.size
            if end > start or start == self.log.starts[0]:
                return end
        return 0


@attrs.frozen(kw_only=True)
class Extra:
    """A message that one log has and the other has not."""

    phy_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    keys: str


@attrs.frozen(kw_only=True)
class Parting:
    """Where two logs part. ``common_offset`` -1: they have no record in common (that both still hold)."""

    common_offset: int
    common_size: int
    common_timestamp: int
    end_offset: int
    other_end: int
    #: offsets of the records beyond, by file, newest file first; cheap to keep, dear to describe
    _beyond: list[list[tuple[int, Frame]]] = attrs.field(repr=False, alias="beyond")

    @property
    def keep_offset(self) -> int:
        """Where the log has to end to be a beginning of the other one."""
        return self.common_offset + self.common_size if self.common_offset >= 0 else -1

    @property
    def count(self) -> int:
        """How many messages lie beyond."""
        return sum(map(len, self._beyond))

    def extras(self) -> Iterator[Extra]:
        """Yield the messages beyond, oldest first."""
        for segment in reversed(self._beyond):
            for phy_offset, frame in segment:
                properties = frame.properties.decode("utf-8", "replace")
                yield Extra(
                    phy_offset=phy_offset,
                    size=frame.size,
                    topic=frame.topic,
                    queue_id=frame.queue_id,
                    queue_offset=frame.queue_offset,
                    store_timestamp=frame.store_timestamp,
                    keys=find_property(properties, PROPERTY_KEYS) or "",
                )


def find_parting(log: StoredRecords, other: Records) -> Parting:
    """Compare from the end backwards, a file at a time; within a file the place is found by halving."""
    beyond: list[list[tuple[int, Frame]]] = []
    for start in reversed(log.log.starts):
        records = log.segment(start)
        if start + log.log.segment_bytes <= other.min_offset:
            break

        def is_common(at: int, records: list[tuple[int, Frame]] = records) -> bool:
            offset, frame = records[at]
            if offset < other.min_offset or offset + frame.size > other.end_offset:
                return False
            mine = log.record_at(offset, frame.size)
            return mine is not None and mine == other.record_at(offset, frame.size)

        # Records that the other log has deleted are older than what it still has: they say nothing, so pass over them.
        first = next((at for at, (offset, _) in enumerate(records) if offset >= other.min_offset), len(records))
        last = _last_true(is_common, first, len(records))
        beyond.append(records[last + 1 :] if last >= first else records[first:])
        if last >= first:
            offset, frame = records[last]
            return Parting(
                common_offset=offset,
                common_size=frame.size,
                common_timestamp=frame.store_timestamp,
                end_offset=log.end_offset,
                other_end=other.end_offset,
                beyond=beyond,
            )
    return Parting(
        common_offset=-1,
        common_size=0,
        common_timestamp=0,
        end_offset=log.end_offset,
        other_end=other.end_offset,
        beyond=beyond,
    )


def _last_true(is_true: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last index in [low, high) for which ``is_true``, which it is for all before; ``low - 1`` for none."""
    good, bad = low - 1, high
    step = 1
    # From the end, in growing steps: usually few records are beyond, or none.
    while bad > low:
        at = max(low, bad - step)
        if is_true(at):
            good = at
            break
        bad = at
        step *= 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if is_true(middle) else (good, middle)
    return good
