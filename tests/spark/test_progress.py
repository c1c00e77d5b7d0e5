"""What an engine tells while it works."""

from __future__ import annotations

from rmq_audit.engine.engines import Done, Engine, LocalEngine
from rmq_audit.worker.work import Work
from twisted.trial.unittest import SynchronousTestCase


def double(task: int) -> int:
    return 2 * task


def cost(task: int) -> int:
    return task


DOUBLE = Work("double", double, cost)


class ProgressTests(SynchronousTestCase):
    def told_by(self, engine: Engine) -> list[tuple[str, int, int]]:
        """Let the engine do four tasks of 1 to 4 bytes; return what it told."""
        told: list[tuple[str, int, int]] = []
        engine.progress = lambda *told_now: told.append(told_now)
        self.assertEqual(engine.run(DOUBLE, [1, 2, 3, 4]), [2, 4, 6, 8])
        self.assertEqual({(name, total) for name, _, total in told}, {("double", 10)})
        return told

    def test_in_one_process(self) -> None:
        """Work is told task by task, from nothing to everything."""
        self.assertEqual([done for _, done, _ in self.told_by(LocalEngine(1))], [0, 1, 3, 6, 10])

    def test_of_a_pool(self) -> None:
        """Tasks of a pool end in any order; what is told grows all the same, and answers keep the order."""
        engine = LocalEngine(2, pool_from_bytes=0)
        self.addCleanup(engine.close)
        done = [one for _, one, _ in self.told_by(engine)]
        self.assertEqual((done[0], done[-1], sorted(set(done))), (0, 10, done))

    def test_tasks_done_twice(self) -> None:
        """Spark may do a task again; more than everything, or everything before the end, is never told."""
        told: list[int] = []
        done = Done("scan", 10, lambda name, now, total: told.append(now))
        for now in (4, 3, 10, 12, 9):
            done.reach(now)
        done.finish()
        self.assertEqual(told, [0, 4, 9, 10])
