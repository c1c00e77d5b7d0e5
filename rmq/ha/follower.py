"""The slave's side of replication: dial the master, follow it, and dial again."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import (
    IAddress,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.ha.output import abort, no_delay
from rmq.ha.session import Acknowledge, Action, Append, Close, Send, SessionLimits, Term
from rmq.ha.slave import SlaveSession
from rmq.ha.status import LinkStatus
from rmq.runtime.clock import steady_ms, wall_ms
from rmq.runtime.disk.files import DiskError
from rmq.runtime.logs import LogThrottle, repeats
from rmq.runtime.platform import split_addr
from rmq.store.messages import StoreError

if TYPE_CHECKING:
    from twisted.application.internet import ClientService


#: a slave reads so much at once: with Twisted's 64 KiB, two frames of Apache's size, catching up takes twice as long;
#: a block of 1 MiB would come from the kernel and go back to it each time (`_lean.keep_freed_memory`), 9 % of its CPU
READ_BYTES = 1024 * 1024 - 4096
#: the first pause between dials: a master that was restarted is back in one or two seconds
FIRST_S = 1.0
#: the longest where nothing accepts connections; Apache's slaves dial every five seconds
LONGEST_ABSENT_S = 6.0
#: the longest where connections are accepted and no valid frame follows
LONGEST_S = 60.0
#: random part of a pause, so that the slaves of one master do not all reconnect at once
JITTER = 0.2


class Backoff:
    """Pauses of 1 s, then twice as long, up to 6 s or a minute, each up to 20 % longer at random."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._failures = 0

    def reset(self) -> None:
        """The master sent a valid frame: the next pause is the first one again."""
        self._failures = 0

    def next_pause_s(self, longest_s: float) -> float:
        """Return the pause before the next attempt, in seconds, at most ``longest_s``."""
        pause_s, longest_base_s = FIRST_S * 2.0**self._failures, longest_s / (1.0 + JITTER)
        if pause_s < longest_base_s:
            self._failures += 1
        return min(pause_s, longest_base_s) * (1.0 + JITTER * self._rng.random())


class AppendableLog(typing.Protocol):
    """What a slave must know of its commit log."""

    @property
    def end_offset(self) -> int:
        """One behind the last byte; 0 when the log is empty."""

    @property
    def resume_offset(self) -> int:
        """From where the master's bytes are wanted: the end, or a little before it, to be compared."""

    @property
    def flushed_offset(self) -> int:
        """Everything before is on disk."""

    def flush_soon(self) -> None:
        """Sync without waiting for the flush interval."""

    def append_raw(self, phy_offset: int, data: bytes, *, dispatches: bool = True) -> None:
        """
        Append bytes of the master's log at ``phy_offset``; queues may wait for :meth:`dispatch_received`.

        That must be the end of the log, a place between `resume_offset` and the end (what is there is compared) or,
        when the log is empty, the start of a segment; ``data`` does not cross the end
        of a segment. Raises StoreError or DiskError.
        """

    def dispatch_received(self) -> None:
        """Put into queues and index what was appended without; harmless at any time."""


class Follower:
    """
    Follow the master at one address at a time.

    After every end of a connection, whatever its reason, comes a pause and another attempt: 1 s at first, doubling to
    6 s where nothing accepts connections, to a minute where a connection brings no valid frame. A valid frame
    resets it.

    Java: HAClient#run
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        log: AppendableLog,
        limits: SessionLimits,
        *,
        dial: Callable[[str, int], IStreamClientEndpoint],
        backoff: Backoff,
        appended: Callable[[], None],
        ack_after_flush: bool = False,
        term: Term | None = None,
    ) -> None:
        self._clock = clock
        self._commit_log = log
        self._limits = limits
        self._dial = dial
        self._backoff = backoff
        self._appended = appended
        self._ack_after_flush = ack_after_flush
        self._term = term
        self._throttle = LogThrottle()
        self._client: ClientService | None = None
        self._attempts: _Attempts | None = None
        self._connection: SlaveConnection | None = None
        self._connected_ms = 0
        #: where the log ended when the present connection began, and up to where the master's bytes agree with it
        self._log_end = self._agreed_until = 0
        self._ending: list[Deferred[None]] = []
        self._last_error = ""
        self._absent = False
        self._seen_bytes = 0
        self._bytes_per_second = 0
        #: connections that were ended because of what the master sent
        self.refused_masters = 0
        self.master_addr: str | None = None

    def set_master(self, addr: str | None) -> None:
        """
        Follow ``addr`` ("host:port") from now on, no master if None; the present master changes nothing.

        Raises ValueError for what is no address, and goes on as before.
        """
        if addr == self.master_addr:
            return
        target = None if addr is None else split_addr(addr)
        self._log.info("replication master is {addr}, was {before}", addr=addr, before=self.master_addr)
        self._disconnect()
        self.master_addr = addr
        if target is not None:
            self._backoff.reset()
            self._attempts = _Attempts(self, self._clock, self._dial(*target))
            # Brings automat, 20 ms of a start; a master never dials.
            from twisted.application.internet import ClientService

            self._client = ClientService(self._attempts, self._attempts, retryPolicy=self._pause_s, clock=self._clock)
            self._client.startService()

    def stop(self) -> Deferred[None]:
        """Disconnect; fires when all connections and attempts have ended."""
        self._disconnect()
        self.master_addr = None
        ending, self._ending = self._ending, []
        return DeferredList(ending).addCallback(lambda _: None)

    def tick(self) -> None:
        """Reports and silence; to be called about once a second."""
        if self._connection is not None:
            received = self._connection.session.received_bytes
            self._bytes_per_second, self._seen_bytes = max(0, received - self._seen_bytes), received
            self._connection.tick()

    def synced(self) -> None:
        """More of the log is on disk."""
        if self._ack_after_flush and self._connection is not None:
            self._connection.synced(self._commit_log.flushed_offset)

    def status(self) -> LinkStatus:
        """Return the state of the connection to the master."""
        connection = self._connection
        session = connection.session if connection is not None else None
        return LinkStatus(
            master_addr=self.master_addr,
            connected=session is not None,
            connected_ms=wall_ms(self._clock, self._connected_ms) if session is not None else 0,
            frames=session.frames if session is not None else 0,
            last_read_ms=wall_ms(self._clock, session.last_read_ms) if session is not None else 0,
            last_write_ms=wall_ms(self._clock, session.last_write_ms) if session is not None else 0,
            bytes_per_second=self._bytes_per_second if session is not None else 0,
            refused=self.refused_masters,
            last_error=self._last_error,
        )

    @property
    def agrees(self) -> bool:
        """True while connected to a master whose bytes agreed with this log up to the end it had at the connect."""
        connection = self._connection
        return connection is not None and connection.session.frames > 0 and self._agreed_until >= self._log_end

    # what the connection calls

    def append(self, phy_offset: int, data: bytes) -> None:
        """Append to the log and notify this broker's own slaves."""
        if phy_offset > self._commit_log.end_offset == 0:
            self._log.warn(
                "the log of this slave begins at offset {offset}: what master {addr} has before that is not here. "
                "Do not promote this slave while another one has more. To have all of it, start this slave with a "
                "copy of the master's store",
                offset=phy_offset,
                addr=self.master_addr,
            )
        self._commit_log.append_raw(phy_offset, data, dispatches=False)
        self._agreed_until = phy_offset + len(data)
        if self._ack_after_flush:
            self._commit_log.flush_soon()
        self._appended()

    def opened(self, connection: SlaveConnection) -> SlaveSession:
        """Begin a session from the log's own end."""
        at_ms = steady_ms(self._clock)
        resume_offset = self._agreed_until = self._commit_log.resume_offset
        self._log_end = self._commit_log.end_offset
        self._connection = connection
        self._last_error = ""
        self._absent = False
        self._connected_ms = at_ms
        self._seen_bytes = 0
        flushed = None
        if self._ack_after_flush:
            self._commit_log.flush_soon()
            flushed = self._commit_log.flushed_offset
        self._log.info(
            "connected to master {addr}, replication starts at offset {offset}",
            addr=self.master_addr,
            offset=resume_offset,
        )
        return SlaveSession(
            self._limits,
            end_offset=resume_offset,
            log_end=self._commit_log.end_offset,
            now_ms=at_ms,
            flushed=flushed,
            term=self._term,
        )

    def received(self, connection: SlaveConnection) -> None:
        """Bytes came in; a valid frame resets the pause."""
        if connection is self._connection and connection.session.frames:
            self._backoff.reset()

    def answered(self) -> None:
        """What came in is in the log and reported: only now queues and index, for which no producer waits."""
        self._commit_log.dispatch_received()

    def refused(self, close: Close) -> None:
        """The session ends itself."""
        self.refused_masters += 1
        self._log_problem(close.kind, f"{close.kind.value}: {close.reason}")

    def rejected(self, why: str) -> None:
        """The master closed the connection before it sent a frame."""
        self._log_problem(
            "rejected",
            f"the master closed the connection before it sent a frame ({why}): it refuses this slave (its log says "
            "why), or only one of the two has haTlsEnable=true",
        )

    def append_failed(self, phy_offset: int, error: Exception) -> None:
        """The log did not take what the master sent."""
        self._log_problem("append", f"bytes at offset {phy_offset} cannot be appended: {error}")

    def no_master(self) -> None:
        """Nobody has named a master for a while."""
        self._last_error = "no NameServer names a master of this brokerName, and haMasterAddress is not set"
        self._log.error(
            "nothing is replicated: {error}. Is brokerName that of the master, and is the master running?",
            error=self._last_error,
        )

    def attempt_failed(self, failure: Failure) -> None:
        """The master could not be reached."""
        self._absent = True
        self._log_problem("dial", f"no connection: {failure.getErrorMessage()}")

    def closed(self, connection: SlaveConnection, why: str) -> None:
        """A connection is lost."""
        if connection is not self._connection:
            return
        self._connection = None
        if not self._last_error:
            self._last_error = why
        self._log.info("connection to master {addr} lost: {why}", addr=self.master_addr, why=why)

    def _log_problem(self, key: object, what: str) -> None:
        self._last_error = what
        suppressed = self._throttle.admit(key, steady_ms(self._clock))
        if suppressed is not None:
            self._log.error(
                "replication from master {addr} at offset {offset}: {what}{repeats}",
                addr=self.master_addr,
                offset=self._commit_log.end_offset,
                what=what,
                suppressed=suppressed,
                repeats=repeats(suppressed),
            )

    def _pause_s(self, _: float) -> float:
        return self._backoff.next_pause_s(LONGEST_ABSENT_S if self._absent else LONGEST_S)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        client, self._client = self._client, None
        if self._attempts is not None:
            self._attempts.current = False
            self._attempts = None
        if connection is not None:
            connection.drop()
        if client is not None:
            ended = client.stopService()
            self._ending = [d for d in self._ending if not d.called]
            self._ending.append(ended)


@implementer(IPushProducer)
class SlaveConnection(Protocol):
    """The connection to the master."""

    transport: Any

    def __init__(self, follower: Follower, clock: IReactorTime, append: Callable[[int, bytes], None]) -> None:
        self._follower = follower
        self._clock = clock
        self._append = append
        self._open = False
        self.session: SlaveSession

    def connectionMade(self) -> None:
        self._open = True
        no_delay(self.transport)
        if hasattr(type(self.transport), "bufferSize"):  # a socket of Twisted's, with nothing around it
            self.transport.bufferSize = READ_BYTES
        self.session = self._follower.opened(self)
        self.transport.registerProducer(self, True)
        self._perform(self.session.connected(steady_ms(self._clock)))

    def dataReceived(self, data: bytes) -> None:
        if self._open:
            self._perform(self.session.receive(data, steady_ms(self._clock)))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._open and not self.session.frames:
            self._follower.rejected(reason.getErrorMessage())
        self._open = False
        self._follower.closed(self, reason.getErrorMessage())

    def tick(self) -> None:
        """To be called about once a second."""
        if self._open:
            self._perform(self.session.tick(steady_ms(self._clock)))

    def synced(self, flushed: int) -> None:
        """Everything below ``flushed`` is on this slave's disk."""
        if self._open:
            self._perform(self.session.synced(flushed, steady_ms(self._clock)))

    def drop(self) -> None:
        """End the connection at once; bytes that still arrive are ignored."""
        self._open = False
        abort(self.transport)

    def pauseProducing(self) -> None:
        self.session.pause()

    def resumeProducing(self) -> None:
        if self._open:
            self._perform(self.session.resume(steady_ms(self._clock)))

    def stopProducing(self) -> None:
        """Nothing is produced but in answer to the master."""

    def _perform(self, actions: Sequence[Action]) -> None:
        try:
            self._perform_all(actions)
        finally:
            self._follower.answered()

    def _perform_all(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Append(phy_offset, data):
                    try:
                        self._append(phy_offset, data)
                    except (StoreError, DiskError) as error:
                        self._follower.append_failed(phy_offset, error)
                        self.drop()
                        return
                case Send(pieces):
                    self.transport.write(b"".join(pieces))
                case Close():
                    self._follower.refused(action)
                    self.drop()
                case Acknowledge():
                    raise AssertionError("a slave's session never acknowledges")
        self._follower.received(self)


@implementer(IStreamClientEndpoint)
class _Attempts(ClientFactory):
    """
    Endpoint and factory of one master address.

    A ClientService does not report its failures, so they are reported to the follower on their way through. Once the
    address has changed, attempts in progress are ignored.
    """

    noisy = False

    def __init__(self, follower: Follower, clock: IReactorTime, endpoint: IStreamClientEndpoint) -> None:
        self._follower = follower
        self._clock = clock
        self._endpoint = endpoint
        self._addr = follower.master_addr
        #: False when another address is followed
        self.current = True

    def __str__(self) -> str:
        """ClientService logs it: "Scheduling retry 1 to connect 192.0.2.1:10912 in ..."."""
        return f"{self._addr}"

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        connecting: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connecting.addErrback(self._failed)

    def buildProtocol(self, addr: IAddress | None) -> SlaveConnection | None:
        if not self.current:
            return None
        return SlaveConnection(self._follower, self._clock, self._follower.append)

    def _failed(self, failure: Failure) -> Failure:
        if self.current:
            self._follower.attempt_failed(failure)
        return failure
