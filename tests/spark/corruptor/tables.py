"""Damage to index files and consumer offsets, and sends that were acknowledged and are not there."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from rmq_audit.driver.consumers import Earlier

from rmq.store import layout
from rmq.wire import record
from tests.spark.corruptor.classes import Expected, NotHere, Plan, defect, is_plain, some_message
from tests.spark.corruptor.specimen import Specimen, Stored, flip, index_slots, overwrite

# index files; bytes of an entry: key hash, physical offset at +4, seconds at +12, number of the entry before at +16


def _entry(pair: Specimen, chance: random.Random) -> tuple[Path, int, int, tuple[int, int, int, int]]:
    return chance.choice(list(pair.index_entries(pair.slave)))


@defect("DAMAGED")
def index_entry_points_into_a_record(pair: Specimen, chance: random.Random) -> Plan:
    path, _, at, _ = _entry(pair, chance)
    wrong = some_message(pair, chance).phy + 1
    overwrite(path, at + 4, wrong.to_bytes(8, "big"))
    return Plan([Expected(invariant="IX-DANGLING", replica="slave", phy=wrong, count=1)])


@defect("DAMAGED")
def index_entry_points_at_another_record(pair: Specimen, chance: random.Random) -> Plan:
    path, _, at, (_, phy, _, _) = _entry(pair, chance)
    wrong = next(one.phy for one in iter(lambda: some_message(pair, chance), None) if abs(one.phy - phy) > 20_000)
    overwrite(path, at + 4, wrong.to_bytes(8, "big"))
    found = Expected(invariant="IX-HASH", replica="slave", phy=wrong, count=1)
    if record_has_hash(pair, wrong, path, at):
        raise NotHere("a record without that key")
    return Plan([found])


def record_has_hash(pair: Specimen, phy: int, path: Path, at: int) -> bool:
    """Whether the record has a key of the hash in the index entry."""
    (wanted,) = layout.INDEX_SLOT.unpack_from(path.read_bytes(), at)
    one = next(one for one in pair.stored if one.phy == phy)
    found = record.decode_record(pair.read(pair.master, phy, one.size))
    keys = [found.property_map.get("UNIQ_KEY", ""), *record.split_keys(found.property_map.get("KEYS"))]
    return any(record.index_key_hash(one.topic, key) == wanted for key in keys if key)


@defect("DAMAGED")
def index_entry_has_another_hash(pair: Specimen, chance: random.Random) -> Plan:
    path, _, at, (_, phy, _, _) = _entry(pair, chance)
    # a multiple of the slots away, so that its chain stays whole
    slots = index_slots(path.read_bytes())
    (key_hash,) = layout.INDEX_SLOT.unpack_from(path.read_bytes(), at)
    other = key_hash - slots if key_hash > slots else key_hash + slots
    overwrite(path, at, layout.INDEX_SLOT.pack(other))
    return Plan([Expected(invariant="IX-HASH", replica="slave", phy=phy, count=1)])


@defect("DAMAGED")
def index_chain_is_cut(pair: Specimen, chance: random.Random) -> Plan:
    path, number, at, (_, phy, _, _) = _entry(pair, chance)
    overwrite(path, at + 16, layout.INDEX_SLOT.pack(number + 1))
    return Plan([Expected(invariant="IX-CHAIN", replica="slave", phy=phy)])


@defect("DAMAGED")
def index_slot_is_empty(pair: Specimen, chance: random.Random) -> Plan:
    path, _, _, (key_hash, _, _, _) = _entry(pair, chance)
    slots = index_slots(path.read_bytes())
    overwrite(path, layout.index_slot_at(key_hash % slots), bytes(layout.INDEX_SLOT_BYTES))
    # with a slot less in use than the header counts, the number of slots of a small file cannot be found out
    return Plan([Expected(invariant="IX-CHAIN", replica="slave", count=1)], index_slots=slots)


@defect("DAMAGED")
def index_entry_has_another_time(pair: Specimen, chance: random.Random) -> Plan:
    path, _, at, (_, phy, seconds, _) = _entry(pair, chance)
    overwrite(path, at + 12, layout.INDEX_SLOT.pack(seconds + 17))
    return Plan([Expected(invariant="IX-TIME", replica="slave", phy=phy, count=1)])


@defect("DAMAGED")
def index_header_has_another_field(pair: Specimen, chance: random.Random) -> Plan:
    """The last message's time or place, or the number of slots in use."""
    path = max((pair.slave / layout.INDEX_DIR).iterdir())
    slots = index_slots(path.read_bytes())
    flip(path, chance.choice((15, 31, 35)), 1)
    return Plan([Expected(invariant="IX-HEADER", replica="slave")], index_slots=slots)


@defect("DAMAGED")
def index_file_is_missing(pair: Specimen, chance: random.Random) -> Plan:
    """Messages whose keys were in it are not found by key any more."""
    os.remove(chance.choice(sorted((pair.slave / layout.INDEX_DIR).iterdir())[1:] or [_only_index(pair.slave)]))
    return Plan([Expected(invariant="IX-MISSING", replica="slave")])


def _only_index(root: Path) -> Path:
    return max((root / layout.INDEX_DIR).iterdir())


@defect("DAMAGED")
def index_file_of_another_length(pair: Specimen, chance: random.Random) -> Plan:
    path = max((pair.slave / layout.INDEX_DIR).iterdir())
    os.truncate(path, path.stat().st_size - layout.INDEX_ENTRY_BYTES)
    return Plan(
        [Expected(invariant="IX-HEADER", replica="slave")],
        # an entry in use may have been the last
        tolerated=lambda found: found.invariant.startswith("IX-"),
    )


# consumer offsets


def _offsets(root: Path) -> dict[str, dict[str, int]]:
    from rmq.wire.loosejson import parse

    values: Any = parse((root / layout.CONFIG_DIR / "consumerOffset.json").read_text())
    return {
        key: {str(queue): offset for queue, offset in queues.items()} for key, queues in values["offsetTable"].items()
    }


def _write_offsets(root: Path, table: dict[str, dict[str, int]]) -> None:
    path = root / layout.CONFIG_DIR / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": table}))


@defect("DAMAGED")
def consumer_is_ahead_of_its_queue(pair: Specimen, chance: random.Random) -> Plan:
    queue = some_message(pair, chance).queue
    beyond = pair.next_offset[queue] + 9
    for root in pair.roots:
        table = _offsets(root)
        table.setdefault(f"{queue[0]}@ahead", {})[str(queue[1])] = beyond
        _write_offsets(root, table)
    return Plan([Expected(invariant="CO-AHEAD", replica="both", topic=queue[0], queue_offset=beyond)])


@defect("CONSISTENT", warns=True)
def consumer_went_back(pair: Specimen, chance: random.Random) -> Plan:
    """At the previous round the group was further than it is now."""
    queue = some_message(pair, chance).queue
    at = pair.next_offset[queue] - 1
    for root in pair.roots:
        _write_offsets(root, _offsets(root) | {f"{queue[0]}@back": {str(queue[1]): at}})
    earlier = Earlier(subject=str(pair.master), at="yesterday", offsets={("back", *queue): at + 5})
    return Plan(
        [Expected(invariant="CO-BACK", replica="master", topic=queue[0], queue_offset=at, count=5)], earlier=earlier
    )


@defect("CONSISTENT")
def consumer_of_a_topic_that_is_gone(pair: Specimen, chance: random.Random) -> Plan:
    for root in pair.roots:
        _write_offsets(root, _offsets(root) | {"deleted@readers": {"0": 17}})
    return Plan([Expected(invariant="CO-ORPHAN", replica="both", topic="deleted")])


@defect("DAMAGED")
def consumer_offsets_are_no_json(pair: Specimen, chance: random.Random) -> Plan:
    path = pair.slave / layout.CONFIG_DIR / "consumerOffset.json"
    path.write_text(path.read_text()[:-3])
    return Plan([Expected(invariant="CF-BROKEN", replica="slave")])


# acknowledged sends


def _row(pair: Specimen, one: Stored) -> dict[str, Any]:
    body = pair.read(pair.master, one.body_at, one.body_size)
    return {
        "msgId": one.message_id,
        "topic": one.topic,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "physicalOffset": one.phy,
        "sendStatus": "SEND_OK",
        "bodyCrc": record.body_crc(body),
        "bodyLen": len(body),
    }


def acked_table(pair: Specimen) -> list[dict[str, Any]]:
    """Return what producers of the plain messages were told."""
    return [_row(pair, one) for one in pair.stored if is_plain(one)]


def _write_acked(pair: Specimen, rows: list[dict[str, Any]]) -> str:
    path = pair.master.parent / "acked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@defect("DAMAGED")
def acknowledged_send_is_nowhere(pair: Specimen, chance: random.Random) -> Plan:
    rows = acked_table(pair)
    lost = {**rows[-1], "msgId": "7F00000100000000LOST", "physicalOffset": pair.end + 17, "queueOffset": 9999}
    return Plan([Expected(invariant="AK-LOST", phy=pair.end + 17, count=1)], acked=_write_acked(pair, [*rows, lost]))


@defect("DAMAGED")
def acknowledged_sends_were_cut_off(pair: Specimen, chance: random.Random) -> Plan:
    """Both sides restored from a copy that is older than the last acknowledgements."""
    rows = acked_table(pair)
    cut = chance.choice(rows[-30:-2])["physicalOffset"]
    for root in pair.roots:
        pair.cut(root, cut)
        shutil.rmtree(root / layout.CONFIG_DIR)
    lost = sum(row["physicalOffset"] >= cut for row in rows)
    return Plan(
        [Expected(invariant="AK-LOST", phy=cut, count=lost)],
        acked=_write_acked(pair, rows),
        tolerated=lambda found: found.invariant == "CF-BROKEN",
    )


@defect("DAMAGED")
def acknowledged_body_is_another(pair: Specimen, chance: random.Random) -> Plan:
    rows = acked_table(pair)
    row = chance.choice(rows)
    row["bodyCrc"] ^= 1
    return Plan([Expected(invariant="AK-BODY", phy=row["physicalOffset"], count=1)], acked=_write_acked(pair, rows))


@defect("DAMAGED")
def acknowledged_place_is_another(pair: Specimen, chance: random.Random) -> Plan:
    rows = acked_table(pair)
    row = chance.choice(rows)
    row["queueOffset"] += 1
    return Plan([Expected(invariant="AK-PLACE", phy=row["physicalOffset"], count=1)], acked=_write_acked(pair, rows))


@defect("CONSISTENT", warns=True)
def acknowledged_transaction_is_missing(pair: Specimen, chance: random.Random) -> Plan:
    """A transaction is stored anew when it commits, so its producer knows no place: it can only be counted."""
    rows = acked_table(pair)
    topic = chance.choice(rows)["topic"]
    rows.append({"msgId": "7F000001COMMITTED", "topic": topic, "queueId": 0, "queueOffset": 3, "sendStatus": "SEND_OK"})
    if min((pair.master / layout.COMMIT_LOG_DIR).iterdir()).name != layout.file_name(0):
        raise NotHere("the begin of the log: the message may have been deleted")
    return Plan([Expected(invariant="AK-COUNT", topic=topic, count=1)], acked=_write_acked(pair, rows))


@defect("CONSISTENT")
def acknowledged_message_is_stored_twice(pair: Specimen, chance: random.Random) -> Plan:
    """Its producer missed the first answer and sent it again: legal, and mentioned."""
    rows = acked_table(pair)
    row = chance.choice(rows)
    queue = row["topic"], row["queueId"]
    body = pair.read(pair.master, row["physicalOffset"] + 88, row["bodyLen"])
    again = f"UNIQ_KEY\x01{row['msgId']}\x02"
    one = pair.append(pair.roots, queue, body, queue_offset=pair.next_offset[queue], extra=again)
    return Plan([Expected(invariant="AK-DUP", topic=queue[0], phy=one.phy, count=1)], acked=_write_acked(pair, rows))


# epochs of masters


@defect("DIVERGED")
def epochs_part(pair: Specimen, chance: random.Random) -> Plan:
    """Both sides hold the same bytes, and say that different masters wrote them."""
    at = some_message(pair, chance).phy
    for root, epoch in zip(pair.roots, (2, 3), strict=True):
        (root / "epochFileCheckpoint").write_text(f"2\n1-0\n{epoch}-{at}\n")
    return Plan([Expected(invariant="RP-EPOCH", phy=at, blame="undecided")])
