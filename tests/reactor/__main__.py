"""
``python -m tests.reactor``: the lean reactor must do in Twisted's own reactor tests what Twisted's epoll reactor does.

Both run in this order in processes of their own, so a test that fails on this machine with Twisted's reactor (for want
of rights or of IPv6, say) is no reproach to ours. Ends with 1 when there is a difference that has no reason in
tests/reactor/differences.py. Arguments: modules to run in place of all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.reactor.differences import differences, permitted
from tests.reactor.suites import LEAN, MODULES, STOCK

#: one reactor's tests; they take two minutes
TIMEOUT_S = 1800


def run(reactor: str, modules: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Return the outcomes of ``modules`` with ``reactor``; SystemExit when its process fails."""
    results = folder / f"{reactor.rpartition('.')[2]}.json"
    log = results.with_suffix(".txt")
    with log.open("wb") as out:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.reactor.suites", reactor, str(results), *modules],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    if not results.exists():
        raise SystemExit(f"{reactor}: its tests ended with {process.returncode}\n{log.read_text(errors='replace')}")
    outcomes: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes.values()).items()))
    print(f"{reactor}: {len(outcomes)} tests: {counts}", flush=True)
    return outcomes


def main(*modules: str) -> int:
    """Run and compare; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        chosen = modules or MODULES
        stock = run(STOCK, chosen, place)
        lean = run(LEAN, chosen, place)
        for line in permitted(stock, lean):
            print(f"permitted: {line}")
        found = differences(stock, lean)
        if found:
            print((place / "LeanReactor.txt").read_text(errors="replace"))
        for line in found:
            print(f"DIFFERENT: {line}")
    if not stock:
        print("no tests were run")
        return 1
    if not found:
        print(f"rmq-lean does as Twisted's epoll reactor in {len(stock)} of Twisted's tests")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
