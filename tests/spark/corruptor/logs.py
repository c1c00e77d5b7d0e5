"""Damage to pages, segments and ends of logs."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from rmq_audit.driver.findings import Finding

from rmq.store import layout
from rmq.wire import record
from tests.spark.corruptor.classes import Expected, NotHere, Plan, defect, differs, is_plain, some_message
from tests.spark.corruptor.specimen import Specimen, Stored


def _damaged_page(pair: Specimen, chance: random.Random, side: str, data: bytes) -> Plan:
    """Overwrite 4 KiB from within a body on: the record that begins before it is changed, those inside are missing."""
    one = some_message(pair, chance, least_body=120)
    begin = one.body_at + 10
    segment = begin - begin % pair.segment_bytes
    end = min(begin + len(data), max(other.phy for other in pair.stored if other.phy < segment + pair.segment_bytes))
    # a record of which only the first bytes are hit counts as changed, not as missing: end before it
    cut = next((other for other in pair.stored if end - 8 < other.phy < end), None)
    end = end if cut is None else cut.phy
    if end < one.phy + one.size:
        raise NotHere("a record with others behind it in its segment")
    pair.write(getattr(pair, side), begin, data[: end - begin])
    inside = [other for other in pair.stored if begin <= other.phy < end]
    expected = [Expected(invariant="RP-DIFF", phy=one.phy, blame=side, message=one)]
    if inside:
        invariant = "RP-MISSING" if side == "slave" else "RP-EXTRA"
        expected.append(Expected(invariant=invariant, phy=inside[0].phy, blame=side, count=len(inside)))
    return Plan(expected)


@defect("DIFFERENT")
def zeroed_page_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    return _damaged_page(pair, chance, "slave", bytes(4096))


@defect("DIFFERENT")
def zeroed_page_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    return _damaged_page(pair, chance, "master", bytes(4096))


@defect("DIFFERENT")
def random_page_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    return _damaged_page(pair, chance, "slave", chance.randbytes(4096))


@defect("DIFFERENT")
def stale_page_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """A page of another place of the log, as a disk that lost a write may return it: full of records that are whole."""
    other = chance.choice(pair.segments())
    return _damaged_page(pair, chance, "slave", pair.read(pair.slave, other + 512, 4096))


def _middle_segment(pair: Specimen, chance: random.Random) -> int:
    """Return a segment with others before and after it: without the first one a log has only begun later."""
    return chance.choice(pair.segments()[1:-1])


@defect("DIFFERENT")
def missing_segment_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    os.remove(pair.segment(pair.slave, start))
    return Plan([Expected(invariant="CL-GAP", replica="slave", phy=start)])


@defect("DIFFERENT")
def missing_segment_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    os.remove(pair.segment(pair.master, start))
    return Plan([Expected(invariant="CL-GAP", replica="master", phy=start)])


@defect("DIFFERENT")
def truncated_segment_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    inside = [one for one in pair.stored if start + 5000 < one.phy < start + pair.segment_bytes]
    one = chance.choice(inside)
    os.truncate(pair.segment(pair.slave, start), one.phy - start + 50)
    return Plan([Expected(invariant="CL-GAP", replica="slave", phy=one.phy)])


@defect("DIFFERENT")
def truncated_segment_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    inside = [one for one in pair.stored if start + 5000 < one.phy < start + pair.segment_bytes]
    one = chance.choice(inside)
    os.truncate(pair.segment(pair.master, start), one.phy - start + 50)
    return Plan([Expected(invariant="CL-GAP", replica="master", phy=one.phy)])


@defect("DIFFERENT")
def swapped_segments_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """Two files under each other's name: every record of both states another place."""
    first = _middle_segment(pair, chance)
    second = chance.choice([start for start in pair.segments()[:-1] if start != first])
    paths = [pair.segment(pair.slave, start) for start in (first, second)]
    data = [path.read_bytes() for path in paths]
    for path, other in zip(paths, reversed(data), strict=True):
        path.write_bytes(other)

    def there(found: Finding) -> bool:
        place = found.phy_from
        if found.blame == "master":
            return False
        return place is None or any(s <= place < s + pair.segment_bytes for s in (first, second))

    expected = [Expected(invariant="RP-DIFF|RP-MISSING", phy=start, blame="slave") for start in (first, second)]
    return Plan(expected, tolerated=there)


@defect("DAMAGED")
def segment_of_the_slave_is_too_long(pair: Specimen, chance: random.Random) -> Plan:
    """Bytes behind a segment's size: no broker starts with such a file."""
    start = _middle_segment(pair, chance)
    with open(pair.segment(pair.slave, start), "ab") as file:
        file.write(chance.randbytes(100))
    return Plan([Expected(invariant="ST-FILE", replica="slave", phy=start + pair.segment_bytes)])


@defect("INCOMPLETE")
def segment_cannot_be_read(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    path = pair.segment(pair.slave, start)
    os.remove(path)
    path.mkdir()
    return Plan([Expected(invariant="AU-COVER", replica="slave", phy=start)])


@defect("INCOMPLETE")
def segment_of_the_master_is_a_dead_link(pair: Specimen, chance: random.Random) -> Plan:
    start = _middle_segment(pair, chance)
    path = pair.segment(pair.master, start)
    os.remove(path)
    path.symlink_to("nowhere")
    return Plan([Expected(invariant="AU-COVER", replica="master", phy=start)])


# ends


def _queues_from(pair: Specimen, phy: int) -> set[tuple[str, int]]:
    return {one.queue for one in pair.stored if one.phy >= phy and one.owned}


def _lost_end(pair: Specimen, phy: int, *more: Expected) -> Plan:
    """The queues tell that the log once went on."""
    dangling = [Expected(invariant="CQ-DANGLING", replica="slave", topic=topic) for topic, _ in _queues_from(pair, phy)]
    return Plan([Expected(invariant="RP-LAG"), *more, *dangling])


@defect("LAGGING")
def slave_behind(pair: Specimen, chance: random.Random) -> Plan:
    middle = pair.stored[len(pair.stored) // 3 : -20]
    pair.cut(pair.slave, chance.choice(middle).phy)
    # a log that ends behind a BLANK ends where its segment does
    return Plan([Expected(invariant="RP-LAG")])


@defect("LAGGING")
def slave_ends_in_half_a_record(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.cut(pair.slave, one.phy)
    half = pair.read(pair.master, one.phy, one.size)[: chance.randrange(40, one.size - 8)]
    pair.write(pair.slave, one.phy, half)
    return Plan(
        [Expected(invariant="CL-TAIL", replica="slave", phy=one.phy), Expected(invariant="RP-LAG", phy=one.phy)]
    )


@defect("AHEAD")
def slave_ahead(pair: Specimen, chance: random.Random) -> Plan:
    pair.cut(pair.master, chance.choice(pair.stored[-20:-3]).phy)
    # what was consumed on the slave's side of the end may lie beyond the master's
    return Plan([Expected(invariant="RP-AHEAD")])


@defect("DIVERGED")
def split_brain(pair: Specimen, chance: random.Random) -> Plan:
    """From one message on the two sides took different ones."""
    plain = [one for one in pair.stored[len(pair.stored) // 3 : -40] if is_plain(one)]
    fork = chance.choice(plain)
    pair.cut(pair.slave, fork.phy)
    other = _continue_from(pair, fork)
    offset = fork.queue_offset
    while other.end < pair.end - 1000:
        body = chance.randbytes(chance.randrange(300, 900))
        other.append([other.slave], fork.queue, body, queue_offset=offset)
        offset += 1
    return Plan([Expected(invariant="RP-DIVERGE", phy=fork.phy)], tolerated=lambda found: found.invariant in ENDS)


#: what two histories of different length say besides
ENDS = ("RP-LAG", "RP-AHEAD", "CO-AHEAD")


def _continue_from(pair: Specimen, fork: Stored) -> Specimen:
    """Return the pair as it looks to a slave that goes on from the fork by itself."""
    other = Specimen(pair.master, pair.slave)
    other.stored = [one for one in pair.stored if one.phy < fork.phy]
    other.end = fork.phy
    return other


@defect("DAMAGED")
def log_of_the_slave_lost_its_end(pair: Specimen, chance: random.Random) -> Plan:
    """Zeros over the last records look like a lag; the consume queues know better."""
    segment = pair.segments()[-1]
    ones = [one for one in pair.stored if one.phy >= segment and one.owned]
    if not ones:
        raise NotHere("a message with a unit in the last segment")
    one = chance.choice(ones[-6:])
    pair.write(pair.slave, one.phy, bytes(pair.end - one.phy))
    return _lost_end(pair, one.phy)


@defect("DAMAGED")
def missing_last_segment_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    start = pair.segments()[-1]
    for name in os.listdir(pair.slave / layout.COMMIT_LOG_DIR):
        if int(name) >= start:
            os.remove(pair.slave / layout.COMMIT_LOG_DIR / name)
    if not _queues_from(pair, start):
        raise NotHere("a message with a unit in the last segment")
    return _lost_end(pair, start)


@defect("DAMAGED")
def truncated_last_segment_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """The end of the log is cut off with the file, in the middle of a record: not a lag, a short file."""
    segment = pair.segments()[-1]
    ones = [one for one in pair.stored if one.phy >= segment and is_plain(one)]
    if not ones:
        raise NotHere("a plain message in the last segment")
    one = chance.choice(ones[-5:])
    for name in os.listdir(pair.slave / layout.COMMIT_LOG_DIR):
        if int(name) > segment:
            os.remove(pair.slave / layout.COMMIT_LOG_DIR / name)
    os.truncate(pair.segment(pair.slave, one.phy), one.phy - segment + 50)
    return _lost_end(pair, one.phy, Expected(invariant="CL-GAP", replica="slave", phy=one.phy))


@defect("CONSISTENT")
def old_records_behind_the_end_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    """Valid in every way, and older than the log's last one: what a truncation leaves, no part of the log."""
    at = pair.end + 700
    if pair.segment_bytes - pair.end % pair.segment_bytes < 3000:
        raise NotHere("room after the end")
    for number in range(5):
        raw = record.encode_record(
            topic=pair.stored[-1].topic.encode(),
            queue_id=0,
            body=b"old" * 20,
            properties=b"UNIQ_KEY\x01OLD",
            born_timestamp=1,
            store_timestamp=1_700_000_000_000 + number,
            born_host=(bytes(4), 1),
            store_host=(bytes(4), 1),
            queue_offset=number,
            phy_offset=at,
        )
        pair.write(pair.master, at, raw)
        at += len(raw)
    return Plan([Expected(invariant="CL-STALE", replica="master", count=5)])


# BLANKs


@defect("DIFFERENT")
def blank_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    at = pair.blank_behind(chance.choice(pair.segments()[:-1]))
    pair.flip(pair.slave, at + 3)
    return Plan([Expected(invariant="RP-DIFF", phy=at)])


@defect("DAMAGED")
def blank_of_both_alike(pair: Specimen, chance: random.Random) -> Plan:
    """A BLANK whose size does not reach the end of its segment."""
    at = pair.blank_behind(chance.choice(pair.segments()[:-1]))
    for root in pair.roots:
        pair.flip(root, at + 3)
    return Plan([Expected(invariant="CL-FRAME|CL-BLANK", replica="both")])


@defect("DAMAGED")
def segment_without_blank_on_both(pair: Specimen, chance: random.Random) -> Plan:
    """The last record of a segment reaches to its very end, where 8 bytes must be left."""
    start = _middle_segment(pair, chance)
    last = max((one for one in pair.stored if one.phy < start + pair.segment_bytes), key=lambda one: one.phy)
    if not is_plain(last):
        raise NotHere("a plain message at the end of a segment")
    old = record.decode_record(pair.read(pair.master, last.phy, last.size))
    body = old.body + bytes(start + pair.segment_bytes - last.phy - last.size)
    raw = record.encode_record(
        topic=last.topic.encode(),
        queue_id=old.queue_id,
        body=body,
        properties=old.properties,
        born_timestamp=old.born_timestamp,
        store_timestamp=old.store_timestamp,
        born_host=old.born_host,
        store_host=old.store_host,
        queue_offset=old.queue_offset,
        phy_offset=last.phy,
        sys_flag=old.sys_flag,
    )
    for root in pair.roots:
        tags = layout.CQ_UNIT.unpack(_unit(pair, root, last))[2]
        pair.write(root, last.phy, raw)
        pair.write_unit(root, last.queue, last.queue_offset, layout.CQ_UNIT.pack(last.phy, len(raw), tags))
    return Plan([Expected(invariant="CL-BLANK", replica="both", phy=last.phy)])


def _unit(pair: Specimen, root: Path, one: Stored) -> bytes:
    path, at = pair.unit_at(root, one.queue, one.queue_offset)
    return path.read_bytes()[at : at + layout.CQ_UNIT_BYTES]


# everything


@defect("DIFFERENT")
def several_at_once(pair: Specimen, chance: random.Random) -> Plan:
    """Damage in different records does not hide each other."""
    first, second, third, fourth = _apart(pair, chance, 4)
    pair.flip(pair.slave, first.body_at)
    pair.flip(pair.master, second.body_at)
    pair.flip(pair.slave, third.phy + 5, 16)
    pair.write_unit(pair.slave, fourth.queue, fourth.queue_offset, layout.CQ_UNIT.pack(fourth.phy, fourth.size + 1, 0))
    return Plan(
        [
            differs(first, "body", "slave"),
            differs(second, "body", "master"),
            differs(third, "magicCode", "slave"),
            Expected(invariant="CQ-MISMATCH", replica="slave", phy=fourth.phy, count=1),
        ]
    )


def _apart(pair: Specimen, chance: random.Random, count: int) -> list[Stored]:
    chosen: list[Stored] = []
    while len(chosen) < count:
        one = some_message(pair, chance)
        if all(abs(one.phy - other.phy) > 2000 and one.queue != other.queue for other in chosen):
            chosen.append(one)
    return chosen


@defect("DIFFERENT")
def emptied_consume_queues_and_a_body_bit(pair: Specimen, chance: random.Random) -> Plan:
    """A slave without its consume queues is told from one with them, and its log is still compared."""
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at)
    shutil.rmtree(pair.slave / layout.CONSUME_QUEUE_DIR)
    return Plan([differs(one, "body", "slave")], tolerated=lambda found: found.replica == "slave")
