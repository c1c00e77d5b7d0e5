"""
The two byte streams of a replication connection: offsets from the slave, pieces of the commit log from the master.

No handshake, no magic, no version: a peer that connects is a slave, and the first eight bytes are its first report.
Only between our own brokers whose master a controller elects, a hello comes before it.

Java: DefaultHAConnection, DefaultHAClient (5.x), HAConnection, HAClient (4.9)
"""

from __future__ import annotations

import struct

#: slave -> master
#:
#:     0  i64  the next byte that the slave wants; it holds everything below
REPORT = struct.Struct(">q")

#: master -> slave
#:
#:     0  i64  physical offset of the first body byte
#:     8  i32  body size n; 0 is a heartbeat
#:    12  n    bytes of the commit log
TRANSFER_HEADER = struct.Struct(">qi")

#: Largest body that a slave takes. Apache's slaves hold a frame in 4 MiB, so no master can send more.
MAX_BODY_BYTES = 4 * 1024 * 1024

#: Pieces of bodies from this length on are views of what was read; shorter ones are copied, which is faster.
VIEWED_BYTES = 4096

#: Largest body that a master sends, whatever ``haTransferBatchSize`` says: well below what a slave can take.
MAX_BATCH_BYTES = 1024 * 1024


#: slave -> master, once, before the first report, where a controller elects the master
#:
#:     0  u32  epoch of the master that the slave follows, with the highest bit set: no default-mode peer can send it
#:     4  u32  the slave's id at the controller
HELLO = struct.Struct(">II")
HELLO_BIT = 0x8000_0000


class StreamError(Exception):
    """The peer sent bytes that no replication peer can send. The text names the field, its value and its place."""


def encode_report(offset: int) -> bytes:
    """Return the report "I hold everything below ``offset``"."""
    return REPORT.pack(offset)


def encode_hello(epoch: int, broker_id: int) -> bytes:
    """Return "I am broker ``broker_id`` and follow the master of ``epoch``"."""
    return HELLO.pack(HELLO_BIT | epoch, broker_id)


def decode_hello(report: int) -> tuple[int, int] | None:
    """Return (epoch, broker id) of eight bytes that were read as a report; None when they are one."""
    if report >= 0:
        return None
    epoch, broker_id = HELLO.unpack(REPORT.pack(report))
    return epoch & ~HELLO_BIT, broker_id


def encode_transfer_header(phy_offset: int, size: int) -> bytes:
    """Return the header of a frame whose body of ``size`` bytes begins at ``phy_offset``."""
    return TRANSFER_HEADER.pack(phy_offset, size)


def encode_heartbeat(phy_offset: int) -> bytes:
    """Return an empty frame that says where the next body will begin."""
    return TRANSFER_HEADER.pack(phy_offset, 0)


class ReportDecoder:
    """
    Read the offsets that a slave reports.

    All of them come out, not only the newest: an offset below its predecessor is the mark of a peer that speaks
    another dialect, and it may hide in the middle of a read.

    Java: HAConnection.ReadSocketService#processReadEvent
    """

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """Return the offsets completed by ``data``, oldest first; at most seven bytes are kept."""
        if self._rest:
            data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        if whole == REPORT.size:
            return [REPORT.unpack_from(data)[0]]
        return [offset for (offset,) in REPORT.iter_unpack(data[:whole])]


class TransferDecoder:
    """
    Cut what a master sends into headers and pieces of bodies, without ever joining a body.

    The caller asks :meth:`next_header` and :meth:`next_piece` in turn until both say that the bytes are used up:

        decoder.feed(data)
        while (header := decoder.next_header()) is not None: ...
            while piece := decoder.next_piece(): ...

    Only an incomplete header (at most 11 bytes) is kept between two calls of :meth:`feed`.

    Java: HAClient#dispatchReadRequest
    """

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        self._body_left = 0

    def feed(self, data: bytes) -> None:
        """Take ``data``; it follows the bytes that the last feed left over."""
        rest = self._data[self._position :]
        self._data = rest + data if rest else data
        self._position = 0

    @property
    def is_within_body(self) -> bool:
        """True while the rest of a body is missing."""
        return self._body_left > 0

    def next_header(self) -> tuple[int, int] | None:
        """
        Return (physical offset, body size) of the next frame, or None while it is incomplete or a body is unfinished.

        A size that no master may send raises StreamError; the decoder is then of no further use.
        """
        if self._body_left or len(self._data) - self._position < TRANSFER_HEADER.size:
            return None
        phy_offset, size = TRANSFER_HEADER.unpack_from(self._data, self._position)
        if not 0 <= size <= MAX_BODY_BYTES:
            raise StreamError(
                f"frame at offset {phy_offset} announces a body of {size} bytes, allowed are 0 to {MAX_BODY_BYTES}"
            )
        if phy_offset < 0:
            raise StreamError(f"frame with a body of {size} bytes has the negative offset {phy_offset}")
        self._position += TRANSFER_HEADER.size
        self._body_left = size
        return phy_offset, size

    def next_piece(self) -> bytes | memoryview:
        """Return the bytes of the current body that are here, many as a view; empty when there are none (left)."""
        if not self._body_left:
            return b""
        data, begin, end = self._data, self._position, self._position + self._body_left
        is_viewed = end - begin >= VIEWED_BYTES and (begin > 0 or end < len(data))
        piece = memoryview(data)[begin:end] if is_viewed else data[begin:end]
        self._position += len(piece)
        self._body_left -= len(piece)
        return piece
