"""
A broker whose role a controller decides: it registers there, takes the role that it is given, and says that it lives.

Java: ReplicasManager
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from rmq.broker.config import BrokerSetup, resolve
from rmq.broker.elected.history import History
from rmq.broker.elected.identity import Identity, IdentityFile
from rmq.broker.elected.link import TIMEOUT_MS, ControllerLink, Decision
from rmq.broker.elected.role import ElectedRole
from rmq.broker.service import BrokerService
from rmq.errors import Refused, RequestFailed
from rmq.ha.session import Term
from rmq.remoting.access import Access
from rmq.remoting.aclconfig import BROKER_ADMIN_CODES
from rmq.remoting.client import RemotingClient
from rmq.runtime.clock import Periodic, now_ms, steady_ms
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.files import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.runtime.logs import LogThrottle
from rmq.runtime.platform import Platform
from rmq.store.config import BrokerRole
from rmq.store.epochs import Epoch
from rmq.store.messages import StoreError
from rmq.wire.api.controller import GET_BROKER_EPOCH_CACHE, EpochEntryCache
from rmq.wire.codes import ResponseCode

#: heartbeats, and the question who is master
STEP_S = 1.0
#: a slave joins the SyncStateSet when it has what the master had so many steps ago
JOIN_STEPS = 2

#: with these the controller refuses another SyncStateSet for good; after others it may have been written all the same
DECIDED = frozenset(
    {
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_NOT_LEADER,
    }
)

START_ERRORS = (StoreError, StateFileError, DiskError, ConfigError, CannotListenError)


@attrs.define(kw_only=True)
class _Mastership:
    """What a master knows of its SyncStateSet."""

    sync_state_set: frozenset[int]
    set_epoch: int
    #: brokers that are about to join, and where the log ended when sends began to wait for them
    joining: dict[int, int] = attrs.field(factory=dict)
    #: brokers for which the controller was asked, at that epoch of the set, and no answer came: they count
    asked: frozenset[int] = frozenset()
    asked_epoch: int = -1
    #: (steady ms, end of the log) of the last steps
    ends: deque[tuple[int, int]] = attrs.field(factory=deque)


class ElectedBroker(MultiService):
    """
    Runs a broker in the role that the controller gives it; made by :func:`rmq.broker.elected.service.build_elected`.

    ``broker`` is that broker; None while there is none: before the first answer of the controller, between two roles,
    and while another may have become master unnoticed. Raises at the start what the store's own files can raise; an
    error later ends the process by ``on_fatal``.
    """

    _log = Logger()

    def __init__(
        self,
        platform: Platform,
        setup: BrokerSetup,
        *,
        announce: Callable[[str], object] | None = None,
        on_fatal: Callable[[str], object] | None = None,
        config_path: str | None = None,
        service: type[BrokerService] = BrokerService,
    ) -> None:
        super().__init__()
        self.setup = setup
        self.clock = clock = platform.reactor
        self.broker: BrokerService | None = None
        self._platform = platform
        self._announce = announce
        self._on_fatal = on_fatal or (lambda _: platform.reactor.stop())
        self._config_path = config_path
        self._service = service
        self._history = History(platform.disk, setup.store)
        self._identities = IdentityFile(platform.disk, setup)
        self.access = Access(
            platform, setup.access, rocketmq_home=setup.broker.rocketmq_home, admin_codes=BROKER_ADMIN_CODES
        )
        self._client = RemotingClient(
            platform, name="requests to the controller", tls=self.access.client_tls, sign=self.access.sign
        )
        for part in (self.access, self._client):
            part.setServiceParent(self)
        self._link = ControllerLink(self._client, setup)
        self._identity: Identity | None = None
        #: registered since this process began, or since it was no master any more
        self._registered = False
        self._decision: Decision | None = None
        self._mastership: _Mastership | None = None
        #: steady time of the controller's last answer
        self._heard_ms = 0
        self._throttle = LogThrottle()
        self._steps = Periodic(clock, STEP_S, self._step, name="election", first_s=0.0)
        #: the step that runs, whether another one is to follow it, and whether the controller has answered in it
        self._stepping: Deferred[None] | None = None
        self._again = False
        self._in_touch = False
        #: the slaves that were connected at the last look
        self._connected: frozenset[int] = frozenset()

    # start and stop

    def startService(self) -> None:
        """Raises StateFileError, DiskError or ConfigError; then nothing runs."""
        self._history.load()
        self._identity = self._identities.load()
        super().startService()
        self._heard_ms = steady_ms(self.clock)
        self._steps.start()

    def stopService(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self.running = False
        await self._steps.stop()
        if self._stepping is not None:
            await self._stepping
        await self._end_role("the broker stops")
        for part in (self._client, self.access):
            await maybeDeferred(part.stopService)

    @property
    def broker_id(self) -> int:
        """The id that the controller gave this broker; 0 before it has one."""
        return 0 if self._identity is None else self._identity.broker_id

    @property
    def master_epoch(self) -> int:
        """The epoch of the present role; 0 while there is none."""
        return 0 if self.broker is None or self._decision is None else self._decision.epoch

    def look_again(self) -> None:
        """Something has changed: take the next step now, or after the one that runs."""
        if self._stepping is not None:
            self._again = True
        else:
            self._step()

    # one step

    def _step(self) -> Deferred[None] | None:
        if self._stepping is not None or not self.running:
            return None
        self._stepping = step = Deferred.fromCoroutine(self._take_step())
        step.addBoth(self._stepped)
        return step

    def _stepped(self, result: object) -> object:
        self._stepping = None
        if self._again:
            self._again = False
            self.clock.callLater(0, self._step)
        return result

    async def _take_step(self) -> None:
        self._in_touch = False
        try:
            await self._ask()
        except Refused as error:
            self._say(f"refused {error.code}", f"the controller refuses: {error}")
        except RequestFailed as error:
            self._say("unreachable", f"the controller does not answer: {error}")
        except START_ERRORS as error:
            self._fail(error)
            return
        await self._look_after_set()

    async def _ask(self) -> None:
        """Register, say that this broker lives, and take the role that the controller gives it."""
        broker_id = await self._own_id()
        if not self._registered:
            await self._link.register(broker_id, may_lack_messages=self._history.may_lack_messages())
            self._registered = True
        await self._heartbeat(broker_id)
        decision = await self._link.decision()
        before = self._decision
        self._heard_ms = steady_ms(self.clock)
        if decision.master_id is None:
            if self._mastership is not None:
                await self._end_role(f"the controller has given up this master; epoch {decision.epoch} has none yet")
            await self._link.elect(broker_id)
            decision = await self._link.decision()
        self._in_touch = True
        if self.broker is None or before is None or decision.epoch != before.epoch:
            await self._change_role(decision)
        elif self._mastership is not None:
            self._learn_set(decision)

    async def _own_id(self) -> int:
        if self._identity is not None:
            return self._identity.broker_id
        applied = self._identities.load_applied()
        if applied is None:
            applied = Identity(await self._link.new_id(), f"{self.setup.address};{now_ms(self.clock)}")
            self._identities.save_applied(applied)
        try:
            await self._link.apply_for(applied.broker_id, applied.check_code)
        except Refused as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                self._identities.forget_applied()
            raise
        self._identities.save(applied)
        self._identity = applied
        self._log.info(
            "the controller gave this broker the id {id} in group {group}", id=applied.broker_id, group=self.setup.name
        )
        return applied.broker_id

    async def _heartbeat(self, broker_id: int) -> None:
        store = None if self.broker is None else self.broker.store
        try:
            await self._link.heartbeat(
                broker_id,
                epoch=self._history.last_epoch,
                end_offset=0 if store is None else store.end_offset,
                confirm_offset=0 if store is None else store.confirm_offset,
            )
        except Refused as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                raise
            raise StoreError(
                f"another broker with the id {broker_id} of this one runs: {error.remark}. See docs/failover.md"
            ) from error

    # roles

    async def _change_role(self, decision: Decision) -> None:
        if decision.master_id is None:
            return
        if decision.epoch < self._history.last_epoch:
            raise StoreError(
                f"this store has epoch {self._history.last_epoch}, the controller only {decision.epoch}: it has lost "
                "its state. See docs/failover.md"
            )
        is_master = decision.master_id == self.broker_id
        if is_master and decision.master_address != self.setup.address:
            raise StoreError(
                f"another broker with the id {self.broker_id} of this one has registered at {decision.master_address}, "
                f"this is {self.setup.address}: is this store a copy? See docs/failover.md"
            )
        if is_master and decision.epoch == self._history.last_epoch:
            # It became master in this epoch, and its process or its role has ended since: only a new epoch may go on.
            self._registered = False
            return
        why = f"broker {decision.master_id} is master in epoch {decision.epoch}"
        if is_master:
            await self._end_role(why)
            self._become_master(decision)
        else:
            if self._mastership is not None:
                await self._end_role(why)
            cache = await self._ask_master(decision)
            await self._end_role(why)
            self._become_slave(decision, cache)
        self._decision = decision

    def _become_master(self, decision: Decision) -> None:
        setup = attrs.evolve(
            self.setup,
            store=attrs.evolve(self.setup.store, broker_role=BrokerRole.SYNC_MASTER),
            broker=attrs.evolve(self.setup.broker, broker_id=0),
        )
        self._mastership = _Mastership(sync_state_set=decision.sync_state_set, set_epoch=decision.set_epoch)
        self._run(setup, decision, loaded=lambda end: self._history.begin(decision.epoch, end))
        assert self.broker is not None
        self.broker.ha.on_members(self._members_changed)
        self._require()

    async def _ask_master(self, decision: Decision) -> EpochEntryCache:
        """Ask the new master for its epochs; it may need some time to know that it is master."""
        answer = await self._client.invoke(
            decision.master_address, GET_BROKER_EPOCH_CACHE, None, None, timeout_ms=TIMEOUT_MS
        )
        cache: EpochEntryCache = answer.body
        epochs = [entry.epoch for entry in cache.epoch_list]
        if epochs[-1:] != [decision.epoch] or cache.broker_id != decision.master_id:
            raise RequestFailed(
                decision.master_address, f"broker {decision.master_id} does not know yet that it is master"
            )
        return cache

    def _become_slave(self, decision: Decision, cache: EpochEntryCache) -> None:
        """Cut what the master does not have, and follow it."""
        theirs = [Epoch(entry.epoch, entry.start_offset) for entry in cache.epoch_list]
        self._history.follow(theirs, decision.master_address)
        setup = attrs.evolve(
            self.setup,
            store=attrs.evolve(self.setup.store, broker_role=BrokerRole.SLAVE),
            broker=attrs.evolve(self.setup.broker, broker_id=self.broker_id),
        )
        self._run(setup, decision, loaded=lambda _: None)
        assert self.broker is not None
        self.broker.follow(decision.master_address, cache.ha_server_addr)

    def _run(self, setup: BrokerSetup, decision: Decision, *, loaded: Callable[[int], None]) -> None:
        role = ElectedRole(
            term=Term(epoch=decision.epoch, broker_id=self.broker_id),
            loaded=loaded,
            epochs=lambda: self._history.epochs,
            notified=self.look_again,
        )
        broker = self._service(
            self._platform,
            setup,
            announce=self._announce,
            on_fatal=self._on_fatal,
            config_path=self._config_path,
            elected=role,
        )
        broker.startService()
        self.broker = broker
        self._log.info(
            "this broker, {id}, is {role} of group {group} in epoch {epoch}",
            id=self.broker_id,
            role="master" if setup.store.broker_role is BrokerRole.SYNC_MASTER else "a slave",
            group=setup.name,
            epoch=decision.epoch,
        )

    async def _end_role(self, why: str) -> None:
        broker, self.broker = self.broker, None
        self._mastership = None
        self._decision = None
        if broker is not None:
            self._log.info("this role ends: {why}", why=why)
            await broker.stopService()

    # the SyncStateSet of a master

    def _members_changed(self) -> None:
        """A slave came, went, or holds more."""
        broker = self.broker
        if broker is None or self._mastership is None:
            return
        broker.store.replicated(broker.ha.confirmed_offset)
        connected = broker.ha.connected_members()
        if connected != self._connected:
            self._connected = connected
            self.look_again()

    def _learn_set(self, decision: Decision) -> None:
        mastership = self._mastership
        assert mastership is not None and self.broker is not None
        if decision.set_epoch != mastership.set_epoch:
            # One that left may have lost messages, and its connection may be of its former process: a power failure
            # closes none. What it acknowledged before counts no more, it has to dial again.
            self.broker.ha.drop_members(self.broker.ha.connected_members() - decision.sync_state_set)
        mastership.sync_state_set, mastership.set_epoch = decision.sync_state_set, decision.set_epoch
        if decision.set_epoch != mastership.asked_epoch:
            mastership.asked = frozenset()
        self._require()

    def _require(self) -> None:
        broker, mastership = self.broker, self._mastership
        if broker is not None and mastership is not None:
            waited_for = mastership.sync_state_set | mastership.asked | mastership.joining.keys()
            broker.ha.require(waited_for - {self.broker_id})
            broker.store.replicated(broker.ha.confirmed_offset)

    async def _look_after_set(self) -> None:
        """Let slaves join and leave the SyncStateSet; end a mastership that may be another's by now."""
        broker, mastership, decision = self.broker, self._mastership, self._decision
        if broker is None or mastership is None or decision is None:
            return
        now = steady_ms(self.clock)
        if now - self._heard_ms >= self.setup.broker.controller_heart_beat_timeout_mills and broker.ha.is_short:
            await self._end_role("the controller and a slave are silent: another broker may be master by now")
            self._registered = False
            return
        wanted = self._wanted_set(broker, mastership, now)
        wanted = self._prepare(broker, mastership, wanted)
        if not self._in_touch:
            return
        if mastership.asked - mastership.sync_state_set and not mastership.asked <= broker.ha.connected_members():
            # The controller may count, now or later, a slave that has gone: only a new epoch makes that void.
            await self._end_role("a slave left while the controller was asked to count it")
            self._registered = False
            return
        if wanted == mastership.sync_state_set:
            return
        asked_before = mastership.asked
        mastership.asked, mastership.asked_epoch = (
            asked_before | wanted - mastership.sync_state_set,
            mastership.set_epoch,
        )
        try:
            answer = await self._link.alter(self.broker_id, decision.epoch, wanted, mastership.set_epoch)
        except Refused as error:
            self._say(f"set {error.code}", f"the SyncStateSet stays as it is: {error}")
            if error.code in DECIDED:
                # A request before this one, whose answer is missing, may have been heard, or be heard later.
                mastership.asked = asked_before
                self._require()
            return
        except RequestFailed as error:
            self._say("set", f"the controller was asked for another SyncStateSet and does not answer: {error}")
            return
        if self._mastership is mastership:
            mastership.asked = frozenset()
            mastership.sync_state_set = frozenset(answer.sync_state_set)
            mastership.set_epoch = answer.sync_state_set_epoch
            self._require()
            self._log.info("SyncStateSet {ids}", ids=sorted(mastership.sync_state_set))

    def _prepare(self, broker: BrokerService, mastership: _Mastership, wanted: frozenset[int]) -> frozenset[int]:
        """
        Let sends wait for the brokers that are to join; return ``wanted`` without those that lack earlier messages.

        What was answered before with SEND_OK, without waiting for them, they must have before the controller counts
        them.
        """
        new = wanted - mastership.sync_state_set
        end = broker.store.end_offset
        joining = {broker_id: mastership.joining.get(broker_id, end) for broker_id in sorted(new)}
        if joining != mastership.joining:
            mastership.joining = joining
            self._require()
        lacking = {broker_id for broker_id, since in joining.items() if broker_id not in broker.ha.members_at(since)}
        return wanted - lacking

    def _wanted_set(self, broker: BrokerService, mastership: _Mastership, now: int) -> frozenset[int]:
        """Return the brokers that should be in the set: those that keep up, and this one."""
        ends, patience_ms = mastership.ends, self.setup.store.ha_max_time_slave_not_catchup
        ends.append((now, broker.store.end_offset))
        while len(ends) > 1 and ends[1][0] <= now - patience_ms:
            ends.popleft()
        recent = ends[max(0, len(ends) - JOIN_STEPS)][1]
        oldest_ms, oldest = ends[0]
        joining = broker.ha.members_at(recent)
        staying = mastership.sync_state_set & (
            broker.ha.members_at(oldest) if oldest_ms <= now - patience_ms else broker.ha.connected_members()
        )
        return joining | staying | {self.broker_id}

    # inside

    def _say(self, key: str, text: str) -> None:
        if self._throttle.admit(key, steady_ms(self.clock)) is not None:
            self._log.warn("{text}", text=text)

    def _fail(self, error: Exception) -> None:
        self._log.critical("{error}; the broker stops", error=str(error))
        self._on_fatal(str(error))


def build_elected(
    platform: Platform,
    setup: BrokerSetup,
    *,
    host_address: str = "127.0.0.1",
    host_name: str = "localhost",
    look_up: Callable[[str], str] = str,
    announce: Callable[[str], object] | None = None,
    on_fatal: Callable[[str], object] | None = None,
    config_path: str | None = None,
    service: type[BrokerService] = BrokerService,
) -> ElectedBroker:
    """Return a broker that a controller gives its role; arguments and errors as of `build_broker`."""
    setup = resolve(setup, host_address=host_address, host_name=host_name, look_up=look_up)
    return ElectedBroker(
        platform, setup, announce=announce, on_fatal=on_fatal, config_path=config_path, service=service
    )
