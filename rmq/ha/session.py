"""What both replication sessions share: their limits, what they want their shell to do, and why they end."""

from __future__ import annotations

import enum

import attrs


@attrs.frozen(kw_only=True)
class SessionLimits:
    """Sizes in bytes and times in milliseconds of a replication connection, both sides."""

    segment_bytes: int
    batch_bytes: int = 32768
    heartbeat_ms: int = 5000
    silence_ms: int = 20000


@attrs.frozen(kw_only=True)
class Term:
    """A controller elected the master: in which epoch, and what id it gave this broker."""

    epoch: int
    broker_id: int


class CloseKind(enum.Enum):
    """Why a session ends; the text beside it names offsets and limits."""

    #: the peer sent what no replication peer sends
    PROTOCOL_ERROR = "protocol error"
    #: the slave holds more than its master: its history is another one
    AHEAD = "slave ahead of its master"
    #: the slave holds bytes that this master never sent: once it was ahead, and the master has grown past it
    DIVERGED = "slave with another history"
    #: the slave wants bytes that the master has deleted
    TOO_FAR_BEHIND = "slave too far behind"
    #: the master's next byte is not the slave's next byte
    MISMATCH = "offset mismatch"
    #: the slave follows the master of another epoch, or none that a controller elected
    OTHER_TERM = "slave of another epoch"
    #: the address is not in haAllowedPeers
    FORBIDDEN = "address not allowed"
    #: there is no room for one more
    TOO_MANY = "too many connections"
    #: nothing was read for too long
    SILENT = "silence"


#: bytes that do not change any more
Piece = bytes | memoryview


@attrs.frozen
class Send:
    """Write ``pieces``, none of them empty, one behind the other. They begin and end with whole frames."""

    pieces: tuple[Piece, ...]


@attrs.frozen
class Load:
    """Read the log at ``phy_offset`` into memory, then call :meth:`MasterSession.loaded`; nothing is sent before."""

    phy_offset: int


@attrs.frozen
class Append:
    """Append ``data`` to the log, whose end must be ``phy_offset``. If that fails the connection must go."""

    phy_offset: int
    data: bytes


@attrs.frozen
class Acknowledge:
    """The slave holds everything below ``offset``, which is not beyond the master's end."""

    offset: int


@attrs.frozen
class Close:
    """Drop the connection at once; no action follows."""

    kind: CloseKind
    reason: str


Action = Send | Load | Append | Acknowledge | Close
