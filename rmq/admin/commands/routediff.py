"""``rmq-admin routeDiff``: differences between the routes of NameServers, ours and Apache's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from twisted.internet.defer import Deferred, FirstError, gatherResults

from rmq.admin.command import DIFFERENT, NAMESRV, OK, Call, Outcome, WrongUse, argument, command
from rmq.errors import Refused
from rmq.wire.api.routes import (
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    GetRouteInfoHeader,
    TopicRouteData,
)
from rmq.wire.codes import ResponseCode

#: concurrent look-ups at one NameServer
LOOK_UPS = 64

#: differences that the text shows; JSON has all
MAX_SHOWN = 200

#: the value of a NameServer that lacks the entry
ABSENT = "-"


@attrs.frozen(kw_only=True)
class Difference:
    """One difference: the value of each NameServer, as text."""

    kind: str
    name: str
    values: Mapping[str, str]

    def text(self) -> str:
        """Return the name of the difference and one line for each NameServer."""
        lines = [f"{self.kind} {self.name}"]
        lines += [
            f"    {addr}: {'does not know it' if value == ABSENT else value}" for addr, value in self.values.items()
        ]
        return "\n".join(lines)


#: (kind, name) -> value at one NameServer
Facts = dict[tuple[str, str], str]


@command(
    "route diff",
    "compare what several NameServers know: brokers, clusters, topics, queues, permissions",
    NAMESRV,
    argument("-t", "--topic", action="append", metavar="TOPIC", help="only this topic; may be given several times"),
)
async def route_diff(call: Call) -> Outcome:
    """Read all routes of each NameServer; status 2 when they differ. RequestFailed when one cannot be asked."""
    namesrvs = list(dict.fromkeys(call.options.namesrvAddr))
    if len(namesrvs) < 2:
        raise WrongUse("two NameServers at least are compared: -n 'host:port;host:port'")
    facts = {addr: await facts_of(call, addr, call.options.topic) for addr in namesrvs}
    found = list(differences(facts))
    # A registration reaches one NameServer after the other: only a difference that persists counts.
    if found:
        again = {addr: await facts_of(call, addr, call.options.topic) for addr in namesrvs}
        lasting = {(one.kind, one.name) for one in found}
        found = [one for one in differences(again) if (one.kind, one.name) in lasting]
    counted = {addr: _counts(one) for addr, one in facts.items()}
    text = "\n".join(_lines(counted, found))
    data = {"nameServers": counted, "differences": [attrs.asdict(one) for one in found]}
    return Outcome(status=DIFFERENT if found else OK, text=text, data=data)


async def facts_of(call: Call, addr: str, topics: Sequence[str] | None) -> Facts:
    """Return the routes of one NameServer; raises RequestFailed."""
    facts: Facts = {}
    if topics is None:
        info = (await call.invoke(addr, GET_BROKER_CLUSTER_INFO, None, None)).body
        for name, broker in info.broker_addr_table.items():
            for broker_id, broker_addr in broker.broker_addrs.items():
                facts["broker", f"{name} id {broker_id}"] = f"{broker_addr}, cluster {broker.cluster}"
        for cluster, names in info.cluster_addr_table.items():
            facts["cluster", cluster] = ", ".join(sorted(names))
        topics = sorted((await call.invoke(addr, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, None)).body.topic_list)
    for at in range(0, len(topics), LOOK_UPS):
        part = topics[at : at + LOOK_UPS]
        asked = [Deferred.fromCoroutine(route_of(call, addr, topic)) for topic in part]
        try:
            answers = await gatherResults(asked, consumeErrors=True)
        except FirstError as error:
            cause = error.subFailure.value
            assert isinstance(cause, Exception)
            raise cause from None
        for topic, route in zip(part, answers, strict=True):
            facts.update(_facts_of_topic(topic, route))
    return facts


async def route_of(call: Call, addr: str, topic: str) -> TopicRouteData | None:
    """Return a topic's route, None when the NameServer has none."""
    try:
        return (await call.invoke(addr, GET_ROUTEINFO_BY_TOPIC, GetRouteInfoHeader(topic=topic), None)).body
    except Refused as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        raise


def _facts_of_topic(topic: str, route: TopicRouteData | None) -> Iterator[tuple[tuple[str, str], str]]:
    if route is None:
        return
    yield ("topic", topic), "is known"
    for queue in route.queue_datas:
        yield (
            ("topic", f"{topic} on {queue.broker_name}"),
            f"{queue.read_queue_nums} read and {queue.write_queue_nums} write queues, permission {queue.perm}",
        )


def differences(facts: Mapping[str, Facts]) -> Iterator[Difference]:
    """
    Yield the differences, brokers first.

    If a NameServer lacks a topic or cluster, its parts are not compared.
    """
    everything = sorted({key for one in facts.values() for key in one})
    missing: set[str] = set()
    for kind, name in everything:
        values = {addr: one.get((kind, name), ABSENT) for addr, one in facts.items()}
        if len(set(values.values())) == 1 or (kind == "topic" and name.partition(" on ")[0] in missing):
            continue
        if kind == "topic" and ABSENT in values.values() and " on " not in name:
            missing.add(name)
        yield Difference(kind=kind, name=name, values=values)


def _counts(facts: Facts) -> dict[str, int]:
    brokers = sum(kind == "broker" for kind, _ in facts)
    topics = sum(kind == "topic" and " on " not in name for kind, name in facts)
    return {"brokers": brokers, "topics": topics}


def _lines(counted: Mapping[str, Mapping[str, int]], found: Sequence[Difference]) -> Iterator[str]:
    for addr, counts in counted.items():
        yield f"{addr}: {counts['brokers']} brokers, {counts['topics']} topics"
    yield "they agree" if not found else f"{len(found)} differences:"
    for one in found[:MAX_SHOWN]:
        yield one.text()
    if len(found) > MAX_SHOWN:
        yield f"... and {len(found) - MAX_SHOWN} more; --json prints all"
