"""
What the tests need of the machine, and what becomes of a test whose need is not there: one rule for all of them.

Without RMQ_CI such a test is skipped, and the head and the end of the run say by name what is left out. With RMQ_CI
set, everything must be there: the run fails and names what is missing. ``python -m tests.needs`` says the same about
this environment, for runners that do not read tests/conftest.py.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn
from unittest import SkipTest

from rmq.wire.compiled import PURE_PYTHON

ROOT = Path(__file__).resolve().parent.parent

#: set in CI
MUST_RUN = bool(os.environ.get("RMQ_CI"))

#: set for what takes hours: the same with more peers, seeds or rounds
IS_CAMPAIGN = bool(os.environ.get("RMQ_CAMPAIGN"))

#: set where the installed wheel is tested (tox), not the checkout
WHEEL = "RMQ_TEST_WHEEL"

#: names extras, separated by commas, that a run does without in CI too: none of its tests needs them
NOT_NEEDED = "RMQ_NOT_NEEDED"

#: extras, and the part of ``dev`` that stands in for S3, with the modules that they bring
EXTRAS = {
    "audit-local": ("numpy", "xxhash"),
    "audit": ("pyspark", "pyarrow"),
    "tls": ("OpenSSL", "service_identity"),
    "manhole": ("bcrypt", "cryptography"),
    "metrics": ("prometheus_client",),
    "acl": ("yaml",),
    "completion": ("shtab",),
    "lz4": ("lz4",),
    "zstandard": ("zstandard",),
    "otel": ("opentelemetry",),
    "moto (extra dev)": ("moto", "flask", "flask_cors"),
}

#: what is tested, and where the checkout has it
PACKAGES = {"rmq": ROOT / "rmq", "rmq_audit": ROOT / "spark" / "rmq_audit"}

#: each has a twin in Python, so that nothing else would notice that it was not built
COMPILED = (
    "rmq.runtime.disk._syncs",
    "rmq.runtime._lean",
    "rmq.namesrv._lanes",
    "rmq.remoting._fastpath",
    "rmq.store._pick",
    "rmq.store._record",
    "rmq_audit.worker._kernel",
)

#: programs, and the tests that want them; a run that has none of these tests may do without, in CI too
TOOLS = {
    "java": "Spark and Apache's peers",
    "mvn": "Apache's jars",
    "go": "the client for Go",
    "openssl": "TLS recipes",
}

#: how the reason of a skip begins that was asked for, and is none of the machine's faults
ASKED_FOR = (PURE_PYTHON, "RMQ_REAL_OURS", "RMQ_CAMPAIGN")


def missing(what: str) -> NoReturn:
    """Skip the running test because of ``what``; where RMQ_CI is set everything must be there, so fail instead."""
    if MUST_RUN:
        raise AssertionError(f"missing: {what} (RMQ_CI is set: this is a failure)")
    raise SkipTest(f"missing: {what}")


def need_compiled(*names: str) -> None:
    """Go on where these compiled modules are in use; else the running test is left out."""
    if os.environ.get(PURE_PYTHON):
        raise SkipTest(f"{PURE_PYTHON} is set: without {', '.join(names)}")
    for name in names:
        if not _is_there(name):
            missing(_compiled(name))


def need_extra(extra: str) -> None:
    """Go on where all modules of ``extra`` are installed; else the running test is left out."""
    if absent := [name for name in EXTRAS[extra] if not _is_there(name)]:
        missing(_extra(extra, absent))


def extra_with(module: str | None) -> str | None:
    """Return what would be missing if ``module`` could not be imported; None when it belongs to no extra."""
    top = (module or "").partition(".")[0]
    return next((_extra(extra, [top]) for extra, modules in EXTRAS.items() if top in modules), None)


def all_missing(*, but: Collection[str] = ()) -> list[str]:
    """Name the extras and compiled modules that are not there, without the extras ``but``."""
    found = []
    for extra, modules in EXTRAS.items():
        if extra not in but and (absent := [name for name in modules if not _is_there(name)]):
            found.append(_extra(extra, absent))
    if not os.environ.get(PURE_PYTHON):
        found += [_compiled(name) for name in COMPILED if not _is_there(name)]
    return found


def _extra(extra: str, modules: list[str]) -> str:
    return f"extra {extra}: {', '.join(modules)} not installed"


def _compiled(name: str) -> str:
    return f"compiled module {name}: not built (hatch_build.py says why)"


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package
        return False


def origin(package: str) -> Path | None:
    """Return the folder that ``package`` is imported from."""
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve().parent


def is_checkout() -> bool:
    """Tell whether one of the packages under test is that of the checkout, and not that of an installed wheel."""
    return any(origin(package) == place for package, place in PACKAGES.items())


def head() -> list[str]:
    """Return the lines that begin a run: what is tested, and what is left out."""
    pure = f", {PURE_PYTHON} is set: no compiled modules" if os.environ.get(PURE_PYTHON) else ""
    lines = [f"{package} is imported from {origin(package)}{pure}" for package in PACKAGES]
    return lines + left_out()


def left_out() -> list[str]:
    """Return a line for each thing that is missing, tools included."""
    tools = [f"{tool} on PATH: {use}" for tool, use in TOOLS.items() if shutil.which(tool) is None]
    return [f"left out, missing: {what}" for what in all_missing() + tools]


def refusal() -> str | None:
    """Return why the run may not begin: something is missing in CI, or the wrong packages would be tested."""
    if os.environ.get(WHEEL) and is_checkout():
        return f"{WHEEL} is set, but {origin('rmq')} and {origin('rmq_audit')} are imported, not the installed wheel"
    not_needed = set(filter(None, os.environ.get(NOT_NEEDED, "").split(",")))
    if unknown := not_needed - EXTRAS.keys():
        return f"{NOT_NEEDED} names {', '.join(sorted(unknown))}, which is no extra"
    if MUST_RUN and (absent := all_missing(but=not_needed)):
        return f"RMQ_CI is set, and these are missing: {'; '.join(absent)}"
    return None


def imports() -> dict[str, str]:
    """Return the environment in which a process of a test (twistd, Spark's workers) imports what the test imports."""
    return {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "spark")))} if is_checkout() else {}


if __name__ == "__main__":
    print(*head(), sep="\n")
    sys.exit(refusal())
