"""
What brokers load besides messages: tables of topics, groups and offsets, and the checkpoint; whether they can be
loaded, fit the store, and say the same on both sides.

Values that an operator or a consumer may have set are not judged: perm 4 may be meant. What has two copies is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from rmq.store import layout
from rmq.wire.loosejson import JsonError, parse
from rmq_audit.driver.findings import Finding, finding
from rmq_audit.driver.log import Log
from rmq_audit.driver.queues import Bounds, Queue
from rmq_audit.driver.routes import is_system_topic
from rmq_audit.worker.files import lister, read_stored
from rmq_audit.worker.location import ReadError, child
from rmq_audit.worker.work import MASTER, SLAVE, UNDECIDED, Severity

TOPICS, GROUPS, OFFSETS, DELAYS = "topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: groups that brokers make themselves, and prefixes of their names
SYSTEM_GROUPS = (
    "CID_RMQ_SYS_",
    "CID_ONSAPI_",
    "CID_ONS-HTTP-PROXY",
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_",
)

#: settings that brokers of 4.9 and 5.x write for every topic and group, and what kind of value each has
_TOPIC = {"topicName": str, "readQueueNums": int, "writeQueueNums": int, "perm": int, "topicFilterType": str}
_TOPIC |= {"topicSysFlag": int, "order": bool}
_GROUP = {"groupName": str, "consumeEnable": bool, "consumeFromMinEnable": bool, "consumeBroadcastEnable": bool}
_GROUP |= {"retryQueueNums": int, "retryMaxTimes": int, "brokerId": int, "whichBrokerWhenConsumeSlowly": int}
_GROUP |= {"notifyConsumerIdsChangedEnable": bool}
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")

#: member of each file that holds its table; of others only that they can be read
_MEMBERS = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
    "consumerFilter.json": "filterDataByTopic",
    "consumerOrderInfo.json": "table",
    "messageRequestMode.json": "messageRequestModeMap",
    "topicQueueMapping.json": "topicQueueMappingInfoMap",
}

Table = Mapping[str, Any]


@attrs.define
class Configs:
    """The tables of one side by file name, and what is wrong with them; None: there is none, or it cannot be loaded."""

    log: Log
    names: frozenset[str] = frozenset()
    tables: dict[str, Table] = attrs.field(factory=dict)
    findings: list[Finding] = attrs.field(factory=list)

    def fault(self, invariant: str, name: str, text: str, **members: Any) -> None:
        path = child(child(self.log.store.path, layout.CONFIG_DIR), name)
        members = {"field": name, "blame": self.log.side} | members
        self.findings.append(finding(invariant, self.log.side, detail=f"{path}: {text}", **members))

    def lacks(self, name: str) -> bool:
        """Whether a table is not there, and no backup of it; False where something could not be read."""
        there = self.names & {name, f"{name}.bak"}
        return not there and all(one.invariant != "AU-COVER" for one in self.findings)


def read_configs(log: Log) -> Configs:
    """Load every table of a side, and note what a broker could not load; unreadable files are AU-COVER."""
    found = Configs(log)
    folder = child(log.store.path, layout.CONFIG_DIR)
    try:
        entries = lister(log.store.path).entries(folder) or ()
    except ReadError as error:
        found.findings.append(finding("AU-COVER", log.side, detail=str(error)))
        return found
    found.names = frozenset(one.name for one in entries if not one.is_folder)
    # a broker that began to run a moment ago has no table yet; what a dump must have, its manifest says
    begins = log.store.unfinished and log.side != MASTER
    if not entries and log.records and not begins and log.store.manifest is None:
        text = f"{folder}: is not there, or empty: the next start knows no topic, group and offset"
        members: dict[str, Any] = {"severity": Severity.WARN, "field": layout.CONFIG_DIR, "blame": log.side}
        found.findings.append(finding("CF-BROKEN", log.side, detail=text, **members))
    for name in sorted(found.names):
        if name.endswith(".json"):
            _load(found, name, child(folder, name))
        elif name.endswith(".json.bak") and name.removesuffix(".bak") not in found.names:
            main = name.removesuffix(".bak")
            found.fault("CF-BROKEN", main, f"is not there although {name} is: the next start loads that older state")
    others = found.names - {OFFSETS} - {f"{TOPICS}.bak"}
    # A slave copies its master's topics some seconds after its start, and directly after them the delay offsets, a file
    # that it gets in no other way: without both it has not copied yet.
    # Java: SlaveSynchronize#syncAll
    young = log.side == SLAVE and DELAYS not in found.names
    if TOPICS not in found.names and others and f"{TOPICS}.bak" not in found.names and not young:
        found.fault("CF-BROKEN", TOPICS, "is not there: the next start knows no topic")
    return found


def _load(found: Configs, name: str, path: str) -> None:
    try:
        values = parse(read_stored(path).decode("utf-8"))
    except FileNotFoundError:
        return
    except ReadError as error:
        found.findings.append(finding("AU-COVER", found.log.side, detail=str(error)))
        return
    except (UnicodeDecodeError, JsonError) as error:
        found.fault("CF-BROKEN", name, f"cannot be loaded: {error}; a broker starts with its backup or without it")
        return
    member = _MEMBERS.get(name)
    table = values.get(member) if isinstance(values, dict) and member is not None else values
    if not isinstance(table, dict):
        found.fault("CF-BROKEN", name, f"an object with {member} is expected" if member else "is not a JSON object")
        return
    found.tables[name] = table
    if name in _SHAPES:
        for text in _SHAPES[name](table):
            found.fault("CF-BROKEN", name, text)


def _settings(table: Table, kinds: Mapping[str, type], key: str) -> Iterator[str]:
    for name, one in table.items():
        wrong = sorted(
            member
            for member, kind in kinds.items()
            if not isinstance(one, dict) or type(one.get(member)) is not kind or (kind is int and one[member] < 0)
        )
        if wrong:
            yield f"{name!r} has no right {', '.join(wrong)}"
        elif one[key] != name:
            yield f"{name!r} is named {one[key]!r} in itself"
        elif one.get("topicFilterType", _FILTER_TYPES[0]) not in _FILTER_TYPES:
            yield f"{name!r} has the topicFilterType {one['topicFilterType']!r}"


def _offsets(table: Table) -> Iterator[str]:
    for key, queues in table.items():
        if "@" not in key or not isinstance(queues, dict):
            yield f"{key!r} is not topic@group with offsets by queue"
            continue
        for queue_id, offset in queues.items():
            if not str(queue_id).isdecimal() or type(offset) is not int or offset < 0:
                yield f"{key!r}: queue {queue_id!r} has offset {offset!r}"


def _delays(table: Table) -> Iterator[str]:
    for level, offset in table.items():
        if not str(level).isdecimal() or type(offset) is not int or offset < 0:
            yield f"delay level {level!r} has offset {offset!r}"


_SHAPES: Mapping[str, Callable[[Table], Iterator[str]]] = {
    TOPICS: partial(_settings, kinds=_TOPIC, key="topicName"),
    GROUPS: partial(_settings, kinds=_GROUP, key="groupName"),
    OFFSETS: _offsets,
    DELAYS: _delays,
}


def check_configs(configs: Configs, bounds: Mapping[Queue, Bounds], *, judge_end: bool) -> list[Finding]:
    """
    Return what of a side's tables does not fit its store.

    ``judge_end``: the store was at rest and has all of its log. A slave may lack topics that its master made lately.
    """
    log = configs.log
    # rmq's broker adds the changes of a large table to its file some seconds later; until then they are in a journal
    if TOPICS in configs.tables and log.side != SLAVE and f"{TOPICS}.journal" not in configs.names:
        _topics_with_queues(configs)
    if judge_end:
        _delays_in_queues(configs, bounds)
        if log.store.unfinished:
            _checkpoint_in_time(configs)
    return configs.findings


def _topics_with_queues(configs: Configs) -> None:
    """A topic that is deleted takes its queues with it, so that one with queues and messages has a configuration."""
    log, table = configs.log, configs.tables[TOPICS]
    for topic in sorted({queue.topic for queue in log.store.queues if queue.topic in log.topics} - table.keys()):
        if not is_system_topic(topic):
            text = f"topic {topic} is not configured although its queues hold messages: they cannot be consumed"
            configs.fault("CF-TOPIC", TOPICS, text, topic=topic)


def _delays_in_queues(configs: Configs, bounds: Mapping[Queue, Bounds]) -> None:
    for level, offset in configs.tables.get(DELAYS, {}).items():
        if not str(level).isdecimal() or type(offset) is not int:
            continue
        queue = DELAY_TOPIC, int(level) - 1
        held = bounds.get(queue, None if configs.log.start > 0 else Bounds(0, 0))
        if held is not None and offset > held.end:
            text = f"delay level {level}: the next to deliver would be {offset}, but its queue ends at {held.end}"
            configs.fault("CF-DELAY", DELAYS, text, topic=DELAY_TOPIC, queue_id=queue[1], queue_offset_from=offset)


def _checkpoint_in_time(configs: Configs) -> None:
    """A time after the last message makes the recovery begin too late."""
    log = configs.log
    last = max((one.last_timestamp for scan in log.scans for one in scan.stretches if one.records), default=None)
    path = child(log.store.path, layout.CHECKPOINT_FILE)
    try:
        data = read_stored(path)
        times = layout.CHECKPOINT.unpack(data[: layout.CHECKPOINT.size].ljust(layout.CHECKPOINT.size, b"\0"))
    except FileNotFoundError:
        return  # a broker begins with the first segment then
    except ReadError as error:
        configs.findings.append(finding("AU-COVER", log.side, detail=str(error)))
        return
    if last is not None and max(times) > last:
        text = f"{path}: names the time {max(times)}, the last message was stored at {last}: recovery begins too late"
        configs.findings.append(
            finding(
                "CF-TIME", log.side, expected=f"{last} or less", actual=str(max(times)), blame=log.side, detail=text
            )
        )


def compare_configs(master: Configs, slave: Configs) -> list[Finding]:
    """
    Return where the tables of a pair contradict each other, which is at rest and ends alike.

    A slave copies its master's tables every few seconds: it may lack what is new, it never has more, and what both have
    is the same. Members that only one version of RocketMQ writes are not compared.
    """
    found: list[Finding] = []
    for name, what in ((TOPICS, "topic"), (GROUPS, "group")):
        ours, theirs = master.tables.get(name), slave.tables.get(name)
        if ours is None or theirs is None:
            continue
        for key in sorted(ours.keys() & theirs.keys()):
            found += _settings_differ(name, what, key, ours[key], theirs[key])
        # each version of RocketMQ makes system topics and groups of its own at its start
        extra = theirs.keys() - ours.keys()
        for key in sorted(key for key in extra if not (is_system_topic(key) or key.startswith(SYSTEM_GROUPS))):
            text = f"{name}: {what} {key} is configured on the slave only, which copies its master's table"
            found.append(_contradiction(MASTER, what, key, text))
    if master.log.store.unfinished:
        return found
    if DELAYS in master.tables:
        found += _delays_differ(master.tables[DELAYS], slave.tables.get(DELAYS, {}))
    for name in (GROUPS, OFFSETS, DELAYS):
        entries = [key for key in slave.tables.get(name, {}) if not key.startswith(SYSTEM_GROUPS)]
        if entries and master.lacks(name):
            text = f"{name}: is not there on the master, the slave's copy has {len(entries)} entries"
            found.append(_contradiction(MASTER, "table", name, text))
    return found


def _settings_differ(name: str, what: str, key: str, ours: Any, theirs: Any) -> Iterator[Finding]:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return
    for member in sorted(ours.keys() & theirs.keys()):
        if ours[member] != theirs[member]:
            text = (
                f"{name}: {member} of {what} {key} is {ours[member]!r} on the master, {theirs[member]!r} on the slave"
            )
            yield _contradiction(UNDECIDED, what, f"{key}.{member}", text)


def _delays_differ(ours: Table, theirs: Table) -> Iterator[Finding]:
    for level, offset in theirs.items():
        before = ours.get(level, 0)
        if type(offset) is int and type(before) is int and offset > before:
            text = (
                f"{DELAYS}: delay level {level} is at {before} on the master, at {offset} on the slave, which copies it"
            )
            yield _contradiction(UNDECIDED, "delay level", str(level), text)


def _contradiction(blame: str, what: str, key: str, text: str) -> Finding:
    return finding("CF-DIFF", SLAVE, field=f"{what} {key}", blame=blame, detail=text)
