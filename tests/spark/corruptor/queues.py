"""Damage to queue offsets and consume queues."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from rmq.store import layout
from rmq.wire import record
from tests.spark.corruptor.classes import Expected, NotHere, Plan, defect, is_plain, some_message
from tests.spark.corruptor.specimen import Specimen, Stored, flip, overwrite

EMPTY = bytes(layout.CQ_UNIT_BYTES)


@defect("DAMAGED")
def offset_given_twice(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.append(pair.roots, one.queue, b"the second owner of an offset", queue_offset=one.queue_offset)
    return Plan(
        [
            Expected(invariant="QO-DUP", replica="both", topic=one.topic, queue_offset=one.queue_offset),
            Expected(invariant="CQ-MISMATCH", replica="both", phy=one.phy),
        ]
    )


@defect("DAMAGED")
def offset_left_out(pair: Specimen, chance: random.Random) -> Plan:
    queue = some_message(pair, chance).queue
    missing = pair.next_offset[queue]
    pair.append(pair.roots, queue, b"one offset is missing before this", queue_offset=missing + 1)
    return Plan(
        [Expected(invariant="QO-GAP", replica="both", count=1, topic=queue[0], queue_offset=missing)],
        tolerated=lambda found: found.invariant == "CQ-MISMATCH" and found.topic == queue[0],
    )


@defect("CONSISTENT", warns=True)
def queue_begins_again(pair: Specimen, chance: random.Random) -> Plan:
    """A topic deleted and made anew: legal, and worth a word."""
    queue = some_message(pair, chance).queue
    for root in pair.roots:
        shutil.rmtree(root / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1]))
        (root / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1])).mkdir()
        path = root / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1]) / layout.file_name(0)
        path.write_bytes(bytes(100 * layout.CQ_UNIT_BYTES))
    for number in range(3):
        pair.append(pair.roots, queue, b"in a new queue", queue_offset=number)
    return Plan(
        [Expected(invariant="QO-RESTART", replica="both", topic=queue[0])],
        # the offsets of the consumers of the old queue
        tolerated=lambda found: found.invariant == "CO-AHEAD" and found.topic == queue[0],
    )


def _wrong_unit(pair: Specimen, one: Stored, unit: bytes, invariant: str = "CQ-MISMATCH") -> Plan:
    pair.write_unit(pair.slave, one.queue, one.queue_offset, unit)
    return Plan(
        [
            Expected(
                invariant=invariant,
                replica="slave",
                phy=one.phy,
                count=1,
                topic=one.topic,
                queue_offset=one.queue_offset,
            )
        ]
    )


@defect("DAMAGED")
def unit_of_another_queue(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    other = next(other for other in iter(lambda: some_message(pair, chance), None) if other.queue != one.queue)
    return _wrong_unit(pair, one, layout.CQ_UNIT.pack(other.phy, other.size, record.tags_code("T0")))


@defect("DAMAGED")
def unit_of_the_neighbour(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    other = next(
        other for other in pair.stored if other.queue == one.queue and other.queue_offset == one.queue_offset + 1
    )
    return _wrong_unit(pair, one, layout.CQ_UNIT.pack(other.phy, other.size, record.tags_code("T0")))


@defect("DAMAGED")
def unit_points_into_a_record(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    return _wrong_unit(pair, one, layout.CQ_UNIT.pack(one.phy + 4, one.size, record.tags_code("T0")))


@defect("DAMAGED")
def unit_has_another_size(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    return _wrong_unit(pair, one, layout.CQ_UNIT.pack(one.phy, one.size - 1, record.tags_code("T0")))


@defect("DAMAGED")
def unit_is_lost(pair: Specimen, chance: random.Random) -> Plan:
    return _wrong_unit(pair, some_message(pair, chance), EMPTY)


@defect("DAMAGED")
def unit_has_another_tag(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    return _wrong_unit(pair, one, layout.CQ_UNIT.pack(one.phy, one.size, record.tags_code("another")), "CQ-TAG")


@defect("DAMAGED")
def unit_of_the_master_has_another_tag(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    path, at = pair.unit_at(pair.master, one.queue, one.queue_offset)
    overwrite(path, at, layout.CQ_UNIT.pack(one.phy, one.size, 12345))
    return Plan([Expected(invariant="CQ-TAG", replica="master", phy=one.phy, count=1)])


@defect("CONSISTENT", warns=True)
def queue_is_behind(pair: Specimen, chance: random.Random) -> Plan:
    """Nothing that was stored later has a unit: the broker makes it at its start."""
    one = next(one for one in reversed(pair.stored) if one.owned)
    pair.write_unit(pair.slave, one.queue, one.queue_offset, EMPTY)
    return Plan([Expected(invariant="CQ-BEHIND", replica="slave", phy=one.phy, count=1)])


@defect("DAMAGED")
def last_unit_of_a_queue_is_lost(pair: Specimen, chance: random.Random) -> Plan:
    """Another queue holds a later message, so the unit was there once, and no broker makes it again."""
    queue = some_message(pair, chance).queue
    one = next(one for one in reversed(pair.stored) if one.queue == queue and one.owned)
    if one is next(one for one in reversed(pair.stored) if one.owned):
        raise NotHere("a later message of another queue")
    return _wrong_unit(pair, one, EMPTY, "CQ-LOST")


@defect("DAMAGED")
def unit_has_a_bit_in_the_upper_half_of_its_tags_code(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    path, at = pair.unit_at(pair.slave, one.queue, one.queue_offset)
    flip(path, at + 12 + chance.randrange(4), 1 << chance.randrange(8))
    return Plan([Expected(invariant="CQ-TAG", replica="slave", phy=one.phy, count=1)])


@defect("DAMAGED")
def unit_of_a_delayed_message_has_another_time(pair: Specimen, chance: random.Random) -> Plan:
    """It would be delivered at another time, or never."""
    delayed = [one for one in pair.stored if one.topic == record.SCHEDULE_TOPIC and one.owned]
    if not delayed:
        raise NotHere("a delayed message")
    one = chance.choice(delayed)
    path, at = pair.unit_at(pair.slave, one.queue, one.queue_offset)
    flip(path, at + 12 + chance.randrange(8), 1 << chance.randrange(8))
    return Plan([Expected(invariant="CQ-TAG", replica="slave", phy=one.phy, count=1)])


@defect("DAMAGED")
def unit_behind_the_last_record(pair: Specimen, chance: random.Random) -> Plan:
    """Consumers would get a message of another queue there."""
    queue = some_message(pair, chance).queue
    other = next(other for other in iter(lambda: some_message(pair, chance), None) if other.queue != queue)
    at = pair.next_offset[queue]
    pair.write_unit(pair.slave, queue, at, layout.CQ_UNIT.pack(other.phy, other.size, 0))
    return Plan(
        [Expected(invariant="CQ-MISMATCH", replica="slave", topic=queue[0], queue_offset=at, count=1)],
        # the file may have been full
        tolerated=lambda found: found.invariant == "CQ-SIZE",
    )


@defect("DAMAGED")
def unit_in_front_of_the_first_record_is_lost(pair: Specimen, chance: random.Random) -> Plan:
    """Its message was deleted; but a broker that starts takes the queue to end there."""
    begin = min(int(path.name) for path in (pair.slave / layout.COMMIT_LOG_DIR).iterdir())
    living = {one.queue for one in pair.stored if one.owned}
    old: dict[tuple[str, int], list[tuple[Path, int]]] = {}
    for path, at, (phy, _, _) in pair.all_units(pair.slave):
        queue = path.parent.parent.name, int(path.parent.name)
        if phy < begin and queue in living:
            old.setdefault(queue, []).append((path, at))
    if not old:
        raise NotHere("a queue with units of deleted and of living messages")
    queue = chance.choice(sorted(old))
    path, at = chance.choice(old[queue])
    overwrite(path, at, EMPTY)
    number = (int(path.name) + at) // layout.CQ_UNIT_BYTES
    return Plan(
        [Expected(invariant="CQ-MISMATCH", replica="slave", topic=queue[0], queue_offset=number)],
        # a file of which no unit points into the log any more may be one that retention should have deleted
        tolerated=lambda found: (found.invariant, found.topic) == ("CQ-MIN", queue[0]),
    )


@defect("DAMAGED")
def queue_file_is_too_short(pair: Specimen, chance: random.Random) -> Plan:
    """All units are there, yet Apache's broker does not start with a file of another length."""
    queue = some_message(pair, chance).queue
    path = max((pair.slave / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1])).iterdir())
    used = (pair.next_offset[queue] * layout.CQ_UNIT_BYTES) - int(path.name)
    if used >= path.stat().st_size:
        raise NotHere("a file with room behind its units")
    os.truncate(path, used)
    return Plan([Expected(invariant="CQ-SIZE", replica="slave", topic=queue[0], count=1)])


@defect("DAMAGED")
def first_file_of_a_queue_is_missing(pair: Specimen, chance: random.Random) -> Plan:
    """The units of messages that the log still has are gone, while later ones are there."""
    queue = max((one for one in pair.stored if is_plain(one)), key=lambda one: one.queue_offset).queue
    folder = pair.slave / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1])
    paths = sorted(folder.iterdir())
    per_file = paths[0].stat().st_size // layout.CQ_UNIT_BYTES
    lost = [one for one in pair.stored if one.queue == queue and one.queue_offset < per_file and one.owned]
    if len(paths) < 2 or paths[0].name != layout.file_name(0) or not lost:
        raise NotHere("a queue with several files")
    os.remove(paths[0])
    return Plan([Expected(invariant="CQ-MISMATCH", replica="slave", topic=queue[0])])


@defect("DAMAGED")
def queue_is_missing(pair: Specimen, chance: random.Random) -> Plan:
    """All units of a queue are gone, and other queues go on: Apache's broker does not make them again."""
    queue = some_message(pair, chance).queue
    shutil.rmtree(pair.slave / layout.CONSUME_QUEUE_DIR / queue[0] / str(queue[1]))
    return Plan([Expected(invariant="CQ-LOST", replica="slave", topic=queue[0])])


@defect("DAMAGED")
def queue_file_of_odd_length(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    path, _ = pair.unit_at(pair.slave, one.queue, one.queue_offset)
    with open(path, "ab") as file:
        file.write(b"\0" * 7)
    return Plan([Expected(invariant="CQ-SIZE", replica="slave", topic=one.topic, count=1)])


@defect("CONSISTENT", warns=True)
def queue_files_that_retention_forgot(pair: Specimen, chance: random.Random) -> Plan:
    """
    Retention has deleted the begin of the log, and not the slave's queue files that only point there.

    The queue is laid out in files so small that some of them hold nothing else.
    """
    if len(pair.segments()) < 2:
        raise NotHere("a second segment")
    begin = pair.segments()[1]
    for root in pair.roots:
        for path in (root / layout.COMMIT_LOG_DIR).iterdir():
            if int(path.name) < begin:
                path.unlink()
        for path in sorted((root / layout.CONSUME_QUEUE_DIR).glob("*/*/*")):
            if all(phy < begin and size for phy, size, _ in layout.CQ_UNIT.iter_unpack(path.read_bytes())):
                path.unlink()
        (root / "abort").unlink(missing_ok=True)
    folders: dict[Path, list[int]] = {}
    for path, _, (phy, _, _) in pair.all_units(pair.slave):
        folders.setdefault(path.parent, []).append(phy)
    fit = [folder for folder, places in folders.items() if sum(phy < begin for phy in places) > 3 < len(places) - 3]
    fit = [folder for folder in fit if folders[folder][-1] >= begin and _is_dense(folder)]
    if not fit:
        raise NotHere("a queue with units of deleted and of living messages")
    folder = chance.choice(sorted(fit))
    old = sum(phy < begin for phy in folders[folder])
    units = 2 + chance.randrange(old - 2)
    first = int(min(folder.iterdir()).name)
    raw = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
    size = units * layout.CQ_UNIT_BYTES
    for at in range(0, len(folders[folder]) * layout.CQ_UNIT_BYTES, size):
        (folder / layout.file_name(first + at)).write_bytes(raw[at : at + size].ljust(size, b"\0"))
    expected = Expected(
        invariant="CQ-MIN",
        replica="slave",
        topic=folder.parent.name,
        queue_offset=first // layout.CQ_UNIT_BYTES,
        count=old // units,
    )
    return Plan([expected])


def _is_dense(folder: Path) -> bool:
    """Whether the queue's units stand one behind the other from its first file on, without filler."""
    raw = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    sizes = [size for _, size, _ in layout.CQ_UNIT.iter_unpack(raw)]
    used = sum(size > 0 for size in sizes)
    return layout.CQ_FILLER_SIZE not in sizes and all(size > 0 for size in sizes[:used])
