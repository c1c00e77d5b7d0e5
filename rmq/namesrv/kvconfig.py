"""
The key-value table of a NameServer and its file, ``kvConfig.json``.

Java: KVConfigManager
"""

from __future__ import annotations

import msgspec
from twisted.logger import Logger

from rmq.runtime.disk import Disk, DiskError
from rmq.runtime.statefile import read_state, write_state
from rmq.wire import fastjson

ConfigTable = dict[str, dict[str, str]]


class _KVFile(msgspec.Struct, rename="camel", kw_only=True):
    """Java: KVConfigSerializeWrapper"""

    config_table: ConfigTable = {}


class KVConfig:
    """
    Values by namespace and key, on disk before a change is answered.

    ``version`` grows with every change.
    """

    _log = Logger()

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self.version = 0
        self._disk = disk
        self._table: ConfigTable = {}

    def load(self) -> None:
        """
        Read the file, or its ``.bak``; without both the table is empty.

        Raises StateFileError, naming the file, when what is there cannot be read.
        Java: KVConfigManager#load, which starts with an empty table then
        """
        found = read_state(self._disk, self.path, lambda data: fastjson.decode(data, _KVFile))
        if found is not None:
            self._table = found.config_table
            self.version += 1
            self._log.info("{path} holds {count} namespaces", path=self.path, count=len(self._table))

    def put(self, namespace: str, key: str, value: str) -> None:
        """
        Set a value. Raises DiskError when it cannot be written, and then nothing has changed.

        Java: KVConfigManager#putKVConfig, which only logs that
        """
        self._change({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """
        Forget a value; harmless when there is none. An emptied namespace stays. Raises DiskError like :meth:`put`.

        Java: KVConfigManager#deleteKVConfig
        """
        values = self._table.get(namespace)
        if values is not None and key in values:
            rest = {other: value for other, value in values.items() if other != key}
            self._change({**self._table, namespace: rest})

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None when there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None when it never existed.  Java: KVConfigManager#getKVListByNamespace"""
        values = self._table.get(namespace)
        return None if values is None else dict(values)

    def sizes(self) -> dict[str, int]:
        """Return how many values each namespace has."""
        return {namespace: len(values) for namespace, values in sorted(self._table.items())}

    def log_all(self) -> None:
        """Write the table to the log.  Java: KVConfigManager#printAllPeriodically"""
        for namespace, values in sorted(self._table.items()):
            for key, value in sorted(values.items()):
                self._log.info("kv {namespace} {key} = {value}", namespace=namespace, key=key, value=value)

    def _change(self, table: ConfigTable) -> None:
        try:
            write_state(self._disk, self.path, fastjson.encode(_KVFile(config_table=table)))
        except DiskError as error:
            self._log.error("the key-value table was not changed: {error}", error=error)
            raise
        self._table = table
        self.version += 1
