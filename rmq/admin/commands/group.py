"""``rmq-admin group``: consumer groups, their members, positions and configuration."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import Deferred

from rmq.admin import columns
from rmq.admin.command import (
    CLUSTER,
    DIFFERENT,
    NAMESRV,
    OK,
    ONE_BROKER,
    REFUSED,
    Call,
    NotFound,
    Outcome,
    WrongUse,
    addresses,
    argument,
    command,
    ignored,
    is_true,
    merged,
    only_mqadmin,
    subject,
    tabular,
)
from rmq.admin.lookups import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    addresses_by_name,
    admin_of,
    ask_all,
    change_each,
    check_registered,
    cluster_info,
    delete_topic,
    route_of,
    targets,
    together,
)
from rmq.admin.times import EARLIEST_MS, parse_time, time_text
from rmq.client.flows.admin import UNKNOWN, lag_of
from rmq.errors import Refused, RequestFailed
from rmq.runtime.properties import decode_properties
from rmq.wire import fastjson
from rmq.wire.api.admin import GET_BROKER_CONFIG
from rmq.wire.api.clients import ConsumerConnection
from rmq.wire.api.common import MessageQueue, SubscriptionGroupConfig, SubscriptionGroupWrapper, TopicConfigWrapper
from rmq.wire.api.forwarding import (
    GET_CONSUMER_RUNNING_INFO,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumeStatus,
    ResetOffsetHeader,
    RunningInfo,
    RunningInfoHeader,
)
from rmq.wire.api.offsets import (
    CLONE_GROUP_OFFSET,
    GET_BROKER_CONSUME_STATS,
    GET_CONSUME_STATS,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    BrokerConsumeStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeStatsHeader,
    OffsetWrapper,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from rmq.wire.api.replication import GET_ALL_CONSUMER_OFFSET, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GET_ALL_TOPIC_CONFIG
from rmq.wire.api.topics import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_TOPIC_STATS_INFO,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    DeleteGroupHeader,
    TopicHeader,
    TopicOffset,
)
from rmq.wire.codes import ResponseCode, version_desc

GROUP = subject("group", "-g", "--groupName", "--group", metavar="GROUP")
ONE_TOPIC = subject("topic", "-t", "--topic", metavar="TOPIC")


@command(
    "group list",
    "list the groups that have consumed, with members and lag",
    NAMESRV,
    argument(
        "-g", "--groupName", dest="group", metavar="GROUP", help="only this group, queue by queue (mqadmin's form)"
    ),
    argument(
        "--owners",
        mqadmin=("-s", "--showClientIP"),
        choices=("true", "false"),
        default="false",
        help="of mqadmin's form with -g: the addresses of members too (false)",
    ),
    only_mqadmin("-t", "--topicName", dest="topic", metavar="TOPIC", help="with -g: only this topic"),
    ignored("-c", "--cluster"),
)
async def group_list(call: Call) -> Outcome:
    """A group is known by its retry topic, as to mqadmin; without figures when a broker does not answer for it."""
    if call.options.group is not None:
        return await group_show(call)
    groups = await (admin_of(call).groups() if call.options.as_mqadmin else groups_of(call))
    found = await together(Deferred.fromCoroutine(_row_or_failure(call, group)) for group in groups)
    failures = [one for one in found if isinstance(one, RequestFailed)]
    rows: list[tuple[object, ...]] = []
    lines: list[columns.Progress] = []
    for group, one in zip(groups, found, strict=True):
        if isinstance(one, RequestFailed):
            rows.append((group, *[None] * 5))
            lines.append((group, 0, "", "", "", 0.0, 0))  # as mqadmin has it
        else:
            _, members, _, kind, model, rate, lag = one
            rows.append((group, members, kind.removeprefix("CONSUME_") or None, model or None, rate, lag))
            lines.append(one)
    titles = ("group", "members", "type", "model", "consumed_per_second", "lag")
    return tabular(
        titles,
        rows,
        nothing="no group has consumed yet",
        mqadmin_text=columns.groups_progress(lines),
        failures=failures,
    )


async def _row_or_failure(call: Call, group: str) -> columns.Progress | RequestFailed:
    try:
        return await _row_of(call, group)
    except RequestFailed as error:
        return error


async def groups_of(call: Call) -> list[str]:
    """
    Return the groups that have consumed: those with a retry topic, as mqadmin has it.

    Raises NotFound when no broker is registered: then no group is known.
    """
    groups = await admin_of(call).groups()
    if not groups:
        check_registered(call, await cluster_info(call))
    return groups


async def _row_of(call: Call, group: str) -> columns.Progress:
    found = await connection_of(call, group)
    table, rate = await offsets_of(call, group)
    lag = sum(lag_of(at) for at in table.values())
    if found is None:
        return group, 0, "", "", "", rate, lag
    oldest = min((one.version for one in found.connection_set), default=0)
    members = len(found.connection_set)
    return group, members, version_desc(oldest), found.consume_type, found.message_model, rate, lag


#: mqadmin asks this broker where it is given, whatever routes say
_ASKED = only_mqadmin("-b", "--brokerAddr", dest="asked", type=addresses, metavar="HOST:PORT", help="only this broker")


async def brokers_of(call: Call, group: str) -> dict[str, str]:
    """Return the address of each broker that has the group's retry topic, by name; raises NotFound."""
    if asked := getattr(call.options, "asked", None):
        return {addr: addr for addr in asked}
    return await admin_of(call).group_brokers(group)


async def connection_of(call: Call, group: str) -> ConsumerConnection | None:
    """Return the members of a group from the first broker that has any; None when it has none."""
    for addr in (await brokers_of(call, group)).values():
        found = await connection_at(call, addr, group)
        if found is not None:
            return found
    return None


async def connection_at(call: Call, addr: str, group: str) -> ConsumerConnection | None:
    """Return the members of a group at one broker; None when it has none there."""
    return await admin_of(call).members_at(addr, group)


async def offsets_of(
    call: Call, group: str, topic: str | None = None
) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
    """Return the positions of a group by queue, on all brokers, and how many messages it consumes a second."""
    found = await admin_of(call).progress_at((await brokers_of(call, group)).values(), group, topic)
    return found.offsets, found.rate


@command(
    "group show",
    "show the position and lag of a group in each queue",
    NAMESRV,
    GROUP,
    argument("--maxLag", type=int, metavar="N", help="exit status 2 when the group is more than N messages behind"),
)
async def group_show(call: Call) -> Outcome:
    """Ask the brokers of the group; status 2 when the group is unknown or its lag is above ``--maxLag``."""
    topic = getattr(call.options, "topic", None)
    table, rate = await offsets_of(call, call.options.group, topic)
    if not table:
        raise NotFound(f"group {call.options.group} has committed no offset{f' in topic {topic}' if topic else ''}")
    rows = [
        (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            at.broker_offset,
            at.consumer_offset,
            lag_of(at),
            time_text(at.last_timestamp),
        )
        for queue, at in sorted(table.items())
    ]
    limit = getattr(call.options, "maxLag", None)
    behind = limit is not None and sum(lag_of(at) for at in table.values()) > limit
    titles = ("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "last_consumed_stored")
    mqadmin_text = None
    if call.options.as_mqadmin:
        owners = await _owners(call, call.options.group) if call.options.owners == "true" else None
        mqadmin_text = columns.group_progress(table, rate, owners)
    return tabular(titles, rows, nothing="", status=2 if behind else OK, mqadmin_text=mqadmin_text)


async def _owners(call: Call, group: str) -> dict[MessageQueue, str]:
    """Return the address of the member that has each queue; without those that do not answer."""
    found: dict[MessageQueue, str] = {}
    try:
        async for client_id, info in _members_of(call, group):
            if isinstance(info, RequestFailed):
                break
            found.update(dict.fromkeys(info.mq_table, client_id.partition("@")[0]))
    except RequestFailed:
        pass  # as mqadmin has it
    return found


async def _members_of(
    call: Call, group: str, *, only: str | None = None, jstack: bool = False
) -> AsyncIterator[tuple[str, RunningInfo | RequestFailed]]:
    """Yield what each member says of itself, or why nothing, asked through the first broker that has members."""
    for addr in (await brokers_of(call, group)).values():
        found = await connection_at(call, addr, group)
        if found is None or not found.connection_set:
            continue
        for client_id in sorted(one.client_id for one in found.connection_set if only in (None, one.client_id)):
            header = RunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=jstack)
            try:
                body = (await call.invoke(addr, GET_CONSUMER_RUNNING_INFO, header, None)).body
            except RequestFailed as error:
                yield client_id, error
            else:
                yield client_id, fastjson.decode(body, RunningInfo)
        return


@command(
    "group members",
    "show the members of a group and what they subscribe to",
    NAMESRV,
    subject("group", "-g", "--consumerGroup", metavar="GROUP"),
    _ASKED,
)
async def group_members(call: Call) -> Outcome:
    """Status 2 when the group has no member."""
    found = await connection_of(call, call.options.group)
    if found is None:
        raise NotFound(f"group {call.options.group} has no member online")
    subscribed = ", ".join(f"{topic}: {one.sub_string}" for topic, one in sorted(found.subscription_table.items()))
    rows = [
        (one.client_id, one.client_addr, one.language, one.version, found.message_model, subscribed)
        for one in sorted(found.connection_set, key=lambda one: one.client_id)
    ]
    titles = ("client_id", "address", "language", "version", "model", "subscriptions")
    return tabular(titles, rows, nothing="", mqadmin_text=columns.consumer_connection(found))


#: Java: Validators#checkGroup
GROUP_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


class _Group(SubscriptionGroupConfig, rename="camel", kw_only=True):
    """A group with what 5.x has besides, where it was given."""

    consume_message_orderly: bool | msgspec.UnsetType = msgspec.UNSET
    group_retry_policy: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no object in JSON: {error}") from None


def _attributes(text: str) -> dict[str, str]:
    """Java: AttributeParser#parseToMap"""
    pairs = [one.strip().partition("=") for one in text.split(",") if one.strip()]
    if any(not name.startswith("+" if found else "-") for name, found, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: +KEY=VALUE or -KEY is expected, several joined by commas")
    return {name: value for name, _, value in pairs}


@command(
    "group create",
    "create a consumer group, or alter it, on all masters of a cluster",
    NAMESRV,
    GROUP,
    CLUSTER,
    ONE_BROKER,
    argument(
        "-r", "--retryMaxTimes", type=int, default=16, metavar="N", help="tries before the dead-letter queue (16)"
    ),
    argument("-q", "--retryQueueNums", type=int, default=1, metavar="N", help="queues of the retry topic (1)"),
    argument("-s", "--consumeEnable", choices=("true", "false"), default="true", help="may the group consume (true)"),
    argument("-d", "--consumeBroadcastEnable", choices=("true", "false"), help="in broadcast (true; mqadmin: false)"),
    argument(
        "-m",
        "--consumeFromMinEnable",
        choices=("true", "false"),
        help="may a new group begin at the oldest message (true; mqadmin: false)",
    ),
    argument("-i", "--brokerId", type=int, default=0, metavar="ID", help="members pull from this broker id (0)"),
    argument(
        "-w",
        "--whichBrokerWhenConsumeSlowly",
        type=int,
        default=1,
        metavar="ID",
        help="or from this one when they are far behind, with slaveReadEnable (1)",
    ),
    argument(
        "-a",
        "--notifyConsumerIdsChanged",
        choices=("true", "false"),
        default="true",
        help="are members notified at once when one comes or goes (true)",
    ),
    argument(
        "--consumeMessageOrderly",
        mqadmin=("-o",),
        type=is_true,
        default=msgspec.UNSET,
        metavar="true|false",
        help="at brokers of 5.x: does the group consume in order with POP",
    ),
    argument(
        "--groupRetryPolicy",
        mqadmin=("-p",),
        type=_json_object,
        default=msgspec.UNSET,
        metavar="JSON",
        help="at brokers of 5.x",
    ),
    argument(
        "--attributes",
        type=_attributes,
        default=msgspec.UNSET,
        metavar="+KEY=VALUE,-KEY",
        help="at brokers of 5.x",
    ),
    changes=True,
)
async def group_create(call: Call) -> Outcome:
    """Send the group to each master; status 1 when one refuses it."""
    options = call.options
    if not GROUP_NAME.fullmatch(options.group):
        raise WrongUse(f"group {options.group!r}: a name has letters, digits, % | _ - only, at most 255")
    usual = "false" if options.as_mqadmin else "true"
    config = _Group(
        group_name=options.group,
        consume_enable=options.consumeEnable == "true",
        consume_broadcast_enable=(options.consumeBroadcastEnable or usual) == "true",
        consume_from_min_enable=(options.consumeFromMinEnable or usual) == "true",
        broker_id=options.brokerId,
        which_broker_when_consume_slowly=options.whichBrokerWhenConsumeSlowly,
        notify_consumer_ids_changed_enable=options.notifyConsumerIdsChanged == "true",
        retry_max_times=options.retryMaxTimes,
        retry_queue_nums=options.retryQueueNums,
        consume_message_orderly=options.consumeMessageOrderly,
        group_retry_policy=options.groupRetryPolicy,
        attributes=options.attributes,
    )
    what = f"{options.group}: {config.retry_max_times} tries, {config.retry_queue_nums} retry queues"
    line = "create subscription group to {addr} success."
    brokers = await targets(call)
    contract = UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    created = await change_each(call, brokers, contract, None, config, what=what, mqadmin=line)
    if created.mqadmin_text is None:
        return created
    shown = columns.group_config(msgspec.to_builtins(config))
    return attrs.evolve(created, mqadmin_text=f"{created.mqadmin_text}\n{shown}")


@command(
    "group delete",
    "delete a consumer group from all masters of a cluster",
    NAMESRV,
    GROUP,
    CLUSTER,
    ONE_BROKER,
    argument("-r", "--removeOffset", choices=("true", "false"), default="false", help="its offsets too (false)"),
    changes=True,
)
async def group_delete(call: Call) -> Outcome:
    """
    Its retries and dead letters are gone with it, unless brokers are named.

    Status 2 when there is no such group, 4 when nobody confirms it. mqadmin deletes without looking.
    """
    options = call.options
    brokers = await targets(call)
    if not options.as_mqadmin:
        await _check_group(call, brokers, options.group)
    with_offsets = options.removeOffset == "true"
    topics = [] if options.brokerAddr else [prefix + options.group for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    lost = [*(["its offsets"] if with_offsets else []), *(["its retries and dead letters"] if topics else [])]
    with_what = f", with {' and '.join(lost)}," if lost else ""
    call.confirm(f"group {options.group}{with_what} is deleted from {', '.join(brokers)}", options.group)
    header = DeleteGroupHeader(group_name=options.group, remove_offset=with_offsets, clean_offset=with_offsets)
    what = f"{options.group} is deleted"
    where = "" if options.brokerAddr else f" in cluster [{options.clusterName}]"
    line = f"delete subscription group [{options.group}] from broker [{{addr}}]{where} success."
    results = [await change_each(call, brokers, DELETE_SUBSCRIPTIONGROUP, header, None, what=what, mqadmin=line)]
    return merged(results + [await delete_topic(call, brokers, topic) for topic in topics])


async def _check_group(call: Call, brokers: Iterable[str], group: str) -> None:
    """NotFound when it has no topic and all brokers answer that they have neither the group nor offsets of it."""
    if not {RETRY_PREFIX + group, DLQ_PREFIX + group}.isdisjoint(await admin_of(call).topics()):
        return
    configs, failures = await ask_all(call, brokers, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None)
    if failures or any(
        group in fastjson.decode(answer.body, SubscriptionGroupWrapper).subscription_group_table
        for _, answer in configs
    ):
        return
    offsets, failures = await ask_all(call, brokers, GET_ALL_CONSUMER_OFFSET, None)
    if failures or any(key.rpartition("@")[2] == group for _, answer in offsets for key in answer.body.offset_table):
        return
    raise NotFound(f"there is no group {group}: no broker knows it or has offsets of it")


@command(
    "group reset",
    "set the offsets of a group in a topic, also of members that are online",
    NAMESRV,
    GROUP,
    ONE_TOPIC,
    argument(
        "-s",
        "--to",
        mqadmin=("-s", "--timestamp"),
        required=True,
        metavar="WHERE",
        help="begin, end (now), or a time: 2026-01-31T12:00 or epoch ms; with --queue an offset too",
    ),
    argument("-f", "--force", choices=("true", "false"), default="true", help="forward too, not only back (true)"),
    argument(
        "--queue",
        mqadmin=("-q",),
        action="append",
        metavar="BROKER:ID",
        help="only this queue, of a group without members; may be given several times",
    ),
    only_mqadmin("-b", "--broker", metavar="HOST:PORT", help="the broker of -q"),
    only_mqadmin("-o", "--offset", type=int, metavar="OFFSET", help="where to, in the queue of -q, in place of -s"),
    only_mqadmin(
        "-c", "--cplus", "--cluster", dest="_ignored", nargs="?", help="accepted; members of all languages are reset"
    ),
    changes=True,
)
async def group_reset(call: Call) -> Outcome:
    """
    Reset online members through their brokers (222), otherwise write the offsets (15).

    Status 2 when there is no such group, perhaps a name with a mistake; 4 when nobody confirms it.

    Java: ResetOffsetByTimeCommand
    """
    options = call.options
    chosen = getattr(options, "queue", None)
    offset = getattr(options, "offset", None)
    if offset is not None:
        options.to = str(offset)
    goal = _offset(options.to) if chosen else _moment(options.to)
    brokers = addresses_by_name((await route_of(call, options.topic)).broker_datas)
    if chosen and options.as_mqadmin:
        chosen = [_named_queue(one, options.broker, brokers) for one in chosen]
    await _check_group(call, brokers.values(), options.group)
    if chosen:
        return await _reset_queues(call, brokers, goal, chosen)
    at_ms = goal.at_ms
    what = f"the offsets of group {options.group} in topic {options.topic} are set to {options.to}"
    call.confirm(f"{what} on {', '.join(brokers)}", options.group)
    moved: dict[MessageQueue, _Reset] = {}
    for addr in brokers.values():
        moved.update(await _reset_at(call, addr, at_ms))
    return _resets(call, moved, goal)


def _named_queue(text: str, addr: str | None, brokers: Mapping[str, str]) -> str:
    """Return BROKER:ID, where mqadmin 5.x has the address of the broker and the number of the queue."""
    if ":" in text:
        return text
    name = next((name for name, known in brokers.items() if addr in (name, known)), None)
    if name is None:
        raise WrongUse(f"-q {text} needs -b with a broker of the topic: {', '.join(brokers.values())}")
    return f"{name}:{text}"


@attrs.frozen
class _Reset:
    """Old (None: unknown) and new offset of a queue; where they were written here, what they were made of."""

    old: int | None
    new: int
    written: columns.Rollback | None = None

    @property
    def is_kept(self) -> bool:
        """Is it the old one, as only ``--force true`` goes forward?"""
        return self.written is not None and self.written[2] != self.new


def _resets(call: Call, moved: Mapping[MessageQueue, _Reset], goal: Goal) -> Outcome:
    options = call.options
    rows = [
        (queue.broker_name, queue.queue_id, one.old, one.new) for queue, one in sorted(moved.items()) if not one.is_kept
    ]
    written = {queue: one.written for queue, one in moved.items() if one.written is not None}
    offline = 0 < len(written) == len(moved)
    text = columns.rollbacks(written) if offline else columns.reset_offsets({at: one.new for at, one in moved.items()})
    if options.command == "group reset":
        name = f"{'consumerGroup' if offline else 'group'}[{options.group}]"
        times = f"timestamp(string)[{options.to}], timestamp(long)[{goal.at_ms}]"
        given = f"{name}, topic[{options.topic}], force[{options.force}], {times}"
        text = f"rollback consumer offset by specified {given}\n{text}"
    titles = ("broker", "queue", "old_offset", "new_offset")
    return tabular(titles, rows, nothing="no queue had to be reset", mqadmin_text=text)


async def _reset_queues(call: Call, brokers: Mapping[str, str], goal: Goal, chosen: list[str]) -> Outcome:
    """
    Write the offsets of some queues.

    WrongUse while the group has members at a broker that does not reset by itself, as 5.x does: they would write theirs
    again, and a broker before 5.x that is asked to reset one queue resets all.
    """
    options = call.options
    wanted = {name: addr for name, addr in brokers.items() if any(one.startswith(f"{name}:") for one in chosen)}
    resetting = [addr for addr in wanted.values() if await _resets_by_itself(call, addr)]
    for name, addr in wanted.items():
        if addr not in resetting and await connection_at(call, addr, options.group) is not None:
            raise WrongUse(f"group {options.group} has members at broker {name}: stop them, or reset all queues")
    tables = {addr: await _ends_of(call, addr) for addr in brokers.values()}
    known = {f"{queue.broker_name}:{queue.queue_id}" for table in tables.values() for queue in table}
    if unknown := [one for one in chosen if one not in known]:
        raise WrongUse(f"topic {options.topic} has no queue {unknown[0]}; queues: {', '.join(sorted(known))}")
    call.confirm(
        f"the offsets of group {options.group} in topic {options.topic} are set to {options.to} in {', '.join(chosen)}",
        options.group,
    )
    moved: dict[MessageQueue, _Reset] = {}
    for addr in wanted.values():
        table = {queue: at for queue, at in tables[addr].items() if f"{queue.broker_name}:{queue.queue_id}" in chosen}
        moved.update(await _write_offsets(call, addr, goal, table, by_broker=addr in resetting))
    return _resets(call, moved, goal)


async def _resets_by_itself(call: Call, addr: str) -> bool:
    """Does a broker of 5.x hold an offset that was reset until a member has pulled from there?"""
    config = decode_properties((await call.invoke(addr, GET_BROKER_CONFIG, None, None)).body, addr)
    return config.get("useServerSideResetOffset") == "true"


@attrs.frozen
class Goal:
    """Where a reset goes: an offset, or what a broker has at a time in epoch milliseconds, or at an end."""

    at_ms: int = 0
    offset: int | None = None


#: the times that brokers take for the two ends.  Java: AdminBrokerProcessor#resetOffset
_BEGIN, _END = 0, -1


def _offset(text: str) -> Goal:
    """Return an offset, or what `_moment` does."""
    is_offset = text.isdecimal() and int(text) < EARLIEST_MS
    return Goal(offset=int(text)) if is_offset else _moment(text)


def _moment(text: str) -> Goal:
    if text in ("begin", "end", "now", "-1"):  # mqadmin knows "now" and -1
        return Goal(_BEGIN if text == "begin" else _END)
    try:
        at_ms = parse_time(text)
        if 0 < at_ms < EARLIEST_MS:
            raise ValueError(f"{text} ms after 1970")
        return Goal(at_ms)
    except ValueError:
        why = "begin, end or a time such as 2026-01-31T12:00 is expected; an offset only with --queue"
        raise WrongUse(f"--to {text}: {why}") from None


async def _reset_at(call: Call, addr: str, at_ms: int) -> Mapping[MessageQueue, _Reset]:
    """Reset the queues of one broker."""
    options = call.options
    force = options.force == "true"
    header = ResetOffsetHeader(topic=options.topic, group=options.group, timestamp=at_ms, is_force=force)
    old = await _committed(call, addr)
    try:
        if not call.is_dry or await connection_at(call, addr, options.group) is not None:
            answer = await call.change(addr, INVOKE_BROKER_TO_RESET_OFFSET, header, None)
            table = {} if answer is None else answer.body.offset_table
            return {queue: _Reset(old.get(queue), offset) for queue, offset in table.items()}
    except Refused as error:
        # SYSTEM_ERROR: a queue without an offset, which members would have to commit first
        never_consumed = error.code == ResponseCode.SYSTEM_ERROR and not await connection_at(call, addr, options.group)
        if error.code != ResponseCode.CONSUMER_NOT_ONLINE and not never_consumed:
            raise
    return await _write_offsets(call, addr, Goal(at_ms), await _ends_of(call, addr))


async def _ends_of(call: Call, addr: str) -> dict[MessageQueue, TopicOffset]:
    header = TopicHeader(topic=call.options.topic)
    return (await call.invoke(addr, GET_TOPIC_STATS_INFO, header, None)).body.offset_table


async def _committed(call: Call, addr: str) -> dict[MessageQueue, int]:
    """Return the offsets of the group in the topic; none where a broker does not know them."""
    stats = ConsumeStatsHeader(consumer_group=call.options.group, topic=call.options.topic)
    try:
        table = (await call.invoke(addr, GET_CONSUME_STATS, stats, None)).body.offset_table
    except Refused as error:
        if error.code not in UNKNOWN:
            raise
        return {}
    return {queue: at.consumer_offset for queue, at in table.items()}


async def _write_offsets(
    call: Call, addr: str, goal: Goal, table: Mapping[MessageQueue, TopicOffset], *, by_broker: bool = False
) -> dict[MessageQueue, _Reset]:
    """
    Commit where a group without members goes on; an offset that the queue does not have becomes its nearest.

    ``by_broker``: the broker resets each queue, as it ignores commits while it holds an earlier reset.
    """
    options = call.options
    force = options.force == "true"
    known = await _committed(call, addr)
    moved: dict[MessageQueue, _Reset] = {}
    for queue, at in table.items():
        old = known.get(queue)
        if goal.offset is not None:
            new = max(at.min_offset, min(at.max_offset, goal.offset))
        elif goal.at_ms in (_BEGIN, _END):
            new = at.min_offset if goal.at_ms == _BEGIN else at.max_offset
        else:
            new = await _offset_at(call, addr, queue, goal.at_ms)
        before = at.min_offset if old is None else old
        if old is not None and new > old and not force:
            moved[queue] = _Reset(old, old, (at.max_offset, before, new, old))
            continue
        commit = UpdateConsumerOffsetHeader(
            consumer_group=options.group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=new
        )
        if by_broker:
            header = ResetOffsetHeader(
                topic=queue.topic,
                group=options.group,
                timestamp=_END,
                is_force=force,
                queue_id=queue.queue_id,
                offset=new,
            )
            await call.change(addr, INVOKE_BROKER_TO_RESET_OFFSET, header, None)
        else:
            await call.change(addr, UPDATE_CONSUMER_OFFSET, commit, None)
        moved[queue] = _Reset(old, new, (at.max_offset, before, new, new))
    return moved


async def _offset_at(call: Call, addr: str, queue: MessageQueue, at_ms: int) -> int:
    header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
    return (await call.invoke(addr, SEARCH_OFFSET_BY_TIMESTAMP, header, None)).header.offset


@command(
    "group clone",
    "give a group the offsets of another in a topic",
    NAMESRV,
    subject("source", "-s", "--srcGroup", metavar="FROM"),
    subject("group", "-d", "--destGroup", metavar="TO"),
    ONE_TOPIC,
    ignored("-o", "--offline"),
    changes=True,
)
async def group_clone(call: Call) -> Outcome:
    """
    Status 2 when the source has no offset in the topic, 4 when nobody confirms it.

    WrongUse while members of the other group consume the topic, as they would write their own offsets again; mqadmin
    goes on.
    """
    options = call.options
    brokers = addresses_by_name((await route_of(call, options.topic)).broker_datas)
    tables, failures = await ask_all(call, brokers.values(), GET_ALL_CONSUMER_OFFSET, None)
    # brokers would take the request, and nothing would change
    if not failures and not any(f"{options.topic}@{options.source}" in one.body.offset_table for _, one in tables):
        raise NotFound(f"group {options.source} has no offset in topic {options.topic}")
    for name, addr in brokers.items():
        online = None if options.as_mqadmin else await connection_at(call, addr, options.group)
        if online is not None and options.topic in online.subscription_table:
            raise WrongUse(f"group {options.group} has members at broker {name}: stop them, or they write theirs again")
    call.confirm(
        f"group {options.group} gets the offsets of {options.source} in topic {options.topic} on {', '.join(brokers)}",
        options.group,
    )
    header = CloneGroupOffsetHeader(
        src_group=options.source, dest_group=options.group, topic=options.topic, offline=True
    )
    what = f"{options.group} has the offsets of {options.source}"
    names = f"srcGroup[{options.source}], destGroup=[{options.group}], topic[{options.topic}]"
    line = f"clone group offset success. {names}"
    return await change_each(call, list(brokers.values()), CLONE_GROUP_OFFSET, header, None, what=what, mqadmin=line)


@command(
    "group skip",
    "skip all messages of a topic that a group has not consumed yet",
    NAMESRV,
    GROUP,
    ONE_TOPIC,
    only_mqadmin("-f", "--force", choices=("true", "false"), default="true", help="false: skip nothing (true)"),
    ignored("-c", "--cluster"),
    changes=True,
)
async def group_skip(call: Call) -> Outcome:
    """The same as ``group reset --to end``."""
    call.options.to, call.options.force = "end", getattr(call.options, "force", "true")
    return await group_reset(call)


class _Groups(msgspec.Struct, rename="camel"):
    """The groups of a broker, with all keys that it has for them; those of 5.x are more."""

    subscription_group_table: dict[str, dict[str, Any]] = {}


def _flat(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


@command("group config", "show the configuration of a group on each broker", NAMESRV, GROUP, CLUSTER, ONE_BROKER)
async def group_config(call: Call) -> Outcome:
    """Status 2 when no broker knows the group. Under its name in mqadmin it asks the brokers of all clusters."""
    options = call.options
    places: dict[str, tuple[str, str]] = {}
    if options.as_mqadmin:
        table = (await cluster_info(call)).broker_addr_table
        places = {addr: (one.cluster, name) for name, one in table.items() for addr in one.broker_addrs.values()}
        if not (options.clusterName or options.brokerAddr):
            options.brokerAddr = list(addresses_by_name(table.values()).values())
    answers, failures = await ask_all(call, await targets(call), GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None)
    groups = {addr: fastjson.decode(answer.body, _Groups).subscription_group_table for addr, answer in answers}
    found = {addr: table[options.group] for addr, table in groups.items() if options.group in table}
    rows = [(addr, key, _flat(value)) for addr, config in found.items() for key, value in sorted(config.items())]
    if not rows and not failures:
        raise NotFound(f"no broker knows group {options.group}")
    mqadmin_text = columns.group_configs((*places.get(addr, ("", addr)), config) for addr, config in found.items())
    return tabular(("broker", "key", "value"), rows, nothing="", mqadmin_text=mqadmin_text, failures=failures)


@command(
    "group status",
    "show what the members of a group are doing: their queues, positions, messages in hand",
    NAMESRV,
    subject("group", "-g", "--consumerGroup", metavar="GROUP"),
    _ASKED,
    argument("--client", mqadmin=("-i", "--clientId"), metavar="ID", help="only this member"),
    argument("--stacks", mqadmin=("-s", "--jstack"), action="store_true", help="with the stacks of their threads"),
)
async def group_status(call: Call) -> Outcome:
    """
    Members answer through a broker; clients for Node.js never do. Rates and times are those of a topic in a minute.

    Status 2 when the group has no such member, 1 when one does not answer.
    """
    options = call.options
    rows: list[tuple[object, ...]] = []
    stacks = []
    infos: dict[str, RunningInfo] = {}
    status = OK
    async for client_id, info in _members_of(call, options.group, only=options.client, jstack=options.stacks):
        if isinstance(info, RequestFailed):
            rows.append((client_id, *[None] * 10, str(info)))
            status = REFUSED
            continue
        infos[client_id] = info
        for queue, at in sorted(info.mq_table.items()):
            rates = info.status_table.get(queue.topic, ConsumeStatus())
            rows.append(
                (
                    client_id,
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    at.commit_offset,
                    at.cached_msg_count,
                    at.locked,
                    time_text(at.last_pull_timestamp),
                    round(rates.consume_ok_tps, 2),
                    round(rates.consume_failed_tps, 2),
                    round(rates.consume_rt, 2),
                    None,
                )
            )
        if not info.mq_table:
            rows.append((client_id, *[None] * 11))
        stacks += [f"{client_id}:\n{info.jstack}"] if info.jstack else []
    if not rows:
        raise NotFound(f"group {options.group} has no member {options.client or 'online'}")
    titles = ("client_id", "topic", "broker", "queue", "consumer_offset", "in_hand", "locked", "last_pull")
    outcome = tabular((*titles, "ok_per_s", "failed_per_s", "handler_ms", "problem"), rows, nothing="", status=status)
    mqadmin_text = None  # the table has a column for problems
    if status == OK:
        whole = columns.running_info(infos[options.client]) if options.client else None
        mqadmin_text = whole or columns.running_members(infos, call.now_ms)
    return attrs.evolve(outcome, text="\n\n".join([outcome.text, *stacks]), mqadmin_text=mqadmin_text)


@command(
    "group lag",
    "show the groups that are behind, in which queues",
    argument("group", nargs="?", metavar="GROUP", help="only this one (all)"),
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    argument("--over", mqadmin=("-l", "--level"), type=int, default=0, metavar="N", help="by more messages (0)"),
    argument("--over-time", type=float, metavar="SECONDS", help="and since longer"),
    argument("--order", mqadmin=("-o",), choices=("true", "false"), default="false", help="ordered topics (false)"),
    ignored("-t", "--timeoutMillis"),
)
async def group_lag(call: Call) -> Outcome:
    """
    Two requests for each broker, however many groups it has, and more where queues of a topic are not written any more.

    Status 2 when a group is behind, or when the one that is named is unknown.
    """
    options = call.options
    known = options.group is None
    header = BrokerConsumeStatsHeader(is_order=options.order == "true")
    now_ms = call.now_ms
    rows = []
    lines: list[columns.Lagging] = []
    answers, failures = await ask_all(call, await targets(call), GET_BROKER_CONSUME_STATS, header)
    for addr, answer in answers:
        found = [
            (group, queue, at)
            for entry in answer.body.consume_stats_list
            for group, stats in entry.items()
            for queue, at in sorted((queue, at) for one in stats for queue, at in one.offset_table.items())
        ]
        lines += found
        if not options.as_mqadmin:  # which leaves them out
            try:
                found += await _not_written(call, addr, is_order=header.is_order)
            except RequestFailed as error:
                failures.append(error)
        for group, queue, at in found:
            if options.group not in (None, group):
                continue
            known = True
            since_s = (now_ms - at.last_timestamp) / 1000 if at.last_timestamp > 0 else None
            late = options.over_time is None or (since_s is not None and since_s > options.over_time)
            if lag_of(at) > options.over and late:
                rows.append((addr, group, queue.topic, queue.broker_name, queue.queue_id, lag_of(at), since_s))
    if not known and not failures:
        raise NotFound(f"group {options.group} has committed no offset")
    titles = ("address", "group", "topic", "broker", "queue", "lag", "behind_seconds")
    status = DIFFERENT if rows and not options.as_mqadmin else OK  # its list there is no alarm
    mqadmin_text = columns.broker_consume_stats(lines, options.over)
    return tabular(
        titles,
        rows,
        nothing="no group is behind" if options.group is None else f"{options.group} is not behind",
        status=status,
        mqadmin_text=mqadmin_text,
        failures=failures,
    )


async def _not_written(call: Call, addr: str, *, is_order: bool) -> list[columns.Lagging]:
    """
    Return the positions in queues that can be read and not written: a broker's list of all groups has none of them.

    Such queues are left where the writable queues of a topic were made fewer, to be read to their ends.
    Java: AdminBrokerProcessor#fetchAllConsumeStatsInBroker
    """
    body = (await call.invoke(addr, GET_ALL_TOPIC_CONFIG, None, None)).body
    written = {
        name: topic.write_queue_nums
        for name, topic in fastjson.decode(body, TopicConfigWrapper).topic_config_table.items()
        if topic.read_queue_nums > topic.write_queue_nums and (topic.order or not is_order)
    }
    if not written:
        return []
    found: list[columns.Lagging] = []
    offsets = (await call.invoke(addr, GET_ALL_CONSUMER_OFFSET, None, None)).body.offset_table
    for topic, _, group in sorted(key.partition("@") for key in offsets):
        if topic in written:
            header = ConsumeStatsHeader(consumer_group=group, topic=topic)
            table = (await call.invoke(addr, GET_CONSUME_STATS, header, None)).body.offset_table
            found += [(group, queue, at) for queue, at in sorted(table.items()) if queue.queue_id >= written[topic]]
    return found
