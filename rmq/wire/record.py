"""
The message as it is stored in a commit log, replicated to slaves and sent to pulling clients.

One record, all integers big-endian: the fields of HEAD_FIELDS, where a host is its address of 4 or 16 bytes and its
port, then::

    body | i8 topicLength (i16 in V2) | topic | i16 propertiesLength | properties

A commit log file ends with a BLANK: ``i32 rest of the file | i32 magic``, these 8 bytes included.

Pure: the audit job imports this module into Spark executors.

Java: MessageDecoder, CommitLog#checkMessageAndReturnSize
"""

from __future__ import annotations

import enum
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul

import attrs

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
#: written by 5.x for topics of more than 127 bytes: the topic's length takes two bytes; read, never written
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

#: what stands in front of the body when both addresses are IPv4: (RocketMQ's name, its struct format). All that knows
#: where a field lies follows from it, `record_layout.pxi` of the compiled modules too (``python -m rmq.wire.record``).
HEAD_FIELDS = (
    ("totalSize", "i"),
    ("magicCode", "i"),
    ("bodyCRC", "i"),
    ("queueId", "i"),
    ("flag", "i"),
    ("queueOffset", "q"),
    ("physicalOffset", "q"),
    ("sysFlag", "i"),
    ("bornTimestamp", "q"),
    ("bornHost", "4si"),
    ("storeTimestamp", "q"),
    ("storeHost", "4si"),
    ("reconsumeTimes", "i"),
    ("preparedTransactionOffset", "q"),
    ("bodyLength", "i"),
)
HEAD_WIDTHS = {name: struct.calcsize(f">{form}") for name, form in HEAD_FIELDS}
#: offset of each of these fields; those behind an IPv6 address lie IPV6_EXTRA_BYTES further on
FIELD_AT = dict(zip(HEAD_WIDTHS, accumulate(HEAD_WIDTHS.values(), initial=0), strict=False))

#: length of a BLANK; at least so many bytes stay free after every record of a file
BLANK_BYTES = 8
#: size of a V1 record with IPv4 addresses, without body, topic and properties but with their lengths
FIXED_BYTES = sum(HEAD_WIDTHS.values()) + 1 + 2
#: an IPv6 address is so much longer than an IPv4 address
IPV6_EXTRA_BYTES = 12
MIN_RECORD_BYTES = FIXED_BYTES + 1
MAX_TOPIC_BYTES = 127
MAX_PROPERTIES_BYTES = 32767

#: the unit that a disk writes atomically
SECTOR_BYTES = 512

PHY_OFFSET_AT = FIELD_AT["physicalOffset"]
SYS_FLAG_AT = FIELD_AT["sysFlag"]
BORN_HOST_AT = FIELD_AT["bornHost"]
#: with an IPv4 bornHost
STORE_TIMESTAMP_AT = FIELD_AT["storeTimestamp"]

SIZE_AND_MAGIC = struct.Struct(">ii")
BLANK = SIZE_AND_MAGIC
PROPERTIES_LENGTH = struct.Struct(">h")
_V2_TOPIC_LENGTH = struct.Struct(">h")


def _head(born_bytes: int, store_bytes: int) -> struct.Struct:
    formats = {**dict(HEAD_FIELDS), "bornHost": f"{born_bytes}si", "storeHost": f"{store_bytes}si"}
    return struct.Struct(">" + "".join(formats.values()))


#: the whole part in front of the body, by the two address bits of sysFlag (bit 0: bornHost is IPv6, bit 1: storeHost)
HEADS = tuple(_head(born, store) for store in (4, 16) for born in (4, 16))

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

# names of message properties that the broker itself reads or writes.  Java: MessageConst
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_DELAY = "DELAY"
#: times of 5.x to the millisecond, in place of a level
TIMER_PROPERTIES = ("TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS")
PROPERTY_KEYS = "KEYS"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_TAGS = "TAGS"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_WAIT = "WAIT"

#: all that clients and brokers write of themselves, Apache's 5.x too.  Java: MessageConst#STRING_HASH_SET
SYSTEM_PROPERTIES = frozenset(
    {
        *(PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_WAIT, PROPERTY_DELAY, PROPERTY_UNIQ_KEY, PROPERTY_CLUSTER),
        *(PROPERTY_RETRY_TOPIC, PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID, PROPERTY_ORIGIN_MESSAGE_ID),
        *(PROPERTY_MAX_RECONSUME_TIMES, "RECONSUME_TIME", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET"),
        *(PROPERTY_TRANSACTION_PREPARED, PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET),
        *(PROPERTY_TRANSACTION_CHECK_TIMES, PROPERTY_CHECK_IMMUNITY_TIME, "__transactionId__"),
        *("CORRELATION_ID", PROPERTY_REPLY_TO_CLIENT, "TTL", "MSG_TYPE", "ARRIVE_TIME", PROPERTY_PUSH_REPLY_TIME),
        *("MSG_REGION", "TRACE_ON", "BUYER_ID", "INSTANCE_ID", "__SHARDINGKEY", "__BORNHOST", "BORN_TIMESTAMP"),
        *("TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "EXTEND_UNIQ_INFO", "DUP_INFO", "__CRC32#", "TRACE_CONTEXT"),
        *(PROPERTY_MULTI_DISPATCH, PROPERTY_MULTI_QUEUE_OFFSET, "INNER_NUM", "INNER_BASE", "REDIRECT"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "PROPERTY_FORWARD_QUEUE_ID"),
        *("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
        *(*TIMER_PROPERTIES, "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS"),
        *("TIMER_DEL_UNIQKEY", "TIMER_DEL_MS", "TIMER_DELAY_LEVEL"),
    }
)

#: names of light message queues begin so
LMQ_PREFIX = "%LMQ%"

#: topic of delayed messages; the tagsCode of their consume queue units is the delivery time
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


# bits of sysFlag.  Java: MessageSysFlag
COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOST_MASK = BORN_HOST_V6 | STORE_HOST_V6
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80


class Flaw(enum.Enum):
    """Why there is no record at a place."""

    BLANK = "the file ends here with a BLANK"
    EMPTY = "zeros: nothing was written here"
    INCOMPLETE = "the record is longer than the bytes at hand"
    MAGIC = "the magic number is unknown"
    SIZE = "the total size is impossible"
    LENGTHS = "the lengths of body, topic and properties do not add up to the total size"
    TOPIC = "the topic is not text"
    PHY_OFFSET = "the physical offset is that of another place"
    BODY_CRC = "the body does not match its CRC"
    TORN = "the record is torn: zeros in place of bytes of its topic, properties or queue offset"


@attrs.define
class Frame:
    """The fields of a record that dispatch needs; without the body."""

    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: str
    properties: bytes


@attrs.define
class Record:
    """A whole stored message. Hosts are (address of 4 or 16 bytes, port)."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_timestamp: int
    store_host: tuple[bytes, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def property_map(self) -> dict[str, str]:
        """The properties, decoded at each use."""
        return decode_properties(self.properties.decode("utf-8", "replace"))

    @property
    def offset_msg_id(self) -> str:
        """The id that the broker gave to the producer."""
        return offset_msg_id(self.store_host, self.phy_offset)


class RecordError(ValueError):
    """Bytes that are not a record, with their position in the buffer and the reason."""

    def __init__(self, at: int, flaw: Flaw) -> None:
        super().__init__(f"no record at byte {at}: {flaw.value}")
        self.at = at
        self.flaw = flaw


def layout_include() -> str:
    """Return `record_layout.pxi`: where the fields lie, for the compiled modules."""
    lines = ["# Made by python -m rmq.wire.record from HEAD_FIELDS; offsets with IPv4 addresses.", "cdef enum:"]
    for name, at in FIELD_AT.items():
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
        lines.append(f"    {words}_AT = {at}")
    lines += [f"    HEAD_BYTES = {HEADS[0].size}", f"    IPV6_EXTRA_BYTES = {IPV6_EXTRA_BYTES}"]
    lines += [f"    MIN_RECORD_BYTES = {MIN_RECORD_BYTES}", f"    BLANK_BYTES = {BLANK_BYTES}"]
    lines += [f"    MAGIC_V1 = {MAGIC_V1}", f"    MAGIC_V2 = {MAGIC_V2}"]
    return "\n".join(lines) + "\n"


def body_crc(body: bytes | memoryview) -> int:
    """Return the CRC as stored: 31 bits, and 0 for an empty body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def blank(size: int) -> bytes:
    """Return the BLANK that ends a file of which ``size`` bytes are left (its own 8 included)."""
    return BLANK.pack(size, MAGIC_BLANK)


def host_flags(born_host: tuple[bytes, int], store_host: tuple[bytes, int]) -> int:
    """Return the sysFlag bits for the lengths of the two addresses."""
    return (BORN_HOST_V6 if len(born_host[0]) == 16 else 0) | (STORE_HOST_V6 if len(store_host[0]) == 16 else 0)


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    body: bytes,
    properties: bytes,
    born_timestamp: int,
    store_timestamp: int,
    born_host: tuple[bytes, int],
    store_host: tuple[bytes, int],
    queue_offset: int = 0,
    phy_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """
    Return a V1 record. The address bits of ``sys_flag`` are set from the hosts.

    The caller has checked that ``topic`` has 1 to 127 bytes and ``properties`` at most 32767.
    """
    sys_flag = sys_flag & ~HOST_MASK | host_flags(born_host, store_host)
    head = HEADS[sys_flag >> 4 & 3]
    size = head.size + len(body) + 1 + len(topic) + 2 + len(properties)
    return b"".join(
        (
            head.pack(
                size,
                MAGIC_V1,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                phy_offset,
                sys_flag,
                born_timestamp,
                *born_host,
                store_timestamp,
                *store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            ),
            body,
            bytes((len(topic),)),
            topic,
            PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    )


def read_frame(
    data: bytes | memoryview, at: int, limit: int, *, phy_offset: int | None, check_crc: bool
) -> Frame | Flaw:
    """
    Check the record that starts at ``data[at]``; bytes from ``limit`` on do not count.

    With ``phy_offset`` the record must carry that physical offset (else Flaw.PHY_OFFSET). A record that continues
    after ``limit`` is Flaw.INCOMPLETE as long as its existing bytes are valid: this distinguishes a truncated record
    from a damaged one. ``check_crc`` compares the body with its CRC. Never raises, whatever the bytes.
    """
    if at + SIZE_AND_MAGIC.size > limit:
        return Flaw.INCOMPLETE
    size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        if magic == MAGIC_BLANK:
            return Flaw.BLANK
        return Flaw.EMPTY if magic == 0 and size == 0 else Flaw.MAGIC
    if size < MIN_RECORD_BYTES:
        return Flaw.SIZE
    if at + BORN_HOST_AT > limit:
        return Flaw.INCOMPLETE
    head = HEADS[data[at + SYS_FLAG_AT + 3] >> 4 & 3]
    if phy_offset is not None and _I64.unpack_from(data, at + PHY_OFFSET_AT)[0] != phy_offset:
        return Flaw.PHY_OFFSET
    if at + size > limit:
        return Flaw.INCOMPLETE
    if head.size + 4 > size:
        return Flaw.SIZE
    return _read_whole(data, at, size, head, magic, check_crc)


_I64 = struct.Struct(">q")


def _read_whole(
    data: bytes | memoryview, at: int, size: int, head: struct.Struct, magic: int, check_crc: bool
) -> Frame | Flaw:
    """Read a record of which all bytes are there."""
    (_, _, crc, queue_id, _, queue_offset, _, sys_flag, _, _, _, store_timestamp, _, _, _, _, body_size) = (
        head.unpack_from(data, at)
    )
    end = at + size
    body_at = at + head.size
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 3 > end:
        return Flaw.LENGTHS
    if magic == MAGIC_V1:
        topic_size = data[topic_at]
        topic_at += 1
    else:
        (topic_size,) = _V2_TOPIC_LENGTH.unpack_from(data, topic_at)
        topic_at += 2
    properties_at = topic_at + topic_size + 2
    if topic_size < 1 or properties_at > end or (magic == MAGIC_V1 and topic_size > MAX_TOPIC_BYTES):
        return Flaw.LENGTHS
    if properties_at + PROPERTIES_LENGTH.unpack_from(data, properties_at - 2)[0] != end:
        return Flaw.LENGTHS
    try:
        topic = str(data[topic_at : topic_at + topic_size], "utf-8")
    except UnicodeDecodeError:
        return Flaw.TOPIC
    if check_crc and body_size and zlib.crc32(data[body_at : body_at + body_size]) & 0x7FFFFFFF != crc:
        return Flaw.BODY_CRC
    return Frame(size, queue_id, queue_offset, sys_flag, store_timestamp, topic, bytes(data[properties_at:end]))


def is_torn(frame: Frame, end: int) -> bool:
    """
    Return whether a record that parses, and ends at byte ``end`` of its file, is torn.

    In a new file, bytes that were never received, or lost by a power failure, read as NUL. Lengths and body CRC can
    be valid while topic or properties have NULs. A torn record lacks its last bytes or whole disk sectors. A NUL that a
    client put into a value looks different, except at the very end, where no broker writes one (Apache ends
    properties with CLUSTER or 0x02, and ours adds 0x02 if the last value ends with NUL).
    """
    if "\0" in frame.topic:
        return True
    properties = frame.properties
    if b"\0" not in properties:
        return False
    if properties.endswith(b"\0"):
        return True
    at = 0
    while at < len(properties):
        in_file = end - len(properties) + at
        size = min(SECTOR_BYTES - in_file % SECTOR_BYTES, len(properties) - at)
        if properties.count(0, at, at + size) == size:
            return True
        at += size
    return False


def decode_record(data: bytes | memoryview, at: int = 0) -> Record:
    """Return the record at ``data[at]``, V1 or V2; RecordError says why there is none. Checks the body's CRC."""
    frame = read_frame(data, at, len(data), phy_offset=None, check_crc=True)
    if isinstance(frame, Flaw):
        raise RecordError(at, frame)
    head = HEADS[frame.sys_flag >> 4 & 3]
    fields = head.unpack_from(data, at)
    body_at = at + head.size
    size, magic, crc, queue_id, flag, queue_offset, phy_offset, sys_flag, born_timestamp = fields[:9]
    born_address, born_port, store_timestamp, store_address, store_port, reconsume_times, prepared, body_size = fields[
        9:
    ]
    return Record(
        size=size,
        magic=magic,
        body_crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        phy_offset=phy_offset,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=(born_address, born_port),
        store_timestamp=store_timestamp,
        store_host=(store_address, store_port),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
        body=bytes(data[body_at : body_at + body_size]),
        topic=frame.topic,
        properties=frame.properties,
    )


def decode_records(data: bytes) -> list[Record]:
    """Return all records of ``data``, as the body of a pull response has them."""
    records = []
    at = 0
    while at < len(data):
        records.append(decode_record(data, at))
        at += records[-1].size
    return records


# ---- properties ----


def decode_properties(text: str) -> dict[str, str]:
    """
    Return name -> value; pieces without name, separator or value are skipped, the last of equal names counts.

    Java: MessageDecoder#string2messageProperties
    """
    found = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the string form without a last separator, as 4.9 stores it."""
    return PROPERTY_SEPARATOR.join(f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items())


def append_properties(text: str, more: str) -> str:
    """Join two property strings with exactly one separator in between."""
    if not text or not more or text.endswith(PROPERTY_SEPARATOR):
        return text + more
    return text + PROPERTY_SEPARATOR + more


def find_property(text: str, name: str) -> str | None:
    """Return one property of a properties string, like ``decode_properties(text).get(name)`` but quicker."""
    return find_marked(text, property_mark(name))


def property_mark(name: str) -> str:
    """Return the search text of :func:`find_marked`; callers with many messages keep it."""
    return f"{PROPERTY_SEPARATOR}{name}{NAME_VALUE_SEPARATOR}"


def find_marked(text: str, mark: str) -> str | None:
    """Return the property whose :func:`property_mark` is ``mark``."""
    start = text.rfind(mark)
    if start >= 0:
        start += len(mark)
    elif text.startswith(mark[1:]):
        start = len(mark) - 1
    else:
        return None
    end = text.find(PROPERTY_SEPARATOR, start)
    value = text[start:] if end < 0 else text[start:end]
    return value or decode_properties(text).get(mark[1:-1])


# ---- ids and hashes ----


def offset_msg_id(store_host: tuple[bytes, int], phy_offset: int) -> str:
    """Return an offset message id: address, port and physical offset in upper-case hexadecimal."""
    return f"{store_host[0].hex().upper()}{store_host[1]:08X}{phy_offset:016X}"


def decode_offset_msg_id(text: str) -> tuple[tuple[bytes, int], int]:
    """Return (store host, physical offset); a ValueError when ``text`` is no such id."""
    if len(text) not in (32, 56):
        raise ValueError(f"an offset message id has 32 or 56 digits, {text!r} has {len(text)}")
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) * 2 != len(text):
        raise ValueError(f"offset message id {text!r} is not hexadecimal")
    port, phy_offset = struct.unpack(">iq", raw[-12:])
    return (raw[:-12], port), phy_offset


#: 31^n modulo 2^32, highest first
_POWERS: tuple[int, ...] = tuple(int(pow(31, n, 1 << 32)) for n in reversed(range(512)))


def java_hash(text: str) -> int:
    """Return what ``text.hashCode()`` is in Java: over UTF-16 code units, as a signed 32-bit number."""
    units: Sequence[int]
    value: int
    if text.isascii():
        units = text.encode("ascii")
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(raw) // 2}H", raw)
    if len(units) <= len(_POWERS):
        value = sum(map(mul, units, _POWERS[len(_POWERS) - len(units) :])) & 0xFFFFFFFF
    else:
        value = 0
        for unit in units:
            value = value * 31 + unit & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tags_code(tags: str | None) -> int:
    """Return the number that consume queues filter by; 0 without a tag."""
    return java_hash(tags) if tags else 0


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash that index files keep of a message key: never negative."""
    return index_hash(java_hash(f"{topic}#{key}"))


def index_hash(value: int) -> int:
    """Return a Java hash as index files keep it.  Java: IndexFile#indexKeyHashMethod"""
    value = abs(value)
    return value if value < 1 << 31 else 0


def split_keys(keys: str | None) -> list[str]:
    """Return the single keys of a KEYS property."""
    return [key for key in keys.split(" ") if key] if keys else []


# ---- batches, as clients send them ----

_BATCH_HEAD = struct.Struct(">iiiii")


@attrs.define
class BatchEntry:
    """One message of a client's batch."""

    body: bytes
    properties: str
    flag: int = 0


def decode_batch(data: bytes) -> list[BatchEntry]:
    """
    Return the messages of a batch; a ValueError says at which byte it is broken.

    The sizes of body and properties count; an entry's totalSize is not looked at, as Apache does not.

    One entry: ``i32 totalSize | i32 magic | i32 bodyCRC | i32 flag | i32 bodyLength | body | i16 length | properties``.

    Java: MessageDecoder#decodeMessages, on the broker MessageExtBatchEncoder#encode
    """
    entries = []
    at = 0
    while at < len(data):
        if at + _BATCH_HEAD.size > len(data):
            raise ValueError(f"batch entry at byte {at} is truncated")
        _, _, _, flag, body_size = _BATCH_HEAD.unpack_from(data, at)
        body_at = at + _BATCH_HEAD.size
        properties_at = body_at + body_size + 2
        if body_size < 0 or properties_at > len(data):
            raise ValueError(f"batch entry at byte {at} claims a body of {body_size} bytes")
        (properties_size,) = PROPERTIES_LENGTH.unpack_from(data, properties_at - 2)
        end = properties_at + properties_size
        if properties_size < 0 or end > len(data):
            raise ValueError(f"batch entry at byte {at} claims properties of {properties_size} bytes")
        try:
            properties = str(data[properties_at:end], "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"the properties of the batch entry at byte {at} are not UTF-8") from None
        entries.append(BatchEntry(data[body_at : properties_at - 2], properties, flag))
        at = end
    return entries


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Return the batch that a client would send."""
    pieces = []
    for entry in entries:
        properties = entry.properties.encode()
        size = _BATCH_HEAD.size + len(entry.body) + 2 + len(properties)
        pieces += [_BATCH_HEAD.pack(size, 0, 0, entry.flag, len(entry.body)), entry.body]
        pieces += [PROPERTIES_LENGTH.pack(len(properties)), properties]
    return b"".join(pieces)


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name("record_layout.pxi").write_text(layout_include(), encoding="ascii")
