"""Stacks of a program that has very many coroutines."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.client.stacks import MAX_STACKS, coroutine_stack, stacks_text


class StackTests(SynchronousTestCase):
    def test_bounded(self) -> None:
        """The text ends behind MAX_STACKS of them, and says so."""

        async def coroutine() -> None:
            """Never runs."""

        waiting = coroutine()
        self.addCleanup(waiting.close)
        found = [coroutine_stack(f"run {number}", waiting) for number in range(MAX_STACKS + 1)]
        lines = stacks_text(found).splitlines()
        self.assertIn(f"run {MAX_STACKS - 1} ", lines[-3])
        self.assertEqual(lines[-1], "there are more")
        self.assertNotIn("there are more", stacks_text(found[:MAX_STACKS]))
