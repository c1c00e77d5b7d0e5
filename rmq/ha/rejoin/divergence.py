"""
Find where two copies of a commit log diverge, and list the records that only the old master has.

Records have their own offset and store time, so two logs with the same record at one offset have the same bytes before
it, and after the first different record nothing is common.

A power failure leaves lost and torn records at the end of an old master's log, with intact ones behind them. So damage
does not end the comparison: it is skipped, and records behind it count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from rmq.store.cut import written_end
from rmq.store.scan import CHUNK_BYTES, REJOIN, REJOIN_CUT, Damage, LogFiles, LogScanner
from rmq.wire.record import (
    MAGIC_V1,
    MAGIC_V2,
    PROPERTY_KEYS,
    SIZE_AND_MAGIC,
    Frame,
    find_property,
)


class Records(Protocol):
    """A commit log that gives single records."""

    @property
    def min_offset(self) -> int:
        """Offset of the first byte."""

    @property
    def end_offset(self) -> int:
        """Offset behind the last byte."""

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        """Return the record of ``size`` bytes that begins at an offset; None when there is no such record."""


@attrs.frozen(kw_only=True)
class Content:
    """What a commit log file holds. The log ends at ``end``, or goes on with the next file when that is the file's."""

    start: int
    end: int
    #: (offset, size, store timestamp) of each intact record
    records: list[tuple[int, int, int]]
    #: damage before intact records of the same file
    damage: list[Damage]


class StoredRecords:
    """The records of a store directory; read only."""

    def __init__(self, log: LogFiles) -> None:
        self.log = log
        #: where files begin; the creation of an empty one was interrupted
        self.starts = [start for start in log.starts if log.sizes[start]]
        self._content: Content | None = None
        self.min_offset = self.starts[0] if self.starts else 0
        self.end_offset = self._find_end()

    def record_at(self, phy_offset: int, size: int) -> bytes | None:
        data = self.log.read_some(phy_offset, size, self.end_offset)
        if len(data) < max(size, SIZE_AND_MAGIC.size) or SIZE_AND_MAGIC.unpack_from(data) not in (
            (size, MAGIC_V1),
            (size, MAGIC_V2),
        ):
            return None
        return data

    def content(self, start: int) -> Content:
        """Return what the file that begins at ``start`` holds; the last result is cached, for it is needed twice."""
        if self._content is None or self._content.start != start:
            self._content = self._read(start)
        return self._content

    def damage(self, start: int) -> list[Damage]:
        """Return the damaged places of a file that have intact records behind them; empty without such a file."""
        return self.content(start).damage if start in self.starts else []

    def _read(self, start: int) -> Content:
        records: list[tuple[int, int, int]] = []
        damage: list[Damage] = []
        # Not beyond the bytes that are there: the last file may be too short.
        until = start + self.log.sizes[start]
        end = until
        for offset, found in LogScanner(self.log, REJOIN).records(start, until):
            if isinstance(found, Frame):
                records.append((offset, found.size, found.store_timestamp))
            elif found.resumes:
                damage.append(found)
            else:
                end = offset
        return Content(start=start, end=end, records=records, damage=damage)

    def _find_end(self) -> int:
        """Return where the log ends: behind the last whole record, or the BLANK, of the last file that has any."""
        for start in reversed(self.starts):
            end = self.content(start).end
            if end > start:
                return end
        return self.min_offset


@attrs.frozen(kw_only=True)
class Extra:
    """A message that only the old master has."""

    phy_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    keys: str


@attrs.frozen(kw_only=True)
class Divergence:
    """
    Where two logs diverge. ``common_offset`` -1: they have no record in common (that both still have).

    Bytes decide what has to be cut, not messages: a slave cannot follow either with a BLANK or half a record where the
    other log has other bytes.
    """

    common_offset: int
    common_size: int
    common_timestamp: int
    end_offset: int
    other_end: int
    #: the end of what has to be cut; `keep_offset` when nothing has to
    cut_end: int
    #: damage in the common part, in the file of the last common record
    common_damage: list[Damage] = attrs.field(factory=list)
    #: damage in what has to be cut
    damage: list[Damage] = attrs.field(factory=list)
    #: records that only the old master has, oldest first
    _beyond: list[tuple[int, Frame]] = attrs.field(factory=list, repr=False, alias="beyond")

    @property
    def keep_offset(self) -> int:
        """Where the log has to end so that the other one continues it."""
        return self.common_offset + self.common_size if self.common_offset >= 0 else -1

    @property
    def cut_bytes(self) -> int:
        """How many bytes have to be cut; 0 when the store can follow as it is."""
        return self.cut_end - self.keep_offset

    @property
    def count(self) -> int:
        """How many messages only the old master has."""
        return len(self._beyond)

    @property
    def last_extra(self) -> int:
        """Where the last of these messages begins; -1 without one."""
        return self._beyond[-1][0] if self._beyond else -1

    def extras(self) -> Iterator[Extra]:
        """Yield these messages, oldest first."""
        for phy_offset, frame in self._beyond:
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


def find_divergence(log: StoredRecords, other: Records) -> Divergence:
    """Compare from the end backwards, file by file; within a file by binary search."""
    for start in reversed(log.starts):
        if start + log.log.segment_bytes <= other.min_offset:
            break
        # Skip records that the other log has deleted: they are older than all that it still has. Skip those that are
        # damaged in it too: intact ones behind them may be common.
        damaged = other.damage(start) if isinstance(other, StoredRecords) else []
        records = [
            (offset, size, timestamp)
            for offset, size, timestamp in log.content(start).records
            if offset >= other.min_offset
            and not any(place.start < offset + size and offset < place.end for place in damaged)
        ]

        def is_common(at: int, records: list[tuple[int, int, int]] = records) -> bool:
            offset, size, _ = records[at]
            if offset + size > other.end_offset:
                return False
            mine = log.record_at(offset, size)
            return mine is not None and mine == other.record_at(offset, size)

        last = _last_true(is_common, 0, len(records))
        if last >= 0:
            return _describe(log, other, start, records[last])
    return Divergence(
        common_offset=-1,
        common_size=0,
        common_timestamp=0,
        end_offset=log.end_offset,
        other_end=other.end_offset,
        cut_end=-1,
    )


def _describe(log: StoredRecords, other: Records, start: int, common: tuple[int, int, int]) -> Divergence:
    """Describe what follows the last common record, which is in the file that begins at ``start``."""
    offset, size, timestamp = common
    keep = offset + size
    beyond: list[tuple[int, Frame]] = []
    damage: list[Damage] = []
    cut_end = written = max(keep, written_end(log.log))
    for place, found in _scan_from(log, keep):
        if isinstance(found, Frame):
            beyond.append((place, found))
            # The last bytes of a record may be zeros.
            cut_end = max(cut_end, place + found.size)
        else:
            damage.append(found)
    if not beyond and _holds(other, log, keep, written):
        cut_end = keep
    return Divergence(
        common_offset=offset,
        common_size=size,
        common_timestamp=timestamp,
        end_offset=log.end_offset,
        other_end=other.end_offset,
        cut_end=cut_end,
        common_damage=[place for place in log.damage(start) if place.end <= keep],
        # Zeros behind the last written byte are no damage.
        damage=[attrs.evolve(place, end=min(place.end, cut_end)) for place in damage if place.start < cut_end],
        beyond=beyond,
    )


def _scan_from(log: StoredRecords, keep: int) -> Iterator[tuple[int, Frame | Damage]]:
    """Scan all files from ``keep`` on; whole records of any age are yielded, since they will be cut."""
    scanner = LogScanner(log.log, REJOIN_CUT)
    for start in log.starts:
        end = start + log.log.sizes[start]
        if end > keep:
            yield from scanner.records(max(keep, start), end)


def _holds(other: Records, log: StoredRecords, start: int, end: int) -> bool:
    """
    Return whether the other log has the same bytes from ``start`` to ``end``, except for zeros (lost or never written).

    A running broker gives whole records only, so it is asked for the one that begins at ``start``. All other bytes
    count as different; cutting them costs nothing, since the master sends them again.
    """
    if isinstance(other, StoredRecords):
        at = start
        while at < end:
            mine = log.log.read_some(at, CHUNK_BYTES, end)
            if mine and not _covers(other.log.read_some(at, len(mine)), mine):
                return False
            at += len(mine) or log.log.segment_bytes - at % log.log.segment_bytes
        return True
    if start == end:
        return True
    mine = log.log.read_some(start, end - start)
    size, magic = SIZE_AND_MAGIC.unpack(mine[: SIZE_AND_MAGIC.size].ljust(SIZE_AND_MAGIC.size, b"\0"))
    if magic not in (MAGIC_V1, MAGIC_V2) or end > start + size:
        return False
    return _covers(other.record_at(start, size) or b"", mine)


def _covers(whole: bytes, part: bytes) -> bool:
    """Return whether ``part`` is equal to ``whole``, except for missing bytes at its end and zeros."""
    if whole.startswith(part):
        return True
    return all(mine in (0, theirs) for mine, theirs in zip(part, whole.ljust(len(part), b"\0"), strict=False))


def _last_true(is_true: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last index in [low, high) for which ``is_true``, which it is for all before; ``low - 1`` for none."""
    good, bad = low - 1, high
    step = 1
    # From the end, in growing steps: usually the last record is common, or one of the last.
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
