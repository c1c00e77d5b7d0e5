"""Damage to single records, on one side or on both."""

from __future__ import annotations

import random

from rmq.wire import record
from tests.spark.corruptor.classes import (
    Expected,
    NotHere,
    Plan,
    defect,
    differs,
    is_plain,
    some_message,
)
from tests.spark.corruptor.specimen import Specimen, Stored

#: header fields that nothing but the other replica vouches for: (name, a byte of it) in a record with IPv4 addresses
LOOSE_FIELDS = [
    ("flag", 17),
    ("bornTimestamp", 46),
    ("bornHost", 49),
    ("storeTimestamp", 63),
    ("storeHost", 66),
    ("reconsumeTimes", 75),
    ("preparedTransactionOffset", 80),
]


def _loose(field: str, at: int) -> None:
    def plant(pair: Specimen, chance: random.Random) -> Plan:
        one = some_message(pair, chance, v4=True)
        pair.flip(pair.slave, one.phy + at)
        # the header of an index file has the times of its first and its last message
        return Plan(
            [differs(one, field, "undecided")],
            tolerated=lambda found: (field, found.invariant) == ("storeTimestamp", "IX-HEADER"),
        )

    plant.__name__ = f"{field}_of_the_slave"
    defect("DIFFERENT")(plant)


for _field, _at in LOOSE_FIELDS:
    _loose(_field, _at)


@defect("DIFFERENT")
def body_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at + chance.randrange(one.body_size), 1 << chance.randrange(8))
    return Plan([differs(one, "body", "slave")])


@defect("DIFFERENT")
def body_bit_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.body_at + chance.randrange(one.body_size), 1 << chance.randrange(8))
    return Plan([differs(one, "body", "master")])


@defect("DIFFERENT")
def body_bits_of_both_sides(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.body_at)
    pair.flip(pair.slave, one.body_at + 1)
    return Plan([differs(one, "body", "both")])


@defect("DIFFERENT")
def body_crc_field_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.FIELD_AT["bodyCRC"] + 3)
    return Plan([differs(one, "bodyCRC", "slave")])


@defect("DIFFERENT")
def body_crc_field_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + record.FIELD_AT["bodyCRC"] + 2)
    return Plan([differs(one, "bodyCRC", "master")])


@defect("DIFFERENT")
def compressed_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.SYS_FLAG_AT + 3)
    return Plan([differs(one, "sysFlag", "undecided")])


@defect("DIFFERENT")
def queue_offset_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.FIELD_AT["queueOffset"] + 5)
    return Plan([differs(one, "queueOffset", "slave")])


@defect("DIFFERENT")
def queue_offset_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + record.FIELD_AT["queueOffset"] + 6)
    return Plan([differs(one, "queueOffset", "master")])


@defect("DIFFERENT")
def queue_id_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + record.FIELD_AT["queueId"] + 2)
    return Plan([differs(one, "queueId", "master")])


@defect("DIFFERENT")
def physical_offset_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + record.PHY_OFFSET_AT + 6)
    return Plan([differs(one, "physicalOffset", "slave")])


@defect("DIFFERENT")
def magic_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + 5, 16)
    return Plan([differs(one, "magicCode", "slave")])


@defect("DIFFERENT")
def magic_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + 5, 16)
    return Plan([differs(one, "magicCode", "master")])


@defect("DIFFERENT")
def total_size_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.phy + chance.randrange(1, 4), 1 << chance.randrange(7))
    return Plan([differs(one, "totalSize", "slave")])


@defect("DIFFERENT")
def body_length_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at - 1)
    return Plan([differs(one, "bodyLength", "slave")])


@defect("DIFFERENT")
def properties_length_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.properties_at - 1)
    return Plan([differs(one, "propertiesLength", "slave")])


@defect("DIFFERENT")
def topic_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.slave, one.body_at + one.body_size + 3)
    return Plan([differs(one, "topic", "slave")])


def _value_at(pair: Specimen, one: Stored, name: str) -> int:
    """Return where a property's value begins."""
    raw = pair.read(pair.master, one.properties_at, one.phy + one.size - one.properties_at)
    at = raw.find(f"{name}\x01".encode())
    if at < 0:
        raise NotHere(f"a property {name}")
    return one.properties_at + at + len(name) + 1


def _with_property(pair: Specimen, chance: random.Random, name: str) -> tuple[Stored, int]:
    for _ in range(100):
        one = some_message(pair, chance)
        try:
            return one, _value_at(pair, one, name)
        except NotHere:
            continue
    raise NotHere(f"a message with the property {name}")


@defect("DIFFERENT")
def property_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """A value that only the application reads: nothing tells which side is right."""
    one = some_message(pair, chance)
    try:
        at = _value_at(pair, one, "COLOUR")
    except NotHere:
        at = _value_at(pair, one, "CLUSTER")
    pair.flip(pair.slave, at + 1)
    return Plan([differs(one, "properties", "undecided")])


@defect("DIFFERENT")
def tag_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """The slave's own consume queue remembers the tag's hash."""
    one, at = _with_property(pair, chance, "TAGS")
    pair.flip(pair.slave, at)
    return Plan([differs(one, "properties", "slave")])


@defect("DIFFERENT")
def key_bit_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """The slave's own index remembers the key's hash."""
    one, at = _with_property(pair, chance, "KEYS")
    pair.flip(pair.slave, at)
    return Plan([differs(one, "properties", "slave")])


@defect("DIFFERENT")
def hole_in_properties_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """As Apache's slave leaves it behind when it resumes within a record: zeros where bytes never arrived."""
    one = some_message(pair, chance)
    pair.write(pair.slave, one.phy + one.size - 9, bytes(9))
    return Plan([differs(one, "properties", "slave")])


@defect("DIFFERENT")
def hole_up_to_a_page_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """The same from the middle of a record up to the next 512 bytes."""
    one = some_message(pair, chance, least_body=60)
    begin = one.body_at + one.body_size // 2
    end = min(begin - begin % 512 + 512, one.body_at + one.body_size)
    pair.write(pair.slave, begin, bytes(end - begin))
    return Plan([differs(one, "body", "slave")])


@defect("DIFFERENT")
def first_record_of_a_segment_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    start = chance.choice(pair.segments()[1:])
    one = next(one for one in pair.stored if one.phy == start)
    pair.flip(pair.slave, one.phy + 4)
    return Plan([differs(one, "magicCode", "slave")])


@defect("DIFFERENT")
def last_record_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """The slave seems to end one record early, but the bytes behind are that record with a wrong magic, not a lag."""
    one = pair.stored[-1]
    pair.flip(pair.slave, one.phy + 4)
    expected = [differs(one, "magicCode", "slave"), Expected(invariant="RP-LAG", phy=one.phy)]
    if one.owned:
        expected.append(Expected(invariant="CQ-DANGLING", replica="slave", phy=one.phy))
    return Plan(expected)


def _any_bit(side: str) -> None:
    """Whichever bit of a record it is, the record is named; whom to blame depends on the bit."""

    def plant(pair: Specimen, chance: random.Random) -> Plan:
        one = chance.choice([one for one in pair.stored[5:-5] if is_plain(one)])
        pair.flip(getattr(pair, side), one.phy + chance.randrange(one.size), 1 << chance.randrange(8))
        return Plan([Expected(invariant="RP-DIFF", phy=one.phy, count=1, blame=f"{side}|undecided")])

    plant.__name__ = f"any_bit_of_the_{side}"
    defect("DIFFERENT")(plant)


_any_bit("slave")
_any_bit("master")


# the same on both sides: damaged before it was replicated


@defect("DAMAGED")
def body_bit_of_both_alike(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    for root in pair.roots:
        pair.flip(root, one.body_at)
    return Plan([Expected(invariant="CL-CRC", replica="both", blame="both", phy=one.phy, message=one)])


@defect("DAMAGED")
def magic_of_both_alike(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    for root in pair.roots:
        pair.flip(root, one.phy + 5, 16)
    return Plan([Expected(invariant="CL-FRAME", replica="both", phy=one.phy)])


@defect("DIFFERENT")
def magic_of_both_differently(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    pair.flip(pair.master, one.phy + 5, 16)
    pair.flip(pair.slave, one.phy + 5, 32)
    return Plan([Expected(invariant="RP-DIFF", blame="both", phy=one.phy)])


@defect("DAMAGED")
def physical_offset_of_both_alike(pair: Specimen, chance: random.Random) -> Plan:
    one = some_message(pair, chance)
    for root in pair.roots:
        pair.flip(root, one.phy + record.PHY_OFFSET_AT + 6)
    return Plan([Expected(invariant="CL-PHY", replica="both", blame="both", phy=one.phy, count=1)])


def _with_crc(pair: Specimen, chance: random.Random) -> Stored:
    """Append a record as 5.x writes it with enabledAppendPropCRC: its last property is a CRC over all before it."""
    queue = some_message(pair, chance).queue
    offset = pair.next_offset[queue]
    one = pair.append(
        pair.roots, queue, b"a CRC over all of it", queue_offset=offset, extra=f"{_CRC_MARK}0000000000\x02"
    )
    at = one.phy + one.size - len(_CRC_MARK) - 11
    digits = f"{record.body_crc(pair.read(pair.master, one.phy, at - one.phy)):010d}"[::-1]
    for root in pair.roots:
        pair.write(root, at + len(_CRC_MARK), digits.encode())
    return one


_CRC_MARK = "__CRC32#\x01"


@defect("DAMAGED")
def header_bit_under_a_crc_of_both_alike(pair: Specimen, chance: random.Random) -> Plan:
    one = _with_crc(pair, chance)
    for root in pair.roots:
        pair.flip(root, one.phy + 17)
    return Plan([Expected(invariant="CL-PROPCRC", replica="both", blame="both", phy=one.phy, count=1)])


@defect("DIFFERENT")
def header_bit_under_a_crc_of_the_slave(pair: Specimen, chance: random.Random) -> Plan:
    """With a CRC over header and properties the side with a wrong flag is known."""
    one = _with_crc(pair, chance)
    pair.flip(pair.slave, one.phy + 17)
    return Plan([differs(one, "flag", "slave")])


@defect("DIFFERENT")
def property_bit_under_a_crc_of_the_master(pair: Specimen, chance: random.Random) -> Plan:
    one = _with_crc(pair, chance)
    pair.flip(pair.master, one.properties_at + 12)
    return Plan([differs(one, "properties", "master")])


@defect("CONSISTENT", warns=True)
def clock_of_the_master_went_back(pair: Specimen, chance: random.Random) -> Plan:
    first = some_message(pair, chance)
    behind = [one for one in pair.stored if one.phy >= first.phy]
    for one in behind:
        at = one.phy + (56 if one.body_at - one.phy == 88 else 68)
        for root in pair.roots:
            past = int.from_bytes(pair.read(root, at, 8), "big") - 3_600_000
            pair.write(root, at, past.to_bytes(8, "big"))
    for root in pair.roots:
        pair.set_index_times(root, {one.phy: one.store_timestamp - 3_600_000 for one in behind})
    before = max((one for one in pair.stored if one.phy < first.phy), key=lambda one: one.phy)
    return Plan([Expected(invariant="CL-TIME", replica="both", phy=before.phy, count=1)])
