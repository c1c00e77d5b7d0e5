"""What an operator may ask a replication service: plain values, and what metrics read when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from rmq.ha.master import MasterState
from rmq.ha.session import CloseKind
from rmq.runtime.histogram import Histogram

#: upper ends of the classes of acknowledgement latencies, in milliseconds
ACK_LATENCY_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3000.0)


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
    #: for how long the first of these bytes has been in the log; 0.0 without lag, -1.0 before the first report
    lag_seconds: float
    #: True when a SYNC_MASTER would wait for this slave (less behind than haSlaveFallbehindMax)
    in_sync: bool
    sent_bytes: int
    #: sent during the last full second
    bytes_per_second: int
    #: how long the newest acknowledgement of fresh bytes took, from the push; -1.0 before one
    ack_latency_ms: float


@attrs.frozen(kw_only=True)
class LinkStatus:
    """A slave's way to its master. Times are milliseconds since 1970, 0 for never on the present connection."""

    master_addr: str | None
    connected: bool
    #: when the present connection began, or 0
    connected_ms: int
    #: accepted frames of the present connection, heartbeats included
    frames: int
    last_read_ms: int
    last_write_ms: int
    #: received during the last full second
    bytes_per_second: int
    #: connections that this slave ended because of what the master sent, since the start
    refused: int
    #: why the last connection or attempt ended, empty if none did
    last_error: str


@attrs.frozen(kw_only=True)
class HAStatus:
    """
    The state of replication of one broker.

    Java: HARuntimeInfo (GET_BROKER_HA_STATUS)
    """

    is_slave: bool
    end_offset: int
    slaves: tuple[SlaveStatus, ...]
    #: connections without a first report
    waiting_connections: int
    #: connections refused since the start: ahead, too far behind, protocol errors, too many
    refused: int
    #: the same by reason
    refusals: Mapping[CloseKind, int]
    last_refusal: str
    #: puts that wait for a slave now
    pending_puts: int
    #: puts that waited in vain since the start
    timeouts: int
    #: milliseconds from the push of fresh bytes to their acknowledgement, all slaves since the start; live
    ack_latency_ms: Histogram
    link: LinkStatus | None

    @property
    def max_lag_bytes(self) -> int:
        """The lag of the slave that is behind most; 0 without slaves."""
        return max((slave.lag_bytes for slave in self.slaves), default=0)

    @property
    def in_sync_slaves(self) -> int:
        """How many slaves a SYNC_MASTER would wait for."""
        return sum(slave.in_sync for slave in self.slaves)
