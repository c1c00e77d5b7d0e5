"""Pulls that wait: what wakes them, and that each is woken exactly once."""

from __future__ import annotations

import random
from typing import NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from rmq.broker import longpoll
from rmq.broker.longpoll import QUEUES_AT_ONCE, SWEEP_MS, WAKE_AT_ONCE, HeldPull, LongPolls
from rmq.store.layout import CQ_UNIT
from tests.seeds import SEED


class Pulls:
    """A table of waiting pulls over queues whose ends the test sets; remembers who was woken."""

    def __init__(self, limit: int = 1000) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.woken: list[str] = []
        self.table = LongPolls(lambda topic, queue_id: self.ends.get((topic, queue_id), 0), limit=limit)

    def tick(self, now_ms: int) -> None:
        """Do all slices of a tick at once."""
        for _ in self.table.tick(now_ms):
            pass

    def hold(
        self,
        name: str,
        *,
        topic: str = "T",
        queue_id: int = 0,
        offset: int = 0,
        deadline_ms: int = 15_000,
        channel: object = "c",
        tags: set[int] | None = None,
    ) -> bool:
        return self.table.hold(
            HeldPull(
                topic=topic,
                queue_id=queue_id,
                from_offset=offset,
                deadline_ms=deadline_ms,
                channel=channel,
                matches=None if tags is None else tags.__contains__,
                wake=lambda _: self.woken.append(name),
            )
        )


class Queue(NamedTuple):
    """As much of a consume queue as a message's arrival needs."""

    key: tuple[str, int]
    end: int


class RecordingLink:
    """A connection that notes why it was closed."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def close(self, why: str) -> None:
        self.closed.append(why)


class SliceTests(SynchronousTestCase):
    def test_many_queues(self) -> None:
        """However many pulls wait, one turn of the reactor looks at QUEUES_AT_ONCE queues."""
        looked: list[int] = []
        pulls = Pulls()

        def end(_topic: str, queue_id: int) -> int:
            looked.append(queue_id)
            return 0

        pulls.table = LongPolls(end, limit=10**6)
        for number in range(2 * QUEUES_AT_ONCE + 1):
            pulls.hold("p", queue_id=number)
        counts = []
        for _ in pulls.table.tick(0):
            counts.append(len(looked))
            looked.clear()
        self.assertEqual(counts, [QUEUES_AT_ONCE, QUEUES_AT_ONCE, 1])

    def test_many_deadlines(self) -> None:
        """Pulls that are due together are woken WAKE_AT_ONCE a turn, each once, whatever ends others meanwhile."""
        pulls = Pulls(10_000)
        for number in range(3 * WAKE_AT_ONCE):
            pulls.hold(str(number), queue_id=number % 7, deadline_ms=100, channel=number % 2)
        slices = pulls.table.tick(100)
        next(slices)
        self.assertEqual(len(pulls.woken), WAKE_AT_ONCE)
        pulls.table.channel_closed(1)
        for _ in slices:
            pass
        self.assertEqual(len(pulls.table), 0)
        self.assertEqual(sorted(map(int, pulls.woken)), list(range(3 * WAKE_AT_ONCE)))


class LongPollTests(SynchronousTestCase):
    def test_arrival_wakes_waiting_pulls_of_the_queue_only(self) -> None:
        """A consumer that waits at the end of a queue is answered when a message arrives there."""
        pulls = Pulls()
        pulls.hold("here")
        pulls.hold("other queue", queue_id=1)
        pulls.hold("other topic", topic="U")
        pulls.hold("further on", offset=1)
        pulls.table.arrived("T", 0, 1, 7)
        self.assertEqual(pulls.woken, ["here"])
        self.assertEqual(len(pulls.table), 3)

    def test_queues_that_are_waited_for(self) -> None:
        """
        The store looks into one table, at any time, to see of which queues it must report messages: the queues of
        waiting consumers and no others. Sends to a queue without a waiting consumer would be slower otherwise.
        """
        pulls = Pulls()
        queues = pulls.table.queues
        self.assertEqual(list(queues), [])
        for name, queue_id in (("a", 1), ("b", 1), ("c", 2)):
            pulls.hold(name, queue_id=queue_id)
        self.assertEqual(list(queues), [("T", 1), ("T", 2)])
        pulls.table.arrived("T", 1, 1, 7)
        self.assertEqual(list(queues), [("T", 2)])
        pulls.table.stop()
        self.assertEqual(list(queues), [])

    def test_arrival_of_another_tag_keeps_it_waiting(self) -> None:
        """A consumer of TagA is not disturbed by each message of TagB."""
        pulls = Pulls()
        pulls.hold("a", tags={1})
        pulls.hold("b", tags={2})
        pulls.table.arrived("T", 0, 1, 2)
        self.assertEqual(pulls.woken, ["b"])

    def test_sweep_moves_consumers_past_messages_of_other_tags(self) -> None:
        """Within a sweep period a waiting pull learns of messages that its filter hides, so its offset goes on."""
        pulls = Pulls()
        pulls.tick(0)
        pulls.hold("a", tags={1})
        pulls.ends["T", 0] = 5
        pulls.tick(SWEEP_MS - 1)
        self.assertEqual(pulls.woken, [])
        pulls.tick(SWEEP_MS)
        self.assertEqual(pulls.woken, ["a"])

    def test_an_answer_that_ends_the_connection(self) -> None:
        """When an answer finds its connection broken, the other pulls of that connection end once, without an error."""
        pulls = Pulls()

        def broken(_: HeldPull) -> None:
            pulls.woken.append("first")
            pulls.table.channel_closed("c")

        pulls.table.hold(
            HeldPull(topic="T", queue_id=0, from_offset=0, deadline_ms=9, channel="c", matches=None, wake=broken)
        )
        pulls.hold("second")
        pulls.hold("of another queue", queue_id=1)
        pulls.table.arrived("T", 0, 1, None)
        self.assertEqual((sorted(pulls.woken), len(pulls.table)), (["first", "of another queue", "second"], 0))

    def test_an_answer_that_fails(self) -> None:
        """An error in the answer of one pull closes its connection; the pulls of others are answered."""
        pulls, link = Pulls(), RecordingLink()

        def fail(_: HeldPull) -> None:
            raise ValueError("bug")

        pulls.table.hold(
            HeldPull(topic="T", queue_id=0, from_offset=0, deadline_ms=9, channel=link, matches=None, wake=fail)
        )
        pulls.hold("other")
        pulls.table.arrived("T", 0, 1, None)
        self.assertEqual((pulls.woken, link.closed, len(pulls.table)), (["other"], ["internal error: bug"], 0))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_deadline(self) -> None:
        """A pull waits as long as its client asked for and not longer."""
        pulls = Pulls()
        pulls.hold("a", deadline_ms=2000)
        pulls.hold("b", deadline_ms=3000)
        pulls.tick(1999)
        self.assertEqual(pulls.woken, [])
        pulls.tick(2000)
        self.assertEqual(pulls.woken, ["a"])
        pulls.tick(3001)
        self.assertEqual(pulls.woken, ["a", "b"])

    def test_lost_connection(self) -> None:
        """Nothing of a lost connection stays behind."""
        pulls = Pulls()
        pulls.hold("a", channel=1)
        pulls.hold("b", channel=2)
        pulls.table.channel_closed(1)
        pulls.table.channel_closed(1)
        self.assertEqual((pulls.woken, len(pulls.table)), (["a"], 1))

    def test_deleted_topic(self) -> None:
        """Who waits for a topic that is deleted learns of it at once."""
        pulls = Pulls()
        pulls.hold("a", queue_id=3)
        pulls.hold("b", topic="U")
        pulls.table.topic_deleted("T")
        self.assertEqual(pulls.woken, ["a"])

    def test_limit(self) -> None:
        """A full table takes no more pulls, and takes them again when one has gone."""
        pulls = Pulls(limit=2)
        self.assertTrue(pulls.hold("a", queue_id=0))
        self.assertTrue(pulls.hold("b", queue_id=1))
        self.assertFalse(pulls.hold("c", queue_id=2))
        pulls.table.arrived("T", 0, 1, None)
        self.assertTrue(pulls.hold("c", queue_id=2))
        self.flushLoggedErrors()

    def test_limit_of_memory(self) -> None:
        """Nor do more pulls wait than there is room for what they subscribe to."""
        self.patch(longpoll, "MAX_HELD_BYTES", 1000)
        polls = LongPolls(lambda topic, queue_id: 0)

        def pull(size_bytes: int) -> HeldPull:
            return HeldPull(
                topic="T",
                queue_id=0,
                from_offset=0,
                deadline_ms=9,
                channel=1,
                matches=None,
                wake=lambda _: None,
                size_bytes=size_bytes,
            )

        self.assertEqual([polls.hold(pull(size)) for size in (500, 500, 1, 0)], [True, True, False, True])
        list(polls.tick(10))
        self.assertTrue(polls.hold(pull(1000)))

    def test_stop_ends_every_wait(self) -> None:
        """A broker that stops leaves no pull without an end."""
        pulls = Pulls()
        for index in range(5):
            pulls.hold(str(index), queue_id=index % 2)
        pulls.table.stop()
        self.assertEqual((sorted(pulls.woken), len(pulls.table)), (list("01234"), 0))

    def test_held_again_while_woken(self) -> None:
        """A pull that finds nothing after all may wait again at once, without being woken in a circle."""
        table = LongPolls(lambda topic, queue_id: 9)
        woken = []

        def again(_: HeldPull) -> None:
            woken.append(1)
            table.hold(pull())

        def pull() -> HeldPull:
            return HeldPull(topic="T", queue_id=0, from_offset=0, deadline_ms=0, channel=1, matches=None, wake=again)

        table.hold(pull())
        table.arrived("T", 0, 1, None)
        self.assertEqual((len(woken), len(table)), (1, 1))

    def test_many_messages_wake_what_each_of_them_would(self) -> None:
        """Messages that were added together, of several queues, wake the same pulls as one after the other."""
        rng = random.Random(SEED)
        for case in range(300):
            sides = [Pulls(), Pulls()]
            for number in range(rng.randrange(12)):
                queue_id, offset, tags = rng.randrange(3), rng.randrange(9), rng.choice([None, {1}, {2}])
                for side in sides:
                    side.hold(str(number), queue_id=queue_id, offset=offset, tags=tags)
            units = []
            for queue_id in rng.sample(range(4), rng.randrange(1, 4)):
                end, codes = rng.randrange(5, 9), [rng.choice((1, 2, 3)) for _ in range(rng.randrange(1, 5))]
                units.append((Queue(("T", queue_id), end), b"".join(CQ_UNIT.pack(0, 100, code) for code in codes), 0))
                for number, code in enumerate(codes, end - len(codes) + 1):
                    sides[0].table.arrived("T", queue_id, number, code)
            sides[1].table.arrived_together(units)  # type: ignore[arg-type]
            self.assertEqual(sorted(sides[1].woken), sorted(sides[0].woken), f"seed {SEED}, case {case}")
            self.assertEqual(list(sides[1].table.queues), list(sides[0].table.queues))

    def test_each_is_woken_exactly_once_whatever_happens(self) -> None:
        """Random arrivals, deadlines, lost connections: no wait ends twice or never."""
        seed = SEED
        rng = random.Random(seed)
        pulls = Pulls(limit=50)
        held = 0
        now_ms = 0
        for step in range(2000):
            action = rng.randrange(5)
            if action < 2:
                held += pulls.hold(
                    str(held),
                    topic=rng.choice("TU"),
                    queue_id=rng.randrange(3),
                    offset=rng.randrange(4),
                    deadline_ms=now_ms + rng.randrange(9000),
                    channel=rng.randrange(8),
                    tags=rng.choice([None, {1}, {2}]),
                )
            elif action == 2:
                pulls.table.arrived(rng.choice("TU"), rng.randrange(3), rng.randrange(5), rng.choice([None, 1, 2]))
            elif action == 3:
                now_ms += rng.randrange(1500)
                pulls.tick(now_ms)
            else:
                pulls.table.channel_closed(rng.randrange(8))
            self.assertEqual(len(pulls.table), held - len(pulls.woken), f"seed {seed} step {step}")
        pulls.table.stop()
        self.assertEqual(sorted(map(int, pulls.woken)), list(range(held)), f"seed {seed}")
