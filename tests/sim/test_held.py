"""Each function of the simulator's judges is held by a test: with the function emptied, its test module fails."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmq.sim import checkers, lookups
from tests.sim import test_checkers, test_lookups

#: left to trial
pytestmark = pytest.mark.campaign


def functions_of(module: ModuleType) -> Iterator[tuple[Any, str, FunctionType]]:
    """Yield (owner, name, function) of every function and method that a module defines, but for special methods."""
    for owner in (module, *filter(inspect.isclass, vars(module).values())):
        for name, value in list(vars(owner).items()):
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("__"):
                yield owner, name, value


def emptied(function: FunctionType) -> Any:
    """Return a function of the same kind that does nothing and finds nothing."""
    if inspect.iscoroutinefunction(function):

        async def nothing(*args: object, **kwargs: object) -> Any:
            return []

        return nothing
    return lambda *args, **kwargs: iter(()) if inspect.isgeneratorfunction(function) else None


def passes(tests: ModuleType) -> bool:
    """Run a test module up to its first failure."""
    result = unittest.TestResult()
    result.failfast = True
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    assert result.testsRun
    return result.wasSuccessful()


class HeldTests(SynchronousTestCase):
    def hold(self, module: ModuleType, tests: ModuleType, at_least: int) -> None:
        self.assertTrue(passes(tests))
        functions = list(functions_of(module))
        self.assertGreaterEqual(len(functions), at_least)
        unheld = []
        for owner, name, function in functions:
            patch = self.patch(owner, name, emptied(function))
            if passes(tests):
                unheld.append(f"{owner.__name__}.{name}")
            patch.restore()
        self.assertEqual(unheld, [])

    def test_checkers(self) -> None:
        """No function of `rmq.sim.checkers` can be emptied without a failure of its unit tests."""
        self.hold(checkers, test_checkers, 28)

    def test_lookups(self) -> None:
        """Nor can one of `rmq.sim.lookups`."""
        self.hold(lookups, test_lookups, 6)
