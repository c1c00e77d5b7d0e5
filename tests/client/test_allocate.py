"""Who gets which queue: as Java's classes decide, and every queue has one owner."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from tests.client.allocations import GOLDEN, STRATEGIES, Case, drawn_cases


class AllocationTests(SynchronousTestCase):
    def test_equal_to_java(self) -> None:
        """Each share is that of Apache's own classes, also where names sort differently in Java."""
        lines = GOLDEN.read_text("utf-8").splitlines()
        self.assertGreaterEqual(len(lines), 300)
        wrong = []
        for line in lines:
            *case, average, circle, consistent = line.split("\t")
            if Case.parse(case).answer() != "\t".join((average, circle, consistent)):
                wrong.append(line)
        self.assertEqual(wrong, [])
        self.assertTrue(any("\U0001f600" in line and "\uffee" in line for line in lines))

    def test_each_queue_has_one_owner(self) -> None:
        """The shares of all members together are all queues, each once."""
        for case in drawn_cases(Random(5), 300):
            for number in range(len(STRATEGIES)):
                owned = [queue for member in case.members for queue in case.shares(member)[number]]
                self.assertEqual(sorted(owned), sorted(case.queues()), (case, number))

    def test_a_stranger_gets_nothing(self) -> None:
        """A client that the broker does not list has no queue."""
        case = Case("t", "me", ("a", "b"), (("broker-a", 4),))
        self.assertEqual(case.shares("me"), [[], [], []])
