"""
Fixtures for pytest; imports nothing but pytest until a fixture is used.

pytest finds it as an entry point of the installed package. It never touches a loop or a reactor: what is asynchronous
is a fixture of pytest-asyncio or pytest-twisted, where these are installed.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rmq import aio, blocking, tx
    from rmq.testing.blocking import Cluster, IsolatedCluster
    from rmq.testing.simulation import Simulation

#: the fixtures whose logs belong to the report of a failed test
_WITH_LOGS = ("rmq", "rmq_isolated")
#: the fixtures that have the servers of the session
_SHARED = ("rmq_cluster", "rmq", "rmq_client", "rmq_aio_client", "rmq_tx_client")
TRIAL_CANNOT_WAIT = (
    "pytest-twisted has started the reactor, for a test function that came before. A TestCase of trial starts it"
    " itself, and does not wait for its Deferreds when it runs already. Run these tests with trial, or with: pytest -p"
    " no:twisted"
)
#: what ``@pytest.mark.rmq`` takes, as :func:`rmq.testing.isolated_cluster` has it
_MARKED: dict[str, object] = {
    "masters": 1,
    "slaves": 0,
    "role": "ASYNC_MASTER",
    "config": None,
    "keep": False,
    "log_level": "info",
    "port": None,
}
_SEED = pytest.StashKey[int]()
_LOGS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmq", "RocketMQ servers for tests")
    group.addoption("--rmq-address", metavar="HOST:PORT", help="use the cluster of this NameServer, start none")
    group.addoption(
        "--rmq-config", action="append", default=[], metavar="KEY=VALUE", help="a key of the brokers; may be repeated"
    )
    group.addoption("--rmq-keep", action="store_true", help="leave stores and logs where they are, and print the path")
    group.addoption("--rmq-log-level", default="info", help="of the servers; default: info")
    group.addoption("--rmq-seed", type=int, help="of rmq_simulation; the report of a failed test has the one it had")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rmq(masters, slaves, role, config): the servers of rmq_isolated")
    others = {getattr(plugin, "__name__", "") for plugin in config.pluginmanager.get_plugins()}
    if "pytest_asyncio.plugin" in others:
        import pytest_asyncio

        _offer(config, "rmq_aio_client", pytest_asyncio.fixture(name="rmq_aio_client")(_aio_client))
    if "pytest_twisted" in others:
        import pytest_twisted

        _offer(config, "rmq_tx_client", pytest_twisted.async_yield_fixture(name="rmq_tx_client")(_tx_client))


def _offer(config: pytest.Config, name: str, fixture: object) -> None:
    """Add a fixture that needs another plugin; pytest finds fixtures of modules."""
    module = ModuleType(f"rmq.testing.{name}")
    setattr(module, name, fixture)
    config.pluginmanager.register(module, module.__name__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add to the report of a failed test what the servers logged meanwhile, and the seed."""
    report: Any = yield
    if report.failed:
        for path, begin in item.stash.get(_LOGS, {}).items():
            text = _read_from(path, begin)
            if text:
                report.sections.append((f"log of the servers: {os.path.basename(path)}", text))
        if _cannot_wait(item):
            report.sections.append(("trial beside pytest-twisted", TRIAL_CANNOT_WAIT))
        if _SEED in item.stash:
            report.sections.append(("rmq_simulation", f"--rmq-seed {item.stash[_SEED]} repeats this run"))
    return report  # type: ignore[no-any-return]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Raise UsageError for ``@pytest.mark.rmq`` on a test whose servers it does not choose."""
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    marker = item.get_closest_marker("rmq")
    if marker is None or "rmq_isolated" in fixtures:
        return
    info = getattr(item, "_fixtureinfo", None)
    if "request" in getattr(info, "argnames", ()):  # it may ask for rmq_isolated by name
        return
    # One of a class or a module is for those of its tests that have such servers; a test without servers may be there.
    if marker in item.own_markers or "rmq_cluster" in fixtures:
        used = [name for name in _SHARED if name in fixtures]
        has = f"this test uses {', '.join(used)}, the servers of all tests" if used else "this test does not use it"
        raise pytest.UsageError(f"@pytest.mark.rmq chooses the servers of the fixture rmq_isolated; {has}")


def _cannot_wait(item: pytest.Item) -> bool:
    """Whether this is a trial test case that finds its reactor running: trial starts it, and waits until it stops."""
    case = getattr(sys.modules.get("twisted.trial.unittest"), "TestCase", None)
    reactor = sys.modules.get("twisted.internet.reactor")
    found = getattr(item, "cls", None)
    return (
        case is not None and isinstance(found, type) and issubclass(found, case) and getattr(reactor, "running", False)
    )


def _read_from(path: str, begin: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _watch_logs(request: pytest.FixtureRequest, paths: list[str]) -> None:
    sizes = {path: os.path.getsize(path) if os.path.exists(path) else 0 for path in paths}
    request.node.stash[_LOGS] = {**request.node.stash.get(_LOGS, {}), **sizes}


def _options(config: pytest.Config) -> dict[str, Any]:
    """Return the arguments of a cluster that the command line gives."""
    pairs = [item.partition("=") for item in config.getoption("--rmq-config")]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise pytest.UsageError(f"--rmq-config {wrong[0]}: KEY=VALUE is expected")
    return {
        "config": {key: value for key, _, value in pairs},
        "keep": config.getoption("--rmq-keep"),
        "log_level": config.getoption("--rmq-log-level"),
    }


def _say_where(config: pytest.Config, folder: str) -> None:
    if config.getoption("--rmq-keep"):
        capture = config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\nstores and logs of the servers: {folder}", flush=True)


@pytest.fixture(scope="session")
def rmq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A NameServer and a master for the whole session; with xdist one for each worker."""
    config = request.config
    address = config.getoption("--rmq-address")
    if address:
        from rmq.testing.blocking import Cluster
        from rmq.testing.external import Elsewhere

        yield Cluster(Elsewhere(address))
        return
    from rmq.testing import cluster

    with cluster(**_options(config)) as running:
        _say_where(config, running.dir)
        yield running


@pytest.fixture
def rmq(rmq_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The servers of the session: topics and groups of the test have names of their own, faults end with the test."""
    _watch_logs(request, rmq_cluster.logs())
    yield rmq_cluster
    rmq_cluster.undo_faults()


@pytest.fixture
def rmq_client(rmq: Cluster) -> Iterator[blocking.Client]:
    """A blocking client; a test whose client cannot close cleanly fails."""
    client = rmq.client()
    with client:
        yield client
        rmq.undo_faults()
    _check(client.close())


@pytest.fixture
def rmq_isolated(request: pytest.FixtureRequest) -> Iterator[IsolatedCluster]:
    """A cluster of the test's own, each server in a process; ``@pytest.mark.rmq(slaves=1, role=…, config=…)``."""
    from rmq.testing import isolated_cluster

    options = _options(request.config)
    marker = request.node.get_closest_marker("rmq")
    if marker is not None:
        _check_marker(marker)
        config = {**options["config"], **(marker.kwargs.get("config") or {})}
        options = {**options, **marker.kwargs, "config": config}
    with isolated_cluster(**options) as running:
        _say_where(request.config, running.dir)
        _watch_logs(request, running.logs())
        yield running


def _check_marker(marker: pytest.Mark) -> None:
    """Raise UsageError for arguments of ``@pytest.mark.rmq`` that no cluster takes."""
    from rmq.testing.handle import mistake_in

    asked = {**_MARKED, **marker.kwargs}
    if marker.args or asked.keys() != _MARKED.keys():
        wrong = [*map(repr, marker.args), *(f"{key}={asked[key]!r}" for key in asked if key not in _MARKED)]
        raise pytest.UsageError(f"@pytest.mark.rmq({', '.join(wrong)}): it accepts {', '.join(_MARKED)}, by name")
    of_servers = ("masters", "slaves", "role", "config", "port")
    if mistake := mistake_in(*(asked[key] for key in of_servers)):
        raise pytest.UsageError(f"@pytest.mark.rmq: {mistake}")


@pytest.fixture
def rmq_simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """A simulated cluster; a failed test prints the seed."""
    from rmq.testing.simulation import Simulation

    seed = request.config.getoption("--rmq-seed")
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 31)
    request.node.stash[_SEED] = seed
    with Simulation(seed) as simulation:
        yield simulation


def _check(report: Any) -> None:
    """Fail the test if a close was not clean."""
    if report.handlers_cancelled or report.offsets_not_written:
        pytest.fail(f"the client did not close cleanly: {report}")


async def _aio_client(rmq: Cluster) -> AsyncIterator[aio.Client]:
    """A client for asyncio; a test whose client cannot close cleanly fails."""
    from rmq.testing.aio import client_of

    client = client_of(rmq)
    async with client:
        yield client
        rmq.undo_faults()
    _check(await client.close())


async def _tx_client(rmq: Cluster) -> AsyncIterator[tx.Client]:
    """A client for Twisted; a test whose client cannot close cleanly fails."""
    from twisted.internet import reactor

    from rmq.testing.tx import client_of

    client = client_of(rmq, reactor)
    await client.start()
    yield client
    rmq.undo_faults()
    _check(await client.close())
