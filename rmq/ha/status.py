"""What an operator may ask a replication service."""

from __future__ import annotations

import attrs

from rmq.ha.master import MasterState


@attrs.frozen(kw_only=True)
class SlaveStatus:
    """One connection on the HA port of a master. Offsets are -1 before the first report."""

    addr: str
    state: MasterState
    connected_ms: int
    request_offset: int
    ack_offset: int
    next_offset: int
    #: bytes between the log's end and the newest acknowledgement, -1 before it
    lag_bytes: int
    sent_bytes: int


@attrs.frozen(kw_only=True)
class LinkStatus:
    """A slave's way to its master."""

    master_addr: str | None
    connected: bool
    #: when the present connection began, or 0
    connected_ms: int
    #: accepted frames of the present connection, heartbeats included
    frames: int
    #: why the last connection or attempt ended, empty if none did
    last_error: str


@attrs.frozen(kw_only=True)
class HAStatus:
    """
    The state of replication of one broker.

    Java: HARuntimeInfo (GET_BROKER_HA_STATUS)
    """

    end_offset: int
    slaves: tuple[SlaveStatus, ...]
    #: connections without a first report
    waiting_connections: int
    #: connections refused since the start: ahead, too far behind, protocol errors, too many
    refused: int
    last_refusal: str
    #: puts that wait for a slave now
    pending_puts: int
    #: puts that waited in vain since the start
    timeouts: int
    link: LinkStatus | None
