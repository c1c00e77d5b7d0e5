"""Pytest's side of the suite; trial does not read this file."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.seeds import SEED

#: how long one test may take, fixtures included, by its marker; pyproject.toml has that of all others
TIMEOUT_S = {"campaign": 3600, "real": 1800, "smoke": 600, "spark": 600}


def pytest_configure(config: pytest.Config) -> None:
    if reason := needs.refusal():
        raise pytest.UsageError(reason)
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say in the head of the run, also of a quiet one, what is tested and what is left out."""
    if terminal := session.config.pluginmanager.get_plugin("terminalreporter"):
        for line in (*needs.head(), f"RMQ_SEED={SEED} repeats what this run draws"):
            terminal.write_line(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it again where it is not scrolled away."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"RMQ_SEED={SEED} repeats what this run drew")
    for line in needs.left_out():
        terminalreporter.write_line(line)


class Module(pytest.Module):
    """A module of tests; one that imports what an extra brings is left out where the extra is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause = error.__cause__
            extra = needs.extra_with(cause.name) if isinstance(cause, ModuleNotFoundError) else None
            if extra is None:
                raise
            needs.missing(extra)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Module:
    module: Module = Module.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test hangs: each has its limit."""
    for item in items:
        limits = [seconds for marker, seconds in TIMEOUT_S.items() if item.get_closest_marker(marker)]
        if limits:
            item.add_marker(pytest.mark.timeout(max(limits)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs where no signal ends it, in compiled code, ends the run and shows where it is."""
    marker = item.get_closest_marker("timeout")
    option = item.config.getoption("timeout", None)
    limit = float(option if option is not None else marker.args[0] if marker else item.config.getini("timeout"))
    if limit:
        faulthandler.dump_traceback_later(limit + min(limit, 60), exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


_STDERR = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped has failed, unless the skip was asked for."""
    report = yield
    if needs.MUST_RUN and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(needs.ASKED_FOR):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} is skipped, and RMQ_CI is set: {reason}"
    return report


@pytest.fixture(autouse=True, scope="session")
def _scratch_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``mktemp`` of trial's test cases makes folders where it stands: let that be outside the checkout."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


@pytest.fixture(autouse=True, scope="session")
def _children_import_the_same() -> None:
    """
    Processes that a test starts (twistd, Spark workers) see the same packages as the test itself.

    They keep the bytecode of what they import, wherever the run began: to compile it again takes as long as they do.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.environ.get("PYTHONPATH")
    for name, paths in needs.imports().items():
        os.environ[name] = os.pathsep.join([paths, *([before] if before else [])])
