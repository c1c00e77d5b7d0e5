"""Queue offsets go on where they ended, whatever happened in between."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.store.support import Box


class QueueNumberTests(SynchronousTestCase):
    def test_no_number_is_given_twice_after_a_kill(self) -> None:
        """A broker killed before its consume queues were written goes on behind the numbers that it had given."""
        for end in ("kill", "stop"):
            box = Box()
            box.open()
            first = box.put_many(9)
            box.reopen(end)
            second = box.put_many(9)
            self.assertEqual([result.queue_offset for result in first], [0, 0, 0, 1, 1, 1, 2, 2, 2])
            self.assertEqual([result.queue_offset for result in second], [3, 3, 3, 4, 4, 4, 5, 5, 5], end)
