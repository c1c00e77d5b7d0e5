"""
TLS and plain connections on one port, distinguished by the first byte of a connection.

Java: NettyRemotingServer.TlsModeHandler
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import ITLSTransport

from rmq.remoting.protocol import TLS_HANDSHAKE, Admit
from rmq.runtime.config import ConfigError
from rmq.runtime.tls.config import TlsMode
from rmq.runtime.tls.context import ServerTls
from rmq.wire.frames import ProtocolError


def admission(tls: ServerTls) -> Admit:
    """
    Return the check of the first byte of each connection.

    A plain frame begins with 0 or 1, because no frame is longer than 16 MiB, a TLS handshake with 0x16.
    """
    creator = tls.creator()

    def admit(transport: Any, first: bytes) -> bool:
        if first[0] != TLS_HANDSHAKE:
            if tls.mode is TlsMode.ENFORCING:
                raise ProtocolError("it does not begin with a TLS handshake, and tls.server.mode=enforcing")
            return True
        if tls.mode is TlsMode.DISABLED:
            raise ProtocolError("it begins a TLS handshake, and TLS is disabled here (tls.server.mode, certificates)")
        try:
            tls.context()
        except ConfigError as error:
            raise ProtocolError(f"it begins a TLS handshake: {error}") from error
        if not ITLSTransport.providedBy(transport):
            raise ProtocolError("it begins a TLS handshake, which the reactor of this process does not support")
        stream: Any = transport
        stream.startTLS(creator)
        # The TLS layer, which is now between transport and protocol, needs the bytes that were already read.
        stream.protocol.dataReceived(first)
        return False

    return admit
