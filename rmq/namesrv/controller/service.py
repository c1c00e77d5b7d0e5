"""
The controller: its table on disk, elections, and the notices to brokers.

Java: ControllerManager, DLedgerController
"""

from __future__ import annotations

import os
from collections import Counter

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.namesrv.controller.groups import Group, choose_master, encode_groups, parse_groups
from rmq.namesrv.controller.live import Hearing, Key
from rmq.namesrv.controller.reach import is_refused
from rmq.namesrv.settings import Settings
from rmq.remoting.channel import Channel
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import Refuse
from rmq.runtime.clock import Periodic, steady_ms
from rmq.runtime.disk.files import DiskError, SyncFailed
from rmq.runtime.disk.statefile import StateFileError, write_state
from rmq.runtime.platform import Platform
from rmq.wire.api.controller import NOTIFY_BROKER_ROLE_CHANGED, RoleChangedHeader, SyncStateSet
from rmq.wire.api.routes import BrokerHeartbeatHeader
from rmq.wire.codes import ResponseCode

TICK_S = 1.0
#: a tick that is later than this finds a process that was stopped, not silent brokers
LATE_S = 1.0
#: how long after the end of a master's connection its port is tried: brokers that end together are all noticed before
#: one of them is elected
PROBE_AFTER_S = 0.25
STATE_FILE = "replicas.json"


class Controller(Service):
    """
    Looks after the groups whose brokers have ``enableControllerMode=true``.

    One process decides: there must be one such controller for a group, and its state must survive
    (``controllerStorePath``). While it is away, a pair works as it is, and nobody is elected.
    """

    _log = Logger()
    name = "controller"

    def __init__(self, platform: Platform, settings: Settings, notifier: RemotingClient) -> None:
        self._platform = platform
        self._clock = clock = platform.reactor
        self._disk = platform.disk
        self._settings = settings
        self._notifier = notifier
        self._path = os.path.join(settings.controller.controller_store_path, STATE_FILE)
        self._groups: dict[str, Group] = {}
        self._hearing = Hearing()
        #: masters elected by group, since the process started
        self.elections: Counter[str] = Counter()
        self._probing: set[Deferred[None]] = set()
        self._ticked_s: float | None = None
        self._ticks = Periodic(clock, TICK_S, self._tick, name="scan of the controller", first_s=TICK_S)

    def load(self) -> None:
        """
        Read the groups. Raises StateFileError when their file is broken, DiskError when it cannot be read.

        The ``.bak`` is never used by itself: a broker that has left the SyncStateSet since may be in it, and would be
        elected without the messages that were acknowledged meanwhile.
        """
        backup = f"{self._path}.bak"
        if not self._disk.exists(self._path):
            if self._disk.exists(backup):
                raise StateFileError(f"{self._path} is missing, {backup} is older than it: see docs/failover.md")
            self._groups = {}
            return
        try:
            self._groups = parse_groups(self._disk.read_whole(self._path))
        except ValueError as error:
            raise StateFileError(f"{self._path}: {error}; {backup} is older than it: see docs/failover.md") from error

    def startService(self) -> None:
        super().startService()
        self._hearing.be_patient(steady_ms(self._clock))
        self._ticked_s = None
        self._ticks.start()
        self._log.info(
            "the controller decides about the masters of {count} groups ({path})",
            count=len(self._groups),
            path=self._path,
        )

    def stopService(self) -> Deferred[None]:
        super().stopService()
        for probing in list(self._probing):
            probing.cancel()
        return self._ticks.stop()

    # questions

    def group(self, broker_name: str) -> Group | None:
        """Return a group; None for an unknown one."""
        return self._groups.get(broker_name)

    def groups(self) -> list[Group]:
        """Return all groups, by name."""
        return sorted(self._groups.values(), key=lambda group: group.broker_name)

    def known_group(self, broker_name: str, code: int, remark: str) -> Group:
        """Return a group; an unknown one is refused with ``code``."""
        group = self._groups.get(broker_name)
        if group is None:
            raise Refuse(code, remark)
        return group

    def lives(self, broker_name: str, broker_id: int | None) -> bool:
        """Tell whether a broker is heard."""
        return broker_id is not None and self._hearing.lives((broker_name, broker_id), steady_ms(self._clock))

    def has_master(self, group: Group) -> bool:
        """Tell whether a group has a master that is not lost."""
        master_id = group.master_id
        if master_id is None:
            return False
        return not self._hearing.is_lost((group.broker_name, master_id), steady_ms(self._clock))

    # changes

    def keep(self, group: Group) -> Group:
        """Write a changed group to disk, then use it; a DiskError is refused, and nothing in memory has changed."""
        before = self._groups.get(group.broker_name)
        if group != before:
            self._write({**self._groups, group.broker_name: group})
            self._log_change(before, group)
        return group

    def forget(self, group: Group, ids: list[int]) -> None:
        """Forget brokers of a group, the whole group without ``ids``."""
        left = group.without_members(ids) if ids else None
        if left is not None:
            self.keep(left)
        else:
            self._write({name: other for name, other in self._groups.items() if name != group.broker_name})
            self._log.warn("{group}: forgotten, as a tool asked", group=group.broker_name)
        for broker_id in ids or group.members:
            self._hearing.forget((group.broker_name, broker_id))

    def registered(self, group: Group, broker_id: int, address: str) -> tuple[Group, bool]:
        """
        Note where a broker runs; return its group, and whether one with this id is still heard at another address.

        One of the two may have a copy of the other's store, and lack messages that the other has acknowledged.
        """
        before = group.address(broker_id)
        group = self.keep(group.with_address(broker_id, address))
        is_double = before != address and self.lives(group.broker_name, broker_id)
        if is_double:
            self._log.warn(
                "{group}: broker {broker_id} registers at {address} and is heard at {before}: one that has moved, or "
                "two with one store? The old one must end",
                group=group.broker_name,
                broker_id=broker_id,
                address=address,
                before=before,
            )
            self._hearing.forget((group.broker_name, broker_id))
        return group, is_double

    def heard(self, header: BrokerHeartbeatHeader, channel: object) -> None:
        """
        Take a heartbeat; that of a broker without an id here counts for nothing.

        Refused is one that comes from elsewhere than where the broker with this id has registered.
        """
        group = self._groups.get(header.broker_name)
        if group is None or header.broker_id is None or header.broker_id not in group.members:
            return
        address = group.address(header.broker_id)
        if header.broker_addr != address:
            raise Refuse(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"the broker with id {header.broker_id} of {group.broker_name} has registered at {address}, "
                f"not at {header.broker_addr}",
            )
        self._hearing.hear(
            (header.broker_name, header.broker_id),
            channel,
            steady_ms(self._clock),
            timeout_ms=header.heartbeat_timeout_mills,
            epoch=header.epoch,
            end_offset=header.max_offset,
            priority=header.election_priority,
        )

    def channel_closed(self, channel: Channel) -> None:
        """Note that a connection of a broker closed; a master whose port refuses connections is replaced."""
        for key in self._hearing.closed(channel, steady_ms(self._clock)):
            self._log.info("{group}: the connection of broker {broker_id} closed", group=key[0], broker_id=key[1])
            if self._cut_off_master(key) is not None:
                probing = Deferred.fromCoroutine(self._probe(key))
                self._probing.add(probing)
                probing.addBoth(self._probed, probing)

    def restarted(self, group: Group, broker_id: int, *, may_lack_messages: bool) -> Group:
        """Note that a broker has started again, as one of ours says of itself; return its group."""
        return self.keep(group.after_restart(broker_id, may_lack_messages=may_lack_messages))

    def elect(self, group: Group, *, asker: int | None = None, wanted: int | None = None) -> Group:
        """
        Give a group a master, or the next epoch without one; return the group as it is then.

        ``asker`` is the broker that asks: it becomes the first master that a group ever has. ``wanted`` is the broker
        that a tool wants. A group whose master lives stays as it is, unless another is wanted. A change is on disk,
        and brokers are notified of it.

        Java: ReplicasInfoManager#electMaster
        """
        if wanted is None and self.has_master(group):
            return group
        candidates = self._hearing.candidates(group.broker_name, group.members, steady_ms(self._clock))
        if group.master_epoch == 0 and asker is not None and wanted is None:
            if asker not in group.members:
                raise Refuse(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered")
            master_id: int | None = asker
        else:
            master_id = choose_master(
                group,
                candidates,
                wanted=wanted,
                unclean=self._settings.controller.enable_elect_unclean_master,
            )
        if master_id == group.master_id or (master_id is None and wanted is not None):
            return group
        if master_id is None:
            return self.keep(group.without_master())
        elected = self.keep(group.with_master(master_id))
        self.elections[group.broker_name] += 1
        self._notify(elected)
        return elected

    # inside

    def _write(self, groups: dict[str, Group]) -> None:
        try:
            write_state(self._disk, self._path, encode_groups(groups))
        except DiskError as error:
            # a folder that cannot be synced holds the old file or the new one after a power failure
            kept = "it may be found at the next start" if isinstance(error, SyncFailed) else "nothing was changed"
            self._log.error("a change of the controller's state is refused, {kept}: {error}", kept=kept, error=error)
            raise Refuse(ResponseCode.SYSTEM_ERROR, f"refused, {kept}: the file cannot be written: {error}") from error
        self._groups = groups

    def _log_change(self, before: Group | None, group: Group) -> None:
        if before is None or before.master_id != group.master_id or before.master_epoch != group.master_epoch:
            self._log.warn(
                "{group}: master {master} at {address}, epoch {epoch}; was {old}",
                group=group.broker_name,
                master="none" if group.master_id is None else group.master_id,
                address=group.address(group.master_id) or "-",
                epoch=group.master_epoch,
                old="none" if before is None or before.master_id is None else before.master_id,
            )
        if before is None or before.sync_state_set != group.sync_state_set:
            self._log.info(
                "{group}: SyncStateSet {ids}, epoch {epoch}",
                group=group.broker_name,
                ids=sorted(group.sync_state_set),
                epoch=group.sync_state_set_epoch,
            )

    def _notify(self, group: Group) -> None:
        if not self._settings.controller.notify_broker_role_changed:
            return
        header = RoleChangedHeader(
            master_address=group.address(group.master_id),
            master_broker_id=group.master_id,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.sync_state_set_epoch,
        )
        body = set_of(group)
        for broker_id, member in sorted(group.members.items()):
            if self.lives(group.broker_name, broker_id):
                self._notifier.oneway(member.address, NOTIFY_BROKER_ROLE_CHANGED, header, body)

    def _tick(self) -> None:
        now_s = self._clock.seconds()
        before_s, self._ticked_s = self._ticked_s, now_s
        if before_s is not None and now_s - before_s > TICK_S + LATE_S:
            self._log.warn(
                "the controller was stopped for {late_s:.1f} s: it waits for heartbeats before it elects",
                late_s=now_s - before_s - TICK_S,
            )
            self._hearing.be_patient(steady_ms(self._clock))
            return
        for group in list(self._groups.values()):
            if group.master_epoch and not self.has_master(group):
                self._replace_master(group)

    def _cut_off_master(self, key: Key) -> Group | None:
        """Return the group of a broker that is its master, was connected, and is not now."""
        group = self._groups.get(key[0])
        return group if group is not None and group.master_id == key[1] and self._hearing.is_cut_off(key) else None

    async def _probe(self, key: Key) -> None:
        await deferLater(self._clock, PROBE_AFTER_S)
        group = self._cut_off_master(key)
        address = None if group is None else group.address(key[1])
        if address is None or not await is_refused(self._platform, address):
            return
        group = self._cut_off_master(key)
        if group is not None and group.address(key[1]) == address:
            self._log.warn(
                "{group}: the port of the master, {address}, refuses connections: its process has ended",
                group=key[0],
                address=address,
            )
            self._hearing.gone(key)
            self._replace_master(group)

    def _probed(self, result: object, probing: Deferred[None]) -> None:
        self._probing.discard(probing)
        if isinstance(result, Failure) and result.check(CancelledError) is None:
            self._log.failure("the port of a master whose connection closed could not be tried", result)

    def _replace_master(self, group: Group) -> None:
        if group.master_id is not None:
            self._log.warn(
                "{group}: broker {broker_id}, the master, is lost", group=group.broker_name, broker_id=group.master_id
            )
        try:
            self.elect(group)
        except Refuse as error:  # the disk; it is in the log
            self._log.error("{group}: nobody was elected: {error}", group=group.broker_name, error=error.remark)


def set_of(group: Group) -> SyncStateSet:
    """Return the SyncStateSet as it goes into bodies."""
    return SyncStateSet(sync_state_set=sorted(group.sync_state_set), sync_state_set_epoch=group.sync_state_set_epoch)
