"""
The replies of a controller, one method per request code.

Java: ControllerRequestProcessor
"""

from __future__ import annotations

import attrs
import msgspec

from rmq.namesrv.controller.groups import FIRST_BROKER_ID, Group, ids_of
from rmq.namesrv.controller.service import Controller, set_of
from rmq.namesrv.responders import AdminResponders
from rmq.namesrv.settings import Settings
from rmq.remoting.responders import Refuse, Reply, Request, responds_to
from rmq.wire.api.controller import (
    CLEAN_BROKER_DATA,
    CONTROLLER_ALTER_SYNC_STATE_SET,
    CONTROLLER_APPLY_BROKER_ID,
    CONTROLLER_ELECT_MASTER,
    CONTROLLER_GET_METADATA_INFO,
    CONTROLLER_GET_NEXT_BROKER_ID,
    CONTROLLER_GET_REPLICA_INFO,
    CONTROLLER_GET_SYNC_STATE_DATA,
    CONTROLLER_REGISTER_BROKER,
    GET_CONTROLLER_CONFIG,
    OWN_GROUP,
    UPDATE_CONTROLLER_CONFIG,
    AlterSyncStateSetHeader,
    AlterSyncStateSetReply,
    ApplyBrokerIdHeader,
    BrokerReplicasInfo,
    CleanBrokerDataHeader,
    ControllerMetadataReply,
    ElectMasterBody,
    ElectMasterHeader,
    GroupNameReply,
    MasterReply,
    NextBrokerIdHeader,
    NextBrokerIdReply,
    RegisterBrokerToControllerHeader,
    ReplicaIdentity,
    ReplicaInfoHeader,
    ReplicaInfoReply,
    ReplicasInfo,
    SyncStateSet,
)
from rmq.wire.api.routes import BrokerMemberGroup
from rmq.wire.codes import ResponseCode

#: what `getControllerMetaData` shows: there is one controller
CONTROLLER_ID = "n0"


@attrs.define(eq=False)
class ControllerResponders:
    """Requests of brokers in controller mode, and of tools about them."""

    _controller: Controller
    _settings: Settings
    _admin: AdminResponders

    # brokers

    @responds_to(CONTROLLER_GET_METADATA_INFO)
    def get_metadata_info(self, request: Request[None, None]) -> Reply:
        address = f"{request.channel.local_ip}:{self._settings.netty.listen_port}"
        return Reply(
            header=ControllerMetadataReply(
                group=OWN_GROUP,
                controller_leader_id=CONTROLLER_ID,
                controller_leader_address=address,
                is_leader=True,
                peers=f"{CONTROLLER_ID}:{address}",
            )
        )

    @responds_to(CONTROLLER_GET_NEXT_BROKER_ID)
    def get_next_broker_id(self, request: Request[NextBrokerIdHeader, None]) -> Reply:
        header = request.header
        group = self._controller.group(header.broker_name)
        return Reply(
            header=NextBrokerIdReply(
                cluster_name=header.cluster_name,
                broker_name=header.broker_name,
                next_broker_id=FIRST_BROKER_ID if group is None else group.next_id,
            )
        )

    @responds_to(CONTROLLER_APPLY_BROKER_ID)
    def apply_broker_id(self, request: Request[ApplyBrokerIdHeader, None]) -> Reply:
        header = request.header
        group = self._controller.group(header.broker_name) or Group(
            cluster_name=header.cluster_name, broker_name=header.broker_name, members={}
        )
        if group.cluster_name != header.cluster_name:
            raise Refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker-set {header.broker_name} belongs to the cluster {group.cluster_name}, not to "
                f"{header.cluster_name}",
            )
        self._controller.keep(group.with_member(header.applied_broker_id, header.register_check_code))
        return Reply(header=GroupNameReply(cluster_name=header.cluster_name, broker_name=header.broker_name))

    @responds_to(CONTROLLER_REGISTER_BROKER)
    def register_broker(self, request: Request[RegisterBrokerToControllerHeader, None]) -> Reply:
        header = request.header
        group = self._controller.known_group(
            header.broker_name,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"Broker-set: {header.broker_name} hasn't been registered in controller",
        )
        group, is_double = self._controller.registered(group, header.broker_id, header.broker_address)
        if header.may_lack_messages is not None:
            may_lack = header.may_lack_messages or is_double
            group = self._controller.restarted(group, header.broker_id, may_lack_messages=may_lack)
        reply = MasterReply(cluster_name=header.cluster_name, broker_name=header.broker_name)
        if self._controller.has_master(group):
            reply = self._master_of(group, header.cluster_name)
        return Reply(header=reply, body=set_of(group))

    @responds_to(CONTROLLER_ELECT_MASTER)
    def elect_master(self, request: Request[ElectMasterHeader, None]) -> Reply:
        header = request.header
        before = self._controller.known_group(
            header.broker_name,
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            "Broker hasn't been registered",
        )
        if header.designate_elect:
            group = self._controller.elect(before, wanted=header.broker_id)
        else:
            group = self._controller.elect(before, asker=header.broker_id)
        if group.master_id is None or (header.designate_elect and group.master_id != header.broker_id):
            ids = ", ".join(map(str, sorted(before.sync_state_set)))
            why = "" if header.designate_elect else f": one of the SyncStateSet [{ids}] must be heard from"
            raise Refuse(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, f"Failed to elect a new master{why}")
        body = ElectMasterBody(broker_member_group=_member_group(group), sync_state_set=set_of(group).sync_state_set)
        reply = self._master_of(group, None)
        if group.master_epoch == before.master_epoch:
            remark = (
                f"The old master {group.master_id} is still alive, not need to elect new master for broker "
                f"{group.broker_name}"
            )
            return Reply(code=ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark=remark, header=reply, body=body)
        return Reply(header=reply, body=body)

    @responds_to(CONTROLLER_ALTER_SYNC_STATE_SET)
    def alter_sync_state_set(self, request: Request[AlterSyncStateSetHeader, SyncStateSet]) -> Reply:
        header, wanted = request.header, request.body
        group = self._controller.known_group(
            header.broker_name,
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            "Broker metadata is not existed",
        )
        changed = group.with_set(
            wanted.sync_state_set,
            master_id=header.master_broker_id,
            master_epoch=header.master_epoch,
            set_epoch=wanted.sync_state_set_epoch,
        )
        # Only those that join: that one of the set is silent must not keep the master from giving up another one.
        for broker_id in sorted(changed.sync_state_set - group.sync_state_set):
            if not self._controller.lives(group.broker_name, broker_id):
                raise Refuse(
                    ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                    f"Rejecting alter syncStateSet request because the replicas {{{broker_id}}} don't alive",
                )
        changed = self._controller.keep(changed)
        reply = AlterSyncStateSetReply(new_sync_state_set_epoch=changed.sync_state_set_epoch)
        return Reply(header=reply, body=set_of(changed))

    @responds_to(CONTROLLER_GET_REPLICA_INFO)
    def get_replica_info(self, request: Request[ReplicaInfoHeader, None]) -> Reply:
        group = self._controller.known_group(
            request.header.broker_name,
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "Broker metadata is not existed",
        )
        reply = ReplicaInfoReply(
            master_broker_id=group.master_id,
            master_address=group.address(group.master_id),
            master_epoch=group.master_epoch,
        )
        return Reply(header=reply, body=set_of(group))

    # tools

    @responds_to(CONTROLLER_GET_SYNC_STATE_DATA)
    def get_sync_state_data(self, request: Request[None, bytes]) -> Reply:
        try:
            names = msgspec.json.decode(request.body or b"[]", type=list[str])
        except msgspec.MsgspecError as error:
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"the body must be a list of names: {error}") from error
        # Apache's answers a list without names with no group. No NameServer knows those whose brokers are all away.
        known = self._controller.groups() if not names else map(self._controller.group, names)
        groups = [group for group in known if group is not None]
        table = {group.broker_name: self._replicas(group) for group in groups}
        return Reply(body=BrokerReplicasInfo(replicas_info_table=table))

    @responds_to(CLEAN_BROKER_DATA)
    def clean_broker_data(self, request: Request[CleanBrokerDataHeader, None]) -> None:
        header = request.header
        name, invalid = header.broker_name, ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        try:
            ids = ids_of(header.broker_controller_ids_to_clean)
        except ValueError:
            raise Refuse(
                invalid, f"brokerControllerIdsToClean {header.broker_controller_ids_to_clean} is no list of ids (1;2)"
            ) from None
        group = self._controller.known_group(name, invalid, f"Broker {name} is not existed,clean broker data failure.")
        if not header.clean_living_broker:
            if not ids and group.master_id is not None:
                raise Refuse(invalid, f"Broker {name} is still alive, clean up failure")
            for broker_id in ids:
                if self._controller.lives(name, broker_id):
                    raise Refuse(invalid, f"Broker [{name},  {broker_id}] is still alive, clean up failure")
        self._controller.forget(group, ids)

    @responds_to(GET_CONTROLLER_CONFIG)
    def get_controller_config(self, _: Request[None, None]) -> Reply:
        return Reply(body=self._settings.controller_text().encode())

    @responds_to(UPDATE_CONTROLLER_CONFIG)
    def update_controller_config(self, request: Request[None, bytes]) -> None:
        self._admin.update_config(request)

    # inside

    def _master_of(self, group: Group, cluster_name: str | None) -> MasterReply:
        return MasterReply(
            cluster_name=cluster_name,
            broker_name=None if cluster_name is None else group.broker_name,
            master_broker_id=group.master_id,
            master_address=group.address(group.master_id),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
        )

    def _replicas(self, group: Group) -> ReplicasInfo:
        def identities(in_set: bool) -> list[ReplicaIdentity]:
            return [
                ReplicaIdentity(
                    broker_name=group.broker_name,
                    broker_id=broker_id,
                    broker_address=member.address,
                    alive=self._controller.lives(group.broker_name, broker_id),
                )
                for broker_id, member in sorted(group.members.items())
                if (broker_id in group.sync_state_set) is in_set
            ]

        return ReplicasInfo(
            master_broker_id=group.master_id,
            master_address=group.address(group.master_id),
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
            in_sync_replicas=identities(True),
            not_in_sync_replicas=identities(False),
        )


def _member_group(group: Group) -> BrokerMemberGroup:
    addrs = {broker_id: member.address for broker_id, member in sorted(group.members.items())}
    return BrokerMemberGroup(broker_addrs=addrs, broker_name=group.broker_name, cluster=group.cluster_name)
