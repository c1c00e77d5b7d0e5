"""Defects to plant in a pair, each with what the audit must say of it: the suite that proves that nothing is missed."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs

from rmq.store import layout
from rmq.wire import record
from tests.spark.synthetic import HOST, SEGMENT_BYTES, MadeStore, Pair, Stored


@attrs.frozen(kw_only=True)
class Expected:
    """
    One finding that must be there and be no consequence of another; ``message`` also binds topic, queue and offset.
    """

    invariant: str
    phy: int | None = None
    blame: str | None = None
    replica: str | None = None
    field: str | None = None
    message: Stored | None = None
    count: int | None = None
    topic: str | None = None
    queue_offset: int | None = None


@attrs.frozen
class Defect:
    """A named way to damage a pair; ``plant`` damages it and returns what must be found, and nothing else may be."""

    name: str
    verdict: str
    exit_status: int
    plant: Callable[[Pair, random.Random], list[Expected]]


DEFECTS: list[Defect] = []


def defect(verdict: str, exit_status: int) -> Callable[[Callable[[Pair, random.Random], list[Expected]]], None]:
    def add(plant: Callable[[Pair, random.Random], list[Expected]]) -> None:
        DEFECTS.append(Defect(plant.__name__, verdict, exit_status, plant))

    return add


def some_message(pair: Pair, chance: random.Random, least_body: int = 20) -> Stored:
    """Return a plain message in the middle of the log that owns a unit and has another of its queue on both sides."""
    plain = [
        one
        for one in pair.made.stored[30:-30]
        if one.body_size >= least_body and not one.topic.endswith("-long") and one.body_size < 700 and owned(pair, one)
    ]
    return chance.choice(plain)


def owned(pair: Pair, one: Stored) -> bool:
    """Whether the message has a unit, and its queue goes on before and behind it."""
    unit = pair.made.units.get((one.topic, one.queue_id), {}).get(one.queue_offset)
    last = pair.made.next_offset[one.topic, one.queue_id] - 1
    return unit is not None and layout.CQ_UNIT.unpack(unit)[0] == one.phy and 0 < one.queue_offset < last


def changed(one: Stored, field: str, blame: str) -> Expected:
    return Expected(invariant="RP-DIFF", phy=one.phy, blame=blame, field=field, message=one)


@defect("DIFFERENT", 2)
def body_bit_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at + chance.randrange(one.body_size))
    return [changed(one, "body", "slave")]


@defect("DIFFERENT", 2)
def body_bit_of_the_master(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.body_at + chance.randrange(one.body_size))
    return [changed(one, "body", "master")]


@defect("DIFFERENT", 2)
def body_bits_of_both_sides(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.body_at)
    pair.flip(pair.slave, one.body_at + 1)
    return [changed(one, "body", "both")]


@defect("DIFFERENT", 2)
def body_crc_field_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.BODY_CRC_AT + 3)
    return [changed(one, "bodyCRC", "slave")]


@defect("DIFFERENT", 2)
def store_timestamp_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + 63)
    return [changed(one, "storeTimestamp", "undecided")]


@defect("DIFFERENT", 2)
def queue_offset_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.QUEUE_OFFSET_AT + 5)
    return [changed(one, "queueOffset", "slave")]


@defect("DIFFERENT", 2)
def queue_id_of_the_master(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + record.QUEUE_ID_AT + 2)
    return [attrs.evolve(changed(one, "queueId", "master"), message=None)]


@defect("DIFFERENT", 2)
def property_bit_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + one.size - 2)
    return [changed(one, "properties", "undecided")]


@defect("DIFFERENT", 2)
def hole_in_properties_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.write(pair.slave, one.phy + one.size - 9, bytes(9))
    return [changed(one, "properties", "slave")]


@defect("DIFFERENT", 2)
def topic_bit_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at + one.body_size + 3)
    return [changed(one, "topic", "slave")]


@defect("DIFFERENT", 2)
def magic_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + 5, 16)
    return [changed(one, "magicCode", "slave")]


@defect("DIFFERENT", 2)
def magic_of_the_master(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + 5, 16)
    return [changed(one, "magicCode", "master")]


@defect("DIFFERENT", 2)
def total_size_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + chance.randrange(1, 4), 1 << chance.randrange(7))
    return [changed(one, "totalSize", "slave")]


@defect("DIFFERENT", 2)
def body_length_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at - 1)
    return [changed(one, "bodyLength", "slave")]


@defect("DIFFERENT", 2)
def physical_offset_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.PHY_OFFSET_AT + 6)
    return [changed(one, "physicalOffset", "slave")]


@defect("DIFFERENT", 2)
def first_record_of_a_segment_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = next(one for one in pair.made.stored if one.phy == 2 * SEGMENT_BYTES)
    pair.flip(pair.slave, one.phy + 4)
    return [changed(one, "magicCode", "slave")]


@defect("DIFFERENT", 2)
def last_record_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    """The slave seems to end one record early, but the bytes behind are that record with a wrong magic, not a lag."""
    one = pair.made.stored[-1]
    pair.flip(pair.slave, one.phy + 4)
    lag = Expected(invariant="RP-LAG", phy=one.phy)
    dangling = Expected(invariant="CQ-DANGLING", replica="slave", phy=one.phy)
    return [changed(one, "magicCode", "slave"), lag, dangling]


@defect("DIFFERENT", 2)
def zeroed_page_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    """One zeroed page: a record that begins before it is changed, those that begin inside it are missing."""
    one = some_message(pair, chance, least_body=200)
    page = one.body_at + 10
    full = page - page % SEGMENT_BYTES + SEGMENT_BYTES
    end = min(page + 4096, max(other.phy for other in pair.made.stored if other.phy < full))
    cut = next((other for other in pair.made.stored if end - 8 < other.phy < end), None)
    end = end if cut is None else cut.phy
    pair.write(pair.slave, page, bytes(end - page))
    inside = [other for other in pair.made.stored if page <= other.phy < end]
    expected = [attrs.evolve(changed(one, "body", "slave"), count=1)]
    if inside:
        expected.append(Expected(invariant="RP-MISSING", phy=inside[0].phy, blame="slave", count=len(inside)))
    return expected


@defect("DIFFERENT", 2)
def missing_segment_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    start = SEGMENT_BYTES * chance.randrange(1, 4)
    os.remove(pair.segment(pair.slave, start))
    return [Expected(invariant="CL-GAP", replica="slave", phy=start)]


@defect("DIFFERENT", 2)
def missing_segment_of_the_master(pair: Pair, chance: random.Random) -> list[Expected]:
    start = SEGMENT_BYTES * chance.randrange(1, 4)
    os.remove(pair.segment(pair.master, start))
    return [Expected(invariant="CL-GAP", replica="master", phy=start)]


@defect("DIFFERENT", 2)
def truncated_segment_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    if one.phy > 4 * SEGMENT_BYTES:
        one = next(other for other in pair.made.stored if other.phy > 2 * SEGMENT_BYTES + 5000)
    os.truncate(pair.segment(pair.slave, one.phy), (one.phy + 50) % SEGMENT_BYTES)
    return [Expected(invariant="CL-GAP", replica="slave", phy=one.phy)]


@defect("DAMAGED", 2)
def truncated_last_segment_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    """The end of the log is cut off with the file, in the middle of a record: not a lag, a short file."""
    one = pair.made.stored[-5]
    end = one.phy - one.phy % SEGMENT_BYTES + SEGMENT_BYTES
    os.remove(pair.segment(pair.slave, end))
    os.truncate(pair.segment(pair.slave, one.phy), (one.phy + 50) % SEGMENT_BYTES)
    lag = Expected(invariant="RP-LAG", phy=one.phy)
    dangling = Expected(invariant="CQ-DANGLING", replica="slave")
    owners = {
        (other.topic, other.queue_id)
        for other in pair.made.stored[-5:]
        if other.queue_offset or owned_first(pair, other)
    }
    return [Expected(invariant="CL-GAP", replica="slave", phy=one.phy), lag, *[dangling] * len(owners)]


def owned_first(pair: Pair, one: Stored) -> bool:
    unit = pair.made.units.get((one.topic, one.queue_id), {}).get(one.queue_offset)
    return unit is not None and layout.CQ_UNIT.unpack(unit)[0] == one.phy


@defect("LAGGING", 1)
def slave_behind(pair: Pair, chance: random.Random) -> list[Expected]:
    one = chance.choice(pair.made.stored[100:-20])
    pair.cut(pair.slave, one.phy)
    # a log that ends behind a BLANK ends where its segment does
    return [Expected(invariant="RP-LAG")]


@defect("LAGGING", 1)
def slave_ends_in_half_a_record(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.cut(pair.slave, one.phy)
    half = pair.read(pair.master, one.phy, one.size)[: chance.randrange(40, one.size - 8)]
    pair.write(pair.slave, one.phy, half)
    return [Expected(invariant="CL-TAIL", replica="slave", phy=one.phy), Expected(invariant="RP-LAG", phy=one.phy)]


@defect("AHEAD", 2)
def slave_ahead(pair: Pair, chance: random.Random) -> list[Expected]:
    one = chance.choice(pair.made.stored[-20:-3])
    pair.cut(pair.master, one.phy)
    return [Expected(invariant="RP-AHEAD")]


@defect("DIVERGED", 2)
def split_brain(pair: Pair, chance: random.Random) -> list[Expected]:
    """From one message on the two sides took different ones."""
    number = chance.randrange(200, len(pair.made.stored) - 40)
    fork = pair.made.stored[number]
    other = MadeStore(log=bytearray(pair.made.log[: fork.phy]), now_ms=pair.made.now_ms + 99_000)
    other.stored = pair.made.stored[:number]
    for one in pair.made.stored[:number]:
        unit = pair.made.units.get((one.topic, one.queue_id), {}).get(one.queue_offset)
        if unit is not None and layout.CQ_UNIT.unpack(unit)[0] == one.phy:
            other.units.setdefault((one.topic, one.queue_id), {})[one.queue_offset] = unit
            other.next_offset[one.topic, one.queue_id] = one.queue_offset + 1
    for _ in range(60):
        other.put(fork.topic, fork.queue_id, chance.randbytes(chance.randrange(300, 900)))
    shutil.rmtree(pair.slave)
    other.write(pair.slave)
    return [Expected(invariant="RP-DIVERGE", phy=fork.phy)]


@defect("DAMAGED", 2)
def offset_given_twice(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.made.put(one.topic, one.queue_id, b"the second owner of an offset", queue_offset=one.queue_offset)
    rewrite(pair)
    return [
        Expected(invariant="QO-DUP", replica="both"),
        Expected(invariant="CQ-MISMATCH", replica="both", phy=one.phy),
    ]


@defect("DAMAGED", 2)
def offset_left_out(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    queue = one.topic, one.queue_id
    pair.made.put(*queue, b"one offset is missing before this", queue_offset=pair.made.next_offset[queue] + 1)
    rewrite(pair)
    return [Expected(invariant="QO-GAP", replica="both", count=1)]


@defect("DAMAGED", 2)
def body_bit_copied_to_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    for root in (pair.master, pair.slave):
        pair.flip(root, one.body_at)
    return [Expected(invariant="CL-CRC", replica="both", phy=one.phy, message=one)]


@defect("DAMAGED", 2)
def magic_damaged_on_both_sides_alike(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    for root in (pair.master, pair.slave):
        pair.flip(root, one.phy + 5, 16)
    return [Expected(invariant="CL-FRAME", replica="both", phy=one.phy)]


@defect("DIFFERENT", 2)
def magic_damaged_on_both_sides_differently(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + 5, 16)
    pair.flip(pair.slave, one.phy + 5, 32)
    return [Expected(invariant="RP-DIFF", blame="both", phy=one.phy)]


@defect("DAMAGED", 2)
def unit_points_elsewhere(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    other = some_message(pair, chance)
    while other.phy == one.phy:
        other = some_message(pair, chance)
    pair.write_unit(pair.slave, one, layout.CQ_UNIT.pack(other.phy, other.size, 0))
    return [Expected(invariant="CQ-MISMATCH", replica="slave", phy=one.phy, count=1)]


@defect("DAMAGED", 2)
def unit_is_lost(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.write_unit(pair.slave, one, bytes(layout.CQ_UNIT_BYTES))
    return [Expected(invariant="CQ-MISMATCH", replica="slave", phy=one.phy, count=1)]


@defect("CONSISTENT", 1)
def queue_is_behind(pair: Pair, chance: random.Random) -> list[Expected]:
    one = next(one for one in reversed(pair.made.stored) if owned_first(pair, one))
    pair.write_unit(pair.slave, one, bytes(layout.CQ_UNIT_BYTES))
    return [Expected(invariant="CQ-BEHIND", replica="slave", phy=one.phy, count=1)]


@defect("DAMAGED", 2)
def unit_has_another_tag(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    pair.write_unit(pair.slave, one, layout.CQ_UNIT.pack(one.phy, one.size, record.tags_code("another")))
    return [Expected(invariant="CQ-TAG", replica="slave", phy=one.phy, count=1)]


@defect("CONSISTENT", 1)
def clock_of_the_master_went_back(pair: Pair, chance: random.Random) -> list[Expected]:
    first = some_message(pair, chance)
    for one in pair.made.stored:
        if one.phy >= first.phy:
            at = one.phy + (56 if one.body_at - one.phy == record.HEADS[0].size else 68)
            for root in (pair.master, pair.slave):
                past = int.from_bytes(pair.read(root, at, 8), "big") - 5000
                pair.write(root, at, past.to_bytes(8, "big"))
    before = max((one for one in pair.made.stored if one.phy < first.phy), key=lambda one: one.phy)
    return [Expected(invariant="CL-TIME", replica="both", phy=before.phy, count=1)]


@defect("CONSISTENT", 1)
def index_entry_points_into_a_record(pair: Pair, chance: random.Random) -> list[Expected]:
    pair.write_entry(pair.slave, chance.randrange(1, 600), 4, (pair.made.stored[40].phy + 1).to_bytes(8, "big"))
    return [Expected(invariant="IX-DANGLING", replica="slave", phy=pair.made.stored[40].phy + 1, count=1)]


@defect("CONSISTENT", 1)
def index_entry_points_at_another_record(pair: Pair, chance: random.Random) -> list[Expected]:
    pair.write_entry(pair.slave, chance.randrange(1, 100), 4, pair.made.stored[400].phy.to_bytes(8, "big"))
    return [Expected(invariant="IX-HASH", replica="slave", phy=pair.made.stored[400].phy, count=1)]


@defect("CONSISTENT", 1)
def index_chain_is_cut(pair: Pair, chance: random.Random) -> list[Expected]:
    number = chance.randrange(300, 600)
    pair.write_entry(pair.slave, number, 16, (number + 1).to_bytes(4, "big"))
    return [Expected(invariant="IX-CHAIN", replica="slave", phy=pair.made.keys[number - 1][1], count=1)]


@defect("CONSISTENT", 1)
def consumer_is_ahead_of_its_queue(pair: Pair, chance: random.Random) -> list[Expected]:
    one = some_message(pair, chance)
    end = pair.made.next_offset[one.topic, one.queue_id]
    pair.made.next_offset[one.topic, one.queue_id] = end + 9
    rewrite_config(pair)
    return [Expected(invariant="CO-AHEAD", replica="both", topic=one.topic, queue_offset=end + 9)]


@defect("DAMAGED", 2)
def log_of_the_slave_lost_its_end(pair: Pair, chance: random.Random) -> list[Expected]:
    """Zeros over the last records look like a lag; the consume queues know better."""
    ones = [
        one for one in pair.made.stored[-6:] if one.phy // SEGMENT_BYTES == pair.made.stored[-1].phy // SEGMENT_BYTES
    ]
    pair.write(pair.slave, ones[0].phy, bytes(pair.made.end - ones[0].phy))
    queues = {(one.topic, one.queue_id) for one in ones if owned_first(pair, one)}
    return [Expected(invariant="RP-LAG"), *[Expected(invariant="CQ-DANGLING", replica="slave")] * len(queues)]


@defect("DIFFERENT", 2)
def blank_of_the_slave(pair: Pair, chance: random.Random) -> list[Expected]:
    last = max((one for one in pair.made.stored if one.phy < SEGMENT_BYTES), key=lambda one: one.phy)
    pair.flip(pair.slave, last.phy + last.size + 3)
    return [Expected(invariant="RP-DIFF", phy=last.phy + last.size)]


@defect("INCOMPLETE", 3)
def segment_cannot_be_read(pair: Pair, chance: random.Random) -> list[Expected]:
    path = pair.segment(pair.slave, SEGMENT_BYTES)
    os.remove(path)
    path.mkdir()
    return [Expected(invariant="AU-COVER", replica="slave", phy=SEGMENT_BYTES)]


@defect("INCOMPLETE", 3)
def segment_of_the_master_is_a_dead_link(pair: Pair, chance: random.Random) -> list[Expected]:
    path = pair.segment(pair.master, 0)
    os.remove(path)
    path.symlink_to("nowhere")
    return [Expected(invariant="AU-COVER", replica="master", phy=0)]


def rewrite(pair: Pair) -> None:
    """Write the made store again to both sides."""
    for root in (pair.master, pair.slave):
        shutil.rmtree(root)
        pair.made.write(root)


def rewrite_config(pair: Pair) -> None:
    """Write the configuration files of the made store again to both sides."""
    for root in (pair.master, pair.slave):
        shutil.rmtree(root / layout.CONFIG_DIR)
        pair.made.write_offsets(root / layout.CONFIG_DIR)


def plant_junk_behind_blanks(pair: Pair, root: Path, chance: random.Random) -> None:
    """What follows the 8 bytes of a BLANK may be anything, and differ between the sides."""
    for full in range(SEGMENT_BYTES, pair.made.end, SEGMENT_BYTES):
        last = max((one for one in pair.made.stored if one.phy < full), key=lambda one: one.phy)
        begin = last.phy + last.size + record.BLANK_BYTES
        if begin < full:
            pair.write(root, begin, chance.randbytes(full - begin))


def plant_stale_records(pair: Pair, root: Path) -> None:
    """
    Old records behind the end, as a truncation leaves them: valid in every way, and older than the log's last one.
    """
    at = pair.made.end + 700
    for number in range(5):
        raw = record.encode_record(
            topic=b"topic-0",
            queue_id=0,
            body=b"old" * 20,
            properties=b"UNIQ_KEY\x01OLD",
            born_timestamp=1,
            store_timestamp=1_780_000_000_000 + number,
            born_host=HOST,
            store_host=HOST,
            queue_offset=3 + number,
            phy_offset=at,
        )
        pair.write(root, at, raw)
        at += len(raw)
