"""Fixtures of the tests against real processes: a site that cleans up, clients that end, logs shown on failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.real.javaclient import JavaAdmin, JavaClient
from tests.real.peers import APACHE_4, Site

_SITES = pytest.StashKey[list[Site]]()

Clients = Callable[[str, str], JavaClient]

#: Files whose tests take longest, those first: one that began last would keep one process busy while the others have
#: nothing left to do. Their tests share no fixture, so that each may run in any process; other files stay whole.
LONGEST_FIRST = (
    "test_two_namesrvs.py",
    "test_apache_its.py",
    "test_audit.py",
    "test_broker_admin.py",
    "test_mixed.py",
    "test_replication.py",
    "test_mqadmin_columns.py",
    "test_kill.py",
    "test_ordered_group.py",
    "test_clients.py",
    "test_rmq_admin.py",
    "test_sync_master.py",
    "test_controller.py",
    "test_returning_master.py",
    "test_transactions.py",
    "test_stores.py",
)


class ByFileOrTest(LoadFileScheduling):  # type: ignore[misc]
    """Gives files to processes, and the tests of the longest files one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return nodeid if file.rpartition("/")[2] in LONGEST_FIRST else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrTest | None:
    """Share out what ``--dist loadfile`` runs; without this folder in its command line a run does not call this."""
    return ByFileOrTest(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of this folder in their places; those of others stay: trial comes before pytest-twisted."""
    ours = [at for at, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    ordered = sorted((items[at] for at in ours), key=lambda item: places.get(item.path.name, len(places)))
    for at, item in zip(ours, ordered, strict=True):
        items[at] = item


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Attach the last lines of every process's logs to the report of a failed test."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        item.stash[_FAILED] = True
        for site in item.stash.get(_SITES, []):
            report.sections.append((f"processes below {site.root}", site.report()))


_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """An empty site; its processes end with the test, its stores go unless the test failed, its logs stay."""
    site = Site(tmp_path)
    request.node.stash.setdefault(_SITES, []).append(site)
    yield site
    site.close()
    if not request.node.stash.get(_FAILED, False):
        site.forget_stores()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Clients]:
    """Start Java clients: ``client(version, namesrv)``; they end before the processes of the site do."""
    clients: list[JavaClient] = []

    def start(version: str, namesrv: str) -> JavaClient:
        clients.append(JavaClient(version, namesrv, tmp_path / f"client-{len(clients)}-{version}"))
        return clients[-1]

    yield start
    for one in clients:
        one.close()


@pytest.fixture
def java_admin(tmp_path: Path) -> Iterator[JavaAdmin]:
    """Apache's mqadmin 4.9.7; one JVM runs all commands of a test, as each JVM takes more than a second to start."""
    admin = JavaAdmin(APACHE_4, tmp_path / "mqadmin")
    yield admin
    admin.close()
