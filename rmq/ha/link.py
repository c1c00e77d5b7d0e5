"""A slave's way to its master: dial, follow, and dial again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IAddress, IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import ClientFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.ha.alarms import Alarms
from rmq.ha.backoff import Backoff
from rmq.ha.protocols import SlaveConnection
from rmq.ha.session import Close, SessionLimits
from rmq.ha.slave import SlaveSession
from rmq.ha.status import LinkStatus
from rmq.runtime.clock import steady_ms, wall_ms

if TYPE_CHECKING:
    from twisted.application.internet import ClientService


class AppendableLog(Protocol):
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

    def append_raw(self, phy_offset: int, data: bytes) -> None:
        """
        Append bytes of the master's log at ``phy_offset``.

        That must be the end of the log, a place between `resume_offset` and the end (what is there is compared) or,
        when the log is empty, the start of a segment; ``data`` does not cross the end
        of a segment. Raises StoreError or DiskError.
        """


class SlaveLink:
    """
    Follow the master at one address at a time.

    Every end of a connection, whatever its reason, is answered by a pause and another attempt: 5 s at first, doubling
    to a minute. A connection on which the master sent a frame that fits sets the pause back.

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
    ) -> None:
        self._clock = clock
        self._commit_log = log
        self._limits = limits
        self._dial = dial
        self._backoff = backoff
        self._appended = appended
        self._ack_after_flush = ack_after_flush
        self._alarms = Alarms()
        self._client: ClientService | None = None
        self._attempts: _Attempts | None = None
        self._connection: SlaveConnection | None = None
        self._connected_ms = 0
        #: where the log ended when the present connection began, and up to where the master's bytes agree with it
        self._log_end = self._agreed_until = 0
        self._ending: list[Deferred[None]] = []
        self._last_error = ""
        self._seen_bytes = 0
        self._bytes_per_second = 0
        #: connections that were ended because of what the master sent
        self.refused_masters = 0
        self.master_addr: str | None = None

    def set_master(self, addr: str | None) -> None:
        """
        Follow ``addr`` ("host:port") from now on, nobody if None; the present master changes nothing.

        Raises ValueError for what is no address, and goes on as before.
        """
        if addr == self.master_addr:
            return
        target = None if addr is None else parse_addr(addr)
        self._log.info("master for replication: {addr}, before: {before}", addr=addr, before=self.master_addr)
        self._hang_up()
        self.master_addr = addr
        if target is not None:
            self._backoff.healthy()
            self._attempts = _Attempts(self, self._clock, self._dial(*target))
            # Brings automat, 20 ms of a start; a master never dials.
            from twisted.application.internet import ClientService

            self._client = ClientService(self._attempts, self._attempts, retryPolicy=self._pause_s, clock=self._clock)
            self._client.startService()

    def stop(self) -> Deferred[None]:
        """Hang up; fires when all connections and attempts are gone."""
        self._hang_up()
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
        """Return how it stands."""
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
        """True while a connection stands on which the master has sent, and this log holds, all up to the old end."""
        connection = self._connection
        return connection is not None and connection.session.frames > 0 and self._agreed_until >= self._log_end

    # what the connection calls

    def append(self, phy_offset: int, data: bytes) -> None:
        """Append to the log and tell those who follow this broker."""
        self._commit_log.append_raw(phy_offset, data)
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
        self._connected_ms = at_ms
        self._seen_bytes = 0
        flushed = None
        if self._ack_after_flush:
            self._commit_log.flush_soon()
            flushed = self._commit_log.flushed_offset
        self._log.info("connected to master {addr}, asking for {offset}", addr=self.master_addr, offset=resume_offset)
        return SlaveSession(
            self._limits,
            end_offset=resume_offset,
            log_end=self._commit_log.end_offset,
            now_ms=at_ms,
            flushed=flushed,
        )

    def received(self, connection: SlaveConnection) -> None:
        """Something came in; a frame that fits is what health means."""
        if connection is self._connection and connection.session.frames:
            self._backoff.healthy()

    def refused(self, close: Close) -> None:
        """The session ends itself."""
        self.refused_masters += 1
        self._complain(close.kind, f"{close.kind.value}: {close.reason}")

    def turned_away(self, why: str) -> None:
        """The master hung up before it sent anything."""
        self._complain(
            "turned away",
            f"the master hung up before it sent a frame ({why}): either it refuses this slave, then its log says why, "
            "or only one of the two has haTlsEnable=true",
        )

    def append_failed(self, phy_offset: int, error: Exception) -> None:
        """The log did not take what the master sent."""
        self._complain("append", f"bytes at offset {phy_offset} cannot be appended: {error}")

    def attempt_failed(self, failure: Failure) -> None:
        """The master could not be reached."""
        self._complain("dial", f"no connection: {failure.getErrorMessage()}")

    def closed(self, connection: SlaveConnection, why: str) -> None:
        """A connection is gone."""
        if connection is not self._connection:
            return
        self._connection = None
        if not self._last_error:
            self._last_error = why
        self._log.info("connection to master {addr} is gone: {why}", addr=self.master_addr, why=why)

    def _complain(self, key: object, what: str) -> None:
        self._last_error = what
        withheld = self._alarms.admit(key, steady_ms(self._clock))
        if withheld is not None:
            self._log.error(
                "replication from master {addr} at offset {offset}: {what} (the same {withheld} times unsaid before)",
                addr=self.master_addr,
                offset=self._commit_log.end_offset,
                what=what,
                withheld=withheld,
            )

    def _pause_s(self, _: float) -> float:
        return self._backoff.next_pause_s()

    def _hang_up(self) -> None:
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


@implementer(IStreamClientEndpoint)
class _Attempts(ClientFactory):
    """
    Endpoint and factory of one master address.

    A ClientService keeps its failures to itself, so they are told to the link on their way through. Once the address
    has changed, whatever is still under way leads to nothing.
    """

    noisy = False

    def __init__(self, link: SlaveLink, clock: IReactorTime, endpoint: IStreamClientEndpoint) -> None:
        self._link = link
        self._clock = clock
        self._endpoint = endpoint
        #: False when the link follows another address
        self.current = True

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        connecting: Deferred[IProtocol] = self._endpoint.connect(protocolFactory)
        return connecting.addErrback(self._failed)

    def buildProtocol(self, addr: IAddress | None) -> SlaveConnection | None:
        if not self.current:
            return None
        return SlaveConnection(self._link, self._clock, self._link.append)

    def _failed(self, failure: Failure) -> Failure:
        if self.current:
            self._link.attempt_failed(failure)
        return failure


def parse_addr(addr: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[v6]:port"; a ValueError names what is wrong."""
    host, colon, port = addr.strip().rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"master address {addr!r} is not host:port")
    return host.strip("[]"), int(port)
