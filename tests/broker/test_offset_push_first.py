"""The very first message of a log, when offsets are given back to a master."""

from __future__ import annotations

from tests.broker.test_offset_push import OffsetPushCase


class FirstMessageTests(OffsetPushCase):
    def test_the_first_message_is_compared_too(self) -> None:
        """A master whose log begins with another message is not told that the slave's one was consumed."""
        self.offsets.commit_at_slave("G", "T", 0, 1)
        master = self.returning({})
        master.messages.records[0] = b"another".ljust(len(master.messages.records[0]), b"-")
        self.net.run(14)
        self.assertEqual((master.commits, 33 in master.asked), ([], True))
