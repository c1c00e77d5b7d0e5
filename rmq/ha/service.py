"""Replication of one broker: the HA port, and on a slave the connection to the master."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import attrs
from twisted.application.service import Service
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from rmq.ha.acks import Acks, MemberAcks, ReplicaWaits
from rmq.ha.follower import AppendableLog, Backoff, Follower
from rmq.ha.hub import GATHER_S, MasterHub
from rmq.ha.master import FlushedLog, ReadableLog
from rmq.ha.session import SessionLimits, Term
from rmq.ha.status import HAStatus
from rmq.ha.stream import MAX_BATCH_BYTES
from rmq.runtime.clock import Periodic, steady_ms
from rmq.runtime.platform import Platform, join_addr, split_addr
from rmq.runtime.tls.context import ClientTls, ServerTls, tls_around
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutStatus

#: how often heartbeats, silence and idle reports are checked
TICK_S = 1.0
#: a slave that follows nobody says so after a round of registration
ALONE_MS = 35_000


def _is_ip(host: str) -> bool:
    return isIPAddress(host) or isIPv6Address(host)


class AllowedPeers:
    """
    Networks in CIDR notation or single addresses, separated by ``;`` or ``,``; an empty text admits every peer.

    A ValueError names an item that is neither.
    """

    def __init__(self, text: str = "") -> None:
        items = [item.strip() for item in text.replace(",", ";").split(";")]
        self._networks = []
        for item in filter(None, items):
            try:
                self._networks.append(ipaddress.ip_network(item))
            except ValueError as error:
                raise ValueError(
                    f"haAllowedPeers: {item!r} is no network (such as 10.1.0.0/16) or address: {error}"
                ) from None

    def __str__(self) -> str:
        return ", ".join(map(str, self._networks)) or "everybody"

    def admits(self, host: str) -> bool:
        """Tell whether a peer at ``host``, an IP address, may connect; IPv4-mapped IPv6 addresses match as IPv4."""
        if not self._networks:
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address.version == network.version and address in network for network in self._networks)


class ReplicatedLog(ReadableLog, AppendableLog, Protocol):
    """A commit log as replication needs it; `MessageStore` is one."""

    def on_flushed(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each sync."""

    def on_appended(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each append."""


def secured_by(server: ServerTls, client: ClientTls, clock: IReactorTime) -> Secured:
    """Return TLS with the certificates of a broker's remoting port and of its own connections."""

    def port(factory: IProtocolFactory) -> IProtocolFactory:
        server.load()
        wrapped: IProtocolFactory = tls_around(factory, server.creator(), clock, is_client=False)
        return wrapped

    return Secured(port=port, dial=client.wrap)


@attrs.frozen(kw_only=True)
class Secured:
    """TLS around both directions of replication; brokers with it and without it do not understand each other."""

    port: Callable[[IProtocolFactory], IProtocolFactory]
    #: takes the endpoint and the host that it dials
    dial: Callable[[IStreamClientEndpoint, str], IStreamClientEndpoint]


class HAService(Service):
    """
    Listen on ``haListenPort`` for slaves, whatever the role; follow a master when the role is SLAVE.

    A ``haMasterAddress`` that is no address, or an item of ``haAllowedPeers`` that is none, is a ValueError. The
    store must be loaded before the start. A port in use makes ``startService`` raise CannotListenError. The stop
    answers every waiting put with FLUSH_SLAVE_TIMEOUT and fires when all connections are gone; a stopped service may
    be started again.

    ``wait_for_slaves`` makes this a `Replication` for the store.

    Java: HAService, DefaultHAService
    """

    _log = Logger()
    name = "ha"

    def __init__(
        self,
        platform: Platform,
        store: ReplicatedLog,
        config: StoreConfig,
        *,
        host: str,
        role: BrokerRole,
        secured: Secured | None = None,
        term: Term | None = None,
    ) -> None:
        self._platform = platform
        self._store = store
        self._config = config
        self._host = host
        self._role = role
        limits = SessionLimits(
            segment_bytes=config.mapped_file_size_commit_log,
            batch_bytes=config.ha_transfer_batch_size,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            silence_ms=config.ha_housekeeping_interval,
        )
        clock = platform.reactor
        # inSyncReplicas counts the master. Its default of 1 means one slave here, as SYNC_MASTER always did in 4.x;
        # 5.x would not wait at all.
        need, max_lag_bytes = max(1, config.in_sync_replicas - 1), config.ha_slave_fallbehind_max
        #: whom sends wait for, where a controller elects the master
        self._members = None if term is None else MemberAcks(max_lag_bytes=max_lag_bytes)
        acks = Acks(need=need, max_lag_bytes=max_lag_bytes) if self._members is None else self._members
        self._waits = ReplicaWaits(clock, acks)
        self._on_members: Callable[[], None] = lambda: None
        self._secured = secured
        self._allowed = AllowedPeers(config.ha_allowed_peers)
        flushed_only = config.ha_transfer_flushed_only
        self._hub = MasterHub(
            clock,
            FlushedLog(store) if flushed_only else store,
            limits,
            self._waits,
            admits=self._allowed.admits,
            is_source=role is not BrokerRole.SLAVE,
            gather_s=0.0 if role is BrokerRole.SYNC_MASTER else GATHER_S,
            term=term,
            changed=self._members_changed,
        )
        self._follower = Follower(
            clock,
            store,
            limits,
            dial=self._endpoint,
            backoff=Backoff(platform.rng),
            appended=self._hub.appended,
            ack_after_flush=config.ha_ack_after_flush,
            term=term,
        )
        store.on_flushed(self._follower.synced)
        if config.ha_master_address:
            split_addr(config.ha_master_address)
        #: what the NameServers name in place of ``haMasterAddress``, when that was logged
        self._named_instead: str | None = None
        #: when a slave that follows nobody says so, in steady milliseconds; None once it has, or follows one
        self._alone_ms: int | None = None
        self._housekeeping = Periodic(clock, TICK_S, self._tick, name="HA housekeeping")
        self._port: Any = None
        if flushed_only:
            # Slaves wait for the disk, so the disk must not wait for its interval.
            store.on_appended(store.flush_soon)
            store.on_flushed(self._hub.appended)
        else:
            store.on_appended(self._hub.appended)

    def _endpoint(self, host: str, port: int) -> IStreamClientEndpoint:
        endpoint = self._platform.endpoint_factory(self._platform.reactor, host, port)
        return endpoint if self._secured is None else self._secured.dial(endpoint, host)

    @property
    def port(self) -> int:
        """The port that slaves dial: the configured one, or the one that the system chose for 0."""
        if self._port is None:
            return self._config.ha_listen_port
        return int(self._port.getHost().port)

    def startService(self) -> None:
        factory: Any = self._hub if self._secured is None else self._secured.port(self._hub)
        self._port = self._platform.reactor.listenTCP(self._config.ha_listen_port, factory, interface=self._host)
        super().startService()
        self._hub.start()
        self._housekeeping.start()
        self._log.info(
            "replication listens on {addr} as {role}, for {allowed}, {secured}",
            addr=join_addr(self._host, self.port),
            role=self._role.name,
            allowed=self._allowed,
            secured="in plain text" if self._secured is None else "over TLS",
        )
        if self._config.ha_transfer_batch_size > MAX_BATCH_BYTES:
            self._log.warn(
                "haTransferBatchSize={size} is more than slaves can take, {limit} bytes are sent in a frame",
                size=self._config.ha_transfer_batch_size,
                limit=MAX_BATCH_BYTES,
            )
        if self._role is BrokerRole.SLAVE:
            if self._config.ha_master_address:
                self._follower.set_master(self._config.ha_master_address)
            else:
                self._alone_ms = steady_ms(self._platform.reactor) + ALONE_MS

    def stopService(self) -> Deferred[None]:
        super().stopService()
        ending = [self._housekeeping.stop(), self._follower.stop(), self._hub.stop()]
        if self._port is not None:
            ending.append(maybeDeferred(self._port.stopListening))
            self._port = None
        return DeferredList(ending).addCallback(lambda _: None)

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """
        Say when enough slaves hold everything below ``next_offset``.

        PUT_OK at once or the moment the slave's report arrives; SLAVE_NOT_AVAILABLE at once when too few slaves are
        connected and in sync, or as soon as too few are left; FLUSH_SLAVE_TIMEOUT at ``deadline_ms`` (steady) and at
        the stop.

        Java: HAService#putRequest, CommitLog#submitReplicaRequest
        """
        return self._hub.wait_for_slaves(next_offset, deadline_ms)

    # where a controller elects the master

    @property
    def confirmed_offset(self) -> int:
        """Everything before is on every broker of the SyncStateSet, with EVERYTHING also what is appended later."""
        return self._waits.acks.quorum_offset()

    @property
    def is_short(self) -> bool:
        """True while a broker that sends wait for is not connected."""
        return self._waits.acks.is_short

    def connected_members(self) -> frozenset[int]:
        """Return the brokers that follow this master now."""
        return frozenset() if self._members is None else frozenset(self._members.members)

    def required_members(self) -> frozenset[int]:
        """Return the brokers that sends wait for."""
        return frozenset() if self._members is None else self._members.required

    def members_at(self, offset: int) -> frozenset[int]:
        """Return the brokers that follow this master and hold everything below ``offset``."""
        return frozenset() if self._members is None else frozenset(self._members.caught_up(offset))

    def require(self, ids: Iterable[int]) -> None:
        """From now on, sends wait for just these brokers."""
        assert self._members is not None, "only where a controller elects the master"
        self._members.required = frozenset(ids)
        if self._members.is_short:
            self._waits.fail_all(PutStatus.SLAVE_NOT_AVAILABLE)
        self._members_changed()
        self._waits.advance()

    def drop_members(self, ids: Iterable[int]) -> None:
        """End the connections of these brokers; they may dial again."""
        self._hub.drop_members(frozenset(ids))

    def on_members(self, callback: Callable[[], None]) -> None:
        """Have a function called when :attr:`confirmed_offset` may have changed, or a slave came or went."""
        self._on_members = callback

    def _members_changed(self) -> None:
        self._on_members()

    def set_master(self, addr: str | None) -> None:
        """
        Follow the master at ``addr`` ("host:port"), no master when None; the same address again changes nothing.

        Only a running SLAVE follows, and one with a configured ``haMasterAddress`` follows that alone. An address that
        is none (a NameServer said it) is logged and changes nothing.
        """
        if self._role is not BrokerRole.SLAVE or not self.running:
            self._log.debug("master {addr} not followed: role {role}", addr=addr, role=self._role.name)
        elif self._config.ha_master_address:
            self._compare_masters(addr)
        else:
            try:
                self._follower.set_master(addr)
            except ValueError as error:
                self._log.error("master not followed: {error}", error=error)

    def _compare_masters(self, named: str | None) -> None:
        """Warn once of each master that the NameServers name and that ``haMasterAddress`` is not."""
        configured = self._config.ha_master_address or ""
        if named in (None, configured, self._named_instead) or not _is_ip(split_addr(configured)[0]):
            return
        self._named_instead = named
        self._log.warn(
            "haMasterAddress={configured} is followed, but the NameServers name {named} as this group's master: "
            "remove haMasterAddress, unless both are addresses of the same broker",
            configured=configured,
            named=named,
        )

    @property
    def agrees_with_master(self) -> bool:
        """True while this slave follows a master whose log was compared with its own, up to its own end."""
        return self._follower.agrees

    def status(self) -> HAStatus:
        """Return every connection with its offsets, and the counters."""
        return HAStatus(
            is_slave=self._role is BrokerRole.SLAVE,
            end_offset=self._store.end_offset,
            slaves=self._hub.status(),
            waiting_connections=self._hub.waiting_connections,
            refused=self._hub.refusals.total(),
            refusals=dict(self._hub.refusals),
            last_refusal=self._hub.last_refusal,
            pending_puts=len(self._waits),
            timeouts=self._waits.timeouts,
            ack_latency_ms=self._hub.ack_latency_ms,
            link=self._follower.status() if self._role is BrokerRole.SLAVE else None,
        )

    def _tick(self) -> None:
        self._hub.tick()
        self._follower.tick()
        if self._alone_ms is not None and steady_ms(self._platform.reactor) >= self._alone_ms:
            self._alone_ms = None
            if self._follower.master_addr is None:
                self._follower.no_master()
