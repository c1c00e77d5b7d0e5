"""
Twisted's own tests of reactors, run with one reactor: ``python -m tests.reactor.suites REACTOR RESULTS MODULE...``.

REACTOR is a class by its full name, which becomes the reactor of the process and the only one that Twisted's
ReactorBuilder builds. RESULTS is the JSON file for the outcomes.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.main import installReactor
from twisted.python.reflect import namedAny
from twisted.trial.reporter import MinimalReporter
from twisted.trial.runner import TestLoader, TrialRunner
from twisted.trial.unittest import SkipTest

from tests.reactor.differences import FAILED, KNOWN_BAD, PASSED, SKIPPED, SKIPPED_TESTS

STOCK = "twisted.internet.epollreactor.EPollReactor"
LEAN = "rmq.runtime.leanreactor.LeanReactor"

#: built upon ReactorBuilder: a new reactor for each test
BUILDER_MODULES = (
    "twisted.internet.test.test_core",
    "twisted.internet.test.test_endpoints",
    "twisted.internet.test.test_fdset",
    "twisted.internet.test.test_process",
    "twisted.internet.test.test_socket",
    "twisted.internet.test.test_tcp",
    "twisted.internet.test.test_threads",
    "twisted.internet.test.test_time",
    "twisted.internet.test.test_tls",
    "twisted.internet.test.test_udp",
    "twisted.internet.test.test_unix",
)
#: use the reactor of the process
GLOBAL_MODULES = (
    "twisted.test.test_amp",
    "twisted.test.test_factories",
    "twisted.test.test_internet",
    "twisted.test.test_iutils",
    "twisted.test.test_policies",
    "twisted.test.test_ssl",
    "twisted.test.test_stdio",
    "twisted.test.test_tcp",
    "twisted.test.test_threads",
    "twisted.test.test_unix",
    "twisted.web.test.test_webclient",
    "twisted.web.test.test_wsgi",
)
MODULES = BUILDER_MODULES + GLOBAL_MODULES


class Outcomes(MinimalReporter):
    """Keeps the outcome of every test by name; the worst one counts."""

    outcomes: dict[str, str] = {}

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self.outcomes.setdefault(_name(test), PASSED)

    def addError(self, test: Any, error: Any) -> None:
        super().addError(test, error)
        self._failed(test, error)

    def addFailure(self, test: Any, fail: Any) -> None:
        super().addFailure(test, fail)
        self._failed(test, fail)

    def addSkip(self, test: Any, reason: Any) -> None:
        super().addSkip(test, reason)
        self.outcomes.setdefault(_name(test), SKIPPED)

    def addExpectedFailure(self, test: Any, error: Any, todo: Any = None) -> None:
        super().addExpectedFailure(test, error, todo)
        self.outcomes.setdefault(_name(test), KNOWN_BAD)

    def _failed(self, test: Any, error: Any) -> None:
        self.outcomes[_name(test)] = FAILED
        text = error.getTraceback() if hasattr(error, "getTraceback") else str(error)
        print(f"{_name(test)}\n{text}", flush=True)


def _name(test: Any) -> str:
    """Return the name of a test without that of the reactor."""
    name = str(test.id())
    for reactor in (STOCK, LEAN):
        name = name.replace(f"_{reactor.rpartition('.')[2]}Tests", "_ReactorTests")
    return name


def _skipped(why: str) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        raise SkipTest(why)

    return test


def main(reactor: str, results: str, *modules: str, timeout_s: float | None = None) -> None:
    """Run the tests of ``modules``, each for ``timeout_s`` at most (else Twisted's 120 s), and write their outcomes."""
    installReactor(namedAny(reactor)())
    from twisted.internet.test import reactormixins

    # before the modules are imported: they make their test cases then
    reactormixins.ReactorBuilder._reactors = [reactor]
    for (module, builder, method), why in SKIPPED_TESTS.items():
        cls = getattr(importlib.import_module(module), f"{builder}_{reactor.rpartition('.')[2]}Tests")
        setattr(cls, method, _skipped(why))
    loader = TestLoader()
    if timeout_s is not None:
        for name in modules:
            vars(importlib.import_module(name))["timeout"] = timeout_s
    # A module that cannot be imported would be one failed test, with both reactors, and so no difference.
    suite = loader.suiteFactory(loader.loadModule(importlib.import_module(name)) for name in modules)
    TrialRunner(Outcomes, workingDirectory=f"{results}.trial").run(suite)
    with open(results, "w", encoding="utf-8") as file:
        json.dump(Outcomes.outcomes, file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
