"""Which connections get the log straight to their socket."""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.interfaces import ISSLTransport, ITCPTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import directlyProvides

from rmq.ha.output import SocketOutput, TransportOutput, output_for
from tests.ha.test_output import FakeSocket, FakeTransport


class ChoiceTests(SynchronousTestCase):
    def output(self, handle: object, *interfaces: Any) -> object:
        transport = FakeTransport(FakeSocket())
        transport.getHandle = lambda: handle  # type: ignore[attr-defined]
        directlyProvides(transport, *interfaces)
        return output_for(transport, full=lambda: None, free=lambda: None)

    def test_plain_tcp(self) -> None:
        """A slave over plain TCP gets the log from the page cache without a copy in this process."""
        plain = socket.socket()
        self.addCleanup(plain.close)
        self.assertIs(type(self.output(plain, ITCPTransport)), SocketOutput)

    def test_others(self) -> None:
        """What goes over TLS, or over no socket, is left to the transport: on the socket it would be plain text."""
        plain = socket.socket()
        self.addCleanup(plain.close)
        for handle, interfaces in (
            (plain, (ITCPTransport, ISSLTransport)),
            (plain, ()),
            (None, (ITCPTransport,)),
            (object(), (ITCPTransport,)),
        ):
            self.assertIs(type(self.output(handle, *interfaces)), TransportOutput)
