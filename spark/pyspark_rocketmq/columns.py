"""The columns of "rocketmq-log": what each is called, its type, and how it is made from a stretch of records."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pyarrow as pa
from rmq_audit.worker.files import Window
from rmq_audit.worker.kernel import Columns
from rmq_audit.worker.records import Record, record_at

from rmq.wire.record import decode_properties

Make = Callable[[Window, Columns], Any]


@attrs.frozen
class Column:
    """One column: Arrow type, Spark's name of it, and the values of a stretch."""

    kind: pa.DataType
    ddl: str
    make: Make


def _numbers(name: str) -> Make:
    return lambda window, columns: getattr(columns, name)


def _slices(at: str, length: str) -> Callable[[Window, Columns], Iterator[bytes]]:
    def make(window: Window, columns: Columns) -> Iterator[bytes]:
        begins = getattr(columns, at).tolist()
        sizes = getattr(columns, length).tolist()
        return (window.data[begin : begin + size] for begin, size in zip(begins, sizes, strict=True))

    return make


_topics = _slices("topic_pos", "topic_length")
_properties = _slices("properties_pos", "properties_length")
_bodies = _slices("body_pos", "body_length")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _records(take: Callable[[Record], Any]) -> Make:
    def make(window: Window, columns: Columns) -> list[Any]:
        found = []
        for pos in columns.pos.tolist():
            record = record_at(window.data, pos, window.base + pos)
            assert record is not None, f"the kernel took {window.base + pos} for a record"
            found.append(take(record))
        return found

    return make


def _property(name: str) -> Make:
    def make(window: Window, columns: Columns) -> list[str | None]:
        # most messages lack most properties, and looking for the name is much cheaper than decoding them all
        mark = name.encode() + b"\x01"
        maps = (decode_properties(_text(raw)) if mark in raw else {} for raw in _properties(window, columns))
        return [properties.get(name) for properties in maps]

    return make


def _host(name: str) -> Callable[[Record], str]:
    def take(record: Record) -> str:
        at, size = next((at, size) for field, at, size in record.fields() if field == name)
        address, port = record.data[at : at + size - 4], record.data[at + size - 4 : at + size]
        host = ipaddress.ip_address(address)
        text = f"[{host}]" if host.version == 6 else str(host)
        return f"{text}:{int.from_bytes(port, 'big')}"

    return take


def _number(name: str) -> Make:
    return _records(lambda record: record.number(name))


_MAP = pa.map_(pa.string(), pa.string())

COLUMNS: dict[str, Column] = {
    "phy_offset": Column(pa.int64(), "bigint", lambda window, columns: columns.pos + window.base),
    "size": Column(pa.int32(), "int", _numbers("size")),
    "topic": Column(pa.string(), "string", lambda w, c: [_text(raw) for raw in _topics(w, c)]),
    "queue_id": Column(pa.int32(), "int", _numbers("queue_id")),
    "queue_offset": Column(pa.int64(), "bigint", _numbers("queue_offset")),
    "msg_id": Column(pa.string(), "string", _records(lambda record: record.message_id)),
    "tags": Column(pa.string(), "string", _property("TAGS")),
    "keys": Column(pa.string(), "string", _property("KEYS")),
    "properties": Column(
        _MAP,
        "map<string,string>",
        lambda w, c: [list(decode_properties(_text(raw)).items()) for raw in _properties(w, c)],
    ),
    "body": Column(pa.binary(), "binary", lambda w, c: list(_bodies(w, c))),
    "body_crc": Column(pa.int32(), "int", lambda w, c: c.crc.astype("int32")),
    "flag": Column(pa.int32(), "int", _number("flag")),
    "sys_flag": Column(pa.int32(), "int", _numbers("sys_flag")),
    "born_timestamp": Column(pa.int64(), "bigint", _number("bornTimestamp")),
    "born_host": Column(pa.string(), "string", _records(_host("bornHost"))),
    "store_timestamp": Column(pa.int64(), "bigint", _numbers("store_timestamp")),
    "store_host": Column(pa.string(), "string", _records(_host("storeHost"))),
    "reconsume_times": Column(pa.int32(), "int", _number("reconsumeTimes")),
    "prepared_transaction_offset": Column(pa.int64(), "bigint", _number("preparedTransactionOffset")),
}

DDL = ", ".join(f"{name} {column.ddl}" for name, column in COLUMNS.items())
