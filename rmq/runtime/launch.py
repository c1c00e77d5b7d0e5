"""
The scripts ``rmq-namesrv`` and ``rmq-broker``: `twistd` with one command, which is known without a search for plugins.

``rmq-broker --nodaemon --pidfile= -c FILE`` does the same as ``twistd --nodaemon --pidfile= rmq-broker -c FILE``.
`twistd` looks into each file of ``twisted/plugins`` and keeps the result in ``dropin.cache``, beside the installed
package, where the user of a service may not write. These scripts read no such file and write none.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from twisted.application.service import IServiceMaker
from twisted.python import usage
from twisted.scripts.twistd import ServerOptions, runApp  # type: ignore[attr-defined]

#: options of `twistd` that say what to run, or that the role has too
NOT_TAKEN = {"encrypted", "file", "help", "no_save", "originalname", "python", "source", "version"}


def namesrv() -> None:
    """Run ``rmq-namesrv``."""
    from twisted.plugins import rmq_plugins

    launch(rmq_plugins.namesrv, sys.argv[1:])


def broker() -> None:
    """Run ``rmq-broker``."""
    from twisted.plugins import rmq_plugins

    launch(rmq_plugins.broker, sys.argv[1:])


def launch(maker: Any, arguments: Sequence[str]) -> None:
    """Run the service of ``maker``; ends the process with one line for wrong options of `twistd`."""
    if {"-h", "--help"} & set(arguments):
        print(help_text(maker))
        return
    try:
        config = parse(maker, arguments)
    except usage.UsageError as error:
        raise SystemExit(f"{maker.tapname} cannot start: {error}") from None
    runApp(config)


def parse(maker: Any, arguments: Sequence[str]) -> ServerOptions:
    """Return the parsed options of `twistd`, with those of the role of ``maker`` as ``subOptions``."""
    config = _options_of(maker)()
    twistd, role = split(arguments)
    config.parseOptions([*twistd, maker.tapname, *role])
    return config


def split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """
    Return the arguments for `twistd`, and those for the role.

    The long options of `twistd` are its own, with their values, wherever they are. Short options are the role's: ``-n``
    has addresses of NameServers, as in Apache's scripts.
    """
    takes_value = {name.rstrip("="): name.endswith("=") for name in twistd_options()}
    twistd: list[str] = []
    role: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in takes_value:
            role.append(argument)
            continue
        twistd.append(argument)
        if takes_value[name] and not equals:
            twistd += [value for value in [next(rest, None)] if value is not None]
    return twistd, role


def twistd_options() -> list[str]:
    """Return the long options of `twistd` that the scripts take; one that takes a value ends with ``=``."""
    return sorted(name for name in ServerOptions().longOpt if name.rstrip("=") not in NOT_TAKEN)


def help_text(maker: Any) -> str:
    """Return the help of a script: the role's options, then the names of those of `twistd`."""
    role = maker.options()
    names = ", ".join(f"--{name.removesuffix('=')}{' VALUE' * name.endswith('=')}" for name in twistd_options())
    twistd = textwrap.fill(names, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return (
        f"Usage: {maker.tapname} [options]\n\n{textwrap.fill(role.longdesc, 100)}\n\n{role.getUsage()}\n"
        f"Options of twistd, see twistd --help:\n{twistd}"
    )


def _options_of(maker: Any) -> type[ServerOptions]:
    from twisted.plugins import rmq_plugins, twisted_reactors

    class Options(ServerOptions):
        """Options of `twistd` for one role."""

        @staticmethod
        def _getPlugins(interface: object) -> list[Any]:  # type: ignore[override]
            return [maker] if interface is IServiceMaker else []

        def opt_reactor(self, name: str) -> None:
            """Which reactor to use."""
            # A reactor of ours or of Twisted's is found by the module that declares it, another one as `twistd` does.
            for declared in (*vars(rmq_plugins).values(), *vars(twisted_reactors).values()):
                if getattr(declared, "shortName", None) == name:
                    try:
                        declared.install()
                    except ImportError as error:
                        raise usage.UsageError(f"the reactor {name} cannot be used here: {error}") from error
                    self["reactor"] = name
                    return
            super().opt_reactor(name)

    return Options


if __name__ == "__main__":
    {"rmq-namesrv": namesrv, "rmq-broker": broker}[sys.argv.pop(1)]()
