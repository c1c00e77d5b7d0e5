"""What a client keeps of connections that ended."""

from __future__ import annotations

import gc
import weakref

from tests.remoting.test_client import ClientCase


class ForgottenTests(ClientCase):
    def test_a_lost_connection_is_not_kept(self) -> None:
        """A broker that was asked once at an address that is gone does not hold that connection's buffers for ever."""
        self.ask("192.0.2.7:9876").addErrback(lambda _: None)
        dial = self.dials.pop()
        dial.accept()
        kept = weakref.ref(dial.protocol.channel)
        dial.lose()
        del dial
        gc.collect()
        self.assertIsNone(kept())
