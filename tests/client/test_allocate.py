"""Who gets which queue: as Java's classes decide, and every queue has one owner."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from rmq.client.core.allocate import average, by_config, nearby
from rmq.wire.api.common import MessageQueue
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

    def test_nearby(self) -> None:
        """Queues stay in their room while a member lives there; a room without members is shared by all."""
        strategy = nearby(average, lambda queue: queue.broker_name[0], lambda member: member[0])
        queues = [MessageQueue(topic="T", broker_name=name, queue_id=number) for name in "abc" for number in range(4)]
        members = ["a1", "a2", "b1"]
        shares = {member: strategy("G", member, queues, members) for member in members}
        self.assertEqual(
            {member: [(queue.broker_name, queue.queue_id) for queue in share] for member, share in shares.items()},
            {
                "a1": [("a", 0), ("a", 1), ("c", 0), ("c", 1)],
                "a2": [("a", 2), ("a", 3), ("c", 2)],
                "b1": [("b", 0), ("b", 1), ("b", 2), ("b", 3), ("c", 3)],
            },
        )
        self.assertEqual(strategy("G", "x", queues, members), [])

    def test_by_config(self) -> None:
        """A member has the queues of its configuration, whatever other members there are."""
        own = [MessageQueue(topic="T", broker_name="a", queue_id=1)]
        self.assertEqual(by_config(own)("G", "me", [], ["me", "other"]), own)

    def test_a_stranger_gets_nothing(self) -> None:
        """A client that the broker does not list has no queue."""
        case = Case("t", "me", ("a", "b"), (("broker-a", 4),))
        self.assertEqual(case.shares("me"), [[], [], []])
