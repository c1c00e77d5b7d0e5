"""``rmq-admin cluster list``."""

from __future__ import annotations

from collections.abc import Mapping

from rmq.admin import columns as columns_of_mqadmin
from rmq.admin.command import NAMESRV, Call, Outcome, argument, command, seconds, tabular
from rmq.admin.lookups import ask_all, check_registered, cluster_info, one_cluster
from rmq.wire.api.admin import GET_BROKER_RUNTIME_INFO


@command(
    "cluster list",
    "list the brokers of all clusters, with version and messages per second",
    NAMESRV,
    argument("-c", "--clusterName", metavar="CLUSTER", help="only this one"),
    argument("--totals", mqadmin=("-m", "--moreStats"), action="store_true", help="messages yesterday and today"),
    argument("--interval", mqadmin=("-i",), dest="watch", type=seconds, metavar="SECONDS", help="the same as --watch"),
)
async def cluster_list(call: Call) -> Outcome:
    """Ask each broker for its runtime figures; one that does not answer has a row without figures."""
    info = await cluster_info(call)
    if not call.options.as_mqadmin:  # mqadmin prints the titles
        check_registered(call, info)
        if call.options.clusterName is not None:
            one_cluster(call, info)
    places = [
        (cluster, name, broker_id, addr)
        for cluster, names in sorted(info.cluster_addr_table.items())
        if call.options.clusterName in (None, cluster)
        for name in sorted(names)
        if name in info.broker_addr_table
        for broker_id, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    addrs = dict.fromkeys(addr for *_, addr in places)
    answers, failures = await ask_all(call, addrs, GET_BROKER_RUNTIME_INFO, None)
    figures = {addr: answer.body.table for addr, answer in answers}
    members = [(*place, figures.get(place[-1])) for place in places]
    if call.options.totals:
        columns: tuple[str, ...] = ("cluster", "broker", "id", "in_yesterday", "out_yesterday", "in_today", "out_today")
        rows: list[tuple[object, ...]] = [(*one[:3], *_totals(one[-1])) for one in members]
        mqadmin_text = columns_of_mqadmin.cluster_totals(members)
    else:
        columns = ("cluster", "broker", "id", "address", "version", "rmq", "in_per_second", "out_per_second")
        rows = [_row(one) for one in members]
        mqadmin_text = columns_of_mqadmin.cluster_list(members, call.now_ms)
    return tabular(columns, rows, nothing="no broker", mqadmin_text=mqadmin_text, failures=failures)


def _row(member: columns_of_mqadmin.Member) -> tuple[object, ...]:
    *place, table = member
    if table is None:
        return (*place, None, None, None, None)
    out = table.get("getTransferedTps", table.get("getTransferredTps", ""))
    versions = table.get("brokerVersionDesc", ""), table.get("rmqVersion")
    return (*place, *versions, _first_rate(table.get("putTps", "")), _first_rate(out))


def _totals(table: Mapping[str, str] | None) -> tuple[int | None, ...]:
    return (None, None, None, None) if table is None else columns_of_mqadmin.totals_of(table)


def _first_rate(text: str) -> float:
    """Return the first of the rates over 10 s, 1 min and 10 min."""
    return float(text.split(" ")[0] or 0) if text else 0.0
