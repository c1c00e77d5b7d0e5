"""All connections on a broker's HA port, and the puts that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall, IReactorTime
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.ha.acks import ReplicaWaits
from rmq.ha.master import MasterSession, MasterState, ReadableLog, SentWatermark
from rmq.ha.output import SLICE_BYTES, Output, abort, no_delay, output_for
from rmq.ha.session import Acknowledge, Action, Append, Close, CloseKind, Load, Send, SessionLimits, Term
from rmq.ha.status import ACK_LATENCY_MS, ReplicationLag, SlaveStatus
from rmq.runtime.clock import steady_ms, wall_ms
from rmq.runtime.disk.files import DiskError
from rmq.runtime.histogram import Histogram
from rmq.runtime.logs import LogThrottle, repeats
from rmq.store.messages import PutStatus, StoreError

#: connections without a first report; one more evicts the oldest of the host that has most of them
MAX_WAITING = 64

#: connections with a valid first report; more are refused
MAX_SLAVES = 64

#: between two pushes where no put waits for slaves: a frame, a write, a read and a report each cost as much as 20
#: messages, on both sides
GATHER_S = 0.005

#: refusals after which a replica needs its operator
ALARMING = frozenset({CloseKind.AHEAD, CloseKind.DIVERGED, CloseKind.TOO_FAR_BEHIND})


@attrs.define
class _Meter:
    """What is measured of one connection."""

    connected_s: float
    #: next offset at the last tick, and how many bytes were sent between the last two
    seen_offset: int = -1
    bytes_per_second: int = 0
    ack_latency_ms: float = -1.0
    #: it has acknowledged the whole log once
    caught_up: bool = False
    #: whether its lag was below haSlaveFallbehindMax at the last tick
    in_sync: bool = True


class MasterConnection(Protocol):
    """The connection of one slave, or of any other peer that dialled the port."""

    _log = Logger()
    transport: Any  # ITransport and IConsumer, which zope cannot say together

    def __init__(self, hub: MasterHub, clock: IReactorTime, number: int) -> None:
        self._hub = hub
        self._clock = clock
        self._later: IDelayedCall | None = None
        #: what comes next is read from the disk
        self._loading: Deferred[None] | None = None
        #: unique in this process: one peer may have several connections
        self.number = number
        self.host = ""
        self.addr = ""
        self.session: MasterSession
        self._output: Output

    def connectionMade(self) -> None:
        peer = self.transport.getPeer()
        self.host = str(getattr(peer, "host", peer))
        self.addr = f"{self.host}:{getattr(peer, 'port', 0)}"
        no_delay(self.transport)
        self.session = self._hub.opened(self)
        self._output = output_for(self.transport, full=self.session.pause, free=self._room_again)

    def dataReceived(self, data: bytes) -> None:
        self._perform(self.session.receive(data, steady_ms(self._clock)))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._cancel()
        self._output.stop()
        self._hub.left(self, reason.getErrorMessage())
        self._hub.lost(self)

    def tick(self) -> None:
        """To be called about once a second."""
        self._perform(self.session.tick(steady_ms(self._clock)))

    def pump(self) -> None:
        """Send what the slave lacks: one slice now, the rest in later turns of the reactor or when there is room."""
        try:
            actions = self.session.pump(steady_ms(self._clock), SLICE_BYTES)
        except (StoreError, DiskError) as error:
            self._drop_unread(error)
            return
        self._perform(actions)
        if self.session.has_more and self._later is None:
            self._later = self._clock.callLater(0, self._go_on)

    def drop(self, why: str) -> None:
        """End the connection at once; unsent bytes are lost."""
        self._cancel()
        self._output.stop()
        self._hub.left(self, why)
        abort(self.transport)

    def _go_on(self) -> None:
        self._later = None
        self.pump()

    def _room_again(self) -> None:
        self.session.resume()
        self.pump()

    def _loaded(self, _: None, loading: Deferred[None]) -> None:
        if self._loading is loading:  # else the connection has ended
            self._loading = None
            self.session.loaded()
            if self._later is None:  # not at once: a disk that is closed loads nothing, and says so at once
                self._later = self._clock.callLater(0, self._go_on)

    def _unreadable(self, failure: Failure, loading: Deferred[None]) -> None:
        if self._loading is loading:
            self._drop_unread(failure.value)

    def _drop_unread(self, error: BaseException | None) -> None:
        self._log.error(
            "slave {addr} dropped, the log cannot be read at offset {offset}: {error}",
            addr=self.addr,
            offset=self.session.next_offset,
            error=error,
        )
        self.drop(f"cannot read the log: {error}")

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(pieces):
                    self._output.send(pieces)
                case Load(offset):
                    self._loading = self._hub.load(offset)
                    self._loading.addCallback(self._loaded, self._loading).addErrback(self._unreadable, self._loading)
                case Acknowledge(offset):
                    self._hub.acknowledged(self, offset)
                case Close():
                    self._hub.refused(self, action)
                    self.drop(action.reason)
                case Append():
                    raise AssertionError("a master's session never appends")

    def _cancel(self) -> None:
        self._loading = None
        if self._later is not None:
            if self._later.active():
                self._later.cancel()
            self._later = None


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
        admits: Callable[[str], bool],
        is_source: bool,
        gather_s: float = 0.0,
        term: Term | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._term = term
        #: called when slaves hold more, or when one has come or gone
        self._changed = changed
        self._gather_s = gather_s
        self._pushed_s = 0.0
        self._commit_log = log
        self._limits = limits
        self._waits = waits
        self._admits = admits
        #: set by the first start; None on a slave: its log grows by bytes of its master
        self._sent: SentWatermark | None = None
        self._is_source = is_source
        self._throttle = LogThrottle()
        self._lag = ReplicationLag()
        self._numbers = 0
        self._connections: dict[int, MasterConnection] = {}
        self._meters: dict[int, _Meter] = {}
        self._lost: dict[int, Deferred[None]] = {}
        self._pump_later: IDelayedCall | None = None
        #: appends since the last push, and whether there was only one before it
        self._burst = 0
        self._is_single = False
        self._stopped = False
        #: dropped connections by reason, since the start
        self.refusals: Counter[CloseKind] = Counter()
        self.last_refusal = ""
        #: milliseconds from a push to its acknowledgement
        self.ack_latency_ms = Histogram(ACK_LATENCY_MS)

    # calls of the service

    def wait_for_slaves(self, next_offset: int, deadline_ms: int) -> PutStatus | Deferred[PutStatus]:
        """See `HAService.wait_for_slaves`."""
        return PutStatus.SLAVE_NOT_AVAILABLE if self._stopped else self._waits.wait(next_offset, deadline_ms)

    def appended(self) -> None:
        """
        The log has grown: push.

        With ``gather_s`` what comes so soon after the last push goes out with the next one. Without it all appends of
        one turn of the reactor go out together, which saves a frame for each of them; but where they come one by one,
        and the slaves have everything before, each goes at once.
        """
        if self._connections and self._pump_later is None and len(self._waits.acks) and not self._stopped:
            if self._gather_s:
                wait_s = max(0.0, self._pushed_s + self._gather_s - self._clock.seconds())
                self._pump_later = self._clock.callLater(wait_s, self._pump_all)
                return
            if self._is_single and all(connection.session.is_idle for connection in self._connections.values()):
                self._pump_all()
                return
            self._pump_later = self._clock.callLater(0, self._pump_all)
        self._burst += 1

    def tick(self) -> None:
        """Send heartbeats, drop silent slaves, push what is left; to be called about once a second."""
        for connection in list(self._connections.values()):
            connection.tick()
        for number, meter in self._meters.items():
            session = self._connections[number].session
            meter.bytes_per_second = session.next_offset - meter.seen_offset if meter.seen_offset >= 0 else 0
            meter.seen_offset = session.next_offset
            self._check_lag(self._connections[number], meter)
        self._pump_all()

    def drop_members(self, ids: frozenset[int]) -> None:
        """End all connections of these brokers, also those that a newer one has replaced."""
        for connection in list(self._connections.values()):
            if connection.session.broker_id in ids:
                connection.drop("it has left the SyncStateSet and has to say again what it holds")

    def stop(self) -> Deferred[None]:
        """Drop all connections and complete all pending puts; fires when the connections are lost."""
        if self._pump_later is not None:
            self._pump_all()
        self._stopped = True
        lost = list(self._lost.values())
        self._waits.stop(PutStatus.FLUSH_SLAVE_TIMEOUT)
        for connection in list(self._connections.values()):
            connection.drop("this broker is stopping")
        if not lost:
            return succeed(None)
        return DeferredList(lost).addCallback(lambda _: None)

    def start(self) -> None:
        """Serve (again); the log must be loaded."""
        if self._is_source and self._sent is None:
            self._sent = SentWatermark(self._commit_log.end_offset)
        self._lag.note(self._commit_log.end_offset, self._clock.seconds())
        self._stopped = False

    def status(self) -> tuple[SlaveStatus, ...]:
        """Return every connection, oldest first."""
        return tuple(self._status_of(connection) for connection in self._connections.values())

    @property
    def waiting_connections(self) -> int:
        """Connections without a first report."""
        return len(self._without_report())

    # calls of Twisted and of the connections

    def buildProtocol(self, addr: IAddress | None) -> MasterConnection | None:
        if self._stopped:
            return None
        host = str(getattr(addr, "host", ""))
        if not self._admits(host):
            self._log_refusal(host, Close(CloseKind.FORBIDDEN, "its address is in no network of haAllowedPeers"), host)
            return None
        self._numbers += 1
        return MasterConnection(self, self._clock, self._numbers)

    def opened(self, connection: MasterConnection) -> MasterSession:
        """Add a new connection; evict an idle one when there are too many."""
        waiting = self._without_report()
        if len(waiting) >= MAX_WAITING:
            self._evict(waiting)
        self._connections[connection.number] = connection
        self._meters[connection.number] = _Meter(self._clock.seconds())
        self._lost[connection.number] = Deferred()
        self._log.debug("{addr} connected to the HA port", addr=connection.addr)
        return MasterSession(
            self._commit_log, self._limits, now_ms=steady_ms(self._clock), sent=self._sent, term=self._term
        )

    def load(self, phy_offset: int) -> Deferred[None]:
        """See `ReadableLog.preload`."""
        return self._commit_log.preload(phy_offset)

    def acknowledged(self, connection: MasterConnection, offset: int) -> None:
        """A slave holds everything below ``offset``; reports of a connection that has left are ignored."""
        if connection.number not in self._connections:
            return
        acks = self._waits.acks
        session = connection.session
        has_joined = connection.number in acks
        if has_joined:
            self._measure(connection.number, acks.report(connection.number, offset), offset)
        elif len(acks) >= MAX_SLAVES:
            self.refused(connection, Close(CloseKind.TOO_MANY, f"there are {MAX_SLAVES} slaves already"))
            connection.drop("too many slaves")
            return
        else:
            end = self._commit_log.end_offset
            acks.join(
                connection.number,
                connection.host,
                offset,
                start_offset=session.start_offset,
                end=end,
                broker_id=session.broker_id,
            )
            self._log.info(
                "slave {addr} joined, acked {request_offset}, log end {end}, replication starts at {start_offset}",
                addr=connection.addr,
                request_offset=offset,
                start_offset=session.start_offset,
                end=end,
            )
        meter = self._meters[connection.number]
        if not meter.caught_up and offset >= self._commit_log.end_offset:
            meter.caught_up = True
            self._log.info(
                "slave {addr} caught up at offset {offset}, {seconds:.1f} s after it connected",
                addr=connection.addr,
                offset=offset,
                seconds=self._clock.seconds() - meter.connected_s,
            )
        self._changed()
        self._waits.advance()
        if session.has_more and not (has_joined and self._gather_s):
            connection.pump()

    def refused(self, connection: MasterConnection, close: Close) -> None:
        """Log why a peer is dropped, throttled."""
        if close.kind is CloseKind.SILENT and connection.session.request_offset < 0:
            self._log.debug("{addr} disconnected from the HA port without a report", addr=connection.addr)
            return
        self._log_refusal(connection.host, close, connection.addr)

    def _log_refusal(self, host: str, close: Close, addr: str) -> None:
        self.refusals[close.kind] += 1
        self.last_refusal = f"{addr}: {close.kind.value}: {close.reason}"
        suppressed = self._throttle.admit((host, close.kind), steady_ms(self._clock))
        if suppressed is None:
            return
        write = self._log.error if close.kind in ALARMING else self._log.warn
        write(
            "HA connection of {addr} dropped, {kind}: {reason}{repeats}",
            addr=addr,
            kind=close.kind.value,
            reason=close.reason,
            suppressed=suppressed,
            repeats=repeats(suppressed),
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
            "slave {addr} disconnected, acked {offset}, replication lag {lag} bytes: {why}; {slaves} slaves connected",
            addr=connection.addr,
            offset=connection.session.ack_offset,
            lag=self._commit_log.end_offset - connection.session.ack_offset,
            why=why,
            slaves=len(acks),
        )
        if acks.is_short:
            self._waits.fail_all(PutStatus.SLAVE_NOT_AVAILABLE)
        self._changed()

    def lost(self, connection: MasterConnection) -> None:
        """The transport of a connection is closed for good."""
        done = self._lost.pop(connection.number, None)
        if done is not None:
            done.callback(None)

    def _pump_all(self) -> None:
        self._cancel_pump()
        self._is_single = self._burst <= 1
        self._burst = 0
        self._pushed_s = self._clock.seconds()
        self._lag.note(self._commit_log.end_offset, self._pushed_s)
        for connection in list(self._connections.values()):
            connection.pump()

    def _measure(self, number: int, before: int, offset: int) -> None:
        """Note how long an acknowledgement took."""
        meter, now_s = self._meters[number], self._clock.seconds()
        waited_s = self._lag.waited_s(before, offset, meter.connected_s, now_s)
        if waited_s is not None:
            meter.ack_latency_ms = waited_s * 1000
            self.ack_latency_ms.observe(meter.ack_latency_ms)

    def _cancel_pump(self) -> None:
        if self._pump_later is not None:
            if self._pump_later.active():
                self._pump_later.cancel()
            self._pump_later = None

    def _check_lag(self, connection: MasterConnection, meter: _Meter) -> None:
        """Log when the lag of a slave exceeds haSlaveFallbehindMax and when it is below it again."""
        end = self._commit_log.end_offset
        if connection.number not in self._waits.acks:
            return
        in_sync = self._waits.acks.is_in_sync(connection.number, end)
        if in_sync != meter.in_sync:
            meter.in_sync = in_sync
            write = self._log.info if in_sync else self._log.warn
            write(
                "slave {addr} is {state} sync, replication lag {lag} bytes (haSlaveFallbehindMax={limit}): sends {do}",
                addr=connection.addr,
                state="in" if in_sync else "out of",
                lag=end - connection.session.ack_offset,
                limit=self._waits.acks.max_lag_bytes,
                do="wait for it again" if in_sync else "do not wait for it",
            )

    def _without_report(self) -> list[MasterConnection]:
        return [c for c in self._connections.values() if c.session.state is MasterState.WAIT_FIRST]

    def _evict(self, waiting: list[MasterConnection]) -> None:
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
        age_s = self._lag.age_s(max(session.ack_offset, session.start_offset), self._clock.seconds())
        return SlaveStatus(
            addr=connection.addr,
            state=session.state,
            connected_ms=wall_ms(self._clock, int(meter.connected_s * 1000)),
            request_offset=session.request_offset,
            ack_offset=session.ack_offset,
            next_offset=session.next_offset,
            lag_bytes=end - session.ack_offset if served else -1,
            lag_seconds=age_s if served else -1.0,
            in_sync=self._waits.acks.is_in_sync(connection.number, end),
            sent_bytes=session.next_offset - session.start_offset if served else 0,
            bytes_per_second=meter.bytes_per_second,
            ack_latency_ms=meter.ack_latency_ms,
        )
