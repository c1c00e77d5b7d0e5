"""
The configuration of a running NameServer, which updateNamesrvConfig may change.

Java: Configuration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from rmq.namesrv.config import (
    CONFIG_CLASSES,
    ControllerConfig,
    NamesrvConfig,
    NamesrvSetup,
    NettyServerConfig,
)
from rmq.remoting.access import check_white_list, refused_keys
from rmq.runtime.config import config_fields, to_properties, update
from rmq.runtime.disk.files import Disk
from rmq.runtime.disk.statefile import write_state


class Settings:
    """
    The present configuration; values are read when they are needed, not copied.

    Ports, paths and the scan interval are read at the start only; their changes take effect with the next start.
    """

    _log = Logger()

    def __init__(self, disk: Disk, setup: NamesrvSetup) -> None:
        check_white_list(setup.namesrv.config_white_list, CONFIG_CLASSES)
        self._disk = disk
        self._path = setup.namesrv.config_store_path
        self.namesrv: NamesrvConfig = setup.namesrv
        self.netty: NettyServerConfig = setup.netty
        self.controller: ControllerConfig = setup.controller
        self._extra = dict(setup.extra)
        # Read from the file and written to it, but never shown.
        self._secret = dict(setup.access.changed())
        self._production_addrs = setup.production_addrs
        self._known = {field.key for cls in CONFIG_CLASSES for field in config_fields(cls)}
        self._listeners: list[Callable[[], object]] = []
        self._warn_of_unsupported()

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call ``listener()`` after each change."""
        self._listeners.append(listener)

    def text(self) -> str:
        """Return it as properties, ``key=value`` lines.  Java: Configuration#getAllConfigsFormatString"""
        return to_properties(self.namesrv, self.netty, extra=self._extra)

    def controller_text(self) -> str:
        """Return the controller's part as properties."""
        return to_properties(self.controller, self.netty)

    def black_listed(self, values: Mapping[str, str]) -> list[str]:
        """Return the keys of ``values`` that may not be changed over the network."""
        lists = self.namesrv
        return refused_keys(
            values, CONFIG_CLASSES, black_list=lists.config_black_list, white_list=lists.config_white_list
        )

    def update(self, values: Mapping[str, str]) -> None:
        """
        Change the known keys, skip the others, and write the configuration to ``configStorePath`` of the start.

        Raises ConfigError naming the key for a bad value, DiskError for an unwritable file; then nothing has changed.
        Java: Configuration#update
        """
        namesrv, netty = update(self.namesrv, values), update(self.netty, values)
        controller = update(self.controller, values)
        parts = (namesrv, netty, controller) if namesrv.enable_controller_in_namesrv else (namesrv, netty)
        text = to_properties(*parts, extra={**self._extra, **self._secret})
        write_state(self._disk, self._path, text.encode())
        self.namesrv, self.netty, self.controller = namesrv, netty, controller
        for key in sorted(values):
            if key in self._known:
                self._log.info("{key} changed to {value}", key=key, value=values[key])
            else:
                self._log.warn("unknown key {key} skipped", key=key)
        self._warn_of_unsupported()
        for listener in self._listeners:
            listener()

    def _warn_of_unsupported(self) -> None:
        if self.namesrv.cluster_test and not self._production_addrs:
            self._log.warn(
                "{key}=true has no effect: set production's NameServers with -n or NAMESRV_ADDR",
                key="clusterTest",
            )
