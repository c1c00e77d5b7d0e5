"""Everything in this folder is long, deterministic, and run once by ``tox -e campaign``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/campaign/" in item.path.as_posix():
            item.add_marker(pytest.mark.campaign)
