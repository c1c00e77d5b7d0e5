"""What several commands ask first: NameServers for brokers and routes; many brokers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from twisted.internet.defer import Deferred, FirstError, gatherResults

from rmq.admin.command import OK, REFUSED, UNASKED, Call, NotFound, Outcome, WrongUse, merged, tabular
from rmq.client.flows.admin import Admin
from rmq.client.flows.admin import addresses_by_name as addresses_by_name
from rmq.errors import Refused, RequestFailed
from rmq.wire.api.common import MASTER_ID
from rmq.wire.api.routes import (
    DELETE_TOPIC_IN_NAMESRV,
    ClusterInfo,
    DeleteTopicInNamesrvHeader,
    TopicRouteData,
)
from rmq.wire.api.topics import DELETE_TOPIC_IN_BROKER, TopicHeader
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")
T = TypeVar("T")

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
#: of system topics. Stores of 5.x bring some that no broker of 4.9, and none of ours, names.  Java: TopicValidator
SYSTEM_PREFIX = "rmq_sys_"


def admin_of(call: Call) -> Admin:
    """Return what a command has in common with the Python API."""
    return Admin(call.invoke, call.namesrvs)


async def ask_namesrv(call: Call, contract: Contract[H, None, RH, RB], header: H) -> Response[RH, RB]:
    """Ask one NameServer after the other until one answers; a refusal is an answer. Raises RequestFailed."""
    return await admin_of(call).ask_namesrv(contract, header, None)


async def cluster_info(call: Call) -> ClusterInfo:
    return await admin_of(call).cluster()


def check_registered(call: Call, info: ClusterInfo) -> None:
    """Raise NotFound when the NameServer that answered knows no broker: it answers no question about a cluster."""
    if not info.broker_addr_table:
        raise NotFound(f"no broker is registered at {call.namesrvs[0]}")


async def route_of(call: Call, topic: str) -> TopicRouteData:
    """Return the route of a topic; raises NotFound."""
    return await admin_of(call).route(topic)


async def targets(call: Call) -> list[str]:
    """
    Return the brokers that a command is meant for: ``--brokerAddr``, or the masters of a cluster.

    Groups of brokers without a master are named on standard error. WrongUse when the cluster has to be named,
    NotFound when it is unknown or without a master.
    """
    return list(call.options.brokerAddr or ()) or masters_of(call, await broker_groups(call))


async def members(call: Call) -> list[str]:
    """Return ``--brokerAddr``, or all brokers of a cluster, its slaves too; raises as targets."""
    named = list(call.options.brokerAddr or ())
    return named or [addr for addrs in (await broker_groups(call)).values() for addr in addrs.values()]


def masters_of(call: Call, groups: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Return the masters of :func:`broker_groups`, and name the groups without one; NotFound when none has one."""
    if masters := present_masters(call, groups):
        return masters
    raise NotFound("the cluster has no master")


def present_masters(call: Call, groups: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Return the masters of :func:`broker_groups`, and name the groups without one."""
    masters = []
    for name, addrs in groups.items():
        if MASTER_ID in addrs:
            masters.append(addrs[MASTER_ID])
        else:
            call.terminal.warn(f"rmq-admin: {name} has no master, its slaves: {', '.join(addrs.values())}")
    return masters


async def broker_groups(call: Call) -> dict[str, dict[int, str]]:
    """Return the brokers of the chosen or only cluster: their names, and their addresses by id; raises as targets."""
    info = await cluster_info(call)
    call.options.clusterName, names = one_cluster(call, info)
    table = info.broker_addr_table
    return {name: dict(sorted(table[name].broker_addrs.items())) for name in names if name in table}


def one_cluster(call: Call, info: ClusterInfo) -> tuple[str, list[str]]:
    """Return the name of the chosen or only cluster and its sorted broker names; raises WrongUse and NotFound."""
    check_registered(call, info)
    clusters = info.cluster_addr_table
    wanted = call.options.clusterName
    if wanted is None:
        if len(clusters) != 1:
            known = ", ".join(sorted(clusters)) or "none"
            raise WrongUse(f"choose a cluster with -c or brokers with -b; clusters known: {known}")
        (wanted,) = clusters
    if wanted not in clusters:
        raise NotFound(f"no cluster {wanted}; clusters known: {', '.join(sorted(clusters)) or 'none'}")
    return wanted, sorted(clusters[wanted])


async def ask_all(
    call: Call, addrs: Iterable[str], contract: Contract[H, None, RH, RB], header: H
) -> tuple[list[tuple[str, Response[RH, RB]]], list[RequestFailed]]:
    """Ask all servers at once; return the answers by address, and the failures of the other servers."""

    async def ask(addr: str) -> Response[RH, RB] | RequestFailed:
        try:
            return await call.invoke(addr, contract, header, None)
        except RequestFailed as error:
            return error

    asked = list(addrs)
    found = await together(Deferred.fromCoroutine(ask(addr)) for addr in asked)
    answers = [(addr, one) for addr, one in zip(asked, found, strict=True) if not isinstance(one, RequestFailed)]
    return answers, [one for one in found if isinstance(one, RequestFailed)]


async def ask_each(
    call: Call, addrs: Iterable[str], contract: Contract[H, None, RH, RB], header: H
) -> list[tuple[str, Response[RH, RB]]]:
    """Ask all servers at once, for a result that needs every answer; raises the RequestFailed of the first failure."""
    asked = list(addrs)
    answers = await together(call.invoke(addr, contract, header, None) for addr in asked)
    return list(zip(asked, answers, strict=True))


async def together(asked: Iterable[Deferred[T]]) -> list[T]:
    """Wait for all; raises the exception of the first that fails."""
    try:
        return await gatherResults(list(asked), consumeErrors=True)
    except FirstError as error:
        cause = error.subFailure.value
        assert isinstance(cause, Exception)
        raise cause from None


async def change_each(
    call: Call,
    addrs: Sequence[str],
    contract: Contract[H, B, RH, RB],
    header: H,
    body: B,
    *,
    what: str,
    mqadmin: str | Callable[[str, RH], str] | None = None,
) -> Outcome:
    """
    Send one change to all servers, whatever becomes of it elsewhere; the worst result is the exit status.

    ``mqadmin``: what mqadmin prints once, or for each server where it has ``{addr}`` or is made of address and answer;
    only when all took it.
    """
    rows: list[tuple[str, str]] = []
    texts: list[str] = []
    status = OK
    for addr in addrs:
        try:
            answer = await call.change(addr, contract, header, body)
        except RequestFailed as error:
            rows.append((addr, str(error)))
            status = max(status, REFUSED if isinstance(error, Refused) else UNASKED)
        else:
            rows.append((addr, what))
            if isinstance(mqadmin, str):
                texts.append(mqadmin.replace("{addr}", addr))
            elif mqadmin is not None and answer is not None:
                texts.append(mqadmin(addr, answer.header))
    mqadmin_text = "\n".join(dict.fromkeys(texts)) if mqadmin is not None and status == OK else None
    return tabular(("server", "result"), rows, nothing="no server", status=status, mqadmin_text=mqadmin_text)


async def delete_topic(call: Call, brokers: Sequence[str], topic: str) -> Outcome:
    """Delete a topic from these brokers, then from the NameServers."""
    what = f"{topic} is deleted"
    at_brokers = await change_each(
        call,
        brokers,
        DELETE_TOPIC_IN_BROKER,
        TopicHeader(topic=topic),
        None,
        what=what,
        mqadmin=f"delete topic [{topic}] from cluster [{call.options.clusterName}] success.",
    )
    at_namesrvs = await change_each(
        call,
        call.options.namesrvAddr,
        DELETE_TOPIC_IN_NAMESRV,
        DeleteTopicInNamesrvHeader(topic=topic),
        None,
        what=what,
        mqadmin=f"delete topic [{topic}] from NameServer success.",
    )
    return merged([at_brokers, at_namesrvs])
