"""
The wiring of a NameServer: its tables, what answers, the port, and the two periodic jobs.

Java: NamesrvController, BrokerHousekeepingService
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from rmq.namesrv.config import NamesrvSetup
from rmq.namesrv.counts import NamesrvCounts
from rmq.namesrv.kvconfig import KVConfig
from rmq.namesrv.lanes import RouteLane
from rmq.namesrv.responders import AdminResponders, BrokerResponders, RouteResponders
from rmq.namesrv.routes import LiveBroker, RouteTable
from rmq.namesrv.settings import Settings
from rmq.remoting.access import Access
from rmq.remoting.acl import NAMESRV_ADMIN_CODES
from rmq.remoting.channel import Channel
from rmq.remoting.responders import ResponderTable
from rmq.remoting.server import RemotingServer
from rmq.runtime.clock import Periodic, now_ms
from rmq.runtime.config import ConfigError
from rmq.runtime.platform import Platform
from rmq.wire.codes import RequestCode

FIRST_SCAN_S = 5.0
FIRST_KV_LOG_S = 60.0
KV_LOG_INTERVAL_S = 600.0

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
        clock = platform.reactor
        self.clock = clock
        self._announce = announce
        self.counts = NamesrvCounts()
        self.settings = Settings(platform.disk, setup)
        self.kv = KVConfig(platform.disk, setup.namesrv.kv_config_path)
        self.routes = RouteTable()
        self.look_ups = RouteResponders(self.routes, self.kv, self.settings, clock)
        brokers = BrokerResponders(self.routes, self.kv, self.settings, clock)
        self.responders = ResponderTable(self.look_ups, brokers, AdminResponders(self.kv, self.settings))
        self.lane = RouteLane(self.routes, self.settings)
        self.access = Access(
            platform, setup.access, rocketmq_home=setup.namesrv.rocketmq_home, admin_codes=NAMESRV_ADMIN_CODES
        )
        self.access.guard(self.responders, NAMESRV_ADMIN_CODES)
        self.access.setServiceParent(self)
        self.responders.add_lane(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.lane)
        self.server = RemotingServer(
            platform,
            host=setup.netty.bind_address,
            port=setup.netty.listen_port,
            responders=self.responders,
            idle_seconds=setup.netty.server_channel_max_idle_time_seconds,
            name="namesrv",
            tls=self.access.tls,
            limits=self.access.limits,
        )
        self.server.on_channel_closed(self._channel_closed)
        self.server.setServiceParent(self)
        scan_s = setup.namesrv.scan_not_active_broker_interval / 1000
        self._periodic = [
            Periodic(clock, scan_s, self._scan, name="scan of silent brokers", first_s=FIRST_SCAN_S),
            Periodic(clock, KV_LOG_INTERVAL_S, self.kv.log_all, name="log of kv table", first_s=FIRST_KV_LOG_S),
        ]

    def startService(self) -> None:
        """
        Load the key-value table and listen.

        Raises StateFileError when its file is broken, DiskError when it cannot be read, CannotListenError; then nothing
        is left running. ConfigError when certificates or accounts cannot be used.
        Java: NamesrvController#initialize, #start
        """
        self.kv.load()
        self.look_ups.started_ms = now_ms(self.clock)
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

    def _scan(self) -> None:
        began_s = self.clock.seconds()
        now = now_ms(self.clock)
        gone = self.routes.expire(now)
        self.counts.scans.observe(self.clock.seconds() - began_s)
        for live in gone:
            self._gone(live, f"silent for {now - live.last_update_ms} ms")
            if isinstance(live.channel, Channel):
                live.channel.close(f"broker {live.broker_name} was silent for too long")

    def _channel_closed(self, channel: Channel, reason: str) -> None:
        for live in self.routes.channel_closed(channel):
            self._gone(live, f"its connection {channel.peer} ended: {reason}")

    def _gone(self, live: LiveBroker, why: str) -> None:
        self._log.warn(
            "broker {broker_name} at {broker_addr} is gone: {why}",
            broker_name=live.broker_name,
            broker_addr=live.broker_addr,
            why=why,
        )


def build_namesrv(
    platform: Platform,
    setup: NamesrvSetup | None = None,
    *,
    announce: Callable[[str], object] | None = None,
    service: type[NamesrvService] = NamesrvService,
) -> NamesrvService:
    """Return a NameServer that is ready to start; may be called many times in one process."""
    return service(platform, setup or NamesrvSetup(), announce=announce)
