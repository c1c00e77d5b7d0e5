"""
Damage that a pair alone cannot show: NameServers that disagree with each other or with the stores, and logs whose ends
go back between two looks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from rmq.store import layout
from tests.spark.corruptor.classes import Expected, NotHere, Plan, defect, is_plain
from tests.spark.corruptor.specimen import Specimen

#: what the audit of a directory calls its broker
BROKER = "master"

_SERVERS = ("ns1:9876", "ns2:9876", "ns3:9876")

Dump = dict[str, Any]


def sound_routes(pair: Specimen, servers: int = 2) -> list[Dump]:
    """Return what NameServers say that know everything: both replicas, and all queues that the stores have."""
    queues: dict[str, int] = {}
    for folder in (path for root in pair.roots for path in (root / layout.CONSUME_QUEUE_DIR).glob("*/*")):
        queues[folder.parent.name] = max(queues.get(folder.parent.name, 1), int(folder.name) + 1)
    for one in pair.stored:
        queues[one.topic] = max(queues.get(one.topic, 1), one.queue_id + 1)
    brokers = [
        {"cluster": "c", "brokerName": BROKER, "brokerId": number, "addr": f"10.0.0.{number}:10911"}
        for number in (0, 1)
    ]
    topics = [
        {"topic": topic, "brokerName": BROKER, "readQueueNums": number, "writeQueueNums": number, "perm": 6}
        for topic, number in sorted(queues.items())
    ]
    return [{"nameserver": name, "brokers": list(brokers), "queues": list(topics)} for name in _SERVERS[:servers]]


def write_routes(pair: Specimen, dumps: list[Dump]) -> str:
    path = pair.master.parent / "routes.json"
    path.write_text(json.dumps(dumps))
    return str(path)


def _one_of(pair: Specimen, chance: random.Random) -> tuple[list[Dump], Dump, str]:
    """Return two or three sound dumps, the one to damage, and whom to blame: the odd one of three, nobody of two."""
    dumps = sound_routes(pair, chance.choice((2, 3)))
    chosen = chance.choice(dumps)
    return dumps, chosen, chosen["nameserver"] if len(dumps) > 2 else "undecided"


def _some_topic(pair: Specimen, chance: random.Random) -> str:
    return chance.choice(sorted({one.topic for one in pair.stored if is_plain(one)}))


def _planned(pair: Specimen, dumps: list[Dump], *expected: Expected) -> Plan:
    return Plan(expected, routes=write_routes(pair, dumps))


def _changed(dump: Dump, member: str, chosen: Callable[[Any], bool], **values: Any) -> None:
    """Change what one NameServer says of the brokers or queues that are chosen; of at least one."""
    rows = [{**row, **values} if chosen(row) else row for row in dump[member]]
    assert rows != dump[member]
    dump[member] = rows


def _without(dump: Dump, member: str, chosen: Callable[[Any], bool]) -> None:
    rows = [row for row in dump[member] if not chosen(row)]
    assert len(rows) < len(dump[member])
    dump[member] = rows


@defect("MISROUTED")
def nameserver_lacks_a_slave(pair: Specimen, chance: random.Random) -> Plan:
    dumps, odd, blame = _one_of(pair, chance)
    _without(odd, "brokers", lambda row: row["brokerId"] == 1)
    return _planned(pair, dumps, Expected(invariant="RT-MISSING", blame=blame, field=f"{BROKER} id 1"))


@defect("MISROUTED")
def nameserver_lacks_a_topic(pair: Specimen, chance: random.Random) -> Plan:
    (dumps, odd, blame), topic = _one_of(pair, chance), _some_topic(pair, chance)
    _without(odd, "queues", lambda row: row["topic"] == topic)
    return _planned(pair, dumps, Expected(invariant="RT-MISSING", blame=blame, topic=topic))


@defect("MISROUTED")
def no_nameserver_knows_the_broker(pair: Specimen, chance: random.Random) -> Plan:
    dumps = sound_routes(pair)
    for dump in dumps:
        for member in ("brokers", "queues"):
            _changed(dump, member, lambda row: True, brokerName="another")
    return _planned(pair, dumps, Expected(invariant="RT-MISSING", field=BROKER))


@defect("MISROUTED")
def no_nameserver_knows_the_master(pair: Specimen, chance: random.Random) -> Plan:
    dumps = sound_routes(pair)
    for dump in dumps:
        _without(dump, "brokers", lambda row: row["brokerId"] == 0)
    return _planned(pair, dumps, Expected(invariant="RT-MISSING", field=f"{BROKER} id 0"))


@defect("MISROUTED")
def nameservers_lead_to_two_slaves(pair: Specimen, chance: random.Random) -> Plan:
    dumps, odd, blame = _one_of(pair, chance)
    _changed(odd, "brokers", lambda row: row["brokerId"] == 1, addr="10.0.0.9:10911")
    return _planned(pair, dumps, Expected(invariant="RT-DIFF", blame=blame, field=f"{BROKER} id 1"))


@defect("MISROUTED")
def nameservers_differ_in_a_topic(pair: Specimen, chance: random.Random) -> Plan:
    """One of them has the topic's write permission taken away."""
    (dumps, odd, blame), topic = _one_of(pair, chance), _some_topic(pair, chance)
    _changed(odd, "queues", lambda row: row["topic"] == topic, perm=4)
    return _planned(pair, dumps, Expected(invariant="RT-DIFF", blame=blame, topic=topic))


@defect("MISROUTED")
def two_masters(pair: Specimen, chance: random.Random) -> Plan:
    dumps, odd, blame = _one_of(pair, chance)
    _changed(odd, "brokers", lambda row: row["brokerId"] == 0, addr="10.0.0.9:10911")
    return _planned(pair, dumps, Expected(invariant="RT-TWOMASTERS", blame=blame, field=f"{BROKER} id 0"))


@defect("CONSISTENT", warns=True)
def no_route_to_a_topic_that_is_stored(pair: Specimen, chance: random.Random) -> Plan:
    dumps, topic = sound_routes(pair), _some_topic(pair, chance)
    for dump in dumps:
        _without(dump, "queues", lambda row: row["topic"] == topic)
    return _planned(pair, dumps, Expected(invariant="RT-STORE", topic=topic))


@defect("CONSISTENT", warns=True)
def routes_lead_to_fewer_queues_than_are_stored(pair: Specimen, chance: random.Random) -> Plan:
    wide = sorted({one.topic for one in pair.stored if is_plain(one) and one.queue_id > 0})
    if not wide:
        raise NotHere("a topic of two queues")
    dumps, topic = sound_routes(pair), chance.choice(wide)
    for dump in dumps:
        _changed(dump, "queues", lambda row: row["topic"] == topic, readQueueNums=1, writeQueueNums=1)
    return _planned(pair, dumps, Expected(invariant="RT-STORE", topic=topic))


# ends that go back between two rounds of watch


@defect("LAGGING")
def slave_lost_its_end(pair: Specimen, chance: random.Random) -> Plan:
    """An older copy of the slave's log was put back after the first look."""
    cut = chance.choice([one for one in pair.stored[-40:-5] if is_plain(one)]).phy
    return Plan(
        [
            Expected(invariant="CL-BACK", replica="slave", phy=cut),
            Expected(invariant="RP-LAG", replica="slave", phy=cut),
        ],
        meanwhile=lambda: pair.cut(pair.slave, cut),
    )


@defect("CONSISTENT", warns=True)
def both_sides_lost_their_ends(pair: Specimen, chance: random.Random) -> Plan:
    """Both sides agree, and both have lost what they had in the previous round: no comparison of the two shows it."""
    cut = chance.choice([one for one in pair.stored[-40:-5] if is_plain(one)]).phy

    def meanwhile() -> None:
        for root in pair.roots:
            pair.cut(root, cut)

    return Plan(
        [Expected(invariant="CL-BACK", replica=side, phy=cut) for side in ("master", "slave")], meanwhile=meanwhile
    )
