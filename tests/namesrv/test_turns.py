"""Large registrations take turns; see :mod:`rmq.namesrv.turns`."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.turns import Turns
from tests.namesrv.talk import one_turn


class TurnsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.turns = Turns(self.clock, max_waiting_bytes=100)
        self.done: list[str] = []

    def sockets_again(self) -> None:
        """Go on to where sockets are looked at again: before that nothing more is done."""
        before = list(self.done)
        one_turn(self.clock)
        self.assertEqual(self.done, before)

    def ask(self, name: str, size_bytes: int = 10) -> None:
        turn = self.turns.wait(size_bytes)
        if turn is None:
            self.done.append(name)
        else:
            turn.addCallback(lambda _: self.done.append(name))

    def test_the_first_goes_on_at_once(self) -> None:
        """A piece of work that is alone waits for nothing, in this turn and in each later one."""
        self.ask("one")
        self.assertEqual(self.done, ["one"])
        self.sockets_again()
        one_turn(self.clock)
        self.ask("two")
        self.assertEqual(self.done, ["one", "two"])

    def test_each_other_has_a_turn_of_its_own(self) -> None:
        """What comes in the same turn is done one in a turn, in its order; then nothing is scheduled any more."""
        for name in ("one", "two", "three"):
            self.ask(name)
        self.assertEqual(self.done, ["one"])
        self.sockets_again()
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "two"])
        self.ask("four")
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "two", "three"])
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "two", "three", "four"])
        one_turn(self.clock)
        self.assertEqual((self.clock.getDelayedCalls(), self.turns.waiting_bytes), ([], 0))

    def test_no_more_wait_than_memory_allows(self) -> None:
        """A piece of work that would make too many bytes wait is done at once."""
        for name in ("one", "two", "three"):
            self.ask(name, 60)
        self.assertEqual(self.done, ["one", "three"])
        self.sockets_again()
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "three", "two"])

    def test_a_second_half_comes_next(self) -> None:
        """What was begun goes on before those who wait, with a turn for others between its halves."""
        for name in ("one", "two"):
            self.ask(name)
        half = self.turns.wait(10, first=True)
        assert half is not None
        half.addCallback(lambda _: self.done.append("one again"))
        self.assertEqual((self.done, self.turns.waiting_bytes), (["one"], 20))
        self.sockets_again()
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "one again"])
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "one again", "two"])

    def test_a_piece_of_work_that_fails_costs_nobody_else(self) -> None:
        """An error of one does not end the turns of the others."""
        self.ask("one")
        turn = self.turns.wait(10)
        assert turn is not None
        turn.addCallback(lambda _: 1 // 0)
        self.ask("three")
        self.sockets_again()
        one_turn(self.clock)
        self.failureResultOf(turn, ZeroDivisionError)
        one_turn(self.clock)
        self.assertEqual(self.done, ["one", "three"])

    def test_what_has_no_size_waits_as_well(self) -> None:
        """Somebody waits as long as there is a turn to come, whatever its size."""
        self.ask("one")
        self.assertFalse(self.turns.busy)
        self.ask("two", 0)
        self.assertEqual((self.turns.busy, self.turns.waiting_bytes), (True, 0))
        self.sockets_again()
        one_turn(self.clock)
        self.assertEqual((self.turns.busy, self.done), (False, ["one", "two"]))
