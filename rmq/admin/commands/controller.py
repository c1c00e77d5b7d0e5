"""``rmq-admin controller``: groups whose masters a controller elects."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rmq.admin.command import DIFFERENT, NAMESRV, OK, REFUSED, Call, NotFound, Outcome, argument, command, tabular
from rmq.admin.lookups import cluster_info
from rmq.errors import Refused, RequestFailed
from rmq.wire.api.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    OWN_GROUP,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    ReplicasInfo,
)
from rmq.wire.codes import ResponseCode

CONTROLLER = argument(
    "-a",
    "--controllerAddress",
    metavar="HOST:PORT",
    help="the controller, or one of several; default: the NameServer that is one",
)
NAME = argument("brokerName", metavar="BROKER_NAME", help="the group's name")
ID = argument("brokerId", type=int, metavar="ID", help="a broker's id at the controller, as `controller show` has it")

COLUMNS = ("broker_name", "id", "address", "role", "alive", "master_epoch", "set_epoch")


@command(
    "controller show",
    "show who is master, who is in the SyncStateSet and who lives",
    NAMESRV,
    CONTROLLER,
    argument(
        "brokerName",
        nargs="*",
        metavar="BROKER_NAME",
        help="groups; default: all; of an Apache controller all that have a broker now",
    ),
)
async def controller_show(call: Call) -> Outcome:
    """Status 2 when a group has no master, or a broker that is not in the SyncStateSet."""
    controller = await _controller(call)
    names = call.options.brokerName
    answer = await call.invoke(controller, CONTROLLER_GET_SYNC_STATE_DATA, None, msgspec.json.encode(names))
    if not names and not answer.body.replicas_info_table:
        names = sorted((await cluster_info(call)).broker_addr_table)
        answer = await call.invoke(controller, CONTROLLER_GET_SYNC_STATE_DATA, None, msgspec.json.encode(names))
    table = answer.body.replicas_info_table
    rows = [row for name, info in sorted(table.items()) for row in _rows(name, info)]
    is_whole = all(info.master_broker_id is not None and not info.not_in_sync_replicas for info in table.values())
    asked = ", ".join(names) or "no broker is registered; name a group to see one that has lost all"
    nothing = f"{controller} elects the master of none of these: {asked}"
    return tabular(COLUMNS, rows, nothing=nothing, status=OK if is_whole and table else DIFFERENT)


@command(
    "controller elect", "make a broker of the SyncStateSet the master", NAMESRV, CONTROLLER, NAME, ID, changes=True
)
async def controller_elect(call: Call) -> Outcome:
    """Status 1 when the controller refuses it, 4 when nobody confirms it."""
    controller = await _controller(call)
    name, broker_id = call.options.brokerName, call.options.brokerId
    call.confirm(f"broker {broker_id} becomes master of {name}; sends fail until it is", name)
    header = ElectMasterHeader(broker_name=name, broker_id=broker_id, designate_elect=True)
    reply = await call.change(controller, CONTROLLER_ELECT_MASTER, header, None)
    columns = ("broker_name", "master_id", "address", "master_epoch")
    if reply is None:
        return tabular(columns, [], nothing="")
    master = reply.header
    row = (name, master.master_broker_id, master.master_address, master.master_epoch)
    is_done = reply.code == ResponseCode.SUCCESS
    return tabular(columns, [row], nothing="", status=OK if is_done else REFUSED)


@command(
    "controller forget",
    "have the controller forget a broker that is gone for good",
    NAMESRV,
    CONTROLLER,
    NAME,
    ID,
    changes=True,
)
async def controller_forget(call: Call) -> Outcome:
    """Status 1 when the controller refuses it, as for a broker that lives; 4 when nobody confirms it."""
    controller = await _controller(call)
    name, broker_id = call.options.brokerName, call.options.brokerId
    call.confirm(f"broker {broker_id} of {name} is forgotten: its store cannot join again", name)
    header = CleanBrokerDataHeader(broker_name=name, broker_controller_ids_to_clean=str(broker_id))
    reply = await call.change(controller, CLEAN_BROKER_DATA, header, None)
    rows = [] if reply is None else [(name, broker_id)]
    return tabular(("broker_name", "id"), rows, nothing="")


def _rows(name: str, info: ReplicasInfo) -> Iterator[tuple[object, ...]]:
    for replicas, role in ((info.in_sync_replicas, "in sync"), (info.not_in_sync_replicas, "not in sync")):
        for one in replicas:
            shown = "master" if one.broker_id == info.master_broker_id else role
            yield (
                name,
                one.broker_id,
                one.broker_address,
                shown,
                one.alive,
                info.master_epoch,
                info.sync_state_set_epoch,
            )


async def _controller(call: Call) -> str:
    """Return the controller: the leader, as the one given names it, or the NameServer that is one."""
    given: str | None = call.options.controllerAddress
    failed: RequestFailed | None = None
    for addr in (given,) if given else call.namesrvs:
        try:
            answer = await call.invoke(addr, CONTROLLER_GET_METADATA_INFO, None, None)
        except Refused:
            continue  # a NameServer that is none
        except RequestFailed as error:
            failed = error
            continue
        # One of ours does not know by which address it can be reached.
        is_ours = answer.header.group == OWN_GROUP
        return addr if is_ours else answer.header.controller_leader_address or addr
    if failed is not None:
        raise failed
    raise NotFound(
        "no NameServer given is a controller (enableControllerInNamesrv=true): name it with --controllerAddress"
    )
