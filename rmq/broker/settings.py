"""
The configuration of a running broker, which updateBrokerConfig may change.

Java: Configuration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from twisted.logger import Logger

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup, resolve
from rmq.remoting.access import local_keys, refused_keys
from rmq.runtime.config import ConfigError, config_fields, decode_properties, to_properties, update
from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.properties import format_properties

_KNOWN = {field.key for cls in CONFIG_CLASSES for field in config_fields(cls)}


class Settings:
    """
    The present configuration; values are read when they are needed, not copied.

    Keys that are read per request take effect at once, and those that ``changed`` gets; all others at the next
    start. ``path`` is the properties file that changes are saved in, None for none.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        setup: BrokerSetup,
        path: str | None = None,
        changed: Callable[[BrokerSetup], object] = lambda setup: None,
    ) -> None:
        self._disk = disk
        self._changed = changed
        self.setup = setup
        self.path = path

    def text(self) -> str:
        """Return it as properties, ``key=value`` lines.  Java: Configuration#getAllConfigsFormatString"""
        setup = self.setup
        return to_properties(setup.broker, setup.server, setup.client, setup.store)

    def black_listed(self, values: Mapping[str, str]) -> list[str]:
        """Return the keys of ``values`` that may not be changed over the network."""
        lists = self.setup.broker
        return refused_keys(
            values, CONFIG_CLASSES, black_list=lists.config_black_list, white_list=lists.config_white_list
        )

    def update(self, values: Mapping[str, str]) -> dict[str, str]:
        """
        Change the known keys, also in the file; skip the others and return those that changed.

        A protected key that configWhiteList allows is changed in the file only: a running broker has one role, one
        name, one store. Raises ConfigError when a value is wrong or the file cannot be written; then nothing has
        changed.
        Java: Configuration#update
        """
        for key in sorted(values.keys() - _KNOWN):
            self._log.warn("unknown key {key} was not changed", key=key)
        changes = {key: value for key, value in values.items() if key in _KNOWN}
        local = local_keys(CONFIG_CLASSES)
        if self.path is None and (lost := sorted(local & changes.keys())):
            raise ConfigError(
                f"not changed: {', '.join(lost)}. This broker has no configuration file (-c) to save it in"
            )
        # Check it as the next start would: a change must not prevent the next start.
        resolve(_updated(self.setup, changes), host_address="127.0.0.1", host_name="localhost")
        setup = _updated(self.setup, {key: value for key, value in changes.items() if key not in local})
        if self.path is not None:
            self._persist(self.path, changes)
        self.setup = setup
        self._changed(setup)
        return changes

    def _persist(self, path: str, changes: dict[str, str]) -> None:
        """Rewrite the properties file; its comments are lost, its previous content is kept as .bak."""
        disk = self._disk
        try:
            values = decode_properties(disk.read_whole(path), path) if disk.exists(path) else {}
            disk.write_atomic(path, format_properties({**values, **changes}).encode(), keep_backup=True)
        except (ConfigError, DiskError) as error:
            raise ConfigError(f"the configuration cannot be written: {error}") from None


def _updated(setup: BrokerSetup, changes: dict[str, str]) -> BrokerSetup:
    return attrs.evolve(
        setup,
        broker=update(setup.broker, changes),
        server=update(setup.server, changes),
        client=update(setup.client, changes),
        store=update(setup.store, changes),
        extra=update(setup.extra, changes),
    )
