"""Findings: their kinds and severities, causes and consequences, and the verdict."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import attrs
import xxhash

from rmq_audit.worker.work import BOTH, MASTER, SLAVE, UNDECIDED, Fault, Severity


class Verdict(enum.Enum):
    """One word for the pair; the first that applies, read from the bottom."""

    CONSISTENT = "CONSISTENT"
    LAGGING = "LAGGING"
    INCOMPLETE = "INCOMPLETE"
    AHEAD = "AHEAD"
    DAMAGED = "DAMAGED"
    DIFFERENT = "DIFFERENT"
    DIVERGED = "DIVERGED"


#: invariant -> (what holds when all is well, severity of a finding unless it says otherwise, rank among causes)
#: a finding follows from one of a lower rank that covers its place; rank 9 never follows from anything
INVARIANTS: dict[str, tuple[str, Severity, int]] = {
    "CL-GAP": ("segment files are complete and follow each other", Severity.ERROR, 0),
    "RP-DIVERGE": ("master and slave share one history up to the common end", Severity.CRITICAL, 1),
    "RP-EPOCH": ("both sides count the same epochs up to the common end", Severity.CRITICAL, 6),
    "RP-DIFF": ("both sides hold the same bytes of a record", Severity.ERROR, 2),
    "RP-MISSING": ("the slave holds every record of the master below the common end", Severity.ERROR, 2),
    "RP-EXTRA": ("the slave holds no record that the master lacks below the common end", Severity.ERROR, 2),
    "CL-FRAME": ("every byte up to the end belongs to a record or a BLANK", Severity.ERROR, 3),
    "CL-BLANK": ("a full segment ends in a BLANK of the right size", Severity.ERROR, 4),
    "CL-CRC": ("crc32(body) & 0x7fffffff equals bodyCRC", Severity.ERROR, 4),
    "CL-PROPCRC": ("the CRC over the whole record equals its __CRC32# property, if it has one", Severity.ERROR, 4),
    "CL-PHY": ("physicalOffset equals the record's position", Severity.ERROR, 4),
    "CL-TIME": ("store times do not go back by more than a second", Severity.WARN, 5),
    "CL-TAIL": ("no torn record at the end", Severity.WARN, 9),
    "CL-STALE": ("nothing lies after the end", Severity.INFO, 9),
    "RP-LAG": ("the slave has reached the master's end", Severity.WARN, 9),
    "RP-BEGIN": ("both logs begin with the same message", Severity.INFO, 9),
    "RP-AHEAD": ("the slave's end is not beyond the master's", Severity.ERROR, 9),
    "QO-DUP": ("each queue offset is given once", Severity.ERROR, 5),
    "QO-GAP": ("queue offsets are consecutive", Severity.ERROR, 5),
    "QO-RESTART": ("no queue starts again at 0", Severity.WARN, 5),
    "CQ-MISMATCH": ("each unit names the offset and size of its queue's record", Severity.ERROR, 6),
    "CQ-TAG": (
        "tagsCode of each unit is the Java hash of its record's TAGS, or its time of delivery",
        Severity.ERROR,
        6,
    ),
    "CQ-DANGLING": ("no unit points after the end of the log", Severity.ERROR, 6),
    "CQ-MIN": ("no queue file holds only units of deleted messages", Severity.WARN, 9),
    "CQ-LOST": ("every record before the last dispatched one has its unit", Severity.ERROR, 6),
    "CQ-BEHIND": ("every record has its unit", Severity.WARN, 6),
    "CQ-SIZE": ("all files of a queue have the same length", Severity.ERROR, 6),
    "IX-DANGLING": ("each index entry points at a record", Severity.ERROR, 6),
    "IX-HASH": ("each index entry has the hash of a key of its record", Severity.ERROR, 6),
    "IX-TIME": ("each index entry has the store time of its record", Severity.ERROR, 6),
    "IX-CHAIN": ("the chains of the index's hash slots are whole", Severity.ERROR, 9),
    "IX-HEADER": ("an index file has the usual length, and its header says what its entries are", Severity.ERROR, 9),
    "IX-MISSING": ("each key of each record has an index entry", Severity.ERROR, 6),
    "AK-LOST": ("each acknowledged message is at the acknowledged offset", Severity.CRITICAL, 6),
    "AK-BODY": ("each acknowledged message has the body that was sent", Severity.CRITICAL, 6),
    "AK-PLACE": ("each acknowledged message has the queue and offset that were acknowledged", Severity.CRITICAL, 6),
    "AK-COUNT": ("as many messages are in the log as were acknowledged", Severity.WARN, 9),
    "AK-DUP": ("each acknowledged message is stored once", Severity.INFO, 9),
    "CO-AHEAD": ("no consumer offset lies beyond its queue's end", Severity.ERROR, 9),
    "CO-BEHIND": ("no consumer offset lies before its queue's begin", Severity.INFO, 9),
    "CO-BACK": ("no consumer offset has gone back since the previous run", Severity.WARN, 9),
    "CO-ORPHAN": ("each consumer offset belongs to a topic that is known", Severity.INFO, 9),
    "CF-BROKEN": ("brokers can load every table of the folder config", Severity.ERROR, 9),
    "CF-DIFF": ("the tables of master and slave do not contradict each other", Severity.ERROR, 9),
    "CF-TOPIC": ("every topic whose queues hold messages is configured", Severity.ERROR, 9),
    "CF-DELAY": ("no delay level has gone beyond the end of its queue", Severity.ERROR, 9),
    "CF-TIME": ("the checkpoint that a recovery needs names no time after the last message", Severity.ERROR, 9),
    "ST-FILE": ("the folders of log and queues hold files of the right names and lengths only", Severity.ERROR, 9),
    "CL-BACK": ("the end of a log does not go back between two rounds", Severity.WARN, 9),
    "RT-MISSING": ("every NameServer knows every broker and topic", Severity.ERROR, 9),
    "RT-DIFF": ("NameServers say the same of brokers and topics", Severity.ERROR, 9),
    "RT-TWOMASTERS": ("each broker has one master, wherever one asks", Severity.CRITICAL, 9),
    "RT-STORE": ("routes lead to all queues that hold messages, and to no topic that is not there", Severity.WARN, 9),
    "AU-COVER": ("every byte of the inventory was read", Severity.ERROR, 9),
}


#: what offsets say where a log has lost its end
_OF_LOST_ENDS = {"CO-AHEAD", "CF-DELAY"}


@attrs.define(kw_only=True)
class Finding(Fault):
    """
    One line of the result: a fault of a replica, and what follows from it; all names as in the JSON.

    A store that is checked alone has the replica ``store``.
    """

    invariant: str
    replica: str
    severity: Severity
    run_id: str = ""
    finding_id: str = ""
    state: str = "new"
    derived_from: str | None = None
    cluster: str | None = None
    broker: str | None = None
    role: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding as the JSON report holds it: what it is first, then the fault."""
        values = attrs.asdict(self) | {"severity": self.severity.name}
        return {name: values[name] for name in Finding.__annotations__} | values


def finding(invariant: str, replica: str, *, severity: Severity | None = None, **members: Any) -> Finding:
    """Make a finding with the severity of its invariant, unless another is given."""
    chosen = INVARIANTS[invariant][1] if severity is None else severity
    return Finding(invariant=invariant, replica=replica, severity=chosen, **members)


def of_fault(replica: str, fault: Fault, **members: Any) -> Finding:
    """Return a worker's fault as a finding about a replica; ``members`` are what the worker does not know."""
    return finding(replica=replica, **(attrs.asdict(fault) | members))


def consolidate(findings: Sequence[Finding]) -> list[Finding]:
    """Merge what both replicas share, give ids, link consequences to causes, blame by consequence; causes first."""
    merged = _merge_sides(findings)
    merged.sort(key=_order)
    for one in merged:
        one.finding_id = _stable_id(one)
    _link(merged)
    _blame_by_consequence(merged)
    merged.sort(key=lambda one: one.derived_from is not None)
    return merged


def judge(findings: Sequence[Finding]) -> tuple[Verdict, int]:
    """
    Return the verdict over these findings and its exit status; a proven difference outranks a byte that was not read.

    0 consistent, 1 consistent with warnings, 2 inconsistent, 3 incomplete.
    """
    found = _verdict(findings)
    if found in (Verdict.DIVERGED, Verdict.DIFFERENT, Verdict.DAMAGED, Verdict.AHEAD):
        return found, 2
    if found is Verdict.INCOMPLETE:
        return found, 3
    return found, int(any(one.severity >= Severity.WARN for one in findings))


def _verdict(findings: Sequence[Finding]) -> Verdict:
    kinds = {one.invariant for one in findings}
    errors = {one.invariant for one in findings if one.severity >= Severity.ERROR}
    if kinds & {"RP-DIVERGE", "RP-EPOCH"}:
        return Verdict.DIVERGED
    if errors & {"RP-DIFF", "RP-MISSING", "RP-EXTRA"}:
        return Verdict.DIFFERENT
    if errors - {"RP-AHEAD", "AU-COVER", *_OF_LOST_ENDS}:
        return Verdict.DAMAGED
    if "RP-AHEAD" in errors:
        return Verdict.AHEAD
    if errors & _OF_LOST_ENDS:
        return Verdict.DAMAGED
    if "AU-COVER" in errors:
        return Verdict.INCOMPLETE
    if any(one.invariant == "RP-LAG" and one.severity >= Severity.WARN for one in findings):
        return Verdict.LAGGING
    return Verdict.CONSISTENT


def _order(one: Finding) -> tuple[int, int, int, str, str, str, int, int]:
    return (
        -1 if one.phy_from is None else one.phy_from,
        INVARIANTS[one.invariant][2],
        -one.severity,
        one.invariant,
        one.replica,
        one.topic or "",
        one.queue_id or 0,
        one.queue_offset_from or 0,
    )


def _stable_id(one: Finding) -> str:
    place = (one.invariant, one.replica, one.phy_from, one.topic, one.queue_id, one.queue_offset_from, one.field)
    parts = [str(part) for part in (*place, *_words_for_place(one))]
    return xxhash.xxh3_64_hexdigest("|".join(parts).encode("utf-8", "backslashreplace"))


def _words_for_place(one: Finding) -> tuple[str, ...]:
    """Return what tells a finding without a place from others of its kind: the words, which name the file."""
    has_place = any(part is not None for part in (one.phy_from, one.topic, one.field))
    return () if has_place or one.invariant not in ("AU-COVER", "ST-FILE") else (one.detail,)


def _merge_sides(findings: Sequence[Finding]) -> list[Finding]:
    """Make one finding of what was found alike on both replicas: the slave only copied it."""
    kept: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        place = (one.phy_from, one.phy_to, one.topic, one.queue_id, one.queue_offset_from, one.field)
        what = (one.invariant, *place, one.actual, *_words_for_place(one))
        twin = kept.get((*what, MASTER))
        alone = one.invariant.startswith(("RP-", "AU-", "CL-GAP", "CL-TAIL", "CL-STALE"))
        if one.replica == SLAVE and twin is not None and not alone:
            twin.replica = BOTH
            twin.role = None
            twin.evidence_slave = one.evidence_slave
            twin.blame = BOTH if twin.blame else None
        else:
            kept[(*what, one.replica)] = one
    return list(kept.values())


def _explains(cause: Finding, one: Finding) -> bool:
    if INVARIANTS[cause.invariant][2] >= INVARIANTS[one.invariant][2] or INVARIANTS[one.invariant][2] == 9:
        return False
    if cause.phy_from is None or cause.phy_to is None or one.phy_from is None or one.phy_to is None:
        return False
    if cause.phy_from >= one.phy_to or one.phy_from >= cause.phy_to:
        return False
    if cause.invariant.startswith("QO-") and (cause.topic, cause.queue_id) != (one.topic, one.queue_id):
        return False  # its range spans records of other queues
    side = cause.blame if cause.invariant.startswith("RP-") else cause.replica
    return side in (None, UNDECIDED, BOTH) or one.replica == side or one.invariant.startswith("RP-")


def _link(findings: Sequence[Finding]) -> None:
    causes = [one for one in findings if INVARIANTS[one.invariant][2] < 6 and one.severity >= Severity.ERROR]
    for one in findings:
        explaining = [cause for cause in causes if cause is not one and _explains(cause, one)]
        if explaining:
            best = min(explaining, key=lambda cause: (INVARIANTS[cause.invariant][2], _order(cause)))
            one.derived_from = best.finding_id


def _blame_by_consequence(findings: Sequence[Finding]) -> None:
    """
    Blame the side whose queues or index break at a difference that no CRC decides.

    Header and properties have no CRC; but a wrong queueId or queueOffset tears the queue of one side only, and its
    units and index entries keep the hashes of tags and keys.
    """
    by_id = {one.finding_id: one for one in findings}
    broken: dict[str, set[str]] = {}
    for one in findings:
        if one.derived_from is not None and one.invariant.startswith(("QO-", "CQ-", "IX-")):
            broken.setdefault(one.derived_from, set()).add(one.replica)
    for finding_id, sides in broken.items():
        cause = by_id[finding_id]
        if cause.invariant == "RP-DIFF" and cause.blame == UNDECIDED and len(sides) == 1 and BOTH not in sides:
            (cause.blame,) = sides
            cause.detail += f"; both CRCs hold, but queues or index of the {cause.blame} say otherwise"
