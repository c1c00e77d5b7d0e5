"""Cases with the fixtures of pytest that the audit's tests need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rmq_audit.engine.engines import Engine
from twisted.trial.unittest import SynchronousTestCase


class FolderCase(SynchronousTestCase):
    """``folder`` is empty."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _take_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path


class GoldenCase(FolderCase):
    """``golden`` and ``golden_copy`` return the folder of a golden archive; see conftest.py."""

    golden: Callable[[str], Path]
    golden_copy: Callable[[str], Path]

    @pytest.fixture(autouse=True)
    def _take_golden(self, golden: Callable[[str], Path], golden_copy: Callable[[str], Path]) -> None:
        self.golden = golden
        self.golden_copy = golden_copy


class EngineCase(SynchronousTestCase):
    """``engine`` is a Spark engine."""

    engine: Engine

    @pytest.fixture(autouse=True)
    def _take_engine(self, spark_engine: Engine) -> None:
        self.engine = spark_engine
