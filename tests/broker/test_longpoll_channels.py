"""What the table of waiting pulls keeps of a connection."""

from __future__ import annotations

import gc
import weakref

from twisted.trial.unittest import SynchronousTestCase

from tests.broker.test_longpoll import Pulls


class Connection:
    """What a pull belongs to."""


class ForgottenTests(SynchronousTestCase):
    def test_an_answered_pull_keeps_no_connection(self) -> None:
        """A broker whose consumers come and go for months does not keep the connections of those that left."""
        pulls = Pulls()
        for end in (
            lambda: pulls.table.arrived("T", 0, 1, None),
            lambda: pulls.tick(20_000),
            lambda: pulls.table.topic_deleted("T"),
            pulls.table.stop,
        ):
            connection = Connection()
            kept = weakref.ref(connection)
            pulls.hold("a", channel=connection)
            pulls.hold("b", channel=connection)
            end()
            del connection
            gc.collect()
            self.assertIsNone(kept())
