"""``rmq-admin topic``: topics, their queues, routes and figures."""

from __future__ import annotations

import argparse

import attrs
from twisted.internet.defer import Deferred

from rmq.admin import columns
from rmq.admin.command import (
    CLUSTER,
    NAMESRV,
    OK,
    ONE_BROKER,
    Call,
    NotFound,
    Outcome,
    WrongUse,
    addresses,
    argument,
    command,
    flag,
    ignored,
    is_true,
    merged,
    only_mqadmin,
    positive,
    subject,
    tabular,
)
from rmq.admin.lookups import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_PREFIX,
    addresses_by_name,
    admin_of,
    ask_all,
    ask_each,
    ask_namesrv,
    change_each,
    check_registered,
    cluster_info,
    delete_topic,
    route_of,
    targets,
    together,
)
from rmq.admin.times import time_text
from rmq.client.core.allocate import average, average_by_circle, in_order, java_order
from rmq.client.flows.admin import AUTO_CREATE_TOPIC, DEFAULT_QUEUES, topic_header
from rmq.errors import Refused, RequestFailed
from rmq.wire.api.admin import VIEW_BROKER_STATS_DATA, BrokerStatsHeader
from rmq.wire.api.common import PERM_READ, PERM_WRITE, SYS_FLAG_UNIT, SYS_FLAG_UNIT_SUB, MessageQueue, perm_text
from rmq.wire.api.kv import DELETE_KV_CONFIG, GET_KV_CONFIG, PUT_KV_CONFIG, KVConfigHeader, PutKVConfigHeader
from rmq.wire.api.offsets import GET_CONSUME_STATS, ConsumeStatsHeader
from rmq.wire.api.routes import (
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST_FROM_NS,
    GetRouteInfoHeader,
)
from rmq.wire.api.topics import (
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    GET_TOPIC_STATS_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicHeader,
    TopicHeader,
)
from rmq.wire.codes import ResponseCode

TOPIC = subject("topic", "-t", "--topic", metavar="TOPIC")

PERMS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE, "2": 2, "4": 4, "6": 6}


@command(
    "topic list",
    "list topics; without --all those of RocketMQ itself and of retries and dead letters are left out",
    NAMESRV,
    argument("--all", action="store_true", help="system topics, %%RETRY%% and %%DLQ%% too"),
    argument(
        "--groups", mqadmin=("-c", "--clusterModel"), action="store_true", help="with the groups that consume each"
    ),
)
async def topic_list(call: Call) -> Outcome:
    """Read the NameServer's topics; ``--groups`` asks the brokers of each topic."""
    everything = (await ask_namesrv(call, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)).body.topic_list
    failures: list[RequestFailed] = []
    if call.options.as_mqadmin:
        topics = [name for name in everything if not (call.options.groups and name.startswith(_OF_GROUPS))]
    elif call.options.all:
        topics = sorted(everything)
    else:
        hidden, failures = await _system_topics(call)
        prefixes = (*_OF_GROUPS, SYSTEM_PREFIX)
        topics = sorted(name for name in everything if name not in hidden and not name.startswith(prefixes))
    if not topics and not call.options.as_mqadmin:
        check_registered(call, await cluster_info(call))
    if not call.options.groups:
        mqadmin_text = "\n".join(topics)
        rows: list[tuple[str, ...]] = [(topic,) for topic in topics]
        return tabular(("topic",), rows, nothing="no topic", mqadmin_text=mqadmin_text, failures=failures)
    found = await together(Deferred.fromCoroutine(_cluster_and_groups_of(call, topic)) for topic in topics)
    rows = [(topic, ", ".join(names)) for topic, (_, names, _) in zip(topics, found, strict=True)]
    mqadmin_text = columns.topic_list(
        (cluster, topic, names) for topic, (cluster, names, _) in zip(topics, found, strict=True)
    )
    failures += [failure for *_, failed in found for failure in failed]
    return tabular(("topic", "groups"), rows, nothing="no topic", mqadmin_text=mqadmin_text, failures=failures)


_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)


async def _system_topics(call: Call) -> tuple[set[str], list[RequestFailed]]:
    """Return clusters, brokers and what brokers call system topics, and the failures of brokers."""
    known = (await ask_namesrv(call, GET_SYSTEM_TOPIC_LIST_FROM_NS, None)).body.topic_list
    info = await cluster_info(call)
    brokers = addresses_by_name(info.broker_addr_table.values()).values()
    own, failures = await ask_all(call, brokers, GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None)
    return {*known, *(topic for _, answer in own for topic in answer.body.topic_list)}, failures


async def _cluster_and_groups_of(call: Call, topic: str) -> tuple[str, list[str], list[RequestFailed]]:
    """
    Return the cluster of a topic's first broker, the groups that consume it, and the failures of brokers.

    Nothing where it has no route.
    """
    try:
        route = await route_of(call, topic)
    except NotFound:
        return "", [], []
    brokers = addresses_by_name(route.broker_datas).values()
    answers, failures = await ask_all(call, brokers, QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic=topic))
    found = {group for _, answer in answers for group in answer.body.group_list}
    return route.broker_datas[0].cluster if route.broker_datas else "", sorted(found), failures


@command(
    "topic route",
    "show the brokers and queues of a topic, as NameServers know them",
    NAMESRV,
    TOPIC,
    argument("-l", "--list", action="store_true", help="of mqadmin's forms that in columns"),
)
async def topic_route(call: Call) -> Outcome:
    """Status 2 when the topic has no route."""
    route = await route_of(call, call.options.topic)
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    rows = [
        (
            queue.broker_name,
            queue.read_queue_nums,
            queue.write_queue_nums,
            perm_text(queue.perm),
            " ".join(f"{n}={addr}" for n, addr in sorted(brokers[queue.broker_name].broker_addrs.items()))
            if queue.broker_name in brokers
            else "",
        )
        for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name)
    ]
    titles = ("broker", "read_queues", "write_queues", "perm", "addresses")
    mqadmin_text = (columns.topic_route_list if call.options.list else columns.topic_route)(route)
    return tabular(titles, rows, nothing="the route has no queue", mqadmin_text=mqadmin_text)


@command(
    "topic show",
    "show the queues of a topic with their offsets and the time of the last message",
    NAMESRV,
    TOPIC,
    ignored("-c", "--cluster"),
)
async def topic_show(call: Call) -> Outcome:
    """Ask each broker of the topic; status 2 when the topic has no route."""
    topic = call.options.topic
    offsets = await admin_of(call).topic_offsets(topic)
    rows = [
        (
            queue.broker_name,
            queue.queue_id,
            at.min_offset,
            at.max_offset,
            at.max_offset - at.min_offset,
            time_text(at.last_update_timestamp),
        )
        for queue, at in offsets.items()
    ]
    titles = ("broker", "queue", "min_offset", "max_offset", "messages", "last_message")
    return tabular(titles, rows, nothing="the topic has no queue", mqadmin_text=columns.topic_status(offsets))


@command(
    "topic create",
    "create a topic, or alter it, on all masters of a cluster",
    NAMESRV,
    TOPIC,
    CLUSTER,
    ONE_BROKER,
    argument("--queues", type=positive, metavar="N", help="queues for producers and consumers (default: 8)"),
    argument("-r", "--readQueueNums", type=positive, metavar="N", help="queues that consumers see"),
    argument("-w", "--writeQueueNums", type=positive, metavar="N", help="queues that producers see"),
    argument("-p", "--perm", choices=tuple(PERMS), default="rw", help="r, w or rw, in numbers 4, 2 or 6 (default: rw)"),
    flag("--order", "-o", help="for ordered messages: NameServers tell clients its queues"),
    only_mqadmin("-u", "--unit", type=is_true, default=False, metavar="true|false", help="a topic of a unit"),
    argument(
        "--attributes",
        mqadmin=("-a",),
        metavar="+KEY=VALUE,-KEY",
        help="attributes at brokers of 5.x: +message.type=FIFO",
    ),
    only_mqadmin("-s", "--hasUnitSub", type=is_true, default=False, metavar="true|false", help="units subscribe to it"),
    changes=True,
)
async def topic_create(call: Call) -> Outcome:
    """Send the topic to each master, its order to the NameServers; status 1 when one refuses it."""
    options = call.options
    queues = options.queues or DEFAULT_QUEUES
    header = topic_header(
        options.topic,
        options.readQueueNums or queues,
        options.writeQueueNums or queues,
        PERMS[options.perm],
        topic_sys_flag=_sys_flag(options),
        order=options.order,
        attributes=options.attributes,
    )
    numbers = f"{header.read_queue_nums} read and {header.write_queue_nums} write queues"
    what = f"{header.topic}: {numbers}, {perm_text(header.perm)}"
    brokers = await targets(call)
    line = "create topic to {addr} success."
    created = await change_each(call, brokers, UPDATE_AND_CREATE_TOPIC, header, None, what=what, mqadmin=line)
    if created.status != OK:
        return created
    shown = columns.topic_config(header)
    if not options.order:
        return attrs.evolve(created, mqadmin_text=f"{created.mqadmin_text}\n{shown}")
    conf = await _order_of(call, brokers, header.write_queue_nums)
    new = PutKVConfigHeader(namespace=ORDER_NAMESPACE, key=options.topic, value=conf)
    what, line = f"order {conf}", f"orderConf. isOrder=true, orderConf=[{conf}]"
    ordered = await change_each(call, options.namesrvAddr, PUT_KV_CONFIG, new, None, what=what, mqadmin=line)
    whole = merged([created, ordered])
    if whole.mqadmin_text is None:
        return whole
    if options.brokerAddr:  # mqadmin ends no line after the order
        text = f"set broker {line}{created.mqadmin_text}\n{shown}"
    else:
        text = f"{created.mqadmin_text}\nset cluster {line}{shown}"
    return attrs.evolve(whole, mqadmin_text=text)


def _sys_flag(options: argparse.Namespace) -> int | None:
    """Return the flag of mqadmin's two options, None where the command has none of them."""
    if not options.as_mqadmin:
        return None
    return (SYS_FLAG_UNIT if options.unit else 0) | (SYS_FLAG_UNIT_SUB if options.hasUnitSub else 0)


async def _order_of(call: Call, brokers: list[str], queues: int) -> str:
    """Return BROKER:QUEUES;... of these brokers, beside those that are there where brokers were named."""
    info = await cluster_info(call)
    names = [
        name
        for name, data in sorted(info.broker_addr_table.items())
        if not set(brokers).isdisjoint(data.broker_addrs.values())
    ]
    entries = {name: str(queues) for name in names}
    if call.options.brokerAddr:
        try:
            found = dict(one.split(":", 1) for one in (await _order_conf(call)).split(";") if ":" in one)
        except NotFound:
            found = {}
        entries = {**found, **entries}
    return ";".join(f"{name}:{number}" for name, number in entries.items())


async def _order_conf(call: Call) -> str:
    """Return the order configuration that a NameServer has of the topic; raises NotFound."""
    topic = call.options.topic
    try:
        header = KVConfigHeader(namespace=ORDER_NAMESPACE, key=topic)
        return (await ask_namesrv(call, GET_KV_CONFIG, header)).header.value or ""
    except Refused as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        raise NotFound(f"topic {topic} has no order configuration") from None


@command(
    "topic perm",
    "set who may use a topic: r consumers, w producers, rw both; queues stay as they are",
    NAMESRV,
    TOPIC,
    subject("perm", "-p", "--perm", choices=tuple(PERMS)),
    argument("-b", "--brokerAddr", type=addresses, metavar="HOST:PORT[;...]", help="only these brokers"),
    argument("-c", "--clusterName", help="accepted for mqadmin's sake: the route names the brokers"),
    changes=True,
)
async def topic_perm(call: Call) -> Outcome:
    """Send the topic with its own queue numbers to each master of its route. Status 4 when nobody confirms it."""
    options = call.options
    route = await route_of(call, options.topic)
    brokers = addresses_by_name(route.broker_datas)
    call.confirm(f"topic {options.topic} is {perm_text(PERMS[options.perm])} from now on", options.topic)
    results = []
    for queue in sorted(route.queue_datas, key=lambda queue: queue.broker_name):
        addr = brokers.get(queue.broker_name)
        if addr is None or (options.brokerAddr and addr not in options.brokerAddr):
            continue
        header = CreateTopicHeader(
            topic=options.topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queue.read_queue_nums,
            write_queue_nums=queue.write_queue_nums,
            perm=PERMS[options.perm],
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=queue.topic_sys_flag,
        )
        what = f"{options.topic}: {perm_text(queue.perm)} is now {perm_text(header.perm)}"
        line = f"update topic perm from {queue.perm} to {header.perm} in {{addr}} success."
        results.append(await change_each(call, [addr], UPDATE_AND_CREATE_TOPIC, header, None, what=what, mqadmin=line))
    return merged(results)


@command(
    "topic delete",
    "delete a topic from all masters of a cluster and from the NameServers",
    NAMESRV,
    TOPIC,
    CLUSTER,
    changes=True,
)
async def topic_delete(call: Call) -> Outcome:
    """
    The messages are gone with it. Status 2 when there is no such topic, 4 when nobody confirms it.

    mqadmin deletes without looking.
    """
    options = call.options
    options.brokerAddr = None
    topic = options.topic
    brokers = await targets(call)
    if not options.as_mqadmin:
        await _check_topic(call, brokers, topic)
    call.confirm(f"topic {topic} and its messages are deleted from {', '.join(brokers)}", topic)
    return await delete_topic(call, brokers, topic)


async def _check_topic(call: Call, brokers: list[str], topic: str) -> None:
    """NotFound when all brokers and all NameServers answer that they have no such topic."""
    stats, failures = await ask_all(call, brokers, GET_TOPIC_STATS_INFO, TopicHeader(topic=topic))
    header = GetRouteInfoHeader(topic=topic)
    routes, more = await ask_all(call, call.options.namesrvAddr, GET_ROUTEINFO_BY_TOPIC, header)
    absent = [one for one in failures + more if isinstance(one, Refused) and one.code == ResponseCode.TOPIC_NOT_EXIST]
    if not stats and not routes and len(absent) == len(failures + more):
        raise NotFound(f"there is no topic {topic}")


@command("topic clusters", "show the clusters that have a topic", NAMESRV, TOPIC)
async def topic_clusters(call: Call) -> Outcome:
    """Status 2 when the topic has no route."""
    found = sorted({broker.cluster for broker in (await route_of(call, call.options.topic)).broker_datas})
    mqadmin_text = "\n".join(found)
    return tabular(("cluster",), [(one,) for one in found], nothing="no cluster", mqadmin_text=mqadmin_text)


@command(
    "topic stats",
    "show what is sent and consumed of each topic, and what waits",
    NAMESRV,
    subject("topic", "-t", "--topic", nargs="?", metavar="TOPIC", help="only this one"),
    argument("--active", mqadmin=("-a", "--activeTopic"), action="store_true", help="only what was used for a day"),
)
async def topic_stats(call: Call) -> Outcome:
    """
    A row for each group of a topic. Asks the brokers of every topic. Status 2 when there is no such topic.

    A broker that has not answered once is not asked again, and its topics have no row: their sums would lack its part.
    """
    only = call.options.topic
    names = (await ask_namesrv(call, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None)).body.topic_list
    topics = [name for name in sorted(names) if not name.startswith(_OF_GROUPS) and only in (None, name)]
    if not topics and not call.options.as_mqadmin:
        check_registered(call, await cluster_info(call))
        if only is not None:
            raise NotFound(f"there is no topic {only}")
    rows: list[columns.Counted] = []
    failures: list[RequestFailed] = []
    silent: set[str] = set()
    for topic in topics:
        try:
            brokers = list(addresses_by_name((await route_of(call, topic)).broker_datas).values())
        except NotFound:  # deleted since, or without a broker
            continue
        if not silent.isdisjoint(brokers):
            continue
        try:
            rows += await _stats_of(call, topic, brokers)
        except RequestFailed as error:
            failures.append(error)
            if not isinstance(error, Refused):
                silent.add(error.addr)
    titles = ("topic", "group", "lag", "sent_per_second", "consumed_per_second", "sent_24h", "consumed_24h")
    mqadmin_text = columns.topic_stats(rows)
    return tabular(titles, rows, nothing="no topic", mqadmin_text=mqadmin_text, failures=failures)


async def _stats_of(call: Call, topic: str, brokers: list[str]) -> list[columns.Counted]:
    """Return the rows of one topic; raises RequestFailed."""
    rows: list[columns.Counted] = []
    sent_rate, sent = await _counted(call, brokers, "TOPIC_PUT_NUMS", topic)
    asked = await ask_each(call, brokers, QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic=topic))
    groups = sorted({group for _, answer in asked for group in answer.body.group_list})
    for group in groups:
        rate, consumed = await _counted(call, brokers, "GROUP_GET_NUMS", f"{topic}@{group}")
        if consumed or sent or not call.options.active:
            lag = await _lag_of(call, brokers, topic, group)
            rows.append((topic, group, lag, sent_rate, rate, sent, consumed))
    if not groups and (sent or not call.options.active):
        rows.append((topic, None, None, sent_rate, None, sent, None))
    return rows


async def _counted(call: Call, brokers: list[str], name: str, key: str) -> tuple[float, int]:
    """Return the rate of the last minute and the sum of the longest window that has one, of all brokers."""
    rate, total = 0.0, 0
    for addr in brokers:
        try:
            header = BrokerStatsHeader(stats_name=name, stats_key=key)
            data = (await call.invoke(addr, VIEW_BROKER_STATS_DATA, header, None)).body
        except Refused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:  # that: nothing was counted
                raise
            continue
        rate += data.stats_minute.tps
        total += data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum
    return rate, total


async def _lag_of(call: Call, brokers: list[str], topic: str, group: str) -> int:
    header = ConsumeStatsHeader(consumer_group=group, topic=topic)
    lag = 0
    for addr in brokers:
        try:
            table = (await call.invoke(addr, GET_CONSUME_STATS, header, None)).body.offset_table
        except Refused as error:
            if error.code not in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST):
                raise
            continue
        lag += sum(max(0, at.broker_offset - at.consumer_offset) for at in table.values())
    return lag


@command(
    "topic allocate",
    "show which member would get which queue of a topic",
    NAMESRV,
    TOPIC,
    argument("--members", mqadmin=("-i", "--ipList"), required=True, metavar="A,B,...", help="ids of the members"),
    argument("--circle", action="store_true", help="queues in turn, in place of in ranges"),
)
async def topic_allocate(call: Call) -> Outcome:
    """With Java's own rules. Status 2 when the topic has no route."""
    topic = call.options.topic
    route = await route_of(call, topic)
    queues = in_order(
        MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=number)
        for data in route.queue_datas
        for number in range(data.read_queue_nums)
    )
    members = sorted((one.strip() for one in call.options.members.split(",") if one.strip()), key=java_order)
    strategy = average_by_circle if call.options.circle else average
    found = {member: list(strategy("", member, queues, members)) for member in members}
    rows = [(member, queue.broker_name, queue.queue_id) for member in found for queue in found[member]]
    titles, nothing = ("member", "broker", "queue"), "no member gets a queue"
    return tabular(titles, rows, nothing=nothing, mqadmin_text=columns.allocation(found))


ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


@command(
    "topic order",
    "get, set or delete the queues of an ordered topic, as NameServers tell clients: BROKER:QUEUES;...",
    NAMESRV,
    TOPIC,
    subject("method", "-m", "--method", choices=("get", "set", "put", "delete")),
    argument("--conf", mqadmin=("-v", "--orderConf"), metavar="BROKER:N;...", help="for set"),
    changes=lambda options: options.method != "get",
)
async def topic_order(call: Call) -> Outcome:
    """Status 2 when the topic has none, 4 when nobody confirms a change."""
    options = call.options
    topic, conf = options.topic, options.conf
    if options.method == "get":
        value = await _order_conf(call)
        line = f"get orderConf success. topic=[{topic}], orderConf=[{value}] "
        return Outcome(text=value, data=value, mqadmin_text=line)
    if options.method == "delete":
        call.confirm(f"the order configuration of {topic} is deleted", topic)
        header = KVConfigHeader(namespace=ORDER_NAMESPACE, key=topic)
        what, line = "it is deleted", f"delete orderConf success. topic=[{topic}]"
        return await change_each(call, options.namesrvAddr, DELETE_KV_CONFIG, header, None, what=what, mqadmin=line)
    if not conf:
        raise WrongUse("set needs --conf BROKER:QUEUES;...")
    call.confirm(f"the order configuration of {topic} is {conf}", topic)
    new = PutKVConfigHeader(namespace=ORDER_NAMESPACE, key=topic, value=conf)
    line = f"update orderConf success. topic=[{topic}], orderConf=[{conf}]"
    return await change_each(call, options.namesrvAddr, PUT_KV_CONFIG, new, None, what=conf, mqadmin=line)
