"""
The file that names the brokers of a cluster, where their stores lie, and what to compare with them: TOML.

Every mistake in it is one line with file, line and key, and nothing is read before the whole file makes sense.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rmq_audit.driver.inventory import take_inventory
from rmq_audit.worker.files import read_whole
from rmq_audit.worker.location import InputError, ReadError, located, same_place, shown
from rmq_audit.worker.work import STORE

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@attrs.frozen(kw_only=True)
class BrokerConfig:
    """
    One broker: its master, its slaves (none: the master is checked alone), and what is particular to it.

    Places are absolute paths or URIs. ``consumer_offsets`` stands in for the master's config/consumerOffset.json.
    """

    name: str
    master: str
    slaves: tuple[str, ...] = ()
    allowed_lag_bytes: int = 0
    index_slots: int | None = None
    acked: tuple[str, ...] = ()
    consumer_offsets: str | None = None


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """What is audited together. ``acked`` are tables whose rows name their broker, ``routes`` dumps of NameServers."""

    path: str
    cluster: str | None
    brokers: tuple[BrokerConfig, ...]
    acked: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


def read_config(path: str) -> ClusterConfig:
    """Return the configuration that a TOML file holds; InputError with file, line and key."""
    place = located(path)
    try:
        text = read_whole(place).decode("utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{place}: no such file") from None
    except ReadError as error:
        raise InputError(str(error)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: is not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{place}: is not TOML: {error}") from error
    return _Reader(place, text).cluster(values)


def config_of(what: str, slave: str | None, allowed_lag_bytes: int) -> ClusterConfig:
    """
    Return the configuration in a TOML file, or one of a single broker when ``what`` is a store directory or its URI.

    InputError when it is neither, or when a file of a cluster is given together with a slave or a lag.
    """
    if what.endswith(".toml"):
        if slave is not None or allowed_lag_bytes:
            raise InputError(f"{shown(what)}: is a configuration; it names slaves and lags itself")
        return read_config(what)
    sides = [take_inventory(STORE, path) for path in (what, slave) if path is not None]
    if len(sides) == 2 and same_place(sides[0].path, sides[1].path):
        raise InputError(f"{sides[0].path}: is given as master and as slave")
    known = [one.manifest.broker_name for one in sides if one.manifest is not None and one.manifest.broker_name]
    broker = BrokerConfig(
        name=known[0] if known else sides[0].path.rstrip("/").rpartition("/")[2],
        master=what,
        slaves=() if slave is None else (slave,),
        allowed_lag_bytes=allowed_lag_bytes,
    )
    return ClusterConfig(path=sides[0].path, cluster=None, brokers=(broker,))


class _Reader:
    """Turns the values of one file into a configuration, and knows where in the text they stand."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._folder = path.rpartition("/")[0]

    def cluster(self, values: Mapping[str, Any]) -> ClusterConfig:
        table = _Table(self, values, None)
        cluster = table.take("cluster", _text)
        lag = table.take("allow_lag", bytes_of, 0)
        acked, routes = table.take("acked", self._places, ()), table.take("routes", self._places, ())
        brokers = table.take("broker", _tables)
        table.done()
        if not brokers:
            raise InputError(f"{self._path}: no [[broker]]: name one broker at least, with its master")
        found: list[BrokerConfig] = []
        for number, one in enumerate(brokers):
            broker = self._broker(_Table(self, one, number), lag)
            if any(other.name == broker.name for other in found):
                raise self.mistake(number, "name", f"{broker.name!r} is given twice")
            found.append(broker)
        return ClusterConfig(path=self._path, cluster=cluster, brokers=tuple(found), acked=acked, routes=routes)

    def _broker(self, table: _Table, lag: int) -> BrokerConfig:
        name, master = table.need("name", _text), table.need("master", self._place)
        slaves = table.take("slaves", self._places, ())
        broker = BrokerConfig(
            name=name,
            master=master,
            slaves=slaves,
            allowed_lag_bytes=table.take("allow_lag", bytes_of, lag),
            index_slots=table.take("index_slots", _positive),
            acked=table.take("acked", self._places, ()),
            consumer_offsets=table.take("consumer_offsets", self._place),
        )
        table.done()
        if master in slaves or len(set(slaves)) < len(slaves):
            raise self.mistake(table.number, "slaves", "the same store is listed twice")
        return broker

    def _place(self, value: Any) -> str:
        """Return a place; relative paths count from the folder of the file."""
        text = _text(value)
        if "://" not in text and "://" not in self._folder:
            text = os.path.join(self._folder, text)
        located(text)
        return text

    def _places(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{value!r} is not a list of paths or URIs")
        return tuple(self._place(one) for one in value)

    def mistake(self, number: int | None, key: str | None, text: str) -> InputError:
        """Return what is wrong with a key of the file or of its broker ``number``, with the line where it stands."""
        where = "" if number is None else f"broker {number + 1}: "
        what = "" if key is None else f"{key}: "
        return InputError(f"{self._path}: line {self._line(number, key)}: {where}{what}{text}")

    def _line(self, number: int | None, key: str | None) -> int:
        """Return the line of a key, or where the table begins in which it is missing."""
        seen, begin = -1, 1
        for at, line in enumerate(self._lines, 1):
            if re.match(r"\s*\[", line):
                seen += bool(re.match(r"\s*\[\[\s*broker\s*\]\]", line))
                if seen == number:
                    begin = at
            inside = seen == (-1 if number is None else number)
            if inside and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
                return at
        return begin


class _Table:
    """The values of one table; :meth:`done` refuses the keys that were not taken."""

    def __init__(self, reader: _Reader, values: Mapping[str, Any], number: int | None) -> None:
        self._reader = reader
        self._values = dict(values)
        self._known: list[str] = []
        self.number = number

    def take(self, key: str, convert: Callable[[Any], Any], default: Any = None) -> Any:
        """Return a key's value, the default when it is not there."""
        self._known.append(key)
        if key not in self._values:
            return default
        try:
            return convert(self._values.pop(key))
        except (ValueError, InputError) as error:
            raise self._reader.mistake(self.number, key, str(error)) from error

    def need(self, key: str, convert: Callable[[Any], Any]) -> Any:
        if key not in self._values:
            raise self._reader.mistake(self.number, None, f"{key} is missing")
        return self.take(key, convert)

    def done(self) -> None:
        for key in self._values:
            known = ", ".join(self._known)
            raise self._reader.mistake(self.number, key, f"is not known here; there are {known}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not text")
    return value


def _positive(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a number above 0")
    return value


def _tables(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError("[[broker]] is expected, with two brackets, once for each broker")
    return value


def bytes_of(value: Any) -> int:
    """Return the bytes that a number or a text like 64M stands for; ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    text = value.upper().removesuffix("IB").removesuffix("B") if isinstance(value, str) else ""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    if found is None:
        raise ValueError(f"{value!r} is not a size; examples: 65536, 64K, 64M")
    return int(found[1]) * _UNITS[found[2]]
