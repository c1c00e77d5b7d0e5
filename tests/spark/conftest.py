"""What the audit's tests share: golden stores unpacked once, and one Spark context for all that need it."""

from __future__ import annotations

import os
import shutil
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import needs
from tests.goldens import unpack_store

if TYPE_CHECKING:
    from rmq_audit.engine.engines import Engine

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a golden archive, by its name; unpacked on first use and never written to."""
    unpacked: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = tmp_path_factory.mktemp(name)
            unpack_store(name, unpacked[name])
        return unpacked[name]

    return unpack


@pytest.fixture(scope="session")
def spark_engine() -> Iterator[Engine]:
    """A Spark engine on two local cores."""
    from rmq_audit.engine.engines import EngineError

    # Few queries are repeated so often that the second compiler of the JVM pays.
    with unittest.mock.patch.dict(os.environ, PYSPARK_SUBMIT_ARGS=f"--driver-java-options '{JAVA}' pyspark-shell"):
        try:
            from rmq_audit.engine.spark import OwnedSparkEngine

            engine = OwnedSparkEngine("local[2]")
        except EngineError as error:
            needs.missing(str(error))
    yield engine
    engine.close()


@pytest.fixture
def golden_copy(golden: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a golden archive's folder that the test may damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(golden(name), tmp_path / name))

    return copy
