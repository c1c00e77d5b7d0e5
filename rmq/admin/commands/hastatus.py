"""``rmq-admin ha status``: the replication status of masters and slaves."""

from __future__ import annotations

from collections.abc import Iterator

from rmq.admin import columns
from rmq.admin.command import (
    CLUSTER,
    DIFFERENT,
    NAMESRV,
    OK,
    ONE_BROKER,
    Call,
    Outcome,
    Table,
    argument,
    command,
    only_mqadmin,
    seconds,
)
from rmq.admin.lookups import ask_all, broker_groups, present_masters
from rmq.errors import Refused
from rmq.wire.api.common import MASTER_ID
from rmq.wire.api.replication import GET_BROKER_HA_STATUS, HARuntimeInfo


@command(
    "ha status",
    "show the replication of brokers: slaves, lag, acknowledgements, refusals",
    NAMESRV,
    CLUSTER,
    ONE_BROKER,
    argument(
        "--maxLag",
        type=int,
        metavar="BYTES",
        help="exit status 2 when a replication lag is larger, a master has no slave, or a registered one is missing",
    ),
    only_mqadmin("-i", "--interval", dest="watch", type=seconds, metavar="SECONDS", help="as --watch"),
)
async def ha_status(call: Call) -> Outcome:
    """Ask the brokers given, or all masters and the slaves of those that do not answer; Apache 4.9 refuses it."""
    texts, found = [], {}
    given, most = call.options.brokerAddr, call.options.maxLag
    groups = {} if given else await broker_groups(call)
    #: slaves of each master
    registered = {addrs[MASTER_ID]: len(addrs) - 1 for addrs in groups.values() if MASTER_ID in addrs}
    is_bad = len(registered) < len(groups)
    brokers = given or present_masters(call, groups)
    answers, failures = await ask_all(call, brokers, GET_BROKER_HA_STATUS, None)
    away = {None, *(failure.addr for failure in failures if not isinstance(failure, Refused))}
    slaves = [
        addr
        for addrs in groups.values()
        if addrs.get(MASTER_ID) in away
        for number, addr in addrs.items()
        if number != MASTER_ID
    ]
    of_slaves, failed_slaves = await ask_all(call, slaves, GET_BROKER_HA_STATUS, None)
    for addr, answer in answers + of_slaves:
        found[addr] = info = answer.body
        texts.append("\n".join([f"{addr}: {'master' if info.master else 'slave'}", *_lines(info)]))
        if (missing := registered.get(addr, 0) - len(info.ha_connection_info)) > 0:
            texts[-1] += f"\n    {missing} of {registered[addr]} registered slaves not connected: see their logs"
            is_bad = True
        is_bad = is_bad or (most is not None and _is_behind(info, most))
    status = DIFFERENT if is_bad and (most is not None or not brokers) else OK
    mqadmin_text = columns.replication(found)
    table = Table(_COLUMNS, [row for addr, info in found.items() for row in _rows(addr, info)])
    text = "\n\n".join(texts)
    failures += failed_slaves
    return Outcome(status=status, text=text, data=found, table=table, mqadmin_text=mqadmin_text, failures=failures)


#: as csv has them; ``peer`` is a slave of a master, or the master of a slave
_COLUMNS = (
    "address",
    "role",
    "log_end",
    "peer",
    "connected",
    "in_sync",
    "lag_bytes",
    "lag_seconds",
    "bytes_per_second",
)


def _rows(addr: str, info: HARuntimeInfo) -> Iterator[tuple[object, ...]]:
    if not info.master:
        way = info.ha_client_runtime_info
        speed = way.transferred_byte_in_second
        yield addr, "slave", way.max_offset, way.master_addr or None, way.activated, None, None, None, speed
        return
    end = info.master_commit_log_max_offset
    for slave in info.ha_connection_info:
        figures = slave.in_sync, slave.diff, slave.lag_seconds, slave.transferred_byte_in_second
        yield addr, "master", end, slave.addr, True, *figures
    if not info.ha_connection_info:
        yield addr, "master", end, *[None] * 6


def _lines(info: HARuntimeInfo) -> Iterator[str]:
    if not info.master:
        way = info.ha_client_runtime_info
        yield f"    master {way.master_addr or 'unknown'}, {'connected' if way.activated else 'not connected'}"
        yield f"    log ends at {way.max_offset}, {way.transferred_byte_in_second} bytes/s"
        if way.last_error:
            yield f"    last error: {way.last_error}"
        return
    yield f"    log ends at {info.master_commit_log_max_offset}, {info.in_sync_slave_nums} slaves in sync"
    for slave in info.ha_connection_info:
        latency = f", acknowledges in {slave.ack_latency_millis:.1f} ms" if slave.ack_latency_millis >= 0 else ""
        state = f"{slave.state}, " if slave.state else ""
        yield (
            f"    slave {slave.addr}: {state}replication lag {slave.diff} bytes, {slave.lag_seconds:.1f} s "
            f"(acknowledged {slave.slave_ack_offset}),  {slave.transferred_byte_in_second} bytes/s{latency}"
        )
    if not info.ha_connection_info:
        yield "    no slave is connected"
    if info.refused:
        yield f"    {info.refused} connections were dropped since the start, the last one: {info.last_refusal}"


def _is_behind(info: HARuntimeInfo, most: int) -> bool:
    if not info.master:
        return not info.ha_client_runtime_info.activated
    return not info.ha_connection_info or any(slave.diff > most for slave in info.ha_connection_info)
