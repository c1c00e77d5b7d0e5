"""
The command line of ``twistd rmq-broker``.

Java: BrokerStartup
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from twisted.application.service import IService
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup, resolve, second_master, unreachable
from rmq.broker.dump import DumpError
from rmq.broker.http.exporter import exporter_type, is_unsupported, prometheus_address
from rmq.broker.service import BrokerService, build_broker
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.runtime.platform import address_of, first_address, real_platform, the_reactor
from rmq.runtime.supervised import supervisor_of
from rmq.runtime.tap import HOME_VARIABLE, NAMESRV_KEY, RmqOptions
from rmq.store.messages import StoreError

if TYPE_CHECKING:
    from rmq.runtime.http.face import Face

_log = Logger()


class Options(RmqOptions):
    """Options of a broker."""

    synopsis = "[options]"
    role_name = "rmq-broker"
    log_name = "broker.log"
    longdesc = (
        "An Apache RocketMQ compatible Broker. SIGUSR1 makes it write a consistency dump of itself below dumpDir, "
        "for rmq-audit."
    )

    def __init__(self) -> None:
        super().__init__(
            (*CONFIG_CLASSES, *ACCESS_CLASSES),
            # mqadmin exportMetrics takes this key for the number of processors.
            defaults={"clientCallbackExecutorThreads": str(os.cpu_count() or 1)},
            environment={NAMESRV_KEY: "NAMESRV_ADDR", **HOME_VARIABLE},
        )

    def _load(self) -> None:
        super()._load()
        given = setup_of(self)
        address = first_address()
        # Resolved here, so that -p shows the values in use and refuses what the start would refuse.
        setup = resolve(given, host_address=address, host_name=socket.gethostname(), look_up=address_of)
        self.configs = configs_of(setup)
        doubt = second_master(given)
        if doubt is not None:
            self._warn("{doubt}", doubt=self.with_source(doubt))
        for key, why in unreachable(given):
            self._warn("{doubt}", doubt=self.with_source(f"{key}: {why}"))
        if (setup.extra.fetch_name_srv_addr_by_dns_lookup or "").strip().lower() == "true":
            self._warn(
                "fetchNameSrvAddrByDnsLookup=true has no effect: a name in namesrvAddr is one address, so "
                "name each NameServer there"
            )
        if is_unsupported(setup.extra):
            self._warn(
                "metricsExporterType={kind} is not supported: use PROM, or --http", kind=exporter_type(setup.extra)
            )
        if self["http"] is None:
            exporter = prometheus_address(setup.extra, setup.store_address)
            self["http"] = None if exporter is None else str(exporter)


def setup_of(options: Options) -> BrokerSetup:
    """Return the setup of parsed options."""
    broker, server, client, store, extra, *access = options.configs
    return BrokerSetup(
        broker=broker, server=server, client=client, store=store, extra=extra, access=AccessSetup.of(access)
    )


def configs_of(setup: BrokerSetup) -> tuple[Any, ...]:
    """Return the configs of ``setup`` in the order in which options have them."""
    access = setup.access
    return (
        setup.broker, setup.server, setup.client, setup.store, setup.extra, access.tls, access.acl, access.limits
    )  # fmt: skip


class TwistdBroker(BrokerService):
    """A broker as the service of a process; SIGUSR1 makes it write a dump."""

    def startService(self) -> None:
        signal.signal(signal.SIGUSR1, self._dump_asked_for)
        super().startService()

    def _dump_asked_for(self, signum: int, frame: FrameType | None) -> None:
        self.clock.callFromThread(self._dump)

    def _dump(self) -> None:
        """Make a dump and report its folder, on standard output as well as in the log."""
        if not self.running:
            _no_dump()
            return

        def failed(failure: Failure) -> None:
            failure.trap(DumpError)
            print(f"dump failed: {failure.value}", file=sys.__stderr__, flush=True)

        self.dumps.make().addCallbacks(lambda folder: _say(f"dump {folder}"), failed)


def _no_dump() -> None:
    _log.warn("SIGUSR1: no dump is made, the broker does not run: it starts, stops, or waits for its controller")
    print("dump failed: the broker does not run", file=sys.__stderr__, flush=True)


def makeService(options: Options) -> IService:
    """Return the service that `twistd` runs."""
    reactor = the_reactor()
    # Until a broker takes it: unhandled, the signal would end a process that waits for its controller.
    signal.signal(signal.SIGUSR1, lambda signum, frame: reactor.callFromThread(_no_dump))
    platform = real_platform(reactor)
    supervisor = supervisor_of(reactor, os.environ)
    setup = setup_of(options)
    # Lazy import: most brokers have the role that their file names.
    build: Callable[..., Any] = build_broker
    if setup.broker.enable_controller_mode:
        from rmq.broker.elected.service import build_elected as build
    try:
        broker = build(
            platform,
            setup,
            host_address=first_address(),
            host_name=socket.gethostname(),
            look_up=address_of,
            announce=supervisor.announcing(_say),
            on_fatal=lambda text: _end(reactor, text),
            config_path=options.config_file,
            service=TwistdBroker,
        )
    except (ConfigError, StoreError) as error:
        raise SystemExit(f"rmq-broker cannot start: {options.with_source(str(error))}") from error

    def face() -> Face:
        # Lazy import: prometheus_client is an extra, needed with metrics only.
        from rmq.broker.http.face import broker_face, elected_face

        return broker_face(broker) if isinstance(broker, BrokerService) else elected_face(broker)

    def namespace() -> dict[str, Any]:
        if isinstance(broker, BrokerService):
            return {"broker": broker, "store": broker.store, "ha": broker.ha}
        return {"elected": broker}  # `elected.broker` is the broker of its present role

    return options.top_service(
        broker,
        namespace,
        face=face,
        start_errors=(StoreError, StateFileError, DiskError, ConfigError),
        supervisor=supervisor,
    )


def _say(line: str) -> None:
    # sys.stdout is twistd's log now; scripts that wait for Apache's line need exactly that line.
    print(line, file=sys.__stdout__, flush=True)


def _end(reactor: Any, text: str) -> None:
    """End the process cleanly with exit status 1, which a supervisor can distinguish from an ordinary stop."""
    print(f"rmq-broker stops: {text}", file=sys.__stderr__, flush=True)
    atexit.register(_exit_with_failure)
    if reactor.running:
        reactor.stop()


def _exit_with_failure() -> None:
    # twistd cannot set an exit status.
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            stream.flush()
    os._exit(1)
