"""The state of replication as plain values, for metrics, pages and commands, and the lag in time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import attrs

from rmq.ha.master import MasterState
from rmq.ha.session import CloseKind
from rmq.runtime.histogram import Histogram

#: upper ends of the classes of acknowledgement latencies, in milliseconds
ACK_LATENCY_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 3000.0)


#: places of the log whose time is remembered; then they are thinned out
MAX_MARKS = 1024
#: of marks that are older than so many times their distance one is enough; keeps about 700 of a month
COARSENESS = 32


class ReplicationLag:
    """
    When the end of the log was where. Times are seconds of one clock, offsets physical.

    A mark is made at each push and each second, so answers are right to a second while the log rests, to a turn of the
    reactor while it grows, and to some percent for what is long ago.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, end_offset: int, now_s: float) -> None:
        """Everything below ``end_offset`` is there now."""
        offsets = self._offsets
        if offsets and end_offset <= offsets[-1]:
            if end_offset == offsets[-1]:
                return
            # A shorter log than before: it was replaced, and what is known of the old one means nothing.
            offsets.clear()
            self._times.clear()
        offsets.append(end_offset)
        self._times.append(now_s)
        if len(offsets) > MAX_MARKS:
            self._thin_out(now_s)

    def _thin_out(self, now_s: float) -> None:
        """Keep the newest mark and, going back, those whose distance from the one kept before is worth their age."""
        kept = [len(self._times) - 1]
        for at in range(len(self._times) - 2, -1, -1):
            time_s = self._times[at]
            if (self._times[kept[-1]] - time_s) * COARSENESS >= now_s - time_s:
                kept.append(at)
        del kept[MAX_MARKS // 4 * 3 :]
        kept.reverse()
        self._offsets, self._times = [self._offsets[at] for at in kept], [self._times[at] for at in kept]

    def age_s(self, offset: int, now_s: float) -> float:
        """Return for how long the byte at ``offset`` has been there; 0 when there is none."""
        at = bisect_right(self._offsets, offset)
        return max(0.0, now_s - self._times[at]) if at < len(self._offsets) else 0.0

    def waited_s(self, before: int, offset: int, since_s: float, now_s: float) -> float | None:
        """
        Return how long the first bytes between two acknowledgements have waited for the second one.

        None when no mark lies between them, or one not after ``since_s``: that is catching up, not waiting.
        """
        at = bisect_right(self._offsets, before)
        if at == len(self._offsets) or self._offsets[at] > offset or self._times[at] <= since_s:
            return None
        return max(0.0, now_s - self._times[at])


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
    """A slave's connection to its master. Times are milliseconds since 1970, 0 for never on the present connection."""

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
    #: replica timeouts: puts that were answered with FLUSH_SLAVE_TIMEOUT since the start
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
