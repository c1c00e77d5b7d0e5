"""
The body of REGISTER_BROKER: JSON, or a zlib stream of the same in a packed layout.

Java: RegisterBrokerBody
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, TopicConfig, TopicConfigWrapper, TopicQueueMappingInfo

#: Brokers older than this (3.0.11) send the bare TopicConfigWrapper.
BODY_HAS_FILTER_SERVERS_SINCE = 37
#: Since 5.0.0 static topics are the last part of the compressed layout.
BODY_HAS_STATIC_TOPICS_SINCE = 413
#: What a compressed body may grow to: some 500,000 topics. A body that grows further is refused, not inflated.
MAX_INFLATED_BYTES = 64 * 1024 * 1024

_SIZE = struct.Struct(">i")
#: First byte of every zlib stream with the usual 32 KiB window; JSON never starts with it.
_ZLIB_MARK = b"\x78"


#: see :func:`body_digest`
BodyDigest = tuple[int, int, bool]


class RegisterBodyError(ValueError):
    """The body of a registration cannot be read; the text says which part and why."""


class RegisterBrokerBody(msgspec.Struct, rename="camel", kw_only=True):
    """
    The topics of a broker, all of them or just the changed ones, and its filter servers.

    ``filter_server_list`` None: leave them as they are; an empty list removes them.
    Java: RegisterBrokerBody
    """

    filter_server_list: list[str] | None = []
    topic_config_serialize_wrapper: TopicConfigWrapper = msgspec.field(default_factory=TopicConfigWrapper)


def body_crc32(body: bytes) -> int:
    """
    Return the checksum of ``body`` as the header carries it.

    Java: UtilAll#crc32
    """
    return zlib.crc32(body) & 0x7FFFFFFF


def body_digest(body: bytes, *, version: int) -> BodyDigest:
    """
    Return a digest that represents ``body`` within this process.

    Python's own keyed hash of 64 bits, with the length: six times as fast as BLAKE2, and a broker that found two bodies
    of one digest would harm only itself. Callers also compare headers, so a checksum that is valid for one body is
    valid for the other.
    """
    return hash(body), len(body), version < BODY_HAS_FILTER_SERVERS_SINCE


def encode_register_body(body: RegisterBrokerBody, *, compressed: bool = False) -> bytes:
    """
    Return the bytes to send, and to take :func:`body_crc32` of.

    The compressed layout is that of senders below version 413; it has no room for order and topicSysFlag.
    Java: RegisterBrokerBody#encode
    """
    return zlib.compress(_packed(body), 9) if compressed else fastjson.encode(body)


def decode_register_body(data: bytes | None, *, compressed: bool, version: int) -> RegisterBrokerBody:
    """
    Return what ``data`` says; no data at all means no topics and version 0.

    ``version`` is the sender's. A zlib stream is recognised by its first byte too, because 5.3.3 brokers compress
    without saying so. Raises RegisterBodyError.
    Java: RegisterBrokerBody#decode
    """
    if not data:
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigWrapper(
                data_version=DataVersion(counter=0, timestamp=0), topic_config_table={}
            )
        )
    if compressed or data.startswith(_ZLIB_MARK):
        return _unpacked(_inflate(data), version)
    try:
        if version < BODY_HAS_FILTER_SERVERS_SINCE:
            wrapper = fastjson.decode(data, TopicConfigWrapper)
            return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=None)
        return fastjson.decode(data, RegisterBrokerBody)
    except ValueError as error:
        raise RegisterBodyError(str(error)) from error


def _packed(body: RegisterBrokerBody) -> bytes:
    wrapper = body.topic_config_serialize_wrapper
    table = wrapper.topic_config_table
    out = bytearray()
    _put(out, fastjson.encode(wrapper.data_version))
    out += _SIZE.pack(len(table))
    for name, topic in table.items():
        fields = (name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type)
        _put(out, " ".join(map(str, fields)).encode())
    _put(out, fastjson.encode(body.filter_server_list or []))
    return bytes(out)


def _put(out: bytearray, part: bytes) -> None:
    out += _SIZE.pack(len(part))
    out += part


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise RegisterBodyError(f"the compressed body is no zlib stream: {error}") from error
    if stream.unconsumed_tail:
        raise RegisterBodyError(f"the compressed body grows beyond {MAX_INFLATED_BYTES} bytes")
    if not stream.eof:
        raise RegisterBodyError(f"the compressed body ends after {len(data)} bytes, in the middle of its zlib stream")
    return inflated


class _Parts:
    """Length-prefixed parts, read one after the other; every error names its part and offset."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, what: str) -> int:
        if len(self._data) - self._at < _SIZE.size:
            raise RegisterBodyError(f"the inflated body ends at offset {len(self._data)}, before the {what}")
        (value,) = _SIZE.unpack_from(self._data, self._at)
        self._at += _SIZE.size
        if value < 0:
            raise RegisterBodyError(f"the {what} at offset {self._at - _SIZE.size} is {value}")
        return int(value)

    def part(self, what: str) -> bytes:
        size = self.number(f"length of {what}")
        if size > len(self._data) - self._at:
            raise RegisterBodyError(
                f"the {what} at offset {self._at} takes {size} bytes, {len(self._data) - self._at} are left"
            )
        self._at += size
        return self._data[self._at - size : self._at]


def _unpacked(data: bytes, sender_version: int) -> RegisterBrokerBody:
    parts = _Parts(data)
    version_text = parts.part("data version")
    table = {topic.topic_name or "": topic for topic in _topics(parts)}
    servers_text = parts.part("filter server list")
    count = parts.number("static topic count") if sender_version >= BODY_HAS_STATIC_TOPICS_SINCE else 0
    static_texts = [parts.part(f"static topic {index + 1} of {count}") for index in range(count)]
    try:
        version = fastjson.decode(version_text, DataVersion)
        servers = fastjson.decode(servers_text, list[str])
        static = [fastjson.decode(text, TopicQueueMappingInfo) for text in static_texts]
    except ValueError as error:
        raise RegisterBodyError(str(error)) from error
    wrapper = TopicConfigWrapper(
        data_version=version,
        topic_config_table=table,
        topic_queue_mapping_info_map={info.topic or "": info for info in static} or None,
    )
    return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=servers)


def _topics(parts: _Parts) -> Iterator[TopicConfig]:
    count = parts.number("topic count")
    for index in range(count):
        text = parts.part(f"topic {index + 1} of {count}").decode("utf-8", "replace")
        # 5.x appends the attributes as a sixth word.
        words = text.split(" ", 5)
        if len(words) < 5:
            raise RegisterBodyError(f"topic {index + 1} of {count} has {len(words)} words instead of 5: {text[:200]!r}")
        name, *numbers = words[:4]
        try:
            read_queue_nums, write_queue_nums, perm = map(int, numbers)
        except ValueError:
            raise RegisterBodyError(
                f"topic {index + 1} of {count} has a word that is no number: {text[:200]!r}"
            ) from None
        yield TopicConfig(
            topic_name=name,
            read_queue_nums=read_queue_nums,
            write_queue_nums=write_queue_nums,
            perm=perm,
            topic_filter_type=words[4],
        )
