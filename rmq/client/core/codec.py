"""Compressed bodies; sysFlag says how.  Java: MessageSysFlag, CompressionType, CompressorFactory"""

from __future__ import annotations

import enum
import zlib
from importlib import import_module
from typing import Any

from rmq.errors import ConfigurationError
from rmq.wire.record import COMPRESSED


class Compression(enum.Enum):
    """How bodies are compressed; the value is the bits of sysFlag.  Java: CompressionType"""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


#: what is neither LZ4 nor zstd is zlib: no bits at all are those of clients before 4.9.4
_KINDS = 0x700
#: limit of a decompressed body: a frame of 16 MiB may hold gigabytes
MAX_BODY_BYTES = 64 * 1024 * 1024
#: zstd bytes that are read at once: they may become 256 times 128 KiB
_ZSTD_STEP = 1024


def check_installed(kind: Compression) -> None:
    """Raise a ConfigurationError, which names the extra, when bodies of this kind can be neither read nor written."""
    if kind is Compression.LZ4:
        _module("lz4.frame", "lz4")
    elif kind is Compression.ZSTD:
        _module("zstandard", "zstandard")


def compress(body: bytes, level: int, kind: Compression = Compression.ZLIB) -> tuple[bytes, int]:
    """Return a smaller body and its bits for sysFlag; the same body and 0 when it does not shrink. LZ4 has no level."""
    if kind is Compression.LZ4:
        # net.jpountz reads no frames whose blocks depend on each other
        small: bytes = _module("lz4.frame", "lz4").compress(body, block_linked=False)
    elif kind is Compression.ZSTD:
        small = _module("zstandard", "zstandard").ZstdCompressor(level=level).compress(body)
    else:
        small = zlib.compress(body, level)
    return (small, COMPRESSED | kind.value) if len(small) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; a ValueError when that is not possible."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & _KINDS
    stream: Any
    failure: type[Exception]
    if kind == Compression.LZ4.value:
        name, module = "LZ4", _module("lz4.frame", "lz4")
        stream, failure = module.LZ4FrameDecompressor(), RuntimeError
    elif kind == Compression.ZSTD.value:
        name, module = "zstd", _module("zstandard", "zstandard")
        stream, failure = _ZstdStream(module), module.ZstdError
    else:
        name, stream, failure = "zlib", zlib.decompressobj(), zlib.error
    try:
        plain: bytes = stream.decompress(body, MAX_BODY_BYTES)
    except failure as error:
        raise ValueError(f"the body is no {name} stream: {error}") from error
    if not stream.eof:
        raise ValueError(f"the compressed body is incomplete, or longer than {MAX_BODY_BYTES} bytes")
    return plain


class _ZstdStream:
    """What zlib's stream does, for zstd: its own has no limit."""

    def __init__(self, module: Any) -> None:
        self._stream = module.ZstdDecompressor().decompressobj()
        self.eof = False

    def decompress(self, body: bytes, most: int) -> bytes:
        plain = bytearray()
        for at in range(0, len(body), _ZSTD_STEP):
            plain += self._stream.decompress(body[at : at + _ZSTD_STEP])
            self.eof = self._stream.eof and len(plain) <= most
            if self._stream.eof or len(plain) > most:
                break
        return bytes(plain)


def _module(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{name} is not installed: pip install 'txrocketmq[{extra}]'") from error
