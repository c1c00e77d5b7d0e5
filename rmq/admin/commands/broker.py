"""``rmq-admin broker``: figures, configuration, write permission, cleaning."""

from __future__ import annotations

import difflib

from rmq.admin import columns
from rmq.admin.command import (
    CLUSTER,
    NAMESRV,
    ONE_BROKER,
    Call,
    NotFound,
    Outcome,
    argument,
    command,
    only_mqadmin,
    subject,
    tabular,
)
from rmq.admin.lookups import ask_all, ask_each, broker_groups, change_each, cluster_info, members, targets
from rmq.runtime.properties import decode_properties
from rmq.wire.api.admin import (
    CLEAN_EXPIRED_CONSUMEQUEUE,
    CLEAN_UNUSED_TOPIC,
    DELETE_EXPIRED_COMMITLOG,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    UPDATE_BROKER_CONFIG,
)
from rmq.wire.api.common import MASTER_ID
from rmq.wire.api.routes import (
    ADD_WRITE_PERM_OF_BROKER,
    WIPE_WRITE_PERM_OF_BROKER,
    AddWritePermReply,
    BrokerNameHeader,
    WipeWritePermReply,
)
from rmq.wire.contract import Contract


@command("broker show", "show the runtime figures of brokers", NAMESRV, CLUSTER, ONE_BROKER)
async def broker_show(call: Call) -> Outcome:
    """The figures of all brokers that answer."""
    answers, failures = await ask_all(call, await targets(call), GET_BROKER_RUNTIME_INFO, None)
    tables = {addr: answer.body.table for addr, answer in answers}
    rows = [(addr, key, value) for addr, table in tables.items() for key, value in sorted(table.items())]
    mqadmin_text = columns.broker_status(tables, with_addr=call.options.brokerAddr is None)
    titles = ("broker", "figure", "value")
    return tabular(titles, rows, nothing="no figure", mqadmin_text=mqadmin_text, failures=failures)


@command(
    "broker config",
    "show the configuration of brokers, or only what differs between them",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    argument("--diff", action="store_true", help="only keys whose values differ; status 2 when there is one"),
)
async def broker_config(call: Call) -> Outcome:
    """
    The configuration of all brokers that answer, and what differs between them.

    Of a cluster these are its masters; under the command's name in mqadmin its slaves too.
    """
    names: dict[str, str] = {}
    if call.options.as_mqadmin and call.options.brokerAddr is None:
        for group in (await broker_groups(call)).values():
            master = group.get(MASTER_ID)
            slaves = [addr for addr in group.values() if addr != master]
            names |= {master: f"Master: {master}"} if master else {}
            names |= {addr: f"My Master: {master}=====Slave: {addr}" for addr in slaves}
    brokers = list(names) or await targets(call)
    answers, failures = await ask_all(call, brokers, GET_BROKER_CONFIG, None)
    tables = {addr: decode_properties(answer.body, addr) for addr, answer in answers}
    keys = sorted({key for table in tables.values() for key in table})
    if call.options.diff:
        keys = [key for key in keys if len({table.get(key) for table in tables.values()}) > 1]
    rows = [(addr, key, table[key]) for key in keys for addr, table in tables.items() if key in table]
    status = 2 if call.options.diff and rows else 0
    titles = ("broker", "key", "value")
    mqadmin_text = None
    if not call.options.diff:
        mqadmin_text = columns.configurations({names.get(addr, addr): table for addr, table in tables.items()})
    return tabular(titles, rows, nothing="no key differs", status=status, mqadmin_text=mqadmin_text, failures=failures)


@command(
    "broker set",
    "set a configuration key of brokers, without a restart",
    NAMESRV,
    subject("key", "-k", "--key", metavar="KEY"),
    subject("value", "-v", "--value", metavar="VALUE"),
    CLUSTER,
    ONE_BROKER,
    only_mqadmin("-a", "--updateAllBroker", dest="slaves_too", help="whatever its value: slaves of the cluster too"),
    changes=True,
)
async def broker_set(call: Call) -> Outcome:
    """Status 1 when a broker refuses it, 4 when nobody confirms it."""
    options = call.options
    brokers = await (members(call) if getattr(options, "slaves_too", None) else targets(call))
    if not options.as_mqadmin:
        await _check_key(call, brokers, options.key)
    call.confirm(f"{options.key}={options.value} is set on {', '.join(brokers)}", options.key)
    body = f"{options.key}={options.value}\n".encode()
    what = f"{options.key}={options.value}"
    line = "update broker config success, {addr}"
    return await change_each(call, brokers, UPDATE_BROKER_CONFIG, None, body, what=what, mqadmin=line)


async def _check_key(call: Call, brokers: list[str], key: str) -> None:
    """NotFound when a broker has no such key: it would take the request, and nothing would change."""
    for addr, answer in await ask_each(call, brokers, GET_BROKER_CONFIG, None):
        known = decode_properties(answer.body, addr)
        if key not in known:
            meant = difflib.get_close_matches(key, known, n=1)
            raise NotFound(f"broker {addr} has no key {key}{f'; is it {meant[0]}?' if meant else ''}")


NAME = subject("brokerName", "-b", "--brokerName", metavar="BROKER_NAME")


@command(
    "broker drain",
    "take the write permission from all topics of a broker name, so that producers leave it",
    NAMESRV,
    NAME,
    changes=True,
)
async def broker_drain(call: Call) -> Outcome:
    """
    Ask every NameServer; a restart of the broker or `undrain` ends it.

    Status 2 when there is no such broker, 4 when nobody confirms it.
    """
    name = await _known_name(call)
    call.confirm(f"no producer sends to {name} any more", name)
    header = BrokerNameHeader(broker_name=name)

    def line(addr: str, reply: WipeWritePermReply) -> str:
        return f"wipe write perm of broker[{name}] in name server[{addr}] OK, {reply.wipe_topic_count}"

    what, namesrvs = f"{name} is drained", call.options.namesrvAddr
    return await change_each(call, namesrvs, WIPE_WRITE_PERM_OF_BROKER, header, None, what=what, mqadmin=line)


@command("broker undrain", "give the write permission back", NAMESRV, NAME, changes=True)
async def broker_undrain(call: Call) -> Outcome:
    """Ask every NameServer; status 2 when there is no such broker."""
    name = await _known_name(call)
    header = BrokerNameHeader(broker_name=name)

    def line(addr: str, reply: AddWritePermReply) -> str:
        return f"add write perm of broker[{name}] in name server[{addr}] OK, {reply.add_topic_count}"

    what, namesrvs = f"{name} takes messages", call.options.namesrvAddr
    return await change_each(call, namesrvs, ADD_WRITE_PERM_OF_BROKER, header, None, what=what, mqadmin=line)


async def _known_name(call: Call) -> str:
    """Return the broker name; NotFound when no broker has it: NameServers would take it, and change nothing."""
    name: str = call.options.brokerName
    known = (await cluster_info(call)).broker_addr_table
    if name not in known:
        raise NotFound(f"no broker {name}; brokers known: {', '.join(sorted(known)) or 'none'}")
    return name


async def _clean(call: Call, contract: Contract[None, None, None, None], what: str) -> Outcome:
    brokers = await targets(call)
    call.confirm(f"{what} on {', '.join(brokers)}", "yes")
    return await change_each(call, brokers, contract, None, None, what=what, mqadmin="success")


ON_CLUSTER = argument("-c", "--clusterName", "--cluster", metavar="CLUSTER", help="all masters of this cluster")


@command("broker clean-topics", "delete what is left of deleted topics", NAMESRV, ON_CLUSTER, ONE_BROKER, changes=True)
async def broker_clean_topics(call: Call) -> Outcome:
    """Status 1 when a broker does not know the request, 4 when nobody confirms it."""
    return await _clean(call, CLEAN_UNUSED_TOPIC, "queues of deleted topics are deleted")


@command("broker clean-queues", "delete index files of deleted messages", NAMESRV, ON_CLUSTER, ONE_BROKER, changes=True)
async def broker_clean_queues(call: Call) -> Outcome:
    """Status 1 when a broker does not know the request, 4 when nobody confirms it."""
    return await _clean(call, CLEAN_EXPIRED_CONSUMEQUEUE, "index files of deleted messages are deleted")


@command(
    "broker clean-log",
    "delete log files older than fileReservedTime",
    NAMESRV,
    ON_CLUSTER,
    ONE_BROKER,
    changes=True,
)
async def broker_clean_log(call: Call) -> Outcome:
    """Status 1 when a broker does not know the request, 4 when nobody confirms it."""
    return await _clean(call, DELETE_EXPIRED_COMMITLOG, "log files older than fileReservedTime are deleted")
