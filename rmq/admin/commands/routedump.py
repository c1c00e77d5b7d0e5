"""``rmq-admin routeDump``: all routes of NameServers, in the form that ``rmq-audit cluster`` compares with stores."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, FirstError, gatherResults

from rmq.admin.command import NAMESRV, Call, Outcome, command
from rmq.admin.commands.routediff import LOOK_UPS, route_of
from rmq.wire.api.routes import GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_BROKER_CLUSTER_INFO


@command("route dump", "print brokers, topics and queues of each NameServer; with --json what rmq-audit reads", NAMESRV)
async def route_dump(call: Call) -> Outcome:
    """Read all routes of each NameServer; RequestFailed when one does not answer."""
    dumps = [await dump_of(call, addr) for addr in dict.fromkeys(call.options.namesrvAddr)]
    lines = []
    for one in dumps:
        topics = {queue["topic"] for queue in one["queues"]}
        lines.append(f"{one['nameserver']}: {len(one['brokers'])} brokers, {len(topics)} topics")
        lines += [
            f"    {broker['brokerName']} id {broker['brokerId']}: {broker['addr']}, cluster {broker['cluster']}"
            for broker in one["brokers"]
        ]
        lines += [
            f"    {queue['topic']} on {queue['brokerName']}: {queue['readQueueNums']} read and "
            f"{queue['writeQueueNums']} write queues, permission {queue['perm']}"
            for queue in one["queues"]
        ]
    return Outcome(text="\n".join(lines), data=dumps)


async def dump_of(call: Call, addr: str) -> dict[str, Any]:
    """Return the routes of one NameServer with the names of RocketMQ's JSON."""
    info = (await call.invoke(addr, GET_BROKER_CLUSTER_INFO, None, None)).body
    brokers = [
        {"cluster": broker.cluster, "brokerName": name, "brokerId": int(broker_id), "addr": broker_addr}
        for name, broker in sorted(info.broker_addr_table.items())
        for broker_id, broker_addr in sorted(broker.broker_addrs.items())
    ]
    topics = sorted((await call.invoke(addr, GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, None)).body.topic_list)
    queues = []
    for at in range(0, len(topics), LOOK_UPS):
        part = topics[at : at + LOOK_UPS]
        try:
            routes = await gatherResults(
                [Deferred.fromCoroutine(route_of(call, addr, topic)) for topic in part], consumeErrors=True
            )
        except FirstError as error:
            cause = error.subFailure.value
            assert isinstance(cause, Exception)
            raise cause from None
        for topic, route in zip(part, routes, strict=True):
            for queue in route.queue_datas if route is not None else ():
                queues.append(
                    {
                        "topic": topic,
                        "brokerName": queue.broker_name,
                        "readQueueNums": queue.read_queue_nums,
                        "writeQueueNums": queue.write_queue_nums,
                        "perm": queue.perm,
                        "topicSysFlag": queue.topic_sys_flag,
                    }
                )
    return {"nameserver": addr, "brokers": brokers, "queues": queues}
