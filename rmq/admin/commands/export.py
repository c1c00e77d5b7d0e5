"""``rmq-admin export``: topics and groups, configurations, and figures of a cluster, as JSON."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from rmq.admin.command import CLUSTER, NAMESRV, ONE_BROKER, Call, Outcome, WrongUse, argument, command
from rmq.admin.lookups import DLQ_PREFIX, RETRY_PREFIX, ask_each, targets
from rmq.runtime.disk.error import DiskError
from rmq.runtime.properties import decode_properties
from rmq.wire import fastjson
from rmq.wire.api.admin import GET_BROKER_CONFIG, GET_BROKER_RUNTIME_INFO
from rmq.wire.api.common import SubscriptionGroupWrapper, TopicConfigWrapper
from rmq.wire.api.replication import GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GET_ALL_TOPIC_CONFIG
from rmq.wire.api.topics import GET_SYSTEM_TOPIC_LIST_FROM_BROKER

FILE = argument(
    "-f", "--file", "--filePath", dest="file", metavar="FILE", help="write it to this file (mqadmin: to this folder)"
)
#: where mqadmin writes without -f
MQADMIN_FOLDER = "/tmp/rocketmq/export"


@command(
    "export metadata",
    "print the topics and groups of a cluster as JSON",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    FILE,
    argument("-t", "--topic", action="store_true", help="topics only"),
    argument("-g", "--subscriptionGroup", action="store_true", help="groups only"),
    argument("-s", "--specialTopic", action="store_true", help="topics of retries and dead letters too"),
)
async def export_metadata(call: Call) -> Outcome:
    """Queues of a topic are those of all masters together, as mqadmin counts them."""
    options = call.options
    brokers = await targets(call)
    data: dict[str, Any] = {}
    if not options.subscriptionGroup:
        data["topicConfigTable"] = await _topics(call, brokers)
    if not options.topic:
        data["subscriptionGroupTable"] = await _groups(call, brokers)
    data["exportTime"] = call.now_ms
    return _written(call, data, "topic" if options.topic else _GROUPS if options.subscriptionGroup else "metadata")


_GROUPS = "subscriptionGroup"


async def _topics(call: Call, brokers: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    hidden = dict(await ask_each(call, brokers, GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None))
    for addr, answer in await ask_each(call, brokers, GET_ALL_TOPIC_CONFIG, None):
        table = fastjson.decode(answer.body, TopicConfigWrapper).topic_config_table
        for name, topic in sorted(table.items()):
            special = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
            if name in hidden[addr].body.topic_list or (special and not call.options.specialTopic):
                continue
            before = found.get(name)
            found[name] = one = msgspec.to_builtins(topic)
            for queues in ("readQueueNums", "writeQueueNums"):
                one[queues] += before[queues] if before else 0
    return found


async def _groups(call: Call, brokers: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _, answer in await ask_each(call, brokers, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None):
        table = fastjson.decode(answer.body, SubscriptionGroupWrapper).subscription_group_table
        for name, group in sorted(table.items()):
            before = found.get(name)
            found[name] = one = msgspec.to_builtins(group)
            one["retryQueueNums"] += before["retryQueueNums"] if before else 0
    return found


@command(
    "export configs",
    "print the configuration of the masters of a cluster as JSON",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    FILE,
)
async def export_configs(call: Call) -> Outcome:
    """By broker name; values are those that the brokers answer."""
    answers = await ask_each(call, await targets(call), GET_BROKER_CONFIG, None)
    tables = [decode_properties(answer.body, addr) for addr, answer in answers]
    configs = {table.get("brokerName", addr): table for (addr, _), table in zip(answers, tables, strict=True)}
    return _written(call, {"brokerConfigs": configs, "exportTime": call.now_ms}, "configs")


@command(
    "export metrics",
    "print the runtime figures of the masters as JSON",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    FILE,
)
async def export_metrics(call: Call) -> Outcome:
    """By address; `metrics` of the brokers themselves has more, for Prometheus."""
    answers = await ask_each(call, await targets(call), GET_BROKER_RUNTIME_INFO, None)
    figures = {addr: dict(sorted(answer.body.table.items())) for addr, answer in answers}
    return _written(call, {"runtimeFigures": figures, "exportTime": call.now_ms}, "metrics")


def _written(call: Call, data: Any, name: str) -> Outcome:
    """Return the data as a result, or what was written where."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    path = call.options.file
    if call.options.as_mqadmin:
        path = os.path.join(path or MQADMIN_FOLDER, f"{name}.json")
    if path is None:
        return Outcome(text=text.decode(), data=data)
    disk = call.platform.disk
    try:
        disk.make_dirs(os.path.dirname(os.path.abspath(path)))
        disk.write_atomic(path, text + b"\n")
    except DiskError as error:
        raise WrongUse(f"-f {path}: {error}") from None
    return Outcome(text=f"export {path} success", data={"file": path})
