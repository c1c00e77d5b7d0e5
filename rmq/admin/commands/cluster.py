"""``rmq-admin cluster list``."""

from __future__ import annotations

from rmq.admin import columns as columns_of_mqadmin
from rmq.admin.command import NAMESRV, Call, Outcome, argument, command, tabular
from rmq.admin.lookups import ask_each, cluster_info
from rmq.wire.api.admin import GET_BROKER_RUNTIME_INFO


@command(
    "cluster list",
    "list the brokers of all clusters, with version and messages per second",
    NAMESRV,
    argument("-c", "--clusterName", metavar="CLUSTER", help="only this one"),
    argument("--totals", mqadmin=("-m", "--moreStats"), action="store_true", help="messages yesterday and today"),
    argument("--interval", mqadmin=("-i",), dest="watch", type=float, metavar="SECONDS", help="the same as --watch"),
)
async def cluster_list(call: Call) -> Outcome:
    """Ask each broker for its runtime figures; RequestFailed when one does not answer."""
    info = await cluster_info(call)
    places = [
        (cluster, name, broker_id, addr)
        for cluster, names in sorted(info.cluster_addr_table.items())
        if call.options.clusterName in (None, cluster)
        for name in sorted(names)
        if name in info.broker_addr_table
        for broker_id, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    figures = dict(await ask_each(call, {addr for *_, addr in places}, GET_BROKER_RUNTIME_INFO, None, None))
    members = [(*place, figures[place[-1]].body.table) for place in places]
    if call.options.totals:
        columns: tuple[str, ...] = ("cluster", "broker", "id", "in_yesterday", "out_yesterday", "in_today", "out_today")
        rows: list[tuple[object, ...]] = [(*one[:3], *columns_of_mqadmin.totals_of(one[-1])) for one in members]
        mqadmin_text = columns_of_mqadmin.cluster_totals(members)
    else:
        columns = ("cluster", "broker", "id", "address", "version", "in_per_second", "out_per_second")
        rows = [_row(one) for one in members]
        mqadmin_text = columns_of_mqadmin.cluster_list(members, call.now_ms)
    return tabular(columns, rows, nothing="no broker is registered", mqadmin_text=mqadmin_text)


def _row(member: columns_of_mqadmin.Member) -> tuple[object, ...]:
    *place, table = member
    out = table.get("getTransferedTps", table.get("getTransferredTps", ""))
    return (*place, table.get("brokerVersionDesc", ""), _first_rate(table.get("putTps", "")), _first_rate(out))


def _first_rate(text: str) -> float:
    """Return the first of the rates over 10 s, 1 min and 10 min."""
    return float(text.split(" ")[0] or 0) if text else 0.0
