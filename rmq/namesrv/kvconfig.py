"""
The key-value table of a NameServer and its file, ``kvConfig.json``.

Java: KVConfigManager
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from twisted.logger import Logger

from rmq.runtime.disk.files import Disk, DiskError
from rmq.runtime.disk.statefile import read_state, write_state
from rmq.wire import fastjson
from rmq.wire.fastjson import java_string

ConfigTable = dict[str, dict[str, str]]


class _KVFile(msgspec.Struct, rename="camel", kw_only=True):
    """Java: KVConfigSerializeWrapper"""

    config_table: ConfigTable = {}


#: the position in an error of the tolerant parser
_AT_CHARACTER = re.compile(r"at character (\d+)")


def parse_kv_file(data: bytes) -> ConfigTable:
    """
    Return the table in a kvConfig.json.

    Raises ValueError with line and character, or line, namespace and key, of the bad part.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: no UTF-8 at byte {error.start}") from None
    try:
        return msgspec.json.decode(data, type=_KVFile).config_table
    except (msgspec.MsgspecError, RecursionError):
        pass  # written by hand or by an old fastjson, or broken: the tolerant parser finds the place
    try:
        whole: Any = fastjson.parse(text)
    except fastjson.JsonError as error:
        found = _AT_CHARACTER.search(str(error))
        line = text.count("\n", 0, int(found[1]) if found else len(text)) + 1
        raise ValueError(f"line {line}: {error}".replace("unexpected ''", "unexpected end")) from None
    table = whole.get("configTable") if isinstance(whole, dict) else whole
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ValueError(f"line 1: configTable must be an object of namespaces, not {_kind_of(table)}")
    return {str(namespace): _values_of(text, str(namespace), values) for namespace, values in table.items()}


def _values_of(text: str, namespace: str, values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ValueError(
            f"line {_line_of(text, namespace)}: namespace {namespace} must be an object, not {_kind_of(values)}"
        )
    for key, value in values.items():
        if value is None or isinstance(value, (dict, list)):
            raise ValueError(
                f"line {_line_of(text, namespace, str(key))}: the value of {key} in namespace {namespace} must be text,"
                f" not {_kind_of(value)}"
            )
    return {str(key): java_string(value) or "" for key, value in values.items()}


def _kind_of(value: Any) -> str:
    return {dict: "an object", list: "an array", type(None): "null"}.get(type(value), repr(value))


def _line_of(text: str, *names: str) -> int:
    """Return the line of the last of ``names``, each searched after the one before."""
    at = 0
    for name in names:
        at = max(text.find(name, at), at)
    return text.count("\n", 0, at) + 1


class KVConfig:
    """
    Values by namespace and key; a change is on disk before it is answered.

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

        Raises StateFileError, naming the file, when an existing file cannot be read.
        Java: KVConfigManager#load, which starts with an empty table then
        """
        found = read_state(self._disk, self.path, parse_kv_file)
        if found is not None:
            self._table = found
            self.version += 1
            self._log.info("{path} holds {count} namespaces", path=self.path, count=len(self._table))

    def put(self, namespace: str, key: str, value: str) -> None:
        """
        Set a value. Raises DiskError when the file cannot be written; then nothing has changed.

        Java: KVConfigManager#putKVConfig, which only logs the error
        """
        self._change({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> None:
        """
        Delete a value, if there is one. An emptied namespace stays. Raises DiskError like :meth:`put`.

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
            write_state(self._disk, self.path, fastjson.encode({"configTable": table}))
        except DiskError as error:
            self._log.error("the key-value table was not changed: {error}", error=error)
            raise
        self._table = table
        self.version += 1
