"""
The reactor ``rmq-lean``: Twisted's epoll reactor with TCP transports that send at once and events that cost less.

Half of what a small request costs a Twisted server is Twisted's own: ``transport.write`` only queues, which takes two
``epoll_ctl`` and a turn of the reactor for each answer, and every event runs through ``callWithLogger``. Here

* :meth:`EagerWrites.write` gives bytes to the socket at once when nothing is queued before them, and leaves to the
  ordinary way whatever the socket does not take, whatever is special and every error; so the order of bytes, producers
  and ends of connections are Twisted's own, and ``connectionLost`` never runs inside ``write``;
* :meth:`LeanReactor.doPoll` calls ``doRead`` of a selectable directly when its class says ``lean = True`` and reading
  is all there is to do. The price: what a protocol logs with `twisted.python.log` while it reads carries no system
  prefix (`twisted.logger` events never did).

`tests/reactor` runs Twisted's own reactor tests against this one. It builds upon private names of Twisted, so a Twisted
without them is refused when the module is imported.

`rmq.runtime.platform.the_reactor` installs it when nobody chose a reactor; ``twistd --reactor rmq-lean`` does so too.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import socket
from collections.abc import Callable
from typing import Any

from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST, installReactor
from twisted.python import log

from rmq.runtime.tls.late import tls_later
from rmq.wire.compiled import load

try:
    with tls_later():
        from twisted.internet import tcp
        from twisted.internet.epollreactor import EPOLLIN, EPollReactor
except ImportError as error:
    raise ImportError("it needs epoll(7), which only Linux has") from error

#: errors of send(2) after which reading reports the reason: buffer full, or closed by the peer before
_TELLS_LATER = (errno.EWOULDBLOCK, errno.ENOBUFS, errno.EPIPE)
#: environment variables with which an operator configures glibc's memory allocation
_MALLOC_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
#: what `_lean.use_openssl` takes
_OPENSSL_FUNCTIONS = ("SSL_read", "SSL_write", "BIO_read", "BIO_write", "SSL_get_error", "ERR_clear_error")
#: what the compiled form asks of a TLS layer of Twisted's, and of pyOpenSSL's connection in it
_LAYER_NAMES = ("_tlsConnection", "_aggregator", "_appSendBuffer", "_lostTLSConnection", "_aborted", "_flushReceiveBIO")
_POINTER_NAMES = ("_ssl", "_into_ssl", "_from_ssl")
_PRIVATE = (
    (EPollReactor, ("_doReadOrWrite", "_disconnectSelectable")),
    (tcp.Connection, ("_aborting", "_writeDisconnecting", "_writeDisconnected", "TLS", "SEND_LIMIT")),
    (tcp.Connector, ("_makeTransport",)),
    (tcp.Port, ("_fromListeningDescriptor",)),
    (tcp.Server, ("_fromConnectedSocket",)),
)
for _owner, _names in _PRIVATE:
    for _name in _names:
        if not hasattr(_owner, _name):
            raise ImportError(f"it does not fit this version of Twisted: {_owner.__name__} has no {_name}")


def _read_broken(transport: Any) -> Any:
    """
    Read from a socket after :meth:`EagerWrites.write` got its error.

    The kernel reports an error once and afterwards an orderly close by the peer.
    """
    why = transport.__class__.doRead(transport)
    return CONNECTION_LOST if why is CONNECTION_DONE else why


def send_now(transport: Any, data: bytes) -> int:
    """Send ``data`` if the transport is in its usual state; return how many bytes the socket took."""
    if (
        data.__class__ is not bytes
        or transport._tempDataLen
        or transport.dataBuffer
        or not transport.connected
        or transport.disconnecting
        or transport._aborting
        # a pull producer is asked for more after the reactor has written, so the reactor must write
        or not (transport.producer is None or transport.streamingProducer)
        or transport.producerPaused
        or transport._writeDisconnecting
        or transport._writeDisconnected
        or transport.TLS
        # long answers alternate with other connections
        or not 0 < len(data) <= transport.SEND_LIMIT
    ):
        return 0
    try:
        sent: int = transport.socket.send(data)
    except OSError as error:
        # Full or broken: the reactor finds out which, and closes a broken connection outside of this call.
        if error.errno not in _TELLS_LATER:
            _broken(transport)
        return 0
    return sent


def _broken(transport: Any) -> None:
    transport.doRead = functools.partial(_read_broken, transport)


_compiled: Any = load("rmq.runtime._lean")
#: how long a wait for events goes on without sleeping, see Spinning in _lean.pyx; a lone core is left to the peers
_SPIN_NS = 100_000 if len(os.sched_getaffinity(0)) > 1 else 0
_LEAN: Any = _compiled and _compiled.Lean(
    _broken, CONNECTION_LOST, CONNECTION_DONE, tcp.Connection.SEND_LIMIT, _SPIN_NS
)
_send_now: Callable[[Any, bytes], int] = send_now if _LEAN is None else _LEAN.send_now


@functools.cache
def _openssl_ffi() -> Any:
    """
    Return cffi's view of the OpenSSL that pyOpenSSL uses; None when it cannot be found out.

    The compiled module knows its functions then.
    """
    try:
        from cryptography.hazmat.bindings._rust import _openssl
        from OpenSSL._util import ffi as of_pyopenssl

        ffi, library = _openssl.ffi, _openssl.lib
        if of_pyopenssl is not ffi:
            return None
        addresses = [int(ffi.cast("uintptr_t", ffi.addressof(library, name))) for name in _OPENSSL_FUNCTIONS]
    except (ImportError, AttributeError):
        return None
    _compiled.use_openssl(*addresses)
    return ffi


def records_of(layer: Any) -> Any:
    """Return the compiled form of a TLS layer of Twisted's that is past its handshake, or None where it has none."""
    ffi = _openssl_ffi()
    if ffi is None or not all(hasattr(layer, name) for name in _LAYER_NAMES):
        return None
    connection = layer._tlsConnection
    unsent = getattr(layer._aggregator, "_buffer", None)
    # pyOpenSSL looks for other names in a socket
    pointers = [vars(connection).get(name) for name in _POINTER_NAMES]
    if unsent is None or None in pointers:
        return None
    return _compiled.Records(layer, connection, unsent, *(int(ffi.cast("uintptr_t", pointer)) for pointer in pointers))


class EagerWrites:
    """A mixin before a TCP transport: bytes go to the socket at once where Twisted would only delay them."""

    #: LeanReactor may call doRead directly
    lean = True

    def write(self, data: bytes) -> None:
        sent = _send_now(self, data)
        if not sent:
            super().write(data)  # type: ignore[misc]
        elif sent < len(data):
            super().write(data[sent:])  # type: ignore[misc]


class LeanServer(EagerWrites, tcp.Server):
    """An accepted connection."""

    def decrypt_here(self) -> None:
        """Read and write TLS records in compiled code from now on; to be called when a handshake is done."""
        records = records_of(self.protocol) if self.TLS and _LEAN is not None else None
        if records is not None:
            self.records = records

    def connectionLost(self, reason: Any) -> None:
        self.__dict__.pop("records", None)  # OpenSSL's memory is freed now
        super().connectionLost(reason)


class LeanClient(EagerWrites, tcp.Client):
    """A connection that we made."""


if _LEAN is not None:
    _LEAN.set_kinds(LeanServer, LeanClient)


class LeanPort(tcp.Port):
    """A listening port whose connections are lean."""

    transport = LeanServer


class LeanConnector(tcp.Connector):
    """Makes lean connections."""

    def _makeTransport(self) -> tcp.Client:
        return LeanClient(self.host, self.port, self.bindAddress, self, self.reactor)


class LeanReactor(EPollReactor):
    """An epoll reactor whose TCP connections, in both directions, are eager and lean; all else is Twisted's."""

    def doPoll(self, timeout: float | None) -> None:
        """
        Wait for events and process them.

        Twisted: EPollReactor#doPoll, _PollLikeMixin#_doReadOrWrite
        """
        if _LEAN is not None:
            _LEAN.poll(self, self._poller.fileno(), self._selectables, timeout)
            return
        selectables = self._selectables
        try:
            events = self._poller.poll(-1 if timeout is None else timeout, len(selectables))
        except OSError as error:
            if error.errno == errno.EINTR:
                return
            raise
        for fd, event in events:
            selectable = selectables.get(fd)
            if selectable is None:
                continue
            if event != EPOLLIN or not getattr(selectable, "lean", False):
                self.work_on(selectable, fd, event)
                continue
            try:
                if selectable.fileno() != fd:
                    self.work_on(selectable, fd, event)
                    continue
                why = selectable.doRead()
                if why:
                    self.end_of(selectable, why)
            except BaseException as failed:  # noqa: BLE001 - as in Twisted: it costs this connection only
                self.fail(selectable, failed)

    doIteration = doPoll

    def give_back_memory(self) -> None:
        """Return memory to the system that the C library keeps since :func:`install`; some ms for each 100 MiB."""
        if _compiled is not None:
            _compiled.give_back_memory()

    def work_on(self, selectable: Any, fd: int, event: int) -> None:
        """Process an event as Twisted does."""
        log.callWithLogger(selectable, self._doReadOrWrite, selectable, fd, event)

    def end_of(self, selectable: Any, why: Any, reading: bool = True) -> None:
        log.callWithLogger(selectable, self._disconnectSelectable, selectable, why, reading)

    def fail(self, selectable: Any, error: BaseException) -> None:
        """End a connection whose protocol raised; to be called while the exception is handled."""
        log.callWithLogger(selectable, log.err)
        self.end_of(selectable, error, False)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> LeanPort:
        listening = LeanPort(port, factory, backlog, interface, self)
        listening.startListening()
        return listening

    def connectTCP(
        self, host: str, port: int, factory: Any, timeout: float = 30.0, bindAddress: Any = None
    ) -> LeanConnector:
        connector = LeanConnector(host, port, factory, timeout, bindAddress, self)
        connector.connect()
        return connector

    def adoptStreamPort(self, fileDescriptor: int, addressFamily: int, factory: Any) -> Any:
        if addressFamily not in _INTERNET:
            return super().adoptStreamPort(fileDescriptor, addressFamily, factory)
        listening = LeanPort._fromListeningDescriptor(self, fileDescriptor, addressFamily, factory)
        listening.startListening()
        return listening

    def adoptStreamConnection(self, fileDescriptor: int, addressFamily: int, factory: Any) -> Any:
        if addressFamily not in _INTERNET:
            return super().adoptStreamConnection(fileDescriptor, addressFamily, factory)
        return LeanServer._fromConnectedSocket(fileDescriptor, addressFamily, factory, self)


def install() -> None:
    """Make this the reactor of the process; to be called before anything imports a reactor."""
    if _compiled is not None and not any(name.startswith(_MALLOC_SETTINGS) for name in os.environ):
        _compiled.keep_freed_memory()
    reactor = LeanReactor()
    # Hardly anything that is made before it runs is garbage; looking for it takes five milliseconds of a start.
    gc.disable()
    reactor.callWhenRunning(gc.enable)
    installReactor(reactor)
