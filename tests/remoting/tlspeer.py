"""
Two ends of a TLS connection without sockets: ours on a transport that can start TLS, the other one Python's ``ssl``.

So what is tested is spoken with another implementation than the one under test.
"""

from __future__ import annotations

import ssl
from typing import Any

from twisted.internet.interfaces import IProtocol, ITLSTransport
from twisted.internet.task import Clock
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

from tests.remoting.peer import RecordingTransport


@implementer(ITLSTransport)
class TlsTransport(RecordingTransport):
    """A TCP transport as Twisted's: after ``startTLS`` what is written goes through a TLS layer in between."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.raw = RecordingTransport()
        self._tls: TLSMemoryBIOProtocol | None = None

    def startTLS(self, contextFactory: Any, normal: bool = True) -> None:
        producer = self.producer
        self.unregisterProducer()
        factory = TLSMemoryBIOFactory(contextFactory, not normal, None, Clock())  # type: ignore[arg-type]
        self.protocol = self._tls = TLSMemoryBIOProtocol(factory, self.protocol, False)
        self._tls.makeConnection(self.raw)
        self._tls.registerProducer(producer, True)

    def write(self, data: bytes) -> None:
        if self._tls is None:
            self.raw.write(data)
        else:
            self._tls.write(data)

    def loseConnection(self) -> None:
        self.disconnecting = True
        if self._tls is not None:
            self._tls.loseConnection()

    def unregisterProducer(self) -> None:
        if self._tls is None:
            super().unregisterProducer()
        else:
            self._tls.unregisterProducer()


class SslEnd:
    """
    The far end of a connection, by the standard library.

    ``send`` and ``take`` are how bytes get to our side and back: a protocol that receives, a transport that recorded.
    """

    def __init__(self, context: ssl.SSLContext, near: RecordingTransport, *, server_side: bool = False) -> None:
        self._near = near
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        hostname = None if server_side else "127.0.0.1"
        self._ssl = context.wrap_bio(self._in, self._out, server_side, hostname)
        self.received = b""

    def run(self, protocol: Any) -> None:
        """
        Pass bytes to and fro until nothing moves; ``protocol`` is what the near transport delivers to.

        An SSLError is what our side was told; what our side does then is delivered first.
        """
        while True:
            error: ssl.SSLError | None = None
            try:
                self._ssl.do_handshake()
                while record := self._ssl.read(1 << 20):
                    self.received += record
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
                pass
            except ssl.SSLError as failed:
                error = failed
            moved = self._out.read()
            if moved:
                receiver: IProtocol = getattr(self._near, "protocol", None) or protocol
                receiver.dataReceived(moved)
            if error is not None:
                raise error
            raw = getattr(self._near, "raw", self._near)
            answered = raw.read()
            if answered:
                self._in.write(answered)
            elif not moved:
                return

    def write(self, data: bytes) -> None:
        self._ssl.write(data)

    def taken(self) -> bytes:
        """Return what would go to our side now."""
        return self._out.read()

    def certificate(self) -> bytes:
        """Return the certificate that our side showed, DER."""
        return self._ssl.getpeercert(binary_form=True) or b""

    @property
    def version(self) -> str | None:
        return self._ssl.version()
