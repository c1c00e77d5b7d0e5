"""
Commands: the requests and responses that frames carry.

Two ways to write a header, JSON and binary; a response is written in the way of its request. Writing is strict (all
extFields values are strings, keys in Java's order), reading liberal, for the habits of clients in many languages:

* ``language`` may be a name, a number or unknown; ``remark`` and ``extFields`` null, empty or absent;
* extFields values may be numbers, booleans, null; headers may end in a newline, be written with single quotes or bare
  names (fastjson reads all of that), or hold bytes that are no UTF-8 (read as U+FFFD).

Java: RemotingCommand, RemotingSerializable, RocketMQSerializable
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from struct import Struct, error
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rmq.wire import fastjson
from rmq.wire.codes import MQ_VERSION, LanguageCode, SerializeType
from rmq.wire.extfields import HeaderCodec, Int32, decode_strings, header_codec
from rmq.wire.fastjson import java_string
from rmq.wire.frames import PREFIX, Frame, FrameDecoder, ProtocolError, encode_frame

RESPONSE = 1
ONEWAY = 2

#: headers beyond this size get no second, tolerant reading (it is slow)
MAX_TOLERANT_HEADER_BYTES = 256 * 1024

H = TypeVar("H", bound=msgspec.Struct)

_EMPTY: Mapping[str, str] = MappingProxyType({})
_LANGUAGE_BY_NAME = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_CODE = {int(language): language for language in LanguageCode}


class RemotingCommand:
    """
    One request or response.

    ``body`` is None when there is none; on the wire an empty one looks the same. ``serialize_type`` says how
    the header was, or will be, written. ``ext_fields`` is an empty mapping when there are none; ``has_ext_fields``
    distinguishes an empty map from no map.
    """

    __slots__ = ("_ext", "body", "code", "flag", "language", "opaque", "remark", "serialize_type", "version")

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        flag: int = 0,
        version: int = MQ_VERSION,
        language: LanguageCode | None = LanguageCode.JAVA,
        remark: str | None = None,
        ext_fields: Mapping[str, str] | bytes | None = None,
        body: bytes | None = None,
        serialize_type: int = SerializeType.JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.version = version
        self.language = language
        self.remark = remark
        self.body = body
        self.serialize_type = serialize_type
        # a JSON object as received (bytes, parsed at the first access), or strings, or nothing
        self._ext = ext_fields

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """True for a request that must never be answered."""
        return self.flag & ONEWAY != 0

    @property
    def has_ext_fields(self) -> bool:
        """False when the header has no extFields at all, not even an empty map."""
        return self._ext is not None

    @property
    def ext_fields(self) -> Mapping[str, str]:
        """All extFields as the strings that Java would see."""
        ext = self._ext
        if ext is None:
            return _EMPTY
        if isinstance(ext, bytes):
            ext = self._ext = decode_strings(ext)
        return ext

    @ext_fields.setter
    def ext_fields(self, fields: Mapping[str, str]) -> None:
        self._ext = fields

    def decode_header(self, header: type[H]) -> H:
        """Return the extFields as ``header``; a BadField names what is missing or wrong."""
        return self.read_header(header_codec(header))

    def read_header(self, codec: HeaderCodec[H]) -> H:
        """Like :meth:`decode_header`, for callers that keep the codec."""
        ext = self._ext
        if isinstance(ext, bytes):
            return codec.decode_json(ext)
        return codec.decode_map({} if ext is None else ext)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "one-way" if self.is_oneway else "request"
        size = len(self.body) if self.body else 0
        return f"<{kind} code={self.code} opaque={self.opaque} {dict(self.ext_fields)} body={size} bytes>"


class _JsonHeader(msgspec.Struct, rename={"ext_fields": "extFields"}):
    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None
    remark: str | None = None
    ext_fields: Raw = Raw(b"")


class _JsonHeaderOut(msgspec.Struct):
    """Fields in the order in which Java writes them."""

    code: int
    extFields: Mapping[str, str] | UnsetType
    flag: int
    language: str
    opaque: int
    remark: str | UnsetType
    serializeTypeCurrentRPC: str
    version: int


_JSON_DECODER = msgspec.json.Decoder(_JsonHeader, strict=False)
_JSON_ENCODER = msgspec.json.Encoder()
_NO_LANGUAGE = "OTHER"


def decode_command(frame: Frame) -> RemotingCommand:
    """Return the command of a frame; a ProtocolError has the reason if it is invalid."""
    serialize_type, header, body = frame
    if serialize_type == 0:
        command = _decode_json(header)
    elif serialize_type == 1:
        command = _decode_binary(header)
    else:
        raise ProtocolError(f"serialize type {serialize_type} is neither 0 (JSON) nor 1 (ROCKETMQ)")
    if body:
        command.body = body
    return command


#: a JSON header's request code; a quoted value is a field of that name, and in a string the quotes are escaped
_CODE = re.compile(rb'"code"\s*:\s*(\d{1,9})[\s,}]')


def likely_code(data: bytes, position: int) -> int:
    """
    Return the code of the request whose frame begins at ``position``; a hint.

    -1 for a header that is not whole or not JSON.
    """
    if len(data) - position < PREFIX.size:
        return -1
    start, header_bytes = position + PREFIX.size, PREFIX.unpack_from(data, position)[1]
    found = None
    if header_bytes < 1 << 24 and start + header_bytes <= len(data):
        found = _CODE.search(data, start, start + header_bytes)
    return int(found[1]) if found is not None else -1


def encode_command(command: RemotingCommand) -> bytes:
    """Return the whole frame of a command; a ProtocolError when it is too long."""
    ext = command.ext_fields if command.has_ext_fields else None
    language = command.language
    if command.serialize_type == 0:
        header = _encode_json(
            command.code,
            ext,
            command.flag,
            _NO_LANGUAGE if language is None else language.name,
            command.opaque,
            command.remark,
            command.version,
        )
    else:
        number = LanguageCode.OTHER if language is None else language
        header = _encode_binary(
            command.code, ext, command.flag, number, command.opaque, command.remark, command.version
        )
    return encode_frame(command.serialize_type, header, command.body or b"")


def encode_reply(
    request: RemotingCommand,
    code: int = 0,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """
    Return the whole frame of our response to ``request``, its header written as the request's was.

    The flag is exactly 1, version and language are ours. ``ext_fields`` None leaves the map out. A ProtocolError when
    the frame is too long.
    """
    if request.serialize_type == 0:
        header = _encode_json(code, ext_fields, RESPONSE, "JAVA", request.opaque, remark, MQ_VERSION)
        return encode_frame(0, header, body)
    header = _encode_binary(code, ext_fields, RESPONSE, 0, request.opaque, remark, MQ_VERSION)
    return encode_frame(1, header, body)


def decode_commands(data: bytes) -> list[RemotingCommand]:
    """Return the commands of a run of whole frames; a ProtocolError when it ends inside one. For tools and tests."""
    decoder = FrameDecoder()
    commands = [decode_command(frame) for frame in decoder.receive(data)]
    decoder.check()
    if decoder.buffered_bytes:
        raise ProtocolError(f"{decoder.buffered_bytes} bytes behind the last whole frame")
    return commands


# JSON


def _decode_json(header: bytes) -> RemotingCommand:
    try:
        decoded = _JSON_DECODER.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as first:
        decoded = _decode_json_tolerantly(header, first)
    ext: bytes | None = bytes(decoded.ext_fields)
    if ext == b"null" or not ext:
        ext = None
    elif ext[0] != 0x7B:
        raise ProtocolError(f"header: extFields is no object but {ext[:32]!r}")
    language = decoded.language
    return RemotingCommand(
        decoded.code,
        decoded.opaque,
        decoded.flag,
        decoded.version,
        _LANGUAGE_BY_NAME.get(language) if isinstance(language, str) else _language_by_number(language),
        decoded.remark,
        ext,
    )


def _language_by_number(number: int | None) -> LanguageCode | None:
    return None if number is None else _LANGUAGE_BY_CODE.get(number)


class _LooseHeader(msgspec.Struct, rename={"ext_fields": "extFields"}):
    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    language: Any = None
    remark: Any = None
    ext_fields: dict[str, Any] | None = None


def _decode_json_tolerantly(header: bytes, first: Exception) -> _JsonHeader:
    """Read a header that msgspec refused as fastjson would; fails at the first error."""
    if len(header) > MAX_TOLERANT_HEADER_BYTES:
        raise ProtocolError(f"header: {first}") from first
    try:
        loose = fastjson.decode(header, _LooseHeader)
    except fastjson.JsonError as second:
        raise ProtocolError(f"header: {second}") from second
    return _JsonHeader(
        code=loose.code,
        opaque=loose.opaque,
        flag=loose.flag,
        version=loose.version,
        language=loose.language if loose.language.__class__ in (str, int) else None,
        remark=loose.remark if isinstance(loose.remark, str) else None,
        ext_fields=Raw(b"" if loose.ext_fields is None else _JSON_ENCODER.encode(_texts(loose.ext_fields))),
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: java_string(value) for key, value in values.items()}


def _encode_json(
    code: int,
    ext: Mapping[str, str] | None,
    flag: int,
    language: str,
    opaque: int,
    remark: str | None,
    version: int,
) -> bytes:
    out = _JsonHeaderOut(
        code,
        UNSET if ext is None else ext,
        flag,
        language,
        opaque,
        UNSET if remark is None else remark,
        "JSON",
        version,
    )
    return _JSON_ENCODER.encode(out)


# binary (R1.4)
#
#   2 code, 1 language, 2 version, 4 opaque, 4 flag, 4 + n remark, 4 + m extFields
#   entries of extFields: 2 + k key, 4 + v value

_FIXED = Struct(">hBhiii")
_SIZE = Struct(">i")
_KEY_SIZE = Struct(">h")


def _decode_binary(header: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        remark, position = _text(header, _FIXED.size, remark_size, "remark")
        (ext_size,) = _SIZE.unpack_from(header, position)
        position += _SIZE.size
        if not 0 <= ext_size <= len(header) - position:
            raise ProtocolError(f"binary header: extFields length {ext_size} at {position - 4} of {len(header)}")
        ext = _decode_entries(header, position, position + ext_size) if ext_size else None
    except error as short:
        raise ProtocolError(f"binary header of {len(header)} bytes is cut short: {short}") from short
    return RemotingCommand(
        code, opaque, flag, version, _LANGUAGE_BY_CODE.get(language), remark, ext, None, SerializeType.ROCKETMQ
    )


def _decode_entries(header: bytes, position: int, end: int) -> dict[str, str]:
    """Return the entries; of equal keys the last one counts, empty strings are null and left out."""
    fields: dict[str, str] = {}
    entries = header[:end]
    while position < end:
        (size,) = _KEY_SIZE.unpack_from(entries, position)
        key, position = _text(entries, position + 2, size, "key")
        (size,) = _SIZE.unpack_from(entries, position)
        value, position = _text(entries, position + 4, size, "value")
        if key is not None and value is not None:
            fields[key] = value
    return fields


def _text(data: bytes, start: int, size: int, what: str) -> tuple[str | None, int]:
    stop = start + size
    if size < 0 or stop > len(data):
        raise ProtocolError(f"binary header: {what} length {size} at {start} of {len(data)}")
    return (data[start:stop].decode("utf-8", "replace") if size else None), stop


def _encode_binary(
    code: int,
    ext: Mapping[str, str] | None,
    flag: int,
    language: int,
    opaque: int,
    remark: str | None,
    version: int,
) -> bytes:
    # 16 bits are all there is: POP's codes wrap, as in Java
    parts: list[bytes] = []
    for key, value in (ext or {}).items():
        raw_key, raw_value = key.encode(), value.encode()
        parts += (_KEY_SIZE.pack(len(raw_key)), raw_key, _SIZE.pack(len(raw_value)), raw_value)
    entries = b"".join(parts)
    text = remark.encode() if remark else b""
    fixed = _FIXED.pack(_int16(code), language, _int16(version), opaque, flag, len(text))
    return b"".join((fixed, text, _SIZE.pack(len(entries)), entries))


def _int16(value: int) -> int:
    return (value + 0x8000 & 0xFFFF) - 0x8000
