"""``rmq-admin producer``: clients that send."""

from __future__ import annotations

from rmq.admin import columns
from rmq.admin.command import CLUSTER, NAMESRV, ONE_BROKER, Call, NotFound, Outcome, command, subject, tabular
from rmq.admin.lookups import addresses_by_name, ask_all, route_of, targets
from rmq.admin.times import time_text
from rmq.errors import Refused
from rmq.wire.api.clients import GET_ALL_PRODUCER_INFO, GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader
from rmq.wire.codes import version_desc


@command(
    "producer members",
    "show the members of a producer group that send to a topic",
    NAMESRV,
    subject("group", "-g", "--producerGroup", metavar="GROUP"),
    subject("topic", "-t", "--topic", metavar="TOPIC"),
)
async def producer_members(call: Call) -> Outcome:
    """Ask the brokers of the topic; status 2 when no member is connected to any."""
    options = call.options
    header = ProducerGroupHeader(producer_group=options.group)
    rows = set()
    for addr in addresses_by_name((await route_of(call, options.topic)).broker_datas).values():
        try:
            found = (await call.invoke(addr, GET_PRODUCER_CONNECTION_LIST, header, None)).body
        except Refused:
            continue  # brokers answer SYSTEM_ERROR for a group that they do not know
        rows |= {
            (one.client_id, one.client_addr, one.language, version_desc(one.version)) for one in found.connection_set
        }
    if not rows:
        raise NotFound(f"no member of producer group {options.group} is connected to a broker of {options.topic}")
    mqadmin_text = columns.producer_connection(sorted(rows))
    return tabular(("client_id", "address", "language", "version"), sorted(rows), nothing="", mqadmin_text=mqadmin_text)


@command("producer list", "list the producers that are connected to brokers", NAMESRV, CLUSTER, ONE_BROKER)
async def producer_list(call: Call) -> Outcome:
    """A broker before 4.9.5 does not know the request."""
    answers, failures = await ask_all(call, await targets(call), GET_ALL_PRODUCER_INFO, None)
    rows = [
        (addr, group, one.client_id, one.remote_ip.lstrip("/"), one.language, version_desc(one.version),
         time_text(one.last_update_timestamp))
        for addr, answer in answers
        for group, members in sorted(answer.body.data.items())
        for one in members
    ]  # fmt: skip
    titles = ("broker", "group", "client_id", "address", "language", "version", "last_heartbeat")
    mqadmin_text = columns.producers(answer.body.data for _, answer in answers)
    return tabular(titles, rows, nothing="no producer is connected", mqadmin_text=mqadmin_text, failures=failures)
