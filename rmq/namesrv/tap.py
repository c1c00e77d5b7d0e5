"""
The command line of ``twistd rmq-namesrv``.

Java: NamesrvStartup
"""

from __future__ import annotations

import sys

import attrs
from twisted.application.service import IService

from rmq.namesrv.config import CONFIG_CLASSES, NamesrvSetup
from rmq.namesrv.service import build_namesrv
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


def setup_of(options: Options) -> NamesrvSetup:
    """Return what parsed options say; with ``-c`` that file is the one that updateNamesrvConfig writes."""
    namesrv, netty = options.configs
    if options.config_file is not None:
        namesrv = attrs.evolve(namesrv, config_store_path=options.config_file)
    return NamesrvSetup(namesrv=namesrv, netty=netty, extra=options.unknown)


def makeService(options: Options) -> IService:
    """Return the service that `twistd` runs; ends the process with a line that names a broken file."""
    from twisted.internet import reactor

    try:
        service = build_namesrv(real_platform(reactor), setup_of(options), announce=_say)
    except (StateFileError, DiskError) as error:
        raise SystemExit(f"rmq-namesrv cannot start: {error}") from error
    return options.top_service(service, {"namesrv": service, "routes": service.routes})


def _say(line: str) -> None:
    # sys.stdout is twistd's log by now; whoever waits for Apache's line waits for exactly that line.
    print(line, file=sys.__stdout__, flush=True)
