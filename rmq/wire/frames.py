"""
Frames: the form of commands on a TCP stream.

::

    4 bytes   L, the number of bytes that follow, at most 16 MiB - 4
    1 byte    how the header is written: 0 JSON, 1 ROCKETMQ (binary)
    3 bytes   H, the length of the header
    H bytes   header
    L-4-H     body

Java: NettyDecoder, NettyEncoder
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

#: the longest frame in bytes, its own length field included; neither accepted nor sent beyond. Java: frameMaxLength
MAX_FRAME_BYTES = 16 * 1024 * 1024

#: pieces of a frame below this size are not kept one by one
SMALL_BYTES = 4096

#: length of the rest, then serialize type and header length in one word
PREFIX = Struct(">iI")
_LENGTH = Struct(">i")
_unpack_prefix = PREFIX.unpack_from
_HEADER_MASK = 0xFFFFFF


class ProtocolError(Exception):
    """The peer violated the protocol; its connection must be closed."""


class Frame(NamedTuple):
    """One frame, taken apart but not understood. ``body`` is empty when there is none."""

    serialize_type: int
    header: bytes
    body: bytes


def whole_frame(data: bytes, position: int) -> tuple[Frame, int] | None:
    """Return the frame that begins at ``position`` and where it ends; None when it is not whole, or no frame."""
    if len(data) - position < 8:
        return None
    length, word = _unpack_prefix(data, position)
    start, stop = position + 8, position + 4 + length
    middle = start + (word & _HEADER_MASK)
    if not start <= middle <= stop <= len(data):
        return None
    return Frame(word >> 24, data[start:middle], data[middle:stop]), stop


class FrameDecoder:
    """
    Cut a stream into frames; linear in the size of the stream, whatever the sizes of its pieces.

    At most one unfinished frame (``max_frame_bytes``) is kept. A complete frame is never delayed by later bytes:
    :meth:`receive` raises for a bad frame only after it has returned all frames before it.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_length = max_frame_bytes - _LENGTH.size
        #: the unfinished frame, in the pieces that it came in; small ones are gathered in the last, a bytearray
        self._pieces: list[bytes | bytearray] = []
        self._kept = 0
        self._need = _LENGTH.size
        self._broken: ProtocolError | None = None
        #: changes with every unfinished frame: distinguishes one slow frame from many frames
        self.unfinished = 0

    @property
    def buffered_bytes(self) -> int:
        """How many bytes of an unfinished frame are waiting for their rest."""
        return self._kept

    def take_back(self, data: bytes) -> bytes | None:
        """
        Return ``data`` behind the unfinished frame that is kept, if that completes it, and keep nothing.

        None when it does not, or the stream is broken; then nothing has changed. For who can do something with whole
        frames before they are cut; the rest goes to :meth:`receive`.
        """
        if self._broken is not None:
            return None
        if not self._kept:
            return data
        if self._kept + len(data) < self._need:
            return None
        return self._with_pieces(data)

    def receive(self, data: bytes) -> list[Frame]:
        """
        Return the frames that ``data`` completes, in order.

        Raises ProtocolError, naming the bad length, when the stream is invalid and no valid frame came before;
        otherwise the error is raised by the next call.
        """
        if self._broken is not None:
            raise self._broken
        if self._kept:
            if self._kept + len(data) < self._need:
                self._keep(data)
                return []
            data = self._with_pieces(data)
        frames: list[Frame] = []
        position = 0
        try:
            position = self._cut(data, frames)
        except ProtocolError as error:
            self._broken = error
            if not frames:
                raise
            return frames
        if position < len(data):
            self._keep(data[position:])
            self.unfinished += 1
        return frames

    def _keep(self, data: bytes) -> None:
        """Keep a piece of the unfinished frame; a large one as it is, for every copy of one costs."""
        pieces = self._pieces
        if len(data) >= SMALL_BYTES:
            pieces.append(data)
        elif pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        self._kept += len(data)

    def _with_pieces(self, data: bytes) -> bytes:
        """Return what was kept and ``data`` behind it, and keep nothing."""
        pieces = self._pieces
        pieces.append(data)
        whole = b"".join(pieces)
        pieces.clear()
        self._kept = 0
        return whole

    def check(self) -> None:
        """Raise the ProtocolError that :meth:`receive` kept for its next call, if any."""
        if self._broken is not None:
            raise self._broken

    def _cut(self, data: bytes, frames: list[Frame]) -> int:
        """Append the whole frames of ``data`` to ``frames``; return where the unfinished rest begins."""
        position, end, max_length = 0, len(data), self._max_length
        while end - position >= 8:
            length, word = _unpack_prefix(data, position)
            header_length = word & _HEADER_MASK
            if not 4 <= length <= max_length:
                raise _bad_length(length, max_length)
            if header_length > length - 4:
                raise ProtocolError(f"header length {header_length} exceeds its frame of length {length}")
            stop = position + 4 + length
            if stop > end:
                self._need = 4 + length
                return position
            start = position + 8
            middle = start + header_length
            frames.append(Frame(word >> 24, data[start:middle], data[middle:stop]))
            position = stop
        self._need = 8
        if end - position >= 4:
            (length,) = _LENGTH.unpack_from(data, position)
            if not 4 <= length <= max_length:
                raise _bad_length(length, max_length)
        elif end - position > 0:
            self._need = 4
        return position


def _bad_length(length: int, most: int) -> ProtocolError:
    return ProtocolError(f"frame length {length} is outside 4..{most}")


def encode_frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return the frame of a header and a body; a ProtocolError when it would exceed MAX_FRAME_BYTES."""
    length = 4 + len(header) + len(body)
    if length > MAX_FRAME_BYTES - 4:
        raise ProtocolError(f"a frame of {length + 4} bytes exceeds the limit of {MAX_FRAME_BYTES} bytes")
    return PREFIX.pack(length, serialize_type << 24 | len(header)) + header + body
