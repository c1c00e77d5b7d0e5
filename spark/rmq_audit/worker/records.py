"""
Records: what the audit knows of their bytes beyond what the broker itself says, and the field view of one of them (the
place of each field, the field of a byte, and the message id that users see).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from rmq.wire import record
from rmq.wire.record import BORN_HOST_V6, IPV6_EXTRA_BYTES, STORE_HOST_V6, SYS_FLAG_AT, body_crc, offset_msg_id
from rmq_audit.worker.work import SLAVE

#: unsigned here, as they stand in the file
MAGIC_V1 = record.MAGIC_V1 & 0xFFFFFFFF
MAGIC_V2 = record.MAGIC_V2 & 0xFFFFFFFF
MAGIC_BLANK = record.MAGIC_BLANK & 0xFFFFFFFF

#: what both message magics begin with; a search for it finds either
MAGIC_PREFIX = MAGIC_V1.to_bytes(4, "big")[:3]

MIN_RECORD_BYTES = record.MIN_RECORD_BYTES
#: a larger totalSize is taken for damage; RocketMQ's own limit is 4 MiB by default and 16 MiB by its frames
MAX_RECORD_BYTES = 64 * 1024 * 1024
#: everything before the body when both hosts are IPv4 addresses
HEADER_BYTES = record.HEADS[0].size
#: two IPv6 hosts make the part before the body so much longer
MAX_HEADER_BYTES = record.HEADS[3].size
#: what may stand behind the body at most: a V2 topic and properties, as long as their length fields can say
MAX_TRAILER_BYTES = 2 + 32767 + 2 + 32767

#: how long a message of level 1, 2, … waits by the default messageDelayLevel
DELAY_LEVELS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))

#: totalSize and magic, all that a walk from record to record reads
SIZE_MAGIC = struct.Struct(">II")

#: the fixed part of a record whose two hosts are IPv4 addresses, by RocketMQ's names
HEADER = np.dtype([(name, {"i": ">i4", "q": ">i8", "4si": "V8"}[form]) for name, form in record.HEAD_FIELDS])

#: fields of a record up to its body as (RocketMQ's name, bytes); hosts grow by 12 for IPv6
HEADER_FIELDS = tuple(record.HEAD_WIDTHS.items())

EVIDENCE_BYTES = 64
#: how many of them stand before the place that is shown
EVIDENCE_BEFORE = 16


@attrs.frozen(kw_only=True)
class Record:
    """A record whose parts add up to its totalSize, at physical offset ``phy``."""

    phy: int
    data: bytes
    body_at: int
    topic_at: int
    topic_length: int
    properties_at: int

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def topic(self) -> str:
        raw = self.data[self.topic_at : self.topic_at + self.topic_length]
        return raw.decode("utf-8", "backslashreplace")

    @property
    def body(self) -> bytes:
        return self.data[self.body_at : self.body_at + self.number("bodyLength")]

    @property
    def properties(self) -> bytes:
        return self.data[self.properties_at :]

    def fields(self) -> Iterator[tuple[str, int, int]]:
        """Yield (RocketMQ's name, first byte, bytes) of every field in order."""
        at = 0
        for name, width in HEADER_FIELDS:
            size = width + self._extra(name)
            yield name, at, size
            at += size
        yield "body", at, self.number("bodyLength")
        at += self.number("bodyLength")
        yield "topicLength", at, self.topic_at - at
        yield "topic", self.topic_at, self.topic_length
        yield "propertiesLength", self.properties_at - 2, 2
        yield "properties", self.properties_at, self.size - self.properties_at

    def field_at(self, byte: int) -> str:
        """Return the name of the field that holds ``byte``, counted from the record's start."""
        for name, at, size in self.fields():
            if at <= byte < at + size:
                return name
        return "properties"

    def number(self, name: str) -> int:
        """Return a numeric header field, signed as RocketMQ reads it."""
        at = 0
        for known, width in HEADER_FIELDS:
            if known == name:
                return int.from_bytes(self.data[at : at + width], "big", signed=known != "magicCode")
            at += width + self._extra(known)
        raise KeyError(name)

    def crc_holds(self) -> bool:
        """Whether the body has the CRC that the record states; an empty body states none."""
        body = self.body
        return not body or body_crc(body) == self.number("bodyCRC")

    def has_hole(self) -> bool:
        """Whether topic or properties hold a zero byte, which no client can have sent: bytes that never arrived."""
        return b"\0" in self.data[self.topic_at : self.topic_at + self.topic_length] or b"\0" in self.properties

    def value_of(self, name: str) -> str | None:
        """Return a property's value; as in RocketMQ the later of two wins."""
        found = None
        for piece in self.properties.split(b"\x02"):
            key, mark, value = piece.partition(b"\x01")
            if mark and value and key == name.encode():
                found = value.decode("utf-8", "backslashreplace")
        return found

    @property
    def message_id(self) -> str:
        """What a consumer shows as msgId: UNIQ_KEY, or else the offset id (storeHost, port, physical offset)."""
        unique = self.value_of("UNIQ_KEY")
        if unique is not None and unique.isprintable():
            return unique
        at = next(start for name, start, _ in self.fields() if name == "storeHost")
        end = at + 4 + self._extra("storeHost")
        return offset_msg_id((self.data[at:end], int.from_bytes(self.data[end : end + 4], "big")), self.phy)

    def names(self) -> dict[str, Any]:
        """Return what a fault says of the message that it is about."""
        return {
            "topic": self.topic,
            "queue_id": self.number("queueId"),
            "queue_offset_from": self.number("queueOffset"),
            "queue_offset_to": self.number("queueOffset"),
            "sample_msg_ids": [self.message_id],
        }

    def _extra(self, name: str) -> int:
        flag = {"bornHost": BORN_HOST_V6, "storeHost": STORE_HOST_V6}.get(name, 0)
        return IPV6_EXTRA_BYTES if _sys_flag(self.data, 0) & flag else 0


def record_at(data: bytes, at: int, phy: int) -> Record | None:
    """
    Return the record that begins at ``data[at]``, or None when no whole frame does.

    The physicalOffset field is not compared with ``phy``: a frame in its place with a wrong offset is still a record.
    """
    if at < 0 or at + MIN_RECORD_BYTES > len(data):
        return None
    size, magic = SIZE_MAGIC.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES or at + size > len(data):
        return None
    raw = data[at : at + size]
    body_at = _body_at(raw, 0)
    if body_at > size:
        return None
    length_at = body_at + int.from_bytes(raw[body_at - 4 : body_at], "big", signed=True)
    if length_at < body_at or length_at + 3 > size:
        return None
    topic_at = length_at + (2 if magic == MAGIC_V2 else 1)
    topic_length = int.from_bytes(raw[length_at:topic_at], "big", signed=True)
    properties_at = topic_at + topic_length + 2
    if topic_length < 1 or properties_at > size:
        return None
    if properties_at + int.from_bytes(raw[properties_at - 2 : properties_at], "big", signed=True) != size:
        return None
    return Record(
        phy=phy,
        data=raw,
        body_at=body_at,
        topic_at=topic_at,
        topic_length=topic_length,
        properties_at=properties_at,
    )


def plausible_size(data: bytes, at: int) -> int | None:
    """
    Return totalSize at ``data[at]`` if the 88 bytes there look like a record's header, which may be cut off behind
    them.

    None means "not a frame": a record that needs more bytes has a size here, random bytes have not.
    """
    if at < 0 or at + HEADER_BYTES > len(data):
        return None
    size, magic = SIZE_MAGIC.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES:
        return None
    body_at = _body_at(data, at)
    if body_at > len(data):
        return None
    body = int.from_bytes(data[body_at - 4 : body_at], "big", signed=True)
    rest = int(size) - (body_at - at) - body
    return int(size) if body >= 0 and 4 <= rest <= MAX_TRAILER_BYTES else None


def size_of_own(data: bytes, phy: int) -> int | None:
    """Return the totalSize of what begins in ``data`` if it looks like the head of the record of this place."""
    size = plausible_size(data, 0)
    return size if size is not None and stated_offset(data, 0) == phy else None


def _sys_flag(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + SYS_FLAG_AT : at + SYS_FLAG_AT + 4], "big")


def _body_at(data: bytes, at: int) -> int:
    """Return where the body of the record at ``data[at]`` begins, by the address bits of its sysFlag."""
    flag = _sys_flag(data, at)
    extra = bool(flag & BORN_HOST_V6) + bool(flag & STORE_HOST_V6)
    return at + HEADER_BYTES + IPV6_EXTRA_BYTES * extra


def stated_offset(data: bytes, at: int) -> int:
    """Return the physicalOffset field of the record at ``data[at]``."""
    return int.from_bytes(data[at + 28 : at + 36], "big", signed=True)


def evidence(side: str, data: bytes, at: int, base: int) -> dict[str, Any]:
    """Return what a fault shows of a side: 64 bytes around ``data[at]``, 16 before it; ``data`` begins at ``base``."""
    begin = max(at - EVIDENCE_BEFORE, 0)
    name = "evidence_slave" if side == SLAVE else "evidence_master"
    return {name: data[begin : begin + EVIDENCE_BYTES].hex(), "evidence_phy": base + begin}
