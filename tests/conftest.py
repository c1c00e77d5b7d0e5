"""Pytest's side of the suite; trial does not read this file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _scratch_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """``mktemp`` of trial's test cases makes folders where it stands: let that be outside the checkout."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


@pytest.fixture(autouse=True, scope="session")
def _children_import_the_checkout() -> None:
    """Processes that a test starts (twistd, Spark workers) see the same packages as the test itself."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), str(ROOT / "spark"), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
