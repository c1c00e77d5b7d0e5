"""
The groups that a controller looks after: pure values, and the rules by which they change.

Java: ReplicasInfoManager, BrokerReplicaInfo, SyncStateInfo
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import msgspec

from rmq.remoting.responders import Refuse
from rmq.wire.codes import ResponseCode

#: the id of the first broker of a group.  Java: MixAll#FIRST_BROKER_CONTROLLER_ID
FIRST_BROKER_ID = 1


@attrs.frozen(kw_only=True)
class Member:
    """A broker of a group: where it was last, and the code with which it took its id."""

    address: str
    check_code: str


@attrs.frozen(kw_only=True)
class Group:
    """
    A group of brokers of one name.

    ``master_id`` is None while there is no master; ``sync_state_set`` are then those of whom one may become it. The
    epochs begin with 0: never had a master.
    """

    cluster_name: str
    broker_name: str
    members: Mapping[int, Member]
    #: the id of the next new broker; that of a forgotten one is not used again, because it may come back
    next_id: int = FIRST_BROKER_ID
    master_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    def address(self, broker_id: int | None) -> str | None:
        """Return where a broker is; None for None and for an unknown one."""
        member = None if broker_id is None else self.members.get(broker_id)
        return None if member is None else member.address

    # changes; each returns another group, or raises Refuse

    def with_member(self, broker_id: int, check_code: str) -> Group:
        """
        Give an id to a new broker; the same broker may ask again.

        Java: ReplicasInfoManager#applyBrokerId
        """
        known = self.members.get(broker_id)
        if known is not None:
            if known.check_code == check_code:
                return self
            raise Refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Fail to apply brokerId: {broker_id} in broker-set: {self.broker_name}",
            )
        if not self.members and broker_id != FIRST_BROKER_ID:
            raise Refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {self.broker_name} hasn't been registered in controller, but broker try to apply "
                f"brokerId: {broker_id}",
            )
        member = Member(address=check_code.partition(";")[0], check_code=check_code)
        next_id = max(self.next_id, broker_id + 1)
        return attrs.evolve(self, members={**self.members, broker_id: member}, next_id=next_id)

    def with_address(self, broker_id: int, address: str) -> Group:
        """Write down where a broker runs.  Java: ReplicasInfoManager#registerBroker"""
        member = self.members.get(broker_id)
        if member is None:
            raise Refuse(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {broker_id} hasn't been registered in broker-set: {self.broker_name}",
            )
        if member.address == address:
            return self
        return attrs.evolve(self, members={**self.members, broker_id: attrs.evolve(member, address=address)})

    def with_master(self, broker_id: int) -> Group:
        """Begin the next epoch with a new master, alone in the SyncStateSet; others join when they have caught up."""
        return attrs.evolve(
            self,
            master_id=broker_id,
            master_epoch=self.master_epoch + 1,
            sync_state_set=frozenset({broker_id}),
            sync_state_set_epoch=self.sync_state_set_epoch + 1,
        )

    def without_master(self) -> Group:
        """Begin an epoch without a master; the SyncStateSet stays, one of it may become master when it is back."""
        return attrs.evolve(self, master_id=None, master_epoch=self.master_epoch + 1)

    def with_set(self, wanted: Iterable[int], *, master_id: int, master_epoch: int, set_epoch: int) -> Group:
        """
        Replace the SyncStateSet, as the present master asks.

        Java: ReplicasInfoManager#alterSyncStateSet
        """
        new = frozenset(wanted)
        if new == self.sync_state_set:
            raise Refuse(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
            )
        refused = "Rejecting alter syncStateSet request because"
        if master_id != self.master_id:
            raise Refuse(
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"{refused} the current leader is:{{{self.master_id}}}, not {{{master_id}}}",
            )
        if master_epoch != self.master_epoch:
            raise Refuse(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"{refused} the current master epoch is:{{{self.master_epoch}}}, not {{{master_epoch}}}",
            )
        if set_epoch != self.sync_state_set_epoch:
            raise Refuse(
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
                f"{refused} the current syncStateSet epoch is:{{{self.sync_state_set_epoch}}}, not {{{set_epoch}}}",
            )
        for broker_id in sorted(new - self.members.keys()):
            raise Refuse(
                ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{refused} the replicas {{{broker_id}}} don't exist"
            )
        if master_id not in new:
            raise Refuse(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"{refused} the newSyncStateSet don't contains origin leader {{{master_id}}}",
            )
        return attrs.evolve(self, sync_state_set=new, sync_state_set_epoch=set_epoch + 1)

    def after_restart(self, broker_id: int, *, may_lack_messages: bool) -> Group:
        """
        A broker has started again: if it was the master it is so no longer, and what it says it holds may be gone.

        In that case it leaves the SyncStateSet, unless nobody else is in it. The set gets another epoch even then: what
        the master knows of the broker, and a request to count it that is on its way, are from before.
        """
        group = self.without_master() if broker_id == self.master_id else self
        if may_lack_messages:
            left = group.sync_state_set - {broker_id} or group.sync_state_set
            group = attrs.evolve(group, sync_state_set=left, sync_state_set_epoch=group.sync_state_set_epoch + 1)
        return group

    def without_members(self, ids: Iterable[int]) -> Group | None:
        """
        Forget brokers; None when no broker is left.

        Requests from before must not count them, so the epoch of the SyncStateSet grows.

        Java: ReplicasInfoManager#handleCleanBrokerDataEvent
        """
        gone = frozenset(ids)
        members = {broker_id: member for broker_id, member in self.members.items() if broker_id not in gone}
        if not members:
            return None
        group = self.without_master() if self.master_id in gone else self
        return attrs.evolve(
            group,
            members=members,
            sync_state_set=self.sync_state_set - gone,
            sync_state_set_epoch=self.sync_state_set_epoch + 1,
        )


def choose_master(
    group: Group, candidates: Mapping[int, tuple[int, int, int]], *, wanted: int | None, unclean: bool
) -> int | None:
    """
    Return who is to be master; None when nobody may.

    ``candidates`` are the brokers that live, with epoch, end of the log and electionPriority. The present master stays
    while it lives. Else the one with the newest epoch, then the longest log, then the smallest priority. ``wanted``
    takes the place of all of them. ``unclean`` allows brokers outside of the SyncStateSet when none of it lives.

    Java: DefaultElectPolicy#elect
    """
    for allowed in (group.sync_state_set, group.members.keys() if unclean else ()):
        living = [broker_id for broker_id in sorted(allowed) if broker_id in candidates]
        if not living:
            continue
        if wanted is not None:
            if wanted in living:
                return wanted
            continue
        if group.master_id in living:
            return group.master_id
        return min(living, key=lambda broker_id: _rank(*candidates[broker_id]))
    return None


def _rank(epoch: int, end_offset: int, priority: int) -> tuple[int, int, int]:
    return -epoch, -end_offset, priority


class _StoredMember(msgspec.Struct, rename="camel", kw_only=True):
    broker_id: int
    address: str
    register_check_code: str


class _StoredGroup(msgspec.Struct, rename="camel", kw_only=True):
    cluster_name: str
    broker_name: str
    members: list[_StoredMember]
    next_broker_id: int
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: list[int] = []
    sync_state_set_epoch: int = 0


class _StoredGroups(msgspec.Struct, rename="camel", kw_only=True):
    groups: list[_StoredGroup]


def parse_groups(data: bytes) -> dict[str, Group]:
    """Return the groups in a state file; ValueError names what cannot be read."""
    try:
        stored = msgspec.json.decode(data, type=_StoredGroups)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    return {
        one.broker_name: Group(
            cluster_name=one.cluster_name,
            broker_name=one.broker_name,
            members={
                member.broker_id: Member(address=member.address, check_code=member.register_check_code)
                for member in one.members
            },
            next_id=one.next_broker_id,
            master_id=one.master_broker_id,
            master_epoch=one.master_epoch,
            sync_state_set=frozenset(one.sync_state_set),
            sync_state_set_epoch=one.sync_state_set_epoch,
        )
        for one in stored.groups
    }


def encode_groups(groups: Mapping[str, Group]) -> bytes:
    """Return the content of the state file."""
    stored = _StoredGroups(
        groups=[
            _StoredGroup(
                cluster_name=group.cluster_name,
                broker_name=group.broker_name,
                members=[
                    _StoredMember(broker_id=broker_id, address=member.address, register_check_code=member.check_code)
                    for broker_id, member in sorted(group.members.items())
                ],
                next_broker_id=group.next_id,
                master_broker_id=group.master_id,
                master_epoch=group.master_epoch,
                sync_state_set=sorted(group.sync_state_set),
                sync_state_set_epoch=group.sync_state_set_epoch,
            )
            for _, group in sorted(groups.items())
        ]
    )
    return msgspec.json.format(msgspec.json.encode(stored), indent=2)


def ids_of(text: str | None) -> list[int]:
    """Return the ids in ``1;2``; ValueError for anything else, an empty list for nothing."""
    return [int(part) for part in (text or "").split(";") if part.strip()]
