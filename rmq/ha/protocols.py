"""
Replication connections in Twisted: bytes in, actions out, back-pressure.

What a byte means is the sessions' business, whom a connection belongs to is the hub's and the link's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IDelayedCall, IPushProducer, IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from rmq.ha.master import MasterSession
from rmq.ha.output import SLICE_BYTES, Output, output_for
from rmq.ha.session import Acknowledge, Action, Append, Close, Send
from rmq.ha.slave import SlaveSession
from rmq.runtime.clock import steady_ms
from rmq.runtime.disk import DiskError
from rmq.store.messages import StoreError

if TYPE_CHECKING:
    from rmq.ha.hub import MasterHub
    from rmq.ha.link import SlaveLink

#: a slave reads so much at once; Twisted's 64 KiB are two frames of Apache's size
READ_BYTES = 256 * 1024

CONNECTION_DONE = Failure(ConnectionDone())


class MasterConnection(Protocol):
    """One slave's connection (or that of somebody who found the port)."""

    _log = Logger()
    transport: Any  # ITransport and IConsumer, which zope cannot say together

    def __init__(self, hub: MasterHub, clock: IReactorTime, number: int) -> None:
        self._hub = hub
        self._clock = clock
        self._later: IDelayedCall | None = None
        #: tells connections of the same peer apart
        self.number = number
        self.host = ""
        self.addr = ""
        self.session: MasterSession
        self._output: Output

    def connectionMade(self) -> None:
        self.host, self.addr = peer_of(self)
        no_delay(self)
        self.session = self._hub.opened(self)
        self._output = output_for(self.transport, full=self.session.pause, free=self._room_again)

    def dataReceived(self, data: bytes) -> None:
        self._perform(self.session.receive(data, steady_ms(self._clock)))

    def connectionLost(self, reason: Failure = CONNECTION_DONE) -> None:
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
            self._log.error(
                "slave {addr} is dropped, because the log cannot be read at {offset}: {error}",
                addr=self.addr,
                offset=self.session.next_offset,
                error=error,
            )
            self.drop(f"cannot read the log: {error}")
            return
        self._perform(actions)
        if self.session.has_more and self._later is None:
            self._later = self._clock.callLater(0, self._go_on)

    def drop(self, why: str) -> None:
        """End the connection at once, whatever is unsent."""
        self._cancel()
        self._output.stop()
        self._hub.left(self, why)
        abort(self)

    def _go_on(self) -> None:
        self._later = None
        self.pump()

    def _room_again(self) -> None:
        self.session.resume()
        self.pump()

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Send(pieces):
                    self._output.send(pieces)
                case Acknowledge(offset):
                    self._hub.acknowledged(self, offset)
                case Close():
                    self._hub.refused(self, action)
                    self.drop(action.reason)
                case Append():
                    raise AssertionError("a master's session never appends")

    def _cancel(self) -> None:
        if self._later is not None:
            if self._later.active():
                self._later.cancel()
            self._later = None


@implementer(IPushProducer)
class SlaveConnection(Protocol):
    """The connection to the master."""

    transport: Any

    def __init__(self, link: SlaveLink, clock: IReactorTime, append: Callable[[int, bytes], None]) -> None:
        self._link = link
        self._clock = clock
        self._append = append
        self._open = False
        self.session: SlaveSession

    def connectionMade(self) -> None:
        self._open = True
        no_delay(self)
        if hasattr(type(self.transport), "bufferSize"):  # a socket of Twisted's, with nothing around it
            self.transport.bufferSize = READ_BYTES
        self.session = self._link.opened(self)
        self.transport.registerProducer(self, True)
        self._perform(self.session.connected(steady_ms(self._clock)))

    def dataReceived(self, data: bytes) -> None:
        if self._open:
            self._perform(self.session.receive(data, steady_ms(self._clock)))

    def connectionLost(self, reason: Failure = CONNECTION_DONE) -> None:
        if self._open and not self.session.frames:
            self._link.turned_away(reason.getErrorMessage())
        self._open = False
        self._link.closed(self, reason.getErrorMessage())

    def tick(self) -> None:
        """To be called about once a second."""
        if self._open:
            self._perform(self.session.tick(steady_ms(self._clock)))

    def synced(self, flushed: int) -> None:
        """Everything below ``flushed`` is on this slave's disk."""
        if self._open:
            self._perform(self.session.synced(flushed, steady_ms(self._clock)))

    def drop(self) -> None:
        """End the connection at once; what still arrives is not looked at."""
        self._open = False
        abort(self)

    def pauseProducing(self) -> None:
        self.session.pause()

    def resumeProducing(self) -> None:
        if self._open:
            self._perform(self.session.resume(steady_ms(self._clock)))

    def stopProducing(self) -> None:
        """Nothing is produced but in answer to the master."""

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Append(phy_offset, data):
                    try:
                        self._append(phy_offset, data)
                    except (StoreError, DiskError) as error:
                        self._link.append_failed(phy_offset, error)
                        self.drop()
                        return
                case Send(pieces):
                    self.transport.write(b"".join(pieces))
                case Close():
                    self._link.refused(action)
                    self.drop()
                case Acknowledge():
                    raise AssertionError("a slave's session has nobody to acknowledge")
        self._link.received(self)


def peer_of(protocol: MasterConnection) -> tuple[str, str]:
    """Return host and "host:port" of the other side."""
    peer = protocol.transport.getPeer()
    host = str(getattr(peer, "host", peer))
    return host, f"{host}:{getattr(peer, 'port', 0)}"


def no_delay(protocol: MasterConnection | SlaveConnection) -> None:
    """Send small frames at once, and find out about a peer whose machine is gone."""
    if ITCPTransport.providedBy(protocol.transport):
        protocol.transport.setTcpNoDelay(True)
        protocol.transport.setTcpKeepAlive(True)


def abort(protocol: MasterConnection | SlaveConnection) -> None:
    """Close without waiting for unsent bytes to leave."""
    transport = protocol.transport
    if ITCPTransport.providedBy(transport):
        transport.abortConnection()
    elif transport is not None:
        transport.loseConnection()
