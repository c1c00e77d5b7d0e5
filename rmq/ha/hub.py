"""All connections on a broker's HA port, and the puts that wait for them."""

from __future__ import annotations

from collections import Counter

import attrs
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from rmq.ha.acks import ReplicaWaits
from rmq.ha.alarms import Alarms
from rmq.ha.lag import EndMarks
from rmq.ha.master import Given, MasterSession, MasterState, ReadableLog
from rmq.ha.peers import AllowedPeers
from rmq.ha.protocols import MasterConnection
from rmq.ha.session import Close, CloseKind, SessionLimits
from rmq.ha.status import ACK_LATENCY_MS, SlaveStatus
from rmq.runtime.clock import steady_ms, wall_ms
from rmq.runtime.histogram import Histogram
from rmq.store.messages import PutStatus

#: connections without a first report; one more pushes the oldest of the host that has most of them out
MAX_WAITING = 64

#: connections with a valid first report; more are refused
MAX_SLAVES = 64

#: refusals that mean that a replica needs its operator
ALARMING = frozenset({CloseKind.AHEAD, CloseKind.DIVERGED, CloseKind.TOO_FAR_BEHIND})


@attrs.define
class _Meter:
    """What is measured of one connection."""

    connected_s: float
    #: where the last look found the transfer, and what it made since the one before
    seen_offset: int = -1
    bytes_per_second: int = 0
    ack_latency_ms: float = -1.0
    #: it has had everything once
    caught_up: bool = False
    #: near enough to be waited for when that was looked at last
    near: bool = True


class MasterHub(ServerFactory):
    """
    Serve every slave that connects; push on each append; answer waiting puts the moment they are acknowledged.

    Java: HAService, DefaultHAService, GroupTransferService
    """

    _log = Logger()
    noisy = False

    def __init__(
        self,
        clock: IReactorTime,
        log: ReadableLog,
        limits: SessionLimits,
        waits: ReplicaWaits,
        *,
        allowed: AllowedPeers,
        is_source: bool,
    ) -> None:
        self._clock = clock
        self._commit_log = log
        self._limits = limits
        self._waits = waits
        self._allowed = allowed
        #: set by the first start; a slave passes on what another broker wrote, and so cannot know what is possible
        self._given: Given | None = None
        self._is_source = is_source
        self._alarms = Alarms()
        self._marks = EndMarks()
        self._numbers = 0
        self._connections: dict[int, MasterConnection] = {}
        self._meters: dict[int, _Meter] = {}
        self._lost: dict[int, Deferred[None]] = {}
        self._pump_later: IDelayedCall | None = None
        self._deadline: IDelayedCall | None = None
        #: appends since the last push, and whether there was but one in front of that
        self._burst = 0
        self._is_single = False
        self._stopped = False
        #: dropped connections by reason, since the start
        self.refusals: Counter[CloseKind] = Counter()
        self.last_refusal = ""
        #: milliseconds from a push to its acknowledgement
        self.ack_latency_ms = Histogram(ACK_LATENCY_MS)

    # what the service calls

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """See `HAService.wait_for_slaves`."""
        if self._stopped:
            return PutStatus.SLAVE_NOT_AVAILABLE
        result = self._waits.wait(next_offset, deadline_ms)
        if isinstance(result, Deferred):
            self._arm()
        return result

    def appended(self) -> None:
        """
        The log has grown: push.

        All appends of one turn of the reactor go out together, which saves a frame for each of them. But where they
        come one by one, and the slaves have everything before, each goes at once.
        """
        if self._pump_later is None and len(self._waits.acks) and not self._stopped:
            if self._is_single and all(connection.session.is_idle for connection in self._connections.values()):
                self._pump_all()
                return
            self._pump_later = self._clock.callLater(0, self._pump_all)
        self._burst += 1

    def tick(self) -> None:
        """Heartbeats, silence, and whatever a pump may have missed; to be called about once a second."""
        for connection in list(self._connections.values()):
            connection.tick()
        for number, meter in self._meters.items():
            session = self._connections[number].session
            meter.bytes_per_second = session.next_offset - meter.seen_offset if meter.seen_offset >= 0 else 0
            meter.seen_offset = session.next_offset
            self._look_at_lag(self._connections[number], meter)
        self._pump_all()

    def stop(self) -> Deferred[None]:
        """Drop everybody, answer every waiting put; fires when all connections are lost."""
        self._stopped = True
        self._cancel_pump()
        lost = list(self._lost.values())
        self._waits.fail_all(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self._arm()
        for connection in list(self._connections.values()):
            connection.drop("this broker stops")
        if not lost:
            return succeed(None)
        return DeferredList(lost).addCallback(lambda _: None)

    def start(self) -> None:
        """Serve (again); the log must be loaded."""
        if self._is_source and self._given is None:
            self._given = Given(self._commit_log.end_offset)
        self._marks.note(self._commit_log.end_offset, self._clock.seconds())
        self._stopped = False

    def status(self) -> tuple[SlaveStatus, ...]:
        """Return every connection, oldest first."""
        return tuple(self._status_of(connection) for connection in self._connections.values())

    @property
    def waiting_connections(self) -> int:
        """Connections without a first report."""
        return len(self._without_report())

    # what Twisted and the connections call

    def buildProtocol(self, addr: IAddress | None) -> MasterConnection | None:
        if self._stopped:
            return None
        host = str(getattr(addr, "host", ""))
        if not self._allowed.admits(host):
            self._complain(host, Close(CloseKind.FORBIDDEN, "it is in no network of haAllowedPeers"), host)
            return None
        self._numbers += 1
        return MasterConnection(self, self._clock, self._numbers)

    def opened(self, connection: MasterConnection) -> MasterSession:
        """Take a new connection in, at the cost of an idle one when there are too many."""
        waiting = self._without_report()
        if len(waiting) >= MAX_WAITING:
            self._push_out(waiting)
        self._connections[connection.number] = connection
        self._meters[connection.number] = _Meter(self._clock.seconds())
        self._lost[connection.number] = Deferred()
        self._log.debug("{addr} connected to the HA port", addr=connection.addr)
        return MasterSession(self._commit_log, self._limits, now_ms=steady_ms(self._clock), given=self._given)

    def acknowledged(self, connection: MasterConnection, offset: int) -> None:
        """A slave holds everything below ``offset``; what a connection says after it has left is not heard."""
        if connection.number not in self._connections:
            return
        acks = self._waits.acks
        session = connection.session
        if connection.number in acks:
            self._measure(connection.number, acks.report(connection.number, offset), offset)
        elif len(acks) >= MAX_SLAVES:
            self.refused(connection, Close(CloseKind.TOO_MANY, f"there are {MAX_SLAVES} slaves already"))
            connection.drop("too many slaves")
            return
        else:
            end = self._commit_log.end_offset
            acks.join(connection.number, connection.host, offset, start_offset=session.start_offset, end=end)
            self._log.info(
                "slave {addr} holds the log up to {request_offset} of {end}; it is served from {start_offset} on",
                addr=connection.addr,
                request_offset=offset,
                start_offset=session.start_offset,
                end=end,
            )
        meter = self._meters[connection.number]
        if not meter.caught_up and offset >= self._commit_log.end_offset:
            meter.caught_up = True
            self._log.info(
                "slave {addr} has caught up at {offset}, {seconds:.1f} s after it connected",
                addr=connection.addr,
                offset=offset,
                seconds=self._clock.seconds() - meter.connected_s,
            )
        self._waits.advance()
        self._arm()
        connection.pump()

    def refused(self, connection: MasterConnection, close: Close) -> None:
        """Tell the operator why a peer is dropped, but not every five seconds again."""
        if close.kind is CloseKind.SILENT and connection.session.request_offset < 0:
            self._log.debug("{addr} left the HA port without a report", addr=connection.addr)
            return
        self._complain(connection.host, close, connection.addr)

    def _complain(self, host: str, close: Close, addr: str) -> None:
        self.refusals[close.kind] += 1
        self.last_refusal = f"{addr}: {close.kind.value}: {close.reason}"
        withheld = self._alarms.admit((host, close.kind), steady_ms(self._clock))
        if withheld is None:
            return
        write = self._log.error if close.kind in ALARMING else self._log.warn
        write(
            "HA connection of {addr} dropped, {kind}: {reason} (the same {withheld} times unsaid before)",
            addr=addr,
            kind=close.kind.value,
            reason=close.reason,
            withheld=withheld,
        )

    def left(self, connection: MasterConnection, why: str) -> None:
        """A connection counts no more, because it is lost or about to be. Harmless when repeated."""
        if self._connections.pop(connection.number, None) is None:
            return
        del self._meters[connection.number]
        acks = self._waits.acks
        if connection.number not in acks:
            return
        acks.leave(connection.number)
        self._log.info(
            "slave {addr} has left at offset {offset}, {lag} bytes before the end: {why}; slaves left: {slaves}",
            addr=connection.addr,
            offset=connection.session.ack_offset,
            lag=self._commit_log.end_offset - connection.session.ack_offset,
            why=why,
            slaves=len(acks),
        )
        if len(acks) < acks.need:
            self._waits.fail_all(PutStatus.SLAVE_NOT_AVAILABLE)
            self._arm()

    def lost(self, connection: MasterConnection) -> None:
        """The transport of a connection is closed for good."""
        done = self._lost.pop(connection.number, None)
        if done is not None:
            done.callback(None)

    # own timers

    def _pump_all(self) -> None:
        self._cancel_pump()
        self._is_single = self._burst <= 1
        self._burst = 0
        self._marks.note(self._commit_log.end_offset, self._clock.seconds())
        for connection in list(self._connections.values()):
            connection.pump()

    def _measure(self, number: int, before: int, offset: int) -> None:
        """Note how long an acknowledgement took."""
        meter, now_s = self._meters[number], self._clock.seconds()
        waited_s = self._marks.waited_s(before, offset, meter.connected_s, now_s)
        if waited_s is not None:
            meter.ack_latency_ms = waited_s * 1000
            self.ack_latency_ms.observe(meter.ack_latency_ms)

    def _cancel_pump(self) -> None:
        if self._pump_later is not None:
            if self._pump_later.active():
                self._pump_later.cancel()
            self._pump_later = None

    def _arm(self) -> None:
        """
        Have a timer that fires no later than the first deadline of a waiting put; none after the stop.

        It stays when nobody waits any more, and then fires in vain: the next put comes long before that.
        """
        deadline_ms = self._waits.next_deadline_ms
        if deadline_ms is None:
            if self._stopped and self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            return
        due_s = deadline_ms / 1000
        if self._deadline is not None:
            if self._deadline.getTime() <= due_s:
                return
            self._deadline.cancel()
        self._deadline = self._clock.callLater(max(0.0, due_s - self._clock.seconds()), self._expire)

    def _expire(self) -> None:
        self._deadline = None
        # A millisecond more: the timer may go off a rounding error before the deadline.
        self._waits.expire(steady_ms(self._clock) + 1)
        self._arm()

    # little things

    def _look_at_lag(self, connection: MasterConnection, meter: _Meter) -> None:
        """Say when a slave falls so far behind that a SYNC_MASTER does not wait for it, and when it is near again."""
        end = self._commit_log.end_offset
        if connection.number not in self._waits.acks:
            return
        near = self._waits.acks.is_near(connection.number, end)
        if near != meter.near:
            meter.near = near
            write = self._log.info if near else self._log.warn
            write(
                "slave {addr} is {lag} bytes behind, {limit} (haSlaveFallbehindMax): sends {do} wait for it",
                addr=connection.addr,
                lag=end - connection.session.ack_offset,
                limit="less than the limit again" if near else "too many",
                do="do" if near else "do not",
            )

    def _without_report(self) -> list[MasterConnection]:
        return [c for c in self._connections.values() if c.session.state is MasterState.WAIT_FIRST]

    def _push_out(self, waiting: list[MasterConnection]) -> None:
        busiest, _ = Counter(connection.host for connection in waiting).most_common(1)[0]
        victim = next(connection for connection in waiting if connection.host == busiest)
        self.refused(
            victim,
            Close(CloseKind.TOO_MANY, f"{MAX_WAITING} connections without a report, most of them from this host"),
        )
        victim.drop("too many connections without a report")

    def _status_of(self, connection: MasterConnection) -> SlaveStatus:
        session = connection.session
        meter = self._meters[connection.number]
        served = session.state is not MasterState.WAIT_FIRST
        end = self._commit_log.end_offset
        age_s = self._marks.age_s(max(session.ack_offset, session.start_offset), self._clock.seconds())
        return SlaveStatus(
            addr=connection.addr,
            state=session.state,
            connected_ms=wall_ms(self._clock, int(meter.connected_s * 1000)),
            request_offset=session.request_offset,
            ack_offset=session.ack_offset,
            next_offset=session.next_offset,
            lag_bytes=end - session.ack_offset if served else -1,
            lag_seconds=age_s if served else -1.0,
            in_sync=self._waits.acks.is_near(connection.number, end),
            sent_bytes=session.next_offset - session.start_offset if served else 0,
            bytes_per_second=meter.bytes_per_second,
            ack_latency_ms=meter.ack_latency_ms,
        )
