"""
Stores that are written to while they are read: what is only further on by now, and what does not hold at a second look.

The sides of a pair are never read at the same moment. Whoever reads the slave after the master sees more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from rmq_audit import inventory
from rmq_audit.findings import MASTER, SLAVE, Finding, Severity, exit_status, verdict
from rmq_audit.format import MAX_HEADER_BYTES
from rmq_audit.history import Log
from rmq_audit.records import plausible_size, record_at, stated_offset

if TYPE_CHECKING:
    from rmq_audit.audit import Result

_PIECE_BYTES = 1 << 20

#: what one look says of the ends of a pair, and the other, which stops at the common end, cannot see
_OF_ENDS = ("RP-LAG", "RP-AHEAD")


def settle_ahead(found: list[Finding], master: Log, slave: Log) -> None:
    """
    Make RP-AHEAD a remark where the slave was only looked at later: its dump was begun later, or the master's files
    hold the same bytes by now.

    A master sends what its files hold already, so that a slave that is really ahead is still ahead.
    """
    for one in found:
        if one.invariant != "RP-AHEAD":
            continue
        if _dumped_later(master, slave):
            one.severity = Severity.INFO
            one.detail += "; its dump was begun after the master's"
        elif _has_by_now(master, slave):
            one.severity = Severity.INFO
            one.detail += "; the master was written to meanwhile and holds the same by now"


def _dumped_later(master: Log, slave: Log) -> bool:
    ours, theirs = master.store.manifest, slave.store.manifest
    if ours is None or theirs is None or ours.taken_at_start is None or theirs.taken_at_start is None:
        return False
    return theirs.taken_at_start >= ours.taken_at_start


def _has_by_now(master: Log, slave: Log) -> bool:
    if master.store.manifest is not None:
        return False  # a dump does not grow
    now = attrs.evolve(master, store=inventory.take_inventory(master.side, master.store.path))
    for segment in range(master.end - master.end % master.segment_bytes, slave.end, master.segment_bytes):
        full = segment + master.segment_bytes
        for at in range(max(segment, master.end), min(full, slave.end), _PIECE_BYTES):
            size = min(_PIECE_BYTES, full - at, slave.end - at)
            held = now.read(at, size)
            if len(held) < size or held != slave.read(at, size):
                return False
    return True


def has_moved(log: Log) -> bool:
    """
    Whether a whole record stands by now where the log ended when it was read.

    Modification times do not tell: who writes through a memory map changes them now and then.
    """
    if log.store.manifest is not None:
        return False
    head = log.read(log.end, MAX_HEADER_BYTES)
    size = plausible_size(head, 0)
    if size is None or stated_offset(head, 0) != log.end:
        return False
    record = record_at(log.read(log.end, size), 0, log.end)
    return record is not None and record.crc_holds() and not record.has_hole()


def second_look(first: Result, again: Callable[[Mapping[str, int]], Result]) -> Result:
    """
    Return what a second look at moving stores gives, up to the common end of the first, with what that said of the
    ends.

    A worker may have read a record while it was being written, and those behind it when they were complete. What was
    below an end once does not change any more: real damage is found again.
    """
    second = again({MASTER: first.compared_to, SLAVE: first.compared_to})
    second.findings += [one for one in first.findings if one.invariant in _OF_ENDS]
    second.verdict = verdict(second.findings)
    second.exit_status = exit_status(second.verdict, second.findings)
    return second
