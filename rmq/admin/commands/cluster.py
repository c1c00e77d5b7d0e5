"""``rmq-admin cluster list``."""

from __future__ import annotations

from rmq.admin.command import NAMESRV, Call, Outcome, argument, command, tabular
from rmq.admin.lookups import ask_each, cluster_info
from rmq.wire.api.admin import GET_BROKER_RUNTIME_INFO


@command(
    "cluster list",
    "list the brokers of all clusters, with version and messages per second",
    NAMESRV,
    argument("-c", "--clusterName", metavar="CLUSTER", help="only this one"),
)
async def cluster_list(call: Call) -> Outcome:
    """Ask each broker for its runtime figures; RequestFailed when one does not answer."""
    info = await cluster_info(call)
    members = [
        (cluster, name, broker_id, addr)
        for cluster, names in sorted(info.cluster_addr_table.items())
        if call.options.clusterName in (None, cluster)
        for name in sorted(names)
        if name in info.broker_addr_table
        for broker_id, addr in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    figures = dict(await ask_each(call, {addr for *_, addr in members}, GET_BROKER_RUNTIME_INFO, None, None))
    rows = []
    for cluster, name, broker_id, addr in members:
        table = figures[addr].body.table
        rows.append(
            (
                cluster,
                name,
                broker_id,
                addr,
                table.get("brokerVersionDesc", ""),
                _first_rate(table.get("putTps", "")),
                _first_rate(table.get("getTransferedTps", table.get("getTransferredTps", ""))),
            )
        )
    columns = ("cluster", "broker", "id", "address", "version", "in_per_second", "out_per_second")
    return tabular(columns, rows, nothing="no broker is registered")


def _first_rate(text: str) -> float:
    """Return the first of the rates over 10 s, 1 min and 10 min."""
    return float(text.split(" ")[0] or 0) if text else 0.0
