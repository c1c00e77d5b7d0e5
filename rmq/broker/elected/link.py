"""
What a broker asks its controller.

Java: BrokerOuterAPI
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import attrs

from rmq.broker.config import BrokerSetup
from rmq.errors import Refused, RequestFailed
from rmq.remoting.client import RemotingClient
from rmq.runtime.config import ConfigError
from rmq.wire.api.controller import (
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_REGISTER_BROKER,
    OWN_GROUP,
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    NextBrokerIdHeader,
    RegisterBrokerToControllerHeader,
    ReplicaInfoHeader,
    SyncStateSet,
)
from rmq.wire.api.routes import BROKER_HEARTBEAT, BrokerHeartbeatHeader
from rmq.wire.codes import ResponseCode
from rmq.wire.contract import Contract
from rmq.wire.exchange import Response

TIMEOUT_MS = 3000

H = TypeVar("H")
B = TypeVar("B")
RH = TypeVar("RH")
RB = TypeVar("RB")


@attrs.frozen(kw_only=True)
class Decision:
    """Who is master of a group, as the controller says; ``master_id`` None: nobody."""

    master_id: int | None
    master_address: str
    epoch: int
    sync_state_set: frozenset[int]
    set_epoch: int


class ControllerLink:
    """
    Asks the controller, the leader where ``controllerAddr`` names several.

    Every method raises RequestFailed: Refused where the controller says no.
    """

    def __init__(self, client: RemotingClient, setup: BrokerSetup) -> None:
        self._client = client
        self._setup = setup
        self._addrs = [addr.strip() for addr in setup.broker.controller_addr.split(";")]
        self._leader: str | None = None

    async def new_id(self) -> int:
        """Return the id that the next new broker of this group gets."""
        setup = self._setup
        header = NextBrokerIdHeader(cluster_name=setup.broker.broker_cluster_name, broker_name=setup.name)
        answer = await self._ask(CONTROLLER_GET_NEXT_BROKER_ID, header, None)
        return answer.header.next_broker_id or 0

    async def apply_for(self, broker_id: int, check_code: str) -> None:
        """Take an id; Refused with CONTROLLER_BROKER_ID_INVALID when another broker has it."""
        setup = self._setup
        header = ApplyBrokerIdHeader(
            cluster_name=setup.broker.broker_cluster_name,
            broker_name=setup.name,
            applied_broker_id=broker_id,
            register_check_code=check_code,
        )
        await self._ask(CONTROLLER_APPLY_BROKER_ID, header, None)

    async def register(self, broker_id: int, *, may_lack_messages: bool) -> None:
        """Say that this broker has started again."""
        setup = self._setup
        header = RegisterBrokerToControllerHeader(
            cluster_name=setup.broker.broker_cluster_name,
            broker_name=setup.name,
            broker_id=broker_id,
            broker_address=setup.address,
            may_lack_messages=may_lack_messages,
        )
        await self._ask(CONTROLLER_REGISTER_BROKER, header, None)

    async def heartbeat(self, broker_id: int, *, epoch: int, end_offset: int, confirm_offset: int) -> None:
        """Say that this broker lives."""
        broker = self._setup.broker
        header = BrokerHeartbeatHeader(
            cluster_name=broker.broker_cluster_name,
            broker_addr=self._setup.address,
            broker_name=self._setup.name,
            broker_id=broker_id,
            epoch=epoch,
            max_offset=end_offset,
            confirm_offset=confirm_offset,
            heartbeat_timeout_mills=broker.controller_heart_beat_timeout_mills,
            election_priority=broker.broker_election_priority,
        )
        await self._ask(BROKER_HEARTBEAT, header, None)

    async def decision(self) -> Decision:
        """Ask who is master."""
        answer = await self._ask(CONTROLLER_GET_REPLICA_INFO, ReplicaInfoHeader(broker_name=self._setup.name), None)
        header, body = answer.header, answer.body
        return Decision(
            master_id=header.master_broker_id,
            master_address=header.master_address or "",
            epoch=header.master_epoch or 0,
            sync_state_set=frozenset(body.sync_state_set),
            set_epoch=body.sync_state_set_epoch,
        )

    async def elect(self, broker_id: int) -> None:
        """Ask for a master; Refused when nobody may become it now."""
        setup = self._setup
        header = ElectMasterHeader(
            cluster_name=setup.broker.broker_cluster_name, broker_name=setup.name, broker_id=broker_id
        )
        await self._ask(CONTROLLER_ELECT_MASTER, header, None)

    async def alter(self, broker_id: int, epoch: int, ids: Iterable[int], set_epoch: int) -> SyncStateSet:
        """Ask for another SyncStateSet; return it as it is now."""
        header = AlterSyncStateSetHeader(broker_name=self._setup.name, master_broker_id=broker_id, master_epoch=epoch)
        body = SyncStateSet(sync_state_set=sorted(ids), sync_state_set_epoch=set_epoch)
        answer = await self._ask(CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
        return answer.body

    async def _ask(self, contract: Contract[H, B, RH, RB], header: H, body: B) -> Response[RH, RB]:
        addr = await self._find_leader()
        try:
            return await self._client.invoke(addr, contract, header, body, timeout_ms=TIMEOUT_MS)
        except Refused as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self._leader = None
            raise
        except RequestFailed:
            self._leader = None
            raise

    async def _find_leader(self) -> str:
        if len(self._addrs) == 1:
            # Not asked: behind a mapped port it does not know its own address.
            return self._addrs[0]
        failed: RequestFailed | None = None
        for addr in self._addrs if self._leader is None else ():
            try:
                answer: Response[Any, Any] = await self._client.invoke(
                    addr, CONTROLLER_GET_METADATA_INFO, None, None, timeout_ms=TIMEOUT_MS
                )
            except RequestFailed as error:
                failed = error
                continue
            if answer.header.group == OWN_GROUP:
                raise ConfigError(
                    f"controllerAddr={self._setup.broker.controller_addr}: {addr} is a controller of rmq's, which "
                    "decides alone: name just that one"
                )
            self._leader = answer.header.controller_leader_address
            if self._leader:
                break
        if not self._leader:
            raise failed or RequestFailed(self._setup.broker.controller_addr, "no controller is the leader")
        return self._leader
