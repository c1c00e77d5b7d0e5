"""Short ways to audit in tests."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_audit.driver.audit import Options, Result, compare
from rmq_audit.driver.findings import Finding
from rmq_audit.engine.engines import Engine, LocalEngine

from tests.needs import imports


def audit(
    master: Path,
    slave: Path,
    *,
    chunk: int = 1 << 20,
    split: int = 64 << 20,
    engine: Engine | None = None,
    lag: int = 0,
) -> Result:
    """Compare two stores in this process, or with the engine that is given."""
    options = Options(split_bytes=split, chunk_bytes=chunk, allowed_lag_bytes=lag)
    return compare(str(master), str(slave), engine or LocalEngine(1), options)


def causes(result: Result) -> list[Finding]:
    """Return the findings that follow from no other."""
    return [one for one in result.findings if one.derived_from is None]


def as_json(result: Result) -> list[dict[str, Any]]:
    """Return all findings in a form that compares."""
    return [one.to_json() for one in result.findings]


def rmq_audit(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    module: Sequence[str] = ("-m", "rmq_audit"),
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, *module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **imports(), **(environment or {})},
    )


@contextlib.contextmanager
def no_room_beyond(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def result_of(path: Path) -> dict[str, Any]:
    """Return the JSON that a run wrote."""
    with open(path, encoding="utf-8") as file:
        answer: dict[str, Any] = json.load(file)
    return answer
