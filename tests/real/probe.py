"""
A bare client of the remoting protocol on a blocking socket: what the tests trust instead of the product's own client.

It writes JSON headers as Java's clients do, reads whole frames, and knows a dozen requests. Nothing of ``rmq`` is
imported here, so a mistake of the product's codec cannot hide itself.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

VERSION = 407  # V4_9_7
RESPONSE = 1
ONE_WAY = 2

SEND = 310
SEND_BATCH = 320
PULL = 11
_PREFIX = struct.Struct(">II")


class Closed(ConnectionError):
    """The peer closed the connection (or reset it) while an answer was due."""


class Refused(LookupError):
    """The peer answered with another code than 0."""

    def __init__(self, request: int, answer: Answer):
        super().__init__(f"request {request} was answered {answer.code}: {answer.remark}")
        self.answer = answer


@attrs.frozen
class Answer:
    code: int
    opaque: int
    flag: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


@attrs.frozen
class Record:
    """One stored message, as it lies in the log and as a pull returns it."""

    raw: bytes
    queue_id: int
    queue_offset: int
    phy_offset: int
    sys_flag: int
    topic: str
    properties: dict[str, str]
    body: bytes
    body_at: int
    body_crc: int

    @property
    def key(self) -> str:
        return self.properties.get("KEYS", "")


RECORD_MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
_FIXED = struct.Struct(">IIIIIqqI")


def decode_record(data: bytes, at: int = 0) -> Record:
    """Decode the record at ``at``; ValueError says what is wrong with it."""
    size, magic, crc, queue_id, _flag, queue_offset, phy_offset, sys_flag = _FIXED.unpack_from(data, at)
    if magic != RECORD_MAGIC:
        raise ValueError(f"magic {magic:#x} at {at}")
    raw = bytes(data[at : at + size])
    if len(raw) < size:
        raise ValueError(f"record of {size} bytes at {at} is cut after {len(raw)}")
    place = _FIXED.size + 8 + (20 if sys_flag & 0x10 else 8) + 8 + (20 if sys_flag & 0x20 else 8) + 4 + 8
    (length,) = struct.unpack_from(">i", raw, place)
    body_at = place + 4
    body = raw[body_at : body_at + length]
    place = body_at + length
    topic = raw[place + 1 : place + 1 + raw[place]].decode()
    place += 1 + raw[place]
    (length,) = struct.unpack_from(">H", raw, place)
    encoded = raw[place + 2 : place + 2 + length].decode()
    if place + 2 + length != size:
        raise ValueError(f"record at {at}: its parts have {place + 2 + length} bytes, its size says {size}")
    pairs = (
        (entry.split("\x01", 1)[0], entry.split("\x01", 1)[1]) for entry in encoded.split("\x02") if "\x01" in entry
    )
    properties = dict(pairs)
    return Record(raw, queue_id, queue_offset, phy_offset, sys_flag, topic, properties, body, body_at, crc)


def decode_records(data: bytes) -> list[Record]:
    """Decode the body of a pull: records without separators."""
    found, at = [], 0
    while at < len(data):
        found.append(decode_record(data, at))
        at += len(found[-1].raw)
    return found


def frame(code: int, ext: Mapping[str, object], body: bytes = b"", *, opaque: int, flag: int = 0) -> bytes:
    """Return a whole request frame with a JSON header."""
    fields = {name: text(value) for name, value in ext.items()}
    header = {"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": VERSION}
    return raw_frame(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), body)


def raw_frame(header: bytes, body: bytes = b"", *, serialize_type: int = 0) -> bytes:
    return _PREFIX.pack(4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


def text(value: object) -> str:
    """Return a value as extFields hold it: booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def fastjson(data: bytes) -> Any:
    """Decode JSON in which integer keys may be bare."""
    return json.loads(re.sub(rb"([{,])(-?\d+):", rb'\1"\2":', data))


def properties_text(**properties: str) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in properties.items())


def send_fields(topic: str, queue_id: int, properties: str, *, batch: bool = False) -> dict[str, object]:
    """Return the header of SEND_MESSAGE_V2 with Java's one-letter names."""
    letters = {"a": "probe-producer", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000}
    return letters | {"h": 0, "i": properties, "j": 0, "k": False, "m": batch}


def pull_fields(topic: str, queue_id: int, offset: int, *, count: int = 32, wait_ms: int = 0) -> dict[str, object]:
    """Return the header of PULL_MESSAGE with the subscription ``*``; ``wait_ms`` asks to be suspended for so long."""
    fields: dict[str, object] = {"consumerGroup": "probe-consumer", "topic": topic, "queueId": queue_id}
    fields |= {"queueOffset": offset, "maxMsgNums": count, "sysFlag": 6 if wait_ms else 4, "commitOffset": 0}
    return fields | {"suspendTimeoutMillis": wait_ms, "subscription": "*", "subVersion": 0, "expressionType": "TAG"}


def batch_body(entries: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode (properties, body) entries as the body of SEND_BATCH_MESSAGE."""
    out = bytearray()
    for encoded, body in entries:
        properties = encoded.encode()
        size = 22 + len(body) + len(properties)
        out += struct.pack(">IIIII", size, 0, 0, 0, len(body)) + body
        out += struct.pack(">H", len(properties)) + properties
    return bytes(out)


class Probe:
    """One connection. A method either returns what was asked for or raises Refused, Closed or TimeoutError."""

    def __init__(self, port: int, *, timeout: float = 15.0):
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._opaque = 0

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- frames

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, code: int, ext: Mapping[str, object], body: bytes = b"", *, flag: int = 0) -> int:
        """Write a request and return its opaque without waiting."""
        self._opaque += 1
        self.write(frame(code, ext, body, opaque=self._opaque, flag=flag))
        return self._opaque

    def read(self) -> Answer:
        """Return the next frame from the peer."""
        (length,) = struct.unpack(">I", self._take(4))
        data = self._take(length)
        word = struct.unpack_from(">I", data)[0]
        assert word >> 24 == 0, f"the peer answered in serialize type {word >> 24}"
        header = json.loads(data[4 : 4 + word])
        ext = header.get("extFields") or {}
        body = data[4 + word :]
        return Answer(header["code"], header["opaque"], header.get("flag", 0), header.get("remark"), ext, body)

    def ask(self, code: int, ext: Mapping[str, object] = {}, body: bytes = b"") -> Answer:
        """Write a request and return its answer, whatever its code; requests of the peer are passed over."""
        opaque = self.send(code, ext, body)
        while True:
            answer = self.read()
            if answer.flag & RESPONSE and answer.opaque == opaque:
                return answer

    def must(self, code: int, ext: Mapping[str, object] = {}, body: bytes = b"") -> Answer:
        """``ask``, but any code other than 0 raises Refused."""
        answer = self.ask(code, ext, body)
        if answer.code != 0:
            raise Refused(code, answer)
        return answer

    def at_end(self, seconds: float) -> bool:
        """Tell whether the peer closes the connection within ``seconds``, saying nothing more."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                piece = self.socket.recv(1 << 18)
            except ConnectionError as error:
                raise Closed(f"port {self.port}: {error}") from error
            if not piece:
                raise Closed(f"port {self.port} closed the connection")
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    # -- requests to a NameServer

    def cluster(self) -> dict[str, Any]:
        """Return the cluster table (106) with the broker ids as text."""
        table: dict[str, Any] = fastjson(self.must(106).body)
        return table

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the route of ``topic`` (105), None when there is none (17)."""
        answer = self.ask(105, {"topic": topic})
        if answer.code == 17:
            return None
        if answer.code != 0:
            raise Refused(105, answer)
        route: dict[str, Any] = fastjson(answer.body)
        return route

    # -- requests to a broker

    def create_topic(self, topic: str, queues: int) -> None:
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
        self.must(17, fields | {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False})

    def runtime_info(self) -> dict[str, str]:
        table: dict[str, str] = json.loads(self.must(28).body)["table"]
        return table

    def send_message(self, topic: str, queue_id: int, body: bytes, **properties: str) -> Answer:
        """Send one message and return the answer, whatever its code."""
        return self.ask(SEND, send_fields(topic, queue_id, properties_text(**properties)), body)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return int(self.must(30, {"topic": topic, "queueId": queue_id}).ext["offset"])

    def min_offset(self, topic: str, queue_id: int) -> int:
        return int(self.must(31, {"topic": topic, "queueId": queue_id}).ext["offset"])

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
        self.must(15, fields)

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        return int(self.must(14, fields).ext["offset"])

    def topics(self) -> dict[str, Any]:
        """Return every topic's configuration (21)."""
        table: dict[str, Any] = json.loads(self.must(21).body)["topicConfigTable"]
        return table

    def all_offsets(self) -> dict[str, dict[str, int]]:
        """Return every consumer offset (43): "topic@group" -> queue id as text -> offset."""
        table: dict[str, dict[str, int]] = fastjson(self.must(43).body)["offsetTable"]
        return table

    def join_group(self, group: str, topic: str) -> None:
        """Be a consumer of ``group`` until the connection closes: a broker makes the group known then."""
        subscription: dict[str, object] = {
            "topic": topic,
            "subString": "*",
            "expressionType": "TAG",
            "subVersion": 1,
            "tagsSet": [],
        }
        subscription |= {"codeSet": [], "classFilterMode": False}
        consumer: dict[str, object] = {
            "groupName": group,
            "consumeType": "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
        }
        consumer |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False}
        members = [consumer | {"subscriptionDataSet": [subscription]}]
        body = {"clientID": f"probe@{self.socket.getsockname()[1]}", "consumerDataSet": members, "producerDataSet": []}
        self.must(34, {}, json.dumps(body).encode())

    def pull(self, topic: str, queue_id: int, offset: int, *, count: int = 32, wait_ms: int = 0) -> Answer:
        """Pull with the subscription ``*`` in the request; ``wait_ms`` asks to be suspended for so long."""
        return self.ask(PULL, pull_fields(topic, queue_id, offset, count=count, wait_ms=wait_ms))

    def read_queue(self, topic: str, queue_id: int) -> list[Record]:
        """Return all messages of a queue from its minimum to its maximum, in order."""
        at, end = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        found: list[Record] = []
        while at < end:
            answer = self.pull(topic, queue_id, at, count=256)
            if answer.code != 0:
                raise Refused(PULL, answer)
            found += decode_records(answer.body)
            following = int(answer.ext["nextBeginOffset"])
            assert following > at, f"pull of {topic}-{queue_id} at {at} does not advance: {answer.ext}"
            at = following
        return found

    def read_topic(self, topic: str, queues: int) -> dict[int, list[Record]]:
        return {queue_id: self.read_queue(topic, queue_id) for queue_id in range(queues)}


def body_crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF
