"""Delayed messages: each has its own time, comes once, and a fault of our own delays them and does not end them."""

from __future__ import annotations

import attrs

from rmq.runtime.clock import DeadlineTimer
from rmq.store.messages import GetResult, GetStatus
from tests.broker.test_delays import DelayCase


class TimesOfOneLevelTests(DelayCase):
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.stored()]

    def test_a_later_message_waits_its_own_delay(self) -> None:
        """A message that was sent three seconds after another one of its level comes three seconds after it."""
        self.send(2, b"first")
        self.one.world.run_for(3)
        self.send(2, b"second")
        self.one.world.run_for(4.5)
        self.assertEqual(self.bodies(), [b"first"])
        self.one.world.run_for(2)
        self.assertEqual(self.bodies(), [b"first", b"second"])

    def test_our_own_fault_only_delays(self) -> None:
        """A bug that breaks one delivery is logged with its traceback; ten seconds later the message comes."""
        store = self.one.service.store
        pull = store.pull

        def broken(*_: object) -> GetResult:
            store.pull = pull
            raise ZeroDivisionError("a bug")

        self.send(1)
        store.pull = broken  # type: ignore[assignment]
        self.one.world.run_for(9)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.bodies(), [])
        self.one.world.run_for(4)
        self.assertEqual(self.bodies(), [b"x"])

    def test_a_message_that_cannot_be_read_now(self) -> None:
        """While the store finds nothing where a parked message should be, it is asked ten times a second, no more."""
        store = self.one.service.store
        pull, asked = store.pull, []

        def nothing(topic: str, queue_id: int, offset: int, *more: object) -> GetResult:
            asked.append(offset)
            return attrs.evolve(
                pull(topic, queue_id, 1 << 40, 1, None), status=GetStatus.OFFSET_FOUND_NULL, next_begin_offset=offset
            )

        self.send(1)
        store.pull = nothing  # type: ignore[assignment]
        self.one.world.run_for(6)
        self.assertIn(len(asked), range(45, 52))
        store.pull = pull
        self.one.world.run_for(2)
        self.assertEqual(self.bodies(), [b"x"])

    def test_one_look_for_one_message(self) -> None:
        """A parked message costs one timer at its time, not a series of them that come nearer and nearer."""
        runs: list[float] = []
        run, delays = DeadlineTimer._run, self.one.service.delays

        def counted(timer: DeadlineTimer) -> None:
            if timer is delays._timer:
                runs.append(self.one.world.now_s)
            run(timer)

        self.patch(DeadlineTimer, "_run", counted)
        self.send(2)
        sent_s = self.one.world.now_s
        self.one.world.run_for(10)
        self.assertEqual(self.bodies(), [b"x"])
        self.assertLessEqual(len(runs), 3)
        self.assertTrue(sent_s + 4.9 < runs[0] < sent_s + 5.1)


class SyncFlushTests(TimesOfOneLevelTests):
    values = {"flushDiskType": "SYNC_FLUSH"}

    def test_comes_once(self) -> None:
        """A delayed message comes once under SYNC_FLUSH as well, not again every ten seconds."""
        self.send(1)
        self.one.world.run_for(40)
        self.assertEqual(self.bodies(), [b"x"])
