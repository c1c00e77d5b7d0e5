"""
What mqadmin 4.9.7 prints where scripts cut columns or look for a word.

The order of topics, brokers and clusters is another: mqadmin's is that of Java's hash tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from rmq.client.types import ReceivedMessage, SendResult, SendStatus
from rmq.wire.api.clients import ConsumerConnection, ProducerInfo
from rmq.wire.api.common import MessageQueue, perm_text
from rmq.wire.api.forwarding import RunningInfo
from rmq.wire.api.offsets import OffsetWrapper
from rmq.wire.api.replication import HARuntimeInfo
from rmq.wire.api.routes import TopicRouteData
from rmq.wire.api.topics import ConsumeQueueContents, CreateTopicHeader, TopicOffset
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
    """Return the route as fastjson prints it with indents, as in 4.9.7.  Java: TopicRouteSubCommand#printData"""
    shown = msgspec.to_builtins(route, str_keys=False)
    for group in shown["brokerDatas"]:
        group["enableActingMaster"] = None
    return _pretty(shown, 0)


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


def configurations(tables: Mapping[str, Mapping[str, str]]) -> str:
    """
    Return the keys of servers, those of each below a line with its name.

    Java: GetBrokerConfigCommand, GetNamesrvConfigCommand
    """
    blocks = [
        [f"============{name}============", *(f"{key:50}=  {value}" for key, value in sorted(table.items()))]
        for name, table in tables.items()
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
        "Topic": one.record.topic,
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


#: the queue's end, the offset of the group before, the one of the time, the one that it has now
Rollback = tuple[int, int, int, int]


def rollbacks(offsets: Mapping[MessageQueue, Rollback]) -> str:
    """Return the offsets of a group without members.  Java: ResetOffsetByTimeOldCommand#resetOffset"""
    layout = "%-20s  %-20s  %-20s  %-20s  %-20s  %-20s"
    titles = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset", "#rollbackOffset")
    lines = [layout % titles]
    return "\n".join(
        [*lines, *(layout % (at.broker_name[:32], at.queue_id, *row) for at, row in sorted(offsets.items()))]
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


#: the order of Java: SubscriptionGroupConfig
_GROUP_KEYS = (
    "groupName",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "retryQueueNums",
    "retryMaxTimes",
    "brokerId",
    "whichBrokerWhenConsumeSlowly",
    "notifyConsumerIdsChangedEnable",
)


def group_configs(found: Iterable[tuple[str, str, Mapping[str, object]]]) -> str:
    """
    Return the keys of a group at each (cluster, broker name), those of 5.x last.

    Java: GetConsumerConfigSubCommand
    """
    lines = []
    for cluster, broker, config in found:
        lines.append(f"{'=' * 29}{cluster}:{broker}{'=' * 29}")
        known = {key: config[key] for key in _GROUP_KEYS if key in config}
        lines += [f"{key:40}=  {_java(value)}" for key, value in {**known, **config}.items()]
    return "\n".join(lines)


def group_config(config: Mapping[str, object]) -> str:
    """Java: SubscriptionGroupConfig#toString"""
    return f"SubscriptionGroupConfig [{', '.join(f'{key}={_java(config[key])}' for key in _GROUP_KEYS)}]"


def topic_config(topic: CreateTopicHeader) -> str:
    """Java: TopicConfig#toString"""
    queues = f"readQueueNums={topic.read_queue_nums}, writeQueueNums={topic.write_queue_nums}"
    flags = f"topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag or 0}"
    more = f"perm={perm_text(topic.perm)}, {flags}, order={_java(topic.order)}"
    return f"TopicConfig [topicName={topic.topic}, {queues}, {more}]"


def _java(value: object) -> str:
    """Return what Java's %s makes of a value, and "" for null."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def producer_connection(found: Iterable[tuple[str, str, str, str]]) -> str:
    """Return (client id, address, language, version) in lines with numbers.  Java: ProducerConnectionSubCommand"""
    layout = "%04d  %-32s %-22s %-8s %s"
    return "\n".join(layout % (number, *one) for number, one in enumerate(found, 1))


def producers(tables: Iterable[Mapping[str, Sequence[ProducerInfo]]]) -> str:
    """Return the members of each group, one a line.  Java: ProducerSubCommand"""
    lines = []
    for group, members in ((group, members) for table in tables for group, members in table.items()):
        if not members:
            lines.append(f"producer group ({group}) instances are empty")
        for one in members:
            shown = f"clientId={one.client_id},remoteIP={one.remote_ip}, language={one.language}"
            shown += f", version={one.version}, lastUpdateTimestamp={one.last_update_timestamp}"
            lines.append(f"producer group ({group}) instance : {shown}")
    return "\n".join(lines)


def index_units(found: ConsumeQueueContents, index: int) -> str:
    """Java: QueryConsumeQueueCommand"""
    rule = "=" * 38
    lines = []
    if found.subscription_data is not None:
        lines += ["Subscription data: ", _pretty(msgspec.to_builtins(found.subscription_data), 0), rule]
    if found.filter_data is not None:
        lines += ["Filter data: ", found.filter_data, rule]
    lines += ["Queue data: ", f"max: {found.max_queue_index}, min: {found.min_queue_index}", rule]
    for number, unit in enumerate(found.queue_data, index):
        values = f"physicOffset={unit.physic_offset}, physicSize={unit.physic_size}, tagsCode={unit.tags_code}"
        values += f", extendDataJson='{unit.extend_data_json or 'null'}', bitMap='{unit.bit_map or 'null'}'"
        values += f", eval={_java(unit.eval)}, msg='{unit.msg or 'null'}'"
        lines += [f"idx: {number}", f"ConsumeQueueData{{{values}}}", rule]
    return "\n".join(lines)


def allocation(found: Mapping[str, Sequence[MessageQueue]]) -> str:
    """Java: AllocateMQSubCommand"""
    result = {
        member: [{"brokerName": one.broker_name, "queueId": one.queue_id, "topic": one.topic} for one in queues]
        for member, queues in found.items()
    }
    return msgspec.json.encode({"result": result}).decode()


#: what became of a message, None: it was not confirmed; and after how many milliseconds
Timed = tuple[SendResult | None, float]


def cluster_times(cluster: str, brokers: Mapping[str, Sequence[Timed]]) -> str:
    """Java: CLusterSendMsgRTCommand"""
    lines = [f"{'#Cluster Name':24}  {'#Broker Name':24}  {'#RT':4}  #successCount  #failCount"]
    for broker, sends in brokers.items():
        taken = sum(result is not None for result, _ in sends)
        figures = f"{_mean(sends):<8.2f}  {taken:<16}  {len(sends) - taken:<16}"
        lines.append(f"{cluster:24}  {broker:24}  {figures}")
    return "\n".join(lines)


def _mean(sends: Sequence[Timed]) -> float:
    return sum(ms for _, ms in sends) / len(sends)


def topic_times(sends: Sequence[Timed]) -> str:
    """Java: CheckMsgSendRTCommand"""
    layout = "%-32s  %-4s  %-20s    %s"
    lines = [layout % ("#Broker Name", "#QID", "#Send Result", "#RT")]
    for result, ms in sends:
        place = ("null", "null") if result is None else (result.queue.broker_name, result.queue.queue_id)
        lines.append(layout % (*place, _java(result is not None), round(ms)))
    return "\n".join([*lines, f"Avg RT: {_mean(sends):.2f}"])


def broker_times(sends: Iterable[Timed]) -> str:
    """Java: SendMsgStatusCommand"""
    return "\n".join(f"rt={round(ms)}ms, SendResult={_sent(result)}" for result, ms in sends)


def _sent(result: SendResult | None) -> str:
    """Java: SendResult#toString"""
    if result is None:
        return "null"
    ids = f"msgId={result.message_id}, offsetMsgId={result.offset_message_id}"
    place = f"messageQueue={_queue(result.queue)}, queueOffset={result.queue_offset}"
    status = "SEND_OK" if result.status is SendStatus.OK else result.status.name
    return f"SendResult [sendStatus={status}, {ids}, {place}]"


def _queue(at: MessageQueue) -> str:
    """Java: MessageQueue#toString"""
    return f"MessageQueue [topic={at.topic}, brokerName={at.broker_name}, queueId={at.queue_id}]"


def replication(found: Mapping[str, HARuntimeInfo]) -> str:
    """Java: HAStatusSubCommand#printStatus of 5.x"""
    lines: list[str] = []
    for addr, info in found.items():
        if not info.master:
            way = info.ha_client_runtime_info
            lines += ["", f"#MasterAddr\t{way.master_addr}", f"#CommitLogMaxOffset\t{way.max_offset}"]
            lines += [
                f"#TransferSpeed(KB/s)\t{way.transferred_byte_in_second / 1024:.2f}",
                f"#LastReadTime\t{_moment(way.last_read_timestamp)}",
                f"#LastWriteTime\t{_moment(way.last_write_timestamp)}",
                f"#MasterFlushOffset\t{way.master_flush_offset}",
            ]
            continue
        lines += ["", f"#MasterAddr\t{addr}", f"#MasterCommitLogMaxOffset\t{info.master_commit_log_max_offset}"]
        lines += [f"#SlaveNum\t{len(info.ha_connection_info)}", f"#InSyncSlaveNum\t{info.in_sync_slave_nums}"]
        layout = "%-32s  %-16s %16s %16s %16s %16s"
        titles = ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status", "#TransferFromWhere")
        lines.append(layout % titles)
        for one in info.ha_connection_info:
            speed, state = f"{one.transferred_byte_in_second / 1024:.2f}", "OK" if one.in_sync else "Fall Behind"
            lines.append(layout % (one.addr, one.slave_ack_offset, one.diff, speed, state, one.transfer_from_where))
    return "\n".join(lines)


def running_members(found: Mapping[str, RunningInfo], now_ms: int) -> str:
    """
    Return the members of a group, and what mqadmin says of them; the files that it writes do not exist.

    Java: ConsumerStatusSubCommand without -i
    """
    layout = "%-10s %-40s %-20s %s"
    lines = [layout % ("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")]
    for number, (client_id, info) in enumerate(found.items(), 1):
        lines.append(layout % (number, client_id, info.properties.get("PROP_CLIENT_VERSION", ""), "-"))
    if not _same_subscriptions(list(found.values()), now_ms):
        return "\n".join([*lines, "", "", "WARN: Different subscription in the same group of consumer!!!"])
    lines += ["", "", "Same subscription in the same group of consumer", "", "Rebalance OK"]
    for client_id, info in found.items():
        lines += _stuck_queues(client_id, info, now_ms)
    return "\n".join(lines)


def _same_subscriptions(infos: Sequence[RunningInfo], now_ms: int) -> bool:
    """Java: ConsumerRunningInfo#analyzeSubscription"""
    first = infos[0]
    age_ms = now_ms - int(first.properties.get("PROP_CONSUMER_START_TIMESTAMP", 0))
    if not _is_pushed(first) or age_ms <= 120_000:
        return True
    wanted = {frozenset((one.topic, one.sub_string) for one in info.subscription_set) for info in infos}
    return len(wanted) == 1 and wanted != {frozenset()}


def _is_pushed(info: RunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


def _stuck_queues(client_id: str, info: RunningInfo, now_ms: int) -> list[str]:
    """Java: ConsumerRunningInfo#analyzeProcessQueue"""
    lines = []
    for queue, at in sorted(info.mq_table.items()) if _is_pushed(info) else ():
        if info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true":
            if not at.locked:
                waited_ms = now_ms - at.last_lock_timestamp
                lines.append(f"{client_id} {_queue(queue)} can't lock for a while, {waited_ms}ms")
            elif at.droped and at.try_unlock_times > 0:
                lines.append(f"{client_id} {_queue(queue)} unlock {at.try_unlock_times} times, still failed")
        elif (waited_ms := now_ms - at.last_consume_timestamp) > 60_000 and at.cached_msg_count > 0:
            lines.append(f"{client_id} {_queue(queue)} can't consume for a while, maybe blocked, {waited_ms}ms")
    return lines


def running_info(info: RunningInfo) -> str:
    """Return what a member does.  Java: ConsumerRunningInfo#formatString"""
    lines = ["#Consumer Properties#", *(f"{key:40}: {value}" for key, value in info.properties.items())]
    lines += ["", "", "#Consumer Subscription#"]
    lines += [
        f"{n:03d} Topic: {one.topic:40} ClassFilter: {_java(one.class_filter_mode):8} SubExpression: {one.sub_string}"
        for n, one in enumerate(sorted(info.subscription_set, key=lambda one: (one.topic, one.sub_string)), 1)
    ]
    queues = sorted(info.mq_table.items())
    layout = "%-64s  %-32s  %-4s  %-20s"
    titles = ("#Topic", "#Broker Name", "#QID")
    lines += ["", "", "#Consumer Offset#", layout % (*titles, "#Consumer Offset")]
    lines += [f"{at.topic:32}  {at.broker_name:32}  {at.queue_id:<4}  {one.commit_offset:<20}" for at, one in queues]
    lines += ["", "", "#Consumer MQ Detail#", layout % (*titles, "#ProcessQueueInfo")]
    for at, one in queues:
        values = {key: _java(value) for key, value in msgspec.to_builtins(one).items()}
        for key in ("lastLockTimestamp", "lastPullTimestamp", "lastConsumeTimestamp"):
            values[key] = re.sub(r"\D", "", _moment(int(values[key])))
        shown = ", ".join(f"{key}={values[key]}" for key in _QUEUE_KEYS)
        lines.append(f"{at.topic:64}  {at.broker_name:32}  {at.queue_id:<4}  ProcessQueueInfo [{shown}]")
    rates = ("#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour")
    layout = "%-64s  %14s %14s %14s %14s %18s %25s"
    lines += ["", "", "#Consumer RT&TPS#", layout % ("#Topic", *rates)]
    lines += [
        f"{topic:32}  {of.pull_rt:14.2f} {of.pull_tps:14.2f} {of.consume_rt:14.2f} {of.consume_ok_tps:14.2f}"
        f" {of.consume_failed_tps:18.2f} {of.consume_failed_msgs:25}"
        for topic, of in sorted(info.status_table.items())
    ]
    return "\n".join(lines + (["", "", "#Consumer jstack#", info.jstack] if info.jstack else []))


#: the order of Java: ProcessQueueInfo#toString
_QUEUE_KEYS = (
    "commitOffset",
    "cachedMsgMinOffset",
    "cachedMsgMaxOffset",
    "cachedMsgCount",
    "cachedMsgSizeInMiB",
    "transactionMsgMinOffset",
    "transactionMsgMaxOffset",
    "transactionMsgCount",
    "locked",
    "tryUnlockTimes",
    "lastLockTimestamp",
    "droped",
    "lastPullTimestamp",
    "lastConsumeTimestamp",
)
