"""
Registration of a broker at every NameServer: at the start, periodically, and unregistration at the stop.

Java: BrokerController#registerBrokerAll, BrokerOuterAPI
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.errors import Refused, RequestFailed
from rmq.remoting.client import RemotingClient
from rmq.runtime.clock import Periodic
from rmq.wire.api.common import PERM_READ, PERM_WRITE, DataVersion, TopicConfig, TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody, body_crc32, encode_register_body
from rmq.wire.api.routes import (
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerIdentityHeader,
    RegisterBrokerHeader,
)

if TYPE_CHECKING:
    from rmq.broker.config import BrokerSetup

#: delay of the first round after the registration at the start
FIRST_PERIOD_S = 10.0
SHORTEST_PERIOD_MS = 10_000
LONGEST_PERIOD_MS = 60_000

#: pause before a NameServer is tried again that was lost or has failed, doubled from one to the next
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 8.0

#: timeout of a NameServer at the stop
UNREGISTER_TIMEOUT_MS = 3000

#: Topics that are created in one burst are registered together, at most this often
ANNOUNCE_SPACING_S = 0.1
#: or so often for each topic of the table, all of which are sent: 1 s with 10,000
ANNOUNCE_SPACING_PER_TOPIC_S = 0.0001

#: so long, in seconds, the answer to a message that made a topic waits for the NameServers
CREATED_WAIT_S = 0.5
#: and that to an admin who changed one: less than the 5 s after which mqadmin and rmq-admin give up
UPDATED_WAIT_S = 3.0

READ_AND_WRITE = PERM_READ | PERM_WRITE


@attrs.frozen(kw_only=True)
class RegistrationTerms:
    """
    What a broker registers, and how often.

    Addresses are "ip:port"; ``ha_server_addr`` is never empty, 5.x NameServers insist on it.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int = 0
    period_ms: int = 30_000
    timeout_ms: int = 6000
    #: register in every period; otherwise only where the NameServer holds another version
    force: bool = True
    compressed: bool = False
    broker_permission: int = READ_AND_WRITE

    @classmethod
    def of(cls, setup: BrokerSetup) -> RegistrationTerms:
        """Return the terms of a resolved configuration."""
        broker = setup.broker
        return cls(
            broker_name=setup.name,
            broker_addr=setup.address,
            cluster_name=broker.broker_cluster_name,
            ha_server_addr=setup.ha_address,
            broker_id=broker.broker_id,
            period_ms=broker.register_name_server_period,
            timeout_ms=broker.register_broker_timeout_mills,
            # Only the answer to a registration has the address of the master, which may have started or moved since.
            force=broker.force_register or broker.broker_id != 0,
            compressed=broker.compressed_register,
            broker_permission=broker.broker_permission,
        )

    @property
    def clamped_period_ms(self) -> int:
        """The period in use: 10 s to 60 s."""
        return min(max(self.period_ms, SHORTEST_PERIOD_MS), LONGEST_PERIOD_MS)


@attrs.define(eq=False)
class _NameServer:
    """The state of one NameServer."""

    addr: str
    #: None before the first answer or failure
    reachable: bool | None = None
    #: the version of the last registration that it confirmed
    confirmed: DataVersion | None = None
    #: topics that were changed by admins and not sent yet, in how many changes, and who waits for that
    changed: dict[str, TopicConfig] = attrs.field(factory=dict)
    changes: int = 0
    waiting: list[Deferred[None]] = attrs.field(factory=list)
    is_sending: bool = False
    #: the next attempt, between two rounds, and the pause before it
    retry: IDelayedCall | None = None
    retry_s: float = FIRST_RETRY_S

    def take_changes(self) -> tuple[dict[str, TopicConfig], int, list[Deferred[None]]]:
        """Return what was changed, and forget it."""
        taken = self.changed, self.changes, self.waiting
        self.changed, self.changes, self.waiting = {}, 0, []
        return taken


MasterListener = Callable[[str | None, str | None], None]
OrderTopicsListener = Callable[[Sequence[str]], object]


class Registration(Service):
    """
    Register at all NameServers independently: one that is down delays neither the others nor the broker's start.

    A NameServer that fails is logged once, and once more when it recovers; one that has restarted, which knows nothing,
    is registered at as soon as it is back. The service never fails; it must be
    stopped before the client that it uses, and its stop unregisters and fires after three seconds at most.
    """

    _log = Logger()
    name = "registration"

    def __init__(
        self,
        client: RemotingClient,
        terms: RegistrationTerms,
        snapshot: Callable[[], TopicConfigWrapper],
        clock: IReactorTime,
        namesrv_addrs: Sequence[str],
    ) -> None:
        self._client = client
        client.on_lost(self._lost)
        self._terms = terms
        self._snapshot = snapshot
        self._clock = clock
        self._name_servers = [_NameServer(addr) for addr in dict.fromkeys(namesrv_addrs)]
        self._on_master: list[MasterListener] = []
        self._on_order_topics: list[OrderTopicsListener] = []
        self._announce_later: IDelayedCall | None = None
        self._announced_at: float | None = None
        self._spacing_s = ANNOUNCE_SPACING_S
        #: fires when the first registration has been answered, or has timed out, everywhere
        self.first_round: Deferred[None] = succeed(None)
        # A request to a NameServer that hangs times out before the next round.
        self._timeout_ms = min(terms.timeout_ms, terms.clamped_period_ms - 1000)
        self._rounds = Periodic(
            clock,
            terms.clamped_period_ms / 1000,
            self._beat,
            name="registration at the NameServers",
            first_s=FIRST_PERIOD_S,
        )

    @property
    def name_servers(self) -> dict[str, bool | None]:
        """Each NameServer, and whether it took the last registration; None before the first answer."""
        return {server.addr: server.reachable for server in self._name_servers}

    def on_master(self, callback: MasterListener) -> None:
        """
        Have ``callback(master_addr, ha_server_addr)`` called when a NameServer names the live master of this slave.

        At most once in a round, with the first such answer; without an address nothing changes.
        """
        self._on_master.append(callback)

    def on_order_topics(self, callback: OrderTopicsListener) -> None:
        """
        Have ``callback`` called on a master, once a round, with the topics of the NameServer's ORDER_TOPIC_CONFIG.

        Not called when there is no such configuration; a 5.x NameServer can be configured not to return it.
        """
        self._on_order_topics.append(callback)

    def startService(self) -> None:
        super().startService()
        if not self._name_servers:
            self._log.warn("no namesrvAddr is configured: clients will not find this broker")
            return
        self.first_round = self.register_all()
        self._rounds.start()

    def stopService(self) -> Deferred[None]:
        super().stopService()
        if self._announce_later is not None:
            self._announce_later.cancel()
            self._announce_later = None
        for server in self._name_servers:
            self._retry_no_more(server)
        self._rounds.stop()
        return self._with_all(self._unregister)

    def register_all(self) -> Deferred[None]:
        """Register all topics everywhere; fires when every NameServer has answered or timed out."""
        full = self._full()
        answers = _Answers(self)
        return self._with_all(lambda server: self._register_at(server, full, answers))

    def topics_changed(self) -> None:
        """
        Register all topics without waiting for answers, soon.

        Java: BrokerController#registerBrokerAll with oneway
        """
        if not self.running or self._announce_later is not None or not self._name_servers:
            return
        wait_s = 0.0
        if self._announced_at is not None:
            wait_s = min(max(0.0, self._announced_at + self._spacing_s - self._clock.seconds()), self._spacing_s)
        self._announce_later = self._clock.callLater(wait_s, self._announce)

    def topic_updated(self, config: TopicConfig) -> Deferred[None]:
        """
        Register one changed topic; fires when every NameServer has answered or failed, after 3 s at the latest.

        Changes that come while a NameServer is busy with one are sent together afterwards.

        A NameServer that may lack the other topics (a registration was not confirmed, or it has just restarted) gets
        all topics instead. Otherwise it would take this registration's version as that of all topics and never ask
        for the missing ones.

        Java: BrokerController#registerIncrementBrokerData
        """
        if not self.running:
            return succeed(None)
        waits: list[Deferred[None]] = []
        for server in self._name_servers:
            waits.append(Deferred())
            server.changed[config.topic_name] = self._published(config)
            server.changes += 1
            server.waiting.append(waits[-1])
            if not server.is_sending:
                Deferred.fromCoroutine(self._send_changes(server)).addErrback(self._broken)
        return self._within(UPDATED_WAIT_S, DeferredList(waits))

    def topic_created(self, config: TopicConfig) -> Deferred[None]:
        """
        Register a topic that a message or a consumer made; fires as :meth:`topic_updated`, but within 0.5 s.

        Who has SEND_OK can look the topic up, as with 5.x; a NameServer that hangs delays no message long.
        """
        return self._within(CREATED_WAIT_S, self.topic_updated(config))

    def _within(self, seconds: float, registered: Deferred[Any]) -> Deferred[None]:
        """Fires with ``registered``, which never fails, but after so many seconds at the latest."""
        done: Deferred[None] = Deferred()
        latest = self._clock.callLater(seconds, done.callback, None)

        def fire(_: object) -> None:
            if latest.active():
                latest.cancel()
            if not done.called:
                done.callback(None)

        registered.addCallback(fire)
        return done

    def set_broker_permission(self, permission: int) -> None:
        """Publish topics with another brokerPermission from now on."""
        self._terms = attrs.evolve(self._terms, broker_permission=permission)

    # one round

    def _beat(self) -> None:
        """
        Do one round: register all topics, with ``forceRegister=false`` only where they are outdated.

        The round is not awaited, so that a NameServer that hangs does not delay the others' next round.
        """
        full = self._full()
        answers = _Answers(self)
        if self._terms.force:
            self._with_all(lambda server: self._register_at(server, full, answers))
        else:
            self._with_all(lambda server: self._register_if_changed(server, full, answers))

    # between two rounds

    def _lost(self, addr: str) -> None:
        """A connection has ended: a NameServer may be restarting."""
        for server in self._name_servers:
            if server.addr == addr and self.running:
                self._retry_later(server)

    def _retry_later(self, server: _NameServer) -> None:
        if server.retry is None and self._rounds.running:
            server.retry = self._clock.callLater(server.retry_s, self._retry, server)
            server.retry_s = min(2 * server.retry_s, LONGEST_RETRY_S)

    def _retry_no_more(self, server: _NameServer) -> None:
        if server.retry is not None:
            server.retry.cancel()
            server.retry = None

    def _retry(self, server: _NameServer) -> None:
        server.retry = None
        Deferred.fromCoroutine(self._register_again(server)).addErrback(self._broken)

    async def _register_again(self, server: _NameServer) -> None:
        """Register all topics, which may be many, once the NameServer answers."""
        version = self._snapshot().data_version
        try:
            await self._client.invoke(
                server.addr, QUERY_DATA_VERSION, self._identity(), version, timeout_ms=self._timeout_ms
            )
        except RequestFailed as error:
            self._failed(server, error)
        else:
            await self._register_at(server, self._full(), _Answers(self))

    # what is sent

    def _full(self) -> _Message:
        wrapper = self._snapshot()
        topics = {name: self._published(topic) for name, topic in wrapper.topic_config_table.items()}
        return _Message(self._terms, wrapper.data_version, topics)

    def _published(self, topic: TopicConfig) -> TopicConfig:
        permission = self._terms.broker_permission
        if permission & READ_AND_WRITE == READ_AND_WRITE:
            return topic
        return msgspec.structs.replace(topic, perm=permission)

    # one NameServer

    async def _register_at(self, server: _NameServer, message: _Message, answers: _Answers) -> None:
        try:
            response = await self._client.invoke(
                server.addr, REGISTER_BROKER, message.header, message.data, timeout_ms=self._timeout_ms
            )
        except RequestFailed as error:
            self._failed(server, error)
            return
        server.confirmed = message.version
        self._answered(server)
        answers.take(
            response.header.master_addr,
            response.header.ha_server_addr,
            list(response.body.table),
        )

    async def _send_changes(self, server: _NameServer) -> None:
        """Register what admins have changed, until nothing is left."""
        server.is_sending = True
        try:
            while server.changes:
                changed, count, waiting = server.take_changes()
                try:
                    part = _Message(self._terms, self._snapshot().data_version, changed)
                    message = await self._part_or_full(server, part, count)
                    if message is not part:
                        waiting += server.take_changes()[2]  # they are in it
                    await self._register_at(server, message, _Answers(self))
                finally:
                    for done in waiting:
                        done.callback(None)
        finally:
            server.is_sending = False
            for done in server.take_changes()[2]:  # after an error
                done.callback(None)

    async def _part_or_full(self, server: _NameServer, part: _Message, count: int) -> _Message:
        """Return ``part``, which has the last ``count`` changes, if the NameServer has everything before them."""
        before = server.confirmed
        # A later registration, answered or not, has another version.
        if before is not None and before.counter == part.version.counter - count and await self._holds(server, before):
            return part
        return self._full()

    async def _holds(self, server: _NameServer, version: DataVersion) -> bool:
        """Ask whether ``version`` is current there; False without an answer: it may still accept a registration."""
        try:
            response = await self._client.invoke(
                server.addr, QUERY_DATA_VERSION, self._identity(), version, timeout_ms=self._timeout_ms
            )
        except RequestFailed as error:
            self._log.debug(
                "NameServer {addr} did not answer whether a data version is current: {error}",
                addr=server.addr,
                error=error,
            )
            return False
        return not response.header.changed

    async def _register_if_changed(self, server: _NameServer, message: _Message, answers: _Answers) -> None:
        if await self._holds(server, message.version):
            server.confirmed = message.version
            self._answered(server)
        else:
            await self._register_at(server, message, answers)

    async def _unregister(self, server: _NameServer) -> None:
        try:
            await self._client.invoke(
                server.addr, UNREGISTER_BROKER, self._identity(), None, timeout_ms=UNREGISTER_TIMEOUT_MS
            )
        except RequestFailed as error:
            self._log.info("unregistration at NameServer {addr} failed: {error}", addr=server.addr, error=error)
        else:
            self._log.info("unregistered at NameServer {addr}", addr=server.addr)
        server.confirmed, server.reachable = None, None

    def _announce(self) -> None:
        self._announce_later = None
        self._announced_at = self._clock.seconds()
        full = self._full()
        self._spacing_s = max(ANNOUNCE_SPACING_S, full.topics * ANNOUNCE_SPACING_PER_TOPIC_S)
        for server in self._name_servers:
            self._client.oneway(server.addr, REGISTER_BROKER, full.header, full.data)

    def _identity(self) -> BrokerIdentityHeader:
        terms = self._terms
        return BrokerIdentityHeader(
            broker_name=terms.broker_name,
            broker_addr=terms.broker_addr,
            cluster_name=terms.cluster_name,
            broker_id=terms.broker_id,
        )

    def _answered(self, server: _NameServer) -> None:
        self._retry_no_more(server)
        server.retry_s = FIRST_RETRY_S
        if server.reachable is not True:
            server.reachable = True
            self._log.info(
                "registered at NameServer {addr} as {broker_name} ({broker_addr}, id {broker_id})",
                addr=server.addr,
                broker_name=self._terms.broker_name,
                broker_addr=self._terms.broker_addr,
                broker_id=self._terms.broker_id,
            )

    def _failed(self, server: _NameServer, error: RequestFailed) -> None:
        if self.running and not isinstance(error, Refused):
            self._retry_later(server)
        if server.reachable is not False and self.running:
            server.reachable = False
            self._log.error(
                "registration at NameServer {addr} failed, tried again every {retry_s:g} s: {error}",
                addr=server.addr,
                retry_s=LONGEST_RETRY_S,
                error=error,
            )

    # all NameServers

    def _with_all(self, call: Callable[[_NameServer], Coroutine[Deferred[Any], Any, None]]) -> Deferred[None]:
        running = [Deferred.fromCoroutine(call(server)).addErrback(self._broken) for server in self._name_servers]
        return DeferredList(running).addCallback(lambda _: None)

    def _broken(self, failure: Failure) -> None:
        self._log.failure("registration failed", failure)


class _Message:
    """One registration; the header holds the checksum of the body."""

    def __init__(self, terms: RegistrationTerms, version: DataVersion, topics: dict[str, TopicConfig]) -> None:
        self.version = version
        self.topics = len(topics)
        wrapper = TopicConfigWrapper(data_version=version, topic_config_table=topics)
        body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        self.data = encode_register_body(body, compressed=terms.compressed)
        self.header = RegisterBrokerHeader(
            broker_name=terms.broker_name,
            broker_addr=terms.broker_addr,
            cluster_name=terms.cluster_name,
            ha_server_addr=terms.ha_server_addr,
            broker_id=terms.broker_id,
            compressed=terms.compressed,
            body_crc32=body_crc32(self.data),
        )


class _Answers:
    """The answers of one round: the first counts, as with Apache's brokers."""

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._master_told = False
        self._order_told = False

    def take(self, master_addr: str | None, ha_server_addr: str | None, order_topics: list[str]) -> None:
        """Report the master's address (to a slave) or the ordered topics (to a master) of an answer."""
        terms, registration = self._registration._terms, self._registration
        if not registration.running:
            return
        if terms.broker_id and (master_addr or ha_server_addr) and not self._master_told:
            self._master_told = True
            for on_master in registration._on_master:
                on_master(master_addr, ha_server_addr)
        # A slave's topics are its master's, with their order.
        if not terms.broker_id and order_topics and not self._order_told:
            self._order_told = True
            for on_order_topics in registration._on_order_topics:
                on_order_topics(order_topics)
