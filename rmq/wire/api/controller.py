"""
The controller of 5.x, which elects the master of a group: what brokers and tools ask it, and its notice to brokers.

A controller knows a broker by the id that it gave it, 1 and up, whatever its role.
"""

from __future__ import annotations

import msgspec

from rmq.wire.api.routes import BrokerMemberGroup
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.contract import contract
from rmq.wire.extfields import Int32, Int64

#: the group in the answer of a controller of ours, which is always alone
OWN_GROUP = "rmq"


class SyncStateSet(msgspec.Struct, rename="camel", kw_only=True):
    """
    The brokers that hold every acknowledged message; the epoch grows with each change.

    Java: SyncStateSet
    """

    sync_state_set: list[int] = []
    sync_state_set_epoch: int = 0


class ControllerMetadataReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    Who leads the controllers; ``peers`` are ``id:host:port``, with ``;`` between.

    Java: GetMetaDataResponseHeader
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NextBrokerIdHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: GetNextBrokerIdRequestHeader"""

    cluster_name: str | None = None
    broker_name: str


class NextBrokerIdReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    The id that the next new broker of the group gets; it is free until a broker applies for it.

    Java: GetNextBrokerIdResponseHeader
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A new broker takes an id. ``register_check_code`` is ``address;milliseconds``, the same when it asks again.

    Java: ApplyBrokerIdRequestHeader
    """

    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str


class GroupNameReply(msgspec.Struct, rename="camel", kw_only=True):
    """Java: ApplyBrokerIdResponseHeader"""

    cluster_name: str | None = None
    broker_name: str | None = None


class RegisterBrokerToControllerHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A broker that has an id begins to run, at this address.

    ``may_lack_messages`` is ours alone: whether a power failure may have taken what it acknowledged. None, as from
    Apache's brokers: it may go on in the role that it had.
    Java: RegisterBrokerToControllerRequestHeader
    """

    cluster_name: str | None = None
    broker_name: str
    broker_id: Int64
    broker_address: str
    may_lack_messages: bool | None = None


class MasterReply(msgspec.Struct, rename="camel", kw_only=True):
    """
    The present master of a group; without one all but the epochs are absent.

    Java: RegisterBrokerToControllerResponseHeader, ElectMasterResponseHeader
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ElectMasterHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    A broker wants a master for its group, or, with ``designate_elect``, a tool wants this broker to become it.

    Java: ElectMasterRequestHeader
    """

    cluster_name: str | None = None
    broker_name: str
    broker_id: Int64 | None = None
    designate_elect: bool = False


class ElectMasterBody(msgspec.Struct, rename="camel", kw_only=True):
    """Java: ElectMasterResponseBody"""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = []


class AlterSyncStateSetHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The master of that epoch changes its SyncStateSet.

    Java: AlterSyncStateSetRequestHeader
    """

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32


class AlterSyncStateSetReply(msgspec.Struct, rename="camel", kw_only=True):
    """Java: AlterSyncStateSetResponseHeader"""

    new_sync_state_set_epoch: Int32 | None = None


class ReplicaInfoHeader(msgspec.Struct, rename="camel", kw_only=True):
    """Java: GetReplicaInfoRequestHeader"""

    broker_name: str


class ReplicaInfoReply(msgspec.Struct, rename="camel", kw_only=True):
    """Java: GetReplicaInfoResponseHeader"""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class ReplicaIdentity(msgspec.Struct, rename="camel", kw_only=True):
    """Java: BrokerReplicasInfo.ReplicaIdentity"""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


class ReplicasInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Java: BrokerReplicasInfo.ReplicasInfo"""

    in_sync_replicas: list[ReplicaIdentity] = []
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int = 0
    not_in_sync_replicas: list[ReplicaIdentity] = []
    sync_state_set_epoch: int = 0


class BrokerReplicasInfo(msgspec.Struct, rename="camel", kw_only=True):
    """Java: BrokerReplicasInfo"""

    replicas_info_table: dict[str, ReplicasInfo] = {}


class CleanBrokerDataHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    Forget brokers of a group, all without ``broker_controller_ids_to_clean`` (ids, with ``;`` between).

    Java: CleanControllerBrokerDataRequestHeader
    """

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    clean_living_broker: bool = msgspec.field(name="isCleanLivingBroker", default=False)


class RoleChangedHeader(msgspec.Struct, rename="camel", kw_only=True):
    """
    The notice of a controller to the brokers of a group: who is its master now.

    Java: NotifyBrokerRoleChangedRequestHeader
    """

    master_address: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class EpochEntry(msgspec.Struct, rename="camel", kw_only=True):
    """From ``start_offset`` on, the master of ``epoch`` wrote the log.  Java: EpochEntry"""

    epoch: int
    start_offset: int
    end_offset: int = 2**63 - 1


class EpochEntryCache(msgspec.Struct, rename="camel", kw_only=True):
    """
    What a broker knows of the masters that wrote its log.

    ``ha_server_addr`` is ours alone: where this master serves its slaves.
    Java: EpochEntryCache
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = 0
    epoch_list: list[EpochEntry] = []
    max_offset: int = 0
    ha_server_addr: str = ""


CONTROLLER_ALTER_SYNC_STATE_SET = contract(
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
    header=AlterSyncStateSetHeader,
    body=SyncStateSet,
    reply=AlterSyncStateSetReply,
    reply_body=SyncStateSet,
)
CONTROLLER_ELECT_MASTER = contract(
    RequestCode.CONTROLLER_ELECT_MASTER,
    header=ElectMasterHeader,
    reply=MasterReply,
    reply_body=ElectMasterBody,
    answers={ResponseCode.CONTROLLER_MASTER_STILL_EXIST},
)
CONTROLLER_REGISTER_BROKER = contract(
    RequestCode.CONTROLLER_REGISTER_BROKER,
    header=RegisterBrokerToControllerHeader,
    reply=MasterReply,
    reply_body=SyncStateSet,
)
CONTROLLER_GET_REPLICA_INFO = contract(
    RequestCode.CONTROLLER_GET_REPLICA_INFO,
    header=ReplicaInfoHeader,
    reply=ReplicaInfoReply,
    reply_body=SyncStateSet,
)
CONTROLLER_GET_METADATA_INFO = contract(RequestCode.CONTROLLER_GET_METADATA_INFO, reply=ControllerMetadataReply)
CONTROLLER_GET_SYNC_STATE_DATA = contract(
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=bytes, reply_body=BrokerReplicasInfo
)
GET_BROKER_EPOCH_CACHE = contract(RequestCode.GET_BROKER_EPOCH_CACHE, reply_body=EpochEntryCache)
NOTIFY_BROKER_ROLE_CHANGED = contract(
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header=RoleChangedHeader, body=SyncStateSet
)
UPDATE_CONTROLLER_CONFIG = contract(RequestCode.UPDATE_CONTROLLER_CONFIG, body=bytes)
GET_CONTROLLER_CONFIG = contract(RequestCode.GET_CONTROLLER_CONFIG, reply_body=bytes)
CLEAN_BROKER_DATA = contract(RequestCode.CLEAN_BROKER_DATA, header=CleanBrokerDataHeader)
CONTROLLER_GET_NEXT_BROKER_ID = contract(
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header=NextBrokerIdHeader, reply=NextBrokerIdReply
)
CONTROLLER_APPLY_BROKER_ID = contract(
    RequestCode.CONTROLLER_APPLY_BROKER_ID, header=ApplyBrokerIdHeader, reply=GroupNameReply
)
