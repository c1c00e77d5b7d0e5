"""
Read the records of a commit log, past damage: one scanner, and the policy of each of its users.

:class:`LogScanner` yields intact records and :class:`Damage`. What is damage, where the search for the next record
begins, and which record found there continues the log, is a :class:`Policy`:

======================  ===================  ===================  ===================  ===================
at                      RecoveryPolicy       DispatchPolicy       CHECK                REJOIN, REJOIN_CUT
======================  ===================  ===================  ===================  ===================
torn record             damage               a record             a record, reported   damage
number 0 of a queue     damage of a master   a record             a record             a record
that has others
wrong body CRC          damage (but see      a record             damage               damage
                        checkCRCOnRecover)
wrong lengths, magic,   damage               damage               damage               damage
or physical offset
garbage, zeros          damage               damage               damage               damage
BLANK                   next file            next file            next file            next file
BLANK of wrong length   damage               damage               damage               damage
record that is longer   damage               the scan ends        damage               damage
than the part read
missing file            (cannot be)          (cannot be)          damage               damage
the search begins at    the next byte, or    the same, or where   the next byte        the next byte
                        the file behind a    it ended last time
                        damaged BLANK;
                        a slave may go back
                        without a search
a record found there    it is no remnant,    always               it is no older, or   as check; REJOIN_CUT
continues the log if    see `continues`                           begins a chain       always
======================  ===================  ===================  ===================  ===================

Why they differ:

* **Recovery** decides what the log is, so it believes least: older records behind damage may be remnants of a log that
  was cut there. After a power failure a slave goes back to its last fsync, since its master sends everything again.
* **Dispatch** follows a log that is open: whatever is intact before the log's end belongs to it. The bytes of a slave
  come in pieces, so an incomplete record is no damage, and a search that found nothing goes on with the next bytes.
* **Check** changes nothing. It reports a torn record itself, with its topic.
* **Rejoin** looks for records that two logs have in common, which a torn one cannot be. In the part that will be cut
  each intact record counts, for it may be the only copy of a message.

Files that are missing or cut short are seen through :class:`LogFiles` only; `CommitLog` refuses to open such a log.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from rmq.runtime.disk.files import Disk
from rmq.store import layout
from rmq.store.openfiles import OpenFiles
from rmq.wire.record import (
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    Flaw,
    Frame,
    is_torn,
    read_frame,
)

CHUNK_BYTES = 1 << 20
#: a size field that claims more is damaged
MAX_RECORD_BYTES = 64 << 20
#: so many intact records in a row are more than a remnant
CHAIN_RECORDS = 3

_ZEROS = bytes(CHUNK_BYTES)
_MAGICS = tuple(SIZE_AND_MAGIC.pack(0, magic)[4:] for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))

#: Takes records of a piece of the log: (piece, position, offset of the piece, check CRCs) to the position behind them
Walk = Callable[[bytes, int, int, bool], int]


class Bytes(Protocol):
    """A commit log, as far as scanning goes."""

    segment_bytes: int

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes: ...

    def data_end(self, offset: int) -> int:
        """Return an offset behind which the file of ``offset`` has only zeros, found without reading."""


def file_end(log: Bytes, offset: int) -> int:
    """Return where the file ends that ``offset`` lies in."""
    return offset - offset % log.segment_bytes + log.segment_bytes


class LogFiles:
    """The commit log of a store as scanning wants it; read only."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self.folder = folder
        names = [name for name in disk.list_dir(folder) if layout.file_start(name) is not None]
        self.starts = [int(name) for name in names]
        self._files = OpenFiles(disk, 64)
        self.sizes = {int(name): self._files.get(layout.join(folder, name)).size for name in names}
        self.segment_bytes = max(self.sizes.values(), default=0)
        self.end = max((start + self.segment_bytes for start in self.starts), default=0)

    def read_some(self, offset: int, limit: int, until: int | None = None) -> bytes:
        start = offset - offset % self.segment_bytes
        if start not in self.sizes:
            return b""
        end = min(start + self.sizes[start], self.end if until is None else until)
        if end <= offset:
            return b""
        file = self._files.get(layout.join(self.folder, layout.file_name(start)))
        return file.read_at(offset - start, min(limit, end - offset))

    def data_end(self, offset: int) -> int:
        start = offset - offset % self.segment_bytes
        return start + self._files.get(layout.join(self.folder, layout.file_name(start))).data_end()

    def close(self) -> None:
        self._files.close()


@attrs.frozen(kw_only=True)
class Damage:
    """Bytes from ``start`` to ``end`` that are no record that counts."""

    start: int
    #: the next record that counts; the end of what was scanned when there is none
    end: int
    flaw: Flaw
    #: there is such a record
    resumes: bool = False
    #: intact records that were found and do not count
    remnants: int = 0
    #: the end of the last byte found that is not zero (or is a record's, or follows a BLANK); 0 without a search
    written_to: int = 0


@attrs.frozen(kw_only=True)
class Policy:
    """What is damage, and where the log goes on behind it."""

    check_crc: bool = True
    check_torn: bool = True
    #: a record that is longer than the part ends the scan, and is no damage: its rest is still to come
    awaits_rest: bool = False
    #: records behind damage are searched for
    searches: bool = True
    #: they continue the log whatever their age
    any_age: bool = False

    def is_torn(self, at: int, frame: Frame, end_in_file: int) -> bool:
        """Return whether a record that parses lacks bytes; called with ``check_torn`` only."""
        return is_torn(frame, end_in_file)

    def passed_blank(self, at: int, end: int) -> None:
        """The scan goes on behind a BLANK at an offset, with the file that begins at ``end``."""

    def search_from(self, log: Bytes, at: int, flaw: Flaw) -> int | None:
        """Return where to search for the next record behind damage at an offset; None not to."""
        return at + 1 if self.searches else None

    def continues(self, offset: int, frame: Frame, last_ms: int, is_chain: Callable[[], bool]) -> bool:
        """
        Return whether the log goes on with an intact record behind damage, as far as its bytes show.

        ``last_ms`` is the store time of the last record yielded (0: none), ``is_chain`` is :func:`heads_chain` of it.
        """
        return self.any_age or frame.store_timestamp >= last_ms or is_chain()


@attrs.frozen(kw_only=True)
class RecoveryPolicy(Policy):
    """See `rmq.store.recovery`."""

    is_slave: bool
    #: a slave that acknowledges only what it has fsynced, and so must keep everything before the damage
    acks_after_flush: bool
    #: the power has failed since the store was written; None when that is not known
    lost_power: bool | None
    #: the log was fsynced up to this offset, and had no remnants before it; None when that is not known
    synced_to: int | None
    #: store time of the last record when Apache's broker has stopped cleanly, else None
    clean_ms: int | None
    #: queues with units from before `synced_to`
    synced_queues: set[tuple[str, int]]
    #: returns the store time of the last record that was read
    last_ms: Callable[[], int]
    #: returns True when another message has the number of this record (at an offset) in its queue
    is_replaced: Callable[[int, Frame], bool]
    #: sets bytes of the log, from an offset to the end of its file, to zero
    clear: Callable[[int, int], None]

    @property
    def goes_back(self) -> bool:
        """True for a slave that may go back to its last fsync, since its master sends everything again."""
        return self.is_slave and not self.acks_after_flush

    def ends_log(self, at: int) -> bool:
        """Return whether damage at an offset may be from a power failure, and so ends the log."""
        lost_power = self.is_slave if self.lost_power is None else self.lost_power
        return lost_power and (self.synced_to is None or at >= self.synced_to)

    def goes_back_unseen(self, at: int, flaw: Flaw) -> bool:
        """
        Return whether a slave goes back without a search behind damage at an offset.

        What looks intact before a torn record may be torn as well where no CRC covers it.
        """
        return self.goes_back and bool(self.lost_power) and flaw is not Flaw.EMPTY and self.ends_log(at)

    def is_torn(self, at: int, frame: Frame, end_in_file: int) -> bool:
        """
        Return True also for a record of a master whose number is 0 because a power failure has lost it.

        No CRC covers the number, and dispatch would reset the queue. The queue of a topic that was created again has no
        old units, since its files were deleted durably. Only a disk whose atomic write is smaller than 512 bytes loses
        a number alone. A slave compares its log with the master's.
        """
        return is_torn(frame, end_in_file) or (
            frame.queue_offset == 0
            and not self.is_slave
            and (frame.topic, frame.queue_id) in self.synced_queues
            and frame.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
            and self.ends_log(at)
        )

    def passed_blank(self, at: int, end: int) -> None:
        """
        Clear what follows the head of a BLANK that a power failure may have hit.

        It may be anything, and nothing reads it, but the replicas compare it: theirs has the zeros that were written.
        """
        if self.lost_power is not False and (self.synced_to is None or end > self.synced_to):
            self.clear(at + BLANK_BYTES, end)

    def search_from(self, log: Bytes, at: int, flaw: Flaw) -> int | None:
        return None if self.goes_back_unseen(at, flaw) else behind_damage(log, at)

    def continues(self, offset: int, frame: Frame, last_ms: int, is_chain: Callable[[], bool]) -> bool:
        """
        Return whether an intact record behind damage belongs to this log; False for a remnant behind an earlier end.

        Our recovery clears everything behind the end, Apache's clears nothing. So there are no remnants after a kill of
        our broker, nor before the offset of `checkpoint.rmq`. Elsewhere the age decides, but the clock may have been
        set back: older records count if the log goes on with them and no other message has their numbers, unless a
        clean stop shows that the record before the damage was the last one.
        """
        last_ms = self.last_ms()
        if self.lost_power is False or frame.store_timestamp >= last_ms:
            return True
        if self.synced_to is not None and offset < self.synced_to:
            return True
        if self.clean_ms == last_ms:
            return False
        return not self.is_replaced(offset, frame) and is_chain()


@attrs.frozen(kw_only=True)
class DispatchPolicy(Policy):
    """See `rmq.store.dispatch`."""

    check_crc: bool = False
    check_torn: bool = False
    awaits_rest: bool = True
    any_age: bool = True
    #: where damage stopped the last scan; None when nothing did
    stalled_at: int | None = None
    #: where the search behind that goes on
    searched_to: int = 0

    def search_from(self, log: Bytes, at: int, flaw: Flaw) -> int | None:
        return self.searched_to if at == self.stalled_at else behind_damage(log, at)


CHECK = Policy(check_torn=False)
REJOIN = Policy()
#: for the part of a log that rejoin cuts
REJOIN_CUT = Policy(any_age=True)
#: the first damage ends the scan
STRICT = Policy(searches=False)


@attrs.frozen
class LogScanner:
    """The records of a log, as a policy sees them."""

    log: Bytes
    policy: Policy

    def records(self, start: int, until: int, walk: Walk | None = None) -> Iterator[tuple[int, Frame | Damage]]:
        """
        Yield (physical offset, record) from ``start`` on, and (physical offset, damage) for each damaged place.

        ``walk`` gets each piece of the log first, and takes as many of its records as it wants; they are not yielded.
        Ends at ``until``, or with damage behind which no record counts.
        """
        log, policy = self.log, self.policy
        check_crc = policy.check_crc
        is_torn = policy.is_torn if policy.check_torn else None
        segment_bytes = log.segment_bytes
        last: Frame | None = None
        at = start
        chunk = CHUNK_BYTES
        while at < until:
            data = log.read_some(at, chunk, until)
            base = at
            end = file_end(log, base)
            size = len(data)
            # the file is too short, or missing
            ends_early = size < min(chunk, until - base, end - base)
            chunk = CHUNK_BYTES
            position = 0
            flaw: Flaw | None = None
            while position < size:
                if walk is not None and (position := walk(data, position, base, check_crc)) >= size:
                    break
                at = base + position
                frame = read_frame(data, position, size, phy_offset=at, check_crc=check_crc)
                if isinstance(frame, Flaw):
                    flaw = frame
                    break
                following = position + frame.size
                if is_torn is not None and is_torn(at, frame, (base + following) % segment_bytes):
                    flaw = Flaw.TORN
                    break
                last = frame
                yield at, frame
                position = following
            at = base + position
            if flaw is None and not ends_early:
                continue
            if flaw is Flaw.BLANK:
                if _bytes_to_read(data, position) == end - at:
                    policy.passed_blank(at, end)
                    at = end
                    continue
                flaw = Flaw.SIZE
            elif ends_early and flaw in (None, Flaw.INCOMPLETE):
                flaw = Flaw.INCOMPLETE
            elif flaw is Flaw.INCOMPLETE:
                if base + size < min(until, end):
                    chunk = _bytes_to_read(data, position)
                    if at + chunk + BLANK_BYTES <= end and chunk <= MAX_RECORD_BYTES:
                        chunk = max(chunk, CHUNK_BYTES)
                        continue
                    flaw = Flaw.SIZE
                elif base + size == end:
                    flaw = Flaw.SIZE  # it reaches beyond its file
            if flaw is Flaw.INCOMPLETE and policy.awaits_rest:
                return
            assert flaw is not None
            damage = self._search(at, flaw, until, 0 if last is None else last.store_timestamp)
            yield at, damage
            if not damage.resumes:
                return
            at = damage.end

    def _search(self, at: int, flaw: Flaw, until: int, last_ms: int) -> Damage:
        """Find the first record behind damage that continues the log."""
        start = self.policy.search_from(self.log, at, flaw)
        if start is None:
            return Damage(start=at, end=until, flaw=flaw)
        search = Search(self.log, start, until)
        remnants = 0
        for offset, frame in search.records():
            is_chain = functools.partial(heads_chain, self.log, offset, until)
            if self.policy.continues(offset, frame, last_ms, is_chain):
                return Damage(start=at, end=offset, flaw=flaw, resumes=True)
            remnants += 1
        return Damage(start=at, end=until, flaw=flaw, remnants=remnants, written_to=search.written_to)


def _bytes_to_read(data: bytes, position: int) -> int:
    """Return how long the record at ``position`` says it is, as far as that can be read."""
    if position + SIZE_AND_MAGIC.size > len(data):
        return SIZE_AND_MAGIC.size
    size: int = SIZE_AND_MAGIC.unpack_from(data, position)[0]
    return size


@attrs.define
class Search:
    """
    Find all whole, intact records in bytes that may be anything: damage, remnants, zeros.

    A record must have its own physical offset, match its body's CRC and lack no bytes. Behind a BLANK the search goes
    on with the next file: bytes between, left by a truncation of Apache's broker, are no part of the log.
    """

    log: Bytes
    start: int
    until: int
    #: of what was looked at so far, the end of the last byte that is not zero (or is a record's, or follows a BLANK)
    written_to: int = attrs.field(init=False, default=0)

    def records(self) -> Iterator[tuple[int, Frame]]:
        """Yield (physical offset, record), from ``start`` to ``until``."""
        log, at = self.log, self.start
        asked = data_end = -1
        while at < self.until:
            end = file_end(log, at)
            data = log.read_some(at, CHUNK_BYTES, self.until)
            if not data:
                at = end  # a file that is too short, or missing
                continue
            following = at
            # Most of what is searched was never written; comparing takes a tenth of searching.
            if data != (_ZEROS if len(data) == CHUNK_BYTES else bytes(len(data))):
                self.written_to = max(self.written_to, at + len(data.rstrip(b"\0")))
                for position in _candidates(data):
                    offset = at + position
                    if offset < following:
                        continue
                    if SIZE_AND_MAGIC.unpack_from(data, position) == (end - offset, MAGIC_BLANK):
                        following = self.written_to = end
                        break
                    frame = _intact_at(log, offset, self.until, data, position)
                    if frame is not None:
                        following = offset + frame.size
                        self.written_to = max(self.written_to, following)
                        yield offset, frame
            else:
                if asked != end:
                    # Once a file: reading makes the file system take more of it for data.
                    asked, data_end = end, log.data_end(at)
                if at + len(data) >= data_end:
                    following = end  # after a kill that is nearly all of the last file
            # The magic may lie across the border of two chunks.
            border = end if at + len(data) == end else at + max(1, len(data) - SIZE_AND_MAGIC.size + 1)
            at = max(border, following)


def heads_chain(log: Bytes, start: int, until: int) -> bool:
    """
    Return whether two more intact records follow directly on the one at ``start``, or a BLANK ends its file first.

    A record older than the one before the damage is either a remnant that a truncation (Apache clears nothing) left
    behind the end, or was stored after the clock had been set back. Later writes overwrite remnants in part; where the
    log really goes on, it does so without a gap.
    """
    following = start
    for at, found in itertools.islice(LogScanner(log, STRICT).records(start, until), CHAIN_RECORDS):
        if at != following or isinstance(found, Damage):
            return at != following
        following = at + found.size
    return True


def behind_damage(log: Bytes, at: int) -> int:
    """
    Return where to search behind a damaged place: from its next byte, or from the next file when it was a BLANK.

    Either field identifies a BLANK: no record is as long as the rest of its file.
    """
    end = file_end(log, at)
    head = log.read_some(at, SIZE_AND_MAGIC.size)
    if len(head) == SIZE_AND_MAGIC.size:
        size, magic = SIZE_AND_MAGIC.unpack(head)
        if size == end - at or magic == MAGIC_BLANK:
            return end
    return at + 1


def _candidates(data: bytes) -> list[int]:
    """Return the positions in front of every magic number, in order."""
    found: list[int] = []
    for magic in _MAGICS:
        at = data.find(magic, 4)
        while at >= 0:
            found.append(at - 4)
            at = data.find(magic, at + 1)
    return sorted(found)


def _intact_at(log: Bytes, offset: int, until: int, data: bytes, position: int) -> Frame | None:
    """Return the record at ``offset``, which is ``position`` in ``data``, if it is one and lacks nothing."""
    frame = read_frame(data, position, len(data), phy_offset=offset, check_crc=True)
    if frame is Flaw.INCOMPLETE:
        frame = read_record(log, offset, until)
    if isinstance(frame, Flaw) or is_torn(frame, (offset + frame.size) % log.segment_bytes):
        return None
    return frame


def read_record(log: Bytes, offset: int, until: int) -> Frame | Flaw:
    """Read the one record at ``offset``."""
    head = log.read_some(offset, SIZE_AND_MAGIC.size, until)
    size = _bytes_to_read(head, 0)
    if len(head) < SIZE_AND_MAGIC.size or not 0 < size <= MAX_RECORD_BYTES:
        return Flaw.SIZE
    data = log.read_some(offset, size, until)
    return read_frame(data, 0, len(data), phy_offset=offset, check_crc=True)
