"""
The wiring of a NameServer: its tables, responders, port and two periodic jobs.

Java: NamesrvController, BrokerHousekeepingService
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import CannotListenError
from twisted.internet.task import deferLater
from twisted.logger import Logger, LogLevel

from rmq.namesrv.clustertest import ProductionRoutes
from rmq.namesrv.config import NamesrvSetup
from rmq.namesrv.journal.events import REMOVALS, RouteEvent
from rmq.namesrv.journal.journal import Journal, JournalResponders
from rmq.namesrv.kvconfig import KVConfig
from rmq.namesrv.lanes import RouteLane
from rmq.namesrv.live import LiveBroker
from rmq.namesrv.responders import AdminResponders, BrokerResponders, RouteResponders
from rmq.namesrv.routes import MinBrokerIdChange, RoutePolicy, RouteTable
from rmq.namesrv.settings import Settings
from rmq.namesrv.turns import Turns
from rmq.remoting.access import Access
from rmq.remoting.aclconfig import NAMESRV_ADMIN_CODES
from rmq.remoting.channel import Channel
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import ResponderTable
from rmq.remoting.server import RemotingServer
from rmq.runtime.clock import Periodic, moment, steady_ms
from rmq.runtime.config import ConfigError, refuse_brackets
from rmq.runtime.histogram import Histogram
from rmq.runtime.platform import Platform
from rmq.wire.api.routes import NOTIFY_MIN_BROKER_ID_CHANGE, BrokerHeartbeatHeader, NotifyMinBrokerIdChangeHeader

if TYPE_CHECKING:
    from rmq.namesrv.controller.service import Controller

FIRST_SCAN_S = 5.0
FIRST_KV_LOG_S = 60.0
KV_LOG_INTERVAL_S = 600.0

#: A scan that is later than this, in seconds, finds a process that was stalled, not silent brokers.
LATE_SCAN_S = 1.0
#: Brokers that expire in one reactor turn; one with 10,000 topics takes a few milliseconds.
EXPIRED_AT_ONCE = 4
#: Bounds of the histogram of scan times, in seconds; a scan reads every broker and normally takes microseconds.
SCAN_BOUNDS_S = (0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)

BOOT_LINE = "The Name Server boot success. serializeType=JSON"


class NamesrvService(MultiService):
    """
    A NameServer; made by :func:`build_namesrv`.

    ``announce`` is called with Apache's boot line once the port listens.
    """

    _log = Logger()

    def __init__(
        self, platform: Platform, setup: NamesrvSetup, *, announce: Callable[[str], object] | None = None
    ) -> None:
        super().__init__()
        refuse_brackets("bindAddress", setup.netty.bind_address)
        clock = platform.reactor
        self.clock = clock
        self._announce = announce
        self.scans = Histogram(SCAN_BOUNDS_S)
        self.settings = Settings(platform.disk, setup)
        self.kv = KVConfig(platform.disk, setup.namesrv.kv_config_path)
        self.routes = RouteTable(on_event=self._happened, on_min_broker_id=self._min_broker_id_changed)
        self.settings.on_change(self._set_policy)
        self._set_policy()
        self.access = Access(
            platform, setup.access, rocketmq_home=setup.namesrv.rocketmq_home, admin_codes=NAMESRV_ADMIN_CODES
        )
        self._client = RemotingClient(
            platform, name="requests of the namesrv", tls=self.access.client_tls, sign=self.access.sign
        )
        self._client.setServiceParent(self)
        production = ProductionRoutes(self._client, setup.production_addrs)
        self.look_ups = RouteResponders(self.routes.topology, self.kv, self.settings, clock, production)
        self._turns = Turns(clock)
        self._give_back_memory = platform.give_back_memory
        brokers = BrokerResponders(self.routes, self.kv, self.settings, clock, self._turns, self._heard)
        admin = AdminResponders(self.kv, self.settings)
        self.journal = Journal(self.routes, clock, ready=lambda: self.look_ups.ready)
        owners: list[object] = [self.look_ups, brokers, admin, JournalResponders(self.journal)]
        self.controller: Controller | None = None
        if setup.namesrv.enable_controller_in_namesrv:
            owners.append(self._make_controller(platform, admin))
        self.responders = ResponderTable(*owners)
        self.access.guard(self.responders, NAMESRV_ADMIN_CODES)
        self.access.setServiceParent(self)
        self.lane = RouteLane(self.routes.topology, self.settings)
        self.responders.add_chunk_lane(self.lane)
        self.server = RemotingServer(
            platform,
            host=setup.netty.bind_address,
            port=setup.netty.listen_port,
            responders=self.responders,
            idle_seconds=setup.netty.server_channel_max_idle_time_seconds,
            name="namesrv",
            tls=self.access.tls,
            limits=self.access.limits,
            seats=self.access.seats,
        )
        self.server.on_channel_closed(self._channel_closed)
        self.server.setServiceParent(self)
        self._scan_s = scan_s = setup.namesrv.scan_not_active_broker_interval / 1000
        self._scanned_s: float | None = None
        self._periodic = [
            Periodic(clock, scan_s, self._scan, name="broker expiry scan", first_s=FIRST_SCAN_S),
            Periodic(clock, KV_LOG_INTERVAL_S, self.kv.log_all, name="log of kv table", first_s=FIRST_KV_LOG_S),
        ]

    def startService(self) -> None:
        """
        Load the key-value table and the controller's groups, and listen.

        Raises StateFileError when a file is broken, DiskError when it cannot be read, CannotListenError, ConfigError
        when certificates or accounts cannot be used; then nothing is left running.
        Java: NamesrvController#initialize, #start
        """
        self.kv.load()
        if self.controller is not None:
            self.controller.load()
        self.look_ups.started_ms = steady_ms(self.clock)
        self.journal.started_ms = steady_ms(self.clock)
        try:
            super().startService()
        except (CannotListenError, ConfigError):
            self.access.stopService()
            self.running = False
            raise
        for periodic in self._periodic:
            periodic.start()
        if self._announce is not None:
            self._announce(BOOT_LINE)

    def stopService(self) -> Deferred[Any]:
        """Close the port and all connections; fires when nothing is left."""
        stopped = [periodic.stop() for periodic in self._periodic]
        return DeferredList([super().stopService(), *stopped])

    def _make_controller(self, platform: Platform, admin: AdminResponders) -> object:
        """Make the controller; return its responders."""
        # Lazy: few NameServers are controllers, and each start would pay.
        from rmq.namesrv.controller.responders import ControllerResponders
        from rmq.namesrv.controller.service import Controller

        self.controller = controller = Controller(platform, self.settings, self._client)
        controller.setServiceParent(self)
        return ControllerResponders(controller, self.settings, admin)

    def _set_policy(self) -> None:
        config = self.settings.namesrv
        self.routes.policy = RoutePolicy(
            support_acting_master=config.support_acting_master,
            delete_absent_topics=config.delete_topic_with_broker_registration,
        )

    async def _scan(self) -> None:
        began_s = self.clock.seconds()
        before_s, self._scanned_s = self._scanned_s, began_s
        if before_s is not None and began_s - before_s > self._scan_s + LATE_SCAN_S:
            # Heartbeats that arrived meanwhile are in the sockets: they are read before the next scan.
            self._log.warn(
                "broker expiry scan ran {late_s:.1f} s late (process stalled), skipping this scan",
                late_s=began_s - before_s - self._scan_s,
            )
            return
        gone = self._expire()
        self.scans.observe(self.clock.seconds() - began_s)
        if self._turns.worked and not self._turns.busy:
            # The buffers of large registrations are free now, but scattered between objects that stay.
            self._turns.worked = False
            self._give_back_memory()
        while len(gone) == EXPIRED_AT_ONCE:
            await deferLater(self.clock, 0)
            gone = self._expire()

    def _expire(self) -> list[LiveBroker]:
        gone = self.routes.expire(moment(self.clock), EXPIRED_AT_ONCE)
        for live in gone:
            # Several brokers may share a connection: the others are alive.
            if isinstance(live.channel, Channel) and not self.routes.is_bound(live.channel):
                live.channel.close(f"broker {live.broker_name} was silent for too long")
        return gone

    def _channel_closed(self, channel: Channel, reason: str) -> None:
        self.routes.channel_closed(channel, moment(self.clock), reason)
        if self.controller is not None:
            self.controller.channel_closed(channel)

    def _heard(self, header: BrokerHeartbeatHeader, channel: Channel) -> None:
        if self.controller is not None:
            self.controller.heard(header, channel)

    def _happened(self, event: RouteEvent) -> None:
        """Record and log an event."""
        kept = self.journal.log.record(event)
        # One field for the whole line: Twisted needs 30 us longer for eight of them, a tenth of a changed registration.
        broker_id = "-" if kept.broker_id is None else kept.broker_id
        line = (
            f"{kept.kind} {kept.broker_name} {broker_id} {kept.broker_addr or '-'} in {kept.cluster}, "
            f"{kept.topic_count} topics, by {kept.peer or 'an unknown peer'}: {kept.reason}"
        )
        self._log.emit(
            LogLevel.warn if event.kind in REMOVALS else LogLevel.info,
            "{line}",
            line=line,
            kind=kept.kind,
            broker_name=kept.broker_name,
            broker_id=broker_id,
            broker_addr=kept.broker_addr or "-",
            cluster=kept.cluster,
            topic_count=kept.topic_count,
            peer=kept.peer,
            reason=kept.reason,
        )

    def _min_broker_id_changed(self, change: MinBrokerIdChange) -> None:
        """
        Notify the brokers of a group which one has the smallest id now, with notifyMinBrokerIdChanged.

        Java: RouteInfoManager#notifyMinBrokerIdChanged, #chooseBrokerAddrsToNotify
        """
        if not self.settings.namesrv.notify_min_broker_id_changed:
            return
        min_id = min(change.addrs)
        header = NotifyMinBrokerIdChangeHeader(
            min_broker_id=min_id,
            min_broker_addr=change.addrs[min_id],
            offline_broker_addr=change.offline_addr,
            ha_broker_addr=change.ha_addr,
        )
        to_all = change.offline_addr is not None or len(change.addrs) == 1
        for broker_id, addr in change.addrs.items():
            if to_all or broker_id != min_id:
                self._client.oneway(addr, NOTIFY_MIN_BROKER_ID_CHANGE, header, None)


def build_namesrv(
    platform: Platform,
    setup: NamesrvSetup | None = None,
    *,
    announce: Callable[[str], object] | None = None,
    service: type[NamesrvService] = NamesrvService,
) -> NamesrvService:
    """Return a NameServer, not started; may be called many times in one process."""
    return service(platform, setup or NamesrvSetup(), announce=announce)
