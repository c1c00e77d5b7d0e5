"""
The command line of ``twistd rmq-namesrv``.

Java: NamesrvStartup
"""

from __future__ import annotations

import sys

import attrs
from twisted.application.service import IService
from twisted.internet.error import CannotListenError

from rmq.namesrv.config import CONFIG_CLASSES, NamesrvSetup
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.runtime.diskerror import DiskError
from rmq.runtime.platform import real_platform
from rmq.runtime.statefile import StateFileError
from rmq.runtime.tap import RmqOptions


class Options(RmqOptions):
    """Options of a NameServer; ``-n`` is accepted and ignored, as in Apache."""

    synopsis = "[options]"
    longdesc = "An Apache RocketMQ compatible NameServer."

    def __init__(self) -> None:
        super().__init__(CONFIG_CLASSES)

    def _load(self) -> None:
        super()._load()
        # The file of -c is the one that updateNamesrvConfig writes; -p shows it too.
        if self.config_file is not None:
            namesrv, netty = self.configs
            self.configs = (attrs.evolve(namesrv, config_store_path=self.config_file), netty)


def setup_of(options: Options) -> NamesrvSetup:
    """Return what parsed options say."""
    namesrv, netty = options.configs
    return NamesrvSetup(namesrv=namesrv, netty=netty, extra=options.unknown)


class TwistdNamesrv(NamesrvService):
    """A NameServer as the service of a process: what keeps it from starting ends the process with one line."""

    def startService(self) -> None:
        try:
            super().startService()
        except (StateFileError, DiskError, CannotListenError) as error:
            # sys.stderr is twistd's log by now.
            print(f"rmq-namesrv cannot start: {error}", file=sys.__stderr__, flush=True)
            raise SystemExit(1) from error


def makeService(options: Options) -> IService:
    """Return the service that `twistd` runs."""
    from twisted.internet import reactor

    service = build_namesrv(real_platform(reactor), setup_of(options), announce=_say, service=TwistdNamesrv)
    return options.top_service(service, {"namesrv": service, "routes": service.routes})


def _say(line: str) -> None:
    # sys.stdout is twistd's log by now; whoever waits for Apache's line waits for exactly that line.
    print(line, file=sys.__stdout__, flush=True)
