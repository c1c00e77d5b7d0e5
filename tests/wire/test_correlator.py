"""Tests of the table of requests that wait for an answer."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.wire.correlator import MAX_WAITING_REQUESTS, Correlator, TooManyWaiting


class CorrelatorTests(SynchronousTestCase):
    def test_answers_in_any_order(self) -> None:
        """Each answer finds its own request, in whatever order they come."""
        table: Correlator[str] = Correlator()
        first, second = table.add("first", 10.0), table.add("second", 10.0)
        self.assertNotEqual(first, second)
        self.assertEqual(table.answered(second), "second")
        self.assertEqual(table.answered(first), "first")
        self.assertEqual(len(table), 0)

    def test_twice_answered(self) -> None:
        """A second answer to the same request is late and finds nobody."""
        table: Correlator[str] = Correlator()
        opaque = table.add("x", 10.0)
        table.answered(opaque)
        self.assertIsNone(table.answered(opaque))
        self.assertEqual((table.late, table.unknown), (1, 0))

    def test_unknown(self) -> None:
        """An opaque that was never given away is counted apart."""
        table: Correlator[str] = Correlator()
        table.add("x", 10.0)
        for opaque in (99, -1, 2**31):
            self.assertIsNone(table.answered(opaque))
        self.assertEqual((table.late, table.unknown), (0, 3))

    def test_expiry(self) -> None:
        """Requests come out at their deadline, the earliest first; an answer afterwards is late."""
        table: Correlator[str] = Correlator()
        late = table.add("late", 3.0)
        table.add("early", 1.0)
        table.add("patient", 9.0)
        self.assertEqual(table.next_deadline(), 1.0)
        self.assertEqual(table.expire(0.9), [])
        self.assertEqual(table.expire(3.0), ["early", "late"])
        self.assertEqual(table.next_deadline(), 9.0)
        self.assertIsNone(table.answered(late))
        self.assertEqual(table.late, 1)

    def test_no_deadline_of_answered_requests(self) -> None:
        """When nothing waits there is no next deadline."""
        table: Correlator[str] = Correlator()
        table.answered(table.add("x", 1.0))
        self.assertIsNone(table.next_deadline())
        self.assertEqual(table.expire(5.0), [])

    def test_forget(self) -> None:
        """A forgotten request neither expires nor is answered."""
        table: Correlator[str] = Correlator()
        opaque = table.add("x", 1.0)
        self.assertEqual(table.forget(opaque), "x")
        self.assertIsNone(table.forget(opaque))
        self.assertEqual(table.expire(2.0), [])

    def test_close(self) -> None:
        """Closing gives back everything, in order, and leaves nothing."""
        table: Correlator[str] = Correlator()
        table.add("a", 9.0)
        table.add("b", 1.0)
        self.assertEqual(table.close(), ["a", "b"])
        self.assertEqual(table.close(), [])
        self.assertIsNone(table.next_deadline())

    def test_limit(self) -> None:
        """The table is bounded; a place that becomes free is used again."""
        table: Correlator[int] = Correlator(limit=3)
        opaques = [table.add(number, 1.0) for number in range(3)]
        error = self.assertRaises(TooManyWaiting, table.add, 3, 1.0)
        self.assertIn("3", str(error))
        table.answered(opaques[1])
        table.add(4, 1.0)
        self.assertEqual(MAX_WAITING_REQUESTS, 65_535)

    def test_opaques_wrap(self) -> None:
        """Opaques stay in 31 bits, start again at 0 and skip those that wait."""
        table: Correlator[str] = Correlator()
        waiting = table.add("old", 1.0)
        table._next = 2**31 - 1
        self.assertEqual(table.add("last", 1.0), 2**31 - 1)
        self.assertEqual(waiting, 0)
        self.assertEqual(table.add("new", 1.0), 1)
        self.assertIsNone(table.answered(12345))
        self.assertEqual(table.late, 1)

    def test_memory_of_answered_requests(self) -> None:
        """Deadlines of answered requests do not pile up, however far away they are."""
        table: Correlator[int] = Correlator()
        for number in range(10_000):
            table.answered(table.add(number, 1e9))
        self.assertLess(len(table._deadlines), 200)

    def test_random_walk(self) -> None:
        """Every request comes out exactly once, whatever happens."""
        for seed in range(30):
            rng = random.Random(seed)
            table: Correlator[int] = Correlator(limit=50)
            waiting: dict[int, int] = {}
            out: list[int] = []
            now = 0.0
            for number in range(500):
                try:
                    waiting[number] = table.add(number, now + rng.random() * 5)
                except TooManyWaiting:
                    self.assertEqual(len(table), 50, f"seed {seed}")
                if rng.random() < 0.5 and waiting:
                    got = table.answered(waiting[rng.choice(list(waiting))])
                    out += [] if got is None else [got]
                if rng.random() < 0.3:
                    now += rng.random()
                    out += table.expire(now)
                for done in out:
                    waiting.pop(done, None)
            added = len(out) + len(table)
            out += table.close()
            self.assertEqual(len(set(out)), len(out), f"seed {seed}")
            self.assertEqual(len(out), added, f"seed {seed}")
