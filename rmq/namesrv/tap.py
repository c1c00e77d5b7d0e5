"""
The command line of ``twistd rmq-namesrv``.

Java: NamesrvStartup
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
from twisted.application.service import IService
from twisted.logger import Logger

from rmq.namesrv.config import CONFIG_CLASSES, NamesrvSetup, check_controller
from rmq.namesrv.service import build_namesrv
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.disk.statefile import StateFileError
from rmq.runtime.platform import real_platform, the_reactor
from rmq.runtime.supervised import supervisor_of
from rmq.runtime.tap import HOME_VARIABLE, NAMESRV_KEY, RmqOptions

if TYPE_CHECKING:
    from rmq.runtime.http.face import Face

_log = Logger()


class Options(RmqOptions):
    """Options of a NameServer; ``-n`` is used with clusterTest only."""

    synopsis = "[options]"
    longdesc = "An Apache RocketMQ compatible NameServer."
    role_name = "rmq-namesrv"
    log_name = "namesrv.log"

    def __init__(self) -> None:
        super().__init__((*CONFIG_CLASSES, *ACCESS_CLASSES), environment=HOME_VARIABLE)

    def _load(self) -> None:
        super()._load()
        check_controller(self.configs[0], self.configs[2])
        # updateNamesrvConfig writes the file of -c; -p shows that too.
        if self.config_file is not None:
            namesrv, *others = self.configs
            self.configs = (attrs.evolve(namesrv, config_store_path=self.config_file), *others)


def setup_of(options: Options) -> NamesrvSetup:
    """Return the setup that parsed options describe."""
    namesrv, netty, controller, *access = options.configs
    given = options[NAMESRV_KEY] or os.environ.get("NAMESRV_ADDR", "")
    return NamesrvSetup(
        namesrv=namesrv,
        netty=netty,
        controller=controller,
        extra=options.unknown,
        access=AccessSetup.of(access),
        production_addrs=tuple(addr.strip() for addr in given.split(";") if addr.strip()),
    )


def makeService(options: Options) -> IService:
    """Return the service that `twistd` runs."""
    reactor = the_reactor()
    supervisor = supervisor_of(reactor, os.environ)
    say = supervisor.announcing(_say)

    def announce(line: str) -> None:
        # Not before the reactor runs: until then SIGTERM kills instead of stopping.
        reactor.callWhenRunning(say, line)

    try:
        namesrv = build_namesrv(real_platform(reactor), setup_of(options), announce=announce)
    except ConfigError as error:
        raise SystemExit(f"rmq-namesrv cannot start: {options.with_source(str(error))}") from error

    def face() -> Face:
        # Lazy: prometheus_client is needed, and installed, only with --http.
        from rmq.namesrv.metrics import namesrv_face

        return namesrv_face(namesrv)

    def namespace() -> Mapping[str, Any]:
        from rmq.namesrv.prompt import prompt_names

        return prompt_names(namesrv)

    return options.top_service(
        namesrv,
        namespace,
        face=face,
        start_errors=(StateFileError, DiskError, ConfigError),
        supervisor=supervisor,
    )


def _say(line: str) -> None:
    _log.info("{line}", line=line)
    # sys.stdout is twistd's log here; scripts wait for exactly Apache's line on standard output.
    print(line, file=sys.__stdout__, flush=True)
