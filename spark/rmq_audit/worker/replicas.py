"""
A differing chunk, both sides at once: which records differ, in which field, and whose own checks fail.

This is what a worker runs for the few chunks whose digests differ; it reads both files and sends back names and
numbers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from rmq.wire.record import BLANK_BYTES, MAGIC_BLANK, body_crc
from rmq_audit.worker import properties
from rmq_audit.worker.files import LogFile, Window
from rmq_audit.worker.frames import Frames
from rmq_audit.worker.location import ReadError
from rmq_audit.worker.records import (
    EVIDENCE_BEFORE,
    EVIDENCE_BYTES,
    HEADER_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_MAGIC,
    Record,
    record_at,
    stated_offset,
)
from rmq_audit.worker.scan import record_fault
from rmq_audit.worker.work import BOTH, MASTER, MAX_SAMPLES, SLAVE, UNDECIDED, Fault, Work

#: this many adjacent differing records are still named one by one
MAX_SINGLE_DIFFERENCES = 8

#: of these six, so many must differ before two sound records at one place are two messages and not one with a wrong bit
IDENTITY = ("totalSize", "queueOffset", "bornTimestamp", "storeTimestamp", "bodyCRC")
MIN_IDENTITY_DIFFERENCES = 3

BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big", signed=True)

#: differing fields of one record that are reported: all of the header, and this many properties
MAX_PROPERTIES = 16

#: longest text of one value; the rest of a longer one is left out
MAX_TEXT = 200

#: a ``field`` and what ``master`` and ``slave`` have in it; None where a side does not have it at all
FieldValues = dict[str, str | None]

_OF_THE_FIRST = "of the first: "


@attrs.frozen(kw_only=True)
class DrillSide:
    """One side of a chunk to look into: its file, and where its first record in the chunk starts."""

    file: LogFile
    first: int | None


@attrs.frozen(kw_only=True)
class Drill:
    """Compare the records that start in [``begin``, ``end``) of one segment, byte by byte, on both sides."""

    begin: int
    end: int
    master: DrillSide | None
    slave: DrillSide | None


@attrs.frozen(kw_only=True)
class Drilled:
    """
    What a drill found.

    ``equal`` counts the records (and BLANKs) that both sides share, ``crcs`` the slave's other ones, whose bodies
    were checked. ``forked_at`` is the first difference after the last shared record, if both sides hold a sound but
    different message there. ``differences`` are the records that the sides do not share, many adjacent ones as one.
    """

    error: str | None = None
    equal: int = 0
    forked_at: int | None = None
    crcs: int = 0
    differences: Sequence[Fault] = ()
    faults_slave: Sequence[Fault] = ()


def drill(task: Drill) -> Drilled:
    """Compare one chunk; a file that cannot be read is reported in ``error``."""
    try:
        return _compare(_Side(task, task.master), _Side(task, task.slave))
    except ReadError as error:
        return Drilled(error=str(error))


class _Side:
    """The items (records and BLANKs) of one side that start in the drilled range."""

    def __init__(self, task: Drill, side: DrillSide | None) -> None:
        self.base = task.begin
        self.data = b""
        self.items: dict[int, int] = {}
        self.limit = task.begin
        if side is None:
            return
        self.limit = side.file.limit
        window = Window(side.file, task.begin, task.end)
        frames = Frames(window)
        at = side.first
        while at is not None and at < task.end:
            columns, behind = frames.stretch(at, task.end)
            for position, size in zip(columns.pos.tolist(), columns.size.tolist(), strict=True):
                self.items[window.base + position] = size
            if behind < task.end and frames.is_blank(behind):
                self.items[behind] = BLANK_BYTES
                break
            at = frames.resync(behind, task.end) if behind < task.end else None
        self.data = window.data

    def bytes_at(self, phy: int, size: int) -> bytes:
        return self.data[phy - self.base : min(phy + size, self.limit) - self.base]

    def record(self, phy: int) -> Record | None:
        if phy not in self.items:
            return None
        return record_at(self.data, phy - self.base, phy)

    def looks_like(self, phy: int, size: int) -> bool:
        """Whether two of totalSize, magic and physicalOffset say that a record of ``size`` bytes was here."""
        head = self.bytes_at(phy, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return False
        stated, magic = SIZE_MAGIC.unpack_from(head)
        return [stated == size, magic in (MAGIC_V1, MAGIC_V2), stated_offset(head, 0) == phy].count(True) >= 2

    def must_have_blank(self, phy: int) -> bool:
        """Whether a record ends at ``phy``, or half a BLANK stands there, so that a BLANK was there once."""
        return self.bytes_at(phy + 4, 4) == BLANK_MAGIC or any(at + held == phy for at, held in self.items.items())

    def failure(self, phy: int) -> str | None:
        """Return why the record at ``phy`` fails its own checks, or None."""
        record = self.record(phy)
        if record is None:
            return "holds no record here"
        if record.number("physicalOffset") != phy:
            return f"states physicalOffset {record.number('physicalOffset')} here"
        if not record.crc_holds():
            return f"fails its own CRC: the body has {body_crc(record.body)}, bodyCRC says {record.number('bodyCRC')}"
        at = record.size - properties.CRC_BYTES
        marked = record.properties[-properties.CRC_BYTES :].startswith(properties.CRC_MARK)
        if marked and body_crc(record.data[:at]) != properties.stated_property_crc(record.data, at):
            return "fails the CRC over the whole record that its __CRC32# property states"
        if record.has_hole():
            return "holds zero bytes in topic or properties, bytes that never arrived (the CRC covers only the body)"
        return None


def _compare(master: _Side, slave: _Side) -> Drilled:
    differences: list[Fault] = []
    faults: list[Fault] = []
    _drop_illusions(master, slave)
    equal, crcs, shared, forked_at = 0, 0, True, None
    for phy in sorted(master.items.keys() | slave.items.keys()):
        size = master.items.get(phy) or slave.items[phy]
        if master.items.get(phy) == slave.items.get(phy) and master.bytes_at(phy, size) == slave.bytes_at(phy, size):
            equal, forked_at, shared = equal + 1, None, True
            continue
        if shared and _is_fork(phy, master, slave):
            forked_at = phy
        shared = False
        differences.append(_difference(phy, master, slave))
        theirs = slave.record(phy)
        crcs += theirs is not None
        faults += _crc_fault(theirs)
    return Drilled(
        equal=equal,
        forked_at=forked_at,
        crcs=crcs,
        differences=list(folded(differences)),
        faults_slave=faults,
    )


def _drop_illusions(master: _Side, slave: _Side) -> None:
    """
    Forget items that one side alone has although the bytes there are the same on both.

    Damage before such a place led that side's search into a body, where a forged or stale record lay.
    """
    for side, other in ((master, slave), (slave, master)):
        for phy in side.items.keys() - other.items.keys():
            if side.bytes_at(phy, side.items[phy]) == other.bytes_at(phy, side.items[phy]):
                del side.items[phy]


def _difference(phy: int, master: _Side, slave: _Side) -> Fault:
    known = master.record(phy) or slave.record(phy)
    size = master.items.get(phy) or slave.items.get(phy) or 0
    for invariant, name, has, lacking, lacks in (
        ("RP-MISSING", MASTER, master, SLAVE, slave),
        ("RP-EXTRA", SLAVE, slave, MASTER, master),
    ):
        if known is not None and phy in has.items and phy not in lacks.items and not lacks.looks_like(phy, size):
            return Fault(
                invariant=invariant,
                phy_from=phy,
                phy_to=phy + size,
                blame=name if has.failure(phy) else _blame_absent(lacks, phy, size, lacking),
                detail=f"the {lacking} holds no such record",
                **known.names(),
                **_hex(phy, 0, master, slave),
            )
    return _changed(phy, master, slave)


def _changed(phy: int, master: _Side, slave: _Side) -> Fault:
    """The same record on both sides, with other bytes: name the fields that differ and who fails its own checks."""
    failures = {MASTER: master.failure(phy), SLAVE: slave.failure(phy)}
    ours, theirs = master.record(phy), slave.record(phy)
    # field names follow the side that is sound, since a damaged length moves everything behind it
    layout = theirs if ours is None or (failures[MASTER] and not failures[SLAVE] and theirs is not None) else ours
    size = layout.size if layout is not None else max(master.items.get(phy, 0), slave.items.get(phy, 0))
    left, right = master.bytes_at(phy, size), slave.bytes_at(phy, size)
    wrong = [at for at in range(size) if left[at : at + 1] != right[at : at + 1]]
    first = wrong[0] if wrong else 0
    field = layout.field_at(first) if layout is not None else "BLANK"
    if layout is None:
        sides = ((MASTER, master), (SLAVE, slave))
        failing = [name for name, side in sides if phy not in side.items and side.must_have_blank(phy)]
    elif ours is not None and theirs is not None and ours.has_hole() and theirs.has_hole():
        failing = [name for name, record in ((MASTER, ours), (SLAVE, theirs)) if not record.crc_holds()]
    else:
        failing = [name for name, failure in failures.items() if failure is not None]
    blame = UNDECIDED if not failing else BOTH if len(failing) == 2 else failing[0]
    text = f"{field} differs, {len(wrong)} bytes between {phy + first} and {phy + (wrong[-1] if wrong else 0)}"
    if _is_fork(phy, master, slave):
        text, blame, failing = f"the sides hold different messages here; {text}", UNDECIDED, []
    for side in failing:
        text += f"; the {side} {failures[side]}"
    if not failing and layout is not None:
        text += "; both sides pass their own checks"
    expected, actual = _values(field, layout, left, right)
    whole = [
        side.bytes_at(phy, size if record is None else record.size)
        for side, record in ((master, ours), (slave, theirs))
    ]
    return Fault(
        invariant="RP-DIFF",
        phy_from=phy,
        phy_to=phy + size,
        field=field,
        expected=expected,
        actual=actual,
        blame=blame,
        detail=text,
        differing_fields=field_values(ours, theirs, *whole),
        **({} if layout is None else layout.names()),
        **_hex(phy, first, master, slave),
    )


def _blame_absent(side: _Side, phy: int, size: int, name: str) -> str:
    """A side that has no record at all where the other has a sound one has lost it; with others there, who knows."""
    return UNDECIDED if any(phy < at + held and at < phy + size for at, held in side.items.items()) else name


def _is_fork(phy: int, master: _Side, slave: _Side) -> bool:
    """
    Whether both sides are sound here and yet hold two messages (or a message and a BLANK), not one with some
    damage.
    """
    ours, theirs = master.record(phy), slave.record(phy)
    for record in (ours, theirs):
        if record is not None and not (record.crc_holds() and record.number("physicalOffset") == phy):
            return False
    if ours is None or theirs is None:
        return phy in master.items and phy in slave.items and (ours is None) != (theirs is None)
    differing = sum(ours.number(name) != theirs.number(name) for name in IDENTITY)
    return differing + (ours.message_id != theirs.message_id) >= MIN_IDENTITY_DIFFERENCES


def _values(field: str, layout: Record | None, left: bytes, right: bytes) -> tuple[str | None, str | None]:
    """Return the field's value on both sides, as numbers where it is one, shortened where it is long."""
    if layout is None:
        return None, None
    at, size = next((at, size) for name, at, size in layout.fields() if name == field)
    if field == "body":
        return tuple(f"{size} bytes, crc {body_crc(side[at : at + size])}" for side in (left, right))  # type: ignore[return-value]
    if size <= 8 and field not in ("bornHost", "storeHost", "topic", "properties"):
        return str(_integer(field, left[at : at + size])), str(_integer(field, right[at : at + size]))
    return _text(left[at : at + size]), _text(right[at : at + size])


def _integer(field: str, raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=field != "magicCode")


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace").encode("unicode_escape").decode()
    return _cut(text)


def _hex(phy: int, first: int, master: _Side, slave: _Side) -> dict[str, Any]:
    begin = phy + max(first - EVIDENCE_BEFORE, 0)
    return {
        "evidence_phy": begin,
        "evidence_master": master.bytes_at(begin, EVIDENCE_BYTES).hex(),
        "evidence_slave": slave.bytes_at(begin, EVIDENCE_BYTES).hex(),
    }


def field_values(ours: Record | None, theirs: Record | None, left: bytes, right: bytes) -> list[FieldValues]:
    """
    Return every field that differs, in the order of the record.

    Each side is read by its own lengths. Where only one side still is a record, its layout is laid over the other's
    bytes too: the damaged side then shows what stands in the place of each field.
    """
    known = ours or theirs
    if known is None:
        return []
    mine, other = _texts(ours or known, left), _texts(theirs or known, right)
    found = []
    for name in [*mine, *(name for name in other if name not in mine)]:
        one, two = mine.get(name), other.get(name)
        if name != "properties" and (one is None or two is None or one[0] != two[0]):
            found.append({"field": name, "master": one and one[1], "slave": two and two[1]})
    if mine["properties"][0] != other["properties"][0]:
        found += _properties(mine["properties"], other["properties"])
    return found


def _texts(layout: Record, data: bytes) -> dict[str, tuple[bytes, str]]:
    """Return bytes and text of every field, by RocketMQ's name; the fields lie where ``layout`` has them."""
    found = {}
    for name, at, size in layout.fields():
        raw = data[at : at + size]
        found[name] = raw, _value_text(name, raw)
    return found


def _value_text(name: str, raw: bytes) -> str:
    if name == "body":
        known = f"{len(raw)} bytes, crc {body_crc(raw)}"
        return f"{known}: {shortened(raw)}" if raw.isascii() and raw.decode().isprintable() else known
    if name == "magicCode":
        return f"0x{raw.hex()}"
    if name in ("bornHost", "storeHost") and len(raw) in (8, 20):
        host = ipaddress.ip_address(raw[:-4])
        return f"{f'[{host}]' if host.version == 6 else host}:{int.from_bytes(raw[-4:], 'big', signed=True)}"
    if name in ("topic", "properties"):
        return shortened(raw)
    return str(int.from_bytes(raw, "big", signed=True))


def _properties(mine: tuple[bytes, str], other: tuple[bytes, str]) -> Iterator[FieldValues]:
    """Yield the properties that differ; all of them as one where their lists do not tell (order, a stray byte)."""
    one, two = _pairs(mine[0]), _pairs(other[0])
    names = [name for name in dict.fromkeys([*one, *two]) if one.get(name) != two.get(name)]
    if not names:
        yield {"field": "properties", "master": mine[1], "slave": other[1]}
        return
    for name in names[:MAX_PROPERTIES]:
        values = [None if name not in side else shortened(side[name]) for side in (one, two)]
        yield {"field": f"property {shortened(name)}", "master": values[0], "slave": values[1]}
    if len(names) > MAX_PROPERTIES:
        left_out = len(names) - MAX_PROPERTIES
        yield {"field": f"and {left_out} more properties", "master": None, "slave": None}


def _pairs(raw: bytes) -> dict[bytes, bytes]:
    pieces = (piece.partition(b"\x01") for piece in raw.split(b"\x02"))
    return {key: value for key, _, value in pieces if key or value}


def shortened(raw: bytes) -> str:
    """Return bytes as one line of text, with what cannot be printed escaped."""
    text = raw.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"


def _crc_fault(record: Record | None) -> Iterator[Fault]:
    """Yield what a scan with CRCs would have said of a slave's record; equal records were checked on the master."""
    if record is None or record.crc_holds():
        return
    expected, actual = record.number("bodyCRC"), body_crc(record.body)
    yield record_fault("CL-CRC", SLAVE, record, "body", record.body_at, str(expected), str(actual))


def folded(differences: Sequence[Fault]) -> Iterator[Fault]:
    """Yield differences with long stretches of adjacent ones of a kind as one that counts them."""
    group: list[Fault] = []
    for one in differences:
        if group and (one.invariant != group[-1].invariant or one.phy_from != group[-1].phy_to):
            yield from _fold(group)
            group = []
        group.append(one)
    yield from _fold(group)


def of_the_first(one: Fault) -> str:
    """Return what is said of the first record of a range, whether ``one`` is that record or a range itself."""
    _, mark, text = one.detail.partition(_OF_THE_FIRST)
    return _OF_THE_FIRST + (text if mark else one.detail)


def _fold(group: Sequence[Fault]) -> Iterable[Fault]:
    count = sum(one.count for one in group)
    if len(group) < 2 or (count <= MAX_SINGLE_DIFFERENCES and group[0].invariant == "RP-DIFF"):
        return group
    blames = {one.blame for one in group}
    same_queue = len({(one.topic, one.queue_id) for one in group}) == 1
    return [
        attrs.evolve(
            group[0],
            phy_to=group[-1].phy_to,
            count=count,
            topic=group[0].topic if same_queue else None,
            queue_id=group[0].queue_id if same_queue else None,
            queue_offset_from=group[0].queue_offset_from if same_queue else None,
            queue_offset_to=group[-1].queue_offset_to if same_queue else None,
            sample_msg_ids=[name for one in group for name in one.sample_msg_ids][:MAX_SAMPLES],
            blame=blames.pop() if len(blames) == 1 else UNDECIDED,
            detail=f"{count} records in a row; {of_the_first(group[0])}",
        )
    ]


DRILL = Work("drill", drill, lambda task: 2 * (task.end - task.begin), remembered=Drilled)
