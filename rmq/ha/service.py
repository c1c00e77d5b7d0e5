"""Replication of one broker: the HA port, and on a slave the way to the master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger

from rmq.ha.acks import Acks, ReplicaWaits
from rmq.ha.backoff import Backoff
from rmq.ha.hub import MasterHub
from rmq.ha.link import AppendableLog, SlaveLink, parse_addr
from rmq.ha.master import ReadableLog
from rmq.ha.session import SessionLimits
from rmq.ha.status import HAStatus
from rmq.ha.stream import MAX_BATCH_BYTES
from rmq.runtime.clock import Periodic
from rmq.runtime.platform import Platform
from rmq.store.config import BrokerRole, StoreConfig
from rmq.store.messages import PutStatus

#: how often heartbeats, silence and idle reports are looked at
TICK_S = 1.0


class ReplicatedLog(ReadableLog, AppendableLog, Protocol):
    """A commit log as replication needs it; `MessageStore` is one."""

    @property
    def end_offset(self) -> int:
        """One behind the last byte; 0 when the log is empty."""

    def on_appended(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each append."""


class HAService(Service):
    """
    Listen on ``haListenPort`` for slaves, whatever the role; follow a master when the role is SLAVE.

    A ``haMasterAddress`` that is no address is a ValueError. The store must be loaded before the start. A port in use
    makes ``startService`` raise CannotListenError. The stop answers every waiting put with FLUSH_SLAVE_TIMEOUT and
    fires when all connections are gone; a stopped service may be started again.

    ``wait_for_slaves`` makes this a `Replication` for the store.

    Java: HAService, DefaultHAService
    """

    _log = Logger()
    name = "ha"

    def __init__(
        self, platform: Platform, store: ReplicatedLog, config: StoreConfig, *, host: str, role: BrokerRole
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
        need = max(1, config.in_sync_replicas - 1)
        self._waits = ReplicaWaits(Acks(need=need, max_lag_bytes=config.ha_slave_fallbehind_max))
        self._hub = MasterHub(clock, store, limits, self._waits)
        self._link = SlaveLink(
            clock,
            store,
            limits,
            dial=lambda host, port: platform.endpoint_factory(clock, host, port),
            backoff=Backoff(platform.rng),
            appended=self._hub.appended,
        )
        if config.ha_master_address:
            parse_addr(config.ha_master_address)
        self._housekeeping = Periodic(clock, TICK_S, self._tick, name="HA housekeeping")
        self._port: Any = None
        store.on_appended(self._hub.appended)

    @property
    def port(self) -> int:
        """The port that slaves dial: the configured one, or the one that the system chose for 0."""
        if self._port is None:
            return self._config.ha_listen_port
        return int(self._port.getHost().port)

    def startService(self) -> None:
        self._port = self._platform.reactor.listenTCP(self._config.ha_listen_port, self._hub, interface=self._host)
        super().startService()
        self._hub.start()
        self._housekeeping.start()
        self._log.info(
            "replication listens on {host}:{port} as {role}", host=self._host, port=self.port, role=self._role.name
        )
        if self._config.ha_transfer_batch_size > MAX_BATCH_BYTES:
            self._log.warn(
                "haTransferBatchSize={size} is more than slaves can take, {limit} bytes are sent in a frame",
                size=self._config.ha_transfer_batch_size,
                limit=MAX_BATCH_BYTES,
            )
        if self._role is BrokerRole.SLAVE and self._config.ha_master_address:
            self._link.set_master(self._config.ha_master_address)

    def stopService(self) -> Deferred[None]:
        super().stopService()
        ending = [self._housekeeping.stop(), self._link.stop(), self._hub.stop()]
        if self._port is not None:
            ending.append(maybeDeferred(self._port.stopListening))
            self._port = None
        return DeferredList(ending).addCallback(lambda _: None)

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """
        Say when enough slaves hold everything below ``next_offset``.

        PUT_OK at once or the moment the slave's report arrives; SLAVE_NOT_AVAILABLE at once when no slave is connected
        and near enough, or when the last one leaves; FLUSH_SLAVE_TIMEOUT at ``deadline_ms`` (epoch) and at the stop.

        Java: HAService#putRequest, CommitLog#submitReplicaRequest
        """
        return self._hub.wait_for_slaves(next_offset, deadline_ms)

    def set_master(self, addr: str | None) -> None:
        """
        Follow the master at ``addr`` ("host:port"), nobody when None; the same address again changes nothing.

        Only a running SLAVE follows, and one with a configured ``haMasterAddress`` follows that alone. An address that
        is none (a NameServer said it) is logged and changes nothing.
        """
        if self._role is not BrokerRole.SLAVE or not self.running:
            self._log.debug("master {addr} not followed: role {role}", addr=addr, role=self._role.name)
        elif self._config.ha_master_address:
            self._log.debug("master {addr} not followed: haMasterAddress is configured", addr=addr)
        else:
            try:
                self._link.set_master(addr)
            except ValueError as error:
                self._log.error("master not followed: {error}", error=error)

    def status(self) -> HAStatus:
        """Return every connection with its offsets, and the counters."""
        return HAStatus(
            end_offset=self._store.end_offset,
            slaves=self._hub.status(),
            waiting_connections=self._hub.waiting_connections,
            refused=self._hub.refusals,
            last_refusal=self._hub.last_refusal,
            pending_puts=len(self._waits),
            timeouts=self._waits.timeouts,
            link=self._link.status() if self._role is BrokerRole.SLAVE else None,
        )

    def _tick(self) -> None:
        self._hub.tick()
        self._link.tick()
