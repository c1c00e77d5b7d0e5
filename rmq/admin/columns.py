"""
What mqadmin 4.9.7 prints where scripts cut columns or look for a word.

The order of topics, brokers and clusters is another: mqadmin's is that of Java's hash tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from rmq.client.types import ReceivedMessage
from rmq.wire.api.clients import ConsumerConnection
from rmq.wire.api.common import MessageQueue
from rmq.wire.api.offsets import OffsetWrapper
from rmq.wire.api.routes import TopicRouteData
from rmq.wire.api.topics import TopicOffset
from rmq.wire.codes import version_desc

#: (cluster, broker name, broker id, address, runtime figures or None when the broker did not answer)
Member = tuple[str, str, int, str, Mapping[str, str] | None]


def cluster_list(members: Iterable[Member], now_ms: int) -> str:
    """Java: ClusterListSubCommand#printClusterBaseInfo"""
    layout = "%-16s  %-22s  %-4s  %-22s %-16s %19s %19s %10s %5s %6s"
    titles = ("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)")
    lines = [layout % (*titles, "#PCWait(ms)", "#Hour", "#SPACE")]
    for cluster, name, broker_id, addr, figures in members:
        # mqadmin's values when a broker did not answer; those of a broker without the key are Java's null
        table = dict.fromkeys(_TEXTS, "") if figures is None else figures
        earliest = table.get("earliestMessageTimeStamp")
        hours = (now_ms - int(earliest)) / 3_600_000 if earliest else 0.0
        lines.append(
            layout
            % (
                cluster,
                name,
                broker_id,
                addr,
                table.get("brokerVersionDesc", "null"),
                _load(table, "putTps", "send"),
                _load(table, "getTransferedTps", "pull"),
                table.get("pageCacheLockTimeMills", "null"),
                f"{hours:2.2f}",
                f"{float(table.get('commitLogDiskRatio') or 0):.4f}",
            )
        )
    return "\n".join(lines)


_TEXTS = (
    "brokerVersionDesc",
    "pageCacheLockTimeMills",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueHeadWaitTimeMills",
)


def _load(table: Mapping[str, str], rate: str, pool: str) -> str:
    size = table.get(f"{pool}ThreadPoolQueueSize", "null")
    wait = table.get(f"{pool}ThreadPoolQueueHeadWaitTimeMills", "null")
    return f"{float((table.get(rate) or '').split(' ')[0] or 0):9.2f}({size},{wait}ms)"


def cluster_totals(members: Iterable[Member]) -> str:
    """Java: ClusterListSubCommand#printClusterMoreStats"""
    layout = "%-16s  %-32s %14s %14s %14s %14s"
    titles = ("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
    return "\n".join(
        [
            layout % titles,
            *(layout % (cluster, name, *totals_of(table or {})) for cluster, name, _, _, table in members),
        ]
    )


def totals_of(table: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Return how many messages came in and went out yesterday, then today."""

    def between(kind: str, begin: str, end: str) -> int:
        return int(table.get(f"msg{kind}Total{end}", 0)) - int(table.get(f"msg{kind}Total{begin}", 0))

    yesterday, today = ("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow")
    return between("Put", *yesterday), between("Get", *yesterday), between("Put", *today), between("Get", *today)


def topic_list(rows: Iterable[tuple[str, str, Sequence[str]]]) -> str:
    """Return (cluster, topic, groups) in columns.  Java: TopicListSubCommand"""
    lines = [f"{'#Cluster Name':20}  {'#Topic':48}  {'#Consumer Group':48}"]
    lines += [
        f"{cluster[:20]:20}  {topic[:64]:64}  {group[:64]:64}"
        for cluster, topic, groups in rows
        for group in groups or ("",)
    ]
    return "\n".join(lines)


def topic_route(route: TopicRouteData) -> str:
    """Return the route as fastjson prints it with indents.  Java: TopicRouteSubCommand#printData"""
    return _pretty(msgspec.to_builtins(route, str_keys=False), 0)


def _pretty(value: Any, depth: int) -> str:
    inner, outer = "\n" + "\t" * (depth + 1), "\n" + "\t" * depth
    if isinstance(value, list) and value:
        return "[" + inner + f",{inner}".join(_pretty(one, depth + 1) for one in value) + outer + "]"
    if isinstance(value, dict) and value:
        names = sorted(name for name in value if value[name] is not None)
        # fastjson begins no line before a key that is no text
        lead = "" if any(isinstance(name, int) for name in names) else inner
        members = [
            f"{name if isinstance(name, int) else _pretty(name, 0)}:{_pretty(value[name], depth + 1)}" for name in names
        ]
        return "{" + lead + f",{lead}".join(members) + outer + "}"
    return msgspec.json.encode(value).decode()


def topic_route_list(route: TopicRouteData) -> str:
    """Java: TopicRouteSubCommand#printData with -l"""
    layout = "%-45s %-32s %-50s %-10s %-11s %-5s"
    queues = {data.broker_name: data for data in route.queue_datas}
    lines = [layout % ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")]
    reads = writes = 0
    for broker in sorted(route.broker_datas, key=lambda broker: broker.broker_name):
        if broker.broker_name not in queues:
            continue
        data = queues[broker.broker_name]
        reads, writes = reads + data.read_queue_nums, writes + data.write_queue_nums
        addrs = ", ".join(f"{broker_id}={addr}" for broker_id, addr in sorted(broker.broker_addrs.items()))
        where = (broker.cluster, broker.broker_name, f"{{{addrs}}}")
        lines.append(layout % (*where, data.read_queue_nums, data.write_queue_nums, data.perm))
    lines += ["-" * 158, layout % ("Total:", len(queues), "", reads, writes, "")]
    return "\n".join(lines)


def topic_status(offsets: Mapping[MessageQueue, TopicOffset]) -> str:
    """Java: TopicStatusSubCommand"""
    layout = "%-32s  %-4s  %-20s  %-20s    %s"
    lines = [layout % ("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated")]
    for queue, at in offsets.items():
        moment = _moment(at.last_update_timestamp) if at.last_update_timestamp > 0 else ""
        lines.append(layout % (queue.broker_name[:32], queue.queue_id, at.min_offset, at.max_offset, moment))
    return "\n".join(lines)


def _moment(at_ms: int) -> str:
    """Java: UtilAll#timeMillisToHumanString2"""
    return f"{datetime.fromtimestamp(at_ms // 1000):%Y-%m-%d %H:%M:%S},{at_ms % 1000:03d}"


#: (topic, group, lag, messages sent and consumed a second, in 24 hours); None where no group consumes it
Counted = tuple[str, str | None, int | None, float, float | None, int, int | None]


def topic_stats(rows: Iterable[Counted]) -> str:
    """Java: StatsAllSubCommand"""
    layout = "%-64s  %-64s %12s %11s %11s %14s %14s"
    titles = ("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS", "#InMsg24Hour", "#OutMsg24Hour")
    lines = [layout % titles]
    for topic, group, lag, sent_rate, rate, sent, consumed in rows:
        of_group = ("", 0, "", "NO_CONSUMER") if rate is None else ((group or "")[:64], lag, f"{rate:.2f}", consumed)
        name, waiting, out_rate, out = of_group
        lines.append(layout % (topic[:64], name, waiting, f"{sent_rate:.2f}", out_rate, sent, out))
    return "\n".join(lines)


def broker_status(tables: Mapping[str, Mapping[str, str]], *, with_addr: bool) -> str:
    """Return the figures of brokers, one a line.  Java: BrokerStatusSubCommand#printBrokerRuntimeStats"""
    lead = "%-24s %-32s: %s" if with_addr else "%.0s%-32s: %s"
    return "\n".join(
        lead % (addr, key, value) for addr, table in tables.items() for key, value in sorted(table.items())
    )


def configurations(tables: Mapping[str, Mapping[str, str]], title: str = "") -> str:
    """Return the keys of servers below a line for each.  Java: GetBrokerConfigCommand, GetNamesrvConfigCommand"""
    blocks = [
        [f"============{title}{addr}============", *(f"{key:50}=  {value}" for key, value in sorted(table.items()))]
        for addr, table in tables.items()
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def consumer_connection(found: ConsumerConnection) -> str:
    """Java: ConsumerConnectionSubCommand"""
    layout = "%-36s %-22s %-10s %s"
    lines = [layout % ("#ClientId", "#ClientAddr", "#Language", "#Version")]
    lines += [
        layout % (one.client_id, one.client_addr, one.language, version_desc(one.version))
        for one in sorted(found.connection_set, key=lambda one: one.client_id)
    ]
    lines += ["", "Below is subscription:", f"{'#Topic':20} #SubExpression"]
    lines += [f"{one.topic:20} {one.sub_string}" for _, one in sorted(found.subscription_table.items())]
    lines += ["", f"ConsumeType: {found.consume_type}", f"MessageModel: {found.message_model}"]
    return "\n".join([*lines, f"ConsumeFromWhere: {found.consume_from_where}"])


def messages_of_key(found: Iterable[ReceivedMessage]) -> str:
    """Java: QueryMsgByKeySubCommand"""
    layout = "%-50s %4s %40s"
    lines = [layout % ("#Message ID", "#QID", "#Offset")]
    return "\n".join([*lines, *(layout % (one.message_id, one.queue.queue_id, one.queue_offset) for one in found)])


def messages(found: Iterable[ReceivedMessage], bodies: Iterable[str]) -> str:
    """Return messages with their bodies, which mqadmin writes to files.  Java: QueryMsgByIdSubCommand#printMsg"""
    return "\n\n".join(_message(one, body) for one, body in zip(found, bodies, strict=True))


def _message(one: ReceivedMessage, body: str) -> str:
    properties = ", ".join(f"{key}={value}" for key, value in one.properties.items())
    values = {
        "OffsetID": one.offset_message_id,
        "Topic": one.topic,
        "Tags": f"[{one.tags or 'null'}]",
        "Keys": f"[{' '.join(one.keys) or 'null'}]",
        "Queue ID": one.queue.queue_id,
        "Queue Offset": one.queue_offset,
        "CommitLog Offset": one.record.phy_offset,
        "Reconsume Times": one.reconsume_times,
        "Born Timestamp": _moment(one.born_ms),
        "Store Timestamp": _moment(one.stored_ms),
        "Born Host": one.born_host,
        "Store Host": one.store_host,
        "System Flag": one.record.sys_flag,
        "Properties": f"{{{properties}}}",
        "Message Body": body,
    }
    return "\n".join(f"{name + ':':20} {value}" for name, value in values.items())


def reset_offsets(offsets: Mapping[MessageQueue, int]) -> str:
    """Java: ResetOffsetByTimeCommand, SkipAccumulationSubCommand"""
    layout = "%-40s  %-40s  %-40s"
    lines = [layout % ("#brokerName", "#queueId", "#offset")]
    return "\n".join(
        [*lines, *(layout % (at.broker_name[:32], at.queue_id, offset) for at, offset in sorted(offsets.items()))]
    )


#: (group, queue, position)
Lagging = tuple[str, MessageQueue, OffsetWrapper]


def broker_consume_stats(rows: Iterable[Lagging], at_least: int) -> str:
    """Return the consumed queues with such a lag, and the lag of all.  Java: BrokerConsumeStatsSubCommad"""
    layout = "%-64s  %-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    titles = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime")
    lines, total = [layout % titles], 0
    for group, queue, at in rows:
        lag = at.broker_offset - at.consumer_offset
        total += lag
        if at.last_timestamp > 0 and lag >= at_least:
            moment = f"{datetime.fromtimestamp(at.last_timestamp // 1000):%Y-%m-%d %H:%M:%S}"
            place = (queue.topic[:64], group, queue.broker_name[:32], queue.queue_id)
            lines.append(layout % (*place, at.broker_offset, at.consumer_offset, lag, moment))
    return "\n".join([*lines, "", f"Diff Total: {total}"])


#: the layout of a message that was sent.  Java: SendMessageCommand
SENT = "%-32s  %-4s  %-20s    %s"
SENT_TITLES = SENT % ("#Broker Name", "#QID", "#Send Result", "#MsgId")


#: (group, members, version, CONSUME_PASSIVELY or CONSUME_ACTIVELY, model, messages a second, lag)
Progress = tuple[str, int, str, str, str, float, int]


def groups_progress(rows: Iterable[Progress]) -> str:
    """Java: ConsumerProgressSubCommand without -g"""
    layout = "%-64s  %-6s  %-24s %-5s  %-14s  %-7s  %s"
    lines = [layout % ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")]
    for group, members, version, kind, model, rate, lag in rows:
        pushed = kind == "CONSUME_PASSIVELY"
        shown = (version, "PUSH" if pushed else "PULL", model if pushed else "") if members else ("OFFLINE", "", "")
        lines.append(layout % (group[:64], members, *shown, int(rate), lag))
    return "\n".join(lines)


def group_progress(
    table: Mapping[MessageQueue, OffsetWrapper], rate: float, owners: Mapping[MessageQueue, str] | None
) -> str:
    """Return the queues of a group, with ``owners`` the addresses of their members too.  Java: the same with -g"""
    titles = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff", "#LastTime"]
    layout = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s  %s"
    if owners is not None:
        titles.insert(5, "#Client IP")
        layout = "%-64s  %-32s  %-4s  %-20s  %-20s  %-20s %-20s  %s"
    lines = [layout % tuple(titles)]
    total = 0
    for queue, at in sorted(table.items()):
        lag = at.broker_offset - at.consumer_offset
        total += lag
        moment = (
            f"{datetime.fromtimestamp(at.last_timestamp // 1000):%Y-%m-%d %H:%M:%S}" if at.last_timestamp else "N/A"
        )
        values: list[object] = [queue.topic[:64], queue.broker_name[:32], queue.queue_id, at.broker_offset]
        values += [at.consumer_offset, lag, moment]
        if owners is not None:
            values.insert(5, owners.get(queue, "N/A"))
        lines.append(layout % tuple(values))
    return "\n".join([*lines, "", f"Consume TPS: {rate:.2f}", f"Diff Total: {total}"])


#: (Pub or SubAfter, group, client's address, epoch ms, ms, true or false)
Traced = tuple[str, str | None, str, int, int, str]


def message_trace(lines: Iterable[Traced]) -> str:
    """Return the sends of a message, then who consumed it by groups.  Java: QueryMsgTraceByIdSubCommand"""
    layout = "%-10s %-20s %-20s %-20s %-10s %-10s"
    blocks: dict[str, list[str]] = {}
    sent: list[str] = []
    for kind, group, client, time_ms, cost_ms, success in lines:
        name, status = group or "null", "success" if success == "true" else "failed"
        moment = f"{datetime.fromtimestamp(time_ms // 1000):%Y-%m-%d %H:%M:%S}"
        row = layout % ("Pub" if kind == "Pub" else "Sub", name, client, moment, f"{cost_ms}ms", status)
        if kind == "Pub":
            titles = ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status")
            sent += [layout % titles, row, ""]
        else:
            titles = ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status")
            blocks.setdefault(name, [layout % titles]).append(row)
    return "\n".join([*sent, *(line for block in blocks.values() for line in [*block, ""])])
