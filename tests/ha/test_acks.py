"""Who is counted, and when a waiting put is answered."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.ha.acks import Acks, ReplicaWaits
from rmq.runtime.clock import steady_ms
from rmq.store.messages import PutStatus


def acks(need: int = 1, max_lag_bytes: int = 1000) -> Acks:
    return Acks(need=need, max_lag_bytes=max_lag_bytes)


def noting(order: list[int], number: int) -> Callable[[PutStatus], PutStatus]:
    """Return a callback that notes its number and passes the status on."""

    def note(status: PutStatus) -> PutStatus:
        order.append(number)
        return status

    return note


class AcksTests(SynchronousTestCase):
    def test_without_slaves(self) -> None:
        """Nobody holds anything, and waiting makes no sense."""
        nobody = acks()
        self.assertEqual(nobody.quorum_offset(), -1)
        self.assertFalse(nobody.is_quorum_in_sync(0))

    def test_the_furthest_live_slave_counts(self) -> None:
        """One slave is enough; a slave that left counts no more, however far it was."""
        some = acks()
        some.join(1, "a", 100, start_offset=100, end=0)
        some.join(2, "b", 300, start_offset=300, end=0)
        self.assertEqual(some.quorum_offset(), 300)
        some.leave(2)
        self.assertEqual(some.quorum_offset(), 100)
        some.leave(2)
        some.report(1, 250)
        self.assertEqual(some.quorum_offset(), 250)

    def test_acknowledgements_never_go_back(self) -> None:
        """A lower report changes nothing."""
        some = acks()
        some.join(1, "a", 100, start_offset=100, end=0)
        some.report(1, 90)
        self.assertEqual(some.quorum_offset(), 100)

    def test_health_is_the_lag(self) -> None:
        """A slave that lags haSlaveFallbehindMax or more is not waited for."""
        some = acks(max_lag_bytes=1000)
        some.join(1, "a", 100, start_offset=100, end=0)
        self.assertTrue(some.is_quorum_in_sync(1099))
        self.assertFalse(some.is_quorum_in_sync(1100))

    def test_a_dead_fast_slave_does_not_vouch_for_a_slow_one(self) -> None:
        """Health is that of the slaves that live."""
        some = acks(max_lag_bytes=1000)
        some.join(1, "a", 10, start_offset=10, end=0)
        some.join(2, "b", 5000, start_offset=5000, end=0)
        self.assertTrue(some.is_quorum_in_sync(5001))
        some.leave(2)
        self.assertFalse(some.is_quorum_in_sync(5001))

    def test_a_latecomer_lags_from_where_its_copy_begins(self) -> None:
        """An empty slave of a long log misses only the last segment."""
        some = acks(max_lag_bytes=1000)
        some.join(1, "a", 0, start_offset=1_000_000, end=0)
        self.assertTrue(some.is_quorum_in_sync(1_000_100))
        self.assertEqual(some.quorum_offset(), 0)

    def test_quorum(self) -> None:
        """With two slaves wanted the second furthest counts."""
        some = acks(need=2)
        some.join(1, "a", 100, start_offset=100, end=0)
        self.assertEqual(some.quorum_offset(), -1)
        self.assertFalse(some.is_quorum_in_sync(100))
        some.join(2, "b", 300, start_offset=300, end=0)
        some.join(3, "c", 200, start_offset=200, end=0)
        self.assertEqual(some.quorum_offset(), 200)
        self.assertTrue(some.is_quorum_in_sync(300))

    def test_a_slave_connected_twice_counts_once(self) -> None:
        """A slave that came back is no second slave until its first connection proves that it lives."""
        some = acks(need=2)
        some.join(1, "a", 100, start_offset=100, end=0)
        some.join(2, "a", 150, start_offset=150, end=150)
        self.assertEqual(some.quorum_offset(), -1)
        self.assertFalse(some.is_quorum_in_sync(150))
        some.report(1, 150)
        self.assertEqual(some.quorum_offset(), -1)
        self.assertTrue(some.is_quorum_in_sync(150))
        some.report(1, 160)
        self.assertEqual(some.quorum_offset(), 150)

    def test_a_slave_that_came_back_from_another_address_counts_once(self) -> None:
        """
        Whatever is still on its way from the old connection was acknowledged before; what came later proves two slaves.

        Waiting makes sense meanwhile: most slaves that join are others.
        """
        some = acks(need=2)
        some.join(1, "a", 100, start_offset=100, end=200)
        some.join(2, "b", 200, start_offset=200, end=200)
        some.report(1, 200)
        self.assertEqual((some.quorum_offset(), some.holds(200)), (-1, False))
        self.assertTrue(some.is_quorum_in_sync(201))
        some.report(2, 300)
        self.assertEqual((some.quorum_offset(), some.holds(200)), (-1, False))
        some.report(1, 250)
        self.assertEqual((some.quorum_offset(), some.holds(200)), (250, True))


class ReplicaWaitsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()

    def waits(self, need: int = 1) -> ReplicaWaits:
        return ReplicaWaits(self.clock, acks(need=need))

    def waiting(self, waits: ReplicaWaits, next_offset: int, deadline_ms: int = 3000) -> Deferred[PutStatus]:
        result = waits.wait(next_offset, deadline_ms)
        assert isinstance(result, Deferred), result
        return result

    def test_nobody_there(self) -> None:
        """Without a slave the answer is SLAVE_NOT_AVAILABLE, at once."""
        self.assertIs(self.waits().wait(10, 3000), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_already_there(self) -> None:
        """What a slave holds needs no waiting."""
        waits = self.waits()
        waits.acks.join(1, "a", 10, start_offset=0, end=0)
        self.assertIs(waits.wait(10, 3000), PutStatus.PUT_OK)

    def test_a_record_that_ends_where_a_copy_begins(self) -> None:
        """A slave that came back empty and copies from the end of a record on does not count as having the record."""
        waits = self.waits()
        waits.acks.join(1, "a", 500, start_offset=500, end=500)
        put = self.waiting(waits, 1000)
        waits.acks.join(2, "b", 0, start_offset=1000, end=1000)
        waits.acks.report(2, 1000)
        waits.advance()
        self.assertIs(self.successResultOf(put), PutStatus.FLUSH_SLAVE_TIMEOUT)

    def test_answered_by_offset(self) -> None:
        """One acknowledgement answers all that lie before it, in order, and nobody else."""
        waits = self.waits()
        waits.acks.join(1, "a", 0, start_offset=0, end=0)
        order: list[int] = []
        puts = [self.waiting(waits, offset) for offset in (10, 20, 30)]
        for number, put in enumerate(puts):
            put.addCallback(noting(order, number))
        waits.acks.report(1, 25)
        waits.advance()
        self.assertEqual(order, [0, 1])
        self.assertIs(self.successResultOf(puts[0]), PutStatus.PUT_OK)
        self.assertNoResult(puts[2])
        self.assertEqual(len(waits), 1)

    def test_deadline(self) -> None:
        """At its deadline a put is answered with FLUSH_SLAVE_TIMEOUT; a later acknowledgement is no second answer."""
        waits = self.waits()
        waits.acks.join(1, "a", 0, start_offset=0, end=0)
        first, second = self.waiting(waits, 10, 3000), self.waiting(waits, 20, 3500)
        self.clock.advance(2.999)
        self.assertNoResult(first)
        self.clock.advance(0.001)
        self.assertIs(self.successResultOf(first), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertNoResult(second)
        self.assertEqual(waits.timeouts, 1)
        waits.acks.report(1, 20)
        waits.advance()
        self.assertIs(self.successResultOf(second), PutStatus.PUT_OK)
        self.clock.advance(10)
        self.assertEqual((waits.timeouts, self.clock.getDelayedCalls()), (1, []))

    def test_quorum_of_two(self) -> None:
        """The first of two wanted slaves answers nothing."""
        waits = self.waits(need=2)
        waits.acks.join(1, "a", 0, start_offset=0, end=0)
        waits.acks.join(2, "b", 0, start_offset=0, end=0)
        put = self.waiting(waits, 10)
        waits.acks.report(1, 10)
        waits.advance()
        self.assertNoResult(put)
        waits.acks.report(2, 11)
        waits.advance()
        self.assertIs(self.successResultOf(put), PutStatus.PUT_OK)

    def test_an_empty_slave_does_not_vouch_for_what_it_never_gets(self) -> None:
        """A slave with a new disk begins with the last segment; puts that waited for what lies before get no OK."""
        some = acks(max_lag_bytes=10_000)
        some.join(1, "a", 100, start_offset=100, end=0)
        waits = ReplicaWaits(Clock(), some)
        answers: list[PutStatus] = []
        for next_offset in (500, 1000, 1500):
            waiting = waits.wait(next_offset, 5000)
            assert isinstance(waiting, Deferred)
            waiting.addCallback(answers.append)
        some.join(2, "a", 0, start_offset=1000, end=0)
        some.report(2, 1500)
        waits.advance()
        timeout = PutStatus.FLUSH_SLAVE_TIMEOUT
        self.assertEqual((answers, waits.timeouts), ([timeout, timeout, PutStatus.PUT_OK], 2))

    def test_too_many_wait(self) -> None:
        """The queue is bounded: whoever finds it full is told that no slave has confirmed in time."""
        waits = self.waits()
        waits.acks.join(1, "a", 0, start_offset=0, end=0)
        puts = [self.waiting(waits, 10) for _ in range(100_000)]
        self.assertIs(waits.wait(10, 3000), PutStatus.FLUSH_SLAVE_TIMEOUT)
        waits.fail_all(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertTrue(all(put.called for put in puts))

    def test_a_put_from_within_an_answer(self) -> None:
        """A producer may send again from the callback of its answer."""
        waits = self.waits()
        waits.acks.join(1, "a", 0, start_offset=0, end=0)
        again: list[object] = []
        self.waiting(waits, 10).addCallback(lambda _: again.append(waits.wait(20, 3000)))
        waits.acks.report(1, 15)
        waits.advance()
        self.assertEqual(len(waits), 1)
        self.assertEqual(len(again), 1)

    def test_every_put_is_answered_exactly_once(self) -> None:
        """Whatever slaves, time and the stop do, in any order (the seed is in the message)."""
        for seed in range(100):
            rng = random.Random(seed)
            waits = self.waits(need=rng.choice((1, 1, 2)))
            answers: list[list[PutStatus]] = []
            end, live = 0, list[int]()
            for number in range(200):
                match rng.randrange(6):
                    case 0:
                        live.append(number)
                        waits.acks.join(number, rng.choice("ab"), rng.randrange(end + 1), start_offset=0, end=end)
                    case 1 if live:
                        waits.acks.leave(live.pop(rng.randrange(len(live))))
                        if len(waits.acks) < waits.acks.need:
                            waits.fail_all(PutStatus.SLAVE_NOT_AVAILABLE)
                    case 2 if live:
                        waits.acks.report(rng.choice(live), rng.randrange(end + 1))
                        waits.advance()
                    case 3:
                        self.clock.advance(rng.randrange(500) / 1000)
                    case _:
                        end += rng.randrange(1, 50)
                        result = waits.wait(end, steady_ms(self.clock) + 1000)
                        answers.append([])
                        if isinstance(result, Deferred):
                            result.addCallback(answers[-1].append)
                        else:
                            answers[-1].append(result)
            waits.fail_all(PutStatus.FLUSH_SLAVE_TIMEOUT)
            self.assertEqual({len(answer) for answer in answers}, {1}, f"seed {seed}")
