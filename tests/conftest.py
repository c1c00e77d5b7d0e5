"""Pytest's side of the suite; trial does not read this file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True, scope="session")
def _children_import_the_checkout() -> None:
    """Processes that a test starts (twistd, Spark workers) see the same packages as the test itself."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), str(ROOT / "spark"), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
