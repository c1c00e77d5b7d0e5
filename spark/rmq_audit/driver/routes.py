"""
What NameServers said about a cluster: read from dumps, compared with each other and with the stores.

A dump is JSON, one object for each NameServer (or a list of them): ``nameserver``, optional ``takenAt`` (epoch ms),
``brokers`` with cluster, brokerName, brokerId, addr, and ``queues`` with topic, brokerName, readQueueNums,
writeQueueNums, perm. A folder of ``<topic>.json`` files, each what ``mqadmin topicRoute`` prints, is taken as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from rmq.wire.loosejson import JsonError, parse
from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.inventory import json_member, json_objects
from rmq_audit.worker.files import lister, read_whole
from rmq_audit.worker.location import InputError, ReadError, located
from rmq_audit.worker.work import UNDECIDED, Severity

#: the replica of a finding that is about no store
NAMESERVER = "nameserver"

#: topics that brokers make for themselves; clients do not consume them by route
_SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_", "%LMQ%", "%SYS%")
_SYSTEM_TOPICS = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "SELF_TEST_TOPIC",
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    )
)

#: missing topics and queues that are findings of their own for one broker and kind; the rest are counted
MAX_NAMED = 20


@attrs.frozen
class BrokerRoute:
    """Where a NameServer says that a broker is."""

    cluster: str
    addr: str


@attrs.frozen
class QueueRoute:
    """How many queues of a topic a NameServer says a broker has, and what may be done with them."""

    read_queues: int
    write_queues: int
    perm: int

    def __str__(self) -> str:
        return f"{self.read_queues} read and {self.write_queues} write queues, permission {self.perm}"


@attrs.define(kw_only=True)
class Routes:
    """All that one NameServer knew: brokers by (name, id), queues by (topic, broker name)."""

    nameserver: str
    path: str
    taken_at: int | None = None
    brokers: dict[tuple[str, int], BrokerRoute] = attrs.field(factory=dict)
    queues: dict[tuple[str, str], QueueRoute] = attrs.field(factory=dict)

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in self.queues}


@attrs.frozen(kw_only=True)
class Held:
    """What the master of one broker holds: the messages of each (topic, queue), and the topics it is configured for."""

    broker: str
    slaves: int
    queues: Mapping[tuple[str, int], int]
    configured: frozenset[str] | None


def read_routes(path: str) -> list[Routes]:
    """Return what one dump, or one folder of topics, says; InputError naming file and member."""
    place = located(path)
    try:
        entries = lister(place).entries(place)
        if entries:
            return [_of_folder(place, [one.path for one in entries if one.name.endswith(".json")])]
        values = _parsed(place, read_whole(place))
    except FileNotFoundError:
        raise InputError(f"{place}: no such file or folder of routes") from None
    except ReadError as error:
        raise InputError(str(error)) from error
    ones = values if isinstance(values, list) else [values]
    return [_of_dump(place, number, one) for number, one in enumerate(ones, 1)]


def disambiguate(routes: Sequence[Routes]) -> list[Routes]:
    """Return the routes; a name that several NameServers have gets its path appended."""
    names = Counter(one.nameserver for one in routes)
    apart = []
    seen = Counter[tuple[str, str]]()
    for one in routes:
        seen[one.nameserver, one.path] += 1
        nth = seen[one.nameserver, one.path]
        where = one.path if nth == 1 else f"{one.path}, number {nth}"
        name = one.nameserver if names[one.nameserver] == 1 else f"{one.nameserver} ({where})"
        apart.append(attrs.evolve(one, nameserver=name))
    return apart


def _parsed(path: str, raw: bytes) -> Any:
    """Return the JSON of a file; what a tool printed before it is skipped."""
    try:
        text = raw.decode("utf-8")
        begin = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=0)
        return parse(text[begin:])
    except (UnicodeDecodeError, JsonError) as error:
        raise InputError(f"{path}: is not JSON of routes: {error}") from error


def _of_dump(path: str, number: int, one: Any) -> Routes:
    where = f"{path}: NameServer {number}"
    if not isinstance(one, dict):
        raise InputError(f"{where}: an object with nameserver, brokers and queues is expected")
    found = Routes(nameserver=json_member(where, one, "nameserver", str), path=path)
    if one.get("takenAt") is not None:
        found.taken_at = json_member(where, one, "takenAt", int)
    for broker in json_objects(where, one, "brokers"):
        key = json_member(where, broker, "brokerName", str), json_member(where, broker, "brokerId", int)
        found.brokers[key] = BrokerRoute(
            json_member(where, broker, "cluster", str), json_member(where, broker, "addr", str)
        )
    for queue in json_objects(where, one, "queues"):
        key_of_queue = json_member(where, queue, "topic", str), json_member(where, queue, "brokerName", str)
        found.queues[key_of_queue] = _queue_route(where, queue)
    return found


def _of_folder(place: str, paths: Sequence[str]) -> Routes:
    found = Routes(nameserver=place.rstrip("/").rpartition("/")[2], path=place)
    for path in paths:
        topic = path.rpartition("/")[2].removesuffix(".json")
        values = _parsed(path, read_whole(path))
        if not isinstance(values, dict):
            raise InputError(f"{path}: an object with brokerDatas and queueDatas is expected")
        for broker in json_objects(path, values, "brokerDatas"):
            name, addresses = json_member(path, broker, "brokerName", str), broker.get("brokerAddrs")
            if not isinstance(addresses, dict):
                raise InputError(f"{path}: brokerAddrs of {name} is not an object")
            for broker_id, addr in addresses.items():
                if not str(broker_id).isdecimal():
                    raise InputError(f"{path}: {broker_id!r} is not a broker id")
                found.brokers[name, int(broker_id)] = BrokerRoute(str(broker.get("cluster", "")), str(addr))
        for queue in json_objects(path, values, "queueDatas"):
            found.queues[topic, json_member(path, queue, "brokerName", str)] = _queue_route(path, queue)
    return found


def _queue_route(where: str, queue: Mapping[str, Any]) -> QueueRoute:
    return QueueRoute(
        json_member(where, queue, "readQueueNums", int),
        json_member(where, queue, "writeQueueNums", int),
        json_member(where, queue, "perm", int),
    )


def check_routes(routes: Sequence[Routes], brokers: Iterable[Held]) -> list[Finding]:
    """Return where NameServers differ from each other, and where the stores hold what no route leads to."""
    if not routes:
        return []
    held = list(brokers)
    found = [*_compare_brokers(routes), *_compare_queues(routes)]
    for one in held:
        found += _check_broker(routes, one)
    return found


def _compare_brokers(routes: Sequence[Routes]) -> Iterator[Finding]:
    for name, broker_id in sorted({key for one in routes for key in one.brokers}):
        known = {one.nameserver: one.brokers.get((name, broker_id)) for one in routes}
        what = f"{name} id {broker_id}"
        lacking = [server for server, route in known.items() if route is None]
        if lacking:
            text = f"broker {what} is registered at {_names(known, lacking)}, not at {', '.join(lacking)}"
            yield _finding("RT-MISSING", name, what, known, text, blame=_blame(lacking, known))
        present = {server: route for server, route in known.items() if route is not None}
        if len({route.addr for route in present.values()}) > 1:
            invariant = "RT-TWOMASTERS" if broker_id == 0 else "RT-DIFF"
            text = "NameServers give different addresses for broker " + what
            if broker_id == 0:
                text += ": two masters, or one that moved and did not register everywhere"
            yield _finding(invariant, name, what, {s: r.addr for s, r in present.items()}, text)
        elif len({route.cluster for route in present.values()}) > 1:
            text = f"NameServers have broker {what} in different clusters"
            yield _finding("RT-DIFF", name, f"{what} cluster", {s: r.cluster for s, r in present.items()}, text)


def _compare_queues(routes: Sequence[Routes]) -> Iterator[Finding]:
    missing: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for topic, broker in sorted({key for one in routes for key in one.queues}):
        # a NameServer that lacks the broker lacks its queues: said once, of the broker
        speaking = [one for one in routes if any(name == broker for name, _ in one.brokers)]
        known = {one.nameserver: one.queues.get((topic, broker)) for one in speaking}
        lacking = tuple(server for server, route in known.items() if route is None)
        if lacking and len(lacking) < len(known):
            missing.setdefault((broker, lacking), []).append(topic)
        present = {server: route for server, route in known.items() if route is not None}
        if len(set(present.values())) > 1:
            text = f"NameServers differ in topic {topic} on broker {broker}"
            yield _finding("RT-DIFF", broker, f"{topic} on {broker}", present, text, topic=topic)
    for (broker, lacking), topics in missing.items():
        everyone = {one.nameserver: None for one in routes}
        for number, topic in enumerate(topics[:MAX_NAMED], 1):
            others = _names(everyone, lacking)
            text = f"topic {topic} on broker {broker} is known at {others}, not at {', '.join(lacking)}"
            if number == MAX_NAMED and len(topics) > MAX_NAMED:
                text += f"; so are {len(topics) - MAX_NAMED} more topics"
            yield _finding(
                "RT-MISSING", broker, f"{topic} on {broker}", {}, text, topic=topic, blame=_blame(lacking, everyone)
            )


def _check_broker(routes: Sequence[Routes], held: Held) -> Iterator[Finding]:
    """Compare one broker of the configuration with all NameServers together."""
    name = held.broker
    ids = {broker_id for one in routes for known, broker_id in one.brokers if known == name}
    if not ids:
        text = f"no NameServer knows broker {name}: producers and consumers do not find it"
        yield _finding("RT-MISSING", name, name, {}, text)
        return
    if 0 not in ids:
        text = f"no NameServer knows a master of broker {name}: producers cannot send to it"
        yield _finding("RT-MISSING", name, f"{name} id 0", {}, text)
    if len(ids - {0}) < held.slaves:
        text = f"{held.slaves} slaves of broker {name} are audited, NameServers know {len(ids - {0})}"
        yield _finding("RT-MISSING", name, f"{name} slaves", {}, text, severity=Severity.WARN)
    routed: dict[str, int] = {}
    for one in routes:
        for (topic, broker), queue in one.queues.items():
            if broker == name:
                routed[topic] = max(routed.get(topic, 0), queue.read_queues)
    yield from _unrouted(held, routed)
    if held.configured is not None:
        strange = {
            topic for topic in routed if not is_system_topic(topic) and topic not in (name, *_clusters(routes, name))
        }
        strange -= held.configured | {topic for topic, _ in held.queues}
        for topic in sorted(strange):
            text = f"NameServers have a route to topic {topic} on broker {name}, which does not have it"
            yield _finding("RT-STORE", name, f"{topic} on {name}", {}, text, topic=topic)


def _unrouted(held: Held, routed: Mapping[str, int]) -> Iterator[Finding]:
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, queue_id), messages in held.queues.items():
        if messages and not is_system_topic(topic):
            by_topic.setdefault(topic, {})[queue_id] = messages
    for topic, queues in sorted(by_topic.items()):
        if topic not in routed:
            text = (
                f"the store of broker {held.broker} holds {sum(queues.values())} messages of topic {topic} in "
                f"{len(queues)} queues, and no NameServer has a route to them: they cannot be consumed"
            )
            yield _finding("RT-STORE", held.broker, f"{topic} on {held.broker}", {}, text, topic=topic)
            continue
        beyond = {queue_id: count for queue_id, count in queues.items() if queue_id >= routed[topic]}
        if beyond:
            text = (
                f"topic {topic} has {routed[topic]} read queues on broker {held.broker} by all NameServers, but its "
                f"store holds {sum(beyond.values())} messages in queues {', '.join(map(str, sorted(beyond)))}: "
                "consumers do not see them"
            )
            yield _finding(
                "RT-STORE", held.broker, f"{topic} on {held.broker}", {}, text, topic=topic, queue_id=min(beyond)
            )


def is_system_topic(topic: str) -> bool:
    return topic.startswith(_SYSTEM_PREFIXES) or topic in _SYSTEM_TOPICS or topic.endswith("_REPLY_TOPIC")


def _clusters(routes: Sequence[Routes], broker: str) -> set[str]:
    return {route.cluster for one in routes for (name, _), route in one.brokers.items() if name == broker}


def _names(known: Mapping[str, object], but: Sequence[str]) -> str:
    return ", ".join(server for server in known if server not in but) or "no other"


def _blame(lacking: Sequence[str], known: Mapping[str, object]) -> str:
    """A minority that lacks something is to blame; one of two may be the one that is right."""
    return ", ".join(lacking) if 2 * len(lacking) < len(known) else UNDECIDED


def _finding(
    invariant: str, broker: str, what: str, values: Mapping[str, object], text: str, **members: Any
) -> Finding:
    """Make a finding about a broker; ``values`` are what each NameServer says, the majority is what is expected."""
    texts = {server: "-" if value is None else _worded(value) for server, value in values.items()}
    members.setdefault("blame", UNDECIDED)
    expected = actual = None
    if len(set(texts.values())) > 1:
        usual = max(texts.values(), key=lambda text: (list(texts.values()).count(text), text != "-"))
        odd = {server: text for server, text in texts.items() if text != usual}
        expected, actual = usual, "; ".join(f"{server}: {text}" for server, text in odd.items())
        if members["blame"] == UNDECIDED and 2 * len(odd) < len(texts):
            members["blame"] = ", ".join(odd)
    return finding(
        invariant, NAMESERVER, broker=broker, field=what, expected=expected, actual=actual, detail=text, **members
    )


def _worded(value: object) -> str:
    return f"{value.addr}, cluster {value.cluster}" if isinstance(value, BrokerRoute) else str(value)
