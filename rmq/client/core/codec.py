"""Compressed bodies; sysFlag says how.  Java: MessageSysFlag, CompressionType, Compressor"""

from __future__ import annotations

import zlib

from rmq.wire.record import COMPRESSED

#: bits of sysFlag; none of them means zlib, as clients before 4.9.4 wrote it
_LZ4, _ZSTD, _ZLIB, _KINDS = 0x100, 0x200, 0x300, 0x700
#: limit of a decompressed body: a frame of 16 MiB may hold gigabytes
MAX_BODY_BYTES = 64 * 1024 * 1024


def compress(body: bytes, level: int) -> tuple[bytes, int]:
    """Return a smaller body and its bits for sysFlag; the same body and 0 when it does not shrink."""
    small = zlib.compress(body, level)
    return (small, COMPRESSED | _ZLIB) if len(small) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Return the body as it was sent; a ValueError when that is not possible."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & _KINDS
    if kind in (_LZ4, _ZSTD):
        raise ValueError(f"the body is compressed with {'LZ4' if kind == _LZ4 else 'zstd'}, which is not supported")
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise ValueError(f"the body is no zlib stream: {error}") from error
    if not stream.eof:
        raise ValueError(f"the compressed body is incomplete, or longer than {MAX_BODY_BYTES} bytes")
    return plain
